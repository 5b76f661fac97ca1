//! What can be set for an export, as typed values and from `name=value` on a command line.
//!
//! Widths are in pixels and per cent of the image. Each format's `options` say which of these it
//! obeys; setting another one for it is an error.

use super::Format;
use profiler_wire::go_trace::Version;

/// One option of a format, for help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHelp {
    /// Its name.
    pub name: &'static str,
    /// What a value looks like.
    pub value: &'static str,
    /// What it does, and what holds without it.
    pub help: &'static str,
}

/// What numbers say how hot a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// How many samples.
    Samples,
    /// What the samples stand for, in the unit of their source: nanoseconds, cycles, events.
    Weight,
}

/// What was set. The default is what each format does by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportOptions {
    /// What to count; none: the format's own choice.
    pub count: Option<Count>,
    /// Name of the event source whose samples are wanted, or `wall`; see
    /// [`crate::derive::Sources::choose`].
    pub source: Option<String>,
    /// Threads apart, by a frame with the thread's name and id below the process.
    pub threads: bool,
    /// Containers apart, by a frame with the container's name above the process.
    pub containers: bool,
    /// Title of an image.
    pub title: Option<String>,
    /// Width of an image; none: as wide as the window.
    pub width_px: Option<u32>,
    /// Frames narrower than this are left out of an image.
    pub min_width_percent: Option<f64>,
    /// Root at the bottom.
    pub root_at_bottom: bool,
    /// Stacks turned round: leaf first, so that equal leaves merge and show their callers.
    pub reverse: bool,
    /// Version of a Go trace; none: the one that every reader knows.
    pub go_version: Option<Version>,
    /// Events in one part of a trace that is written in parts.
    pub generation: Option<u64>,
}

/// A `name=value` that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// The format has no such option.
    #[error("format '{format}' has no option '{name}'; it has: {known}")]
    Unknown {
        /// The format.
        format: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The value can't be read.
    #[error("'{value}' is no value for option '{name}'; give {expected}")]
    Value {
        /// The option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

/// Options that several formats share.
pub(super) mod help {
    use super::OptionHelp;

    pub(crate) const SOURCE: OptionHelp = OptionHelp {
        name: "source",
        value: "EVENT",
        help: "samples of this event source; `off-cpu`: waits; `wall`: CPU time and waits together \
               (default: `wall` if both were recorded, else the source of the first sample)",
    };
    pub(crate) const THREADS: OptionHelp = OptionHelp {
        name: "threads",
        value: "yes|no",
        help: "keep the threads of a process apart (default: no)",
    };
    pub(crate) const CONTAINERS: OptionHelp = OptionHelp {
        name: "containers",
        value: "yes|no",
        help: "begin each stack with the container, pod or unit (default: no)",
    };
}

impl ExportOptions {
    /// Sets an option of `format` from text.
    pub fn set(&mut self, format: &Format, name: &str, value: &str) -> Result<(), BadOption> {
        let Some(option) = format.options.iter().find(|option| option.name == name) else {
            let known: Vec<_> = format.options.iter().map(|option| option.name).collect();
            return Err(BadOption::Unknown {
                format: format.name,
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        self.parse(option.name, value)
            .ok_or_else(|| BadOption::Value {
                name: option.name,
                value: value.to_owned(),
                expected: option.value,
            })
    }

    fn parse(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "count" => {
                self.count = Some(match value {
                    "samples" => Count::Samples,
                    "weight" => Count::Weight,
                    _ => return None,
                });
            }
            "source" => self.source = Some(value.to_owned()),
            "threads" => self.threads = yes(value)?,
            "containers" => self.containers = yes(value)?,
            "title" => self.title = Some(value.to_owned()),
            "width" => self.width_px = Some(value.parse().ok().filter(|w| *w >= MIN_IMAGE_PX)?),
            "min-width" => {
                let percent = value.parse().ok();
                self.min_width_percent = Some(percent.filter(|p| (0.0..=100.0).contains(p))?);
            }
            "root" => {
                self.root_at_bottom = match value {
                    "top" => false,
                    "bottom" => true,
                    _ => return None,
                }
            }
            "reverse" => self.reverse = yes(value)?,
            "version" => {
                let minor = value.strip_prefix("1.").unwrap_or(value).parse().ok()?;
                self.go_version = Some(Version::from_minor(minor)?);
            }
            "generation" => self.generation = Some(value.parse().ok().filter(|n| *n > 0)?),
            _ => return None,
        }
        Some(())
    }
}

/// Narrower images have no room for their own margins.
const MIN_IMAGE_PX: u32 = 200;

fn yes(value: &str) -> Option<bool> {
    match value {
        "yes" | "true" | "1" | "" => Some(true),
        "no" | "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::by_name;

    #[test]
    fn values_are_read_and_checked() {
        let svg = by_name("svg").unwrap();
        let mut options = ExportOptions::default();
        for (name, value) in [("width", "1500"), ("min-width", "0.5"), ("reverse", "yes")] {
            options.set(svg, name, value).unwrap();
        }
        assert_eq!(options.width_px, Some(1500));
        assert_eq!(options.min_width_percent, Some(0.5));
        assert!(options.reverse);
        for (name, value) in [("width", "3"), ("min-width", "nan"), ("count", "x")] {
            let error = options.set(svg, name, value).unwrap_err();
            assert!(matches!(error, BadOption::Value { .. }), "{error}");
        }
        let folded = by_name("folded").unwrap();
        let error = options.set(folded, "width", "900").unwrap_err().to_string();
        assert!(
            error.contains("'width'") && error.contains("count"),
            "{error}"
        );
    }
}
