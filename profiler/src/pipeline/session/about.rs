//! What a session says of the machine and of its sources. What does not belong here: what it does.

use profiler_probe::AttachedSource;
use profiler_resolve::SourceOptions;

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
