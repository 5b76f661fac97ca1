//! Fuzz target of an agent of TCF, by what its client sends: `cargo xtask fuzz tcf`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("tcf"),
    |data: &[u8]| drop(profiler_tests::fuzzing::tcf(data))
);
