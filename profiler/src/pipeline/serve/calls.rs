//! Calls that clients want traced: for each such demand a session of its own, which lasts as long as it is wanted.
//!
//! Demands of a hub -> sessions that trace and nothing else, whose batches go to whoever wants them. What one client
//! wants so never disturbs the calls of another, nor what is sampled; and when nobody wants a demand any more its
//! probes are taken out of the kernel with all else that it had there. What is awaited has no session until its process
//! maps a file that has it, which is looked at now and then. What does not belong here: sampling (`live`), which functions
//! are chosen (`tracer`).

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::error::Failure;
use profiler_model::raw::FileIdentity;
use profiler_model::{Batch, Consumer, Event, Tracing};
use profiler_object::has_markers;
use profiler_probe::ProbeOptions;
use profiler_resolve::objects::{Finder, mapped};
use profiler_resolve::{EpochLimits, ResolveOptions};
use profiler_serve::hub::Hub;
use profiler_target::Filter;
use profiler_trace::pattern::{PatternError, Selection};
use profiler_trace::place::{ProbeAt, Returns};

use super::super::containers::CgroupTargets;
use super::super::prepare::{Prepared, Watch};
use super::super::session::{Due, Session};
use super::super::tracer::TraceRequest;

/// Demands at a time. Each has programs and buffers of its own in the kernel.
const MOST: usize = 16;
/// Of those that are awaited, and have come.
const MOST_AWAITED: usize = 64;
/// Memory for the buffers of one, between kernel and profiler.
const BUFFER_BYTES: usize = 8 << 20;
/// The same of those that are awaited, which are rare.
const AWAITED_BUFFER_BYTES: usize = 1 << 20;
/// How often it is looked whether what is awaited has come.
const LOOK: Duration = Duration::from_secs(1);
/// Longest string kept of an argument.
const TEXT_BYTES: usize = 256;
/// Memory for definitions of an epoch.
const EPOCH_BYTES: u64 = 16 << 20;

/// How calls are traced, whoever wants it.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Share of the target's time that tracing may take; none: no limit.
    pub budget: Option<f64>,
}

/// The sessions that trace.
pub(super) struct Tracers {
    resolve: ResolveOptions,
    limits: CallLimits,
    running: Vec<(Tracing, Box<Session>)>,
    /// Those that could not be begun: they are not tried again while they are wanted.
    refused: BTreeSet<Tracing>,
    /// Those that wait for a file to be mapped, with what was mapped when it was looked last.
    awaited: Vec<(Tracing, Vec<FileIdentity>)>,
    /// When it is looked again.
    look_at: Instant,
    /// Whose turn it is to be seen to first.
    first: usize,
}

/// What is to be seen to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// One of the sessions.
    Session(usize, Due),
    /// What is awaited may have come.
    Look,
}

impl Tracers {
    pub(super) fn new(resolve: &ResolveOptions, limits: CallLimits) -> Tracers {
        Tracers {
            resolve: ResolveOptions {
                epoch_limits: EpochLimits {
                    duration_ns: u64::MAX,
                    bytes: u64::MAX,
                    definition_bytes: EPOCH_BYTES,
                },
                keep_code: false,
                threads: true,
                ..resolve.clone()
            },
            limits,
            running: Vec::new(),
            refused: BTreeSet::new(),
            awaited: Vec::new(),
            look_at: Instant::now(),
            first: 0,
        }
    }

    /// Traces this and nothing else from now on.
    pub(super) fn meet(&mut self, wanted: &BTreeSet<Tracing>, hub: &mut Hub) {
        self.refused.retain(|refused| wanted.contains(refused));
        self.awaited.retain(|(awaited, _)| wanted.contains(awaited));
        let running = std::mem::take(&mut self.running);
        for (tracing, session) in running {
            match wanted.contains(&tracing) {
                true => self.running.push((tracing, session)),
                false => end(&tracing, session, hub),
            }
        }
        for tracing in wanted {
            let is_known = self.running.iter().any(|(running, _)| running == tracing);
            if is_known || self.refused.contains(tracing) {
                continue;
            }
            if tracing.awaited {
                if !self.awaited.iter().any(|(known, _)| known == tracing) {
                    self.find(tracing.clone());
                }
                continue;
            }
            match self.begin(tracing) {
                Ok(session) => {
                    log::info!("calls of process {} are traced", tracing.process);
                    self.running.push((tracing.clone(), session));
                }
                Err(failure) => {
                    log::warn!("process {} is not traced: {failure}", tracing.process);
                    self.refused.insert(tracing.clone());
                    hub.untraced(tracing, &failure.message);
                }
            }
        }
    }

    /// Begins what is awaited if it is there; else it goes on to be awaited.
    fn find(&mut self, tracing: Tracing) {
        let mapped = mapped(tracing.process);
        let patterns = tracing.functions.iter();
        let providers: Vec<&str> = patterns.filter_map(|text| provider(text)).collect();
        let objects = Finder::default().objects_of(tracing.process);
        let is_there = objects.is_ok_and(|objects| {
            let mut objects = objects.iter();
            objects.any(|it| providers.iter().any(|own| has_markers(&it.file, own)))
        });
        if is_there {
            match self.begin(&tracing) {
                Ok(session) => {
                    log::info!("markers of process {} are watched", tracing.process);
                    self.running.push((tracing, session));
                    return;
                }
                Err(failure) => {
                    let process = tracing.process;
                    log::warn!("markers of process {process} are not watched: {failure}");
                }
            }
        }
        self.awaited.push((tracing, mapped));
    }

    /// Looks whether what is awaited has come: only what has mapped other files is looked at closely.
    fn look(&mut self) {
        self.look_at = Instant::now() + LOOK;
        for (tracing, before) in std::mem::take(&mut self.awaited) {
            match mapped(tracing.process) == before {
                true => self.awaited.push((tracing, before)),
                false => self.find(tracing),
            }
        }
    }

    fn begin(&self, tracing: &Tracing) -> Result<Box<Session>, Failure> {
        let most = match tracing.awaited {
            true => MOST_AWAITED,
            false => MOST,
        };
        let like = self.running.iter();
        if like.filter(|(it, _)| it.awaited == tracing.awaited).count() >= most {
            return Err(Failure::failed(format!(
                "{most} sets of functions are traced already, which is the most"
            )));
        }
        let include = tracing.functions.iter().map(|text| text.parse());
        let include: Result<Vec<_>, PatternError> = include.collect();
        let request = TraceRequest {
            selection: Selection {
                include: include.map_err(|error| Failure::failed(error.to_string()))?,
                exclude: Vec::new(),
                sources: Vec::new(),
            },
            filter: None,
            at: ProbeAt::Cheapest,
            returns: Returns::Auto,
            arguments: tracing.values.then_some(TEXT_BYTES),
            budget: self.limits.budget,
            min_duration: Duration::ZERO,
            max_depth: 0,
            max_rate: 0,
            follow_exact: false,
            yes: false,
        };
        let prepared = Prepared::new(Box::new(Watch {
            probe: ProbeOptions {
                sources: Vec::new(),
                calls: None,
                filter: Filter {
                    pids: vec![tracing.process],
                    ..Filter::default()
                },
                hierarchy: None,
                buffer_bytes: match tracing.awaited {
                    true => AWAITED_BUFFER_BYTES,
                    false => BUFFER_BYTES,
                },
                kernel_stacks: false,
                user_stacks: false,
                unwind: None,
                kernel_log: false,
                off_cpu: false,
                adjustable: false,
            },
            resolve: self.resolve.clone(),
            unwind_bytes: None,
            no_self: false,
            trace: Some(request),
            cgroups: CgroupTargets::default(),
            target: format!("pid {}", tracing.process),
            command: None,
            user: None,
            nice: None,
            delay: Duration::ZERO,
        }))?;
        prepared.are_there()?;
        let mut session = Session::attach(prepared)?;
        session.begin()?;
        Ok(session)
    }

    /// Waits until one is to be seen to. May be dropped while it waits.
    pub(super) async fn due(&mut self) -> Turn {
        let (awaits, look_at) = (!self.awaited.is_empty(), self.look_at);
        let look = async move {
            match awaits {
                true => sleep_until(look_at).await,
                false => std::future::pending().await,
            }
        };
        let count = self.running.len();
        self.first = (self.first + 1) % count.max(1);
        let first = self.first;
        let sessions = self.running.iter_mut();
        let mut waits: Vec<_> = sessions
            .map(|(_, session)| Box::pin(session.due()))
            .collect();
        let due = poll_fn(|context| {
            for index in (first..count).chain(0..first) {
                if let Poll::Ready(due) = waits[index].as_mut().poll(context) {
                    return Poll::Ready(Turn::Session(index, due));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            turn = pin!(due) => turn,
            () = look => Turn::Look,
        }
    }

    /// Sees to one.
    pub(super) fn turn(&mut self, turn: Turn, hub: &mut Hub) {
        let Turn::Session(index, due) = turn else {
            return self.look();
        };
        let Some((tracing, session)) = self.running.get_mut(index) else {
            return;
        };
        if let Some(until) = session.take_in(due) {
            let tracing = tracing.clone();
            self.hits_first(&tracing, hub);
            if let Some((tracing, session)) = self.running.get_mut(index) {
                session.pass(Some(until), &mut Traced { tracing, hub });
            }
        }
        let Some((_, session)) = self.running.get_mut(index) else {
            return;
        };
        if due != Due::Tick {
            return;
        }
        // What comes of files that are mapped later is said in the log.
        session.news();
        if let Ok(Some(_)) | Err(_) = session.gone() {
            let (tracing, session) = self.running.remove(index);
            self.hits_first(&tracing, hub);
            end(&tracing, session, hub);
            self.refused.insert(tracing.clone());
            hub.untraced(&tracing, "the process has ended");
        }
    }

    /// Hands over all calls that were made up to now, and says what is missing of them.
    pub(super) fn flush(&mut self, tracing: &Tracing, hub: &mut Hub) {
        let mut running = self.running.iter();
        let Some(index) = running.position(|(running, _)| running == tracing) else {
            return;
        };
        self.running[index].1.take_in_all();
        self.hits_first(tracing, hub);
        self.running[index]
            .1
            .pass(None, &mut Traced { tracing, hub });
    }

    /// Hands over the markers that the process of these calls has passed: they decide what becomes of the calls behind
    /// them, so none may come later than such a call. The calls are taken in already.
    fn hits_first(&mut self, calls: &Tracing, hub: &mut Hub) {
        for (tracing, session) in &mut self.running {
            if tracing.awaited && !calls.awaited && tracing.process == calls.process {
                session.take_in(Due::Buffers);
                session.pass(None, &mut Traced { tracing, hub });
            }
        }
    }

    /// Takes all of them out of the kernel.
    pub(super) fn end(&mut self, hub: &mut Hub) {
        self.meet(&BTreeSet::new(), hub);
    }
}

/// Whose markers a pattern names.
fn provider(pattern: &str) -> Option<&str> {
    let (provider, _) = pattern.strip_prefix("usdt:")?.split_once(':')?;
    Some(provider)
}

/// Takes one out of the kernel, and hands over what was still there.
fn end(tracing: &Tracing, mut session: Box<Session>, hub: &mut Hub) {
    session.detach();
    session.pass(None, &mut Traced { tracing, hub });
    log::info!("calls of process {} are traced no more", tracing.process);
}

/// Where the batches of one go.
struct Traced<'h> {
    tracing: &'h Tracing,
    hub: &'h mut Hub,
}

impl Consumer for Traced<'_> {
    fn wants_new_epoch(&self) -> bool {
        false
    }

    fn spare(&self) -> Option<Vec<Event>> {
        None
    }

    fn send(&mut self, batch: Batch) -> u64 {
        self.hub.traced(self.tracing, &batch)
    }
}
