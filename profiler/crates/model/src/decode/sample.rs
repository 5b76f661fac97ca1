//! Records of the kernel side: a [`SampleHead`] and its sections -> a raw sample.
//!
//! Stacks are not copied: they stay slices of the record.

use bytes::Bytes;
use profiler_common::{
    MAX_FRAMES, MAX_USER_FRAMES,
    interpreter::interpreter_of,
    sample::{
        FLAG_UNDECIDED, SECTION_INTERPRETED, SECTION_KERNEL_STACK, SECTION_PADDING,
        SECTION_STACK_COPY, SECTION_USER_STACK, SampleHead, SectionHead,
    },
    unwind::{CopyHead, PROOF_BYTES},
};

use super::{Bad, read};
use crate::raw::{Comm, RawBody, RawCopy, RawEvent, RawInterpreted, RawSample, RawStack};
use crate::{Cpu, Pid, StackEnd, Tid, Timestamp};

/// Decodes a record. Sections that are not known are added to `unknown`.
pub(super) fn decode(record: &Bytes, unknown: &mut u64) -> Result<RawEvent, Bad> {
    let (head, _): (SampleHead, _) = read(record)?;
    let stacks = sections(record, size_of::<SampleHead>(), unknown)?;
    let sample = RawSample {
        comm: Comm(head.comm),
        cgroup: head.cgroup,
        undecided: head.flags & FLAG_UNDECIDED != 0,
        weight: head.weight,
        source: head.source,
        kernel: stacks.kernel,
        user: stacks.user,
        copy: stacks.copy,
        interpreted: stacks.interpreted,
        ..RawSample::new(Pid(head.tgid), Tid(head.tid))
    };
    Ok(RawEvent {
        at: Timestamp(head.at_ns),
        cpu: Cpu(head.cpu),
        body: RawBody::Sample(Box::new(sample)),
    })
}

/// What sections say.
pub(super) struct Stacks {
    pub(super) kernel: RawStack,
    pub(super) user: RawStack,
    pub(super) copy: Option<Box<RawCopy>>,
    pub(super) interpreted: RawInterpreted,
}

/// Decodes the sections of a record from an offset on. Those that are not known are added to `unknown`.
pub(super) fn sections(
    record: &Bytes,
    mut offset: usize,
    unknown: &mut u64,
) -> Result<Stacks, Bad> {
    let mut stacks = Stacks {
        kernel: RawStack::NONE,
        user: RawStack::NONE,
        copy: None,
        interpreted: RawInterpreted::default(),
    };
    while offset < record.len() {
        let section = Section::read(record, offset)?;
        match section.head.kind {
            SECTION_KERNEL_STACK => stacks.kernel = section.stack(record, MAX_FRAMES)?,
            SECTION_USER_STACK => stacks.user = section.stack(record, MAX_USER_FRAMES + 1)?,
            SECTION_STACK_COPY => stacks.copy = Some(section.copy(record)?),
            SECTION_INTERPRETED => stacks.interpreted = section.interpreted(record),
            SECTION_PADDING => {}
            _ => *unknown += 1,
        }
        offset = section.next;
    }
    Ok(stacks)
}

struct Section {
    head: SectionHead,
    start: usize,
    len: usize,
    next: usize,
}

impl Section {
    fn read(record: &[u8], offset: usize) -> Result<Section, Bad> {
        let (head, payload): (SectionHead, _) = read(record.get(offset..).ok_or(Bad)?)?;
        let start = offset + size_of::<SectionHead>();
        let len = head.len as usize;
        if len > payload.len() {
            return Err(Bad);
        }
        Ok(Section {
            head,
            start,
            len,
            // Bounded by the record, so the sum can't overflow.
            next: start + len.next_multiple_of(8),
        })
    }

    fn payload(&self, record: &Bytes) -> Bytes {
        record.slice(self.start..self.start + self.len)
    }

    fn interpreted(&self, record: &Bytes) -> RawInterpreted {
        RawInterpreted {
            interpreter: interpreter_of(self.head.end),
            frames: self.payload(record),
        }
    }

    fn copy(&self, record: &Bytes) -> Result<Box<RawCopy>, Bad> {
        let payload = self.payload(record);
        let (head, _): (CopyHead, _) = read(&payload)?;
        let bytes = payload.slice(size_of::<CopyHead>()..);
        if bytes.len() > PROOF_BYTES {
            return Err(Bad);
        }
        Ok(Box::new(RawCopy { head, bytes }))
    }

    fn stack(&self, record: &Bytes, most: usize) -> Result<RawStack, Bad> {
        if !self.len.is_multiple_of(8) || self.len > most * 8 {
            return Err(Bad);
        }
        Ok(RawStack {
            bytes: record.slice(self.start..self.start + self.len),
            end: StackEnd::from_code(self.head.end),
        })
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::sample::{END_COMPLETE, END_TRUNCATED, FLAG_IN_KERNEL};
    use profiler_common::{COMM_LEN, KIND_SAMPLE, RECORD_VERSION};
    use proptest::prelude::*;

    use super::super::decode;
    use super::*;

    const COMM: &[u8; COMM_LEN] = b"worker\0\0\0\0\0\0\0\0\0\0";

    /// Writes a record as the kernel side does.
    fn record(sections: &[(u16, u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        for value in [1000_u64, 77, 10_101_010] {
            bytes.extend(value.to_ne_bytes());
        }
        for value in [10_u32, 11, 3] {
            bytes.extend(value.to_ne_bytes());
        }
        bytes.extend(2_u16.to_ne_bytes());
        bytes.extend(FLAG_IN_KERNEL.to_ne_bytes());
        bytes.extend(COMM);
        assert_eq!(bytes.len(), size_of::<SampleHead>());
        for (kind, end, payload) in sections {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(end.to_ne_bytes());
            bytes.extend((payload.len() as u32).to_ne_bytes());
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        set_len(&mut bytes);
        bytes[4..6].copy_from_slice(&KIND_SAMPLE.to_ne_bytes());
        bytes[6..8].copy_from_slice(&RECORD_VERSION.to_ne_bytes());
        bytes
    }

    fn set_len(bytes: &mut [u8]) {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }

    fn addresses(of: &[u64]) -> Vec<u8> {
        of.iter()
            .flat_map(|address| address.to_ne_bytes())
            .collect()
    }

    fn decoded(bytes: Vec<u8>) -> (Result<Option<RawEvent>, Bad>, u64) {
        let mut unknown = 0;
        let result = decode(&Bytes::from(bytes), &mut unknown);
        (result, unknown)
    }

    #[test]
    fn all_fields_arrive() {
        let bytes = record(&[
            (SECTION_KERNEL_STACK, END_COMPLETE, addresses(&[9, 8])),
            (SECTION_USER_STACK, END_TRUNCATED, addresses(&[7])),
        ]);
        let (result, unknown) = decoded(bytes);
        let event = result.unwrap().unwrap();
        assert_eq!((event.at, event.cpu, unknown), (Timestamp(1000), Cpu(3), 0));
        let RawBody::Sample(sample) = event.body else {
            panic!("not a sample");
        };
        assert_eq!((sample.pid, sample.tid), (Pid(10), Tid(11)));
        assert_eq!(sample.comm.text(), "worker");
        assert_eq!(
            (sample.cgroup, sample.weight, sample.source),
            (77, 10_101_010, 2)
        );
        assert_eq!(sample.kernel.addresses().collect::<Vec<_>>(), [9, 8]);
        assert_eq!(sample.kernel.end, StackEnd::Complete);
        assert_eq!(sample.user.addresses().collect::<Vec<_>>(), [7]);
        assert_eq!(sample.user.end, StackEnd::Truncated);
    }

    #[test]
    fn unknown_sections_are_stepped_over_and_counted() {
        let bytes = record(&[
            (900, 0, vec![1, 2, 3]),
            (SECTION_USER_STACK, 77, addresses(&[5])),
            (901, 0, vec![]),
        ]);
        let (result, unknown) = decoded(bytes);
        let RawBody::Sample(sample) = result.unwrap().unwrap().body else {
            panic!("not a sample");
        };
        assert_eq!(sample.user.addresses().collect::<Vec<_>>(), [5]);
        assert_eq!(sample.user.end, StackEnd::Unknown);
        assert_eq!(sample.kernel, RawStack::NONE);
        assert_eq!(unknown, 2);
    }

    #[test]
    fn other_kinds_and_versions_are_no_errors() {
        for at in [4, 6] {
            let mut bytes = record(&[]);
            bytes[at..at + 2].copy_from_slice(&999_u16.to_ne_bytes());
            assert_eq!(decoded(bytes).0, Ok(None));
        }
    }

    #[test]
    fn a_stack_of_odd_or_excessive_length_is_bad() {
        for (kind, most) in [
            (SECTION_KERNEL_STACK, MAX_FRAMES),
            (SECTION_USER_STACK, MAX_USER_FRAMES + 1),
        ] {
            let of = |len| decoded(record(&[(kind, 0, vec![0; len])])).0;
            assert!(of(most * 8).is_ok());
            for len in [4, (most + 1) * 8] {
                assert_eq!(of(len), Err(Bad));
            }
        }
    }

    proptest! {
        #[test]
        fn any_truncation_is_bad(frames in 0..MAX_USER_FRAMES, cut in 1_usize..1000, fix in any::<bool>()) {
            let stack = addresses(&vec![1; frames]);
            let mut bytes = record(&[(SECTION_USER_STACK, 0, stack)]);
            let keep = bytes.len().saturating_sub(cut);
            // Cut exactly behind the head, the record is whole again, without stacks.
            prop_assume!(keep != size_of::<SampleHead>());
            bytes.truncate(keep);
            if fix && keep >= 4 {
                set_len(&mut bytes);
            }
            prop_assert_eq!(decoded(bytes).0, Err(Bad));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), fix in any::<bool>()) {
            if fix && bytes.len() >= 8 {
                set_len(&mut bytes);
                bytes[4..8].copy_from_slice(&record(&[])[4..8]);
            }
            let len = bytes.len();
            if let (Ok(Some(event)), _) = decoded(bytes) {
                let RawBody::Sample(sample) = event.body else { panic!("not a sample") };
                prop_assert!(sample.user.bytes.len() + sample.kernel.bytes.len() <= 2 * len);
            }
        }

        #[test]
        fn any_flipped_byte_is_survived(frames in 0_usize..20, at in 0_usize..200, with in any::<u8>()) {
            let mut bytes = record(&[(SECTION_USER_STACK, 0, addresses(&vec![1; frames]))]);
            let at = at % bytes.len();
            bytes[at] = with;
            let _ = decoded(bytes);
        }
    }
}
