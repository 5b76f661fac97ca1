//! Waits of threads: settings of the kernel-side programs, attaching them, what they lost, and what
//! they still know when they are taken out.
//!
//! [`super::ProbeOptions`] -> globals and sizes; counters of the kernel side -> [`RawBody::Lost`]; what
//! is left in its table -> [`RawBody::Waits`] and, for waits that go on, [`RawBody::Wait`]. Times are
//! nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: records in rings (`decode`), what waits mean (`resolve`).

use std::{
    fs,
    hash::{BuildHasher, Hasher},
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, MapData},
};
use profiler_common::{
    COMM_LEN, KIND_WAIT, RECORD_VERSION, RecordHead,
    sample::FLAG_UNDECIDED,
    sched::{
        LEAST_WAIT_WINDOW_LOG, LONG_WAIT_NS, STATE_NEW, STATE_PREEMPTED, TASK_ON_CPU, ThreadWaits,
        WAIT_OFFSETS, WAITS_PER_SECOND, WALKS_PER_SECOND, WaitCounters, WaitRecord,
    },
};

use super::{
    ProbeError, bpf, features, hotplug, load, offsets, sampler::AttachedSource, sys::MapValue,
    waiting::Waiting,
};
use profiler_model::raw::{RawBody, RawEvent, RawWait, RawWaits};
use profiler_model::{Cpu, Lost, LostReason, OFF_CPU, Pid, Tid, Timestamp, Unit};

/// Fewest and most threads that are remembered by their place; 168 bytes of kernel memory each.
const MIN_THREADS: u64 = 16_384;
const MAX_THREADS: u64 = 131_072;
/// One in so many may be remembered besides, because its place is another one's; about 260 bytes each.
const APART: u32 = 4;
/// Places that are read at a time.
const PLACES_AT_ONCE: u32 = 4096;
/// The least that a processor may record and walk in a window, if that is no longer than the longest: what
/// is adapted by less is adapted by chance.
const MIN_BUDGET: u64 = 8;
/// The longest window, for thousands of processors: the logarithm of nanoseconds.
const LONGEST_WINDOW_LOG: u32 = 32;
/// Slots of `WAIT_KEYS`.
const KEY_SLOTS: u32 = 16_384;

const PROGRAMS: [(&str, &str); 4] = [
    // Before switches: a thread that is known from its first switch has no wake-up missing.
    ("wait_exec", "sched_process_exec"),
    ("wait_waking", "sched_waking"),
    ("wait_new", "sched_wakeup_new"),
    ("wait_switch", "sched_switch"),
];

/// Settings of the kernel side.
pub(super) struct WaitSettings {
    offsets: [u32; WAIT_OFFSETS],
    arguments: u32,
    registers: u8,
    seed: u64,
    window_log: u32,
    budget: u64,
    walks: u64,
    threads: u32,
    places: u32,
}

impl WaitSettings {
    /// For so many processors.
    pub(super) fn new(cpus: usize) -> Result<WaitSettings, ProbeError> {
        let (offsets, arguments) = offsets::of_waits().map_err(|error| {
            ProbeError::Request(format!(
                "this kernel's waits can't be recorded: {}",
                offsets::remedy(&error)
            ))
        })?;
        // Of those that there are, each may be known, and as many again may come.
        let threads = (4 * living_threads()).clamp(MIN_THREADS, MAX_THREADS) as u32;
        let Window { log, budget, walks } = Window::of(cpus);
        Ok(WaitSettings {
            offsets,
            arguments,
            registers: features::has_task_registers().into(),
            seed: std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish(),
            window_log: log,
            budget,
            walks,
            threads,
            places: threads.next_power_of_two() - 1,
        })
    }

    /// Attaches the programs.
    pub(super) fn attach(
        &self,
        ebpf: &mut Ebpf,
        waiting: Option<Waiting>,
        now: Timestamp,
    ) -> Result<Waits, ProbeError> {
        for (name, tracepoint) in PROGRAMS {
            load::attach_raw(ebpf, name, tracepoint)?;
        }
        Ok(Waits {
            reported: Vec::new(),
            skipped: 0,
            last: now,
            waiting,
            places: self.places,
            apart: (self.threads / APART) as usize,
        })
    }

    /// Whether this kernel says whether a thread is on a processor.
    pub(super) fn knows_who_runs(&self) -> bool {
        self.offsets[TASK_ON_CPU] != 0
    }

    /// Sets globals and sizes of maps.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader
            .override_global("WAIT_OFFSETS", &self.offsets, true)
            .override_global("WAIT_SWITCH", &self.arguments, true)
            .override_global("WAIT_REGISTERS", &self.registers, true)
            .override_global("WAIT_SEED", &self.seed, true)
            .override_global("WAIT_WINDOW_LOG", &self.window_log, true)
            .override_global("WAIT_BUDGET", &self.budget, true)
            .override_global("WAIT_WALK_BUDGET", &self.walks, true)
            .override_global("WAIT_PLACES", &self.places, true)
            .map_max_entries("WAIT_THREADS", self.places + 1)
            .map_max_entries("WAITING", self.threads / APART);
    }
}

/// What a processor may record and walk in which time.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    log: u32,
    budget: u64,
    walks: u64,
}

impl Window {
    /// As short as it can be, so that what is recorded follows what there is, for one of so many
    /// processors, which together keep to the limits of a second.
    fn of(cpus: usize) -> Window {
        let of = |log| {
            let share =
                |per_second: u64| (per_second << log) / (1_000_000_000 * cpus.max(1) as u64);
            Window {
                log,
                budget: share(WAITS_PER_SECOND),
                walks: share(WALKS_PER_SECOND),
            }
        };
        let mut windows = (LEAST_WAIT_WINDOW_LOG..LONGEST_WINDOW_LOG).map(of);
        let enough = windows.find(|window| window.budget.min(window.walks) >= MIN_BUDGET);
        enough.unwrap_or_else(|| of(LONGEST_WINDOW_LOG))
    }
}

/// How many threads there are.
fn living_threads() -> u64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // The fourth number is "running/all".
    let all = load
        .split(' ')
        .nth(3)
        .and_then(|text| text.split('/').nth(1));
    all.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The source as it is announced.
pub(super) fn source() -> AttachedSource {
    AttachedSource {
        name: OFF_CPU.to_owned(),
        unit: Unit::Nanoseconds,
        frequency_hz: None,
        period: None,
        note: None,
    }
}

/// The programs, attached.
pub(super) struct Waits {
    reported: Vec<WaitCounters>,
    /// Runs that the kernel left out and that were told of.
    skipped: u64,
    last: Timestamp,
    /// Who tells of threads that wait already; none: they are known when they wait next.
    waiting: Option<Waiting>,
    places: u32,
    apart: usize,
}

impl Waits {
    /// Enters the threads that wait already.
    pub(super) fn begin(
        &mut self,
        ebpf: &Ebpf,
        passed_over: Option<Pid>,
        read: &mut dyn FnMut(Pid, Tid, u64, usize) -> Vec<u8>,
        out: &mut Vec<RawEvent>,
    ) -> Result<(), ProbeError> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        waiting.enter(ebpf, passed_over, |ids| self.find(ebpf, ids), read, out)
    }

    /// What the kernel side has of a thread.
    fn find(&self, ebpf: &Ebpf, ids: u64) -> Option<ThreadWaits> {
        let mut found: Vec<ThreadWaits> = Vec::new();
        let places = load::map_fd(ebpf, "WAIT_THREADS").ok()?;
        bpf::read_array(places, ids as u32 & self.places, 1, 1, &mut found).ok()?;
        if let Some(thread) = found.first().filter(|thread| thread.ids == ids) {
            return Some(*thread);
        }
        let apart =
            HashMap::<_, u32, MapValue<ThreadWaits>>::try_from(ebpf.map("WAITING")?).ok()?;
        let MapValue(thread) = apart.get(&(ids as u32), 0).ok()?;
        (thread.ids == ids).then_some(thread)
    }

    /// Adds what was lost since the last call.
    pub(super) fn losses(&mut self, ebpf: &Ebpf, now: Timestamp, out: &mut Vec<RawEvent>) {
        let counters = counters(ebpf);
        self.reported.resize(
            counters.len().max(self.reported.len()),
            WaitCounters::default(),
        );
        let from = std::mem::replace(&mut self.last, now);
        for (cpu, (total, told)) in counters.iter().zip(&mut self.reported).enumerate() {
            for (reason, total, told) in [
                (
                    LostReason::WaitTable,
                    total.table_full,
                    &mut told.table_full,
                ),
                (LostReason::WaitUnseen, total.unseen, &mut told.unseen),
                (
                    LostReason::WaitRingFull,
                    total.ring_full,
                    &mut told.ring_full,
                ),
                (LostReason::WaitNested, total.nested, &mut told.nested),
            ] {
                let count = total.saturating_sub(*told);
                *told = total.max(*told);
                if count > 0 {
                    let cpu = Cpu(cpu as u32);
                    let lost = Lost {
                        cpu: Some(cpu),
                        from,
                        to: now,
                        count,
                        reason,
                    };
                    out.push(event(now, cpu, RawBody::Lost(lost)));
                }
            }
        }
        let skipped = skipped_runs(ebpf);
        let count = skipped.saturating_sub(self.skipped);
        self.skipped = skipped.max(self.skipped);
        if count > 0 {
            let lost = Lost {
                cpu: None,
                from,
                to: now,
                count,
                reason: LostReason::WaitUnseen,
            };
            out.push(event(now, Cpu(0), RawBody::Lost(lost)));
        }
    }

    /// Takes the programs out.
    pub(super) fn take_out(ebpf: &mut Ebpf) {
        for (name, _) in PROGRAMS.iter().rev() {
            let unloaded = load::raw_tracepoint(ebpf, name)
                .and_then(|program| program.unload().map_err(|error| load::refused(&error)));
            if let Err(error) = unloaded {
                log::debug!("{name} could not be taken out: {error}");
            }
        }
    }

    /// Tells of what was not told yet by programs that were taken out: totals, and the waits that go on.
    pub(super) fn tell_rest(&self, ebpf: &mut Ebpf, now: Timestamp, out: &mut Vec<RawEvent>) {
        if let Err(error) = self.each(ebpf, |thread| told_last(thread, now, out)) {
            log::warn!("the last totals of waits could not be read: {error}");
        }
    }

    /// Tells of the waits that go on at that time, as if they ended. The programs go on: an entry may be changed while
    /// it is copied, word by word and its first member first. So a wait's beginning is one that it had, but what
    /// comes behind may be of the thread's next wait, or be missing yet: the stack, the state, who woke it. Only where
    /// an entry changes hands in that moment could a wait begin before its thread did; that shows, since
    /// totals begin with the thread.
    pub(super) fn tell_going_on(
        &self,
        ebpf: &mut Ebpf,
        now: Timestamp,
        out: &mut Vec<RawEvent>,
    ) -> Result<(), ProbeError> {
        self.each(ebpf, |thread| {
            let is_whole = thread.from_ns >= thread.told_ns;
            // Names of threads are read when they are met, not each time.
            // All are told: none stands for others.
            if let Some(record) = so_far(thread, now, 1).filter(|_| is_whole) {
                out.push(open_wait(thread, record));
            }
        })
    }

    /// Tells all that is not told yet up to that time: totals, and the waits that go on. What was told so is told by the
    /// kernel side again, when its time comes. See [`Waits::tell_going_on`] for what may be wrong; totals that were
    /// read while they change are right again with what is told next.
    pub(super) fn tell_up_to(
        &self,
        ebpf: &mut Ebpf,
        now: Timestamp,
        out: &mut Vec<RawEvent>,
    ) -> Result<(), ProbeError> {
        self.each(ebpf, |thread| {
            if thread.from_ns == 0 || thread.from_ns >= thread.told_ns {
                // All are told: none stands for others.
                out.extend(so_far(thread, now, 1).map(|record| open_wait(thread, record)));
                out.extend(totals_so_far(thread, now));
            }
        })
    }

    /// Has all stacks sent again. Gives the keys of the waits that go on, whose stacks are not.
    pub(super) fn forget_stacks(&self, ebpf: &mut Ebpf) -> Result<Vec<u64>, ProbeError> {
        forget_keys(ebpf)?;
        let mut keys = Vec::new();
        self.each(ebpf, |thread| {
            if thread.from_ns != 0 && thread.key != 0 {
                keys.push(thread.key);
            }
        })?;
        Ok(keys)
    }

    /// All threads that are known.
    fn each(&self, ebpf: &mut Ebpf, mut each: impl FnMut(&ThreadWaits)) -> Result<(), ProbeError> {
        let apart =
            load::typed_map::<HashMap<&mut MapData, u32, MapValue<ThreadWaits>>>(ebpf, "WAITING")?;
        // A thread that is gone meanwhile is none. Where one goes, the kernel begins anew, so that some
        // come twice: no more are taken than fit.
        for (_, MapValue(thread)) in apart.iter().take(self.apart).filter_map(Result::ok) {
            each(&thread);
        }
        let map = load::map_fd(ebpf, "WAIT_THREADS")?;
        let mut threads: Vec<ThreadWaits> = Vec::new();
        let mut first = 0;
        while first < self.places {
            bpf::read_array(map, first, PLACES_AT_ONCE, 1, &mut threads)
                .map_err(|error| ProbeError::from_io("read what threads have waited", error))?;
            threads
                .iter()
                .filter(|thread| thread.ids != 0)
                .for_each(&mut each);
            first += PLACES_AT_ONCE;
        }
        Ok(())
    }
}

/// How often the kernel did not run one of the programs, because it ran on that processor already: a wake-up or a
/// switch that nobody saw. Kernels before 5.12 do not tell.
fn skipped_runs(ebpf: &Ebpf) -> u64 {
    let programs = PROGRAMS.iter().filter_map(|(name, _)| {
        let fd = load::program_fd(ebpf.program(name)?).ok()?.as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        skipped_of(&text)
    });
    programs.sum()
}

fn skipped_of(fdinfo: &str) -> Option<u64> {
    let mut lines = fdinfo.lines();
    let count = lines.find_map(|line| line.strip_prefix("recursion_misses:"))?;
    count.trim().parse().ok()
}

/// What was seen of waits, by processor.
pub(super) fn counters(ebpf: &Ebpf) -> Vec<WaitCounters> {
    match load::map_fd(ebpf, "WAIT_CPU").and_then(hotplug::values::<bpf::WaitSlot>) {
        Ok(slots) => slots.iter().map(|slot| slot.counters).collect(),
        Err(error) => {
            log::debug!("failed to read the counters of waits: {error}");
            Vec::new()
        }
    }
}

/// Forgets which stacks user space has.
fn forget_keys(ebpf: &Ebpf) -> Result<(), ProbeError> {
    let map: BorrowedFd<'_> = load::map_fd(ebpf, "WAIT_KEYS")?;
    let slots: Vec<u32> = (0..KEY_SLOTS).collect();
    let none = vec![0_u64; slots.len()];
    bpf::update_map(map.as_fd(), &slots, &none)
        .map_err(|error| ProbeError::from_io("forget the stacks of waits", error))
}

fn event(at: Timestamp, cpu: Cpu, body: RawBody) -> RawEvent {
    RawEvent { at, cpu, body }
}

/// Tells the rest of a thread's totals, its present wait as well if it waits.
fn told_last(thread: &ThreadWaits, now: Timestamp, out: &mut Vec<RawEvent>) {
    let (pid, tid) = ids_of(thread);
    if let Some(mut record) = so_far(thread, now, thread.share) {
        record.comm = comm_of(pid, tid);
        out.push(open_wait(thread, record));
    }
    out.extend(totals_so_far(thread, now));
}

/// A wait that goes on.
fn open_wait(thread: &ThreadWaits, record: WaitRecord) -> RawEvent {
    let wait = RawWait {
        record,
        undecided: is_undecided(thread),
        open: true,
    };
    let at = Timestamp(record.at_ns);
    event(at, Cpu(0), RawBody::Wait(Box::new(wait)))
}

/// A thread's totals that are not told yet, with the time of its present wait; none if they are nothing.
fn totals_so_far(thread: &ThreadWaits, now: Timestamp) -> Option<RawEvent> {
    let mut totals = thread.totals;
    if let Some((ns, woken_ns)) = waits_since(thread, now) {
        totals.runnable_ns += match woken_ns {
            0 => 0,
            woken_ns => now.0.saturating_sub(woken_ns),
        };
        if let Some(total) = totals.ns.get_mut(thread.state as usize) {
            *total += ns;
        }
    }
    if totals == Default::default() {
        return None;
    }
    let (pid, tid) = ids_of(thread);
    let waits = RawWaits {
        pid: Pid(pid),
        tid: Tid(tid),
        cgroup: thread.cgroup,
        undecided: is_undecided(thread),
        from: Timestamp(thread.told_ns),
        count: totals.count,
        ns: totals.ns,
        runnable_ns: totals.runnable_ns,
    };
    Some(event(now, Cpu(0), RawBody::Waits(Box::new(waits))))
}

/// How long a thread has waited by now, and since when it is runnable (0: it is not); none if it does not wait.
fn waits_since(thread: &ThreadWaits, now: Timestamp) -> Option<(u64, u64)> {
    if thread.from_ns == 0 || thread.from_ns >= now.0 {
        return None;
    }
    let is_runnable = matches!(thread.state, STATE_PREEMPTED | STATE_NEW);
    let woken_ns = match thread.woken_ns {
        _ if is_runnable => thread.from_ns,
        woken_ns if woken_ns >= thread.from_ns => woken_ns,
        _ => 0,
    };
    Some((now.0 - thread.from_ns, woken_ns))
}

/// The wait of a thread so far, without its name, if it waits and that is to be recorded. If it is short, it stands for
/// `share` of those that were as long.
fn so_far(thread: &ThreadWaits, now: Timestamp, share: u32) -> Option<WaitRecord> {
    let (ns, woken_ns) = waits_since(thread, now)?;
    // A new thread waits for nothing.
    if thread.state as usize >= thread.totals.ns.len() {
        return None;
    }
    let share = match ns {
        LONG_WAIT_NS.. => 1,
        _ => share,
    };
    let (pid, tid) = ids_of(thread);
    let is_woken = woken_ns != 0 && thread.state != STATE_PREEMPTED;
    let waker = if is_woken { thread.waker } else { 0 };
    (share > 0).then_some(WaitRecord {
        head: RecordHead {
            len: size_of::<WaitRecord>() as u32,
            kind: KIND_WAIT,
            version: RECORD_VERSION,
        },
        at_ns: now.0,
        from_ns: thread.from_ns,
        woken_ns: if is_woken { woken_ns } else { 0 },
        key: thread.key,
        cgroup: thread.cgroup,
        tgid: pid,
        tid,
        waker_tgid: (waker >> 32) as u32,
        waker_tid: waker as u32,
        cpu: 0,
        weight: share,
        state: thread.state,
        flags: thread.flags,
        comm: [0; COMM_LEN],
    })
}

fn ids_of(thread: &ThreadWaits) -> (u32, u32) {
    ((thread.ids >> 32) as u32, thread.ids as u32)
}

fn is_undecided(thread: &ThreadWaits) -> bool {
    thread.flags & u32::from(FLAG_UNDECIDED) != 0
}

/// The name of a thread that waits still.
fn comm_of(pid: u32, tid: u32) -> [u8; COMM_LEN] {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    profiler_model::raw::Comm::from_bytes(name.strip_suffix(b"\n").unwrap_or(&name)).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_the_kernel_leaves_out_are_read() {
        let told = "pos:\t0\nprog_type:\t17\nrun_cnt:\t0\nrecursion_misses:\t42\n";
        assert_eq!(skipped_of(told), Some(42));
        assert_eq!(skipped_of("pos:\t0\nprog_type:\t17\n"), None);
    }

    fn sleeper(from_ns: u64, share: u32) -> ThreadWaits {
        ThreadWaits {
            from_ns,
            ids: 7 << 32 | 8,
            key: 99,
            state: profiler_common::sched::STATE_SLEEPING,
            share,
            told_ns: from_ns,
            ..ThreadWaits::default()
        }
    }

    #[test]
    fn a_long_wait_that_goes_on_stands_for_itself_alone() {
        let told = |ns, share| {
            let mut out = Vec::new();
            told_last(&sleeper(1_000, share), Timestamp(1_000 + ns), &mut out);
            let weights = out.iter().filter_map(|event| match &event.body {
                RawBody::Wait(wait) => Some(wait.record.weight),
                _ => None,
            });
            weights.collect::<Vec<_>>()
        };
        assert_eq!(told(10, 8), [8]);
        assert!(told(10, 0).is_empty());
        // Whether its stack was walked or not.
        assert_eq!(told(LONG_WAIT_NS, 8), [1]);
        assert_eq!(told(LONG_WAIT_NS, 0), [1]);
    }

    #[test]
    fn a_wait_so_far_says_who_has_ended_it() {
        let now = Timestamp(500);
        let woken = ThreadWaits {
            woken_ns: 200,
            waker: 3 << 32 | 4,
            ..sleeper(100, 1)
        };
        let record = so_far(&woken, now, 1).unwrap();
        assert_eq!((record.at_ns, record.from_ns), (500, 100));
        assert_eq!((record.woken_ns, record.waker_tid), (200, 4));
        // That was an earlier wait's.
        let woken = ThreadWaits {
            woken_ns: 50,
            ..woken
        };
        let record = so_far(&woken, now, 1).unwrap();
        assert_eq!((record.woken_ns, record.waker_tid), (0, 0));
        for none in [
            sleeper(0, 1),
            sleeper(500, 1),
            ThreadWaits {
                state: STATE_NEW,
                ..sleeper(100, 1)
            },
        ] {
            assert_eq!(so_far(&none, now, 1), None);
        }
    }

    #[test]
    fn processors_share_the_limits() {
        for cpus in [1, 2, 4, 5, 6, 16, 64, 512, 4096, 8192] {
            let Window { log, budget, walks } = Window::of(cpus);
            let windows = 1e9 / (1_u64 << log) as f64 * cpus as f64;
            assert!(budget as f64 * windows <= WAITS_PER_SECOND as f64, "{cpus}");
            assert!(walks as f64 * windows <= WALKS_PER_SECOND as f64, "{cpus}");
            assert!(
                walks as f64 * windows > 0.8 * WALKS_PER_SECOND as f64,
                "{cpus}"
            );
        }
        assert_eq!(Window::of(1).log, LEAST_WAIT_WINDOW_LOG);
        assert!(Window::of(64).log < 29, "half a second");
    }
}
