//! Fuzz target of what is read of links to debug files and of those files: `cargo xtask fuzz links`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("links"),
    |data: &[u8]| profiler_tests::fuzzing::links(data)
);
