//! Where symbols are read: how a descriptor is opened by a path there.
//!
//! What does not belong here: how the place is made (`walls`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// Where symbols are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a process that sees nothing but what it was given.
    Own,
    /// In one that sees the machine's files, as far as it may.
    Shared,
}

impl Place {
    /// A path that leads to an open file.
    pub(crate) fn path_of(self, file: &OwnedFd) -> PathBuf {
        let folder = match self {
            Place::Own => "/",
            Place::Shared => "/proc/self/fd/",
        };
        format!("{folder}{}", file.as_raw_fd()).into()
    }
}
