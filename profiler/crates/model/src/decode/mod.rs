//! Bytes of the kernel -> raw events.
//!
//! Two languages: records of our own kernel side ([`sample`], [`waits`],
//! [`cgroup`], [`call`]), and records of the
//! kernel's perf side-band ([`sideband`]). Reading is total: any bytes give events and counts, never a panic, and
//! take time linear in their length. What is unknown is skipped by its length and counted.
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

use crate::raw::{RawBody, RawEvent};
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
        if cgroup::is_one(&record) {
            match cgroup::decode(&record) {
                Ok(event) => out.push(event),
                Err(cgroup::Bad) => self.bad += 1,
            }
            return;
        }
        if waits::is_one(&record) {
            match waits::decode(record, &mut self.unknown) {
                Ok(event) => out.push(event),
                Err(waits::Bad) => self.bad += 1,
            }
            return;
        }
        match sample::decode(record, &mut self.unknown) {
            Ok(Some(event)) => out.push(event),
            Ok(None) => self.unknown += 1,
            Err(sample::Bad) => self.bad += 1,
        }
    }

    /// Decodes a record of a call from the ring buffer of `cpu`. `copy` is called for what must
    /// outlive the record: the items, of those few that have any.
    #[inline]
    pub fn call(
        &mut self,
        cpu: Cpu,
        record: &[u8],
        copy: impl FnOnce(&[u8]) -> Bytes,
        out: &mut Vec<RawEvent>,
    ) {
        match call::decode(cpu, record, copy) {
            Ok(Some(event)) => out.push(event),
            Ok(None) => self.unknown += 1,
            Err(call::Bad) => self.bad += 1,
        }
    }

    /// Decodes perf side-band records of one processor, one after the other.
    pub fn side_band(&mut self, cpu: Cpu, records: &[u8], out: &mut Vec<RawEvent>) {
        let mut rest = records;
        while !rest.is_empty() {
            match sideband::next(cpu, &mut rest) {
                Ok(Some(event)) => out.push(event),
                Ok(None) => self.unknown += 1,
                Err(sideband::Bad) => self.bad += 1,
            }
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
