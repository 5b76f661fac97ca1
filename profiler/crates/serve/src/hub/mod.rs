//! Many fronts at one session: batches of the session -> each front's own; orders of all -> one demand.
//!
//! ```text
//! session -- batches --> Hub: Lives (who is who), a Share for each front -- batches --> fronts
//!    ^                                                                                    |
//!    +---- Wish: the union of all demands, questions ---------------- orders ------------+
//! ```
//! All fronts are told all definitions and what processes become, whatever they demand: who begins to look
//! later knows what is there. Of samples each gets those of its own targets, at its own rate (`share`). A front
//! that is too slow loses events by itself, in its own queue, which says how many; when many definitions wait
//! there, ids begin anew for all, and with them all tables.
//!
//! Nothing here blocks. What does not belong here: what carries a demand out (`pipeline`), how a front
//! serves.

mod lives;
mod share;

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use self::lives::Lives;
use self::share::Share;
use crate::front::{Awaited, Front, Order, Question};
use profiler_model::{Batch, Consumer, Demand, Event, Sampling, Timestamp, Tracing};

/// What the fronts want of whoever runs the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// All of them together want this from now on. When it is carried out, the hub is told:
    /// [`Hub::adjusted`].
    Demand(Demand),
    /// One asks what is at these places.
    Ask(FrontId, Question),
    /// None serves any more, and why the last one does not. Comes once, nothing follows.
    Failed(String),
}

/// One of the fronts of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontId(usize);

/// The fronts of one session, and what each of them has demanded.
pub struct Hub {
    seats: Vec<Seat>,
    lives: Lives,
    /// Who is listened to first.
    first: usize,
    /// How often a front has said that who has an id may have changed.
    changes: u64,
}

struct Seat {
    id: FrontId,
    front: Box<dyn Front>,
    demand: Demand,
    share: Share,
}

impl Hub {
    /// Of these fronts. Until the first [`Hub::adjusted`] each gets all there is.
    pub fn new(fronts: Vec<Box<dyn Front>>) -> Hub {
        let seats = fronts.into_iter().enumerate().map(|(index, front)| Seat {
            id: FrontId(index),
            front,
            demand: Demand::default(),
            share: Share::new(),
        });
        Hub {
            seats: seats.collect(),
            lives: Lives::default(),
            first: 0,
            changes: 0,
        }
    }

    /// What people are told when the fronts have started.
    pub fn welcomes(&self) -> Vec<String> {
        self.seats.iter().map(|seat| seat.front.welcome()).collect()
    }

    /// What is wanted next; waits for it. Cancel-safe. A front that fails leaves the others alone.
    pub async fn wish(&mut self) -> Wish {
        let (index, order) = self.order().await;
        match order {
            Order::Ask(question) => Wish::Ask(self.seats[index].id, question),
            Order::Demand(demand) => {
                let seat = &mut self.seats[index];
                self.changes += u64::from(seat.demand.lives != demand.lives);
                seat.demand = demand;
                Wish::Demand(self.demand())
            }
            Order::Failed(why) if self.seats.len() == 1 => Wish::Failed(why),
            Order::Failed(why) => {
                log::error!("{why}; others are served on");
                self.seats.remove(index);
                Wish::Demand(self.demand())
            }
        }
    }

    /// The next order, and whose it is. Each is listened to first in turn.
    async fn order(&mut self) -> (usize, Order) {
        let count = self.seats.len();
        self.first = (self.first + 1) % count.max(1);
        let first = self.first;
        let fronts = self.seats.iter_mut().map(|seat| seat.front.order());
        let mut waits: Vec<Awaited<'_, Order>> = fronts.collect();
        poll_fn(|context: &mut Context<'_>| {
            for index in (first..count).chain(0..first) {
                if let Poll::Ready(order) = waits[index].as_mut().poll(context) {
                    return Poll::Ready((index, order));
                }
            }
            Poll::Pending
        })
        .await
    }

    fn demand(&self) -> Demand {
        let mut sampling: Option<Sampling> = None;
        for wanted in self
            .seats
            .iter()
            .filter_map(|it| it.demand.sampling.as_ref())
        {
            match &mut sampling {
                Some(all) => all.join(wanted),
                None => sampling = Some(wanted.clone()),
            }
        }
        Demand {
            attached: self.seats.iter().any(|seat| seat.demand.attached),
            sampling,
            tracing: self
                .seats
                .iter()
                .flat_map(|seat| seat.demand.tracing.iter().cloned())
                .collect(),
            lives: self.changes,
        }
    }

    /// What was wished for has become so in this time, and what was before that has been sent: from now on each
    /// front gets what it has demanded.
    pub fn adjusted(&mut self, from: Timestamp, to: Timestamp) {
        let all = self.demand().sampling;
        for seat in &mut self.seats {
            let wanted = seat.demand.sampling.as_ref();
            seat.share.set(wanted, all.as_ref(), (from, to));
            seat.front.adjusted(&seat.demand);
        }
    }

    /// A question was answered, as far as it will be at once.
    pub fn acknowledge(&mut self, front: FrontId, question: u64) {
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.id == front) {
            seat.front.acknowledge(question);
        }
    }

    /// Hands over calls that were traced for a demand, to those who want them. The ids of the batch are of a stream
    /// of its own, with its own epochs.
    pub fn traced(&mut self, tracing: &Tracing, batch: &Batch) -> u64 {
        let wanting = self.seats.iter_mut();
        let wanting = wanting.filter(|seat| seat.demand.tracing.contains(tracing));
        wanting
            .map(|seat| seat.front.traced(tracing, batch.clone()))
            .sum()
    }

    /// These calls can't be traced, or not any longer, because of this.
    pub fn untraced(&mut self, tracing: &Tracing, text: &str) {
        let wanting = self.seats.iter_mut();
        for seat in wanting.filter(|seat| seat.demand.tracing.contains(tracing)) {
            seat.front.untraced(tracing, text);
        }
    }

    /// All processes have been announced.
    pub fn ready(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.front.ready());
    }

    /// Nothing is attached any more.
    pub fn detached(&mut self) {
        self.seats.iter_mut().for_each(|it| it.front.detached());
    }

    /// Nothing can be attached, or sampled, because of this.
    pub fn trouble(&mut self, text: &str) {
        self.seats.iter_mut().for_each(|it| it.front.trouble(text));
    }

    /// Waits until a batch finds room with all of them. Cancel-safe.
    pub fn room(&self) -> impl Future<Output = ()> + use<> {
        let waits: Vec<_> = self.seats.iter().map(|seat| seat.front.room()).collect();
        async move {
            for wait in waits {
                wait.await;
            }
        }
    }

    /// Ends all fronts, and waits until their clients know, up to the deadline; what people are told of each.
    pub async fn finish(self, deadline: Duration) -> Vec<String> {
        let fronts = self.seats.into_iter().map(|seat| seat.front);
        let mut waits: Vec<_> = fronts.map(|front| front.finish(deadline)).collect();
        let mut said: Vec<Option<String>> = waits.iter().map(|_| None).collect();
        poll_fn(|context: &mut Context<'_>| {
            for (wait, said) in waits.iter_mut().zip(&mut said) {
                if said.is_none()
                    && let Poll::Ready(text) = wait.as_mut().poll(context)
                {
                    *said = Some(text);
                }
            }
            match said.iter().all(Option::is_some) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        said.into_iter().flatten().collect()
    }
}

impl Consumer for Hub {
    fn wants_new_epoch(&self) -> bool {
        self.seats.iter().any(|seat| seat.front.wants_new_epoch())
    }

    fn spare(&self) -> Option<Vec<Event>> {
        self.seats.iter().find_map(|seat| seat.front.spare())
    }

    /// Those that the fronts have dropped are counted for each of them.
    fn send(&mut self, batch: Batch) -> u64 {
        let born = self.lives.take(&batch);
        let mut dropped = 0;
        let mut batch = Some(batch);
        let count = self.seats.len();
        for (index, seat) in self.seats.iter_mut().enumerate() {
            let own = match index + 1 == count {
                true => batch.take(),
                false => batch.clone(),
            };
            if let Some(mut own) = own {
                seat.share.follow(&born, own.epoch);
                seat.share.cut(&mut own, &self.lives);
                dropped += seat.front.send(own);
            }
        }
        dropped
    }
}

#[cfg(test)]
mod tests;
