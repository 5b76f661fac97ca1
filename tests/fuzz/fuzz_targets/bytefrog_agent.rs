//! Fuzz target of the decoder of what an agent of Bytefrog sends: `cargo xtask fuzz bytefrog_agent`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("bytefrog_agent"),
    |data: &[u8]| drop(profiler_tests::fuzzing::bytefrog_agent(data))
);
