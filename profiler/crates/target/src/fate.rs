//! What a process died of.
//!
//! A process and its descriptor, once it has ended -> its status as of wait(2). Its parent may have
//! waited for it by then: kernels since 6.15 tell all the same, older ones only before that.
//! Sources: `include/uapi/linux/pidfd.h`, proc_pid_stat(5).
//!
//! What does not belong here: whose end is waited for.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::process::{PidfdFlags, pidfd_open};

use profiler_model::Pid;

use crate::proc_fs::{self, Stat};

/// `PIDFD_GET_INFO` with the first version of its structure.
const PIDFD_GET_INFO: Opcode = rustix::ioctl::opcode::read_write::<Info>(0xff, 11);
/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// A process whose end is to be looked at.
#[derive(Debug)]
pub struct Watched(OwnedFd);

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has not ended yet.
    Alive,
    /// It has ended with this status.
    Ended(i32),
    /// It has ended, and nobody knows any more how.
    Unknown,
}

impl Watched {
    /// Nothing if there is no such process.
    pub fn open(pid: Pid) -> Option<Watched> {
        let raw = rustix::process::Pid::from_raw(i32::try_from(pid.0).ok()?)?;
        pidfd_open(raw, PidfdFlags::empty()).ok().map(Watched)
    }

    /// What has become of it; `pid` is its id.
    pub fn fate(&self, pid: Pid) -> Fate {
        let fd = self.0.as_fd();
        let flags = rustix::event::PollFlags::IN;
        let mut polled = [rustix::event::PollFd::new(&fd, flags)];
        let at_once = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if !matches!(rustix::event::poll(&mut polled, Some(&at_once)), Ok(1..)) {
            return Fate::Alive;
        }
        match self.exit_code().or_else(|| zombie(pid)) {
            Some(code) => Fate::Ended(code),
            None => Fate::Unknown,
        }
    }

    fn exit_code(&self) -> Option<i32> {
        let mut info = Info {
            mask: INFO_EXIT,
            ..Info::default()
        };
        // SAFETY: the kernel writes no more than the structure's size, which is part of the opcode.
        unsafe { ioctl(&self.0, Updater::<PIDFD_GET_INFO, Info>::new(&mut info)) }.ok()?;
        (info.mask & INFO_EXIT != 0).then_some(info.exit_code)
    }
}

/// The status of a process that nobody has waited for yet.
pub fn zombie(pid: Pid) -> Option<i32> {
    let text = proc_fs::process_stat(pid)?;
    let stat = Stat::parse(&text)?;
    let code = stat.field(52)?;
    stat.is_over().then_some(code)
}

/// The signal that has ended a process with this status.
pub fn signal_of(status: i32) -> Option<i32> {
    Some(status & 0x7f).filter(|&signal| signal != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn ended_by(script: &str) -> (Fate, Fate) {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid(child.id());
        let watched = Watched::open(pid).unwrap();
        let unwaited = loop {
            match watched.fate(pid) {
                Fate::Alive => std::thread::sleep(std::time::Duration::from_millis(1)),
                fate => break fate,
            }
        };
        child.wait().unwrap();
        (unwaited, watched.fate(pid))
    }

    #[test]
    fn the_status_is_known_before_and_after_somebody_waited() {
        for (script, status) in [
            ("sleep 0.05; kill -SEGV $$", 11),
            ("exit 3", 3 << 8),
            ("kill -9 $$", 9),
        ] {
            let (unwaited, waited) = ended_by(script);
            let of = |fate| match fate {
                Fate::Ended(status) => Some(status & !0x80),
                _ => None,
            };
            assert_eq!(of(unwaited), Some(status), "{script}");
            // Kernels before 6.15 don't tell.
            assert!(
                waited == Fate::Unknown || of(waited) == Some(status),
                "{script}: {waited:?}"
            );
        }
        assert_eq!(signal_of(11 | 0x80), Some(11));
        assert_eq!(signal_of(3 << 8), None);
    }
}
