//! A capture into a hub: all at once, or in the time in which it happened.
//!
//! Batches of a capture -> the hub, as fast as it has room. Timed, the time of the capture goes by
//! as ours does, times a factor, while somebody looks. There is nothing to ask that the capture has
//! not said. What does not belong here: reading captures, what clients are told.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::Failure;
use profiler_capture::{Batches, Reader};
use profiler_model::{Consumer, Tables, Timestamp};
use profiler_serve::hub::{Hub, Wish};

use super::super::signals::Signals;
use super::{Say, ended};

/// Most events of a batch.
const BATCH: usize = 1024;
/// How often it is looked what is due.
const TICK: Duration = Duration::from_millis(20);

/// A capture that can be read.
pub(super) struct Opened {
    path: PathBuf,
    reader: Reader,
    tables: Tables,
}

impl Opened {
    /// Opens it and reads what it defines.
    pub(super) fn open(path: &Path) -> Result<Opened, Failure> {
        let mut reader = Reader::open(path)?;
        let tables = reader.load_tables()?;
        Ok(Opened {
            path: path.to_owned(),
            reader,
            tables,
        })
    }

    /// Serves it until a signal ends that, or no front serves any more.
    pub(super) async fn run(
        self,
        speed: Option<f64>,
        hub: &mut Hub,
        signals: &mut Signals,
        say: Say,
    ) -> Result<(), Failure> {
        let name = self.path.display().to_string();
        let batches = Batches::new(self.reader, &self.tables)?;
        let mut replay = Replay::new(batches, speed);
        let over = |replay: &Replay<'_>| {
            for damage in replay.batches.damage() {
                log::warn!("{name}: {damage}");
            }
            say.line(match speed {
                Some(_) => "the capture is at its end; contexts stay as they are until Ctrl-C",
                None => "all of the capture is there; it is served until Ctrl-C",
            });
        };
        tokio::select! {
            served = replay.drive(hub, over) => served,
            () = ended(signals) => Ok(()),
        }
    }
}

struct Replay<'t> {
    batches: Batches<'t>,
    pace: Pace,
    /// The fronts know what was there at the beginning.
    begun: bool,
}

impl<'t> Replay<'t> {
    fn new(batches: Batches<'t>, speed: Option<f64>) -> Replay<'t> {
        let from = batches.begin();
        Replay {
            batches,
            pace: Pace::new(from, speed, Instant::now()),
            begun: false,
        }
    }

    /// Goes on until no front serves any more. May be dropped while it waits.
    async fn drive(&mut self, hub: &mut Hub, over: impl Fn(&Replay<'t>)) -> Result<(), Failure> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_over = false;
        loop {
            let due = self.due();
            let room = hub.room();
            tokio::select! {
                // Wishes go before events.
                biased;
                wish = hub.wish() => match wish {
                    Wish::Demand(demand) => self.pace.run(demand.attached, Instant::now()),
                    Wish::Ask(front, question) => hub.acknowledge(front, question.id),
                    Wish::Failed(why) => return Err(Failure::failed(why)),
                },
                () = room, if due.is_some() => self.send(due, hub)?,
                _ = tick.tick(), if due.is_none() && !is_over => self.pace.go_by(Instant::now()),
            }
            if !is_over && self.begun && self.batches.next_at().is_none() {
                is_over = true;
                over(self);
            }
        }
    }

    /// Until when events are due, if any is, or what was there at the beginning.
    fn due(&self) -> Option<Timestamp> {
        let until = self.pace.at();
        match (self.begun, self.batches.next_at()) {
            // Nothing of what happens.
            (false, _) => Some(Timestamp(0)),
            (true, Some(at)) if at <= until => Some(until),
            (true, _) => None,
        }
    }

    /// Passes on a batch.
    fn send(&mut self, until: Option<Timestamp>, hub: &mut Hub) -> Result<(), Failure> {
        let Some(until) = until else { return Ok(()) };
        if hub.wants_new_epoch() {
            self.batches.begin_epoch();
        }
        // The first batch defines all that the capture has seen at all.
        let most = if self.begun { BATCH } else { 0 };
        let batch = self.batches.take(until, most)?;
        hub.send(batch);
        self.begun = true;
        let is_timed = self.pace.speed.is_some();
        if is_timed || self.batches.next_at().is_none() {
            hub.ready();
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
