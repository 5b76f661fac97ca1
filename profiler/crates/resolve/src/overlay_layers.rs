//! The layers of an overlay file system, for files that can't be reached through it.
//!
//! A line of /proc/PID/mountinfo -> [`OverlayLayers`]; a path in the overlay -> the file in the uppermost layer
//! that has it. Something may be mounted over the path by now, or the target's root may be out of reach
//! without being allowed to trace it. Source: the kernel's Documentation/filesystems/overlayfs.rst.
//!
//! Folders of layers are named as the engine saw them when it mounted, which is as the machine itself
//! sees them: that of a mount made in another user namespace is not believed. What lies in a layer is the
//! target's: no link is followed in there, and nothing else that is mounted is entered.
//!
//! What does not belong here: whether a file is the one that was mapped (`files`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};

use super::files::{OpenError, open_checked};

/// Most layers; the kernel has 500 at most.
const MAX_LAYERS: usize = 500;
/// Most bytes of a mount's options that are looked at.
const MAX_OPTION_BYTES: usize = 64 << 10;
/// Deepest path.
const MAX_DEPTH: usize = 256;
/// Longest value of the attribute that is looked for.
const MAX_ATTRIBUTE_BYTES: usize = 8;

/// The folders that an overlay is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OverlayLayers {
    /// Uppermost first.
    pub(super) folders: Vec<PathBuf>,
    /// The overlay's device number: major, minor.
    pub(super) device: (u32, u32),
}

/// What a layer has at a path.
enum Found {
    File(File, Stat),
    /// Nothing; layers below may have something.
    Nothing,
    /// Something that hides what layers below have.
    End,
}

impl OverlayLayers {
    /// Those of the root of a mount namespace, out of its mountinfo; none if its root is no overlay.
    pub(super) fn of_root(mountinfo: &[u8]) -> Option<OverlayLayers> {
        // Of several mounts at one place, the last covers the others.
        let root = mounts_in(mountinfo).rfind(|mount| mount.at == b"/")?;
        // A part of the file system as a root: paths below it are not those of the layers.
        match root.root == b"/" {
            true => OverlayLayers::of(&root),
            false => None,
        }
    }

    fn of(mount: &Mount<'_>) -> Option<OverlayLayers> {
        let folders = folders_of(mount)?;
        // One that is not absolute was named from a folder that is not known.
        let usable = |folder: &PathBuf| {
            let above = folder.components().any(|part| part == Component::ParentDir);
            folder.is_absolute() && !above
        };
        let valid = !folders.is_empty() && folders.len() <= MAX_LAYERS;
        (valid && folders.iter().all(usable)).then_some(OverlayLayers {
            folders,
            device: mount.device,
        })
    }

    /// Opens a regular file by its path in the overlay, without links in it.
    pub(super) fn open(&self, path: &str) -> Result<(File, Stat), OpenError> {
        for folder in &self.folders {
            match look(folder, path)? {
                Found::File(file, stat) => return Ok((file, stat)),
                Found::Nothing => {}
                Found::End => break,
            }
        }
        Err(io::Error::from(io::ErrorKind::NotFound).into())
    }
}

/// Looks for a file in one layer, folder by folder.
fn look(layer: &Path, path: &str) -> Result<Found, OpenError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(mut folder) = rustix::fs::openat(CWD, layer, flags, Mode::empty()) else {
        // Without a layer, what the ones below show is not what the overlay shows.
        return Ok(Found::End);
    };
    let device = rustix::fs::fstat(&folder).map_err(io::Error::from)?.st_dev;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.len() > MAX_DEPTH || parts.iter().any(|part| matches!(*part, "." | "..")) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
    }
    let mut opaque = false;
    for (depth, part) in parts.iter().enumerate() {
        opaque |= is_opaque(&folder);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = match rustix::fs::openat(&folder, *part, flags, Mode::empty()) {
            Ok(entry) => entry,
            Err(rustix::io::Errno::NOENT) if !opaque => return Ok(Found::Nothing),
            Err(rustix::io::Errno::NOENT) => return Ok(Found::End),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        let stat = rustix::fs::fstat(&entry).map_err(io::Error::from)?;
        let is_last = depth + 1 == parts.len();
        match FileType::from_raw_mode(stat.st_mode) {
            _ if stat.st_dev != device => return Ok(Found::End),
            FileType::Directory if !is_last => folder = entry,
            FileType::RegularFile if is_last => {
                let (file, stat) = open_checked(Ok(entry))?;
                return Ok(Found::File(file, stat));
            }
            // A whiteout (a device without a number), a link, or something in place of a folder.
            _ => return Ok(Found::End),
        }
    }
    Ok(Found::End)
}

/// Whether a folder hides those of the layers below.
fn is_opaque(folder: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let names = ["trusted.overlay.opaque", "user.overlay.opaque"];
    names.into_iter().any(|name| {
        let mut value = [0u8; MAX_ATTRIBUTE_BYTES];
        rustix::fs::getxattr(&path, name, &mut value).is_ok_and(|len| &value[..len] == b"y")
    })
}

/// The folders of an overlay, as they were named when it was mounted, uppermost first.
fn folders_of(mount: &Mount<'_>) -> Option<Vec<PathBuf>> {
    if mount.kind != b"overlay" || mount.options.len() > MAX_OPTION_BYTES {
        return None;
    }
    let mut upper = None;
    let mut lower = Vec::new();
    for option in mount.options.split(|&byte| byte == b',') {
        if let Some(folder) = option.strip_prefix(b"upperdir=") {
            upper = Some(path_from(unescape_octal(folder)));
        } else if let Some(folders) = option.strip_prefix(b"lowerdir=") {
            lower.extend(split_folders(&unescape_octal(folders)));
        } else if let Some(folder) = option.strip_prefix(b"lowerdir+=") {
            lower.push(path_from(unescape_octal(folder)));
        }
    }
    Some(upper.into_iter().chain(lower).collect())
}

/// The folders of the overlay that is the mount of this number, out of a mountinfo; none if there is none.
pub(super) fn folders_of_mount(mountinfo: &[u8], number: u64) -> Option<Vec<PathBuf>> {
    folders_of(&mounts_in(mountinfo).find(|mount| mount.number == number)?)
}

/// The folders of the overlay of this device (major, minor), out of a mountinfo; none if there is none.
pub(super) fn folders_of_device(mountinfo: &[u8], device: (u32, u32)) -> Option<Vec<PathBuf>> {
    folders_of(&mounts_in(mountinfo).find(|mount| mount.device == device)?)
}

/// The kind of file system that is mounted where a folder lies, out of a mountinfo.
pub(super) fn kind_below<'a>(mountinfo: &'a [u8], folder: &Path) -> Option<&'a [u8]> {
    let at = |mount: Mount<'a>| Some((path_from(unescape_octal(mount.at)), mount.kind));
    let above = mounts_in(mountinfo)
        .filter_map(at)
        .filter(|(at, _)| folder.starts_with(at));
    // Of several mounts at one place, the last covers the others.
    let nearest = above.max_by_key(|(at, _)| at.components().count());
    nearest.map(|(_, kind)| kind)
}

/// The mounts of a mountinfo.
fn mounts_in(mountinfo: &[u8]) -> impl DoubleEndedIterator<Item = Mount<'_>> {
    let lines = mountinfo.split(|&byte| byte == b'\n');
    lines.filter_map(Mount::parse)
}

/// What is needed of a line of mountinfo.
struct Mount<'a> {
    number: u64,
    device: (u32, u32),
    root: &'a [u8],
    at: &'a [u8],
    kind: &'a [u8],
    options: &'a [u8],
}

impl<'a> Mount<'a> {
    fn parse(line: &'a [u8]) -> Option<Mount<'a>> {
        let mut fields = line.split(|&byte| byte == b' ');
        let number = std::str::from_utf8(fields.next()?).ok()?;
        let device = std::str::from_utf8(fields.nth(1)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let (root, at) = (fields.next()?, fields.next()?);
        // Options and optional fields end with a dash.
        fields.find(|field| *field == b"-")?;
        let kind = fields.next()?;
        Some(Mount {
            number: number.parse().ok()?,
            device: (major.parse().ok()?, minor.parse().ok()?),
            root,
            at,
            kind,
            options: fields.nth(1)?,
        })
    }
}

/// Characters that would end a field or an option are written as octal numbers.
fn unescape_octal(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.first_chunk::<3>().filter(|_| byte == b'\\');
        let number = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match number {
            Some(number) => {
                plain.push(number);
                rest = &behind[3..];
            }
            None => {
                plain.push(byte);
                rest = behind;
            }
        }
    }
    plain
}

/// Folders are separated by colons, unless a backslash is before one. Behind two colons are layers
/// that have no paths of their own.
fn split_folders(text: &[u8]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut folder = Vec::new();
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => folder.extend(bytes.next()),
            b':' if folder.is_empty() => return folders,
            b':' => folders.push(path_from(std::mem::take(&mut folder))),
            byte => folder.push(byte),
        }
        if folders.len() > MAX_LAYERS {
            return folders;
        }
    }
    if !folder.is_empty() {
        folders.push(path_from(folder));
    }
    folders
}

fn path_from(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}
