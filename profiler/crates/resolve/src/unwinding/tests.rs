//! Copied stacks that go on in user space, and what the kernel is told meanwhile: made-up processes map a
//! real program, whose functions are met at their first instruction, where the return address is on top of
//! the stack.

use std::path::Path;
use std::time::Duration;

use profiler_common::unwind::{COPY_BYTES, CopyHead, REGISTER_FP, REGISTER_SP, UnwindCounters};

use super::super::tests::*;
use super::super::{ResolveOptions, Resolver};
use super::*;
use profiler_model::{Batch, Event};
use profiler_unwind::Table;
use profiler_unwind::kernel::{KernelTables, MappedCode, NoRoom, Slot};

const STACK: u64 = 0x7ffe_0000_1000;

fn resolver() -> Box<Resolver> {
    let options = ResolveOptions {
        tables_bytes: Some(16 << 20),
        ..options()
    };
    Resolver::new(options).unwrap()
}

/// Return addresses right behind the first instruction of each function.
fn returns(program: &Path, functions: &[&str]) -> Vec<u64> {
    let at = |function: &&str| BASE + offset_of(program, function) + 1;
    functions.iter().map(at).collect()
}

/// A sample whose walk has found `before` and has come to the first of `returns`; the others lie on
/// the stack, and then `rest`.
fn cut_short(time: u64, pid: u32, before: &[u64], returns: &[u64], rest: &[u64]) -> RawEvent {
    let mut event = sample(time, pid, "program", before, &[]);
    let mut head = CopyHead {
        pc: returns[0],
        is_return: 1,
        ..CopyHead::default()
    };
    head.registers[usize::from(REGISTER_SP)] = STACK;
    let words = returns[1..].iter().chain(rest);
    let copy = RawCopy {
        head,
        bytes: words.flat_map(|word| word.to_ne_bytes()).collect(),
    };
    if let RawBody::Sample(sample) = &mut event.body {
        sample.user.end = StackEnd::NoTable;
        sample.copy = Some(Box::new(copy));
    }
    event
}

/// A program in a process that has begun.
fn began(dir: &TempDir, pid: u32) -> (std::path::PathBuf, Vec<RawEvent>) {
    let program = build(dir, "program", &["-fomit-frame-pointer"]);
    let mut events = start(10, pid, "program");
    events.push(map_file(12, pid, BASE, 0x10000, &program, 0));
    (program, events)
}

/// What a kernel would have.
#[derive(Debug, Default)]
struct Kernel {
    slots: u32,
    /// Slots with a table.
    loaded: Vec<Slot>,
    /// Most tables that there is room for; none: any number.
    room: Option<usize>,
    lists: FxHashMap<Pid, Vec<MappedCode>>,
    now: u64,
}

impl KernelTables for Kernel {
    fn reserve(&mut self) -> Option<Slot> {
        self.slots += 1;
        Some(Slot(self.slots))
    }

    fn load(&mut self, slot: Slot, _: &Table) -> Result<(), NoRoom> {
        if self.room.is_some_and(|room| self.loaded.len() >= room) {
            return Err(NoRoom);
        }
        self.loaded.push(slot);
        Ok(())
    }

    fn load_none(&mut self, _: Slot) {}

    fn evict(&mut self, slot: Slot) {
        self.loaded.retain(|loaded| *loaded != slot);
    }

    fn release(&mut self, slot: Slot) {
        self.evict(slot);
    }

    fn used(&self, _: Slot) -> Timestamp {
        Timestamp(self.now)
    }

    fn set_process(&mut self, pid: Pid, mappings: &[MappedCode]) -> Result<(), NoRoom> {
        self.lists.insert(pid, mappings.to_vec());
        Ok(())
    }

    fn forget_process(&mut self, pid: Pid) {
        self.lists.remove(&pid);
    }

    fn collect(&mut self) {}

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn counters(&self) -> UnwindCounters {
        UnwindCounters::default()
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.now)
    }
}

fn notice(resolver: &mut Resolver, kernel: &mut Kernel, events: &[RawEvent]) {
    for event in events {
        resolver.notice(event);
    }
    resolver.bring_tables(events, kernel);
}

/// Brings in tables until all that were wanted are there.
fn bring_all(resolver: &mut Resolver, kernel: &mut Kernel) {
    while resolver.builds_tables() {
        resolver.bring_tables(&[], kernel);
    }
    resolver.bring_tables(&[], kernel);
}

/// Resolves what is left and reads all back.
fn finish(resolver: &mut Resolver, mut out: Vec<Batch>) -> Reader {
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    reader
}

#[test]
fn frames_of_the_kernel_side_and_of_the_copy_are_one_stack() {
    let dir = TempDir::new("continued");
    let (program, mut events) = began(&dir, pid(1));
    let returns = returns(&program, &["outer", "main"]);
    let leaf = BASE + offset_of(&program, "inner");
    events.push(cut_short(20, pid(1), &[leaf], &returns, &[0]));
    let (mut resolver, mut kernel) = (resolver(), Kernel::default());
    notice(&mut resolver, &mut kernel, &events);
    let slot = kernel.lists[&Pid(pid(1))][0].slot.unwrap();
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let reader = finish(&mut resolver, out);
    assert_eq!(reader.user_stacks(), [["inner", "outer", "main"]]);
    let sample = reader.samples().next().unwrap();
    assert_eq!(sample.user_end, StackEnd::Complete);
    let counters = resolver.counters();
    assert_eq!(
        (counters.stacks_continued, counters.stacks_without_table),
        (1, 0)
    );
    // The kernel side goes on by itself from now on.
    bring_all(&mut resolver, &mut kernel);
    assert_eq!(kernel.loaded, [slot]);
    assert_eq!(resolver.unwind_summary(&kernel).loaded, 1);
}

#[test]
fn what_is_behind_a_sample_that_waits_waits_with_it() {
    let dir = TempDir::new("waits");
    let (program, mut events) = began(&dir, pid(2));
    let returns = returns(&program, &["inner", "outer", "main"]);
    events.push(cut_short(20, pid(2), &[], &returns, &[0]));
    // By the time that the table is there, the addresses mean something else.
    events.push(exec(21, pid(2), "other"));
    events.push(sample(22, pid(2), "other", &[returns[0]], &[]));
    events.push(exit(23, pid(2)));
    let mut resolver = resolver();
    notice(&mut resolver, &mut Kernel::default(), &events);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.await_tables(PATIENCE, &mut out);
    let reader = finish(&mut resolver, out);
    let stacks = reader.user_stacks();
    assert_eq!(stacks[0], ["inner", "outer", "main"]);
    assert_eq!(stacks[1].len(), 1);
    assert_ne!(stacks[1][0], "inner");
    assert!(matches!(reader.events.last(), Some(Event::Process(_))));
}

const MS: u64 = 1_000_000;
/// An address of the kernel.
const KERNEL: u64 = 0xffff_ffff_8100_0000;

#[test]
fn what_was_walked_by_an_outdated_list_is_cut() {
    let dir = TempDir::new("outdated");
    let pid = pid(7);
    let (program, mut events) = began(&dir, pid);
    let other = build(&dir, "other", &["-O0"]);
    const LIBRARY: u64 = BASE + 0x100000;
    events.push(map_file(13, pid, LIBRARY, 0x10000, &program, 0));
    let mut resolver = resolver();
    let mut kernel = Kernel {
        now: 20,
        ..Kernel::default()
    };
    notice(&mut resolver, &mut kernel, &events);
    let exchange = map_file(40 * MS, pid, LIBRARY, 0x10000, &other, 0);
    // The kernel is told some time later.
    kernel.now = 60 * MS;
    notice(&mut resolver, &mut kernel, std::slice::from_ref(&exchange));
    // The leaf and the first caller are in the program, the next one in the library.
    let mut stack = returns(&program, &["inner", "outer", "main"]);
    stack[1] += LIBRARY - BASE;
    let end = stack[2] + 1;
    for at in [30, 50, 70] {
        events.push(sample(at * MS, pid, "program", &stack, &[]));
    }
    // The kernel side has gone on behind it, and needed a table then.
    events.push(cut_short(51 * MS, pid, &stack, &[end], &[0]));
    events.push(exchange);
    events.sort_by_key(|event| event.at);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let reader = finish(&mut resolver, out);
    let ends: Vec<_> = reader
        .samples()
        .zip(reader.user_stacks())
        .map(|(sample, stack)| (sample.user_end, stack.len()))
        .collect();
    let (whole, cut) = ((StackEnd::Complete, 3), (StackEnd::NoTable, 2));
    assert_eq!(ends, [whole, cut, cut, whole]);
    assert_eq!(resolver.counters().stacks_outdated, 2);
    // When all that is resolved, nothing is kept of the first list.
    resolver.tend_tables(&mut kernel);
    assert!(!resolver.mapped.unwinding.announced.has_past());
}

/// Where libraries take each other's place all the time, no list is new enough: the kernel side copies what it meets
/// there, and the stack goes on by what was mapped then.
#[test]
fn where_files_take_turns_stacks_are_copied() {
    let dir = TempDir::new("turns");
    let pid = pid(12);
    let (program, mut events) = began(&dir, pid);
    let other = build(&dir, "other", &["-O0"]);
    const LIBRARY: u64 = BASE + 0x100000;
    let (mut resolver, mut kernel) = (resolver(), Kernel::default());
    notice(&mut resolver, &mut kernel, &events);
    let at_library = |kernel: &Kernel| {
        let list = &kernel.lists[&Pid(pid)];
        let at = list.iter().find(|code| code.start == LIBRARY);
        at.map(|code| code.slot.unwrap())
    };
    let mut slots = Vec::new();
    for turn in 1..10 {
        kernel.now = turn * MS;
        let file = if turn % 2 == 0 { &program } else { &other };
        let exchange = map_file(turn * MS, pid, LIBRARY, 0x10000, file, 0);
        notice(&mut resolver, &mut kernel, std::slice::from_ref(&exchange));
        slots.push(at_library(&kernel).unwrap());
        events.push(exchange);
    }
    assert!(slots[0] == slots[2] && slots[0] != slots[1]);
    let tableless = slots[4];
    assert!(!slots[..3].contains(&tableless));
    assert_eq!(slots[3..], [tableless; 6]);
    bring_all(&mut resolver, &mut kernel);
    assert!(!kernel.loaded.contains(&tableless));
    // What was found before, and then a copy, by the file that is there at that time.
    let mut stack = returns(&program, &["inner", "outer", "main"]);
    stack[1] += LIBRARY - BASE;
    for turn in [6, 7] {
        let time = turn * MS + MS / 2;
        events.push(cut_short(time, pid, &stack[..1], &stack[1..], &[0]));
    }
    events.sort_by_key(|event| event.at);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.await_tables(PATIENCE, &mut out);
    let reader = finish(&mut resolver, out);
    let ends: Vec<StackEnd> = reader.samples().map(|sample| sample.user_end).collect();
    assert_eq!(ends[0], StackEnd::Complete);
    assert_eq!(resolver.counters().stacks_outdated, 0);
}

#[test]
fn a_program_that_has_not_begun_has_no_user_stack() {
    let dir = TempDir::new("begins");
    let pid = pid(8);
    let (program, mut events) = began(&dir, pid);
    let stack = returns(&program, &["inner", "outer"]);
    let vdso = Path::new("[vdso]");
    let kernel = [KERNEL];
    let mut unfinished = cut_short(23 * MS, pid, &stack, &stack, &[0]);
    if let RawBody::Sample(sample) = &mut unfinished.body {
        sample.kernel.bytes = KERNEL.to_ne_bytes().to_vec().into();
    }
    events.extend([
        map_file(13, pid, 0x7fff_0000_0000, 0x2000, vdso, 0),
        sample(20 * MS, pid, "program", &stack, &kernel),
        exec(21 * MS, pid, "program"),
        map_file(22 * MS, pid, BASE, 0x10000, &program, 0),
        unfinished,
        sample(23 * MS, pid, "program", &stack, &kernel),
        map_file(24 * MS, pid, 0x7fff_0000_0000, 0x2000, vdso, 0),
        sample(25 * MS, pid, "program", &stack, &kernel),
    ]);
    let mut resolver = resolver();
    notice(&mut resolver, &mut Kernel::default(), &events);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let reader = finish(&mut resolver, out);
    let stacks: Vec<_> = reader
        .samples()
        .map(|sample| (sample.user.is_some(), sample.user_end))
        .collect();
    let (some, none) = ((true, StackEnd::Complete), (false, StackEnd::Gone));
    assert_eq!(stacks, [some, none, none, some]);
}

#[test]
fn a_copy_that_is_too_short_is_no_whole_stack_and_counted() {
    let dir = TempDir::new("short");
    let (program, mut events) = began(&dir, pid(3));
    let returns = returns(&program, &["inner", "outer"]);
    let full = vec![returns[1]; COPY_BYTES / 8 - 1];
    events.push(cut_short(20, pid(3), &[], &returns, &[]));
    events.push(cut_short(21, pid(3), &[], &returns, &full));
    let mut resolver = resolver();
    notice(&mut resolver, &mut Kernel::default(), &events);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let reader = finish(&mut resolver, out);
    let ends: Vec<StackEnd> = reader.samples().map(|sample| sample.user_end).collect();
    // The second is as deep as stacks can be, whatever was copied.
    assert_eq!(ends, [StackEnd::BadMemory, StackEnd::Truncated]);
    assert_eq!(reader.user_stacks()[0], ["inner", "outer"]);
}

#[test]
fn a_stack_that_is_longer_than_its_copy_is_counted_apart() {
    let dir = TempDir::new("longer");
    let program = build(&dir, "program", &["-fno-omit-frame-pointer"]);
    let mut events = start(10, pid(11), "program");
    events.push(map_file(12, pid(11), BASE, 0x10000, &program, 0));
    // Behind what begins `main`: its caller is found by the frame pointer.
    let within = [BASE + offset_of(&program, "main") + 16];
    for (time, words) in [(20, COPY_BYTES / 8), (21, COPY_BYTES / 8 - 1)] {
        let mut event = cut_short(time, pid(11), &[], &within, &vec![0; words]);
        if let RawBody::Sample(sample) = &mut event.body
            && let Some(copy) = &mut sample.copy
        {
            copy.head.registers[usize::from(REGISTER_FP)] = STACK + COPY_BYTES as u64;
        }
        events.push(event);
    }
    let mut resolver = resolver();
    notice(&mut resolver, &mut Kernel::default(), &events);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let reader = finish(&mut resolver, out);
    let ends: Vec<StackEnd> = reader.samples().map(|sample| sample.user_end).collect();
    // All of the second stack was copied: what is behind it can't be read.
    assert_eq!(ends, [StackEnd::NoTable, StackEnd::BadMemory]);
    let counters = resolver.counters();
    assert_eq!(
        (counters.stacks_continued, counters.stacks_without_table),
        (2, 1)
    );
    assert_eq!(counters.stacks_copied_short, 1);
}

#[test]
fn processes_are_followed_ahead_of_their_turn() {
    let dir = TempDir::new("ahead");
    let (_, mut events) = began(&dir, pid(4));
    events.push(fork(13, pid(4), pid(5)));
    events.push(exec(14, pid(4), "other"));
    let mut resolver = resolver();
    let mut kernel = Kernel::default();
    notice(&mut resolver, &mut kernel, &events);
    let child = &kernel.lists[&Pid(pid(5))];
    assert_eq!((child[0].start, child[0].end), (BASE, BASE + 0x10000));
    assert!(child[0].slot.is_some());
    assert!(kernel.lists[&Pid(pid(4))].is_empty());
    events.push(exit(15, pid(5)));
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.bring_tables(&[], &mut kernel);
    assert!(!kernel.lists.contains_key(&Pid(pid(5))));
}

#[test]
fn without_tables_nothing_of_this_is_done() {
    let dir = TempDir::new("without");
    let (_, mut events) = began(&dir, pid(6));
    let mut resolver = Resolver::new(options()).unwrap();
    let mut kernel = Kernel::default();
    notice(&mut resolver, &mut kernel, &events);
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.bring_tables(&[], &mut kernel);
    assert!(kernel.lists.is_empty() && kernel.slots == 0 && !resolver.builds_tables());
}

#[test]
fn a_table_without_room_is_asked_for_again_when_there_is_some() {
    let dir = TempDir::new("room");
    let (program, mut events) = began(&dir, pid(8));
    let returns = returns(&program, &["outer", "main"]);
    let leaf = BASE + offset_of(&program, "inner");
    events.push(cut_short(20, pid(8), &[leaf], &returns, &[0]));
    let mut resolver = resolver();
    let mut kernel = Kernel {
        room: Some(0),
        ..Kernel::default()
    };
    notice(&mut resolver, &mut kernel, &events);
    bring_all(&mut resolver, &mut kernel);
    assert_eq!(kernel.loaded, []);
    assert_eq!(resolver.unwind_summary(&kernel).refused, 1);
    // Not at once: tables are not exchanged all the time.
    kernel.room = None;
    resolver.bring_tables(&events[events.len() - 1..], &mut kernel);
    assert_eq!(kernel.loaded, []);
    // What has ended is forgotten.
    events.push(exit(21, pid(8)));
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.bring_tables(&[], &mut kernel);
    assert!(!kernel.lists.contains_key(&Pid(pid(8))));
}
