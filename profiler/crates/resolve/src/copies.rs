//! One budget for the copies of targets' files that there are at one time, whoever made them.
//!
//! Bytes -> room for them, given back when it is dropped. Where copies lie in memory (a folder for them that is a file
//! system of memory, or none at all) the budget is a part of the machine's memory. Where the folders are full, copies are
//! made in memory as long as all of them fit into that part.
//!
//! What does not belong here: what is copied (`material`, `helper::opener`).

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, StatVfs};

/// All of them.
const MOST: u64 = 4 << 30;
/// In memory they may have one part in so many of it.
const PART_OF_MEMORY: u64 = 8;
/// Folders for them: on disk rather than in memory.
pub(crate) const SCRATCH: [&str; 2] = ["/var/tmp", "/tmp"];

const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

static COPIES: Budget = Budget {
    most: OnceLock::new(),
    taken: AtomicU64::new(0),
};

#[derive(Debug)]
struct Budget {
    most: OnceLock<u64>,
    taken: AtomicU64,
}

/// Room for a copy.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: u64,
    of: &'static Budget,
}

impl Room {
    /// Room for a copy of so many bytes; none if there is no more.
    pub(crate) fn take(bytes: u64) -> Option<Room> {
        COPIES.take(bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How much room is left.
pub(crate) fn left() -> u64 {
    COPIES.left()
}

/// Whether all copies that there is room for now, wherever they are, could be in memory.
pub(crate) fn fit_into_memory() -> bool {
    COPIES.taken.load(Ordering::Relaxed) <= budget(true, memory())
}

impl Budget {
    fn most(&self) -> u64 {
        *self.most.get_or_init(|| {
            let in_memory = unnamed(0).is_none_or(|file| {
                rustix::fs::fstatfs(&file).is_ok_and(|of| matches!(of.f_type, TMPFS | RAMFS))
            });
            budget(in_memory, memory())
        })
    }

    fn left(&self) -> u64 {
        let taken = self.taken.load(Ordering::Relaxed);
        self.most().saturating_sub(taken)
    }

    fn take(&'static self, bytes: u64) -> Option<Room> {
        let add = |taken: u64| {
            let sum = taken.checked_add(bytes)?;
            (sum <= self.most()).then_some(sum)
        };
        let ordering = Ordering::Relaxed;
        let taken = self.taken.fetch_update(ordering, ordering, add);
        taken.ok().map(|_| Room { bytes, of: self })
    }
}

/// A file without a name, in the first folder that takes one and has so much room; none if none does.
pub(crate) fn unnamed(bytes: u64) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let made = |folder: &str| rustix::fs::openat(CWD, folder, flags, mode).ok();
    let mut files = SCRATCH.iter().filter_map(|folder| made(folder));
    files.find(|file| has_room(file, bytes))
}

/// Whether a file's disk has room for so many bytes more: what is only for root there counts as taken.
fn has_room(file: &OwnedFd, bytes: u64) -> bool {
    let free = |disk: StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize);
    rustix::fs::fstatvfs(file).is_ok_and(|disk| free(disk) >= bytes)
}

/// Of the machine, in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

fn budget(in_memory: bool, memory: u64) -> u64 {
    match in_memory {
        true => MOST.min(memory / PART_OF_MEMORY),
        false => MOST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_memory_have_a_part_of_it() {
        assert_eq!(budget(true, 8 << 30), 1 << 30);
        assert_eq!(budget(true, 1 << 40), MOST);
        assert_eq!(budget(false, 1 << 30), MOST);
    }

    #[test]
    fn room_is_given_back() {
        static BUDGET: Budget = Budget {
            most: OnceLock::new(),
            taken: AtomicU64::new(0),
        };
        let most = BUDGET.most();
        let half = BUDGET.take(most / 2);
        assert_eq!(BUDGET.left(), most - most / 2);
        assert!(BUDGET.take(most / 2 + 2).is_none() && BUDGET.take(u64::MAX).is_none());
        drop(half);
        assert!(BUDGET.take(most / 2 + 2).is_some());
        assert_eq!(BUDGET.left(), most);
    }
}
