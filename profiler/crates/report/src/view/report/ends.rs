//! From samples by how their user stacks end to the rows of `--by end`.
//!
//! Input: what the collector counted, and the selected samples; output: [`EndReport`].

use rustc_hash::FxHashSet;

use super::Recording;
use super::build::{Base, share_of};
use super::data::{EndReport, EndRow};
use crate::derive::{EarlyEnd, Key};

pub(super) fn build(recording: &Recording<'_>, base: &Base<'_>) -> EndReport {
    let selected: FxHashSet<Key> = base.selected.iter().map(|selected| selected.key).collect();
    let ends = &recording.collected.ends;
    let ends = ends.ends(base.tables, |key| selected.contains(key));
    EndReport {
        samples: ends.samples,
        complete: ends.complete,
        not_said: ends.not_said,
        complete_percent: share_of(ends.complete, ends.samples),
        early: ends.early.iter().map(|end| row(base, end)).collect(),
    }
}

fn row(base: &Base<'_>, end: &EarlyEnd) -> EndRow {
    EndRow {
        end: end.end,
        module: base.code_module(end.module),
        outermost: (end.frame).map_or_else(String::new, |frame| base.tables.frame_name(frame)),
        samples: end.samples,
        weight: end.weight,
        percent: base.percent(end.weight),
    }
}
