//! What all configurations together want sampled: configurations -> [`Sampling`].
//!
//! What does not belong here: who gets which samples (`mod`).

use super::configuration::Configuration;
use super::settings::Scope;
use super::surroundings::Surroundings;
use crate::tcf::world::{Context, ContextKey};
use profiler_model::*;

/// The process whose children are the kernel's own threads.
const KERNEL_THREADS: Pid = Pid(2);

/// The union of what is wanted; none if nobody gets any samples.
pub(super) fn union<'a>(
    configurations: impl Iterator<Item = &'a Configuration>,
    world: &impl Surroundings,
) -> Option<Sampling> {
    let mut all: Option<Sampling> = None;
    for configuration in configurations {
        let Some(bound) = configuration.bound() else {
            continue;
        };
        let Some(context) = world.context(bound.context) else {
            continue;
        };
        let settings = &configuration.settings;
        let sampling = all.get_or_insert_with(|| Sampling {
            frequency_hz: 0,
            regular_hz: None,
            kernel_stacks: false,
            processes: Default::default(),
            threads: Default::default(),
            followed: Default::default(),
        });
        sampling.frequency_hz = sampling.frequency_hz.max(settings.frequency_hz);
        sampling.kernel_stacks |=
            settings.kernel_stacks || is_of_kernel(context, bound.process, world);
        if let Some(thread) = context.thread {
            sampling.threads.insert(thread);
            continue;
        }
        sampling.processes.insert(context.life.pid);
        let members = bound.members.iter().filter_map(|&key| world.context(key));
        let members = members.filter(|member| !member.ended);
        sampling
            .processes
            .extend(members.clone().map(|member| member.life.pid));
        if settings.scope != Scope::Context {
            sampling.followed.insert(context.life.pid);
            sampling
                .followed
                .extend(members.map(|member| member.life.pid));
        }
    }
    all
}

/// Whether it has kernel stacks only. Where that is not sure, kernel stacks do no harm.
fn is_of_kernel(context: &Context, process: ContextKey, world: &impl Surroundings) -> bool {
    let parent = context.parent.and_then(|parent| world.context(parent));
    context.life.pid == KERNEL_THREADS
        || parent.is_some_and(|parent| parent.life.pid == KERNEL_THREADS)
        || world.has_no_program(process)
}
