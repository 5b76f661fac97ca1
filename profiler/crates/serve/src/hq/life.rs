//! The life of a run as its HQ leads it: an order -> the messages that carry it out.
//!
//! An agent knows few transitions, so that an order may take two messages: a run that is paused
//! goes on before it is suspended. What can't be ordered now is an error that says what can.
//!
//! Source: what Bytefrog's own collector sends (docs/formats/bytefrog.md).

use profiler_wire::bytefrog::HqMessage;

/// What a person asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The program may run.
    Start,
    /// The run is to end.
    Stop,
    /// The program is to stand still.
    Pause,
    /// It may go on.
    Unpause,
    /// It is not to be traced for a while; before the start: not from the start.
    Suspend,
    /// It is to be traced again.
    Unsuspend,
}

/// Where a run is, by what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for its start.
    Initializing {
        /// It will not be traced from the start.
        suspended: bool,
    },
    /// It is traced.
    Tracing,
    /// It stands still.
    Paused,
    /// It runs and is not traced.
    Suspended,
    /// It was told to stop, or says that it ends.
    Stopping,
}

/// An order that can't be given now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Nothing runs yet.
    #[error("it does not run yet: start comes first")]
    NotStarted,
    /// It runs.
    #[error("it was started already")]
    Started,
    /// It stands still.
    #[error("it is paused already: unpause lets it go on")]
    Paused,
    /// It does not stand still.
    #[error("it is not paused")]
    NotPaused,
    /// It is not traced.
    #[error("it is suspended already: unsuspend traces it again")]
    Suspended,
    /// It is traced.
    #[error("it is not suspended")]
    NotSuspended,
    /// It is over.
    #[error("it is ending: it takes no more orders")]
    Stopping,
}

/// Phase of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    phase: Phase,
}

impl Life {
    /// Before the start; `suspended` if tracing is to begin later than the program.
    pub fn new(suspended: bool) -> Life {
        Life {
            phase: Phase::Initializing { suspended },
        }
    }

    /// Where the run is.
    pub fn phase(self) -> Phase {
        self.phase
    }

    /// What to send to carry out `order`; it is taken as carried out.
    pub fn order(&mut self, order: Order) -> Result<Vec<HqMessage>, OrderError> {
        use HqMessage as M;
        use Phase::*;
        let (messages, phase) = match (self.phase, order) {
            (Stopping, _) => return Err(OrderError::Stopping),
            (Initializing { suspended: false }, Order::Start) => (vec![M::Start], Tracing),
            (Initializing { suspended: true }, Order::Start) => {
                (vec![M::Suspend, M::Start], Suspended)
            }
            (Initializing { suspended: false }, Order::Stop) => (vec![M::Start, M::Stop], Stopping),
            (Initializing { suspended: true }, Order::Stop) => {
                (vec![M::Suspend, M::Start, M::Stop], Stopping)
            }
            // The agent is told with the start.
            (Initializing { suspended: true }, Order::Suspend) => {
                return Err(OrderError::Suspended);
            }
            (Initializing { suspended: false }, Order::Unsuspend) => {
                return Err(OrderError::NotSuspended);
            }
            (Initializing { .. }, Order::Suspend) => (vec![], Initializing { suspended: true }),
            (Initializing { .. }, Order::Unsuspend) => (vec![], Initializing { suspended: false }),
            (Initializing { .. }, Order::Pause | Order::Unpause) => {
                return Err(OrderError::NotStarted);
            }
            (_, Order::Start) => return Err(OrderError::Started),
            (Tracing, Order::Stop) => (vec![M::Stop], Stopping),
            (Paused, Order::Stop) => (vec![M::Unpause, M::Stop], Stopping),
            (Suspended, Order::Stop) => (vec![M::Unsuspend, M::Stop], Stopping),
            (Tracing, Order::Pause) => (vec![M::Pause], Paused),
            (Suspended, Order::Pause) => (vec![M::Unsuspend, M::Pause], Paused),
            (Paused, Order::Pause) => return Err(OrderError::Paused),
            (Paused, Order::Unpause) => (vec![M::Unpause], Tracing),
            (_, Order::Unpause) => return Err(OrderError::NotPaused),
            (Tracing, Order::Suspend) => (vec![M::Suspend], Suspended),
            (Paused, Order::Suspend) => (vec![M::Unpause, M::Suspend], Suspended),
            (Suspended, Order::Suspend) => return Err(OrderError::Suspended),
            (Suspended, Order::Unsuspend) => (vec![M::Unsuspend], Tracing),
            (_, Order::Unsuspend) => return Err(OrderError::NotSuspended),
        };
        self.phase = phase;
        Ok(messages)
    }

    /// The agent says that it ends. It waits for a stop, whether it was told before or not.
    pub fn shutting_down(&mut self) -> HqMessage {
        self.phase = Phase::Stopping;
        HqMessage::Stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HqMessage as M;
    use Order::*;

    fn after(suspended: bool, orders: &[Order]) -> Life {
        let mut life = Life::new(suspended);
        for &order in orders {
            life.order(order).unwrap();
        }
        life
    }

    #[test]
    fn orders_are_carried_out_as_the_original_does() {
        let cases: [(bool, &[Order], Order, &[M]); 19] = [
            (false, &[], Start, &[M::Start]),
            (true, &[], Start, &[M::Suspend, M::Start]),
            (false, &[], Stop, &[M::Start, M::Stop]),
            (true, &[], Stop, &[M::Suspend, M::Start, M::Stop]),
            (false, &[], Suspend, &[]),
            (false, &[Suspend], Start, &[M::Suspend, M::Start]),
            (true, &[Unsuspend], Start, &[M::Start]),
            (false, &[Start], Pause, &[M::Pause]),
            (false, &[Start], Suspend, &[M::Suspend]),
            (false, &[Start], Stop, &[M::Stop]),
            (false, &[Start, Pause], Unpause, &[M::Unpause]),
            (false, &[Start, Pause], Suspend, &[M::Unpause, M::Suspend]),
            (false, &[Start, Pause], Stop, &[M::Unpause, M::Stop]),
            (false, &[Start, Suspend], Unsuspend, &[M::Unsuspend]),
            (false, &[Start, Suspend], Pause, &[M::Unsuspend, M::Pause]),
            (false, &[Start, Suspend], Stop, &[M::Unsuspend, M::Stop]),
            (true, &[Start], Unsuspend, &[M::Unsuspend]),
            (true, &[Start, Pause], Unpause, &[M::Unpause]),
            (false, &[Start, Pause, Unpause], Stop, &[M::Stop]),
        ];
        for (suspended, before, order, messages) in cases {
            let mut life = after(suspended, before);
            assert_eq!(life.order(order).unwrap(), messages, "{before:?} {order:?}");
        }
    }

    #[test]
    fn what_can_not_be_ordered_says_why_and_changes_nothing() {
        let cases: [(&[Order], Order, OrderError); 11] = [
            (&[], Pause, OrderError::NotStarted),
            (&[], Unpause, OrderError::NotStarted),
            (&[], Unsuspend, OrderError::NotSuspended),
            (&[Suspend], Suspend, OrderError::Suspended),
            (&[Start], Start, OrderError::Started),
            (&[Start], Unpause, OrderError::NotPaused),
            (&[Start], Unsuspend, OrderError::NotSuspended),
            (&[Start, Pause], Pause, OrderError::Paused),
            (&[Start, Pause], Unsuspend, OrderError::NotSuspended),
            (&[Start, Suspend], Suspend, OrderError::Suspended),
            (&[Stop], Stop, OrderError::Stopping),
        ];
        for (before, order, error) in cases {
            let mut life = after(false, before);
            let phase = life.phase();
            assert_eq!(life.order(order), Err(error), "{before:?} {order:?}");
            assert_eq!(life.phase(), phase);
        }
    }

    #[test]
    fn an_agent_that_ends_is_told_to_stop_once_more() {
        let mut life = after(false, &[Start, Stop]);
        assert_eq!(life.shutting_down(), M::Stop);
        assert_eq!(life.order(Start), Err(OrderError::Stopping));
    }
}
