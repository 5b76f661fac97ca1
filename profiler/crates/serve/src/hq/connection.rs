//! One connection of an agent, on a thread of its own: its greeting, then control or data.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use super::check::Fault;
use super::life::Order;
use super::receive::HqEvent;
use super::run::{Next, Run};
use super::server::Shared;
use profiler_wire::bytefrog::{AgentMessage, HqMessage, VERSION};

/// Room for what is read at a time; more than the longest message, which has two texts.
pub(super) const READ_BYTES: usize = 256 << 10;
/// How often a thread looks at other things than its connection.
const TICK: Duration = Duration::from_millis(100);
/// An agent that does not read its orders for so long is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// What the original waits before it turns a data connection away.
const UNKNOWN_RUN: Duration = Duration::from_millis(500);
/// An agent that sends no heartbeat is started after so long nevertheless.
const FIRST_HEARTBEAT: Duration = Duration::from_secs(2);
/// How long an agent may take to close its control connection after the end.
const LINGER: Duration = Duration::from_secs(2);

/// The reading end of a run's control connection. Whoever has data looks here first: what the agent said before it
/// sent them, a data break say, is taken before them, whichever thread the system lets run first.
pub(super) struct Incoming {
    stream: TcpStream,
    inbox: Inbox,
    /// What comes can be understood.
    open: bool,
}

impl Incoming {
    pub(super) fn new(stream: TcpStream) -> Incoming {
        Incoming {
            stream,
            inbox: Inbox::new(READ_BYTES),
            open: true,
        }
    }

    /// Takes all that has come by now; whether more may come.
    pub(super) fn take(&mut self, run: &Run) -> bool {
        while self.open {
            match self.inbox.read_now(&self.stream) {
                Came::Bytes => self.open = take_control(run, &mut self.inbox),
                Came::Nothing => return true,
                // An agent that has said that it ends need not read what it is sent then.
                Came::End | Came::Broken(_) => {
                    cut_off(run, &self.inbox, "control");
                    run.control_closed();
                    self.open = false;
                }
            }
        }
        false
    }

    /// Lets what still comes go by.
    fn pass_over(&mut self, until: Instant) {
        while Instant::now() < until
            && matches!(
                self.inbox.read(&mut self.stream),
                Came::Bytes | Came::Nothing
            )
        {
            self.inbox.consume(self.inbox.bytes().len());
        }
    }
}

/// What has come and is not understood yet.
struct Inbox {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

/// What a read brought.
enum Came {
    Bytes,
    Nothing,
    End,
    /// It was reset: what the peer sent last may be lost.
    Broken(io::Error),
}

impl Inbox {
    fn new(bytes: usize) -> Inbox {
        Inbox {
            buffer: vec![0; bytes].into(),
            start: 0,
            end: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Reads; waits for as long as the connection is set to.
    fn read(&mut self, stream: &mut TcpStream) -> Came {
        let room = self.room();
        let read = stream.read(room);
        self.came(read)
    }

    /// Reads what is there.
    fn read_now(&mut self, stream: &TcpStream) -> Came {
        let read = recv(stream, self.room(), RecvFlags::DONTWAIT);
        self.came(read.map(|(read, _)| read).map_err(io::Error::from))
    }

    fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    fn came(&mut self, read: io::Result<usize>) -> Came {
        match read {
            Ok(0) => Came::End,
            Ok(read) => {
                self.end += read;
                Came::Bytes
            }
            Err(error) if is_passing(&error) => Came::Nothing,
            Err(error) => Came::Broken(error),
        }
    }
}

/// Nothing has come, which says nothing of the connection.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Serves a connection until its end.
pub(super) fn serve(shared: &Shared, mut stream: TcpStream, peer: SocketAddr) {
    let refuse = |stream: &mut TcpStream, reason: String| {
        send(stream, &HqMessage::Error(reason.clone()));
        shared.tell(HqEvent::Refused { peer, reason });
    };
    if let Err(error) = prepare(&stream) {
        log::debug!("{peer}: {error}");
        return;
    }
    if let Err(refusal) = shared.options.admission.admit(&stream, peer) {
        // Nobody who is not admitted is told anything.
        let reason = refusal.to_string();
        shared.tell(HqEvent::Refused { peer, reason });
        return;
    }
    let mut hello = [0; 2];
    if let Err(reason) = greeting(shared, &mut stream, &mut hello) {
        if !reason.is_empty() {
            refuse(&mut stream, reason);
        }
        return;
    }
    match AgentMessage::decode(&hello) {
        Ok(Some((AgentMessage::Hello { version: VERSION }, _))) => {
            if let Err(reason) = control(shared, &mut stream, peer) {
                refuse(&mut stream, reason);
            }
        }
        Ok(Some((AgentMessage::Hello { version }, _))) => {
            let reason =
                format!("version {version} of the protocol is not spoken here: send {VERSION}");
            refuse(&mut stream, reason);
        }
        Ok(Some((AgentMessage::DataHello { run }, _))) => match shared.find(run) {
            Some(run) => data(&run, &mut stream),
            None => {
                std::thread::sleep(UNKNOWN_RUN);
                // Its control connection may have been accepted by another thread meanwhile.
                match shared.find(run) {
                    Some(run) => data(&run, &mut stream),
                    None => refuse(&mut stream, format!("there is no run {run}")),
                }
            }
        },
        _ => refuse(&mut stream, "a connection begins with a hello".to_owned()),
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    // An agent whose machine is gone does not stay for ever.
    Ok(rustix::net::sockopt::set_socket_keepalive(stream, true)?)
}

fn send(stream: &mut TcpStream, message: &HqMessage) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    // Who does not read it closes the connection.
    let _ = stream.write_all(&bytes);
}

/// Reads what a connection says it is; an error is what it is told, empty if it is gone.
fn greeting(shared: &Shared, stream: &mut TcpStream, hello: &mut [u8; 2]) -> Result<(), String> {
    let deadline = Instant::now() + shared.options.greeting;
    let mut have = 0;
    while have < hello.len() {
        match stream.read(&mut hello[have..]) {
            Ok(0) => return Err(String::new()),
            Ok(read) => have += read,
            Err(error) if is_passing(&error) => {}
            Err(_) => return Err(String::new()),
        }
        if have < hello.len() && Instant::now() > deadline {
            return Err("no hello came in time".to_owned());
        }
        if shared.closing.load(Ordering::Acquire) {
            return Err(String::new());
        }
    }
    Ok(())
}

/// Leads a run; an error is told to the agent.
fn control(shared: &Shared, stream: &mut TcpStream, peer: SocketAddr) -> Result<(), String> {
    let end = || stream.try_clone().map_err(|error| error.to_string());
    shared.make_room();
    let run = shared.begin(peer, end()?, Incoming::new(end()?))?;
    let mut configuration = shared.options.configuration.clone();
    configuration.run = run.id;
    // In one piece: the original agent takes what its first read brings for all of it.
    let configuration = configuration.encode_as(shared.options.configuration_class);
    run.send(&[HqMessage::Configuration(configuration)]);
    let accepted = Instant::now();
    let mut open = true;
    let mut started = !shared.options.start;
    loop {
        if open {
            // Waits until there is something, and leaves it to whoever comes first.
            let _ = stream.peek(&mut [0]);
            open = run.take_control();
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !started && open && (run.is_ready() || accepted.elapsed() > FIRST_HEARTBEAT) {
            started = true;
            // A person may have been faster.
            let _ = run.order(Order::Start);
        }
        match run.step() {
            Next::Go => {}
            Next::Health(healthy) => shared.tell(HqEvent::Health {
                run: run.id,
                healthy,
            }),
            Next::End => break,
        }
    }
    let report = run.end();
    let failed = report.failure.is_some();
    // Before it is gone: who sees no run any more has been told of the end of all.
    shared.tell(HqEvent::Ended(Box::new(report)));
    shared.remove(run.id);
    // The agent closes first: what it still sends must not turn into a reset of what it was sent.
    if open && !failed {
        run.incoming().pass_over(Instant::now() + LINGER);
    }
    let _ = stream.shutdown(Shutdown::Both);
    Ok(())
}

/// Takes all messages that have come whole; false if what comes can't be understood.
fn take_control(run: &Run, inbox: &mut Inbox) -> bool {
    loop {
        let (message, len) = match AgentMessage::decode(inbox.bytes()) {
            Ok(Some((message, len))) => (message, len),
            Ok(None) => return true,
            Err(error) => match super::lenient::repaired(inbox.bytes()) {
                Some((message, len)) => {
                    run.fault(Fault::Decode(error));
                    (message, len)
                }
                None => {
                    run.fail(format!("on the control connection: {error}"));
                    run.fault(Fault::Decode(error));
                    return false;
                }
            },
        };
        run.control(&message);
        inbox.consume(len);
    }
}

/// Counts what came of a message whose rest will not come.
fn cut_off(run: &Run, inbox: &Inbox, channel: &'static str) {
    let bytes = inbox.bytes().len();
    if bytes > 0 {
        run.fault(Fault::CutOff { channel, bytes });
    }
}

/// Brings the data of one connection to its run.
fn data(run: &Arc<Run>, stream: &mut TcpStream) {
    let number = match run.open(stream) {
        Ok(Some(number)) => number,
        Ok(None) => return,
        Err(error) => {
            log::debug!("run {}: {error}", run.id);
            return;
        }
    };
    send(stream, &HqMessage::DataHelloReply);
    let mut inbox = Inbox::new(READ_BYTES);
    while !run.over.load(Ordering::Acquire) {
        match inbox.read(stream) {
            Came::Nothing => continue,
            Came::End => {
                cut_off(run, &inbox, "data");
                break;
            }
            Came::Broken(error) => {
                run.fail(format!("a data connection broke: {error}"));
                break;
            }
            Came::Bytes => {}
        }
        run.take_control();
        match run.data(number, inbox.bytes()) {
            Ok(used) => inbox.consume(used),
            Err(fault) => {
                // Nothing behind it can be understood; others may go on.
                run.fault(fault.clone());
                run.fail(format!("on a data connection: {fault}"));
                break;
            }
        }
    }
    run.close(number);
}
