//! Ring buffers of the kernel side: one per processor.
//!
//! Records as bytes, copied out of shared memory; their meaning is `decode`'s. Sizes are bytes, and
//! powers of two.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::{
    Ebpf,
    maps::{Map, MapData, RingBuf},
};
use aya_obj::generated::bpf_map_type;
use bytes::{Bytes, BytesMut};

use super::{ProbeError, bpf, load::refused};

/// Smallest ring: it holds several samples of greatest length, with a copied stack.
const MIN_RING_BYTES: usize = 64 * 1024;
/// Largest ring: more would only hide a reader that is too slow.
const MAX_RING_BYTES: usize = 64 << 20;

/// Records are copied into pieces of memory of this size, which live until their last record does.
const CHUNK_BYTES: usize = 64 * 1024;

/// Size of each ring if all of them together may take `total` bytes.
pub(super) fn ring_bytes(total: usize, cpus: usize) -> usize {
    floor_power(total / cpus.max(1)).clamp(MIN_RING_BYTES, MAX_RING_BYTES)
}

/// The greatest power of two that is not above `value`.
pub(super) fn floor_power(value: usize) -> usize {
    match value.checked_ilog2() {
        Some(exponent) => 1 << exponent,
        None => 0,
    }
}

/// The ring buffer of one processor.
pub(super) struct Ring {
    ring: RingBuf<MapData>,
    bytes: usize,
}

impl Ring {
    /// Makes a ring; the kernel side does not know it yet.
    pub(super) fn create(bytes: usize) -> Result<Ring, ProbeError> {
        let kind = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let map = aya_obj::Map::new_from_params(kind, 0, 0, size, 0);
        let data = MapData::create(map, "ring", None).map_err(|error| refused(&error))?;
        let ring = RingBuf::try_from(Map::RingBuf(data)).map_err(|error| refused(&error))?;
        Ok(Ring { ring, bytes })
    }

    /// Its size.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls `record` with each record that is there. Ends after one buffer's worth, so that a
    /// writer that never pauses can't hold us; what was there at the call is always included. A ring is left empty, or
    /// nobody is woken by what comes next: the kernel tells of a record only if all before it have been read.
    /// Returns the bytes read.
    pub(super) fn take(&mut self, buffer: &mut BytesMut, mut record: impl FnMut(Bytes)) -> usize {
        self.visit(|item| record(copy(item, buffer)))
    }

    /// As [`Ring::take`], but shows each record where it lies; what is to be kept must be copied.
    pub(super) fn visit(&mut self, mut record: impl FnMut(&[u8])) -> usize {
        let mut taken = 0;
        while taken < self.bytes {
            let Some(item) = self.ring.next() else { break };
            // Each record has a head of 8 bytes in the ring.
            taken += item.len() + 8;
            record(&item);
        }
        taken
    }
}

/// Copies a record into memory that it shares with others.
fn copy(record: &[u8], buffer: &mut BytesMut) -> Bytes {
    if buffer.capacity() < record.len() {
        buffer.reserve(CHUNK_BYTES.max(record.len()));
    }
    buffer.extend_from_slice(record);
    buffer.split().freeze()
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Tells the kernel side, in `map`, which ring belongs to which processor. One call for all: each
/// update of this kind of map waits for the kernel's readers, some milliseconds.
pub(super) fn install(
    ebpf: &Ebpf,
    map: &str,
    rings: &[(u32, BorrowedFd<'_>)],
) -> Result<(), ProbeError> {
    let Some(Map::ArrayOfMaps(data)) = ebpf.map(map) else {
        return Err(ProbeError::Load(format!("{map} is no array of maps")));
    };
    let cpus: Vec<u32> = rings.iter().map(|(cpu, _)| *cpu).collect();
    let fds: Vec<u32> = rings
        .iter()
        .map(|(_, fd)| fd.as_raw_fd().cast_unsigned())
        .collect();
    bpf::update_map(data.fd().as_fd(), &cpus, &fds)
        .map_err(|error| ProbeError::from_io("install the ring buffers", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_share_the_budget_in_powers_of_two() {
        assert_eq!(ring_bytes(8 << 20, 2), 4 << 20);
        assert_eq!(ring_bytes(8 << 20, 3), 2 << 20);
        assert_eq!(ring_bytes(0, 128), MIN_RING_BYTES);
        assert_eq!(ring_bytes(usize::MAX, 1), MAX_RING_BYTES);
    }
}
