//! A folder of a test that needs no profiler, which is removed with its content.
//!
//! What does not belong here: the folder of an end-to-end test (`setting`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty one, of this process.
    pub fn new(name: &str) -> io::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
