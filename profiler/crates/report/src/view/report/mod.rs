//! The report: what is hot, where, called by whom; compared with another recording; down to lines
//! and instructions.
//!
//! Input: a recording folded by [`Collector`]; output: text or JSON. Nothing is read but the
//! recording (and source files, for annotated source).

pub mod annotate;
mod build;
mod calls;
pub mod calls_data;
mod collect;
mod containers;
pub mod data;
pub mod diff;
pub mod diff_calls;
mod disassemble;
mod ends;
mod header;
mod options;
mod select;
mod source;
mod text;
mod text_annotate;
mod text_calls;
mod text_calls_tree;
mod text_containers;
mod text_diff;
mod text_ends;
mod text_head;
mod text_histogram;
mod text_owners;
mod text_tree;
mod text_waits;
mod tree;
mod waits;
pub mod waits_data;

use std::io::{self, Write};

use crate::derive::short_name;
pub use crate::derive::{Filter, TimeRange};
pub use collect::Collector;
pub use options::{By, CallSort, CallView, Format, ReportOptions, Sort};

use crate::derive::TargetError;
use profiler_model::Tables;

/// A recording that has been folded.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    /// All definitions.
    pub tables: &'a Tables,
    /// All events.
    pub collected: &'a Collector,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No samples of such a source.
    #[error("no samples of `{wanted}` in the recording; it has samples of: {present}")]
    NoSource {
        /// What was asked for.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// The recording can't tell whose samples are meant.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// No such function.
    #[error(
        "no function matches `{0}` in the selected samples; give a part of its name or a glob, or see all names with --by function --limit 100000"
    )]
    NoFunction(String),
    /// No such traced function.
    #[error(
        "no traced function matches `{0}`; give a part of its name or a glob, or see all with --calls --limit 100000"
    )]
    NoTracedFunction(String),
    /// The output failed.
    #[error("failed to write the report: {0}")]
    Write(#[from] io::Error),
    /// The output failed.
    #[error("failed to write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes the report of `recording`.
pub fn run(
    recording: &Recording<'_>,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    if let Some(name) = &options.annotate {
        let annotation = annotate::build(recording, options, name)?;
        match options.format {
            Format::Text => text_annotate::write(&annotation, options, out)?,
            Format::Json => write_json(&annotation, out)?,
        }
        out.flush()?;
        return Ok(());
    }
    let report = build::build(recording, options)?;
    match options.format {
        Format::Text => text::write(&report, options, out)?,
        Format::Json => write_json(&report, out)?,
    }
    out.flush()?;
    Ok(())
}

/// Writes how `recording` differs from `other`.
pub fn run_diff(
    recording: &Recording<'_>,
    other: &Recording<'_>,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let diff = diff::build(recording, other, options)?;
    match options.format {
        Format::Text => text_diff::write(&diff, options, out)?,
        Format::Json => write_json(&diff, out)?,
    }
    out.flush()?;
    Ok(())
}

fn write_json(value: &impl serde::Serialize, out: &mut dyn Write) -> Result<(), ReportError> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}
