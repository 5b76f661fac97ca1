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
use crate::functions::dialect;

/// Most names that are kept.
const MAX_NAMES: usize = 1 << 18;

/// How far code reaches, and what it is called by others.
#[derive(Debug, Default)]
pub struct Bounds {
    extents: Vec<(u64, u64)>,
    stubs: FxHashMap<u64, Box<str>>,
    exported: FxHashMap<u64, Box<str>>,
}

impl Bounds {
    /// Reads what a file says.
    pub fn read(file: &File, path: &str) -> Result<Bounds, ObjectError> {
        let part = Part::read(file, path)?;
        let mut bounds = Bounds {
            extents: frames::read(&part),
            stubs: Linkage::read(&part, |_| None).stubs,
            exported: FxHashMap::default(),
        };
        bounds.read_exported(&part);
        Ok(bounds)
    }

    fn read_exported(&mut self, part: &Part) {
        let table = part.sections.iter().find(|table| table.kind == SHT_DYNSYM);
        let Some(symbols) = table.and_then(|table| part.symbol_table(table)) else {
            return;
        };
        let mut best: FxHashMap<u64, &[u8]> = FxHashMap::default();
        for symbol in symbols.symbols() {
            let Some((address, name)) = symbol.exported() else {
                continue;
            };
            if best.len() == MAX_NAMES && !best.contains_key(&address) {
                continue;
            }
            let known = best.entry(address).or_insert(name);
            if rank(name) < rank(known) {
                *known = name;
            }
        }
        let names = best.into_iter().filter_map(|(address, name)| {
            let name = std::str::from_utf8(name).ok()?;
            (!name.is_empty()).then(|| (address, name.into()))
        });
        self.exported = names.collect();
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

    /// Estimated memory that this takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let names = self.stubs.values().chain(self.exported.values());
        let names: usize = names
            .map(|name| name.len() + 2 * size_of::<(u64, Box<str>)>())
            .sum();
        (self.extents.len() * size_of::<(u64, u64)>() + names) as u64
    }
}

/// What else than C a file was made of, as far as its symbols tell.
pub fn dialect_of(file: &File, path: &str) -> Dialect {
    match Part::read(file, path) {
        Ok(part) => dialect(&part.symbol_tables()),
        Err(_) => Dialect::None,
    }
}

/// The name that people use comes first: see [`crate::Object::functions`].
fn rank(name: &[u8]) -> (usize, usize, &[u8]) {
    let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
    (underscores, name.len(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_people_use_is_first() {
        let mut names = [&b"__libc_malloc"[..], b"malloc", b"_malloc"];
        names.sort_by_key(|name| rank(name));
        assert_eq!(names[0], b"malloc");
    }

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
