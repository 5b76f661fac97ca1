//! Capabilities: which there are uses for, which this process has, and giving them up.
//!
//! /proc/self/task and capget(2) -> [`CapabilitySet`]s and sentences; a set to keep -> capset(2) in every
//! thread. What each job needs was measured: docs/permissions.md has the commands. Source:
//! capabilities(7), credentials(7).
//!
//! What does not belong here: which session keeps what (`pipeline::privileges`).

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use rustix::thread::CapabilitySet;

/// What a capability is good for.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// As in manuals.
    name: &'static str,
    /// The capability.
    pub capability: CapabilitySet,
    /// What it is for.
    pub purpose: &'static str,
    /// What does not work without it.
    pub without: &'static str,
    /// Whether it is one of those that a recording of the whole machine is complete with.
    pub recording: bool,
}

impl Use {
    /// Its name, or those of two that go together.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// All capabilities that anything here makes use of, the most needed first.
pub const USES: &[Use] = &[
    Use {
        name: "CAP_BPF",
        capability: CapabilitySet::BPF,
        purpose: "loading kernel-side programs",
        without: "nothing can be recorded or traced",
        recording: true,
    },
    Use {
        name: "CAP_PERFMON",
        capability: CapabilitySet::PERFMON,
        purpose: "clocks and stacks of all processes and of the kernel, uprobes",
        without: "nothing can be recorded or traced",
        recording: true,
    },
    Use {
        name: "CAP_SYS_PTRACE",
        capability: CapabilitySet::SYS_PTRACE,
        purpose: "the memory maps and file systems of other users' processes",
        without: "no names for what runs in containers or was deleted, and --trace finds nothing in \
                  other users' processes",
        recording: true,
    },
    Use {
        name: "CAP_DAC_READ_SEARCH",
        capability: CapabilitySet::DAC_READ_SEARCH,
        purpose: "files that only others may read: programs, engines' records, tracefs",
        without: "no -e CATEGORY:NAME, no names for programs that only their owners may read, no names \
                  of containers",
        recording: true,
    },
    Use {
        name: "CAP_SYSLOG",
        capability: CapabilitySet::SYSLOG,
        purpose: "addresses of kernel functions",
        without: "kernel functions have no names",
        recording: true,
    },
    Use {
        name: "CAP_CHECKPOINT_RESTORE",
        capability: CapabilitySet::CHECKPOINT_RESTORE,
        purpose: "files that are mapped and deleted",
        without: "no names for programs that were deleted or replaced while they run",
        recording: true,
    },
    Use {
        name: "CAP_SYS_NICE",
        capability: CapabilitySet::SYS_NICE,
        purpose: "emptying the kernel's buffers before others run",
        without: "more may be lost on a busy machine",
        recording: false,
    },
    Use {
        name: "CAP_IPC_LOCK",
        capability: CapabilitySet::IPC_LOCK,
        purpose: "buffers above kernel.perf_event_mlock_kb",
        without: "--buffer is limited by that and by 'ulimit -l'",
        recording: false,
    },
    Use {
        name: "CAP_SETGID and CAP_SETUID",
        capability: CapabilitySet::SETUID.union(CapabilitySet::SETGID),
        purpose: "running commands as another user",
        without: "--as names nobody but yourself",
        recording: false,
    },
    Use {
        name: "CAP_KILL",
        capability: CapabilitySet::KILL,
        purpose: "signals to other users' processes",
        without: "a command of another user gets no Ctrl-C, and clients can't pause or end processes",
        recording: false,
    },
    Use {
        name: "CAP_SYS_ADMIN",
        capability: CapabilitySet::SYS_ADMIN,
        purpose: "a private tracefs where none is mounted, for -e CATEGORY:NAME",
        without: "no -e CATEGORY:NAME unless tracefs is mounted: mount -t tracefs tracefs \
                  /sys/kernel/tracing",
        recording: false,
    },
];

/// What a recording of the whole machine, with all names, needs.
pub fn recording_set() -> CapabilitySet {
    USES.iter()
        .filter(|used| used.recording)
        .fold(CapabilitySet::empty(), |set, used| set | used.capability)
}

/// Those that the kernel takes CAP_SYS_ADMIN for as well.
const ADMIN_IS_ENOUGH: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

/// The effective capabilities of this thread.
pub fn effective() -> CapabilitySet {
    rustix::thread::capabilities(None)
        .map_or_else(|_| CapabilitySet::empty(), |sets| sets.effective)
}

/// Those of `wanted` that a thread with `held` lacks.
pub fn lacking(wanted: CapabilitySet, held: CapabilitySet) -> CapabilitySet {
    let missing = wanted - held;
    match held.contains(CapabilitySet::SYS_ADMIN) {
        true => missing - ADMIN_IS_ENOUGH,
        false => missing,
    }
}

/// Names as in manuals: `CAP_BPF and CAP_PERFMON`.
pub fn names(set: CapabilitySet) -> String {
    let names: Vec<_> = set
        .iter_names()
        .map(|(name, _)| format!("CAP_{name}"))
        .collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "no capabilities".to_owned(),
    }
}

/// What to do about capabilities that are missing.
pub fn remedy(missing: CapabilitySet) -> String {
    remedy_for(missing, rustix::process::geteuid().is_root())
}

/// Root that lacks something was started with less by an engine or a service manager.
fn remedy_for(missing: CapabilitySet, is_root: bool) -> String {
    let names = names(missing);
    match is_root {
        true => format!(
            "root lacks {names} here: start the container with {}",
            add_line(missing)
        ),
        false => format!(
            "run as root (sudo), or grant {names}: {}",
            setcap_line(missing)
        ),
    }
}

/// The options of engines that give a container these.
pub fn add_line(set: CapabilitySet) -> String {
    let options: Vec<_> = set
        .iter_names()
        .map(|(name, _)| format!("--cap-add={name}"))
        .collect();
    options.join(" ")
}

/// The line that gives this program's file these.
pub fn setcap_line(set: CapabilitySet) -> String {
    let names: Vec<_> = set
        .iter_names()
        .map(|(name, _)| format!("cap_{}", name.to_lowercase()))
        .collect();
    let program = std::env::current_exe().map_or_else(
        |_| "$(command -v profiler)".to_owned(),
        |path| path.display().to_string(),
    );
    format!("setcap {}+ep {program}", names.join(","))
}

/// Why a thread still has privileges that were to be given up.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// Threads can't be listed, or the signal can't be taken.
    #[error("failed to {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A thread has not done it in time.
    #[error("thread {0} keeps its capabilities")]
    Kept(u32),
}

/// What is kept, for the handler of the signal that makes a thread give up the rest.
static KEPT: AtomicU64 = AtomicU64::new(u64::MAX);

/// How long threads may take: they only have to be scheduled once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Every thread of this process, and all that they start from now on, keeps of its capabilities only
/// those of `kept`, and can't gain others by what it executes. For good: there is no way back.
///
/// Capabilities are each thread's own, and a thread can change but its own: all are sent a signal whose
/// handler does it. Children that were created before are not affected.
pub fn reduce(kept: CapabilitySet) -> Result<(), ReduceError> {
    let failed = |action| move |source| ReduceError::System { action, source };
    // Once less is kept, no later call can ask for more.
    KEPT.fetch_and(kept.bits(), Ordering::SeqCst);
    // Stays installed: a signal that comes late must find it.
    install_handler().map_err(failed("install a signal handler"))?;
    reduce_this_thread().map_err(failed("give up capabilities"))?;
    let deadline = Instant::now() + PATIENCE;
    // A thread that was started by one that had not done it yet shows in the next round.
    let mut clean_rounds = 0;
    loop {
        let unreduced = unreduced_threads(kept).map_err(failed("list the threads"))?;
        match unreduced.first() {
            None if clean_rounds == 1 => return Ok(()),
            None => clean_rounds += 1,
            Some(thread) if Instant::now() > deadline => return Err(ReduceError::Kept(*thread)),
            Some(_) => {
                clean_rounds = 0;
                unreduced.iter().for_each(|thread| signal(*thread));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Every thread of this process becomes another user, for good. Capabilities go with root.
#[allow(unsafe_code)]
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let succeeded = |status: libc::c_int| match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // The C library does it in all threads; the system calls change one only. The user comes last, who may not change
    // groups.
    // SAFETY: `groups` lives through the call, and is as long as is said.
    succeeded(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: three numbers.
    succeeded(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: three numbers.
    succeeded(unsafe { libc::setresuid(uid, uid, uid) })
}

/// Threads of this process that have more than `kept`.
fn unreduced_threads(kept: CapabilitySet) -> io::Result<Vec<u32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let Some(thread) = entry?.file_name().to_str().and_then(|id| id.parse().ok()) else {
            continue;
        };
        // A thread that has ended has nothing left.
        let Ok(status) = fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
            continue;
        };
        if !is_reduced(&status, kept) {
            threads.push(thread);
        }
    }
    Ok(threads)
}

fn is_reduced(status: &str, kept: CapabilitySet) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    field("CapPrm:").is_some_and(|permitted| permitted & !kept.bits() == 0)
        && field("CapInh:") == Some(0)
        // Kernels before 4.10 don't tell; those are not supported.
        && field("NoNewPrivs:") == Some(1)
}

/// Only system calls: safe in a signal handler.
fn reduce_this_thread() -> io::Result<()> {
    let kept = CapabilitySet::from_bits_retain(KEPT.load(Ordering::SeqCst));
    let mut sets = rustix::thread::capabilities(None)?;
    sets.permitted &= kept;
    sets.effective &= kept;
    // With these the ambient ones go too.
    sets.inheritable = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

extern "C" fn on_signal(_: libc::c_int) {
    // What fails shows in /proc, where `reduce` looks.
    let _ = reduce_this_thread();
}

/// The last of the real-time signals: nothing else here uses one.
fn signal_number() -> libc::c_int {
    libc::SIGRTMAX()
}

#[allow(unsafe_code)]
fn install_handler() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: all zeros is a valid sigaction: no flags, an empty mask, no handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // System calls that it interrupts go on.
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` lives through the call. The handler only loads an atomic and makes system calls
    // that touch no memory but its own stack, nor errno (rustix calls the kernel directly).
    match unsafe { libc::sigaction(signal_number(), &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends the signal to a thread of this process; one that has ended meanwhile is none any more.
#[allow(unsafe_code)]
fn signal(thread: u32) {
    // SAFETY: a system call with three numbers; the handler is installed.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            std::process::id(),
            thread,
            signal_number(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_manuals() {
        assert_eq!(names(CapabilitySet::BPF), "CAP_BPF");
        assert_eq!(
            names(CapabilitySet::BPF | CapabilitySet::PERFMON),
            "CAP_PERFMON and CAP_BPF"
        );
        assert_eq!(
            names(recording_set()),
            "CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF and \
             CAP_CHECKPOINT_RESTORE"
        );
    }

    #[test]
    fn sys_admin_stands_for_what_was_split_off_from_it() {
        let admin = CapabilitySet::SYS_ADMIN;
        assert_eq!(
            lacking(recording_set(), admin),
            CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_PTRACE | CapabilitySet::SYSLOG
        );
        assert_eq!(
            lacking(CapabilitySet::BPF, CapabilitySet::PERFMON),
            CapabilitySet::BPF
        );
    }

    #[test]
    fn who_is_root_already_is_told_of_the_container() {
        let set = CapabilitySet::BPF | CapabilitySet::PERFMON;
        assert_eq!(
            remedy_for(set, true),
            "root lacks CAP_PERFMON and CAP_BPF here: start the container with \
             --cap-add=PERFMON --cap-add=BPF"
        );
        let line = remedy_for(set, false);
        let expected = "run as root (sudo), or grant CAP_PERFMON and CAP_BPF: setcap \
                        cap_perfmon,cap_bpf+ep /";
        assert!(line.starts_with(expected), "{line}");
    }

    #[test]
    fn a_thread_is_reduced_when_all_its_sets_are() {
        let kept = CapabilitySet::BPF;
        let status = |permitted: u64, inheritable: u64, no_new: u8| {
            format!(
                "CapInh:\t{inheritable:016x}\nCapPrm:\t{permitted:016x}\nNoNewPrivs:\t{no_new}\n"
            )
        };
        let bpf = kept.bits();
        assert!(is_reduced(&status(bpf, 0, 1), kept));
        assert!(is_reduced(&status(0, 0, 1), kept));
        assert!(!is_reduced(&status(bpf | 1, 0, 1), kept));
        assert!(!is_reduced(&status(bpf, bpf, 1), kept));
        assert!(!is_reduced(&status(bpf, 0, 0), kept));
        assert!(!is_reduced("", kept));
    }
}
