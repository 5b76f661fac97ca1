//! What was asked for, and what follows from it before anything is attached: it never changes.
//!
//! A [`TraceRequest`], the measured costs and the way of attaching -> questions that the other parts
//! have. Each of them holds a handle on it.
//!
//! What does not belong here: what becomes of it while it runs.

use super::TraceRequest;
use profiler_model::Pid;
use profiler_resolve::objects::TargetObject;
use profiler_trace::cost::CostTable;
use profiler_trace::place::PlaceOptions;

/// The request, the costs of probes on this machine, and whether all processes share links.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: TraceRequest,
    pub(super) costs: CostTable,
    /// One link for all processes, filtered in the kernel.
    pub(super) shared: bool,
}

impl Asked {
    /// Whether an object may hold what is asked for, by its paths alone.
    pub(super) fn may_cover(&self, target: &TargetObject) -> bool {
        let mut paths = std::iter::once(&target.path).chain(&target.aliases);
        paths.any(|path| self.request.selection.may_cover(path, target.is_main))
    }

    /// The same of paths of which it is not known whether they are programs.
    pub(super) fn may_cover_any(&self, paths: &[Box<str>]) -> bool {
        let selection = &self.request.selection;
        paths.iter().any(|path| selection.may_cover(path, true))
    }

    /// Whether a file that has none of these words is of no use; none: that can't be said of any. What is not shared is
    /// judged by all files.
    pub(super) fn words(&self) -> Option<Vec<Box<str>>> {
        let words = self.request.selection.words();
        words.filter(|_| self.shared)
    }

    /// As whom a process is attached to.
    pub(super) fn process(&self, pid: Pid) -> Option<Pid> {
        (!self.shared).then_some(pid)
    }

    pub(super) fn place_options(&self) -> PlaceOptions<'_> {
        PlaceOptions {
            at: self.request.at,
            returns: self.request.returns,
            costs: &self.costs,
        }
    }
}
