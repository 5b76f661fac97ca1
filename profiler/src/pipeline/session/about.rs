//! What a session says of the machine, of its sources, and of a command that does not run. What does not
//! belong here: what it does.

use std::io;

use crate::error::Failure;
use profiler_probe::AttachedSource;
use profiler_resolve::SourceOptions;

/// As a shell would: 127 for a command that is not there, 126 for one that can't be run.
pub(super) fn exec_failure(program: &str, error: &io::Error) -> Failure {
    let status = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    Failure {
        status,
        ..Failure::because(format!("failed to run {program}"), error)
    }
}

pub(super) fn source(attached: &AttachedSource) -> SourceOptions {
    SourceOptions {
        name: attached.name.clone(),
        unit: attached.unit,
        frequency_hz: attached.frequency_hz,
        period: attached.period,
    }
}

pub(super) fn machine() -> profiler_model::Session {
    let uname = rustix::system::uname();
    profiler_model::Session {
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        arch: uname.machine().to_string_lossy().into_owned(),
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
        ..profiler_model::Session::default()
    }
}
