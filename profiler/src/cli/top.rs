//! `top`: a live table of what is hot, or of traced functions.

use std::time::Duration;

use clap::Args;

use crate::error::Failure;
use crate::pipeline::{self, Request, ScreenOptions, Watch};
use profiler_capture::CreateOptions;
use profiler_model::text::parse_duration;
use profiler_report::view::report::CallSort;
use profiler_report::view::top::TopOptions;

use super::Common;
use super::stacks::StackArgs;
use super::target::{NameArgs, SourceArgs, TargetArgs};
use super::trace::TraceArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler top                               the machine's hottest functions
  profiler top --trace libc:malloc -p 1234   calls of a function, live
  profiler top --container web               a container, also started anew
  profiler top --batch -n 3 -p 1234 > out    three frames as text

Keys: q ends, s sorts by the next column, p pauses.")]
pub(super) struct TopArgs {
    /// Time between two frames
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = parse_duration)]
    interval: Duration,
    /// Length of the time that numbers are of
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = parse_duration)]
    window: Duration,
    /// End after so many frames
    #[arg(short = 'n', long, value_name = "N")]
    frames: Option<u64>,
    /// Frames as text, one after the other (also without a terminal)
    #[arg(short, long)]
    batch: bool,
    /// Order of traced functions
    #[arg(long, value_name = "COLUMN", default_value = "total")]
    sort: CallSort,
    /// End by itself after so long
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    sources: SourceArgs,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// Shows the table until it is asked to end; returns the exit status.
pub(super) fn top(args: Box<TopArgs>, common: &Common) -> Result<u8, Failure> {
    let request = request(args, common)?;
    pipeline::run(request).map(|finished| finished.status)
}

/// What was asked for, made in a frame that is gone when it is done.
#[inline(never)]
fn request(mut args: Box<TopArgs>, common: &Common) -> Result<Box<Request>, Failure> {
    Ok(Box::new(Request {
        watch: Box::new(Watch {
            probe: args.sources.probe(&args.target, common)?,
            resolve: args.names.options(),
            unwind_bytes: args.stacks.unwind_bytes(),
            no_self: args.sources.no_self,
            trace: args.trace.request()?,
            cgroups: args.target.cgroups(),
            target: args.target.describe(),
            user: args.target.user()?,
            nice: None,
            command: args.target.take_command(),
            delay: Duration::ZERO,
        }),
        screen: Some(ScreenOptions {
            table: TopOptions {
                window_ns: args.window.as_nanos() as u64,
                sort: args.sort,
                color: common.color.resolve(std::io::stdout()),
            },
            interval: args.interval,
            frames: args.frames,
            batch: args.batch,
        }),
        capture: None,
        create: CreateOptions::default(),
        exports: Vec::new(),
        duration: args.duration,
        wait_names: None,
        quiet: true,
    }))
}
