//! Whose files cost how much time.
//!
//! Users of the machine, and the time in which the process that reads symbols worked at files of theirs until it
//! had to be ended -> whether more of them are looked at. Who makes files that are never done with is not
//! waited for time and again; everybody else's files have their turn. The same of processor time that was not in vain
//! ([`Work`]), which is as much as files of one user may take: beyond it they are read no further than their symbols,
//! and then not at all.
//!
//! What does not belong here: what a file is given up for (`symbolize`).

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::locks::lock;
use super::warnings::warn_once;

/// How much time may be lost over one user's files.
const ALLOWED: Duration = Duration::from_secs(30);
/// How much may go into files of one user before they are read for their symbols alone; into those, as much again.
const WORTH: Duration = Duration::from_secs(30);
/// What is loaded already is asked until there was so many times as much.
const LOADED_WORTH: u32 = 4;
/// A second is forgiven in so many.
const FORGIVEN_IN: u32 = 20;
/// Users that are remembered: all who have more are one.
const MAX_OWNERS: usize = 1024;

/// Time that was lost, by user.
#[derive(Debug, Default)]
pub(super) struct Owners(FxHashMap<u32, (Duration, Instant)>);

impl Owners {
    /// Whether one more file of this user is looked at; none is root, whose files always are.
    pub(super) fn may_ask(&self, owner: Option<u32>) -> bool {
        owner.is_none_or(|owner| self.so_far(owner) < ALLOWED)
    }

    /// So much time was lost over a file.
    pub(super) fn charge(&mut self, owner: Option<u32>, time: Duration) {
        let Some(owner) = owner else { return };
        let lost = self.so_far(owner) + time;
        if lost >= ALLOWED {
            warn_once(
                "users",
                format_args!(
                    "files of user {owner} keep the symbolizer busy for nothing: no names for a while"
                ),
            );
        }
        self.add(owner, time);
    }

    /// So much time was taken, of which nobody is told.
    pub(super) fn add(&mut self, owner: u32, time: Duration) {
        let all = self.so_far(owner) + time;
        let owner = self.key(owner);
        self.0.insert(owner, (all, Instant::now()));
    }

    fn key(&self, owner: u32) -> u32 {
        match self.0.len() < MAX_OWNERS || self.0.contains_key(&owner) {
            true => owner,
            false => u32::MAX,
        }
    }

    /// What was taken, and is not forgiven yet.
    pub(super) fn so_far(&self, owner: u32) -> Duration {
        let lost = self.0.get(&self.key(owner));
        lost.map_or(Duration::ZERO, |(lost, at)| {
            lost.saturating_sub(at.elapsed() / FORGIVEN_IN)
        })
    }
}

/// How far a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// Not at all.
    Nothing,
    /// If it is loaded already.
    Loaded,
    /// For its symbols.
    Symbols,
    /// With its debug information.
    All,
}

/// Processor time that went into files, by user; all who read share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Work(Arc<Mutex<Owners>>);

impl Work {
    /// How far the next file of this user is read; none is root, whose files always are.
    pub(super) fn allows(&self, owner: Option<u32>) -> Effort {
        let Some(owner) = owner else {
            return Effort::All;
        };
        match self.owners().so_far(owner) {
            little if little < WORTH => Effort::All,
            more if more < WORTH * 2 => Effort::Symbols,
            much if much < WORTH * LOADED_WORTH => Effort::Loaded,
            _ => Effort::Nothing,
        }
    }

    /// So much time went into a file.
    pub(super) fn charge(&self, owner: Option<u32>, time: Duration) {
        let Some(owner) = owner else { return };
        let before = self.allows(Some(owner));
        self.owners().add(owner, time);
        let now = self.allows(Some(owner));
        if now == before {
            return;
        }
        let gets = match now {
            Effort::All => return,
            Effort::Symbols => "names by symbols alone for a while",
            Effort::Loaded | Effort::Nothing => "no names for a while",
        };
        warn_once(
            "users",
            format_args!("files of user {owner} keep the symbolizer busy: {gets}"),
        );
    }

    /// How much there was.
    #[cfg(test)]
    pub(super) fn so_far(&self, owner: u32) -> Duration {
        self.owners().so_far(owner)
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_an_end_that_all_who_read_know_of() {
        let work = Work::default();
        let other = work.clone();
        let steps = [
            Effort::Symbols,
            Effort::Loaded,
            Effort::Loaded,
            Effort::Nothing,
        ];
        assert_eq!(other.allows(Some(7)), Effort::All);
        for effort in steps {
            work.charge(Some(7), WORTH + Duration::from_secs(1));
            assert_eq!(other.allows(Some(7)), effort);
        }
        work.charge(None, WORTH * 9);
        assert_eq!(other.allows(None), Effort::All);
        assert_eq!(other.allows(Some(8)), Effort::All);
    }

    #[test]
    fn who_wastes_time_is_left_out_and_nobody_else() {
        let mut owners = Owners::default();
        owners.charge(Some(7), ALLOWED / 2);
        assert!(owners.may_ask(Some(7)));
        owners.charge(Some(7), ALLOWED);
        owners.charge(None, ALLOWED * 2);
        assert!(!owners.may_ask(Some(7)));
        assert!(owners.may_ask(Some(8)) && owners.may_ask(None));
        // Later.
        owners
            .0
            .insert(7, (ALLOWED, Instant::now() - Duration::from_secs(60)));
        assert!(owners.may_ask(Some(7)));
    }
}
