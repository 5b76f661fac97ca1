//! `profiler serve --rdp` on loopback, and a client of it.
//!
//! What does not belong here: what is right (the tests).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_tests::process::{Ended, Running};
use profiler_tests::setting::{LIMIT, Setting};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::e2e_tcf_shared::Failure;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that runs.
pub(crate) struct Server {
    pub(crate) running: Running,
    pub(crate) port: u16,
}

impl Server {
    /// Starts `profiler serve --rdp` on any port of loopback.
    pub(crate) fn start(setting: &Setting, arguments: &[&str]) -> Result<Server, Failure> {
        Server::start_command(setting, setting.profiler(), arguments)
    }

    /// Starts it by this command, to which the arguments are added.
    pub(crate) fn start_command(
        setting: &Setting,
        mut command: Command,
        arguments: &[&str],
    ) -> Result<Server, Failure> {
        command.args(["serve", "--rdp", "127.0.0.1:0"]);
        command.args(arguments);
        let mut running = Running::start(&mut command, setting.folder(), "serve")?;
        let mut port = None;
        running.wait_until("listening", LIMIT, |running| {
            port = running.stderr_so_far().ok().and_then(|said| port_in(&said));
            port.is_some()
        })?;
        Ok(Server {
            running,
            port: port.ok_or("no port")?,
        })
    }

    /// A client that has read the greeting.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Client::connect(self.port)
    }

    /// Ends it as Ctrl-C does; it must end well.
    pub(crate) fn end(self) -> Result<Ended, Failure> {
        self.running.signal(Signal::INT)?;
        Ok(self.running.end(LIMIT)?.success()?)
    }
}

/// The port in what the server says when it listens for these clients.
pub(crate) fn port_in(said: &str) -> Option<u16> {
    let line = said
        .lines()
        .find(|line| line.contains("debugging protocol"))?;
    let (_, port) = line.rsplit_once("127.0.0.1:")?;
    port.trim().parse().ok().filter(|&port| port > 0)
}

/// A client.
pub(crate) struct Client {
    stream: TcpStream,
    come: Vec<u8>,
    read: usize,
    pub(crate) greeting: Value,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Result<Client, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut client = Client {
            stream,
            come: Vec::new(),
            read: 0,
            greeting: Value::Null,
        };
        client.greeting = client.packet()?;
        Ok(client)
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Sends a packet.
    pub(crate) fn send(&mut self, packet: &Value) -> Result<(), Failure> {
        let json = packet.to_string();
        self.send_raw(format!("{}:{json}", json.len()).as_bytes())
    }

    /// The next packet, whatever it is.
    pub(crate) fn packet(&mut self) -> Result<Value, Failure> {
        self.packet_within(PATIENCE)?.ok_or("no packet came".into())
    }

    /// The next packet; none if none comes in this time.
    pub(crate) fn packet_within(&mut self, limit: Duration) -> Result<Option<Value>, Failure> {
        let until = Instant::now() + limit;
        loop {
            if let Some(packet) = self.take()? {
                return Ok(Some(packet));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = vec![0; 1 << 18];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err("the server has closed the connection".into()),
                Ok(count) => {
                    self.come.drain(..self.read);
                    self.read = 0;
                    self.come.extend_from_slice(&piece[..count]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self) -> Result<Option<Value>, Failure> {
        let come = &self.come[self.read..];
        let Some(colon) = come.iter().position(|&byte| byte == b':') else {
            return Ok(None);
        };
        let len: usize = std::str::from_utf8(&come[..colon])?.parse()?;
        let Some(json) = come.get(colon + 1..colon + 1 + len) else {
            return Ok(None);
        };
        let packet = serde_json::from_slice(json)?;
        self.read += colon + 1 + len;
        Ok(Some(packet))
    }

    /// The next packet of an actor that is not that processes have come or gone.
    pub(crate) fn packet_of(&mut self, actor: &str) -> Result<Value, Failure> {
        loop {
            let packet = self.packet()?;
            let kind = packet["type"].as_str().unwrap_or_default();
            if packet["from"] == actor && !kind.ends_with("ListChanged") {
                return Ok(packet);
            }
        }
    }

    /// Sends a request; its answer, which must come before anything else that this actor says.
    pub(crate) fn ask(&mut self, to: &str, kind: &str, more: Value) -> Result<Value, Failure> {
        let mut packet = json!({ "to": to, "type": kind });
        for (name, value) in more.as_object().into_iter().flatten() {
            packet[name] = value.clone();
        }
        self.send(&packet)?;
        self.packet_of(to)
    }

    /// The form of a process.
    pub(crate) fn process(&mut self, pid: u32) -> Result<Value, Failure> {
        let answer = self.ask("root", "getProcess", json!({ "id": pid }))?;
        match answer["form"].is_object() {
            true => Ok(answer["form"].clone()),
            false => Err(format!("no process {pid}: {answer}").into()),
        }
    }

    /// The TraceActor of a thread, attached.
    pub(crate) fn attached(&mut self, pid: u32, tid: u64) -> Result<String, Failure> {
        let form = self.process(pid)?;
        let threads = form["threads"].as_array().ok_or("no threads")?;
        let thread = threads.iter().find(|thread| thread["tid"] == tid);
        let thread = thread.ok_or_else(|| format!("no thread {tid}: {form}"))?;
        let actor = thread["traceActor"].as_str().ok_or("no actor")?.to_owned();
        let answer = self.ask(&actor, "attach", json!({}))?;
        match answer["type"] == "attached" {
            true => Ok(actor),
            false => Err(format!("not attached: {answer}").into()),
        }
    }

    /// All that an actor says up to a packet of this type, which is the last.
    pub(crate) fn until(&mut self, actor: &str, kind: &str) -> Result<Vec<Value>, Failure> {
        let mut packets = Vec::new();
        loop {
            let packet = self.packet_of(actor)?;
            let is_last = packet["type"] == kind;
            packets.push(packet);
            if is_last {
                return Ok(packets);
            }
        }
    }
}

/// How many frames of each name were entered and left, of packets that must be whole: their sequence has no gaps, and
/// they are nested.
pub(crate) fn counts(
    packets: &[Value],
    from: u64,
) -> std::collections::BTreeMap<String, (u64, u64)> {
    let mut counts: std::collections::BTreeMap<String, (u64, u64)> = Default::default();
    let mut open = Vec::new();
    let mut sequence = from;
    for packet in packets {
        let kind = packet["type"].as_str().unwrap_or_default();
        if !matches!(kind, "enteredFrame" | "exitedFrame") {
            continue;
        }
        assert_eq!(packet["sequence"], sequence, "{packet}");
        sequence += 1;
        match kind {
            "enteredFrame" => {
                let name = packet["name"].as_str().unwrap_or_default().to_owned();
                assert_eq!(packet["depth"], open.len(), "{packet}");
                counts.entry(name.clone()).or_default().0 += 1;
                open.push(name);
            }
            _ => {
                let name = open.pop().unwrap_or_default();
                assert_eq!(packet["depth"], open.len(), "{packet}");
                counts.entry(name).or_default().1 += 1;
            }
        }
    }
    counts
}
