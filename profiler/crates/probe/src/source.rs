//! Event sources: names as given to `-e` -> what to open.
//!
//! Weights of samples are in the unit of the source: nanoseconds for clocks, cycles, else
//! occurrences.

use std::{fmt, str::FromStr};

use aya_obj::generated::{perf_hw_id, perf_sw_ids, perf_type_id};

use profiler_model::Unit;

/// What to sample, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSpec {
    /// The event.
    pub event: EventSpec,
    /// How often.
    pub rate: Rate,
}

/// How often a source makes a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many samples per second, for each processor.
    FrequencyHz(u64),
    /// A sample per so many units of the source (nanoseconds for clocks).
    Period(u64),
}

/// An event that can make samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EventSpec {
    /// Hardware cycles where the machine lets us count them, else cpu-clock.
    #[default]
    Default,
    /// An event that the kernel knows by number.
    Counter(Counter),
    /// A tracepoint of the kernel.
    Tracepoint {
        /// Its group, like `sched`.
        category: String,
        /// Its name, like `sched_switch`.
        name: String,
    },
}

/// An event that the kernel knows by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, as perf spells it.
    pub name: &'static str,
    /// Unit of its weights.
    pub unit: Unit,
    pub(super) type_: u32,
    pub(super) config: u64,
}

impl Counter {
    const fn hardware(name: &'static str, unit: Unit, id: perf_hw_id) -> Counter {
        Counter {
            name,
            unit,
            type_: perf_type_id::PERF_TYPE_HARDWARE as u32,
            config: id as u64,
        }
    }

    const fn software(name: &'static str, unit: Unit, id: perf_sw_ids) -> Counter {
        Counter {
            name,
            unit,
            type_: perf_type_id::PERF_TYPE_SOFTWARE as u32,
            config: id as u64,
        }
    }

    /// Whether it ticks with time, so that missing ticks can be told.
    pub(super) fn is_clock(&self) -> bool {
        self.unit == Unit::Nanoseconds
    }
}

/// Time on a processor.
pub const CPU_CLOCK: Counter = Counter::software(
    "cpu-clock",
    Unit::Nanoseconds,
    perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK,
);
/// Cycles of a processor.
pub(super) const CYCLES: Counter =
    Counter::hardware("cycles", Unit::Cycles, perf_hw_id::PERF_COUNT_HW_CPU_CYCLES);

/// All events that have a number.
pub const COUNTERS: &[Counter] = &[
    CPU_CLOCK,
    Counter::software(
        "task-clock",
        Unit::Nanoseconds,
        perf_sw_ids::PERF_COUNT_SW_TASK_CLOCK,
    ),
    CYCLES,
    Counter::hardware(
        "instructions",
        Unit::Events,
        perf_hw_id::PERF_COUNT_HW_INSTRUCTIONS,
    ),
    Counter::hardware(
        "cache-references",
        Unit::Events,
        perf_hw_id::PERF_COUNT_HW_CACHE_REFERENCES,
    ),
    Counter::hardware(
        "cache-misses",
        Unit::Events,
        perf_hw_id::PERF_COUNT_HW_CACHE_MISSES,
    ),
    Counter::hardware(
        "branches",
        Unit::Events,
        perf_hw_id::PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
    ),
    Counter::hardware(
        "branch-misses",
        Unit::Events,
        perf_hw_id::PERF_COUNT_HW_BRANCH_MISSES,
    ),
    Counter::software(
        "page-faults",
        Unit::Events,
        perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS,
    ),
    Counter::software(
        "minor-faults",
        Unit::Events,
        perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS_MIN,
    ),
    Counter::software(
        "major-faults",
        Unit::Events,
        perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS_MAJ,
    ),
    Counter::software(
        "context-switches",
        Unit::Events,
        perf_sw_ids::PERF_COUNT_SW_CONTEXT_SWITCHES,
    ),
    Counter::software(
        "cpu-migrations",
        Unit::Events,
        perf_sw_ids::PERF_COUNT_SW_CPU_MIGRATIONS,
    ),
];

/// A name that is no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownEvent {
    /// Not in the list.
    #[error("unknown event '{0}': use one of {list}, or a tracepoint as category:name", list = names())]
    Name(String),
    /// Written like a tracepoint, but with characters that none has.
    #[error("'{0}' is not a tracepoint: write category:name, like sched:sched_switch")]
    Tracepoint(String),
}

fn names() -> String {
    let names: Vec<&str> = COUNTERS.iter().map(|counter| counter.name).collect();
    names.join(", ")
}

impl FromStr for EventSpec {
    type Err = UnknownEvent;

    fn from_str(text: &str) -> Result<EventSpec, UnknownEvent> {
        if let Some((category, name)) = text.split_once(':') {
            // These become parts of a path.
            let plain = |part: &str| {
                !part.is_empty()
                    && part
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
            };
            if !plain(category) || !plain(name) {
                return Err(UnknownEvent::Tracepoint(text.to_owned()));
            }
            return Ok(EventSpec::Tracepoint {
                category: category.to_owned(),
                name: name.to_owned(),
            });
        }
        let canonical = match text {
            "faults" => "page-faults",
            "cs" => "context-switches",
            "migrations" => "cpu-migrations",
            "cpu-cycles" => "cycles",
            "branch-instructions" => "branches",
            other => other,
        };
        COUNTERS
            .iter()
            .find(|counter| counter.name == canonical)
            .map(|counter| EventSpec::Counter(*counter))
            .ok_or_else(|| UnknownEvent::Name(text.to_owned()))
    }
}

impl fmt::Display for EventSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventSpec::Default => f.write_str("cycles or cpu-clock"),
            EventSpec::Counter(counter) => f.write_str(counter.name),
            EventSpec::Tracepoint { category, name } => write!(f, "{category}:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_found_by_its_name() {
        for counter in COUNTERS {
            assert_eq!(counter.name.parse(), Ok(EventSpec::Counter(*counter)));
        }
        assert_eq!("cs".parse(), "context-switches".parse::<EventSpec>());
    }

    #[test]
    fn tracepoints_have_two_plain_parts() {
        let expected = EventSpec::Tracepoint {
            category: "sched".into(),
            name: "sched_switch".into(),
        };
        assert_eq!("sched:sched_switch".parse(), Ok(expected));
        for bad in [":x", "x:", "sched:../../etc", "a:b:c", "a:b/c"] {
            assert_eq!(
                bad.parse::<EventSpec>(),
                Err(UnknownEvent::Tracepoint(bad.into()))
            );
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_list() {
        let error = "cylces".parse::<EventSpec>().unwrap_err().to_string();
        assert!(error.contains("'cylces'") && error.contains("page-faults"));
    }
}
