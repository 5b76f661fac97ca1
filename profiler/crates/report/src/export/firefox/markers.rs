//! Markers of a processed profile: traced calls, waits, and what else happened.
//!
//! Events -> markers, which are kept small; at the end their columns as JSON. Times are nanoseconds of CLOCK_MONOTONIC,
//! in the file milliseconds since the recording began. What does not belong here: samples.

use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::json::{self, OrNull};
use super::tables::{CALLS, OTHER, RECORDING, Shared, WAITS};
use crate::derive::arguments_text;
use crate::export::notes::{Open, OpenSlices, ended, note, thread_text};
use profiler_model::*;

/// What happened, from when to when.
pub(super) struct Marker {
    from: Timestamp,
    /// None: it took no time.
    to: Option<Timestamp>,
    what: What,
}

enum What {
    Call {
        function: FunctionId,
        /// Arguments, what was returned, and how it was left, as JSON without braces.
        known: Box<str>,
    },
    Wait {
        wait: Wait,
        kernel: Option<StackId>,
        user: Option<StackId>,
    },
    Note {
        kind: &'static str,
        text: Box<str>,
    },
}

impl Marker {
    pub(super) fn is_call(&self) -> bool {
        matches!(self.what, What::Call { .. })
    }
}

/// What makes markers of events.
#[derive(Default)]
pub(super) struct Markers {
    /// Calls that are open: since when, and their arguments.
    open: OpenSlices,
    of_none: Vec<Marker>,
}

impl Markers {
    /// The marker that an event is, and whose. Those of no thread are kept.
    pub(super) fn event(&mut self, event: &Event, tables: &Tables) -> Option<(StackOwner, Marker)> {
        match event {
            Event::Call(call) => {
                let marker = self.call(call, tables)?;
                Some((StackOwner::of(call, tables), marker))
            }
            Event::Sample(sample) => {
                let wait = sample.wait?;
                let marker = Marker {
                    from: Timestamp(sample.at.0.saturating_sub(wait.ns)),
                    to: Some(sample.at),
                    what: What::Wait {
                        wait,
                        kernel: sample.kernel,
                        user: sample.user,
                    },
                };
                Some((StackOwner::Thread(sample.thread), marker))
            }
            event => {
                let note = note(event, tables)?;
                let marker = Marker {
                    from: note.from.unwrap_or(note.at),
                    to: note.from.map(|_| note.at),
                    what: What::Note {
                        kind: note.kind,
                        text: note.text.into(),
                    },
                };
                match note.thread {
                    Some(thread) => Some((StackOwner::Thread(thread), marker)),
                    None => {
                        self.of_none.push(marker);
                        None
                    }
                }
            }
        }
    }

    /// What is of no thread.
    pub(super) fn of_none(&mut self) -> Vec<Marker> {
        std::mem::take(&mut self.of_none)
    }

    /// Calls that did not end: they last to the end of the recording.
    pub(super) fn open(&mut self, end: Timestamp) -> Vec<(StackOwner, Marker)> {
        let marker = |open: Open| {
            let known = "\"left\":\"open at the end\"".into();
            let function = open.function;
            let marker = Marker {
                from: open.began,
                to: Some(end),
                what: What::Call { function, known },
            };
            (open.owner, marker)
        };
        self.open.rest().into_iter().map(marker).collect()
    }

    fn call(&mut self, call: &Call, tables: &Tables) -> Option<Marker> {
        let (from, to, known) = match &call.edge {
            CallEdge::Enter(values) => {
                self.open.enter(call, values, tables);
                return None;
            }
            CallEdge::Hit(values) => {
                let text = values
                    .as_deref()
                    .map(|it| arguments_text(it, call.function, tables));
                let known = text.into_iter().map(|text| ("arguments", text)).collect();
                (call.at, None, known)
            }
            CallEdge::Exit(exit) => {
                let mut known = ended(call, exit, tables);
                if let Some(values) = self.open.exit(call, exit, tables) {
                    known.push(("arguments", arguments_text(&values, call.function, tables)));
                }
                (exit.began.min(call.at), Some(call.at), known)
            }
        };
        let known: serde_json::Map<String, Json> = known
            .into_iter()
            .map(|(name, text)| (name.replace("left by", "left"), Json::String(text)))
            .collect();
        let known = Json::Object(known).to_string();
        let known = known.trim_start_matches('{');
        let known = known.strip_suffix('}').unwrap_or(known).into();
        Some(Marker {
            from,
            to,
            what: What::Call {
                function: call.function,
                known,
            },
        })
    }

    /// Writes the table of a thread's markers.
    pub(super) fn write(
        &self,
        out: &mut impl Write,
        markers: &[Marker],
        shared: &mut Shared,
        tables: &Tables,
        zero: Timestamp,
    ) -> io::Result<()> {
        let all = || markers.iter();
        write!(out, "{{\"length\":{}", markers.len())?;
        let category = |marker: &Marker| match &marker.what {
            What::Call { .. } => CALLS,
            What::Wait { .. } => WAITS,
            What::Note { kind, .. } => match *kind {
                "lost" | "gap" | "mark" => RECORDING,
                _ => OTHER,
            },
        };
        json::column(out, "category", all().map(category))?;
        let names: Vec<u32> = all()
            .map(|marker| match &marker.what {
                What::Call { function, .. } => shared.traced(*function, tables),
                What::Wait { wait, .. } => shared.text(wait.state.name()),
                What::Note { kind, .. } => shared.text(kind),
            })
            .collect();
        json::column(out, "name", names)?;
        let starts = all().map(|marker| json::ms(marker.from.since(zero)));
        json::column(out, "startTime", starts)?;
        let ends = all().map(|marker| OrNull(marker.to.map(|to| json::ms(to.since(zero)))));
        json::column(out, "endTime", ends)?;
        let phases = all().map(|marker| u8::from(marker.to.is_some()));
        json::column(out, "phase", phases)?;
        out.write_all(b",\"data\":[")?;
        for (index, marker) in all().enumerate() {
            out.write_all(if index == 0 { b"" } else { b"," })?;
            match &marker.what {
                What::Call { known, .. } => {
                    let comma = if known.is_empty() { "" } else { "," };
                    write!(out, "{{\"type\":\"Call\"{comma}{known}}}")?;
                }
                What::Wait { wait, kernel, user } => {
                    write!(
                        out,
                        "{{\"type\":\"Wait\",\"runnable\":{},\"count\":{}",
                        json::ms(wait.runnable_ns),
                        wait.count
                    )?;
                    if let Some(waker) = wait.waker {
                        out.write_all(b",\"waker\":")?;
                        json::value(out, &thread_text(waker, tables))?;
                    }
                    if let Some(stack) = shared.code(*kernel, *user, tables) {
                        let began = json::ms(marker.from.since(zero));
                        write!(out, ",\"cause\":{{\"time\":{began},\"stack\":{stack}}}")?;
                    }
                    out.write_all(b"}")?;
                }
                What::Note { text, .. } => {
                    out.write_all(b"{\"type\":\"Note\",\"text\":")?;
                    json::value(out, text)?;
                    out.write_all(b"}")?;
                }
            }
        }
        out.write_all(b"]}")
    }
}

/// What the data of markers are, for those who show them.
pub(super) fn schema() -> Json {
    let field = |key: &str, label: &str, format: &str| json!({"key": key, "label": label, "format": format});
    json!([
        {
            "name": "Call",
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "tableLabel": "{marker.name}({marker.data.arguments})",
            "chartLabel": "{marker.name}",
            "fields": [
                field("arguments", "Arguments", "string"),
                field("result", "Returned", "string"),
                field("left", "Left by", "string"),
            ],
        },
        {
            "name": "Wait",
            "display": ["marker-chart", "marker-table"],
            "tableLabel": "{marker.name}, ended by {marker.data.waker}",
            "fields": [
                field("waker", "Ended by", "string"),
                field("runnable", "Runnable without a processor", "milliseconds"),
                field("count", "Waits that it stands for", "integer"),
            ],
        },
        {
            "name": "Note",
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "tableLabel": "{marker.data.text}",
            "fields": [field("text", "What", "string")],
        },
    ])
}
