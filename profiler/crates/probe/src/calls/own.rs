//! Whose calls are not traced: those of this process, and of those that it runs for itself.
//!
//! Processes -> a map of the kernel side, of their ids, which is asked at each hit before anything else
//! (`program`). Whoever empties the buffers, finds names and writes calls traced functions as well, such as
//! `malloc` in a C library that all share: each record would make more of them, without end.
//!
//! What does not belong here: which processes are run (`profiler_target::background`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use profiler_target::background::{self, Told};

use crate::{ProbeError, bpf, features};

/// More are not left out.
const MOST: u32 = 1024;

/// The processes.
pub(super) struct OwnProcesses {
    map: Arc<OwnedFd>,
    /// Of those that come and go, while it lives.
    told: Option<Arc<Told>>,
}

impl OwnProcesses {
    /// Leaves nobody out.
    pub(super) fn none() -> Result<OwnProcesses, ProbeError> {
        let map = bpf::make_hash(MOST)
            .map_err(|error| ProbeError::from_io("make a map of processes", error))?;
        Ok(OwnProcesses {
            map: Arc::new(map),
            told: None,
        })
    }

    /// The map.
    pub(super) fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Leaves all of them out from now on.
    pub(super) fn add(&mut self) -> Result<(), ProbeError> {
        if !features::has_machine_ids() {
            // Others have the numbers that we know.
            return Ok(());
        }
        bpf::update_map(self.map(), &[std::process::id()], &[1_u64])
            .map_err(|error| ProbeError::from_io("leave our own calls out", error))?;
        let map = Arc::clone(&self.map);
        let told: Arc<Told> = Arc::new(move |pid, is_there| {
            let set = match is_there {
                true => bpf::update_map(map.as_fd(), &[pid], &[1_u64]),
                false => bpf::remove_from_map(map.as_fd(), &[pid]),
            };
            if let Err(error) = set {
                log::debug!("calls of process {pid}, which is ours: {error}");
            }
        });
        background::tell(&told);
        self.told = Some(told);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::calls::specimen::NOP5;
    use crate::{CallOptions, CallSite, CallTarget, Probe, ProbeOptions};
    use profiler_common::call::{EDGE_HIT, ProbeControl};
    use profiler_model::Pid;
    use profiler_model::raw::{RawBody, RawEvent};
    use profiler_target::Filter;

    /// A probe on a function of this program.
    fn traced() -> Box<Probe> {
        let calls = CallOptions {
            max_probes: 1,
            buffer_bytes: 1 << 20,
            fetches: false,
            callers: false,
            per_process: true,
            min_duration_ns: 0,
            max_depth: 0,
            max_rate: 0,
        };
        let mut probe = Probe::attach(ProbeOptions {
            hierarchy: None,
            sources: Vec::new(),
            calls: Some(calls),
            filter: Filter::default(),
            buffer_bytes: 1 << 18,
            kernel_stacks: false,
            user_stacks: false,
            unwind: None,
            kernel_log: false,
            off_cpu: false,
            adjustable: false,
        })
        .unwrap();
        let on = ProbeControl {
            generation: 1,
            ..ProbeControl::default()
        };
        probe.set_probe(0, on, &[]).unwrap();
        let site = CallSite {
            offset: NOP5.offset().unwrap(),
            probe: 0,
            site: 0,
            edge: EDGE_HIT,
            generation: 1,
            return_probe: false,
            semaphore: None,
        };
        let file = File::open("/proc/self/exe").unwrap();
        let whom = CallTarget::Process(Pid(std::process::id()));
        let (_, refused) = probe.attach_calls(whom, file.as_fd(), &[site]).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        probe
    }

    fn entries(probe: &mut Probe) -> u64 {
        let mut counts = Vec::new();
        probe.call_counts(&mut counts);
        counts.iter().map(|(_, count)| count.entries).sum()
    }

    #[test]
    fn own_calls_are_left_out() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("own calls skipped: it needs root");
            return;
        }
        let mut probe = traced();
        NOP5.call(100);
        assert_eq!(entries(&mut probe), 100);

        entries(&mut probe);
        probe.leave_out_own_calls().unwrap();
        // What was written before.
        probe.drain(&mut Vec::new());
        NOP5.call(100);
        assert_eq!(entries(&mut probe), 0);
        let mut events = Vec::new();
        probe.drain(&mut events);
        let is_call = |event: &&RawEvent| matches!(event.body, RawBody::Call(_));
        assert_eq!(events.iter().find(is_call), None);
    }
}
