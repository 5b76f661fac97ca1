//! The directory of a cgroup by its id alone.
//!
//! A mount and an id -> the path that the directory has in the mount. kernfs takes handles of its own
//! kind, which hold nothing but the id (include/linux/exportfs.h, since 5.5; the same for versions 1 and
//! 2). Needs CAP_DAC_READ_SEARCH.
//!
//! What does not belong here: which cgroup is mounted there.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `FILEID_KERNFS`.
const FILEID_KERNFS: libc::c_int = 0xfe;

/// `struct file_handle` with room for an id.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    id: u64,
}

/// The path of the directory, `mount` included.
pub(super) fn path_of(mount: &Path, id: u64) -> Option<PathBuf> {
    let mount = File::open(mount).ok()?;
    let directory = open(&mount, id)?;
    let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
    // A path of a removed directory, or of one outside the mount, leads nowhere or elsewhere.
    let found = fs::symlink_metadata(&path).ok()?;
    let mounted = mount.metadata().ok()?;
    (found.ino() == id && found.dev() == mounted.dev()).then_some(path)
}

#[allow(unsafe_code)]
fn open(mount: &File, id: u64) -> Option<OwnedFd> {
    let mut handle = Handle {
        bytes: size_of::<u64>() as libc::c_uint,
        kind: FILEID_KERNFS,
        id,
    };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: `handle` has the layout of a `file_handle` with `bytes` bytes of room, and outlives the
    // call, which only reads it.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    // SAFETY: the kernel has just given this descriptor to us alone.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}
