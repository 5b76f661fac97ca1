//! Go programs: their stacks, and the names of their functions.
//!
//! Needs Go: the `go` that `PROFILER_GO` names, or that in PATH. The judges are the processor, which
//! executes one instruction after the other, and what Go itself says.
//! `PROGRAMS=a:b cargo test -p profiler-tests --test unwinding runtimes_go::stepped -- --ignored --nocapture`
//! steps through others.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod stepped;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::{Object, ObjectSymbol, SymbolKind};
use profiler_common::MAX_FRAMES;
use profiler_common::sample::{END_COMPLETE, END_LEFT_OUT, END_TRUNCATED, LEFT_OUT};
use profiler_model::StackEnd;
use profiler_resolve::{GoFrame, GoNames};
use profiler_tests::Outcome;
use profiler_tests::recording::{Frame, Recording, Sample};
use profiler_tests::setting::Setting;
use profiler_tests::skip::{long, skip};
use profiler_tests::workload::{self, Unbuilt};
use stepped::{Stepped, Stop};

/// Functions that put another stack in the place of theirs, or in that of a signal's, or let go of the goroutine that they
/// work for.
const JUMPS: [&str; 12] = [
    "runtime.doSigPreempt",
    "runtime.gogo",
    "runtime.goschedImpl",
    "gogo",
    "runtime.mcall",
    "runtime.morestack",
    "runtime.clone",
    "runtime.rt0_go",
    "runtime.cgocallback",
    "runtime.goexit",
    "runtime.asyncPreempt",
    "runtime.mstart",
];

/// Functions that are there twice, on both stacks, while they work on the thread's own.
const SWITCHES: [&str; 5] = [
    "runtime.systemstack",
    "runtime.systemstack_switch",
    "gosave_systemstack_switch",
    "runtime.asmcgocall",
    "runtime.asmcgocall_landingpad",
];

/// Most steps for one that is checked.
const MOST_STEPS: u64 = 4;
/// How long the stepped program would run, far longer than it is stepped: it is killed then.
const SECONDS: &str = "1000";

#[derive(Debug, Default)]
struct Steps {
    all: u64,
    calls: u64,
    returns: u64,
    unchecked: u64,
    wrong: BTreeMap<String, u64>,
}

fn plain(name: &str) -> &str {
    name.strip_suffix(".abi0").unwrap_or(name)
}

impl Steps {
    fn checked(&self) -> u64 {
        self.all - self.unchecked
    }

    /// Steps on until `count` instructions were checked. Of what a busy machine makes the runtime do, which
    /// preempts a stepped goroutine again and again, some can't be.
    fn take(&mut self, stepped: &mut Stepped, count: u64) -> bool {
        let enough = self.checked() + count;
        let most = self.all + MOST_STEPS * count;
        let mut before = stepped.stop();
        let mut signal = 0;
        while self.checked() < enough && self.all < most {
            let Some(next) = stepped.step(signal) else {
                return false;
            };
            let after = stepped.stop();
            self.all += 1;
            // A signal that comes now is delivered by the next step, which is in its handler then.
            if signal == 0 && next == 0 {
                self.check(stepped, &before, &after);
            }
            signal = if next == libc::SIGSTOP { 0 } else { next };
            before = after;
        }
        true
    }

    fn check(&mut self, stepped: &Stepped, before: &Stop, after: &Stop) {
        let (old, new) = (
            plain(stepped.name(before.pc)),
            plain(stepped.name(after.pc)),
        );
        // The dynamic linker has no table here.
        if JUMPS.contains(&old)
            || JUMPS.contains(&new)
            || !stepped.is_known(before.pc)
            || !stepped.is_known(after.pc)
        {
            self.unchecked += 1;
            return;
        }
        let is_call = after.sp == before.sp.wrapping_sub(8)
            && (before.pc + 2..before.pc + 8).contains(&after.top);
        let is_return = after.sp == before.sp + 8 && before.top == after.pc;
        // Most instructions neither call nor return: then no name is needed to compare all callers.
        if !is_call
            && !is_return
            && !old.starts_with("runtime.sigreturn")
            && [before.end, after.end] == [END_COMPLETE; 2]
            && before.callers == after.callers
        {
            return;
        }
        let without = |callers: &[u64]| -> Vec<u64> {
            let kept = callers.iter().copied();
            kept.filter(|address| !SWITCHES.contains(&plain(stepped.name(*address))))
                .collect()
        };
        let (mut expected, mut found) = (without(&before.callers), without(&after.callers));
        let mut astray = false;
        let mut returns = |expected: &mut Vec<u64>| {
            astray = expected.first() != Some(&after.pc);
            if !astray {
                expected.remove(0);
            }
        };
        if old.starts_with("runtime.sigreturn") && new != old {
            // Back in what was interrupted, which is its only caller.
            if !SWITCHES.contains(&new) {
                returns(&mut expected);
            }
        } else if is_call {
            self.calls += 1;
            if !SWITCHES.contains(&old) {
                expected.insert(0, after.top);
            }
        } else if is_return {
            self.returns += 1;
            if !SWITCHES.contains(&new) && !expected.is_empty() {
                returns(&mut expected);
            }
        }
        // What a preemption has interrupted was not called: it counts up to there.
        let cut = |callers: &mut Vec<u64>| {
            let is_preempted = |at: &u64| plain(stepped.name(*at)) == "runtime.asyncPreempt";
            let place = callers.iter().position(is_preempted);
            callers.truncate(place.map_or(callers.len(), |place| place + 1));
            place.is_some()
        };
        let is_cut = [cut(&mut expected), cut(&mut found)] == [true, true];
        // Deeper than a stack can be: what a call adds, the other end loses, and a return brings back.
        let is_deep = [before.end, after.end].contains(&END_TRUNCATED);
        let whole = match after.end {
            _ if is_cut => expected == found,
            END_COMPLETE | END_TRUNCATED if is_deep => expected
                .iter()
                .zip(&found)
                .all(|(expected, found)| expected == found),
            // Of both ends the inner one, which a call makes longer and a return shorter.
            END_COMPLETE | END_LEFT_OUT if [before.end, after.end].contains(&END_LEFT_OUT) => {
                let inner = |callers: &[u64]| {
                    let place = callers.iter().position(|caller| *caller == LEFT_OUT);
                    place.unwrap_or(callers.len())
                };
                let both = inner(&expected).min(inner(&found));
                both > MAX_FRAMES && expected[..both] == found[..both]
            }
            END_COMPLETE => expected == found,
            _ => false,
        };
        if astray || !whole {
            let start = stepped.symbol_start(after.pc);
            let what = format!(
                "{old} -> {new}+{:#x} ended by {}",
                after.pc - start,
                after.end
            );
            if self.wrong.len() < 40
                && !self.wrong.contains_key(&what)
                && std::env::var_os("VERBOSE").is_some()
            {
                let names = |callers: &[u64]| -> Vec<String> {
                    callers
                        .iter()
                        .map(|at| format!("{}@{at:x}", stepped.name(*at)))
                        .collect()
                };
                eprintln!(
                    "{what}\n  expected {:?}\n  found    {:?}",
                    names(&expected),
                    names(&found)
                );
            }
            *self.wrong.entry(what).or_insert(0) += 1;
        }
    }
}

/// Steps through a program, `count` instructions that are checked, and on until it has called something so often: where
/// steps begin may be far from any call.
fn step_through(program: &Path, arguments: &[&str], count: u64, calls: u64) -> Steps {
    let mut stepped = Stepped::start(program, arguments);
    let mut steps = Steps::default();
    // Once from the beginning, then here and there.
    let mut going = steps.take(&mut stepped, count / 4);
    for stretch in 0..300 {
        if stretch >= 15 && steps.calls >= calls {
            break;
        }
        if stepped.is_asleep() {
            stepped = Stepped::start(program, arguments);
            going = true;
        }
        going = going && stepped.run(0.02) && steps.take(&mut stepped, count / 20);
    }
    steps
}

/// A workload, built with these flags for the linker.
fn built(test: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let input = workload::source_path(&format!("{source}/main.go"));
    let name = format!("{source}{}", flags.concat().replace([' ', '='], ""));
    let made = workload::made(&name, std::slice::from_ref(&input), |output| {
        let mut command = workload::go();
        command
            .env("GO111MODULE", "off")
            .args(["build", "-o"])
            .arg(output)
            .args(flags)
            .arg(&input);
        ("go", command)
    });
    match made {
        Ok(made) => Some(made),
        Err(missing @ Unbuilt::NoCompiler(_)) => {
            skip(test, &missing.to_string());
            None
        }
        Err(failed) => panic!("{failed}"),
    }
}

#[test]
fn each_instruction_keeps_the_stack() {
    const CALLS: u64 = 31;
    let test = "each_instruction_keeps_the_stack";
    for flags in [&[][..], &["-buildmode=pie"]] {
        let Some(program) = built(test, "go_stacks", flags) else {
            return;
        };
        for phase in ["system", "grow", "syscall", "deep"] {
            let count = if long() { 15_000 } else { 3_000 };
            let steps = step_through(&program, &[SECONDS, phase], count, CALLS);
            assert!(steps.wrong.is_empty(), "{flags:?} {phase}: {steps:#?}");
            let enough = steps.checked() * 3 > count * 2 && steps.calls >= CALLS;
            assert!(enough, "{flags:?} {phase}: {steps:#?}");
        }
    }
}

#[test]
#[ignore = "for programs of one's own"]
fn stepped_others() {
    for program in std::env::var("PROGRAMS").unwrap().split(':') {
        let count = std::env::var("STEPS").map_or(100_000, |steps| steps.parse().unwrap());
        let phase = std::env::var("PHASE").unwrap_or_default();
        let mut arguments = vec![SECONDS];
        arguments.extend((!phase.is_empty()).then_some(&*phase));
        let steps = step_through(Path::new(program), &arguments, count, 0);
        println!("{program}: {steps:#?}");
    }
}

/// Functions and lines at addresses of a program, innermost first, as `llvm-addr2line` reads them from
/// debug information.
fn by_debug_information(program: &Path, addresses: &[u64]) -> Vec<Vec<(String, String)>> {
    let mut child = Command::new("llvm-addr2line")
        .args(["-f", "-i", "-a", "-e"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text: String = addresses
        .iter()
        .map(|address| format!("{address:#x}\n"))
        .collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut found: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            found.push(Vec::new());
        } else {
            // Linkers mark what Go itself does not: a calling convention, and files that there are not.
            let place = lines.next().unwrap().split(" (").next().unwrap();
            let place = place.trim_start_matches("./").to_owned();
            found
                .last_mut()
                .unwrap()
                .push((plain(line).to_owned(), place));
        }
    }
    found
}

/// Names and lines from the runtime's own table are those of debug information, also where the program has
/// none.
fn names_agree(program: &Path, stripped: &Path, at_least: f64) {
    let bytes = std::fs::read(program).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let functions = elf.symbols().filter(|symbol| {
        let name = symbol.name().unwrap_or_default();
        symbol.kind() == SymbolKind::Text && symbol.size() > 0 && name.contains('.')
    });
    let addresses: Vec<u64> = functions
        .flat_map(|symbol| {
            let (start, size) = (symbol.address(), symbol.size());
            [0, size / 3, size / 2, size - 1].map(|offset| start + offset)
        })
        .collect();
    let names = GoNames::open(&File::open(stripped).unwrap()).unwrap();
    let judged = by_debug_information(program, &addresses);
    assert_eq!(judged.len(), addresses.len());
    let (mut same, mut inlined, mut all) = (0, 0, 0);
    for (address, expected) in addresses.iter().zip(&judged) {
        if expected
            .iter()
            .any(|(name, place)| name == "??" || place.starts_with("??"))
        {
            continue;
        }
        all += 1;
        let found = names.find(*address, true);
        let found: Vec<(String, String)> = found.map_or_else(Vec::new, |place| {
            let frames = place.frames.into_iter();
            let line = |frame: GoFrame| {
                let file = frame.file.unwrap_or_default();
                (frame.name, format!("{file}:{}", frame.line))
            };
            frames.map(line).collect()
        });
        inlined += u32::from(expected.len() > 1);
        if found == *expected {
            same += 1;
        } else if std::env::var_os("VERBOSE").is_some() {
            eprintln!("{address:x}\n  expected {expected:?}\n  found    {found:?}");
        }
    }
    let share = f64::from(same) / f64::from(all);
    println!(
        "{}: {same} of {all} are the same, {inlined} inlined",
        stripped.display()
    );
    assert!(all > 1000 && inlined > 100, "{all} {inlined}");
    assert!(share >= at_least, "{same} of {all}");
}

#[test]
fn names_and_lines_are_those_of_debug_information() {
    let test = "names_and_lines_are_those_of_debug_information";
    let (Some(plain), Some(stripped)) = (
        built(test, "go_stacks", &[]),
        built(test, "go_stacks", &["-ldflags", "-s -w"]),
    ) else {
        return;
    };
    names_agree(&plain, &plain, 0.99);
    names_agree(&plain, &stripped, 0.99);
}

/// Go's table has the names of functions for who looks for one, too.
#[test]
fn functions_of_stripped_programs_are_found() -> Outcome {
    let test = "runtimes_go::functions_of_stripped_programs_are_found";
    let (Some(setting), Some(plain), Some(stripped)) = (
        Setting::new(test)?,
        built(test, "go_stacks", &[]),
        built(test, "go_stacks", &["-ldflags", "-s -w"]),
    ) else {
        return Ok(());
    };
    let functions = |program: &Path| -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let program = program.to_string_lossy();
        let listed = setting.run(&[
            "list",
            "functions",
            "--object",
            &program,
            "main.*",
            "--json",
        ])?;
        let listed = listed.success()?.json()?;
        let rows = listed["functions"].as_array().ok_or("no list")?.iter();
        Ok(rows
            .filter_map(|row| row["name"].as_str().map(str::to_owned))
            .collect())
    };
    let (whole, stripped_ones) = (functions(&plain)?, functions(&stripped)?);
    assert!(whole.len() > 10 && whole.contains(&"main.recurse".to_owned()));
    assert_eq!(whole, stripped_ones);
    let program = stripped.to_string_lossy();
    setting.record(&[
        "--trace",
        "main.recurse",
        "--no-samples",
        "--",
        &program,
        "0.1",
        "deep",
    ])?;
    let report = setting.run(&["report", "out.cap", "--calls", "--format", "json"])?;
    let report = report.success()?.json()?;
    let rows = report["calls"]["functions"].as_array().ok_or("no calls")?;
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["main.recurse"]);
    assert!(rows[0]["calls"].as_u64() > Some(10), "{rows:?}");
    Ok(())
}

#[test]
#[ignore = "for programs of one's own"]
fn names_of_others() {
    let programs = std::env::var("PROGRAMS").unwrap();
    for pair in programs.split(':').collect::<Vec<_>>().chunks(2) {
        names_agree(Path::new(pair[0]), Path::new(pair[1]), 0.0);
    }
}

/// Records a workload; the samples of its process.
fn recorded(setting: &Setting, program: &Path, arguments: &[&str]) -> Recording {
    let program = program.to_str().unwrap();
    let mut all = vec!["-F", "999", "--", program];
    all.extend(arguments);
    setting.record(&all).unwrap().1
}

/// At least 95 of 100 samples in `expected[0]` have just these callers, and are complete. Those from before the
/// table was loaded don't count: they say so, and carry no more than 16 KiB of the stack.
fn exact(recording: &Recording, what: &str, expected: &[&str]) {
    let in_leaf = recording.samples.iter().filter(|sample| {
        let leaf = sample.user.first();
        leaf.is_some_and(|frame| frame.name == expected[0])
    });
    let (early, samples): (Vec<&Sample>, Vec<&Sample>) =
        in_leaf.partition(|sample| sample.user_end == StackEnd::NoTable);
    let is_right =
        |sample: &&&Sample| sample.chain() == expected && sample.user_end == StackEnd::Complete;
    let right = samples.iter().filter(is_right).count();
    let (all, early) = (samples.len(), early.len());
    println!("{what}: {right} of {all} stacks are exact, {early} came early");
    assert!(
        all >= 50 && early * 5 < all,
        "{what}: {all} samples, {early} early"
    );
    if right * 100 < all * 95 {
        let mut wrong: BTreeMap<String, u32> = BTreeMap::new();
        for sample in samples.iter().filter(|sample| !is_right(sample)) {
            let key = format!("{:?} {:?}", sample.user_end, sample.chain());
            *wrong.entry(key).or_default() += 1;
        }
        panic!("{what}: {right} of {all} are exact; not: {wrong:#?}");
    }
}

#[test]
fn goroutines_have_whole_stacks() {
    let test = "goroutines_have_whole_stacks";
    let Some(setting) = Setting::new(test).unwrap() else {
        return;
    };
    for flags in [&[][..], &["-ldflags", "-s -w"], &["-buildmode=pie"]] {
        let Some(program) = built(test, "go_stacks", flags) else {
            return;
        };
        let what = |phase: &str| format!("{phase} {}", flags.concat());
        let spin = recorded(&setting, &program, &["1", "spin"]);
        exact(
            &spin,
            &what("spin"),
            &[
                "main.leaf",
                "main.middle",
                "main.outer",
                "main.main.func1.gowrap1",
                "runtime.goexit",
            ],
        );
        let deep = recorded(&setting, &program, &["1", "deep"]);
        let mut expected = vec!["main.leaf"];
        expected.extend(["main.recurse"; 61]);
        expected.extend([
            "main.main.func2",
            "main.main",
            "runtime.main",
            "runtime.goexit",
        ]);
        exact(&deep, &what("deep"), &expected);
        let inlined = recorded(&setting, &program, &["1", "inline"]);
        exact(
            &inlined,
            &what("inline"),
            &[
                "main.inlined",
                "main.main",
                "runtime.main",
                "runtime.goexit",
            ],
        );
        let small = inlined.samples.iter().filter(|sample| {
            let leaf = sample.user.first();
            leaf.is_some_and(|frame| frame.inlined == ["main.small", "main.twice"])
        });
        assert!(
            small.count() > 50,
            "{}",
            what("inlined functions are named")
        );
        let calls = recorded(&setting, &program, &["1", "syscall"]);
        exact(
            &calls,
            &what("syscall"),
            &[
                "syscall.rawSyscallNoError",
                "main.calls",
                "main.main",
                "runtime.main",
                "runtime.goexit",
            ],
        );
    }
}

/// Stacks that grow: the work on the thread's own stack is done for a function that called.
#[test]
fn growing_stacks_are_seen_through() {
    let test = "growing_stacks_are_seen_through";
    let Some(setting) = Setting::new(test).unwrap() else {
        return;
    };
    let Some(program) = built(test, "go_stacks", &["-ldflags", "-s -w"]) else {
        return;
    };
    let recording = recorded(&setting, &program, &["2", "grow"]);
    let growing: Vec<&Sample> = recording
        .samples
        .iter()
        .filter(|sample| sample.calls("runtime.copystack"))
        .collect();
    let is_grow = |frame: &Frame| frame.name == "main.grow";
    let through = growing.iter().filter(|sample| {
        let below = sample
            .user
            .iter()
            .skip_while(|frame| frame.name != "runtime.newstack");
        below.skip(1).filter(|frame| is_grow(frame)).count() > 1
    });
    let through = through.count();
    println!("{through} of {} stacks go through", growing.len());
    assert!(
        growing.len() > 20 && through * 100 >= growing.len() * 95,
        "{through}"
    );
}

/// C that Go calls, and Go that it calls back.
#[test]
fn stacks_lead_through_c() {
    let test = "stacks_lead_through_c";
    let Some(setting) = Setting::new(test).unwrap() else {
        return;
    };
    for flags in [&[][..], &["-buildmode=pie"]] {
        let Some(program) = built(test, "go_cgo", flags) else {
            return;
        };
        let outer = [
            "main._Cfunc_c_outer",
            "main.callC",
            "main.main",
            "runtime.main",
            "runtime.goexit",
        ];
        for (way, leaf) in [("down", "c_leaf"), ("back", "main.goLeaf")] {
            let recording = recorded(&setting, &program, &["2", way]);
            let samples = recording
                .samples
                .iter()
                .filter(|sample| sample.leaf() == leaf);
            let samples: Vec<&Sample> = samples.collect();
            let right = samples
                .iter()
                .filter(|sample| sample.chain().ends_with(&outer))
                .count();
            println!(
                "{way} {flags:?}: {right} of {} stacks are whole",
                samples.len()
            );
            assert!(
                samples.len() > 50 && right * 100 >= samples.len() * 95,
                "{way}: {right}"
            );
        }
    }
}
