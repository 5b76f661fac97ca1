//! What a session takes in: the kernel's buffers, markers, the wall clock, losses -> raw events in the order of
//! time.
//!
//! Clock: CLOCK_MONOTONIC, but for how often things are done. What does not belong here: what events mean
//! (`walk`).

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::counts::Counts;
use super::own::OwnProcesses;
use super::window::Window;
use crate::pipeline::marks::Marks;
use profiler_model::order::Order;
use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{Cpu, LostKind, LostReason, Pid, Timestamp};
use profiler_probe::{AttachedSource, Probe, now};

/// How often losses are asked for, processors looked at and the wall clock read.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// How often the wall clock is put into the recording.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);
/// Events held back to be ordered; more are passed on unordered rather than kept.
const MAX_PENDING: usize = 1 << 20;

/// The sources of raw events, merged by time.
pub(super) struct Collector {
    /// None once it was detached.
    probe: Option<Box<Probe>>,
    /// What was taken in and is not in order yet.
    raw: Vec<RawEvent>,
    order: Order,
    /// What was released. Empty between two uses, kept for its memory.
    released: Vec<RawEvent>,
    marks: Option<Marks>,
    slow_tick: Instant,
    clock_tick: Option<Instant>,
    own: OwnProcesses,
    /// Samples and waits of these are not wanted.
    no_self: bool,
    sources: Vec<AttachedSource>,
    kernel_bytes: u64,
}

impl Collector {
    /// Of a probe that is attached, and what it has recorded already; beside a command that is about to run.
    pub(super) fn new(
        probe: Box<Probe>,
        raw: Vec<RawEvent>,
        no_self: bool,
        command: Option<Pid>,
    ) -> Collector {
        let marks = Marks::listen()
            .inspect_err(|error| log::warn!("'profiler mark' will not reach this: {error}"));
        Collector {
            sources: probe.sources().to_vec(),
            kernel_bytes: probe.memory_bytes(),
            probe: Some(probe),
            raw,
            order: Order::new(MAX_PENDING),
            released: Vec::new(),
            marks: marks.ok(),
            slow_tick: Instant::now(),
            clock_tick: None,
            own: OwnProcesses::watch(command),
            no_self,
        }
    }

    /// The probe, as long as it is attached.
    pub(super) fn probe(&mut self) -> Option<&mut Probe> {
        self.probe.as_deref_mut()
    }

    /// The same, and what was taken in.
    pub(super) fn attached(&mut self) -> Option<(&mut Probe, &mut Vec<RawEvent>)> {
        Some((self.probe.as_deref_mut()?, &mut self.raw))
    }

    /// Whether the kernel's buffers do not bear waiting.
    pub(super) fn is_awake(&self) -> bool {
        self.probe.as_deref().is_some_and(Probe::is_awake)
    }

    /// Takes what is in the kernel's buffers, without samples and calls that are not wanted; how many calls
    /// there are.
    pub(super) fn drain(&mut self, window: &Window, counts: &mut Counts) -> u64 {
        let Some(probe) = &mut self.probe else {
            return 0;
        };
        probe.drain(&mut self.raw);
        let (mut samples, mut own_samples, mut calls) = (0, 0, 0);
        let no_self = self.no_self;
        let own = self.own.now(&self.raw);
        self.raw.retain(|event| match &event.body {
            RawBody::Sample(_) | RawBody::Call(_) | RawBody::Wait(_) | RawBody::Waits(_)
                if !window.is_open_at(event.at) =>
            {
                false
            }
            // What was not wanted is not missing.
            RawBody::CallCount(_) if window.is_before(event.at) => false,
            RawBody::Lost(lost) if window.is_before(lost.to) && is_of_hits(lost.reason) => false,
            RawBody::Sample(sample) if own.has(sample.pid) => {
                own_samples += u64::from(!no_self);
                !no_self
            }
            RawBody::Wait(wait) if no_self && own.has(Pid(wait.record.tgid)) => false,
            RawBody::Waits(waits) if no_self && own.has(waits.pid) => false,
            RawBody::Sample(_) | RawBody::Wait(_) => {
                samples += 1;
                true
            }
            RawBody::Call(_) => {
                calls += 1;
                true
            }
            _ => true,
        });
        counts.samples += samples + own_samples;
        counts.own_samples += own_samples;
        counts.calls += calls;
        calls
    }

    /// Puts what was taken in in order.
    pub(super) fn sort_in(&mut self) {
        self.order.push(&mut self.raw);
    }

    /// How many events wait for their turn.
    pub(super) fn held_back(&self) -> usize {
        self.order.pending()
    }

    /// What has happened until then, or all of it. To be given back by [`Collector::reuse`].
    pub(super) fn release(&mut self, until: Option<Timestamp>) -> Vec<RawEvent> {
        let mut released = std::mem::take(&mut self.released);
        match until {
            Some(until) => self.order.release(until, &mut released),
            None => self.order.finish(&mut released),
        }
        released
    }

    /// A list that is done with.
    pub(super) fn reuse(&mut self, released: Vec<RawEvent>) {
        self.released = released;
    }

    /// What does not come by itself: losses, markers, the wall clock, processors.
    pub(super) fn extras(&mut self, at: Timestamp) {
        self.take_marks(at);
        let now = Instant::now();
        if self
            .clock_tick
            .is_none_or(|last| now - last >= CLOCK_INTERVAL)
        {
            self.clock_tick = Some(now);
            self.read_clock();
        }
        if now - self.slow_tick < SLOW_TICK {
            return;
        }
        self.slow_tick = now;
        self.losses(at);
        if let Some(probe) = &mut self.probe
            && let Err(error) = probe.update_cpus()
        {
            log::warn!("a processor that came online is not recorded: {error}");
        }
    }

    /// Losses that else are told with the next [`Collector::extras`].
    pub(super) fn losses(&mut self, at: Timestamp) {
        if let Some(probe) = &mut self.probe {
            probe.losses(at, &mut self.raw);
        }
    }

    /// What is still to be told before it ends.
    pub(super) fn last_extras(&mut self, at: Timestamp) {
        // Who set one just before the end was told that it was recorded.
        self.take_marks(at);
        self.read_clock();
    }

    fn take_marks(&mut self, at: Timestamp) {
        while let Some(text) = self.marks.as_ref().and_then(Marks::next) {
            self.raw.push(RawEvent {
                at,
                cpu: Cpu(0),
                body: RawBody::Mark(text),
            });
        }
    }

    fn read_clock(&mut self) {
        let wall = clock_gettime(ClockId::Realtime);
        let realtime_ns = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
        let body = RawBody::Clock { realtime_ns };
        self.raw.push(RawEvent {
            at: now(),
            cpu: Cpu(0),
            body,
        });
    }

    /// Takes the probe out of the kernel.
    pub(super) fn detach(&mut self) {
        if let Some(probe) = self.probe.take() {
            self.kernel_bytes = self.kernel_bytes.max(probe.memory_bytes());
        }
    }

    /// The sources, as really used.
    pub(super) fn sources(&self) -> &[AttachedSource] {
        &self.sources
    }

    /// Kernel memory of maps and buffers.
    pub(super) fn kernel_bytes(&self) -> u64 {
        self.kernel_bytes
    }
}

/// Whether samples, waits or calls are lost: nothing else is left out at the beginning.
fn is_of_hits(reason: LostReason) -> bool {
    matches!(
        reason.kind(),
        LostKind::Samples | LostKind::Waits | LostKind::Calls
    )
}
