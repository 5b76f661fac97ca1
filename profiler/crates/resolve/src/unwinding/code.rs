//! Files with code, told apart by what is in them, and where processes have mapped them just now.
//!
//! Events as they are drained, before their turn -> for each process, what it has mapped ([`Code`]).
//! That is ahead of the resolver's own table of processes, which follows the order of events: the
//! kernel side walks the stacks of what runs now. Both share mappings as long as these are the same.
//! Addresses are a process's, or, where it is said, a file's own (ELF virtual addresses).
//!
//! What does not belong here: tables (`store`), and what a mapping is of (`events`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::files::{FileKey, TargetFile};
use super::super::mapping::{CodeRange, Mappings};
use profiler_model::{BuildId, ModuleKind, Pid, Timestamp};
use profiler_object::elf::Elf;

/// Most processes that are known; of others, user space finds the callers.
const MAX_PROCESSES: usize = 100_000;

/// A file with code: one for all paths and processes that have the same contents there.
#[derive(Debug)]
pub(crate) struct CodeFile {
    id: u64,
    path: Box<str>,
}

impl CodeFile {
    /// One that is like no other.
    pub(crate) fn new(path: &str) -> Arc<CodeFile> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(CodeFile {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            path: path.into(),
        })
    }

    /// A number that no other file ever has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The path under which it was met first.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// What is in a file: its build id and the hash of its contents; without a build id, which file it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Content {
    build_id: Option<BuildId>,
    hash: u64,
    unnamed: Option<FileKey>,
}

/// All files with code that anything refers to.
#[derive(Debug, Default)]
pub(crate) struct CodeFiles {
    known: FxHashMap<Content, Weak<CodeFile>>,
    /// So many are known when those that nobody refers to are forgotten next.
    forget_at: usize,
}

impl CodeFiles {
    /// What a file is known by to all that have the same.
    pub(crate) fn of_file(
        &mut self,
        file: &TargetFile,
        elf: &Elf,
        key: Option<&FileKey>,
    ) -> Arc<CodeFile> {
        let content = Content {
            build_id: elf.build_id.clone(),
            hash: file.fingerprint.hash(),
            unnamed: key.filter(|_| elf.build_id.is_none()).cloned(),
        };
        self.of(content, &file.path)
    }

    /// The file with this content.
    fn of(&mut self, content: Content, path: &str) -> Arc<CodeFile> {
        if let Some(known) = self.known.get(&content).and_then(Weak::upgrade) {
            return known;
        }
        if self.known.len() >= self.forget_at {
            self.known.retain(|_, file| file.strong_count() > 0);
            self.forget_at = (self.known.len() * 2).max(1024);
        }
        let file = CodeFile::new(path);
        self.known.insert(content, Arc::downgrade(&file));
        file
    }
}

/// Executable memory of a process.
#[derive(Clone, Debug)]
pub(super) struct Code {
    /// First address.
    pub(super) start: u64,
    /// First address behind it.
    pub(super) end: u64,
    /// The file's own address of what is at `start`.
    pub(super) address: u64,
    /// What is there; none: code made at run time, or of a file that can't be read.
    pub(super) file: Option<Arc<CodeFile>>,
}

impl Code {
    /// None for memory that is neither: pages of the kernel's own.
    pub(super) fn of(range: &CodeRange) -> Option<Code> {
        let module = &range.module;
        match module.kind {
            ModuleKind::File | ModuleKind::Vdso | ModuleKind::Jit => Some(Code {
                start: range.start,
                end: range.end,
                address: range.own_address(),
                file: module.code.clone(),
            }),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct EarlyProcess {
    mappings: Arc<Mappings>,
    /// When it was forked or began its program, as far as known.
    since: Timestamp,
    /// When it did so for sure: what was mapped before is of the past.
    program: Timestamp,
}

/// What processes have mapped just now, ahead of the order of events.
#[derive(Debug, Default)]
pub(super) struct EarlyCode {
    processes: FxHashMap<Pid, EarlyProcess>,
    changed: FxHashSet<Pid>,
}

impl EarlyCode {
    /// What a process has mapped.
    pub(super) fn mappings(&self, pid: Pid) -> Option<&Arc<Mappings>> {
        Some(&self.processes.get(&pid)?.mappings)
    }

    /// A process has this mapped, by /proc.
    pub(super) fn set(&mut self, pid: Pid, mappings: &Arc<Mappings>, at: Timestamp) {
        if mappings.ranges().is_empty() && !self.processes.contains_key(&pid) {
            return;
        }
        let process = self.process(pid, at);
        if let Some(process) = process
            && !process.mappings.is_like(mappings)
        {
            process.mappings = mappings.clone();
            self.changed.insert(pid);
        }
    }

    /// A process was forked.
    pub(super) fn forked(&mut self, pid: Pid, parent: Pid, at: Timestamp) {
        let Some(mappings) = self.mappings(parent).cloned() else {
            self.processes.remove(&pid);
            self.changed.insert(pid);
            return;
        };
        if let Some(process) = self.process(pid, at) {
            *process = EarlyProcess {
                mappings,
                since: at,
                program: at,
            };
            self.changed.insert(pid);
        }
    }

    /// A process begins a new program.
    pub(super) fn executed(&mut self, pid: Pid, at: Timestamp) {
        if let Some(process) = self.process(pid, at) {
            let mut mappings = Mappings::default();
            // Events of different processors are drained one after the other.
            for range in process.mappings.ranges() {
                if range.at > at {
                    mappings.insert(range.clone());
                }
            }
            *process = EarlyProcess {
                mappings: Arc::new(mappings),
                since: at,
                program: at,
            };
            self.changed.insert(pid);
        }
    }

    /// Something was mapped. What is known to have been mapped there later stays, and a later program has nothing of it.
    pub(super) fn mapped(&mut self, pid: Pid, range: CodeRange, at: Timestamp) {
        if let Some(process) = self.process(pid, at).filter(|it| it.program <= at) {
            let before = process.mappings.generation();
            let range = CodeRange { at, ..range };
            let is_later = |known: &&CodeRange| {
                known.at > at && known.start < range.end && range.start < known.end
            };
            let later = process.mappings.ranges().iter().filter(is_later);
            let later: Vec<CodeRange> = later.cloned().collect();
            let mappings = Arc::make_mut(&mut process.mappings);
            mappings.insert(range);
            later.into_iter().for_each(|range| mappings.insert(range));
            if process.mappings.generation() != before {
                self.changed.insert(pid);
            }
        }
    }

    /// A process has ended, unless that was an earlier life of its id.
    pub(super) fn ended(&mut self, pid: Pid, at: Timestamp) {
        let known = self.processes.get(&pid);
        if known.is_some_and(|process| process.since <= at) {
            self.processes.remove(&pid);
            self.changed.insert(pid);
        }
    }

    /// Processes whose mappings are others than at the last call, and these; none: it has ended.
    pub(super) fn take_changed(&mut self) -> Vec<(Pid, Option<Vec<Code>>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let changed = changed.map(|pid| (pid, self.code(pid)));
        changed.collect()
    }

    /// What a process has mapped, ordered by address.
    pub(super) fn code(&self, pid: Pid) -> Option<Vec<Code>> {
        let ranges = self.mappings(pid)?.ranges();
        Some(ranges.iter().filter_map(Code::of).collect())
    }

    /// All processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.processes.keys().copied()
    }

    fn process(&mut self, pid: Pid, at: Timestamp) -> Option<&mut EarlyProcess> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
            return None;
        }
        let new = || EarlyProcess {
            mappings: Arc::default(),
            since: at,
            program: Timestamp(0),
        };
        Some(self.processes.entry(pid).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::mapping::tests::{module, range};
    use super::*;

    fn shape(early: &EarlyCode, pid: u32) -> Option<Vec<(u64, u64)>> {
        let code = early.code(Pid(pid))?;
        Some(code.iter().map(|code| (code.start, code.end)).collect())
    }

    #[test]
    fn a_child_has_what_its_parent_had_until_it_runs_another_program() {
        let file = module("a");
        let mut early = EarlyCode::default();
        early.mapped(Pid(1), range(0x1000, 0x2000, 0, &file), Timestamp(1));
        early.forked(Pid(2), Pid(1), Timestamp(2));
        early.mapped(Pid(1), range(0x5000, 0x6000, 0, &file), Timestamp(3));
        assert_eq!(shape(&early, 2).unwrap(), [(0x1000, 0x2000)]);
        assert_eq!(early.take_changed().len(), 2);
        early.executed(Pid(2), Timestamp(4));
        early.mapped(Pid(2), range(0x7000, 0x8000, 0, &file), Timestamp(4));
        assert_eq!(shape(&early, 2).unwrap(), [(0x7000, 0x8000)]);
        assert_eq!(shape(&early, 1).unwrap().len(), 2);
        let changed = early.take_changed();
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].0, Pid(2));
    }

    #[test]
    fn what_comes_late_does_not_hide_what_is_newer() {
        let (old, new) = (module("old"), module("new"));
        let mut early = EarlyCode::default();
        early.mapped(Pid(1), range(0x2000, 0x3000, 0, &new), Timestamp(9));
        early.mapped(Pid(1), range(0x1000, 0x4000, 0, &old), Timestamp(7));
        let path = |early: &EarlyCode, address| {
            let mappings = early.mappings(Pid(1)).unwrap();
            mappings
                .find(address)
                .map(|range| range.module.path.clone())
        };
        assert_eq!(path(&early, 0x2800).as_deref(), Some("new"));
        assert_eq!(path(&early, 0x1800).as_deref(), Some("old"));
        early.executed(Pid(1), Timestamp(8));
        assert_eq!(path(&early, 0x2800).as_deref(), Some("new"));
        assert_eq!(path(&early, 0x1800), None);
        early.executed(Pid(1), Timestamp(9));
        assert_eq!(path(&early, 0x2800), None);
        // Of the program before.
        early.mapped(Pid(1), range(0x1000, 0x4000, 0, &old), Timestamp(8));
        assert_eq!(path(&early, 0x1800), None);
    }

    #[test]
    fn what_is_known_already_is_no_change_and_an_end_ends_that_life_alone() {
        let file = module("a");
        let mut early = EarlyCode::default();
        early.mapped(Pid(1), range(0x1000, 0x2000, 0, &file), Timestamp(5));
        early.take_changed();
        early.mapped(Pid(1), range(0x1000, 0x2000, 0, &file), Timestamp(6));
        let same = early.mappings(Pid(1)).unwrap().clone();
        early.set(Pid(1), &same, Timestamp(7));
        assert!(early.take_changed().is_empty());
        early.ended(Pid(1), Timestamp(4));
        assert!(early.code(Pid(1)).is_some());
        early.ended(Pid(1), Timestamp(8));
        let changed = early.take_changed();
        assert!(matches!(changed[..], [(Pid(1), None)]));
    }

    #[test]
    fn files_of_one_content_are_one_as_long_as_somebody_has_it() {
        let content = |hash| Content {
            build_id: None,
            hash,
            unnamed: None,
        };
        let mut files = CodeFiles::default();
        let first = files.of(content(1), "a");
        assert_eq!(files.of(content(1), "b").id(), first.id());
        assert_ne!(files.of(content(2), "a").id(), first.id());
        let id = first.id();
        drop(first);
        assert_ne!(files.of(content(1), "a").id(), id);
    }
}
