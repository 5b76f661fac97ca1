//! Suspends tracing for a while, at once and without a trace in the targets, and takes it up again.
//!
//! Orders of whoever asked for the recording -> probes whose hits count for nothing, and a gap. While
//! that lasts, new processes and files are still followed, so that nothing is missed when it ends.
//!
//! The gap is told twice: when it begins, without a length, and when it ends. At both, calls that are
//! open end as inferred (`resolve`), since what becomes of them can't be told from what becomes of
//! others. Before an order to suspend is told nothing counts any more, and nothing counts again before
//! its end is told: so no call of the one side is paired with one of the other.
//!
//! What does not belong here: when to (the session), samples.

#[cfg(test)]
mod tests;

use super::links::tell_unlinked;
use super::{Tracer, counts, gap};
use profiler_model::raw::RawEvent;
use profiler_model::{GapReason, Timestamp};
use profiler_probe::{Probe, now};

/// What lasts longer gives the targets their own code back: a hit that counts for nothing still costs
/// its trap.
const DETACH_NS: u64 = 5_000_000_000;

/// A time in which nothing is traced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspension {
    since: Timestamp,
}

impl Tracer {
    /// From now on nothing is recorded or counted, until [`Tracer::resume`]. Steps go on meanwhile.
    pub(in crate::pipeline) fn suspend(&mut self, probe: &mut Probe, out: &mut Vec<RawEvent>) {
        if self.suspension.is_some() {
            return;
        }
        self.plans.probes.disarm(probe);
        if let Err(error) = probe.forget_open_calls() {
            log::warn!("{error}");
        }
        let at = now();
        self.suspension = Some(Suspension { since: at });
        out.push(gap(at, at, None, None, GapReason::Suspended));
    }

    /// Records again, in all that has come up meanwhile too.
    pub(in crate::pipeline) fn resume(&mut self, probe: &mut Probe, out: &mut Vec<RawEvent>) {
        let Some(suspension) = self.suspension.take() else {
            return;
        };
        if std::mem::take(&mut self.links.are_out) {
            for object in 0..self.plans.objects.len() {
                for process in self.targets.having(object) {
                    if let Err(error) = self.attach(probe, object, process) {
                        tell_unlinked(process, &error);
                    }
                }
            }
        }
        let probes = &mut self.plans.probes;
        counts::read(probes, probe);
        let at = now();
        self.budget.begin(probes, &self.targets, at);
        probes.begin_duty(at, out);
        out.push(gap(at, suspension.since, None, None, GapReason::Suspended));
        let all = probes.all();
        if let Err(error) = probes.arm(probe, &all) {
            log::warn!("tracing does not go on: {error}");
        }
    }

    /// Where tracing is suspended: detaches all when that has lasted. Only links that go and come in
    /// one system call: those of old kernels would take longer than most suspensions.
    pub(super) fn keep_suspended(&mut self, probe: &mut Probe, suspension: Suspension) {
        let is_multi = probe.call_support().is_some_and(|support| support.multi);
        if !is_multi || self.links.are_out || now().since(suspension.since) < DETACH_NS {
            return;
        }
        // Links are closed while nobody waits: should tracing go on before all have gone, what is
        // attached then is of another generation.
        let all = self.plans.probes.all();
        self.plans.probes.turn(all.iter().copied());
        if let Err(error) = self.plans.probes.tell(probe, &all) {
            log::warn!("{error}");
        }
        self.links.release_all(probe);
    }

    /// The gap that lasts until now, if tracing is suspended.
    pub(super) fn close_suspension(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        if let Some(suspension) = self.suspension.take() {
            out.push(gap(at, suspension.since, None, None, GapReason::Suspended));
        }
    }
}
