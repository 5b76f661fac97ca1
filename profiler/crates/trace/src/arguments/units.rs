//! Which entry of the debug information describes the function at an address.
//!
//! Sections of DWARF 2 to 5 and an ELF virtual address -> unit and entry. Nothing is read before it
//! is needed: first `.debug_aranges`; if that does not know the address, the first entry of every
//! unit; then all entries of the one unit, once. Source: the DWARF 5 standard, chapters 6 and 7.
//!
//! What does not belong here: what the entries say (`function`, `describe`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gimli::read::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugTypes, DebuggingInformationEntry, Dwarf,
    EndianSlice, EntriesRaw, Section, Unit, UnitHeader,
};
use gimli::{
    DebugAbbrevOffset, DebugAddrBase, DebugInfoOffset, DebugLocListsBase, DebugRngListsBase,
    DebugStrOffsetsBase, DwAt, DwarfFileType, LittleEndian, UnitOffset, UnitType, constants,
};
use rustc_hash::FxHashMap;

/// Bytes of a section.
pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
/// An entry.
pub(super) type Entry<'d> = DebuggingInformationEntry<Slice<'d>>;

/// Most units that are taken up.
const MAX_UNITS: usize = 1 << 20;
/// Most address ranges of all units.
const MAX_RANGES: usize = 1 << 22;
/// Most bytes of one table of abbreviations.
const MAX_ABBREVIATION_BYTES: usize = 1 << 20;
/// Most tables of abbreviations that are kept.
const MAX_KEPT_TABLES: usize = 4096;
/// Most units whose ranges hold an address that are searched for it.
const MAX_CANDIDATES: usize = 4;
/// Most functions of all units that are remembered.
const MAX_FUNCTIONS: usize = 1 << 22;
/// Most time that all searching in one file may take. Files that need more are made for that.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Entries between two looks at the clock.
const ENTRIES_PER_LOOK: u32 = 1 << 14;

/// Where an entry is: its unit's start in its section, and the entry's start in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    /// Start of the unit.
    pub(super) unit: UnitAt,
    /// Start of the entry, from the unit's.
    pub(super) entry: usize,
}

/// Where a unit starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct UnitAt {
    /// In `.debug_types` rather than in `.debug_info`.
    pub(super) types: bool,
    /// Its offset in the section.
    pub(super) offset: usize,
}

/// What has been found out about the units of a file.
#[derive(Default)]
pub(super) struct Index {
    ranges: Vec<Range>,
    aranges_read: bool,
    roots_read: bool,
    headers: Option<Headers>,
    functions: FxHashMap<usize, Box<[(u64, u32)]>>,
    functions_kept: usize,
    tables: RefCell<FxHashMap<usize, Arc<Abbreviations>>>,
    spent: Cell<Duration>,
}

struct Range {
    begin: u64,
    end: u64,
    unit: usize,
}

#[derive(Default)]
struct Headers {
    /// Starts of the units of `.debug_info`, ascending.
    starts: Vec<usize>,
    /// Units that hold one type each, by their signature.
    types: FxHashMap<u64, (UnitAt, usize)>,
}

impl Index {
    /// The entries of functions that start at `address`, the likeliest units first.
    pub(super) fn find(&mut self, dwarf: &Dwarf<Slice<'_>>, address: u64) -> Vec<At> {
        let began = Instant::now();
        if !self.aranges_read {
            self.aranges_read = true;
            self.read_aranges(dwarf);
        }
        let mut found = self.find_in_ranges(dwarf, address);
        if found.is_empty() && !self.roots_read {
            self.roots_read = true;
            self.read_roots(dwarf, began);
            found = self.find_in_ranges(dwarf, address);
        }
        self.spent.set(self.spent.get() + began.elapsed());
        found
    }

    fn late(&self, began: Instant) -> bool {
        self.spent.get() + began.elapsed() > MAX_TIME
    }

    fn read_aranges(&mut self, dwarf: &Dwarf<Slice<'_>>) {
        let mut headers = dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            let unit = header.debug_info_offset().0;
            let mut entries = header.entries();
            while let Ok(Some(entry)) = entries.next() {
                let range = entry.range();
                self.add_range(range.begin, range.end, unit);
            }
        }
        self.ranges.sort_by_key(|range| range.begin);
    }

    fn add_range(&mut self, begin: u64, end: u64, unit: usize) {
        if begin < end && self.ranges.len() < MAX_RANGES {
            self.ranges.push(Range { begin, end, unit });
        }
    }

    fn read_roots(&mut self, dwarf: &Dwarf<Slice<'_>>, began: Instant) {
        self.ranges.clear();
        let mut headers = dwarf.units();
        let mut left = MAX_UNITS;
        while let Ok(Some(header)) = headers.next() {
            left = left.saturating_sub(1);
            if left == 0 || self.late(began) {
                break;
            }
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            let Some(unit) = self.open(dwarf, header) else {
                continue;
            };
            let Some(root) = entry_at(&unit, unit.header.root_offset()) else {
                continue;
            };
            for (begin, end) in ranges_of(dwarf, &unit, &root, MAX_RANGES) {
                self.add_range(begin, end, offset.0);
            }
        }
        self.ranges.sort_by_key(|range| range.begin);
    }

    fn find_in_ranges(&mut self, dwarf: &Dwarf<Slice<'_>>, address: u64) -> Vec<At> {
        let after = self.ranges.partition_point(|range| range.begin <= address);
        // Ranges of a linked file don't overlap, but for copies of one function that the linker
        // has folded.
        let near = self.ranges[..after].iter().rev().take(4 * MAX_CANDIDATES);
        let mut units: Vec<usize> = near
            .filter(|range| address < range.end)
            .map(|range| range.unit)
            .collect();
        units.dedup();
        units.truncate(MAX_CANDIDATES);
        let mut found = Vec::new();
        for unit in units {
            let functions = self.functions_of(dwarf, unit);
            let start = functions.partition_point(|&(begin, _)| begin < address);
            let same = functions[start..]
                .iter()
                .take_while(|(begin, _)| *begin == address);
            let at = UnitAt {
                types: false,
                offset: unit,
            };
            found.extend(same.take(8).map(|&(_, entry)| At {
                unit: at,
                entry: entry as usize,
            }));
        }
        found
    }

    fn functions_of(&mut self, dwarf: &Dwarf<Slice<'_>>, unit: usize) -> &[(u64, u32)] {
        if !self.functions.contains_key(&unit) {
            let functions = self.read_functions(dwarf, unit).into_boxed_slice();
            self.functions_kept += functions.len();
            self.functions.insert(unit, functions);
        }
        self.functions.get(&unit).map_or(&[], |functions| functions)
    }

    fn read_functions(&self, dwarf: &Dwarf<Slice<'_>>, unit: usize) -> Vec<(u64, u32)> {
        let mut functions = Vec::new();
        let header = dwarf.unit_header(DebugInfoOffset(unit));
        let Some(unit) = header.ok().and_then(|header| self.open(dwarf, header)) else {
            return functions;
        };
        let Ok(mut entries) = unit.entries_raw(None) else {
            return functions;
        };
        let began = Instant::now();
        let mut entry = DebuggingInformationEntry::null();
        let mut read = 0_u32;
        while !entries.is_empty() && self.functions_kept + functions.len() < MAX_FUNCTIONS {
            read = read.wrapping_add(1);
            if read.is_multiple_of(ENTRIES_PER_LOOK) && self.late(began) {
                break;
            }
            let Ok(offset) = u32::try_from(entries.next_offset().0) else {
                break;
            };
            match next_function(&mut entries, &mut entry) {
                Ok(true) => functions.extend(start_of(dwarf, &unit, &entry).map(|at| (at, offset))),
                Ok(false) => {}
                // What has been read before the damage is good.
                Err(_) => break,
            }
        }
        functions.sort_unstable();
        functions
    }

    /// Reads the headers of all units, to find those that others refer to.
    pub(super) fn read_headers(&mut self, dwarf: &Dwarf<Slice<'_>>) {
        if self.headers.is_some() {
            return;
        }
        let mut read = Headers::default();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            read.starts.push(offset.0);
            read.add_type(
                &header,
                UnitAt {
                    types: false,
                    offset: offset.0,
                },
            );
            if read.starts.len() >= MAX_UNITS {
                break;
            }
        }
        let mut units = dwarf.type_units();
        while let Ok(Some(header)) = units.next() {
            if let Some(offset) = header.debug_types_offset() {
                read.add_type(
                    &header,
                    UnitAt {
                        types: true,
                        offset: offset.0,
                    },
                );
            }
            if read.types.len() >= MAX_UNITS {
                break;
            }
        }
        self.headers = Some(read);
    }

    /// The unit of `.debug_info` that an offset in the section falls into.
    pub(super) fn unit_around(&self, offset: usize) -> Option<At> {
        let starts = &self.headers.as_ref()?.starts;
        let after = starts.partition_point(|&start| start <= offset);
        let start = *starts.get(after.checked_sub(1)?)?;
        let unit = UnitAt {
            types: false,
            offset: start,
        };
        Some(At {
            unit,
            entry: offset - start,
        })
    }

    /// The entry of the type with a signature.
    pub(super) fn type_of(&self, signature: u64) -> Option<At> {
        let (unit, entry) = *self.headers.as_ref()?.types.get(&signature)?;
        Some(At { unit, entry })
    }

    /// Opens the unit that starts there.
    pub(super) fn unit<'d>(
        &self,
        dwarf: &Dwarf<Slice<'d>>,
        at: UnitAt,
    ) -> Option<Rc<Unit<Slice<'d>>>> {
        let header = if at.types {
            // As if the section began there: there is no other way to a unit of this section.
            let section = dwarf.debug_types.reader().slice().get(at.offset..)?;
            DebugTypes::new(section, LittleEndian)
                .units()
                .next()
                .ok()??
        } else {
            dwarf.unit_header(DebugInfoOffset(at.offset)).ok()?
        };
        self.open(dwarf, header).map(Rc::new)
    }

    /// A unit without its line program, which may be large and is of no use here.
    fn open<'d>(
        &self,
        dwarf: &Dwarf<Slice<'d>>,
        header: UnitHeader<Slice<'d>>,
    ) -> Option<Unit<Slice<'d>>> {
        let encoding = header.encoding();
        let file_type = DwarfFileType::Main;
        let mut unit = Unit {
            abbreviations: self.abbreviations(dwarf, header.debug_abbrev_offset())?,
            name: None,
            comp_dir: None,
            low_pc: 0,
            str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(
                encoding, file_type,
            ),
            addr_base: DebugAddrBase(0),
            loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, file_type),
            rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, file_type),
            line_program: None,
            dwo_id: None,
            header,
        };
        let root = entry_at(&unit, unit.header.root_offset())?;
        for attribute in root.attrs() {
            match attribute.value() {
                AttributeValue::DebugStrOffsetsBase(base) => unit.str_offsets_base = base,
                AttributeValue::DebugAddrBase(base) => unit.addr_base = base,
                AttributeValue::DebugLocListsBase(base) => unit.loclists_base = base,
                AttributeValue::DebugRngListsBase(base) => unit.rnglists_base = base,
                _ => {}
            }
        }
        unit.low_pc = address_of(dwarf, &unit, &root, constants::DW_AT_low_pc).unwrap_or(0);
        Some(unit)
    }

    fn abbreviations(
        &self,
        dwarf: &Dwarf<Slice<'_>>,
        at: DebugAbbrevOffset,
    ) -> Option<Arc<Abbreviations>> {
        if let Some(table) = self.tables.borrow().get(&at.0) {
            return Some(table.clone());
        }
        let section = dwarf.debug_abbrev.reader().slice().get(at.0..)?;
        let bounded = &section[..section.len().min(MAX_ABBREVIATION_BYTES)];
        let table = DebugAbbrev::new(bounded, LittleEndian)
            .abbreviations(DebugAbbrevOffset(0))
            .ok()?;
        let table = Arc::new(table);
        let mut tables = self.tables.borrow_mut();
        if tables.len() >= MAX_KEPT_TABLES {
            tables.clear();
        }
        tables.insert(at.0, table.clone());
        Some(table)
    }
}

impl Headers {
    fn add_type(&mut self, header: &UnitHeader<Slice<'_>>, unit: UnitAt) {
        if let UnitType::Type {
            type_signature,
            type_offset,
        } = header.type_()
        {
            self.types.insert(type_signature.0, (unit, type_offset.0));
        }
    }
}

/// Reads the next entry whole if it is a function, else passes over it.
fn next_function<'d>(
    entries: &mut EntriesRaw<'_, Slice<'d>>,
    entry: &mut Entry<'d>,
) -> gimli::Result<bool> {
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Ok(false);
    };
    if abbreviation.tag() != constants::DW_TAG_subprogram {
        entries.skip_attributes(abbreviation.attributes())?;
        return Ok(false);
    }
    entries.read_attributes(abbreviation.attributes(), &mut entry.attrs)?;
    Ok(true)
}

/// Where the code of a function starts.
fn start_of(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, entry: &Entry<'_>) -> Option<u64> {
    address_of(dwarf, unit, entry, constants::DW_AT_low_pc)
        .or_else(|| address_of(dwarf, unit, entry, constants::DW_AT_entry_pc))
        .or_else(|| {
            ranges_of(dwarf, unit, entry, 1)
                .first()
                .map(|&(begin, _)| begin)
        })
}

/// The address that an attribute gives.
pub(super) fn address_of(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    entry: &Entry<'_>,
    attribute: DwAt,
) -> Option<u64> {
    dwarf
        .attr_address(unit, entry.attr_value(attribute)?)
        .ok()?
}

/// The ranges of addresses of an entry, at most so many.
fn ranges_of(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    entry: &Entry<'_>,
    most: usize,
) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    if let Some(value) = entry.attr_value(constants::DW_AT_ranges)
        && let Ok(Some(mut ranges)) = dwarf.attr_ranges(unit, value)
    {
        while found.len() < most
            && let Ok(Some(range)) = ranges.next()
        {
            found.push((range.begin, range.end));
        }
        return found;
    }
    let begin = address_of(dwarf, unit, entry, constants::DW_AT_low_pc);
    let end = match entry.attr_value(constants::DW_AT_high_pc) {
        Some(AttributeValue::Udata(len)) => begin.and_then(|begin| begin.checked_add(len)),
        _ => address_of(dwarf, unit, entry, constants::DW_AT_high_pc),
    };
    found.extend(begin.zip(end));
    found
}

/// The entry at an offset of a unit.
pub(super) fn entry_at<'d>(unit: &Unit<Slice<'d>>, at: UnitOffset) -> Option<Entry<'d>> {
    unit.entry(at).ok()
}
