//! Names and lines of Go's functions, from the table that the runtime itself uses.
//!
//! A Go program and an address -> the functions there, with the inlined ones, and their lines: also of a
//! program without symbols and debug information, for this table is part of what is loaded.
//! Addresses are ELF virtual addresses. What does not belong here: reading the table (`unwind::go`).

use std::fs::File;

use profiler_object::elf::Elf;
use profiler_object::{Function, FunctionKind, Language};
use profiler_unwind::go::Program;

/// Most functions at one address.
const MAX_INLINED: usize = 64;
/// Most values of tables that are looked at for one address.
const MAX_VALUES: usize = 1 << 20;

/// A Go program's functions.
#[derive(Debug)]
pub struct GoNames {
    program: Program,
    /// What the table does not hold is read from it: calls that were inlined.
    file: File,
    elf: Elf,
}

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoFrame {
    /// As Go writes it.
    pub name: String,
    /// Source file.
    pub file: Option<String>,
    /// Line; 0 if not known.
    pub line: u32,
}

/// All functions at an address, and where the code of the last one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoPlace {
    /// Innermost first.
    pub frames: Vec<GoFrame>,
    /// Address of the first instruction.
    pub start: u64,
    /// Length in bytes.
    pub size: u64,
}

impl GoNames {
    /// Reads the table of an open file, if that is a Go program.
    pub fn open(file: &File) -> Option<GoNames> {
        GoNames::load(file, &Elf::read(file).ok()?)
    }

    /// The same, with the headers read already.
    pub(super) fn load(file: &File, elf: &Elf) -> Option<GoNames> {
        Some(GoNames {
            program: Program::find(file, elf)?,
            file: file.try_clone().ok()?,
            elf: elf.clone(),
        })
    }

    /// All functions of the program, for who looks for one by its name.
    pub(super) fn functions(&self) -> Vec<Function> {
        let table = &self.program.table;
        let functions = table.functions().filter_map(|found| {
            // What follows up to the next function is padding.
            let end = table.stack(&found).last().map(|held| held.at.end);
            let end = end.unwrap_or(found.end).min(found.end);
            Some(Function {
                name: table.name(&found)?.into(),
                linkage_name: None,
                aliases: Vec::new(),
                offset: self.elf.offset_of(found.start)?,
                address: found.start,
                size: end.saturating_sub(found.start),
                source: None,
                line: 0,
                kind: FunctionKind::Function,
                language: Language::Go,
            })
        });
        functions.collect()
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.program.table.bytes()
    }

    /// What is at an address. Without `inlines` the function whose code it is.
    pub fn find(&self, address: u64, inlines: bool) -> Option<GoPlace> {
        let table = &self.program.table;
        let mut function = table.find(address)?;
        let mut frames = Vec::new();
        let mut left = MAX_VALUES;
        let mut at = address;
        // Nothing is executed between functions. Frames that nobody called (a signal's return) are looked
        // up there, one byte before they begin.
        let code_end = || table.stack(&function).last().map(|held| held.at.end);
        if address + 1 == function.end
            && code_end().is_some_and(|end| end <= address)
            && let Some(next) = table.find(function.end)
        {
            (function, at) = (next, next.start);
        }
        while frames.len() < MAX_INLINED {
            let (file, line) = table.place(&function, at, &mut left);
            let call = table.inlined(&function, at, &mut left);
            let call = call.and_then(|index| {
                let call = self
                    .program
                    .inlined_call(&self.file, &self.elf, &function, index)?;
                let place = function.start.checked_add(call.at.into())?;
                Some((table.name_at(call.name)?, place))
            });
            let Some((name, place)) = call.filter(|(_, place)| *place < function.end) else {
                let name = table.name(&function)?;
                frames.push(GoFrame { name, file, line });
                return Some(GoPlace {
                    frames,
                    start: function.start,
                    size: function.end - function.start,
                });
            };
            if inlines {
                frames.push(GoFrame { name, file, line });
            }
            at = place;
        }
        None
    }
}
