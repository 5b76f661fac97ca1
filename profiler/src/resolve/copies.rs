//! Files that have the same path, and perhaps the same build id, and yet are not the same.
//!
//! A file that is met -> its [`Print`], by which copies of one content are one file, and what differs is
//! told apart. `/app/server` is another program in each container; a build id says what is in a file only
//! as long as who made it is honest.
//!
//! A print is made of samples of the contents, at places that can't be guessed: whoever forges a large
//! file and knows another one whole may pass for it with a small change that no sample meets.
//!
//! What does not belong here: opening files (`files`).

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};

use rustc_hash::FxHashMap;

use crate::model::BuildId;
use crate::trace::elf::read_up_to;

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
pub(super) struct Print {
    hash: u64,
    /// What it is called by; none for the one that was met first.
    pub(super) name: Option<u32>,
}

/// Files that were met.
#[derive(Debug, Default)]
pub(super) struct Copies {
    seed: RandomState,
    first: FxHashMap<(Box<str>, Option<BuildId>), u64>,
    /// The file that a path below a root leads to, by its build id.
    below: FxHashMap<(u64, Box<str>, BuildId), Print>,
}

impl Copies {
    /// The print of an open file.
    pub(super) fn print(&mut self, file: &File, path: &str, build_id: Option<&BuildId>) -> Print {
        let (hash, name) = self.look(file);
        let first = match self.first.get(&(path.into(), build_id.cloned())) {
            Some(&first) => first,
            None if self.first.len() < MAX_KNOWN => {
                self.first.insert((path.into(), build_id.cloned()), hash);
                hash
            }
            None => !hash,
        };
        Print {
            hash,
            name: (hash != first).then_some(name),
        }
    }

    /// The file of this path and build id below a root, if it was open before.
    pub(super) fn below(&self, root: u64, path: &str, build_id: &BuildId) -> Option<Print> {
        let place = (root, path.into(), build_id.clone());
        self.below.get(&place).copied()
    }

    /// Notes that.
    pub(super) fn is_below(&mut self, root: u64, path: &str, build_id: &BuildId, print: Print) {
        if self.below.len() >= MAX_KNOWN {
            // What is mapped again is opened again.
            self.below.clear();
        }
        let place = (root, path.into(), build_id.clone());
        self.below.insert(place, print);
    }

    fn look(&self, file: &File) -> (u64, u32) {
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        let mut hasher = self.seed.build_hasher();
        let mut sum = crc32fast::Hasher::new();
        let mut buffer = vec![0; WHOLE_BYTES as usize];
        hasher.write_u64(len);
        sum.update(&len.to_le_bytes());
        if len <= WHOLE_BYTES {
            let got = read_up_to(file, &mut buffer, 0).unwrap_or(0);
            hasher.write(&buffer[..got]);
            sum.update(&buffer[..got]);
            return (hasher.finish(), sum.finalize());
        }
        for at in [0, len - EDGE_BYTES as u64] {
            let got = read_up_to(file, &mut buffer[..EDGE_BYTES], at).unwrap_or(0);
            hasher.write(&buffer[..got]);
            sum.update(&buffer[..got]);
        }
        for place in 0..PLACES {
            let at = self.seed.hash_one((len, place)) % (len - PLACE_BYTES as u64);
            let got = read_up_to(file, &mut buffer[..PLACE_BYTES], at).unwrap_or(0);
            hasher.write(&buffer[..got]);
        }
        (hasher.finish(), sum.finalize())
    }
}
