//! The priority of the thread that drives a session. What does not belong here: when it is in a hurry.

use std::io;

use profiler_probe::set_own_nice;

/// Nice value of the thread that empties the kernel's buffers. It takes little time, but what it
/// leaves there too long is lost, on a busy machine most of all.
const NICE: i32 = -10;

/// While it lives, this thread goes before others.
pub(in crate::pipeline) struct Hurry(io::Result<i32>);

impl Hurry {
    pub(in crate::pipeline) fn begin() -> Hurry {
        let before = set_own_nice(NICE);
        Hurry(before.inspect_err(|error| log::debug!("the priority stays as it is: {error}")))
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Ok(before) = self.0
            && let Err(error) = set_own_nice(before)
        {
            log::debug!("the priority is not set back: {error}");
        }
    }
}
