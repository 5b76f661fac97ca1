//! Frames -> addresses, and addresses -> names.
//!
//! An address that was given out means its frame, whatever has become of the process's memory since.
//! Any other one means what is mapped there at present; names come from frames that were sampled, from
//! what the session is asked, and last from functions around. What does not belong here: where answers
//! come from (the session), arguments and replies (`services`).

use super::code::Code;
use super::generation::{Described, Generation, Meaning};
use super::places::{self, Space};
use super::questions::State;
use super::{ContextKey, Found, Lookup, World};
use crate::model::*;

/// Most addresses that are remembered, of all processes.
const MAX_PLACES: usize = 1_000_000;

impl World {
    /// Where a process has a frame: an address that [`World::symbol`] knows in this process. A frame
    /// without an address of its own there gets one of the reserved range.
    pub(in crate::serve::tcf) fn address_of(&mut self, process: ContextKey, frame: FrameId) -> u64 {
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
    pub(in crate::serve::tcf) fn symbol(&mut self, process: ContextKey, address: u64) -> Lookup {
        let Some(context) = self.contexts.get(process) else {
            return Lookup::Missing;
        };
        let process = context.process;
        if places::is_crowd(address) {
            return Lookup::Found(Found {
                name: places::CROWD_NAME.to_owned(),
                start: address,
                size: 1,
                source: None,
            });
        }
        let space = self.spaces.get(&process);
        let place = space.and_then(|space| space.get(address));
        if let Some(place) = place.or_else(|| self.kernel.get(address)) {
            let (code, settled) = (place.code.clone(), place.settled.clone());
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

    /// An answer is on its way; a rough one will do after a while. In a replay what a frame is called
    /// comes with it, or not at all.
    fn wait(&mut self, process: ContextKey, code: &Code, address: u64) -> Lookup {
        let rough = self.around(code, address);
        let live = self.replay.is_none();
        if live && (rough == Lookup::Missing || self.questions.is_worth_waiting(process, address)) {
            return Lookup::Waiting;
        }
        rough
    }

    /// The function around a place in code, without a line of source.
    fn around(&self, code: &Code, address: u64) -> Lookup {
        let described = self.generations().find_map(|one| one.covering(code));
        described.map_or(Lookup::Missing, |described| {
            found(&described, code, address)
        })
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

/// An answer. Where a function begins is as far before an address of a process's memory as it is in
/// its file; a reserved address is all there is of its function.
fn found(described: &Described<'_>, code: &Code, address: u64) -> Lookup {
    let start = described.start.filter(|_| !places::is_reserved(address));
    let distance = start.and_then(|start| code.address.checked_sub(start));
    let range = distance.and_then(|distance| {
        let size = match described.size {
            Some(size) if size > 0 => size,
            _ => distance.checked_add(1)?,
        };
        let start = address.checked_sub(distance)?;
        (distance < size && start.checked_add(size).is_some()).then_some((start, size))
    });
    let (start, size) = range.unwrap_or((address, 1));
    let source = described.source;
    Lookup::Found(Found {
        name: described.name.to_owned(),
        start,
        size,
        source: source.map(|(file, line)| (file.to_owned(), line)),
    })
}
