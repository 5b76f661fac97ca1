//! Which words of the segments are in use.
//!
//! A number of words -> a [`Span`] of them within one segment: the first hole that is large enough,
//! from the beginning. Holes that touch become one. No memory is touched here.

use std::collections::BTreeMap;

use profiler_common::unwind::Span;

/// Holes of all segments.
#[derive(Debug, Default)]
pub(super) struct Spans {
    segments: Vec<Holes>,
}

#[derive(Debug)]
struct Holes {
    /// Length by first word.
    holes: BTreeMap<u32, u32>,
    /// No hole is longer.
    longest: u32,
}

impl Spans {
    /// Adds a segment of so many words, all of them free.
    pub(super) fn add_segment(&mut self, words: u32) {
        self.segments.push(Holes {
            holes: BTreeMap::from([(0, words)]),
            longest: words,
        });
    }

    /// How many segments there are.
    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Takes `len` words (at least 1).
    pub(super) fn take(&mut self, len: u32) -> Option<Span> {
        let len = len.max(1);
        for (segment, holes) in (0..).zip(&mut self.segments) {
            if holes.longest < len {
                continue;
            }
            if let Some(first) = holes.take(len) {
                return Some(Span {
                    segment,
                    first,
                    len,
                });
            }
        }
        None
    }

    /// Gives words back that were taken.
    pub(super) fn give_back(&mut self, span: Span) {
        if let Some(holes) = self.segments.get_mut(span.segment as usize) {
            holes.add(span.first, span.len);
        }
    }

    /// How many words are free.
    #[cfg(test)]
    pub(super) fn free_words(&self) -> u64 {
        let holes = self.segments.iter().flat_map(|holes| holes.holes.values());
        holes.map(|len| u64::from(*len)).sum()
    }
}

impl Holes {
    fn take(&mut self, len: u32) -> Option<u32> {
        let mut longest = 0;
        for (&first, &hole) in &self.holes {
            if hole >= len {
                self.holes.remove(&first);
                if hole > len {
                    self.holes.insert(first + len, hole - len);
                }
                return Some(first);
            }
            longest = longest.max(hole);
        }
        self.longest = longest;
        None
    }

    fn add(&mut self, first: u32, len: u32) {
        let (mut first, mut len) = (first, len);
        if let Some((&before, &hole)) = self.holes.range(..first).next_back()
            && before + hole == first
        {
            self.holes.remove(&before);
            first = before;
            len += hole;
        }
        if let Some(hole) = self.holes.remove(&(first + len)) {
            len += hole;
        }
        self.holes.insert(first, len);
        self.longest = self.longest.max(len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORDS: u32 = 1000;

    proptest! {
        #[test]
        fn spans_do_not_overlap_and_all_words_come_back(
            steps in prop::collection::vec((any::<bool>(), 1_u32..400, any::<usize>()), 1..200),
            segments in 1_usize..4,
        ) {
            let mut spans = Spans::default();
            for _ in 0..segments {
                spans.add_segment(WORDS);
            }
            let mut used: Vec<Vec<bool>> = vec![vec![false; WORDS as usize]; segments];
            let mut taken: Vec<Span> = Vec::new();
            for (takes, len, which) in steps {
                if takes || taken.is_empty() {
                    let fits = used.iter().any(|words| {
                        words.split(|used| *used).any(|hole| hole.len() >= len as usize)
                    });
                    let span = spans.take(len);
                    prop_assert_eq!(span.is_some(), fits);
                    let Some(span) = span else { continue };
                    prop_assert_eq!(span.len, len);
                    for at in span.first..span.first + len {
                        let word = &mut used[span.segment as usize][at as usize];
                        prop_assert!(!*word, "taken twice");
                        *word = true;
                    }
                    taken.push(span);
                } else {
                    let span = taken.swap_remove(which % taken.len());
                    for at in span.first..span.first + span.len {
                        used[span.segment as usize][at as usize] = false;
                    }
                    spans.give_back(span);
                }
                let free = used.iter().flatten().filter(|used| !**used).count();
                prop_assert_eq!(spans.free_words(), free as u64);
            }
            for span in taken {
                spans.give_back(span);
            }
            for _ in 0..segments {
                prop_assert!(spans.take(WORDS).is_some(), "holes that touch are one");
            }
            prop_assert_eq!(spans.take(1), None);
        }
    }
}
