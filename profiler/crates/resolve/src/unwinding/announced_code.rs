//! The lists of mappings that were announced to the kernel side, and when each was in force.
//!
//! Lists, each with the two times between which it came into force -> whether a walk at a given time used
//! a list that was outdated. When a process maps a file in place of another one, walks use the rows of the
//! former file until the kernel side has the new list, and find bogus callers. Of a former list only the
//! differences from its successor are kept, until all events of its time have been resolved. Times are
//! nanoseconds of CLOCK_MONOTONIC, addresses those of processes.
//!
//! What does not belong here: when lists are announced (`dialogue`), how a stack is cut (`user_stack`).

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::code::Code;
use crate::mapping::{CodeRange, Mappings};
use profiler_model::{Pid, Timestamp};

/// A walk reads the list at most so long after the time of its sample.
const LATE_NS: u64 = 1_000_000;
/// Most pieces kept of the earlier lists of all processes together: 5 MiB.
const MAX_PAST_PIECES: usize = 1 << 17;

/// What walks know of an address: the file, and how far its own addresses are from the process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct What {
    /// Number of the file; none: code made at run time.
    file: Option<u64>,
    shift: u64,
}

impl What {
    fn of(range: &CodeRange) -> Option<What> {
        Code::of(range).map(|code| What::of_code(&code))
    }

    fn of_code(code: &Code) -> What {
        let file = code.file.as_ref().map(|file| file.id());
        What {
            file,
            // Without rows it does not matter.
            shift: file.map_or(0, |_| code.address.wrapping_sub(code.start)),
        }
    }
}

/// A range of addresses, and what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece<T> {
    start: u64,
    end: u64,
    what: T,
}

impl<T: Copy> Piece<T> {
    fn find(pieces: &[Piece<T>], address: u64) -> Option<T> {
        let behind = pieces.partition_point(|piece| piece.start <= address);
        let piece = &pieces[behind.checked_sub(1)?];
        (address < piece.end).then_some(piece.what)
    }
}

fn pieces(code: &[Code]) -> Vec<Piece<What>> {
    let pieces = code.iter().map(|code| Piece {
        start: code.start,
        end: code.end,
        what: What::of_code(code),
    });
    pieces.collect()
}

/// Where two lists differ, and what the first one has there.
fn differences(old: &[Piece<What>], new: &[Piece<What>]) -> Vec<Piece<Option<What>>> {
    // What is at an address, and up to where.
    fn look(rest: &mut &[Piece<What>], at: u64) -> (Option<What>, u64) {
        while let [first, behind @ ..] = rest
            && first.end <= at
        {
            *rest = behind;
        }
        match rest.first() {
            Some(piece) if piece.start <= at => (Some(piece.what), piece.end),
            Some(piece) => (None, piece.start),
            None => (None, u64::MAX),
        }
    }
    let (mut old, mut new, mut at) = (old, new, 0);
    let mut differ = Vec::new();
    while at < u64::MAX {
        let (was, old_end) = look(&mut old, at);
        let (is, new_end) = look(&mut new, at);
        let end = old_end.min(new_end);
        if was != is {
            differ.push(Piece {
                start: at,
                end,
                what: was,
            });
        }
        at = end;
    }
    differ
}

/// A list that others have replaced.
#[derive(Debug)]
struct Past {
    /// From when on it may have been in force.
    since: Timestamp,
    /// Until when it may have been.
    until: Timestamp,
    /// What it had otherwise than the next one.
    was: Vec<Piece<Option<What>>>,
}

/// The lists of a process.
#[derive(Debug)]
struct Lists {
    now: Vec<Piece<What>>,
    /// From when on `now` may have been in force.
    since: Timestamp,
    /// By the time that they were replaced.
    past: VecDeque<Past>,
    /// Until when there were lists that are not known any more.
    forgotten: Option<Timestamp>,
    /// The generation of mappings that `now` was compared with last, and whether it is like them.
    compared: Option<(u64, bool)>,
}

impl Lists {
    /// What the list with this index among the past ones had at an address; behind the last: `now`.
    fn listed(&self, index: usize, address: u64) -> Option<What> {
        let mut past = self.past.range(index..);
        match past.find_map(|past| Piece::find(&past.was, address)) {
            Some(was) => was,
            None => Piece::find(&self.now, address),
        }
    }

    fn is_like(&mut self, mappings: &Mappings) -> bool {
        let generation = mappings.generation();
        if let Some((known, same)) = self.compared
            && known == generation
        {
            return same;
        }
        let code: Vec<Code> = mappings.ranges().iter().filter_map(Code::of).collect();
        let same = differences(&self.now, &pieces(&code)).is_empty();
        self.compared = Some((generation, same));
        same
    }

    /// Drops the oldest of the past lists; how many pieces that were.
    fn forget_oldest(&mut self) -> usize {
        let Some(oldest) = self.past.pop_front() else {
            return 0;
        };
        self.forgotten = Some(oldest.until);
        oldest.was.len()
    }
}

/// The lists of mappings that the kernel side has had, by process.
#[derive(Debug, Default)]
pub(super) struct AnnouncedCode {
    processes: FxHashMap<Pid, Lists>,
    /// Those of which there are earlier lists.
    with_past: FxHashSet<Pid>,
    past_pieces: usize,
}

impl AnnouncedCode {
    /// Notes that the list of a process was announced (empty: that it was removed). It came into force
    /// between these times.
    pub(super) fn note(&mut self, pid: Pid, code: &[Code], since: Timestamp, until: Timestamp) {
        let new = pieces(code);
        let Some(lists) = self.processes.get_mut(&pid) else {
            if new.is_empty() {
                return;
            }
            let first = Lists {
                now: new,
                since,
                past: VecDeque::new(),
                forgotten: None,
                compared: None,
            };
            self.processes.insert(pid, first);
            return;
        };
        let was = differences(&lists.now, &new);
        if was.is_empty() {
            return;
        }
        self.past_pieces += was.len();
        lists.past.push_back(Past {
            since: lists.since,
            until,
            was,
        });
        lists.now = new;
        lists.since = since;
        lists.compared = None;
        self.with_past.insert(pid);
        if self.past_pieces > MAX_PAST_PIECES {
            while !lists.past.is_empty() {
                self.past_pieces -= lists.forget_oldest();
            }
        }
    }

    /// Where a list that is about to be announced has another file than the one in force: from, to, and which file it has.
    pub(super) fn replaced(&self, pid: Pid, code: &[Code]) -> Vec<(u64, u64, Option<u64>)> {
        let Some(lists) = self.processes.get(&pid) else {
            return Vec::new();
        };
        let new = pieces(code);
        let differ = differences(&lists.now, &new).into_iter();
        let replaced = differ.filter_map(|piece| {
            let is = Piece::find(&new, piece.start)?;
            piece.what.map(|_| (piece.start, piece.end, is.file))
        });
        replaced.collect()
    }

    /// Finds the first of the addresses, leaf first, for which a list in force at that time had another file
    /// than the process: the callers behind it are bogus. Where a list had nothing, no walk went on.
    pub(super) fn first_wrong(
        &mut self,
        pid: Pid,
        at: Timestamp,
        mappings: &Mappings,
        mut addresses: impl Iterator<Item = u64>,
    ) -> Option<usize> {
        let lists = self.processes.get_mut(&pid)?;
        if lists.forgotten.is_some_and(|until| at <= until) {
            return Some(0);
        }
        let first = lists.past.partition_point(|past| past.until < at);
        if first == lists.past.len() && lists.is_like(mappings) {
            return None;
        }
        let latest = Timestamp(at.0.saturating_add(LATE_NS));
        let past = lists.past.range(first..).map(|past| past.since);
        let in_force = past.chain([lists.since]);
        let count = in_force.take_while(|since| *since <= latest).count();
        addresses.position(|address| {
            let real = mappings.find(address).and_then(What::of);
            (first..first + count).any(|list| {
                let listed = lists.listed(list, address);
                listed.is_some() && listed != real
            })
        })
    }

    /// Forgets lists that were replaced before a time up to which all events have been resolved.
    pub(super) fn forget(&mut self, before: Timestamp) {
        let AnnouncedCode {
            processes,
            with_past,
            past_pieces,
        } = self;
        with_past.retain(|pid| {
            let Some(lists) = processes.get_mut(pid) else {
                return false;
            };
            while lists.past.front().is_some_and(|past| past.until < before) {
                *past_pieces -= lists.forget_oldest();
            }
            if !lists.past.is_empty() {
                return true;
            }
            if lists.now.is_empty() {
                processes.remove(pid);
            }
            false
        });
    }

    /// Whether lists that were replaced are still kept.
    #[cfg(test)]
    pub(super) fn has_past(&self) -> bool {
        !self.with_past.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::code::CodeFile;
    use super::*;
    use crate::mapping::CodeModule;
    use crate::mapping::tests::{module, range};

    const PID: Pid = Pid(1);

    /// A module of a file with code.
    fn file(path: &str) -> Arc<CodeModule> {
        let mut file = module(path);
        if let Some(file) = Arc::get_mut(&mut file) {
            file.code = Some(CodeFile::new(path));
        }
        file
    }

    fn mapped(ranges: &[(u64, u64, &Arc<CodeModule>)]) -> Mappings {
        let mut mappings = Mappings::default();
        for (start, end, module) in ranges {
            mappings.insert(range(*start, *end, 0, module));
        }
        mappings
    }

    fn tell(announced: &mut AnnouncedCode, mappings: &Mappings, since: u64, until: u64) {
        let code: Vec<Code> = mappings.ranges().iter().filter_map(Code::of).collect();
        announced.note(PID, &code, Timestamp(since), Timestamp(until));
    }

    fn wrong(
        announced: &mut AnnouncedCode,
        at: u64,
        real: &Mappings,
        addresses: &[u64],
    ) -> Option<usize> {
        announced.first_wrong(PID, Timestamp(at), real, addresses.iter().copied())
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn a_walk_by_an_earlier_list_goes_wrong_where_it_differs() {
        let (program, first, second) = (file("program"), file("first"), file("second"));
        let before = mapped(&[(0x1000, 0x2000, &program), (0x8000, 0x9000, &first)]);
        let after = mapped(&[(0x1000, 0x2000, &program), (0x8000, 0x8800, &second)]);
        let mut announced = AnnouncedCode::default();
        tell(&mut announced, &before, 10 * MS, 11 * MS);
        tell(&mut announced, &after, 50 * MS, 51 * MS);
        let stack = [0x1100, 0x8100, 0x1200];
        // Before the exchange, between it and the new list, and behind that.
        assert_eq!(wrong(&mut announced, 20 * MS, &before, &stack), None);
        assert_eq!(wrong(&mut announced, 40 * MS, &after, &stack), Some(1));
        assert_eq!(wrong(&mut announced, 50 * MS, &after, &stack), Some(1));
        assert_eq!(wrong(&mut announced, 52 * MS, &after, &stack), None);
        // A walk that begins a moment before a list comes into force may go by it.
        assert_eq!(wrong(&mut announced, 50 * MS - 1, &before, &stack), Some(1));
        // What did not change is trusted all the time, and what is known to be gone is not.
        assert_eq!(
            wrong(&mut announced, 40 * MS, &after, &[0x1100, 0x1200]),
            None
        );
        assert_eq!(
            wrong(&mut announced, 40 * MS, &after, &[0x1100, 0x8900]),
            Some(1)
        );
        // Another process.
        let other = announced.first_wrong(Pid(2), Timestamp(40 * MS), &after, stack.into_iter());
        assert_eq!(other, None);
    }

    #[test]
    fn where_the_list_had_nothing_the_walk_has_ended_by_itself() {
        let (program, library) = (file("program"), file("library"));
        let before = mapped(&[(0x1000, 0x2000, &program)]);
        let after = mapped(&[(0x1000, 0x2000, &program), (0x8000, 0x9000, &library)]);
        let mut announced = AnnouncedCode::default();
        tell(&mut announced, &before, 10 * MS, 11 * MS);
        tell(&mut announced, &after, 50 * MS, 51 * MS);
        assert_eq!(
            wrong(&mut announced, 40 * MS, &after, &[0x1100, 0x8100]),
            None
        );
    }

    #[test]
    fn the_same_file_elsewhere_is_something_else_and_run_time_code_is_not() {
        let mut code = module("[jit]");
        if let Some(code) = Arc::get_mut(&mut code) {
            code.kind = profiler_model::ModuleKind::Jit;
        }
        let library = file("library");
        let mut before = mapped(&[(0x8000, 0x9000, &library)]);
        before.insert(range(0x10000, 0x20000, 0x10000, &code));
        let mut after = mapped(&[(0x8000, 0x9000, &library)]);
        after.insert(range(0x8800, 0x9000, 0, &library));
        after.insert(range(0x12000, 0x14000, 0, &code));
        let mut announced = AnnouncedCode::default();
        tell(&mut announced, &before, 10 * MS, 11 * MS);
        assert_eq!(wrong(&mut announced, 20 * MS, &after, &[0x8100]), None);
        assert_eq!(wrong(&mut announced, 20 * MS, &after, &[0x8900]), Some(0));
        assert_eq!(wrong(&mut announced, 20 * MS, &after, &[0x13000]), None);
    }

    #[test]
    fn several_lists_back_each_is_known_as_it_was() {
        let files: Vec<_> = (0..4).map(|number| file(&number.to_string())).collect();
        let lists: Vec<_> = files
            .iter()
            .map(|file| mapped(&[(0x1000, 0x2000, file)]))
            .collect();
        let mut announced = AnnouncedCode::default();
        for (number, list) in (1..).zip(&lists) {
            tell(&mut announced, list, number * 10 * MS, number * 10 * MS + 1);
        }
        for (number, list) in (1..).zip(&lists) {
            let at = number * 10 * MS + 5 * MS;
            assert_eq!(wrong(&mut announced, at, list, &[0x1100]), None);
            let other = &lists[number as usize % 4];
            assert_eq!(wrong(&mut announced, at, other, &[0x1100]), Some(0));
        }
    }

    #[test]
    fn what_is_forgotten_is_not_trusted() {
        let (first, second) = (file("first"), file("second"));
        let (before, after) = (
            mapped(&[(0x1000, 0x2000, &first)]),
            mapped(&[(0x1000, 0x2000, &second)]),
        );
        let mut announced = AnnouncedCode::default();
        tell(&mut announced, &before, 10 * MS, 11 * MS);
        tell(&mut announced, &after, 50 * MS, 51 * MS);
        assert_eq!((announced.past_pieces, announced.with_past.len()), (1, 1));
        announced.forget(Timestamp(51 * MS));
        assert_eq!(wrong(&mut announced, 20 * MS, &before, &[0x1100]), None);
        announced.forget(Timestamp(52 * MS));
        assert_eq!((announced.past_pieces, announced.with_past.len()), (0, 0));
        assert_eq!(wrong(&mut announced, 20 * MS, &before, &[0x1100]), Some(0));
        assert_eq!(wrong(&mut announced, 60 * MS, &after, &[0x1100]), None);
        // A process that has ended.
        announced.note(PID, &[], Timestamp(70 * MS), Timestamp(71 * MS));
        announced.forget(Timestamp(72 * MS));
        assert!(announced.processes.is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let files = [file("first"), file("second")];
        let mut announced = AnnouncedCode::default();
        for round in 0..300 {
            let file = &files[round as usize % 2];
            let ranges: Vec<_> = (0..1000)
                .map(|index| (index * 0x2000, index * 0x2000 + 0x1000, file))
                .collect();
            tell(&mut announced, &mapped(&ranges), round * MS, round * MS + 1);
            assert!(announced.past_pieces <= MAX_PAST_PIECES);
        }
        let kept: usize = announced.processes[&PID]
            .past
            .iter()
            .map(|past| past.was.len())
            .sum();
        assert_eq!(kept, announced.past_pieces);
        assert_eq!(
            wrong(
                &mut announced,
                MS,
                &mapped(&[(0, 0x1000, &files[1])]),
                &[0x100]
            ),
            Some(0)
        );
    }
}
