//! A comparison as text.
//!
//! Input: [`Diff`]; output: both heads in short, warnings, then functions by their difference.

use std::io::{self, Write};

use super::diff::{Diff, DiffRow};
use super::diff_calls::CallDiffRow;
use super::options::{ReportOptions, Sort};
use super::short_name;
use super::text_head::Head;
use crate::view::quantity::{count, duration, percent};
use crate::view::table::{Align, Cell, Table};
use crate::view::term::{Paint, Style};

const DEFAULT_LIMIT: usize = 30;
/// A ratio of durations that stands out.
const LEAST_CHANGE: f64 = 1.1;
/// A difference below this rounds to nothing.
const LEAST_POINTS: f64 = 0.05;

pub(super) fn write(diff: &Diff, options: &ReportOptions, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint::new(options.color);
    let mut head = Head {
        out,
        paint,
        width: options.width,
        misses_calls: false,
    };
    head.write(&diff.header)?;
    writeln!(head.out)?;
    paint.write(head.out, Style::Bold, "Compared with\n")?;
    head.write(&diff.other)?;
    for warning in &diff.warnings {
        head.line("Warning", warning)?;
    }
    let no_samples = diff.header.samples + diff.other.samples == 0;
    match &diff.calls {
        Some(rows) if options.calls.is_only() || no_samples => calls(rows, options, out),
        Some(rows) => {
            functions(diff, options, out)?;
            calls(rows, options, out)
        }
        None => functions(diff, options, out),
    }
}

fn functions(diff: &Diff, options: &ReportOptions, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint::new(options.color);
    writeln!(out)?;
    let delta = |row: &DiffRow| match options.sort {
        Sort::SelfWeight => row.self_delta,
        Sort::Total => row.total_delta,
    };
    let changed: Vec<&DiffRow> = (diff.functions.iter())
        .filter(|row| delta(row).abs() >= LEAST_POINTS)
        .collect();
    let (title, column) = match options.sort {
        Sort::SelfWeight => ("Change of self, in percentage points", "self"),
        Sort::Total => ("Change of total, in percentage points", "total"),
    };
    paint.write(out, Style::Bold, title)?;
    let shown = changed.len().min(options.limit.unwrap_or(DEFAULT_LIMIT));
    if shown < changed.len() {
        let note = format!("  {shown} of {}", count(changed.len() as u64));
        paint.write(out, Style::Dim, &note)?;
    }
    writeln!(out)?;
    if changed.is_empty() {
        return writeln!(out, "None of {LEAST_POINTS} or more.");
    }
    let mut table = Table::new(&[
        ("change", Align::Right),
        (column, Align::Right),
        ("other", Align::Right),
        ("", Align::Left),
        ("function", Align::Left),
        ("module", Align::Minor),
    ]);
    for row in &changed[..shown] {
        let (here, there) = match options.sort {
            Sort::SelfWeight => (row.self_percent, row.other_self_percent),
            Sort::Total => (row.total_percent, row.other_total_percent),
        };
        let style = if delta(row) > 0.0 {
            Style::Hot
        } else {
            Style::Cool
        };
        table.row([
            Cell::styled(format!("{:+.1}", delta(row)), style),
            Cell::new(percent(here)),
            Cell::new(percent(there)),
            Cell::styled(if row.status == "both" { "" } else { row.status }, style),
            Cell::new(row.name.clone()),
            Cell::styled(short_name(&row.module.module), Style::Dim),
        ]);
    }
    table.write(out, options.width, paint)
}

fn calls(rows: &[CallDiffRow], options: &ReportOptions, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint::new(options.color);
    writeln!(out)?;
    paint.write(out, Style::Bold, "Traced functions: how many times as long")?;
    let shown = rows.len().min(options.limit.unwrap_or(DEFAULT_LIMIT));
    if shown < rows.len() {
        let note = format!("  {shown} of {}", count(rows.len() as u64));
        paint.write(out, Style::Dim, &note)?;
    }
    writeln!(out)?;
    let mut table = Table::new(&[
        ("mean", Align::Right),
        ("here", Align::Right),
        ("other", Align::Right),
        ("p99", Align::Right),
        ("calls", Align::Right),
        ("other", Align::Right),
        ("", Align::Left),
        ("function", Align::Left),
    ]);
    for row in &rows[..shown] {
        let ratio = |ratio: Option<f64>| match ratio {
            Some(ratio) if ratio >= LEAST_CHANGE => {
                Cell::styled(format!("{ratio:.2}x"), Style::Hot)
            }
            Some(ratio) if ratio <= 1.0 / LEAST_CHANGE => {
                Cell::styled(format!("{ratio:.2}x"), Style::Cool)
            }
            Some(ratio) => Cell::new(format!("{ratio:.2}x")),
            None => Cell::new("-"),
        };
        let time = |ns: Option<u64>| Cell::new(ns.map_or_else(|| "-".to_owned(), duration));
        table.row([
            ratio(row.mean_ratio),
            time(row.mean_ns),
            time(row.other_mean_ns),
            ratio(row.p99_ratio),
            Cell::new(count(row.calls)),
            Cell::new(count(row.other_calls)),
            Cell::new(if row.status == "both" { "" } else { row.status }),
            Cell::new(row.name.clone()),
        ]);
    }
    table.write(out, options.width, paint)
}
