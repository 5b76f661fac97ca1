//! Every id and every time in events and definitions, in one place: whoever gives them other ids (another epoch,
//! other tables) or other times has no list of its own of what refers to what.
//!
//! An [`Event`] or a part of a [`Definition`], and a [`MapIds`] -> the same with other ids. A definition's own id is
//! not touched: it is what the one who maps decides on.

use super::definition::*;
use super::event::*;
use super::id::*;
use super::renames::Named;

/// Gives ids for ids. Each method may fail for an id that is not known.
pub trait MapIds {
    /// What it fails with.
    type Error;
    /// Of a string.
    fn string(&mut self, id: StringId) -> Result<StringId, Self::Error>;
    /// Of a source of samples.
    fn source(&mut self, id: SourceId) -> Result<SourceId, Self::Error>;
    /// Of a container.
    fn container(&mut self, id: ContainerId) -> Result<ContainerId, Self::Error>;
    /// Of a process.
    fn process(&mut self, id: ProcessId) -> Result<ProcessId, Self::Error>;
    /// Of a thread.
    fn thread(&mut self, id: ThreadId) -> Result<ThreadId, Self::Error>;
    /// Of a module.
    fn module(&mut self, id: ModuleId) -> Result<ModuleId, Self::Error>;
    /// Of a function.
    fn function(&mut self, id: FunctionId) -> Result<FunctionId, Self::Error>;
    /// Of a frame.
    fn frame(&mut self, id: FrameId) -> Result<FrameId, Self::Error>;
    /// Of a stack.
    fn stack(&mut self, id: StackId) -> Result<StackId, Self::Error>;

    /// Of a string, if there is one.
    #[inline]
    fn maybe_string(&mut self, id: &mut Option<StringId>) -> Result<(), Self::Error> {
        if let Some(id) = id {
            *id = self.string(*id)?;
        }
        Ok(())
    }

    /// Of a module, if there is one.
    #[inline]
    fn maybe_module(&mut self, id: &mut Option<ModuleId>) -> Result<(), Self::Error> {
        if let Some(id) = id {
            *id = self.module(*id)?;
        }
        Ok(())
    }

    /// Of a stack, if there is one.
    #[inline]
    fn maybe_stack(&mut self, id: &mut Option<StackId>) -> Result<(), Self::Error> {
        if let Some(id) = id {
            *id = self.stack(*id)?;
        }
        Ok(())
    }
}

impl Event {
    /// Gives everything that the event refers to another id. A waker that is not known is left out: the wait is
    /// as long without it.
    #[inline]
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        match self {
            Event::Sample(sample) => {
                sample.thread = ids.thread(sample.thread)?;
                ids.maybe_stack(&mut sample.kernel)?;
                ids.maybe_stack(&mut sample.user)?;
                sample.source = ids.source(sample.source)?;
                if let Some(wait) = &mut sample.wait {
                    wait.waker = wait.waker.and_then(|waker| ids.thread(waker).ok());
                }
            }
            Event::Process(event) => {
                event.thread = ids.thread(event.thread)?;
                match &mut event.change {
                    ProcessChange::Executed(name) | ProcessChange::Renamed(name) => {
                        *name = ids.string(*name)?;
                    }
                    ProcessChange::Started | ProcessChange::Exited => {}
                }
            }
            Event::Call(call) => {
                call.thread = ids.thread(call.thread)?;
                call.function = ids.function(call.function)?;
                if let CallEdge::Exit(exit) = &mut call.edge
                    && let ExitKind::Exception(Some(kind)) = &mut exit.how
                {
                    *kind = ids.string(*kind)?;
                }
            }
            Event::Throw(throw) => {
                throw.thread = ids.thread(throw.thread)?;
                throw.kind = ids.string(throw.kind)?;
                if let Some(thrower) = &mut throw.thrower {
                    *thrower = ids.frame(*thrower)?;
                }
            }
            Event::CallCount(count) => count.function = ids.function(count.function)?,
            Event::Waits(waits) => waits.thread = ids.thread(waits.thread)?,
            Event::Gap(gap) => {
                if let Some(function) = &mut gap.function {
                    *function = ids.function(*function)?;
                }
                if let Some(process) = &mut gap.process {
                    *process = ids.process(*process)?;
                }
            }
            Event::Mark(mark) => mark.text = ids.string(mark.text)?,
            Event::Clock(_) | Event::Lost(_) => {}
        }
        Ok(())
    }

    /// All times in it, its own among them.
    pub fn times_mut(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let times: [Option<&mut Timestamp>; 2] = match self {
            Event::Sample(sample) => [Some(&mut sample.at), None],
            Event::Call(call) => match &mut call.edge {
                CallEdge::Exit(exit) => [Some(&mut call.at), Some(&mut exit.began)],
                CallEdge::Enter(_) | CallEdge::Hit(_) => [Some(&mut call.at), None],
            },
            Event::Throw(throw) => [Some(&mut throw.at), None],
            Event::CallCount(count) => [Some(&mut count.from), Some(&mut count.to)],
            Event::Gap(gap) => [Some(&mut gap.from), Some(&mut gap.to)],
            Event::Waits(waits) => [Some(&mut waits.from), Some(&mut waits.to)],
            Event::Process(change) => [Some(&mut change.at), None],
            Event::Mark(mark) => [Some(&mut mark.at), None],
            Event::Clock(clock) => [Some(&mut clock.monotonic), None],
            Event::Lost(lost) => [Some(&mut lost.from), Some(&mut lost.to)],
        };
        times.into_iter().flatten()
    }
}

impl Definition {
    /// The time in it, if it has one.
    pub fn time_mut(&mut self) -> Option<&mut Timestamp> {
        match self {
            Definition::Session(session) => Some(&mut session.started),
            Definition::Process(_, process) => Some(&mut process.started),
            Definition::Thread(_, thread) => Some(&mut thread.started),
            Definition::Named(named) => Some(&mut named.from),
            Definition::Mapping(_, mapping) => Some(&mut mapping.at),
            Definition::String(..)
            | Definition::Source(..)
            | Definition::Container(..)
            | Definition::Module(..)
            | Definition::Function(..)
            | Definition::Frame(..)
            | Definition::Stack(..)
            | Definition::Symbol(..)
            | Definition::Code(_)
            | Definition::Traced(..) => None,
        }
    }
}

impl Source {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.name = ids.string(self.name)?;
        Ok(())
    }
}

impl Named {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.thread = ids.thread(self.thread)?;
        self.name = ids.string(self.name)?;
        Ok(())
    }
}

impl Container {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.cgroup = ids.string(self.cgroup)?;
        let mut texts = self.texts_mut().into_iter();
        texts.try_for_each(|text| ids.maybe_string(text))
    }
}

impl Process {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        if let Some(parent) = &mut self.parent {
            *parent = ids.process(*parent)?;
        }
        self.name = ids.string(self.name)?;
        ids.maybe_string(&mut self.executable)?;
        ids.maybe_string(&mut self.command)?;
        ids.maybe_string(&mut self.cgroup)?;
        if let Some(container) = &mut self.container {
            *container = ids.container(*container)?;
        }
        Ok(())
    }
}

impl Thread {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.process = ids.process(self.process)?;
        self.name = ids.string(self.name)?;
        Ok(())
    }
}

impl Module {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.path = ids.string(self.path)?;
        Ok(())
    }
}

impl Mapping {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.process = ids.process(self.process)?;
        self.module = ids.module(self.module)?;
        Ok(())
    }
}

impl Function {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.name = ids.string(self.name)?;
        ids.maybe_string(&mut self.linkage_name)?;
        ids.maybe_string(&mut self.file)?;
        ids.maybe_module(&mut self.module)
    }
}

impl Frame {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        ids.maybe_module(&mut self.module)
    }
}

impl Stack {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        ids.maybe_stack(&mut self.parent)?;
        self.frame = ids.frame(self.frame)?;
        Ok(())
    }
}

impl Symbol {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        if let Symbol::Lines(lines) = self {
            for line in lines {
                line.function = ids.function(line.function)?;
            }
        }
        Ok(())
    }
}

impl Code {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        self.module = ids.module(self.module)?;
        Ok(())
    }
}

impl Traced {
    /// Gives everything that it refers to another id.
    pub fn map_ids<M: MapIds>(&mut self, ids: &mut M) -> Result<(), M::Error> {
        for parameter in &mut self.parameters {
            parameter.name = ids.string(parameter.name)?;
            ids.maybe_string(&mut parameter.kind)?;
        }
        ids.maybe_string(&mut self.result)
    }
}
