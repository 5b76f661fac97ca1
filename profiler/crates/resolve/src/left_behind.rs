//! What profilers that were killed have left in folders for temporary files.
//!
//! A folder, and what ours looks like -> its entries that are ours, old and not in use, each locked (flock). Who uses
//! one holds its lock. Others may put there what they want, and take away what they may: nothing is followed, and nothing that
//! somebody has mounted there is asked anything. What does not belong here: how one is taken away.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat,
};

/// What is ours of a folder, by what it is rather than by its name.
#[derive(Clone, Copy, Debug)]
pub struct Ours<'a> {
    /// A folder, or a regular file.
    pub kind: FileType,
    /// Just these permissions.
    pub mode: Mode,
    /// Users, by number.
    pub owners: &'a [u32],
}

impl Ours<'_> {
    /// Opens such an entry; none if it is something else, or there no longer.
    pub(crate) fn open(&self, parent: &OwnedFd, name: &str) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = match self.kind {
            FileType::Directory => flags | OFlags::DIRECTORY,
            _ => flags | OFlags::NONBLOCK,
        };
        // What somebody has mounted there is not asked anything: it may never answer.
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let file = openat2(parent, name, flags, Mode::empty(), resolve).ok()?;
        let found = fstat(&file).ok()?;
        let is_ours = self.owners.contains(&found.st_uid)
            && FileType::from_raw_mode(found.st_mode) == self.kind
            && Mode::from_raw_mode(found.st_mode) == self.mode;
        is_ours.then(|| file.into())
    }
}

/// Opens a folder in which something may have been left behind.
pub(crate) fn folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Locks an entry of a folder; none if it is in use, or there no longer.
pub(crate) fn lock(parent: &OwnedFd, name: &str, file: File) -> Option<File> {
    let found = fstat(&file).ok()?;
    file.try_lock().ok()?;
    // Who had it before us may have taken it away, and another one may have that name by now.
    let named = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (named.st_dev == found.st_dev && named.st_ino == found.st_ino).then_some(file)
}

/// Hands over what was left behind: the folder that it is in, its name, and what holds its lock. One that was changed within
/// `age` is left alone: it may not be locked yet, or still be wanted.
pub fn each(
    folder: &Path,
    ours: Ours<'_>,
    age: Duration,
    is_name: impl Fn(&str) -> bool,
    mut take: impl FnMut(&OwnedFd, &str, File),
) {
    let Ok(parent) = self::folder(folder) else {
        return;
    };
    let Ok(entries) = Dir::read_from(&parent) else {
        return;
    };
    let is_old = |file: &File| {
        let changed = file.metadata().and_then(|found| found.modified());
        changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|since| since >= age))
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if is_name(name)
            && let Some(file) = ours.open(&parent, name).filter(is_old)
            && let Some(locked) = lock(&parent, name, file)
        {
            take(&parent, name, locked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A folder that another one is mounted on, as a server that never answers can be.
    #[test]
    fn what_is_mounted_there_is_not_asked() {
        let parent = folder(Path::new("/")).unwrap();
        let here = fstat(&parent).unwrap();
        let proc = std::fs::metadata("/proc").unwrap();
        assert_ne!(here.st_dev, proc.dev());
        let ours = Ours {
            kind: FileType::Directory,
            mode: Mode::from_raw_mode(proc.mode()),
            owners: &[proc.uid()],
        };
        assert!(ours.open(&parent, "proc").is_none());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let crossed = openat2(&parent, "proc", flags, Mode::empty(), ResolveFlags::NO_XDEV);
        assert_eq!(crossed.unwrap_err(), rustix::io::Errno::XDEV);
    }
}
