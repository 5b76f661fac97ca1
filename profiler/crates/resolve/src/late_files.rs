//! Mappings whose files are not open yet, because a server has them that takes its time.
//!
//! Raw events that were noticed, and mappings that were found in /proc -> the same again when their files are open, or will
//! not be. The turn of an event comes no sooner, so that what is mapped is known by then; of what was mapped before, all
//! wait for a moment. Who takes events is not held up meanwhile. How many wait is bounded.
//!
//! What does not belong here: who asks servers, and for how long (`files`, `helper::opener`).

use std::time::{Duration, Instant};

use profiler_model::raw::{RawBody, RawEvent, RawMmap};
use profiler_model::{Cpu, Timestamp};

/// Most that wait.
const MAX_LATE: usize = 1024;
/// How long all events wait for the files of what was mapped before.
const PATIENCE: Duration = Duration::from_secs(1);

/// A mapping whose file is not open yet.
#[derive(Debug)]
pub(super) struct LateFile {
    /// Of the mapping.
    pub(super) event: RawEvent,
    /// It is mapped already, without what the file says.
    pub(super) is_mapped: bool,
}

impl LateFile {
    /// Of a mapping that was found at this time.
    pub(super) fn mapped(at: Timestamp, mmap: RawMmap) -> LateFile {
        let (cpu, body) = (Cpu(0), RawBody::Mmap(Box::new(mmap)));
        LateFile {
            event: RawEvent { at, cpu, body },
            is_mapped: true,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct LateFiles {
    files: Vec<LateFile>,
    /// Until when all events wait, if something was mapped before.
    all_wait: Option<Instant>,
}

impl LateFiles {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Adds one; whether there is room for it.
    pub(super) fn push(&mut self, late: LateFile) -> bool {
        let has_room = self.files.len() < MAX_LATE;
        if has_room {
            if late.is_mapped && self.all_wait.is_none() {
                self.all_wait = Some(Instant::now() + PATIENCE);
            }
            self.files.push(late);
        }
        has_room
    }

    /// Whether an event has to wait: for its own file, or for what was mapped before.
    pub(super) fn holds(&self, event: &RawEvent) -> bool {
        if self.all_wait.is_some_and(|until| Instant::now() < until) {
            return true;
        }
        let is_it = |late: &LateFile| !late.is_mapped && late.event == *event;
        matches!(event.body, RawBody::Mmap(_)) && self.files.iter().any(is_it)
    }

    /// Takes all of them; those that wait on are to be put back.
    pub(super) fn take(&mut self) -> Vec<LateFile> {
        std::mem::take(&mut self.files)
    }

    /// Puts back what waits on.
    pub(super) fn put_back(&mut self, late: Vec<LateFile>) {
        // What came meanwhile is behind.
        let came = std::mem::replace(&mut self.files, late);
        self.files.extend(came);
        if !self.files.iter().any(|late| late.is_mapped) {
            self.all_wait = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use profiler_model::raw::FileIdentity;
    use profiler_model::{Pid, Tid};

    use super::*;

    fn mmap(start: u64) -> RawMmap {
        RawMmap {
            pid: Pid(1),
            tid: Tid(1),
            start,
            len: 0x1000,
            file_offset: 0,
            path: b"/file".as_slice().into(),
            file: FileIdentity::default(),
        }
    }

    fn event(at: u64, start: u64) -> RawEvent {
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(0),
            body: RawBody::Mmap(Box::new(mmap(start))),
        }
    }

    #[test]
    fn an_event_waits_for_its_own_file_and_no_other_one() {
        let mut late = LateFiles::default();
        let is_mapped = false;
        let event_of = |start| event(7, start);
        assert!(late.push(LateFile {
            event: event_of(0x1000),
            is_mapped
        }));
        assert!(late.holds(&event_of(0x1000)) && !late.holds(&event_of(0x2000)));
        assert!(!late.holds(&event(8, 0x1000)));
        let taken = late.take();
        assert!(late.is_empty() && !late.holds(&event_of(0x1000)));
        late.put_back(taken);
        assert!(late.holds(&event_of(0x1000)));
    }

    #[test]
    fn all_wait_for_what_was_mapped_before_but_not_for_long() {
        let mut late = LateFiles::default();
        assert!(late.push(LateFile::mapped(Timestamp(7), mmap(0x1000))));
        assert!(late.holds(&event(9, 0x5000)));
        late.all_wait = Some(Instant::now());
        assert!(!late.holds(&event(9, 0x5000)) && !late.is_empty());
        late.all_wait = Some(Instant::now() + PATIENCE);
        late.take();
        late.put_back(Vec::new());
        assert!(!late.holds(&event(9, 0x5000)));
    }

    #[test]
    fn those_that_wait_are_bounded() {
        let mut late = LateFiles::default();
        let all = (0..2 * MAX_LATE as u64)
            .map(|start| late.push(LateFile::mapped(Timestamp(1), mmap(start))));
        assert_eq!(all.filter(|has_room| *has_room).count(), MAX_LATE);
    }
}
