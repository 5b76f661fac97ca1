//! Warnings about targets' files and processes: each once, and of each kind a few.
//!
//! A line -> the log, unless it was there already; when there have been many of its kind, a last one that says so.
//! Who owns a target makes as many files and processes as they like, and has them looked at as often: what they cost
//! is counted elsewhere, and the log is for others too. All of it is there with `-v`.
//!
//! What does not belong here: what is said.

use std::fmt::Arguments;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use rustc_hash::{FxHashMap, FxHashSet};

use super::locks::lock;

/// Different lines of one kind.
const MOST: usize = 50;

static SAID: Mutex<Option<Said>> = Mutex::new(None);

/// Says a line of some kind: what its text begins with, or is about.
pub fn warn_once(kind: &'static str, line: Arguments<'_>) {
    let line = line.to_string();
    let mut said = lock(&SAID);
    let how = said.get_or_insert_default().take(kind, &line);
    drop(said);
    match how {
        How::Said => log::warn!("{line}"),
        How::SaidAsTheLast => log::warn!("{line} (more about {kind} is not said)"),
        How::Not => log::debug!("{line}"),
    }
}

/// What was said.
#[derive(Default)]
struct Said {
    /// Hashes of lines, which nobody can foresee, by kind.
    lines: FxHashMap<&'static str, FxHashSet<u64>>,
    hashes: RandomState,
}

#[derive(Debug, PartialEq, Eq)]
enum How {
    Said,
    SaidAsTheLast,
    Not,
}

impl Said {
    fn take(&mut self, kind: &'static str, line: &str) -> How {
        let lines = self.lines.entry(kind).or_default();
        if lines.len() >= MOST || !lines.insert(self.hashes.hash_one(line)) {
            return How::Not;
        }
        match lines.len() == MOST {
            true => How::SaidAsTheLast,
            false => How::Said,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_said_once_and_a_kind_not_without_end() {
        let mut said = Said::default();
        assert_eq!(said.take("files", "/a"), How::Said);
        assert_eq!(said.take("files", "/a"), How::Not);
        let more: Vec<How> = (0..1000)
            .map(|n| said.take("files", &n.to_string()))
            .collect();
        let count = |how: How| more.iter().filter(|it| **it == how).count();
        assert_eq!(count(How::Said), MOST - 2);
        assert_eq!(count(How::SaidAsTheLast), 1);
        assert_eq!(more[MOST - 2], How::SaidAsTheLast);
        // What others are about is said nevertheless.
        assert_eq!(said.take("processes", "7"), How::Said);
        assert_eq!(said.lines["files"].len(), MOST);
    }
}
