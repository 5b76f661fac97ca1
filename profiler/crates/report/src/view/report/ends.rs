//! From samples by how their user stacks end to the rows of `--by end`.
//!
//! Input: what the collector counted, and the selected samples; output: [`EndReport`].

use rustc_hash::FxHashSet;

use super::Recording;
use super::build::{Base, NO_STACK, share_of};
use super::data::{EndReport, EndRow};
use crate::derive::{EarlyEnd, Key};

pub(super) fn build(recording: &Recording<'_>, base: &Base<'_>) -> EndReport {
    let selected: FxHashSet<Key> = base.selected.iter().map(|selected| selected.key).collect();
    let ends = &recording.collected.ends;
    let ends = ends.ends(base.tables, |key| selected.contains(key));
    EndReport {
        samples: ends.all.total(),
        complete: ends.all.whole(),
        not_said: ends.all.not_said(),
        complete_percent: share_of(ends.all.whole(), ends.all.total()),
        early: ends.early.iter().map(|end| row(base, end)).collect(),
    }
}

fn row(base: &Base<'_>, end: &EarlyEnd) -> EndRow {
    EndRow {
        end: end.end,
        module: base.code_module(end.module),
        outermost: (end.frame).map_or_else(
            || NO_STACK.to_owned(),
            |frame| base.tables.frame_name(frame),
        ),
        samples: end.samples,
        weight: end.weight,
        percent: base.percent(end.weight),
    }
}
