//! Code with several names, and by which of them people call it.
//!
//! Open files -> [`Aliases`]: of each address that several symbols begin at, their names, the one that people use first,
//! as [`crate::Object::functions`] has it. Addresses are ELF virtual addresses. For who has one of these names from
//! elsewhere: only where names are is kept, and they are read when they are asked for.
//!
//! What does not belong here: code with one name, names made readable (`demangle`).

use std::fs::File;
use std::mem::size_of;
use std::os::unix::fs::FileExt;

use super::Part;
use crate::demangle::MAX_NAME_BYTES;
use crate::functions::names_of;
use crate::symbols::{CodeSections, Symbol, SymbolTable};

/// Most names that are kept.
const MAX_NAMES: usize = 1 << 20;
/// Most symbols that are looked at.
const MAX_SYMBOLS: usize = 8 << 20;
/// Most names of one piece of code that are handed out.
const MAX_NAMES_OF_ONE: usize = 64;

/// The names of code that has several.
#[derive(Debug, Default)]
pub struct Aliases {
    files: Vec<File>,
    /// By address, the name that people use first.
    names: Vec<Name>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    address: u64,
    /// Where it is in its file.
    offset: u64,
    file: u16,
}

/// A symbol table of one of the files.
struct Table {
    symbols: SymbolTable,
    /// Where its names are in the file.
    names: u64,
    file: u16,
}

impl Aliases {
    /// Reads the symbol tables of a file, and of those that hold more symbols of it.
    pub fn read<'f>(files: impl IntoIterator<Item = &'f File>) -> Aliases {
        let mut aliases = Aliases::default();
        let mut tables = Vec::new();
        let mut code = CodeSections::default();
        for file in files {
            let (Ok(part), Ok(kept)) = (Part::read(file, "symbols"), file.try_clone()) else {
                continue;
            };
            let index = aliases.files.len() as u16;
            aliases.files.push(kept);
            code.add(&part.sections);
            for table in part.symbol_sections() {
                let names = part.sections.get(table.link as usize);
                let names = names.filter(|names| !names.is_packed());
                let names = names.map(|names| names.place().0);
                if let (Some(names), Some(symbols)) = (names, part.symbol_table(table)) {
                    let file = index;
                    tables.push(Table {
                        symbols,
                        names,
                        file,
                    });
                }
            }
        }
        aliases.find(&tables, &code);
        aliases
    }

    fn find(&mut self, tables: &[Table], code: &CodeSections) {
        let mut symbols: Vec<(u32, Symbol<'_>)> = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            let named = table.symbols.symbols();
            let named = named.filter(|symbol| symbol.names_code(code));
            let room = MAX_SYMBOLS - symbols.len();
            symbols.extend(named.take(room).map(|symbol| (index as u32, symbol)));
        }
        symbols.sort_unstable_by_key(|(_, symbol)| symbol.address());
        let groups = symbols.chunk_by(|(_, a), (_, b)| a.address() == b.address());
        for group in groups.filter(|group| group.len() > 1) {
            let names = names_of(group.iter().map(|(_, symbol)| symbol));
            if names.len() < 2 {
                continue;
            }
            for name in names {
                if self.names.len() == MAX_NAMES {
                    return;
                }
                // Any symbol of that name.
                let of = group.iter().find(|(_, symbol)| symbol.name == name);
                if let Some((table, symbol)) = of {
                    let table = &tables[*table as usize];
                    self.names.push(Name {
                        address: symbol.address(),
                        offset: table.names + u64::from(symbol.name_at()),
                        file: table.file,
                    });
                }
            }
        }
        self.names.shrink_to_fit();
    }

    /// The names of the code that begins at an address, if it has several; the one that people use comes first.
    pub fn of(&self, address: u64) -> Vec<String> {
        let first = self.names.partition_point(|name| name.address < address);
        let names = self.names[first..].iter();
        let names = names.take_while(|name| name.address == address);
        let names = names.take(MAX_NAMES_OF_ONE);
        names.filter_map(|name| self.text(name)).collect()
    }

    fn text(&self, name: &Name) -> Option<String> {
        let mut bytes = vec![0; MAX_NAME_BYTES];
        let file = self.files.get(usize::from(name.file))?;
        let mut len = 0;
        // Most names are short, and the last ones of a file end with it.
        while len < bytes.len() {
            let end = (len + 256).min(bytes.len());
            let read = file.read_at(&mut bytes[len..end], name.offset + len as u64);
            let read = read.ok()?;
            if let Some(at) = bytes[len..len + read].iter().position(|&byte| byte == 0) {
                bytes.truncate(len + at);
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            if read == 0 {
                return None;
            }
            len += read;
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Estimated memory that this takes, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.names.capacity() * size_of::<Name>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_whose_functions_have_several_names() {
        // The C library that this runs with.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            path.contains("/libc.so.6").then(|| path.to_owned())
        });
        let Some(libc) = libc else { return };
        let file = File::open(libc).unwrap();
        let aliases = Aliases::read([&file]);
        let object = crate::Object::read(&file, None, "libc").unwrap();
        let several = object.functions().iter();
        let several: Vec<_> = several.filter(|f| !f.aliases.is_empty()).collect();
        assert!(several.len() > 100);
        for function in several {
            let names = aliases.of(function.address);
            assert_eq!(names[0], *function.name);
            let others: Vec<&str> = function.aliases.iter().map(|name| &**name).collect();
            assert_eq!(names[1..], others);
        }
        let single = object.functions().iter().find(|f| f.aliases.is_empty());
        assert!(aliases.of(single.unwrap().address).is_empty());
        assert!(aliases.of(1).is_empty());
        assert!(aliases.bytes() > 1000);
    }
}
