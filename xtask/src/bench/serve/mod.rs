//! What serving clients costs, and how fast answers come.
//!
//! Scenarios: `cost`, the agent's own CPU time with 1, 10 and 50 clients that profile a busy process,
//! beside `profiler record` of the same at the same rate; `threads`, reads of all threads of a process without a pause by 1,
//! 10 and 100; `answers`, the time of a read and of many
//! commands at once; `tree`, a walk over 10,000 threads: of TCF. `rdp`: frames a second, and their cost; `http`: sessions. No other tool serves such clients live. Times are
//! nanoseconds; CPU time is what the scheduler charges to the tool's threads, which does not hold the
//! sampling itself: that runs in the target's time, and is the same program for both.

mod answers;
mod client;
mod cost;
mod http;
mod rdp;
mod threads;
mod tree;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Bench;

/// Names of the scenarios.
pub(crate) const SCENARIOS: [&str; 6] = ["cost", "threads", "answers", "tree", "rdp", "http"];

/// Runs the scenarios that `wanted` says.
pub(crate) fn run(
    bench: &Bench,
    rounds: usize,
    seconds: u64,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    if wanted("cost") {
        cost::run(bench, seconds)?;
    }
    if wanted("threads") {
        threads::run(bench, seconds)?;
    }
    if wanted("answers") {
        answers::run(bench, rounds)?;
    }
    if wanted("tree") {
        tree::run(bench, rounds)?;
    }
    if wanted("rdp") {
        rdp::frames(bench, seconds)?;
        rdp::inferred(bench, seconds)?;
    }
    if wanted("http") {
        http::run(bench, seconds)?;
    }
    Ok(())
}

/// A process that is ended with this.
struct Process(Child);

impl Process {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// A workload that writes one line when it is ready, and ends with its input.
    fn workload(bench: &Bench, name: &str, arguments: &[&str]) -> io::Result<Process> {
        let program = bench.workload(&format!("{name}.c"), name, &["-g", "-lpthread"])?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take();
        let process = Process(child);
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line)?;
        }
        match line.is_empty() {
            true => Err(io::Error::other(format!("{name} says nothing"))),
            false => Ok(process),
        }
    }

    /// The profiler with these arguments, its words in `log`.
    fn profiler(bench: &Bench, log: &Path, arguments: &[&str]) -> io::Result<Process> {
        let file = fs::File::create(log)?;
        let child = Command::new(&bench.profiler)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Process(child))
    }

    /// CPU time of its threads so far.
    fn cpu_ns(&self) -> io::Result<u64> {
        let mut sum = 0;
        for entry in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread can end while the folder is read.
            let text = fs::read_to_string(entry?.path().join("schedstat")).unwrap_or_default();
            sum += text
                .split(' ')
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .unwrap_or(0);
        }
        Ok(sum)
    }

    /// Its highest memory so far.
    fn peak_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kib.unwrap_or(0) * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed());
        // Asked to end first: what it has in the kernel goes either way.
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let until = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent and where it listens.
fn serve(bench: &Bench) -> io::Result<(Process, String)> {
    serve_by(bench, "--tcf", &[])
}

/// A server of one protocol and where it listens.
fn serve_by(bench: &Bench, protocol: &str, more: &[&str]) -> io::Result<(Process, String)> {
    let log = bench.folder.join("log");
    let arguments = [&["serve", protocol, "127.0.0.1:0"], more].concat();
    let process = Process::profiler(bench, &log, &arguments)?;
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        let said = fs::read_to_string(&log)?;
        let port = said.split_once("127.0.0.1:").and_then(|(_, rest)| {
            let digits = rest.find(|it: char| !it.is_ascii_digit())?;
            rest[..digits].parse::<u16>().ok()
        });
        if let Some(port) = port {
            return Ok((process, format!("127.0.0.1:{port}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = fs::read_to_string(&log)?;
    Err(io::Error::other(format!(
        "the server does not listen: {said}"
    )))
}

/// Text as JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
