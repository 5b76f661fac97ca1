//! One run: what its connections share, and how it comes to its end.
//!
//! Its control connection's thread leads it: heartbeats in, orders out, and the end when the agent
//! has said so and all data are there. Each data connection's thread brings what it reads through
//! the [`Flow`], one at a time; who is too far ahead waits until the others have caught up.
//!
//! A run whose control connection ends without a word, or with an error, has failed; what is under
//! way on its data connections is still taken, for a moment.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::budget::{Budget, Verdict};
use super::check::Fault;
use super::connection::{Incoming, READ_BYTES};
use super::flow::{Counts, Flow, Taken};
use super::life::{Life, Order, OrderError};
use super::options::HqOptions;
use super::receive::{BreakCause, Classes, Receiver, RunReport, RunStatus};
use profiler_wire::bytefrog::{AgentMessage, HqMessage, Mode};

/// After an abnormal end, data that are under way are taken for so long.
const DRAIN: Duration = Duration::from_secs(2);
/// How long an agent may take to say that it ends after its data did.
const LAST_WORD: Duration = Duration::from_secs(5);
/// Between two looks whether others have gone that keep too much.
const HELD: Duration = Duration::from_millis(10);
/// Heartbeats that may be missing in a row.
const MISSED: u32 = 3;

pub(super) struct Run {
    pub(super) id: u8,
    /// Tells it from all others, which numbers do not.
    serial: u64,
    budget: Arc<Budget>,
    pub(super) peer: SocketAddr,
    pub(super) options: HqOptions,
    began: Instant,
    /// The writing end of the control connection.
    writer: Mutex<TcpStream>,
    /// The reading end. Locked before `flow` and `control`.
    incoming: Mutex<Incoming>,
    control: Mutex<Control>,
    flow: Mutex<Option<Shared>>,
    /// Counts and faults when the flow was last looked at.
    looked: Mutex<(Counts, u64)>,
    /// Someone who waits for others may go on.
    progress: Condvar,
    /// Data connections that are open, by their numbers, for closing them.
    streams: Mutex<Vec<(usize, TcpStream)>>,
    pub(super) active: AtomicUsize,
    opened: AtomicUsize,
    pub(super) over: AtomicBool,
    /// It kept too much.
    doomed: AtomicBool,
}

struct Shared {
    flow: Flow,
    /// Connections that are too far ahead.
    stuck: Vec<Stuck>,
    moved: (u32, Instant),
}

/// A connection that waits for others.
struct Stuck {
    number: usize,
    /// The id that it holds.
    sequence: u32,
    /// What was the next id when there was no room for that.
    next: u32,
}

struct Control {
    life: Life,
    mode: Option<Mode>,
    filled: u16,
    heard: Instant,
    healthy: bool,
    classes: Classes,
    suspension: Suspension,
    started: Option<Instant>,
    /// The agent has said that it ends.
    ending: bool,
    closed: Option<Instant>,
    failure: Option<String>,
    data_ended: Option<Instant>,
    limit_reached: bool,
}

/// What is known of suspensions, to tell why data breaks: a break may come when one begins or when it is over.
#[derive(Default)]
struct Suspension {
    /// One lasts, as far as is known.
    lasts: bool,
    /// No break has come of the last one.
    untold: bool,
}

impl Suspension {
    fn begins(&mut self) {
        self.untold |= !self.lasts;
        self.lasts = true;
    }

    fn is_over(&mut self) {
        self.lasts = false;
    }

    /// Why data break now.
    fn cause(&mut self) -> BreakCause {
        match std::mem::take(&mut self.untold) || self.lasts {
            true => BreakCause::Suspended,
            false => BreakCause::Missing,
        }
    }
}

/// What the leading thread is to do next.
pub(super) enum Next {
    Go,
    /// Heartbeats have stopped or come again.
    Health(bool),
    End,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    pub(super) fn new(
        (id, serial): (u8, u64),
        peer: SocketAddr,
        (writer, incoming): (TcpStream, Incoming),
        budget: Arc<Budget>,
        options: HqOptions,
        receiver: Box<dyn Receiver>,
    ) -> Run {
        let now = Instant::now();
        let flow = Flow::new(options.merge, options.strict, receiver);
        Run {
            id,
            serial,
            budget,
            peer,
            began: now,
            writer: Mutex::new(writer),
            incoming: Mutex::new(incoming),
            control: Mutex::new(Control {
                life: Life::new(options.suspended),
                mode: None,
                filled: 0,
                heard: now,
                healthy: true,
                classes: Classes::default(),
                suspension: Suspension::default(),
                started: None,
                ending: false,
                closed: None,
                failure: None,
                data_ended: None,
                limit_reached: false,
            }),
            flow: Mutex::new(Some(Shared {
                flow,
                stuck: Vec::new(),
                moved: (0, now),
            })),
            looked: Mutex::default(),
            options,
            progress: Condvar::new(),
            streams: Mutex::new(Vec::new()),
            active: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
        }
    }

    /// Carries an order out.
    pub(super) fn order(&self, order: Order) -> Result<(), OrderError> {
        let mut control = lock(&self.control);
        let messages = control.life.order(order)?;
        if messages.contains(&HqMessage::Start) {
            control.started = Some(Instant::now());
        }
        if messages.contains(&HqMessage::Suspend) {
            control.suspension.begins();
        }
        // Under the lock, so that orders of two threads do not mix.
        self.send(&messages);
        Ok(())
    }

    /// A connection that can't be written to any more is noticed by its reader.
    pub(super) fn send(&self, messages: &[HqMessage]) {
        let mut bytes = Vec::new();
        for message in messages {
            message.encode(&mut bytes);
        }
        let mut writer = lock(&self.writer);
        if let Err(error) = std::io::Write::write_all(&mut *writer, &bytes) {
            log::debug!("run {}: an order was not sent: {error}", self.id);
            let _ = writer.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn incoming(&self) -> MutexGuard<'_, Incoming> {
        lock(&self.incoming)
    }

    /// Takes what has come on the control connection by now; whether more may come.
    pub(super) fn take_control(&self) -> bool {
        self.incoming().take(self)
    }

    /// Takes a message of the control connection.
    pub(super) fn control(&self, message: &AgentMessage<'_>) {
        match message {
            &AgentMessage::Heartbeat { mode, filled } => self.heartbeat(mode, filled),
            &AgentMessage::DataBreak { sequence } => {
                let cause = lock(&self.control).suspension.cause();
                if let Some(shared) = lock(&self.flow).as_mut() {
                    shared.flow.data_break(sequence, cause);
                }
            }
            AgentMessage::ClassTransformed(_) => lock(&self.control).classes.transformed += 1,
            AgentMessage::ClassIgnored(_) => lock(&self.control).classes.ignored += 1,
            AgentMessage::ClassTransformFailed(name) => {
                log::info!("run {}: {name} can't be traced", self.id);
                lock(&self.control).classes.failed += 1;
            }
            AgentMessage::Error(text) => {
                let text: String = text.chars().take(500).collect();
                self.fail(format!("the agent reports: {text}"));
            }
            _ => self.misplaced("message of another kind", "control"),
        }
    }

    fn heartbeat(&self, mode: Mode, filled: u16) {
        let mut control = lock(&self.control);
        (control.mode, control.filled) = (Some(mode), filled);
        control.heard = Instant::now();
        match mode {
            Mode::Suspended => control.suspension.begins(),
            // Until the start an agent does not say whether it is suspended.
            Mode::Initializing => {}
            Mode::Tracing | Mode::Paused | Mode::ShuttingDown => control.suspension.is_over(),
        }
        if mode == Mode::ShuttingDown && !control.ending {
            control.ending = true;
            let stop = control.life.shutting_down();
            self.send(&[stop]);
        }
    }

    fn misplaced(&self, what: &'static str, channel: &'static str) {
        self.fault(Fault::Misplaced { what, channel });
    }

    pub(super) fn fault(&self, fault: Fault) {
        if let Some(shared) = lock(&self.flow).as_mut() {
            shared.flow.fault(fault);
        }
    }

    /// The run can't end normally any more.
    pub(super) fn fail(&self, reason: String) {
        let mut control = lock(&self.control);
        control.failure.get_or_insert(reason);
        control.closed.get_or_insert_with(Instant::now);
    }

    /// The control connection is at its end.
    pub(super) fn control_closed(&self) {
        let mut control = lock(&self.control);
        if control.closed.is_none() {
            control.closed = Some(Instant::now());
            if !control.ending {
                control.failure = Some("the agent went away without ending the run".to_owned());
            }
        }
    }

    /// A data connection has begun; its number, unless the run is over.
    pub(super) fn open(&self, stream: &TcpStream) -> std::io::Result<Option<usize>> {
        if self.over.load(Ordering::Acquire) {
            return Ok(None);
        }
        let stream = stream.try_clone()?;
        self.active.fetch_add(1, Ordering::AcqRel);
        let number = self.opened.fetch_add(1, Ordering::AcqRel);
        lock(&self.streams).push((number, stream));
        if number == 0
            && let Some(shared) = lock(&self.flow).as_mut()
        {
            shared.flow.receiver().begin();
            shared.moved.1 = Instant::now();
        }
        Ok(Some(number))
    }

    /// A data connection is at its end.
    pub(super) fn close(&self, number: usize) {
        lock(&self.streams).retain(|(open, _)| *open != number);
        self.active.fetch_sub(1, Ordering::AcqRel);
        self.progress.notify_all();
    }

    /// Takes the messages at the start of `bytes`, of data connection `number`; how many bytes they
    /// are. An error is of bytes that can't be understood.
    pub(super) fn data(&self, number: usize, bytes: &[u8]) -> Result<usize, Fault> {
        let mut guard = lock(&self.flow);
        let mut used = 0;
        while let Some(shared) = guard.as_mut() {
            let Some((message, len)) = super::lenient::decode(&bytes[used..], &mut shared.flow)?
            else {
                break;
            };
            used += len;
            let taken = match &message {
                AgentMessage::Heartbeat { .. }
                | AgentMessage::ClassTransformed(_)
                | AgentMessage::ClassIgnored(_)
                | AgentMessage::ClassTransformFailed(_)
                | AgentMessage::Hello { .. }
                | AgentMessage::DataHello { .. } => {
                    let what = "message of the control connection";
                    let channel = "data";
                    shared.flow.fault(Fault::Misplaced { what, channel });
                    continue;
                }
                AgentMessage::DataBreak { sequence } => {
                    let (what, channel) = ("data break", "data");
                    shared.flow.fault(Fault::Misplaced { what, channel });
                    let cause = lock(&self.control).suspension.cause();
                    shared.flow.data_break(*sequence, cause);
                    continue;
                }
                AgentMessage::Error(text) => {
                    let text: String = text.chars().take(500).collect();
                    drop(guard);
                    self.fail(format!("the agent reports: {text}"));
                    return Ok(bytes.len());
                }
                _ => shared.flow.take(message, len),
            };
            if let Taken::NotYet(sequence, message) = taken {
                guard = self.wait(guard, number, sequence, message);
            }
        }
        if let Some(shared) = guard.as_mut()
            && shared.flow.next() != shared.moved.0
        {
            shared.moved = (shared.flow.next(), Instant::now());
            if !shared.stuck.is_empty() {
                self.progress.notify_all();
            }
        }
        let kept = guard.as_ref().map(|shared| shared.flow.bytes());
        drop(guard);
        if kept.is_some_and(|kept| !self.may_go_on(kept)) {
            return Ok(bytes.len());
        }
        Ok(used)
    }

    /// Tells what is kept, and waits while others keep too much; false if this is what has to go.
    fn may_go_on(&self, kept: usize) -> bool {
        while !self.over.load(Ordering::Acquire) {
            match self.note(kept) {
                Verdict::Go => return true,
                Verdict::Wait => std::thread::sleep(HELD),
                Verdict::End => return false,
            }
        }
        true
    }

    /// Tells what is kept. Whoever keeps most when that is too much ends here.
    fn note(&self, kept: usize) -> Verdict {
        // What each connection has read, and holds of it while it waits.
        let connections = self.active.load(Ordering::Relaxed) + 1;
        let kept = kept.saturating_add(connections * READ_BYTES * 2);
        let verdict = self.budget.note(self.serial, kept);
        if verdict == Verdict::End && !self.doomed.swap(true, Ordering::AcqRel) {
            let (mib, most) = (kept >> 20, self.budget.most() >> 20);
            self.abandon(&format!(
                "it kept {mib} MiB here, the most of all runs, which may keep {most} MiB together"
            ));
        }
        verdict
    }

    /// Nothing has come from it for a while, and no data can.
    pub(super) fn is_silent(&self) -> Option<Duration> {
        let silent = lock(&self.control).heard.elapsed();
        let is = self.active.load(Ordering::Acquire) == 0 && silent > self.patience();
        is.then_some(silent)
    }

    /// How long heartbeats may be missing.
    fn patience(&self) -> Duration {
        self.options.heartbeat().max(Duration::from_millis(100)) * MISSED
    }

    /// Waits until a message that is too early finds room.
    fn wait<'a>(
        &'a self,
        mut guard: MutexGuard<'a, Option<Shared>>,
        number: usize,
        sequence: u32,
        mut message: AgentMessage<'static>,
    ) -> MutexGuard<'a, Option<Shared>> {
        loop {
            let Some(shared) = guard.as_mut() else {
                return guard;
            };
            shared.stuck.retain(|stuck| stuck.number != number);
            let taken = shared.flow.offer(sequence, message);
            let next = shared.flow.next();
            if next != shared.moved.0 {
                shared.moved = (next, Instant::now());
                self.progress.notify_all();
            }
            match taken {
                Taken::Yes => return guard,
                Taken::NotYet(_, again) => message = again,
            }
            shared.stuck.push(Stuck {
                number,
                sequence,
                next,
            });
            // Nobody is left who could bring what is missing, or nobody does.
            let all = shared.stuck.len() >= self.active.load(Ordering::Acquire)
                && shared.stuck.iter().all(|stuck| stuck.next == next);
            if all || shared.moved.1.elapsed() > self.options.stall {
                let held: Vec<u32> = shared.stuck.iter().map(|stuck| stuck.sequence).collect();
                let skipped = shared.flow.skip(held.into_iter());
                if shared.flow.failed().is_some() {
                    return guard;
                }
                self.progress.notify_all();
                if skipped {
                    continue;
                }
            }
            let wait = self.progress.wait_timeout(guard, Duration::from_millis(50));
            guard = wait.unwrap_or_else(PoisonError::into_inner).0;
            if self.over.load(Ordering::Acquire) {
                return guard;
            }
        }
    }

    /// What to do next; called some ten times a second by the leading thread.
    pub(super) fn step(&self) -> Next {
        // In this order: one that opens in between is not taken for the end of all.
        let opened = self.opened.load(Ordering::Acquire);
        let active = self.active.load(Ordering::Acquire);
        if let Some(failure) = self.tick_flow() {
            self.send(&[HqMessage::Error(failure.clone())]);
            lock(&self.control).failure.get_or_insert(failure);
            return Next::End;
        }
        let mut control = lock(&self.control);
        let now = Instant::now();
        if let Some(closed) = control.closed {
            // What is under way still comes.
            let patience = match control.failure {
                Some(_) => DRAIN,
                None => self.options.stall,
            };
            return match active == 0 || now - closed > patience {
                true => Next::End,
                false => Next::Go,
            };
        }
        if opened > 0 && active == 0 {
            let ended = *control.data_ended.get_or_insert(now);
            if control.ending {
                return Next::End;
            }
            if now - ended > LAST_WORD {
                drop(control);
                self.fault(Fault::EndUnsaid);
                return Next::End;
            }
        } else {
            control.data_ended = None;
        }
        let limit = self.options.stop_after;
        let started = control.started;
        if let (Some(limit), Some(started)) = (limit, started)
            && now - started >= limit
            && !control.limit_reached
        {
            control.limit_reached = true;
            drop(control);
            // It may be ending already.
            let _ = self.order(Order::Stop);
            return Next::Go;
        }
        let healthy = now - control.heard <= self.patience();
        if healthy != control.healthy {
            control.healthy = healthy;
            return Next::Health(healthy);
        }
        Next::Go
    }

    /// Whether the first heartbeat has come and it has not been started.
    pub(super) fn is_ready(&self) -> bool {
        let control = lock(&self.control);
        control.mode.is_some() && control.started.is_none()
    }

    /// A strict run's fault, if it has one.
    fn tick_flow(&self) -> Option<String> {
        let mut guard = lock(&self.flow);
        let shared = guard.as_mut()?;
        shared.flow.receiver().tick();
        let next = shared.flow.next();
        if next != shared.moved.0 || !shared.flow.is_waiting() {
            shared.moved = (next, Instant::now());
        } else if shared.moved.1.elapsed() > self.options.stall {
            shared.flow.skip(std::iter::empty());
            self.progress.notify_all();
        }
        let (failed, kept) = (
            shared.flow.failed().map(ToString::to_string),
            shared.flow.bytes(),
        );
        drop(guard);
        self.note(kept);
        failed
    }

    /// Ends the run: closes its data connections and its receiver.
    pub(super) fn end(&self) -> RunReport {
        self.over.store(true, Ordering::Release);
        for (_, stream) in lock(&self.streams).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.progress.notify_all();
        let shared = lock(&self.flow).take();
        let control = lock(&self.control);
        let mut report = RunReport {
            run: self.id,
            peer: self.peer,
            failure: control.failure.clone(),
            counts: Default::default(),
            faults: Default::default(),
            classes: control.classes,
            elapsed: self.began.elapsed(),
            remarks: Vec::new(),
        };
        drop(control);
        if let Some(mut shared) = shared {
            shared.flow.finish();
            if let Some(fault) = shared.flow.failed() {
                report.failure.get_or_insert(fault.to_string());
            }
            report.counts = shared.flow.counts();
            report.faults = shared.flow.faults().clone();
            let mut receiver = shared.flow.into_receiver();
            if let Err(reason) = receiver.end(&mut report) {
                report.failure.get_or_insert(reason);
            }
        }
        self.budget.forget(self.serial);
        report
    }

    /// Does not wait for a receiver that takes its time: a person can still end it all.
    pub(super) fn status(&self) -> RunStatus {
        let mut looked = lock(&self.looked);
        if let Ok(guard) = self.flow.try_lock()
            && let Some(shared) = guard.as_ref()
        {
            *looked = (shared.flow.counts(), shared.flow.faults().total());
        }
        let (counts, faults) = *looked;
        drop(looked);
        let control = lock(&self.control);
        RunStatus {
            run: self.id,
            peer: self.peer,
            phase: control.life.phase(),
            mode: control.mode,
            filled: control.filled,
            unhealthy: !control.healthy,
            connections: self.active.load(Ordering::Relaxed),
            elapsed: self.began.elapsed(),
            counts,
            faults,
            classes: control.classes,
        }
    }

    /// Ends the run at once; its leading thread sees to the rest.
    pub(super) fn abandon(&self, reason: &str) {
        self.fail(reason.to_owned());
        self.send(&[HqMessage::Error(reason.to_owned())]);
        let _ = lock(&self.writer).shutdown(Shutdown::Both);
        for (_, stream) in lock(&self.streams).iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
