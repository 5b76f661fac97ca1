//! Tracing of calls: places of functions -> probes in the kernel, their records and counts.
//!
//! Places are offsets in files, as planned elsewhere; each belongs to a probe, an index that the
//! caller gives out below [`CallOptions::max_probes`]. What a probe does is set by
//! [`Probe::set_probes`], before its places are attached and at any time after. Times are
//! nanoseconds of CLOCK_MONOTONIC.
//!
//! A link is attached to many places at once where the kernel can do that (Linux 6.6), else each
//! place takes a perf event, which the kernel needs a tenth of a second to take back:
//! [`CallSupport`]. All of it goes with its descriptors, however this process ends. They are held by
//! another one, where that is possible, so that nobody waits for what the kernel waits for then
//! (`keeper`).
//!
//! What does not belong here: which functions, where in them, and at what price (`trace`); what
//! calls mean together (`resolve`).

mod calibrate;
mod closer;
mod counts;
mod keeper;
mod link;
mod own;
mod program;
mod specimen;
mod support;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aya::Ebpf;
use profiler_common::call::{CallCounters, Fetch, MAX_FETCHES, MAX_PROBES, ProbeControl};

pub use calibrate::calibrate;
pub use keeper::{NAME as KEEPER, keep, offer};
pub use support::{CallSupport, call_support};

use self::{counts::CountReader, keeper::Keeper, link::Linker, own::OwnProcesses};
use super::{Probe, ProbeError, bpf, hotplug, load, ring};
use profiler_model::Pid;
use profiler_target::background;

/// The reader is woken when it has not read so large a part of a ring: early enough that it may come
/// late, and so that what it reads at a time stays in the processor's caches.
const WAKE_PART: u64 = 8;

/// Links that are being closed, from which on it is looked which of them have gone.
const MAX_CLOSING: usize = 256;
/// How long is waited for links to be gone, by those who have to know that they are. Most often that
/// takes some 30 ms, and 150 under return probes.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same at the end, when nobody has to know: what is left by then goes without us.
const LAST: Duration = Duration::from_millis(500);
/// The same of those who don't have to: an answer takes some 10 us.
const SOON: Duration = Duration::from_millis(10);

/// How calls are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Probes are below this.
    pub max_probes: u32,
    /// Memory for all ring buffers of calls together, in bytes.
    pub buffer_bytes: usize,
    /// Whether any probe fetches values.
    pub fetches: bool,
    /// Whether entries say where they were called from.
    pub callers: bool,
    /// Whether each link names the one process that it is for: then the kernel side need not look
    /// at tasks.
    pub per_process: bool,
    /// Calls shorter than this are left out; 0: none. With a limit, there is one event for each call,
    /// when it ends, and values at its entry are not fetched.
    pub min_duration_ns: u64,
    /// Calls that more traced calls than this enclose are left out; 0: none.
    pub max_depth: u32,
    /// Most calls of a function that are recorded per second and processor; 0: all.
    pub max_rate: u32,
}

impl CallOptions {
    /// Whether the kernel side leaves calls out.
    pub(super) fn has_limits(&self) -> bool {
        self.min_duration_ns > 0 || self.max_depth > 0 || self.max_rate > 0
    }
}

/// Whose calls a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// Those of one process, without its children.
    Process(Pid),
    /// Those of all processes, as far as the filter wants them.
    Everyone,
}

/// A place that is to be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// File offset.
    pub offset: u64,
    /// Whose place it is.
    pub probe: u32,
    /// Which of the function's exit sites it is, 1 to [`profiler_common::call::MAX_SITES`]; 0: none,
    /// or one that is not told apart.
    pub site: u8,
    /// What a hit means: an `EDGE_*` of [`profiler_common::call`].
    pub edge: u32,
    /// Hits count only while the probe is set to the same generation.
    pub generation: u8,
    /// Not when the place is reached, but when the function returns. Only at a function's first
    /// instruction, or behind an `endbr64` that is its first: anywhere else the kernel would take
    /// something else for the return address and corrupt the program.
    pub return_probe: bool,
    /// File offset of a counter to raise while it is attached (USDT).
    pub semaphore: Option<u64>,
}

/// Places attached together. Detached by [`Probe::detach_calls`], or with the probe.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct CallLink(u64);

/// The places of a link, return probes first: they are the first to go.
pub(super) type LinkFds = Vec<OwnedFd>;

/// State of call tracing.
pub(super) struct Calls {
    options: CallOptions,
    linker: Linker,
    links: Links,
    counts: CountReader,
    own: OwnProcesses,
}

/// Links, by their numbers, and whose places they are.
struct Links {
    keeper: Keeper,
    attached: HashMap<u64, Box<[u32]>>,
    /// Those that are being closed, as far as is known.
    closing: HashMap<u64, Box<[u32]>>,
    next: u64,
}

impl Links {
    fn new(keeper: Keeper) -> Links {
        Links {
            keeper,
            attached: HashMap::new(),
            closing: HashMap::new(),
            next: 0,
        }
    }

    fn add(&mut self, sites: &[CallSite], fds: LinkFds) -> Result<CallLink, ProbeError> {
        let number = self.next;
        self.next += 1;
        self.keeper.hold(number, fds)?;
        let mut probes: Vec<u32> = sites.iter().map(|site| site.probe).collect();
        probes.sort_unstable();
        probes.dedup();
        self.attached.insert(number, probes.into());
        Ok(CallLink(number))
    }

    fn release(&mut self, links: impl IntoIterator<Item = u64>) {
        let links = links.into_iter();
        let known = links.filter_map(|link| self.attached.remove_entry(&link));
        let released: Vec<(u64, Box<[u32]>)> = known.collect();
        if released.is_empty() {
            return;
        }
        self.keeper.release(released.iter().map(|(link, _)| *link));
        self.closing.extend(released);
        // Most have gone by the next time.
        if self.closing.len() > MAX_CLOSING {
            let closing = self.keeper.closing(Instant::now() + SOON);
            self.retain(closing);
        }
    }

    fn release_all(&mut self) {
        let all: Vec<u64> = self.attached.keys().copied().collect();
        self.release(all);
    }

    fn wait(&mut self, until: Instant) {
        if !self.closing.is_empty() {
            let closing = self.keeper.wait(until);
            self.retain(closing);
        }
    }

    /// Forgets what is closed, as far as that is known.
    fn retain(&mut self, closing: Option<Vec<u64>>) {
        if let Some(closing) = closing {
            self.closing.retain(|link, _| closing.contains(link));
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.release_all();
        self.wait(Instant::now() + LAST);
        if let (false, Some(pid)) = (self.closing.is_empty(), self.keeper.pid()) {
            log::warn!("the kernel still takes probes out; process {pid} waits for that");
        }
    }
}

/// What is left of links that were detached while the kernel still waits for something.
pub struct LeavingCalls(Links);

impl LeavingCalls {
    /// The probes whose links are still there, which is waited for no longer than that. Their places have
    /// their own instructions again, and nothing is recorded of them.
    pub fn wait(&mut self, until: Instant) -> Vec<u32> {
        self.0.wait(until);
        let mut probes: Vec<u32> = self.0.closing.values().flatten().copied().collect();
        probes.sort_unstable();
        probes.dedup();
        probes
    }

    /// The process that waits until they are gone, and ends then; none: it is this one.
    pub fn keeper(&self) -> Option<u32> {
        self.0.keeper.pid()
    }
}

impl std::fmt::Debug for LeavingCalls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let links = self.0.closing.keys();
        formatter.debug_set().entries(links).finish()
    }
}

impl Drop for LeavingCalls {
    fn drop(&mut self) {
        // Who wanted to wait has done so.
        self.0.closing.clear();
    }
}

/// What the object is told of call tracing before it is loaded.
#[derive(Clone, Copy)]
pub(super) struct CallSettings {
    pub(super) options: CallOptions,
    pub(super) wake_bytes: u64,
    /// The kernel hands cookies over.
    pub(super) cookies: bool,
}

impl CallSettings {
    /// Checks the options against what the kernel can do.
    pub(super) fn new(
        options: CallOptions,
        support: &CallSupport,
        ring_bytes: usize,
    ) -> Result<CallSettings, ProbeError> {
        if !(1..=MAX_PROBES).contains(&options.max_probes) {
            return Err(ProbeError::Request(format!(
                "{} functions: at least 1 and at most {MAX_PROBES} can be traced at a time",
                options.max_probes
            )));
        }
        Ok(CallSettings {
            options,
            wake_bytes: ring_bytes as u64 / WAKE_PART,
            cookies: support.cookies,
        })
    }
}

impl Calls {
    pub(super) fn new(
        ebpf: &Ebpf,
        settings: &CallSettings,
        support: CallSupport,
    ) -> Result<Calls, ProbeError> {
        let own = OwnProcesses::none()?;
        Ok(Calls {
            options: settings.options,
            linker: Linker::new(ebpf, support, own.map())?,
            links: Links::new(Keeper::start()),
            counts: CountReader::new(hotplug::possible_cpus()?.len()),
            own,
        })
    }
}

impl Probe {
    /// What the kernel can do for call tracing; none if the probe was attached without.
    pub fn call_support(&self) -> Option<CallSupport> {
        Some(self.calls.as_ref()?.linker.support())
    }

    /// From now on calls of this process are neither recorded nor counted, nor those of the processes that it runs
    /// for itself (`profiler_target::background`). Else what is done with a record makes more of them.
    pub fn leave_out_own_calls(&mut self) -> Result<(), ProbeError> {
        match &mut self.calls {
            Some(calls) => calls.own.add(),
            None => Ok(()),
        }
    }

    /// Attaches places of one file. Those that the kernel refuses are returned by their index, with
    /// its reason; the others are attached. The file may be any descriptor of it.
    pub fn attach_calls(
        &mut self,
        target: CallTarget,
        file: BorrowedFd<'_>,
        sites: &[CallSite],
    ) -> Result<(CallLink, Vec<(usize, ProbeError)>), ProbeError> {
        let calls = self.calls.as_mut().ok_or_else(not_tracing)?;
        for site in sites {
            check_probe(site.probe, &calls.options)?;
        }
        let mut fds = LinkFds::new();
        let attached = calls.linker.attach(target, file, sites, &mut fds);
        // Whatever has become of it: nothing of it is closed here.
        let link = calls.links.add(sites, fds);
        match (attached, link) {
            (Ok(refused), Ok(link)) => Ok((link, refused)),
            (Err(error), Ok(link)) => {
                calls.links.release([link.0]);
                Err(error)
            }
            (_, Err(error)) => Err(error),
        }
    }

    /// Detaches places. No hit is recorded once this has returned, unless the kernel takes very long;
    /// what was recorded before is still drained.
    pub fn detach_calls(&mut self, link: CallLink) {
        if let Some(calls) = &mut self.calls {
            calls.links.release([link.0]);
            calls.links.wait(Instant::now() + PATIENCE);
        }
    }

    /// Detaches places, but does not wait for it: for those whose hits count no longer, because the
    /// process has ended or the probe is set to another generation.
    pub fn release_calls(&mut self, links: impl IntoIterator<Item = CallLink>) {
        if let Some(calls) = &mut self.calls {
            calls.links.release(links.into_iter().map(|link| link.0));
        }
    }

    /// Detaches all places, together, but does not wait for it; what is left of them outlives the probe.
    /// None if the probe was attached without calls.
    pub fn release_all_calls(&mut self) -> Option<LeavingCalls> {
        let calls = self.calls.as_mut()?;
        calls.links.release_all();
        let none = Links::new(Keeper::without_process());
        Some(LeavingCalls(std::mem::replace(&mut calls.links, none)))
    }

    /// Waits until hits that are under way have been counted and recorded: none of them comes after
    /// this of a probe that was set before not to record any. Takes some 10 ms.
    pub fn settle_calls(&self) -> Result<(), ProbeError> {
        let rings = self.cpus.iter().take(1);
        let rings: Vec<_> = rings
            .filter_map(|cpu| Some((cpu.cpu, cpu.call_ring.as_ref()?.as_fd())))
            .collect();
        // The kernel waits for all programs when a map of maps is changed by user space, even if it
        // is not.
        ring::install(&self.ebpf, "CALL_RINGS", &rings)
    }

    /// Sets what a probe does at its hits, and which values it fetches.
    pub fn set_probe(
        &mut self,
        probe: u32,
        control: ProbeControl,
        fetches: &[Fetch],
    ) -> Result<(), ProbeError> {
        self.set_probes(&[(probe, control, fetches)])
    }

    /// Sets what several probes do, in few system calls.
    pub fn set_probes(
        &mut self,
        probes: &[(u32, ProbeControl, &[Fetch])],
    ) -> Result<(), ProbeError> {
        let calls = self.calls.as_mut().ok_or_else(not_tracing)?;
        let mut fetch_keys = Vec::new();
        let mut fetch_values = Vec::new();
        for (probe, _, fetches) in probes {
            check_probe(*probe, &calls.options)?;
            if fetches.is_empty() {
                continue;
            }
            if !calls.options.fetches || fetches.len() > MAX_FETCHES {
                return Err(ProbeError::Request(format!(
                    "{} values of a traced function: at most {} can be fetched",
                    fetches.len(),
                    if calls.options.fetches {
                        MAX_FETCHES
                    } else {
                        0
                    }
                )));
            }
            let mut value = [Fetch::default(); MAX_FETCHES];
            value[..fetches.len()].copy_from_slice(fetches);
            fetch_keys.push(*probe);
            fetch_values.push(value);
        }
        let keys: Vec<u32> = probes.iter().map(|(probe, _, _)| *probe).collect();
        let values: Vec<ProbeControl> = probes.iter().map(|(_, control, _)| *control).collect();
        let failed = |error| ProbeError::from_io("set probes of functions", error);
        // What to fetch comes before the order to fetch it.
        if !fetch_keys.is_empty() {
            let map = load::map_fd(&self.ebpf, "FETCHES")?;
            bpf::update_map(map, &fetch_keys, &fetch_values).map_err(failed)?;
        }
        bpf::update_map(load::map_fd(&self.ebpf, "PROBES")?, &keys, &values).map_err(failed)?;
        if let Some(highest) = keys.iter().max() {
            calls.counts.cover(highest + 1);
        }
        Ok(())
    }

    /// Forgets the calls that are open on the kernel side, which limits need to know: after a time in
    /// which no probe recorded, their exits can't be told from those of others.
    pub fn forget_open_calls(&self) -> Result<(), ProbeError> {
        let limited = |calls: &Calls| calls.options.has_limits();
        if !self.calls.as_ref().is_some_and(limited) {
            return Ok(());
        }
        let map = load::map_fd(&self.ebpf, "OPEN_CALLS")?;
        bpf::clear_map(map, load::LIMITED_STACKS)
            .map_err(|error| ProbeError::from_io("forget open calls", error))
    }

    /// Adds to `out` the counts of the probes whose counts have changed since the last call: sums
    /// over all processors since attaching.
    pub fn call_counts(&mut self, out: &mut Vec<(u32, CallCounters)>) {
        let Some(calls) = &mut self.calls else { return };
        background::forget_ended();
        let read = load::map_fd(&self.ebpf, "CALL_COUNTS").and_then(|map| {
            let read = calls.counts.read(map, out);
            read.map_err(|error| ProbeError::from_io("read counts of calls", error))
        });
        if let Err(error) = read {
            log::warn!("{error}");
        }
    }
}

fn not_tracing() -> ProbeError {
    ProbeError::Request("calls can't be traced: the probe was attached without".to_owned())
}

fn check_probe(probe: u32, options: &CallOptions) -> Result<(), ProbeError> {
    if probe < options.max_probes {
        return Ok(());
    }
    Err(ProbeError::Request(format!(
        "probe {probe} of a traced function is not below the {} that were announced",
        options.max_probes
    )))
}
