//! One budget for the copies of targets' files that there are at one time, whoever made them.
//!
//! Bytes -> room for them, given back when it is dropped. Where copies lie in memory (a folder for them that is a file
//! system of memory, or none at all) the budget is a part of the machine's memory. Where the folders are full, copies are
//! made in memory as long as all of them fit into that part.
//!
//! What does not belong here: what is copied (`material`, `helper::opener`).

use std::os::fd::OwnedFd;
use std::path::Path;
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
pub(crate) fn has_room(file: &OwnedFd, bytes: u64) -> bool {
    let free = |disk: StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize);
    rustix::fs::fstatvfs(file).is_ok_and(|disk| free(disk) >= bytes)
}

/// Bytes that this process may have: of the machine, or of a cgroup that it is in.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit(&cgroups, Path::new("/sys/fs/cgroup")).map_or(machine, |limit| limit.min(machine))
}

/// The least of what the cgroups of `/proc/PID/cgroup`, and those above, may have; none if nothing is said below `mounted`.
fn limit(cgroups: &str, mounted: &Path) -> Option<u64> {
    let limits = cgroups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let path = Path::new(path.trim_start_matches('/'));
        let (folder, file) = match controllers {
            "" => (mounted.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|it| it == "memory") => {
                (mounted.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let said = path.ancestors().filter_map(|path| {
            let text = std::fs::read_to_string(folder.join(path).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        });
        said.min()
    });
    limits.min()
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
    fn the_least_limit_of_all_cgroups_counts() {
        let name = format!("profiler-limits-{}", std::process::id());
        let mounted = std::env::temp_dir().join(name);
        let write = |path: &str, text: &str| {
            let path = mounted.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a/memory.max", "4096000\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "8192\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let of = |cgroups| limit(cgroups, &mounted);
        assert_eq!(of("0::/a/b\n"), Some(4_096_000));
        assert_eq!(of("12:cpu,memory:/c/d\n0::/a/b\n"), Some(8192));
        assert_eq!(of("12:memory:/\n0::/\n"), Some(9_223_372_036_854_771_712));
        assert_eq!(of("1:name=systemd:/a\n0::/\nnonsense\n"), None);
        std::fs::remove_dir_all(&mounted).unwrap();
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
