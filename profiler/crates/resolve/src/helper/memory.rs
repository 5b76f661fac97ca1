//! The memory of processes, read by a process that can be left alone with it.
//!
//! An open `/proc/PID/pagemap`, a place and a length -> bytes. What a process has mapped may be a file of a server
//! that never answers, and whoever reads such memory waits in the kernel for as long as that server wishes,
//! deaf to signals: so another process does it (`client`, `pieces`). What takes too long is abandoned, that memory is
//! not looked at any more, and a user of the machine has few such processes before none of theirs is.
//!
//! What does not belong here: what is in there (`interpreters`).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::client::{Client, Death};
use crate::accounts::account_of;
use crate::warnings::warn_once;
use profiler_model::{Pid, Tid};

/// How long an answer may take: it is there at once, unless nobody gets a processor.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many processes of one user may fail to answer.
const MAX_SILENT: u32 = 3;

/// Who reads, and how many processes of each user have not answered.
static READER: Mutex<Option<(Client, FxHashMap<u32, u32>)>> = Mutex::new(None);

/// Starts the process that reads, without waiting until it has begun, while it can still get the right to: root's gets that
/// whenever it is started.
pub fn start_reading() {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    let (client, _) = reader.get_or_insert_with(|| (Client::that_reads(), FxHashMap::default()));
    if client.is_apart() {
        // Who needs it says that it could not be started.
        let _ = client.start_within(Duration::ZERO);
    }
}

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct Memory {
    pid: Pid,
    /// A thread that it is the memory of.
    tid: Tid,
    file: File,
    owner: u32,
    is_silent: AtomicBool,
}

impl Memory {
    /// Opens it. It stays that of the program that the process runs now, whatever it runs later.
    pub(crate) fn open(pid: Pid) -> io::Result<Memory> {
        Memory::below(pid, Tid(pid.0), &format!("/proc/{pid}"))
    }

    fn below(pid: Pid, tid: Tid, folder: &str) -> io::Result<Memory> {
        let file = File::open(format!("{folder}/pagemap"))?;
        let owner = account_of(rustix::fs::stat(folder)?.st_uid);
        Ok(Memory {
            pid,
            tid,
            file,
            owner,
            is_silent: AtomicBool::new(false),
        })
    }

    /// Reads what is there; as much of it as can be read.
    pub(crate) fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
        let (client, silent) =
            reader.get_or_insert_with(|| (Client::that_reads(), FxHashMap::default()));
        if silent.get(&self.owner).copied().unwrap_or(0) >= MAX_SILENT {
            return None;
        }
        // What it takes to start it is nobody's fault, and nobody's time.
        client.start_meanwhile().ok()?;
        let until = Instant::now() + PATIENCE;
        match client.read((self.file.as_fd(), self.tid), address, len, until) {
            Ok(Some(bytes)) => (!bytes.is_empty()).then_some(bytes),
            Ok(None) => {
                warn_once(
                    "what may not be read",
                    format_args!(
                        "the memory of process {} may not be read (CAP_SYS_PTRACE): what it runs there has no names",
                        self.pid
                    ),
                );
                self.is_silent.store(true, Ordering::Relaxed);
                None
            }
            Err(Death::TooSlow) => {
                warn_once(
                    "what does not answer",
                    format_args!(
                        "the memory of process {} does not answer: what it runs there has no names",
                        self.pid
                    ),
                );
                // Root's own processes may do worse than that, and a busy machine is slow with all of them.
                if self.owner != 0 {
                    *silent.entry(self.owner).or_default() += 1;
                }
                self.is_silent.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => None,
        }
    }
}

/// Memory of one thread after the other, of which that of the last one's process is kept open.
#[derive(Debug, Default)]
pub struct MemoryOfThreads(Option<(Pid, Option<Memory>)>);

impl MemoryOfThreads {
    /// What can be read of so many bytes at an address; perhaps nothing.
    pub fn read(&mut self, pid: Pid, tid: Tid, address: u64, len: usize) -> Vec<u8> {
        if self.0.as_ref().is_none_or(|(open, _)| *open != pid) {
            // Where the first thread has ended, the process's own folder has nothing.
            let memory = Memory::below(pid, tid, &format!("/proc/{pid}/task/{tid}"))
                .inspect_err(|error| log::debug!("the memory of process {pid}: {error}"));
            self.0 = Some((pid, memory.ok()));
        }
        let memory = self.0.as_ref().and_then(|(_, memory)| memory.as_ref());
        let bytes = memory.and_then(|memory| memory.read(address, len));
        bytes.unwrap_or_default()
    }
}
