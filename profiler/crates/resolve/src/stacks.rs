//! Stacks: addresses to frames, and a cache in front of it.
//!
//! The bytes of a stack -> [`StackId`]. A stack that was seen before under the same mappings costs
//! one hash and one lookup. Callers are looked up one byte before their return address, so that a
//! call that ends a function is not taken for the next one.
//!
//! What does not belong here: what a frame is called (`frames`), stacks that are not of machine code alone
//! (`interpreters`).

use bytes::Bytes;
use profiler_common::{
    INNERMOST_FRAMES,
    sample::{EXACT_ADDRESS, LEFT_OUT},
};
use rustc_hash::FxHashMap;

use super::epoch::Epoch;
use super::frames::Frames;
use super::kernel_names::KernelNames;
use super::process::ProcessState;
use super::vsyscall;
use profiler_model::{FrameId, ModuleKind, StackEnd, StackId};

/// Most stacks that are remembered.
const MAX_STACKS: usize = 100_000;
/// The kernel's mappings have no generation; those of processes start at 1.
const KERNEL: u64 = 0;

/// What a stack's bytes mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    stack: StackId,
    bottom: Bottom,
}

/// What the end of a user stack is, whatever the walk said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bottom {
    /// What the walk said.
    AsWalked,
    /// The walk had left the code of the process; the stack ends before that.
    Bogus,
    /// Code that was made at run time. No thread begins there: without frame pointers the walk has lost the
    /// callers, and what it took for the outermost frame is none.
    RunTimeCode,
}

impl Found {
    /// The stack, and why it ended: `end` unless the walk left the code before.
    pub(super) fn outcome(self, end: StackEnd, bogus: StackEnd) -> (Option<StackId>, StackEnd) {
        let end = match self.bottom {
            Bottom::Bogus => bogus,
            Bottom::RunTimeCode if end == StackEnd::Complete => StackEnd::Jit,
            Bottom::AsWalked | Bottom::RunTimeCode => end,
        };
        (Some(self.stack), end)
    }
}

/// The frames of a user stack.
#[derive(Debug)]
pub(super) struct NativeFrames {
    /// Leaf first.
    pub(super) frames: Vec<FrameId>,
    /// Where each is in the memory of its process, inside of an instruction.
    pub(super) addresses: Vec<u64>,
    /// What the outermost of them is.
    pub(super) bottom: Bottom,
}

/// Stacks that were seen in the present epoch, by their bytes.
#[derive(Debug)]
pub(super) struct Stacks {
    found: FxHashMap<(u64, u64), Found>,
    seed: u64,
    /// Kept for its memory.
    addresses: Vec<u64>,
    /// How many were found here.
    pub(super) known: u64,
    /// How many were resolved frame by frame.
    pub(super) new: u64,
}

impl Stacks {
    /// None yet.
    pub(super) fn new() -> Stacks {
        Stacks {
            found: FxHashMap::default(),
            seed: seed(),
            addresses: Vec::new(),
            known: 0,
            new: 0,
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.found.clear();
    }

    /// Forgets those of the kernel.
    pub(super) fn forget_kernel(&mut self) {
        self.found
            .retain(|&(generation, _), _| generation != KERNEL);
    }

    /// The user stack of a sample, and why it ended: `end`, or `bogus` if it was cut at a bogus caller.
    ///
    /// Code built without frame pointers uses the register for something else, and a walk that
    /// meets it goes on with whatever that points to. A caller that is in no mapping of the process
    /// is bogus, by whatever means it was found: the stack is cut before it. A leaf is where the thread
    /// really was.
    pub(super) fn of_user(
        &mut self,
        process: &ProcessState,
        bytes: &Bytes,
        (end, bogus): (StackEnd, StackEnd),
        frames: &mut Frames<'_>,
    ) -> (Option<StackId>, StackEnd) {
        let key = self.key(process, bytes);
        if let Some(found) = self.find(key) {
            return found.outcome(end, bogus);
        }
        let native = self.native_frames(process, bytes, frames);
        let mut stack = None;
        for &frame in native.frames.iter().rev() {
            stack = Some(frames.epoch.tables.stack(stack, frame));
        }
        let bottom = native.bottom;
        self.reuse(native);
        match stack {
            Some(stack) => self.keep(key, stack, bottom).outcome(end, bogus),
            None => (None, end),
        }
    }

    /// The kernel stack of a sample.
    pub(super) fn of_kernel(
        &mut self,
        bytes: &Bytes,
        kernel: &mut KernelNames,
        epoch: &mut Epoch,
    ) -> Option<StackId> {
        if bytes.len() < 8 {
            return None;
        }
        let key = (KERNEL, hash(bytes, self.seed));
        if let Some(found) = self.find(key) {
            return Some(found.stack);
        }
        let mut addresses = self.words(bytes);
        // The kernel takes a caller there for one of its own.
        while addresses
            .pop_if(|last| vsyscall::RANGE.contains(last))
            .is_some()
        {}
        for caller in addresses.iter_mut().skip(1) {
            *caller = caller.saturating_sub(1);
        }
        let mut stack = None;
        for &address in addresses.iter().rev() {
            let frame = kernel.frame(address, epoch);
            stack = Some(epoch.tables.stack(stack, frame));
        }
        self.addresses = addresses;
        self.keep(key, stack?, Bottom::AsWalked);
        stack
    }

    /// What a stack of a process is remembered by.
    pub(super) fn key(&self, process: &ProcessState, bytes: &Bytes) -> (u64, u64) {
        (process.mappings.generation(), hash(bytes, self.seed))
    }

    /// A stack that was seen before.
    pub(super) fn find(&mut self, key: (u64, u64)) -> Option<Found> {
        let found = self.found.get(&key).copied();
        self.known += u64::from(found.is_some());
        found
    }

    /// Remembers a stack.
    pub(super) fn keep(&mut self, key: (u64, u64), stack: StackId, bottom: Bottom) -> Found {
        let found = Found { stack, bottom };
        self.new += 1;
        if self.found.len() >= MAX_STACKS {
            self.found.clear();
        }
        self.found.insert(key, found);
        found
    }

    /// The frames of a user stack.
    pub(super) fn native_frames(
        &mut self,
        process: &ProcessState,
        bytes: &Bytes,
        frames: &mut Frames<'_>,
    ) -> NativeFrames {
        let mut addresses = self.user_addresses(bytes);
        let mut bottom = Bottom::AsWalked;
        let left_out = left_out(&addresses);
        let mapped = |address: &u64| process.mappings.find(*address).is_some();
        let is_code = |(depth, at)| left_out == Some(depth) || mapped(at);
        if addresses.first().is_some_and(mapped)
            && let Some(bogus) = addresses.iter().enumerate().position(|of| !is_code(of))
        {
            addresses.truncate(bogus);
            bottom = Bottom::Bogus;
        } else if let Some(outermost) = addresses.last()
            && let Some(range) = process.mappings.find(*outermost)
            && range.module.kind == ModuleKind::Jit
        {
            bottom = Bottom::RunTimeCode;
        }
        let of = addresses.iter().enumerate();
        NativeFrames {
            frames: of
                .map(|(depth, &address)| match left_out == Some(depth) {
                    true => frames.left_out(),
                    false => frames.frame(process, address, depth == 0),
                })
                .collect(),
            addresses,
            bottom,
        }
    }

    /// Takes back the memory of frames that are done with.
    pub(super) fn reuse(&mut self, native: NativeFrames) {
        self.addresses = native.addresses;
    }

    /// Addresses inside the instructions that a user stack speaks of, leaf first. A caller may be no
    /// return address: it was interrupted.
    fn user_addresses(&mut self, bytes: &Bytes) -> Vec<u64> {
        let mut addresses = self.words(bytes);
        let left_out = left_out(&addresses);
        for (depth, address) in addresses.iter_mut().enumerate() {
            if left_out != Some(depth) {
                *address = looked_up(depth, *address);
            }
        }
        addresses
    }

    fn words(&mut self, bytes: &Bytes) -> Vec<u64> {
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        let words = bytes.as_chunks::<8>().0.iter();
        addresses.extend(words.map(|word| u64::from_ne_bytes(*word)));
        addresses
    }
}

/// Where a frame of the user stack is looked up: in front of a return address, which may be in the next function
/// already. The first one is where the thread is, and one that is marked as no return address was interrupted.
pub(super) fn looked_up(depth: usize, address: u64) -> u64 {
    match address & EXACT_ADDRESS {
        _ if depth == 0 || vsyscall::RANGE.contains(&address) => address,
        0 => address.saturating_sub(1),
        _ => address & !EXACT_ADDRESS,
    }
}

/// Where the middle of a user stack is left out, if it is.
fn left_out(addresses: &[u64]) -> Option<usize> {
    let middle = addresses.get(INNERMOST_FRAMES)?;
    (*middle == LEFT_OUT).then_some(INNERMOST_FRAMES)
}

/// What is before the place where the middle of a user stack is left out, if it is.
pub(super) fn before_gap(bytes: &Bytes) -> Option<Bytes> {
    let (words, _) = bytes.as_chunks::<8>();
    let middle = words.get(INNERMOST_FRAMES)?;
    let is_gap = u64::from_ne_bytes(*middle) == LEFT_OUT;
    is_gap.then(|| bytes.slice(..INNERMOST_FRAMES * 8))
}

/// A number that a target can't guess, so that it can't make stacks that collide.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Hash of a stack's bytes. Two independent lanes of folded multiplication keep up with memory.
fn hash(bytes: &Bytes, seed: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        (wide as u64) ^ (wide >> 64) as u64
    };
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xd6e8_feb8_6659_fd93;
    let (mut left, mut right) = (seed ^ A, seed.rotate_left(32) ^ bytes.len() as u64);
    let (pairs, rest) = bytes.as_chunks::<16>();
    for pair in pairs {
        let (first, second) = pair.split_at(8);
        left = fold(left ^ word(first), A);
        right = fold(right ^ word(second), B);
    }
    left = fold(left ^ word(rest), A);
    fold(left ^ B, right ^ A)
}

/// Up to eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_within_the_instructions_that_called() {
        let bytes: Bytes = [
            0x1000,
            0x2000,
            0x3000 | EXACT_ADDRESS,
            vsyscall::START + 0x400,
        ]
        .iter()
        .flat_map(|address: &u64| address.to_ne_bytes())
        .collect();
        let expected = [0x1000, 0x1fff, 0x3000, vsyscall::START + 0x400];
        assert_eq!(Stacks::new().user_addresses(&bytes), expected);
        let leaf: Bytes = (vsyscall::START + 0x400).to_ne_bytes().to_vec().into();
        let expected = [vsyscall::START + 0x400];
        assert_eq!(Stacks::new().user_addresses(&leaf), expected);
    }

    #[test]
    fn a_gap_is_where_the_middle_of_a_stack_is() {
        let bytes = |addresses: &[u64]| -> Bytes {
            let addresses = addresses.iter();
            addresses
                .flat_map(|address| address.to_ne_bytes())
                .collect()
        };
        let of = |gap: usize, len: usize| {
            let mut addresses = vec![0x2000; len];
            addresses[gap] = LEFT_OUT;
            bytes(&addresses)
        };
        let mut stacks = Stacks::new();
        let found = stacks.user_addresses(&of(INNERMOST_FRAMES, 512));
        assert_eq!(left_out(&found), Some(INNERMOST_FRAMES));
        assert_eq!((found[INNERMOST_FRAMES], found[385]), (LEFT_OUT, 0x1fff));
        let before = before_gap(&of(INNERMOST_FRAMES, 385));
        assert_eq!(before, Some(bytes(&[0x2000; INNERMOST_FRAMES])));
        // Elsewhere it is an address, whatever a program has on its stack.
        for (gap, len) in [
            (0, 1),
            (INNERMOST_FRAMES - 1, 512),
            (INNERMOST_FRAMES + 1, 512),
        ] {
            assert_eq!(before_gap(&of(gap, len)), None);
            assert_eq!(left_out(&stacks.user_addresses(&of(gap, len))), None);
        }
    }

    #[test]
    fn the_hash_depends_on_each_byte_and_the_order() {
        let bytes = |addresses: &[u64]| -> Bytes {
            addresses
                .iter()
                .flat_map(|address| address.to_ne_bytes())
                .collect()
        };
        let mut seen = std::collections::HashSet::new();
        let base: Vec<u64> = (0..9).map(|index| 0x5555_0000 + index * 0x10).collect();
        assert!(seen.insert(hash(&bytes(&base), 1)));
        assert!(seen.insert(hash(&bytes(&base), 2)));
        for index in 0..base.len() {
            assert!(seen.insert(hash(&bytes(&base[..index]), 1)));
            for bit in 0..64 {
                let mut changed = base.clone();
                changed[index] ^= 1 << bit;
                assert!(seen.insert(hash(&bytes(&changed), 1)));
            }
        }
        let mut swapped = base.clone();
        swapped.swap(0, 2);
        assert!(seen.insert(hash(&bytes(&swapped), 1)));
    }
}
