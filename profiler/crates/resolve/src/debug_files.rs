//! Finds the files that hold a binary's debug information.
//!
//! A target file -> its separate debug file (by build id, else by `.gnu_debuglink`), the file that
//! dwz moved common parts to (`.gnu_debugaltlink`), and its DWARF package (`.dwp`). Each is looked
//! for below the target's own root first, then on the host, and must prove that it belongs to the
//! binary: by build id, or by the checksum of the link. Source: GDB's documentation of separate
//! debug files.
//!
//! What does not belong here: reading debug information (`symbolize`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checksum::checksum_of;
use super::copies::Room;
use super::files::{OpenError, Root, TargetFile, is_trusted, open_trusted};
use super::helper::open_below;
use super::warnings::warn_once;
use profiler_model::BuildId;
use profiler_object::elf::{Elf, Section};

/// Most bytes of a link section.
const MAX_LINK_BYTES: u64 = 4096;
/// Shortest build id that files are named by.
const MIN_BUILD_ID_BYTES: usize = 8;
/// How long a download may take.
const DOWNLOAD: Duration = Duration::from_secs(60);

/// Where to look for debug files.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// Directories with `.build-id` folders and trees of debug files, on the host and in targets.
    pub(super) debug_dirs: Vec<PathBuf>,
    /// Servers to ask, if asking was requested.
    pub(super) debuginfod: Option<String>,
    /// This machine's own root; none if files of targets are not looked at.
    pub(super) host: Option<Arc<Root>>,
}

/// An open file with debug information.
#[derive(Debug)]
pub(super) struct DebugFile {
    /// The file.
    pub(super) file: File,
    /// Whether only root can change it.
    pub(super) trusted: bool,
    /// Where it was found.
    pub(super) path: String,
    /// Below which root.
    pub(super) root: Option<Arc<Root>>,
    /// Its headers.
    pub(super) elf: Elf,
    /// Of a copy of what a server has: who owns that, and what the copy takes.
    pub(super) copy: Option<(u32, Room)>,
}

impl DebugFile {
    /// Whose work it is; none if only root can change it.
    pub(super) fn owner(&self) -> Option<u32> {
        let of = |file| rustix::fs::fstat(file).map_or(u32::MAX, |stat| stat.st_uid);
        let copied = self.copy.as_ref().map(|(owner, _)| *owner);
        (!self.trusted).then(|| copied.unwrap_or_else(|| of(&self.file)))
    }
}

impl Search {
    /// The separate debug file of `target`.
    pub(super) fn debug_file(
        &self,
        target: &TargetFile,
        sections: &[Section],
    ) -> Option<DebugFile> {
        let build_id = target.build_id();
        let root = target.root.upgrade();
        let roots = [root.as_ref(), self.host.as_ref()];
        let user = target.owner;
        for root in roots.into_iter().flatten() {
            let found = build_id.and_then(|id| self.by_build_id(root, id, user));
            let found = found.or_else(|| self.by_link(root, target, sections));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The file that dwz moved common parts of `of` to, as a link section names it.
    pub(super) fn common_file(
        &self,
        root: Option<&Arc<Root>>,
        of: (&File, &str),
        sections: &[Section],
        user: Option<u32>,
    ) -> Option<DebugFile> {
        let (file, path) = of;
        let (name, build_id) = alternate_link(file, sections)?;
        let beside = Path::new(path).parent()?.join(&name);
        for root in [root, self.host.as_ref()].into_iter().flatten() {
            let found = self
                .by_build_id(root, &build_id, user)
                .or_else(|| open(root, beside.to_str()?, user).ok());
            let found = found.filter(|found| found.elf.build_id.as_ref() == Some(&build_id));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The DWARF package beside `path`.
    pub(super) fn package(
        &self,
        root: Option<&Arc<Root>>,
        path: &str,
        user: Option<u32>,
    ) -> Option<DebugFile> {
        let path = format!("{path}.dwp");
        let roots = [root, self.host.as_ref()].into_iter().flatten();
        roots.filter_map(|root| open(root, &path, user).ok()).next()
    }

    fn by_build_id(
        &self,
        root: &Arc<Root>,
        build_id: &BuildId,
        user: Option<u32>,
    ) -> Option<DebugFile> {
        let name = build_id_path(build_id)?;
        let paths = self.debug_dirs.iter().map(|dir| dir.join(&name));
        paths
            .filter_map(|path| open(root, path.to_str()?, user).ok())
            .find(|found| found.elf.build_id.as_ref() == Some(build_id))
    }

    /// What nobody but root can change has none that others can: what theirs take is on their own account.
    fn by_link(
        &self,
        root: &Arc<Root>,
        target: &TargetFile,
        sections: &[Section],
    ) -> Option<DebugFile> {
        let (name, checksum) = debug_link(&target.file, sections)?;
        let folder = Path::new(&target.path).parent()?;
        let inside = folder.strip_prefix("/").unwrap_or(folder);
        let mut paths = vec![folder.join(&name), folder.join(".debug").join(&name)];
        paths.extend(
            self.debug_dirs
                .iter()
                .map(|dir| dir.join(inside).join(&name)),
        );
        paths
            .into_iter()
            .filter(|path| path.to_str() != Some(&target.path))
            .filter_map(|path| open(root, path.to_str()?, target.owner).ok())
            .filter(|found| found.trusted || target.owner.is_some())
            .find(|found| match (target.build_id(), &found.elf.build_id) {
                (Some(wanted), Some(id)) => wanted == id,
                _ => checksum_of(&found.file) == Some(checksum),
            })
    }

    /// Asks debuginfod's own client, which keeps what it gets in a cache of its own. May take long.
    pub(super) fn download(&self, build_id: &BuildId) -> Option<DebugFile> {
        let urls = self.debuginfod.as_deref()?;
        let mut command = Command::new("debuginfod-find");
        command
            .args(["debuginfo", &build_id.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if !urls.is_empty() {
            command.env("DEBUGINFOD_URLS", urls);
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                warn_once(
                    "debuginfod",
                    format_args!(
                        "debuginfod-find can't be run ({error}); install package debuginfod"
                    ),
                );
                return None;
            }
        };
        let started = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if started.elapsed() < DOWNLOAD => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => {
                    warn_once(
                        "debuginfod",
                        format_args!(
                            "debuginfod-find took longer than {DOWNLOAD:?} for {build_id}"
                        ),
                    );
                    let _ = child.kill();
                    let _ = child.wait();
                    return None;
                }
            }
        };
        if !status.success() {
            return None;
        }
        let mut path = String::new();
        std::io::Read::read_to_string(&mut child.stdout.take()?, &mut path).ok()?;
        let found = open_host(Path::new(path.trim())).ok()?;
        (found.elf.build_id.as_ref() == Some(build_id)).then_some(found)
    }
}

/// `.build-id/ab/cdef.debug`.
pub(super) fn build_id_path(build_id: &BuildId) -> Option<PathBuf> {
    if build_id.0.len() < MIN_BUILD_ID_BYTES {
        return None;
    }
    let text = build_id.to_string();
    let (folder, rest) = text.split_at_checked(2)?;
    Some(format!(".build-id/{folder}/{rest}.debug").into())
}

/// Opens a file of the machine itself.
pub(super) fn open_host(path: &Path) -> Result<DebugFile, OpenError> {
    let (file, stat) = open_trusted(path)?;
    let elf = Elf::read(&file).map_err(std::io::Error::other)?;
    Ok(DebugFile {
        trusted: is_trusted(&stat),
        path: path.to_string_lossy().into_owned(),
        root: None,
        elf,
        file,
        copy: None,
    })
}

/// Opens a file below a root, for the sake of the user whose work it is about; none is root.
fn open(root: &Arc<Root>, path: &str, user: Option<u32>) -> Result<DebugFile, OpenError> {
    let found = open_below(root, path, user.unwrap_or(0), true)?;
    let elf = Elf::read(&found.file).map_err(std::io::Error::other)?;
    Ok(DebugFile {
        trusted: found.copy.is_none() && root.trusts(&found.stat),
        path: path.to_owned(),
        root: Some(root.clone()),
        elf,
        file: found.file,
        copy: found.copy,
    })
}

fn section(file: &File, sections: &[Section], name: &str) -> Option<Vec<u8>> {
    let section = sections.iter().find(|section| section.name == name)?;
    section.bytes(file, MAX_LINK_BYTES).ok()
}

/// File name and checksum of `.gnu_debuglink`.
fn debug_link(file: &File, sections: &[Section]) -> Option<(String, u32)> {
    let bytes = section(file, sections, ".gnu_debuglink")?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    let checksum = bytes.get((end + 1).checked_next_multiple_of(4)?..)?;
    let valid = !name.is_empty() && !name.contains('/');
    valid.then_some((
        name.to_owned(),
        u32::from_ne_bytes(*checksum.first_chunk()?),
    ))
}

/// Path and build id of `.gnu_debugaltlink`.
fn alternate_link(file: &File, sections: &[Section]) -> Option<(String, BuildId)> {
    let bytes = section(file, sections, ".gnu_debugaltlink")?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    let build_id = BuildId(bytes.get(end + 1..)?.into());
    (MIN_BUILD_ID_BYTES..=32)
        .contains(&build_id.0.len())
        .then_some((name.to_owned(), build_id))
}
