//! Cgroups: how the kernel side is told which are wanted, and the record of one that was made or
//! removed.
//!
//! ```text
//! CgroupHead (40 bytes) | path, padded with zeros to 8 bytes
//! ```
//! A session looks at one hierarchy. Ids are those of its kernfs nodes (in version 2 what
//! `bpf_get_current_cgroup_id` gives; in both what stat(2) calls the inode number of the directory);
//! the kernel does not use them again before it is booted again. Times are nanoseconds of
//! CLOCK_MONOTONIC.

use crate::RecordHead;

/// Most levels of cgroups that the kernel side looks at, from a task's own upwards. Deeper, it leaves
/// the decision to user space.
pub const MAX_LEVELS: u32 = 64;

/// Most cgroups in the map `CGROUPS`: those that were named and those that are undecided.
pub const MAX_CGROUPS: u32 = 4096;

/// Most cgroups whose verdict is kept in the map `VERDICTS`. Those that find no room are decided at
/// each event.
pub const MAX_VERDICTS: u32 = 16_384;

/// Most names in the map `CGROUP_NAMES`.
pub const MAX_NAMES: u32 = 1024;

/// Longest name of a cgroup (the last part of its path) that can be wanted before it exists.
pub const NAME_BYTES: usize = 128;

/// Longest path that a record has; longer ones are cut.
pub const PATH_BYTES: usize = 1024;

/// A value of `CGROUPS` and of [`Verdict::wanted`]: it is wanted, and all below it.
pub const CGROUP_WANTED: u32 = 1;
/// As [`CGROUP_WANTED`]: user space has yet to say whether it is. Its events come, marked so.
pub const CGROUP_UNDECIDED: u32 = 2;
/// A value of [`Verdict::wanted`]: it is not.
pub const CGROUP_UNWANTED: u32 = 0;

/// The value of `CGROUP_SUBSYS` for the hierarchy of version 2.
pub const SUBSYS_UNIFIED: u32 = u32::MAX;

/// What was found of a cgroup: the value of the map `VERDICTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// [`CgroupState::generation`] when it was found; of another one it is void.
    pub generation: u32,
    /// A `CGROUP_*` constant.
    pub wanted: u32,
}

/// The only value of the map `CGROUP_STATE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupState {
    /// Another one whenever user space has changed `CGROUPS`; never 0.
    pub generation: u32,
    /// Cgroups that found no room in `CGROUPS` when they were made.
    pub dropped: u32,
}

/// How many values `CGROUP_OFFSETS` has.
pub const OFFSETS: usize = 8;
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

/// Index of `CGROUP_EVENT_OFFSETS`: `root`.
pub const EVENT_ROOT: usize = 0;
/// Index of `CGROUP_EVENT_OFFSETS`: `id`.
pub const EVENT_ID: usize = 1;
/// Index of `CGROUP_EVENT_OFFSETS`: where and how long `path` is.
pub const EVENT_PATH: usize = 2;

/// What is known of a cgroup that was made or removed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
const _: () = assert!(size_of::<Verdict>() == 8);
