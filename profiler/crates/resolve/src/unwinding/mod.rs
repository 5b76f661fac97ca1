//! Whole user stacks: which files' tables are needed, and what the kernel side could not walk.
//!
//! Events as they are drained -> what processes have mapped (`code`) and tables of files (`store`), which
//! the [`Dialogue`] takes into the kernel. A sample whose walk ended where a table was missing carries a
//! copy of its stack: the walk goes on there, by the mappings of the sample's time, and both parts become
//! one stack. While a table that it needs is built, such a sample and all events behind it wait; how long
//! and how many is bounded, and waits in vain are counted. Stacks that were walked by an outdated list of
//! mappings are cut.
//!
//! What does not belong here: tables in the kernel (`probe`), what tables are made of and the walk
//! itself (`unwind`).

mod announced_code;
mod apart;
mod builder;
mod code;
mod dialogue;
mod held_events;
mod starting;
mod store;
#[cfg(test)]
mod tests;
mod user_stack;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::announced_code::AnnouncedCode;
use self::code::EarlyCode;
use self::held_events::{HeldEvents, copy_of};
use self::starting::Starting;
use self::store::Store;
use self::user_stack::walk_on;
use super::files::TargetFile;
use super::mapping::{CodeRange, Mappings};
use super::modules::Modules;
use super::options::ResolveError;
use super::processes::Processes;
use super::stacks::looked_up;
use profiler_model::raw::{RawBody, RawCopy, RawEvent};
use profiler_model::{Pid, StackEnd, Timestamp};

pub(super) use self::code::{CodeFile, CodeFiles};
pub(super) use self::dialogue::Dialogue;
pub use self::dialogue::UnwindSummary;
pub(super) use self::store::PATIENCE;
pub use self::store::TableCounters;

/// Most copied stacks that are kept until the table is there that they need next.
const MAX_SEEKERS: usize = 256;
/// A copied stack needs one table after another: at most so many are asked for.
const MAX_LOOKS: u32 = 16;

/// A copied stack whose walk ended where a table was missing.
#[derive(Debug)]
struct Seeker {
    pid: Pid,
    copy: Box<RawCopy>,
    looks: u32,
}

/// What a resolver knows of unwinding: code of processes, tables of files, samples that wait.
#[derive(Debug, Default)]
pub(super) struct Unwinding {
    /// None: there are no tables, stacks are walked by frame pointers.
    store: Option<Store>,
    early: EarlyCode,
    announced: AnnouncedCode,
    starting: Starting,
    /// Files that the kernel side should have the tables of.
    wanted: FxHashMap<u64, Arc<CodeFile>>,
    seekers: Vec<Seeker>,
    pub(super) held: HeldEvents,
    /// User stacks that user space walked on from a copy.
    pub(super) continued: u64,
    /// Of these, those that are cut: a table was not there in time, or the copy was too short.
    pub(super) without_table: u64,
    /// Of these, those that were longer than the copy.
    pub(super) copied_short: u64,
    /// User stacks that were cut because the kernel side walked them by an outdated list of mappings.
    pub(super) outdated: u64,
}

impl Unwinding {
    /// `tables_bytes`: how much memory tables may take in user space; none: no tables are used.
    pub(super) fn start(tables_bytes: Option<u64>) -> Result<Unwinding, ResolveError> {
        let store = tables_bytes.map(Store::start).transpose();
        Ok(Unwinding {
            store: store.map_err(ResolveError::Thread)?,
            ..Unwinding::default()
        })
    }

    /// Whether stacks are walked by tables.
    pub(super) fn is_used(&self) -> bool {
        self.store.is_some()
    }

    /// Whether tables are being built.
    pub(super) fn is_building(&self) -> bool {
        self.store.as_ref().is_some_and(Store::is_building)
    }

    /// Why a stack ends that was cut at a bogus caller.
    pub(super) fn end_at_bogus_caller(&self) -> StackEnd {
        match self.is_used() {
            true => StackEnd::NoMapping,
            false => StackEnd::FramePointer,
        }
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, pid: Pid, at: Timestamp) {
        self.early.ended(pid, at);
    }

    /// Takes the mappings of a process as /proc has them now.
    pub(super) fn found(&mut self, pid: Pid, mappings: &Arc<Mappings>, at: Timestamp) {
        if self.is_used() {
            self.early.set(pid, mappings, at);
        }
    }

    /// Notes a change of what a process has mapped, as soon as it is drained.
    pub(super) fn follow(&mut self, event: &RawEvent, opener: &mut Opener<'_>) {
        if !self.is_used() {
            return;
        }
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => self.early.forked(*pid, *parent_pid, event.at),
            RawBody::Comm {
                pid, exec: true, ..
            } => self.early.executed(*pid, event.at),
            RawBody::Mmap(mmap) => {
                if let Some(range) = opener.modules.early_range_of(event.at, mmap) {
                    let new = opener.processes.are_named().then(|| range.clone());
                    self.early.mapped(mmap.pid, range, event.at);
                    if let Some(range) = new {
                        self.want_table(mmap.pid, &range, false, opener);
                    }
                }
                let besides = opener.modules.mapped_besides(mmap);
                let besides =
                    besides.and_then(|besides| opener.modules.early_range_of(event.at, &besides));
                if let Some(range) = besides {
                    self.early.mapped(mmap.pid, range, event.at);
                }
            }
            _ => {}
        }
    }

    /// Looks at a sample as soon as it is drained: asks for the tables that its stack needs.
    fn foresee(&mut self, event: &RawEvent, opener: &mut Opener<'_>) {
        if !self.is_used() {
            return;
        }
        let (pid, user) = match &event.body {
            RawBody::Sample(sample) => (sample.pid, &sample.user),
            RawBody::WaitStack(stack) => (stack.pid, &stack.user),
            _ => return,
        };
        if let Some(copy) = copy_of(event) {
            let seeker = Seeker {
                pid,
                copy: Box::new(copy.clone()),
                looks: 0,
            };
            self.seek(seeker, opener);
        } else if user.end == StackEnd::NoTable
            && let Some(last) = user.addresses().next_back()
            && let Some(mappings) = self.early.mappings(pid).cloned()
            && let Some(range) = mappings.find(looked_up(user.addresses().len() - 1, last))
        {
            self.want_table(pid, range, true, opener);
        }
    }

    /// Takes tables that have been built.
    fn poll(&mut self, opener: &mut Opener<'_>) {
        if self.store.as_mut().is_some_and(Store::poll) {
            self.seek_on(opener);
        }
    }

    /// Walks a copied stack by what is mapped now, and asks for the table that it needs next.
    fn seek(&mut self, mut seeker: Seeker, opener: &mut Opener<'_>) {
        let pid = seeker.pid;
        let Some(mappings) = self.early.mappings(pid).cloned() else {
            return;
        };
        loop {
            let Some(store) = &self.store else {
                return;
            };
            let (_, absent) = walk_on(&seeker.copy, &[], &mappings, store);
            let Some(range) = absent else { return };
            self.want_table(pid, &range, true, opener);
            seeker.looks += 1;
            let known = range.module.code.as_ref().map(|code| code.id());
            let here = known
                .zip(self.store.as_ref())
                .is_some_and(|(id, store)| store.get(id) != Err(false));
            if !here || seeker.looks >= MAX_LOOKS {
                break;
            }
        }
        if seeker.looks < MAX_LOOKS && self.seekers.len() < MAX_SEEKERS {
            self.seekers.push(seeker);
        }
    }

    /// A table has been built: walks all stacks that needed one again.
    fn seek_on(&mut self, opener: &mut Opener<'_>) {
        for seeker in std::mem::take(&mut self.seekers) {
            self.seek(seeker, opener);
        }
    }

    /// Asks for the tables of all files that a process has mapped, before the first sample.
    fn want_tables_of(&mut self, pid: Pid, opener: &mut Opener<'_>) {
        let Some(mappings) = self.early.mappings(pid).cloned() else {
            return;
        };
        for range in mappings.ranges() {
            self.want_table(pid, range, false, opener);
        }
    }

    /// Asks for the tables of the `most` files that are mapped by most processes, by two at least.
    fn want_common_tables(&mut self, most: usize, opener: &mut Opener<'_>) {
        let mut users: FxHashMap<u64, (usize, Pid, CodeRange)> = FxHashMap::default();
        for pid in self.early.pids() {
            let Some(mappings) = self.early.mappings(pid) else {
                continue;
            };
            for range in mappings.ranges() {
                if let Some(code) = &range.module.code {
                    let first = || (0, pid, range.clone());
                    users.entry(code.id()).or_insert_with(first).0 += 1;
                }
            }
        }
        let mut users: Vec<_> = users
            .into_values()
            .filter(|(users, ..)| *users > 1)
            .collect();
        users.sort_unstable_by_key(|(users, ..)| std::cmp::Reverse(*users));
        for (_, pid, range) in users.into_iter().take(most) {
            self.want_table(pid, &range, false, opener);
        }
    }

    /// Asks for the table of a mapped file, for the kernel side too; `urgent`: a sample waits for it.
    fn want_table(&mut self, pid: Pid, range: &CodeRange, urgent: bool, opener: &mut Opener<'_>) {
        let (Some(code), Some(store)) = (&range.module.code, &mut self.store) else {
            return;
        };
        store.want(code, urgent, || opener.file_behind(pid, range));
        self.wanted.insert(code.id(), code.clone());
    }
}

/// Opens the files behind mappings.
#[derive(Debug)]
pub(super) struct Opener<'a> {
    /// The files.
    pub(super) modules: &'a mut Modules,
    /// Whose root they are below.
    pub(super) processes: &'a mut Processes,
}

impl Opener<'_> {
    fn file_behind(&mut self, pid: Pid, range: &CodeRange) -> Option<Arc<TargetFile>> {
        let processes = &mut *self.processes;
        self.modules
            .file_behind(pid, range, || processes.root_of(pid))
    }
}
