//! Fuzz target of what the process that reads others' files answers: `cargo xtask fuzz answers`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("answers"),
    |data: &[u8]| profiler_tests::fuzzing::answers(data)
);
