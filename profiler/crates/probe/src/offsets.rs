//! Where the running kernel has the members of its structures that the kernel-side programs read: one
//! table, filled from BTF.
//!
//! The version of a hierarchy of cgroups -> offsets in bytes, as `CGROUP_OFFSETS` takes them. Programs
//! are built without relocations against the kernel's types, so this is done at load time.
//!
//! What does not belong here: the format of BTF (`btf`), fields of tracepoints' records (`tracefs`).

use std::io;

use profiler_common::cgroup::{
    CGROUP_KN, CGROUP_ROOT_POINTER, CGROUP_SELF, CSS_CGROUP, CSS_PARENT, KN_ID, KN_NAME, OFFSETS,
    OFFSETS_KNOWN, ROOT_NUMBER, SET_MEMBER, TASK_CGROUPS,
};

use profiler_common::sched::{
    CRED_UID, SWITCH_PLAIN, SWITCH_STATE_LAST, SWITCH_STATE_SECOND, TASK_COMM, TASK_CRED,
    TASK_ON_CPU, TASK_PID, TASK_STACK, TASK_STATE, WAIT_OFFSETS,
};
use profiler_common::unwind as walk;

use super::btf::Btf;
use profiler_target::cgroup::Version;

/// Index, structure and member of what is read for cgroups of any version.
const CGROUPS: [(usize, &str, &str); 9] = [
    (TASK_CGROUPS, "task_struct", "cgroups"),
    (CSS_CGROUP, "cgroup_subsys_state", "cgroup"),
    (CSS_PARENT, "cgroup_subsys_state", "parent"),
    (CGROUP_SELF, "cgroup", "self"),
    (CGROUP_KN, "cgroup", "kn"),
    (KN_ID, "kernfs_node", "id"),
    (KN_NAME, "kernfs_node", "name"),
    (CGROUP_ROOT_POINTER, "cgroup", "root"),
    (ROOT_NUMBER, "cgroup_root", "hierarchy_id"),
];

/// Index, and structures and members in one another, of what walks of user stacks read. What is not
/// there is done without.
const WALKS: [(usize, &[(&str, &str)]); walk::OFFSETS] = [
    (walk::TASK_STACK, &[("task_struct", "stack")]),
    (
        walk::TASK_FSBASE,
        &[("task_struct", "thread"), ("thread_struct", "fsbase")],
    ),
    (walk::TASK_UTASK, &[("task_struct", "utask")]),
    (walk::TASK_MM, &[("task_struct", "mm")]),
    (
        walk::MM_XOL_AREA,
        &[
            ("mm_struct", "uprobes_state"),
            ("uprobes_state", "xol_area"),
        ],
    ),
    (walk::XOL_VADDR, &[("xol_area", "vaddr")]),
    (walk::UTASK_RETURNS, &[("uprobe_task", "return_instances")]),
    (walk::UTASK_VADDR, &[("uprobe_task", "vaddr")]),
    (walk::RETURN_STACK, &[("return_instance", "stack")]),
    (
        walk::RETURN_ADDRESS,
        &[("return_instance", "orig_ret_vaddr")],
    ),
    (walk::RETURN_NEXT, &[("return_instance", "next")]),
];

const POINTER_BYTES: u32 = 8;

/// Why offsets are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum OffsetError {
    /// The kernel does not describe its types.
    #[error("it does not describe its types")]
    NoBtf(#[source] io::Error),
    /// Its structures are other than they were in the kernels that are known.
    #[error("it has no {0}")]
    Missing(String),
    /// A hierarchy without controllers: its cgroups have no fixed place in a task.
    #[error("the hierarchy has no controller")]
    NoController,
}

/// What to do about it.
pub(super) fn remedy(error: &OffsetError) -> String {
    match error {
        OffsetError::NoBtf(source) => {
            let remedy = match source.kind() {
                io::ErrorKind::NotFound => "it must be built with CONFIG_DEBUG_INFO_BTF=y",
                _ => {
                    "a kernel that was built with CONFIG_DEBUG_INFO_BTF=y has it there, unless \
                     something is mounted over it"
                }
            };
            format!("{error} (/sys/kernel/btf/vmlinux: {source}); {remedy}")
        }
        OffsetError::Missing(_) => format!("{error}; please report the kernel's version"),
        OffsetError::NoController => format!(
            "{error}; name the cgroup by its path in another one, as /proc/PID/cgroup lists them"
        ),
    }
}

/// What is read for walks of user stacks, as `UNWIND_OFFSETS`, and how registers are found, as
/// `USER_REGISTERS`. Without a description, nothing is.
pub(super) fn of_walks() -> ([u32; walk::OFFSETS], u8) {
    let mut offsets = [0; walk::OFFSETS];
    let btf = match Btf::of_kernel() {
        Ok(btf) => btf,
        Err(error) => {
            log::debug!("user stacks below the kernel are walked by frame pointers: {error}");
            return (offsets, walk::REGISTERS_NONE);
        }
    };
    for (index, path) in WALKS {
        let members = path
            .iter()
            .map(|(structure, name)| btf.member(structure, name));
        match members.sum::<Option<u32>>() {
            Some(offset) => offsets[index] = offset,
            None => log::debug!("the kernel has no {path:?}"),
        }
    }
    let registers = if btf
        .enumerator("bpf_func_id", "BPF_FUNC_task_pt_regs")
        .is_some()
    {
        walk::REGISTERS_HELPER
    } else if offsets[walk::TASK_STACK] != 0 {
        walk::REGISTERS_STACK
    } else {
        walk::REGISTERS_NONE
    };
    (offsets, registers)
}

/// Where it is counted how often a thread gave up its processor and, behind it, was taken off, as `TASK_SWITCHES_OFFSET`; 0: not known.
pub(super) fn of_switches() -> u32 {
    let Ok(btf) = Btf::of_kernel() else {
        return 0;
    };
    let member = |name| btf.member("task_struct", name);
    match (member("nvcsw"), member("nivcsw")) {
        (Some(first), Some(second)) if second == first + 8 => first,
        _ => 0,
    }
}

/// What is read for cgroups of a hierarchy, as `CGROUP_OFFSETS`.
pub(super) fn of_cgroups(version: &Version) -> Result<[u32; OFFSETS], OffsetError> {
    if matches!(version, Version::One { controllers } if controllers.is_empty()) {
        return Err(OffsetError::NoController);
    }
    let btf = Btf::of_kernel().map_err(OffsetError::NoBtf)?;
    let member = |structure: &str, member: &str| {
        btf.member(structure, member)
            .ok_or_else(|| OffsetError::Missing(format!("{structure}.{member}")))
    };
    let mut offsets = [0; OFFSETS];
    offsets[OFFSETS_KNOWN] = 1;
    for (index, structure, name) in CGROUPS {
        offsets[index] = member(structure, name)?;
    }
    offsets[SET_MEMBER] = match version {
        Version::Two => member("css_set", "dfl_cgrp")?,
        Version::One { controllers } => {
            let subsystem = controllers
                .iter()
                .find_map(|name| btf.enumerator("cgroup_subsys_id", &enumerator(name)))
                .ok_or_else(|| OffsetError::Missing(controllers.join(",")))?;
            let element = subsystem.saturating_mul(POINTER_BYTES);
            member("css_set", "subsys")?.saturating_add(element)
        }
    };
    Ok(offsets)
}

/// Where a task has its thread pointer, in bytes. On x86-64 the kernel writes it there when it is set,
/// and at the latest when the thread leaves the processor.
pub(super) fn of_thread_pointer() -> Result<u32, OffsetError> {
    let btf = Btf::of_kernel().map_err(OffsetError::NoBtf)?;
    let member = |structure: &str, member: &str| {
        btf.member(structure, member)
            .ok_or_else(|| OffsetError::Missing(format!("{structure}.{member}")))
    };
    Ok(member("task_struct", "thread")?.saturating_add(member("thread_struct", "fsbase")?))
}

/// Where a task has its id, and the time since boot when it began (0: not known), in bytes, if the tracepoints
/// that tell of new and gone tasks hand over what the programs on them read.
pub(super) fn of_tasks() -> Result<(u32, u32), OffsetError> {
    let btf = Btf::of_kernel().map_err(OffsetError::NoBtf)?;
    // A pointer to the task first; flags behind it.
    for (name, arguments) in [
        ("task_newtask", &[true, false][..]),
        ("sched_process_free", &[true]),
    ] {
        if btf.tracepoint(name).as_deref() != Some(arguments) {
            return Err(OffsetError::Missing(format!(
                "tracepoint {name} with known arguments"
            )));
        }
    }
    let id = btf
        .member("task_struct", "pid")
        .ok_or_else(|| OffsetError::Missing("task_struct.pid".to_owned()))?;
    let start = btf.member("task_struct", "start_boottime");
    Ok((id, start.unwrap_or(0)))
}

/// What is read for waits: offsets as `WAIT_OFFSETS`, and what the arguments of `sched_switch` are.
pub(super) fn of_waits() -> Result<([u32; WAIT_OFFSETS], u32), OffsetError> {
    let btf = Btf::of_kernel().map_err(OffsetError::NoBtf)?;
    let member = |member: &str| {
        btf.member("task_struct", member)
            .ok_or_else(|| OffsetError::Missing(format!("task_struct.{member}")))
    };
    let mut offsets = [0; WAIT_OFFSETS];
    offsets[TASK_PID] = member("pid")?;
    if member("tgid")? != offsets[TASK_PID] + 4 {
        return Err(OffsetError::Missing(
            "task_struct.tgid behind pid".to_owned(),
        ));
    }
    offsets[TASK_COMM] = member("comm")?;
    offsets[TASK_STATE] = member("__state").or_else(|_| member("state"))?;
    offsets[TASK_STACK] = member("stack")?;
    // Not on machines that can have one processor only.
    offsets[TASK_ON_CPU] = member("on_cpu").unwrap_or(0);
    offsets[TASK_CRED] = member("cred")?;
    offsets[CRED_UID] = btf
        .member("cred", "uid")
        .ok_or_else(|| OffsetError::Missing("cred.uid".to_owned()))?;
    let arguments = match btf.tracepoint("sched_switch").as_deref() {
        Some([false, true, true]) => SWITCH_PLAIN,
        Some([false, false, true, true]) => SWITCH_STATE_SECOND,
        Some([false, true, true, false]) => SWITCH_STATE_LAST,
        _ => {
            return Err(OffsetError::Missing(
                "tracepoint sched_switch with known arguments".to_owned(),
            ));
        }
    };
    Ok((offsets, arguments))
}

/// The kernel's name of a controller's number. One controller has another name in version 1.
fn enumerator(controller: &str) -> String {
    let name = match controller {
        "blkio" => "io",
        name => name,
    };
    format!("{name}_cgrp_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(controllers: &[&str]) -> Version {
        Version::One {
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn this_kernel_s_offsets_are_found() {
        if let Err(error) = Btf::of_kernel() {
            eprintln!("SKIPPED: the kernel's types: {error}");
            return;
        }
        let unified = of_cgroups(&Version::Two).unwrap();
        let (memory, blkio) = (one(&["memory"]), one(&["blkio"]));
        let (memory, blkio) = (of_cgroups(&memory).unwrap(), of_cgroups(&blkio).unwrap());
        // Elements of one array, of pointers.
        let distance = memory[SET_MEMBER].abs_diff(blkio[SET_MEMBER]);
        assert!(distance > 0 && distance.is_multiple_of(POINTER_BYTES));
        assert_eq!(memory[TASK_CGROUPS], unified[TASK_CGROUPS]);
        assert!(
            unified.iter().all(|offset| *offset < 1 << 16),
            "{unified:?}"
        );
        assert!(of_switches() > 0);
    }

    #[test]
    fn what_following_children_needs_is_found() {
        if let Err(error) = Btf::of_kernel() {
            eprintln!("SKIPPED: the kernel's types: {error}");
            return;
        }
        let (offsets, _) = of_waits().unwrap();
        let (id, start) = of_tasks().unwrap();
        assert!(id == offsets[TASK_PID] && start > 0);
    }

    #[test]
    fn what_waits_need_is_found() {
        if let Err(error) = Btf::of_kernel() {
            eprintln!("SKIPPED: the kernel's types: {error}");
            return;
        }
        let (offsets, _) = of_waits().unwrap();
        assert!(offsets.iter().all(|offset| *offset < 1 << 16));
        assert!(offsets[TASK_PID] > 0 && offsets[TASK_COMM] > 0);
    }

    #[test]
    fn a_hierarchy_without_controllers_is_refused() {
        let refused = of_cgroups(&one(&[]));
        assert!(matches!(refused, Err(OffsetError::NoController)));
    }
}
