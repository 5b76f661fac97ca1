//! The messages of a Bytefrog agent over a whole run: what an HQ would have been sent.
//!
//! Input: events; output: bytes of both connections, control and data, in the order in which an agent sends them, or of
//! one of them. Messages are of the kind that their ids say, so that a reader can tell the connections apart. Times are
//! milliseconds since the recording began. Calls are those traced, or inferred from samples where none were. Written as events
//! come. Source: docs/formats/bytefrog.md.
//!
//! What does not belong here: what an event becomes ([`translate`]), byte layouts (`wire::bytefrog`), sockets (`serve`).

mod translate;

use std::io::{self, Write};

use super::collect::{SOURCE, choose, is_first};
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::is_same;
use profiler_model::*;
use profiler_wire::bytefrog::{AgentMessage, Mode, VERSION};

pub use translate::{Counts, NameStyle, TranslateOptions, Translator, Wanted};

pub(super) const FORMAT: Format = Format {
    name: "bytefrog",
    extensions: &[".bytefrog"],
    description: "messages of a Bytefrog agent: calls, traced or inferred from samples",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: &[&STREAM, &CALLS, &NAMES, &SOURCE],
    sink: |settings, output| Box::new(Run::new(settings, output)),
    difference: None,
    declared: false,
};

const STREAM: Setting<Connections> = Setting {
    help: OptionHelp {
        name: "stream",
        value: "run|control|data",
        help: "messages of both connections, or the bytes of one (default: run)",
    },
    read: |value| match value {
        "run" => Some(Connections {
            control: true,
            data: true,
        }),
        "control" => Some(Connections {
            control: true,
            data: false,
        }),
        "data" => Some(Connections {
            control: false,
            data: true,
        }),
        _ => None,
    },
};

const CALLS: Setting<bool> = Setting {
    help: OptionHelp {
        name: "calls",
        value: "observed|inferred",
        help: "traced calls, or those that samples tell of (default: observed, if calls were traced)",
    },
    read: |value| match value {
        "observed" => Some(false),
        "inferred" => Some(true),
        _ => None,
    },
};

const NAMES: Setting<NameStyle> = Setting {
    help: OptionHelp {
        name: "names",
        value: "readable|grammar",
        help: "methods for people, or in the grammar of Java (default: readable)",
    },
    read: |value| match value {
        "readable" => Some(NameStyle::Readable),
        "grammar" => Some(NameStyle::Grammar),
        _ => None,
    },
};

/// The run of an HQ that has had none before.
const RUN: u8 = 0;
/// How often an agent says that it lives, unless it is told otherwise.
const HEARTBEAT_NS: u64 = 1_000_000_000;
/// Bytes that are written at once.
const ENOUGH: usize = 64 << 10;
/// Events between two looks at what is to be told now and then.
const LOOK: u32 = 1 << 10;

/// Which connections' messages are written.
#[derive(Clone, Copy, Debug)]
struct Connections {
    control: bool,
    data: bool,
}

struct Run {
    connections: Connections,
    inferred: Option<bool>,
    names: NameStyle,
    wanted: Option<String>,
    source: Option<SourceId>,
    /// Those whose samples came.
    sources: Vec<SourceId>,
    /// Since the first event.
    translator: Option<Translator>,
    /// When the agent says again that it lives.
    next_heartbeat: Timestamp,
    last: Timestamp,
    events: u32,
    /// Messages of data that were not written yet.
    buffer: Vec<u8>,
    output: Output,
}

impl Run {
    fn new(settings: &Settings, output: Output) -> Run {
        Run {
            connections: settings.get(&STREAM).unwrap_or(Connections {
                control: true,
                data: true,
            }),
            inferred: settings.get(&CALLS),
            names: settings.get(&NAMES).unwrap_or_default(),
            wanted: settings.get(&SOURCE),
            source: None,
            sources: Vec::new(),
            translator: None,
            next_heartbeat: Timestamp(0),
            last: Timestamp(0),
            events: 0,
            buffer: Vec::new(),
            output,
        }
    }

    /// Whether a sample's calls are told. Those of several sources are of stacks at different times for
    /// different reasons; one of them is enough.
    fn tells(&mut self, sample: &Sample, tables: &Tables) -> bool {
        if !self.sources.contains(&sample.source) {
            self.sources.push(sample.source);
        }
        if self.source.is_none() && self.is_first(sample, tables) {
            self.source = Some(sample.source);
        }
        let is_it = |source| is_same(source, sample.source, tables);
        self.source.is_some_and(is_it)
    }

    fn is_first(&self, sample: &Sample, tables: &Tables) -> bool {
        let wanted = self.wanted.as_deref();
        is_first(wanted, sample, tables) && (wanted.is_some() || sample.wait.is_none())
    }

    /// Begins the run.
    fn begin(&mut self, at: Timestamp, tables: &Tables) -> io::Result<()> {
        if self.translator.is_some() {
            return Ok(());
        }
        let began = match tables.session.started {
            Timestamp(0) => at,
            started => started.min(at),
        };
        let samples = self
            .inferred
            .unwrap_or_else(|| tables.all_traced().next().is_none());
        self.translator = Some(Translator::new(
            TranslateOptions {
                names: self.names,
                samples,
                filter: None,
            },
            began,
        ));
        self.last = began;
        self.next_heartbeat = Timestamp(began.0.saturating_add(HEARTBEAT_NS));
        self.control(&AgentMessage::Hello { version: VERSION })?;
        self.beat(Mode::Initializing)?;
        if !samples {
            for object in traced_objects(tables) {
                self.control(&AgentMessage::ClassTransformed(object.into()))?;
            }
        }
        self.beat(Mode::Tracing)?;
        AgentMessage::DataHello { run: RUN }.encode(&mut self.buffer);
        Ok(())
    }

    /// Writes a message of the control connection, behind the data that came before it.
    fn control(&mut self, message: &AgentMessage<'_>) -> io::Result<()> {
        if self.connections.control {
            self.write()?;
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            self.output.write_all(&bytes)?;
        }
        Ok(())
    }

    fn beat(&mut self, mode: Mode) -> io::Result<()> {
        self.control(&AgentMessage::Heartbeat { mode, filled: 0 })
    }

    fn write(&mut self) -> io::Result<()> {
        if self.connections.data {
            self.output.write_all(&self.buffer)?;
        }
        self.buffer.clear();
        Ok(())
    }
}

impl Sink for Run {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.begin(event.at(), tables)?;
        if let Event::Sample(sample) = event
            && !self.tells(sample, tables)
        {
            return Ok(());
        }
        self.last = self.last.max(event.at());
        // Where nothing happens for long, one is enough: nobody waits for the others.
        if self.last >= self.next_heartbeat {
            self.beat(Mode::Tracing)?;
            self.next_heartbeat = Timestamp(self.last.0.saturating_add(HEARTBEAT_NS));
        }
        if let Some(translator) = &mut self.translator {
            translator.event(event, tables, &mut self.buffer);
            // All names that there will be are there.
            translator.flush(tables, &mut self.buffer);
            self.events = self.events.wrapping_add(1);
            if self.events.is_multiple_of(LOOK) {
                translator.poll(self.last, tables, &mut self.buffer);
            }
        }
        if self.buffer.len() >= ENOUGH {
            self.write()?;
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        self.begin(tables.session.started, tables)?;
        if self.wanted.is_some() {
            choose(&self.sources, self.wanted.as_deref(), tables)?;
        }
        if let Some(translator) = &mut self.translator {
            translator.finish(self.last, tables, &mut self.buffer);
        }
        self.write()?;
        self.beat(Mode::ShuttingDown)?;
        self.output.flush()
    }
}

/// File names of objects whose functions were traced, in order.
fn traced_objects(tables: &Tables) -> Vec<String> {
    let functions = tables.all_traced();
    let modules = functions.filter_map(|(id, _)| tables.functions.get(id)?.module);
    let paths = modules.filter_map(|id| Some(tables.string(tables.modules.get(id)?.path)));
    let mut names: Vec<String> = paths
        .map(|path| path.rsplit('/').next().unwrap_or(path).to_owned())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
