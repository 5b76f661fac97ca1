//! The kernel-side object: settings -> loaded programs and filled filter maps.
//!
//! The object is part of this binary (`profiler-ebpf/prebuilt`); loading it needs no BTF of the running
//! kernel. Sizes are bytes. Nothing is attached here.

use std::{
    error::Error,
    fs, io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData},
    programs::{Program, RawTracePoint},
};
use profiler_common::{
    COMM_LEN, MAX_FRAMES,
    control::{
        FILTER_CGROUPS, FILTER_COMMS, FILTER_TASKS, FILTER_UIDS, KERNEL_STACKS_ADJUSTED,
        MAX_SOURCES, PERIOD_ADJUSTED, WATCH_FOLLOW, WATCH_PROCESS, WATCH_THREAD, Watched,
        watch_root,
    },
};

use super::{
    ProbeError, bpf,
    calls::{CallOptions, CallSettings},
    cgroups::CgroupSettings,
    children::Children,
    interpreters::InterpreterSettings,
    memory, offsets, sys,
    unwind::{self, UnwindOptions},
    waits::WaitSettings,
    watched,
};
use profiler_model::text::with_causes;
use profiler_target::Filter;

pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../profiler-ebpf/prebuilt/profiler-kernel.bpf.o"
));

/// How often a program is given to the verifier that gives it back undecided, and by how much longer each
/// time it is waited before: a second in all.
const MOST_ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Most tasks that can be watched at a time: those of the filter and their living descendants.
pub(super) const WATCHED_TASKS: u32 = 16_384;

/// Most threads and goroutines whose open calls are followed for limits; 2 KiB each.
pub(super) const LIMITED_STACKS: u32 = 8192;

/// What the kernel side is told before it is loaded.
pub(super) struct Settings<'a> {
    /// What to keep samples of.
    pub(super) filter: &'a Filter,
    /// What it says of cgroups, and which hierarchy's they are.
    pub(super) cgroups: &'a CgroupSettings,
    /// If waits are recorded: how.
    pub(super) waits: Option<&'a WaitSettings>,
    /// Whether the period, kernel stacks and the tasks of the filter change later.
    pub(super) adjustable: bool,
    /// Whether to walk kernel stacks, if that does not change.
    pub(super) kernel_stacks: bool,
    /// Whether to walk user stacks.
    pub(super) user_stacks: bool,
    /// How frames of interpreters are found.
    pub(super) interpreters: &'a InterpreterSettings,
    /// How to walk them, other than by frame pointers.
    pub(super) unwind: Option<&'a UnwindOptions>,
    /// Whether samples carry what a test walks their stacks with again.
    pub(super) unwind_proof: bool,
    /// Whether the kernel side logs.
    pub(super) kernel_log: bool,
    /// Per source: nanoseconds between ticks of a clock, hits per sample of a tracepoint, else 0.
    pub(super) periods: [u64; MAX_SOURCES],
    /// Bytes in a ring at which the reader is woken.
    pub(super) wake_bytes: u64,
    /// One more than the highest number a processor can have.
    pub(super) possible_cpus: u32,
    /// If calls are traced: how.
    pub(super) calls: Option<CallSettings>,
    /// If children are followed: how.
    pub(super) children: Option<&'a Children>,
}

/// Loads the object with `settings` and fills the maps of the filter.
pub(super) fn load(settings: &Settings<'_>) -> Result<Ebpf, ProbeError> {
    let filter = settings.filter;
    let kinds = kinds(filter, settings.adjustable);
    let (kernel_stacks, periods) = if settings.adjustable {
        (KERNEL_STACKS_ADJUSTED, [PERIOD_ADJUSTED; MAX_SOURCES])
    } else {
        (settings.kernel_stacks as u8, settings.periods)
    };
    let user_stacks = settings.user_stacks as u8;
    // Below every level of the logger: the verifier removes the log calls.
    let log_level = if settings.kernel_log { u8::MAX } else { 0 };
    let wants_tasks = kinds & FILTER_TASKS != 0;
    let size = |count: usize| count.max(1) as u32;

    let walk_frames = walk_frames();
    let unwind = unwind::Globals::new(settings.unwind, settings.user_stacks);
    let has_clock = periods.iter().any(|period| *period != 0);
    let task_switches = if has_clock { offsets::of_switches() } else { 0 };
    let mut loader = loader();
    loader
        .override_global("FILTER", &kinds, true)
        .override_global("KERNEL_STACKS", &kernel_stacks, true)
        .override_global("USER_STACKS", &user_stacks, true)
        .override_global("KERNEL_WALK_FRAMES", &walk_frames, true)
        .override_global("WAKE_BYTES", &settings.wake_bytes, true)
        .override_global("PERIODS", &periods, true)
        .override_global("TASK_SWITCHES_OFFSET", &task_switches, true)
        .override_global(aya_log::LEVEL, &log_level, true)
        .map_max_entries("RINGS", settings.possible_cpus)
        .map_max_entries("WATCHED", if wants_tasks { WATCHED_TASKS } else { 1 })
        .map_max_entries("COMMS", size(filter.comms.len()))
        .map_max_entries("UIDS", size(filter.uids.len()));
    settings.cgroups.set(&mut loader);
    settings.interpreters.set(&mut loader);
    unwind.set(&mut loader);
    match settings.waits {
        Some(waits) => waits.set(&mut loader),
        None => drop(loader.map_max_entries("WAIT_KEYS", 1)),
    }
    let unwind_proof = u8::from(settings.unwind_proof);
    loader.override_global("UNWIND_PROOF", &unwind_proof, true);
    if !settings.kernel_log {
        loader.map_max_entries("AYA_LOGS", rustix::param::page_size() as u32);
    }
    // Outlive the loader, which keeps references.
    let calls = settings
        .calls
        .map(|calls| CallGlobals::new(&calls, filter, kinds));
    if let Some(calls) = &calls {
        calls.set(&mut loader, settings.possible_cpus);
    }
    if let Some(children) = settings.children {
        children.set(&mut loader);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|error| refused(&error))?;
    fill_filter(&mut ebpf, filter)?;
    settings.cgroups.fill(&mut ebpf)?;
    Ok(ebpf)
}

/// What the programs ask before they do anything else; who is watched may change where that is `adjustable`.
fn kinds(filter: &Filter, adjustable: bool) -> u32 {
    // A new kind of conditions does not compile until it is here, and in `fill_filter`.
    let Filter {
        pids,
        tids,
        comms,
        uids,
        cgroups,
    } = filter;
    let kinds = [
        (
            adjustable || !pids.is_empty() || !tids.is_empty(),
            FILTER_TASKS,
        ),
        (!comms.is_empty(), FILTER_COMMS),
        (!uids.is_empty(), FILTER_UIDS),
        (cgroups.is_some(), FILTER_CGROUPS),
    ];
    let asked = kinds.into_iter().filter(|(asked, _)| *asked);
    asked.fold(0, |kinds, (_, kind)| kinds | kind)
}

/// A loader without the kernel's types: the object has no relocations against them. It would read and parse
/// all of them before it can be told so, which takes 25 ms and 20 MiB; it does without if they can't be
/// opened, so it is made on a thread that opens nothing.
fn loader() -> EbpfLoader<'static> {
    let make = || sys::deny_opening().map(|()| EbpfLoader::new());
    let made = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("loader".to_owned());
        thread
            .spawn_scoped(scope, make)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    });
    let mut loader = made.unwrap_or_else(|error| {
        log::debug!("the kernel's types are read for nothing: {error}");
        EbpfLoader::new()
    });
    loader.btf(None);
    loader
}

/// Most frames that the kernel's own walkers give: it is a setting of the machine.
fn walk_frames() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_max_stack");
    let set = text.ok().and_then(|text| text.trim().parse().ok());
    set.unwrap_or(u32::MAX).min(MAX_FRAMES as u32)
}

/// Settings of call tracing as globals of the object.
struct CallGlobals {
    filter: u32,
    cookies: u8,
    callers: u8,
    fetches: u8,
    limits: u8,
    options: CallOptions,
    wake_bytes: u64,
}

impl CallGlobals {
    fn new(calls: &CallSettings, filter: &Filter, mut kinds: u32) -> CallGlobals {
        if calls.options.per_process && filter.tids.is_empty() {
            kinds &= !FILTER_TASKS;
        }
        let options = &calls.options;
        CallGlobals {
            filter: kinds,
            cookies: calls.cookies.into(),
            callers: options.callers.into(),
            fetches: options.fetches.into(),
            limits: options.has_limits().into(),
            options: calls.options,
            wake_bytes: calls.wake_bytes,
        }
    }

    fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>, possible_cpus: u32) {
        let options = &self.options;
        let probes = options.max_probes;
        let one_unless = |wanted: bool, count: u32| if wanted { count } else { 1 };
        loader
            .override_global("CALL_FETCHES", &self.fetches, true)
            .override_global("CALL_LIMITS", &self.limits, true)
            .override_global("CALL_MIN_DURATION_NS", &options.min_duration_ns, true)
            .override_global("CALL_MAX_DEPTH", &options.max_depth, true)
            .override_global("CALL_MAX_RATE", &options.max_rate, true)
            .map_max_entries("FETCHES", one_unless(options.fetches, probes))
            .map_max_entries(
                "OPEN_CALLS",
                one_unless(options.has_limits(), LIMITED_STACKS),
            )
            .map_max_entries("CALL_RATES", one_unless(options.max_rate > 0, probes))
            .override_global("CALL_FILTER", &self.filter, true)
            .override_global("CALL_COOKIES", &self.cookies, true)
            .override_global("CALL_CALLERS", &self.callers, true)
            .override_global("CALL_WAKE_BYTES", &self.wake_bytes, true)
            .map_max_entries("CALL_RINGS", possible_cpus)
            .map_max_entries("PROBES", probes)
            .map_max_entries("CALL_COUNTS", probes);
    }
}

fn fill_filter(ebpf: &mut Ebpf, filter: &Filter) -> Result<(), ProbeError> {
    let Filter {
        pids,
        tids,
        comms: names,
        uids: users,
        // Told by `cgroups`.
        cgroups: _,
    } = filter;
    for pid in pids {
        watch(ebpf, pid.0, WATCH_PROCESS)?;
    }
    for tid in tids {
        // The id may be watched as a process already.
        let bits = if pids.iter().any(|pid| pid.0 == tid.0) {
            WATCH_PROCESS | WATCH_THREAD
        } else {
            WATCH_THREAD
        };
        watch(ebpf, tid.0, bits)?;
    }
    let mut comms: HashMap<&mut MapData, [u8; COMM_LEN], u8> = typed_map(ebpf, "COMMS")?;
    for comm in names {
        comms
            .insert(comm.0, 1, 0)
            .map_err(|error| refused(&error))?;
    }
    let mut uids: HashMap<&mut MapData, u32, u8> = typed_map(ebpf, "UIDS")?;
    for uid in users {
        uids.insert(uid, 1, 0).map_err(|error| refused(&error))?;
    }
    Ok(())
}

/// Adds a task to the filter, and what it starts; `kinds` are `WATCH_PROCESS` and `WATCH_THREAD`.
pub(super) fn watch(ebpf: &mut Ebpf, id: u32, kinds: u32) -> Result<(), ProbeError> {
    let watched = Watched {
        bits: kinds | WATCH_FOLLOW | watch_root(id),
        life: watched::life_of(id),
    };
    bpf::update_map(map_fd(ebpf, "WATCHED")?, &[id], &[watched]).map_err(|_| {
        ProbeError::Request(format!(
            "can't watch task {id}: at most {WATCHED_TASKS} tasks can be watched at a time"
        ))
    })
}

/// The descriptor of a map of the object.
pub(super) fn map_fd<'a>(ebpf: &'a Ebpf, name: &str) -> Result<BorrowedFd<'a>, ProbeError> {
    let map = ebpf.map(name).ok_or_else(|| missing(name))?;
    memory::map_fd(map).ok_or_else(|| missing(name))
}

/// A map of the object as what it is.
pub(super) fn typed_map<'a, M>(ebpf: &'a mut Ebpf, name: &str) -> Result<M, ProbeError>
where
    M: TryFrom<&'a mut Map, Error = aya::maps::MapError>,
{
    let map = ebpf.map_mut(name).ok_or_else(|| missing(name))?;
    M::try_from(map).map_err(|error| refused(&error))
}

/// Loads a program, again while the verifier gives up because a signal came (a stop and a continue, say). Those that can be
/// held back are: after any failure the library asks again with all that the verifier has to say, which takes ten times as long.
pub(super) fn unless_disturbed<T, E: Error + 'static>(
    mut load: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for attempt in 1..MOST_ATTEMPTS {
        match unheard(&mut load) {
            Err(error) if is_disturbed(&error) => std::thread::sleep(PAUSE * attempt),
            result => return result,
        }
    }
    unheard(&mut load)
}

fn unheard<T>(load: &mut impl FnMut() -> T) -> T {
    let _unheard = sys::Unheard::begin();
    load()
}

fn is_disturbed(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let system = error.downcast_ref::<io::Error>();
        if system.and_then(io::Error::raw_os_error) == Some(libc::EAGAIN) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Loads one program of the object into the kernel.
pub(super) fn load_program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a Program, ProbeError> {
    let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    match program {
        Program::PerfEvent(program) => unless_disturbed(|| program.load()),
        Program::TracePoint(program) => unless_disturbed(|| program.load()),
        Program::RawTracePoint(program) => unless_disturbed(|| program.load()),
        _ => return Err(missing(name)),
    }
    .map_err(|error| refused(&error))?;
    Ok(program)
}

/// Loads a program and runs it on each hit of a raw tracepoint, until the object goes.
pub(super) fn attach_raw(ebpf: &mut Ebpf, name: &str, tracepoint: &str) -> Result<(), ProbeError> {
    load_program(ebpf, name)?;
    raw_tracepoint(ebpf, name)?
        .attach(tracepoint)
        .map(drop)
        .map_err(|error| refused(&error))
}

/// A program of the object that is for raw tracepoints.
pub(super) fn raw_tracepoint<'a>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut RawTracePoint, ProbeError> {
    let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    program.try_into().map_err(|error| refused(&error))
}

/// The descriptor of a loaded program.
pub(super) fn program_fd(program: &Program) -> Result<BorrowedFd<'_>, ProbeError> {
    match program.fd() {
        Ok(fd) => Ok(fd.as_fd()),
        Err(error) => Err(refused(&error)),
    }
}

/// What it means if the object lacks something.
pub(super) fn missing(name: &str) -> ProbeError {
    ProbeError::Load(format!(
        "'{name}' is not in the kernel-side object; build it anew with 'cargo xtask build-ebpf'"
    ))
}

/// What an error of aya means: the system's answer, if there is one below.
pub(super) fn refused(error: &(dyn Error + 'static)) -> ProbeError {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if let Some(io) = current.downcast_ref::<io::Error>()
            && let Some(
                code @ (libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EMFILE | libc::EAGAIN),
            ) = io.raw_os_error()
        {
            // EACCES comes with the verifier's log, and then is no question of privileges.
            let verifier = error.to_string().contains("Verifier output");
            if !(verifier && code == libc::EACCES) {
                let io = io::Error::from_raw_os_error(code);
                return ProbeError::from_io("load the kernel-side programs", io);
            }
        }
        cause = current.source();
    }
    if super::features::lacks_privileges() {
        // Where anybody may load programs, what is special about ours is refused for other reasons.
        let io = io::Error::from_raw_os_error(libc::EPERM);
        return ProbeError::from_io("load the kernel-side programs", io);
    }
    ProbeError::Load(with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this thread would hear Ctrl-C.
    fn hears() -> bool {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = u64::from_str_radix(blocked.unwrap().trim(), 16).unwrap();
        blocked >> (libc::SIGINT - 1) & 1 == 0
    }

    #[test]
    fn signals_wait_while_a_program_is_loaded() {
        let mut heard = Vec::new();
        let loaded = unless_disturbed(|| {
            heard.push(hears());
            match heard.len() {
                1 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                attempts => Ok(attempts),
            }
        });
        assert_eq!(loaded.unwrap(), 2);
        assert_eq!(heard, [false, false]);
        assert!(hears());
    }
}
