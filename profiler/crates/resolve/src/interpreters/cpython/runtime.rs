//! Files that have the CPython interpreter in them: a program, or its library.
//!
//! An ELF file -> [`Runtime`]: which version, where its state and its loop are. Addresses are the
//! file's own. The names are exported, so that stripped files have them too; what a compiler has
//! moved out of the loop is only known where there are all symbols. Files are the target's: sizes are
//! bounded, and what makes no sense is no interpreter.
//!
//! What does not belong here: where a process maps the file (`super`).

use std::fs::File;
use std::ops::Range;

use super::version::{DEBUG_OFFSETS_BYTES, Offsets, Unsupported, Version, offsets};
use profiler_object::elf::{Elf, SHT_DYNSYM, SHT_SYMTAB, Section, read_up_to, u32_at, word};

/// Most bytes of a table of symbols, and of their names, that are read: 1.4 million symbols.
const MAX_TABLE_BYTES: u64 = 32 << 20;
/// Bytes of a symbol.
const SYMBOL_BYTES: usize = 24;
/// Most pieces of the loop.
const MAX_PIECES: usize = 16;
/// The name of the loop.
const LOOP: &[u8] = b"_PyEval_EvalFrameDefault";

/// Names that the interpreter exports since a version that does not say which one it is, the newest first.
const EXPORTED_SINCE: [(&[u8], u32); 4] = [
    (b"PyIter_Send\0", 0x030a_0000),
    (b"PyFrame_GetBack\0", 0x0309_0000),
    (b"PyVectorcall_Call\0", 0x0308_0000),
    (b"_PyRuntime\0", 0x0307_0000),
];

/// An interpreter in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runtime {
    /// Which version.
    pub(super) version: Version,
    /// Where it has its members, or why that is not known.
    pub(super) offsets: Result<Offsets, Unsupported>,
    /// Where `_PyRuntime` is; 0 in versions that have none.
    pub(super) state: u64,
    /// Where the type of code objects is.
    pub(super) code_type: Option<u64>,
    /// Where the loop is.
    pub(super) code: Vec<Range<u64>>,
}

/// Whether a file of this path can have the interpreter in it, so that it is looked at.
pub(super) fn may_have_one(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.starts_with("python") || name.starts_with("libpython")
}

impl Runtime {
    /// Looks into a file; none if there is no interpreter.
    pub(super) fn read(file: &File, elf: &Elf) -> Option<Runtime> {
        if !elf.wide {
            return None;
        }
        let symbols = Symbols::read(file, elf);
        let Some(stated) = symbols.version else {
            let version = symbols.older()?;
            return Some(Runtime {
                version,
                offsets: offsets(version, &[]),
                state: symbols.state.unwrap_or(0),
                code_type: symbols.code_type,
                code: symbols.code,
            });
        };
        let state = symbols.state?;
        let mut version = [0; 8];
        let at = elf.offset_of(stated)?;
        if read_up_to(file, &mut version, at).ok()? < version.len() {
            return None;
        }
        let version = Version(u64::from_ne_bytes(version) as u32);
        let mut described = vec![0; DEBUG_OFFSETS_BYTES];
        let got = elf
            .offset_of(state)
            .and_then(|at| read_up_to(file, &mut described, at).ok());
        described.truncate(got.unwrap_or(0));
        Some(Runtime {
            version,
            offsets: offsets(version, &described),
            state,
            code_type: symbols.code_type,
            code: symbols.code,
        })
    }
}

#[derive(Default)]
struct Symbols {
    state: Option<u64>,
    version: Option<u64>,
    code_type: Option<u64>,
    code: Vec<Range<u64>>,
    /// The newest version of [`EXPORTED_SINCE`].
    since: u32,
    /// It has the type of texts that Python 3 has no more.
    has_strings: bool,
}

impl Symbols {
    /// The version of an interpreter that does not state it: before 3.11.
    fn older(&self) -> Option<Version> {
        // Others use the type, and have none of their own.
        self.code_type?;
        match (self.since, self.has_strings, self.code.is_empty()) {
            (0, true, _) => Some(Version(0x0207_0000)),
            (0, false, false) => Some(Version(0x0306_0000)),
            (0, false, true) => None,
            (since, ..) => Some(Version(since)),
        }
    }

    fn read(file: &File, elf: &Elf) -> Symbols {
        let mut symbols = Symbols::default();
        let sections = elf.sections(file).unwrap_or_default();
        // The ABI allows one of each, and nobody packs them.
        let table = |kind| sections.iter().find(move |s: &&Section| s.kind == kind);
        for table in [SHT_DYNSYM, SHT_SYMTAB].into_iter().filter_map(table) {
            let names = sections.get(table.link as usize);
            let names = names.and_then(|names| names.bytes(file, MAX_TABLE_BYTES).ok());
            let (Some(names), Ok(entries)) = (names, table.bytes(file, MAX_TABLE_BYTES)) else {
                continue;
            };
            for entry in entries.chunks_exact(SYMBOL_BYTES) {
                symbols.take(entry, &names);
            }
        }
        symbols
    }

    fn take(&mut self, entry: &[u8], names: &[u8]) {
        let (Ok(name), Ok(address), Ok(len)) = (
            u32_at(entry, 0),
            word(entry, 8, true),
            word(entry, 16, true),
        ) else {
            return;
        };
        if address == 0 {
            return;
        }
        // Compared as far as what is looked for goes: where a name ends, only its owner knows.
        let name = names.get(name as usize..).unwrap_or_default();
        for (exported, since) in EXPORTED_SINCE {
            if name.starts_with(exported) {
                self.since = self.since.max(since);
            }
        }
        if name.starts_with(b"_PyRuntime\0") {
            self.state = Some(address);
        } else if name.starts_with(b"Py_Version\0") {
            self.version = Some(address);
        } else if name.starts_with(b"PyString_Type\0") {
            self.has_strings = true;
        } else if name.starts_with(b"PyCode_Type\0") {
            self.code_type = Some(address);
        } else if let Some(rest) = name.strip_prefix(LOOP)
            // The compiler adds to the name of what it has changed or split off.
            && matches!(rest.first(), Some(0 | b'.'))
        {
            let piece = address..address.saturating_add(len);
            if self.code.len() < MAX_PIECES && !self.code.contains(&piece) {
                self.code.push(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_interpreters_are_looked_at() {
        for (path, looked_at) in [
            ("/usr/bin/python3.11", true),
            ("/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0", true),
            ("/opt/python3/lib/libc.so.6", false),
            ("/usr/bin/cat", false),
            ("", false),
        ] {
            assert_eq!(may_have_one(path), looked_at, "{path}");
        }
    }

    #[test]
    fn the_system_s_interpreter_is_found() {
        let Ok(file) = File::open("/usr/bin/python3.11") else {
            eprintln!("SKIPPED: no /usr/bin/python3.11 here");
            return;
        };
        let elf = Elf::read(&file).unwrap();
        let runtime = Runtime::read(&file, &elf).unwrap();
        assert_eq!(runtime.version.series(), (3, 11));
        assert!(runtime.offsets.is_ok() && runtime.code_type.is_some());
        let piece = runtime.code.first().unwrap();
        assert!(piece.end - piece.start > 10_000, "{piece:x?}");
    }

    /// A symbol with this place of its name and this address.
    fn symbol(name: u32, address: u64) -> Vec<u8> {
        let mut entry = vec![0; SYMBOL_BYTES];
        entry[..4].copy_from_slice(&name.to_ne_bytes());
        entry[8..16].copy_from_slice(&address.to_ne_bytes());
        entry[16] = 8;
        entry
    }

    #[test]
    fn names_of_symbols_are_compared_whole() {
        let names = b"\0_PyRuntime\0_PyRuntimes\0_PyEval_EvalFrameDefault.cold\0\
            _PyEval_EvalFrameDefaults\0PyCode_Type\0Py_Version";
        let places = [1, 12, 24, 54, 80, 92];
        let mut symbols = Symbols::default();
        for (address, place) in (1..).zip(places) {
            symbols.take(&symbol(place, address), names);
        }
        assert_eq!((symbols.state, symbols.code_type), (Some(1), Some(5)));
        assert_eq!((symbols.code.len(), symbols.code[0].clone()), (1, 3..11));
        // Its name has no end.
        assert_eq!(symbols.version, None);
    }

    #[test]
    fn names_of_symbols_without_an_end_take_no_time() {
        let mut names = b"_PyEval".to_vec();
        names.resize(4 << 20, b'x');
        let entry = symbol(0, 1);
        let began = std::time::Instant::now();
        let mut symbols = Symbols::default();
        for _ in 0..100_000 {
            symbols.take(&entry, &names);
        }
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }

    #[test]
    fn versions_that_do_not_state_theirs_are_told_by_what_they_export() {
        let older = |exported: &[&str]| {
            let mut symbols = Symbols::default();
            for name in exported {
                symbols.take(&symbol(0, 1), format!("{name}\0").as_bytes());
            }
            symbols.older().map(|version| version.to_string())
        };
        let three = ["PyCode_Type", "_PyEval_EvalFrameDefault", "_PyRuntime"];
        assert_eq!(older(&three).as_deref(), Some("3.7"));
        let newer = [
            ("PyVectorcall_Call", "3.8"),
            ("PyFrame_GetBack", "3.9"),
            ("PyIter_Send", "3.10"),
        ];
        let mut exported = three.to_vec();
        for (name, version) in newer {
            exported.push(name);
            assert_eq!(older(&exported).as_deref(), Some(version));
        }
        assert_eq!(older(&three[..2]).as_deref(), Some("3.6"));
        assert_eq!(
            older(&["PyCode_Type", "PyString_Type"]).as_deref(),
            Some("2.7")
        );
        assert_eq!(older(&three[1..]), None);
        assert_eq!(older(&["PyCode_Type"]), None);
    }

    #[test]
    fn other_files_have_none() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        assert_eq!(Runtime::read(&file, &elf), None);
    }
}
