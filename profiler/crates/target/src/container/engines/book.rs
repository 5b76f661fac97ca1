//! What the engines of root, or of one user, say of containers: files first, then sockets.
//!
//! Identities -> [`Facts`]. Where engines have their files, and lists of containers, are believed for a while; what
//! has not changed is not read again.
//!
//! What does not belong here: whose word counts (`users`), where the places are (`places`).

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::files::{self, Found, Root};
use super::kubelet::Kubelet;
use super::places::{Place, Places, Whose};
use super::sockets::Sockets;
use super::{Facts, containerd, docker, http, oci, podman, services};
use crate::cgroup::contains;
use crate::container::{Engine, Identity};

/// How long it is believed where engines have their files.
const PLACES_FOR: Duration = Duration::from_secs(10);
/// The same when there is a container that none of them knows: an engine may have been started since.
pub(super) const PLACES_FOR_STRANGERS: Duration = Duration::from_millis(500);
/// How long lists of containers are believed.
pub(super) const LISTS_FOR: Duration = Duration::from_millis(200);

/// Of the time, reading lists takes one part of so many.
const SHARE: u32 = 10;

/// What root's engines say, or a user's.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) root: Root,
    pub(super) whose: Whose,
    sockets: Sockets,
    places: Option<(Instant, Places)>,
    lists: Option<(Instant, Lists)>,
    /// How long it took to read them.
    took: Duration,
    /// There was more than may be read.
    partial: bool,
    states: Found<Vec<String>>,
    stored: Found<Vec<(String, Facts)>>,
}

/// What is read of all containers at once.
#[derive(Debug, Default)]
struct Lists {
    storages: HashMap<String, Facts>,
    kubelet: Kubelet,
    /// Ids by cgroup, of containers of runtimes.
    runtimes: HashMap<String, String>,
}

impl Book {
    pub(super) fn new(root: Root, whose: Whose) -> Book {
        let sockets = match whose {
            Whose::Roots { .. } => Sockets::default(),
            Whose::User(_) => Sockets::of_a_user(),
        };
        Book {
            root,
            whose,
            sockets,
            places: None,
            lists: None,
            took: Duration::ZERO,
            partial: false,
            states: Found::default(),
            stored: Found::default(),
        }
    }

    /// Whether there is more than was read.
    pub(super) fn is_over(&self) -> bool {
        self.partial || self.root.is_over()
    }

    /// Ids by cgroup, of containers of runtimes.
    pub(super) fn runtimes(&mut self) -> &HashMap<String, String> {
        &self.refresh().1.runtimes
    }

    /// What is known of containers, each in its place.
    pub(super) fn look(&mut self, identities: &[Identity]) -> Vec<Facts> {
        let mut facts = self.look_once(identities);
        let is_stranger = |(identity, facts): (&Identity, &Facts)| {
            identity.id.is_some() && facts.is_incomplete() && facts.name.is_none()
        };
        if identities.iter().zip(&facts).any(is_stranger)
            && (self.places.as_ref()).is_some_and(|(at, _)| at.elapsed() >= PLACES_FOR_STRANGERS)
        {
            self.places = None;
            self.lists = None;
            facts = self.look_once(identities);
        }
        facts
    }

    /// What files say and, where they don't say all, sockets.
    fn look_once(&mut self, identities: &[Identity]) -> Vec<Facts> {
        self.refresh();
        let (Some((_, places)), Some((_, lists))) = (&self.places, &self.lists) else {
            return vec![Facts::default(); identities.len()];
        };
        let mut facts: Vec<Facts> = identities
            .iter()
            .map(|identity| from_files(&self.root, identity, places, lists))
            .collect();
        ask_sockets(&mut self.sockets, places, identities, &mut facts);
        facts
    }

    /// What is read at once, anew if it is old.
    fn refresh(&mut self) -> (&Places, &Lists) {
        let is_young = |at: &Instant, lifetime| at.elapsed() < lifetime;
        let places = self
            .places
            .take()
            .filter(|(at, _)| is_young(at, PLACES_FOR));
        let places = places.unwrap_or_else(|| {
            let places = Places::find(&self.root, self.whose);
            (Instant::now(), places)
        });
        // Long lists are read less often.
        let lists_for = LISTS_FOR.max(self.took * SHARE);
        let lists = self.lists.take().filter(|(at, _)| is_young(at, lists_for));
        let lists = lists.unwrap_or_else(|| {
            let began = Instant::now();
            let lists = self.read(&places.1);
            (self.took, self.partial) = (began.elapsed(), self.root.is_over());
            (Instant::now(), lists)
        });
        (&self.places.insert(places).1, &self.lists.insert(lists).1)
    }

    fn read(&mut self, places: &Places) -> Lists {
        let mut lists = Lists::default();
        if let Whose::Roots { .. } = self.whose {
            lists.kubelet = Kubelet::read(&self.root);
        }
        for storage in &places.storages {
            for (id, facts) in podman::from_list(&self.root, storage, &mut self.stored) {
                lists.storages.entry(id).or_default().fill(facts);
            }
        }
        for folder in &places.runtimes {
            oci::read(&self.root, folder, &mut self.states, &mut lists.runtimes);
        }
        self.states.end_round();
        self.stored.end_round();
        lists
    }
}

/// Asks those who may know more than files say.
fn ask_sockets(
    sockets: &mut Sockets,
    places: &Places,
    identities: &[Identity],
    facts: &mut [Facts],
) {
    let rounds: [(Vec<Engine>, &[Place]); 5] = [
        (vec![Engine::Docker], &places.docker_sockets),
        (vec![Engine::Podman], &places.podman_sockets),
        (vec![Engine::CriO], &places.crio_sockets),
        (vec![Engine::Containerd], &places.containerd_sockets),
        (vec![], &places.cri_sockets),
    ];
    for (engines, found) in rounds {
        for Place { path, within } in found {
            // Whom is it worth to ask for? Where no file says more, anybody may know.
            let open: Vec<(usize, &str)> = (identities.iter().zip(facts.iter()).enumerate())
                .filter(|(_, (identity, facts))| {
                    let engine = facts.engine.unwrap_or(identity.engine);
                    let may_know = engine == Engine::Oci || engines.contains(&engine);
                    may_know && facts.is_incomplete() && contains(within, &identity.cgroup)
                })
                .filter_map(|(index, (identity, _))| Some((index, identity.id.as_deref()?)))
                .filter(|(_, id)| files::is_plain(id))
                .collect();
            if open.is_empty() {
                continue;
            }
            let ids: Vec<&str> = open.iter().map(|&(_, id)| id).collect();
            let found = match engines.first() {
                Some(&engine @ (Engine::Docker | Engine::Podman)) => {
                    ask_docker(sockets, path, engine, &ids)
                }
                engine => services::ask(sockets, path, engine.copied(), &ids),
            };
            for (index, id) in open {
                if let Some(found) = found.get(id) {
                    facts[index].fill(found.clone());
                }
            }
        }
    }
}

/// By Docker's API: a list, or for one container what is known of it.
fn ask_docker(
    sockets: &mut Sockets,
    socket: &Path,
    engine: Engine,
    ids: &[&str],
) -> HashMap<String, Facts> {
    let found = match ids {
        [id] => {
            let answer = http::get(sockets, socket, &format!("/containers/{id}/json"));
            let found = answer.and_then(|answer| docker::from_inspection(&answer, engine));
            found.map(|found| vec![found])
        }
        _ => {
            let answer = http::get(sockets, socket, "/containers/json?all=1");
            answer.and_then(|answer| docker::from_list(&answer, engine))
        }
    };
    found.into_iter().flatten().collect()
}

/// What files say of a container.
fn from_files(root: &Root, identity: &Identity, places: &Places, lists: &Lists) -> Facts {
    let mut facts = Facts::default();
    if let Some(id) = identity.id.as_deref().filter(|id| files::is_plain(id)) {
        let engine = identity.engine;
        let may_be = |other: Engine| engine == other || engine == Engine::Oci;
        let about_it = |place: &&Place| contains(&place.within, &identity.cgroup);
        if may_be(Engine::Docker) {
            let mut folders = places.docker.iter().filter(about_it);
            let found = folders.find_map(|folder| docker::from_file(root, &folder.path, id));
            facts.fill(found.unwrap_or_default());
        }
        if may_be(Engine::Containerd) && facts.name.is_none() {
            let mut tasks = places.tasks.iter().filter(about_it);
            let found = tasks.find_map(|folder| containerd::from_task(root, &folder.path, id));
            facts.fill(found.unwrap_or_default());
        }
        if may_be(Engine::CriO) {
            let mut storages = places.storages.iter();
            let found = storages.find_map(|folder| podman::from_annotations(root, folder, id));
            facts.fill(found.unwrap_or_default());
        }
        if may_be(Engine::Podman) || may_be(Engine::CriO) {
            facts.fill(lists.storages.get(id).cloned().unwrap_or_default());
        }
        facts.unfold();
        let logged = lists.kubelet.containers.get(id).cloned();
        facts.fill(logged.unwrap_or_default());
    }
    let uid = identity.pod_uid.as_ref().or(facts.pod_uid.as_ref());
    let pod = uid.and_then(|uid| lists.kubelet.pods.get(uid)).cloned();
    facts.fill(pod.unwrap_or_default());
    facts
}
