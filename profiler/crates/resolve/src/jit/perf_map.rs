//! Perf maps: the names that a runtime gives to the code it makes (`/tmp/perf-PID.map`).
//!
//! Lines `START SIZE NAME`, numbers in hexadecimal, addresses absolute in one process. The file
//! grows while the process runs and is read on from where the last reading ended. It is taken from
//! the process's own mount namespace, under its pid in its own pid namespace, and only if it is a
//! regular file of the process's user that no symbolic link leads to: anybody can write to /tmp.
//! Source: the kernel's tools/perf/Documentation/jit-interface.txt.
//!
//! What does not belong here: what the names mean (`names`).

use std::collections::BTreeMap;
use std::fs::File;

use super::JitProcess;
use crate::files::OpenError;
use profiler_object::elf::read_up_to;

/// Most bytes read of one map in all.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Most bytes read of one map at a time.
const MAX_READ_BYTES: u64 = 16 << 20;
/// Most bytes of symbols kept of one map.
const MAX_KEPT_BYTES: usize = 32 << 20;
/// Longest line.
const MAX_LINE_BYTES: usize = 4096;
/// What a symbol costs beyond its name.
const SYMBOL_BYTES: usize = 48;

/// A named piece of run-time code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JitSymbol<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// First address.
    pub(super) start: u64,
    /// Length in bytes.
    pub(super) size: u64,
}

/// What has been read of a perf map.
#[derive(Debug, Default)]
pub(super) struct PerfMap {
    file: Option<File>,
    read: u64,
    rest: Vec<u8>,
    symbols: BTreeMap<u64, (u64, Box<str>)>,
    bytes: usize,
    /// Where other code was than is now.
    pub(super) renewed: Vec<(u64, u64)>,
}

impl PerfMap {
    /// Reads what is new; whether there was anything.
    pub(super) fn refresh(&mut self, process: &JitProcess) -> Result<bool, OpenError> {
        let file = match &self.file {
            Some(file) => file,
            None => {
                let path = format!("tmp/perf-{}.map", process.namespace_pid);
                self.file.insert(process.open(&path)?)
            }
        };
        let len = file.metadata()?.len().min(MAX_FILE_BYTES);
        if len < self.read {
            // Written anew.
            self.read = 0;
            self.rest.clear();
        }
        let mut bytes = std::mem::take(&mut self.rest);
        let kept = bytes.len();
        bytes.resize(kept + (len - self.read).min(MAX_READ_BYTES) as usize, 0);
        let got = read_up_to(file, &mut bytes[kept..], self.read)?;
        self.read += got as u64;
        bytes.truncate(kept + got);
        self.parse(&bytes);
        Ok(got > 0)
    }

    /// The newest symbol that covers an address.
    pub(super) fn find(&self, address: u64) -> Option<JitSymbol<'_>> {
        let (&start, (end, name)) = self.symbols.range(..=address).next_back()?;
        (address < *end).then_some(JitSymbol {
            name,
            start,
            size: end - start,
        })
    }

    /// Roughly how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn parse(&mut self, bytes: &[u8]) {
        let mut lines = bytes.split(|&byte| byte == b'\n');
        // What follows the last newline is not complete yet.
        let last = lines.next_back().unwrap_or_default();
        self.rest = last[..last.len().min(MAX_LINE_BYTES)].to_vec();
        for line in lines {
            if self.bytes < MAX_KEPT_BYTES
                && let Some((start, size, name)) = parse_line(line)
            {
                self.insert(start, size, &name);
            }
        }
    }

    fn insert(&mut self, start: u64, size: u64, name: &str) {
        let Some(end) = start.checked_add(size).filter(|&end| end > start) else {
            return;
        };
        let same = |(known_end, known): &(u64, Box<str>)| *known_end == end && **known == *name;
        if self.symbols.get(&start).is_some_and(same) {
            return;
        }
        // Code is thrown away and its memory used again: what is newer holds.
        while let Some((&old, &(old_end, _))) = self.symbols.range(..end).next_back() {
            if old_end <= start {
                break;
            }
            if let Some((_, name)) = self.symbols.remove(&old) {
                self.bytes = self.bytes.saturating_sub(name.len() + SYMBOL_BYTES);
                self.renewed.push((old, old_end));
            }
        }
        self.bytes += name.len() + SYMBOL_BYTES;
        self.symbols.insert(start, (end, name.into()));
    }
}

fn parse_line(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_BYTES)]);
    let mut fields = line.trim_end().splitn(3, ' ');
    let mut number = || {
        let text = fields.next()?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = fields.next()?.trim();
    (!name.is_empty()).then(|| (start, size, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use proptest::prelude::*;

    use super::*;
    use crate::files::Root;
    use profiler_model::Pid;

    #[test]
    fn newer_code_replaces_older() {
        let mut map = PerfMap::default();
        map.parse(b"1000 100 a\n1100 100 b b\n0x1080 0x100 c\nzzz\n2000 0 empty\n");
        assert_eq!(map.find(0x1000), None);
        let c = JitSymbol {
            name: "c",
            start: 0x1080,
            size: 0x100,
        };
        assert_eq!(map.find(0x1080), Some(c));
        assert_eq!(map.find(0x1180), None);
        assert_eq!(map.find(0x2000), None);
        map.parse(b"1000 1000 whole\nffffffffffffffff 10 overflow\n");
        assert_eq!(map.find(0x1fff).unwrap().name, "whole");
        assert_eq!(map.symbols.len(), 1);
        // What is said again changes nothing.
        map.parse(b"1000 1000 whole\n");
        let replaced = [(0x1100, 0x1200), (0x1000, 0x1100), (0x1080, 0x1180)];
        assert_eq!(map.renewed, replaced);
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        let mut map = PerfMap::default();
        map.parse(b"1000 10 first\n2000 10 sec");
        assert_eq!(map.find(0x2000), None);
        let mut more = std::mem::take(&mut map.rest);
        more.extend(b"ond\n");
        map.parse(&more);
        assert_eq!(map.find(0x2000).unwrap().name, "second");
    }

    #[test]
    fn only_the_owner_is_believed() {
        let pid = Pid(u32::MAX - std::process::id());
        let path = format!("/tmp/perf-{pid}.map");
        std::fs::write(&path, "1000 10 mine\n").unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let mut process = JitProcess {
            pid,
            namespace_pid: pid,
            uid: Some(uid),
            root: Some(Arc::new(Root::own().unwrap())),
            dump: OnceLock::new(),
        };
        let mut map = PerfMap::default();
        assert!(map.refresh(&process).unwrap());
        assert!(!map.refresh(&process).unwrap());
        assert_eq!(map.find(0x1001).unwrap().name, "mine");
        process.uid = Some(uid + 1);
        let refused = PerfMap::default().refresh(&process);
        process.uid = Some(uid);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/maps", &path).unwrap();
        let link = PerfMap::default().refresh(&process);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(refused, Err(OpenError::Replaced)));
        assert!(matches!(link, Err(OpenError::NotRegular)), "{link:?}");
    }

    proptest! {
        #[test]
        fn any_map_is_kept_in_order_and_accounted(
            lines in prop::collection::vec(
                prop_oneof![
                    "[0-9a-f]{1,2} [0-9a-f]{1,2} [a-z ]{0,5}\n",
                    "f{15}[0-9a-f]{1,2} [0-9a-f]{1,16} x\n",
                    prop::collection::vec(any::<u8>(), 0..20)
                        .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
                ],
                0..60,
            ),
            address in any::<u8>(),
        ) {
            let mut map = PerfMap::default();
            for line in &lines {
                let mut bytes = std::mem::take(&mut map.rest);
                bytes.extend(line.as_bytes());
                map.parse(&bytes);
            }
            let kept: Vec<_> = map.symbols.iter().map(|(start, (end, _))| (*start, *end)).collect();
            prop_assert!(kept.iter().all(|(start, end)| start < end));
            prop_assert!(kept.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            let names = map.symbols.values().map(|(_, name)| name.len() + SYMBOL_BYTES);
            prop_assert_eq!(map.bytes(), names.sum::<usize>());
            if let Some(found) = map.find(address.into()) {
                let offset = u64::from(address) - found.start;
                prop_assert!(offset < found.size);
            }
        }
    }
}
