//! Only what certain processes and threads did, for any format.
//!
//! Input: all events; output: those of whom is meant, and those of no process in particular (markers, losses, the
//! clock). The kernel's counts of calls are of all processes, so they are left out. Who is meant is looked up once, at
//! the first event: the tables must hold all definitions by then, as those of a capture do.

use std::io;

use crate::derive::{Chosen, Target};
use profiler_model::*;

/// A sink that passes on what certain processes and threads did.
pub struct Only<'a> {
    inner: &'a mut dyn Sink,
    target: &'a Target,
    found: Option<Chosen>,
}

impl<'a> Only<'a> {
    /// Passes on what `target` did.
    pub fn new(inner: &'a mut dyn Sink, target: &'a Target) -> Only<'a> {
        Only {
            inner,
            target,
            found: None,
        }
    }

    fn found(&mut self, tables: &Tables) -> io::Result<&Chosen> {
        match &mut self.found {
            Some(found) => Ok(found),
            none => {
                let found = self.target.find(tables);
                let found = found.map_err(|error| {
                    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
                })?;
                Ok(none.insert(found))
            }
        }
    }
}

impl Sink for Only<'_> {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        let found = self.found(tables)?;
        if found.is_all() {
            return self.inner.event(event, tables);
        }
        let (thread, process) = match event {
            Event::Sample(sample) => (Some(sample.thread), None),
            Event::Process(event) => (Some(event.thread), None),
            Event::Call(call) => (Some(call.thread), None),
            Event::Throw(throw) => (Some(throw.thread), None),
            Event::Gap(gap) if gap.process.is_some() => (None, gap.process),
            Event::Waits(waits) => (Some(waits.thread), None),
            Event::CallCount(_) => return Ok(()),
            Event::Gap(_) | Event::Mark(_) | Event::Clock(_) | Event::Lost(_) => {
                return self.inner.event(event, tables);
            }
        };
        match found.admits(tables, thread, process) {
            true => self.inner.event(event, tables),
            false => Ok(()),
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        self.found(tables)?;
        self.inner.finish(tables)
    }
}
