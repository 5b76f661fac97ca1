//! What exports cost: each format of one large capture, and beside it what perf takes to write its own samples as text.
//!
//! Made-up samples -> `profiler import` -> a capture -> `profiler export` to a file, for each format, or into a pipe where the
//! file would have many gigabytes. Output: samples a second, bytes of the file a second, CPU time, peak memory. The capture: 8
//! threads, 2,000 stacks of 8 to 40 frames of 4,000 functions, a sample of a thread each millisecond.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use super::Bench;
use super::measure::{self, Usage, Watched};
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

/// Formats with so much for each sample that they are written into a pipe, whose other end counts.
const INTO_PIPES: [&str; 2] = ["perf-script", "bytefrog"];

const THREADS: usize = 8;
const STACKS: usize = 2000;
const FUNCTIONS: u64 = 4000;

pub(super) fn run(bench: &Bench, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let log = bench.folder.join("export.log");
    if SCENARIOS.iter().any(|it| *it != "perf" && wanted(it)) {
        formats(bench, &wanted, &log)?;
    }
    if wanted("perf") {
        beside_perf(bench, &log)?;
    }
    Ok(())
}

/// All that are wanted, of one capture.
fn formats(bench: &Bench, wanted: impl Fn(&str) -> bool, log: &Path) -> io::Result<()> {
    let samples = if bench.quick { 100_000 } else { 10_000_000 };
    let capture = bench.folder.join("export.cap");
    let mut table = Table::new(&["format", "samples/s", "MB/s", "file MiB", "CPU", "peak MiB"]);
    let mut numbers = Vec::new();
    let (len, usage) = import(bench, &capture, samples, log)?;
    table.row(row("import of perf-script", samples, len, &usage));
    let size = fs::metadata(&capture)?.len();
    for format in SCENARIOS
        .into_iter()
        .filter(|it| *it != "perf" && wanted(it))
    {
        eprintln!("export {format}");
        let mut command = Command::new(&bench.profiler);
        command.args(["export", "--force", "--format", format, "-o"]);
        let (what, len, usage) = if INTO_PIPES.contains(&format) {
            let (len, usage) = into_pipe(command.arg("-").arg(&capture), log)?;
            (format!("{format}, into a pipe"), len, usage)
        } else {
            let output = bench.folder.join("exported");
            let usage = measure::run(command.arg(&output).arg(&capture), log)?;
            let len = fs::metadata(&output)?.len();
            fs::remove_file(&output)?;
            (format.to_owned(), len, usage)
        };
        table.row(row(&what, samples, len, &usage));
        numbers.push((format, usage.wall_ns, usage.cpu_ns, usage.peak_bytes, len));
    }
    bench.keep("export.json", &numbers)?;
    table.print(&format!(
        "Exports of {samples} samples, a capture of {} MiB",
        mib(size)
    ));
    fs::remove_file(&capture)
}

/// Runs a command, and counts what it writes.
fn into_pipe(command: &mut Command, log: &Path) -> io::Result<(u64, Usage)> {
    let error = fs::File::create(log)?;
    let mut child = Watched::connected(command, Stdio::null(), Stdio::piped(), error.into())?;
    let (_, output) = child.pipes();
    let mut output = output.ok_or_else(|| io::Error::other("no pipe"))?;
    let (mut piece, mut len) = (vec![0; 1 << 20], 0);
    loop {
        match output.read(&mut piece)? {
            0 => break,
            count => len += count as u64,
        }
    }
    Ok((len, measure::succeeded(command, child.end()?, log)?))
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

/// Makes the capture: of how many bytes of text, and what that took.
fn import(bench: &Bench, capture: &Path, samples: u64, log: &Path) -> io::Result<(u64, Usage)> {
    eprintln!("import {samples} samples");
    let mut command = Command::new(&bench.profiler);
    command
        .args(["import", "--force", "-q", "--from", "perf-script", "-o"])
        .arg(capture)
        .arg("-");
    let error = fs::File::create(log)?;
    let mut child = Watched::connected(&mut command, Stdio::piped(), Stdio::null(), error.into())?;
    let (input, _) = child.pipes();
    let input = input.ok_or_else(|| io::Error::other("no pipe"))?;
    let len = write_samples(input, samples)?;
    Ok((len, measure::succeeded(&command, child.end()?, log)?))
}

/// Writes made-up samples as text of perf; how many bytes.
fn write_samples(input: ChildStdin, samples: u64) -> io::Result<u64> {
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
    let mut input = BufWriter::with_capacity(1 << 20, input);
    let (mut head, mut len) = (String::new(), 0);
    for number in 0..samples {
        let thread = number as usize % THREADS;
        let ns = 1_000_000_000 + number * 1_000_000 / THREADS as u64;
        let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
        let stack = &stacks[random(STACKS as u64) as usize];
        head.clear();
        // What can be written to a string never fails.
        let _ = writeln!(
            head,
            "worker {}/{} [{:03}] {seconds}.{rest:09}: 1000000 cpu-clock: ",
            100 + thread / 4,
            200 + thread,
            thread % 2,
        );
        input.write_all(head.as_bytes())?;
        input.write_all(stack.as_bytes())?;
        input.write_all(b"\n")?;
        len += (head.len() + stack.len() + 1) as u64;
    }
    input.flush()?;
    Ok(len)
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
    let json = bench.folder.join("export.perf.json");
    let mut convert = perf(&["data", "convert", "--force"]);
    match measure::run(convert.arg("--to-json").arg(&json), log) {
        Ok(usage) => table.row(row("perf data convert --to-json", samples, size, &usage)),
        Err(_) => eprintln!("without perf data convert: it does not convert here"),
    }
    // It may not have been made.
    let _ = fs::remove_file(&json);
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
    beside_go(bench, log, &capture, samples, &mut table)?;
    table.print(&format!(
        "Beside perf: {samples} samples of the whole machine, {seconds} s"
    ));
    fs::remove_file(&data)?;
    fs::remove_file(&capture)
}

/// What Go's own tool takes to turn a trace into text, and what that takes here.
fn beside_go(
    bench: &Bench,
    log: &Path,
    capture: &Path,
    samples: u64,
    table: &mut Table,
) -> io::Result<()> {
    let wire = bench.folder.join("export.go-trace");
    let mut command = Command::new(&bench.profiler);
    command
        .args(["export", "--force", "-q", "--format", "go-trace-wire", "-o"])
        .arg(&wire)
        .arg(capture);
    measure::run(&mut command, log)?;
    let size = fs::metadata(&wire)?.len();
    let go = super::pgo::go(bench);
    let tool = |form: &str| {
        let mut command = Command::new(&go);
        command.args(["tool", "trace", form]).arg(&wire);
        command
    };
    // Newer ones build the tool when it is first wanted.
    match measure::run(&mut tool("-d=footprint"), log) {
        Ok(_) => {
            for form in ["-d=wire", "-d=parsed"] {
                let usage = measure::run(&mut tool(form), log)?;
                table.row(row(&format!("go tool trace {form}"), samples, size, &usage));
            }
        }
        Err(_) => eprintln!("without Go: it reads no traces here"),
    }
    let mut command = Command::new(&bench.profiler);
    command.args(["convert", "-q", "--to", "text"]).arg(&wire);
    let usage = measure::run(&mut command, log)?;
    table.row(row("profiler convert --to text", samples, size, &usage));
    fs::remove_file(&wire)
}
