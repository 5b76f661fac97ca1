//! Running processes -> proofs: samples with the chain found in the kernel and what it takes to walk
//! the stack again, and the mappings that belong to them.
//!
//! Plays, in the simplest way, the part of user space: reads `/proc/PID/maps` of the sampled processes
//! as they change, builds the tables of the files found there, and loads them. Samples are taken by
//! cpu-clock. Nothing is shared with the code that does this in production, so that mistakes there
//! do not hide mistakes of the walk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use profiler_common::unwind::UnwindCounters;
use profiler_model::raw::{RawBody, RawEvent, RawSample};
use profiler_model::{Pid, StackEnd, Timestamp};
use profiler_probe::{
    EventSpec, KernelTables, MappedCode, Probe, ProbeOptions, Rate, Slot, SourceSpec,
    UnwindOptions, Unwinder,
};
use profiler_target::Filter;
use profiler_unwind::walk::{Code, Place};

use super::files::{Files, Space};
use super::golden;
use super::judge::Questions;
use super::known::Chains;
use super::verdict::{Tally, Verdict, compare};
use super::{Mapped, Proof};
use crate::recording::monotonic_ns;

/// Memory for tables, in bytes.
const TABLE_BYTES: u64 = 512 << 20;
/// Most samples kept of one load: their stacks are kept in a file, 64 KiB each.
const MAX_SAMPLES: u32 = 3000;
/// Room for samples between two rounds, in bytes: on each of two processors for a thousand, a quarter of a second at
/// 3,999 Hz. What the file holds is on its way to a disk that others use, too.
const BUFFER_BYTES: usize = 160 << 20;

/// What a run found.
#[derive(Debug, Default)]
pub struct Found {
    /// The comparisons.
    pub tally: Tally,
    /// Samples of processes whose mappings could not be read any more, or were others at that time.
    pub gone: u64,
    /// Samples without a user stack.
    pub without: u64,
    /// Samples in which others' probes are to be seen: the judge does not know what the kernel has put there.
    pub probed: u64,
    /// Samples that were taken before the kernel side had been told of what is mapped now, and are walked otherwise with
    /// that: their walk in user space is judged.
    pub untold: u64,
    /// Samples that our walk in user space walks in another way than the kernel side, by the same rows;
    /// and how.
    pub walks_differ: Vec<(Proof, Proof)>,
    /// If the processes are workloads that know their chains: what was found of these.
    pub chains: Option<Chains>,
    /// What the kernel side counted.
    pub counters: UnwindCounters,
}

/// These processes and their descendants.
pub fn family(pids: &[u32]) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
        let parent = behind.and_then(|mut fields| fields.nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut family = pids.to_vec();
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        family.extend(children.map(|(pid, _): &(u32, u32)| *pid));
        at += 1;
    }
    Ok(family)
}

/// Sampling of some processes and their children.
pub struct Live {
    probe: Box<Probe>,
    files: Files,
    slots: BTreeMap<String, Slot>,
    mapped: BTreeMap<u32, Arc<[Mapped]>>,
    /// When the kernel side had been told of that.
    told: BTreeMap<u32, u64>,
    stale: BTreeSet<u32>,
    questions: Questions,
    proofs: Vec<Kept>,
    found: Found,
}

/// What is needed of a sample when the judge has answered.
struct Kept {
    proof: Proof,
    mapped: Arc<[Mapped]>,
}

impl Live {
    /// Samples these processes and their children from now on.
    pub fn attach(
        pids: &[u32],
        hz: u64,
        mut files: Files,
        chains: Option<Chains>,
        folder: &Path,
    ) -> io::Result<Live> {
        let pids = family(pids)?;
        for pid in &pids {
            // Tables are built before the first sample. A child may have ended.
            let _ = files.mapped_by(*pid);
        }
        let options = ProbeOptions {
            sources: vec![SourceSpec {
                event: "cpu-clock".parse::<EventSpec>().map_err(io::Error::other)?,
                rate: Rate::FrequencyHz(hz),
            }],
            calls: None,
            filter: Filter {
                pids: pids.iter().map(|pid| Pid(*pid)).collect(),
                ..Filter::default()
            },
            hierarchy: None,
            buffer_bytes: BUFFER_BYTES,
            kernel_stacks: false,
            user_stacks: true,
            unwind: Some(UnwindOptions {
                memory_bytes: TABLE_BYTES,
                // A sample has room for one copy, and that is the whole stack here.
                copies_per_second: 0,
                deep_frames_per_second: u32::MAX,
            }),
            kernel_log: false,
            off_cpu: false,
            adjustable: false,
        };
        let probe = Probe::attach_with_proof(options).map_err(io::Error::other)?;
        let mut live = Live {
            probe,
            files,
            slots: BTreeMap::new(),
            mapped: BTreeMap::new(),
            told: BTreeMap::new(),
            stale: BTreeSet::new(),
            questions: Questions::new(folder.join("questions"))?,
            proofs: Vec::new(),
            found: Found {
                chains,
                ..Found::default()
            },
        };
        for pid in pids {
            let _ = live.read_mappings(pid);
        }
        // Samples so far are of a time when nothing was loaded.
        let mut events = Vec::new();
        live.probe.drain(&mut events);
        events.retain(|event| !matches!(event.body, RawBody::Sample(_)));
        for event in events {
            live.take(event)?;
        }
        Ok(live)
    }

    /// Takes samples until the time is over, there are enough, or `until` says so.
    pub fn sample(&mut self, time: Duration, mut until: impl FnMut() -> bool) -> io::Result<()> {
        let deadline = Instant::now() + time;
        let mut events = Vec::new();
        let mut is_over = false;
        while !is_over {
            // What is sampled before the end is taken after it, however long the last round has been.
            is_over = Instant::now() >= deadline || self.questions.len() >= MAX_SAMPLES || until();
            std::thread::sleep(Duration::from_millis(10));
            self.probe.drain(&mut events);
            // Between buffers there is no order, and what a sample is of must be known first.
            events.sort_by_key(|event| (matches!(event.body, RawBody::Sample(_)), event.at));
            for event in events.drain(..) {
                self.take(event)?;
            }
        }
        Ok(())
    }

    /// Has the other walker walk all of it, and compares; `what` it is of.
    pub fn judge(mut self, what: &str) -> io::Result<Found> {
        if let Some(unwinder) = self.probe.unwinder() {
            self.found.counters = unwinder.counters();
        }
        // The rest needs no probe.
        drop(self.probe);
        let judgements = self.questions.ask()?;
        for (kept, judgement) in self.proofs.iter().zip(&judgements) {
            let space = Space {
                files: &self.files,
                mapped: &kept.mapped,
            };
            let place = |address| space.place(address);
            self.found.tally.add(&kept.proof, judgement, place);
            if let Some(folder) = golden::wanted()
                && compare(&kept.proof, judgement).0 == Verdict::Equal
            {
                golden::record(&folder, what, &kept.proof, &space)?;
            }
        }
        Ok(self.found)
    }

    fn take(&mut self, event: RawEvent) -> io::Result<()> {
        match event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => {
                if let Some(parent) = self.mapped.get(&parent_pid.0).cloned() {
                    self.tell(pid.0, parent.to_vec())?;
                }
                self.stale.insert(pid.0);
            }
            RawBody::Mmap(mmap) => {
                self.stale.insert(mmap.pid.0);
            }
            RawBody::Comm {
                pid, exec: true, ..
            } => {
                self.stale.insert(pid.0);
            }
            RawBody::Sample(sample) => {
                let pid = sample.pid.0;
                if self.stale.remove(&pid) && self.read_mappings(pid).is_err() {
                    // Whether it is still what was forked can't be told any more.
                    self.mapped.remove(&pid);
                }
                self.take_sample(&sample, event.at)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn take_sample(&mut self, sample: &RawSample, at: Timestamp) -> io::Result<()> {
        let Some(mapped) = self.mapped.get(&sample.pid.0) else {
            self.found.gone += 1;
            return Ok(());
        };
        let Some(copy) = &sample.copy else {
            self.found.without += 1;
            return Ok(());
        };
        let mut proof = Proof {
            pid: sample.pid.0,
            chain: sample.user.addresses().collect(),
            end: sample.user.end,
            pc: copy.head.pc,
            registers: copy.head.registers,
            stack: copy.bytes.to_vec(),
        };
        let space = Space {
            files: &self.files,
            mapped,
        };
        if proof.end == StackEnd::Gone || matches!(space.at(proof.pc), Place::Unmapped) {
            // Its memory was; or it was of what the process ran before exec.
            self.found.gone += 1;
            return Ok(());
        }
        let mut again = proof.clone();
        again.walk(&space);
        if again.chain.iter().any(|at| space.is_of_probes(*at)) {
            self.found.probed += 1;
            return Ok(());
        }
        let differs = (&again.chain, again.end) != (&proof.chain, proof.end);
        if differs && (self.told.get(&proof.pid)).is_some_and(|told| at.0 < *told) {
            self.found.untold += 1;
            proof = again;
        } else if differs
            && again.end != StackEnd::BadMemory
            && !matches!(proof.end, StackEnd::NoTable | StackEnd::NoMapping)
        {
            self.found.walks_differ.push((proof.clone(), again));
        }
        self.questions.sample(&proof)?;
        if let Some(chains) = &mut self.found.chains {
            chains.add(&proof, &space);
        }
        if golden::wanted().is_none() {
            proof.stack = Vec::new();
        }
        self.proofs.push(Kept {
            proof,
            mapped: mapped.clone(),
        });
        Ok(())
    }

    /// Reads what a process has mapped now, and tells the kernel side and the judge.
    fn read_mappings(&mut self, pid: u32) -> io::Result<()> {
        let mapped = self.files.mapped_by(pid)?;
        self.tell(pid, mapped)
    }

    fn tell(&mut self, pid: u32, mapped: Vec<Mapped>) -> io::Result<()> {
        if self.mapped.get(&pid).is_some_and(|known| **known == mapped) {
            return Ok(());
        }
        let mut codes = Vec::with_capacity(mapped.len());
        for range in &mapped {
            let file = self.files.get(&range.path);
            let address = file.and_then(|file| file.address(range.offset));
            let slot = match address {
                Some(_) => Some(self.slot(&range.path)?),
                None => None,
            };
            codes.push(MappedCode {
                start: range.start,
                end: range.end,
                address: address.unwrap_or(0),
                slot,
            });
        }
        self.unwinder()?
            .set_process(Pid(pid), &codes)
            .map_err(io::Error::other)?;
        self.told.insert(pid, monotonic_ns());
        self.questions.mappings(pid, &mapped)?;
        self.mapped.insert(pid, mapped.into());
        Ok(())
    }

    /// The slot of a file, whose table is loaded if it is new.
    fn slot(&mut self, path: &str) -> io::Result<Slot> {
        if let Some(slot) = self.slots.get(path) {
            return Ok(*slot);
        }
        let unwinder = self.probe.unwinder().ok_or(io::ErrorKind::Unsupported)?;
        let slot = unwinder.reserve().ok_or(io::ErrorKind::OutOfMemory)?;
        match self.files.get(path).and_then(|file| file.table.as_ref()) {
            Some(table) => unwinder.load(slot, table).map_err(io::Error::other)?,
            None => unwinder.load_none(slot),
        }
        self.slots.insert(path.to_owned(), slot);
        Ok(slot)
    }

    fn unwinder(&mut self) -> io::Result<&mut Unwinder> {
        let unwinder = self.probe.unwinder().ok_or(io::ErrorKind::Unsupported)?;
        unwinder.collect();
        Ok(unwinder)
    }
}
