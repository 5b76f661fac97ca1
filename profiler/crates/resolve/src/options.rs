//! What a [`super::Resolver`] is told, and what it tells of itself.
//!
//! What does not belong here: command line flags.

use std::path::PathBuf;
use std::time::Duration;

use super::process::GRACE_NS;
use profiler_model::{Session, Unit};
use profiler_target::cgroup::Hierarchy;

/// When an epoch ends and the next one starts.
#[derive(Clone, Copy, Debug)]
pub struct EpochLimits {
    /// After this much time of events.
    pub duration_ns: u64,
    /// After about this many bytes of capture.
    pub bytes: u64,
    /// After about this many bytes of memory for definitions.
    pub definition_bytes: u64,
}

impl Default for EpochLimits {
    fn default() -> Self {
        EpochLimits {
            duration_ns: 60_000_000_000,
            bytes: 64 << 20,
            definition_bytes: 16 << 20,
        }
    }
}

/// An event source, as it was attached; its index is that of the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// `cpu-clock`, ...
    pub name: String,
    /// Unit of the weights.
    pub unit: Unit,
    /// Samples per second asked for, if by frequency.
    pub frequency_hz: Option<u64>,
    /// Events per sample, if fixed.
    pub period: Option<u64>,
}

/// What a [`Resolver`] needs to know.
#[derive(Clone, Debug)]
pub struct ResolveOptions {
    /// The recording.
    pub session: Session,
    /// Its event sources.
    pub sources: Vec<SourceOptions>,
    /// Where separate debug files lie, in targets and on the host.
    pub debug_dirs: Vec<PathBuf>,
    /// Ask debuginfod servers (through `debuginfod-find`): their URLs separated by spaces, or
    /// nothing, for those that the environment names.
    pub debuginfod: Option<String>,
    /// Whether inlined functions are shown.
    pub inlines: bool,
    /// When epochs end.
    pub epoch_limits: EpochLimits,
    /// Whether the instructions of functions in which samples lie are kept.
    pub keep_code: bool,
    /// Whether all threads that live are announced, with a snapshot and in every epoch; else those
    /// that something happens to.
    pub threads: bool,
    /// The hierarchy that samples name cgroups of; none: processes have no containers.
    pub hierarchy: Option<Hierarchy>,
    /// How long what has ended is known, with its files open: for events that come late and for
    /// questions about it. At least 2 s.
    pub grace: Duration,
    /// User stacks are walked by tables, of which so much memory may be used here; none: they are not.
    pub tables_bytes: Option<u64>,
}

impl Default for ResolveOptions {
    fn default() -> Self {
        ResolveOptions {
            session: Session::default(),
            sources: Vec::new(),
            debug_dirs: vec!["/usr/lib/debug".into()],
            debuginfod: None,
            inlines: true,
            epoch_limits: EpochLimits::default(),
            keep_code: true,
            threads: false,
            hierarchy: None,
            grace: Duration::from_nanos(GRACE_NS),
            tables_bytes: None,
        }
    }
}

/// Why resolving can't start.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// No thread for symbols or tables.
    #[error(
        "failed to start a thread for symbols or unwind tables: {0}; is the limit of threads reached?"
    )]
    Thread(#[source] std::io::Error),
}

/// What happened on the way, to be shown with every output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolveCounters {
    /// Lives of processes seen.
    pub processes: u64,
    /// Processes known now.
    pub processes_now: u64,
    /// Samples.
    pub samples: u64,
    /// User and kernel stacks found in the cache.
    pub stacks_known: u64,
    /// User and kernel stacks resolved frame by frame.
    pub stacks_new: u64,
    /// Frames (of each epoch) that got a name.
    pub frames_named: u64,
    /// Frames outside of all mappings.
    pub frames_no_mapping: u64,
    /// Frames of files that could not be opened.
    pub frames_no_file: u64,
    /// Frames that no symbol covers.
    pub frames_no_symbol: u64,
    /// Frames of damaged files.
    pub frames_bad_file: u64,
    /// Frames for which there was too little time, or too much data.
    pub frames_gave_up: u64,
    /// Frames that still wait for a name.
    pub frames_waiting: u64,
    /// Mapped files that could not be opened when they were mapped.
    pub files_not_opened: u64,
    /// How often the symbolizer's queue was full; what did not fit was asked again.
    pub queue_full: u64,
    /// How often /proc was read again because process events were lost.
    pub rescans: u64,
    /// Entries of traced functions that are not shown, because too many calls were open.
    pub calls_too_deep: u64,
    /// User stacks that user space walked on from a copy.
    pub stacks_continued: u64,
    /// Of these, not to their end: a table was not there in time, or the copy was too short.
    pub stacks_without_table: u64,
    /// Of these, those that were longer than what is copied of one.
    pub stacks_copied_short: u64,
    /// User stacks that were cut because the kernel side had not been told yet what was mapped.
    pub stacks_outdated: u64,
    /// Epochs begun.
    pub epochs: u64,
    /// Whether the kernel hides its addresses, so that its functions have no names
    /// (`sysctl kernel.kptr_restrict=0`, or run as root).
    pub kernel_hidden: bool,
}
