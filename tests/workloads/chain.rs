//! The chain in Rust: `main -> outer -> middle -> inner -> leaf_a | leaf_b | leaf_c`, which burn
//! about 50, 30 and 20 % of the CPU time.
//!
//! Usage: chain MILLISECONDS. Output: one line of JSON with the nanoseconds of thread CPU time of
//! each leaf, and of the process. Built by the harness with rustc alone, because it needs frame
//! pointers whatever the profile of the workspace is.

use std::ffi::{c_int, c_long};
use std::hint::black_box;

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}

const PROCESS_CPU: c_int = 2;
const THREAD_CPU: c_int = 3;

fn clock_ns(clock: c_int) -> u64 {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the pointer is to a valid, writable timespec.
    unsafe { clock_gettime(clock, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

#[inline(always)]
fn spin(steps: u64, seed: u64) -> u64 {
    let mut x = seed | 1;
    for _ in 0..steps {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // SAFETY: empty; it only keeps the compiler from folding the loop.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) x, options(nomem, nostack, preserves_flags)) };
    }
    x
}

#[inline(never)]
fn leaf_a(steps: u64) -> u64 {
    spin(steps, 19)
}

#[inline(never)]
fn leaf_b(steps: u64) -> u64 {
    spin(steps, 23)
}

#[inline(never)]
fn leaf_c(steps: u64) -> u64 {
    spin(steps, 29)
}

#[inline(never)]
fn inner(leaf: usize, steps: u64, took: &mut [u64; 3]) -> u64 {
    let from = clock_ns(THREAD_CPU);
    let result = match leaf {
        0 => leaf_a(steps),
        1 => leaf_b(steps),
        _ => leaf_c(steps),
    };
    took[leaf] += clock_ns(THREAD_CPU) - from;
    result
}

#[inline(never)]
fn middle(leaf: usize, steps: u64, took: &mut [u64; 3]) -> u64 {
    black_box(inner(leaf, steps, took)).wrapping_add(1)
}

#[inline(never)]
fn outer(leaf: usize, steps: u64, took: &mut [u64; 3]) -> u64 {
    black_box(middle(leaf, steps, took)).wrapping_add(2)
}

#[inline(never)]
fn calibration_loop(steps: u64) -> u64 {
    spin(steps, 99)
}

fn steps_per_ms() -> u64 {
    let mut steps = 100_000;
    loop {
        let from = clock_ns(THREAD_CPU);
        black_box(calibration_loop(steps));
        let took = clock_ns(THREAD_CPU) - from;
        if took > 2_000_000 {
            return steps * 1_000_000 / took;
        }
        steps *= 2;
    }
}

fn main() {
    let wanted = std::env::args().nth(1).and_then(|ms| ms.parse::<u64>().ok()).unwrap_or(1000);
    let (ms, mut random, mut took) = (steps_per_ms(), 42_u64, [0; 3]);
    let begin = clock_ns(THREAD_CPU);
    while clock_ns(THREAD_CPU) - begin < wanted * 1_000_000 {
        for (leaf, tenths) in [5, 3, 2].into_iter().enumerate() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let nominal = tenths * ms;
            black_box(outer(leaf, nominal / 2 + (random >> 33) % (nominal + 1), &mut took));
        }
    }
    println!(
        "{{\"leaf_a\": {}, \"leaf_b\": {}, \"leaf_c\": {}, \"total\": {}}}",
        took[0],
        took[1],
        took[2],
        clock_ns(PROCESS_CPU)
    );
}
