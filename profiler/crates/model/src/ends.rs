//! How many stacks ended how: the one tally of all who count them.
//!
//! Samples, or the ends of their stacks -> counts by [`StackEnd`]. What does not belong here: in which code they
//! ended (`derive`), and what people are told.

use super::event::StackEnd;

/// Stacks, or samples, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackEnds([u64; StackEnd::ALL.len()]);

impl StackEnds {
    /// Counts one more.
    pub fn count(&mut self, end: StackEnd) {
        self.add(end, 1);
    }

    /// Counts so many more.
    pub fn add(&mut self, end: StackEnd, count: u64) {
        if let Some(sum) = self.0.get_mut(index(end)) {
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds what another one counted.
    pub fn add_all(&mut self, other: &StackEnds) {
        other.iter().for_each(|(end, count)| self.add(end, count));
    }

    /// How many ended so.
    pub fn of(&self, end: StackEnd) -> u64 {
        self.0.get(index(end)).copied().unwrap_or(0)
    }

    /// Those that there are, in the order of [`StackEnd`].
    pub fn iter(&self) -> impl Iterator<Item = (StackEnd, u64)> {
        let ends = StackEnd::ALL.iter().map(|&end| (end, self.of(end)));
        ends.filter(|(_, count)| *count > 0)
    }

    /// Those of which it is known: neither without a stack, nor of a process that was ending, nor imported from
    /// where it isn't said.
    pub fn total(&self) -> u64 {
        let there = (self.iter()).filter(|(end, _)| end.is_of_a_stack());
        let there = there.filter(|(end, _)| *end != StackEnd::NotSaid);
        there.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// Of these: found up to the outermost function.
    pub fn whole(&self) -> u64 {
        self.of(StackEnd::Complete)
    }

    /// Besides: those of processes that were ending or replacing their program.
    pub fn gone(&self) -> u64 {
        self.of(StackEnd::Gone)
    }

    /// Besides: those that were imported from where it isn't said.
    pub fn not_said(&self) -> u64 {
        self.of(StackEnd::NotSaid)
    }

    /// Those that end sooner, by the reason, the most frequent first.
    pub fn cut(&self) -> Vec<(StackEnd, u64)> {
        let mut cut: Vec<_> = self.iter().filter(|(end, _)| end.is_cut()).collect();
        cut.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        cut
    }
}

impl FromIterator<(StackEnd, u64)> for StackEnds {
    fn from_iter<T: IntoIterator<Item = (StackEnd, u64)>>(ends: T) -> StackEnds {
        let mut tally = StackEnds::default();
        ends.into_iter()
            .for_each(|(end, count)| tally.add(end, count));
        tally
    }
}

/// Numbers of ends are dense, but for that of what is not known.
fn index(end: StackEnd) -> usize {
    match end {
        StackEnd::Unknown => StackEnd::ALL.len() - 1,
        known => known as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_a_place() {
        for (place, &end) in StackEnd::ALL.iter().enumerate() {
            assert_eq!(index(end), place);
            let mut one = StackEnds::default();
            one.count(end);
            assert_eq!(one.iter().collect::<Vec<_>>(), [(end, 1)]);
        }
    }

    #[test]
    fn the_most_frequent_reason_comes_first() {
        let ends = [
            (StackEnd::Complete, 5),
            (StackEnd::Jit, 1),
            (StackEnd::NoTable, 3),
            (StackEnd::NoStack, 2),
            (StackEnd::Gone, 7),
            (StackEnd::NotSaid, 4),
            (StackEnd::LeafOnly, 1),
        ];
        let ends: StackEnds = ends.into_iter().collect();
        assert_eq!((ends.total(), ends.whole()), (10, 5));
        assert_eq!((ends.gone(), ends.not_said()), (7, 4));
        let cut = [
            (StackEnd::NoTable, 3),
            (StackEnd::Jit, 1),
            (StackEnd::LeafOnly, 1),
        ];
        assert_eq!(ends.cut(), cut);
        let mut twice = ends;
        twice.add_all(&ends);
        assert_eq!(twice.of(StackEnd::NoTable), 6);
    }
}
