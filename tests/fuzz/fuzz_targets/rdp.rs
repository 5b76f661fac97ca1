//! Fuzz target of a server of the remote debugging protocol, by what its client sends: `cargo xtask fuzz rdp`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("rdp"),
    |data: &[u8]| drop(profiler_tests::fuzzing::rdp(data))
);
