//! Only what is meant, for any format: what certain processes and threads did, in certain functions and modules, of one source,
//! in a span of time.
//!
//! Input: all events; output: those that are meant, and those of no process in particular (markers, losses, the clock). It is the
//! selection of a report: samples with a function in their stack, calls of it; traced calls that are left out enclose
//! nothing. The kernel's counts are of all functions and processes, so they are left out where these are chosen. Who is meant is looked
//! up once, at the first event: the tables must hold all definitions by then, as those of a capture do.

use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::derive::{
    CallFilter, Chosen, Filter, Functions, InStack, Sources, Span, TimeRange, is_recorder,
};
use profiler_model::*;

/// What is meant of a recording. By default all of it.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Whose, and in what code.
    pub filter: Filter,
    /// Samples of the source of this name alone, or `wall`; see [`Sources::choose`].
    pub source: Option<String>,
    /// Of this span.
    pub range: TimeRange,
}

/// A sink that passes on what is meant.
pub struct Only<'a> {
    inner: &'a mut dyn Sink,
    selection: &'a Selection,
    span: Span,
    found: Option<Found>,
    stacks: InStack,
    calls: CallFilter,
    /// Of each stack, the calls that are open: whether they are passed on.
    open: FxHashMap<StackOwner, Vec<bool>>,
}

/// What the tables say of it.
struct Found {
    chosen: Chosen,
    sources: Option<Sources>,
    /// Which of them share a name, if that is asked.
    functions: Functions,
    /// Processes of the profiler that recorded, if these are left out.
    recorders: FxHashSet<ProcessId>,
}

impl Selection {
    /// Whether a recording has what is named: why not, in a line.
    pub fn check(&self, tables: &Tables) -> Result<(), String> {
        self.find(tables).map(drop)
    }

    fn find(&self, tables: &Tables) -> Result<Found, String> {
        let chosen = self.filter.target.find(tables);
        let chosen = chosen.map_err(|error| error.to_string())?;
        let sources = self.source.as_deref().map(|name| {
            let present: Vec<SourceId> = tables.sources.iter().map(|(id, _)| id).collect();
            Sources::choose(&present, Some(name), tables).ok_or_else(|| {
                let names = tables.sources.iter().map(|(_, it)| tables.string(it.name));
                let names: Vec<&str> = names.collect();
                let there = names.join(", ");
                format!("no samples of `{name}` in the recording; it has samples of: {there}")
            })
        });
        let Filter {
            functions, no_self, ..
        } = &self.filter;
        let processes = tables.processes().filter(|_| *no_self);
        let recorders = processes.filter(|(_, process)| is_recorder(process, tables));
        Ok(Found {
            chosen,
            sources: sources.transpose()?,
            functions: match functions.is_empty() {
                true => Functions::default(),
                false => Functions::of(tables),
            },
            recorders: recorders.map(|(id, _)| id).collect(),
        })
    }
}

impl<'a> Only<'a> {
    /// Passes on what is selected.
    pub fn new(inner: &'a mut dyn Sink, selection: &'a Selection) -> Only<'a> {
        Only {
            inner,
            selection,
            span: Span::new(selection.range),
            found: None,
            stacks: InStack::new(&selection.filter),
            calls: CallFilter::new(&selection.filter),
            open: FxHashMap::default(),
        }
    }

    fn is_all(&self) -> bool {
        self.selection.filter.is_all() && self.selection.source.is_none()
    }

    fn find(&mut self, tables: &Tables) -> io::Result<()> {
        if self.found.is_none() {
            let found = self.selection.find(tables);
            self.found =
                Some(found.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?);
        }
        Ok(())
    }

    /// Whether an event is passed on.
    fn admits(&mut self, event: &Event, tables: &Tables) -> bool {
        let Some(found) = &self.found else {
            return false;
        };
        let (thread, process, then) = match event {
            Event::Sample(sample) => {
                let then = tables.names_at(sample.thread, sample.at);
                (Some(sample.thread), None, then)
            }
            Event::Process(event) => (Some(event.thread), None, NamesThen::default()),
            Event::Waits(waits) => (Some(waits.thread), None, NamesThen::default()),
            Event::Gap(gap) if gap.process.is_some() => (None, gap.process, NamesThen::default()),
            Event::Call(_) | Event::Throw(_) => {
                return self.calls.admits(event, tables) == Some(true);
            }
            Event::CallCount(count) => {
                return self.calls.admits_all_threads()
                    && self.calls.admits_function(count.function, tables);
            }
            Event::Gap(_) | Event::Mark(_) | Event::Clock(_) | Event::Lost(_) => return true,
        };
        let of = thread.and_then(|id| tables.thread(id));
        let of = of.map(|thread| thread.process).or(process);
        if !found.chosen.admits_then(tables, thread, process, then)
            || of.is_some_and(|id| found.recorders.contains(&id))
        {
            return false;
        }
        match event {
            Event::Sample(sample) => {
                let sources = found.sources.as_ref();
                let stack = (sample.kernel, sample.user);
                sources.is_none_or(|sources| sources.has(sample.source, tables))
                    && self.stacks.admits(tables, &found.functions, stack)
            }
            // The kernel counts waits of threads, not of what they were in.
            Event::Waits(_) => self.stacks.admits_all(),
            Event::Gap(gap) => gap
                .function
                .is_none_or(|id| self.calls.admits_function(id, tables)),
            _ => true,
        }
    }

    /// How many calls that are passed on enclose this one.
    fn depth(&mut self, call: &Call, admitted: bool, tables: &Tables) -> u32 {
        let owner = StackOwner::of(call, tables);
        let open = self.open.entry(owner).or_default();
        let depth = call.depth as usize;
        // What was entered before the first event is taken as it is.
        let enclosing = open.iter().take(depth).filter(|admitted| !**admitted);
        let enclosing = call.depth.saturating_sub(enclosing.count() as u32);
        open.truncate(depth);
        if matches!(call.edge, CallEdge::Enter(_)) && open.len() == depth {
            open.push(admitted);
        }
        enclosing
    }
}

impl Sink for Only<'_> {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.find(tables)?;
        let Some(part) = self.span.part(event, tables) else {
            return Ok(());
        };
        let event = &*part;
        if self.is_all() {
            return self.inner.event(event, tables);
        }
        let admitted = self.admits(event, tables);
        if let Event::Call(call) = event {
            let depth = self.depth(call, admitted, tables);
            if admitted && depth != call.depth {
                let mut call = call.clone();
                call.depth = depth;
                return self.inner.event(&Event::Call(call), tables);
            }
        }
        match admitted {
            true => self.inner.event(event, tables),
            false => Ok(()),
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        self.find(tables)?;
        self.inner.finish(tables)
    }
}
