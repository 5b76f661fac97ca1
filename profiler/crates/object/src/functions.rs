//! The functions of an object, from its symbol tables.
//!
//! Symbols of several tables -> [`Functions`]: sorted by address, each address once with all its
//! names, the cold parts that a compiler moved away apart. Addresses are ELF virtual addresses,
//! sizes bytes. Everything is bounded: tables and names are a target's own.
//!
//! A function without a size reaches to the next symbol or the end of its section. The name that is
//! shown is the one that people use: of `malloc`, `__libc_malloc` and `__malloc` the first.
//!
//! What does not belong here: reading files (`object`), what patterns match (`pattern`).

use std::cmp::Reverse;
use std::sync::Mutex;

use profiler_model::text::TextMap;
use rustc_hash::{FxHashMap, FxHashSet};

use super::demangle::{Dialect, MAX_NAME_BYTES, demangle, is_mangled};
use super::elf::{Elf, Section, half, u32_at, word};
use super::{Function, FunctionKind, Language};

/// Most symbols of all tables of an object that are looked at.
const MAX_SYMBOLS: usize = 8 << 20;
/// Most bytes of names that are kept of an object.
const MAX_NAMES_BYTES: usize = 512 << 20;
/// Fewer names than this are not worth a thread.
const NAMES_PER_THREAD: usize = 8192;
/// Most threads that make names readable.
const MAX_THREADS: usize = 8;

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;
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
    address: u64,
    size: u64,
    kind: u8,
    binding: u8,
    section: u16,
}

impl<'a> Symbol<'a> {
    /// Whether it stands for something in another object.
    pub(super) fn is_undefined(&self) -> bool {
        self.section == SHN_UNDEF
    }

    /// Address and name, if it is a function of this object that others may call.
    pub(super) fn exported(&self) -> Option<(u64, &'a [u8])> {
        let is_function = matches!(self.kind, STT_FUNC | STT_GNU_IFUNC);
        (is_function && !self.is_undefined() && self.binding != STB_LOCAL)
            .then_some((self.address, self.name))
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
        if self.wide { 24 } else { 16 }
    }

    fn parse(&self, entry: &[u8]) -> Option<Symbol<'_>> {
        let at = |narrow, wide| if self.wide { wide } else { narrow };
        let info = *entry.get(at(12, 4))?;
        let start = u32_at(entry, 0).ok()? as usize;
        let name = self.names.get(start..).unwrap_or_default();
        // No name that is kept is longer.
        let name = &name[..name.len().min(MAX_NAME_BYTES)];
        let end = name.iter().position(|&byte| byte == 0);
        Some(Symbol {
            name: &name[..end.unwrap_or(name.len())],
            address: word(entry, at(4, 8), self.wide).ok()?,
            size: word(entry, at(8, 16), self.wide).ok()?,
            kind: info & 0xf,
            binding: info >> 4,
            section: half(entry, at(14, 6)).ok()?,
        })
    }
}

/// The functions of an object.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Sorted by address.
    pub(super) list: Vec<Function>,
    /// Names of functions of which the dynamic linker chooses one of several at load time.
    pub(super) chosen_at_load: Vec<Box<str>>,
    /// The code that chooses, by its address, with the name of what it chooses.
    pub(super) choosers: FxHashMap<u64, Box<str>>,
    /// Addresses of those whose symbols have no size.
    pub(super) without_size: FxHashSet<u64>,
    /// Parts moved away from the function of a name: address and length.
    cold: TextMap<Box<str>, Vec<(u64, u64)>>,
    /// Whether there were more symbols than are looked at.
    pub(super) cut: bool,
}

impl Functions {
    /// From the symbol tables of an object. `sections` are those of the object itself.
    pub(super) fn of(
        tables: &[SymbolTable],
        elf: &Elf,
        sections: &[Section],
        go: bool,
    ) -> Functions {
        let mut functions = Functions::default();
        let mut symbols = Vec::new();
        let code = CodeSections::of(sections);
        'tables: for table in tables {
            for symbol in table.symbols() {
                if symbol.section == SHN_UNDEF
                    || symbol.section >= SHN_LORESERVE
                    || symbol.name.is_empty()
                {
                    continue;
                }
                let marks_code = symbol.kind == STT_NOTYPE && code.holds(symbol.address);
                if !matches!(symbol.kind, STT_FUNC | STT_GNU_IFUNC) && !marks_code {
                    continue;
                }
                if symbols.len() == MAX_SYMBOLS {
                    functions.cut = true;
                    break 'tables;
                }
                symbols.push(symbol);
            }
        }
        symbols.sort_unstable_by_key(|symbol| (symbol.address, Reverse(symbol.size)));
        functions.collect(&symbols, elf, &code);
        functions.make_readable(go, dialect(tables));
        functions
    }

    /// The cold parts of the function with these names.
    pub(super) fn cold_parts(&self, function: &Function) -> Vec<(u64, u64)> {
        let raw = function.linkage_name.as_ref().unwrap_or(&function.name);
        let mut parts: Vec<(u64, u64)> = std::iter::once(raw)
            .chain(&function.aliases)
            .filter_map(|name| self.cold.get(name))
            .flatten()
            .copied()
            .collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    fn collect(&mut self, symbols: &[Symbol<'_>], elf: &Elf, code: &CodeSections) {
        let mut bytes = 0;
        let mut chosen = FxHashSet::default();
        let mut groups = symbols.chunk_by(|a, b| a.address == b.address).peekable();
        while let Some(group) = groups.next() {
            let next = groups.peek().map(|next| next[0].address);
            let address = group[0].address;
            let size = |symbol: &Symbol<'_>| match symbol.size {
                0 => code.rest(address, next),
                size => size,
            };
            let mut names: Vec<(Rank<'_>, u64)> = Vec::new();
            for symbol in group.iter().filter(|symbol| symbol.kind != STT_NOTYPE) {
                let name = String::from_utf8_lossy(symbol.name);
                bytes += name.len();
                if bytes > MAX_NAMES_BYTES {
                    self.cut = true;
                    return;
                }
                if symbol.kind == STT_GNU_IFUNC {
                    if chosen.insert(symbol.name) {
                        self.chosen_at_load.push(name.clone().into());
                    }
                    self.choosers.entry(address).or_insert(name.into());
                } else if let Some(parent) = parent_of_cold(&name) {
                    let parts = self.cold.entry(parent.into()).or_default();
                    let part = (address, size(symbol));
                    if parts.last() != Some(&part) {
                        parts.push(part);
                    }
                } else {
                    names.push((Rank::of(symbol), symbol.size));
                }
            }
            // A name without a size does not make the function longer than another name says.
            let size = match names.iter().map(|&(_, size)| size).max() {
                Some(0) => {
                    self.without_size.insert(address);
                    code.rest(address, next)
                }
                Some(size) => size,
                None => continue,
            };
            let Some(offset) = elf.offset_of(address) else {
                continue;
            };
            names.sort_unstable_by_key(|&(rank, _)| rank);
            names.dedup_by_key(|(rank, _)| rank.name);
            let mut names = names
                .into_iter()
                .map(|(rank, _)| String::from_utf8_lossy(rank.name).into());
            let Some(name) = names.next() else { continue };
            let mut aliases: Vec<Box<str>> = Vec::new();
            for alias in names {
                if alias != name && !aliases.contains(&alias) && aliases.len() < MAX_ALIASES {
                    aliases.push(alias);
                }
            }
            self.list.push(Function {
                name,
                linkage_name: None,
                aliases,
                offset,
                address,
                size,
                source: None,
                line: 0,
                kind: FunctionKind::Function,
                language: Language::C,
            });
        }
    }

    /// Gives functions the names that people read. Of large objects this is most of the work.
    fn make_readable(&mut self, go: bool, dialect: Dialect) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = self.list.len().div_ceil(NAMES_PER_THREAD);
        let threads = threads.min(MAX_THREADS).min(wanted).max(1);
        let share = self.list.len().div_ceil(threads).max(1);
        let shares = Mutex::new(self.list.chunks_mut(share));
        let next = || shares.lock().ok()?.next();
        let work = || {
            while let Some(share) = next() {
                let functions = share.iter_mut();
                functions.for_each(|function| name(function, go, dialect));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // A process that reads other people's files may make none: then this one does it all.
                let spawned = std::thread::Builder::new().spawn_scoped(scope, work);
                if spawned.is_err() {
                    break;
                }
            }
            work();
        });
    }
}

/// Most names of one function.
const MAX_ALIASES: usize = 64;

fn name(function: &mut Function, go: bool, dialect: Dialect) {
    let of_dialect = || Some((dialect.readable(&function.name)?, Language::C));
    if let Some((readable, language)) = demangle(&function.name).or_else(of_dialect) {
        function.language = language;
        if *readable != *function.name {
            let raw = std::mem::replace(&mut function.name, readable.into());
            function.linkage_name = Some(raw);
        }
    } else if go {
        // Its C parts are treated as Go as well: that is the careful way.
        function.language = Language::Go;
    }
}

/// What else than C an object was made of, as far as its symbols tell.
pub(super) fn dialect(tables: &[SymbolTable]) -> Dialect {
    let mut names = tables.iter().flat_map(SymbolTable::symbols);
    let found = names.find_map(|symbol| Dialect::told_by(symbol.name));
    found.unwrap_or_default()
}

/// What orders the names of a function: the first is the one that people use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    local: bool,
    underscores: usize,
    len: usize,
    name: &'a [u8],
}

impl<'a> Rank<'a> {
    fn of(symbol: &Symbol<'a>) -> Rank<'a> {
        let name = symbol.name;
        let mangled = std::str::from_utf8(name).is_ok_and(is_mangled);
        let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
        Rank {
            local: symbol.binding == STB_LOCAL,
            underscores: if mangled { 0 } else { underscores },
            len: name.len(),
            name,
        }
    }
}

/// `f` of `f.cold` and `f.cold.1`.
fn parent_of_cold(name: &str) -> Option<&str> {
    let (parent, rest) = name.rsplit_once(".cold")?;
    let number = rest.strip_prefix('.').unwrap_or(rest);
    let valid = rest.is_empty() || (rest != number && !number.is_empty());
    (valid && !parent.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then_some(parent)
}

/// Where the sections with code lie: start and end, sorted.
struct CodeSections(Vec<(u64, u64)>);

impl CodeSections {
    fn of(sections: &[Section]) -> CodeSections {
        let code = sections.iter().filter(|section| section.executable());
        let mut code: Vec<(u64, u64)> = code.map(|s| (s.address, s.end())).collect();
        code.sort_unstable();
        CodeSections(code)
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
    fn rest(&self, address: u64, next: Option<u64>) -> u64 {
        let Some((_, end)) = self.at(address) else {
            return 0;
        };
        next.map_or(end, |next| next.min(end)) - address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_parts_have_parents() {
        for (name, parent) in [
            ("f.cold", Some("f")),
            ("f.cold.12", Some("f")),
            ("f.isra.0.cold", Some("f.isra.0")),
            ("_ZN1a1bEv.cold", Some("_ZN1a1bEv")),
            ("f.cold.", None),
            ("f.coldest", None),
            ("f.cold.a", None),
            ("f.cold1", None),
            (".cold", None),
            ("f.part.0", None),
            ("cold", None),
        ] {
            assert_eq!(parent_of_cold(name), parent, "{name}");
        }
    }

    #[test]
    fn the_name_that_people_use_comes_first() {
        let symbol = |name: &'static str, binding| Symbol {
            name: name.as_bytes(),
            address: 0,
            size: 0,
            kind: STT_FUNC,
            binding,
            section: 1,
        };
        let mut ranks = [
            Rank::of(&symbol("__libc_malloc", 1)),
            Rank::of(&symbol("mall", STB_LOCAL)),
            Rank::of(&symbol("malloc", 1)),
            Rank::of(&symbol("_ZN1aC2Ev", 1)),
            Rank::of(&symbol("_ZN1aC1Ev", 2)),
        ];
        ranks.sort_unstable();
        let names = ranks.map(|rank| std::str::from_utf8(rank.name).unwrap());
        assert_eq!(
            names,
            ["malloc", "_ZN1aC1Ev", "_ZN1aC2Ev", "__libc_malloc", "mall"]
        );
    }
}
