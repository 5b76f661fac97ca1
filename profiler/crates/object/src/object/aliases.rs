//! Code with several names, and by which of them people call it.
//!
//! Open files -> [`Aliases`]: of each address that several symbols begin at, their names, the one that people use first,
//! as [`crate::Object::functions`] has it. Addresses are ELF virtual addresses. For who has one of these names from
//! elsewhere: only where symbols are is kept, and they are read when they are asked for.
//!
//! What does not belong here: code with one name, names made readable (`demangle`).

use std::fs::File;
use std::mem::size_of;
use std::os::unix::fs::FileExt;

use super::Part;
use crate::demangle::MAX_NAME_BYTES;
use crate::functions::names_of;
use crate::symbols::{CodeSections, Symbol, entry_len, first_name};

/// Most symbols that are looked at.
const MAX_SYMBOLS: usize = 8 << 20;
/// Most symbols of one piece of code that are looked at for its names.
const MAX_SYMBOLS_OF_ONE: usize = 1024;
/// Most names of one piece of code that are handed out.
const MAX_NAMES_OF_ONE: usize = 64;
/// Entries of a table that are read at a time.
const AT_A_TIME: usize = 4096;

/// The names of code that has several.
#[derive(Debug, Default)]
pub struct Aliases {
    tables: Vec<Table>,
    code: CodeSections,
    /// By address; no address is there once.
    places: Vec<Place>,
}

/// A symbol table of one of the files.
#[derive(Debug)]
struct Table {
    file: File,
    /// Where its entries are in the file, and their length together.
    entries: (u64, u64),
    /// Where its names are in the file, and their length together.
    names: (u64, u64),
    /// Whether words have 64 bits.
    wide: bool,
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
struct Place {
    address: u64,
    table: u32,
    index: u32,
}

/// Where symbols begin, told apart only so far: two places may pass for one.
struct Begun {
    once: Vec<u64>,
    again: Vec<u64>,
}

impl Begun {
    /// For so many symbols; eight places for each, so that few pass for one.
    fn with_room(symbols: usize) -> Begun {
        let words = (symbols / 8).next_power_of_two();
        Begun {
            once: vec![0; words],
            again: vec![0; words],
        }
    }

    fn add(&mut self, address: u64) {
        let (word, bit) = self.place(address);
        self.again[word] |= self.once[word] & bit;
        self.once[word] |= bit;
    }

    fn may_be_again(&self, address: u64) -> bool {
        let (word, bit) = self.place(address);
        self.again[word] & bit != 0
    }

    fn place(&self, address: u64) -> (usize, u64) {
        // The upper bits of a product depend on all of the address.
        let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let word = (mixed >> 6) as usize & (self.once.len() - 1);
        (word, 1 << (mixed & 63))
    }
}

impl Aliases {
    /// Reads the symbol tables of a file, and of those that hold more symbols of it.
    pub fn read<'f>(files: impl IntoIterator<Item = &'f File>) -> Aliases {
        let mut aliases = Aliases::default();
        for file in files {
            let Ok(part) = Part::read(file, "symbols") else {
                continue;
            };
            aliases.code.add(&part.sections);
            for table in part.symbol_sections() {
                let names = part.sections.get(table.link as usize);
                let names = names.filter(|names| !names.is_packed() && !table.is_packed());
                if let (Some(names), Ok(file)) = (names, file.try_clone()) {
                    aliases.tables.push(Table {
                        file,
                        entries: table.place(),
                        names: names.place(),
                        wide: part.elf.wide,
                    });
                }
            }
        }
        aliases.find();
        aliases
    }

    /// Names are left for later: most are never asked for, and take most of the time and memory. Most code has one name: what
    /// may have several is told first, so that only that is kept and sorted.
    fn find(&mut self) {
        let entries = self.tables.iter().map(Table::count);
        let entries = entries.fold(0, u64::saturating_add);
        let mut begun = Begun::with_room(entries.min(MAX_SYMBOLS as u64) as usize);
        self.each_at_code(|place| begun.add(place.address));
        let mut places = Vec::new();
        self.each_at_code(|place| {
            if begun.may_be_again(place.address) {
                places.push(place);
            }
        });
        places.sort_unstable_by_key(|place| (place.address, place.table, place.index));
        let groups = places.chunk_by(|a, b| a.address == b.address);
        let several = groups.filter(|group| group.len() > 1);
        self.places = several.flatten().copied().collect();
    }

    /// Goes through the symbols of all tables that begin at code.
    fn each_at_code(&self, mut each: impl FnMut(Place)) {
        let mut room = MAX_SYMBOLS;
        for (table, of) in self.tables.iter().enumerate() {
            let mut found = 0;
            of.each(room, |index, symbol| {
                if symbol.is_at_code(&self.code) {
                    found += 1;
                    each(Place {
                        address: symbol.address(),
                        table: table as u32,
                        index,
                    });
                }
            });
            room -= found;
        }
    }

    /// The names of the code that begins at an address, if it has several; the one that people use comes first.
    pub fn of(&self, address: u64) -> Vec<String> {
        let first = self.places.partition_point(|place| place.address < address);
        let places = self.places[first..].iter();
        let places = places.take_while(|place| place.address == address);
        let read: Vec<(Symbol<'_>, Vec<u8>)> = places
            .take(MAX_SYMBOLS_OF_ONE)
            .filter_map(|place| self.tables[place.table as usize].read(place.index))
            .collect();
        let symbols: Vec<Symbol<'_>> = read
            .iter()
            .map(|(symbol, name)| Symbol { name, ..*symbol })
            .filter(|symbol| symbol.names_code(&self.code))
            .collect();
        let names = names_of(&symbols);
        if names.len() < 2 {
            return Vec::new();
        }
        let names = names.into_iter().take(MAX_NAMES_OF_ONE);
        names
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect()
    }

    /// Estimated memory that this takes, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.places.capacity() * size_of::<Place>()) as u64
    }
}

impl Table {
    /// How many entries it says to have.
    fn count(&self) -> u64 {
        self.entries.1 / entry_len(self.wide) as u64
    }

    /// Goes through its symbols, at most so many; they have no names.
    fn each(&self, most: usize, mut each: impl FnMut(u32, &Symbol<'_>)) {
        let len = entry_len(self.wide);
        let start = self.entries.0;
        let count = self.count().min(most as u64) as u32;
        let mut buffer = vec![0; AT_A_TIME * len];
        let mut index = 0;
        while index < count {
            let now = buffer.len().min((count - index) as usize * len);
            let at = start.saturating_add(u64::from(index) * len as u64);
            // A table that goes on behind the end of its file is none.
            if self.file.read_exact_at(&mut buffer[..now], at).is_err() {
                return;
            }
            for entry in buffer[..now].chunks_exact(len) {
                if let Some(symbol) = Symbol::parse(entry, self.wide) {
                    each(index, &symbol);
                }
                index += 1;
            }
        }
    }

    /// A symbol, and its name.
    fn read(&self, index: u32) -> Option<(Symbol<'static>, Vec<u8>)> {
        let mut entry = [0; 24];
        let entry = &mut entry[..entry_len(self.wide)];
        let at = self
            .entries
            .0
            .checked_add(u64::from(index) * entry.len() as u64)?;
        self.file.read_exact_at(entry, at).ok()?;
        let symbol = Symbol::parse(entry, self.wide)?;
        let (start, len) = self.names;
        let at = u64::from(symbol.name_at);
        let name = self.text(start.saturating_add(at), len.saturating_sub(at))?;
        Some((symbol, name))
    }

    /// The name that begins there, of no more bytes than are left.
    fn text(&self, start: u64, left: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; left.min(MAX_NAME_BYTES as u64) as usize];
        let mut len = 0;
        // Most names are short.
        while len < bytes.len() {
            let end = (len + 256).min(bytes.len());
            let at = start.saturating_add(len as u64);
            self.file.read_exact_at(&mut bytes[len..end], at).ok()?;
            if bytes[len..end].contains(&0) {
                break;
            }
            len = end;
        }
        bytes.truncate(first_name(&bytes).len());
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each has the names that the list of all functions has, and no others.
    fn check(file: &File) {
        let aliases = Aliases::read([file]);
        let object = crate::Object::read(file, None, "it").unwrap();
        let several = object.functions().iter();
        let several: Vec<_> = several.filter(|f| !f.aliases.is_empty()).collect();
        assert!(several.len() > 10, "{}", several.len());
        for function in several {
            let names = aliases.of(function.address);
            assert_eq!(names.len(), 1 + function.aliases.len(), "{names:?}");
            // The others are read as their compiler meant them there.
            if !names
                .iter()
                .any(|name| name.starts_with("_R") || name.starts_with("_Z"))
            {
                assert_eq!(names[0], *function.name);
                let others: Vec<&str> = function.aliases.iter().map(|name| &**name).collect();
                assert_eq!(names[1..], others);
            }
        }
        let single = object.functions().iter().filter(|f| f.aliases.is_empty());
        for function in single {
            assert!(aliases.of(function.address).is_empty(), "{}", function.name);
        }
        assert!(aliases.of(1).is_empty());
        assert!(aliases.bytes() > 300);
    }

    #[test]
    fn a_library_whose_functions_have_several_names() {
        // The C library that this runs with.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            path.contains("/libc.so.6").then(|| path.to_owned())
        });
        let Some(libc) = libc else { return };
        check(&File::open(libc).unwrap());
    }

    #[test]
    fn a_program_with_two_tables() {
        check(&File::open("/proc/self/exe").unwrap());
    }

    #[test]
    fn what_begins_twice_is_never_missed() {
        for symbols in [0, 1, 7, 8, 100, 5000] {
            let mut begun = Begun::with_room(symbols);
            let addresses = || (0..symbols as u64).map(|index| 0x40_0000 + index * 16);
            addresses().for_each(|address| begun.add(address));
            let alike = addresses().filter(|address| begun.may_be_again(*address));
            assert!(alike.count() <= symbols / 4, "{symbols}");
            addresses()
                .step_by(3)
                .for_each(|address| begun.add(address));
            let mut twice = addresses().step_by(3);
            assert!(
                twice.all(|address| begun.may_be_again(address)),
                "{symbols}"
            );
        }
    }

    /// What a file says of its tables may be anything.
    #[test]
    fn tables_that_lie_have_no_names() {
        let file = File::open("/proc/self/exe").unwrap();
        for (entries, names) in [
            ((0, 1 << 40), (0, 1 << 40)),
            ((u64::MAX - 5, 1 << 20), (0, 100)),
            ((0, 24_000), (u64::MAX, u64::MAX)),
            ((0, 24_000), (u64::MAX - 1, 1)),
        ] {
            let table = Table {
                file: file.try_clone().unwrap(),
                entries,
                names,
                wide: true,
            };
            let mut seen = 0;
            table.each(5000, |_, _| seen += 1);
            assert!(seen <= 5000);
            for index in [0, 1, 17, 999, u32::MAX] {
                table.read(index);
            }
        }
    }
}
