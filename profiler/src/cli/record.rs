//! `record` and `mark`: flags into a [`Request`], and the summary at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::error::{Context, Failure};
use crate::pipeline::{self, Finished, Leaving, Request, TraceSummary, Unwatched, Watch, marks};
use profiler_capture::{CreateOptions, Existing, Limit};
use profiler_model::text::parse_duration;
use profiler_model::{GapReason, LostReason, Unit};
use profiler_probe::AttachedSource;
use profiler_report::export::Settings;
use profiler_report::view::{losses, quantity};

use super::stack_notes::Facts;
use super::stacks::StackArgs;
use super::target::{NameArgs, SourceArgs, TargetArgs};
use super::{Common, values};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler record -d 30                          the whole machine for 30 s
  profiler record -p 1234 -o web.cap -o web.svg  a process, with a flame graph
  profiler record --comm nginx -F 999
  profiler record --container web -d 10          a container, of any engine
  profiler record --pod shop/cart-0 --unit redis a pod and a systemd unit
  profiler record --container web --wait -d 10   10 seconds from its start
  profiler record -e page-faults --period 1 -- ls
  profiler record --off-cpu -p 1234              when and where threads wait
  profiler record --wall -- make                 time running and waiting
  profiler record --trace libc:malloc -p 1234    every call of a function too
  profiler record --trace 'app:handle_*' --args -- ./app
  profiler record --ring 10m                     flight recorder: SIGUSR2 saves
  sudo profiler record -- make                   make runs as you, not as root
  profiler record -d 10 -- ./app                 10 seconds; it runs on

Samples are taken on every processor. Children of -p processes and of the command are followed. \
Targets of one kind add up (containers, pods, units and cgroups are one kind, processes and threads \
another); those of different kinds must all hold: --container web --comm nginx. Containers, pods, \
units and cgroups that are started later under the same name are recorded from their first sample. \
When all of them have ended the recording goes on, since they may be started again: -d or Ctrl-C \
ends it.
The exit status is that of the command. It is waited for, also when the recording is over before it: \
after -d, or a second Ctrl-C. Signals that come then are passed on to it.")]
pub(super) struct RecordArgs {
    /// End by itself after so long; a command runs on, without being recorded
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Wait so long for names and unwind tables when it is over: 1 s after -d, else 60 s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait_names: Option<Duration>,
    /// Leave out the first so long
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    delay: Duration,
    /// Where to: a capture, or by its ending another format (see 'profiler formats'); repeatable
    #[arg(short, long, value_name = "FILE", default_value = "profile.cap")]
    output: Vec<PathBuf>,
    /// Keep no FILE.old of files that exist
    #[arg(long)]
    force: bool,
    /// Keep only the newest: 10m, 1G, or within both: 1h,2G; written out at SIGUSR2 and at the end
    #[arg(long, value_name = "LIMIT", conflicts_with = "rotate")]
    ring: Option<Limit>,
    /// Start a new capture after so long or so much: 1h, 1G
    #[arg(long, value_name = "LIMIT")]
    rotate: Option<Limit>,
    #[command(flatten)]
    sources: SourceArgs,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    trace: super::trace::TraceArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  profiler mark 'load test starts'")]
pub(super) struct MarkArgs {
    /// What it says
    text: String,
}

/// Records; returns the exit status.
pub(super) fn record(args: Box<RecordArgs>, common: &Common) -> Result<u8, Failure> {
    let request = request(args, common)?;
    let finished = pipeline::run(request)?;
    if !common.quiet {
        summarize(&finished, common.verbose > 0);
    }
    Ok(finished.status)
}

/// Sends a marker.
pub(super) fn mark(args: &MarkArgs, common: &Common) -> Result<(), Failure> {
    if args.text.len() > marks::MAX_BYTES {
        let max = marks::MAX_BYTES;
        return Err(Failure::usage(format!(
            "a marker can have {max} bytes at the most"
        )));
    }
    match marks::send(&args.text).context(|| "failed to send the marker")? {
        0 => Err(Failure::failed(
            "no recording of this user runs, so nothing was marked",
        )),
        count if !common.quiet => {
            say!("marked {}", quantity::plural(count as u64, "recording"));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What was asked for, made in a frame that is gone when it is done.
#[inline(never)]
fn request(mut args: Box<RecordArgs>, common: &Common) -> Result<Box<Request>, Failure> {
    let trace = args.trace.request()?;
    let (capture, exports) = outputs(&args)?;
    Ok(Box::new(Request {
        watch: Box::new(Watch {
            probe: args.sources.probe(&args.target, common)?,
            resolve: args.names.options(),
            unwind_bytes: args.stacks.unwind_bytes(),
            no_self: args.sources.no_self,
            trace,
            cgroups: args.target.cgroups(),
            target: args.target.describe(),
            user: args.target.user()?,
            nice: None,
            command: args.target.take_command(),
            delay: args.delay,
        }),
        screen: None,
        capture,
        create: CreateOptions {
            existing: Existing::forced(args.force),
            owner: pipeline::owner(),
            ring: args.ring,
            rotate: args.rotate,
            ..CreateOptions::default()
        },
        exports,
        duration: args.duration,
        wait_names: args.wait_names,
        quiet: common.quiet,
    }))
}

type Outputs = (Option<PathBuf>, Vec<pipeline::Export>);

fn outputs(args: &RecordArgs) -> Result<Outputs, Failure> {
    let (mut capture, mut exports) = (None, Vec::new());
    let is_capture = |path: &Path| path.extension().is_some_and(|end| end == "cap");
    // Everything is checked before anything is made.
    let mut formats = Vec::new();
    for path in &args.output {
        if !is_capture(path) {
            formats.push((path, values::format_of(path)?));
        } else if capture.replace(path.clone()).is_some() {
            return Err(Failure::usage(
                "a recording has one capture: give one -o FILE.cap",
            ));
        }
    }
    if (args.ring.is_some() || args.rotate.is_some()) && capture.is_none() {
        return Err(Failure::usage(
            "--ring and --rotate need a capture: add -o FILE.cap",
        ));
    }
    if args.rotate.is_some() && !formats.is_empty() {
        return Err(Failure::usage(
            "--rotate makes many captures: give -o FILE.cap alone, and export one of them, or what profiler merge makes of them",
        ));
    }
    for (path, format) in formats {
        let settings = Settings::new(format);
        exports.push(pipeline::open_export(
            settings,
            Some(path),
            Existing::forced(args.force),
            &[],
        )?);
    }
    Ok((capture, exports))
}

fn summarize(finished: &Finished, verbose: bool) {
    for source in &finished.sources {
        if let Some(note) = &source.note {
            say!("note: {note}");
        }
    }
    say!("{}", what_came(finished));
    if let Some(lost) = &finished.lost {
        say!("lost: {lost}");
    }
    if finished.none_fits {
        say!("nothing fitted on the disk: the capture has no samples");
    }
    // Events and what a filter lets through say nothing of who else had the processors.
    let mut sources = finished.sources.iter();
    let load = match finished.sees_all && sources.all(|source| source.unit != Unit::Events) {
        true if finished.samples > most_samples(finished) / 4 => Load::Much,
        true => Load::Little,
        false => Load::Unknown,
    };
    if let Some(line) = own_part(finished.samples, finished.own_samples, load) {
        say!("{line}");
    }
    for line in Facts::of(finished).lines(verbose) {
        say!("{line}");
    }
    if let Some(trace) = &finished.trace {
        summarize_trace(trace);
    }
    if let Some(awaited) = &finished.never_came {
        say!("nothing came: {awaited} was not started");
    }
    if let Some(ended) = &finished.had_ended {
        say!("note: {ended} had ended before the recording did");
    }
    if !profiler_probe::features::has_machine_ids() {
        say!(
            "note: the ids of processes are those of a namespace here, and not the kernel's: what runs is mostly unknown. Start the profiler with --pid=host (docker, podman) or hostPID: true (Kubernetes)"
        );
    }
    if finished.counters.kernel_hidden {
        say!(
            "note: the kernel hides its addresses; for names of kernel functions run as root or grant CAP_SYSLOG, with sysctl kernel.kptr_restrict=1 or 0"
        );
    }
    if finished.crowded_out > 0 {
        say!(
            "note: the disk was full: {} of the ring went early",
            quantity::plural(finished.crowded_out, "part"),
        );
    }
    if let Some((path, bytes)) = &finished.capture {
        let bytes = quantity::bytes(*bytes);
        let first = finished.numbered.as_ref().map(|(_, first, _)| first);
        let path = first.unwrap_or(path).display();
        match &finished.numbered {
            Some((files @ 2.., _, last)) => say!(
                "wrote {files} files, {path} to {} ({bytes} in all); see one with: profiler report {path}, or make one of all with: profiler merge",
                last.display()
            ),
            _ => say!("wrote {path} ({bytes}); see it with: profiler report {path}"),
        }
    }
}

/// How much was recorded, in which time, and whether that is all.
fn what_came(finished: &Finished) -> String {
    let processes = match finished.processes {
        1 => "1 process".to_owned(),
        count => format!("{} processes", quantity::count(count)),
    };
    let elapsed = finished.elapsed.as_secs_f64();
    let span = match finished.kept {
        None => format!("{processes} in {elapsed:.1} s"),
        Some(kept) => format!(
            "{processes} in the last {:.1} s of {elapsed:.1} s",
            kept.as_secs_f64()
        ),
    };
    let sources: Vec<String> = finished.sources.iter().map(rate).collect();
    let what = match sources.is_empty() {
        // Only calls were recorded, which are told of by themselves.
        true => span,
        false => {
            let samples = quantity::plural(finished.samples, "sample");
            format!("{samples} of {span} ({})", sources.join(", "))
        }
    };
    let trace = finished.trace.as_ref();
    let misses_calls = trace.is_some_and(TraceSummary::misses_calls);
    let is_all = is_all(finished.lost.is_none(), misses_calls, !sources.is_empty());
    format!("{what}, {is_all}")
}

/// Whether something is missing. How many calls are is not always known.
fn is_all(nothing_lost: bool, misses_calls: bool, samples: bool) -> &'static str {
    match (nothing_lost, misses_calls) {
        (false, _) => "not all",
        (true, true) if samples => "no samples lost, calls may be missing",
        (true, true) => "calls may be missing",
        (true, false) => "nothing lost",
    }
}

/// How much of the processors' time all that ran had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Not all that ran was recorded.
    Unknown,
    /// Less than a quarter.
    Little,
    /// More than that.
    Much,
}

/// Samples of processors that are never idle; no bound where their number does not follow from the time.
fn most_samples(finished: &Finished) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let rates = finished.sources.iter().map(|source| source.frequency_hz);
    let rate: Option<u64> = rates.sum();
    rate.map_or(u64::MAX, |rate| {
        (finished.elapsed.as_secs_f64() * rate as f64 * processors as f64) as u64
    })
}

/// What is said if most of what was recorded is the recording itself.
fn own_part(samples: u64, own_samples: u64, load: Load) -> Option<String> {
    let (what, remedy) = match load {
        Load::Unknown => ("little was recorded", ""),
        Load::Little => ("the machine was idle", ""),
        Load::Much => ("recording took most of the time", "a lower -F takes less, "),
    };
    (own_samples > samples / 2).then(|| {
        format!(
            "{what}: {} of {} {} of the profiler itself ({remedy}--no-self leaves them out)",
            quantity::count(own_samples),
            quantity::plural(samples, "sample"),
            if own_samples == 1 { "is" } else { "are" },
        )
    })
}

/// What became of the tracing.
pub(super) fn summarize_trace(trace: &TraceSummary) {
    say!(
        "{}{}; {} had probes{}{}",
        match trace.at_least {
            true => "at least ",
            false => "",
        },
        quantity::plural(trace.calls, "call"),
        quantity::plural(trace.functions as u64, "function"),
        match trace.lost {
            0 => String::new(),
            lost => format!(", {} records lost: see --buffer", quantity::count(lost)),
        },
        match trace.left_out {
            0 => String::new(),
            left => format!(", {} left out by limits", quantity::count(left)),
        },
    );
    if trace.without_end > 0 {
        let why = losses::without_end(trace.lost > 0, trace.stepped_down > 0);
        say!(
            "note: {} {why}",
            quantity::plural(trace.without_end, "call")
        );
    }
    if trace.without_entry > 0 {
        let (exits, what) = (trace.without_entry, LostReason::Unmatched.phrase());
        say!("note: {} {what}", quantity::count(exits));
    }
    if trace.stepped_down > 0 {
        say!(
            "note: {} watched less than asked for (without returns, or also a part of the time), to \
             stay within --budget",
            match trace.stepped_down {
                1 => "1 function was".to_owned(),
                n => format!("{} functions were", quantity::count(n as u64)),
            }
        );
    }
    let Unwatched {
        gaps,
        spans,
        longest_ns,
    } = &trace.unwatched;
    if *gaps > 0 {
        let longest = match gaps {
            1 => String::new(),
            _ => format!(", the longest {}", quantity::duration(*longest_ns)),
        };
        say!(
            "note: calls of new programs or files may be missing in {}{longest}: {}",
            quantity::gaps(*gaps, spans.ns()),
            GapReason::NotYetAttached.phrase(),
        );
    }
    if let Some(leaving) = &trace.leaving {
        say!("{}", leaving_text(leaving));
    }
}

/// What is still in the kernel.
fn leaving_text(leaving: &Leaving) -> String {
    let functions = quantity::plural(leaving.functions as u64, "function");
    let when = match leaving.waits_for_calls {
        true => "when calls return that are open under return probes",
        false => "one after the other, in 0.1 s each",
    };
    let who = match leaving.process {
        Some(pid) => format!("; process {pid} waits for that"),
        None => String::new(),
    };
    format!("note: probes of {functions} go {when}{who}; nothing of them is recorded any more")
}

fn rate(source: &AttachedSource) -> String {
    match (source.frequency_hz, source.period, source.unit) {
        (Some(hz), _, _) => format!("{} at {hz} Hz", source.name),
        (None, Some(1), Unit::Events) => format!("every {}", source.name),
        (None, Some(ns), Unit::Nanoseconds) => format!("{} each {ns} ns", source.name),
        (None, Some(period), _) => format!("{} each {period}", source.name),
        (None, None, _) => source.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_only_if_no_call_may_be() {
        assert_eq!(is_all(true, false, true), "nothing lost");
        assert_eq!(is_all(true, true, false), "calls may be missing");
        let both = is_all(true, true, true);
        assert_eq!(both, "no samples lost, calls may be missing");
        assert_eq!(is_all(false, true, true), "not all");
    }

    #[test]
    fn a_machine_is_idle_when_most_is_the_profiler() {
        let filtered = own_part(1_021, 1_011, Load::Unknown);
        assert!(filtered.is_some_and(|line| line.starts_with("little was recorded: 1,011 of")));
        let busy = own_part(49_326, 30_399, Load::Much);
        assert_eq!(
            busy.as_deref(),
            Some(
                "recording took most of the time: 30,399 of 49,326 samples are of the profiler itself \
                 (a lower -F takes less, --no-self leaves them out)"
            )
        );
        let idle = |samples, own| own_part(samples, own, Load::Little);
        assert_eq!(idle(0, 0), None);
        assert_eq!(idle(20, 10), None);
        assert_eq!(
            idle(1_021, 1_011).as_deref(),
            Some(
                "the machine was idle: 1,011 of 1,021 samples are of the profiler itself \
                 (--no-self leaves them out)"
            )
        );
        assert!(idle(1, 1).is_some());
    }
}
