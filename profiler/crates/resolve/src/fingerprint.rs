//! Files that have the same path, and perhaps the same build id, and yet are not the same.
//!
//! A file that is met -> its [`Fingerprint`], by which copies of one content are one file, and what differs is
//! told apart. `/app/server` is another program in each container; a build id says what is in a file only
//! as long as who made it is honest.
//!
//! A fingerprint is made of samples of the contents, at places that can't be guessed: whoever forges a large
//! file and knows another one whole may pass for it with a small change that no sample meets.
//!
//! What does not belong here: opening files (`files`).

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};

use rustc_hash::FxHashMap;

use profiler_model::BuildId;
use profiler_object::elf::read_up_to;

/// Most files that are remembered; copies of others are told apart all the same.
const MAX_KNOWN: usize = 1 << 16;
/// Files of this length are looked at as a whole.
const WHOLE_BYTES: u64 = 256 << 10;
/// Of others, so much at their beginning and at their end, where symbols are.
const EDGE_BYTES: usize = 64 << 10;
/// So many places between.
const PLACES: u64 = 16;
/// So much at each.
const PLACE_BYTES: usize = 4 << 10;

/// What tells a file from others of its path and build id. The same in any session that sees the same
/// files first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    hash: u64,
    /// What it is called by; none for the one that was met first.
    pub(super) name: Option<u32>,
}

impl Fingerprint {
    /// What the contents come to.
    pub(super) fn hash(self) -> u64 {
        self.hash
    }
}

/// Files that were met.
#[derive(Debug, Default)]
pub(super) struct Fingerprints {
    seed: RandomState,
    first: FxHashMap<(Box<str>, Option<BuildId>), u64>,
}

impl Fingerprints {
    /// The fingerprint of an open file.
    pub(super) fn of(
        &mut self,
        file: &File,
        path: &str,
        build_id: Option<&BuildId>,
    ) -> Fingerprint {
        let hash = self.look(file);
        let first = match self.first.get(&(path.into(), build_id.cloned())) {
            Some(&first) => first,
            None if self.first.len() < MAX_KNOWN => {
                self.first.insert((path.into(), build_id.cloned()), hash);
                hash
            }
            None => !hash,
        };
        Fingerprint {
            hash,
            name: (hash != first).then(|| checksum(file)),
        }
    }

    fn look(&self, file: &File) -> u64 {
        let len = length(file);
        let mut hasher = self.seed.build_hasher();
        hasher.write_u64(len);
        edges(file, len, &mut |bytes| hasher.write(bytes));
        if len > WHOLE_BYTES {
            // Much of a stack: see how a session begins.
            let mut buffer = vec![0; PLACE_BYTES];
            for place in 0..PLACES {
                let at = self.seed.hash_one((len, place)) % (len - PLACE_BYTES as u64);
                let got = read_up_to(file, &mut buffer, at).unwrap_or(0);
                hasher.write(&buffer[..got]);
            }
        }
        hasher.finish()
    }
}

/// The same for a file in every session.
fn checksum(file: &File) -> u32 {
    let len = length(file);
    let mut sum = crc32fast::Hasher::new();
    sum.update(&len.to_le_bytes());
    edges(file, len, &mut |bytes| sum.update(bytes));
    sum.finalize()
}

fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

/// A small file as a whole, beginning and end of a large one.
fn edges(file: &File, len: u64, take: &mut dyn FnMut(&[u8])) {
    let (starts, size) = match len {
        ..=WHOLE_BYTES => (vec![0], WHOLE_BYTES as usize),
        _ => (vec![0, len - EDGE_BYTES as u64], EDGE_BYTES),
    };
    let mut buffer = vec![0; size];
    for at in starts {
        let got = read_up_to(file, &mut buffer, at).unwrap_or(0);
        take(&buffer[..got]);
    }
}
