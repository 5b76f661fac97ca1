//! A thread: the stacks that it runs on, and the exceptions under way.
//!
//! Which of its stacks a hit is on follows from the address alone: one whose span holds it, or is
//! near. An exit says more: the call that it ends can be on one stack only.
//!
//! What does not belong here: what is open on a stack (`stack`).

use std::sync::Arc;

use super::shadow::Hit;
use super::stack::{Around, Flight, How, Left, Open, Same, Stack};
use profiler_model::Pid;

/// Most stacks of a thread.
const MAX_STACKS: usize = 256;
/// Most exceptions under way at a time (a destructor may throw and catch).
const MAX_FLIGHTS: usize = 8;
/// Calls kept that were taken to be left, to find out if they were not.
const MAX_RECENT: usize = 8;
/// Most returns that the kernel holds for a thread.
const MAX_PENDING: u32 = 64;
/// What throws an exception calls another function that does, within so many bytes.
const SAME_THROW_BYTES: u64 = 1 << 10;
/// How far from the known part of a stack an address can be and still belong to it.
const STACK_BYTES: u64 = 8 << 20;
/// The same in a process that has many stacks.
const SWITCHED_STACK_BYTES: u64 = 64 << 10;
/// How far above all open calls something can happen that leaves them without a reason.
const LEFT_BYTES: u64 = 16 << 10;

/// What is known of one thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) pid: Pid,
    /// Never empty.
    stacks: Vec<Stack>,
    /// The one that it was seen on last.
    current: usize,
    flights: Vec<Flight>,
    /// What was thrown last.
    thrown: Option<Arc<str>>,
    /// A longjmp was called just before.
    jumped: bool,
    /// The process switches between stacks.
    pub(super) switches: bool,
    /// That was found out just now.
    pub(super) learned: bool,
    /// Returns that the kernel holds.
    pending: u32,
    /// Functions and places of calls that were taken to be left.
    recent: [(u32, u64); MAX_RECENT],
    next_recent: usize,
}

impl Thread {
    /// A thread that was seen at this address.
    pub(super) fn new(pid: Pid, switches: bool, sp: u64) -> Thread {
        Thread {
            pid,
            stacks: vec![Stack::at(sp)],
            current: 0,
            flights: Vec::new(),
            thrown: None,
            jumped: false,
            switches,
            learned: false,
            pending: 0,
            recent: [(u32::MAX, 0); MAX_RECENT],
            next_recent: 0,
        }
    }

    /// Whether no call is open.
    pub(super) fn is_idle(&self) -> bool {
        self.stacks.iter().all(|stack| stack.open().is_empty())
    }

    /// Open calls on all its stacks.
    pub(super) fn open_calls(&self) -> usize {
        self.stacks.iter().map(|stack| stack.open().len()).sum()
    }

    /// A function was entered; its depth, or none if there is no room.
    #[inline]
    pub(super) fn enter(
        &mut self,
        hit: &Hit,
        sequence: u64,
        losses: u32,
        out: &mut Vec<Left>,
    ) -> Option<u32> {
        self.happens(hit, Same::Entered(hit.caller), losses, out);
        let unreported = hit.uretprobe && self.pending >= MAX_PENDING;
        let stack = &mut self.stacks[self.current];
        let depth = stack.enter(hit, sequence, losses, unreported)?;
        self.pending += u32::from(hit.uretprobe && !unreported);
        Some(depth)
    }

    /// Exits of a function are not watched any more.
    pub(super) fn unwatch(&mut self, probe: u32) {
        for stack in &mut self.stacks {
            stack.unwatch(probe);
        }
    }

    /// A function is not watched any more from now on.
    pub(super) fn give_up(&mut self, probe: u32, at: u64, out: &mut Vec<Left>) {
        for stack in &mut self.stacks {
            stack.give_up(probe, at, out);
        }
        self.settle(out);
    }

    /// A function was passed; how many calls enclose it.
    pub(super) fn pass(&mut self, hit: &Hit, losses: u32, out: &mut Vec<Left>) -> u32 {
        self.happens(hit, Same::Kept, losses, out);
        self.stacks[self.current].depth()
    }

    /// A function was left; whether its entry was seen.
    #[inline]
    pub(super) fn exit(&mut self, hit: &Hit, losses: u32, out: &mut Vec<Left>) -> bool {
        let jumped = std::mem::take(&mut self.jumped);
        let found = match self.stacks[self.current].find(hit.probe, hit.sp) {
            Some(index) => Some(index),
            None => self.find_elsewhere(hit, jumped),
        };
        let Some(index) = found else {
            self.jumped = jumped;
            self.unmatched(hit, losses, out);
            return false;
        };
        let first_out = out.len();
        let around = Around {
            at: hit.at,
            losses,
            jumped,
            switches: self.switches,
            flights: &self.flights,
        };
        let stack = &mut self.stacks[self.current];
        let mut other = None;
        if index + 1 < stack.open().len() {
            other = stack.leave_from(index + 1, hit.sp, &around, out);
        }
        let sequence = stack.open().get(index).map_or(0, |open| open.sequence);
        out.extend(stack.pop(hit.at, How::Return));
        stack.take_off(hit.at, out);
        // It has returned: what was thrown in it has landed in it.
        if !self.flights.is_empty() {
            self.flights.retain(|flight| flight.sequence < sequence);
        }
        self.settle(&out[first_out..]);
        if let Some(other) = other {
            self.add(other, hit.at, out);
        }
        true
    }

    /// A call is told when it is over: its depth, and the time it spent itself.
    pub(super) fn whole(
        &mut self,
        hit: &Hit,
        began: u64,
        losses: u32,
        out: &mut Vec<Left>,
    ) -> (u32, u64) {
        self.happens(hit, Same::Kept, losses, out);
        let stack = &mut self.stacks[self.current];
        (stack.depth(), stack.whole(began, hit.at))
    }

    /// An exception is thrown; false if it is the one that was thrown just before, by what the
    /// thrower has called.
    pub(super) fn throw(
        &mut self,
        hit: &Hit,
        kind: Option<Arc<str>>,
        sequence: u64,
        losses: u32,
        out: &mut Vec<Left>,
    ) -> bool {
        self.happens(hit, Same::Kept, losses, out);
        if let Some(flight) = self.flights.last_mut()
            && hit.probe != flight.probe
            && hit.sp < flight.sp
            && flight.sp - hit.sp <= SAME_THROW_BYTES
        {
            if flight.kind.is_none() {
                flight.kind.clone_from(&kind);
                self.thrown = kind;
            }
            return false;
        }
        if self.flights.len() >= MAX_FLIGHTS {
            self.flights.remove(0);
        }
        // What is thrown again has no name of its own.
        let kind = kind.or_else(|| self.thrown.clone());
        self.thrown.clone_from(&kind);
        self.flights.push(Flight {
            kind,
            probe: hit.probe,
            sp: hit.sp,
            ends: false,
            sequence,
        });
        true
    }

    /// The thread is to end, and leaves its functions as an exception would.
    pub(super) fn unwind(&mut self, hit: &Hit, sequence: u64, losses: u32, out: &mut Vec<Left>) {
        self.happens(hit, Same::Kept, losses, out);
        if self.flights.len() >= MAX_FLIGHTS {
            self.flights.remove(0);
        }
        self.flights.push(Flight {
            kind: None,
            probe: hit.probe,
            sp: hit.sp,
            ends: true,
            sequence,
        });
    }

    /// What was thrown last.
    pub(super) fn thrown(&self) -> Option<&Arc<str>> {
        self.thrown.as_ref()
    }

    /// An exception has landed in the function that called this one, and goes on from there if it
    /// `resumes`.
    pub(super) fn land(
        &mut self,
        hit: &Hit,
        resumes: bool,
        sequence: u64,
        losses: u32,
        out: &mut Vec<Left>,
    ) {
        if self.flights.is_empty() {
            // Its throw was not seen.
            self.flights.push(Flight {
                kind: self.thrown.clone(),
                probe: hit.probe,
                sp: hit.sp,
                ends: false,
                sequence,
            });
        }
        let thrown_at = self.flights.last().map_or(hit.sp, |flight| flight.sp);
        self.happens(hit, Same::Gone, losses, out);
        // From where it was thrown to where it has landed is all one stack.
        let first_out = out.len();
        let around = Around {
            at: hit.at,
            losses,
            jumped: false,
            switches: false,
            flights: &self.flights,
        };
        for (index, stack) in self.stacks.iter_mut().enumerate() {
            let inside = |open: &Open| thrown_at <= open.sp && open.sp <= hit.sp;
            if index != self.current && stack.open().last().is_some_and(inside) {
                stack.leave_below(hit.sp, Same::Gone, &around, out);
            }
        }
        self.settle(&out[first_out..]);
        match self.flights.last_mut() {
            Some(flight) if resumes => flight.sp = hit.sp,
            _ => drop(self.flights.pop()),
        }
    }

    /// A longjmp is called.
    pub(super) fn jump(&mut self, hit: &Hit, losses: u32, out: &mut Vec<Left>) {
        self.happens(hit, Same::Kept, losses, out);
        self.jumped = true;
    }

    /// The thread ends, or is not seen for a while, and with it all its calls.
    pub(super) fn end(&mut self, at: u64, how: How, out: &mut Vec<Left>) {
        for stack in &mut self.stacks {
            stack.end(at, &how, out);
        }
    }

    /// The return addresses that the kernel's trampoline stands for, innermost first; 0 where one
    /// is not known.
    pub(super) fn pending_returns(&self) -> Vec<u64> {
        let open = self.stacks.iter().flat_map(Stack::open);
        let mut pending: Vec<&Open> = open.filter(|open| open.is_pending()).collect();
        pending.sort_unstable_by_key(|open| std::cmp::Reverse(open.sequence));
        // Calls that a tail call has chained share one place on the stack, which only the
        // outermost of them knew as it was.
        let chains = pending.chunk_by(|inner, outer| inner.sp == outer.sp);
        chains
            .map(|chain| chain.last().map_or(0, |outermost| outermost.caller))
            .collect()
    }

    /// Something happens at a place: finds the stack, and leaves what is below.
    #[inline]
    fn happens(&mut self, hit: &Hit, same: Same, losses: u32, out: &mut Vec<Left>) {
        let jumped = std::mem::take(&mut self.jumped);
        if !self.stacks[self.current].holds(hit.sp) {
            self.locate(hit, losses, jumped, out);
        }
        let around = Around {
            at: hit.at,
            losses,
            jumped,
            switches: self.switches,
            flights: &self.flights,
        };
        let first_out = out.len();
        let stack = &mut self.stacks[self.current];
        let other = stack.leave_below(hit.sp, same, &around, out);
        if out.len() > first_out {
            stack.take_off(hit.at, out);
            self.settle(&out[first_out..]);
        }
        if let Some(other) = other {
            self.add(other, hit.at, out);
        }
    }

    /// Makes the stack current that an address is on, which is not in the span of that one.
    #[cold]
    fn locate(&mut self, hit: &Hit, losses: u32, jumped: bool, out: &mut Vec<Left>) {
        let sp = hit.sp;
        if let Some(known) = self.stacks.iter().position(|stack| stack.holds(sp)) {
            self.current = known;
            return;
        }
        let around = Around {
            at: hit.at,
            losses,
            jumped,
            switches: self.switches,
            flights: &self.flights,
        };
        // The spans next to it; no stack reaches over another one.
        let above = self.stacks.iter().enumerate();
        let above = above.filter(|(_, stack)| stack.low > sp);
        let above = above.min_by_key(|(_, stack)| stack.low);
        let below = self.stacks.iter().enumerate();
        let below = below.filter(|(_, stack)| stack.high < sp);
        let below = below.max_by_key(|(_, stack)| stack.high);
        let above = above.map(|(index, stack)| (stack.low - sp, index));
        let above = above.filter(|(distance, _)| *distance <= self.reach());
        let below = below.map(|(index, stack)| (sp - stack.high, index));
        let below = below.filter(|&(distance, index)| {
            distance <= self.reach_above(&self.stacks[index], &around)
        });
        match above.into_iter().chain(below).min() {
            Some((_, index)) => {
                self.current = index;
                self.stacks[index].extend(sp);
            }
            None => {
                let added = self.add(Stack::at(sp), hit.at, out);
                self.current = added;
            }
        }
    }

    /// How far below a stack's known part something may happen on it.
    fn reach(&self) -> u64 {
        if self.switches {
            SWITCHED_STACK_BYTES
        } else {
            STACK_BYTES
        }
    }

    /// How far above a stack's known part something may happen on it, which all its open calls have
    /// been left for.
    fn reach_above(&self, stack: &Stack, around: &Around<'_>) -> u64 {
        match stack.open().last() {
            None => self.reach(),
            Some(open) if around.explains(open) => self.reach(),
            Some(_) if self.switches => 0,
            Some(_) => LEFT_BYTES,
        }
    }

    /// Looks for the call that an exit ends on other stacks than the current one.
    #[cold]
    fn find_elsewhere(&mut self, hit: &Hit, jumped: bool) -> Option<usize> {
        let candidates = self.stacks.iter().enumerate();
        let mut candidates = candidates.filter(|(index, _)| *index != self.current);
        let (stack, index) =
            candidates.find_map(|(place, stack)| Some((place, stack.find(hit.probe, hit.sp)?)))?;
        let left_open = self.stacks[self.current].open().last();
        if left_open.is_some() && !jumped && self.flights.is_empty() {
            self.learn();
        }
        self.current = stack;
        Some(index)
    }

    #[cold]
    fn unmatched(&mut self, hit: &Hit, losses: u32, out: &mut Vec<Left>) {
        if self.recent.contains(&(hit.probe, hit.sp)) {
            // It had not been left: the thread was on another stack meanwhile.
            self.learn();
        }
        if !self.switches {
            self.happens(hit, Same::Exited, losses, out);
        }
    }

    fn learn(&mut self) {
        self.learned |= !self.switches;
        self.switches = true;
    }

    /// Keeps account of calls that were left.
    #[inline]
    fn settle(&mut self, left: &[Left]) {
        for left in left {
            self.pending = self.pending.saturating_sub(u32::from(left.pending));
            if left.how == How::Inferred && !self.switches {
                self.recent[self.next_recent] = (left.probe, left.sp);
                self.next_recent = (self.next_recent + 1) % MAX_RECENT;
            }
        }
    }

    /// Adds a stack, in place of another one if there are too many; its index.
    fn add(&mut self, stack: Stack, at: u64, out: &mut Vec<Left>) -> usize {
        if self.stacks.len() < MAX_STACKS {
            self.stacks.push(stack);
            return self.stacks.len() - 1;
        }
        let others = self.stacks.iter().enumerate();
        let others = others.filter(|(index, _)| *index != self.current);
        let oldest = |stack: &Stack| stack.open().last().map_or(0, |open| open.sequence);
        let victim = others.min_by_key(|(_, stack)| oldest(stack));
        let victim = victim.map_or(0, |(index, _)| index);
        let mut gone = std::mem::replace(&mut self.stacks[victim], stack);
        let first_out = out.len();
        gone.end(at, &How::Inferred, out);
        self.settle(&out[first_out..]);
        victim
    }
}
