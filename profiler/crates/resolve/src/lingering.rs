//! What is known of programs that are run again and again.
//!
//! Modules of the machine's own files -> the same, for a while after the last process that mapped them: else the next
//! one's names would be looked for anew, and its debug information be read again (a compiler beside a recording of a
//! minute was loaded ten times).
//!
//! A file that is kept open keeps its room on a disk, and its file system mounted. So only those linger that lie where
//! nobody unmounts what runs, that have a name, and that nobody but root can change.
//!
//! What does not belong here: closing files (`files`), which modules there are (`modules`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::files::{FileKey, TargetFile};
use super::mapping::CodeModule;
use profiler_model::Timestamp;

/// For so long after the last process.
const LINGER_NS: u64 = 60_000_000_000;
/// So many files, those that are mapped included.
const MAX_LINGERING: usize = 1024;
/// File systems that stay mounted are those of these folders.
const PLACES: [&str; 2] = ["/", "/usr"];

#[derive(Debug)]
struct Lingering {
    module: Arc<CodeModule>,
    file: Arc<TargetFile>,
    used: Timestamp,
}

impl Lingering {
    /// Whether no process has it mapped, and nothing of it waits for a name.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.module) == 1
    }
}

/// Modules that outlive their processes.
#[derive(Debug)]
pub(super) struct LingeringModules {
    known: FxHashMap<FileKey, Lingering>,
    devices: Vec<u64>,
}

impl LingeringModules {
    pub(super) fn new() -> LingeringModules {
        let devices = PLACES
            .iter()
            .filter_map(|place| rustix::fs::stat(*place).ok());
        LingeringModules {
            known: FxHashMap::default(),
            devices: devices.map(|stat| stat.st_dev).collect(),
        }
    }

    /// Keeps a module of a file, if that may stay open.
    pub(super) fn keep(
        &mut self,
        key: &FileKey,
        module: &Arc<CodeModule>,
        file: &Arc<TargetFile>,
        at: Timestamp,
    ) {
        let is_full = self.known.len() >= MAX_LINGERING;
        if is_full || !file.trusted || !file.is_local || !file.stays() || !self.is_in_place(file) {
            return;
        }
        let lingering = Lingering {
            module: module.clone(),
            file: file.clone(),
            used: at,
        };
        self.known.insert(key.clone(), lingering);
    }

    fn is_in_place(&self, file: &TargetFile) -> bool {
        let stat = rustix::fs::fstat(&file.file);
        stat.is_ok_and(|stat| self.devices.contains(&stat.st_dev))
    }

    /// Forgets what was not in use for long, was changed, or has no name any more.
    pub(super) fn tidy(&mut self, now: Timestamp) {
        self.known.retain(|_, lingering| {
            if !lingering.is_idle() {
                lingering.used = now;
                return true;
            }
            let file = &lingering.file;
            now.since(lingering.used) <= LINGER_NS && file.stays() && !file.was_changed()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::sync::Weak;

    use super::*;
    use crate::files::Root;
    use crate::mapping::tests::module;
    use crate::tests::TempDir;

    const SECOND: u64 = 1_000_000_000;
    const KEY: FileKey = FileKey::Inode(1, 2, 3, 4);

    /// A program, where programs linger.
    struct Bench {
        _dir: TempDir,
        path: PathBuf,
        root: Arc<Root>,
        lingering: LingeringModules,
    }

    impl Bench {
        fn new(name: &str) -> Bench {
            let dir = TempDir::new(name);
            let path = dir.path("program");
            fs::write(&path, "code").unwrap();
            let mut lingering = LingeringModules::new();
            lingering.devices = vec![rustix::fs::stat(&path).unwrap().st_dev];
            Bench {
                _dir: dir,
                path,
                root: Arc::new(Root::own().unwrap()),
                lingering,
            }
        }

        /// Opens it for a process that ends at once.
        fn kept(&mut self) -> Weak<CodeModule> {
            let file = File::open(&self.path).unwrap();
            let stat = rustix::fs::fstat(&file).unwrap();
            let path = self.path.to_str().unwrap();
            let file = TargetFile::new(file, &stat, path, Some(&self.root), true);
            let module = module("/f");
            let at = Timestamp(0);
            self.lingering.keep(&KEY, &module, &Arc::new(file), at);
            Arc::downgrade(&module)
        }

        fn is_known_at(&mut self, seconds: u64, known: &Weak<CodeModule>) -> bool {
            self.lingering.tidy(Timestamp(seconds * SECOND));
            known.strong_count() > 0
        }
    }

    #[test]
    fn what_was_not_in_use_for_long_is_forgotten() {
        let mut bench = Bench::new("lingering");
        let known = bench.kept();
        let used = known.upgrade();
        assert!(bench.is_known_at(100, &known));
        drop(used);
        assert!(bench.is_known_at(160, &known));
        assert!(!bench.is_known_at(161, &known));
    }

    #[test]
    fn what_was_changed_or_removed_is_let_go() {
        let mut bench = Bench::new("lingering-changed");
        let known = bench.kept();
        fs::write(&bench.path, "other").unwrap();
        assert!(!bench.is_known_at(1, &known));
        let known = bench.kept();
        assert!(bench.is_known_at(1, &known));
        fs::remove_file(&bench.path).unwrap();
        assert!(!bench.is_known_at(1, &known));
    }

    #[test]
    fn what_others_can_change_or_unmount_is_let_go() {
        let mut bench = Bench::new("lingering-others");
        fs::set_permissions(&bench.path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(bench.kept().upgrade().is_none());
        fs::set_permissions(&bench.path, PermissionsExt::from_mode(0o644)).unwrap();
        bench.lingering.devices.clear();
        assert!(bench.kept().upgrade().is_none());
    }
}
