//! The fuzz target of the capture reader on a corpus and on mutations of it: a bounded,
//! repeatable part of what tests/fuzz does without end.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use profiler_capture::{Reader, TimeRange};
use profiler_tests::arbitrary::{Random, expected, recording};
use profiler_tests::fuzzing;
use profiler_tests::skip::long;

/// The first byte says how the rest is read.
const KEEP: usize = 1;

fn file(seed: u64) -> Vec<u8> {
    fuzzing::capture_file(&recording(seed, 3, 30)).unwrap()
}

#[test]
fn mutated_captures_are_read_without_panic() {
    let random = &mut Random(42);
    for seed in 0..if long() { 120 } else { 12 } {
        let bytes = file(seed);
        let mut raw = vec![1];
        raw.extend(&bytes);
        let blocks = fuzzing::unframed(&bytes);
        for corpus in [raw, blocks] {
            fuzzing::capture(&corpus);
            for _ in 0..50 {
                let mut mutated = corpus.clone();
                fuzzing::mutate(random, KEEP, &mut mutated);
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

/// Links to debug files, and what says which container a process is in: seeds and their mutations.
#[test]
fn mutated_links_and_containers_are_survived() {
    for (target, fuzz, rounds) in [
        ("links", fuzzing::links as fn(&[u8]), 20),
        ("containers", fuzzing::containers, 200),
    ] {
        for seed in fuzzing::seeds(target).unwrap() {
            fuzz(&seed);
            let mut random = Random(seed.len() as u64);
            for _ in 0..rounds {
                let mut mutated = seed.clone();
                fuzzing::mutate(&mut random, 2, &mut mutated);
                fuzz(&mutated);
            }
        }
    }
}
