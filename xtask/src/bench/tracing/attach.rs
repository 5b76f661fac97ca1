//! How long it takes until probes are there, and until they are gone again.
//!
//! A generated program of 10,501 functions watches its own code: it says when the last function of a
//! family has changed, and when all are as they were. The time begins with the start of the tool, and
//! then with Ctrl-C. bpftrace attaches by one perf event for each function, which takes 0.1 s each to
//! detach, so it is asked for 500 and the rest is extrapolated.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched};
use super::super::table::{Table, ms};
use super::tracer::Tracer;

/// Families of functions, and how many each has.
const FAMILIES: [(&str, usize); 3] = [("one", 1), ("some", 500), ("many", 10_000)];

#[derive(Serialize)]
struct Run {
    tracer: &'static str,
    functions: usize,
    attach_ns: u64,
    /// From Ctrl-C until the code is as it was.
    restore_ns: u64,
    /// From Ctrl-C until the tool has ended.
    end_ns: u64,
    tool: Usage,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, tracers: &[Tracer]) -> io::Result<()> {
    let program = build(bench)?;
    let mut runs = Vec::new();
    for tracer in [
        Tracer::Entry,
        Tracer::Auto,
        Tracer::Instructions,
        Tracer::Count,
    ] {
        if !tracers.contains(&tracer) {
            continue;
        }
        for (family, count) in FAMILIES {
            // 109 ms each to detach: that of 10,000 would take a quarter of an hour.
            if tracer == Tracer::Count && count > if bench.quick { 1 } else { 500 } {
                continue;
            }
            eprintln!("{}: {count} functions", tracer.name());
            runs.push(one(bench, &program, tracer, family, count)?);
        }
    }
    bench.keep("tracing-attach.json", &runs)?;
    print(&runs);
    Ok(())
}

/// Writes and builds the program. Its functions are not optimised: each begins with a push.
fn build(bench: &Bench) -> io::Result<PathBuf> {
    let mut source = String::from(
        "#include <stdio.h>\n#include <string.h>\n#include <time.h>\n#include <unistd.h>\n",
    );
    for (family, count) in FAMILIES {
        for index in 0..count {
            let _ = writeln!(
                source,
                "int {family}_{index}(int x) {{ return x + {index}; }}"
            );
        }
        let _ = writeln!(source, "static int (*const all_{family}[])(int) = {{");
        for index in 0..count {
            let _ = writeln!(source, "{family}_{index},");
        }
        source.push_str("};\n");
    }
    source.push_str(WATCHER);
    let (text, program) = (bench.folder.join("many.c"), bench.folder.join("many"));
    fs::write(&text, source)?;
    let mut command = Command::new("cc");
    command.args(["-O0", "-fcf-protection=none", "-o"]);
    let status = command.arg(&program).arg(&text).status()?;
    if status.success() {
        Ok(program)
    } else {
        Err(io::Error::other("cc many.c failed"))
    }
}

/// Says `probed NS` when the code of every function of a family has changed, `restored NS` when all
/// is as it was.
const WATCHER: &str = r#"
static unsigned char before[10001][8];
static int changed(int (*const *all)(int), int count) {
    int result = 0;
    for (int i = 0; i < count; i++) result += !!memcmp(before[i], (const void *)all[i], 8);
    return result;
}
static void say(const char *what) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%s %lld\n", what, now.tv_sec * 1000000000ll + now.tv_nsec);
    fflush(stdout);
}
int main(int argc, char **argv) {
    int count = sizeof all_many / sizeof *all_many;
    int (*const *all)(int) = all_many;
    if (argc > 1 && !strcmp(argv[1], "one")) all = all_one, count = 1;
    if (argc > 1 && !strcmp(argv[1], "some")) all = all_some, count = sizeof all_some / sizeof *all_some;
    for (int i = 0; i < count; i++) memcpy(before[i], (const void *)all[i], 8);
    say("ready");
    for (long i = 0; changed(all, count) < count; i++) {
        if (i > 60000) return 4;
        usleep(1000);
    }
    say("probed");
    for (long i = 0; changed(all, count); i++) {
        if (i > 300000) return 4;
        usleep(1000);
    }
    say("restored");
    return 0;
}
"#;

fn one(
    bench: &Bench,
    program: &PathBuf,
    tracer: Tracer,
    family: &str,
    functions: usize,
) -> io::Result<Run> {
    let mut child = Command::new(program)
        .arg(family)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child
        .stdout
        .take()
        .ok_or_else(|| io::Error::other("no pipe"))?;
    let mut lines = BufReader::new(output).lines();
    let mut said = |what: &str| -> io::Result<u64> {
        let line = lines.next().transpose()?.unwrap_or_default();
        line.strip_prefix(what)
            .and_then(|time| time.trim().parse().ok())
            .ok_or_else(|| {
                io::Error::other(format!(
                    "{family}: '{line}' instead of '{what}' under {}",
                    tracer.name()
                ))
            })
    };
    said("ready")?;
    let mut command = tracer.command(bench, program, &format!("{family}_*"), &[child.id()])?;
    let from = now_ns();
    let watched = Watched::start(&mut command, &bench.folder.join("log"))?;
    let probed = said("probed");
    // All tools hold on to a probe that has just been made; this one was seen as soon as it was there.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let interrupted = now_ns();
    watched.interrupt()?;
    let (_, tool) = watched.end()?;
    let ended = now_ns();
    let restored = said("restored");
    let _ = child.kill();
    child.wait()?;
    Ok(Run {
        tracer: tracer.name(),
        functions,
        attach_ns: probed?.saturating_sub(from),
        restore_ns: restored?.saturating_sub(interrupted),
        end_ns: ended.saturating_sub(interrupted),
        tool,
    })
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn print(runs: &[Run]) {
    let mut table = Table::new(&[
        "tool",
        "functions",
        "start to last probe, ms",
        "Ctrl-C to code restored, ms",
        "Ctrl-C to its end, ms",
        "tool CPU ms",
    ]);
    for run in runs {
        table.row(vec![
            run.tracer.to_owned(),
            run.functions.to_string(),
            ms(run.attach_ns as f64),
            ms(run.restore_ns as f64),
            ms(run.end_ns as f64),
            ms(run.tool.cpu_ns as f64),
        ]);
    }
    let of = |functions: usize| {
        let name = Tracer::Count.name();
        runs.iter()
            .find(|run| run.tracer == name && run.functions == functions)
    };
    if let (Some(one), Some(some)) = (of(1), of(500)) {
        let to = |value: fn(&Run) -> u64| {
            let each = (value(some) as f64 - value(one) as f64) / 499.0;
            ms(value(one) as f64 + each * 9_999.0)
        };
        table.row(vec![
            format!("{}, extrapolated", Tracer::Count.name()),
            "10000".to_owned(),
            to(|run| run.attach_ns),
            to(|run| run.restore_ns),
            to(|run| run.end_ns),
            to(|run| run.tool.cpu_ns),
        ]);
    }
    table.print("Attaching and detaching");
}
