//! Traced calls as regions of their threads and goroutines.
//!
//! Input: calls; output: regions, strictly nested, and logs of arguments and of how calls ended.
//! Readers reject a trace with a region that ends out of turn, so a begin closes what is open at
//! its depth or deeper, an end closes what is open inside of it, and an end without a begin is
//! counted and left out.
//!
//! Calls recorded whole, at their ends, come before the calls around them: they wait until those
//! are known. What waits is bounded; beyond the bound, and at the end of a generation, it is
//! written, and the calls around it begin only behind it.

use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::name;
use super::LATEST;
use super::schedule::{Region, Schedule};
use super::trace::Trace;
use crate::derive::arguments_text;
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Most memory that calls may take while they wait for those around them.
const MAX_WAITING_BYTES: usize = 32 << 20;

/// Regions that begin later than their calls by less than this are right: what happens at one time
/// is written some steps apart.
const SHORTENED_NS: u64 = 1_000;

/// What became of calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallCounts {
    /// Calls that ended, and hits.
    pub(super) calls: u64,
    /// Ends without a begin in the trace.
    pub(super) unmatched: u64,
    /// Regions that begin later than their calls.
    pub(super) shortened: u64,
    /// Calls by the kernel's count.
    pub(super) counted: u64,
    /// Calls left out because of a limit.
    pub(super) left_out: u64,
}

/// A call that waits for those around it.
struct Whole {
    depth: u32,
    function: FunctionId,
    began: u64,
    at: u64,
    arguments: Option<String>,
    outcome: Option<String>,
}

/// What waits for the calls around it.
enum Waiting {
    Call(Whole),
    /// Something that happened within them, at one time.
    Log(u64, Arc<str>, String),
}

impl Waiting {
    fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let text = match self {
            Waiting::Call(call) => text(&call.arguments) + text(&call.outcome),
            Waiting::Log(_, _, value) => value.len(),
        };
        size_of::<Waiting>() + text
    }

    /// Outer calls first; logs within all that began at their time.
    fn order(&self) -> (u64, u32) {
        match self {
            Waiting::Call(call) => (call.began, call.depth),
            Waiting::Log(at, ..) => (*at, u32::MAX),
        }
    }
}

#[derive(Default)]
pub(super) struct Regions {
    names: FxHashMap<FunctionId, Arc<str>>,
    waiting: FxHashMap<StackOwner, Vec<Waiting>>,
    waiting_bytes: usize,
    pub(super) counts: CallCounts,
}

impl Regions {
    pub(super) fn call(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        call: &Call,
        now: u64,
        tables: &Tables,
    ) -> io::Result<()> {
        let text = |values: &Option<Box<[Value]>>| {
            let values = values.as_deref().filter(|values| !values.is_empty());
            values.map(|values| arguments_text(values, call.function, tables))
        };
        let owner = StackOwner::of(call, tables);
        match &call.edge {
            CallEdge::Enter(values) => {
                let region = self.region(call.function, call.depth, tables);
                schedule.running(trace, owner, now, tables)?;
                begin(trace, schedule, owner, now, region, text(values), tables)
            }
            CallEdge::Hit(values) => {
                self.counts.calls += 1;
                let name = self.name(call.function, tables);
                let value = text(values).unwrap_or_else(|| "hit".to_owned());
                let outer = call.depth.checked_sub(1);
                if outer.is_none() || schedule.innermost(owner) == outer {
                    return self.log(trace, schedule, owner, now, name, value, tables);
                }
                self.wait(
                    trace,
                    schedule,
                    owner,
                    Waiting::Log(now, name, value),
                    tables,
                )
            }
            CallEdge::Exit(exit) => {
                self.counts.calls += 1;
                let outcome = outcome(exit, tables);
                if exit.whole.is_none() {
                    return self.exit(trace, schedule, call, now, outcome, tables);
                }
                let whole = Whole {
                    depth: call.depth,
                    function: call.function,
                    began: exit.began.0.clamp(1, LATEST),
                    at: now,
                    arguments: text(&exit.whole),
                    outcome,
                };
                self.whole(trace, schedule, owner, whole, tables)
            }
        }
    }

    /// Writes a log of a thread or goroutine within its calls.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn log(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        owner: StackOwner,
        now: u64,
        key: Arc<str>,
        value: String,
        tables: &Tables,
    ) -> io::Result<()> {
        if self.waiting.contains_key(&owner) {
            return self.wait(
                trace,
                schedule,
                owner,
                Waiting::Log(now, key, value),
                tables,
            );
        }
        schedule.running(trace, owner, now, tables)?;
        log(trace, schedule, owner, now, &key, &value)
    }

    fn exit(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        call: &Call,
        now: u64,
        outcome: Option<String>,
        tables: &Tables,
    ) -> io::Result<()> {
        let owner = StackOwner::of(call, tables);
        if !schedule.is_open(owner, call.depth, call.function) {
            self.counts.unmatched += 1;
            return Ok(());
        }
        // What happened inside of it comes before its end.
        schedule.close(trace, owner, now, call.depth + 1)?;
        if let Some(outcome) = outcome {
            let name = self.name(call.function, tables);
            log(trace, schedule, owner, before(now), &name, &outcome)?;
        }
        schedule.close(trace, owner, now, call.depth)
    }

    fn whole(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        owner: StackOwner,
        whole: Whole,
        tables: &Tables,
    ) -> io::Result<()> {
        let outer = whole.depth.checked_sub(1);
        let is_enclosed = outer.is_none() || schedule.innermost(owner) == outer;
        self.wait(trace, schedule, owner, Waiting::Call(whole), tables)?;
        match is_enclosed {
            true => self.settle(trace, schedule, owner, tables),
            false => Ok(()),
        }
    }

    fn wait(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        owner: StackOwner,
        what: Waiting,
        tables: &Tables,
    ) -> io::Result<()> {
        self.waiting_bytes += what.size();
        self.waiting.entry(owner).or_default().push(what);
        match self.waiting_bytes > MAX_WAITING_BYTES {
            true => self.settle(trace, schedule, owner, tables),
            false => Ok(()),
        }
    }

    /// Writes the calls of a thread or goroutine that wait.
    pub(super) fn settle(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        owner: StackOwner,
        tables: &Tables,
    ) -> io::Result<()> {
        let Some(mut waiting) = self.waiting.remove(&owner) else {
            return Ok(());
        };
        waiting.order_by_key(Waiting::order);
        let first = waiting.first().map_or(0, |what| what.order().0);
        schedule.running(trace, owner, first, tables)?;
        let mut open: Vec<Whole> = Vec::new();
        for what in waiting {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(what.size());
            let (at, depth) = what.order();
            let is_over = |open: &mut Whole| match depth {
                u32::MAX => open.at < at,
                depth => open.depth >= depth || open.at <= at && open.at > open.began,
            };
            while let Some(over) = open.pop_if(is_over) {
                self.end_whole(trace, schedule, owner, &over)?;
            }
            let whole = match what {
                Waiting::Call(whole) => whole,
                Waiting::Log(at, key, value) => {
                    log(trace, schedule, owner, at, &key, &value)?;
                    continue;
                }
            };
            let last = schedule.last(owner).unwrap_or(0);
            if last.saturating_sub(whole.began) >= SHORTENED_NS {
                self.counts.shortened += 1;
            }
            let region = self.region(whole.function, whole.depth, tables);
            let arguments = whole.arguments.clone();
            begin(
                trace,
                schedule,
                owner,
                whole.began,
                region,
                arguments,
                tables,
            )?;
            open.push(whole);
        }
        while let Some(over) = open.pop() {
            self.end_whole(trace, schedule, owner, &over)?;
        }
        Ok(())
    }

    fn end_whole(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        owner: StackOwner,
        whole: &Whole,
    ) -> io::Result<()> {
        if let Some(outcome) = &whole.outcome
            && let Some(name) = self.names.get(&whole.function)
        {
            log(trace, schedule, owner, before(whole.at), name, outcome)?;
        }
        schedule.close(trace, owner, whole.at, whole.depth)
    }

    /// Writes all calls that wait.
    pub(super) fn settle_all(
        &mut self,
        trace: &mut Trace,
        schedule: &mut Schedule,
        tables: &Tables,
    ) -> io::Result<()> {
        let mut owners: Vec<StackOwner> = self.waiting.keys().copied().collect();
        owners.sort_unstable();
        for owner in owners {
            self.settle(trace, schedule, owner, tables)?;
        }
        Ok(())
    }

    fn region(&mut self, function: FunctionId, depth: u32, tables: &Tables) -> Region {
        Region {
            depth,
            function,
            name: self.name(function, tables),
        }
    }

    fn name(&mut self, id: FunctionId, tables: &Tables) -> Arc<str> {
        let name = || {
            let function = tables.functions.get(id);
            let name = function.map_or("", |function| tables.string(function.name));
            Arc::from(&*name::text(name))
        };
        Arc::clone(self.names.entry(id).or_insert_with(name))
    }
}

fn begin(
    trace: &mut Trace,
    schedule: &mut Schedule,
    owner: StackOwner,
    at: u64,
    region: Region,
    arguments: Option<String>,
    tables: &Tables,
) -> io::Result<()> {
    let name = Arc::clone(&region.name);
    schedule.open(trace, owner, at, region, tables)?;
    match arguments {
        Some(arguments) => log(trace, schedule, owner, at, &name, &arguments),
        None => Ok(()),
    }
}

fn log(
    trace: &mut Trace,
    schedule: &mut Schedule,
    owner: StackOwner,
    at: u64,
    key: &str,
    value: &str,
) -> io::Result<()> {
    schedule.log_on(trace, owner, at, key, &name::text(value))
}

/// Readers move the later of two events at one time, which must not be a region's end.
fn before(at: u64) -> u64 {
    at.saturating_sub(1)
}

/// How a call ended, unless it returned and the result was not asked for.
fn outcome(exit: &Exit, tables: &Tables) -> Option<String> {
    match (exit.how, &exit.result) {
        (ExitKind::Return, None) => None,
        (ExitKind::Return, Some(result)) => Some(format!("returned {result}")),
        (ExitKind::Exception(None), _) => Some("left by an exception".to_owned()),
        (ExitKind::Exception(Some(kind)), _) => {
            Some(format!("left by exception {}", tables.string(kind)))
        }
        (ExitKind::Terminated, _) => Some("ended with its thread or program".to_owned()),
        (ExitKind::Unwatched, _) => Some("not watched any more".to_owned()),
        (ExitKind::Inferred, _) => Some("had ended by now; its end was not seen".to_owned()),
    }
}
