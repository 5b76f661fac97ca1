//! Folders for links to the files that names come from: made for one reader, gone when it has no use for them.
//!
//! Nothing -> an empty folder that the reader can make links in, whoever it is, and nobody else can reach. It lies in
//! a folder of its own, which is locked (flock) as long as somebody lives who needs it: a profiler that was killed
//! leaves one without a lock, and the next one takes that away.
//!
//! What does not belong here: which links there are (`loaded`).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};

use super::copies::SCRATCH;
use super::left_behind::{self, Ours};

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
        let parent = left_behind::folder(scratch).ok()?;
        let owners = [rustix::process::geteuid().as_raw()];
        let own = ours(&owners).open(&parent, &name);
        if let Some(locked) = own.and_then(|own| left_behind::lock(&parent, &name, own)) {
            return Some(LinkFolder {
                path,
                _locked: locked,
            });
        }
    }
    None
}

fn sweep_in(scratch: &Path) {
    let owners = [rustix::process::geteuid().as_raw()];
    let is_name = |name: &str| name.starts_with(PREFIX);
    left_behind::each(scratch, ours(&owners), AGE, is_name, |_, name, locked| {
        drop(LinkFolder {
            path: scratch.join(name),
            _locked: locked,
        });
    });
}

fn ours(owners: &[u32]) -> Ours<'_> {
    Ours {
        kind: FileType::Directory,
        mode: MODE,
        owners,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

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
