//! Losses of the kernel side: counters of each processor -> how many samples and calls are missing,
//! and why.
//!
//! | counter | reason | exact? |
//! |---|---|---|
//! | `ring_full` | the ring buffer had no room | yes |
//! | `nested` | no scratch memory was left | yes |
//! | `lost` of calls | the ring buffer for calls had no room | yes |
//! | `skipped` | another BPF program ran when the clock ticked | an estimate |
//!
//! Skipped ticks are estimated for clocks only (cpu-clock, task-clock), whose next tick is known to
//! the nanosecond. The kernel side counts a tick as skipped if the next one that arrives is on time,
//! a whole number of periods after the last: then the timer ran in between, and only the program
//! did not. Ticks missing before one that is late are not losses: the processor took no interrupts
//! (it had been taken away by a hypervisor, was offline, slept), so nothing ran that could have been
//! sampled. (A late tick can be on time by chance, one in eight; gaps of more than 16 periods never
//! count.) Idle processors tick as well and are counted as idle;
//! what is missing next to an idle tick is no loss either. Counters of hardware and of
//! frequency mode have no known next tick; nothing is estimated for them.

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
};
use profiler_common::{call::CallCpu, control::Counters};

use super::{bpf, hotplug, load, sys::CountersValue};
use crate::model::raw::{RawBody, RawEvent};
use crate::model::{Cpu, Lost, LostReason, Timestamp};

/// Counters of the first `sources` sources, by source and processor.
pub(super) fn read_counters(ebpf: &Ebpf, sources: usize) -> Vec<Vec<Counters>> {
    let Some(map) = ebpf.map("COUNTERS") else {
        return Vec::new();
    };
    let Ok(map) = PerCpuArray::<&MapData, CountersValue>::try_from(map) else {
        return Vec::new();
    };
    (0..sources as u32)
        .map(|source| match map.get(&source, 0) {
            Ok(values) => values.iter().map(|value| value.0).collect(),
            Err(_) => Vec::new(),
        })
        .collect()
}

/// How many records of calls each processor has lost.
pub(super) fn read_call_losses(ebpf: &Ebpf) -> Vec<u64> {
    let mut values: Vec<CallCpu> = Vec::new();
    let read = load::map_fd(ebpf, "CALL_CPU")
        .map_err(|error| error.to_string())
        .and_then(|map| {
            let cpus = hotplug::possible_cpus().map_err(|error| error.to_string())?;
            bpf::read_array(map, 0, 1, cpus.len(), &mut values).map_err(|error| error.to_string())
        });
    if let Err(error) = read {
        log::warn!("failed to read how many calls were lost: {error}");
    }
    values.iter().map(|cpu| cpu.lost).collect()
}

/// Totals of one processor that have been reported.
#[derive(Clone, Copy, Default)]
struct Reported {
    ring_full: u64,
    nested: u64,
    skipped: u64,
    calls: u64,
}

/// Remembers what has been reported.
pub(super) struct LossMeter {
    last: Timestamp,
    reported: Vec<Reported>,
    unfollowed: u64,
}

impl LossMeter {
    /// A meter that begins at `now`.
    pub(super) fn new(now: Timestamp) -> LossMeter {
        LossMeter {
            last: now,
            reported: Vec::new(),
            unfollowed: 0,
        }
    }

    /// Adds what has been lost since the last call to `out`. Returns how many children of watched
    /// tasks could not be followed since then: how many samples that costs nobody knows.
    pub(super) fn update(
        &mut self,
        counters: &[Vec<Counters>],
        lost_calls: &[u64],
        now: Timestamp,
        out: &mut Vec<RawEvent>,
    ) -> u64 {
        let cpus = counters.iter().map(Vec::len).max().unwrap_or(0);
        let cpus = cpus.max(lost_calls.len());
        self.reported.resize(cpus, Reported::default());
        for (cpu, reported) in self.reported.iter_mut().enumerate() {
            let mut total = Reported::default();
            for seen in counters.iter().filter_map(|source| source.get(cpu)) {
                total.ring_full += seen.ring_full;
                total.nested += seen.nested;
                total.skipped += seen.skipped;
            }
            total.calls = lost_calls.get(cpu).copied().unwrap_or(0);
            let cpu = Cpu(cpu as u32);
            for (reason, total, before) in [
                (LostReason::RingFull, total.ring_full, reported.ring_full),
                (LostReason::Nested, total.nested, reported.nested),
                (LostReason::Skipped, total.skipped, reported.skipped),
                (LostReason::CallRingFull, total.calls, reported.calls),
            ] {
                let count = total.saturating_sub(before);
                if count > 0 {
                    out.push(RawEvent {
                        at: now,
                        cpu,
                        body: RawBody::Lost(Lost {
                            cpu: Some(cpu),
                            from: self.last,
                            to: now,
                            count,
                            reason,
                        }),
                    });
                }
            }
            *reported = total;
        }
        self.last = now;
        let unfollowed = counters.iter().flatten().map(|seen| seen.unfollowed).sum();
        unfollowed - std::mem::replace(&mut self.unfollowed, unfollowed).min(unfollowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(ring_full: u64, skipped: u64) -> Counters {
        Counters {
            ring_full,
            skipped,
            ..Counters::default()
        }
    }

    #[test]
    fn children_that_are_not_followed_are_told_once() {
        let mut meter = LossMeter::new(Timestamp(5));
        let unfollowed = |unfollowed| Counters {
            unfollowed,
            ..Counters::default()
        };
        let mut out = Vec::new();
        let mut update = |counts: [u64; 2]| {
            meter.update(
                &[counts.map(unfollowed).to_vec()],
                &[],
                Timestamp(9),
                &mut out,
            )
        };
        assert_eq!([update([2, 1]), update([2, 1]), update([2, 5])], [3, 0, 4]);
    }

    #[test]
    fn only_what_is_new_is_reported_per_processor_over_all_sources() {
        let mut meter = LossMeter::new(Timestamp(5));
        let mut out = Vec::new();
        let idle = Counters::default();
        let first = [vec![idle, counters(2, 0)], vec![idle, counters(1, 7)]];
        meter.update(&first, &[0, 5], Timestamp(10), &mut out);
        meter.update(&first, &[0, 5], Timestamp(20), &mut out);
        let second = [vec![idle, counters(2, 0)], vec![idle, counters(5, 7)]];
        meter.update(&second, &[2, 5], Timestamp(30), &mut out);
        let seen: Vec<_> = out
            .iter()
            .map(|event| match &event.body {
                RawBody::Lost(lost) => {
                    (event.cpu.0, lost.reason, lost.count, lost.from.0, lost.to.0)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            seen,
            [
                (1, LostReason::RingFull, 3, 5, 10),
                (1, LostReason::Skipped, 7, 5, 10),
                (1, LostReason::CallRingFull, 5, 5, 10),
                (0, LostReason::CallRingFull, 2, 20, 30),
                (1, LostReason::RingFull, 4, 20, 30),
            ]
        );
    }
}
