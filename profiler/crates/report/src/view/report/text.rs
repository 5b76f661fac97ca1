//! The report as text.
//!
//! Input: [`Report`]; output: the head, then what was asked for: by default the hottest functions,
//! where they run, and the call tree. Numbers stand right-aligned before names.

use profiler_model::{Unit, UnknownReason};
use std::io::{self, Write};

use super::data::*;
use super::options::{By, ReportOptions, Sort};
use super::short_name;
use super::text_head::Head;
use super::{text_calls, text_tree};
use crate::derive::WALL;
use crate::view::quantity::{count, duration, percent, plural, short_count};
use crate::view::table::{Align, Cell, Table, cut_start};
use crate::view::term::{Paint, Style};
use profiler_model::text::printable;

const DEFAULT_LIMIT: usize = 20;
/// Tables beside the functions are shorter, unless asked for.
pub(super) const SIDE_LIMIT: usize = 8;
/// Below this many columns the tables leave out what can be worked out, for the names' sake.
const NARROW: usize = 100;

pub(super) fn write(
    report: &Report,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut writer = Writer {
        report,
        options,
        out,
        paint: Paint::new(options.color),
    };
    let mut head = Head {
        out: &mut *writer.out,
        paint: writer.paint,
        width: options.width,
        misses_calls: (report.calls.as_ref()).is_some_and(|calls| calls.summary.misses_any()),
    };
    head.write(&report.header)?;
    if let Some(calls) = &report.calls {
        head.line("Calls", &text_calls::summary(&calls.summary))?;
    }
    match &report.calls {
        Some(calls) if options.calls.is_only() => {
            return text_calls::write(calls, options, writer.out);
        }
        None if options.calls.is_only() => {
            return writeln!(writer.out, "\nThe recording has no traced calls.");
        }
        _ => {}
    }
    let asked = report.callers_of.is_some() || options.by.is_some() || options.tree;
    let calls = report.calls.as_ref().filter(|_| !asked);
    if report.header.samples == 0 {
        return match calls {
            // There is nothing else to leave room for.
            Some(calls) => text_calls::write_all(calls, options, writer.out),
            None => writer.nothing(),
        };
    }
    match (&report.callers_of, options.by) {
        (Some(focus), _) => writer.focus(focus),
        (None, Some(by)) => writer.table(by),
        (None, None) if options.tree => writer.tree(),
        (None, None) => writer.everything(),
    }?;
    if let Some(calls) = calls {
        text_calls::write(calls, options, writer.out)?;
    }
    writer.unsymbolized()
}

pub(super) struct Writer<'a> {
    pub(super) report: &'a Report,
    pub(super) options: &'a ReportOptions,
    pub(super) out: &'a mut dyn Write,
    pub(super) paint: Paint,
}

impl Writer<'_> {
    fn everything(&mut self) -> io::Result<()> {
        self.functions()?;
        self.waits(SIDE_LIMIT)?;
        self.containers_by_name()?;
        self.processes_by_name()?;
        self.threads_by_name()?;
        self.modules(SIDE_LIMIT)?;
        self.tree()
    }

    fn nothing(&mut self) -> io::Result<()> {
        writeln!(self.out)?;
        let why = match self.report.header.recorded_samples {
            0 => "The recording has no samples.",
            _ => "No sample matches the filters.",
        };
        writeln!(self.out, "{why}")
    }

    fn table(&mut self, by: By) -> io::Result<()> {
        match by {
            By::Function => self.functions(),
            By::Line => self.lines(),
            By::Module => self.modules(self.limit()),
            By::Process => self.processes(),
            By::Thread => self.threads(),
            By::Container => self.containers(),
            By::Pod => self.pods(),
            By::Unit => self.units(),
            By::Image => self.images(),
            By::Wait => self.waits(self.limit()),
            By::End => self.ends(),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.options.limit.unwrap_or(DEFAULT_LIMIT)
    }

    pub(super) fn title(&mut self, title: &str, shown: usize, all: usize) -> io::Result<()> {
        writeln!(self.out)?;
        self.paint.write(self.out, Style::Bold, &printable(title))?;
        if shown < all {
            let (shown, all) = (count(shown as u64), count(all as u64));
            let note = format!("  {shown} of {all}");
            self.paint.write(self.out, Style::Dim, &note)?;
        }
        writeln!(self.out)
    }

    pub(super) fn print(&mut self, table: &Table) -> io::Result<()> {
        table.write(self.out, self.options.width, self.paint)
    }

    pub(super) fn weight(&self, weight: u64) -> String {
        match self.report.header.unit {
            _ if weight == 0 => "-".to_owned(),
            Unit::Nanoseconds => duration(weight),
            _ => short_count(weight),
        }
    }

    pub(super) fn weight_title(&self) -> &'static str {
        match self.report.header.unit {
            Unit::Nanoseconds => "time",
            unit => unit.name(),
        }
    }

    pub(super) fn is_narrow(&self) -> bool {
        self.options.width.is_some_and(|width| width < NARROW)
    }

    /// Whether running and waiting stand side by side.
    pub(super) fn is_wall(&self) -> bool {
        self.report.header.profile.as_deref() == Some(WALL)
    }

    /// Titles of share, weight and samples of owners: see [`Self::owner_cells`].
    pub(super) fn owner_columns(&self) -> [(&'static str, Align); 3] {
        let titles = match self.is_wall() {
            true => ["share", "on-CPU", "off-CPU"],
            false => ["share", self.weight_title(), "samples"],
        };
        titles.map(|title| (title, Align::Right))
    }

    /// An owner's share, then time on and off the processors, or weight and samples.
    pub(super) fn owner_cells(
        &self,
        share: f64,
        weight: u64,
        wait_weight: u64,
        samples: u64,
    ) -> [Cell; 3] {
        let share = Cell::styled(percent(share), Style::of_share(share));
        match self.is_wall() {
            true => [
                share,
                Cell::new(self.weight(weight.saturating_sub(wait_weight))),
                Cell::new(self.weight(wait_weight)),
            ],
            false => [
                share,
                Cell::new(self.weight(weight)),
                Cell::new(count(samples)),
            ],
        }
    }

    fn share_columns(&self) -> Vec<(&'static str, Align)> {
        if self.is_wall() {
            let titles: &[&'static str] = match self.is_narrow() {
                false => &["self", "on-CPU", "off-CPU", "total", "on-CPU", "off-CPU"],
                true => &["self", "on-CPU", "off-CPU", "total"],
            };
            return titles.iter().map(|&title| (title, Align::Right)).collect();
        }
        let weight = self.weight_title();
        let titles: &[&'static str] = match (self.is_narrow(), self.options.sort) {
            (false, _) => &["self", weight, "total", weight, "samples"],
            (true, Sort::SelfWeight) => &["self", weight, "total"],
            (true, Sort::Total) => &["self", "total", weight],
        };
        titles.iter().map(|&title| (title, Align::Right)).collect()
    }

    fn share_cells(&self, share: &Share) -> Vec<Cell> {
        let own = Style::of_share(share.self_percent);
        let (self_style, total_style) = match self.options.sort {
            Sort::SelfWeight => (own, Style::Plain),
            Sort::Total => (Style::Plain, Style::of_share(share.total_percent)),
        };
        let samples = match self.options.sort {
            Sort::SelfWeight => share.self_samples,
            Sort::Total => share.total_samples,
        };
        let own = Cell::styled(percent(share.self_percent), self_style);
        let own_weight = Cell::new(self.weight(share.self_weight));
        let total = Cell::styled(percent(share.total_percent), total_style);
        if self.is_wall() {
            let pair = |all: u64, waits: u64| {
                let running = Cell::new(self.weight(all.saturating_sub(waits)));
                [running, Cell::new(self.weight(waits))]
            };
            let [own_running, own_waits] = pair(share.self_weight, share.self_wait_weight);
            let mut cells = vec![own, own_running, own_waits, total];
            if !self.is_narrow() {
                cells.extend(pair(share.total_weight, share.total_wait_weight));
            }
            return cells;
        }
        let total_weight = Cell::new(self.weight(share.total_weight));
        match (self.is_narrow(), self.options.sort) {
            (false, _) => vec![
                own,
                own_weight,
                total,
                total_weight,
                Cell::new(count(samples)),
            ],
            (true, Sort::SelfWeight) => vec![own, own_weight, total],
            (true, Sort::Total) => vec![own, total, total_weight],
        }
    }

    fn functions(&mut self) -> io::Result<()> {
        let rows = &self.report.functions;
        let shown = rows.len().min(self.limit());
        let title = match self.options.sort {
            Sort::SelfWeight => "Hottest functions, by self",
            Sort::Total => "Hottest functions, by total",
        };
        self.title(title, shown, rows.len())?;
        let mut columns = self.share_columns();
        columns.extend([("function", Align::Left), ("module", Align::Minor)]);
        let mut table = Table::new(&columns);
        for row in &rows[..shown] {
            let mut cells = self.share_cells(&row.share);
            cells.push(Cell::new(function_text(row)));
            cells.push(Cell::styled(module_text(&row.module), Style::Dim));
            table.row(cells);
        }
        self.print(&table)
    }

    fn lines(&mut self) -> io::Result<()> {
        let rows = self.report.lines.as_deref().unwrap_or_default();
        let shown = rows.len().min(self.limit());
        self.title("Hottest lines", shown, rows.len())?;
        let mut columns = self.share_columns();
        columns.extend([("line", Align::Left), ("function", Align::Left)]);
        let mut table = Table::new(&columns);
        for row in &rows[..shown] {
            let mut cells = self.share_cells(&row.share);
            let file = row.file.as_deref().map_or("?", short_name);
            cells.push(match row.line {
                Some(line) => Cell::new(format!("{file}:{line}")),
                None => Cell::styled(module_text(&row.module), Style::Dim),
            });
            cells.push(Cell::new(function_text(row)));
            table.row(cells);
        }
        self.print(&table)
    }

    fn modules(&mut self, limit: usize) -> io::Result<()> {
        let rows = &self.report.modules;
        let shown = rows.len().min(limit);
        self.title("Modules", shown, rows.len())?;
        let mut columns = self.share_columns();
        columns.push(("module", Align::Left));
        // Asked for by name, the table says which build it was.
        let full = self.options.by == Some(By::Module);
        if full {
            columns.push(("build id", Align::Left));
        }
        let mut table = Table::new(&columns);
        for row in &rows[..shown] {
            let mut cells = self.share_cells(&row.share);
            cells.push(Cell::new(match (full, row.module.module.as_str()) {
                (_, "") => "[unknown]",
                (true, path) => path,
                (false, path) => short_name(path),
            }));
            if full {
                let build_id = row.module.build_id.clone().unwrap_or_default();
                cells.push(Cell::styled(build_id, Style::Dim));
            }
            table.row(cells);
        }
        self.print(&table)
    }

    fn tree(&mut self) -> io::Result<()> {
        writeln!(self.out)?;
        self.paint.write(self.out, Style::Bold, "Call tree")?;
        let note = format!(
            "  from {}% on, callers above callees",
            self.options.min_percent
        );
        self.paint.write(self.out, Style::Dim, &note)?;
        writeln!(self.out)?;
        text_tree::write(&self.report.tree, self.out, self.options.width, self.paint)
    }

    fn focus(&mut self, functions: &[Focus]) -> io::Result<()> {
        for focus in functions {
            self.title(&focus.function.name, 0, 0)?;
            let share = &focus.function.share;
            let module = module_text(&focus.function.module);
            let own = match share.self_samples {
                0 => "no self".to_owned(),
                _ => format!(
                    "self {} ({})",
                    percent(share.self_percent),
                    self.weight(share.self_weight)
                ),
            };
            let line = format!(
                "total {} ({}), {own}, {}{}",
                percent(share.total_percent),
                self.weight(share.total_weight),
                plural(share.total_samples, "sample"),
                match module.is_empty() {
                    true => module,
                    false => format!(", in {module}"),
                },
            );
            writeln!(self.out, "{}", printable(&line))?;
            self.edges("callers", &focus.callers, None)?;
            self.edges("callees", &focus.callees, Some(&focus.function))?;
        }
        Ok(())
    }

    fn edges(
        &mut self,
        column: &'static str,
        edges: &[EdgeRow],
        own: Option<&FunctionRow>,
    ) -> io::Result<()> {
        let mut table = Table::new(&[
            ("of it", Align::Right),
            ("of all", Align::Right),
            (self.weight_title(), Align::Right),
            ("samples", Align::Right),
            (column, Align::Left),
            ("", Align::Minor),
        ]);
        let own = own
            .filter(|own| own.share.self_samples > 0)
            .map(|own| EdgeRow {
                name: "[self]".to_owned(),
                module: CodeModule::default(),
                samples: own.share.self_samples,
                weight: own.share.self_weight,
                percent: own.share.self_percent,
                percent_of_function: super::build::share_of(
                    own.share.self_weight,
                    own.share.total_weight,
                ),
            });
        let limit = self.limit();
        for edge in own.iter().chain(edges.iter().take(limit)) {
            table.row([
                Cell::styled(
                    percent(edge.percent_of_function),
                    Style::of_share(edge.percent_of_function),
                ),
                Cell::new(percent(edge.percent)),
                Cell::new(self.weight(edge.weight)),
                Cell::new(count(edge.samples)),
                Cell::new(edge.name.clone()),
                Cell::styled(module_text(&edge.module), Style::Dim),
            ]);
        }
        writeln!(self.out)?;
        self.print(&table)?;
        match edges.len().saturating_sub(limit) {
            0 => Ok(()),
            more => writeln!(self.out, "… {} more", count(more as u64)),
        }
    }

    /// Which code has no names, with what finds its debug files: the whole build ids. Every module
    /// of a nameless frame that is shown above is here.
    fn unsymbolized(&mut self) -> io::Result<()> {
        let report = self.report;
        let shown_above: Vec<&CodeModule> = match (&report.callers_of, self.options.by) {
            (Some(focus), _) => focus.iter().flat_map(Focus::modules).collect(),
            (None, Some(By::Process | By::Thread | By::End)) => return Ok(()),
            _ => {
                let functions = report.functions.iter().take(self.limit());
                let lines = report.lines.iter().flatten().take(self.limit());
                (functions.chain(lines).filter(|row| !row.named))
                    .map(|row| &row.module)
                    .collect()
            }
        };
        let is_large = |row: &UnsymbolizedRow| {
            report.callers_of.is_none() && row.percent >= self.options.min_percent
        };
        let rows: Vec<&UnsymbolizedRow> = (report.unsymbolized.iter())
            .filter(|row| is_large(row) || shown_above.contains(&&row.module))
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let nobody_said = match report
            .header
            .lost
            .iter()
            .any(|row| row.reason.is_unwritten())
        {
            true => "could not be written, or were not looked for",
            false => "not looked for",
        };
        let title = "Modules with code that has no names";
        self.title(title, rows.len(), report.unsymbolized.len())?;
        for row in rows {
            let path = match row.module.module.as_str() {
                "" => "[unknown]",
                path => path,
            };
            let addresses = match row.addresses {
                1 => "1 address".to_owned(),
                n => format!("{} addresses", count(n)),
            };
            let reason = row.reason.map_or(nobody_said, UnknownReason::phrase);
            let what = format!(": {addresses}, {reason}");
            let used = "100.0%   ".len() + what.len();
            let room = self
                .options
                .width
                .map_or(usize::MAX, |w| w.saturating_sub(used));
            let path = printable(path);
            let path = cut_start(&path, room);
            let share = Style::of_share(row.percent);
            let share = (share, format!("{:>7}", percent(row.percent)));
            self.paint.write(self.out, share.0, &share.1)?;
            writeln!(self.out, "  {path}{what}")?;
            if let Some(build_id) = &row.module.build_id {
                let line = format!("{:7}  build id {build_id}\n", "");
                self.paint.write(self.out, Style::Dim, &line)?;
            }
        }
        Ok(())
    }
}

fn function_text(row: &FunctionRow) -> String {
    match row.inlined {
        true => format!("{} (inlined)", row.name),
        false => row.name.clone(),
    }
}

fn module_text(module: &CodeModule) -> String {
    short_name(&module.module).to_owned()
}
