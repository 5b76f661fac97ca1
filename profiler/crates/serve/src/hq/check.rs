//! What is wrong with a run, as the original collector sees it.
//!
//! Input: messages in the order of their ids. Exits must end the innermost call of their thread;
//! breaks clear all stacks. [`Faults`] counts what was wrong by kind and remembers the first.
//!
//! What does not belong here: what becomes of a run with faults (`run`).

use profiler_model::room::give_back;
use profiler_wire::bytefrog::{AgentMessage, DecodeError};

/// Something that the original collector would end the run for. Sequence ids are said as signed numbers, as they
/// are to it: behind 2147483647 comes -2147483648.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Ids that did not come while later ones did.
    #[error("incomplete data: sequence ids {} to {} did not come", *.from as i32, *.to as i32)]
    Incomplete {
        /// The first that is missing.
        from: u32,
        /// The last.
        to: u32,
    },
    /// An id came twice.
    #[error("incomplete data: sequence id {} came twice", *.0 as i32)]
    Duplicate(u32),
    /// A break at what was processed already or comes next.
    #[error("a data break at {} when {} is the next one", *.sequence as i32, *.next as i32)]
    LateBreak {
        /// Where it is said to be.
        sequence: u32,
        /// The next id.
        next: u32,
    },
    /// A break before one that is known.
    #[error("a data break at {} after one at {}", *.sequence as i32, *.last as i32)]
    BackwardBreak {
        /// Where it is said to be.
        sequence: u32,
        /// Where the one before is.
        last: u32,
    },
    /// A message on a connection where it does not belong.
    #[error("a {what} on a {channel} connection")]
    Misplaced {
        /// Kind of message.
        what: &'static str,
        /// Kind of connection.
        channel: &'static str,
    },
    /// Bytes that are no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An exit of a method that is not the innermost.
    #[error("thread {thread} left method {left} while in {innermost}")]
    Unbalanced {
        /// The thread.
        thread: u16,
        /// What it left.
        left: u32,
        /// What it was in.
        innermost: u32,
    },
    /// The end of a connection within a message.
    #[error("a {channel} connection ended within a message, {bytes} bytes into it")]
    CutOff {
        /// Kind of connection.
        channel: &'static str,
        /// How much of the message came.
        bytes: usize,
    },
    /// The end of the data without the agent having said that it ends.
    #[error("the data ended without a heartbeat that says so")]
    EndUnsaid,
}

impl Fault {
    /// Whether data are missing with it, or may be.
    pub fn loses_data(&self) -> bool {
        match self {
            Fault::Incomplete { .. } | Fault::Duplicate(_) => true,
            fault => fault.is_cut_off(),
        }
    }

    /// Whether the end of the data did not come.
    pub fn is_cut_off(&self) -> bool {
        match self {
            Fault::CutOff { channel, .. } => *channel == "data",
            Fault::EndUnsaid => true,
            _ => false,
        }
    }

    fn kind(&self) -> usize {
        match self {
            Fault::Incomplete { .. } => 0,
            Fault::Duplicate(_) => 1,
            Fault::LateBreak { .. } => 2,
            Fault::BackwardBreak { .. } => 3,
            Fault::Misplaced { .. } => 4,
            Fault::Decode(_) => 5,
            Fault::Unbalanced { .. } => 6,
            Fault::EndUnsaid => 7,
            Fault::CutOff { .. } => 8,
        }
    }
}

/// Faults of a run, the first of each kind and how many.
#[derive(Clone, Debug, Default)]
pub struct Faults([Option<(Fault, u64)>; 9]);

impl Faults {
    /// Counts one; whether it is the first of its kind.
    pub fn add(&mut self, fault: Fault) -> bool {
        match &mut self.0[fault.kind()] {
            Some((_, count)) => {
                *count += 1;
                false
            }
            empty => {
                *empty = Some((fault, 1));
                true
            }
        }
    }

    /// The first of each kind, and how many there were.
    pub fn iter(&self) -> impl Iterator<Item = (&Fault, u64)> {
        self.0
            .iter()
            .flatten()
            .map(|(fault, count)| (fault, *count))
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}

/// Most open calls that are checked; what is opened beyond them is not.
const MAX_OPEN: usize = 4 << 20;

/// Whether calls are nested.
#[derive(Debug, Default)]
pub struct Checker {
    threads: Vec<Stack>,
    open: usize,
    /// Places of all threads.
    room: usize,
    seen: u32,
}

#[derive(Clone, Debug, Default)]
struct Stack {
    methods: Vec<u32>,
    unchecked: u64,
    seen: bool,
}

impl Checker {
    /// Takes the next message.
    #[inline]
    pub fn check(&mut self, message: &AgentMessage<'_>) -> Option<Fault> {
        match *message {
            AgentMessage::MethodEntry { method, thread, .. } => {
                self.enter(thread, method);
                None
            }
            AgentMessage::MethodExit { method, thread, .. }
            | AgentMessage::ExceptionBubble { method, thread, .. } => self.leave(thread, method),
            _ => None,
        }
    }

    /// Threads that have called something.
    pub fn threads(&self) -> u32 {
        self.seen
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.room * size_of::<u32>() + self.threads.capacity() * size_of::<Stack>()
    }

    /// All calls are forgotten.
    pub fn break_data(&mut self) {
        for stack in &mut self.threads {
            stack.methods = Vec::new();
            stack.unchecked = 0;
        }
        (self.open, self.room) = (0, 0);
    }

    fn enter(&mut self, thread: u16, method: u32) {
        let index = usize::from(thread);
        if self.threads.len() <= index {
            self.threads.resize(index + 1, Stack::default());
        }
        let stack = &mut self.threads[index];
        self.seen += u32::from(!std::mem::replace(&mut stack.seen, true));
        if self.open >= MAX_OPEN || stack.unchecked > 0 {
            stack.unchecked += 1;
            return;
        }
        self.open += 1;
        let before = stack.methods.capacity();
        stack.methods.push(method);
        self.room += stack.methods.capacity() - before;
    }

    fn leave(&mut self, thread: u16, method: u32) -> Option<Fault> {
        let stack = self.threads.get_mut(usize::from(thread))?;
        if stack.unchecked > 0 {
            stack.unchecked -= 1;
            return None;
        }
        // An exit without any call is of one that began before the trace: it is ignored.
        let innermost = *stack.methods.last()?;
        if innermost != method {
            // So that one missing exit is one fault: the calls above are taken as left.
            if let Some(at) = stack
                .methods
                .iter()
                .rev()
                .take(1024)
                .position(|&m| m == method)
            {
                let keep = stack.methods.len() - at - 1;
                self.open -= at + 1;
                stack.methods.truncate(keep);
                self.room -= give_back(&mut stack.methods);
            }
            return Some(Fault::Unbalanced {
                thread,
                left: method,
                innermost,
            });
        }
        stack.methods.pop();
        self.open -= 1;
        self.room -= give_back(&mut stack.methods);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(method: u32, thread: u16) -> AgentMessage<'static> {
        AgentMessage::MethodEntry {
            at_ms: 0,
            sequence: 0,
            method,
            thread,
        }
    }

    fn exit(method: u32, thread: u16) -> AgentMessage<'static> {
        AgentMessage::MethodExit {
            at_ms: 0,
            sequence: 0,
            method,
            line: 0,
            thread,
        }
    }

    fn check(messages: &[AgentMessage<'_>]) -> Vec<Fault> {
        let mut checker = Checker::default();
        messages.iter().filter_map(|m| checker.check(m)).collect()
    }

    #[test]
    fn calls_are_nested_per_thread() {
        let balanced = [
            exit(9, 3),
            enter(1, 0),
            enter(2, 1),
            enter(2, 0),
            exit(2, 0),
            AgentMessage::ExceptionBubble {
                at_ms: 0,
                sequence: 0,
                method: 1,
                exception: 1,
                thread: 0,
            },
            exit(1, 0),
            exit(2, 1),
        ];
        assert_eq!(check(&balanced), []);
        let unbalanced = [enter(1, 0), enter(2, 0), exit(1, 0), exit(2, 0)];
        let fault = Fault::Unbalanced {
            thread: 0,
            left: 1,
            innermost: 2,
        };
        assert_eq!(check(&unbalanced), [fault]);
        let mut checker = Checker::default();
        for thread in [5, 5, 9] {
            checker.check(&enter(1, thread));
        }
        assert_eq!(checker.threads(), 2);
    }

    #[test]
    fn a_break_forgets_what_is_open() {
        let mut checker = Checker::default();
        checker.check(&enter(1, 0));
        checker.break_data();
        assert_eq!(checker.check(&exit(7, 0)), None);
        assert_eq!(checker.open, 0);
    }

    #[test]
    fn sequence_ids_are_said_as_the_collector_has_them() {
        let (sequence, next) = (0xFFFF_FFF9, 0x7FFF_FFFF);
        for (fault, said) in [
            (
                Fault::LateBreak { sequence, next },
                "a data break at -7 when 2147483647 is the next one",
            ),
            (
                Fault::BackwardBreak {
                    sequence,
                    last: 1 << 31,
                },
                "a data break at -7 after one at -2147483648",
            ),
            (
                Fault::Duplicate(sequence),
                "incomplete data: sequence id -7 came twice",
            ),
            (
                Fault::Incomplete {
                    from: next,
                    to: sequence,
                },
                "incomplete data: sequence ids 2147483647 to -7 did not come",
            ),
        ] {
            assert_eq!(fault.to_string(), said);
        }
    }

    #[test]
    fn faults_are_counted_by_kind() {
        let mut faults = Faults::default();
        assert!(faults.add(Fault::Duplicate(1)));
        assert!(!faults.add(Fault::Duplicate(2)));
        assert!(faults.add(Fault::EndUnsaid));
        let all: Vec<_> = faults.iter().collect();
        assert_eq!(all, [(&Fault::Duplicate(1), 2), (&Fault::EndUnsaid, 1)]);
        assert_eq!(faults.total(), 3);
    }
}
