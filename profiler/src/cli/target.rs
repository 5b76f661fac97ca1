//! Flags that say what is watched and how, shared by the commands that record: targets, event
//! sources, names.
//!
//! Flags -> [`ProbeOptions`] and [`ResolveOptions`]. What does not belong here: what becomes of what is
//! recorded (the commands), function tracing (`trace`).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::error::Failure;
use crate::pipeline::CgroupTargets;
use profiler_probe::{EventSpec, ProbeOptions, Rate, SourceSpec};
use profiler_resolve::ResolveOptions;
use profiler_target::Filter;
use profiler_target::command::shown;
use profiler_target::user::User;

use super::target_words::{TargetWords, find_user};
use super::{Common, values};

/// Samples per second and processor, unless told. Not a divisor of anything that ticks.
const DEFAULT_HZ: u64 = 99;
/// Memory for buffers between kernel and profiler, unless told; as much again for traced calls.
const DEFAULT_BUFFER_BYTES: usize = 16 << 20;

/// Whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Target")]
pub(super) struct TargetArgs {
    #[command(flatten)]
    words: TargetWords,
    /// Wait for containers, pods, units and cgroups that don't exist yet; time counts from then
    #[arg(long)]
    wait: bool,
    /// The whole machine (the default if no target is given)
    #[arg(short, long)]
    all: bool,
    /// Run the command as this user
    #[arg(long = "as", value_name = "USER", requires = "command")]
    run_as: Option<String>,
    /// A command to run and record
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What makes samples.
#[derive(Debug, Args)]
#[command(next_help_heading = "Samples")]
pub(super) struct SourceArgs {
    /// Samples per second on each processor
    #[arg(short = 'F', long, value_name = "HZ", conflicts_with = "period")]
    frequency: Option<u64>,
    /// A sample per so many events (nanoseconds for clocks)
    #[arg(long, value_name = "N")]
    period: Option<u64>,
    /// What to sample: cycles, cpu-clock, page-faults, ..., or a tracepoint as category:name
    #[arg(short, long, value_name = "EVENT")]
    event: Vec<EventSpec>,
    /// When threads wait, for how long, where and for what: time off the processor, alone unless -e,
    /// -F or --period ask for samples as well
    #[arg(long)]
    off_cpu: bool,
    /// All the time of threads: samples of those that run, and --off-cpu
    #[arg(long)]
    wall: bool,
    /// No kernel stacks
    #[arg(long)]
    no_kernel: bool,
    /// No user stacks
    #[arg(long)]
    no_user: bool,
    /// No samples, traced functions only
    #[arg(long, requires = "trace", conflicts_with_all = ["frequency", "period", "event", "wall"])]
    no_samples: bool,
    /// No samples and waits of the profiler itself
    #[arg(long)]
    pub(super) no_self: bool,
    /// Memory for all buffers between kernel and profiler; as much again for traced calls
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = values::size)]
    buffer: u64,
}

/// Where names come from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Names")]
pub(super) struct NameArgs {
    /// Folders with separate debug files
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/debug", value_parser = values::debug_folder())]
    debug_dir: Vec<PathBuf>,
    /// Ask these servers for missing debug files (URLs, separated by spaces; none: $DEBUGINFOD_URLS)
    #[arg(long, value_name = "URLS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    debuginfod: Option<String>,
    /// Don't look for inlined functions
    #[arg(long)]
    no_inlines: bool,
}

impl TargetArgs {
    /// The conditions of the flags.
    fn filter(&self) -> Result<Filter, Failure> {
        let filter = self.words.filter()?;
        if self.wait && self.cgroups().is_empty() {
            return Err(Failure::usage(
                "--wait waits for containers: add --container, --pod, --unit or --cgroup",
            ));
        }
        if self.all && !(filter.is_empty() && self.cgroups().is_empty()) {
            return Err(Failure::usage(
                "-a is the whole machine: leave out the other targets",
            ));
        }
        if !self.command.is_empty() && (self.all || filter.is_by_ids()) {
            return Err(Failure::usage(
                "a command is a target by itself: leave out -a, -p and -t",
            ));
        }
        if !self.command.is_empty() && !self.cgroups().selectors.is_empty() {
            return Err(Failure::usage(
                "a command does not run in a container: leave it out, or --container, --pod and --unit",
            ));
        }
        Ok(filter)
    }

    /// What is recorded, in words.
    pub(super) fn describe(&self) -> String {
        if !self.command.is_empty() {
            return shown(&self.command);
        }
        self.words.describe(self.cgroups().parts())
    }

    /// Cgroups, containers, pods and units.
    pub(super) fn cgroups(&self) -> CgroupTargets {
        CgroupTargets {
            paths: self.words.paths(),
            selectors: self.words.selectors(),
            wait: self.wait,
        }
    }

    /// Who runs the command; none: who we are.
    pub(super) fn user(&self) -> Result<Option<User>, Failure> {
        match &self.run_as {
            Some(name) => Ok(Some(find_user(name)?)),
            None if self.command.is_empty() => Ok(None),
            None => Ok(User::behind_sudo()?),
        }
    }

    /// The command to run, if there is one.
    pub(super) fn take_command(&mut self) -> Option<Vec<OsString>> {
        (!self.command.is_empty()).then(|| std::mem::take(&mut self.command))
    }
}

impl SourceArgs {
    /// The probes.
    pub(super) fn probe(
        &self,
        target: &TargetArgs,
        common: &Common,
    ) -> Result<ProbeOptions, Failure> {
        Ok(ProbeOptions {
            sources: self.specs()?,
            calls: None,
            filter: target.filter()?,
            hierarchy: None,
            buffer_bytes: usize::try_from(self.buffer).unwrap_or(usize::MAX),
            kernel_stacks: !self.no_kernel,
            user_stacks: !self.no_user,
            unwind: None,
            kernel_log: common.verbose >= 2,
            off_cpu: self.off_cpu || self.wall,
            adjustable: false,
        })
    }

    fn specs(&self) -> Result<Vec<SourceSpec>, Failure> {
        let sampled = self.wall
            || !self.event.is_empty()
            || self.frequency.is_some()
            || self.period.is_some();
        if self.no_samples || self.off_cpu && !sampled {
            return Ok(Vec::new());
        }
        let rate = match (self.frequency, self.period) {
            (Some(0), _) | (_, Some(0)) => return Err(nothing_sampled()),
            (_, Some(period)) => Rate::Period(period),
            (frequency, None) => Rate::FrequencyHz(frequency.unwrap_or(DEFAULT_HZ)),
        };
        let events = match self.event.is_empty() {
            true => vec![EventSpec::Default],
            false => self.event.clone(),
        };
        Ok(events
            .into_iter()
            .map(|event| SourceSpec { event, rate })
            .collect())
    }
}

/// Probes that sample the default event, for commands that have no flags of sources.
pub(super) fn sampled(
    target: &TargetArgs,
    frequency_hz: Option<u64>,
    common: &Common,
) -> Result<ProbeOptions, Failure> {
    if frequency_hz == Some(0) {
        return Err(nothing_sampled());
    }
    let rate = Rate::FrequencyHz(frequency_hz.unwrap_or(DEFAULT_HZ));
    let event = EventSpec::Default;
    Ok(ProbeOptions {
        sources: vec![SourceSpec { event, rate }],
        ..unsampled(target, common)?
    })
}

/// Probes without sources of samples.
pub(super) fn unsampled(target: &TargetArgs, common: &Common) -> Result<ProbeOptions, Failure> {
    Ok(ProbeOptions {
        sources: Vec::new(),
        calls: None,
        filter: target.filter()?,
        hierarchy: None,
        buffer_bytes: DEFAULT_BUFFER_BYTES,
        kernel_stacks: false,
        user_stacks: true,
        unwind: None,
        kernel_log: common.verbose >= 2,
        off_cpu: false,
        adjustable: false,
    })
}

fn nothing_sampled() -> Failure {
    Failure::usage("a rate of 0 records nothing: give -F or --period more")
}

impl NameArgs {
    /// The resolver's options.
    pub(super) fn options(&self) -> ResolveOptions {
        ResolveOptions {
            debug_dirs: self.debug_dir.clone(),
            debuginfod: self.debuginfod.clone(),
            inlines: !self.no_inlines,
            ..ResolveOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use profiler_target::container::Selector;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        target: TargetArgs,
    }

    fn parse(words: &str) -> Result<TargetArgs, clap::Error> {
        let words = ["record"].into_iter().chain(words.split(' '));
        Line::try_parse_from(words).map(|line| line.target)
    }

    #[test]
    fn containers_pods_and_units_add_up() {
        let words = "--container web --container /db --pod cart --pod shop/api --unit nginx \
                     --cgroup /a --cgroup pids/b --wait";
        let target = parse(words).unwrap();
        let pod = |namespace: &str, name: &str| Selector::Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let cgroups = target.cgroups();
        let expected = [
            Selector::Container("web".to_owned()),
            Selector::Container("db".to_owned()),
            pod("default", "cart"),
            pod("shop", "api"),
            Selector::Unit("nginx".to_owned()),
        ];
        assert_eq!(cgroups.selectors, expected);
        assert_eq!(cgroups.paths, ["/a", "pids/b"].map(PathBuf::from));
        assert!(cgroups.wait && target.filter().is_ok());
        assert_eq!(
            target.describe(),
            "cgroup /a, cgroup pids/b, container web, container db, pod default/cart, pod shop/api, \
             unit nginx"
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for words in [
            "--container=",
            "--container=/",
            "--pod=a/",
            "--pod=/a",
            "--pod=a/b/c",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
        for words in ["--unit=", "--unit=system.slice/nginx.service"] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for words in [
            "--wait",
            "--wait -p 1",
            "-a --container web",
            "-a --cgroup /a",
            "--container web -- ls",
            "--unit nginx --wait -- ls",
        ] {
            let refused = parse(words).unwrap().filter().unwrap_err();
            assert_eq!(refused.status, crate::error::USAGE, "{words}");
        }
        assert!(parse("--cgroup /a -p 1 --comm b").unwrap().filter().is_ok());
        assert!(parse("--cgroup /a -- ls").unwrap().filter().is_ok());
    }
}
