//! What formats keep of each sample until the end: in memory up to a limit, behind that in a file without a name.
//!
//! Pieces of bytes -> the same again. The file is in `TMPDIR`, `/var/tmp` or `/tmp`, and gone with who made it. Where none of
//! these takes it, or there is no more room, pieces stay in memory. What does not belong here: what the bytes are (`timed`).

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

/// Most bytes of pieces in memory, if there is a file.
const MOST_IN_MEMORY: usize = 64 << 20;

/// Bytes that were put aside.
#[derive(Debug)]
pub(super) enum Piece {
    Memory(Box<[u8]>),
    /// In the file, from there on.
    File {
        at: u64,
        len: usize,
    },
}

/// Where pieces are.
#[derive(Debug, Default)]
pub(super) struct Aside {
    in_memory: usize,
    most_in_memory: Option<usize>,
    file: Option<File>,
    /// No folder takes a file, or it could not be written.
    has_no_file: bool,
    file_end: u64,
    /// What could not be read again.
    failed: RefCell<Option<io::Error>>,
}

impl Aside {
    pub(super) fn put(&mut self, bytes: &[u8]) -> Piece {
        let most = self.most_in_memory.unwrap_or(MOST_IN_MEMORY);
        if self.in_memory + bytes.len() > most
            && let Some(piece) = self.put_in_file(bytes)
        {
            return piece;
        }
        self.in_memory += bytes.len();
        Piece::Memory(bytes.into())
    }

    fn put_in_file(&mut self, bytes: &[u8]) -> Option<Piece> {
        if self.file.is_none() && !self.has_no_file {
            self.file = unnamed();
        }
        let file = self.file.as_ref().filter(|_| !self.has_no_file);
        let written = file.is_some_and(|file| file.write_all_at(bytes, self.file_end).is_ok());
        // What is there already can still be read.
        self.has_no_file |= !written;
        let (at, len) = (self.file_end, bytes.len());
        self.file_end += len as u64;
        written.then_some(Piece::File { at, len })
    }

    /// Gets a piece again, in place of what `into` has; nothing if that fails, which [`Aside::check`] tells.
    pub(super) fn get(&self, piece: &Piece, into: &mut Vec<u8>) {
        into.clear();
        match piece {
            Piece::Memory(bytes) => into.extend_from_slice(bytes),
            &Piece::File { at, len } => {
                into.resize(len, 0);
                let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound.into());
                if let Err(error) = file.and_then(|file| file.read_exact_at(into, at)) {
                    into.clear();
                    self.failed.replace(Some(error));
                }
            }
        }
    }

    /// Fails if a piece could not be got again.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => {
                let what = format!("samples that were put aside can't be read again: {error}");
                Err(io::Error::new(error.kind(), what))
            }
            None => Ok(()),
        }
    }
}

/// A file without a name, in the first folder that takes one: on disk rather than in memory.
fn unnamed() -> Option<File> {
    let wanted = std::env::var_os("TMPDIR").map(PathBuf::from);
    let usual = ["/var/tmp", "/tmp"].map(PathBuf::from);
    let mut folders = wanted.into_iter().chain(usual);
    folders.find_map(|folder| unnamed_in(&folder))
}

fn unnamed_in(folder: &Path) -> Option<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let made = rustix::fs::openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR);
    made.ok().map(File::from)
}

#[cfg(test)]
impl Aside {
    /// With so many bytes in memory at most.
    pub(super) fn with_most_in_memory(most: usize) -> Aside {
        Aside {
            most_in_memory: Some(most),
            ..Aside::default()
        }
    }

    /// Its file can't be read or written any more.
    pub(super) fn lose_file(&mut self) {
        self.file = File::open("/dev/null").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(aside: &Aside, pieces: &[Piece]) -> Vec<Vec<u8>> {
        let get = |piece| {
            let mut bytes = vec![99];
            aside.get(piece, &mut bytes);
            bytes
        };
        pieces.iter().map(get).collect()
    }

    #[test]
    fn pieces_come_again_from_both_places() {
        let mut aside = Aside::with_most_in_memory(8);
        let texts = [
            b"first".to_vec(),
            b"second".to_vec(),
            Vec::new(),
            b"third".to_vec(),
        ];
        let pieces: Vec<Piece> = texts.iter().map(|text| aside.put(text)).collect();
        let are_there = pieces.iter().map(|piece| matches!(piece, Piece::Memory(_)));
        // The empty one fits, wherever the others are.
        assert_eq!(are_there.collect::<Vec<_>>(), [true, false, true, false]);
        assert_eq!(all(&aside, &pieces), texts);
        aside.check().unwrap();
    }

    #[test]
    fn without_a_file_they_stay_in_memory() {
        let mut aside = Aside::with_most_in_memory(0);
        let kept = aside.put(b"kept");
        aside.lose_file();
        let more = aside.put(b"more");
        assert!(matches!(more, Piece::Memory(_)));
        assert_eq!(all(&aside, &[more]), [b"more"]);
        aside.check().unwrap();
        assert_eq!(all(&aside, &[kept]), [b""]);
        let error = aside.check().unwrap_err();
        assert!(error.to_string().contains("put aside"), "{error}");
    }
}
