//! The open calls of one thread, as an HQ has them: strictly nested, whatever is told.
//!
//! A call is known by its method and the time it began (nanoseconds). An exit of a call that is open
//! closes what lies above it first; any other exit closes nothing.

/// Most open calls of a thread; deeper ones are left out.
pub(super) const MAX_DEPTH: usize = 1 << 16;

/// Most calls that began at one time that are looked through for one that ends.
const MAX_LOOKED_AT: usize = 4096;

/// A call that an HQ knows to be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenCall {
    /// When it began, ns.
    pub(super) began_ns: u64,
    /// Its method's number.
    pub(super) method: u32,
}

/// What an exit closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closes {
    /// The innermost call.
    Top,
    /// The call at this index, and first all above it.
    From(usize),
    /// One that was left out when it was entered.
    LeftOut,
    /// Nothing: it is not open here.
    Nothing,
}

/// Open calls, outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct CallStack {
    calls: Vec<OpenCall>,
    /// Something above was left out and has not ended yet.
    left_out: Option<LeftOut>,
}

/// The outermost call that was left out, and those that began at the same time. What it calls is
/// left out as well.
#[derive(Clone, Copy, Debug)]
struct LeftOut {
    began_ns: u64,
    calls: u64,
}

impl CallStack {
    /// Number of open calls.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The innermost open call; none either if a call in it was left out.
    pub(super) fn innermost(&self) -> Option<OpenCall> {
        self.calls
            .last()
            .copied()
            .filter(|_| self.left_out.is_none())
    }

    /// Opens a call; false if there is no room for it.
    #[inline]
    pub(super) fn push(&mut self, call: OpenCall, has_room: bool) -> bool {
        if self.left_out.is_none() && has_room && self.calls.len() < MAX_DEPTH {
            self.calls.push(call);
            return true;
        }
        match &mut self.left_out {
            Some(first) => first.calls += u64::from(first.began_ns == call.began_ns),
            // On an empty stack nothing would end it if its own exit doesn't come.
            None if self.calls.is_empty() => {}
            None => {
                self.left_out = Some(LeftOut {
                    began_ns: call.began_ns,
                    calls: 1,
                });
            }
        }
        false
    }

    /// Closes the innermost call.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<OpenCall> {
        self.left_out = None;
        self.calls.pop()
    }

    /// Forgets all calls; how many they were.
    pub(super) fn clear(&mut self) -> usize {
        let open = self.calls.len();
        *self = CallStack::default();
        open
    }

    /// What the exit of a call closes. Calls that were left out lie above all others, so that their
    /// exits come first; they are told from others by the time at which they began.
    #[inline]
    pub(super) fn find(&mut self, call: OpenCall) -> Closes {
        match (&mut self.left_out, self.calls.last()) {
            (None, Some(top)) if *top == call => Closes::Top,
            (Some(first), _) if call.began_ns >= first.began_ns => {
                first.calls -= u64::from(call.began_ns == first.began_ns);
                if first.calls == 0 {
                    self.left_out = None;
                }
                Closes::LeftOut
            }
            _ => self.search(call),
        }
    }

    /// The same of an exit that another thread tells: nothing that was left out can be meant.
    pub(super) fn find_moved(&self, call: OpenCall) -> Option<usize> {
        match self.search(call) {
            Closes::From(index) => Some(index),
            _ => None,
        }
    }

    /// Calls lie in the order of their times, unless the recording breaks that rule; then one may
    /// not be found.
    fn search(&self, call: OpenCall) -> Closes {
        let end = self
            .calls
            .partition_point(|open| open.began_ns <= call.began_ns);
        let same_time = self.calls[..end]
            .iter()
            .rev()
            .take(MAX_LOOKED_AT)
            .take_while(|open| open.began_ns == call.began_ns);
        for (above, open) in same_time.enumerate() {
            if open.method == call.method {
                return Closes::From(end - 1 - above);
            }
        }
        Closes::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(began_ns: u64, method: u32) -> OpenCall {
        OpenCall { began_ns, method }
    }

    fn stack(calls: &[OpenCall]) -> CallStack {
        let mut stack = CallStack::default();
        for &call in calls {
            assert!(stack.push(call, true));
        }
        stack
    }

    #[test]
    fn an_exit_closes_its_own_call() {
        let mut stack = stack(&[call(1, 7), call(5, 8), call(5, 7), call(9, 7)]);
        for (ends, closes) in [
            (call(9, 7), Closes::Top),
            (call(5, 7), Closes::From(2)),
            (call(5, 8), Closes::From(1)),
            (call(1, 7), Closes::From(0)),
            (call(1, 8), Closes::Nothing),
            (call(4, 7), Closes::Nothing),
            (call(10, 7), Closes::Nothing),
        ] {
            assert_eq!(stack.find(ends), closes, "{ends:?}");
        }
    }

    #[test]
    fn exits_of_calls_left_out_close_nothing() {
        let mut stack = stack(&[call(1, 1), call(2, 2)]);
        // The second one began with the first that was left out.
        for began in [2, 3] {
            assert!(!stack.push(call(began, 2), false));
        }
        assert!(!stack.push(call(4, 3), true), "what it calls is deeper");
        assert_eq!(stack.innermost(), None);
        for began in [4, 3, 2] {
            assert_eq!(stack.find(call(began, 2)), Closes::LeftOut);
        }
        assert_eq!(stack.find(call(2, 2)), Closes::Top);
    }

    #[test]
    fn lost_exits_of_calls_left_out_do_no_harm() {
        let mut stack = stack(&[call(1, 1)]);
        assert!(!stack.push(call(2, 2), false));
        assert!(!stack.push(call(3, 3), true));
        assert_eq!(stack.find(call(2, 2)), Closes::LeftOut);
        assert!(stack.push(call(4, 4), true));
        let mut empty = CallStack::default();
        assert!(!empty.push(call(2, 2), false));
        assert!(empty.push(call(3, 3), true));
    }

    #[test]
    fn the_exit_of_an_outer_call_ends_those_left_out() {
        let mut stack = stack(&[call(1, 1), call(2, 2)]);
        assert!(!stack.push(call(3, 3), false));
        assert_eq!(stack.find(call(1, 1)), Closes::From(0));
        while stack.len() > 0 {
            stack.pop();
        }
        assert!(stack.push(call(4, 4), true));
    }

    #[test]
    fn is_not_deeper_than_its_limit() {
        let mut stack = CallStack::default();
        for depth in 0..MAX_DEPTH {
            assert!(stack.push(call(depth as u64, 1), true));
        }
        assert!(!stack.push(call(u64::MAX, 1), true));
        assert_eq!(stack.len(), MAX_DEPTH);
    }
}
