//! Whether the contents of a file come from a server: FUSE, a network.
//!
//! An open file -> whether it lies on this machine, whoever made it seem so. A server may say anything, and may never
//! answer: what it has is copied by a process that may wait, and no probe is attached to it, since the kernel reads the file
//! then while all forks of the machine wait.
//!
//! An overlay hides what is below it, and any user can mount one over a server of their own. It counts as local if the
//! kernel says either of two things that they can't forge:
//!
//! - The mount is one of a mount namespace that belongs to our own user namespace: then root has mounted it. No layer may
//!   lie, by the table of mounts, where a server is.
//! - The file below has extents on a disk (FIEMAP, which overlays pass on and servers do not have), and all layers are one
//!   file system, so that the file can't move elsewhere when it is written to: only then the overlay shows its files under its
//!   own device and with numbers of their own. (That file system may be an overlay, of which nothing is known.)
//!
//! Source: the kernel's Documentation/filesystems/overlayfs.rst ("Inode properties"), fs/overlayfs/inode.c.
//!
//! What does not belong here: reading such a file (`helper::opener`).

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};

use super::files::Root;
use super::overlay_layers::{folders_of_device, folders_of_mount, kind_below};
use profiler_model::Pid;

/// What statfs(2) calls an overlay.
pub(super) const OVERLAYFS: u64 = 0x794c_7630;

/// Most bytes of a table of mounts.
const MAX_MOUNTS_BYTES: u64 = 4 << 20;
/// Above these an overlay puts the number of a layer into the number of a file.
const NUMBER_BITS: u32 = 48;

/// Whether a file, which a process maps, or which was found below a root, lies where no server has to be asked for its
/// contents. This may take as long as a server likes, unless the answer is yes.
pub(super) fn is_local(file: impl AsFd, pid: Option<Pid>, root: Option<&Root>) -> bool {
    const FUSE: u64 = 0x6573_5546;
    const NFS: u64 = 0x6969;
    const SMB: [u64; 2] = [0xff53_4d42, 0xfe53_4d42];
    const NINE_P: u64 = 0x0102_1997;
    const CEPH: u64 = 0x00c3_6400;
    const AFS: [u64; 2] = [0x5346_414f, 0x6b41_4653];
    let Ok(fs) = rustix::fs::fstatfs(&file) else {
        return false;
    };
    match fs.f_type as u64 & 0xffff_ffff {
        FUSE | NFS | NINE_P | CEPH => false,
        kind if SMB.contains(&kind) || AFS.contains(&kind) => false,
        OVERLAYFS => {
            let file = file.as_fd();
            is_on_one_disk(file, pid, root) || is_mounted_by_root(file, pid)
        }
        _ => true,
    }
}

fn place(file: BorrowedFd<'_>, path: &str) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, path, flags, StatxFlags::INO | StatxFlags::MNT_ID).ok()
}

/// Whether an overlay that is the root of who maps the file has all of its layers on one file system, which is no server's.
fn is_on_one_disk(file: BorrowedFd<'_>, pid: Option<Pid>, root: Option<&Root>) -> bool {
    let folder = root.and_then(Root::folder);
    let path = pid.filter(|_| folder.is_none());
    let path = path.map_or_else(String::new, |pid| format!("/proc/{pid}/root"));
    let (Some(at), Some(root)) = (place(file, ""), place(folder.unwrap_or(CWD), &path)) else {
        return false;
    };
    // Folders have the overlay's device, files only if it has but one file system below.
    at.stx_mnt_id == root.stx_mnt_id
        && (at.stx_dev_major, at.stx_dev_minor) == (root.stx_dev_major, root.stx_dev_minor)
        && at.stx_ino >> NUMBER_BITS == 0
        && has_extents(file)
}

/// Whether the file system below says where on a disk the file lies.
#[allow(unsafe_code)]
fn has_extents(file: BorrowedFd<'_>) -> bool {
    /// `struct fiemap` and the first of its extents. Source: linux/fiemap.h.
    #[repr(C)]
    #[derive(Default)]
    struct Fiemap {
        start: u64,
        length: u64,
        flags: u32,
        mapped_extents: u32,
        extent_count: u32,
        reserved: u32,
        extent: [u64; 7],
    }
    const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
    let mut asked = Fiemap {
        length: 1,
        extent_count: 1,
        ..Fiemap::default()
    };
    // SAFETY: the kernel reads the head, and writes it and as many extents as it says there is room for: one.
    unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut asked) == 0 }
}

/// Whether root has mounted the overlay, and of nothing that a server has: it is in the mount namespace of the process, or in
/// ours, and that belongs to our user namespace.
fn is_mounted_by_root(file: BorrowedFd<'_>, pid: Option<Pid>) -> bool {
    let Some(at) = place(file, "") else {
        return false;
    };
    let Some(own) = mounts("/proc/self") else {
        return false;
    };
    let find = |mounts: &[u8]| folders_of_mount(mounts, at.stx_mnt_id);
    let theirs = || find(&mounts(&format!("/proc/{}", pid?))?);
    let folders = find(&own).or_else(theirs);
    folders.is_some_and(|folders| !are_of_server(&own, &folders))
}

/// Whether a server has any of these folders, by a table of mounts.
fn are_of_server(mounts: &[u8], folders: &[PathBuf]) -> bool {
    let mut kinds = folders
        .iter()
        .filter_map(|folder| kind_below(mounts, folder));
    kinds.any(is_of_server)
}

/// Kinds of file systems that a server has, as tables of mounts name them.
fn is_of_server(kind: &[u8]) -> bool {
    let starts = [
        "fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "virtiofs",
    ];
    let mut starts = starts.iter();
    starts.any(|start| kind.starts_with(start.as_bytes()))
}

/// Whether a server has the file system of this device (major, minor), by the mounts that a process sees.
pub(super) fn is_on_server(pid: Pid, device: (u32, u32)) -> bool {
    mount_of(pid, device).is_some_and(|mount| is_of_server(kind_of(&mount)))
}

/// Whether a server may have what lies on the file system of this device (major, minor), or a layer of it, by the mounts that
/// a process sees: not what root has mounted on a disk or in memory.
pub(super) fn may_be_on_server(pid: Pid, device: (u32, u32)) -> bool {
    let theirs = mounts(&format!("/proc/{pid}"));
    let mount = theirs.as_deref().and_then(|table| mount_in(table, device));
    let kind = mount.map(kind_of);
    match (&theirs, kind) {
        (Some(theirs), Some(b"overlay")) => {
            let folders = folders_of_device(theirs, device).unwrap_or_default();
            mounts("/proc/self").is_none_or(|own| are_of_server(&own, &folders))
        }
        (_, Some(kind)) => is_of_server(kind),
        (_, None) => true,
    }
}

/// What the file system of this device (major, minor) is, by the mounts that a process sees: its kind, what is mounted and
/// how, as the table of mounts has them. Nobody has to be asked for that.
pub(super) fn mount_of(pid: Pid, device: (u32, u32)) -> Option<Box<[u8]>> {
    let mut table = Vec::new();
    let file = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
    let mut file = file.take(MAX_MOUNTS_BYTES);
    file.read_to_end(&mut table).ok()?;
    mount_in(&table, device).map(Into::into)
}

/// The kind of what [`mount_in`] finds.
fn kind_of(mount: &[u8]) -> &[u8] {
    let mut words = mount.split(|byte| *byte == b' ');
    words.next().unwrap_or_default()
}

fn mount_in(table: &[u8], (major, minor): (u32, u32)) -> Option<&[u8]> {
    let device = format!("{major}:{minor}");
    let mut lines = table.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        if line.split(|byte| *byte == b' ').nth(2) != Some(device.as_bytes()) {
            return None;
        }
        // Spaces of names are escaped.
        let end = line.windows(3).position(|three| three == b" - ")?;
        line.get(end + 3..)
    })
}

/// What is mounted in the mount namespace of a process, if root alone can mount something there.
fn mounts(folder: &str) -> Option<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // All is asked of one process, whatever becomes of its number.
    let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&folder, name, flags, Mode::empty())
    };
    let table = File::from(open("mountinfo").ok()?);
    // Asked behind: who leaves a namespace of root's does not come back.
    let namespace = open("ns/mnt").ok()?;
    is_of_our_user_namespace(&namespace).then_some(())?;
    let mut bytes = Vec::new();
    table.take(MAX_MOUNTS_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[allow(unsafe_code)]
fn is_of_our_user_namespace(namespace: &OwnedFd) -> bool {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: an ioctl without an argument, which returns a new descriptor that nobody else has.
    let owner = unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) {
            -1 => return false,
            owner => OwnedFd::from_raw_fd(owner),
        }
    };
    let same = || -> rustix::io::Result<bool> {
        let owner = rustix::fs::fstat(&owner)?;
        let own = rustix::fs::stat("/proc/self/ns/user")?;
        Ok((owner.st_dev, owner.st_ino) == (own.st_dev, own.st_ino))
    };
    same().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_mounts_say_what_file_systems_are() {
        let table = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            90 22 0:39 / /mnt rw,nosuid shared:2 master:1 - fuse.sshfs a@b:/ rw\n\
            91 22 0:40 / /fuse rw - tmpfs fuse rw\n";
        let mount = |major, minor| mount_in(table, (major, minor));
        assert_eq!(mount(0, 39), Some(b"fuse.sshfs a@b:/ rw".as_slice()));
        assert_eq!(mount(0, 40), Some(b"tmpfs fuse rw".as_slice()));
        assert_eq!((mount(0, 3), mount(0, 41)), (None, None));
        let layers = |table: &[u8], device| {
            folders_of_device(table, device).map(|folders| are_of_server(table, &folders))
        };
        let overlays = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n90 22 0:39 / /mnt rw - fuse.sshfs a@b:/ rw\n\
            91 22 0:40 / /at rw - overlay overlay rw,lowerdir=/image:/base,upperdir=/up,workdir=/work\n\
            92 22 0:41 / /to rw - overlay overlay rw,lowerdir=/image:/mnt/base,upperdir=/up,workdir=/work\n";
        let of = [(0, 40), (0, 41), (0, 39)].map(|device| layers(overlays, device));
        assert_eq!(of, [Some(false), Some(true), None]);
        assert!(is_of_server(b"fuse.sshfs") && !is_of_server(b"tmpfs") && !is_of_server(b"ext4"));
    }
}
