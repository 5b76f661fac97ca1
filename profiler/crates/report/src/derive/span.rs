//! A span of a recording, and what of each event lies in it: reports and exports alike take that.
//!
//! Events in order of time -> the same, cut to the span. A wait has the part of it that lies there, and so has a gap; of what
//! was lost somewhere in a time, a share of the number. All others are in it as a whole, by their time, or not at all. Times
//! of a span are nanoseconds since the recording's start, those of events CLOCK_MONOTONIC. What does not belong here: who
//! and what is meant (`filter`, `target`).

use std::borrow::Cow;
use std::str::FromStr;

use profiler_model::text::parse_duration;
use profiler_model::*;

/// A span of a recording, in nanoseconds since its start; the end is not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// Not before; none is the start.
    pub from_ns: Option<u64>,
    /// Before; none is the end.
    pub to_ns: Option<u64>,
}

impl TimeRange {
    /// Whether the whole recording is in it.
    pub fn is_all(&self) -> bool {
        *self == TimeRange::default()
    }

    /// Whether a time is in it.
    pub fn contains(&self, at_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| at_ns >= from) && self.to_ns.is_none_or(|to| at_ns < to)
    }

    /// Of so many within a span, at times that nobody knows, those that are in it if they are spread evenly: ranges that follow
    /// one another share them out.
    pub fn share(&self, from_ns: u64, to_ns: u64, count: u64) -> u64 {
        if to_ns <= from_ns {
            return if self.contains(from_ns) { count } else { 0 };
        }
        let until = |at: u64| {
            let passed = at.clamp(from_ns, to_ns) - from_ns;
            let share = u128::from(count) * u128::from(passed) / u128::from(to_ns - from_ns);
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        let begin = self.from_ns.map_or(0, until);
        self.to_ns.map_or(count, until).saturating_sub(begin)
    }
}

/// `1.5s..3s`, `..200ms`, `90s..`; without a unit seconds.
impl FromStr for TimeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeRange, String> {
        let (from, to) = text
            .split_once("..")
            .ok_or_else(|| format!("'{text}' is no time range; write 1.5s..3s, 2s.. or ..500ms"))?;
        let end = |text: &str| match text {
            "" => Ok(None),
            text => parse_duration(text).map(|time| Some(time.as_nanos() as u64)),
        };
        match (end(from)?, end(to)?) {
            (Some(from), Some(to)) if from >= to => Err(format!("'{text}' ends before it starts")),
            (from_ns, to_ns) => Ok(TimeRange { from_ns, to_ns }),
        }
    }
}

/// A span, and where in time it lies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    range: TimeRange,
    origin: Option<Timestamp>,
}

impl Span {
    /// A span of what comes.
    pub fn new(range: TimeRange) -> Span {
        Span {
            range,
            origin: None,
        }
    }

    /// What it is of the recording.
    pub fn range(&self) -> TimeRange {
        self.range
    }

    /// Where relative times start: see [`Session::began`]. None before the first event.
    pub fn origin(&self) -> Option<Timestamp> {
        self.origin
    }

    /// The part of an event that lies in it. All events must come, since the first one tells when the recording began.
    pub fn part<'e>(&mut self, event: &'e Event, tables: &Tables) -> Option<Cow<'e, Event>> {
        let origin = *self.origin.get_or_insert_with(|| {
            let at = match event {
                Event::Lost(lost) => lost.from,
                _ => event.at(),
            };
            (tables.session).began(at, event.is_recorded().then_some(at))
        });
        if self.range.is_all() {
            return Some(Cow::Borrowed(event));
        }
        let since = |at: Timestamp| at.since(origin);
        let contains = |at| self.range.contains(since(at));
        let part = match event {
            Event::Sample(sample) => match &sample.wait {
                Some(wait) => Event::Sample(self.wait(sample, wait, origin)?),
                None => return contains(sample.at).then_some(Cow::Borrowed(event)),
            },
            Event::Gap(gap) if gap.from < gap.to => {
                let (from, to) = (self.clip(gap.from, origin), self.clip(gap.to, origin));
                let gap = gap.clone();
                (from < to).then_some(Event::Gap(Gap { from, to, ..gap }))?
            }
            Event::Lost(lost) => {
                let count = (self.range).share(since(lost.from), since(lost.to), lost.count);
                let (from, to) = (self.clip(lost.from, origin), self.clip(lost.to, origin));
                let lost = lost.clone();
                (count > 0).then_some(Event::Lost(Lost {
                    from,
                    to,
                    count,
                    ..lost
                }))?
            }
            // The kernel counts in steps: of one that is only partly in the span nobody knows which waits are meant.
            Event::Waits(waits) => {
                let is_begun = (self.range.from_ns).is_none_or(|start| since(waits.from) >= start);
                return (is_begun && contains(waits.to)).then_some(Cow::Borrowed(event));
            }
            // The kernel's counts of calls are of the whole recording.
            Event::CallCount(_) => return None,
            _ => return contains(event.at()).then_some(Cow::Borrowed(event)),
        };
        Some(Cow::Owned(part))
    }

    /// The part of a wait, which ends with the span if it goes on behind it.
    fn wait(&self, sample: &Sample, wait: &Wait, origin: Timestamp) -> Option<Sample> {
        let at = |ns: u64| Timestamp(origin.0.saturating_add(ns));
        let from = at(self.range.from_ns.unwrap_or(0));
        let to = at(self.range.to_ns.unwrap_or(u64::MAX));
        let part = wait.within(sample.at, from, to)?;
        let share = match wait.ns {
            0 => u128::from(sample.weight),
            ns => u128::from(sample.weight) * u128::from(part.ns) / u128::from(ns),
        };
        Some(Sample {
            at: sample.at.min(to),
            weight: u64::try_from(share).unwrap_or(u64::MAX),
            wait: Some(part),
            ..sample.clone()
        })
    }

    fn clip(&self, at: Timestamp, origin: Timestamp) -> Timestamp {
        let from = self.range.from_ns.unwrap_or(0);
        let to = self.range.to_ns.unwrap_or(u64::MAX);
        Timestamp((origin.0).saturating_add(at.since(origin).max(from).min(to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_ranges() {
        let range = |from_ns, to_ns| Ok(TimeRange { from_ns, to_ns });
        assert_eq!(
            "1.5s..3s".parse(),
            range(Some(1_500_000_000), Some(3_000_000_000))
        );
        assert_eq!("..200ms".parse(), range(None, Some(200_000_000)));
        assert_eq!("2..".parse(), range(Some(2_000_000_000), None));
        assert_eq!(
            "1m..1h".parse(),
            range(Some(60_000_000_000), Some(3_600_000_000_000))
        );
        for bad in [
            "1s",
            "3s..1s",
            "1s..1s",
            "x..",
            "-1s..",
            "1e30s..",
            "1 parsec..",
            "nan..",
        ] {
            assert!(bad.parse::<TimeRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_range_excludes_its_end() {
        let range: TimeRange = "10ns..20ns".parse().unwrap();
        assert!(range.contains(10) && range.contains(19));
        assert!(!range.contains(9) && !range.contains(20));
        assert_eq!((range.share(0, 10, 7), range.share(20, 30, 7)), (0, 0));
        assert_eq!((range.share(12, 18, 7), range.share(10, 20, 7)), (7, 7));
        assert_eq!((range.share(10, 10, 7), range.share(20, 20, 7)), (7, 0));
        let parts: [TimeRange; 3] =
            ["..10ns", "10ns..20ns", "20ns.."].map(|it| it.parse().unwrap());
        let sum: u64 = parts.iter().map(|it| it.share(3, 28, 101)).sum();
        assert_eq!(sum, 101);
    }

    fn parts(range: &str, events: &[Event]) -> Vec<Event> {
        let mut tables = Tables::default();
        tables.session.started = Timestamp(1_000);
        let mut span = Span::new(range.parse().unwrap());
        let parts = events.iter().filter_map(|event| span.part(event, &tables));
        parts.map(Cow::into_owned).collect()
    }

    fn wait(at: u64, ns: u64, count: u32) -> Event {
        let wait = Wait {
            ns,
            runnable_ns: 5,
            state: WaitState::Sleeping,
            waker: None,
            count,
            open: false,
        };
        let (thread, source) = (ThreadId::from_index(0), SourceId::from_index(0));
        let weight = ns * u64::from(count);
        let sample = Sample::new(Timestamp(at), thread, Cpu(0), source, weight);
        Event::Sample(Sample {
            wait: Some(wait),
            ..sample
        })
    }

    #[test]
    fn waits_are_cut_and_end_with_the_span() {
        let events = [wait(1_015, 10, 1), wait(1_030, 30, 3), wait(1_040, 10, 1)];
        let all = parts("..1s", &events);
        assert_eq!(all, events);
        let told = |event: &Event| match event {
            Event::Sample(Sample {
                at,
                weight,
                wait: Some(wait),
                ..
            }) => (at.0, wait.ns, wait.runnable_ns, *weight),
            other => panic!("{other:?}"),
        };
        let parts: Vec<_> = parts("10ns..20ns", &events).iter().map(told).collect();
        assert_eq!(parts, [(1_015, 5, 5, 5), (1_020, 10, 0, 30)]);
    }

    #[test]
    fn gaps_are_cut_and_losses_shared_out() {
        let gap = |from, to| {
            Event::Gap(Gap {
                from: Timestamp(from),
                to: Timestamp(to),
                function: None,
                process: None,
                reason: GapReason::DutyCycle,
            })
        };
        let lost = |from, to, count| {
            Event::Lost(Lost {
                cpu: None,
                from: Timestamp(from),
                to: Timestamp(to),
                count,
                reason: LostReason::RingFull,
            })
        };
        let events = [gap(1_000, 1_015), gap(1_030, 1_040), lost(1_000, 1_040, 8)];
        let parts = parts("10ns..20ns", &events);
        assert_eq!(parts, [gap(1_010, 1_015), lost(1_010, 1_020, 2)]);
    }
}
