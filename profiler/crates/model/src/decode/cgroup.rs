//! Records of the kernel side: a [`CgroupHead`] and a path -> a cgroup that was made or removed.

use profiler_common::cgroup::{
    CGROUP_UNDECIDED, CGROUP_UNWANTED, CGROUP_WANTED, CgroupHead, PATH_BYTES,
};

use super::{Bad, read};
use crate::raw::{CgroupVerdict, RawBody, RawCgroup, RawEvent};
use crate::{Cpu, Timestamp};

/// Decodes a record.
pub(super) fn decode(record: &[u8]) -> Result<RawEvent, Bad> {
    let (head, rest): (CgroupHead, _) = read(record)?;
    let len = head.path_len as usize;
    let path = rest.get(..len).ok_or(Bad)?;
    if len >= PATH_BYTES || rest.len() != len.next_multiple_of(8) {
        return Err(Bad);
    }
    let verdict = match head.wanted {
        CGROUP_UNWANTED => CgroupVerdict::Inherited,
        CGROUP_WANTED => CgroupVerdict::Wanted,
        CGROUP_UNDECIDED => CgroupVerdict::Undecided,
        _ => return Err(Bad),
    };
    Ok(RawEvent {
        at: Timestamp(head.at_ns),
        cpu: Cpu(head.cpu),
        body: RawBody::Cgroup(Box::new(RawCgroup {
            id: head.id,
            path: String::from_utf8_lossy(path).into(),
            removed: head.removed != 0,
            verdict,
        })),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use profiler_common::{KIND_CGROUP, RECORD_VERSION};
    use proptest::prelude::*;

    use super::*;

    /// Decodes a record, of whichever kind.
    fn decoded(bytes: &[u8]) -> Result<Option<RawEvent>, Bad> {
        super::super::decode(&Bytes::copy_from_slice(bytes), &mut 0)
    }

    /// Writes a record as the kernel side does.
    fn record(path: &[u8], wanted: u32, removed: u32) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(KIND_CGROUP.to_ne_bytes());
        bytes.extend(RECORD_VERSION.to_ne_bytes());
        bytes.extend(1000_u64.to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        for value in [3, path.len() as u32, wanted, removed] {
            bytes.extend(value.to_ne_bytes());
        }
        assert_eq!(bytes.len(), size_of::<CgroupHead>());
        bytes.extend(path);
        // What was in the buffer before.
        bytes.resize(bytes.len().next_multiple_of(8), 0xff);
        set_len(&mut bytes);
        bytes
    }

    fn set_len(bytes: &mut [u8]) {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }

    #[track_caller]
    fn check(path: &[u8], wanted: u32, removed: u32, expected: RawCgroup) {
        let record = record(path, wanted, removed);
        let event = decoded(&record).unwrap().unwrap();
        assert_eq!((event.at, event.cpu), (Timestamp(1000), Cpu(3)));
        assert_eq!(event.body, RawBody::Cgroup(Box::new(expected)));
    }

    #[test]
    fn all_fields_arrive() {
        let cgroup = |path: &str, removed, verdict| RawCgroup {
            id: 77,
            path: path.into(),
            removed,
            verdict,
        };
        let made = cgroup("/a/web", false, CgroupVerdict::Wanted);
        check(b"/a/web", CGROUP_WANTED, 0, made);
        let made = cgroup("/12345678", false, CgroupVerdict::Undecided);
        check(b"/12345678", CGROUP_UNDECIDED, 0, made);
        let removed = cgroup("/b\u{fffd}", true, CgroupVerdict::Inherited);
        check(b"/b\xff", CGROUP_UNWANTED, 1, removed);
        check(
            b"",
            CGROUP_UNWANTED,
            0,
            cgroup("", false, CgroupVerdict::Inherited),
        );
    }

    #[test]
    fn records_that_contradict_themselves_are_bad() {
        assert_eq!(decoded(&record(b"/a", 3, 0)), Err(Bad));
        assert_eq!(decoded(&record(&[b'a'; PATH_BYTES], 0, 0)), Err(Bad));
        let mut longer = record(b"/a", 0, 0);
        longer.extend([0; 8]);
        assert_eq!(decoded(&longer), Err(Bad));
        set_len(&mut longer);
        assert_eq!(decoded(&longer), Err(Bad));
    }

    #[test]
    fn other_kinds_and_versions_are_none_of_these() {
        for at in [4, 6] {
            let mut bytes = record(b"/a", 0, 0);
            bytes[at..at + 2].copy_from_slice(&999_u16.to_ne_bytes());
            assert_eq!(decoded(&bytes), Ok(None));
        }
        assert_eq!(decoded(&[]), Err(Bad));
    }

    proptest! {
        #[test]
        fn any_truncation_is_bad(path in "[a-z/]{0,200}", cut in 1_usize..1000, fix in any::<bool>()) {
            let mut bytes = record(path.as_bytes(), CGROUP_WANTED, 0);
            let keep = bytes.len().saturating_sub(cut);
            bytes.truncate(keep);
            if fix && keep >= 4 {
                set_len(&mut bytes);
            }
            prop_assert_eq!(decoded(&bytes), Err(Bad));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), fix in any::<bool>()) {
            if fix && bytes.len() >= 8 {
                set_len(&mut bytes);
                bytes[4..8].copy_from_slice(&record(b"", 0, 0)[4..8]);
            }
            let len = bytes.len();
            if let Ok(Some(RawEvent { body: RawBody::Cgroup(cgroup), .. })) = decoded(&bytes) {
                // A byte that is no UTF-8 takes three.
                prop_assert!(cgroup.path.len() <= 3 * len);
            }
        }
    }
}
