//! What processes have mapped, and those who look at it as soon as it is known.
//!
//! What does not belong here: which process has mapped what (`process`, and ahead of the order of events
//! `unwinding`).

use super::interpreters::Interpreters;
use super::late_files::{LateFile, LateFiles};
use super::modules::{Modules, NotYet};
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
    /// Mappings whose files are not open yet.
    pub(super) late: LateFiles,
}

impl Mapped {
    /// Looks at a mapping as soon as it is known, and once more when its file was not open: opens that, while the process
    /// is still there.
    pub(super) fn notice(
        &mut self,
        mmap: &RawMmap,
        is_again: bool,
        processes: &mut Processes,
    ) -> Result<(), NotYet> {
        let root = || processes.root_of(mmap.pid);
        let opened = self.modules.open(mmap, is_again, root)?;
        if let Some((path, file)) = opened {
            self.interpreters
                .notice(mmap, &path, &file, &mut self.modules);
        }
        Ok(())
    }

    /// Looks at it again when its file is open, if there is room for it.
    pub(super) fn put_off(&mut self, late: LateFile) {
        self.modules.not_opened += u64::from(!self.late.push(late));
    }
}
