//! The fold from events to what a report is made of.
//!
//! Input: a recording's events in order of time; output: aggregated samples, losses, marks, clock.
//! Times are CLOCK_MONOTONIC; the origin of relative times is the start of the session.

use std::io;

use super::options::{By, ReportOptions};
use crate::derive::CallFilter;
use crate::derive::calls::Part;
use crate::derive::{
    Aggregator, CallLimits, CallTable, EndTable, Losses, Merge, Span, TimeRange, WaitTable,
};
use profiler_model::*;

/// Marks beyond this many are only counted: a report lists a few.
const MAX_MARKS: usize = 1000;

/// Folds the events of a recording.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    span: Span,
    last: Timestamp,
    clock: Option<Clock>,
    pub(super) samples: Aggregator,
    pub(super) waits: WaitTable,
    pub(super) ends: EndTable,
    wants_ends: bool,
    pub(super) calls: CallTable,
    call_filter: CallFilter,
    pub(super) losses: Losses,
    pub(super) marks: Vec<Mark>,
    pub(super) mark_count: u64,
    /// Samples of the whole recording, in the range or not.
    pub(super) all_samples: u64,
}

impl Collector {
    /// Takes what is in a range.
    pub fn new(range: TimeRange) -> Collector {
        Collector {
            span: Span::new(range),
            samples: Aggregator::new(Merge::Thread),
            waits: match range.is_all() {
                true => WaitTable::of_all(),
                false => WaitTable::default(),
            },
            ..Collector::default()
        }
    }

    /// Takes what a report with these options is about: calls that its filters leave out are not
    /// kept. Samples are filtered later.
    pub fn for_report(options: &ReportOptions) -> Collector {
        let limits = CallLimits {
            slowest: options
                .calls
                .slowest
                .unwrap_or(CallLimits::default().slowest),
            ..CallLimits::default()
        };
        Collector {
            calls: CallTable::new(limits),
            call_filter: CallFilter::new(&options.filter),
            wants_ends: options.by == Some(By::End),
            ..Collector::new(options.range)
        }
    }

    /// Takes one event.
    pub fn add(&mut self, event: &Event, tables: &Tables) {
        let part = self.span.part(event, tables);
        self.last = self.last.max(event.at());
        match event {
            Event::Sample(sample) => {
                self.all_samples += 1;
                if let Some(wait) = &sample.wait {
                    self.waits.recorded(sample, wait);
                }
                if let Some(Event::Sample(sample)) = part.as_deref() {
                    self.take(sample, tables);
                }
            }
            Event::Call(_) | Event::Throw(_) => {
                let part = match self.call_filter.admits(event, tables) {
                    None => return,
                    Some(false) => Part::OtherFunction,
                    Some(true) if part.is_some() => Part::Counted,
                    Some(true) => Part::OtherTime,
                };
                self.calls.add(event, tables, part);
            }
            Event::CallCount(count) => {
                if self.call_filter.admits_function(count.function, tables) {
                    let part = match self.counts_hold() {
                        true => Part::Counted,
                        false => Part::OtherTime,
                    };
                    self.calls.add(event, tables, part);
                }
            }
            Event::Gap(gap) => {
                let wanted =
                    (gap.function).is_none_or(|id| self.call_filter.admits_function(id, tables));
                if let Some(part) = part.filter(|_| wanted && gap.from < gap.to) {
                    self.calls.add(&part, tables, Part::Counted);
                }
            }
            Event::Waits(waits) => self.waits.totals(waits, part.is_some()),
            Event::Lost(_) => {
                if let Some(Event::Lost(lost)) = part.as_deref() {
                    self.losses.add(lost);
                }
                self.calls.add(event, tables, Part::OtherTime);
            }
            Event::Mark(mark) => {
                if part.is_some() {
                    self.mark_count += 1;
                    if self.marks.len() < MAX_MARKS {
                        self.marks.push(mark.clone());
                    }
                }
            }
            Event::Clock(clock) => {
                self.clock.get_or_insert(*clock);
            }
            // Processes that were there before have times before the start.
            Event::Process(_) => self.calls.add(event, tables, Part::OtherTime),
        }
    }

    /// Whether the kernel's counts are about what is looked at: they are of all threads and of the
    /// whole recording.
    pub(super) fn counts_hold(&self) -> bool {
        self.range().is_all() && self.call_filter.admits_all_threads()
    }

    fn take(&mut self, sample: &Sample, tables: &Tables) {
        self.samples.add(sample, tables);
        self.waits.sample(sample, tables);
        if self.wants_ends {
            self.ends.add(sample, tables);
        }
    }

    /// Whether something could not be written.
    pub fn misses_unwritten(&self) -> bool {
        self.losses.unwritten() > 0
    }

    /// Where relative times start.
    pub(super) fn origin(&self) -> Timestamp {
        self.span.origin().unwrap_or_default()
    }

    /// The span that was looked at, relative to the origin, in nanoseconds.
    pub(super) fn span_ns(&self) -> (u64, u64) {
        let whole = self.last.since(self.origin());
        let range = self.range();
        let from = range.from_ns.unwrap_or(0).min(whole);
        (from, range.to_ns.unwrap_or(whole).clamp(from, whole))
    }

    pub(super) fn range(&self) -> TimeRange {
        self.span.range()
    }

    /// Wall time of the origin, in nanoseconds since 1970.
    pub(super) fn started_realtime_ns(&self) -> Option<u64> {
        let clock = self.clock?;
        let at = clock
            .realtime_ns
            .saturating_add(self.origin().since(clock.monotonic));
        Some(at.saturating_sub(clock.monotonic.since(self.origin())))
    }
}

impl Sink for Collector {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.add(event, tables);
        Ok(())
    }

    fn finish(&mut self, _tables: &Tables) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(at: u64, realtime_ns: u64) -> Event {
        Event::Clock(Clock {
            monotonic: Timestamp(at),
            realtime_ns,
        })
    }

    fn lost(from: u64, to: u64) -> Event {
        Event::Lost(Lost {
            cpu: None,
            from: Timestamp(from),
            to: Timestamp(to),
            count: 10,
            reason: LostReason::RingFull,
        })
    }

    #[test]
    fn times_are_relative_to_the_session() {
        let mut tables = Tables::default();
        tables.session.started = Timestamp(1_000);
        let mut collector = Collector::new("10ns..20ns".parse().unwrap());
        for event in [
            clock(1_005, 70_005),
            lost(1_000, 1_009),
            lost(1_005, 1_015),
            lost(1_020, 1_090),
        ] {
            collector.add(&event, &tables);
        }
        // Half of the second: what was lost between is nowhere to be put.
        assert_eq!(collector.losses.samples(), 5);
        assert_eq!(collector.started_realtime_ns(), Some(70_000));
        assert_eq!(collector.span_ns(), (10, 20));
    }

    #[test]
    fn what_came_before_the_session_is_no_part_of_its_time() {
        let mut tables = Tables::default();
        tables.session.started = Timestamp(1_000);
        let mark = |at| {
            let text = StringId::from_index(0);
            let at = Timestamp(at);
            Event::Mark(Mark { at, text })
        };
        let mut collector = Collector::default();
        // Recorded after a delay.
        for event in [clock(500, 70_500), mark(1_500)] {
            collector.add(&event, &tables);
        }
        assert_eq!(collector.span_ns(), (0, 500));
        assert_eq!(collector.started_realtime_ns(), Some(71_000));
    }

    #[test]
    fn without_a_session_the_first_event_is_the_origin() {
        let mut collector = Collector::default();
        collector.add(&clock(500, 9_000), &Tables::default());
        collector.add(&lost(600, 700), &Tables::default());
        assert_eq!(collector.span_ns(), (0, 200));
        assert_eq!(collector.started_realtime_ns(), Some(9_000));
    }
}
