//! Random sets of functions, traced in all modes, change nothing of what a program does.
//!
//! Each round takes a program, functions of a library of it, and a way to trace them, all chosen by the
//! round's seed, which is printed. A round that fails names its seed, its set, and the smallest part of the
//! set that fails, which is mostly one function.
//!
//! `PROFILER_SEED=0x1234 PROFILER_ROUNDS=1` repeats a round.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::SystemTime;

use profiler_tests::Outcome;
use profiler_tests::arbitrary::Random;
use profiler_tests::programs::chosen::{Function, functions, set, smallest};
use profiler_tests::programs::table::PROGRAMS;
use profiler_tests::programs::{Program, Ran};
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use profiler_tests::workload::Unbuilt;

/// Programs, and the objects of each whose functions are traced.
const SUBJECTS: &[(&str, &[&str])] = &[
    ("calls (C)", &["libc:*"]),
    ("calls (C)", &["ld-linux*:*"]),
    ("bash", &["libc:*", "main:*"]),
    ("perl", &["libc:*", "libm:*"]),
    ("throws (C++)", &["libstdc++:*", "libgcc_s:*", "main:*"]),
    ("throws (C++)", &["libc:*", "ld-linux*:*"]),
    ("python3", &["main:*"]),
    ("python3", &["libc:*", "main:*"]),
    ("openssl dgst", &["libcrypto:*", "libssl:*", "main:*"]),
    ("goroutines (Go)", &["main:*"]),
    ("panics (Rust)", &["main:*", "libgcc_s:*", "libc:*"]),
];

/// How returns are seen.
const RETURNS: [&str; 4] = ["auto", "ret-insn", "none", "uretprobe"];

/// Most functions of one set.
const MOST: usize = 512;

#[test]
fn twelve_random_sets() -> Outcome {
    rounds("twelve_random_sets", 12)
}

#[test]
fn five_hundred_random_sets() -> Outcome {
    rounds("five_hundred_random_sets", 500)
}

/// A program, the functions to choose from, and how it runs without the profiler.
struct Subject {
    program: &'static Program,
    functions: Vec<Function>,
    plain: Ran,
}

fn rounds(test: &str, count: u64) -> Outcome {
    let Some(setting) = Setting::new(&format!("e2e_trace_random::{test}"))? else {
        return Ok(());
    };
    let count = number_of("PROFILER_ROUNDS")?.unwrap_or(count);
    let first = match number_of("PROFILER_SEED")? {
        Some(seed) => seed,
        None => SystemTime::UNIX_EPOCH.elapsed()?.as_nanos() as u64,
    };
    let mut known = BTreeMap::new();
    let mut wrong = Vec::new();
    for round in 0..count {
        let seed = first.wrapping_add(round);
        if let Some(what) = one_round(&setting, test, seed, &mut known)? {
            println!("{what}");
            wrong.push(what);
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

fn number_of(variable: &str) -> Result<Option<u64>, Box<dyn Error>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Ok(Some(
        number.map_err(|error| format!("{variable}={text}: {error}"))?,
    ))
}

/// What is wrong with the round of this seed.
fn one_round(
    setting: &Setting,
    test: &str,
    seed: u64,
    known: &mut BTreeMap<usize, Option<Subject>>,
) -> Result<Option<String>, Box<dyn Error>> {
    let mut random = Random(seed);
    let index = random.below(SUBJECTS.len());
    let returns = RETURNS[random.below(RETURNS.len())];
    let mut options = vec!["--returns".to_owned(), returns.to_owned()];
    let more: [&[&str]; 4] = [
        &[],
        &["--probe-at", "entry"],
        &["--args"],
        &["--follow-exact"],
    ];
    options.extend(more[random.below(more.len())].iter().map(|&o| o.to_owned()));
    // With the budget, probes come and go while the program runs; without it all stay.
    if random.below(4) > 0 {
        options.extend(["--budget".to_owned(), "off".to_owned()]);
    }
    if let std::collections::btree_map::Entry::Vacant(entry) = known.entry(index) {
        entry.insert(subject(setting, test, SUBJECTS[index])?);
    }
    let Some(Some(subject)) = known.get(&index) else {
        return Ok(None);
    };
    // To insist on return probes where they are not shown to be harmless is refused, and nothing to try.
    let harmless: Vec<Function>;
    let from = match returns {
        "uretprobe" => {
            let shown = subject.functions.iter().filter(|f| f.return_probe);
            harmless = shown.cloned().collect();
            &harmless
        }
        _ => &subject.functions,
    };
    let name = subject.program.name;
    if from.is_empty() {
        println!(
            "seed {seed:#x}: {name}, {}: nothing to trace",
            options.join(" ")
        );
        return Ok(None);
    }
    let set = set(&mut random, from, MOST);
    println!(
        "seed {seed:#x}: {name}, {} functions of {:?}, {}",
        set.len(),
        SUBJECTS[index].1,
        options.join(" ")
    );
    let Some(what) = harm(setting, subject, &options, &set) else {
        return Ok(None);
    };
    // What fails now and then is tried again before it counts as harmless.
    let least = smallest(&set, &mut |part| {
        (0..2).any(|_| harm(setting, subject, &options, part).is_some())
    });
    Ok(Some(format!(
        "seed {seed:#x}: {name}, {}: {what}; smallest set that fails: {}; the whole set: {}",
        options.join(" "),
        least.join(" "),
        set.join(" ")
    )))
}

fn subject(
    setting: &Setting,
    test: &str,
    (name, objects): (&str, &[&str]),
) -> Result<Option<Subject>, Box<dyn Error>> {
    let program = PROGRAMS.iter().find(|program| program.name == name);
    let program = program.ok_or_else(|| format!("no program {name}"))?;
    if let Some(package) = program.missing() {
        skip(
            &format!("{test}/{name}"),
            &format!("{package} is not installed"),
        );
        return Ok(None);
    }
    let plain = match program.run(setting) {
        Err(error) if error.downcast_ref::<Unbuilt>().is_some() => {
            skip(&format!("{test}/{name}"), &error.to_string());
            return Ok(None);
        }
        plain => plain?,
    };
    let functions = functions(setting, program, objects)?;
    if functions.len() < 30 {
        return Err(format!("only {} functions of {objects:?}", functions.len()).into());
    }
    Ok(Some(Subject {
        program,
        functions,
        plain,
    }))
}

/// What becomes different when these functions are traced.
fn harm(
    setting: &Setting,
    subject: &Subject,
    options: &[String],
    set: &[String],
) -> Option<String> {
    let mut all = options.to_vec();
    all.push("--yes".to_owned());
    for pattern in set {
        all.extend(["--trace".to_owned(), pattern.clone()]);
    }
    match subject.program.record(setting, &all) {
        Err(error) => Some(error.to_string()),
        Ok((ran, _)) => subject.plain.difference(&ran),
    }
}
