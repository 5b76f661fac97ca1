//! What is kept where a capture can't be written, for its end: what tells of all the time until then, in few bytes.
//!
//! Events that could not be written -> those of them that are worth the room that is held back: the kernel's counts of waits and calls, summed
//! up by thread and function, gaps, waits that go on, and a tie to wall time. Of what defines things, what these use. Bounded. What does not
//! belong here: what there is room for (`writer`), and the room itself (`output`).

use std::cmp::Reverse;
use std::convert::Infallible;

use profiler_model::*;
use rustc_hash::{FxHashMap, FxHashSet};

/// Most that is kept of each kind.
const MOST: usize = 1 << 14;

/// Events for the end.
#[derive(Debug, Default)]
pub(super) struct Kept {
    waits: FxHashMap<ThreadId, Waits>,
    calls: FxHashMap<FunctionId, CallCount>,
    /// Gaps, and waits that go on.
    others: [Vec<Event>; 2],
    clock: Option<Clock>,
}

impl Kept {
    /// Whether events of this kind are kept.
    #[inline]
    pub(super) fn is_kind(event: &Event) -> bool {
        match event {
            Event::Waits(_) | Event::CallCount(_) | Event::Gap(_) | Event::Clock(_) => true,
            Event::Sample(sample) => sample.wait.is_some_and(|wait| wait.open),
            _ => false,
        }
    }

    /// Takes an event, if it is one that is kept and there is room for it.
    pub(super) fn take(&mut self, event: &Event) -> bool {
        match event {
            Event::Waits(more) => sum_up(&mut self.waits, more.thread, more, |known| {
                known.from = known.from.min(more.from);
                known.to = known.to.max(more.to);
                let sums = known.count.iter_mut().chain(&mut known.ns);
                let sums = sums.zip(more.count.iter().chain(&more.ns));
                sums.for_each(|(sum, more)| *sum = sum.saturating_add(*more));
                known.runnable_ns = known.runnable_ns.saturating_add(more.runnable_ns);
            }),
            Event::CallCount(more) => sum_up(&mut self.calls, more.function, more, |known| {
                known.from = known.from.min(more.from);
                known.to = known.to.max(more.to);
                for (sum, more) in [
                    (&mut known.entries, more.entries),
                    (&mut known.exits, more.exits),
                    (&mut known.lost, more.lost),
                    (&mut known.left_out, more.left_out),
                ] {
                    *sum = sum.saturating_add(more);
                }
            }),
            Event::Clock(clock) => {
                let is_first = self.clock.is_none();
                self.clock.get_or_insert(*clock);
                is_first
            }
            event if Kept::is_kind(event) => {
                let [gaps, waits] = &mut self.others;
                let list = match event {
                    Event::Gap(_) => gaps,
                    _ => waits,
                };
                let has_room = list.len() < MOST;
                if has_room {
                    list.push(event.clone());
                }
                has_room
            }
            _ => false,
        }
    }

    /// All that is kept, what matters most first.
    pub(super) fn take_all(&mut self) -> Vec<Event> {
        let Kept {
            waits,
            calls,
            others: [gaps, mut going_on],
            clock,
        } = std::mem::take(self);
        let mut calls: Vec<CallCount> = calls.into_values().collect();
        calls.sort_by_key(|calls| (Reverse(calls.entries), calls.function));
        let mut waits: Vec<Waits> = waits.into_values().collect();
        let ns = |waits: &Waits| {
            let all = waits.ns.iter();
            all.fold(0, |sum: u64, ns| sum.saturating_add(*ns))
        };
        waits.sort_by_key(|waits| (Reverse(ns(waits)), waits.thread));
        going_on.sort_by_key(|event| match event {
            Event::Sample(sample) => Reverse(sample.weight),
            _ => Reverse(0),
        });
        let clock = clock.map(Event::Clock).into_iter();
        let counts = calls.into_iter().map(Event::CallCount).chain(gaps);
        let counts = counts.chain(waits.into_iter().map(Event::Waits));
        clock.chain(counts).chain(going_on).collect()
    }
}

/// Adds to what is known of one of them, or begins with that; false: there is no room.
fn sum_up<I: Eq + std::hash::Hash, T: Clone>(
    all: &mut FxHashMap<I, T>,
    id: I,
    more: &T,
    add: impl FnOnce(&mut T),
) -> bool {
    if let Some(known) = all.get_mut(&id) {
        add(known);
        return true;
    }
    let has_room = all.len() < MOST;
    if has_room {
        all.insert(id, more.clone());
    }
    has_room
}

/// Whose functions get their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Of the events that are kept, and of what was written before.
    All,
    /// Of the events that are kept.
    Kept,
    /// None.
    None,
}

impl Names {
    /// The next best.
    pub(super) fn fewer(self) -> Option<Names> {
        match self {
            Names::All => Some(Names::Kept),
            Names::Kept => Some(Names::None),
            Names::None => None,
        }
    }
}

/// Which of these definitions events need, with names.
pub(super) fn needed(all: &[Definition], events: &[Event], names: Names) -> Vec<bool> {
    let mut needed = Needed::default();
    if names == Names::All {
        // Frames that are not among these were written, with what uses them.
        let here = |definition: &Definition| match definition {
            Definition::Frame(id, _) => Some(*id),
            _ => None,
        };
        let here: FxHashSet<FrameId> = all.iter().filter_map(here).collect();
        for definition in all {
            if let Definition::Symbol(id, _) = definition
                && !here.contains(id)
            {
                let Ok(_) = needed.frame(*id);
            }
        }
    }
    for event in events {
        let Ok(()) = event.clone().map_ids(&mut needed);
    }
    // What is used comes before what uses it, but for names.
    let mut taken = vec![false; all.len()];
    loop {
        let mut more = false;
        for (definition, taken) in all.iter().zip(&mut taken).rev() {
            if !*taken && needed.has(definition, names != Names::None) {
                (*taken, more) = (true, true);
                needed.refer(definition.clone());
            }
        }
        if !more {
            return taken;
        }
    }
}

/// What something is, for [`Needed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    String,
    Source,
    Container,
    Process,
    Thread,
    Module,
    Function,
    Frame,
    Stack,
}

#[derive(Debug, Default)]
struct Needed(FxHashSet<(Kind, u32)>);

impl Needed {
    fn note<I: EpochId>(&mut self, kind: Kind, id: I) -> Result<I, Infallible> {
        self.0.insert((kind, id.get()));
        Ok(id)
    }

    fn has(&self, definition: &Definition, names: bool) -> bool {
        let (kind, id) = match definition {
            Definition::Session(_) => return true,
            Definition::String(id, _) => (Kind::String, id.get()),
            Definition::Source(id, _) => (Kind::Source, id.get()),
            Definition::Container(id, _) => (Kind::Container, id.get()),
            Definition::Process(id, _) => (Kind::Process, id.get()),
            Definition::Thread(id, _) => (Kind::Thread, id.get()),
            Definition::Named(named) => (Kind::Thread, named.thread.get()),
            Definition::Module(id, _) => (Kind::Module, id.get()),
            Definition::Function(id, _) | Definition::Traced(id, _) => (Kind::Function, id.get()),
            Definition::Frame(id, _) => (Kind::Frame, id.get()),
            Definition::Stack(id, _) => (Kind::Stack, id.get()),
            Definition::Symbol(id, _) if names => (Kind::Frame, id.get()),
            Definition::Symbol(..) | Definition::Mapping(..) | Definition::Code(_) => return false,
        };
        self.0.contains(&(kind, id))
    }

    /// Needs what a definition refers to.
    fn refer(&mut self, definition: Definition) {
        let Ok(()) = match definition {
            Definition::Source(_, mut source) => source.map_ids(self),
            Definition::Container(_, mut container) => container.map_ids(self),
            Definition::Process(_, mut process) => process.map_ids(self),
            Definition::Thread(_, mut thread) => thread.map_ids(self),
            Definition::Named(mut named) => named.map_ids(self),
            Definition::Module(_, mut module) => module.map_ids(self),
            Definition::Function(_, mut function) => function.map_ids(self),
            Definition::Frame(_, mut frame) => frame.map_ids(self),
            Definition::Stack(_, mut stack) => stack.map_ids(self),
            Definition::Symbol(_, mut symbol) => symbol.map_ids(self),
            Definition::Traced(_, mut traced) => traced.map_ids(self),
            Definition::Session(_)
            | Definition::String(..)
            | Definition::Mapping(..)
            | Definition::Code(_) => Ok(()),
        };
    }
}

impl MapIds for Needed {
    type Error = Infallible;

    fn string(&mut self, id: StringId) -> Result<StringId, Infallible> {
        self.note(Kind::String, id)
    }

    fn source(&mut self, id: SourceId) -> Result<SourceId, Infallible> {
        self.note(Kind::Source, id)
    }

    fn container(&mut self, id: ContainerId) -> Result<ContainerId, Infallible> {
        self.note(Kind::Container, id)
    }

    fn process(&mut self, id: ProcessId) -> Result<ProcessId, Infallible> {
        self.note(Kind::Process, id)
    }

    fn thread(&mut self, id: ThreadId) -> Result<ThreadId, Infallible> {
        self.note(Kind::Thread, id)
    }

    fn module(&mut self, id: ModuleId) -> Result<ModuleId, Infallible> {
        self.note(Kind::Module, id)
    }

    fn function(&mut self, id: FunctionId) -> Result<FunctionId, Infallible> {
        self.note(Kind::Function, id)
    }

    fn frame(&mut self, id: FrameId) -> Result<FrameId, Infallible> {
        self.note(Kind::Frame, id)
    }

    fn stack(&mut self, id: StackId) -> Result<StackId, Infallible> {
        self.note(Kind::Stack, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(thread: usize, from: u64, to: u64, ns: u64) -> Waits {
        Waits {
            thread: ThreadId::from_index(thread),
            from: Timestamp(from),
            to: Timestamp(to),
            count: [0, 1, 0, 0],
            ns: [0, ns, 0, 0],
            runnable_ns: 1,
        }
    }

    #[test]
    fn counts_of_a_thread_are_one() {
        let mut kept = Kept::default();
        for waits in [
            counted(1, 10, 20, 7),
            counted(2, 0, 90, 80),
            counted(1, 20, 30, 8),
        ] {
            assert!(kept.take(&Event::Waits(waits)));
        }
        let text = StringId::from_index(0);
        let at = Timestamp(5);
        assert!(!kept.take(&Event::Mark(Mark { at, text })));
        let one = Waits {
            count: [0, 2, 0, 0],
            runnable_ns: 2,
            ..counted(1, 10, 30, 15)
        };
        let all = [counted(2, 0, 90, 80), one].map(Event::Waits);
        assert_eq!(kept.take_all(), all);
        assert_eq!(kept.take_all(), []);
    }

    #[test]
    fn what_is_used_is_needed_and_nothing_else() {
        let string =
            |id: usize, text: &str| Definition::String(StringId::from_index(id), text.into());
        let thread = |id: usize, name: usize| {
            let thread = Thread {
                process: ProcessId::from_index(0),
                tid: Tid(id as u32),
                started: Timestamp(0),
                name: StringId::from_index(name),
            };
            Definition::Thread(ThreadId::from_index(id), thread)
        };
        let all = [
            string(0, "used"),
            string(1, "other"),
            thread(1, 0),
            thread(2, 1),
        ];
        let events = [Event::Waits(counted(1, 0, 1, 1))];
        let found = needed(&all, &events, Names::All);
        assert_eq!(found, [true, false, true, false]);
    }

    #[test]
    fn names_come_after_what_they_name() {
        let frame = Frame {
            module: None,
            address: 7,
            kind: FrameKind::Native,
        };
        let stack = Stack {
            parent: None,
            frame: FrameId::from_index(0),
        };
        let function = Function {
            name: StringId::from_index(0),
            linkage_name: None,
            module: None,
            file: None,
            line: 0,
            start: None,
            size: None,
        };
        let line = Line {
            function: FunctionId::from_index(0),
            line: 1,
        };
        let all = [
            Definition::Frame(FrameId::from_index(0), frame),
            Definition::Stack(StackId::from_index(0), stack),
            Definition::String(StringId::from_index(0), "main".into()),
            Definition::Function(FunctionId::from_index(0), function),
            Definition::Symbol(FrameId::from_index(0), Symbol::Lines(vec![line].into())),
        ];
        let sample = Sample::new(
            Timestamp(1),
            ThreadId::from_index(0),
            Cpu(0),
            SourceId::from_index(0),
            1,
        );
        let sample = sample.with_stacks(None, Some(StackId::from_index(0)));
        let events = [Event::Sample(sample)];
        assert_eq!(needed(&all, &events, Names::Kept), [true; 5]);
        let without = [true, true, false, false, false];
        // Who uses the frame was written, and the frame.
        assert_eq!(needed(&all[2..], &[], Names::Kept), [false; 3]);
        assert_eq!(needed(&all[2..], &[], Names::All), [true; 3]);
        assert_eq!(needed(&all, &events, Names::None), without);
    }
}
