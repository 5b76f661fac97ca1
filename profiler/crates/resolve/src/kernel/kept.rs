//! The kernel's symbols on disk, so that they are read once per boot, not once per recording.
//!
//! A [`Kernel`] -> a file, and back. The name of the file is a digest (SHA-256) of all that its contents
//! hang on: the boot, the image's build id, the first lines of kallsyms (in which is where the kernel was put
//! in memory), and each module with its place, size and build id. Where addresses are hidden from us
//! nothing is kept or read back.
//!
//! Symbols of BPF programs and trampolines come and go, and are not kept.
//!
//! A file is checked whole before it is used; a damaged one is read from the kernel again and replaced. There is
//! one file: what an earlier boot or other modules left is removed when a new one is written.
//!
//! ```text
//! "kernel\n" version | checksum u32, names u32, symbols u64 | _stext, _etext u64
//! symbols: start u64, name u32 | names, each with a zero behind it
//! ```
//! Numbers are little endian; the checksum (CRC-32) is of all behind it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ring::digest::{Context, SHA256};
use rustix::fs::AtFlags;

use super::{Kernel, KernelFiles, MAX_NAME_BYTES, MAX_SYMBOLS, Symbol, parse_symbol};
use profiler_unwind::cache::folder::{CacheError, UNFINISHED, open, open_directory, read, write};

/// What a file begins with. Another version of the format is another number.
const MAGIC: &[u8; 8] = b"kernel\n\x01";
const HEAD_BYTES: usize = 40;
/// Where what the checksum is of begins.
const CHECKED_FROM: usize = 12;
const SYMBOL_BYTES: usize = 12;
/// Largest file.
const MAX_BYTES: u64 =
    (HEAD_BYTES + MAX_SYMBOLS * SYMBOL_BYTES + MAX_NAME_BYTES) as u64 + (1 << 20);
/// So much of the beginning of kallsyms goes into the name.
const BEGINNING_BYTES: usize = 4096;
/// What has been unfinished for so long was left by a profiler that was killed.
const UNFINISHED_SECONDS: i64 = 3600;

impl Kernel {
    /// The name of what is kept of this kernel; none if it hides its addresses. Its modules are known.
    pub(super) fn key(&self, files: &KernelFiles) -> Option<String> {
        let beginning = beginning(&files.kallsyms)?;
        let boot = std::fs::read(&files.boot_id).ok()?;
        let mut digest = Context::new(&SHA256);
        let mut part = |bytes: &[u8]| {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        part(MAGIC);
        part(&boot);
        part(&beginning);
        for loaded in std::iter::once(&self.image).chain(&self.modules) {
            part(loaded.module.path.as_bytes());
            part(&loaded.start.to_le_bytes());
            part(&loaded.end.to_le_bytes());
            let build_id = loaded.module.build_id.as_ref();
            part(build_id.map_or(&[], |id| &id.0));
        }
        let digest = digest.finish();
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        Some(digits.collect())
    }

    /// Takes the symbols that were kept under this name, if they are there and sound.
    pub(super) fn take_kept(&mut self, folder: &Path, key: &str) -> Option<()> {
        let folder = open_directory(folder).ok()?;
        let file = open(&folder, key)?;
        let bytes = read(file.as_fd(), MAX_BYTES)?;
        if self.decode(bytes).is_none() {
            // So that a sound one can take its place.
            let _ = rustix::fs::unlinkat(&folder, key, AtFlags::empty());
            return None;
        }
        Some(())
    }

    /// Keeps what stays, in place of all that was kept before.
    pub(super) fn keep(&self, folder: &Path, key: &str) -> Result<(), CacheError> {
        if self.restricted {
            return Ok(());
        }
        let folder = open_directory(folder)?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let files = rustix::fs::Dir::read_from(&folder)?.filter_map(Result::ok);
        for file in files.filter(|file| file.file_name().to_bytes() != key.as_bytes()) {
            let name = OsStr::from_bytes(file.file_name().to_bytes());
            let being_written = name.as_bytes().ends_with(UNFINISHED.as_bytes())
                && rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| stat.st_mtime > now - UNFINISHED_SECONDS);
            if !being_written {
                // Directories stay, `.` and `..` among them.
                let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
            }
        }
        match write(&folder, key, &self.encode()) {
            // Another profiler is about to keep the same.
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (mut symbols, mut names) = (Vec::new(), Vec::new());
        let mut count = 0_u64;
        for symbol in &self.symbols {
            // The end of the image is where its last function ends.
            if self.loaded(symbol.start).is_none() && symbol.start != self.image.end {
                continue;
            }
            let name = &self.names[symbol.name as usize..];
            let len = name.iter().position(|&byte| byte == 0);
            count += 1;
            symbols.extend(symbol.start.to_le_bytes());
            symbols.extend((names.len() as u32).to_le_bytes());
            names.extend_from_slice(&name[..len.unwrap_or(name.len())]);
            names.push(0);
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + symbols.len() + names.len());
        out.extend(MAGIC);
        out.extend([0; 4]);
        out.extend((names.len() as u32).to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(self.image.start.to_le_bytes());
        out.extend(self.image.end.to_le_bytes());
        out.extend(symbols);
        out.extend(names);
        let sum = crc32fast::hash(&out[CHECKED_FROM..]);
        out[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(&mut self, mut bytes: Vec<u8>) -> Option<()> {
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let half = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let names_len = half(12)? as usize;
        let count = usize::try_from(word(16)?).ok()?;
        let (start, end) = (word(24)?, word(32)?);
        if !bytes.starts_with(MAGIC)
            || half(8)? != crc32fast::hash(bytes.get(CHECKED_FROM..)?)
            || count > MAX_SYMBOLS
            || bytes.len() != HEAD_BYTES + count * SYMBOL_BYTES + names_len
            || (names_len > 0 && bytes.last() != Some(&0))
            || start >= end
        {
            return None;
        }
        let mut symbols = Vec::with_capacity(count);
        for index in 0..count {
            let at = HEAD_BYTES + index * SYMBOL_BYTES;
            symbols.push(Symbol {
                start: word(at)?,
                name: half(at + 8)?,
            });
        }
        let sorted = symbols.is_sorted_by_key(|symbol| symbol.start);
        if !sorted
            || symbols
                .iter()
                .any(|symbol| symbol.name as usize >= names_len)
        {
            return None;
        }
        bytes.drain(..bytes.len() - names_len);
        (self.image.start, self.image.end) = (start, end);
        (self.symbols, self.names) = (symbols, bytes);
        self.whole = false;
        Some(())
    }
}

/// The first lines of kallsyms; none if they tell no address.
fn beginning(kallsyms: &Path) -> Option<Vec<u8>> {
    let mut bytes = vec![0; BEGINNING_BYTES];
    let len = File::open(kallsyms).ok()?.read(&mut bytes).ok()?;
    bytes.truncate(len);
    let mut lines = bytes.split(|&byte| byte == b'\n').filter_map(parse_symbol);
    lines.any(|(address, ..)| address != 0).then_some(())?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::KernelSymbol;
    use super::super::tests::{MODULES, SYMBOLS, Told};
    use super::*;

    /// Functions of the image, of the module and of nothing.
    const ADDRESSES: [u64; 8] = [
        0xffffffff81000000,
        0xffffffff81000150,
        0xffffffff810001ff,
        0xffffffff81000fff,
        0xffffffffc0000048,
        0xffffffffc0000fff,
        0xffffffff80000000,
        0xffffffff82000000,
    ];

    fn places(kernel: &Kernel) -> Vec<(Option<KernelSymbol<'_>>, Option<Box<str>>, u64)> {
        let place = |&address: &u64| {
            let place = kernel.place(address);
            let path = place.module.map(|module| (*module.path).into());
            (kernel.symbol(address), path, place.address)
        };
        ADDRESSES.iter().map(place).collect()
    }

    #[test]
    fn what_was_kept_says_the_same() {
        let told = Told::new(SYMBOLS, MODULES);
        let first = Kernel::load_kept(&told.files());
        assert!(first.whole);
        let second = Kernel::load_kept(&told.files());
        assert!(!second.whole && !second.is_restricted());
        assert_eq!(places(&second), places(&first));
        assert_eq!(second.address_of(0x150), first.address_of(0x150));
        // A BPF program is not there; it is said that all symbols may tell more.
        assert!(second.symbol(0xffffffffa0000010).is_none());
        assert!(!second.knows(0xffffffffa0000010) && second.knows(ADDRESSES[1]));
        assert!(second.knows(ADDRESSES[4]) && first.knows(0xffffffffa0000010));
    }

    #[test]
    fn another_boot_place_or_module_is_read_anew_and_the_old_one_goes() {
        let told = Told::new(SYMBOLS, MODULES);
        let kept = || {
            let folder = std::fs::read_dir(told.files().kept.unwrap()).unwrap();
            let mut names: Vec<_> = folder.map(|file| file.unwrap().file_name()).collect();
            assert_eq!(names.len(), 1);
            names.remove(0)
        };
        let changes = [
            ("boot_id", "two".to_owned()),
            ("modules", MODULES.replace("4096", "8192")),
            ("modules", String::new()),
            ("kallsyms", SYMBOLS.replace("ffffffff81", "ffffffff91")),
        ];
        assert!(Kernel::load_kept(&told.files()).whole);
        let mut before = kept();
        for (file, text) in changes {
            told.write(file, &text);
            assert!(Kernel::load_kept(&told.files()).whole, "{file}");
            assert!(!Kernel::load_kept(&told.files()).whole, "{file}");
            assert_ne!(std::mem::replace(&mut before, kept()), kept(), "{file}");
        }
    }

    #[test]
    fn hidden_addresses_are_neither_kept_nor_found() {
        let told = Told::new(SYMBOLS, MODULES);
        assert!(Kernel::load_kept(&told.files()).whole);
        told.write(
            "kallsyms",
            "0000000000000000 T _stext\n0000000000000000 T do_work\n",
        );
        let hidden = Kernel::load_kept(&told.files());
        assert!(hidden.whole && hidden.is_restricted());
        assert!(hidden.symbol(ADDRESSES[1]).is_none());
        told.write("kallsyms", SYMBOLS);
        assert!(!Kernel::load_kept(&told.files()).whole);
    }

    #[test]
    fn a_damaged_file_is_read_anew_and_replaced() {
        let told = Told::new(SYMBOLS, MODULES);
        let whole = Kernel::load_kept(&told.files());
        let folder = told.files().kept.unwrap();
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
        let sound = std::fs::read(file.path()).unwrap();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x40;
            assert!(Kernel::default().decode(damaged).is_none(), "{at}");
            assert!(
                Kernel::default().decode(sound[..at].to_vec()).is_none(),
                "{at}"
            );
        }
        std::fs::write(file.path(), &sound[..sound.len() - 3]).unwrap();
        let read = Kernel::load_kept(&told.files());
        assert!(read.whole);
        assert_eq!(places(&read), places(&whole));
        assert_eq!(std::fs::read(file.path()).unwrap(), sound);
    }
}
