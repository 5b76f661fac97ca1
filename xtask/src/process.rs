//! Running other programs: what fails is an error that names the command.

use std::{
    env,
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

/// A developer command failed; the text says what and why.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of a developer command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// A failure to do something, with the system's answer.
pub(crate) fn failed(action: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
    Failure(format!("failed to {action}: {error}"))
}

/// The folder of the workspace that this is called in; an executable that was copied with a build folder was built in another.
pub(crate) fn workspace() -> PathBuf {
    let called_in = env::var_os("CARGO_MANIFEST_DIR");
    let mut path = called_in.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    path.pop();
    path
}

/// The cargo that runs us, without what it says of our own package: build scripts that ask for that would run
/// anew for each who calls, and all that depends on them would be built anew.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let of_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if of_package {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs a command to its end; its output is the user's to see.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let text = line(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure(format!("'{text}' failed: {status}"))),
        Err(error) => Err(failed(format!("run '{text}'"), error)),
    }
}

/// Runs a command and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let text = line(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("run '{text}'"), error))?;
    if !output.status.success() {
        return Err(Failure(format!("'{text}' failed: {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(format!("read '{text}'"), error))
}

/// User and system time, its own and of children that were waited for, from /proc/PID/stat.
pub(crate) fn cpu_of(stat: &str, ticks_per_second: u64) -> Duration {
    // The name before the last parenthesis may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 1000 / ticks_per_second.max(1))
}

pub(crate) fn line(command: &Command) -> String {
    let parts: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_kernel() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(
            cpu_of(stat, 100),
            Duration::from_millis((11 + 12 + 13 + 14) * 10)
        );
        assert_eq!(cpu_of("", 100), Duration::ZERO);
    }
}
