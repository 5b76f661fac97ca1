//! The signals that a recording obeys.
//!
//! Signals of the process -> futures of the event loop. What does not belong here: what a recording
//! does about them (`record`).

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as TokioSignal, SignalKind, signal};

use crate::error::Failure;
use profiler_target::proc_fs;

/// How long a signal to end may wait to be heard before the next one ends everything.
const DEAF: Duration = Duration::from_secs(1);
/// How often the thread that hears them looks for signals that nobody takes. Two that come within that are one.
const LOOK: Duration = Duration::from_millis(100);
/// What comes so soon after a signal was heard may be the same one, on another thread.
const SAME: Duration = Duration::from_millis(100);

/// Exit status of what a person has ended, and of what somebody else has: as shells have it, 128 and the signal.
pub(super) const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// The signals that a recording obeys.
pub(super) struct Signals {
    pub(super) interrupt: Listened,
    pub(super) terminate: Listened,
    /// None if it is ignored, as nohup asks: then it stays so, for the command too.
    pub(super) hangup: Option<Listened>,
    pub(super) dump: Listened,
}

/// A signal that is waited for; that it was heard is noted.
pub(super) struct Listened(TokioSignal);

impl Listened {
    fn to(kind: SignalKind) -> io::Result<Listened> {
        Ok(Listened(signal(kind)?))
    }

    /// Waits for it. Cancel-safe.
    pub(super) async fn recv(&mut self) {
        self.0.recv().await;
        *lock(&HEARD) = Some(Instant::now());
    }
}

/// Whether a signal to end has come, whether or not anybody has listened to it yet.
static CAME: AtomicBool = AtomicBool::new(false);

/// Whether a signal to end has come: for who works for long and does not listen meanwhile.
pub(super) fn end_is_wanted() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// When somebody listened last to a signal that had come.
static HEARD: Mutex<Option<Instant>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process at the second signal to end, if nobody has heard the first: its main thread waits for what
/// never comes. What was written until then can be read.
fn watch_for_deafness() -> io::Result<()> {
    let runtime = super::event_loop().map_err(|failure| io::Error::other(failure.message))?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    let watch = async move {
        let mut first: Option<Instant> = None;
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = look.tick() => {
                    take_signals();
                    continue;
                }
            }
            CAME.store(true, Ordering::Relaxed);
            let now = Instant::now();
            let Some(since) = first.replace(now).filter(|&since| !is_heard(since)) else {
                continue;
            };
            tokio::time::sleep_until((since + DEAF).into()).await;
            if !is_heard(since) {
                let what_is_left = match START.load(Ordering::Relaxed) {
                    OVER => "what was written until now can be read",
                    _ => "nothing was recorded yet",
                };
                // A terminal that is gone is no failure.
                let _ = writeln!(io::stderr(), "{DEAF_ENDS}; {what_is_left}");
                std::process::exit(INTERRUPTED.into());
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || runtime.block_on(watch))?;
    Ok(())
}

/// Has this thread take the signals that the kernel has given to another one, which waits in it and takes none: it looks
/// for them when what it blocks changes. Source: the kernel's kernel/signal.c (`recalc_sigpending`).
#[allow(unsafe_code)]
fn take_signals() {
    // SAFETY: a set on this stack, given to calls that fill and read it.
    unsafe {
        let mut any: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut any);
        libc::sigaddset(&raw mut any, libc::SIGURG);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const any, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const any, std::ptr::null_mut());
    }
}

const DEAF_ENDS: &str =
    "profiler: ended at once, since it waited for something that does not answer";

/// Whether a signal of this time was heard.
fn is_heard(since: Instant) -> bool {
    lock(&HEARD).is_some_and(|heard| heard + SAME >= since)
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A person wants the end.
    Interrupt,
    /// Somebody else does.
    Terminate,
    /// The terminal is gone.
    Hangup,
    /// A ring is to be written out.
    Dump,
}

impl Heard {
    /// Whether it asks for the end.
    pub(super) fn ends(self) -> bool {
        match self {
            Heard::Interrupt | Heard::Terminate | Heard::Hangup => true,
            Heard::Dump => false,
        }
    }
}

impl Signals {
    pub(super) fn listen() -> io::Result<Signals> {
        watch_for_deafness()?;
        Ok(Signals {
            interrupt: Listened::to(SignalKind::interrupt())?,
            terminate: Listened::to(SignalKind::terminate())?,
            hangup: match is_ignored(Signal::HUP) {
                true => None,
                false => Some(Listened::to(SignalKind::hangup())?),
            },
            dump: Listened::to(SignalKind::user_defined2())?,
        })
    }

    /// The next signal; waits for it. Cancel-safe.
    pub(super) async fn next(&mut self) -> Heard {
        tokio::select! {
            () = self.interrupt.recv() => Heard::Interrupt,
            () = self.terminate.recv() => Heard::Terminate,
            () = hangup(&mut self.hangup) => Heard::Hangup,
            () = self.dump.recv() => Heard::Dump,
        }
    }
}

/// Calls what it is given at the next signal to end, while it lives, and whatever this thread does meanwhile.
/// Those who listen for signals get it as well.
pub(super) struct Impatience {
    _over: tokio::sync::oneshot::Sender<()>,
}

impl Impatience {
    pub(super) fn watch(then: impl FnOnce(Heard) + Send + 'static) -> io::Result<Impatience> {
        let (over, is_over) = tokio::sync::oneshot::channel::<()>();
        let runtime = super::event_loop().map_err(|failure| io::Error::other(failure.message))?;
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            )
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => then(Heard::Interrupt),
                    _ = terminate.recv() => then(Heard::Terminate),
                    _ = is_over => {}
                }
            });
        })?;
        Ok(Impatience { _over: over })
    }
}

/// No start is under way.
const OVER: u8 = 0;
/// One is.
const STARTING: u8 = 1;

/// How the start of this process's recording stands: where a signal to end came while one was under way, the exit status that
/// follows from it.
static START: AtomicU8 = AtomicU8::new(OVER);

/// A start that is under way. While it lives, a signal to end gives it up: what takes seconds (reading code,
/// attaching thousands of probes) asks [`is_given_up`] and fails. A signal that comes later is for those who listen,
/// and what is read and attached then is no part of a start.
pub(super) struct Start {
    _watch: Impatience,
}

impl Start {
    pub(super) fn watch() -> io::Result<Start> {
        START.store(STARTING, Ordering::Relaxed);
        let give_up = |signal| {
            let status = match signal {
                Heard::Terminate => TERMINATED,
                _ => INTERRUPTED,
            };
            let relaxed = Ordering::Relaxed;
            let _ = START.compare_exchange(STARTING, status, relaxed, relaxed);
        };
        Ok(Start {
            _watch: Impatience::watch(give_up)?,
        })
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        START.store(OVER, Ordering::Relaxed);
    }
}

/// Whether a signal to end came while a start is under way.
pub(super) fn is_given_up() -> bool {
    given_up().is_some()
}

/// Fails if one did.
pub(super) fn unless_given_up() -> Result<(), Failure> {
    match is_given_up() {
        true => Err(Failure::failed("interrupted")),
        false => Ok(()),
    }
}

/// The exit status of a start that a signal to end came to.
pub(super) fn given_up() -> Option<u8> {
    Some(START.load(Ordering::Relaxed)).filter(|&status| status > STARTING)
}

/// A hang-up; never, if that is ignored.
pub(super) async fn hangup(signal: &mut Option<Listened>) {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether this process was started with a signal ignored. Source: proc(5), `SigIgn`.
fn is_ignored(signal: Signal) -> bool {
    let status = proc_fs::read("/proc/self/status", proc_fs::MAX_BYTES).unwrap_or_default();
    let mask = proc_fs::value(&status, "SigIgn");
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// Whether our terminal's Ctrl-C reaches us, and so the command in our process group; wherever
/// standard input comes from.
pub(super) fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|tty| {
        rustix::termios::tcgetpgrp(tty).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}
