//! The files that processes map: their tables, their segments of code, the names of their functions.
//!
//! Paths and mappings -> [`Files`], [`Space`]. Segments and symbols are read by the `object` crate and
//! not by our own reader of ELF files. Addresses are a process's, or a file's own where it says so.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};
use profiler_unwind::walk::{Code, Place};
use profiler_unwind::{Table, build_file, build_vdso};

use super::Mapped;

/// The kernel's page that instructions of probes are executed in, and calls of probed functions return to.
const PROBES: &str = "[uprobes]";

/// A mapped file.
pub struct MappedFile {
    /// Its table; none if it says nothing about its frames.
    pub table: Option<Table>,
    /// Its build id, hexadecimal.
    pub build_id: String,
    /// Offset, length and the file's own address of each segment of code.
    segments: Vec<(u64, u64, u64)>,
    path: PathBuf,
    /// By address, with length.
    symbols: OnceCell<BTreeMap<u64, (u64, String)>>,
}

/// All files met so far.
pub struct Files {
    files: BTreeMap<String, MappedFile>,
    vdso: PathBuf,
    /// Where names are looked up of files that have none themselves.
    named_by: BTreeMap<PathBuf, PathBuf>,
}

/// What one process has mapped.
pub struct Space<'a> {
    /// The files.
    pub files: &'a Files,
    /// The mappings.
    pub mapped: &'a [Mapped],
}

impl Files {
    /// None yet. The kernel's vDSO is written to a file in `folder`.
    pub fn new(folder: &Path) -> io::Result<Files> {
        let vdso = folder.join("vdso.so");
        fs::write(&vdso, own_vdso()?)?;
        Ok(Files {
            files: BTreeMap::new(),
            vdso,
            named_by: BTreeMap::new(),
        })
    }

    /// The names of `file` are in `twin`.
    pub fn names_in(&mut self, file: &Path, twin: &Path) {
        // As /proc/PID/maps will name it.
        let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        self.named_by.insert(file, twin.to_owned());
    }

    /// What a process has mapped now; its files are read if they are new.
    pub fn mapped_by(&mut self, pid: u32) -> io::Result<Vec<Mapped>> {
        let mut mapped = Vec::new();
        for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
            mapped.extend(parse(line, &self.vdso));
        }
        if mapped.is_empty() {
            return Err(io::Error::other("it has no code"));
        }
        for range in &mapped {
            self.read(&range.path)?;
        }
        Ok(mapped)
    }

    /// Reads what these processes and their descendants have mapped now, and further files; what can't
    /// be read is no loss.
    pub fn learn(&mut self, pids: &[u32], files: &[PathBuf]) -> io::Result<()> {
        for pid in super::live::family(pids)? {
            let _ = self.mapped_by(pid);
        }
        for file in files {
            let _ = self.read(&file.to_string_lossy());
        }
        Ok(())
    }

    /// A file that was read.
    pub fn get(&self, path: &str) -> Option<&MappedFile> {
        self.files.get(path)
    }

    /// Reads a file, if it is new.
    pub fn read(&mut self, path: &str) -> io::Result<()> {
        if path.is_empty() || path == PROBES || self.files.contains_key(path) {
            return Ok(());
        }
        let bytes = fs::read(path)?;
        let object = object::File::parse(&*bytes).map_err(io::Error::other)?;
        let code = object.segments().filter(|segment| {
            let SegmentFlags::Elf { p_flags } = segment.flags() else {
                return false;
            };
            p_flags & object::elf::PF_X != 0
        });
        let segments = code.map(|segment| {
            let (offset, len) = segment.file_range();
            (offset, len, segment.address())
        });
        let segments = segments.collect();
        let build_id = object.build_id().ok().flatten().unwrap_or_default();
        let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let table = if Path::new(path) == self.vdso {
            build_vdso(&bytes)
        } else {
            build_file(&File::open(path)?, None)
        };
        let names = self.named_by.get(Path::new(path));
        let file = MappedFile {
            table: table.ok().map(|(table, _)| table),
            build_id,
            segments,
            path: names.cloned().unwrap_or_else(|| path.into()),
            symbols: OnceCell::new(),
        };
        self.files.insert(path.to_owned(), file);
        Ok(())
    }
}

impl MappedFile {
    /// The file's own address of an offset.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let mut segments = self.segments.iter();
        let found =
            segments.find(|(first, len, _)| (*first & !4095..first + len).contains(&offset));
        found.map(|(first, _, address)| address.wrapping_add(offset).wrapping_sub(*first))
    }

    /// The function at the file's own address.
    fn function(&self, address: u64) -> Option<&str> {
        let symbols = self.symbols.get_or_init(|| symbols(&self.path));
        let (start, (len, name)) = symbols.range(..=address).next_back()?;
        (address < start + len).then_some(name)
    }
}

fn symbols(path: &Path) -> BTreeMap<u64, (u64, String)> {
    let mut symbols = BTreeMap::new();
    let Ok(bytes) = fs::read(path) else {
        return symbols;
    };
    let Ok(object) = object::File::parse(&*bytes) else {
        return symbols;
    };
    for symbol in object.dynamic_symbols().chain(object.symbols()) {
        if symbol.kind() == SymbolKind::Text
            && let Ok(name) = symbol.name()
        {
            // Parts that were placed elsewhere are the function's.
            let name = name.split('.').next().unwrap_or(name);
            symbols.insert(symbol.address(), (symbol.size(), name.to_owned()));
        }
    }
    symbols
}

impl Space<'_> {
    fn range(&self, address: u64) -> Option<&Mapped> {
        let mut mapped = self.mapped.iter();
        mapped.find(|range| (range.start..range.end).contains(&address))
    }

    /// The function at an address; `is_return`: the one that was called from there.
    pub fn function(&self, address: u64, is_return: bool) -> Option<&str> {
        let address = address.wrapping_sub(u64::from(is_return));
        let range = self.range(address)?;
        let file = self.files.get(&range.path)?;
        file.function(file.address(range.offset)? + (address - range.start))
    }

    /// Whether an address is of somebody's probes, of which other walkers know nothing.
    pub fn is_of_probes(&self, address: u64) -> bool {
        let range = self.range(address);
        range.is_some_and(|range| range.path == PROBES)
    }

    /// Names an address for people: function or file, and offset.
    pub fn place(&self, address: u64) -> String {
        let Some(range) = self.range(address) else {
            return format!("[nothing]{address:x}");
        };
        let name = range.path.rsplit('/').next().unwrap_or_default();
        let name = if name.is_empty() { "[code]" } else { name };
        let function = self.function(address, false).unwrap_or("?");
        let offset = address - range.start + range.offset;
        format!("{function} {name}+{offset:x}")
    }

    /// Build id and path of the file at an address.
    pub fn file(&self, address: u64) -> (String, String) {
        let range = self.range(address);
        let file = range.and_then(|range| self.files.get(&range.path));
        let id = file.map(|file| file.build_id.clone());
        let path = range.map(|range| range.path.clone());
        (id.unwrap_or_default(), path.unwrap_or_default())
    }
}

impl Code for Space<'_> {
    fn at(&self, address: u64) -> Place<'_> {
        let Some(range) = self.range(address) else {
            return Place::Unmapped;
        };
        let Some(file) = self.files.get(&range.path) else {
            return Place::Jit;
        };
        match (&file.table, file.address(range.offset)) {
            (Some(table), Some(first)) => Place::Table(table, first + (address - range.start)),
            _ => Place::NoTable,
        }
    }
}

/// A line of `/proc/PID/maps`, if it is of code.
fn parse(line: &str, vdso: &Path) -> Option<Mapped> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2).unwrap_or_default().trim();
    if !permissions.contains('x') || path == "[vsyscall]" {
        return None;
    }
    let path = match path {
        "[vdso]" => vdso.to_str()?.to_owned(),
        PROBES => PROBES.to_owned(),
        path if path.starts_with('/') && Path::new(path).is_file() => path.to_owned(),
        _ => String::new(),
    };
    Some(Mapped {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset,
        path,
    })
}

/// The vDSO of this process, which is that of all 64-bit processes.
fn own_vdso() -> io::Result<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let range = line.and_then(|line| line.split_once(' ')?.0.split_once('-'));
    let (start, end) = range.ok_or(io::ErrorKind::NotFound)?;
    let number = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
    let (start, end) = (number(start)?, number(end)?);
    let mut bytes = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}
