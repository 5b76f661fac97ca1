//! A small HQ of Bytefrog that is as strict as a real one about sequence ids and stacks.
//!
//! What agents send -> a [`Run`], counted by method. It reads what comes when it is asked to, on
//! threads of its own, and sends what a test tells it to. Listens on loopback only.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use profiler_wire::bytefrog::{AgentMessage, Channel, Configuration, HqMessage, Mode};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// An HQ with one agent.
pub(crate) struct Hq {
    address: String,
    from_agent: Receiver<Came>,
    control: Option<TcpStream>,
    connections: Vec<TcpStream>,
    run: Run,
    configuration: Configuration,
    tell: Sender<Came>,
}

/// What came of a run.
#[derive(Default)]
pub(crate) struct Run {
    /// Modes in the order of heartbeats, each once.
    pub(crate) modes: Vec<Mode>,
    /// Data breaks.
    pub(crate) breaks: u64,
    names: BTreeMap<u32, String>,
    data: Vec<(u32, Data)>,
    counts: BTreeMap<String, [u64; 3]>,
}

#[derive(Clone, Copy)]
enum Data {
    Entry(u16, u32),
    Exit(u16, u32),
    Bubble(u16, u32),
    Other,
}

/// What a connection's thread passes on.
enum Came {
    Connection(TcpStream),
    Data(Vec<(u32, Data)>, Vec<(u32, String)>),
    Mode(Mode),
    Break,
    Wrong(String),
    Closed(bool),
}

impl Hq {
    /// Listens on a free port of loopback.
    pub(crate) fn listen(configuration: Configuration) -> Result<Hq, Box<dyn Error>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let (tell, from_agent) = channel();
        let accepted = tell.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if accepted.send(Came::Connection(connection)).is_err() {
                    return;
                }
            }
        });
        Ok(Hq {
            address,
            from_agent,
            control: None,
            connections: Vec::new(),
            run: Run::default(),
            configuration,
            tell,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Sends an order.
    pub(crate) fn send(&mut self, message: HqMessage) -> Result<(), Box<dyn Error>> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        Ok(self.control.as_mut().ok_or("no agent")?.write_all(&bytes)?)
    }

    /// Waits for a heartbeat with this mode to come.
    pub(crate) fn wait_for_mode(&mut self, mode: Mode) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + LIMIT;
        loop {
            match self.next(until)? {
                Came::Mode(came) if came == mode => return Ok(()),
                Came::Closed(_) => return Err(format!("the agent left before {mode:?}").into()),
                _ => {}
            }
        }
    }

    /// Waits for the normal end of the run, and checks the whole of it.
    pub(crate) fn end(mut self) -> Result<Run, Box<dyn Error>> {
        let until = Instant::now() + LIMIT;
        loop {
            match self.next(until)? {
                Came::Mode(Mode::ShuttingDown) => self.send(HqMessage::Stop)?,
                Came::Closed(true) => break,
                _ => {}
            }
        }
        // Data connections were closed before control, but their threads may be behind.
        while let Ok(Came::Data(..)) = self.next(Instant::now() + Duration::from_millis(200)) {}
        let mut run = std::mem::take(&mut self.run);
        if run.modes.last() != Some(&Mode::ShuttingDown) {
            return Err("the agent left without a word".into());
        }
        run.check()?;
        Ok(run)
    }

    /// What comes next; it is noted before.
    fn next(&mut self, until: Instant) -> Result<Came, Box<dyn Error>> {
        let left = until.saturating_duration_since(Instant::now());
        let came = match self.from_agent.recv_timeout(left) {
            Ok(came) => came,
            Err(RecvTimeoutError::Timeout) => return Err("nothing came in time".into()),
            Err(RecvTimeoutError::Disconnected) => return Err("no thread listens".into()),
        };
        match &came {
            Came::Connection(connection) => self.greet(connection)?,
            Came::Data(data, names) => {
                self.run.data.extend(data);
                self.run.names.extend(names.iter().cloned());
            }
            Came::Mode(mode) if self.run.modes.last() != Some(mode) => self.run.modes.push(*mode),
            Came::Break => self.run.breaks += 1,
            Came::Wrong(what) => return Err(what.clone().into()),
            _ => {}
        }
        Ok(came)
    }

    fn greet(&mut self, connection: &TcpStream) -> Result<(), Box<dyn Error>> {
        let mut connection = connection.try_clone()?;
        self.connections.push(connection.try_clone()?);
        let mut hello = [0; 2];
        connection.read_exact(&mut hello)?;
        let (hello, _) = AgentMessage::decode(&hello)?.ok_or("half a hello")?;
        let tell = self.tell.clone();
        let reading = connection.try_clone()?;
        let channel = match hello {
            AgentMessage::Hello { version: 1 } => {
                self.control = Some(connection);
                let configuration = self.configuration.encode();
                self.send(HqMessage::Configuration(configuration))?;
                Channel::Control
            }
            AgentMessage::DataHello { run } if run == self.configuration.run => {
                let mut reply = Vec::new();
                HqMessage::DataHelloReply.encode(&mut reply);
                connection.write_all(&reply)?;
                Channel::Data
            }
            other => return Err(format!("a connection that begins with {other:?}").into()),
        };
        std::thread::spawn(move || {
            if let Err(error) = read(reading, channel, &tell) {
                let _ = tell.send(Came::Wrong(error.to_string()));
            }
        });
        Ok(())
    }
}

impl Drop for Hq {
    fn drop(&mut self) {
        for connection in &self.connections {
            // It may be closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Reads a connection to its end.
fn read(
    mut connection: TcpStream,
    channel: Channel,
    tell: &Sender<Came>,
) -> Result<(), Box<dyn Error>> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        // A reset is an end too.
        let count = connection.read(&mut chunk).unwrap_or(0);
        if count == 0 {
            tell.send(Came::Closed(channel == Channel::Control))?;
            return Ok(());
        }
        bytes.extend_from_slice(&chunk[..count]);
        let (mut data, mut names, mut used) = (Vec::new(), Vec::new(), 0);
        while let Some((message, len)) = AgentMessage::decode(&bytes[used..])? {
            used += len;
            if message.channel() != channel && !matches!(message, AgentMessage::Error(_)) {
                return Err(format!("{message:?} on a connection of {channel:?}").into());
            }
            if let AgentMessage::MapMethodSignature { method, signature } = &message {
                names.push((*method, signature.to_string()));
            }
            match &message {
                AgentMessage::Heartbeat { mode, .. } => tell.send(Came::Mode(*mode))?,
                AgentMessage::DataBreak { .. } => tell.send(Came::Break)?,
                AgentMessage::Error(error) => tell.send(Came::Wrong(error.to_string()))?,
                _ => {}
            }
            if let Some(sequence) = message.sequence().filter(|_| channel == Channel::Data) {
                data.push((sequence, of(&message)));
            }
        }
        bytes.drain(..used);
        if channel == Channel::Data {
            tell.send(Came::Data(data, names))?;
        }
    }
}

fn of(message: &AgentMessage<'_>) -> Data {
    match *message {
        AgentMessage::MethodEntry { thread, method, .. } => Data::Entry(thread, method),
        AgentMessage::MethodExit { thread, method, .. } => Data::Exit(thread, method),
        AgentMessage::ExceptionBubble { thread, method, .. } => Data::Bubble(thread, method),
        _ => Data::Other,
    }
}

impl Run {
    /// How often a function was entered.
    pub(crate) fn entries(&self, function: &str) -> u64 {
        self.count(function)[0]
    }

    /// How often it was left by returning.
    pub(crate) fn exits(&self, function: &str) -> u64 {
        self.count(function)[1]
    }

    /// How often it was left by an exception.
    pub(crate) fn bubbles(&self, function: &str) -> u64 {
        self.count(function)[2]
    }

    fn count(&self, function: &str) -> [u64; 3] {
        self.counts.get(function).copied().unwrap_or_default()
    }

    /// Sequence ids without gap, stacks that balance (where nothing was forgotten on the way), names for
    /// all methods.
    fn check(&mut self) -> Result<(), Box<dyn Error>> {
        self.data.sort_by_key(|&(sequence, _)| sequence);
        let mut stacks: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        for (expected, &(sequence, data)) in (0..).zip(&self.data) {
            if sequence != expected {
                return Err(format!("sequence id {sequence} in place of {expected}").into());
            }
            let (thread, method, which) = match data {
                Data::Entry(thread, method) => (thread, method, 0),
                Data::Exit(thread, method) => (thread, method, 1),
                Data::Bubble(thread, method) => (thread, method, 2),
                Data::Other => continue,
            };
            let stack = stacks.entry(thread).or_default();
            if which == 0 {
                stack.push(method);
            } else if self.breaks == 0 && stack.pop() != Some(method) {
                return Err(format!("method {method} left on thread {thread}, not entered").into());
            }
            let name = self.names.get(&method).ok_or("a method without a name")?;
            let function = name.split([' ', '(']).next().unwrap_or(name);
            self.counts.entry(function.to_owned()).or_default()[which] += 1;
        }
        Ok(())
    }
}
