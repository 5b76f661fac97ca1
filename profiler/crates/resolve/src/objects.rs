//! The object files of a target: what its processes map, or what a command will load.
//!
//! A process -> the files with code that it maps, main executable first. A file -> that file. A
//! command -> its program, the libraries that it is linked with, and what loads them, found the way
//! the dynamic linker finds them. Each is opened safely (`files`), with the separate file of its
//! debug information where there is one.
//!
//! What a process loads later by itself (dlopen) is not known here: mappings tell.
//!
//! What does not belong here: reading objects (`trace`).

mod command;
mod loader_cache;
mod patched;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustix::fs::Stat;

use super::closing::Closer;
use super::copies::Room;
use super::debug_files::{DebugFile, Search};
use super::files::{
    MappedFile, OpenError, Root, Roots, TargetFile, Version, open_trusted, place_without_asking,
    raise_file_limit, version,
};
use super::go_names::GoNames;
use super::helper::{open_below, open_local};
use super::patience::owner_of;
use super::proc_fs::{self, at_live_thread};
use super::served::{OVERLAYFS, is_local};
use super::warnings::warn_once;
use profiler_model::raw::FileIdentity;
use profiler_model::text::command_line;
use profiler_model::{BuildId, Pid, Timestamp};
use profiler_object::elf::Elf;
use profiler_object::{Object, ObjectError};

pub use patched::is_patched;

/// Most objects of one process.
const MAX_OBJECTS: usize = 16 << 10;
/// Bytes of a name of a process that is cut.
const MAX_COMM: usize = 15;

/// Why the objects of a target can't be told.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(Pid),
    /// Its mappings can't be read, or it has none.
    #[error(
        "process {0} shows no code: it is a thread of the kernel, has ended, or belongs to another \
         user, which takes CAP_SYS_PTRACE (run as root)"
    )]
    NoCode(Pid),
    /// Its files can't be seen.
    #[error("the files of process {0} are out of reach: that takes CAP_SYS_PTRACE (run as root)")]
    OutOfReach(Pid),
    /// The file can't be opened.
    #[error("{path} {why}")]
    Open {
        /// Which file.
        path: Box<str>,
        /// Why.
        why: Box<str>,
    },
    /// No program of that name.
    #[error("there is no program '{0}' in the folders of PATH")]
    NoProgram(Box<str>),
    /// Not a program that can be looked into.
    #[error("{0} is neither an ELF file nor a script")]
    NotProgram(Box<str>),
}

/// The files with code that a process maps now, one for each mapping; none if it can't be looked at.
pub fn mapped(pid: Pid) -> Vec<FileIdentity> {
    let maps = proc_fs::mappings(pid).into_iter();
    maps.map(|map| map.file).collect()
}

/// An object file of a target.
#[derive(Clone, Debug)]
pub struct TargetObject {
    /// Path as the target sees it.
    pub path: Box<str>,
    /// Paths of [`Finder::with_paths`] that lead to it as well, by links.
    pub aliases: Vec<Box<str>>,
    /// The file, for positioned reads, and to attach to by `/proc/self/fd`.
    pub file: Arc<File>,
    /// The separate file of its symbols and debug information.
    pub debug: Option<Arc<File>>,
    /// What mappings of it say which file it is.
    pub identity: FileIdentity,
    /// Which file it is, by whatever mount it is seen.
    pub id: FileId,
    /// GNU build id.
    pub build_id: Option<BuildId>,
    /// See [`profiler_model::Module::address_bias`].
    pub bias: u64,
    /// Whether it is the executable.
    pub is_main: bool,
    /// Whether it lies on this machine. Where a server has it, the kernel asks that server when a probe is attached, and
    /// all new processes of the machine wait until it has answered.
    pub is_local: bool,
    /// Whose work it or its debug file is; none if only root can change both, on disks of this machine.
    pub owner: Option<u32>,
    /// Where code of it is mapped: start, end, file offset. Empty if it is not mapped yet.
    pub ranges: Vec<(u64, u64, u64)>,
    /// What it and its debug file take, if they are copies.
    _rooms: Arc<[Option<Room>; 2]>,
}

impl TargetObject {
    /// Whether it can have a function whose name has one of these words.
    pub fn may_name(&self, words: &[Box<str>]) -> bool {
        profiler_object::may_name(&self.file, self.debug.as_deref(), words)
    }

    /// Reads it; of a stripped Go program with the functions that Go's own table names.
    pub fn read(&self, debug: Option<&File>) -> Result<Object, ObjectError> {
        read_object(&self.file, debug, &self.path, &self.aliases)
    }
}

/// Reads an object file that is called so; of a stripped Go program with the functions that Go's own table names.
pub fn read_object(
    file: &File,
    debug: Option<&File>,
    path: &str,
    aliases: &[Box<str>],
) -> Result<Object, ObjectError> {
    let object = Object::read(file, debug, path)?;
    let table = match object.is_go() && object.is_stripped() {
        true => GoNames::open(file),
        false => None,
    };
    let object = match table {
        Some(table) => object.with_functions(table.functions()),
        None => object,
    };
    Ok(object.with_aliases(aliases))
}

/// Which file something is. Containers made of one image show the same file by file systems of their
/// own, each with another device. The kernel attaches probes to the file below, for all of them: so such
/// a file is told by what it has from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Of an overlay: 0.
    device: u64,
    inode: u64,
    /// Of an overlay: that of the file below. One that a container has copied keeps its number, but was changed
    /// when it was copied.
    below: Version,
}

impl FileId {
    /// Of an open file.
    fn of(file: &File, stat: &Stat) -> FileId {
        /// Above these an overlay may put the number of a layer into the number of a file.
        const INODE: u64 = (1 << 48) - 1;
        let is_overlay = rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type as u64 == OVERLAYFS);
        match is_overlay {
            true => FileId {
                device: 0,
                inode: stat.st_ino & INODE,
                below: version(stat),
            },
            false => FileId {
                device: stat.st_dev,
                inode: stat.st_ino,
                below: (0, 0, 0),
            },
        }
    }

    /// The number that mappings of it have, whatever their device.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// Opens object files, and shares what that needs.
#[derive(Debug)]
pub struct Finder {
    search: Search,
    roots: Roots,
    /// Paths that people name objects by.
    paths: Vec<Box<str>>,
}

impl Finder {
    /// With folders of separate debug files, in targets and on the host.
    pub fn new(debug_dirs: Vec<PathBuf>) -> Finder {
        raise_file_limit();
        let host = Root::own().ok().map(Arc::new);
        Finder {
            paths: Vec::new(),
            roots: Roots::new(host.as_ref(), Closer::default()),
            search: Search {
                debug_dirs,
                debuginfod: None,
                host,
            },
        }
    }

    /// Says of each object which of these paths lead to it, below the root of who maps it. Mappings
    /// tell only one path of a file, without links.
    pub fn with_paths(mut self, paths: Vec<Box<str>>) -> Finder {
        self.paths = paths;
        self
    }

    /// The objects with code that a living process maps: the executable first, then by address.
    pub fn objects_of(&mut self, pid: Pid) -> Result<Vec<TargetObject>, ObjectsError> {
        let maps = proc_fs::mappings(pid);
        if maps.is_empty() {
            let there = Path::new(&format!("/proc/{pid}")).exists();
            return Err(match there {
                true => ObjectsError::NoCode(pid),
                false => ObjectsError::NoProcess(pid),
            });
        }
        let root = self.roots.of(pid);
        let program = |folder: &str| place_without_asking(&format!("{folder}/exe"));
        let main = at_live_thread(pid, program);
        let mut known: FxHashMap<(u32, u32, u64), usize> = FxHashMap::default();
        let mut objects: Vec<TargetObject> = Vec::new();
        for map in &maps {
            let FileIdentity {
                major,
                minor,
                inode,
                ..
            } = map.file;
            if inode == 0 {
                continue;
            }
            let end = map.start.saturating_add(map.len);
            let range = (map.start, end, map.file_offset);
            if let Some(&at) = known.get(&(major, minor, inode)) {
                if let Some(object) = objects.get_mut(at) {
                    object.ranges.push(range);
                }
                continue;
            }
            let path = String::from_utf8_lossy(&map.path);
            let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
            let opened = open_local(&MappedFile {
                pid,
                range: (map.start, end),
                path,
                identity: map.file,
                root: root.as_ref(),
            });
            let file = match opened {
                Ok(file) if file.elf.is_some() && objects.len() < MAX_OBJECTS => file,
                // Memory of graphics drivers, files of a JIT, archives.
                Ok(_) | Err(OpenError::NotRegular) => continue,
                // Neither can any other of this process.
                Err(OpenError::OutOfReach) => return Err(ObjectsError::OutOfReach(pid)),
                Err(error @ OpenError::Served) => {
                    let line = format_args!("{path} {error}: nothing in it is traced");
                    warn_once("mapped files", line);
                    continue;
                }
                Err(error) => {
                    warn_once(
                        "mapped files",
                        format_args!("{path}, mapped by process {pid}, {error}"),
                    );
                    continue;
                }
            };
            let Ok(stat) = rustix::fs::fstat(&file.file) else {
                continue;
            };
            let is_main = main
                .as_ref()
                .is_some_and(|main| *main == (stat.st_dev, stat.st_ino));
            known.insert((major, minor, inode), objects.len());
            let mut object = self.object(file, &stat, is_main);
            object.identity = map.file;
            object.ranges.push(range);
            if is_main {
                let name =
                    called_as(pid).filter(|name| !object.path.ends_with(&format!("/{name}")));
                object.aliases.extend(name);
            }
            objects.push(object);
        }
        objects.sort_by_key(|object| !object.is_main);
        if let Some(root) = root {
            self.find_aliases(&mut objects, &root, owner_of(pid));
        }
        Ok(objects)
    }

    /// The objects that the paths of [`Finder::with_paths`] lead to below the root of a process, whether
    /// or not it maps them.
    pub fn objects_at_paths(&mut self, pid: Pid) -> Vec<TargetObject> {
        let paths = self.paths.clone();
        let found = paths.iter().filter_map(|path| {
            let object = self.object_at(Path::new(&**path), Some(pid));
            object.inspect_err(|error| log::debug!("{error}")).ok()
        });
        found.collect()
    }

    /// Whether a process has another root than we have.
    pub fn has_own_root(pid: Pid) -> bool {
        let root = |folder: &str| place_without_asking(&format!("{folder}/root"));
        at_live_thread(pid, root).is_some_and(|other| Some(other) != root("/proc/self"))
    }

    /// Which of the known paths lead to which object.
    fn find_aliases(&self, objects: &mut [TargetObject], root: &Arc<Root>, user: u32) {
        for path in &self.paths {
            let Ok(found) = open_below(root, path, user, false) else {
                continue;
            };
            let id = FileId::of(&found.file, &found.stat);
            let mut objects = objects.iter_mut();
            if let Some(object) = objects.find(|object| object.id == id)
                && object.path != *path
            {
                object.aliases.push(path.clone());
            }
        }
    }

    /// A file named by its path: of this machine, or below the root of a process.
    pub fn object_at(
        &mut self,
        path: &Path,
        pid: Option<Pid>,
    ) -> Result<TargetObject, ObjectsError> {
        let text = path.to_string_lossy();
        let wrong = |error: OpenError| ObjectsError::Open {
            path: text.as_ref().into(),
            why: error.to_string().into(),
        };
        let (file, stat, found) = match pid {
            Some(pid) => {
                let root = self.roots.of(pid).ok_or(ObjectsError::NoProcess(pid))?;
                let found = open_below(&root, &text, owner_of(pid), true).map_err(wrong)?;
                let (stat, is_local) = (found.stat, found.copy.is_none());
                let file = found.into_target(&text, Some(&root), is_local);
                (file, stat, path.to_owned())
            }
            None => {
                let (file, stat) = open_trusted(path).map_err(wrong)?;
                let found = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                let root = self.search.host.as_ref();
                let is_local = is_local(&file, None, root.map(|root| &**root));
                let found_as = found.to_string_lossy();
                let file = TargetFile::new(file, &stat, &found_as, root, is_local);
                (file, stat, found)
            }
        };
        if file.elf.is_none() {
            return Err(ObjectsError::Open {
                path: text.as_ref().into(),
                why: "is not an ELF file".into(),
            });
        }
        let mut object = self.object(file, &stat, false);
        // A link may have another name.
        if found.file_name() != path.file_name() {
            let name = path.file_name().map(|name| name.to_string_lossy().into());
            object.aliases.extend(name);
        }
        Ok(object)
    }

    fn object(&self, file: TargetFile, stat: &Stat, is_main: bool) -> TargetObject {
        let debug = self.debug_file(&file);
        let others = debug.as_ref().and_then(DebugFile::owner);
        let (debug, copy) = debug
            .map(|debug| (Arc::new(debug.file), debug.copy))
            .unzip();
        TargetObject {
            owner: file.owner.or(others),
            is_local: file.is_local,
            id: FileId::of(&file.file, stat),
            path: file.path.as_str().into(),
            build_id: file.build_id().cloned(),
            bias: file.elf.as_ref().map_or(0, Elf::code_bias),
            debug,
            aliases: Vec::new(),
            identity: FileIdentity {
                major: rustix::fs::major(stat.st_dev),
                minor: rustix::fs::minor(stat.st_dev),
                inode: stat.st_ino,
                generation: 0,
            },
            is_main,
            ranges: Vec::new(),
            file: Arc::new(file.file),
            _rooms: Arc::new([file.room, copy.flatten().map(|(_, room)| room)]),
        }
    }

    /// The separate debug file, if the file does not have everything itself.
    fn debug_file(&self, file: &TargetFile) -> Option<DebugFile> {
        let sections = file.elf.as_ref()?.sections(&file.file).ok()?;
        let has = |name: &str| {
            let mut sections = sections.iter();
            sections.any(|section| section.name == name && section.bytes_in_file() > 0)
        };
        if has(".debug_info") && has(".symtab") {
            return None;
        }
        self.search.debug_file(file, &sections)
    }
}

/// When a living process was started, as exact as a tick of the kernel (10 ms).
pub fn started(pid: Pid) -> Option<Timestamp> {
    let stat = proc_fs::process_stat(pid, &proc_fs::Clocks::read())?;
    Some(stat.started)
}

/// A process that could be a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetProcess {
    /// Its id.
    pub pid: Pid,
    /// Its name.
    pub name: Box<str>,
    /// Its command line, arguments joined by spaces.
    pub command: Option<Box<str>>,
    /// Whose files it accesses: the user id.
    pub uid: Option<u32>,
    /// The executable, as the process sees it; none if it can't be seen.
    pub executable: Option<Box<str>>,
}

/// All processes with code of their own: no threads of the kernel.
pub fn processes() -> Vec<TargetProcess> {
    let clocks = proc_fs::Clocks::read();
    let mut found: Vec<TargetProcess> = proc_fs::processes()
        .into_iter()
        .filter_map(|pid| {
            let stat = proc_fs::process_stat(pid, &clocks)?;
            let facts = proc_fs::facts(pid, None)?;
            // Threads of the kernel have neither.
            let executable = proc_fs::executable(pid);
            if executable.is_none() && facts.command.is_none() {
                return None;
            }
            Some(TargetProcess {
                pid,
                name: stat.comm.text().into(),
                command: facts
                    .command
                    .map(|arguments| command_line(&arguments).into()),
                uid: facts.uid,
                executable,
            })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

impl Default for Finder {
    fn default() -> Finder {
        Finder::new(super::ResolveOptions::default().debug_dirs)
    }
}

/// What a program was called as when it was started: links to it may have other names than its file. The kernel's
/// name of a process has 15 bytes of it at most; longer ones are in the command line, unless that was changed.
fn called_as(pid: Pid) -> Option<Box<str>> {
    let stat = proc_fs::process_stat(pid, &proc_fs::Clocks::read())?;
    let comm = stat.comm.text();
    if comm.len() < MAX_COMM {
        return (!comm.is_empty() && !comm.contains('/')).then(|| (*comm).into());
    }
    let facts = proc_fs::facts(pid, None)?;
    let first = facts.command.as_deref()?.split('\0').next()?;
    let name = first.rsplit('/').next()?;
    name.starts_with(&*comm).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_objects_are_found() {
        let pid = Pid(std::process::id());
        let mut finder = Finder::default();
        let objects = finder.objects_of(pid).unwrap();
        let exe = std::env::current_exe().unwrap();
        assert_eq!(&*objects[0].path, exe.to_str().unwrap());
        assert!(objects[0].is_main && objects[1..].iter().all(|object| !object.is_main));
        let libc = objects.iter().find(|o| o.path.contains("libc")).unwrap();
        assert!(libc.build_id.is_some());
        let code = libc::malloc as *const () as u64;
        assert!(
            libc.ranges
                .iter()
                .any(|range| (range.0..range.1).contains(&code))
        );
        let below = finder.object_at(Path::new(&*libc.path), Some(pid)).unwrap();
        assert_eq!(below.id, libc.id);
        assert!(processes().iter().any(|process| process.pid == pid));
    }

    #[test]
    fn paths_that_lead_to_an_object_by_links_are_known() {
        let link = std::env::temp_dir().join(format!("profiler-link-{}", std::process::id()));
        let exe = std::env::current_exe().unwrap();
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&exe, &link).unwrap();
        let pid = Pid(std::process::id());
        let paths = [link.to_str().unwrap(), "/no/such", exe.to_str().unwrap()];
        let mut finder = Finder::default().with_paths(paths.map(Box::from).to_vec());
        let objects = finder.objects_of(pid).unwrap();
        assert!(objects[0].aliases.contains(&Box::from(paths[0])));
        assert!(objects[1..].iter().all(|object| object.aliases.is_empty()));
        let found = finder.objects_at_paths(pid);
        std::fs::remove_file(&link).unwrap();
        assert!(found.len() == 2 && found.iter().all(|object| object.id == objects[0].id));
        assert!(!Finder::has_own_root(pid));
        assert!(started(pid).is_some());
        let main = (objects[0].id, vec![objects[0].ranges[0].2]);
        assert!(!is_patched(pid, &[main]), "nobody has probes in it");
    }

    #[test]
    fn what_can_not_be_found_is_named() {
        let mut finder = Finder::default();
        let gone = finder.objects_of(Pid(i32::MAX as u32)).unwrap_err();
        assert!(gone.to_string().contains("no process"));
        let text = finder.object_at(Path::new("/no/such"), None).unwrap_err();
        assert!(text.to_string().contains("/no/such"), "{text}");
        let folder = finder.object_at(Path::new("/tmp"), None).unwrap_err();
        assert!(
            folder.to_string().contains("not a regular file"),
            "{folder}"
        );
        let passwd = finder
            .object_at(Path::new("/etc/passwd"), None)
            .unwrap_err();
        assert!(passwd.to_string().contains("not an ELF file"), "{passwd}");
        let program = finder
            .objects_of_command(Path::new("no-such-program"))
            .unwrap_err();
        assert!(program.to_string().contains("PATH"), "{program}");
    }
}
