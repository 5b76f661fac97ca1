//! `import`: other tools' recordings into a capture.
//!
//! Flags -> a request to `pipeline`. What does not belong here: what files say (`report::import`).

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::Common;
use crate::error::Failure;
use crate::pipeline;
use profiler_report::import::profiles::Kind;
use profiler_report::view::quantity;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perf script | profiler import - -o perf.cap
  profiler import cpu.pb.gz -o cpu.cap             # pprof, of any program
  profiler import perf.data -o perf.cap
  profiler symbolize perf.cap -o named.cap
  profiler import app.trace -o app.cap             # an execution trace of Go
  profiler import profile.json.gz -o firefox.cap   # samply, Firefox Profiler
  profiler import stacks.folded -o stacks.cap
  profiler report perf.cap

All reports and exports read what comes of it.")]
pub(super) struct ImportArgs {
    /// Folded stacks, text of perf script, perf.data, pprof, a trace of Go, or JSON of the Firefox Profiler; - is standard input
    file: PathBuf,
    /// The capture
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What it is (else its beginning tells)
    #[arg(long, value_name = "KIND", value_parser = kind())]
    from: Option<Kind>,
    /// Keep no FILE.old of a file that exists
    #[arg(long)]
    force: bool,
}

fn kind() -> impl TypedValueParser<Value = Kind> {
    let names = Kind::ALL.map(Kind::name);
    PossibleValuesParser::new(names).try_map(|name| {
        let mut kinds = Kind::ALL.into_iter();
        kinds.find(|kind| kind.name() == name).ok_or("no such kind")
    })
}

pub(super) fn import(args: ImportArgs, common: &Common) -> Result<(), Failure> {
    let imported = pipeline::import(&args.file, args.from, &args.output, args.force)?;
    if imported.left_out > 0 {
        log::warn!(
            "{} left out: they are negative",
            quantity::plural(imported.left_out, "value")
        );
    }
    if imported.ends_early {
        log::warn!(
            "{} ends early: it was cut, or its recording killed; what is missing is not known",
            args.file.display()
        );
    }
    if !common.quiet {
        say!(
            "wrote {} ({})",
            args.output.display(),
            quantity::plural(imported.samples, "sample")
        );
    }
    Ok(())
}
