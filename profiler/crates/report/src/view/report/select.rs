//! Which aggregates a report is about: one source, and the filters.
//!
//! Input: all aggregates; output: those that match, with their process. A filter on functions or
//! modules asks whether any frame of the stack matches; each stack is looked at once.

use std::collections::BTreeMap;

use super::ReportError;
use super::collect::Collector;
use crate::derive::{
    Aggregate, Chosen, Filter, Functions, InStack, Key, Owner, Sources, by_interest, is_recorder,
};
use profiler_model::*;

/// An aggregate that is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selected<'a> {
    pub(super) key: Key,
    pub(super) aggregate: &'a Aggregate,
    pub(super) process: Option<ProcessId>,
}

impl Selected<'_> {
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

/// The sources of a name, or those of the most interest: see [`Sources::choose`].
pub(super) fn choose_sources(
    tables: &Tables,
    sums: &SourceSums,
    wanted: Option<&str>,
) -> Result<Sources, ReportError> {
    let name = |id: SourceId| (tables.sources.get(id)).map_or("", |s| tables.string(s.name));
    let present = by_interest(sums.iter().map(|(&id, &(count, _))| (id, count)));
    Sources::choose(&present, wanted, tables).ok_or_else(|| {
        let names: Vec<&str> = sums.keys().map(|&id| name(id)).collect();
        ReportError::NoSource {
            wanted: wanted.unwrap_or_default().to_owned(),
            present: names.join(", "),
        }
    })
}

pub(super) fn select<'a>(
    tables: &Tables,
    names: &Functions,
    collected: &'a Collector,
    sources: Sources,
    filter: &Filter,
    chosen: Chosen,
) -> (Vec<Selected<'a>>, Vec<ThreadId>) {
    let mut matcher = Matcher::new(tables, names, filter, chosen);
    let all = collected.samples.sorted().into_iter();
    let selected = all
        .filter(|(key, _)| sources.has(key.source, tables))
        .map(|(key, aggregate)| Selected {
            key,
            aggregate,
            process: key.owner.process(tables),
        })
        .filter(|selected| matcher.admits(selected))
        .collect();
    (selected, matcher.counted_threads(collected))
}

struct Matcher<'a> {
    tables: &'a Tables,
    names: &'a Functions,
    filter: &'a Filter,
    chosen: Chosen,
    stacks: InStack,
}

impl<'a> Matcher<'a> {
    fn new(
        tables: &'a Tables,
        names: &'a Functions,
        filter: &'a Filter,
        chosen: Chosen,
    ) -> Matcher<'a> {
        Matcher {
            tables,
            names,
            filter,
            chosen,
            stacks: InStack::new(filter),
        }
    }

    fn admits(&mut self, selected: &Selected<'_>) -> bool {
        let key = &selected.key;
        self.admits_owner(selected.thread(), selected.process, key.names)
            && self
                .stacks
                .admits(self.tables, self.names, (key.kernel, key.user))
    }

    /// Threads whose waits the kernel counted; none where stacks are asked for, which it doesn't know.
    fn counted_threads(&self, collected: &Collector) -> Vec<ThreadId> {
        if !self.stacks.admits_all() {
            return Vec::new();
        }
        let mut threads = collected.waits.counted_threads();
        threads.retain(|&id| {
            let process = self.tables.thread(id).map(|thread| thread.process);
            self.admits_owner(Some(id), process, NamesThen::default())
        });
        threads
    }

    fn admits_owner(
        &self,
        thread: Option<ThreadId>,
        process: Option<ProcessId>,
        then: NamesThen,
    ) -> bool {
        let is_self = || {
            let process = process.and_then(|id| self.tables.process(id));
            process.is_some_and(|process| is_recorder(process, self.tables))
        };
        self.chosen.admits_then(self.tables, thread, process, then)
            && !(self.filter.no_self && is_self())
    }
}
