//! Functions of one name in two modules, a closure, and two instances of a generic one.
//!
//! Usage: names MILLISECONDS. Output: {"a": NS, "b": NS, "narrow": NS, "wide": NS}, of the thread's CPU time, about
//! 10, 30, 15 and 45 % of it.

use std::hint::black_box;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

fn cpu_ns() -> u64 {
    let mut time = Timespec {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: `time` is laid out as the C library's timespec on 64-bit Linux; 3 is the thread's CPU time.
    unsafe { clock_gettime(3, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

macro_rules! spin {
    ($steps:expr, $seed:expr) => {{
        let mut x: u64 = $seed | 1;
        let mut left: u64 = $steps;
        while left > 0 {
            x = black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
            left -= 1;
        }
        x
    }};
}

mod a {
    use super::black_box;

    #[inline(never)]
    pub fn run(steps: u64) -> u64 {
        spin!(steps, 3)
    }
}

mod b {
    use super::black_box;

    #[inline(never)]
    pub fn run(steps: u64) -> u64 {
        let closure = |steps: u64| -> u64 { spin!(steps, 5) };
        let called: &dyn Fn(u64) -> u64 = black_box(&closure);
        called(steps).wrapping_add(black_box(1))
    }
}

struct Instance<T>(T);

impl<T: Copy + Into<u64>> Instance<T> {
    #[inline(never)]
    fn work(&self, steps: u64) -> u64 {
        spin!(steps, self.0.into())
    }
}

fn main() {
    let wanted = std::env::args().nth(1).and_then(|ms| ms.parse::<u64>().ok());
    let wanted = wanted.expect("milliseconds") * 1_000_000;
    let (begin, mut took, mut sink, mut round) = (cpu_ns(), [0; 4], 0u64, 0);
    while cpu_ns() - begin < wanted {
        // Rounds of one length could keep time with the samples: a million steps take about a millisecond.
        round += 1;
        let scale = 1 + round % 5;
        let times = [
            cpu_ns(),
            { sink ^= a::run(scale * 100_000); cpu_ns() },
            { sink ^= b::run(scale * 300_000); cpu_ns() },
            { sink ^= Instance(1u8).work(scale * 150_000); cpu_ns() },
            { sink ^= Instance(1u16).work(scale * 450_000); cpu_ns() },
        ];
        for (took, pair) in took.iter_mut().zip(times.windows(2)) {
            *took += pair[1] - pair[0];
        }
    }
    black_box(sink);
    let [a, b, narrow, wide] = took;
    println!("{{\"a\": {a}, \"b\": {b}, \"narrow\": {narrow}, \"wide\": {wide}}}");
}
