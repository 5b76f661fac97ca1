//! Frames -> addresses, and addresses -> names.
//!
//! An address that was given out means its frame, whatever has become of the process's memory since.
//! Any other one means what is mapped there at present; names come from frames that were sampled, from
//! what the session is asked, and last from functions around. Where the function of an address begins is
//! an address that is given out with it: it has the same name then, and another function has not that
//! address. What does not belong here: where answers come from (the session), arguments and replies
//! (`services`).

use super::code::Code;
use super::generation::{Described, Generation, Meaning};
use super::places::{self, Place, Space};
use super::questions::{Hope, State};
use super::{ContextKey, Found, Lookup, World};
use profiler_model::*;

/// Most addresses that are remembered, of all processes.
const MAX_PLACES: usize = 1_000_000;

impl World {
    /// Where a process has a frame: an address that [`World::symbol`] knows in this process. A frame
    /// without an address of its own there gets one of the reserved range.
    pub(in crate::tcf) fn address_of(&mut self, process: ContextKey, frame: FrameId) -> u64 {
        let Some(&content) = self.present.tables.frames.get(frame) else {
            return 0;
        };
        let kernel = places::is_kernel(&content);
        let known = match kernel {
            true => self.kernel.known(frame),
            false => self
                .spaces
                .get(&process)
                .and_then(|space| space.known(frame)),
        };
        match known {
            Some(address) => address,
            None => self.place(process, frame, kernel),
        }
    }

    #[cold]
    fn place(&mut self, process: ContextKey, frame: FrameId, kernel: bool) -> u64 {
        let Some(code) = self.present.code(frame) else {
            return 0;
        };
        let room = self.places < MAX_PLACES;
        let (space, natural) = if kernel {
            let natural = places::kernel_address(&code);
            (&mut self.kernel, natural)
        } else {
            let Some(context) = self.contexts.get(process) else {
                return 0;
            };
            let process = context.process;
            let natural = match self.memories.get_mut(&process) {
                Some(memory) => memory.address_of(&code),
                None => code.module.is_none().then_some(code.address),
            };
            // What claims to lie elsewhere is not believed.
            let natural = natural.filter(|&address| places::is_user(address));
            let spaces = self.spaces.entry(process);
            (spaces.or_insert_with(Space::of_process), natural)
        };
        let before = space.len();
        let address = space.give(frame, code, natural, room);
        self.places += space.len() - before;
        address
    }

    /// What is at an address of a process. Asks for it, if that is of use (see [`World::questions`]).
    pub(in crate::tcf) fn symbol(&mut self, process: ContextKey, address: u64) -> Lookup {
        let Some(context) = self.contexts.get(process) else {
            return Lookup::Missing;
        };
        let process = context.process;
        if places::is_crowd(address) {
            return Lookup::Found(Found {
                name: places::CROWD_NAME.to_owned(),
                start: None,
                size: None,
                source: None,
                own: None,
            });
        }
        match self.look_up(process, address) {
            Lookup::Found((mut found, code)) => {
                found.start = found
                    .start
                    .filter(|&start| self.begins_at(start, process, &found, &code, address));
                Lookup::Found(found)
            }
            Lookup::Missing => Lookup::Missing,
            Lookup::Waiting => Lookup::Waiting,
        }
    }

    /// File and line at an address of a process: of the innermost function there; where a function
    /// begins, its own, or else the lowest one of it that is known.
    pub(in crate::tcf) fn source(
        &mut self,
        process: ContextKey,
        address: u64,
    ) -> Lookup<(String, u32)> {
        let found = match self.symbol(process, address) {
            Lookup::Found(found) => found,
            Lookup::Missing => return Lookup::Missing,
            Lookup::Waiting => return Lookup::Waiting,
        };
        let source = match found.start {
            Some(start) if start == address => {
                if self.waits_for_line(process, address) {
                    return Lookup::Waiting;
                }
                found.own.or(found.source)
            }
            _ => found.source,
        };
        source.map_or(Lookup::Missing, Lookup::Found)
    }

    /// Whether a line is on its way of an address that was given out as where a function begins, and
    /// has not been looked at for itself.
    fn waits_for_line(&mut self, process: ContextKey, address: u64) -> bool {
        let Some(context) = self.contexts.get(process) else {
            return false;
        };
        let process = context.process;
        let Some(place) = self.given(process, address) else {
            return false;
        };
        if !place.is_start || self.replay.is_some() || places::is_reserved(address) {
            return false;
        }
        let code = place.code.clone();
        match self.meaning(&code) {
            Meaning::Known(_) | Meaning::Unnamed => false,
            Meaning::Open => self
                .questions
                .is_worth_waiting(process, address, Hope::Exact),
            // Another program may lie there now.
            Meaning::Absent => {
                self.code_at(process, address) == Some(code)
                    && self.ask(process, address) == State::Waits
            }
        }
    }

    fn look_up(&mut self, process: ContextKey, address: u64) -> Lookup<(Found, Code)> {
        if let Some(place) = self.given(process, address) {
            let (code, settled) = (place.code.clone(), place.settled.clone());
            if place.is_start
                && let Some(settled) = settled
            {
                return self.start(&settled.describe(), code, address);
            }
            return match self.meaning(&code) {
                Meaning::Known(described) => found(&described, &code, address),
                Meaning::Open if settled.is_none() => self.wait(process, &code, address),
                _ => match settled {
                    Some(settled) => found(&settled.describe(), &code, address),
                    None => self.around(&code, address),
                },
            };
        }
        if places::is_reserved(address) {
            return Lookup::Missing;
        }
        let code = self.code_at(process, address);
        match code.as_ref().map(|code| (code, self.meaning(code))) {
            Some((code, Meaning::Known(described))) => return found(&described, code, address),
            Some((code, Meaning::Open)) => return self.wait(process, code, address),
            _ => {}
        }
        if self.replay.is_none() && self.ask(process, address) == State::Waits {
            return Lookup::Waiting;
        }
        code.map_or(Lookup::Missing, |code| self.around(&code, address))
    }

    /// An address that was given out.
    fn given(&self, process: ContextKey, address: u64) -> Option<&Place> {
        let space = self.spaces.get(&process);
        let place = space.and_then(|space| space.get(address));
        place.or_else(|| self.kernel.get(address))
    }

    /// An answer is on its way; a rough one will do after a while. In a replay what a frame is called
    /// comes with it, or not at all.
    fn wait(&mut self, process: ContextKey, code: &Code, address: u64) -> Lookup<(Found, Code)> {
        let rough = self.around(code, address);
        let hope = match (&rough, code.kind) {
            (Lookup::Missing, FrameKind::Jit) => Hope::RunTimeName,
            (Lookup::Missing, _) => Hope::Name,
            _ => Hope::Exact,
        };
        if self.replay.is_none() && self.questions.is_worth_waiting(process, address, hope) {
            return Lookup::Waiting;
        }
        rough
    }

    /// The function around a place in code, without a line of source but where it begins.
    fn around(&self, code: &Code, address: u64) -> Lookup<(Found, Code)> {
        let described = self.generations().find_map(|one| one.covering(code));
        described.map_or(Lookup::Missing, |described| {
            found(&described, code, address)
        })
    }

    /// The function that an address was given out as the begin of.
    fn start(&self, settled: &Described<'_>, code: Code, address: u64) -> Lookup<(Found, Code)> {
        let exact = match self.meaning(&code) {
            Meaning::Known(described) => described.own,
            _ => None,
        };
        let covering = || self.generations().find_map(|one| one.covering(&code)?.own);
        let described = Described {
            own: exact.or_else(covering).or(settled.own),
            ..*settled
        };
        found(&described, &code, address)
    }

    /// Whether an address means the function that begins there according to another address of it.
    /// Given out once, it goes on meaning that.
    fn begins_at(
        &mut self,
        start: u64,
        process: ContextKey,
        found: &Found,
        code: &Code,
        address: u64,
    ) -> bool {
        let distance = address.wrapping_sub(start);
        if distance == 0 {
            return true;
        }
        let code = Code {
            address: code.address.wrapping_sub(distance),
            ..code.clone()
        };
        if let Some(place) = self.given(process, start) {
            let name = match (&place.settled, self.meaning(&place.code)) {
                (Some(settled), _) if place.is_start => Some(settled.describe().name),
                (_, Meaning::Known(described)) => Some(described.name),
                (Some(settled), _) => Some(settled.describe().name),
                (None, _) => None,
            };
            return place.code == code && name.is_none_or(|name| name == found.name);
        }
        if self.places >= MAX_PLACES {
            return false;
        }
        let described = Described {
            name: &found.name,
            start: Some(code.address),
            size: found.size,
            source: None,
            own: None,
        };
        let space = match places::is_of_kernel(start) {
            true => &mut self.kernel,
            false => {
                let spaces = self.spaces.entry(process);
                spaces.or_insert_with(Space::of_process)
            }
        };
        let is_given = space.begin(start, code, &described, &mut self.texts);
        self.places += usize::from(is_given);
        is_given
    }

    fn ask(&mut self, process: ContextKey, address: u64) -> State {
        match places::kernel_offset(address) {
            Some(offset) => self.questions.ask(None, offset),
            None if places::is_user(address) => self.questions.ask(Some(process), address),
            // Nobody knows what the kernel's modules are at: those have reserved addresses.
            None => State::Answered,
        }
    }

    /// What is at an address that was not given out.
    fn code_at(&self, process: ContextKey, address: u64) -> Option<Code> {
        if let Some(offset) = places::kernel_offset(address) {
            let kernel = self.generations().find_map(|one| one.kernel.clone())?;
            return Some(Code {
                kind: FrameKind::Kernel,
                module: Some(kernel),
                address: offset,
            });
        }
        self.memories
            .get(&process)
            .filter(|_| places::is_user(address))?
            .code_at(address)
    }

    /// The present tables, then those before.
    fn generations(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&self.present).chain(&self.previous)
    }

    /// What tables say of a place in code. Answers that come late are in the present ones, although
    /// the frame was sampled before.
    fn meaning(&self, code: &Code) -> Meaning<'_> {
        let mut best = Meaning::Absent;
        for generation in self.generations() {
            match (generation.meaning(code), best) {
                (known @ Meaning::Known(_), _) => return known,
                (said, Meaning::Absent) => best = said,
                (Meaning::Unnamed, Meaning::Open) => best = Meaning::Unnamed,
                _ => {}
            }
        }
        best
    }
}

/// An answer. Where a function begins is as far before an address as it is in its module.
fn found(described: &Described<'_>, code: &Code, address: u64) -> Lookup<(Found, Code)> {
    let start = described.start.filter(|_| places::has_neighbours(address));
    let distance = start.and_then(|start| code.address.checked_sub(start));
    let range = distance.and_then(|distance| {
        let size = described.size.filter(|&size| size > 0);
        let start = address.checked_sub(distance)?;
        let least = size.or(distance.checked_add(1))?;
        (distance < least && start.checked_add(least).is_some()).then_some((start, size))
    });
    let owned = |(file, line): (&str, u32)| (file.to_owned(), line);
    let found = Found {
        name: described.name.to_owned(),
        start: range.map(|(start, _)| start),
        size: range.and_then(|(_, size)| size),
        source: described.source.map(owned),
        own: described.own.map(owned),
    };
    Lookup::Found((found, code.clone()))
}
