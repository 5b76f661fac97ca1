//! Which process events concern a recording that is limited to some processes.
//!
//! The kernel reports process events of the whole machine; files of processes that can't have
//! samples need not be opened, nor their lives recorded. Only a filter by pid or tid can be followed
//! from here; any other lets everything pass.

use rustc_hash::FxHashSet;

use profiler_model::Pid;
use profiler_model::raw::{RawBody, RawEvent};
use profiler_target::Filter;
use profiler_target::proc_fs::process_of;

/// The processes of a recording.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    /// None: all.
    pids: Option<FxHashSet<Pid>>,
    /// Of the last call, which is that of the next one most often.
    caller: Option<Pid>,
}

impl Scope {
    /// The scope of a filter.
    pub(super) fn new(filter: &Filter) -> Scope {
        if !filter.is_by_ids() {
            return Scope {
                pids: None,
                caller: None,
            };
        }
        let owners = filter.tids.iter().filter_map(|&tid| process_of(tid));
        Scope {
            pids: Some(filter.pids.iter().copied().chain(owners).collect()),
            caller: None,
        }
    }

    /// The processes in it; none if it is the whole machine.
    pub(super) fn pids(&self) -> Option<Vec<Pid>> {
        self.pids
            .as_ref()
            .map(|pids| pids.iter().copied().collect())
    }

    /// Removes the events of others; see [`Scope::admits`].
    pub(super) fn retain(&mut self, events: &mut Vec<RawEvent>) {
        events.retain(|event| self.admits(event));
    }

    /// Whether an event concerns this scope; children of processes in it join. Events must come in
    /// order of time, so that a fork is seen before what its child does.
    pub(super) fn admits(&mut self, event: &RawEvent) -> bool {
        let Some(pids) = &mut self.pids else {
            return true;
        };
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } => {
                let inside = pids.contains(parent_pid);
                if inside {
                    pids.insert(*pid);
                } else if pid != parent_pid {
                    self.caller = None;
                    // Its id may have been that of a process of ours before.
                    pids.remove(pid);
                }
                inside
            }
            RawBody::Comm { pid, .. } | RawBody::Exit { pid, .. } => pids.contains(pid),
            RawBody::Mmap(mmap) => pids.contains(&mmap.pid),
            // What the kernel's own filter let through, even if its fork was lost on the way.
            RawBody::Sample(sample) => {
                pids.insert(sample.pid);
                true
            }
            RawBody::Call(call) => {
                if self.caller != Some(call.pid) {
                    self.caller = Some(call.pid);
                    pids.insert(call.pid);
                }
                true
            }
            // What the kernel's own filter let through, as above.
            RawBody::Wait(_)
            | RawBody::WaitStack(_)
            | RawBody::Waits(_)
            | RawBody::CallCount(_)
            | RawBody::Gap(_)
            | RawBody::Lost(_)
            | RawBody::Cgroup(_)
            | RawBody::Mark(_)
            | RawBody::Clock { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::raw::RawSample;
    use profiler_model::{Cpu, Tid, Timestamp};

    fn fork(parent: u32, child: u32) -> RawEvent {
        event(RawBody::Fork {
            pid: Pid(child),
            tid: Tid(child),
            parent_pid: Pid(parent),
            parent_tid: Tid(parent),
        })
    }

    fn exit(pid: u32) -> RawEvent {
        event(RawBody::Exit {
            pid: Pid(pid),
            tid: Tid(pid),
        })
    }

    fn event(body: RawBody) -> RawEvent {
        RawEvent {
            at: Timestamp(1),
            cpu: Cpu(0),
            body,
        }
    }

    #[test]
    fn children_join_and_others_stay_out() {
        let mut scope = Scope::new(&Filter {
            pids: vec![Pid(10)],
            ..Filter::default()
        });
        let kept = [fork(10, 11), fork(11, 12), exit(12)];
        let mut events = kept.to_vec();
        events.splice(1..1, [fork(1, 20), exit(20)]);
        scope.retain(&mut events);
        assert_eq!(events, kept);
        // Pid 11 comes again, as somebody else's child.
        let mut events = vec![fork(1, 11), exit(11)];
        scope.retain(&mut events);
        assert_eq!(events, []);
    }

    #[test]
    fn a_process_with_samples_is_inside_though_its_fork_was_lost() {
        let mut scope = Scope::new(&Filter {
            pids: vec![Pid(10)],
            ..Filter::default()
        });
        let sample = event(RawBody::Sample(Box::new(RawSample::new(Pid(12), Tid(12)))));
        let mut events = vec![exit(12), sample, fork(12, 13), exit(12)];
        scope.retain(&mut events);
        assert_eq!(events.len(), 3);
    }

    #[test]
    fn without_pids_all_passes() {
        let mut scope = Scope::new(&Filter {
            uids: vec![0],
            ..Filter::default()
        });
        let mut events = vec![fork(1, 2)];
        scope.retain(&mut events);
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let scope = Scope::new(&Filter {
            tids: vec![Tid(tid)],
            ..Filter::default()
        });
        assert_eq!(scope.pids(), Some(vec![Pid(std::process::id())]));
    }
}
