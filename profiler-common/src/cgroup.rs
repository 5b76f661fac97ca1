//! Cgroups: how the kernel side is told which are wanted, and the record of one that was made or
//! removed.
//!
//! ```text
//! CgroupHead (40 bytes) | path, padded to 8 bytes
//! ```
//! A session looks at one hierarchy. Ids are those of its kernfs nodes (in version 2 what
//! `bpf_get_current_cgroup_id` gives; in both what stat(2) calls the inode number of the directory);
//! the kernel does not use them again before it is booted again. Times are nanoseconds of
//! CLOCK_MONOTONIC.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::RecordHead;

/// Most levels of cgroups that the kernel side looks at, from a task's own upwards. Deeper, it leaves
/// the decision to user space.
pub const MAX_LEVELS: u32 = 64;

/// Most cgroups in the map `CGROUPS`: those that were named, and new ones that user space decides on.
pub const MAX_CGROUPS: u32 = 16_384;

/// How many verdicts the map `VERDICTS` keeps, a power of two. A cgroup has one slot, see
/// [`verdict_slot`], which others may want as well.
pub const VERDICT_SLOTS: usize = 4096;

/// Most names in the map `CGROUP_NAMES`.
pub const MAX_NAMES: u32 = 1024;

/// Longest name of a cgroup (the last part of its path) that can be wanted before it exists.
pub const LONGEST_NAME: usize = 127;

/// Size of a key of `CGROUP_NAMES`. One that is cut to this is longer than [`LONGEST_NAME`].
pub const NAME_BYTES: usize = 136;

/// Longest path that a record has; longer ones are cut.
pub const PATH_BYTES: usize = 1024;

/// A value of `CGROUPS`: it is not wanted, nor what is below it unless that has a value of its own.
/// What is in or below no cgroup of the map is not wanted either.
pub const CGROUP_UNWANTED: u32 = 0;
/// It is wanted, and all below it.
pub const CGROUP_WANTED: u32 = 1;
/// User space has yet to say whether it is. Its samples come, marked so.
pub const CGROUP_UNDECIDED: u32 = 2;

/// The value of `CGROUP_SUBSYS` for the hierarchy of version 2.
pub const SUBSYS_UNIFIED: u32 = u32::MAX;

/// The value of `CGROUP_SUBSYS` for no hierarchy: samples name no cgroup.
pub const SUBSYS_NONE: u32 = u32::MAX - 1;

/// What was found of a cgroup: a value of the map `VERDICTS`, which several processors read and write
/// without a lock. A pair of which one half was overwritten meanwhile belongs to no cgroup of its slot,
/// unless both halves say the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Verdict {
    /// What tells the cgroup from others that there are, XOR `word`. In version 2 that is its id, in
    /// version 1 an address in the kernel.
    pub check: u64,
    /// The generation when it was found (of another one it is void) in the upper half, a `CGROUP_*`
    /// constant in the lower one.
    pub word: u64,
}

impl Verdict {
    /// What was found of the cgroup at `place`.
    pub const fn new(place: u64, generation: u32, wanted: u32) -> Verdict {
        let word = (generation as u64) << 32 | wanted as u64;
        Verdict {
            check: place ^ word,
            word,
        }
    }

    /// What was found of the cgroup at `place` in this generation, if this is about it.
    pub const fn of(self, place: u64, generation: u32) -> Option<u32> {
        if self.check ^ self.word == place && (self.word >> 32) as u32 == generation {
            Some(self.word as u32)
        } else {
            None
        }
    }
}

/// The slot of a cgroup's verdict in `VERDICTS`. Places that differ only in their lowest bits have
/// different ones.
pub const fn verdict_slot(place: u64) -> u32 {
    // Fibonacci hashing: the upper bits of the product depend on all bits of the place.
    let product = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> (64 - VERDICT_SLOTS.trailing_zeros())) as u32
}

/// Index of `CGROUP_STATE`: how often user space has changed `CGROUPS`, from 1.
pub const DECIDED: u32 = 0;
/// Index of `CGROUP_STATE`: in version 1, how many cgroups were made.
pub const MADE: u32 = 1;

/// New cgroups about which something is missing: the only value of the map `CGROUP_LOSSES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct CgroupLosses {
    /// Found no room in `CGROUPS`: what is in them is not recorded, though it may be wanted.
    pub dropped: u64,
    /// Records that found no room in the ring buffer.
    pub untold: u64,
}

/// How many values `CGROUP_OFFSETS` has.
pub const OFFSETS: usize = 11;
/// Index of `CGROUP_OFFSETS`: not 0, if the others are known.
pub const OFFSETS_KNOWN: usize = 0;
/// Index of `CGROUP_OFFSETS`: `task_struct::cgroups`.
pub const TASK_CGROUPS: usize = 1;
/// Index of `CGROUP_OFFSETS`: `css_set::dfl_cgrp`, or the element of `css_set::subsys` of the
/// hierarchy of version 1.
pub const SET_MEMBER: usize = 2;
/// Index of `CGROUP_OFFSETS`: `cgroup_subsys_state::cgroup`.
pub const CSS_CGROUP: usize = 3;
/// Index of `CGROUP_OFFSETS`: `cgroup_subsys_state::parent`.
pub const CSS_PARENT: usize = 4;
/// Index of `CGROUP_OFFSETS`: `cgroup::self`.
pub const CGROUP_SELF: usize = 5;
/// Index of `CGROUP_OFFSETS`: `cgroup::kn`.
pub const CGROUP_KN: usize = 6;
/// Index of `CGROUP_OFFSETS`: `kernfs_node::id`.
pub const KN_ID: usize = 7;
/// Index of `CGROUP_OFFSETS`: `kernfs_node::name`.
pub const KN_NAME: usize = 8;
/// Index of `CGROUP_OFFSETS`: `cgroup::root`.
pub const CGROUP_ROOT_POINTER: usize = 9;
/// Index of `CGROUP_OFFSETS`: `cgroup_root::hierarchy_id`.
pub const ROOT_NUMBER: usize = 10;

/// What is known of a cgroup that was made or removed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct CgroupHead {
    /// Kind [`crate::KIND_CGROUP`].
    pub head: RecordHead,
    /// When.
    pub at_ns: u64,
    /// Its id.
    pub id: u64,
    /// Processor.
    pub cpu: u32,
    /// Length of the path that follows, without padding.
    pub path_len: u32,
    /// What the kernel side did with it: a `CGROUP_*` constant.
    pub wanted: u32,
    /// Not 0: it was removed.
    pub removed: u32,
}

const _: () = assert!(size_of::<CgroupHead>() == 40);
const _: () = assert!(size_of::<Verdict>() == 16);
const _: () = assert!(VERDICT_SLOTS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_of_one_cgroup_and_one_generation() {
        let verdict = Verdict::new(77, 3, CGROUP_WANTED);
        assert_eq!(verdict.of(77, 3), Some(CGROUP_WANTED));
        assert_eq!(verdict.of(77, 4), None);
        assert_eq!(verdict.of(78, 3), None);
        // A slot that nobody has written to, for what is never a generation.
        assert_eq!(Verdict::default().of(0, 1), None);
    }

    #[test]
    fn halves_of_two_verdicts_are_of_no_cgroup_of_the_slot() {
        for (one, other) in [(1000_u64, 2000_u64), (u64::MAX, 1), (5, 5)] {
            for (first, second) in [(CGROUP_WANTED, CGROUP_UNDECIDED), (0, CGROUP_WANTED)] {
                let mixed = Verdict {
                    check: Verdict::new(one, 9, first).check,
                    ..Verdict::new(other, 9, second)
                };
                assert_eq!(mixed.of(other, 9), None);
                // It seems to be about this one, which looks elsewhere.
                let stranger = one ^ u64::from(first ^ second);
                assert_eq!(mixed.of(stranger, 9), Some(second));
                assert_ne!(verdict_slot(stranger), verdict_slot(one));
            }
        }
    }

    #[test]
    fn neighbours_spread_over_all_slots() {
        let mut slots = [0; VERDICT_SLOTS];
        for id in 0..VERDICT_SLOTS as u64 {
            slots[verdict_slot(id) as usize] += 1;
        }
        assert!(slots.iter().all(|count| *count <= 2), "{slots:?}");
    }
}
