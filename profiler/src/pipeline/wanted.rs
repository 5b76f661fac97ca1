//! The wanted cgroups of a session by their paths, as they become known.
//!
//! The filter, records of cgroups that come and go, and decisions -> whether a path is wanted, in the
//! way the kernel side decides: by the innermost cgroup that something is known of. One handle for all
//! who ask or tell. Paths are those of the session's hierarchy.
//!
//! What does not belong here: deciding (who a cgroup belongs to), the kernel's own maps (`probe`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use profiler_model::raw::{CgroupVerdict, RawCgroup};
use profiler_resolve::warn_once;
use profiler_target::cgroup::{CgroupFilter, contains};

/// Most cgroups that are known; the kernel side has room for no more.
const MAX_KNOWN: usize = profiler_common::cgroup::MAX_CGROUPS as usize;

/// The paths of the wanted cgroups, shared by all who learn of them or need to know.
#[derive(Clone, Debug)]
pub struct WantedCgroups(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Whether these are wanted, with all below.
    known: FxHashMap<Box<str>, bool>,
    /// Those that have come to be wanted, or were made below such, since somebody asked for them.
    new: Vec<Box<str>>,
    /// Names that make a new cgroup a wanted one.
    names: FxHashSet<Box<str>>,
}

impl WantedCgroups {
    /// Those of a filter.
    pub fn new(filter: &CgroupFilter) -> WantedCgroups {
        let wanted = filter.wanted.iter();
        let names = filter.names.iter();
        WantedCgroups(Arc::new(Mutex::new(State {
            known: wanted
                .map(|cgroup| (cgroup.path.as_str().into(), true))
                .collect(),
            new: Vec::new(),
            names: names.map(|name| name.as_str().into()).collect(),
        })))
    }

    /// Takes note of a cgroup that was made or removed.
    pub fn note(&self, cgroup: &RawCgroup) {
        let below = !cgroup.removed && self.contains(&cgroup.path);
        let mut state = self.state();
        if cgroup.removed {
            state.known.remove(&cgroup.path);
            return;
        }
        let name = cgroup.path.rsplit('/').next().unwrap_or_default();
        let is_waited_for = state.names.contains(name);
        if cgroup.verdict == CgroupVerdict::Wanted || is_waited_for {
            state.set(&cgroup.path, true);
        } else if cgroup.verdict == CgroupVerdict::Undecided {
            state.set(&cgroup.path, false);
        } else if below && state.new.len() < MAX_KNOWN {
            state.new.push(cgroup.path.clone());
        }
    }

    /// Takes note of what was decided of a cgroup, with all below it.
    pub fn decide(&self, path: &str, wanted: bool) {
        self.state().set(path, wanted);
    }

    /// Whether a cgroup is wanted. One that is undecided is not yet.
    pub fn contains(&self, path: &str) -> bool {
        let state = self.state();
        let mut path = path;
        loop {
            if let Some(&wanted) = state.known.get(path) {
                return wanted;
            }
            path = match path.rfind('/') {
                Some(0) if path.len() > 1 => "/",
                Some(at) if at > 0 => &path[..at],
                _ => return false,
            };
        }
    }

    /// Those that are wanted, without those below them.
    pub fn paths(&self) -> Vec<Box<str>> {
        let state = self.state();
        let wanted = state.known.iter().filter(|&(_, &wanted)| wanted);
        wanted.map(|(path, _)| path.clone()).collect()
    }

    /// Whether something below a cgroup is known not to be wanted.
    pub fn excludes_below(&self, path: &str) -> bool {
        let state = self.state();
        let mut unwanted = state.known.iter().filter(|&(_, &wanted)| !wanted);
        unwanted.any(|(other, _)| contains(path, other))
    }

    /// Those that have come to be wanted, or were made below such, since the last call.
    pub fn take_new(&self) -> Vec<Box<str>> {
        std::mem::take(&mut self.state().new)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn set(&mut self, path: &str, wanted: bool) {
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(path) {
            warn_once(
                "cgroups",
                format_args!("more than {MAX_KNOWN} cgroups: {path} is passed over"),
            );
            return;
        }
        let before = self.known.insert(path.into(), wanted);
        if wanted && before != Some(true) && self.new.len() < MAX_KNOWN {
            self.new.push(path.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_target::cgroup::Cgroup;

    fn made(path: &str, verdict: CgroupVerdict) -> RawCgroup {
        RawCgroup {
            id: 7,
            path: path.into(),
            removed: false,
            verdict,
        }
    }

    #[test]
    fn the_innermost_that_is_known_decides() {
        let wanted = WantedCgroups::new(&CgroupFilter {
            wanted: vec![Cgroup {
                path: "/docker/a".to_owned(),
                id: 1,
            }],
            names: vec!["b".to_owned()],
            undecided: true,
        });
        assert!(wanted.contains("/docker/a") && wanted.contains("/docker/a/init/x"));
        for other in ["/docker", "/docker/ab", "/", "", "/docker/b"] {
            assert!(!wanted.contains(other), "{other}");
        }
        assert!(wanted.take_new().is_empty());
        wanted.note(&made("/docker/b", CgroupVerdict::Wanted));
        wanted.note(&made("/docker/c", CgroupVerdict::Undecided));
        wanted.note(&made("/docker/d", CgroupVerdict::Inherited));
        assert!(wanted.contains("/docker/b/x") && !wanted.contains("/docker/c"));
        wanted.decide("/docker/c", true);
        wanted.decide("/docker/a/inner", false);
        assert!(wanted.contains("/docker/c/y") && !wanted.contains("/docker/a/inner/z"));
        assert_eq!(wanted.take_new(), ["/docker/b".into(), "/docker/c".into()]);
        let mut removed = made("/docker/b", CgroupVerdict::Inherited);
        removed.removed = true;
        wanted.note(&removed);
        assert!(!wanted.contains("/docker/b"));
        wanted.note(&made("/docker/a/later", CgroupVerdict::Inherited));
        assert_eq!(wanted.take_new(), ["/docker/a/later".into()]);
        assert!(!wanted.contains("/docker/d"));
    }

    #[test]
    fn the_root_is_all() {
        let wanted = WantedCgroups::new(&CgroupFilter::default());
        assert!(!wanted.contains("/a/b") && !wanted.contains("/"));
        wanted.decide("/", true);
        assert!(wanted.contains("/a/b") && wanted.contains("/"));
    }
}
