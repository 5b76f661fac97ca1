//! Which calls are meant.
//!
//! Input: the filters of a report or an export; output: whether a call's thread is looked at, and whether its
//! function is. Each thread and function is looked at once.

use rustc_hash::FxHashMap;

use super::{Chosen, Filter, Pattern, is_recorder, short_name};
use profiler_model::*;

#[derive(Clone, Debug, Default)]
pub(crate) struct CallFilter {
    filter: Filter,
    functions: Vec<Pattern>,
    modules: Vec<Pattern>,
    /// Who is meant, once that was looked for.
    chosen: Option<Chosen>,
    known_threads: FxHashMap<ThreadId, bool>,
    known_functions: FxHashMap<FunctionId, bool>,
}

impl CallFilter {
    pub(crate) fn new(filter: &Filter) -> CallFilter {
        let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text)).collect();
        CallFilter {
            functions: patterns(&filter.functions),
            modules: patterns(&filter.modules),
            filter: filter.clone(),
            ..CallFilter::default()
        }
    }

    pub(crate) fn admits_all_threads(&self) -> bool {
        self.filter.target.is_all() && !self.filter.no_self
    }

    /// None if the event's thread is not looked at, else whether its function is.
    pub(crate) fn admits(&mut self, event: &Event, tables: &Tables) -> Option<bool> {
        let (thread, function) = match event {
            Event::Call(call) => (call.thread, Some(call.function)),
            Event::Throw(throw) => (throw.thread, None),
            _ => return Some(true),
        };
        if !self.admits_thread(thread, tables) {
            return None;
        }
        Some(function.is_none_or(|function| self.admits_function(function, tables)))
    }

    pub(crate) fn admits_function(&mut self, id: FunctionId, tables: &Tables) -> bool {
        if self.functions.is_empty() && self.modules.is_empty() {
            return true;
        }
        if let Some(&known) = self.known_functions.get(&id) {
            return known;
        }
        let any = |patterns: &[Pattern], name: &str| patterns.iter().any(|p| p.matches(name));
        let admitted = tables.functions.get(id).is_some_and(|function| {
            let module = function.module.and_then(|id| tables.modules.get(id));
            let path = module.map_or("[unknown]", |module| tables.string(module.path));
            (self.functions.is_empty() || any(&self.functions, tables.string(function.name)))
                && (self.modules.is_empty()
                    || any(&self.modules, path)
                    || any(&self.modules, short_name(path)))
        });
        self.known_functions.insert(id, admitted);
        admitted
    }

    fn admits_thread(&mut self, id: ThreadId, tables: &Tables) -> bool {
        if self.admits_all_threads() {
            return true;
        }
        if let Some(&known) = self.known_threads.get(&id) {
            return known;
        }
        // What is wrong with a name is said when the report is made.
        let target = &self.filter.target;
        let chosen = self
            .chosen
            .get_or_insert_with(|| target.find(tables).unwrap_or_else(|_| Chosen::nobody()));
        let admitted = tables.thread(id).is_some_and(|thread| {
            let process = tables.process(thread.process);
            chosen.admits(tables, Some(id), None)
                && !(self.filter.no_self && process.is_some_and(|p| is_recorder(p, tables)))
        });
        self.known_threads.insert(id, admitted);
        admitted
    }
}
