//! The server as a front.
//!
//! What does not belong here: what it does (`server`).

use std::time::Duration;

use profiler_model::{Batch, Consumer, Event, Tracing};
use profiler_report::view::quantity;

use super::server::{RdpServer, RdpSummary};
use crate::front::{Awaited, Front, Order};

impl Consumer for RdpServer {
    fn wants_new_epoch(&self) -> bool {
        RdpServer::wants_new_epoch(self)
    }

    fn spare(&self) -> Option<Vec<Event>> {
        RdpServer::spare(self)
    }

    fn send(&mut self, batch: Batch) -> u64 {
        RdpServer::send(self, batch)
    }
}

impl Front for RdpServer {
    fn order(&mut self) -> Awaited<'_, Order> {
        Box::pin(RdpServer::order(self))
    }

    fn room(&self) -> Awaited<'static, ()> {
        Box::pin(self.has_room())
    }

    fn acknowledge(&mut self, question: u64) {
        RdpServer::acknowledge(self, question);
    }

    fn traced(&mut self, tracing: &Tracing, batch: Batch) -> u64 {
        RdpServer::traced(self, tracing, batch)
    }

    fn untraced(&mut self, tracing: &Tracing, text: &str) {
        RdpServer::untraced(self, tracing, text);
    }

    fn ready(&mut self) {
        RdpServer::ready(self);
    }

    fn detached(&mut self) {
        RdpServer::detached(self);
    }

    fn trouble(&mut self, text: &str) {
        RdpServer::trouble(self, text.to_owned());
    }

    fn welcome(&self) -> String {
        let address = self.address();
        format!("listening for clients of Firefox's remote debugging protocol on {address}")
    }

    fn finish(self: Box<Self>, deadline: Duration) -> Awaited<'static, String> {
        Box::pin(async move { text(&RdpServer::finish(*self, deadline).await) })
    }
}

fn text(summary: &RdpSummary) -> String {
    let mut text = format!(
        "served {}: {} answered",
        quantity::plural(summary.connections, "connection"),
        quantity::plural(summary.requests, "request"),
    );
    for (count, what) in [
        (summary.refused, "turned away"),
        (summary.laggards, "cut off because they did not read"),
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
