//! What an object says of its code besides symbols: how far functions reach, what stubs lead to, and by which of
//! several names a function is called.
//!
//! An open file -> [`Bounds`]. Addresses are ELF virtual addresses. For who has names from elsewhere, and needs
//! no more than this: nothing but `.eh_frame`, the dynamic symbols and what relocates by them is read.
//!
//! What does not belong here: names of symbol tables as such (`functions`).

use std::fs::File;
use std::mem::size_of;

use rustc_hash::FxHashMap;

use super::linkage::Linkage;
use super::{ObjectError, Part, frames};
use crate::demangle::Dialect;
use crate::elf::SHT_DYNSYM;
use crate::functions::{dialect, names_of, rest, sort, without_labels};
use crate::symbols::{CodeSections, Symbol};

/// Most names that are kept.
const MAX_NAMES: usize = 1 << 18;

/// How far code reaches, and what it is called by others.
#[derive(Debug, Default)]
pub struct Bounds {
    extents: Vec<(u64, u64)>,
    stubs: FxHashMap<u64, Box<str>>,
    exported: FxHashMap<u64, Box<str>>,
    /// First and last address, the latter excluded, of what is exported without a size.
    sizeless: Vec<(u64, u64)>,
}

impl Bounds {
    /// Reads what a file says.
    pub fn read(file: &File, path: &str) -> Result<Bounds, ObjectError> {
        let part = Part::read(file, path)?;
        let mut bounds = Bounds {
            extents: frames::read(&part),
            stubs: Linkage::read(&part, |_| None).stubs,
            exported: FxHashMap::default(),
            sizeless: Vec::new(),
        };
        bounds.read_exported(&part);
        Ok(bounds)
    }

    fn read_exported(&mut self, part: &Part) {
        let table = part.sections.iter().find(|table| table.kind == SHT_DYNSYM);
        let Some(symbols) = table.and_then(|table| part.symbol_table(table)) else {
            return;
        };
        let mut code = CodeSections::default();
        code.add(&part.sections);
        let symbols = symbols.symbols();
        let symbols = symbols.filter(|symbol| symbol.is_exported() && symbol.names_code(&code));
        let mut symbols: Vec<_> = symbols.take(MAX_NAMES).collect();
        sort(&mut symbols);
        let extents = || &*self.extents;
        let mut groups = without_labels(&symbols, &extents).into_iter().peekable();
        let mut exported = FxHashMap::default();
        while let Some(group) = groups.next() {
            let address = group[0].address();
            let first = group.first().map(|symbol| symbol.name);
            let Some(name) = names_of(group).first().copied().or(first) else {
                continue;
            };
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            exported.insert(address, name.into());
            if !group.iter().any(Symbol::has_size) {
                let next = groups.peek().map(|next| next[0].address());
                let len = rest(group, code.rest(address, next), &extents);
                self.sizeless.push((address, address.saturating_add(len)));
            }
        }
        self.exported = exported;
    }

    /// Address and length of the function, or of the part of one, that an address lies in.
    pub fn extent(&self, address: u64) -> Option<(u64, u64)> {
        frames::find(&self.extents, address)
    }

    /// The name of the function that the stub at an address leads to, and the address that the stub starts at.
    pub fn stub(&self, address: u64) -> Option<(u64, &str)> {
        // Stubs are made of words of 8 bytes, at most two of them.
        let start = address & !7;
        [start, start.checked_sub(8)?]
            .into_iter()
            .find_map(|start| Some((start, &**self.stubs.get(&start)?)))
    }

    /// The name that other objects call the function at an address by.
    pub fn exported(&self, address: u64) -> Option<&str> {
        self.exported.get(&address).map(|name| &**name)
    }

    /// The function without a size that reaches to an address, by the name that other objects call it by, and where it
    /// begins.
    pub fn sizeless(&self, address: u64) -> Option<(u64, &str)> {
        let after = self
            .sizeless
            .partition_point(|&(start, _)| start <= address);
        let &(start, end) = self.sizeless[..after].last()?;
        let name = self.exported(start)?;
        (address < end).then_some((start, name))
    }

    /// Estimated memory that this takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let names = self.stubs.values().chain(self.exported.values());
        let names: usize = names
            .map(|name| name.len() + 2 * size_of::<(u64, Box<str>)>())
            .sum();
        ((self.extents.len() + self.sizeless.len()) * size_of::<(u64, u64)>() + names) as u64
    }
}

/// What else than C a file was made of, as far as its symbols tell.
pub fn dialect_of(file: &File, path: &str) -> Dialect {
    match Part::read(file, path) {
        Ok(part) => dialect(&part.symbol_tables()),
        Err(_) => Dialect::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_this_machine() {
        let file = File::open("/proc/self/exe").unwrap();
        let bounds = Bounds::read(&file, "self").unwrap();
        let &(start, len) = bounds.extents.iter().max_by_key(|(_, len)| *len).unwrap();
        assert_eq!(bounds.extent(start + len - 1), Some((start, len)));
        assert_ne!(bounds.extent(start + len), Some((start, len)));
        assert!(bounds.bytes() > 1000);
    }
}
