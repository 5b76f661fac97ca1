//! What a session keeps of its capabilities once it is attached; the rest is given up.
//!
//! [`Later`] -> capabilities, as the table in docs/permissions.md has them. What does not belong here: how
//! they are given up (`profiler_probe::privileges`).

use std::ffi::OsStr;
use std::io;

use crate::error::Failure;
use profiler_probe::features::{maps_need_capabilities, processors_can_be_added};
use profiler_probe::privileges::{CapabilitySet, effective, lacking, names, reduce, remedy};

/// What a session still does after it has attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Later {
    /// Attaches again, or attaches to more: `--trace`, a server.
    pub(super) attaches: bool,
    /// Makes maps for unwind tables.
    pub(super) loads_tables: bool,
    /// Attaches again where following children takes a tracefs that has to be mounted for it.
    pub(super) mounts_tracefs: bool,
    /// Sends signals to a command, or to processes on behalf of clients.
    pub(super) signals: bool,
    /// Makes files where the user wants them, or writes to those of cgroups.
    pub(super) writes_files: bool,
    /// Gives outputs their names in a folder of somebody else's, as /tmp is.
    pub(super) names_files: bool,
    /// Makes files that are to belong to the user behind sudo.
    pub(super) gives_files: bool,
}

/// Names need these as long as there are samples.
const NAMES: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYSLOG);
/// Threads go before others and back, as their budget has it.
const PRIORITY: CapabilitySet = CapabilitySet::SYS_NICE;
/// A processor that comes online has its events opened, and their buffer mapped.
const PROCESSORS: CapabilitySet = CapabilitySet::PERFMON.union(CapabilitySet::IPC_LOCK);

/// Gives up what the session has no use for any more. Failing is no reason to end what runs already, and
/// is said.
pub(super) fn settle(later: Later) {
    let held = rustix::thread::capabilities(None);
    let held = held.map_or_else(|_| CapabilitySet::empty(), |sets| sets.permitted);
    let keeps_bpf = later.attaches
        || later.loads_tables
        || maps_need_capabilities()
        || processors_can_be_added();
    let kept = kept(later, keeps_bpf, held);
    match reduce(kept) {
        Ok(()) => log::debug!("kept from now on: {}", names(kept & held)),
        Err(error) => log::warn!("privileges that are not needed any more stay: {error}"),
    }
}

fn kept(later: Later, keeps_bpf: bool, held: CapabilitySet) -> CapabilitySet {
    let mut kept = NAMES | PROCESSORS | PRIORITY;
    for (wanted, capability) in [
        (keeps_bpf, CapabilitySet::BPF),
        (later.signals, CapabilitySet::KILL),
        (later.writes_files, CapabilitySet::DAC_OVERRIDE),
        (later.names_files, CapabilitySet::FOWNER),
        (later.gives_files, CapabilitySet::CHOWN),
        (later.mounts_tracefs, CapabilitySet::SYS_ADMIN),
    ] {
        if wanted {
            kept |= capability;
        }
    }
    // Where the kernel or whoever started this knows nothing finer.
    if lacking(kept, held) != kept - held {
        kept |= CapabilitySet::SYS_ADMIN;
    }
    kept
}

/// Why a command could not be started; with what to do if it was to be another user's, and we may not
/// become that.
pub(super) fn start_failure(program: &OsStr, as_another: bool, error: &io::Error) -> Failure {
    let what = format!("failed to start {}", program.display());
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let lacks = !lacking(needed, effective()).is_empty();
    match error.kind() {
        io::ErrorKind::PermissionDenied if as_another && lacks => {
            // Both: one alone changes the user or its groups only.
            Failure::failed(format!("{what} as another user: {}", remedy(needed)))
        }
        _ => Failure::because(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CapabilitySet = CapabilitySet::from_bits_retain(u64::MAX);

    #[test]
    fn a_recording_keeps_what_names_and_new_processors_need() {
        let kept = kept(Later::default(), false, ALL);
        assert_eq!(
            names(kept),
            "CAP_DAC_READ_SEARCH, CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_SYSLOG, CAP_PERFMON and \
             CAP_CHECKPOINT_RESTORE"
        );
    }

    #[test]
    fn what_is_still_to_be_done_keeps_what_it_needs() {
        let later = Later {
            attaches: true,
            signals: true,
            ..Later::default()
        };
        let less = kept(Later::default(), false, ALL);
        assert_eq!(
            kept(later, true, ALL) - less,
            CapabilitySet::BPF | CapabilitySet::KILL
        );
        let later = Later {
            writes_files: true,
            mounts_tracefs: true,
            names_files: true,
            gives_files: true,
            ..Later::default()
        };
        assert_eq!(
            kept(later, false, ALL) - less,
            CapabilitySet::DAC_OVERRIDE
                | CapabilitySet::FOWNER
                | CapabilitySet::SYS_ADMIN
                | CapabilitySet::CHOWN
        );
    }

    #[test]
    fn sys_admin_stays_only_where_it_stands_for_another() {
        let admin = CapabilitySet::SYS_ADMIN;
        assert!(kept(Later::default(), false, admin).contains(admin));
        assert!(!kept(Later::default(), false, ALL).contains(admin));
    }
}
