//! Records of the kernel side: a [`SampleHead`] and its sections -> a raw sample.
//!
//! Stacks are not copied: they stay slices of the record.

use bytes::Bytes;
use profiler_common::{
    COMM_LEN, KIND_SAMPLE, MAX_FRAMES, RECORD_VERSION,
    interpreter::interpreter_of,
    sample::{
        FLAG_UNDECIDED, SECTION_INTERPRETED, SECTION_KERNEL_STACK, SECTION_PADDING,
        SECTION_STACK_COPY, SECTION_USER_STACK, SampleHead, SectionHead,
    },
    unwind::{CopyHead, PROOF_BYTES},
};

use super::reader::Reader;
use crate::raw::{Comm, RawBody, RawCopy, RawEvent, RawInterpreted, RawSample, RawStack};
use crate::{Cpu, Pid, StackEnd, Tid, Timestamp};

/// The record contradicts itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad;

/// Decodes a record; nothing if it is of another kind or version. Sections that are not known are
/// added to `unknown`.
pub(super) fn decode(record: Bytes, unknown: &mut u64) -> Result<Option<RawEvent>, Bad> {
    let mut reader = Reader(&record);
    let (len, kind, version) = head(&mut reader).ok_or(Bad)?;
    if len != record.len() {
        return Err(Bad);
    }
    if kind != KIND_SAMPLE || version != RECORD_VERSION {
        return Ok(None);
    }
    let (at, cpu, mut sample) = fixed_part(&mut reader).ok_or(Bad)?;
    let stacks = sections(&record, size_of::<SampleHead>(), unknown)?;
    sample.kernel = stacks.kernel;
    sample.user = stacks.user;
    sample.copy = stacks.copy;
    sample.interpreted = stacks.interpreted;
    let body = RawBody::Sample(Box::new(sample));
    Ok(Some(RawEvent { at, cpu, body }))
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
        let section = Section::read(record, offset).ok_or(Bad)?;
        match section.kind {
            SECTION_KERNEL_STACK => stacks.kernel = section.stack(record)?,
            SECTION_USER_STACK => stacks.user = section.stack(record)?,
            SECTION_STACK_COPY => stacks.copy = Some(section.copy(record)?),
            SECTION_INTERPRETED => stacks.interpreted = section.interpreted(record),
            SECTION_PADDING => {}
            _ => *unknown += 1,
        }
        offset = section.next;
    }
    Ok(stacks)
}

pub(super) fn head(reader: &mut Reader<'_>) -> Option<(usize, u16, u16)> {
    Some((reader.u32()? as usize, reader.u16()?, reader.u16()?))
}

/// Reads what follows the record's head, in the order of [`SampleHead`].
fn fixed_part(reader: &mut Reader<'_>) -> Option<(Timestamp, Cpu, RawSample)> {
    let at = Timestamp(reader.u64()?);
    let cgroup = reader.u64()?;
    let weight = reader.u64()?;
    let pid = Pid(reader.u32()?);
    let tid = Tid(reader.u32()?);
    let cpu = Cpu(reader.u32()?);
    let source = reader.u16()?;
    let flags = reader.u16()?;
    let comm = Comm(reader.array::<COMM_LEN>()?);
    let sample = RawSample {
        comm,
        cgroup,
        undecided: flags & FLAG_UNDECIDED != 0,
        weight,
        source,
        ..RawSample::new(pid, tid)
    };
    Some((at, cpu, sample))
}

struct Section {
    kind: u16,
    end: u16,
    start: usize,
    len: usize,
    next: usize,
}

impl Section {
    fn read(record: &[u8], offset: usize) -> Option<Section> {
        let mut reader = Reader(record.get(offset..)?);
        let (kind, end) = (reader.u16()?, reader.u16()?);
        let len = reader.u32()? as usize;
        let start = offset + size_of::<SectionHead>();
        // Bounded by the record, so the sum can't overflow.
        reader.bytes(len)?;
        let next = start + len.next_multiple_of(8);
        Some(Section {
            kind,
            end,
            start,
            len,
            next,
        })
    }

    fn payload(&self, record: &Bytes) -> Bytes {
        record.slice(self.start..self.start + self.len)
    }

    fn interpreted(&self, record: &Bytes) -> RawInterpreted {
        RawInterpreted {
            interpreter: interpreter_of(self.end),
            frames: self.payload(record),
        }
    }

    fn copy(&self, record: &Bytes) -> Result<Box<RawCopy>, Bad> {
        let payload = self.payload(record);
        let mut reader = Reader(&payload);
        let head = copy_head(&mut reader).ok_or(Bad)?;
        let bytes = payload.slice(size_of::<CopyHead>()..);
        if bytes.len() > PROOF_BYTES {
            return Err(Bad);
        }
        Ok(Box::new(RawCopy { head, bytes }))
    }

    fn stack(&self, record: &Bytes) -> Result<RawStack, Bad> {
        if !self.len.is_multiple_of(8) || self.len > MAX_FRAMES * 8 {
            return Err(Bad);
        }
        Ok(RawStack {
            bytes: record.slice(self.start..self.start + self.len),
            end: StackEnd::from_code(self.end),
        })
    }
}

/// In the order of [`CopyHead`].
fn copy_head(reader: &mut Reader<'_>) -> Option<CopyHead> {
    let mut head = CopyHead {
        pc: reader.u64()?,
        is_return: reader.u64()?,
        all_known: reader.u64()?,
        ..CopyHead::default()
    };
    for register in &mut head.registers {
        *register = reader.u64()?;
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use profiler_common::sample::{END_COMPLETE, END_TRUNCATED, FLAG_IN_KERNEL};
    use proptest::prelude::*;

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
        let result = decode(Bytes::from(bytes), &mut unknown);
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
        for len in [4, (MAX_FRAMES + 1) * 8] {
            let bytes = record(&[(SECTION_USER_STACK, 0, vec![0; len])]);
            assert_eq!(decoded(bytes).0, Err(Bad));
        }
    }

    proptest! {
        #[test]
        fn any_truncation_is_bad(frames in 0..MAX_FRAMES, cut in 1_usize..1000, fix in any::<bool>()) {
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
