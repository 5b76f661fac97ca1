//! Processes and threads as clients see them: who is there, how they are called, when they are forgotten.
//!
//! Definitions and events -> [`Context`]s. Identity is (id, start), and one more thing is known: the
//! main thread of a process is there whenever the process is. Times of events are CLOCK_MONOTONIC,
//! those of forgetting are what [`Contexts::tick`] is told. What does not belong here: ids of tables
//! (`generation`), memory and names of code.

mod forget;
mod life;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::changes::Pending;
use super::{Changes, Context, ContextKey, Replay};
use crate::machine::Life;
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Most contexts of all. A machine has fewer; a capture may say anything.
const MAX_CONTEXTS: usize = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its time has not come.
    Unborn,
    Lives,
    /// The number of its end, should it have ended several times.
    Ended(u64),
}

#[derive(Debug)]
struct Entry {
    context: Context,
    started: Timestamp,
    /// Which of the lives of this id.
    life: u32,
    state: State,
    /// Which session told of it last.
    session: u32,
    /// Of a process.
    whole: Option<Box<Whole>>,
}

/// What a process has that threads have not.
#[derive(Debug)]
struct Whole {
    /// With ids of the present tables.
    definition: Process,
    main: ContextKey,
    /// Those that live.
    threads: BTreeMap<(Tid, u32), ContextKey>,
    /// All that are known.
    known: BTreeSet<ContextKey>,
    /// Other starts that it is known by.
    aliases: Vec<Timestamp>,
    held: u32,
    /// Kept only because it is held.
    overdue: bool,
    /// Some of its threads are.
    overdue_threads: bool,
}

/// Processes and threads, as clients see them.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    replay: Option<Replay>,
    afterlife: Duration,
    entries: FxHashMap<ContextKey, Entry>,
    by_life: FxHashMap<(Pid, Timestamp), ContextKey>,
    by_thread: FxHashMap<(ContextKey, Tid, Timestamp), ContextKey>,
    /// The latest life that was shown of each process id, of each thread id of a process.
    latest: FxHashMap<Pid, ContextKey>,
    latest_thread: FxHashMap<(ContextKey, Tid), ContextKey>,
    /// Processes that live.
    shown: BTreeMap<(Pid, u32), ContextKey>,
    ids: FxHashMap<String, ContextKey>,
    pending: Pending,
    /// Those that have ended, and clients will be told.
    untold: BTreeSet<ContextKey>,
    /// In order of their ends; when that was, if a tick has come since.
    ended: VecDeque<(Option<Instant>, ContextKey, u64)>,
    ended_processes: usize,
    ends: u64,
    forgotten: Vec<ContextKey>,
    session: u32,
    last: u64,
    /// Contexts that there was no room for.
    pub(super) refused: u64,
}

impl Contexts {
    pub(super) fn new(replay: Option<Replay>, afterlife: Duration) -> Contexts {
        Contexts {
            replay,
            afterlife,
            ..Contexts::default()
        }
    }

    fn at_once(&self) -> bool {
        self.replay == Some(Replay::AtOnce)
    }

    /// A process is defined, or defined anew. It is shown when its time has come: see
    /// [`Contexts::show`].
    pub(super) fn process(
        &mut self,
        definition: &Process,
        name: &str,
        parent: Option<ContextKey>,
    ) -> Option<ContextKey> {
        // The idle tasks are none that anybody started.
        if definition.pid == Pid(0) {
            return None;
        }
        if let Some(key) = self.known_process(definition) {
            self.update(key, definition, name, parent);
            return Some(key);
        }
        if self.entries.len() + 2 > MAX_CONTEXTS {
            self.refused += 1;
            return None;
        }
        let Process { pid, started, .. } = *definition;
        let (key, main) = (self.next_key(), self.next_key());
        let life = match self.latest.get(&pid).and_then(|key| self.entries.get(key)) {
            Some(before) if self.at_once() => before.life + 1,
            _ => 1,
        };
        let context = Context {
            id: name_of(format_args!("P{pid}"), life),
            process: key,
            life: Life { pid, started },
            thread: None,
            name: name.to_owned(),
            parent: parent.filter(|parent| *parent < key),
            ended: false,
            gone: false,
            seen: Cell::new(false),
        };
        let whole = Whole {
            definition: definition.clone(),
            main,
            threads: BTreeMap::new(),
            known: BTreeSet::new(),
            aliases: Vec::new(),
            held: 0,
            overdue: false,
            overdue_threads: false,
        };
        self.by_life.insert((pid, started), key);
        self.insert(key, context, started, life, Some(Box::new(whole)));
        self.add_thread(key, main, Tid(pid.0), started, name);
        Some(key)
    }

    fn known_process(&self, definition: &Process) -> Option<ContextKey> {
        let life = (definition.pid, definition.started);
        if let Some(&key) = self.by_life.get(&life) {
            return Some(key);
        }
        // Another session may know the start of the same process from another source.
        let key = *self.latest.get(&definition.pid)?;
        let known = self.entries.get(&key)?;
        let same = known.started.is_same_start(definition.started);
        (self.replay.is_none() && same && known.state == State::Lives).then_some(key)
    }

    fn update(
        &mut self,
        key: ContextKey,
        definition: &Process,
        name: &str,
        parent: Option<ContextKey>,
    ) {
        let session = self.session;
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.session = session;
        // Parents have lower keys: there is no ring of them.
        let parent = parent.filter(|parent| *parent < key);
        entry.context.parent = entry.context.parent.or(parent);
        let lives = entry.state == State::Lives;
        if let Some(whole) = &mut entry.whole {
            let life = (definition.pid, definition.started);
            if self.by_life.insert(life, key).is_none() {
                whole.aliases.push(definition.started);
            }
            let before = &whole.definition;
            let same = before.executable == definition.executable
                && before.command == definition.command
                && before.container == definition.container;
            whole.definition = definition.clone();
            if !same && lives {
                self.pending.changed(key);
            }
        }
        self.rename(key, name);
    }

    /// A thread is defined, or defined anew.
    pub(super) fn thread(
        &mut self,
        process: ContextKey,
        tid: Tid,
        started: Timestamp,
        name: &str,
    ) -> Option<ContextKey> {
        let entry = self.entries.get(&process)?;
        let whole = entry.whole.as_ref()?;
        let key = if tid.0 == entry.context.life.pid.0 {
            Some(whole.main)
        } else {
            self.known_thread(process, tid, started)
        };
        if let Some(key) = key {
            let session = self.session;
            self.entries.get_mut(&key)?.session = session;
            self.rename(key, name);
            return Some(key);
        }
        if self.entries.len() >= MAX_CONTEXTS {
            self.refused += 1;
            return None;
        }
        let key = self.next_key();
        self.add_thread(process, key, tid, started, name);
        Some(key)
    }

    fn known_thread(
        &self,
        process: ContextKey,
        tid: Tid,
        started: Timestamp,
    ) -> Option<ContextKey> {
        if let Some(&key) = self.by_thread.get(&(process, tid, started)) {
            return Some(key);
        }
        let key = *self.latest_thread.get(&(process, tid))?;
        let known = self.entries.get(&key)?;
        let same = known.started.is_same_start(started);
        (self.replay.is_none() && same && known.state == State::Lives).then_some(key)
    }

    fn add_thread(
        &mut self,
        process: ContextKey,
        key: ContextKey,
        tid: Tid,
        started: Timestamp,
        name: &str,
    ) {
        let latest = self.latest_thread.get(&(process, tid));
        let life = match latest.and_then(|key| self.entries.get(key)) {
            Some(before) if self.at_once() => before.life + 1,
            _ => 1,
        };
        let Some(owner) = self.entries.get_mut(&process) else {
            return;
        };
        let context = Context {
            id: name_of(format_args!("{}.{}", owner.context.id, tid.0), life),
            process,
            life: owner.context.life,
            thread: Some(tid),
            name: name.to_owned(),
            parent: owner.context.parent,
            ended: false,
            gone: false,
            seen: Cell::new(false),
        };
        if let Some(whole) = &mut owner.whole {
            whole.known.insert(key);
        }
        self.by_thread.insert((process, tid, started), key);
        self.insert(key, context, started, life, None);
    }

    fn insert(
        &mut self,
        key: ContextKey,
        context: Context,
        started: Timestamp,
        life: u32,
        whole: Option<Box<Whole>>,
    ) {
        let entry = Entry {
            context,
            started,
            life,
            state: State::Unborn,
            session: self.session,
            whole,
        };
        self.entries.insert(key, entry);
    }

    fn next_key(&mut self) -> ContextKey {
        self.last += 1;
        ContextKey(self.last)
    }

    /// A thread, and with the main thread its process, has another name.
    pub(super) fn rename(&mut self, key: ContextKey, name: &str) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let process = entry.context.process;
        let main = self.whole(process).map(|whole| whole.main);
        let keys = match main {
            Some(main) if key == main || key == process => [Some(process), Some(main)],
            _ => [Some(key), None],
        };
        for key in keys.into_iter().flatten() {
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.context.name != name
            {
                name.clone_into(&mut entry.context.name);
                if entry.state == State::Lives {
                    self.pending.changed(key);
                }
            }
        }
    }

    /// Gives what processes are called ids of other tables.
    pub(super) fn translate(&mut self, old: &Tables, new: &mut Tables) {
        for entry in self.entries.values_mut() {
            let Some(whole) = &mut entry.whole else {
                continue;
            };
            let process = &mut whole.definition;
            let mut string = |id: StringId| new.intern_string(old.string(id)).0;
            process.parent = None;
            process.name = string(process.name);
            process.executable = process.executable.map(&mut string);
            process.command = process.command.map(&mut string);
            process.cgroup = process.cgroup.map(&mut string);
            let container = process.container.and_then(|id| old.container(id)).cloned();
            process.container = match container {
                Some(mut container) => {
                    container.cgroup = string(container.cgroup);
                    for text in container.texts_mut() {
                        *text = text.map(&mut string);
                    }
                    Some(new.intern_container(container).0)
                }
                None => None,
            };
        }
    }

    /// More is known of these containers of the present tables.
    pub(super) fn describe(&mut self, containers: &FxHashSet<ContainerId>) {
        for (&key, entry) in &self.entries {
            let whole = entry.whole.as_ref();
            let container = whole.and_then(|whole| whole.definition.container);
            if entry.state == State::Lives && container.is_some_and(|id| containers.contains(&id)) {
                self.pending.changed(key);
            }
        }
    }

    fn whole(&self, process: ContextKey) -> Option<&Whole> {
        self.entries.get(&process)?.whole.as_deref()
    }

    fn whole_mut(&mut self, process: ContextKey) -> Option<&mut Whole> {
        self.entries.get_mut(&process)?.whole.as_deref_mut()
    }

    pub(super) fn changes(&mut self) -> Changes {
        self.pending.take()
    }

    pub(super) fn find(&self, id: &str) -> Option<ContextKey> {
        self.ids.get(id).copied()
    }

    pub(super) fn get(&self, key: ContextKey) -> Option<&Context> {
        self.entries.get(&key).map(|entry| &entry.context)
    }

    pub(super) fn processes(&self) -> Vec<ContextKey> {
        self.shown.values().copied().collect()
    }

    pub(super) fn threads(&self, process: ContextKey) -> Vec<ContextKey> {
        let whole = self.whole(process);
        whole.map_or_else(Vec::new, |whole| whole.threads.values().copied().collect())
    }

    /// These, and those of the same process or, without one, processes that have ended without clients' being told.
    pub(super) fn with_untold(
        &self,
        process: Option<ContextKey>,
        mut living: Vec<ContextKey>,
    ) -> Vec<ContextKey> {
        let untold = self.untold.iter().filter_map(|&key| {
            let entry = self.entries.get(&key)?;
            let context = &entry.context;
            let belongs = match process {
                Some(process) => context.thread.is_some() && context.process == process,
                None => context.thread.is_none(),
            };
            // Its id may be another one's by now.
            (belongs && self.ids.get(&context.id) == Some(&key)).then_some(key)
        });
        let before = living.len();
        living.extend(untold);
        if living.len() > before {
            living.order_by_key(|key| {
                let entry = self.entries.get(key);
                entry.map(|entry| (entry.context.thread, entry.context.life.pid, entry.life))
            });
        }
        living
    }

    /// Clients are told of the end of the context with this id.
    pub(super) fn told(&mut self, id: &str) {
        if let Some(&key) = self.ids.get(id)
            && let Some(entry) = self.entries.get_mut(&key)
            && entry.context.ended
        {
            entry.context.gone = true;
            self.untold.remove(&key);
        }
    }

    /// What the definition of a process says, with ids of the present tables.
    pub(super) fn definition(&self, process: ContextKey) -> Option<&Process> {
        self.whole(process).map(|whole| &whole.definition)
    }
}

/// An id; with its number, if it is not the first life.
fn name_of(id: std::fmt::Arguments<'_>, life: u32) -> String {
    match life {
        1 => id.to_string(),
        _ => format!("{id}@{life}"),
    }
}
