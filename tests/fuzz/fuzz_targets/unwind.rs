//! Fuzz target of unwind tables and walks: `cargo xtask fuzz unwind`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("unwind"),
    |data: &[u8]| profiler_tests::fuzzing::unwind(data)
);
