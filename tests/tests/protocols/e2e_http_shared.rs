//! `profiler serve --http` on loopback, and a client of it.
//!
//! What does not belong here: what is right (the tests).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

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
    remote: Remote,
}

impl std::ops::Deref for Server {
    type Target = Remote;

    fn deref(&self) -> &Remote {
        &self.remote
    }
}

/// Where one listens.
pub(crate) struct Remote {
    pub(crate) port: u16,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_str(&self.text)?)
    }

    /// Its status, and the name of its error.
    pub(crate) fn error(&self) -> (u16, String) {
        let json = self.json().unwrap_or(Value::Null);
        (
            self.status,
            json["error"].as_str().unwrap_or_default().to_owned(),
        )
    }
}

impl Server {
    /// Starts `profiler serve --http` on any port of loopback.
    pub(crate) fn start(setting: &Setting, arguments: &[&str]) -> Result<Server, Failure> {
        Server::start_command(setting, setting.profiler(), arguments)
    }

    /// Starts it by this command, to which the arguments are added.
    pub(crate) fn start_command(
        setting: &Setting,
        mut command: Command,
        arguments: &[&str],
    ) -> Result<Server, Failure> {
        command.args(["serve", "--http", "127.0.0.1:0"]);
        command.args(arguments);
        let mut running = Running::start(&mut command, setting.folder(), "serve")?;
        let mut port = None;
        running.wait_until("listening", LIMIT, |running| {
            port = running.stderr_so_far().ok().and_then(|said| port_in(&said));
            port.is_some()
        })?;
        let port = port.ok_or("no port")?;
        Ok(Server {
            running,
            remote: Remote { port },
        })
    }

    /// Ends it as Ctrl-C does; it must end well.
    pub(crate) fn end(self) -> Result<Ended, Failure> {
        self.running.signal(Signal::INT)?;
        Ok(self.running.end(LIMIT)?.success()?)
    }
}

impl Remote {
    /// Sends a request as it is, and reads until the server closes.
    pub(crate) fn send(&self, request: &str) -> Result<Answer, Failure> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        converse(&mut stream, request)
    }

    /// A request, with headers besides.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        self.send(&request(self.port, method, path, headers, body))
    }

    /// Starts a session; what is told of it.
    pub(crate) fn session(
        &self,
        target: Value,
        interval: f64,
        size: u64,
    ) -> Result<Value, Failure> {
        let body = json!({ "target": target, "sampleInterval": interval, "maxBufferSize": size });
        let answer = self.ask("POST", "/session", &[], Some(&body))?;
        match answer.status {
            201 => answer.json(),
            _ => Err(format!("no session: {answer:?}").into()),
        }
    }

    /// Does something to a session.
    pub(crate) fn post(&self, session: &Value, what: &str) -> Result<Value, Failure> {
        let id = session["id"].as_str().ok_or("no id")?;
        let answer = self.ask("POST", &format!("/session/{id}/{what}"), &[], None)?;
        match answer.status {
            200 => answer.json(),
            _ => Err(format!("{what}: {answer:?}").into()),
        }
    }
}

/// A request in bytes, after which the connection is closed.
pub(crate) fn request(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> String {
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    let has = |name: &str| {
        headers
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    if !has("Host") {
        request += &format!("Host: 127.0.0.1:{port}\r\n");
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    if !body.is_empty() && !has("Content-Type") {
        request += "Content-Type: application/json\r\n";
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request + &format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends a request and reads until the server closes.
pub(crate) fn converse(
    stream: &mut (impl Read + Write + Timed),
    request: &str,
) -> Result<Answer, Failure> {
    stream.limit(PATIENCE)?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let whole = String::from_utf8(bytes)?;
    let (head, text) = whole.split_once("\r\n\r\n").ok_or("no head")?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok(Answer {
        status,
        head: head.to_ascii_lowercase(),
        text: text.to_owned(),
    })
}

/// A stream that is not waited for longer than that.
pub(crate) trait Timed {
    fn limit(&self, time: Duration) -> std::io::Result<()>;
}

impl Timed for TcpStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Timed for std::os::unix::net::UnixStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// The port in what the server says when it listens for these clients.
pub(crate) fn port_in(said: &str) -> Option<u16> {
    let line = said.lines().find(|line| line.contains("clients of HTTP"))?;
    let (_, port) = line.rsplit_once("127.0.0.1:")?;
    port.trim()
        .trim_end_matches('/')
        .parse()
        .ok()
        .filter(|&port| port > 0)
}

/// Times in milliseconds and names of stacks, outermost first.
pub(crate) fn samples(trace: &Value) -> Result<Vec<(f64, Option<String>)>, Failure> {
    let list = |name: &str| trace[name].as_array().ok_or("no list");
    let (frames, stacks) = (list("frames")?, list("stacks")?);
    let mut samples = Vec::new();
    for sample in list("samples")? {
        let mut names = Vec::new();
        let mut id = sample["stackId"].as_u64();
        let has_stack = id.is_some();
        while let Some(stack) = id.and_then(|id| stacks.get(usize::try_from(id).ok()?)) {
            let frame = stack["frameId"].as_u64().ok_or("no frame")?;
            let frame = &frames[usize::try_from(frame)?];
            names.push(frame["name"].as_str().ok_or("no name")?);
            id = stack["parentId"].as_u64();
        }
        names.reverse();
        let at = sample["timestamp"].as_f64().ok_or("no time")?;
        samples.push((at, has_stack.then(|| names.join(";"))));
    }
    Ok(samples)
}
