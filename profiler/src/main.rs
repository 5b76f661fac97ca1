//! The `profiler` binary; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    bound_the_allocator();
    hear_of_long_files();
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

/// A file that may not become longer (`ulimit -f`) is an error, like a full disk, and not the end of the process. A handler
/// does that: what is ignored would stay so in commands that are started.
#[allow(unsafe_code)]
fn hear_of_long_files() {
    extern "C" fn heard(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = heard;
    // SAFETY: all zeros is a valid sigaction, with no flags and an empty mask; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut());
    }
}
