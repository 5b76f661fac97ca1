//! Waits beyond their stacks: who ended them, how long threads stood in the run queue, and what the
//! kernel counted.
//!
//! Input: samples that are waits, and the kernel's totals; output: sums per stack and waker, a
//! distribution per thread, totals per thread. Times are nanoseconds. A wait that stands for several
//! counts as often. What waits sum up to per stack is with all other samples ([`super::Aggregator`]).

use rustc_hash::FxHashMap;

use super::aggregate::{Key, Merge};
use super::frames::{DisplayFrame, stack_frames};
use super::latency::Latency;
use profiler_model::*;

/// Stacks and wakers beyond this many are not told apart.
const MAX_WAKERS: usize = 1 << 18;

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndedBy {
    /// Nobody yet.
    Nobody,
    /// A timer or a device, or it is not known.
    Interrupt,
    /// A thread.
    Thread(ThreadId),
}

impl EndedBy {
    fn of(wait: &Wait) -> EndedBy {
        match wait.waker {
            Some(thread) => EndedBy::Thread(thread),
            None if wait.goes_on() => EndedBy::Nobody,
            None => EndedBy::Interrupt,
        }
    }

    /// The thread, if it was one.
    pub fn thread(self) -> Option<ThreadId> {
        match self {
            EndedBy::Thread(thread) => Some(thread),
            EndedBy::Nobody | EndedBy::Interrupt => None,
        }
    }
}

/// Waits that one thread ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakerSums {
    /// How many.
    pub count: u64,
    /// How long they were.
    pub ns: u64,
}

impl WakerSums {
    /// Adds others.
    pub fn add(&mut self, other: WakerSums) {
        self.count = self.count.saturating_add(other.count);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// What the kernel counted of a thread's waits: exact, whatever was recorded one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotals {
    /// How many there were, by [`WaitState`]: those that ended, and those that were recorded as they went on.
    pub count: [u64; 4],
    /// How long they were.
    pub ns: [u64; 4],
    /// Of all that: runnable, but without a processor.
    pub runnable_ns: u64,
}

impl WaitTotals {
    /// Adds others.
    pub fn add(&mut self, count: &[u64; 4], ns: &[u64; 4], runnable_ns: u64) {
        let sums = self.count.iter_mut().chain(&mut self.ns);
        for (sum, more) in sums.zip(count.iter().chain(ns)) {
            *sum = sum.saturating_add(*more);
        }
        self.runnable_ns = self.runnable_ns.saturating_add(runnable_ns);
    }

    /// Adds one that was recorded, and those that it stands for.
    fn wait(&mut self, sample: &Sample, wait: &Wait) {
        let count = u64::from(wait.count);
        let (mut counts, mut ns) = ([0; 4], [0; 4]);
        ns[wait.state as usize] = sample.weight;
        // Those that go on are counted besides.
        counts[wait.state as usize] = if wait.open { 0 } else { count };
        self.add(&counts, &ns, wait.runnable_ns.saturating_mul(count));
    }

    /// All waits.
    pub fn all_count(&self) -> u64 {
        self.count.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// All of their time.
    pub fn all_ns(&self) -> u64 {
        self.ns.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// How much of what the kernel counted of a thread was recorded, wait by wait.
#[derive(Clone, Copy, Debug, Default)]
struct Recorded {
    /// Within times whose counts are taken.
    ns: u64,
    /// Since the last count.
    since_ns: u64,
    /// What that stands for: all that is known of the time, if no count comes any more.
    since: WaitTotals,
    /// The end of the last count, and whether it is taken.
    last: (Timestamp, bool),
}

/// What is known of waits besides their stacks.
#[derive(Clone, Debug, Default)]
pub struct WaitTable {
    wakers: FxHashMap<(Key, EndedBy), WakerSums>,
    run_queue: FxHashMap<ThreadId, Latency>,
    totals: FxHashMap<ThreadId, WaitTotals>,
    recorded: FxHashMap<ThreadId, Recorded>,
    /// Waits that had not ended, which the kernel counts when they do; by their state.
    open: FxHashMap<ThreadId, [u64; 4]>,
    /// All of the recording is looked at.
    is_of_all: bool,
}

impl WaitTable {
    /// One of all of a recording: what a recording that was cut off has after the kernel's last counts is added to these.
    pub fn of_all() -> WaitTable {
        WaitTable {
            is_of_all: true,
            ..WaitTable::default()
        }
    }

    /// Takes a sample; nothing if it is no wait.
    pub fn sample(&mut self, sample: &Sample, tables: &Tables) {
        let Some(wait) = &sample.wait else {
            return;
        };
        let key = Key::of(sample, Merge::Thread, tables);
        let sums = WakerSums {
            count: wait.count.into(),
            ns: sample.weight,
        };
        let ended_by = EndedBy::of(wait);
        if let Some(known) = self.wakers.get_mut(&(key, ended_by)) {
            known.add(sums);
        } else if self.wakers.len() < MAX_WAKERS {
            self.wakers.insert((key, ended_by), sums);
        }
        if wait.open {
            let open = self.open.entry(sample.thread).or_default();
            open[wait.state as usize] += u64::from(wait.count);
        }
        let run_queue = self.run_queue.entry(sample.thread).or_default();
        run_queue.record_many(wait.runnable_ns, wait.count.into());
    }

    /// Takes note of a wait that was recorded, all of it, whatever is looked at.
    pub fn recorded(&mut self, sample: &Sample, wait: &Wait) {
        let of = self.recorded.entry(sample.thread).or_default();
        let sum = match of.last {
            (to, true) if sample.at <= to => &mut of.ns,
            (to, false) if sample.at <= to => return,
            _ => {
                of.since.wait(sample, wait);
                &mut of.since_ns
            }
        };
        *sum = sum.saturating_add(wait.ns);
    }

    /// Takes the kernel's totals of a thread since the last ones, or passes over them if they are not of what is looked at.
    pub fn totals(&mut self, waits: &Waits, is_taken: bool) {
        let recorded = self.recorded.entry(waits.thread).or_default();
        let since_ns = std::mem::take(&mut recorded.since_ns);
        recorded.since = WaitTotals::default();
        recorded.last = (waits.to, is_taken);
        if !is_taken {
            return;
        }
        recorded.ns = recorded.ns.saturating_add(since_ns);
        let totals = self.totals.entry(waits.thread).or_default();
        totals.add(&waits.count, &waits.ns, waits.runnable_ns);
    }

    /// Who ended waits with which stacks; in no particular order.
    pub fn wakers(&self) -> impl Iterator<Item = (&Key, EndedBy, WakerSums)> {
        (self.wakers.iter()).map(|((key, waker), sums)| (key, *waker, *sums))
    }

    /// How long a thread was runnable without a processor, wait by wait.
    pub fn run_queue_of(&self, thread: ThreadId) -> Option<&Latency> {
        self.run_queue.get(&thread)
    }

    /// What the kernel counted of a thread.
    pub fn totals_of(&self, thread: ThreadId) -> Option<WaitTotals> {
        let mut totals = *self.totals.get(&thread)?;
        if let Some(Recorded { since, .. }) = self.since(thread) {
            totals.add(&since.count, &since.ns, since.runnable_ns);
        }
        if let Some(open) = self.open.get(&thread) {
            totals.add(open, &[0; 4], 0);
        }
        Some(totals)
    }

    /// How long the waits were that were recorded in the times that the kernel's counts of a thread are of.
    pub fn recorded_of(&self, thread: ThreadId) -> u64 {
        let since_ns = self.since(thread).map_or(0, |of| of.since_ns);
        let ns = self.recorded.get(&thread).map_or(0, |of| of.ns);
        ns.saturating_add(since_ns)
    }

    /// What was recorded of a thread since the kernel's last count, where that counts.
    fn since(&self, thread: ThreadId) -> Option<&Recorded> {
        let of = self.recorded.get(&thread);
        of.filter(|_| self.is_of_all && self.totals.contains_key(&thread))
    }

    /// Threads that the kernel counted, in order.
    pub fn counted_threads(&self) -> Vec<ThreadId> {
        let mut threads: Vec<_> = self.totals.keys().copied().collect();
        threads.sort_unstable();
        threads
    }
}

/// What a program waited in: its innermost function; where there is nothing but kernel code, the
/// innermost function outside of the scheduler.
pub fn waiting_frame(
    tables: &Tables,
    kernel: Option<StackId>,
    user: Option<StackId>,
) -> Option<DisplayFrame<'_>> {
    stack_frames(tables, None, user).next().or_else(|| {
        let mut frames = stack_frames(tables, kernel, None).peekable();
        let innermost = frames.peek().cloned();
        frames
            .find(|frame| !is_scheduler(&frame.name))
            .or(innermost)
    })
}

/// Whether a function of the kernel only gives the processor away: every wait ends in it.
pub(super) fn is_scheduler(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    ["schedule", "preempt_schedule", "io_schedule"]
        .iter()
        .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Wait = Wait {
        ns: 100,
        runnable_ns: 10,
        state: WaitState::Sleeping,
        waker: None,
        count: 3,
        open: false,
    };

    fn sample(wait: Wait) -> Sample {
        Sample {
            wait: Some(wait),
            ..Sample::new(
                Timestamp(1_000),
                ThreadId::from_index(0),
                Cpu(0),
                SourceId::from_index(0),
                wait.ns * u64::from(wait.count),
            )
        }
    }

    /// What the kernel counted of a thread's sleeps in a time: so many, of 400 ns together.
    fn counted(thread: ThreadId, [from, to]: [u64; 2], count: u64, runnable_ns: u64) -> Waits {
        Waits {
            thread,
            from: Timestamp(from),
            to: Timestamp(to),
            count: [0, count, 0, 0],
            ns: [0, 400, 0, 0],
            runnable_ns,
        }
    }

    #[test]
    fn waits_count_as_often_as_they_stand_for() {
        let mut table = WaitTable::default();
        let tables = Tables::default();
        let thread = ThreadId::from_index(4);
        let waker = Some(thread);
        table.sample(&sample(WAIT), &tables);
        table.sample(&sample(Wait { waker, ..WAIT }), &tables);
        // Nobody has made it runnable when the recording ends.
        let goes_on = Wait {
            runnable_ns: 0,
            ..WAIT
        };
        table.sample(&sample(goes_on), &tables);
        let running = Sample {
            wait: None,
            ..sample(WAIT)
        };
        table.sample(&running, &tables);
        let mut wakers: Vec<_> = table
            .wakers()
            .map(|(_, waker, sums)| (waker, sums))
            .collect();
        wakers.sort_by_key(|(waker, _)| *waker);
        let sums = WakerSums { count: 3, ns: 300 };
        let ended_by = [EndedBy::Nobody, EndedBy::Interrupt, EndedBy::Thread(thread)];
        assert_eq!(wakers, ended_by.map(|who| (who, sums)));
        let latency = table.run_queue_of(ThreadId::from_index(0)).unwrap();
        assert_eq!((latency.count(), latency.sum_ns()), (9, 60));
    }

    #[test]
    fn what_goes_on_is_counted_besides_what_ended() {
        let mut table = WaitTable::default();
        let open = Wait {
            open: true,
            count: 1,
            ..WAIT
        };
        table.sample(&sample(open), &Tables::default());
        let thread = ThreadId::from_index(0);
        assert_eq!(table.totals_of(thread), None);
        table.totals(&counted(thread, [0, 1_000], 2, 7), true);
        let totals = table.totals_of(thread).unwrap();
        assert_eq!((totals.all_count(), totals.all_ns()), (3, 400));
    }

    #[test]
    fn what_was_recorded_is_compared_with_the_counts_of_its_time() {
        let mut table = WaitTable::default();
        let thread = ThreadId::from_index(0);
        let wait = |table: &mut WaitTable, at| {
            let sample = Sample {
                at: Timestamp(at),
                ..sample(WAIT)
            };
            table.recorded(&sample, &WAIT);
        };
        let count = |table: &mut WaitTable, to, is_taken| {
            table.totals(&counted(thread, [to - 500, to], 4, 0), is_taken);
        };
        wait(&mut table, 300);
        count(&mut table, 500, true);
        // One that is told of with its count.
        wait(&mut table, 500);
        assert_eq!(table.recorded_of(thread), 200);
        // Two of a time that is not looked at, and one whose count is missing.
        wait(&mut table, 700);
        count(&mut table, 1_000, false);
        wait(&mut table, 1_000);
        wait(&mut table, 1_200);
        assert_eq!(table.recorded_of(thread), 200);
        assert_eq!(table.totals_of(thread).unwrap().all_ns(), 400);
    }

    #[test]
    fn what_a_recording_that_was_cut_off_has_after_the_last_count_is_added() {
        let (mut cut_off, mut part) = (WaitTable::of_all(), WaitTable::default());
        let thread = ThreadId::from_index(0);
        let wait = |table: &mut WaitTable, thread, at| {
            let mut sample = sample(WAIT);
            (sample.thread, sample.at) = (thread, Timestamp(at));
            table.recorded(&sample, &WAIT);
        };
        for table in [&mut cut_off, &mut part] {
            wait(table, thread, 300);
            assert_eq!(table.totals_of(thread), None);
            table.totals(&counted(thread, [0, 500], 4, 7), true);
            wait(table, thread, 700);
            wait(table, ThreadId::from_index(1), 800);
        }
        // Of the other one the kernel had told nothing.
        assert_eq!(cut_off.counted_threads(), [thread]);
        let totals = cut_off.totals_of(thread).unwrap();
        let sums = (totals.all_count(), totals.all_ns(), totals.runnable_ns);
        assert_eq!((sums, cut_off.recorded_of(thread)), ((7, 700, 37), 200));
        assert_eq!(part.counted_threads(), [thread]);
        assert_eq!(part.totals_of(thread).unwrap().all_ns(), 400);
    }

    #[test]
    fn the_scheduler_is_told_from_what_waits() {
        for name in ["__schedule", "schedule_timeout", "io_schedule"] {
            assert!(is_scheduler(name), "{name}");
        }
        assert!(!is_scheduler("worker_thread") && !is_scheduler("do_poll"));
    }

    #[test]
    fn a_span_has_the_part_that_lies_in_it() {
        let within = |from, to| {
            let part = WAIT.within(Timestamp(1_000), Timestamp(from), Timestamp(to));
            part.map(|part| (part.ns, part.runnable_ns))
        };
        assert_eq!(within(0, 2_000), Some((100, 10)));
        assert_eq!(within(950, 2_000), Some((50, 10)));
        assert_eq!(within(0, 995), Some((95, 5)));
        assert_eq!(within(920, 930), Some((10, 0)));
        assert_eq!(within(0, 900), None);
        assert_eq!(within(1_000, 2_000), None);
    }
}
