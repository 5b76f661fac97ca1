//! Developer commands: `cargo xtask VERB`. A thin dispatcher, one module per verb.

mod bench;
mod budgets;
mod check;
mod conformance;
mod dependencies;
mod ebpf;
mod fuzz;
mod process;
mod setup;
mod test;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use process::Failure;

/// Developer commands of the profiler.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what building the kernel-side object and checking the sources need.
    Setup,
    /// Build the kernel-side object that is checked in.
    BuildEbpf(ebpf::Arguments),
    /// Check formatting, lints, the kernel-side object's sources and the modules' dependencies.
    Check,
    /// Run all tests, and sum up what passed and what was skipped.
    Test(test::Arguments),
    /// Measure what profiling costs, beside other tools.
    Bench(bench::Arguments),
    /// Print what building, testing and starting the profiler take, beside what they may.
    Budgets(budgets::Arguments),
    /// Fuzz what reads captures, the kernel's records and targets' files, with libFuzzer.
    Fuzz(fuzz::Arguments),
    /// Run clients that others have made at our servers.
    Conformance(conformance::Arguments),
    /// Run the tests of the kernel side on other kernels, in QEMU.
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    if let Some(failed) = test::compiler::run_if_called_for() {
        return failed;
    }
    let io = |error: std::io::Error| Failure(error.to_string());
    let result = match Arguments::parse().verb {
        Verb::Setup => setup::run(),
        Verb::BuildEbpf(arguments) => ebpf::run(&arguments),
        Verb::Check => check::run(),
        Verb::Test(arguments) => test::run(&arguments).map_err(io),
        Verb::Bench(arguments) => bench::run(&arguments).map_err(io),
        Verb::Budgets(arguments) => budgets::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::Conformance(arguments) => conformance::run(&arguments),
        Verb::Vm(arguments) => vm::run_kernels(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
