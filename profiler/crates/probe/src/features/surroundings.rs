//! What is around this process: namespaces, filters of system calls, cgroups, the kernel's own types.
//!
//! /proc/self and /sys -> [`Feature`]s. Source: namespaces(7), seccomp(2), kernel's proc_ns.h.
//!
//! What does not belong here: which cgroups there are (`target::cgroup`), capabilities (`privileges`).

use std::fs;

use super::super::offsets;
use super::{Feature, feature, sysctl};
use profiler_target::cgroup::{Hierarchies, Hierarchy, Version};

// From <linux/proc_ns.h>: inode numbers of the initial namespaces.
const INITIAL_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// What to do about a filter of system calls, by the engine that made it.
pub(super) const SECCOMP_REMEDY: &str = "system calls are filtered: Docker before 23 lets bpf and \
     perf_event_open pass with --cap-add=SYS_ADMIN or --security-opt seccomp=unconfined only";

/// Types of the running kernel.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Whether system calls of this process are filtered.
pub(super) fn is_filtered() -> bool {
    status_field("Seccomp:").as_deref() == Some("2")
}

pub(super) fn seccomp() -> Feature {
    let state = match is_filtered() {
        false => Ok("no system call is filtered".to_owned()),
        // What it forbids shows in the others.
        true => Ok(
            "system calls are filtered; what does not work below in spite of its capability is \
             forbidden by it"
                .to_owned(),
        ),
    };
    feature("seccomp", "bpf(2), perf_event_open(2)", false, state)
}

pub(super) fn unprivileged_bpf() -> Feature {
    let state = match sysctl("kernel.unprivileged_bpf_disabled") {
        // With 0 others may load programs; this one does not care.
        Some(value) => Ok(format!("{value}; any value will do with CAP_BPF")),
        None => Err("the kernel needs CONFIG_BPF_SYSCALL".to_owned()),
    };
    let purpose = "loading kernel-side programs";
    feature("kernel.unprivileged_bpf_disabled", purpose, false, state)
}

pub(super) fn pid_namespace() -> Feature {
    let state = initial_namespace(
        "pid",
        INITIAL_PID_NAMESPACE,
        "this is the machine's own",
        || {
            "only processes of this container can be named, and ids are not the machine's: run with \
         --pid=host (docker, podman) or hostPID: true (Kubernetes)"
            .to_owned()
        },
    );
    feature("pid namespace", "seeing all processes", false, state)
}

pub(super) fn user_namespace() -> Feature {
    let state = initial_namespace(
        "user",
        INITIAL_USER_NAMESPACE,
        "this is the machine's own",
        || {
            "capabilities of a user namespace don't count for bpf(2): run outside of it (not \
             rootless; docker: --userns=host)"
                .to_owned()
        },
    );
    feature("user namespace", "capabilities that count", true, state)
}

pub(super) fn cgroup_namespace() -> Feature {
    let state = initial_namespace(
        "cgroup",
        INITIAL_CGROUP_NAMESPACE,
        "this is the machine's own",
        || {
            "paths of cgroups begin at this container's own: run with --cgroupns=host (docker, \
             podman)"
                .to_owned()
        },
    );
    feature("cgroup namespace", "telling containers apart", false, state)
}

pub(super) fn kernel_types() -> Feature {
    let state = match offsets::of_cgroups(&Version::Two) {
        Ok(_) => Ok(format!("at {BTF}")),
        Err(error) => Err(offsets::remedy(&error)),
    };
    feature(
        "kernel types (BTF)",
        "--cgroup, --container, --off-cpu",
        false,
        state,
    )
}

pub(super) fn cgroups() -> Feature {
    let state = match Hierarchies::read() {
        Ok(hierarchies) => match hierarchies.primary() {
            Some(hierarchy) => Ok(looked_at(hierarchy)),
            None => Err(
                "no cgroups are mounted: mount -t cgroup2 none /sys/fs/cgroup (in a container: run \
                 with -v /sys/fs/cgroup:/sys/fs/cgroup:ro)"
                    .to_owned(),
            ),
        },
        Err(error) => Err(error.to_string()),
    };
    let purpose = "--cgroup, --container, and samples by container";
    feature("cgroups", purpose, false, state)
}

fn looked_at(hierarchy: &Hierarchy) -> String {
    let version = match &hierarchy.version {
        Version::Two => "version 2".to_owned(),
        Version::One { controllers } => format!("version 1 ({})", controllers.join(",")),
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let also = also_mounted(&mounts, hierarchy);
    let mount = hierarchy.mount.display();
    format!("{version} at {mount} is looked at{also}")
}

/// Of the other version, and mounted too: what engines use may be that.
fn also_mounted(mounts: &str, hierarchy: &Hierarchy) -> String {
    let other = match hierarchy.version {
        Version::Two => "cgroup",
        Version::One { .. } => "cgroup2",
    };
    let found = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == other).then_some(path)
    });
    let version = if other == "cgroup2" { 2 } else { 1 };
    found.map_or_else(String::new, |path| {
        format!("; version {version} is mounted too, at {path}")
    })
}

/// Whether ids of processes are those that the kernel side knows.
pub(super) fn has_machine_ids() -> bool {
    let state = initial_namespace("pid", INITIAL_PID_NAMESPACE, "", String::new);
    state.is_ok()
}

/// Whether this process is in the initial namespace of a kind.
fn initial_namespace(
    kind: &str,
    initial: u64,
    found: &str,
    remedy: impl FnOnce() -> String,
) -> Result<String, String> {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(format!("/proc/self/ns/{kind}")) {
        Ok(namespace) if namespace.ino() == initial => Ok(found.to_owned()),
        Ok(_) => Err(remedy()),
        Err(error) => Err(format!("/proc/self/ns/{kind}: {error}")),
    }
}

fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_version_is_named_if_it_is_mounted() {
        let hierarchy = Hierarchy {
            version: Version::One {
                controllers: vec!["pids".to_owned()],
            },
            number: 9,
            mount: "/sys/fs/cgroup/pids".into(),
            root: "/".to_owned(),
        };
        let mounts = "cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            also_mounted(mounts, &hierarchy),
            "; version 2 is mounted too, at /sys/fs/cgroup/unified"
        );
        assert_eq!(also_mounted("proc /proc proc rw 0 0\n", &hierarchy), "");
    }
}
