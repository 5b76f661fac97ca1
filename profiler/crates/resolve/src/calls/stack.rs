//! One stack of a program: the traced calls that are open on it, outermost first.
//!
//! Stack pointers are those of return addresses and grow downwards: what lies below the place where
//! something happens has been left. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: which of a thread's stacks it is (`thread`).

use std::sync::Arc;

use super::shadow::Hit;

/// Most open calls of a stack.
pub(super) const MAX_DEPTH: usize = 4096;
/// Most calls kept that were told as a whole and that another one may enclose.
const MAX_WHOLES: usize = 64;
/// Two frames so near to each other are on one stack: none is smaller.
const PROVEN_BYTES: u64 = 4 << 10;

/// A call that was entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) probe: u32,
    pub(super) depth: u32,
    pub(super) sp: u64,
    began: u64,
    /// Time spent in calls directly in it.
    children_ns: u64,
    /// The return address; 0: not known.
    pub(super) caller: u64,
    /// Number of its entry.
    pub(super) sequence: u64,
    /// How often records had been lost.
    losses: u32,
    /// Its exit is seen by the kernel's return probe.
    uretprobe: bool,
    /// Too many returns were pending: its exit will not be seen.
    unreported: bool,
    /// Exits of its function are not watched any more: whatever leaves it, it may be long over.
    unwatched: bool,
    /// The same, and nobody will tell: it is taken off as soon as nothing is in it any more.
    over: bool,
}

impl Open {
    /// Whether its return address was replaced by that of the kernel's trampoline.
    pub(super) fn is_pending(&self) -> bool {
        self.uretprobe && !self.unreported
    }
}

/// How a call was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    Return,
    /// Of what type, if that is known.
    Exception(Option<Arc<str>>),
    Terminated,
    Inferred,
    /// It was not watched to its end.
    Unwatched,
}

/// A call that was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) probe: u32,
    /// On which stack: see [`Hit::goroutine`].
    pub(super) goroutine: u32,
    pub(super) depth: u32,
    pub(super) sp: u64,
    pub(super) began: u64,
    pub(super) self_ns: u64,
    /// A return was pending in the kernel.
    pub(super) pending: bool,
    pub(super) how: How,
}

/// An exception under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) kind: Option<Arc<str>>,
    /// What threw it.
    pub(super) probe: u32,
    /// Where it was thrown, or went on from.
    pub(super) sp: u64,
    /// It is none: the thread is to end, and what it leaves ends with it.
    pub(super) ends: bool,
    /// Number of the throw, in one row with entries.
    pub(super) sequence: u64,
}

/// What is known besides the stack itself when something happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    pub(super) at: u64,
    /// How often records have been lost.
    pub(super) losses: u32,
    /// A longjmp was called just before.
    pub(super) jumped: bool,
    /// The process switches between stacks: a stack pointer alone proves nothing.
    pub(super) switches: bool,
    pub(super) flights: &'a [Flight],
}

impl Around<'_> {
    /// The exception that would leave this call.
    fn flight(&self, open: &Open) -> Option<&Flight> {
        let flights = self.flights.iter().rev();
        flights
            .into_iter()
            .find(|flight| open.sequence < flight.sequence)
    }

    /// Whether it is known why the exit of this call was not seen.
    pub(super) fn explains(&self, open: &Open) -> bool {
        self.jumped
            || open.unreported
            || open.unwatched
            || open.losses != self.losses
            || self.flight(open).is_some()
    }
}

/// Whether calls are left whose return address lies where something happens now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Same {
    /// They go on.
    Kept,
    /// A function was entered there, with this return address: by a tail call out of them, or
    /// after they were left unseen.
    Entered(u64),
    /// A function leaves from there whose entry was not seen.
    Exited,
    /// They are gone.
    Gone,
}

/// One stack.
#[derive(Debug)]
pub(super) struct Stack {
    /// Whose it is: see [`Hit::goroutine`].
    goroutine: u32,
    open: Vec<Open>,
    /// Lowest and highest address that was seen on it.
    pub(super) low: u64,
    pub(super) high: u64,
    /// Calls told as a whole, latest last: when they began and how long they took.
    wholes: Vec<(u64, u64)>,
}

impl Stack {
    /// A stack of a thread of which one address is known.
    pub(super) fn at(sp: u64) -> Stack {
        Stack::of(0, sp)
    }

    /// The same of a goroutine.
    pub(super) fn of(goroutine: u32, sp: u64) -> Stack {
        Stack {
            goroutine,
            open: Vec::new(),
            low: sp,
            high: sp,
            wholes: Vec::new(),
        }
    }

    /// Open calls, outermost first.
    pub(super) fn open(&self) -> &[Open] {
        &self.open
    }

    /// Whether calls are kept that were told as a whole.
    pub(super) fn has_wholes(&self) -> bool {
        !self.wholes.is_empty()
    }

    /// Whether the address lies between those that were seen.
    #[inline]
    pub(super) fn holds(&self, sp: u64) -> bool {
        self.low <= sp && sp <= self.high
    }

    /// Notes an address.
    pub(super) fn extend(&mut self, sp: u64) {
        (self.low, self.high) = (self.low.min(sp), self.high.max(sp));
    }

    /// How many calls enclose what happens now.
    pub(super) fn depth(&self) -> u32 {
        self.open
            .last()
            .map_or(0, |open| open.depth.saturating_add(1))
    }

    /// Opens a call; its depth, or none if there is no room.
    #[inline]
    pub(super) fn enter(
        &mut self,
        hit: &Hit,
        sequence: u64,
        losses: u32,
        unreported: bool,
    ) -> Option<u32> {
        if self.open.len() >= MAX_DEPTH {
            return None;
        }
        let depth = self.depth();
        self.open.push(Open {
            probe: hit.probe,
            depth,
            sp: hit.sp,
            began: hit.at,
            children_ns: 0,
            caller: hit.caller,
            sequence,
            losses,
            uretprobe: hit.uretprobe,
            unreported,
            unwatched: hit.unwatched,
            over: hit.over,
        });
        Some(depth)
    }

    /// Exits of a function are not watched any more.
    pub(super) fn unwatch(&mut self, probe: u32) {
        for open in self.open.iter_mut().filter(|open| open.probe == probe) {
            open.unwatched = true;
        }
    }

    /// A function is not watched any more from now on: its calls are taken off, those with other calls in them as
    /// soon as these have ended.
    pub(super) fn give_up(&mut self, probe: u32, at: u64, out: &mut Vec<Left>) {
        for open in self.open.iter_mut().filter(|open| open.probe == probe) {
            (open.unwatched, open.over) = (true, true);
        }
        self.take_off(at, out);
    }

    /// Takes off what is not watched any more and has nothing in it.
    #[inline]
    pub(super) fn take_off(&mut self, at: u64, out: &mut Vec<Left>) {
        while self.open.last().is_some_and(|open| open.over) {
            out.extend(self.pop(at, How::Unwatched));
        }
    }

    /// Index of the call that an exit ends: the innermost of this function at this place.
    #[inline]
    pub(super) fn find(&self, probe: u32, sp: u64) -> Option<usize> {
        let is_it = |open: &Open| open.sp == sp && open.probe == probe;
        if self.open.last().is_some_and(is_it) {
            return Some(self.open.len() - 1);
        }
        let first = self.open.partition_point(|open| open.sp > sp);
        let behind = first + self.open[first..].partition_point(|open| open.sp == sp);
        Some(first + self.open[first..behind].iter().rposition(is_it)?)
    }

    /// Leaves all calls that are gone when something happens at `sp`. Gives back what can't be on
    /// this stack, if anything.
    #[inline]
    pub(super) fn leave_below(
        &mut self,
        sp: u64,
        same: Same,
        around: &Around<'_>,
        out: &mut Vec<Left>,
    ) -> Option<Stack> {
        let mut first = self.open.len();
        while let Some(open) = first.checked_sub(1).map(|index| &self.open[index])
            && (open.sp < sp || open.sp == sp && is_gone(open, same, around))
        {
            first -= 1;
        }
        if first == self.open.len() {
            return None;
        }
        self.leave_from(first, sp, around, out)
    }

    /// Leaves the calls from an index on, innermost first, because something happens at `sp`. Where
    /// the process switches stacks and nothing explains that their exits were not seen, they are on
    /// another stack, unless they are too near for that; those are given back.
    pub(super) fn leave_from(
        &mut self,
        first: usize,
        sp: u64,
        around: &Around<'_>,
        out: &mut Vec<Left>,
    ) -> Option<Stack> {
        let mut other = None;
        if around.switches {
            let mut edge = sp;
            let proven = self.open[first..].iter().take_while(|open| {
                let near = edge.saturating_sub(open.sp) <= PROVEN_BYTES;
                let left = near || around.explains(open);
                if left {
                    edge = open.sp;
                }
                left
            });
            let cut = first + proven.count();
            let moved = self.open.split_off(cut);
            if let (Some(outer), Some(inner)) = (moved.first(), moved.last()) {
                self.low = edge;
                let mut stack = Stack::at(inner.sp);
                stack.extend(outer.sp);
                stack.open = moved;
                other = Some(stack);
            }
        }
        while self.open.len() > first {
            let last = self.open.last();
            let how = match last.and_then(|open| around.flight(open)) {
                _ if last.is_some_and(|open| open.unwatched) => How::Unwatched,
                Some(flight) if flight.ends => How::Terminated,
                Some(flight) => How::Exception(flight.kind.clone()),
                None => How::Inferred,
            };
            out.extend(self.pop(around.at, how));
        }
        other
    }

    /// Ends the innermost call.
    #[inline]
    pub(super) fn pop(&mut self, at: u64, how: How) -> Option<Left> {
        let open = self.open.pop()?;
        let duration = at.saturating_sub(open.began);
        if let Some(caller) = self.open.last_mut() {
            caller.children_ns = caller.children_ns.saturating_add(duration);
        }
        Some(Left {
            probe: open.probe,
            goroutine: self.goroutine,
            depth: open.depth,
            sp: open.sp,
            began: open.began,
            self_ns: duration.saturating_sub(open.children_ns),
            pending: open.is_pending(),
            how,
        })
    }

    /// Ends all calls, innermost first.
    pub(super) fn end(&mut self, at: u64, how: &How, out: &mut Vec<Left>) {
        while let Some(open) = self.open.last() {
            let how = match open.unwatched {
                true => How::Unwatched,
                false => how.clone(),
            };
            out.extend(self.pop(at, how));
        }
    }

    /// A call that is told when it is over. The time it spent itself: less that of the calls in it
    /// which were told before.
    pub(super) fn whole(&mut self, began: u64, at: u64) -> u64 {
        let mut inner_ns: u64 = 0;
        while let Some(&(inner, duration)) = self.wholes.last()
            && inner >= began
        {
            self.wholes.pop();
            inner_ns = inner_ns.saturating_add(duration);
        }
        if self.wholes.len() >= MAX_WHOLES {
            self.wholes.drain(..MAX_WHOLES / 2);
        }
        let duration = at.saturating_sub(began);
        self.wholes.push((began, duration));
        let self_ns = duration.saturating_sub(inner_ns);
        if let Some(caller) = self.open.last_mut() {
            // Those in it have been added before.
            caller.children_ns = caller.children_ns.saturating_add(self_ns);
        }
        self_ns
    }
}

/// Whether a call has been left whose return address lies where something happens.
fn is_gone(open: &Open, same: Same, around: &Around<'_>) -> bool {
    match same {
        Same::Kept => false,
        Same::Gone => true,
        // By a probe at its exits the tail call would have been seen as one.
        Same::Exited => !open.uretprobe,
        Same::Entered(_) if !open.uretprobe => true,
        Same::Entered(_) if open.unreported || around.jumped => true,
        Same::Entered(_) if around.flight(open).is_some() => true,
        Same::Entered(0) => open.losses != around.losses,
        Same::Entered(caller) => !is_trampoline(caller),
    }
}

/// Whether a return address is the kernel's trampoline: the beginning of a page, which code that
/// was called from is at one place in 4096.
fn is_trampoline(address: u64) -> bool {
    address.is_multiple_of(4096)
}
