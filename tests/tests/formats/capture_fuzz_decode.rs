//! The fuzz targets of the record decoder, of ELF files and of protocols on their seeds and on mutations of
//! these: a bounded, repeatable part of what tests/fuzz does without end.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use profiler_model::Cpu;
use profiler_model::decode::Decoder;
use profiler_tests::arbitrary::Random;
use profiler_tests::fuzzing;
use profiler_tests::skip::{long, skip};

/// Runs a target on its seeds and on so many mutations of each (ten times as many with `--long`), all but
/// the first bytes of which are changed.
fn exercise<T>(name: &str, target: fn(&[u8]) -> T, keep: usize, mutations: usize) {
    let random = &mut Random(42);
    let mutations = if long() { 10 * mutations } else { mutations };
    for seed in fuzzing::seeds(name).unwrap() {
        target(&seed);
        for _ in 0..mutations {
            let mut mutated = seed.clone();
            fuzzing::mutate(random, keep, &mut mutated);
            target(&mutated);
        }
    }
}

#[test]
fn mutated_records_are_decoded_without_panic() {
    exercise("records", fuzzing::records, 0, 2_000);
}

#[test]
fn mutated_side_band_is_decoded_without_panic() {
    exercise("side_band", fuzzing::side_band, 1, 2_000);
}

#[test]
fn mutated_files_of_other_tools_are_imported_without_panic() {
    for seed in fuzzing::seeds("import").unwrap() {
        assert!(
            fuzzing::import(&seed) > 0,
            "the seed of {} is refused",
            seed[0]
        );
    }
    exercise("import", fuzzing::import, 1, 300);
}

#[test]
fn mutated_object_files_are_read_without_panic() {
    if let Err(error) = fuzzing::seeds("elf") {
        let test = "mutated_object_files_are_read_without_panic";
        return skip(test, &format!("cc makes no object files: {error}"));
    }
    exercise("elf", fuzzing::elf, 0, 100);
    fuzzing::remove_elf_file();
}

#[test]
fn mutated_calls_are_paired_without_panic() {
    exercise("calls", fuzzing::calls, 1, 2_000);
}

#[test]
fn mutated_objects_are_planned_without_panic() {
    if let Err(error) = fuzzing::seeds("object") {
        let test = "mutated_objects_are_planned_without_panic";
        return skip(test, &format!("cc makes no object files: {error}"));
    }
    for seed in fuzzing::seeds("object").unwrap() {
        assert!(fuzzing::object(&seed) >= 4, "the seed is refused");
    }
    exercise("object", fuzzing::object, 0, 60);
}

#[test]
fn mutated_debug_information_gives_signatures_without_panic() {
    if let Err(error) = fuzzing::seeds("signature") {
        let test = "mutated_debug_information_gives_signatures_without_panic";
        return skip(test, &format!("cc makes no object files: {error}"));
    }
    for seed in fuzzing::seeds("signature").unwrap() {
        assert!(fuzzing::signature(&seed) >= 8, "the seed is refused");
    }
    exercise("signature", fuzzing::signature, 1, 300);
}

#[test]
fn mutated_messages_of_bytefrog_are_decoded_without_panic() {
    for (name, target) in [
        (
            "bytefrog_agent",
            fuzzing::bytefrog_agent as fn(&[u8]) -> usize,
        ),
        ("bytefrog_hq", fuzzing::bytefrog_hq),
    ] {
        for seed in fuzzing::seeds(name).unwrap() {
            assert!(target(&seed) > 0, "a seed of {name} is refused");
        }
        exercise(name, target, 0, 1_000);
    }
}

#[test]
fn mutated_messages_of_tcf_clients_are_answered_without_panic() {
    for (name, target, mutations) in [
        // A whole agent each time.
        ("tcf", fuzzing::tcf as fn(&[u8]) -> usize, 20),
        ("tcf_frames", fuzzing::tcf_frames, 300),
    ] {
        for seed in fuzzing::seeds(name).unwrap() {
            assert!(target(&seed) > 0, "a seed of {name} is refused");
        }
        exercise(name, target, 0, mutations);
    }
}

#[test]
fn mutated_requests_of_debugging_clients_are_answered_without_panic() {
    let seeds = fuzzing::seeds("rdp").unwrap();
    let all = seeds.iter().map(|seed| fuzzing::rdp(seed)).max();
    assert!(all > Some(40), "the seeds are refused: {all:?}");
    exercise("rdp", fuzzing::rdp, 0, 60);
}

#[test]
fn mutated_requests_of_sessions_are_answered_without_panic() {
    for seed in fuzzing::seeds("http").unwrap() {
        assert!(fuzzing::http(&seed) > 15, "a seed is refused");
    }
    exercise("http", fuzzing::http, 0, 60);
}

#[test]
fn seeds_are_decoded_whole() {
    // If the seeds were refused, the tests above would test nothing.
    let (mut decoder, mut events) = (Decoder::default(), Vec::new());
    for seed in fuzzing::seeds("records").unwrap() {
        if seed[0] == 1 {
            decoder.record(seed[1..].to_vec().into(), &mut events);
        }
    }
    assert_eq!((decoder, events.len()), (Decoder::default(), 7));
    for seed in fuzzing::seeds("side_band").unwrap() {
        decoder.side_band(Cpu(0), &seed[1..], &mut events);
    }
    // Each kind alone and all in one; of eight kinds, one is not known.
    assert_eq!((decoder.bad, decoder.unknown), (0, 2));
    assert_eq!(events.len(), 7 + 14);
}
