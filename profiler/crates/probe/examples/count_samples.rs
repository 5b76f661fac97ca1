//! Samples the whole machine for a second, as root, and counts the samples.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use profiler_model::raw::RawBody;
use profiler_probe::{EventSpec, Probe, ProbeOptions, Rate, SourceSpec};
use profiler_target::Filter;

fn main() -> Result<(), Box<dyn Error>> {
    let mut probe = Probe::attach(ProbeOptions {
        hierarchy: None,
        sources: vec![SourceSpec {
            event: EventSpec::Default,
            rate: Rate::FrequencyHz(99),
        }],
        filter: Filter::default(),
        buffer_bytes: 8 << 20,
        kernel_stacks: true,
        user_stacks: true,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
        calls: None,
    })?;
    let mut events = Vec::new();
    for _ in 0..10 {
        sleep(Duration::from_millis(100));
        probe.drain(&mut events);
    }
    let is_sample = |body: &RawBody| matches!(body, RawBody::Sample(_));
    let samples = events.iter().filter(|event| is_sample(&event.body));
    println!("{} samples", samples.count());
    // Dropping the probe takes everything back out of the kernel.
    Ok(())
}
