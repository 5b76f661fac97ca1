//! Only what ran in certain containers, pods and units, for any format.
//!
//! Input: all events; output: those of the processes that are meant, and those of no process in
//! particular (markers, losses, the clock). The kernel's counts of calls are of all processes, so they are
//! left out. Names are looked up once, at the first event: the tables must hold all definitions by
//! then, as those of a capture do.

use std::io;

use crate::derive::{ContainerNames, ContainerSet};
use profiler_model::*;

pub(super) struct Within {
    inner: Box<dyn Sink + Send>,
    names: ContainerNames,
    found: Option<ContainerSet>,
}

impl Within {
    pub(super) fn new(inner: Box<dyn Sink + Send>, names: ContainerNames) -> Within {
        Within {
            inner,
            names,
            found: None,
        }
    }

    fn found(&mut self, tables: &Tables) -> io::Result<&ContainerSet> {
        let found = match self.found.take() {
            Some(found) => found,
            None => self
                .names
                .find(tables)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?,
        };
        Ok(self.found.insert(found))
    }
}

impl Sink for Within {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        let found = self.found(tables)?;
        let process = |thread: ThreadId| tables.thread(thread).map(|thread| thread.process);
        let of = match event {
            Event::Sample(sample) => process(sample.thread),
            Event::Process(event) => process(event.thread),
            Event::Call(call) => process(call.thread),
            Event::Throw(throw) => process(throw.thread),
            Event::Gap(gap) if gap.process.is_some() => gap.process,
            Event::Waits(waits) => process(waits.thread),
            Event::CallCount(_) => return Ok(()),
            Event::Gap(_) | Event::Mark(_) | Event::Clock(_) | Event::Lost(_) => {
                return self.inner.event(event, tables);
            }
        };
        match of.and_then(|id| tables.process(id)) {
            Some(process) if found.admits(process) => self.inner.event(event, tables),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        self.found(tables)?;
        self.inner.finish(tables)
    }
}
