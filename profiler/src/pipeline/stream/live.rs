//! What happens now into an agent: a session whose beginning, pauses and end are HQ's.
//!
//! A [`LiveSource`] and HQ's orders -> a run. Whatever ends it, targets that stand still go on first,
//! then the probes go, and only then anything else is done. What does not belong here: the walk
//! (`session`).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::error::Failure;
use profiler_model::Consumer;
use profiler_probe::features::check_privileges;
use profiler_probe::now;
use profiler_report::derive::ClassPath;
use profiler_report::view::progress::LiveLine;
use profiler_serve::bytefrog::{Agent, AgentError, AgentOptions, ClassNote, Order};
use profiler_target::cgroup::{Hierarchies, Hierarchy, Version};
use profiler_target::command::shell_status;
use profiler_target::pause::{Pause, PauseError, PauseTargets};
use profiler_wire::bytefrog::{Filter, Mode};

use super::super::drive::{Driver, drive};
use super::super::outlive::{fail, outlive, terminate};
use super::super::prepare::Prepared;
use super::super::privileges::{self, Later};
use super::super::session::{Gone, Priority, Session};
use super::super::signals::{Heard, Signals, in_foreground};
use super::super::tracer::{News, PathFilter};
use super::{
    FINISH_DEADLINE, LiveSource, NEVER_RAN, Streamed, Waited, Waiter, failed_before, start_agent,
    unless_interrupted, wait_for_start,
};

/// How long to wait for names when everything else is done.
const NAMES_DEADLINE: Duration = Duration::from_secs(10);
/// What was chosen longer ago than this is chosen again: the targets may have changed.
const STALE: Duration = Duration::from_secs(1);
/// How a command goes on when there is no HQ any more.
const UNTRACED: &str = "without being traced";

/// Runs a live session into an agent until HQ, the targets or the user end it.
pub(super) async fn stream(
    options: AgentOptions,
    source: LiveSource,
    duration: Option<Duration>,
    quiet: bool,
    mut signals: Signals,
) -> Result<Streamed, Failure> {
    check_privileges()?;
    let mut prepared = Prepared::new(source.watch)?;
    let later = Later {
        attaches: prepared.tracer.is_some(),
        loads_tables: prepared.watch.probe.unwind.is_some(),
        signals: true,
        // A cgroup that is to stand still may be another user's.
        writes_files: source.allow_control,
        names_files: false,
        gives_files: false,
        mounts_tracefs: false,
    };
    let pausable = pausable(&prepared, source.allow_control);
    let chosen = Instant::now();
    let is_command = prepared.command.is_some();
    let waiter = Waiter {
        hq: options.address.clone(),
        until_then: match is_command {
            true => "the command is held",
            false => "the target is left alone",
        },
        never: match is_command {
            true => "the command never ran",
            false => "nothing was traced",
        },
    };
    let mut agent = start_agent(options)?;
    let never = waiter.never;
    let there = || prepared.are_there();
    let waited = wait_for_start(&mut agent, &waiter, &mut signals, there).await;
    let attached = match waited {
        Ok(waited @ (Waited::Stopped | Waited::Left)) => {
            return Ok(Streamed {
                status: if is_command { NEVER_RAN } else { 0 },
                ..waited.nothing()
            });
        }
        Ok(Waited::Started(start)) => {
            let again = choose_again(&mut prepared, start.filter, chosen);
            again
                .and_then(|()| Session::attach(prepared))
                .map(|session| (session, start.suspended))
        }
        Err(failure) => Err(failure),
    };
    let (mut session, suspended) = match attached {
        Ok(attached) => attached,
        Err(failure) => {
            agent.abort(&failure.message).await;
            return Err(failure);
        }
    };
    let mut live = Live {
        agent,
        mode: Mode::Tracing,
        pause: None,
        pausing: None,
        pausable,
        live: LiveLine::new(quiet),
        lasts: duration,
        stop_detaches: source.stop_detaches,
        held: true,
        early: VecDeque::new(),
        is_command,
        never,
    };
    let end = live.run(&mut session, suspended, later, &mut signals).await;
    live.finish(session, end, &mut signals).await
}

/// What HQ may pause, or why it may not.
fn pausable(prepared: &Prepared, allow_control: bool) -> Result<PauseTargets, &'static str> {
    let filter = &prepared.watch.probe.filter;
    if let Some(command) = &prepared.command {
        return Ok(PauseTargets::Processes(vec![command.pid()]));
    }
    if !allow_control {
        return Err("the target was not started here: add --allow-control");
    }
    let by_others = !filter.tids.is_empty() || filter.is_by_kernel_facts();
    let cgroups = filter
        .cgroups
        .as_ref()
        .map_or(&[][..], |cgroups| &cgroups.wanted);
    match (&filter.pids[..], cgroups, by_others) {
        ([_, ..], [], false) => Ok(PauseTargets::Processes(filter.pids.clone())),
        ([], [cgroup], false) => match &prepared.watch.probe.hierarchy {
            Some(hierarchy) => freezable(hierarchy, &cgroup.path).map(PauseTargets::Cgroup),
            None => Err("no cgroups are mounted"),
        },
        _ => Err("only processes (-p), one cgroup, or a command can stand still"),
    }
}

/// The directory by which a cgroup can be frozen. Version 1 has a hierarchy for that, in which engines
/// give a container the same path as in the others.
fn freezable(hierarchy: &Hierarchy, path: &str) -> Result<PathBuf, &'static str> {
    if hierarchy.version == Version::Two {
        return Ok(hierarchy.directory(path));
    }
    let hierarchies = Hierarchies::read().unwrap_or_default();
    let freezer = hierarchies.with_controller("freezer");
    let freezer = freezer.ok_or("the freezer's hierarchy of cgroups is not mounted")?;
    Ok(freezer.directory(path))
}

/// Chooses what is traced once more, if HQ leaves something out or what was chosen is old.
fn choose_again(
    prepared: &mut Prepared,
    filter: Option<Filter>,
    chosen: Instant,
) -> Result<(), Failure> {
    let Some(trace) = &mut prepared.watch.trace else {
        return Ok(());
    };
    if filter.is_none() && chosen.elapsed() < STALE {
        return Ok(());
    }
    trace.filter = filter.map(|filter| PathFilter(Arc::new(move |path| filter.admits(path))));
    prepared.choose()
}

/// An object file as a class, as paths of its functions begin.
fn file_name(path: &str) -> String {
    ClassPath::new(path, "").object().to_owned()
}

/// Why a run ended.
enum End {
    /// HQ wants it to.
    Stopped,
    /// A person does.
    Asked,
    Duration,
    Gone(Gone),
    Lost(AgentError),
    Failed(Failure),
}

/// Stops targets, beside the walk.
type Pausing = JoinHandle<Result<Pause, PauseError>>;

/// Waits until targets that are being stopped stand still, or go on. Cancel-safe.
async fn stopping(pausing: &mut Option<Pausing>) -> Result<Pause, String> {
    match pausing {
        Some(pausing) => match pausing.await {
            Ok(paused) => paused.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        },
        None => std::future::pending().await,
    }
}

struct Live {
    agent: Agent,
    /// What HQ is told.
    mode: Mode,
    pause: Option<Pause>,
    /// Targets are being stopped, which may take seconds: meanwhile the kernel's buffers are emptied.
    pausing: Option<Pausing>,
    /// What may be paused, or why nothing may.
    pausable: Result<PauseTargets, &'static str>,
    live: LiveLine,
    /// How long it goes on, counted from when what is watched exists.
    lasts: Option<Duration>,
    stop_detaches: bool,
    /// HQ has not accepted the data connections: nothing begins before.
    held: bool,
    /// What HQ has ordered meanwhile.
    early: VecDeque<Order>,
    is_command: bool,
    /// What was not done if it never begins.
    never: &'static str,
}

/// What happens besides.
enum Input {
    /// The targets stand still, or go on for this reason.
    Stopped(Result<Pause, String>),
    /// HQ wants something.
    Order(Order),
    /// HQ has accepted all connections.
    Accepted,
}

impl Driver for Live {
    type Of = Session;
    type Input = Input;
    type End = End;

    fn consumer(&mut self) -> &mut impl Consumer {
        &mut self.agent
    }

    async fn input(&mut self) -> Input {
        if !self.held
            && self.pausing.is_none()
            && let Some(order) = self.early.pop_front()
        {
            return Input::Order(order);
        }
        let accepted = self.agent.accepted();
        tokio::select! {
            // What HQ has ordered before it accepts counts before.
            biased;
            // Each when the one before is carried out.
            order = self.agent.order(), if self.pausing.is_none() => Input::Order(order),
            () = accepted, if self.held => Input::Accepted,
            stopped = stopping(&mut self.pausing) => Input::Stopped(stopped),
        }
    }

    fn hear(&mut self, input: Input, session: &mut Session) -> Result<Option<End>, Failure> {
        Ok(match input {
            Input::Stopped(stopped) => {
                self.paused(stopped);
                None
            }
            Input::Order(order) => self.obey(order, session),
            Input::Accepted => {
                self.held = false;
                session.begin()?;
                session.last(self.lasts);
                self.agent.report(self.mode);
                None
            }
        })
    }

    /// Shows how it goes, tells HQ of files, looks at what may end the run.
    fn look(&mut self, session: &mut Session) -> Result<Option<End>, Failure> {
        self.live.update(&session.progress(0));
        self.tell_news(session);
        if let Some(gone) = session.gone()? {
            return Ok(Some(End::Gone(gone)));
        }
        if self.held {
            return Ok(None);
        }
        Ok(session.is_over().then_some(End::Duration))
    }

    fn signalled(&mut self, signal: Heard, session: &mut Session) -> Result<Option<End>, Failure> {
        match signal {
            // Ctrl-C on a terminal reaches the command as well.
            Heard::Interrupt if in_foreground() => {}
            Heard::Interrupt => session.signal(Signal::INT)?,
            Heard::Terminate => session.signal(Signal::TERM)?,
            Heard::Hangup => {}
            Heard::Dump => return Ok(None),
        }
        Ok(Some(End::Asked))
    }
}

impl Live {
    /// From the start to what ends it.
    async fn run(
        &mut self,
        session: &mut Session,
        suspended: bool,
        later: Later,
        signals: &mut Signals,
    ) -> End {
        // What is still to be done after this can wait.
        let priority = Priority::begin();
        priority.records();
        privileges::settle(later);
        self.agent.begin(session.from());
        if suspended {
            self.suspend(session);
        }
        match drive(session, self, signals).await {
            Ok(end) => end,
            Err(failure) => End::Failed(failure),
        }
    }

    fn obey(&mut self, order: Order, session: &mut Session) -> Option<End> {
        match order {
            Order::Stop => return Some(End::Stopped),
            Order::Lost(error) => return Some(End::Lost(error)),
            // Nothing runs that it could be about.
            order if self.held => {
                self.early.push_back(order);
                return None;
            }
            Order::Pause => {
                self.pause();
                return None;
            }
            Order::Unpause => self.unpause(),
            Order::Suspend => self.suspend(session),
            Order::Unsuspend => {
                self.agent.resume(now());
                session.resume();
                self.mode = Mode::Tracing;
            }
            Order::Configure(_) | Order::Start => return None,
        }
        self.agent.report(self.mode);
        None
    }

    fn pause(&mut self) {
        match &self.pausable {
            Ok(targets) => {
                let targets = targets.clone();
                self.pausing = Some(spawn_blocking(|| Pause::begin(targets)));
            }
            Err(why) => {
                let why = (*why).to_owned();
                self.paused(Err(why));
            }
        }
    }

    /// The targets stand still, or go on for this reason.
    fn paused(&mut self, stopped: Result<Pause, String>) {
        self.pausing = None;
        match stopped {
            Ok(pause) => {
                self.pause = Some(pause);
                self.mode = Mode::Paused;
            }
            Err(why) => {
                log::warn!("HQ wants the target to pause, and it goes on: {why}");
            }
        }
        // What was refused shows in the mode too.
        self.agent.report(self.mode);
    }

    fn unpause(&mut self) {
        if let Some(pause) = self.pause.take()
            && let Err(error) = pause.end()
        {
            log::error!("{error}");
        }
        self.mode = Mode::Tracing;
    }

    fn suspend(&mut self, session: &mut Session) {
        session.suspend();
        // What happened before is still told.
        session.pass(None, &mut self.agent);
        self.agent.suspend(now());
        self.mode = Mode::Suspended;
    }

    fn tell_news(&mut self, session: &mut Session) {
        for news in session.news() {
            self.agent.class(match news {
                News::Traced { object, .. } => ClassNote::Transformed(file_name(&object)),
                News::Filtered { object } => ClassNote::Ignored(file_name(&object)),
                News::Failed {
                    object, function, ..
                } => ClassNote::Failed(ClassPath::new(&object, &function).full()),
            });
        }
    }

    /// Lets go of the targets, passes on what is left, sees to the command.
    async fn finish(
        mut self,
        mut session: Box<Session>,
        end: End,
        signals: &mut Signals,
    ) -> Result<Streamed, Failure> {
        let elapsed = session.elapsed();
        self.live.clear();
        let never = self.held.then_some(self.never);
        let lost = |error: AgentError| match never {
            Some(never) => failed_before(error, never),
            None => error.into(),
        };
        if self.pausing.is_some()
            && let Ok(pause) = stopping(&mut self.pausing).await
        {
            self.pause = Some(pause);
        }
        if self.pause.is_some() {
            self.unpause();
        }
        let mut trace = session.detach();
        let end = match end {
            End::Lost(error) => {
                drop(self.agent);
                let command = session.take_command();
                return Err(fail(lost(error), command, UNTRACED, signals).await);
            }
            end => end,
        };
        session.pass(None, &mut self.agent);
        self.tell_news(&mut session);
        let live = &mut self.live;
        let mut left = |left: usize| live.waiting(left);
        session.await_names(NAMES_DEADLINE, &mut left, &mut self.agent);
        self.live.clear();
        let lost_events = session.counts().lost.missing_events();
        let mut command = session.take_command();
        let ends_command = matches!(end, End::Stopped) && !self.stop_detaches;
        let ending = async {
            if let (true, Some(command)) = (ends_command, &mut command)
                && let Err(failure) = terminate(command).await
            {
                log::error!("{failure}");
            }
        };
        let finishing = self.agent.finish(now(), FINISH_DEADLINE);
        let both = async { tokio::join!(finishing, ending).0 };
        let asked = matches!(end, End::Asked);
        let sent = unless_interrupted(both, asked, signals).await?;
        if let Some(trace) = &mut trace {
            trace.leaving = session.leaving();
            session.counts().add_to(trace);
        }
        let (end, sent) = match (end, sent) {
            (End::Failed(failure), _) => {
                return Err(fail(failure, command, UNTRACED, signals).await);
            }
            (_, Err(error)) => return Err(fail(lost(error), command, UNTRACED, signals).await),
            (end, Ok(sent)) => (end, sent),
        };
        let status = match (end, &mut command) {
            (End::Gone(Gone::Command(status)), _) => shell_status(status),
            _ if never.is_some() && self.is_command => {
                log::warn!(
                    "the run ended before HQ had accepted its connections; {}",
                    self.never
                );
                NEVER_RAN
            }
            (_, Some(command)) if !ends_command => outlive(command, signals).await?,
            _ => 0,
        };
        Ok(Streamed {
            status,
            sent: Some(sent),
            stopped: false,
            lost: lost_events,
            elapsed,
            trace,
        })
    }
}
