//! Names of functions in languages whose compilers not every machine has: as their users write them.
//!
//! Oracle: programs whose modules a and b have a function of one name each, which are called equally often and take
//! one and three parts of the time. What is not installed is skipped; `docs/languages.md` has the table.

use std::path::Path;
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use profiler_tests::statistics::share;
use profiler_tests::workload::source_path;

/// How often each function is called.
const CALLS: u64 = 300;

/// How a program is made: files from the folder of workloads, and commands that end with `main`.
struct Language {
    name: &'static str,
    /// Of each module: in the sources `m@` is ma and mb, `M@` Ma and Mb.
    modules: &'static [&'static str],
    main: &'static str,
    /// One after the other, in the folder of the sources.
    commands: &'static [&'static str],
    /// What the two functions are called.
    functions: [&'static str; 2],
}

const LANGUAGES: &[Language] = &[
    Language {
        name: "Fortran",
        modules: &["f90"],
        main: "main.f90",
        commands: &["gfortran -O1 -fno-inline ma.f90 mb.f90 main.f90 -o main"],
        functions: ["ma::work", "mb::work"],
    },
    Language {
        name: "Fortran with -g",
        modules: &["f90"],
        main: "main.f90",
        commands: &["gfortran -g -O1 -fno-inline ma.f90 mb.f90 main.f90 -o main"],
        functions: ["ma::work", "mb::work"],
    },
    Language {
        name: "Ada",
        modules: &["ads", "adb"],
        main: "main.adb",
        commands: &["gnatmake -q -O1 -fno-inline main.adb"],
        functions: ["ma.work", "mb.work"],
    },
    Language {
        name: "Ada with -g",
        modules: &["ads", "adb"],
        main: "main.adb",
        commands: &["gnatmake -q -g -O1 -fno-inline main.adb"],
        functions: ["ma.work", "mb.work"],
    },
    Language {
        name: "D",
        modules: &["d"],
        main: "main.d",
        commands: &["ldc2 -O1 main.d ma.d mb.d -of=main"],
        functions: [
            "ma.work!(uint).work(uint, ulong)",
            "mb.work!(uint).work(uint, ulong)",
        ],
    },
    Language {
        name: "D with -g",
        modules: &["d"],
        main: "main.d",
        commands: &["ldc2 -g -O1 main.d ma.d mb.d -of=main"],
        functions: [
            "ma.work!(uint).work(uint, ulong)",
            "mb.work!(uint).work(uint, ulong)",
        ],
    },
    Language {
        name: "OCaml",
        modules: &["ml"],
        main: "main.ml",
        commands: &["ocamlopt ma.ml mb.ml main.ml -o main"],
        functions: ["Ma.work", "Mb.work"],
    },
    Language {
        name: "OCaml with -g",
        modules: &["ml"],
        main: "main.ml",
        commands: &["ocamlopt -g ma.ml mb.ml main.ml -o main"],
        functions: ["Ma.work", "Mb.work"],
    },
    Language {
        name: "Nim",
        modules: &["nim"],
        main: "main.nim",
        commands: &["nim c -d:release --hints:off --nimcache:cache main.nim"],
        functions: ["ma.work", "mb.work"],
    },
    Language {
        name: "Nim with debug information",
        modules: &["nim"],
        main: "main.nim",
        commands: &["nim c -d:release --debugger:native --hints:off --nimcache:cache main.nim"],
        functions: ["ma.work", "mb.work"],
    },
    Language {
        name: "Pascal with -gw",
        modules: &["pas"],
        main: "main.pas",
        commands: &["fpc -O2 -gw2 -v0 main.pas -omain"],
        functions: ["MA.WORK(LONGINT, LONGWORD)", "MB.WORK(LONGINT, LONGWORD)"],
    },
];

fn build(setting: &Setting, language: &Language) -> Result<bool, Box<dyn std::error::Error>> {
    let read =
        |file: &str| std::fs::read_to_string(source_path(&format!("names/languages/{file}")));
    for ending in language.modules {
        let source = read(&format!("m.{ending}"))?;
        for module in ["a", "b"] {
            let path = setting.path(&format!("m{module}.{ending}"));
            let named = source.replace("m@", &format!("m{module}"));
            std::fs::write(path, named.replace("M@", &format!("M{module}")))?;
        }
    }
    std::fs::write(setting.path(language.main), read(language.main)?)?;
    for command in language.commands {
        let mut words = command.split(' ');
        let compiler = words.next().unwrap_or_default();
        let mut build = Command::new(compiler);
        let run = match build.args(words).current_dir(setting.folder()).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            run => run?,
        };
        if !run.status.success() {
            let said = String::from_utf8_lossy(&run.stderr);
            return Err(format!("{command}: {said}").into());
        }
    }
    Ok(true)
}

/// Names and shares by samples, the number of calls by probes of just these names.
fn check(setting: &Setting, language: &Language, program: &Path) -> Outcome {
    let program = program.to_string_lossy();
    setting.record(&["-F", "997", "--", &program])?;
    let report = setting.run(&["report", "out.cap", "--format", "json"])?;
    let report = report.success()?.json()?;
    let rows = report["functions"].as_array().ok_or("no functions")?;
    let samples = |name: &str| {
        let rows = rows.iter().filter(|row| row["name"] == name);
        let totals: Vec<usize> = rows
            .filter_map(|row| Some(row["total_samples"].as_u64()? as usize))
            .collect();
        match totals[..] {
            [total] => Ok(total),
            _ => Err(format!(
                "{name}: {totals:?} of {rows:#?}",
                rows = report["functions"]
            )),
        }
    };
    let (a, b) = (
        samples(language.functions[0])?,
        samples(language.functions[1])?,
    );
    share(language.functions[0], a, a + b, 0.25)?;

    let traced = language.functions.map(|name| format!("main:{name}"));
    let mut arguments = vec!["--no-samples"];
    for name in &traced {
        arguments.extend(["--trace", name.as_str()]);
    }
    arguments.extend(["--", &*program]);
    setting.record(&arguments)?;
    let report = setting.run(&["report", "out.cap", "--calls", "--format", "json"])?;
    let report = report.success()?.json()?;
    let rows = report["calls"]["functions"].as_array().ok_or("no calls")?;
    for name in language.functions {
        let calls: Vec<_> = (rows.iter())
            .filter(|row| row["name"] == name)
            .filter_map(|row| row["calls"].as_u64())
            .collect();
        assert_eq!(calls, [CALLS], "{name}: {rows:#?}");
    }
    Ok(())
}

#[test]
fn functions_are_called_what_their_users_call_them() -> Outcome {
    let mut wrong = Vec::new();
    for language in LANGUAGES {
        let test = "e2e_languages::functions_are_called_what_their_users_call_them";
        let Some(setting) = Setting::new(test)? else {
            return Ok(());
        };
        if !build(&setting, language)? {
            skip(&format!("{test}/{}", language.name), "it is not installed");
            continue;
        }
        match check(&setting, language, &setting.path("main")) {
            Ok(()) => eprintln!("{}: right", language.name),
            Err(error) => wrong.push(format!("{}: {error}", language.name)),
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}
