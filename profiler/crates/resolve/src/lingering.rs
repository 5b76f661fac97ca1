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

use std::fs::File;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustix::fs::Stat;

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
        if !file.trusted || !file.is_local || self.known.len() >= MAX_LINGERING {
            return;
        }
        if named(&file.file).is_none_or(|stat| !self.devices.contains(&stat.st_dev)) {
            return;
        }
        let lingering = Lingering {
            module: module.clone(),
            file: file.clone(),
            used: at,
        };
        self.known.insert(key.clone(), lingering);
    }

    /// Forgets what was not in use for long, or has no name any more.
    pub(super) fn tidy(&mut self, now: Timestamp) {
        self.known.retain(|_, lingering| {
            if !lingering.is_idle() {
                lingering.used = now;
                return true;
            }
            let file = &lingering.file;
            now.since(lingering.used) <= LINGER_NS
                && named(&file.file).is_some()
                && !file.was_changed()
        });
    }
}

/// What is known of a file that has a name.
fn named(file: &File) -> Option<Stat> {
    let stat = rustix::fs::fstat(file).ok()?;
    (stat.st_nlink > 0).then_some(stat)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Weak;

    use super::*;
    use crate::files::Root;
    use crate::mapping::tests::module;
    use crate::tests::TempDir;

    const SECOND: u64 = 1_000_000_000;

    fn file(path: &Path) -> Arc<TargetFile> {
        let file = File::open(path).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let root = Arc::new(Root::own().unwrap());
        let path = path.to_str().unwrap();
        Arc::new(TargetFile::new(file, &stat, path, Some(&root), true))
    }

    fn kept(lingering: &mut LingeringModules, path: &Path) -> Weak<CodeModule> {
        let module = module("/f");
        lingering.keep(&KEY, &module, &file(path), Timestamp(0));
        Arc::downgrade(&module)
    }

    const KEY: FileKey = FileKey::Inode(1, 2, 3, 4);

    fn lingering(dir: &TempDir) -> LingeringModules {
        let device = rustix::fs::stat(&dir.0).unwrap().st_dev;
        LingeringModules {
            devices: vec![device],
            ..LingeringModules::new()
        }
    }

    #[test]
    fn what_was_not_in_use_for_long_is_forgotten() {
        let dir = TempDir::new("lingering");
        let path = dir.path("program");
        fs::write(&path, "code").unwrap();
        let mut lingering = lingering(&dir);
        let known = kept(&mut lingering, &path);
        let used = known.upgrade();
        lingering.tidy(Timestamp(100 * SECOND));
        drop(used);
        lingering.tidy(Timestamp(160 * SECOND));
        assert!(known.upgrade().is_some());
        lingering.tidy(Timestamp(161 * SECOND));
        assert!(known.upgrade().is_none());
    }

    #[test]
    fn what_was_changed_or_removed_is_let_go() {
        let dir = TempDir::new("lingering-changed");
        let path = dir.path("program");
        fs::write(&path, "code").unwrap();
        let mut lingering = lingering(&dir);
        let known = kept(&mut lingering, &path);
        fs::write(&path, "other").unwrap();
        lingering.tidy(Timestamp(SECOND));
        assert!(known.upgrade().is_none());
        let known = kept(&mut lingering, &path);
        lingering.tidy(Timestamp(SECOND));
        assert!(known.upgrade().is_some());
        fs::remove_file(&path).unwrap();
        lingering.tidy(Timestamp(SECOND));
        assert!(known.upgrade().is_none());
    }

    #[test]
    fn what_others_can_change_or_unmount_is_let_go() {
        let dir = TempDir::new("lingering-others");
        let path = dir.path("program");
        fs::write(&path, "code").unwrap();
        let mut lingering = lingering(&dir);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(kept(&mut lingering, &path).upgrade().is_none());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        lingering.devices.clear();
        assert!(kept(&mut lingering, &path).upgrade().is_none());
    }
}
