//! What a hit costs on this machine: measured on functions of our own, in this process.
//!
//! The cost is what a call takes longer with a probe, the record and all; times are nanoseconds.
//! Minima of several rounds, because whatever else the machine does only makes a round longer.

use std::{fs::File, os::fd::AsFd, time::Instant};

use profiler_common::call::{EDGE_ENTER, EDGE_EXIT, EDGE_HIT, ProbeControl};

use super::specimen::{RETURNING, SPECIMENS, Specimen, red_zone_lives, red_zone_offset};
use super::{CallOptions, CallSite, CallTarget};
use crate::{Probe, ProbeError, ProbeOptions};
use profiler_model::Pid;
use profiler_target::Filter;
use profiler_trace::cost::{CostTable, KINDS};

const ROUNDS: u32 = 10;
/// Few enough that a round is rarely interrupted, and its records fit a buffer.
const CALLS_PER_ROUND: u32 = 200;

/// Measures all kinds of instructions, attached together. Takes some tenths of a second.
pub fn calibrate() -> Result<CostTable, ProbeError> {
    let mut probe = Probe::attach(ProbeOptions {
        hierarchy: None,
        sources: Vec::new(),
        calls: Some(CallOptions {
            max_probes: 1,
            buffer_bytes: 1 << 20,
            fetches: false,
            callers: false,
            per_process: true,
            min_duration_ns: 0,
            max_depth: 0,
            max_rate: 0,
        }),
        filter: Filter::default(),
        buffer_bytes: 1 << 18,
        kernel_stacks: false,
        user_stacks: false,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
    })?;
    let on = ProbeControl {
        generation: 1,
        ..ProbeControl::default()
    };
    probe.set_probe(0, on, &[])?;
    let failed = |error| ProbeError::from_io("find our own functions", error);
    let mut sites = Vec::new();
    for specimen in SPECIMENS {
        sites.push(site(specimen.offset().map_err(failed)?, EDGE_HIT));
    }
    let returning = RETURNING.offset().map_err(failed)?;
    sites.push(site(returning, EDGE_ENTER));
    sites.push(CallSite {
        return_probe: true,
        ..site(returning, EDGE_EXIT)
    });
    sites.push(site(red_zone_offset().map_err(failed)?, EDGE_HIT));

    let without_ns = SPECIMENS.map(|specimen| fastest_ns(&mut probe, specimen));
    let file = File::open("/proc/self/exe")
        .map_err(|error| ProbeError::from_io("open our own program", error))?;
    let target = CallTarget::Process(Pid(std::process::id()));
    let (link, refused) = probe.attach_calls(target, file.as_fd(), &sites)?;
    if let Some((_, error)) = refused.into_iter().next() {
        return Err(error);
    }
    let mut entry_ns = [0; KINDS.len()];
    for ((entry, specimen), without) in entry_ns.iter_mut().zip(SPECIMENS).zip(without_ns) {
        *entry = fastest_ns(&mut probe, specimen)
            .saturating_sub(without)
            .max(1);
    }
    let push = KINDS
        .iter()
        .position(|kind| *kind == profiler_trace::InstructionKind::Push);
    let both_ns = fastest_ns(&mut probe, RETURNING);
    let return_ns = both_ns.saturating_sub(push.map_or(0, |push| entry_ns[push]));
    // A kernel that makes a call of a no-operation writes below the stack pointer: what it writes over
    // here is nobody else's.
    let nop5_is_call = !red_zone_lives();
    probe.detach_calls(link);
    Ok(CostTable::measured(entry_ns, return_ns, nop5_is_call))
}

fn site(offset: u64, edge: u32) -> CallSite {
    CallSite {
        offset,
        probe: 0,
        site: 0,
        edge,
        generation: 1,
        return_probe: false,
        semaphore: None,
    }
}

/// What a call takes in the fastest round.
fn fastest_ns(probe: &mut Probe, specimen: Specimen) -> u32 {
    let mut events = Vec::new();
    let mut round = || {
        let start = Instant::now();
        specimen.call(CALLS_PER_ROUND);
        let spent_ns = start.elapsed().as_nanos() / u128::from(CALLS_PER_ROUND);
        // Records must find room.
        probe.drain(&mut events);
        events.clear();
        u32::try_from(spent_ns).unwrap_or(u32::MAX)
    };
    // The first has cold caches, or is the first after a change of the code.
    round();
    (0..ROUNDS).map(|_| round()).min().unwrap_or(0)
}
