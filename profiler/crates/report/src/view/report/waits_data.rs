//! Waits as data: what the text shows and what JSON holds, under stable names.
//!
//! Times are nanoseconds. What is counted of samples is an estimate where waits were too many to
//! record each: a sample then stands for several. `exact` is the kernel's own count.

use profiler_model::{FrameKind, WaitState};
use serde::Serialize;

use super::data::CodeModule;

/// Waits of the selected threads.
#[derive(Clone, Debug, Serialize)]
pub struct WaitReport {
    /// All of them.
    pub all: WaitShare,
    /// What the kernel counted, if it did and the filters are such as it knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<ExactRow>,
    /// Runnable, but without a processor: each wait's part.
    pub run_queue: RunQueueRow,
    /// By why the threads did not run.
    pub states: Vec<WaitStateRow>,
    /// By the function that the program waited in.
    pub functions: Vec<WaitFunctionRow>,
    /// By thread.
    pub threads: Vec<WaitThreadRow>,
    /// Who ended the waits.
    pub wakers: Vec<WakerRow>,
}

/// Numbers of some waits.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct WaitShare {
    /// How many.
    pub waits: u64,
    /// How long.
    pub ns: u64,
    /// Part of all waits' time.
    pub percent: f64,
    /// On average.
    pub mean_ns: u64,
    /// The longest one.
    pub longest_ns: u64,
    /// Of `ns`: runnable, but without a processor.
    pub runnable_ns: u64,
    /// How many were recorded, one by one.
    pub recorded: u64,
}

/// How long threads stood in the run queue at the end of each wait.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RunQueueRow {
    /// How many waits.
    pub waits: u64,
    /// How long in all.
    pub ns: u64,
    /// On average.
    pub mean_ns: u64,
    /// Half of the waits did not exceed this.
    pub p50_ns: u64,
    /// 99 % did not exceed this.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What the kernel counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ExactRow {
    /// How many waits.
    pub waits: u64,
    /// How long they were.
    pub ns: u64,
    /// Preempted.
    pub preempted_ns: u64,
    /// Sleeping.
    pub sleeping_ns: u64,
    /// In wait for a disk, as a rule.
    pub disk_ns: u64,
    /// Stopped or traced.
    pub stopped_ns: u64,
    /// Of `ns`: runnable, but without a processor.
    pub runnable_ns: u64,
    /// Part of `ns` that was recorded one by one.
    pub recorded_percent: f64,
}

/// Waits for one reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitStateRow {
    /// Why it waited.
    pub state: WaitState,
    /// Numbers.
    #[serde(flatten)]
    pub share: WaitShare,
}

/// Waits in one function.
#[derive(Clone, Debug, Serialize)]
pub struct WaitFunctionRow {
    /// Name, or `module+0xaddress`; `[no stack]` if there is none.
    pub name: String,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Numbers.
    #[serde(flatten)]
    pub share: WaitShare,
    /// Time by why the thread did not run, the most first.
    pub states: Vec<StateTime>,
    /// Who ended the waits, the most time first.
    pub wakers: Vec<WakerRow>,
}

/// Time for one reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StateTime {
    /// Why it waited.
    pub state: WaitState,
    /// How long.
    pub ns: u64,
}

/// Who ended waits.
#[derive(Clone, Debug, Serialize)]
pub struct WakerRow {
    /// Name of its process; none: not a thread (an interrupt, a timer), or not known.
    pub process: Option<String>,
    /// Name of the thread.
    pub thread: Option<String>,
    /// Nobody: the waits went on when the recording ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
    /// How many waits it ended.
    pub waits: u64,
    /// How long these were.
    pub ns: u64,
    /// Part of all waits' time of the row.
    pub percent: f64,
}

/// Waits of a thread.
#[derive(Clone, Debug, Serialize)]
pub struct WaitThreadRow {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// Thread id.
    pub tid: u32,
    /// Name of the thread.
    pub thread: String,
    /// What the kernel counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<ExactRow>,
    /// Numbers from samples.
    #[serde(flatten)]
    pub share: WaitShare,
    /// The run queue.
    pub run_queue: RunQueueRow,
    /// Who ended the waits, the most time first.
    pub wakers: Vec<WakerRow>,
}
