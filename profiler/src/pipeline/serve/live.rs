//! What happens now into a hub: a session that is attached while somebody looks, and samples what
//! clients want.
//!
//! Wishes of a hub -> what the probes do, and batches. The probes are taken out of the kernel a while
//! after nobody looks any more, and files of processes are closed then; who they were is kept, so
//! that they are the same when somebody looks again. What does not belong here: what clients are told
//! (`serve`), the walk (`session`).

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::error::Failure;
use profiler_model::{Consumer, Demand, Sampling};
use profiler_probe::features::mounts_tracefs_for_children;
use profiler_probe::{CPU_CLOCK, EventSpec, ProbeOptions, Rate, SourceSpec, now};
use profiler_report::view::progress::LiveLine;
use profiler_resolve::{EpochLimits, KnownProcesses, ResolveOptions};
use profiler_serve::front::{Place, Question};
use profiler_serve::hub::{FrontId, Hub, Wish};
use profiler_target::Filter;

use super::super::containers::CgroupTargets;
use super::super::drive::{Driver, drive};
use super::super::prepare::{Prepared, Watch};
use super::super::privileges::{self, Later};
use super::super::session::{Priority, Session};
use super::super::signals::{Heard, Signals};
use super::calls::{CallLimits, Tracers, Turn};

/// How long the probes stay when nobody looks any more: clients come again.
const LINGER: Duration = Duration::from_secs(10);
/// How often it is looked for names that a client waits for, and how long at most.
const NAMES_TICK: Duration = Duration::from_millis(5);
const NAMES_PATIENCE: Duration = Duration::from_secs(5);
/// How long processes that have ended can be asked about; their files are open as long.
const GRACE: Duration = Duration::from_secs(10);
/// Memory for definitions of an epoch; its end is up to the fronts else.
const EPOCH_BYTES: u64 = 32 << 20;

/// A session whose sampling changes while it is attached.
#[derive(Clone, Debug)]
pub struct Adjustable {
    probe: ProbeOptions,
    resolve: ResolveOptions,
    unwind_bytes: Option<u64>,
    calls: CallLimits,
}

/// A session of the whole machine that samples nothing until it is told to. `buffer_bytes` is memory
/// between kernel and profiler, `unwind_bytes` that of unwind tables, if these are used, `calls` how calls
/// are traced that clients want, `kernel_log` whether the kernel side logs.
pub fn adjustable(
    resolve: ResolveOptions,
    buffer_bytes: usize,
    unwind_bytes: Option<u64>,
    calls: CallLimits,
    kernel_log: bool,
) -> Adjustable {
    Adjustable {
        probe: ProbeOptions {
            sources: vec![SourceSpec {
                event: EventSpec::Default,
                // Until it is adjusted.
                rate: Rate::FrequencyHz(1),
            }],
            calls: None,
            filter: Filter::default(),
            hierarchy: None,
            buffer_bytes,
            kernel_stacks: true,
            user_stacks: true,
            unwind: None,
            kernel_log,
            off_cpu: false,
            adjustable: true,
        },
        resolve: ResolveOptions {
            epoch_limits: EpochLimits {
                duration_ns: u64::MAX,
                bytes: u64::MAX,
                definition_bytes: EPOCH_BYTES,
            },
            keep_code: false,
            threads: true,
            grace: GRACE,
            ..resolve
        },
        unwind_bytes,
        calls,
    }
}

impl Adjustable {
    /// Samples by the clock, though cycles could be counted: samples are to be regular in time.
    pub fn by_the_clock(mut self) -> Adjustable {
        for source in &mut self.probe.sources {
            source.event = EventSpec::Counter(CPU_CLOCK);
        }
        self
    }

    fn attach(&self, known: &mut Option<KnownProcesses>) -> Result<Box<Session>, Failure> {
        let prepared = Prepared::new(Box::new(Watch {
            probe: self.probe.clone(),
            resolve: self.resolve.clone(),
            unwind_bytes: self.unwind_bytes,
            no_self: false,
            trace: None,
            cgroups: CgroupTargets::default(),
            target: "system-wide".to_owned(),
            command: None,
            user: None,
            nice: None,
            delay: Duration::ZERO,
        }))?;
        let mut session = Session::attach_again(prepared, known)?;
        session.begin()?;
        Ok(session)
    }
}

/// A session that is attached, and has nobody yet who looks.
pub(super) struct Ready {
    options: Adjustable,
    session: Box<Session>,
    quiet: bool,
}

impl Ready {
    /// Attaches, so that what can't be done shows before anybody is served.
    pub(super) fn attach(options: Adjustable, quiet: bool) -> Result<Ready, Failure> {
        let session = options.attach(&mut None)?;
        Ok(Ready {
            options,
            session,
            quiet,
        })
    }

    /// Serves until a signal ends it, or no front serves any more. Nothing is left in the kernel then.
    pub(super) async fn run(self, hub: &mut Hub, signals: &mut Signals) -> Result<(), Failure> {
        let priority = Priority::begin();
        priority.records();
        privileges::settle(Later {
            attaches: true,
            loads_tables: true,
            mounts_tracefs: mounts_tracefs_for_children(),
            signals: true,
            writes_files: false,
            names_files: false,
            gives_files: false,
        });
        let (mut attached, mut live) = Live::new(self, LINGER, hub);
        let served = drive(&mut attached, &mut live, signals).await;
        live.line.clear();
        live.tracers.end(live.hub);
        live.detach(&mut attached);
        served
    }
}

struct Live<'h> {
    hub: &'h mut Hub,
    options: Adjustable,
    linger: Duration,
    /// What is known of processes while nothing is attached.
    known: Option<KnownProcesses>,
    /// The fronts know all processes of the session.
    announced: bool,
    /// When to take the probes out, if nobody looks until then.
    detach_at: Option<Instant>,
    /// Until when names are looked for often, because a client waits for them.
    names_until: Option<Instant>,
    /// What is sampled; none if that is not known.
    sampled: Option<(Option<Sampling>, u64)>,
    tracers: Tracers,
    line: LiveLine,
}

/// What happens besides.
enum Input {
    /// The fronts want something.
    Wish(Wish),
    /// Nobody has looked for a while.
    Unseen,
    /// It is time to look for names.
    Names,
    /// One of those that trace calls is to be seen to.
    Calls(Turn),
}

impl Driver for Live<'_> {
    type Of = Option<Box<Session>>;
    type Input = Input;
    type End = ();

    fn consumer(&mut self) -> &mut impl Consumer {
        self.hub
    }

    async fn input(&mut self) -> Input {
        tokio::select! {
            wish = self.hub.wish() => Input::Wish(wish),
            () = wait(self.detach_at) => Input::Unseen,
            () = sleep(NAMES_TICK), if self.names_until.is_some() => Input::Names,
            turn = self.tracers.due() => Input::Calls(turn),
        }
    }

    fn hear(
        &mut self,
        input: Input,
        attached: &mut Option<Box<Session>>,
    ) -> Result<Option<()>, Failure> {
        match input {
            Input::Wish(Wish::Demand(demand)) => {
                let from = now();
                let tracing = demand.tracing.clone();
                self.meet(demand, attached);
                self.hub.adjusted(from, now());
                self.tracers.meet(&tracing, self.hub);
            }
            Input::Wish(Wish::Ask(front, question)) => self.ask(front, &question, attached),
            Input::Wish(Wish::Failed(why)) => return Err(Failure::failed(why)),
            Input::Unseen => {
                log::info!("nobody is connected: nothing is attached any more");
                self.detach(attached);
            }
            Input::Names => self.find_names(attached),
            Input::Calls(turn) => self.tracers.turn(turn, self.hub),
        }
        Ok(None)
    }

    fn passed(&mut self) {
        if !std::mem::replace(&mut self.announced, true) {
            self.hub.ready();
        }
    }

    fn look(&mut self, session: &mut Session) -> Result<Option<()>, Failure> {
        self.line.update(&session.progress(0));
        Ok(None)
    }

    fn signalled(
        &mut self,
        signal: Heard,
        _: &mut Option<Box<Session>>,
    ) -> Result<Option<()>, Failure> {
        Ok(signal.ends().then_some(()))
    }
}

impl Live<'_> {
    /// Its session, which is attached, and what drives that.
    fn new(ready: Ready, linger: Duration, hub: &mut Hub) -> (Option<Box<Session>>, Live<'_>) {
        let live = Live {
            hub,
            tracers: Tracers::new(&ready.options.resolve, ready.options.calls),
            options: ready.options,
            linger,
            known: None,
            announced: false,
            detach_at: Some(Instant::now() + linger),
            names_until: None,
            sampled: Some((None, 0)),
            line: LiveLine::new(ready.quiet),
        };
        (Some(ready.session), live)
    }

    /// Does what clients want now.
    fn meet(&mut self, demand: Demand, attached: &mut Option<Box<Session>>) {
        if demand.attached {
            self.detach_at = None;
            if attached.is_none() && !self.attach(attached) {
                return;
            }
        } else if attached.is_some() {
            self.detach_at = Some(Instant::now() + self.linger);
        }
        let wanted = (demand.sampling, demand.lives);
        if let Some(session) = attached
            && self.sampled.as_ref() != Some(&wanted)
        {
            let before = self.sampled.as_ref().map(|(sampling, _)| sampling);
            let is_news = before != Some(&wanted.0);
            match session.adjust(wanted.0.as_ref(), self.hub) {
                Ok(hz) => {
                    if is_news {
                        log::info!("{}", sampling_text(wanted.0.as_ref(), hz));
                    }
                    self.sampled = Some(wanted);
                }
                Err(failure) => {
                    self.sampled = None;
                    self.line.clear();
                    log::error!("{failure}");
                    self.hub.trouble(&failure.message);
                }
            }
        }
    }

    /// Whether it could be done.
    fn attach(&mut self, attached: &mut Option<Box<Session>>) -> bool {
        self.announced = false;
        self.sampled = Some((None, 0));
        match self.options.attach(&mut self.known) {
            Ok(session) => *attached = Some(session),
            Err(failure) => {
                log::error!("{failure}; it is tried again when a client connects");
                self.hub.trouble(&failure.message);
            }
        }
        attached.is_some()
    }

    /// Takes everything out of the kernel, and passes on what was there.
    fn detach(&mut self, attached: &mut Option<Box<Session>>) {
        self.detach_at = None;
        self.names_until = None;
        let Some(mut session) = attached.take() else {
            return;
        };
        session.detach();
        session.pass(None, self.hub);
        self.known = Some(session.into_known_processes());
        self.line.clear();
        self.hub.detached();
    }

    fn ask(&mut self, front: FrontId, question: &Question, attached: &mut Option<Box<Session>>) {
        if let Place::Calls(tracing) = &question.place {
            self.tracers.flush(tracing, self.hub);
        } else if let Some(session) = attached {
            let place = &question.place;
            session.ask(
                |resolver| match place {
                    Place::Process(life, addresses) => {
                        resolver.ask_process(life.pid, life.started, addresses);
                    }
                    Place::Kernel(offsets) => resolver.ask_kernel(offsets),
                    // Has been seen to.
                    Place::Calls(_) => {}
                },
                self.hub,
            );
            self.names_until = Some(Instant::now() + NAMES_PATIENCE);
        }
        self.hub.acknowledge(front, question.id);
    }

    fn find_names(&mut self, attached: &mut Option<Box<Session>>) {
        let Some(session) = attached else {
            return;
        };
        session.pass_names(self.hub);
        let over = self.names_until.is_none_or(|until| until <= Instant::now());
        if over || session.counters().frames_waiting == 0 {
            self.names_until = None;
        }
    }
}

fn sampling_text(sampling: Option<&Sampling>, hz: Option<u64>) -> String {
    match sampling.zip(hz) {
        None => "nothing is sampled".to_owned(),
        Some((sampling, hz)) => format!(
            "sampled at {hz} Hz: processes: {}, single threads: {}",
            sampling.processes.len(),
            sampling.threads.len()
        ),
    }
}

/// Waits until then; for ever, if it is never.
async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
