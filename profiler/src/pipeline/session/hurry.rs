//! The priority of the threads that a session depends on. What does not belong here: when it is in a hurry.

use std::io;

use profiler_probe::set_own_nice;

/// Nice value of the thread that empties the kernel's buffers, and of those that it starts and waits for: they build
/// unwind tables, find names and write. That takes little time, but what is left too long is lost, on a busy machine
/// most of all. Who has much to do gives the priority back (`resolve::thrift`).
const NICE: i32 = -10;

/// While it lives, this thread goes before others; and those that it starts meanwhile, as long as they live.
pub(in crate::pipeline) struct Hurry(io::Result<i32>);

impl Hurry {
    pub(in crate::pipeline) fn begin() -> Hurry {
        let before = set_own_nice(NICE);
        Hurry(before.inspect_err(|error| {
            log::info!(
                "no priority over what is recorded, which takes CAP_SYS_NICE ({error}): on a busy machine more is \
                 lost, and the end comes later"
            );
        }))
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
