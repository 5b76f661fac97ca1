//! One file's symbols and debug information, loaded.
//!
//! The files that belong to a target -> names of file offsets. This runs in a process apart (`helper`).
//! blazesym does the reading; here it is given files that it can rely on: it maps what it reads, so a file
//! that anybody but root can change is copied first (else its owner could shorten it meanwhile); what it
//! would unpack is measured before; and it finds other files only where they were given along.
//!
//! What does not belong here: which files those are (`material`), who asks (`symbolize`).

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use rustc_hash::FxHashMap;
use rustix::fs::Mode;

use super::called::{Called, called};
use super::debug_files::build_id_path;
use super::go_names::{GoNames, GoPlace};
use super::helper::{Found, Place};
use super::material::{Handed, Material, Part};
use super::symbolize::{Answer, CodeBytes, FunctionInfo, MAX_CODE_BYTES};
use profiler_model::UnknownReason;
use profiler_object::demangle::Dialect;
use profiler_object::elf::{Elf, ElfError, Section};
use profiler_object::{
    Aliases, Bounds, DeclaredLines, DescribedFunction, Object, dialect_of, start_code_len,
};

/// Largest file that is copied.
pub(super) const MAX_COPY_BYTES: u64 = 1 << 30;
/// Longest name kept.
const MAX_NAME_BYTES: usize = 4096;
/// What a function of tracing's reader takes, with its names, about.
const FUNCTION_BYTES: u64 = 200;
/// Most functions remembered of one file.
const MAX_FUNCTIONS: usize = 50_000;

/// Why a file can't be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadError {
    /// It is no ELF file, or damaged.
    Bad,
    /// It is larger than allowed, or would unpack to more than allowed.
    TooMuch,
    /// It has more debug information than this thread should read, or it must be downloaded.
    Large,
}

/// A file's symbols.
pub(super) struct Loaded {
    elf: Elf,
    /// What their paths lead over.
    _shelf: Option<OwnedFd>,
    /// Asked in this order.
    sources: Vec<SymbolSource>,
    /// Asked before them: the functions of a Go program, stripped or not.
    go: Option<GoNames>,
    /// Whether inlined functions are wanted.
    inlines: bool,
    functions: FxHashMap<(u64, Box<str>), Arc<FunctionInfo>>,
    /// What the file's code says where its symbols do not, read when that is asked for.
    bounds: OnceCell<Bounds>,
    /// Which of several names people call its code by, read when a name was found.
    aliases: OnceCell<Aliases>,
    /// What its names are read as, looked up when one could be read in several ways.
    dialect: OnceCell<Dialect>,
    /// Whether its symbols are packed into `.gnu_debugdata`, which tracing's reader unpacks.
    packed: bool,
    /// Symbols as tracing reads them, where the symbolizer does not read them.
    object: OnceCell<Option<Object>>,
    file: Option<File>,
    cost: u64,
}

/// A file as blazesym reads it.
struct SymbolSource {
    symbolizer: Symbolizer,
    path: PathBuf,
    /// Whether it has debug information that can be read.
    debug: bool,
    /// Where its functions are declared, read when that is asked for.
    declared: Option<DeclaredLines>,
    file: Option<File>,
    /// What its paths lead to.
    _files: Vec<OwnedFd>,
}

/// What the sections of a file say.
pub(super) struct Contents {
    pub(super) sections: Vec<Section>,
    pub(super) debug_bytes: u64,
    symbol_bytes: u64,
    /// Whether its debug information must not be read.
    refused: bool,
}

impl Contents {
    pub(super) fn read(elf: &Elf, file: &File) -> Result<Contents, LoadError> {
        let sections = elf.sections(file).map_err(|_| LoadError::Bad)?;
        let sum = |wanted: &dyn Fn(&Section) -> bool| -> u64 {
            let wanted = sections.iter().filter(|section| wanted(section));
            wanted
                .map(Section::bytes_in_file)
                .fold(0, u64::saturating_add)
        };
        let debug_bytes = sum(&|section| section.name.starts_with(".debug_"));
        let symbol_bytes = sum(&|section| matches!(&*section.name, ".symtab" | ".dynsym"));
        Ok(Contents {
            debug_bytes,
            symbol_bytes,
            sections,
            refused: false,
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        let mut sections = self.sections.iter();
        sections.any(|section| section.name == name && section.bytes_in_file() > 0)
    }

    /// Whether there is debug information that can be read. A file with both that and a link to more is not
    /// made by usual tools, and blazesym would follow the link.
    pub(super) fn has_debug_info(&self) -> bool {
        let leads_on = self.has(".gnu_debuglink") || self.has(".debug_sup");
        self.has(".debug_info") && !leads_on && !self.refused
    }
}

impl Loaded {
    /// Loads a file and its separate debug information.
    pub(super) fn new(material: Material, place: Place) -> Result<Loaded, LoadError> {
        let Material {
            lines,
            inlines,
            mut parts,
            links,
            ..
        } = material;
        let shelf = Shelf { place, links };
        let target = parts.pop().ok_or(LoadError::Bad)?;
        let mut loaded = Loaded {
            elf: Elf::default(),
            _shelf: None,
            sources: Vec::new(),
            go: None,
            inlines,
            functions: FxHashMap::default(),
            bounds: OnceCell::new(),
            aliases: OnceCell::new(),
            dialect: OnceCell::new(),
            packed: false,
            object: OnceCell::new(),
            file: None,
            cost: 0,
        };
        for part in parts {
            match Opened::open(part).and_then(|part| loaded.add(part, lines, &shelf)) {
                Ok(()) => {}
                Err(error) => log::debug!("separate debug information: {error:?}"),
            }
        }
        let target = Opened::open(target)?;
        loaded.elf = target.elf.clone();
        let file = target.main.try_clone().map(File::from);
        loaded.file = Some(file.map_err(|_| LoadError::TooMuch)?);
        if let Some(file) = &loaded.file {
            loaded.go = GoNames::load(file, &loaded.elf);
        }
        loaded.cost += loaded.go.as_ref().map_or(0, GoNames::bytes);
        let contents = &target.contents;
        loaded.packed = contents.has(".gnu_debugdata") && !contents.has(".symtab");
        if loaded.packed && !(lines && contents.has_debug_info()) {
            loaded._shelf = shelf.links;
            return Ok(loaded);
        }
        match loaded.add(target, lines, &shelf) {
            Err(error) if loaded.sources.is_empty() => Err(error),
            _ => {
                loaded._shelf = shelf.links;
                Ok(loaded)
            }
        }
    }

    fn add(&mut self, part: Opened, lines: bool, shelf: &Shelf) -> Result<(), LoadError> {
        // An index entry for each symbol of 24 bytes. Units that are read take up to about as
        // much as they do in the file (measured: 25 MB for all of a file with 17 MB).
        let symbols = part.contents.symbol_bytes / 24 * 8;
        let units = if lines { part.contents.debug_bytes } else { 0 };
        self.cost = self.cost.saturating_add(symbols).saturating_add(units);
        self.sources
            .push(SymbolSource::make(part, self.inlines, lines, shelf)?);
        Ok(())
    }

    /// Estimated memory that this takes.
    pub(super) fn cost(&self) -> u64 {
        let declared = self.sources.iter().filter_map(|it| it.declared.as_ref());
        let declared: u64 = declared.map(DeclaredLines::bytes).sum();
        let own = self.object.get().and_then(|object| object.as_ref());
        let functions = own.map_or(0, |object| object.functions().len() as u64);
        let bounds = self.bounds.get().map_or(0, Bounds::bytes);
        let aliases = self.aliases.get().map_or(0, Aliases::bytes);
        self.cost + declared + bounds + aliases + functions * FUNCTION_BYTES
    }

    fn bounds(&self) -> &Bounds {
        self.bounds.get_or_init(|| {
            let bounds = self.file.as_ref().map(|file| Bounds::read(file, "code"));
            match bounds {
                Some(Ok(bounds)) => bounds,
                Some(Err(error)) => {
                    log::debug!("no bounds of functions: {error}");
                    Bounds::default()
                }
                None => Bounds::default(),
            }
        })
    }

    fn aliases(&self) -> &Aliases {
        self.aliases.get_or_init(|| {
            let sources = self
                .sources
                .iter()
                .filter_map(|source| source.file.as_ref());
            Aliases::read(sources.chain(&self.file))
        })
    }

    /// What a virtual address means, and with `code` the bytes of the function there. `bias` is what virtual addresses and
    /// frame addresses differ by, of which the answer speaks.
    pub(super) fn look_up(&mut self, address: u64, bias: u64, code: bool) -> Found {
        if let Some(go) = &self.go
            && let Some(place) = go.find(address, self.inlines)
        {
            return self.in_go(place, bias, code);
        }
        let mut damaged = false;
        for index in 0..self.sources.len() {
            let source = &self.sources[index];
            let found = match source.find(address, source.debug) {
                Ok(None) | Err(()) if source.debug => source.find(address, false),
                found => found,
            };
            match found {
                Ok(Some(sym)) => {
                    let mut sym = sym.into_owned();
                    if let Some(found) = self.described(index, Some(&sym), address, bias, code) {
                        return found;
                    }
                    let placed = self.place(&mut sym, address);
                    if placed && !covers(&sym, address) {
                        if !self.reaches(&sym.name, sym.addr, address) {
                            continue;
                        }
                        self.leave_label(index, &mut sym, address);
                    }
                    let lines = self.lines(index, &sym, address, placed, bias);
                    let size = sym.size.unwrap_or(0) as u64;
                    let code = (code && placed).then(|| self.code(sym.addr, size));
                    let code = code.flatten();
                    return (Answer::Lines(lines.into()), code);
                }
                Ok(None) => {
                    if let Some(found) = self.described(index, None, address, bias, code) {
                        return found;
                    }
                }
                Err(()) => damaged = true,
            }
        }
        if damaged || self.packed {
            if let Some(found) = self.by_own_reader(address, bias, code) {
                return found;
            }
            if damaged && self.object().is_none() {
                return (Answer::Unknown(UnknownReason::BadFile), None);
            }
        }
        match self.is_before_a_function(address) {
            true => self.look_up(address.wrapping_add(1), bias, code),
            false => self.nameless(address, bias, code),
        }
    }

    /// Code of GHC, whose symbols are those of what modules export, by its debug information; none if a symbol begins where
    /// the function does. `near` is what the symbolizer took it for, with the line of the source.
    fn described(
        &mut self,
        source: usize,
        near: Option<&Sym<'_>>,
        address: u64,
        bias: u64,
        code: bool,
    ) -> Option<Found> {
        let of = &mut self.sources[source];
        let DescribedFunction {
            name,
            symbol,
            start,
            size,
        } = of.declared()?.function_at(address)?.clone();
        let of = &self.sources[source];
        if of.symbol_at(start).is_some() {
            return None;
        }
        let (_, line) = location(near.and_then(|near| near.code_info.as_deref()));
        let first = of.find(start, true).ok().flatten();
        let first = first.and_then(|first| first.code_info);
        let (file, declared) = location(first.as_deref());
        let function = self.function(Some(start), &name, || FunctionInfo {
            name: cut(&name).into(),
            linkage_name: symbol.as_deref().map(|symbol| cut(symbol).into()),
            file,
            line: declared,
            start: Some(start.wrapping_sub(bias)),
            size: Some(size),
        });
        let code = code.then(|| self.code(start, size)).flatten();
        Some((Answer::Lines([(function, line)].into()), code))
    }

    /// The file by tracing's reader; none if that can't read it either.
    fn object(&self) -> Option<&Object> {
        let read = || Object::read(self.file.as_ref()?, None, "symbols").ok();
        self.object.get_or_init(read).as_ref()
    }

    /// A function, if there is one, of a file whose symbols the symbolizer does not read: they are packed, or
    /// not at multiples of their words' size, which it wants and the ABI does not ask of files.
    fn by_own_reader(&mut self, address: u64, bias: u64, code: bool) -> Option<Found> {
        let object = self.object()?;
        let found = object.function_at(address)?.clone();
        let symbol = found.linkage_name.as_deref().unwrap_or(&found.name);
        let size = match object.has_size(&found) {
            true => Some(found.size),
            false if !self.reaches(symbol, found.address, address) => return None,
            false => None,
        };
        let function = self.function(Some(found.address), &found.name, || FunctionInfo {
            name: cut(&found.name).into(),
            linkage_name: found.linkage_name.as_deref().map(|name| cut(name).into()),
            file: None,
            line: 0,
            start: Some(found.address.wrapping_sub(bias)),
            size,
        });
        let code = size.filter(|_| code);
        let code = code.and_then(|size| self.code(found.address, size));
        Some((Answer::Lines([(function, 0)].into()), code))
    }

    /// Whether an address is that before the first instruction of what was never called: of the outermost
    /// function of a coroutine, or of the code that a signal's handler returns to, which is said to begin
    /// one byte sooner for those who look up return addresses like others.
    fn is_before_a_function(&self, address: u64) -> bool {
        let next = address.wrapping_add(1);
        let extent = |address| self.bounds().extent(address);
        match extent(address) {
            None => extent(next).is_some_and(|(start, _)| start == next),
            // A function of one byte is one.
            Some((_, len)) if len <= 1 => false,
            Some((start, _)) => {
                let begins = |source: &SymbolSource| {
                    let found = source.find(next, false);
                    found.is_ok_and(|sym| sym.is_some_and(|sym| sym.addr == next))
                };
                let own = || {
                    let function = self.object().and_then(|object| object.function_at(next));
                    function.is_some_and(|function| function.address == next)
                };
                start == address && (self.sources.iter().any(begins) || self.packed && own())
            }
        }
    }

    /// Whether a symbol without a size means the code at an address, too: not if that is a function, or
    /// a stub, of its own.
    fn reaches(&self, name: &str, symbol: u64, address: u64) -> bool {
        if start_code_len(name.as_bytes()).is_some_and(|len| address - symbol >= len) {
            return false;
        }
        let bounds = self.bounds();
        match bounds.extent(address) {
            Some((start, _)) if bounds.stub(address).is_none() => start <= symbol,
            Some(_) => false,
            None => bounds.extent(symbol).is_none() && bounds.stub(address).is_none(),
        }
    }

    /// Puts the function that a label is in where a symbol without a size is one.
    fn leave_label(&self, source: usize, sym: &mut Sym<'static>, address: u64) {
        let extent = self.bounds().extent(address);
        let Some((start, _)) = extent.filter(|&(start, _)| start < sym.addr) else {
            return;
        };
        if let Ok(Some(whole)) = self.sources[source].find(start, false)
            && whole.addr == start
        {
            sym.name = whole.name.into_owned().into();
            (sym.addr, sym.size) = (start, whole.size);
        }
    }

    /// A function that no symbol names, by its bounds.
    fn nameless(&mut self, address: u64, bias: u64, code: bool) -> Found {
        let bounds = self.bounds();
        let found = match bounds.stub(address) {
            Some((start, target)) => Some((start, None, format!("{target}@plt"))),
            None => match bounds.extent(address) {
                Some((start, size)) => {
                    let name = bounds.exported(start).unwrap_or_default();
                    Some((start, Some(size), name.to_owned()))
                }
                None => {
                    (bounds.sizeless(address)).map(|(start, name)| (start, None, name.to_owned()))
                }
            },
        };
        let Some((start, size, name)) = found else {
            return (Answer::Unknown(UnknownReason::NoSymbol), None);
        };
        let function = self.function(Some(start), &name, || FunctionInfo {
            name: cut(&name).into(),
            linkage_name: None,
            file: None,
            line: 0,
            start: Some(start.wrapping_sub(bias)),
            size,
        });
        let code = size
            .filter(|_| code)
            .and_then(|size| self.code(start, size));
        (Answer::Lines([(function, 0)].into()), code)
    }

    /// Sees to it that the start and size are those of the code at `address`. Of a function in several
    /// parts debug information gives 0 for both; a symbol table has a symbol for each part. False
    /// if no table tells.
    fn place(&self, sym: &mut Sym<'_>, address: u64) -> bool {
        if covers(sym, address) {
            return true;
        }
        for source in &self.sources {
            if let Ok(Some(part)) = source.find(address, false)
                && covers(&part, address)
            {
                (sym.addr, sym.size) = (part.addr, part.size);
                return true;
            }
        }
        // A symbol of a table need not have a size.
        sym.addr != 0 && sym.addr <= address
    }

    fn lines(
        &mut self,
        source: usize,
        sym: &Sym<'_>,
        address: u64,
        placed: bool,
        bias: u64,
    ) -> Vec<(Arc<FunctionInfo>, u32)> {
        let mut lines = Vec::with_capacity(sym.inlined.len() + 1);
        let mut declared = match sym.inlined.is_empty() {
            true => Vec::new(),
            false => self.sources[source].declared_inlined(address),
        };
        // What is not all of them can't be told whose line it is.
        if declared.len() != sym.inlined.len() {
            declared = vec![0; sym.inlined.len()];
        }
        for (inlined, declared) in sym.inlined.iter().zip(declared).rev() {
            // Its name is in another file, where the symbolizer does not look for it: then it is a part of who called it.
            if inlined.name.is_empty() {
                continue;
            }
            let (file, line) = location(inlined.code_info.as_ref());
            let Called { name, .. } = called(&inlined.name, None, || self.dialect());
            // Of one name there are several: closures of a function, statics of several files.
            let path = file.as_deref().unwrap_or_default();
            let known_by = format!("{declared}:{path}:{}", inlined.name);
            let function = self.function(None, &known_by, || FunctionInfo {
                name: cut(&name).into(),
                linkage_name: None,
                file,
                line: declared,
                start: None,
                size: None,
            });
            lines.push((function, line));
        }
        let (file, line) = location(sym.code_info.as_deref());
        let known = self.functions.get(&(sym.addr, cut(&sym.name).into()));
        let function = match known {
            Some(function) => function.clone(),
            None => {
                let (told, symbol) = match placed {
                    true => self.names_at(source, &sym.name, sym.addr),
                    false => (sym.name.to_string(), None),
                };
                let Called { name, symbol } = called(&told, symbol.as_deref(), || self.dialect());
                let info = FunctionInfo {
                    name: cut(&name).into(),
                    linkage_name: symbol.map(|symbol| cut(&symbol).into()),
                    file,
                    line: match placed {
                        true => self.sources[source].declared_line(sym.addr),
                        false => 0,
                    },
                    start: placed.then(|| sym.addr.wrapping_sub(bias)),
                    size: sym.size.filter(|_| placed).map(|size| size as u64),
                };
                self.function(Some(sym.addr), &sym.name, || info)
            }
        };
        lines.push((function, line));
        lines
    }

    /// What else than C the file was made of.
    fn dialect(&self) -> Dialect {
        let read = || Some(dialect_of(self.file.as_ref()?, "symbols"));
        *self.dialect.get_or_init(|| read().unwrap_or_default())
    }

    /// Functions of Go's own table.
    fn in_go(&mut self, place: GoPlace, bias: u64, code: bool) -> Found {
        let GoPlace {
            frames,
            start,
            size,
        } = place;
        let last = frames.len().saturating_sub(1);
        let mut lines = Vec::with_capacity(frames.len());
        for (index, frame) in frames.into_iter().enumerate() {
            let whole = index == last;
            let key = whole.then_some(start);
            // Its first instruction is that of the line.
            let declared = || self.go.as_ref()?.find(start, false)?.frames.pop();
            let sources = &self.sources;
            let instance = || {
                let (before, _) = frame.name.split_once("[...]").filter(|_| whole)?;
                let symbol = sources.iter().find_map(|source| source.symbol_at(start))?;
                symbol.starts_with(before).then_some(symbol)
            };
            let function = remember(&mut self.functions, key, &frame.name, || FunctionInfo {
                // Go's table has one name for all instances of a generic function.
                name: cut(instance().as_deref().unwrap_or(&frame.name)).into(),
                linkage_name: None,
                file: frame.file.as_deref().map(|file| cut(file).into()),
                line: match whole {
                    true => declared().map_or(0, |first| first.line),
                    false => 0,
                },
                start: whole.then(|| start.wrapping_sub(bias)),
                size: whole.then_some(size),
            });
            lines.push((function, frame.line));
        }
        let code = code.then(|| self.code(start, size)).flatten();
        (Answer::Lines(lines.into()), code)
    }

    fn function(
        &mut self,
        start: Option<u64>,
        name: &str,
        make: impl FnOnce() -> FunctionInfo,
    ) -> Arc<FunctionInfo> {
        remember(&mut self.functions, start, name, make)
    }

    /// What debug information or a symbol table calls the code at `start`, and its symbol there: where it has several
    /// names, both are the one that people use.
    fn names_at(&self, source: usize, told: &str, start: u64) -> (String, Option<String>) {
        let symbol = self.sources[source].symbol_at(start);
        let names = self.aliases().of(start);
        let is_name = |name: &str| names.iter().any(|alias| alias == name);
        let best = names.first();
        let of = |name: &str| {
            best.filter(|_| is_name(name))
                .map_or(name, |best| best)
                .to_owned()
        };
        (of(told), symbol.as_deref().map(of))
    }

    fn code(&self, address: u64, size: u64) -> Option<CodeBytes> {
        let file = self.file.as_ref()?;
        let start = self.elf.offset_of(address).filter(|_| size > 0)?;
        let mut bytes = vec![0; size.min(MAX_CODE_BYTES) as usize];
        file.read_exact_at(&mut bytes, start).ok()?;
        Some((start, bytes.into()))
    }
}

/// A function as it is known, or as it is made the first time.
fn remember(
    functions: &mut FxHashMap<(u64, Box<str>), Arc<FunctionInfo>>,
    start: Option<u64>,
    name: &str,
    make: impl FnOnce() -> FunctionInfo,
) -> Arc<FunctionInfo> {
    if functions.len() >= MAX_FUNCTIONS {
        functions.clear();
    }
    let key = (start.unwrap_or(u64::MAX), cut(name).into());
    let known = functions.entry(key);
    known.or_insert_with(|| Arc::new(make())).clone()
}

impl SymbolSource {
    fn make(
        part: Opened,
        inlines: bool,
        lines: bool,
        shelf: &Shelf,
    ) -> Result<SymbolSource, LoadError> {
        let Opened {
            main,
            contents,
            common,
            package,
            ..
        } = part;
        let mut debug = lines && contents.has_debug_info();
        let mut files = Vec::new();
        let mut links = None;
        if debug && contents.has(".gnu_debugaltlink") {
            match (common, shelf.links()) {
                (Some((common, elf)), Some(made)) => {
                    let build_id = elf.build_id.as_ref().and_then(build_id_path);
                    made.add(&build_id.ok_or(LoadError::Bad)?, &common)?;
                    files.push(common);
                    links = Some(made);
                }
                _ => debug = false,
            }
        }
        let mut main_path = shelf.place.path_of(&main);
        if debug
            && let Some((package, _)) = package
            && let Some(made) = links.take().or_else(|| shelf.links())
        {
            main_path = made.add(Path::new("main"), &main)?;
            made.add(Path::new("main.dwp"), &package)?;
            files.push(package);
            links = Some(made);
        }
        let file = main.try_clone().ok().map(File::from);
        files.push(main);
        let builder = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(true)
            .enable_inlined_fns(inlines)
            // It takes short names of C for types of C++.
            .enable_demangling(false)
            .set_debug_dirs(Some(links.iter().map(|links| links.dir.clone())));
        Ok(SymbolSource {
            symbolizer: builder.build(),
            path: main_path,
            debug,
            declared: None,
            file,
            _files: files,
        })
    }

    /// The line that the function at an address is declared at; 0: not known.
    fn declared_line(&mut self, start: u64) -> u32 {
        let declared = self.declared();
        declared.and_then(|it| it.line_of(start)).unwrap_or(0)
    }

    /// The same of all functions that were inlined at an address, outermost first; fewer or more than there are if that is
    /// not known.
    fn declared_inlined(&mut self, address: u64) -> Vec<u32> {
        let declared = self.declared();
        declared.map_or_else(Vec::new, |it| it.inlined_at(address))
    }

    fn declared(&mut self) -> Option<&mut DeclaredLines> {
        let file = self.file.as_ref().filter(|_| self.debug)?;
        let open = || {
            DeclaredLines::open(file, "symbols").unwrap_or_else(|error| {
                log::debug!("no lines of functions: {error}");
                DeclaredLines::default()
            })
        };
        Some(self.declared.get_or_insert_with(open))
    }

    /// The symbol that begins at an address, as it is in the table.
    fn symbol_at(&self, start: u64) -> Option<String> {
        let found = self.find(start, false).ok()??;
        (found.addr == start).then(|| found.name.into_owned())
    }

    fn find(&self, address: u64, debug: bool) -> Result<Option<Sym<'_>>, ()> {
        find(&self.symbolizer, &self.path, address, debug)
    }
}

/// Whether an address lies in what a symbol covers.
fn covers(sym: &Sym<'_>, address: u64) -> bool {
    let size = sym.size.unwrap_or(0) as u64;
    address
        .checked_sub(sym.addr)
        .is_some_and(|offset| offset < size)
}

/// `Err` if the file can't be read at all, or what it says of the address is more than the reader can take.
fn find<'a>(
    symbolizer: &'a Symbolizer,
    path: &Path,
    address: u64,
    debug: bool,
) -> Result<Option<Sym<'a>>, ()> {
    let mut source = ElfSource::new(path);
    source.debug_syms = debug;
    let read = || symbolizer.symbolize_single(&Source::Elf(source), Input::VirtOffset(address));
    // What the symbolizer keeps is whole before it is kept.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(Symbolized::Sym(sym))) if !sym.name.is_empty() => Ok(Some(sym)),
        Ok(Ok(_)) => Ok(None),
        Err(_) => {
            log::debug!("{}: a panic at {address:#x}", path.display());
            Err(())
        }
        Ok(Err(error)) => {
            log::debug!("{}: {error}", path.display());
            Err(())
        }
    }
}

fn is_debug(section: &Section) -> bool {
    [".debug_", ".zdebug_"]
        .iter()
        .any(|start| section.name.starts_with(start))
}

fn check(elf: &Elf, file: &File, sections: &[Section]) -> Result<(), LoadError> {
    elf.check_packed(file, sections)
        .map_err(|error| match error {
            ElfError::Bomb(_) => LoadError::TooMuch,
            _ => LoadError::Bad,
        })
}

/// A file that was checked, with its headers.
type Checked = (OwnedFd, Elf);

/// A part of what there is to read: nobody can change it any more, and it was checked.
struct Opened {
    main: OwnedFd,
    elf: Elf,
    contents: Contents,
    common: Option<Checked>,
    package: Option<Checked>,
}

impl Opened {
    fn open(part: Part) -> Result<Opened, LoadError> {
        let ((main, elf), contents) = Self::check(part.main)?;
        let open = |handed| Some(Self::check(handed).ok()?.0);
        Ok(Opened {
            main,
            elf,
            contents,
            common: part.common.and_then(open),
            package: part.package.and_then(open),
        })
    }

    fn check(handed: Handed) -> Result<(Checked, Contents), LoadError> {
        let (taken, room) = handed.take().map_err(|error| {
            log::debug!("no private copy of a target file: {error}");
            LoadError::TooMuch
        })?;
        let file = File::from(taken);
        let read = || -> Result<(Elf, Contents), LoadError> {
            let elf = Elf::read(&file).map_err(|_| LoadError::Bad)?;
            let contents = Contents::read(&elf, &file)?;
            Ok((elf, contents))
        };
        let (mut elf, mut contents) = read()?;
        if let Some(room) = room {
            // Without room on the disk it stays packed.
            if let Err(error) = elf.unpack_within(&file, &contents.sections, room) {
                log::debug!("a file that is not unpacked: {error}");
            }
            (elf, contents) = read()?;
        }
        if let Err(error) = check(&elf, &file, &contents.sections) {
            // Its symbols do not lie where its debug information does.
            let mut others = contents.sections.clone();
            others.retain(|section| !is_debug(section));
            if others.len() == contents.sections.len() {
                return Err(error);
            }
            check(&elf, &file, &others)?;
            log::debug!("debug information that can't be unpacked: {error:?}");
            contents.refused = true;
        }
        Ok(((file.into(), elf), contents))
    }
}

fn location(info: Option<&CodeInfo<'_>>) -> (Option<Box<str>>, u32) {
    let path = info.map(|info| info.to_path().to_string_lossy().into_owned());
    let line = info.and_then(|info| info.line).unwrap_or(0);
    (path.map(|path| cut(&path).into()), line)
}

/// A text of bounded length.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}

/// What paths are made of.
struct Shelf {
    place: Place,
    /// A folder for links.
    links: Option<OwnedFd>,
}

impl Shelf {
    /// A new folder in there.
    fn links(&self) -> Option<Links> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = self
            .place
            .path_of(self.links.as_ref()?)
            .join(count.to_string());
        rustix::fs::mkdir(&dir, Mode::RWXU).ok()?;
        Some(Links {
            place: self.place,
            dir,
        })
    }
}

/// A folder of links to open files, under the names that blazesym looks for. It goes with the shelf.
struct Links {
    place: Place,
    dir: PathBuf,
}

impl Links {
    fn add(&self, name: &Path, file: &OwnedFd) -> Result<PathBuf, LoadError> {
        let path = self.dir.join(name);
        let folder = path.parent().ok_or(LoadError::Bad)?;
        std::fs::create_dir_all(folder).map_err(|_| LoadError::TooMuch)?;
        let target = self.place.path_of(file);
        std::os::unix::fs::symlink(target, &path).map_err(|_| LoadError::TooMuch)?;
        Ok(path)
    }
}
