//! What containerd knows of its containers.
//!
//! `io.containerd.runtime.v2.task/NAMESPACE/ID/config.json` in its folder of state, whose annotations
//! Kubernetes' plugin and nerdctl write; the services `containers.v1` and `namespaces.v1` behind its
//! socket. Messages have only the fields that are needed; numbers are those of containerd's .proto files.
//!
//! What does not belong here: gRPC (`grpc`), Kubernetes' own interface (`cri`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::{self, Root};
use super::sockets::Sockets;
use super::{Facts, grpc};
use crate::container::Engine;

/// Most namespaces that are asked for.
const MAX_NAMESPACES: usize = 64;
/// How many containers one question is about: their specifications come with the answer.
const AT_ONCE: usize = 100;
/// The folder of tasks in a folder of state.
const TASKS: &str = "io.containerd.runtime.v2.task";

/// Where containerd keeps its state, with what those that run were told.
pub(super) fn states(root: &Root, told: &[PathBuf]) -> Vec<PathBuf> {
    let paths = [
        "/run/containerd",
        "/run/k3s/containerd",
        "/run/docker/containerd/daemon",
        "/var/snap/microk8s/common/run/containerd",
    ];
    let mut found = root.existing(paths.iter().map(PathBuf::from));
    found.extend(told.iter().filter(|path| path.exists()).cloned());
    found
}

/// The folders of tasks of all namespaces.
pub(super) fn tasks(states: &[PathBuf]) -> Vec<PathBuf> {
    let folders = states.iter().map(|state| state.join(TASKS));
    let namespaces = folders.flat_map(|folder| {
        let names = files::names(&folder);
        names.into_iter().map(move |name| folder.join(name))
    });
    namespaces.collect()
}

/// Of one container, by its task's file in a namespace's folder.
pub(super) fn from_task(namespace: &Path, id: &str) -> Option<Facts> {
    let configuration: Configuration = files::json(&namespace.join(id).join("config.json"))?;
    // Docker's own are known to Docker.
    let engine = match namespace.file_name()?.to_str()? {
        "moby" => Engine::Docker,
        _ => Engine::Containerd,
    };
    Some(from_labels(configuration.annotations, engine))
}

/// What labels and annotations say.
fn from_labels(mut labels: BTreeMap<String, String>, engine: Engine) -> Facts {
    let mut take = |key: &str| labels.remove(key).filter(|value| !value.is_empty());
    let kind = take("io.kubernetes.cri.container-type").or_else(|| take("io.cri-containerd.kind"));
    let is_sandbox = kind.as_deref() == Some("sandbox");
    let name = take("io.kubernetes.cri.container-name")
        .or_else(|| take("io.kubernetes.container.name"))
        .or_else(|| take("nerdctl/name"));
    Facts {
        engine: Some(engine),
        name: name.filter(|_| !is_sandbox),
        image: take("io.kubernetes.cri.image-name"),
        pod: take("io.kubernetes.cri.sandbox-name").or_else(|| take("io.kubernetes.pod.name")),
        namespace: take("io.kubernetes.cri.sandbox-namespace")
            .or_else(|| take("io.kubernetes.pod.namespace")),
        pod_uid: take("io.kubernetes.cri.sandbox-uid").or_else(|| take("io.kubernetes.pod.uid")),
        is_sandbox,
    }
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Of containers, by their ids, from the services.
pub(super) fn ask(sockets: &mut Sockets, socket: &Path, ids: &[&str]) -> HashMap<String, Facts> {
    let mut found = HashMap::new();
    let list = "/containerd.services.namespaces.v1.Namespaces/List";
    let Some(namespaces) =
        grpc::call::<_, Namespaces>(sockets, socket, list, None, &Filters::default())
    else {
        return found;
    };
    for namespace in namespaces.namespaces.iter().take(MAX_NAMESPACES) {
        if namespace.name == "moby" || !files::is_plain(&namespace.name) {
            continue;
        }
        for ids in ids.chunks(AT_ONCE) {
            let filters = ids.iter().filter(|id| files::is_plain(id));
            let filters = Filters {
                filters: filters.map(|id| format!("id==\"{id}\"")).collect(),
            };
            if filters.filters.is_empty() {
                // No filter at all would be all of them.
                continue;
            }
            let list = "/containerd.services.containers.v1.Containers/List";
            let namespace = Some(namespace.name.as_str());
            let Some(answer) =
                grpc::call::<_, Containers>(sockets, socket, list, namespace, &filters)
            else {
                return found;
            };
            for container in answer.containers {
                let labels = container.labels.into_iter().collect();
                let mut facts = from_labels(labels, Engine::Containerd);
                let image = Some(container.image).filter(|image| !image.is_empty());
                facts.image = facts.image.or(image);
                found.entry(container.id).or_insert(facts);
            }
        }
    }
    found
}

#[derive(Clone, PartialEq, prost::Message)]
struct Filters {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Namespaces {
    #[prost(message, repeated, tag = "1")]
    namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Namespace {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Containers {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Listed>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Listed {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(map = "string, string", tag = "2")]
    labels: HashMap<String, String>,
    #[prost(string, tag = "3")]
    image: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Facts {
        let pairs = pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()));
        from_labels(pairs.collect(), Engine::Containerd)
    }

    #[test]
    fn annotations_of_kubernetes_and_nerdctl() {
        let facts = labels(&[
            ("io.kubernetes.cri.container-type", "container"),
            ("io.kubernetes.cri.container-name", "app"),
            ("io.kubernetes.cri.image-name", "docker.io/library/nginx:1"),
            ("io.kubernetes.cri.sandbox-name", "web-0"),
            ("io.kubernetes.cri.sandbox-namespace", "prod"),
            ("io.kubernetes.cri.sandbox-uid", "6f"),
        ]);
        let shown = [
            facts.name,
            facts.image,
            facts.pod,
            facts.namespace,
            facts.pod_uid,
        ];
        let expected = ["app", "docker.io/library/nginx:1", "web-0", "prod", "6f"];
        assert_eq!(shown, expected.map(|text| Some(text.to_owned())));
        assert!(!facts.is_sandbox);
        let sandbox = labels(&[("io.kubernetes.cri.container-type", "sandbox")]);
        assert!(sandbox.is_sandbox);
        let facts = labels(&[("nerdctl/name", "web"), ("nerdctl/namespace", "default")]);
        assert_eq!(
            (facts.name.as_deref(), facts.namespace),
            (Some("web"), None)
        );
    }

    #[test]
    fn listed_containers_survive_a_round_trip() {
        let message = Containers {
            containers: vec![Listed {
                id: "aa".to_owned(),
                labels: [("a".to_owned(), "b".to_owned())].into(),
                image: "nginx".to_owned(),
            }],
        };
        // A field that we don't know, as a specification is.
        let mut bytes = message.encode_to_vec();
        assert_eq!(bytes[..4], [0x0a, bytes[1], 0x0a, 0x02]);
        bytes.extend([0x2a, 0x01, 0x00]);
        assert_eq!(Containers::decode(bytes.as_slice()).unwrap(), message);
    }

    proptest! {
        #[test]
        fn any_message_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Containers::decode(bytes.as_slice());
            let _ = Namespaces::decode(bytes.as_slice());
        }
    }
}
