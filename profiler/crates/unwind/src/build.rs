//! From an object file to its unwind table.
//!
//! An open ELF file, and perhaps the file of its debug information -> [`Table`] and [`BuildReport`].
//! `.eh_frame` counts first; `.debug_frame` fills in where that has nothing. Addresses are ELF virtual
//! addresses. Files are read with positioned reads of bounded size, never mapped: they belong to
//! targets. What loading and caching of tables is does not belong here.
//!
//! Memory is bounded by the sizes of the sections, time is linear in them but for sorting: each function's
//! program runs once, and of functions that overlap each address belongs to the one that begins last
//! before it, as a search by address finds it.

use std::fs::File;
use std::io::Write;
use std::iter::Peekable;

use profiler_common::unwind::{CFA_MEMORY, CFA_REGISTER, REGISTER_BX, Rule};

use super::program::Machine;
use super::raw::Raw;
use super::startup::{self, Startup};
use super::state::{State, Unknown};
use super::stubs::{self, Stubs};
use super::{Builder, Entry, Table, TooLarge, go};
use profiler_object::cfi::{Entries, Fde, Kind, Section};
use profiler_object::elf::{self, Elf, ElfError};

/// Most bytes of `.eh_frame` or `.debug_frame`.
pub(super) const MAX_SECTION_BYTES: u64 = 256 << 20;
/// Most bytes of a vDSO.
const MAX_VDSO_BYTES: usize = 1 << 20;

/// Why a file has no table.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Its headers or sections can't be read.
    #[error("failed to read unwind information: {0}")]
    Read(String),
    /// It is for another processor.
    #[error("its code is not x86-64, only that can be unwound by tables")]
    Machine,
    /// It says nothing about its frames.
    #[error("it has no unwind information, frame pointers are all there is")]
    Nothing,
    /// See [`TooLarge`].
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

impl From<ElfError> for BuildError {
    fn from(error: ElfError) -> BuildError {
        BuildError::Read(error.to_string())
    }
}

/// What a build has read and made, and what it did not understand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildReport {
    /// Bytes of `.eh_frame` and of `.debug_frame`.
    pub section_bytes: u64,
    /// Functions whose programs were run.
    pub functions: u64,
    /// Functions left out: outside of the file's code (removed by the linker), or hidden by another
    /// one with the same address.
    pub functions_left_out: u64,
    /// Functions that could not be read: bad pointers, unknown augmentations.
    pub functions_unreadable: u64,
    /// Functions whose programs have damaged or unknown instructions; known up to there.
    pub functions_damaged: u64,
    /// A section had too many entries, or one whose end is not known: what follows it was not read.
    pub cut: bool,
    /// Rows that the programs have made.
    pub rows_read: u64,
    /// Of these: the CFA is found in a way that rules can't say.
    pub rows_cfa: u64,
    /// Of these: the return address is.
    pub rows_return_address: u64,
    /// Of these: the caller's stack pointer is not the CFA.
    pub rows_stack_pointer: u64,
    /// Of these, with a rule: but the caller's frame pointer is lost, though the program says where it
    /// is.
    pub rows_frame_pointer: u64,
    /// Of these: there were too many different rules already.
    pub rows_refused: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Rules of the table.
    pub rules: u64,
    /// Bytes of the table, as the kernel has it, without rules.
    pub table_bytes: u64,
}

/// Builds the table of a file. `debug`: the file of its debug information, if there is another one.
pub fn build_file(file: &File, debug: Option<&File>) -> Result<(Table, BuildReport), BuildError> {
    let elf = Elf::read(file)?;
    let debug = match debug {
        Some(debug) => Some((debug, Elf::read(debug)?)),
        None => None,
    };
    build(file, &elf, debug.as_ref().map(|(file, elf)| (*file, elf)))
}

/// Builds the table of a vDSO, given its bytes in memory.
pub fn build_vdso(bytes: &[u8]) -> Result<(Table, BuildReport), BuildError> {
    let bytes = &bytes[..bytes.len().min(MAX_VDSO_BYTES)];
    let read = |error: std::io::Error| BuildError::Read(error.to_string());
    let memory = rustix::fs::memfd_create("vdso", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.map_err(|error| read(error.into()))?);
    file.write_all(bytes).map_err(read)?;
    build_file(&file, None)
}

/// Builds the table of a file whose headers were read already.
pub(crate) fn build(
    file: &File,
    elf: &Elf,
    debug: Option<(&File, &Elf)>,
) -> Result<(Table, BuildReport), BuildError> {
    let raw = Raw::read(file, elf, debug)?;
    let of = raw.may_be_go.then_some((file, elf));
    Source::of(raw, of)?.build()
}

/// All that a table depends on.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Where code is: addresses and ends, in their order.
    pub(super) code: Vec<(u64, u64)>,
    /// Addresses of `.text` and `.got`.
    pub(super) text: u64,
    pub(super) got: u64,
    /// Where walks end, whatever is not said there.
    pub(super) outermost: Vec<(u64, u64)>,
    /// Code that the loader calls.
    pub(super) startup: Startup,
    pub(super) stubs: Vec<Stubs>,
    /// Sections in the order of their precedence: bytes and address.
    pub(super) sections: Vec<(Kind, Vec<u8>, u64)>,
    /// What holds in Go's functions.
    pub(super) go: Option<Vec<(u64, Entry)>>,
}

impl Source {
    /// Unpacks what files say about frames. `of`: the file itself, if it may be a Go program.
    pub(super) fn of(raw: Raw, of: Option<(&File, &Elf)>) -> Result<Source, BuildError> {
        let mut source = Source {
            code: raw.code,
            text: raw.text,
            got: raw.got,
            outermost: raw.outermost,
            startup: raw.startup,
            stubs: raw.stubs,
            ..Source::default()
        };
        for section in raw.sections {
            let bytes = match section.packed {
                None => section.bytes,
                Some(wide) => elf::unpack(&section.bytes, wide, MAX_SECTION_BYTES)
                    .ok_or_else(|| BuildError::Read("a section is badly packed".to_owned()))?,
            };
            source.sections.push((section.kind, bytes, section.address));
        }
        source.go = of.and_then(|(file, elf)| go::entries(file, elf));
        if source.go.is_some() {
            // What Go's linker writes there says less.
            source.sections.retain(|(kind, ..)| *kind == Kind::Eh);
        } else if source.sections.is_empty() && source.outermost.is_empty() {
            return Err(BuildError::Nothing);
        }
        Ok(source)
    }

    /// Bytes of all sections.
    pub(super) fn bytes(&self) -> u64 {
        let sections = self.sections.iter();
        sections.map(|(_, bytes, _)| bytes.len() as u64).sum()
    }

    /// Builds the table. Where a frame is found by rbx, once more, following that: so no other file's
    /// rules get more, or more different.
    pub(super) fn build(&self) -> Result<(Table, BuildReport), BuildError> {
        let built = self.build_as(false)?;
        match built.0.rules.iter().any(finds_by_bx) {
            true => self.build_as(true),
            false => Ok(built),
        }
    }

    fn build_as(&self, follows_bx: bool) -> Result<(Table, BuildReport), BuildError> {
        let mut work = Work::default();
        work.machine.follows_bx = follows_bx;
        work.report.section_bytes = self.bytes();
        let sections: Vec<Section<'_>> = self.sections().collect();
        let mut functions: Vec<Function> = Vec::new();
        let mut initial = Vec::new();
        for (index, section) in sections.iter().enumerate() {
            let entries = section.entries();
            work.report.functions_unreadable += entries.unreadable;
            work.report.cut |= entries.cut;
            let more = work.within_code(&self.code, &entries, index as u8);
            functions = work.fill_in(functions, more);
            let cies = entries.cies;
            let begin = |cie| work.machine.begin(section, cie).ok();
            let states: Vec<Option<State>> = cies.iter().map(begin).collect();
            initial.push((cies, states));
        }
        let mut unsaid = Unsaid(self.unsaid(&functions).into_iter().peekable(), 0);
        for function in &functions {
            unsaid.until(function.fde.start, &mut work.builder);
            unsaid.1 = function.fde.end;
            let section = usize::from(function.section);
            let (Some(section), Some((cies, states))) =
                (sections.get(section), initial.get(section))
            else {
                continue;
            };
            let cie = function.fde.cie as usize;
            work.report.functions += 1;
            match (cies.get(cie), states.get(cie)) {
                (Some(cie), Some(Some(state))) => {
                    work.run(|machine, row| machine.run(section, cie, *state, &function.fde, row));
                }
                _ => work.report.functions_damaged += 1,
            }
            work.builder.push(function.fde.end, Entry::None);
        }
        unsaid.until(u64::MAX, &mut work.builder);
        work.report.rows_refused = work.builder.refused();
        let mut table = work.builder.finish()?;
        if let Some(go) = &self.go {
            table = go::merge(go, &table)?;
        }
        work.report.rows = table.rows.len() as u64;
        work.report.rules = table.rules.len() as u64;
        work.report.table_bytes = table.bytes();
        Ok((table, work.report))
    }

    /// What holds where the file says nothing, in the order of addresses.
    fn unsaid(&self, functions: &[Function]) -> Vec<(u64, u64, Entry)> {
        let is_said = |address| {
            let behind = functions.partition_point(|function| function.fde.start <= address);
            let before = behind.checked_sub(1).and_then(|index| functions.get(index));
            before.is_some_and(|function| address < function.fde.end)
        };
        let rules = startup::rules(&self.startup, is_said).into_iter();
        let rules = rules.chain(stubs::rules(&self.stubs));
        let mut unsaid: Vec<(u64, u64, Entry)> = rules
            .filter(|&(start, end, _)| {
                let mut ends = self.outermost.iter();
                !ends.any(|&(from, until)| from < end && start < until)
            })
            .map(|(start, end, rule)| (start, end, Entry::Rule(rule)))
            .collect();
        let ends = self.outermost.iter();
        unsaid.extend(ends.map(|&(start, end)| (start, end, Entry::End)));
        unsaid.sort_by_key(|&(start, ..)| start);
        // What the loader calls may be a stub as well, of which the same is known.
        let mut covered = 0;
        unsaid.retain_mut(|(start, end, _)| {
            *start = covered.max(*start);
            covered = covered.max(*end);
            start < end
        });
        unsaid
    }

    fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        self.sections.iter().map(|(kind, bytes, address)| Section {
            kind: *kind,
            bytes,
            address: *address,
            text: self.text,
            got: self.got,
        })
    }
}

fn finds_by_bx(rule: &Rule) -> bool {
    matches!(rule.cfa, CFA_REGISTER | CFA_MEMORY) && rule.register == REGISTER_BX
}

/// Ranges that are still to be put between functions, and where the last one of these ends.
struct Unsaid<I: Iterator<Item = (u64, u64, Entry)>>(Peekable<I>, u64);

impl<I: Iterator<Item = (u64, u64, Entry)>> Unsaid<I> {
    /// Puts in what lies before `next`, as far as nothing else is said there.
    fn until(&mut self, next: u64, builder: &mut Builder) {
        let Unsaid(ranges, covered) = self;
        while let Some((start, end, entry)) = ranges.next_if(|range| range.0 < next) {
            let (start, end) = (start.max(*covered), end.min(next));
            if start < end {
                builder.push(start, entry);
                builder.push(end, Entry::None);
            }
        }
    }
}

struct Function {
    section: u8,
    fde: Fde,
}

#[derive(Default)]
struct Work {
    machine: Machine,
    builder: Builder,
    report: BuildReport,
    /// The state that was seen last, and what it is.
    last: Option<(State, Entry)>,
}

impl Work {
    /// The functions of a section that lie in the file's code, in the order of their addresses, each
    /// up to where the next one begins.
    fn within_code(
        &mut self,
        code: &[(u64, u64)],
        entries: &Entries,
        section: u8,
    ) -> Vec<Function> {
        let mut functions: Vec<Function> = Vec::with_capacity(entries.fdes.len());
        for fde in &entries.fdes {
            let behind = code.partition_point(|&(start, _)| start <= fde.start);
            let segment = behind.checked_sub(1).and_then(|index| code.get(index));
            match segment {
                Some(&(_, end)) if fde.start < end => {
                    let mut fde = fde.clone();
                    fde.end = fde.end.min(end);
                    functions.push(Function { section, fde });
                }
                _ => self.report.functions_left_out += 1,
            }
        }
        // Of two with the same address the longer one counts, then the first one of the section.
        functions.sort_by_key(|function| (function.fde.start, u64::MAX - function.fde.end));
        let before = functions.len();
        functions.dedup_by_key(|function| function.fde.start);
        self.report.functions_left_out += (before - functions.len()) as u64;
        for index in 1..functions.len() {
            let next = functions[index].fde.start;
            let end = &mut functions[index - 1].fde.end;
            *end = next.min(*end);
        }
        functions
    }

    /// Adds to functions those that begin where there is none yet, each up to where the next one
    /// begins.
    fn fill_in(&mut self, functions: Vec<Function>, more: Vec<Function>) -> Vec<Function> {
        if functions.is_empty() {
            return more;
        }
        let mut all = Vec::with_capacity(functions.len() + more.len());
        let mut more = more.into_iter().peekable();
        let mut covered = 0;
        let mut add = |all: &mut Vec<Function>, covered: u64, until: u64| {
            while let Some(mut extra) = more.next_if(|extra| extra.fde.start < until) {
                if extra.fde.start < covered {
                    self.report.functions_left_out += 1;
                } else {
                    extra.fde.end = extra.fde.end.min(until);
                    all.push(extra);
                }
            }
        };
        for function in functions {
            add(&mut all, covered, function.fde.start);
            covered = function.fde.end;
            all.push(function);
        }
        add(&mut all, covered, u64::MAX);
        all
    }

    fn run<E>(
        &mut self,
        run: impl FnOnce(&mut Machine, &mut dyn FnMut(u64, &State)) -> Result<(), (u64, E)>,
    ) {
        let (builder, report, last) = (&mut self.builder, &mut self.report, &mut self.last);
        let follows_bx = self.machine.follows_bx;
        let mut row = |address, state: &State| {
            report.rows_read += 1;
            let entry = match last {
                Some((known, entry)) if known == state => *entry,
                _ => {
                    let entry = entry_of(state, follows_bx, report);
                    if entry != Entry::None {
                        *last = Some((*state, entry));
                    }
                    entry
                }
            };
            builder.push(address, entry);
        };
        if let Err((address, _)) = run(&mut self.machine, &mut row) {
            self.report.functions_damaged += 1;
            self.builder.push(address, Entry::None);
        }
    }
}

fn entry_of(state: &State, follows_bx: bool, report: &mut BuildReport) -> Entry {
    match state.entry(follows_bx) {
        Ok(entry) => {
            report.rows_frame_pointer += u64::from(state.loses_fp(&entry));
            entry
        }
        Err(why) => {
            let count = match why {
                Unknown::Cfa => &mut report.rows_cfa,
                Unknown::ReturnAddress => &mut report.rows_return_address,
                Unknown::StackPointer => &mut report.rows_stack_pointer,
            };
            *count += 1;
            Entry::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outermost_function_ends_walks_where_nothing_is_said() {
        let source = Source {
            code: vec![(0x1000, 0x2000)],
            outermost: vec![(0x1100, 0x1120), (0x1140, 0x1141)],
            ..Source::default()
        };
        let (table, _) = source.build().unwrap();
        let at = |address| table.entry_at(address);
        assert_eq!(at(0x10ff), Entry::None);
        assert_eq!((at(0x1100), at(0x111f)), (Entry::End, Entry::End));
        assert_eq!((at(0x1120), at(0x1140)), (Entry::None, Entry::End));
        assert_eq!(at(0x1141), Entry::None);
        // A function that covers what lies in the middle of it.
        let mut builder = Builder::default();
        let mut unsaid = Unsaid(source.unsaid(&[]).into_iter().peekable(), 0x1104);
        unsaid.until(0x1110, &mut builder);
        builder.push(0x1110, Entry::Rule(Rule::default()));
        unsaid.1 = 0x1150;
        unsaid.until(u64::MAX, &mut builder);
        let table = builder.finish().unwrap();
        let at = |address| table.entry_at(address);
        assert_eq!((at(0x1103), at(0x1104)), (Entry::None, Entry::End));
        assert_eq!(at(0x1110), Entry::Rule(Rule::default()));
        assert_eq!(at(0x1140), Entry::Rule(Rule::default()));
    }
}
