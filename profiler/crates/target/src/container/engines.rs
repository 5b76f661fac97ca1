//! What engines know of their containers: files first, then sockets.
//!
//! [`Identity`]s -> [`Container`]s. What root's engines say is believed before what users' own say, which counts for
//! what is in the users' own cgroups only. Everything is bounded: 4 MiB per file or answer, a second per call.
//!
//! What does not belong here: what a path says by itself (`identify`), whom to ask for (`select`).

mod apart;
mod book;
mod containerd;
mod daemons;
mod docker;
mod files;
mod http;
mod kubelet;
mod oci;
mod places;
mod podman;
#[cfg_attr(not(feature = "engines"), path = "engines/no_services.rs")]
mod services;
mod sockets;
mod users;

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::apart::{is_for_users, offer_reading, serve_users, start_reading};
use self::book::Book;
use self::files::Root;
use self::places::Whose;
use self::users::Users;
use super::{Container, Engine, Identity, identify};

/// The engines of this machine. Asking them may take time: not for the thread of a session, and not for
/// one that runs futures.
#[derive(Debug)]
pub struct Engines {
    own: Book,
    /// None: users are not asked.
    users: Option<Users>,
}

/// What somebody says of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
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
        Engines::new(files::root_of_this_machine(), true)
    }

    /// Those whose files and sockets are below a root.
    pub fn at(root: &Path) -> Engines {
        Engines::new(root, false)
    }

    fn new(root: &Path, is_machine: bool) -> Engines {
        Engines {
            own: Book::new(Root::new(root), Whose::Roots { is_machine }),
            users: Some(Users::at(root)),
        }
    }

    /// Two in place of this one: the first answers for root's engines alone, and waits for nothing that users have.
    pub(super) fn split(mut self) -> (Engines, Engines) {
        let root = self.own.root.path().to_owned();
        let all = Engines {
            own: Book::new(Root::new(&root), self.own.whose),
            users: self.users.take(),
        };
        (self, all)
    }

    /// The same, and what users have is read by a process.
    #[cfg(test)]
    pub(super) fn reading_apart(mut self) -> Engines {
        self.users = self.users.map(Users::reading_apart);
        self
    }

    /// The user that a cgroup belongs to; none if it is root's.
    pub(super) fn whose(&self, cgroup: &str) -> Option<u32> {
        users::whose(self.own.root.path(), cgroup)
    }

    /// As [`identify`], and also containers of which the path tells nothing, but the state that their
    /// runtime keeps.
    pub fn identify(&mut self, path: &str) -> Option<Identity> {
        let by_path = identify(path);
        let known = by_path.as_ref().map_or(0, |found| found.cgroup.len());
        let mut found = innermost(path, known, self.own.runtimes()).map(of_runtime);
        if found.is_none()
            && let Some(user) = self.whose(path)
            && let Some(users) = &mut self.users
        {
            let theirs = innermost(path, known, users.runtimes(user)).map(of_runtime);
            found = theirs.filter(|found| self.whose(&found.cgroup) == Some(user));
        }
        found.or(by_path)
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
        let mut facts = self.own.look(identities);
        if self.users.is_some() {
            self.ask_users(identities, &mut facts);
        }
        let described = identities.iter().zip(facts);
        described
            .map(|(identity, facts)| merged(identity, facts))
            .collect()
    }

    fn ask_users(&mut self, identities: &[Identity], facts: &mut [Facts]) {
        // Of what root's engines don't know all, the engines of the user know whose it is.
        let mut open: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, identity) in identities.iter().enumerate() {
            if identity.id.is_some()
                && facts[index].is_incomplete()
                && let Some(user) = self.whose(&identity.cgroup)
            {
                open.entry(user).or_default().push(index);
            }
        }
        for (user, indices) in open {
            let theirs: Vec<Identity> = indices.iter().map(|&at| identities[at].clone()).collect();
            let found = self.users.as_mut().map(|users| users.look(user, theirs));
            for (index, found) in indices.into_iter().zip(found.unwrap_or_default()) {
                facts[index].fill(found);
            }
        }
    }
}

/// The innermost cgroup at a path or above it, below the first `known` bytes, that a runtime has made, and its id.
fn innermost(
    path: &str,
    known: usize,
    runtimes: &HashMap<String, String>,
) -> Option<(String, String)> {
    let ends = path
        .char_indices()
        .filter(|&(at, char)| at > 0 && char == '/');
    let ends = ends.map(|(at, _)| at).chain([path.len()]);
    let mut innermost = ends.filter(|&end| end > known).filter_map(|end| {
        let cgroup = &path[..end];
        Some((cgroup.to_owned(), runtimes.get(cgroup)?.clone()))
    });
    innermost.next_back()
}

fn of_runtime((cgroup, id): (String, String)) -> Identity {
    Identity {
        cgroup,
        engine: Engine::Oci,
        id: Some(id),
        name: None,
        pod_uid: None,
        unit: None,
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

    /// Leaves out what is too long to be true.
    fn cut(&mut self, most: usize) {
        for text in [
            &mut self.name,
            &mut self.image,
            &mut self.pod,
            &mut self.namespace,
            &mut self.pod_uid,
        ] {
            text.take_if(|text| text.len() > most);
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
pub(super) mod tests;
