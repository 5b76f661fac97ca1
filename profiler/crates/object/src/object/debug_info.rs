//! What debug information says of functions: where they were written, and which have no code.
//!
//! DWARF sections -> [`DebugInfo`]: source files by address, functions that no symbol tells of, and
//! how often functions were inlined. Addresses are ELF virtual addresses. All of it is a target's
//! own: bounded in size and time; what can't be read is left out. Source: DWARF 5, chapters 2.17,
//! 3.3 and 6.2.
//!
//! What does not belong here: parameters and types, lines (the symbolizer's).

use std::borrow::Cow;
use std::time::{Duration, Instant};

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, Dwarf, EndianSlice, NativeEndian, SectionId, Unit,
};
use profiler_model::text::TextMap;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Declaration, Object};
use crate::demangle::{MAX_NAME_BYTES, demangle};
use crate::{Function, FunctionKind, Language};

/// How long the debug information of one object may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Most bytes of all its sections, when unpacked.
const MAX_BYTES: u64 = 1 << 30;
/// Most functions of debug information that are remembered.
const MAX_FUNCTIONS: usize = 4 << 20;
/// Most bytes of names and paths that are kept.
const MAX_TEXT_BYTES: usize = 256 << 20;
/// Most references from a function's entry to where its name is.
const MAX_HOPS: usize = 4;

/// Most pieces of inlined code that are remembered of the units that are read together.
const MAX_PLACES: usize = 1 << 18;

type Bytes<'a> = EndianSlice<'a, NativeEndian>;
/// What an entry says of its code: first address, end, ranges.
type Extent<'a> = (
    Option<u64>,
    Option<AttributeValue<Bytes<'a>>>,
    Option<AttributeValue<Bytes<'a>>>,
);

/// What debug information says of an object's functions.
#[derive(Debug, Default)]
pub(super) struct DebugInfo {
    paths: Vec<Box<str>>,
    /// Path of the source file, by the address of the function.
    sources: FxHashMap<u64, u32>,
    /// The line that it is declared at, by the same.
    lines: FxHashMap<u64, u32>,
    /// Raw name, address and size of functions with code.
    named: Vec<(Box<str>, u64, u64)>,
    /// How often functions were inlined, by raw name.
    inlined: TextMap<Box<str>, u32>,
    /// Readable names of functions that have no code, sorted.
    pub(super) inlined_only: Vec<Box<str>>,
    /// Whether not all was read.
    cut: bool,
}

impl DebugInfo {
    pub(super) fn read(object: &Object) -> DebugInfo {
        let mut info = DebugInfo::default();
        let mut left = MAX_BYTES;
        let Some(sections) = sections(object, &mut left) else {
            return info;
        };
        let mut dwarf = sections.borrow(|section| EndianSlice::new(section, NativeEndian));
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut reader = Reader::new(&dwarf);
        reader.read();
        reader.finish(&mut info);
        if info.cut {
            log::warn!("{}: not all debug information was read", object.path());
        }
        info
    }

    /// Where functions are declared, also those that are only inlined.
    pub(super) fn declarations(object: &Object) -> Vec<Declaration> {
        let mut left = MAX_BYTES;
        let Some(sections) = sections(object, &mut left) else {
            return Vec::new();
        };
        let mut dwarf = sections.borrow(|section| EndianSlice::new(section, NativeEndian));
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut reader = Reader::new(&dwarf);
        reader.read();
        reader.declarations()
    }

    /// The file that a function was written in.
    pub(super) fn source(&self, function: &Function) -> Option<&str> {
        let path = self.sources.get(&function.address)?;
        self.paths.get(*path as usize).map(|path| &**path)
    }

    /// The line that a function is declared at.
    pub(super) fn line(&self, function: &Function) -> Option<u32> {
        self.lines.get(&function.address).copied()
    }

    /// How often a function was inlined, under any of its names.
    pub(super) fn inlined(&self, function: &Function) -> u32 {
        let raw = function.linkage_name.as_ref().unwrap_or(&function.name);
        let names = std::iter::once(raw).chain(&function.aliases);
        names.filter_map(|name| self.inlined.get(name)).sum()
    }

    /// Functions at addresses that `known` does not hold.
    pub(super) fn unknown(&self, object: &Object, known: &[Function]) -> Vec<Function> {
        let known: FxHashSet<u64> = known.iter().map(|function| function.address).collect();
        let mut found = FxHashSet::default();
        let unknown = self.named.iter();
        unknown
            .filter(|(_, address, _)| !known.contains(address) && found.insert(*address))
            .filter_map(|(raw, address, size)| {
                let readable = demangle(raw).filter(|(readable, _)| **readable != **raw);
                let (name, linkage_name, language) = match readable {
                    Some((readable, language)) => (readable.into(), Some(raw.clone()), language),
                    None => (raw.clone(), None, Language::C),
                };
                Some(Function {
                    name,
                    linkage_name,
                    aliases: Vec::new(),
                    offset: object.offset_of(*address)?,
                    address: *address,
                    size: *size,
                    source: None,
                    line: 0,
                    kind: FunctionKind::Function,
                    language: if object.is_go() {
                        Language::Go
                    } else {
                        language
                    },
                })
            })
            .collect()
    }
}

/// The sections that are read.
fn sections(object: &Object, left: &mut u64) -> Option<gimli::DwarfSections<Vec<u8>>> {
    let load = |id: SectionId| -> Result<Vec<u8>, gimli::Error> {
        let needed = !matches!(
            id,
            SectionId::DebugLoc | SectionId::DebugLocLists | SectionId::DebugAranges
        );
        let bytes = needed.then(|| object.section_within(id.name(), *left));
        let bytes = bytes.flatten().unwrap_or_default();
        *left -= bytes.len() as u64;
        Ok(bytes)
    };
    gimli::DwarfSections::load(load).ok()
}

/// An entry of a function, by its offset in the section.
#[derive(Default)]
struct Entry<'a> {
    name: Option<Bytes<'a>>,
    linkage_name: Option<Bytes<'a>>,
    path: Option<u32>,
    /// The entry that says more of the same function.
    origin: Option<usize>,
    inlined: bool,
    /// Line of its name; 0: not said here.
    line: u32,
    /// It says that there is such a function, elsewhere.
    declares: bool,
    /// Where in a section of texts its name is, of one that has no linkage name.
    name_at: Option<usize>,
}

fn attribute_line(value: AttributeValue<Bytes<'_>>) -> u32 {
    let line = value.udata_value().and_then(|line| line.try_into().ok());
    line.unwrap_or(0)
}

/// The lower of two lines; 0: not known.
pub(super) fn lower(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, line) | (line, 0) => line,
        (a, b) => a.min(b),
    }
}

/// Where a text is in the section that texts of its kind are in; equal ones of a unit are in one place.
fn place_of_text(value: AttributeValue<Bytes<'_>>) -> Option<usize> {
    match value {
        AttributeValue::DebugStrRef(offset) => Some(offset.0),
        AttributeValue::DebugStrOffsetsIndex(index) => Some(index.0),
        _ => None,
    }
}

pub(super) struct Reader<'a> {
    dwarf: &'a Dwarf<Bytes<'a>>,
    paths: TextMap<Box<str>, u32>,
    text_bytes: usize,
    entries: FxHashMap<usize, Entry<'a>>,
    /// Entry, address and length of what has code.
    code: Vec<(usize, u64, u64)>,
    /// How often each entry was inlined.
    inlined: FxHashMap<usize, u32>,
    /// Where that was, if it is to be known.
    places: Option<Vec<Inlined>>,
    /// Pieces of functions, of which GHC describes the first one alone as the function's; if they are to be known.
    pieces: Option<Vec<Piece>>,
    cut: bool,
}

/// A piece of a function's code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) begin: u64,
    pub(super) end: u64,
    /// The function's entry.
    pub(super) function: usize,
}

/// Code that was inlined.
#[derive(Clone, Copy, Debug)]
struct Inlined {
    begin: u64,
    end: u64,
    /// How deep its entry is nested in others.
    depth: u16,
    /// The entry of the function that was inlined.
    origin: usize,
    /// That of the inlined function that it was inlined into, and the line there.
    into: Option<(usize, u32)>,
}

/// A piece of inlined code, and where its function is declared.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedLine {
    pub(super) begin: u64,
    /// The address behind the last.
    pub(super) end: u64,
    /// How deep its entry is nested in others.
    pub(super) depth: u16,
    /// The entry of the function.
    pub(super) origin: usize,
    /// The line that it is declared at; 0: not known.
    pub(super) line: u32,
}

impl<'a> Reader<'a> {
    /// One that knows where functions were inlined, and of which pieces those of GHC are.
    pub(super) fn with_places(dwarf: &'a Dwarf<Bytes<'a>>) -> Reader<'a> {
        Reader {
            places: Some(Vec::new()),
            pieces: Some(Vec::new()),
            ..Reader::new(dwarf)
        }
    }

    pub(super) fn new(dwarf: &'a Dwarf<Bytes<'a>>) -> Reader<'a> {
        Reader {
            dwarf,
            paths: TextMap::default(),
            text_bytes: 0,
            entries: FxHashMap::default(),
            code: Vec::new(),
            inlined: FxHashMap::default(),
            places: None,
            pieces: None,
            cut: false,
        }
    }

    fn read(&mut self) {
        let started = Instant::now();
        let mut units = self.dwarf.units();
        while let Ok(Some(header)) = units.next() {
            if started.elapsed() > DEADLINE || self.entries.len() > MAX_FUNCTIONS {
                self.cut = true;
                return;
            }
            let unit = self.dwarf.unit(header);
            if let Err(error) = unit.and_then(|unit| self.read_unit(&unit)) {
                log::debug!("a unit of debug information: {error}");
            }
        }
    }

    pub(super) fn read_unit(&mut self, unit: &Unit<Bytes<'a>>) -> Result<(), gimli::Error> {
        let Some(base) = unit.header.debug_info_offset() else {
            return Ok(());
        };
        let mut paths: FxHashMap<u64, u32> = FxHashMap::default();
        let mut entries = unit.entries_raw(None)?;
        // The class around an entry: how deep its own is, and its line.
        let mut class = (0, 0);
        // The functions around an entry, and how deep theirs are.
        let mut around: Vec<(isize, usize)> = Vec::new();
        let mut is_haskell = false;
        // The same of what is inlined.
        let mut inlined_into: Vec<(isize, usize)> = Vec::new();
        while !entries.is_empty() {
            let offset = base.0 + entries.next_offset().0;
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while inlined_into
                .last()
                .is_some_and(|&(around, _)| around >= depth)
            {
                inlined_into.pop();
            }
            let function = match abbreviation.tag() {
                gimli::DW_TAG_subprogram => true,
                gimli::DW_TAG_inlined_subroutine => false,
                gimli::DW_TAG_compile_unit if self.pieces.is_some() => {
                    for &specification in abbreviation.attributes() {
                        let value = entries.read_attribute(specification)?.value();
                        is_haskell |= value == AttributeValue::Language(gimli::DW_LANG_Haskell);
                    }
                    continue;
                }
                gimli::DW_TAG_lexical_block if is_haskell => {
                    let (mut low, mut high) = (None, None);
                    for &specification in abbreviation.attributes() {
                        let attribute = entries.read_attribute(specification)?;
                        let value = attribute.value();
                        match attribute.name() {
                            gimli::DW_AT_low_pc => low = self.dwarf.attr_address(unit, value)?,
                            gimli::DW_AT_high_pc => high = Some(value),
                            _ => {}
                        }
                    }
                    around.retain(|&(around, _)| around < depth);
                    if let (Some(low), Some(high), Some(&(_, function))) =
                        (low, high, around.last())
                    {
                        let len = self.len(unit, low, high)?;
                        self.piece(function, low, len);
                    }
                    continue;
                }
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type
                    if self.places.is_some() =>
                {
                    class = (depth, 0);
                    for &specification in abbreviation.attributes() {
                        let attribute = entries.read_attribute(specification)?;
                        if attribute.name() == gimli::DW_AT_decl_line {
                            class.1 = attribute_line(attribute.value());
                        }
                    }
                    continue;
                }
                _ => {
                    entries.skip_attributes(abbreviation.attributes())?;
                    continue;
                }
            };
            let mut entry = Entry::default();
            let (mut is_whole, mut call_line) = (false, 0);
            let (mut low, mut high, mut ranges) = (None, None, None);
            for &specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(specification)?;
                let value = attribute.value();
                match attribute.name() {
                    gimli::DW_AT_name => {
                        entry.name = self.dwarf.attr_string(unit, value).ok();
                        entry.name_at = place_of_text(value);
                    }
                    gimli::DW_AT_call_line => call_line = attribute_line(value),
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                        is_whole = true;
                        entry.linkage_name = self.dwarf.attr_string(unit, value).ok();
                    }
                    gimli::DW_AT_decl_file => {
                        let index = match value {
                            AttributeValue::FileIndex(index) => Some(index),
                            value => value.udata_value(),
                        };
                        entry.path = index.and_then(|index| self.path(unit, index, &mut paths));
                    }
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                        entry.origin = match value {
                            AttributeValue::UnitRef(offset) => base.0.checked_add(offset.0),
                            AttributeValue::DebugInfoRef(offset) => Some(offset.0),
                            _ => None,
                        };
                    }
                    gimli::DW_AT_inline => {
                        entry.inlined = matches!(
                            value,
                            AttributeValue::Inline(
                                gimli::DW_INL_inlined | gimli::DW_INL_declared_inlined
                            )
                        );
                    }
                    gimli::DW_AT_decl_line => {
                        entry.line = attribute_line(value);
                    }
                    gimli::DW_AT_declaration => {
                        entry.declares = value == AttributeValue::Flag(true);
                    }
                    gimli::DW_AT_low_pc => low = self.dwarf.attr_address(unit, value)?,
                    gimli::DW_AT_high_pc => high = Some(value),
                    gimli::DW_AT_ranges => ranges = Some(value),
                    _ => {}
                }
            }
            if !function {
                if let Some(origin) = entry.origin {
                    *self.inlined.entry(origin).or_default() += 1;
                    let into = inlined_into.last().map(|&(_, into)| (into, call_line));
                    inlined_into.push((depth, origin));
                    let depth = depth.try_into().unwrap_or(u16::MAX);
                    self.place(unit, (low, high, ranges), (depth, origin, into))?;
                }
                continue;
            }
            entry.name_at = entry.name_at.filter(|_| !is_whole);
            // The function of a lambda of GCC has no line, its class has.
            if entry.line == 0 && entry.origin.is_none() && depth == class.0 + 1 {
                entry.line = class.1;
            }
            if let Some(value) = ranges {
                // The function begins in the first range; others are its cold parts.
                if let Some(mut ranges) = self.dwarf.attr_ranges(unit, value)?
                    && let Some(first) = ranges.next()?
                {
                    let len = first.end.saturating_sub(first.begin);
                    self.code.push((offset, first.begin, len));
                }
            } else if let (Some(low), Some(high)) = (low, high) {
                let len = self.len(unit, low, high)?;
                self.code.push((offset, low, len));
                if is_haskell {
                    around.retain(|&(around, _)| around < depth);
                    around.push((depth, offset));
                    self.piece(offset, low, len);
                }
            }
            self.entries.insert(offset, entry);
        }
        Ok(())
    }

    /// Length of code by its first address and what is said of its end.
    fn len(
        &self,
        unit: &Unit<Bytes<'a>>,
        low: u64,
        high: AttributeValue<Bytes<'a>>,
    ) -> Result<u64, gimli::Error> {
        Ok(match self.dwarf.attr_address(unit, high)? {
            Some(high) => high.saturating_sub(low),
            None => high.udata_value().unwrap_or(0),
        })
    }

    /// Remembers a piece of a function, if that is to be known.
    fn piece(&mut self, function: usize, begin: u64, len: u64) {
        let pieces = self.pieces.as_mut();
        if let Some(pieces) = pieces.filter(|pieces| len > 0 && pieces.len() < MAX_PLACES) {
            let end = begin.saturating_add(len);
            pieces.push(Piece {
                begin,
                end,
                function,
            });
        }
    }

    /// The pieces of functions of GHC.
    pub(super) fn pieces(&self) -> &[Piece] {
        self.pieces.as_deref().unwrap_or_default()
    }

    /// What the source calls the function of an entry, and what the compiler calls it.
    pub(super) fn names(&self, offset: usize) -> (Option<Cow<'a, str>>, Option<Cow<'a, str>>) {
        let entry = self.entries.get(&offset);
        let text = |name: Option<Bytes<'a>>| {
            let name = name.filter(|name| name.len() <= MAX_NAME_BYTES)?;
            Some(name.to_string_lossy())
        };
        let of = |get: fn(&Entry<'a>) -> Option<Bytes<'a>>| text(entry.and_then(get));
        (of(|entry| entry.name), of(|entry| entry.linkage_name))
    }

    /// Remembers where a function was inlined, if that is to be known.
    fn place(
        &mut self,
        unit: &Unit<Bytes<'a>>,
        (low, high, ranges): Extent<'a>,
        (depth, origin, into): (u16, usize, Option<(usize, u32)>),
    ) -> Result<(), gimli::Error> {
        let Some(mut places) = self.places.take() else {
            return Ok(());
        };
        let mut add = |begin: u64, end: u64| {
            if begin < end && places.len() < MAX_PLACES {
                places.push(Inlined {
                    begin,
                    end,
                    depth,
                    origin,
                    into,
                });
            }
        };
        let mut read = || -> Result<(), gimli::Error> {
            if let Some(value) = ranges {
                let mut ranges = self.dwarf.attr_ranges(unit, value)?;
                while let Some(range) = ranges.as_mut().map(|it| it.next()).transpose()?.flatten() {
                    add(range.begin, range.end);
                }
            } else if let (Some(low), Some(high)) = (low, high) {
                add(low, low.saturating_add(self.len(unit, low, high)?));
            }
            Ok(())
        };
        let result = read();
        self.places = Some(places);
        result
    }

    /// The number of a file of a unit.
    fn path(
        &mut self,
        unit: &Unit<Bytes<'a>>,
        index: u64,
        known: &mut FxHashMap<u64, u32>,
    ) -> Option<u32> {
        if let Some(&path) = known.get(&index) {
            return Some(path);
        }
        let header = unit.line_program.as_ref()?.header();
        let file = header.file(index)?;
        let text = |value| {
            let text = self.dwarf.attr_string(unit, value).ok()?;
            (text.len() <= MAX_NAME_BYTES).then(|| text.to_string_lossy())
        };
        let mut path = text(file.path_name())?.into_owned();
        let directory = file.directory(header).and_then(text);
        let of_unit = unit.comp_dir.map(|path| path.to_string_lossy());
        for directory in [directory, of_unit].into_iter().flatten() {
            if path.starts_with('/') {
                break;
            }
            path = format!("{directory}/{path}");
        }
        let next = u32::try_from(self.paths.len()).ok()?;
        self.text_bytes += path.len();
        if self.text_bytes > MAX_TEXT_BYTES {
            self.cut = true;
            return None;
        }
        let path = *self.paths.entry(path.into()).or_insert(next);
        known.insert(index, path);
        Some(path)
    }

    /// An entry and those that it refers to.
    fn chain(&self, offset: usize) -> impl Iterator<Item = (usize, &Entry<'a>)> {
        let first = self.entries.get(&offset).map(|entry| (offset, entry));
        let next = |&(_, entry): &(usize, &Entry<'a>)| {
            let origin = entry.origin?;
            Some((origin, self.entries.get(&origin)?))
        };
        std::iter::successors(first, next).take(MAX_HOPS)
    }

    /// The name that the symbol table would have.
    fn name(&self, offset: usize) -> Option<Cow<'a, str>> {
        let linkage = self.chain(offset).find_map(|(_, entry)| entry.linkage_name);
        let name = linkage.or_else(|| self.chain(offset).find_map(|(_, entry)| entry.name))?;
        (name.len() <= MAX_NAME_BYTES).then(|| name.to_string_lossy())
    }

    /// Where entries are that say where functions with code are declared, of units that were not read.
    pub(super) fn missing(&self) -> Vec<usize> {
        let origin = |offset: usize| {
            let mut origin = None;
            for (_, entry) in self.chain(offset) {
                origin = entry.origin.filter(|_| entry.line == 0);
            }
            origin.filter(|origin| !self.entries.contains_key(origin))
        };
        let code = self.code.iter().map(|&(offset, _, _)| offset);
        let mut missing: Vec<usize> = code.filter_map(origin).collect();
        for &at in self.places.iter().flatten().map(|inlined| &inlined.origin) {
            match self.entries.contains_key(&at) {
                true => missing.extend(origin(at)),
                false => missing.push(at),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Where functions were inlined.
    pub(super) fn inlined_lines(&self) -> impl Iterator<Item = InlinedLine> {
        let places = self.places.iter().flatten();
        places.map(|it| InlinedLine {
            begin: it.begin,
            end: it.end,
            depth: it.depth,
            origin: it.origin,
            line: self.line(it.origin).unwrap_or(0),
        })
    }

    /// Inlined functions of one name of which nothing says where they are declared, as debug information of lines alone has
    /// lambdas and closures: their entries, each with the lowest line that something was inlined at, 0 if nothing was.
    pub(super) fn namesakes(&self) -> FxHashMap<usize, u32> {
        let places = self.places.as_deref().unwrap_or_default();
        let mut by_name: FxHashMap<usize, Option<usize>> = FxHashMap::default();
        let mut lowest: FxHashMap<usize, u32> = FxHashMap::default();
        for it in places {
            let entry = self.entries.get(&it.origin);
            let Some(name) = entry.and_then(|entry| entry.name_at) else {
                continue;
            };
            if self.line(it.origin).is_none() {
                // None: there are several.
                let of_name = by_name.entry(name).or_insert(Some(it.origin));
                *of_name = of_name.filter(|&other| other == it.origin);
                lowest.insert(it.origin, 0);
            }
        }
        lowest.retain(|origin, _| {
            let name = self.entries.get(origin).and_then(|entry| entry.name_at);
            name.is_some_and(|name| by_name.get(&name) == Some(&None))
        });
        for (into, line) in places.iter().filter_map(|it| it.into) {
            if let Some(lowest) = lowest.get_mut(&into) {
                *lowest = lower(*lowest, line);
            }
        }
        lowest
    }

    /// The line that an entry is declared at; none that is not said.
    fn line(&self, offset: usize) -> Option<u32> {
        let mut lines = self.chain(offset).map(|(_, entry)| entry.line);
        lines.find(|line| *line > 0)
    }

    /// The addresses of what has code, and the lines that it is declared at.
    pub(super) fn lines(&self) -> impl Iterator<Item = (u64, u32)> {
        let code = self.code.iter();
        code.filter_map(|&(offset, address, _)| Some((address, self.line(offset)?)))
    }

    /// Where functions are declared, in order of their names and addresses.
    fn declarations(&self) -> Vec<Declaration> {
        let addresses: FxHashMap<usize, u64> = (self.code.iter())
            .map(|&(offset, address, _)| (offset, address))
            .collect();
        let mut bytes = 0;
        let mut all = Vec::new();
        for (&offset, entry) in &self.entries {
            let (line, name) = (self.line(offset), self.name(offset));
            let (false, Some(line), Some(name)) = (entry.declares, line, name) else {
                continue;
            };
            bytes += name.len();
            if bytes > MAX_TEXT_BYTES {
                break;
            }
            all.push(Declaration {
                name: name.into(),
                address: addresses.get(&offset).copied(),
                line,
            });
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    fn finish(mut self, info: &mut DebugInfo) {
        let mut bytes = self.text_bytes;
        info.lines = self.lines().collect();
        let mut with_code: FxHashSet<Cow<'a, str>> = FxHashSet::default();
        for &(offset, address, len) in &self.code {
            if let Some(path) = self.chain(offset).find_map(|(_, entry)| entry.path) {
                info.sources.insert(address, path);
            }
            let Some(name) = self.name(offset) else {
                continue;
            };
            bytes += name.len();
            if bytes > MAX_TEXT_BYTES {
                self.cut = true;
                break;
            }
            info.named.push((name.as_ref().into(), address, len));
            with_code.insert(name);
        }
        for (&offset, &count) in &self.inlined {
            if let Some(name) = self.name(offset) {
                let sum = info.inlined.entry(name.as_ref().into()).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        let only = self.entries.iter().filter(|(_, entry)| entry.inlined);
        let only = only.filter_map(|(&offset, _)| self.name(offset));
        let mut only: Vec<Box<str>> = only
            .filter(|name| !with_code.contains(name))
            .map(|name| demangle(&name).map_or_else(|| name.as_ref().into(), |(n, _)| n.into()))
            .collect();
        only.sort_unstable();
        only.dedup();
        info.inlined_only = only;
        info.named.sort_unstable_by_key(|&(_, address, _)| address);
        let mut paths = vec![Box::default(); self.paths.len()];
        for (path, index) in std::mem::take(&mut self.paths) {
            if let Some(slot) = paths.get_mut(index as usize) {
                *slot = path;
            }
        }
        info.paths = paths;
        info.cut = self.cut;
    }
}
