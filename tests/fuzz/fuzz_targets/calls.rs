//! Fuzz target of the decoder of traced calls and of what pairs them: `cargo xtask fuzz calls`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("calls"),
    |data: &[u8]| profiler_tests::fuzzing::calls(data)
);
