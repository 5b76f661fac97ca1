//! Fuzz target of sessions over HTTP, by what their clients ask: `cargo xtask fuzz http`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("http"),
    |data: &[u8]| drop(profiler_tests::fuzzing::http(data))
);
