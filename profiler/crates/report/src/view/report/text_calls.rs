//! Traced calls as text.
//!
//! Input: [`Calls`]; output: functions, exceptions, the slowest calls, the tree, who called. Every
//! number that is not what it seems has a mark, and a line at the foot that explains it.

use profiler_model::{GapReason, LostReason};
use std::io::{self, Write};

use super::calls_data::*;
use super::options::{CallSort, ReportOptions};
use super::short_name;
use super::text_head::fold;
use super::{text_calls_tree, text_histogram};
use crate::view::quantity::{count, duration, gaps, percent, plural};
use crate::view::table::{Align, Cell, Table};
use crate::view::term::{Paint, Style};
use profiler_model::text::printable;

const DEFAULT_LIMIT: usize = 20;
/// Tables beside the functions are shorter, unless asked for.
const SIDE_LIMIT: usize = 8;
/// Below this many columns, what can be worked out or is rarely looked at is left out.
const NARROW: usize = 100;
/// From this many columns on there is room for everything.
const WIDE: usize = 132;

/// One line on how much there is, for the head of the report.
pub(super) fn summary(summary: &CallSummary) -> String {
    let mut text = format!(
        "{}{} of {}",
        match summary.calls_at_least {
            true => "at least ",
            false => "",
        },
        plural(summary.calls, "call"),
        plural(summary.functions, "function")
    );
    if summary.seen < summary.calls {
        text += &format!(", {} of them in the recording", count(summary.seen));
    }
    for (number, what) in [
        (summary.lost_records, "records lost"),
        (
            summary.unwritten_records,
            LostReason::UnwrittenCalls.phrase(),
        ),
        (summary.left_out, "left out by a limit"),
        (summary.unwatched, "not watched to their end"),
        (summary.unrecorded, "whose end was not recorded"),
        (summary.unmatched, LostReason::Unmatched.phrase()),
    ] {
        if number > 0 {
            text += &format!("; {} {what}", count(number));
        }
    }
    for gap in &summary.gaps {
        let gaps = gaps(gap.count.unwrap_or(1), gap.ns);
        text += &format!("; {gaps}: {}", gap.reason.phrase());
    }
    if summary.counts_left_out {
        text += "; of the part looked at, without the kernel's counts, which are of the whole";
    }
    text
}

/// Writes what the options ask for; behind samples, only the functions.
pub(super) fn write(calls: &Calls, options: &ReportOptions, out: &mut dyn Write) -> io::Result<()> {
    let view = &options.calls;
    if view.only && !view.is_part() {
        return write_all(calls, options, out);
    }
    let mut writer = Writer::new(calls, options, out);
    if !view.is_part() {
        writer.functions()?;
    }
    if view.histogram.is_some() {
        writer.histograms()?;
    }
    if view.exceptions {
        writer.exceptions(writer.limit())?;
    }
    if view.slowest.is_some() {
        writer.slowest(usize::MAX)?;
    }
    if view.tree {
        writer.tree()?;
    }
    Ok(())
}

/// Writes all that there is about calls.
pub(super) fn write_all(
    calls: &Calls,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut writer = Writer::new(calls, options, out);
    writer.functions()?;
    writer.exceptions(SIDE_LIMIT)?;
    writer.slowest(SIDE_LIMIT)?;
    writer.owners("Processes", &calls.processes)?;
    writer.owners("Threads", &calls.threads)?;
    writer.tree()
}

struct Writer<'a> {
    calls: &'a Calls,
    options: &'a ReportOptions,
    out: &'a mut dyn Write,
    paint: Paint,
}

/// What a column of functions shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Calls,
    Marks,
    Total,
    SelfTime,
    Mean,
    P50,
    P95,
    P99,
    Max,
    Exceptions,
    Tracing,
    Name,
    Module,
}

impl<'a> Writer<'a> {
    fn new(calls: &'a Calls, options: &'a ReportOptions, out: &'a mut dyn Write) -> Writer<'a> {
        Writer {
            calls,
            options,
            out,
            paint: Paint::new(options.color),
        }
    }

    fn limit(&self) -> usize {
        self.options.limit.unwrap_or(DEFAULT_LIMIT)
    }

    fn title(&mut self, title: &str, note: &str) -> io::Result<()> {
        writeln!(self.out)?;
        self.paint.write(self.out, Style::Bold, &printable(title))?;
        if !note.is_empty() {
            let note = format!("  {note}");
            self.paint.write(self.out, Style::Dim, &note)?;
        }
        writeln!(self.out)
    }

    fn print(&mut self, table: &Table) -> io::Result<()> {
        table.write(self.out, self.options.width, self.paint)
    }

    /// The columns that there is room for and something to show in.
    fn columns(&self, rows: &[CallRow], common: &str) -> Vec<Column> {
        use Column::*;
        let any = |has: fn(&CallRow) -> bool| rows.iter().any(has);
        let width = self.options.width.unwrap_or(usize::MAX);
        let all = [
            Calls, Marks, Total, SelfTime, Mean, P50, P95, P99, Max, Exceptions, Tracing, Name,
            Module,
        ];
        let fits = |column: &Column| match column {
            P50 | P95 | Tracing => width >= WIDE,
            SelfTime => width >= NARROW || !any(|row| row.exceptions > 0),
            Module => width >= NARROW,
            _ => true,
        };
        let has = |column: &Column| match column {
            Marks => rows.iter().any(|row| !marks(row, common).is_empty()),
            Exceptions => any(|row| row.exceptions > 0),
            Tracing => any(|row| row.tracing_percent.is_some()),
            _ => true,
        };
        all.into_iter().filter(|c| fits(c) && has(c)).collect()
    }

    fn functions(&mut self) -> io::Result<()> {
        let rows = &self.calls.functions;
        if rows.is_empty() {
            return Ok(());
        }
        let shown = &rows[..rows.len().min(self.limit())];
        let by = match self.options.calls.sort {
            CallSort::Calls => "calls",
            CallSort::Total => "total",
            CallSort::SelfTime => "self",
            CallSort::Mean => "mean",
            CallSort::P99 => "p99",
            CallSort::Max => "max",
        };
        self.title(
            &format!("Traced functions, by {by}"),
            &part(shown.len(), rows.len()),
        )?;
        let common = common_marks(shown);
        let columns = self.columns(shown, &common);
        let titles: Vec<_> = columns.iter().map(|column| column.title()).collect();
        let mut table = Table::new(&titles);
        for row in shown {
            let cells: Vec<Cell> = (columns.iter())
                .map(|column| column.cell(row, &common))
                .collect();
            table.row(cells);
        }
        self.print(&table)?;
        self.notes(shown, &common)
    }

    /// What the marks mean.
    fn notes(&mut self, rows: &[CallRow], common: &str) -> io::Result<()> {
        let sum = |of: fn(&CallRow) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
        let mut notes: Vec<(&str, String)> = Vec::new();
        let estimated = sum(|row| u64::from(row.calls_estimated.is_some()));
        if estimated > 0 {
            let hidden = |row: &CallRow| {
                let gaps = row.gaps.iter().filter(|gap| gap.reason.is_sampled());
                gaps.fold((0, 0.0), |(ns, share), gap: &GapRow| {
                    (
                        gap.ns.saturating_add(ns),
                        share + gap.percent.unwrap_or_default(),
                    )
                })
            };
            let rows = rows.iter().filter(|row| row.calls_estimated.is_some());
            let longest = rows.map(hidden).max_by_key(|(ns, _)| *ns);
            let share = longest.map_or(String::new(), |(ns, share)| {
                format!(" (not for {}, {})", duration(ns), percent(share.min(100.0)))
            });
            notes.push((
                "~",
                format!(
                    "watched only part of the time, to stay within the budget{share}: about so \
                     many calls, if they are as frequent then as while watched"
                ),
            ));
        }
        if rows.iter().any(|row| row.not_estimable) {
            notes.push((
                "e",
                "at least so many calls, watched only part of the time, to stay within the budget: too \
                 little, too unevenly or at too high a cost to estimate how many were missed"
                    .to_owned(),
            ));
        }
        let missing = sum(missing);
        if missing > 0 {
            let lost = sum(|row| row.lost_records);
            let left_out = sum(|row| row.left_out);
            let unwritten = match self.calls.summary.unwritten_records {
                0 => String::new(),
                more => format!(", {} that could not be written", count(more)),
            };
            // Those that a limit asks to have lasted are recorded when they return.
            let known = lost.saturating_add(left_out);
            let known = known.saturating_add(self.calls.summary.unwritten_records);
            let endless = match missing.saturating_sub(known) {
                0 => String::new(),
                more => format!(
                    ", {} that did not return, or not yet: by an exception, a jump, the end of a thread",
                    count(more)
                ),
            };
            notes.push((
                "l",
                format!(
                    "{} not in the recording ({} lost{unwritten}, {} left out by a limit{endless}): \
                     counted, but in no time",
                    plural(missing, "call"),
                    plural(lost, "record"),
                    count(left_out)
                ),
            ));
        }
        for (mark, reason, what) in [
            (
                "b",
                GapReason::NotYetAttached,
                "not watched until the probes were in place",
            ),
            (
                "n",
                GapReason::NoReturns,
                "without returns, to stay within the budget",
            ),
            (
                "d",
                GapReason::Detached,
                "not watched any more, to stay within the budget",
            ),
        ] {
            let gaps = rows.iter().filter_map(|row| gap(row, reason));
            if let Some(longest) = gaps.max_by_key(|gap| gap.ns) {
                let share = percent(longest.percent.unwrap_or_default());
                let mut text = format!("{what}, for up to {} ({share})", duration(longest.ns));
                let untimed = match reason {
                    GapReason::NoReturns => sum(hits_without_returns),
                    _ => 0,
                };
                if untimed > 0 {
                    text += &format!(": {} counted, but in no time", plural(untimed, "call"));
                }
                notes.push((mark, text));
            }
        }
        let why = self.calls.summary.why_unwatched();
        for (mark, number, what) in [
            (
                "i",
                sum(|row| row.inferred),
                "whose end was inferred: in total and self with the longest time they can have \
                 taken, not in mean and percentiles",
            ),
            (
                "u",
                sum(|row| row.unwatched),
                &format!("{why}: counted, but in no time"),
            ),
            (
                "r",
                sum(|row| row.unrecorded),
                "whose end was not recorded (records could not be written): counted, but in no time",
            ),
            (
                "o",
                sum(|row| row.open),
                "not ended at the end of the recording: counted, but in no time",
            ),
            (
                "t",
                sum(|row| row.terminated),
                "ended with their thread or program",
            ),
        ] {
            if number > 0 {
                notes.push((mark, format!("{} {what}", plural(number, "call"))));
            }
        }
        let costs = || rows.iter().filter_map(|row| row.cost_ns);
        if let (Some(least), Some(most)) = (costs().min(), costs().max()) {
            let each = match least == most {
                true => duration(most.into()),
                false => format!("{} to {}", duration(least.into()), duration(most.into())),
            };
            notes.push((
                "",
                format!(
                    "Times include the cost of tracing, about {each} per traced call (predicted)"
                ),
            ));
        }
        let room = self
            .options
            .width
            .map_or(usize::MAX, |w| w.saturating_sub(3).max(20));
        for (mark, text) in notes {
            // What is true of all rows needs no mark.
            let mut mark = if common.contains(mark) { "" } else { mark };
            let indent = if mark.is_empty() { 0 } else { 3 };
            let text = sentence(&text, indent == 0);
            for line in fold(&text, room) {
                let line = format!("{mark:indent$}{line}\n");
                self.paint.write(self.out, Style::Dim, &line)?;
                mark = "";
            }
        }
        Ok(())
    }

    fn exceptions(&mut self, limit: usize) -> io::Result<()> {
        let rows = &self.calls.exceptions;
        if rows.is_empty() {
            if self.options.calls.exceptions {
                writeln!(self.out, "\nNo exceptions were seen.")?;
            }
            return Ok(());
        }
        let shown = &rows[..rows.len().min(limit)];
        self.title("Exceptions", &part(shown.len(), rows.len()))?;
        let mut table = Table::new(&[
            ("thrown", Align::Right),
            ("calls left", Align::Right),
            ("type", Align::Left),
            ("thrown by", Align::Left),
        ]);
        for row in shown {
            let kind = row.kind.as_deref().unwrap_or("[unknown type]");
            table.row([
                Cell::new(number(row.thrown)),
                Cell::new(number(row.calls_left)),
                Cell::new(kind),
                Cell::styled(row.thrower.as_deref().unwrap_or("[unknown]"), Style::Dim),
            ]);
        }
        self.print(&table)?;
        match self.calls.summary.exceptions_folded {
            0 => Ok(()),
            more => writeln!(self.out, "… {} more, of other types or places", count(more)),
        }
    }

    fn slowest(&mut self, limit: usize) -> io::Result<()> {
        let rows = &self.calls.slowest;
        if rows.is_empty() {
            return Ok(());
        }
        let shown = &rows[..rows.len().min(limit)];
        self.title("Slowest calls", "")?;
        let narrow = self.options.width.is_some_and(|width| width < NARROW);
        let mut columns = vec![
            ("took", Align::Right),
            ("self", Align::Right),
            ("at", Align::Right),
            ("thread", Align::Minor),
            ("call", Align::Left),
        ];
        if narrow {
            columns.remove(1);
        }
        let mut table = Table::new(&columns);
        for row in shown {
            let mut cells = vec![
                Cell::new(duration(row.total_ns)),
                Cell::new(duration(row.self_ns)),
                Cell::new(seconds(row.at_ns)),
                Cell::styled(format!("{} {}", row.thread, row.tid), Style::Dim),
                Cell::new(call_text(row)),
            ];
            if narrow {
                cells.remove(1);
            }
            table.row(cells);
        }
        self.print(&table)?;
        match self.calls.summary.arguments_dropped {
            0 => Ok(()),
            n => writeln!(
                self.out,
                "The arguments of {} were not kept.",
                plural(n, "call")
            ),
        }
    }

    fn owners(&mut self, title: &str, rows: &[CallOwnerRow]) -> io::Result<()> {
        // One is in the head of every other table.
        if rows.len() < 2 {
            return Ok(());
        }
        let limit = self.options.limit.unwrap_or(SIDE_LIMIT);
        let shown = &rows[..rows.len().min(limit)];
        self.title(
            &format!("{title} with traced calls"),
            &part(shown.len(), rows.len()),
        )?;
        let is_thread = shown.iter().any(|row| row.tid.is_some());
        let mut table = Table::new(&[
            ("calls", Align::Right),
            ("time", Align::Right),
            ("exceptions", Align::Right),
            (if is_thread { "thread" } else { "process" }, Align::Left),
        ]);
        for row in shown {
            table.row([
                Cell::new(count(row.calls)),
                Cell::new(time(row.total_ns)),
                Cell::new(number(row.exceptions)),
                Cell::new(match (&row.thread, row.tid) {
                    (Some(thread), Some(tid)) => {
                        format!("{thread}  (tid {tid} of {}{})", row.process, place(row))
                    }
                    _ => format!("{}  (pid {}{})", row.process, row.pid, place(row)),
                }),
            ]);
        }
        self.print(&table)
    }

    fn tree(&mut self) -> io::Result<()> {
        let note = format!(
            "from {}% on, callers above callees",
            self.options.min_percent
        );
        self.title("Tree of traced calls", &note)?;
        text_calls_tree::write(&self.calls.tree, self.out, self.options.width, self.paint)?;
        match self.calls.summary.folded {
            0 => Ok(()),
            more => writeln!(
                self.out,
                "{} too deep, or in too many contexts, are not in the tree.",
                plural(more, "call")
            ),
        }
    }

    fn histograms(&mut self) -> io::Result<()> {
        let rows = &self.calls.functions;
        let shown = &rows[..rows.len().min(self.options.limit.unwrap_or(5))];
        for row in shown {
            self.title(&row.name, short_name(&row.module.module))?;
            text_histogram::write(row, self.out, self.options.width, self.paint)?;
            self.notes(std::slice::from_ref(row), &marks(row, ""))?;
        }
        match rows.len() - shown.len() {
            0 => Ok(()),
            more => writeln!(
                self.out,
                "\n… {} more match",
                plural(more as u64, "function")
            ),
        }
    }
}

impl Column {
    fn title(self) -> (&'static str, Align) {
        let title = match self {
            Column::Calls => "calls",
            Column::Marks => return ("", Align::Left),
            Column::Total => "total",
            Column::SelfTime => "self",
            Column::Mean => "mean",
            Column::P50 => "p50",
            Column::P95 => "p95",
            Column::P99 => "p99",
            Column::Max => "max",
            Column::Exceptions => "exc.",
            Column::Tracing => "tracing",
            Column::Name => return ("function", Align::Left),
            Column::Module => return ("module", Align::Minor),
        };
        (title, Align::Right)
    }

    fn cell(self, row: &CallRow, common: &str) -> Cell {
        match self {
            Column::Calls => Cell::new(match row.calls_estimated {
                Some(calls) => format!("~{}", count(calls)),
                None if row.not_estimable => format!("≥{}", count(row.calls)),
                None => count(row.calls),
            }),
            Column::Marks => Cell::styled(marks(row, common), Style::Warm),
            Column::Total => Cell::new(time(row.total_ns)),
            Column::SelfTime => Cell::new(time(row.self_ns)),
            Column::Mean => known(row.mean_ns),
            Column::P50 => known(row.p50_ns),
            Column::P95 => known(row.p95_ns),
            Column::P99 => known(row.p99_ns),
            Column::Max => known(row.max_ns),
            Column::Exceptions => Cell::styled(number(row.exceptions), Style::Warm),
            Column::Tracing => match row.tracing_percent {
                Some(share) => Cell::styled(format!("~{}", percent(share)), Style::of_share(share)),
                None => Cell::new("-"),
            },
            Column::Name => Cell::new(row.name.clone()),
            Column::Module => Cell::styled(short_name(&row.module.module), Style::Dim),
        }
    }
}

/// `12 of 340` if not all are shown.
fn part(shown: usize, all: usize) -> String {
    match shown < all {
        true => format!("{} of {}", count(shown as u64), count(all as u64)),
        false => String::new(),
    }
}

fn number(value: u64) -> String {
    match value {
        0 => "-".to_owned(),
        value => count(value),
    }
}

fn time(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        ns => duration(ns),
    }
}

fn known(ns: Option<u64>) -> Cell {
    Cell::new(ns.map_or_else(|| "-".to_owned(), duration))
}

/// A time since the start that finds the call again on a timeline.
fn seconds(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns / 1_000 % 1_000_000)
}

fn gap(row: &CallRow, reason: GapReason) -> Option<&GapRow> {
    row.gaps.iter().find(|gap| gap.reason == reason)
}

fn missing(row: &CallRow) -> u64 {
    row.calls.saturating_sub(row.calls_seen)
}

/// Calls that were entered while returns were not watched.
fn hits_without_returns(row: &CallRow) -> u64 {
    gap(row, GapReason::NoReturns).map_or(0, |_| row.hits)
}

/// The marks of gaps that all rows have: a note says as much.
fn common_marks(rows: &[CallRow]) -> String {
    let has = |mark| rows.iter().all(|row| marks(row, "").contains(mark));
    let common = ['b', 'n', 'd'].into_iter().filter(|&mark| has(mark));
    match rows.len() {
        0 | 1 => String::new(),
        _ => common.collect(),
    }
}

/// With a capital letter where no mark stands before it.
fn sentence(text: &str, capital: bool) -> String {
    let mut chars = text.chars();
    match chars.next().filter(|_| capital) {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => text.to_owned(),
    }
}

/// Why the numbers of a row are not what they seem, but for what all rows have in common.
fn marks(row: &CallRow, common: &str) -> String {
    let has = |reason| gap(row, reason).is_some();
    let marks = [
        (missing(row) > 0, 'l'),
        (has(GapReason::NotYetAttached), 'b'),
        (has(GapReason::NoReturns), 'n'),
        (has(GapReason::Detached), 'd'),
        (row.not_estimable, 'e'),
        (row.inferred > 0, 'i'),
        (row.unwatched > 0, 'u'),
        (row.unrecorded > 0, 'r'),
        (row.open > 0, 'o'),
        (row.terminated > 0, 't'),
    ];
    let marks = marks
        .iter()
        .filter(|(has, mark)| *has && !common.contains(*mark));
    marks.map(|(_, mark)| mark).collect()
}

/// `parse(n=3) = true`, `parse(n=3) threw std::bad_alloc`.
fn call_text(row: &SlowRow) -> String {
    let mut text = row.name.clone();
    if let Some(arguments) = &row.arguments {
        text.truncate(without_parameters(&text).len());
        text.push('(');
        for (index, argument) in arguments.iter().enumerate() {
            if index > 0 {
                text += ", ";
            }
            if let Some(name) = &argument.name {
                text += name;
                text.push('=');
            }
            text += &argument.value;
        }
        text.push(')');
    }
    match (row.end, &row.exception, &row.result) {
        ("exception", Some(kind), _) => text += &format!(" threw {kind}"),
        ("exception", None, _) => text += " left by an exception",
        ("terminated", ..) => text += " ended with its thread",
        (_, _, Some(result)) => text += &format!(" = {}", result.value),
        _ => {}
    }
    text
}

/// A demangled C++ name without the types of its parameters, whose values are shown instead.
fn without_parameters(name: &str) -> &str {
    if !name.ends_with(')') {
        return name;
    }
    let mut depth = 0;
    for (at, c) in name.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        // What is all in parentheses has no name before them.
        if depth == 0 {
            return if at > 0 { &name[..at] } else { name };
        }
    }
    name
}

/// ` in CONTAINER`, if it runs in one.
fn place(row: &CallOwnerRow) -> String {
    let place = row.container.as_ref().map(|name| format!(" in {name}"));
    place.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::without_parameters;

    #[test]
    fn parameters_are_the_last_parentheses() {
        for (name, short) in [
            ("f", "f"),
            ("f(int)", "f"),
            ("a::f(void (*)(int), b)", "a::f"),
            ("operator()(int)", "operator()"),
            ("f(int) const", "f(int) const"),
            ("(anonymous namespace)", "(anonymous namespace)"),
            ("broken)", "broken)"),
        ] {
            assert_eq!(without_parameters(name), short);
        }
    }
}
