//! Developer commands: `cargo xtask VERB`, one module per verb.

mod bench;
mod test;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of the profiler")]
enum Verb {
    /// Runs all tests and sums up what passed and what was skipped.
    Test(test::Arguments),
    /// Measures what profiling costs, beside other tools.
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let done = match Verb::parse() {
        Verb::Test(arguments) => test::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
