//! Rules of unwind information by kind, and information that is wrong: from assembled functions, and
//! from sections that no assembler would write.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use object::{Object, ObjectSymbol};
use profiler_common::unwind::{
    CFA_MEMORY, CFA_PLT, CFA_REGISTER, CFA_RETURN_REGISTER, CFA_SIGNAL, FP_AT_CFA, FP_AT_FP,
    FP_SAME, FP_UNKNOWN, Rule,
};
use profiler_tests::arbitrary::Random;
use profiler_tests::fuzzing;
use profiler_tests::fuzzing::unwind::{CODE, SECTION, TEXT, check, in_memory, with_sections};
use profiler_unwind::{BuildReport, Entry, Table, build_file};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("unwind-rules-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        let status = command.args(arguments).current_dir(&self.0).status();
        assert!(status.unwrap().success(), "{program} {arguments:?}");
    }

    /// Assembles and links files of tests/tests/unwinding/unwind_shared.
    fn link(&self, sources: &[&str]) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwinding/unwind_shared");
        let paths = sources.iter().map(|source| folder.join(source));
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        let mut arguments = vec!["-shared", "-nostdlib", "-Wl,--no-eh-frame-hdr"];
        arguments.extend(["-o", "object"]);
        arguments.extend(paths.iter().map(String::as_str));
        self.run("cc", &arguments);
        self.0.join("object")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn rule(cfa: u8, register: u8, cfa_offset: i32, cfa_addend: i32, fp: (u8, i16)) -> Entry {
    Entry::Rule(Rule {
        cfa,
        register,
        fp: fp.0,
        bx: 0,
        cfa_offset,
        cfa_addend,
        fp_offset: fp.1,
        ra_offset: -1,
    })
}

/// A rule by the stack pointer.
fn sp(offset: i32, fp: (u8, i16)) -> Entry {
    rule(CFA_REGISTER, 7, offset, 0, fp)
}

const SAME: (u8, i16) = (FP_SAME, 0);
const LOST: (u8, i16) = (FP_UNKNOWN, 0);

fn at_cfa(offset: i16) -> (u8, i16) {
    (FP_AT_CFA, offset)
}

/// Its C library and its compiler bring functions without a word about their frames. All of them begin with
/// the return address on top of the stack; which they are is known without symbols, and where the linker leaves
/// the arrays that name them to the relocations.
#[test]
fn what_begins_and_ends_a_library_has_rules_though_the_file_has_none() {
    let folder = Folder::new("startup");
    std::fs::write(folder.0.join("empty.c"), "int nothing;\n").unwrap();
    folder.run("cc", &["-shared", "-fPIC", "-o", "library.so", "empty.c"]);
    let path = |name: &str| folder.0.join(name);
    let table_of = |name: &str| {
        build_file(&File::open(path(name)).unwrap(), None)
            .unwrap()
            .0
    };
    let table = table_of("library.so");
    let bytes = std::fs::read(path("library.so")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let names = [
        "_init",
        "_fini",
        "frame_dummy",
        "register_tm_clones",
        "__do_global_dtors_aux",
        "deregister_tm_clones",
    ];
    let mut found = Vec::new();
    for symbol in file.symbols() {
        let name = symbol.name().unwrap_or_default();
        if names.contains(&name) {
            assert_eq!(table.entry_at(symbol.address()), sp(8, SAME), "{name}");
            found.push(name);
        }
    }
    assert_eq!(found.len(), names.len(), "{found:?}");
    folder.run("strip", &["-o", "stripped.so", "library.so"]);
    assert_eq!(table_of("stripped.so"), table);
    std::fs::write(path("zeros"), [0; 8]).unwrap();
    let zeros = [".init_array=zeros", ".fini_array=zeros"];
    let [init, fini] = zeros.map(|of| format!("--update-section={of}"));
    folder.run("objcopy", &[&init, &fini, "stripped.so", "relocated.so"]);
    assert_eq!(table_of("relocated.so"), table);
}

#[test]
fn every_kind_of_rule_is_understood() {
    let folder = Folder::new("kinds");
    let path = folder.link(&["rules.s"]);
    let (table, report) = build_file(&File::open(&path).unwrap(), None).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let signal = Entry::Rule(Rule {
        cfa: CFA_SIGNAL,
        register: 7,
        cfa_offset: 8,
        ..Rule::default()
    });
    let framed = rule(CFA_REGISTER, 6, 16, 0, at_cfa(-2));
    let expected = [
        ("plain", sp(8, SAME)),
        ("plain_pushed", sp(16, at_cfa(-2))),
        ("plain_framed", framed),
        ("plain_popped", sp(8, SAME)),
        ("plain_again", framed),
        ("plain_large", sp(4104, at_cfa(-2))),
        ("plain_far", sp(8, SAME)),
        ("plain_end", Entry::None),
        ("realigned", rule(CFA_REGISTER, 10, 0, 0, SAME)),
        ("realigned_fp", rule(CFA_REGISTER, 10, 0, 0, (FP_AT_FP, 0))),
        ("realigned_cfa", rule(CFA_MEMORY, 6, -8, 0, (FP_AT_FP, 0))),
        ("saved_by_sp", sp(40, at_cfa(-4))),
        ("saved_above", sp(40, at_cfa(2))),
        ("saved_nowhere", sp(40, LOST)),
        ("saved_in_register", sp(40, LOST)),
        ("saved_extended", sp(40, at_cfa(-3))),
        ("saved_signed", sp(40, at_cfa(-4))),
        ("saved_by_cfa", sp(40, at_cfa(3))),
        ("saved_restored", sp(40, SAME)),
        ("outermost", Entry::End),
        ("elsewhere", rule(CFA_RETURN_REGISTER, 1, 8, 0, SAME)),
        ("elsewhere_framed", Entry::None),
        ("elsewhere_back", sp(8, SAME)),
        ("elsewhere_stack", Entry::None),
        ("elsewhere_stack_back", sp(8, SAME)),
        ("elsewhere_cfa", Entry::None),
        ("linkage", rule(CFA_PLT, 7, 8, 11, SAME)),
        ("signal", signal),
        ("damaged", sp(8, SAME)),
        ("damaged_before", sp(24, SAME)),
        ("damaged_behind", Entry::None),
        ("other", sp(8, SAME)),
    ];
    for (name, entry) in expected {
        let mut symbols = elf.symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok(name));
        let address = symbol.expect(name).address();
        assert_eq!(table.entry_at(address), entry, "{name}");
    }
    let unknown = (
        report.rows_cfa,
        report.rows_return_address,
        report.rows_stack_pointer,
        report.rows_frame_pointer,
        report.functions_damaged,
        report.functions_unreadable,
    );
    assert_eq!(unknown, (1, 1, 1, 1, 1, 0), "{report:?}");
    check(&table, &report);
}

#[test]
fn debug_frame_fills_in_also_compressed_and_from_a_file_of_its_own() {
    let folder = Folder::new("debug");
    let path = folder.link(&["rules.s", "debug.s"]);
    let bytes = std::fs::read(&path).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let address = |name| {
        let mut symbols = elf.symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok(name)).unwrap();
        symbol.address()
    };
    let check = |main: &str, debug: Option<&str>, known: bool| {
        let open = |name: &str| File::open(folder.0.join(name)).unwrap();
        let debug = debug.map(open);
        let (table, _) = build_file(&open(main), debug.as_ref()).unwrap();
        let expect = |name, entry| {
            let entry = if known { entry } else { Entry::None };
            assert_eq!(table.entry_at(address(name)), entry, "{main}: {name}");
        };
        expect("debugged", sp(8, SAME));
        expect("debugged_pushed", sp(16, SAME));
        expect("debugged_end", Entry::None);
        assert_eq!(table.entry_at(address("plain")), sp(8, SAME), "{main}");
    };
    check("object", None, true);
    for kind in ["zlib", "zlib-gnu"] {
        let option = format!("--compress-debug-sections={kind}");
        folder.run("objcopy", &[&option, "object", "packed"]);
        // The old way has another name and no flag.
        check("packed", None, kind == "zlib");
    }
    folder.run("objcopy", &["--only-keep-debug", "object", "debug"]);
    folder.run("strip", &["-o", "stripped", "object"]);
    check("stripped", None, false);
    check("stripped", Some("debug"), true);
}

/// A CIE of `.eh_frame` with pointers of 4 bytes relative to their own place (or as `encoding` says),
/// and functions: where, how long, which program.
fn eh_frame(encoding: u8, wide: bool, functions: &[(u64, u32, &[u8])]) -> Vec<u8> {
    let mut section = Vec::new();
    let start = |section: &mut Vec<u8>, len: usize| {
        if wide {
            section.extend(0xffff_ffff_u32.to_le_bytes());
            section.extend((len as u64).to_le_bytes());
        } else {
            section.extend((len as u32).to_le_bytes());
        }
    };
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(b"zR\0");
    cie.extend([1, 0x78, 16, 1, encoding, 0x0c, 7, 8, 0x90, 1, 0]);
    start(&mut section, cie.len());
    section.extend(cie);
    for (address, len, program) in functions {
        start(&mut section, 13 + program.len());
        let place = section.len() as u64;
        section.extend((place as u32).to_le_bytes());
        let base = match encoding & 0x70 {
            0x10 => SECTION + place + 4,
            0x20 => TEXT,
            _ => 0,
        };
        section.extend((address.wrapping_sub(base) as u32).to_le_bytes());
        section.extend(len.to_le_bytes());
        section.push(0);
        section.extend(*program);
    }
    section
}

fn built(section: &[u8]) -> (Table, BuildReport) {
    let file = in_memory(&with_sections(&[(".eh_frame", section)])).unwrap();
    let (table, report) = build_file(&file, None).unwrap();
    check(&table, &report);
    (table, report)
}

#[test]
fn pointers_and_lengths_are_read_in_all_their_forms() {
    // Advance to 16 by an absolute address, in the pointers' own encoding.
    let program = [0x0e, 24];
    for wide in [false, true] {
        for encoding in [0x1b, 0x0b, 0x03, 0x2b] {
            let functions = [(CODE + 0x100, 0x40, &program[..])];
            let (table, report) = built(&eh_frame(encoding, wide, &functions));
            assert_eq!(report.functions, 1, "{encoding:x}");
            assert_eq!(table.entry_at(CODE + 0x100), sp(24, SAME));
            assert_eq!(table.entry_at(CODE + 0x13f), sp(24, SAME));
            assert_eq!(table.entry_at(CODE + 0x140), Entry::None);
        }
        // Indirect, aligned, relative to the function, none.
        for encoding in [0x9b, 0x50, 0x4b, 0xff, 0x0f] {
            let functions = [(CODE + 0x100, 0x40, &program[..])];
            let (table, report) = built(&eh_frame(encoding, wide, &functions));
            assert_eq!(report.functions_unreadable, 1, "{encoding:x}");
            assert_eq!(table.rows.len(), 0);
        }
    }
    let mut set_loc = vec![0x01];
    set_loc.extend((CODE as u32 + 0x110).to_le_bytes());
    set_loc.extend([0x0e, 32]);
    let mut back = set_loc.clone();
    back.push(0x01);
    back.extend((CODE as u32 + 0x108).to_le_bytes());
    back.extend([0x0e, 40]);
    for (program, damaged) in [(set_loc, 0), (back, 1)] {
        let functions = [(CODE + 0x100, 0x40, &program[..])];
        let (table, report) = built(&eh_frame(0x03, false, &functions));
        assert_eq!(report.functions_damaged, damaged);
        assert_eq!(table.entry_at(CODE + 0x10f), sp(8, SAME));
        let behind = if damaged == 0 {
            sp(32, SAME)
        } else {
            Entry::None
        };
        assert_eq!(table.entry_at(CODE + 0x110), behind);
    }
}

#[test]
fn of_functions_that_overlap_the_last_to_begin_counts() {
    let program = |offset| [0x0e, offset];
    let (long, short, same, outside) = (program(16), program(24), program(32), program(40));
    let functions = [
        (CODE + 0x200, 0x10, &short[..]),
        (CODE + 0x100, 0x1000, &long[..]),
        (CODE + 0x100, 0x800, &same[..]),
        (CODE - 0x10, 0x100, &outside[..]),
        (0, 0x100, &outside[..]),
        (CODE + 0x300, 0, &outside[..]),
    ];
    let expected = [
        (CODE, Entry::None),
        (CODE + 0x100, sp(16, SAME)),
        (CODE + 0x1ff, sp(16, SAME)),
        (CODE + 0x200, sp(24, SAME)),
        (CODE + 0x20f, sp(24, SAME)),
        (CODE + 0x210, Entry::None),
        (CODE + 0x10ff, Entry::None),
    ];
    let mut reversed = functions;
    reversed.reverse();
    for functions in [functions, reversed] {
        let (table, report) = built(&eh_frame(0x1b, false, &functions));
        assert_eq!((report.functions, report.functions_left_out), (2, 3));
        for (address, entry) in expected {
            assert_eq!(table.entry_at(address), entry, "{address:x}");
        }
    }
}

/// Time and rows stay in proportion to the bytes, whatever they say.
#[test]
fn hostile_sections_are_read_in_linear_time() {
    const BYTES: usize = 2 << 20;
    let remember = [&[0x0a; 60][..], &[0x41, 0x0e, 16].repeat(BYTES / 3)].concat();
    let too_many = vec![0x0a; BYTES];
    let alternating = [0x0a, 0x41, 0x0e, 16, 0x0b, 0x41].repeat(BYTES / 6);
    let leaps = [0x04, 0xff, 0xff, 0, 0, 0x0e, 24].repeat(BYTES / 7);
    let expressions = [&[0x0f, 64][..], &[0x96; 64]].concat().repeat(BYTES / 66);
    let long_expression = {
        let mut program = vec![0x0f, 0x80, 0x80, 0x80, 1];
        program.resize(BYTES + 5, 0x96);
        program
    };
    let zeros = vec![0; BYTES];
    for program in [
        remember,
        too_many,
        alternating,
        leaps,
        expressions,
        long_expression,
        zeros.clone(),
    ] {
        timed(&eh_frame(0x1b, false, &[(CODE, 1 << 20, &program)]));
    }
    timed(&zeros);
    // All functions cover all of the code, and each has an end of its own.
    let program = [0x41, 0x0e, 16];
    let many: Vec<(u64, u32, &[u8])> = (0..BYTES as u32 / 20)
        .map(|index| {
            (
                CODE + u64::from(index % 4096),
                (1 << 20) - index,
                &program[..],
            )
        })
        .collect();
    timed(&eh_frame(0x1b, false, &many));
    // Every entry says that another CIE is its own, in the midst of the one before.
    let mut nested = eh_frame(0x1b, false, &[]);
    let cie = nested.clone();
    let mut inner: Vec<u8> = Vec::new();
    while inner.len() < BYTES {
        inner.extend(&cie);
    }
    nested[0] = 0;
    let len = (inner.len() + cie.len() - 4) as u32;
    nested[..4].copy_from_slice(&len.to_le_bytes());
    nested.extend(inner);
    for index in 0..BYTES / 40 {
        let back = nested.len() + 4 - (1 + index) * cie.len();
        nested.extend(16u32.to_le_bytes());
        nested.extend((back as u32).to_le_bytes());
        nested.extend([0; 12]);
    }
    timed(&nested);
}

fn timed(section: &[u8]) {
    let begun = Instant::now();
    let (table, report) = built(section);
    // Unoptimised and on a busy machine it is below 2 s; quadratic time would be minutes.
    assert!(begun.elapsed() < Duration::from_secs(30), "{report:?}");
    assert!(table.rows.len() <= section.len());
}

#[test]
fn mutated_unwind_information_is_read_without_panic() {
    let random = &mut Random(42);
    for seed in fuzzing::seeds("unwind").unwrap() {
        fuzzing::unwind(&seed);
        for _ in 0..1_500 {
            let mut mutated = seed.clone();
            fuzzing::mutate(random, 1, &mut mutated);
            fuzzing::unwind(&mutated);
        }
    }
}

#[test]
fn the_fuzzers_seeds_are_understood() {
    let seeds = fuzzing::seeds("unwind").unwrap();
    let section = seeds.iter().find(|seed| seed[0] == 0).unwrap();
    let (table, report) = built(&section[1..]);
    assert_eq!(report.functions, 5);
    assert_eq!(report.functions_damaged + report.functions_unreadable, 0);
    let kinds = table.rules.iter().map(|rule| rule.cfa);
    let kinds: std::collections::BTreeSet<u8> = kinds.collect();
    assert_eq!(kinds.len(), 4, "{:?}", table.rules);
}
