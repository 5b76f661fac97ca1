//! Arguments and results of real programs: what is decoded is what they were called with.
//!
//! Each compiler's program is run under ptrace, stopped where a probe would be, and its registers
//! and memory are fetched as `call` in `profiler-common` says, by an interpreter of this test's
//! own. What the calls have to be shown as is written beside the functions, in the programs. Names
//! and types of parameters are gdb's. Also: damaged debug information, and a large file's time.

// A test may panic, outside of the functions that are marked as tests too.
#![allow(clippy::unwrap_used)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::trace_arguments_shared::build::{Build, built, source};
use crate::trace_arguments_shared::elf::Elf;
use crate::trace_arguments_shared::traced::{Stop, Traced};
use profiler_common::call::*;
use profiler_trace::arguments::{Missing, Signature, Signatures};
use proptest::prelude::*;

/// Most bytes of a text that the tests keep.
const TEXT_BYTES: usize = 64;

/// A call as the program's source says it is to be shown.
#[derive(Debug)]
struct Expected {
    name: String,
    shown: String,
    /// The compiler may rearrange the parameters.
    free: bool,
}

fn expected(name: &str) -> Vec<Expected> {
    let text = std::fs::read_to_string(source(name)).unwrap();
    let lines = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let shown = line
            .strip_prefix("//= ")
            .or_else(|| line.strip_prefix("//~ "))?;
        Some(Expected {
            name: shown.split('(').next()?.to_owned(),
            shown: shown.to_owned(),
            free: line.starts_with("//~"),
        })
    });
    lines.collect()
}

/// Whether a text is as a pattern says: `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(before) else {
        return false;
    };
    let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.any(|at| matches(after, &rest[at..]))
}

fn open(elf: &Elf) -> Signatures<'_> {
    Signatures::open(|name| elf.section(name).map(Cow::Borrowed)).unwrap()
}

/// The one function whose symbol has this name in it, as C, C++ and Rust mangle names.
fn function(elf: &Elf, name: &str) -> (u64, String) {
    let mangled = format!("{}{name}", name.len());
    let is_it = |symbol: &str| {
        let plain = symbol.split('.').next() == Some(name);
        // Not what belongs to a function of this name, nor clones of its cold part.
        let of_go = symbol.strip_prefix("main.") == Some(name);
        plain
            || of_go
            || (symbol.contains(&mangled) && !symbol.contains(".cold") && symbol.starts_with('_'))
    };
    let mut found: Vec<_> = elf
        .functions()
        .filter(|(_, symbol)| is_it(symbol))
        .collect();
    found.retain(|(_, symbol)| {
        // A constructor is of its class's name, so are all methods: `C2E`, `C1E`.
        if name == "Shape" {
            symbol.contains("C2E")
        } else {
            true
        }
    });
    found.dedup_by_key(|(address, _)| *address);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.remove(0)
}

fn shown(name: &str, signature: &Signature, values: &[String], result: Option<&String>) -> String {
    let parameters = signature.parameters.iter().zip(values);
    let parameters: Vec<_> = parameters
        .map(|(p, value)| format!("{}: {value}", p.name))
        .collect();
    let result = result.map_or(String::new(), |value| format!(" -> {value}"));
    format!("{name}({}){result}", parameters.join(", "))
}

fn decode(signature: &Signature, at_exit: bool, stop: &Stop<'_>) -> Vec<String> {
    let items = stop.items(&signature.fetches, at_exit);
    let values = signature.decode(&items, at_exit, TEXT_BYTES);
    values.iter().map(ToString::to_string).collect()
}

/// Runs a program to its end; every call of the functions as it is to be shown.
fn calls(path: &Path, functions: &BTreeMap<u64, (String, Signature)>) -> Vec<String> {
    let mut traced = Traced::start(path, functions.keys().copied());
    let mut shown_calls = Vec::new();
    while let Some(address) = traced.run_to_entry() {
        let (name, signature) = &functions[&address];
        let values = decode(signature, false, &traced.stop());
        if traced.leave() {
            let result = decode(signature, true, &traced.stop());
            shown_calls.push(shown(name, signature, &values, result.first()));
        } else {
            shown_calls.push(shown(name, signature, &values, None));
        }
    }
    shown_calls
}

fn check_values(test: &str, compilers: &[&str]) {
    for (build, path) in built(test, |build| compilers.contains(&build.compiler)) {
        let elf = Elf::read(&path);
        let mut signatures = open(&elf);
        let expected = expected(build.source);
        let mut functions = BTreeMap::new();
        for call in &expected {
            let (address, symbol) = function(&elf, &call.name);
            let signature = signatures.signature(address, &symbol);
            let signature = signature.unwrap_or_else(|| panic!("{}: no signature", call.name));
            assert!(signature.fetches.len() <= MAX_FETCHES);
            functions.insert(address, (call.name.clone(), signature));
        }
        let calls = calls(&path, &functions);
        let mut wrong = Vec::new();
        for call in &expected {
            let prefix = format!("{}(", call.name);
            let Some(shown) = calls.iter().find(|shown| shown.starts_with(&prefix)) else {
                wrong.push(format!("{}: not called", call.name));
                continue;
            };
            let right = if call.free {
                right_or_missing(&call.shown, shown)
            } else {
                matches(&call.shown, shown)
            };
            if !right {
                wrong.push(format!("expected {}\n   shown {shown}", call.shown));
            }
        }
        let flags = build.flags.join(" ");
        assert!(
            wrong.is_empty(),
            "{} {flags} {}:\n{}",
            build.compiler,
            build.source,
            wrong.join("\n")
        );
    }
}

/// Whether each value that is shown is right, whatever is missing.
fn right_or_missing(expected: &str, shown: &str) -> bool {
    let parts = |text: &str| {
        let arguments = text
            .split_once('(')
            .unwrap()
            .1
            .rsplit_once(')')
            .unwrap()
            .0
            .to_owned();
        let mut parts = Vec::new();
        let mut depth = 0;
        for (at, character) in arguments.char_indices() {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => parts.push(at),
                _ => {}
            }
        }
        let mut from = 0;
        let mut named = BTreeMap::new();
        for end in parts.into_iter().chain([arguments.len()]) {
            let part = arguments[from..end].trim_matches([',', ' ']);
            let (name, value) = part.split_once(": ").unwrap();
            named.insert(name.to_owned(), value.to_owned());
            from = end;
        }
        named
    };
    let expected = parts(expected);
    parts(shown).iter().all(|(name, value)| {
        value.contains("<unavailable>") || expected.get(name).is_some_and(|e| matches(e, value))
    })
}

#[test]
fn values_of_c_as_gcc_passes_them() {
    check_values("values_of_c_as_gcc_passes_them", &["gcc"]);
}

#[test]
fn values_of_c_as_clang_passes_them() {
    check_values("values_of_c_as_clang_passes_them", &["clang"]);
}

#[test]
fn values_of_cxx_as_gcc_passes_them() {
    check_values("values_of_cxx_as_gcc_passes_them", &["g++"]);
}

#[test]
fn values_of_cxx_as_clang_passes_them() {
    check_values("values_of_cxx_as_clang_passes_them", &["clang++"]);
}

#[test]
fn values_of_rust() {
    check_values("values_of_rust", &["rustc"]);
}

#[test]
fn values_of_go() {
    check_values("values_of_go", &["go"]);
}

#[test]
fn shared_types_are_found() {
    let test = "shared_types_are_found";
    let wanted = |build: &Build| build.compiler == "g++" && build.flags == ["-O2", "-gdwarf-5"];
    let Some((build, built)) = built(test, wanted).into_iter().next() else {
        return;
    };
    // A second file that uses the same types: what both have goes to a unit of its own.
    let (more, path) = (built.with_extension("cpp"), built.with_extension("two"));
    let text = "#include <memory>\n#include <string>\n#include <string_view>\n#include <vector>\n\
        int more(std::string s, std::string_view v, std::vector<int> i, std::unique_ptr<int> p)\n\
        { return s.size() + v.size() + i.size() + *p; }\n";
    std::fs::write(&more, text).unwrap();
    let mut compiler = Command::new(build.compiler);
    let compiler = compiler
        .args(build.flags)
        .arg("-std=c++20")
        .arg("-o")
        .arg(&path);
    assert!(
        compiler
            .arg(source(build.source))
            .arg(&more)
            .status()
            .unwrap()
            .success()
    );
    let packed = path.with_extension("dwz");
    match Command::new("dwz")
        .arg("-o")
        .arg(&packed)
        .arg(&path)
        .output()
    {
        Err(error) => return profiler_tests::skip::skip(test, &format!("dwz: {error}")),
        Ok(run) => assert!(
            run.status.success(),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        ),
    }
    let (whole, packed) = (Elf::read(&path), Elf::read(&packed));
    assert_eq!(
        [partial_units(&whole) > 0, partial_units(&packed) > 0],
        [false, true]
    );
    let (mut whole_signatures, mut packed_signatures) = (open(&whole), open(&packed));
    for call in expected(build.source) {
        let (address, symbol) = function(&whole, &call.name);
        let signature = whole_signatures.signature(address, &symbol);
        assert!(signature.is_some(), "{symbol}");
        assert_eq!(
            packed_signatures.signature(address, &symbol),
            signature,
            "{symbol}"
        );
    }
}

/// How many units of DWARF 5 hold only what others share.
fn partial_units(elf: &Elf) -> usize {
    let mut units = elf.section(".debug_info").unwrap();
    let mut partial = 0;
    while let Some((len, rest)) = units.split_first_chunk() {
        partial += usize::from(rest[2] == 3);
        units = &rest[u32::from_le_bytes(*len) as usize..];
    }
    partial
}

/// gdb's `whatis` and `info scope` of functions: types of parameters and the result, and names.
fn asked_of_gdb(path: &Path, functions: &[(String, u64)]) -> Vec<(String, Vec<String>)> {
    let mut command = Command::new("gdb");
    command.args(["-batch", "-nx"]).arg(path);
    for (name, address) in functions {
        command.args(["-ex", &format!("echo \\n== {name}\\n")]);
        command.args(["-ex", &format!("whatis {name}")]);
        command.args(["-ex", &format!("info scope *{address:#x}")]);
    }
    let run = command.output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let answers = text.split("\n== ").skip(1).map(|answer| {
        let types = answer.lines().find_map(|line| line.strip_prefix("type = "));
        let symbols = answer
            .lines()
            .filter(|line| line.starts_with("Symbol ") || line.contains(": Symbol "));
        let names = symbols.filter_map(|line| line.split("Symbol ").nth(1)?.split(' ').next());
        (
            types.unwrap_or("").to_owned(),
            names.map(str::to_owned).collect(),
        )
    });
    answers.collect()
}

fn without_spaces(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_whitespace())
        .collect()
}

#[test]
fn names_and_types_are_those_of_gdb() {
    let test = "names_and_types_are_those_of_gdb";
    if !profiler_tests::skip::has(test, "gdb") {
        return;
    }
    for (build, path) in built(test, |build| {
        build.source == "arguments.c" && build.flags[0] == "-O0"
    }) {
        let elf = Elf::read(&path);
        let mut signatures = open(&elf);
        let names = expected(build.source).into_iter().map(|call| call.name);
        let functions: Vec<_> = names
            .map(|name| (function(&elf, &name).0, name))
            .map(|(a, n)| (n, a))
            .collect();
        let answers = asked_of_gdb(&path, &functions);
        assert_eq!(answers.len(), functions.len());
        for ((name, address), (types, names)) in functions.iter().zip(answers) {
            let signature = signatures.signature(*address, name).unwrap();
            let kinds = signature
                .parameters
                .iter()
                .map(|parameter| without_spaces(&parameter.kind));
            let kinds = kinds.collect::<Vec<_>>().join(",");
            let result = signature
                .result
                .as_ref()
                .map_or("void", |result| &result.kind);
            let types = without_spaces(&types)
                .replace(",...", "")
                .replace("(void)", "()");
            // What gdb says more: which kind of type it is, and what is at the end of a pointer.
            let types = types
                .replace("const*", "*")
                .replace("*const", "*")
                .replace("void(*)(int)", "function*");
            let ours = format!("{}({kinds})", without_spaces(result));
            let plain = |text: &str| {
                let mut text = text.replace("longunsignedint", "unsignedlong");
                text = text.replace("shortunsignedint", "unsignedshort");
                for word in ["struct", "enum", "union", "const", "volatile"] {
                    text = text.replace(word, "");
                }
                text = text.replace("unsignedint__int128", "unsigned__int128");
                text.replace("shortint", "short").replace("longint", "long")
            };
            assert_eq!(plain(&ours), plain(&types), "{name} of {}", build.compiler);
            let own: Vec<_> = signature
                .parameters
                .iter()
                .map(|parameter| parameter.name.to_string())
                .collect();
            assert_eq!(names[..own.len()], own, "{name} of {}", build.compiler);
        }
    }
}

/// Of a built program: what of a large table is needed to read it, and where its functions are.
struct Seed {
    sections: Vec<(String, Vec<u8>)>,
    functions: Vec<(u64, String)>,
}

fn seeds() -> Vec<Seed> {
    let one = |compiler: &str, flag: &str| {
        let wanted = |build: &Build| build.compiler == compiler && build.flags.contains(&flag);
        let (build, path) = built("damaged_debug_information", wanted)
            .into_iter()
            .next()?;
        let elf = Elf::read(&path);
        let names = [
            ".debug_info",
            ".debug_abbrev",
            ".debug_str",
            ".debug_loclists",
            ".debug_loc",
            ".debug_rnglists",
            ".debug_ranges",
            ".debug_aranges",
            ".debug_str_offsets",
            ".debug_addr",
            ".debug_line_str",
            ".debug_types",
        ];
        let section = |name: &str| Some((name.to_owned(), elf.section(name)?.to_vec()));
        let calls = expected(build.source);
        Some(Seed {
            sections: names.iter().filter_map(|name| section(name)).collect(),
            functions: calls
                .iter()
                .map(|call| function(&elf, &call.name))
                .collect(),
        })
    };
    let wanted = [
        ("gcc", "-O2"),
        ("clang", "-O2"),
        ("g++", "-fdebug-types-section"),
        ("clang++", "-gdwarf-5"),
    ];
    wanted
        .iter()
        .filter_map(|(compiler, flag)| one(compiler, flag))
        .collect()
}

/// Asks a damaged program for all its functions, and decodes what nobody has fetched.
fn read_damaged(seed: &Seed, damaged: &BTreeMap<&str, Vec<u8>>, items: &[u8]) -> Duration {
    let began = Instant::now();
    let section = |name: &str| {
        let whole = seed
            .sections
            .iter()
            .find(|section| section.0 == name)
            .map(|section| &section.1);
        Some(Cow::Borrowed(&damaged.get(name).or(whole)?[..]))
    };
    if let Some(mut signatures) = Signatures::open(section) {
        for (address, symbol) in &seed.functions {
            if let Some(signature) = signatures.signature(*address, symbol) {
                assert!(signature.fetches.len() <= MAX_FETCHES);
                for fetch in &signature.fetches {
                    assert!(usize::from(fetch.size) <= MAX_STRING && fetch.derefs <= 2);
                }
                for at_exit in [false, true] {
                    let values = signature.decode(items, at_exit, TEXT_BYTES);
                    assert!(values.iter().all(|value| value.to_string().len() < 1024));
                }
            }
        }
    }
    began.elapsed()
}

#[test]
fn damaged_debug_information_is_read_in_time() {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    let change = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        any::<u8>(),
    );
    let case = (
        0..seeds.len(),
        prop::collection::vec(change, 1..24),
        prop::collection::vec(any::<u8>(), 0..400),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let slowest = std::cell::Cell::new(Duration::ZERO);
    let result = runner.run(&case, |(seed, changes, items)| {
        let seed = &seeds[seed];
        let mut damaged = BTreeMap::new();
        for (section, at, byte) in &changes {
            // The first two say what there is, and are what is damaged most of the time.
            let section = section.index(2 * seed.sections.len());
            let (name, bytes) = &seed.sections[if section < seed.sections.len() {
                section
            } else {
                section % 2
            }];
            if bytes.is_empty() {
                continue;
            }
            let copy: &mut Vec<u8> = damaged.entry(&name[..]).or_insert_with(|| bytes.clone());
            let at = at.index(copy.len());
            copy[at] = *byte;
        }
        let spent = read_damaged(seed, &damaged, &items);
        slowest.set(slowest.get().max(spent));
        prop_assert!(spent < Duration::from_secs(5), "{spent:?}");
        Ok(())
    });
    println!("slowest: {:?}", slowest.get());
    result.unwrap();
}

#[test]
fn tables_cut_short_are_read_in_time() {
    for seed in seeds() {
        for (name, bytes) in &seed.sections {
            for part in 0..8 {
                let cut = bytes[..bytes.len() * part / 8].to_vec();
                let spent = read_damaged(&seed, &BTreeMap::from([(&name[..], cut)]), &[]);
                assert!(spent < Duration::from_secs(5), "{name}: {spent:?}");
            }
        }
    }
}

/// Sources with many functions, none like another, and the program of them.
fn large_program(folder: &Path) -> std::path::PathBuf {
    const FILES: usize = 4;
    const FUNCTIONS: usize = 5_000;
    let program = folder.join("large");
    let mut text = String::new();
    for function in 0..FUNCTIONS {
        let name = format!("f_{function}");
        text += &format!(
            "struct s{name} {{ int first; const char *second; struct s{name} *next; }};\n\
             long {name}(struct s{name} *self, unsigned long at_{function}, const char *text) \
             {{ return self->first + at_{function} + text[0]; }}\n"
        );
    }
    let (source, all) = (folder.join("all.c"), folder.join("all.o"));
    std::fs::write(&source, text).unwrap();
    let main = folder.join("main.c");
    std::fs::write(&main, "int main(void) { return 0; }\n").unwrap();
    let done = |command: &mut Command| assert!(command.status().unwrap().success());
    done(
        Command::new("gcc")
            .args(["-g", "-c", "-o"])
            .arg(&all)
            .arg(source),
    );
    // Compiling it takes ten times as long as giving its symbols other names.
    let objects: Vec<_> = (0..FILES)
        .map(|file| {
            let object = folder.join(format!("{file}.o"));
            let prefix = format!("--prefix-symbols=of_{file}_");
            done(Command::new("objcopy").arg(prefix).arg(&all).arg(&object));
            object
        })
        .collect();
    done(
        Command::new("gcc")
            .arg("-o")
            .arg(&program)
            .arg(main)
            .args(objects),
    );
    program
}

#[test]
fn a_large_program_is_searched_lazily() {
    let folder = std::env::temp_dir().join(format!("large-program-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let elf = Elf::read(&large_program(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
    let debug_info = elf.section(".debug_info").unwrap().len();
    assert!(debug_info > 2 << 20, "{debug_info} bytes");
    // In the last unit, where a search from the beginning comes to it last.
    let (address, symbol) = function(&elf, "of_3_f_4999");
    let began = Instant::now();
    let mut signatures = open(&elf);
    let signature = signatures.signature(address, &symbol).unwrap();
    let spent = began.elapsed();
    let names: Vec<_> = signature
        .parameters
        .iter()
        .map(|parameter| &*parameter.name)
        .collect();
    assert_eq!(names, ["self", "at_4999", "text"]);
    assert_eq!(&*signature.parameters[0].kind, "sf_4999 *");
    println!("{debug_info} bytes of .debug_info: {spent:?}");
    // Unoptimised, on a machine that does other things too.
    assert!(spent < Duration::from_secs(5), "{spent:?}");
    let began = Instant::now();
    let again = signatures.signature(address, &symbol);
    assert_eq!(again, Some(signature));
    println!("again: {:?}", began.elapsed());
}

#[test]
fn without_debug_information_registers_are_shown() {
    let signature = Signature::registers();
    let names: Vec<_> = signature
        .parameters
        .iter()
        .map(|parameter| &*parameter.name)
        .collect();
    assert_eq!(names, ["rdi", "rsi", "rdx", "rcx", "r8", "r9"]);
    assert_eq!(signature.fetches.len(), 7);
    assert!(
        signature
            .parameters
            .iter()
            .all(|parameter| parameter.missing.is_none())
    );
    assert!(Signatures::open(|_| None).is_none());
    let elf = Elf::read(&std::env::current_exe().unwrap());
    assert_eq!(open(&elf).signature(1, "none"), None);
    assert_eq!(
        Missing::FloatingPoint.to_string(),
        "in a floating-point register"
    );
}
