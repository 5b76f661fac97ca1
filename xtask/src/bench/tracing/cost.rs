//! What one traced call adds to a program, by the first instruction of the function.
//!
//! A program calls one function in a loop on the last processor, untraced, and under each tracer. The
//! cost is the least CPU time per call of all rounds, less the least untraced one: traps run in the
//! program's own time, and others who want its processor don't count. The tools' own work is shown
//! apart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched, run as run_tool};
use super::super::table::{Table, ms, per};
use super::caller;
use super::tracer::Tracer;

/// Functions by their first instruction. In two of them a cheaper one is within reach.
const KINDS: [(&str, &str); 10] = [
    ("kind_nop5", "nop of 5 bytes"),
    ("kind_push", "push"),
    ("kind_jump", "jmp"),
    ("kind_call", "call"),
    ("kind_endbr_push", "endbr64, push"),
    ("kind_mov_push", "mov, push"),
    ("kind_endbr_sub", "endbr64, sub rsp"),
    ("kind_sub", "sub rsp"),
    ("kind_mov", "mov"),
    ("kind_ret", "ret and nothing else"),
];

/// Those whose first instruction the kernel emulates.
const EMULATED: [&str; 4] = ["kind_nop5", "kind_push", "kind_jump", "kind_call"];

/// Calls of a program that nobody traces.
const UNTRACED: u64 = 5_000_000;

const COLUMNS: [Tracer; 6] = [
    Tracer::Entry,
    Tracer::Auto,
    Tracer::Instructions,
    Tracer::Empty,
    Tracer::Count,
    Tracer::Latency,
];

#[derive(Serialize)]
struct Run {
    kind: &'static str,
    tracer: Option<&'static str>,
    calls: u64,
    /// CPU time of the program, for each call.
    call_ns: f64,
    /// Of the tool.
    tool: Usage,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize, tracers: &[Tracer]) -> io::Result<()> {
    let program = caller(bench, "trace_caller", &["-fcf-protection=none"])?;
    let many = if bench.quick { 10_000 } else { 100_000 };
    let columns: Vec<Tracer> = COLUMNS
        .into_iter()
        .filter(|tracer| tracers.contains(tracer))
        .collect();
    let mut runs = Vec::new();
    for round in 0..rounds {
        for (kind, _) in KINDS {
            eprintln!("round {} of {rounds}: {kind}", round + 1);
            runs.push(untraced(&program, kind, UNTRACED)?);
            // Where each call is stepped over, fewer say as much.
            let calls = if EMULATED.contains(&kind) {
                many
            } else {
                many / 4
            };
            for &tracer in &columns {
                runs.push(traced(bench, &program, kind, calls, tracer)?);
            }
        }
    }
    print(&runs, &columns, rounds);
    instrumented(bench, rounds, many, tracers, &mut runs)?;
    bench.keep("tracing-cost.json", &runs)
}

/// A program that calls, on the last processor or where the kernel puts it; it runs when this
/// returns.
pub(in super::super) fn start(
    program: &Path,
    arguments: &[&str],
    pinned: bool,
) -> io::Result<Child> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let last = thread::available_parallelism()?.get() - 1;
    let mut command = match pinned {
        true => Command::new("taskset"),
        false => Command::new(program),
    };
    if pinned {
        command.args(["-c", &last.to_string()]).arg(program);
    }
    let mut child = command
        .args(arguments)
        // One built with -pg leaves a profile where it runs.
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    // Up to then the process runs taskset, and a tracer would find nothing.
    let executable = PathBuf::from(format!("/proc/{}/exe", child.id()));
    while fs::read_link(&executable).is_ok_and(|runs| runs != program) {
        if let Some(status) = child.try_wait()? {
            let said = format!("{} ended with {status}", program.display());
            return Err(io::Error::other(said));
        }
        thread::sleep(Duration::from_millis(1));
    }
    // Its libraries are mapped soon after.
    thread::sleep(Duration::from_millis(20));
    Ok(child)
}

/// What a program says at its end.
pub(in super::super) fn end(child: Child) -> io::Result<serde_json::Value> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "the program that was traced ended with {}",
            output.status
        )));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn call_ns(said: &serde_json::Value) -> io::Result<f64> {
    match (said["cpu_ns"].as_f64(), said["calls"].as_f64()) {
        (Some(cpu), Some(calls)) if calls > 0.0 => Ok(cpu / calls),
        _ => Err(io::Error::other("the program gave no times")),
    }
}

fn untraced(program: &Path, kind: &'static str, calls: u64) -> io::Result<Run> {
    let said = end(start(program, &[kind, "calls", &calls.to_string()], true)?)?;
    Ok(Run {
        kind,
        tracer: None,
        calls,
        call_ns: call_ns(&said)?,
        tool: Usage::default(),
    })
}

fn traced(
    bench: &Bench,
    program: &Path,
    kind: &'static str,
    calls: u64,
    tracer: Tracer,
) -> io::Result<Run> {
    let calls_text = calls.to_string();
    let child = start(program, &[kind, "calls", &calls_text, "--probed"], true)?;
    let mut command = tracer.command(bench, program, kind, &[child.id()])?;
    let log = bench.folder.join("log");
    let watched = Watched::start(&mut command, &log)?;
    let said = end(child).map_err(|error| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        io::Error::other(format!("{kind} under {}: {error}; {log}", tracer.name()))
    });
    // It ends with its target, or is told to.
    let _ = watched.interrupt();
    let (_, tool) = watched.end()?;
    Ok(Run {
        kind,
        tracer: Some(tracer.name()),
        calls,
        call_ns: call_ns(&said?)?,
        tool,
    })
}

/// The least time per call of a kind.
fn least(runs: &[Run], kind: &str, tracer: Option<Tracer>) -> f64 {
    let name = tracer.map(Tracer::name);
    runs.iter()
        .filter(|run| run.kind == kind && run.tracer == name)
        .map(|run| run.call_ns)
        .fold(f64::INFINITY, f64::min)
}

/// What a tracer adds to a call.
fn cost(runs: &[Run], kind: &str, tracer: Tracer) -> Option<f64> {
    let added = least(runs, kind, Some(tracer)) - least(runs, kind, None);
    added.is_finite().then_some(added)
}

fn print(runs: &[Run], columns: &[Tracer], rounds: usize) {
    let mut head = vec!["first instruction", "untraced ns"];
    head.extend(columns.iter().map(|tracer| tracer.name()));
    head.extend(["entry / bpftrace", "entry and exit / bpftrace"]);
    let mut table = Table::new(&head);
    for (kind, title) in KINDS {
        let mut row = vec![title.to_owned(), format!("{:.1}", least(runs, kind, None))];
        for &tracer in columns {
            row.push(cost(runs, kind, tracer).map_or("-".to_owned(), |ns| format!("{ns:.0}")));
        }
        for (ours, theirs) in [
            (Tracer::Entry, Tracer::Count),
            (Tracer::Auto, Tracer::Latency),
        ] {
            row.push(match (cost(runs, kind, ours), cost(runs, kind, theirs)) {
                (Some(ours), Some(theirs)) => per(ours, theirs),
                _ => "-".to_owned(),
            });
        }
        table.row(row);
    }
    table.print(&format!(
        "What a traced call adds, ns by first instruction (least of {rounds} rounds)"
    ));

    let mut table = Table::new(&["tool", "own CPU ms (median)", "RssAnon MiB", "BPF maps MiB"]);
    for &tracer in columns {
        let of: Vec<&Run> = runs
            .iter()
            .filter(|run| run.tracer == Some(tracer.name()))
            .collect();
        let mut each: Vec<f64> = of.iter().map(|run| run.tool.cpu_ns as f64).collect();
        let most = |value: fn(&Usage) -> u64| of.iter().map(|run| value(&run.tool)).max();
        table.row(vec![
            tracer.name().to_owned(),
            ms(super::super::slope::median(&mut each)),
            super::super::table::mib(most(|tool| tool.anon_bytes).unwrap_or(0)),
            super::super::table::mib(most(|tool| tool.map_bytes).unwrap_or(0)),
        ]);
    }
    table.print("What the tools themselves use, start and end included");
}

/// A program that was built for uftrace: its cost there, and that of a probe on the same program.
fn instrumented(
    bench: &Bench,
    rounds: usize,
    calls: u64,
    tracers: &[Tracer],
    runs: &mut Vec<Run>,
) -> io::Result<()> {
    const KIND: &str = "compiled";
    if !tracers.contains(&Tracer::Uftrace) {
        return Ok(());
    }
    let program = caller(bench, "trace_caller_pg", &["-pg", "-mfentry"])?;
    let columns: Vec<Tracer> = [
        Tracer::Uftrace,
        Tracer::Auto,
        Tracer::Instructions,
        Tracer::Latency,
    ]
    .into_iter()
    .filter(|tracer| tracers.contains(tracer))
    .collect();
    let mut own = Vec::new();
    for _ in 0..rounds {
        own.push(untraced(&program, KIND, UNTRACED)?);
        for &tracer in &columns {
            own.push(match tracer {
                Tracer::Uftrace => under_uftrace(bench, &program, KIND, calls)?,
                _ => traced(bench, &program, KIND, calls, tracer)?,
            });
        }
    }
    let mut table = Table::new(&["tool", "ns a call"]);
    for &tracer in &columns {
        let ns = cost(&own, KIND, tracer);
        table.row(vec![
            tracer.name().to_owned(),
            ns.map_or("-".to_owned(), |ns| format!("{ns:.0}")),
        ]);
    }
    table.print("A program built with -pg -mfentry, whose every function calls a tracer anyway");
    runs.append(&mut own);
    Ok(())
}

fn under_uftrace(bench: &Bench, program: &Path, kind: &'static str, calls: u64) -> io::Result<Run> {
    let data = bench.folder.join("uftrace.data");
    let _ = fs::remove_dir_all(&data);
    let log = bench.folder.join("log");
    let last = thread::available_parallelism()?.get() - 1;
    let mut command = Command::new("taskset");
    command
        .args([
            "-c",
            &last.to_string(),
            "uftrace",
            "record",
            "--no-event",
            "-F",
            kind,
            "-d",
        ])
        .arg(&data)
        .arg(program)
        .args([kind, "calls", &calls.to_string()]);
    // The program's profile goes where it runs.
    command.current_dir(&bench.folder);
    let tool = run_tool(&mut command, &log)?;
    let said = fs::read_to_string(&log)?;
    let line = said
        .lines()
        .find(|line| line.starts_with('{'))
        .ok_or_else(|| io::Error::other(format!("uftrace: {said}")))?;
    Ok(Run {
        kind,
        tracer: Some(Tracer::Uftrace.name()),
        calls,
        call_ns: call_ns(&serde_json::from_str(line)?)?,
        tool,
    })
}
