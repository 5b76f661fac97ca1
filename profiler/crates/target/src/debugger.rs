//! Who debugs a process, by ptrace(2).
//!
//! A process id -> that of its debugger. Source: `TracerPid` in proc_pid_status(5).
//!
//! What does not belong here: what follows from it.

use std::fs;

use profiler_model::Pid;

/// The process that debugs `pid`, if one does.
pub fn of(pid: Pid) -> Option<Pid> {
    tracer_in(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn tracer_in(status: &str) -> Option<Pid> {
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|&pid| pid != 0).map(Pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_zero() {
        let status = |tracer| format!("Name:\tx\nPPid:\t1\nTracerPid:\t{tracer}\nUid:\t0\n");
        assert_eq!(tracer_in(&status("0")), None);
        assert_eq!(tracer_in(&status("77")), Some(Pid(77)));
        assert_eq!(tracer_in(""), None);
    }
}
