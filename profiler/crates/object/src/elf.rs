//! What resolving and tracing need of an ELF file's structure: build id, segments, sections.
//!
//! An open file -> [`Elf`], read with positioned reads of bounded size, never mapped into memory:
//! the file belongs to the target, which may shorten or change it at any time. Offsets are file
//! offsets, addresses ELF virtual addresses. Source: the System V ABI, chapters 4 and 5, and
//! elf(5).
//!
//! What does not belong here: compressed sections (`packed`), what symbols mean (`object`), lines (blazesym reads those for
//! `resolve`), and how a file is opened (`resolve`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use profiler_model::BuildId;

mod packed;

pub use packed::unpack;

/// Most program headers that are read.
const MAX_SEGMENTS: usize = 256;
/// Most section headers that are read.
const MAX_SECTIONS: usize = 4096;
/// Most bytes of one note segment or section.
const MAX_NOTES_BYTES: u64 = 64 << 10;
/// Most bytes of the names of sections.
const MAX_NAMES_BYTES: u64 = 1 << 20;
/// Most bytes of a section's name that are kept: no name that is looked for is longer, and names may lie
/// over each other.
const MAX_NAME_BYTES: usize = 256;

/// Most bytes of the path of a program interpreter.
const MAX_INTERPRETER_BYTES: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
/// Section type: all symbols.
pub const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHT_NOBITS: u32 = 8;
/// Section type: symbols for dynamic linking.
pub const SHT_DYNSYM: u32 = 11;
const SHF_EXECINSTR: u64 = 1 << 2;
const SHF_COMPRESSED: u64 = 1 << 11;
const NT_GNU_BUILD_ID: u32 = 3;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// Reading failed.
    #[error("failed to read: {0}")]
    Read(#[from] io::Error),
    /// Not an ELF file of this machine's byte order.
    #[error("not an ELF file of this byte order")]
    Format,
    /// A table lies outside of the file or is too large.
    #[error("damaged: {0} out of bounds")]
    Bounds(&'static str),
    /// Unpacking a section would need too much memory.
    #[error("section {0} unpacks to more than is allowed")]
    Bomb(String),
}

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Virtual address.
    pub address: u64,
    /// Length in the file.
    pub len: u64,
    /// Whether it holds code.
    pub executable: bool,
}

/// A section, as far as needed to find debug information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// `SHT_*`.
    pub kind: u32,
    /// Virtual address; 0 if it is not loaded.
    pub address: u64,
    /// Index of the section that this one refers to: of a symbol table, its names.
    pub link: u32,
    flags: u64,
    offset: u64,
    len: u64,
}

/// The headers of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// GNU build id.
    pub build_id: Option<BuildId>,
    /// Loadable segments, in the order of the file.
    pub segments: Box<[Segment]>,
    /// `ET_*`: whether it is an executable at fixed addresses or a shared object.
    pub kind: u16,
    /// Whether words have 64 bits.
    pub wide: bool,
    /// Offset and length of what the dynamic linker reads.
    pub dynamic: Option<(u64, u64)>,
    interpreter: Option<(u64, u64)>,
    section_table: (u64, usize, usize),
}

impl Elf {
    /// Reads the headers of `file`.
    pub fn read(file: &File) -> Result<Elf, ElfError> {
        let mut head = [0; 64];
        let got = read_up_to(file, &mut head, 0)?;
        let head = &head[..got];
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        if head.len() < 52 || !head.starts_with(b"\x7fELF") || head[5] != order {
            return Err(ElfError::Format);
        }
        let wide = match head[4] {
            1 => false,
            2 if head.len() == 64 => true,
            _ => return Err(ElfError::Format),
        };
        let at = |narrow, wide_at| if wide { wide_at } else { narrow };
        let table = word(head, at(28, 32), wide)?;
        let count = usize::from(half(head, at(44, 56))?);
        let sections = word(head, at(32, 40), wide)?;
        let section_count = usize::from(half(head, at(48, 60))?);
        let names = usize::from(half(head, at(50, 62))?);

        let entry = if wide { 56 } else { 32 };
        let mut bytes = vec![0; count.min(MAX_SEGMENTS) * entry];
        let got = read_up_to(file, &mut bytes, table)?;
        let mut elf = Elf {
            wide,
            kind: half(head, 16)?,
            section_table: (sections, section_count, names),
            ..Elf::default()
        };
        let mut segments = Vec::new();
        let mut notes = Vec::new();
        for header in bytes[..got].chunks_exact(entry) {
            let kind = u32_at(header, 0)?;
            let flags = u32_at(header, at(24, 4))?;
            let offset = word(header, at(4, 8), wide)?;
            let address = word(header, at(8, 16), wide)?;
            let len = word(header, at(16, 32), wide)?;
            match kind {
                PT_LOAD => segments.push(Segment {
                    offset,
                    address,
                    len,
                    executable: flags & PF_X != 0,
                }),
                PT_NOTE => notes.push((offset, len)),
                PT_DYNAMIC => elf.dynamic = Some((offset, len)),
                PT_INTERP => elf.interpreter = Some((offset, len)),
                _ => {}
            }
        }
        elf.segments = segments.into();
        elf.build_id = notes
            .iter()
            .find_map(|&(offset, len)| read_build_id(file, offset, len));
        if elf.build_id.is_none() {
            // A file of debug information alone has no note segment with contents.
            elf.build_id = elf.sections(file).ok().and_then(|sections| {
                sections
                    .iter()
                    .filter(|section| section.kind == SHT_NOTE)
                    .find_map(|section| read_build_id(file, section.offset, section.len))
            });
        }
        Ok(elf)
    }

    /// The path of the program that loads this one.
    pub fn interpreter(&self, file: &File) -> Option<String> {
        let (offset, len) = self.interpreter?;
        let mut path = vec![0; len.min(MAX_INTERPRETER_BYTES) as usize];
        let got = read_up_to(file, &mut path, offset).ok()?;
        let path = path[..got].split(|&byte| byte == 0).next()?;
        String::from_utf8(path.to_vec()).ok()
    }

    /// The same of the first executable segment: what a file's frame addresses and its virtual addresses differ by.
    pub fn code_bias(&self) -> u64 {
        let mut executable = self.segments.iter().filter(|segment| segment.executable);
        let first = executable.next();
        first.map_or(0, |segment| segment.address.wrapping_sub(segment.offset))
    }

    /// What to add to a file offset of the executable segment that `offset` (the start of a
    /// mapping) lies in, to get a virtual address.
    pub fn bias(&self, offset: u64) -> u64 {
        let covers = |segment: &&Segment| {
            // A mapping starts at a page; the segment may start within it.
            let first = segment.offset & !0xfff;
            offset >= first && offset < segment.offset.saturating_add(segment.len)
        };
        let mut executable = self.segments.iter().filter(|segment| segment.executable);
        let found = executable
            .clone()
            .find(covers)
            .or_else(|| executable.next());
        found.map_or(0, |segment| segment.address.wrapping_sub(segment.offset))
    }

    /// The same of what is mapped at `start`, so many bytes from `offset` on. Segments may share a page of the file: then it
    /// is the one that the mapping is at the address of, or the one that most of these bytes belong to.
    pub fn bias_of_mapping(&self, start: u64, offset: u64, len: u64) -> u64 {
        let behind = offset.saturating_add(len);
        let within = |segment: &Segment| {
            let end = segment.offset.saturating_add(segment.len).min(behind);
            end.saturating_sub(segment.offset.max(offset))
        };
        let is_at = |segment: &Segment| {
            let bias = segment.address.wrapping_sub(segment.offset);
            offset.wrapping_add(bias) == start
        };
        let executable = self.segments.iter().filter(|segment| segment.executable);
        let mapped = executable.filter(|segment| within(segment) > 0);
        let best = mapped.max_by_key(|segment| (is_at(segment), within(segment)));
        best.map_or_else(
            || self.bias(offset),
            |segment| segment.address.wrapping_sub(segment.offset),
        )
    }

    /// The virtual address of a file offset.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let covers = |segment: &&Segment| offset.wrapping_sub(segment.offset) < segment.len;
        let loaded = self.segments.iter();
        let segment = loaded
            .clone()
            .filter(|segment| segment.executable)
            .find(covers)
            .or_else(|| loaded.clone().find(covers))?;
        Some(
            offset
                .wrapping_sub(segment.offset)
                .wrapping_add(segment.address),
        )
    }

    /// The file offset of a virtual address.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| address.wrapping_sub(segment.address) < segment.len)?;
        Some(
            address
                .wrapping_sub(segment.address)
                .wrapping_add(segment.offset),
        )
    }

    /// The sections, from the file that this was read from. What other readers could read otherwise is
    /// refused: what is found out here about a file must hold for them as well.
    pub fn sections(&self, file: &File) -> Result<Vec<Section>, ElfError> {
        let (table, count, names) = self.section_table;
        if table == 0 {
            return Ok(Vec::new());
        }
        let entry = if self.wide { 64 } else { 40 };
        if count == 0 {
            // A number that is too large for the header would be in the first section.
            let mut first = [0; 64];
            let got = read_up_to(file, &mut first[..entry], table)?;
            let size_at = if self.wide { 32 } else { 20 };
            return match got < entry || word(&first, size_at, self.wide)? == 0 {
                true => Ok(Vec::new()),
                false => Err(ElfError::Bounds("section table")),
            };
        }
        if count > MAX_SECTIONS {
            return Err(ElfError::Bounds("section table"));
        }
        let mut bytes = vec![0; count * entry];
        if read_up_to(file, &mut bytes, table)? < bytes.len() {
            return Err(ElfError::Bounds("section table"));
        }
        let at = |narrow, wide| if self.wide { wide } else { narrow };
        let mut sections = Vec::with_capacity(count);
        let mut name_offsets = Vec::with_capacity(count);
        for header in bytes.chunks_exact(entry) {
            name_offsets.push(u32_at(header, 0)? as usize);
            sections.push(Section {
                name: String::new(),
                kind: u32_at(header, 4)?,
                flags: word(header, at(8, 8), self.wide)?,
                address: word(header, at(12, 16), self.wide)?,
                link: u32_at(header, at(24, 40))?,
                offset: word(header, at(16, 24), self.wide)?,
                len: word(header, at(20, 32), self.wide)?,
            });
        }
        let names = sections
            .get(names)
            .ok_or(ElfError::Bounds("section names"))?;
        let mut text = vec![0; names.len.min(MAX_NAMES_BYTES) as usize];
        let got = read_up_to(file, &mut text, names.offset)?;
        for (section, offset) in sections.iter_mut().zip(name_offsets) {
            let name = text[..got].get(offset..);
            let name = name.ok_or(ElfError::Bounds("section name"))?;
            let name = &name[..name.len().min(MAX_NAME_BYTES)];
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            section.name = String::from_utf8_lossy(name).into_owned();
        }
        Ok(sections)
    }
}

impl Section {
    /// The contents as they are in the file.
    pub fn bytes(&self, file: &File, limit: u64) -> Result<Vec<u8>, ElfError> {
        if self.len > limit {
            return Err(ElfError::Bomb(self.name.clone()));
        }
        let len = self.len.min(file.metadata()?.len());
        let mut bytes = vec![0; len as usize];
        let got = read_up_to(file, &mut bytes, self.offset)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Whether its contents are compressed ([`unpack`]).
    pub fn is_packed(&self) -> bool {
        self.flags & SHF_COMPRESSED != 0
    }

    /// Whether it holds instructions.
    pub fn executable(&self) -> bool {
        self.flags & SHF_EXECINSTR != 0
    }

    /// The virtual address behind its end.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.len)
    }

    /// Offset and length in the file.
    pub fn place(&self) -> (u64, u64) {
        (self.offset, self.bytes_in_file())
    }

    /// Length in the file.
    pub fn bytes_in_file(&self) -> u64 {
        if self.kind == SHT_NOBITS { 0 } else { self.len }
    }
}

/// The build id in a run of notes, as in `/sys/kernel/notes`.
pub fn build_id_of_notes(mut notes: &[u8]) -> Option<BuildId> {
    while notes.len() >= 12 {
        let name_len = u32_at(notes, 0).ok()? as usize;
        let desc_len = u32_at(notes, 4).ok()? as usize;
        let kind = u32_at(notes, 8).ok()?;
        let name_end = name_len.checked_next_multiple_of(4)?.checked_add(12)?;
        let name = notes.get(12..12usize.checked_add(name_len)?)?;
        let desc = notes.get(name_end..name_end.checked_add(desc_len)?)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && (1..=32).contains(&desc_len) {
            return Some(BuildId(desc.into()));
        }
        let next = name_end.checked_add(desc_len.checked_next_multiple_of(4)?)?;
        notes = notes.get(next..)?;
    }
    None
}

/// Reads until `buffer` is full or the file ends; says how many bytes there were.
pub fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    if i64::try_from(offset).is_err() {
        return Ok(0);
    }
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset.saturating_add(got as u64)) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn read_build_id(file: &File, offset: u64, len: u64) -> Option<BuildId> {
    let mut notes = vec![0; len.min(MAX_NOTES_BYTES) as usize];
    let got = read_up_to(file, &mut notes, offset).ok()?;
    build_id_of_notes(&notes[..got])
}

/// The 2 bytes at a place.
pub fn half(bytes: &[u8], at: usize) -> Result<u16, ElfError> {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes
        .map(|bytes| u16::from_ne_bytes(*bytes))
        .ok_or(ElfError::Bounds("header"))
}

/// The 4 bytes at a place.
pub fn u32_at(bytes: &[u8], at: usize) -> Result<u32, ElfError> {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(ElfError::Bounds("header"))
}

/// The 8 bytes at a place, or the 4 of a 32-bit file.
pub fn word(bytes: &[u8], at: usize, wide: bool) -> Result<u64, ElfError> {
    if !wide {
        return u32_at(bytes, at).map(u64::from);
    }
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes
        .map(|bytes| u64::from_ne_bytes(*bytes))
        .ok_or(ElfError::Bounds("header"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file with so many sections of `kind` and `flags`, each of which, and the names, is all that
    /// follows them.
    pub(super) fn file_of(count: u16, kind: u32, flags: u64, content: &[u8]) -> File {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[40..48].copy_from_slice(&64_u64.to_ne_bytes());
        bytes[60..62].copy_from_slice(&count.to_ne_bytes());
        let place = 64 + 64 * u64::from(count);
        for _ in 0..count {
            let mut header = [0; 64];
            header[4..8].copy_from_slice(&kind.to_ne_bytes());
            header[8..16].copy_from_slice(&flags.to_ne_bytes());
            header[24..32].copy_from_slice(&place.to_ne_bytes());
            header[32..40].copy_from_slice(&(content.len() as u64).to_ne_bytes());
            bytes.extend(header);
        }
        bytes.extend(content);
        let made = rustix::fs::memfd_create("elf", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(made.unwrap());
        file.write_all(&bytes).unwrap();
        file
    }

    #[test]
    fn names_of_sections_without_an_end_are_cut() {
        // Not UTF-8, so that each byte becomes three.
        let file = file_of(4096, 3, 0, &[0xff; MAX_NOTES_BYTES as usize]);
        let sections = Elf::read(&file).unwrap().sections(&file).unwrap();
        let bytes: usize = sections.iter().map(|section| section.name.len()).sum();
        assert_eq!(bytes, 4096 * MAX_NAME_BYTES * 3);
    }

    #[test]
    fn what_others_could_read_otherwise_is_refused() {
        let damage = |at: u64, bytes: &[u8]| {
            // Two sections, whose names begin with an empty one.
            let file = file_of(2, 3, 0, &[0; 8]);
            let read = |file: &File| Elf::read(file)?.sections(file);
            assert_eq!(read(&file).unwrap().len(), 2);
            file.write_all_at(bytes, at).unwrap();
            read(&file)
        };
        // The name of the second one lies behind all names.
        let far = damage(64 + 64, &9_u32.to_ne_bytes());
        assert!(matches!(far, Err(ElfError::Bounds("section name"))));
        // No number of sections: it is in the first one, which has a size.
        let hidden = damage(60, &0_u16.to_ne_bytes());
        assert!(matches!(hidden, Err(ElfError::Bounds("section table"))));
        // The number of the section with names is too large for the header.
        let names = damage(62, &0xffff_u16.to_ne_bytes());
        assert!(matches!(names, Err(ElfError::Bounds("section names"))));
    }

    /// Two segments whose code shares a page of the file, at different biases.
    #[test]
    fn a_mapping_is_of_the_segment_at_its_address_or_of_most_of_its_bytes() {
        let segment = |offset, address, len| Segment {
            offset,
            address,
            len,
            executable: true,
        };
        let elf = Elf {
            segments: [
                segment(0x1000, 0x900000, 0x3b),
                segment(0x1320, 0x902320, 0x5000),
            ]
            .into(),
            ..Elf::default()
        };
        assert_eq!(elf.code_bias(), 0x8ff000);
        // Where the program is linked to be.
        assert_eq!(elf.bias_of_mapping(0x900000, 0x1000, 0x1000), 0x8ff000);
        assert_eq!(elf.bias_of_mapping(0x902000, 0x1000, 0x6000), 0x901000);
        // Anywhere.
        assert_eq!(
            elf.bias_of_mapping(0x7f00_0000_2000, 0x1000, 0x6000),
            0x901000
        );
        // A part of it, and none of it.
        assert_eq!(
            elf.bias_of_mapping(0x7f00_0000_3000, 0x2000, 0x1000),
            0x901000
        );
        assert_eq!(
            elf.bias_of_mapping(0x7f00_0000_3000, 0x9000, 0x1000),
            0x8ff000
        );
    }
}
