//! Fuzz target of what is read of a target's ELF files: `cargo xtask fuzz elf`.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: profiler_fuzz::begin("elf"),
    |data: &[u8]| profiler_tests::fuzzing::elf(data)
);
