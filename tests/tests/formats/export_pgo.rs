//! Profiles for compilers: what they say of a made-up program, what LLVM's and Go's own readers make of them.
//!
//! A program of known lines -> its profile -> counts per function and line, which must be those of the samples. What does not belong
//! here: what a program gains (`cargo xtask bench pgo`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::export_shared::*;
use crate::go_trace::go;
use object::{Object, ObjectSymbol};
use profiler_model::*;
use profiler_tests::skip;
use profiler_wire::{Message, pprof};
use proptest::prelude::*;

/// A place of a program: its address, and functions with their lines, innermost first.
type Place<'a> = (u64, &'a [(&'a str, u32)]);

/// The same, made up.
type OwnedPlace<'a> = (u64, Vec<(&'a str, u32)>);

/// Where functions are declared.
const DECLARED: [(&str, u32); 4] = [
    ("main", 10),
    ("_ZN1a3hotEv", 20),
    ("inner", 30),
    ("hostile", 40),
];

/// A program whose stacks, leaf first, were sampled so often.
fn program(stacks: &[(&[Place<'_>], u64)]) -> Recording {
    let (mut tables, _) = session_of(&[(vec!["main"], 1)], "app");
    let path = tables.intern_string("/bin/app").0;
    let module = tables.modules.intern(Module {
        kind: ModuleKind::File,
        path,
        build_id: Some(BuildId([7; 20].into())),
        address_bias: 0x40_0000,
    });
    let mut events = Vec::new();
    for (stack, count) in stacks {
        let mut parent = None;
        for (address, lines) in stack.iter().rev() {
            let frame = Frame {
                kind: FrameKind::Native,
                module: Some(module.0),
                address: *address,
            };
            let frame = tables.frames.intern(frame).0;
            let lines = lines.iter().map(|(name, line)| {
                let text = tables.intern_string(name).0;
                let function = Function {
                    name: text,
                    linkage_name: None,
                    module: Some(module.0),
                    file: None,
                    line: 0,
                    start: None,
                    size: None,
                };
                let function = tables.functions.intern(function).0;
                if let Some((_, declared)) = DECLARED.iter().find(|(known, _)| known == name) {
                    let declared = Declared {
                        line: *declared,
                        linkage_name: None,
                    };
                    tables.set_declared(function, declared);
                }
                Line {
                    function,
                    line: *line,
                }
            });
            let lines: Vec<Line> = lines.collect();
            tables.set_symbol(frame, Symbol::Lines(lines.into()));
            parent = Some(tables.stacks.intern(Stack { parent, frame }).0);
        }
        let (thread, source) = (ThreadId::from_index(0), SourceId::from_index(0));
        for _ in 0..*count {
            let at = Timestamp(events.len() as u64);
            let sample = Sample::new(at, thread, Cpu(0), source, 1000);
            events.push(Event::Sample(sample.with_stacks(None, parent)));
        }
    }
    (tables, events)
}

const MAIN: Place<'_> = (0x1010, &[("main", 14)]);

fn app() -> Recording {
    program(&[
        // Two instructions of a line; what is inlined into the hot function; one that no line is known of.
        (&[(0x2000, &[("_ZN1a3hotEv", 22)]), MAIN], 30),
        (&[(0x2004, &[("_ZN1a3hotEv", 22)]), MAIN], 12),
        (&[(0x2008, &[("inner", 33), ("_ZN1a3hotEv", 24)]), MAIN], 8),
        (&[MAIN], 5),
        (&[(0x3000, &[("hostile", 0)]), MAIN], 2),
        (&[(0x3004, &[("not declared", 3)]), MAIN], 1),
    ])
}

#[test]
fn lines_count_from_where_functions_are_declared() {
    let text = export("pgo-llvm", &[], &app());
    let expected = "# of /bin/app\n\
        # 3 in functions whose name or first line is not known: is there debug information?\n\
        _ZN1a3hotEv:50:5\n 2: 30\n 4: inner:8\n  3: 8\n\
        main:5:0\n 4: 5 _ZN1a3hotEv:50\n";
    assert_eq!(text, expected);
    let weighed = export("pgo-llvm", &[("count", "weight")], &app());
    assert!(
        weighed.contains("_ZN1a3hotEv:50000:5000\n 2: 30000\n"),
        "{weighed}"
    );
}

#[test]
fn addresses_are_those_of_the_file() {
    let text = export("pgo-bolt", &[], &app());
    let expected = "S 401010 5\nS 402000 30\nS 402004 12\nS 402008 8\nS 403000 2\nS 403004 1\n";
    assert_eq!(text, expected);
}

#[test]
fn an_object_is_chosen_by_its_name_or_path() {
    for object in ["app", "/bin/app"] {
        assert_eq!(
            export("pgo-bolt", &[("object", object)], &app())
                .lines()
                .count(),
            6
        );
    }
    for format in ["pgo-llvm", "pgo-bolt"] {
        let error = try_export(format, &[("object", "other")], &app()).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("'other'; most ran in: /bin/app"),
            "{error}"
        );
        assert_eq!(
            export(format, &[], &session_of(&[(vec!["main"], 3)], "x")),
            ""
        );
    }
}

/// LLVM's own reader, of what its own writer makes of it.
#[test]
fn llvm_counts_the_same() {
    let folder = std::env::temp_dir().join(format!("pgo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let profile = folder.join("app.afdo");
    let mut named = vec![app()];
    // Names that are none leave the others as they are.
    for name in hostile() {
        named.push(program(&[
            (
                &[(0x2000, &[("_ZN1a3hotEv", 22)]), (0x1010, &[(&name, 3)])],
                50,
            ),
            (&[(0x2008, &[(&name, 33), ("_ZN1a3hotEv", 24)]), MAIN], 3),
        ]));
    }
    for session in &named {
        std::fs::write(&profile, export("pgo-llvm", &[], session)).unwrap();
        let show = Command::new("llvm-profdata")
            .args(["show", "--sample"])
            .arg(&profile)
            .output();
        let Ok(shown) = show else {
            return skip::skip(
                "export_pgo::llvm_counts_the_same",
                "there is no llvm-profdata",
            );
        };
        assert!(
            shown.status.success(),
            "{}",
            String::from_utf8_lossy(&shown.stderr)
        );
        let shown = String::from_utf8_lossy(&shown.stdout);
        let hot = shown
            .lines()
            .find(|line| line.starts_with("Function: _ZN1a3hotEv:"));
        let total = hot.unwrap().split([' ', ',']).nth(2);
        assert!(["50", "53"].contains(&total.unwrap()), "{shown}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// BOLT finds the samples in the functions that they are of.
#[test]
fn bolt_counts_the_same() {
    let test = "export_pgo::bolt_counts_the_same";
    let version = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let known = ["llvm-bolt", "llvm-bolt-22", "llvm-bolt-19", "llvm-bolt-16"];
    let Some(bolt) = known.iter().find(version) else {
        return skip::skip(test, "there is no llvm-bolt");
    };
    let folder = std::env::temp_dir().join(format!("bolt-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, app) = (folder.join("app.c"), folder.join("app"));
    let code = "__attribute__((noinline)) int hot(int n) { return n * 3; }\n\
        int main(int argc, char **argv) { (void)argv; return hot(argc); }\n";
    std::fs::write(&source, code).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-no-pie", "-Wl,--emit-relocs", "-o"]);
    let built = cc.arg(&app).arg(&source).status();
    assert!(built.unwrap().success());
    let bytes = std::fs::read(&app).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    // Frames have what the module's bias is added to.
    let address = |name| {
        let symbol = file.symbol_by_name(name).unwrap();
        symbol.address() - 0x40_0000
    };
    let (hot, main) = (address("hot"), address("main"));
    let session = program(&[
        (&[(hot, &[("hot", 1)]), (main, &[("main", 2)])], 30),
        (&[(main, &[("main", 2)])], 5),
    ]);
    let (lines, counts) = (folder.join("app.preagg"), folder.join("app.fdata"));
    std::fs::write(&lines, export("pgo-bolt", &[], &session)).unwrap();
    // Newer ones call it -ba, and know the older name.
    let mut read = Command::new(bolt);
    read.arg(&app).args(["-pa", "-nl", "-aggregate-only", "-p"]);
    let read = read.arg(&lines).arg("-o").arg(&counts).output().unwrap();
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(read.status.success(), "{said}");
    let counts = std::fs::read_to_string(&counts).unwrap();
    let mut found: Vec<&str> = counts.lines().skip(1).collect();
    found.sort_unstable();
    assert_eq!(found, ["1 hot 0 30", "1 main 0 5"], "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Go's own compiler finds the call that is hot.
#[test]
fn go_takes_its_profile() {
    let (tables, events) = program(&[
        (
            &[(0x2000, &[("main.hot", 6)]), (0x1010, &[("main.main", 14)])],
            90,
        ),
        (&[(0x1014, &[("main.main", 13)])], 10),
    ]);
    let mut tables = tables;
    let known: Vec<(FunctionId, String)> = (tables.functions.iter())
        .map(|(id, it)| (id, tables.string(it.name).to_owned()))
        .collect();
    for (id, name) in known {
        if let Some(line) = [("main.hot", 5), ("main.main", 11)]
            .iter()
            .find(|it| it.0 == name)
        {
            let declared = Declared {
                line: line.1,
                linkage_name: None,
            };
            tables.set_declared(id, declared);
        }
    }
    let profile = try_export("pgo-go", &[], &(tables, events)).unwrap();
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&profile[..]), &mut plain)
        .unwrap();
    let read = pprof::Profile::decode(&plain[..]).unwrap();
    let lines: BTreeMap<&str, i64> = read
        .function
        .iter()
        .map(|it| (read.string_table[it.name as usize].as_str(), it.start_line))
        .collect();
    assert_eq!(lines, [("main.hot", 5), ("main.main", 11)].into());
    let folder = std::env::temp_dir().join(format!("pgo-go-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name);
    std::fs::write(path("default.pgo"), &profile).unwrap();
    let source = "package main\n\nvar sum int\n\nfunc hot(x int) {\n\tsum += x\n}\n\n\n\nfunc main() {\n\
                  \tfor i := 0; i < 1000; i++ {\n\t\tsum--\n\t\thot(i)\n\t}\n}\n";
    std::fs::write(path("main.go"), source).unwrap();
    let mut build = go();
    build
        .current_dir(&folder)
        .args(["build", "-pgo=default.pgo", "-gcflags=-d=pgodebug=1"]);
    build
        .env("GO111MODULE", "auto")
        .env("GOPROXY", "off")
        .stdin(Stdio::null());
    let Ok(built) = build.args(["-o", "app", "main.go"]).output() else {
        return skip::skip("export_pgo::go_takes_its_profile", "there is no Go");
    };
    let said = String::from_utf8_lossy(&built.stdout) + String::from_utf8_lossy(&built.stderr);
    if said.contains("flag provided but not defined: -pgo") {
        return skip::skip(
            "export_pgo::go_takes_its_profile",
            "this Go is older than 1.21",
        );
    }
    assert!(built.status.success(), "{said}");
    assert!(
        said.contains("hot-node enabled increased budget") && said.contains("main.hot"),
        "{said}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn totals_are_those_of_the_samples(
        stacks in prop::collection::vec(
            (prop::collection::vec((0..40_u64, 0..4_usize, 0..60_u32, prop::option::of(0..4_usize)), 1..5), 1..5_u64), 1..8),
    ) {
        // The address says all of a place.
        let names = DECLARED.map(|(name, _)| name);
        let places: Vec<(Vec<OwnedPlace<'_>>, u64)> = stacks
            .iter()
            .map(|(stack, count)| {
                let frames = stack.iter().map(|&(address, function, line, inlined)| {
                    let inner = inlined.map(|inlined| (names[inlined], 7));
                    let lines: Vec<_> = inner.into_iter().chain([(names[function], line)]).collect();
                    let number = inlined.map_or(0, |it| it as u64 + 1);
                    ((address * 4 + function as u64) * 1000 + u64::from(line) * 8 + number, lines)
                });
                (frames.collect(), *count)
            })
            .collect();
        let borrowed: Vec<(Vec<Place<'_>>, u64)> = places
            .iter()
            .map(|(stack, count)| (stack.iter().map(|(at, lines)| (*at, &lines[..])).collect(), *count))
            .collect();
        let all: Vec<(&[Place<'_>], u64)> = borrowed.iter().map(|(stack, count)| (&stack[..], *count)).collect();
        let session = program(&all);
        let total: u64 = stacks.iter().map(|(_, count)| count).sum();
        let text = export("pgo-llvm", &[], &session);
        let mut told = 0;
        for line in text.lines() {
            if let Some(said) = line.strip_prefix("# ") {
                told += said.split(' ').next().unwrap().parse::<u64>().unwrap_or(0);
            } else if !line.starts_with(' ') {
                told += line.split(':').nth(1).unwrap().parse::<u64>().unwrap();
            }
        }
        prop_assert_eq!(told, total, "{}", text);
        let bolt = export("pgo-bolt", &[], &session);
        let sums = bolt.lines().map(|line| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap());
        prop_assert_eq!(sums.sum::<u64>(), total);
    }
}
