//! Fuzz target of what engines of containers and mounts of cgroups say: `cargo xtask fuzz containers`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("containers"),
    |data: &[u8]| profiler_tests::fuzzing::containers(data)
);
