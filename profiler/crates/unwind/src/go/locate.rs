//! Where a Go program has its table of functions, its code and the data about inlined calls.
//!
//! An open ELF file -> [`Program`]. The table is a section of its own, or lies somewhere in the data (some
//! linkers merge sections, and section headers can be stripped): then its first bytes give it away. Where
//! the code begins and where the data of functions are, only the runtime's description of the module says
//! (`moduledata`), which begins with the table's address; in position-independent programs its words are
//! relocations. Its layout changes with versions, so what is taken from it is checked against the table.
//! Source: the runtime's symtab.go. Addresses are ELF virtual addresses; files are read with positioned
//! reads of bounded size.

use std::fs::File;

use rustc_hash::FxHashMap;

use super::pclntab::{Function, Header, Layout, Pclntab, u32_at, u64_at};
use profiler_object::elf::{Elf, Section, read_up_to};

/// Most bytes of a table.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Most bytes that are searched for a table or a module.
const MAX_SEARCHED_BYTES: u64 = 1 << 30;
/// Most bytes of relocations that are read.
const MAX_RELOCATION_BYTES: u64 = 512 << 20;
/// What is searched at once.
const PIECE_BYTES: usize = 1 << 20;
/// Words of a module's description that are looked at.
const MODULE_WORDS: usize = 64;
/// Most places that may be a module's description.
const MAX_CANDIDATES: usize = 64;
/// Functions that a place for the data of functions is checked with.
const PROBES: usize = 64;
/// Most inlined calls in one function.
const MAX_INLINED: u32 = 1 << 20;

const RELATIVE: u64 = 8;

/// A Go program.
#[derive(Debug)]
pub struct Program {
    /// Its functions.
    pub table: Pclntab,
    /// Where the data about its functions begin, if they were found: what [`Pclntab::inline_tree`] counts
    /// from.
    data: Option<u64>,
}

/// A call that was inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinedCall {
    /// Offset of the called function's name among the names.
    pub name: u32,
    /// Where the call is, from the beginning of the function that it was inlined into.
    pub at: u32,
}

impl Program {
    /// Finds it; none if the file is no Go program, or an older one than Go 1.16.
    pub fn find(file: &File, elf: &Elf) -> Option<Program> {
        if !elf.wide {
            return None;
        }
        let sections = elf.sections(file).unwrap_or_default();
        if !may_be_go(&sections) {
            return None;
        }
        let (address, len) = table_at(file, elf, &sections)?;
        let mut bytes = vec![0; len.min(MAX_TABLE_BYTES) as usize];
        let got = read_up_to(file, &mut bytes, elf.offset_of(address)?).ok()?;
        bytes.truncate(got);
        bytes.shrink_to_fit();
        let header = Header::of(&bytes)?;
        let module = module(file, elf, &sections, address, &header, &bytes);
        let text = match &module {
            Some(module) => module.text,
            None if header.layout == Layout::Go116 => 0,
            None => Some(header.text).filter(|&text| text != 0)?,
        };
        let table = Pclntab::new(bytes, text)?;
        let mut program = Program { table, data: None };
        if let Some(module) = module {
            let functions = program.table.functions();
            let inlining = functions.filter(|of| program.table.inline_tree(of).is_some());
            let probes: Vec<Function> = inlining.take(PROBES).collect();
            let mut candidates = module.addresses.into_iter();
            program.data = candidates.find(|&data| program.has_data_at(file, elf, data, &probes));
        }
        Some(program)
    }

    /// An entry of a function's inlined calls.
    pub fn inlined_call(
        &self,
        file: &File,
        elf: &Elf,
        function: &Function,
        index: u32,
    ) -> Option<InlinedCall> {
        self.inlined_call_from(file, elf, self.data, function, index)
    }

    fn inlined_call_from(
        &self,
        file: &File,
        elf: &Elf,
        data: Option<u64>,
        function: &Function,
        index: u32,
    ) -> Option<InlinedCall> {
        let layout = self.table.layout();
        let tree = self.table.inline_tree(function)?;
        let tree = match layout {
            Layout::Go116 => tree,
            _ => data?.checked_add(tree)?,
        };
        if index >= MAX_INLINED {
            return None;
        }
        let (width, name, at) = match layout {
            Layout::Go120 => (16, 4, 8),
            _ => (20, 12, 16),
        };
        let address = tree.checked_add(width * u64::from(index))?;
        let mut bytes = [0; 20];
        let bytes = &mut bytes[..width as usize];
        let got = read_up_to(file, bytes, elf.offset_of(address)?).ok()?;
        if got < bytes.len() {
            return None;
        }
        Some(InlinedCall {
            name: u32_at(bytes, name)?,
            at: u32_at(bytes, at)?,
        })
    }

    /// Whether what would be inlined calls there are some: each has the name of a function, and is in the
    /// function that it was inlined into.
    fn has_data_at(&self, file: &File, elf: &Elf, data: u64, probes: &[Function]) -> bool {
        let fits = |function: &Function| {
            let call = self.inlined_call_from(file, elf, Some(data), function, 0);
            call.is_some_and(|call| {
                u64::from(call.at) < function.end - function.start
                    && self.table.begins_name(call.name)
            })
        };
        !probes.is_empty() && probes.iter().all(fits)
    }
}

/// Whether a file with these sections may be a Go program.
pub(crate) fn may_be_go(sections: &[Section]) -> bool {
    sections.is_empty() || sections.iter().any(|section| is_go(&section.name))
}

fn is_go(section: &str) -> bool {
    section.ends_with(".gopclntab") || section.starts_with(".go.") || section == ".note.go.buildid"
}

/// Address of the table, and how long it may be.
fn table_at(file: &File, elf: &Elf, sections: &[Section]) -> Option<(u64, u64)> {
    let mut named = sections.iter();
    let named =
        named.find(|section| section.name.ends_with(".gopclntab") && section.bytes_in_file() > 0);
    if let Some(section) = named
        && elf.offset_of(section.address).is_some()
    {
        return Some((section.address, section.bytes_in_file()));
    }
    let mut found = None;
    let mut left = MAX_SEARCHED_BYTES;
    for segment in elf.segments.iter().filter(|segment| !segment.executable) {
        let len = segment.len.min(left);
        left -= len;
        search(file, segment.offset, len, &mut |place, bytes| {
            if Header::of(bytes).is_some() {
                let address = segment.address.saturating_add(place);
                found = Some((address, segment.len.saturating_sub(place)));
            }
            found.is_some()
        });
        if found.is_some() {
            break;
        }
    }
    found
}

/// Shows each multiple of 8 of a part of a file, with what follows it there, until one is taken.
fn search(file: &File, start: u64, len: u64, is_it: &mut dyn FnMut(u64, &[u8]) -> bool) {
    let mut piece = vec![0; PIECE_BYTES + Header::BYTES];
    let mut done = 0;
    while done < len {
        let want = (len - done).min(piece.len() as u64) as usize;
        let got = read_up_to(file, &mut piece[..want], start.saturating_add(done));
        let Ok(got) = got else { return };
        for at in (0..got.min(PIECE_BYTES)).step_by(8) {
            if is_it(done + at as u64, &piece[at..got]) {
                return;
            }
        }
        if got < want {
            return;
        }
        done += PIECE_BYTES as u64;
    }
}

/// What the runtime's description of the module says.
struct Module {
    /// Where the code begins.
    text: u64,
    /// The addresses behind that: one of them may be where the data of functions begin.
    addresses: Vec<u64>,
}

fn module(
    file: &File,
    elf: &Elf,
    sections: &[Section],
    table: u64,
    header: &Header,
    bytes: &[u8],
) -> Option<Module> {
    let data = |section: &&Section| {
        let name = section.name.as_str();
        name == ".go.module" || name.ends_with("data") || name.starts_with(".data.")
    };
    let mut places = Vec::new();
    let mut left = MAX_SEARCHED_BYTES;
    for section in sections.iter().filter(data) {
        let Some(offset) = elf.offset_of(section.address) else {
            continue;
        };
        let len = section.bytes_in_file().min(left);
        left -= len;
        search(file, offset, len, &mut |place, bytes| {
            if u64_at(bytes, 0) == Some(table) {
                places.push(section.address.saturating_add(place));
            }
            places.len() >= MAX_CANDIDATES
        });
    }
    if sections.is_empty() {
        for segment in elf.segments.iter().filter(|segment| !segment.executable) {
            let len = segment.len.min(left);
            left -= len;
            search(file, segment.offset, len, &mut |place, bytes| {
                if u64_at(bytes, 0) == Some(table) {
                    places.push(segment.address.saturating_add(place));
                }
                places.len() >= MAX_CANDIDATES
            });
        }
    }
    let words = |place: u64| {
        let mut words = vec![0; 8 * MODULE_WORDS];
        let offset = elf.offset_of(place)?;
        let got = read_up_to(file, &mut words, offset).ok()?;
        let words = words[..got].as_chunks::<8>().0.iter();
        Some(
            words
                .map(|word| u64::from_le_bytes(*word))
                .collect::<Vec<u64>>(),
        )
    };
    let mut found = places.iter().filter_map(|&place| words(place));
    if let Some(module) = found.find_map(|words| check(&words, table, header, bytes)) {
        return Some(module);
    }
    let relocated = relocated(file, sections, table)?;
    relocated.into_iter().find_map(|(place, changes)| {
        let mut words = words(place)?;
        for (index, word) in changes {
            if let Some(known) = words.get_mut(index) {
                *known = word;
            }
        }
        check(&words, table, header, bytes)
    })
}

/// Places that are relocated to a table's address, and what words from there on are relocated to.
fn relocated(
    file: &File,
    sections: &[Section],
    table: u64,
) -> Option<Vec<(u64, FxHashMap<usize, u64>)>> {
    let relocations = |each: &mut dyn FnMut(u64, u64)| {
        let mut left = MAX_RELOCATION_BYTES;
        for section in sections {
            if !matches!(&*section.name, ".rela" | ".rela.dyn") || section.bytes_in_file() > left {
                continue;
            }
            left -= section.bytes_in_file();
            let Ok(bytes) = section.bytes(file, MAX_RELOCATION_BYTES) else {
                continue;
            };
            for entry in bytes.as_chunks::<24>().0 {
                let word = |at| u64_at(entry, at).unwrap_or(0);
                if word(8) == RELATIVE {
                    each(word(0), word(16));
                }
            }
        }
    };
    let mut found: Vec<(u64, FxHashMap<usize, u64>)> = Vec::new();
    relocations(&mut |place, addend| {
        if addend == table && found.len() < MAX_CANDIDATES {
            found.push((place, FxHashMap::default()));
        }
    });
    if found.is_empty() {
        return None;
    }
    relocations(&mut |place, addend| {
        for (first, words) in &mut found {
            let distance = place.wrapping_sub(*first);
            if distance < 8 * MODULE_WORDS as u64 {
                words.insert((distance / 8) as usize, addend);
            }
        }
    });
    Some(found)
}

/// Takes the description of a module if it fits the table.
fn check(words: &[u64], table: u64, header: &Header, bytes: &[u8]) -> Option<Module> {
    // Slices: address, length, capacity.
    let slices = [
        (1, header.names),
        (4, header.units),
        (7, header.files),
        (10, header.values),
        (13, header.table),
        (16, header.table),
    ];
    let fits = |&(index, offset): &(usize, u64)| {
        words.get(index).copied() == table.checked_add(offset) && words.get(index).is_some()
    };
    if !slices.iter().all(fits) || *words.get(17)? != header.functions.checked_add(1)? {
        return None;
    }
    let (lowest, text) = (*words.get(20)?, *words.get(22)?);
    let first = usize::try_from(header.table).ok()?;
    let first = match header.layout {
        Layout::Go116 => u64_at(bytes, first)?,
        _ => text.checked_add(u32_at(bytes, first)?.into())?,
    };
    let addresses = words.get(24..)?.iter().copied().filter(|&word| word != 0);
    (first == lowest).then(|| Module {
        text,
        addresses: addresses.collect(),
    })
}
