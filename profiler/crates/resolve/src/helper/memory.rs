//! The memory of processes, read by a process that can be left alone with it.
//!
//! An open `/proc/PID/mem`, a place and a length -> bytes. What a process has mapped may be a file of a server
//! that never answers, and whoever reads such memory waits in the kernel for as long as that server wishes,
//! deaf to signals: so another process does it (`client`). What takes too long is abandoned, that memory is
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

use super::client::{Client, Death, Limits};
use profiler_model::Pid;

/// How long an answer may take: it is there at once, unless nobody gets a processor.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many processes of one user may fail to answer.
const MAX_SILENT: u32 = 3;

/// Who reads, and how many processes of each user have not answered.
static READER: Mutex<Option<(Client, FxHashMap<u32, u32>)>> = Mutex::new(None);

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct Memory {
    pid: Pid,
    file: File,
    owner: u32,
    is_silent: AtomicBool,
}

impl Memory {
    /// Opens it. It stays that of the program that the process runs now, whatever it runs later.
    pub(crate) fn open(pid: Pid) -> io::Result<Memory> {
        let file = File::open(format!("/proc/{pid}/mem"))?;
        let owner = rustix::fs::stat(format!("/proc/{pid}"))?.st_uid;
        Ok(Memory {
            pid,
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
            reader.get_or_insert_with(|| (Client::new(Limits::default()), FxHashMap::default()));
        if silent.get(&self.owner).copied().unwrap_or(0) >= MAX_SILENT {
            return None;
        }
        let until = Instant::now() + PATIENCE;
        match client.read(self.file.as_fd(), address, len, until) {
            Ok(bytes) => (!bytes.is_empty()).then_some(bytes),
            Err(death) => {
                if death == Death::TooSlow {
                    log::warn!(
                        "the memory of process {} does not answer: what it runs there has no names",
                        self.pid
                    );
                    *silent.entry(self.owner).or_default() += 1;
                }
                self.is_silent.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}
