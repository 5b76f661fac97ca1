//! What a traced call costs on its way from the ring buffers to the file: merged by time, paired,
//! encoded, written. To repeat the figures of docs/formats/capture.md:
//! `cargo test --release -p profiler-tests --test formats calls_cost:: -- --ignored --nocapture`.
//!
//! The calls are simulated: two processors, each with a thread of its own that calls some of 100
//! functions up to 20 deep, a million records in a second, drained every 10 ms.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use profiler_capture::{CreateOptions, Existing, Reader, TimeRange, Writer};
use profiler_model::order::Order;
use profiler_model::raw::{RawBody, RawCall, RawEdge, RawEvent};
use profiler_model::*;
use profiler_resolve::{ResolveOptions, Resolver, Role, TracedProbe};
use profiler_tests::arbitrary::Random;

const RECORDS: u64 = 1_000_000;
const DRAIN_NS: u64 = 10_000_000;
/// Pids that no real process has (beyond the kernel's largest).
const NOBODY: u32 = 5_000_000;

/// One thread on one processor.
struct Simulation {
    random: Random,
    cpu: u32,
    now: u64,
    open: Vec<u32>,
}

impl Simulation {
    fn record(&mut self) -> RawEvent {
        // Two processors share the million.
        let mean = 1_000_000_000 / (RECORDS / 2);
        self.now += mean / 2 + self.random.below(mean as usize) as u64;
        let deep = self.open.len();
        let enter = deep == 0 || deep < 20 && self.random.below(2) == 0;
        let place = |deep: usize| 0x7fff_0000_0000 + u64::from(self.cpu << 24) - deep as u64 * 96;
        let (edge, probe, sp) = if enter {
            let probe = self.random.below(100) as u32;
            self.open.push(probe);
            (RawEdge::Enter, probe, place(deep))
        } else {
            (RawEdge::Exit, self.open.pop().unwrap(), place(deep - 1))
        };
        let call = RawCall {
            pid: Pid(NOBODY),
            tid: Tid(NOBODY + self.cpu),
            probe,
            site: u8::from(edge == RawEdge::Exit),
            edge,
            after_loss: false,
            stack: 0,
            sp,
            caller: 0,
            began: Timestamp(0),
            values: None,
        };
        RawEvent {
            at: Timestamp(self.now),
            cpu: Cpu(self.cpu),
            body: RawBody::Call(call),
        }
    }
}

fn resolver() -> Box<Resolver> {
    let options = ResolveOptions {
        debug_dirs: Vec::new(),
        ..ResolveOptions::default()
    };
    let mut resolver = Resolver::new(options).unwrap();
    for probe in 0..100 {
        let traced = TracedProbe {
            name: format!("function_{probe}").into(),
            linkage_name: None,
            path: "/usr/bin/work".into(),
            build_id: None,
            address_bias: 0,
            start: 0x1000 + u64::from(probe) * 0x100,
            size: 0x80,
            source: None,
            declared: 0,
            line: 100 + probe,
            // One way out, as most functions have.
            exit_lines: [109 + probe].into(),
            kind: TracedKind::Function,
            entry_offset: 0,
            returns: ReturnMode::Instructions,
            cost_ns: 500,
            values: None,
            role: Role::Call,
            exception: None,
        };
        resolver.trace(probe, traced);
    }
    resolver
}

/// CPU time of this thread: other work on the machine does not count.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
#[ignore = "a measurement, to be run optimised and alone"]
fn cost_of_a_call() {
    let path = std::env::temp_dir().join(format!("calls-cost-{}.cap", std::process::id()));
    println!(
        "RawEvent: {} bytes, Event: {} bytes",
        size_of::<RawEvent>(),
        size_of::<Event>()
    );
    println!("CPU time of the thread, ns per record: the least of five rounds");
    let mut least = [Duration::MAX; 4];
    let mut line = String::new();
    for _ in 0..5 {
        let (times, said) = run(&path);
        for (least, time) in least.iter_mut().zip(times) {
            *least = (*least).min(time);
        }
        line = said;
    }
    let [order, resolve, write, replay] = least.map(|time| time.as_nanos() as u64 / RECORDS);
    println!("order {order}, pair {resolve}, write {write}; replay {replay}");
    println!("{line}");
    std::fs::remove_file(&path).unwrap();
    assert!(
        order + resolve + write < 500,
        "a million a second takes more than half a processor"
    );
}

/// CPU time to merge, to pair, to write, to replay; and the sizes.
fn run(path: &std::path::Path) -> ([Duration; 4], String) {
    let options = CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(path, options).unwrap();
    let (mut resolver, mut order) = (resolver(), Order::new(10_000_000));
    let start = 1 << 40;
    let mut cpus = [0, 1].map(|cpu| Simulation {
        random: Random(u64::from(cpu)),
        cpu,
        now: start,
        open: Vec::new(),
    });
    let (begin, mut spent) = (Instant::now(), [Duration::ZERO; 4]);
    let mut record = |events: &mut Vec<RawEvent>, until: Option<u64>| {
        let (mut ordered, mut batches) = (Vec::new(), Vec::new());
        let times = [
            cpu(),
            {
                order.push(events);
                match until {
                    Some(until) => order.release(Timestamp(until), &mut ordered),
                    None => order.finish(&mut ordered),
                }
                cpu()
            },
            {
                resolver.resolve(&mut ordered, &mut batches);
                cpu()
            },
            {
                for batch in &batches {
                    writer.write(batch).unwrap();
                }
                // Flushes at the pace of the recording, not of the simulation.
                writer
                    .tick(begin + Duration::from_nanos(until.unwrap_or(start) - start))
                    .unwrap();
                cpu()
            },
        ];
        for (spent, pair) in spent.iter_mut().zip(times.windows(2)) {
            *spent += pair[1] - pair[0];
        }
    };
    let mut events = Vec::new();
    for drain in 1..=1_000_000_000 / DRAIN_NS {
        let until = start + drain * DRAIN_NS;
        for cpu in &mut cpus {
            while cpu.now < until {
                events.push(cpu.record());
            }
        }
        record(&mut events, Some(until));
    }
    record(&mut events, None);
    let totals = writer.finish().unwrap();
    let calls = totals.events[5];
    assert_eq!(totals.events[4], 0, "something was lost");

    let mut reader = Reader::open(path).unwrap();
    let tables = reader.load_tables().unwrap();
    let mut seen = 0u64;
    let replayed = cpu();
    let each = &mut |_: &Event, _: &Tables| {
        seen += 1;
        Ok(())
    };
    reader.replay(&tables, TimeRange::ALL, each).unwrap();
    spent[3] = cpu() - replayed;
    let summary = reader.summary().unwrap();
    assert_eq!(
        (seen, summary.damage.len()),
        (totals.events.iter().sum(), 0)
    );
    assert_eq!(
        (summary.calls.inferred, summary.calls.returned > 0),
        (0, true)
    );
    let line = format!(
        "{calls} records: {:.2} bytes each before packing, {:.2} in the file",
        summary.raw_bytes.1 as f64 / calls as f64,
        totals.bytes as f64 / calls as f64,
    );
    (spent, line)
}
