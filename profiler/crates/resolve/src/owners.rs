//! Whose files cost how much time in vain.
//!
//! Users of the machine, and the time in which the process that reads symbols worked at files of theirs until it
//! had to be ended -> whether more of them are looked at. Who makes files that are never done with is not
//! waited for time and again; everybody else's files have their turn.
//!
//! What does not belong here: what a file is given up for (`symbolize`).

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::warnings::warn_once;

/// How much time may be lost over one user's files.
const ALLOWED: Duration = Duration::from_secs(30);
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
        owner.is_none_or(|owner| self.lost(owner) < ALLOWED)
    }

    /// So much time was lost over a file.
    pub(super) fn charge(&mut self, owner: Option<u32>, time: Duration) {
        let Some(owner) = owner else { return };
        let lost = self.lost(owner) + time;
        if lost >= ALLOWED {
            warn_once(
                "users",
                format_args!(
                    "files of user {owner} keep the symbolizer busy for nothing: no names for a while"
                ),
            );
        }
        let owner = self.key(owner);
        self.0.insert(owner, (lost, Instant::now()));
    }

    fn key(&self, owner: u32) -> u32 {
        match self.0.len() < MAX_OWNERS || self.0.contains_key(&owner) {
            true => owner,
            false => u32::MAX,
        }
    }

    fn lost(&self, owner: u32) -> Duration {
        let lost = self.0.get(&self.key(owner));
        lost.map_or(Duration::ZERO, |(lost, at)| {
            lost.saturating_sub(at.elapsed() / FORGIVEN_IN)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
