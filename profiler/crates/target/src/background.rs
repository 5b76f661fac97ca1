//! Processes of this program that do one thing apart: how they are started, and what they give up first.
//!
//! A command and its end of a socket -> a process in the background ([`start`]), of which others are told ([`tell`]). In that process: what it has inherited
//! is closed ([`close_inherited`]), and rights go but those that it needs ([`keep_rights`]).
//!
//! What does not belong here: what one does, and the other walls around it (`container::engines::apart`; of other crates
//! `resolve::helper`, `probe::calls::keeper`).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::schedule::{Class, class_of, handing_on, set_class, this_thread};

/// Is told of a process, by its id, and whether it is there.
pub type Told = dyn Fn(u32, bool) + Send + Sync;

/// The processes that were started, and who is told of them.
struct Started {
    /// With each what says that it has ended.
    running: Vec<(u32, OwnedFd)>,
    told: Vec<Weak<Told>>,
}

static STARTED: Mutex<Started> = Mutex::new(Started {
    running: Vec::new(),
    told: Vec::new(),
});

fn started() -> MutexGuard<'static, Started> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Started {
    fn forget_ended(&mut self) {
        let ended = |process: &OwnedFd| {
            let mut polled = [PollFd::new(process, PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&Timespec::default()))
                .is_ok_and(|ended| ended > 0)
        };
        let ended: Vec<_> = self.running.extract_if(.., |(_, fd)| ended(fd)).collect();
        for (pid, _) in ended {
            self.tell(pid, false);
        }
    }

    fn tell(&mut self, pid: u32, is_there: bool) {
        self.told.retain(|told| match told.upgrade() {
            Some(told) => {
                told(pid, is_there);
                true
            }
            None => false,
        });
    }
}

/// From now on it is told of all processes that are started, as long as it lives; now of those that are there.
pub fn tell(told: &Arc<Told>) {
    let mut started = started();
    started.forget_ended();
    for (pid, _) in &started.running {
        told(*pid, true);
    }
    started.told.push(Arc::downgrade(told));
}

/// Tells of those that have ended. To be called now and then: their ids become others'.
pub fn forget_ended() {
    started().forget_ended();
}

/// Starts it, with the socket for standard input. It begins in the class of this thread, which waits for it: it is to go as
/// others do, or be put elsewhere.
pub fn start(command: &mut Command, socket: OwnedFd) -> io::Result<Child> {
    let child = handing_on(|| run(command, socket))?;
    let mut started = started();
    started.forget_ended();
    let pid = child.id();
    // Nobody has waited for it, so the id is its own.
    let known = Pid::from_raw(pid.cast_signed()).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    if let Some(Ok(process)) = known {
        started.running.push((pid, process));
        started.tell(pid, true);
    }
    Ok(child)
}

fn run(command: &mut Command, socket: OwnedFd) -> io::Result<Child> {
    command
        .stdin(socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Out of reach of the terminal's Ctrl-C.
        .process_group(0)
        // Its folder must not keep a file system from being unmounted.
        .current_dir("/")
        .spawn()
}

/// From now on this thread, which has just been started, is scheduled like all others.
pub fn go_as_others() {
    let this = this_thread();
    if !matches!(class_of(this), Ok(Some(Class::Ordinary(0..)))) {
        // It needs no right.
        let _ = set_class(this, Class::Ordinary(0), true);
    }
}

/// Calls this thread so, for people; else a process that was started is called `exe`.
pub fn go_by(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Closes all descriptors but the standard ones, in a process that has opened none yet: they are its parent's.
#[allow(unsafe_code)]
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process owns any of them.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    match closed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all capabilities of this thread but these.
pub fn keep_rights(kept: CapabilitySet) -> io::Result<()> {
    // It has none to be told of at the most.
    let _ = rustix::thread::clear_ambient_capability_set();
    let permitted = rustix::thread::capabilities(None)?.permitted & kept;
    let sets = CapabilitySets {
        effective: permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_of_processes_is_told_of_their_beginning_and_their_end() {
        let (ours, its) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut child = start(&mut Command::new("cat"), its.into()).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = heard.clone();
        let told: Arc<Told> =
            Arc::new(move |pid, is_there| hears.lock().unwrap().push((pid, is_there)));
        // Others are started by other tests.
        let of = |pid: u32| -> Vec<bool> {
            let heard = heard.lock().unwrap();
            let of = heard.iter().filter(|(of, _)| *of == pid);
            of.map(|(_, is_there)| *is_there).collect()
        };
        tell(&told);
        forget_ended();
        assert_eq!(of(child.id()), [true]);
        // It ends with its input.
        drop(ours);
        child.wait().unwrap();
        forget_ended();
        assert_eq!(of(child.id()), [true, false]);
        let (_ours, its) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut next = start(&mut Command::new("true"), its.into()).unwrap();
        assert_eq!(of(next.id()), [true]);
        drop(told);
        next.wait().unwrap();
        forget_ended();
        assert_eq!(of(next.id()), [true]);
    }
}
