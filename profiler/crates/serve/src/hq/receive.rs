//! What takes the data of a run, and how a run is told of.

use std::net::SocketAddr;
use std::time::Duration;

use super::check::Faults;
use super::flow::Counts;
use super::life::Phase;
use profiler_wire::bytefrog::{AgentMessage, Mode};

/// Why data breaks. The message does not say it: what the agent was told to do, and what it says it does, do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakCause {
    /// It was suspended.
    Suspended,
    /// It had no room for what happened.
    Missing,
}

/// Takes the data of one run. Calls come from one thread at a time; one that takes its time holds
/// the agent up.
pub trait Receiver: Send {
    /// The first data connection is open: the agent's times count from about now.
    fn begin(&mut self) {}

    /// The next message. Those with sequence ids come in their order; names come as soon as they
    /// are known.
    fn message(&mut self, message: &AgentMessage<'_>);

    /// What is open is to be forgotten.
    fn data_break(&mut self, cause: BreakCause);

    /// So many messages before the next one never came.
    fn missing(&mut self, count: u64);

    /// A moment for what should not wait for more messages; some ten times a second.
    fn tick(&mut self) {}

    /// About how many bytes it keeps; what it takes to end at once is among it. Called often.
    fn bytes(&self) -> usize {
        0
    }

    /// The run is over. What is to be told of it goes to its remarks, in words; an error is why what
    /// was received is not kept whole.
    fn end(&mut self, report: &mut RunReport) -> Result<(), String> {
        let _ = report;
        Ok(())
    }
}

/// What came of the classes that an agent has told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Traced.
    pub transformed: u64,
    /// Left out, as asked.
    pub ignored: u64,
    /// Could not be traced.
    pub failed: u64,
}

/// A run that goes on.
#[derive(Clone, Debug)]
pub struct RunStatus {
    /// Its number.
    pub run: u8,
    /// The agent.
    pub peer: SocketAddr,
    /// Where it is, by its orders.
    pub phase: Phase,
    /// Where it is, by its own word.
    pub mode: Option<Mode>,
    /// Send buffers of the agent that are not empty, by its own word.
    pub filled: u16,
    /// Heartbeats are missing.
    pub unhealthy: bool,
    /// Data connections that are open.
    pub connections: usize,
    /// Since it was accepted.
    pub elapsed: Duration,
    /// What has come.
    pub counts: Counts,
    /// Faults so far.
    pub faults: u64,
    /// Classes so far.
    pub classes: Classes,
}

/// A run that is over.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Its number.
    pub run: u8,
    /// The agent.
    pub peer: SocketAddr,
    /// Why it did not end normally, if so.
    pub failure: Option<String>,
    /// What has come.
    pub counts: Counts,
    /// What was wrong with it.
    pub faults: Faults,
    /// What came of classes.
    pub classes: Classes,
    /// From acceptance to end.
    pub elapsed: Duration,
    /// What the receiver has to say.
    pub remarks: Vec<String>,
}

/// Something that happened to an HQ.
#[derive(Clone, Debug)]
pub enum HqEvent {
    /// A peer was turned away.
    Refused {
        /// Who.
        peer: SocketAddr,
        /// Why.
        reason: String,
    },
    /// An agent came, and has its configuration.
    Began {
        /// Number of its run.
        run: u8,
        /// Who.
        peer: SocketAddr,
    },
    /// Heartbeats are missing, or come again.
    Health {
        /// Number of the run.
        run: u8,
        /// Whether they come.
        healthy: bool,
    },
    /// A run is over.
    Ended(Box<RunReport>),
}
