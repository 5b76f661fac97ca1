//! Waits of threads as blocked and runnable goroutines.
//!
//! Input: samples that are waits, each when it is over; output: the thread's goroutine leaves its P when
//! the wait began and is on it again when it ended; in between its waker unblocks it. A preempted one
//! is runnable all the time. Where a generation ends, nobody knows yet who waits: a thread that was not
//! seen to run for a while is taken to wait.

use std::io;

use super::schedule::{Schedule, after};
use super::trace::Trace;
use crate::derive::{OFF_CPU, stack_frames};
use profiler_model::*;
use profiler_wire::go_trace::Kind;

/// A thread that was not seen for so long does not run, where samples have no frequency.
const QUIET_NS: u64 = 20_000_000;

/// Where goroutines are unblocked: of who woke them the recording has no stack.
const WAKE_UP: &str = "wake-up";

/// Why a goroutine is off its P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Off {
    /// It waits for something.
    Waiting,
    /// It could run.
    Runnable,
}

/// How long a thread may go unseen while it runs: none if the recording has no waits.
pub(super) fn quiet_ns(tables: &Tables) -> Option<u64> {
    let sources = || tables.sources.iter().map(|(_, source)| source);
    sources().find(|source| tables.string(source.name) == OFF_CPU)?;
    let periods =
        sources().filter_map(|source| 2_000_000_000_u64.checked_div(source.frequency_hz?));
    Some(periods.max().unwrap_or(QUIET_NS))
}

impl Schedule {
    /// A thread has waited. False if that was too short to be shown, or the thread was never defined.
    pub(super) fn waited(
        &mut self,
        trace: &mut Trace,
        sample: &Sample,
        wait: &Wait,
        tables: &Tables,
    ) -> io::Result<bool> {
        let at = sample.at.0.clamp(1, super::LATEST);
        let thread = StackOwner::Thread(sample.thread);
        let waker = wait.waker.map(StackOwner::Thread);
        let from = at.saturating_sub(wait.ns).max(trace.start());
        if self.ensure(trace, thread, from, tables)?.is_none() {
            return Ok(false);
        }
        let off = match wait.state {
            WaitState::Preempted => Off::Runnable,
            WaitState::Sleeping | WaitState::Disk | WaitState::Stopped => Off::Waiting,
        };
        if !self.is_off(thread) {
            let step = after(at) - at;
            let left = from.max(after(self.last(thread).unwrap_or(0)));
            if after(left) + 4 * step > at {
                return Ok(false);
            }
            let reason = trace.string(reason(wait.state, sample.kernel, tables))?;
            let stack = trace.sample_stack(sample.kernel, sample.user, tables)?;
            self.leave(trace, thread, left, off, &[reason, stack])?;
        }
        let woken = at.saturating_sub(wait.runnable_ns);
        // Who wakes another one runs, even if nothing else was seen of it.
        if let Some(waker) = waker
            && off == Off::Waiting
            && self.is_new(waker, tables)
        {
            self.ensure(trace, waker, woken.max(trace.start()), tables)?;
        }
        self.resume(trace, thread, woken, at, waker)?;
        Ok(true)
    }

    /// Lets threads wait that nobody has seen for `quiet_ns`.
    pub(super) fn leave_quiet(
        &mut self,
        trace: &mut Trace,
        now: u64,
        quiet_ns: u64,
    ) -> io::Result<()> {
        for (id, seen) in self.on_processors() {
            let is_thread = matches!(id, StackOwner::Thread(_));
            if is_thread && now.saturating_sub(seen) > quiet_ns {
                self.leave(trace, id, after(seen), Off::Waiting, &[0, 0])?;
            }
        }
        Ok(())
    }

    /// Takes a thread off its P.
    fn leave(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        off: Off,
        args: &[u64; 2],
    ) -> io::Result<()> {
        let Some(running) = self.running_mut(id) else {
            return Ok(());
        };
        let kind = match off {
            Off::Waiting => Kind::GoBlock,
            Off::Runnable => Kind::GoStop,
        };
        let at = at.max(after(running.stream.last()));
        running.off = Some(off);
        running.stream.push(trace, kind, at, args)?;
        running.stream.push(trace, Kind::ProcStop, after(at), &[])
    }

    /// Puts a thread back on its P at `at`, or as soon as it can be. It was woken at `woken`.
    pub(super) fn resume(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        woken: u64,
        at: u64,
        waker: Option<StackOwner>,
    ) -> io::Result<()> {
        let Some(running) = self.running_mut(id) else {
            return Ok(());
        };
        let Some(off) = running.off.take() else {
            return Ok(());
        };
        let earliest = after(running.stream.last());
        let started = at.max(after(after(after(earliest))));
        let step = after(started) - started;
        let (context, mut seq) = (running.context, running.g_seq);
        if off == Off::Waiting {
            seq += 1;
            let woken = woken.clamp(earliest, started - 2 * step);
            // Go's tools up to 1.25 pass over a goroutine that is unblocked by nothing: its wait would have no end.
            let args = [context.g, seq, trace.name_stack(WAKE_UP)?];
            let waker = waker.and_then(|waker| self.stream_at(waker, woken));
            let inserted = waker.is_some_and(|w| w.insert(Kind::GoUnblock, woken, &args));
            if !inserted && let Some(running) = self.running_mut(id) {
                running.stream.push(trace, Kind::GoUnblock, woken, &args)?;
            }
        }
        let starts = self.next_start(context.p);
        let Some(running) = self.running_mut(id) else {
            return Ok(());
        };
        running.g_seq = seq + 1;
        running.seen = started;
        let (args, go) = ([context.p, starts], [context.g, seq + 1]);
        let stream = &mut running.stream;
        stream.push(trace, Kind::ProcStart, started - step, &args)?;
        stream.push(trace, Kind::GoStart, started, &go)
    }
}

/// What a goroutine waits for, as Go's tools name it where they have a name for it.
fn reason(state: WaitState, kernel: Option<StackId>, tables: &Tables) -> &'static str {
    const NAMES: [(&str, &[&str]); 4] = [
        ("sync", &["futex"]),
        (
            "select",
            &["epoll_wait", "do_poll", "do_sys_poll", "do_select"],
        ),
        ("sleep", &["nanosleep"]),
        (
            "network",
            &["sock_recvmsg", "sock_sendmsg", "sys_accept", "sys_connect"],
        ),
    ];
    match state {
        WaitState::Preempted => return "preempted",
        WaitState::Disk => return "disk",
        WaitState::Stopped => return "stopped",
        WaitState::Sleeping => {}
    }
    let known = |name: &str| {
        let parts = |(_, parts): &&(_, &[&str])| parts.iter().any(|part| name.contains(part));
        NAMES.iter().find(parts).map(|(reason, _)| *reason)
    };
    let mut frames = stack_frames(tables, kernel, None);
    frames.find_map(|frame| known(&frame.name)).unwrap_or("")
}
