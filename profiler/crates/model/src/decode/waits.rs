//! Records of waits -> raw waits, their stacks, and totals.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC. Stacks are not copied: they stay slices of the record.

use bytes::Bytes;
use profiler_common::{
    sample::FLAG_UNDECIDED,
    sched::{WaitRecord, WaitStackHead, WaitTotalsRecord},
};
use zerocopy::FromBytes;

use super::{Bad, read, sample};
use crate::raw::{RawBody, RawEvent, RawWait, RawWaitStack, RawWaits};
use crate::{Cpu, Pid, Tid, Timestamp};

/// Decodes the stacks of waits. Sections that are not known are added to `unknown`.
pub(super) fn stack(record: &Bytes, unknown: &mut u64) -> Result<RawEvent, Bad> {
    let (head, _): (WaitStackHead, _) = read(record)?;
    let stacks = sample::sections(record, size_of::<WaitStackHead>(), unknown)?;
    let stack = RawWaitStack {
        key: head.key,
        pid: Pid(head.tgid),
        tid: Tid(head.tid),
        kernel: stacks.kernel,
        user: stacks.user,
        copy: stacks.copy,
        interpreted: stacks.interpreted,
    };
    Ok(RawEvent {
        at: Timestamp(head.at_ns),
        cpu: Cpu(0),
        body: RawBody::WaitStack(Box::new(stack)),
    })
}

/// Decodes a wait.
pub(super) fn wait(record: &[u8]) -> Result<RawEvent, Bad> {
    let record = WaitRecord::read_from_bytes(record).map_err(|_| Bad)?;
    let undecided = record.flags & u32::from(FLAG_UNDECIDED) != 0;
    Ok(RawEvent {
        at: Timestamp(record.at_ns),
        cpu: Cpu(record.cpu),
        body: RawBody::Wait(Box::new(RawWait {
            record,
            undecided,
            open: false,
        })),
    })
}

/// Decodes the totals of a thread.
pub(super) fn totals(record: &[u8]) -> Result<RawEvent, Bad> {
    let record = WaitTotalsRecord::read_from_bytes(record).map_err(|_| Bad)?;
    let waits = RawWaits {
        pid: Pid(record.tgid),
        tid: Tid(record.tid),
        cgroup: record.cgroup,
        undecided: record.flags & u32::from(FLAG_UNDECIDED) != 0,
        from: Timestamp(record.from_ns),
        count: record.totals.count,
        ns: record.totals.ns,
        runnable_ns: record.totals.runnable_ns,
    };
    Ok(RawEvent {
        at: Timestamp(record.at_ns),
        cpu: Cpu(record.cpu),
        body: RawBody::Waits(Box::new(waits)),
    })
}

#[cfg(test)]
mod tests {
    use profiler_common::sample::{END_COMPLETE, SECTION_KERNEL_STACK, SECTION_USER_STACK};
    use profiler_common::{KIND_WAIT, KIND_WAIT_STACK, KIND_WAIT_TOTALS, RECORD_VERSION};
    use proptest::prelude::*;

    use super::*;

    /// Decodes a record, of whichever kind.
    fn decode(record: Bytes) -> Result<Option<RawEvent>, Bad> {
        super::super::decode(&record, &mut 0)
    }

    fn begun(kind: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(RECORD_VERSION.to_ne_bytes());
        bytes
    }

    fn finished(mut bytes: Vec<u8>) -> Bytes {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes.into()
    }

    fn words64(bytes: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
        words
            .into_iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
    }

    fn words32(bytes: &mut Vec<u8>, words: impl IntoIterator<Item = u32>) {
        words
            .into_iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
    }

    fn a_wait() -> Bytes {
        let mut bytes = begun(KIND_WAIT);
        words64(&mut bytes, [900, 100, 700, 0xabc, 77]);
        words32(
            &mut bytes,
            [10, 11, 20, 21, 3, 4, 2, u32::from(FLAG_UNDECIDED)],
        );
        bytes.extend(b"worker\0\0\0\0\0\0\0\0\0\0");
        finished(bytes)
    }

    fn a_stack() -> Bytes {
        let mut bytes = begun(KIND_WAIT_STACK);
        words64(&mut bytes, [100, 0xabc]);
        words32(&mut bytes, [10, 11]);
        for (kind, address) in [(SECTION_KERNEL_STACK, 9), (SECTION_USER_STACK, 7)] {
            words32(
                &mut bytes,
                [u32::from(kind) | u32::from(END_COMPLETE) << 16, 8],
            );
            words64(&mut bytes, [address]);
        }
        finished(bytes)
    }

    fn some_totals() -> Bytes {
        let mut bytes = begun(KIND_WAIT_TOTALS);
        words64(&mut bytes, [900, 100, 77]);
        words32(&mut bytes, [10, 11, 1, 0]);
        words64(&mut bytes, 1..=9);
        finished(bytes)
    }

    #[test]
    fn all_fields_of_a_wait_arrive() {
        let event = decode(a_wait()).unwrap().unwrap();
        assert_eq!((event.at, event.cpu), (Timestamp(900), Cpu(3)));
        let RawBody::Wait(wait) = event.body else {
            panic!("not a wait");
        };
        let record = wait.record;
        assert!(wait.undecided);
        assert_eq!(
            (record.from_ns, record.woken_ns, record.key, record.cgroup),
            (100, 700, 0xabc, 77)
        );
        assert_eq!(
            (record.tgid, record.tid, record.waker_tgid, record.waker_tid),
            (10, 11, 20, 21)
        );
        assert_eq!(
            (record.weight, record.state, &record.comm[..7]),
            (4, 2, &b"worker\0"[..])
        );
    }

    #[test]
    fn stacks_and_totals_arrive() {
        let event = decode(a_stack()).unwrap().unwrap();
        let RawBody::WaitStack(stack) = event.body else {
            panic!("not a stack");
        };
        assert_eq!((stack.key, stack.pid, stack.tid), (0xabc, Pid(10), Tid(11)));
        assert_eq!(stack.kernel.addresses().collect::<Vec<_>>(), [9]);
        assert_eq!(stack.user.addresses().collect::<Vec<_>>(), [7]);
        let event = decode(some_totals()).unwrap().unwrap();
        assert_eq!((event.at, event.cpu), (Timestamp(900), Cpu(1)));
        let RawBody::Waits(waits) = event.body else {
            panic!("no totals");
        };
        assert_eq!(
            (waits.count, waits.ns, waits.runnable_ns),
            ([1, 2, 3, 4], [5, 6, 7, 8], 9)
        );
        assert_eq!(
            (waits.from, waits.cgroup, waits.undecided),
            (Timestamp(100), 77, false)
        );
    }

    #[test]
    fn what_is_too_short_or_too_long_is_bad() {
        for record in [a_wait(), some_totals(), a_stack()] {
            let mut longer = record.to_vec();
            longer.extend([0; 4]);
            assert_eq!(decode(finished(longer)), Err(Bad));
            for keep in 8..record.len() {
                let cut = decode(finished(record[..keep].to_vec()));
                // A stack that ends behind a section is whole.
                assert!(cut == Err(Bad) || keep == 32 || keep == 48, "{keep}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_flipped_byte_is_survived(which in 0_usize..3, at in 0_usize..200, with in any::<u8>()) {
            let mut bytes = [a_wait(), a_stack(), some_totals()][which].to_vec();
            let at = at % bytes.len();
            bytes[at] = with;
            let _ = decode(bytes.into());
        }
    }
}
