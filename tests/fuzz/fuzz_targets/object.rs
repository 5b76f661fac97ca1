//! Fuzz target of what tracing reads of object files: `cargo xtask fuzz object`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("object"),
    |data: &[u8]| drop(profiler_tests::fuzzing::object(data))
);
