//! How threads are scheduled: their class, and the processor time that they have used.
//!
//! Thread ids as this process sees them -> sched_setattr(2) and clocks of CPU time, in nanoseconds. Source:
//! sched(7), <linux/sched/types.h>, <linux/posix-timers.h>.
//!
//! What does not belong here: which thread is to have which class (the profiler's `session::priority`).

#![allow(unsafe_code)]

use std::io;

/// A kernel's number of a thread.
pub type ThreadId = u32;

/// From <linux/sched/types.h>; its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl SchedAttr {
    fn class(&self) -> Option<Class> {
        match self.policy.cast_signed() {
            libc::SCHED_OTHER => Some(Class::Ordinary(self.nice)),
            libc::SCHED_RR => Some(Class::RealTime(self.priority)),
            _ => None,
        }
    }
}

/// What a thread starts is scheduled in the ordinary way, at nice 0.
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// In turn with all others, by its nice value.
    Ordinary(i32),
    /// Before all that is ordinary, on the whole machine: a real-time priority from 1 on.
    RealTime(u32),
}

/// The calling thread.
pub fn this_thread() -> ThreadId {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned()
}

/// Puts a thread into a class; what it starts from then on is ordinary, unless `inherited`.
pub fn set_class(thread: ThreadId, class: Class, inherited: bool) -> io::Result<()> {
    let (policy, nice, priority) = match class {
        Class::Ordinary(nice) => (libc::SCHED_OTHER, nice, 0),
        Class::RealTime(priority) => (libc::SCHED_RR, 0, priority),
    };
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: policy.cast_unsigned(),
        flags: match inherited {
            true => 0,
            false => SCHED_FLAG_RESET_ON_FORK,
        },
        nice,
        priority,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads as much as the size says.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts something that is scheduled as this thread is: who waits for it, and goes before others, would wait for all of
/// them. Whoever is started so is to be put where it belongs, by itself or by others.
pub fn handing_on<T>(start: impl FnOnce() -> T) -> T {
    let this = this_thread();
    let is_reset = |attr: &SchedAttr| attr.flags & SCHED_FLAG_RESET_ON_FORK != 0;
    let class = attr_of(this).ok().filter(is_reset);
    let Some(class) = class.and_then(|attr| attr.class()) else {
        return start();
    };
    let hands_on = set_class(this, class, true).is_ok();
    let done = start();
    // It may have another one by now.
    if hands_on
        && let Ok(Some(class)) = class_of(this)
        && let Err(error) = set_class(this, class, false)
    {
        log::debug!("what thread {this} starts has its priority: {error}");
    }
    done
}

/// The class of a thread; none if it is one that is not told of here.
pub fn class_of(thread: ThreadId) -> io::Result<Option<Class>> {
    Ok(attr_of(thread)?.class())
}

fn attr_of(thread: ThreadId) -> io::Result<SchedAttr> {
    let mut attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel fills at most the size that it is told.
    let read =
        unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attr, attr.size, 0) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attr)
}

/// Processor time that a thread of this process has used; none if it has ended.
pub fn thread_time_ns(thread: ThreadId) -> Option<u64> {
    time_ns(thread, 4)
}

/// Processor time that a process has used; none if it has ended and was waited for.
pub fn process_time_ns(process: u32) -> Option<u64> {
    time_ns(process, 0)
}

/// The kernel's number of such a clock holds the id: of what the scheduler has counted (2), of a thread (4).
fn time_ns(id: u32, of_thread: libc::clockid_t) -> Option<u64> {
    let clock = !id.cast_signed() << 3 | of_thread | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills the structure.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Some(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_threads_and_processes_goes_on_as_they_work() {
        let (thread, process) = (this_thread(), std::process::id());
        let before = (thread_time_ns(thread), process_time_ns(process));
        assert!(before.0 > Some(0) && before.1 >= before.0, "{before:?}");
        while thread_time_ns(thread) < before.0.map(|ns| ns + 1_000_000) {}
        assert!(process_time_ns(process) > before.1);
        assert_eq!(thread_time_ns(u32::MAX >> 4), None);
    }

    #[test]
    fn a_class_is_what_was_set() {
        let on_a_thread = || {
            let this = this_thread();
            assert_eq!(class_of(this).unwrap(), Some(Class::Ordinary(0)));
            for class in [Class::RealTime(1), Class::Ordinary(-10)] {
                if set_class(this, class, false).is_err() {
                    eprintln!("SKIPPED: no right to raise the priority");
                    return;
                }
                assert_eq!(class_of(this).unwrap(), Some(class));
                let started = std::thread::spawn(|| class_of(this_thread()).unwrap());
                assert_eq!(started.join().unwrap(), Some(Class::Ordinary(0)));
                let started = || std::thread::spawn(|| class_of(this_thread()).unwrap());
                assert_eq!(handing_on(started).join().unwrap(), Some(class));
                // And no longer.
                assert_eq!(started().join().unwrap(), Some(Class::Ordinary(0)));
            }
        };
        std::thread::spawn(on_a_thread).join().unwrap();
    }
}
