//! What a report is asked to show.
//!
//! Input: flags, as text; output: plain options. Times are nanoseconds since the start of the
//! recording.

use std::fs::File;
use std::str::FromStr;
use std::sync::Arc;

use crate::derive::{Filter, TimeRange};

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
