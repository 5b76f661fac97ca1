//! Where functions that have code, or were inlined, are declared, one after the other as they are asked for; and what GHC
//! calls functions that no symbol tells of.
//!
//! A file with debug information, addresses of first instructions -> lines of names. Addresses are ELF virtual addresses.
//! A unit is read once, when the first of its functions is asked for, so that a few functions of a large program cost
//! what their units do. What a unit refers to in another one is looked up there. Source: DWARF 5, chapters 2.14 and 2.17.
//!
//! What does not belong here: lines of instructions (the symbolizer's), functions without code, other files than the one
//! that is open (split and supplementary ones).

use std::fs::File;

use gimli::{
    Abbreviations, DebugAbbrev, DebugAbbrevOffset, DebugInfoOffset, Dwarf, EndianSlice,
    NativeEndian, Reader as _, Section as _, SectionId, Unit, UnitHeader,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::debug_info::{InlinedLine, Reader, lower};
use super::{ObjectError, Part};
use crate::demangle::Dialect;

/// Most bytes of all sections together, when unpacked.
const MAX_BYTES: u64 = 24 << 20;
/// Most bytes of a unit that is read for the sake of one line.
const MAX_UNIT_BYTES: usize = 8 << 20;
/// Most units that are read for the functions of one.
const MAX_UNITS: usize = 64;
/// Code that a linker left out is said to begin at 0 or at 1.
const LEFT_OUT: u64 = 1;
/// Most lines of a unit that are looked at.
const MAX_ROWS: usize = 1 << 19;
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
    inlined: FxHashMap<usize, InlinedCode>,
    /// By unit of GHC's: its functions.
    described: FxHashMap<usize, Described>,
}

/// A function as debug information describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedFunction {
    /// What the source calls it, with its module if that is known.
    pub name: Box<str>,
    /// What the compiler calls it.
    pub symbol: Option<Box<str>>,
    /// Its first address.
    pub start: u64,
    /// How far it reaches without another one in between.
    pub size: u64,
}

/// Code that was inlined into a unit, in the order of where it begins.
#[derive(Debug, Default)]
struct InlinedCode {
    pieces: Vec<InlinedLine>,
    /// Of each, the last address of it and of all before.
    reach: Vec<u64>,
}

impl InlinedCode {
    fn of(mut pieces: Vec<InlinedLine>) -> InlinedCode {
        pieces.sort_unstable_by_key(|piece| (piece.begin, piece.depth));
        let ends = pieces.iter().scan(0, |reach: &mut u64, piece| {
            *reach = piece.end.max(*reach);
            Some(*reach)
        });
        let reach = ends.collect();
        InlinedCode { pieces, reach }
    }

    /// What was inlined at an address, in no order.
    fn at(&self, address: u64) -> impl Iterator<Item = &InlinedLine> {
        let before = self.pieces.partition_point(|it| it.begin <= address);
        let near = self.pieces[..before].iter().zip(&self.reach).rev();
        let near = near.take_while(move |(_, reach)| **reach > address);
        near.map(|(piece, _)| piece)
            .filter(move |piece| piece.end > address)
    }

    /// Gives functions that share their names, which are declared nowhere, the lowest line of their code.
    fn place_namesakes(&mut self, mut lowest: FxHashMap<usize, u32>, unit: &Unit<Bytes<'_>>) {
        if lowest.is_empty() {
            return;
        }
        let mut around: Vec<&InlinedLine> = Vec::new();
        let mut pieces = self.pieces.iter().peekable();
        for (address, line) in rows_of(unit) {
            while let Some(piece) = pieces.next_if(|piece| piece.begin <= address) {
                around.push(piece);
            }
            while around.last().is_some_and(|piece| piece.end <= address) {
                around.pop();
            }
            let innermost = around.last().map(|piece| piece.origin);
            if let Some(known) = innermost.and_then(|origin| lowest.get_mut(&origin)) {
                *known = lower(*known, line);
            }
        }
        for piece in &mut self.pieces {
            piece.line = lowest.get(&piece.origin).copied().unwrap_or(piece.line);
        }
    }
}

/// Where lines of a unit begin, by address.
fn rows_of(unit: &Unit<Bytes<'_>>) -> Vec<(u64, u32)> {
    let mut rows = unit.line_program.clone().map(|program| program.rows());
    let mut found = Vec::new();
    while let Some((_, row)) = rows.as_mut().and_then(|rows| rows.next_row().ok()?)
        && found.len() < MAX_ROWS
    {
        let line = row.line().and_then(|line| line.get().try_into().ok());
        if let (Some(line), false) = (line, row.end_sequence()) {
            found.push((row.address(), line));
        }
    }
    found.sort_unstable();
    found
}

/// What was read of a unit, and of those that it refers to.
struct Read {
    lines: Vec<(u64, u32)>,
    inlined: InlinedCode,
    described: Described,
}

/// The functions of a unit of GHC's, and the pieces that they are made of.
#[derive(Debug, Default)]
struct Described {
    /// First address, the one behind the last, and which function; in order.
    pieces: Vec<(u64, u64, usize)>,
    functions: Vec<DescribedFunction>,
}

impl Described {
    fn of(reader: &Reader<'_>) -> Described {
        let mut pieces = reader.pieces().to_vec();
        pieces.sort_unstable_by_key(|piece| (piece.begin, piece.end));
        let mut described = Described::default();
        // The modules of GHC are units.
        let module = pieces.iter().find_map(|piece| {
            let (_, symbol) = reader.names(piece.function);
            module_of(&Dialect::Haskell.readable(&symbol?)?)
        });
        let mut known: FxHashMap<usize, usize> = FxHashMap::default();
        // The function that no piece of another one has followed yet.
        let mut growing = None;
        for piece in pieces {
            let functions = &mut described.functions;
            let index = *known.entry(piece.function).or_insert_with(|| {
                let (name, symbol) = reader.names(piece.function);
                let name = name.or_else(|| symbol.clone()).unwrap_or_default();
                functions.push(DescribedFunction {
                    name: match &module {
                        Some(module) => format!("{module}.{name}").into(),
                        None => name.into(),
                    },
                    symbol: symbol.map(Into::into),
                    start: piece.begin,
                    size: 0,
                });
                growing = Some(functions.len() - 1);
                functions.len() - 1
            });
            let function = &mut functions[index];
            match growing == Some(index) {
                true => function.size = function.size.max(piece.end - function.start),
                false => growing = None,
            }
            described.pieces.push((piece.begin, piece.end, index));
        }
        described
    }

    fn at(&self, address: u64) -> Option<&DescribedFunction> {
        let after = self
            .pieces
            .partition_point(|&(begin, _, _)| begin <= address);
        let &(_, end, index) = self.pieces[..after].last()?;
        let next = self.pieces.get(after).map(|&(_, _, next)| next);
        // GHC says of a piece that it ends where it calls something.
        (address < end || next == Some(index)).then(|| self.functions.get(index))?
    }

    fn bytes(&self) -> usize {
        let texts = self.functions.iter().map(|function| {
            let symbol = function.symbol.as_deref().unwrap_or_default();
            size_of::<DescribedFunction>() + function.name.len() + symbol.len()
        });
        texts.sum::<usize>() + self.pieces.len() * size_of::<(u64, u64, usize)>()
    }
}

/// The module of a readable name of GHC's: `Data.Map` of `Data.Map.insert`, none of what GHC made itself.
fn module_of(name: &str) -> Option<String> {
    let is_module = |part: &&str| part.starts_with(char::is_uppercase);
    let parts: Vec<&str> = name.split('.').take_while(is_module).collect();
    (!parts.is_empty()).then(|| parts.join("."))
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
            let unit = root_abbreviation(dwarf, &header)
                .and_then(|root| Unit::new_with_abbreviations(dwarf, header, root.into()).ok());
            let Some(mut ranges) = unit.and_then(|unit| dwarf.unit_ranges(&unit).ok()) else {
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

    /// The lines that the functions are declared at that were inlined at an address, outermost first; 0: not known. Of several that
    /// share a name and are declared nowhere, as lambdas are in debug information of lines alone, the lowest line of their code.
    pub fn inlined_at(&mut self, address: u64) -> Vec<u32> {
        let unit = self.unit_at(address);
        let Some(code) = unit.and_then(|unit| self.inlined.get(&unit)) else {
            return Vec::new();
        };
        let mut here: Vec<&InlinedLine> = code.at(address).collect();
        here.sort_unstable_by_key(|code| code.depth);
        here.into_iter().map(|code| code.line).collect()
    }

    /// The function of GHC that the code at an address belongs to.
    pub fn function_at(&mut self, address: u64) -> Option<&DescribedFunction> {
        let unit = self.unit_at(address)?;
        self.described.get(&unit)?.at(address)
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
            let read = self.read_of(&borrow(sections), unit);
            self.lines.extend(read.lines);
            self.inlined.insert(unit, read.inlined);
            if !read.described.pieces.is_empty() {
                self.described.insert(unit, read.described);
            }
        }
        Some(unit)
    }

    /// Estimated memory that this takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let (code, lines) = (self.code.len() * 24, self.lines.capacity() * 17);
        let inlined = self.inlined.values().map(|code| code.pieces.len());
        let inlined = inlined.sum::<usize>() * (size_of::<InlinedLine>() + 8);
        let described: usize = self.described.values().map(Described::bytes).sum();
        self.bytes + (code + lines + inlined + described + self.units.len() * 8) as u64
    }

    fn read_of(&self, dwarf: &Dwarf<Bytes<'_>>, index: usize) -> Read {
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
        let mut inlined = InlinedCode::of(reader.inlined_lines().collect());
        if let Some(unit) = self.unit(dwarf, index) {
            inlined.place_namesakes(reader.namesakes(), &unit);
        }
        Read {
            lines: reader.lines().collect(),
            inlined,
            described: Described::of(&reader),
        }
    }

    fn unit<'d>(&self, dwarf: &Dwarf<Bytes<'d>>, index: usize) -> Option<Unit<Bytes<'d>>> {
        let offset = DebugInfoOffset(*self.units.get(index)?);
        let header = dwarf.unit_header(offset).ok()?;
        let is_small = header.length_including_self() <= MAX_UNIT_BYTES;
        is_small.then(|| dwarf.unit(header).ok()).flatten()
    }
}

/// Of the abbreviations of a unit that of its root, which says where its code is: reading all of them, of all units, takes
/// longer than all else here.
fn root_abbreviation(
    dwarf: &Dwarf<Bytes<'_>>,
    header: &UnitHeader<Bytes<'_>>,
) -> Option<Abbreviations> {
    let mut root = *dwarf.debug_info.reader();
    root.skip(header.debug_info_offset()?.0 + header.size_of_header())
        .ok()?;
    let code = root.read_uleb128().ok()?;
    let mut table = *dwarf.debug_abbrev.reader();
    table.skip(header.debug_abbrev_offset().0).ok()?;
    loop {
        let begin = table;
        match table.read_uleb128().ok()? {
            0 => return None,
            this => {
                skip_abbreviation(&mut table)?;
                if this == code {
                    let len = begin.len() - table.len();
                    let alone = [begin.slice().get(..len)?, &[0]].concat();
                    let alone = DebugAbbrev::new(&alone, NativeEndian);
                    return alone.abbreviations(DebugAbbrevOffset(0)).ok();
                }
            }
        }
    }
}

/// Goes over what follows the code of an abbreviation.
fn skip_abbreviation(table: &mut Bytes<'_>) -> Option<()> {
    table.skip_leb128().ok()?;
    table.skip(1).ok()?;
    loop {
        let (attribute, form) = (table.read_uleb128().ok()?, table.read_uleb128().ok()?);
        if (attribute, form) == (0, 0) {
            return Some(());
        }
        if form == u64::from(gimli::DW_FORM_implicit_const.0) {
            table.skip_leb128().ok()?;
        }
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
        assert_eq!(DeclaredLines::default().function_at(1), None);
    }
}
