//! From block to block through a capture, past whatever is damaged.
//!
//! A block is believed when its header's checksum, the file's id and the lengths are right, and
//! its payload when its checksum is. Behind damage the walk goes on at the next header that can be
//! believed. Every byte that is not accounted for ends up in [`Walk::damage`]. What is read grows with the length of
//! the file, whatever headers claim.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::block::*;
use super::error::{CaptureError, Damage};

/// Most entries of damage kept; the rest is counted in the last one.
const MAX_DAMAGE: usize = 1000;
/// A search begins with a small piece, since the next header may be near, and goes on with larger ones.
const FIRST_SEARCH_BYTES: usize = 256;
const SEARCH_BYTES: usize = 64 << 10;
/// Payloads that turn out wrong may hold whole blocks, and are searched for them. Headers that claim one and the same
/// megabytes each for itself are not: beyond so many bytes for each of the file, and these, what a header claims is
/// passed over with it.
const WRONG_PER_BYTE: u64 = 2;
const MAX_WRONG_BYTES: u64 = 64 << 20;

/// What unpacks payloads, kept from block to block.
pub(super) struct Unpacker {
    decompressor: zstd::bulk::Decompressor<'static>,
    stored: Vec<u8>,
}

impl Unpacker {
    pub(super) fn new() -> Result<Unpacker, CaptureError> {
        let made = zstd::bulk::Decompressor::new();
        let decompressor = made.map_err(|error| CaptureError::Options(error.to_string()))?;
        let stored = Vec::new();
        Ok(Unpacker {
            decompressor,
            stored,
        })
    }
}

/// A position in a capture.
pub(super) struct Walk<'f> {
    file: &'f File,
    /// End of what can be read.
    len: u64,
    file_id: u32,
    at: u64,
    /// Where the search for a block begins if `at` turns out to be none: inside the last one,
    /// whose length may be a lie of a torn write.
    back: Option<u64>,
    /// Number of the next block; none where the walk begins in the middle or behind damage.
    pub(super) sequence: Option<u32>,
    unpacker: &'f mut Unpacker,
    pub(super) damage: Vec<Damage>,
    /// Bytes of payloads that were wrong.
    wrong: u64,
    /// What searches read into.
    chunk: Vec<u8>,
    /// Bytes read of payloads and by searches.
    #[cfg(test)]
    pub(super) read: u64,
}

/// A block: where, its header, and its payload if that was asked for.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) header: BlockHeader,
}

impl<'f> Walk<'f> {
    pub(super) fn new(
        file: &'f File,
        len: u64,
        file_id: u32,
        at: u64,
        sequence: Option<u32>,
        unpacker: &'f mut Unpacker,
    ) -> Self {
        Walk {
            file,
            len,
            file_id,
            at,
            back: None,
            sequence,
            unpacker,
            damage: Vec::new(),
            wrong: 0,
            chunk: Vec::new(),
            #[cfg(test)]
            read: 0,
        }
    }

    /// The next block; its payload is put into `payload` if `wanted` says so, and a block whose
    /// payload was wanted and is damaged is passed over.
    pub(super) fn next(
        &mut self,
        payload: &mut Vec<u8>,
        wanted: impl Fn(&BlockHeader) -> bool,
    ) -> io::Result<Option<Block>> {
        loop {
            let Some(block) = self.header()? else {
                return Ok(None);
            };
            let body = block.offset + HEADER_BYTES as u64;
            self.back = Some(body);
            self.at = body + u64::from(block.header.stored_bytes);
            if !wanted(&block.header) {
                if self.repeated(&block) {
                    continue;
                }
                return Ok(Some(block));
            }
            match self.payload(body, &block.header, payload)? {
                Ok(()) => {
                    self.back = None;
                    if self.repeated(&block) {
                        continue;
                    }
                    return Ok(Some(block));
                }
                Err(what) => {
                    self.hurt(block.offset, what.to_owned());
                    // It is not there, and that was said; a second try to write it may follow.
                    self.sequence = None;
                    self.wrong += u64::from(block.header.stored_bytes);
                    if self.wrong <= MAX_WRONG_BYTES + self.len.saturating_mul(WRONG_PER_BYTE) {
                        // What the header claims for its payload may hold whole blocks.
                        self.at = body;
                    }
                    self.search(self.at)?;
                }
            }
        }
    }

    /// Finds the next header that can be believed.
    fn header(&mut self) -> io::Result<Option<Block>> {
        loop {
            let left = self.len.saturating_sub(self.at);
            if left == 0 {
                return Ok(None);
            }
            if left == FOOTER_BYTES as u64 {
                let mut footer = [0; FOOTER_BYTES];
                self.file.read_exact_at(&mut footer, self.at)?;
                if decode_footer(&footer, self.file_id).is_some() {
                    return Ok(None);
                }
            }
            if let Some(header) = self.header_at(self.at)? {
                let end = self.at + HEADER_BYTES as u64 + u64::from(header.stored_bytes);
                let what = match header.refused() {
                    Some(what) => what.to_owned(),
                    None if end > self.len => format!(
                        "the file is cut off inside a block: {} of {} bytes are there",
                        self.len - self.at,
                        end - self.at
                    ),
                    None => {
                        return Ok(Some(Block {
                            offset: self.at,
                            header,
                        }));
                    }
                };
                self.hurt(self.at, what);
                self.search(self.at + HEADER_BYTES as u64)?;
                continue;
            }
            let from = self.back.take();
            let what = if left < HEADER_BYTES as u64 {
                format!("the file is cut off inside a block header: {left} bytes are there")
            } else {
                "there is no sound block header".to_owned()
            };
            self.hurt(self.at, what);
            self.search(from.unwrap_or(self.at + 1))?;
        }
    }

    fn header_at(&self, at: u64) -> io::Result<Option<BlockHeader>> {
        let mut bytes = [0; HEADER_BYTES];
        if self.len.saturating_sub(at) < HEADER_BYTES as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut bytes, at)?;
        let header = BlockHeader::decode(&bytes);
        Ok(header.filter(|header| header.file_id == self.file_id))
    }

    /// Moves to the next sound header at or behind `from`, or to the end.
    fn search(&mut self, mut from: u64) -> io::Result<()> {
        self.back = None;
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(SEARCH_BYTES, 0);
        let mut most = FIRST_SEARCH_BYTES;
        while self.len.saturating_sub(from) >= HEADER_BYTES as u64 {
            let len = most.min((self.len - from) as usize);
            most = (most * 2).min(SEARCH_BYTES);
            let bytes = &mut chunk[..len];
            self.file.read_exact_at(bytes, from)?;
            #[cfg(test)]
            {
                self.read += len as u64;
            }
            for (i, window) in bytes.windows(SYNC.len()).enumerate() {
                if window == SYNC && self.header_at(from + i as u64)?.is_some() {
                    self.at = from + i as u64;
                    self.chunk = chunk;
                    return Ok(());
                }
            }
            from += (len - (SYNC.len() - 1)) as u64;
        }
        self.chunk = chunk;
        self.at = self.len;
        Ok(())
    }

    /// Whether the block was there before. Tells of blocks that are missing.
    fn repeated(&mut self, block: &Block) -> bool {
        let found = block.header.sequence;
        if let Some(expected) = self.sequence
            && found != expected
        {
            if found < expected {
                let what = format!("block {found} is there again, it is passed over");
                self.hurt(block.offset, what);
                return true;
            }
            let missing = found - expected;
            self.hurt(
                block.offset,
                format!("{missing} blocks before this one are missing or damaged"),
            );
        }
        self.sequence = Some(found.saturating_add(1));
        false
    }

    /// Reads, checks and unpacks a payload.
    fn payload(
        &mut self,
        at: u64,
        header: &BlockHeader,
        payload: &mut Vec<u8>,
    ) -> io::Result<Result<(), &'static str>> {
        let (stored, raw) = (header.stored_bytes as usize, header.raw_bytes as usize);
        let plain = header.codec == codec::PLAIN;
        let Unpacker {
            decompressor,
            stored: packed,
        } = &mut *self.unpacker;
        let target = if plain { &mut *payload } else { &mut *packed };
        target.resize(stored, 0);
        self.file.read_exact_at(target, at)?;
        #[cfg(test)]
        {
            self.read += stored as u64;
        }
        if crc32fast::hash(target) != header.payload_crc {
            return Ok(Err("the block's checksum is wrong"));
        }
        if plain {
            return Ok(Ok(()));
        }
        if header.codec != codec::ZSTD {
            let what = "the block is packed in a way that this version does not know";
            return Ok(Err(what));
        }
        payload.resize(raw, 0);
        let unpacked = decompressor.decompress_to_buffer(&packed[..], &mut payload[..]);
        Ok(match unpacked {
            Ok(len) if len == raw => Ok(()),
            Ok(_) => Err("the block unpacks to less than it says"),
            Err(_) => Err("the block can't be unpacked"),
        })
    }

    /// Where the next block is expected.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Puts a damage on record.
    pub(super) fn hurt(&mut self, offset: u64, what: String) {
        add_damage(&mut self.damage, Damage { offset, what });
    }
}

/// Adds to a list of damage that stays bounded and names nothing twice.
pub(super) fn add_damage(list: &mut Vec<Damage>, damage: Damage) {
    if list.len() < MAX_DAMAGE {
        if !list.contains(&damage) {
            list.push(damage);
        }
    } else if list.len() == MAX_DAMAGE {
        list.push(Damage {
            offset: damage.offset,
            what: "there is more damage from here on; it is not listed".to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers one behind the other that all claim the same megabytes, with a wrong checksum for them.
    #[test]
    fn what_is_read_of_a_crafted_file_grows_with_its_length() {
        const HEADERS: usize = 4096;
        let path = std::env::temp_dir().join(format!("profiler-walk-{}", std::process::id()));
        let mut bytes = Vec::new();
        for sequence in 0..HEADERS as u32 {
            let header = BlockHeader {
                kind: kind::EVENTS,
                codec: codec::PLAIN,
                version: VERSION,
                file_id: 7,
                sequence,
                epoch: 0,
                items: 1,
                stored_bytes: MAX_PAYLOAD_BYTES,
                raw_bytes: MAX_PAYLOAD_BYTES,
                first_ns: 0,
                last_ns: 0,
                payload_crc: 0,
            };
            bytes.extend(header.encode());
        }
        // The one behind them is sound, and is found.
        bytes.resize(bytes.len() + MAX_PAYLOAD_BYTES as usize, 0);
        let sound = BlockHeader {
            sequence: HEADERS as u32,
            stored_bytes: 1,
            raw_bytes: 1,
            payload_crc: crc32fast::hash(&[5]),
            ..BlockHeader::decode(bytes.first_chunk().unwrap()).unwrap()
        };
        bytes.extend(sound.encode());
        bytes.push(5);
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();

        let mut unpacker = Unpacker::new().unwrap();
        let len = bytes.len() as u64;
        let mut walk = Walk::new(&file, len, 7, 0, Some(0), &mut unpacker);
        let mut payload = Vec::new();
        let block = walk.next(&mut payload, |_| true).unwrap().unwrap();
        assert_eq!(
            (block.header.sequence, &payload[..]),
            (HEADERS as u32, &[5][..])
        );
        assert!(walk.next(&mut payload, |_| true).unwrap().is_none());
        let most = MAX_WRONG_BYTES + 8 * len;
        assert!(walk.read <= most, "{} bytes are read of {len}", walk.read);
    }
}
