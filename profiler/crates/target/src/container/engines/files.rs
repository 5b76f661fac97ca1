//! Files of engines below a root, read with bounds.
//!
//! Paths as the machine has them -> bytes or values out of JSON. Only regular files are read, so that no
//! pipe or device can hold anybody up, and the last part of a path is never a link.
//!
//! What does not belong here: what is in the files.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Most bytes that are read of a file.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 1 << 16;

/// Where the files of a machine are.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: &Path) -> Root {
        Root(path.to_owned())
    }

    /// Where a path of the machine is for us.
    pub(super) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Those of these folders that are there, each once.
    pub(super) fn existing(&self, paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
        let mut seen = Vec::new();
        let mut found = Vec::new();
        for path in paths {
            let path = self.join(path);
            if let Ok(status) = fs::metadata(&path)
                && !seen.contains(&(status.dev(), status.ino()))
            {
                seen.push((status.dev(), status.ino()));
                found.push(path);
            }
        }
        found
    }

    /// A path in the folders of users: below each folder of `/home` and of root.
    pub(super) fn in_homes(&self, path: &str) -> Vec<PathBuf> {
        let homes = names(&self.join("/home"));
        let homes = homes.iter().map(|name| Path::new("/home").join(name));
        std::iter::once(PathBuf::from("/root"))
            .chain(homes)
            .map(|home| home.join(path))
            .collect()
    }

    /// A path in the folders that users have while they are logged in.
    pub(super) fn in_sessions(&self, path: &str) -> Vec<PathBuf> {
        let users = names(&self.join("/run/user"));
        let users = users.iter().map(|name| Path::new("/run/user").join(name));
        users.map(|user| user.join(path)).collect()
    }
}

/// The root of the machine as this process sees it: that of the first process, unless this process sees
/// the same files as that one, or may not look at it (that takes CAP_SYS_PTRACE). Where process ids are a
/// container's own, the first process is the container's, and nothing leads out.
pub(super) fn root_of_this_machine() -> &'static Path {
    const FIRST: &str = "/proc/1/root/";
    let mounts = |process: &str| fs::metadata(format!("/proc/{process}/ns/mnt"));
    let elsewhere = match (mounts("self"), mounts("1")) {
        (Ok(ours), Ok(first)) => ours.ino() != first.ino(),
        _ => false,
    };
    match elsewhere && fs::read_dir(FIRST).is_ok() {
        true => Path::new(FIRST),
        false => Path::new("/"),
    }
}

/// The beginning of a regular file, which is all of it if it is not larger than any that is expected.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A value out of a JSON file.
pub(super) fn json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&read(path)?).ok()
}

/// The names in a folder.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let entries = entries.take(MAX_ENTRIES).flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Whether an id can be a part of a path or of an address: nothing in it leads elsewhere.
pub(super) fn is_plain(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-+@".contains(&byte);
    !id.starts_with('.') && (1..=255).contains(&id.len()) && id.bytes().all(is_allowed)
}
