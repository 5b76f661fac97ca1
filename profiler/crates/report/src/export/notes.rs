//! What happened besides samples and calls, in words, for formats that show events on a line of time.
//!
//! Events -> text. Times within it are ms or us before the event. What does not belong here: where a format puts it.

use rustc_hash::FxHashMap;

use crate::derive::arguments_text;
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Something that is worth a note.
pub(super) struct Note {
    /// When; of what took a time, its end.
    pub(super) at: Timestamp,
    /// Since when, if it took a time.
    pub(super) from: Option<Timestamp>,
    /// Whose thread; none: no thread's in particular.
    pub(super) thread: Option<ThreadId>,
    /// `mark`, `lost`, ...
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// Which call: whose stack it is on, how deep, and its function.
type Which = (StackOwner, u32, FunctionId);

/// A call that is open.
pub(super) struct Open {
    pub(super) owner: StackOwner,
    /// That it is told of.
    #[cfg_attr(not(feature = "parquet"), expect(dead_code))]
    pub(super) thread: ThreadId,
    pub(super) depth: u32,
    pub(super) function: FunctionId,
    /// Since when.
    pub(super) began: Timestamp,
    pub(super) arguments: Option<Box<[Value]>>,
}

/// Calls that are open.
#[derive(Default)]
pub(super) struct OpenSlices(FxHashMap<Which, Open>);

impl OpenSlices {
    pub(super) fn enter(&mut self, call: &Call, values: &Option<Box<[Value]>>, tables: &Tables) {
        let owner = StackOwner::of(call, tables);
        let open = Open {
            owner,
            thread: call.thread,
            depth: call.depth,
            function: call.function,
            began: call.at,
            arguments: values.clone(),
        };
        self.0.insert((owner, call.depth, call.function), open);
    }

    /// The arguments of a call that is over, if it was open.
    pub(super) fn exit(
        &mut self,
        call: &Call,
        exit: &Exit,
        tables: &Tables,
    ) -> Option<Box<[Value]>> {
        let owner = StackOwner::of(call, tables);
        let open = self.0.remove(&(owner, call.depth, call.function))?;
        open.arguments.filter(|_| open.began == exit.began)
    }

    /// Those that did not end, in order.
    pub(super) fn rest(&mut self) -> Vec<Open> {
        let mut rest: Vec<Open> = std::mem::take(&mut self.0).into_values().collect();
        rest.order_by_key(|it| (it.owner, it.began, it.depth, it.function));
        rest
    }
}

/// What an event is in words; none of samples, calls, and what the kernel counted.
pub(super) fn note(event: &Event, tables: &Tables) -> Option<Note> {
    let (from, thread, kind, text) = match event {
        Event::Throw(throw) => (None, Some(throw.thread), "throw", throw_text(throw, tables)),
        Event::Gap(gap) => (Some(gap.from), None, "gap", gap_text(gap, tables)),
        Event::Mark(mark) => (None, None, "mark", tables.string(mark.text).to_owned()),
        Event::Lost(lost) => (Some(lost.from), None, "lost", lost_text(lost)),
        Event::Process(ProcessEvent { thread, change, .. }) => {
            let (kind, text) = match change {
                ProcessChange::Executed(name) => ("executed", tables.string(*name)),
                ProcessChange::Renamed(name) => ("renamed", tables.string(*name)),
                ProcessChange::Exited => ("exited", ""),
                ProcessChange::Started => ("started", ""),
            };
            (None, Some(*thread), kind, text.to_owned())
        }
        Event::Sample(_)
        | Event::Call(_)
        | Event::CallCount(_)
        | Event::Waits(_)
        | Event::Clock(_) => return None,
    };
    Some(Note {
        at: event.at(),
        from: from.map(|from| from.min(event.at())),
        thread,
        kind,
        text,
    })
}

/// What is known of a call when it is over, by name.
pub(super) fn ended(call: &Call, exit: &Exit, tables: &Tables) -> Vec<(&'static str, String)> {
    let mut known = Vec::new();
    if let Some(values) = &exit.whole {
        let text = arguments_text(values, call.function, tables);
        known.push(("arguments", text));
    }
    if let Some(result) = &exit.result {
        known.push(("result", result.to_string()));
    }
    let left = match exit.how {
        ExitKind::Return => None,
        ExitKind::Exception(kind) => {
            let kind = kind.map_or("unknown", |kind| tables.string(kind));
            Some(format!("exception {kind}"))
        }
        ExitKind::Terminated | ExitKind::Inferred | ExitKind::Unwatched => {
            Some(exit.how.name().to_owned())
        }
    };
    known.extend(left.map(|how| ("left by", how)));
    known
}

/// `worker 1 (tid 101 of web, pid 100)`.
pub(super) fn thread_text(id: ThreadId, tables: &Tables) -> String {
    let Some(thread) = tables.thread(id) else {
        return "unknown".to_owned();
    };
    let name = tables.string(thread.name);
    match tables.process(thread.process) {
        Some(process) => {
            let comm = tables.string(process.name);
            format!("{name} (tid {} of {comm}, pid {})", thread.tid, process.pid)
        }
        None => format!("{name} (tid {})", thread.tid),
    }
}

pub(super) fn lost_text(lost: &Lost) -> String {
    let reason = lost.reason.phrase();
    let cpu = lost
        .cpu
        .map_or(String::new(), |cpu| format!(" on cpu {}", cpu.0));
    let ms = lost.to.since(lost.from) / 1_000_000;
    format!("{}{cpu} within the last {ms} ms: {reason}", lost.count)
}

pub(super) fn throw_text(throw: &Throw, tables: &Tables) -> String {
    let kind = tables.string(throw.kind);
    match throw.thrower {
        Some(frame) => format!("{kind}, by {}", tables.frame_name(frame)),
        None => kind.to_owned(),
    }
}

pub(super) fn gap_text(gap: &Gap, tables: &Tables) -> String {
    let function = gap.function.and_then(|id| tables.functions.get(id));
    let what = function.map_or("all functions", |function| tables.string(function.name));
    let process = gap.process.and_then(|id| tables.process(id));
    let process = process.map_or(String::new(), |process| format!(" of pid {}", process.pid));
    let reason = gap.reason.phrase();
    let us = gap.to.since(gap.from) / 1_000;
    format!("{what}{process} within the last {us} us: {reason}")
}
