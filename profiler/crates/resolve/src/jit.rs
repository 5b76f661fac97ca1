//! Code that a runtime makes: what it says of it.
//!
//! A process and addresses in it -> names, lines and bytes, from what the runtime writes while it runs: a
//! dump that the process maps (`dump`), else a map of names (`perf_map`). Both are taken from below the
//! process's root, only if they are regular files of the process's user, and read on from where the last
//! reading ended. Addresses are absolute in one process. Memory is thrown away and used again by runtimes:
//! of several pieces of code that were at an address the newest is meant, and where one took the place of another is
//! told, so that what was sampled before keeps its name.
//!
//! What does not belong here: when this is read again (`symbolize`).

use std::fs::File;
use std::sync::{Arc, OnceLock};

use super::files::{OpenError, Root};
use super::symbolize::{CodeBytes, FunctionInfo};
use profiler_model::Pid;

mod dump;
mod names;
mod perf_map;

use dump::Dump;
use perf_map::PerfMap;

/// Pieces of code that are told apart when they are replaced; of more at a time all code is taken to be new.
const MAX_RENEWED: usize = 4096;

/// A process that makes code at run time.
#[derive(Clone, Debug)]
pub(super) struct JitProcess {
    /// In the initial pid namespace.
    pub(super) pid: Pid,
    /// In its own pid namespace.
    pub(super) namespace_pid: Pid,
    /// Its user.
    pub(super) uid: Option<u32>,
    /// Its root directory.
    pub(super) root: Option<Arc<Root>>,
    /// The dump that it maps, as it sees it.
    pub(super) dump: OnceLock<Box<str>>,
}

impl JitProcess {
    /// Opens a file of the process, if it is one of its user's own.
    fn open(&self, path: &str) -> Result<File, OpenError> {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let root = self.root.as_ref().ok_or_else(missing)?;
        let (file, stat) = root.open_without_links(path)?;
        if self.uid != Some(stat.st_uid) {
            return Err(OpenError::Replaced);
        }
        Ok(file)
    }
}

/// Whether a process that maps this file says by it that it writes its code there.
pub(super) fn is_dump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let number = name.strip_prefix("jit-");
    let number = number.and_then(|name| name.strip_suffix(".dump"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// A piece of run-time code, and a place in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JitPlace {
    pub(super) function: FunctionInfo,
    /// Line; 0 if not known.
    pub(super) line: u32,
    /// Its first bytes, if they were asked for.
    pub(super) code: Option<CodeBytes>,
}

/// What has been read of a process's run-time code.
#[derive(Debug, Default)]
pub(super) struct JitCode {
    map: PerfMap,
    dump: Dump,
}

impl JitCode {
    /// Reads what is new.
    pub(super) fn refresh(&mut self, process: &JitProcess) {
        if let Some(path) = process.dump.get()
            && let Err(error) = self.dump.refresh(process, path)
        {
            log::debug!("pid {}: {path}: {error}", process.pid);
        }
        if let Err(error) = self.map.refresh(process) {
            let (pid, namespace_pid) = (process.pid, process.namespace_pid);
            log::debug!("pid {pid}: perf-{namespace_pid}.map: {error}");
        }
    }

    /// Addresses of what was thrown away or replaced since the last call, in what was read before that.
    pub(super) fn renewed(&mut self) -> Vec<(u64, u64)> {
        let mut renewed = std::mem::take(&mut self.map.renewed);
        renewed.append(&mut self.dump.renewed);
        match renewed.len() > MAX_RENEWED {
            true => vec![(0, u64::MAX)],
            false => renewed,
        }
    }

    /// Whether an address is in code that is known.
    pub(super) fn knows(&self, address: u64) -> bool {
        self.dump.knows(address) || self.map.find(address).is_some()
    }

    /// What is at an address, with `code` its bytes.
    pub(super) fn find(&self, address: u64, code: bool) -> Option<JitPlace> {
        if let Some(found) = self.dump.find(address, code) {
            return Some(found);
        }
        let symbol = self.map.find(address)?;
        Some(JitPlace {
            function: function(symbol.name, symbol.start, symbol.size),
            line: 0,
            code: None,
        })
    }

    /// Roughly how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        self.map.bytes() + self.dump.bytes()
    }
}

/// A function by the name that its runtime gives it.
fn function(raw: &str, start: u64, size: u64) -> FunctionInfo {
    let readable = names::readable(raw);
    FunctionInfo {
        linkage_name: (*readable.name != *raw).then(|| raw.into()),
        name: readable.name.into_owned().into(),
        file: readable.file.map(Into::into),
        line: readable.line,
        start: Some(start),
        size: Some(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_known_by_their_names() {
        assert!(is_dump("/tmp/jit-12.dump") && is_dump("/root/.debug/jit/java-jit-1/jit-7.dump"));
        assert!(
            !is_dump("/tmp/jit-.dump") && !is_dump("/tmp/jit-1.dumps") && !is_dump("/x/jit-a.dump")
        );
    }
}
