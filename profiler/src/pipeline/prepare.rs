//! What a session watches, made ready before anything is attached: targets are there, the command is
//! created but does not run, functions are chosen.
//!
//! [`Watch`] -> [`Prepared`], which leaves nothing behind when it is dropped. All that is wrong with
//! what was asked for shows here. What does not belong here: anything in the kernel (`session`).

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::error::Failure;
use profiler_probe::ProbeOptions;
use profiler_resolve::ResolveOptions;
use profiler_target::command::StoppedCommand;
use profiler_target::translator;
use profiler_target::user::User;

use super::containers::{CgroupTargets, Chosen};
use super::targets::{Target, open_targets};
use super::tracer::{TraceRequest, Tracer};
use super::unwinding;
use super::wanted::WantedCgroups;

/// Whom to watch, and what of them.
pub struct Watch {
    /// The probes. How user stacks are walked follows from `unwind_bytes`.
    pub probe: ProbeOptions,
    /// The resolver; its session and sources are filled in when the probes are attached.
    pub resolve: ResolveOptions,
    /// User stacks are walked by tables, which take so much memory at the most, the kernel's included;
    /// none: by frame pointers alone.
    pub unwind_bytes: Option<u64>,
    /// The samples and waits of this process are left out.
    pub no_self: bool,
    /// Functions to trace.
    pub trace: Option<TraceRequest>,
    /// Cgroups, containers, pods and units that are watched. The filter and the hierarchy follow.
    pub cgroups: CgroupTargets,
    /// What is watched, in words.
    pub target: String,
    /// A command to run.
    pub command: Option<Vec<OsString>>,
    /// Who runs it; none: who we are.
    pub user: Option<User>,
    /// Its nice value, where the thread that starts it has another priority for its own sake.
    pub nice: Option<i32>,
    /// Samples and calls before this time are left out.
    pub delay: Duration,
}

fn samples_user_stacks(probe: &ProbeOptions) -> bool {
    probe.user_stacks && (probe.adjustable || probe.off_cpu || !probe.sources.is_empty())
}

/// A session before its probes are attached.
pub(super) struct Prepared {
    pub(super) watch: Box<Watch>,
    /// The processes and threads that were named.
    pub(super) targets: Vec<Target>,
    /// The hierarchy of cgroups, and what is watched of it; none if none is mounted.
    pub(super) cgroups: Option<Chosen>,
    pub(super) command: Option<StoppedCommand>,
    pub(super) tracer: Option<Box<Tracer>>,
    /// The wanted cgroups, if the filter is by cgroups: for all who learn of them, or need to know.
    pub(super) wanted: Option<WantedCgroups>,
}

impl Prepared {
    /// Makes all ready. The filter of the probes names the command's process from now on. In a frame of its own:
    /// see [`profiler_model::heap`].
    #[inline(never)]
    pub(super) fn new(mut watch: Box<Watch>) -> Result<Box<Prepared>, Failure> {
        if let Some(bytes) = watch
            .unwind_bytes
            .filter(|_| samples_user_stacks(&watch.probe))
        {
            let (kernel, user) = unwinding::shares(bytes);
            watch.probe.unwind = Some(kernel);
            watch.resolve.tables_bytes = Some(user);
        }
        let targets = open_targets(&watch.probe.filter)?;
        // Long before the first file is mapped that is to be opened.
        profiler_resolve::start_opening();
        profiler_resolve::start_reading();
        // As long as it may become others.
        profiler_target::container::start_reading();
        let cgroups = watch.cgroups.choose()?;
        if let Some(chosen) = &cgroups {
            watch.probe.hierarchy = Some(chosen.hierarchy.clone());
            watch.resolve.hierarchy = Some(chosen.hierarchy.clone());
            let wanted = chosen.wanted.as_ref();
            watch.probe.filter.cgroups = wanted.map(|wanted| wanted.filter.clone());
        }
        let command = match &watch.command {
            Some(command)
                if watch.trace.is_some() && translator::starts_one(command[0].as_ref()) =>
            {
                return Err(Failure::failed(format!(
                    "{} runs copies of the code that it is given, and the copy of a probe would end it: \
                     record without --trace, or trace the program without it",
                    Path::new(&command[0]).display()
                )));
            }
            Some(command) => {
                let stopped = StoppedCommand::create(command, watch.user.as_ref(), watch.nice)
                    .map_err(|error| {
                        let as_another = watch.user.is_some();
                        super::privileges::start_failure(&command[0], as_another, &error)
                    })?;
                watch.probe.filter.pids.push(stopped.pid());
                Some(stopped)
            }
            None => None,
        };
        let filter = watch.probe.filter.cgroups.as_ref();
        let mut prepared = Box::new(Prepared {
            wanted: filter.map(WantedCgroups::new),
            watch,
            targets,
            cgroups,
            command,
            tracer: None,
        });
        prepared.choose()?;
        Ok(prepared)
    }

    /// Fails if none of the processes and threads that were named is there any more.
    pub(super) fn are_there(&self) -> Result<(), Failure> {
        match !self.targets.is_empty() && self.targets.iter().all(Target::has_ended) {
            true => Err(Failure::failed(format!(
                "{} has ended, so there is nothing to watch",
                self.watch.target
            ))),
            false => Ok(()),
        }
    }

    /// Chooses what is traced in what runs now.
    pub(super) fn choose(&mut self) -> Result<(), Failure> {
        let Some(trace) = &self.watch.trace else {
            return Ok(());
        };
        let words = self.watch.command.iter().flatten();
        let program = words.map(Path::new).next();
        let running = self.command.as_ref().map(StoppedCommand::pid).zip(program);
        let Watch { probe, .. } = &*self.watch;
        let cgroups = probe.hierarchy.clone().zip(self.wanted.clone());
        let tracer = Tracer::prepare(trace.clone(), &probe.filter, cgroups, running)?;
        self.watch.probe.calls = Some(tracer.call_options(self.watch.probe.buffer_bytes));
        self.tracer = Some(Box::new(tracer));
        Ok(())
    }
}
