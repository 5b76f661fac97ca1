//! Tables on disk, so that they are built once per machine, not once per recording.
//!
//! An object file -> its [`Table`], from a file of an earlier build or built and then kept. The name of a
//! kept table is a digest (SHA-256) of everything that it was made of: a file that claims another one's
//! build id gets its own table, and nothing else. What does not belong here: who needs which table.
//!
//! A kept file is checked whole before it is used (length, checksum, every number in its range); a
//! damaged one is removed. The directory and its files are ours alone (0700, 0600), links are not
//! followed, files come into being by renaming. Of files beyond the limit on bytes those go that were
//! not used for longest. Where the directory can't be had or written, tables are built and not kept;
//! that is said once, for debugging. Small files are never kept: reading a table back saves them nothing.
//!
//! ```text
//! "unwind\n" version | checksum u32, 0 u32 | base, pages, rows, rules u64 | the report, 16 u64
//! rows of each page u32 .. | rows u32 .. | rules 16 bytes ..
//! ```
//! Numbers are little endian; the checksum (CRC-32) is of all behind it.

pub mod folder;
mod format;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::AtFlags;

use self::folder::{UNFINISHED, directory_of_user, list, open_directory, read, write};
pub use self::format::{decode, encode};
use super::build::Source;
use super::{BuildError, BuildReport, Raw, Table};
use profiler_object::elf::Elf;

/// What kept tables begin with. Another version of the format, or of what tables say, is another number.
const MAGIC: &[u8; 8] = b"unwind\n\x03";
/// Files with less unwind information than this are built each time.
const MIN_SECTION_BYTES: u64 = 64 << 10;
/// Most bytes of all kept tables, unless told otherwise.
pub const LIMIT_BYTES: u64 = 256 << 20;
/// Most bytes of a section that are handed to another process: of longer ones it reads the file.
const MAX_HANDED_BYTES: u64 = 64 << 20;
const SUFFIX: &str = ".table";
/// What has been unfinished for so long was left by a profiler that was killed.
const UNFINISHED_SECONDS: i64 = 3600;

/// A folder of unwind tables that were built earlier.
#[derive(Debug)]
pub struct Cache {
    /// None: nothing is kept.
    directory: Option<Arc<OwnedFd>>,
    limit_bytes: u64,
    /// Of all files, as far as known, for all that share them. Who has it locked is the only one that makes
    /// files, or room for them.
    bytes: Arc<Mutex<u64>>,
    counts: CacheCounts,
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Tables that were read back.
    pub found: u64,
    /// Tables that were built.
    pub built: u64,
    /// Of these: that were kept.
    pub kept: u64,
    /// Kept tables that were damaged.
    pub damaged: u64,
    /// Kept tables that went to make room.
    pub removed: u64,
}

/// The name of what is kept of a file.
#[derive(Debug)]
pub struct Name(String);

impl Name {
    fn of(raw: &Raw, owner: Option<u32>) -> Name {
        Name(raw.digest(owner) + SUFFIX)
    }
}

/// What is known of a file that its owner can change.
#[derive(Debug)]
pub enum Looked {
    /// Its table.
    Found(Box<Table>, BuildReport),
    /// What its table is made of, and the name that it is to be kept under.
    Raw(Raw, Name),
    /// Its table is not kept: the whole file has to be read.
    File,
}

impl Cache {
    /// Keeps nothing.
    pub fn none() -> Cache {
        Cache {
            directory: None,
            limit_bytes: 0,
            bytes: Arc::default(),
            counts: CacheCounts::default(),
        }
    }

    /// The same kept tables for another thread: both keep within one limit. Each counts its own requests.
    pub fn share(&self) -> Cache {
        Cache {
            directory: self.directory.clone(),
            limit_bytes: self.limit_bytes,
            bytes: self.bytes.clone(),
            counts: CacheCounts::default(),
        }
    }

    /// Keeps tables where this user's belong.
    pub fn of_user() -> Cache {
        match directory_of_user("unwind") {
            Some(path) => Cache::open(&path, LIMIT_BYTES),
            None => Cache::none(),
        }
    }

    /// Keeps tables in a directory, which is made if its parent's parent exists.
    pub fn open(path: &Path, limit_bytes: u64) -> Cache {
        let mut cache = Cache {
            limit_bytes,
            ..Cache::none()
        };
        match open_directory(path) {
            Ok(directory) => {
                cache.directory = Some(Arc::new(directory));
                let bytes = cache.bytes.clone();
                cache.make_room(&mut lock(&bytes), 0);
            }
            Err(error) => {
                log::debug!("unwind tables are not kept in {}: {error}", path.display());
            }
        }
        cache
    }

    /// What became of requests so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// The table of a file: see [`super::build_file`].
    pub fn table_of_file(
        &mut self,
        file: &File,
        debug: Option<&File>,
    ) -> Result<(Table, BuildReport), BuildError> {
        let elf = Elf::read(file)?;
        let debug = match debug {
            Some(debug) => Some((debug, Elf::read(debug)?)),
            None => None,
        };
        self.table(file, &elf, debug.as_ref().map(|(file, elf)| (*file, elf)))
    }

    /// The table of a file whose headers were read already.
    pub fn table(
        &mut self,
        file: &File,
        elf: &Elf,
        debug: Option<(&File, &Elf)>,
    ) -> Result<(Table, BuildReport), BuildError> {
        let raw = Raw::read(file, elf, debug)?;
        if !self.keeps(&raw) {
            self.counts.built += 1;
            let of = raw.may_be_go.then_some((file, elf));
            return Source::of(raw, of)?.build();
        }
        let name = Name::of(&raw, None);
        if let Some(found) = self.find(&name.0) {
            self.counts.found += 1;
            return Ok(found);
        }
        self.counts.built += 1;
        let (table, report) = Source::of(raw, None)?.build()?;
        self.keep(&name, &encode(&table, &report));
        Ok((table, report))
    }

    /// The table of a file that its `owner` can change, if it is here; else what another process may build it of.
    /// What was built of such files is for its owner's files only.
    pub fn look(&mut self, file: &File, elf: &Elf, owner: u32) -> Result<Looked, BuildError> {
        if self.directory.is_none() {
            return Ok(Looked::File);
        }
        let raw = match Raw::up_to(file, elf, None, MAX_HANDED_BYTES) {
            Ok(raw) => raw,
            Err(BuildError::Machine) => return Err(BuildError::Machine),
            // It is told by who reads all of it.
            Err(_) => return Ok(Looked::File),
        };
        if !self.keeps(&raw) {
            return Ok(Looked::File);
        }
        let name = Name::of(&raw, Some(owner));
        match self.find(&name.0) {
            Some((table, report)) => {
                self.counts.found += 1;
                Ok(Looked::Found(Box::new(table), report))
            }
            None => Ok(Looked::Raw(raw, name)),
        }
    }

    /// What is read of Go's functions is most of the work there; of others, what can be kept.
    fn keeps(&self, raw: &Raw) -> bool {
        self.directory.is_some() && !raw.may_be_go && raw.bytes() >= MIN_SECTION_BYTES
    }

    fn find(&mut self, name: &str) -> Option<(Table, BuildReport)> {
        let directory = self.directory.as_deref()?;
        let file = folder::open(directory, name)?;
        let found = read(file.as_fd(), self.limit_bytes).and_then(|bytes| decode(&bytes));
        if found.is_none() {
            self.counts.damaged += 1;
            let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
            return None;
        }
        folder::used(&file);
        found
    }

    /// Keeps an encoded table.
    pub fn keep(&mut self, Name(name): &Name, bytes: &[u8]) {
        let Some(directory) = self.directory.clone() else {
            return;
        };
        let len = bytes.len() as u64;
        if len > self.limit_bytes / 4 {
            return;
        }
        let all = self.bytes.clone();
        let mut all = lock(&all);
        if *all + len > self.limit_bytes {
            self.make_room(&mut all, len);
        }
        match write(&directory, name, bytes) {
            Ok(()) => {
                self.counts.kept += 1;
                *all += len;
            }
            // Another profiler keeps the same one, or did when it ended.
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => {
                log::debug!("unwind tables are not kept any more: {error}");
                self.directory = None;
            }
        }
    }

    /// Counts what is there; if that and `more` is too much, removes what was not used for longest, down
    /// to three quarters of the limit.
    fn make_room(&mut self, bytes: &mut u64, more: u64) {
        let Some(directory) = &self.directory else {
            return;
        };
        let ends = [SUFFIX, UNFINISHED].map(str::as_bytes);
        let is_ours = |name: &[u8]| ends.iter().any(|end| name.ends_with(end));
        let Ok(mut files) = list(directory, is_ours) else {
            return;
        };
        files.sort_unstable();
        *bytes = files.iter().map(|(_, len, _)| len).sum();
        let full = *bytes + more > self.limit_bytes;
        let long_ago = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec
            - UNFINISHED_SECONDS;
        for (used, len, name) in &files {
            let over = full && *bytes > self.limit_bytes / 4 * 3;
            let left = *used < long_ago && name.to_bytes().ends_with(UNFINISHED.as_bytes());
            if !over && !left {
                continue;
            }
            if rustix::fs::unlinkat(directory, &**name, AtFlags::empty()).is_ok() {
                *bytes -= len;
                self.counts.removed += 1;
            }
        }
    }
}

fn lock(bytes: &Mutex<u64>) -> MutexGuard<'_, u64> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}
