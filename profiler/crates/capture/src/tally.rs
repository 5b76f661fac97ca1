//! What is in a file, or in a part of one: events by kind, how user stacks end, whose samples and calls they are, and when.
//!
//! Definitions and events of an epoch -> a [`Tally`], as readers of the file count. What does not belong here: what is not in the file (`untold`).

use profiler_model::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::item::{EventCounts, event};
use super::untold::{self, REASONS};

/// Most processes that are told apart.
const MOST_PROCESSES: usize = 1 << 20;

/// A process, in all epochs.
type Life = (Pid, Timestamp);

/// Counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// By kind, as in [`kind_index`].
    pub(super) events: EventCounts,
    /// Of all but waits that go on.
    stacks: StackEnds,
    /// Waits that go on: readers join them with what comes of them in the next part.
    open: (u64, StackEnds),
    joined: u64,
    /// Samples of what ran: no waits.
    ticked: u64,
    /// What it says is lost.
    lost: [u64; REASONS],
    processes: FxHashSet<Life>,
    /// When the first one was recorded, and when the last event was.
    span: Option<(Timestamp, Timestamp)>,
}

impl Tally {
    /// Adds what comes later in the same part.
    pub(super) fn add(&mut self, other: &Tally) {
        let (open, stacks) = &mut self.open;
        *open += other.open.0;
        stacks.add_all(&other.open.1);
        self.add_closed(other);
    }

    /// Adds the next part: waits that went on go on in it.
    pub(super) fn follow(&mut self, other: &Tally) {
        self.joined += self.open.0;
        self.open = other.open;
        self.add_closed(other);
    }

    fn add_closed(&mut self, other: &Tally) {
        self.joined += other.joined;
        self.ticked += other.ticked;
        for (reason, count) in other.lost() {
            untold::add(&mut self.lost, reason, count);
        }
        for (sum, more) in self.events.iter_mut().zip(&other.events) {
            *sum += more;
        }
        self.stacks.add_all(&other.stacks);
        for &process in &other.processes {
            self.insert(process);
        }
        if let Some((first, last)) = other.span {
            let span = self.span.get_or_insert((first, last));
            *span = (span.0.min(first), span.1.max(last));
        }
    }

    /// Counts an event that is of no process.
    pub(super) fn event(&mut self, event: &Event) {
        self.events[kind_index(event)] += 1;
        match event {
            Event::Sample(sample) => self.ticked += u64::from(sample.wait.is_none()),
            Event::Lost(lost) => untold::add(&mut self.lost, lost.reason, lost.count),
            _ => {}
        }
        let at = event.at();
        if let Some((_, last)) = &mut self.span {
            *last = at.max(*last);
        } else if event.is_recorded() {
            self.span = Some((at, at));
        }
    }

    /// Events by kind, as they are read.
    pub(super) fn read_events(&self) -> EventCounts {
        let mut events = self.events;
        events[0] = events[0].saturating_sub(self.joined);
        events
    }

    /// How the user stacks end of samples, as they are read.
    pub(super) fn stacks(&self) -> StackEnds {
        let mut stacks = self.stacks;
        stacks.add_all(&self.open.1);
        stacks
    }

    /// Samples that are no waits.
    pub(super) fn ticked(&self) -> u64 {
        self.ticked
    }

    /// What it says is lost, by reason.
    pub(super) fn lost(&self) -> impl Iterator<Item = (LostReason, u64)> {
        untold::counted(&self.lost)
    }

    /// Processes with samples or calls.
    pub(super) fn processes(&self) -> u64 {
        self.processes.len() as u64
    }

    /// Whether something was recorded before that time.
    pub(super) fn begins_before(&self, at: Timestamp) -> bool {
        self.span.is_some_and(|(first, _)| first < at)
    }

    /// How long it is from the first to the last.
    pub(super) fn length_ns(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last.since(first))
    }

    fn insert(&mut self, process: Life) {
        if self.processes.len() < MOST_PROCESSES {
            self.processes.insert(process);
        }
    }
}

/// Whose events are, in one epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    processes: FxHashMap<ProcessId, Life>,
    threads: FxHashMap<ThreadId, Life>,
    last: Option<(ThreadId, Option<Life>)>,
}

impl Owners {
    /// Learns of a definition.
    pub(super) fn define(&mut self, definition: &Definition) {
        match definition {
            Definition::Process(id, process) => {
                self.processes.insert(*id, (process.pid, process.started));
            }
            Definition::Thread(id, thread) => {
                if let Some(life) = self.processes.get(&thread.process) {
                    self.threads.insert(*id, *life);
                }
                self.last = None;
            }
            _ => {}
        }
    }

    /// Counts an event.
    #[inline]
    pub(super) fn count(&mut self, event: &Event, tally: &mut Tally) {
        tally.event(event);
        let thread = match event {
            Event::Sample(sample) => {
                let stacks = match sample.wait.is_some_and(|wait| wait.open) {
                    true => {
                        tally.open.0 += 1;
                        &mut tally.open.1
                    }
                    false => &mut tally.stacks,
                };
                stacks.count(sample.user_end);
                sample.thread
            }
            Event::Call(call) => call.thread,
            _ => return,
        };
        // Most often it is that of the one before, which has been counted.
        if self.last.is_none_or(|(last, _)| last != thread) || tally.processes.is_empty() {
            let life = self.threads.get(&thread).copied();
            self.last = Some((thread, life));
            if let Some(life) = life {
                tally.insert(life);
            }
        }
    }

    /// Counts go into another tally from now on.
    pub(super) fn turn(&mut self) {
        self.last = None;
    }
}

/// Index of an event's kind in tables of counts.
fn kind_index(event: &Event) -> usize {
    match event {
        Event::Sample(_) => 0,
        Event::Process(_) => 1,
        Event::Mark(_) => 2,
        Event::Clock(_) => 3,
        Event::Lost(_) => 4,
        Event::Call(_) => 5,
        Event::Throw(_) => 6,
        Event::CallCount(_) => 7,
        Event::Gap(_) => 8,
        Event::Waits(_) => 9,
    }
}

/// As many as there are kinds.
const _: () = assert!(event::KINDS == 10);

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: usize, pid: u32) -> Definition {
        let process = Process {
            pid: Pid(pid),
            started: Timestamp(1),
            parent: None,
            name: StringId::from_index(0),
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        Definition::Process(ProcessId::from_index(id), process)
    }

    fn thread(id: usize, process: usize) -> Definition {
        let thread = Thread {
            process: ProcessId::from_index(process),
            tid: Tid(id as u32),
            started: Timestamp(1),
            name: StringId::from_index(0),
        };
        Definition::Thread(ThreadId::from_index(id), thread)
    }

    #[test]
    fn a_process_counts_once_in_all_epochs() {
        let sample = |thread, at| {
            let source = SourceId::from_index(0);
            let thread = ThreadId::from_index(thread);
            Event::Sample(Sample::new(Timestamp(at), thread, Cpu(0), source, 1))
        };
        let mut all = Tally::default();
        // The second has the same processes under other ids.
        for (first, second, at) in [(7, 8, 100), (8, 7, 200)] {
            let mut owners = Owners::default();
            for definition in [
                process(0, first),
                process(1, second),
                thread(0, 0),
                thread(1, 1),
                thread(2, 1),
            ] {
                owners.define(&definition);
            }
            let mut one = Tally::default();
            for thread in [0, 0, 1, 2] {
                owners.count(&sample(thread, at), &mut one);
            }
            assert_eq!((one.events[0], one.processes()), (4, 2));
            all.follow(&one);
        }
        assert_eq!(
            (all.events[0], all.processes(), all.length_ns()),
            (8, 2, 100)
        );
    }

    #[test]
    fn a_wait_that_goes_on_in_the_next_part_is_one() {
        let wait = |at, open| {
            let (thread, source) = (ThreadId::from_index(0), SourceId::from_index(0));
            let wait = Wait {
                ns: 5,
                runnable_ns: 0,
                state: WaitState::Sleeping,
                waker: None,
                count: 1,
                open,
            };
            Event::Sample(Sample {
                wait: Some(wait),
                ..Sample::new(Timestamp(at), thread, Cpu(0), source, 5)
            })
        };
        let part = |events: &[Event]| {
            let (mut owners, mut tally) = (Owners::default(), Tally::default());
            for event in events {
                let mut one = Tally::default();
                owners.count(event, &mut one);
                tally.add(&one);
            }
            tally
        };
        let mut all = Tally::default();
        for part in [
            part(&[wait(10, false), wait(20, true)]),
            part(&[wait(25, true)]),
            part(&[wait(30, false), wait(40, true)]),
        ] {
            all.follow(&part);
        }
        assert_eq!((all.events[0], all.read_events()[0]), (5, 3));
        assert_eq!(all.stacks().iter().map(|(_, count)| count).sum::<u64>(), 3);
    }
}
