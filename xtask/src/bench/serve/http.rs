//! What sessions over HTTP cost by their number, and how soon they answer.
//!
//! Each session samples all threads of one busy process each 10 ms. CPU time is the server's own; a sample is a tick of a
//! thread in one session. The time to the first one is from the request to the first timestamp with a stack, by the
//! server's clock.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::super::Bench;
use super::super::table::{Table, mib, per};
use super::{Process, serve_by};

const SESSIONS: [usize; 3] = [1, 10, 100];
const INTERVAL_MS: u64 = 10;
const SETTLING: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Run {
    sessions: usize,
    samples: u64,
    cpu_ns: u64,
    took_ns: u64,
    /// Of POST /session, the first and the slowest.
    first_answer_ns: u64,
    slowest_answer_ns: u64,
    /// From the first request to the first stack.
    first_stack_ns: u64,
    /// Of stop, the slowest.
    stop_ns: u64,
    peak_bytes: u64,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, seconds: u64) -> io::Result<()> {
    let target = Process::workload(bench, "tcf_shares", &[])?;
    let mut runs = Vec::new();
    for sessions in SESSIONS {
        eprintln!("http: {sessions} sessions for {seconds} s");
        runs.push(served(bench, &target, sessions, seconds)?);
    }
    bench.keep("serve-http.json", &runs)?;
    let mut table = Table::new(&[
        "sessions",
        "samples/s (all sessions)",
        "own CPU ms/s",
        "own CPU us/sample",
        "POST /session, ms (first, slowest)",
        "to the first stack, ms",
        "stop, ms (slowest)",
        "VmHWM MiB",
    ]);
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    for run in &runs {
        let rate = run.samples as f64 * 1e9 / run.took_ns as f64;
        let cpu_us = run.cpu_ns as f64 / 1e3;
        table.row(vec![
            run.sessions.to_string(),
            format!("{rate:.0}"),
            per(run.cpu_ns as f64 * 1e3, run.took_ns as f64),
            per(cpu_us, run.samples as f64),
            format!("{}, {}", ms(run.first_answer_ns), ms(run.slowest_answer_ns)),
            ms(run.first_stack_ns),
            ms(run.stop_ns),
            mib(run.peak_bytes),
        ]);
    }
    table.print(&format!(
        "Sessions of {INTERVAL_MS} ms on a process with three busy threads, {seconds} s"
    ));
    Ok(())
}

fn served(bench: &Bench, target: &Process, sessions: usize, seconds: u64) -> io::Result<Run> {
    let (server, address) = serve_by(bench, "--http", &[])?;
    // Attached and read what runs: that is measured by others.
    let now_ms = |address: &str| -> io::Result<f64> {
        let (clock, _) = ask(address, "GET", "/clock", None)?;
        Ok(clock["now"].as_f64().unwrap_or(0.0))
    };
    let begun_ms = now_ms(&address)?;
    let mut answers = Vec::new();
    let mut ids = Vec::new();
    let mut origin_ms = 0.0;
    for _ in 0..sessions {
        let body = json!({
            "target": { "pid": target.pid() }, "sampleInterval": INTERVAL_MS,
            "maxBufferSize": 10_000,
        });
        let (session, took) = ask(&address, "POST", "/session", Some(&body))?;
        answers.push(took.as_nanos() as u64);
        if ids.is_empty() {
            origin_ms = session["timeOrigin"].as_f64().unwrap_or(0.0);
        }
        ids.push(session["id"].as_str().unwrap_or_default().to_owned());
    }
    thread::sleep(SETTLING);
    let (from, begin) = (server.cpu_ns()?, Instant::now());
    thread::sleep(Duration::from_secs(seconds));
    let (to, took) = (server.cpu_ns()?, begin.elapsed());
    let peak_bytes = server.peak_bytes()?;
    let mut stop_ns = 0;
    let mut first_stack_ns = 0;
    let mut threads = 0;
    for (index, id) in ids.iter().enumerate() {
        let (traces, took) = ask(&address, "POST", &format!("/session/{id}/stop"), None)?;
        stop_ns = stop_ns.max(took.as_nanos() as u64);
        let traces = traces["traces"].as_array().cloned().unwrap_or_default();
        threads = traces.len();
        if index == 0 {
            let samples = traces
                .iter()
                .flat_map(|it| it["trace"]["samples"].as_array());
            let stacks = samples.flatten().filter(|it| it["stackId"].is_u64());
            let times = stacks.filter_map(|it| it["timestamp"].as_f64());
            let first_ms = times.fold(f64::INFINITY, f64::min) + origin_ms - begun_ms;
            first_stack_ns = (first_ms * 1e6) as u64;
        }
    }
    let ticks = took.as_millis() as u64 / INTERVAL_MS;
    Ok(Run {
        sessions,
        samples: ticks * (threads * sessions) as u64,
        cpu_ns: to - from,
        took_ns: took.as_nanos() as u64,
        first_answer_ns: answers.first().copied().unwrap_or(0),
        slowest_answer_ns: answers.iter().copied().max().unwrap_or(0),
        first_stack_ns,
        stop_ns,
        peak_bytes,
    })
}

/// A request, its answer, and how long that took.
fn ask(
    address: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(Value, Duration)> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = match body.is_empty() {
        true => "",
        false => "Content-Type: application/json\r\n",
    };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, text) = text.split_once("\r\n\r\n").unwrap_or_default();
    let is_good = head.split(' ').nth(1).is_some_and(|it| it.starts_with('2'));
    if !is_good {
        return Err(io::Error::other(format!("{method} {path}: {head} {text}")));
    }
    Ok((serde_json::from_str(text)?, begin.elapsed()))
}
