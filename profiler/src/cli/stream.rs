//! `stream`: flags into a [`StreamRequest`], and the summary at the end.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::error::Failure;
use crate::pipeline::{self, LiveSource, StreamRequest, StreamSource, Streamed, Watch};
use profiler_model::text::parse_duration;
use profiler_report::export::bytefrog::NameStyle;
use profiler_report::view::quantity;
use profiler_serve::bytefrog::AgentOptions;

use super::stacks::StackArgs;
use super::target::{NameArgs, TargetArgs, sampled, unsampled};
use super::trace::TraceArgs;
use super::values::{Speed, speed};
use super::{Common, values};

#[derive(Debug, Args)]
pub(super) struct StreamArgs {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Debug, Subcommand)]
enum Protocol {
    /// Send entries and exits of functions to an HQ of Bytefrog or Code Pulse
    Bytefrog(Box<BytefrogArgs>),
}

/// How methods are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NamesArg {
    /// As people read them: 'std::vec::Vec<T>::push [libfoo.so]'
    Readable,
    /// As Code Pulse takes them apart: 'libfoo_so/std/vec/Vec_T_.push;9;()V'
    Grammar,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler stream bytefrog localhost --trace 'app:*' -- ./app
  profiler stream bytefrog localhost --trace 'app:*' --budget off -- ./app
  profiler stream bytefrog hq.example:8765 --trace 'libfoo.so:*' -p 1234
  profiler stream bytefrog localhost --from-samples -F 499 -p 1234
  profiler stream bytefrog localhost --trace 'libssl.so.3:*' --container web
  profiler stream bytefrog localhost --names grammar --replay profile.cap

Without --budget off a function that is called very often is watched part of the time, so that its \
count is too low; without --follow-exact the first calls of children are missing.
HQ says when the run starts; until then a command does not run, and an attached target is left alone. \
HQ can suspend the run, pause what was started here, and stop the run: then the command ends too \
(SIGTERM, after 5 s SIGKILL). Ctrl-C ends the run normally, a second one leaves at once.
The exit status is that of the command if it ends by itself, 0 if HQ stops the run, 1 if HQ can't be \
reached or is lost, 125 if HQ stops the run before the command runs; a command that runs when HQ is lost goes on \
without being traced.")]
struct BytefrogArgs {
    /// Where HQ listens (the port is 8765 unless told)
    #[arg(value_name = "HOST[:PORT]")]
    hq: String,
    /// Infer calls from samples of stacks: for a target that must not be slowed
    #[arg(long, conflicts_with = "trace")]
    from_samples: bool,
    /// Samples per second on each processor, with --from-samples
    // A requirement that conflicts with what is there is not asked for.
    #[arg(short = 'F', long, value_name = "HZ", requires = "from_samples")]
    #[arg(conflicts_with_all = ["replay", "trace"])]
    frequency: Option<u64>,
    /// How methods are named
    #[arg(
        long = "names",
        value_name = "STYLE",
        value_enum,
        default_value = "readable"
    )]
    names: NamesArg,
    /// Memory for events that HQ has not taken yet; what finds no room is left out, and HQ is told
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = values::size)]
    buffer: u64,
    /// How long to try to reach HQ; 0: for ever
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    connect_timeout: Duration,
    /// When HQ stops the run, let the command go on without being traced
    #[arg(long, requires = "command")]
    stop_detaches: bool,
    /// Let HQ pause the target although it was not started here
    #[arg(long)]
    allow_control: bool,
    /// End by itself so long after the start; a command runs on, without being traced
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Send a capture in place of what happens now
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["pid", "tid", "comm", "uid", "cgroup", "container", "pod", "unit", "wait", "all", "command", "trace", "allow_control", "stop_detaches", "call_graph", "unwind_memory"]
    )]
    replay: Option<PathBuf>,
    /// How much faster than it happened: 1, 2.5, or max for as fast as HQ takes it (the default)
    #[arg(long, value_name = "N", value_parser = speed)]
    speed: Option<Speed>,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    resolve: NameArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// Streams; returns the exit status.
pub(super) fn stream(args: StreamArgs, common: &Common) -> Result<u8, Failure> {
    let Protocol::Bytefrog(args) = args.protocol;
    let hq = args.hq.clone();
    let streamed = pipeline::stream(request(args, common)?)?;
    if !common.quiet {
        summarize(&streamed, &hq);
    }
    Ok(streamed.status)
}

/// What was asked for, made in a frame that is gone when it is done.
#[inline(never)]
fn request(mut args: Box<BytefrogArgs>, common: &Common) -> Result<Box<StreamRequest>, Failure> {
    let source = match args.replay.take() {
        Some(capture) => StreamSource::Replay {
            capture,
            speed: args.speed.and_then(|speed| speed.0),
        },
        None if args.speed.is_some() => {
            return Err(Failure::usage(
                "--speed is for --replay: what happens now has its own",
            ));
        }
        None => StreamSource::Live(Box::new(live(&mut args, common)?)),
    };
    Ok(Box::new(StreamRequest {
        agent: AgentOptions {
            address: args.hq,
            connect_timeout: (!args.connect_timeout.is_zero()).then_some(args.connect_timeout),
            queue_bytes: usize::try_from(args.buffer).unwrap_or(usize::MAX),
            names: match args.names {
                NamesArg::Readable => NameStyle::Readable,
                NamesArg::Grammar => NameStyle::Grammar,
            },
            samples: args.from_samples,
        },
        source,
        duration: args.duration,
        quiet: common.quiet,
    }))
}

fn live(args: &mut BytefrogArgs, common: &Common) -> Result<LiveSource, Failure> {
    let trace = args.trace.request()?;
    if trace.is_none() && !args.from_samples {
        return Err(Failure::usage(
            "nothing would be sent: name functions by --trace, or have calls inferred by --from-samples",
        ));
    }
    let probe = match args.from_samples {
        true => sampled(&args.target, args.frequency, common)?,
        false => unsampled(&args.target, common)?,
    };
    Ok(LiveSource {
        watch: Box::new(Watch {
            probe,
            resolve: args.resolve.options(),
            unwind_bytes: args.stacks.unwind_bytes(),
            no_self: false,
            trace,
            cgroups: args.target.cgroups(),
            target: args.target.describe(),
            user: args.target.user()?,
            nice: None,
            command: args.target.take_command(),
            delay: Duration::ZERO,
        }),
        stop_detaches: args.stop_detaches,
        allow_control: args.allow_control,
    })
}

fn summarize(streamed: &Streamed, hq: &str) {
    let Some(sent) = &streamed.sent else {
        let never = match streamed.status {
            0 => "nothing was sent",
            _ => "the command never ran",
        };
        let what = match streamed.stopped {
            true => "stopped the run before it began",
            false => "did not start the run",
        };
        say!("HQ at {hq} {what}; {never}");
        return;
    };
    say!(
        "sent {} ({}) to {hq} in {:.1} s: {} entered, {} left{}",
        quantity::plural(sent.messages, "message"),
        quantity::bytes(sent.bytes),
        streamed.elapsed.as_secs_f64(),
        quantity::plural(sent.entries, "method"),
        quantity::count(sent.exits),
        match sent.exits_inferred {
            0 => String::new(),
            inferred => format!(", {} of them inferred", quantity::count(inferred)),
        },
    );
    if sent.exits_left_out > 0 {
        say!(
            "{} of calls that were not open: entered before the run, or their entries are missing",
            quantity::plural(sent.exits_left_out, "exit"),
        );
    }
    if streamed.lost > 0 {
        say!(
            "{} lost before they could be sent",
            quantity::plural(streamed.lost, "event")
        );
    }
    if sent.dropped_events > 0 {
        say!(
            "{} left out in {}, because HQ was too slow: see --buffer",
            quantity::plural(sent.dropped_events, "event"),
            quantity::plural(sent.data_breaks, "data break"),
        );
    }
    if sent.notes_left_out > 0 {
        say!(
            "note: HQ was not told of {}, because it did not read",
            quantity::plural(sent.notes_left_out, "class"),
        );
    }
    if let Some(trace) = &streamed.trace {
        super::record::summarize_trace(trace);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        stream: StreamArgs,
        #[command(flatten)]
        common: Common,
    }

    fn parse(words: &str) -> Result<Result<Box<StreamRequest>, Failure>, clap::Error> {
        let words = ["stream", "bytefrog"].into_iter().chain(words.split(' '));
        let line = Line::try_parse_from(words)?;
        let Protocol::Bytefrog(args) = line.stream.protocol;
        Ok(request(args, &line.common))
    }

    fn parsed(words: &str) -> Box<StreamRequest> {
        parse(words).unwrap().unwrap()
    }

    #[test]
    fn flags_of_the_agent() {
        let request = parsed("hq --from-samples");
        assert_eq!(request.agent.address, "hq");
        assert_eq!(request.agent.queue_bytes, 64 << 20);
        assert_eq!(request.agent.connect_timeout, Some(Duration::from_secs(30)));
        assert_eq!(request.agent.names, NameStyle::Readable);
        assert!(request.agent.samples);
        let request =
            parsed("hq:1 --trace a:b --connect-timeout 0 --buffer 1M --names grammar -d 5 -- ./a");
        assert_eq!(request.agent.queue_bytes, 1 << 20);
        assert_eq!(request.agent.connect_timeout, None);
        assert_eq!(request.agent.names, NameStyle::Grammar);
        assert_eq!(request.duration, Some(Duration::from_secs(5)));
        assert!(!request.agent.samples);
    }

    #[test]
    fn calls_are_traced_or_inferred() {
        let sources = |words: &str| match parsed(words).source {
            StreamSource::Live(live) => (
                live.watch.probe.sources.len(),
                live.watch.trace.is_some(),
                live.watch.command.is_some(),
            ),
            StreamSource::Replay { .. } => panic!("{words} is no replay"),
        };
        assert_eq!(sources("hq --trace a:b -- ./a"), (0, true, true));
        assert_eq!(sources("hq --from-samples -F 49 -- ./a"), (1, false, true));
        let nothing = parse("hq -- ./a").unwrap().err().unwrap();
        assert_eq!(nothing.status, crate::error::USAGE);
        let late = parse("hq --trace a:b --speed 1").unwrap().err().unwrap();
        assert_eq!(late.status, crate::error::USAGE);
        let never = parse("hq --from-samples -F 0").unwrap().err().unwrap();
        assert_eq!(never.status, crate::error::USAGE);
    }

    #[test]
    fn captures() {
        for (words, expected) in [
            ("hq --replay a.cap", None),
            ("hq --replay a.cap --speed max", None),
            ("hq --replay a.cap --speed 2.5 --from-samples", Some(2.5)),
        ] {
            match parsed(words).source {
                StreamSource::Replay { speed, .. } => assert_eq!(speed, expected, "{words}"),
                StreamSource::Live(_) => panic!("{words} is a replay"),
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            "hq --replay a.cap -p 1",
            "hq --replay a.cap --trace a:b",
            "hq --replay a.cap -- ./a",
            "hq --replay a.cap --container web",
            "hq --replay a.cap --speed 0",
            "hq --replay a.cap --speed nan",
            "hq --from-samples --trace a:b",
            "hq --trace a:b -F 99",
            "hq --trace a:b --stop-detaches -p 1",
            "hq --trace a:b --buffer 0",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
