//! Kernel-side programs.
fn main() {}
