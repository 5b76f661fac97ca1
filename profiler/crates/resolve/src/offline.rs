//! Names for a capture that was made elsewhere.
//!
//! [`Tables`] and directories -> names for frames that have none. A file is believed only if its
//! build id is that of the module: a path proves nothing on another machine. Where functions are declared is found in the
//! same way, for profiles that compilers read.
//!
//! What does not belong here: reading and writing captures.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::debug_files::{Search, build_id_path, open_host};
use super::files::{TargetFile, is_trusted, open_trusted};
use super::helper::{Client, Death, Found, Limits};
use super::material::Material;
use super::symbolize::{Answer, Settings};
use super::unpacked::Unpacked;
use profiler_model::{
    BuildId, Declared, FrameId, Function, FunctionId, ModuleId, ModuleKind, Tables,
};
use profiler_object::demangle::demangle;
use profiler_object::{Declaration, Object};

/// Most files looked at in the given directories.
const MAX_FILES: usize = 200_000;
/// Longest time that is spent on one file.
const PATIENCE: Duration = Duration::from_secs(600);
/// Most addresses of one question.
const MAX_ADDRESSES: usize = 256;
/// Deepest folder looked into.
const MAX_DEPTH: usize = 16;

/// Where names for a foreign capture may come from.
#[derive(Clone, Debug, Default)]
pub struct OfflineOptions {
    /// Files with code or debug information, and folders of them.
    pub search: Vec<PathBuf>,
    /// Folders with separate debug files, by build id.
    pub debug_dirs: Vec<PathBuf>,
    /// See [`super::ResolveOptions::debuginfod`].
    pub debuginfod: Option<String>,
    /// Whether inlined functions are shown.
    pub inlines: bool,
}

/// One function at an address, found offline; texts in place of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSymbol {
    /// Demangled name; empty if nothing but bounds is known of it.
    pub name: String,
    /// Name as in the symbol table, where that differs.
    pub linkage_name: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Source line; 0 if not known.
    pub line: u32,
    /// The line that the function is defined at; 0 if not known.
    pub declared: u32,
    /// Frame address of the function's start; an inlined one has none.
    pub start: Option<u64>,
    /// Length in bytes.
    pub size: Option<u64>,
}

impl NewSymbol {
    /// Whether more is known of it than its bounds.
    pub fn is_named(&self) -> bool {
        !self.name.is_empty()
    }
}

/// Finds names for frames that have none: for each frame the functions there, innermost first.
pub fn symbolize_offline(
    tables: &Tables,
    options: &OfflineOptions,
) -> Vec<(FrameId, Vec<NewSymbol>)> {
    let mut wanted: BTreeMap<ModuleId, Vec<(FrameId, u64)>> = BTreeMap::new();
    for (id, frame) in tables.frames.iter() {
        let Some(module) = frame.module else { continue };
        if !tables.has_names(id) {
            wanted.entry(module).or_default().push((id, frame.address));
        }
    }
    let mut candidates = None;
    let mut client = Client::new(Limits::large());
    let mut found = Vec::new();
    for (module, frames) in wanted {
        let Some(module) = tables.modules.get(module) else {
            continue;
        };
        let Some(build_id) = &module.build_id else {
            continue;
        };
        if !matches!(module.kind, ModuleKind::File | ModuleKind::Vdso) {
            continue;
        }
        let candidates = candidates.get_or_insert_with(|| by_build_id(&options.search));
        let paths = candidates.get(build_id).cloned().unwrap_or_default();
        let path = tables.string(module.path);
        let search = Search {
            debug_dirs: options.debug_dirs.clone(),
            debuginfod: options.debuginfod.clone(),
            host: super::Root::own().ok().map(std::sync::Arc::new),
        };
        let settings = Settings {
            search,
            inlines: options.inlines,
            large_bytes: u64::MAX,
            patience: Duration::MAX,
            unpacked: Unpacked::of_user(),
        };
        let mut files: Vec<TargetFile> = paths
            .iter()
            .filter_map(|path| open(path, build_id))
            .collect();
        let debug = build_id_path(build_id).into_iter();
        let debug =
            debug.flat_map(|name| options.debug_dirs.iter().map(move |dir| dir.join(&name)));
        files.extend(debug.filter_map(|path| open(&path, build_id)));
        if files.is_empty() {
            files.extend(open(Path::new(path), build_id));
        }
        let addresses: Vec<(u64, bool)> = frames
            .iter()
            .map(|(_, address)| (address.wrapping_add(module.address_bias), false))
            .collect();
        let answers: Vec<Vec<Found>> = files
            .iter()
            .filter_map(|file| {
                ask(
                    &mut client,
                    file,
                    &settings,
                    &addresses,
                    module.address_bias,
                )
            })
            .collect();
        for (index, (frame, _)) in frames.into_iter().enumerate() {
            let of_files = answers.iter().filter_map(|answers| answers.get(index));
            let mut all = of_files.filter_map(names).peekable();
            // Bounds are better than nothing, and names better than bounds.
            let bounds = all
                .peek()
                .cloned()
                .filter(|_| tables.lines(frame).is_empty());
            let is_named = |symbols: &Vec<NewSymbol>| symbols.iter().all(NewSymbol::is_named);
            if let Some(symbols) = all.find(is_named).or(bounds) {
                found.push((frame, symbols));
            }
        }
    }
    found
}

/// Sets where functions are declared, as far as the debug information of their files says it: files at the paths that were
/// recorded, and debug files below `debug_dirs`, with the build id of the module. Only modules are looked at of which source
/// files are known. How many functions.
pub fn declare_offline(tables: &mut Tables, debug_dirs: &[PathBuf]) -> usize {
    let mut wanted: BTreeMap<ModuleId, Vec<FunctionId>> = BTreeMap::new();
    let mut of_frames: FxHashSet<(ModuleId, FunctionId)> = FxHashSet::default();
    for (id, frame) in tables.frames.iter() {
        let functions = tables.lines(id).iter().map(|line| line.function);
        of_frames.extend(frame.module.into_iter().flat_map(|module| {
            let functions = functions.clone();
            functions.map(move |function| (module, function))
        }));
    }
    for (module, function) in of_frames {
        wanted.entry(module).or_default().push(function);
    }
    let mut set = 0;
    for (id, functions) in wanted {
        let has_file = |id: &FunctionId| {
            let function = tables.functions.get(*id);
            function.is_some_and(|function| function.file.is_some())
        };
        let Some(module) = tables.modules.get(id) else {
            continue;
        };
        let (ModuleKind::File, Some(build_id)) = (module.kind, &module.build_id) else {
            continue;
        };
        if !functions.iter().any(has_file) {
            continue;
        }
        let path = tables.string(module.path).to_owned();
        let debug = build_id_path(build_id).into_iter();
        let debug = debug.flat_map(|name| debug_dirs.iter().map(move |dir| dir.join(&name)));
        let paths = std::iter::once(PathBuf::from(&path)).chain(debug);
        let mut files = paths.filter_map(|path| open(&path, build_id));
        let declarations = files.find_map(|file| {
            let object = Object::read(&file.file, None, &file.path).ok()?;
            object.has_debug_info().then(|| object.declarations())
        });
        let Some(declarations) = declarations else {
            log::warn!(
                "{path}: where its functions are declared is not known: its debug information is not here"
            );
            continue;
        };
        let bias = module.address_bias;
        let found = Known::of(&declarations);
        for id in functions {
            let Some(function) = tables.functions.get(id).cloned() else {
                continue;
            };
            let Some((line, raw)) = found.line(tables, &function, bias) else {
                continue;
            };
            let linkage_name = function.linkage_name.or_else(|| {
                let other = raw.filter(|raw| **raw != *tables.string(function.name));
                other
                    .map(str::to_owned)
                    .map(|raw| tables.intern_string(&raw).0)
            });
            tables.set_declared(id, Declared { line, linkage_name });
            set += 1;
        }
    }
    set
}

/// Declarations by what functions are known by.
struct Known<'d> {
    addresses: FxHashMap<u64, u32>,
    /// The line, and the name that it stands for.
    names: FxHashMap<Cow<'d, str>, (u32, &'d str)>,
}

impl<'d> Known<'d> {
    fn of(declarations: &'d [Declaration]) -> Known<'d> {
        let (mut addresses, mut names) = (FxHashMap::default(), FxHashMap::default());
        for it in declarations {
            if let Some(address) = it.address {
                addresses.insert(address, it.line);
            }
            // Of several functions of one name it can't be told which was inlined: the first counts.
            let line = (it.line, &*it.name);
            names.entry(Cow::Borrowed(&*it.name)).or_insert(line);
            if let Some((readable, _)) = demangle(&it.name) {
                names.entry(Cow::Owned(readable)).or_insert(line);
            }
        }
        Known { addresses, names }
    }

    fn line(
        &self,
        tables: &Tables,
        function: &Function,
        bias: u64,
    ) -> Option<(u32, Option<&'d str>)> {
        let start = function.start.map(|start| start.wrapping_add(bias));
        if let Some(&line) = start.and_then(|start| self.addresses.get(&start)) {
            return Some((line, None));
        }
        let names = function.linkage_name.into_iter().chain([function.name]);
        let mut names = names.filter_map(|name| self.names.get(tables.string(name)));
        names.next().map(|&(line, raw)| (line, Some(raw)))
    }
}

/// What a file says of addresses; none if it says nothing. Files of debug information alone have no segments in
/// the file that offsets could be translated by; the module's bias does it.
fn ask(
    client: &mut Client,
    file: &TargetFile,
    settings: &Settings,
    addresses: &[(u64, bool)],
    bias: u64,
) -> Option<Vec<Found>> {
    let mut material = Material::gather(file, settings, true, u64::MAX).ok()?;
    let mut kept = material.take_kept();
    let until = Instant::now() + PATIENCE;
    let gave_up = |death: Death| {
        log::warn!("{}: no names could be had ({death:?})", file.path);
    };
    let loaded = client.load(material, until).map_err(gave_up).ok()?;
    let (number, _) = loaded.ok()?;
    kept.keep_unpacked();
    let mut found = Vec::with_capacity(addresses.len());
    for some in addresses.chunks(MAX_ADDRESSES) {
        let more = client.find(number, some, bias, until);
        found.extend(more.map_err(gave_up).ok()?);
    }
    client.forget(number);
    Some(found)
}

fn names((answer, _): &Found) -> Option<Vec<NewSymbol>> {
    let Answer::Lines(lines) = answer else {
        return None;
    };
    let symbols = lines.iter().map(|(function, line)| NewSymbol {
        name: function.name.to_string(),
        linkage_name: function.linkage_name.as_deref().map(str::to_owned),
        file: function.file.as_deref().map(str::to_owned),
        line: *line,
        declared: function.line,
        start: function.start,
        size: function.size,
    });
    Some(symbols.collect())
}

/// What to add to offsets of a file, mapped from `offset` on, to have addresses of its symbols: 0 if a file with that build id is
/// not at that path.
pub fn file_bias(path: &str, build_id: &BuildId, offset: u64) -> u64 {
    open(Path::new(path), build_id).map_or(0, |file| file.elf.map_or(0, |elf| elf.bias(offset)))
}

/// What a file has that names could come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSources {
    /// Whether it has its symbol table, which `strip` takes away.
    pub symbols: bool,
    /// Whether it has debug information.
    pub debug_info: bool,
}

/// What the file of this machine at a path has for names; none if no file with that build id is there.
pub fn name_sources(path: &str, build_id: Option<&BuildId>) -> Option<NameSources> {
    let file = open_any(Path::new(path)).filter(|file| file.build_id() == build_id)?;
    let sections = file.elf.as_ref()?.sections(&file.file).ok()?;
    let has = |name: &str| {
        let mut sections = sections.iter();
        sections.any(|section| section.name == name && section.bytes_in_file() > 0)
    };
    Some(NameSources {
        symbols: has(".symtab"),
        debug_info: has(".debug_info"),
    })
}

fn open(path: &Path, build_id: &BuildId) -> Option<TargetFile> {
    open_any(path).filter(|file| file.build_id() == Some(build_id))
}

fn open_any(path: &Path) -> Option<TargetFile> {
    let (file, stat) = open_trusted(path).ok()?;
    let mut file = TargetFile::new(file, &stat, path.to_str()?, None, true);
    file.trusted = is_trusted(&stat);
    Some(file)
}

/// All ELF files below the given paths, by build id.
fn by_build_id(search: &[PathBuf]) -> FxHashMap<BuildId, Vec<PathBuf>> {
    let mut found: FxHashMap<BuildId, Vec<PathBuf>> = FxHashMap::default();
    let mut left = MAX_FILES;
    let mut folders: Vec<(PathBuf, usize)> = search.iter().map(|path| (path.clone(), 0)).collect();
    while let Some((path, depth)) = folders.pop() {
        let Ok(kind) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if kind.is_dir() || depth == 0 && path.is_dir() {
            if depth < MAX_DEPTH {
                let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
                folders.extend(entries.map(|entry| (entry.path(), depth + 1)));
            }
            continue;
        }
        if left == 0 {
            log::warn!("more than {MAX_FILES} files to look at: the rest is left out");
            break;
        }
        left -= 1;
        if let Ok(file) = open_host(&path)
            && let Some(build_id) = file.elf.build_id
        {
            found.entry(build_id).or_default().push(path);
        }
    }
    found
}
