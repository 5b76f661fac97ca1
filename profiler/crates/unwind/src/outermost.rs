//! Where outermost functions are of which a file does not say that they are.
//!
//! An open ELF file and its sections -> ranges of addresses where a walk has come to its end, unless the file says
//! otherwise. Addresses are ELF virtual addresses. There are three of them:
//!
//! - the program's entry, which nobody calls;
//! - what calls `main` in a C library that is built without unwind information (musl): what `main` returns to hands
//!   its result to `exit` at once;
//! - where `makecontext` has a context's function return to. That is the first instruction of a function, so its caller
//!   would be looked for at the byte before, in whatever is there.
//!
//! Sources: the System V ABI, chapter 4; the code of musl 1.2 and of glibc 2.36 for x86-64. What does not belong here: what
//! files say (`build`).

use std::fs::File;

use profiler_object::elf::{Elf, Section, half, read_up_to, u32_at, word};

/// Most bytes of a table of symbols and of its names: C libraries have fewer.
const MAX_SYMBOLS_BYTES: u64 = 4 << 20;
/// Most bytes of code that are looked through.
pub(super) const MAX_CODE_BYTES: u64 = 8 << 20;
/// Most bytes of a function that is.
const MAX_FUNCTION_BYTES: u64 = 8 << 10;
/// The entry hands the stack pointer on, and calls.
const ENTRY_BYTES: u64 = 32;
/// Most ranges of a file.
pub(super) const MAX_RANGES: usize = 64;

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const SYMBOL_BYTES: usize = 24;
const ENTRY_AT: u64 = 24;

/// Symbols that are looked for: address and length of those that are here.
#[derive(Default)]
pub(super) struct Symbols {
    /// Whether there is one of `clone`, which creates threads.
    pub(super) clone: bool,
    exit: Option<(u64, u64)>,
    start_main: Option<(u64, u64)>,
    makecontext: Option<(u64, u64)>,
}

/// The ranges of a file of 64 bits, in the order of their addresses, none of which overlap.
pub(super) fn ranges(file: &File, elf: &Elf, found: &Symbols) -> Vec<(u64, u64)> {
    let is_code = |address| {
        let mut segments = elf.segments.iter().filter(|segment| segment.executable);
        segments.any(|of| (of.address..of.address.saturating_add(of.len)).contains(&address))
    };
    let mut ranges = Vec::new();
    if let Some(entry) = entry(file).filter(|&entry| is_code(entry)) {
        ranges.push((entry, entry.saturating_add(ENTRY_BYTES)));
    }
    if let (Some((exit, _)), Some(_)) = (found.exit, found.start_main) {
        callers_of_main(file, elf, exit, &mut ranges);
    }
    if let Some((start, len)) = found.makecontext {
        let code = read(file, elf, start, len.min(MAX_FUNCTION_BYTES));
        let targets = addresses_taken(&code, start).filter(|&target| is_code(target));
        ranges.extend(targets.map(|target| (target.saturating_sub(1), target)));
    }
    ranges.sort_unstable();
    ranges.truncate(MAX_RANGES);
    let mut behind = 0;
    for range in &mut ranges {
        range.0 = range.0.max(behind);
        range.1 = range.1.max(range.0);
        behind = range.1;
    }
    ranges.retain(|(start, end)| start < end);
    ranges
}

fn entry(file: &File) -> Option<u64> {
    let mut bytes = [0; 8];
    let got = read_up_to(file, &mut bytes, ENTRY_AT).ok()?;
    (got == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// Those of a dynamic object are known to others; one that is not has them for debuggers, or none.
pub(super) fn symbols(file: &File, sections: &[Section]) -> Symbols {
    let of_kind = |kind| sections.iter().find(|section| section.kind == kind);
    let mut found = Symbols::default();
    let Some(table) = of_kind(SHT_DYNSYM).or_else(|| of_kind(SHT_SYMTAB)) else {
        return found;
    };
    let names = usize::try_from(table.link).ok();
    let Some(names) = names.and_then(|index| sections.get(index)) else {
        return found;
    };
    let small = |section: &Section| section.bytes_in_file() <= MAX_SYMBOLS_BYTES;
    if !small(table) || !small(names) {
        return found;
    }
    let bytes = |section: &Section| section.bytes(file, MAX_SYMBOLS_BYTES).unwrap_or_default();
    let (table, names) = (bytes(table), bytes(names));
    for symbol in table.chunks_exact(SYMBOL_BYTES) {
        // What is defined elsewhere has no section.
        if half(symbol, 6).unwrap_or(0) == 0 {
            continue;
        }
        let at = u32_at(symbol, 0).unwrap_or(0) as usize;
        let name = names
            .get(at..)
            .and_then(|rest| rest.split(|&byte| byte == 0).next());
        let place = match name {
            Some(b"exit") => &mut found.exit,
            Some(b"__libc_start_main") => &mut found.start_main,
            Some(b"makecontext") => &mut found.makecontext,
            Some(b"clone") => {
                found.clone = true;
                continue;
            }
            _ => continue,
        };
        if let (Ok(address), Ok(len)) = (word(symbol, 8, true), word(symbol, 16, true)) {
            *place = Some((address, len));
        }
    }
    found
}

/// Code, or as much of it as there is.
pub(super) fn read(file: &File, elf: &Elf, address: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let offset = elf.offset_of(address);
    let got = offset.and_then(|offset| read_up_to(file, &mut bytes, offset).ok());
    bytes.truncate(got.unwrap_or(0));
    bytes
}

/// `mov %eax,%edi; call exit`, and the byte before, in which the call of `main` ends.
fn callers_of_main(file: &File, elf: &Elf, exit: u64, ranges: &mut Vec<(u64, u64)>) {
    for segment in elf.segments.iter().filter(|segment| segment.executable) {
        if segment.len > MAX_CODE_BYTES {
            continue;
        }
        let code = read(file, elf, segment.address, segment.len);
        for (at, bytes) in code.windows(7).enumerate() {
            let [0x89, 0xc7, 0xe8, distance @ ..] = bytes else {
                continue;
            };
            let place = segment.address.wrapping_add(at as u64);
            if target(place.wrapping_add(7), distance) == Some(exit) && ranges.len() < MAX_RANGES {
                ranges.push((place.saturating_sub(1), place.saturating_add(2)));
            }
        }
    }
}

/// The addresses that code takes: `lea ADDRESS(%rip), REGISTER`.
fn addresses_taken(code: &[u8], start: u64) -> impl Iterator<Item = u64> {
    code.windows(7).enumerate().filter_map(move |(at, bytes)| {
        let [prefix, 0x8d, register, distance @ ..] = bytes else {
            return None;
        };
        let is_relative = prefix & 0xfb == 0x48 && register & 0xc7 == 0x05;
        let behind = start.wrapping_add(at as u64 + 7);
        target(behind, distance).filter(|_| is_relative)
    })
}

fn target(behind: u64, distance: &[u8]) -> Option<u64> {
    let distance = i32::from_le_bytes(distance.try_into().ok()?);
    Some(behind.wrapping_add_signed(distance.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_code_takes_are_found() {
        // lea 0x10(%rip),%rax; lea -0x7(%rip),%r9; lea 0x10(%rax),%rax; nop
        let code = [
            0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0x4c, 0x8d, 0x0d, 0xf9, 0xff, 0xff, 0xff, 0x48, 0x8d,
            0x40, 0x10, 0x90, 0x90, 0x90,
        ];
        let taken: Vec<u64> = addresses_taken(&code, 0x1000).collect();
        assert_eq!(taken, [0x1017, 0x1007]);
    }

    #[test]
    fn a_program_begins_at_its_entry() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        let symbols = symbols(&file, &elf.sections(&file).unwrap());
        let ranges = ranges(&file, &elf, &symbols);
        let entry = entry(&file).unwrap();
        assert_eq!(ranges, [(entry, entry + ENTRY_BYTES)]);
    }
}
