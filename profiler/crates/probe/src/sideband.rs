//! Perf side-band: forks, execs, names, mappings and exits of all processes, in one buffer per
//! processor.
//!
//! perf_event_open(2) of an event that counts nothing -> its records as bytes; their meaning is
//! `decode`'s. Times in the records are nanoseconds of CLOCK_MONOTONIC. The reader is woken by the
//! first mapping, because the files of a process are to be opened before it is gone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{perf_event_attr, perf_event_sample_format, perf_sw_ids, perf_type_id};
use bytes::{Bytes, BytesMut};

use super::{ProbeError, ring::floor_power, sys};

/// Smallest buffer: some hundred mappings.
const MIN_BUFFER_BYTES: usize = 32 * 1024;
/// Largest buffer: some thousand processes that start at once.
const MAX_BUFFER_BYTES: usize = 512 * 1024;

/// The shortest record of a mapping, without the file's name: so many bytes wake the reader. Threads that begin and end
/// have shorter ones, and each wake-up costs whoever causes it an interrupt, which is dear in a virtual machine.
const MAPPING_BYTES: u32 = 96;

/// Size of each buffer if all of them together may take `total` bytes.
pub(super) fn buffer_bytes(total: usize, cpus: usize) -> usize {
    let page = rustix::param::page_size();
    floor_power(total / cpus.max(1)).clamp(MIN_BUFFER_BYTES.max(page), MAX_BUFFER_BYTES)
}

/// The side-band of one processor.
pub(super) struct SideBand {
    // The mapping goes before the event.
    buffer: sys::PerfBuffer,
    event: OwnedFd,
}

impl SideBand {
    /// Opens it, running. `at_once`: whether whatever happens wakes the reader.
    pub(super) fn open(cpu: u32, bytes: usize, at_once: bool) -> Result<SideBand, ProbeError> {
        let action = || format!("follow processes on processor {cpu}");
        let wake_bytes = if at_once { 1 } else { MAPPING_BYTES };
        let event = sys::perf_event_open(&attr(wake_bytes), -1, cpu.cast_signed())
            .map_err(|error| ProbeError::from_io(action(), error))?;
        let buffer = sys::PerfBuffer::map(event.as_fd(), bytes).map_err(|error| {
            if error.raw_os_error() == Some(libc::EPERM) {
                ProbeError::Permission {
                    action: action(),
                    remedy: "the buffer is above the limit of locked memory: run as root, grant \
                             CAP_IPC_LOCK, or raise kernel.perf_event_mlock_kb"
                        .to_owned(),
                }
            } else {
                ProbeError::from_io(action(), error)
            }
        })?;
        sys::enable(event.as_fd()).map_err(|error| ProbeError::from_io(action(), error))?;
        Ok(SideBand { buffer, event })
    }

    /// All records that are there, one after the other; empty if none.
    pub(super) fn take(&mut self) -> Bytes {
        let mut bytes = BytesMut::new();
        self.buffer.take(&mut bytes);
        bytes.freeze()
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.buffer.memory_bytes()
    }
}

impl AsFd for SideBand {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn attr(wake_bytes: u32) -> perf_event_attr {
    let mut attr = sys::empty_attr();
    attr.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    attr.config = perf_sw_ids::PERF_COUNT_SW_DUMMY as u64;
    attr.set_disabled(1);
    // Mappings of code only: `mmap_data` would bring the others.
    attr.set_mmap(1);
    attr.set_mmap2(1);
    // Build ids are not asked for: a kernel (5.12 to 6.18 at least) that has written one into the record
    // of one reader leaves the mark of it in those of all readers behind, and perf believes that. The
    // files are opened at once, and have theirs in them.
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    // Each record ends with its time; `decode` counts on exactly this.
    attr.set_sample_id_all(1);
    attr.sample_type = perf_event_sample_format::PERF_SAMPLE_TIME as u64;
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = wake_bytes;
    attr
}
