//! Fuzz target of imports of other tools' recordings: `cargo xtask fuzz import`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("import"),
    |data: &[u8]| drop(profiler_tests::fuzzing::import(data))
);
