//! The fuzz target of the capture reader on a corpus and on mutations of it: a bounded,
//! repeatable part of what tests/fuzz does without end.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use profiler::capture::{CreateOptions, Reader, TimeRange, Writer};
use profiler_tests::arbitrary::{Random, expected, recording};
use profiler_tests::fuzzing;

fn file(seed: u64) -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("fuzz-{}-{seed}", std::process::id()));
    let options = CreateOptions {
        overwrite: true,
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    for batch in recording(seed, 3, 30) {
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

/// A few changes: bytes set, flipped, removed, repeated.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(8) {
        // The first byte says how the rest is read.
        let at = 1 + random.below(bytes.len() - 1);
        match random.below(5) {
            0 => bytes[at] = random.number() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            3 => {
                let end = (at + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
        if bytes.len() < 2 {
            return;
        }
    }
}

#[test]
fn mutated_captures_are_read_without_panic() {
    let random = &mut Random(42);
    for seed in 0..20 {
        let bytes = file(seed);
        let mut raw = vec![1];
        raw.extend(&bytes);
        let blocks = fuzzing::unframed(&bytes);
        for corpus in [raw, blocks] {
            fuzzing::capture(&corpus);
            for _ in 0..150 {
                let mut mutated = corpus.clone();
                mutate(random, &mut mutated);
                fuzzing::capture(&mutated);
            }
        }
    }
}

#[test]
fn blocks_made_by_the_document_are_read() {
    // If framing by the document were refused, the test above would test nothing.
    let bytes = file(3);
    let (_, want) = expected(&recording(3, 3, 30));
    let framed = fuzzing::framed(&fuzzing::unframed(&bytes)[1..]);
    let path = std::env::temp_dir().join(format!("framed-{}", std::process::id()));
    std::fs::write(&path, framed).unwrap();
    let mut reader = Reader::open(Path::new(&path)).unwrap();
    let tables = reader.load_tables().unwrap();
    let mut events = Vec::new();
    let each = &mut |event: &_, _: &_| {
        events.push(Clone::clone(event));
        Ok(())
    };
    reader.replay(&tables, TimeRange::ALL, each).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(events, want);
}
