//! Exporters: a recording into the files of other tools, one file per format.
//!
//! Input: events ordered by time and the [`Tables`](profiler_model::Tables) they refer to, through
//! [`Sink`]; output: bytes of one format. [`formats`] is the table of all of them: a new format is
//! a file here and a line there. Each format's mapping, and what it loses, is in docs/formats.
//!
//! What does not belong here: sockets, opening files, terminal output, byte layouts that are of use
//! without the model (see [`wire`](profiler_wire)).

mod about;
mod aside;
pub mod bytefrog;
mod callgrind;
mod calls;
mod chrome_trace;
mod collect;
mod cpuprofile;
mod default_source;
mod firefox;
mod flamegraph;
mod folded;
mod functions;
mod go_trace;
mod js_self_profiling;
mod json;
mod name;
mod nest;
mod notes;
mod only;
mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
mod perf_script;
mod perfetto;
mod pgo;
mod places;
mod pprof;
mod runs;
mod settings;
mod speedscope;
mod summed;
mod tcf;
mod timed;
mod trace_actor;
mod tree;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use profiler_model::Sink;
use settings::Declared;

pub use crate::derive::TimeRange;
pub use collect::{Folded, Folding};
pub use default_source::SourceCounts;
pub use only::{Only, Selection};
pub use settings::{BadOption, OptionHelp, Settings};

/// Where an exporter writes.
pub type Output = Box<dyn Write + Send>;

/// A file format that recordings can be exported to.
pub struct Format {
    /// How it is called on the command line.
    pub name: &'static str,
    /// Endings of file names that mean this format, each with its dot, lower case.
    pub extensions: &'static [&'static str],
    /// One line for lists of formats.
    pub description: &'static str,
    /// What of a recording is in it.
    pub shows: Shows,
    /// Samples of which sources are in it where none is chosen.
    pub sources: ShownSources,
    /// What can be set, in the order in which help shows it.
    options: &'static [&'static dyn Declared],
    sink: fn(&Settings, Output) -> Box<dyn Sink + Send>,
    /// How it shows what has changed between two recordings, if it can.
    difference: Option<Difference>,
    /// Whether it has to know where functions are declared ([`Tables::declared`](profiler_model::Tables::declared)).
    pub declared: bool,
}

impl fmt::Debug for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Format").field(&self.name).finish()
    }
}

impl Format {
    /// What can be set, in the order in which help shows it.
    pub fn options(&self) -> impl Iterator<Item = OptionHelp> {
        self.options.iter().map(|option| option.help())
    }

    /// Whether it can show what has changed between two recordings.
    pub fn shows_differences(&self) -> bool {
        self.difference.is_some()
    }
}

/// Two recordings, in one unit, the earlier one first -> bytes. The title is what holds where none is set.
type Difference = fn(&Settings, [&Folded; 2], title: &str) -> io::Result<Vec<u8>>;

/// What of a recording a format shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Samples, and nothing else: of a recording of calls alone it is empty.
    Samples,
    /// Samples and traced calls.
    SamplesAndCalls,
}

/// Samples of which sources a format shows where none is chosen. CPU time and waits are one where a format shows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownSources {
    /// All, each told apart.
    All,
    /// That of most samples, as a report.
    One,
    /// The same, but CPU time or cycles if there are samples of these.
    Time,
}

static FORMATS: &[Format] = &[
    folded::FORMAT,
    flamegraph::FORMAT,
    go_trace::TEXT,
    go_trace::WIRE,
    pprof::FORMAT,
    speedscope::FORMAT,
    firefox::FORMAT,
    perfetto::FORMAT,
    chrome_trace::FORMAT,
    cpuprofile::FORMAT,
    callgrind::FORMAT,
    otlp::FORMAT,
    perf_script::FORMAT,
    trace_actor::FORMAT,
    js_self_profiling::FORMAT,
    bytefrog::FORMAT,
    tcf::FORMAT,
    pgo::LLVM,
    pgo::BOLT,
    pprof::GO,
    #[cfg(feature = "parquet")]
    parquet::FORMAT,
];

/// All formats, in the order in which lists show them.
pub fn formats() -> &'static [Format] {
    FORMATS
}

/// No format fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFormat {
    /// By its name.
    #[error("unknown format '{name}'; known formats: {}", names())]
    Name {
        /// What was asked for.
        name: String,
    },
    /// By the ending of a file name.
    #[error("the name of '{path}' tells no format; known endings: {}", endings())]
    Path {
        /// The path.
        path: String,
    },
}

/// The format of that name.
pub fn by_name(name: &str) -> Result<&'static Format, UnknownFormat> {
    formats()
        .iter()
        .find(|format| format.name == name)
        .ok_or_else(|| UnknownFormat::Name { name: name.into() })
}

/// The format that the ending of a file name means; the longest ending that fits decides.
pub fn by_path(path: &Path) -> Result<&'static Format, UnknownFormat> {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default();
    formats()
        .iter()
        .flat_map(|format| format.extensions.iter().map(move |end| (end, format)))
        // A name that is nothing but the ending is a hidden file without one.
        .filter(|(end, _)| name.len() > end.len() && name.ends_with(**end))
        .max_by_key(|(end, _)| end.len())
        .map(|(_, format)| format)
        .ok_or_else(|| UnknownFormat::Path {
            path: path.display().to_string(),
        })
}

/// Starts an export: feed it all events, then [`Sink::finish`] it, which also flushes `output`.
pub fn open(settings: &Settings, output: Output) -> Box<dyn Sink + Send> {
    (settings.format.sink)(settings, output)
}

/// What has changed since the first of two recordings; none if the format can't show it.
pub fn difference(
    settings: &Settings,
    recordings: [&Folded; 2],
    title: &str,
) -> Option<io::Result<Vec<u8>>> {
    let draw = settings.format.difference?;
    Some(draw(settings, recordings, title))
}

fn names() -> String {
    let names: Vec<_> = formats().iter().map(|format| format.name).collect();
    names.join(", ")
}

fn endings() -> String {
    let all: Vec<_> = formats()
        .iter()
        .flat_map(|format| format.extensions)
        .copied()
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_endings_are_unique() {
        let mut names: Vec<_> = formats().iter().map(|f| f.name).collect();
        let mut ends: Vec<_> = formats().iter().flat_map(|f| f.extensions).collect();
        let (n, e) = (names.len(), ends.len());
        names.sort_unstable();
        names.dedup();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!((names.len(), ends.len()), (n, e));
    }

    #[test]
    fn every_option_help_names_an_option() {
        for format in formats() {
            for help in format.options() {
                let error = Settings::new(format).set(help.name, "\u{1}").err();
                assert!(
                    !matches!(error, Some(BadOption::Unknown { .. })),
                    "{}: {}",
                    format.name,
                    help.name
                );
            }
        }
    }

    #[test]
    fn formats_are_found_by_path() {
        let find = |path: &str| by_path(Path::new(path)).map(|format| format.name);
        assert_eq!(find("/tmp/a.folded"), Ok("folded"));
        assert_eq!(find("A.SVG"), Ok("svg"));
        assert_eq!(find("x.y.svg"), Ok("svg"));
        assert_eq!(find("a.go.txt"), Ok("go-trace"));
        assert_eq!(find("a.gotrace"), Ok("go-trace"));
        assert_eq!(find("a.go.trace"), Ok("go-trace-wire"));
        assert_eq!(find("a.trace"), Ok("go-trace-wire"));
        assert_eq!(find("a.pb.gz"), Ok("pprof"));
        assert!(find("a.txt").is_err());
        assert!(find(".svg").is_err());
        let error = find("profile.xyz").unwrap_err().to_string();
        assert!(
            error.contains("'profile.xyz'") && error.contains(".folded"),
            "{error}"
        );
        let error = by_name("gif").unwrap_err().to_string();
        assert!(
            error.contains("'gif'") && error.contains("folded, svg"),
            "{error}"
        );
    }
}
