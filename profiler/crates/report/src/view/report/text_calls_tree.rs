//! The tree of traced calls as text.
//!
//! Input: rows in depth-first order; output: one line per row. As in the tree of samples, only a
//! fork indents.

use std::io::{self, Write};

use super::calls_data::CallTreeRow;
use super::short_name;
use crate::view::quantity::{count, duration, short_count};
use crate::view::table::{cut, cut_start};
use crate::view::term::{Paint, Style};
use profiler_model::text::printable;

/// What is left for a name, however deep the tree is.
const LEAST_NAME: usize = 20;
/// Width of each number.
const NUMBER: usize = 8;

pub(super) fn write(
    rows: &[CallTreeRow],
    out: &mut dyn Write,
    width: Option<usize>,
    paint: Paint,
) -> io::Result<()> {
    let head = numbers("calls", "total", "self");
    paint.write(out, Style::Dim, &format!("{head}call\n"))?;
    let mut children = vec![0_usize; rows.len()];
    for row in rows {
        if let Some(parent) = row.parent {
            children[parent] += 1;
        }
    }
    // What stands left of the callees of a row, and how many of them are still to come.
    let mut below: Vec<String> = vec![String::new(); rows.len()];
    let mut left: Vec<usize> = children.clone();
    for row in rows {
        let has_rest = |row: &CallTreeRow| row.omitted > 0;
        let (prefix, inner) = match row.parent {
            None => (String::new(), String::new()),
            Some(parent) => {
                left[parent] -= 1;
                let above = &below[parent];
                let rest = has_rest(&rows[parent]);
                let last = left[parent] == 0;
                match (children[parent] + usize::from(rest), last) {
                    (1, _) => (above.clone(), above.clone()),
                    // What is left out is noted on the row of the caller, so the last is the last.
                    (_, true) => (format!("{above}└─ "), format!("{above}   ")),
                    (_, false) => (format!("{above}├─ "), format!("{above}│  ")),
                }
            }
        };
        below[row.id] = inner;
        let caller = row.parent.map(|parent| &rows[parent]);
        line(out, row, caller, &prefix, width, paint)?;
    }
    Ok(())
}

fn line(
    out: &mut dyn Write,
    row: &CallTreeRow,
    caller: Option<&CallTreeRow>,
    prefix: &str,
    width: Option<usize>,
    paint: Paint,
) -> io::Result<()> {
    let time = |ns| match ns {
        0 => "-".to_owned(),
        ns => duration(ns),
    };
    let numbers = match row.kind {
        "unknown_callers" => numbers("", "", ""),
        _ => numbers(
            &short_count(row.calls),
            &time(row.total_ns),
            &time(row.self_ns),
        ),
    };
    write!(out, "{numbers}")?;
    let module = short_name(&row.module.module);
    let mut note = match caller {
        Some(caller) if caller.module == row.module => String::new(),
        _ if module.is_empty() => String::new(),
        _ if module.starts_with('[') => format!("  {module}"),
        _ => format!("  [{module}]"),
    };
    if row.omitted > 0 {
        let (more, rest) = (count(row.omitted), duration(row.omitted_ns));
        note += &format!("  … {more} more, {rest}");
    }
    if row.folded > 0 {
        note += &format!("  … {} calls deeper", short_count(row.folded));
    }
    let room = width.map_or(usize::MAX, |w| w.saturating_sub(numbers.chars().count()));
    let prefix = cut_start(prefix, room.saturating_sub(LEAST_NAME));
    let room = room.saturating_sub(prefix.chars().count()).max(LEAST_NAME);
    let name = printable(&row.name);
    let name = cut(
        &name,
        room.saturating_sub(note.chars().count()).max(LEAST_NAME),
    );
    let note = cut(&note, room.saturating_sub(name.chars().count())).into_owned();
    paint.write(out, Style::Dim, &prefix)?;
    paint.write(out, Style::Plain, &name)?;
    paint.write(out, Style::Dim, &printable(&note))?;
    writeln!(out)
}

fn numbers(calls: &str, total: &str, own: &str) -> String {
    format!("{calls:>NUMBER$} {total:>NUMBER$} {own:>NUMBER$}  ")
}
