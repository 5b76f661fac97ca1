//! The live table: which traced functions are called now, how often, how long; without traced
//! calls, which functions run, and in which threads wait.
//!
//! Input: events as they come, with ids of one [`Tables`], among them waits that go on, told again and again
//! as if they ended, and the time of each frame; output: frames of text that fit the terminal. Numbers are of a window
//! that slides: the last seconds, of which the first line says how many. Times are CLOCK_MONOTONIC.
//!
//! What does not belong here: the terminal (`terminal`), where events come from.

mod place;
mod waiting;
mod window;

use rustc_hash::{FxHashMap, FxHashSet};

use self::place::Place;
use self::waiting::Waiting;
use self::window::{Sums, Window};
use super::quantity::{count, duration, percent, percent_of, plural};
use super::report::CallSort;
use super::table::{Align, Cell, Table, cut};
use super::term::{Paint, Style};
use crate::derive::calls::Part;
use crate::derive::{CallLimits, CallTable, FunctionCalls, Functions, stack_frames, waiting_frame};
use profiler_model::sorting::InOrder;
use profiler_model::*;

const S: u64 = 1_000_000_000;

/// What the table shows.
#[derive(Clone, Copy, Debug)]
pub struct TopOptions {
    /// Length of the window that numbers are of: no less, and no more than a tenth more.
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

/// The table.
#[derive(Debug)]
pub struct TopTable {
    options: TopOptions,
    /// Calls of the window's last slice.
    calls: CallTable,
    window: Window,
    waiting: Waiting,
    /// What a function is called is looked up once.
    names: FxHashMap<FunctionId, (String, String)>,
    /// What the last frame showed.
    shown: Rows,
    /// The time of the frame that is being made.
    frame: Option<u64>,
    paused: bool,
    any_calls: bool,
    /// As of the last frame.
    functions: Functions,
}

/// What one frame shows.
#[derive(Clone, Debug, Default)]
struct Rows {
    span_ns: u64,
    calls: Vec<(FunctionId, FunctionCalls)>,
    places: Vec<(Place, Sums)>,
    samples: u64,
    waits: u64,
    waited_ns: u64,
    /// Threads that wait now.
    waiting: u64,
    lost: u64,
    lost_calls: u64,
}

impl Rows {
    fn has_waits(&self) -> bool {
        self.waits > 0 || self.waited_ns > 0
    }
}

impl TopTable {
    /// An empty table, of what happens from then on.
    pub fn new(options: TopOptions, from: Timestamp) -> TopTable {
        TopTable {
            options,
            // Neither the tree nor single calls are shown.
            calls: CallTable::new(CallLimits {
                slowest: 0,
                contexts: 1 << 12,
                ..CallLimits::default()
            }),
            window: Window::new(options.window_ns, from.0),
            waiting: Waiting::default(),
            names: FxHashMap::default(),
            shown: Rows::default(),
            frame: None,
            paused: false,
            any_calls: false,
            functions: Functions::default(),
        }
    }

    /// Whether it shows who waits: then it is to be told of the waits that go on at the time of each frame, as if they
    /// ended.
    pub fn shows_waits(&self) -> bool {
        !self.any_calls
    }

    /// Takes one event.
    pub fn event(&mut self, event: &Event, tables: &Tables) {
        let at = event.at().0;
        if self.frame.is_some_and(|frame| frame < at) {
            self.cut();
        }
        self.advance(at);
        match event {
            Event::Sample(sample) => match &sample.wait {
                Some(wait) => self.wait(sample, wait, tables),
                None => self.sample(sample, tables),
            },
            Event::Lost(lost) => match lost.reason.kind() {
                LostKind::Samples => self.window.current.lost += lost.count,
                LostKind::Calls => self.window.current.lost_calls += lost.count,
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
    fn wait(&mut self, sample: &Sample, wait: &Wait, tables: &Tables) {
        let frame = waiting_frame(tables, sample.kernel, sample.user);
        let place = Place::of(frame.as_ref(), &self.functions);
        let told = (sample.at.0, sample.thread);
        let news = self.waiting.told(told, wait, place, self.window.from());
        self.window.waited(news.place, news.time, news.threads);
        if let Some((at, waits)) = news.ended {
            self.window.ended(at, waits);
        }
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) {
        let slice = &mut self.window.current;
        slice.samples += 1;
        let source = tables.sources.get(sample.source);
        let is_time = source.is_some_and(|source| source.unit == Unit::Nanoseconds);
        let own_ns = if is_time { sample.weight } else { 0 };
        let mut frames = stack_frames(tables, sample.kernel, sample.user);
        let innermost = slice.known(Place::of(frames.next().as_ref(), &self.functions));
        let own = slice.at(innermost);
        own.own += 1;
        own.total += 1;
        own.own_ns = own.own_ns.saturating_add(own_ns);
        let mut seen = FxHashSet::from_iter([innermost]);
        for frame in frames {
            let place = slice.known(Place::of(Some(&frame), &self.functions));
            if seen.insert(place) {
                slice.at(place).total += 1;
            }
        }
    }

    fn advance(&mut self, now: u64) {
        let calls = &mut self.calls;
        self.window.advance(now, || calls.take_functions());
    }

    /// Begins a frame of what there is at this time, at which waits that go on are told. Events may come later than
    /// those that are behind them in time; [`TopTable::end_frame`] when all before have come, and those of waits that
    /// were over when it was looked which go on.
    pub fn begin_frame(&mut self, at: Timestamp) {
        self.frame = Some(at.0);
        self.waiting.at(at.0);
    }

    /// What the frame shows is known.
    pub fn end_frame(&mut self, tables: &Tables) {
        let Some(at) = self.frame else {
            return;
        };
        self.cut();
        if self.functions.len() != tables.functions.len() {
            self.functions = Functions::of(tables);
        }
        if !self.paused {
            self.shown = self.rows(at, tables);
        }
        self.frame = None;
        self.waiting.after();
        self.window.join();
    }

    /// What is later than the frame is told apart.
    fn cut(&mut self) {
        if let Some(at) = self.frame {
            let calls = &mut self.calls;
            self.window
                .cut(at.saturating_add(1), || calls.take_functions());
        }
    }

    /// Takes a key: `q` quits, `s` sorts by the next column, `p` or blank pauses.
    pub fn key(&mut self, key: u8) -> Action {
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
                self.paused = !self.paused;
                Action::Redraw
            }
            _ => Action::None,
        }
    }

    /// A frame of what there is now; see [`TopTable::draw`].
    pub fn render(
        &mut self,
        now: Timestamp,
        width: usize,
        height: usize,
        tables: &Tables,
    ) -> String {
        self.begin_frame(now);
        self.end_frame(tables);
        self.draw(width, height, tables)
    }

    /// The last frame, for a terminal of that size; `height` 0 is no limit.
    pub fn draw(&self, width: usize, height: usize, tables: &Tables) -> String {
        let rows = &self.shown;
        let mut out = Vec::new();
        let width = width.max(1);
        let head = cut(&self.head(rows), width).into_owned();
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
            true => self.call_table(rows, width, room),
            false => sample_table(rows, room, tables, &self.functions),
        };
        let _ = table.write(&mut out, Some(width), paint);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn head(&self, rows: &Rows) -> String {
        // Early in the line: its end may be cut.
        let mut lost = Vec::new();
        if rows.lost > 0 {
            lost.push(format!("{} lost", plural(rows.lost, "sample")));
        }
        if rows.lost_calls > 0 {
            let records = plural(rows.lost_calls, "record");
            lost.push(format!("{records} of calls lost"));
        }
        let lost = match lost.is_empty() {
            true => String::new(),
            false => format!(" ({})", lost.join(", ")),
        };
        let mut text = match self.any_calls {
            true => {
                let calls: u64 = rows
                    .calls
                    .iter()
                    .map(|(_, calls)| ended(calls))
                    .fold(0, u64::saturating_add);
                let functions = rows.calls.len() as u64;
                format!(
                    "{} calls/s of {}{lost}",
                    count(rate(calls, rows.span_ns)),
                    plural(functions, "function")
                )
            }
            false if rows.has_waits() => format!(
                "{} samples{lost} and {} off-CPU in {}",
                count(rows.samples),
                duration(rows.waited_ns),
                plural(rows.waits, "wait")
            ),
            false => format!("{} samples{lost}", count(rows.samples)),
        };
        text += &format!(" in the last {}", duration(rows.span_ns));
        if !self.any_calls && rows.waiting > 0 {
            let verb = if rows.waiting == 1 { "waits" } else { "wait" };
            text += &format!(", {} {verb} now", plural(rows.waiting, "thread"));
        }
        if self.paused {
            text.insert_str(0, "PAUSED  ");
        }
        text
    }

    /// What is in the window.
    fn rows(&mut self, now: u64, tables: &Tables) -> Rows {
        let from = self.window.from();
        self.waiting.forget(from);
        let mut rows = Rows {
            span_ns: now.saturating_sub(from).max(1),
            waits: self.waiting.count(),
            ..Rows::default()
        };
        let mut calls: FxHashMap<FunctionId, FunctionCalls> = FxHashMap::default();
        let mut places: FxHashMap<Place, Sums> = FxHashMap::default();
        let mut add = |place: Place, more: &Sums| {
            let place = place.named(tables, &self.functions);
            places.entry(place).or_default().add(more);
        };
        for slice in self.window.before(now.saturating_add(1)) {
            for (&id, more) in &slice.calls {
                calls.entry(id).or_default().merge(more);
            }
            for (&place, more) in &slice.places {
                add(place, more);
            }
            rows.samples += slice.samples;
            rows.waits = rows.waits.saturating_add(slice.waits);
            rows.waited_ns = rows.waited_ns.saturating_add(slice.waited_ns);
            rows.lost += slice.lost;
            rows.lost_calls += slice.lost_calls;
        }
        for wait in self.waiting.present() {
            let more = Sums {
                waiting: wait.threads,
                ..Sums::default()
            };
            rows.waiting = rows.waiting.saturating_add(wait.threads);
            add(wait.place, &more);
        }
        rows.calls = calls
            .into_iter()
            .filter(|(_, calls)| ended(calls) > 0)
            .collect();
        rows.places = places.into_iter().collect();
        let has_waits = rows.has_waits();
        rows.places
            .order_by_key(|&(place, sums)| (std::cmp::Reverse(sums.order(has_waits)), place));
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
    if rows.has_waits() {
        columns.extend([("off-CPU", Align::Right), ("waiting", Align::Right)]);
    }
    columns.extend([("function", Align::Left), ("module", Align::Minor)]);
    let mut table = Table::new(&columns);
    for &(place, sums) in rows.places.iter().take(room) {
        let own = percent_of(sums.own, rows.samples);
        let mut cells = vec![
            Cell::styled(percent(own), Style::of_share(own)),
            Cell::new(percent(percent_of(sums.total, rows.samples))),
            Cell::new(dash(sums.own)),
        ];
        if rows.has_waits() {
            cells.push(Cell::new(match sums.waited_ns {
                0 => "-".to_owned(),
                ns => duration(ns),
            }));
            cells.push(Cell::new(dash(sums.waiting)));
        }
        let (name, path) = place.texts(tables, functions);
        cells.push(Cell::new(name));
        cells.push(Cell::styled(last_part(&path).to_owned(), Style::Dim));
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
mod tests;
