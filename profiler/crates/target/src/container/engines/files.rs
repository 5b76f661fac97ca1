//! Files of engines below a root, read with bounds.
//!
//! Paths as the machine has them -> bytes or values out of JSON. Only regular files are read, so that no
//! pipe or device can hold anybody up, and the last part of a path is never a link. What is read of a
//! user's files has one budget of time, bytes and entries.
//!
//! What does not belong here: what is in the files.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;

/// Most bytes that are read of a file.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 1 << 16;
/// Most links on the way to a file.
const MAX_LINKS: usize = 40;
/// What was written so long ago has been written whole, and would show another time if it were written again.
const SETTLED: Duration = Duration::from_millis(100);

/// What may be read until another one is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) until: Instant,
    pub(super) bytes: u64,
    pub(super) entries: usize,
}

/// Where the files of a machine are.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// None: there is no end to it.
    budget: Cell<Option<Budget>>,
    /// Something was left out.
    over: Cell<bool>,
}

impl Root {
    pub(super) fn new(path: &Path) -> Root {
        Root {
            path: path.to_owned(),
            budget: Cell::new(None),
            over: Cell::new(false),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// From now on this much is read.
    pub(super) fn limit(&self, budget: Budget) {
        self.budget.set(Some(budget));
        self.over.set(false);
    }

    /// Whether there was more than may be read.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Takes so much out of the budget; false, if there is no more.
    fn spend(&self, bytes: u64, entries: usize) -> bool {
        let Some(mut budget) = self.budget.get() else {
            return true;
        };
        let is_over =
            bytes > budget.bytes || entries > budget.entries || Instant::now() >= budget.until;
        if is_over {
            self.over.set(true);
            // What is smaller is not read in its place: one bound, and then nothing.
            (budget.bytes, budget.entries) = (0, 0);
        } else {
            budget.bytes -= bytes;
            budget.entries -= entries;
        }
        self.budget.set(Some(budget));
        !is_over
    }

    /// Where a path of the machine is for us.
    pub(super) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The beginning of a regular file, which is all of it if it is not larger than any that is expected.
    pub(super) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        self.spend(0, 1).then_some(())?;
        let (file, status) = open(path)?;
        self.rest(file, &status)
    }

    /// A value out of a JSON file.
    pub(super) fn json<T: DeserializeOwned>(&self, path: &Path) -> Option<T> {
        serde_json::from_slice(&self.read(path)?).ok()
    }

    fn rest(&self, file: File, status: &Metadata) -> Option<Vec<u8>> {
        self.spend(status.len().min(MAX_FILE_BYTES), 0)
            .then_some(())?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The names in a folder.
    pub(super) fn names(&self, folder: &Path) -> Vec<String> {
        if !self.spend(0, 1) {
            return Vec::new();
        }
        let entries = fs::read_dir(folder).into_iter().flatten();
        let entries = entries.take(MAX_ENTRIES).take_while(|_| self.spend(0, 1));
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
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

/// Opens a regular file.
fn open(path: &Path) -> Option<(File, Metadata)> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path).ok()?;
    let status = file.metadata().ok()?;
    status.is_file().then_some((file, status))
}

/// What was found in files, so that none is read twice that has not changed.
#[derive(Debug)]
pub(super) struct Found<T> {
    files: HashMap<(u64, u64), Known<T>>,
    /// Which round of reading it is.
    round: u64,
}

#[derive(Debug)]
struct Known<T> {
    stamp: [i64; 5],
    found: T,
    round: u64,
}

impl<T> Default for Found<T> {
    fn default() -> Found<T> {
        Found {
            files: HashMap::new(),
            round: 0,
        }
    }
}

impl<T: Clone> Found<T> {
    /// What is in a file; none if it can't be read.
    pub(super) fn get(
        &mut self,
        root: &Root,
        path: &Path,
        parse: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        root.spend(0, 1).then_some(())?;
        let (file, status) = open(path)?;
        let (key, stamp) = ((status.dev(), status.ino()), stamp(&status));
        if let Some(known) = self.files.get_mut(&key)
            && known.stamp == stamp
        {
            known.round = self.round;
            return Some(known.found.clone());
        }
        self.files.remove(&key);
        let found = parse(&root.rest(file, &status)?);
        if is_settled(&status) {
            let known = Known {
                stamp,
                found: found.clone(),
                round: self.round,
            };
            self.files.insert(key, known);
        }
        Some(found)
    }

    /// All have been looked at: forgets those that were not there.
    pub(super) fn end_round(&mut self) {
        let round = self.round;
        self.files.retain(|_, known| known.round == round);
        self.round += 1;
    }
}

/// What is another one when a file was written.
fn stamp(status: &Metadata) -> [i64; 5] {
    [
        status.size().cast_signed(),
        status.mtime(),
        status.mtime_nsec(),
        status.ctime(),
        status.ctime_nsec(),
    ]
}

fn is_settled(status: &Metadata) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let changed = u64::try_from(status.ctime()).map(Duration::from_secs);
    match (now, changed) {
        (Ok(now), Ok(changed)) => {
            let nanos = Duration::from_nanos(status.ctime_nsec().cast_unsigned());
            now.saturating_sub(changed + nanos) >= SETTLED
        }
        _ => false,
    }
}

/// Where a path leads to below a root, all links followed in there; none unless it is `owner`'s, and all
/// folders on the way are, and nobody else may write there, or no more than make names of their own (as in /tmp).
pub(super) fn owned_path(root: &Path, path: &Path, owner: u32) -> Option<(PathBuf, Metadata)> {
    let mut left: Vec<PathBuf> = parts(path);
    let mut found = PathBuf::new();
    let mut status = fs::metadata(root).ok()?;
    let mut links = 0;
    while let Some(part) = left.pop() {
        let is_others = !is_owners_alone(&status, owner);
        let keeps_names = status.uid() == owner && status.mode() & libc::S_ISVTX != 0;
        if !status.is_dir() || is_others && !keeps_names {
            return None;
        }
        if part.as_os_str() == ".." {
            found.pop();
            status = fs::symlink_metadata(root.join(&found)).ok()?;
            continue;
        }
        let next = found.join(&part);
        let there = fs::symlink_metadata(root.join(&next)).ok()?;
        // Only a folder can't be one from elsewhere under another name.
        if is_others && !(there.is_dir() && there.uid() == owner) {
            return None;
        }
        if there.is_symlink() {
            links += 1;
            if links > MAX_LINKS || there.uid() != owner {
                return None;
            }
            let target = fs::read_link(root.join(&next)).ok()?;
            if target.is_absolute() {
                found = PathBuf::new();
                status = fs::metadata(root).ok()?;
            }
            left.extend(parts(&target));
            continue;
        }
        (found, status) = (next, there);
    }
    (status.uid() == owner).then(|| (root.join(found), status))
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    });
    let mut parts: Vec<PathBuf> = parts.collect();
    parts.reverse();
    parts
}

/// Whether something is somebody's, and nobody else may write there.
pub(super) fn is_owners_alone(status: &Metadata, owner: u32) -> bool {
    status.uid() == owner && status.mode() & 0o022 == 0
}

/// Whether an id can be a part of a path or of an address: nothing in it leads elsewhere.
pub(super) fn is_plain(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-+@".contains(&byte);
    !id.starts_with('.') && (1..=255).contains(&id.len()) && id.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::tests::Machine;
    use super::*;

    #[test]
    fn what_has_not_changed_is_read_once() {
        let machine = Machine::new("once");
        machine.file("one", "1");
        fs::hard_link(machine.0.join("one"), machine.0.join("two")).unwrap();
        std::thread::sleep(SETTLED * 2);
        let root = Root::new(&machine.0);
        let (mut found, read) = (Found::default(), Cell::new(0));
        let mut get = |name: &str| {
            found.get(&root, &root.join(name), |bytes| {
                read.set(read.get() + 1);
                bytes.len()
            })
        };
        let all = [get("one"), get("one"), get("two"), get("none")];
        assert_eq!((all, read.get()), ([Some(1), Some(1), Some(1), None], 1));
        machine.file("one", "12");
        assert_eq!((get("one"), read.get()), (Some(2), 2));
        found.end_round();
        assert_eq!(
            found.files.len(),
            0,
            "it may be written again at the same time"
        );
    }

    #[test]
    fn a_budget_ends_it() {
        let machine = Machine::new("budget");
        machine.file("folder/one", "1");
        machine.file("folder/two", "12345");
        let root = Root::new(&machine.0);
        let limit = |bytes, entries, time| {
            root.limit(Budget {
                until: Instant::now() + time,
                bytes,
                entries,
            });
        };
        let long = Duration::from_secs(60);
        let [one, two] = ["folder/one", "folder/two"].map(|name| root.join(name));
        limit(4, 10, long);
        assert!(root.read(&one).is_some() && root.read(&two).is_none() && root.is_over());
        assert!(root.read(&one).is_none(), "nothing is read in its place");
        limit(9, 3, long);
        assert_eq!(root.names(&root.join("folder")).len(), 2);
        assert!(!root.is_over() && root.read(&one).is_none() && root.is_over());
        limit(9, 9, Duration::ZERO);
        assert!(root.read(&one).is_none() && root.names(&machine.0).is_empty());
    }
}
