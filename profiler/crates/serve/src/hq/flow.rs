//! The data of a run, from messages of any connection to a [`Receiver`] in the right order.
//!
//! Input: messages as connections bring them, breaks as the control connection tells them; output:
//! one ordered stream, and faults. Without I/O: who brings messages waits when told to.
//!
//! A strict run ends with its first fault, as under the original collector; otherwise faults are
//! counted, and the run goes on behind what is missing.

use std::collections::VecDeque;

use super::check::{Checker, Fault, Faults};
use super::merge::{MergeLimits, Merger, Offer};
use super::receive::{BreakCause, Receiver};
use profiler_wire::bytefrog::AgentMessage;

/// Most breaks that wait for their place in the data.
const MAX_BREAKS: usize = 1024;

/// What has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages of data connections.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Entries and exits.
    pub calls: u64,
    /// Threads that have called something.
    pub threads: u32,
    /// Breaks that the data went past.
    pub breaks: u64,
    /// Ids that never came.
    pub missing: u64,
}

/// What becomes of a message.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is passed on, waits in its place, or is dropped as faulty.
    Yes,
    /// It is too early by far: offer it again when there was progress.
    NotYet(u32, AgentMessage<'static>),
}

pub(super) struct Flow {
    merger: Merger<AgentMessage<'static>>,
    checker: Checker,
    receiver: Box<dyn Receiver>,
    breaks: VecDeque<(u32, BreakCause)>,
    last_break: Option<u32>,
    faults: Faults,
    counts: Counts,
    strict: bool,
    failed: Option<Fault>,
}

impl Flow {
    pub(super) fn new(limits: MergeLimits, strict: bool, receiver: Box<dyn Receiver>) -> Flow {
        Flow {
            merger: Merger::new(limits),
            checker: Checker::default(),
            receiver,
            breaks: VecDeque::new(),
            last_break: None,
            faults: Faults::default(),
            counts: Counts::default(),
            strict,
            failed: None,
        }
    }

    /// Takes a message of a data connection that came in so many bytes.
    #[inline]
    pub(super) fn take(&mut self, message: AgentMessage<'_>, bytes: usize) -> Taken {
        self.counts.messages += 1;
        self.counts.bytes += bytes as u64;
        match message.sequence() {
            Some(sequence) if self.merger.pass(sequence) => {
                self.deliver(sequence, &message);
                Taken::Yes
            }
            Some(sequence) => self.offer(sequence, message.into_owned()),
            None => {
                self.receiver.message(&message);
                Taken::Yes
            }
        }
    }

    /// Offers a message again.
    pub(super) fn offer(&mut self, sequence: u32, message: AgentMessage<'static>) -> Taken {
        let bytes = size_of::<AgentMessage<'static>>() + text_bytes(&message);
        match self.merger.offer(sequence, message, bytes) {
            Offer::Now(message) => self.deliver(sequence, &message),
            Offer::Waits => return Taken::Yes,
            Offer::Full(message) => return Taken::NotYet(sequence, message),
            Offer::Duplicate => self.fault(Fault::Duplicate(sequence)),
        }
        self.follow();
        Taken::Yes
    }

    /// A break that the control connection told.
    pub(super) fn data_break(&mut self, sequence: u32, cause: BreakCause) {
        let next = self.merger.next();
        if let Some(last) = self.last_break {
            if sequence == last {
                if self.strict {
                    // One that changes nothing; the original ends by it.
                    self.fault(Fault::BackwardBreak { sequence, last });
                }
                return;
            }
            if is_before(sequence, last) {
                self.fault(Fault::BackwardBreak { sequence, last });
                return;
            }
        }
        self.last_break = Some(sequence);
        // The original has processed up to the one before, and does not bear a break there.
        if is_before(sequence, next) || sequence == next {
            self.fault(Fault::LateBreak { sequence, next });
        }
        if is_before(sequence, next) || self.breaks.len() >= MAX_BREAKS {
            // Whatever is open may have begun before it.
            self.break_now(cause);
        } else {
            self.breaks.push_back((sequence, cause));
        }
    }

    /// Counts a fault; one of a strict run ends it.
    pub(super) fn fault(&mut self, fault: Fault) {
        if self.faults.add(fault.clone()) {
            log::debug!("fault: {fault}");
        }
        if self.strict {
            self.failed.get_or_insert(fault);
        }
    }

    /// Gives up what is missing before the first that waits, here or (`others`) outside; whether
    /// there was anything.
    pub(super) fn skip(&mut self, others: impl Iterator<Item = u32>) -> bool {
        let next = self.merger.next();
        let waiting = self.merger.first_waiting().into_iter().chain(others);
        let Some(first) = waiting.min_by_key(|id| id.wrapping_sub(next)) else {
            return false;
        };
        if first == next {
            return false;
        }
        self.fault(Fault::Incomplete {
            from: next,
            to: first.wrapping_sub(1),
        });
        let missing = u64::from(self.merger.skip_to(first));
        self.counts.missing += missing;
        self.checker.break_data();
        self.receiver.missing(missing);
        self.follow();
        true
    }

    /// Passes on what waits without hope, at the end of all data.
    pub(super) fn finish(&mut self) {
        while self.failed.is_none() && self.skip(std::iter::empty()) {}
    }

    pub(super) fn failed(&self) -> Option<&Fault> {
        self.failed.as_ref()
    }

    pub(super) fn next(&self) -> u32 {
        self.merger.next()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.merger.waiting() > 0
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            threads: self.checker.threads(),
            ..self.counts
        }
    }

    /// About how many bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let breaks = self.breaks.capacity() * size_of::<(u32, BreakCause)>();
        self.merger.bytes() + self.checker.bytes() + breaks + self.receiver.bytes()
    }

    pub(super) fn receiver(&mut self) -> &mut dyn Receiver {
        &mut *self.receiver
    }

    pub(super) fn into_receiver(self) -> Box<dyn Receiver> {
        self.receiver
    }

    fn follow(&mut self) {
        loop {
            let sequence = self.merger.next();
            match self.merger.pop() {
                Some(message) => self.deliver(sequence, &message),
                None => return,
            }
        }
    }

    #[inline]
    fn deliver(&mut self, sequence: u32, message: &AgentMessage<'_>) {
        if !self.breaks.is_empty() {
            self.reach(sequence, message);
        }
        if let Some(fault) = self.checker.check(message) {
            self.fault(fault);
        }
        if self.failed.is_some() {
            // The original keeps nothing of it; what came before the fault is kept here.
            return;
        }
        self.counts.calls += u64::from(!matches!(
            message,
            AgentMessage::Marker { .. } | AgentMessage::Exception { .. }
        ));
        self.receiver.message(message);
    }

    fn reach(&mut self, sequence: u32, message: &AgentMessage<'_>) {
        // The marker that announces a break's end has the id before the break: nothing that was
        // open is so any more.
        let at = match message {
            AgentMessage::Marker { .. } => sequence.wrapping_add(1),
            _ => sequence,
        };
        while let Some(&(there, cause)) = self.breaks.front()
            && !is_before(at, there)
        {
            self.breaks.pop_front();
            self.break_now(cause);
        }
    }

    fn break_now(&mut self, cause: BreakCause) {
        self.counts.breaks += 1;
        self.checker.break_data();
        self.receiver.data_break(cause);
    }
}

/// Ids wrap around: whether `a` comes before `b`.
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

fn text_bytes(message: &AgentMessage<'_>) -> usize {
    match message {
        AgentMessage::Marker { key, value, .. } => key.len() + value.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    impl Receiver for Told {
        fn message(&mut self, message: &AgentMessage<'_>) {
            let text = match message {
                AgentMessage::MethodEntry { sequence, .. } => format!("+{sequence}"),
                AgentMessage::MethodExit { sequence, .. } => format!("-{sequence}"),
                AgentMessage::Marker { sequence, .. } => format!("mark {sequence}"),
                _ => "map".to_owned(),
            };
            self.0.lock().unwrap().push(text);
        }

        fn data_break(&mut self, _: BreakCause) {
            self.0.lock().unwrap().push("break".to_owned());
        }

        fn missing(&mut self, count: u64) {
            self.0.lock().unwrap().push(format!("{count} missing"));
        }
    }

    fn flow(strict: bool) -> (Flow, Told) {
        let told = Told::default();
        let limits = MergeLimits {
            items: 8,
            bytes: 10_000,
        };
        (Flow::new(limits, strict, Box::new(told.clone())), told)
    }

    fn enter(sequence: u32) -> AgentMessage<'static> {
        AgentMessage::MethodEntry {
            at_ms: 0,
            sequence,
            method: 1,
            thread: 0,
        }
    }

    fn exit(sequence: u32, method: u32) -> AgentMessage<'static> {
        AgentMessage::MethodExit {
            at_ms: 0,
            sequence,
            method,
            line: 0,
            thread: 0,
        }
    }

    fn marker(sequence: u32) -> AgentMessage<'static> {
        AgentMessage::Marker {
            at_ms: 0,
            sequence,
            key: "resumed".into(),
            value: "".into(),
        }
    }

    fn lines(told: &Told) -> Vec<String> {
        std::mem::take(&mut told.0.lock().unwrap())
    }

    #[test]
    fn two_connections_become_one_stream() {
        let (mut flow, told) = flow(true);
        for sequence in [1, 2, 0, 3] {
            assert!(matches!(flow.take(enter(sequence), 15), Taken::Yes));
        }
        assert_eq!(lines(&told), ["+0", "+1", "+2", "+3"]);
        assert_eq!(flow.counts().calls, 4);
        assert_eq!(flow.counts().bytes, 60);
        assert!(flow.failed().is_none());
    }

    #[test]
    fn a_break_with_its_marker() {
        let (mut flow, told) = flow(true);
        flow.take(enter(0), 15);
        flow.data_break(2, BreakCause::Missing);
        flow.take(marker(1), 20);
        flow.take(enter(2), 15);
        assert_eq!(lines(&told), ["+0", "break", "mark 1", "+2"]);
        assert!(flow.failed().is_none());
        // Where the original would stumble: at the next one or before.
        flow.data_break(3, BreakCause::Missing);
        let late = Fault::LateBreak {
            sequence: 3,
            next: 3,
        };
        assert_eq!(flow.failed(), Some(&late));
    }

    #[test]
    fn a_break_that_is_told_twice_is_one() {
        for strict in [true, false] {
            let (mut flow, told) = flow(strict);
            flow.take(enter(0), 15);
            flow.data_break(2, BreakCause::Missing);
            flow.data_break(2, BreakCause::Missing);
            flow.take(marker(1), 20);
            flow.take(enter(2), 15);
            if !strict {
                assert_eq!(lines(&told), ["+0", "break", "mark 1", "+2"]);
            }
            // The original wants each behind the one before.
            let again = Fault::BackwardBreak {
                sequence: 2,
                last: 2,
            };
            assert_eq!(flow.failed(), strict.then_some(&again));
        }
    }

    #[test]
    fn late_breaks_are_borne() {
        let (mut flow, told) = flow(false);
        flow.take(enter(0), 15);
        flow.data_break(1, BreakCause::Missing);
        flow.take(exit(1, 9), 17);
        flow.take(enter(2), 15);
        flow.data_break(2, BreakCause::Missing);
        flow.data_break(1, BreakCause::Missing);
        assert_eq!(lines(&told), ["+0", "break", "-1", "+2", "break"]);
        assert_eq!(flow.faults().total(), 3);
        assert_eq!(flow.counts().breaks, 2);
    }

    #[test]
    fn what_is_missing_is_given_up() {
        let (mut flow, told) = flow(false);
        flow.take(enter(2), 15);
        flow.take(enter(2), 15);
        let far = flow.take(enter(100), 15);
        assert!(matches!(far, Taken::NotYet(100, _)));
        assert!(flow.skip([100].into_iter()));
        assert!(flow.skip([100].into_iter()));
        assert!(!flow.skip([100].into_iter()));
        flow.take(enter(100), 15);
        flow.finish();
        assert_eq!(lines(&told), ["2 missing", "+2", "97 missing", "+100"]);
        assert_eq!(flow.counts().missing, 99);
    }

    #[test]
    fn a_strict_run_ends_with_its_first_fault() {
        let (mut flow, told) = flow(true);
        flow.take(enter(0), 15);
        flow.take(exit(1, 2), 17);
        flow.take(enter(2), 15);
        assert!(matches!(flow.failed(), Some(Fault::Unbalanced { .. })));
        assert_eq!(lines(&told), ["+0"]);

        let (mut flow, _) = self::flow(true);
        flow.take(enter(1), 15);
        flow.finish();
        let fault = flow.failed().unwrap().to_string();
        assert_eq!(fault, "incomplete data: sequence ids 0 to 0 did not come");
    }
}
