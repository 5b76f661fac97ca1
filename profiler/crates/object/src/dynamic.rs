//! What an object tells the dynamic linker: its name, and which libraries it needs from where.
//!
//! The dynamic segment -> [`Dynamic`]. Strings and their number are bounded. Source: the System V
//! ABI, chapter 5.
//!
//! What does not belong here: finding libraries (`resolve`).

use std::fs::File;

use super::elf::{Elf, read_up_to, word};

/// Most bytes of the segment.
const MAX_DYNAMIC_BYTES: u64 = 1 << 20;
/// Most libraries that one object may need.
const MAX_NEEDED: usize = 4096;
/// Longest string.
const MAX_STRING_BYTES: usize = 4096;

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_NODEFLIB: u64 = 0x800;

/// What the dynamic linker reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// Its own name.
    pub soname: Option<String>,
    /// Libraries to load with it.
    pub needed: Vec<String>,
    /// Where to look first, also for what those need.
    pub rpath: Option<String>,
    /// Where to look, after the environment's folders.
    pub runpath: Option<String>,
    /// Whether the usual folders are left out.
    pub only_own_paths: bool,
}

impl Dynamic {
    /// Reads the dynamic segment of a file; nothing if it has none.
    pub fn read(elf: &Elf, file: &File) -> Dynamic {
        let mut dynamic = Dynamic::default();
        let Some((offset, len)) = elf.dynamic else {
            return dynamic;
        };
        let mut bytes = vec![0; len.min(MAX_DYNAMIC_BYTES) as usize];
        let got = read_up_to(file, &mut bytes, offset).unwrap_or(0);
        let size = if elf.wide { 8 } else { 4 };
        let number = |entry: &[u8], at| word(entry, at, elf.wide).unwrap_or(0);
        let entries: Vec<(u64, u64)> = bytes[..got]
            .chunks_exact(size * 2)
            .map(|entry| (number(entry, 0), number(entry, size)))
            .take_while(|&(kind, _)| kind != DT_NULL)
            .collect();
        let strings = entries.iter().find(|(kind, _)| *kind == DT_STRTAB);
        let Some(strings) = strings.and_then(|&(_, address)| elf.offset_of(address)) else {
            return dynamic;
        };
        let string = |value: u64| -> Option<String> {
            let mut bytes = vec![0; MAX_STRING_BYTES];
            let got = read_up_to(file, &mut bytes, strings.checked_add(value)?).ok()?;
            let end = bytes[..got].iter().position(|&byte| byte == 0)?;
            bytes.truncate(end);
            String::from_utf8(bytes)
                .ok()
                .filter(|text| !text.is_empty())
        };
        for (kind, value) in entries {
            match kind {
                DT_NEEDED if dynamic.needed.len() < MAX_NEEDED => {
                    dynamic.needed.extend(string(value));
                }
                DT_SONAME => dynamic.soname = string(value),
                DT_RPATH => dynamic.rpath = string(value),
                DT_RUNPATH => dynamic.runpath = string(value),
                DT_FLAGS_1 => dynamic.only_own_paths = value & DF_1_NODEFLIB != 0,
                _ => {}
            }
        }
        dynamic
    }
}
