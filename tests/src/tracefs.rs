//! Both states that a machine can be in: tracefs is mounted where it usually is, or nowhere.
//!
//! A command -> the same command in a mount namespace of its own, in which it is so; the machine stays as
//! it is. Needs root, and `unshare` of util-linux or busybox.

use std::process::Command;

/// Whether tracefs is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracefs {
    /// At /sys/kernel/tracing.
    Mounted,
    /// Neither there nor below debugfs.
    Absent,
}

const MOUNT: &str = "[ -d /sys/kernel/tracing/events ] || \
    mount -t tracefs tracefs /sys/kernel/tracing || exit 97; exec \"$@\"";

/// debugfs has a tracefs inside that is mounted when somebody looks.
const UNMOUNT: &str =
    "for place in /sys/kernel/debug/tracing /sys/kernel/debug /sys/kernel/tracing; do
        while grep -q \" $place \" /proc/self/mounts; do umount -l $place || exit 97; done
    done; exec \"$@\"";

impl Tracefs {
    /// A command that runs where this is so: add the program, and its arguments.
    pub fn command(self) -> Command {
        let mut command = Command::new("unshare");
        let script = match self {
            Tracefs::Mounted => MOUNT,
            Tracefs::Absent => UNMOUNT,
        };
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command
    }
}
