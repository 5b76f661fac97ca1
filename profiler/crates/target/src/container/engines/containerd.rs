//! What containerd knows of its containers.
//!
//! `io.containerd.runtime.v2.task/NAMESPACE/ID/config.json` in its folder of state, whose annotations
//! Kubernetes' plugin and nerdctl write -> facts.
//!
//! What does not belong here: what it says behind its socket (`services`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Facts;
use super::files::Root;
use super::places::Place;
use crate::container::Engine;

/// The folder of tasks in a folder of state.
const TASKS: &str = "io.containerd.runtime.v2.task";

/// Where containerd keeps its state, with what those that run were told.
pub(super) fn states(root: &Root, told: &[Place]) -> Vec<Place> {
    let paths = [
        "/run/containerd",
        "/run/k3s/containerd",
        "/run/docker/containerd/daemon",
        "/var/snap/microk8s/common/run/containerd",
    ];
    let mut found = Place::all_over(root.existing(paths.iter().map(PathBuf::from)));
    found.extend(told.iter().filter(|place| place.path.exists()).cloned());
    found
}

/// The folders of tasks of all namespaces.
pub(super) fn tasks(root: &Root, states: &[Place]) -> Vec<Place> {
    let folders = states.iter().map(|state| state.below(TASKS));
    let namespaces = folders.flat_map(|folder| {
        let names = root.names(&folder.path);
        names.into_iter().map(move |name| folder.below(&name))
    });
    namespaces.collect()
}

/// Of one container, by its task's file in a namespace's folder.
pub(super) fn from_task(root: &Root, namespace: &Path, id: &str) -> Option<Facts> {
    let configuration: Configuration = root.json(&namespace.join(id).join("config.json"))?;
    // Docker's own are known to Docker.
    let engine = match namespace.file_name()?.to_str()? {
        "moby" => Engine::Docker,
        _ => Engine::Containerd,
    };
    Some(from_labels(configuration.annotations, engine))
}

/// What labels and annotations say.
pub(super) fn from_labels(mut labels: BTreeMap<String, String>, engine: Engine) -> Facts {
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

#[cfg(test)]
mod tests {
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
}
