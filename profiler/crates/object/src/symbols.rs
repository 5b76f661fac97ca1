//! Symbol tables, entry by entry.
//!
//! Bytes of a table and of its names -> [`Symbol`]s, and which of them name code. Addresses are ELF virtual addresses,
//! sizes bytes. Names are cut where none that is kept is longer. Source: the System V ABI, chapter 4.
//!
//! What does not belong here: what code is called of several names (`functions`).

use super::demangle::MAX_NAME_BYTES;
use super::elf::{Section, half, u32_at, word};

pub(super) const STT_NOTYPE: u8 = 0;
pub(super) const STT_FUNC: u8 = 2;
pub(super) const STT_GNU_IFUNC: u8 = 10;
pub(super) const STB_LOCAL: u8 = 0;
const SHN_UNDEF: u16 = 0;
const SHN_LORESERVE: u16 = 0xff00;

/// A symbol table and the names it refers to.
pub(super) struct SymbolTable {
    /// Entries of 24 or 16 bytes.
    pub(super) entries: Vec<u8>,
    /// Names, each ended by a zero byte.
    pub(super) names: Vec<u8>,
    /// Whether words have 64 bits.
    pub(super) wide: bool,
}

/// An entry of a symbol table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol<'a> {
    pub(super) name: &'a [u8],
    /// Where the name is among those of its table.
    pub(super) name_at: u32,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) kind: u8,
    pub(super) binding: u8,
    pub(super) section: u16,
}

/// Bytes of an entry.
pub(super) fn entry_len(wide: bool) -> usize {
    if wide { 24 } else { 16 }
}

impl<'a> Symbol<'a> {
    /// Of an entry; its name is still to be read.
    pub(super) fn parse(entry: &[u8], wide: bool) -> Option<Symbol<'a>> {
        let at = |narrow, if_wide| if wide { if_wide } else { narrow };
        let info = *entry.get(at(12, 4))?;
        Some(Symbol {
            name: b"",
            name_at: u32_at(entry, 0).ok()?,
            address: word(entry, at(4, 8), wide).ok()?,
            size: word(entry, at(8, 16), wide).ok()?,
            kind: info & 0xf,
            binding: info >> 4,
            section: half(entry, at(14, 6)).ok()?,
        })
    }

    /// Whether it stands for something in another object.
    pub(super) fn is_undefined(&self) -> bool {
        self.section == SHN_UNDEF
    }

    /// Where it is.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Whether it says how long what it names is.
    pub(super) fn has_size(&self) -> bool {
        self.size > 0
    }

    /// Whether other objects may use it.
    pub(super) fn is_exported(&self) -> bool {
        self.binding != STB_LOCAL
    }

    /// Whether it names code of this object: as a function, or without a type, as in hand-written assembly.
    pub(super) fn names_code(&self, code: &CodeSections) -> bool {
        // Not what marks code and data among it (`$x`), nor what an assembler or a compiler keeps for itself.
        let is_mark = || self.name.starts_with(b"$") || self.name.starts_with(b".");
        self.is_at_code(code) && !self.name.is_empty() && (self.kind != STT_NOTYPE || !is_mark())
    }

    /// Whether it is one of code of this object, if its name says nothing else.
    pub(super) fn is_at_code(&self, code: &CodeSections) -> bool {
        if self.is_undefined() || self.section >= SHN_LORESERVE {
            return false;
        }
        match self.kind {
            STT_FUNC | STT_GNU_IFUNC => true,
            STT_NOTYPE => code.holds(self.address),
            _ => false,
        }
    }
}

impl SymbolTable {
    /// The symbol with an index.
    pub(super) fn symbol(&self, index: usize) -> Option<Symbol<'_>> {
        let len = self.entry_len();
        let start = index.checked_mul(len)?;
        self.parse(self.entries.get(start..start.checked_add(len)?)?)
    }

    /// All symbols.
    pub(super) fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        let entries = self.entries.chunks_exact(self.entry_len());
        entries.filter_map(|entry| self.parse(entry))
    }

    fn entry_len(&self) -> usize {
        entry_len(self.wide)
    }

    fn parse(&self, entry: &[u8]) -> Option<Symbol<'_>> {
        let symbol = Symbol::parse(entry, self.wide)?;
        let name = self.names.get(symbol.name_at as usize..);
        Some(Symbol {
            name: first_name(name.unwrap_or_default()),
            ..symbol
        })
    }
}

/// The bytes before the first zero byte; of more than any name that is kept has, as many.
pub(super) fn first_name(names: &[u8]) -> &[u8] {
    let names = &names[..names.len().min(MAX_NAME_BYTES)];
    let end = names.iter().position(|&byte| byte == 0);
    &names[..end.unwrap_or(names.len())]
}

/// Where the sections with code lie: start and end, sorted.
#[derive(Debug, Default)]
pub(super) struct CodeSections(pub(super) Vec<(u64, u64)>);

impl CodeSections {
    pub(super) fn add(&mut self, sections: &[Section]) {
        let code = sections.iter().filter(|section| section.executable());
        self.0.extend(code.map(|s| (s.address, s.end())));
        self.0.sort_unstable();
    }

    fn at(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.0.partition_point(|&(start, _)| start <= address);
        let section = self.0[..after].last().copied();
        section.filter(|&(_, end)| address < end)
    }

    fn holds(&self, address: u64) -> bool {
        self.at(address).is_some()
    }

    /// How far it is to the next symbol or the end of the section, whichever comes first.
    pub(super) fn rest(&self, address: u64, next: Option<u64>) -> u64 {
        let Some((_, end)) = self.at(address) else {
            return 0;
        };
        next.map_or(end, |next| next.min(end)) - address
    }
}
