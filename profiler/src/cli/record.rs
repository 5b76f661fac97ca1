//! `record` and `mark`: flags into a [`Request`], and the summary at the end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::capture::{CreateOptions, Limit};
use crate::error::{Context, Failure};
use crate::export::{self, ExportOptions};
use crate::model::raw::Comm;
use crate::model::{Pid, Tid, Unit};
use crate::pipeline::{self, Finished, Request, marks};
use crate::probe::{AttachedSource, EventSpec, ProbeOptions, Rate, SourceSpec};
use crate::resolve::ResolveOptions;
use crate::target::Filter;
use crate::target::command::shown;
use crate::target::user::User;
use crate::view::quantity;

use super::Common;
use super::values;

/// Samples per second and processor, unless told. Not a divisor of anything that ticks.
const DEFAULT_HZ: u64 = 99;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler record -d 30                          the whole machine for 30 seconds
  profiler record -p 1234 -o web.cap -o web.svg  a process, with a flame graph
  profiler record --comm nginx -F 999
  profiler record -e page-faults --period 1 -- ls
  profiler record --trace libc:malloc -p 1234    every call of a function, beside the samples
  profiler record --trace 'app:handle_*' --args -- ./app
  profiler record --ring 10m                     flight recorder: SIGUSR2 writes it out
  sudo profiler record -- make                   make runs as you, not as root

Samples are taken on every processor. Children of -p processes and of the command are followed.
The exit status is that of the command.")]
pub(super) struct RecordArgs {
    /// Processes, and the children that they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = values::id)]
    pid: Vec<u32>,
    /// Single threads
    #[arg(short, long, value_name = "TID", value_delimiter = ',', value_parser = values::id)]
    tid: Vec<u32>,
    /// Threads of this name (the first 15 bytes count)
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Processes of this user, by name or number
    #[arg(long, value_name = "USER")]
    uid: Vec<String>,
    /// Processes in this cgroup (v2) and below: a path below /sys/fs/cgroup or a full one
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<PathBuf>,
    /// The whole machine (the default if no target is given)
    #[arg(short, long)]
    all: bool,
    /// Samples per second on each processor
    #[arg(short = 'F', long, value_name = "HZ", conflicts_with = "period")]
    frequency: Option<u64>,
    /// A sample per so many events (nanoseconds for clocks)
    #[arg(long, value_name = "N")]
    period: Option<u64>,
    /// What to sample: cycles, cpu-clock, page-faults, ..., or a tracepoint as category:name
    #[arg(short, long, value_name = "EVENT")]
    event: Vec<EventSpec>,
    /// No kernel stacks
    #[arg(long)]
    no_kernel: bool,
    /// No user stacks
    #[arg(long)]
    no_user: bool,
    /// End by itself after so long
    #[arg(short, long, value_name = "TIME", value_parser = values::duration)]
    duration: Option<Duration>,
    /// Leave out the first so long
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::duration)]
    delay: Duration,
    /// Where to: a capture, or by its ending another format (see 'profiler formats'); repeatable
    #[arg(short, long, value_name = "FILE", default_value = "profile.cap")]
    output: Vec<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Keep only the newest: 10m, 1G; written out at SIGUSR2 and at the end
    #[arg(long, value_name = "LIMIT", conflicts_with = "rotate")]
    ring: Option<Limit>,
    /// Start a new capture after so long or so much: 1h, 1G
    #[arg(long, value_name = "LIMIT")]
    rotate: Option<Limit>,
    /// Memory for all buffers between kernel and profiler
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = values::size)]
    buffer: u64,
    /// Folders with separate debug files
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/debug")]
    debug_dir: Vec<PathBuf>,
    /// Ask these servers for missing debug files (URLs, separated by spaces; none: $DEBUGINFOD_URLS)
    #[arg(long, value_name = "URLS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    debuginfod: Option<String>,
    /// Don't look for inlined functions
    #[arg(long)]
    no_inlines: bool,
    /// Run the command as this user
    #[arg(long = "as", value_name = "USER", requires = "command")]
    run_as: Option<String>,
    /// No samples, traced functions only
    #[arg(long, requires = "trace", conflicts_with_all = ["frequency", "period", "event"])]
    no_samples: bool,
    #[command(flatten)]
    trace: super::trace::TraceArgs,
    /// A command to run and record
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
pub(super) fn record(args: RecordArgs, common: &Common) -> Result<u8, Failure> {
    let request = request(args, common)?;
    let finished = pipeline::run(request)?;
    if !common.quiet {
        summarize(&finished);
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

fn request(args: RecordArgs, common: &Common) -> Result<Request, Failure> {
    let trace = args.trace.request()?;
    let (capture, exports) = outputs(&args)?;
    let filter = filter(&args)?;
    let user = match &args.run_as {
        Some(name) => Some(find_user(name)?),
        None if args.command.is_empty() => None,
        None => User::behind_sudo()?,
    };
    let target = match args.command.is_empty() {
        true => describe(&args),
        false => shown(&args.command),
    };
    Ok(Request {
        probe: ProbeOptions {
            sources: match args.no_samples {
                true => Vec::new(),
                false => sources(&args)?,
            },
            calls: None,
            filter,
            buffer_bytes: usize::try_from(args.buffer).unwrap_or(usize::MAX),
            kernel_stacks: !args.no_kernel,
            user_stacks: !args.no_user,
            kernel_log: common.verbose >= 2,
        },
        resolve: ResolveOptions {
            debug_dirs: args.debug_dir,
            debuginfod: args.debuginfod,
            inlines: !args.no_inlines,
            ..ResolveOptions::default()
        },
        trace,
        target,
        command: (!args.command.is_empty()).then_some(args.command),
        user,
        capture,
        create: CreateOptions {
            overwrite: args.force,
            ring: args.ring,
            rotate: args.rotate,
            ..CreateOptions::default()
        },
        exports,
        duration: args.duration,
        delay: args.delay,
        quiet: common.quiet,
    })
}

type Outputs = (Option<PathBuf>, Vec<pipeline::Export>);

fn outputs(args: &RecordArgs) -> Result<Outputs, Failure> {
    let (mut capture, mut exports) = (None, Vec::new());
    let is_capture = |path: &Path| path.extension().is_some_and(|end| end == "cap");
    // Everything is checked before anything is made.
    let mut formats = Vec::new();
    for path in &args.output {
        if !is_capture(path) {
            formats.push((
                path,
                export::by_path(path).map_err(|e| Failure::usage(e.to_string()))?,
            ));
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
    for (path, format) in formats {
        let options = ExportOptions::default();
        exports.push(pipeline::open_export(
            format,
            options,
            Some(path),
            args.force,
        )?);
    }
    Ok((capture, exports))
}

fn filter(args: &RecordArgs) -> Result<Filter, Failure> {
    let filter = Filter {
        pids: args.pid.iter().copied().map(Pid).collect(),
        tids: args.tid.iter().copied().map(Tid).collect(),
        comms: args
            .comm
            .iter()
            .map(|name| Comm::from_bytes(name.as_bytes()))
            .collect(),
        uids: args
            .uid
            .iter()
            .map(|user| uid(user))
            .collect::<Result<_, _>>()?,
        cgroups: args
            .cgroup
            .iter()
            .map(|path| cgroup(path))
            .collect::<Result<_, _>>()?,
    };
    if args.all && !filter.is_empty() {
        return Err(Failure::usage(
            "-a is the whole machine: leave out the other targets",
        ));
    }
    if !args.command.is_empty() && (args.all || !filter.pids.is_empty() || !filter.tids.is_empty())
    {
        return Err(Failure::usage(
            "a command is a target by itself: leave out -a, -p and -t",
        ));
    }
    Ok(filter)
}

fn sources(args: &RecordArgs) -> Result<Vec<SourceSpec>, Failure> {
    let rate = match (args.frequency, args.period) {
        (Some(0), _) | (_, Some(0)) => {
            return Err(Failure::usage(
                "a rate of 0 records nothing: give -F or --period more",
            ));
        }
        (_, Some(period)) => Rate::Period(period),
        (frequency, None) => Rate::FrequencyHz(frequency.unwrap_or(DEFAULT_HZ)),
    };
    let events = match args.event.is_empty() {
        true => vec![EventSpec::Default],
        false => args.event.clone(),
    };
    Ok(events
        .into_iter()
        .map(|event| SourceSpec { event, rate })
        .collect())
}

fn uid(user: &str) -> Result<u32, Failure> {
    match user.parse() {
        Ok(uid) => Ok(uid),
        Err(_) => find_user(user).map(|user| user.uid),
    }
}

fn find_user(name: &str) -> Result<User, Failure> {
    User::find(name).ok_or_else(|| Failure::failed(format!("there is no user '{name}'")))
}

/// The directory of a cgroup v2, wherever that hierarchy is mounted.
fn cgroup(path: &Path) -> Result<PathBuf, Failure> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let candidates = [
        path.to_owned(),
        Path::new("/sys/fs/cgroup").join(relative),
        Path::new("/sys/fs/cgroup/unified").join(relative),
    ];
    // A directory of a v1 hierarchy has no such file.
    let v2 = |path: &PathBuf| path.join("cgroup.controllers").exists();
    if let Some(found) = candidates.iter().find(|path| v2(path)) {
        return Ok(found.clone());
    }
    Err(Failure::failed(
        match candidates
            .iter()
            .find(|path| path.join("cgroup.procs").exists())
        {
            Some(v1) => format!(
                "{} is a cgroup of version 1; only v2 cgroups can be filtered by",
                v1.display()
            ),
            None => format!(
                "there is no cgroup {}; see /proc/PID/cgroup for a process's own",
                path.display()
            ),
        },
    ))
}

fn describe(args: &RecordArgs) -> String {
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut parts = Vec::new();
    if !args.pid.is_empty() {
        parts.push(format!("pid {}", list(&args.pid)));
    }
    if !args.tid.is_empty() {
        parts.push(format!("tid {}", list(&args.tid)));
    }
    parts.extend(args.comm.iter().map(|name| format!("comm {name}")));
    parts.extend(args.uid.iter().map(|user| format!("user {user}")));
    parts.extend(
        args.cgroup
            .iter()
            .map(|path| format!("cgroup {}", path.display())),
    );
    if parts.is_empty() {
        "system-wide".to_owned()
    } else {
        parts.join(", ")
    }
}

fn summarize(finished: &Finished) {
    for source in &finished.sources {
        if let Some(note) = &source.note {
            say!("note: {note}");
        }
    }
    let sources: Vec<String> = finished.sources.iter().map(rate).collect();
    say!(
        "{} of {} in {:.1} s ({}), {} lost",
        quantity::plural(finished.samples, "sample"),
        match finished.counters.processes {
            1 => "1 process".to_owned(),
            count => format!("{} processes", quantity::count(count)),
        },
        finished.elapsed.as_secs_f64(),
        sources.join(", "),
        quantity::count(finished.lost),
    );
    if let Some(trace) = &finished.trace {
        say!(
            "{} to {}{}{}",
            quantity::plural(trace.calls, "call"),
            quantity::plural(trace.functions as u64, "traced function"),
            match trace.lost {
                0 => String::new(),
                lost => format!(", {} records lost: see --buffer", quantity::count(lost)),
            },
            match trace.left_out {
                0 => String::new(),
                left => format!(", {} left out by limits", quantity::count(left)),
            },
        );
        if trace.stepped_down > 0 {
            say!(
                "note: {} watched less than asked for, to stay within --budget",
                match trace.stepped_down {
                    1 => "1 function was".to_owned(),
                    n => format!("{} functions were", quantity::count(n as u64)),
                }
            );
        }
    }
    if finished.counters.kernel_hidden {
        say!(
            "note: the kernel hides its addresses; run as root, or set sysctl kernel.kptr_restrict=1 or 0, for names of kernel functions"
        );
    }
    if let Some((path, bytes)) = &finished.capture {
        let (path, bytes) = (path.display(), quantity::bytes(*bytes));
        say!("wrote {path} ({bytes}); see it with: profiler report {path}");
    }
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
