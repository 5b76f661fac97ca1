//! Unwind tables and lists of mappings, brought into the kernel as processes and samples need them.
//!
//! What the resolver knows of processes and files -> the maps of [`Unwinder`]: each process's
//! mappings as soon as they change; a file's table when a sample has met the file, or ahead of that for
//! processes that were named. Where there is no room, tables that were used least recently make some;
//! what was used in the last seconds does not, and what was evicted is not loaded again at once, so
//! that tables are not exchanged all the time. Times are of CLOCK_MONOTONIC.
//!
//! What does not belong here: which file a mapping is of and building tables (`resolve`), how they lie
//! in the kernel (`probe`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use profiler_model::Pid;
use profiler_probe::{MappedCode, NoRoom, Slot, UnwindOptions, Unwinder, now};
use profiler_resolve::{Code, CodeFile, Resolver, TableCounters, TableState};
use profiler_unwind::Table;

/// Tables that were used, or loaded, within this time stay.
const RECENT: Duration = Duration::from_secs(5);
/// What was evicted, or found no room, is not loaded again within this time.
const PAUSE: Duration = Duration::from_secs(10);
/// Of a session of the whole machine, so many of the files that most processes map have their tables
/// built before a sample meets them.
const COMMON_FILES: usize = 32;
/// With so many files, those that nobody has mapped any more are forgotten.
const MAX_FILES: usize = profiler_common::unwind::MAX_TABLES as usize / 4 * 3;
/// Of what tables may take together, the share of user space: a quarter.
const USER_SHARE: u64 = 4;

/// Most stacks that are copied for user space in a second, on each processor.
pub const COPIES_PER_SECOND: u32 = 1024;

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
    /// Stacks copied for user space, and those that were not because of the limit per second.
    pub copies: u64,
    /// Stacks that were not copied because of that limit.
    pub copies_refused: u64,
    /// Tables that were replaced while a walk read them.
    pub changed: u64,
    /// Words of stacks that could not be read.
    pub unreadable: u64,
}

/// How the memory that all tables may take is shared out: to the kernel, and to user space.
pub(super) fn shares(memory_bytes: u64) -> (UnwindOptions, u64) {
    let user = memory_bytes / USER_SHARE;
    let kernel = UnwindOptions {
        memory_bytes: memory_bytes - user,
        copies_per_second: COPIES_PER_SECOND,
    };
    (kernel, user)
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
    /// Its table is not in the kernel, and is not to be before this time.
    Absent(Option<Instant>),
    /// It is since then.
    Loaded(Instant),
    /// It has none.
    Without,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unwinding {
    files: FxHashMap<u64, File>,
    /// Files that samples have met, whose tables are not in the kernel yet.
    wanted: FxHashMap<u64, Arc<CodeFile>>,
    /// Processes whose lists found no room.
    unlisted: FxHashSet<Pid>,
    /// Room was made, and is there in a moment.
    making_room: bool,
    full_said: bool,
    summary: UnwindSummary,
}

impl Unwinding {
    /// Lists the processes that a resolver knows. The tables of what processes `named` have mapped are
    /// built ahead of the first sample; without any, those that most processes share.
    pub(super) fn begin(
        &mut self,
        named: Option<&[Pid]>,
        resolver: &mut Resolver,
        unwinder: &mut Unwinder,
    ) {
        match named {
            Some(pids) => pids.iter().for_each(|pid| resolver.build_tables_of(*pid)),
            None => resolver.build_common_tables(COMMON_FILES),
        }
        self.step(resolver, unwinder);
    }

    /// Follows what the resolver has seen since the last call. Never waits.
    pub(super) fn step(&mut self, resolver: &mut Resolver, unwinder: &mut Unwinder) {
        self.follow(resolver, unwinder);
        resolver.poll_tables();
        for code in resolver.take_wanted_tables() {
            self.wanted.insert(code.id(), code);
        }
        self.load_wanted(resolver, unwinder);
    }

    /// What is done now and then: room that was given back becomes free.
    pub(super) fn tick(&mut self, resolver: &mut Resolver, unwinder: &mut Unwinder) {
        unwinder.collect();
        self.making_room = false;
        if self.files.len() >= MAX_FILES {
            self.forget_unused(resolver, unwinder);
        }
        let unlisted = std::mem::take(&mut self.unlisted);
        for pid in unlisted {
            self.list(pid, resolver.code_of(pid), resolver, unwinder);
        }
        resolver.forget_told_code();
        self.step(resolver, unwinder);
    }

    /// What has come of it so far.
    pub(super) fn summary(&self, resolver: &Resolver, unwinder: &Unwinder) -> UnwindSummary {
        let counters = unwinder.counters();
        UnwindSummary {
            kernel_bytes: unwinder.memory_bytes(),
            tables: resolver.table_counters(),
            walks: counters.walks,
            frames: counters.frames,
            copies: counters.copies,
            copies_refused: counters.copies_refused,
            changed: counters.changed,
            unreadable: counters.unreadable,
            ..self.summary
        }
    }

    fn follow(&mut self, resolver: &mut Resolver, unwinder: &mut Unwinder) {
        for (pid, code) in resolver.take_changed_code() {
            self.list(pid, code, resolver, unwinder);
        }
    }

    /// Says in the kernel what a process has mapped, and the resolver when.
    fn list(
        &mut self,
        pid: Pid,
        code: Option<Vec<Code>>,
        resolver: &mut Resolver,
        unwinder: &mut Unwinder,
    ) {
        let since = now();
        let Some(mut code) = code else {
            unwinder.forget_process(pid);
            resolver.code_was_told(pid, &[], since, now());
            self.unlisted.remove(&pid);
            return;
        };
        let mut mapped = Vec::with_capacity(code.len());
        code.retain(|code| {
            let slot = match &code.file {
                None => None,
                Some(file) => match self.slot(file, unwinder) {
                    Some(slot) => Some(slot),
                    // Its frames are in no mapping then, and the rest is copied.
                    None => return false,
                },
            };
            mapped.push(MappedCode {
                start: code.start,
                end: code.end,
                address: code.address,
                slot,
            });
            true
        });
        if unwinder.set_process(pid, &mapped) == Err(NoRoom) {
            self.summary.refused += 1;
            // What was there is of the past.
            unwinder.forget_process(pid);
            code.clear();
            self.unlisted.insert(pid);
            self.make_room(unwinder);
        }
        resolver.code_was_told(pid, &code, since, now());
    }

    /// The slot of a file.
    fn slot(&mut self, code: &Arc<CodeFile>, unwinder: &mut Unwinder) -> Option<Slot> {
        if let Some(file) = self.files.get(&code.id()) {
            return Some(file.slot);
        }
        let slot = unwinder.reserve()?;
        let file = File {
            code: code.clone(),
            slot,
            state: State::Absent(None),
        };
        self.files.insert(code.id(), file);
        Some(slot)
    }

    /// Gives back the slots of files that no process has mapped.
    fn forget_unused(&mut self, resolver: &Resolver, unwinder: &mut Unwinder) {
        let pids = resolver.processes_with_code().into_iter();
        let code = pids.filter_map(|pid| resolver.code_of(pid)).flatten();
        let mapped = code.filter_map(|code| Some(code.file?.id()));
        let mapped: FxHashSet<u64> = mapped.collect();
        self.files.retain(|id, file| {
            let keep = mapped.contains(id);
            if !keep {
                unwinder.release(file.slot);
            }
            keep
        });
    }

    fn load_wanted(&mut self, resolver: &mut Resolver, unwinder: &mut Unwinder) {
        let wanted = std::mem::take(&mut self.wanted);
        for (id, code) in wanted {
            let Some(file) = self.files.get_mut(&id) else {
                continue;
            };
            let State::Absent(until) = file.state else {
                continue;
            };
            match resolver.table(&code) {
                TableState::Ready(_) if until.is_some_and(|until| until > Instant::now()) => {}
                TableState::Ready(table) => {
                    if !self.load(id, &table, unwinder) {
                        self.wanted.insert(id, code);
                    }
                }
                TableState::Without => {
                    file.state = State::Without;
                    unwinder.load_none(file.slot);
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
    fn load(&mut self, id: u64, table: &Table, unwinder: &mut Unwinder) -> bool {
        let Some(file) = self.files.get_mut(&id) else {
            return true;
        };
        match unwinder.load(file.slot, table) {
            Ok(()) => {
                file.state = State::Loaded(Instant::now());
                self.summary.loaded += 1;
                log::debug!("{}: its table is in the kernel", file.code.path());
                true
            }
            Err(NoRoom) => {
                if self.make_room(unwinder) {
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
    fn make_room(&mut self, unwinder: &mut Unwinder) -> bool {
        if self.making_room {
            return true;
        }
        let recent = now().0.saturating_sub(RECENT.as_nanos() as u64);
        let mut old: Vec<(u64, u64)> = Vec::new();
        for (id, file) in &self.files {
            let used = unwinder.used(file.slot).0;
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
                unwinder.evict(file.slot);
                file.state = State::Absent(Some(Instant::now() + PAUSE));
                self.summary.evicted += 1;
                self.making_room = true;
            }
        }
        if self.making_room {
            unwinder.collect();
        } else if !std::mem::replace(&mut self.full_said, true) {
            log::warn!(
                "the memory for unwind tables is used up by what runs now: some stacks will be \
                 incomplete; allow more with --unwind-memory"
            );
        }
        self.making_room
    }
}
