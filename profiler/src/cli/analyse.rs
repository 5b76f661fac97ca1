//! `report` and `info`: a capture on standard output, paged on a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::error::{Context, Failure};
use crate::pipeline;
use profiler_capture::Reader;
use profiler_model::{Event, Tables};
use profiler_report::export::Selection;
use profiler_report::view::pager::Output;
use profiler_report::view::report::{
    By, CallSort, CallView, Collector, Format, Recording, ReportOptions, Sort, TimeRange, run,
    run_diff,
};
use profiler_report::view::{info, term};
use profiler_resolve::Nameless;

use super::Common;
use super::name_notes;
use super::target_words::SelectionWords;

/// More of the slowest calls than anyone reads are not kept.
const MAX_SLOWEST: usize = 100_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler report                             what is hot in profile.cap
  profiler report web.cap --callers malloc
  profiler report web.cap --tree --pid 1234 --time 2s..5s
  profiler report new.cap --diff old.cap
  profiler report node.cap --by container
  profiler report node.cap --pod shop/cart-7d9f --tree
  profiler report node.cap --by end           why stacks are not complete
  profiler report web.cap --annotate handle_request
  profiler report web.cap --calls --sort p99
  profiler report web.cap --histogram handle_request
  profiler report web.cap --slowest 20 --function 'db_*'
  profiler report web.cap --format json | jq .functions[0]")]
pub(super) struct ReportArgs {
    /// The capture
    #[arg(default_value = "profile.cap")]
    file: PathBuf,
    /// Order by self or total (samples: self unless told); of traced calls also by calls, mean, p99
    /// or max (total unless told)
    #[arg(long, value_name = "WHAT")]
    sort: Option<CallSort>,
    /// Only one table: function, line, module, process, thread, container, pod, unit, image, wait or
    /// end (why user stacks end too early, and in which module)
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,
    /// Only the call tree
    #[arg(long)]
    tree: bool,
    /// Only callers and callees of a function
    #[arg(long, value_name = "FUNCTION")]
    callers: Option<String>,
    /// Only source lines and instructions of a function
    #[arg(long, value_name = "FUNCTION")]
    annotate: Option<String>,
    /// Read the source of --annotate below this folder, whoever may read it and wherever it was recorded
    #[arg(long, value_name = "DIR", requires = "annotate")]
    source_dir: Option<PathBuf>,
    /// Only traced calls: functions, exceptions, the slowest, the tree
    #[arg(long, conflicts_with_all = ["by", "tree", "callers", "annotate"])]
    calls: bool,
    /// Only how the durations of a traced function are distributed
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["by", "tree", "callers", "annotate"])]
    histogram: Option<String>,
    /// Only the tree of traced calls
    #[arg(long, conflicts_with_all = ["by", "tree", "callers", "annotate"])]
    calls_tree: bool,
    /// Only the slowest traced calls (with --function: of those functions), with their arguments
    #[arg(long, value_name = "N", conflicts_with_all = ["by", "tree", "callers", "annotate"])]
    slowest: Option<usize>,
    /// Only exceptions that were seen while tracing
    #[arg(long, conflicts_with_all = ["by", "tree", "callers", "annotate"])]
    exceptions: bool,
    /// Compare with another capture: how shares have changed since that one
    #[arg(long, value_name = "OTHER", conflicts_with_all = ["annotate", "by", "callers", "tree", "histogram", "calls_tree", "slowest", "exceptions"])]
    diff: Option<PathBuf>,
    /// A span, from the start of the recording: 1.5s..3s, 2s.., ..500ms
    #[arg(long, value_name = "FROM..TO")]
    time: Option<TimeRange>,
    #[command(flatten)]
    selected: SelectionWords,
    /// Leave out what has a smaller share
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    min_percent: f64,
    /// Rows of each table
    #[arg(short = 'n', long, value_name = "ROWS")]
    limit: Option<usize>,
    /// text or json
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    format: Format,
    /// Don't page on a terminal
    #[arg(long)]
    no_pager: bool,
}

#[derive(Debug, Args)]
pub(super) struct InfoArgs {
    /// The capture
    #[arg(default_value = "profile.cap")]
    file: PathBuf,
    /// text or json
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    format: Format,
}

pub(super) fn report(args: ReportArgs, common: &Common) -> Result<(), Failure> {
    let terminal = io::stdout().is_terminal();
    let source_dir = args.source_dir.as_deref().map(|folder| {
        let opened = File::open(folder);
        opened.context(|| format!("failed to open {}", folder.display()))
    });
    let Selection {
        filter,
        source,
        range,
    } = args.selected.in_recording(args.time)?;
    let options = ReportOptions {
        sort: match args.sort {
            Some(CallSort::Total) => Sort::Total,
            _ => Sort::SelfWeight,
        },
        by: args.by,
        tree: args.tree,
        callers_of: args.callers,
        annotate: args.annotate,
        source_dir: source_dir.transpose()?.map(Arc::new),
        calls: CallView {
            only: args.calls,
            sort: args.sort.unwrap_or_default(),
            histogram: args.histogram,
            tree: args.calls_tree,
            slowest: args.slowest.map(|n| n.min(MAX_SLOWEST)),
            exceptions: args.exceptions,
        },
        range,
        filter,
        source,
        min_percent: args.min_percent,
        limit: args.limit,
        format: args.format,
        width: terminal.then(|| term::width(io::stdout())).flatten(),
        color: common.color.resolve(io::stdout()),
    };
    let whole = options.filter.is_all() && options.range == TimeRange::default();
    let hinted = whole && args.diff.is_none() && options.format == Format::Text && !common.quiet;
    let capture = Reader::open(&args.file)?;
    let other = args.diff.as_deref().map(Reader::open).transpose()?;
    pipeline::renounce(&[]);
    let (tables, collected, nameless) = collect(capture, &options, hinted)?;
    let other = other
        .map(|other| collect(other, &options, false))
        .transpose()?;
    let mut out = Output::open(!args.no_pager && args.format == Format::Text);
    let recording = Recording {
        tables: &tables,
        collected: &collected,
    };
    match &other {
        Some((tables, collected, _)) => {
            let before = Recording { tables, collected };
            run_diff(&recording, &before, &options, &mut out)?;
        }
        None => run(&recording, &options, &mut out)?,
    }
    out.close()?;
    if hinted {
        let (places, samples) = (nameless.places(&tables), nameless.samples());
        let unwritten = collected.misses_unwritten();
        for note in name_notes::notes(&places, samples, unwritten) {
            say!("note: {note}");
        }
    }
    Ok(())
}

fn collect(
    mut reader: Reader,
    options: &ReportOptions,
    hinted: bool,
) -> Result<(Tables, Collector, Nameless), Failure> {
    let tables = reader.load_tables()?;
    let mut collector = Collector::for_report(options);
    let mut nameless = Nameless::default();
    reader.replay(
        &tables,
        profiler_capture::TimeRange::ALL,
        &mut |event, tables| {
            collector.add(event, tables);
            if let Event::Sample(sample) = event
                && hinted
            {
                nameless.sample(sample, tables);
            }
            Ok(())
        },
    )?;
    for damage in reader.damage() {
        log::warn!("{}: {damage}", reader.path().display());
    }
    Ok((tables, collector, nameless))
}

pub(super) fn info(args: &InfoArgs) -> Result<(), Failure> {
    let mut reader = Reader::open(&args.file)?;
    pipeline::renounce(&[]);
    let mut out = io::BufWriter::new(io::stdout());
    info::write_info(&mut reader, args.format == Format::Json, &mut out)?;
    Ok(out.flush()?)
}
