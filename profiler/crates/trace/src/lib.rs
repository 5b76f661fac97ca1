//! What to trace and where: patterns -> functions of object files -> places for probes.
//!
//! Object files and patterns -> [`Plan`]s, one per function: file offsets for probes, what each
//! costs, how exits are seen, which values are fetched. All files are untrusted: bounded, no panic.
//! Costs are nanoseconds per hit.
//!
//! What does not belong here: attaching (`probe`), opening files (`resolve`), when to attach and to
//! detach (`pipeline`).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/choose_functions.rs")]
#![doc = "```"]

pub mod arguments;
pub mod code;
pub mod cost;
pub mod lines;
pub mod pattern;
pub mod place;
mod reason;
pub mod return_address;
pub mod safety;
mod system_calls;

use profiler_common::call::Fetch;

pub use profiler_object::{Function, FunctionKind, Language};

use profiler_model::Value;
use serde::{Deserialize, Serialize};

/// What the values of a traced function are, and how to read them out of a record.
pub trait CallValues: std::fmt::Debug {
    /// Its parameters: name and, if known, type.
    fn parameters(&self) -> Vec<(String, Option<String>)>;
    /// Type of its result, if known.
    fn result(&self) -> Option<String>;
    /// The items of a record (see [`profiler_common::call::ItemHead`]) as values: the arguments in
    /// the order of [`CallValues::parameters`], at an exit the result. Items are untrusted.
    fn decode(&self, items: &[u8], at_exit: bool) -> Vec<Value>;
}

/// What kind of instruction a probe sits on, which decides what a hit costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InstructionKind {
    /// A no-operation of 5 bytes, which newer kernels turn into a call.
    Nop5,
    /// Another no-operation.
    Nop,
    /// `push` of a register.
    Push,
    /// A jump to a fixed place.
    Jump,
    /// A conditional jump.
    ConditionalJump,
    /// A call of a fixed place.
    Call,
    /// Anything else: the kernel executes it out of line, step by step.
    Stepped,
}

/// A place for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// File offset.
    pub offset: u64,
    /// The instruction there.
    pub kind: InstructionKind,
    /// The function is left from there by a jump: its result is still to come.
    pub tail: bool,
    /// Of an exit, its line of source ([`lines`]); 0: not known.
    pub line: u32,
}

/// A jump of a function to its own beginning. The hit of its entry that follows is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfJump {
    /// The jump.
    pub site: Site,
    /// When it is taken.
    pub when: When,
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// Whenever it is reached.
    Always,
    /// If the processor's condition of this number holds (0 to 15, as in the jump's code).
    If(u8),
}

/// How a function's exits are seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exits {
    /// Not at all, and why.
    None(NoExits),
    /// By a return probe of the kernel at the entry's site.
    Uretprobe,
    /// By probes on every instruction that leaves the function. None if it never returns: exceptions
    /// and the ends of threads end its calls.
    Instructions(Vec<Site>),
}

/// Why the exits of a function can't be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoExits {
    /// It is a marker.
    Marker,
    /// Only entries were asked for.
    NotWanted,
    /// Its control flow can't be recovered: a jump to a computed place.
    ComputedJump,
    /// Its length is not known.
    UnknownSize,
    /// At one of its exits the stack pointer isn't provably back where it was at its entry.
    UnknownStack,
    /// A conditional jump leaves it: a probe there would also see those who stay.
    ConditionalExit,
    /// Its end is no end: execution runs on into other code.
    RunsOn,
    /// The kernel refuses a probe on one of its exits.
    Forbidden,
    /// Bytes that are no instructions.
    NotCode,
}

/// Why a function can't be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no code of its own: inlined everywhere it is used, or only declared.
    #[error("it has no code of its own")]
    NoCode,
    /// Its code is not in an executable part of the file.
    #[error("it is not in an executable part of the file")]
    NotExecutable,
    /// Bytes that are no instructions.
    #[error("its bytes are no instructions")]
    NotCode,
    /// An instruction on which the kernel refuses probes.
    #[error("the kernel allows no probe on its instructions")]
    Forbidden,
    /// It jumps to its own beginning, and no probe can tell these turns from calls.
    #[error("it jumps to its own beginning in a way that can't be told from calls")]
    Loop,
    /// The kernel would make a call of the instruction, and what lives below the stack pointer there
    /// would be written over.
    #[error(
        "this kernel turns its instruction into a call, which could write over what the program keeps \
         below its stack pointer"
    )]
    RedZone,
    /// Only a return probe was wanted, and none is shown to be safe.
    #[error("a return probe on it is not shown to be safe: {0}")]
    NoReturnProbe(&'static str),
}

/// How one function is to be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Which function.
    pub function: Function,
    /// Line of source of its first instruction ([`lines`]); 0: not known.
    pub line: u32,
    /// Where its entry is seen.
    pub entry: Site,
    /// How its exits are seen.
    pub exits: Exits,
    /// Why it has no return probe, where one was thought of.
    #[serde(deserialize_with = "reason::maybe")]
    pub no_return_probe: Option<reason::Reason>,
    /// What leads to its entry again without being a call.
    pub self_jumps: Vec<SelfJump>,
    /// What the target pays for each call.
    pub cost_ns: u32,
    /// What is fetched at its entry and exits; empty unless arguments were asked for.
    #[serde(with = "arguments::fetches")]
    pub fetches: Vec<Fetch>,
}
