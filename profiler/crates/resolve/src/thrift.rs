//! How long a helping thread goes before others: its share of CPU time, behind which it goes like all others.
//!
//! Threads inherit the priority of the one that starts them, which may be raised. What a recording waits for
//! takes little time as a rule; a thread that takes more must not take it from what is recorded. CPU time of the
//! thread, nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of one thread with a raised priority.
const SHARE_NS: u64 = 2_000_000_000;

/// The account of one thread.
#[derive(Debug)]
pub(crate) struct Thrift {
    share_ns: u64,
    spent: bool,
}

impl Default for Thrift {
    fn default() -> Thrift {
        Thrift {
            share_ns: SHARE_NS,
            spent: false,
        }
    }
}

impl Thrift {
    /// To be called by the thread between two pieces of work.
    pub(crate) fn look(&mut self) {
        if self.spent || own_time_ns() < self.share_ns {
            return;
        }
        self.spent = true;
        // On Linux this is about the calling thread alone.
        let raised = rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0);
        if raised && let Err(error) = rustix::process::setpriority_process(None, 0) {
            log::debug!("the priority is not set back: {error}");
        }
    }
}

fn own_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_used_its_share_goes_like_all_others() {
        let thread = std::thread::spawn(|| {
            let mut thrift = Thrift::default();
            thrift.look();
            assert!(!thrift.spent);
            thrift.share_ns = 5_000_000;
            if rustix::process::setpriority_process(None, -5).is_err() {
                eprintln!("SKIPPED: no right to raise the priority");
                return;
            }
            while own_time_ns() < thrift.share_ns {
                std::hint::spin_loop();
            }
            thrift.look();
            assert_eq!(rustix::process::getpriority_process(None), Ok(0));
        });
        thread.join().unwrap();
    }
}
