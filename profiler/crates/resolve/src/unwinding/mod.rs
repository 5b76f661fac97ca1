//! Whole user stacks: which files' tables are needed, and what the kernel side could not walk.
//!
//! Events as they are drained -> what processes have mapped ([`Code`]) and tables of files
//! ([`TableState`]), which `pipeline` takes into the kernel. Samples whose walk ended where a table was
//! missing carry a copy of their stack: [`Resolver`] goes on there, by the mappings of the sample's
//! time, and makes one stack of both. Such a sample waits, and all behind it, while a table that it
//! needs is built; how long and how many is bounded, and what was waited for in vain is counted. What
//! was walked by a list of mappings that did not hold any more is cut.
//!
//! What does not belong here: tables in the kernel (`pipeline`), what tables are made of and the walk
//! itself (`unwind`).

mod builder;
mod code;
mod hold;
mod starting;
mod store;
#[cfg(test)]
mod tests;
mod told;
mod turn;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::code::{CodeFiles, Content, EarlyCode};
use self::hold::{Held, copy_of};
use self::starting::Starting;
use self::store::Store;
use self::told::Told;
use self::turn::{EXACT, walk_on};
use super::Resolver;
use super::files::{FileKey, MappedFile, TargetFile};
use super::mapping::{CodeRange, Mappings};
use super::options::ResolveError;
use profiler_model::raw::{RawBody, RawCopy, RawEvent};
use profiler_model::{ModuleKind, Pid, StackEnd, Timestamp};
use profiler_object::elf::Elf;

pub use self::code::{Code, CodeFile};
pub use self::store::{TableCounters, TableState};

/// Most copied stacks that are kept to see which tables they need next.
const MAX_SEEKERS: usize = 256;
/// A copy needs a table, and then another one: so often it is looked.
const MAX_LOOKS: u32 = 16;

/// A stack that needs a table.
#[derive(Debug)]
struct Seeker {
    pid: Pid,
    copy: Box<RawCopy>,
    looks: u32,
}

/// What a resolver knows of unwinding. See the module.
#[derive(Debug, Default)]
pub(super) struct Unwinding {
    /// None: stacks are walked by frame pointers, and come whole or not at all.
    store: Option<Store>,
    files: CodeFiles,
    early: EarlyCode,
    told: Told,
    starting: Starting,
    /// Files that the kernel side should have the tables of.
    wanted: FxHashMap<u64, Arc<CodeFile>>,
    seekers: Vec<Seeker>,
    pub(super) held: Held,
}

impl Unwinding {
    /// Tables of user space take so much memory; none: there are none.
    pub(super) fn start(tables_bytes: Option<u64>) -> Result<Unwinding, ResolveError> {
        let store = tables_bytes.map(Store::start).transpose();
        Ok(Unwinding {
            store: store.map_err(ResolveError::Thread)?,
            ..Unwinding::default()
        })
    }

    /// Whether there are tables.
    pub(super) fn is_used(&self) -> bool {
        self.store.is_some()
    }

    /// Why a stack ended whose last caller is in no mapping.
    pub(super) fn end_of_wreck(&self) -> StackEnd {
        match self.is_used() {
            true => StackEnd::NoMapping,
            false => StackEnd::FramePointer,
        }
    }

    /// What a file is known by to all that have the same.
    pub(super) fn code_of(
        &mut self,
        file: &TargetFile,
        elf: &Elf,
        key: Option<&FileKey>,
    ) -> Option<Arc<CodeFile>> {
        self.store.as_ref()?;
        let content = Content {
            build_id: elf.build_id.clone(),
            hash: file.print.hash(),
            unnamed: key.filter(|_| elf.build_id.is_none()).cloned(),
        };
        Some(self.files.of(content, &file.path))
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, pid: Pid, at: Timestamp) {
        self.early.ended(pid, at);
    }

    /// What is mapped in a process as /proc says it, now.
    pub(super) fn found(&mut self, pid: Pid, mappings: &Arc<Mappings>, at: Timestamp) {
        if self.is_used() {
            self.early.set(pid, mappings, at);
        }
    }
}

impl Resolver {
    /// Processes whose mappings have changed since the last call, and what they have mapped now; none:
    /// it has ended. As of the events that [`Resolver::notice`] saw, which is ahead of what was
    /// resolved. Nothing without [`super::ResolveOptions::tables_bytes`].
    pub fn take_changed_code(&mut self) -> Vec<(Pid, Option<Vec<Code>>)> {
        self.unwinding.early.take_changed()
    }

    /// What a process has mapped now, and none for one that is not known.
    pub fn code_of(&self, pid: Pid) -> Option<Vec<Code>> {
        self.unwinding.early.code(pid)
    }

    /// The kernel side was told what a process has mapped, or, with nothing, that it is not known. This
    /// came into force between two times. Calls come in their order.
    pub fn code_was_told(&mut self, pid: Pid, code: &[Code], since: Timestamp, until: Timestamp) {
        self.unwinding.told.told(pid, code, since, until);
    }

    /// Forgets what the kernel side was told of mappings in times of which all events were resolved. To
    /// be called now and then.
    pub fn forget_told_code(&mut self) {
        let resolved = self.unwinding.held.first().unwrap_or(self.last_event.0);
        self.unwinding.told.forget(resolved);
    }

    /// Processes of which it is known what they have mapped.
    pub fn processes_with_code(&self) -> Vec<Pid> {
        self.unwinding.early.pids().collect()
    }

    /// Files whose tables the kernel side needed and did not have, since the last call. Their tables
    /// are here, or come, or were asked for and dropped.
    pub fn take_wanted_tables(&mut self) -> Vec<Arc<CodeFile>> {
        let wanted = std::mem::take(&mut self.unwinding.wanted);
        wanted.into_values().collect()
    }

    /// What is known of a file's table.
    pub fn table(&self, file: &CodeFile) -> TableState {
        match &self.unwinding.store {
            Some(store) => store.state(file.id()),
            None => TableState::Unknown,
        }
    }

    /// What tables of user space have come to.
    pub fn table_counters(&self) -> TableCounters {
        let store = self.unwinding.store.as_ref();
        store.map_or_else(TableCounters::default, Store::counters)
    }

    /// Whether tables are being built.
    pub fn builds_tables(&self) -> bool {
        let store = self.unwinding.store.as_ref();
        store.is_some_and(Store::is_building)
    }

    /// Asks for the tables of all that a process has mapped, ahead of the first sample.
    pub fn build_tables_of(&mut self, pid: Pid) {
        let Some(mappings) = self.unwinding.early.mappings(pid).cloned() else {
            return;
        };
        for range in mappings.ranges() {
            self.want_table(pid, range, false);
        }
    }

    /// Asks for the tables of the `most` files that are mapped by most processes, by two at least.
    pub fn build_common_tables(&mut self, most: usize) {
        let mut users: FxHashMap<u64, (usize, Pid, CodeRange)> = FxHashMap::default();
        for pid in self.processes_with_code() {
            let Some(mappings) = self.unwinding.early.mappings(pid) else {
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
            self.want_table(pid, &range, false);
        }
    }

    /// Takes tables that have been built; whether there were any.
    pub fn poll_tables(&mut self) -> bool {
        let Some(store) = &mut self.unwinding.store else {
            return false;
        };
        let any = store.poll();
        if any {
            self.seek_on();
        }
        any
    }

    /// Looks at a sample as soon as it is drained, before its turn: asks for the tables that it needs.
    pub fn foresee(&mut self, event: &RawEvent) {
        if !self.unwinding.is_used() {
            return;
        }
        let (pid, user) = match &event.body {
            RawBody::Sample(sample) => (sample.pid, &sample.user),
            RawBody::WaitStack(stack) => (stack.pid, &stack.user),
            _ => return,
        };
        if let Some(copy) = copy_of(event) {
            self.seek(Seeker {
                pid,
                copy: Box::new(copy.clone()),
                looks: 0,
            });
        } else if user.end == StackEnd::NoTable
            && let Some(last) = user.addresses().next_back()
            && let Some(mappings) = self.unwinding.early.mappings(pid).cloned()
            // A return address at the end of a mapping is that of a call in it.
            && let Some(range) = mappings.find((last & !EXACT).saturating_sub(1))
        {
            self.want_table(pid, range, true);
        }
    }

    /// Looks which table a copied stack needs next, by what is mapped now.
    fn seek(&mut self, mut seeker: Seeker) {
        let pid = seeker.pid;
        let Some(mappings) = self.unwinding.early.mappings(pid).cloned() else {
            return;
        };
        loop {
            let Some(store) = &self.unwinding.store else {
                return;
            };
            let (_, absent) = walk_on(&seeker.copy, 0, &mappings, store);
            let Some(range) = absent else { return };
            self.want_table(pid, &range, true);
            seeker.looks += 1;
            let known = range.module.code.as_ref().map(|code| code.id());
            let store = self.unwinding.store.as_ref();
            let here = known
                .zip(store)
                .is_some_and(|(id, store)| store.get(id) != Err(false));
            if !here || seeker.looks >= MAX_LOOKS {
                break;
            }
        }
        if seeker.looks < MAX_LOOKS && self.unwinding.seekers.len() < MAX_SEEKERS {
            self.unwinding.seekers.push(seeker);
        }
    }

    /// The same for those that needed a table: one has come.
    fn seek_on(&mut self) {
        for seeker in std::mem::take(&mut self.unwinding.seekers) {
            self.seek(seeker);
        }
    }

    /// Asks for the table of a mapped file, for the kernel side too; `urgent`: a sample waits for it.
    fn want_table(&mut self, pid: Pid, range: &CodeRange, urgent: bool) {
        let Some(code) = &range.module.code else {
            return;
        };
        let Some(mut store) = self.unwinding.store.take() else {
            return;
        };
        store.want(code, urgent, || self.code_file(pid, range));
        self.unwinding.store = Some(store);
        self.unwinding.wanted.insert(code.id(), code.clone());
    }

    /// The open file behind a mapping.
    fn code_file(&mut self, pid: Pid, range: &CodeRange) -> Option<Arc<TargetFile>> {
        let module = &range.module;
        if module.kind == ModuleKind::Vdso {
            return self.vdso.as_ref().map(|(_, file)| file.clone());
        }
        let open = module.key.as_ref().and_then(|key| self.files.get(key));
        let file = open.or_else(|| {
            let root = self.root_of(pid);
            let mapped = MappedFile {
                pid,
                range: range.mapped,
                path: &module.path,
                identity: range.identity,
                root: root.as_ref(),
            };
            self.files.open(&mapped).ok()
        });
        // What is open by now must be what the module is said to be.
        file.filter(|file| file.print.name == module.copy)
    }

    /// Notes a change of what a process has mapped, as soon as it is drained.
    pub(super) fn notice_code(&mut self, event: &RawEvent) {
        if !self.unwinding.is_used() {
            return;
        }
        let early = &mut self.unwinding.early;
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => early.forked(*pid, *parent_pid, event.at),
            RawBody::Comm {
                pid, exec: true, ..
            } => early.executed(*pid, event.at),
            RawBody::Mmap(mmap) => {
                if let Some(range) = self.early_range_of(event.at, mmap) {
                    let (pid, ahead) = (mmap.pid, self.scoped && !self.limited);
                    let new = ahead.then(|| range.clone());
                    self.unwinding.early.mapped(pid, range, event.at);
                    if let Some(range) = new {
                        self.want_table(pid, &range, false);
                    }
                }
            }
            _ => {}
        }
    }
}
