//! Traced functions of two recordings compared.
//!
//! Input: two folded recordings; output: how many times as long calls take here as in the other.
//! Functions match by name and path, so that a rebuilt binary compares.

use std::collections::BTreeMap;

use serde::Serialize;

use super::calls_data::CallRow;
use super::data::CodeModule;
use super::options::ReportOptions;
use super::{Recording, ReportError, calls};
use profiler_model::sorting::InOrder;

/// One traced function in both recordings.
#[derive(Clone, Debug, Serialize)]
pub struct CallDiffRow {
    /// Its name.
    pub name: String,
    /// Where it lives (in this recording, if it is in both).
    #[serde(flatten)]
    pub module: CodeModule,
    /// `both`, `new` (only in this recording) or `gone` (only in the other).
    pub status: &'static str,
    /// Calls here.
    pub calls: u64,
    /// Calls in the other recording.
    pub other_calls: u64,
    /// Mean duration here.
    pub mean_ns: Option<u64>,
    /// Mean duration in the other recording.
    pub other_mean_ns: Option<u64>,
    /// How many times as long.
    pub mean_ratio: Option<f64>,
    /// What 99 % of the calls take at most, here.
    pub p99_ns: Option<u64>,
    /// What 99 % of the calls take at most, in the other recording.
    pub other_p99_ns: Option<u64>,
    /// How many times as long.
    pub p99_ratio: Option<f64>,
}

/// None if neither recording has calls.
pub(super) fn build(
    this: &Recording<'_>,
    other: &Recording<'_>,
    options: &ReportOptions,
) -> Result<Option<Vec<CallDiffRow>>, ReportError> {
    let (this, other) = (calls::build(this, options)?, calls::build(other, options)?);
    if this.is_none() && other.is_none() {
        return Ok(None);
    }
    let rows = |calls: Option<super::calls_data::Calls>| calls.map_or(Vec::new(), |c| c.functions);
    let key = |row: &CallRow| (row.name.clone(), row.module.module.clone());
    let mut others: BTreeMap<_, CallRow> = rows(other).into_iter().map(|r| (key(&r), r)).collect();
    let mut compared: Vec<CallDiffRow> = Vec::new();
    for here in rows(this) {
        let there = others.remove(&key(&here));
        compared.push(row(Some(&here), there.as_ref()));
    }
    compared.extend(others.values().map(|there| row(None, Some(there))));
    let change = |row: &CallDiffRow| row.mean_ratio.map_or(-1.0, |ratio| ratio.ln().abs());
    compared.order_by(|a, b| {
        (change(b).total_cmp(&change(a)))
            .then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
    });
    Ok(Some(compared))
}

fn row(here: Option<&CallRow>, there: Option<&CallRow>) -> CallDiffRow {
    let shown = here.or(there);
    let mean = |row: Option<&CallRow>| row.and_then(|row| row.mean_ns);
    let p99 = |row: Option<&CallRow>| row.and_then(|row| row.p99_ns);
    CallDiffRow {
        name: shown.map_or_else(String::new, |row| row.name.clone()),
        module: shown.map_or_else(CodeModule::default, |row| row.module.clone()),
        status: match (here, there) {
            (Some(_), None) => "new",
            (None, Some(_)) => "gone",
            _ => "both",
        },
        calls: here.map_or(0, |row| row.calls),
        other_calls: there.map_or(0, |row| row.calls),
        mean_ns: mean(here),
        other_mean_ns: mean(there),
        mean_ratio: ratio(mean(here), mean(there)),
        p99_ns: p99(here),
        other_p99_ns: p99(there),
        p99_ratio: ratio(p99(here), p99(there)),
    }
}

/// None where one is not known, or too short to be compared.
fn ratio(here: Option<u64>, there: Option<u64>) -> Option<f64> {
    let (here, there) = (here.filter(|ns| *ns > 0)?, there.filter(|ns| *ns > 0)?);
    Some((here as f64 / there as f64 * 1e4).round() / 1e4).filter(|ratio| *ratio > 0.0)
}
