//! An HQ that follows a script, over real sockets on loopback; batches of calls to send to it.
//!
//! It is as strict as the collector of the Bytefrog project: sequence ids without gap, stacks that
//! balance, a data break before any message behind it. What it hears is kept; waiting for it ends
//! with a panic that says what was heard.
//!
//! What does not belong here: a real receiver (`profiler_serve::hq`).

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use profiler_model::*;
use profiler_serve::bytefrog::{Agent, AgentOptions, Order};
use profiler_wire::bytefrog::{AgentMessage, Configuration, HqMessage};

/// What anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How an HQ behaves.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) configuration: Configuration,
    /// Sends the configuration when it is greeted.
    pub(crate) configures: bool,
    /// Says on data connections, when it was told that all was sent, what nobody asked for.
    pub(crate) chatters: bool,
    /// Answers the heartbeat X by a stop.
    pub(crate) answers: bool,
    /// Reads a byte at a time.
    pub(crate) trickles: bool,
    /// Refuses data connections.
    pub(crate) refuses: bool,
    /// Bytes that its system takes without it reading; 0: the system's default.
    pub(crate) receive_bytes: usize,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            configuration: Configuration::default(),
            configures: true,
            chatters: false,
            answers: true,
            trickles: false,
            refuses: false,
            receive_bytes: 0,
        }
    }
}

/// What was heard.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) control: Vec<AgentMessage<'static>>,
    /// By connection.
    pub(crate) data: Vec<Vec<AgentMessage<'static>>>,
    /// Connections in the order in which they ended: 0 is control, data from 1.
    pub(crate) ended: Vec<usize>,
    /// Connections that were reset.
    pub(crate) resets: usize,
    /// The highest sequence id so far.
    highest: Option<u32>,
    pub(crate) wrong: Vec<String>,
}

struct State {
    script: Script,
    heard: Mutex<Heard>,
    changed: Condvar,
    stalled: AtomicBool,
    streams: Mutex<Vec<(bool, TcpStream)>>,
}

/// The HQ.
pub(crate) struct Hq {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

impl Hq {
    pub(crate) fn start(script: Script) -> Hq {
        Hq::start_at(script, "127.0.0.1:0")
    }

    pub(crate) fn start_at(script: Script, address: &str) -> Hq {
        let listener = TcpListener::bind(address).unwrap();
        if script.receive_bytes > 0 {
            // Connections inherit it.
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, script.receive_bytes)
                .unwrap();
        }
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            script,
            heard: Mutex::default(),
            changed: Condvar::new(),
            stalled: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let theirs = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&theirs);
                let stream = stream.unwrap();
                std::thread::spawn(move || state.serve(stream));
            }
        });
        Hq { address, state }
    }

    /// Sends an order, a byte at a time as HQ does.
    pub(crate) fn order(&self, message: &HqMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.raw(&bytes);
    }

    /// Whether an agent has said that it is there.
    pub(crate) fn is_greeted(&self) -> bool {
        !self.state.streams.lock().unwrap().is_empty()
    }

    pub(crate) fn raw(&self, bytes: &[u8]) {
        let streams = self.state.streams.lock().unwrap();
        let (_, stream) = streams.iter().find(|(control, _)| *control).unwrap();
        write(stream, bytes);
    }

    /// Stops reading, or reads on. What is being read at the moment is read.
    pub(crate) fn stall(&self, stalled: bool) {
        self.state.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Does something to the connections of one kind.
    pub(crate) fn each(&self, control: bool, act: impl Fn(&TcpStream)) {
        let streams = self.state.streams.lock().unwrap();
        for (_, stream) in streams.iter().filter(|(kind, _)| *kind == control) {
            act(stream);
        }
    }

    /// Dies: all connections are reset.
    pub(crate) fn die(&self) {
        for (_, stream) in self.state.streams.lock().unwrap().iter() {
            let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.state.heard.lock().unwrap()
    }

    /// Waits until something was heard.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, until: impl Fn(&Heard) -> bool) {
        let (heard, result) = self
            .state
            .changed
            .wait_timeout_while(self.heard(), PATIENCE, |heard| !until(heard))
            .unwrap();
        assert!(!result.timed_out(), "no {what}; heard {:?}", heard.control);
    }

    pub(crate) fn wait_mode(&self, mode: char) {
        self.wait(&format!("heartbeat {mode}"), |heard| {
            heard.modes().ends_with(mode)
        });
    }

    /// Checks all that was heard as the collector would. Gives what it comes to.
    #[track_caller]
    pub(crate) fn check(&self) -> Checked {
        let heard = self.heard();
        assert_eq!(heard.wrong, Vec::<String>::new());
        let breaks: Vec<u32> = heard
            .control
            .iter()
            .filter_map(|message| match message {
                AgentMessage::DataBreak { sequence } => Some(*sequence),
                _ => None,
            })
            .collect();
        assert!(breaks.is_sorted_by(|a, b| a < b), "{breaks:?}");
        Checked::new(heard.data.iter().flatten(), breaks)
    }
}

impl Heard {
    /// Modes of heartbeats, those that follow each other once.
    pub(crate) fn modes(&self) -> String {
        let mut modes = String::new();
        for message in &self.control {
            if let AgentMessage::Heartbeat { mode, .. } = message {
                let mode = char::from(*mode as u8);
                if !modes.ends_with(mode) {
                    modes.push(mode);
                }
            }
        }
        modes
    }

    pub(crate) fn heartbeats(&self) -> usize {
        let heartbeat =
            |message: &&AgentMessage<'_>| matches!(message, AgentMessage::Heartbeat { .. });
        self.control.iter().filter(heartbeat).count()
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.control.iter().find_map(|message| match message {
            AgentMessage::Error(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// Whether control and all data connections have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.len() == self.data.len() + 1
    }

    /// The same, and control last: of an HQ that is slow to read data, an agent waits for a second only.
    pub(crate) fn is_over(&self) -> bool {
        self.has_ended() && self.ended.last() == Some(&0)
    }
}

fn write(mut stream: &TcpStream, bytes: &[u8]) {
    for byte in bytes {
        stream.write_all(&[*byte]).unwrap();
    }
}

impl State {
    fn serve(&self, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut bytes = Vec::new();
        let mut number = None;
        let mut run = None;
        let mut chunk = vec![0; if self.script.trickles { 1 } else { 1 << 16 }];
        loop {
            while self.stalled.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let read = (&stream).read(&mut chunk);
            let mut heard = self.heard.lock().unwrap();
            heard.resets += usize::from(read.is_err());
            let len = read.unwrap_or(0);
            if len == 0 {
                heard.ended.extend(number);
                if !bytes.is_empty() {
                    heard.wrong.push(format!("cut within a message: {bytes:?}"));
                }
                self.changed.notify_all();
                drop(heard);
                // The agent waits for that before it closes what is to end later.
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            bytes.extend_from_slice(&chunk[..len]);
            let mut at = 0;
            loop {
                let (message, len) = match AgentMessage::decode(&bytes[at..]) {
                    Ok(Some((message, len))) => (message.into_owned(), len),
                    Ok(None) => break,
                    Err(error) => {
                        heard.wrong.push(error.to_string());
                        return;
                    }
                };
                at += len;
                match (&message, number) {
                    (AgentMessage::Hello { version: 1 }, None) => {
                        number = Some(0);
                        let mut streams = self.streams.lock().unwrap();
                        streams.push((true, stream.try_clone().unwrap()));
                        let mut bytes = Vec::new();
                        let configuration = self.script.configuration.encode();
                        HqMessage::Configuration(configuration).encode(&mut bytes);
                        if self.script.configures {
                            write(&stream, &bytes);
                        }
                    }
                    (AgentMessage::DataHello { run: asked }, None) => {
                        run = Some(*asked);
                        if self.script.refuses {
                            let mut bytes = Vec::new();
                            HqMessage::Error("Unknown run".into()).encode(&mut bytes);
                            write(&stream, &bytes);
                            continue;
                        }
                        heard.data.push(Vec::new());
                        number = Some(heard.data.len());
                        let mut streams = self.streams.lock().unwrap();
                        streams.push((false, stream.try_clone().unwrap()));
                        write(&stream, &[31]);
                    }
                    (_, Some(0)) => {
                        if let AgentMessage::DataBreak { sequence } = message
                            && heard.highest.is_some_and(|highest| highest + 1 >= sequence)
                        {
                            let highest = heard.highest;
                            let text = format!("break {sequence} comes after {highest:?}");
                            heard.wrong.push(text);
                        }
                        let is_last = matches!(
                            message,
                            AgentMessage::Heartbeat { mode, .. } if mode as u8 == b'X'
                        );
                        if is_last && self.script.chatters {
                            let streams = self.streams.lock().unwrap();
                            for (_, mut data) in streams
                                .iter()
                                .map(|(kind, data)| (*kind, data))
                                .filter(|(kind, _)| !kind)
                            {
                                data.write_all(&[31; 4000]).unwrap();
                            }
                        }
                        if is_last && self.script.answers {
                            // It may have gone already if it was stopped before.
                            let _ = (&stream).write_all(&[3]);
                        }
                        heard.control.push(message);
                    }
                    (_, Some(number)) => {
                        if let Some(sequence) = message.sequence() {
                            heard.highest = heard.highest.max(Some(sequence));
                        }
                        heard.data[number - 1].push(message);
                    }
                    (message, None) => heard.wrong.push(format!("{message:?} without a hello")),
                }
            }
            bytes.drain(..at);
            if run.is_some_and(|run| run != self.script.configuration.run) {
                heard.wrong.push(format!("data of run {run:?}"));
            }
            self.changed.notify_all();
        }
    }
}

/// What the data of a run comes to.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) entries: u64,
    pub(crate) exits: u64,
    /// Sequence ids, keys and values.
    pub(crate) markers: Vec<(u32, String, String)>,
    pub(crate) breaks: Vec<u32>,
    pub(crate) methods: BTreeMap<u32, String>,
    pub(crate) messages: u64,
}

impl Checked {
    #[track_caller]
    fn new<'a>(
        messages: impl Iterator<Item = &'a AgentMessage<'static>>,
        breaks: Vec<u32>,
    ) -> Checked {
        let mut checked = Checked {
            breaks,
            ..Checked::default()
        };
        let mut sequenced = BTreeMap::new();
        for message in messages {
            checked.messages += 1;
            if let AgentMessage::MapMethodSignature { method, signature } = message {
                checked.methods.insert(*method, signature.to_string());
            }
            if let Some(sequence) = message.sequence() {
                let before = sequenced.insert(sequence, message);
                assert!(before.is_none(), "sequence id {sequence} comes twice");
            }
        }
        let mut stacks: HashMap<u16, Vec<u32>> = HashMap::new();
        for (expected, (&sequence, message)) in (0..).zip(&sequenced) {
            assert_eq!(sequence, expected, "sequence ids have a gap");
            if checked.breaks.contains(&sequence) {
                stacks.clear();
            }
            match message {
                AgentMessage::MethodEntry { method, thread, .. } => {
                    checked.entries += 1;
                    assert!(checked.methods.contains_key(method), "{method} has no name");
                    stacks.entry(*thread).or_default().push(*method);
                }
                AgentMessage::MethodExit { method, thread, .. } => {
                    checked.exits += 1;
                    // The collector ignores exits on an empty stack; we don't send them.
                    let top = stacks.entry(*thread).or_default().pop();
                    assert_eq!(top, Some(*method), "exit {sequence} of thread {thread}");
                }
                AgentMessage::Marker { key, value, .. } => {
                    let marker = (sequence, key.to_string(), value.to_string());
                    checked.markers.push(marker);
                }
                other => panic!("{other:?}"),
            }
        }
        checked
    }

    pub(crate) fn marker(&self, key: &str) -> Option<(u32, &str)> {
        let mut markers = self.markers.iter();
        let (sequence, _, value) = markers.find(|(_, found, _)| found == key)?;
        Some((*sequence, value))
    }
}

/// Batches of calls on two threads.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) epoch: u32,
    pub(crate) at: u64,
    defined: bool,
}

pub(crate) const FUNCTIONS: usize = 10;

impl Calls {
    /// A batch of `pairs` entries, each with an exit, nested two deep.
    pub(crate) fn batch(&mut self, pairs: usize) -> Batch {
        let mut definitions = Vec::new();
        if !std::mem::replace(&mut self.defined, true) {
            definitions = self.define();
        }
        let mut events = Vec::with_capacity(2 * pairs);
        for at in (0..pairs).step_by(2) {
            let outer = FunctionId::from_index(at % FUNCTIONS);
            let inner = FunctionId::from_index((at + 1) % FUNCTIONS);
            let thread = ThreadId::from_index(at / 2 % 2);
            let outer_began = self.push(&mut events, thread, outer, None);
            if at + 1 < pairs {
                let began = self.push(&mut events, thread, inner, None);
                self.push(&mut events, thread, inner, Some(began));
            }
            self.push(&mut events, thread, outer, Some(outer_began));
        }
        let epoch = self.epoch;
        Batch {
            epoch,
            definitions,
            events,
        }
    }

    /// Begins a new epoch: all is defined anew.
    pub(crate) fn new_epoch(&mut self) {
        self.epoch += 1;
        self.defined = false;
    }

    fn push(
        &mut self,
        events: &mut Vec<Event>,
        thread: ThreadId,
        function: FunctionId,
        began: Option<Timestamp>,
    ) -> Timestamp {
        self.at += 1000;
        let at = Timestamp(self.at);
        let edge = match began {
            None => CallEdge::Enter(None),
            Some(began) => CallEdge::Exit(Box::new(Exit {
                began,
                self_ns: 0,
                how: ExitKind::Return,
                line: 7,
                result: None,
                whole: None,
            })),
        };
        events.push(Event::Call(Call {
            at,
            thread,
            cpu: Cpu(0),
            function,
            stack: 0,
            depth: 0,
            edge,
            later: None,
        }));
        at
    }

    fn define(&self) -> Vec<Definition> {
        let string = StringId::from_index;
        let names = ["work", "one", "two", "/bin/work"].map(str::to_owned);
        let functions = (0..FUNCTIONS).map(|n| format!("function_{}_{n}", self.epoch));
        let mut definitions: Vec<Definition> = names
            .into_iter()
            .chain(functions)
            .enumerate()
            .map(|(at, name)| Definition::String(string(at), name.into()))
            .collect();
        let process = ProcessId::from_index(0);
        let module = ModuleId::from_index(0);
        definitions.push(Definition::Process(
            process,
            Process {
                pid: Pid(100),
                started: Timestamp(1),
                parent: None,
                name: string(0),
                executable: None,
                command: None,
                namespace_pids: Vec::new(),
                uid: None,
                cgroup: None,
                container: None,
            },
        ));
        for thread in 0..2 {
            definitions.push(Definition::Thread(
                ThreadId::from_index(thread),
                Thread {
                    process,
                    tid: Tid(100 + thread as u32),
                    started: Timestamp(1),
                    name: string(1 + thread),
                },
            ));
        }
        definitions.push(Definition::Module(
            module,
            Module {
                kind: ModuleKind::File,
                path: string(3),
                build_id: None,
                address_bias: 0,
            },
        ));
        for function in 0..FUNCTIONS {
            definitions.push(Definition::Function(
                FunctionId::from_index(function),
                Function {
                    name: string(4 + function),
                    linkage_name: None,
                    module: Some(module),
                    file: None,
                    line: 0,
                    start: Some(64 * function as u64),
                    size: None,
                },
            ));
        }
        definitions
    }
}

/// An agent for an HQ there.
pub(crate) fn agent(address: SocketAddr, queue_bytes: usize) -> Agent {
    Agent::start(AgentOptions {
        address: address.to_string(),
        connect_timeout: Some(PATIENCE),
        queue_bytes,
        names: Default::default(),
        samples: false,
    })
    .unwrap()
}

/// Runs a test's agent side.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

/// The next order.
pub(crate) async fn order(agent: &mut Agent) -> Order {
    match tokio::time::timeout(PATIENCE, agent.order()).await {
        Ok(order) => order,
        Err(_) => panic!("no order came"),
    }
}

/// An agent that traces.
pub(crate) async fn started(hq: &Hq, queue_bytes: usize) -> Agent {
    let agent = starting(hq, queue_bytes).await;
    let senders = hq.state.script.configuration.data_senders.max(1);
    hq.wait("data connections", |heard| {
        heard.data.len() == senders as usize
    });
    agent
}

/// An agent that begins to trace.
pub(crate) async fn starting(hq: &Hq, queue_bytes: usize) -> Agent {
    let mut agent = agent(hq.address, queue_bytes);
    assert!(matches!(order(&mut agent).await, Order::Configure(_)));
    hq.order(&HqMessage::Start);
    assert_eq!(order(&mut agent).await, Order::Start);
    agent.begin(Timestamp(0));
    agent.report(profiler_wire::bytefrog::Mode::Tracing);
    agent
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
