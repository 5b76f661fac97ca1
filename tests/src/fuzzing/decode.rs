//! Fuzzing of the record decoder: bytes of the kernel -> raw events.
//!
//! Input: a fuzzer's bytes; output: none, a broken promise is a panic. Integers are in the byte
//! order of the machine, as in the records.

use bytes::Bytes;
use profiler_common::cgroup::{
    CGROUP_UNDECIDED, CGROUP_UNWANTED, CGROUP_WANTED, CgroupHead, PATH_BYTES,
};
use profiler_common::interpreter::end_of;
use profiler_common::sample::{
    END_BAD_MEMORY, END_COMPLETE, END_FRAME_POINTER, END_GONE, END_JIT, END_LEFT_OUT,
    END_NO_MAPPING, END_NO_RULE, END_NO_STACK, END_NO_TABLE, END_TRUNCATED, FLAG_UNDECIDED,
    SECTION_INTERPRETED, SECTION_KERNEL_STACK, SECTION_STACK_COPY, SECTION_USER_STACK, SampleHead,
};
use profiler_common::{KIND_CGROUP, KIND_SAMPLE, MAX_USER_FRAMES, RECORD_VERSION};
use profiler_model::decode::Decoder;
use profiler_model::raw::{CgroupVerdict, RawBody, RawCgroup, RawEvent, RawSample, RawStack};
use profiler_model::{Cpu, StackEnd};

/// Head of a perf record: type, misc, size.
const PERF_HEAD_BYTES: usize = 8;

/// Decodes ring buffer records. If the first byte is odd, the rest is one record as it is; if even,
/// it is a row of records, each behind its length in two bytes, which get the head of a sample of
/// their length, so that what is behind it is reached.
pub fn records(data: &[u8]) {
    let Some((mode, mut rest)) = data.split_first() else {
        return;
    };
    if mode % 2 == 1 {
        return record(rest);
    }
    while let [low, high, more @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, behind) = more.split_at(len);
        rest = behind;
        let mut bytes = bytes.to_vec();
        set_head(&mut bytes, KIND_SAMPLE);
        record(&bytes);
    }
}

/// What is decoded is counted once, fits into the record, and is encoded to the same again.
fn record(bytes: &[u8]) {
    let (mut decoder, mut out) = (Decoder::default(), Vec::new());
    decoder.record(Bytes::copy_from_slice(bytes), &mut out);
    let [event] = out.as_slice() else {
        assert!(out.is_empty(), "one record gives one event");
        // Sections that are not known may have come before what makes it bad.
        assert!(decoder.bad == 1 || (decoder.bad, decoder.unknown) == (0, 1));
        return;
    };
    assert_eq!(decoder.bad, 0, "an event of a record that is called bad");
    let are_bounded = |stacks: [&RawStack; 2]| {
        for stack in stacks {
            assert!(stack.bytes.len() <= (MAX_USER_FRAMES * 8 + 8).min(bytes.len()));
            assert_eq!(stack.addresses().len() * 8, stack.bytes.len());
        }
    };
    let encoded = match &event.body {
        RawBody::Sample(sample) => {
            are_bounded([&sample.kernel, &sample.user]);
            Some(encoded(event, sample))
        }
        RawBody::WaitStack(stacks) => {
            are_bounded([&stacks.kernel, &stacks.user]);
            None
        }
        RawBody::Wait(_) | RawBody::Waits(_) => None,
        RawBody::Cgroup(cgroup) => {
            // A byte that is no UTF-8 takes three, so that the path may be too long to be a record's.
            assert!(cgroup.path.len() <= 3 * PATH_BYTES.min(bytes.len()));
            (cgroup.path.len() < PATH_BYTES).then(|| encoded_cgroup(event, cgroup))
        }
        _ => panic!("a ring buffer record gives {event:?}"),
    };
    if let Some(encoded) = encoded {
        let (mut again, mut same) = (Decoder::default(), Vec::new());
        again.record(Bytes::from(encoded), &mut same);
        assert_eq!(same, out, "encoded again it is another event");
        assert_eq!(again, Decoder::default());
    }
    // A record that its end is missing of contradicts its length.
    let (mut cut, mut none) = (Decoder::default(), Vec::new());
    cut.record(Bytes::copy_from_slice(&bytes[..bytes.len() - 1]), &mut none);
    assert_eq!((cut.bad, none.len()), (1, 0));
}

/// A sample's record as the kernel side writes it.
pub(super) fn encoded(event: &RawEvent, sample: &RawSample) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    for value in [event.at.0, sample.cgroup, sample.weight] {
        bytes.extend(value.to_ne_bytes());
    }
    for value in [sample.pid.0, sample.tid.0, event.cpu.0] {
        bytes.extend(value.to_ne_bytes());
    }
    bytes.extend(sample.source.to_ne_bytes());
    let flags = if sample.undecided { FLAG_UNDECIDED } else { 0 };
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sample.comm.0);
    assert_eq!(bytes.len(), size_of::<SampleHead>());
    stack(&mut bytes, SECTION_KERNEL_STACK, &sample.kernel);
    stack(&mut bytes, SECTION_USER_STACK, &sample.user);
    if let Some(copy) = &sample.copy {
        let head = [copy.head.pc, copy.head.is_return, copy.head.all_known];
        let head = head.into_iter().chain(copy.head.registers);
        let words = head.chain([copy.head.absent]);
        let mut payload: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        payload.extend(&copy.bytes);
        section(&mut bytes, SECTION_STACK_COPY, 0, &payload);
    }
    let interpreted = &sample.interpreted;
    let end = end_of(END_COMPLETE, interpreted.interpreter);
    section(&mut bytes, SECTION_INTERPRETED, end, &interpreted.frames);
    set_head(&mut bytes, KIND_SAMPLE);
    bytes
}

/// The record of a cgroup that was made or removed, as the kernel side writes it.
pub(super) fn encoded_cgroup(event: &RawEvent, cgroup: &RawCgroup) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(event.at.0.to_ne_bytes());
    bytes.extend(cgroup.id.to_ne_bytes());
    let wanted = match cgroup.verdict {
        CgroupVerdict::Inherited => CGROUP_UNWANTED,
        CgroupVerdict::Wanted => CGROUP_WANTED,
        CgroupVerdict::Undecided => CGROUP_UNDECIDED,
    };
    let path_len = cgroup.path.len() as u32;
    for value in [event.cpu.0, path_len, wanted, u32::from(cgroup.removed)] {
        bytes.extend(value.to_ne_bytes());
    }
    assert_eq!(bytes.len(), size_of::<CgroupHead>());
    bytes.extend(cgroup.path.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    set_head(&mut bytes, KIND_CGROUP);
    bytes
}

fn stack(bytes: &mut Vec<u8>, kind: u16, stack: &RawStack) {
    let end = match stack.end {
        StackEnd::Complete => END_COMPLETE,
        StackEnd::Truncated => END_TRUNCATED,
        StackEnd::BadMemory => END_BAD_MEMORY,
        StackEnd::FramePointer => END_FRAME_POINTER,
        StackEnd::NoStack => END_NO_STACK,
        StackEnd::NoRule => END_NO_RULE,
        StackEnd::Jit => END_JIT,
        StackEnd::NoTable => END_NO_TABLE,
        StackEnd::NoMapping => END_NO_MAPPING,
        StackEnd::Gone => END_GONE,
        // The kernel side says none of these.
        StackEnd::NotSaid => 10,
        StackEnd::LeafOnly => 11,
        StackEnd::LeftOut => END_LEFT_OUT,
        StackEnd::Unknown => u16::MAX,
    };
    section(bytes, kind, end, &stack.bytes);
}

fn section(bytes: &mut Vec<u8>, kind: u16, end: u16, payload: &[u8]) {
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(end.to_ne_bytes());
    bytes.extend((payload.len() as u32).to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

fn set_head(bytes: &mut [u8], kind: u16) {
    let len = bytes.len() as u32;
    let head = bytes.iter_mut().zip(
        len.to_ne_bytes()
            .into_iter()
            .chain(kind.to_ne_bytes())
            .chain(RECORD_VERSION.to_ne_bytes()),
    );
    head.for_each(|(byte, value)| *byte = value);
}

/// Decodes perf side-band bytes: at once and record by record must come to the same.
pub fn side_band(data: &[u8]) {
    let Some((cpu, bytes)) = data.split_first() else {
        return;
    };
    let cpu = Cpu(u32::from(*cpu));
    let (mut decoder, mut out) = (Decoder::default(), Vec::new());
    decoder.side_band(cpu, bytes, &mut out);
    let seen = out.len() as u64 + decoder.unknown + decoder.bad;
    assert!(seen <= bytes.len().div_ceil(PERF_HEAD_BYTES) as u64);
    assert!(out.iter().all(|event| event.cpu == cpu));

    let (mut each, mut events) = (Decoder::default(), Vec::new());
    let mut rest = bytes;
    while !rest.is_empty() {
        let size = match rest {
            [_, _, _, _, _, _, low, high, ..] => usize::from(u16::from_ne_bytes([*low, *high])),
            _ => 0,
        };
        // A record without a usable length takes the rest with it.
        let fits = (PERF_HEAD_BYTES..=rest.len()).contains(&size);
        let (record, behind) = rest.split_at(if fits { size } else { rest.len() });
        rest = behind;
        let (mut alone, mut found) = (Decoder::default(), Vec::new());
        alone.side_band(cpu, record, &mut found);
        let counted = found.len() as u64 + alone.unknown + alone.bad;
        assert_eq!(counted, 1, "a record is not counted once");
        if let Some(RawBody::Mmap(mmap)) = found.first().map(|event| &event.body) {
            assert!(mmap.path.len() < record.len() && !mmap.path.contains(&0));
        }
        events.append(&mut found);
        each.unknown += alone.unknown;
        each.bad += alone.bad;
    }
    assert_eq!((events, each), (out, decoder));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a fuzzer found: sections that samples had, and what encodes them left out.
    #[test]
    fn frames_of_interpreters_and_copies_are_encoded() {
        let mut record = vec![0; size_of::<SampleHead>()];
        section(&mut record, SECTION_INTERPRETED, 0, b"of nobody");
        section(&mut record, SECTION_INTERPRETED, end_of(0, 1), b"frames");
        let copy = [7; size_of::<profiler_common::unwind::CopyHead>() + 16];
        section(&mut record, SECTION_STACK_COPY, 0, &copy);
        set_head(&mut record, KIND_SAMPLE);
        records(&[&[1], record.as_slice()].concat());
    }
}
