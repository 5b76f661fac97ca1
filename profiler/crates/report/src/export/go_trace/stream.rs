//! The timed events of one M.
//!
//! Events are written as they come. Where waits are known (`held`), they are kept until the generation
//! ends instead: that a thread was woken is only known when its wait is over, and belongs between what
//! its waker did before and after. Times are those of the trace.

use std::io;

use super::trace::Trace;
use profiler_wire::go_trace::{Batch, Kind};

/// Most arguments of an event beside its time.
const MAX_ARGS: usize = 4;

pub(super) struct Stream {
    batch: Batch,
    held: bool,
    /// Events that are kept, in order of time.
    kept: Vec<Timed>,
}

struct Timed {
    at: u64,
    kind: Kind,
    args: [u64; MAX_ARGS],
    count: u8,
}

impl Stream {
    pub(super) fn new(batch: Batch, held: bool) -> Stream {
        Stream {
            batch,
            held,
            kept: Vec::new(),
        }
    }

    /// Time of the last event, or that it begins at.
    pub(super) fn last(&self) -> u64 {
        self.kept.last().map_or(self.batch.last(), |last| last.at)
    }

    /// Puts an event behind all others.
    pub(super) fn push(
        &mut self,
        trace: &mut Trace,
        kind: Kind,
        at: u64,
        rest: &[u64],
    ) -> io::Result<()> {
        if self.held {
            let at = at.max(self.last());
            self.kept.push(Timed::new(kind, at, rest));
            return Ok(());
        }
        put(trace, &mut self.batch, kind, at, rest)
    }

    /// Puts an event where it belongs by its time, behind those of the same time. False if that is
    /// before what can be changed.
    pub(super) fn insert(&mut self, kind: Kind, at: u64, rest: &[u64]) -> bool {
        if !self.held || at < self.batch.last() {
            return false;
        }
        let place = self.kept.partition_point(|kept| kept.at <= at);
        self.kept.insert(place, Timed::new(kind, at, rest));
        true
    }

    /// Writes all events.
    pub(super) fn write(&mut self, trace: &mut Trace) -> io::Result<()> {
        for event in std::mem::take(&mut self.kept) {
            let args = &event.args[..usize::from(event.count)];
            put(trace, &mut self.batch, event.kind, event.at, args)?;
        }
        trace.write(&mut self.batch)
    }
}

impl Timed {
    fn new(kind: Kind, at: u64, rest: &[u64]) -> Timed {
        let mut args = [0; MAX_ARGS];
        let count = rest.len().min(MAX_ARGS);
        args[..count].copy_from_slice(&rest[..count]);
        Timed {
            at,
            kind,
            args,
            count: count as u8,
        }
    }
}

fn put(trace: &mut Trace, batch: &mut Batch, kind: Kind, at: u64, rest: &[u64]) -> io::Result<()> {
    if !batch.fits_timed(2) {
        trace.write(batch)?;
    }
    batch.push_timed(kind, at, rest);
    Ok(())
}
