//! The files of a container: a folder with a workload, and a shell if asked for.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::PROGRAM;
use crate::workload;

/// A folder that becomes the root of a container.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// One at `folder` with the workload of this name and nothing else: no shell, no library.
    pub fn new(folder: &Path, name: &str) -> io::Result<Root> {
        let program = workload::contained(name).map_err(io::Error::other)?;
        let root = Root(folder.to_owned());
        // Runtimes want the first two to be there, even if nothing is mounted.
        for inside in ["dev", "proc", "bin"] {
            fs::create_dir_all(root.0.join(inside))?;
        }
        fs::copy(program, root.inside(PROGRAM))?;
        Ok(root)
    }

    /// With a shell and its commands.
    pub fn with_shell(self) -> io::Result<Root> {
        let busybox = super::in_path("busybox")
            .ok_or_else(|| io::Error::other("busybox is not installed"))?;
        fs::copy(busybox, self.inside("/bin/busybox"))?;
        for command in ["sh", "sleep", "mkdir", "mount"] {
            symlink("busybox", self.inside("/bin").join(command))?;
        }
        Ok(self)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Where a path of the container is outside.
    pub fn inside(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }
}
