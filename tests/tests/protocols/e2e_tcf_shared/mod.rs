//! `profiler serve --tcf` on loopback, the clients of `tests/tcf` at it, and what captures hold in the
//! terms of such clients.
//!
//! What does not belong here: what is right (the tests).
// Each test binary uses a part.
#![allow(dead_code)]

pub(crate) mod capture;
pub(crate) mod profile;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use profiler_tests::kernel_objects::{Held, held_by};
use profiler_tests::process::{Ended, Running, send_signal};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use rustix::process::Signal;
use serde_json::Value;

pub(crate) type Failure = Box<dyn Error>;

/// Debian's own, which other users can run too.
const PYTHON: &str = "/usr/bin/python3";

/// Nobody.
pub(crate) const NOBODY: u32 = 65_534;

/// A setting with the clients in it; none where there is no Python, which is said.
pub(crate) fn with_clients(test: &str, privileged: bool) -> Result<Option<Setting>, Failure> {
    if !Path::new(PYTHON).exists() {
        skip(test, "no python3");
        return Ok(None);
    }
    let setting = match privileged {
        true => Setting::new(test)?,
        false => Setting::unprivileged(test)?,
    };
    let Some(setting) = setting else {
        return Ok(None);
    };
    let (from, to) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tcf"),
        setting.path("tcf"),
    );
    fs::create_dir_all(&to)?;
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let copy = to.join(path.file_name().unwrap_or_default());
            fs::copy(&path, &copy)?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(Some(setting))
}

/// What the agent holds in the kernel, as soon as a client has come.
pub(crate) fn attached(agent: &Agent<'_>) -> Result<Held, Failure> {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(100));
        let held = held_by(agent.pid())?;
        if !held.programs.is_empty() {
            return Ok(held);
        }
    }
    Err("nothing is attached".into())
}

/// A command of the clients: a script of `tests/tcf`.
pub(crate) fn python(setting: &Setting, script: &str) -> Command {
    let mut command = Command::new(PYTHON);
    command
        .arg("-B")
        .arg(setting.path("tcf").join(script))
        .current_dir(setting.folder())
        .stdin(Stdio::null());
    command
}

/// An agent that runs.
pub(crate) struct Agent<'s> {
    setting: &'s Setting,
    pub(crate) running: Running,
    pub(crate) port: u16,
}

impl<'s> Agent<'s> {
    /// Starts `profiler serve --tcf` on any port of loopback.
    pub(crate) fn start(setting: &'s Setting, arguments: &[&str]) -> Result<Agent<'s>, Failure> {
        Agent::start_command(setting, setting.profiler(), arguments)
    }

    /// Starts it by this command, to which the arguments are added.
    pub(crate) fn start_command(
        setting: &'s Setting,
        mut command: Command,
        arguments: &[&str],
    ) -> Result<Agent<'s>, Failure> {
        command.args(["serve", "--tcf", "127.0.0.1:0"]);
        command.args(arguments);
        let mut running = Running::start(&mut command, setting.folder(), "serve")?;
        let mut port = None;
        running.wait_until("listening", LIMIT, |running| {
            port = running.stderr_so_far().ok().and_then(|said| port_in(&said));
            port.is_some()
        })?;
        Ok(Agent {
            setting,
            running,
            port: port.ok_or("no port")?,
        })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// A command of a script of `tests/tcf` with this agent's address.
    pub(crate) fn command(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = python(self.setting, script);
        command.args(["127.0.0.1", &self.port.to_string()]);
        command.args(arguments);
        command
    }

    /// Starts a script of `tests/tcf`; its outputs are in files of this name.
    pub(crate) fn begin(
        &self,
        name: &str,
        script: &str,
        arguments: &[&str],
    ) -> Result<Running, Failure> {
        let mut command = self.command(script, arguments);
        Ok(Running::start(&mut command, self.setting.folder(), name)?)
    }

    /// Runs the client to its end, which must be good; what it says.
    pub(crate) fn client(&self, arguments: &[&str]) -> Result<Value, Failure> {
        self.script("client.py", arguments)
    }

    /// Runs a script of `tests/tcf` to its end, which must be good; what it says.
    pub(crate) fn script(&self, script: &str, arguments: &[&str]) -> Result<Value, Failure> {
        let ended = self.begin("client", script, arguments)?.end(4 * LIMIT)?;
        self.result(ended)
    }

    /// What a script says that has ended well.
    pub(crate) fn result(&self, ended: Ended) -> Result<Value, Failure> {
        let said = self.running.stderr_so_far()?;
        let ended = ended
            .success()
            .map_err(|error| format!("{error}; the agent said: {said}"))?;
        Ok(ended.json()?)
    }

    /// Runs one command of a service.
    pub(crate) fn call(
        &self,
        service: &str,
        command: &str,
        rest: &[&str],
    ) -> Result<Value, Failure> {
        self.client(&[&["call", service, command][..], rest].concat())
    }

    /// Ends it as Ctrl-C does; it must end well.
    pub(crate) fn end(self) -> Result<Ended, Failure> {
        self.running.signal(Signal::INT)?;
        Ok(self.running.end(LIMIT)?.success()?)
    }
}

/// The port in what the agent says when it listens.
fn port_in(said: &str) -> Option<u16> {
    let (_, rest) = said.split_once("127.0.0.1:")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..digits].parse().ok().filter(|&port| port > 0)
}

/// A workload that answers lines of its input by lines of JSON.
pub(crate) struct Talking {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talking {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Result<Talking, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Talking {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Starts the workload built of `source`.
    pub(crate) fn workload(
        setting: &Setting,
        source: &str,
        arguments: &[&str],
    ) -> Result<Talking, Failure> {
        let program = setting.workload(source)?;
        Talking::start(Command::new(program).args(arguments))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// As clients call it.
    pub(crate) fn id(&self) -> String {
        format!("P{}", self.pid())
    }

    /// The next line of its output, as it is.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// The next line of its output.
    pub(crate) fn hear(&mut self) -> Result<Value, Failure> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| format!("{error}: '{line}'").into())
    }

    /// Says a line to it.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(writeln!(self.input.as_mut().ok_or("no input")?, "{line}")?)
    }

    /// Says a line to it; gives its answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value, Failure> {
        self.say(line)?;
        self.hear()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(send_signal(self.pid(), signal)?)
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> Result<bool, Failure> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Ends its input and waits for its end, a short time.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        drop(self.input.take());
        for _ in 0..500 {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("the workload does not end".into())
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Now, as clients tell the times of events: seconds of CLOCK_MONOTONIC.
pub(crate) fn now_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// What the descriptors of a process are, each kind with its number: `anon_inode:bpf-map`, `socket`, ..
pub(crate) fn descriptors(pid: u32) -> Result<std::collections::BTreeMap<String, usize>, Failure> {
    let mut kinds = std::collections::BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor can be closed while the folder is read.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        let kind = match target.split_once(':') {
            Some(("anon_inode", name)) => format!("anon_inode:{name}"),
            Some((kind, _)) => kind.to_owned(),
            None => "file".to_owned(),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    Ok(kinds)
}

/// How many sockets of a process are none of the Unix domain: listeners and clients. Those it has with processes of its own come
/// and go with what the machine runs.
pub(crate) fn network_sockets(pid: u32) -> Result<usize, Failure> {
    let read = || fs::read_to_string(format!("/proc/{pid}/net/unix"));
    let before = read()?;
    let mut inodes = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor can be closed while the folder is read.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        let inode = target.strip_prefix("socket:[");
        inodes.extend(inode.map(|inode| inode.trim_end_matches(']').to_owned()));
    }
    let after = read()?;
    let lines = before.lines().chain(after.lines());
    let unix: BTreeSet<&str> = lines
        .filter_map(|line| line.split_whitespace().nth(6))
        .collect();
    inodes.retain(|inode| !unix.contains(inode.as_str()));
    Ok(inodes.len())
}

/// Path of a file of the tests' own folder.
pub(crate) fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
