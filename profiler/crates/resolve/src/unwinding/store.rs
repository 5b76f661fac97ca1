//! The unwind tables of files, in user space: asked for, built, kept within a limit of memory.
//!
//! [`CodeFile`]s -> [`Table`]s, some time later. How long somebody waits for one is bounded: behind
//! that a file counts as one whose table comes too late, until it comes. Times are of this machine's
//! clock, not of events.
//!
//! What does not belong here: building (`builder`), and tables in the kernel (`pipeline`).

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use profiler_common::unwind::Rule;
use rustc_hash::FxHashMap;

use super::super::files::TargetFile;
use super::builder::{Builder, Built, Job};
use super::code::CodeFile;
use profiler_unwind::Table;

/// How long samples wait for a file's table, counted from when the first one needed it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Most files of which something is known.
const MAX_KNOWN: usize = 1 << 16;

/// What is known of a file's table.
#[derive(Clone, Debug)]
pub(super) enum TableState {
    /// It is here.
    Ready(Arc<Table>),
    /// The file says nothing about its frames.
    Without,
    /// It is being built.
    Building,
    /// Nobody has asked for it, or it was dropped to make room.
    Unknown,
}

#[derive(Debug)]
enum Entry {
    Building { since: Option<Instant> },
    Ready { table: Arc<Table>, used: Cell<u64> },
    Without,
}

/// What tables of user space have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounters {
    /// Tables built, or read from where earlier ones were kept.
    pub built: u64,
    /// Files that say nothing about their frames, or can't be read.
    pub without: u64,
    /// Of these: files of which reading took too long, too much memory, or was the end of who read them.
    pub given_up: u64,
    /// Tables dropped to make room.
    pub dropped: u64,
    /// Memory of tables in user space, in bytes.
    pub bytes: u64,
    /// Time that builders worked, in nanoseconds.
    pub building_ns: u64,
}

/// Unwind tables in user space, within a limit of memory.
#[derive(Debug)]
pub(super) struct Store {
    builder: Builder,
    entries: FxHashMap<u64, Entry>,
    limit_bytes: u64,
    clock: Cell<u64>,
    building: usize,
    counters: TableCounters,
}

impl Store {
    /// Keeps tables of so many bytes; the one that was used last may exceed it.
    pub(super) fn start(limit_bytes: u64) -> io::Result<Store> {
        Ok(Store {
            builder: Builder::start()?,
            entries: FxHashMap::default(),
            limit_bytes,
            clock: Cell::new(0),
            building: 0,
            counters: TableCounters::default(),
        })
    }

    /// Asks for a file's table, unless it is known; `urgent`: somebody waits for it.
    pub(super) fn want(
        &mut self,
        code: &CodeFile,
        urgent: bool,
        open: impl FnOnce() -> Option<Arc<TargetFile>>,
    ) {
        match self.entries.get_mut(&code.id()) {
            Some(Entry::Building { since }) => {
                if urgent && since.is_none() {
                    *since = Some(Instant::now());
                    self.builder.hurry(code.id());
                }
            }
            Some(Entry::Ready { .. } | Entry::Without) => {}
            None => {
                if self.entries.len() >= MAX_KNOWN {
                    self.forget();
                }
                let id = code.id();
                let asked = match open() {
                    Some(file) => self.builder.ask(Job { id, file }, urgent),
                    None => {
                        self.counters.without += 1;
                        self.entries.insert(id, Entry::Without);
                        return;
                    }
                };
                if asked {
                    self.building += 1;
                    let since = urgent.then(Instant::now);
                    self.entries.insert(id, Entry::Building { since });
                }
            }
        }
    }

    /// What is known of a file's table.
    pub(super) fn state(&self, id: u64) -> TableState {
        match self.entries.get(&id) {
            Some(Entry::Ready { table, .. }) => TableState::Ready(table.clone()),
            Some(Entry::Without) => TableState::Without,
            Some(Entry::Building { .. }) => TableState::Building,
            None => TableState::Unknown,
        }
    }

    /// The table of a file, if it is here, for a walk; else whether there will never be one.
    pub(super) fn get(&self, id: u64) -> Result<&Table, bool> {
        match self.entries.get(&id) {
            Some(Entry::Ready { table, used }) => {
                used.set(self.tick());
                Ok(table)
            }
            Some(Entry::Without) => Err(true),
            _ => Err(false),
        }
    }

    /// Whether a table comes, and soon enough to be waited for.
    pub(super) fn is_worth_waiting(&self, id: u64) -> bool {
        match self.entries.get(&id) {
            Some(Entry::Building { since }) => since.is_none_or(|since| since.elapsed() < PATIENCE),
            _ => false,
        }
    }

    /// Whether anything is being built.
    pub(super) fn is_building(&self) -> bool {
        self.building > 0
    }

    /// Takes what has been built; whether there was anything.
    pub(super) fn poll(&mut self) -> bool {
        let built: Vec<Built> = self.builder.built().collect();
        let any = !built.is_empty();
        built.into_iter().for_each(|built| self.take(built));
        any
    }

    /// The same, waiting until some time if there is nothing yet.
    pub(super) fn wait(&mut self, until: Instant) -> bool {
        let built = self.builder.wait(until);
        let any = built.is_some();
        built.into_iter().for_each(|built| self.take(built));
        any | self.poll()
    }

    /// What has happened.
    pub(super) fn counters(&self) -> TableCounters {
        self.counters
    }

    fn take(&mut self, built: Built) {
        self.building = self.building.saturating_sub(1);
        self.counters.building_ns += u64::try_from(built.took.as_nanos()).unwrap_or(u64::MAX);
        let Some(table) = built.table else {
            self.counters.without += 1;
            self.counters.given_up += u64::from(built.given_up);
            self.entries.insert(built.id, Entry::Without);
            return;
        };
        self.counters.built += 1;
        self.counters.bytes += bytes_of(&table);
        let ready = Entry::Ready {
            table: Arc::new(table),
            used: Cell::new(self.tick()),
        };
        self.entries.insert(built.id, ready);
        while self.counters.bytes > self.limit_bytes && self.drop_oldest() {}
    }

    /// Drops the table that was not used for longest, unless it is the only one.
    fn drop_oldest(&mut self) -> bool {
        let tables = self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Ready { used, .. } => Some((used.get(), *id)),
            _ => None,
        });
        let oldest = tables.min().filter(|(used, _)| *used < self.clock.get());
        let Some((_, id)) = oldest else { return false };
        if let Some(Entry::Ready { table, .. }) = self.entries.remove(&id) {
            self.counters.bytes -= bytes_of(&table);
            self.counters.dropped += 1;
        }
        true
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Forgets which files say nothing.
    fn forget(&mut self) {
        self.entries
            .retain(|_, entry| !matches!(entry, Entry::Without));
    }
}

/// Memory of a table in user space.
fn bytes_of(table: &Table) -> u64 {
    let bytes = size_of_val(&*table.pages) + size_of_val(&*table.rows) + size_of::<Table>();
    (bytes + table.rules.len() * size_of::<Rule>()) as u64
}
