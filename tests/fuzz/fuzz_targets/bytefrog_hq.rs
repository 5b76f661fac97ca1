//! Fuzz target of the decoder of what an HQ of Bytefrog sends: `cargo xtask fuzz bytefrog_hq`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("bytefrog_hq"),
    |data: &[u8]| drop(profiler_tests::fuzzing::bytefrog_hq(data))
);
