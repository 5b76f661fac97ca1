//! The last seconds, in slices: sums of samples, waits and calls, of which the oldest go.
//!
//! Samples and calls -> sums of the slice that they come in; a time that was waited -> its parts in all slices that it
//! overlaps. Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here: which time was waited
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
    /// The one that samples and calls go into.
    pub(super) current: Slice,
}

impl Window {
    /// Of so long, with nothing in it yet.
    pub(super) fn new(window_ns: u64, from: u64) -> Window {
        Window {
            window_ns,
            length: (window_ns / SLICES).max(1),
            slices: VecDeque::new(),
            current: Slice {
                from,
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
        let new = now.saturating_sub(self.current.from) / self.length;
        // Of those that would be too old at once, none is made.
        let skipped = new.saturating_sub(SLICES + 1);
        let mut steps = skipped + 1;
        for _ in skipped..new {
            let next = Slice {
                from: self.current.from + self.length * std::mem::replace(&mut steps, 1),
                ..Slice::default()
            };
            let mut full = std::mem::replace(&mut self.current, next);
            full.calls = calls();
            self.slices.push_back(full);
        }
        let oldest = now.saturating_sub(self.window_ns);
        let length = self.length;
        let is_old = |slice: &mut Slice| slice.from.saturating_add(length) <= oldest;
        while self.slices.pop_front_if(is_old).is_some() {}
    }

    /// Since when all is in it.
    pub(super) fn from(&self) -> u64 {
        self.slices
            .front()
            .map_or(self.current.from, |slice| slice.from)
    }

    /// The slices, oldest first.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().chain([&self.current])
    }

    /// So many threads waited at a place in this time: each slice has the part that lies in it.
    pub(super) fn waited(&mut self, place: Place, (from, to): (u64, u64), threads: u64) {
        let length = self.length;
        let full = self.slices.iter_mut();
        let ends = full.map(|slice| (slice.from.saturating_add(length), slice));
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
        let length = self.length;
        let mut full = self.slices.iter_mut();
        let lies_in =
            |slice: &&mut Slice| (slice.from..slice.from.saturating_add(length)).contains(&at);
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
        window.slices().map(sums).sum()
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
        let parts: Vec<u64> = window.slices().map(|slice| slice.waited_ns).collect();
        assert_eq!(parts, [30, 30, 15, 0]);
        window.advance(1_125, FxHashMap::default);
        assert_eq!((window.from(), waited(&window)), (1_020, 15));
    }

    #[test]
    fn a_long_time_without_anything_leaves_slices_for_what_was_waited() {
        let mut window = window();
        window.advance(1_000_007, FxHashMap::default);
        assert!(window.slices().count() as u64 <= SLICES + 2);
        assert_eq!(window.from(), 999_900);
        window.waited(Place::NoStack, (0, 1_000_007), 1);
        assert_eq!(waited(&window), 107);
        // Time does not go back.
        window.advance(5, FxHashMap::default);
        assert_eq!(waited(&window), 107);
    }

    #[test]
    fn an_end_counts_where_it_was() {
        let mut window = window();
        window.advance(1_035, FxHashMap::default);
        for at in [999, 1_000, 1_009, 1_010, 1_034, 1_099] {
            window.ended(at, 2);
        }
        let ends: Vec<u64> = window.slices().map(|slice| slice.waits).collect();
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
