//! Which cgroup a process is in, and which container that belongs to.
//!
//! Ids and paths of cgroups -> [`Place`]s, shared by the processes that are in them, and
//! [`profiler_model::Container`]s of an epoch. An id is looked up once: in what the kernel told of new
//! cgroups, else in the file system of the hierarchy. What engines know of a container comes later, if
//! at all, and is announced again when it comes.
//!
//! Containers come and go and name themselves: all that is kept is bounded.
//!
//! What does not belong here: what a path means and what engines know (`target::container`), when
//! processes move (`events`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::intern::EpochTables;
use profiler_model::ContainerId;
use profiler_model::raw::RawCgroup;
use profiler_target::cgroup::{Hierarchy, contains};
use profiler_target::container::{self, Container, Engine, Identity};

/// Most ids of cgroups that are remembered.
const MAX_IDS: usize = 1 << 16;
/// Places and containers that nobody is in are dropped when there are more than this many, and twice
/// as many as were in use the last time.
const MIN_KEPT: usize = 4096;
/// Longest path of a cgroup, and longest text of an engine, that is kept.
const MAX_TEXT_BYTES: usize = 4096;

/// A cgroup that processes are or were in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its path.
    pub(super) path: Arc<str>,
    /// The cgroup of the container, pod or unit that it belongs to.
    container: Option<Arc<str>>,
}

/// A container that was met.
#[derive(Debug)]
struct Known {
    container: Container,
    /// Under which id it was announced last, in which epoch.
    announced: Option<(u32, ContainerId)>,
}

/// All places and containers.
#[derive(Debug)]
pub(super) struct Containers {
    hierarchy: Option<Hierarchy>,
    /// Paths by the kernel's id; none where it can't be found out.
    ids: FxHashMap<u64, Option<Arc<str>>>,
    places: FxHashMap<Arc<str>, Arc<Place>>,
    /// By its own cgroup.
    known: FxHashMap<Arc<str>, Known>,
    /// Met, and not yet asked about.
    unknown: Vec<Identity>,
    /// The same of paths that say nothing, or no more than a unit that somebody may run containers in.
    unknown_paths: Vec<Arc<str>>,
    /// Grow larger than this, and what nobody is in is dropped.
    max_places: usize,
    max_known: usize,
    pub(super) identify: fn(&str) -> Option<Identity>,
}

impl Containers {
    /// None known yet. Without a hierarchy, places have paths and no containers.
    pub(super) fn new(hierarchy: Option<Hierarchy>) -> Containers {
        Containers {
            hierarchy,
            ids: FxHashMap::default(),
            places: FxHashMap::default(),
            known: FxHashMap::default(),
            unknown: Vec::new(),
            unknown_paths: Vec::new(),
            max_places: MIN_KEPT,
            max_known: MIN_KEPT,
            identify: container::identify,
        }
    }

    /// The hierarchy that samples name cgroups of.
    pub(super) fn hierarchy(&self) -> Option<&Hierarchy> {
        self.hierarchy.as_ref()
    }

    /// The place at a path.
    pub(super) fn place(&mut self, path: &str) -> Option<Arc<Place>> {
        if path.is_empty() || path.len() > MAX_TEXT_BYTES {
            return None;
        }
        if let Some(place) = self.places.get(path) {
            return Some(place.clone());
        }
        let place = Arc::new(Place {
            path: path.into(),
            container: self.container_at(path),
        });
        if self.places.len() >= self.max_places {
            self.drop_unused_places();
        }
        self.places.insert(place.path.clone(), place.clone());
        Some(place)
    }

    /// The container that a path belongs to: as it says itself, or one that somebody has told of.
    fn container_at(&mut self, path: &str) -> Option<Arc<str>> {
        self.hierarchy.as_ref()?;
        let identity = (self.identify)(path).filter(is_bounded);
        let told = identity.as_ref().map_or(0, |found| found.cgroup.len());
        let ends = path.match_indices('/').map(|(at, _)| at);
        let ends = ends.chain([path.len()]).filter(|&end| end > told);
        let mut keys = ends.filter_map(|end| self.known.get_key_value(&path[..end]));
        if let Some((key, _)) = keys.next_back() {
            return Some(key.clone());
        }
        let is_engines = |found: &Identity| found.engine != Engine::Systemd;
        let whole = identity.as_ref().is_some_and(is_engines) || told == path.len();
        if !whole && path != "/" && self.unknown_paths.len() < MAX_IDS {
            self.unknown_paths.push(path.into());
        }
        identity.map(|identity| self.met(identity))
    }

    /// The place of a cgroup by the kernel's id, if its path can be found out.
    pub(super) fn place_of(&mut self, id: u64) -> Option<Arc<Place>> {
        if let Some(known) = self.ids.get(&id) {
            let path = known.clone()?;
            return self.place(&path);
        }
        let path = self.hierarchy.as_ref()?.path_of(id);
        let place = path.and_then(|path| self.place(&path));
        self.remember(id, place.as_ref().map(|place| place.path.clone()));
        place
    }

    /// Takes what the kernel told of a cgroup that was made or removed: its path is known from now on,
    /// for samples that are still on their way too. Nobody may ever run in it, so that it is not met
    /// yet.
    pub(super) fn learn(&mut self, cgroup: &RawCgroup) {
        let known = matches!(self.ids.get(&cgroup.id), Some(Some(_)));
        if self.hierarchy.is_none() || known || !is_short(&cgroup.path) {
            return;
        }
        let path = match self.places.get_key_value(&*cgroup.path) {
            Some((path, _)) => path.clone(),
            None => cgroup.path.as_ref().into(),
        };
        self.remember(cgroup.id, Some(path));
    }

    /// Takes what an engine knows of a container. One that was announced before is announced again.
    /// Gives the places that are now said to belong to it, if their paths had not told.
    pub(super) fn describe(
        &mut self,
        container: &Container,
        epoch: &mut EpochTables,
    ) -> Vec<Arc<Place>> {
        if !is_bounded(&container.identity) || !texts(container).all(is_short) {
            return Vec::new();
        }
        let cgroup = container.identity.cgroup.as_str();
        let known = self.known.get_key_value(cgroup);
        let (key, new): (Arc<str>, bool) = match known {
            Some((_, known)) if known.container == *container => return Vec::new(),
            Some((key, _)) => (key.clone(), false),
            None => (cgroup.into(), true),
        };
        self.drop_known();
        let known = self.known.entry(key.clone()).or_insert_with(|| Known {
            container: container.clone(),
            announced: None,
        });
        known.container = container.clone();
        if known.announced.take().is_some() {
            self.announce(&key, epoch);
        }
        match new {
            true => self.take_in(&key),
            false => Vec::new(),
        }
    }

    /// Places below a container that was not known when they were met.
    fn take_in(&mut self, key: &Arc<str>) -> Vec<Arc<Place>> {
        let inner = |place: &Place| {
            let outer = place.container.as_ref();
            contains(key, &place.path) && outer.is_none_or(|outer| outer.len() < key.len())
        };
        let places = self.places.values_mut().filter(|place| inner(place));
        let places = places.map(|place| {
            *place = Arc::new(Place {
                path: place.path.clone(),
                container: Some(key.clone()),
            });
            place.clone()
        });
        places.collect()
    }

    /// Containers that were met since the last call.
    pub(super) fn take_unknown(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.unknown)
    }

    /// The same of cgroups that may be a container's though their paths don't say so.
    pub(super) fn take_unknown_paths(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.unknown_paths)
    }

    /// The container that a place belongs to, announced in this epoch if need be.
    pub(super) fn announce_of(
        &mut self,
        place: &Place,
        epoch: &mut EpochTables,
    ) -> Option<ContainerId> {
        let key = place.container.as_ref()?;
        self.announce(key, epoch)
    }

    /// Everything is announced anew, to somebody who knows nothing.
    pub(super) fn forget_announcements(&mut self) {
        for known in self.known.values_mut() {
            known.announced = None;
        }
    }

    fn announce(&mut self, key: &Arc<str>, epoch: &mut EpochTables) -> Option<ContainerId> {
        let known = self.known.get_mut(key)?;
        if let Some((number, id)) = known.announced
            && number == epoch.number
        {
            return Some(id);
        }
        let container = &known.container;
        let identity = &container.identity;
        let mut string = |text: &Option<String>| text.as_deref().map(|text| epoch.string(text));
        let definition = profiler_model::Container {
            id: string(&identity.id),
            name: string(&container.name),
            image: string(&container.image),
            pod: string(&container.pod),
            namespace: string(&container.namespace),
            unit: string(&identity.unit),
            engine: Some(epoch.string(container.engine.name())),
            cgroup: epoch.string(&identity.cgroup),
        };
        let id = epoch.container(definition);
        known.announced = Some((epoch.number, id));
        Some(id)
    }

    /// A container's own cgroup, as the key that all its places share.
    fn met(&mut self, identity: Identity) -> Arc<str> {
        if let Some((key, _)) = self.known.get_key_value(&*identity.cgroup) {
            return key.clone();
        }
        self.drop_known();
        let key: Arc<str> = identity.cgroup.as_str().into();
        // Of a unit, the path says all there is to know.
        if identity.engine != Engine::Systemd && self.unknown.len() < MAX_IDS {
            self.unknown.push(identity.clone());
        }
        let known = Known {
            container: Container::new(identity),
            announced: None,
        };
        self.known.insert(key.clone(), known);
        key
    }

    fn remember(&mut self, id: u64, path: Option<Arc<str>>) {
        if self.ids.len() >= MAX_IDS {
            self.drop_unused_places();
            let places = &self.places;
            self.ids.retain(|_, path| {
                let path = path.as_ref();
                path.is_some_and(|path| places.contains_key(path))
            });
            if self.ids.len() >= MAX_IDS / 2 {
                // Those that are met again are looked up again.
                self.ids.clear();
            }
        }
        self.ids.insert(id, path);
    }

    fn drop_unused_places(&mut self) {
        self.places.retain(|_, place| Arc::strong_count(place) > 1);
        self.max_places = (self.places.len() * 2).max(MIN_KEPT);
    }

    fn drop_known(&mut self) {
        if self.known.len() >= self.max_known {
            self.known.retain(|key, _| Arc::strong_count(key) > 1);
            self.max_known = (self.known.len() * 2).max(MIN_KEPT);
        }
    }

    /// How many ids, places and containers are remembered.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.ids.len(), self.places.len(), self.known.len())
    }
}

fn is_short(text: &str) -> bool {
    text.len() <= MAX_TEXT_BYTES
}

fn is_bounded(identity: &Identity) -> bool {
    let texts = [
        &identity.id,
        &identity.name,
        &identity.pod_uid,
        &identity.unit,
    ];
    let mut texts = texts.into_iter().flatten();
    is_short(&identity.cgroup) && texts.all(|text| is_short(text))
}

fn texts(container: &Container) -> impl Iterator<Item = &str> {
    let texts = [
        &container.name,
        &container.image,
        &container.pod,
        &container.namespace,
    ];
    texts.into_iter().flatten().map(String::as_str)
}
