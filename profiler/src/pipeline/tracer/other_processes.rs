//! Who pays for what others have traced: processes outside the target that run code with our probes.
//!
//! The memory of all processes that map a traced file -> how many of them are none of ours and have
//! probes in their code, said in a sentence. Bounded in time.
//!
//! What does not belong here: why links are shared (`choose`).

use super::plans::Plans;
use super::targets::Targets;
use profiler_model::Timestamp;
use profiler_probe::now;
use profiler_resolve::objects::{FileId, is_patched};

/// How long processes are looked at.
const LOOK_NS: u64 = 250_000_000;
/// Places of each file that are looked at: one that the kernel refused shows nothing.
const MAX_PLACES: usize = 8;

/// How many other processes run into our probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherProcesses {
    count: usize,
    /// Whether all processes were looked at.
    all: bool,
}

impl OtherProcesses {
    /// Says how many processes pay that are none of ours.
    pub(super) fn tell(plans: &Plans, targets: &mut Targets, beginning: bool) {
        let OtherProcesses { count, all } = OtherProcesses::count(plans, targets, now());
        let at_least = if all { "" } else { "at least " };
        let when = if beginning { "" } else { " at the end" };
        let processes = if count == 1 { "process" } else { "processes" };
        if count > 0 {
            log::warn!(
                "--follow-exact: {at_least}{count} other {processes}{when} with the traced files in \
                 memory, slowed at each call as the target is; none of it is recorded"
            );
        } else {
            log::info!("--follow-exact: no other process{when} has the traced files in memory");
        }
    }

    fn count(plans: &Plans, targets: &mut Targets, began: Timestamp) -> OtherProcesses {
        let files = watched_places(plans);
        let mut others = OtherProcesses {
            count: 0,
            all: true,
        };
        for pid in profiler_target::proc_fs::processes() {
            if now().since(began) > LOOK_NS {
                others.all = false;
                break;
            }
            // Most processes are told apart by this, which is read in less time than their mappings.
            if targets.is_ours(pid) {
                continue;
            }
            others.count += usize::from(is_patched(pid, &files));
        }
        others
    }
}

/// Places with probes of each file that has any.
fn watched_places(plans: &Plans) -> Vec<(FileId, Vec<u64>)> {
    let traced = plans.objects.iter().enumerate();
    // What only tells of exceptions, as in the C library, is passed by them alone.
    let traced = traced.filter(|&(index, _)| plans.has_calls(index));
    let objects = traced.map(|(_, object)| {
        let mut sites = Vec::new();
        for number in object.probes.clone() {
            if sites.len() >= MAX_PLACES {
                break;
            }
            plans.probes[number].sites(number, &mut sites);
        }
        let places = sites.iter().take(MAX_PLACES).map(|site| site.offset);
        (object.target.id, places.collect())
    });
    objects.collect()
}
