//! An annotated function as text.
//!
//! Input: [`Annotation`]; output: source lines and instructions with their shares of the function;
//! long runs of instructions without samples are left out.

use std::io::{self, Write};

use super::annotate::{Annotation, InstructionRow, SourceFile};
use super::data::{FunctionRow, Share};
use super::options::ReportOptions;
use super::short_name;
use super::text_head::Head;
use crate::view::quantity::{count, percent, plural};
use crate::view::table::{Align, Cell, Table};
use crate::view::term::{Paint, Style};

/// Instructions shown before and after one with samples.
const AROUND: usize = 4;

pub(super) fn write(
    annotation: &Annotation,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let paint = Paint::new(options.color);
    let mut head = Head {
        out,
        paint,
        width: options.width,
        misses_calls: false,
    };
    head.write(&annotation.header)?;
    writeln!(head.out)?;
    let function = &annotation.function;
    head.line("Function", &function_text(function))?;
    if let Some(build_id) = &function.module.build_id {
        head.line("Build id", build_id)?;
    }
    if let Some(start) = annotation.start {
        let size = annotation.size_bytes;
        let size = size.map_or_else(String::new, |size| format!(", {}", plural(size, "byte")));
        head.line("Address", &format!("{start:#x}{size}"))?;
    }
    let mut label = "Others";
    for other in &annotation.others {
        head.line(label, &function_text(other))?;
        label = "";
    }
    let mut label = "Note";
    for note in &annotation.notes {
        head.line(label, note)?;
        label = "";
    }
    for file in &annotation.files {
        source(file, options, out, paint)?;
    }
    instructions(&annotation.instructions, options, out, paint)
}

fn function_text(row: &FunctionRow) -> String {
    format!(
        "{} in {}: self {}, total {}, {}",
        row.name,
        short_name(&row.module.module),
        percent(row.share.self_percent),
        percent(row.share.total_percent),
        plural(row.share.total_samples, "sample"),
    )
}

fn share_cells(share: &Share) -> [Cell; 3] {
    let blank = |value: f64| match value {
        0.0 => String::new(),
        value => percent(value),
    };
    let samples = match share.self_samples {
        0 => String::new(),
        samples => count(samples),
    };
    [
        Cell::styled(
            blank(share.self_percent),
            Style::of_share(share.self_percent),
        ),
        Cell::new(blank(share.total_percent)),
        Cell::new(samples),
    ]
}

const SHARES: [(&str, Align); 3] = [
    ("self", Align::Right),
    ("total", Align::Right),
    ("samples", Align::Right),
];

fn source(
    file: &SourceFile,
    options: &ReportOptions,
    out: &mut dyn Write,
    paint: Paint,
) -> io::Result<()> {
    writeln!(out)?;
    let title = format!("{}\n", profiler_model::text::printable(&file.path));
    paint.write(out, Style::Bold, &title)?;
    let mut columns = SHARES.to_vec();
    columns.extend([("line", Align::Right), ("source", Align::Left)]);
    let mut table = Table::new(&columns);
    let mut last = None;
    for line in &file.lines {
        if last.is_some_and(|last| line.line > last + 1) {
            table.row(["", "", "", "", "…"].map(Cell::new));
        }
        last = Some(line.line);
        let mut cells = share_cells(&line.share).to_vec();
        let text = line.text.as_deref().unwrap_or_default();
        cells.push(Cell::styled(line.line.to_string(), Style::Dim));
        // A tab has no width of its own in a table.
        cells.push(Cell::new(text.replace('\t', "    ")));
        table.row(cells);
    }
    table.write(out, options.width, paint)
}

fn instructions(
    rows: &[InstructionRow],
    options: &ReportOptions,
    out: &mut dyn Write,
    paint: Paint,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    paint.write(out, Style::Bold, "Instructions\n")?;
    let mut columns = SHARES.to_vec();
    columns.extend([("address", Align::Right), ("instruction", Align::Left)]);
    let mut table = Table::new(&columns);
    let mut skipped = 0;
    for (row, shown) in rows.iter().zip(near_samples(rows)) {
        if !shown {
            skipped += 1;
            continue;
        }
        left_out(&mut table, &mut skipped);
        let mut cells = share_cells(&row.share).to_vec();
        cells.push(Cell::styled(format!("{:x}", row.address), Style::Dim));
        cells.push(match &row.text {
            Some(text) => Cell::new(text.clone()),
            None => Cell::styled("[no code in the recording]", Style::Dim),
        });
        table.row(cells);
    }
    left_out(&mut table, &mut skipped);
    table.write(out, options.width, paint)
}

fn left_out(table: &mut Table, skipped: &mut u64) {
    if *skipped > 0 {
        let text = format!("… {} without samples", count(*skipped));
        let text = Cell::styled(text, Style::Dim);
        let blank = || Cell::new("");
        table.row([blank(), blank(), blank(), blank(), text]);
        *skipped = 0;
    }
}

/// Which rows have samples, or are near one that has; a short function is shown whole.
fn near_samples(rows: &[InstructionRow]) -> Vec<bool> {
    let mut shown = vec![rows.len() <= 4 * AROUND; rows.len()];
    for (index, row) in rows.iter().enumerate() {
        if row.share.total_samples > 0 {
            let to = (index + AROUND + 1).min(rows.len());
            shown[index.saturating_sub(AROUND)..to].fill(true);
        }
    }
    shown
}
