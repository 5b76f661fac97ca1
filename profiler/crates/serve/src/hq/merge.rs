//! Data of several connections of a run -> one stream in the order of sequence ids.
//!
//! What comes early waits, within a bound. Ids count from 0 without gap and wrap around; one that
//! is up to 2^31 behind the next is old.

use std::collections::VecDeque;

/// Places that stay when nothing waits.
const KEPT: usize = 1 << 10;

/// Bounds of what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeLimits {
    /// How far ahead of the next one.
    pub items: u32,
    /// Bytes of what waits, as far as items tell.
    pub bytes: usize,
}

impl Default for MergeLimits {
    fn default() -> MergeLimits {
        MergeLimits {
            items: 128 << 10,
            bytes: 32 << 20,
        }
    }
}

/// What becomes of an item.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer<T> {
    /// It is the next one; others may follow ([`Merger::pop`]).
    Now(T),
    /// It waits for those before it.
    Waits,
    /// It can't even wait yet: offer it again when others have come.
    Full(T),
    /// Its place was taken already.
    Duplicate,
}

/// Puts items into order.
#[derive(Debug)]
pub struct Merger<T> {
    limits: MergeLimits,
    next: u32,
    /// The item with id `next` + index.
    waiting: VecDeque<Option<(T, usize)>>,
    count: usize,
    bytes: usize,
}

impl<T> Merger<T> {
    /// Begins with id 0.
    pub fn new(limits: MergeLimits) -> Merger<T> {
        Merger {
            limits,
            next: 0,
            waiting: VecDeque::new(),
            count: 0,
            bytes: 0,
        }
    }

    /// The id that is to come next.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.waiting.capacity() * size_of::<Option<(T, usize)>>()
    }

    /// How many items wait.
    pub fn waiting(&self) -> usize {
        self.count
    }

    /// Whether the item with this id is the next one while nothing waits: then it is taken, and
    /// need not be offered.
    #[inline]
    pub fn pass(&mut self, sequence: u32) -> bool {
        let next = sequence == self.next && self.waiting.is_empty();
        if next {
            self.next = self.next.wrapping_add(1);
        }
        next
    }

    /// Takes an item that costs so many bytes while it waits.
    pub fn offer(&mut self, sequence: u32, item: T, bytes: usize) -> Offer<T> {
        let ahead = sequence.wrapping_sub(self.next);
        if ahead.cast_signed() < 0 {
            return Offer::Duplicate;
        }
        let index = ahead as usize;
        if let Some(Some(_)) = self.waiting.get(index) {
            return Offer::Duplicate;
        }
        if index == 0 {
            self.advance();
            return Offer::Now(item);
        }
        if ahead >= self.limits.items || self.bytes + bytes > self.limits.bytes {
            return Offer::Full(item);
        }
        if self.waiting.len() <= index {
            self.waiting.resize_with(index + 1, || None);
        }
        self.waiting[index] = Some((item, bytes));
        self.count += 1;
        self.bytes += bytes;
        Offer::Waits
    }

    /// The next one, if it has waited.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.count == 0 {
            return None;
        }
        let (item, bytes) = self.waiting.front_mut()?.take()?;
        self.count -= 1;
        self.bytes -= bytes;
        self.advance();
        Some(item)
    }

    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.waiting.pop_front();
        if self.count == 0 {
            self.waiting.clear();
            self.waiting.shrink_to(KEPT);
        }
    }

    /// The first id that waits.
    pub fn first_waiting(&self) -> Option<u32> {
        let index = self.waiting.iter().position(Option::is_some)?;
        Some(self.next.wrapping_add(index as u32))
    }

    /// Gives up all ids before `sequence`; how many. Those that wait must not be among them.
    pub fn skip_to(&mut self, sequence: u32) -> u32 {
        let missing = sequence.wrapping_sub(self.next);
        let known = (missing as usize).min(self.waiting.len());
        self.waiting.drain(..known);
        self.next = sequence;
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merger() -> Merger<u32> {
        Merger::new(MergeLimits {
            items: 8,
            bytes: 100,
        })
    }

    /// Offers ids as items; what comes out, in order.
    fn merged(merger: &mut Merger<u32>, ids: &[u32]) -> Vec<u32> {
        let mut out = Vec::new();
        for &id in ids {
            if merger.pass(id) {
                out.push(id);
                continue;
            }
            match merger.offer(id, id, 1) {
                Offer::Now(item) => out.push(item),
                Offer::Waits => {}
                other => panic!("{id}: {other:?}"),
            }
            out.extend(std::iter::from_fn(|| merger.pop()));
        }
        out
    }

    #[test]
    fn any_order_becomes_the_right_one() {
        // All orders of 0..6.
        let mut ids = [0, 1, 2, 3, 4, 5];
        let mut permute = vec![0; ids.len()];
        let mut at = 0;
        while at < ids.len() {
            let mut merger = merger();
            assert_eq!(merged(&mut merger, &ids), [0, 1, 2, 3, 4, 5], "{ids:?}");
            assert_eq!((merger.waiting(), merger.bytes), (0, 0));
            // Heap's algorithm.
            at = 0;
            while at < ids.len() && permute[at] >= at {
                permute[at] = 0;
                at += 1;
            }
            if at < ids.len() {
                ids.swap(if at % 2 == 0 { 0 } else { permute[at] }, at);
                permute[at] += 1;
            }
        }
    }

    #[test]
    fn what_is_too_early_is_not_kept() {
        let mut merger = merger();
        assert_eq!(merger.offer(8, 8, 1), Offer::Full(8));
        assert_eq!(merger.offer(1, 1, 101), Offer::Full(1));
        assert_eq!(merger.offer(7, 7, 1), Offer::Waits);
        assert_eq!(merger.offer(7, 7, 1), Offer::Duplicate);
        // The next one is taken whatever waits.
        assert_eq!(merger.offer(0, 0, 1000), Offer::Now(0));
        assert_eq!(merger.offer(0, 0, 1), Offer::Duplicate);
        assert_eq!(merger.offer(8, 8, 1), Offer::Waits);
        assert_eq!(merger.first_waiting(), Some(7));
        assert_eq!(merger.skip_to(7), 6);
        assert_eq!(merged(&mut merger, &[]), [0u32; 0]);
        assert_eq!(merger.pop(), Some(7));
        assert_eq!(merger.pop(), Some(8));
        assert_eq!(merger.next(), 9);
        // Far beyond anything that is known.
        assert_eq!(merger.skip_to(1_000_000), 999_991);
        assert_eq!(merged(&mut merger, &[1_000_000]), [1_000_000]);
    }

    #[test]
    fn ids_wrap_around() {
        let mut merger = merger();
        merger.skip_to(u32::MAX - 1);
        let out = merged(&mut merger, &[0, u32::MAX, u32::MAX - 1, 1]);
        assert_eq!(out, [u32::MAX - 1, u32::MAX, 0, 1]);
    }
}
