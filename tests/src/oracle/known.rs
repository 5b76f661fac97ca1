//! Workloads that know their chains of calls (`tests/workloads/unwind`): how they are built, and whether a
//! stack is one of theirs.
//!
//! A program says its chains, leaf first. At any of its instructions the known frames of a stack are the
//! end of one of them: from the outermost known function up to some callee, without a gap and without
//! one too many.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_common::sample::EXACT_ADDRESS;

use super::Proof;
use super::files::Space;
use crate::workload::{self, Unbuilt};

/// How a workload is built.
#[derive(Clone, Debug)]
pub struct Build {
    /// The source in `tests/workloads/unwind`.
    pub source: &'static str,
    /// The compiler.
    pub compiler: &'static str,
    /// Its flags.
    pub flags: Vec<&'static str>,
    /// Whether the C library says how to find callers: musl's, of Debian, does not.
    pub library_has_rows: bool,
    /// Whether symbols and sections of no use at run time are removed afterwards.
    pub stripped: bool,
}

/// A workload that was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The program.
    pub program: PathBuf,
    /// The program with its symbols: the same one if it was not stripped.
    pub named: PathBuf,
}

/// Levels of optimisation of C compilers.
pub const LEVELS: [&str; 5] = ["-O0", "-O1", "-O2", "-O3", "-Os"];

/// Flags that change frames, each tried at `-O2`.
pub const VARIANTS: &[&[&str]] = &[
    &["-fno-omit-frame-pointer"],
    &["-fomit-frame-pointer"],
    &["-fcf-protection=full"],
    &["-mstackrealign"],
    &["-fstack-clash-protection"],
    &["-fstack-protector-all"],
    &["-fno-plt"],
    &["-Wl,-z,lazy"],
    &["-Wl,-z,now", "-no-pie"],
    &["-ffunction-sections"],
    &["-static"],
    &["-static-pie"],
    &["-flto"],
    &["huge.S"],
];

/// The ways to build that the usual tests take, by their names: each source and compiler, and what changes
/// frames most. `PROFILER_ALL_BUILDS=1` takes all.
const USUAL: &[&str] = &[
    "chains.c gcc -O0",
    "chains.c gcc -O2",
    "chains.c gcc -O2 -mstackrealign",
    "chains.c gcc -O2 -fcf-protection=full",
    "chains.c gcc -O2 -Wl,-z,lazy",
    "chains.c gcc -O2 huge.S",
    "chains.c clang -O2",
    "chains.c musl-gcc -O2 -static",
    "throws.cpp g++ -O2",
    "throws.cpp clang++ -O2",
    "chains.rs rustc -Copt-level=0",
    "chains.rs rustc -Copt-level=3",
    "chains.c gcc -static-pie stripped",
];

/// The usual ways to build, or all of them if the environment asks for that, or for what takes long.
pub fn usual_builds() -> Vec<Build> {
    let mut usual = builds();
    let all = std::env::var_os("PROFILER_ALL_BUILDS").is_some_and(|value| value == "1");
    if !all && !crate::skip::long() {
        usual.retain(|build| USUAL.contains(&&*build.name()));
    }
    usual
}

/// All ways to build, each compiler and level, and each variant.
pub fn builds() -> Vec<Build> {
    let mut builds = Vec::new();
    let mut add = |source, compiler, flags: &[&'static str]| {
        builds.push(Build {
            source,
            compiler,
            flags: flags.to_vec(),
            library_has_rows: compiler != "musl-gcc",
            stripped: false,
        });
    };
    for compiler in ["gcc", "clang"] {
        for level in LEVELS {
            add("chains.c", compiler, &[level]);
        }
        for variant in VARIANTS {
            if compiler == "clang" && ["-flto", "huge.S"].contains(&variant[0]) {
                // The one needs another linker, of the other one is enough.
                continue;
            }
            let flags = [&["-O2"], *variant].concat();
            add("chains.c", compiler, &flags);
        }
    }
    add("chains.c", "musl-gcc", &["-O2"]);
    add("chains.c", "musl-gcc", &["-O2", "-static"]);
    for compiler in ["g++", "clang++"] {
        for level in ["-O0", "-O2", "-Os"] {
            add("throws.cpp", compiler, &[level]);
        }
    }
    add("throws.cpp", "g++", &["-O2", "-static"]);
    for flags in [
        &["-Copt-level=0"][..],
        &["-Copt-level=1"],
        &["-Copt-level=2"],
        &["-Copt-level=3"],
        &["-Copt-level=s"],
        &["-Copt-level=3", "-Cforce-frame-pointers=yes"],
        &["-Copt-level=3", "-Ctarget-feature=+crt-static"],
    ] {
        add("chains.rs", "rustc", flags);
    }
    for (source, compiler, flag) in [
        ("chains.c", "gcc", "-O2"),
        ("chains.c", "gcc", "-static-pie"),
        ("throws.cpp", "g++", "-O2"),
        ("chains.rs", "rustc", "-Copt-level=3"),
    ] {
        builds.push(Build {
            source,
            compiler,
            flags: vec![flag],
            library_has_rows: true,
            stripped: true,
        });
    }
    builds
}

/// Builds `reopens` and its two libraries, in this order.
pub fn reopens() -> Result<[PathBuf; 3], Unbuilt> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/unwind");
    let inputs = [folder.join("reopens.c"), folder.join("known.h")];
    let make = |name: &str, flags: &[&str]| {
        workload::made(name, &inputs, |fresh| {
            let mut command = Command::new("cc");
            command.arg("-O2").args(flags).arg("-o").arg(fresh);
            command.arg(&inputs[0]).arg("-ldl");
            ("cc", command)
        })
    };
    Ok([
        make("unwind-reopens", &[])?,
        make("unwind-reopens-1.so", &["-DPLUGIN=1", "-shared", "-fPIC"])?,
        make("unwind-reopens-2.so", &["-DPLUGIN=2", "-shared", "-fPIC"])?,
    ])
}

/// Builds the two programs of `execs`, which lie at the same addresses.
pub fn execs() -> Result<[PathBuf; 2], Unbuilt> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/unwind");
    let inputs = [folder.join("execs.c"), folder.join("known.h")];
    let make = |name: &str, side: &str| {
        workload::made(name, &inputs, |fresh| {
            let mut command = Command::new("cc");
            command.args(["-O2", "-static", "-no-pie", side]);
            command.arg("-o").arg(fresh).arg(&inputs[0]);
            ("cc", command)
        })
    };
    Ok([
        make("unwind-execs-1", "-DSIDE=1")?,
        make("unwind-execs-2", "-DSIDE=2")?,
    ])
}

impl Build {
    /// What it is called.
    pub fn name(&self) -> String {
        let stripped = if self.stripped { " stripped" } else { "" };
        let flags = self.flags.join(" ");
        format!("{} {} {flags}{stripped}", self.source, self.compiler)
    }

    /// Builds it, if it is not there yet.
    pub fn make(&self) -> Result<Built, Unbuilt> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/unwind");
        let input = folder.join(self.source);
        let output = format!("unwind-{}", self.name().replace([' ', ',', '='], "_"));
        let output = output.trim_end_matches("_stripped");
        let named = workload::made(output, &[input.clone(), folder.join("known.h")], |fresh| {
            let mut command = match self.compiler {
                "rustc" => workload::compiler("rustc"),
                compiler => Command::new(compiler),
            };
            command.arg("-o").arg(fresh).arg(&input);
            for flag in &self.flags {
                // Further sources are in the same folder.
                match flag.ends_with(".S") {
                    true => command.arg(folder.join(flag)),
                    false => command.arg(flag),
                };
            }
            match self.compiler {
                "rustc" => command.args(["--edition", "2024"]),
                _ => command.args(["-Wall", "-Wextra", "-Werror", "-lm", "-lpthread"]),
            };
            (self.compiler, command)
        })?;
        if !self.stripped {
            return Ok(Built {
                program: named.clone(),
                named,
            });
        }
        let inputs = std::slice::from_ref(&named);
        let program = workload::made(&format!("{output}_stripped"), inputs, |fresh| {
            let mut command = Command::new("strip");
            command.arg("--strip-all").arg("-o").arg(fresh).arg(&named);
            ("strip", command)
        })?;
        Ok(Built { program, named })
    }
}

/// The chains of a workload, and what was found of them.
#[derive(Debug, Default)]
pub struct Chains {
    /// Leaf first, and how often each was found whole.
    pub expected: BTreeMap<Vec<String>, u64>,
    /// Stacks that are the end of a chain.
    pub right: u64,
    /// Stacks with known functions that are no end of one, by their names, with an example.
    pub wrong: BTreeMap<Vec<String>, (u64, String)>,
    /// Stacks that end early, and say so, or while an exception lands: a piece of a chain, without a gap.
    pub cut: u64,
    /// Stacks without a known function: before `main`, behind it.
    pub outside: u64,
}

impl Chains {
    /// Reads the lines that a workload writes.
    pub fn parse(text: &str) -> io::Result<Chains> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("chain: "));
        let expected: BTreeMap<_, _> = lines
            .map(|line| (line.split_whitespace().map(str::to_owned).collect(), 0))
            .collect();
        if expected.is_empty() {
            return Err(io::Error::other("a workload says no chains"));
        }
        Ok(Chains {
            expected,
            ..Chains::default()
        })
    }

    /// Judges a stack.
    pub fn add(&mut self, proof: &Proof, space: &Space<'_>) {
        let names = proof.chain.iter().enumerate().map(|(index, address)| {
            let is_return = index > 0 && address & EXACT_ADDRESS == 0;
            space.function(address & !EXACT_ADDRESS, is_return)
        });
        let names: Vec<&str> = names.map(|name| name.unwrap_or("?")).collect();
        let complete = proof.end == profiler_model::StackEnd::Complete;
        self.add_names(&names, complete);
    }

    /// Judges a stack by the names of its frames, leaf first.
    pub fn add_names(&mut self, names: &[&str], complete: bool) {
        let is_known = |name: &&&str| **name == "main" || name.starts_with("known_");
        let found: Vec<&str> = names.iter().filter(is_known).copied().collect();
        if found.is_empty() {
            self.outside += 1;
            return;
        }
        let mut fits = false;
        for (chain, whole) in &mut self.expected {
            let ends = chain.len() >= found.len()
                && chain[chain.len() - found.len()..].iter().eq(found.iter());
            fits |= ends;
            // A leaf's own callee is a matter of luck.
            *whole += u64::from(complete && ends && chain.len() <= found.len() + 1);
        }
        let mut chains = self.expected.keys();
        let is_piece = chains.any(|chain| {
            let mut pieces = chain.windows(found.len());
            pieces.any(|piece| piece.iter().eq(found.iter()))
        });
        // Where an exception lands, the frame of the function that unwinds is gone, and its rules still say where it was.
        // Just before, the registers of where it lands are written over those that this function has saved: behind its
        // caller comes the one of where it lands.
        let unwinds = |inner: &[&str]| inner.iter().any(|name| name.starts_with("_Unwind_"));
        let leads_there = |chain: &Vec<String>| {
            let mut behind = chain.iter().map(String::as_str);
            behind.any(|name| name == found[0]) && behind.collect::<Vec<_>>().ends_with(&found[1..])
        };
        // Or its own rule, by the old frame, leads back to what threw, if it is as large as the one between.
        let leads_back = |chain: &Vec<String>| {
            let threw = &found[1..];
            threw.contains(&found[0]) && threw.iter().eq(chain)
        };
        let has_landed = unwinds(&names[..1]) && is_piece;
        let is_to_land = unwinds(&names[..names.len().min(2)])
            && (self.expected.keys()).any(|chain| leads_there(chain) || leads_back(chain));
        if !complete && is_piece || !fits && (has_landed || is_to_land) {
            self.cut += 1;
            return;
        }
        if !fits {
            let found = found.iter().map(|name| (*name).to_owned()).collect();
            let entry = self.wrong.entry(found);
            entry.or_insert_with(|| (0, names.join(" "))).0 += 1;
            return;
        }
        self.right += 1;
    }

    /// How many stacks are no end of a chain.
    pub fn wrong(&self) -> u64 {
        self.wrong.values().map(|(count, _)| count).sum()
    }

    /// How many chains were found whole, their leaf's callee aside.
    pub fn whole(&self) -> usize {
        self.expected.values().filter(|count| **count > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_builds_are_some_of_all() {
        let all: Vec<String> = builds().iter().map(Build::name).collect();
        for name in USUAL {
            assert!(all.iter().any(|one| one == name), "{name}");
        }
        assert!(USUAL.len() * 2 < all.len());
    }

    #[test]
    fn only_ends_of_chains_are_right() {
        let text = "chain: known_c known_b known_a main\nready\nchain: known_d main\n";
        let mut chains = Chains::parse(text).unwrap();
        chains.add_names(
            &[
                "memcpy", "known_c", "known_b", "qsort", "known_a", "main", "_start",
            ],
            true,
        );
        chains.add_names(&["known_a", "main"], true);
        chains.add_names(&["main", "_start"], true);
        chains.add_names(&["_start"], true);
        assert_eq!((chains.right, chains.wrong(), chains.outside), (3, 0, 1));
        // A frame is missing, one is there twice, the outermost is missing.
        chains.add_names(&["known_c", "known_a", "main"], true);
        chains.add_names(&["known_b", "known_a", "known_a", "main"], true);
        chains.add_names(&["known_c", "known_b", "known_a"], true);
        assert_eq!((chains.right, chains.wrong()), (3, 3));
        // One that ends early and says so may lack what is further out, but nothing in between.
        chains.add_names(&["known_c", "known_b"], false);
        chains.add_names(&["known_c", "known_a"], false);
        assert_eq!((chains.right, chains.cut, chains.wrong()), (3, 1, 4));
        chains.add_names(&["_Unwind_RaiseException", "known_b"], true);
        chains.add_names(&["_Unwind_RaiseException", "known_c", "known_a"], true);
        assert_eq!((chains.right, chains.cut, chains.wrong()), (3, 2, 5));
        let lands = ["uw_install_context_1", "_Unwind_Resume", "known_c", "main"];
        chains.add_names(&lands, true);
        chains.add_names(&lands[1..], true);
        assert_eq!((chains.right, chains.cut, chains.wrong()), (3, 4, 5));
        let back = [
            "_Unwind_Resume",
            "known_b",
            "known_c",
            "known_b",
            "known_a",
            "main",
        ];
        chains.add_names(&back, true);
        assert_eq!((chains.right, chains.cut, chains.wrong()), (3, 5, 5));
        // Without that, and not where one lands in the chain.
        chains.add_names(&lands[2..], true);
        chains.add_names(&["_Unwind_Resume", "known_c", "known_c", "main"], true);
        chains.add_names(&back[1..], true);
        assert_eq!((chains.right, chains.cut, chains.wrong()), (3, 5, 8));
        assert_eq!(chains.whole(), 2);
    }
}
