//! A command that runs on when what recorded it is done or has failed: its end is ours, or is made.
//!
//! What does not belong here: commands that are recorded (`session`).

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Context, Failure};
use profiler_target::command::{RunningCommand, shell_status};

use super::session::TICK;
use super::signals::{Signals, hangup};

/// Time that a command has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// What recorded it has failed. The command may be worth more than that: it is not left alone, but
/// the failure is said at once. `how` it goes on: "without being recorded".
pub(super) async fn fail(
    failure: Failure,
    command: Option<RunningCommand>,
    how: &str,
    signals: &mut Signals,
) -> Failure {
    let Some(mut command) = command else {
        return failure;
    };
    if !matches!(command.try_wait(), Ok(None)) {
        return failure;
    }
    log::error!("{failure}; the command goes on {how}");
    match outlive(&mut command, signals).await {
        Ok(_) => Failure {
            message: String::new(),
            ..failure
        },
        Err(failure) => failure,
    }
}

/// Waits for the end of the command; its exit status. A signal now is meant for it.
pub(super) async fn outlive(
    command: &mut RunningCommand,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut tick = tokio::time::interval(TICK);
    loop {
        let wait = command
            .try_wait()
            .context(|| "failed to wait for the command")?;
        if let Some(status) = wait {
            return Ok(shell_status(status));
        }
        let signal = tokio::select! {
            _ = tick.tick() => continue,
            () = signals.interrupt.recv() => Signal::INT,
            () = signals.terminate.recv() => Signal::TERM,
            () = hangup(&mut signals.hangup) => Signal::HUP,
        };
        command
            .signal(signal)
            .context(|| "failed to pass a signal to the command")?;
    }
}

/// Ends a command: it may tidy up, but not for ever.
pub(super) async fn terminate(command: &mut RunningCommand) -> Result<(), Failure> {
    let mut tick = tokio::time::interval(TICK);
    let patient_until = Instant::now() + GRACE;
    let failed = || "failed to end the command";
    command.signal(Signal::TERM).context(failed)?;
    let mut killed = false;
    loop {
        tick.tick().await;
        let wait = command
            .try_wait()
            .context(|| "failed to wait for the command")?;
        if wait.is_some() {
            return Ok(());
        }
        if !killed && patient_until <= Instant::now() {
            log::warn!(
                "the command goes on {} s after SIGTERM; it is killed",
                GRACE.as_secs()
            );
            command.signal(Signal::KILL).context(failed)?;
            killed = true;
        }
    }
}
