//! The program started anew in its own process: for what is found out once in a process, and was found out wrongly.
//!
//! Nothing has been done by then but to read the arguments: there are no helpers, files or children to lose. How often
//! it was started is handed on in the environment, and taken out of it before anybody else could see it.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

const VARIABLE: &str = "PROFILER_STARTED_ANEW";
/// What is found again and again is no accident.
const MOST_STARTS: u32 = 10;

/// Starts it anew with the same arguments, if that `is_needed`. Returns if it is not, can't be, or was done too often. To be
/// called once, before there are other threads.
pub(super) fn start_if(is_needed: fn() -> bool, arguments: &[OsString]) {
    let starts = starts();
    let Some((name, arguments)) = arguments.split_first().filter(|_| is_needed()) else {
        return;
    };
    if starts >= MOST_STARTS {
        log::debug!("this kernel can less than it seems to");
        return;
    }
    let mut command = Command::new("/proc/self/exe");
    let command = command.arg0(name).args(arguments);
    let error = command.env(VARIABLE, (starts + 1).to_string()).exec();
    log::debug!("failed to start anew: {error}");
}

/// How often it was started anew.
fn starts() -> u32 {
    let told = std::env::var(VARIABLE).ok();
    if told.is_some() {
        // SAFETY: no other thread exists that could read the environment meanwhile.
        unsafe { std::env::remove_var(VARIABLE) };
    }
    told.and_then(|told| told.parse().ok()).unwrap_or(0)
}
