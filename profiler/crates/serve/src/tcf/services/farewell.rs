//! When clients are told that a context has ended: not before what was sampled of it has been read.
//!
//! Ids of contexts that were removed -> those to be told of now. A view of a profile forgets what it has
//! shown of a context when samples come after the event, and it reads only every few seconds. With a
//! context its process is kept back, since clients drop the one with the other. What does not belong
//! here: the events themselves (`run_control`), what is read (`profile`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

/// How long the end of a context is kept back at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most that are kept back.
const MAX_KEPT: usize = 10_000;

/// Contexts that have ended, and whose end clients are not told of yet.
#[derive(Debug, Default)]
pub(in crate::tcf) struct Farewells {
    /// Since when, in the order in which they ended.
    kept: BTreeMap<u64, (String, Instant)>,
    count: u64,
}

impl Farewells {
    /// What is to be told now, threads before their processes. `unread` are ids with samples that
    /// nobody has read; what has come, and has an id that is kept back, is `added`.
    pub(super) fn due<'a>(
        &mut self,
        removed: Vec<String>,
        added: impl Iterator<Item = &'a str>,
        unread: &FxHashSet<&str>,
        now: Instant,
    ) -> Vec<String> {
        if self.kept.is_empty() && unread.is_empty() {
            return removed;
        }
        for id in removed {
            self.count += 1;
            self.kept.insert(self.count, (id, now));
        }
        let again: FxHashSet<&str> = added.collect();
        let is_kept = |(id, since): &(String, Instant)| {
            unread.contains(&**id)
                && now.saturating_duration_since(*since) < PATIENCE
                && !again.contains(process_of(id))
                && !again.contains(&**id)
        };
        let threads = self.kept.values().filter(|one| is_kept(one));
        let with: FxHashSet<String> = threads.map(|(id, _)| process_of(id).to_owned()).collect();
        let mut room = MAX_KEPT;
        let mut due = Vec::new();
        self.kept.retain(|_, one| {
            let stays = room > 0 && (is_kept(one) || with.contains(&one.0));
            room -= usize::from(stays);
            if !stays {
                due.push(std::mem::take(&mut one.0));
            }
            stays
        });
        due
    }
}

/// Its own id, if it is no thread's.
fn process_of(id: &str) -> &str {
    id.split_once('.').map_or(id, |(process, _)| process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[test]
    fn what_was_not_read_is_there_still() {
        let mut farewells = Farewells::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let (nobody, none) = (FxHashSet::default(), std::iter::empty);
        let due = farewells.due(ids(&["P1.1", "P1"]), none(), &nobody, at(0));
        assert_eq!(due, ids(&["P1.1", "P1"]));
        let unread = FxHashSet::from_iter(["P2.3", "P4"]);
        let removed = ids(&["P2.2", "P2.3", "P4.4", "P2", "P4"]);
        let due = farewells.due(removed, none(), &unread, at(1));
        assert_eq!(
            due,
            ids(&["P2.2", "P4.4"]),
            "a process stays with its thread"
        );
        assert!(farewells.due(Vec::new(), none(), &unread, at(2)).is_empty());
        let unread = FxHashSet::from_iter(["P4"]);
        let due = farewells.due(ids(&["P5"]), none(), &unread, at(3));
        assert_eq!(due, ids(&["P2.3", "P2", "P5"]));
        assert!(
            farewells
                .due(Vec::new(), none(), &unread, at(10))
                .is_empty()
        );
        let due = farewells.due(Vec::new(), none(), &unread, at(11));
        assert_eq!(due, ids(&["P4"]), "nobody has read it");
    }

    #[test]
    fn an_id_that_is_there_again_was_removed_before() {
        let mut farewells = Farewells::default();
        let now = Instant::now();
        let unread = FxHashSet::from_iter(["P7", "P7.8"]);
        let removed = ids(&["P7.8", "P7"]);
        assert!(
            farewells
                .due(removed, std::iter::empty(), &unread, now)
                .is_empty()
        );
        let due = farewells.due(Vec::new(), ["P7"].into_iter(), &unread, now);
        assert_eq!(due, ids(&["P7.8", "P7"]));
    }

    #[test]
    fn only_so_many_are_kept_back() {
        let mut farewells = Farewells::default();
        let all: Vec<String> = (0..MAX_KEPT + 5).map(|at| format!("P{at}")).collect();
        let unread: FxHashSet<&str> = all.iter().map(String::as_str).collect();
        let due = farewells.due(all.clone(), std::iter::empty(), &unread, Instant::now());
        assert_eq!(due, all[MAX_KEPT..]);
    }
}
