//! The files that names of a target's code come from, as they are handed to who reads them.
//!
//! A target file -> [`Material`]: that file, its separate debug information, and what these refer to in their
//! turn. All of it was found, opened and checked by `debug_files`; who reads has no way to open
//! anything else. What anybody but root can change comes with an empty file that only the reader will
//! have: it makes a copy first, and checks and reads that. What was checked is what is read, and
//! a file that its owner shortens meanwhile ends nobody.
//!
//! What does not belong here: reading any of it (`loaded`), handing it over (`helper`).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use profiler_object::elf::Elf;
use rustix::fs::Mode;

use super::copies::{Room, fit_into_memory, unnamed};
use super::debug_files::DebugFile;
use super::files::{Root, TargetFile};
use super::link_folder::LinkFolder;
use super::loaded::{Contents, LoadError, MAX_COPY_BYTES};
use super::served::is_local;
use super::symbolize::Settings;
use super::unpacked::{Making, Unpacked};

/// Copying more than this takes long.
const SLOW_COPY_BYTES: u64 = 128 << 20;

/// Files that belong together.
pub(crate) struct Material {
    /// Whether lines are wanted: else only symbol tables are read.
    pub(crate) lines: bool,
    /// Whether inlined functions are wanted.
    pub(crate) inlines: bool,
    /// Asked in this order; the last one is the target itself.
    pub(crate) parts: Vec<Part>,
    /// An empty folder for links to them, where one is needed.
    pub(crate) links: Option<OwnedFd>,
    /// Whether there are more than symbol tables to be read.
    pub(super) has_debug_info: bool,
    kept: Kept,
}

/// A file with symbols, and what its debug information refers to.
pub(crate) struct Part {
    /// The file.
    pub(crate) main: Handed,
    /// What `.gnu_debugaltlink` says.
    pub(crate) common: Option<Handed>,
    /// The DWARF package beside it.
    pub(crate) package: Option<Handed>,
}

/// A file that is given to the reader.
pub(crate) struct Handed {
    file: OwnedFd,
    copy: Option<CopyInto>,
}

/// A copy of it that is to be made first.
struct CopyInto {
    into: OwnedFd,
    reason: Reason,
}

/// Why there is to be a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Others could change the file while it is read.
    Changes,
    /// It is unpacked there, once for all readers. Without, each does that for itself.
    Packed,
}

/// What there is for the sake of the reader, as long as it has the files: room for copies, a folder of links.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    room: Vec<Room>,
    folder: Option<LinkFolder>,
    making: Vec<Making>,
}

impl Kept {
    fn copy(&mut self, bytes: u64) -> Result<(), LoadError> {
        self.room.push(Room::take(bytes).ok_or(LoadError::TooMuch)?);
        Ok(())
    }

    /// Keeps what the reader has unpacked, once it has loaded all: the next one need not.
    pub(crate) fn keep_unpacked(&mut self) {
        self.making.drain(..).for_each(Making::keep);
    }
}

impl Material {
    /// Finds a file's separate debug information. With `lines` false only symbol tables count. More than
    /// `large` is for another thread.
    pub(crate) fn gather(
        target: &TargetFile,
        settings: &Settings,
        lines: bool,
        large: u64,
    ) -> Result<Material, LoadError> {
        let elf = target.elf.as_ref().ok_or(LoadError::Bad)?;
        let to_copy = !target.trusted && target.len() > SLOW_COPY_BYTES;
        if to_copy && large != u64::MAX {
            return Err(LoadError::Large);
        }
        let main = Contents::read(elf, &target.file)?;
        let separate = if main.has(".debug_info") && main.has(".symtab") {
            None
        } else {
            match settings.search.debug_file(target, &main.sections) {
                None if lines && settings.search.debuginfod.is_some() => {
                    if large != u64::MAX {
                        return Err(LoadError::Large);
                    }
                    let build_id = target.build_id();
                    build_id.and_then(|build_id| settings.search.download(build_id))
                }
                found => found,
            }
        };
        let separate = separate.and_then(|file| {
            let contents = Contents::read(&file.elf, &file.file).ok()?;
            Some((file, contents))
        });
        let other = separate.as_ref().map_or(0, |(_, c)| c.debug_bytes);
        if lines && main.debug_bytes.saturating_add(other) > large {
            return Err(LoadError::Large);
        }
        let mut material = Material {
            lines,
            inlines: settings.inlines,
            parts: Vec::new(),
            links: None,
            has_debug_info: lines && (main.has_debug_info() || other > 0),
            kept: Kept::default(),
        };
        if let Some((file, contents)) = &separate {
            let origin = (file.root.as_ref(), &*file.path);
            let added = material.add(
                (&file.file, &file.elf, file.trusted),
                origin,
                contents,
                (settings, target.owner),
            );
            if let Err(error) = added {
                log::debug!("{}: {error:?}", file.path);
            }
        }
        let root = target.root.upgrade();
        let origin = (root.as_ref(), &*target.path);
        material.add(
            (&target.file, elf, target.trusted),
            origin,
            &main,
            (settings, target.owner),
        )?;
        let refers = |part: &Part| part.common.is_some() || part.package.is_some();
        if material.parts.iter().any(refers) {
            match LinkFolder::make() {
                Ok((folder, links)) => {
                    material.kept.folder = Some(folder);
                    material.links = Some(links);
                }
                Err(error) => log::debug!("no folder for links: {error}"),
            }
        }
        Ok(material)
    }

    fn add(
        &mut self,
        (file, elf, trusted): (&File, &Elf, bool),
        (root, path): (Option<&Arc<Root>>, &str),
        contents: &Contents,
        (settings, user): (&Settings, Option<u32>),
    ) -> Result<(), LoadError> {
        // What is nobody's but root's, read by who has read nothing else.
        let unpacked = settings.unpacked.as_ref().filter(|_| user.is_none());
        let unpack = (self.lines, unpacked);
        let mut part = Part {
            main: Handed::new(file, (elf, unpack), trusted, &mut self.kept)?,
            common: None,
            package: None,
        };
        let mut hand = |found: DebugFile| {
            let elf = (&found.elf, unpack);
            let handed = Handed::new(&found.file, elf, found.trusted, &mut self.kept);
            handed.ok()
        };
        let search = &settings.search;
        // Debug information that isn't used needs no other files.
        if self.lines && contents.has_debug_info() {
            if contents.has(".gnu_debugaltlink") {
                let common = search.common_file(root, (file, path), &contents.sections, user);
                part.common = common.and_then(&mut hand);
            }
            part.package = search.package(root, path, user).and_then(hand);
        }
        self.parts.push(part);
        Ok(())
    }

    /// What is to be kept as long as the reader has the files.
    pub(crate) fn take_kept(&mut self) -> Kept {
        std::mem::take(&mut self.kept)
    }

    /// Says in bytes which files there are; these.
    pub(crate) fn describe(&self, say: &mut dyn FnMut(u8)) -> Vec<&OwnedFd> {
        say(self.lines.into());
        say(self.inlines.into());
        say(self.links.is_some().into());
        say(self.parts.len() as u8);
        let mut fds: Vec<&OwnedFd> = self.links.iter().collect();
        for part in &self.parts {
            for handed in [
                Some(&part.main),
                part.common.as_ref(),
                part.package.as_ref(),
            ] {
                let copy = handed.and_then(|handed| handed.copy.as_ref());
                say(match (handed, copy.map(|copy| copy.reason)) {
                    (None, _) => 0,
                    (Some(_), None) => 1,
                    (Some(_), Some(Reason::Changes)) => 2,
                    (Some(_), Some(Reason::Packed)) => 3,
                });
                fds.extend(handed.map(|handed| &handed.file));
                fds.extend(copy.map(|copy| &copy.into));
            }
        }
        fds
    }

    /// The files of a description; none if it is wrong.
    pub(crate) fn from_description(
        next: &mut dyn FnMut() -> Option<u8>,
        fds: Vec<OwnedFd>,
    ) -> Option<Material> {
        let mut fds = fds.into_iter();
        let (lines, inlines) = (next()? != 0, next()? != 0);
        let links = match next()? {
            0 => None,
            _ => Some(fds.next()?),
        };
        let mut parts = Vec::new();
        for _ in 0..next()? {
            let mut handed = || -> Option<Option<Handed>> {
                let kind = next()?;
                if kind == 0 {
                    return Some(None);
                }
                let file = fds.next()?;
                let copy = match kind {
                    1 => None,
                    _ => Some(CopyInto {
                        into: fds.next()?,
                        reason: match kind {
                            2 => Reason::Changes,
                            _ => Reason::Packed,
                        },
                    }),
                };
                Some(Some(Handed { file, copy }))
            };
            parts.push(Part {
                main: handed()??,
                common: handed()?,
                package: handed()?,
            });
        }
        Some(Material {
            lines,
            inlines,
            parts,
            links,
            has_debug_info: lines,
            kept: Kept::default(),
        })
    }
}

impl Handed {
    /// As it is if only root can change it and anybody may read it, on a disk of this machine. A file of which most is packed
    /// debug information is copied all the same, where there is room for it, if that is wanted: each of its readers would
    /// unpack it for itself.
    fn new(
        file: &File,
        (elf, (unpack, unpacked_files)): (&Elf, (bool, Option<&Unpacked>)),
        trusted: bool,
        kept: &mut Kept,
    ) -> Result<Handed, LoadError> {
        let too_much = |error: io::Error| {
            log::debug!("no private copy of a target file: {error}");
            LoadError::TooMuch
        };
        let stat = rustix::fs::fstat(file).map_err(|error| too_much(error.into()))?;
        let own = rustix::process::geteuid();
        let readable = stat.st_mode & 0o004 != 0 || !own.is_root() && stat.st_uid == own.as_raw();
        let changes = !(trusted && readable && is_local(file, None, None));
        let len = stat.st_size as u64;
        let copied = if changes { len } else { 0 };
        if copied > MAX_COPY_BYTES {
            return Err(LoadError::TooMuch);
        }
        kept.copy(copied)?;
        let unpacked = match unpack && len <= MAX_COPY_BYTES {
            true => elf
                .sections(file)
                .map_or(0, |sections| elf.unpacked_bytes(file, &sections)),
            false => 0,
        };
        let keeps = unpacked_files.filter(|_| unpacked > 0 && !changes);
        if let Some(file) = keeps.and_then(|files| files.find(&stat)) {
            return Ok(Handed { file, copy: None });
        }
        let unpacks = unpacked > 0 && kept.copy(len - copied + unpacked).is_ok();
        let reason = match (changes, unpacks) {
            (true, _) => Some(Reason::Changes),
            (false, true) => Some(Reason::Packed),
            (false, false) => None,
        };
        let make = |reason| -> io::Result<CopyInto> {
            let len = len + if unpacks { unpacked } else { 0 };
            let into = match keeps.and_then(|files| files.make(&stat, len)) {
                Some(making) => {
                    let into = making.file().try_clone()?;
                    kept.making.push(making);
                    into
                }
                None => empty(len, reason == Reason::Changes && fit_into_memory())?,
            };
            // What the file grows by meanwhile has no room.
            rustix::fs::ftruncate(&into, len)?;
            Ok(CopyInto { into, reason })
        };
        let copy = match reason.map(make).transpose() {
            Err(_) if reason == Some(Reason::Packed) => None,
            made => made.map_err(too_much)?,
        };
        Ok(Handed {
            file: file.try_clone().map_err(too_much)?.into(),
            copy,
        })
    }

    /// The file, or its copy, which nobody else has; and of that how many bytes it has, and may have.
    pub(crate) fn take(self) -> io::Result<(OwnedFd, Option<(u64, u64)>)> {
        let Some(CopyInto { into, reason }) = self.copy else {
            return Ok((self.file, None));
        };
        let file = File::from(self.file);
        let made = || {
            let room = rustix::fs::fstat(&into)?.st_size as u64;
            let len = room.min(file.metadata()?.len());
            Ok((copy(&file, into, len)?, Some((len, room))))
        };
        match made() {
            Err(error) if reason == Reason::Packed => {
                log::debug!("no copy to unpack a file in: {error}");
                Ok((file.into(), None))
            }
            made => made,
        }
    }
}

/// A copy of so many bytes of a file, which nobody else has.
pub(crate) fn private_copy(file: &File, len: u64) -> io::Result<OwnedFd> {
    copy(file, empty(len, false)?, len)
}

/// A file without a name for so many bytes: on a disk, or in memory where no folder takes one, and where all are full if
/// that may be.
fn empty(bytes: u64, in_memory: bool) -> io::Result<OwnedFd> {
    let made = match unnamed(bytes) {
        Some(made) => made,
        None if in_memory || unnamed(0).is_none() => {
            rustix::fs::memfd_create("symbols", rustix::fs::MemfdFlags::CLOEXEC)?
        }
        None => return Err(io::ErrorKind::StorageFull.into()),
    };
    // Whoever has a descriptor of it may open it to be read, as the library does that reads it.
    rustix::fs::fchmod(&made, Mode::RUSR | Mode::RGRP | Mode::ROTH)?;
    Ok(made)
}

/// Copies no more than `len`, whatever the file has become since that was asked.
fn copy(file: &File, made: OwnedFd, len: u64) -> io::Result<OwnedFd> {
    if len > MAX_COPY_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    rustix::fs::ftruncate(&made, len)?;
    let copied = File::from(made);
    let mut buffer = vec![0; 256 << 10];
    let mut offset = 0;
    while offset < len {
        let data = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            // A hole up to the end.
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => offset,
        };
        offset = data.max(offset);
        let got = profiler_object::elf::read_up_to(file, &mut buffer, offset)?;
        if got == 0 {
            break;
        }
        copied.write_all_at(
            &buffer[..got.min(len.saturating_sub(offset) as usize)],
            offset,
        )?;
        offset += got as u64;
    }
    Ok(copied.into())
}

#[cfg(test)]
impl Handed {
    /// Whether a copy of it is to be made first.
    pub(crate) fn is_to_be_made(&self) -> bool {
        self.copy.is_some()
    }

    /// Gives another file to unpack it in; none if it is not to be unpacked.
    pub(crate) fn unpack_in(&mut self, other: OwnedFd) -> Option<()> {
        let copy = self.copy.as_mut();
        copy.filter(|copy| copy.reason == Reason::Packed)?.into = other;
        Some(())
    }
}
