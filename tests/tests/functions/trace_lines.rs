//! Lines of functions and exits, with addr2line and llvm-symbolizer as the judges: C, C++ and Rust,
//! plain and optimised, and this very program.
//!
//! `cargo test --release -p profiler-tests --test functions trace_lines:: -- --ignored --nocapture` prints what
//! finding lines adds to planning; `OBJECTS=a:b:c` names the objects.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use profiler_object::Object;
use profiler_tests::skip::skip;
use profiler_tests::workload::{made, source_path};
use profiler_trace::place::{Costs, PlaceOptions, Placer, ProbeAt, Returns};
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{Exits, InstructionKind, Plan, lines};

struct Free;

impl Costs for Free {
    fn entry_ns(&self, _: InstructionKind) -> u32 {
        0
    }

    fn return_ns(&self) -> u32 {
        1
    }
}

fn open(path: &Path) -> Object {
    let file = File::open(path).unwrap();
    Object::read(&file, None, &path.display().to_string()).unwrap()
}

/// Most functions that are looked at: they have more places than are judged.
const MOST: usize = 8_000;

/// The functions of an object, to be watched by their exit instructions; of very many some all over it.
fn plans(object: &Object) -> Vec<Plan> {
    let safety = ProcessSafety::unknown();
    let options = PlaceOptions {
        at: ProbeAt::Entry,
        returns: Returns::Instructions,
        costs: &Free,
    };
    let mut placer = Placer::new(object, options, &safety);
    let functions = object.functions();
    let step = functions.len().div_ceil(MOST).max(1);
    functions
        .iter()
        .step_by(step)
        .filter_map(|function| placer.plan(function).ok())
        .collect()
}

/// Addresses of functions and their exits, with the lines that we found.
fn found(object: &Object, plans: &[Plan]) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    for plan in plans {
        found.push((plan.function.address, plan.line));
        if let Exits::Instructions(sites) = &plan.exits {
            let sites = sites.iter();
            found.extend(sites.map(|site| (object.address_of(site.offset).unwrap(), site.line)));
        }
    }
    found
}

/// What a tool says of addresses; none if it is not installed.
fn judged(command: &mut Command, addresses: &[(u64, u32)]) -> Option<Vec<u32>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take().unwrap();
    let text: String = addresses
        .iter()
        .map(|(address, _)| format!("{address:#x}\n"))
        .collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    let line_of = |text: &str| {
        // file:12, file:12 (discriminator 3), file:?, ??:0
        let text = text.split(" (").next().unwrap_or_default();
        let (_, line) = text.rsplit_once(':').expect(text);
        line.parse().unwrap_or(0)
    };
    Some(lines.map(line_of).collect())
}

fn check(test: &str, path: &Path, least: usize) {
    let object = open(path);
    let mut plans = plans(&object);
    lines::of_plans(&object, &mut plans);
    let mut found = found(&object, &plans);
    let known = found.iter().filter(|(_, line)| *line != 0).count();
    assert!(known >= least, "{known} lines of {path:?}");
    // Thousands are enough, and the judges are slow.
    let step = found.len().div_ceil(20_000);
    found = found.into_iter().step_by(step).collect();
    let mut addr2line = Command::new("addr2line");
    addr2line.arg("-e").arg(path);
    let mut llvm = Command::new("llvm-symbolizer");
    llvm.args([
        "--functions=none",
        "--no-inlines",
        "--output-style=GNU",
        "-e",
    ]);
    llvm.arg(path);
    let mut judges = 0;
    for (name, mut command) in [("addr2line", addr2line), ("llvm-symbolizer", llvm)] {
        let Some(lines) = judged(&mut command, &found) else {
            skip(test, &format!("{name} is not installed"));
            continue;
        };
        judges += 1;
        assert_eq!(lines.len(), found.len(), "{name} on {path:?}");
        let differ: Vec<String> = found
            .iter()
            .zip(&lines)
            .filter(|((_, ours), its)| ours != *its)
            .map(|((address, ours), its)| format!("{address:x}: {ours}, not {its}"))
            .collect();
        println!(
            "{}: {} functions, {} of {} lines judged by {name}: {} differ",
            path.display(),
            plans.len(),
            lines.len(),
            known,
            differ.len()
        );
        assert!(
            differ.is_empty(),
            "{} differ: {:?}",
            differ.len(),
            &differ[..differ.len().min(10)]
        );
    }
    assert!(judges > 0, "no judge is installed");
}

/// A workload, built plainly and optimised.
fn built(source: &str, level: &str) -> PathBuf {
    let input = source_path(source);
    let name = format!("lines_{}_{level}", source.replace('.', "_"));
    let inputs = [
        input.clone(),
        source_path("trace.h"),
        source_path("trace_kinds.h"),
    ];
    let made = made(&name, &inputs, |fresh| {
        let compiler = match source.rsplit_once('.').unwrap().1 {
            "cpp" => "c++",
            "rs" => "rustc",
            _ => "cc",
        };
        let mut command = Command::new(compiler);
        match compiler {
            "rustc" => command.args(["--edition", "2024", "-g", "-C"]),
            _ => command.args(["-g", "-pthread", "-ldl"]),
        };
        match (compiler, level) {
            ("rustc", "O0") => command.arg("opt-level=0"),
            ("rustc", _) => command.arg("opt-level=2"),
            _ => command.arg(format!("-{level}")),
        };
        command.arg("-o").arg(fresh).arg(&input);
        (compiler, command)
    });
    made.unwrap()
}

#[test]
fn lines_of_c_are_those_of_the_judges() {
    for source in ["trace_calls.c", "arguments.c", "chain.c"] {
        for level in ["O0", "O2"] {
            check("lines_of_c", &built(source, level), 20);
        }
    }
}

#[test]
fn lines_of_cxx_are_those_of_the_judges() {
    for source in ["trace_throw.cpp", "arguments.cpp", "chain.cpp"] {
        for level in ["O0", "O2"] {
            check("lines_of_cxx", &built(source, level), 20);
        }
    }
}

#[test]
fn lines_of_rust_are_those_of_the_judges() {
    for source in ["trace_panic.rs", "arguments.rs", "chain.rs"] {
        for level in ["O0", "O2"] {
            check("lines_of_rust", &built(source, level), 20);
        }
    }
}

#[test]
fn lines_of_this_program_are_those_of_the_judges() {
    let own = std::env::current_exe().unwrap();
    check("lines_of_this_program", &own, 1000);
}

#[test]
#[ignore = "a measurement, to be run optimised and alone"]
fn cost_of_lines() {
    let list = std::env::var("OBJECTS").unwrap_or("/lib/x86_64-linux-gnu/libc.so.6".into());
    for path in list.split(':') {
        let path = Path::new(path);
        let began = Instant::now();
        let object = open(path);
        let read = began.elapsed();
        let began = Instant::now();
        let mut plans = plans(&object);
        let planned = began.elapsed();
        let began = Instant::now();
        lines::of_plans(&object, &mut plans);
        let all = began.elapsed();
        let mut one = plans.split_off(plans.len() / 2);
        one.truncate(1);
        let began = Instant::now();
        lines::of_plans(&object, &mut one);
        println!(
            "{}: read {read:?}, {} functions planned {planned:?}, lines of all {all:?}, of one {:?}",
            path.display(),
            plans.len() * 2,
            began.elapsed()
        );
    }
}
