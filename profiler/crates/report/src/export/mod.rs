//! Exporters: a recording into the files of other tools, one file per format.
//!
//! Input: events ordered by time and the [`Tables`](profiler_model::Tables) they refer to, through
//! [`Sink`]; output: bytes of one format. [`formats`] is the table of all of them: a new format is
//! a file here and a line there. Each format's mapping, and what it loses, is in docs/formats.
//!
//! What does not belong here: sockets, opening files, terminal output, byte layouts that are of use
//! without the model (see [`wire`](profiler_wire)).

mod collect;
mod flamegraph;
mod folded;
mod go_trace;
mod name;
mod only;
mod options;

use std::io::Write;
use std::path::Path;

use crate::derive::Target;
use profiler_model::Sink;

pub use flamegraph::differential as flamegraph_differential;
pub use options::{BadOption, Count, ExportOptions, OptionHelp};

/// Where an exporter writes.
pub type Output = Box<dyn Write + Send>;

/// A file format that recordings can be exported to.
#[derive(Debug)]
pub struct Format {
    /// How it is called on the command line.
    pub name: &'static str,
    /// Endings of file names that mean this format, each with its dot, lower case.
    pub extensions: &'static [&'static str],
    /// One line for lists of formats.
    pub description: &'static str,
    /// What can be set, in the order in which help shows it.
    pub options: &'static [OptionHelp],
    /// What of a recording is in it.
    pub shows: Shows,
    sink: fn(ExportOptions, Output) -> Box<dyn Sink + Send>,
}

/// What of a recording a format shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Samples, and nothing else: of a recording of calls alone it is empty.
    Samples,
    /// Samples and traced calls.
    SamplesAndCalls,
}

static FORMATS: &[Format] = &[
    folded::FORMAT,
    flamegraph::FORMAT,
    go_trace::TEXT,
    go_trace::WIRE,
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
pub fn open(format: &Format, options: ExportOptions, output: Output) -> Box<dyn Sink + Send> {
    (format.sink)(options, output)
}

/// Starts an export of what a target did.
pub fn only(sink: Box<dyn Sink + Send>, target: &Target) -> Box<dyn Sink + Send> {
    match target.is_all() {
        true => sink,
        false => Box::new(only::Only::new(sink, target.clone())),
    }
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
            for help in format.options {
                let mut options = ExportOptions::default();
                let error = options.set(format, help.name, "\u{1}").err();
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
