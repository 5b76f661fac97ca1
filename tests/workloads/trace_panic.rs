//! Rust panics through traced functions, caught.
//!
//! Usage: trace_panic ROUNDS [--wait]; each round: `near_catch > near_panic`, caught one frame up;
//! `far_catch > far_outer > far_inner > far_panic`, three frames up, where `far_outer` has a value to
//! drop, which calls `cleanup`; `again_catch > again_resume`, which catches and resumes; and every
//! second round the same without a panic. Output: as all tracing workloads, and `"panics"`.
//!
//! Under a return probe of the kernel on any function that is passed: "failed to initiate panic,
//! error 5", status 134.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::panic::{catch_unwind, resume_unwind, set_hook};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Tally {
    name: &'static str,
    calls: AtomicU64,
    returns: AtomicU64,
}

macro_rules! tallies {
    ($($constant:ident $name:literal),* $(,)?) => {
        $(static $constant: Tally = Tally {
            name: $name,
            calls: AtomicU64::new(0),
            returns: AtomicU64::new(0),
        };)*
        static TALLIES: &[&Tally] = &[$(&$constant),*];
    };
}

tallies! {
    NEAR_CATCH "trace_panic::near_catch",
    NEAR_PANIC "trace_panic::near_panic",
    FAR_CATCH "trace_panic::far_catch",
    FAR_OUTER "trace_panic::far_outer",
    FAR_INNER "trace_panic::far_inner",
    FAR_PANIC "trace_panic::far_panic",
    AGAIN_CATCH "trace_panic::again_catch",
    AGAIN_RESUME "trace_panic::again_resume",
    AGAIN_PANIC "trace_panic::again_panic",
    CLEANUP "trace_panic::cleanup",
}

static PANICS: AtomicU64 = AtomicU64::new(0);

impl Tally {
    #[inline(always)]
    fn enter(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    #[inline(always)]
    fn leave(&self) {
        self.returns.fetch_add(1, Relaxed);
    }
}

#[inline(always)]
fn panic_if(wanted: bool) {
    if wanted {
        PANICS.fetch_add(1, Relaxed);
        panic!("as wanted");
    }
}

#[inline(never)]
fn near_panic(panics: bool) {
    NEAR_PANIC.enter();
    panic_if(panics);
    NEAR_PANIC.leave();
}

#[inline(never)]
fn near_catch(panics: bool) -> bool {
    NEAR_CATCH.enter();
    let caught = catch_unwind(|| near_panic(black_box(panics))).is_err();
    NEAR_CATCH.leave();
    caught
}

#[inline(never)]
fn cleanup() {
    CLEANUP.enter();
    CLEANUP.leave();
}

struct Cleans;

impl Drop for Cleans {
    #[inline(always)]
    fn drop(&mut self) {
        cleanup();
    }
}

#[inline(never)]
fn far_panic(panics: bool) {
    FAR_PANIC.enter();
    panic_if(panics);
    FAR_PANIC.leave();
}

#[inline(never)]
fn far_inner(panics: bool) {
    FAR_INNER.enter();
    far_panic(black_box(panics));
    FAR_INNER.leave();
}

#[inline(never)]
fn far_outer(panics: bool) {
    FAR_OUTER.enter();
    let at_end = Cleans;
    far_inner(black_box(panics));
    drop(at_end);
    FAR_OUTER.leave();
}

#[inline(never)]
fn far_catch(panics: bool) -> bool {
    FAR_CATCH.enter();
    let caught = catch_unwind(|| far_outer(black_box(panics))).is_err();
    FAR_CATCH.leave();
    caught
}

#[inline(never)]
fn again_panic(panics: bool) {
    AGAIN_PANIC.enter();
    panic_if(panics);
    AGAIN_PANIC.leave();
}

#[inline(never)]
fn again_resume(panics: bool) {
    AGAIN_RESUME.enter();
    if let Err(payload) = catch_unwind(|| again_panic(black_box(panics))) {
        resume_unwind(payload);
    }
    AGAIN_RESUME.leave();
}

#[inline(never)]
fn again_catch(panics: bool) -> bool {
    AGAIN_CATCH.enter();
    let caught = catch_unwind(|| again_resume(black_box(panics))).is_err();
    AGAIN_CATCH.leave();
    caught
}

fn wait() -> Option<()> {
    println!("{{\"at\": \"start\", \"pid\": {}}}", std::process::id());
    std::io::stdout().flush().ok()?;
    let mut line = String::new();
    (std::io::stdin().lock().read_line(&mut line).ok()? > 0).then_some(())
}

fn json(of: impl Fn(&Tally) -> u64) -> String {
    let fields: Vec<String> =
        TALLIES.iter().map(|tally| format!("\"{}\": {}", tally.name, of(tally))).collect();
    fields.join(", ")
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().collect();
    if arguments.last().is_some_and(|last| last == "--wait") {
        arguments.pop();
        if wait().is_none() {
            std::process::exit(3);
        }
    }
    set_hook(Box::new(|_| {}));
    let rounds = arguments.get(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(100_u64);
    let mut caught = 0;
    for round in 0..rounds {
        let panics = black_box(round % 2 == 0);
        caught += u64::from(near_catch(panics));
        caught += u64::from(far_catch(panics));
        caught += u64::from(again_catch(panics));
    }
    let panics = PANICS.load(Relaxed);
    let good = caught == panics && panics == rounds.div_ceil(2) * 3;
    println!(
        "{{\"calls\": {{{}}}, \"returns\": {{{}}}, \"panics\": {panics}, \"good\": {good}}}",
        json(|tally| tally.calls.load(Relaxed)),
        json(|tally| tally.returns.load(Relaxed))
    );
    std::process::exit(i32::from(!good));
}
