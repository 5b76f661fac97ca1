//! Samples of one configuration that wait to be read: lists of addresses with counts.
//!
//! What finds no room is counted: samples above the number that the client set, and stacks for which
//! there is no memory. What does not belong here: whose samples they are, and memory over all
//! (`budget`).

use std::mem::size_of;

use rustc_hash::FxHashMap;

use super::stacks::{ListId, Stacks};
use profiler_model::sorting::InOrder;
use profiler_wire::tcf::{MAX_COUNT, WordLayout, encode_stack_trace};

/// Words of a stack in data besides its addresses.
const HEAD_WORDS: usize = 2;

/// Stacks with counts that a client has not read yet.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    counts: FxHashMap<ListId, u64>,
    /// Samples in it.
    pub(super) samples: u64,
    /// Samples that found no room.
    pub(super) dropped: u64,
    /// Samples without a stack.
    pub(super) no_stack: u64,
    /// Samples in it whose stacks have fewer frames than were wanted and there were.
    pub(super) truncated: u64,
    /// Memory that it is charged for. Shared lists count for each that uses them.
    pub(super) bytes: usize,
    /// Bytes of the data that reading gives.
    pub(super) data_bytes: usize,
}

impl Buffer {
    /// Memory that a list takes here.
    pub(super) fn cost(list: ListId, stacks: &Stacks) -> usize {
        // Tables of this kind are 7/16 to 7/8 full.
        2 * size_of::<(ListId, u64)>() + stacks.bytes(list)
    }

    /// Bytes of data for a list.
    pub(super) fn data_bytes(list: ListId, stacks: &Stacks) -> usize {
        (HEAD_WORDS + stacks.addresses(list).len()) * WordLayout::WIDE.bytes()
    }

    /// Adds samples of a list that is in it. Says whether there was one.
    pub(super) fn add(&mut self, list: ListId, count: u64) -> bool {
        let Some(before) = self.counts.get_mut(&list) else {
            return false;
        };
        *before += count;
        self.samples += count;
        true
    }

    /// Puts samples of a new list into it.
    pub(super) fn insert(&mut self, list: ListId, count: u64, stacks: &mut Stacks) {
        stacks.acquire(list);
        self.counts.insert(list, count);
        self.samples += count;
        self.bytes += Buffer::cost(list, stacks);
        self.data_bytes += Buffer::data_bytes(list, stacks);
    }

    /// Appends what is in it, the most frequent stacks first.
    pub(super) fn encode(&self, stacks: &Stacks, out: &mut Vec<u8>) {
        let mut counts: Vec<(ListId, u64)> = self.counts.iter().map(|(&id, &n)| (id, n)).collect();
        counts.order_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        let pieces: u64 = counts.iter().map(|(_, count)| count / MAX_COUNT).sum();
        out.reserve(self.data_bytes.saturating_add(pieces as usize));
        for (id, count) in counts {
            // Words of 8 bytes hold any address.
            let _ = encode_stack_trace(WordLayout::WIDE, count, stacks.addresses(id), out);
        }
    }

    /// Drops all of it, and gives up its lists.
    pub(super) fn clear(&mut self, stacks: &mut Stacks) {
        for list in std::mem::take(self).counts.into_keys() {
            stacks.release(list);
        }
    }
}
