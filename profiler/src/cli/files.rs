//! `export`, `formats`, `merge` and `symbolize`: from captures to files.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::error::Failure;
use crate::pipeline;
use profiler_capture::{CreateOptions, Derived, Existing, Merged, Reader};
use profiler_model::{Function, Line, Symbol, Tables};
use profiler_report::export::{self, Settings};
use profiler_report::view::{quantity, report};
use profiler_resolve::{NewSymbol, OfflineOptions, symbolize_offline};

use super::target_words::SelectionWords;
use super::{Common, values};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler export profile.cap -o hot.svg
  profiler export profile.cap --format folded | sort | head
  profiler export profile.cap -o hot.svg --set count=samples --set width=1600
  profiler export new.cap --diff old.cap -o change.svg

'profiler formats' lists the formats and what can be set.")]
pub(super) struct ExportArgs {
    /// The capture
    #[arg(default_value = "profile.cap")]
    file: PathBuf,
    /// The format (not needed if the ending of -o tells it)
    #[arg(short, long, value_name = "NAME")]
    format: Option<String>,
    /// Where to; - or nothing: standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// An option of the format
    #[arg(long = "set", value_name = "OPTION=VALUE")]
    set: Vec<String>,
    /// A span, from the start of the recording: 1.5s..3s, 2s.., ..500ms
    #[arg(long, value_name = "FROM..TO")]
    time: Option<report::TimeRange>,
    #[command(flatten)]
    selected: SelectionWords,
    /// Colour a flame graph by how shares have changed since this capture
    #[arg(long, value_name = "OTHER")]
    diff: Option<PathBuf>,
    /// Keep no FILE.old of a file that exists
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  profiler merge monday.cap tuesday.cap -o both.cap")]
pub(super) struct MergeArgs {
    /// The captures
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The joined capture
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Keep no FILE.old of a file that exists
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  profiler symbolize router.cap --search ./build -o router-named.cap

Only files with the build id of a recorded module are used.")]
pub(super) struct SymbolizeArgs {
    /// The capture
    #[arg(default_value = "profile.cap")]
    file: PathBuf,
    /// The capture with names
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Files with symbols, and folders to look for them in
    #[arg(long, value_name = "PATH")]
    search: Vec<PathBuf>,
    /// Folders with separate debug files
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/debug", value_parser = values::debug_folder())]
    debug_dir: Vec<PathBuf>,
    /// Ask these servers for missing debug files (URLs, separated by spaces; none: $DEBUGINFOD_URLS)
    #[arg(long, value_name = "URLS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    debuginfod: Option<String>,
    /// Keep no FILE.old of a file that exists
    #[arg(long)]
    force: bool,
}

pub(super) fn export(args: ExportArgs, common: &Common) -> Result<(), Failure> {
    let path = args.output.filter(|path| path.as_os_str() != "-");
    let format = match (&args.format, &path) {
        (Some(name), _) => {
            export::by_name(name).map_err(|error| Failure::usage(error.to_string()))?
        }
        (None, Some(path)) => values::format_of(path)?,
        (None, None) => {
            return Err(Failure::usage(
                "give --format NAME, or -o with a known ending",
            ));
        }
    };
    let selection = args.selected.in_recording(args.time)?;
    let mut settings = Settings::new(format);
    for setting in &args.set {
        let (name, value) = setting.split_once('=').ok_or_else(|| {
            Failure::usage(format!("'{setting}' is no setting; write OPTION=VALUE"))
        })?;
        let set = settings.set(name, value);
        set.map_err(|error| Failure::usage(error.to_string()))?;
    }
    // A capture that can't be read must not leave an empty output.
    let capture = Reader::open(&args.file)?;
    let other = match &args.diff {
        Some(other) => {
            pipeline::check_difference(format)?;
            Some(Reader::open(other)?)
        }
        None => None,
    };
    let mut inputs = vec![args.file.as_path()];
    inputs.extend(args.diff.as_deref());
    let existing = Existing::forced(args.force);
    let export = pipeline::open_export(settings, path.as_deref(), existing, &inputs)?;
    pipeline::renounce(path.as_deref().as_slice());
    match other {
        Some(other) => pipeline::export_difference(capture, other, &selection, export),
        None => pipeline::export(capture, &selection, vec![export], common.quiet),
    }
}

pub(super) fn formats(out: &mut dyn Write) -> io::Result<()> {
    for format in export::formats() {
        writeln!(out, "{:<12} {}", format.name, format.description)?;
        writeln!(out, "{:<12} endings: {}", "", format.extensions.join(" "))?;
        for option in format.options() {
            let setting = format!("{}={}", option.name, option.value);
            writeln!(out, "{:<12}   --set {setting:<24} {}", "", option.help)?;
        }
    }
    writeln!(
        out,
        "{:<12} the profiler's own captures, which record, import, merge and symbolize write",
        "capture"
    )?;
    writeln!(out, "{:<12} endings: .cap", "")
}

pub(super) fn merge(args: &MergeArgs, common: &Common) -> Result<(), Failure> {
    let options = derived(args.force);
    let copy = Derived::begin(&args.files, &args.output, options)?;
    pipeline::renounce(&[&args.output]);
    let merged = copy.merge()?;
    report(&merged, &args.output, common);
    Ok(())
}

/// How a capture is made of others.
fn derived(force: bool) -> CreateOptions {
    CreateOptions {
        existing: Existing::forced(force),
        owner: pipeline::owner(),
        whole: true,
        ..CreateOptions::default()
    }
}

pub(super) fn symbolize(args: SymbolizeArgs, common: &Common) -> Result<(), Failure> {
    let options = derived(args.force);
    let offline = OfflineOptions {
        search: args.search,
        debug_dirs: args.debug_dir,
        debuginfod: args.debuginfod,
        inlines: true,
    };
    let mut named = 0;
    let copy = Derived::begin(std::slice::from_ref(&args.file), &args.output, options)?;
    pipeline::renounce(&[&args.output]);
    let merged = copy.change(|tables| {
        let found = symbolize_offline(tables, &offline);
        let is_named =
            |(_, symbols): &&(_, Vec<NewSymbol>)| symbols.iter().all(NewSymbol::is_named);
        named = found.iter().filter(is_named).count();
        for (frame, symbols) in found {
            let module = tables.frames.get(frame).and_then(|frame| frame.module);
            let lines = symbols
                .into_iter()
                .map(|symbol| line(tables, symbol, module))
                .collect();
            tables.set_symbol(frame, Symbol::Lines(lines));
        }
    })?;
    report(&merged, &args.output, common);
    if !common.quiet {
        say!("{} got a name", quantity::plural(named as u64, "frame"));
    }
    Ok(())
}

fn line(tables: &mut Tables, symbol: NewSymbol, module: Option<profiler_model::ModuleId>) -> Line {
    let name = match symbol.start {
        Some(start) if symbol.name.is_empty() => tables.nameless(module, start),
        _ => symbol.name,
    };
    let mut string = |text: &str| tables.intern_string(text).0;
    let name = string(&name);
    let function = Function {
        name,
        linkage_name: symbol.linkage_name.as_deref().map(&mut string),
        module,
        file: symbol.file.as_deref().map(&mut string),
        line: symbol.declared,
        start: symbol.start,
        size: symbol.size,
    };
    Line {
        function: tables.functions.intern(function).0,
        line: symbol.line,
    }
}

fn report(merged: &Merged, output: &std::path::Path, common: &Common) {
    for (path, damage) in &merged.damage {
        log::warn!("{}: {damage}", path.display());
    }
    for (one, other) in &merged.doubtful {
        log::warn!(
            "{} and {} may be of one recording, which earlier versions and other tools do not say: what both have of it \
             is counted twice",
            one.display(),
            other.display()
        );
    }
    if !common.quiet {
        say!(
            "wrote {} ({})",
            output.display(),
            quantity::bytes(merged.totals.bytes)
        );
        if merged.shared > 0 {
            say!(
                "counted once: {} that several files of one recording have",
                quantity::plural(merged.shared, "event")
            );
        }
    }
}
