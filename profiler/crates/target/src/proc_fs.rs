//! What /proc tells of processes and threads: how its files are read and taken apart, for all who ask it.
//!
//! An id -> bytes of a file, bounded; bytes of `stat` -> its fields by their numbers in the manual; bytes of `status`
//! -> the value behind a key. Times are ticks since the machine was started, as they stand there; [`tick_ns`] and
//! [`suspended_ns`] make nanoseconds of CLOCK_MONOTONIC of them. A process chooses its own name: it may hold
//! anything. Source: proc_pid_stat(5), proc_pid_status(5).
//!
//! What does not belong here: what is made of it, and mappings, which `resolve` alone reads.

use std::fs::File;
use std::io::Read;
use std::str::FromStr;

use profiler_model::{Pid, Tid};

/// Most bytes that are read of a file, but of those that are known to be long.
pub const MAX_BYTES: u64 = 64 << 10;

/// The beginning of a file.
pub fn read(path: &str, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// All processes there are.
pub fn processes() -> Vec<Pid> {
    numbers("/proc").map(Pid).collect()
}

/// The threads of a process.
pub fn threads(pid: Pid) -> Vec<Tid> {
    numbers(&format!("/proc/{pid}/task")).map(Tid).collect()
}

/// Names of entries of a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// `stat` of a process.
pub fn process_stat(pid: Pid) -> Option<Vec<u8>> {
    read(&format!("/proc/{pid}/stat"), MAX_BYTES)
}

/// `stat` of a thread.
pub fn thread_stat(pid: Pid, tid: Tid) -> Option<Vec<u8>> {
    read(&format!("/proc/{pid}/task/{tid}/stat"), MAX_BYTES)
}

/// Asks about the memory and files of a process, of which /proc says nothing at its first thread once that
/// has ended: then at another one that lives. `ask` gets the folder.
pub fn at_live_thread<T>(pid: Pid, mut ask: impl FnMut(&str) -> Option<T>) -> Option<T> {
    ask(&format!("/proc/{pid}")).or_else(|| {
        let first = process_stat(pid)?;
        if !Stat::parse(&first)?.is_over() {
            return None;
        }
        let lives = |tid: &Tid| {
            let stat = thread_stat(pid, *tid);
            stat.is_some_and(|stat| Stat::parse(&stat).is_some_and(|stat| !stat.is_over()))
        };
        let tid = threads(pid).into_iter().find(lives)?;
        ask(&format!("/proc/{pid}/task/{tid}"))
    })
}

/// `status` of a process or thread.
pub fn status(id: u32) -> Option<Vec<u8>> {
    read(&format!("/proc/{id}/status"), MAX_BYTES)
}

/// The process of a thread.
pub fn process_of(tid: Tid) -> Option<Pid> {
    value(&status(tid.0)?, "Tgid")?.parse().ok().map(Pid)
}

/// What a `status` says behind a key.
pub fn value<'a>(status: &'a [u8], key: &str) -> Option<&'a str> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b":"))?;
    Some(std::str::from_utf8(value).ok()?.trim())
}

/// A `stat`, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Stat<'a> {
    /// The name, as the process chose it.
    pub name: &'a [u8],
    /// What is behind it.
    rest: &'a str,
}

impl<'a> Stat<'a> {
    /// From the bytes of the file. The name may hold anything, closing parentheses and spaces included.
    pub fn parse(text: &'a [u8]) -> Option<Stat<'a>> {
        let open = text.iter().position(|&byte| byte == b'(')?;
        let close = text.iter().rposition(|&byte| byte == b')')?;
        Some(Stat {
            name: text.get(open + 1..close)?,
            rest: std::str::from_utf8(text.get(close + 1..)?).ok()?,
        })
    }

    /// A field by its number in the manual, which counts the id and the name as 1 and 2.
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        let mut fields = self.rest.split_ascii_whitespace();
        fields.nth(number.checked_sub(3)?)?.parse().ok()
    }

    /// What it does: `R` runs, `S` sleeps, `T` was stopped, ...
    pub fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// It has ended, and its parent has not asked yet how.
    pub fn is_over(&self) -> bool {
        matches!(self.state(), Some('Z' | 'X' | 'x'))
    }

    /// The process that started it, or took it over.
    pub fn parent(&self) -> Option<Pid> {
        self.field(4).map(Pid)
    }

    /// When it was started, in ticks since the machine was.
    pub fn started_ticks(&self) -> Option<u64> {
        self.field(22)
    }
}

/// CPU time that a process has used so far, in nanoseconds, as exact as the kernel's ticks (10 ms).
pub fn cpu_time_ns(pid: Pid) -> Option<u64> {
    let text = process_stat(pid)?;
    let stat = Stat::parse(&text)?;
    let (user, system): (u64, u64) = (stat.field(14)?, stat.field(15)?);
    Some(user.saturating_add(system).saturating_mul(tick_ns()))
}

/// Length of the ticks that /proc counts.
pub fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// How long the machine has been suspended since its start: what /proc counts and CLOCK_MONOTONIC does not.
pub fn suspended_ns() -> u64 {
    let nanoseconds = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let monotonic = nanoseconds(rustix::time::ClockId::Monotonic);
    nanoseconds(rustix::time::ClockId::Boottime).saturating_sub(monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let mut text = String::from("77 (a) R 5 (b) T 12 ");
        text.push_str(&(5..=21).map(|n| format!("{n} ")).collect::<String>());
        text.push_str("4242 0 0\n");
        let stat = Stat::parse(text.as_bytes()).unwrap();
        assert_eq!(stat.name, b"a) R 5 (b");
        assert_eq!((stat.state(), stat.parent()), (Some('T'), Some(Pid(12))));
        assert_eq!(
            (stat.started_ticks(), stat.field(21)),
            (Some(4242), Some(21))
        );
        assert!(!stat.is_over());
        assert_eq!(stat.field::<u64>(25), None);
        assert_eq!(stat.field::<u64>(2), None);
        assert!(Stat::parse(b"77 (a) Z 1").unwrap().is_over());
        for cut in [&b"77 (cut"[..], b"", b")("] {
            assert!(Stat::parse(cut).is_none());
        }
    }

    #[test]
    fn values_are_found_by_their_keys() {
        let status = b"Name:\tTgid: 5\nNSpid:\t7\t1\nTgid:\t77\nPid:\t78\n";
        assert_eq!(value(status, "Tgid"), Some("77"));
        assert_eq!(value(status, "NSpid"), Some("7\t1"));
        assert_eq!(value(status, "pid"), None);
        assert_eq!(value(b"Tgid:\t\xff", "Tgid"), None);
    }

    #[test]
    fn this_process_is_found() {
        let own = Pid(std::process::id());
        let text = process_stat(own).unwrap();
        let stat = Stat::parse(&text).unwrap();
        assert_eq!(
            stat.parent(),
            Some(Pid(std::os::unix::process::parent_id()))
        );
        assert!(stat.started_ticks().unwrap() > 0);
        assert!(processes().contains(&own));
        let threads = threads(own);
        assert!(threads.contains(&Tid(own.0)));
        assert!(threads.iter().all(|tid| process_of(*tid) == Some(own)));
    }
}
