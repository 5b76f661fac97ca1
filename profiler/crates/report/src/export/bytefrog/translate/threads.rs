//! Numbers, names and open calls of threads, and of goroutines, which are threads of their own to a receiver.
//!
//! Threads of [`Tables`] and goroutines -> numbers of 16 bits from 0, each named before its first use. A number is
//! given again only when all have been used, to the thread that ended longest ago first, and after
//! its calls were closed. Threads beyond have none.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::stack::{CallStack, OpenCall};
use super::stream::Stream;
use profiler_model::*;

/// Most threads of a process that are searched for a call.
const MAX_SEARCHED: usize = 4096;

/// Longest name of a thread, in bytes: more than the kernel keeps.
const MAX_NAME_BYTES: usize = 256;

/// No number is known of this thread.
const UNKNOWN: u32 = u32::MAX;

/// What makes a thread this thread: its process's pid and start, and which of its threads it is.
type Identity = (Pid, Timestamp, Which);

/// Which of a process's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Thread(Tid, Timestamp),
    Goroutine(u32),
}

/// A thread that has a number.
#[derive(Debug)]
pub(super) struct Slot {
    identity: Identity,
    /// In the present tables.
    id: Option<ThreadId>,
    /// Its name in the tables when they were looked at last.
    defined: Option<StringId>,
    defined_text: Box<str>,
    /// Its name now, without what tells it from threads of other processes.
    comm: Box<str>,
    /// What its process runs in; empty if in no container.
    place: Box<str>,
    ended: bool,
    /// Its open calls.
    pub(super) stack: CallStack,
    /// Number of the exception thrown last; 0: none.
    pub(super) thrown: u32,
}

/// All threads.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// Numbers by index of the thread.
    known: Vec<u32>,
    slots: Vec<Slot>,
    by_identity: FxHashMap<Identity, u16>,
    /// Numbers of threads that live, by process.
    of_process: FxHashMap<(Pid, Timestamp), Vec<u16>>,
    /// Numbers of threads that ended, oldest first.
    ended: VecDeque<u16>,
    first_process: Option<(Pid, Timestamp)>,
    /// Whether there are several processes, so that names have to say which.
    several: bool,
    /// How often a number was given again.
    pub(super) reused: u64,
}

/// What came of looking for a thread's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has one, and a name.
    Known(u16),
    /// It has another name and is to be named again.
    Renamed(u16),
    /// It has one now and is to be named.
    New(u16),
    /// The same, and so is each other thread: there are several processes now.
    NewProcess(u16),
    /// It would have this one, of a thread that ended and whose calls have to be closed first.
    ToClose(u16),
    /// All numbers are in use by threads that live.
    None,
    /// There is no such thread.
    Undefined,
}

impl Threads {
    /// Numbers in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The thread of a number.
    #[inline]
    pub(super) fn slot(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number))
    }

    /// All threads.
    pub(super) fn slots(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut()
    }

    /// Forgets what ids meant.
    pub(super) fn new_tables(&mut self) {
        self.known.clear();
        for slot in &mut self.slots {
            slot.id = None;
            slot.defined = None;
        }
    }

    /// The number of a thread.
    #[inline]
    pub(super) fn find(&mut self, id: ThreadId, tables: &Tables) -> Found {
        let Some(thread) = tables.thread(id) else {
            return Found::Undefined;
        };
        if let Some(&number) = self.known.get(id.index())
            && number != UNKNOWN
            && let Some(slot) = self.slots.get(number as usize)
            && slot.defined == Some(thread.name)
        {
            return Found::Known(number as u16);
        }
        self.meet(id, thread, tables)
    }

    /// The number of a thread if it has one; none is given.
    pub(super) fn known(&self, id: ThreadId, tables: &Tables) -> Option<u16> {
        let thread = tables.thread(id)?;
        let process = tables.process(thread.process)?;
        let which = Which::Thread(thread.tid, thread.started);
        let identity = (process.pid, process.started, which);
        self.by_identity.get(&identity).copied()
    }

    /// The number of a goroutine.
    pub(super) fn find_goroutine(
        &mut self,
        process: ProcessId,
        goroutine: u32,
        tables: &Tables,
    ) -> Found {
        let Some(process) = tables.process(process) else {
            return Found::Undefined;
        };
        let which = Which::Goroutine(goroutine);
        let identity = (process.pid, process.started, which);
        if let Some(&number) = self.by_identity.get(&identity) {
            return Found::Known(number);
        }
        let slot = Slot {
            identity,
            id: None,
            defined: None,
            defined_text: "".into(),
            comm: format!("goroutine {goroutine}").into(),
            place: place(process, tables),
            ended: false,
            stack: CallStack::default(),
            thrown: 0,
        };
        match self.give(slot) {
            Ok(number) => self.given(number),
            Err(found) => found,
        }
    }

    /// The goroutines of a process that have numbers, and have not ended.
    pub(super) fn goroutines_of(&self, process: &Process) -> Vec<u16> {
        let threads = self.of_process.get(&(process.pid, process.started));
        let is_goroutine = |number: &&u16| {
            let slot = self.slots.get(usize::from(**number));
            slot.is_some_and(|slot| matches!(slot.identity.2, Which::Goroutine(_)))
        };
        let threads = threads.into_iter().flatten();
        threads.filter(is_goroutine).copied().collect()
    }

    #[cold]
    fn meet(&mut self, id: ThreadId, thread: &Thread, tables: &Tables) -> Found {
        let Some(process) = tables.process(thread.process) else {
            return Found::Undefined;
        };
        let which = Which::Thread(thread.tid, thread.started);
        let identity = (process.pid, process.started, which);
        let name = cut(tables.string(thread.name));
        if let Some(&number) = self.by_identity.get(&identity)
            && let Some(slot) = self.slots.get_mut(usize::from(number))
        {
            slot.id = Some(id);
            slot.defined = Some(thread.name);
            let renamed = *slot.defined_text != *name;
            if renamed {
                slot.defined_text = name.into();
            }
            let renamed = renamed && *slot.comm != *name;
            if renamed {
                slot.comm = name.into();
            }
            self.remember(id, number);
            return match renamed {
                true => Found::Renamed(number),
                false => Found::Known(number),
            };
        }
        let slot = Slot {
            identity,
            id: Some(id),
            defined: Some(thread.name),
            defined_text: name.into(),
            comm: name.into(),
            place: place(process, tables),
            ended: false,
            stack: CallStack::default(),
            thrown: 0,
        };
        match self.give(slot) {
            Ok(number) => {
                self.remember(id, number);
                self.given(number)
            }
            Err(found) => found,
        }
    }

    /// Gives a number to what has none.
    fn give(&mut self, slot: Slot) -> Result<u16, Found> {
        let identity = slot.identity;
        let number = match u16::try_from(self.slots.len()) {
            Ok(number) => {
                self.slots.push(slot);
                number
            }
            Err(_) => {
                let number = self.take_ended()?;
                self.replace(number, slot);
                number
            }
        };
        self.by_identity.insert(identity, number);
        let key = (identity.0, identity.1);
        self.of_process.entry(key).or_default().push(number);
        Ok(number)
    }

    /// What there is to be told of a number that was just given.
    fn given(&mut self, number: u16) -> Found {
        let slot = self.slots.get(usize::from(number));
        let key = slot.map(|slot| (slot.identity.0, slot.identity.1));
        let first = *self
            .first_process
            .get_or_insert_with(|| key.unwrap_or_default());
        if Some(first) != key && !self.several {
            self.several = true;
            return Found::NewProcess(number);
        }
        Found::New(number)
    }

    fn remember(&mut self, id: ThreadId, number: u16) {
        let len = id.index() + 1;
        if self.known.len() < len {
            self.known.resize(len, UNKNOWN);
        }
        self.known[id.index()] = number.into();
    }

    /// The number of the thread that ended longest ago, if it has no open calls.
    fn take_ended(&mut self) -> Result<u16, Found> {
        while let Some(&number) = self.ended.front() {
            match self.slots.get(usize::from(number)) {
                Some(slot) if slot.ended && slot.stack.len() > 0 => {
                    return Err(Found::ToClose(number));
                }
                Some(slot) if slot.ended => {
                    self.ended.pop_front();
                    return Ok(number);
                }
                _ => {
                    self.ended.pop_front();
                }
            }
        }
        Err(Found::None)
    }

    fn replace(&mut self, number: u16, slot: Slot) {
        self.reused += 1;
        let Some(old) = self.slots.get_mut(usize::from(number)) else {
            return;
        };
        let old = std::mem::replace(old, slot);
        self.by_identity.remove(&old.identity);
        if let Some(known) = old.id.and_then(|id| self.known.get_mut(id.index())) {
            *known = UNKNOWN;
        }
    }

    /// Another thread of the same process on which this call is open, and its index there.
    pub(super) fn find_call(&self, besides: u16, call: OpenCall) -> Option<(u16, usize)> {
        let (pid, started, ..) = self.slots.get(usize::from(besides))?.identity;
        let threads = self.of_process.get(&(pid, started))?;
        threads.iter().take(MAX_SEARCHED).find_map(|&number| {
            let slot = self.slots.get(usize::from(number))?;
            Some((number, slot.stack.find_moved(call)?))
        })
    }

    /// Notes that a thread ended: its number may be given again.
    pub(super) fn end(&mut self, number: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(number))
            && !slot.ended
        {
            slot.ended = true;
            self.ended.push_back(number);
            let (pid, started, ..) = slot.identity;
            let process = (pid, started);
            if let Some(threads) = self.of_process.get_mut(&process) {
                if let Some(at) = threads.iter().position(|&other| other == number) {
                    threads.swap_remove(at);
                }
                if threads.is_empty() {
                    self.of_process.remove(&process);
                }
            }
        }
    }

    /// Notes another name; whether it is another one.
    pub(super) fn rename(&mut self, number: u16, name: &str) -> bool {
        let name = cut(name);
        match self.slots.get_mut(usize::from(number)) {
            Some(slot) if *slot.comm != *name => {
                slot.comm = name.into();
                true
            }
            _ => false,
        }
    }

    /// Tells a thread's name.
    pub(super) fn tell(&self, number: u16, at: Timestamp, stream: &mut Stream, out: &mut Vec<u8>) {
        let Some(slot) = self.slots.get(usize::from(number)) else {
            return;
        };
        let (pid, _, which) = slot.identity;
        let name = &slot.comm;
        let place = match &*slot.place {
            "" => String::new(),
            place => format!(" in {place}"),
        };
        match (self.several, which) {
            (false, _) => stream.thread_name(at, number, name, out),
            (true, Which::Thread(tid, _)) if pid.0 != tid.0 => {
                stream.thread_name(at, number, &format!("{name} [{pid}/{tid}{place}]"), out);
            }
            (true, _) => stream.thread_name(at, number, &format!("{name} [{pid}{place}]"), out),
        }
    }

    /// Tells the names anew of threads whose containers are called something else now.
    pub(super) fn describe(
        &mut self,
        at: Timestamp,
        tables: &Tables,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) {
        let mut changed = Vec::new();
        for (number, slot) in (0..=u16::MAX).zip(&mut self.slots) {
            let thread = slot.id.and_then(|id| tables.thread(id));
            let process = thread.and_then(|thread| tables.process(thread.process));
            let place = process.map(|process| place(process, tables));
            if let Some(place) = place.filter(|place| *place != slot.place) {
                slot.place = place;
                changed.push((number, slot.ended));
            }
        }
        for (number, ended) in changed {
            if self.several && !ended {
                self.tell(number, at, stream, out);
            }
        }
    }

    /// Tells the names of all threads that live, and of one more.
    pub(super) fn tell_all(&self, new: u16, at: Timestamp, stream: &mut Stream, out: &mut Vec<u8>) {
        for (number, slot) in (0..=u16::MAX).zip(&self.slots) {
            if !slot.ended || number == new {
                self.tell(number, at, stream, out);
            }
        }
    }
}

/// What a process runs in, if that is a container: nearly all run in units.
fn place(process: &Process, tables: &Tables) -> Box<str> {
    let container = process.container.and_then(|id| tables.container(id));
    match container.filter(|container| !container.is_plain_unit()) {
        Some(container) => cut(&tables.container_label(container)).into(),
        None => "".into(),
    }
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME_BYTES)]
}
