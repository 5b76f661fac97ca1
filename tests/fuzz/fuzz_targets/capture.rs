//! Fuzz target of the capture reader, and of what is made of captures: `cargo xtask fuzz capture`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("capture"),
    |data: &[u8]| profiler_tests::fuzzing::capture(data)
);
