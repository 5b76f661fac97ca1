//! Unwind tables and lists of mappings in the kernel: what the programs walk user stacks by.
//!
//! [`Table`]s and the mappings of processes -> the maps that `profiler_common::unwind` describes. A
//! reader sees a table or a list whole or not at all; what is replaced or taken out is used again
//! only after all programs that may have read it have ended ([`Unwinder::collect`]). Addresses of
//! tables are the file's own; memory is in bytes, all of it together stays below a limit.
//!
//! What does not belong here: which tables are wanted and which are evicted (the caller says),
//! how tables are made (`unwind`).

mod grace;
mod rules;
mod segments;
mod spans;
mod words;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::{Ebpf, EbpfLoader};
use profiler_common::unwind::{
    FIRST_RULE, MAPPING_JIT, MAPPING_WORDS, MAX_MAPPINGS, MAX_PROCESSES, MAX_RULES, MAX_SEGMENTS,
    MAX_TABLES, OFFSETS, Process, REGISTERS_NONE, Rule, SEGMENT_WORDS, Span, TABLE_ABSENT,
    TABLE_NONE, UnwindCounters, row, row_place, row_rule,
};
use rustc_hash::FxHashMap;

use self::{grace::Grace, rules::Rules, segments::SEGMENT_BYTES, segments::Segments, words::Words};
use super::{ProbeError, bpf, hotplug, load, memory, offsets};
use profiler_model::{Pid, Timestamp};
use profiler_unwind::Table;
use profiler_unwind::kernel::{KernelTables, MappedCode, NoRoom, Slot};

/// How user stacks are walked, other than by frame pointers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindOptions {
    /// Most memory that tables and lists may take in the kernel, in bytes. Some 8 MiB of it are
    /// taken at once, the rest in pieces of 2 MiB when it is needed.
    pub memory_bytes: u64,
    /// Most stacks that are copied for user space in a second, on each processor; 0: none.
    pub copies_per_second: u32,
    /// Most frames beyond the first [`profiler_common::MAX_FRAMES`] of stacks that are looked for in a second, on
    /// each processor, give or take one stack.
    pub deep_frames_per_second: u32,
}

/// Words of a value of `TABLES`, and where they are in it.
const TABLE_WORDS: usize = size_of::<profiler_common::unwind::Table>() / 8;
const DIRECTORY: usize = 0;
const BASE: usize = 1;
const GENERATION: usize = 2;
const USED: usize = 3;
/// Words of a rule.
const RULE_WORDS: usize = size_of::<Rule>() / 8;

/// Rows of a table are put into pieces of at most this many words, so that holes of any size are of
/// use. A page with more has a piece of its own.
const PIECE_WORDS: u32 = 1 << 14;

/// Lists of mappings take multiples of this, so that one fits where another one was.
const LIST_WORDS: u32 = 32;

/// The tables and lists of mappings in the kernel.
pub struct Unwinder {
    segments: Segments,
    tables: Words,
    rule_words: Words,
    rules: Rules,
    processes: OwnedFd,
    counters: OwnedFd,
    grace: Grace,
    /// What each slot holds, by its number; none: it is free.
    slots: Vec<Option<Loaded>>,
    /// Numbers of free slots.
    free_slots: Vec<u32>,
    /// Lists of mappings.
    lists: FxHashMap<Pid, Option<Span>>,
    /// What was taken out since the last wait began.
    retired: Retired,
    /// What the wait under way is for, and its number.
    waiting: Option<(u64, Retired)>,
    waits: u64,
    /// Memory of the maps besides segments.
    fixed_bytes: u64,
    /// What was loaded last.
    generation: u64,
}

/// What a slot refers to.
#[derive(Debug, Default)]
struct Loaded {
    spans: Vec<Span>,
    rules: Vec<u32>,
}

/// What programs may still read.
#[derive(Debug, Default)]
struct Retired {
    spans: Vec<Span>,
    rules: Vec<u32>,
    slots: Vec<u32>,
}

impl Retired {
    fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.rules.is_empty() && self.slots.is_empty()
    }
}

/// What the kernel side is told before it is loaded.
pub(super) struct Globals {
    walks: u8,
    copies: u32,
    steps: u32,
    registers: u8,
    offsets: [u32; OFFSETS],
}

impl Globals {
    /// For what is asked for; none: frame pointers alone. `user_stacks`: there are to be any.
    pub(super) fn new(options: Option<&UnwindOptions>, user_stacks: bool) -> Globals {
        let nothing = ([0; OFFSETS], REGISTERS_NONE);
        let (offsets, registers) = if user_stacks {
            offsets::of_walks()
        } else {
            nothing
        };
        let Some(options) = options else {
            return Globals {
                walks: 0,
                copies: 0,
                steps: 0,
                registers,
                offsets,
            };
        };
        Globals {
            walks: 1,
            copies: options.copies_per_second,
            steps: options.deep_frames_per_second,
            registers,
            offsets,
        }
    }

    /// Sets globals and sizes of maps.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        let one_unless = |count: u32| if self.walks != 0 { count } else { 1 };
        loader
            .override_global("UNWIND", &self.walks, true)
            .override_global("UNWIND_COPIES", &self.copies, true)
            .override_global("UNWIND_STEPS", &self.steps, true)
            .override_global("USER_REGISTERS", &self.registers, true)
            .override_global("UNWIND_OFFSETS", &self.offsets, true)
            .map_max_entries("SEGMENTS", one_unless(MAX_SEGMENTS))
            .map_max_entries("PROCESSES", one_unless(MAX_PROCESSES))
            .map_max_entries("TABLES", one_unless(MAX_TABLES))
            .map_max_entries("RULES", one_unless(MAX_RULES));
    }
}

impl Unwinder {
    /// Takes over the maps of a loaded object.
    pub(super) fn new(ebpf: &Ebpf, options: &UnwindOptions) -> Result<Unwinder, ProbeError> {
        let failed = |error: io::Error| ProbeError::from_io("make room for unwind tables", error);
        let map = |name: &str| -> Result<OwnedFd, ProbeError> {
            let fd = load::map_fd(ebpf, name)?;
            fd.try_clone_to_owned().map_err(failed)
        };
        let fixed = ["SEGMENTS", "PROCESSES", "TABLES", "RULES"];
        let mut fixed_bytes = 0;
        for name in fixed {
            fixed_bytes += memory::locked_bytes(load::map_fd(ebpf, name)?);
        }
        let most = options.memory_bytes.saturating_sub(fixed_bytes) / SEGMENT_BYTES;
        let most = most.min(u64::from(MAX_SEGMENTS)) as usize;
        let segments = Segments::new(map("SEGMENTS")?, most).map_err(failed)?;
        let grace = segments
            .first()
            .and_then(|first| Grace::new(map_io(map("SEGMENTS"))?, first));
        let words = |name: &str, count: usize| {
            Words::map(map(name)?, count).map_err(|error| ProbeError::from_io("map memory", error))
        };
        Ok(Unwinder {
            grace: grace.map_err(failed)?,
            segments,
            tables: words("TABLES", MAX_TABLES as usize * TABLE_WORDS)?,
            rule_words: words("RULES", MAX_RULES as usize * RULE_WORDS)?,
            rules: Rules::new(MAX_RULES),
            processes: map("PROCESSES")?,
            counters: map("UNWIND_COUNTERS")?,
            slots: Vec::new(),
            free_slots: Vec::new(),
            lists: FxHashMap::default(),
            retired: Retired::default(),
            waiting: None,
            waits: 0,
            fixed_bytes,
            generation: 0,
        })
    }

    /// Of these, what is not in maps of the object.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// How many different rules there are.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }
}

impl KernelTables for Unwinder {
    fn reserve(&mut self) -> Option<Slot> {
        let number = match self.free_slots.pop() {
            Some(number) => number,
            None => {
                let number = self.slots.len() as u32;
                if number >= MAX_TABLES {
                    return None;
                }
                self.slots.push(None);
                number
            }
        };
        self.slots[number as usize] = Some(Loaded::default());
        Some(Slot(number))
    }

    fn load(&mut self, slot: Slot, table: &Table) -> Result<(), NoRoom> {
        if self.loaded(slot).is_none() {
            return Ok(());
        }
        let mut loaded = Loaded::default();
        let Some(directory) = self.write_table(table, &mut loaded) else {
            // Nothing refers to it yet, but a rule may be one of a table that is being taken out.
            loaded
                .spans
                .drain(..)
                .for_each(|span| self.segments.give_back(span));
            loaded
                .rules
                .drain(..)
                .for_each(|rule| self.rules.give_back(rule));
            return Err(NoRoom);
        };
        self.replace(slot, directory, table.base, loaded);
        Ok(())
    }

    fn load_none(&mut self, slot: Slot) {
        self.replace(slot, TABLE_NONE, 0, Loaded::default());
    }

    fn evict(&mut self, slot: Slot) {
        self.replace(slot, TABLE_ABSENT, 0, Loaded::default());
    }

    fn release(&mut self, slot: Slot) {
        if self.loaded(slot).is_some() {
            self.evict(slot);
            self.slots[slot.0 as usize] = None;
            self.retired.slots.push(slot.0);
        }
    }

    fn used(&self, slot: Slot) -> Timestamp {
        Timestamp(self.tables.read(slot.0 as usize * TABLE_WORDS + USED))
    }

    fn set_process(&mut self, pid: Pid, mappings: &[MappedCode]) -> Result<(), NoRoom> {
        let is_new = !self.lists.contains_key(&pid);
        if is_new && self.lists.len() >= MAX_PROCESSES as usize {
            return Err(NoRoom);
        }
        let count = mappings.len().min(MAX_MAPPINGS as usize) as u32;
        let span = match count {
            0 => None,
            _ => {
                let words = (count * MAPPING_WORDS).next_multiple_of(LIST_WORDS);
                Some(self.segments.take(words).ok_or(NoRoom)?)
            }
        };
        if let Some(span) = span {
            let words = mappings.iter().flat_map(|mapping| {
                let table = mapping.slot.map_or(MAPPING_JIT, |slot| slot.0.into());
                [mapping.start, mapping.end, mapping.address, table]
            });
            self.segments.write(span, 0, words);
        }
        let value = Process {
            pid: pid.0.into(),
            mappings: span.map_or(0, |span| Span { len: count, ..span }.word()),
        };
        if let Err(error) = bpf::update_map(self.processes.as_fd(), &[pid.0], &[value]) {
            log::debug!("can't list the mappings of process {}: {error}", pid.0);
            self.retired.spans.extend(span);
            return Err(NoRoom);
        }
        let before = self.lists.insert(pid, span).flatten();
        self.retired.spans.extend(before);
        Ok(())
    }

    fn forget_process(&mut self, pid: Pid) {
        let Some(span) = self.lists.remove(&pid) else {
            return;
        };
        if let Err(error) = bpf::remove_from_map(self.processes.as_fd(), &[pid.0]) {
            // Its list stays referred to, and so must stay what it is.
            log::debug!("can't forget the mappings of process {}: {error}", pid.0);
            return;
        }
        self.retired.spans.extend(span);
    }

    fn collect(&mut self) {
        if let Some((wait, retired)) = self.waiting.take() {
            if self.grace.over() < wait {
                self.waiting = Some((wait, retired));
                return;
            }
            for span in retired.spans {
                self.segments.give_back(span);
            }
            for rule in retired.rules {
                self.rules.give_back(rule);
            }
            self.free_slots.extend(retired.slots);
        }
        if !self.retired.is_empty() {
            self.waits += 1;
            self.grace.begin(self.waits);
            self.waiting = Some((self.waits, std::mem::take(&mut self.retired)));
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.fixed_bytes + self.segments.bytes()
    }

    fn counters(&self) -> UnwindCounters {
        let values: Vec<UnwindCounters> =
            hotplug::values(self.counters.as_fd()).unwrap_or_else(|error| {
                log::debug!("failed to read the counters of walks: {error}");
                Vec::new()
            });
        let mut sum = UnwindCounters::default();
        for cpu in values {
            sum.walks += cpu.walks;
            sum.frames += cpu.frames;
            sum.copies += cpu.copies;
            sum.copies_refused += cpu.copies_refused;
            sum.changed += cpu.changed;
            sum.unreadable += cpu.unreadable;
            sum.refused += cpu.refused;
        }
        sum
    }

    fn now(&self) -> Timestamp {
        super::now()
    }
}

impl Unwinder {
    fn loaded(&self, slot: Slot) -> Option<&Loaded> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// Writes all of a table but what refers to it; returns the directory's word.
    fn write_table(&mut self, table: &Table, loaded: &mut Loaded) -> Option<u64> {
        if table.pages.is_empty() {
            return Some(TABLE_NONE);
        }
        if table.pages.len() > SEGMENT_WORDS {
            return None;
        }
        for rule in &table.rules {
            let (number, is_new) = self.rules.take(*rule)?;
            loaded.rules.push(number);
            if is_new {
                let first = number as usize * RULE_WORDS;
                let words: [u64; RULE_WORDS] = zerocopy::transmute!(*rule);
                self.rule_words.write(first, words);
            }
        }
        let directory = self.segments.take(table.pages.len() as u32)?;
        loaded.spans.push(directory);
        let mut words = Vec::with_capacity(table.pages.len());
        let mut pages = table.pages.as_slice();
        while !pages.is_empty() {
            let mut room = 0;
            let fits = pages.iter().take_while(|page| {
                room += page.len.div_ceil(2);
                room <= PIECE_WORDS
            });
            let (piece, rest) = pages.split_at(fits.count().max(1));
            pages = rest;
            let len: u32 = piece.iter().map(|page| page.len.div_ceil(2)).sum();
            if len == 0 {
                words.resize(words.len() + piece.len(), 0);
                continue;
            }
            let span = self.segments.take(len)?;
            loaded.spans.push(span);
            let mut offset = 0;
            for page in piece {
                if page.len == 0 {
                    words.push(0);
                    continue;
                }
                let first = page.first as usize;
                let rows = table.rows.get(first..first + page.len as usize)?;
                let renumbered = |row: u32| renumber(row, &loaded.rules);
                let pairs = rows.chunks(2).map(|pair| {
                    let low = u64::from(renumbered(pair[0]));
                    low | pair.get(1).map_or(0, |row| u64::from(renumbered(*row))) << 32
                });
                self.segments.write(span, offset, pairs);
                let span = Span {
                    first: span.first + offset,
                    len: page.len,
                    ..span
                };
                words.push(span.word());
                offset += page.len.div_ceil(2);
            }
        }
        self.segments.write(directory, 0, words);
        Some(directory.word())
    }

    /// Has a slot refer to something else.
    fn replace(&mut self, slot: Slot, directory: u64, base: u64, loaded: Loaded) {
        let Some(Some(held)) = self.slots.get_mut(slot.0 as usize) else {
            return;
        };
        let before = std::mem::replace(held, loaded);
        self.generation += 1;
        let first = slot.0 as usize * TABLE_WORDS;
        // Programs that read in between see no table, or another generation when they look again.
        self.tables.publish(first + DIRECTORY, TABLE_ABSENT);
        self.tables.publish(first + GENERATION, self.generation);
        self.tables.publish(first + BASE, base);
        self.tables.publish(first + DIRECTORY, directory);
        self.retired.spans.extend(before.spans);
        self.retired.rules.extend(before.rules);
    }
}

/// A row of a table with the rule's number that all tables share.
fn renumber(of: u32, numbers: &[u32]) -> u32 {
    let rule = row_rule(of);
    let index = rule.checked_sub(FIRST_RULE);
    let number = index.map_or(rule, |index| {
        numbers.get(index as usize).copied().unwrap_or_default()
    });
    row(row_place(of), number)
}

fn map_io(fd: Result<OwnedFd, ProbeError>) -> io::Result<OwnedFd> {
    fd.map_err(|error| io::Error::other(error.to_string()))
}
