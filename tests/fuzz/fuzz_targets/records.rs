//! Fuzz target of the decoder of ring buffer records: `cargo xtask fuzz records`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("records"),
    |data: &[u8]| profiler_tests::fuzzing::records(data)
);
