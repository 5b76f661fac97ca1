//! Fuzz target of the capture reader. From tests/fuzz:
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir . capture`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| profiler_tests::fuzzing::capture(data));
