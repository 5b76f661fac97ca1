//! The last seconds, in slices: sums of samples, waits and calls, of which the oldest go.
//!
//! Samples and calls -> sums of the slice that they come in; a time that was waited -> its parts in all slices that it
//! overlaps. A slice may be cut in two where a frame looks at it, until that is done. Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here: which time was waited
//! (`waiting`), what is shown of it (`super`).

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::place::Place;
use crate::derive::FunctionCalls;
use profiler_model::FunctionId;

/// A window is made of so many slices; the oldest goes when all of it is too old.
const SLICES: u64 = 10;
/// Places that are told apart in one slice.
const MAX_PLACES: usize = 1 << 14;

/// Samples and waits at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Samples that were taken there.
    pub(super) own: u64,
    /// Samples with it in their stack.
    pub(super) total: u64,
    /// Time that samples of its own stand for, where they stand for time.
    pub(super) own_ns: u64,
    /// Time that was waited in it.
    pub(super) waited_ns: u64,
    /// Threads that wait in it now.
    pub(super) waiting: u64,
}

impl Sums {
    /// What comes first: where there are waits, where the time went; else what has most samples.
    pub(super) fn order(&self, has_waits: bool) -> (u64, u64, u64) {
        match has_waits {
            true => (
                self.own_ns.saturating_add(self.waited_ns),
                self.own,
                self.total,
            ),
            false => (self.own, self.total, 0),
        }
    }

    pub(super) fn add(&mut self, more: &Sums) {
        self.own += more.own;
        self.total += more.total;
        self.own_ns = self.own_ns.saturating_add(more.own_ns);
        self.waited_ns = self.waited_ns.saturating_add(more.waited_ns);
        self.waiting += more.waiting;
    }
}

/// What was in a part of the window.
#[derive(Debug, Default)]
pub(super) struct Slice {
    from: u64,
    /// Where it ends, or will.
    to: u64,
    /// The next one is the rest of it.
    is_part: bool,
    pub(super) calls: FxHashMap<FunctionId, FunctionCalls>,
    pub(super) places: FxHashMap<Place, Sums>,
    pub(super) samples: u64,
    /// Waits that ended in it.
    pub(super) waits: u64,
    pub(super) waited_ns: u64,
    pub(super) lost: u64,
    pub(super) lost_calls: u64,
}

impl Slice {
    /// The place, or all others if there is no room for one more.
    pub(super) fn known(&self, place: Place) -> Place {
        match self.places.len() < MAX_PLACES || self.places.contains_key(&place) {
            true => place,
            false => Place::Others,
        }
    }

    /// What came right behind it becomes a part of it.
    fn append(&mut self, next: Slice) {
        (self.to, self.is_part) = (next.to, next.is_part);
        for (id, more) in &next.calls {
            self.calls.entry(*id).or_default().merge(more);
        }
        for (&place, more) in &next.places {
            self.at(place).add(more);
        }
        self.samples += next.samples;
        self.waits = self.waits.saturating_add(next.waits);
        self.waited_ns = self.waited_ns.saturating_add(next.waited_ns);
        self.lost += next.lost;
        self.lost_calls += next.lost_calls;
    }

    /// The sums of a place, or of all others.
    pub(super) fn at(&mut self, place: Place) -> &mut Sums {
        self.places.entry(self.known(place)).or_default()
    }
}

/// The slices.
#[derive(Debug)]
pub(super) struct Window {
    window_ns: u64,
    /// Of each slice.
    length: u64,
    slices: VecDeque<Slice>,
    /// Where a frame looks at a part of a slice.
    cut_at: Option<u64>,
    /// The one that samples and calls go into.
    pub(super) current: Slice,
}

impl Window {
    /// Of so long, with nothing in it yet.
    pub(super) fn new(window_ns: u64, from: u64) -> Window {
        let length = (window_ns / SLICES).max(1);
        Window {
            window_ns,
            length,
            slices: VecDeque::new(),
            cut_at: None,
            current: Slice {
                from,
                to: from.saturating_add(length),
                ..Slice::default()
            },
        }
    }

    /// Begins new slices, so that `now` is in the last one, and drops those that are too old. Who has the calls of the
    /// one that ends is asked for them.
    pub(super) fn advance(
        &mut self,
        now: u64,
        mut calls: impl FnMut() -> FxHashMap<FunctionId, FunctionCalls>,
    ) {
        let begun = now.saturating_add(self.length);
        let new = begun.saturating_sub(self.current.to) / self.length;
        // Of those that would be too old at once, none is made.
        let skipped = new.saturating_sub(SLICES + 1);
        let mut gap = self.length * skipped;
        for _ in skipped..new {
            let from = self.current.to + std::mem::take(&mut gap);
            self.begin(from, from.saturating_add(self.length), &mut calls);
        }
        // What a frame looks at stays until it has.
        let oldest = self.cut_at.map_or(now, |at| now.min(at));
        let oldest = oldest.saturating_sub(self.window_ns);
        while self
            .slices
            .pop_front_if(|slice| slice.to <= oldest)
            .is_some()
        {}
    }

    fn begin(
        &mut self,
        from: u64,
        to: u64,
        calls: &mut impl FnMut() -> FxHashMap<FunctionId, FunctionCalls>,
    ) {
        let next = Slice {
            from,
            to,
            ..Slice::default()
        };
        let mut full = std::mem::replace(&mut self.current, next);
        full.calls = calls();
        self.slices.push_back(full);
        self.tidy();
    }

    /// What comes from now on is told apart from what came before, until [`Window::join`].
    pub(super) fn cut(
        &mut self,
        at: u64,
        mut calls: impl FnMut() -> FxHashMap<FunctionId, FunctionCalls>,
    ) {
        self.advance(at, &mut calls);
        if at > self.current.from {
            let to = std::mem::replace(&mut self.current.to, at);
            self.current.is_part = true;
            self.cut_at = Some(at);
            self.begin(at, to, &mut calls);
        }
    }

    /// No frame looks at the parts of a slice any more.
    pub(super) fn join(&mut self) {
        self.cut_at = None;
        self.tidy();
    }

    /// Makes one slice of parts that nothing looks at.
    fn tidy(&mut self) {
        let mut index = 0;
        while index + 1 < self.slices.len() {
            let is_part = |slice: &Slice| slice.is_part && self.cut_at != Some(slice.to);
            if self.slices.get(index).is_some_and(is_part)
                && let Some(next) = self.slices.remove(index + 1)
                && let Some(slice) = self.slices.get_mut(index)
            {
                slice.append(next);
            } else {
                index += 1;
            }
        }
    }

    /// Since when all is in it.
    pub(super) fn from(&self) -> u64 {
        self.slices
            .front()
            .map_or(self.current.from, |slice| slice.from)
    }

    /// The slices of what was before, oldest first.
    pub(super) fn before(&self, at: u64) -> impl Iterator<Item = &Slice> {
        let slices = self.slices.iter().chain([&self.current]);
        slices.take_while(move |slice| slice.from < at)
    }

    /// So many threads waited at a place in this time: each slice has the part that lies in it.
    pub(super) fn waited(&mut self, place: Place, (from, to): (u64, u64), threads: u64) {
        let full = self.slices.iter_mut();
        let ends = full.map(|slice| (slice.to, slice));
        for (end, slice) in ends.chain([(u64::MAX, &mut self.current)]) {
            let ns = to.min(end).saturating_sub(from.max(slice.from));
            if ns > 0 {
                let ns = ns.saturating_mul(threads);
                slice.waited_ns = slice.waited_ns.saturating_add(ns);
                let sums = slice.at(place);
                sums.waited_ns = sums.waited_ns.saturating_add(ns);
            }
        }
    }

    /// So many waits ended then.
    pub(super) fn ended(&mut self, at: u64, waits: u64) {
        let mut full = self.slices.iter_mut();
        let lies_in = |slice: &&mut Slice| (slice.from..slice.to).contains(&at);
        let slice = match full.find(lies_in) {
            Some(slice) => slice,
            None if at >= self.current.from => &mut self.current,
            // It is out of the window.
            None => return,
        };
        slice.waits = slice.waits.saturating_add(waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::EpochId;

    fn window() -> Window {
        // Slices of 10.
        Window::new(100, 1_000)
    }

    fn waited(window: &Window) -> u64 {
        let sums = |slice: &Slice| {
            let places: u64 = slice.places.values().map(|sums| sums.waited_ns).sum();
            assert_eq!(slice.waited_ns, places);
            places
        };
        window.before(u64::MAX).map(sums).sum()
    }

    #[test]
    fn where_there_are_waits_the_time_counts() {
        let runs = Sums {
            own: 5,
            total: 9,
            own_ns: 50,
            ..Sums::default()
        };
        let waits = Sums {
            own: 1,
            total: 1,
            own_ns: 10,
            waited_ns: 900,
            waiting: 1,
        };
        assert!(waits.order(true) > runs.order(true));
        assert!(waits.order(false) < runs.order(false));
    }

    #[test]
    fn a_wait_has_its_part_of_each_slice() {
        let mut window = window();
        window.advance(1_035, FxHashMap::default);
        // It began before the window did.
        window.waited(Place::NoStack, (0, 1_025), 3);
        let parts: Vec<u64> = window
            .before(u64::MAX)
            .map(|slice| slice.waited_ns)
            .collect();
        assert_eq!(parts, [30, 30, 15, 0]);
        window.advance(1_125, FxHashMap::default);
        assert_eq!((window.from(), waited(&window)), (1_020, 15));
    }

    #[test]
    fn a_long_time_without_anything_leaves_slices_for_what_was_waited() {
        let mut window = window();
        window.advance(1_000_007, FxHashMap::default);
        assert!(window.before(u64::MAX).count() as u64 <= SLICES + 2);
        assert_eq!(window.from(), 999_900);
        window.waited(Place::NoStack, (0, 1_000_007), 1);
        assert_eq!(waited(&window), 107);
        // Time does not go back.
        window.advance(5, FxHashMap::default);
        assert_eq!(waited(&window), 107);
    }

    #[test]
    fn a_frame_has_what_was_before_and_leaves_no_part() {
        let mut window = window();
        window.waited(Place::NoStack, (1_000, 1_003), 1);
        window.cut(1_003, FxHashMap::default);
        window.advance(1_109, FxHashMap::default);
        // A wait that had not ended, and was not told before it had.
        window.waited(Place::NoStack, (1_000, 1_109), 2);
        window.current.samples = 1;
        let sum = |window: &Window| -> u64 { window.before(1_003).map(|of| of.waited_ns).sum() };
        assert_eq!((sum(&window), window.from()), (3 + 6, 1_000));
        window.join();
        let ends: Vec<_> = window.before(u64::MAX).map(|slice| slice.to).collect();
        assert_eq!(ends, (1_010..=1_110).step_by(10).collect::<Vec<_>>());
        assert_eq!(waited(&window), 3 + 2 * 109);
        // Twice in a slice.
        for at in [1_112, 1_114] {
            window.cut(at, FxHashMap::default);
            window.join();
        }
        window.advance(1_120, FxHashMap::default);
        assert!(window.before(u64::MAX).all(|slice| slice.from % 10 == 0));
    }

    #[test]
    fn an_end_counts_where_it_was() {
        let mut window = window();
        window.advance(1_035, FxHashMap::default);
        for at in [999, 1_000, 1_009, 1_010, 1_034, 1_099] {
            window.ended(at, 2);
        }
        let ends: Vec<u64> = window.before(u64::MAX).map(|slice| slice.waits).collect();
        assert_eq!(ends, [4, 2, 0, 4]);
    }

    #[test]
    fn there_is_room_for_so_many_places_and_the_others() {
        let mut slice = Slice::default();
        for index in 0..2 * MAX_PLACES {
            slice.at(Place::Function(FunctionId::from_index(index))).own += 1;
        }
        assert_eq!(slice.places.len(), MAX_PLACES + 1);
        assert_eq!(slice.places[&Place::Others].own, MAX_PLACES as u64);
        slice.at(Place::Function(FunctionId::from_index(0))).own += 1;
        assert_eq!(slice.places[&Place::Others].own, MAX_PLACES as u64);
    }
}
