//! Files with unpacked debug information on disk, so that they are unpacked once per boot, not once per recording.
//!
//! A file that only root (or who runs this) can change -> the same with its sections unpacked, which an earlier reader
//! made, or an empty file for the next one to make it in. Its name is all that the contents hang on: the boot, the
//! file's device and number, and when it was changed last. What another boot left goes when a file is added: of such a file it is
//! not known whether all of it came to the disk. Of files beyond the limit on bytes those go that were not used for longest.
//!
//! The directory is ours alone (0700); files come into being whole, by getting a name, and who has a descriptor may open
//! them to read. Where the directory can't be had nothing is kept.
//!
//! What does not belong here: unpacking (`loaded`), which files are worth it (`material`).

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use profiler_object::elf::Elf;
use profiler_unwind::cache::folder::{self, directory_of_user, open_directory};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

use super::copies::has_room;

/// Most bytes of all of them.
const LIMIT_BYTES: u64 = 256 << 20;

/// The directory.
#[derive(Clone, Debug)]
pub(crate) struct Unpacked {
    directory: PathBuf,
    boot: Box<str>,
    limit_bytes: u64,
}

/// A file that is being made.
#[derive(Debug)]
pub(crate) struct Making {
    of: Unpacked,
    directory: OwnedFd,
    name: String,
    file: OwnedFd,
}

impl Unpacked {
    /// This user's; none if there can be none.
    pub(crate) fn of_user() -> Option<Unpacked> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Unpacked {
            directory: directory_of_user("unpacked")?,
            boot: boot.trim_end().into(),
            limit_bytes: LIMIT_BYTES,
        })
    }

    /// Another directory, for tests.
    #[cfg(test)]
    pub(crate) fn at(directory: &std::path::Path, boot: &str, limit_bytes: u64) -> Unpacked {
        Unpacked {
            directory: directory.to_owned(),
            boot: boot.into(),
            limit_bytes,
        }
    }

    fn name_of(&self, stat: &Stat) -> String {
        let Stat {
            st_dev,
            st_ino,
            st_size,
            st_ctime,
            st_ctime_nsec,
            ..
        } = stat;
        let boot = &self.boot;
        format!("{boot}-{st_dev:x}-{st_ino:x}-{st_size:x}-{st_ctime:x}-{st_ctime_nsec:x}")
    }

    /// What an earlier reader made of a file.
    pub(crate) fn find(&self, stat: &Stat) -> Option<OwnedFd> {
        let directory = open_directory(&self.directory).ok()?;
        let file = folder::open(&directory, &self.name_of(stat))?;
        let found = rustix::fs::fstat(&file).ok()?;
        let is_ours = found.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && found.st_mode & 0o022 == 0;
        // Those that are not used go first.
        folder::used(&file);
        is_ours.then_some(file)
    }

    /// An empty file for so many bytes of what a file is unpacked to.
    pub(crate) fn make(&self, stat: &Stat, bytes: u64) -> Option<Making> {
        if bytes > self.limit_bytes / 2 {
            return None;
        }
        let directory = open_directory(&self.directory).ok()?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&directory, ".", flags, mode).ok()?;
        // Whoever has a descriptor of it may open it to be read, as the library does that reads it.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::RGRP | Mode::ROTH).ok()?;
        has_room(&file, bytes).then(|| Making {
            of: self.clone(),
            directory,
            name: self.name_of(stat),
            file,
        })
    }

    /// Makes room in the directory: all of other boots goes, and what is too much.
    fn tidy(&self, directory: &OwnedFd) {
        let Ok(mut files) = folder::list(directory, |name| !name.starts_with(b".")) else {
            return;
        };
        let is_of_this_boot = |name: &CStr| name.to_bytes().starts_with(self.boot.as_bytes());
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        // What goes at any rate comes first.
        files.sort_by_key(|(used, _, name)| (is_of_this_boot(name), *used));
        for (_, len, name) in &files {
            if is_of_this_boot(name) && bytes <= self.limit_bytes {
                break;
            }
            if rustix::fs::unlinkat(directory, &**name, AtFlags::empty()).is_ok() {
                bytes -= len;
            }
        }
    }
}

impl Making {
    /// Where it is to be made.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Gives it its name, if it was unpacked as a whole.
    pub(crate) fn keep(self) {
        let Ok(file) = self.file.try_clone().map(File::from) else {
            return;
        };
        let is_unpacked = Elf::read(&file).is_ok_and(|elf| {
            let sections = elf.sections(&file);
            sections.is_ok_and(|sections| elf.unpacked_bytes(&file, &sections) == 0)
        });
        if !is_unpacked {
            return;
        }
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = AtFlags::SYMLINK_FOLLOW;
        match rustix::fs::linkat(CWD, path, self.directory.as_fd(), &self.name, flags) {
            Ok(()) => self.of.tidy(&self.directory),
            // Another profiler has made the same.
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => log::debug!("an unpacked file is not kept: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::tests::TempDir;

    fn made(unpacked: &Unpacked, of: &Path, contents: &[u8]) {
        let stat = rustix::fs::stat(of).unwrap();
        let making = unpacked.make(&stat, contents.len() as u64).unwrap();
        let mut file = File::from(making.file().try_clone().unwrap());
        file.write_all(contents).unwrap();
        making.keep();
    }

    #[test]
    fn what_was_made_whole_is_found_until_the_file_changes() {
        let dir = TempDir::new("unpacked");
        let unpacked = Unpacked::at(&dir.0.join("kept"), "boot", 1 << 30);
        let (program, text) = (std::env::current_exe().unwrap(), dir.0.join("text"));
        let bytes = std::fs::read(&program).unwrap();
        std::fs::write(&text, &bytes).unwrap();
        let stat = || rustix::fs::stat(&text).unwrap();
        assert!(unpacked.find(&stat()).is_none());
        // What is no object file, or was not unpacked to its end, gets no name.
        made(&unpacked, &text, &bytes[..100]);
        assert!(unpacked.find(&stat()).is_none());
        made(&unpacked, &text, &bytes);
        made(&unpacked, &text, &bytes);
        let found = File::from(unpacked.find(&stat()).unwrap());
        assert_eq!(found.metadata().unwrap().len(), bytes.len() as u64);
        let another_boot = Unpacked::at(&dir.0.join("kept"), "next", 1 << 30);
        assert!(another_boot.find(&stat()).is_none());
        std::fs::write(&text, &bytes).unwrap();
        assert!(unpacked.find(&stat()).is_none());
        // What can be changed by others is not taken.
        made(&unpacked, &text, &bytes);
        let kept = dir.0.join("kept").join(unpacked.name_of(&stat()));
        assert_eq!(kept.metadata().unwrap().mode() & 0o7777, 0o444);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o622);
        std::fs::set_permissions(&kept, mode).unwrap();
        assert!(unpacked.find(&stat()).is_none());
    }

    #[test]
    fn what_another_boot_left_goes_and_so_does_what_is_too_much() {
        let dir = TempDir::new("unpacked-limit");
        let folder = dir.0.join("kept");
        let program = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&program).unwrap();
        let limit = bytes.len() as u64 * 2 + 1;
        let of = |number: u32| {
            let path = dir.0.join(number.to_string());
            std::fs::write(&path, b"any").unwrap();
            path
        };
        made(&Unpacked::at(&folder, "before", limit), &of(0), &bytes);
        let unpacked = Unpacked::at(&folder, "boot", limit);
        let count = || std::fs::read_dir(&folder).unwrap().count();
        made(&unpacked, &of(1), &bytes);
        assert_eq!(count(), 1, "what another boot left");
        made(&unpacked, &of(2), &bytes);
        assert_eq!(count(), 2);
        made(&unpacked, &of(3), &bytes);
        assert_eq!(count(), 2, "what is too much");
        let stat = rustix::fs::stat(of(4)).unwrap();
        assert!(unpacked.make(&stat, limit).is_none());
    }
}
