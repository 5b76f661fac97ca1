//! Which cgroups are wanted, as far as that is known: those that were named, and those that are made
//! while it is recorded.
//!
//! Records of cgroups and descriptions of containers -> [`Step`]s that are to be done, and the fate of
//! samples. Times are nanoseconds of CLOCK_MONOTONIC. Nothing here asks or tells anybody.
//!
//! What does not belong here: events that wait (`undecided_events`), what names mean (`target::container`).

use rustc_hash::{FxHashMap, FxHashSet};

use super::undecided_events::{Fate, Place};
use profiler_model::Timestamp;
use profiler_model::raw::{CgroupVerdict, RawCgroup};
use profiler_target::cgroup::{Cgroup, contains};
use profiler_target::container::{Container, Engine, Identity, Selector};

/// How long it may take to find out whether a cgroup is wanted.
pub(super) const PATIENCE_NS: u64 = 2_000_000_000;
/// How long a cgroup that was removed is remembered: its last samples are on their way.
const REMOVED_NS: u64 = 10_000_000_000;
/// Most cgroups that are remembered. More than that are not wanted.
const MAX_KNOWN: usize = 1 << 14;

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The kernel side is to be told whether a cgroup is wanted.
    Decide(u64, bool),
    /// A container is to be described.
    Ask(Identity),
    /// The cgroup at a path is wanted, with all below; its id is not known here.
    Admit(String),
}

/// What is known of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wanted,
    Unwanted,
    Undecided,
    /// It took too long to find out.
    GivenUp,
}

#[derive(Debug)]
struct Known {
    path: Box<str>,
    verdict: Verdict,
    met: Timestamp,
    removed: Option<Timestamp>,
    /// The cgroup of the container that is to be described first.
    container: Option<Box<str>>,
}

/// What was found of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pending,
    Unwanted,
}

/// Whether a container is wanted; none: that can't be said of what is known of it.
type Judge = dyn Fn(&Container) -> Option<bool>;

/// What containers mean.
pub(super) struct Meaning {
    /// Which one a path belongs to.
    pub(super) identify: fn(&str) -> Option<Identity>,
    pub(super) judge: Box<Judge>,
}

impl Meaning {
    /// What selectors mean.
    pub(super) fn of(selectors: Vec<Selector>) -> Meaning {
        Meaning {
            identify: profiler_target::container::identify,
            judge: Box::new(move |container| {
                let mut all = selectors.iter();
                if all.any(|selector| selector.matches(container)) {
                    return Some(true);
                }
                let mut all = selectors.iter();
                (!all.any(|selector| may_match(selector, container))).then_some(false)
            }),
        }
    }
}

/// Whether a selector that does not match might, if more were known of a container.
fn may_match(selector: &Selector, container: &Container) -> bool {
    let identity = &container.identity;
    if identity.unit.is_some() {
        return false;
    }
    let is_pod = identity.id.is_none() && identity.pod_uid.is_some();
    match selector {
        Selector::Container(_) => container.name.is_none() && !is_pod,
        Selector::Pod { .. } => {
            let in_pods = !matches!(
                container.engine,
                Engine::Docker | Engine::Lxc | Engine::Nspawn | Engine::Systemd
            );
            let named = container.name.is_some() && identity.pod_uid.is_none();
            in_pods && container.pod.is_none() && !named
        }
        Selector::Unit(_) => false,
    }
}

/// What is known of cgroups: wanted, not wanted, or still to be found out.
pub(super) struct Decisions {
    meaning: Meaning,
    /// Cgroups that were named themselves.
    paths: Vec<String>,
    /// Ids of containers that were wanted once: one that is started again need not be asked about.
    ids: FxHashSet<String>,
    /// Cgroups that are wanted, with all below.
    wanted: FxHashSet<Box<str>>,
    /// Those of them that exist, by id.
    living: FxHashMap<u64, Box<str>>,
    known: FxHashMap<u64, Known>,
    containers: FxHashMap<Box<str>, Outcome>,
    come: bool,
}

impl Decisions {
    /// Named are `paths` and whatever has a meaning. What exists is to be admitted.
    pub(super) fn new(meaning: Meaning, paths: Vec<String>) -> Decisions {
        Decisions {
            meaning,
            paths,
            ids: FxHashSet::default(),
            wanted: FxHashSet::default(),
            living: FxHashMap::default(),
            known: FxHashMap::default(),
            containers: FxHashMap::default(),
            come: false,
        }
    }

    /// A cgroup exists and is wanted.
    pub(super) fn admit(&mut self, cgroup: &Cgroup) {
        self.come = true;
        self.wanted.insert(cgroup.path.as_str().into());
        self.living.insert(cgroup.id, cgroup.path.as_str().into());
        if let Some(known) = self.known.get_mut(&cgroup.id) {
            known.verdict = Verdict::Wanted;
        }
    }

    /// A container is wanted, also when it is started again.
    pub(super) fn remember(&mut self, container: &Container) {
        self.ids.extend(container.identity.id.clone());
    }

    /// A cgroup was made.
    pub(super) fn made(&mut self, at: Timestamp, cgroup: &RawCgroup, steps: &mut Vec<Step>) {
        let (id, path) = (cgroup.id, &*cgroup.path);
        if self.known.len() >= MAX_KNOWN {
            self.known.retain(|_, known| known.removed.is_none());
        }
        if self.known.len() >= MAX_KNOWN && cgroup.verdict == CgroupVerdict::Undecided {
            steps.push(Step::Decide(id, false));
            return;
        }
        let (verdict, container) = match cgroup.verdict {
            CgroupVerdict::Inherited => return,
            CgroupVerdict::Wanted if self.is_misnamed(path) => {
                steps.push(Step::Decide(id, false));
                (Verdict::Unwanted, None)
            }
            CgroupVerdict::Wanted => (Verdict::Wanted, None),
            CgroupVerdict::Undecided => {
                let (verdict, container) = self.look_at(path, steps);
                match verdict {
                    Verdict::Wanted => steps.push(Step::Decide(id, true)),
                    Verdict::Unwanted => steps.push(Step::Decide(id, false)),
                    Verdict::Undecided | Verdict::GivenUp => {}
                }
                (verdict, container)
            }
        };
        if verdict == Verdict::Wanted {
            self.come = true;
            if self.is_below_wanted(path).is_none() {
                self.wanted.insert(path.into());
                self.living.insert(id, path.into());
            } else if self.wanted.contains(path) {
                // Removed and made again, or its container was known before its cgroup.
                self.living.insert(id, path.into());
            }
        }
        self.known.insert(
            id,
            Known {
                path: path.into(),
                verdict,
                met: at,
                removed: None,
                container,
            },
        );
    }

    /// A sample came of a cgroup whose making nobody told, and whose path can't be found out.
    pub(super) fn nameless(&mut self, at: Timestamp, id: u64) {
        if self.known.len() < MAX_KNOWN {
            self.known.insert(
                id,
                Known {
                    path: "".into(),
                    verdict: Verdict::Undecided,
                    met: at,
                    removed: None,
                    container: None,
                },
            );
        }
    }

    /// A cgroup that is there was not known until now: as if it had been made.
    pub(super) fn found(&mut self, path: &str, steps: &mut Vec<Step>) {
        if self.is_below_wanted(path).is_some() {
            return;
        }
        if let (Verdict::Wanted, _) = self.look_at(path, steps) {
            steps.push(Step::Admit(path.to_owned()));
        }
    }

    /// A cgroup was removed.
    pub(super) fn removed(&mut self, at: Timestamp, id: u64) {
        if let Some(known) = self.known.get_mut(&id) {
            known.removed = Some(at);
            if self.containers.get(&known.path) == Some(&Outcome::Unwanted) {
                self.containers.remove(&known.path);
            }
        }
        if let Some(path) = self.living.remove(&id)
            && !self.living.values().any(|living| *living == path)
        {
            self.wanted.remove(&path);
        }
    }

    /// A container was described.
    pub(super) fn answered(&mut self, container: &Container, steps: &mut Vec<Step>) {
        let own = container.identity.cgroup.as_str();
        let Some(&outcome) = self.containers.get(own) else {
            return;
        };
        let wanted = match (self.meaning.judge)(container) {
            Some(wanted) => wanted,
            None => return,
        };
        if !wanted && outcome == Outcome::Unwanted {
            return;
        }
        if wanted {
            self.remember(container);
            self.containers.remove(own);
        } else {
            self.containers.insert(own.into(), Outcome::Unwanted);
        }
        let mut exists = false;
        for (&id, known) in &mut self.known {
            if known.container.as_deref() != Some(own)
                || !wanted && known.verdict != Verdict::Undecided
            {
                continue;
            }
            known.verdict = match wanted {
                true => Verdict::Wanted,
                false => Verdict::Unwanted,
            };
            if known.removed.is_none() {
                steps.push(Step::Decide(id, wanted));
                if wanted && &*known.path == own {
                    exists = true;
                    self.living.insert(id, own.into());
                }
            }
            self.come |= wanted;
        }
        if exists {
            self.wanted.insert(own.into());
        } else if wanted {
            steps.push(Step::Admit(own.to_owned()));
        }
    }

    /// Gives up what is undecided for too long. The paths of it.
    pub(super) fn give_up(&mut self, now: Timestamp, steps: &mut Vec<Step>) -> Vec<String> {
        let mut paths = Vec::new();
        for (&id, known) in &mut self.known {
            if known.verdict == Verdict::Undecided && now.since(known.met) >= PATIENCE_NS {
                known.verdict = Verdict::GivenUp;
                paths.push(known.path.to_string());
                if known.removed.is_none() {
                    steps.push(Step::Decide(id, false));
                }
            }
        }
        paths
    }

    /// Forgets what was removed a while ago.
    pub(super) fn tidy(&mut self, now: Timestamp) {
        let before = self.known.len();
        self.known.retain(|_, known| {
            known
                .removed
                .is_none_or(|removed| now.since(removed) < REMOVED_NS)
        });
        if self.known.len() < before {
            let used: FxHashSet<&str> = self
                .known
                .values()
                .filter_map(|known| known.container.as_deref())
                .collect();
            self.containers.retain(|own, _| used.contains(&**own));
        }
    }

    /// What becomes of what a thread did there; none if nothing is known of its cgroup.
    pub(super) fn fate(&self, place: Place) -> Option<Fate> {
        match self.known.get(&place.cgroup) {
            Some(known) => Some(match known.verdict {
                Verdict::Wanted => Fate::Keep,
                Verdict::Unwanted => Fate::Drop,
                Verdict::GivenUp => Fate::Lose,
                Verdict::Undecided => Fate::Wait,
            }),
            None => (!place.undecided).then_some(Fate::Keep),
        }
    }

    /// Whether the cgroup at a path is wanted; none: that is not known yet.
    pub(super) fn wants(&self, path: &str) -> Option<bool> {
        if self.is_below_wanted(path).is_some() {
            return Some(true);
        }
        let undecided = |known: &Known| {
            known.verdict == Verdict::Undecided
                && known.removed.is_none()
                && !known.path.is_empty()
                && contains(&known.path, path)
        };
        (!self.known.values().any(undecided)).then_some(false)
    }

    /// Whether anything that is wanted has been there.
    pub(super) fn has_come(&self) -> bool {
        self.come
    }

    /// Whether anything that is wanted is there.
    pub(super) fn is_there(&self) -> bool {
        !self.living.is_empty()
    }

    /// The path of a cgroup that was made and is there.
    pub(super) fn path_of(&self, id: u64) -> Option<&str> {
        let known = self.known.get(&id)?;
        known.removed.is_none().then_some(&known.path)
    }

    /// What is to be thought of a cgroup by its path, and the container that decides it.
    fn look_at(&mut self, path: &str, steps: &mut Vec<Step>) -> (Verdict, Option<Box<str>>) {
        if self.is_below_wanted(path).is_some() || self.paths.iter().any(|named| named == path) {
            return (Verdict::Wanted, None);
        }
        let Some(identity) = (self.meaning.identify)(path) else {
            return self.look_at_unknown(path);
        };
        let own: Box<str> = identity.cgroup.as_str().into();
        match self.containers.get(&own) {
            Some(Outcome::Pending) => return (Verdict::Undecided, Some(own)),
            Some(Outcome::Unwanted) => return (Verdict::Unwanted, Some(own)),
            None => {}
        }
        let again = identity.id.as_ref().is_some_and(|id| self.ids.contains(id));
        let container = Container::new(identity);
        match (self.meaning.judge)(&container) {
            _ if again => (Verdict::Wanted, None),
            Some(true) => (Verdict::Wanted, None),
            Some(false) => (Verdict::Unwanted, None),
            None => {
                self.containers.insert(own.clone(), Outcome::Pending);
                steps.push(Step::Ask(container.identity));
                (Verdict::Undecided, Some(own))
            }
        }
    }

    /// A cgroup that no engine makes: it may be in one that is undecided, or have the name that a
    /// runtime without an engine gives to a container.
    fn look_at_unknown(&self, path: &str) -> (Verdict, Option<Box<str>>) {
        let mut around = self.known.values().filter(|known| {
            known.verdict == Verdict::Undecided
                && !known.path.is_empty()
                && contains(&known.path, path)
        });
        if let Some(around) = around.next() {
            return (Verdict::Undecided, around.container.clone());
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let container = Container::new(Identity {
            cgroup: path.to_owned(),
            engine: Engine::Oci,
            id: Some(name.to_owned()),
            name: None,
            pod_uid: None,
            unit: None,
        });
        match (self.meaning.judge)(&container) {
            Some(true) => (Verdict::Wanted, None),
            _ => (Verdict::Unwanted, None),
        }
    }

    /// Whether a cgroup that has a name that is waited for belongs to something else: a container may
    /// name what it makes inside of itself as it likes.
    fn is_misnamed(&self, path: &str) -> bool {
        let Some(identity) = (self.meaning.identify)(path) else {
            return false;
        };
        let again = identity.id.as_ref().is_some_and(|id| self.ids.contains(id));
        let nested = identity.cgroup != path;
        let judged = (self.meaning.judge)(&Container::new(identity));
        !again && (judged == Some(false) || nested && judged.is_none())
    }

    /// The wanted cgroup that is at a path or above it.
    fn is_below_wanted(&self, path: &str) -> Option<&str> {
        let mut above = path;
        loop {
            if let Some(found) = self.wanted.get(above) {
                return Some(found);
            }
            above = match above.rfind('/') {
                Some(0) if above.len() > 1 => "/",
                Some(at) if at > 0 => &above[..at],
                _ => return None,
            };
        }
    }
}

#[cfg(test)]
mod tests;
