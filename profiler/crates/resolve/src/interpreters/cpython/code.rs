//! Code objects in the memory of a process: what they are called, and where in the source they are.
//!
//! An address in a process -> [`Code`]. The memory is only read, by `/proc/PID/mem`: nothing is
//! stopped. It belongs to the target, which may change it at any time or have put anything there: all
//! lengths are bounded, what makes no sense is no code object, and texts are taken as they are.
//! Source: `Include/cpython/code.h` and `unicodeobject.h` of CPython.
//!
//! What does not belong here: how long what was read is believed (`super`).

use profiler_common::python::fingerprint_of;

use super::lines::Lines;
use super::version::{CodeOffsets, LineTable};
use crate::helper::Memory;

/// Longest name kept, in characters; more is cut.
const MAX_NAME: usize = 1024;
/// Longest path kept, in characters; more is cut.
const MAX_PATH: usize = 4096;
/// Longest location table, in bytes. Of a larger one no lines are known.
const MAX_TABLE: usize = 256 << 10;
/// Most bytes of a code object that are looked at.
const MAX_CODE_BYTES: usize = 512;
/// Read of a text at first: most names and paths are not longer.
const FIRST_BYTES: usize = 256;
/// Head of a bytes object: reference count, type, length, hash.
const BYTES_HEAD: usize = 32;

/// The head of a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    references: u64,
    kind: u64,
    units: u64,
    filename: u64,
    qualname: u64,
    linetable: u64,
    line: u32,
    instructions: u64,
    fingerprint: u64,
}

impl Head {
    /// Reads it.
    pub(super) fn read(memory: &Memory, address: u64, offsets: &CodeOffsets) -> Option<Head> {
        let last = [
            offsets.filename,
            offsets.qualname,
            offsets.linetable,
            offsets.firstlineno,
            offsets.instructions,
            offsets.fingerprint + 24,
        ];
        let len = last.iter().max()? + 8;
        if len > MAX_CODE_BYTES {
            return None;
        }
        let head = memory.read(address, len)?;
        Some(Head {
            references: word(&head, 0)?,
            kind: word(&head, 8)?,
            units: word(&head, 16)?,
            filename: word(&head, offsets.filename)?,
            qualname: word(&head, offsets.qualname)?,
            linetable: word(&head, offsets.linetable)?,
            line: word(&head, offsets.firstlineno)? as u32,
            instructions: word(&head, offsets.instructions)?,
            fingerprint: fingerprint_of(
                word(&head, offsets.fingerprint)?,
                word(&head, offsets.fingerprint + 16)?,
                word(&head, offsets.fingerprint + 24)?,
            ),
        })
    }

    /// Whether it is a code object, of the type at `kind`, that has not been freed, and the very one
    /// that a sample has told of.
    pub(super) fn is(&self, kind: Option<u64>, fingerprint: u64) -> bool {
        // Who frees memory keeps an address in its first word, or zero.
        let lives = (1..=u64::from(u32::MAX)).contains(&self.references);
        lives && kind.is_none_or(|kind| kind == self.kind) && fingerprint == self.fingerprint
    }
}

/// A code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// Its name, with those of classes and functions that it is in.
    pub(super) name: Box<str>,
    /// The path of its source, as Python has it.
    pub(super) file: Box<str>,
    /// Its first line.
    pub(super) line: u32,
    /// Its lines.
    lines: Lines,
    /// Code units of its instructions.
    units: u64,
    /// It stands between two frames, and no source says so.
    pub(super) hidden: bool,
}

impl Code {
    /// Reads what its head refers to.
    pub(super) fn read(memory: &Memory, head: &Head, offsets: &CodeOffsets) -> Option<Code> {
        let name = text(memory, head.qualname, offsets, MAX_NAME)?;
        let file = text(memory, head.filename, offsets, MAX_PATH)?;
        let table = bytes_object(memory, head.linetable).unwrap_or_default();
        let lines = match offsets.lines {
            LineTable::Locations => Lines::read(&table, head.line),
            LineTable::Ranges => Lines::of_ranges(&table, head.line),
            LineTable::Steps => Lines::of_steps(&table, head.line),
        };
        let units = match offsets.lines {
            LineTable::Locations => head.units,
            // They are an object of their own.
            _ => word(&memory.read(head.instructions, BYTES_HEAD)?, 16)? / 2,
        };
        // What 3.12 and 3.13 put between a class and its `__init__`: without a source, and without
        // lines.
        let hidden = lines.is_empty() && name == file;
        Some(Code {
            lines,
            name: name.into(),
            file: file.into(),
            line: head.line,
            units,
            hidden,
        })
    }

    /// The line of an instruction of the code object at `address`; 0: not known. None if it has no such
    /// instruction.
    pub(super) fn line_of(
        &self,
        address: u64,
        instruction: u64,
        offsets: &CodeOffsets,
    ) -> Option<u32> {
        if offsets.lines != LineTable::Locations {
            let last = instruction as u32 as i32;
            if last < 0 {
                return Some(self.line);
            }
            let unit = match offsets.lines {
                LineTable::Steps => last as u32 / 2,
                _ => last as u32,
            };
            return (u64::from(unit) < self.units).then(|| self.lines.at(unit));
        }
        let first = address.wrapping_add(offsets.instructions as u64);
        let distance = instruction.wrapping_sub(first).cast_signed();
        if distance == -2 {
            // 3.11 and 3.12 say which instruction was last, and there was none.
            return Some(self.line);
        }
        let unit = u32::try_from(distance / 2).ok().filter(|_| distance >= 0)?;
        (u64::from(unit) < self.units).then(|| self.lines.at(unit))
    }

    /// Roughly how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Code>() + self.name.len() + self.file.len() + self.lines.bytes()
    }
}

/// A text, cut to so many characters.
fn text(memory: &Memory, address: u64, offsets: &CodeOffsets, most: usize) -> Option<String> {
    let mut object = memory.read(address, offsets.compact + FIRST_BYTES)?;
    let len = usize::try_from(word(&object, 16)?).ok()?;
    let state = word(&object, 32)? as u32;
    let (kind, compact, ascii) = (state >> 2 & 7, state >> 5 & 1, state >> 6 & 1);
    if compact == 0 || !matches!(kind, 1 | 2 | 4) {
        return None;
    }
    let head = match ascii {
        1 => offsets.ascii,
        _ => offsets.compact,
    };
    let (kept, cut) = (len.min(most), len > most);
    let end = head + kept * kind as usize;
    if object.len() < end {
        object = memory.read(address, end)?;
    }
    let characters = object.get(head..end)?;
    let mut text: String = match kind {
        1 => characters.iter().map(|&byte| char::from(byte)).collect(),
        2 => wide::<2>(characters, |unit| u16::from_ne_bytes(unit).into()),
        _ => wide::<4>(characters, u32::from_ne_bytes),
    };
    if cut {
        text.push('…');
    }
    Some(text)
}

fn wide<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> u32) -> String {
    let units = bytes.as_chunks::<N>().0.iter();
    let character = |unit: &[u8; N]| char::from_u32(number(*unit));
    units
        .map(|unit| character(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

fn bytes_object(memory: &Memory, address: u64) -> Option<Vec<u8>> {
    let mut object = memory.read(address, BYTES_HEAD + FIRST_BYTES)?;
    let len = usize::try_from(word(&object, 16)?).ok()?;
    if len > MAX_TABLE {
        return None;
    }
    if object.len() < BYTES_HEAD + len {
        object = memory.read(address, BYTES_HEAD + len)?;
    }
    let bytes = object.get(BYTES_HEAD..BYTES_HEAD + len)?;
    Some(bytes.to_vec())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_ne_bytes(*word))
}
