//! Unwind tables and lists of mappings, brought into the kernel as processes and samples need them.
//!
//! What is known of processes and files -> [`KernelTables`]. The list of a process's mappings is loaded as
//! soon as it changes. The table of a file is loaded when a sample has met the file; for processes that were
//! named, before that. If there is no room, the tables that were used least recently are evicted. Tables
//! used within [`RECENT`] stay, and evicted ones are not loaded again within [`PAUSE`], so that tables don't
//! displace each other all the time. Times are of CLOCK_MONOTONIC.
//!
//! What does not belong here: which file a mapping is of (`modules`), building tables (`store`), how they
//! lie in the kernel (`probe`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::announced_code::AnnouncedCode;
use super::code::{Code, CodeFile};
use super::store::{Store, TableCounters, TableState};
use super::{Opener, Unwinding};
use profiler_model::raw::RawEvent;
use profiler_model::{Pid, Timestamp};
use profiler_unwind::Table;
use profiler_unwind::kernel::{KernelTables, MappedCode, NoRoom, Slot};

/// Tables that were used or loaded within this time are not evicted.
const RECENT: Duration = Duration::from_secs(5);
/// A table that was evicted, or found no room, is not loaded again within this time.
const PAUSE: Duration = Duration::from_secs(10);
/// In a session of the whole machine, the tables of this many files (those that most processes map) are
/// built before a sample meets them.
const COMMON_FILES: usize = 32;
/// At this number of files, those that no process maps any more are forgotten.
const MAX_FILES: usize = profiler_common::unwind::MAX_TABLES as usize / 4 * 3;

/// Where files take each other's place this often, the kernel side is told of none: what its list says there is
/// outdated too often.
const MANY_CHANGES: u32 = 3;
/// Without a change there for so long it is told again.
const STEADY: Duration = Duration::from_secs(10);
/// Most such places of a process.
const MAX_PLACES: usize = 64;

/// What unwinding with tables has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnwindSummary {
    /// Tables loaded into the kernel.
    pub loaded: u64,
    /// Tables evicted to make room for others.
    pub evicted: u64,
    /// Times that there was no room for a table or a list.
    pub refused: u64,
    /// Memory of tables and lists in the kernel, in bytes.
    pub kernel_bytes: u64,
    /// Tables in user space.
    pub tables: TableCounters,
    /// Stacks walked in the kernel, and the frames found.
    pub walks: u64,
    /// Frames found in the kernel.
    pub frames: u64,
    /// Stacks copied for user space.
    pub copies: u64,
    /// Stacks that were not copied because of that limit.
    pub copies_refused: u64,
    /// Tables that were replaced while a walk read them.
    pub changed: u64,
    /// Words of stacks that could not be read.
    pub unreadable: u64,
    /// Stacks that were cut because the limit on frames a second was reached.
    pub deep_refused: u64,
}

/// A file that processes have mapped.
#[derive(Debug)]
struct File {
    code: Arc<CodeFile>,
    slot: Slot,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Its table is not in the kernel, and must not be loaded before this time.
    Absent(Option<Instant>),
    /// Its table is in the kernel since then.
    Loaded(Instant),
    /// The file has no table.
    Without,
}

/// Where files have taken each other's place in a process.
#[derive(Debug)]
struct Changing {
    start: u64,
    end: u64,
    /// The file that was there last.
    file: Option<u64>,
    times: u32,
    last: Instant,
}

impl Changing {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        start < self.end && self.start < end
    }

    /// Whether the kernel side is not to be told what is there.
    fn is_withheld(&self) -> bool {
        self.times >= MANY_CHANGES && self.last.elapsed() < STEADY
    }
}

/// Which tables and lists of mappings are in the kernel, and which are to be loaded next.
#[derive(Debug, Default)]
pub(crate) struct Dialogue {
    files: FxHashMap<u64, File>,
    /// Files that samples have met, whose tables are not in the kernel yet.
    wanted: FxHashMap<u64, Arc<CodeFile>>,
    /// Processes whose lists found no room.
    unlisted: FxHashSet<Pid>,
    /// A slot that never has a table: see [`Dialogue::note_changes`].
    tableless: Option<Slot>,
    /// Places of processes where what is mapped changes.
    changing: FxHashMap<Pid, Vec<Changing>>,
    /// Tables were evicted; their room is free after the next [`Dialogue::tick`].
    making_room: bool,
    full_said: bool,
    summary: UnwindSummary,
}

impl Dialogue {
    /// Loads the lists of all known processes. Before the first sample, it has the tables of all files
    /// built that the processes `named` map; if none is named, of the files that most processes map.
    pub(crate) fn begin(
        &mut self,
        named: Option<&[Pid]>,
        of: &mut Unwinding,
        opener: &mut Opener<'_>,
        kernel: &mut dyn KernelTables,
    ) {
        match named {
            Some(pids) => pids.iter().for_each(|pid| of.want_tables_of(*pid, opener)),
            None => of.want_common_tables(COMMON_FILES, opener),
        }
        self.step(of, opener, kernel);
    }

    /// Called after each drain: asks for the tables that these events need, and loads lists and tables that
    /// have changed since the last call. Never waits.
    pub(crate) fn drained(
        &mut self,
        events: &[RawEvent],
        of: &mut Unwinding,
        opener: &mut Opener<'_>,
        kernel: &mut dyn KernelTables,
    ) {
        events.iter().for_each(|event| of.foresee(event, opener));
        self.step(of, opener, kernel);
    }

    /// Called at each tick: frees the room of evicted tables, and forgets the lists that were in force only
    /// before `resolved`, the time up to which all events were resolved.
    pub(crate) fn tick(
        &mut self,
        resolved: Timestamp,
        of: &mut Unwinding,
        opener: &mut Opener<'_>,
        kernel: &mut dyn KernelTables,
    ) {
        kernel.collect();
        self.making_room = false;
        if self.files.len() >= MAX_FILES {
            self.forget_unused(of, kernel);
        }
        let unlisted = std::mem::take(&mut self.unlisted);
        for pid in unlisted {
            self.list(pid, of.early.code(pid), of, kernel);
        }
        for pid in self.steady_again() {
            self.list(pid, of.early.code(pid), of, kernel);
        }
        of.announced.forget(of.held.first().unwrap_or(resolved));
        self.step(of, opener, kernel);
    }

    /// Counts so far.
    pub(crate) fn summary(&self, of: &Unwinding, kernel: &dyn KernelTables) -> UnwindSummary {
        let counters = kernel.counters();
        UnwindSummary {
            kernel_bytes: kernel.memory_bytes(),
            tables: of.store.as_ref().map(Store::counters).unwrap_or_default(),
            walks: counters.walks,
            frames: counters.frames,
            copies: counters.copies,
            copies_refused: counters.copies_refused,
            changed: counters.changed,
            unreadable: counters.unreadable,
            deep_refused: counters.refused,
            ..self.summary
        }
    }

    fn step(&mut self, of: &mut Unwinding, opener: &mut Opener<'_>, kernel: &mut dyn KernelTables) {
        for (pid, code) in of.early.take_changed() {
            self.list(pid, code, of, kernel);
        }
        of.poll(opener);
        self.wanted.extend(of.wanted.drain());
        self.load_wanted(of, kernel);
    }

    /// Loads the list of a process's mappings (`None`: removes it), and notes when that happened.
    fn list(
        &mut self,
        pid: Pid,
        code: Option<Vec<Code>>,
        of: &mut Unwinding,
        kernel: &mut dyn KernelTables,
    ) {
        let since = kernel.now();
        let Some(mut code) = code else {
            kernel.forget_process(pid);
            of.announced.note(pid, &[], since, kernel.now());
            self.unlisted.remove(&pid);
            self.changing.remove(&pid);
            return;
        };
        self.note_changes(pid, &code, &of.announced);
        let mut mapped = Vec::with_capacity(code.len());
        code.retain(|code| {
            let is_changing = self.is_changing(pid, code);
            let slot = match &code.file {
                _ if is_changing => self.tableless(kernel).map(Some),
                None => Some(None),
                Some(file) => self.slot(file, kernel).map(Some),
            };
            // The kernel then finds its frames in no mapping, and copies the rest of the stack.
            let Some(slot) = slot else {
                return false;
            };
            mapped.push(MappedCode {
                start: code.start,
                end: code.end,
                address: code.address,
                slot,
            });
            !is_changing
        });
        // It searches them by their differences, so that the one page of the kernel's is the first.
        mapped.sort_by_key(|mapping| mapping.start.cast_signed());
        if kernel.set_process(pid, &mapped) == Err(NoRoom) {
            self.summary.refused += 1;
            // The list that is still there is outdated.
            kernel.forget_process(pid);
            code.clear();
            self.unlisted.insert(pid);
            self.make_room(kernel);
        }
        of.announced.note(pid, &code, since, kernel.now());
    }

    /// Notes where files have taken each other's place. Walks by a list that is outdated go wrong there. So if that
    /// happens often, the kernel side finds no table there, and copies the rest of the stack, which is walked here by
    /// what was mapped at that time.
    fn note_changes(&mut self, pid: Pid, code: &[Code], announced: &AnnouncedCode) {
        let replaced = announced.replaced(pid, code);
        if replaced.is_empty() && !self.changing.contains_key(&pid) {
            return;
        }
        let places = self.changing.entry(pid).or_default();
        let now = Instant::now();
        for code in code.iter() {
            let file = code.file.as_ref().map(|file| file.id());
            for place in places.iter_mut() {
                if place.overlaps(code.start, code.end) && place.file != file {
                    (place.file, place.last) = (file, now);
                }
            }
        }
        for (start, end, file) in replaced {
            match places.iter_mut().find(|place| place.overlaps(start, end)) {
                Some(place) => {
                    (place.start, place.end) = (place.start.min(start), place.end.max(end));
                    (place.file, place.last) = (file, now);
                    place.times += 1;
                }
                None => {
                    if places.len() >= MAX_PLACES {
                        places.remove(0);
                    }
                    places.push(Changing {
                        start,
                        end,
                        file,
                        times: 1,
                        last: now,
                    });
                }
            }
        }
    }

    /// Whether the kernel side is not to have the table of what is there.
    fn is_changing(&self, pid: Pid, code: &Code) -> bool {
        let places = self.changing.get(&pid);
        places.is_some_and(|places| {
            let mut withheld = places.iter().filter(|place| place.is_withheld());
            withheld.any(|place| place.overlaps(code.start, code.end))
        })
    }

    fn tableless(&mut self, kernel: &mut dyn KernelTables) -> Option<Slot> {
        self.tableless = self.tableless.or_else(|| kernel.reserve());
        self.tableless
    }

    /// Processes with places where nothing has changed for long: they are told of again.
    fn steady_again(&mut self) -> Vec<Pid> {
        let mut steady = Vec::new();
        self.changing.retain(|pid, places| {
            let before = places.len();
            places.retain(|place| place.last.elapsed() < STEADY);
            if places.len() < before {
                steady.push(*pid);
            }
            !places.is_empty()
        });
        steady
    }

    /// The slot of a file.
    fn slot(&mut self, code: &Arc<CodeFile>, kernel: &mut dyn KernelTables) -> Option<Slot> {
        if let Some(file) = self.files.get(&code.id()) {
            return Some(file.slot);
        }
        let slot = kernel.reserve()?;
        let file = File {
            code: code.clone(),
            slot,
            state: State::Absent(None),
        };
        self.files.insert(code.id(), file);
        Some(slot)
    }

    /// Gives back the slots of files that no process has mapped.
    fn forget_unused(&mut self, of: &Unwinding, kernel: &mut dyn KernelTables) {
        let code = of.early.pids().filter_map(|pid| of.early.code(pid));
        let code = code.flatten();
        let mapped = code.filter_map(|code| Some(code.file?.id()));
        let mapped: FxHashSet<u64> = mapped.collect();
        self.files.retain(|id, file| {
            let keep = mapped.contains(id);
            if !keep {
                kernel.release(file.slot);
            }
            keep
        });
    }

    fn load_wanted(&mut self, of: &mut Unwinding, kernel: &mut dyn KernelTables) {
        let wanted = std::mem::take(&mut self.wanted);
        for (id, code) in wanted {
            let Some(file) = self.files.get_mut(&id) else {
                continue;
            };
            let State::Absent(until) = file.state else {
                continue;
            };
            let state = of.store.as_ref().map(|store| store.state(id));
            match state.unwrap_or(TableState::Unknown) {
                TableState::Ready(_) if until.is_some_and(|until| until > Instant::now()) => {}
                TableState::Ready(table) => {
                    if !self.load(id, &table, kernel) {
                        self.wanted.insert(id, code);
                    }
                }
                TableState::Without => {
                    file.state = State::Without;
                    kernel.load_none(file.slot);
                }
                TableState::Building => {
                    self.wanted.insert(id, code);
                }
                // The next sample that meets it asks again.
                TableState::Unknown => {}
            }
        }
    }

    /// Loads a table; false: when there is room, in a moment.
    fn load(&mut self, id: u64, table: &Table, kernel: &mut dyn KernelTables) -> bool {
        let Some(file) = self.files.get_mut(&id) else {
            return true;
        };
        match kernel.load(file.slot, table) {
            Ok(()) => {
                file.state = State::Loaded(Instant::now());
                self.summary.loaded += 1;
                log::debug!("{}: its table is in the kernel", file.code.path());
                true
            }
            Err(NoRoom) => {
                if self.make_room(kernel) {
                    return false;
                }
                self.summary.refused += 1;
                if let Some(file) = self.files.get_mut(&id) {
                    file.state = State::Absent(Some(Instant::now() + PAUSE));
                }
                true
            }
        }
    }

    /// Evicts the table that was used least recently, and what else was used as long ago; whether there
    /// was any, or room is being made already.
    fn make_room(&mut self, kernel: &mut dyn KernelTables) -> bool {
        if self.making_room {
            return true;
        }
        let recent = kernel.now().0.saturating_sub(RECENT.as_nanos() as u64);
        let mut old: Vec<(u64, u64)> = Vec::new();
        for (id, file) in &self.files {
            let used = kernel.used(file.slot).0;
            if let State::Loaded(since) = file.state
                && since.elapsed() > RECENT
                && used < recent
            {
                old.push((used, *id));
            }
        }
        old.sort_unstable();
        // An eighth at once: what is evicted is free only some time later.
        let count = old.len().div_ceil(8);
        for (_, id) in old.into_iter().take(count) {
            if let Some(file) = self.files.get_mut(&id) {
                kernel.evict(file.slot);
                file.state = State::Absent(Some(Instant::now() + PAUSE));
                self.summary.evicted += 1;
                self.making_room = true;
            }
        }
        if self.making_room {
            kernel.collect();
        } else if !std::mem::replace(&mut self.full_said, true) {
            log::warn!(
                "the memory for unwind tables is used up by what runs now: some stacks will be \
                 incomplete; allow more with --unwind-memory"
            );
        }
        self.making_room
    }
}
