//! Raw events: decoded kernel records, before processes and code are resolved.
//!
//! Addresses and kernel ids as the kernel gave them; stacks stay in the bytes they came in.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use profiler_common::{COMM_LEN, sched::WaitRecord, unwind::CopyHead};

use super::event::{GapReason, Lost, StackEnd};
use super::id::*;

/// Something the kernel told. Up to millions of these a second are sorted by time: they are kept
/// small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// When it happened.
    pub at: Timestamp,
    /// On which processor's buffer it came.
    pub cpu: Cpu,
    /// What happened.
    pub body: RawBody,
}

/// What the kernel told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawBody {
    /// A sample.
    Sample(Box<RawSample>),
    /// A probe of a traced function was hit.
    Call(RawCall),
    /// What the kernel counted of a probe since the last such event.
    CallCount(RawCallCount),
    /// Calls in this time are missing.
    Gap(RawGap),
    /// A thread or process was created (`pid == parent_pid` for a thread).
    Fork {
        /// Process of the new thread.
        pid: Pid,
        /// The new thread.
        tid: Tid,
        /// Process of its creator.
        parent_pid: Pid,
        /// Its creator.
        parent_tid: Tid,
    },
    /// A thread has a new name; with `exec` because its process runs a new program.
    Comm {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
        /// By exec.
        exec: bool,
        /// The name.
        comm: Comm,
    },
    /// Memory that can be executed was mapped.
    Mmap(Box<RawMmap>),
    /// A thread ended.
    Exit {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
    },
    /// Records are missing.
    Lost(Lost),
    /// A wait of a thread has ended.
    Wait(Box<RawWait>),
    /// Stacks of waits that follow.
    WaitStack(Box<RawWaitStack>),
    /// How long a thread waited.
    Waits(Box<RawWaits>),
    /// A cgroup was made, or removed.
    Cgroup(Box<RawCgroup>),
    /// A marker was set.
    Mark(Box<str>),
    /// The wall clock was read at this event's time.
    Clock {
        /// Nanoseconds since 1970.
        realtime_ns: u64,
    },
}

/// A thread's name as in the kernel, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Comm(pub [u8; COMM_LEN]);

impl Comm {
    /// The name without padding; invalid UTF-8 is replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        let len = self
            .0
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(COMM_LEN);
        String::from_utf8_lossy(&self.0[..len])
    }

    /// From text of any length, cut to what the kernel would keep.
    pub fn from_bytes(name: &[u8]) -> Comm {
        let mut comm = [0; COMM_LEN];
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let len = name.len().min(COMM_LEN - 1);
        comm[..len].copy_from_slice(&name[..len]);
        Comm(comm)
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Comm({:?})", self.text())
    }
}

/// A sample with addresses in place of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The thread's name at that time.
    pub comm: Comm,
    /// Its cgroup in the session's hierarchy; 0: not known.
    pub cgroup: u64,
    /// Whether it is still to be said if its cgroup is wanted.
    pub undecided: bool,
    /// The period, in the unit of the source.
    pub weight: u64,
    /// Index of the event source.
    pub source: u16,
    /// Kernel stack.
    pub kernel: RawStack,
    /// User stack.
    pub user: RawStack,
    /// Where the user stack goes on, if the kernel side could not walk it to its end.
    pub copy: Option<Box<RawCopy>>,
    /// Frames of an interpreter.
    pub interpreted: RawInterpreted,
}

/// Frames of an interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawInterpreted {
    /// Whose they are: see [`profiler_common::interpreter`].
    pub interpreter: u8,
    /// Leaf first, as its program in the kernel wrote them; empty if there are none.
    pub frames: Bytes,
}

impl RawSample {
    /// A sample of the first source, of weight 1, without stacks.
    pub fn new(pid: Pid, tid: Tid) -> RawSample {
        RawSample {
            pid,
            tid,
            comm: Comm::default(),
            cgroup: 0,
            undecided: false,
            weight: 1,
            source: 0,
            kernel: RawStack::NONE,
            user: RawStack::NONE,
            copy: None,
            interpreted: RawInterpreted::default(),
        }
    }
}

/// A piece of a stack, and the registers that its walk begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCopy {
    /// What the kernel side says of it.
    pub head: CopyHead,
    /// Memory from the stack pointer upwards.
    pub bytes: Bytes,
}

/// A wait that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawWait {
    /// What the kernel side says of it.
    pub record: WaitRecord,
    /// The cgroup of the thread; see [`RawSample::undecided`].
    pub undecided: bool,
    /// See [`super::event::Wait::open`].
    pub open: bool,
}

/// The stacks of waits that name them by a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawWaitStack {
    /// See [`profiler_common::sched::WaitStackHead::key`].
    pub key: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Kernel stack.
    pub kernel: RawStack,
    /// User stack.
    pub user: RawStack,
    /// See [`RawSample::copy`].
    pub copy: Option<Box<RawCopy>>,
    /// See [`RawSample::interpreted`].
    pub interpreted: RawInterpreted,
}

/// Totals of a thread's waits since the last such event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawWaits {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Its cgroup; see [`RawSample::cgroup`].
    pub cgroup: u64,
    /// See [`RawSample::undecided`].
    pub undecided: bool,
    /// Since when.
    pub from: Timestamp,
    /// See [`super::event::Waits::count`].
    pub count: [u64; 4],
    /// See [`super::event::Waits::ns`].
    pub ns: [u64; 4],
    /// See [`super::event::Waits::runnable_ns`].
    pub runnable_ns: u64,
}

/// A cgroup of the session's hierarchy that was made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCgroup {
    /// Its id.
    pub id: u64,
    /// Its path in its hierarchy; invalid UTF-8 is replaced.
    pub path: Box<str>,
    /// Whether it was removed.
    pub removed: bool,
    /// What the kernel side does with its samples.
    pub verdict: CgroupVerdict,
}

/// What the kernel side does with the samples of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CgroupVerdict {
    /// What it does with those of the cgroup above; without one, it leaves them out.
    Inherited,
    /// They are kept.
    Wanted,
    /// They are kept and marked, until it is decided.
    Undecided,
}

/// A hit of a probe. See [`profiler_common::call::CallHead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCall {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Index of the probe.
    pub probe: u32,
    /// Which of the function's exit sites it was, 1 to 63; 0: none, or not known.
    pub site: u8,
    /// What it was.
    pub edge: RawEdge,
    /// Records of this processor were lost before this one.
    pub after_loss: bool,
    /// 0: the thread's own stack; else a goroutine.
    pub stack: u32,
    /// Where the return address lies.
    pub sp: u64,
    /// The return address; 0 if the record does not have it.
    pub caller: u64,
    /// For [`RawEdge::Whole`]: when it was entered; else 0.
    pub began: Timestamp,
    /// Items of the values fetched, as the kernel side wrote them, without the words of the return address and of
    /// the time of entry, if there are any.
    pub values: Option<Items>,
}

impl RawCall {
    /// Items of the values fetched; empty if there are none.
    pub fn items(&self) -> &[u8] {
        self.values.as_ref().map_or(&[], Items::bytes)
    }
}

/// Items of one record, in memory that it shares with others ([`ItemStore`]).
#[derive(Clone)]
pub struct Items {
    chunk: Arc<OnceLock<Vec<u8>>>,
    at: u32,
    len: u32,
}

impl Items {
    /// As they were written; none before the store of theirs was closed.
    pub fn bytes(&self) -> &[u8] {
        let from = self.at as usize;
        let chunk = self.chunk.get();
        chunk
            .and_then(|bytes| bytes.get(from..from + self.len as usize))
            .unwrap_or_default()
    }
}

impl From<&[u8]> for Items {
    fn from(bytes: &[u8]) -> Items {
        let mut store = ItemStore::default();
        let items = store.add(bytes);
        store.close();
        items
    }
}

impl PartialEq for Items {
    fn eq(&self, other: &Items) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Items {}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Keeps the items of many records together: who traces an allocator and allocates for each of its calls traces that,
/// and pays for a probe of its own each time.
#[derive(Debug, Default)]
pub struct ItemStore {
    chunk: Arc<OnceLock<Vec<u8>>>,
    filling: Vec<u8>,
}

impl ItemStore {
    /// Memory of one chunk, which lives until its last record does.
    const CHUNK_BYTES: usize = 64 * 1024;

    /// Keeps a copy, which is there to be read when this is closed.
    pub fn add(&mut self, bytes: &[u8]) -> Items {
        if self.filling.len() + bytes.len() > Self::CHUNK_BYTES {
            self.close();
        }
        if self.filling.is_empty() {
            self.filling.reserve(Self::CHUNK_BYTES.max(bytes.len()));
        }
        let at = self.filling.len() as u32;
        self.filling.extend_from_slice(bytes);
        Items {
            chunk: Arc::clone(&self.chunk),
            at,
            len: bytes.len() as u32,
        }
    }

    /// What was added can be read from now on.
    pub fn close(&mut self) {
        if !self.filling.is_empty() {
            let chunk = std::mem::take(&mut self.chunk);
            // It was never set: each chunk is closed once.
            let _ = chunk.set(std::mem::take(&mut self.filling));
        }
    }
}

/// What a hit of a probe means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RawEdge {
    /// Entered; an exit follows.
    Enter,
    /// Left by returning or by a tail call.
    Exit,
    /// Passed; no exit is watched.
    Hit,
    /// An exception is thrown.
    Throw,
    /// An exception has landed.
    Land,
    /// A longjmp is called.
    Jump,
    /// Entered and left.
    Whole,
}

/// Counts of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCallCount {
    /// Index of the probe.
    pub probe: u32,
    /// Since when.
    pub from: Timestamp,
    /// Entries and hits.
    pub entries: u64,
    /// Exits.
    pub exits: u64,
    /// Records lost.
    pub lost: u64,
    /// Calls left out because of a limit.
    pub left_out: u64,
}

/// A time in which calls are missing; it ends at the event's time. One that is only beginning
/// ([`GapReason::Suspended`]) has no length yet, and is told again when it ends; so it is of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawGap {
    /// Since when.
    pub from: Timestamp,
    /// Index of the probe; none: all of the process.
    pub probe: Option<u32>,
    /// The process; none: all.
    pub pid: Option<Pid>,
    /// Why calls are missing.
    pub reason: GapReason,
}

/// Addresses of a stack, leaf first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// u64 in native byte order each; a shared slice of the drained buffer.
    pub bytes: Bytes,
    /// Why there are no more.
    pub end: StackEnd,
}

impl RawStack {
    /// A stack that does not exist or was not asked for.
    pub const NONE: RawStack = RawStack {
        bytes: Bytes::new(),
        end: StackEnd::NoStack,
    };

    /// The addresses, leaf first. The leaf is the instruction itself, callers are return addresses.
    pub fn addresses(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
        self.bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|chunk| u64::from_ne_bytes(*chunk))
    }
}

/// A mapping of executable memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawMmap {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Path as the process sees it (with ` (deleted)` as the kernel adds it), or a name in brackets
    /// or `//anon`.
    pub path: Box<[u8]>,
    /// Which file it is.
    pub file: FileIdentity,
}

/// What the kernel says to identify a mapped file. Its build id is read from the file itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number, major.
    pub major: u32,
    /// Device number, minor.
    pub minor: u32,
    /// Inode number; 0 if no file.
    pub inode: u64,
    /// Generation of the inode; 0 if not known.
    pub generation: u64,
}

const _: () = assert!(size_of::<RawEvent>() <= 80);
