//! Two recordings compared, function by function.
//!
//! Input: two folded recordings; output: shares of each one's own weight and their difference in
//! percentage points (this one minus the other), so that recordings of different length compare.
//! A function is the same by build id, name and start; else by path, name and source file; else by path and
//! name: a rebuilt binary matches. Functions of one name and file are paired by the lines they are declared at where
//! these are the same in both, else taken together.

use profiler_model::FrameKind;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::build::{self, Base};
use super::data::*;
use super::diff_calls::{self, CallDiffRow};
use super::options::{ReportOptions, Sort};
use super::{Recording, ReportError, header};
use crate::derive::Chosen;
use profiler_model::sorting::InOrder;

/// Name and version of this shape.
const SCHEMA: &str = "profiler-report-diff/1";

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// Name and version of this shape.
    pub schema: &'static str,
    /// What this recording is.
    pub header: Header,
    /// What it is compared with.
    pub other: Header,
    /// Why the numbers may mislead.
    pub warnings: Vec<String>,
    /// Functions, the greatest difference first.
    pub functions: Vec<DiffRow>,
    /// Traced functions, if there are any, the greatest change of the mean first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Vec<CallDiffRow>>,
}

/// One function in both recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    /// Its name.
    pub name: String,
    /// Where it lives (in this recording, if it is in both).
    #[serde(flatten)]
    pub module: CodeModule,
    /// `both`, `new` (only in this recording) or `gone` (only in the other).
    pub status: &'static str,
    /// Share here, in percent.
    pub self_percent: f64,
    /// Share in the other recording.
    pub other_self_percent: f64,
    /// Their difference, in percentage points.
    pub self_delta: f64,
    /// Share with callees here.
    pub total_percent: f64,
    /// Share with callees in the other recording.
    pub other_total_percent: f64,
    /// Their difference.
    pub total_delta: f64,
}

pub(super) fn build(
    recording: &Recording<'_>,
    other_recording: &Recording<'_>,
    options: &ReportOptions,
) -> Result<Diff, ReportError> {
    // A container may be in one of them only, as a process may; one that is in none is a mistake.
    let target = &options.filter.target;
    let (own, others) = match (
        target.find(recording.tables),
        target.find(other_recording.tables),
    ) {
        (Err(error), Err(_)) => return Err(error.into()),
        (own, others) => {
            let or_nothing = |found: Result<_, _>| found.unwrap_or_else(|_| Chosen::nobody());
            (or_nothing(own), or_nothing(others))
        }
    };
    let base = Base::of(recording, options, own)?;
    let other_base = other_base(&base, other_recording, options, others)?;
    let (header, other) = (
        header::build(recording, &base),
        header::build(other_recording, &other_base),
    );
    let calls = diff_calls::build(recording, other_recording, options)?;
    Ok(Diff {
        schema: SCHEMA,
        warnings: match (calls.is_some(), header.samples + other.samples) {
            // Nothing but calls: samples are not missed.
            (true, 0) => Vec::new(),
            _ => warnings(&header, &other),
        },
        calls,
        functions: compare(
            build::function_rows(&base, &base.tree, options.sort),
            build::function_rows(&other_base, &other_base.tree, options.sort),
            options.sort,
        ),
        header,
        other,
    })
}

/// The other recording by the same source, if it has samples of that.
fn other_base<'a>(
    base: &Base<'_>,
    other: &Recording<'a>,
    options: &ReportOptions,
    chosen: Chosen,
) -> Result<Base<'a>, ReportError> {
    let same = ReportOptions {
        source: base.sources.name(base.tables).map(str::to_owned),
        ..options.clone()
    };
    match Base::of(other, &same, chosen.clone()) {
        Err(ReportError::NoSource { .. }) if options.source.is_none() => {
            Base::of(other, options, chosen)
        }
        result => result,
    }
}

fn warnings(this: &Header, other: &Header) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = |header: &Header| header.profile.clone().unwrap_or_default();
    for (header, which) in [(this, "this"), (other, "the other")] {
        if header.samples == 0 {
            warnings.push(format!("{which} recording has no samples that match"));
        }
    }
    if !warnings.is_empty() {
        return warnings;
    }
    let (here, there) = (name(this), name(other));
    if here != there {
        warnings.push(format!(
            "the sources differ: {here} here, {there} in the other recording"
        ));
    }
    if this.unit != other.unit {
        warnings.push(format!(
            "the units differ: {} here, {} in the other recording",
            this.unit.name(),
            other.unit.name()
        ));
    }
    warnings
}

/// Matches functions: by what is surest first.
fn compare(this: Vec<FunctionRow>, other: Vec<FunctionRow>, sort: Sort) -> Vec<DiffRow> {
    let mut rows = Vec::new();
    let (this, other) = pair_up(this, other, by_build_id, &mut rows);
    let (here, there) = (lines_of(&this), lines_of(&other));
    let by_line = |row: &FunctionRow| {
        let key = by_file(row)?;
        let same = here.get(&key).is_some_and(|lines| lines.len() > 1)
            && here.get(&key) == there.get(&key);
        let (path, name, file) = key;
        same.then(|| {
            (
                path,
                name,
                format!("{file}:{}", row.declared_line.unwrap_or(0)),
            )
        })
    };
    let (this, other) = pair_up(this, other, by_line, &mut rows);
    let (this, other) = pair_up(this, other, by_file, &mut rows);
    let (this, other) = pair_up(this, other, by_path, &mut rows);
    rows.extend(this.iter().map(|row| diff_row(Some(row), None)));
    rows.extend(other.iter().map(|row| diff_row(None, Some(row))));
    rows.order_by(|a, b| {
        let size = |row: &DiffRow| match sort {
            Sort::SelfWeight => (row.self_delta.abs(), row.total_delta.abs()),
            Sort::Total => (row.total_delta.abs(), row.self_delta.abs()),
        };
        let ((a1, a2), (b1, b2)) = (size(a), size(b));
        (b1.total_cmp(&a1))
            .then(b2.total_cmp(&a2))
            .then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
    });
    rows
}

/// Object, name, and what tells functions of one name apart.
type MatchKey = (String, String, String);

fn by_build_id(row: &FunctionRow) -> Option<MatchKey> {
    let start = row
        .start
        .map_or_else(String::new, |start| start.to_string());
    Some((
        row.module.build_id.clone()?,
        row.own_name().to_owned(),
        start,
    ))
}

/// The same source may be built in another folder.
fn by_file(row: &FunctionRow) -> Option<MatchKey> {
    let (path, name, _) = by_path(row)?;
    Some((path, name, last_part(row.file.as_deref()?).to_owned()))
}

/// The lines that functions of one name and file are declared at.
fn lines_of(rows: &[FunctionRow]) -> BTreeMap<MatchKey, BTreeSet<Option<u32>>> {
    let mut lines: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for row in rows {
        if let Some(key) = by_file(row) {
            lines.entry(key).or_default().insert(row.declared_line);
        }
    }
    lines
}

/// Offsets mean nothing in another build, so only names match by path.
fn by_path(row: &FunctionRow) -> Option<MatchKey> {
    let path = match row.kind {
        // The path of JIT code holds the pid.
        FrameKind::Jit => "[jit]".to_owned(),
        _ => row.module.module.clone(),
    };
    (row.named || row.module.build_id.is_none())
        .then(|| (path, row.own_name().to_owned(), String::new()))
}

/// Adds a row for each key that both sides have; gives back what has no match. Rows of one side
/// with the same key are taken together, so that the sides can be swapped.
fn pair_up(
    this: Vec<FunctionRow>,
    other: Vec<FunctionRow>,
    key: impl Fn(&FunctionRow) -> Option<MatchKey>,
    rows: &mut Vec<DiffRow>,
) -> (Vec<FunctionRow>, Vec<FunctionRow>) {
    let group = |side: Vec<FunctionRow>| {
        let mut groups: BTreeMap<MatchKey, Vec<FunctionRow>> = BTreeMap::new();
        let mut rest = Vec::new();
        for row in side {
            match key(&row) {
                Some(key) => groups.entry(key).or_default().push(row),
                None => rest.push(row),
            }
        }
        (groups, rest)
    };
    let (this_groups, mut this_rest) = group(this);
    let (mut other_groups, mut other_rest) = group(other);
    for (key, group) in this_groups {
        match other_groups.remove(&key) {
            Some(other_group) if !agree(&group, &other_group) => {
                this_rest.extend(group);
                other_rest.extend(other_group);
            }
            Some(other_group) => rows.push(diff_row(
                together(&group).as_ref(),
                together(&other_group).as_ref(),
            )),
            None => this_rest.extend(group),
        }
    }
    other_rest.extend(other_groups.into_values().flatten());
    (this_rest, other_rest)
}

/// Whether two sides can be the same function: of one object file, or not of different source files.
fn agree(this: &[FunctionRow], other: &[FunctionRow]) -> bool {
    let any = |same: fn(&FunctionRow, &FunctionRow) -> bool| {
        this.iter().any(|a| other.iter().any(|b| same(a, b)))
    };
    any(|a, b| a.start.is_some() && a.start == b.start)
        || any(|a, b| match (&a.file, &b.file) {
            (Some(a), Some(b)) => last_part(a) == last_part(b),
            _ => true,
        })
}

fn last_part(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn together(rows: &[FunctionRow]) -> Option<FunctionRow> {
    let mut sum = rows.first()?.clone();
    if rows.len() > 1 {
        sum.name = sum.own_name().to_owned();
    }
    for row in &rows[1..] {
        sum.share.self_percent += row.share.self_percent;
        sum.share.total_percent += row.share.total_percent;
    }
    Some(sum)
}

fn diff_row(this: Option<&FunctionRow>, other: Option<&FunctionRow>) -> DiffRow {
    let share = |row: Option<&FunctionRow>| row.map_or_else(Share::default, |row| row.share);
    let (here, there) = (share(this), share(other));
    let shown = this.or(other);
    let points = |a: f64, b: f64| ((a - b) * 1e4).round() / 1e4;
    DiffRow {
        name: shown.map_or_else(String::new, |row| row.name.clone()),
        module: shown.map_or_else(CodeModule::default, |row| row.module.clone()),
        status: match (this, other) {
            (Some(_), None) => "new",
            (None, Some(_)) => "gone",
            _ => "both",
        },
        self_percent: here.self_percent,
        other_self_percent: there.self_percent,
        self_delta: points(here.self_percent, there.self_percent),
        total_percent: here.total_percent,
        other_total_percent: there.total_percent,
        total_delta: points(here.total_percent, there.total_percent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, path: &str, build_id: Option<&str>, percent: f64) -> FunctionRow {
        FunctionRow {
            name: name.into(),
            short: None,
            module: CodeModule {
                module: path.into(),
                build_id: build_id.map(Into::into),
            },
            kind: FrameKind::Native,
            named: !name.contains('+'),
            inlined: false,
            file: None,
            start: None,
            declared_line: None,
            line: None,
            share: Share {
                self_percent: percent,
                total_percent: percent,
                ..Share::default()
            },
        }
    }

    fn this() -> Vec<FunctionRow> {
        vec![
            row("same", "/a", Some("01"), 40.0),
            row("rebuilt", "/b", Some("02"), 30.0),
            row("b+0x10", "/b", Some("02"), 20.0),
            row("added", "/a", Some("01"), 10.0),
        ]
    }

    fn other() -> Vec<FunctionRow> {
        vec![
            row("same", "/moved/a", Some("01"), 50.0),
            row("rebuilt", "/b", Some("03"), 25.0),
            row("b+0x10", "/b", Some("03"), 25.0),
        ]
    }

    #[test]
    fn functions_match_by_build_id_then_by_path() {
        let rows = compare(this(), other(), Sort::SelfWeight);
        let shown: Vec<(&str, &str, f64)> = (rows.iter())
            .map(|row| (row.name.as_str(), row.status, row.self_delta))
            .collect();
        let expected = [
            ("b+0x10", "gone", -25.0),
            ("b+0x10", "new", 20.0),
            ("added", "new", 10.0),
            ("same", "both", -10.0),
            ("rebuilt", "both", 5.0),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn functions_of_one_file_match_by_line_if_no_line_has_moved() {
        let row = |line, percent| FunctionRow {
            short: Some("work".into()),
            file: Some("/a/t.js".into()),
            declared_line: Some(line),
            ..row(&format!("work (t.js:{line})"), "/a", None, percent)
        };
        let compared = |a: [(u32, f64); 2], b: [(u32, f64); 2]| -> Vec<(String, f64)> {
            let rows =
                |side: [(u32, f64); 2]| side.map(|(line, percent)| row(line, percent)).into();
            let rows = compare(rows(a), rows(b), Sort::SelfWeight);
            (rows.into_iter().map(|row| (row.name, row.self_delta))).collect()
        };
        assert_eq!(
            compared([(1, 20.0), (2, 60.0)], [(1, 50.0), (2, 40.0)]),
            [
                ("work (t.js:1)".into(), -30.0),
                ("work (t.js:2)".into(), 20.0)
            ]
        );
        assert_eq!(
            compared([(1, 20.0), (2, 60.0)], [(2, 50.0), (3, 40.0)]),
            [("work".into(), -10.0)]
        );
    }

    #[test]
    fn swapped_sides_swap_the_sign() {
        let forward = compare(this(), other(), Sort::SelfWeight);
        let backward = compare(other(), this(), Sort::SelfWeight);
        assert_eq!(forward.len(), backward.len());
        for row in &forward {
            let opposite = backward.iter().find(|b| {
                b.name == row.name
                    && b.self_delta == -row.self_delta
                    && b.self_percent == row.other_self_percent
            });
            assert!(opposite.is_some(), "{row:?}");
        }
    }
}
