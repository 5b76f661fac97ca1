//! TCF's server as a front.
//!
//! What does not belong here: what it does (`server`).

use std::time::Duration;

use profiler_model::{Batch, Consumer, Demand, Event};
use profiler_report::view::quantity;

use super::server::{ServeSummary, Server};
use crate::front::{Awaited, Front, Order};

impl Consumer for Server {
    fn wants_new_epoch(&self) -> bool {
        Server::wants_new_epoch(self)
    }

    fn spare(&self) -> Option<Vec<Event>> {
        Server::spare(self)
    }

    fn send(&mut self, batch: Batch) -> u64 {
        Server::send(self, batch)
    }
}

impl Front for Server {
    fn order(&mut self) -> Awaited<'_, Order> {
        Box::pin(Server::order(self))
    }

    fn room(&self) -> Awaited<'static, ()> {
        Box::pin(self.has_room())
    }

    fn acknowledge(&mut self, question: u64) {
        Server::acknowledge(self, question);
    }

    fn adjusted(&mut self, demand: &Demand) {
        Server::adjusted(self, demand.clone());
    }

    fn ready(&mut self) {
        Server::ready(self);
    }

    fn detached(&mut self) {
        Server::detached(self);
    }

    fn trouble(&mut self, text: &str) {
        Server::trouble(self, text.to_owned());
    }

    fn welcome(&self) -> String {
        format!("listening for TCF clients on {}", self.address())
    }

    fn finish(self: Box<Self>, deadline: Duration) -> Awaited<'static, String> {
        Box::pin(async move { text(&Server::finish(*self, deadline).await) })
    }
}

fn text(summary: &ServeSummary) -> String {
    let mut text = format!(
        "served {}: {} answered",
        quantity::plural(summary.channels, "client"),
        quantity::plural(summary.commands, "command"),
    );
    for (count, what) in [
        (summary.refused, "turned away"),
        (summary.laggards, "cut off because they did not read"),
        (summary.heavy, "cut off because too much was kept for them"),
    ] {
        if count > 0 {
            text += &format!(", {} {what}", quantity::count(count));
        }
    }
    if summary.dropped_events > 0 {
        text += &format!(
            "; {} lost because the server was too slow",
            quantity::plural(summary.dropped_events, "event")
        );
    }
    text
}
