//! What is said at the end of a recording about functions without names: whose they are, and what names them.
//!
//! Samples by file and by program that makes code -> at most one note each for interpreters, for files, for names
//! that were given up, for what can't be read and for run-time code. Debian's lists of files are looked into only where a note is due.
//! Sources: the documentation of each runtime; dpkg's `/var/lib/dpkg/info/PACKAGE.list`.
//!
//! What does not belong here: stacks that are not whole (`stack_notes`).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use profiler_report::view::quantity::{percent, percent_of, plural};
use profiler_resolve::{NameSources, NamelessSamples, Place, name_sources};

/// What concerns fewer samples is not worth a note.
const WORTH_PERCENT: f64 = 2.0;
/// Lists of files that are larger are not read to the end.
const MAX_LIST_BYTES: u64 = 16 << 20;
const LISTS: &str = "/var/lib/dpkg/info";

/// A program that makes code while it runs.
struct Runtime {
    /// How the file's name begins.
    program: &'static str,
    /// What gives its code names.
    names: &'static str,
    /// What makes its stacks whole.
    stacks: &'static str,
}

/// Interpreters whose frames are not read: how the program's name begins, and what names the functions of what it runs.
const INTERPRETERS: [(&str, &str); 6] = [
    (
        "perl",
        "Perl tells no other program the names of its functions",
    ),
    (
        "ruby",
        "Ruby: --yjit --yjit-perf (3.3 and newer) names those that it compiles",
    ),
    (
        "php",
        "PHP: -dopcache.enable_cli=1 -dopcache.jit=function -dopcache.jit_buffer_size=64M -dopcache.jit_debug=0x10 names those that it compiles",
    ),
    (
        "luajit",
        "LuaJIT names what it compiles if it was built with -DLUAJIT_USE_PERFTOOLS",
    ),
    (
        "lua",
        "Lua tells no other program the names of its functions",
    ),
    (
        "guile",
        "Guile tells no other program the names of its functions",
    ),
];

/// A heap image, whose code has names for its own program alone.
const IMAGES: [(&str, &str); 1] = [(
    "sbcl.core",
    "SBCL tells no other program the names of its functions",
)];

const RUNTIMES: [Runtime; 13] = [
    Runtime {
        program: "java",
        names: "Java: `jcmd PID Compiler.perfmap` (JDK 17 and newer), or libperf-jvmti.so",
        stacks: "Java: -XX:+PreserveFramePointer",
    },
    Runtime {
        program: "node",
        names: "Node: --perf-basic-prof --interpreted-frames-native-stack",
        stacks: "Node: --interpreted-frames-native-stack",
    },
    Runtime {
        program: "deno",
        names: "Deno: --v8-flags=--perf-basic-prof,--interpreted-frames-native-stack",
        stacks: "Deno: --v8-flags=--interpreted-frames-native-stack",
    },
    Runtime {
        program: "python",
        names: "CPython: leave out -X perf, frames of 3.8 to 3.13 are read without it",
        stacks: "CPython: leave out -X perf, frames of 3.8 to 3.13 are read without it",
    },
    Runtime {
        program: "pypy",
        names: "PyPy tells no other program the names of its code",
        stacks: "PyPy's code keeps no frame pointers",
    },
    Runtime {
        program: "beam",
        names: "Erlang and Elixir: +JPperf true",
        stacks: "Erlang and Elixir: +JPperf true",
    },
    Runtime {
        program: "luajit",
        names: "LuaJIT: built with -DLUAJIT_USE_PERFTOOLS",
        stacks: "LuaJIT's code keeps no frame pointers; -joff runs without it",
    },
    Runtime {
        program: "ruby",
        names: "Ruby: --yjit-perf (3.3 and newer)",
        stacks: "Ruby: --yjit-perf (3.3 and newer)",
    },
    Runtime {
        program: "php",
        names: "PHP: -dopcache.jit_debug=0x10",
        stacks: "PHP's code keeps no frame pointers; -dopcache.jit=off runs without it",
    },
    Runtime {
        program: "guile",
        names: "Guile tells no other program the names of its code",
        stacks: "Guile's code keeps no frame pointers; GUILE_JIT_THRESHOLD=-1 runs without it",
    },
    Runtime {
        program: "dotnet",
        names: ".NET: DOTNET_PerfMapEnabled=1",
        stacks: ".NET: DOTNET_PerfMapEnabled=1 names what its stacks end in",
    },
    Runtime {
        program: "julia",
        names: "Julia: ENABLE_JITPROFILING=1, in a build with perf's support",
        stacks: "Julia: ENABLE_JITPROFILING=1, in a build with perf's support",
    },
    Runtime {
        program: "wasmtime",
        names: "Wasmtime: --profile=perfmap",
        stacks: "Wasmtime: --profile=perfmap",
    },
];

/// Notes about samples without a function's name, of so many samples; of a capture with what could not be written in it.
pub(super) fn notes(
    nameless: &[(Place, NamelessSamples)],
    samples: u64,
    unwritten: bool,
) -> Vec<String> {
    let mut notes = notes_with(nameless, samples, Path::new(LISTS));
    let not_said: u64 = nameless.iter().map(|(_, sums)| sums.not_said).sum();
    let share = percent_of(not_said, samples);
    if share >= WORTH_PERCENT {
        let why = match unwritten {
            true => "the capture could not be written whole",
            false => "the capture does not say any",
        };
        let note = format!(
            "{} of samples have no name because {why}: `profiler symbolize` finds them",
            percent(share)
        );
        notes.insert(0, note);
    }
    notes
}

fn notes_with(nameless: &[(Place, NamelessSamples)], samples: u64, lists: &Path) -> Vec<String> {
    let is_worth = |part| percent_of(part, samples) >= WORTH_PERCENT;
    let mut notes = Vec::new();
    let interpreter = nameless.iter().find_map(|(place, sums)| match place {
        Place::Program { program } if is_worth(sums.all) => {
            let name = file_name(program);
            let mut known = INTERPRETERS.iter();
            let (_, remedy) = known.find(|(start, _)| name.starts_with(start))?;
            Some((name, remedy, sums.all))
        }
        _ => None,
    });
    if let Some((name, remedy, samples_of)) = interpreter {
        notes.push(format!(
            "{} of samples are in the interpreter {name}, whose own functions are shown, and not those of what it runs: {remedy}",
            percent(percent_of(samples_of, samples)),
        ));
    }
    let given_up: u64 = nameless.iter().map(|(_, sums)| sums.given_up).sum();
    if is_worth(given_up) {
        notes.push(format!(
            "{} of samples have no name because finding it took too long: `profiler symbolize` tries again",
            percent(percent_of(given_up, samples))
        ));
    }
    notes.extend(unreadable(nameless, samples));
    let file = nameless.iter().find_map(|(place, sums)| match place {
        Place::File {
            path,
            build_id,
            in_container,
        } => {
            let unnamed = [
                sums.given_up,
                sums.not_said,
                sums.damaged,
                sums.too_large,
                sums.gone,
            ];
            let unnamed = sums.unnamed.saturating_sub(unnamed.iter().sum());
            let file = (path, build_id.as_ref(), *in_container);
            is_worth(unnamed).then_some((file, unnamed))
        }
        Place::RunTime { .. } | Place::Program { .. } => None,
    });
    if let Some(((path, build_id, in_container), unnamed)) = file {
        let sources = match in_container {
            true => None,
            false => name_sources(path, build_id),
        };
        let share = percent(percent_of(unnamed, samples));
        let count = plural(unnamed, "sample");
        let remedy = file_remedy(sources, || {
            package_of(path, lists).filter(|_| !in_container)
        });
        notes.push(format!(
            "{share} of samples ({count}) are in functions of {path} that have no symbols: {remedy}"
        ));
    }
    let made = nameless.iter().find_map(|(place, sums)| match place {
        Place::RunTime { program } if is_worth(sums.unnamed) => Some((program, sums.unnamed)),
        _ => None,
    });
    if let Some((program, unnamed)) = made {
        let remedy = match runtime(program) {
            Some(runtime) => runtime.names,
            None => "a file /tmp/perf-PID.map, or jitdump, names it",
        };
        notes.push(format!(
            "{} of samples are in code that {} made at run time, without names: {remedy}",
            percent(percent_of(unnamed, samples)),
            file_name(program),
        ));
    }
    notes
}

/// What names functions of a file, by what it has for names, if that is known, and by its package.
fn file_remedy(sources: Option<NameSources>, package: impl FnOnce() -> Option<String>) -> String {
    match sources {
        Some(NameSources {
            debug_info: true, ..
        }) => "it has debug information, which does not tell of them either".into(),
        Some(NameSources { symbols: true, .. }) => {
            "it is not stripped, its symbols leave them out; debug information (a build with -g) may name them".into()
        }
        _ => match package() {
            Some(package) => format!("{} names them", debug_package(&package)),
            None => {
                "a build that is not stripped, or its debug file (--debug-dir), names them".into()
            }
        },
    }
}

/// The file with the most samples that have no names since it can't be read, and why.
fn unreadable(nameless: &[(Place, NamelessSamples)], samples: u64) -> Option<String> {
    let of = |sums: &NamelessSamples| sums.damaged + sums.too_large + sums.gone;
    let (place, sums) = nameless.iter().max_by_key(|(_, sums)| of(sums))?;
    let Place::File { path, .. } = place else {
        return None;
    };
    let mut images = IMAGES.iter();
    let image = images.find(|(name, _)| file_name(path) == *name);
    let most = sums.damaged.max(sums.too_large).max(sums.gone);
    let why = match image {
        Some((_, remedy)) => format!("is no file of a known format: {remedy}"),
        None if sums.damaged == most => "is damaged, or of no known format".to_owned(),
        None if sums.gone == most => {
            "could not be opened: it is gone, over 4 GiB, or its server did not answer".to_owned()
        }
        None => {
            "is too large: it, what it unpacks to, or what reading it takes is more than is allowed"
                .to_owned()
        }
    };
    let share = percent_of(of(sums), samples);
    (share >= WORTH_PERCENT).then(|| {
        format!(
            "{} of samples have no name because {path} {why}",
            percent(share)
        )
    })
}

/// What makes stacks whole that run-time code ended; of the program with the most of them.
pub(super) fn stacks_remedy(nameless: &[(Place, NamelessSamples)]) -> String {
    let most = nameless.iter().max_by_key(|(_, sums)| sums.cut);
    let program = most.and_then(|(place, sums)| match place {
        Place::RunTime { program } if sums.cut > 0 => runtime(program),
        _ => None,
    });
    match program {
        Some(runtime) => format!("code made at run time: {}", runtime.stacks),
        None => {
            "code made at run time needs frame pointers, which its runtime may have a switch for"
                .into()
        }
    }
}

fn runtime(program: &str) -> Option<&'static Runtime> {
    let name = file_name(program);
    (RUNTIMES.iter()).find(|runtime| name.starts_with(runtime.program))
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The package of Debian that a file is of.
fn package_of(path: &str, lists: &Path) -> Option<String> {
    // Packages may list files by where they were before /bin and /lib became links.
    let before = path.strip_prefix("/usr");
    let is_it = |line: &str| line == path || Some(line) == before;
    let mut names: Vec<PathBuf> = std::fs::read_dir(lists)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|list| list.extension().is_some_and(|end| end == "list"))
        .collect();
    names.sort();
    names.into_iter().find_map(|list| {
        let file = BufReader::new(File::open(&list).ok()?.take(MAX_LIST_BYTES));
        let mut lines = file.lines().map_while(Result::ok);
        let name = || Some(list.file_stem()?.to_str()?.split(':').next()?.to_owned());
        lines.any(|line| is_it(&line)).then(name)?
    })
}

/// Where Debian has the debug symbols of a package.
fn debug_package(package: &str) -> String {
    match package {
        "libc6" => "the package libc6-dbg".to_owned(),
        _ => format!(
            "the package {package}-dbgsym (of Debian's archive debian-debug), or --debuginfod,"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, unnamed: u64, given_up: u64) -> (Place, NamelessSamples) {
        let place = Place::File {
            path: path.into(),
            build_id: None,
            in_container: false,
        };
        let sums = NamelessSamples {
            unnamed,
            given_up,
            ..NamelessSamples::default()
        };
        (place, sums)
    }

    fn made(program: &str, unnamed: u64, cut: u64) -> (Place, NamelessSamples) {
        let place = Place::RunTime {
            program: program.into(),
        };
        let sums = NamelessSamples {
            unnamed,
            cut,
            ..NamelessSamples::default()
        };
        (place, sums)
    }

    #[test]
    fn the_debug_package_is_named() {
        let lists = std::env::temp_dir().join(format!("profiler-lists-{}", std::process::id()));
        std::fs::create_dir_all(&lists).unwrap();
        std::fs::write(lists.join("gzip.list"), "/.\n/bin\n/bin/gzip\n").unwrap();
        std::fs::write(lists.join("other.list"), "/usr/bin/gzip2\n").unwrap();
        std::fs::write(
            lists.join("libc6:amd64.list"),
            "/lib/x86_64-linux-gnu/libc.so.6\n",
        )
        .unwrap();
        let said = |place| notes_with(&[place], 1000, &lists);
        let gzip = said(file("/usr/bin/gzip", 842, 0));
        assert_eq!(gzip.len(), 1);
        assert!(
            gzip[0].contains("84.2% of samples (842 samples)"),
            "{gzip:?}"
        );
        assert!(gzip[0].contains("package gzip-dbgsym"), "{gzip:?}");
        let libc = said(file("/usr/lib/x86_64-linux-gnu/libc.so.6", 500, 0));
        assert!(libc[0].contains("package libc6-dbg names"), "{libc:?}");
        let own = said(file("/opt/own", 500, 0));
        assert!(own[0].contains("not stripped"), "{own:?}");
        assert!(said(file("/usr/bin/gzip", 19, 0)).is_empty());
        std::fs::remove_dir_all(&lists).unwrap();
    }

    #[test]
    fn a_file_that_is_not_stripped_is_not_called_so() {
        let has = |symbols, debug_info| {
            let sources = NameSources {
                symbols,
                debug_info,
            };
            file_remedy(Some(sources), || Some("app".into()))
        };
        assert!(has(true, false).contains("is not stripped, its symbols"));
        assert!(has(true, true).contains("it has debug information"));
        assert!(has(false, true).contains("it has debug information"));
        assert!(has(false, false).contains("app-dbgsym"));
        assert!(file_remedy(None, || None).contains("a build that is not stripped"));
    }

    #[test]
    fn what_was_given_up_comes_later() {
        let said = notes_with(&[file("/a", 500, 500)], 1000, Path::new("/nowhere"));
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("`profiler symbolize`"), "{said:?}");
    }

    #[test]
    fn names_that_a_capture_does_not_have_are_not_missing_in_the_file() {
        let (place, mut sums) = file("/usr/bin/gzip", 500, 0);
        sums.not_said = 500;
        for (unwritten, why) in [(true, "could not be written"), (false, "does not say any")] {
            let said = notes(&[(place.clone(), sums)], 1000, unwritten);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(why), "{said:?}");
            assert!(said[0].contains("`profiler symbolize`"), "{said:?}");
        }
    }

    #[test]
    fn what_can_not_be_read_has_its_own_reason() {
        for (path, damaged, too_large, gone, why) in [
            ("/a", 500, 0, 0, "/a is damaged"),
            ("/a", 0, 500, 0, "/a is too large"),
            ("/a", 0, 0, 500, "/a could not be opened"),
            ("/usr/lib/sbcl/sbcl.core", 500, 0, 0, "SBCL tells"),
        ] {
            let (place, mut sums) = file(path, 500, 0);
            (sums.damaged, sums.too_large, sums.gone) = (damaged, too_large, gone);
            let said = notes_with(&[(place, sums)], 1000, Path::new("/nowhere"));
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(why), "{said:?}");
        }
    }

    #[test]
    fn interpreters_say_whose_functions_they_are() {
        for (program, remedy) in [
            ("/usr/bin/perl", "Perl tells no other"),
            ("/usr/bin/php8.2", "jit_debug=0x10"),
            ("/usr/bin/luajit-2.1", "PERFTOOLS"),
            ("/usr/bin/lua5.4", "Lua tells no other"),
            ("/usr/bin/ruby3.1", "--yjit-perf"),
        ] {
            let place = Place::Program {
                program: program.into(),
            };
            let of = |all| NamelessSamples {
                all,
                ..NamelessSamples::default()
            };
            let said = notes_with(&[(place.clone(), of(500))], 1000, Path::new("/nowhere"));
            assert!(said[0].contains(remedy), "{said:?}");
            assert!(notes_with(&[(place, of(5))], 1000, Path::new("/nowhere")).is_empty());
        }
        let gzip = Place::Program {
            program: "/usr/bin/gzip".into(),
        };
        let all = NamelessSamples {
            all: 500,
            ..NamelessSamples::default()
        };
        assert!(notes_with(&[(gzip, all)], 1000, Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn each_runtime_has_its_own_remedy() {
        for (program, names, stacks) in [
            ("/usr/lib/jvm/bin/java", "perfmap", "PreserveFramePointer"),
            ("/usr/bin/node", "--perf-basic-prof", "--interpreted-frames"),
            ("/usr/lib/erlang/erts/bin/beam.smp", "+JPperf", "+JPperf"),
            ("/usr/bin/luajit-2.1", "PERFTOOLS", "-joff"),
            ("/usr/bin/python3.12", "-X perf", "-X perf"),
            ("/usr/bin/php8.2", "0x10", "opcache.jit=off"),
            ("/opt/own-engine", "perf-PID.map", "frame pointers"),
        ] {
            let place = made(program, 500, 100);
            let said = notes_with(std::slice::from_ref(&place), 1000, Path::new("/nowhere"));
            assert!(said[0].contains(names), "{program}: {said:?}");
            let said = stacks_remedy(&[file("/a", 900, 0), place]);
            assert!(said.contains(stacks), "{program}: {said}");
        }
        assert!(stacks_remedy(&[]).contains("frame pointers"));
    }
}
