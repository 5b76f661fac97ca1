//! Which aggregates a report is about: one source, and the filters.
//!
//! Input: all aggregates; output: those that match, with their process. A filter on functions or
//! modules asks whether any frame of the stack matches; each stack is looked at once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::ReportError;
use super::collect::Collector;
use super::options::Filter;
use super::pattern::Pattern;
use crate::derive::{Aggregate, ContainerSet, Key, Owner, frame_lines};
use crate::model::*;

/// An aggregate that is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selected {
    pub(super) key: Key,
    pub(super) aggregate: Aggregate,
    pub(super) process: Option<ProcessId>,
}

impl Selected {
    pub(super) fn thread(&self) -> Option<ThreadId> {
        match self.key.owner {
            Owner::Thread(thread) => Some(thread),
            Owner::Process(_) => None,
        }
    }
}

/// Samples and weight per source, before filters.
pub(super) type SourceSums = BTreeMap<SourceId, (u64, u64)>;

pub(super) fn source_sums(collected: &Collector) -> SourceSums {
    let mut sums = SourceSums::new();
    for (key, aggregate) in collected.samples.iter() {
        let (count, weight) = sums.entry(key.source).or_default();
        *count += aggregate.count;
        *weight = weight.saturating_add(aggregate.weight);
    }
    sums
}

/// The source of a name, or the one with the most samples; none if there are no samples.
pub(super) fn choose_source(
    tables: &Tables,
    sums: &SourceSums,
    wanted: Option<&str>,
) -> Result<Option<SourceId>, ReportError> {
    let name = |id: SourceId| (tables.sources.get(id)).map_or("", |s| tables.string(s.name));
    let candidates = sums
        .iter()
        .filter(|(id, _)| wanted.is_none_or(|wanted| name(**id) == wanted));
    let best = candidates.max_by_key(|(id, (count, _))| (*count, Reverse(**id)));
    match (best, wanted) {
        (Some((&id, _)), _) => Ok(Some(id)),
        (None, None) => Ok(None),
        (None, Some(wanted)) => {
            let names: Vec<&str> = sums.keys().map(|&id| name(id)).collect();
            Err(ReportError::NoSource {
                wanted: wanted.to_owned(),
                present: names.join(", "),
            })
        }
    }
}

pub(super) fn select(
    tables: &Tables,
    collected: &Collector,
    source: Option<SourceId>,
    filter: &Filter,
    containers: ContainerSet,
) -> Vec<Selected> {
    let mut matcher = Matcher::new(tables, filter, containers);
    let all = collected.samples.sorted().into_iter();
    all.filter(|(key, _)| Some(key.source) == source)
        .map(|(key, aggregate)| Selected {
            key,
            aggregate,
            process: key.owner.process(tables),
        })
        .filter(|selected| matcher.admits(selected))
        .collect()
}

struct Matcher<'a> {
    tables: &'a Tables,
    filter: &'a Filter,
    containers: ContainerSet,
    comms: Vec<Pattern>,
    modules: StackFilter,
    functions: StackFilter,
}

impl<'a> Matcher<'a> {
    fn new(tables: &'a Tables, filter: &'a Filter, containers: ContainerSet) -> Matcher<'a> {
        let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text)).collect();
        let stack_filter = |texts| StackFilter {
            patterns: patterns(texts),
            known: FxHashMap::default(),
        };
        Matcher {
            tables,
            filter,
            containers,
            comms: patterns(&filter.comms),
            modules: stack_filter(&filter.modules),
            functions: stack_filter(&filter.functions),
        }
    }

    fn admits(&mut self, selected: &Selected) -> bool {
        self.admits_owner(selected)
            && self.modules.admits(self.tables, &selected.key, has_module)
            && self
                .functions
                .admits(self.tables, &selected.key, has_function)
    }

    fn admits_owner(&self, selected: &Selected) -> bool {
        let process = selected.process.and_then(|id| self.tables.process(id));
        let thread = selected.thread().and_then(|id| self.tables.thread(id));
        let named = |name: StringId| {
            let name = self.tables.string(name);
            self.comms.iter().any(|comm| comm.matches(name))
        };
        let filter = self.filter;
        (self.containers.is_all() || process.is_some_and(|p| self.containers.admits(p)))
            && (filter.pids.is_empty() || process.is_some_and(|p| filter.pids.contains(&p.pid)))
            && (filter.tids.is_empty() || thread.is_some_and(|t| filter.tids.contains(&t.tid)))
            && (self.comms.is_empty()
                || process.is_some_and(|p| named(p.name))
                || thread.is_some_and(|t| named(t.name)))
    }
}

type HasName = fn(&Tables, FrameId, &Pattern) -> bool;

struct StackFilter {
    patterns: Vec<Pattern>,
    known: FxHashMap<StackId, bool>,
}

impl StackFilter {
    fn admits(&mut self, tables: &Tables, key: &Key, has: HasName) -> bool {
        self.patterns.is_empty()
            || self.any_frame(tables, key.user, has)
            || self.any_frame(tables, key.kernel, has)
    }

    fn any_frame(&mut self, tables: &Tables, stack: Option<StackId>, has: HasName) -> bool {
        let mut below = Vec::new();
        let mut next = stack;
        let mut found = false;
        while let Some(id) = next {
            if let Some(&known) = self.known.get(&id) {
                found = known;
                break;
            }
            let Some(stack) = tables.stacks.get(id) else {
                break;
            };
            below.push(id);
            if (self.patterns.iter()).any(|pattern| has(tables, stack.frame, pattern)) {
                found = true;
                break;
            }
            next = stack.parent;
        }
        self.known.extend(below.into_iter().map(|id| (id, found)));
        found
    }
}

fn has_function(tables: &Tables, frame: FrameId, pattern: &Pattern) -> bool {
    frame_lines(tables, frame).any(|line| pattern.matches(&line.name))
}

fn has_module(tables: &Tables, frame: FrameId, pattern: &Pattern) -> bool {
    let module = tables.frames.get(frame).and_then(|frame| frame.module);
    let module = module.and_then(|id| tables.modules.get(id));
    let path = module.map_or("[unknown]", |module| tables.string(module.path));
    pattern.matches(path) || pattern.matches(super::short_name(path))
}
