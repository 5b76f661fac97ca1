//! What an event's user stack becomes in its turn.
//!
//! Events ordered by time -> the same, resolved: without the user stacks of programs that have not begun
//! yet (`starting`), without callers that were found by a list of mappings that did not hold any more
//! (`told`), with the rest of what the kernel side could not walk. What needs a table that is being
//! built waits, and all behind it.
//!
//! What does not belong here: what is done as soon as an event is drained (`super`).

use std::cell::Cell;
use std::time::Instant;

use bytes::Bytes;
use profiler_common::unwind::COPY_BYTES;

use super::MAX_LOOKS;
use super::hold::copy_of;
use super::store::{PATIENCE, Store, TableState};
use crate::Resolver;
use crate::mapping::{CodeRange, Mappings};
use profiler_model::raw::{RawBody, RawCopy, RawEvent, RawStack};
use profiler_model::{Batch, ModuleKind, Pid, StackEnd, Timestamp};
use profiler_unwind::walk::{Code as MappedCode, Place, StackCopy, Start, Walked, walk};

/// What became of a copied stack.
enum Continued {
    /// It was walked as far as it can be.
    Done(Walked),
    /// A table is being built.
    Wait,
}

/// What a process had mapped at a time, and the tables that are here.
struct Mapped<'a> {
    mappings: &'a Mappings,
    store: &'a Store,
    /// Whether a frame was met whose table is not here.
    absent: Cell<Option<&'a CodeRange>>,
}

impl MappedCode for Mapped<'_> {
    fn at(&self, address: u64) -> Place<'_> {
        let Some(range) = self.mappings.find(address) else {
            return Place::Unmapped;
        };
        match (&range.module.code, range.module.kind) {
            (Some(code), _) => match self.store.get(code.id()) {
                Ok(table) => Place::Table(table, range.own_address_of(address)),
                Err(true) => Place::NoTable,
                Err(false) => {
                    self.absent.set(Some(range));
                    Place::Absent
                }
            },
            (None, ModuleKind::Unknown) => Place::Unmapped,
            (None, ModuleKind::Jit) => Place::Jit,
            (None, _) => Place::NoTable,
        }
    }
}

impl Resolver {
    /// Resolves an event unless it has to wait for a table.
    pub(crate) fn event_or_hold(&mut self, mut event: RawEvent, out: &mut Vec<Batch>) {
        if !self.unwinding.held.is_empty() || !self.complete(&mut event, false) {
            self.unwinding.held.push(event);
            return;
        }
        self.resolve_now(event, out);
    }

    fn resolve_now(&mut self, event: RawEvent, out: &mut Vec<Batch>) {
        self.unwinding.starting.follow(&event);
        self.turn_epoch(event.at, out);
        self.event(event);
    }

    /// Resolves what has waited and need not wait any longer.
    pub(crate) fn release_held(&mut self, out: &mut Vec<Batch>) {
        while let Some(mut event) = self.unwinding.held.pop() {
            let full = self.unwinding.held.is_full();
            if !self.complete(&mut event, full) {
                self.unwinding.held.put_back(event);
                break;
            }
            self.resolve_now(event, out);
        }
    }

    /// Waits for the tables that events wait for, no longer than each may wait, and resolves them all.
    pub fn await_tables(&mut self, out: &mut Vec<Batch>) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.release_held(out);
            let Some(store) = &mut self.unwinding.store else {
                return;
            };
            if self.unwinding.held.is_empty() {
                return;
            }
            if Instant::now() >= until {
                break;
            }
            if store.wait(until) {
                self.seek_on();
            }
        }
        while let Some(mut event) = self.unwinding.held.pop() {
            self.complete(&mut event, true);
            self.resolve_now(event, out);
        }
    }

    /// Makes an event's user stack what it can be, in its turn: cuts off what can't be right, and finds
    /// the rest if there is a copy of that; false: it has to wait. With `at_once` it does not.
    fn complete(&mut self, event: &mut RawEvent, at_once: bool) -> bool {
        let has_vdso = self.vdso.is_some();
        self.unwinding.starting.correct(event, has_vdso);
        self.cut_outdated(event);
        if copy_of(event).is_none() {
            return true;
        }
        let at = event.at;
        let (pid, user, copy) = match &mut event.body {
            RawBody::Sample(sample) => {
                self.meet(sample.pid, sample.tid, sample.comm, at, 0);
                (sample.pid, &mut sample.user, &mut sample.copy)
            }
            RawBody::WaitStack(stack) => {
                if self.processes.get(stack.pid).is_none() {
                    let comm = crate::proc_fs::thread_comm(stack.pid, stack.tid);
                    self.meet(stack.pid, stack.tid, comm.unwrap_or_default(), at, 0);
                }
                (stack.pid, &mut stack.user, &mut stack.copy)
            }
            _ => return true,
        };
        let Some(taken) = copy.take() else {
            return true;
        };
        match self.go_on(pid, user, &taken, at, at_once) {
            Continued::Wait => {
                *copy = Some(taken);
                false
            }
            Continued::Done(walked) => {
                let end = StackEnd::from_code(walked.end);
                // A stack that goes on behind what was copied.
                let cut = end == StackEnd::BadMemory && taken.bytes.len() == COPY_BYTES;
                let end = if cut { StackEnd::NoTable } else { end };
                if end == StackEnd::NoTable {
                    self.counters.stacks_without_table += 1;
                }
                self.counters.stacks_continued += 1;
                user.end = end;
                let addresses = user.addresses().chain(walked.addresses);
                let bytes: Vec<u8> = addresses.flat_map(u64::to_ne_bytes).collect();
                user.bytes = Bytes::from(bytes);
                true
            }
        }
    }

    /// Cuts an event's user stack behind the first frame whose caller was looked for by what was mapped
    /// there before.
    fn cut_outdated(&mut self, event: &mut RawEvent) {
        if !self.unwinding.is_used() {
            return;
        }
        let (pid, user, copy) = match &mut event.body {
            RawBody::Sample(sample) => (sample.pid, &mut sample.user, &mut sample.copy),
            RawBody::WaitStack(stack) => (stack.pid, &mut stack.user, &mut stack.copy),
            _ => return,
        };
        let Some(process) = self.processes.get(pid) else {
            return;
        };
        let looked_up = user.addresses().enumerate().map(|(depth, address)| {
            let is_return = depth > 0 && address & EXACT == 0;
            (address & !EXACT).wrapping_sub(u64::from(is_return))
        });
        let told = &mut self.unwinding.told;
        let Some(last) = told.first_wrong(pid, event.at, &process.mappings, looked_up) else {
            return;
        };
        let right = (last + 1) * 8;
        // Of the last frame a stack can have, the caller was not looked for.
        if right >= user.bytes.len() && copy.is_none() && user.end == StackEnd::Truncated {
            return;
        }
        log::trace!("pid {pid}: a stack is cut: what is mapped has changed");
        user.bytes.truncate(right);
        user.end = StackEnd::NoTable;
        *copy = None;
        self.counters.stacks_outdated += 1;
    }

    fn go_on(
        &mut self,
        pid: Pid,
        user: &RawStack,
        copy: &RawCopy,
        at: Timestamp,
        at_once: bool,
    ) -> Continued {
        let Some(process) = self.processes.get(pid) else {
            let start = Start::from(&copy.head);
            let nothing = Mappings::default();
            return match &self.unwinding.store {
                Some(store) => {
                    Continued::Done(walk_on(copy, user.addresses().len(), &nothing, store).0)
                }
                None => Continued::Done(Walked {
                    addresses: vec![start.pc],
                    end: profiler_common::sample::END_NO_TABLE,
                }),
            };
        };
        let mappings = process.mappings.clone();
        // A process whose fork was not seen in time.
        if self.unwinding.early.mappings(pid).is_none() && process.exited.is_none() {
            self.unwinding.found(pid, &mappings, at);
        }
        let before = user.addresses().len();
        for look in 0.. {
            let Some(store) = &self.unwinding.store else {
                break;
            };
            let (walked, absent) = walk_on(copy, before, &mappings, store);
            let Some(range) = absent else {
                return Continued::Done(walked);
            };
            let id = range.module.code.as_ref().map_or(0, |code| code.id());
            self.want_table(pid, &range, true);
            let Some(store) = &self.unwinding.store else {
                break;
            };
            match store.state(id) {
                TableState::Building if !at_once && store.is_worth_waiting(id) => {
                    return Continued::Wait;
                }
                TableState::Ready(_) | TableState::Without if look < MAX_LOOKS => {}
                _ => return Continued::Done(walked),
            }
        }
        Continued::Done(Walked::default())
    }
}

/// Set in addresses that are no return addresses.
pub(super) const EXACT: u64 = profiler_common::sample::EXACT_ADDRESS;

/// Walks a copied stack; also where a table was missing, if that is why it ended.
pub(super) fn walk_on(
    copy: &RawCopy,
    before: usize,
    mappings: &Mappings,
    store: &Store,
) -> (Walked, Option<CodeRange>) {
    let code = Mapped {
        mappings,
        store,
        absent: Cell::new(None),
    };
    let memory = StackCopy {
        address: copy.head.registers[usize::from(profiler_common::unwind::REGISTER_SP)],
        bytes: &copy.bytes,
    };
    let walked = walk(&Start::from(&copy.head), before, &code, &memory);
    let absent = code.absent.get().cloned();
    (walked, absent)
}
