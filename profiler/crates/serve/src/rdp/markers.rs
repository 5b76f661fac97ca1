//! What a program says by its own markers: that a trace of the calling thread is to start, or to stop.
//!
//! Hits of `profiler:start_trace(name, types)` and `profiler:stop_trace(name)` -> [`Mark`]s, and those that an actor has
//! not been told of yet: what was called before is told before, what is called later behind. Times are those of the
//! hits. Source: console.startTrace() and console.stopTrace() of "Tracing Profiler Protocol Spec". What does not belong
//! here: how programs have them (`sdk`), probes (`pipeline`), what becomes of an actor (`wire::rdp`).

use std::collections::VecDeque;
use std::time::Instant;

use profiler_model::*;
use profiler_wire::rdp::TraceTypes;

/// Which markers these are, as `--trace` would be told.
pub(super) const PATTERN: &str = "usdt:profiler:st*_trace";
/// Those of one actor that wait; further ones are left out.
pub(super) const MOST: usize = 4096;
/// What is between types.
const BETWEEN: [char; 3] = [',', ' ', '\t'];

/// What a program wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A trace of these types.
    Start(Option<String>, TraceTypes),
    /// The end of one.
    Stop(Option<String>),
}

/// One that an actor has not been told of yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) mark: Mark,
    pub(super) at_ns: u64,
    /// All that was called before it is here when this is answered.
    pub(super) question: Option<u64>,
    /// Where that can't be asked for: when it must be here.
    pub(super) until: Instant,
}

/// Those of an actor, in the order in which they were raised.
pub(super) type Pendings = VecDeque<Pending>;

/// What a hit says; none if it is no hit of these markers, and what is wrong with it otherwise.
pub(super) fn read(tables: &Tables, call: &Call) -> Option<Result<Mark, String>> {
    let CallEdge::Hit(values) = &call.edge else {
        return None;
    };
    let function = tables.functions.get(call.function)?;
    let name = tables.string(function.name);
    let values = values.as_deref().unwrap_or_default();
    let text = |index: usize| match values.get(index) {
        Some(Value::Text(text, _)) if text.is_empty() => Ok(None),
        Some(Value::Text(text, _)) => Ok(Some(&**text)),
        Some(Value::Unreadable(0) | Value::Pointer(0) | Value::Unsigned(0)) | None => Ok(None),
        Some(_) => Err(format!("argument {} of {name} is no text", index + 1)),
    };
    let owned = |name: Option<&str>| name.map(str::to_owned);
    Some(match name {
        "profiler:start_trace" => text(0).and_then(|name| {
            let types = match text(1)? {
                None => TraceTypes::SPECIFIED,
                Some(list) => {
                    let names = list.split(BETWEEN).filter(|name| !name.is_empty());
                    TraceTypes::read(names).map_err(|unknown| unknown.to_string())?
                }
            };
            Ok(Mark::Start(owned(name), types))
        }),
        "profiler:stop_trace" => text(0).map(|name| Mark::Stop(owned(name))),
        _ => return None,
    })
}
