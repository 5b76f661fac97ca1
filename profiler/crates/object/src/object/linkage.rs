//! What an object takes from others: imports, and the stubs and slots that lead to them.
//!
//! Dynamic symbols and relocations -> names of imports, of slots of the global offset table, and of
//! stubs of the procedure linkage table. Stubs are recognised by their code, a jump through a slot,
//! so it does not matter which linker laid them out. Sources: the x86-64 psABI, chapters 4.4 and 5.2.

use rustc_hash::FxHashMap;

use super::Part;
use crate::dynamic::Dynamic;
use crate::elf::{SHT_DYNSYM, word};
use crate::symbols::SymbolTable;

/// Most imports, slots and stubs that are kept.
const MAX_ENTRIES: usize = 1 << 20;
/// Most bytes of all sections of stubs.
const MAX_STUBS_BYTES: u64 = 64 << 20;
/// Most bytes of all tables of relocations.
const MAX_RELOCATIONS_BYTES: u64 = 512 << 20;
/// Entries of `.plt` have 16 bytes, those of `.plt.got` 8.
const STUB_BYTES: u64 = 8;

const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;
const R_X86_64_IRELATIVE: u64 = 37;
const SHT_RELA: u32 = 4;

/// What an object takes from others, and its own name.
#[derive(Debug, Default)]
pub(super) struct Linkage {
    pub(super) soname: Option<Box<str>>,
    pub(super) imports: Vec<Box<str>>,
    /// By the address of the slot.
    pub(super) slots: FxHashMap<u64, Box<str>>,
    /// By the address of the stub.
    pub(super) stubs: FxHashMap<u64, Box<str>>,
}

impl Linkage {
    /// `chooses`: what the code at an address chooses from when the object is loaded.
    pub(super) fn read<'a>(part: &Part, chooses: impl Fn(u64) -> Option<&'a str>) -> Linkage {
        let soname = Dynamic::read(&part.elf, &part.file).soname;
        let mut linkage = Linkage {
            soname: soname.map(Into::into),
            ..Linkage::default()
        };
        let table = part.sections.iter().find(|s| s.kind == SHT_DYNSYM);
        let Some(symbols) = table.and_then(|table| part.symbol_table(table)) else {
            return linkage;
        };
        let imports = symbols.symbols().filter(|symbol| symbol.is_undefined());
        let imports = imports.filter(|symbol| !symbol.name.is_empty());
        linkage.imports = imports
            .take(MAX_ENTRIES)
            .map(|symbol| String::from_utf8_lossy(symbol.name).into())
            .collect();
        if cfg!(target_arch = "x86_64") && part.elf.wide {
            linkage.read_slots(part, &symbols, chooses);
            linkage.read_stubs(part);
        }
        linkage
    }

    fn read_slots<'a>(
        &mut self,
        part: &Part,
        symbols: &SymbolTable,
        chooses: impl Fn(u64) -> Option<&'a str>,
    ) {
        let mut left = MAX_RELOCATIONS_BYTES;
        for section in part.sections.iter().filter(|s| s.kind == SHT_RELA) {
            let Ok(bytes) = part.elf.contents(&part.file, section, left) else {
                continue;
            };
            left -= bytes.len() as u64;
            for entry in bytes.chunks_exact(24) {
                let (Ok(slot), Ok(info)) = (word(entry, 0, true), word(entry, 8, true)) else {
                    continue;
                };
                let kind = info & 0xffff_ffff;
                // One of several implementations of a function of its own.
                if kind == R_X86_64_IRELATIVE
                    && let Ok(chooser) = word(entry, 16, true)
                    && self.slots.len() < MAX_ENTRIES
                {
                    let name = chooses(chooser).unwrap_or("(chosen at load time)");
                    self.slots.insert(slot, name.into());
                    continue;
                }
                if !matches!(kind, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                    continue;
                }
                let symbol = symbols.symbol((info >> 32) as usize);
                if let Some(symbol) = symbol.filter(|symbol| !symbol.name.is_empty()) {
                    if self.slots.len() == MAX_ENTRIES {
                        return;
                    }
                    let name = String::from_utf8_lossy(symbol.name);
                    self.slots.insert(slot, name.into());
                }
            }
        }
    }

    fn read_stubs(&mut self, part: &Part) {
        let sections = part.sections.iter();
        let sections = sections.filter(|s| s.executable() && s.name.starts_with(".plt"));
        let mut left = MAX_STUBS_BYTES;
        for section in sections {
            let Ok(bytes) = part.elf.contents(&part.file, section, left) else {
                continue;
            };
            left -= bytes.len() as u64;
            for at in (0..bytes.len() as u64).step_by(STUB_BYTES as usize) {
                let address = section.address.wrapping_add(at);
                let name = slot_of_stub(&bytes[at as usize..], address)
                    .and_then(|slot| self.slots.get(&slot))
                    .cloned();
                if let Some(name) = name
                    && self.stubs.len() < MAX_ENTRIES
                {
                    self.stubs.insert(address, name);
                }
            }
        }
    }
}

/// The slot that a stub jumps through: `[endbr64] [bnd] jmp *slot(%rip)`.
fn slot_of_stub(code: &[u8], address: u64) -> Option<u64> {
    let mut rest = code;
    for prefix in [&b"\xf3\x0f\x1e\xfa"[..], b"\xf2"] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let rest = rest.strip_prefix(b"\xff\x25")?;
    let (distance, rest) = rest.split_first_chunk()?;
    let next = address.wrapping_add((code.len() - rest.len()) as u64);
    Some(next.wrapping_add_signed(i64::from(i32::from_le_bytes(*distance))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_all_linkers() {
        let jump = b"\xff\x25\x10\0\0\0";
        assert_eq!(slot_of_stub(jump, 0x1000), Some(0x1016));
        let bound = b"\xf3\x0f\x1e\xfa\xf2\xff\x25\x10\0\0\0\x0f\x1f";
        assert_eq!(slot_of_stub(bound, 0x1000), Some(0x101b));
        assert_eq!(slot_of_stub(b"\xff\x25\x10\0", 0x1000), None);
        assert_eq!(slot_of_stub(b"\xff\x35\x10\0\0\0", 0x1000), None);
        assert_eq!(slot_of_stub(b"\xff\x25\xff\xff\xff\xff", 0), Some(5));
    }
}
