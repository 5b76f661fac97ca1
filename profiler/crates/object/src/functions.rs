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

use super::demangle::{Dialect, demangle, is_mangled};
use super::elf::{Elf, Section};
use super::object::frames;
use super::symbols::{CodeSections, STB_LOCAL, STT_GNU_IFUNC, STT_NOTYPE, Symbol, SymbolTable};
use super::{Function, FunctionKind, Language};

/// Most symbols of all tables of an object that are looked at.
const MAX_SYMBOLS: usize = 8 << 20;
/// Most bytes of names that are kept of an object.
const MAX_NAMES_BYTES: usize = 512 << 20;
/// Fewer names than this are not worth a thread.
const NAMES_PER_THREAD: usize = 8192;
/// Most threads that make names readable.
const MAX_THREADS: usize = 8;

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
    /// From the symbol tables of an object. `sections` are those of the object itself, `extents` what its unwinding
    /// tables say of its code, read where symbols do not say it.
    pub(super) fn of<'e>(
        tables: &[SymbolTable],
        elf: &Elf,
        sections: &[Section],
        go: bool,
        extents: &dyn Fn() -> &'e [(u64, u64)],
    ) -> Functions {
        let mut functions = Functions::default();
        let mut symbols = Vec::new();
        let mut code = CodeSections::default();
        code.add(sections);
        'tables: for table in tables {
            for symbol in table.symbols() {
                if !symbol.names_code(&code) {
                    continue;
                }
                if symbols.len() == MAX_SYMBOLS {
                    functions.cut = true;
                    break 'tables;
                }
                symbols.push(symbol);
            }
        }
        sort(&mut symbols);
        functions.collect(&symbols, elf, &code, extents);
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

    fn collect<'e>(
        &mut self,
        symbols: &[Symbol<'_>],
        elf: &Elf,
        code: &CodeSections,
        extents: &dyn Fn() -> &'e [(u64, u64)],
    ) {
        let mut bytes = 0;
        let mut chosen = FxHashSet::default();
        let mut groups = without_labels(symbols, extents).into_iter().peekable();
        while let Some(group) = groups.next() {
            let next = groups.peek().map(|next| next[0].address);
            let address = group[0].address;
            let rest = || rest(group, code.rest(address, next), extents);
            for symbol in group.iter().filter(|symbol| symbol.kind != STT_NOTYPE) {
                let name = String::from_utf8_lossy(symbol.name);
                if symbol.kind == STT_GNU_IFUNC {
                    bytes += name.len();
                    if chosen.insert(symbol.name) {
                        self.chosen_at_load.push(name.clone().into());
                    }
                    self.choosers.entry(address).or_insert(name.into());
                } else if let Some(parent) = parent_of_cold(&name) {
                    bytes += name.len();
                    let parts = self.cold.entry(parent.into()).or_default();
                    let size = match symbol.size {
                        0 => rest(),
                        size => size,
                    };
                    let part = (address, size);
                    if parts.last() != Some(&part) {
                        parts.push(part);
                    }
                }
            }
            let names = names_of(group);
            bytes += names.iter().map(|name| name.len()).sum::<usize>();
            if bytes > MAX_NAMES_BYTES {
                self.cut = true;
                return;
            }
            let mut names = names
                .into_iter()
                .map(|name| String::from_utf8_lossy(name).into());
            let Some(name) = names.next() else { continue };
            // A name without a size does not make the function longer than another name says.
            let named = group.iter().filter(|symbol| symbol.is_a_name());
            let size = match named.map(|symbol| symbol.size).max() {
                None | Some(0) => {
                    self.without_size.insert(address);
                    rest()
                }
                Some(size) => size,
            };
            let Some(offset) = elf.offset_of(address) else {
                continue;
            };
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

impl Symbol<'_> {
    /// Whether it is a name of code that is called by it: see [`names_of`].
    fn is_a_name(&self) -> bool {
        let is_cold =
            || std::str::from_utf8(self.name).is_ok_and(|name| parent_of_cold(name).is_some());
        self.kind != STT_GNU_IFUNC && !is_cold()
    }
}

/// The names of one piece of code, each once, the one that people use first: neither those of what chooses code when
/// it is loaded, nor those of parts that were moved away.
pub(super) fn names_of<'a, 's>(symbols: impl IntoIterator<Item = &'s Symbol<'a>>) -> Vec<&'a [u8]>
where
    'a: 's,
{
    let named = symbols.into_iter().filter(|symbol| symbol.is_a_name());
    let mut ranks: Vec<Rank<'a>> = named.map(Rank::of).collect();
    ranks.sort_unstable();
    // A label beside a function's name is none of its names.
    let untyped = ranks.first().is_some_and(|rank| rank.untyped);
    ranks.retain(|rank| rank.untyped == untyped);
    ranks.dedup_by_key(|rank| rank.name);
    ranks.into_iter().map(|rank| rank.name).collect()
}

/// What orders the names of a function: the first is the one that people use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank<'a> {
    untyped: bool,
    /// Whether it is not one of the kernel's functions: what the C library calls by its own names is told apart.
    usual: bool,
    local: bool,
    /// Whether it is what the C library calls itself.
    internal: bool,
    underscores: usize,
    len: usize,
    name: &'a [u8],
}

impl<'a> Rank<'a> {
    pub(super) fn of(symbol: &Symbol<'a>) -> Rank<'a> {
        let name = symbol.name;
        let mangled = std::str::from_utf8(name).is_ok_and(is_mangled);
        let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
        Rank {
            untyped: symbol.kind == STT_NOTYPE,
            usual: !name.starts_with(b"__vdso_") && !name.starts_with(b"__kernel_"),
            local: symbol.binding == STB_LOCAL,
            internal: name.starts_with(b"__GI_"),
            underscores: if mangled { 0 } else { underscores },
            len: name.len(),
            name,
        }
    }
}

/// Puts symbols in the order of what they name, the longest first of an address.
pub(super) fn sort(symbols: &mut [Symbol<'_>]) {
    symbols.sort_unstable_by_key(|symbol| (symbol.address, Reverse(symbol.size)));
}

/// The symbols of each address, of sorted ones, without labels within functions.
pub(super) fn without_labels<'s, 'a, 'e>(
    symbols: &'s [Symbol<'a>],
    extents: &dyn Fn() -> &'e [(u64, u64)],
) -> Vec<&'s [Symbol<'a>]> {
    let mut functions: Vec<&[Symbol<'_>]> = Vec::new();
    let mut covered = 0;
    for group in symbols.chunk_by(|a, b| a.address == b.address) {
        let address = group[0].address;
        if group.iter().all(|symbol| symbol.kind == STT_NOTYPE) {
            let before = functions.last().and_then(|group| group.first());
            let is_label = |symbol: &Symbol<'_>| {
                // As nasm names what is local to a function.
                let own = before.and_then(|before| symbol.name.strip_prefix(before.name));
                own.is_some_and(|own| own.starts_with(b"."))
            };
            let within = || {
                let extent = frames::find(extents(), address);
                extent.is_some_and(|(start, _)| start != address)
            };
            if address < covered || group.iter().all(is_label) || within() {
                continue;
            }
        }
        let end = |symbol: &Symbol<'_>| address.saturating_add(symbol.size);
        covered = group.iter().map(end).fold(covered, u64::max);
        functions.push(group);
    }
    functions
}

/// How long a function is whose symbols do not say it, if there is room for `most` up to the next one.
pub(super) fn rest<'e>(
    group: &[Symbol<'_>],
    most: u64,
    extents: &dyn Fn() -> &'e [(u64, u64)],
) -> u64 {
    let address = group[0].address;
    if let Some(len) = group.iter().find_map(|symbol| start_code_len(symbol.name)) {
        return most.min(len);
    }
    let extents = extents();
    let end = match frames::find(extents, address) {
        Some((start, len)) => start + len,
        None => {
            let after = extents.partition_point(|&(start, _)| start <= address);
            extents.get(after).map_or(u64::MAX, |&(start, _)| start)
        }
    };
    most.min(end - address)
}

/// How far a function reaches at most that compilers put into each program without saying how long it is: what lies
/// behind it is other code.
pub fn start_code_len(name: &[u8]) -> Option<u64> {
    match name {
        // A jump.
        b"frame_dummy" => Some(16),
        b"_init"
        | b"_fini"
        | b"register_tm_clones"
        | b"deregister_tm_clones"
        | b"__do_global_dtors_aux" => Some(64),
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::STT_FUNC;

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
            name_at: 0,
            address: 0,
            size: 0,
            kind: STT_FUNC,
            binding,
            section: 1,
        };
        let names = |symbols: &[Symbol<'static>]| {
            let names = names_of(symbols);
            let names = names
                .into_iter()
                .map(|name| std::str::from_utf8(name).unwrap());
            names.collect::<Vec<_>>()
        };
        let malloc = [
            symbol("__libc_malloc", 1),
            symbol("mall", STB_LOCAL),
            symbol("malloc", 1),
            symbol("_ZN1aC2Ev", 1),
            symbol("malloc", 1),
            symbol("_ZN1aC1Ev", 2),
        ];
        assert_eq!(
            names(&malloc),
            ["malloc", "_ZN1aC1Ev", "_ZN1aC2Ev", "__libc_malloc", "mall"]
        );
        let with = |symbol: Symbol<'static>, kind| Symbol { kind, ..symbol };
        for (first, others) in [
            ("raise", &["gsignal"][..]),
            ("pow", &["powf32x", "__pow"]),
            ("sprintf", &["_IO_sprintf"]),
            ("____strtod_l_internal", &["__GI_____strtod_l_internal"]),
            // The C library has functions of the other name, which call the kernel's.
            ("__vdso_time", &["time"]),
        ] {
            let mut symbols: Vec<_> = others.iter().map(|name| symbol(name, 1)).collect();
            symbols.push(symbol(first, 1));
            assert_eq!(names(&symbols)[0], first);
            // Neither what chooses code, nor a part of another function, nor a label has these names.
            symbols.push(with(symbol("p", 1), STT_GNU_IFUNC));
            symbols.push(symbol("q.cold", 1));
            symbols.push(with(symbol("r", 1), STT_NOTYPE));
            assert_eq!(names(&symbols).len(), others.len() + 1);
        }
        assert_eq!(names(&[with(symbol("r", 1), STT_NOTYPE)]), ["r"]);
    }

    #[test]
    fn code_without_a_type_is_a_function_and_labels_are_none() {
        let symbol = |name: &'static str, address, size, kind| Symbol {
            name: name.as_bytes(),
            name_at: 0,
            address,
            size,
            kind,
            binding: 1,
            section: 1,
        };
        let mut symbols = [
            symbol("whole", 0x10, 0x20, STT_FUNC),
            symbol("label_in_whole", 0x18, 0, STT_NOTYPE),
            symbol("work", 0x30, 0, STT_NOTYPE),
            symbol("work.loop", 0x34, 0, STT_NOTYPE),
            symbol("other", 0x40, 0, STT_NOTYPE),
            symbol("with_cfi", 0x50, 0, STT_NOTYPE),
            symbol("label_in_cfi", 0x54, 0, STT_NOTYPE),
            symbol("last", 0x60, 0, STT_NOTYPE),
        ];
        sort(&mut symbols);
        let extents = [(0x50, 8), (0x70, 8)];
        let extents = || &extents[..];
        let groups = without_labels(&symbols, &extents);
        let code = CodeSections(vec![(0x10, 0x80)]);
        let lengths = (0..).zip(&groups).map(|(index, group)| {
            let next = groups
                .get(index + 1)
                .map(|next: &&[Symbol<'_>]| next[0].address);
            let most = code.rest(group[0].address, next);
            let name = std::str::from_utf8(group[0].name).unwrap();
            (name, rest(group, most, &extents))
        });
        let expected = [
            ("whole", 0x20),
            ("work", 0x10),
            ("other", 0x10),
            ("with_cfi", 8),
            ("last", 0x10),
        ];
        assert_eq!(lengths.collect::<Vec<_>>(), expected);
        let code = CodeSections(vec![(0x10, 0x40)]);
        let named = |name, address, kind| symbol(name, address, 0, kind).names_code(&code);
        assert!(named("work", 0x3f, STT_NOTYPE));
        assert!(!named("end", 0x40, STT_NOTYPE));
        assert!(!named("$x", 0x10, STT_NOTYPE));
        assert!(!named(".L1", 0x10, STT_NOTYPE));
        // Data.
        assert!(!named("table", 0x10, 1));
    }

    #[test]
    fn start_code_reaches_no_further() {
        let dummy = Symbol {
            name: b"frame_dummy",
            name_at: 0,
            address: 0x1000,
            size: 0,
            kind: STT_FUNC,
            binding: STB_LOCAL,
            section: 1,
        };
        assert_eq!(rest(&[dummy], 9, &|| &[]), 9);
        // Compilers whose functions have symbols of no type, or none, have theirs behind it.
        assert_eq!(rest(&[dummy], 0x1_0000, &|| &[]), 16);
        let other = Symbol {
            name: b"work",
            ..dummy
        };
        assert_eq!(rest(&[other], 0x1_0000, &|| &[]), 0x1_0000);
    }
}
