//! Sorting rows in code that all types of rows share.
//!
//! Rows and how to compare them -> the rows in order. The library's own sort is compiled anew for each type and each comparison,
//! some eight kilobytes each time (docs/building.md). Here only indices are sorted, by one function. What does not belong here:
//! what is sorted per sample, call or symbol, where a call for each comparison would be felt.

use std::cmp::Ordering;

/// What can be put in order with little code. Each keeps the order of equals.
pub trait InOrder<T> {
    /// Sorts as [`slice::sort_by`] does.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Sorts as [`slice::sort_by_key`] does.
    fn order_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> InOrder<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let sorted = sorted(self.len(), &mut |one, other| {
            compare(&self[one], &self[other])
        });
        arrange(self, sorted);
    }

    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }
}

/// The numbers below `len` in the order of what they stand for.
fn sorted(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut all: Vec<usize> = (0..len).collect();
    all.sort_by(|&one, &other| compare(one, other));
    all
}

/// Puts at each place what was at the place that `from` has there: each place once.
fn arrange<T>(all: &mut [T], mut from: Vec<usize>) {
    for start in 0..all.len() {
        let mut at = start;
        // A place that is right says its own number.
        loop {
            let next = std::mem::replace(&mut from[at], at);
            if next == start {
                break;
            }
            all.swap(at, next);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_sorted_as_the_library_does(rows in prop::collection::vec((0_u8..20, any::<u8>()), 0..200)) {
            let (mut ours, mut theirs) = (rows.clone(), rows);
            ours.order_by_key(|row| row.0);
            theirs.sort_by_key(|row| row.0);
            prop_assert_eq!(&ours, &theirs);
            ours.order_by(|one, other| other.cmp(one));
            theirs.sort_by(|one, other| other.cmp(one));
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn what_owns_something_is_moved_and_not_copied() {
        let mut words = ["of", "a", "few", "words"].map(str::to_owned);
        words.order_by_key(|word| std::cmp::Reverse(word.len()));
        assert_eq!(words, ["words", "few", "of", "a"]);
        let mut nothing: [String; 0] = [];
        nothing.order_by(Ord::cmp);
    }
}
