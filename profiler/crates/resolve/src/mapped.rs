//! What processes have mapped, and those who look at it as soon as it is known.
//!
//! What does not belong here: which process has mapped what (`process`, and ahead of the order of events
//! `unwinding`).

use super::interpreters::Interpreters;
use super::modules::{Modules, NotYet, When};
use super::processes::Processes;
use super::unwinding::Unwinding;
use profiler_model::raw::RawMmap;

/// The parts of a resolver that look at every new mapping.
#[derive(Debug)]
pub(super) struct Mapped {
    /// The files.
    pub(super) modules: Modules,
    /// The interpreters in them.
    pub(super) interpreters: Interpreters,
    /// How stacks in them are walked.
    pub(super) unwinding: Unwinding,
}

impl Mapped {
    /// Looks at a mapping as soon as it is known: opens its file, while the process is still there.
    pub(super) fn notice(
        &mut self,
        mmap: &RawMmap,
        when: When,
        processes: &mut Processes,
    ) -> Result<(), NotYet> {
        let opened = self
            .modules
            .open(mmap, when, || processes.root_of(mmap.pid))?;
        if let Some((path, file)) = opened {
            self.interpreters
                .notice(mmap, &path, &file, &mut self.modules);
        }
        Ok(())
    }
}
