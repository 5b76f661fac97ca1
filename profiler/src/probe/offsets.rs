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

use super::btf::Btf;
use crate::target::cgroup::Version;

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
        OffsetError::NoBtf(source) => format!(
            "{error} (/sys/kernel/btf/vmlinux: {source}); it must be built with \
             CONFIG_DEBUG_INFO_BTF=y"
        ),
        OffsetError::Missing(_) => format!("{error}; please report the kernel's version"),
        OffsetError::NoController => format!(
            "{error}; name the cgroup by its path in another one, as /proc/PID/cgroup lists them"
        ),
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
    }

    #[test]
    fn a_hierarchy_without_controllers_is_refused() {
        let refused = of_cgroups(&one(&[]));
        assert!(matches!(refused, Err(OffsetError::NoController)));
    }
}
