//! Corrects and completes the user stack of an event before it is resolved.
//!
//! Events ordered by time -> the same with other user stacks: none where the program has not begun yet
//! (`starting`); without callers that the kernel side found by an outdated list of mappings
//! (`announced_code`); with the frames that user space finds in the copy of a stack. An event whose table is
//! being built waits, and all behind it.
//!
//! What does not belong here: what is done as soon as an event is drained (`super`).

use std::cell::Cell;
use std::time::Instant;

use bytes::Bytes;
use profiler_common::sample::END_NO_TABLE;
use profiler_common::unwind::COPY_BYTES;

use super::held_events::copy_of;
use super::store::{Store, TableState};
use super::{MAX_LOOKS, Opener, Unwinding};
use crate::mapping::{CodeRange, Mappings};
use crate::process::ProcessTable;
use crate::stacks::looked_up;
use profiler_model::raw::{RawBody, RawCopy, RawEvent, RawStack};
use profiler_model::{ModuleKind, Pid, StackEnd, Tid, Timestamp};
use profiler_unwind::walk::{Code as MappedCode, Place, StackCopy, Start, Walked, walk};

/// The result of walking a copied stack.
enum Continued {
    /// It was walked as far as it can be.
    Done(Walked),
    /// A table is being built.
    Wait,
}

/// What a process had mapped at the time of an event, and the tables that user space has.
struct MappedThen<'a> {
    mappings: &'a Mappings,
    store: &'a Store,
    /// The mapping of the frame whose table is missing, if the walk ended at one.
    absent: Cell<Option<&'a CodeRange>>,
}

impl MappedCode for MappedThen<'_> {
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

impl Unwinding {
    /// Notes an event before it is resolved.
    pub(crate) fn follow_turn(&mut self, event: &RawEvent) {
        self.starting.follow(event);
    }

    /// Waits until a table is built, or until then. False: that time is over, or no event waits.
    pub(crate) fn wait(&mut self, until: Instant, opener: &mut Opener<'_>) -> bool {
        let Some(store) = &mut self.store else {
            return false;
        };
        if self.held.is_empty() || Instant::now() >= until {
            return false;
        }
        if store.wait(until) {
            self.seek_on(opener);
        }
        true
    }

    /// Removes from an event's user stack what can't be right. Returns the ids of the thread if the rest of
    /// the stack has to be found in a copy.
    pub(crate) fn correct(
        &mut self,
        event: &mut RawEvent,
        has_vdso: bool,
        table: &ProcessTable,
    ) -> Option<(Pid, Tid)> {
        self.starting.correct(event, has_vdso);
        self.cut_outdated(event, table);
        copy_of(event)?;
        match &event.body {
            RawBody::Sample(sample) => Some((sample.pid, sample.tid)),
            RawBody::WaitStack(stack) => Some((stack.pid, stack.tid)),
            _ => None,
        }
    }

    /// Finds the rest of an event's user stack in its copy. False: a table is being built, and the event has
    /// to wait; with `at_once` it does without the table.
    pub(crate) fn complete(
        &mut self,
        event: &mut RawEvent,
        at_once: bool,
        opener: &mut Opener<'_>,
    ) -> bool {
        let at = event.at;
        let (pid, user, copy) = match &mut event.body {
            RawBody::Sample(sample) => (sample.pid, &mut sample.user, &mut sample.copy),
            RawBody::WaitStack(stack) => (stack.pid, &mut stack.user, &mut stack.copy),
            _ => return true,
        };
        let Some(taken) = copy.take() else {
            return true;
        };
        match self.go_on((pid, at), user, &taken, at_once, opener) {
            Continued::Wait => {
                *copy = Some(taken);
                false
            }
            Continued::Done(walked) => {
                let end = StackEnd::from_code(walked.end);
                // The stack goes on behind the bytes that were copied.
                let cut = end == StackEnd::BadMemory && taken.bytes.len() == COPY_BYTES;
                let end = if cut { StackEnd::NoTable } else { end };
                self.without_table += u64::from(end == StackEnd::NoTable);
                self.copied_short += u64::from(cut);
                self.continued += 1;
                user.end = end;
                let addresses = walked.addresses.into_iter();
                let bytes: Vec<u8> = addresses.flat_map(u64::to_ne_bytes).collect();
                user.bytes = Bytes::from(bytes);
                true
            }
        }
    }

    /// Cuts an event's user stack behind the first frame whose caller was found by an outdated list of
    /// mappings.
    fn cut_outdated(&mut self, event: &mut RawEvent, table: &ProcessTable) {
        if !self.is_used() {
            return;
        }
        let (pid, user, copy) = match &mut event.body {
            RawBody::Sample(sample) => (sample.pid, &mut sample.user, &mut sample.copy),
            RawBody::WaitStack(stack) => (stack.pid, &mut stack.user, &mut stack.copy),
            _ => return,
        };
        let Some(process) = table.get(pid) else {
            return;
        };
        let addresses = user.addresses().enumerate();
        let looked_up = addresses.map(|(depth, address)| looked_up(depth, address));
        let Some(last) = self
            .announced
            .first_wrong(pid, event.at, &process.mappings, looked_up)
        else {
            return;
        };
        let right = (last + 1) * 8;
        // At the limit of frames, nobody looked for the caller of the last one.
        if right >= user.bytes.len() && copy.is_none() && user.end == StackEnd::Truncated {
            return;
        }
        log::trace!("pid {pid}: a stack is cut: what is mapped has changed");
        user.bytes.truncate(right);
        user.end = StackEnd::NoTable;
        *copy = None;
        self.outdated += 1;
    }

    fn go_on(
        &mut self,
        (pid, at): (Pid, Timestamp),
        user: &RawStack,
        copy: &RawCopy,
        at_once: bool,
        opener: &mut Opener<'_>,
    ) -> Continued {
        let mut before: Vec<u64> = user.addresses().collect();
        let Some(process) = opener.processes.table.get(pid) else {
            let start = Start::from(&copy.head);
            let nothing = Mappings::default();
            return match &self.store {
                Some(store) => Continued::Done(walk_on(copy, &before, &nothing, store).0),
                None => {
                    before.push(start.pc);
                    Continued::Done(Walked {
                        addresses: before,
                        end: END_NO_TABLE,
                    })
                }
            };
        };
        let mappings = process.mappings.clone();
        // The process's fork was seen too late.
        if self.early.mappings(pid).is_none() && process.exited.is_none() {
            self.found(pid, &mappings, at);
        }
        for look in 0.. {
            let Some(store) = &self.store else {
                break;
            };
            let (walked, absent) = walk_on(copy, &before, &mappings, store);
            let Some(range) = absent else {
                return Continued::Done(walked);
            };
            let id = range.module.code.as_ref().map_or(0, |code| code.id());
            self.want_table(pid, &range, true, opener);
            let Some(store) = &self.store else {
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
        Continued::Done(Walked {
            addresses: before,
            end: END_NO_TABLE,
        })
    }
}

/// Walks a copied stack behind the frames that were found before. If it ended because a table was missing, also returns the mapping of that frame.
pub(super) fn walk_on(
    copy: &RawCopy,
    before: &[u64],
    mappings: &Mappings,
    store: &Store,
) -> (Walked, Option<CodeRange>) {
    let code = MappedThen {
        mappings,
        store,
        absent: Cell::new(None),
    };
    let memory = StackCopy {
        address: copy.head.registers[usize::from(profiler_common::unwind::REGISTER_SP)],
        absent: copy.head.absent,
        bytes: &copy.bytes,
    };
    let walked = walk(&Start::from(&copy.head), before, &code, &memory);
    let absent = code.absent.get().cloned();
    (walked, absent)
}
