//! Fuzz target of the frames of TCF's channel: `cargo xtask fuzz tcf_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("tcf_frames"),
    |data: &[u8]| drop(profiler_tests::fuzzing::tcf_frames(data))
);
