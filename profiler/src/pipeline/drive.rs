//! The loops of all that takes batches: a session is drained, or a capture is played, until something ends it.
//!
//! A session and a [`Driver`] -> what ended it: a recording, a stream and servers are drivers of the same walk,
//! each with its own reasons to end. A capture in the hands of a [`Player`] -> the same, in the time that it takes.
//! What does not belong here: those reasons, beginnings and ends.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::session::{Due, Session};
use super::signals::{Heard, Signals};
use crate::error::Failure;
use profiler_model::{Consumer, Timestamp};
use profiler_serve::front::Awaited;

/// What a driver drives: a session, or one that comes and goes.
pub(super) trait Drivable {
    /// The session, if there is one now.
    fn session(&mut self) -> Option<&mut Session>;
}

impl Drivable for Session {
    fn session(&mut self) -> Option<&mut Session> {
        Some(self)
    }
}

impl Drivable for Option<Box<Session>> {
    fn session(&mut self) -> Option<&mut Session> {
        self.as_deref_mut()
    }
}

/// Who is driven by a session, and when that ends. Anything that a method returns beside an error ends it.
pub(super) trait Driver {
    /// What it drives.
    type Of: Drivable;
    /// What comes to it besides.
    type Input;
    /// Why it ends.
    type End;

    /// Where batches go.
    fn consumer(&mut self) -> &mut impl Consumer;
    /// What comes besides; waits for it. May be dropped while it waits.
    async fn input(&mut self) -> Self::Input;
    /// That has come.
    fn hear(&mut self, input: Self::Input, of: &mut Self::Of)
    -> Result<Option<Self::End>, Failure>;
    /// Batches were passed on.
    fn passed(&mut self) {}
    /// Some time has passed: shows how it goes, looks at what may end it.
    fn look(&mut self, session: &mut Session) -> Result<Option<Self::End>, Failure>;
    /// A person or another program wants something.
    fn signalled(&mut self, signal: Heard, of: &mut Self::Of)
    -> Result<Option<Self::End>, Failure>;
}

/// Drives until something ends it.
pub(super) async fn drive<D: Driver>(
    of: &mut D::Of,
    driver: &mut D,
    signals: &mut Signals,
) -> Result<D::End, Failure> {
    loop {
        let end = tokio::select! {
            due = due(of) => turn(due, of, driver)?,
            input = driver.input() => driver.hear(input, of)?,
            signal = signals.next() => driver.signalled(signal, of)?,
        };
        if let Some(end) = end {
            return Ok(end);
        }
    }
}

/// Waits for something that a session is to see to.
async fn due(of: &mut impl Drivable) -> Due {
    match of.session() {
        Some(session) => session.due().await,
        None => std::future::pending().await,
    }
}

fn turn<D: Driver>(due: Due, of: &mut D::Of, driver: &mut D) -> Result<Option<D::End>, Failure> {
    let Some(session) = of.session() else {
        return Ok(None);
    };
    if let Some(until) = session.take_in(due) {
        session.pass(Some(until), driver.consumer());
        driver.passed();
    }
    match due {
        Due::Tick => driver.look(session),
        Due::Buffers | Due::Answers | Due::Opening => Ok(None),
    }
}

/// When a player has something to pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Now: what happened until then.
    Until(Timestamp),
    /// When more time has gone by.
    Later,
    /// Not by itself.
    Never,
}

/// Who plays a capture. What it returns beside errors ends it, if it is something.
pub(super) trait Player {
    /// What comes to it besides.
    type Input;
    /// Why it ends.
    type End;
    /// How often it is looked what is due.
    const TICK: Duration;

    /// What became of it so far may end it. Asked before each turn.
    fn look(&mut self) -> Result<Option<Self::End>, Failure>;
    /// What is due.
    fn next(&self) -> Next;
    /// Waits until a batch finds room. May be dropped while it waits.
    fn room(&self) -> Awaited<'static, ()>;
    /// Passes on a batch of what happened until then.
    fn send(&mut self, until: Timestamp) -> Result<(), Failure>;
    /// Lets the time of the capture go by as ours has.
    fn go_by(&mut self);
    /// What comes besides; waits for it. May be dropped while it waits.
    async fn input(&mut self) -> Self::Input;
    /// That has come.
    fn hear(&mut self, input: Self::Input) -> Result<Option<Self::End>, Failure>;
    /// A person or another program wants something.
    fn signalled(&mut self, signal: Heard) -> Option<Self::End>;
}

/// Plays until something ends it.
pub(super) async fn play<P: Player>(
    player: &mut P,
    signals: &mut Signals,
) -> Result<P::End, Failure> {
    let mut tick = interval(P::TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(end) = player.look()? {
            return Ok(end);
        }
        let next = player.next();
        let room = player.room();
        let end = tokio::select! {
            // Signals go before orders, and these before events.
            biased;
            signal = signals.next() => player.signalled(signal),
            input = player.input() => player.hear(input)?,
            () = room, if matches!(next, Next::Until(_)) => {
                if let Next::Until(until) = next {
                    player.send(until)?;
                }
                None
            }
            _ = tick.tick(), if next == Next::Later => {
                player.go_by();
                None
            }
        };
        if let Some(end) = end {
            return Ok(end);
        }
    }
}
