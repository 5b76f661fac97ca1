//! A capture into a hub: all at once, or in the time in which it happened.
//!
//! Batches of a capture -> the hub, as fast as it has room. Timed, the time of the capture goes by
//! as ours does, times a factor, while somebody looks. There is nothing to ask that the capture has
//! not said. What does not belong here: reading captures, what clients are told.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Failure;
use profiler_capture::{Batches, Reader};
use profiler_model::{Consumer, Timestamp};
use profiler_serve::front::Awaited;
use profiler_serve::hub::{Hub, Wish};

use super::super::drive::{Next, Player, play};
use super::super::signals::{Heard, Signals};
use super::Say;

/// Most events of a batch.
const BATCH: usize = 1024;

/// A capture that is open.
pub(super) struct Opened {
    reader: Reader,
}

impl Opened {
    /// Opens it.
    pub(super) fn open(path: &Path) -> Result<Opened, Failure> {
        Ok(Opened {
            reader: Reader::open(path)?,
        })
    }

    /// Serves it until a signal ends that, or no front serves any more.
    pub(super) async fn run(
        mut self,
        speed: Option<f64>,
        hub: &mut Hub,
        signals: &mut Signals,
        say: Say,
    ) -> Result<(), Failure> {
        let name = self.reader.path().display().to_string();
        let tables = self.reader.load_tables()?;
        let batches = Batches::new(self.reader, &tables)?;
        let over = |batches: &Batches<'_>| {
            for damage in batches.damage() {
                log::warn!("{name}: {damage}");
            }
            say.line(match speed {
                Some(_) => "the capture is at its end; contexts stay as they are until Ctrl-C",
                None => "all of the capture is there; it is served until Ctrl-C",
            });
        };
        play(&mut Replay::new(batches, speed, hub, &over), signals).await
    }
}

struct Replay<'r> {
    hub: &'r mut Hub,
    batches: Batches<'r>,
    pace: Pace,
    /// The fronts know what was there at the beginning.
    begun: bool,
    /// All of it was passed on.
    is_over: bool,
    /// What is done then.
    over: &'r dyn Fn(&Batches<'_>),
}

impl<'r> Replay<'r> {
    fn new(
        batches: Batches<'r>,
        speed: Option<f64>,
        hub: &'r mut Hub,
        over: &'r dyn Fn(&Batches<'_>),
    ) -> Replay<'r> {
        let from = batches.begin();
        Replay {
            hub,
            batches,
            pace: Pace::new(from, speed, Instant::now()),
            begun: false,
            is_over: false,
            over,
        }
    }
}

impl Player for Replay<'_> {
    type Input = Wish;
    type End = ();
    const TICK: Duration = Duration::from_millis(20);

    fn look(&mut self) -> Result<Option<()>, Failure> {
        if !self.is_over && self.begun && self.batches.next_at().is_none() {
            self.is_over = true;
            (self.over)(&self.batches);
        }
        Ok(None)
    }

    fn next(&self) -> Next {
        let until = self.pace.at();
        match (self.begun, self.batches.next_at()) {
            // Nothing of what happens.
            (false, _) => Next::Until(Timestamp(0)),
            (true, Some(at)) if at <= until => Next::Until(until),
            (true, Some(_)) => Next::Later,
            (true, None) => Next::Never,
        }
    }

    fn room(&self) -> Awaited<'static, ()> {
        Box::pin(self.hub.room())
    }

    async fn input(&mut self) -> Wish {
        self.hub.wish().await
    }

    fn hear(&mut self, wish: Wish) -> Result<Option<()>, Failure> {
        match wish {
            Wish::Demand(demand) => self.pace.run(demand.attached, Instant::now()),
            Wish::Ask(front, question) => self.hub.acknowledge(front, question.id),
            Wish::Failed(why) => return Err(Failure::failed(why)),
        }
        Ok(None)
    }

    fn signalled(&mut self, signal: Heard) -> Option<()> {
        signal.ends().then_some(())
    }

    fn go_by(&mut self) {
        self.pace.go_by(Instant::now());
    }

    fn send(&mut self, until: Timestamp) -> Result<(), Failure> {
        if self.hub.wants_new_epoch() {
            self.batches.begin_epoch();
        }
        // The first batch defines all that the capture has seen at all.
        let most = if self.begun { BATCH } else { 0 };
        let batch = self.batches.take(until, most)?;
        self.hub.send(batch);
        self.begun = true;
        let is_timed = self.pace.speed.is_some();
        if is_timed || self.batches.next_at().is_none() {
            self.hub.ready();
        }
        Ok(())
    }
}

/// How the time of a capture goes by.
#[derive(Debug)]
struct Pace {
    /// How far it has come.
    at: Timestamp,
    /// When that was, by our clock.
    seen: Instant,
    /// None: all of it has gone by.
    speed: Option<f64>,
    runs: bool,
}

impl Pace {
    fn new(from: Timestamp, speed: Option<f64>, now: Instant) -> Pace {
        Pace {
            at: match speed {
                Some(_) => from,
                None => Timestamp(u64::MAX),
            },
            seen: now,
            speed,
            runs: false,
        }
    }

    /// Where it was when that was looked at last.
    fn at(&self) -> Timestamp {
        self.at
    }

    /// Lets it go by as ours has.
    fn go_by(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.seen).as_nanos() as f64;
        self.seen = now;
        if let (true, Some(speed)) = (self.runs, self.speed) {
            let passed = (passed * speed) as u64;
            self.at = Timestamp(self.at.0.saturating_add(passed));
        }
    }

    /// From now on it goes by, or stands still.
    fn run(&mut self, runs: bool, now: Instant) {
        self.go_by(now);
        self.runs = runs;
    }
}

#[cfg(test)]
mod tests;
