//! The `profiler` binary.

fn main() {}
