//! Names of functions in languages whose compilers not every machine has: as their users write them.
//!
//! Oracle: programs whose modules a and b have a function of one name each, which are called equally often and take
//! one and three parts of the time. Of run-time code and interpreters: what is said of the names that are missing, and
//! with the switch that is named there the same. What is not installed is skipped; `docs/languages.md` has the table.

use std::path::Path;
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::process;
use profiler_tests::setting::{LIMIT, Setting};
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
    Language {
        name: "Haskell",
        modules: &["hs"],
        main: "main.hs",
        commands: &["ghc -v0 -O1 ma.hs mb.hs main.hs -o main"],
        functions: ["Ma.$wwork", "Mb.$wwork"],
    },
    Language {
        name: "Haskell with -g",
        modules: &["hs"],
        main: "main.hs",
        commands: &["ghc -v0 -g -O1 ma.hs mb.hs main.hs -o main"],
        functions: ["Ma.$wwork", "Mb.$wwork"],
    },
    Language {
        name: "Zig",
        modules: &["zig"],
        main: "main.zig",
        commands: &["zig build-exe -O ReleaseFast main.zig --name main"],
        functions: ["ma.work", "mb.work"],
    },
    Language {
        name: "Crystal",
        modules: &["cr"],
        main: "main.cr",
        commands: &["crystal build --release -o main main.cr"],
        functions: [
            "*Ma::work<UInt64, UInt64>:UInt64",
            "*Mb::work<UInt64, UInt64>:UInt64",
        ],
    },
    Language {
        name: "Crystal without debug information",
        modules: &["cr"],
        main: "main.cr",
        commands: &["crystal build --release --no-debug -o main main.cr"],
        functions: [
            "*Ma::work<UInt64, UInt64>:UInt64",
            "*Mb::work<UInt64, UInt64>:UInt64",
        ],
    },
];

/// A program whose code only its runtime knows.
struct Runtime {
    name: &'static str,
    modules: &'static [&'static str],
    main: &'static str,
    /// One after the other, in the folder of the sources.
    commands: &'static [&'static str],
    /// What is run.
    command: &'static str,
    /// What is said to name its functions.
    hint: &'static str,
    /// The same with that, and what functions are called then.
    named: Option<(&'static str, [&'static str; 2])>,
}

const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Erlang",
        modules: &["erl"],
        main: "main.erl",
        commands: &["erlc ma.erl mb.erl main.erl"],
        command: "erl -noinput -s main start",
        hint: "+JPperf true",
        named: Some((
            "erl +JPperf true -noinput -s main start",
            ["ma:work/2", "mb:work/2"],
        )),
    },
    Runtime {
        name: "PHP, interpreted",
        modules: &["php"],
        main: "main.php",
        commands: &[],
        command: "php main.php",
        hint: "-dopcache.jit=function -dopcache.jit_buffer_size=64M -dopcache.jit_debug=0x10",
        named: Some((
            "php -dopcache.enable_cli=1 -dopcache.jit=function -dopcache.jit_buffer_size=64M -dopcache.jit_debug=0x10 main.php",
            ["Ma::work", "Mb::work"],
        )),
    },
    Runtime {
        name: "PHP, compiled by traces",
        modules: &["php"],
        main: "main.php",
        commands: &[],
        command: "php -dopcache.enable_cli=1 -dopcache.file_update_protection=0 -dopcache.jit=tracing -dopcache.jit_buffer_size=64M main.php",
        hint: "PHP: -dopcache.jit_debug=0x10",
        named: Some((
            "php -dopcache.enable_cli=1 -dopcache.file_update_protection=0 -dopcache.jit=tracing -dopcache.jit_buffer_size=64M -dopcache.jit_debug=0x10 main.php",
            ["Ma::work", "Mb::work"],
        )),
    },
    Runtime {
        name: "Node",
        modules: &["js"],
        main: "main.js",
        commands: &[],
        command: "node main.js",
        hint: "--perf-basic-prof --interpreted-frames-native-stack",
        named: Some((
            "node --perf-basic-prof --interpreted-frames-native-stack main.js",
            ["work (ma.js)", "work (mb.js)"],
        )),
    },
    Runtime {
        name: "Perl",
        modules: &[],
        main: "main.pl",
        commands: &[],
        command: "perl main.pl",
        hint: "Perl tells no other program",
        named: None,
    },
    Runtime {
        name: "Lua",
        modules: &[],
        main: "main.lua",
        commands: &[],
        command: "lua5.4 main.lua",
        hint: "Lua tells no other program",
        named: None,
    },
    Runtime {
        name: "LuaJIT",
        modules: &[],
        main: "main.lua",
        commands: &[],
        command: "luajit main.lua",
        hint: "LuaJIT: built with -DLUAJIT_USE_PERFTOOLS",
        named: None,
    },
    Runtime {
        name: "Ruby",
        modules: &[],
        main: "main.rb",
        commands: &[],
        command: "ruby main.rb",
        hint: "Ruby: --yjit --yjit-perf",
        named: None,
    },
    Runtime {
        name: "SBCL",
        modules: &[],
        main: "main.lisp",
        commands: &[],
        command: "sbcl --script main.lisp",
        hint: "SBCL tells no other program",
        named: None,
    },
];

/// Whether there is what makes it.
fn build(
    setting: &Setting,
    (modules, main): (&[&str], &str),
    commands: &[&str],
) -> Result<bool, Box<dyn std::error::Error>> {
    let read =
        |file: &str| std::fs::read_to_string(source_path(&format!("names/languages/{file}")));
    for ending in modules {
        let source = read(&format!("m.{ending}"))?;
        for module in ["a", "b"] {
            let path = setting.path(&format!("m{module}.{ending}"));
            let named = source.replace("m@", &format!("m{module}"));
            std::fs::write(path, named.replace("M@", &format!("M{module}")))?;
        }
    }
    std::fs::write(setting.path(main), read(main)?)?;
    for command in commands {
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

/// Two functions in one row each, with one and three parts of the time.
fn shares(setting: &Setting, functions: [&str; 2]) -> Outcome {
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
    let (a, b) = (samples(functions[0])?, samples(functions[1])?);
    Ok(share(functions[0], a, a + b, 0.25)?)
}

/// What is said by default, and the names with what is said.
fn check_runtime(setting: &Setting, runtime: &Runtime) -> Outcome {
    let record = |command: &str| {
        let capture = setting.path("out.cap").to_string_lossy().into_owned();
        let mut recorder = setting.profiler();
        recorder.args(["-v", "record", "--force", "-F", "997", "-o", &capture, "--"]);
        recorder.args(command.split(' '));
        let ended = process::run(&mut recorder, setting.folder(), "record", LIMIT)?.success()?;
        Ok::<_, Box<dyn std::error::Error>>(ended.stderr)
    };
    let said = record(runtime.command)?;
    let report = setting.run(&["report", "out.cap"])?.success()?;
    for said in [&said, &report.stderr] {
        if !said.contains(runtime.hint) {
            return Err(format!("no '{}' in: {said}", runtime.hint).into());
        }
    }
    if let Some((command, functions)) = runtime.named {
        record(command)?;
        let shares = shares(setting, functions);
        // The runtime has left it.
        let report = setting.run(&["report", "out.cap", "--format", "json"])?;
        let report = report.success()?.json()?;
        let processes = report["processes"].as_array().ok_or("no processes")?;
        for pid in processes.iter().filter_map(|row| row["pid"].as_u64()) {
            let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
        }
        shares?;
    }
    Ok(())
}

/// Names and shares by samples, the number of calls by probes of just these names.
fn check(setting: &Setting, language: &Language, program: &Path) -> Outcome {
    let program = program.to_string_lossy();
    setting.record(&["-F", "997", "--", &program])?;
    shares(setting, language.functions)?;

    let traced = language.functions.map(|name| format!("main:{name}"));
    let mut arguments = vec!["--budget", "off", "--no-samples"];
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
        let sources = (language.modules, language.main);
        if !build(&setting, sources, language.commands)? {
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

/// GHC has no symbols for what is local; with -g it says which code that is, and where it was written.
#[test]
fn functions_of_haskell_that_are_local_are_two() -> Outcome {
    let test = "e2e_languages::functions_of_haskell_that_are_local_are_two";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let commands = ["ghc -v0 -g -O1 local.hs -o main"];
    if !build(&setting, (&[], "local.hs"), &commands)? {
        skip(test, "it is not installed");
        return Ok(());
    }
    let program = setting.path("main");
    setting.record(&["-F", "997", "--", &program.to_string_lossy()])?;
    let functions = ["Main.main (local.hs:11)", "Main.main (local.hs:13)"];
    shares(&setting, functions)
}

#[test]
fn runtimes_say_what_names_their_functions() -> Outcome {
    let mut wrong = Vec::new();
    for runtime in RUNTIMES {
        let test = "e2e_languages::runtimes_say_what_names_their_functions";
        let Some(setting) = Setting::new(test)? else {
            return Ok(());
        };
        let program = runtime.command.split(' ').next().unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
        let sources = (runtime.modules, runtime.main);
        if !is_there || !build(&setting, sources, runtime.commands)? {
            skip(&format!("{test}/{}", runtime.name), "it is not installed");
            continue;
        }
        match check_runtime(&setting, runtime) {
            Ok(()) => eprintln!("{}: right", runtime.name),
            Err(error) => wrong.push(format!("{}: {error}", runtime.name)),
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}
