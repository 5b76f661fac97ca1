//! The live table: which traced functions are called now, how often, how long; without traced
//! calls, which functions run.
//!
//! Input: events as they come, with ids of one [`Tables`], and the time of each frame; output:
//! frames of text that fit the terminal. Numbers are of a window that slides: the last seconds.
//! Times are CLOCK_MONOTONIC.
//!
//! What does not belong here: the terminal (`terminal`), where events come from.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::quantity::{count, duration, percent, percent_of, plural};
use super::report::CallSort;
use super::table::{Align, Cell, Table, cut};
use super::term::{Paint, Style};
use crate::derive::calls::Part;
use crate::derive::{CallLimits, CallTable, FunctionCalls, Functions, stack_frames, waiting_frame};
use profiler_model::*;

const S: u64 = 1_000_000_000;
/// A window is made of so many slices; the oldest goes when a new one begins.
const SLICES: u64 = 10;
/// Functions of samples that are told apart in one slice.
const MAX_SAMPLED: usize = 1 << 14;

/// What the table shows.
#[derive(Clone, Copy, Debug)]
pub struct TopOptions {
    /// Length of the window that numbers are of.
    pub window_ns: u64,
    /// Order of functions at the start.
    pub sort: CallSort,
    /// Whether to colour.
    pub color: bool,
}

impl Default for TopOptions {
    fn default() -> Self {
        TopOptions {
            window_ns: 5 * S,
            sort: CallSort::Total,
            color: false,
        }
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To end.
    Quit,
    /// To draw anew, now.
    Redraw,
    /// Nothing.
    None,
}

/// Samples of a function.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    own: u64,
    total: u64,
    /// Time that samples of its own stand for, where they stand for time.
    own_ns: u64,
    /// Time of the waits that began in it.
    waited_ns: u64,
}

impl Sampled {
    /// What comes first: where there are waits, where the time went; else what has most samples.
    fn order(&self, has_waits: bool) -> (u64, u64, u64) {
        match has_waits {
            true => (
                self.own_ns.saturating_add(self.waited_ns),
                self.own,
                self.total,
            ),
            false => (self.own, self.total, 0),
        }
    }
}

#[derive(Debug, Default)]
struct Slice {
    from: u64,
    calls: FxHashMap<FunctionId, FunctionCalls>,
    sampled: FxHashMap<FunctionId, Sampled>,
    samples: u64,
    waits: u64,
    waited_ns: u64,
    lost: u64,
    lost_calls: u64,
}

/// The table.
#[derive(Debug)]
pub struct TopTable {
    options: TopOptions,
    calls: CallTable,
    /// The slice that events go into; its calls are still in `calls`.
    current: Slice,
    slices: VecDeque<Slice>,
    /// What a function is called is looked up once.
    names: FxHashMap<FunctionId, (String, String)>,
    /// The last frame's rows, while it is paused.
    paused: Option<Rows>,
    /// Since when there is something in the window.
    started: Option<u64>,
    any_calls: bool,
    /// As of the last frame.
    functions: Functions,
}

/// What one frame shows.
#[derive(Clone, Debug, Default)]
struct Rows {
    span_ns: u64,
    calls: Vec<(FunctionId, FunctionCalls)>,
    sampled: Vec<(FunctionId, Sampled)>,
    samples: u64,
    waits: u64,
    waited_ns: u64,
    lost: u64,
    lost_calls: u64,
}

impl TopTable {
    /// An empty table.
    pub fn new(options: TopOptions) -> TopTable {
        TopTable {
            options,
            // Neither the tree nor single calls are shown.
            calls: CallTable::new(CallLimits {
                slowest: 0,
                contexts: 1 << 12,
                ..CallLimits::default()
            }),
            current: Slice::default(),
            slices: VecDeque::new(),
            names: FxHashMap::default(),
            paused: None,
            started: None,
            any_calls: false,
            functions: Functions::default(),
        }
    }

    /// Takes one event.
    pub fn event(&mut self, event: &Event, tables: &Tables) {
        self.advance(event.at().0);
        match event {
            Event::Sample(Sample {
                wait: Some(wait), ..
            }) => self.wait(event, wait, tables),
            Event::Sample(sample) => self.sample(sample, tables),
            Event::Lost(lost) => match lost.reason.kind() {
                LostKind::Samples => self.current.lost += lost.count,
                LostKind::Calls => self.current.lost_calls += lost.count,
                LostKind::Waits | LostKind::Events | LostKind::ProcessEvents | LostKind::Begun => {}
            },
            Event::Call(call) => {
                self.any_calls = true;
                let name = self.names.entry(call.function);
                name.or_insert_with(|| names(call.function, tables));
                self.calls.add(event, tables, Part::Counted);
            }
            // Counts come seldom, and are of more than the window.
            Event::Throw(_) | Event::Process(_) => self.calls.add(event, tables, Part::Counted),
            _ => {}
        }
    }

    /// What waits does not run: it is told apart from samples.
    fn wait(&mut self, event: &Event, wait: &Wait, tables: &Tables) {
        let Event::Sample(sample) = event else {
            return;
        };
        let current = &mut self.current;
        current.waits = current.waits.saturating_add(wait.count.into());
        current.waited_ns = current.waited_ns.saturating_add(sample.weight);
        let frame = waiting_frame(tables, sample.kernel, sample.user);
        let Some(key) = frame.and_then(|frame| frame.function) else {
            return;
        };
        let key = self.functions.same(key);
        if current.sampled.len() < MAX_SAMPLED || current.sampled.contains_key(&key) {
            let sums = current.sampled.entry(key).or_default();
            sums.waited_ns = sums.waited_ns.saturating_add(sample.weight);
        }
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) {
        self.current.samples += 1;
        let source = tables.sources.get(sample.source);
        let is_time = source.is_some_and(|source| source.unit == Unit::Nanoseconds);
        let own_ns = if is_time { sample.weight } else { 0 };
        let mut seen: Vec<FunctionId> = Vec::new();
        for (depth, frame) in stack_frames(tables, sample.kernel, sample.user).enumerate() {
            let Some(key) = frame.function.map(|id| self.functions.same(id)) else {
                continue;
            };
            let sampled = &mut self.current.sampled;
            if sampled.len() >= MAX_SAMPLED && !sampled.contains_key(&key) {
                continue;
            }
            let sums = sampled.entry(key).or_default();
            if depth == 0 {
                sums.own += 1;
                sums.own_ns = sums.own_ns.saturating_add(own_ns);
            }
            if !seen.contains(&key) {
                sums.total += 1;
                seen.push(key);
            }
        }
    }

    /// Begins a new slice when the current one is full, and drops those that are too old.
    fn advance(&mut self, now: u64) {
        self.started.get_or_insert(now);
        let length = (self.options.window_ns / SLICES).max(1);
        if self.current.from == 0 {
            self.current.from = now;
        }
        if now.saturating_sub(self.current.from) >= length {
            let mut full = std::mem::take(&mut self.current);
            full.calls = self.calls.take_functions();
            self.slices.push_back(full);
            self.current.from = now;
        }
        let oldest = now.saturating_sub(self.options.window_ns);
        let is_old = |slice: &mut Slice| slice.from.saturating_add(length) <= oldest;
        while self.slices.pop_front_if(is_old).is_some() {}
    }

    /// Takes a key: `q` quits, `s` sorts by the next column, `p` or blank pauses.
    pub fn key(&mut self, key: u8, now: Timestamp) -> Action {
        match key {
            b'q' | b'Q' | 0x04 => Action::Quit,
            b's' => {
                self.options.sort = match self.options.sort {
                    CallSort::Calls => CallSort::Total,
                    CallSort::Total => CallSort::SelfTime,
                    CallSort::SelfTime => CallSort::Mean,
                    CallSort::Mean => CallSort::P99,
                    CallSort::P99 => CallSort::Max,
                    CallSort::Max => CallSort::Calls,
                };
                Action::Redraw
            }
            b'p' | b'P' | b' ' => {
                self.paused = match self.paused {
                    Some(_) => None,
                    None => Some(self.rows(now.0)),
                };
                Action::Redraw
            }
            _ => Action::None,
        }
    }

    /// A frame for a terminal of that size; `height` 0 is no limit.
    pub fn render(
        &mut self,
        now: Timestamp,
        width: usize,
        height: usize,
        tables: &Tables,
    ) -> String {
        self.advance(now.0);
        if self.functions.len() != tables.functions.len() {
            self.functions = Functions::of(tables);
        }
        let rows = match &self.paused {
            Some(rows) => rows.clone(),
            None => self.rows(now.0),
        };
        let mut out = Vec::new();
        let width = width.max(20);
        let head = cut(&self.head(&rows), width).into_owned();
        let paint = Paint::new(self.options.color);
        // Writing to memory does not fail.
        let _ = paint.write(&mut out, Style::Bold, &head);
        out.extend_from_slice(b"\n\n");
        let room = match height {
            0 => usize::MAX,
            // The head, a blank line, the titles.
            height => height.saturating_sub(4).max(1),
        };
        let table = match self.any_calls {
            true => self.call_table(&rows, width, room),
            false => sample_table(&rows, room, tables, &self.functions),
        };
        let _ = table.write(&mut out, Some(width), paint);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn head(&self, rows: &Rows) -> String {
        let mut text = match self.any_calls {
            true => {
                let calls: u64 = rows
                    .calls
                    .iter()
                    .map(|(_, calls)| ended(calls))
                    .fold(0, u64::saturating_add);
                let functions = rows.calls.len() as u64;
                format!(
                    "{} calls/s of {}",
                    count(rate(calls, rows.span_ns)),
                    plural(functions, "function")
                )
            }
            false if rows.waits > 0 => format!(
                "{} samples and {} off-CPU in {}",
                count(rows.samples),
                duration(rows.waited_ns),
                plural(rows.waits, "wait")
            ),
            false => format!("{} samples", count(rows.samples)),
        };
        text += &format!(" in the last {}", duration(rows.span_ns));
        if rows.lost_calls > 0 {
            text += &format!(", {} records of calls lost", count(rows.lost_calls));
        }
        if rows.lost > 0 {
            text += &format!(", {} samples lost", count(rows.lost));
        }
        if self.paused.is_some() {
            text += "  PAUSED";
        }
        text
    }

    /// What is in the window.
    fn rows(&self, now: u64) -> Rows {
        let oldest = now.saturating_sub(self.options.window_ns);
        let from = self.started.unwrap_or(now).max(oldest);
        let mut rows = Rows {
            span_ns: now.saturating_sub(from).max(1),
            ..Rows::default()
        };
        let mut calls: FxHashMap<FunctionId, FunctionCalls> = FxHashMap::default();
        let mut sampled: FxHashMap<FunctionId, Sampled> = FxHashMap::default();
        for slice in self.slices.iter().chain([&self.current]) {
            for (&id, more) in &slice.calls {
                calls.entry(id).or_default().merge(more);
            }
            for (&key, more) in &slice.sampled {
                let sums = sampled.entry(self.functions.same(key)).or_default();
                sums.own += more.own;
                sums.total += more.total;
                sums.own_ns = sums.own_ns.saturating_add(more.own_ns);
                sums.waited_ns = sums.waited_ns.saturating_add(more.waited_ns);
            }
            rows.samples += slice.samples;
            rows.waits = rows.waits.saturating_add(slice.waits);
            rows.waited_ns = rows.waited_ns.saturating_add(slice.waited_ns);
            rows.lost += slice.lost;
            rows.lost_calls += slice.lost_calls;
        }
        for (id, more) in self.calls.functions() {
            calls.entry(id).or_default().merge(more);
        }
        rows.calls = calls
            .into_iter()
            .filter(|(_, calls)| ended(calls) > 0)
            .collect();
        rows.sampled = sampled.into_iter().collect();
        rows.sampled
            .sort_by_key(|&(key, sums)| (std::cmp::Reverse(sums.order(rows.waits > 0)), key));
        rows
    }

    fn call_table(&self, rows: &Rows, width: usize, room: usize) -> Table {
        let mut shown: Vec<&(FunctionId, FunctionCalls)> = rows.calls.iter().collect();
        let key = |calls: &FunctionCalls| match self.options.sort {
            CallSort::Calls => ended(calls),
            CallSort::Total => calls.total_ns,
            CallSort::SelfTime => calls.self_ns,
            CallSort::Mean => calls.latency.mean_ns(),
            CallSort::P99 => calls.latency.quantile_ns(0.99),
            CallSort::Max => calls.latency.max_ns(),
        };
        shown
            .sort_by_cached_key(|(id, calls)| (std::cmp::Reverse((key(calls), ended(calls))), *id));
        let wide = width >= 100;
        let thrown = shown.iter().any(|(_, calls)| calls.thrown() > 0);
        let title =
            |sort: CallSort, name: &'static str, sorted: &'static str| match self.options.sort
                == sort
            {
                true => (sorted, Align::Right),
                false => (name, Align::Right),
            };
        let mut columns = vec![
            title(CallSort::Calls, "calls/s", "▼calls/s"),
            title(CallSort::Total, "busy", "▼busy"),
            title(CallSort::SelfTime, "self", "▼self"),
            title(CallSort::Mean, "mean", "▼mean"),
            title(CallSort::P99, "p99", "▼p99"),
            title(CallSort::Max, "max", "▼max"),
        ];
        if thrown {
            columns.push(("exc.", Align::Right));
        }
        columns.push(("function", Align::Left));
        if wide {
            columns.push(("module", Align::Minor));
        }
        let mut table = Table::new(&columns);
        for (id, calls) in shown.into_iter().take(room) {
            let part = |ns| {
                let share = percent_of(ns, rows.span_ns);
                Cell::styled(percent(share), Style::of_share(share))
            };
            let known = |ns: u64| match calls.latency.count() {
                0 => Cell::new("-"),
                _ => Cell::new(duration(ns)),
            };
            let mut cells = vec![
                Cell::new(rate_text(ended(calls), rows.span_ns)),
                part(calls.total_ns),
                part(calls.self_ns),
                known(calls.latency.mean_ns()),
                known(calls.latency.quantile_ns(0.99)),
                known(calls.latency.max_ns()),
            ];
            if thrown {
                cells.push(Cell::styled(dash(calls.thrown()), Style::Warm));
            }
            let (name, module) = self.names.get(id).cloned().unwrap_or_default();
            cells.push(Cell::new(name));
            if wide {
                cells.push(Cell::styled(module, Style::Dim));
            }
            table.row(cells);
        }
        table
    }
}

fn sample_table(rows: &Rows, room: usize, tables: &Tables, functions: &Functions) -> Table {
    let mut columns = vec![
        ("self", Align::Right),
        ("total", Align::Right),
        ("samples", Align::Right),
    ];
    if rows.waits > 0 {
        columns.push(("off-CPU", Align::Right));
    }
    columns.extend([("function", Align::Left), ("module", Align::Minor)]);
    let mut table = Table::new(&columns);
    for (id, sums) in rows.sampled.iter().take(room) {
        let own = percent_of(sums.own, rows.samples);
        let function = tables.functions.get(*id);
        let module = function.and_then(|function| tables.modules.get(function.module?));
        let path = module.map_or("", |module| tables.string(module.path));
        let mut cells = vec![
            Cell::styled(percent(own), Style::of_share(own)),
            Cell::new(percent(percent_of(sums.total, rows.samples))),
            Cell::new(dash(sums.own)),
        ];
        if rows.waits > 0 {
            cells.push(Cell::new(match sums.waited_ns {
                0 => "-".to_owned(),
                ns => duration(ns),
            }));
        }
        cells.push(Cell::new(functions.name(tables, *id)));
        cells.push(Cell::styled(last_part(path), Style::Dim));
        table.row(cells);
    }
    table
}

/// Calls in the window: those that ended in it, and hits.
fn ended(calls: &FunctionCalls) -> u64 {
    calls.ended + calls.hits
}

fn rate(calls: u64, span_ns: u64) -> u64 {
    (calls as f64 * S as f64 / span_ns.max(1) as f64).round() as u64
}

/// A rate; slow ones with a digit behind the point.
fn rate_text(calls: u64, span_ns: u64) -> String {
    let exact = calls as f64 * S as f64 / span_ns.max(1) as f64;
    match exact {
        rate if rate < 9.95 => format!("{rate:.1}"),
        _ => count(rate(calls, span_ns)),
    }
}

fn dash(value: u64) -> String {
    match value {
        0 => "-".to_owned(),
        value => count(value),
    }
}

fn names(id: FunctionId, tables: &Tables) -> (String, String) {
    let Some(function) = tables.functions.get(id) else {
        return ("[undefined]".to_owned(), String::new());
    };
    let module = function.module.and_then(|id| tables.modules.get(id));
    let path = module.map_or("", |module| tables.string(module.path));
    (
        tables.string(function.name).to_owned(),
        last_part(path).to_owned(),
    )
}

fn last_part(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_are_waits_the_time_counts() {
        let runs = Sampled {
            own: 5,
            total: 9,
            own_ns: 50,
            waited_ns: 0,
        };
        let waits = Sampled {
            own: 1,
            total: 1,
            own_ns: 10,
            waited_ns: 900,
        };
        assert!(waits.order(true) > runs.order(true));
        assert!(waits.order(false) < runs.order(false));
    }
}
