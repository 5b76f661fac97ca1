//! How the memory for unwind tables is shared out.
//!
//! What does not belong here: which tables are loaded (`resolve`), how they lie in the kernel (`probe`).

use profiler_probe::UnwindOptions;

/// Of what tables may take together, the share of user space: a quarter.
const USER_SHARE: u64 = 4;

/// Most stacks that are copied for user space in a second, on each processor.
pub const COPIES_PER_SECOND: u32 = 1024;

/// Most frames of stacks beyond the first 127 that are looked for in a second, on each processor.
pub const DEEP_FRAMES_PER_SECOND: u32 = 100_000;

/// How the memory that all tables may take is shared out: to the kernel, and to user space.
pub(super) fn shares(memory_bytes: u64) -> (UnwindOptions, u64) {
    let user = memory_bytes / USER_SHARE;
    let kernel = UnwindOptions {
        memory_bytes: memory_bytes - user,
        copies_per_second: COPIES_PER_SECOND,
        deep_frames_per_second: DEEP_FRAMES_PER_SECOND,
    };
    (kernel, user)
}
