//! The kernel side, attached: loads the programs, opens the events, drains the buffers.
//!
//! [`ProbeOptions`] -> [`Probe`] -> raw events, unordered between buffers, times in nanoseconds of
//! CLOCK_MONOTONIC. Dropping a probe takes everything back out of the kernel.
//!
//! What does not belong here: what records mean (`decode`), their order (`order`), whom they are
//! about (`resolve`).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/count_samples.rs")]
#![doc = "```"]

mod adjust;
mod bpf;
mod btf;
mod calls;
mod cgroups;
mod children;
mod error;
pub mod features;
mod hotplug;
mod idle;
mod instructions;
mod interpreters;
mod load;
mod losses;
mod memory;
mod misjudged;
mod offsets;
pub mod privileges;
mod ring;
mod sampler;
mod sideband;
mod source;
mod sys;
mod tracefs;
mod unwind;
mod waiting;
mod waits;
mod watched;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya_log::EbpfLogger;
use bytes::{Bytes, BytesMut};
use profiler_common::{
    control::{Counters, MAX_SOURCES, WATCH_PROCESS},
    interpreter::Layout,
    sched::WaitCounters,
};
use rustix::{
    event::epoll,
    time::{ClockId, clock_gettime},
};

pub use calls::{
    CallLink, CallOptions, CallSite, CallSupport, CallTarget, KEEPER, LeavingCalls, calibrate,
    call_support, keep, offer,
};
pub use error::ProbeError;
pub use misjudged::is_kernel_misjudged;
pub use profiler_unwind::kernel::{KernelTables, MappedCode, NoRoom, Slot};
pub use sampler::{AttachedSource, max_frequency_hz};
pub use source::{COUNTERS, CPU_CLOCK, Counter, EventSpec, Rate, SourceSpec, UnknownEvent};
pub use unwind::{UnwindOptions, Unwinder};

use self::{
    adjust::Adjustment,
    btf::Btf,
    calls::{CallSettings, Calls},
    cgroups::{CgroupSettings, Cgroups},
    children::Children,
    interpreters::{InterpreterProcesses, InterpreterSettings},
    losses::{Account, LossMeter},
    ring::Ring,
    sampler::Plan,
    sideband::SideBand,
    tracefs::Tracefs,
    waiting::{UserStacks, Waiting},
    waits::{WaitSettings, Waits},
};
use profiler_model::decode::Decoder;
use profiler_model::raw::{ItemStore, RawEvent};
use profiler_model::{Cpu, Pid, Tid, Timestamp, heap};
use profiler_target::Filter;
use profiler_target::cgroup::Hierarchy;

/// A clock that ticks on does so within this time, however busy the machine.
const MIN_PATIENCE_NS: u64 = 3_000_000_000;

/// The reader is woken when it has not read so large a part of a ring; copies of stacks take up to twice
/// that.
const WAKE_PART: u64 = 4;

/// What to record.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Event sources; samples name them by their index here. At least one, unless calls are traced or
    /// waits recorded.
    pub sources: Vec<SourceSpec>,
    /// If calls of functions are traced: how.
    pub calls: Option<CallOptions>,
    /// What to keep samples of.
    pub filter: Filter,
    /// The hierarchy that samples name a thread's cgroup by, and that the filter's cgroups are of. Cgroups
    /// of it that are made and removed are told. None: samples name none.
    pub hierarchy: Option<Hierarchy>,
    /// Memory for all buffers together but those for calls, in bytes.
    pub buffer_bytes: usize,
    /// Whether to walk kernel stacks.
    pub kernel_stacks: bool,
    /// Whether to walk user stacks.
    pub user_stacks: bool,
    /// How user stacks are walked; none: by frame pointers alone.
    pub unwind: Option<UnwindOptions>,
    /// Whether the kernel side logs (to the logger, at debug level).
    pub kernel_log: bool,
    /// Whether to record when threads wait: as samples of a source behind all others, [`profiler_model::OFF_CPU`].
    pub off_cpu: bool,
    /// Nothing is sampled until [`Probe::adjust`] says so: there is one source, whose frequency and
    /// tasks, and whether to walk kernel stacks, change while it is attached.
    pub adjustable: bool,
}

/// What a [`Probe::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStats {
    /// Events put out.
    pub events: usize,
    /// Bytes read from ring buffers.
    pub ring_bytes: usize,
    /// Bytes read from side-band buffers.
    pub side_band_bytes: usize,
    /// Records or parts of them that this version doesn't know.
    pub unknown: u64,
    /// Records that could not be decoded.
    pub bad: u64,
}

/// Programs and events in the kernel.
pub struct Probe {
    sources: Vec<Plan>,
    attached: Vec<AttachedSource>,
    cpus: Vec<CpuProbe>,
    /// Events that serve all processors: tracepoints.
    shared_events: Vec<OwnedFd>,
    ebpf: Ebpf,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
    epoll: OwnedFd,
    sizes: Sizes,
    losses: LossMeter,
    calls: Option<Calls>,
    cgroups: Cgroups,
    interpreters: InterpreterProcesses,
    unwinder: Option<Unwinder>,
    /// None if waits are not recorded.
    waits: Option<Waits>,
    /// None if sampling does not change.
    adjustment: Option<Adjustment>,
    /// Side-band records of processors that have gone, not decoded yet.
    left: Vec<(u32, Bytes)>,
    buffer: BytesMut,
    items: ItemStore,
}

#[derive(Clone, Copy)]
struct Sizes {
    ring_bytes: usize,
    /// None if calls are not traced.
    call_ring_bytes: Option<usize>,
    side_band_bytes: usize,
}

/// What belongs to one processor.
struct CpuProbe {
    cpu: u32,
    // Stops before the buffers go.
    samplers: Vec<OwnedFd>,
    ring: Ring,
    call_ring: Option<Ring>,
    /// None while the processor is offline.
    side_band: Option<SideBand>,
    /// Ticks of its clock when last looked at, and when they last differed.
    ticks: u64,
    ticked: Timestamp,
}

impl Probe {
    /// Loads and attaches everything: the side-band first, so that a sample's process is known
    /// before the sample. On an error nothing stays behind.
    pub fn attach(options: ProbeOptions) -> Result<Box<Probe>, ProbeError> {
        Probe::attach_as(options, false)
    }

    /// As [`Probe::attach`], for tests of the walk of user stacks: every sample carries the registers
    /// that the walk began with, and up to `profiler_common::unwind::PROOF_BYTES` of the stack, as the
    /// copy that a sample of a file without a table has otherwise.
    #[doc(hidden)]
    pub fn attach_with_proof(options: ProbeOptions) -> Result<Box<Probe>, ProbeError> {
        Probe::attach_as(options, true)
    }

    fn attach_as(options: ProbeOptions, unwind_proof: bool) -> Result<Box<Probe>, ProbeError> {
        check_count(
            options.sources.len(),
            options.calls.is_some() || options.off_cpu,
        )?;
        if options.adjustable {
            adjust::check(&options)?;
        }
        let online = hotplug::online()?;
        let follows = options.adjustable || options.filter.is_by_ids();
        let tracefs = has_tracepoints(&options.sources)
            .then(Tracefs::open)
            .transpose()?;
        let sources = options
            .sources
            .iter()
            .map(|spec| Plan::new(spec, tracefs.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;

        if options.off_cpu || tracefs.is_some() {
            features::check_tracepoints()?;
        }

        // Several ask it; those that can't do without say so themselves.
        let types = Btf::of_kernel().ok();
        let children = follows.then(Children::new).transpose()?;
        let cgroups = CgroupSettings::new(&options)?;
        let waits = options
            .off_cpu
            .then(|| WaitSettings::new(online.len()))
            .transpose()?;
        let sizes = Sizes::new(&options, online.len());
        let support = options.calls.map(|_| call_support()).transpose()?;
        let settings = match (options.calls, &support, sizes.call_ring_bytes) {
            (Some(calls), Some(support), Some(bytes)) => {
                Some(CallSettings::new(calls, support, bytes)?)
            }
            _ => None,
        };
        let mut cpus = Vec::with_capacity(online.len());
        for cpu in online {
            cpus.push(CpuProbe {
                cpu,
                samplers: Vec::new(),
                ring: Ring::create(sizes.ring_bytes)?,
                call_ring: sizes.call_ring_bytes.map(Ring::create).transpose()?,
                side_band: Some(sizes.side_band(cpu)?),
                ticks: 0,
                ticked: now(),
            });
        }

        let mut periods = [0; MAX_SOURCES];
        for (period, source) in periods.iter_mut().zip(&sources) {
            *period = source.kernel_period();
        }
        let interpreters = InterpreterSettings::new(options.user_stacks);
        let unwind = options.unwind.filter(|_| options.user_stacks);
        let mut ebpf = load::load(&load::Settings {
            filter: &options.filter,
            cgroups: &cgroups,
            waits: waits.as_ref(),
            adjustable: options.adjustable,
            kernel_stacks: options.kernel_stacks,
            user_stacks: options.user_stacks,
            interpreters: &interpreters,
            unwind: unwind.as_ref(),
            unwind_proof,
            kernel_log: options.kernel_log,
            periods,
            wake_bytes: sizes.ring_bytes as u64 / WAKE_PART,
            possible_cpus: hotplug::possible()?,
            calls: settings,
            children: children.as_ref(),
        })?;
        let waiting = match (&waits, &types) {
            (Some(waits), Some(types)) if waits.knows_who_runs() => {
                let user = match (
                    options.user_stacks,
                    unwind.is_some(),
                    options.filter.is_empty(),
                ) {
                    (false, ..) => UserStacks::None,
                    (true, true, false) => UserStacks::Copied,
                    _ => UserStacks::Leaf,
                };
                Waiting::load(&ebpf, types, user).unwrap_or_else(|error| {
                    log::warn!("threads that wait already are not known: {error}");
                    None
                })
            }
            _ => None,
        };
        drop(types);
        let calls = match (&settings, support) {
            (Some(settings), Some(support)) => Some(Calls::new(&ebpf, settings, support)?),
            _ => None,
        };
        // Takes its map out of the object's: after those who look all maps up, as programs of calls do.
        let logger = options.kernel_log.then(|| EbpfLogger::init(&mut ebpf));
        let logger = logger
            .transpose()
            .map_err(|error| ProbeError::Load(error.to_string()))?;

        let unwinder = unwind.map(|unwind| Unwinder::new(&ebpf, &unwind));
        let unwinder = unwinder.transpose()?;

        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| ProbeError::from_io("make an epoll descriptor", error.into()))?;
        let interpreters = interpreters.attach();
        let attached = sources
            .iter()
            .map(|plan| plan.attached.clone())
            .chain(waits.as_ref().map(|_| waits::source()))
            .collect();
        let mut probe = heap::boxed(move || Probe {
            attached,
            sources,
            cpus,
            shared_events: Vec::new(),
            ebpf,
            logger,
            epoll,
            sizes,
            losses: LossMeter::new(now(), &idle::read()),
            calls,
            cgroups: Cgroups::default(),
            interpreters,
            unwinder,
            waits: None,
            adjustment: options.adjustable.then(Adjustment::default),
            left: Vec::new(),
            buffer: BytesMut::new(),
            items: ItemStore::default(),
        });
        for cpu in &probe.cpus {
            probe.poll(cpu, true)?;
        }
        probe.install_rings()?;
        probe.cgroups = cgroups.attach(&mut probe.ebpf)?;
        if let Some(children) = &children {
            let events = children.attach(&mut probe.ebpf)?;
            probe.shared_events.extend(events);
        }
        if let Some(waits) = &waits {
            probe.waits = Some(waits.attach(&mut probe.ebpf, waiting, now())?);
        }
        probe.start_sampling()?;
        Ok(probe)
    }

    /// The sources as they are really used, in the order in which they were asked for.
    pub fn sources(&self) -> &[AttachedSource] {
        &self.attached
    }

    /// Becomes readable when the side-band has a mapping, a ring buffer of samples is more than half
    /// full, or an eighth of one of calls was written.
    /// [`Probe::drain`] makes it unreadable again.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether [`Probe::wake_fd`] is readable now.
    pub fn is_awake(&self) -> bool {
        let flags = rustix::event::PollFlags::IN;
        let mut polled = [rustix::event::PollFd::new(&self.epoll, flags)];
        let at_once = rustix::event::Timespec::default();
        rustix::event::poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Decodes everything that is in the buffers now. Unordered between processors.
    pub fn drain(&mut self, out: &mut Vec<RawEvent>) -> DrainStats {
        self.clear_wake();
        let before = out.len();
        let mut filled = false;
        let mut stats = DrainStats::default();
        let mut decoder = Decoder::default();
        for (cpu, records) in self.left.drain(..) {
            stats.side_band_bytes += records.len();
            decoder.side_band(Cpu(cpu), &records, out);
        }
        for cpu in &mut self.cpus {
            if let Some(side_band) = &mut cpu.side_band {
                let records = side_band.take();
                stats.side_band_bytes += records.len();
                decoder.side_band(Cpu(cpu.cpu), &records, out);
            }
            stats.ring_bytes += cpu
                .ring
                .take(&mut self.buffer, |record| decoder.record(record, out));
            if let Some(ring) = &mut cpu.call_ring {
                let number = Cpu(cpu.cpu);
                let items = &mut self.items;
                let taken = ring.visit(|record| {
                    decoder.call(number, record, |values| items.add(values), out);
                });
                // Then some may have found no room, which is to be known before what came since is told.
                filled |= taken >= ring.bytes() / 2;
                stats.ring_bytes += taken;
            }
        }
        self.items.close();
        if filled {
            let lost_calls = losses::read_call_losses(&self.ebpf);
            self.losses.update_calls(&lost_calls, now(), out);
        }
        self.cgroups.note_removed(&mut self.ebpf, &out[before..]);
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
        decoder.losses(now(), out);
        stats.events = out.len() - before;
        stats.unknown = decoder.unknown;
        stats.bad = decoder.bad;
        stats
    }

    /// Adds what was lost since the last call (since attaching, for the first) to `out`, for each
    /// processor and reason. `now` is the time of this call. Lost side-band records are not among
    /// these: they are in the side-band itself.
    pub fn losses(&mut self, now: Timestamp, out: &mut Vec<RawEvent>) {
        if let Some(adjustment) = &mut self.adjustment {
            out.append(&mut adjustment.lost);
        }
        if let Some(waits) = &mut self.waits {
            waits.losses(&self.ebpf, now, out);
        }
        self.update_losses(now, out, false);
    }

    /// Enters the threads that wait already, as if they had begun to now, and adds their stacks to `out`. To be
    /// called once, when time begins to count; a process that waits for us is passed over. `read` gives what there is
    /// of so many bytes of a thread's memory: whoever does that may wait for the target as long as it likes.
    pub fn begin_waits(
        &mut self,
        passed_over: Option<Pid>,
        read: &mut dyn FnMut(Pid, Tid, u64, usize) -> Vec<u8>,
        out: &mut Vec<RawEvent>,
    ) -> Result<(), ProbeError> {
        match &mut self.waits {
            Some(waits) => waits.begin(&self.ebpf, passed_over, read, out),
            None => Ok(()),
        }
    }

    /// Adds the waits that go on at `at`, which is not later than now, to `out`, as if they ended then; they are told
    /// again when they do. What is told of a thread that is just switched may be wrong in its stack and state,
    /// not in its time.
    pub fn tell_waits(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) -> Result<(), ProbeError> {
        match &self.waits {
            Some(waits) => waits.tell_going_on(&mut self.ebpf, at, out),
            None => Ok(()),
        }
    }

    /// Adds all that was not told of waits up to `at` to `out`, which is not later than now: totals, and the waits that go
    /// on, as with [`Probe::tell_waits`]. Both are told again in their time. False if no waits are recorded.
    pub fn tell_waits_up_to(
        &mut self,
        at: Timestamp,
        out: &mut Vec<RawEvent>,
    ) -> Result<bool, ProbeError> {
        match &self.waits {
            Some(waits) => waits.tell_up_to(&mut self.ebpf, at, out).map(|()| true),
            None => Ok(false),
        }
    }

    /// Ends the recording of waits, and adds what the kernel side still knows to `out`: the rest of the
    /// totals, and the waits that go on. What lies in the buffers is still to be drained.
    pub fn finish_waits(&mut self, out: &mut Vec<RawEvent>) {
        if let Some(mut waits) = self.waits.take() {
            Waits::take_out(&mut self.ebpf);
            // What was lost until then is counted.
            let at = now();
            waits.losses(&self.ebpf, at, out);
            waits.tell_rest(&mut self.ebpf, at, out);
        }
    }

    /// Has the stacks of waits sent again, because those that were sent are not kept any longer. Gives
    /// the keys of the waits that go on: these stacks are to be kept.
    pub fn forget_wait_stacks(&mut self) -> Result<Vec<u64>, ProbeError> {
        match &self.waits {
            Some(waits) => waits.forget_stacks(&mut self.ebpf),
            None => Ok(Vec::new()),
        }
    }

    /// What each processor has seen of waits since attaching.
    pub fn wait_counters(&self) -> Vec<WaitCounters> {
        waits::counters(&self.ebpf)
    }

    fn update_losses(&mut self, now: Timestamp, out: &mut Vec<RawEvent>, rebase: bool) {
        let counters = self.counters();
        let lost_calls = match &self.calls {
            Some(_) => losses::read_call_losses(&self.ebpf),
            None => Vec::new(),
        };
        let periods_ns = self.periods();
        let account = Account {
            counters: &counters,
            periods_ns: &periods_ns,
            idle_ns: &idle::read(),
            lost_calls: &lost_calls,
        };
        let unfollowed = self.losses.update(&account, now, out);
        if rebase {
            self.losses.rebase(&account, now);
        }
        if unfollowed > 0 {
            log::warn!(
                "{unfollowed} new processes or threads are not recorded, nor their children: {} are \
                 followed already, which is the most",
                load::WATCHED_TASKS
            );
        }
        self.cgroups.tell_losses(&self.ebpf);
    }

    /// What each processor has seen of each source since attaching: `[source][processor]`.
    pub fn counters(&self) -> Vec<Vec<Counters>> {
        losses::read_counters(&self.ebpf, self.sources.len())
    }

    /// Takes up processors that have come online and lets go of those that have gone; what they
    /// left in their buffers is still drained. Returns whether anything changed.
    pub fn update_cpus(&mut self) -> Result<bool, ProbeError> {
        let online = hotplug::online()?;
        let mut changed = false;
        self.note_ticks(now());
        let patience_ns = self.patience_ns();
        for cpu in &mut self.cpus {
            let stands_still = patience_ns.is_some_and(|ns| now().since(cpu.ticked) >= ns);
            if cpu.side_band.is_some() && (stands_still || !online.contains(&cpu.cpu)) {
                cpu.samplers.clear();
                if let Some(mut side_band) = cpu.side_band.take() {
                    self.left.push((cpu.cpu, side_band.take()));
                }
                changed = true;
            }
        }
        for number in online {
            let known = self.cpus.iter().position(|cpu| cpu.cpu == number);
            if known.is_some_and(|index| self.cpus[index].side_band.is_some()) {
                continue;
            }
            self.take_up(number, known)?;
            changed = true;
        }
        Ok(changed)
    }

    /// Adds a process to those that the filter names, with the children that it starts from now on.
    /// For a command that was created stopped. The filter must name tasks already.
    pub fn watch(&mut self, pid: Pid) -> Result<(), ProbeError> {
        load::watch(&mut self.ebpf, pid.0, WATCH_PROCESS)
    }

    /// Says whether a cgroup is wanted, with all below it of which nothing else was said: what has
    /// come undecided is decided one by one. The filter must name cgroups already.
    pub fn decide(&mut self, id: u64, wanted: bool) -> Result<(), ProbeError> {
        self.cgroups.decide(&mut self.ebpf, id, wanted)
    }

    /// Says where the state of an interpreter is in a process that runs it, and where that version has its
    /// members, so that its samples have its frames; or that it does not run it any more.
    pub fn set_interpreter(
        &mut self,
        pid: Pid,
        interpreter: u8,
        runs: Option<(u64, Layout)>,
    ) -> Result<(), ProbeError> {
        self.interpreters.tell(&self.ebpf, (pid, interpreter), runs)
    }

    /// Memory in the kernel: BPF maps, programs and perf buffers, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let maps = self.ebpf.maps().filter_map(|(_, map)| memory::map_fd(map));
        let rings = self
            .cpus
            .iter()
            .flat_map(|cpu| [Some(&cpu.ring), cpu.call_ring.as_ref()])
            .flatten()
            .map(Ring::as_fd);
        let locked: u64 = maps.chain(rings).map(memory::locked_bytes).sum();
        let tables = self.unwinder.as_ref().map_or(0, Unwinder::segment_bytes);
        let perf: usize = self
            .cpus
            .iter()
            .filter_map(|cpu| cpu.side_band.as_ref())
            .map(SideBand::memory_bytes)
            .sum();
        locked + tables + perf as u64
    }

    /// Tables that user stacks are walked by; none if they are not.
    pub fn unwinder(&mut self) -> Option<&mut Unwinder> {
        self.unwinder.as_mut()
    }
}

impl Probe {
    /// Looks whether the clocks of all processors go.
    fn note_ticks(&mut self, now: Timestamp) {
        if !self.is_sampling() {
            return;
        }
        let Some(clock) = self.sources.iter().position(Plan::always_ticks) else {
            return;
        };
        let counters = self.counters();
        for cpu in &mut self.cpus {
            let counter = counters[clock].get(cpu.cpu as usize);
            let ticks = counter.map_or(0, |counter| counter.ticks);
            if std::mem::replace(&mut cpu.ticks, ticks) != ticks || cpu.side_band.is_none() {
                cpu.ticked = now;
            }
        }
    }

    /// How long a clock may stand still. The kernel ends the events of a processor that goes
    /// offline, and gives none to one that has come back before anybody looked (in a suspend): it
    /// is online, and its clock stands still.
    fn patience_ns(&self) -> Option<u64> {
        if !self.is_sampling() {
            return None;
        }
        let clock = self.sources.iter().find(|plan| plan.always_ticks())?;
        Some((3 * clock.kernel_period()).max(MIN_PATIENCE_NS))
    }

    fn install_rings(&self) -> Result<(), ProbeError> {
        let rings = |of: fn(&CpuProbe) -> Option<&Ring>| -> Vec<_> {
            let known = self.cpus.iter();
            known
                .filter_map(|cpu| Some((cpu.cpu, of(cpu)?.as_fd())))
                .collect()
        };
        ring::install(&self.ebpf, "RINGS", &rings(|cpu| Some(&cpu.ring)))?;
        if self.calls.is_some() {
            ring::install(
                &self.ebpf,
                "CALL_RINGS",
                &rings(|cpu| cpu.call_ring.as_ref()),
            )?;
        }
        Ok(())
    }

    /// Opens all sampling events, then starts them, so that they start at about the same time.
    fn start_sampling(&mut self) -> Result<(), ProbeError> {
        for (index, plan) in self.sources.iter().enumerate() {
            let program = load::load_program(&mut self.ebpf, &plan.program(index))?;
            let program = load::program_fd(program)?;
            if let sampler::PlannedEvent::Tracepoint { id, .. } = plan.event {
                let event = sampler::attach_tracepoint(id, &plan.attached.name, program)?;
                self.shared_events.push(event);
                continue;
            }
            for cpu in &mut self.cpus {
                cpu.samplers.extend(plan.open_on(cpu.cpu, program)?);
            }
        }
        if !self.is_sampling() {
            return Ok(());
        }
        self.cpus.iter().try_for_each(CpuProbe::start)
    }

    /// Takes up a processor that came online; `known` is its index if it was online before.
    fn take_up(&mut self, number: u32, known: Option<usize>) -> Result<(), ProbeError> {
        let side_band = Some(self.sizes.side_band(number)?);
        let index = match known {
            Some(index) => {
                self.cpus[index].side_band = side_band;
                self.cpus[index].ticked = now();
                index
            }
            None => {
                let ring = Ring::create(self.sizes.ring_bytes)?;
                let call_ring = self.sizes.call_ring_bytes.map(Ring::create).transpose()?;
                self.cpus.push(CpuProbe {
                    cpu: number,
                    samplers: Vec::new(),
                    ring,
                    call_ring,
                    side_band,
                    ticks: 0,
                    ticked: now(),
                });
                self.install_rings()?;
                self.cpus.len() - 1
            }
        };
        self.poll(&self.cpus[index], known.is_none())?;
        for (source, plan) in self.sources.iter().enumerate() {
            if let sampler::PlannedEvent::Counter { .. } = plan.event {
                let name = plan.program(source);
                let program = self.ebpf.program(&name);
                let program = program.ok_or_else(|| load::missing(&name))?;
                let event = plan.open_on(number, load::program_fd(program)?)?;
                self.cpus[index].samplers.extend(event);
            }
        }
        if !self.is_sampling() {
            return Ok(());
        }
        self.cpus[index].start()
    }

    /// Has the buffers of a processor wake the reader. Edge-triggered: the kernel side announces a
    /// half-full ring once, and records below that are no reason to wake.
    fn poll(&self, cpu: &CpuProbe, new_ring: bool) -> Result<(), ProbeError> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(cpu.cpu.into());
        let failed = |error: rustix::io::Errno| ProbeError::from_io("poll buffers", error.into());
        if new_ring {
            epoll::add(&self.epoll, &cpu.ring, data, flags).map_err(failed)?;
            if let Some(ring) = &cpu.call_ring {
                epoll::add(&self.epoll, ring, data, flags).map_err(failed)?;
            }
        }
        if let Some(side_band) = &cpu.side_band {
            epoll::add(&self.epoll, side_band, data, flags).map_err(failed)?;
        }
        Ok(())
    }

    fn clear_wake(&self) {
        let mut ready = Vec::with_capacity(3 * self.cpus.len() + 1);
        let now = rustix::event::Timespec::default();
        // If this fails, the next wait returns at once, and nothing is lost.
        let _ = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut ready),
            Some(&now),
        );
    }
}

impl CpuProbe {
    fn start(&self) -> Result<(), ProbeError> {
        for event in &self.samplers {
            sys::enable(event.as_fd()).map_err(|error| {
                ProbeError::from_io(format!("start sampling on processor {}", self.cpu), error)
            })?;
        }
        Ok(())
    }
}

impl Sizes {
    fn new(options: &ProbeOptions, cpus: usize) -> Sizes {
        let total = options.buffer_bytes;
        // An eighth is plenty for the side-band, whose reader is woken by its first mapping.
        let side_band_bytes = sideband::buffer_bytes(total / 8, cpus);
        Sizes {
            ring_bytes: ring::ring_bytes(total.saturating_sub(side_band_bytes * cpus), cpus),
            call_ring_bytes: options
                .calls
                .map(|calls| ring::ring_bytes(calls.buffer_bytes, cpus)),
            side_band_bytes,
        }
    }

    /// Opens that of a processor. Calls of new processes and threads are missing until the reader has seen to them.
    fn side_band(&self, cpu: u32) -> Result<SideBand, ProbeError> {
        SideBand::open(cpu, self.side_band_bytes, self.call_ring_bytes.is_some())
    }
}

fn check_count(sources: usize, others: bool) -> Result<(), ProbeError> {
    if (usize::from(!others)..=MAX_SOURCES).contains(&sources) {
        return Ok(());
    }
    Err(ProbeError::Request(format!(
        "{sources} event sources: at least 1 and at most {MAX_SOURCES} can be recorded at a time"
    )))
}

fn has_tracepoints(sources: &[SourceSpec]) -> bool {
    sources
        .iter()
        .any(|source| matches!(source.event, EventSpec::Tracepoint { .. }))
}

/// The time on the clock of all events.
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::Monotonic);
    let ns = time.tv_sec.saturating_mul(1_000_000_000) + time.tv_nsec;
    Timestamp(ns.cast_unsigned())
}
