//! Both sides as people run them: `profiler hq` on loopback, `profiler stream bytefrog` at it, and what
//! the capture of the receiver holds.
// Each test binary uses a part.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{Event, Sink, Tables};
use profiler_tests::process::{Ended, Running};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Edge, How, Trace};
use serde_json::Value;

/// A receiver of one run, into `hq.cap`; it is strict.
pub(crate) struct Receiver {
    /// The process.
    pub(crate) running: Running,
    /// Where it listens.
    pub(crate) address: String,
    prompt: ChildStdin,
}

impl Receiver {
    /// Starts it on any port.
    pub(crate) fn start(setting: &Setting, arguments: &[&str]) -> Result<Receiver, Box<dyn Error>> {
        let mut command = setting.profiler();
        command.args(["hq", "--strict", "--force", "-o", "hq.cap", "--runs", "1"]);
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        command.stdin(Stdio::piped());
        let mut running = Running::start(&mut command, setting.folder(), "hq")?;
        let prompt = running.stdin().ok_or("no prompt")?;
        let listens = |said: &str| {
            let (line, _) = said.split_once('\n')?;
            Some(line.strip_prefix("listening at ")?.to_owned())
        };
        let mut address = None;
        running.wait_until("listening", LIMIT, |running| {
            address = running.stderr_so_far().ok().and_then(|said| listens(&said));
            address.is_some()
        })?;
        Ok(Receiver {
            running,
            address: address.ok_or("no address")?,
            prompt,
        })
    }

    /// Writes a line to its prompt.
    pub(crate) fn order(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.prompt, "{line}")
    }

    /// Asks for the status until the agent says that it is in this mode.
    pub(crate) fn wait_for_mode(&mut self, mode: &str) -> io::Result<()> {
        let statuses = |said: &str| -> Vec<String> {
            let lines = said.lines().filter(|line| line.starts_with("run 0 of "));
            lines.map(str::to_owned).collect()
        };
        let wanted = format!(": {mode}, ");
        let mut known = statuses(&self.running.stderr_so_far()?).len();
        for _ in 0..300 {
            self.order("status")?;
            std::thread::sleep(Duration::from_millis(100));
            let said = statuses(&self.running.stderr_so_far()?);
            let mut news = said.iter().skip(known);
            if news.any(|line| line.contains(&wanted)) {
                return Ok(());
            }
            known = said.len();
        }
        let said = self.running.stderr_so_far()?;
        Err(io::Error::other(format!("never {mode}: {said}")))
    }

    /// Waits for the normal end of the run.
    pub(crate) fn end(self, setting: &Setting) -> Result<Received, Box<dyn Error>> {
        // The prompt stays open: its end is not what ends the receiver.
        let ended = self.running.end(LIMIT)?.success()?;
        if !ended.stderr.contains("run 0 is complete") || ended.stderr.contains("fault") {
            return Err(ended.stderr.into());
        }
        Received::read(&setting.path("hq.cap"))
    }
}

/// Starts streaming; standard output is the command's.
pub(crate) fn stream(
    setting: &Setting,
    address: &str,
    arguments: &[&str],
) -> Result<Running, Box<dyn Error>> {
    let mut command = setting.profiler();
    command
        .args(["stream", "bytefrog", address])
        .args(arguments);
    Ok(Running::start(&mut command, setting.folder(), "stream")?)
}

/// Streams a run of a command to a receiver, to the end of both.
pub(crate) fn whole_run(
    setting: &Setting,
    receiver: &[&str],
    arguments: &[&str],
) -> Result<(Ended, Received), Box<dyn Error>> {
    let receiver = Receiver::start(setting, receiver)?;
    let running = stream(setting, &receiver.address, arguments)?;
    let ended = running.end(LIMIT)?.success()?;
    Ok((ended, receiver.end(setting)?))
}

/// What came of a run.
#[derive(Default)]
pub(crate) struct Received {
    /// Calls, throws, gaps.
    pub(crate) trace: Trace,
    /// Texts of all markers.
    pub(crate) marks: Vec<String>,
    /// Last names of all threads.
    pub(crate) threads: BTreeSet<String>,
}

#[derive(Default)]
struct Marks(Vec<String>);

impl Sink for Marks {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        if let Event::Mark(mark) = event {
            self.0.push(tables.string(mark.text).to_owned());
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

impl Received {
    /// Reads the receiver's capture.
    pub(crate) fn read(path: &Path) -> Result<Received, Box<dyn Error>> {
        let mut trace = Trace::read(path)?;
        for call in &mut trace.calls {
            call.function = plain(&call.function);
        }
        let mut reader = Reader::open(path)?;
        let tables = reader.load_tables()?;
        let mut marks = Marks::default();
        replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut marks])?;
        Ok(Received {
            trace,
            marks: marks.0,
            threads: tables
                .threads()
                .map(|(_, thread)| tables.string(thread.name).to_owned())
                .collect(),
        })
    }

    /// How often each function called each other; calls by time, one stack for each thread.
    pub(crate) fn pairs(&self) -> BTreeMap<String, u64> {
        let mut stacks: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        let mut pairs = BTreeMap::new();
        for call in &self.trace.calls {
            let stack = stacks.entry(call.tid).or_default();
            if matches!(call.edge, Edge::Enter(_)) {
                let outer = stack.last().copied().unwrap_or_default();
                let pair = format!("{outer}>{}", call.function);
                *pairs.entry(pair).or_default() += 1;
                stack.push(&call.function);
            } else {
                stack.pop();
            }
        }
        pairs
    }

    /// How often a function was left by an exception, whichever.
    pub(crate) fn passed(&self, function: &str) -> u64 {
        let exits = self.trace.exits(function);
        let passed = exits
            .iter()
            .filter(|(how, _)| matches!(how, How::Exception(_)));
        passed.map(|(_, count)| count).sum()
    }

    /// Fails unless calls, returns and exits by exceptions are what the program says of itself.
    pub(crate) fn is_what_happened(&self, truth: &Value) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (function, calls) in truth["calls"].as_object().into_iter().flatten() {
            let calls = calls.as_u64().unwrap_or(0);
            let returns = truth["returns"][function].as_u64().unwrap_or(0);
            let exits = self.trace.exits(function);
            let came = (
                self.trace.entries(function),
                exits.get(&How::Return).copied().unwrap_or(0),
                self.passed(function),
            );
            if came != (calls, returns, calls - returns) {
                wrong.push(format!(
                    "{function}: {calls} calls, {returns} returns; {came:?}"
                ));
            }
        }
        if truth["good"] != true {
            wrong.push("the program was harmed".to_owned());
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("\n")),
        }
    }
}

/// A name without parameters.
fn plain(name: &str) -> String {
    name.split('(').next().unwrap_or_default().to_owned()
}

/// The pairs of caller and callee that a program says.
pub(crate) fn pairs_of(truth: &Value) -> BTreeMap<String, u64> {
    let pairs = truth["pairs"].as_object().into_iter().flatten();
    pairs
        .filter_map(|(pair, count)| Some((pair.clone(), count.as_u64()?)))
        .collect()
}

/// What `stream_threads` has put into its file so far.
pub(crate) fn finished(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap_or_default();
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

/// Whether a process is stopped, by its state.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}
