//! Counts of probes: values per processor -> sums, of those probes that were hit.

use std::{io, os::fd::BorrowedFd};

use profiler_common::call::CallCounters;

use crate::bpf;

/// Most values that are read in one system call, to bound memory on machines with many processors.
const MAX_VALUES: usize = 1 << 16;

/// Remembers what was read.
pub(super) struct CountReader {
    cpus: usize,
    last: Vec<CallCounters>,
    values: Vec<CallCounters>,
}

impl CountReader {
    pub(super) fn new(cpus: usize) -> CountReader {
        CountReader {
            cpus: cpus.max(1),
            last: Vec::new(),
            values: Vec::new(),
        }
    }

    /// From now on reads the counts of all probes below `probes`.
    pub(super) fn cover(&mut self, probes: u32) {
        let probes = self.last.len().max(probes as usize);
        self.last.resize(probes, CallCounters::default());
    }

    /// Adds the sums that have changed to `out`.
    pub(super) fn read(
        &mut self,
        map: BorrowedFd<'_>,
        out: &mut Vec<(u32, CallCounters)>,
    ) -> io::Result<()> {
        let at_once = (MAX_VALUES / self.cpus).max(1);
        let mut first = 0;
        for known in self.last.chunks_mut(at_once) {
            let count = known.len() as u32;
            bpf::read_array(map, first, count, self.cpus, &mut self.values)?;
            let sums = self.values.chunks(self.cpus).map(sum);
            for ((probe, known), sum) in (first..).zip(known).zip(sums) {
                if *known != sum {
                    *known = sum;
                    out.push((probe, sum));
                }
            }
            first += count;
        }
        Ok(())
    }
}

fn sum(cpus: &[CallCounters]) -> CallCounters {
    let mut sum = CallCounters::default();
    for cpu in cpus {
        sum.entries += cpu.entries;
        sum.exits += cpu.exits;
        sum.lost += cpu.lost;
        sum.left_out += cpu.left_out;
        sum.self_jumps += cpu.self_jumps;
    }
    sum
}
