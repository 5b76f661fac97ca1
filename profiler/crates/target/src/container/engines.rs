//! What engines know of their containers: files first, then sockets.
//!
//! [`Identity`]s -> [`Container`]s. What the files of root's engines say is believed before what users'
//! own say. Everything is bounded: 4 MiB per file or answer, a second per call.
//!
//! What does not belong here: what a path says by itself (`identify`), whom to ask for (`select`).

mod containerd;
mod daemons;
mod docker;
mod files;
mod http;
mod kubelet;
mod oci;
mod podman;
#[cfg_attr(not(feature = "engines"), path = "engines/no_services.rs")]
mod services;
mod sockets;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::daemons::Daemons;
use self::files::Root;
use self::kubelet::Kubelet;
use self::sockets::Sockets;
use super::{Container, Engine, Identity, identify};

/// How long it is believed where engines have their files.
const PLACES_FOR: Duration = Duration::from_secs(10);
/// The same when there is a container that none of them knows: an engine may have been started since.
const PLACES_FOR_STRANGERS: Duration = Duration::from_millis(500);
/// How long lists of containers are believed.
const LISTS_FOR: Duration = Duration::from_millis(200);

/// The engines of this machine. Asking them may take time: not for the thread of a session, and not for
/// one that runs futures.
#[derive(Debug)]
pub struct Engines {
    root: Root,
    is_machine: bool,
    sockets: Sockets,
    places: Option<(Instant, Places)>,
    lists: Option<(Instant, Lists)>,
}

/// Where engines have their files and sockets.
#[derive(Debug, Default)]
struct Places {
    docker: Vec<PathBuf>,
    docker_sockets: Vec<PathBuf>,
    storages: Vec<PathBuf>,
    podman_sockets: Vec<PathBuf>,
    tasks: Vec<PathBuf>,
    containerd_sockets: Vec<PathBuf>,
    crio_sockets: Vec<PathBuf>,
    /// Whoever else may speak Kubernetes' language.
    cri_sockets: Vec<PathBuf>,
    runtimes: Vec<oci::Folder>,
}

/// What is read of all containers at once.
#[derive(Debug, Default)]
struct Lists {
    storages: HashMap<String, Facts>,
    kubelet: Kubelet,
    /// Ids by cgroup, of containers of runtimes.
    runtimes: HashMap<String, String>,
}

/// What somebody says of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    engine: Option<Engine>,
    name: Option<String>,
    image: Option<String>,
    pod: Option<String>,
    namespace: Option<String>,
    pod_uid: Option<String>,
    /// It holds the pod's namespaces and runs nothing.
    is_sandbox: bool,
}

impl Engines {
    /// Those of the machine that this runs on, also if it runs in a container itself.
    pub fn of_this_machine() -> Engines {
        Engines {
            is_machine: true,
            ..Engines::at(files::root_of_this_machine())
        }
    }

    /// Those whose files and sockets are below a root.
    pub fn at(root: &Path) -> Engines {
        Engines {
            is_machine: false,
            root: Root::new(root),
            sockets: Sockets::default(),
            places: None,
            lists: None,
        }
    }

    /// As [`identify`], and also containers of which the path tells nothing, but the state that their
    /// runtime keeps.
    pub fn identify(&mut self, path: &str) -> Option<Identity> {
        let by_path = identify(path);
        let known = by_path.as_ref().map_or(0, |found| found.cgroup.len());
        let (_, lists) = self.refresh();
        let ends = path
            .char_indices()
            .filter(|&(at, char)| at > 0 && char == '/');
        let ends = ends.map(|(at, _)| at).chain([path.len()]);
        let mut innermost = ends.filter(|&end| end > known).filter_map(|end| {
            let cgroup = &path[..end];
            Some((cgroup, lists.runtimes.get(cgroup)?))
        });
        match innermost.next_back() {
            Some((cgroup, id)) => Some(Identity {
                cgroup: cgroup.to_owned(),
                engine: Engine::Oci,
                id: Some(id.clone()),
                name: None,
                pod_uid: None,
                unit: None,
            }),
            None => by_path,
        }
    }

    /// What is known of a container. Bounded in time (a second at most if an engine does not answer).
    pub fn describe(&mut self, identity: &Identity) -> Container {
        let mut described = self.describe_all(std::slice::from_ref(identity));
        described
            .pop()
            .unwrap_or_else(|| Container::new(identity.clone()))
    }

    /// What is known of containers, each in its place. Engines that have a list are asked once.
    pub fn describe_all(&mut self, identities: &[Identity]) -> Vec<Container> {
        let mut facts = self.look(identities);
        let is_stranger = |(identity, facts): (&Identity, &Facts)| {
            identity.id.is_some() && facts.is_incomplete() && facts.name.is_none()
        };
        if identities.iter().zip(&facts).any(is_stranger)
            && (self.places.as_ref()).is_some_and(|(at, _)| at.elapsed() >= PLACES_FOR_STRANGERS)
        {
            self.places = None;
            self.lists = None;
            facts = self.look(identities);
        }
        let described = identities.iter().zip(facts);
        described
            .map(|(identity, facts)| merged(identity, facts))
            .collect()
    }

    /// What files say and, where they don't say all, sockets.
    fn look(&mut self, identities: &[Identity]) -> Vec<Facts> {
        let (places, lists) = self.refresh();
        let mut facts: Vec<Facts> = identities
            .iter()
            .map(|identity| from_files(identity, places, lists))
            .collect();
        self.ask_sockets(identities, &mut facts);
        facts
    }

    /// Asks those who may know more than files say.
    fn ask_sockets(&mut self, identities: &[Identity], facts: &mut [Facts]) {
        let Some((_, places)) = &self.places else {
            return;
        };
        let sockets = &mut self.sockets;
        let rounds: [(Vec<Engine>, &[PathBuf]); 5] = [
            (vec![Engine::Docker], &places.docker_sockets),
            (vec![Engine::Podman], &places.podman_sockets),
            (vec![Engine::CriO], &places.crio_sockets),
            (vec![Engine::Containerd], &places.containerd_sockets),
            (vec![], &places.cri_sockets),
        ];
        for (engines, paths) in rounds {
            for path in paths {
                // Whom is it worth to ask for? Where no file says more, anybody may know.
                let open: Vec<(usize, &str)> = (identities.iter().zip(facts.iter()).enumerate())
                    .filter(|(_, (identity, facts))| {
                        let engine = facts.engine.unwrap_or(identity.engine);
                        let may_know = engine == Engine::Oci || engines.contains(&engine);
                        may_know && facts.is_incomplete()
                    })
                    .filter_map(|(index, (identity, _))| Some((index, identity.id.as_deref()?)))
                    .filter(|(_, id)| files::is_plain(id))
                    .collect();
                if open.is_empty() {
                    break;
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

    /// What is read at once, anew if it is old.
    fn refresh(&mut self) -> (&Places, &Lists) {
        let is_young = |at: &Instant, lifetime| at.elapsed() < lifetime;
        let places = self
            .places
            .take()
            .filter(|(at, _)| is_young(at, PLACES_FOR));
        let places = places.unwrap_or_else(|| {
            let places = Places::find(&self.root, self.is_machine);
            (Instant::now(), places)
        });
        let lists = self.lists.take().filter(|(at, _)| is_young(at, LISTS_FOR));
        let lists = lists.unwrap_or_else(|| {
            let lists = Lists::read(&self.root, &places.1);
            (Instant::now(), lists)
        });
        (&self.places.insert(places).1, &self.lists.insert(lists).1)
    }
}

impl Places {
    fn find(root: &Root, is_machine: bool) -> Places {
        let told = Daemons::find(root);
        let states = containerd::states(root, &told.containerd_states);
        let existing = |paths: &[&str], more: Vec<PathBuf>| {
            let paths = paths.iter().map(PathBuf::from);
            root.existing(paths.chain(more))
        };
        // Only what speaks for this machine speaks for its files.
        let host = |variable: &str| {
            let value = std::env::var(variable).ok().filter(|_| is_machine)?;
            Some(PathBuf::from(value.strip_prefix("unix://")?))
        };
        let mut docker_sockets = existing(&["/run/docker.sock"], Vec::new());
        docker_sockets.extend(host("DOCKER_HOST"));
        docker_sockets.extend(told.docker_sockets);
        docker_sockets.extend(existing(&[], root.in_sessions("docker.sock")));
        let mut podman_sockets = existing(&["/run/podman/podman.sock"], Vec::new());
        podman_sockets.extend(host("CONTAINER_HOST"));
        podman_sockets.extend(existing(&[], root.in_sessions("podman/podman.sock")));
        let containerd = [
            "/run/containerd/containerd.sock",
            "/run/k3s/containerd/containerd.sock",
            "/run/docker/containerd/containerd.sock",
            "/var/snap/microk8s/common/run/containerd.sock",
        ];
        let mut containerd_sockets = existing(&containerd, Vec::new());
        containerd_sockets.extend(told.containerd_sockets);
        let mut cri_sockets = containerd_sockets.clone();
        cri_sockets.extend(existing(&["/run/cri-dockerd.sock"], Vec::new()));
        let mut places = Places {
            docker: docker::folders(root, &told.docker_data),
            docker_sockets,
            storages: podman::folders(root),
            podman_sockets,
            tasks: containerd::tasks(&states),
            containerd_sockets,
            crio_sockets: existing(&["/run/crio/crio.sock"], Vec::new()),
            cri_sockets,
            runtimes: oci::folders(root, &states),
        };
        for paths in [
            &mut places.docker,
            &mut places.docker_sockets,
            &mut places.podman_sockets,
            &mut places.tasks,
            &mut places.containerd_sockets,
            &mut places.cri_sockets,
        ] {
            distinct(paths);
        }
        places
    }
}

/// Leaves of several paths to one thing the first.
fn distinct(paths: &mut Vec<PathBuf>) {
    let mut seen = Vec::new();
    paths.retain(|path| {
        use std::os::unix::fs::MetadataExt;
        let Ok(status) = std::fs::metadata(path) else {
            return false;
        };
        let is_new = !seen.contains(&(status.dev(), status.ino()));
        seen.push((status.dev(), status.ino()));
        is_new
    });
}

impl Lists {
    fn read(root: &Root, places: &Places) -> Lists {
        let mut lists = Lists {
            kubelet: Kubelet::read(root),
            ..Lists::default()
        };
        for storage in &places.storages {
            for (id, facts) in podman::from_list(storage) {
                lists.storages.entry(id).or_default().fill(facts);
            }
        }
        for folder in &places.runtimes {
            oci::read(folder, &mut lists.runtimes);
        }
        lists
    }
}

impl Facts {
    /// Takes what is not known yet.
    fn fill(&mut self, other: Facts) {
        let Facts {
            engine,
            name,
            image,
            pod,
            namespace,
            pod_uid,
            is_sandbox,
        } = other;
        // Who knows the name of an id of no known engine is its engine.
        self.engine = match self.engine {
            None | Some(Engine::Oci) => engine.or(self.engine),
            known => known,
        };
        self.is_sandbox |= is_sandbox;
        for (ours, other) in [
            (&mut self.name, name),
            (&mut self.image, image),
            (&mut self.pod, pod),
            (&mut self.namespace, namespace),
            (&mut self.pod_uid, pod_uid),
        ] {
            if ours.is_none() {
                *ours = other;
            }
        }
    }

    fn is_incomplete(&self) -> bool {
        self.image.is_none() || (self.name.is_none() && !self.is_sandbox)
    }

    /// What the kubelet has put into a name, `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`, as what it is.
    fn unfold(&mut self) {
        let Some(rest) = self
            .name
            .as_deref()
            .and_then(|name| name.strip_prefix("k8s_"))
        else {
            return;
        };
        let parts: Vec<String> = rest.split('_').map(str::to_owned).collect();
        if let [container, pod, namespace, uid, ..] = parts.as_slice() {
            let is_sandbox = container == "POD";
            let unfolded = Facts {
                name: (!is_sandbox).then(|| container.clone()),
                pod: Some(pod.clone()),
                namespace: Some(namespace.clone()),
                pod_uid: Some(uid.clone()),
                is_sandbox,
                ..Facts::default()
            };
            self.name = None;
            self.fill(unfolded);
        }
    }
}

/// What files say of a container.
fn from_files(identity: &Identity, places: &Places, lists: &Lists) -> Facts {
    let mut facts = Facts::default();
    if let Some(id) = identity.id.as_deref().filter(|id| files::is_plain(id)) {
        let engine = identity.engine;
        let may_be = |other: Engine| engine == other || engine == Engine::Oci;
        if may_be(Engine::Docker) {
            let found = places
                .docker
                .iter()
                .find_map(|folder| docker::from_file(folder, id));
            facts.fill(found.unwrap_or_default());
        }
        if may_be(Engine::Containerd) && facts.name.is_none() {
            let mut tasks = places.tasks.iter();
            let found = tasks.find_map(|folder| containerd::from_task(folder, id));
            facts.fill(found.unwrap_or_default());
        }
        if may_be(Engine::CriO) {
            let mut storages = places.storages.iter();
            let found = storages.find_map(|folder| podman::from_annotations(folder, id));
            facts.fill(found.unwrap_or_default());
        }
        if may_be(Engine::Podman) || may_be(Engine::CriO) {
            facts.fill(lists.storages.get(id).cloned().unwrap_or_default());
        }
        facts.unfold();
        facts.fill(
            lists
                .kubelet
                .containers
                .get(id)
                .cloned()
                .unwrap_or_default(),
        );
    }
    let uid = identity.pod_uid.as_ref().or(facts.pod_uid.as_ref());
    let pod = uid.and_then(|uid| lists.kubelet.pods.get(uid)).cloned();
    facts.fill(pod.unwrap_or_default());
    facts
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

/// Whether an id is one that nobody chose, of which a beginning is enough.
pub(super) fn is_hashed(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn merged(identity: &Identity, mut facts: Facts) -> Container {
    facts.unfold();
    let mut container = Container::new(identity.clone());
    if identity.engine == Engine::Oci {
        container.engine = facts.engine.unwrap_or(Engine::Oci);
    }
    // An id that somebody chose is the name.
    let chosen = identity
        .id
        .clone()
        .filter(|id| !is_hashed(id) && !facts.is_sandbox);
    container.name = container.name.or(facts.name).or(chosen);
    container.image = facts.image;
    container.pod = facts.pod;
    container.namespace = facts.namespace;
    container.identity.pod_uid = container.identity.pod_uid.or(facts.pod_uid);
    container
}

#[cfg(test)]
mod tests;
