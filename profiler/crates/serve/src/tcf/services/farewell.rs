//! When clients are told that a context has ended: not before what was sampled of it has been read and named.
//!
//! Ids of contexts that were removed -> those to be told of now. A view of a profile forgets what it has
//! shown of a context when samples or names come after the event; it reads only every few seconds, and asks for names
//! when it has read. With a context its process is kept back, since clients drop the one with the other. What does
//! not belong here: the events themselves (`run_control`), what is read (`profile`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

/// How long the end of a context is kept back until its samples are read.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nobody may ask for names before it counts that they are all there. Longer than one of them is looked for.
const QUIET: Duration = Duration::from_secs(4);
/// How long the end of a context is kept back at most, whatever is asked.
const LONGEST: Duration = Duration::from_secs(30);
/// Most that are kept back.
const MAX_KEPT: usize = 10_000;

/// Contexts that have ended, and whose end clients are not told of yet.
#[derive(Debug, Default)]
pub(in crate::tcf) struct Farewells {
    /// Since when, in the order in which they ended.
    kept: BTreeMap<u64, (String, Instant)>,
    count: u64,
    /// When the last samples of a process or its threads were read, or names asked for since.
    named: FxHashMap<String, Instant>,
}

impl Farewells {
    /// The last samples of a context were read: now it is asked for names.
    pub(super) fn was_read(&mut self, id: &str, now: Instant) {
        self.named.insert(process_of(id).to_owned(), now);
    }

    /// Names of a process are asked for.
    pub(super) fn asked(&mut self, process: &str, now: Instant) {
        if let Some(last) = self.named.get_mut(process) {
            *last = now;
        }
    }

    /// What is to be told now, threads before their processes. `unread` are ids with samples that
    /// nobody has read; what has come, and has an id that is kept back, is `added`.
    pub(super) fn due<'a>(
        &mut self,
        removed: Vec<String>,
        added: impl Iterator<Item = &'a str>,
        unread: &FxHashSet<&str>,
        now: Instant,
    ) -> Vec<String> {
        self.named
            .retain(|_, last| now.saturating_duration_since(*last) < QUIET);
        if self.kept.is_empty() && unread.is_empty() && self.named.is_empty() {
            return removed;
        }
        for id in removed {
            self.count += 1;
            self.kept.insert(self.count, (id, now));
        }
        let again: FxHashSet<&str> = added.collect();
        let is_kept = |(id, since): &(String, Instant)| {
            let age = now.saturating_duration_since(*since);
            let is_unread = unread.contains(&**id) && age < PATIENCE;
            let is_named = self.named.contains_key(process_of(id)) && age < LONGEST;
            (is_unread || is_named) && !again.contains(process_of(id)) && !again.contains(&**id)
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
    fn names_are_asked_for_when_samples_were_read() {
        let mut farewells = Farewells::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let (nobody, none) = (FxHashSet::default(), std::iter::empty);
        let unread = FxHashSet::from_iter(["P2.3"]);
        // Nothing was read of it: it is not kept for its names.
        farewells.asked("P3", at(0));
        let removed = ids(&["P2.2", "P2.3", "P3.3", "P2", "P3"]);
        let due = farewells.due(removed, none(), &unread, at(0));
        assert_eq!(due, ids(&["P2.2", "P3.3", "P3"]));
        farewells.was_read("P2.3", at(5));
        for seconds in (5..30).step_by(3) {
            assert!(
                farewells
                    .due(Vec::new(), none(), &nobody, at(seconds))
                    .is_empty()
            );
            farewells.asked("P2", at(seconds));
        }
        let due = farewells.due(Vec::new(), none(), &nobody, at(30));
        assert_eq!(due, ids(&["P2.3", "P2"]), "however long it is asked for");

        farewells.was_read("P5", at(40));
        assert!(
            farewells
                .due(ids(&["P5"]), none(), &nobody, at(41))
                .is_empty()
        );
        farewells.asked("P5", at(42));
        assert!(
            farewells
                .due(Vec::new(), none(), &nobody, at(45))
                .is_empty()
        );
        let due = farewells.due(Vec::new(), none(), &nobody, at(46));
        assert_eq!(due, ids(&["P5"]), "nobody asks any more");
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
