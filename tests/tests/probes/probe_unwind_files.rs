//! Walks on the kernel side by the tables of real files: a C program without frame pointers, with the C
//! library below and in the middle of its stacks.
//!
//! The oracle is the program itself: each of its ways has one chain of functions. Addresses are named by
//! the symbols that `nm` lists. Needs root and gcc; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::probe_shared::*;
use object::{Object, ObjectSegment};

use profiler_common::sample::EXACT_ADDRESS;
use profiler_model::{Pid, StackEnd};
use profiler_probe::{
    KernelTables, MappedCode, Probe, ProbeOptions, Rate, Slot, SourceSpec, UnwindOptions,
};
use profiler_target::Filter;
use profiler_tests::skip::{privileged, skip};
use profiler_unwind::{Table, build_file, build_vdso};

const SOURCE: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <alloca.h>
#define FUNCTION __attribute__((noinline, noclone, no_icf))
#define NOT_A_TAIL_CALL() __asm__ volatile("" ::: "memory")
static volatile int way;
FUNCTION void spin(void) { for (;;) __asm__ volatile(""); }
FUNCTION void handler(int number) { (void)number; spin(); NOT_A_TAIL_CALL(); }
FUNCTION void end(void) {
    if (way == 1) __asm__ volatile("ud2");
    spin();
    NOT_A_TAIL_CALL();
}
FUNCTION int with_alloca(int size) {
    char *room = alloca(size);
    memset(room, 1, size);
    end();
    return room[size / 2];
}
FUNCTION int recurse(int depth) {
    volatile char room[40];
    room[depth % 40] = 1;
    int result = depth > 1 ? recurse(depth - 1) : with_alloca(100 + depth);
    NOT_A_TAIL_CALL();
    return result + room[depth % 40];
}
FUNCTION int compare(const void *one, const void *other) {
    (void)one, (void)other;
    int result = recurse(2);
    NOT_A_TAIL_CALL();
    return result;
}
FUNCTION void *thread(void *argument) {
    recurse(3);
    NOT_A_TAIL_CALL();
    return argument;
}
int main(int argc, char **argv) {
    if (argc < 2) return 2;
    printf("role: ready\n");
    fflush(stdout);
    getchar();
    if (!strcmp(argv[1], "signal")) {
        way = 1;
        signal(SIGILL, handler);
        recurse(4);
    } else if (!strcmp(argv[1], "library")) {
        int numbers[2] = {1, 2};
        qsort(numbers, 2, sizeof *numbers, compare);
    } else if (!strcmp(argv[1], "thread")) {
        pthread_t id;
        pthread_create(&id, NULL, thread, NULL);
        pthread_join(id, NULL);
    } else {
        recurse(atoi(argv[1]));
    }
    return 0;
}
"#;

/// The functions of the program on a stack, leaf first; runs of one are one, with their length. What is not
/// of the program is "...".
fn chain(way: &str) -> Vec<(&str, usize)> {
    let end = |depth| {
        vec![
            ("spin", 1),
            ("end", 1),
            ("with_alloca", 1),
            ("recurse", depth),
        ]
    };
    let mut chain = match way {
        "signal" => {
            let mut chain = end(4);
            chain.insert(1, ("handler", 1));
            chain.insert(2, ("...", 1));
            chain
        }
        "library" => {
            let mut chain = end(2);
            chain.extend([("compare", 1), ("...", 0)]);
            chain
        }
        "thread" => {
            let mut chain = end(3);
            chain.extend([("thread", 1), ("...", 0)]);
            return chain;
        }
        depth => end(depth.parse().unwrap()),
    };
    chain.extend([("main", 1), ("...", 0), ("_start", 1)]);
    chain
}

fn build(flags: &[&str]) -> Option<PathBuf> {
    let name = format!("unwind-files{}", flags.concat().replace('=', "-"));
    let program = profiler_tests::workload::target().join(name);
    let source = program.with_extension("c");
    fs::write(&source, SOURCE).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-O2", "-fomit-frame-pointer", "-pthread"]);
    command.args(flags).arg("-o").arg(&program).arg(&source);
    match command.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return None,
    }
    Some(program.canonicalize().unwrap())
}

/// What is mapped in a process, and what of it is the program's own.
struct Target {
    workload: Workload,
    /// Start, end, and what is added to an address to have the file's own.
    own: (u64, u64, u64),
    symbols: BTreeMap<u64, String>,
}

impl Target {
    fn start(program: &Path, way: &str) -> Target {
        let workload = Workload::spawn(Command::new(program).arg(way));
        let listed = Command::new("nm").arg(program).output().unwrap();
        let symbols = String::from_utf8(listed.stdout).unwrap();
        let symbols = symbols.lines().filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [address, "t" | "T", name] = words[..] else {
                return None;
            };
            Some((u64::from_str_radix(address, 16).unwrap(), name.to_owned()))
        });
        Target {
            workload,
            own: (0, 0, 0),
            symbols: symbols.collect(),
        }
    }

    /// Loads the tables of all that it has mapped.
    fn load(&mut self, probe: &mut Probe, program: &Path) {
        let pid = self.workload.pid();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let unwinder = probe.unwinder().unwrap();
        let mut slots: BTreeMap<String, Slot> = BTreeMap::new();
        let mut mappings = Vec::new();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if !words[1].contains('x') || words.len() < 6 || words[5] == "[vsyscall]" {
                continue;
            }
            let (start, end) = words[0].split_once('-').unwrap();
            let [start, end, offset] =
                [start, end, words[2]].map(|word| u64::from_str_radix(word, 16).unwrap());
            let (table, address): (Table, u64) = if words[5] == "[vdso]" {
                let mut bytes = vec![0; (end - start) as usize];
                let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
                memory.read_exact_at(&mut bytes, start).unwrap();
                (build_vdso(&bytes).unwrap().0, 0)
            } else {
                let bytes = fs::read(words[5]).unwrap();
                let object = object::File::parse(&*bytes).unwrap();
                let address = object.segments().find_map(|segment| {
                    let (first, len) = segment.file_range();
                    (first..first + len)
                        .contains(&offset)
                        .then(|| segment.address() + (offset - first))
                });
                let table = build_file(&File::open(words[5]).unwrap(), None).unwrap().0;
                (table, address.unwrap_or(offset))
            };
            if Path::new(words[5]) == program {
                self.own = (start, end, address.wrapping_sub(start));
            }
            let slot = *slots.entry(words[5].to_owned()).or_insert_with(|| {
                let slot = unwinder.reserve().unwrap();
                unwinder.load(slot, &table).unwrap();
                slot
            });
            mappings.push(MappedCode {
                start,
                end,
                address,
                slot: Some(slot),
            });
        }
        unwinder.set_process(Pid(pid), &mappings).unwrap();
    }

    /// The function at an address of a stack.
    fn name(&self, index: usize, address: u64) -> &str {
        let is_exact = index == 0 || address & EXACT_ADDRESS != 0;
        let at = (address & !EXACT_ADDRESS) - u64::from(!is_exact);
        let (start, end, shift) = self.own;
        if at < start || at >= end {
            return "...";
        }
        let symbol = self.symbols.range(..=at.wrapping_add(shift)).next_back();
        symbol.map_or("...", |(_, name)| name)
    }
}

fn options(pid: u32) -> ProbeOptions {
    ProbeOptions {
        sources: vec![SourceSpec {
            event: "cpu-clock".parse().unwrap(),
            rate: Rate::FrequencyHz(999),
        }],
        hierarchy: None,
        filter: Filter {
            pids: vec![Pid(pid)],
            ..Filter::default()
        },
        buffer_bytes: 8 << 20,
        kernel_stacks: false,
        user_stacks: true,
        unwind: Some(UnwindOptions {
            memory_bytes: 64 << 20,
            copies_per_second: 0,
            deep_frames_per_second: u32::MAX,
        }),
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
        calls: None,
    }
}

#[test]
fn programs_without_frame_pointers_have_whole_stacks() {
    const TEST: &str = "programs_without_frame_pointers_have_whole_stacks";
    if !privileged(TEST) {
        return;
    }
    // A static one has the C library's functions among its own: only where they can't be told apart.
    for flags in [&[][..], &["-no-pie"], &["-O0"], &["-Os"], &["-O3"]] {
        let Some(program) = build(flags) else {
            skip(TEST, "gcc is not installed");
            return;
        };
        for way in [
            "1", "30", "119", "120", "200", "signal", "library", "thread",
        ] {
            check(&program, flags, way);
        }
    }
}

fn check(program: &Path, flags: &[&str], way: &str) {
    let mut target = Target::start(program, way);
    let mut probe = Probe::attach(options(target.workload.pid())).unwrap();
    target.load(&mut probe, program);
    target.workload.go();
    record(&mut probe, Duration::from_millis(50));
    let mut events = Vec::new();
    // On a busy machine it may not run at once.
    for _ in 0..100 {
        events.extend(record(&mut probe, Duration::from_millis(60)));
        if samples(&events).count() > 20 {
            break;
        }
    }
    let chain = chain(way);
    let mut count = 0;
    for (_, sample) in samples(&events) {
        let stack: Vec<u64> = sample.user.addresses().collect();
        let mut names: Vec<(&str, usize)> = Vec::new();
        for (index, address) in stack.iter().enumerate() {
            let name = target.name(index, *address);
            match names.last_mut() {
                Some((last, length)) if *last == name => *length += 1,
                _ => names.push((name, 1)),
            }
        }
        let said = format!("{flags:?} {way}: {names:?} {:?}", sample.user.end);
        assert_eq!(sample.user.end, StackEnd::Complete, "{said}");
        for ((name, length), expected) in names.iter().zip(&chain) {
            assert_eq!(*name, expected.0, "{said}");
            assert!(expected.1 == *length || expected.1 == 0, "{said}");
        }
        assert_eq!(names.len(), chain.len(), "{said}");
        count += 1;
    }
    assert!(count > 20, "{flags:?} {way}: {count} samples");
}
