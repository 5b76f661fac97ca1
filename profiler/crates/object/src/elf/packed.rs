//! Sections of an ELF file that are compressed, of an untrusted file.
//!
//! A section -> its contents, or that it would unpack to more than is allowed, which is found out before a library without
//! limits unpacks it; a file that is ours alone -> the same file with its sections unpacked behind its end, so that several
//! readers need not unpack them each for itself. Source: the System V ABI, chapter 4, "Section Compression".
//!
//! What does not belong here: what the contents mean.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;

use super::{Elf, ElfError, SHF_COMPRESSED, SHT_NOBITS, Section, read_up_to, u32_at, word};

/// Most bytes that all compressed sections of a file may have when unpacked, and before.
const MAX_UNPACKED_BYTES: u64 = 256 << 20;
/// Most bytes of a packed section that are read to check it.
const MAX_PACKED_BYTES: u64 = 128 << 20;
/// Most bytes that zlib makes of one; a longer length is a lie.
const MAX_ZLIB_RATIO: u64 = 1032;
/// Most memory that unpacking `.gnu_debugdata` may need for its window.
const XZ_MEMORY_KIB: u32 = 64 << 10;
/// The longest header of a packed section.
const PACKED_HEAD: usize = 24;
/// What sections begin at a multiple of.
const ALIGNMENT: u64 = 16;
/// Sections that nobody here reads.
const NEEDLESS: [&str; 4] = [
    ".debug_loc",
    ".debug_loclists",
    ".debug_macro",
    ".debug_macinfo",
];

const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;

impl Elf {
    /// Refuses sections that would unpack to more than is allowed, before a library without limits
    /// unpacks them.
    pub fn check_packed(&self, file: &File, sections: &[Section]) -> Result<(), ElfError> {
        let mut left = MAX_UNPACKED_BYTES;
        // Sections may lie over each other, and say that they unpack to nothing.
        let mut packed = MAX_UNPACKED_BYTES;
        for section in sections {
            let unpacked = if section.is_packed() && section.kind != SHT_NOBITS {
                packed = packed
                    .checked_sub(section.len)
                    .ok_or_else(|| ElfError::Bomb(section.name.clone()))?;
                let bytes = section.bytes(file, MAX_PACKED_BYTES)?;
                let packed = Packed::read(&bytes, self.wide)?;
                if packed.is_bomb(left) {
                    return Err(ElfError::Bomb(section.name.clone()));
                }
                packed.declared
            } else if section.name == ".gnu_debugdata" {
                let bytes = section.bytes(file, MAX_PACKED_BYTES)?;
                count_bytes(unpacking(&bytes), left)
            } else {
                0
            };
            left = left
                .checked_sub(unpacked)
                .ok_or_else(|| ElfError::Bomb(section.name.clone()))?;
        }
        Ok(())
    }

    /// Whether [`Elf::unpack_within`] is worth its copy: so many bytes the sections say that they unpack to, if most of the
    /// file are such sections; 0 otherwise, or if it is more than is allowed.
    pub fn unpacked_bytes(&self, file: &File, sections: &[Section]) -> u64 {
        let packed = sections.iter().filter(|section| section.is_unpacked_here());
        let (mut before, mut after) = (0_u64, 0_u64);
        for section in packed {
            let mut head = [0; PACKED_HEAD];
            let got = read_up_to(file, &mut head, section.offset).unwrap_or(0);
            let declared =
                Packed::read(&head[..got], self.wide).map_or(0, |packed| packed.declared);
            before = before.saturating_add(section.len);
            if !section.is_needless() {
                after = after.saturating_add(declared).saturating_add(ALIGNMENT);
            }
        }
        let file = file.metadata().map_or(u64::MAX, |file| file.len());
        let is_worth_it = before > file / 2 && after <= MAX_UNPACKED_BYTES;
        if is_worth_it { after } else { 0 }
    }

    /// Unpacks the sections of a file that nobody else has, of `len` bytes, behind its end, up to `room` bytes in all. What can't be
    /// unpacked, or not as it says of itself, stays as it is. The headers are to be read again.
    pub fn unpack_within(
        &self,
        file: &File,
        sections: &[Section],
        (len, room): (u64, u64),
    ) -> io::Result<()> {
        let mut end = len;
        let mut headers = Vec::new();
        // Of all that is tried, in vain or not: sections may lie over each other.
        let mut left = (MAX_UNPACKED_BYTES, MAX_UNPACKED_BYTES);
        for (index, section) in sections.iter().enumerate() {
            if !section.is_unpacked_here() {
                continue;
            }
            let mut place = (0, 0);
            if !section.is_needless() {
                let start = end.next_multiple_of(ALIGNMENT);
                match self.unpack_to(file, section, (start, room), &mut left)? {
                    Some(size) => place = (start, size),
                    None => continue,
                }
                end = start + place.1;
            }
            headers.push((index, section, place));
        }
        // All were unpacked first: headers may lie over what is packed.
        for (index, section, place) in headers {
            self.set_unpacked(file, (index, section), place)?;
        }
        rustix::fs::ftruncate(file, end)?;
        Ok(())
    }

    /// Writes what a section unpacks to, and says how long it is; none if it is not what it says, or has no room. What it takes,
    /// packed and unpacked, is taken off what is left.
    fn unpack_to(
        &self,
        file: &File,
        section: &Section,
        (start, room): (u64, u64),
        left: &mut (u64, u64),
    ) -> io::Result<Option<u64>> {
        let Some(packed_left) = left.0.checked_sub(section.len) else {
            return Ok(None);
        };
        left.0 = packed_left;
        let Ok(bytes) = section.bytes(file, MAX_PACKED_BYTES) else {
            return Ok(None);
        };
        let Ok(packed) = Packed::read(&bytes, self.wide) else {
            return Ok(None);
        };
        let size = packed.declared;
        if packed.is_lie(room.saturating_sub(start).min(left.1)) {
            return Ok(None);
        }
        left.1 -= size;
        let Some(mut reader) = packed.reader() else {
            return Ok(None);
        };
        let mut buffer = vec![0; 256 << 10];
        let mut done = 0;
        loop {
            let got = match reader.read(&mut buffer) {
                Ok(0) => return Ok((done == size).then_some(size)),
                Ok(got) => got,
                Err(_) => return Ok(None),
            };
            if got as u64 > size - done {
                return Ok(None);
            }
            file.write_all_at(&buffer[..got], start + done)?;
            done += got as u64;
        }
    }

    /// Says in the file that a section is not packed, and where it lies.
    fn set_unpacked(
        &self,
        file: &File,
        (index, section): (usize, &Section),
        (start, size): (u64, u64),
    ) -> io::Result<()> {
        let (table, _, _) = self.section_table;
        let flags = section.flags & !SHF_COMPRESSED;
        let header = |bytes: u64| table.saturating_add(index as u64 * bytes);
        if self.wide {
            file.write_all_at(&flags.to_ne_bytes(), header(64) + 8)?;
            file.write_all_at(
                [start, size].map(u64::to_ne_bytes).as_flattened(),
                header(64) + 24,
            )
        } else {
            let narrow = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
            let place = [narrow(start), narrow(size)];
            file.write_all_at(&narrow(flags).to_ne_bytes(), header(40) + 8)?;
            file.write_all_at(place.map(u32::to_ne_bytes).as_flattened(), header(40) + 16)
        }
    }

    /// The contents of a section as they were before they were compressed.
    pub fn contents(
        &self,
        file: &File,
        section: &Section,
        limit: u64,
    ) -> Result<Vec<u8>, ElfError> {
        if !section.is_packed() {
            return section.bytes(file, limit);
        }
        let bytes = section.bytes(file, MAX_PACKED_BYTES)?;
        unpack(&bytes, self.wide, limit).ok_or_else(|| ElfError::Bomb(section.name.clone()))
    }

    /// The bytes of `.gnu_debugdata`, an ELF file with the symbols that a distribution left out.
    pub fn mini_debug_info(&self, file: &File, section: &Section) -> Result<Vec<u8>, ElfError> {
        let bytes = section.bytes(file, MAX_PACKED_BYTES)?;
        let mut unpacked = Vec::new();
        let mut reader = io::Read::take(unpacking(&bytes), MAX_UNPACKED_BYTES);
        match io::Read::read_to_end(&mut reader, &mut unpacked) {
            Ok(_) => Ok(unpacked),
            Err(_) => Err(ElfError::Bomb(section.name.clone())),
        }
    }
}

impl Section {
    fn is_unpacked_here(&self) -> bool {
        self.is_packed() && self.kind != SHT_NOBITS
    }

    /// Whether nobody here reads it: where variables are, and macros. Of a package (`.dwo`) all is read, whose index refers to it.
    fn is_needless(&self) -> bool {
        NEEDLESS.contains(&&*self.name)
    }
}

/// The contents of a compressed section; none if they are damaged, or more than `limit`. `wide`: of a file
/// whose words have 64 bits.
pub fn unpack(bytes: &[u8], wide: bool, limit: u64) -> Option<Vec<u8>> {
    let packed = Packed::read(bytes, wide).ok()?;
    if packed.is_lie(limit) {
        return None;
    }
    // One more than there should be, for what is longer to be seen.
    let most = packed.declared.checked_add(1)?;
    let mut unpacked = Vec::new();
    unpacked
        .try_reserve_exact(usize::try_from(most).ok()?)
        .ok()?;
    let reader = packed.reader()?;
    io::Read::read_to_end(&mut io::Read::take(reader, most), &mut unpacked).ok()?;
    (unpacked.len() as u64 == packed.declared).then_some(unpacked)
}

/// A compressed section.
struct Packed<'a> {
    format: u32,
    /// How long it is when unpacked, as it says itself.
    declared: u64,
    data: &'a [u8],
}

impl<'a> Packed<'a> {
    fn read(bytes: &'a [u8], wide: bool) -> Result<Packed<'a>, ElfError> {
        let (head, size_at) = if wide { (24, 8) } else { (12, 4) };
        let data = bytes.get(head..);
        Ok(Packed {
            declared: word(bytes, size_at, wide)?,
            data: data.ok_or(ElfError::Bounds("packed section"))?,
            format: u32_at(bytes, 0)?,
        })
    }

    /// Whether memory of the length that it says is not to be taken.
    fn is_lie(&self, limit: u64) -> bool {
        let most = self.data.len() as u64;
        let is_zlib = self.format == ELFCOMPRESS_ZLIB;
        self.declared > limit || is_zlib && self.declared / MAX_ZLIB_RATIO > most
    }

    /// What unpacks it; none if nothing here does.
    fn reader(&self) -> Option<Box<dyn io::Read + 'a>> {
        match self.format {
            ELFCOMPRESS_ZLIB => Some(Box::new(ZlibDecoder::new(self.data))),
            ELFCOMPRESS_ZSTD => Some(Box::new(
                zstd::stream::read::Decoder::with_buffer(self.data).ok()?,
            )),
            _ => None,
        }
    }

    /// Whether more comes of it than it says, or than is allowed.
    fn is_bomb(&self, limit: u64) -> bool {
        let more = |reader| count_bytes(reader, self.declared) > self.declared;
        self.is_lie(limit) || self.reader().is_some_and(more)
    }
}

/// What `.gnu_debugdata` holds: one stream of xz.
fn unpacking(bytes: &[u8]) -> lzma_rust2::XzReader<&[u8]> {
    lzma_rust2::XzReader::new_mem_limit(bytes, false, XZ_MEMORY_KIB)
}

/// How many bytes come out of `reader`: all, up to the first error, or one more than `limit`.
fn count_bytes(mut reader: impl io::Read, limit: u64) -> u64 {
    let mut buffer = vec![0; 64 << 10];
    let mut count = 0;
    while count <= limit {
        match reader.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => count += read as u64,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::tests::file_of;
    use super::*;

    #[test]
    fn packed_sections_over_each_other_are_refused() {
        // Zstandard, and nothing in it.
        let mut content = vec![0; 1 << 20];
        content[0] = ELFCOMPRESS_ZSTD as u8;
        let check = |count| {
            let file = file_of(count, 1, SHF_COMPRESSED, &content);
            let elf = Elf::read(&file).unwrap();
            elf.check_packed(&file, &elf.sections(&file).unwrap())
        };
        assert!(check(16).is_ok());
        assert!(matches!(check(257), Err(ElfError::Bomb(_))));
    }

    /// What is not as long as it says is not unpacked, and what is longer is refused where others would unpack it.
    #[test]
    fn packed_sections_have_the_length_that_they_say() {
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_ne_bytes).collect();
        let mut zlib = Vec::new();
        let mut encoder = flate2::read::ZlibEncoder::new(&*content, flate2::Compression::fast());
        io::Read::read_to_end(&mut encoder, &mut zlib).unwrap();
        let zstandard = zstd::encode_all(&*content, 1).unwrap();
        let len = content.len() as u64;
        for (format, data) in [(ELFCOMPRESS_ZLIB, zlib), (ELFCOMPRESS_ZSTD, zstandard)] {
            let section = |declared: u64, data: &[u8]| {
                let head = [u64::from(format), declared, 1].map(u64::to_ne_bytes);
                [head.as_flattened(), data].concat()
            };
            let unpacked =
                |declared, data: &[u8], limit| unpack(&section(declared, data), true, limit);
            assert_eq!(unpacked(len, &data, len).as_ref(), Some(&content));
            assert_eq!(unpacked(len, &data, len - 1), None);
            for lie in [0, len - 1, len + 1, u64::MAX] {
                assert_eq!(unpacked(lie, &data, u64::MAX - 1), None, "{format}: {lie}");
            }
            assert_eq!(unpacked(len, &data[..data.len() / 2], len), None);
            let is_bomb = |declared, data: &[u8], limit| {
                let section = section(declared, data);
                Packed::read(&section, true).unwrap().is_bomb(limit)
            };
            assert!(!is_bomb(len, &data, len));
            assert!(is_bomb(len, &data, len - 1));
            assert!(is_bomb(len - 1, &data, len));
            assert!(is_bomb(0, &data, len));
            // Shorter ones and damaged ones are errors to whoever unpacks them.
            assert!(!is_bomb(len + 1, &data, len + 1));
            assert!(!is_bomb(len, &data[..data.len() / 2], len));
        }
    }
}
