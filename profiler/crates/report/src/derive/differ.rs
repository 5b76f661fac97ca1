//! Calls inferred from stack samples: what was entered and left between two samples of a thread.
//!
//! Input: paths of functions, outermost first, at times that grow for each thread; output: changes
//! that nest strictly and lead from each path to the next. What two samples have in common from the
//! root on is taken to have stayed open in between; a function that was left and entered again
//! between them is not seen. Changes have the time of the sample that shows them.
//!
//! What functions and threads are is the caller's affair: anything that can be compared.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use profiler_model::Timestamp;

/// Most threads with open calls; samples of further ones are left out.
const MAX_THREADS: usize = 1 << 16;

/// Most functions of a path; inner ones are left out.
const MAX_DEPTH: usize = 1 << 12;

/// A difference between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallChange<F> {
    /// A function was entered, in what was open.
    Entered {
        /// The function.
        function: F,
        /// When that was seen.
        at: Timestamp,
    },
    /// The innermost open function was left.
    Left {
        /// The function.
        function: F,
        /// When its entry was seen.
        began: Timestamp,
        /// When its end was seen.
        at: Timestamp,
    },
}

/// The last path of each thread.
#[derive(Clone, Debug)]
pub struct CallDiffer<T, F> {
    open: FxHashMap<T, Vec<(F, Timestamp)>>,
}

impl<T, F> Default for CallDiffer<T, F> {
    fn default() -> Self {
        CallDiffer {
            open: FxHashMap::default(),
        }
    }
}

impl<T: Copy + Eq + Hash, F: Copy + Eq> CallDiffer<T, F> {
    /// Takes a sample: the functions that are open, outermost first. False if there is no room for
    /// one more thread.
    pub fn sample(
        &mut self,
        thread: T,
        at: Timestamp,
        path: &[F],
        mut change: impl FnMut(CallChange<F>),
    ) -> bool {
        if self.open.len() >= MAX_THREADS && !self.open.contains_key(&thread) {
            return false;
        }
        let path = &path[..path.len().min(MAX_DEPTH)];
        let open = self.open.entry(thread).or_default();
        let common = open
            .iter()
            .zip(path)
            .take_while(|((open, _), function)| open == *function)
            .count();
        close(open, common, at, &mut change);
        for &function in &path[common..] {
            open.push((function, at));
            change(CallChange::Entered { function, at });
        }
        true
    }

    /// Ends a thread: all that is open is left.
    pub fn end(&mut self, thread: T, at: Timestamp, mut change: impl FnMut(CallChange<F>)) {
        if let Some(mut open) = self.open.remove(&thread) {
            close(&mut open, 0, at, &mut change);
        }
    }

    /// Forgets all that is open: the next sample of each thread is as its first.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// What is open on a thread, outermost first.
    pub fn open(&self, thread: T) -> impl Iterator<Item = F> + '_ {
        let open = self.open.get(&thread).into_iter().flatten();
        open.map(|&(function, _)| function)
    }
}

/// Leaves what is above the outermost `kept`, innermost first.
fn close<F: Copy>(
    open: &mut Vec<(F, Timestamp)>,
    kept: usize,
    at: Timestamp,
    change: &mut impl FnMut(CallChange<F>),
) {
    for (function, began) in open.drain(kept..).rev() {
        change(CallChange::Left {
            function,
            began,
            at,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entered(function: char, at: u64) -> CallChange<char> {
        let at = Timestamp(at);
        CallChange::Entered { function, at }
    }

    fn left(function: char, began: u64, at: u64) -> CallChange<char> {
        let (began, at) = (Timestamp(began), Timestamp(at));
        CallChange::Left {
            function,
            began,
            at,
        }
    }

    #[test]
    fn what_two_samples_share_stays_open() {
        let mut differ = CallDiffer::default();
        let mut changes = |thread: u8, at, path: &str| {
            let path: Vec<char> = path.chars().collect();
            let mut changes = Vec::new();
            assert!(differ.sample(thread, Timestamp(at), &path, |change| changes.push(change)));
            changes
        };
        let first = [entered('a', 1), entered('b', 1), entered('c', 1)];
        assert_eq!(changes(0, 1, "abc"), first);
        assert_eq!(changes(1, 2, "a"), [entered('a', 2)]);
        assert_eq!(changes(0, 3, "abc"), []);
        let turned = [
            left('c', 1, 4),
            left('b', 1, 4),
            entered('d', 4),
            entered('c', 4),
        ];
        assert_eq!(changes(0, 4, "adc"), turned);
        assert_eq!(changes(0, 5, "add"), [left('c', 4, 5), entered('d', 5)]);
        let mut ends = Vec::new();
        differ.end(0, Timestamp(6), |change| ends.push(change));
        assert_eq!(ends, [left('d', 5, 6), left('d', 4, 6), left('a', 1, 6)]);
        assert_eq!(differ.open(0).count(), 0);
        assert_eq!(differ.open(1).collect::<String>(), "a");
    }

    #[test]
    fn is_bounded() {
        let mut differ = CallDiffer::default();
        for thread in 0..MAX_THREADS {
            assert!(differ.sample(thread, Timestamp(0), &[0], |_| ()));
        }
        assert!(!differ.sample(MAX_THREADS, Timestamp(0), &[0], |_| ()));
        let mut entries = 0;
        assert!(
            differ.sample(0, Timestamp(1), &vec![1; MAX_DEPTH + 5], |change| {
                entries += usize::from(matches!(change, CallChange::Entered { .. }));
            })
        );
        assert_eq!(entries, MAX_DEPTH);
        assert_eq!(differ.open(0).count(), MAX_DEPTH);
    }

    proptest! {
        /// Carrying out the changes gives each sample's stack; at the end of the threads nothing is
        /// open.
        #[test]
        fn changes_lead_from_each_stack_to_the_next(
            samples in prop::collection::vec((0u8..3, prop::collection::vec(0u8..4, 0..8)), 0..60)
        ) {
            let mut differ = CallDiffer::default();
            let mut stacks = vec![Vec::new(); 3];
            let apply = |stack: &mut Vec<(u8, Timestamp)>, change, now| match change {
                CallChange::Entered { function, at } => {
                    assert_eq!(at, now);
                    stack.push((function, at));
                }
                CallChange::Left { function, began, at } => {
                    assert_eq!(at, now);
                    assert_eq!(stack.pop(), Some((function, began)));
                }
            };
            for (index, (thread, path)) in samples.iter().enumerate() {
                let now = Timestamp(index as u64);
                let stack = &mut stacks[usize::from(*thread)];
                let before: Vec<u8> = stack.iter().map(|&(function, _)| function).collect();
                let mut changes = 0;
                let taken = differ.sample(*thread, now, path, |change| {
                    changes += 1;
                    apply(stack, change, now);
                });
                prop_assert!(taken);
                let functions: Vec<u8> = stack.iter().map(|&(function, _)| function).collect();
                prop_assert_eq!(&functions, path);
                let common = before.iter().zip(path).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(changes, before.len() + path.len() - 2 * common);
            }
            let end = Timestamp(1000);
            for (thread, stack) in stacks.iter_mut().enumerate() {
                differ.end(thread as u8, end, |change| apply(stack, change, end));
                prop_assert!(stack.is_empty());
            }
        }
    }
}
