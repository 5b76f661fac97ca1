//! What threads were called when.
//!
//! Changes of names ([`Named`]), in any order -> the name of a thread, and of its process, at a time. Times are
//! CLOCK_MONOTONIC. A process is called as its main thread is: what it execs gives both a name.
//!
//! What does not belong here: the name that a thread has last (its [`super::Thread`]).

use rustc_hash::FxHashMap;

use super::id::*;

/// From when on a thread had a name. There are none of a thread that never had another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The thread.
    pub thread: ThreadId,
    /// When it got the name.
    pub from: Timestamp,
    /// The name.
    pub name: StringId,
}

/// Names at a time, each only if there have been several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamesThen {
    /// Of the thread.
    pub thread: Option<StringId>,
    /// Of its process.
    pub process: Option<StringId>,
}

/// Names of threads that have had several, by the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Renames(FxHashMap<ThreadId, Vec<(Timestamp, StringId)>>);

impl Renames {
    /// Whether no thread had several.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one; the last one that is told of a time counts.
    pub(super) fn add(&mut self, named: Named) {
        let names = self.0.entry(named.thread).or_default();
        let index = names.partition_point(|(from, _)| *from < named.from);
        match names.get_mut(index) {
            Some((from, name)) if *from == named.from => *name = named.name,
            _ => names.insert(index, (named.from, named.name)),
        }
    }

    /// The name of a thread at a time; what came first holds before, too.
    pub(super) fn at(&self, thread: ThreadId, at: Timestamp) -> Option<StringId> {
        let names = self.0.get(&thread)?;
        let behind = names.partition_point(|(from, _)| *from <= at);
        names.get(behind.saturating_sub(1)).map(|(_, name)| *name)
    }

    /// All that are known of a thread.
    pub(super) fn of(&self, thread: ThreadId) -> impl Iterator<Item = Named> + '_ {
        let names = self.0.get(&thread).into_iter().flatten();
        names.map(move |&(from, name)| Named { thread, from, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_until_the_next() {
        let thread = ThreadId::from_index(3);
        let name = |index| StringId::from_index(index);
        let mut renames = Renames::default();
        assert!(renames.is_empty() && renames.at(thread, Timestamp(5)).is_none());
        for (from, index) in [(30, 2), (10, 0), (20, 1), (20, 4)] {
            renames.add(Named {
                thread,
                from: Timestamp(from),
                name: name(index),
            });
        }
        let at = [5, 10, 19, 20, 29, 30, 1000].map(|at| renames.at(thread, Timestamp(at)));
        assert_eq!(at, [0, 0, 0, 4, 4, 2, 2].map(|index| Some(name(index))));
        assert_eq!(renames.of(thread).count(), 3);
        assert_eq!(renames.at(ThreadId::from_index(0), Timestamp(10)), None);
    }
}
