//! Definitions and events of a session -> contexts, memory and tables; time that passes.
//!
//! In a replay that takes its time everything is announced first; it counts when it happens. What does
//! not belong here: questions and answers (`lookup`).

use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::generation::Generation;
use super::memory::Range;
use super::{ContextKey, Due, Replay, World};
use profiler_model::*;

/// Definitions that the tables may gather, beside those that they began with, before ids begin anew.
const FULL_BYTES: usize = 8 << 20;
/// The same where all of a capture is there at once, and names of all of it are wanted.
const FULL_BYTES_AT_ONCE: usize = 1 << 30;
/// What one generation may take at most, whatever is announced in one epoch.
const MAX_BYTES: usize = 2 << 30;
/// Most mappings of all processes.
const MAX_MAPPED: usize = 1_000_000;
/// Most things that are announced and have not happened yet.
const MAX_AGENDA: usize = 4_000_000;
/// How long a new session has to tell of all that lives.
const CENSUS: Duration = Duration::from_secs(2);

impl World {
    /// Folds definitions of an epoch.
    pub(in crate::tcf) fn define(&mut self, epoch: u32, definitions: Vec<Definition>) {
        if self.epoch != Some(epoch) {
            self.begin_epoch(epoch);
        }
        if definitions.is_empty() {
            return;
        }
        self.generation += 1;
        let mut described = FxHashSet::default();
        for definition in definitions {
            if self.present.bytes > MAX_BYTES {
                self.refused += 1;
                continue;
            }
            self.fold(definition, &mut described);
        }
        if !described.is_empty() {
            self.contexts.describe(&described);
        }
        if self.present.first_bytes == 0 {
            self.present.first_bytes = self.present.bytes;
        }
        self.drop_forgotten();
    }

    fn begin_epoch(&mut self, epoch: u32) {
        if self.epoch.replace(epoch).is_none() {
            return;
        }
        self.present.epoch = Epoch::default();
        if self.wants_new_epoch() {
            self.turn();
        }
    }

    fn full_bytes(&self) -> usize {
        match self.replay {
            Some(Replay::AtOnce) => FULL_BYTES_AT_ONCE,
            Some(Replay::Timed) | None => FULL_BYTES,
        }
    }

    /// Whether ids should start anew: the tables have grown too large. What a generation begins with, all
    /// that lives, the next one would begin with as well.
    pub(in crate::tcf) fn wants_new_epoch(&self) -> bool {
        self.present.bytes - self.present.first_bytes > self.full_bytes()
    }

    /// Begins a generation of ids. What was known only before the one that ends is forgotten, but for
    /// addresses that were given out.
    pub(super) fn turn(&mut self) {
        self.turns += 1;
        let next = self.present.next(&mut self.contexts);
        let previous = std::mem::replace(&mut self.present, next);
        let oldest = self.previous.take();
        self.kernel
            .settle(oldest.as_ref(), &previous, &mut self.texts);
        self.places = self.kernel.len();
        for space in self.spaces.values_mut() {
            space.settle(oldest.as_ref(), &previous, &mut self.texts);
            self.places += space.len();
        }
        drop(oldest);
        self.previous = Some(previous);
        self.modules.tidy();
        self.texts.tidy();
    }

    /// Gathers containers that are known better than before.
    fn fold(&mut self, definition: Definition, described: &mut FxHashSet<ContainerId>) {
        enum Subject {
            Process(ProcessId),
            Thread(ThreadId),
            Container(ContainerId),
            Mapping,
            Other,
        }
        let subject = match &definition {
            Definition::Session(session) => {
                self.meet_session(session);
                Subject::Other
            }
            Definition::Process(id, _) => Subject::Process(*id),
            Definition::Thread(id, _) => Subject::Thread(*id),
            Definition::Container(id, _) => Subject::Container(*id),
            Definition::Mapping(..) => Subject::Mapping,
            _ => Subject::Other,
        };
        if self.present.define(definition, &mut self.modules).is_err() {
            self.undefined += 1;
            return;
        }
        match subject {
            Subject::Process(id) => self.meet_process(id),
            Subject::Thread(id) => self.meet_thread(id),
            Subject::Container(id) => described.extend(self.present.described(id)),
            Subject::Mapping => {
                while let Some(mapping) = self.present.next_mapping() {
                    self.meet_mapping(&mapping);
                }
            }
            Subject::Other => {}
        }
    }

    fn meet_session(&mut self, session: &Session) {
        self.time = self.time.max(session.started);
        let before = &self.present.tables.session;
        let first = *before == Session::default();
        if self.replay.is_none() && !first && before.started != session.started {
            self.contexts.begin_session();
            self.census = Some(None);
            // Its epochs are numbered from the beginning: this may be the number that was there before.
            self.present.epoch = Epoch::default();
        }
    }

    fn meet_process(&mut self, local: ProcessId) {
        let Generation { tables, epoch, .. } = &self.present;
        let Some(id) = epoch.process(local) else {
            return;
        };
        let Some(process) = tables.process(id) else {
            return;
        };
        let parent = process.parent.and_then(|id| self.present.process(id));
        let name = tables.string(process.name);
        let key = self.contexts.process(process, name, parent);
        self.present.set_process(id, key);
        if let Some(key) = key {
            self.announce(key);
        }
    }

    fn meet_thread(&mut self, local: ThreadId) {
        let Generation { tables, epoch, .. } = &self.present;
        let Some(id) = epoch.thread(local) else {
            return;
        };
        let Some(thread) = tables.thread(id) else {
            return;
        };
        let process = self.present.process(thread.process);
        let keys = process.and_then(|process| {
            let name = tables.string(thread.name);
            let key = self
                .contexts
                .thread(process, thread.tid, thread.started, name)?;
            Some((process, key))
        });
        self.present.set_thread(id, keys);
        if let Some((_, key)) = keys {
            self.announce(key);
        }
    }

    /// Shows a context when its time has come.
    fn announce(&mut self, key: ContextKey) {
        match self.contexts.unborn(key) {
            Some(started) if self.is_ahead(started) => self.later(started, Due::Birth(key)),
            Some(_) => self.contexts.show(key, false),
            None => {}
        }
    }

    fn meet_mapping(&mut self, mapping: &Mapping) {
        let (Some(key), Some(module)) = (
            self.present.process(mapping.process),
            self.present.module(mapping.module),
        ) else {
            return;
        };
        let range = Range {
            start: mapping.start,
            end: mapping.end,
            offset: mapping.offset,
            at: mapping.at,
            module: module.clone(),
        };
        if self.is_ahead(mapping.at) {
            self.later(mapping.at, Due::Mapping(key, range));
        } else {
            self.map(key, range);
        }
    }

    fn map(&mut self, key: ContextKey, range: Range) {
        if self.contexts.get(key).is_none() {
            return;
        }
        if self.mapped >= MAX_MAPPED {
            self.refused += 1;
            return;
        }
        let memory = self.memories.entry(key).or_default();
        self.mapped -= memory.len();
        memory.insert(range);
        self.mapped += memory.len();
    }

    fn is_ahead(&self, at: Timestamp) -> bool {
        self.replay == Some(Replay::Timed) && at > self.time
    }

    fn later(&mut self, at: Timestamp, due: Due) {
        if self.agenda.len() >= MAX_AGENDA {
            self.refused += 1;
            return;
        }
        self.agendas += 1;
        self.agenda.insert((at, self.agendas), due);
    }

    fn pass(&mut self, now: Timestamp) {
        self.time = self.time.max(now);
        while let Some(first) = self.agenda.first_entry()
            && first.key().0 <= self.time
        {
            match first.remove() {
                Due::Birth(key) => self.contexts.show(key, false),
                Due::Mapping(key, range) => self.map(key, range),
            }
        }
    }

    /// Takes an event of the epoch that was defined last; gives it with ids of [`World::tables`].
    pub(in crate::tcf) fn event(&mut self, event: Event) -> Option<Event> {
        let Ok(event) = self.present.epoch.event(event) else {
            self.undefined += 1;
            return None;
        };
        match &event {
            Event::Sample(sample) => {
                self.pass(sample.at);
                if let Some((_, thread)) = self.present.thread(sample.thread) {
                    self.contexts.show(thread, false);
                }
            }
            Event::Process(event) => {
                self.pass(event.at);
                self.change(event);
            }
            _ => {}
        }
        self.drop_forgotten();
        Some(event)
    }

    fn change(&mut self, event: &ProcessEvent) {
        let Some((process, thread)) = self.present.thread(event.thread) else {
            return;
        };
        // The start of one that was known from elsewhere may have seemed to be before its program's.
        let is_start = matches!(event.change, ProcessChange::Started);
        self.contexts.show(thread, is_start);
        match event.change {
            ProcessChange::Started => {}
            ProcessChange::Executed(name) => {
                let name = self.present.tables.string(name);
                self.contexts.execute(process, name, event.at);
                if let Some(memory) = self.memories.get_mut(&process) {
                    self.mapped -= memory.len();
                    memory.execute(event.at);
                    self.mapped += memory.len();
                }
            }
            ProcessChange::Renamed(name) => {
                let name = self.present.tables.string(name);
                self.contexts.rename(thread, name);
            }
            ProcessChange::Exited => self.contexts.end(thread),
        }
    }

    /// Forgets what ended long ago.
    pub(in crate::tcf) fn tick(&mut self, now: Instant) {
        if let Some(since) = &mut self.census
            && now.saturating_duration_since(*since.get_or_insert(now)) >= CENSUS
        {
            self.census = None;
            self.contexts.end_session_before();
        }
        self.contexts.tick(now);
        if self.questions.tick(now) {
            self.generation += 1;
        }
        self.drop_forgotten();
    }

    pub(super) fn drop_forgotten(&mut self) {
        for key in self.contexts.take_forgotten() {
            if let Some(memory) = self.memories.remove(&key) {
                self.mapped -= memory.len();
            }
            if let Some(space) = self.spaces.remove(&key) {
                self.places -= space.len();
            }
        }
    }
}
