//! Where functions that have code, or were inlined, are declared, one after the other as they are asked for.
//!
//! A file with debug information, addresses of first instructions -> lines of names. Addresses are ELF virtual addresses.
//! A unit is read once, when the first of its functions is asked for, so that a few functions of a large program cost
//! what their units do. What a unit refers to in another one is looked up there. Source: DWARF 5, chapters 2.14 and 2.17.
//!
//! What does not belong here: lines of instructions (the symbolizer's), functions without code, other files than the one
//! that is open (split and supplementary ones).

use std::fs::File;

use gimli::{DebugInfoOffset, Dwarf, EndianSlice, NativeEndian, SectionId, Unit};
use rustc_hash::{FxHashMap, FxHashSet};

use super::debug_info::Reader;
use super::{ObjectError, Part};

/// Most bytes of all sections together, when unpacked.
const MAX_BYTES: u64 = 24 << 20;
/// Most bytes of a unit that is read for the sake of one line.
const MAX_UNIT_BYTES: usize = 8 << 20;
/// Most units that are read for the functions of one.
const MAX_UNITS: usize = 64;
/// Code that a linker left out is said to begin at 0 or at 1.
const LEFT_OUT: u64 = 1;
/// Most functions that are remembered.
const MAX_LINES: usize = 1 << 20;

/// What is needed of a file's debug information: neither names nor what instructions are.
const SECTIONS: [SectionId; 6] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugLine,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugAddr,
];

type Bytes<'a> = EndianSlice<'a, NativeEndian>;

/// The lines that functions of a file are declared at.
#[derive(Debug, Default)]
pub struct DeclaredLines {
    sections: Option<gimli::DwarfSections<Vec<u8>>>,
    bytes: u64,
    /// Where units begin in the section, in order.
    units: Vec<usize>,
    /// First address, the one behind the last, and which unit it is; in order.
    code: Vec<(u64, u64, usize)>,
    read: FxHashSet<usize>,
    lines: FxHashMap<u64, u32>,
    /// By unit: what was inlined there.
    inlined: FxHashMap<usize, Vec<InlinedCode>>,
}

/// A piece of inlined code.
#[derive(Clone, Copy, Debug)]
struct InlinedCode {
    begin: u64,
    end: u64,
    depth: u16,
    /// The line that the function is declared at; 0: not known.
    line: u32,
    /// The last address of this and all before, in the order of where they begin.
    reach: u64,
}

impl DeclaredLines {
    /// Opens the debug information of a file; nothing is known where there is too much of it.
    pub fn open(file: &File, path: &str) -> Result<DeclaredLines, ObjectError> {
        let part = Part::read(file, path)?;
        let sizes = SECTIONS.iter().filter_map(|id| part.section(id.name()));
        let bytes: u64 = sizes.map(|section| section.bytes_in_file()).sum();
        let mut left = MAX_BYTES;
        if bytes > left || part.section(".debug_info").is_none() {
            return Ok(DeclaredLines::default());
        }
        let load = |id: SectionId| -> Result<Vec<u8>, gimli::Error> {
            let contents = SECTIONS
                .contains(&id)
                .then(|| part.contents(id.name(), left));
            let contents = contents.flatten().unwrap_or_default();
            left -= contents.len() as u64;
            Ok(contents)
        };
        let Ok(sections) = gimli::DwarfSections::load(load) else {
            return Ok(DeclaredLines::default());
        };
        let mut declared = DeclaredLines {
            bytes: MAX_BYTES - left,
            ..DeclaredLines::default()
        };
        declared.find_units(&borrow(&sections));
        declared.sections = Some(sections);
        Ok(declared)
    }

    fn find_units(&mut self, dwarf: &Dwarf<Bytes<'_>>) {
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let index = self.units.len();
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            self.units.push(offset.0);
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            let Ok(mut ranges) = dwarf.unit_ranges(&unit) else {
                continue;
            };
            while let Ok(Some(range)) = ranges.next() {
                if range.begin > LEFT_OUT && range.begin < range.end {
                    self.code.push((range.begin, range.end, index));
                }
            }
        }
        self.code.sort_unstable();
    }

    /// The line that the name of the function at this address stands on.
    pub fn line_of(&mut self, start: u64) -> Option<u32> {
        self.unit_at(start)?;
        self.lines.get(&start).copied()
    }

    /// The lines that the functions are declared at that were inlined at an address, outermost first; 0: not known.
    pub fn inlined_at(&mut self, address: u64) -> Vec<u32> {
        let unit = self.unit_at(address);
        let Some(code) = unit.and_then(|unit| self.inlined.get(&unit)) else {
            return Vec::new();
        };
        let before = code.partition_point(|code| code.begin <= address);
        let near = (code[..before].iter().rev()).take_while(|code| code.reach > address);
        let mut here: Vec<&InlinedCode> = near.filter(|code| code.end > address).collect();
        here.sort_unstable_by_key(|code| code.depth);
        here.into_iter().map(|code| code.line).collect()
    }

    /// Number of the unit whose code an address is in. It is read.
    fn unit_at(&mut self, address: u64) -> Option<usize> {
        let after = self.code.partition_point(|&(begin, _, _)| begin <= address);
        let &(_, end, unit) = self.code[..after].last()?;
        if address >= end {
            return None;
        }
        if self.read.insert(unit)
            && self.lines.len() < MAX_LINES
            && let Some(sections) = &self.sections
        {
            let (lines, inlined) = self.lines_of(&borrow(sections), unit);
            self.lines.extend(lines);
            self.inlined.insert(unit, inlined);
        }
        Some(unit)
    }

    /// Estimated memory that this takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let (code, lines) = (self.code.len() * 24, self.lines.capacity() * 17);
        let inlined: usize = self.inlined.values().map(Vec::len).sum();
        let inlined = inlined * size_of::<InlinedCode>();
        self.bytes + (code + lines + inlined + self.units.len() * 8) as u64
    }

    fn lines_of(
        &self,
        dwarf: &Dwarf<Bytes<'_>>,
        index: usize,
    ) -> (Vec<(u64, u32)>, Vec<InlinedCode>) {
        let mut reader = Reader::with_places(dwarf);
        let mut read: FxHashSet<usize> = FxHashSet::default();
        let mut wanted = vec![index];
        // And the units that it refers to; what these refer to, too.
        while let Some(index) = wanted.pop() {
            if read.len() == MAX_UNITS || !read.insert(index) {
                continue;
            }
            let Some(unit) = self.unit(dwarf, index) else {
                continue;
            };
            if let Err(error) = reader.read_unit(&unit) {
                log::debug!("a unit of debug information: {error}");
            }
            let missing = reader.missing().into_iter();
            let unit_of = |at| {
                self.units
                    .partition_point(|&unit| unit <= at)
                    .checked_sub(1)
            };
            wanted.extend(missing.filter_map(unit_of));
        }
        let code = reader
            .inlined_lines()
            .map(|(begin, end, depth, line)| InlinedCode {
                begin,
                end,
                depth,
                line,
                reach: end,
            });
        let mut inlined: Vec<InlinedCode> = code.collect();
        inlined.sort_unstable_by_key(|code| (code.begin, code.depth));
        let mut reach = 0;
        for code in &mut inlined {
            reach = code.end.max(reach);
            code.reach = reach;
        }
        (reader.lines().collect(), inlined)
    }

    fn unit<'d>(&self, dwarf: &Dwarf<Bytes<'d>>, index: usize) -> Option<Unit<Bytes<'d>>> {
        let offset = DebugInfoOffset(*self.units.get(index)?);
        let header = dwarf.unit_header(offset).ok()?;
        let is_small = header.length_including_self() <= MAX_UNIT_BYTES;
        is_small.then(|| dwarf.unit(header).ok()).flatten()
    }
}

fn borrow(sections: &gimli::DwarfSections<Vec<u8>>) -> Dwarf<Bytes<'_>> {
    sections.borrow(|section| EndianSlice::new(section, NativeEndian))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Files of compilers: `resolve`, tests of debug information.
    #[test]
    fn what_is_nowhere_is_not_declared() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut declared = DeclaredLines::open(&file, "self").unwrap();
        assert_eq!(
            (declared.line_of(1), declared.line_of(u64::MAX)),
            (None, None)
        );
        assert!(declared.read.is_empty());
        assert_eq!(DeclaredLines::default().line_of(1), None);
        assert!(DeclaredLines::default().inlined_at(1).is_empty());
    }
}
