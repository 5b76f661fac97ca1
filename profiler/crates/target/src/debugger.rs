//! Who debugs a process, by ptrace(2).
//!
//! A process id -> that of its debugger. Source: `TracerPid` in proc_pid_status(5).
//!
//! What does not belong here: what follows from it.

use profiler_model::Pid;

use crate::proc_fs;

/// The process that debugs `pid`, if one does.
pub fn of(pid: Pid) -> Option<Pid> {
    tracer_in(&proc_fs::status(pid.0)?)
}

fn tracer_in(status: &[u8]) -> Option<Pid> {
    let tracer = proc_fs::value(status, "TracerPid")?;
    tracer.parse().ok().filter(|&pid| pid != 0).map(Pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_zero() {
        let status = |tracer| format!("Name:\tx\nPPid:\t1\nTracerPid:\t{tracer}\nUid:\t0\n");
        assert_eq!(tracer_in(status("0").as_bytes()), None);
        assert_eq!(tracer_in(status("77").as_bytes()), Some(Pid(77)));
        assert_eq!(tracer_in(b""), None);
    }
}
