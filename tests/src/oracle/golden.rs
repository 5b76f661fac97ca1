//! Proofs on which both walkers agree -> recorded stacks for `tests/golden/unwind`.
//!
//! With `RECORD_STACKS=DIRECTORY`, each sample is written there that has a kind of rule, or of code, which
//! no sample had before; small ones only. What is expected is what the judge found.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use profiler_common::sample::END_COMPLETE;
use profiler_unwind::Entry;
use profiler_unwind::snapshot::{Found, Snapshot};
use profiler_unwind::walk::Walked;

use super::Proof;
use super::files::Space;

/// Most bytes of a recorded stack.
const MAX_BYTES: usize = 14_000;
const MAX_FRAMES: usize = 24;

thread_local! {
    static KINDS: RefCell<BTreeSet<String>> = RefCell::default();
}

/// Where to, if recorded stacks are wanted.
pub fn wanted() -> Option<PathBuf> {
    std::env::var_os("RECORD_STACKS").map(PathBuf::from)
}

/// Writes a stack that both walkers agree on, if it has something new.
pub fn record(folder: &Path, what: &str, proof: &Proof, space: &Space<'_>) -> io::Result<()> {
    if proof.chain.len() > MAX_FRAMES {
        return Ok(());
    }
    let expected = Walked {
        addresses: proof.chain.clone(),
        end: END_COMPLETE,
    };
    let note = format!("{what}, expected by elfutils' libdwfl");
    // Where a machine keeps what is not a distribution's is its own affair.
    let file = |address| {
        let (id, path) = space.file(address);
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let shared = path.starts_with("/usr/") || path.starts_with("/lib");
        (id, if shared { path } else { name })
    };
    let memory = proof.memory();
    let snapshot = Snapshot::record(&note, proof.start(), space, &memory, file, expected);
    let text = snapshot.to_text();
    if text.len() > MAX_BYTES || snapshot.replay() != snapshot.expected {
        return Ok(());
    }
    let mut kinds = BTreeSet::new();
    for (address, found) in &snapshot.code {
        let leaf = *address == proof.pc;
        kinds.insert(match found {
            Found::Entry(file) => match file.entry {
                Entry::Rule(rule) => {
                    format!("rule {} {} {} {leaf}", rule.cfa, rule.register, rule.fp,)
                }
                entry => format!("{entry:?} {leaf}"),
            },
            found => format!("{found:?} {leaf}"),
        });
    }
    kinds.insert(format!("program {what}"));
    let is_new = KINDS.with_borrow_mut(|known| {
        let before = known.len();
        known.extend(kinds);
        known.len() > before
    });
    if !is_new {
        return Ok(());
    }
    let number = KINDS.with_borrow(BTreeSet::len);
    let plain: String = what
        .chars()
        .map(|letter| {
            if letter.is_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    fs::write(folder.join(format!("{plain}-{number}.txt")), text)
}
