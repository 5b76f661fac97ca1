//! Cgroups as this machine has them: which hierarchies are mounted, where a cgroup is in them, and its
//! id.
//!
//! /proc/self/mountinfo, /proc/cgroups and directories -> [`Hierarchy`], [`Cgroup`]. Paths are those of
//! /proc/PID/cgroup. One session looks at one hierarchy: that of version 2 where it is the only one, else
//! one of version 1 into which engines put containers (`pids`, `memory`, `cpu`, ...).
//!
//! What does not belong here: what a cgroup's path means (`container`), how the kernel filters (`probe`).

use std::path::{Path, PathBuf};

/// A mounted hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// The kernel's number of it: the first column of /proc/PID/cgroup.
    pub number: u32,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Which of its cgroups is mounted there: `/`, unless we are in a container ourselves.
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
    /// No hierarchy is mounted that can be filtered by.
    #[error("no cgroups are mounted: mount -t cgroup2 none /sys/fs/cgroup")]
    NotMounted,
    /// Something could not be read.
    #[error("failed to read {what}: {source}")]
    Read {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

/// All hierarchies that are mounted.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    /// Reads what is mounted.
    pub fn read() -> Result<Hierarchies, CgroupError> {
        Ok(Hierarchies::default())
    }

    /// The hierarchy that containers are found in; none if there is none that the kernel side can
    /// look at.
    pub fn primary(&self) -> Option<&Hierarchy> {
        self.0.first()
    }

    /// The hierarchy that a path leads into, and the path in it: a path below /sys/fs/cgroup, a full
    /// one, or one as in /proc/PID/cgroup (which is looked for in the primary hierarchy first).
    pub fn find(&self, path: &Path) -> Result<(&Hierarchy, Cgroup), CgroupError> {
        Err(CgroupError::Missing(path.to_owned()))
    }
}

impl Hierarchy {
    /// The cgroup at a path of this hierarchy.
    pub fn cgroup(&self, path: &str) -> Result<Cgroup, CgroupError> {
        Err(CgroupError::Missing(PathBuf::from(path)))
    }

    /// The path of a cgroup that exists, by its id. Needs CAP_DAC_READ_SEARCH.
    pub fn path_of(&self, _id: u64) -> Option<String> {
        None
    }

    /// The directory of a cgroup.
    pub fn directory(&self, path: &str) -> PathBuf {
        self.mount.join(path.trim_start_matches('/'))
    }

    /// The path of a process's cgroup in this hierarchy, out of the text of /proc/PID/cgroup.
    pub fn path_in<'t>(&self, _text: &'t str) -> Option<&'t str> {
        None
    }

    /// The processes of a cgroup and of those below it, at most so many. Threads that are in it
    /// without their process count as their process.
    pub fn processes(&self, _path: &str, _most: usize) -> Vec<crate::model::Pid> {
        Vec::new()
    }

    /// Calls with each cgroup of the hierarchy that is named like this or for which `wanted` says so.
    pub fn walk(&self, _visit: &mut dyn FnMut(&str)) {}
}

/// Whether a cgroup is another one or below it.
pub fn contains(whole: &str, part: &str) -> bool {
    let whole = whole.trim_end_matches('/');
    part.strip_prefix(whole)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
