//! Go's table of functions, `.gopclntab`.
//!
//! Its bytes -> functions: where they are, their names, how much stack each instruction has taken, files
//! and lines. Addresses are ELF virtual addresses. Every Go program has this table, stripped or not, for
//! the runtime needs it. Source: the linker's cmd/link/internal/ld/pcln.go and the runtime's symtab.go, in
//! the layouts of Go 1.16, 1.18, and 1.20 and newer. x86-64 only.
//!
//! Everything is untrusted: offsets lead to nothing where they lead outside. What does not belong here:
//! where the table and the code are (`locate`), and what follows for callers of frames (`rows`).

use std::ops::Range;

/// Most functions of a table.
const MAX_FUNCTIONS: u64 = 4 << 20;
/// Longest name of a function or a file.
const MAX_NAME_BYTES: usize = 4096;
/// Longest name of a function of the runtime that is looked for.
const MAX_KNOWN_NAME_BYTES: usize = 64;
/// Most values of one function's table. Of those with more nothing is known: the longest in the programs of
/// Go's own distribution has some thousands.
pub(super) const MAX_VALUES: usize = 1 << 18;
/// Flag of a function that nobody called.
const TOP_FRAME: u8 = 1;
/// Flag of a function that is written in assembly.
const ASSEMBLY: u8 = 4;
/// The table of indexes into a function's inlined calls.
const INLINE_INDEX: u32 = 2;
/// The data about a function's inlined calls.
const INLINE_TREE: u32 = 3;

/// Which layout a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// Go 1.16 and 1.17.
    Go116,
    /// Go 1.18 and 1.19.
    Go118,
    /// Go 1.20 and newer.
    Go120,
}

impl Layout {
    /// The first 8 bytes of a table of a 64-bit machine whose instructions have any length.
    pub(super) const fn magic(self) -> [u8; 8] {
        let first = match self {
            Layout::Go116 => 0xfa,
            Layout::Go118 => 0xf0,
            Layout::Go120 => 0xf1,
        };
        [first, 0xff, 0xff, 0xff, 0, 0, 1, 8]
    }

    /// The layout that begins with these bytes.
    pub(super) fn of(head: &[u8]) -> Option<Layout> {
        let all = [Layout::Go120, Layout::Go118, Layout::Go116];
        all.into_iter()
            .find(|layout| head.starts_with(&layout.magic()))
    }

    /// Words of the header behind the first one.
    pub(super) const fn header_words(self) -> usize {
        match self {
            Layout::Go116 => 7,
            Layout::Go118 | Layout::Go120 => 8,
        }
    }
}

/// What the words of the header say: offsets from the beginning of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) layout: Layout,
    pub(super) functions: u64,
    /// Address of the code; 0 if newer linkers left it out.
    pub(super) text: u64,
    pub(super) names: u64,
    pub(super) units: u64,
    pub(super) files: u64,
    pub(super) values: u64,
    pub(super) table: u64,
}

impl Header {
    /// Bytes that a header needs at most.
    pub(super) const BYTES: usize = 72;

    pub(super) fn of(bytes: &[u8]) -> Option<Header> {
        let layout = Layout::of(bytes)?;
        let word = |index: usize| u64_at(bytes, 8 + 8 * index);
        let skipped = layout.header_words() - 7;
        let header = Header {
            layout,
            functions: word(0)?,
            text: if skipped > 0 { word(2)? } else { 0 },
            names: word(2 + skipped)?,
            units: word(3 + skipped)?,
            files: word(4 + skipped)?,
            values: word(5 + skipped)?,
            table: word(6 + skipped)?,
        };
        let ordered = header.names <= header.units
            && header.units <= header.files
            && header.files <= header.values
            && header.values <= header.table;
        (ordered && (1..=MAX_FUNCTIONS).contains(&header.functions)).then_some(header)
    }
}

/// A table.
#[derive(Debug)]
pub struct Pclntab {
    bytes: Vec<u8>,
    header: Header,
    /// Address of the code.
    text: u64,
}

/// A function of a [`Pclntab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Address of its first instruction.
    pub start: u64,
    /// Address of the next function.
    pub end: u64,
    name: u32,
    stack: u32,
    file: u32,
    line: u32,
    unit: u32,
    flags: u8,
    tables: u32,
    data: u8,
    /// Where the lists of its tables and of its data begin.
    lists: usize,
}

impl Function {
    /// Whether nobody called it: a thread or a goroutine began with it.
    pub fn is_outermost(&self) -> bool {
        self.flags & TOP_FRAME != 0
    }

    /// Whether the linker says that it was written in assembly (Go 1.17 and newer).
    pub fn is_assembly(&self) -> bool {
        self.flags & ASSEMBLY != 0
    }
}

/// A value that holds over some instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Their addresses.
    pub at: Range<u64>,
    /// The value.
    pub value: i32,
}

impl Pclntab {
    /// Takes the bytes of a table, and where the code is.
    pub(super) fn new(bytes: Vec<u8>, text: u64) -> Option<Pclntab> {
        let header = Header::of(&bytes)?;
        let table = Pclntab {
            bytes,
            header,
            text,
        };
        // The end of the last function must be there.
        table.start_of(header.functions as usize)?;
        Some(table)
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub fn layout(&self) -> Layout {
        self.header.layout
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.header.functions as usize
    }

    /// All functions that are whole, in the order of the table.
    pub fn functions(&self) -> impl Iterator<Item = Function> + '_ {
        (0..self.len()).filter_map(|index| self.function(index))
    }

    /// The function that an address is in.
    pub fn find(&self, address: u64) -> Option<Function> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.start_of(middle)? <= address {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let function = self.function(low.checked_sub(1)?)?;
        (function.start..function.end)
            .contains(&address)
            .then_some(function)
    }

    /// The function with this number.
    pub fn function(&self, index: usize) -> Option<Function> {
        let (start, end) = (self.start_of(index)?, self.start_of(index + 1)?);
        if end <= start || index >= self.len() {
            return None;
        }
        let old = self.header.layout == Layout::Go116;
        let field = self.field(index)?;
        let offset = match old {
            true => u64_at(&self.bytes, field + 8)?,
            false => u64::from(u32_at(&self.bytes, field + 4)?),
        };
        let at = usize::try_from(self.header.table.checked_add(offset)?).ok()?;
        // Behind the function's address.
        let rest = at.checked_add(if old { 8 } else { 4 })?;
        let word = |index: usize| u32_at(&self.bytes, rest.checked_add(4 * index)?);
        let tail = 8 + usize::from(self.header.layout == Layout::Go120);
        let kinds = word(tail)?.to_le_bytes();
        Some(Function {
            start,
            end,
            name: word(0)?,
            stack: word(3)?,
            file: word(4)?,
            line: word(5)?,
            tables: word(6)?,
            unit: word(7)?,
            flags: kinds[1],
            data: kinds[3],
            lists: rest.checked_add(4 * (tail + 1))?,
        })
    }

    /// A function's name, as Go writes it.
    pub fn name(&self, function: &Function) -> Option<String> {
        self.name_at(function.name)
    }

    /// A function's name without what the linker adds, if it is short enough to be one that is looked for:
    /// functions may be many, and have the same long one.
    pub(super) fn known_name(&self, function: &Function) -> Option<&str> {
        let at = self.header.names.checked_add(function.name.into())?;
        let end = self.header.units.min(self.bytes.len() as u64);
        let bytes = self.bytes.get(usize::try_from(at).ok()?..end as usize)?;
        let len = bytes
            .iter()
            .take(MAX_KNOWN_NAME_BYTES)
            .position(|&byte| byte == 0);
        let name = std::str::from_utf8(&bytes[..len?]).ok()?;
        Some(name.strip_suffix(".abi0").unwrap_or(name))
    }

    /// The name at an offset among the names.
    pub fn name_at(&self, offset: u32) -> Option<String> {
        self.text_at(
            self.header.names.checked_add(offset.into())?,
            self.header.units,
        )
    }

    /// Whether a name begins at an offset among the names.
    pub(super) fn begins_name(&self, offset: u32) -> bool {
        let at = self.header.names.saturating_add(offset.into());
        let before = at.checked_sub(1).filter(|_| offset > 0);
        at < self.header.units && before.is_none_or(|at| self.bytes.get(at as usize) == Some(&0))
    }

    /// How many bytes of stack a function's instructions have taken, without the return address.
    /// At most [`MAX_VALUES`]; whether that were all, [`Values::is_cut`] says.
    pub fn stack(&self, function: &Function) -> Values<'_> {
        self.values(function, function.stack, MAX_VALUES)
    }

    /// File and line of an instruction. `left`: how many values may still be looked at.
    pub fn place(
        &self,
        function: &Function,
        address: u64,
        left: &mut usize,
    ) -> (Option<String>, u32) {
        let file = self.value_at(function, function.file, address, left);
        let line = self.value_at(function, function.line, address, left);
        let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        (file.and_then(|file| self.file(function, file)), line)
    }

    /// The index of the innermost inlined call that an instruction belongs to. `left`: how many values may
    /// still be looked at.
    pub fn inlined(&self, function: &Function, address: u64, left: &mut usize) -> Option<u32> {
        let table = self.listed(function, INLINE_INDEX, function.tables, 0)?;
        let index = self.value_at(function, table, address, left)?;
        u32::try_from(index).ok()
    }

    /// Where the data about a function's inlined calls are: from the beginning of all functions' data, but
    /// an address in the layout of Go 1.16.
    pub fn inline_tree(&self, function: &Function) -> Option<u64> {
        let behind = usize::try_from(function.tables).ok()?.checked_mul(4)?;
        if self.header.layout == Layout::Go116 {
            let first = function.lists.checked_add(behind)?.next_multiple_of(8);
            let at = first.checked_add(8 * INLINE_TREE as usize)?;
            let known = u32::from(function.data) > INLINE_TREE;
            return u64_at(&self.bytes, at).filter(|&address| known && address != 0);
        }
        let offset = self.listed(function, INLINE_TREE, function.data.into(), behind)?;
        (offset != u32::MAX).then_some(offset.into())
    }

    /// An entry of one of the two lists behind a function, which has `count`.
    fn listed(&self, function: &Function, index: u32, count: u32, behind: usize) -> Option<u32> {
        if index >= count {
            return None;
        }
        let at = function.lists.checked_add(behind)?;
        u32_at(&self.bytes, at.checked_add(4 * index as usize)?)
    }

    fn file(&self, function: &Function, index: i32) -> Option<String> {
        let index = u64::try_from(index)
            .ok()?
            .checked_add(function.unit.into())?;
        let at = self.header.units.checked_add(index.checked_mul(4)?)?;
        let offset = u32_at(&self.bytes, usize::try_from(at).ok()?)?;
        if offset == u32::MAX || at >= self.header.files {
            return None;
        }
        self.text_at(
            self.header.files.checked_add(offset.into())?,
            self.header.values,
        )
    }

    fn value_at(
        &self,
        function: &Function,
        table: u32,
        address: u64,
        left: &mut usize,
    ) -> Option<i32> {
        let mut values = self.values(function, table, *left);
        let held = values.find(|held| held.at.end > address);
        *left = values.left;
        Some(held?.value)
    }

    fn values(&self, function: &Function, table: u32, left: usize) -> Values<'_> {
        let start = self.header.values.saturating_add(table.into());
        let end = self.header.table.min(self.bytes.len() as u64);
        // No table is at offset 0: that says there is none.
        let range = (table != 0 && start < end).then_some(start as usize..end as usize);
        Values {
            bytes: range
                .and_then(|range| self.bytes.get(range))
                .unwrap_or_default(),
            first: true,
            at: function.start,
            end: function.end,
            value: -1,
            left,
        }
    }

    fn text_at(&self, at: u64, end: u64) -> Option<String> {
        let end = end.min(self.bytes.len() as u64) as usize;
        let bytes = self.bytes.get(usize::try_from(at).ok()?..end)?;
        let len = bytes
            .iter()
            .take(MAX_NAME_BYTES)
            .position(|&byte| byte == 0);
        let text = &bytes[..len?];
        (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    /// Where a function's entry is.
    fn field(&self, index: usize) -> Option<usize> {
        let width = if self.header.layout == Layout::Go116 {
            16
        } else {
            8
        };
        usize::try_from(self.header.table)
            .ok()?
            .checked_add(index.checked_mul(width)?)
    }

    /// The address of a function; behind the last one, of the end of the code.
    fn start_of(&self, index: usize) -> Option<u64> {
        let field = self.field(index)?;
        match self.header.layout {
            Layout::Go116 => u64_at(&self.bytes, field),
            _ => self.text.checked_add(u32_at(&self.bytes, field)?.into()),
        }
    }
}

/// The values of a table, in the order of their addresses.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    bytes: &'a [u8],
    first: bool,
    at: u64,
    end: u64,
    value: i32,
    /// How many more are given.
    left: usize,
}

impl Values<'_> {
    /// Whether there may be more than were given.
    pub fn is_cut(&self) -> bool {
        self.left == 0
    }

    fn number(&mut self) -> Option<u32> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            number |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

impl Iterator for Values<'_> {
    type Item = Held;

    fn next(&mut self) -> Option<Held> {
        if self.at >= self.end || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let change = self.number()?;
        // Behind the last value.
        let is_end = change == 0 && !std::mem::take(&mut self.first);
        let len = if is_end { 0 } else { self.number()? };
        if len == 0 {
            self.bytes = &[];
            return None;
        }
        self.first = false;
        let change = (change >> 1) as i32 ^ -((change & 1) as i32);
        self.value = self.value.wrapping_add(change);
        let start = self.at;
        self.at = start.saturating_add(len.into()).min(self.end);
        Some(Held {
            at: start..self.at,
            value: self.value,
        })
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
