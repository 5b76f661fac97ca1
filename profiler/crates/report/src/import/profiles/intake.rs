//! What an import makes a recording of: each thing once, with a number; samples in batches.
//!
//! Names, places and samples -> definitions and events. Times are nanoseconds of CLOCK_MONOTONIC. What does not belong
//! here: how a file says it.

use std::io;

use super::{ImportError, Imported};
use profiler_model::*;

/// Events in one batch.
const BATCH: usize = 10_000;

/// Takes what a file says.
pub(super) struct Intake<'a> {
    pub(super) tables: Tables,
    definitions: Vec<Definition>,
    events: Vec<Event>,
    take: &'a mut dyn FnMut(Batch) -> io::Result<()>,
    pub(super) session: Session,
    begun: bool,
    last: Timestamp,
    imported: Imported,
}

impl<'a> Intake<'a> {
    pub(super) fn new(
        name: &str,
        kind: &str,
        take: &'a mut dyn FnMut(Batch) -> io::Result<()>,
    ) -> Intake<'a> {
        Intake {
            tables: Tables::default(),
            definitions: Vec::new(),
            events: Vec::new(),
            take,
            session: Session {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                target: format!("{name} ({kind})"),
                ..Session::default()
            },
            begun: false,
            last: Timestamp(0),
            imported: Imported::default(),
        }
    }

    pub(super) fn string(&mut self, text: &str) -> StringId {
        let (id, new) = self.tables.intern_string(text);
        if new {
            self.definitions.push(Definition::String(id, text.into()));
        }
        id
    }

    pub(super) fn source(&mut self, name: &str, unit: Unit, period: Option<u64>) -> SourceId {
        let source = Source {
            name: self.string(name),
            unit,
            frequency_hz: None,
            period,
        };
        let (id, new) = self.tables.sources.intern(source.clone());
        if new {
            self.definitions.push(Definition::Source(id, source));
        }
        id
    }

    /// A thread of a process of which no more is known; without a name of its own it has that of the process.
    pub(super) fn thread(&mut self, pid: u32, process: &str, tid: u32, thread: &str) -> ThreadId {
        let known = self.tables.find_process(Pid(pid), Timestamp(0));
        let process = known.unwrap_or_else(|| self.process(pid, Timestamp(0), process));
        let known = self.tables.find_thread(process, Tid(tid), Timestamp(0));
        known.unwrap_or_else(|| self.thread_of(process, tid, Timestamp(0), thread))
    }

    /// A process; it has the name that is told last.
    pub(super) fn process(&mut self, pid: u32, started: Timestamp, name: &str) -> ProcessId {
        let process = Process {
            pid: Pid(pid),
            started,
            parent: None,
            name: self.string(name),
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        let (id, changed) = self.tables.intern_process(process.clone());
        if changed {
            self.definitions.push(Definition::Process(id, process));
        }
        id
    }

    /// A thread; it has the name that is told last.
    pub(super) fn thread_of(
        &mut self,
        process: ProcessId,
        tid: u32,
        started: Timestamp,
        name: &str,
    ) -> ThreadId {
        let thread = Thread {
            process,
            tid: Tid(tid),
            started,
            name: self.string(name),
        };
        let (id, changed) = self.tables.intern_thread(thread.clone());
        if changed {
            self.definitions.push(Definition::Thread(id, thread));
        }
        id
    }

    /// Says from when on a thread had a name.
    pub(super) fn named(&mut self, thread: ThreadId, from: Timestamp, name: &str) {
        let name = self.string(name);
        let named = Named { thread, from, name };
        self.tables.add_name(named);
        self.definitions.push(Definition::Named(named));
    }

    pub(super) fn module(
        &mut self,
        kind: ModuleKind,
        path: &str,
        build_id: Option<BuildId>,
    ) -> ModuleId {
        self.biased_module(kind, path, build_id, 0)
    }

    pub(super) fn biased_module(
        &mut self,
        kind: ModuleKind,
        path: &str,
        build_id: Option<BuildId>,
        address_bias: u64,
    ) -> ModuleId {
        let module = Module {
            kind,
            path: self.string(path),
            build_id,
            address_bias,
        };
        let (id, new) = self.tables.modules.intern(module.clone());
        if new {
            self.definitions.push(Definition::Module(id, module));
        }
        id
    }

    pub(super) fn function(&mut self, function: Function) -> FunctionId {
        let (id, new) = self.tables.functions.intern(function.clone());
        if new {
            self.definitions.push(Definition::Function(id, function));
        }
        id
    }

    /// A place; `symbol` says what is there, and counts the first time.
    pub(super) fn frame(&mut self, frame: Frame, symbol: impl FnOnce() -> Symbol) -> FrameId {
        let (id, new) = self.tables.frames.intern(frame);
        if new {
            self.definitions.push(Definition::Frame(id, frame));
            let symbol = symbol();
            self.tables.set_symbol(id, symbol.clone());
            self.definitions.push(Definition::Symbol(id, symbol));
        }
        id
    }

    /// A stack of frames, root first.
    pub(super) fn stack(&mut self, frames: impl IntoIterator<Item = FrameId>) -> Option<StackId> {
        let mut parent = None;
        for frame in frames {
            let stack = Stack { parent, frame };
            let (id, new) = self.tables.stacks.intern(stack);
            if new {
                self.definitions.push(Definition::Stack(id, stack));
            }
            parent = Some(id);
        }
        parent
    }

    /// A sample with stacks of which its file doesn't say whether they are whole.
    pub(super) fn unsaid(
        &mut self,
        sample: Sample,
        (user, kernel): (Option<StackId>, Option<StackId>),
    ) -> Result<(), ImportError> {
        self.sample(
            sample
                .with_stacks(kernel, user)
                .with_ends(StackEnd::NotSaid),
        )
    }

    /// Frames root first, as the stacks of user and kernel: what is the kernel's is on top of all else.
    pub(super) fn stacks(&mut self, frames: &[FrameId]) -> (Option<StackId>, Option<StackId>) {
        let tables = &self.tables;
        let of_kernel = |id: &&FrameId| {
            let frame = tables.frames.get(**id);
            frame.is_some_and(|frame| frame.kind == FrameKind::Kernel)
        };
        let kernel = frames.iter().rev().take_while(of_kernel).count();
        let (user, kernel) = frames.split_at(frames.len() - kernel);
        let user = self.stack(user.iter().copied());
        (user, self.stack(kernel.iter().copied()))
    }

    /// The time of a sample that has none: after the last one.
    pub(super) fn after(&self) -> Timestamp {
        Timestamp(self.last.0.max(1_000_000_000).saturating_add(1000))
    }

    /// A sample. Events are in order of time: what is earlier than the last one has the time of that.
    pub(super) fn sample(&mut self, mut sample: Sample) -> Result<(), ImportError> {
        sample.at = sample.at.max(self.last);
        self.imported.samples += 1;
        self.event(Event::Sample(sample))
    }

    /// Samples that the other tool has lost.
    pub(super) fn lost(&mut self, at: u64, count: u64) -> Result<(), ImportError> {
        let at = Timestamp(at).max(self.last);
        self.event(Event::Lost(Lost {
            cpu: None,
            from: at,
            to: at,
            count,
            reason: LostReason::RingFull,
        }))
    }

    /// The file ends before what it should hold does.
    pub(super) fn ends_early(&mut self) {
        self.imported.ends_early = true;
    }

    /// A value is not taken.
    pub(super) fn leave_out(&mut self) {
        self.imported.left_out += 1;
    }

    pub(super) fn event(&mut self, event: Event) -> Result<(), ImportError> {
        self.last = self.last.max(event.at());
        if !self.begun {
            self.begun = true;
            self.session.started = event.at();
            self.tables.session = self.session.clone();
            // It is the first of all definitions.
            let session = Definition::Session(self.session.clone());
            self.definitions.insert(0, session);
        }
        self.events.push(event);
        if self.events.len() >= BATCH {
            self.hand_on()?;
        }
        Ok(())
    }

    fn hand_on(&mut self) -> io::Result<()> {
        (self.take)(Batch {
            epoch: 0,
            definitions: std::mem::take(&mut self.definitions),
            events: std::mem::take(&mut self.events),
        })
    }

    pub(super) fn finish(mut self) -> Result<Imported, ImportError> {
        if self.imported.samples == 0 {
            return Err(ImportError::Empty);
        }
        self.hand_on()?;
        Ok(self.imported)
    }
}
