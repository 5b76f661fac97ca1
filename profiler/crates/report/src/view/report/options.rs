//! What a report is asked to show.
//!
//! Input: flags, as text; output: plain options. Times are nanoseconds since the start of the
//! recording.

use profiler_model::text::parse_duration;
use std::fs::File;
use std::str::FromStr;
use std::sync::Arc;

use crate::derive::Filter;

/// What to show, of which samples, and how.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// Order of functions, lines and modules.
    pub sort: Sort,
    /// Only this table.
    pub by: Option<By>,
    /// Only the call tree.
    pub tree: bool,
    /// Only callers and callees of the functions that match.
    pub callers_of: Option<String>,
    /// Only source lines and instructions of the function that matches.
    pub annotate: Option<String>,
    /// An open folder: source lines come from files below it, and no others.
    pub source_dir: Option<Arc<File>>,
    /// What to show of traced calls.
    pub calls: CallView,
    /// Samples of this span: what the collector is to be made with.
    pub range: TimeRange,
    /// Samples that match.
    pub filter: Filter,
    /// Samples of the source of this name, or `wall`; see [`crate::derive::Sources::choose`].
    pub source: Option<String>,
    /// Branches of the call tree with a smaller share are summed up.
    pub min_percent: f64,
    /// Rows per table; text is limited to 20 unless told, JSON is not.
    pub limit: Option<usize>,
    /// Text or JSON.
    pub format: Format,
    /// Columns to cut names to; none for a pipe.
    pub width: Option<usize>,
    /// Whether to colour text.
    pub color: bool,
}

impl Default for ReportOptions {
    fn default() -> Self {
        ReportOptions {
            sort: Sort::default(),
            by: None,
            tree: false,
            callers_of: None,
            annotate: None,
            source_dir: None,
            calls: CallView::default(),
            range: TimeRange::default(),
            filter: Filter::default(),
            source: None,
            min_percent: 0.5,
            limit: None,
            format: Format::default(),
            width: None,
            color: false,
        }
    }
}

/// What to show of traced calls. If nothing is asked for, they follow the samples.
#[derive(Clone, Debug, Default)]
pub struct CallView {
    /// Only calls.
    pub only: bool,
    /// Order of functions.
    pub sort: CallSort,
    /// Only how the durations of the functions that match are distributed.
    pub histogram: Option<String>,
    /// Only the tree of calls.
    pub tree: bool,
    /// Only so many of the slowest calls.
    pub slowest: Option<usize>,
    /// Only exceptions.
    pub exceptions: bool,
}

impl CallView {
    /// Whether the report is about calls only.
    pub fn is_only(&self) -> bool {
        self.only || self.is_part()
    }

    /// Whether one part is asked for by name.
    pub(super) fn is_part(&self) -> bool {
        self.histogram.is_some() || self.tree || self.slowest.is_some() || self.exceptions
    }
}

/// What orders traced functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallSort {
    /// How often they were called.
    Calls,
    /// Time in them.
    #[default]
    Total,
    /// Time in them without the traced calls in them.
    SelfTime,
    /// Mean duration.
    Mean,
    /// Duration that 1 % of the calls exceed.
    P99,
    /// Longest duration.
    Max,
}

/// Which share orders rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// What ran itself.
    #[default]
    SelfWeight,
    /// What ran itself or through callees.
    Total,
}

/// What a table has one row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A function.
    Function,
    /// A source line.
    Line,
    /// An object file.
    Module,
    /// A process.
    Process,
    /// A thread.
    Thread,
    /// A container, or a unit of systemd.
    Container,
    /// A Kubernetes pod.
    Pod,
    /// A unit of systemd.
    Unit,
    /// An image that containers were made of.
    Image,
    /// A wait: by state, by what waited, by thread.
    Wait,
    /// A reason why user stacks end too early, in a module.
    End,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

macro_rules! names {
    ($type:ident, $($name:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(format!("must be one of {}", [$($name),+].join(", "))),
                }
            }
        }
    };
}

names!(Sort, "self" => Sort::SelfWeight, "total" => Sort::Total);
names!(CallSort, "calls" => CallSort::Calls, "total" => CallSort::Total,
    "self" => CallSort::SelfTime, "mean" => CallSort::Mean, "p99" => CallSort::P99,
    "max" => CallSort::Max);
names!(Format, "text" => Format::Text, "json" => Format::Json);
names!(By, "function" => By::Function, "line" => By::Line, "module" => By::Module,
    "process" => By::Process, "thread" => By::Thread, "container" => By::Container,
    "pod" => By::Pod, "unit" => By::Unit, "image" => By::Image, "wait" => By::Wait, "end" => By::End);

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
}
