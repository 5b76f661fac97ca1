//! Programs of Debian compute, print and end under `record --trace '*'` as they do without it.
//!
//! Each program is run twice without the profiler, which must make no difference, and then traced: all
//! functions of all that it maps, each way to see returns, with default options. Output, exit status and
//! results must be equal. What each program does stands in `profiler_tests::programs::table`.
//!
//! `PROFILER_PROGRAMS=bash,python3` tries these alone, `PROFILER_RETURNS=auto` these ways alone.

use std::time::Instant;

use profiler_tests::Outcome;
use profiler_tests::programs::table::PROGRAMS;
use profiler_tests::programs::{Program, Ran, When};
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use profiler_tests::workload::Unbuilt;

/// Ways to see returns, and more options to try them with.
const ALWAYS: &[&[&str]] = &[
    &["--returns", "auto"],
    &["--returns", "ret-insn"],
    &["--returns", "none"],
    &["--returns", "uretprobe"],
];

/// The budget takes probes away soon; without it all stay. Arguments are read out of the program's memory.
const LONG: &[&[&str]] = &[
    &["--returns", "auto"],
    &["--returns", "ret-insn"],
    &["--returns", "none"],
    &["--returns", "uretprobe"],
    &["--returns", "auto", "--budget", "off", "--args"],
];

/// A test for each program that is tried always.
macro_rules! always {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() -> Outcome {
                try_all(stringify!($test), |program| program.name == $name, ALWAYS)
            }
        )*

        /// None is forgotten.
        #[test]
        fn each_program_has_its_test() {
            let always = PROGRAMS.iter().filter(|program| program.when == When::Always);
            let names: Vec<_> = always.map(|program| program.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

always! {
    ls: "ls",
    sort: "sort",
    bash: "bash",
    sqlite3: "sqlite3",
    python3: "python3",
    perl: "perl",
    goroutines_of_go: "goroutines (Go)",
    panics_of_rust: "panics (Rust)",
    throws_of_cxx: "throws (C++)",
    calls_of_c: "calls (C)",
}

#[test]
fn programs_of_debian() -> Outcome {
    try_all(
        "programs_of_debian",
        |program| program.when == When::Long,
        LONG,
    )
}

/// Tries all programs that are `chosen`, and says what is wrong with any.
fn try_all(test: &str, chosen: fn(&Program) -> bool, ways: &[&[&str]]) -> Outcome {
    let Some(setting) = Setting::new(&format!("e2e_trace_programs::{test}"))? else {
        return Ok(());
    };
    let mut wrong = Vec::new();
    for program in PROGRAMS.iter().filter(|program| chosen(program)) {
        if !is_wanted("PROFILER_PROGRAMS", program.name) {
            continue;
        }
        wrong.extend(try_one(&setting, test, program, ways)?);
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

fn is_wanted(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |names| names.split(',').any(|wanted| wanted == name))
}

/// Tries one program in all ways; what is wrong.
fn try_one(
    setting: &Setting,
    test: &str,
    program: &Program,
    ways: &[&[&str]],
) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let name = program.name;
    if let Some(package) = program.missing() {
        skip(
            &format!("{test}/{name}"),
            &format!("{package} is not installed"),
        );
        return Ok(Vec::new());
    }
    let plain = match program.run(setting) {
        Err(error) if error.downcast_ref::<Unbuilt>().is_some() => {
            skip(&format!("{test}/{name}"), &error.to_string());
            return Ok(Vec::new());
        }
        ran => ran.map_err(|error| format!("{name}: {error}"))?,
    };
    let again = program.run(setting)?;
    if let Some(difference) = plain.difference(&again) {
        // The entry in the table must be mended: nothing can be said of what the profiler changes.
        return Ok(vec![format!("{name} differs by itself: {difference}")]);
    }
    let mut wrong = Vec::new();
    for way in ways {
        if !is_wanted("PROFILER_RETURNS", way[1]) {
            continue;
        }
        let began = Instant::now();
        let what_is_wrong = traced(setting, program, &plain, way);
        println!(
            "{name} {}: {:.1} s, {}",
            way.join(" "),
            began.elapsed().as_secs_f64(),
            what_is_wrong.as_deref().unwrap_or("equal")
        );
        wrong.extend(what_is_wrong.map(|what| format!("{name}, {}: {what}", way.join(" "))));
    }
    Ok(wrong)
}

/// What is wrong with a traced run.
fn traced(setting: &Setting, program: &Program, plain: &Ran, way: &[&str]) -> Option<String> {
    let mut options: Vec<String> = ["--trace", "*", "--yes"].map(str::to_owned).into();
    options.extend(way.iter().map(|option| (*option).to_owned()));
    match program.record(setting, &options) {
        Err(error) => Some(error.to_string()),
        Ok((ran, said)) => plain.difference(&ran).or_else(|| {
            // Equal because nothing was traced would be no proof.
            (said.calls == 0).then(|| format!("no call was recorded: {}", said.all))
        }),
    }
}
