//! The programs of the tests, built by each compiler that is there in several ways.

use std::path::{Path, PathBuf};

use profiler_tests::workload;

/// One way to build one of the programs.
pub struct Build {
    /// Its compiler.
    pub compiler: &'static str,
    /// The program, in `workloads`.
    pub source: &'static str,
    /// Flags of the compiler.
    pub flags: &'static [&'static str],
}

const fn build(
    compiler: &'static str,
    source: &'static str,
    flags: &'static [&'static str],
) -> Build {
    Build {
        compiler,
        source,
        flags,
    }
}

const BUILDS: &[Build] = &[
    build("gcc", "arguments.c", &["-O0", "-gdwarf-5"]),
    build("gcc", "arguments.c", &["-O2", "-gdwarf-5"]),
    build("gcc", "arguments.c", &["-O0", "-gdwarf-4"]),
    build("gcc", "arguments.c", &["-O2", "-gdwarf-4", "-no-pie"]),
    build(
        "gcc",
        "arguments.c",
        &["-O2", "-gdwarf-5", "-fdebug-types-section"],
    ),
    build(
        "gcc",
        "arguments.c",
        &["-O2", "-gdwarf-4", "-fdebug-types-section"],
    ),
    build("gcc", "arguments.c", &["-O2", "-g", "-flto"]),
    build("clang", "arguments.c", &["-O0", "-gdwarf-5"]),
    build("clang", "arguments.c", &["-O2", "-gdwarf-5"]),
    build("clang", "arguments.c", &["-O2", "-gdwarf-4"]),
    build("g++", "arguments.cpp", &["-O0", "-gdwarf-5"]),
    build("g++", "arguments.cpp", &["-O2", "-gdwarf-5"]),
    build("g++", "arguments.cpp", &["-O0", "-gdwarf-4"]),
    build(
        "g++",
        "arguments.cpp",
        &["-O2", "-gdwarf-4", "-fdebug-types-section"],
    ),
    build("clang++", "arguments.cpp", &["-O0", "-gdwarf-5"]),
    build("clang++", "arguments.cpp", &["-O2", "-gdwarf-4"]),
    build(
        "clang++",
        "arguments.cpp",
        &["-O2", "-gdwarf-5", "-fstandalone-debug"],
    ),
    build("rustc", "arguments.rs", &["-Copt-level=0", "-Cdebuginfo=2"]),
    build("rustc", "arguments.rs", &["-Copt-level=2", "-Cdebuginfo=2"]),
    build(
        "rustc",
        "arguments.rs",
        &["-Copt-level=3", "-Cdebuginfo=2", "-Cdwarf-version=5"],
    ),
    build(
        "go",
        "arguments.go",
        &["build", "-ldflags=-compressdwarf=false"],
    ),
    build(
        "go",
        "arguments.go",
        &["build", "-ldflags=-compressdwarf=false", "-gcflags=-N -l"],
    ),
];

/// Path of a program's source.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("workloads")
        .join(name)
}

/// The programs that can be built here; a compiler that is missing is said.
pub fn built(test: &str, wanted: impl Fn(&Build) -> bool) -> Vec<(&'static Build, PathBuf)> {
    let folder = workload::folder().join("arguments");
    std::fs::create_dir_all(&folder).unwrap();
    let mut found = Vec::new();
    for (index, build) in BUILDS.iter().enumerate().filter(|(_, build)| wanted(build)) {
        let output = folder.join(format!("{test}-{index}"));
        let mut command = workload::compiler(build.compiler);
        // Go wants its flags first.
        let flags = command.args(build.flags);
        flags.arg("-o").arg(&output).arg(source(build.source));
        match build.source.rsplit_once('.').unwrap().1 {
            "rs" => command.args(["--edition=2024", "-Awarnings"]),
            "cpp" => command.arg("-std=c++20"),
            _ => &mut command,
        };
        match command.output() {
            Ok(run) => assert!(
                run.status.success(),
                "{command:?}: {}",
                String::from_utf8_lossy(&run.stderr)
            ),
            Err(error) => {
                profiler_tests::skip::skip(test, &format!("{}: {error}", build.compiler));
                continue;
            }
        }
        found.push((build, output));
    }
    found
}
