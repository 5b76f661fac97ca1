//! The walls around the process that reads symbols: what it gives up before it looks at anything.
//!
//! A process that has just been started -> one that has its socket, memory up to a limit, no rights, and no
//! file system but its own descriptors; and which of that could be had. Everything is tried, whatever else
//! failed: a machine without one wall still has the others. `profiler doctor` says which.
//!
//! What does not belong here: calls of the kernel (`seccomp`), what the process does (`serve`).

use std::io;

use rustix::fs::CWD;
use rustix::mount::{MountPropagationFlags, OpenTreeFlags, mount_change, open_tree};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CapabilitySet, Gid, Uid, UnshareFlags};

use super::place::Place;
use super::seccomp;
use profiler_target::background;

/// Stack: debug information and demanglers recurse.
const STACK_BYTES: u64 = 16 << 20;
/// Descriptors: seven a file at the most.
const MAX_FILES: u64 = 1024;
/// Users of this number and above are nobody's: neither distributions nor containers give them out.
const FIRST_USER: u32 = 2_100_000_000;
const NOBODY: u32 = 65534;

/// Which walls there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walls {
    /// It has no capabilities, and can't get any.
    pub unprivileged: bool,
    /// It is a user that nothing belongs to.
    pub own_user: bool,
    /// It sees no files.
    pub own_root: bool,
    /// Its memory is limited.
    pub memory: bool,
    /// It can't make other calls of the kernel than it needs.
    pub calls: bool,
}

impl Walls {
    pub(super) fn to_bits(self) -> u8 {
        let all = [
            self.unprivileged,
            self.own_user,
            self.own_root,
            self.memory,
            self.calls,
        ];
        let bits = all.iter().enumerate();
        bits.fold(0, |bits, (at, &is)| bits | u8::from(is) << at)
    }

    pub(super) fn of_bits(bits: u8) -> Walls {
        let is = |at: u8| bits & 1 << at != 0;
        Walls {
            unprivileged: is(0),
            own_user: is(1),
            own_root: is(2),
            memory: is(3),
            calls: is(4),
        }
    }
}

/// Raises all walls that this machine gives. `memory` is what may be allocated, `copy` the longest file that
/// may be written.
pub(super) fn raise(memory: u64, copy: u64) -> (Walls, Place) {
    // Where that is refused they stay open.
    let _ = background::close_inherited();
    // The profiler ends it, and a group of processes that is told to end still wants its names.
    block_signals();
    background::go_by(super::NAME);
    // Where memory is short it is the first that can be spared.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut walls = Walls {
        own_root: own_root().is_ok(),
        memory: limit(Resource::Data, memory),
        ..Walls::default()
    };
    limit(Resource::Core, 0);
    limit(Resource::Fsize, copy);
    limit(Resource::Nofile, MAX_FILES);
    let _ = setrlimit(Resource::Stack, both(STACK_BYTES));
    walls.own_user = own_user();
    limit(Resource::Nproc, 0);
    walls.unprivileged = give_up_rights();
    // When the thread that started it ends, however that comes about. A change of user would forget it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    walls.calls = walls.unprivileged && seccomp::restrict(seccomp::PATHS).is_ok();
    let place = match walls.own_root {
        true => Place::Own,
        false => Place::Shared,
    };
    (walls, place)
}

/// What the process gives up that opens files: all but the right to find those of others and read them. `copy` is
/// the longest file that may be written.
pub(super) fn raise_for_opening(copy: u64) {
    let kept = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    keep_only(kept, "profiler-opens", copy);
}

/// What the process gives up that reads the memory of processes: all but the right to do that.
pub(super) fn raise_for_reading() -> Walls {
    limit(Resource::Nproc, 0);
    // It is asked for once, and later no more.
    let _ = rustix::param::page_size();
    let is_last = keep_only(CapabilitySet::SYS_PTRACE, "profiler-reads", 0);
    Walls {
        calls: is_last && seccomp::restrict(&[libc::SYS_process_vm_readv]).is_ok(),
        ..Walls::default()
    }
}

/// Keeps some rights, and goes by a name of its own; whether it can get no others.
fn keep_only(kept: CapabilitySet, name: &str, copy: u64) -> bool {
    // Where that is refused they stay open.
    let _ = background::close_inherited();
    block_signals();
    background::go_by(name);
    limit(Resource::Core, 0);
    limit(Resource::Fsize, copy);
    limit(Resource::Nofile, MAX_FILES);
    let _ = background::keep_rights(kept);
    let is_last = rustix::thread::set_no_new_privs(true).is_ok();
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    is_last
}

fn both(most: u64) -> Rlimit {
    Rlimit {
        current: Some(most),
        maximum: Some(most),
    }
}

fn limit(resource: Resource, most: u64) -> bool {
    setrlimit(resource, both(most)).is_ok()
}

/// A root folder with nothing in it but this process's descriptors.
fn own_root() -> io::Result<()> {
    let descriptors = || {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, "/proc/self/fd", flags)
    };
    let fds = match descriptors() {
        Ok(fds) => fds,
        Err(_) => {
            // Who may not mount anything, may in a namespace of users. What others unmount goes there, too.
            unshare(UnshareFlags::NEWNS | UnshareFlags::NEWUSER)?;
            let all = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            mount_change("/", all)?;
            descriptors()?
        }
    };
    rustix::process::fchdir(&fds)?;
    Ok(rustix::process::chroot(".")?)
}

#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: this process has one thread, and no descriptors or memory are shared anew.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Becomes a user of its own, if that is for it to decide.
fn own_user() -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let number = FIRST_USER
        + rustix::process::getpid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
    let _ = rustix::thread::set_thread_groups(&[]);
    [number, NOBODY].into_iter().any(|number| {
        let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
        rustix::thread::set_thread_res_gid(group, group, group).is_ok()
            && rustix::thread::set_thread_res_uid(user, user, user).is_ok()
    })
}

/// Gives up all capabilities, and the ways to get any.
fn give_up_rights() -> bool {
    background::keep_rights(CapabilitySet::empty()).is_ok()
        && rustix::thread::set_no_new_privs(true).is_ok()
}

#[allow(unsafe_code)]
fn block_signals() {
    // SAFETY: a set on this stack, given to calls that fill and read it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}
