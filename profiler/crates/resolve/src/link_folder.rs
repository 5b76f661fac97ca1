//! Folders for links to the files that names come from: made for one reader, gone when it has no use for them.
//!
//! Nothing -> an empty folder that the reader can make links in, whoever it is, and nobody else can reach. It lies in
//! a folder of its own, which is locked (flock) as long as somebody lives who needs it: a profiler that was killed
//! leaves one without a lock, and the next one takes that away.
//!
//! What does not belong here: which links there are (`loaded`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};

use super::copies::SCRATCH;

const PREFIX: &str = "profiler-links-";
/// Those that are left behind are ours, and nobody else can look into them.
const MODE: Mode = Mode::RWXU;
/// One that is younger is not taken for left behind: it may not be locked yet.
const AGE: Duration = Duration::from_secs(60);
/// Names that are tried.
const TRIES: u32 = 8;

/// A folder. It goes when it is dropped.
#[derive(Debug)]
pub(crate) struct LinkFolder {
    path: PathBuf,
    /// Holds the lock.
    _locked: File,
}

impl LinkFolder {
    /// Makes it, and opens what the reader gets.
    pub(crate) fn make() -> io::Result<(LinkFolder, OwnedFd)> {
        let made = SCRATCH.iter().find_map(|scratch| make(Path::new(scratch)));
        let folder = made.ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        let inner = folder.path.join("links");
        rustix::fs::mkdir(&inner, MODE)?;
        rustix::fs::chmod(&inner, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = openat(CWD, &inner, flags, Mode::empty())?;
        Ok((folder, inner))
    }
}

impl Drop for LinkFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            log::debug!("{} was left behind: {error}", self.path.display());
        }
    }
}

/// Takes away what profilers of this user have left that were killed; the first time it is called.
pub(crate) fn sweep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for scratch in SCRATCH {
            sweep_in(Path::new(scratch));
        }
    });
}

fn make(scratch: &Path) -> Option<LinkFolder> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..TRIES {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{count}", std::process::id());
        let path = scratch.join(&name);
        match rustix::fs::mkdir(&path, MODE) {
            // Of another process with this id, in a container that shares the folder.
            Err(rustix::io::Errno::EXIST) => continue,
            made => made.ok()?,
        }
        let parent = open(CWD, scratch).ok()?;
        let name = Path::new(&name);
        if let Some(locked) = open_own(&parent, name).and_then(|own| lock(&parent, name, own)) {
            return Some(LinkFolder {
                path,
                _locked: locked,
            });
        }
    }
    None
}

fn sweep_in(scratch: &Path) {
    let Ok(parent) = open(CWD, scratch) else {
        return;
    };
    let Ok(entries) = Dir::read_from(&parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(name) = name.to_str() else { continue };
        let path = Path::new(name);
        if name.starts_with(PREFIX)
            && let Some(folder) = open_own(&parent, path).filter(is_old)
            && let Some(locked) = lock(&parent, path, folder)
        {
            drop(LinkFolder {
                path: scratch.join(path),
                _locked: locked,
            });
        }
    }
}

fn is_old(folder: &File) -> bool {
    let changed = folder.metadata().and_then(|found| found.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age >= AGE))
}

/// Opens a folder that is ours; none if it is somebody else's, or there no longer.
fn open_own(parent: &OwnedFd, name: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What somebody has mounted there is not asked anything: it may never answer.
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let folder = openat2(parent, name, flags, Mode::empty(), resolve).ok()?;
    let found = fstat(&folder).ok()?;
    let is_ours = found.st_uid == rustix::process::geteuid().as_raw();
    (is_ours && Mode::from_raw_mode(found.st_mode) == MODE).then(|| folder.into())
}

/// Locks such a folder; none if it is in use, or there no longer.
fn lock(parent: &OwnedFd, name: &Path, folder: File) -> Option<File> {
    let found = fstat(&folder).ok()?;
    folder.try_lock().ok()?;
    // Who had it before us may have taken it away.
    let named = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (named.st_dev == found.st_dev && named.st_ino == found.st_ino).then_some(folder)
}

fn open(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sweep-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn what_a_killed_profiler_has_left_goes_and_nothing_else() {
        let folder = scratch("left");
        let there = |name: &str| folder.join(name).symlink_metadata().is_ok();
        let make_private = |name: &str| {
            let path = folder.join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            path
        };
        // As a kill leaves it: links in it, and no lock.
        let left = make_private("profiler-links-1-0");
        std::fs::create_dir_all(left.join("links/0")).unwrap();
        let precious = make_private("precious");
        std::fs::write(precious.join("file"), "").unwrap();
        symlink(&precious, left.join("links/0/main")).unwrap();
        let young = make_private("profiler-links-2-0");

        let used = super::make(&folder).unwrap();
        let others = ["profiler-links-of-all", "profiler-links-link", "other"];
        let open_to_all = make_private(others[0]);
        std::fs::set_permissions(&open_to_all, PermissionsExt::from_mode(0o755)).unwrap();
        symlink(&precious, folder.join(others[1])).unwrap();
        make_private(others[2]);
        let foreign = make_private("profiler-links-foreign");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&foreign, Some(65_534), None).unwrap();
        }

        let long_ago = std::time::SystemTime::now() - 2 * AGE;
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path != young && !path.is_symlink() {
                File::open(path).unwrap().set_modified(long_ago).unwrap();
            }
        }
        sweep_in(&folder);
        assert!(!left.exists() && young.exists());
        assert!(used.path.exists() && precious.join("file").exists());
        assert!(others.iter().all(|name| there(name)));
        let is_foreign = rustix::process::geteuid().is_root();
        assert_eq!(foreign.exists(), is_foreign);

        let path = used.path.clone();
        drop(used);
        assert!(!path.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A folder that another one is mounted on, as a server that never answers can be.
    #[test]
    fn what_is_mounted_there_is_not_asked() {
        let parent = open(CWD, Path::new("/")).unwrap();
        let here = fstat(&parent).unwrap();
        let proc = std::fs::metadata("/proc").unwrap();
        assert_ne!(here.st_dev, proc.dev());
        assert!(open_own(&parent, Path::new("proc")).is_none());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let crossed = openat2(&parent, "proc", flags, Mode::empty(), ResolveFlags::NO_XDEV);
        assert_eq!(crossed.unwrap_err(), rustix::io::Errno::XDEV);
    }

    #[test]
    fn folders_that_are_made_at_once_are_all_kept() {
        let folder = scratch("race");
        let made = std::thread::scope(|scope| {
            let sweeping = scope.spawn(|| (0..200).for_each(|_| sweep_in(&folder)));
            let made: Vec<_> = (0..50).filter_map(|_| super::make(&folder)).collect();
            sweeping.join().unwrap();
            made
        });
        assert_eq!(made.len(), 50);
        assert!(made.iter().all(|made| made.path.exists()));
        drop(made);
        std::fs::remove_dir(folder).unwrap();
    }
}
