//! What this kernel, these privileges and this machine allow.
//!
//! Reads /proc and /sys and tries harmless system calls; -> [`Feature`]s in the words that errors
//! of [`super::Probe::attach`] use as well.

use std::fs;

use profiler_common::unwind::REGISTERS_NONE;

use super::{
    ProbeError,
    children::{self, Children},
    hotplug, sampler,
    source::CYCLES,
    tracefs::Tracefs,
};
use crate::privileges::{self, CapabilitySet, effective, lacking};

mod surroundings;

/// Something that recording needs or can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// What it is.
    pub name: &'static str,
    /// What it is good for.
    pub purpose: &'static str,
    /// Whether recording is impossible without it.
    pub required: bool,
    /// Whether it is there.
    pub state: State,
}

/// Whether a feature is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is; with what was found.
    Present(String),
    /// It is not; with what to do.
    Absent(String),
}

/// Oldest kernel that all of the kernel side works on.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// What recording anything needs.
const REQUIRED: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

/// Fails where privileges are missing, as attaching would: for those who attach much later.
pub fn check_privileges() -> Result<(), ProbeError> {
    match lacking(REQUIRED, effective()).is_empty() {
        true => Ok(()),
        false => Err(ProbeError::Permission {
            action: "load the kernel-side programs".to_owned(),
            remedy: privilege_remedy(),
        }),
    }
}

/// Whether ids of processes are those that the kernel side knows.
pub fn has_machine_ids() -> bool {
    surroundings::has_machine_ids()
}

/// Whether a privilege that recording needs is missing.
pub(super) fn lacks_privileges() -> bool {
    !lacking(REQUIRED, effective()).is_empty()
}

/// How to get the privileges that recording needs.
pub(super) fn privilege_remedy() -> String {
    let missing = lacking(REQUIRED, effective());
    if !missing.is_empty() {
        return privileges::remedy(missing);
    }
    if surroundings::is_filtered() {
        return format!(
            "the privileges are there, and {}",
            surroundings::SECCOMP_REMEDY
        );
    }
    "the privileges are there, so a security module or kernel lockdown forbids it; run outside of it"
        .to_owned()
}

/// Whether the kernel wants CAP_BPF even of those who read and write a map that they have open:
/// before 5.19 it does.
pub fn maps_need_capabilities() -> bool {
    kernel().is_none_or(|version| version < (5, 19))
}

/// Whether processors may come online that have no buffers yet.
pub fn processors_can_be_added() -> bool {
    match (hotplug::online(), hotplug::possible_cpus()) {
        (Ok(online), Ok(possible)) => online != possible,
        _ => true,
    }
}

/// Whether following children takes a tracefs that has to be mounted for it.
pub fn mounts_tracefs_for_children() -> bool {
    children::need_tracefs() && Tracefs::mounted().is_err()
}

/// Looks at everything.
pub fn survey() -> Vec<Feature> {
    let mut features = vec![kernel_version(), architecture()];
    features.extend(capabilities());
    features.extend([
        programs(),
        perf_events(),
        lockdown(),
        surroundings::seccomp(),
        surroundings::unprivileged_bpf(),
        locked_memory(),
        surroundings::pid_namespace(),
        surroundings::user_namespace(),
        following(),
        tracepoints(),
        cycles(),
        max_rate(),
        max_stack(),
        unwind_tables(),
        kernel_symbols(),
        surroundings::cgroups(),
        surroundings::cgroup_namespace(),
        surroundings::kernel_types(),
        processors(),
        function_tracing(),
        preemption(),
    ]);
    features
}

fn feature(
    name: &'static str,
    purpose: &'static str,
    required: bool,
    state: Result<String, String>,
) -> Feature {
    Feature {
        name,
        purpose,
        required,
        state: state.map_or_else(State::Absent, State::Present),
    }
}

/// Major and minor version of the running kernel.
pub(super) fn kernel() -> Option<(u32, u32)> {
    let release = rustix::system::uname().release().to_str().ok()?.to_owned();
    parse_release(&release)
}

/// Whether the kernel's own stack walks show the return probes' trampoline in place of the callers
/// that it hides: kernels before 6.11 do.
pub fn shows_trampolines() -> bool {
    kernel().is_some_and(|version| version < (6, 11))
}

/// Whether programs can ask where a task's user registers are.
pub(super) fn has_task_registers() -> bool {
    kernel().is_some_and(|version| version >= (6, 1))
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel_version() -> Feature {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let state = match kernel() {
        Some(version) if version >= OLDEST_KERNEL => Ok(release),
        _ => Err(format!("this is Linux {release}; boot 5.10 or newer")),
    };
    feature(
        "Linux 5.10",
        "ring buffers and stacks in the kernel",
        true,
        state,
    )
}

fn architecture() -> Feature {
    let arch = std::env::consts::ARCH;
    let state = match arch {
        "x86_64" => Ok(arch.to_owned()),
        _ => Err(format!(
            "the kernel-side programs of this binary are built for x86_64, this is {arch}"
        )),
    };
    feature("architecture", "kernel-side programs", true, state)
}

fn capabilities() -> impl Iterator<Item = Feature> {
    let held = effective();
    privileges::USES.iter().map(move |used| {
        let missing = lacking(used.capability, held);
        let state = match missing.is_empty() {
            true => Ok("effective".to_owned()),
            false => Err(format!("{}; {}", used.without, privileges::remedy(missing))),
        };
        let required = REQUIRED.contains(used.capability);
        feature(used.name(), used.purpose, required, state)
    })
}

fn programs() -> Feature {
    let state = super::ring::Ring::create(16 * 1024)
        .map(|_| "bpf(2) makes ring buffers".to_owned())
        .map_err(|error| error.to_string());
    feature("BPF ring buffers", "samples from the kernel", true, state)
}

fn perf_events() -> Feature {
    let paranoid = sysctl("kernel.perf_event_paranoid").unwrap_or_else(|| "absent".to_owned());
    let state = match sampler::try_open(&super::source::CPU_CLOCK) {
        Ok(()) => Ok(format!(
            "cpu-clock works (kernel.perf_event_paranoid is {paranoid})"
        )),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => format!(
                "not permitted with kernel.perf_event_paranoid at {paranoid}: {}",
                privilege_remedy()
            ),
            _ => format!("{error}; the kernel needs CONFIG_PERF_EVENTS"),
        }),
    };
    feature("perf events", "clocks that make samples", true, state)
}

fn lockdown() -> Feature {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let state = if text.contains("[confidentiality]") {
        Err("boot without lockdown=confidentiality (integrity is fine)".to_owned())
    } else {
        Ok("not in the way".to_owned())
    };
    feature("kernel lockdown", "reading stacks", true, state)
}

fn locked_memory() -> Feature {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    // Since 5.11 BPF maps are charged to the cgroup instead.
    let state = match (kernel(), limit) {
        (Some(version), Some(limit)) if version < (5, 11) && limit < (64 << 20) => Err(format!(
            "the limit is {limit} bytes: 'ulimit -l unlimited' (kernels before 5.11 count BPF maps)"
        )),
        (_, None) => Ok("unlimited".to_owned()),
        (_, Some(limit)) => Ok(format!("{limit} bytes, enough for this kernel")),
    };
    feature("locked memory", "BPF maps", true, state)
}

fn following() -> Feature {
    let state = match Children::new() {
        Ok(Children::Raw { .. }) => Ok("by raw tracepoints, without tracefs".to_owned()),
        Ok(Children::Records { .. }) => Ok("by tracefs".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    feature(
        "following children",
        "-p, -t, -- CMD, sessions of serve",
        false,
        state,
    )
}

fn tracepoints() -> Feature {
    let state = Tracefs::open()
        .and_then(|tracefs| tracefs.id("sched", "sched_switch"))
        .map(|_| match Tracefs::mounted() {
            Ok(_) => "tracefs is readable".to_owned(),
            Err(_) => "no tracefs is mounted; a private one will be".to_owned(),
        })
        .map_err(|error| error.to_string());
    feature(
        "tracefs",
        "tracepoints as sources (-e CATEGORY:NAME); nothing else needs it",
        false,
        state,
    )
}

fn cycles() -> Feature {
    let state = sampler::try_open(&CYCLES)
        .map(|()| "cycles can be sampled".to_owned())
        .map_err(|error| format!("{}; cpu-clock is used instead", sampler::no_cycles(&error)));
    feature(
        "hardware counters",
        "cycles, instructions, cache-misses, branch-misses",
        false,
        state,
    )
}

fn max_rate() -> Feature {
    let state = match sampler::max_frequency_hz() {
        Some(hz) if hz >= 1000 => Ok(format!("up to {hz} Hz")),
        Some(hz) => Err(format!(
            "at most {hz} Hz: 'sysctl kernel.perf_event_max_sample_rate=100000' (the kernel lowers \
             it when sampling took too long)"
        )),
        None => Err("kernel.perf_event_max_sample_rate can't be read".to_owned()),
    };
    feature(
        "kernel.perf_event_max_sample_rate",
        "high frequencies",
        false,
        state,
    )
}

fn max_stack() -> Feature {
    let frames = profiler_common::MAX_FRAMES;
    let state =
        match sysctl("kernel.perf_event_max_stack").and_then(|text| text.parse::<usize>().ok()) {
            Some(found) if found >= frames => Ok(format!("{found} frames")),
            Some(found) => Err(format!(
                "stacks are cut at {found} frames: 'sysctl kernel.perf_event_max_stack={frames}'"
            )),
            None => Err("kernel.perf_event_max_stack can't be read".to_owned()),
        };
    feature("kernel.perf_event_max_stack", "whole stacks", false, state)
}

fn unwind_tables() -> Feature {
    let state = match super::offsets::of_walks() {
        (_, REGISTERS_NONE) => Err(
            "threads that are in the kernel have their user stacks walked by frame pointers: boot a \
             kernel with type information (CONFIG_DEBUG_INFO_BTF)"
                .to_owned(),
        ),
        _ => Ok("from user mode and from the kernel, without frame pointers".to_owned()),
    };
    feature("unwind tables", "whole user stacks", false, state)
}

fn kernel_symbols() -> Feature {
    let first = fs::read_to_string("/proc/kallsyms")
        .ok()
        .and_then(|text| text.lines().next().map(str::to_owned));
    let state = match first {
        Some(line)
            if !line.starts_with("0000000000000000 ") || line.contains("fixed_percpu_data") =>
        {
            Ok("/proc/kallsyms has addresses".to_owned())
        }
        Some(_) => Err(format!(
            "/proc/kallsyms hides addresses (kernel.kptr_restrict is {}, kernel.perf_event_paranoid \
             {}): {}",
            sysctl("kernel.kptr_restrict").unwrap_or_default(),
            sysctl("kernel.perf_event_paranoid").unwrap_or_default(),
            match lacking(CapabilitySet::SYSLOG, effective()) {
                missing if missing.is_empty() => "'sysctl kernel.kptr_restrict=1'".to_owned(),
                missing => privileges::remedy(missing),
            }
        )),
        None => Err("/proc/kallsyms can't be read: the kernel needs CONFIG_KALLSYMS".to_owned()),
    };
    feature("kernel symbols", "names of kernel functions", false, state)
}

fn processors() -> Feature {
    let state = hotplug::online()
        .map(|cpus| format!("{} online", cpus.len()))
        .map_err(|error| error.to_string());
    feature("processors", "one sampler each", true, state)
}

fn function_tracing() -> Feature {
    let state = match super::call_support() {
        Err(error) => Err(error.to_string()),
        Ok(support) if support.multi => Ok("thousands of places by one link".to_owned()),
        Ok(support) => Ok(format!(
            "{} for each place, and 0.1 s each to detach: boot Linux 6.6 or newer for thousands",
            if support.cookies {
                "a perf event"
            } else {
                "a program"
            },
        )),
    };
    feature("function tracing", "--trace", false, state)
}

/// Newest kernel of which it is known that, with PREEMPT_RT, programs on tracepoints are not preempted: the memory per
/// processor that they use is theirs only because of that.
const LAST_REALTIME: (u32, u32) = (6, 18);

/// Fails where programs on tracepoints would overwrite each other's memory.
pub(super) fn check_tracepoints() -> Result<(), ProbeError> {
    match is_preemptible(is_realtime(), kernel()) {
        false => Ok(()),
        true => Err(ProbeError::Request(preemption_remedy())),
    }
}

fn preemption_remedy() -> String {
    let (major, minor) = LAST_REALTIME;
    format!(
        "this is a kernel with PREEMPT_RT newer than {major}.{minor}, where programs on tracepoints may be preempted: \
         boot one without PREEMPT_RT for --off-cpu, --wall and tracepoints as sources"
    )
}

fn is_preemptible(realtime: bool, kernel: Option<(u32, u32)>) -> bool {
    realtime && kernel.is_none_or(|version| version > LAST_REALTIME)
}

fn is_realtime() -> bool {
    let told = fs::read_to_string("/sys/kernel/realtime").is_ok_and(|text| text.trim() == "1");
    let version = rustix::system::uname()
        .version()
        .to_string_lossy()
        .into_owned();
    told || version.contains("PREEMPT_RT")
}

fn preemption() -> Feature {
    let realtime = is_realtime();
    let state = match is_preemptible(realtime, kernel()) {
        true => Err(preemption_remedy()),
        false if realtime => Ok("PREEMPT_RT, which leaves them alone on this kernel".to_owned()),
        false => Ok("no PREEMPT_RT".to_owned()),
    };
    feature(
        "tracepoints without preemption",
        "--off-cpu, --wall, tracepoints as sources",
        false,
        state,
    )
}

fn sysctl(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions() {
        assert_eq!(parse_release("5.10.0-28-amd64"), Some((5, 10)));
        assert_eq!(parse_release("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(parse_release("7.0-rc1"), Some((7, 0)));
        assert_eq!(parse_release("unknown"), None);
    }

    #[test]
    fn newer_realtime_kernels_may_preempt() {
        assert!(!is_preemptible(false, Some((7, 0))));
        assert!(!is_preemptible(true, Some((5, 10))) && !is_preemptible(true, Some((6, 18))));
        assert!(is_preemptible(true, Some((6, 19))) && is_preemptible(true, None));
    }

    #[test]
    fn a_survey_names_a_remedy_for_all_that_is_absent() {
        for feature in survey() {
            match feature.state {
                State::Present(text) | State::Absent(text) => {
                    assert!(!text.is_empty(), "{}", feature.name)
                }
            }
        }
    }
}
