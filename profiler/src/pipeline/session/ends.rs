//! Why the user stacks of a session's samples ended. What does not belong here: what people are told.

use std::collections::BTreeMap;

use profiler_model::{Sample, StackEnd};

/// Samples by the end of their user stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackEnds(BTreeMap<StackEnd, u64>);

impl StackEnds {
    /// Counts a sample, if it has a user stack, or would but for its process's end.
    pub(super) fn count(&mut self, sample: &Sample) {
        if sample.user.is_some() || sample.user_end == StackEnd::Gone {
            *self.0.entry(sample.user_end).or_default() += 1;
        }
    }

    /// Samples with a user stack that could be found.
    pub fn total(&self) -> u64 {
        self.0.values().sum::<u64>() - self.gone()
    }

    /// Besides: those of processes that were ending or replacing their program.
    pub fn gone(&self) -> u64 {
        self.0.get(&StackEnd::Gone).copied().unwrap_or(0)
    }

    /// Of these, with one that reaches the outermost function.
    pub fn whole(&self) -> u64 {
        self.0.get(&StackEnd::Complete).copied().unwrap_or(0)
    }

    /// Those that end sooner, by the reason, the most frequent first.
    pub fn cut(&self) -> Vec<(StackEnd, u64)> {
        let ends = self.0.iter().map(|(end, count)| (*end, *count));
        let whole = [StackEnd::Complete, StackEnd::Gone];
        let mut cut: Vec<_> = ends.filter(|(end, _)| !whole.contains(end)).collect();
        cut.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        cut
    }
}

impl FromIterator<(StackEnd, u64)> for StackEnds {
    fn from_iter<T: IntoIterator<Item = (StackEnd, u64)>>(ends: T) -> StackEnds {
        StackEnds(ends.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_reason_comes_first() {
        let ends = [
            (StackEnd::Complete, 5),
            (StackEnd::Jit, 1),
            (StackEnd::NoTable, 3),
            (StackEnd::Gone, 7),
        ];
        let ends = StackEnds(ends.into());
        assert_eq!((ends.total(), ends.whole(), ends.gone()), (9, 5, 7));
        assert_eq!(ends.cut(), [(StackEnd::NoTable, 3), (StackEnd::Jit, 1)]);
    }
}
