//! A schedule of tests -> how each of them ended, several at a time.
//!
//! A thread waits for each running test; this one starts what the schedule says, kills what hangs, and ends
//! everything when somebody asks for that.
//!
//! What does not belong here: what is run beside what (`schedule`), what a failure means (`again`).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::build::Built;
use super::child::{self, Ended, Handle};
use super::classes::Class;
use super::idle::Idle;
use super::interrupt::interrupted;
use super::list::Test;
use super::progress::Progress;
use super::schedule::Schedule;

/// A test that takes longer hangs; the longest takes less than a quarter of it.
const LIMIT: Duration = Duration::from_secs(400);
/// The same of those that only `--long` runs.
const LONG_LIMIT: Duration = Duration::from_secs(2 * 3600);
/// How often the line that says what runs is written anew, and it is looked whether to end.
const TICK: Duration = Duration::from_millis(200);

/// What all tests are run with.
pub(super) struct Runner<'a> {
    pub(super) built: &'a Built,
    pub(super) tests: &'a [Test],
    pub(super) classes: &'a [Class],
    /// Where tests say what they skip.
    pub(super) skip_log: &'a Path,
    /// Where their output goes while they run.
    pub(super) folder: &'a Path,
    /// Whether repetitions are as many as a release wants.
    pub(super) long: bool,
}

impl Runner<'_> {
    /// Runs all tests of a schedule; gives each with its end.
    pub(super) fn run(
        &self,
        mut schedule: Schedule,
        progress: &mut Progress,
    ) -> io::Result<Vec<(usize, Ended)>> {
        let (send, receive) = channel();
        let mut all = Vec::new();
        thread::scope(|scope| {
            let mut running: HashMap<usize, (Arc<Handle>, Instant)> = HashMap::new();
            let mut idle = Idle::new();
            let ended = (|| -> io::Result<()> {
                loop {
                    while let Some(test) = schedule.start(idle.eighths()) {
                        idle.changed();
                        let handle = Arc::new(Handle::default());
                        let until = Instant::now() + self.limit(test);
                        running.insert(test, (Arc::clone(&handle), until));
                        progress.started(test, &self.tests[test].name)?;
                        let send = send.clone();
                        scope.spawn(move || {
                            // Nobody listens any more if an error ended it all.
                            let _ = send.send((test, self.run_one(test, &handle)));
                        });
                    }
                    if running.is_empty() {
                        return Ok(());
                    }
                    match receive.recv_timeout(TICK) {
                        Ok((test, ended)) => {
                            let ended = ended?;
                            running.remove(&test);
                            schedule.ended(test);
                            progress.ended(test, &self.tests[test].name, &ended)?;
                            all.push((test, ended));
                        }
                        Err(RecvTimeoutError::Timeout) => progress.tick()?,
                        Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    }
                    let now = Instant::now();
                    for (handle, _) in running.values().filter(|(_, until)| *until < now) {
                        handle.kill();
                    }
                    if interrupted() {
                        return Err(io::Error::other("interrupted"));
                    }
                }
            })();
            for (handle, _) in running.values() {
                handle.kill();
            }
            ended
        })?;
        progress.end()?;
        Ok(all)
    }

    fn limit(&self, test: usize) -> Duration {
        if self.long || self.built.debug || self.classes[test] == Class::Long {
            LONG_LIMIT
        } else {
            LIMIT
        }
    }

    fn run_one(&self, test: usize, handle: &Handle) -> io::Result<Ended> {
        let log = self.log(test);
        child::run(&mut self.command(test), &log, handle)
    }

    fn log(&self, test: usize) -> PathBuf {
        self.folder.join(format!("{test}.output"))
    }

    /// What cargo would run, for one test.
    fn command(&self, test: usize) -> Command {
        let Test {
            executable,
            ignored,
            ..
        } = self.tests[test];
        let executable = &self.built.executables[executable];
        let mut command = Command::new(&executable.path);
        command
            .args(["--exact", self.tests[test].path(), "--nocapture"])
            .current_dir(&executable.folder)
            .env("CARGO_MANIFEST_DIR", &executable.folder)
            .env("PROFILER_BIN", &self.built.profiler)
            .env("PROFILER_SKIP_LOG", self.skip_log);
        if executable.integration {
            // In the first thread, as a program's own code runs.
            command.arg("--test-threads=1");
        }
        if ignored {
            command.arg("--ignored");
        }
        if !self.classes[test].is_alone() {
            command.env("PROFILER_MACHINE", "shared");
        }
        if self.long {
            command.env("PROFILER_LONG", "1");
        }
        if let Some(go) = &self.built.go {
            command.env("PROFILER_GO", go);
        }
        for (name, _) in std::env::vars_os() {
            // What cargo says of this package.
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("CARGO_PKG_"))
            {
                command.env_remove(name);
            }
        }
        command
    }
}
