//! What an object file says about its frames, as it is in the file.
//!
//! An open ELF file, and perhaps the file of its debug information -> [`Raw`]: where its code is, and the bytes
//! of a few sections, which are neither unpacked nor understood here. So who has privileges can read it, find
//! out by its digest whether there is a table of it already, and hand it on to who has none.
//!
//! What does not belong here: what it says (`build`), and tables that are kept (`cache`).

use std::fs::File;
use std::io::{self, Write};

use profiler_object::cfi::Kind;
use profiler_object::elf::{Elf, ElfError, half, read_up_to};
use ring::digest::{Context, SHA256};

use super::build::{BuildError, MAX_SECTION_BYTES, Source};
use super::outermost::{self, MAX_RANGES};
use super::startup::{self, Startup};
use super::stubs::{self, Stubs};
use super::{BuildReport, Table, go};

const EM_X86_64: u16 = 62;
const SHT_NOBITS: u32 = 8;
/// Most segments with code: more than are read of an ELF file.
const MAX_CODE: u64 = 1 << 10;
/// Most sections: of each kind one.
const MAX_SECTIONS: u64 = 2;

/// What a table is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    /// Where code is: addresses and ends, in their order.
    pub(super) code: Vec<(u64, u64)>,
    /// Addresses of `.text` and `.got`.
    pub(super) text: u64,
    pub(super) got: u64,
    /// Where walks end, whatever is not said there: addresses and ends, in their order.
    pub(super) outermost: Vec<(u64, u64)>,
    /// Code that the loader calls, and what creates threads.
    pub(super) startup: Startup,
    /// What leads to other files.
    pub(super) stubs: Vec<Stubs>,
    /// In the order of their precedence.
    pub(super) sections: Vec<RawSection>,
    /// It may be a Go program, of which more has to be read than this.
    pub(super) may_be_go: bool,
}

/// A section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawSection {
    pub(super) kind: Kind,
    pub(super) address: u64,
    /// It is compressed, and whether that is of a file whose words have 64 bits.
    pub(super) packed: Option<bool>,
    pub(super) bytes: Vec<u8>,
}

impl Raw {
    /// Reads it from a file.
    pub(super) fn read(
        file: &File,
        elf: &Elf,
        debug: Option<(&File, &Elf)>,
    ) -> Result<Raw, BuildError> {
        Raw::up_to(file, elf, debug, MAX_SECTION_BYTES)
    }

    /// The same, unless a section has more bytes than this.
    pub(super) fn up_to(
        file: &File,
        elf: &Elf,
        debug: Option<(&File, &Elf)>,
        limit: u64,
    ) -> Result<Raw, BuildError> {
        check_machine(file, elf)?;
        let mut raw = Raw::default();
        let code = elf.segments.iter().filter(|segment| segment.executable);
        raw.code = code
            .map(|segment| {
                let end = segment.address.saturating_add(segment.len);
                (segment.address, end)
            })
            .collect();
        raw.code.sort_unstable();
        let sections = elf.sections(file)?;
        raw.may_be_go = go::may_be_go(&sections);
        let address = |name| {
            let mut named = sections.iter().filter(|section| section.name == name);
            named.next().map_or(0, |section| section.address)
        };
        raw.text = address(".text");
        raw.got = address(".got");
        let symbols = outermost::symbols(file, &sections);
        raw.outermost = outermost::ranges(file, elf, &symbols);
        raw.startup = Startup::read(file, elf, &sections);
        raw.stubs = stubs::stubs(file, elf, &sections);
        if symbols.clone {
            raw.startup.add_creators(file, elf);
        }
        let wanted = [(".eh_frame", Kind::Eh), (".debug_frame", Kind::Debug)];
        let main = Some((file, elf));
        for (name, kind) in wanted {
            for (file, elf) in [main, debug].into_iter().flatten() {
                let sections = elf.sections(file)?;
                let mut named = sections.iter().filter(|section| {
                    section.name == name
                        && section.kind != SHT_NOBITS
                        && section.bytes_in_file() > 0
                });
                if let Some(section) = named.next() {
                    raw.sections.push(RawSection {
                        kind,
                        address: section.address,
                        packed: section.is_packed().then_some(elf.wide),
                        bytes: section.bytes(file, limit)?,
                    });
                    break;
                }
            }
        }
        Ok(raw)
    }

    /// Bytes of all sections.
    pub(super) fn bytes(&self) -> u64 {
        let sections = self.sections.iter();
        sections.map(|section| section.bytes.len() as u64).sum()
    }

    /// A digest of all of it, in hexadecimal digits. What `owner`s have has digests of its own.
    pub(super) fn digest(&self, owner: Option<u32>) -> String {
        let mut digest = Context::new(&SHA256);
        let owner = owner.map_or(u64::MAX, u64::from);
        // All lengths come before, so that no two give the same bytes.
        for number in [owner].into_iter().chain(self.numbers()) {
            digest.update(&number.to_le_bytes());
        }
        for bytes in self.pieces() {
            digest.update(bytes);
        }
        let digest = digest.finish();
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    }

    /// The bytes of sections and of code.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let code = self.startup.code.iter().map(|(_, bytes)| bytes.as_slice());
        let sections = self.sections.iter().map(|section| section.bytes.as_slice());
        sections.chain(code)
    }

    /// All but these bytes.
    fn numbers(&self) -> Vec<u64> {
        let Startup {
            entries,
            creators,
            code,
        } = &self.startup;
        let counts = [
            self.code.len(),
            self.outermost.len(),
            self.sections.len(),
            entries.len(),
            creators.len(),
            code.len(),
            self.stubs.len(),
        ];
        let mut numbers = vec![self.text, self.got];
        numbers.extend(counts.map(|count| count as u64));
        for &(start, end) in self.code.iter().chain(&self.outermost) {
            numbers.extend([start, end]);
        }
        numbers.extend(entries.iter().chain(creators));
        for stubs in &self.stubs {
            numbers.extend([stubs.start, stubs.end, stubs.taken, stubs.late]);
        }
        for (address, bytes) in code {
            numbers.extend([*address, bytes.len() as u64]);
        }
        for section in &self.sections {
            let packed = section.packed.map_or(0, |wide| 1 + u64::from(wide));
            numbers.extend([
                u64::from(section.kind == Kind::Debug),
                section.address,
                packed,
                section.bytes.len() as u64,
            ]);
        }
        numbers
    }

    /// A file without a name that holds it, for [`build_raw`].
    pub fn to_file(&self) -> io::Result<File> {
        let made = rustix::fs::memfd_create("frames", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = File::from(made);
        let numbers = self.numbers().into_iter().flat_map(u64::to_le_bytes);
        file.write_all(&numbers.collect::<Vec<u8>>())?;
        for bytes in self.pieces() {
            file.write_all(bytes)?;
        }
        Ok(file)
    }

    fn of_file(file: &File) -> Option<Raw> {
        let mut at = 0;
        let mut bytes = |len: u64| {
            let mut bytes = vec![0; usize::try_from(len).ok()?];
            let got = read_up_to(file, &mut bytes, at).ok()?;
            at += got as u64;
            (got == bytes.len()).then_some(bytes)
        };
        let mut number = || Some(u64::from_le_bytes(*bytes(8)?.first_chunk()?));
        let mut raw = Raw {
            text: number()?,
            got: number()?,
            ..Raw::default()
        };
        let (code, outermost, sections) = (number()?, number()?, number()?);
        let (entries, creators, pieces) = (number()?, number()?, number()?);
        let stubs = number()?;
        if code > MAX_CODE
            || outermost > MAX_RANGES as u64
            || sections > MAX_SECTIONS
            || entries > startup::MAX_ENTRIES as u64
            || creators > startup::MAX_CREATORS as u64
            || stubs > stubs::MAX_STUBS as u64
            || pieces > (startup::MAX_ENTRIES + startup::MAX_CREATORS) as u64
        {
            return None;
        }
        for _ in 0..code {
            raw.code.push((number()?, number()?));
        }
        for _ in 0..outermost {
            raw.outermost.push((number()?, number()?));
        }
        for _ in 0..entries {
            raw.startup.entries.push(number()?);
        }
        for _ in 0..creators {
            raw.startup.creators.push(number()?);
        }
        for _ in 0..stubs {
            raw.stubs.push(Stubs {
                start: number()?,
                end: number()?,
                taken: number()?,
                late: number()?,
            });
        }
        let mut places = Vec::new();
        for _ in 0..pieces {
            places.push((number()?, number()?));
        }
        let mut lens = Vec::new();
        for _ in 0..sections {
            raw.sections.push(RawSection {
                kind: match number()? {
                    0 => Kind::Eh,
                    _ => Kind::Debug,
                },
                address: number()?,
                packed: number()?.checked_sub(1).map(|wide| wide != 0),
                bytes: Vec::new(),
            });
            lens.push(number()?);
        }
        for (section, len) in raw.sections.iter_mut().zip(lens) {
            section.bytes = bytes(Some(len).filter(|&len| len <= MAX_SECTION_BYTES)?)?;
        }
        for (address, len) in places {
            let len = Some(len).filter(|&len| len <= startup::MAX_BYTES)?;
            raw.startup.code.push((address, bytes(len)?));
        }
        Some(raw)
    }
}

/// Builds the table of what a file holds that [`Raw::to_file`] has made.
pub fn build_raw(file: &File) -> Result<(Table, BuildReport), BuildError> {
    let raw = Raw::of_file(file).ok_or_else(|| BuildError::Read("it was cut off".to_owned()))?;
    Source::of(raw, None)?.build()
}

fn check_machine(file: &File, elf: &Elf) -> Result<(), BuildError> {
    let mut head = [0; 20];
    let got = read_up_to(file, &mut head, 0).map_err(ElfError::from)?;
    if !elf.wide || half(&head[..got], 18)? != EM_X86_64 {
        return Err(BuildError::Machine);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build_file;

    #[test]
    fn what_is_handed_over_gives_the_table_of_the_file() {
        let program = File::open("/proc/self/exe").unwrap();
        let raw = Raw::read(&program, &Elf::read(&program).unwrap(), None).unwrap();
        let handed = raw.to_file().unwrap();
        assert_eq!(Raw::of_file(&handed).unwrap(), raw);
        let built = build_file(&program, None).unwrap();
        assert_eq!(build_raw(&handed).unwrap(), built);
        for len in [0, 8, 40, handed.metadata().unwrap().len() - 1] {
            handed.set_len(len).unwrap();
            assert!(build_raw(&handed).is_err(), "{len}");
        }
    }

    #[test]
    fn every_input_of_a_table_is_in_its_digest() {
        let section = |kind, bytes: &[u8], address| RawSection {
            kind,
            address,
            packed: None,
            bytes: bytes.to_vec(),
        };
        let raw = || Raw {
            code: vec![(1, 2)],
            text: 3,
            got: 4,
            outermost: Vec::new(),
            startup: Startup::default(),
            stubs: Vec::new(),
            sections: vec![section(Kind::Eh, &[5], 6)],
            may_be_go: false,
        };
        let mut digests = vec![raw().digest(None), raw().digest(Some(0))];
        let mut add = |change: &dyn Fn(&mut Raw)| {
            let mut changed = raw();
            change(&mut changed);
            digests.push(changed.digest(None));
        };
        add(&|raw| raw.code[0].1 = 3);
        add(&|raw| raw.code.push((4, 5)));
        add(&|raw| raw.outermost.push((4, 5)));
        add(&|raw| raw.startup.entries.push(4));
        add(&|raw| raw.startup.creators.push(4));
        add(&|raw| raw.startup.code.push((4, Vec::new())));
        add(&|raw| raw.startup.code.push((4, vec![5])));
        let stubs = Stubs {
            start: 4,
            end: 5,
            taken: 6,
            late: 7,
        };
        add(&|raw| raw.stubs.push(stubs));
        add(&|raw| raw.stubs.push(Stubs { late: 8, ..stubs }));
        add(&|raw| raw.text = 0);
        add(&|raw| raw.got = 0);
        add(&|raw| raw.sections[0].kind = Kind::Debug);
        add(&|raw| raw.sections[0].bytes = vec![0]);
        add(&|raw| raw.sections[0].address = 0);
        add(&|raw| raw.sections[0].packed = Some(false));
        add(&|raw| raw.sections[0].packed = Some(true));
        add(&|raw| raw.sections.push(section(Kind::Debug, &[], 0)));
        let len = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), len);
        assert_eq!(raw().digest(None), raw().digest(None));
    }
}
