//! The flight recorder: the newest part of a recording as a row of small captures.
//!
//! Each epoch is a file of its own in `OUTPUT.ring/`; the oldest are removed as new ones come.
//! After a kill each of them still reads (and `profiler merge` joins them). A [`Dump`] copies what
//! is there into one capture, block by block, without unpacking.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::block::*;
use super::error::CaptureError;
use super::item::{EventCounts, event};
use super::limit::Limit;
use super::output::{self, Output};
use super::walk::{Unpacker, Walk};
use super::writer::CreateOptions;

const PREFIX: &str = "part-";

/// Parts of a recording, oldest first.
#[derive(Debug)]
pub(super) struct Ring {
    directory: PathBuf,
    limit: Limit,
    parts: Vec<Part>,
    /// Number of the part made last.
    number: u64,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    len: u64,
    last_ns: u64,
    /// Events by kind.
    events: EventCounts,
}

impl Ring {
    /// Makes the directory of parts.
    pub(super) fn create(
        output: &Path,
        limit: Limit,
        overwrite: bool,
    ) -> Result<Ring, CaptureError> {
        let mut name = output.file_name().unwrap_or_default().to_owned();
        name.push(".ring");
        let directory = output.with_file_name(name);
        if overwrite {
            remove_parts(&directory)?;
        }
        match output::create_directory(&directory) {
            Err(CaptureError::Create { path, source })
                if source.kind() == std::io::ErrorKind::AlreadyExists =>
            {
                return Err(CaptureError::Options(format!(
                    "{} is there from an earlier recording that was killed; join its parts with \
                     profiler merge and remove it, or use --force to discard it",
                    path.display()
                )));
            }
            made => made?,
        }
        Ok(Ring {
            directory,
            limit,
            parts: Vec::new(),
            number: 0,
        })
    }

    /// Where the next part belongs.
    pub(super) fn next_path(&mut self) -> PathBuf {
        self.number += 1;
        self.directory
            .join(format!("{PREFIX}{:06}.cap", self.number))
    }

    /// Takes a part that is complete.
    pub(super) fn keep(&mut self, output: &Output, events: EventCounts) {
        self.parts.push(Part {
            path: output.path.clone(),
            len: output.len,
            last_ns: output.last_ns(),
            events,
        });
    }

    /// Removes the oldest parts as far as the limit has no room for them beside the current one,
    /// which has `len` bytes and reaches up to `now_ns`.
    pub(super) fn expire(&mut self, len: u64, now_ns: u64) -> Result<(), CaptureError> {
        let mut total: u64 = self.parts.iter().map(|part| part.len).sum::<u64>() + len;
        let mut expired = 0;
        for part in &self.parts {
            let over = match self.limit {
                Limit::Bytes(limit) => total > limit,
                Limit::Time(limit) => {
                    u128::from(now_ns.saturating_sub(part.last_ns)) > limit.as_nanos()
                }
            };
            if !over {
                break;
            }
            total -= part.len;
            expired += 1;
        }
        self.parts
            .drain(..expired)
            .try_for_each(|part| remove(&part.path))
    }

    /// All that is there now, ready to be copied.
    pub(super) fn dump(
        &self,
        current: &Output,
        events: EventCounts,
        path: &Path,
        options: &CreateOptions,
    ) -> Result<Dump, CaptureError> {
        let output = Output::create(path, options.overwrite, options.level)?;
        let paths = self
            .parts
            .iter()
            .map(|part| (&part.path, part.len, part.events));
        let mut parts = Vec::new();
        let mut total = [0; event::KINDS];
        for (path, len, events) in paths.chain([(&current.path, current.len, events)]) {
            // Open files outlive their names: a part may expire while it is copied.
            let file = File::open(path).map_err(|source| read_error(path, source))?;
            parts.push((path.clone(), file, len));
            for (total, count) in total.iter_mut().zip(events) {
                *total += count;
            }
        }
        Ok(Dump {
            output,
            parts,
            events: total,
            dropped: 0,
        })
    }

    /// Removes all parts.
    pub(super) fn remove(self) -> Result<(), CaptureError> {
        remove_parts(&self.directory)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Only an empty directory can be removed like this: that of a recording that never began.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// A copy of a ring that is to be written; see [`Writer::dump`](super::Writer::dump).
pub struct Dump {
    output: Output,
    /// Path, file, bytes of it that count.
    parts: Vec<(PathBuf, File, u64)>,
    /// Events of all parts by kind.
    events: EventCounts,
    dropped: u64,
}

impl Dump {
    /// Writes it. Returns the events by kind (as in [`Totals`](super::Totals)), the bytes of the
    /// file and those before packing.
    pub fn run(mut self) -> Result<([u64; event::KINDS], u64, u64), CaptureError> {
        let mut unpacker = Unpacker::new()?;
        let mut unused = Vec::new();
        let mut stored = Vec::new();
        for (path, file, len) in &self.parts {
            let read_error = |source| read_error(path, source);
            let mut head = [0; FILE_HEADER_BYTES];
            file.read_exact_at(&mut head, 0).map_err(read_error)?;
            let Some(header) = FileHeader::decode(&head) else {
                continue;
            };
            let start = FILE_HEADER_BYTES as u64;
            let mut walk = Walk::new(file, *len, header.file_id, start, Some(0), &mut unpacker);
            while let Some(block) = walk.next(&mut unused, |_| false).map_err(read_error)? {
                if matches!(block.header.kind, kind::DEFINITIONS | kind::EVENTS) {
                    stored.resize(block.header.stored_bytes as usize, 0);
                    let at = block.offset + HEADER_BYTES as u64;
                    file.read_exact_at(&mut stored, at).map_err(read_error)?;
                    self.output.copy(block.header, &stored)?;
                }
            }
        }
        self.output.finish(&self.events, self.dropped)?;
        Ok((self.events, self.output.len, self.output.raw_bytes))
    }

    /// What the block of totals is to say of events that were not written.
    pub(super) fn set_dropped(&mut self, dropped: u64) {
        self.dropped = dropped;
    }
}

fn read_error(path: &Path, source: std::io::Error) -> CaptureError {
    CaptureError::Read {
        path: path.to_owned(),
        offset: 0,
        source,
    }
}

fn remove_parts(directory: &Path) -> Result<(), CaptureError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(remove_error(directory, source)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Only what a ring makes: the directory may be someone else's.
        if name.starts_with(PREFIX) && name.ends_with(".cap") {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(directory).map_err(|source| remove_error(directory, source))
}

fn remove(path: &Path) -> Result<(), CaptureError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(remove_error(path, error))
        }
        _ => Ok(()),
    }
}

fn remove_error(path: &Path, source: std::io::Error) -> CaptureError {
    CaptureError::Create {
        path: path.to_owned(),
        source,
    }
}
