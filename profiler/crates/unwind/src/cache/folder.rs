//! A directory that things are kept in, to be found again by a later run: ours alone, files that are there
//! whole or not at all.
//!
//! Names and bytes -> files of mode 0600 in a directory of mode 0700, and back. Links are not followed.
//!
//! What does not belong here: what is in the files (`format`), which of them go (`super`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};

/// How the name of a file ends that is being written.
pub const UNFINISHED: &str = ".new";

/// Most entries of the directory that are looked at.
const MAX_FILES: usize = 1 << 16;

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It belongs to somebody else.
    #[error("it is not ours alone: its owner or its mode is another")]
    Foreign,
}

impl From<rustix::io::Errno> for CacheError {
    fn from(error: rustix::io::Errno) -> CacheError {
        CacheError::System(error.into())
    }
}

/// Where this user's things of a kind are kept: for root where a system keeps what can be made again.
pub fn directory_of_user(kind: &str) -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/var/cache/profiler").join(kind));
    }
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|path| path.is_absolute()).or_else(home)?;
    Some(cache.join("profiler").join(kind))
}

/// Opens a directory that is ours alone; makes it, and its parent, if they are missing.
pub fn open_directory(path: &Path) -> Result<OwnedFd, CacheError> {
    let ours = Mode::RWXU;
    for path in [path.parent().unwrap_or(path), path] {
        match rustix::fs::mkdir(path, ours) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&directory)?;
    if !is_ours(&stat) || FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(CacheError::Foreign);
    }
    Ok(directory)
}

fn is_ours(stat: &rustix::fs::Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0
}

/// Opens what is there under a name, to be read; whose it is has not been looked at.
pub fn open(directory: &OwnedFd, name: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty()).ok()
}

/// Notes that a file was used: the time of its last change says when that was.
pub fn used(file: impl AsFd) {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    let _ = rustix::fs::futimens(file, &times);
}

/// The bytes of an open file that is ours, if they are not more than `limit`.
pub fn read(file: impl AsFd, limit: u64) -> Option<Vec<u8>> {
    let file = File::from(file.as_fd().try_clone_to_owned().ok()?);
    let stat = rustix::fs::fstat(&file).ok()?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let len = u64::try_from(stat.st_size).ok()?;
    if !regular || !is_ours(&stat) || len > limit {
        return None;
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(len).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Writes a file that is there whole or not at all.
pub fn write(directory: &OwnedFd, name: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    let unfinished = format!("{name}{UNFINISHED}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut file = File::from(rustix::fs::openat(directory, &unfinished, flags, mode)?);
    let written = file
        .write_all(bytes)
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
    let written =
        written.and_then(|()| rustix::fs::renameat(directory, &unfinished, directory, name));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, &unfinished, AtFlags::empty());
    }
    written
}

/// Time of the last use, length and name of all files that such a name is meant for.
pub fn list(
    directory: &OwnedFd,
    is_meant: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<(i64, u64, Box<std::ffi::CStr>)>> {
    let mut files = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)?.take(MAX_FILES) {
        let entry = entry?;
        let name = entry.file_name();
        if !is_meant(name.to_bytes()) {
            continue;
        }
        if let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            let len = u64::try_from(stat.st_size).unwrap_or(0);
            files.push((stat.st_mtime, len, name.into()));
        }
    }
    Ok(files)
}
