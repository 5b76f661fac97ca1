//! Whole user stacks of programs without frame pointers, from their first sample on.
//!
//! Oracle: the chain of calls that the workload is known to have, leaf to root, exactly. Every sample
//! that has the innermost function as its leaf counts, whatever the share of its time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_model::StackEnd;
use profiler_tests::Outcome;
use profiler_tests::containers::{Docker, PROGRAM, Root};
use profiler_tests::process::Running;
use profiler_tests::recording::{Recording, Sample};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::statistics::at_least;
use profiler_tests::workload::{made, source_path};
use rustix::process::{Pid, Signal, kill_process};

/// Samples a second: a tenth of a second has 100.
const RATE: &str = "997";
/// The beginning of a process.
const BEGINNING_NS: u64 = 100_000_000;
/// Most frames between `main` and where a process begins, which are the C library's.
const MOST_START_FRAMES: usize = 4;

/// A compiler's flags, and what the program is called that they make.
struct Build {
    name: &'static str,
    flags: &'static [&'static str],
}

const BUILDS: &[Build] = &[
    Build {
        name: "unwind_o0",
        flags: &["-O0"],
    },
    Build {
        name: "unwind_o1",
        flags: &["-O1"],
    },
    Build {
        name: "unwind_o2",
        flags: &["-O2"],
    },
    Build {
        name: "unwind_o3",
        flags: &["-O3"],
    },
    Build {
        name: "unwind_no_pie",
        flags: &["-O2", "-no-pie"],
    },
    Build {
        name: "unwind_static",
        flags: &["-O2", "-static"],
    },
    Build {
        name: "unwind_static_pie",
        flags: &["-O2", "-static-pie"],
    },
];

fn program(
    name: &str,
    flags: &[&str],
    source: &str,
) -> Result<PathBuf, profiler_tests::workload::Unbuilt> {
    let input = source_path(source);
    made(name, std::slice::from_ref(&input), |fresh| {
        let mut command = Command::new("cc");
        command.args(flags).args([
            "-fomit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-Wall",
            "-Wextra",
            "-Werror",
            // dlopen in a static program warns.
            "-Wl,--no-warnings",
        ]);
        command.arg("-o").arg(fresh).arg(&input);
        command.args(["-lpthread", "-ldl"]);
        ("cc", command)
    })
}

fn setting(test: &str) -> std::io::Result<Option<(Setting, String)>> {
    let Some(setting) = Setting::new(&format!("e2e_unwinding::{test}"))? else {
        return Ok(None);
    };
    let built = program("unwind_o2", &["-O2"], "unwind_chain.c").map_err(std::io::Error::other)?;
    let path = copied(&setting, &built)?;
    Ok(Some((setting, path)))
}

fn copied(setting: &Setting, built: &Path) -> std::io::Result<String> {
    let name = built.file_name().unwrap_or_default();
    let copy = setting.folder().join(name);
    std::fs::copy(built, &copy)?;
    Ok(copy.to_string_lossy().into_owned())
}

/// `work` and all that called it, up to the function that is called in `root`.
fn chain(root: &[&str]) -> Vec<String> {
    let links = (1..=12).rev().map(|number| format!("link_{number}"));
    let mut chain = vec!["work".to_owned()];
    chain.extend(links);
    chain.push("run".to_owned());
    chain.extend(root.iter().map(|name| (*name).to_owned()));
    chain
}

/// Whether a stack is this chain, then a few frames of the C library, then nothing.
fn is_whole(sample: &Sample, chain: &[String]) -> bool {
    let (names, depth) = (sample.chain(), chain.len());
    names.len() > depth
        && names.len() <= depth + MOST_START_FRAMES
        && names.iter().zip(chain).all(|(name, known)| name == known)
        && sample.user_end == StackEnd::Complete
}

/// Checks that samples in `leaf` have this chain: 99 % of all, and of those of the beginning.
fn whole(samples: &[&Sample], chain: &[String]) -> Result<(), String> {
    let leaf = &chain[0];
    let at_work: Vec<&&Sample> = samples
        .iter()
        .filter(|sample| sample.leaf() == leaf)
        .collect();
    let first = at_work.iter().map(|sample| sample.at_ns).min().unwrap_or(0);
    let wrong = at_work.iter().find(|sample| !is_whole(sample, chain));
    let wrong = wrong.map(|sample| (sample.chain(), sample.user_end));
    for (what, until) in [("all", u64::MAX), ("the beginning", first + BEGINNING_NS)] {
        let part = at_work.iter().filter(|sample| sample.at_ns < until);
        let good = part
            .clone()
            .filter(|sample| is_whole(sample, chain))
            .count();
        at_least(what, good, part.count(), 0.99).map_err(|why| format!("{why}: {wrong:?}"))?;
    }
    Ok(())
}

#[test]
fn every_optimisation_level_and_kind_of_program() -> Outcome {
    let Some((setting, _)) = setting("every_optimisation_level_and_kind_of_program")? else {
        return Ok(());
    };
    for build in BUILDS {
        let built = program(build.name, build.flags, "unwind_chain.c")?;
        let path = copied(&setting, &built)?;
        let (_, recording) = setting.record(&["-F", RATE, "--", &path, "plain", "400"])?;
        let samples: Vec<&Sample> = recording.samples.iter().collect();
        whole(&samples, &chain(&["main"])).map_err(|why| format!("{}: {why}", build.name))?;
    }
    Ok(())
}

/// Stacks that have come to the outermost function there is are complete, whether the file says so or not: musl's
/// start code does not, nor does what contexts of glibc return to.
#[test]
fn outermost_functions_that_say_nothing() -> Outcome {
    let Some((setting, _)) = setting("outermost_functions_that_say_nothing")? else {
        return Ok(());
    };
    let input = source_path("outermost.c");
    let musl = ["-DNO_CONTEXT"];
    let builds: [(&str, &'static str, &[&str], &str, &str); 4] = [
        ("outermost_context", "cc", &[], "context", "entry"),
        ("outermost_static", "cc", &["-static"], "context", "entry"),
        ("outermost_musl", "musl-gcc", &musl, "main", "main"),
        (
            "outermost_musl_static",
            "musl-gcc",
            &["-DNO_CONTEXT", "-static"],
            "main",
            "main",
        ),
    ];
    for (name, compiler, flags, how, root) in builds {
        let built = made(name, std::slice::from_ref(&input), |fresh| {
            let mut command = Command::new(compiler);
            command.args(["-O2", "-fno-optimize-sibling-calls", "-Wall", "-Werror"]);
            command.args(flags).arg("-o").arg(fresh).arg(&input);
            (compiler, command)
        })?;
        let path = copied(&setting, &built)?;
        let (_, recording) = setting.record(&["-F", RATE, "--", &path, how, "300"])?;
        let at_work = recording.samples.iter().filter(|s| s.leaf() == "burn");
        let is_whole = |sample: &&Sample| {
            let chain = sample.chain();
            chain.starts_with(&["burn", "work", root]) && sample.user_end == StackEnd::Complete
        };
        let good = at_work.clone().filter(is_whole).count();
        let wrong = at_work.clone().find(|sample| !is_whole(sample));
        let wrong = wrong.map(|sample| (sample.chain(), sample.user_end));
        at_least(name, good, at_work.count(), 0.99).map_err(|why| format!("{why}: {wrong:?}"))?;
    }
    Ok(())
}

/// The page of system calls among the kernel's addresses has names and callers, in a program that begins and in one
/// that runs.
#[test]
fn callers_of_the_page_of_system_calls() -> Outcome {
    let name = "callers_of_the_page_of_system_calls";
    let Some((setting, _)) = setting(name)? else {
        return Ok(());
    };
    if !std::fs::read_to_string("/proc/self/maps")?.contains("[vsyscall]") {
        skip(name, "programs have none here");
        return Ok(());
    }
    let program = setting.workload("vsyscall.c")?;
    let program = program.to_string_lossy();
    let (_, begins) = setting.record(&["-F", RATE, "--", &program, "1000"])?;
    let running = setting.start("vsyscall", Command::new(&*program).arg("60000"))?;
    let pid = running.pid().to_string();
    let (_, runs) = setting.record(&["--force", "-F", RATE, "-p", &pid, "-d", "1"])?;
    for (recording, kind) in [(begins, "begins"), (runs, "runs")] {
        for (function, caller) in [("gettimeofday", "asks_day"), ("time", "asks_time")] {
            // The kernel returns in place of the program, and changes its registers one after the other.
            let is_between = |sample: &Sample| {
                let leaf = sample.kernel.first();
                leaf.is_some_and(|frame| frame.name == "emulate_vsyscall")
            };
            let all = recording.samples.iter();
            let there = all.filter(|s| s.leaf() == function && !is_between(s));
            let is_whole = |sample: &&Sample| {
                sample.chain().starts_with(&[function, caller, "main"])
                    && sample.user_end == StackEnd::Complete
            };
            let good = there.clone().filter(is_whole).count();
            let what = format!("{function} in a program that {kind}");
            at_least(&what, good, there.count(), 0.99)?;
            assert!(good > 20, "{what}: {good}");
        }
    }
    Ok(())
}

/// Tables of what others than root can change are built by a process without privileges, which a file of 64 MB of
/// unwind information keeps busy here.
#[test]
fn programs_of_others() -> Outcome {
    let Some((setting, path)) = setting("programs_of_others")? else {
        return Ok(());
    };
    const NOBODY: u32 = 65534;
    std::os::unix::fs::chown(&path, Some(NOBODY), None)?;
    let long = setting.path("long.so");
    std::fs::write(&long, long_table(64 << 20))?;
    std::os::unix::fs::chown(&long, Some(NOBODY - 1), None)?;
    let mapping = setting.workload("map_file.c")?;
    let both = format!(
        "{} 600 {} & {path} plain 600; wait",
        mapping.display(),
        long.display()
    );
    let (_, recording) = setting.record(&["-F", RATE, "--", "sh", "-c", &both])?;
    let samples = recording.of_process("unwind_o2");
    whole(&samples, &chain(&["main"]))?;
    Ok(())
}

/// A program of so many bytes, nearly all of them the unwind information of one function.
fn long_table(len: u32) -> Vec<u8> {
    let mut head = vec![0_u8; 64];
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    head[16..20].copy_from_slice(&[3, 0, 62, 0]);
    head[32..40].copy_from_slice(&64_u64.to_le_bytes());
    head[40..48].copy_from_slice(&120_u64.to_le_bytes());
    head[54..64].copy_from_slice(&[56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let code: Vec<u8> = words(&[1 | 5 << 32, 0, 0, 0, 1 << 40, 1 << 40, 4096]);
    let section = |name: u64, at: u64, len: u64| -> Vec<u8> {
        words(&[name | 1 << 32, 0, 0, at, len, 0, 1, 0])
    };
    let content = 120 + 3 * 64;
    let mut names = b"\0.eh_frame\0.names\0".to_vec();
    names.resize(64, 0);
    let mut frames = vec![16, 0, 0, 0, 0, 0, 0, 0];
    frames.extend([1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0]);
    frames.extend((len - 24).to_le_bytes());
    frames.extend(24_u32.to_le_bytes());
    frames.extend(0x1000_u64.to_le_bytes());
    frames.extend((1_u64 << 40).to_le_bytes());
    // Another place after each byte, and at each another frame.
    let advance = [0x41, 0x0e, 8, 0x41, 0x0e, 16];
    let rest = len as usize - frames.len();
    frames.extend(advance.iter().cycle().take(rest));
    let sections = [
        section(0, 0, 0),
        section(1, content + 64, len.into()),
        section(11, content, 64),
    ];
    [head, code, sections.concat(), names, frames].concat()
}

/// Of a stripped program names are gone, and how deep it is in itself is not.
#[test]
fn a_stripped_program() -> Outcome {
    let Some((setting, _)) = setting("a_stripped_program")? else {
        return Ok(());
    };
    let built = program("unwind_stripped", &["-O2", "-s"], "unwind_chain.c")?;
    let path = copied(&setting, &built)?;
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "plain", "400"])?;
    let own = |sample: &Sample| {
        let frames = sample.user.iter();
        frames
            .filter(|frame| frame.module.as_deref() == Some(&path))
            .count()
    };
    // `work`, its callers up to `main`, and `_start`.
    let depth = chain(&["main"]).len() + 1;
    let mut at_work: Vec<&Sample> = recording.samples.iter().collect();
    at_work.retain(|sample| own(sample) >= depth - 1);
    let good = at_work
        .iter()
        .filter(|sample| own(sample) == depth && sample.user_end == StackEnd::Complete);
    at_least(
        "stacks of a stripped program",
        good.count(),
        at_work.len(),
        0.99,
    )?;
    let all = recording.of_process("unwind_stripped");
    at_least("samples at work", at_work.len(), all.len(), 0.9)?;
    Ok(())
}

#[test]
fn threads_end_where_they_began() -> Outcome {
    let Some((setting, path)) = setting("threads_end_where_they_began")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "threads", "200", "4"])?;
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    whole(&samples, &chain(&["thread_main"]))?;
    Ok(())
}

/// Ten children of 50 ms each, that run no program of their own.
#[test]
fn forks_without_an_exec() -> Outcome {
    let Some((setting, path)) = setting("forks_without_an_exec")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "forks", "50", "10"])?;
    let mut chain = chain(&["child", "main"]);
    each_life(&recording, 10, &mut chain)
}

/// Ten children of 50 ms each, made by vfork and exec.
#[test]
fn vforks_and_execs() -> Outcome {
    let Some((setting, path)) = setting("vforks_and_execs")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "vforks", "50", "10"])?;
    each_life(&recording, 10, &mut chain(&["main"]))
}

/// Checks the first samples of each of `count` processes, too.
fn each_life(recording: &Recording, count: usize, chain: &mut [String]) -> Outcome {
    let mut pids: Vec<u32> = recording.samples.iter().map(|sample| sample.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let (mut lives, mut firsts) = (0, 0);
    for pid in pids {
        let of = recording.of_pid(pid);
        let mut at_work = of.iter().filter(|sample| sample.leaf() == "work");
        let Some(first) = at_work.next() else {
            continue;
        };
        lives += 1;
        firsts += usize::from(is_whole(first, chain));
    }
    assert_eq!(lives, count, "lives with samples at work");
    at_least("lives whose first stack is whole", firsts, lives, 0.9)?;
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    Ok(whole(&samples, chain)?)
}

/// One process, eight programs one after the other.
#[test]
fn a_chain_of_execs() -> Outcome {
    let Some((setting, path)) = setting("a_chain_of_execs")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "execs", "60", "8"])?;
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    whole(&samples, &chain(&["main"]))?;
    Ok(())
}

#[test]
fn a_library_that_comes_late() -> Outcome {
    let Some((setting, path)) = setting("a_library_that_comes_late")? else {
        return Ok(());
    };
    let library = program(
        "unwind_plugin.so",
        &["-O2", "-shared", "-fPIC"],
        "unwind_plugin.c",
    )?;
    let library = copied(&setting, &library)?;
    let words = ["-F", RATE, "--", &path, "library", "300", "1", &library];
    let (_, recording) = setting.record(&words)?;
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    whole(&samples, &chain(&["main"]))?;
    let names = ["plugin_work", "plugin_inner", "plugin_outer", "main"];
    whole(&samples, &names.map(str::to_owned))?;
    Ok(())
}

/// Libraries that take each other's place all the time: the kernel side's list of what is mapped is outdated then.
#[test]
fn libraries_that_take_turns() -> Outcome {
    let Some((setting, _)) = setting("libraries_that_take_turns")? else {
        return Ok(());
    };
    let built = program(
        "dlopen_turns",
        &["-O2", "-fomit-frame-pointer"],
        "dlopen_turns.c",
    )?;
    let path = copied(&setting, &built)?;
    let mut libraries = Vec::new();
    for (name, which) in [("first.so", "-DWHICH=1"), ("second.so", "-DWHICH=2")] {
        let flags = ["-O2", "-shared", "-fPIC", which];
        let library = program(name, &flags, "unwind_plugin.c")?;
        libraries.push(copied(&setting, &library)?);
    }
    let words = [
        "-F",
        "499",
        "--",
        &path,
        "3000",
        &libraries[0],
        &libraries[1],
    ];
    let (_, recording) = setting.record(&words)?;
    let samples = recording.samples.iter();
    let at_work: Vec<&Sample> = samples.filter(|it| it.leaf() == "plugin_work").collect();
    let chain = [
        "plugin_work",
        "plugin_inner",
        "plugin_outer",
        "turn",
        "main",
    ];
    let chain = chain.map(str::to_owned);
    let whole = at_work.iter().filter(|sample| is_whole(sample, &chain));
    assert!(at_work.len() > 50, "{}", at_work.len());
    // When it is the first time, nobody knows that it will happen again.
    at_least("stacks", whole.count(), at_work.len(), 0.95)?;
    Ok(())
}

/// More mappings than are kept of a process, and as many as fit: those of the program and its libraries stay.
#[test]
fn very_many_mappings() -> Outcome {
    let Some((setting, path)) = setting("very_many_mappings")? else {
        return Ok(());
    };
    for count in ["12000", "30000"] {
        let words = ["-F", RATE, "--", &path, "maps", "300", count];
        let (_, recording) = setting.record(&words)?;
        let samples: Vec<&Sample> = recording.samples.iter().collect();
        whole(&samples, &chain(&["main"])).map_err(|why| format!("{count}: {why}"))?;
    }
    Ok(())
}

/// Attached while it runs, and as part of the whole machine.
#[test]
fn what_ran_before() -> Outcome {
    let Some((setting, path)) = setting("what_ran_before")? else {
        return Ok(());
    };
    let running = setting.start("workload", Command::new(&path).args(["plain", "8000"]))?;
    let pid = running.pid().to_string();
    for target in [&["-p", &pid][..], &["-a"][..]] {
        let words = [&["-v", "-F", RATE, "-d", "1"][..], target].concat();
        let (ended, recording) = setting.record(&words)?;
        let samples = recording.of_pid(running.pid());
        whole(&samples, &chain(&["main"]))
            .map_err(|why| format!("{target:?}: {why}\n{}", ended.stderr))?;
    }
    running.signal(rustix::process::Signal::KILL)?;
    Ok(())
}

/// Stacks from within the dynamic loader, which finds its caller by `rbx`.
#[test]
fn calls_that_are_bound_lazily() -> Outcome {
    let Some((setting, _)) = setting("calls_that_are_bound_lazily")? else {
        return Ok(());
    };
    let flags = ["-O2", "-fno-builtin", "-Wl,-z,lazy", "-Wl,-z,norelro"];
    let built = program("unwind_lazy", &flags, "unwind/lazy.c")?;
    let path = copied(&setting, &built)?;
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "1500"])?;
    let known = ["lazy_call", "lazy_loop", "main"].map(str::to_owned);
    let (mut good, mut inside, mut deep) = (0, 0, 0);
    let mut wrong = None;
    for sample in recording.of_process("unwind_lazy") {
        let is_loader = |module: &Option<String>| {
            let path = module.as_deref().unwrap_or_default();
            path.contains("/ld-linux") || path.contains("/ld-2.")
        };
        let loader = sample.user.iter();
        let loader = loader.take_while(|frame| is_loader(&frame.module)).count();
        // Before `main` there is the loader's own beginning.
        let is_start = sample.user.get(loader).is_none() && sample.user_end == StackEnd::Complete;
        if loader == 0 || is_start {
            continue;
        }
        inside += 1;
        deep += usize::from(loader > 2);
        let rest = &sample.chain()[loader..];
        let whole = rest.len() > known.len()
            && rest.len() <= known.len() + MOST_START_FRAMES
            && rest.iter().zip(&known).all(|(name, known)| name == known);
        if whole && sample.user_end == StackEnd::Complete {
            good += 1;
        } else {
            wrong = Some((sample.chain(), sample.user_end));
        }
    }
    at_least("stacks through the loader", good, inside, 0.99)
        .map_err(|why| format!("{why}: {wrong:?}"))?;
    let samples = recording.of_process("unwind_lazy").len();
    at_least("stacks with functions of the loader", deep, samples, 0.1)?;
    Ok(())
}

/// Stubs that lead into libraries: GNU's linker says how their callers are found, LLVM's, which Rust brings, does not.
#[test]
fn stubs_that_lead_into_libraries() -> Outcome {
    let test = "stubs_that_lead_into_libraries";
    let Some((setting, _)) = setting(test)? else {
        return Ok(());
    };
    let said = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()?;
    let sysroot = String::from_utf8(said.stdout)?;
    let linkers = Path::new(sysroot.trim()).join("lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld");
    let lld = format!("-B{}", linkers.display());
    let flags = ["-O2", "-fno-builtin", "-Wl,-z,lazy"];
    let builds = [
        ("unwind_stubs", flags.to_vec()),
        (
            "unwind_stubs_lld",
            [&flags[..], &[&lld, "-fuse-ld=lld"]].concat(),
        ),
    ];
    for (name, flags) in builds {
        if name.ends_with("lld") && !linkers.join("ld.lld").exists() {
            skip(
                &format!("e2e_unwinding::{test}"),
                "needs LLVM's linker, which rustup brings",
            );
            return Ok(());
        }
        let path = copied(&setting, &program(name, &flags, "unwind/stubs.c")?)?;
        let (_, recording) = setting.record(&["-F", RATE, "--", &path, "2000"])?;
        let samples: Vec<&Sample> = recording
            .of_process(&name[..name.len().min(15)])
            .into_iter()
            .filter(|sample| sample.leaf() == "labs@plt")
            .collect();
        // How often a sample falls on its one jump is up to the processor; each must be right.
        assert!(
            samples.len() >= 10,
            "{name}: {} samples in the stub",
            samples.len()
        );
        let known = ["labs@plt", "stub_loop", "main"].map(str::to_owned);
        for sample in samples {
            assert!(
                is_whole(sample, &known),
                "{name}: {:?}, {:?}",
                sample.chain(),
                sample.user_end
            );
        }
    }
    Ok(())
}

/// A library's `_init` and `__do_global_dtors_aux` say nothing about their frames.
#[test]
fn what_begins_and_ends_a_library() -> Outcome {
    let Some((setting, _)) = setting("what_begins_and_ends_a_library")? else {
        return Ok(());
    };
    let source = "unwind/startup.c";
    let built = program("unwind_startup", &["-O2", "-rdynamic"], source)?;
    let path = copied(&setting, &built)?;
    let flags = ["-O2", "-shared", "-fPIC", "-DPLUGIN"];
    let library = program("unwind_startup.so", &flags, source)?;
    let library = copied(&setting, &library)?;
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "1", &library])?;
    let samples = recording.of_process("unwind_startup");
    let ways = [
        ["__gmon_start__", "_init"],
        ["__cxa_finalize", "__do_global_dtors_aux"],
    ];
    for silent in ways {
        let (mut good, mut all, mut wrong) = (0, 0, None);
        for sample in &samples {
            let chain = sample.chain();
            let at = chain.windows(2).position(|two| *two == silent);
            // The program itself begins and ends so, too.
            let is_of_library = |at: &usize| {
                let module = sample.user[at + 1].module.as_deref();
                module.is_some_and(|path| path.ends_with("unwind_startup.so"))
            };
            let Some(at) = at.filter(is_of_library) else {
                continue;
            };
            all += 1;
            let mut rest = chain[at + 2..].iter();
            let mut known = ["known_turn", "main"].iter();
            let is_right = known.all(|name| rest.any(|it| it == name));
            let by_loader = sample.user.get(at + 2).is_some_and(|frame| {
                let module = frame.module.as_deref().unwrap_or_default();
                module.contains("/ld-linux") || module.contains("/ld-2.")
            });
            if is_right && by_loader && sample.user_end == StackEnd::Complete {
                good += 1;
            } else {
                wrong = Some((chain, sample.user_end));
            }
        }
        at_least(&format!("through {}", silent[1]), good, all, 0.99)
            .map_err(|why| format!("{why}: {wrong:?}"))?;
        at_least(
            &format!("samples in {}", silent[0]),
            all,
            samples.len(),
            0.2,
        )?;
    }
    Ok(())
}

/// The C library's `vfork` keeps its return address in a register while it is in the kernel.
#[test]
fn within_vfork() -> Outcome {
    let Some((setting, path)) = ends("within_vfork")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["-F", RATE, "--", &path, "vforks", "5000"])?;
    // Its name is another one where there is debug information.
    let of = |sample: &&Sample| sample.leaf().ends_with("vfork");
    let inside: Vec<&Sample> = recording.samples.iter().filter(of).collect();
    let known = ["fork_call", "fork_loop", "main"];
    let whole = |sample: &&&Sample| {
        let rest = &sample.chain()[1..];
        rest.len() > known.len()
            && rest.len() <= known.len() + MOST_START_FRAMES
            && rest.iter().zip(known).all(|(name, known)| *name == known)
            && sample.user_end == StackEnd::Complete
    };
    let good = inside.iter().filter(whole).count();
    let wrong = inside.iter().find(|sample| !whole(sample));
    let wrong = wrong.map(|sample| (sample.chain(), sample.user_end));
    at_least("stacks within vfork", good, inside.len(), 0.99)
        .map_err(|why| format!("{why}: {wrong:?}"))?;
    assert!(inside.len() >= 20, "{} samples in vfork", inside.len());
    Ok(())
}

/// glibc says nothing of where the system call returns that creates a thread or a process, since it does so in both: the
/// creator has all its callers there, the new one has none.
#[test]
fn what_creates_threads_and_processes() -> Outcome {
    let Some((setting, path)) = ends("what_creates_threads_and_processes")? else {
        return Ok(());
    };
    let known = ["fork_call", "fork_loop", "main"];
    for (mode, creation) in [("threads", "pthread_create"), ("spawns", "posix_spawn")] {
        let (_, recording) = setting.record(&["-F", "4999", "--", &path, mode, "100"])?;
        let is_creator = |sample: &&Sample| {
            sample.chain().windows(2).any(|two| {
                two[1] == "fork_call" && two[0].trim_start_matches('_').starts_with(creation)
            })
        };
        let all = &recording.samples;
        let creators = all.iter().filter(is_creator).map(|sample| sample.tid);
        let creators: BTreeSet<u32> = creators.collect();
        assert_eq!(creators.len(), 1, "{mode}: one thread creates");
        let ours = all.iter().filter(|sample| creators.contains(&sample.tid));
        let is_whole = |sample: &&&Sample| {
            let chain = sample.chain();
            let rest = chain.iter().skip_while(|name| **name != known[0]);
            rest.zip(known)
                .filter(|(name, known)| *name == known)
                .count()
                == known.len()
                && sample.user_end == StackEnd::Complete
        };
        let inside = |sample: &&Sample| {
            let leaf = sample.leaf().trim_start_matches('_');
            leaf.starts_with("clone")
        };
        let all: Vec<&Sample> = ours.filter(inside).collect();
        let good = all.iter().filter(|sample| is_whole(sample)).count();
        let wrong = all.iter().find(|sample| !is_whole(sample));
        let wrong = wrong.map(|sample| (sample.chain(), sample.user_end));
        at_least(
            &format!("{mode}: stacks in the creation"),
            good,
            all.len(),
            0.99,
        )
        .map_err(|why| format!("{why}: {wrong:?}"))?;
        assert!(
            all.len() >= 50,
            "{mode}: {} samples in the creation",
            all.len()
        );
    }
    Ok(())
}

fn ends(test: &str) -> std::io::Result<Option<(Setting, String)>> {
    let Some(setting) = Setting::new(&format!("e2e_unwinding::{test}"))? else {
        return Ok(None);
    };
    let built = program("unwind_ends", &["-O2"], "unwind/ends.c").map_err(std::io::Error::other)?;
    let path = copied(&setting, &built)?;
    Ok(Some((setting, path)))
}

/// Of a process that has given its memory back there is no stack to be found, and that is said; the
/// kernel's functions say where that is so.
#[test]
fn what_is_gone_is_no_failure() -> Outcome {
    let Some((setting, path)) = ends("what_is_gone_is_no_failure")? else {
        return Ok(());
    };
    let (ended, recording) = setting.record(&["-F", RATE, "--", &path, "execs", "10000"])?;
    let in_kernel = |sample: &Sample, names: &[&str]| {
        let mut frames = sample.kernel.iter();
        // The compiler's copies of a function have an ending.
        frames.any(|frame| names.contains(&frame.name.split('.').next().unwrap_or_default()))
    };
    let in_thunk = |sample: &Sample| {
        let leaf = sample.kernel.last();
        sample.kernel.len() == 1
            && leaf.is_some_and(|leaf| leaf.name.contains("x86_indirect_thunk"))
    };
    let (mut exits, mut execs, mut counts) = (0, 0, std::collections::BTreeMap::new());
    for sample in &recording.samples {
        let gone = sample.user_end == StackEnd::Gone;
        *counts.entry(sample.user_end).or_insert(0) += 1;
        let what = || {
            format!(
                "{:?}: {:?}, {:?}",
                sample.user_end, sample.user, sample.kernel
            )
        };
        let exit = in_kernel(sample, &["do_exit"]);
        let exec = in_kernel(
            sample,
            &[
                "begin_new_exec",
                "load_elf_binary",
                "bprm_execve",
                // Nothing of the new program is in memory before its first instruction.
                "do_execveat_common",
                "__x64_sys_execve",
            ],
        );
        // The kernel does not find the callers of its own indirect jumps (`__x86_indirect_thunk_*`).
        let known = !in_thunk(sample);
        assert!(!gone || exit || exec || !known, "not at an end: {}", what());
        // All memory is taken down by this, and only here by the process itself.
        if in_kernel(sample, &["exit_mmap"]) {
            assert!(gone, "memory that is not there: {}", what());
            exits += usize::from(exit);
            execs += usize::from(exec);
            // Within exec the leaf would be one of the program before.
            assert!(!exec || sample.user.is_empty(), "{}", what());
            let own = sample.user.iter().all(|frame| frame.module.is_some());
            assert!(!exit || own && sample.user.len() == 1, "{}", what());
        }
        assert!(sample.user_end != StackEnd::NoMapping, "{}", what());
        // While a page that a child shares is replaced by a copy, it is not there: maybe one with return addresses.
        let replaced = in_kernel(sample, &["wp_page_copy", "do_wp_page"]);
        let unreadable = sample.user_end == StackEnd::BadMemory;
        assert!(!unreadable || replaced, "{}", what());
    }
    assert!(exits >= 5 && execs >= 5, "{exits}, {execs}: {counts:?}");
    let said = "had no memory left: process ending or in exec";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    eprintln!("{exits} at an exit, {execs} in an exec, all: {counts:?}");
    Ok(())
}

/// A function's frame reaches into pages of the stack that are not there: who made room for it is found all the same, while
/// there is no table as well, and what is copied of the stack can't begin where it does.
#[test]
fn pages_that_are_not_there_yet_cut_no_stack() -> Outcome {
    let Some((setting, _)) = setting("pages_that_are_not_there_yet_cut_no_stack")? else {
        return Ok(());
    };
    let flags = ["-O2", "-fno-stack-clash-protection"];
    let path = copied(
        &setting,
        &program("unwind_deeper", &flags, "unwind/deeper.c")?,
    )?;
    let mut found = 0;
    // The table comes within some milliseconds.
    for _ in 0..4 {
        let (_, recording) = setting.record(&["-F", "4999", "--", &path, "5000"])?;
        for sample in &recording.samples {
            assert!(
                sample.user_end != StackEnd::BadMemory,
                "{:?}, {:?}",
                sample.user,
                sample.kernel
            );
            let chain = sample.chain();
            let leads = |from: &str| chain.first() == Some(&from) && chain.contains(&"main");
            let is_fault = sample.kernel.iter().any(|of| of.name == "exc_page_fault");
            found += usize::from(is_fault && (leads("deeper_at") || leads("deeper_still")));
        }
    }
    assert!(found > 50, "{found}");
    Ok(())
}

/// A static program in a container.
#[test]
fn in_a_container() -> Outcome {
    const TEST: &str = "e2e_unwinding::in_a_container";
    let Some(setting) = Setting::new(TEST)? else {
        return Ok(());
    };
    let Some(docker) = Docker::start(&setting, TEST)? else {
        return Ok(());
    };
    let root = Root::new(&setting.path("red"), "red")?;
    let built = program("unwind_static", &["-O2", "-static"], "unwind_chain.c")?;
    let at = setting.path("red").join(PROGRAM.trim_start_matches('/'));
    std::fs::copy(built, at)?;
    docker.image("red", &root)?;
    docker.run("profiler-unwound", &[], "red", &[PROGRAM, "plain", "60000"])?;
    let words = ["-F", RATE, "-d", "1", "--container", "profiler-unwound"];
    let (_, recording) = setting.record(&words)?;
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    whole(&samples, &chain(&["main"]))?;
    Ok(())
}

/// By frame pointers alone the same program has no whole stack: what the other tests see is not there
/// by chance.
#[test]
fn frame_pointers_alone_are_not_enough() -> Outcome {
    let Some((setting, path)) = setting("frame_pointers_alone_are_not_enough")? else {
        return Ok(());
    };
    let words = [
        "-F",
        RATE,
        "--call-graph",
        "fp",
        "--",
        &path,
        "plain",
        "300",
    ];
    let (ended, recording) = setting.record(&words)?;
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    assert!(whole(&samples, &chain(&["main"])).is_err());
    assert!(ended.stderr.contains("--call-graph"), "{}", ended.stderr);
    Ok(())
}

/// A recursion of this depth: how many calls of it there are from the leaf on, what follows, and the end.
fn of_recursion(sample: &Sample) -> (usize, Vec<&str>, StackEnd) {
    let chain = sample.chain();
    let inner = chain.iter().take_while(|name| **name == "known_level");
    let inner = inner.count();
    (inner, chain[inner..].to_vec(), sample.user_end)
}

/// Whether these frames lead from `main` to where the process begins.
fn is_start(frames: &[&str]) -> bool {
    frames.first() == Some(&"main") && (2..=1 + MOST_START_FRAMES).contains(&frames.len())
}

#[test]
fn deep_recursions_keep_both_ends() -> Outcome {
    let Some((setting, _)) = setting("deep_recursions_keep_both_ends")? else {
        return Ok(());
    };
    let path = program("unwind_deep", &["-O2"], "unwind/deep.c")?;
    let path = copied(&setting, &path)?;
    for depth in [120_usize, 300, 1000, 5000] {
        let arguments = ["-F", "97", "--", &path, &depth.to_string(), "2"];
        let (ended, recording) = setting.record(&arguments)?;
        let samples = recording.samples.iter();
        let samples: Vec<&Sample> = samples.filter(|of| of.leaf() == "known_level").collect();
        let is_right = |sample: &&&Sample| {
            let (inner, rest, end) = of_recursion(sample);
            match depth {
                120 | 300 => inner == depth && is_start(&rest) && end == StackEnd::Complete,
                1000 => {
                    let outer = rest.iter().skip(1);
                    let outer = outer.take_while(|name| **name == "known_level").count();
                    inner == 384
                        && rest.first() == Some(&"[frames left out]")
                        && rest.len() == 128
                        && is_start(&rest[1 + outer..])
                        && end == StackEnd::LeftOut
                }
                _ => [127, 384].contains(&inner) && rest.is_empty() && end == StackEnd::Truncated,
            }
        };
        let right = samples.iter().filter(is_right).count();
        if right < samples.len() {
            let wrong = samples.iter().find(|sample| !is_right(sample));
            let wrong = wrong.map(|sample| of_recursion(sample));
            eprintln!(
                "{depth} deep: {right} of {} are right; {wrong:?}",
                samples.len()
            );
        }
        at_least("stacks that have what is kept", right, samples.len(), 0.97)?;
        let all = recording.of_process("unwind_deep");
        at_least("samples in the recursion", samples.len(), all.len(), 0.8)?;
        let said = match depth {
            1000 => "too deep, the middle left out",
            5000 => "too deep",
            _ => "% complete",
        };
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    Ok(())
}

/// With hardly any memory for tables the recording goes on, and says what is missing and what to do.
#[test]
fn too_little_memory_is_said() -> Outcome {
    let Some((setting, path)) = setting("too_little_memory_is_said")? else {
        return Ok(());
    };
    let crowd = program("unwind_crowd.so", &["-shared"], "unwind_crowd.S")?;
    let crowd = copied(&setting, &crowd)?;
    // The program runs until it is said: how long it takes to read so large a file is the machine's affair.
    let script = format!("echo $$ >pid; exec {path} library 500 1000 {crowd}");
    let mut record = setting.profiler();
    record
        .args(["record", "-v", "-F", RATE, "--unwind-memory", "16M"])
        .args(["-o", "out.cap", "--", "sh", "-c", &script]);
    let mut running = Running::start(&mut record, setting.folder(), "record")?;
    running.wait_until("too little memory", LIMIT, |record| {
        let said = record.stderr_so_far().unwrap_or_default();
        said.contains("the memory for unwind tables is used up")
    })?;
    let pid: i32 = std::fs::read_to_string(setting.path("pid"))?
        .trim()
        .parse()?;
    let pid = Pid::from_raw(pid).ok_or("process id 0")?;
    kill_process(pid, Signal::TERM)?;
    let ended = running.end(LIMIT)?.expect_status(128 + 15)?;
    let recording = setting.recording()?;
    assert_eq!(recording.damaged, 0);
    let said = &ended.stderr;
    // With -v everything that is counted.
    for part in [
        "--unwind-memory",
        "unwinding: ",
        " copied, ",
        "tables in the kernel: ",
        "tables here: ",
    ] {
        assert!(said.contains(part), "no '{part}' in: {said}");
    }
    let no_room = said.lines().find_map(|line| {
        let (before, _) = line.split_once(" times no room")?;
        before
            .rsplit(' ')
            .next()?
            .replace(',', "")
            .parse::<u64>()
            .ok()
    });
    assert!(no_room.is_some_and(|times| times > 0), "{said}");
    // What was loaded before is walked all the same.
    let samples: Vec<&Sample> = recording.samples.iter().collect();
    whole(&samples, &chain(&["main"]))?;
    Ok(())
}
