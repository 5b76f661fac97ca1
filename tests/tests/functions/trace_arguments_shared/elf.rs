//! Sections and functions of a program, as far as the tests need them.
//!
//! A file of 64 bits, little-endian, that a compiler has just made -> its sections (unpacked) and
//! functions.

use std::path::Path;

/// A file.
pub struct Elf {
    bytes: Vec<u8>,
    /// Name, kind, offset, length, and the section it is linked to.
    sections: Vec<(String, u32, usize, usize, usize)>,
}

impl Elf {
    /// Reads a file.
    pub fn read(path: &Path) -> Elf {
        let bytes = std::fs::read(path).unwrap();
        let mut elf = Elf {
            bytes,
            sections: Vec::new(),
        };
        let table = elf.number(40, 8);
        let (entry, count, names) = (elf.number(58, 2), elf.number(60, 2), elf.number(62, 2));
        let names = elf.number(table + names * entry + 24, 8);
        for index in 0..count {
            let at = table + index * entry;
            let name = elf.string(names + elf.number(at, 4));
            let kind = elf.number(at + 4, 4) as u32;
            let (offset, len) = (elf.number(at + 24, 8), elf.number(at + 32, 8));
            elf.sections
                .push((name, kind, offset, len, elf.number(at + 40, 4)));
        }
        elf
    }

    fn number(&self, at: usize, len: usize) -> usize {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&self.bytes[at..at + len]);
        u64::from_le_bytes(word) as usize
    }

    fn string(&self, at: usize) -> String {
        let len = self.bytes[at..].iter().position(|&byte| byte == 0).unwrap();
        String::from_utf8_lossy(&self.bytes[at..at + len]).into_owned()
    }

    /// The bytes of a section.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        let found = self.sections.iter().find(|section| section.0 == name)?;
        Some(&self.bytes[found.2..found.2 + found.3])
    }

    /// Whether it may be loaded anywhere.
    pub fn is_movable(&self) -> bool {
        self.number(16, 2) == 3
    }

    /// Addresses and symbols of its functions.
    pub fn functions(&self) -> impl Iterator<Item = (u64, String)> {
        let table = self.sections.iter().find(|section| section.1 == 2).unwrap();
        let names = self.sections[table.4].2;
        (table.2..table.2 + table.3)
            .step_by(24)
            .filter_map(move |at| {
                let is_function = self.bytes[at + 4] & 15 == 2;
                let address = self.number(at + 8, 8) as u64;
                (is_function && address != 0)
                    .then(|| (address, self.string(names + self.number(at, 4))))
            })
    }
}
