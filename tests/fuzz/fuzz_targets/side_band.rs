//! Fuzz target of the decoder of perf side-band records: `cargo xtask fuzz side_band`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("side_band"),
    |data: &[u8]| profiler_tests::fuzzing::side_band(data)
);
