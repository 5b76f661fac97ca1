//! Containers, pods and units: what they are called, and which cgroup is theirs.
//!
//! A cgroup's path -> [`Identity`] (by the path alone) -> [`Container`] (with what files and sockets of
//! engines add: names, images, labels). Everything of an engine that is read is untrusted and bounded.
//!
//! What does not belong here: which processes are in them (`resolve`), how the kernel filters (`probe`),
//! what is to be done when they come and go (`pipeline`).

mod describe;
mod engines;
mod identify;
mod select;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use describe::Describer;
pub use engines::{Engines, is_for_users, offer_reading, serve_users, start_reading};
pub use identify::identify;
pub use select::{Selected, Selector, SelectorError};

/// What runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Engine {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd: by itself, by nerdctl, or for Kubernetes.
    Containerd,
    /// CRI-O.
    CriO,
    /// LXC, LXD, Incus.
    Lxc,
    /// systemd-nspawn.
    Nspawn,
    /// A unit of systemd that is no container.
    Systemd,
    /// A runtime (runc, crun) without an engine, or an engine that the path does not tell.
    Oci,
}

impl Engine {
    /// Its name in captures and lists.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Containerd => "containerd",
            Engine::CriO => "cri-o",
            Engine::Lxc => "lxc",
            Engine::Nspawn => "nspawn",
            Engine::Systemd => "systemd",
            Engine::Oci => "oci",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the path of a cgroup says of the innermost container, pod or unit in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct Identity {
    /// The container's own cgroup: the path up to where it begins.
    pub cgroup: String,
    /// What runs it.
    pub engine: Engine,
    /// Its id, whole.
    pub id: Option<String>,
    /// Its name, where the path has it (LXC, nspawn).
    pub name: Option<String>,
    /// The unique id of the Kubernetes pod, with dashes.
    pub pod_uid: Option<String>,
    /// The unit of systemd, if it is one and no container.
    pub unit: Option<String>,
}

/// A container, pod or unit, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What its cgroup's path says.
    pub identity: Identity,
    /// What runs it, by what was found.
    pub engine: Engine,
    /// Its name, without a leading slash. In a pod: that of the container in the pod.
    pub name: Option<String>,
    /// Its image, by name.
    pub image: Option<String>,
    /// The pod's name.
    pub pod: Option<String>,
    /// The pod's namespace.
    pub namespace: Option<String>,
}

impl Container {
    /// One of which nothing but its cgroup is known.
    pub fn new(identity: Identity) -> Container {
        Container {
            engine: identity.engine,
            name: identity.name.clone(),
            image: None,
            pod: None,
            namespace: None,
            identity,
        }
    }
}
