//! Chains of calls in Rust: plain, through a closure and a trait object, and while a panic unwinds. See
//! known.h.
//!
//! Usage: chains SECONDS

use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static UNTIL_MS: AtomicU64 = AtomicU64::new(0);
static SINK: AtomicU64 = AtomicU64::new(0);

/// CPU time of the process: a turn has as many samples, whatever else runs.
#[derive(Clone, Copy)]
struct Cpu(Duration);

impl Cpu {
    fn now() -> Cpu {
        const OF_PROCESS: i32 = 2;
        let mut time = [0i64; 2];
        // SAFETY: two 64-bit numbers are a timespec of this architecture.
        unsafe { clock_gettime(OF_PROCESS, &mut time) };
        Cpu(Duration::new(time[0] as u64, time[1] as u32))
    }

    fn elapsed(self) -> Duration {
        Cpu::now().0 - self.0
    }
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: &mut [i64; 2]) -> i32;
}

fn elapsed_ms(since: Cpu) -> u64 {
    since.elapsed().as_millis() as u64
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn known_spin(mut x: u64) -> u64 {
    for _ in 0..2000 {
        x = black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    }
    x
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_leaf(begun: Cpu, mut x: u64) -> u64 {
    while elapsed_ms(begun) < UNTIL_MS.load(Ordering::Relaxed) {
        x ^= black_box(known_spin(x));
    }
    black_box(x)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_plain_2(begun: Cpu, x: u64) -> u64 {
    let room = black_box([x; 300]);
    black_box(known_leaf(begun, x)) ^ room[(x % 300) as usize]
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_plain_1(begun: Cpu, x: u64) -> u64 {
    black_box(known_plain_2(begun, x)) + 1
}

trait Called {
    fn call(&self, begun: Cpu) -> u64;
}

struct Callee(u64);

impl Called for Callee {
    #[inline(never)]
    fn call(&self, begun: Cpu) -> u64 {
        black_box(known_plain_1(begun, self.0))
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_dynamic(begun: Cpu, callee: &dyn Called) -> u64 {
    let text = format!("{:p}", callee);
    black_box(callee.call(begun)) ^ text.len() as u64
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_sorts(begun: Cpu, x: u64) -> u64 {
    let mut values: Vec<u64> = (0..100).map(|i| x.wrapping_mul(i) % 101).collect();
    values.sort_by_key(|value| black_box(known_leaf(begun, *value)) & 1);
    values[0]
}

struct Guard(Cpu);

impl Drop for Guard {
    fn drop(&mut self) {
        SINK.fetch_add(black_box(known_leaf(self.0, 1)), Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_panics(begun: Cpu, x: u64) -> u64 {
    let guard = Guard(begun);
    if black_box(x) > 0 {
        std::panic::resume_unwind(Box::new(x));
    }
    drop(guard);
    x
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_catches(begun: Cpu, x: u64) -> u64 {
    let caught = std::panic::catch_unwind(|| known_panics(begun, x));
    u64::from(black_box(caught).is_err())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_thread(begun: Cpu) -> u64 {
    black_box(known_leaf(begun, 3))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn known_rounds(begun: Cpu, seconds: f64) {
    let turn = || UNTIL_MS.store(elapsed_ms(begun) + 25, Ordering::Relaxed);
    let add = |x| SINK.fetch_add(x, Ordering::Relaxed);
    while begun.elapsed() < Duration::from_secs_f64(seconds) {
        turn();
        add(black_box(known_plain_1(begun, 1)));
        turn();
        add(black_box(known_dynamic(begun, &Callee(2))));
        turn();
        add(black_box(known_sorts(begun, 7919)));
        turn();
        add(black_box(known_catches(begun, 5)));
        turn();
        if let Ok(x) = std::thread::spawn(move || known_thread(begun)).join() {
            add(x);
        }
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let spin = "known_spin known_leaf";
    for chain in [
        "known_plain_2 known_plain_1 known_rounds main",
        "known_plain_2 known_plain_1 known_dynamic known_rounds main",
        "known_sorts known_rounds main",
        "known_panics known_catches known_rounds main",
        "known_thread",
    ] {
        println!("chain: {spin} {chain}");
    }
    println!("ready");
    let _ = std::io::stdout().flush();
    let _ = std::io::read_to_string(std::io::stdin());
    known_rounds(Cpu::now(), seconds);
}
