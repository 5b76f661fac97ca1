//! Sampling that changes while the probe is attached: on, off, how often, whom.
//!
//! [`Sampling`] -> perf events started, stopped or given another period; the map of watched tasks; the
//! setting that the kernel side reads. Frequencies are samples per second and processor, periods
//! nanoseconds for clocks. What does not belong here: which tasks stay watched for their ancestors
//! (`watched`).

use std::os::fd::AsFd;

use aya::maps::{Array, MapData};
use profiler_common::control::Adjusted;

use super::{Probe, ProbeError, ProbeOptions, load, now, sampler::Plan, sys, watched};
use crate::{EventSpec, Rate};
use profiler_model::Sampling;
use profiler_model::raw::RawEvent;

/// What an adjustable probe does at present.
#[derive(Default)]
pub(super) struct Adjustment {
    /// None while nothing is sampled.
    running: Option<Running>,
    /// Of [`Adjusted`].
    generation: u64,
    /// Losses up to the last change, not told yet.
    pub(super) lost: Vec<RawEvent>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Running {
    /// What was asked for: the kernel's limit, which may be lower, changes by itself.
    wanted_hz: u64,
    used_hz: u64,
    period: u64,
    kernel_stacks: bool,
}

/// Checks that what is asked for can be adjusted.
pub(super) fn check(options: &ProbeOptions) -> Result<(), ProbeError> {
    let refused = |what: &str| Err(ProbeError::Request(format!("an adjustable probe {what}")));
    let [source] = options.sources.as_slice() else {
        return refused("has one event source");
    };
    if let (EventSpec::Tracepoint { .. }, _) | (_, Rate::Period(_)) = (&source.event, source.rate) {
        return refused("samples a counter by frequency");
    }
    if options.calls.is_some() {
        return refused("traces no calls");
    }
    if options.filter.is_by_ids() {
        return refused("is told its tasks once it is attached");
    }
    Ok(())
}

impl Probe {
    /// Changes what an adjustable probe samples; None, or nobody named: nothing, which costs nothing.
    /// Returns the frequency that is used, in samples per second and processor: the kernel's limit if
    /// more was asked for; none if nothing is sampled.
    ///
    /// A process that is named is sampled with all its threads, a thread by itself, and nobody else:
    /// not what they start. But all descendants of a `followed` process that are born from now on are
    /// sampled from their first instruction, named or not, until that process is not followed any
    /// more; it may have ended, as long as it is still among the followed. Descendants that live
    /// already have to be named, and followed themselves.
    ///
    /// What is named and has ended is passed over. If its id is given to another task, that one is
    /// sampled from the next call on that names it.
    ///
    /// Samples taken before are still drained after. A frequency of 0, or more tasks than there is
    /// room for, is refused, and all is as it was; after any other error nothing is sampled.
    pub fn adjust(&mut self, to: Option<&Sampling>) -> Result<Option<u64>, ProbeError> {
        if self.adjustment.is_none() {
            return Err(ProbeError::Request(
                "this probe was not attached as an adjustable one".to_owned(),
            ));
        }
        // Of the followed alone there may be descendants.
        let to = to.filter(|to| {
            !to.processes.is_empty() || !to.threads.is_empty() || !to.followed.is_empty()
        });
        if let Some(to) = to
            && to.frequency_hz == 0
        {
            return Err(ProbeError::Request(
                "a frequency of 0 makes no samples: ask for none instead".to_owned(),
            ));
        }
        if let Some(to) = to {
            watched::check_count(to)?;
        }
        let result = match to {
            Some(to) => self.sample(to).map(Some),
            None => self.sample_nothing().map(|()| None),
        };
        if result.is_err() {
            // What failed is told; if this fails as well, there is no more to be done.
            let _ = self.stop();
        }
        result
    }

    /// Whether sampling events are to run.
    pub(super) fn is_sampling(&self) -> bool {
        match &self.adjustment {
            Some(adjustment) => adjustment.running.is_some(),
            None => true,
        }
    }

    /// What the kernel side has as the period of each source at present; see `PERIODS` there.
    pub(super) fn periods(&self) -> Vec<u64> {
        let present = |plan: &Plan| {
            if self.is_sampling() {
                plan.kernel_period()
            } else {
                0
            }
        };
        self.sources.iter().map(present).collect()
    }

    fn sample_nothing(&mut self) -> Result<(), ProbeError> {
        self.stop()?;
        watched::update(load::map_fd(&self.ebpf, "WATCHED")?, None)
    }

    fn sample(&mut self, to: &Sampling) -> Result<u64, ProbeError> {
        // Those that are new are watched before the first tick.
        watched::update(load::map_fd(&self.ebpf, "WATCHED")?, Some(to))?;
        let running = self.adjustment.as_ref().and_then(|known| known.running);
        if let Some(mut running) = running
            && running.wanted_hz == to.frequency_hz
        {
            if running.kernel_stacks != to.kernel_stacks {
                running.kernel_stacks = to.kernel_stacks;
                self.tell(running)?;
            }
            return Ok(running.used_hz);
        }
        self.stop()?;
        let plan = self.sources.first_mut();
        let Some((used_hz, period)) = plan.and_then(|plan| plan.set_frequency(to.frequency_hz))
        else {
            return Err(ProbeError::Request(
                "there is no source to adjust".to_owned(),
            ));
        };
        self.attached = self
            .sources
            .iter()
            .map(|plan| plan.attached.clone())
            .collect();
        self.start(Running {
            wanted_hz: to.frequency_hz,
            used_hz,
            period,
            kernel_stacks: to.kernel_stacks,
        })?;
        Ok(used_hz)
    }

    /// Stops all events, and settles what was lost up to then.
    fn stop(&mut self) -> Result<(), ProbeError> {
        if !self.is_sampling() {
            return Ok(());
        }
        let mut result = Ok(());
        for cpu in &self.cpus {
            for event in &cpu.samplers {
                // The others are to be stopped whatever becomes of this one.
                if let Err(error) = sys::disable(event.as_fd()) {
                    let action = format!("stop sampling on processor {}", cpu.cpu);
                    result = Err(ProbeError::from_io(action, error));
                }
            }
        }
        self.settle();
        if let Some(adjustment) = &mut self.adjustment {
            adjustment.running = None;
        }
        result
    }

    /// Starts all events, which are stopped.
    fn start(&mut self, running: Running) -> Result<(), ProbeError> {
        if let Some(adjustment) = &mut self.adjustment {
            adjustment.generation += 1;
            adjustment.running = Some(running);
        }
        self.tell(running)?;
        // From here on clocks are expected to tick.
        self.settle();
        let now = now();
        for cpu in &mut self.cpus {
            cpu.ticked = now;
            for event in &cpu.samplers {
                sys::set_period(event.as_fd(), running.period).map_err(|error| {
                    let action = format!("set the sampling period of processor {}", cpu.cpu);
                    ProbeError::from_io(action, error)
                })?;
            }
        }
        self.cpus.iter().try_for_each(super::CpuProbe::start)
    }

    /// Tells the kernel side.
    fn tell(&mut self, running: Running) -> Result<(), ProbeError> {
        let period_ns = self.sources.first().map_or(0, Plan::kernel_period);
        let Some(adjustment) = &mut self.adjustment else {
            return Ok(());
        };
        let adjusted = Adjusted {
            generation: adjustment.generation,
            period_ns,
            kernel_stacks: running.kernel_stacks.into(),
        };
        let mut map: Array<&mut MapData, sys::MapValue<Adjusted>> =
            load::typed_map(&mut self.ebpf, "ADJUSTED")?;
        map.set(0, sys::MapValue(adjusted), 0)
            .map_err(|error| load::refused(&error))?;
        adjustment.running = Some(running);
        Ok(())
    }

    /// Tells losses up to now by what the present periods are, and begins to estimate anew.
    fn settle(&mut self) {
        let mut lost = Vec::new();
        self.update_losses(now(), &mut lost, true);
        if let Some(adjustment) = &mut self.adjustment {
            adjustment.lost.append(&mut lost);
        }
    }
}
