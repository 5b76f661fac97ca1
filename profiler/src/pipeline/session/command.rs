//! The program that a session starts, if it starts one.
//!
//! A command that stands before its exec -> one that runs, and its end. What does not belong here: how it is
//! created (`target::command`), what becomes of it when the session has ended (`outlive`).

use std::io;
use std::process::ExitStatus;

use rustix::process::Signal;

use crate::error::{Context, Failure};
use profiler_model::Pid;
use profiler_target::command::{RunningCommand, StoppedCommand};

/// The started program, until its end was seen.
pub(super) struct Command {
    stopped: Option<StoppedCommand>,
    running: Option<RunningCommand>,
    /// What it is called.
    program: String,
}

impl Command {
    /// One that stands; none: there is no command.
    pub(super) fn new(stopped: Option<StoppedCommand>, program: String) -> Command {
        Command {
            stopped,
            running: None,
            program,
        }
    }

    /// The process that is still to become it.
    pub(super) fn about_to_run(&self) -> Option<Pid> {
        self.stopped.as_ref().map(StoppedCommand::pid)
    }

    /// Lets it run.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        if let Some(stopped) = self.stopped.take() {
            let running = stopped.run();
            self.running = Some(running.map_err(|error| exec_failure(&self.program, &error))?);
        }
        Ok(())
    }

    /// The process and how it has ended, if it has.
    pub(super) fn ended(&mut self) -> Result<Option<(Pid, ExitStatus)>, Failure> {
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        let status = running
            .try_wait()
            .context(|| "failed to wait for the command")?;
        Ok(status.map(|status| (running.pid(), status)))
    }

    /// Passes a signal on to it.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        match &mut self.running {
            Some(running) => running
                .signal(signal)
                .context(|| "failed to pass a signal to the command"),
            None => Ok(()),
        }
    }

    /// Whether it runs, or did.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Gives it away.
    pub(super) fn take(&mut self) -> Option<RunningCommand> {
        self.running.take()
    }
}

/// As a shell would: 127 for a command that is not there, 126 for one that can't be run.
fn exec_failure(program: &str, error: &io::Error) -> Failure {
    let status = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    Failure {
        status,
        ..Failure::because(format!("failed to run {program}"), error)
    }
}
