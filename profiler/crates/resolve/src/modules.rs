//! What processes have mapped: modules, and the open files behind them.
//!
//! Mappings -> [`CodeModule`]s, one for all processes that map the same, and [`CodeRange`]s in them. The
//! file of a mapping is opened as soon as the mapping is known, because the process may be gone in a
//! moment.
//!
//! What does not belong here: how files are opened safely and how long they stay open (`files`), which
//! process has mapped what (`process`).

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::MemfdFlags;

use super::closing::Closer;
use super::files::{self, FileKey, Files, MappedFile, OpenError, Root, TargetFile};
use super::jit::{JitProcess, is_dump};
use super::lingering::LingeringModules;
use super::mapping::{CodeModule, CodeRange, next_uid};
use super::proc_fs;
use super::process::ProcessTable;
use super::unwinding::{CodeFile, CodeFiles};
use super::vsyscall;
use profiler_model::raw::RawMmap;
use profiler_model::{ModuleKind, Pid, Timestamp};
use profiler_object::elf::{Elf, read_up_to};

/// Longest path kept.
const MAX_PATH_BYTES: usize = 4096;
/// What the kernel adds to the path of a file that has no name any more.
const DELETED: &str = " (deleted)";
/// Longest vDSO.
const MAX_VDSO_BYTES: u64 = 1 << 20;

/// What kind of memory a mapping's name speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    File,
    /// A file without a place in a file system: run-time code, or a program started from memory.
    Memory,
    Anonymous,
    Vdso,
    Vsyscall,
    Other,
}

/// A file is not open yet, and may be later.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotYet;

/// Modules by name and file, and the open files behind them.
#[derive(Debug)]
pub(super) struct Modules {
    known: FxHashMap<(Box<str>, Option<FileKey>), Weak<CodeModule>>,
    files: Files,
    lingering: LingeringModules,
    /// What tells files with unwind tables apart; none: there are no tables.
    code: Option<CodeFiles>,
    vdso: Option<(Arc<CodeModule>, Arc<TargetFile>)>,
    vsyscall: Option<(Arc<CodeModule>, Arc<TargetFile>)>,
    /// This process's own root.
    host: Option<Arc<Root>>,
    /// How many files could not be opened when they were mapped.
    pub(super) not_opened: u64,
}

impl Modules {
    /// None known yet; `tables`: stacks are walked by what files say. Files are closed by `closer`.
    pub(super) fn new(host: Option<Arc<Root>>, tables: bool, closer: Closer) -> Modules {
        Modules {
            known: FxHashMap::default(),
            files: Files::new(files::raise_file_limit(), closer),
            lingering: LingeringModules::new(),
            code: tables.then(CodeFiles::default),
            vdso: own_vdso(),
            vsyscall: own_vsyscall(),
            host,
            not_opened: 0,
        }
    }

    /// Time of the events that come now.
    pub(super) fn now(&self) -> Timestamp {
        self.files.now
    }

    /// Events of this time come now.
    pub(super) fn come_to(&mut self, at: Timestamp) {
        self.files.now = self.files.now.max(at);
    }

    /// Whether programs have a vDSO here.
    pub(super) fn has_vdso(&self) -> bool {
        self.vdso.is_some()
    }

    /// Whether one of this path is known.
    #[cfg(test)]
    pub(super) fn knows(&self, path: &str) -> bool {
        let mut known = self.known.iter();
        known.any(|((known, _), module)| **known == *path && module.strong_count() > 0)
    }

    /// How many are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Opens the file of a mapping, unless it is open; none if it can't be, or is none. With the path by
    /// which it was mapped. `is_again`: it was to be opened before.
    pub(super) fn open(
        &mut self,
        mmap: &RawMmap,
        is_again: bool,
        root: impl FnOnce() -> Option<Arc<Root>>,
    ) -> Result<Option<(String, Arc<TargetFile>)>, NotYet> {
        let path = path_of(mmap);
        if !matches!(backing(&path), Backing::File | Backing::Memory) {
            return Ok(None);
        }
        let root = root();
        let Some(key) = FileKey::of(mmap.file) else {
            return Ok(None);
        };
        if let Some(file) = self.files.get_unchanged(&key) {
            return Ok(Some((path, file)));
        }
        if !is_again {
            self.files.forgive(&key);
        }
        let opened = self.files.open_soon(&MappedFile {
            pid: mmap.pid,
            range: (mmap.start, mmap.start.saturating_add(mmap.len)),
            path: &path,
            identity: mmap.file,
            root: root.as_ref(),
        });
        match opened {
            Ok(file) => Ok(Some((path, file))),
            Err(OpenError::Later) => Err(NotYet),
            Err(OpenError::Again) => Ok(None),
            Err(error) => {
                self.not_opened += 1;
                log::debug!("pid {}: {path}: {error}", mmap.pid);
                Ok(None)
            }
        }
    }

    /// Takes the files that are open by now; whether those that are not may be asked for again.
    pub(super) fn look_at_slow(&mut self) -> bool {
        self.files.look_at_slow()
    }

    /// The file behind a mapping, opened again if it was closed; none if it is not what the module is
    /// said to be.
    pub(super) fn file_behind(
        &mut self,
        pid: Pid,
        range: &CodeRange,
        root: impl FnOnce() -> Option<Arc<Root>>,
    ) -> Option<Arc<TargetFile>> {
        let module = &range.module;
        if module.kind == ModuleKind::Vdso {
            let mut kernels = [&self.vdso, &self.vsyscall].into_iter().flatten();
            let found = kernels.find(|(known, _)| known.uid == module.uid);
            return found.map(|(_, file)| file.clone());
        }
        let open = module.key.as_ref().and_then(|key| self.files.get(key));
        let file = open.or_else(|| {
            let root = root().or_else(|| self.host.clone());
            let mapped = MappedFile {
                pid,
                range: range.mapped,
                path: &module.path,
                identity: range.identity,
                root: root.as_ref(),
            };
            self.files.open(&mapped).ok()
        });
        file.filter(|file| is_of(module, file))
    }

    /// What a program has mapped besides when it has mapped this, which nobody tells of.
    pub(super) fn mapped_besides(&self, mmap: &RawMmap) -> Option<RawMmap> {
        let is_vdso = &*mmap.path == b"[vdso]" && mmap.start > u64::from(u32::MAX);
        (is_vdso && self.vsyscall.is_some()).then(|| RawMmap {
            start: vsyscall::START,
            len: vsyscall::LEN,
            file_offset: 0,
            path: vsyscall::NAME.as_bytes().into(),
            ..mmap.clone()
        })
    }

    /// Closes files that no living process maps, but those of events after `resolved`, which wait for
    /// their turn, and those that linger.
    pub(super) fn tidy(&mut self, resolved: Timestamp) {
        self.lingering.tidy(resolved);
        self.known.retain(|_, module| module.strong_count() > 0);
        let mapped = self.known.keys().filter_map(|(_, key)| key.as_ref());
        let mapped: FxHashSet<&FileKey> = mapped.collect();
        self.files.retain(resolved, |key| mapped.contains(key));
    }

    /// What a process has mapped, and where.
    pub(super) fn range_of(
        &mut self,
        at: Timestamp,
        mmap: &RawMmap,
        processes: &mut ProcessTable,
    ) -> Option<CodeRange> {
        let path = path_of(mmap);
        if is_dump(&path)
            && let Some(jit) = &self.jit(mmap.pid, processes).jit
        {
            // The first one: a child that was forked maps its own later.
            let _ = jit.dump.set(path.clone().into());
        }
        let module = self.of(mmap, &path);
        let module = module.unwrap_or_else(|| self.jit(mmap.pid, processes));
        range_within(at, mmap, module)
    }

    /// The same as soon as it is drained: of whose memory it is little may be known.
    pub(super) fn early_range_of(&mut self, at: Timestamp, mmap: &RawMmap) -> Option<CodeRange> {
        let path = path_of(mmap);
        let module = self.of(mmap, &path);
        // Nobody sees this one.
        let module = module.unwrap_or_else(|| self.named(ModuleKind::Jit, "[jit]"));
        range_within(at, mmap, module)
    }

    /// What is mapped; none: code made at run time.
    fn of(&mut self, mmap: &RawMmap, path: &str) -> Option<Arc<CodeModule>> {
        let key = FileKey::of(mmap.file);
        let module = match backing(path) {
            Backing::File => self.of_file(path, key),
            Backing::Memory => {
                let file = key.as_ref().and_then(|key| self.files.get(key));
                if file.is_some_and(|file| file.elf.is_some()) {
                    self.of_file(path, key)
                } else {
                    return None;
                }
            }
            Backing::Anonymous => return None,
            Backing::Vdso => match &self.vdso {
                // That of a 32-bit process lies below 4 GiB, and is another one.
                Some((module, _)) if mmap.start > u64::from(u32::MAX) => module.clone(),
                _ => self.named(ModuleKind::Unknown, path),
            },
            Backing::Vsyscall => match &self.vsyscall {
                Some((module, _)) => module.clone(),
                None => self.named(ModuleKind::Unknown, path),
            },
            Backing::Other => self.named(ModuleKind::Unknown, path),
        };
        Some(module)
    }

    fn of_file(&mut self, path: &str, key: Option<FileKey>) -> Arc<CodeModule> {
        let file = key.as_ref().and_then(|key| self.files.get(key));
        let place = (Box::from(path), key.clone());
        let known = self.known.get(&place).and_then(Weak::upgrade);
        let is_other = |known: &CodeModule| {
            // The place in the file system is another file's by now.
            let file = file.as_ref();
            file.is_some_and(|file| !is_of(known, file))
        };
        if let Some(known) = &known
            && known.elf.is_some()
            && !is_other(known)
        {
            return known.clone();
        }
        let copy = file.as_ref().and_then(|file| file.fingerprint.name);
        let elf = file.as_ref().and_then(|file| file.elf.clone());
        if let Some(known) = known
            && elf.is_none()
        {
            return known;
        }
        let module = Arc::new(CodeModule {
            uid: next_uid(),
            kind: ModuleKind::File,
            path: path.into(),
            build_id: elf.as_ref().and_then(|elf| elf.build_id.clone()),
            bias: elf.as_ref().map_or(0, Elf::code_bias),
            copy,
            code: match (&elf, &file) {
                (Some(elf), Some(file)) => self
                    .code
                    .as_mut()
                    .map(|code| code.of_file(file, elf, key.as_ref())),
                _ => None,
            },
            key,
            elf,
            jit: None,
            first: None,
        });
        if let (Some(key), Some(file)) = (&place.1, &file) {
            self.lingering.keep(key, &module, file, self.files.now);
        }
        self.known.insert(place, Arc::downgrade(&module));
        module
    }

    /// One that has nothing but its name.
    pub(super) fn named(&mut self, kind: ModuleKind, path: &str) -> Arc<CodeModule> {
        let place = (Box::from(path), None);
        if let Some(known) = self.known.get(&place).and_then(Weak::upgrade) {
            return known;
        }
        let module = Arc::new(module_named(kind, path, None));
        self.known.insert(place, Arc::downgrade(&module));
        module
    }

    /// The code that a process makes at run time.
    fn jit(&mut self, pid: Pid, processes: &mut ProcessTable) -> Arc<CodeModule> {
        let Some(process) = processes.get(pid) else {
            return self.named(ModuleKind::Unknown, "//anon");
        };
        if let Some(module) = &process.jit {
            return module.clone();
        }
        // A child that was forked but runs no new program has ids of its own.
        let facts = if process.facts.uid.is_none() || process.facts.namespace_pids.is_empty() {
            proc_fs::facts(pid, None).map_or_else(|| process.facts.clone(), Arc::new)
        } else {
            process.facts.clone()
        };
        let jit = JitProcess {
            pid,
            namespace_pid: facts.namespace_pids.last().copied().unwrap_or(pid),
            uid: facts.uid,
            root: process.root.clone(),
            dump: OnceLock::new(),
        };
        // Two lives of one id in an epoch must not share frames, whose addresses are absolute.
        let place = |path: &str| (Box::from(path), None);
        let mut path = format!("[jit {pid}]");
        let mut life = 2;
        while self.known.contains_key(&place(&path)) {
            path = format!("[jit {pid} life {life}]");
            life += 1;
        }
        let module = Arc::new(module_named(ModuleKind::Jit, &path, Some(Arc::new(jit))));
        self.known.insert(place(&path), Arc::downgrade(&module));
        if let Some(process) = processes.get_mut(pid) {
            process.jit = Some(module.clone());
        }
        module
    }
}

/// Whether a file is what a module is said to be.
fn is_of(module: &CodeModule, file: &TargetFile) -> bool {
    file.fingerprint.name == module.copy && file.build_id() == module.build_id.as_ref()
}

/// Code of a process where other code of it had been, so often.
pub(super) fn again(first: &Arc<CodeModule>, times: usize) -> Arc<CodeModule> {
    let path = first.path.trim_end_matches(']');
    Arc::new(CodeModule {
        first: Some((first.clone(), times)),
        ..module_named(
            first.kind,
            &format!("{path} again {times}]"),
            first.jit.clone(),
        )
    })
}

fn range_within(at: Timestamp, mmap: &RawMmap, module: Arc<CodeModule>) -> Option<CodeRange> {
    let end = mmap.start.checked_add(mmap.len)?;
    let offset = match module.kind {
        ModuleKind::File => module.frame_address_of(mmap),
        ModuleKind::Vdso if mmap.start == vsyscall::START => vsyscall::ADDRESS,
        ModuleKind::Vdso => 0,
        _ => mmap.start,
    };
    Some(CodeRange {
        start: mmap.start,
        end,
        offset,
        mapped: (mmap.start, end),
        at,
        module,
        identity: mmap.file,
    })
}

fn module_named(kind: ModuleKind, path: &str, jit: Option<Arc<JitProcess>>) -> CodeModule {
    CodeModule {
        uid: next_uid(),
        kind,
        path: path.into(),
        build_id: None,
        bias: 0,
        copy: None,
        key: None,
        elf: None,
        jit,
        first: None,
        code: None,
    }
}

/// The path of a mapping, without what the kernel adds to deleted ones.
fn path_of(mmap: &RawMmap) -> String {
    let path = &mmap.path[..mmap.path.len().min(MAX_PATH_BYTES)];
    let path = String::from_utf8_lossy(path);
    path.strip_suffix(DELETED).unwrap_or(&path).to_owned()
}

fn backing(path: &str) -> Backing {
    if path == "[vdso]" {
        Backing::Vdso
    } else if path == vsyscall::NAME {
        Backing::Vsyscall
    } else if path.is_empty()
        || path.starts_with("//anon")
        || path.starts_with("[heap]")
        || path.starts_with("[stack")
        || path.starts_with("[anon")
        || path.starts_with("/dev/zero")
        || path.starts_with("/SYSV")
    {
        Backing::Anonymous
    } else if path.starts_with("/memfd:") {
        Backing::Memory
    } else if path.starts_with('/') {
        Backing::File
    } else {
        Backing::Other
    }
}

/// The vDSO as it is in this process: the same in all processes of this architecture.
pub(super) fn own_vdso() -> Option<(Arc<CodeModule>, Arc<TargetFile>)> {
    let own = super::proc_fs::mappings(Pid(std::process::id()));
    let mapping = own.iter().find(|mapping| &*mapping.path == b"[vdso]")?;
    let memory = std::fs::File::open("/proc/self/mem").ok()?;
    let mut bytes = vec![0; mapping.len.min(MAX_VDSO_BYTES) as usize];
    let got = read_up_to(&memory, &mut bytes, mapping.start).ok()?;
    kernels("[vdso]", 0, &bytes[..got])
}

/// The page of system calls among the kernel's addresses, where programs have it.
fn own_vsyscall() -> Option<(Arc<CodeModule>, Arc<TargetFile>)> {
    let own = super::proc_fs::mappings(Pid(std::process::id()));
    let is_it = |mapping: &RawMmap| mapping.start == vsyscall::START;
    own.iter().find(|mapping| is_it(mapping))?;
    kernels(vsyscall::NAME, vsyscall::ADDRESS, &vsyscall::file())
}

/// Code of the kernel's for user space: mapped from this offset on of a file with these bytes.
fn kernels(name: &str, offset: u64, bytes: &[u8]) -> Option<(Arc<CodeModule>, Arc<TargetFile>)> {
    let copy: OwnedFd = rustix::fs::memfd_create("kernel's", MemfdFlags::CLOEXEC).ok()?;
    let copy = std::fs::File::from(copy);
    std::os::unix::fs::FileExt::write_all_at(&copy, bytes, 0).ok()?;
    let stat = rustix::fs::fstat(&copy).ok()?;
    let mut file = TargetFile::new(copy, &stat, name, None, true);
    (file.trusted, file.owner) = (true, None);
    let elf = file.elf.clone()?;
    let module = CodeModule {
        uid: next_uid(),
        kind: ModuleKind::Vdso,
        path: name.into(),
        build_id: elf.build_id.clone(),
        bias: elf.bias(offset),
        copy: None,
        key: None,
        elf: Some(elf),
        jit: None,
        first: None,
        code: Some(CodeFile::new(name)),
    };
    Some((Arc::new(module), Arc::new(file)))
}
