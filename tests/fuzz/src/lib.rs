//! What the fuzz targets share: each writes its own seeds before libFuzzer reads its corpus.
//!
//! Input: the folder named by `PROFILER_FUZZ_SEEDS`; output: files there. What does not belong here:
//! what is called with the fuzzer's bytes (`profiler_tests::fuzzing`).

/// The folder for seeds; without it there are none.
pub const SEEDS: &str = "PROFILER_FUZZ_SEEDS";

/// Called once, before the corpus is read.
pub fn begin(target: &str) {
    let Some(folder) = std::env::var_os(SEEDS) else {
        return;
    };
    if let Err(error) = profiler_tests::fuzzing::write_seeds(target, folder.as_ref()) {
        eprintln!("no seeds: {error}");
    }
}
