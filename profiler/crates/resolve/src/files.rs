//! Opens the files that targets map, and keeps them open until their code has names.
//!
//! A mapping of a process -> [`TargetFile`], one per content (build id, path and fingerprint, else device and
//! inode), shared by all processes that map it. Targets are hostile: a path of theirs is resolved below
//! their own root only, nothing but a regular file is ever opened for reading, and what was opened
//! must be what was mapped. Source: proc(5) (`map_files`, `root`), openat2(2).
//!
//! What does not belong here: reading symbols, and where debug information is (`debug_files`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::process::{Resource, Rlimit};

use super::accounts::account_of;
use super::closing::Closer;
use super::copies::Room;
use super::fingerprint::{Fingerprint, Fingerprints};
use super::helper::{Opening, Slow, open_elsewhere, open_soon};
use super::overlay_layers::OverlayLayers;
use super::patience::ask_process;
use super::proc_fs::at_live_thread;
use super::served::{OVERLAYFS, is_local};
use super::servers::{Device, Servers};
use profiler_model::raw::FileIdentity;
use profiler_model::{BuildId, Pid, Timestamp};
use profiler_object::elf::{Elf, ElfError};

/// Largest file that is read at all.
pub(super) const MAX_FILE_BYTES: u64 = 4 << 30;
/// How long a failure to open is believed before the next try.
const RETRY: Duration = Duration::from_millis(200);
/// Most failures that are remembered.
const MAX_FAILURES: usize = 4096;
/// How many files may be waited for at once, each by a process.
const MAX_SLOW: usize = 32;
/// Share of the limit of open files that target files may use.
const FILES_SHARE: u64 = 4;
/// Most target files open at once.
const MAX_OPEN: u64 = 4096;

/// Why a mapped file can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// It is gone, or out of reach.
    #[error("can't be opened: {0}")]
    Open(#[from] io::Error),
    /// Nothing of its process's files is to be seen.
    #[error("is out of reach: that takes CAP_SYS_PTRACE (run as root)")]
    OutOfReach,
    /// It is a directory, device, FIFO or socket.
    #[error("is not a regular file")]
    NotRegular,
    /// It is larger than [`MAX_FILE_BYTES`].
    #[error("is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// What is at its path is another file by now.
    #[error("was replaced")]
    Replaced,
    /// Whoever has it takes its time: it is asked for again in a while.
    #[error("is not open yet")]
    Later,
    /// The last try failed a moment ago.
    #[error("could not be opened a moment ago")]
    Again,
    /// It lies with a server, and only what lies on this machine is wanted.
    #[error(
        "lies with a server (FUSE, a network), or on an overlay that may have it from one: the kernel would ask that \
         where probes are attached"
    )]
    Served,
    /// Its file system, or the process that maps it, does not answer.
    #[error("is left alone: its file system, or the process that maps it, does not answer")]
    Silent,
}

/// What a mapped file is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileKey {
    /// By its contents and its path. A build id alone is no proof: anybody can write that of a
    /// system library into a file.
    BuildId(BuildId, Box<str>, Fingerprint),
    /// By its place in a file system: device (major, minor), inode, generation (0: not known).
    Inode(u32, u32, u64, u64),
}

impl FileKey {
    /// What a mapped file is known by before it is open; none if no file is behind it.
    pub(super) fn of(identity: FileIdentity) -> Option<FileKey> {
        let FileIdentity {
            major,
            minor,
            inode,
            generation,
        } = identity;
        (inode != 0).then_some(FileKey::Inode(major, minor, inode, generation))
    }
}

/// The root directory of a mount namespace (or chroot), kept open. The namespace is kept as well:
/// when its last process ends, all that is mapped below its root would be unmounted at once. So this
/// is held no longer than processes and questions about their code are.
#[derive(Debug)]
pub(super) struct Root {
    /// None once it is dropped.
    dir: Option<OwnedFd>,
    /// Whether it is this process's own, below which only the machine's root is root.
    own: bool,
    /// A process whose root it was when it was opened.
    of: Option<Pid>,
    /// What it is made of, if it is an overlay.
    layers: Option<OverlayLayers>,
    namespace: Option<OwnedFd>,
    closer: Closer,
}

impl Drop for Root {
    fn drop(&mut self) {
        self.closer.close((self.namespace.take(), self.dir.take()));
    }
}

impl Root {
    /// Whether a file below this root can be changed by nobody but the machine's own root. A
    /// container's root is not that, whatever its number is.
    pub(super) fn trusts(&self, stat: &Stat) -> bool {
        self.own && is_trusted(stat)
    }

    /// The folder itself.
    pub(super) fn folder(&self) -> Option<BorrowedFd<'_>> {
        self.dir.as_ref().map(AsFd::as_fd)
    }

    /// Whether it is this process's own.
    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    /// A process whose root it was.
    pub(super) fn of(&self) -> Option<Pid> {
        self.of
    }

    /// What it is made of, if it is an overlay.
    pub(super) fn layers(&self) -> Option<&OverlayLayers> {
        self.layers.as_ref()
    }

    /// One that is known by its folder and layers.
    pub(super) fn of_folder(dir: Option<OwnedFd>, layers: Option<OverlayLayers>) -> Root {
        Root {
            dir,
            own: false,
            of: None,
            layers,
            namespace: None,
            closer: Closer::default(),
        }
    }

    /// A handle of what is at a path below this root. Symbolic links stay inside.
    pub(super) fn handle(&self, path: &str) -> io::Result<OwnedFd> {
        self.handle_by(path, ResolveFlags::empty())
    }

    /// The same, if the kernel knows the whole way without asking a file system; else EAGAIN, or EINVAL before Linux 5.12.
    pub(super) fn handle_without_asking(&self, path: &str) -> io::Result<OwnedFd> {
        self.handle_by(path, ResolveFlags::CACHED)
    }

    fn handle_by(&self, path: &str, how: ResolveFlags) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | how;
        self.below(path, flags, inside)
    }

    /// Opens a regular file below this root. Symbolic links stay inside. That may take as long as a server likes.
    pub(super) fn open(&self, path: &str) -> Result<(File, Stat), OpenError> {
        open_checked(self.handle(path))
    }

    /// Opens a regular file below this root that no symbolic link leads to.
    pub(super) fn open_without_links(&self, path: &str) -> Result<(File, Stat), OpenError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        open_checked(self.below(path, flags, inside))
    }

    fn below(&self, path: &str, flags: OFlags, inside: ResolveFlags) -> io::Result<OwnedFd> {
        let dir = self.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let path = path.trim_start_matches('/');
        let handle = rustix::fs::openat2(dir, path, flags, Mode::empty(), inside)?;
        Ok(handle)
    }

    /// The root of this process's own namespace.
    pub(super) fn own() -> io::Result<Root> {
        let mut root = Root::at(std::path::Path::new("/"))?;
        root.own = true;
        Ok(root)
    }

    /// A directory as a root.
    pub(super) fn at(dir: &std::path::Path) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, dir, flags, Mode::empty())?;
        Ok(Root {
            dir: Some(dir),
            own: false,
            of: None,
            layers: None,
            namespace: None,
            closer: Closer::default(),
        })
    }
}

/// Opens a regular file of the machine itself, whose path is trusted.
pub(super) fn open_trusted(path: &std::path::Path) -> Result<(File, Stat), OpenError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(CWD, path, flags, Mode::empty());
    open_checked(handle.map_err(io::Error::from))
}

/// From a handle that can't be read yet to one that can, if it is a regular file: opening a FIFO
/// or a device for reading could block or have effects.
pub(super) fn open_checked(handle: io::Result<OwnedFd>) -> Result<(File, Stat), OpenError> {
    let handle = handle?;
    let stat = rustix::fs::fstat(&handle).map_err(io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(OpenError::NotRegular);
    }
    if stat.st_size as u64 > MAX_FILE_BYTES {
        return Err(OpenError::TooLarge);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from)?;
    Ok((File::from(file), stat))
}

/// Finds the roots of processes and shares them.
#[derive(Debug, Default)]
pub(super) struct Roots {
    known: FxHashMap<(u64, u64, u64), Weak<Root>>,
    closer: Closer,
}

impl Roots {
    /// Knows this process's own root. Others are closed by `closer`.
    pub(super) fn new(own: Option<&Arc<Root>>, closer: Closer) -> Roots {
        let mut roots = Roots {
            closer,
            ..Roots::default()
        };
        if let (Some(own), Some(id)) = (own, root_id("/proc/self")) {
            roots.known.insert(id, Arc::downgrade(own));
        }
        roots
    }

    /// The root of a process that is alive.
    pub(super) fn of(&mut self, pid: Pid) -> Option<Arc<Root>> {
        let find =
            move || at_live_thread(pid, |folder| Some((folder.to_owned(), root_id(folder)?)));
        let (folder, id) = ask_process(pid, find).flatten()?;
        if let Some(root) = self.known.get(&id).and_then(Weak::upgrade) {
            return Some(root);
        }
        let open = move || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let path = format!("{folder}/root");
            let dir = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let link = format!("{folder}/ns/mnt");
            let namespace = rustix::fs::openat(CWD, link, flags, Mode::empty()).ok();
            Some((dir, layers_of(pid, &folder), namespace))
        };
        let (dir, layers, namespace) = ask_process(pid, open).flatten()?;
        let root = Arc::new(Root {
            dir: Some(dir),
            own: false,
            of: Some(pid),
            layers,
            namespace,
            closer: self.closer.clone(),
        });
        self.known.retain(|_, root| root.strong_count() > 0);
        self.known.insert(id, Arc::downgrade(&root));
        Some(root)
    }
}

/// What tells the root of a process from others: mount namespace, device, inode.
fn root_id(folder: &str) -> Option<(u64, u64, u64)> {
    let namespace = rustix::fs::stat(format!("{folder}/ns/mnt")).ok()?;
    let (device, inode) = place_without_asking(&format!("{folder}/root"))?;
    Some((namespace.st_ino, device, inode))
}

/// The layers of a process's root, if it is an overlay that was mounted for this machine's own users:
/// any user can mount one in a user namespace, of folders that mean others there.
fn layers_of(pid: Pid, folder: &str) -> Option<OverlayLayers> {
    let user = |folder: &str| rustix::fs::stat(format!("{folder}/ns/user")).ok();
    let (own, of) = (user("/proc/self")?, user(folder)?);
    if (own.st_dev, own.st_ino) != (of.st_dev, of.st_ino) {
        return None;
    }
    OverlayLayers::of_root(&super::proc_fs::mounts(pid)?)
}

/// A file that a target maps or mapped, open and verified.
#[derive(Debug)]
pub(super) struct TargetFile {
    /// For positioned reads.
    pub(super) file: File,
    /// Its headers; none if it is no ELF file.
    pub(super) elf: Option<Elf>,
    /// Whether only root can change it, so that it may be mapped into memory as it is.
    pub(super) trusted: bool,
    /// Path as its processes see it.
    pub(super) path: String,
    /// What that path is below, as long as a process needs it.
    pub(super) root: Weak<Root>,
    /// What tells it from other files of that path.
    pub(super) fingerprint: Fingerprint,
    /// Its length when it was opened.
    pub(super) opened_len: u64,
    /// Which version of it was opened.
    opened: Version,
    /// Whether it lies where no server has to be asked.
    pub(super) is_local: bool,
    /// Whose work it is, unless it is root's on a disk of this machine.
    pub(super) owner: Option<u32>,
    /// What it takes, if it is a copy.
    pub(super) room: Option<Room>,
}

impl TargetFile {
    /// Takes an open regular file.
    pub(super) fn new(
        file: File,
        stat: &Stat,
        path: &str,
        root: Option<&Arc<Root>>,
        is_local: bool,
    ) -> TargetFile {
        let elf = match Elf::read(&file) {
            Ok(elf) => Some(elf),
            Err(ElfError::Format) => None,
            Err(error) => {
                log::debug!("{path}: {error}");
                None
            }
        };
        let trusted = root.is_some_and(|root| root.trusts(stat));
        TargetFile {
            file,
            elf,
            trusted,
            is_local,
            owner: (!trusted || !is_local).then(|| account_of(stat.st_uid)),
            room: None,
            path: path.to_owned(),
            root: root.map_or_else(Weak::new, Arc::downgrade),
            fingerprint: Fingerprint::default(),
            opened_len: stat.st_size as u64,
            opened: version(stat),
        }
    }

    /// Whether it was written to since it was opened, or is called otherwise; what a server would have to be asked for is
    /// taken for the same.
    pub(super) fn was_changed(&self) -> bool {
        let changed = |stat: Stat| version(&stat) != self.opened;
        self.is_local && rustix::fs::fstat(&self.file).is_ok_and(changed)
    }

    /// Its length now.
    pub(super) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Whether it will still be there when the recording has ended: it has a name, below this process's own root.
    pub(super) fn stays(&self) -> bool {
        let is_host = self.root.upgrade().is_some_and(|root| root.own);
        // A server is not asked.
        let has_name = || rustix::fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink > 0);
        is_host && (!self.is_local || has_name())
    }

    /// Its build id, if it has one.
    pub(super) fn build_id(&self) -> Option<&BuildId> {
        self.elf.as_ref()?.build_id.as_ref()
    }
}

/// When a file was changed last, seconds and nanoseconds, and its length then.
pub(super) type Version = (i64, i64, i64);

/// The version of a file that this is told of.
pub(super) fn version(stat: &Stat) -> Version {
    (stat.st_ctime, stat.st_ctime_nsec as i64, stat.st_size)
}

/// Whether nobody but root, and who runs this, can write to a file.
pub(super) fn is_trusted(stat: &Stat) -> bool {
    let own = rustix::process::geteuid().as_raw();
    (stat.st_uid == 0 || stat.st_uid == own) && stat.st_mode & 0o022 == 0
}

/// Where a file is mapped: the ways to open it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedFile<'a> {
    /// A process that maps it.
    pub(super) pid: Pid,
    /// Where, in its memory.
    pub(super) range: (u64, u64),
    /// Path as that process sees it.
    pub(super) path: &'a str,
    /// Which file.
    pub(super) identity: FileIdentity,
    /// The root of that process.
    pub(super) root: Option<&'a Arc<Root>>,
}

#[derive(Debug)]
struct Open {
    file: Arc<TargetFile>,
    used: u64,
    /// When events came that spoke of it last.
    noticed: Timestamp,
}

/// A file whose server takes its time.
#[derive(Debug)]
struct Waited {
    key: FileKey,
    device: Device,
    slow: Box<Slow>,
}

/// All target files that are open.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: FxHashMap<FileKey, Open>,
    failed: FxHashMap<FileKey, Instant>,
    slow: Vec<Waited>,
    /// Whether who opens files has not begun.
    is_unbegun: bool,
    servers: Servers,
    fingerprints: Fingerprints,
    capacity: usize,
    clock: u64,
    /// Time of the events that come now. They are resolved later.
    pub(super) now: Timestamp,
    closer: Closer,
}

impl Files {
    /// Room for `capacity` files, which are closed by `closer`.
    pub(super) fn new(capacity: usize, closer: Closer) -> Files {
        Files {
            capacity,
            closer,
            ..Files::default()
        }
    }

    /// A file that is open.
    pub(super) fn get(&mut self, key: &FileKey) -> Option<Arc<TargetFile>> {
        let open = self.open.get_mut(key)?;
        self.clock += 1;
        open.used = self.clock;
        open.noticed = self.now;
        Some(open.file.clone())
    }

    /// The file behind a mapping: open already, or opened now.
    pub(super) fn open(&mut self, mapped: &MappedFile<'_>) -> Result<Arc<TargetFile>, OpenError> {
        match self.look_for(mapped)? {
            (Some(file), _) => Ok(file),
            (None, key) => self.settle(open_elsewhere(mapped), key),
        }
    }

    /// The same, but a server that takes its time is not waited for: [`Files::look_at_slow`] does it.
    pub(super) fn open_soon(
        &mut self,
        mapped: &MappedFile<'_>,
    ) -> Result<Arc<TargetFile>, OpenError> {
        let identity = mapped.identity;
        let device = (identity.major, identity.minor);
        let key = match self.look_for(mapped)? {
            (Some(file), _) => return Ok(file),
            (None, key) => key,
        };
        let is_served = device.0 == 0;
        let is_asked = self.slow.iter().any(|waited| waited.device == device);
        if is_served && (is_asked || self.slow.len() >= MAX_SLOW) {
            return Err(OpenError::Later);
        }
        let begun = Instant::now();
        let opening = open_soon(mapped, self.servers.moment_for(device, begun));
        if let Opening::Done(Err(OpenError::Later)) = opening {
            // That is nobody's fault.
            self.is_unbegun = true;
            return Err(OpenError::Later);
        }
        if is_served {
            self.servers.waited_for(device, begun, Instant::now());
        }
        match opening {
            Opening::Done(opened) => self.settle(opened.map(|file| *file), key),
            Opening::Slow(slow) => {
                self.slow.push(Waited { key, device, slow });
                Err(OpenError::Later)
            }
        }
    }

    /// Takes the files that are open by now, and forgets those that will not be; whether more can be asked for.
    pub(super) fn look_at_slow(&mut self) -> bool {
        let mut is_news = std::mem::take(&mut self.is_unbegun);
        for waited in std::mem::take(&mut self.slow) {
            match waited.slow.look() {
                Opening::Done(opened) => {
                    is_news = true;
                    // It is asked for again.
                    let _ = self.settle(opened.map(|file| *file), waited.key);
                }
                Opening::Slow(slow) => self.slow.push(Waited { slow, ..waited }),
            }
        }
        is_news
    }

    /// One that is open, and what it is known by; an error, if it is not to be opened now.
    fn look_for(
        &mut self,
        mapped: &MappedFile<'_>,
    ) -> Result<(Option<Arc<TargetFile>>, FileKey), OpenError> {
        let Some(key) = FileKey::of(mapped.identity) else {
            return Err(OpenError::Open(io::ErrorKind::NotFound.into()));
        };
        if let Some(file) = self.get(&key) {
            return Ok((Some(file), key));
        }
        if self.slow.iter().any(|waited| waited.key == key) {
            return Err(OpenError::Later);
        }
        if self.failed.get(&key).is_some_and(|at| at.elapsed() < RETRY) {
            return Err(OpenError::Again);
        }
        Ok((None, key))
    }

    fn settle(
        &mut self,
        opened: Result<TargetFile, OpenError>,
        key: FileKey,
    ) -> Result<Arc<TargetFile>, OpenError> {
        match opened {
            Ok(file) => {
                self.failed.remove(&key);
                Ok(self.take(file, key))
            }
            Err(error) => {
                if self.failed.len() >= MAX_FAILURES {
                    self.failed.clear();
                }
                self.failed.insert(key, Instant::now());
                Err(error)
            }
        }
    }

    /// Keeps a file that was opened, unless the same is open already.
    fn take(&mut self, mut file: TargetFile, key: FileKey) -> Arc<TargetFile> {
        let path = &*file.path;
        if file.elf.is_some() {
            file.fingerprint = self.fingerprints.of(&file.file, path, file.build_id());
        }
        let Some(build_id) = file.build_id().cloned() else {
            let file = Arc::new(file);
            self.keep(key, file.clone());
            return file;
        };
        // Copies of one content are one file.
        let by_build_id = FileKey::BuildId(build_id, path.into(), file.fingerprint);
        let file = self.get(&by_build_id).unwrap_or_else(|| Arc::new(file));
        self.keep(by_build_id, file.clone());
        self.keep(key, file.clone());
        file
    }

    /// A file that is open, as it is mapped now: one that was written to since is opened anew.
    pub(super) fn get_unchanged(&mut self, key: &FileKey) -> Option<Arc<TargetFile>> {
        let file = self.get(key)?;
        if !file.was_changed() {
            return Some(file);
        }
        let open = self.open.remove(key);
        self.closer.close(open);
        None
    }

    /// Forgets that files could not be opened, because one of them is mapped anew.
    pub(super) fn forgive(&mut self, key: &FileKey) {
        self.failed.remove(key);
    }

    /// Closes the files that `needed` says nobody needs, unless there have been events since `resolved`
    /// that spoke of them: their turn is still to come.
    pub(super) fn retain(&mut self, resolved: Timestamp, needed: impl Fn(&FileKey) -> bool) {
        let unneeded = self.open.extract_if(|key, open| {
            if open.noticed >= resolved {
                return false;
            }
            let by_build_id = open.file.build_id();
            let by_build_id = by_build_id.map(|build_id| {
                FileKey::BuildId(
                    build_id.clone(),
                    open.file.path.as_str().into(),
                    open.file.fingerprint,
                )
            });
            !needed(key) && !by_build_id.is_some_and(|key| needed(&key))
        });
        let unneeded: Vec<Open> = unneeded.map(|(_, open)| open).collect();
        self.closer.close(unneeded);
        self.failed.retain(|_, at| at.elapsed() < RETRY);
    }

    fn keep(&mut self, key: FileKey, file: Arc<TargetFile>) {
        self.clock += 1;
        let used = self.clock;
        let noticed = self.now;
        let open = Open {
            file,
            used,
            noticed,
        };
        self.open.insert(key, open);
        if self.open.len() > self.capacity {
            // Seldom: a quarter goes at once, so that this is not done for each file.
            let mut ages: Vec<u64> = self.open.values().map(|open| open.used).collect();
            ages.sort_unstable();
            let oldest = ages[ages.len() / 4];
            let old = self.open.extract_if(|_, open| open.used <= oldest);
            let old: Vec<Open> = old.map(|(_, open)| open).collect();
            self.closer.close(old);
        }
    }
}

/// Opens a mapped file: the very inode if it is still mapped, else what is at its path now.
pub(super) fn open_mapped(mapped: &MappedFile<'_>) -> Result<TargetFile, OpenError> {
    let handle = handle_of_mapped(mapped)?;
    let (file, stat) = open_checked(Ok(handle))?;
    let is_local = is_local(&file, Some(mapped.pid), mapped.root.map(|root| &**root));
    Ok(TargetFile::new(
        file,
        &stat,
        mapped.path,
        mapped.root,
        is_local,
    ))
}

/// A handle of a mapped file, which can't be read yet.
pub(super) fn handle_of_mapped(mapped: &MappedFile<'_>) -> Result<OwnedFd, OpenError> {
    let MappedFile { pid, range, .. } = *mapped;
    let (start, end) = range;
    let link = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    match handle_of_link(&link) {
        Ok(handle) if is_same(mapped, &handle, true) => Ok(handle),
        // Unmapped by now, another mapping there, out of reach, or the process has ended.
        _ => handle_by_path(mapped),
    }
}

/// A handle of a mapped file that is not to be had by its mapping: by its path below the process's root; as the
/// program that the process runs, whatever became of its path; or in the layers of its root.
fn handle_by_path(mapped: &MappedFile<'_>) -> Result<OwnedFd, OpenError> {
    let out_of_reach = || match std::path::Path::new(&format!("/proc/{}", mapped.pid)).exists() {
        true => OpenError::OutOfReach,
        false => OpenError::Open(io::ErrorKind::NotFound.into()),
    };
    let root = mapped.root.ok_or_else(out_of_reach)?;
    let failed = match root.handle(mapped.path) {
        Ok(handle) if is_same(mapped, &handle, false) => return Ok(handle),
        Ok(_) => OpenError::Replaced,
        Err(error) => OpenError::Open(error),
    };
    let program = |folder: &str| handle_of_link(&format!("{folder}/exe")).ok();
    if let Some(handle) = at_live_thread(mapped.pid, program)
        && is_same(mapped, &handle, false)
    {
        return Ok(handle);
    }
    if let Some(layers) = &root.layers
        && let Ok((file, _)) = layers.open(mapped.path)
        && is_same_in_layer(mapped, &file, layers)
    {
        return Ok(file.into());
    }
    Err(failed)
}

/// A handle of what a link of /proc leads to.
fn handle_of_link(link: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, link, flags, Mode::empty())?)
}

/// Whether a file in a layer is the one that was mapped: the kernel names the overlay's device, or that of
/// the layer.
fn is_same_in_layer(mapped: &MappedFile<'_>, file: &File, layers: &OverlayLayers) -> bool {
    let identity = mapped.identity;
    match (identity.major, identity.minor) == layers.device {
        true => rustix::fs::fstat(file).is_ok_and(|stat| stat.st_ino == identity.inode),
        false => is_same(mapped, file, false),
    }
}

/// Whether a file is the one that was mapped. File systems in layers (overlayfs, btrfs) show
/// other device numbers in stat(2) than in mappings: for a `map_files` link, which leads to the
/// inode itself, the inode number decides.
fn is_same(mapped: &MappedFile<'_>, file: impl AsFd, exact: bool) -> bool {
    let identity = mapped.identity;
    let Some((device, inode)) = place_of(&file) else {
        return false;
    };
    let of_device = || device == (identity.major, identity.minor) || is_layered(&file);
    inode == identity.inode && (exact || of_device())
}

/// Device (major, minor) and inode of a file. No server is asked about it.
pub(super) fn place_of(file: impl AsFd) -> Option<((u32, u32), u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, "", flags, StatxFlags::INO).ok()?;
    Some(((stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

/// Device and inode of what a path leads to. No server is asked about it.
pub(super) fn place_without_asking(path: &str) -> Option<(u64, u64)> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::INO).ok()?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Some((device, stat.stx_ino))
}

fn is_layered(file: impl AsFd) -> bool {
    const BTRFS: u64 = 0x9123_683e;
    rustix::fs::fstatfs(file).is_ok_and(|fs| matches!(fs.f_type as u64, OVERLAYFS | BTRFS))
}

/// Raises the limit of open files as far as allowed; how many target files may be open.
pub(super) fn raise_file_limit() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let limit = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    let files = limit.current.unwrap_or(u64::MAX) / FILES_SHARE;
    files.clamp(16, MAX_OPEN) as usize
}
