//! Tests of the reader with files that no writer makes, but with right checksums.

use std::path::{Path, PathBuf};

use super::block::*;
use super::item::{definition, event, put, put_signed};
use super::output::{Output, Payload};
use super::{CaptureError, CreateOptions, Existing, Reader, Summary, TimeRange, merge};
use profiler_model::{Event, Sections};

/// A capture of these blocks: kind, payload, items said to be in it.
fn capture(name: &str, blocks: &[(u8, &[u8], u32)]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hostile-{name}-{}.cap", std::process::id()));
    let mut output = Output::create(&path, Existing::Replace, &CreateOptions::default()).unwrap();
    for &(kind, bytes, items) in blocks {
        let payload = Payload {
            kind,
            epoch: 0,
            items,
            bytes,
            first_ns: 0,
            last_ns: u64::MAX,
        };
        output.block(&payload).unwrap();
    }
    output.finish(&[0; event::KINDS], 0).unwrap();
    path
}

fn summary(path: &Path) -> Summary {
    let summary = Reader::open(path).unwrap().summary().unwrap();
    std::fs::remove_file(path).unwrap();
    summary
}

fn item(payload: &mut Vec<u8>, kind: u64, fields: &[u8]) {
    put(payload, kind);
    put(payload, fields.len() as u64);
    payload.extend_from_slice(fields);
}

/// A string under the id that lies so far behind the previous one.
fn string(payload: &mut Vec<u8>, step: i64, text: &[u8]) {
    let mut fields = Vec::new();
    put_signed(&mut fields, step);
    put(&mut fields, text.len() as u64);
    fields.extend_from_slice(text);
    item(payload, definition::STRING, &fields);
}

/// The only damage, of the block at byte 32.
fn only_damage(summary: &Summary) -> &str {
    assert_eq!(summary.damage.len(), 1, "{:?}", summary.damage);
    assert_eq!(summary.damage[0].offset, 32);
    &summary.damage[0].what
}

#[test]
fn kinds_and_fields_of_later_versions_are_passed_over() {
    let mut payload = Vec::new();
    item(&mut payload, 77, b"from the future");
    // A mark with a field more: delta, text, and something.
    let mut strings = Vec::new();
    string(&mut strings, 1, b"hello");
    item(&mut payload, 3, &[20, 1, 99, 99]);
    let blocks = [
        (kind::DEFINITIONS, &strings[..], 1),
        (200, b"whatever", 1),
        (kind::EVENTS, &payload, 2),
    ];
    let found = summary(&capture("later", &blocks));
    assert_eq!(found.damage, []);
    assert_eq!(found.unknown, 1);
    assert_eq!(found.events["mark"], 1);
}

#[test]
fn a_newer_capture_is_refused_by_its_version() {
    let path = capture("newer", &[]);
    let mut bytes = std::fs::read(&path).unwrap();
    let header = FileHeader {
        version: VERSION + 1,
        file_id: 1,
        created_ns: 0,
    };
    bytes[..FILE_HEADER_BYTES].copy_from_slice(&header.encode());
    std::fs::write(&path, bytes).unwrap();
    let error = Reader::open(&path).unwrap_err();
    assert!(
        matches!(error, CaptureError::Newer { found: 2, .. }),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn far_ids_do_not_grow_tables() {
    let mut payload = Vec::new();
    string(&mut payload, 4_000_000_000, b"far");
    for _ in 0..1000 {
        // Near to each other, and still far from the first id there may be.
        string(&mut payload, -60_000, b"near");
    }
    let found = summary(&capture("far", &[(kind::DEFINITIONS, &payload, 1001)]));
    assert!(only_damage(&found).starts_with("1001 definitions"));
}

#[test]
fn lengths_are_not_believed() {
    for (payload, word) in [
        // The item says that it is longer than the block.
        (&[2, 200, 1, 2][..], "cut off"),
        // The string says that it is longer than the item.
        (&[2, 4, 2, 200, 1, b'x'], "cut off"),
        // An id of 0, a varint of 11 bytes, a text that is not UTF-8.
        (&[2, 2, 0, 0], "id is 0"),
        (
            &[2, 11, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
            "too large",
        ),
        (&[2, 3, 2, 1, 0xff], "UTF-8"),
        // A symbol of 2^60 lines.
        (
            &[
                11, 10, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 16,
            ],
            "cut off",
        ),
    ] {
        let found = summary(&capture("lengths", &[(kind::DEFINITIONS, payload, 1)]));
        let what = only_damage(&found);
        assert!(what.contains(word), "{what}");
    }
    let found = summary(&capture("count", &[(kind::EVENTS, &[], 5)]));
    assert!(only_damage(&found).contains("header says 5"));
}

/// Process 1 (pid 5, named by string 1) as far as earlier writers wrote it, and what more is given.
fn process(payload: &mut Vec<u8>, more: &[u8]) {
    // id, pid, start, parent, name, executable, command, cgroup, user id, namespace pids.
    let mut fields = vec![2, 5, 0, 0, 1, 0, 0, 0, 0, 1, 9];
    fields.extend_from_slice(more);
    item(payload, definition::PROCESS, &fields);
}

#[test]
fn processes_of_earlier_writers_run_in_no_container() {
    for (more, container) in [
        (&[][..], false),
        (&[0], false),
        (&[1], true),
        (&[1, 77], true),
    ] {
        let mut payload = Vec::new();
        string(&mut payload, 1, b"/docker/x");
        item(
            &mut payload,
            definition::CONTAINER,
            &[2, 1, 0, 0, 1, 0, 0, 0, 0],
        );
        process(&mut payload, more);
        let path = capture("earlier", &[(kind::DEFINITIONS, &payload, 3)]);
        let tables = Reader::open(&path).unwrap().load_tables().unwrap();
        let found = summary(&path);
        assert_eq!(found.damage, []);
        assert_eq!(found.processes.0, 1, "{more:?}");
        let (_, process) = tables.processes().next().unwrap();
        assert_eq!(process.namespace_pids[0].0, 9);
        assert_eq!(process.container.is_some(), container, "{more:?}");
        assert_eq!(found.containers[0].processes.0, u64::from(container));
    }
}

#[test]
fn damaged_containers_are_told_and_take_no_memory() {
    for (fields, word) in [
        // Without the last text; with a path that is not defined, and none; far beyond all ids.
        (&[2, 1, 0, 0, 1, 0, 0, 0][..], "cut off"),
        (&[2, 9, 0, 0, 0, 0, 0, 0, 0], "not defined"),
        (&[2, 0, 0, 0, 0, 0, 0, 0, 0], "an id is 0"),
        (
            &[0xfe, 0xff, 0xff, 0xff, 0x0f, 1, 0, 0, 0, 0, 0, 0, 0],
            "id",
        ),
    ] {
        let mut payload = Vec::new();
        string(&mut payload, 1, b"/docker/x");
        item(&mut payload, definition::CONTAINER, fields);
        process(&mut payload, &[0]);
        let found = summary(&capture("container", &[(kind::DEFINITIONS, &payload, 3)]));
        let what = only_damage(&found);
        assert!(what.contains(word), "{what}");
        assert_eq!(found.processes.0, 1, "the process is there: {what}");
    }
    // A process in a container that is not there.
    let mut payload = Vec::new();
    string(&mut payload, 1, b"x");
    process(&mut payload, &[4]);
    let found = summary(&capture("nowhere", &[(kind::DEFINITIONS, &payload, 2)]));
    assert!(
        only_damage(&found).contains("container"),
        "{:?}",
        found.damage
    );
}

/// What a sample and a call need: a source, a process, a thread and a function, each with the id 1.
fn needed() -> Vec<u8> {
    let mut payload = Vec::new();
    string(&mut payload, 1, b"x");
    item(&mut payload, definition::SOURCE, &[2, 1, 1, 0]);
    process(&mut payload, &[0]);
    item(&mut payload, definition::THREAD, &[2, 1, 5, 0, 1]);
    item(&mut payload, definition::FUNCTION, &[2, 1, 0, 0, 0, 0]);
    payload
}

/// A sample and an entry of the thread at 10 ns, and what follows their fields.
fn sample_and_call(more: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    // Flags thread, weight, source; flags entry, thread, function. The time is a signed number.
    let events = [
        (event::SAMPLE, &[2 | 32 | 64, 20, 1, 7, 1][..]),
        (event::CALL, &[8 | 16, 20, 1, 2]),
    ];
    for (kind, fields) in events {
        item(&mut payload, kind, &[fields, more].concat());
    }
    payload
}

fn events(path: &Path) -> Vec<Event> {
    let mut reader = Reader::open(path).unwrap();
    let tables = reader.load_tables().unwrap();
    let mut events = Vec::new();
    let each = &mut |event: &Event, _: &_| {
        events.push(event.clone());
        Ok(())
    };
    reader.replay(&tables, TimeRange::ALL, each).unwrap();
    events
}

#[test]
fn sections_of_later_versions_are_passed_over_and_copied() {
    let plain = capture(
        "plain",
        &[
            (kind::DEFINITIONS, &needed(), 5),
            (kind::EVENTS, &sample_and_call(&[]), 2),
        ],
    );
    // Kind 6 refers to nothing and is kept, twice; kind 7 may refer to anything; kind 1000 is empty.
    let sections = [6, 3, 1, 2, 3, 7, 2, 1, 1, 6, 1, 9, 0xe8, 7, 0];
    let later = capture(
        "sections",
        &[
            (kind::DEFINITIONS, &needed(), 5),
            (kind::EVENTS, &sample_and_call(&sections), 2),
        ],
    );
    let copy = std::env::temp_dir().join(format!("hostile-copy-{}.cap", std::process::id()));
    let options = CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    merge(std::slice::from_ref(&later), &copy, options).unwrap();
    let kept = [6, 3, 1, 2, 3, 6, 1, 9, 0xe8, 7, 0];
    let mut expected = events(&plain);
    assert_eq!(expected.len(), 2);
    for event in &mut expected {
        let later = match event {
            Event::Sample(sample) => &mut sample.later,
            Event::Call(call) => &mut call.later,
            other => panic!("{other:?}"),
        };
        assert_eq!(*later, None);
        *later = Some(Box::new(Sections(kept.into())));
    }
    assert_eq!(events(&later), expected);
    assert_eq!(events(&copy), expected);
    for (path, unknown) in [(plain, 0), (later, 2), (copy, 2)] {
        let found = summary(&path);
        assert_eq!((found.damage, found.unknown), (vec![], unknown));
    }
}

#[test]
fn sections_of_false_lengths_are_damage() {
    let far = [6, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
    let mut long = vec![6, 0x80, 0x80, 0x40];
    long.resize(4 + (1 << 20), 0);
    for (more, word) in [
        (&[6][..], "cut off"),
        (&[6, 1], "cut off"),
        (&[6, 1, 0, 7, 2, 0], "cut off"),
        (&far, "cut off"),
        (&[0xff; 11], "too large"),
        (&long, "too long"),
    ] {
        let blocks = [(kind::EVENTS, &sample_and_call(more)[..], 2)];
        let path = capture("section", &blocks);
        let found = summary(&path);
        let what = only_damage(&found);
        assert!(what.contains(word) && what.contains('2'), "{what}");
        assert_eq!(found.unusable, 2);
    }
}

#[test]
fn bombs_are_not_unpacked() {
    // A writer stores as it is what packs too well, so that this one is sound.
    let mut payload = Vec::new();
    string(&mut payload, 1, &vec![b'a'; 1 << 20]);
    let path = capture("bomb", &[(kind::DEFINITIONS, &payload, 1)]);
    assert!(std::fs::metadata(&path).unwrap().len() > 1 << 20);
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(summary(&path).damage, []);

    // The same packed, the header saying so.
    let packed = zstd::bulk::compress(&payload, 1).unwrap();
    let head = bytes[FILE_HEADER_BYTES..][..HEADER_BYTES]
        .try_into()
        .unwrap();
    let mut header = BlockHeader::decode(head).unwrap();
    header.codec = codec::ZSTD;
    header.stored_bytes = packed.len() as u32;
    header.payload_crc = crc32fast::hash(&packed);
    for (raw_bytes, word) in [
        (payload.len() as u32, "more than a block may"),
        (u32::MAX, "larger than any block"),
        // A lie that keeps within the limits.
        (SMALL_BYTES as u32, "can't be unpacked"),
    ] {
        header.raw_bytes = raw_bytes;
        bytes.truncate(FILE_HEADER_BYTES);
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(&packed);
        std::fs::write(&path, &bytes).unwrap();
        let found = summary(&path);
        let what = only_damage(&found);
        assert!(what.contains(word), "{what}");
        assert_eq!(found.tables, [0; 4]);
    }
}
