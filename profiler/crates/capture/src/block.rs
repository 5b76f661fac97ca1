//! The frame of a capture: file header, block headers, footer. All fixed in size, little-endian,
//! each with its CRC-32.
//!
//! A block header carries a sync marker and the file's random id, so that a reader finds the next
//! block behind damage, and what a recorded program put into its strings can't pass for a block.

/// First bytes of a capture. The first is no text, so that nothing takes it for one.
pub(super) const FILE_MAGIC: [u8; 8] = *b"\x8fPROFCAP";
/// Format version; a reader refuses a higher one.
pub(super) const VERSION: u16 = 1;
/// Bytes of the file header.
pub(super) const FILE_HEADER_BYTES: usize = 32;
/// First bytes of a block.
pub(super) const SYNC: [u8; 4] = *b"\xb1PCB";
/// Bytes of a block header.
pub(super) const HEADER_BYTES: usize = 64;
/// Bytes of the footer.
pub(super) const FOOTER_BYTES: usize = 24;
const FOOTER_MAGIC: [u8; 8] = *b"\x8fCAPEND\n";

/// Most bytes of a block's payload, stored or unpacked.
pub(super) const MAX_PAYLOAD_BYTES: u32 = 4 << 20;
/// A payload unpacks to at most so many times its stored bytes (plus [`SMALL_BYTES`]), or it is
/// a decompression bomb. A writer stores what compresses better than that as it is.
pub(super) const MAX_RATIO: u64 = 32;
/// See [`MAX_RATIO`].
pub(super) const SMALL_BYTES: u64 = 4096;

/// What a block holds.
pub(super) mod kind {
    pub(crate) const DEFINITIONS: u8 = 1;
    pub(crate) const EVENTS: u8 = 2;
    pub(crate) const INDEX: u8 = 3;
    pub(crate) const END: u8 = 4;
}

/// How a payload is stored.
pub(super) mod codec {
    pub(crate) const PLAIN: u8 = 0;
    pub(crate) const ZSTD: u8 = 1;
}

/// The first bytes of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) version: u16,
    /// Random; the same in every block of the file.
    pub(super) file_id: u32,
    /// When the file was begun, nanoseconds since 1970.
    pub(super) created_ns: u64,
}

impl FileHeader {
    pub(super) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&FILE_MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.file_id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.created_ns.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// None if the magic or the checksum is wrong.
    pub(super) fn decode(bytes: &[u8; FILE_HEADER_BYTES]) -> Option<FileHeader> {
        let sound = bytes[..8] == FILE_MAGIC && crc32fast::hash(&bytes[..28]) == u32_at(bytes, 28);
        sound.then(|| FileHeader {
            version: u16_at(bytes, 8),
            file_id: u32_at(bytes, 12),
            created_ns: u64_at(bytes, 16),
        })
    }
}

/// What stands before every payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockHeader {
    pub(super) kind: u8,
    pub(super) codec: u8,
    /// Layout version of the items; a reader skips a block of a higher one.
    pub(super) version: u16,
    pub(super) file_id: u32,
    /// Counts up by 1 from 0: a gap is a missing block.
    pub(super) sequence: u32,
    pub(super) epoch: u32,
    pub(super) items: u32,
    pub(super) stored_bytes: u32,
    pub(super) raw_bytes: u32,
    /// Time of the earliest event of an events block; of the latest event before, for others.
    pub(super) first_ns: u64,
    /// Time of the latest event.
    pub(super) last_ns: u64,
    pub(super) payload_crc: u32,
}

impl BlockHeader {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&SYNC);
        bytes[4] = self.kind;
        bytes[5] = self.codec;
        bytes[6..8].copy_from_slice(&self.version.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.file_id.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.items.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_ns.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.last_ns.to_le_bytes());
        // 48..56 are reserved: written as 0, covered by the checksum, not read.
        bytes[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// None if this is no block header, or a damaged one.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<BlockHeader> {
        let sound = bytes[..4] == SYNC && crc32fast::hash(&bytes[..60]) == u32_at(bytes, 60);
        sound.then(|| BlockHeader {
            kind: bytes[4],
            codec: bytes[5],
            version: u16_at(bytes, 6),
            file_id: u32_at(bytes, 8),
            sequence: u32_at(bytes, 12),
            epoch: u32_at(bytes, 16),
            items: u32_at(bytes, 20),
            stored_bytes: u32_at(bytes, 24),
            raw_bytes: u32_at(bytes, 28),
            first_ns: u64_at(bytes, 32),
            last_ns: u64_at(bytes, 40),
            payload_crc: u32_at(bytes, 56),
        })
    }

    /// Why the lengths can't be right, if so.
    pub(super) fn refused(&self) -> Option<&'static str> {
        if self.stored_bytes > MAX_PAYLOAD_BYTES || self.raw_bytes > MAX_PAYLOAD_BYTES {
            Some("the block says that it is larger than any block may be")
        } else if u64::from(self.raw_bytes) > u64::from(self.stored_bytes) * MAX_RATIO + SMALL_BYTES
        {
            Some("the block would unpack to more than a block may")
        } else if self.codec == codec::PLAIN && self.raw_bytes != self.stored_bytes {
            Some("the block's lengths contradict each other")
        } else {
            None
        }
    }
}

/// The last bytes of a capture that ended cleanly: where its index is.
pub(super) fn encode_footer(file_id: u32, index_offset: u64) -> [u8; FOOTER_BYTES] {
    let mut bytes = [0; FOOTER_BYTES];
    bytes[..8].copy_from_slice(&index_offset.to_le_bytes());
    bytes[8..12].copy_from_slice(&file_id.to_le_bytes());
    bytes[12..20].copy_from_slice(&FOOTER_MAGIC);
    let crc = crc32fast::hash(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The offset of the index, if these bytes are the footer of that file.
pub(super) fn decode_footer(bytes: &[u8; FOOTER_BYTES], file_id: u32) -> Option<u64> {
    let sound = bytes[12..20] == FOOTER_MAGIC
        && u32_at(bytes, 8) == file_id
        && crc32fast::hash(&bytes[..20]) == u32_at(bytes, 20);
    sound.then(|| u64_at(bytes, 0))
}

// Callers pass constant offsets into arrays of constant size.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    if let Some(source) = bytes.get(at..at + N) {
        field.copy_from_slice(source);
    }
    field
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}
