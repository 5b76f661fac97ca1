//! A capture into an agent: as fast as HQ takes it, or in the time in which it happened.
//!
//! Batches of a capture -> the agent. A pause stands still; what a suspension covers is left out, and
//! lasts as long as it took when it was recorded. What does not belong here: reading captures.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Failure;
use profiler_capture::{Batches, Reader};
use profiler_model::{Event, Timestamp};
use profiler_serve::bytefrog::{Agent, AgentOptions, Order};
use profiler_serve::front::Awaited;
use profiler_wire::bytefrog::Mode;

use super::super::drive::{Next, Player, play};
use super::super::signals::{Heard, Signals};
use super::{
    FINISH_DEADLINE, Streamed, Waited, Waiter, start_agent, unless_interrupted, wait_for_start,
};

/// Most events of a batch.
const BATCH: usize = 1024;

/// Plays a capture into an agent until it is over or HQ ends it.
pub(super) async fn stream(
    agent: AgentOptions,
    capture: &Path,
    speed: Option<f64>,
    duration: Option<Duration>,
    mut signals: Signals,
) -> Result<Streamed, Failure> {
    let mut reader = Reader::open(capture)?;
    let tables = reader.load_tables()?;
    let batches = Batches::new(reader, &tables)?;
    let from = batches.begin();
    let samples = agent.samples;
    let waiter = Waiter {
        hq: agent.address.clone(),
        until_then: "nothing is sent",
        never: "nothing was sent",
    };
    let mut agent = start_agent(agent)?;
    let waited = wait_for_start(&mut agent, &waiter, &mut signals, || Ok(())).await?;
    let Waited::Started(start) = waited else {
        return Ok(waited.nothing());
    };
    agent.begin(from);
    let began = Instant::now();
    let mut replay = Replay {
        agent,
        batches,
        mode: Mode::Tracing,
        samples,
        found: false,
        at: from,
        seen: began,
        speed,
        ends_at: duration.map(|duration| began + duration),
    };
    if start.suspended {
        replay.suspend();
    }
    replay.agent.report(replay.mode);
    let asked = play(&mut replay, &mut signals).await?;
    for damage in replay.batches.damage() {
        log::warn!("{}: {damage}", capture.display());
    }
    if !replay.found && replay.batches.next_at().is_none() {
        log::warn!("{} {}", capture.display(), nothing_in_it(samples));
    }
    let elapsed = began.elapsed();
    let finishing = replay.agent.finish(replay.at, FINISH_DEADLINE);
    let sent = unless_interrupted(finishing, asked, &mut signals).await??;
    Ok(Streamed {
        sent: Some(sent),
        elapsed,
        ..Streamed::nothing()
    })
}

/// Why a capture came to no calls.
fn nothing_in_it(samples: bool) -> &'static str {
    match samples {
        true => "holds no samples that calls could be inferred from; leave --from-samples out",
        false => {
            "holds no traced calls; have them inferred by --from-samples, or record with --trace"
        }
    }
}

struct Replay<'t> {
    agent: Agent,
    batches: Batches<'t>,
    mode: Mode,
    /// Calls are inferred from samples.
    samples: bool,
    /// There was something that calls come of.
    found: bool,
    /// How far it has come, in the time of the recording.
    at: Timestamp,
    /// When that was, by our clock.
    seen: Instant,
    speed: Option<f64>,
    ends_at: Option<Instant>,
}

impl Player for Replay<'_> {
    type Input = Order;
    /// Whether a person asked for it.
    type End = bool;
    const TICK: Duration = Duration::from_millis(10);

    fn look(&mut self) -> Result<Option<bool>, Failure> {
        if self.mode == Mode::Suspended {
            self.found |= self.batches.skip(self.at)? > 0;
        }
        let is_over =
            self.batches.next_at().is_none() || self.ends_at.is_some_and(|at| at <= Instant::now());
        Ok(is_over.then_some(false))
    }

    fn next(&self) -> Next {
        let until = match (self.mode, self.speed) {
            (Mode::Tracing, None) => Timestamp(u64::MAX),
            (Mode::Tracing, Some(_)) => self.at,
            _ => return Next::Later,
        };
        match self.batches.next_at() {
            Some(at) if at <= until => Next::Until(until),
            _ => Next::Later,
        }
    }

    fn room(&self) -> Awaited<'static, ()> {
        Box::pin(self.agent.has_room())
    }

    async fn input(&mut self) -> Order {
        self.agent.order().await
    }

    fn hear(&mut self, order: Order) -> Result<Option<bool>, Failure> {
        Ok(self.obey(order)?.then_some(false))
    }

    fn signalled(&mut self, signal: Heard) -> Option<bool> {
        signal.ends().then_some(true)
    }

    fn go_by(&mut self) {
        let now = Instant::now();
        let passed = (now - self.seen).as_nanos() as f64;
        self.seen = now;
        self.at = match (self.mode, self.speed) {
            (Mode::Paused, _) | (Mode::Tracing, None) => self.at,
            (_, speed) => Timestamp(
                self.at
                    .0
                    .saturating_add((passed * speed.unwrap_or(1.0)) as u64),
            ),
        };
    }

    fn send(&mut self, until: Timestamp) -> Result<(), Failure> {
        if self.agent.wants_new_epoch() {
            self.batches.begin_epoch();
        }
        let batch = self.batches.take(until, BATCH)?;
        if let Some(last) = batch.events.last() {
            self.at = self.at.max(last.at());
        }
        self.found |= batch.events.iter().any(|event| match event {
            Event::Sample(_) => self.samples,
            Event::Call(_) => !self.samples,
            _ => false,
        });
        self.agent.send(batch);
        Ok(())
    }
}

impl Replay<'_> {
    /// Whether it is to end.
    fn obey(&mut self, order: Order) -> Result<bool, Failure> {
        match order {
            Order::Stop => return Ok(true),
            Order::Lost(error) => return Err(error.into()),
            Order::Pause => {
                self.go_by();
                self.mode = Mode::Paused;
            }
            Order::Unpause => {
                self.go_by();
                self.mode = Mode::Tracing;
            }
            Order::Suspend => self.suspend(),
            Order::Unsuspend => {
                self.go_by();
                self.found |= self.batches.skip(self.at)? > 0;
                self.agent.resume(self.at);
                self.mode = Mode::Tracing;
            }
            Order::Configure(_) | Order::Start => return Ok(false),
        }
        self.agent.report(self.mode);
        Ok(false)
    }

    fn suspend(&mut self) {
        self.go_by();
        self.agent.suspend(self.at);
        self.mode = Mode::Suspended;
    }
}
