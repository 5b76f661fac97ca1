//! The tasks that an adjustable probe samples: what is wanted, and what the kernel side has -> what
//! to change.
//!
//! The kernel side adds the children of followed processes by itself, and takes out what has ended.
//! So what it has is read each time, and nothing of it is remembered here: a process id that was
//! given out again is missing there, though it is wanted now as before. An entry that the kernel
//! side has added says which followed process it stems from, its root, and stays as long as that one
//! is followed, whether the entry is wanted for itself or not.
//!
//! What does not belong here: who is wanted (`model::Sampling`), when samples are taken (`adjust`).

use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;

use profiler_common::control::{
    WATCH_FOLLOW, WATCH_INHERITED, WATCH_PROCESS, WATCH_ROOT, WATCH_THREAD, WATCH_TICK_NS, Watched,
    watch_life, watch_root, watched_root,
};
use profiler_target::proc_fs::{self, Stat};
use rustix::io::Errno;
use rustix::process::test_kill_process;

use super::{ProbeError, bpf, load::WATCHED_TASKS};
use profiler_model::{Pid, Sampling, Tid};

/// Checks that there is room for what is wanted, as far as that can be told before.
pub(super) fn check_count(wanted: &Sampling) -> Result<(), ProbeError> {
    // A process and its main thread have the same id, and one element.
    let alone = |tid: &&Tid| !wanted.processes.contains(&Pid(tid.0));
    let count = wanted.processes.len() + wanted.threads.iter().filter(alone).count();
    if count > WATCHED_TASKS as usize {
        return Err(too_many(count));
    }
    Ok(())
}

/// Makes the kernel side watch what is `wanted`, or nothing.
pub(super) fn update(map: BorrowedFd<'_>, wanted: Option<&Sampling>) -> Result<(), ProbeError> {
    let failed = |error| ProbeError::from_io("change which tasks are sampled", error);
    let mut bits = wanted.map(named).unwrap_or_default();
    let present: Vec<(u32, Watched)> = bpf::read_hash(map, WATCHED_TASKS).map_err(failed)?;
    let mut changes = Changes::default();
    for (id, value) in present {
        let named = bits.remove(&id).unwrap_or(0);
        changes.decide(id, value, with_inherited(named, id, value.bits, wanted));
    }
    bpf::remove_from_map(map, &changes.gone).map_err(failed)?;

    changes.ids.extend(bits.keys().copied());
    let told = !bits.is_empty() && lives_are_told();
    let new = bits.into_iter().map(|(id, bits)| Watched {
        bits,
        life: if told { began(id) } else { 0 },
    });
    changes.values.extend(new);
    bpf::update_map(map, &changes.ids, &changes.values).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::E2BIG) => too_many(changes.ids.len()),
            _ => failed(error),
        }
    })?;
    // What had ended before it was added is not taken out by the kernel side; its id may be given to
    // somebody else.
    let mut ended = changes.ids;
    ended.retain(|id| has_ended(*id));
    bpf::remove_from_map(map, &ended).map_err(failed)
}

/// Elements to take out, and to set.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    gone: Vec<u32>,
    ids: Vec<u32>,
    values: Vec<Watched>,
}

impl Changes {
    fn decide(&mut self, id: u32, before: Watched, after: u32) {
        if after == 0 {
            self.gone.push(id);
        } else if after != before.bits {
            self.ids.push(id);
            self.values.push(Watched {
                bits: after,
                ..before
            });
        }
    }
}

/// Which life of an id is meant by naming it now; 0: it is not known.
pub(super) fn life_of(id: u32) -> u32 {
    if lives_are_told() { began(id) } else { 0 }
}

/// Whether /proc tells when tasks began as the kernel side does, whose times are the machine's own.
fn lives_are_told() -> bool {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let own_time = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        words.next() == Some("boottime") && words.any(|word| word != "0")
    };
    !offsets.lines().any(own_time) && proc_fs::tick_ns() == WATCH_TICK_NS
}

fn began(id: u32) -> u32 {
    // The id of any thread is found there. What is said of a whole process would add up all of its threads each time.
    let stat = proc_fs::thread_stat(Pid(id), Tid(id));
    let started = stat.and_then(|stat| Stat::parse(&stat)?.started_ticks());
    started.map_or(0, watch_life)
}

/// Values of what is named, by id.
fn named(wanted: &Sampling) -> HashMap<u32, u32> {
    let mut bits = HashMap::with_capacity(wanted.processes.len() + wanted.threads.len());
    for pid in &wanted.processes {
        let following = if wanted.followed.contains(pid) {
            WATCH_FOLLOW | watch_root(pid.0)
        } else {
            0
        };
        bits.insert(pid.0, WATCH_PROCESS | following);
    }
    for tid in &wanted.threads {
        *bits.entry(tid.0).or_insert(0) |= WATCH_THREAD;
    }
    bits
}

/// The value that the element `id`, which is `value` now and `named` (0: not), is to have; 0: none.
fn with_inherited(named: u32, id: u32, value: u32, wanted: Option<&Sampling>) -> u32 {
    let root = watched_root(value);
    let is_followed = |id: u32| wanted.is_some_and(|wanted| wanted.followed.contains(&Pid(id)));
    if value & WATCH_INHERITED == 0 || root == id || !is_followed(root) {
        return named;
    }
    // Its root says more than that it is followed for itself: its children outlive it.
    named & !WATCH_ROOT | WATCH_PROCESS | WATCH_FOLLOW | WATCH_INHERITED | watch_root(root)
}

/// Whether no task has this id.
fn has_ended(id: u32) -> bool {
    let pid = i32::try_from(id)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

fn too_many(count: usize) -> ProbeError {
    ProbeError::Request(format!(
        "can't sample {count} tasks: at most {WATCHED_TASKS} processes and threads can be \
         watched at a time, their descendants included"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INHERITED: u32 = WATCH_PROCESS | WATCH_FOLLOW | WATCH_INHERITED;

    fn sampling(processes: &[u32], threads: &[u32], followed: &[u32]) -> Sampling {
        Sampling {
            frequency_hz: 99,
            regular_hz: None,
            kernel_stacks: false,
            processes: processes.iter().copied().map(Pid).collect(),
            threads: threads.iter().copied().map(Tid).collect(),
            followed: followed.iter().copied().map(Pid).collect(),
        }
    }

    #[track_caller]
    fn check(value: u32, wanted: &Sampling, expected: u32) {
        let named = named(wanted).remove(&20).unwrap_or(0);
        assert_eq!(with_inherited(named, 20, value, Some(wanted)), expected);
    }

    #[test]
    fn what_is_named_says_what_is_watched() {
        let bits = named(&sampling(&[20, 30], &[20, 40], &[30, 50]));
        let expected = [
            (20, WATCH_PROCESS | WATCH_THREAD),
            (30, WATCH_PROCESS | WATCH_FOLLOW | watch_root(30)),
            (40, WATCH_THREAD),
        ];
        assert_eq!(bits, HashMap::from(expected));
        // The highest id that the kernel gives out.
        assert_eq!(watched_root(INHERITED | watch_root(4_194_303)), 4_194_303);
    }

    #[test]
    fn what_was_inherited_stays_while_its_root_is_followed() {
        let child = INHERITED | watch_root(10);
        check(child, &sampling(&[10], &[], &[10]), child);
        // The root has ended, but is followed still.
        check(child, &sampling(&[], &[], &[10]), child);
        check(
            child,
            &sampling(&[10, 20], &[20], &[10]),
            child | WATCH_THREAD,
        );
        check(child, &sampling(&[10, 20], &[], &[10, 20]), child);
        check(child, &sampling(&[10], &[], &[]), 0);
        check(child, &sampling(&[10, 20], &[], &[]), WATCH_PROCESS);
        let own = WATCH_PROCESS | WATCH_FOLLOW | watch_root(20);
        check(child, &sampling(&[20], &[], &[20]), own);
        assert_eq!(with_inherited(0, 20, child, None), 0);
    }

    #[test]
    fn what_was_named_goes_when_it_is_not() {
        let own = WATCH_PROCESS | WATCH_FOLLOW | watch_root(20);
        check(own, &sampling(&[20], &[], &[20]), own);
        check(own, &sampling(&[20], &[], &[]), WATCH_PROCESS);
        check(own, &sampling(&[30], &[], &[30]), 0);
        check(WATCH_THREAD, &sampling(&[], &[20], &[]), WATCH_THREAD);
        // An id that the kernel has given out again, to a descendant of whoever had it.
        check(INHERITED | watch_root(20), &sampling(&[], &[], &[20]), 0);
    }

    #[test]
    fn only_differences_are_written() {
        let mut changes = Changes::default();
        let life = 77;
        let watched = |bits| Watched { bits, life };
        changes.decide(1, watched(5), 5);
        changes.decide(2, watched(5), 0);
        changes.decide(3, watched(5), 6);
        let expected = Changes {
            gone: vec![2],
            ids: vec![3],
            values: vec![watched(6)],
        };
        assert_eq!(changes, expected);
    }
}
