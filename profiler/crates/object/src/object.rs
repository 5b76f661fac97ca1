//! One object file: its functions, markers, code and debug information.
//!
//! Open files -> [`Object`], read with positioned reads of bounded size and never mapped into memory:
//! a target may shorten its files at any time. Addresses are ELF virtual addresses, offsets file
//! offsets. What is seldom needed (debug information, code) is read when it is asked for.
//!
//! What does not belong here: finding and opening files (`resolve`), choosing (`pattern`).

mod aliases;
mod bounds;
mod debug_info;
mod declared;
pub(super) mod frames;
mod image;
mod linkage;
mod words;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::OnceLock;

use rustc_hash::FxHashSet;

use super::Function;
use super::elf::{Elf, ElfError, SHT_DYNSYM, SHT_SYMTAB, Section};
use super::functions::Functions;
use super::markers::markers;
use super::symbols::SymbolTable;
pub use aliases::Aliases;
pub use bounds::{Bounds, dialect_of};
use debug_info::DebugInfo;
pub use declared::{DeclaredLines, DescribedFunction};
use image::Image;
use linkage::Linkage;
use profiler_model::BuildId;
pub use words::may_name;

/// Most bytes of a symbol table or of its names.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Most bytes of a section that is handed out, when unpacked.
const MAX_SECTION_BYTES: u64 = 1 << 30;
/// Most bytes of the section of markers.
const MAX_MARKERS_BYTES: u64 = 64 << 20;

/// Why a file can't be read as an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The file can't be read.
    #[error("failed to read {path}: {source}")]
    Read {
        /// Which file.
        path: Box<str>,
        /// What the system said.
        source: io::Error,
    },
    /// It is no object file of this machine.
    #[error("{0} is not an ELF file of this machine")]
    Format(Box<str>),
    /// It is damaged or made to do harm.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// Which file.
        path: Box<str>,
        /// What is wrong.
        what: Box<str>,
    },
}

/// Where a function is declared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declaration {
    /// What the compiler calls it.
    pub name: Box<str>,
    /// Of its code, if it has any.
    pub address: Option<u64>,
    /// Line of its name.
    pub line: u32,
}

/// An object file.
#[derive(Debug)]
pub struct Object {
    path: Box<str>,
    aliases: Vec<Box<str>>,
    main: Part,
    debug: Option<Part>,
    functions: Functions,
    markers: Vec<Function>,
    image: Image,
    linkage: OnceLock<Linkage>,
    debug_info: OnceLock<DebugInfo>,
    extents: OnceLock<Vec<(u64, u64)>>,
    go: bool,
    /// Another table than that of symbols names its functions.
    all_named: bool,
}

/// Whether an object has markers of this provider. Nothing is read but its headers and their notes.
pub fn has_markers(file: &File, provider: &str) -> bool {
    let Ok(part) = Part::read(file, "") else {
        return false;
    };
    let Some(section) = part.section(".note.stapsdt") else {
        return false;
    };
    let notes = part
        .elf
        .contents(&part.file, section, MAX_MARKERS_BYTES)
        .unwrap_or_default();
    let of_provider = |marker: &Function| {
        let name = marker.name.split_once(':');
        name.is_some_and(|(own, _)| own == provider)
    };
    let found = markers(&notes, &part.elf, &part.sections);
    found.iter().any(of_provider)
}

/// A file and its headers.
#[derive(Debug)]
struct Part {
    file: File,
    elf: Elf,
    sections: Vec<Section>,
}

impl Object {
    /// Reads an object; `debug` is the separate file with its names and debug information.
    pub fn read(file: &File, debug: Option<&File>, path: &str) -> Result<Object, ObjectError> {
        let main = Part::read(file, path)?;
        // A debug file that can't be used is one that isn't there.
        let debug = debug.and_then(|debug| match Part::read(debug, path) {
            Ok(debug) => Some(debug),
            Err(error) => {
                log::debug!("debug file of {path}: {error}");
                None
            }
        });
        let go = [".gopclntab", ".go.buildinfo", ".note.go.buildid"]
            .iter()
            .any(|name| main.section(name).is_some());
        let mut tables = main.symbol_tables();
        tables.extend(debug.iter().flat_map(Part::symbol_tables));
        let has_symtab = |part: &Part| part.sections.iter().any(is_symtab);
        if !has_symtab(&main) && !debug.as_ref().is_some_and(has_symtab) {
            tables.extend(main.packed_symbols());
        }
        let extents = OnceLock::new();
        let read = || &**extents.get_or_init(|| frames::read(&main));
        let functions = Functions::of(&tables, &main.elf, &main.sections, go, &read);
        if functions.cut {
            log::warn!("{path} has more symbols than are read; not all functions are known");
        }
        let notes = main.section(".note.stapsdt").and_then(|notes| {
            let bytes = main.elf.contents(&main.file, notes, MAX_MARKERS_BYTES);
            bytes.ok()
        });
        let len = main.file.metadata().map_or(0, |metadata| metadata.len());
        let mut object = Object {
            path: path.into(),
            aliases: Vec::new(),
            image: Image::of(&main.elf, len),
            markers: markers(&notes.unwrap_or_default(), &main.elf, &main.sections),
            functions,
            main,
            debug,
            linkage: OnceLock::new(),
            debug_info: OnceLock::new(),
            extents,
            go,
            all_named: false,
        };
        if object.is_stripped() && object.has_debug_info() {
            let unknown = object.debug_info().unknown(&object, object.functions());
            object.functions.list.extend(unknown);
            object
                .functions
                .list
                .sort_by_key(|function| function.address);
        }
        Ok(object)
    }

    /// Adds functions that another table of the file names, which symbols and debug information do not: that of
    /// Go's runtime is there in a stripped program too. Each has the offset of its address.
    pub fn with_functions(mut self, more: Vec<Function>) -> Object {
        let known: FxHashSet<u64> = self.functions().iter().map(|f| f.address).collect();
        self.all_named = self.all_named || !more.is_empty();
        let list = &mut self.functions.list;
        list.extend(more.into_iter().filter(|f| !known.contains(&f.address)));
        list.sort_by_key(|function| function.address);
        list.dedup_by_key(|function| function.address);
        self
    }

    /// Path as its processes see it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Other paths that lead to it: patterns may name it by them.
    pub fn with_aliases(mut self, aliases: &[Box<str>]) -> Object {
        self.aliases = aliases.to_vec();
        self
    }

    /// All known paths of it.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let aliases = self.aliases.iter().map(|path| &**path);
        std::iter::once(self.path()).chain(aliases)
    }

    /// GNU build id, if it has one.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.main.elf.build_id.as_ref()
    }

    /// The name that it has for the dynamic linker.
    pub fn soname(&self) -> Option<&str> {
        self.linkage().soname.as_deref()
    }

    /// Its functions, sorted by address, each address once. Parts that a compiler moved away from
    /// their functions ([`Object::cold_parts`]) are none.
    pub fn functions(&self) -> &[Function] {
        &self.functions.list
    }

    /// The function that an address lies in.
    pub fn function_at(&self, address: u64) -> Option<&Function> {
        let after = self
            .functions()
            .partition_point(|function| function.address <= address);
        let function = self.functions()[..after].last()?;
        (address - function.address < function.size.max(1)).then_some(function)
    }

    /// Whether a symbol says how long this function is, rather than the next one where it ends.
    pub fn has_size(&self, function: &Function) -> bool {
        !self.functions.without_size.contains(&function.address)
    }

    /// Address and length of the function, or of the part of one, that an address lies in, as the
    /// unwinding tables say. They know of functions without symbols, too.
    pub fn extent(&self, address: u64) -> Option<(u64, u64)> {
        frames::find(
            self.extents.get_or_init(|| frames::read(&self.main)),
            address,
        )
    }

    /// Functions of which the dynamic linker chooses one of several when the object is loaded
    /// (`STT_GNU_IFUNC`): their symbol is the code that chooses. They can't be traced by that name;
    /// those that are chosen from are functions with names of their own.
    pub fn chosen_at_load(&self) -> &[Box<str>] {
        &self.functions.chosen_at_load
    }

    /// The name of what the code at an address chooses from ([`Object::chosen_at_load`]).
    pub fn chooses(&self, address: u64) -> Option<&str> {
        self.functions.choosers.get(&address).map(|name| &**name)
    }

    /// Address and length of the parts of a function that a compiler moved away from it (`f.cold`).
    /// They are found by name: static functions of one name in several source files share theirs.
    pub fn cold_parts(&self, function: &Function) -> Vec<(u64, u64)> {
        self.functions.cold_parts(function)
    }

    /// Its markers, sorted by address; one name may stand at several places.
    pub fn markers(&self) -> &[Function] {
        &self.markers
    }

    /// The source file of a function, where debug information says it.
    pub fn source_of(&self, function: &Function) -> Option<&str> {
        self.debug_info().source(function)
    }

    /// The line that a function's name stands on, where debug information says it.
    pub fn line_of(&self, function: &Function) -> Option<u32> {
        self.debug_info().line(function)
    }

    /// Names of functions that have no code of their own because each use was inlined, as far as
    /// debug information says, sorted.
    pub fn inlined_only(&self) -> &[Box<str>] {
        &self.debug_info().inlined_only
    }

    /// Where functions are declared, as far as debug information says it; one that was inlined and has code is told
    /// twice. Read anew each time.
    pub fn declarations(&self) -> Vec<Declaration> {
        DebugInfo::declarations(self)
    }

    /// At how many places a function was inlined besides the code that it has, as far as debug
    /// information says: calls there are not seen. Static functions of one name are counted as one.
    pub fn inlined_at(&self, function: &Function) -> u32 {
        self.debug_info().inlined(function)
    }

    /// Whether there is debug information, here or in its debug file.
    pub fn has_debug_info(&self) -> bool {
        let mut parts = self.debug.iter().chain(std::iter::once(&self.main));
        parts.any(|part| part.section(".debug_info").is_some())
    }

    /// Bytes of executable segments; none if not all are there, or too many are asked for.
    pub fn code(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.image.bytes(&self.main.file, address, len, true)
    }

    /// Bytes of any loaded segment, as they are in the file.
    pub fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.image.bytes(&self.main.file, address, len, false)
    }

    /// The file offset of an address.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.main.elf.offset_of(address)
    }

    /// The address of a file offset.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        self.main.elf.address_of(offset)
    }

    /// Whether an ELF address is loaded as code.
    pub fn is_executable(&self, address: u64) -> bool {
        let mut segments = self.main.elf.segments.iter();
        segments.any(|segment| {
            segment.executable && address.wrapping_sub(segment.address) < segment.len
        })
    }

    /// Address and length of the segments that are loaded as code.
    pub fn code_ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let segments = self.main.elf.segments.iter();
        segments
            .filter(|segment| segment.executable)
            .map(|segment| (segment.address, segment.len))
    }

    /// Names of functions and variables that it takes from other objects.
    pub fn imports(&self) -> impl Iterator<Item = &str> {
        self.linkage().imports.iter().map(|name| &**name)
    }

    /// Whether it has a section.
    pub fn has_section(&self, name: &str) -> bool {
        self.main.section(name).is_some()
    }

    /// Whether it was made by Go's compiler, at least in part.
    pub fn is_go(&self) -> bool {
        self.go
    }

    /// Whether it has no symbol table beyond what the dynamic linker needs, its debug file included, and no
    /// other table of its functions was added.
    pub fn is_stripped(&self) -> bool {
        if self.all_named {
            return false;
        }
        let parts = std::iter::once(&self.main).chain(&self.debug);
        !parts.flat_map(|part| &part.sections).any(is_symtab)
    }

    /// The program that loads it, as it says itself.
    pub fn interpreter(&self) -> Option<String> {
        self.main.elf.interpreter(&self.main.file)
    }

    /// The name of the function that a stub of the procedure linkage table (`.plt`, `.plt.sec`,
    /// `.plt.got`) leads to.
    pub fn plt(&self, address: u64) -> Option<&str> {
        self.linkage().stubs.get(&address).map(|name| &**name)
    }

    /// The name of what the dynamic linker puts into a slot of the global offset table, for calls
    /// through the slot itself.
    pub fn import_at(&self, slot: u64) -> Option<&str> {
        self.linkage().slots.get(&slot).map(|name| &**name)
    }

    /// The contents of a section, unpacked, from the debug file if that has it.
    pub fn section(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.section_within(name, MAX_SECTION_BYTES).map(Cow::Owned)
    }

    /// Contents of a section, unpacked; none if it is not there or larger than `limit`.
    pub fn section_within(&self, name: &str, limit: u64) -> Option<Vec<u8>> {
        let parts = self.debug.iter().chain(std::iter::once(&self.main));
        let mut found = parts.filter_map(|part| part.contents(name, limit));
        found.next()
    }

    fn debug_info(&self) -> &DebugInfo {
        self.debug_info.get_or_init(|| DebugInfo::read(self))
    }

    fn linkage(&self) -> &Linkage {
        self.linkage
            .get_or_init(|| Linkage::read(&self.main, |address| self.chooses(address)))
    }
}

impl Part {
    fn read(file: &File, path: &str) -> Result<Part, ObjectError> {
        let wrong = |error| match error {
            ElfError::Read(source) => ObjectError::Read {
                path: path.into(),
                source,
            },
            ElfError::Format => ObjectError::Format(path.into()),
            other => ObjectError::Damaged {
                path: path.into(),
                what: other.to_string().into(),
            },
        };
        let elf = Elf::read(file).map_err(wrong)?;
        let sections = elf.sections(file).map_err(wrong)?;
        let file = file.try_clone().map_err(|error| wrong(error.into()))?;
        Ok(Part {
            file,
            elf,
            sections,
        })
    }

    /// A section that has contents.
    fn section(&self, name: &str) -> Option<&Section> {
        let mut sections = self.sections.iter();
        sections.find(|section| section.name == name && section.bytes_in_file() > 0)
    }

    fn contents(&self, name: &str, limit: u64) -> Option<Vec<u8>> {
        let section = self.section(name)?;
        let contents = self.elf.contents(&self.file, section, limit);
        contents
            .map_err(|error| log::debug!("section {name}: {error}"))
            .ok()
    }

    fn symbol_tables(&self) -> Vec<SymbolTable> {
        let tables = self.symbol_sections();
        tables
            .filter_map(|table| self.symbol_table(table))
            .collect()
    }

    /// The sections of symbols: the ABI allows one of each kind.
    fn symbol_sections(&self) -> impl Iterator<Item = &Section> {
        let kinds = [SHT_SYMTAB, SHT_DYNSYM].into_iter();
        kinds.filter_map(|kind| self.sections.iter().find(|table| table.kind == kind))
    }

    fn symbol_table(&self, table: &Section) -> Option<SymbolTable> {
        if table.bytes_in_file() == 0 {
            return None;
        }
        let names = self.sections.get(table.link as usize)?;
        let read = |section| self.elf.contents(&self.file, section, MAX_TABLE_BYTES).ok();
        Some(SymbolTable {
            entries: read(table)?,
            names: read(names)?,
            wide: self.elf.wide,
        })
    }

    /// The symbols of the file within the file that distributions put them into.
    fn packed_symbols(&self) -> Option<SymbolTable> {
        use object::{Object, ObjectSection};
        let section = self.section(".gnu_debugdata")?;
        let unpacked = self.elf.mini_debug_info(&self.file, section).ok()?;
        let inner = object::File::parse(&*unpacked).ok()?;
        let read = |name| Some(inner.section_by_name(name)?.data().ok()?.to_vec());
        Some(SymbolTable {
            entries: read(".symtab")?,
            names: read(".strtab")?,
            wide: inner.is_64(),
        })
    }
}

fn is_symtab(section: &Section) -> bool {
    section.kind == SHT_SYMTAB && section.bytes_in_file() > 0
}
