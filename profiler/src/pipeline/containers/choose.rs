//! What a user names of cgroups, containers, pods and units -> the hierarchy and the filter of a session.
//!
//! What is wrong with it shows here, before anything is attached. What does not belong here: cgroups that
//! are made later (`decisions`).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use rustc_hash::FxHashSet;

use super::super::signals::is_given_up;
use crate::error::{Context, Failure};
use profiler_probe::privileges::{CapabilitySet, effective, lacking, remedy};
use profiler_target::cgroup::{
    Cgroup, CgroupError, CgroupFilter, Hierarchies, Hierarchy, Version, contains,
};
use profiler_target::container::{Container, Engines, Selected, Selector, SelectorError, identify};

/// Where hierarchies are mounted.
const MOUNTS: &str = "/sys/fs/cgroup";
/// How often it is looked whether the start was given up.
const GLANCE: Duration = Duration::from_millis(50);

/// Which cgroups are to be recorded, as a user names them; all of the machine, if none is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupTargets {
    /// Cgroups themselves.
    pub paths: Vec<PathBuf>,
    /// Containers, pods and units.
    pub selectors: Vec<Selector>,
    /// It is no error that one does not exist yet.
    pub wait: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub(in crate::pipeline) struct Chosen {
    /// The hierarchy of the session.
    pub(in crate::pipeline) hierarchy: Hierarchy,
    /// What is recorded of it; none: everything.
    pub(in crate::pipeline) wanted: Option<Wanted>,
}

/// Cgroups that are recorded.
#[derive(Clone, Debug)]
pub(in crate::pipeline) struct Wanted {
    pub(in crate::pipeline) filter: CgroupFilter,
    /// Cgroups that were named themselves, whether they exist or not.
    pub(super) paths: Vec<String>,
    pub(super) selectors: Vec<Selector>,
    /// Containers that were running.
    pub(super) containers: Vec<Container>,
    /// Cgroups of containers that were there before it was asked which are meant.
    pub(super) seen: FxHashSet<String>,
    /// All of it in words.
    pub(super) text: String,
}

impl CgroupTargets {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.selectors.is_empty()
    }

    /// What is named, in words.
    pub fn parts(&self) -> impl Iterator<Item = String> + '_ {
        let paths = self.paths.iter();
        let paths = paths.map(|path| format!("cgroup {}", path.display()));
        paths.chain(self.selectors.iter().map(words))
    }

    /// Looks for what is named. None if no cgroups are mounted and none is named.
    pub(in crate::pipeline) fn choose(&self) -> Result<Option<Chosen>, Failure> {
        let hierarchies = match Hierarchies::read() {
            Ok(hierarchies) => hierarchies,
            Err(error) if self.is_empty() => {
                log::info!("processes have no containers: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if self.is_empty() {
            let hierarchy = hierarchies.primary().cloned();
            return Ok(hierarchy.map(|hierarchy| Chosen {
                hierarchy,
                wanted: None,
            }));
        }
        let mut places = Vec::new();
        for path in &self.paths {
            places.push((path, find(&hierarchies, path, self.wait)?));
        }
        let hierarchy = match (places.first(), self.selectors.is_empty()) {
            (Some((_, place)), true) => place.hierarchy.clone(),
            _ => hierarchies
                .primary()
                .ok_or(CgroupError::NotMounted)?
                .clone(),
        };
        for (path, place) in &places {
            if !is_same(&place.hierarchy, &hierarchy) {
                return Err(Failure::failed(format!(
                    "{} is in the hierarchy {}, other targets are in {}: record them one at a time, \
                     or name cgroups below {}",
                    path.display(),
                    place.hierarchy.mount.display(),
                    hierarchy.mount.display(),
                    hierarchy.mount.display(),
                )));
            }
        }
        self.choose_in(hierarchy, places.into_iter().map(|(_, place)| place))
            .map(Some)
    }

    fn choose_in(
        &self,
        hierarchy: Hierarchy,
        places: impl Iterator<Item = Place>,
    ) -> Result<Chosen, Failure> {
        // What is made from here on is new.
        let seen = match self.selectors.is_empty() {
            true => FxHashSet::default(),
            false => containers_in(&hierarchy),
        };
        let mut filter = CgroupFilter::default();
        let mut paths = Vec::new();
        for place in places {
            // A cgroup of this path that is made anew is the same to a user.
            filter.undecided = true;
            filter.wanted.extend(place.exists);
            paths.push(place.path);
        }
        let mut containers = Vec::new();
        if !self.selectors.is_empty() {
            let selected = self.select(&hierarchy)?;
            filter.undecided |= selected.undecided;
            filter.names = selected.names;
            for container in selected.containers {
                // One that has ended meanwhile may come again.
                filter
                    .wanted
                    .extend(hierarchy.cgroup(&container.identity.cgroup).ok());
                containers.push(container);
            }
        }
        if filter.wanted.is_empty() && !self.wait {
            return Err(Failure::failed(format!(
                "{} has ended; --wait waits until it is there again",
                self.text()
            )));
        }
        Ok(Chosen {
            hierarchy,
            wanted: Some(Wanted {
                filter,
                paths,
                selectors: self.selectors.clone(),
                containers,
                seen,
                text: self.text(),
            }),
        })
    }

    /// Engines are asked on a thread of its own: an event loop runs on this one, and an interrupt is heard meanwhile.
    fn select(&self, hierarchy: &Hierarchy) -> Result<Selected, Failure> {
        let (selectors, wait) = (self.selectors.clone(), self.wait);
        let hierarchy = hierarchy.clone();
        let (answer, answers) = sync_channel(1);
        let select = move || {
            let mut engines = Engines::of_this_machine();
            // Nobody waits for it any more, if it is given up.
            let _ = answer.send(Selector::select(&selectors, &hierarchy, &mut engines, wait));
        };
        let thread = std::thread::Builder::new().name("containers".to_owned());
        thread
            .spawn(select)
            .context(|| "failed to start a thread")?;
        loop {
            match answers.recv_timeout(GLANCE) {
                Ok(selected) => return selected.map_err(|error| self.unknown(&error)),
                Err(RecvTimeoutError::Timeout) if !is_given_up() => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::failed("given up while containers were looked for"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("failed to look for containers"));
                }
            }
        }
    }

    /// A name that is not known may be one that we may not read.
    fn unknown(&self, error: &SelectorError) -> Failure {
        let needed = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_PTRACE;
        let missing = lacking(needed, effective());
        let is_unit = |selector: &Selector| matches!(selector, Selector::Unit(_));
        match error {
            SelectorError::Unknown { .. }
                if !missing.is_empty() && !self.selectors.iter().all(is_unit) =>
            {
                Failure::failed(format!(
                    "{error}; names that engines keep may be out of reach: {}",
                    remedy(missing)
                ))
            }
            _ => Failure::failed(error.to_string()),
        }
    }

    fn text(&self) -> String {
        self.parts().collect::<Vec<_>>().join(", ")
    }
}

/// A cgroup that was named.
struct Place {
    hierarchy: Hierarchy,
    path: String,
    exists: Option<Cgroup>,
}

/// Where a path leads to; if it may, to where there is nothing yet.
fn find(hierarchies: &Hierarchies, path: &Path, wait: bool) -> Result<Place, Failure> {
    let mut found = hierarchies.find(path);
    let below = Path::new(MOUNTS).join(path);
    if found.is_err() && path.is_relative() {
        found = hierarchies.find(&below).or(found);
    }
    let error = match found {
        Ok((hierarchy, cgroup)) => {
            return Ok(Place {
                hierarchy: hierarchy.clone(),
                path: cgroup.path.clone(),
                exists: Some(cgroup),
            });
        }
        Err(error @ CgroupError::Missing(_)) if wait => error,
        Err(error) => return Err(error.into()),
    };
    let is_plain = |part| !matches!(part, std::path::Component::ParentDir);
    if !path.components().all(is_plain) {
        return Err(error.into());
    }
    // The nearest cgroup above it that exists tells the hierarchy.
    let full = match path.is_relative() && below.parent().is_some_and(Path::is_dir) {
        true => below,
        false => Path::new("/").join(path),
    };
    for above in full.ancestors().skip(1) {
        if full.starts_with(MOUNTS) && !above.starts_with(MOUNTS) {
            break;
        }
        let (Ok((hierarchy, cgroup)), Ok(rest)) =
            (hierarchies.find(above), full.strip_prefix(above))
        else {
            continue;
        };
        let Some(rest) = rest.to_str() else { break };
        return Ok(Place {
            hierarchy: hierarchy.clone(),
            path: format!("{}/{rest}", cgroup.path.trim_end_matches('/')),
            exists: None,
        });
    }
    Err(error.into())
}

/// Whether two are the same, wherever they are mounted.
fn is_same(one: &Hierarchy, other: &Hierarchy) -> bool {
    let is_two = |hierarchy: &Hierarchy| hierarchy.version == Version::Two;
    one.number == other.number && is_two(one) == is_two(other)
}

/// The cgroups of all containers, pods and units.
pub(super) fn containers_in(hierarchy: &Hierarchy) -> FxHashSet<String> {
    let mut seen = FxHashSet::default();
    hierarchy.walk(&mut |path| {
        if identify(path).is_some_and(|identity| identity.cgroup == path) {
            seen.insert(path.to_owned());
        }
    });
    seen
}

fn words(selector: &Selector) -> String {
    match selector {
        Selector::Container(name) => format!("container {name}"),
        Selector::Pod { namespace, name } => format!("pod {namespace}/{name}"),
        Selector::Unit(name) => format!("unit {name}"),
    }
}

impl Wanted {
    /// The paths of all that exists and is wanted, without those that are below others.
    pub(super) fn tops(&self) -> Vec<&Cgroup> {
        let all = &self.filter.wanted;
        let is_below = |one: &Cgroup, other: &Cgroup| {
            one.path != other.path && contains(&other.path, &one.path)
        };
        let top = |one: &&Cgroup| !all.iter().any(|other| is_below(one, other));
        all.iter().filter(top).collect()
    }
}
