//! How much work something is: CPU time of the calling thread, which other programs don't make longer.
//!
//! What does not belong here: how long something takes on the wall, for which tests run alone.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// From when on work is measured.
#[derive(Clone, Copy, Debug)]
pub struct Work(Duration);

impl Work {
    /// Begins now.
    pub fn begin() -> Work {
        Work(cpu_time())
    }

    /// CPU time that this thread had since then.
    pub fn spent(self) -> Duration {
        cpu_time().saturating_sub(self.0)
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}
