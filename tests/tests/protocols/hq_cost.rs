//! What receiving costs: messages per second from a connection on loopback into a capture.
//!
//! Run it alone, optimized: `cargo test --release -p profiler-tests --test protocols hq_cost:: -- --ignored
//! --nocapture`.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::time::Instant;

use crate::hq_shared::*;
use profiler_serve::hq::{BreakCause, HqOptions, Receiver};
use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_wire::bytefrog::AgentMessage;

/// Entries and exits each.
const CALLS: u32 = 4_000_000;

struct Count(u64);

impl Receiver for Count {
    fn message(&mut self, message: &AgentMessage<'_>) {
        self.0 += u64::from(message.sequence().is_some());
    }

    fn data_break(&mut self, _: BreakCause) {}

    fn missing(&mut self, _: u64) {}
}

/// Bytes of a run of `CALLS` calls in nests of 8, by 16 functions on 4 threads.
fn script() -> Vec<u8> {
    let mut bytes = Vec::new();
    for method in 1..=16 {
        name(method, &format!("demo::function_{method} [demo]")).encode(&mut bytes);
    }
    let mut sequence = 0;
    for nest in 0..CALLS / 8 {
        let thread = (nest % 4) as u16;
        let at_ms = nest / 100;
        let methods = (0..8).map(|depth| (nest + depth) % 16 + 1);
        for method in methods.clone() {
            let entry = AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            };
            entry.encode(&mut bytes);
            sequence += 1;
        }
        for method in methods.rev() {
            let exit = AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line: 65535,
                thread,
            };
            exit.encode(&mut bytes);
            sequence += 1;
        }
    }
    bytes
}

#[test]
#[ignore = "measures; needs an optimized build and a quiet machine"]
fn receiving() {
    let bytes = script();
    let address = "127.0.0.1:0".parse().unwrap();
    let count = |_, _| Ok(Box::new(Count(0)) as Box<dyn Receiver>);
    let hq = profiler_serve::hq::Hq::start(address, HqOptions::default(), count).unwrap();
    let (control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    let began = Instant::now();
    one.bytes(&bytes);
    finish(control, vec![one]);
    let report = ended(&hq);
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(report.failure, None);
    assert_eq!(report.counts.calls, u64::from(CALLS) * 2);
    println!(
        "checked and counted: {:.2} M messages/s, {:.0} MB/s",
        f64::from(CALLS) * 2.0 / seconds / 1e6,
        bytes.len() as f64 / seconds / 1e6
    );
}

#[test]
#[ignore = "measures; needs an optimized build and a quiet machine"]
fn into_a_capture() -> Outcome {
    let Some(setting) = Setting::unprivileged("hq_cost")? else {
        return Ok(());
    };
    let bytes = script();
    let mut receiver = Receiving::start(&setting, &["--runs", "1"]);
    let (control, run) = agent(receiver.address);
    let mut one = data(receiver.address, run);
    let began = Instant::now();
    one.bytes(&bytes);
    finish(control, vec![one]);
    let said = receiver.end();
    let seconds = began.elapsed().as_secs_f64();
    assert!(said.contains("is complete"), "{said}");
    println!(
        "into a capture: {:.2} M messages/s, {:.0} MB/s",
        f64::from(CALLS) * 2.0 / seconds / 1e6,
        bytes.len() as f64 / seconds / 1e6
    );
    Ok(())
}
