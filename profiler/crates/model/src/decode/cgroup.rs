//! Records of the kernel side: a [`CgroupHead`] and a path -> a cgroup that was made or removed.

use profiler_common::{
    KIND_CGROUP, RECORD_VERSION,
    cgroup::{CGROUP_UNDECIDED, CGROUP_UNWANTED, CGROUP_WANTED, CgroupHead, PATH_BYTES},
};

use super::reader::Reader;
use crate::raw::{CgroupVerdict, RawBody, RawCgroup, RawEvent};
use crate::{Cpu, Timestamp};

/// The record contradicts itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad;

/// Whether a record is of this kind and of a version that is known.
pub(super) fn is_one(record: &[u8]) -> bool {
    let kind = || {
        let mut reader = Reader(record);
        reader.u32()?;
        Some((reader.u16()?, reader.u16()?))
    };
    kind() == Some((KIND_CGROUP, RECORD_VERSION))
}

/// Decodes a record for which [`is_one`] holds.
pub(super) fn decode(record: &[u8]) -> Result<RawEvent, Bad> {
    read(record).ok_or(Bad)
}

/// Reads in the order of [`CgroupHead`].
fn read(record: &[u8]) -> Option<RawEvent> {
    let mut reader = Reader(record);
    let len = reader.u32()? as usize;
    let _kind_and_version = reader.u32()?;
    let at = Timestamp(reader.u64()?);
    let id = reader.u64()?;
    let cpu = Cpu(reader.u32()?);
    let path_len = reader.u32()? as usize;
    let verdict = match reader.u32()? {
        CGROUP_UNWANTED => CgroupVerdict::Inherited,
        CGROUP_WANTED => CgroupVerdict::Wanted,
        CGROUP_UNDECIDED => CgroupVerdict::Undecided,
        _ => return None,
    };
    let removed = reader.u32()? != 0;
    let path = reader.bytes(path_len)?;
    let whole = (size_of::<CgroupHead>() + path_len).next_multiple_of(8);
    if path_len >= PATH_BYTES || len != record.len() || len != whole {
        return None;
    }
    let body = RawBody::Cgroup(Box::new(RawCgroup {
        id,
        path: String::from_utf8_lossy(path).into(),
        removed,
        verdict,
    }));
    Some(RawEvent { at, cpu, body })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert!(is_one(&record));
        let event = decode(&record).unwrap();
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
        assert_eq!(decode(&record(b"/a", 3, 0)), Err(Bad));
        assert_eq!(decode(&record(&[b'a'; PATH_BYTES], 0, 0)), Err(Bad));
        let mut longer = record(b"/a", 0, 0);
        longer.extend([0; 8]);
        assert_eq!(decode(&longer), Err(Bad));
        set_len(&mut longer);
        assert_eq!(decode(&longer), Err(Bad));
    }

    #[test]
    fn other_kinds_and_versions_are_none_of_these() {
        for at in [4, 6] {
            let mut bytes = record(b"/a", 0, 0);
            bytes[at..at + 2].copy_from_slice(&999_u16.to_ne_bytes());
            assert!(!is_one(&bytes));
        }
        assert!(!is_one(&[]));
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
            prop_assert_eq!(decode(&bytes), Err(Bad));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), fix in any::<bool>()) {
            if fix && bytes.len() >= 8 {
                set_len(&mut bytes);
            }
            let len = bytes.len();
            if let Ok(RawEvent { body: RawBody::Cgroup(cgroup), .. }) = decode(&bytes) {
                // A byte that is no UTF-8 takes three.
                prop_assert!(cgroup.path.len() <= 3 * len);
            }
        }
    }
}
