//! Names of kernel code.
//!
//! /proc/kallsyms, /proc/modules and build ids from /sys -> [`Kernel`], a table that addresses are
//! looked up in. It covers the kernel image (frame addresses are offsets from `_stext`, so that they
//! mean the same after a reboot), modules (offsets from their load address) and BPF programs
//! (absolute). Without the right to see addresses (`kernel.kptr_restrict`) nothing has a name, and
//! frames keep their absolute addresses.
//!
//! Reading all of kallsyms takes some 50 ms, most of it the kernel's. What does not change while it runs (the
//! image, and modules as long as the same ones are loaded) is kept on disk (`kept`), and read all the same
//! when an address is met that lies in neither.
//!
//! What does not belong here: source lines of the kernel, which would need its debug file.

mod kept;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mapping::{CodeModule, next_uid};
use profiler_model::{BuildId, ModuleKind};
use profiler_object::elf::build_id_of_notes;
use profiler_unwind::cache::folder;
use rustix::fs::OFlags;

/// Most symbols kept.
const MAX_SYMBOLS: usize = 2_000_000;
/// Most bytes of names kept.
const MAX_NAME_BYTES: usize = 128 << 20;
/// Most kernel modules kept.
const MAX_MODULES: usize = 4096;
/// Notes are not longer than this.
const MAX_NOTES_BYTES: u64 = 1 << 20;
/// A BPF program is not longer than this.
const MAX_BPF_BYTES: u64 = 16 << 20;

/// Where the kernel tells of itself.
#[derive(Clone, Debug)]
pub(super) struct KernelFiles {
    kallsyms: PathBuf,
    modules: PathBuf,
    notes: PathBuf,
    module_notes: PathBuf,
    boot_id: PathBuf,
    /// Where symbols are kept; none: nowhere.
    kept: Option<PathBuf>,
}

impl Default for KernelFiles {
    fn default() -> Self {
        KernelFiles {
            kallsyms: "/proc/kallsyms".into(),
            modules: "/proc/modules".into(),
            notes: "/sys/kernel/notes".into(),
            module_notes: "/sys/module".into(),
            boot_id: "/proc/sys/kernel/random/boot_id".into(),
            kept: folder::directory_of_user("kernel"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    start: u64,
    /// Where its name begins.
    name: u32,
}

#[derive(Debug)]
struct Loaded {
    start: u64,
    end: u64,
    module: Arc<CodeModule>,
}

/// Where a kernel address lies.
#[derive(Clone, Debug)]
pub(super) struct KernelPlace {
    /// The kernel, a module of it, or BPF; none if unknown.
    pub(super) module: Option<Arc<CodeModule>>,
    /// The frame address.
    pub(super) address: u64,
}

/// A function of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelSymbol<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Frame address of its start.
    pub(super) start: u64,
    /// Length up to the next one.
    pub(super) size: Option<u64>,
}

/// The symbols of the kernel at one time.
#[derive(Debug)]
pub(super) struct Kernel {
    image: Loaded,
    modules: Vec<Loaded>,
    bpf: Option<Arc<CodeModule>>,
    bpf_start: u64,
    symbols: Vec<Symbol>,
    names: Vec<u8>,
    restricted: bool,
    /// Whether these are all symbols that there were; if not, those of the image and of modules.
    whole: bool,
}

impl Default for Kernel {
    /// A kernel of which nothing is known.
    fn default() -> Self {
        Kernel {
            image: Loaded {
                start: 0,
                end: 0,
                module: module(ModuleKind::Kernel, "[kernel]", None),
            },
            modules: Vec::new(),
            bpf: None,
            bpf_start: u64::MAX,
            symbols: Vec::new(),
            names: Vec::new(),
            restricted: false,
            whole: true,
        }
    }
}

impl Kernel {
    /// Reads all that the kernel tells. What can't be read is left out.
    pub(super) fn load(files: &KernelFiles) -> Kernel {
        let mut kernel = Kernel::without_symbols(files);
        kernel.read_symbols(&files.kallsyms);
        kernel
    }

    /// What an earlier run has kept of this kernel and these modules; if there is nothing, all that the
    /// kernel tells, and keeps it.
    pub(super) fn load_kept(files: &KernelFiles) -> Kernel {
        let mut kernel = Kernel::without_symbols(files);
        let place = kernel.key(files).zip(files.kept.as_deref());
        if let Some((key, folder)) = &place
            && kernel.take_kept(folder, key).is_some()
        {
            return kernel;
        }
        kernel.read_symbols(&files.kallsyms);
        if let Some((key, folder)) = &place
            && let Err(error) = kernel.keep(folder, key)
        {
            let folder = folder.display();
            log::debug!("the kernel's symbols are not kept in {folder}: {error}");
        }
        kernel
    }

    fn without_symbols(files: &KernelFiles) -> Kernel {
        let build_id = build_id_at(&files.notes);
        let mut kernel = Kernel::default();
        kernel.image.module = module(ModuleKind::Kernel, "[kernel]", build_id);
        kernel.read_modules(files);
        kernel
    }

    /// The image as a module.
    pub(super) fn image(&self) -> Arc<CodeModule> {
        self.image.module.clone()
    }

    /// The address of a place in the image, by its distance from `_stext`.
    pub(super) fn address_of(&self, offset: u64) -> Option<u64> {
        let address = self.image.start.checked_add(offset)?;
        (address < self.image.end).then_some(address)
    }

    /// Whether addresses are hidden from us.
    pub(super) fn is_restricted(&self) -> bool {
        self.restricted
    }

    /// Whether all that can be known of an address is known: if not, [`Kernel::load`] may tell more.
    pub(super) fn knows(&self, address: u64) -> bool {
        self.whole || self.loaded(address).is_some()
    }

    /// Takes over the modules of an older table that are the same, so that they stay the same.
    pub(super) fn keep_modules_of(&mut self, old: &Kernel) {
        if self.image.module.build_id == old.image.module.build_id {
            self.image.module = old.image.module.clone();
        }
        for new in &mut self.modules {
            let same = |old: &&Loaded| {
                old.start == new.start
                    && old.module.path == new.module.path
                    && old.module.build_id == new.module.build_id
            };
            if let Some(old) = old.modules.iter().find(same) {
                new.module = old.module.clone();
            }
        }
        if self.bpf.is_some() && old.bpf.is_some() {
            self.bpf = old.bpf.clone();
        }
    }

    /// Where an address lies.
    pub(super) fn place(&self, address: u64) -> KernelPlace {
        let found = match self.loaded(address) {
            Some(loaded) => Some((loaded.module.clone(), address - loaded.start)),
            None if self.restricted => Some((self.image.module.clone(), address)),
            None => self
                .bpf
                .as_ref()
                .filter(|_| self.covering(address).is_some())
                .map(|bpf| (bpf.clone(), address)),
        };
        let (module, address) = found.map_or((None, address), |(module, at)| (Some(module), at));
        KernelPlace { module, address }
    }

    /// The function that an address is in.
    pub(super) fn symbol(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let index = self.covering(address)?;
        let symbol = self.symbols[index];
        let base = self.loaded(address).map_or(0, |loaded| loaded.start);
        let next = self.symbols[index + 1..]
            .iter()
            .find(|next| next.start > symbol.start);
        let name = &self.names[symbol.name as usize..];
        let name = name.split(|&byte| byte == 0).next()?;
        Some(KernelSymbol {
            name: std::str::from_utf8(name).ok()?,
            start: symbol.start.wrapping_sub(base),
            size: next.map(|next| next.start - symbol.start),
        })
    }

    fn loaded(&self, address: u64) -> Option<&Loaded> {
        if (self.image.start..self.image.end).contains(&address) {
            return Some(&self.image);
        }
        let behind = self
            .modules
            .partition_point(|module| module.start <= address);
        let module = &self.modules[behind.checked_sub(1)?];
        (address < module.end).then_some(module)
    }

    /// Index of the first symbol of the last address that is not behind `address`.
    fn covering(&self, address: u64) -> Option<usize> {
        let behind = self
            .symbols
            .partition_point(|symbol| symbol.start <= address);
        let last = self.symbols[behind.checked_sub(1)?];
        let inside = match (self.loaded(last.start), self.loaded(address)) {
            (Some(start), Some(here)) => start.start == here.start,
            // Outside of image and modules: a BPF program.
            (None, None) => last.start >= self.bpf_start && address - last.start < MAX_BPF_BYTES,
            _ => false,
        };
        if !inside {
            return None;
        }
        Some(
            self.symbols
                .partition_point(|symbol| symbol.start < last.start),
        )
    }

    fn read_symbols(&mut self, path: &Path) {
        let Ok(file) = File::open(path) else {
            self.restricted = true;
            return;
        };
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let mut line = Vec::new();
        let mut any = false;
        let mut bpf = Vec::new();
        loop {
            line.clear();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            let Some((address, kind, name, module)) = parse_symbol(&line) else {
                continue;
            };
            any = true;
            match name {
                _ if address == 0 => continue,
                b"_stext" => self.image.start = address,
                b"_etext" => self.image.end = address,
                _ => {}
            }
            if !matches!(kind, b't' | b'T' | b'w' | b'W')
                || self.symbols.len() >= MAX_SYMBOLS
                || self.names.len() >= MAX_NAME_BYTES
            {
                continue;
            }
            if module == b"bpf" {
                bpf.push(address);
            }
            self.symbols.push(Symbol {
                start: address,
                name: self.names.len() as u32,
            });
            self.names.extend_from_slice(name);
            self.names.push(0);
        }
        self.restricted = !any || self.symbols.is_empty();
        // Equal addresses stay in the order of the file: the first is the function's own name.
        self.symbols.sort_by_key(|symbol| symbol.start);
        self.symbols.shrink_to_fit();
        self.names.shrink_to_fit();
        if let Some(first) = bpf.iter().min() {
            self.bpf_start = *first;
            self.bpf = Some(module(ModuleKind::Jit, "[bpf]", None));
        }
        self.image.end = self.image.end.max(self.image.start);
    }

    fn read_modules(&mut self, files: &KernelFiles) {
        let Ok(text) = std::fs::read_to_string(&files.modules) else {
            return;
        };
        for line in text.lines().take(MAX_MODULES) {
            let mut fields = line.split_ascii_whitespace();
            let Some(name) = fields.next().filter(|name| !name.contains('/')) else {
                continue;
            };
            let size = fields.next().and_then(|size| size.parse::<u64>().ok());
            let start = fields.nth(3).and_then(|start| start.strip_prefix("0x"));
            let start = start.and_then(|start| u64::from_str_radix(start, 16).ok());
            let (Some(size), Some(start @ 1..)) = (size, start) else {
                continue;
            };
            let notes = files
                .module_notes
                .join(name)
                .join("notes/.note.gnu.build-id");
            let build_id = build_id_at(&notes);
            self.modules.push(Loaded {
                start,
                end: start.saturating_add(size),
                module: module(ModuleKind::KernelModule, &format!("[{name}]"), build_id),
            });
        }
        self.modules.sort_by_key(|module| module.start);
    }
}

/// The build id among notes. Whatever is there in their place, nobody waits for it.
fn build_id_at(notes: &Path) -> Option<BuildId> {
    let mut options = File::options();
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.read(true).open(notes).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_NOTES_BYTES).read_to_end(&mut bytes).ok()?;
    build_id_of_notes(&bytes)
}

fn module(kind: ModuleKind, path: &str, build_id: Option<BuildId>) -> Arc<CodeModule> {
    Arc::new(CodeModule {
        uid: next_uid(),
        kind,
        path: path.into(),
        build_id,
        bias: 0,
        copy: None,
        key: None,
        elf: None,
        jit: None,
        first: None,
        code: None,
    })
}

/// Address, type, name and module of a line of kallsyms.
fn parse_symbol(line: &[u8]) -> Option<(u64, u8, &[u8], &[u8])> {
    let line = line.trim_ascii_end();
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let address = std::str::from_utf8(fields.next()?).ok()?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let kind = *fields.next()?.first()?;
    let rest = fields.next()?;
    let end = rest.iter().position(|&byte| byte == b'\t');
    let (name, module) = rest.split_at(end.unwrap_or(rest.len()));
    let module = module.trim_ascii();
    let module = module.strip_prefix(b"[").unwrap_or(module);
    Some((
        address,
        kind,
        name,
        module.strip_suffix(b"]").unwrap_or(module),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a kernel that tells this, in a folder of their own.
    pub(super) struct Told(PathBuf);

    impl Told {
        pub(super) fn new(kallsyms: &str, modules: &str) -> Told {
            static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
            let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let dir = std::env::temp_dir().join(format!("kernel-{}-{count}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let told = Told(dir);
            told.write("kallsyms", kallsyms);
            told.write("modules", modules);
            told.write("boot_id", "one");
            told
        }

        pub(super) fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.join(name), text).unwrap();
        }

        pub(super) fn files(&self) -> KernelFiles {
            KernelFiles {
                kallsyms: self.0.join("kallsyms"),
                modules: self.0.join("modules"),
                notes: self.0.join("notes"),
                module_notes: self.0.join("none"),
                boot_id: self.0.join("boot_id"),
                kept: Some(self.0.join("cache/kernel")),
            }
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn load(kallsyms: &str, modules: &str) -> Kernel {
        Kernel::load(&Told::new(kallsyms, modules).files())
    }

    pub(super) const SYMBOLS: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 T do_work
ffffffff81000100 t do_work_alias
ffffffff81000180 D data_between
ffffffff81000200 t last
ffffffff81001000 T _etext
ffffffffc0000040 t mod_fn\t[ext4]
ffffffffa0000000 t bpf_prog_abc_run\t[bpf]
";
    pub(super) const MODULES: &str = "ext4 4096 1 - Live 0xffffffffc0000000\n";

    #[test]
    fn image_modules_and_bpf() {
        let kernel = load(SYMBOLS, MODULES);
        let symbol = kernel.symbol(0xffffffff81000150).unwrap();
        let expected = KernelSymbol {
            name: "do_work",
            start: 0x100,
            size: Some(0x100),
        };
        assert_eq!(symbol, expected);
        let place = kernel.place(0xffffffff81000150);
        assert_eq!(
            (&*place.module.unwrap().path, place.address),
            ("[kernel]", 0x150)
        );
        let place = kernel.place(0xffffffffc0000048);
        assert_eq!(
            (&*place.module.unwrap().path, place.address),
            ("[ext4]", 0x48)
        );
        assert_eq!(kernel.symbol(0xffffffffc0000048).unwrap().start, 0x40);
        let place = kernel.place(0xffffffffa0000010);
        assert_eq!(
            (&*place.module.unwrap().path, place.address),
            ("[bpf]", 0xffffffffa0000010)
        );
        assert_eq!(
            kernel.symbol(0xffffffffa0000010).unwrap().name,
            "bpf_prog_abc_run"
        );
        assert_eq!(kernel.address_of(0x150), Some(0xffffffff81000150));
        assert_eq!(kernel.address_of(0x1000), None);
        assert_eq!(kernel.address_of(u64::MAX), None);
        assert!(kernel.place(0xffffffff80000000).module.is_none());
        assert!(kernel.symbol(0xffffffff80000000).is_none());
        assert!(kernel.symbol(0xffffffffc0000000).is_none());
    }

    #[test]
    fn hidden_addresses_give_no_names() {
        let kernel = load(
            "0000000000000000 T _stext\n0000000000000000 T do_work\n",
            "",
        );
        assert!(kernel.is_restricted());
        assert!(kernel.symbol(0xffffffff81000100).is_none());
        let place = kernel.place(0xffffffff81000100);
        assert_eq!(&*place.module.unwrap().path, "[kernel]");
        assert_eq!(place.address, 0xffffffff81000100);
        assert!(load("", "").is_restricted());
    }

    #[test]
    fn a_reload_keeps_equal_modules() {
        let old = load(SYMBOLS, MODULES);
        let mut new = load(SYMBOLS, MODULES);
        assert_ne!(old.image.module.uid, new.image.module.uid);
        new.keep_modules_of(&old);
        assert_eq!(old.image.module.uid, new.image.module.uid);
        assert_eq!(old.modules[0].module.uid, new.modules[0].module.uid);
    }
}
