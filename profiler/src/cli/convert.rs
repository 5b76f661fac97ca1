//! `convert`: from one form of a foreign file to another.
//!
//! Flags -> a request to `pipeline`. What does not belong here: captures (`export`).

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::Failure;
use crate::pipeline;
use profiler_wire::go_trace::Encoding;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler convert app.trace -o app.gotrace       # a trace of Go, as text
  profiler convert app.gotrace -o app.trace       # and back
  profiler convert - < app.trace | grep GoCreate
  profiler convert run.bytefrog | grep ' entry '  # messages of Bytefrog

What it is, is told by its first bytes. Any execution trace of Go 1.22 to 1.27 will do, and what either side of a \
connection of Bytefrog sent.")]
pub(super) struct ConvertArgs {
    /// An execution trace of Go, or messages of Bytefrog; - is standard input
    file: PathBuf,
    /// Where to; - or nothing: standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The form (else the one that it does not have)
    #[arg(long, value_enum)]
    to: Option<Form>,
    /// Keep no FILE.old of a file that exists
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Lines: of Go's traces as its internal/trace/raw has them
    Text,
    /// Bytes, which `go tool trace` opens
    Wire,
}

pub(super) fn convert(args: ConvertArgs) -> Result<(), Failure> {
    let path = args.output.filter(|path| path.as_os_str() != "-");
    let form = args.to.map(|form| match form {
        Form::Text => Encoding::Text,
        Form::Wire => Encoding::Wire,
    });
    pipeline::convert(&args.file, path.as_deref(), form, args.force)
}
