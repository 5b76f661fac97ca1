//! A process that lets paused targets go on if the profiler dies before it does so itself.
//!
//! Descriptors of what is paused -> SIGCONT, or a thawed cgroup, when the socket that they came by is
//! closed. It is forked, not executed: it works whatever has become of our own file, and needs no
//! command line. Between fork and exit it makes system calls only, has its own session (a terminal's
//! Ctrl-C does not reach it), all signals blocked, and no descriptor but its socket and what it was
//! given. What kills it together with the profiler (a service manager that sends SIGKILL to the whole
//! unit) leaves the targets paused; nothing can be done against that.
//!
//! Protocol, on a socket of packets: a byte that says what the descriptor that comes with it is
//! ([`Charge`]), answered by one byte when it is taken; [`DISMISSED`], without an answer.
//!
//! What does not belong here: who is paused (`processes`, `cgroup`).
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// All has been let go: no more guard is needed.
const DISMISSED: u8 = b'q';

/// What a descriptor is, and so how to let go what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// A pidfd: SIGCONT.
    Process = b'p' as isize,
    /// `cgroup.freeze`: 0 is written.
    Freeze = b'f' as isize,
    /// `freezer.state` of version 1: THAWED is written.
    Freezer = b't' as isize,
}

impl Charge {
    /// What is written to let it go on; nothing for a process.
    pub(super) const fn release(self) -> &'static [u8] {
        match self {
            Charge::Process => b"",
            Charge::Freeze => b"0",
            Charge::Freezer => b"THAWED",
        }
    }
}

/// The guard. When it is dropped without having been dismissed, it lets go all that it was given.
#[derive(Debug)]
pub(super) struct Guard {
    socket: Option<OwnedFd>,
    pid: rustix::process::Pid,
}

impl Guard {
    pub(super) fn start() -> io::Result<Guard> {
        let (ours, its) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // SAFETY: two sets on this stack, given to calls that fill and read them. The child runs
        // `watch` only, which never returns, and which uses no memory but its own stack and makes
        // nothing but system calls, as a child of a process with threads must.
        let pid = unsafe {
            let mut all: libc::sigset_t = zeroed();
            let mut before: libc::sigset_t = zeroed();
            libc::sigfillset(&raw mut all);
            // No handler of ours may run in the child.
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let pid = libc::fork();
            if pid == 0 {
                watch(its.as_raw_fd());
            }
            let error = io::Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            rustix::process::Pid::from_raw(pid.max(0)).ok_or(error)?
        };
        Ok(Guard {
            socket: Some(ours),
            pid,
        })
    }

    /// Process id of the guard.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Gives it something to let go; to be called before that is stopped.
    pub(super) fn charge(&mut self, charge: Charge, fd: BorrowedFd<'_>) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = [charge as u8];
        let bytes = [IoSlice::new(&bytes)];
        rustix::net::sendmsg(socket.as_fd(), &bytes, &mut ancillary, SendFlags::NOSIGNAL)?;
        let mut answer = [0];
        rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut answer))?;
        match answer {
            [1] => Ok(()),
            _ => Err(io::Error::other(
                "the guard process takes no more descriptors (raise the limit of open files)",
            )),
        }
    }

    /// All that it was given has been let go.
    pub(super) fn dismiss(mut self) {
        if let Some(socket) = &self.socket {
            // If it is gone already, it has nothing to be told.
            let _ = rustix::net::send(socket, &[DISMISSED], SendFlags::NOSIGNAL);
        }
        self.reap();
    }

    fn reap(&mut self) {
        self.socket = None;
        let none = rustix::process::WaitOptions::empty();
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(self.pid), none));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.socket.is_some() {
            self.reap();
        }
    }
}

/// What the guard does. `socket` is its end.
///
/// # Safety
/// To be called in a forked child only: it takes over all descriptors of the process.
unsafe fn watch(socket: RawFd) -> ! {
    // SAFETY: system calls with constants and with memory of this stack frame. Behind dup2 and
    // close_range the socket is descriptor 0, and what is received gets the numbers from 1 on, in the
    // order of its coming.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"profiler-guard".as_ptr());
        libc::dup2(socket, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
        // Its folder must not keep a file system from being unmounted.
        libc::chdir(c"/".as_ptr());
        let mut charges = 0;
        let mut release: &[u8] = b"";
        loop {
            match receive() {
                Received::Charge(bytes) => {
                    charges += 1;
                    release = bytes;
                    answer(1);
                }
                Received::Unusable => answer(0),
                Received::Dismissed => libc::_exit(0),
                Received::Closed => break,
            }
        }
        // Those that were stopped last are let go first: children before their parents.
        for fd in (1..=charges).rev() {
            if release.is_empty() {
                let none = std::ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGCONT, none, 0);
            } else {
                libc::pwrite(fd, release.as_ptr().cast(), release.len(), 0);
            }
        }
        libc::_exit(0)
    }
}

enum Received {
    Charge(&'static [u8]),
    Unusable,
    Dismissed,
    Closed,
}

/// Room for one descriptor and its header, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// # Safety
/// As for [`watch`].
unsafe fn receive() -> Received {
    let mut kind = 0_u8;
    let mut control = Control([0; 24]);
    let mut part = libc::iovec {
        iov_base: (&raw mut kind).cast(),
        iov_len: 1,
    };
    // SAFETY: a structure of numbers and pointers, all of which may be zero.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: all that the message points to lies in this stack frame.
    let len = unsafe { libc::recvmsg(0, &raw mut message, 0) };
    let charge = match (len, kind) {
        (1, DISMISSED) => return Received::Dismissed,
        (1, b'f') => Charge::Freeze,
        (1, b't') => Charge::Freezer,
        (1, _) => Charge::Process,
        _ => return Received::Closed,
    };
    // Without room for descriptors the kernel drops them, and says so.
    if message.msg_flags & libc::MSG_CTRUNC != 0 || message.msg_controllen == 0 {
        return Received::Unusable;
    }
    Received::Charge(charge.release())
}

/// # Safety
/// As for [`watch`].
unsafe fn answer(byte: u8) {
    // SAFETY: a byte of this stack frame.
    unsafe { libc::send(0, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) };
}
