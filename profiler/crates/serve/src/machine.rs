//! What servers ask about processes that run, beyond what a session tells: the machine's own answers.
//!
//! A trait, since servers know neither /proc nor how a process is stopped. Times are nanoseconds,
//! sizes bytes. A process is named by its id and its start, so that one which has got the id of
//! another is not taken for it. What does not belong here: who may ask (`admission`).

use profiler_model::{Pid, Tid, Timestamp};

/// One life of a process, as the session knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// Its id.
    pub pid: Pid,
    /// When it began, as exact as the kernel's account of it (10 ms).
    pub started: Timestamp,
}

/// What a thread or process does now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The kernel's letter for its state: R, S, D, T, t, Z, X, I.
    pub state: char,
    /// Its parent.
    pub parent: Pid,
    /// Process group, session and terminal's foreground group.
    pub group: i64,
    /// Session.
    pub session: i64,
    /// Terminal, as a device number.
    pub terminal: i64,
    /// CPU time in user mode.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// Priority and nice value.
    pub priority: i64,
    /// Nice value.
    pub nice: i64,
    /// Virtual memory.
    pub virtual_bytes: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Threads of the process.
    pub threads: u64,
    /// Processor it ran on last.
    pub processor: u32,
    /// User ids: real, effective.
    pub uids: (u32, u32),
    /// Group ids: real, effective.
    pub gids: (u32, u32),
    /// Name of the real user, if it has one.
    pub user: Option<String>,
    /// Working directory, root and executable, where they can be read.
    pub directory: Option<String>,
    /// Root directory.
    pub root: Option<String>,
    /// Executable.
    pub executable: Option<String>,
}

/// A piece of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// May be read.
    pub readable: bool,
    /// May be written.
    pub writable: bool,
    /// May be executed.
    pub executable: bool,
    /// Offset in the file.
    pub offset: u64,
    /// The file, or what the kernel calls it (`[heap]`); empty if it is anonymous.
    pub path: String,
}

/// What is to be done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Stop all its threads.
    Stop,
    /// Let it go on.
    Continue,
    /// End it, in the way that it can handle.
    Terminate,
    /// Send it a signal.
    Signal(i32),
}

/// Why something can't be told or done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// It has ended.
    #[error("it has ended")]
    Ended,
    /// There is nothing to ask: a capture is shown.
    #[error("this is a recording: there is no process to ask")]
    Recording,
    /// The kernel says no.
    #[error("{0}")]
    System(String),
}

/// What the machine itself says of processes. Every call answers at once.
pub trait Machine: Send {
    /// What a process does now.
    fn status(&self, process: Life) -> Result<Status, MachineError>;
    /// What a thread of a process does now.
    fn thread_status(&self, process: Life, thread: Tid) -> Result<Status, MachineError>;
    /// Its arguments.
    fn command_line(&self, process: Life) -> Result<Vec<String>, MachineError>;
    /// Its environment: `NAME=value`.
    fn environment(&self, process: Life) -> Result<Vec<String>, MachineError>;
    /// Its memory, ordered by address.
    fn memory_map(&self, process: Life) -> Result<Vec<Region>, MachineError>;
    /// Its real user id.
    fn owner(&self, process: Life) -> Result<u32, MachineError>;
    /// Does something to it.
    fn control(&self, process: Life, control: Control) -> Result<(), MachineError>;
}

/// Of a recording nothing can be asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMachine;

impl Machine for NoMachine {
    fn status(&self, _: Life) -> Result<Status, MachineError> {
        Err(MachineError::Recording)
    }

    fn thread_status(&self, _: Life, _: Tid) -> Result<Status, MachineError> {
        Err(MachineError::Recording)
    }

    fn command_line(&self, _: Life) -> Result<Vec<String>, MachineError> {
        Err(MachineError::Recording)
    }

    fn environment(&self, _: Life) -> Result<Vec<String>, MachineError> {
        Err(MachineError::Recording)
    }

    fn memory_map(&self, _: Life) -> Result<Vec<Region>, MachineError> {
        Err(MachineError::Recording)
    }

    fn owner(&self, _: Life) -> Result<u32, MachineError> {
        Err(MachineError::Recording)
    }

    fn control(&self, _: Life, _: Control) -> Result<(), MachineError> {
        Err(MachineError::Recording)
    }
}
