//! Tables of Parquet, for DuckDB, ClickHouse, Spark and pandas: one table of a recording in a file, chosen by an option.
//!
//! Input: events; output: a file of Parquet, rows in the order of the events, of what is referred to in the order of its number.
//! Times are nanoseconds since 1970 (CLOCK_MONOTONIC beside them), durations nanoseconds. Samples, waits, calls and losses are
//! written as they come, in groups of rows; the other tables take the memory of distinct stacks. What the columns mean:
//! docs/formats/parquet.md. What does not belong here: pages and encodings (the crate `parquet`).

mod rows;

use std::collections::BTreeSet;
use std::io;

use rustc_hash::FxHashMap;

use self::rows::Cell::{self, Empty, Number, Time};
use self::rows::{Column, Kind, Rows};
use super::about::About;
use super::notes::OpenSlices;
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Functions, Owner, arguments_text, container_label_of, early_end, frame_lines};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "parquet",
    extensions: &[".parquet"],
    description: "a table for DuckDB, ClickHouse, Spark and pandas",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::All,
    options: &[&TABLE],
    sink: |settings, output| Box::new(Parquet::new(settings, output)),
    difference: None,
    declared: false,
};

const TABLE: Setting<Table> = Setting {
    help: OptionHelp {
        name: "table",
        value: "samples|waits|calls|stacks|frames|processes|losses",
        help: "which table (default: samples)",
    },
    read: |value| Table::ALL.into_iter().find(|table| table.name() == value),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Samples,
    Waits,
    Calls,
    Stacks,
    Frames,
    Processes,
    Losses,
}

/// Whose an event is, and where it was.
const OWNER: [Column; 8] = [
    ("time", Kind::Time),
    ("monotonic_ns", Kind::Number),
    ("pid", Kind::Number),
    ("process", Kind::Text),
    ("tid", Kind::Number),
    ("thread", Kind::Text),
    ("container", Kind::Text),
    ("cpu", Kind::Number),
];

impl Table {
    const ALL: [Table; 7] = [
        Table::Samples,
        Table::Waits,
        Table::Calls,
        Table::Stacks,
        Table::Frames,
        Table::Processes,
        Table::Losses,
    ];

    fn name(self) -> &'static str {
        match self {
            Table::Samples => "samples",
            Table::Waits => "waits",
            Table::Calls => "calls",
            Table::Stacks => "stacks",
            Table::Frames => "frames",
            Table::Processes => "processes",
            Table::Losses => "losses",
        }
    }

    fn columns(self) -> Vec<Column> {
        use Kind::{Number, Text, Time};
        let (owner, columns): (&[Column], &[Column]) = match self {
            Table::Samples => (
                &OWNER,
                &[
                    ("source", Text),
                    ("unit", Text),
                    ("weight", Number),
                    ("stack", Number),
                    ("function", Text),
                    ("module", Text),
                    ("end", Text),
                ],
            ),
            Table::Waits => (
                &OWNER,
                &[
                    ("weight", Number),
                    ("ns", Number),
                    ("runnable_ns", Number),
                    ("state", Text),
                    ("waits", Number),
                    ("waker_pid", Number),
                    ("waker_process", Text),
                    ("waker_tid", Number),
                    ("waker_thread", Text),
                    ("stack", Number),
                    ("function", Text),
                    ("module", Text),
                    ("end", Text),
                ],
            ),
            Table::Calls => (
                &OWNER,
                &[
                    ("function", Text),
                    ("module", Text),
                    ("depth", Number),
                    ("goroutine", Number),
                    ("ns", Number),
                    ("self_ns", Number),
                    ("left_by", Text),
                    ("exception", Text),
                    ("line", Number),
                    ("arguments", Text),
                    ("result", Text),
                ],
            ),
            Table::Stacks => (
                &[],
                &[("stack", Number), ("position", Number), ("frame", Number)],
            ),
            Table::Frames => (
                &[],
                &[
                    ("frame", Number),
                    ("position", Number),
                    ("function", Text),
                    ("file", Text),
                    ("line", Number),
                    ("module", Text),
                    ("build_id", Text),
                    ("kind", Text),
                    ("address", Number),
                ],
            ),
            Table::Processes => (
                &[],
                &[
                    ("pid", Number),
                    ("process", Text),
                    ("started", Time),
                    ("parent_pid", Number),
                    ("executable", Text),
                    ("command", Text),
                    ("uid", Number),
                    ("cgroup", Text),
                    ("container", Text),
                    ("image", Text),
                    ("pod", Text),
                    ("namespace", Text),
                ],
            ),
            Table::Losses => (
                &[],
                &[
                    ("time", Time),
                    ("monotonic_ns", Number),
                    ("since", Time),
                    ("cpu", Number),
                    ("lost", Number),
                    ("what", Text),
                    ("why", Text),
                ],
            ),
        };
        [owner, columns].concat()
    }
}

/// The kernel's and the user's part of a stack.
type Pair = (Option<StackId>, Option<StackId>);

struct Parquet {
    table: Table,
    rows: Rows,
    about: About,
    functions: Functions,
    /// What the innermost function of a frame is called, and where it lies.
    leaves: FxHashMap<FrameId, (Box<str>, Box<str>)>,
    open: OpenSlices,
    /// Those of samples and waits.
    stacks: BTreeSet<Pair>,
    processes: BTreeSet<ProcessId>,
}

/// The number of a stack: the same in all tables, whatever was selected.
fn stack_number((kernel, user): Pair) -> i64 {
    let number = |id: Option<StackId>| id.map_or(0, |id| id.index() as i64 + 1);
    number(kernel) << 32 | number(user)
}

fn number(number: u64) -> Cell<'static> {
    Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn text(text: &str) -> Cell<'_> {
    match text {
        "" => Empty,
        text => Cell::Text(text),
    }
}

impl Parquet {
    fn new(settings: &Settings, output: Output) -> Parquet {
        let table = settings.get(&TABLE).unwrap_or(Table::Samples);
        Parquet {
            table,
            rows: Rows::new(table.name(), &table.columns(), output),
            about: About::default(),
            functions: Functions::default(),
            leaves: FxHashMap::default(),
            open: OpenSlices::default(),
            stacks: BTreeSet::new(),
            processes: BTreeSet::new(),
        }
    }

    /// The cells of [`OWNER`].
    fn owner(&mut self, at: Timestamp, id: ThreadId, cpu: Option<Cpu>, tables: &Tables) {
        let then = tables.names_at(id, at);
        let (called, thread_called) = Owner::Thread(id).names(then, tables);
        let thread = tables.thread(id);
        let process = thread.and_then(|thread| tables.process(thread.process));
        let name = |id: Option<StringId>| id.map_or(Empty, |id| text(tables.string(id)));
        let container = process.and_then(|process| container_label_of(tables, process));
        self.rows.put(Time(at));
        self.rows.put(number(at.0));
        self.rows
            .put(process.map_or(Empty, |it| number(it.pid.0.into())));
        self.rows.put(name(called));
        self.rows
            .put(thread.map_or(Empty, |it| number(it.tid.0.into())));
        self.rows.put(name(thread_called));
        self.rows.put(text(container.as_deref().unwrap_or("")));
        self.rows.put(cpu.map_or(Empty, |cpu| number(cpu.0.into())));
    }

    /// The number of a stack, its innermost function, and how it ends.
    fn stack(&mut self, sample: &Sample, tables: &Tables) {
        let pair = (sample.kernel, sample.user);
        let leaf = tables.frames_of_both(sample.kernel, sample.user).next();
        self.rows.put(match leaf {
            Some(_) => Number(stack_number(pair)),
            None => Empty,
        });
        self.leaf(leaf, tables);
        let end = early_end(sample).unwrap_or(StackEnd::Complete);
        self.rows
            .put(leaf.map_or(Empty, |_| Cell::Text(end.name())));
    }

    fn leaf(&mut self, leaf: Option<FrameId>, tables: &Tables) {
        if self.functions.len() != tables.functions.len() {
            // Which of them share a name is another question than before.
            self.functions = Functions::of(tables);
            self.leaves.clear();
        }
        let functions = &self.functions;
        let leaf = leaf.map(|frame| {
            &*self.leaves.entry(frame).or_insert_with(|| {
                let line = frame_lines(tables, frame).next();
                let name = line.as_ref().map_or_else(String::new, |line| {
                    line.function.map_or_else(
                        || line.name.clone().into_owned(),
                        |id| functions.name(tables, id).into_owned(),
                    )
                });
                let module = line.and_then(|line| tables.modules.get(line.module?));
                let module = module.map_or("", |module| tables.string(module.path));
                (name.into(), module.into())
            })
        });
        let (function, module) = leaf.map_or(("", ""), |(function, module)| (function, module));
        self.rows.put(text(function));
        self.rows.put(text(module));
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) -> io::Result<()> {
        let source = tables.sources.get(sample.source);
        self.owner(sample.at, sample.thread, Some(sample.cpu), tables);
        self.rows
            .put(source.map_or(Empty, |source| Cell::Text(tables.string(source.name))));
        self.rows.put(source.map_or(Empty, |source| {
            Cell::Text(match source.unit {
                Unit::Nanoseconds => "nanoseconds",
                Unit::Cycles => "cycles",
                Unit::Events => "events",
            })
        }));
        self.rows.put(number(sample.weight));
        self.stack(sample, tables);
        self.rows.end(&self.about, tables)
    }

    fn wait(&mut self, sample: &Sample, wait: &Wait, tables: &Tables) -> io::Result<()> {
        self.owner(sample.at, sample.thread, Some(sample.cpu), tables);
        self.rows.put(number(sample.weight));
        self.rows.put(number(wait.ns));
        self.rows.put(number(wait.runnable_ns));
        self.rows.put(Cell::Text(wait.state.name()));
        self.rows.put(number(wait.count.into()));
        let waker = wait.waker.and_then(|id| tables.thread(id));
        let process = waker.and_then(|waker| tables.process(waker.process));
        let name = |id| text(tables.string(id));
        self.rows
            .put(process.map_or(Empty, |it| number(it.pid.0.into())));
        self.rows.put(process.map_or(Empty, |it| name(it.name)));
        self.rows
            .put(waker.map_or(Empty, |it| number(it.tid.0.into())));
        self.rows.put(waker.map_or(Empty, |it| name(it.name)));
        self.stack(sample, tables);
        self.rows.end(&self.about, tables)
    }

    fn call(&mut self, call: &Call, tables: &Tables) -> io::Result<()> {
        match &call.edge {
            CallEdge::Enter(values) => {
                self.open.enter(call, values, tables);
                Ok(())
            }
            CallEdge::Hit(values) => {
                let row = CallRow {
                    left_by: "not watched",
                    ..CallRow::default()
                };
                self.call_row(call.at, call, Some(call.cpu), values, row, tables)
            }
            CallEdge::Exit(exit) => {
                let values = self.open.exit(call, exit, tables);
                let exception = match exit.how {
                    ExitKind::Exception(kind) => kind.map(|kind| tables.string(kind)),
                    _ => None,
                };
                let row = CallRow {
                    ns: Some(call.at.since(exit.began)),
                    self_ns: Some(exit.self_ns),
                    left_by: exit.how.name(),
                    exception: exception.unwrap_or(""),
                    line: exit.line,
                    result: exit.result.as_ref(),
                };
                let values = exit.whole.clone().or(values);
                self.call_row(exit.began, call, Some(call.cpu), &values, row, tables)
            }
        }
    }

    fn call_row(
        &mut self,
        began: Timestamp,
        call: &Call,
        cpu: Option<Cpu>,
        values: &Option<Box<[Value]>>,
        row: CallRow<'_>,
        tables: &Tables,
    ) -> io::Result<()> {
        self.owner(began, call.thread, cpu, tables);
        let function = tables.functions.get(call.function);
        let name = function.map_or("", |function| tables.string(function.name));
        let module = function.and_then(|function| tables.modules.get(function.module?));
        self.rows.put(text(name));
        self.rows
            .put(module.map_or(Empty, |module| text(tables.string(module.path))));
        self.rows.put(number(call.depth.into()));
        self.rows.put(match call.stack {
            0 => Empty,
            goroutine => number(goroutine.into()),
        });
        self.rows.put(row.ns.map_or(Empty, number));
        self.rows.put(row.self_ns.map_or(Empty, number));
        self.rows.put(Cell::Text(row.left_by));
        self.rows.put(text(row.exception));
        self.rows.put(match row.line {
            0 => Empty,
            line => number(line.into()),
        });
        let values = values.as_ref();
        let arguments = values.map(|values| arguments_text(values, call.function, tables));
        self.rows.put(text(arguments.as_deref().unwrap_or("")));
        let result = row.result.map(ToString::to_string);
        self.rows.put(text(result.as_deref().unwrap_or("")));
        self.rows.end(&self.about, tables)
    }

    fn lost(&mut self, lost: &Lost, tables: &Tables) -> io::Result<()> {
        self.rows.put(Time(lost.to));
        self.rows.put(number(lost.to.0));
        self.rows.put(Time(lost.from));
        self.rows
            .put(lost.cpu.map_or(Empty, |cpu| number(cpu.0.into())));
        self.rows.put(number(lost.count));
        self.rows.put(Cell::Text(lost.reason.kind().name()));
        self.rows.put(Cell::Text(lost.reason.phrase()));
        self.rows.end(&self.about, tables)
    }

    fn seen(&mut self, event: &Event, tables: &Tables) {
        let thread = match event {
            Event::Sample(sample) => {
                self.stacks.insert((sample.kernel, sample.user));
                sample.thread
            }
            Event::Call(call) => call.thread,
            _ => return,
        };
        if let Some(thread) = tables.thread(thread) {
            self.processes.insert(thread.process);
        }
    }

    fn write_stacks(&mut self, tables: &Tables) -> io::Result<()> {
        for pair in std::mem::take(&mut self.stacks) {
            let frames = tables.frames_of_both(pair.0, pair.1);
            for (position, frame) in (0..).zip(frames) {
                self.rows.put(Number(stack_number(pair)));
                self.rows.put(Number(position));
                self.rows.put(Number(frame.index() as i64));
                self.rows.end(&self.about, tables)?;
            }
        }
        Ok(())
    }

    fn write_frames(&mut self, tables: &Tables) -> io::Result<()> {
        let mut frames = BTreeSet::new();
        for pair in std::mem::take(&mut self.stacks) {
            frames.extend(tables.frames_of_both(pair.0, pair.1));
        }
        let functions = Functions::of(tables);
        for id in frames {
            let frame = tables.frames.get(id);
            let module = frame.and_then(|frame| tables.modules.get(frame.module?));
            let build_id = module.and_then(|module| module.build_id.as_ref());
            let build_id = build_id.map(ToString::to_string);
            let bias = module.map_or(0, |module| module.address_bias);
            let address = frame.map_or(0, |frame| frame.address.wrapping_add(bias));
            for (position, line) in (0..).zip(frame_lines(tables, id)) {
                let name = match line.function {
                    Some(function) => functions.name(tables, function),
                    None => line.name,
                };
                self.rows.put(Number(id.index() as i64));
                self.rows.put(Number(position));
                self.rows.put(text(&name));
                self.rows.put(text(line.file.unwrap_or("")));
                self.rows.put(match line.line {
                    0 => Empty,
                    line => number(line.into()),
                });
                self.rows
                    .put(module.map_or(Empty, |module| text(tables.string(module.path))));
                self.rows.put(text(build_id.as_deref().unwrap_or("")));
                self.rows.put(Cell::Text(match (line.kind, line.inlined) {
                    (FrameKind::Kernel, _) => "kernel",
                    (_, true) => "inlined",
                    (FrameKind::Native, _) => "native",
                    (FrameKind::Jit, _) => "jit",
                    (FrameKind::Interpreted, _) => "interpreted",
                }));
                // SQL has no larger numbers than these everywhere: the highest bit is a sign there.
                self.rows.put(Number(address as i64));
                self.rows.end(&self.about, tables)?;
            }
        }
        Ok(())
    }

    fn write_processes(&mut self, tables: &Tables) -> io::Result<()> {
        for id in std::mem::take(&mut self.processes) {
            let Some(process) = tables.process(id) else {
                continue;
            };
            let name = |id: Option<StringId>| id.map_or(Empty, |id| text(tables.string(id)));
            let parent = process.parent.and_then(|parent| tables.process(parent));
            let container = process.container.and_then(|id| tables.container(id));
            let label = container_label_of(tables, process);
            let command = tables.command_line(process);
            self.rows.put(number(process.pid.0.into()));
            self.rows.put(name(Some(process.name)));
            self.rows.put(match process.started {
                Timestamp(0) => Empty,
                started => Time(started),
            });
            self.rows
                .put(parent.map_or(Empty, |parent| number(parent.pid.0.into())));
            self.rows.put(name(process.executable));
            self.rows.put(command.as_deref().map_or(Empty, text));
            self.rows
                .put(process.uid.map_or(Empty, |uid| number(uid.into())));
            self.rows.put(name(process.cgroup));
            self.rows.put(text(label.as_deref().unwrap_or("")));
            self.rows.put(name(container.and_then(|it| it.image)));
            self.rows.put(name(container.and_then(|it| it.pod)));
            self.rows.put(name(container.and_then(|it| it.namespace)));
            self.rows.end(&self.about, tables)?;
        }
        Ok(())
    }

    /// Calls that did not end.
    fn write_open(&mut self, tables: &Tables) -> io::Result<()> {
        for open in self.open.rest() {
            let at = open.began;
            let call = Call {
                at,
                thread: open.thread,
                cpu: Cpu::default(),
                function: open.function,
                stack: match open.owner {
                    StackOwner::Thread(_) => 0,
                    StackOwner::Goroutine(_, number) => number,
                },
                depth: open.depth,
                edge: CallEdge::Enter(None),
                later: None,
            };
            let row = CallRow {
                left_by: "open",
                ..CallRow::default()
            };
            self.call_row(at, &call, None, &open.arguments, row, tables)?;
        }
        Ok(())
    }
}

/// What is known of a call when it is over.
#[derive(Default)]
struct CallRow<'a> {
    ns: Option<u64>,
    self_ns: Option<u64>,
    left_by: &'a str,
    exception: &'a str,
    line: u32,
    result: Option<&'a Value>,
}

impl Sink for Parquet {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        match (self.table, event) {
            (Table::Samples, Event::Sample(sample)) if sample.wait.is_none() => {
                self.sample(sample, tables)
            }
            (Table::Waits, Event::Sample(sample)) => match &sample.wait {
                Some(wait) => self.wait(sample, wait, tables),
                None => Ok(()),
            },
            (Table::Calls, Event::Call(call)) => self.call(call, tables),
            (Table::Losses, Event::Lost(lost)) => self.lost(lost, tables),
            (Table::Stacks | Table::Frames | Table::Processes, _) => {
                self.seen(event, tables);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        match self.table {
            Table::Stacks => self.write_stacks(tables)?,
            Table::Frames => self.write_frames(tables)?,
            Table::Processes => self.write_processes(tables)?,
            Table::Calls => self.write_open(tables)?,
            Table::Samples | Table::Waits | Table::Losses => {}
        }
        self.rows.finish(&self.about, tables)
    }
}
