//! The bytes of an object's segments, read piece by piece when they are asked for.
//!
//! Addresses (ELF virtual addresses) -> bytes as they are in the file. Tracing one function of a
//! large library reads a piece of it, not all.

use std::fs::File;
use std::sync::OnceLock;

use crate::elf::{Elf, Segment, read_up_to};

/// What is read at once.
const PIECE_BYTES: u64 = 1 << 20;
/// What is read beyond a piece, so that most functions lie in one.
const OVERLAP_BYTES: u64 = 256 << 10;
/// Most bytes that can be asked for at once.
const MAX_BYTES: u64 = 16 << 20;

/// The segments of an object.
#[derive(Debug)]
pub(super) struct Image(Vec<Loaded>);

#[derive(Debug)]
struct Loaded {
    segment: Segment,
    /// Each is read at most once; the second is for functions that are longer than the overlap.
    pieces: Box<[(Piece, Piece)]>,
}

type Piece = OnceLock<Box<[u8]>>;

impl Image {
    /// Of an object that ends where its file does: what is behind has no pieces.
    pub(super) fn of(elf: &Elf, file_len: u64) -> Image {
        let segments = elf.segments.iter().map(|&segment| {
            let len = segment.len.min(file_len.saturating_sub(segment.offset));
            let count = len.div_ceil(PIECE_BYTES) as usize;
            Loaded {
                segment: Segment { len, ..segment },
                pieces: std::iter::repeat_with(Default::default)
                    .take(count)
                    .collect(),
            }
        });
        Image(segments.collect())
    }

    pub(super) fn bytes(
        &self,
        file: &File,
        address: u64,
        len: u64,
        executable: bool,
    ) -> Option<&[u8]> {
        let loaded = self.0.iter().find(|loaded| {
            let segment = &loaded.segment;
            (segment.executable || !executable)
                && address.wrapping_sub(segment.address) < segment.len
        })?;
        let start = address.wrapping_sub(loaded.segment.address);
        if len > MAX_BYTES || len > loaded.segment.len - start {
            return None;
        }
        let piece = start / PIECE_BYTES;
        let within = start - piece * PIECE_BYTES;
        let (usual, long) = loaded.pieces.get(piece as usize)?;
        let (cell, beyond) = match within + len <= PIECE_BYTES + OVERLAP_BYTES {
            true => (usual, OVERLAP_BYTES),
            false => (long, MAX_BYTES),
        };
        let bytes = cell.get_or_init(|| {
            let first = piece * PIECE_BYTES;
            let len = (loaded.segment.len - first).min(PIECE_BYTES + beyond);
            let mut bytes = vec![0; len as usize];
            let offset = loaded.segment.offset.saturating_add(first);
            let got = read_up_to(file, &mut bytes, offset).unwrap_or(0);
            bytes.truncate(got);
            bytes.into()
        });
        bytes.get(within as usize..(within + len) as usize)
    }
}
