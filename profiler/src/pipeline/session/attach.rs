//! How a session begins: [`Prepared`] -> probes in the kernel, and a resolver that knows what runs.
//!
//! What does not belong here: what it does then (`session`), making things ready (`prepare`).

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::MissedTickBehavior;

use super::about::{machine, source};
use super::call_counts::CallCounts;
use super::collector::Collector;
use super::command::Command;
use super::counts::Counts;
use super::cuts::Cuts;
use super::walk::Walk;
use super::window::Window;
use super::{Session, TICK};
use crate::error::{Context, Failure};
use crate::pipeline::containers::Containers;
use crate::pipeline::prepare::Prepared;
use crate::pipeline::scope::Scope;
use profiler_model::{Timestamp, heap};
use profiler_probe::{Probe, now};
use profiler_resolve::{KnownProcesses, ResolveOptions, Resolver};
use profiler_target::command::StoppedCommand;

const POLL_FAILED: &str = "failed to poll for what happens";

impl Session {
    /// Attaches everything. The command, if there is one, still waits for [`Session::begin`].
    pub(in crate::pipeline) fn attach(prepared: Box<Prepared>) -> Result<Box<Session>, Failure> {
        Session::attach_again(prepared, &mut None)
    }

    /// The same, and what was known of processes is known again: they stay the same, and epochs are
    /// counted on. It is left where it is if this fails.
    pub(in crate::pipeline) fn attach_again(
        prepared: Box<Prepared>,
        known: &mut Option<KnownProcesses>,
    ) -> Result<Box<Session>, Failure> {
        let Prepared {
            watch,
            targets,
            cgroups,
            command,
            tracer,
            wanted,
        } = *prepared;
        let scope = Scope::new(&watch.probe.filter);
        let mut probe = Probe::attach(watch.probe)?;
        probe.leave_out_own_calls()?;
        let wake = probe.wake_fd().try_clone_to_owned();
        let wake = watched(wake.context(|| POLL_FAILED)?).context(|| POLL_FAILED)?;
        let containers = cgroups.map(|chosen| {
            let containers = heap::try_boxed(|| Containers::start(chosen, wanted, &mut probe));
            containers.context(|| "failed to start a thread")
        });
        let containers = containers.transpose()?;
        let answers = containers.as_deref().map(Containers::wake_fd);
        let answers = answers.map(|fd| fd.and_then(watched)).transpose();
        let answers = answers.context(|| POLL_FAILED)?;
        let at = now();
        let mut resolver = resolver(watch.resolve, watch.target, at, &probe)?;
        if let Some(known) = known.take() {
            resolver.resume(known);
        }
        let about_to_run = command.as_ref().map(StoppedCommand::pid);
        let mut raw = Vec::new();
        let began = (at, &mut *probe, &mut raw);
        let walk = Walk::begin(resolver, scope, containers, tracer, about_to_run, began)?;
        let program = watch.command.iter().flatten().next();
        let program = program.map_or(String::new(), |word| word.display().to_string());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (delay, no_self) = (watch.delay, watch.no_self);
        Ok(heap::boxed(move || Session {
            window: Window::new(delay, at, walk.awaited().is_some()),
            collector: Collector::new(probe, raw, no_self, about_to_run),
            walk,
            counts: Counts::default(),
            cuts: Cuts::default(),
            call_counts: CallCounts::default(),
            command: Command::new(command, program),
            targets,
            wake,
            answers,
            tick,
        }))
    }
}

/// Starts what resolves. In a frame of its own: see [`heap`].
#[inline(never)]
fn resolver(
    mut options: ResolveOptions,
    target: String,
    at: Timestamp,
    probe: &Probe,
) -> Result<Box<Resolver>, Failure> {
    options.session = profiler_model::Session {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        target,
        command: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        // What is left out at the beginning is told when time counts.
        started: at,
        recordings: number_of_this().into_iter().collect(),
        ..machine()
    };
    options.sources = probe.sources().iter().map(source).collect();
    Ok(Resolver::new(options)?)
}

/// A number that no other recording has; none if the kernel has none to give.
fn number_of_this() -> Option<u64> {
    let mut bytes = [0; size_of::<u64>()];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    // 0 stands for what is not known.
    (filled == Ok(bytes.len())).then(|| u64::from_ne_bytes(bytes).max(1))
}

/// Has the event loop watch a descriptor of our own.
#[allow(unsafe_code)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, which stays open and the same until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(watched?)
}
