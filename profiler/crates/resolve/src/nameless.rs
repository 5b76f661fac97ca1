//! Which code left samples without a function's name, and which run-time code cut their stacks.
//!
//! Input: the samples of an epoch, and its tables when it ends (names come late); output: samples by file or
//! by the program that made the code, the most first. What can be done about it is for who tells people.

use rustc_hash::FxHashMap;

use profiler_model::{
    BuildId, FrameId, FrameKind, ModuleKind, ProcessId, Sample, StackEnd, Symbol, Tables,
    UnknownReason,
};

/// Most frames of an epoch that are counted, and most files and programs.
const MAX_FRAMES: usize = 1 << 16;
const MAX_PLACES: usize = 1 << 10;

/// Samples whose innermost frame of user space has no name, and those whose stack run-time code ended.
#[derive(Clone, Debug, Default)]
pub struct Nameless {
    leaves: FxHashMap<(FrameId, ProcessId), u64>,
    cut: FxHashMap<ProcessId, u64>,
    places: FxHashMap<Place, NamelessSamples>,
    samples: u64,
}

/// Code without names: where it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A file of this machine, or of a container.
    File {
        /// Its path.
        path: Box<str>,
        /// Its build id, if it has one.
        build_id: Option<BuildId>,
        /// Whether a container has its own.
        in_container: bool,
    },
    /// Made by a program while it ran.
    RunTime {
        /// The program's path, or its name where that is not known.
        program: Box<str>,
    },
    /// Machine code of files in processes of a program, which may be an interpreter.
    Program {
        /// The program's path, or its name where that is not known.
        program: Box<str>,
    },
}

/// What was counted of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamelessSamples {
    /// Samples whose innermost frame of user space is there, without a name.
    pub unnamed: u64,
    /// Those of them where names were looked for and not found in time.
    pub given_up: u64,
    /// Those of them of which a capture does not say what became of their names.
    pub not_said: u64,
    /// Those of them whose file is damaged, or of no known format.
    pub damaged: u64,
    /// Those of them whose file could not be opened.
    pub gone: u64,
    /// Those of them whose file is too large.
    pub too_large: u64,
    /// Samples whose stack ended there, short of its outermost frame.
    pub cut: u64,
    /// Samples in it, with names or without; counted of programs alone.
    pub all: u64,
}

impl Nameless {
    /// Counts a sample.
    pub fn sample(&mut self, sample: &Sample, tables: &Tables) {
        self.samples += 1;
        let Some(leaf) = sample.user.and_then(|user| tables.stacks.get(user)) else {
            return;
        };
        let Some(thread) = tables.thread(sample.thread) else {
            return;
        };
        let key = (leaf.frame, thread.process);
        if self.leaves.len() < MAX_FRAMES || self.leaves.contains_key(&key) {
            *self.leaves.entry(key).or_default() += 1;
        }
        if sample.user_end == StackEnd::Jit {
            *self.cut.entry(thread.process).or_default() += 1;
        }
    }

    /// Samples that were counted, with names or without.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Takes in what the samples of an epoch are, with all names that were found.
    pub(super) fn end_epoch(&mut self, tables: &Tables) {
        for ((frame, process), samples) in std::mem::take(&mut self.leaves) {
            let kind = tables.frames.get(frame).map(|frame| frame.kind);
            if kind == Some(FrameKind::Native) {
                let program = program(tables, process);
                if let Some(sums) = self.sums(Place::Program { program }) {
                    sums.all += samples;
                }
            }
            if tables.has_names(frame) {
                continue;
            }
            if let Some(place) = place(tables, frame, process)
                && let Some(sums) = self.sums(place)
            {
                sums.unnamed += samples;
                match tables.symbol(frame) {
                    Some(Symbol::Unknown(UnknownReason::GaveUp)) => sums.given_up += samples,
                    Some(Symbol::Unknown(UnknownReason::BadFile)) => sums.damaged += samples,
                    Some(Symbol::Unknown(UnknownReason::TooLarge)) => sums.too_large += samples,
                    Some(Symbol::Unknown(UnknownReason::NoFile)) => sums.gone += samples,
                    // Names of code that is made at run time are only looked for where there may be some.
                    None if kind == Some(FrameKind::Native) => sums.not_said += samples,
                    _ => {}
                }
            }
        }
        for (process, samples) in std::mem::take(&mut self.cut) {
            let program = program(tables, process);
            if let Some(sums) = self.sums(Place::RunTime { program }) {
                sums.cut += samples;
            }
        }
    }

    fn sums(&mut self, place: Place) -> Option<&mut NamelessSamples> {
        let room = self.places.len() < MAX_PLACES || self.places.contains_key(&place);
        room.then(|| self.places.entry(place).or_default())
    }

    /// All places, the most samples first, those of the present epoch too.
    pub fn places(&self, tables: &Tables) -> Vec<(Place, NamelessSamples)> {
        let mut all = self.clone();
        all.end_epoch(tables);
        let mut places: Vec<_> = all.places.into_iter().collect();
        places.sort_by_key(|(place, sums)| {
            let name = match place {
                Place::File { path, .. } => path.clone(),
                Place::RunTime { program } | Place::Program { program } => program.clone(),
            };
            let most = sums.unnamed.max(sums.cut).max(sums.all);
            let is_program = matches!(place, Place::Program { .. });
            (std::cmp::Reverse(most), name, is_program)
        });
        places
    }
}

fn place(tables: &Tables, frame: FrameId, process: ProcessId) -> Option<Place> {
    let frame = tables.frames.get(frame)?;
    let module = frame.module.and_then(|id| tables.modules.get(id));
    match (frame.kind, module.map(|module| module.kind)) {
        (FrameKind::Native, Some(ModuleKind::File)) => Some(Place::File {
            path: tables.string(module?.path).into(),
            build_id: module?.build_id.clone(),
            in_container: tables.process(process)?.container.is_some(),
        }),
        (FrameKind::Jit, _) | (_, Some(ModuleKind::Jit)) => Some(Place::RunTime {
            program: program(tables, process),
        }),
        _ => None,
    }
}

fn program(tables: &Tables, process: ProcessId) -> Box<str> {
    let process = tables.process(process);
    let name = process.map(|process| process.executable.unwrap_or(process.name));
    name.map_or("", |name| tables.string(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::*;

    #[test]
    fn samples_are_summed_by_file_and_program() {
        let mut tables = Tables::default();
        let string = |tables: &mut Tables, text: &str| tables.intern_string(text).0;
        let name = string(&mut tables, "java");
        let executable = string(&mut tables, "/usr/bin/java");
        let process = Process {
            pid: Pid(1),
            started: Timestamp(0),
            parent: None,
            name,
            executable: Some(executable),
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        let process = tables.intern_process(process).0;
        let thread = Thread {
            process,
            tid: Tid(1),
            started: Timestamp(0),
            name,
        };
        let thread = tables.intern_thread(thread).0;
        let mut stack = |kind, module_kind, path: &str, address| {
            let path = tables.intern_string(path).0;
            let module = Module {
                kind: module_kind,
                path,
                build_id: None,
                address_bias: 0,
            };
            let module = Some(tables.modules.intern(module).0);
            let frame = Frame {
                kind,
                module,
                address,
            };
            let frame = tables.frames.intern(frame).0;
            let stack = Stack {
                parent: None,
                frame,
            };
            (tables.stacks.intern(stack).0, frame)
        };
        let (file, unnamed) = stack(FrameKind::Native, ModuleKind::File, "/usr/bin/gzip", 0x10);
        let (late, named) = stack(FrameKind::Native, ModuleKind::File, "/usr/bin/gzip", 0x20);
        let (made, _) = stack(FrameKind::Jit, ModuleKind::Jit, "[jit 1]", 0x30);
        let mut nameless = Nameless::default();
        for (user, end) in [
            (file, StackEnd::Complete),
            (late, StackEnd::Complete),
            (made, StackEnd::Jit),
            (made, StackEnd::Jit),
        ] {
            let sample = Sample::new(Timestamp(1), thread, Cpu(0), SourceId::from_index(0), 1);
            let mut sample = sample.with_stacks(None, Some(user));
            sample.user_end = end;
            nameless.sample(&sample, &tables);
        }
        // A name that comes before the epoch ends is one.
        let function = Function {
            name,
            linkage_name: None,
            module: None,
            file: None,
            line: 0,
            start: Some(0x20),
            size: None,
        };
        let function = tables.functions.intern(function).0;
        tables.set_symbol(named, Symbol::Lines([Line { function, line: 0 }].into()));
        tables.set_symbol(unnamed, Symbol::Unknown(UnknownReason::GaveUp));
        let of = |unnamed, given_up, cut| NamelessSamples {
            unnamed,
            given_up,
            cut,
            ..NamelessSamples::default()
        };
        let native = Place::Program {
            program: "/usr/bin/java".into(),
        };
        let program = Place::RunTime {
            program: "/usr/bin/java".into(),
        };
        let gzip = Place::File {
            path: "/usr/bin/gzip".into(),
            build_id: None,
            in_container: false,
        };
        let both = NamelessSamples {
            all: 2,
            ..NamelessSamples::default()
        };
        let expected = [(program, of(2, 0, 2)), (native, both), (gzip, of(1, 1, 0))];
        assert_eq!(nameless.places(&tables), expected);
        // The same once the epoch has ended.
        nameless.end_epoch(&tables);
        assert_eq!(nameless.places(&Tables::default()), expected);
    }
}
