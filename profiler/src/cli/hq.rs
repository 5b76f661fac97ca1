//! `hq`: receives what Bytefrog agents trace.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::error::Failure;
use crate::pipeline::hq::{HqRequest, run};
use profiler_capture::Existing;
use profiler_model::text::parse_duration;
use profiler_serve::admission::Admission;
use profiler_serve::hq::HqOptions;
use profiler_wire::bytefrog::{BYTEFROG_CLASS, CODE_PULSE_CLASS, Configuration, DEFAULT_PORT};

use super::target_words::admitted_users;
use super::{Common, values};

/// Less than this has no room for a few runs.
const LEAST_MEMORY: usize = 16 << 20;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  profiler hq                          until Ctrl-C, into bytefrog.cap, ...
  profiler hq --runs 1 -o trace.cap    one run; exit status 1 if it failed
  profiler hq --wait                   each run starts by the order 'start'
  profiler hq --listen :9000 -d 10     each run is stopped after 10 seconds
  profiler hq --exclude 'java/.*' --exclude 'sun/.*'

Orders, one a line: start, stop, pause, unpause, suspend, unsuspend (of all runs, or of one: \
stop 2), status, quit, help. Ctrl-C stops all runs and ends when they have ended.

Agents: profiler stream bytefrog 127.0.0.1, or the Java agent of Bytefrog, or with --code-pulse that \
of Code Pulse 1. Only processes of root and of you are admitted, unless you admit others.")]
pub(super) struct HqArgs {
    /// Where to listen: ADDRESS, ADDRESS:PORT or :PORT
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8765")]
    listen: String,
    /// The capture of the first run; that of run N is FILE-N
    #[arg(short, long, value_name = "FILE", default_value = "bytefrog.cap")]
    output: PathBuf,
    /// Programs run without being traced, until the order unsuspend
    #[arg(long)]
    suspend: bool,
    /// Programs wait for the order start
    #[arg(long)]
    wait: bool,
    /// Stop each run by itself after so long
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// End after so many runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// Data connections of each agent
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=64))]
    senders: i32,
    /// Bytes of all send buffers of an agent
    #[arg(long, value_name = "BYTES", default_value = "25600", value_parser = values::size)]
    budget: u64,
    /// Memory for what all runs keep together, at least 16M; the run that keeps most ends when it is used up [default: a quarter
    /// of the machine's, from 256M to 1G]
    #[arg(long, value_name = "BYTES", value_parser = values::size)]
    memory: Option<u64>,
    /// Milliseconds between two signs of life of an agent
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(i32).range(10..=3_600_000))]
    heartbeat: i32,
    /// Trace these classes in any case: a Java regular expression of class/path
    #[arg(long, value_name = "REGEX")]
    include: Vec<String>,
    /// Do not trace these classes
    #[arg(long, value_name = "REGEX")]
    exclude: Vec<String>,
    /// Receive from agents of Code Pulse, which know the configuration by another name
    #[arg(long)]
    code_pulse: bool,
    /// End a run with its first fault, as the original collector does
    #[arg(long)]
    strict: bool,
    /// Admit processes of this user too (a name or a number)
    #[arg(long, value_name = "USER")]
    allow_user: Vec<String>,
    /// Listen at an address that other machines can reach, and admit anyone from there
    #[arg(long)]
    allow_remote: bool,
    /// Keep no FILE.old of the first capture, and replace those with a number
    #[arg(long)]
    force: bool,
}

/// Receives until it is told to end; returns the exit status.
pub(super) fn hq(args: HqArgs, common: &Common) -> Result<u8, Failure> {
    let users = admitted_users(&args.allow_user)?;
    let budget = i32::try_from(args.budget);
    let budget = budget.map_err(|_| Failure::usage("--budget: at most 2G less one byte"))?;
    let memory = args
        .memory
        .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if memory.is_some_and(|bytes| bytes < LEAST_MEMORY) {
        return Err(Failure::usage("--memory: at least 16M"));
    }
    let defaults = HqOptions::default();
    let listen = values::address("--listen", &args.listen, DEFAULT_PORT)?;
    let admission = Admission::new(users).allow_remote(args.allow_remote);
    if admission.may_listen(listen).is_err() {
        return Err(Failure::usage(format!(
            "{listen} can be reached by other machines, which nothing keeps from sending here; \
             --allow-remote if that is wanted"
        )));
    }
    run(HqRequest {
        listen,
        options: HqOptions {
            configuration: Configuration {
                buffer_memory_budget: budget,
                heartbeat_interval_ms: args.heartbeat,
                data_senders: args.senders,
                inclusions: args.include,
                exclusions: args.exclude,
                ..Configuration::default()
            },
            configuration_class: match args.code_pulse {
                true => CODE_PULSE_CLASS,
                false => BYTEFROG_CLASS,
            },
            admission,
            suspended: args.suspend,
            start: !args.wait,
            stop_after: args.duration,
            strict: args.strict,
            runs: args.runs,
            memory: memory.unwrap_or(defaults.memory),
            ..defaults
        },
        output: args.output,
        existing: Existing::forced(args.force),
        quiet: common.quiet,
    })
}
