//! Who pays for what others have traced: processes outside the target that run code with our probes.
//!
//! The memory of all processes that map a traced file -> how many of them are none of ours and have
//! probes in their code, said in a sentence. Bounded in time.
//!
//! What does not belong here: why links are shared (the tracer).

use super::Tracer;
use super::members::Place;
use profiler_model::{Pid, Timestamp};
use profiler_probe::now;
use profiler_resolve::objects::{FileId, is_patched};

/// How long processes are looked at.
const LOOK_NS: u64 = 250_000_000;
/// Places of each file that are looked at: one that the kernel refused shows nothing.
const MAX_PLACES: usize = 8;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strangers {
    count: usize,
    /// Whether all processes were looked at.
    all: bool,
}

impl Tracer {
    /// Says how many processes pay that are none of ours, where that was the price that was chosen.
    pub(super) fn tell_strangers(&mut self, beginning: bool) {
        if !self.request.follow_exact {
            return;
        }
        let Strangers { count, all } = self.strangers(now());
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

    /// Processes of whom nobody could tell any more whether they were in a wanted cgroup.
    pub(super) fn tell_untold(&self) {
        let untold = self.members.as_ref().map_or(0, |members| members.untold);
        let hint = match self.request.follow_exact {
            true => "",
            false => " (--follow-exact traces from the first instruction)",
        };
        if untold > 0 {
            let processes = if untold == 1 { "process" } else { "processes" };
            log::warn!(
                "{untold} {processes} that may have run traced functions ended before it was seen in \
                 which cgroup{hint}"
            );
        }
    }

    fn strangers(&mut self, began: Timestamp) -> Strangers {
        let files = self.watched_places();
        let mut strangers = Strangers {
            count: 0,
            all: true,
        };
        for pid in profiler_resolve::processes() {
            if now().since(began) > LOOK_NS {
                strangers.all = false;
                break;
            }
            // Most processes are told apart by this, which is read in less time than their mappings.
            if self.is_ours(pid) {
                continue;
            }
            strangers.count += usize::from(is_patched(pid, &files));
        }
        strangers
    }

    fn is_ours(&mut self, pid: Pid) -> bool {
        match &mut self.members {
            Some(members) => members.place(pid) == Place::Inside,
            None => self.family.contains(&pid),
        }
    }

    /// Places with probes of each file that has any.
    fn watched_places(&self) -> Vec<(FileId, Vec<u64>)> {
        let objects = self.objects.iter().map(|object| {
            let mut sites = Vec::new();
            for number in object.probes.clone() {
                if sites.len() >= MAX_PLACES {
                    break;
                }
                self.probes[number as usize].sites(number, &mut sites);
            }
            let places = sites.iter().take(MAX_PLACES).map(|site| site.offset);
            (object.id, places.collect())
        });
        objects.collect()
    }
}
