//! Fuzz target of what tells arguments and results: `cargo xtask fuzz signature`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("signature"),
    |data: &[u8]| drop(profiler_tests::fuzzing::signature(data))
);
