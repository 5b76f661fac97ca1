//! Frames a second to clients of the remote debugging protocol, what they cost, and how soon the first one comes.
//!
//! `frames`: a program calls two functions at a steady pace, or as fast as it can, and each client is told of each call:
//! whether all came, in order, and the server's own CPU time for each. `inferred`: frames of a busy thread of samples, by
//! the number of clients. Times are nanoseconds.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::super::Bench;
use super::super::table::{Table, mib, per};
use super::{Process, serve_by};

/// Packets that one turn of the workload makes: three calls, entered and left.
const PACKETS: u64 = 6;
/// Packets a second, and how many clients get them all; none: as fast as the program can.
const PACES: [(Option<u64>, usize); 5] = [
    (Some(50_000), 1),
    (Some(100_000), 1),
    (Some(150_000), 1),
    (None, 1),
    (Some(50_000), 4),
];
/// In such pieces the program is told to call.
const PIECE: Duration = Duration::from_millis(50);
const HZ: u64 = 999;
const CLIENTS: [usize; 3] = [1, 10, 50];
const SETTLING: Duration = Duration::from_secs(2);

/// How long any packet may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A client that looks at no more of a packet than it must.
struct Client {
    stream: TcpStream,
    come: Vec<u8>,
    read: usize,
}

impl Client {
    fn connect(address: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut client = Client {
            stream,
            come: Vec::new(),
            read: 0,
        };
        client.packet()?;
        Ok(client)
    }

    fn send(&mut self, packet: &Value) -> io::Result<()> {
        let json = packet.to_string();
        let bytes = format!("{}:{json}", json.len());
        self.stream.write_all(bytes.as_bytes())
    }

    /// The next packet, as it is.
    fn packet(&mut self) -> io::Result<&[u8]> {
        loop {
            let come = &self.come[self.read..];
            let colon = come.iter().position(|&byte| byte == b':');
            if let Some(colon) = colon {
                let digits = std::str::from_utf8(&come[..colon]).map_err(io::Error::other)?;
                let len: usize = digits.parse().map_err(io::Error::other)?;
                if come.len() > colon + len {
                    let from = self.read + colon + 1;
                    self.read = from + len;
                    return Ok(&self.come[from..from + len]);
                }
            }
            self.come.drain(..self.read);
            self.read = 0;
            let old = self.come.len();
            self.come.resize(old + (1 << 18), 0);
            let count = self.stream.read(&mut self.come[old..])?;
            self.come.truncate(old + count);
            if count == 0 {
                return Err(io::Error::other("the server has closed the connection"));
            }
        }
    }

    /// The answer of an actor.
    fn ask(&mut self, packet: &Value) -> io::Result<Value> {
        self.send(packet)?;
        loop {
            let answer: Value = serde_json::from_slice(self.packet()?)?;
            let is_event = answer["type"]
                .as_str()
                .is_some_and(|it| it.ends_with("Changed"));
            if answer["from"] == packet["to"] && !is_event {
                return match answer["error"].as_str() {
                    None => Ok(answer),
                    Some(_) => Err(io::Error::other(answer.to_string())),
                };
            }
        }
    }

    /// Attaches to the actor of a thread.
    fn attach(&mut self, pid: u32, tid: u64) -> io::Result<String> {
        let ask = serde_json::json!({ "to": "root", "type": "getProcess", "id": pid });
        let answer = self.ask(&ask)?;
        let threads = answer["form"]["threads"].as_array().cloned();
        let threads = threads.unwrap_or_default();
        let thread = threads.iter().find(|it| it["tid"] == tid);
        let actor = thread.and_then(|it| it["traceActor"].as_str());
        let actor = actor.ok_or_else(|| io::Error::other("the thread is not there"))?;
        self.ask(&serde_json::json!({ "to": actor, "type": "attach" }))?;
        Ok(actor.to_owned())
    }

    /// Takes all frames up to the end of the trace.
    fn frames(&mut self, actor: &str) -> io::Result<Told> {
        let mut told = Told::default();
        loop {
            let packet = self.packet()?;
            if let Some(sequence) = number(packet, b"\"sequence\":") {
                told.first.get_or_insert_with(Instant::now);
                told.out_of_order += u64::from(sequence != told.frames);
                told.frames += 1;
            } else if find(packet, b"\"lostFrames\"").is_some() {
                told.lost += number(packet, b"\"count\":").unwrap_or(1);
            } else if find(packet, b"\"stoppedTrace\"").is_some()
                && find(packet, actor.as_bytes()).is_some()
            {
                return Ok(told);
            }
        }
    }
}

/// What a client was told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    frames: u64,
    out_of_order: u64,
    lost: u64,
    first: Option<Instant>,
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|it| it == what)
}

/// The number behind a name.
fn number(packet: &[u8], name: &[u8]) -> Option<u64> {
    let from = find(packet, name)? + name.len();
    let digits = packet[from..].iter().take_while(|it| it.is_ascii_digit());
    std::str::from_utf8(&packet[from..from + digits.count()])
        .ok()?
        .parse()
        .ok()
}

/// The program that calls.
struct Calls {
    process: Process,
    output: BufReader<ChildStdout>,
    tid: u64,
}

impl Calls {
    fn start(bench: &Bench) -> io::Result<Calls> {
        let program = bench.workload("rdp_calls.c", "rdp_calls", &["-g", "-lpthread"])?;
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no output"))?;
        let mut calls = Calls {
            process: Process(child),
            output: BufReader::new(output),
            tid: 0,
        };
        calls.tid = calls.hear()?["tids"][0].as_u64().unwrap_or(0);
        Ok(calls)
    }

    fn hear(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }

    /// Has it call so often; it is over then.
    fn call(&mut self, turns: u64) -> io::Result<()> {
        let input = self.process.0.stdin.as_mut();
        let input = input.ok_or_else(|| io::Error::other("no input"))?;
        writeln!(input, "0 {turns}")?;
        self.hear().map(drop)
    }
}

#[derive(Serialize)]
struct Run {
    pace: Option<u64>,
    clients: usize,
    made: u64,
    told: u64,
    out_of_order: u64,
    lost: u64,
    /// How long the program called.
    took_ns: u64,
    /// From its last call until a client had the last frame, the slowest.
    behind_ns: u64,
    /// From the request to the answer that probes sit; from the first call then to its frame.
    started_ns: u64,
    first_ns: u64,
    cpu_ns: u64,
    peak_bytes: u64,
}

/// Measures and prints frames of traced calls.
pub(super) fn frames(bench: &Bench, seconds: u64) -> io::Result<()> {
    let mut runs = Vec::new();
    for (pace, clients) in PACES {
        eprintln!("rdp: {pace:?} frames/s, {clients} clients, for {seconds} s");
        runs.push(told(bench, pace, clients, seconds)?);
    }
    bench.keep("serve-rdp.json", &runs)?;
    let mut table = Table::new(&[
        "frames/s wanted",
        "clients",
        "frames/s made",
        "told to each",
        "missing",
        "out of order",
        "own CPU us/(frame and client)",
        "behind at the end, ms",
        "to startedTrace, ms",
        "to the first frame, ms",
        "VmHWM MiB",
    ]);
    for run in &runs {
        let ms = |ns: u64| format!("{:.0}", ns as f64 / 1e6);
        let each = run.told / run.clients as u64;
        table.row(vec![
            run.pace.map_or("all".to_owned(), |pace| pace.to_string()),
            run.clients.to_string(),
            per(run.made as f64 * 1e9, run.took_ns as f64),
            each.to_string(),
            (run.made * run.clients as u64)
                .saturating_sub(run.told)
                .to_string(),
            run.out_of_order.to_string(),
            per(run.cpu_ns as f64 / 1e3, run.told as f64),
            ms(run.behind_ns),
            ms(run.started_ns),
            ms(run.first_ns),
            mib(run.peak_bytes),
        ]);
    }
    table.print(&format!(
        "Each call of two functions told to clients that read (name, time, depth), {seconds} s"
    ));
    Ok(())
}

fn told(bench: &Bench, pace: Option<u64>, clients: usize, seconds: u64) -> io::Result<Run> {
    let mut calls = Calls::start(bench)?;
    let (server, address) = serve_by(bench, "--rdp", &["--budget", "off"])?;
    let mut attached = Vec::new();
    let mut started_ns = 0;
    for _ in 0..clients {
        let mut client = Client::connect(&address)?;
        let actor = client.attach(calls.process.pid(), calls.tid)?;
        let begin = Instant::now();
        client.ask(&serde_json::json!({
            "to": actor, "type": "startTrace", "trace": ["name", "time", "depth"],
            "functions": ["main:outer", "main:leaf"],
        }))?;
        started_ns = started_ns.max(begin.elapsed().as_nanos() as u64);
        attached.push((client, actor));
    }
    let stops: Vec<_> = attached
        .iter()
        .map(|(client, actor)| Ok((client.stream.try_clone()?, actor.clone())))
        .collect::<io::Result<_>>()?;
    let from_cpu = server.cpu_ns()?;
    thread::scope(|scope| {
        let readers: Vec<_> = attached
            .into_iter()
            .map(|(mut client, actor)| {
                scope.spawn(move || {
                    let told = client.frames(&actor)?;
                    io::Result::Ok((told, Instant::now()))
                })
            })
            .collect();
        let begin = Instant::now();
        let piece = pace.map(|pace| pace * PIECE.as_millis() as u64 / 1000 / PACKETS);
        let mut turns = 0;
        let mut due = begin;
        while begin.elapsed() < Duration::from_secs(seconds) {
            let count = piece.unwrap_or(2000);
            calls.call(count)?;
            turns += count;
            if piece.is_some() {
                due += PIECE;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        let took = begin.elapsed();
        let end = Instant::now();
        for (mut stream, actor) in stops {
            let stop = serde_json::json!({ "to": actor, "type": "stopTrace" }).to_string();
            stream.write_all(format!("{}:{stop}", stop.len()).as_bytes())?;
        }
        let mut run = Run {
            pace,
            clients,
            made: turns * PACKETS,
            told: 0,
            out_of_order: 0,
            lost: 0,
            took_ns: took.as_nanos() as u64,
            behind_ns: 0,
            started_ns,
            first_ns: 0,
            cpu_ns: 0,
            peak_bytes: 0,
        };
        for reader in readers {
            let (told, at) = reader
                .join()
                .map_err(|_| io::Error::other("a client panicked"))??;
            run.told += told.frames;
            run.out_of_order += told.out_of_order;
            run.lost += told.lost;
            run.behind_ns = run.behind_ns.max((at - end).as_nanos() as u64);
            let first = told
                .first
                .map_or(0, |first| (first - begin).as_nanos() as u64);
            run.first_ns = run.first_ns.max(first);
        }
        run.cpu_ns = server.cpu_ns()? - from_cpu;
        run.peak_bytes = server.peak_bytes()?;
        Ok(run)
    })
}

#[derive(Serialize)]
struct Inferred {
    clients: usize,
    samples: u64,
    frames: u64,
    cpu_ns: u64,
    first_ns: u64,
    peak_bytes: u64,
}

/// Measures and prints frames that samples tell of.
pub(super) fn inferred(bench: &Bench, seconds: u64) -> io::Result<()> {
    let mut runs = Vec::new();
    for clients in CLIENTS {
        eprintln!("rdp: {clients} clients of a thread's samples, for {seconds} s");
        runs.push(sampled(bench, clients, seconds)?);
    }
    bench.keep("serve-rdp-inferred.json", &runs)?;
    let mut table = Table::new(&[
        "clients",
        "samples",
        "frames (each client)",
        "own CPU us/sample",
        "own CPU us/(sample and client)",
        "to the first frame, ms",
        "VmHWM MiB",
    ]);
    for run in &runs {
        let cpu_us = run.cpu_ns as f64 / 1e3;
        table.row(vec![
            run.clients.to_string(),
            run.samples.to_string(),
            (run.frames / run.clients as u64).to_string(),
            per(cpu_us, run.samples as f64),
            per(cpu_us, (run.samples * run.clients as u64) as f64),
            format!("{:.0}", run.first_ns as f64 / 1e6),
            mib(run.peak_bytes),
        ]);
    }
    table.print(&format!(
        "Frames of a busy thread, inferred of samples at {HZ} Hz, {seconds} s"
    ));
    Ok(())
}

fn sampled(bench: &Bench, clients: usize, seconds: u64) -> io::Result<Inferred> {
    let calls = Calls::start(bench)?;
    let (server, address) = serve_by(bench, "--rdp", &[])?;
    let over = AtomicBool::new(false);
    let spins = (SETTLING.as_millis() as u64) + seconds * 1000 + 20_000;
    let mut input = calls.process.0.stdin.as_ref();
    let input = input.as_mut().ok_or_else(|| io::Error::other("no input"))?;
    writeln!(input, "0 -{spins}")?;
    let (pid, tid) = (calls.process.pid(), calls.tid);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..clients)
            .map(|_| {
                let (address, over) = (&address, &over);
                scope.spawn(move || {
                    let mut client = Client::connect(address)?;
                    let actor = client.attach(pid, tid)?;
                    let begin = Instant::now();
                    client.ask(&serde_json::json!({
                        "to": actor, "type": "startTrace", "trace": ["name", "time", "depth"],
                        "frequency": HZ,
                    }))?;
                    let mut stream = client.stream.try_clone()?;
                    let stop = serde_json::json!({ "to": actor, "type": "stopTrace" }).to_string();
                    let stopper = thread::spawn({
                        let ends = Duration::from_secs(seconds) + SETTLING;
                        move || {
                            thread::sleep(ends);
                            stream.write_all(format!("{}:{stop}", stop.len()).as_bytes())
                        }
                    });
                    let told = client.frames(&actor)?;
                    over.store(true, Ordering::Relaxed);
                    let _ = stopper.join();
                    let first = told.first.map_or(0, |it| (it - begin).as_nanos() as u64);
                    io::Result::Ok((told.frames, first))
                })
            })
            .collect();
        thread::sleep(SETTLING);
        let from = (server.cpu_ns()?, calls.process.cpu_ns()?);
        let begin = Instant::now();
        // Until the first of them ends.
        while !over.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(seconds) {
            thread::sleep(Duration::from_millis(20));
        }
        let to = (server.cpu_ns()?, calls.process.cpu_ns()?);
        let mut run = Inferred {
            clients,
            // A tick of the thread's time is a sample.
            samples: (to.1 - from.1) * HZ / 1_000_000_000,
            frames: 0,
            cpu_ns: to.0 - from.0,
            first_ns: 0,
            peak_bytes: server.peak_bytes()?,
        };
        for reader in readers {
            let (frames, first) = reader
                .join()
                .map_err(|_| io::Error::other("a client panicked"))??;
            run.frames += frames;
            run.first_ns = run.first_ns.max(first);
        }
        Ok(run)
    })
}
