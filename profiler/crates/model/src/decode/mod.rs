//! Bytes of the kernel -> raw events.
//!
//! Two sources: records of our own programs, which are structures of `profiler_common` ([`sample`],
//! [`waits`], [`cgroup`], [`call`]), and the kernel's perf side-band ([`sideband`]). Any bytes give events
//! and counts, never a panic, in time linear in their length. Records of unknown kinds are skipped by
//! their length and counted.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here: where the bytes come from,
//! and what the events mean together.

mod call;
mod cgroup;
mod reader;
mod sample;
mod sideband;
mod waits;

use bytes::Bytes;
use profiler_common::{
    KIND_CGROUP, KIND_SAMPLE, KIND_WAIT, KIND_WAIT_STACK, KIND_WAIT_TOTALS, RECORD_VERSION,
    RecordHead,
};
use zerocopy::FromBytes;

use crate::raw::{Items, RawBody, RawEvent};
use crate::{Cpu, Lost, LostReason, Timestamp};

/// Decodes records and counts what it can't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoder {
    /// Records and sections of kinds that this version doesn't know.
    pub unknown: u64,
    /// Records that contradict themselves.
    pub bad: u64,
}

impl Decoder {
    /// Decodes one record of the kernel side.
    pub fn record(&mut self, record: Bytes, out: &mut Vec<RawEvent>) {
        let event = decode(&record, &mut self.unknown);
        self.take(event, out);
    }

    #[inline]
    fn take(&mut self, event: Result<Option<RawEvent>, Bad>, out: &mut Vec<RawEvent>) {
        match event {
            Ok(Some(event)) => out.push(event),
            Ok(None) => self.unknown += 1,
            Err(Bad) => self.bad += 1,
        }
    }

    /// Decodes a record of a call from the ring buffer of `cpu`. `keep` is called for what must
    /// outlive the record: the items, of those few that have any.
    #[inline]
    pub fn call(
        &mut self,
        cpu: Cpu,
        record: &[u8],
        keep: impl FnOnce(&[u8]) -> Items,
        out: &mut Vec<RawEvent>,
    ) {
        let event = call::decode(cpu, record, keep);
        self.take(event, out);
    }

    /// Decodes perf side-band records of one processor, one after the other.
    pub fn side_band(&mut self, cpu: Cpu, records: &[u8], out: &mut Vec<RawEvent>) {
        let mut rest = records;
        while !rest.is_empty() {
            let event = sideband::next(cpu, &mut rest);
            self.take(event, out);
        }
    }

    /// Tells of the records that could not be decoded, if there were any, as lost at `at`.
    pub fn losses(&self, at: Timestamp, out: &mut Vec<RawEvent>) {
        if self.bad > 0 {
            out.push(RawEvent {
                at,
                cpu: Cpu(0),
                body: RawBody::Lost(Lost {
                    cpu: None,
                    from: at,
                    to: at,
                    count: self.bad,
                    reason: LostReason::BadRecord,
                }),
            });
        }
    }
}

/// The record contradicts itself.
#[derive(Debug, PartialEq, Eq)]
struct Bad;

/// Decodes one record of the kernel side; nothing if it is of a kind or version that is not known.
/// Sections that are not known are added to `unknown`.
fn decode(record: &Bytes, unknown: &mut u64) -> Result<Option<RawEvent>, Bad> {
    let (head, _): (RecordHead, _) = read(record)?;
    if head.len as usize != record.len() {
        return Err(Bad);
    }
    if head.version != RECORD_VERSION {
        return Ok(None);
    }
    let event = match head.kind {
        KIND_SAMPLE => sample::decode(record, unknown)?,
        KIND_CGROUP => cgroup::decode(record)?,
        KIND_WAIT_STACK => waits::stack(record, unknown)?,
        KIND_WAIT => waits::wait(record)?,
        KIND_WAIT_TOTALS => waits::totals(record)?,
        _ => return Ok(None),
    };
    Ok(Some(event))
}

/// Reads a structure that the kernel side has written, and returns what follows it.
#[inline]
fn read<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Bad> {
    T::read_from_prefix(bytes).map_err(|_| Bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_can_not_be_decoded_are_lost_and_said_to_be() {
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        decoder.losses(Timestamp(1), &mut out);
        decoder.record(Bytes::from_static(&[9; 20]), &mut out);
        decoder.side_band(Cpu(1), &[1, 2, 3], &mut out);
        assert_eq!(out, []);
        decoder.losses(Timestamp(7), &mut out);
        let [
            RawEvent {
                body: RawBody::Lost(lost),
                ..
            },
        ] = &out[..]
        else {
            panic!("{out:?}");
        };
        assert_eq!((lost.count, lost.reason), (2, LostReason::BadRecord));
    }
}
