//! What exports cost: each format of one large capture, and beside it what perf takes to write its own samples as text.
//!
//! Made-up samples -> `profiler import` -> a capture -> `profiler export` to a file, for each format. Output: samples a second,
//! bytes of the file a second, CPU time, peak memory. The capture: 8 threads, 2,000 stacks of 8 to 40 frames of 4,000
//! functions, a sample of a thread each millisecond.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::Bench;
use super::measure::{self, Usage};
use super::table::{Table, mib};

pub(super) const SCENARIOS: [&str; 16] = [
    "folded",
    "svg",
    "go-trace",
    "go-trace-wire",
    "pprof",
    "speedscope",
    "firefox",
    "perfetto",
    "chrome-trace",
    "cpuprofile",
    "callgrind",
    "otlp",
    "perf-script",
    "bytefrog",
    "tcf",
    "perf",
];

const THREADS: usize = 8;
const STACKS: usize = 2000;
const FUNCTIONS: u64 = 4000;

pub(super) fn run(bench: &Bench, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let samples = if bench.quick { 100_000 } else { 2_000_000 };
    let capture = bench.folder.join("export.cap");
    let log = bench.folder.join("export.log");
    let made = import(bench, &capture, samples)?;
    let size = fs::metadata(&capture)?.len();
    let mut table = Table::new(&["format", "samples/s", "MB/s", "file MiB", "CPU", "peak MiB"]);
    let mut numbers = Vec::new();
    for format in SCENARIOS
        .into_iter()
        .filter(|it| *it != "perf" && wanted(it))
    {
        let output = bench.folder.join("exported");
        let mut command = Command::new(&bench.profiler);
        command.args(["export", "--force", "--format", format, "-o"]);
        let usage = measure::run(command.arg(&output).arg(&capture), &log)?;
        let len = fs::metadata(&output)?.len();
        fs::remove_file(&output)?;
        table.row(row(format, samples, len, &usage));
        numbers.push((format, usage.wall_ns, usage.cpu_ns, usage.peak_bytes, len));
    }
    bench.keep("export.json", &numbers)?;
    table.print(&format!(
        "Exports of {samples} samples, a capture of {} MiB (imported in {:.1} s)",
        mib(size),
        made as f64 / 1e9
    ));
    fs::remove_file(&capture)?;
    if wanted("perf") {
        beside_perf(bench, &log)
    } else {
        Ok(())
    }
}

fn row(what: &str, samples: u64, bytes: u64, usage: &Usage) -> Vec<String> {
    let seconds = usage.wall_ns as f64 / 1e9;
    vec![
        what.to_owned(),
        format!("{:.0}", samples as f64 / seconds),
        format!("{:.0}", bytes as f64 / 1e6 / seconds),
        mib(bytes),
        format!("{:.2} s", usage.cpu_ns as f64 / 1e9),
        mib(usage.peak_bytes),
    ]
}

/// Makes the capture; how long that took.
fn import(bench: &Bench, capture: &Path, samples: u64) -> io::Result<u64> {
    let began = std::time::Instant::now();
    let mut child = Command::new(&bench.profiler)
        .args(["import", "--force", "-q", "--from", "perf-script", "-o"])
        .arg(capture)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stacks = Vec::with_capacity(STACKS);
    let mut seed = 1_u64;
    let mut random = |end: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % end
    };
    for _ in 0..STACKS {
        let mut stack = String::new();
        for _ in 0..8 + random(33) {
            let function = random(FUNCTIONS);
            let (offset, object) = (random(64), function % 20);
            let at = function * 256 + offset;
            stack += &format!(
                "\t{at:x} module::work<{function}>(int, char const*)+{offset:#x} (/usr/lib/lib{object}.so)\n"
            );
        }
        stacks.push(stack);
    }
    let input = child.stdin.take();
    let mut input =
        BufWriter::with_capacity(1 << 20, input.ok_or_else(|| io::Error::other("no pipe"))?);
    for number in 0..samples {
        let thread = number as usize % THREADS;
        let ns = 1_000_000_000 + number * 1_000_000 / THREADS as u64;
        let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
        write!(
            input,
            "worker {}/{} [{:03}] {seconds}.{rest:09}: 1000000 cpu-clock: \n{}\n",
            100 + thread / 4,
            200 + thread,
            thread % 2,
            stacks[random(STACKS as u64) as usize]
        )?;
    }
    drop(input);
    match child.wait()?.success() {
        true => Ok(began.elapsed().as_nanos() as u64),
        false => Err(io::Error::other("the capture could not be made")),
    }
}

/// What perf takes for its own samples as text, and what they take here: perf finds their names besides.
fn beside_perf(bench: &Bench, log: &Path) -> io::Result<()> {
    let data = bench.folder.join("export.perf.data");
    let capture = bench.folder.join("export.perf.cap");
    let seconds = if bench.quick { "1" } else { "10" };
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-a", "-g", "-F", "4999", "-o"]);
    let recorded = record.arg(&data).args(["--", "sleep", seconds]).output();
    if !recorded.is_ok_and(|output| output.status.success()) {
        eprintln!("without perf: it does not record here");
        return Ok(());
    }
    let perf = |arguments: &[&str]| {
        let mut command = Command::new("perf");
        command.args(arguments).arg("-i").arg(&data);
        command
    };
    let text = perf(&["script", "-F", "time"]).output()?.stdout;
    let samples = text.iter().filter(|byte| **byte == b'\n').count() as u64;
    let mut table = Table::new(&["what", "samples/s", "MB/s", "read MiB", "CPU", "peak MiB"]);
    let size = fs::metadata(&data)?.len();
    // Where others load BPF programs meanwhile, perf 6.1 can't read what it has recorded of them.
    match measure::run(perf(&["script"]).stdout(Stdio::null()), log) {
        Ok(usage) => table.row(row("perf script", samples, size, &usage)),
        Err(_) => eprintln!("without perf script: it can't read its own file here"),
    }
    let mut command = Command::new(&bench.profiler);
    command
        .args(["import", "--force", "-q", "-o"])
        .arg(&capture)
        .arg(&data);
    let usage = measure::run(&mut command, log)?;
    table.row(row("profiler import perf.data", samples, size, &usage));
    let mut command = Command::new(&bench.profiler);
    command
        .args(["export", "--format", "perf-script"])
        .arg(&capture);
    let size = fs::metadata(&capture)?.len();
    let usage = measure::run(command.stdout(Stdio::null()), log)?;
    table.row(row("profiler export perf-script", samples, size, &usage));
    table.print(&format!(
        "Beside perf: {samples} samples of the whole machine, {seconds} s"
    ));
    fs::remove_file(&data)?;
    fs::remove_file(&capture)
}
