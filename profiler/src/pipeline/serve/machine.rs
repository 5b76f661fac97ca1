//! The machine's own answers about processes that run: /proc, and signals through descriptors of
//! processes.
//!
//! One life of a process -> what it is and does now. Its directory in /proc is opened and its start is
//! checked there; all else is read below that directory, which no other process ever gets. Everything
//! is bounded: targets choose their names, arguments and environments, of which any bytes are shown as
//! text. Starts are exact to a tick (10 ms). Source: proc(5), pidfd_send_signal(2).
//!
//! What does not belong here: who may ask for what (`serve`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::process::{PidfdFlags, pidfd_open};

use profiler_model::{START_SLACK_NS, Tid};
use profiler_serve::machine::{Control, Life, Machine, MachineError, Region, Status};
use profiler_target::proc_fs::{self, suspended_ns, tick_ns};
use profiler_target::user::User;

/// Most bytes that are read of a file.
const MAX_BYTES: u64 = 1 << 20;
/// Most bytes and lines of a memory map.
const MAX_MAP_BYTES: u64 = 16 << 20;
const MAX_REGIONS: usize = 65_536;
/// Most users whose names are remembered.
const MAX_USERS: usize = 1024;
/// The largest number of a signal.
const MAX_SIGNAL: i32 = 64;
/// The first process.
const INIT: u32 = 1;
/// Of `flags` in `stat`: a thread of the kernel.
const KERNEL_THREAD: u64 = 0x20_0000;

/// Answers from /proc about processes that run.
pub(super) struct Proc {
    tick_ns: u64,
    page_bytes: u64,
    /// How long the machine had slept when this began: what /proc counts and CLOCK_MONOTONIC does
    /// not.
    slept_ns: u64,
    users: RefCell<HashMap<u32, Option<String>>>,
}

impl Proc {
    /// Of this machine.
    pub(super) fn new() -> Proc {
        Proc {
            tick_ns: tick_ns(),
            page_bytes: rustix::param::page_size() as u64,
            slept_ns: suspended_ns(),
            users: RefCell::default(),
        }
    }

    /// The directory of a process, if it is the one that began then.
    fn open(&self, life: Life) -> Result<(Directory, Stat), MachineError> {
        let path = format!("/proc/{}", life.pid);
        let directory = Directory::open(CWD, &path)?;
        let stat = directory.stat()?;
        // A start that was noted before the machine slept counts less sleep than one noted after.
        let since_boot = stat.started_ticks.saturating_mul(self.tick_ns);
        let earliest = life.started.0.saturating_add(self.slept_ns);
        let latest = life.started.0.saturating_add(suspended_ns());
        let is_it = since_boot.saturating_add(START_SLACK_NS) >= earliest
            && since_boot <= latest.saturating_add(START_SLACK_NS);
        match is_it && !matches!(stat.state, 'X' | 'x') {
            true => Ok((directory, stat)),
            false => Err(MachineError::Ended),
        }
    }

    fn status_of(&self, directory: &Directory, stat: Stat) -> Result<Status, MachineError> {
        let owners = Owners::parse(&directory.read("status", MAX_BYTES)?);
        let pages = directory.read("statm", MAX_BYTES)?;
        let pages = String::from_utf8_lossy(&pages);
        let mut pages = pages.split_ascii_whitespace().map(str::parse::<u64>);
        let mut pages = || pages.next().and_then(Result::ok).unwrap_or(0);
        let (virtual_pages, resident_pages) = (pages(), pages());
        Ok(Status {
            state: stat.state,
            parent: profiler_model::Pid(stat.parent),
            group: stat.group,
            session: stat.session,
            terminal: stat.terminal,
            user_ns: stat.user_ticks.saturating_mul(self.tick_ns),
            system_ns: stat.system_ticks.saturating_mul(self.tick_ns),
            priority: stat.priority,
            nice: stat.nice,
            virtual_bytes: virtual_pages.saturating_mul(self.page_bytes),
            resident_bytes: resident_pages.saturating_mul(self.page_bytes),
            threads: stat.threads,
            processor: stat.processor,
            uids: owners.uids,
            gids: owners.gids,
            user: self.user(owners.uids.0),
            directory: directory.link("cwd"),
            root: directory.link("root"),
            executable: directory.link("exe"),
        })
    }

    fn user(&self, uid: u32) -> Option<String> {
        let mut users = self.users.borrow_mut();
        if users.len() >= MAX_USERS {
            users.clear();
        }
        // Of this machine's own list only: a directory service may be slow, and clients wait.
        let name = users
            .entry(uid)
            .or_insert_with(|| User::listed(uid).map(|user| user.name));
        name.clone()
    }
}

impl Machine for Proc {
    fn status(&self, process: Life) -> Result<Status, MachineError> {
        let (directory, stat) = self.open(process)?;
        self.status_of(&directory, stat)
    }

    fn thread_status(&self, process: Life, thread: Tid) -> Result<Status, MachineError> {
        let (directory, _) = self.open(process)?;
        let directory = Directory::open(&directory.0, &format!("task/{thread}"))?;
        let stat = directory.stat()?;
        self.status_of(&directory, stat)
    }

    fn command_line(&self, process: Life) -> Result<Vec<String>, MachineError> {
        let (directory, _) = self.open(process)?;
        Ok(texts(&directory.read("cmdline", MAX_BYTES)?))
    }

    fn environment(&self, process: Life) -> Result<Vec<String>, MachineError> {
        let (directory, _) = self.open(process)?;
        Ok(texts(&directory.read("environ", MAX_BYTES)?))
    }

    fn memory_map(&self, process: Life) -> Result<Vec<Region>, MachineError> {
        let (directory, _) = self.open(process)?;
        let text = directory.read("maps", MAX_MAP_BYTES)?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        let lines = text[..whole].split(|&byte| byte == b'\n');
        Ok(lines.filter_map(region).take(MAX_REGIONS).collect())
    }

    fn owner(&self, process: Life) -> Result<u32, MachineError> {
        let (directory, _) = self.open(process)?;
        Ok(Owners::parse(&directory.read("status", MAX_BYTES)?).uids.0)
    }

    fn control(&self, process: Life, control: Control) -> Result<(), MachineError> {
        let signal = match control {
            Control::Stop => libc::SIGSTOP,
            Control::Continue => libc::SIGCONT,
            Control::Terminate => libc::SIGTERM,
            Control::Signal(signal @ 1..=MAX_SIGNAL) => signal,
            Control::Signal(signal) => {
                return Err(MachineError::System(format!(
                    "there is no signal {signal}; they are 1 to {MAX_SIGNAL}"
                )));
            }
        };
        let pid = i32::try_from(process.pid.0).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or(MachineError::Ended)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failure)?;
        // The id is its still: so it was when the descriptor was opened.
        let (_, stat) = self.open(process)?;
        if stat.state == 'Z' {
            return Err(MachineError::Ended);
        }
        if let Some(reason) = refusal(process.pid.0, stat.flags, control) {
            return Err(MachineError::System(reason.to_owned()));
        }
        send_signal(&pidfd, signal).map_err(failure)
    }
}

/// Why something is not done to a process even if root asks for it. The kernel ignores these signals
/// without a word, but for one: SIGTERM makes some inits restart the machine.
fn refusal(pid: u32, flags: u64, control: Control) -> Option<&'static str> {
    if flags & KERNEL_THREAD != 0 {
        return Some("it is a thread of the kernel, which takes no signals");
    }
    let ends_or_stops = matches!(control, Control::Stop | Control::Terminate);
    (pid == INIT && ends_or_stops).then_some("it is init, which is neither stopped nor ended")
}

/// A directory of a process or thread in /proc. It gives nothing any more once that has ended,
/// whoever gets the id.
struct Directory(OwnedFd);

impl Directory {
    fn open(at: impl std::os::fd::AsFd, path: &str) -> Result<Directory, MachineError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(at, path, flags, Mode::empty());
        opened.map(Directory).map_err(failure)
    }

    fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, MachineError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::empty()).map_err(failure)?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(limit).read_to_end(&mut bytes);
        read.map_err(failure)?;
        Ok(bytes)
    }

    fn link(&self, name: &str) -> Option<String> {
        let target = readlinkat(&self.0, name, Vec::new()).ok()?;
        Some(String::from_utf8_lossy(target.as_bytes()).into_owned())
    }

    fn stat(&self) -> Result<Stat, MachineError> {
        let text = self.read("stat", MAX_BYTES)?;
        let damaged = || MachineError::System("/proc gives no status of it".to_owned());
        Stat::parse(&text).ok_or_else(damaged)
    }
}

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    group: i64,
    session: i64,
    terminal: i64,
    flags: u64,
    user_ticks: u64,
    system_ticks: u64,
    priority: i64,
    nice: i64,
    threads: u64,
    started_ticks: u64,
    processor: u32,
}

impl Stat {
    fn parse(text: &[u8]) -> Option<Stat> {
        let stat = proc_fs::Stat::parse(text)?;
        Some(Stat {
            state: stat.state()?,
            parent: stat.parent()?.0,
            group: stat.field(5)?,
            session: stat.field(6)?,
            terminal: stat.field(7)?,
            flags: stat.field(9)?,
            user_ticks: stat.field(14)?,
            system_ticks: stat.field(15)?,
            priority: stat.field(18)?,
            nice: stat.field(19)?,
            threads: stat.field(20)?,
            started_ticks: stat.started_ticks()?,
            processor: stat.field(39)?,
        })
    }
}

/// Real and effective ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owners {
    uids: (u32, u32),
    gids: (u32, u32),
}

impl Owners {
    /// Of `status`. One that does not say is nobody's: not root's.
    fn parse(text: &[u8]) -> Owners {
        let ids = |key| {
            let ids = proc_fs::value(text, key)?;
            let mut ids = ids.split_ascii_whitespace().map(str::parse::<u32>);
            Some((ids.next()?.ok()?, ids.next()?.ok()?))
        };
        let nobody = (u32::MAX, u32::MAX);
        Owners {
            uids: ids("Uid").unwrap_or(nobody),
            gids: ids("Gid").unwrap_or(nobody),
        }
    }
}

/// A line of `maps`: `start-end perms offset device inode path`.
fn region(line: &[u8]) -> Option<Region> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = field()?.split_once('-')?;
    let (start, end) = (
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    );
    let may = field()?.as_bytes();
    let offset = u64::from_str_radix(field()?, 16).ok()?;
    let (_device, _inode) = (field()?, field()?);
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    Some(Region {
        start,
        end,
        readable: may.first() == Some(&b'r'),
        writable: may.get(1) == Some(&b'w'),
        executable: may.get(2) == Some(&b'x'),
        offset,
        path: String::from_utf8_lossy(path).into_owned(),
    })
}

/// Texts that end with a zero each. Programs may write over their arguments: then the last one has
/// none.
fn texts(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let texts = bytes.split(|&byte| byte == 0);
    texts
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect()
}

/// What it means that a file of /proc or a process can't be had.
fn failure(error: impl Into<io::Error>) -> MachineError {
    let error = error.into();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => MachineError::Ended,
        _ => MachineError::System(error.to_string()),
    }
}

#[allow(unsafe_code)]
fn send_signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let pidfd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(pidfd);
    let info: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: without information of ours the kernel fills in its own, and reads nothing here.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            info,
            0,
        )
    };
    match sent {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests;
