//! What a sample costs in a capture: bytes, time to write, time to read. The figures of
//! docs/formats/capture.md; to repeat them:
//! `cargo test --release -p profiler-tests --test formats capture_cost:: -- --ignored --nocapture`.
//!
//! The recording is simulated: two processors, 200 threads of which a few run most of the time,
//! stacks of 8 to 39 frames by a skewed choice among 20,000, a kernel stack in a quarter of the
//! samples, ticks that jitter by some microseconds.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use profiler_capture::{CreateOptions, Existing, Reader, TimeRange, Writer};
use profiler_model::*;
use profiler_tests::arbitrary::Random;

const THREADS: usize = 200;
const STACKS: usize = 20_000;

/// One of so many, the low ones far more often.
fn skewed(random: &mut Random, count: usize) -> usize {
    let mut end = count;
    while end > 8 && random.below(3) > 0 {
        end /= 3;
    }
    random.below(end)
}

struct Simulation {
    random: Random,
    interval_ns: u64,
    now: [u64; 2],
    running: [usize; 2],
    /// Leaf of each call chain, once it has been seen.
    leaves: Vec<Option<StackId>>,
    threads: Vec<Option<ThreadId>>,
    counts: (usize, usize, usize),
}

impl Simulation {
    fn new(hz: u64) -> Simulation {
        Simulation {
            random: Random(1),
            interval_ns: 1_000_000_000 / hz,
            now: [1 << 40, (1 << 40) + 70_000],
            running: [0, 1],
            leaves: vec![None; STACKS * 2],
            threads: vec![None; THREADS],
            counts: (0, 0, 0),
        }
    }

    fn start(&self) -> Batch {
        let text = |i: usize, text: &str| Definition::String(StringId::from_index(i), text.into());
        let source = Source {
            name: StringId::from_index(0),
            unit: Unit::Nanoseconds,
            frequency_hz: Some(1_000_000_000 / self.interval_ns),
            period: None,
        };
        let process = Process {
            pid: Pid(100),
            started: Timestamp(1),
            parent: None,
            name: StringId::from_index(0),
            executable: None,
            command: None,
            namespace_pids: vec![],
            uid: None,
            cgroup: None,
            container: None,
        };
        let module = Module {
            kind: ModuleKind::File,
            path: StringId::from_index(1),
            build_id: None,
            address_bias: 0,
        };
        Batch {
            epoch: 0,
            definitions: vec![
                text(0, "cpu-clock"),
                text(1, "/usr/bin/work"),
                Definition::Source(SourceId::from_index(0), source),
                Definition::Process(ProcessId::from_index(0), process),
                Definition::Module(ModuleId::from_index(0), module),
            ],
            events: Vec::new(),
        }
    }

    fn thread(&mut self, index: usize, batch: &mut Batch) -> ThreadId {
        *self.threads[index].get_or_insert_with(|| {
            let id = ThreadId::from_index(self.counts.2);
            self.counts.2 += 1;
            let thread = Thread {
                process: ProcessId::from_index(0),
                tid: Tid(100 + index as u32),
                started: Timestamp(index as u64),
                name: StringId::from_index(0),
            };
            batch.definitions.push(Definition::Thread(id, thread));
            id
        })
    }

    fn stack(&mut self, index: usize, batch: &mut Batch) -> StackId {
        if let Some(leaf) = self.leaves[index] {
            return leaf;
        }
        // A new chain shares its outer part with an earlier one, as call trees do.
        let mut parent = self.leaves[index / 2];
        let fresh = if parent.is_some() { 3 } else { 8 };
        for _ in 0..fresh {
            let frame = if self.counts.0 > 100 && self.random.below(2) == 0 {
                FrameId::from_index(skewed(&mut self.random, self.counts.0))
            } else {
                let id = FrameId::from_index(self.counts.0);
                self.counts.0 += 1;
                let frame = Frame {
                    kind: FrameKind::Native,
                    module: Some(ModuleId::from_index(0)),
                    address: self.random.number() & 0xf_ffff,
                };
                batch.definitions.push(Definition::Frame(id, frame));
                id
            };
            let id = StackId::from_index(self.counts.1);
            self.counts.1 += 1;
            batch
                .definitions
                .push(Definition::Stack(id, Stack { parent, frame }));
            parent = Some(id);
        }
        self.leaves[index] = parent;
        parent.unwrap()
    }

    fn batch(&mut self, samples: usize) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..samples {
            let cpu = usize::from(self.now[1] < self.now[0]);
            if self.random.below(4) == 0 {
                self.running[cpu] = skewed(&mut self.random, THREADS);
            }
            let thread = self.thread(self.running[cpu], &mut batch);
            let chain = skewed(&mut self.random, STACKS);
            let user = Some(self.stack(chain, &mut batch));
            let in_kernel = self.random.below(4) == 0;
            let chain = STACKS + skewed(&mut self.random, STACKS / 20);
            let kernel = in_kernel.then(|| self.stack(chain, &mut batch));
            batch.events.push(Event::Sample(
                Sample::new(
                    Timestamp(self.now[cpu]),
                    thread,
                    Cpu(cpu as u32),
                    SourceId::from_index(0),
                    self.interval_ns,
                )
                .with_stacks(kernel, user),
            ));
            let jitter = self.random.below(5000) as u64;
            self.now[cpu] += self.interval_ns + jitter - 2500;
        }
        batch
    }
}

/// CPU time of this thread: other work on the machine does not count.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
#[ignore = "a measurement, to be run optimised and alone"]
fn cost_of_a_sample() {
    let path = std::env::temp_dir().join(format!("capture-cost-{}.cap", std::process::id()));
    println!("CPU time, the least of five interleaved rounds");
    println!("level   Hz  samples  raw B/event  file B/sample  write ns  replay M/s");
    let runs = [
        (1, 4999, 1_000_000usize),
        (3, 4999, 1_000_000),
        (6, 4999, 1_000_000),
        (1, 99, 20_000),
        (3, 99, 20_000),
    ];
    let mut least = [(Duration::MAX, Duration::MAX); 5];
    let mut lines = vec![String::new(); 5];
    for _ in 0..5 {
        for (i, &(level, hz, samples)) in runs.iter().enumerate() {
            let (write, replay, line) = run(&path, level, hz, samples);
            least[i] = (least[i].0.min(write), least[i].1.min(replay));
            lines[i] = line;
        }
    }
    for (i, line) in lines.iter().enumerate() {
        let samples = runs[i].2 as f64;
        let (write, replay) = least[i];
        let (write, replay) = (
            write.as_nanos() as f64 / samples,
            samples / replay.as_secs_f64(),
        );
        println!("{line} {write:9.0} {:11.1}", replay / 1e6);
    }
    std::fs::remove_file(&path).unwrap();
}

/// CPU time to write, to replay, and the sizes.
fn run(path: &Path, level: i32, hz: u64, samples: usize) -> (Duration, Duration, String) {
    let options = CreateOptions {
        existing: Existing::Replace,
        level,
        ..CreateOptions::default()
    };
    let mut simulation = Simulation::new(hz);
    let mut writer = Writer::create(path, options).unwrap();
    writer.write(&simulation.start()).unwrap();
    let per_batch = (hz as usize * 2 / 10).max(1);
    let (begin, first) = (Instant::now(), simulation.now[0]);
    let mut spent = Duration::ZERO;
    for _ in 0..samples / per_batch {
        let batch = simulation.batch(per_batch);
        let recorded = Duration::from_nanos(simulation.now[0] - first);
        let start = cpu();
        writer.write(&batch).unwrap();
        // Flushes at the pace of the recording, not of the simulation.
        writer.tick(begin + recorded).unwrap();
        spent += cpu() - start;
    }
    let start = cpu();
    let totals = writer.finish().unwrap();
    spent += cpu() - start;
    let count = totals.events[0];

    let mut reader = Reader::open(path).unwrap();
    let tables = reader.load_tables().unwrap();
    let start = cpu();
    let mut seen = 0u64;
    let each = &mut |_: &Event, _: &Tables| {
        seen += 1;
        Ok(())
    };
    reader.replay(&tables, TimeRange::ALL, each).unwrap();
    let replay = cpu() - start;
    assert_eq!(seen, count);
    let summary = reader.summary().unwrap();
    assert_eq!(summary.damage, []);
    let line = format!(
        "{level:5} {hz:4} {count:8} {:12.2} {:14.2}",
        summary.raw_bytes.1 as f64 / count as f64,
        totals.bytes as f64 / count as f64,
    );
    (spent, replay, line)
}
