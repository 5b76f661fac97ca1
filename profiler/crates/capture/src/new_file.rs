//! A file that is made anew for an output: under a name of its own first, under that of the output when it is
//! worth it, and what had that name before goes aside.
//!
//! A path and what is to become of an older file there ([`Existing`]) -> an open file ([`NewFile`]), mode 0600, which
//! [`NewFile::publish`] gives its name. Nothing is ever written through a link, into a pipe or into what was there
//! before; a file that is dropped before leaves all as it was. As long as it is open it is locked (flock), so that
//! two recordings do not write under one name.
//!
//! What does not belong here: what is in the file (`output` has captures, the pipeline exports).

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, RenameFlags, StatxAttributes, StatxFlags, renameat_with, statx};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::error::CaptureError;

/// Names that are tried for a file that has not got its own yet: others are of processes that were killed.
const NAMES: u32 = 1000;
/// Entries of a folder that are looked at for what was left there.
const MAX_SWEPT: usize = 1 << 16;
/// How often another file may appear under the name of the output while it is given.
const TRIES: u32 = 8;

/// What becomes of a file that has the name of an output already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// It becomes `NAME.old`, in place of what had that name.
    #[default]
    Keep,
    /// It goes.
    Replace,
    /// It stays, and the output is an error.
    Refuse,
}

impl Existing {
    /// As `--force` has it.
    pub fn forced(force: bool) -> Existing {
        match force {
            true => Existing::Replace,
            false => Existing::Keep,
        }
    }

    /// For files of numbers of which none is ever kept under another name: those of others are stepped over.
    pub fn numbered(self) -> Existing {
        match self {
            Existing::Replace => Existing::Replace,
            Existing::Keep | Existing::Refuse => Existing::Refuse,
        }
    }
}

/// Whose the outputs are, where that is somebody else than who writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Owner {
    /// Gives a file away. Where that can't be it stays ours, which its user notices and others do not.
    pub(super) fn take(owner: Option<Owner>, file: &File) {
        if let Some(owner) = owner {
            let _ = fchown(file, Some(owner.uid), Some(owner.gid));
        }
    }
}

/// A file that was made for an output.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    existing: Existing,
    /// Where it is until it is published.
    made: Option<PathBuf>,
}

impl NewFile {
    /// Makes it.
    pub fn create(
        path: &Path,
        existing: Existing,
        owner: Option<Owner>,
    ) -> Result<NewFile, CaptureError> {
        check(path, existing, owner)?;
        sweep(path, owner);
        let (file, made) = open(path)?;
        Owner::take(owner, &file);
        // Where files can't be locked nothing is told of, either.
        let _ = file.try_lock();
        Ok(NewFile {
            file,
            path: path.to_owned(),
            existing,
            made: Some(made),
        })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that it has, or gets.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, once; what had that name goes aside.
    pub fn publish(&mut self) -> Result<(), CaptureError> {
        let Some(made) = &self.made else {
            return Ok(());
        };
        self.give_name(made)
            .map_err(|error| self.refused_or(error))?;
        self.made = None;
        Ok(())
    }

    /// Gives it its name when all that was written is on the disk: for what is of use only as a whole.
    pub fn publish_whole(&mut self) -> Result<(), CaptureError> {
        self.file
            .sync_all()
            .map_err(|source| failed(&self.path, source))?;
        self.publish()
    }

    fn give_name(&self, made: &Path) -> Result<(), Errno> {
        let path = &self.path;
        for _ in 0..TRIES {
            if self.existing == Existing::Replace {
                return rustix::fs::rename(made, path);
            }
            let refused = match renameat_with(CWD, made, CWD, path, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => true,
                // Not every file system can do that.
                Err(Errno::INVAL | Errno::NOSYS) => path.symlink_metadata().is_ok(),
                done => return done,
            };
            match (refused, self.existing) {
                (true, Existing::Keep) => rustix::fs::rename(path, old(path))?,
                (true, _) => return Err(Errno::EXIST),
                (false, _) => return rustix::fs::rename(made, path),
            }
        }
        Err(Errno::EXIST)
    }

    fn refused_or(&self, error: Errno) -> CaptureError {
        match (error, self.existing) {
            (Errno::EXIST, Existing::Refuse) => CaptureError::Exists(self.path.clone()),
            (error, _) => failed(&self.path, error.into()),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            // What can't be removed is at worst an incomplete file.
            let _ = std::fs::remove_file(made);
        }
        // A child that was forked meanwhile may have it open for a little longer.
        let _ = self.file.unlock();
    }
}

/// Refuses an output that must not be written, or that could not get its name when all is done.
pub(super) fn check(
    path: &Path,
    existing: Existing,
    owner: Option<Owner>,
) -> Result<(), CaptureError> {
    let stuck = |obstacle: String| {
        let path = path.display();
        Err(CaptureError::Options(format!("{path} {obstacle}")))
    };
    let folder = folder_of(path);
    let is_ours = |found: &Metadata| {
        let us = rustix::process::geteuid().as_raw();
        found.uid() == us || owner.is_some_and(|owner| owner.uid == found.uid())
    };
    if attributes(folder).contains(StatxAttributes::APPEND) {
        return stuck("could not get its name: its folder is marked append-only".to_owned());
    }
    let Some(found) = look(path)? else {
        return Ok(());
    };
    if let Some(what) = no_file(&found) {
        return Err(CaptureError::NotRegular {
            path: path.to_owned(),
            what,
        });
    }
    if existing == Existing::Refuse {
        return Err(CaptureError::Exists(path.to_owned()));
    }
    if is_being_written(path) {
        return Err(CaptureError::Busy(path.to_owned()));
    }
    if let Some(why) = is_stuck(path, &found, folder, is_ours(&found), existing) {
        return stuck(format!(
            "can't be replaced: it {why}; name another file with -o"
        ));
    }
    if existing == Existing::Replace {
        return Ok(());
    }
    let old = old(path);
    let Some(found) = look(&old)? else {
        return Ok(());
    };
    let is = no_file(&found).map(|what| format!("is {what}"));
    match is.or_else(|| is_stuck(&old, &found, folder, is_ours(&found), existing)) {
        Some(why) => stuck(format!(
            "can't be put aside: {} {why}; move that away, or keep none with --force",
            old.display()
        )),
        None => Ok(()),
    }
}

fn look(path: &Path) -> Result<Option<Metadata>, CaptureError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(path, source)),
    }
}

/// What something is that is no regular file.
fn no_file(found: &Metadata) -> Option<&'static str> {
    let kind = found.file_type();
    if kind.is_file() {
        return None;
    }
    Some(if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else {
        "a device, pipe or socket"
    })
}

/// Why a file's name is not to be given to another one, or the kernel would not have it.
fn is_stuck(
    path: &Path,
    found: &Metadata,
    folder: &Path,
    is_ours: bool,
    existing: Existing,
) -> Option<String> {
    let is = attributes(path);
    for (attribute, what) in [
        (StatxAttributes::IMMUTABLE, "is marked immutable"),
        (StatxAttributes::APPEND, "is marked append-only"),
        (StatxAttributes::MOUNT_ROOT, "is a mount point"),
    ] {
        if is.contains(attribute) {
            return Some(what.to_owned());
        }
    }
    let folder = std::fs::metadata(folder).ok()?;
    let us = rustix::process::geteuid().as_raw();
    let held = || rustix::thread::capabilities(None);
    let may_all = || {
        folder.uid() == us
            || held().is_ok_and(|held| held.effective.contains(CapabilitySet::FOWNER))
    };
    // Root might, and what others have in such a folder is theirs nevertheless, unless it is said that it goes.
    let may =
        is_ours || folder.mode() & libc::S_ISVTX == 0 || existing == Existing::Replace && may_all();
    (!may).then(|| format!("belongs to user {} in a sticky folder", found.uid()))
}

/// None where the kernel or the file system tells nothing.
fn attributes(path: &Path) -> StatxAttributes {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    found.map_or(StatxAttributes::empty(), |found| found.stx_attributes)
}

/// The folder that an output is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether another process of ours writes it now.
fn is_being_written(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    let file = options.open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Makes a new file beside where it belongs.
fn open(path: &Path) -> Result<(File, PathBuf), CaptureError> {
    let mut options = OpenOptions::new();
    // create_new is O_EXCL, which does not follow links either; O_NOFOLLOW says it once more.
    options.write(true).create_new(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    for number in 0..NAMES {
        let made = with_ending(path, &format!(".{}-{number}.new", std::process::id()));
        match options.open(&made) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => {
                let file = opened.map_err(|source| failed(path, source))?;
                return Ok((file, made));
            }
        }
    }
    Err(failed(path, io::ErrorKind::AlreadyExists.into()))
}

/// Removes what was made for an output of this name by processes that were killed before it got it. Of those that run the
/// number is in use, and what they write is locked.
fn sweep(path: &Path, owner: Option<Owner>) {
    let Some(prefix) = path.file_name() else {
        return;
    };
    let ours = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(folder_of(path)).into_iter().flatten();
    for entry in entries.flatten().take(MAX_SWEPT) {
        let name = entry.file_name();
        let number = || -> Option<u32> {
            let rest = name.as_bytes().strip_prefix(prefix.as_bytes())?;
            let rest = std::str::from_utf8(rest).ok()?.strip_prefix('.')?;
            let (pid, number) = rest.strip_suffix(".new")?.split_once('-')?;
            number.parse::<u32>().ok()?;
            pid.parse().ok()
        };
        let Some(pid) = number() else { continue };
        if Path::new(&format!("/proc/{pid}")).exists() {
            continue;
        }
        let is_ours = |found: Metadata| {
            let of = found.uid();
            found.is_file() && (of == ours || owner.is_some_and(|owner| owner.uid == of))
        };
        let left = entry.path();
        if entry.metadata().is_ok_and(is_ours) && !is_being_written(&left) {
            // What stays is in nobody's way.
            let _ = std::fs::remove_file(left);
        }
    }
}

/// What a file is called that goes aside: `NAME.old`.
pub fn old(path: &Path) -> PathBuf {
    with_ending(path, ".old")
}

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

pub(super) fn failed(path: &Path, source: io::Error) -> CaptureError {
    CaptureError::Create {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_killed_processes_have_left_goes_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("new-file-swept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.svg");
        let own = std::process::id();
        // No process has a number as high.
        let kept = [
            "a.svg".to_owned(),
            "a.svg.new".to_owned(),
            "b.svg.4294967290-0.new".to_owned(),
            "a.svg.x-0.new".to_owned(),
            "a.svg.4294967290-0.new.old".to_owned(),
            format!("a.svg.{own}-7.new"),
        ];
        let written = "a.svg.4294967291-1.new";
        for name in kept
            .iter()
            .map(String::as_str)
            .chain(["a.svg.4294967290-0.new", written])
        {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let lock = File::open(folder.join(written)).unwrap();
        lock.lock().unwrap();
        symlink("a.svg", folder.join("a.svg.4294967290-3.new")).unwrap();
        let other = folder.join("a.svg.4294967290-4.new");
        std::fs::write(&other, "").unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(&other, Some(12345), None).unwrap();
        }
        drop(NewFile::create(&path, Existing::Keep, None).unwrap());
        for name in &kept {
            assert!(folder.join(name).exists(), "{name}");
        }
        assert!(!folder.join("a.svg.4294967290-0.new").exists());
        assert!(folder.join(written).exists(), "it is written");
        assert!(
            folder
                .join("a.svg.4294967290-3.new")
                .symlink_metadata()
                .is_ok()
        );
        assert_eq!(other.exists(), is_root, "it is somebody else's");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path =
                std::env::temp_dir().join(format!("profiler-new-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        /// Names and contents of all that is there.
        fn all(&self) -> Vec<(String, String)> {
            let entries = std::fs::read_dir(&self.0).unwrap().flatten();
            let mut all: Vec<_> = entries
                .map(|entry| {
                    let content = std::fs::read_to_string(entry.path()).unwrap();
                    (entry.file_name().into_string().unwrap(), content)
                })
                .collect();
            all.sort();
            all
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn write(path: &Path, existing: Existing, text: &str) -> Result<(), CaptureError> {
        let mut new = NewFile::create(path, existing, None)?;
        new.file().write_all(text.as_bytes()).unwrap();
        new.publish_whole()
    }

    #[test]
    fn one_older_file_is_kept() {
        let folder = Folder::new("kept");
        let path = folder.0.join("a");
        for text in ["first", "second", "third"] {
            write(&path, Existing::Keep, text).unwrap();
        }
        let named = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let kept = [named("a", "third"), named("a.old", "second")];
        assert_eq!(folder.all(), kept);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        // What fails, or is given up, changes nothing.
        drop(NewFile::create(&path, Existing::Keep, None).unwrap());
        let error = write(&path, Existing::Refuse, "x").unwrap_err();
        assert!(matches!(error, CaptureError::Exists(_)), "{error}");
        assert_eq!(folder.all(), kept);

        write(&path, Existing::Replace, "fourth").unwrap();
        assert_eq!(
            folder.all(),
            [named("a", "fourth"), named("a.old", "second")]
        );
    }

    #[test]
    fn what_appears_meanwhile_is_kept_too() {
        let folder = Folder::new("meanwhile");
        let path = folder.0.join("a");
        let mut new = NewFile::create(&path, Existing::Keep, None).unwrap();
        let mut refused = NewFile::create(&path, Existing::Refuse, None).unwrap();
        std::fs::write(&path, "another").unwrap();
        let error = refused.publish().unwrap_err();
        assert!(matches!(error, CaptureError::Exists(_)), "{error}");
        new.publish().unwrap();
        assert_eq!(
            std::fs::read_to_string(folder.0.join("a.old")).unwrap(),
            "another"
        );
    }

    #[test]
    fn a_file_that_is_being_written_is_not_put_aside() {
        let folder = Folder::new("busy");
        let path = folder.0.join("a");
        let mut first = NewFile::create(&path, Existing::Keep, None).unwrap();
        first.publish().unwrap();
        for existing in [Existing::Keep, Existing::Replace] {
            let error = NewFile::create(&path, existing, None).unwrap_err();
            assert!(matches!(error, CaptureError::Busy(_)), "{error}");
        }
        drop(first);
        write(&path, Existing::Keep, "later").unwrap();
    }

    #[test]
    fn links_and_leftovers_are_left_alone() {
        let folder = Folder::new("links");
        let (path, link) = (folder.0.join("a"), folder.0.join("link"));
        std::fs::write(&path, "precious").unwrap();
        symlink(&path, &link).unwrap();
        for existing in [Existing::Keep, Existing::Replace, Existing::Refuse] {
            let error = write(&link, existing, "x").unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        // Of a process with this id that was killed: in a container it may have the same one each time.
        let left = with_ending(&path, &format!(".{}-0.new", std::process::id()));
        std::fs::write(&left, "left").unwrap();
        write(&path, Existing::Keep, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&left).unwrap(), "left");
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "new");
    }

    /// What could not be put aside or replaced at the end is told before anything is made.
    #[test]
    fn names_that_can_not_be_given_are_told_at_once() {
        let folder = Folder::new("stuck");
        let (path, old) = (folder.0.join("a"), folder.0.join("a.old"));
        let refused = |existing, words: &[&str]| {
            let error = NewFile::create(&path, existing, None)
                .unwrap_err()
                .to_string();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
            assert!(!error.contains('\n'), "{error}");
        };
        // Nothing goes aside, so what lies there is in nobody's way.
        std::fs::create_dir(&old).unwrap();
        write(&path, Existing::Keep, "first").unwrap();
        refused(Existing::Keep, &["a.old is a directory", "--force"]);
        write(&path, Existing::Replace, "second").unwrap();
        std::fs::remove_dir(&old).unwrap();
        symlink("elsewhere", &old).unwrap();
        refused(Existing::Keep, &["a.old is a symbolic link", "--force"]);
        std::fs::remove_file(&old).unwrap();
        write(&path, Existing::Keep, "third").unwrap();

        // Of another user, in a folder as /tmp that is another user's too.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let give = |path: &Path| std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
        give(&folder.0);
        give(&old);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o1777)).unwrap();
        std::thread::scope(|scope| {
            // Capabilities are a thread's.
            let without = scope.spawn(|| {
                let mut sets = rustix::thread::capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::FOWNER);
                rustix::thread::set_capabilities(None, sets).unwrap();
                refused(Existing::Keep, &["a.old belongs to user 65534", "--force"]);
                give(&path);
                for existing in [Existing::Keep, Existing::Replace] {
                    refused(
                        existing,
                        &["a can't be replaced: it belongs to user 65534", "-o"],
                    );
                }
            });
            without.join().unwrap();
        });
        // Root could do it.
        let taken = "a can't be replaced: it belongs to user 65534 in a sticky folder";
        refused(Existing::Keep, &[taken]);
        let owner = |uid| Some(Owner { uid, gid: uid });
        assert!(NewFile::create(&path, Existing::Keep, owner(65_533)).is_err());
        drop(NewFile::create(&path, Existing::Keep, owner(65_534)).unwrap());
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        refused(Existing::Keep, &["a.old belongs to user 65534", "--force"]);
        assert_eq!(
            std::fs::read_dir(&folder.0).unwrap().count(),
            2,
            "nothing was made"
        );
        write(&path, Existing::Replace, "fourth").unwrap();
        let kept = std::fs::read_to_string(&old).unwrap();
        assert_eq!(kept, "second", "it is another user's");
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
        write(&path, Existing::Keep, "fifth").unwrap();
    }

    #[test]
    fn a_file_is_given_to_its_owner() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Folder::new("owner");
        let path = folder.0.join("a");
        let owner = Owner {
            uid: 65_534,
            gid: 65_533,
        };
        let mut new = NewFile::create(&path, Existing::Keep, Some(owner)).unwrap();
        new.publish().unwrap();
        let found = path.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (65_534, 65_533));
    }
}
