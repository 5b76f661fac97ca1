//! Unwind tables of object files, with another reader of unwind information as the judge.
//!
//! `OBJECTS=a:b:c cargo test --release -p profiler-tests --test unwinding unwind_tables::every -- --ignored
//! --nocapture` compares more files; `ROOTS=/usr/bin:/usr/lib ... unwind_tables::figures` prints what the
//! tables of a whole machine take.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::unwind_shared::{live, oracle};

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use object::{Object, ObjectSection};
use profiler_common::sample::{END_COMPLETE, EXACT_ADDRESS};
use profiler_common::unwind::{
    BX_SAME, BX_UNKNOWN, CFA_MEMORY, CFA_PLT, CFA_REGISTER, CFA_RETURN_REGISTER, CFA_SIGNAL,
    REGISTER_BX, Rule,
};
use profiler_unwind::cache::{Cache, LIMIT_BYTES};
use profiler_unwind::snapshot::{Found, Snapshot};
use profiler_unwind::walk::{Start, Walked, walk};
use profiler_unwind::{BuildReport, Entry, Table, build_file};

/// Compares a file's table with the judge's rows; how many rows of which kind there were.
fn compare(path: &Path) -> (BuildReport, BTreeMap<&'static str, u64>) {
    let (table, report) = build_file(&File::open(path).unwrap(), None).unwrap();
    // Where rbx is costs rules, so only files that need it say that.
    let by_bx = |rule: &Rule| rule.cfa <= CFA_MEMORY && rule.register == REGISTER_BX;
    let says_bx = |rule: &Rule| rule.bx != BX_UNKNOWN;
    let (found, said) = (
        table.rules.iter().any(by_bx),
        table.rules.iter().any(says_bx),
    );
    assert_eq!(found, said, "{}", path.display());
    let bytes = std::fs::read(path).unwrap();
    let functions = oracle::rows(&bytes);
    let mut starts = functions.keys().copied().skip(1).collect::<Vec<_>>();
    starts.push(u64::MAX);
    // What begins and ends a file has rules that no file says.
    let parsed = object::File::parse(&*bytes).unwrap();
    let silent = [".init", ".fini"].map(|name| Some(parsed.section_by_name(name)?.address()));
    let mut kinds = BTreeMap::new();
    for (rows, next) in functions.values().zip(starts) {
        for row in rows.iter().filter(|row| row.start < next.min(row.end)) {
            let expected = row.entry.unwrap_or(Entry::None);
            let kind = match row.entry {
                Ok(Entry::End) => "outermost",
                Ok(Entry::Rule(rule)) if rule.bx > 0 && rule.bx < BX_SAME => "rbx saved",
                Ok(Entry::Rule(rule)) => match rule.cfa {
                    CFA_REGISTER => "register",
                    CFA_MEMORY => "memory",
                    CFA_PLT => "plt",
                    CFA_SIGNAL => "signal",
                    CFA_RETURN_REGISTER => "return address in a register",
                    other => unreachable!("{other}"),
                },
                Ok(Entry::None) => unreachable!(),
                Err(why) => why,
            };
            *kinds.entry(kind).or_insert(0) += 1;
            check(&table, row.start, expected, path);
            check(&table, row.end.min(next) - 1, expected, path);
        }
        if let Some(last) = rows.last()
            && last.end < next
            && !silent.contains(&Some(last.end))
            && !creates(&parsed, last.end)
        {
            check(&table, last.end, Entry::None, path);
        }
    }
    (report, kinds)
}

/// Whether `syscall; test %rax,%rax` is there, or behind `mov $NUMBER,%eax`: glibc creates threads so, and says nothing.
fn creates(file: &object::File<'_>, address: u64) -> bool {
    let text = file.section_by_name(".text");
    let code = text.and_then(|text| text.data_range(address, 10).ok()?);
    let call = [0x0f, 0x05, 0x48, 0x85, 0xc0];
    code.is_some_and(|code| code.starts_with(&call) || code[0] == 0xb8 && code.ends_with(&call))
}

fn check(table: &Table, address: u64, expected: Entry, path: &Path) {
    let found = table.entry_at(address);
    assert_eq!(found, expected, "{}, {address:#x}", path.display());
}

/// Finds a library that this process has mapped.
fn mapped(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    paths.find(|path| path.contains(name)).map(str::to_owned)
}

#[test]
fn the_c_library_the_loader_and_this_program_have_the_rows_that_another_reader_finds() {
    let mut all = BTreeMap::new();
    let libraries = ["/libc.so", "ld-linux", "libgcc_s"].map(|name| mapped(name).unwrap().into());
    let own = std::env::current_exe().unwrap();
    for path in libraries.iter().chain([&own]) {
        let (report, kinds) = compare(path);
        let path = path.display();
        assert_eq!(report.functions_unreadable, 0, "{path}");
        assert_eq!(report.functions_damaged, 0, "{path}");
        assert!(report.rows > 100 && report.rules > 10, "{path}: {report:?}");
        for (kind, count) in kinds {
            *all.entry(kind).or_insert(0) += count;
        }
    }
    for kind in [
        "register",
        "plt",
        "signal",
        "outermost",
        "rbx saved",
        "return address in a register",
    ] {
        assert!(all.contains_key(kind), "{kind}: {all:?}");
    }
}

#[test]
#[ignore = "reads many large files"]
fn every_object_has_the_rows_that_another_reader_finds() {
    let objects = std::env::var("OBJECTS").unwrap();
    for object in objects.split(':') {
        let (report, kinds) = compare(Path::new(object));
        println!("{object}\n  {kinds:?}\n  {report:?}");
    }
}

/// Walks this thread's stack from what a signal interrupted, and from within its handler; both must
/// be what the C library's unwinder finds.
#[inline(never)]
fn interrupted_and_compared(aside: bool) {
    let process = Rc::new(live::Process::read());
    let found = Rc::new(RefCell::new(Vec::new()));
    let noted = found.clone();
    let seen = process.clone();
    live::interrupt(aside, move |interrupted, own, addresses| {
        let walked = [interrupted, own].map(|start| walk(&start, &[], &*seen, &*seen));
        record(&seen, own, &walked[1], aside);
        noted.borrow_mut().push((interrupted, walked, addresses));
    });
    let found = found.take();
    let [(interrupted, [outer, inner], addresses)] = &found[..] else {
        panic!("the handler ran {} times", found.len());
    };
    let from = addresses.iter().position(|&at| at == interrupted.pc);
    let from = from.expect("the other unwinder has passed the signal");
    assert_eq!(outer.end, END_COMPLETE);
    assert_eq!(outer.addresses, addresses[from..]);
    assert_eq!(inner.end, END_COMPLETE);
    // Of the handler itself it is another place, of what was interrupted an exact one.
    let mut expected = addresses.clone();
    expected[0] = inner.addresses[0];
    expected[from] |= EXACT_ADDRESS;
    assert_eq!(inner.addresses, expected);
    assert!(from >= 2 && addresses.len() > from + 5, "{addresses:x?}");
}

/// With `RECORD_STACKS=DIRECTORY`, writes a handler's stack there, for tests/golden/unwind. What is
/// written is compared with the other unwinder by the caller.
fn record(process: &live::Process, start: Start, walked: &Walked, aside: bool) {
    let Some(directory) = std::env::var_os("RECORD_STACKS") else {
        return;
    };
    let name = if aside { "signal-aside" } else { "signal" };
    let note = format!("a test in the handler of a {name}, expected by libgcc 12");
    let file = |address| process.file(address);
    let snapshot = Snapshot::record(&note, start, process, process, file, walked.clone());
    let path = PathBuf::from(directory).join(format!("{name}.txt"));
    std::fs::write(path, snapshot.to_text()).unwrap();
}

#[inline(never)]
fn deep(depth: u32, aside: bool) -> u32 {
    if depth == 0 {
        interrupted_and_compared(aside);
        return 0;
    }
    // Something to do afterwards, else there would be no frame.
    deep(depth - 1, aside) + std::hint::black_box(1)
}

#[test]
fn walks_find_what_the_c_librarys_unwinder_finds() {
    for aside in [false, true] {
        assert_eq!(deep(20, aside), 20);
    }
}

/// Recorded stacks replay to what was expected, and the tables of those files that are the same on
/// this machine say the same still.
#[test]
fn recorded_stacks_are_walked_as_expected() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/unwind");
    let mut tables = BTreeMap::new();
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let snapshot = Snapshot::parse(&text).unwrap();
        assert_eq!(snapshot.to_text(), text, "{}", path.display());
        assert_eq!(snapshot.replay(), snapshot.expected, "{}", path.display());
        for found in snapshot.code.values() {
            let Found::Entry(expected) = found else {
                continue;
            };
            let table = tables
                .entry((expected.path.clone(), expected.build_id.clone()))
                .or_insert_with(|| table_of(&expected.path, &expected.build_id));
            if let Some(table) = table {
                let entry = table.entry_at(expected.address);
                assert_eq!(entry, expected.entry, "{}: {expected:x?}", path.display());
            }
        }
        count += 1;
    }
    assert!(count >= 2, "{count} recorded stacks");
}

/// The table of a file, if it is the one with this build id.
fn table_of(path: &str, build_id: &str) -> Option<Table> {
    let bytes = std::fs::read(path).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    let id = live::hexadecimal(elf.build_id().ok()??);
    let built = (id == build_id).then(|| build_file(&File::open(path).unwrap(), None).unwrap());
    Some(built?.0)
}

/// All ELF files below some directories, each once.
fn elf_files(roots: &str) -> Vec<PathBuf> {
    let mut left: Vec<PathBuf> = roots.split(':').map(PathBuf::from).collect();
    let (mut files, mut known) = (Vec::new(), HashSet::new());
    while let Some(path) = left.pop() {
        let Ok(metadata) = path.symlink_metadata() else {
            continue;
        };
        if !known.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten();
            left.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        } else if metadata.is_file() {
            let mut magic = [0; 4];
            let read = File::open(&path).and_then(|mut file| file.read_exact(&mut magic));
            if read.is_ok() && &magic == b"\x7fELF" {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[test]
#[ignore = "reads all objects of the machine"]
fn figures() {
    let roots = std::env::var("ROOTS").unwrap();
    let mut sum = BuildReport::default();
    let mut rules = HashSet::new();
    let mut others = BTreeMap::new();
    let mut sizes = Vec::new();
    let mut spent = Duration::ZERO;
    for path in elf_files(&roots) {
        let file = File::open(&path).unwrap();
        let begun = Instant::now();
        let built = build_file(&file, None);
        let time = begun.elapsed();
        match built {
            Err(error) => *others.entry(error.to_string()).or_insert(0) += 1,
            Ok((table, report)) => {
                spent += time;
                rules.extend(table.rules.iter().copied());
                sizes.push((report.table_bytes, time, report.section_bytes, path));
                sum.section_bytes += report.section_bytes;
                sum.functions += report.functions;
                sum.functions_left_out += report.functions_left_out;
                sum.functions_unreadable += report.functions_unreadable;
                sum.functions_damaged += report.functions_damaged;
                sum.rows_read += report.rows_read;
                sum.rows_cfa += report.rows_cfa;
                sum.rows_return_address += report.rows_return_address;
                sum.rows_stack_pointer += report.rows_stack_pointer;
                sum.rows_frame_pointer += report.rows_frame_pointer;
                sum.rows_refused += report.rows_refused;
                sum.rows += report.rows;
                sum.rules = sum.rules.max(report.rules);
                sum.table_bytes += report.table_bytes;
            }
        }
    }
    let seconds = spent.as_secs_f64();
    println!("{} files with tables, others: {others:?}", sizes.len());
    println!("sums (rules: the most of one file): {sum:#?}");
    println!("{} different rules", rules.len());
    println!(
        "{seconds:.2} s, {:.0} MB/s of sections",
        sum.section_bytes as f64 / 1e6 / seconds
    );
    sizes.sort();
    for (bytes, time, section, path) in sizes.iter().rev().take(12) {
        println!("{bytes} bytes, {section} in {time:?}: {}", path.display());
    }
}

#[test]
#[ignore = "reads all objects of the machine"]
fn figures_of_the_cache() {
    let roots = std::env::var("ROOTS").unwrap();
    let folder = std::env::temp_dir().join(format!("unwind-cache-{}", std::process::id()));
    let mut classes: BTreeMap<u32, (u32, u64, [Duration; 3])> = BTreeMap::new();
    let mut cache = Cache::open(&folder.join("tables"), LIMIT_BYTES);
    for path in elf_files(&roots) {
        let file = File::open(&path).unwrap();
        let Ok((_, report)) = build_file(&file, None) else {
            continue;
        };
        let class = report.section_bytes.max(1).ilog2();
        let (count, bytes, times) = classes.entry(class).or_default();
        *count += 1;
        *bytes += report.section_bytes;
        let begun = Instant::now();
        build_file(&file, None).unwrap();
        times[0] += begun.elapsed();
        for time in &mut times[1..] {
            let begun = Instant::now();
            cache.table_of_file(&file, None).unwrap();
            *time += begun.elapsed();
        }
    }
    println!("sections of 2^n bytes: files, bytes, [built, built and kept, read back]");
    for (class, (count, bytes, times)) in classes {
        println!("{class:2}: {count:5} {bytes:10} {times:?}");
    }
    println!("{:?}", cache.counts());
    std::fs::remove_dir_all(folder).unwrap();
}
