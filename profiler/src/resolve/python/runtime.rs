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
use crate::trace::elf::{Elf, SHT_DYNSYM, SHT_SYMTAB, Section, read_up_to, u32_at, word};

/// Most bytes of symbols, and of their names, that are read.
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Bytes of a symbol.
const SYMBOL_BYTES: usize = 24;
/// Most pieces of the loop.
const MAX_PIECES: usize = 16;
/// The name of the loop.
const LOOP: &[u8] = b"_PyEval_EvalFrameDefault";

/// An interpreter in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runtime {
    /// Which version.
    pub(super) version: Version,
    /// Where it has its members, or why that is not known.
    pub(super) offsets: Result<Offsets, Unsupported>,
    /// Where `_PyRuntime` is.
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
        let state = symbols.state?;
        let mut version = [0; 8];
        let at = elf.offset_of(symbols.version?)?;
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
}

impl Symbols {
    fn read(file: &File, elf: &Elf) -> Symbols {
        let mut symbols = Symbols::default();
        let sections = elf.sections(file).unwrap_or_default();
        let tables = |kind| sections.iter().filter(move |s: &&Section| s.kind == kind);
        for table in tables(SHT_DYNSYM).chain(tables(SHT_SYMTAB)) {
            let names = sections.get(table.link as usize);
            let names = names.and_then(|names| elf.contents(file, names, MAX_TABLE_BYTES).ok());
            let (Some(names), Ok(entries)) = (names, elf.contents(file, table, MAX_TABLE_BYTES))
            else {
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
        let name = names.get(name as usize..).unwrap_or_default();
        if address == 0 || !(name.starts_with(b"_Py") || name.starts_with(b"Py")) {
            return;
        }
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        match name {
            b"_PyRuntime" => self.state = Some(address),
            b"Py_Version" => self.version = Some(address),
            b"PyCode_Type" => self.code_type = Some(address),
            _ => {
                let piece = address..address.saturating_add(len);
                // The compiler adds to the name of what it has changed or split off.
                if let Some(rest) = name.strip_prefix(LOOP)
                    && (rest.is_empty() || rest.starts_with(b"."))
                    && self.code.len() < MAX_PIECES
                    && !self.code.contains(&piece)
                {
                    self.code.push(piece);
                }
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

    #[test]
    fn other_files_have_none() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        assert_eq!(Runtime::read(&file, &elf), None);
    }
}
