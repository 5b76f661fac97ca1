//! Waits as text.
//!
//! Input: [`WaitReport`]; output: what the waits were, where the program waited, which threads did, and
//! who ended it. Where the kernel counted, threads stand with its exact numbers.

use std::io;

use super::data::LostRow;
use super::short_name;
use super::text::Writer;
use super::waits_data::*;
use crate::view::quantity::{count, duration, percent, plural};
use crate::view::table::{Align, Cell, Table};
use crate::view::term::Style;
use profiler_model::LostReason;

impl Writer<'_> {
    /// All about waits; `limit` rows per table.
    pub(super) fn waits(&mut self, limit: usize) -> io::Result<()> {
        let Some(waits) = &self.report.waits else {
            let text = "None of the selected samples is a wait; record with --off-cpu or --wall.";
            return match self.options.by {
                Some(_) => writeln!(self.out, "\n{text}"),
                None => Ok(()),
            };
        };
        self.states(waits)?;
        self.waiting_functions(waits, limit)?;
        self.waiting_threads(waits, limit)?;
        // With one waker for all, the tables above said it.
        if waits.wakers.len() > 1 {
            self.wakers(waits, limit)?;
        }
        Ok(())
    }

    fn states(&mut self, waits: &WaitReport) -> io::Result<()> {
        self.title("Waits", 0, 0)?;
        let mut table = Table::new(&[
            ("share", Align::Right),
            ("time", Align::Right),
            ("waits", Align::Right),
            ("mean", Align::Right),
            ("longest", Align::Right),
            ("runnable", Align::Right),
            ("state", Align::Left),
        ]);
        for row in &waits.states {
            let [share, time, number, mean, longest, runnable] = cells(&row.share);
            let state = Cell::new(row.state.name());
            table.row([share, time, number, mean, longest, runnable, state]);
        }
        self.print(&table)?;
        let queue = &waits.run_queue;
        if queue.ns > 0 {
            self.prose(&format!(
                "Runnable, but without a processor: {} in all, {} on average, half of the waits up \
                 to {}, 99 % up to {}, at most {}.",
                duration(queue.ns),
                duration(queue.mean_ns),
                duration(queue.p50_ns),
                duration(queue.p99_ns),
                duration(queue.max_ns),
            ))?;
        }
        if let Some(exact) = &waits.exact {
            // Of those that had not ended, earlier recordings do not say how many there were.
            let waits = match exact.waits {
                0 => "no wait that ended".to_owned(),
                waits => plural(waits, "wait"),
            };
            let header = &self.report.header;
            let mut lost = header.lost.iter();
            let is_missing = |row: &LostRow| row.reason == LostReason::UnwrittenCounts;
            let which = match (header.is_part, lost.any(is_missing)) {
                (true, _) => " in times that lie in this part as a whole",
                (false, true) => ", as far as its counts could be written",
                (false, false) => "",
            };
            self.prose(&format!(
                "Counted by the kernel{which}: {waits}, {}; {} of that time was recorded one by one.",
                duration(exact.ns),
                match exact.recorded_percent {
                    0.0 => "none".to_owned(),
                    share => percent(share),
                },
            ))?;
        }
        Ok(())
    }

    fn prose(&mut self, text: &str) -> io::Result<()> {
        let room = self.options.width.unwrap_or(usize::MAX).max(20);
        for line in super::text_head::fold(text, room) {
            self.paint.write(self.out, Style::Dim, &line)?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn waiting_functions(&mut self, waits: &WaitReport, limit: usize) -> io::Result<()> {
        let rows = &waits.functions;
        let shown = rows.len().min(limit);
        self.title("Where programs waited", shown, rows.len())?;
        let mut columns = vec![
            ("share", Align::Right),
            ("time", Align::Right),
            ("waits", Align::Right),
        ];
        if !self.is_narrow() {
            columns.extend([
                ("mean", Align::Right),
                ("longest", Align::Right),
                ("runnable", Align::Right),
            ]);
        }
        columns.extend([("state", Align::Left), ("function", Align::Left)]);
        columns.extend([("module", Align::Minor), ("woken by", Align::Minor)]);
        let mut table = Table::new(&columns);
        for row in &rows[..shown] {
            let numbers = if self.is_narrow() { 3 } else { 6 };
            let mut line: Vec<Cell> = cells(&row.share).into_iter().take(numbers).collect();
            line.push(Cell::new(states_text(&row.states)));
            line.push(Cell::new(row.name.clone()));
            line.push(Cell::styled(short_name(&row.module.module), Style::Dim));
            line.push(Cell::new(wakers_text(&row.wakers)));
            table.row(line);
        }
        self.print(&table)
    }

    fn waiting_threads(&mut self, waits: &WaitReport, limit: usize) -> io::Result<()> {
        let rows = &waits.threads;
        let shown = rows.len().min(limit);
        self.title("Threads that waited", shown, rows.len())?;
        let exact = rows.iter().any(|row| row.exact.is_some());
        let mut columns = vec![("time", Align::Right), ("waits", Align::Right)];
        if exact {
            columns.push(("recorded", Align::Right));
        }
        if !self.is_narrow() {
            columns.extend([
                ("sleeping", Align::Right),
                ("disk", Align::Right),
                ("preempted", Align::Right),
            ]);
        }
        columns.extend([("runnable", Align::Right), ("p99", Align::Right)]);
        if !self.is_narrow() {
            columns.push(("longest", Align::Right));
        }
        columns.extend([("thread", Align::Left), ("woken by", Align::Minor)]);
        let mut table = Table::new(&columns);
        for row in &rows[..shown] {
            let (ns, number) = row.exact.map_or((row.share.ns, row.share.waits), |exact| {
                (exact.ns, exact.waits)
            });
            let mut line = vec![Cell::new(time(ns)), Cell::new(count(number))];
            if exact {
                let part = row.exact.map(|exact| percent(exact.recorded_percent));
                line.push(Cell::new(part.unwrap_or_default()));
            }
            if !self.is_narrow() {
                let states = row.exact.map_or([None; 3], |exact| {
                    [exact.sleeping_ns, exact.disk_ns, exact.preempted_ns].map(Some)
                });
                line.extend(states.map(|ns| Cell::new(ns.map_or_else(String::new, time))));
            }
            let runnable = row
                .exact
                .map_or(row.share.runnable_ns, |exact| exact.runnable_ns);
            line.push(Cell::new(time(runnable)));
            line.push(Cell::new(time(row.run_queue.p99_ns)));
            if !self.is_narrow() {
                line.push(Cell::new(time(row.share.longest_ns)));
            }
            line.push(Cell::new(format!(
                "{}  (tid {} of {})",
                row.thread, row.tid, row.process
            )));
            line.push(Cell::new(wakers_text(&row.wakers)));
            table.row(line);
        }
        self.print(&table)
    }

    fn wakers(&mut self, waits: &WaitReport, limit: usize) -> io::Result<()> {
        let rows = &waits.wakers;
        let shown = rows.len().min(limit);
        self.title("Who ended waits", shown, rows.len())?;
        let mut table = Table::new(&[
            ("share", Align::Right),
            ("time", Align::Right),
            ("waits", Align::Right),
            ("woken by", Align::Left),
        ]);
        for row in &rows[..shown] {
            table.row([
                Cell::styled(percent(row.percent), Style::of_share(row.percent)),
                Cell::new(time(row.ns)),
                Cell::new(count(row.waits)),
                Cell::new(waker_text(row)),
            ]);
        }
        self.print(&table)
    }
}

fn cells(share: &WaitShare) -> [Cell; 6] {
    [
        Cell::styled(percent(share.percent), Style::of_share(share.percent)),
        Cell::new(time(share.ns)),
        Cell::new(count(share.waits)),
        Cell::new(time(share.mean_ns)),
        Cell::new(time(share.longest_ns)),
        Cell::new(time(share.runnable_ns)),
    ]
}

fn time(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        ns => duration(ns),
    }
}

/// The states, those with little time left out.
fn states_text(states: &[StateTime]) -> String {
    let all = states
        .iter()
        .fold(0, |sum: u64, state| sum.saturating_add(state.ns));
    let large = states.iter().filter(|state| state.ns >= all / 10);
    let names: Vec<&str> = large.map(|state| state.state.name()).collect();
    names.join(", ")
}

/// The one who ended most of the waits.
fn wakers_text(wakers: &[WakerRow]) -> String {
    match wakers {
        [] => String::new(),
        [only] => waker_text(only),
        [first, ..] => format!("{} {}", waker_text(first), percent(first.percent)),
    }
}

fn waker_text(waker: &WakerRow) -> String {
    match (&waker.process, &waker.thread) {
        (Some(process), Some(thread)) if process != thread => format!("{thread} of {process}"),
        (Some(process), _) => process.clone(),
        (None, _) if waker.goes_on => "[waits still]".to_owned(),
        (None, _) => "[interrupt]".to_owned(),
    }
}
