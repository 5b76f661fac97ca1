//! The `profiler` binary; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    bound_the_allocator();
    ExitCode::from(profiler::cli::main(std::env::args_os()))
}

/// Buffers and batches pass from thread to thread. glibc would keep what each thread once needed,
/// in an arena of its own, and serve ever larger buffers from there; with few arenas and a fixed
/// threshold, large buffers go back to the system when they are freed.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn bound_the_allocator() {
    // SAFETY: called before any other thread exists; sets two tunables of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

#[cfg(not(target_env = "gnu"))]
fn bound_the_allocator() {}
