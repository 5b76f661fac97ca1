//! Names of functions: two functions are two rows, one function is one row, by the names that people call them.
//!
//! Oracles: workloads that measure the CPU time of functions which share their name (1:3), however they
//! are built; Debian's own programs, whose functions have bounds and no names.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use profiler_tests::Outcome;
use profiler_tests::process::burnt;
use profiler_tests::recording::{Sample, weight};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::{amount, at_least, share};
use profiler_tests::workload::source_path;
use rustix::process::Signal;

const FLAGS: &[&str] = &["-O2", "-fno-optimize-sibling-calls"];

/// What is compressed: some of what can be executed.
const INPUT_BYTES: u64 = 24 << 20;

/// A row of the report's functions.
#[derive(Debug)]
struct Row {
    name: String,
    module: String,
    named: bool,
    start: Option<u64>,
    own: usize,
    total: usize,
}

/// Runs a compiler.
fn compile(compiler: &str, arguments: &[&str], sources: &[&str], output: &Path) -> Outcome {
    let mut command = Command::new(compiler);
    command.args(arguments).arg("-o").arg(output);
    command.args(sources.iter().map(|source| source_path(source)));
    let run = command.output()?;
    match run.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&run.stderr)).into()),
    }
}

/// Records a workload for half a second of its CPU time: what it says itself, and the functions of the report.
fn run(
    setting: &Setting,
    program: &Path,
) -> Result<(serde_json::Value, Vec<Row>), Box<dyn std::error::Error>> {
    let program = program.to_string_lossy();
    let (ended, _) = setting.record(&["-F", "1999", "--", &program, "500"])?;
    Ok((ended.json()?, rows(setting)?))
}

fn rows(setting: &Setting) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let report = setting.run(&["report", "out.cap", "--format", "json"])?;
    let report = report.success()?.json()?;
    let rows = report["functions"].as_array().ok_or("no functions")?;
    let row = |row: &serde_json::Value| {
        Some(Row {
            name: row["name"].as_str()?.to_owned(),
            module: row["module"].as_str()?.to_owned(),
            named: row["named"].as_bool()?,
            start: row["start"].as_u64(),
            own: row["self_samples"].as_u64()? as usize,
            total: row["total_samples"].as_u64()? as usize,
        })
    };
    let rows: Option<Vec<Row>> = rows.iter().map(row).collect();
    Ok(rows.ok_or("a row is not as it should be")?)
}

/// That there is one row for each of these functions, and that their samples are as their times.
fn check(rows: &[Row], truth: &[(&str, u64)]) -> Outcome {
    let mut samples = Vec::new();
    for (name, _) in truth {
        let named: Vec<&Row> = rows.iter().filter(|row| row.name == *name).collect();
        match named[..] {
            [row] => samples.push(row.total),
            _ => return Err(format!("{name}: {named:?} of {rows:#?}").into()),
        }
    }
    let all: u64 = truth.iter().map(|(_, ns)| ns).sum();
    let sampled: usize = samples.iter().sum();
    for ((name, ns), hits) in truth.iter().zip(samples) {
        share(name, hits, sampled, *ns as f64 / all as f64)?;
    }
    Ok(())
}

fn ns(truth: &serde_json::Value, key: &str) -> Result<u64, String> {
    truth[key].as_u64().ok_or(format!("no {key}"))
}

#[test]
fn two_functions_of_one_name_in_c() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::two_functions_of_one_name_in_c")? else {
        return Ok(());
    };
    let sources = ["names/a.c", "names/b.c", "names/main.c"];
    for (name, compiler, flags) in [
        ("with", "gcc", &["-g", "-DPARTED"][..]),
        ("lines", "clang", &["-gline-tables-only"]),
        ("static", "gcc", &["-g", "-static"]),
    ] {
        let program = setting.path(name);
        compile(compiler, &[FLAGS, flags].concat(), &sources, &program)?;
        let (truth, rows) = run(&setting, &program)?;
        let (a, b) = (ns(&truth, "a")?, ns(&truth, "b")?);
        check(&rows, &[("work (a.c)", a), ("work (b.c)", b)])
            .map_err(|error| format!("{name}: {error}"))?;
    }
    // Without debug information nothing but their addresses tells them apart, nor does anything else if both come from
    // one line of a header; without symbols they are known by these alone.
    let program = setting.path("without");
    for (compiler, flags, named) in [
        ("gcc", &["-g", "-DSHARED"][..], true),
        ("gcc", &[], true),
        ("gcc", &["-s"], false),
        // Files in which code lies elsewhere than at its address.
        ("gcc", &["-s", "-no-pie"], false),
        ("gcc", &["-s", "-static-pie"], false),
        ("gcc", &["-s", "-Wl,--section-start=.text=0x90000"], false),
    ] {
        compile(compiler, &[FLAGS, flags].concat(), &sources, &program)?;
        let (truth, rows) = run(&setting, &program)?;
        let mut hottest: Vec<&Row> = (rows.iter())
            .filter(|row| row.module.ends_with("/without"))
            .filter(|row| row.named == named && row.start.is_some())
            .filter(|row| !named || row.name.starts_with("work "))
            .collect();
        hottest.sort_by_key(|row| std::cmp::Reverse((row.own, row.total)));
        let [b, a] = [hottest[0], hottest[1]];
        let code = Command::new("objdump").arg("-d").arg(&program).output()?;
        let code = String::from_utf8(code.stdout)?;
        for row in [a, b] {
            let start = row.start.unwrap_or_default();
            let expected = match named {
                true => format!("work ({start:#x})"),
                false => format!("without+{start:#x} (function)"),
            };
            assert_eq!(row.name, expected);
            let line = format!("{start:x}:");
            let is_there = code.lines().any(|it| it.trim_start().starts_with(&line));
            assert!(is_there, "{flags:?}: no {line} in what objdump shows");
        }
        assert_ne!(a.start, b.start);
        let truth = [(&*a.name, ns(&truth, "a")?), (&*b.name, ns(&truth, "b")?)];
        check(&rows, &truth)?;
    }
    Ok(())
}

/// tcc writes its table of sections wherever its symbols end; the ABI asks for no more.
#[test]
fn a_table_of_sections_may_be_anywhere() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::a_table_of_sections_may_be_anywhere")? else {
        return Ok(());
    };
    let program = setting.path("anywhere");
    let sources = ["names/a.c", "names/b.c", "names/main.c"];
    compile("gcc", FLAGS, &sources, &program)?;
    let mut bytes = std::fs::read(&program)?;
    // Moved behind an odd number of bytes: where it is says the word at 40, its entries have 64 bytes.
    let table = u64::from_ne_bytes(bytes[40..48].try_into()?) as usize;
    let count = usize::from(u16::from_ne_bytes(bytes[60..62].try_into()?));
    let table = bytes[table..table + 64 * count].to_vec();
    if bytes.len().is_multiple_of(2) {
        bytes.push(0);
    }
    let moved = (bytes.len() as u64).to_ne_bytes();
    bytes[40..48].copy_from_slice(&moved);
    bytes.extend(table);
    std::fs::write(&program, bytes)?;
    let (truth, rows) = run(&setting, &program)?;
    let mut work: Vec<&Row> = rows
        .iter()
        .filter(|row| row.name.starts_with("work (0x") && row.named)
        .collect();
    work.sort_by_key(|row| row.own);
    let [a, b] = work[..] else {
        return Err(format!("{rows:#?}").into());
    };
    check(
        &rows,
        &[(&*a.name, ns(&truth, "a")?), (&*b.name, ns(&truth, "b")?)],
    )
}

/// Addresses of a file are those that its symbols have, in whatever segment.
#[test]
fn functions_are_where_their_file_says_in_every_segment() -> Outcome {
    let test = "e2e_names::functions_are_where_their_file_says_in_every_segment";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let program = setting.path("segments");
    let flags = [FLAGS, &["-no-pie", "-Wl,--section-start=.far=0x900000"]].concat();
    compile("gcc", &flags, &["segments.c"], &program)?;
    let symbols = Command::new("nm").arg(&program).output()?;
    let symbols = String::from_utf8(symbols.stdout)?;
    let names = ["near_step", "far_step"];
    let address = |name: &str| {
        let mut lines = symbols.lines().map(|line| line.split(' '));
        let line = lines.find(|line| line.clone().nth(2) == Some(name));
        let address = line.and_then(|mut line| u64::from_str_radix(line.next()?, 16).ok());
        address.ok_or_else(|| format!("no {name} in {symbols}"))
    };
    let of_program = program.to_string_lossy();
    let arguments = ["-F", "999", "--trace", "segments:*_step", "--budget", "off"];
    setting.record(&[&arguments[..], &["--", &of_program, "300"]].concat())?;
    // Of calls and samples together.
    let rows = rows(&setting)?;
    for name in names {
        let named: Vec<&Row> = rows.iter().filter(|row| row.name == name).collect();
        let [row] = named[..] else {
            return Err(format!("{name}: {named:?}").into());
        };
        assert_eq!(row.start, Some(address(name)?), "{name}");
        assert!(row.own > 50, "{row:?}");
        let listing = setting.run(&["report", "out.cap", "--annotate", name])?;
        let listing = listing.success()?.stdout;
        let place = format!("{:x}", address(name)?);
        assert!(listing.contains(&place), "no {place} in {listing}");
    }
    // Each instruction that a sample was in lies in one of the functions.
    let exported = ["export", "out.cap", "--format", "perf-script", "-o", "-"];
    let script = setting.run(&exported)?.success()?.stdout;
    for name in names {
        let line = script.lines().find(|line| line.contains(name));
        let at = line.and_then(|line| line.split_whitespace().next());
        let at = at.and_then(|at| u64::from_str_radix(at, 16).ok());
        let at = at.ok_or_else(|| format!("no {name} in {script}"))?;
        let within = address(name)?..address(name)? + 64;
        assert!(within.contains(&at), "{name}: {at:#x}, not in {within:x?}");
    }
    Ok(())
}

/// Code that a runtime gives nothing but a word for a name is where it is.
#[test]
fn two_functions_of_one_name_made_at_run_time() -> Outcome {
    let test = "e2e_names::two_functions_of_one_name_made_at_run_time";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let program = setting.workload("jit.c")?.to_string_lossy().into_owned();
    let (ended, _) = setting.record(&["-F", "999", "--", &program, "1000", "--twice"])?;
    let truth = ended.json()?;
    let rows = rows(&setting)?;
    let mut work: Vec<&Row> = (rows.iter())
        .filter(|row| row.name.starts_with("work ("))
        .collect();
    work.sort_by_key(|row| row.start);
    let [a, b] = work[..] else {
        return Err(format!("{rows:#?}").into());
    };
    for row in [a, b] {
        let start = row.start.ok_or("no start")?;
        assert_eq!(row.name, format!("work ({start:#x})"));
    }
    let truth = [(&*a.name, ns(&truth, "a")?), (&*b.name, ns(&truth, "b")?)];
    check(&rows, &truth)
}

/// What a process execs and what a thread calls itself are names from then on, not before.
#[test]
fn names_are_those_of_the_time() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::names_are_those_of_the_time")? else {
        return Ok(());
    };
    let program = setting.path("b_c1");
    compile("gcc", &["-O1"], &["names/renamed.c"], &program)?;
    for name in ["b_c2", "b_c3"] {
        std::fs::copy(&program, setting.path(name))?;
    }
    let (ended, recording) = setting.record(&["-F", "999", "--", &program.to_string_lossy()])?;
    let mut names = Vec::new();
    for line in ended.stdout.lines() {
        let mut words = line.split(' ');
        let name = words.next().ok_or("no name")?;
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        let [from, to, cpu_ns] = numbers?[..] else {
            return Err(format!("not a name and three numbers: {line}").into());
        };
        let during = |sample: &&Sample| (from..to).contains(&sample.at_ns);
        let during: Vec<&Sample> = recording.samples.iter().filter(during).collect();
        let other = during.iter().find(|sample| sample.process_then != name);
        assert!(other.is_none(), "called {name}, but: {other:?}");
        let missing = recording.missing_ns();
        amount(name, weight(&during), cpu_ns, missing, during.len(), 1.0)?;
        names.push(name);
    }
    assert_eq!(names, ["b_c1", "b_c2", "b_c3", "renamed"]);
    let samples = |more: &[&str]| -> Result<Vec<(String, usize)>, Box<dyn std::error::Error>> {
        let report = [&["report", "out.cap", "--format", "json"], more].concat();
        let report = setting.run(&report)?.success()?.json()?;
        let rows = report["processes"].as_array().ok_or("no processes")?;
        let row = |row: &serde_json::Value| {
            let name = row["process"].as_str()?.to_owned();
            Some((name, row["samples"].as_u64()? as usize))
        };
        Ok(rows.iter().filter_map(row).collect())
    };
    let rows = samples(&[])?;
    let of = |rows: &[(String, usize)], name: &str| {
        let of_name = rows.iter().filter(|(of, _)| of == name);
        of_name.map(|(_, samples)| samples).sum::<usize>()
    };
    for name in &names {
        let then = |sample: &&Sample| sample.process_then == *name;
        let count = recording.samples.iter().filter(then).count();
        assert_eq!(of(&rows, name), count, "{name}");
        // Only these are meant by the name.
        assert_eq!(samples(&["--comm", name])?, [((*name).to_owned(), count)]);
    }
    setting
        .run(&[
            "export",
            "out.cap",
            "-o",
            "out.folded",
            "--set",
            "count=samples",
        ])?
        .success()?;
    let folded = std::fs::read_to_string(setting.path("out.folded"))?;
    for name in names {
        let lines = folded
            .lines()
            .filter(|line| line.starts_with(&format!("{name};")));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        assert_eq!(counts.sum::<usize>(), of(&rows, name), "{name}");
    }
    Ok(())
}

#[test]
fn two_methods_of_one_name_in_cpp() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::two_methods_of_one_name_in_cpp")? else {
        return Ok(());
    };
    let sources = ["names/a.cpp", "names/b.cpp", "names/main.c"];
    for (name, compiler, flags) in [
        ("plain", "g++", &[][..]),
        ("debug", "g++", &["-g"]),
        ("lines", "clang++", &["-gmlt"]),
    ] {
        let program = setting.path(name);
        let flags = [FLAGS, flags, &["-Wno-deprecated"]].concat();
        compile(compiler, &flags, &sources, &program)?;
        let (truth, rows) = run(&setting, &program)?;
        let (a, b) = (ns(&truth, "a")?, ns(&truth, "b")?);
        let truth = [("A::work(unsigned long)", a), ("B::work(unsigned long)", b)];
        check(&rows, &truth).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

#[test]
fn functions_closures_and_instances_in_rust() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::functions_closures_and_instances_in_rust")? else {
        return Ok(());
    };
    for (name, flags) in [
        ("plain", &[][..]),
        ("lines", &["-C", "debuginfo=line-tables-only"]),
        ("debug", &["-C", "debuginfo=2"]),
        ("v0", &["-C", "symbol-mangling-version=v0"]),
    ] {
        let program = setting.path(name);
        let all = [&["--edition", "2024", "-O", "--crate-name", "names"], flags].concat();
        compile("rustc", &all, &["names/names.rs"], &program)?;
        let (truth, rows) = run(&setting, &program)?;
        let of = |end: &str| -> Vec<&Row> {
            let ours = rows.iter().filter(|row| row.module.ends_with(name));
            ours.filter(|row| row.name.contains(end)).collect()
        };
        let [run_a] = of("names::a::run")[..] else {
            return Err(format!("{name}: {rows:#?}").into());
        };
        let [closure] = of("names::b::run::{")[..] else {
            return Err(format!("{name}: {rows:#?}").into());
        };
        let mut instances = of("names::Instance<");
        instances.sort_by_key(|row| row.total);
        let [narrow, wide] = instances[..] else {
            return Err(format!("{name}: {rows:#?}").into());
        };
        if name == "v0" {
            assert_eq!(narrow.name, "<names::Instance<u8>>::work");
            assert_eq!(wide.name, "<names::Instance<u16>>::work");
        }
        let truth = [
            (&*run_a.name, ns(&truth, "a")?),
            (&*closure.name, ns(&truth, "b")?),
            (&*narrow.name, ns(&truth, "narrow")?),
            (&*wide.name, ns(&truth, "wide")?),
        ];
        check(&rows, &truth).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Debian's gzip has no symbols; its unwind tables have the bounds of its functions, and relocations the
/// names of what its stubs lead to.
#[test]
fn a_stripped_program_has_a_row_for_each_function() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::a_stripped_program_has_a_row_for_each_function")?
    else {
        return Ok(());
    };
    let input = setting.path("input");
    let mut bytes = Vec::new();
    let some = std::fs::File::open(setting.profiler_path())?;
    some.take(INPUT_BYTES).read_to_end(&mut bytes)?;
    std::fs::write(&input, bytes)?;
    let ended = {
        let mut command = setting.profiler();
        let capture = setting.path("out.cap");
        command.args(["record", "-F", "999", "-o"]).arg(&capture);
        command.args(["--", "gzip", "-9kfc"]).arg(&input);
        // What is compressed goes to standard output, which is a file here.
        profiler_tests::process::run(&mut command, setting.folder(), "gzip", LIMIT)?.success()?
    };
    assert!(ended.stderr.contains("gzip-dbgsym"), "{}", ended.stderr);
    // The report says the same of the same samples, but only where people read it.
    let note = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains("gzip-dbgsym"))?;
        Some(line.split(" (1 more note").next()?.to_owned())
    };
    let report = setting.run(&["report", "out.cap"])?.success()?;
    let said = note(&report.stderr).ok_or(report.stderr.clone())?;
    assert_eq!(Some(&said), note(&ended.stderr).as_ref());
    for quiet in [&["--format", "json"][..], &["-q"], &["--time", "0s.."]] {
        let report = setting
            .run(&[&["report", "out.cap"], quiet].concat())?
            .success()?;
        assert_eq!(note(&report.stderr), None, "{quiet:?}");
    }
    let rows = rows(&setting)?;
    let own: Vec<&Row> = rows
        .iter()
        .filter(|row| row.module.ends_with("/gzip"))
        .collect();
    let all: usize = own.iter().map(|row| row.own).sum();
    let functions: Vec<&&Row> = own.iter().filter(|row| row.start.is_some()).collect();
    let of_functions: usize = functions.iter().map(|row| row.own).sum();
    at_least("samples in functions", of_functions, all, 0.999)?;
    let mut starts: Vec<u64> = functions.iter().filter_map(|row| row.start).collect();
    starts.sort_unstable();
    let rows_of_functions = starts.len();
    starts.dedup();
    assert_eq!(starts.len(), rows_of_functions, "{functions:#?}");
    // One of them, `longest_match`, takes most of the time.
    let hottest = own.iter().map(|row| row.own).max().unwrap_or_default();
    at_least("the hottest function", hottest, all, 0.5)?;
    Ok(())
}

/// The process that reads symbols makes no threads, however many there are to be made readable; neither a function
/// without a symbol nor symbols that are packed take the others' names.
#[test]
fn a_program_of_many_functions_keeps_its_names() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::a_program_of_many_functions_keeps_its_names")?
    else {
        return Ok(());
    };
    let run = |line: &str| {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        let run = command.args(words).current_dir(setting.folder()).output()?;
        match run.status.success() {
            true => Ok(()),
            false => Err(std::io::Error::other(format!(
                "{line}: {}",
                String::from_utf8_lossy(&run.stderr)
            ))),
        }
    };
    // Each sample in `nameless` is at its first instruction: is that before a function?
    let mut text = String::from(
        "__attribute__((noipa)) void nameless(void) { __asm__ volatile(\"nop; nop; nop; nop\"); }
        __attribute__((noipa)) void named(void) { for (long i = 0; i < 16; i++) __asm__ volatile(\"nop\"); }
        int main(void) { for (long i = 0; i < 80000000; i++) { nameless(); named(); } return 0; }\n",
    );
    // By the assembler: a compiler takes seconds for so many.
    text += "__asm__(\".macro one\\n.type f\\\\@, @function\\nf\\\\@: .cfi_startproc\\nret\\n.cfi_endproc\\n\"
             \".size f\\\\@, . - f\\\\@\\n.endm\\n.text\\n.rept 20000\\none\\n.endr\");\n";
    std::fs::write(setting.path("many.c"), text)?;
    run("gcc -O1 -o many many.c")?;
    run("objcopy --strip-symbol=nameless many")?;
    let program = setting.path("many").to_string_lossy().into_owned();
    for packed in [false, true] {
        if packed {
            run("objcopy --only-keep-debug many mini")?;
            run("xz mini")?;
            run("strip many")?;
            run("objcopy --add-section .gnu_debugdata=mini.xz many")?;
        }
        setting.record(&["-F", "2999", "--", &program])?;
        let rows = rows(&setting)?;
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.module.ends_with("/many"))
            .collect();
        for name in ["named", "main"] {
            let rows = own.iter().filter(|row| row.name == name).count();
            assert_eq!(rows, 1, "{name}, packed: {packed}: {own:#?}");
        }
        assert!(own.iter().all(|row| row.start.is_some()), "{own:#?}");
        if !packed {
            let nameless = own.iter().filter(|row| !row.named && row.own > 0);
            assert_eq!(nameless.count(), 1, "{own:#?}");
        }
    }
    Ok(())
}

#[test]
fn stubs_are_called_by_what_they_lead_to() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::stubs_are_called_by_what_they_lead_to")? else {
        return Ok(());
    };
    let source = setting.path("stubs.c");
    let text = include_str!("../../workloads/allocator_stubs.c");
    std::fs::write(&source, text)?;
    let program = setting.path("stubs");
    for strip in [&[][..], &["-s"]] {
        let mut command = Command::new("cc");
        command.args(["-O1", "-no-pie"]).args(strip);
        command.args(cfg!(target_arch = "x86_64").then_some("-mno-red-zone"));
        command.arg("-o");
        assert!(command.arg(&program).arg(&source).status()?.success());
        setting.record(&["-F", "2999", "--", &program.to_string_lossy()])?;
        let rows = rows(&setting)?;
        let own = |name: &str| {
            let row = rows
                .iter()
                .find(|row| row.name == name && row.module.ends_with("/stubs"));
            row.map_or(0, |row| row.own)
        };
        assert!(own("malloc@plt") > 0 && own("free@plt") > 0, "{rows:#?}");
        assert_eq!(own("_init"), 0);
        // The allocator is called as the program calls it, not by a name of the library's own.
        assert!(
            rows.iter().any(|row| row.name == "malloc" && row.total > 0),
            "{rows:#?}"
        );
    }
    Ok(())
}

#[test]
fn a_process_whose_first_thread_has_ended_has_names() -> Outcome {
    let Some(setting) =
        Setting::new("e2e_names::a_process_whose_first_thread_has_ended_has_names")?
    else {
        return Ok(());
    };
    let program = setting.workload("leaderless.c")?;
    let mut leaderless = setting.start("leaderless", Command::new(&program).arg("3000"))?;
    leaderless.wait_until("the end of the first thread", LIMIT, |running| {
        running
            .stdout_so_far()
            .is_ok_and(|said| said.contains("ready"))
    })?;
    let pid = leaderless.pid().to_string();
    setting.record(&["-F", "999", "-d", "1", "-p", &pid])?;
    leaderless.end(LIMIT)?.success()?;
    let recording = setting.recording()?;
    let named = recording
        .samples
        .iter()
        .filter(|sample| sample.calls("without_leader"));
    at_least(
        "samples with names",
        named.count(),
        recording.samples.len(),
        0.95,
    )?;
    Ok(())
}

/// Some programs are links to a file of another name, which tells by its name what it is to do.
#[test]
fn a_program_is_traced_by_what_it_was_called_as() -> Outcome {
    let Some(setting) = Setting::new("e2e_names::a_program_is_traced_by_what_it_was_called_as")?
    else {
        return Ok(());
    };
    let sources = ["names/a.cpp", "names/b.cpp", "names/main.c"];
    let program = setting.path("one-for-all");
    compile(
        "g++",
        &[FLAGS, &["-Wno-deprecated"]].concat(),
        &sources,
        &program,
    )?;
    let link = setting.path("called-as");
    std::os::unix::fs::symlink(&program, &link)?;
    let trace = ["--trace", "called-as:A::work*", "--no-samples"];
    let command = link.to_string_lossy();
    setting.record(&[&trace[..], &["--", &command, "200"]].concat())?;
    let calls = |setting: &Setting| -> Result<u64, Box<dyn std::error::Error>> {
        let report = setting.run(&["report", "out.cap", "--calls", "--format", "json"])?;
        let report = report.success()?.json()?;
        let rows = report["calls"]["functions"].as_array().ok_or("no calls")?;
        assert!(
            rows.iter()
                .all(|row| row["name"] == "A::work(unsigned long)"),
            "{rows:?}"
        );
        Ok(rows.iter().filter_map(|row| row["calls"].as_u64()).sum())
    };
    assert!(calls(&setting)? > 10);
    let mut running = setting.start("called", Command::new(&link).arg("60000"))?;
    running.wait_until("a program", LIMIT, |running| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", running.pid()));
        name.is_ok_and(|name| name.trim_end() == "called-as")
    })?;
    let pid = running.pid().to_string();
    let recorder = setting.start_recording(&[&trace[..], &["-p", &pid]].concat())?;
    burnt(running.pid(), Duration::from_millis(300))?;
    recorder.signal(Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    running.signal(Signal::TERM)?;
    running.end(LIMIT)?;
    assert!(calls(&setting)? > 10);
    Ok(())
}
