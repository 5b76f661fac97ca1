//! Perf side-band records -> raw events.
//!
//! Layouts: perf_event_open(2), "MMAP layout"; with `sample_id_all` and only `PERF_SAMPLE_TIME`
//! asked for, each record ends with its time, nanoseconds of CLOCK_MONOTONIC.
//!
//! Which file is mapped is always said by device and inode here: build ids are not asked for. The flag
//! that announces a build id is not looked at, because the kernel also sets it in the records of those
//! who did not ask, once anybody on the machine did; the bytes are then a device and an inode all the
//! same.

use super::Bad;
use super::reader::Reader;
use crate::raw::{Comm, FileIdentity, RawBody, RawEvent, RawMmap};
use crate::{Cpu, Lost, LostReason, Pid, Tid, Timestamp};

// From <linux/perf_event.h>.
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;
const MISC_COMM_EXEC: u16 = 1 << 13;

/// Head of each record: type, misc, size.
const HEAD_BYTES: usize = 8;
/// The time at the end of each record.
const TIME_BYTES: usize = 8;

/// Takes one record off the front of `rest`, always at least a byte; nothing if it is of another
/// kind.
pub(super) fn next(cpu: Cpu, rest: &mut &[u8]) -> Result<Option<RawEvent>, Bad> {
    let mut reader = Reader(rest);
    let head = (|| Some((reader.u32()?, reader.u16()?, reader.u16()?)))();
    let Some((kind, misc, size)) = head else {
        *rest = &[];
        return Err(Bad);
    };
    let size = usize::from(size);
    let Some((record, behind)) = rest.split_at_checked(size).filter(|_| size >= HEAD_BYTES) else {
        // Without a length there is no next record.
        *rest = &[];
        return Err(Bad);
    };
    *rest = behind;
    if !matches!(
        kind,
        RECORD_LOST | RECORD_COMM | RECORD_EXIT | RECORD_FORK | RECORD_MMAP2
    ) {
        return Ok(None);
    }
    event(cpu, kind, misc, &record[HEAD_BYTES..])
        .ok_or(Bad)
        .map(Some)
}

fn event(cpu: Cpu, kind: u32, misc: u16, body: &[u8]) -> Option<RawEvent> {
    let (body, time) = body.split_at_checked(body.len().checked_sub(TIME_BYTES)?)?;
    let at = Timestamp(Reader(time).u64()?);
    let mut reader = Reader(body);
    let body = match kind {
        RECORD_LOST => lost(&mut reader, at, cpu)?,
        RECORD_COMM => RawBody::Comm {
            pid: Pid(reader.u32()?),
            tid: Tid(reader.u32()?),
            exec: misc & MISC_COMM_EXEC != 0,
            comm: Comm::from_bytes(reader.0),
        },
        RECORD_MMAP2 => RawBody::Mmap(Box::new(mmap(&mut reader)?)),
        RECORD_FORK | RECORD_EXIT => {
            let (pid, parent_pid) = (Pid(reader.u32()?), Pid(reader.u32()?));
            let (tid, parent_tid) = (Tid(reader.u32()?), Tid(reader.u32()?));
            if kind == RECORD_FORK {
                RawBody::Fork {
                    pid,
                    tid,
                    parent_pid,
                    parent_tid,
                }
            } else {
                RawBody::Exit { pid, tid }
            }
        }
        _ => return None,
    };
    Some(RawEvent { at, cpu, body })
}

fn lost(reader: &mut Reader<'_>, at: Timestamp, cpu: Cpu) -> Option<RawBody> {
    let _id = reader.u64()?;
    let count = reader.u64()?;
    Some(RawBody::Lost(Lost {
        cpu: Some(cpu),
        // The kernel says so with the first record that found room again, not since when.
        from: at,
        to: at,
        count,
        reason: LostReason::SideBand,
    }))
}

fn mmap(reader: &mut Reader<'_>) -> Option<RawMmap> {
    let pid = Pid(reader.u32()?);
    let tid = Tid(reader.u32()?);
    let start = reader.u64()?;
    let len = reader.u64()?;
    let file_offset = reader.u64()?;
    let file = FileIdentity {
        major: reader.u32()?,
        minor: reader.u32()?,
        inode: reader.u64()?,
        generation: reader.u64()?,
    };
    let (_protection, _flags) = (reader.u32()?, reader.u32()?);
    let path = reader.0.split(|&byte| byte == 0).next().unwrap_or_default();
    Some(RawMmap {
        pid,
        tid,
        start,
        len,
        file_offset,
        path: path.into(),
        file,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Decoder;
    use super::*;

    /// From <linux/perf_event.h>: a build id takes the place of device and inode.
    const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

    const CPU: Cpu = Cpu(4);

    fn record(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend(time.to_ne_bytes());
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(((body.len() + HEAD_BYTES) as u16).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect()
    }

    fn mmap_body(identity: &[u8; 24], path: &[u8]) -> Vec<u8> {
        let mut body = words(&[10, 11]);
        for value in [0x5000_u64, 0x2000, 0x1000] {
            body.extend(value.to_ne_bytes());
        }
        body.extend(identity);
        body.extend(words(&[5, 2]));
        body.extend(path);
        body.push(0);
        body
    }

    fn decode(bytes: &[u8]) -> (Vec<RawEvent>, Decoder) {
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        decoder.side_band(CPU, bytes, &mut out);
        (out, decoder)
    }

    #[test]
    fn a_life_of_a_process() {
        let mut name = words(&[20, 20]);
        name.extend(b"cat\0");
        let mut bytes = record(RECORD_FORK, 0, &words(&[20, 10, 20, 11, 0, 0]), 1);
        bytes.extend(record(RECORD_COMM, MISC_COMM_EXEC, &name, 2));
        bytes.extend(record(RECORD_EXIT, 0, &words(&[20, 10, 20, 11, 0, 0]), 3));
        let (events, decoder) = decode(&bytes);
        let (pid, tid) = (Pid(20), Tid(20));
        let bodies = [
            RawBody::Fork {
                pid,
                tid,
                parent_pid: Pid(10),
                parent_tid: Tid(11),
            },
            RawBody::Comm {
                pid,
                tid,
                exec: true,
                comm: Comm::from_bytes(b"cat"),
            },
            RawBody::Exit { pid, tid },
        ];
        let expected: Vec<_> = (1..)
            .zip(bodies)
            .map(|(at, body)| RawEvent {
                at: Timestamp(at),
                cpu: CPU,
                body,
            })
            .collect();
        assert_eq!(events, expected);
        assert_eq!(decoder, Decoder::default());
    }

    #[test]
    fn mappings_name_their_file_whatever_others_asked_for() {
        let mut inode = [0_u8; 24];
        inode[0] = 8;
        inode[4] = 1;
        inode[8] = 99;
        inode[16] = 7;
        let body = mmap_body(&inode, b"/bin/cat");
        let mut bytes = record(RECORD_MMAP2, 0, &body, 1);
        bytes.extend(record(RECORD_MMAP2, MISC_MMAP_BUILD_ID, &body, 2));
        let (events, decoder) = decode(&bytes);
        let expected = RawMmap {
            pid: Pid(10),
            tid: Tid(11),
            start: 0x5000,
            len: 0x2000,
            file_offset: 0x1000,
            path: b"/bin/cat".as_slice().into(),
            file: FileIdentity {
                major: 8,
                minor: 1,
                inode: 99,
                generation: 7,
            },
        };
        assert_eq!(events.len(), 2);
        for event in events {
            assert_eq!(event.body, RawBody::Mmap(Box::new(expected.clone())));
        }
        assert_eq!(decoder, Decoder::default());
    }

    #[test]
    fn losses_and_unknown_kinds_are_counted() {
        let mut body = 5_u64.to_ne_bytes().to_vec();
        body.extend(17_u64.to_ne_bytes());
        let mut bytes = record(5, 0, &body, 1);
        bytes.extend(record(RECORD_LOST, 0, &body, 2));
        let (events, decoder) = decode(&bytes);
        let RawBody::Lost(lost) = &events[0].body else {
            panic!("{events:?}");
        };
        assert_eq!((lost.count, lost.reason), (17, LostReason::SideBand));
        assert_eq!((decoder.unknown, decoder.bad), (1, 0));
    }

    #[test]
    fn a_bad_record_does_not_hide_the_next() {
        // Nothing behind the number of the thread.
        let mut bytes = record(RECORD_MMAP2, 0, &words(&[10, 11]), 1);
        bytes.extend(record(RECORD_EXIT, 0, &words(&[20, 10, 20, 11, 0, 0]), 3));
        let (events, decoder) = decode(&bytes);
        assert_eq!((events.len(), decoder.bad), (1, 1));
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let (events, decoder) = decode(&bytes);
            let records = events.len() as u64 + decoder.unknown + decoder.bad;
            prop_assert!(records <= bytes.len() as u64 / 8 + 1);
        }

        #[test]
        fn any_known_kind_with_any_body(
            kind in prop::sample::select(vec![RECORD_LOST, RECORD_COMM, RECORD_EXIT, RECORD_FORK, RECORD_MMAP2]),
            misc in any::<u16>(),
            body in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            let (events, decoder) = decode(&record(kind, misc, &body, 1));
            prop_assert_eq!(events.len() as u64 + decoder.bad, 1);
        }

        #[test]
        fn any_truncation_is_bad(cut in 1_usize..48) {
            let whole = record(RECORD_EXIT, 0, &words(&[20, 10, 20, 11, 0, 0]), 3);
            let keep = whole.len().saturating_sub(cut);
            let (events, decoder) = decode(&whole[..keep]);
            prop_assert_eq!(events.len(), 0);
            prop_assert_eq!(decoder.bad, u64::from(keep > 0));
        }
    }
}
