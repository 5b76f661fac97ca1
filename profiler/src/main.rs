//! The `profiler` binary; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(profiler::cli::main(std::env::args_os()))
}
