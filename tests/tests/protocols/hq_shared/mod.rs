//! An agent that follows a script, byte by byte, and a receiver that remembers.
// Each test uses a part, and fails by unwrapping.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use profiler_serve::hq::{BreakCause, Hq, HqEvent, HqOptions, Receiver, RunReport};
use profiler_tests::setting::Setting;
use profiler_wire::bytefrog::{AgentMessage, HqMessage, Mode};

/// Longest wait for anything.
pub const LIMIT: Duration = Duration::from_secs(20);

/// What a run brought, as text.
#[derive(Clone, Default)]
pub struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until this has been told.
    pub fn wait(&self, line: &str) {
        let deadline = Instant::now() + LIMIT;
        while !self.lines().iter().any(|told| told == line) {
            assert!(Instant::now() < deadline, "{line} was not told");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn push(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }
}

impl Receiver for Told {
    fn begin(&mut self) {
        self.push("begin".to_owned());
    }

    fn message(&mut self, message: &AgentMessage<'_>) {
        self.push(match message {
            AgentMessage::MethodEntry {
                sequence,
                method,
                thread,
                ..
            } => format!("{sequence} +{method} on {thread}"),
            AgentMessage::MethodExit {
                sequence,
                method,
                thread,
                ..
            } => format!("{sequence} -{method} on {thread}"),
            AgentMessage::Marker {
                sequence,
                key,
                value,
                ..
            } => format!("{sequence} {key}={value}"),
            AgentMessage::MapMethodSignature { method, signature } => {
                format!(
                    "{method} is {}",
                    signature.chars().take(40).collect::<String>()
                )
            }
            other => format!("{other:?}"),
        });
    }

    fn data_break(&mut self, cause: BreakCause) {
        self.push(match cause {
            BreakCause::Missing => "break".to_owned(),
            BreakCause::Suspended => "break of a suspension".to_owned(),
        });
    }

    fn missing(&mut self, count: u64) {
        self.push(format!("{count} missing"));
    }
}

/// An HQ on a port of its own, whose runs are remembered.
pub fn hq(options: HqOptions) -> (Hq, Told) {
    let told = Told::default();
    let theirs = told.clone();
    let address = "127.0.0.1:0".parse().unwrap();
    let hq = Hq::start(address, options, move |_, _| Ok(Box::new(theirs.clone()))).unwrap();
    (hq, told)
}

/// How the next run ends.
pub fn ended(hq: &Hq) -> RunReport {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(HqEvent::Ended(report)) = hq.next_event(Duration::from_millis(100)) {
            return *report;
        }
    }
    panic!("no run has ended");
}

/// Why the next peer is turned away.
pub fn refused(hq: &Hq) -> String {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(HqEvent::Refused { reason, .. }) = hq.next_event(Duration::from_millis(100)) {
            return reason;
        }
    }
    panic!("nobody was turned away");
}

/// One connection of an agent.
pub struct Connection {
    pub stream: TcpStream,
    came: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Connection {
            stream,
            came: Vec::new(),
        }
    }

    pub fn send(&mut self, messages: &[AgentMessage<'_>]) {
        let mut bytes = Vec::new();
        for message in messages {
            message.encode(&mut bytes);
        }
        self.bytes(&bytes);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next message of the HQ; none at the end of the connection.
    pub fn next(&mut self) -> Option<HqMessage> {
        loop {
            if let Some((message, len)) = HqMessage::decode(&self.came).unwrap() {
                self.came.drain(..len);
                return Some(message);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(read) => self.came.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn expect(&mut self, expected: &[HqMessage]) {
        for message in expected {
            assert_eq!(self.next().as_ref(), Some(message));
        }
    }
}

/// A control connection that has its configuration and has said that it waits.
pub fn agent(address: SocketAddr) -> (Connection, u8) {
    let mut control = Connection::open(address);
    control.send(&[AgentMessage::Hello { version: 1 }]);
    let Some(HqMessage::Configuration(bytes)) = control.next() else {
        panic!("no configuration");
    };
    let run = profiler_wire::bytefrog::Configuration::decode(&bytes)
        .unwrap()
        .run;
    control.send(&[heartbeat(Mode::Initializing)]);
    (control, run)
}

/// A data connection that was accepted.
pub fn data(address: SocketAddr, run: u8) -> Connection {
    let mut data = Connection::open(address);
    data.send(&[AgentMessage::DataHello { run }]);
    data.expect(&[HqMessage::DataHelloReply]);
    data
}

/// Ends a run as agents do.
pub fn finish(mut control: Connection, data: Vec<Connection>) {
    control.send(&[heartbeat(Mode::ShuttingDown)]);
    loop {
        match control.next() {
            Some(HqMessage::Stop) => break,
            Some(_) => {}
            None => panic!("the agent is not told to stop"),
        }
    }
    drop(data);
    assert_eq!(control.next(), None);
}

pub fn heartbeat(mode: Mode) -> AgentMessage<'static> {
    AgentMessage::Heartbeat { mode, filled: 0 }
}

pub fn enter(sequence: u32, method: u32, thread: u16) -> AgentMessage<'static> {
    AgentMessage::MethodEntry {
        at_ms: sequence,
        sequence,
        method,
        thread,
    }
}

pub fn exit(sequence: u32, method: u32, thread: u16) -> AgentMessage<'static> {
    AgentMessage::MethodExit {
        at_ms: sequence,
        sequence,
        method,
        line: 65535,
        thread,
    }
}

pub fn marker(sequence: u32, value: &str) -> AgentMessage<'_> {
    AgentMessage::Marker {
        at_ms: sequence,
        sequence,
        key: "mark".into(),
        value: value.into(),
    }
}

pub fn name(method: u32, signature: &str) -> AgentMessage<'_> {
    AgentMessage::MapMethodSignature {
        method,
        signature: signature.into(),
    }
}

/// The `profiler hq` of this build.
pub struct Receiving {
    child: Child,
    pub address: SocketAddr,
    said: BufReader<ChildStderr>,
    head: String,
}

impl Receiving {
    /// Starts it on any port, in the folder of `setting`.
    pub fn start(setting: &Setting, arguments: &[&str]) -> Receiving {
        let mut child = setting
            .profiler()
            .args(["hq", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut head = String::new();
        said.read_line(&mut head).unwrap();
        let address = head.trim().strip_prefix("listening at ");
        let address = address.unwrap_or_else(|| panic!("{head}")).parse().unwrap();
        Receiving {
            child,
            address,
            said,
            head,
        }
    }

    /// Writes a line to its prompt.
    pub fn order(&mut self, line: &str) {
        let prompt = self.child.stdin.as_mut().unwrap();
        writeln!(prompt, "{line}").unwrap();
    }

    /// The most memory that it has had, in bytes.
    pub fn peak(&self) -> u64 {
        profiler_tests::process::status(self.child.id(), "VmHWM").unwrap() << 10
    }

    /// Has it stand still; it does when this returns.
    pub fn stop(&self) -> std::io::Result<()> {
        self.signal(Signal::STOP)?;
        let path = format!("/proc/{}/stat", self.child.id());
        loop {
            let stat = std::fs::read_to_string(&path)?;
            if stat
                .rsplit(") ")
                .next()
                .is_some_and(|it| it.starts_with('T'))
            {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    /// Has it go on.
    pub fn go_on(&self) -> std::io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// What it says next.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        self.head += &line;
        line.trim_end().to_owned()
    }

    /// Waits for its end; all that it has said.
    pub fn end(&mut self) -> String {
        self.said.read_to_string(&mut self.head).unwrap();
        self.child.wait().unwrap();
        self.head.clone()
    }

    /// Waits for its end; its exit status.
    pub fn status(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        // It has ended by itself, or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
