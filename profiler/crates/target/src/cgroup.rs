//! Cgroups as this machine has them: which hierarchies are mounted, where a cgroup is in them, and its
//! id.
//!
//! /proc/self/mountinfo, /proc/cgroups and directories -> [`Hierarchy`], [`Cgroup`]. Paths are those that
//! the kernel has (and /proc/PID/cgroup, outside of cgroup namespaces); ids are inode numbers of
//! directories. One session looks at one hierarchy: that of version 2 where it is the only one, else
//! one of version 1 into which engines put containers (`pids`, `memory`, `cpu`, ...).
//!
//! What does not belong here: what a cgroup's path means (`container`), how the kernel filters (`probe`).

mod handle;
mod mounts;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use profiler_model::{Pid, Tid};

use crate::proc_fs;

/// Most bytes that are read of a list of mounts or of processes.
const MAX_TEXT_BYTES: u64 = 16 << 20;
/// Most cgroups that are walked.
const MAX_CGROUPS: usize = 1 << 16;
/// The controllers whose hierarchies engines put containers into, the surest first.
const CONTROLLERS: [&str; 12] = [
    "pids",
    "memory",
    "cpu",
    "devices",
    "freezer",
    "cpuset",
    "cpuacct",
    "blkio",
    "perf_event",
    "net_cls",
    "net_prio",
    "hugetlb",
];
/// How many of these no engine does without: where none of them is of version 1, version 2 has the
/// containers.
const INDISPENSABLE: usize = 4;

/// Most bytes read of /proc/PID/cgroup.
const MAX_MEMBERSHIP_BYTES: u64 = 64 << 10;

/// A mounted hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// The kernel's number of it: the first column of /proc/PID/cgroup.
    pub number: u32,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Which of its cgroups is mounted there, as mountinfo has it: `/`; a longer path where only that
    /// part is mounted; `/..`, repeated, where we are in a cgroup namespace that many levels below it.
    pub root: String,
}

/// Version of a hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1, with these controllers (a named one, such as systemd's, has none).
    One {
        /// Names as in /proc/cgroups.
        controllers: Vec<String>,
    },
    /// Version 2.
    Two,
}

/// A cgroup that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Path in its hierarchy.
    pub path: String,
    /// What the kernel knows it by until it is booted again.
    pub id: u64,
}

/// Which cgroups the kernel side keeps samples of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupFilter {
    /// These, with all that is below them.
    pub wanted: Vec<Cgroup>,
    /// Those that are made from now on with one of these names (the last part of the path), with all
    /// below. At most 127 bytes each.
    pub names: Vec<String>,
    /// New cgroups, as long as nobody has said whether they are wanted: their samples come marked
    /// as undecided.
    pub undecided: bool,
}

/// Why a cgroup can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is none at this path.
    #[error("there is no cgroup {}; see /proc/PID/cgroup for a process's own", .0.display())]
    Missing(PathBuf),
    /// It is in a hierarchy that has a name only.
    #[error("{} is in a hierarchy without controllers, which can't be filtered by; \
             name the cgroup of one of its controllers", .0.display())]
    NoController(PathBuf),
    /// No hierarchy is mounted that can be filtered by.
    #[error("no cgroups are mounted: mount -t cgroup2 none /sys/fs/cgroup")]
    NotMounted,
    /// Something could not be read.
    #[error("failed to read {what}: {source}")]
    Read {
        /// What.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// All hierarchies that are mounted.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    /// Reads what is mounted.
    pub fn read() -> Result<Hierarchies, CgroupError> {
        let text = |what: &str| {
            read(Path::new(what)).map_err(|source| CgroupError::Read {
                what: what.to_owned(),
                source,
            })
        };
        let mountinfo = text("/proc/self/mountinfo")?;
        // A kernel without controllers of version 1 may have no list of them.
        let own = text("/proc/self/cgroup").unwrap_or_default();
        let controllers = text("/proc/cgroups").unwrap_or_default();
        Ok(Hierarchies::of_texts(
            &mountinfo,
            &String::from_utf8_lossy(&own),
            &String::from_utf8_lossy(&controllers),
            is_mounted,
        ))
    }

    /// Those of texts as /proc/self/mountinfo, /proc/self/cgroup and /proc/cgroups have them. `is_there` is asked
    /// whether a mount of a device (`major:minor`) can be seen at its place.
    pub fn of_texts(
        mountinfo: &[u8],
        own: &str,
        controllers: &str,
        is_there: impl Fn(&Path, &str) -> bool,
    ) -> Hierarchies {
        Hierarchies(mounts::parse(mountinfo, own, controllers, is_there))
    }

    /// The hierarchy that containers are found in; none if there is none that the kernel side can
    /// look at.
    pub fn primary(&self) -> Option<&Hierarchy> {
        let unified = self.0.iter().find(|found| found.version == Version::Two);
        let mut of_one = CONTROLLERS.iter().enumerate().filter_map(|(rank, name)| {
            let has = |found: &&Hierarchy| found.has_controller(name);
            Some((rank, self.0.iter().find(has)?))
        });
        match (of_one.next(), unified) {
            (Some((rank, found)), None) => Some(found).filter(|_| rank < CONTROLLERS.len()),
            (Some((rank, found)), Some(_)) if rank < INDISPENSABLE => Some(found),
            (_, unified) => unified,
        }
    }

    /// The hierarchy that a path leads into, and the path in it: a path below /sys/fs/cgroup, a full
    /// one, or one as in /proc/PID/cgroup (which is looked for in the primary hierarchy first).
    pub fn find(&self, path: &Path) -> Result<(&Hierarchy, Cgroup), CgroupError> {
        let primary = self.primary().ok_or(CgroupError::NotMounted)?;
        if let Ok(full) = fs::canonicalize(path)
            && let Some(found) = self.at(&full)
        {
            let (hierarchy, within) = found;
            return match hierarchy.can_filter() {
                true => Ok((hierarchy, hierarchy.cgroup(&within)?)),
                false => Err(CgroupError::NoController(path.to_owned())),
            };
        }
        let missing = || CgroupError::Missing(path.to_owned());
        let text = path.to_str().ok_or_else(missing)?;
        let text = format!("/{}", text.trim_matches('/'));
        std::iter::once(primary)
            .chain(self.0.iter().filter(|hierarchy| hierarchy.can_filter()))
            .find_map(|hierarchy| Some((hierarchy, hierarchy.cgroup(&text).ok()?)))
            .ok_or_else(missing)
    }

    /// The hierarchy of version 1 that has a controller.
    pub fn with_controller(&self, name: &str) -> Option<&Hierarchy> {
        self.0
            .iter()
            .find(|hierarchy| hierarchy.has_controller(name))
    }

    /// The hierarchy whose mount a full path is in, by its best mount, and the path in it.
    fn at(&self, full: &Path) -> Option<(&Hierarchy, String)> {
        let mounts = self.0.iter();
        let mount = mounts
            .filter(|hierarchy| full.starts_with(&hierarchy.mount))
            .max_by_key(|hierarchy| hierarchy.mount.as_os_str().len())?;
        let within = mount.path_at(full)?;
        let is_same = |other: &&Hierarchy| {
            other.number == mount.number
                && other.version == mount.version
                && other.is_absolute() == mount.is_absolute()
                && contains(other.top(), &within)
        };
        let best = self.0.iter().find(is_same).unwrap_or(mount);
        Some((best, within))
    }
}

impl Hierarchy {
    /// The cgroup at a path of this hierarchy.
    pub fn cgroup(&self, path: &str) -> Result<Cgroup, CgroupError> {
        let missing = || CgroupError::Missing(PathBuf::from(path));
        let mut parts = Path::new(path).components();
        if !parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
            || !contains(self.top(), path)
        {
            return Err(missing());
        }
        let found = fs::symlink_metadata(self.directory(path)).map_err(|_| missing())?;
        if !found.is_dir() {
            return Err(missing());
        }
        let path = path.trim_end_matches('/');
        Ok(Cgroup {
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            id: found.ino(),
        })
    }

    /// The path of a cgroup that exists, by its id. Needs CAP_DAC_READ_SEARCH.
    pub fn path_of(&self, id: u64) -> Option<String> {
        self.path_at(&handle::path_of(&self.mount, id)?)
    }

    /// The directory of a cgroup; an empty path, at which nothing can be, if it is outside of what is
    /// mounted.
    pub fn directory(&self, path: &str) -> PathBuf {
        if !contains(self.top(), path) {
            return PathBuf::new();
        }
        let within = &path[self.top().trim_end_matches('/').len()..];
        self.mount.join(within.trim_start_matches('/'))
    }

    /// The path of the cgroup that the main thread of a process is in; none as of
    /// [`Hierarchy::path_in`], and if there is no such process.
    pub fn path_of_process(&self, pid: Pid) -> Option<Box<str>> {
        let mut text = Vec::new();
        let file = File::open(format!("/proc/{pid}/cgroup")).ok()?;
        file.take(MAX_MEMBERSHIP_BYTES)
            .read_to_end(&mut text)
            .ok()?;
        Some(self.path_in(&String::from_utf8_lossy(&text))?.into())
    }

    /// The path of a process's cgroup in this hierarchy, out of the text of /proc/PID/cgroup. None also
    /// if we are in a cgroup namespace ourselves, and the process too: what is above is not told then.
    pub fn path_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        let path = text.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (_, path) = rest.split_once(':')?;
            (number.parse() == Ok(self.number)).then_some(path)
        })?;
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let path = match self.levels_above() {
            0 => path,
            levels => strip_levels(path, levels)?,
        };
        match path {
            "" => Some("/"),
            path => (path.starts_with('/') && !contains("/..", path)).then_some(path),
        }
    }

    /// The processes of a cgroup and of those below it, at most so many. Threads that are in it
    /// without their process count as their process.
    pub fn processes(&self, path: &str, most: usize) -> Vec<Pid> {
        let mut found = BTreeSet::new();
        let mut left = MAX_CGROUPS;
        visit(
            &self.directory(path),
            path,
            &mut left,
            &mut |directory, _| {
                for pid in members(directory) {
                    if found.len() == most {
                        return false;
                    }
                    found.insert(pid);
                }
                true
            },
        );
        found.into_iter().map(Pid).collect()
    }

    /// Calls with the path of each cgroup that is mounted, those above others first.
    pub fn walk(&self, found: &mut dyn FnMut(&str)) {
        let mut left = MAX_CGROUPS;
        visit(&self.mount, self.top(), &mut left, &mut |_, path| {
            found(path);
            true
        });
    }

    /// Whether the kernel side can see a task's cgroup in it.
    fn can_filter(&self) -> bool {
        match &self.version {
            Version::One { controllers } => !controllers.is_empty(),
            Version::Two => true,
        }
    }

    fn has_controller(&self, name: &str) -> bool {
        match &self.version {
            Version::One { controllers } => controllers.iter().any(|known| known == name),
            Version::Two => false,
        }
    }

    /// The cgroup that is mounted: of a mount above our namespace that of the machine.
    fn top(&self) -> &str {
        match self.levels_above() {
            0 => &self.root,
            _ => "/",
        }
    }

    /// How many levels our cgroup namespace is below what is mounted.
    fn levels_above(&self) -> usize {
        let parts = self.root.split('/').skip(1);
        parts.take_while(|part| *part == "..").count()
    }

    /// Whether paths begin at the top of the machine, though we are in a namespace.
    fn is_absolute(&self) -> bool {
        self.levels_above() > 0
    }

    /// Negative, if it is above our namespace.
    fn levels_below_top(&self) -> isize {
        let above = self.levels_above() as isize;
        let parts = self.root.split('/').filter(|part| !part.is_empty());
        parts.count() as isize - 2 * above
    }

    /// The path in the hierarchy that a path below the mount has.
    fn path_at(&self, full: &Path) -> Option<String> {
        let within = full.strip_prefix(&self.mount).ok()?.to_str()?;
        let top = self.top().trim_end_matches('/');
        Some(match (top, within) {
            ("", "") => "/".to_owned(),
            (top, "") => top.to_owned(),
            (top, within) => format!("{top}/{within}"),
        })
    }
}

/// Whether a cgroup is another one or below it.
pub fn contains(whole: &str, part: &str) -> bool {
    let whole = whole.trim_end_matches('/');
    part.strip_prefix(whole)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What is left of a path of a namespace that goes up so many levels.
fn strip_levels(path: &str, levels: usize) -> Option<&str> {
    (0..levels).try_fold(path, |path, _| {
        let rest = path.strip_prefix("/..")?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    })
}

/// Visits directories, those above others first, until told to stop or no more may be visited.
fn visit(
    directory: &Path,
    path: &str,
    left: &mut usize,
    found: &mut dyn FnMut(&Path, &str) -> bool,
) {
    let mut waiting = vec![(directory.to_owned(), path.to_owned())];
    while let Some((directory, path)) = waiting.pop() {
        if *left == 0 || !found(&directory, &path) {
            return;
        }
        *left -= 1;
        let Ok(entries) = fs::read_dir(&directory) else {
            // Removed meanwhile.
            continue;
        };
        for entry in entries.flatten() {
            if waiting.len() < *left
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Some(name) = entry.file_name().to_str()
            {
                let path = format!("{}/{name}", path.trim_end_matches('/'));
                waiting.push((entry.path(), path));
            }
        }
    }
}

/// The processes of one cgroup.
fn members(directory: &Path) -> BTreeSet<u32> {
    let numbers = |name: &str| -> Option<BTreeSet<u32>> {
        let text = read(&directory.join(name)).ok()?;
        let text = String::from_utf8_lossy(&text);
        // Who is in no namespace of ours is listed as 0.
        let numbers = text.lines().filter_map(|line| line.parse().ok());
        Some(numbers.filter(|&number| number != 0).collect())
    };
    if let Some(processes) = numbers("cgroup.procs") {
        return processes;
    }
    // A threaded cgroup lists threads only.
    let threads = numbers("cgroup.threads").unwrap_or_default();
    let process = |thread| proc_fs::process_of(Tid(thread)).map(|pid| pid.0);
    threads.into_iter().filter_map(process).collect()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_TEXT_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether what is at a path is on a device, `major:minor`.
fn is_mounted(path: &Path, device: &str) -> bool {
    fs::metadata(path).is_ok_and(|found| {
        let (major, minor) = (
            rustix::fs::major(found.dev()),
            rustix::fs::minor(found.dev()),
        );
        device == format!("{major}:{minor}")
    })
}

#[cfg(test)]
mod tests;
