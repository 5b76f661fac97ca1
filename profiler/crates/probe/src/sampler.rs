//! Sampling events: sources as asked for -> perf events with the kernel-side programs attached.
//!
//! A clock's period is in nanoseconds, a counter's in events. Counters are opened on every
//! processor, tracepoints once for all.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya_obj::generated::{perf_event_attr, perf_type_id};

use super::{
    ProbeError,
    source::{CPU_CLOCK, CYCLES, Counter, EventSpec, Rate, SourceSpec},
    sys,
    tracefs::Tracefs,
};
use profiler_model::Unit;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The kernel rounds shorter periods of a clock up, without saying so.
const MIN_CLOCK_PERIOD_NS: u64 = 10_000;

/// A source as it is really used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedSource {
    /// Name of the event.
    pub name: String,
    /// Unit of the weights.
    pub unit: Unit,
    /// Samples per second and processor asked for, if by frequency.
    pub frequency_hz: Option<u64>,
    /// Units per sample, if by period.
    pub period: Option<u64>,
    /// What a person should know of the choice, if it is not what was asked for.
    pub note: Option<String>,
}

/// What to open for a source.
pub(super) struct Plan {
    pub(super) attached: AttachedSource,
    pub(super) event: PlannedEvent,
}

pub(super) enum PlannedEvent {
    /// A counter, on every processor.
    Counter { counter: Counter, rate: Rate },
    /// A tracepoint, by its number.
    Tracepoint { id: u64, period: u64 },
}

impl Plan {
    /// Decides what to open for `spec`.
    pub(super) fn new(spec: &SourceSpec, tracefs: Option<&Tracefs>) -> Result<Plan, ProbeError> {
        if let Rate::FrequencyHz(0) | Rate::Period(0) = spec.rate {
            return Err(ProbeError::Request(format!(
                "a frequency or period of 0 makes no samples of {}",
                spec.event
            )));
        }
        match &spec.event {
            EventSpec::Default => {
                let (counter, note) = match try_open(&CYCLES) {
                    Ok(()) => (CYCLES, None),
                    Err(error) => (CPU_CLOCK, Some(no_cycles(&error))),
                };
                Plan::counter(counter, spec.rate, note)
            }
            EventSpec::Counter(counter) => Plan::counter(*counter, spec.rate, None),
            EventSpec::Tracepoint { category, name } => {
                let tracefs = tracefs.ok_or_else(|| {
                    ProbeError::Request(format!("tracefs is needed for {}", spec.event))
                })?;
                let id = tracefs.id(category, name)?;
                let (period, note) = match spec.rate {
                    Rate::Period(period) => (period, None),
                    Rate::FrequencyHz(_) => (
                        1,
                        Some("tracepoints have no frequency: every hit is a sample".to_owned()),
                    ),
                };
                Ok(Plan {
                    attached: AttachedSource {
                        name: spec.event.to_string(),
                        unit: Unit::Events,
                        frequency_hz: None,
                        period: Some(period),
                        note,
                    },
                    event: PlannedEvent::Tracepoint { id, period },
                })
            }
        }
    }

    fn counter(counter: Counter, rate: Rate, note: Option<String>) -> Result<Plan, ProbeError> {
        let name = counter.name;
        let (rate, frequency_hz, period) = match rate {
            Rate::FrequencyHz(hz) => {
                check_frequency(hz)?;
                let rate = if counter.is_clock() {
                    // What the kernel would do as well; so the period is known here.
                    Rate::Period((NS_PER_SECOND / hz).max(1))
                } else {
                    Rate::FrequencyHz(hz)
                };
                (rate, Some(hz), None)
            }
            Rate::Period(period) => (rate, None, Some(period)),
        };
        if let Rate::Period(period) = rate
            && counter.is_clock()
            && period < MIN_CLOCK_PERIOD_NS
        {
            return Err(ProbeError::Request(format!(
                "a period of {period} ns is too short: the kernel's shortest for {name} is \
                 {MIN_CLOCK_PERIOD_NS} ns"
            )));
        }
        Ok(Plan {
            attached: AttachedSource {
                name: name.to_owned(),
                unit: counter.unit,
                frequency_hz,
                period,
                note,
            },
            event: PlannedEvent::Counter { counter, rate },
        })
    }

    /// Changes the frequency that processors are opened with from now on, within the kernel's limits:
    /// returns what was taken, and the period to give to events that are open. None for tracepoints.
    pub(super) fn set_frequency(&mut self, hz: u64) -> Option<(u64, u64)> {
        let PlannedEvent::Counter { counter, rate } = &mut self.event else {
            return None;
        };
        let mut hz = hz.max(1);
        if let Some(limit) = max_frequency_hz() {
            hz = hz.min(limit.max(1));
        }
        let period = if counter.is_clock() {
            hz = hz.min(NS_PER_SECOND / MIN_CLOCK_PERIOD_NS);
            let period_ns = NS_PER_SECOND / hz;
            *rate = Rate::Period(period_ns);
            period_ns
        } else {
            *rate = Rate::FrequencyHz(hz);
            hz
        };
        self.attached.frequency_hz = Some(hz);
        Some((hz, period))
    }

    /// What the kernel side is told as this source's period: see `PERIODS` there.
    pub(super) fn kernel_period(&self) -> u64 {
        match self.event {
            PlannedEvent::Counter {
                counter,
                rate: Rate::Period(period),
            } if counter.is_clock() => period,
            PlannedEvent::Counter { .. } => 0,
            PlannedEvent::Tracepoint { period, .. } => period,
        }
    }

    /// Whether its program runs on every processor all the time, idle ones included.
    pub(super) fn always_ticks(&self) -> bool {
        self.kernel_period() != 0 && self.attached.name == CPU_CLOCK.name
    }

    /// Name of the kernel-side program of the source with this index.
    pub(super) fn program(&self, index: usize) -> String {
        match self.event {
            PlannedEvent::Counter { .. } => format!("sample_event_{index}"),
            PlannedEvent::Tracepoint { .. } => format!("sample_tracepoint_{index}"),
        }
    }

    /// Opens a counter on a processor with its program, stopped. None for tracepoints, and if the
    /// processor has gone.
    pub(super) fn open_on(
        &self,
        cpu: u32,
        program: BorrowedFd<'_>,
    ) -> Result<Option<OwnedFd>, ProbeError> {
        let PlannedEvent::Counter { counter, rate } = self.event else {
            return Ok(None);
        };
        let name = counter.name;
        let action = || format!("sample {name} on processor {cpu}");
        let event = match sys::perf_event_open(&counter_attr(&counter, rate), -1, cpu.cast_signed())
        {
            Ok(event) => event,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENODEV) => Ok(None),
                    Some(libc::ENOENT | libc::EOPNOTSUPP) => Err(ProbeError::Unsupported {
                        action: format!("count {name}"),
                        remedy: "this machine (often a virtual one) has no such hardware counter; \
                                 use -e cpu-clock"
                            .to_owned(),
                    }),
                    _ => Err(ProbeError::from_io(action(), error)),
                };
            }
        };
        sys::set_program(event.as_fd(), program)
            .map_err(|error| ProbeError::from_io(action(), error))?;
        Ok(Some(event))
    }
}

/// Runs `program` on each hit of a tracepoint, on any processor, from now until the result is
/// dropped.
pub(super) fn attach_tracepoint(
    id: u64,
    name: &str,
    program: BorrowedFd<'_>,
) -> Result<OwnedFd, ProbeError> {
    let mut attr = sys::empty_attr();
    attr.type_ = perf_type_id::PERF_TYPE_TRACEPOINT as u32;
    attr.config = id;
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_disabled(1);
    let failed = |error| ProbeError::from_io(format!("attach to tracepoint {name}"), error);
    // The program runs for hits on every processor: the event itself may be on any one.
    let event = sys::perf_event_open(&attr, -1, 0).map_err(failed)?;
    sys::set_program(event.as_fd(), program).map_err(failed)?;
    Ok(event)
}

fn counter_attr(counter: &Counter, rate: Rate) -> perf_event_attr {
    let mut attr = sys::empty_attr();
    attr.type_ = counter.type_;
    attr.config = counter.config;
    attr.set_disabled(1);
    match rate {
        Rate::FrequencyHz(hz) => {
            attr.set_freq(1);
            attr.__bindgen_anon_1.sample_freq = hz;
        }
        Rate::Period(period) => attr.__bindgen_anon_1.sample_period = period,
    }
    attr
}

/// Whether a counter can be sampled here.
pub(super) fn try_open(counter: &Counter) -> io::Result<()> {
    let attr = counter_attr(counter, Rate::Period(1_000_000));
    sys::perf_event_open(&attr, -1, 0).map(drop)
}

/// Why cycles are not sampled.
pub(super) fn no_cycles(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "no hardware counter for cycles here (usual in virtual machines)".to_owned()
        }
        _ => format!("cycles can't be sampled ({error})"),
    }
}

fn check_frequency(hz: u64) -> Result<(), ProbeError> {
    let Some(limit) = max_frequency_hz() else {
        return Ok(());
    };
    if hz <= limit {
        return Ok(());
    }
    Err(ProbeError::Request(format!(
        "{hz} Hz is above the kernel's limit of {limit} Hz: lower it, or raise the limit with \
         'sysctl kernel.perf_event_max_sample_rate={hz}'"
    )))
}

/// The kernel's limit of samples per second and processor.
pub fn max_frequency_hz() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok()?;
    text.trim().parse().ok()
}
