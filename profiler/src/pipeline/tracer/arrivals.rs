//! New processes and newly mapped files, from when they are seen until the tracer has looked at them.
//!
//! Raw events, as drained -> what is to be attached, and since when calls are missing. Timestamps are
//! nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what is attached for it (`follow`), whether it concerns us (`targets`).

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use profiler_model::raw::{FileIdentity, RawMmap};
use profiler_model::{Pid, Timestamp};
use profiler_probe::now;
use profiler_resolve::objects::TargetObject;

/// Most files of one process that are remembered until it is looked at.
const MAX_PATHS: usize = 256;
/// Most mapped files that are remembered.
const MAX_SEEN: usize = 1 << 16;

/// Something that is to be attached.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) pid: Pid,
    /// Since when its calls are missing.
    pub(super) since: Timestamp,
    /// A fork: the files of its parent.
    pub(super) parent: Option<Pid>,
    /// Files that it has mapped, as it sees them: those in which calls may be missing.
    pub(super) paths: Vec<Box<str>>,
    /// All of these were attached for all processes before.
    pub(super) attached: bool,
}

impl Pending {
    /// Whether it has to wait for one of these: it is the same process, or inherits the files of one.
    pub(super) fn comes_after(&self, waiting: &[Pending]) -> bool {
        let is_before = |one: &Pending| one.pid == self.pid || Some(one.pid) == self.parent;
        waiting.iter().any(is_before)
    }
}

/// A mapped file as the kernel's record describes it.
type SeenFile = (FileIdentity, Box<[u8]>);

/// New processes and files that the tracer has yet to look at.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pending: VecDeque<Pending>,
    /// Mapped files, and whether anything of them is traced.
    seen: FxHashMap<SeenFile, bool>,
    /// Objects that were attached before any process was seen to map them, and since when they are.
    ahead: FxHashMap<usize, Timestamp>,
    /// Memory that belongs to no file was made executable. What that forbids has yet to be planned anew.
    code_made: bool,
}

impl Arrivals {
    /// The next one to look at.
    pub(super) fn next(&mut self) -> Option<Pending> {
        self.pending.pop_front()
    }

    /// These are to be looked at again, before all others and in this order.
    pub(super) fn put_back(&mut self, waiting: Vec<Pending>) {
        for pending in waiting.into_iter().rev() {
            self.pending.push_front(pending);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether anything of a process is still to be looked at.
    pub(super) fn has(&self, pid: Pid) -> bool {
        self.pending.iter().any(|pending| pending.pid == pid)
    }

    /// The processes whose children the tracer has yet to look at.
    pub(super) fn parents(&self) -> FxHashSet<Pid> {
        self.pending.iter().filter_map(|one| one.parent).collect()
    }

    /// A process was found to be there.
    pub(super) fn found(&mut self, pid: Pid, since: Timestamp) {
        self.pending.push_back(Pending {
            pid,
            since,
            parent: None,
            paths: Vec::new(),
            attached: false,
        });
    }

    pub(super) fn forked(&mut self, pid: Pid, parent: Pid, at: Timestamp) {
        let known = |pending: &Pending| pending.pid == pid && pending.parent == Some(parent);
        if !self.pending.iter().any(known) {
            self.pending.push_back(Pending {
                pid,
                since: at,
                parent: Some(parent),
                paths: Vec::new(),
                attached: false,
            });
        }
    }

    /// A process has mapped something, in which calls may be missing unless it is `watched`. Links may be
    /// `shared` by all processes; `by_cgroups`: cgroups say who is traced.
    pub(super) fn mapped(
        &mut self,
        mmap: &RawMmap,
        at: Timestamp,
        watched: bool,
        (shared, by_cgroups): (bool, bool),
    ) {
        self.code_made |= profiler_resolve::is_made_code(&mmap.path);
        if !mmap.path.starts_with(b"/") || mmap.path.starts_with(b"//anon") {
            return;
        }
        let file = (mmap.file, mmap.path.clone());
        // Where cgroups say who is traced, one may have run a file before it was attached.
        let for_all = shared && !by_cgroups;
        let attached = match self.seen.get(&file) {
            // Nothing in it is traced, or it is attached for all already.
            Some(traced) if !traced || for_all => return,
            seen => seen.is_some() && shared,
        };
        let path = (!watched).then(|| String::from_utf8_lossy(&mmap.path).into());
        let mut pending = self.pending.iter_mut();
        if let Some(pending) =
            pending.find(|pending| pending.pid == mmap.pid && pending.parent.is_none())
        {
            pending.attached &= attached;
            if pending.paths.len() < MAX_PATHS {
                pending.paths.extend(path);
            }
            return;
        }
        self.pending.push_back(Pending {
            pid: mmap.pid,
            since: at,
            parent: None,
            paths: path.into_iter().collect(),
            attached,
        });
    }

    /// Whether code was made since the last time.
    pub(super) fn take_code_made(&mut self) -> bool {
        std::mem::take(&mut self.code_made)
    }

    /// Remembers whether anything of a mapped file is traced, so that it need not be looked at again.
    pub(super) fn note_seen(&mut self, object: &TargetObject, traced: bool) {
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        let path = object.path.as_bytes().into();
        self.seen.insert((object.identity, path), traced);
    }

    /// Objects are attached that no process was seen to map. A process that mapped one before, and is
    /// reported later, has a gap.
    pub(super) fn note_ahead(&mut self, objects: &[usize]) {
        let at = now();
        self.ahead
            .extend(objects.iter().map(|&object| (object, at)));
    }

    /// Whether an object was attached ahead, but after that time.
    pub(super) fn was_late(&self, object: usize, since: Timestamp) -> bool {
        self.ahead.get(&object).is_some_and(|&ahead| since < ahead)
    }
}
