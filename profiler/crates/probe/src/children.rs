//! Following children of watched tasks: how this kernel lets it be done -> globals of the object and
//! attached programs.
//!
//! By raw tracepoints and the kernel's description of its types, which takes no tracefs; where a kernel
//! has no such description, by tracepoints' records, whose layout tracefs describes.
//!
//! What does not belong here: whom to follow (`watched`), where structures have what (`offsets`).

use std::os::fd::OwnedFd;

use aya::{Ebpf, EbpfLoader};

use super::{
    ProbeError, load,
    offsets::{self, OffsetError},
    sampler,
    tracefs::Tracefs,
};

/// A new task, which has not run yet; its category.
const CREATED: (&str, &str) = ("task_newtask", "task");
/// A task that is gone for good.
const FREED: (&str, &str) = ("sched_process_free", "sched");

/// How children are followed.
pub(super) enum Children {
    /// With where a task's structure has its id, and when it began (0: not known).
    Raw { task_pid: u32, start: u32 },
    /// With where records have their fields.
    Records { offsets: Records, tracefs: Tracefs },
}

/// Offsets in records of tracepoints; they differ between kernels.
pub(super) struct Records {
    created_pid: u32,
    created_flags: u32,
    freed_pid: u32,
}

impl Children {
    /// Finds out what this kernel has.
    pub(super) fn new() -> Result<Children, ProbeError> {
        match offsets::of_tasks() {
            Ok((task_pid, start)) => Ok(Children::Raw { task_pid, start }),
            Err(why) => Children::by_records().map_err(|error| and_no_types(error, &why)),
        }
    }

    fn by_records() -> Result<Children, ProbeError> {
        let tracefs = Tracefs::open()?;
        let offset = |(name, category), field| tracefs.field_offset(category, name, field);
        let offsets = Records {
            created_pid: offset(CREATED, "pid")?,
            created_flags: offset(CREATED, "clone_flags")?,
            freed_pid: offset(FREED, "pid")?,
        };
        Ok(Children::Records { offsets, tracefs })
    }

    /// Sets globals.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        match self {
            Children::Raw { task_pid, start } => {
                loader
                    .override_global("TASK_PID_OFFSET", task_pid, true)
                    .override_global("TASK_START_OFFSET", start, true);
            }
            Children::Records { offsets, .. } => {
                loader
                    .override_global("NEWTASK_PID_OFFSET", &offsets.created_pid, true)
                    .override_global("NEWTASK_FLAGS_OFFSET", &offsets.created_flags, true)
                    .override_global("FREE_PID_OFFSET", &offsets.freed_pid, true);
            }
        }
    }

    /// Attaches the programs: until the object goes, and until what is returned does.
    pub(super) fn attach(&self, ebpf: &mut Ebpf) -> Result<Vec<OwnedFd>, ProbeError> {
        match self {
            Children::Raw { .. } => {
                load::attach_raw(ebpf, "watch_child", CREATED.0)?;
                load::attach_raw(ebpf, "forget_task", FREED.0)?;
                Ok(Vec::new())
            }
            Children::Records { tracefs, .. } => {
                let mut attach = |program, (name, category)| {
                    let id = tracefs.id(category, name)?;
                    let program = load::load_program(ebpf, program)?;
                    sampler::attach_tracepoint(id, name, load::program_fd(program)?)
                };
                Ok(vec![
                    attach("watch_child_in_record", CREATED)?,
                    attach("forget_task_in_record", FREED)?,
                ])
            }
        }
    }
}

/// Whether following children takes tracefs here.
pub(super) fn need_tracefs() -> bool {
    offsets::of_tasks().is_err()
}

/// Without tracefs there would still be another way.
fn and_no_types(error: ProbeError, why: &OffsetError) -> ProbeError {
    let or = |remedy: String| {
        format!(
            "{remedy}; or, to follow children without tracefs, another kernel: {}",
            offsets::remedy(why)
        )
    };
    match error {
        ProbeError::Permission { action, remedy } => ProbeError::Permission {
            action,
            remedy: or(remedy),
        },
        ProbeError::Unsupported { action, remedy } => ProbeError::Unsupported {
            action,
            remedy: or(remedy),
        },
        other => other,
    }
}
