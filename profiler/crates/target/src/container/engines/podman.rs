//! What the storage of Podman and CRI-O knows of containers.
//!
//! `DRIVER-containers/containers.json` (and `volatile-containers.json`) of containers/storage, whose
//! `metadata` is JSON in a string; and `userdata/config.json`, which CRI-O annotates.
//!
//! What does not belong here: their sockets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Facts;
use super::files::{Found, Root};
use crate::container::Engine;

/// Where a user's storage is.
pub(super) const IN_HOME: &str = ".local/share/containers/storage";

/// Where drivers keep their lists in storages: for any there are, and for what lives until the next boot.
pub(super) fn folders(root: &Root, storages: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for storage in root.existing(storages) {
        let names = root.names(&storage).into_iter();
        let names = names.filter(|name| name.ends_with("-containers"));
        found.extend(names.map(|name| storage.join(name)));
    }
    found
}

/// All that a folder lists.
pub(super) fn from_list(
    root: &Root,
    folder: &Path,
    known: &mut Found<Vec<(String, Facts)>>,
) -> Vec<(String, Facts)> {
    let lists = ["containers.json", "volatile-containers.json"];
    let lists = lists.iter();
    let lists = lists.filter_map(|list| known.get(root, &folder.join(list), listed));
    lists.flatten().collect()
}

fn listed(list: &[u8]) -> Vec<(String, Facts)> {
    let listed: Vec<Stored> = serde_json::from_slice(list).unwrap_or_default();
    listed
        .into_iter()
        .map(|stored| {
            let metadata = stored.metadata.as_deref();
            let metadata = metadata.and_then(|text| serde_json::from_str::<Metadata>(text).ok());
            let metadata = metadata.unwrap_or_default();
            let name = stored.names.into_iter().flatten().next();
            let facts = Facts {
                // CRI-O tells the pod, Podman does not.
                engine: Some(match metadata.pod_id.is_some() {
                    true => Engine::CriO,
                    false => Engine::Podman,
                }),
                name: metadata.name.filter(|name| !name.is_empty()).or(name),
                image: metadata.image_name.filter(|image| !image.is_empty()),
                ..Facts::default()
            };
            (stored.id, facts)
        })
        .collect()
}

#[derive(Deserialize)]
struct Stored {
    id: String,
    names: Option<Vec<String>>,
    metadata: Option<String>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(rename = "image-name")]
    image_name: Option<String>,
    name: Option<String>,
    #[serde(rename = "pod-id")]
    pod_id: Option<String>,
}

/// Of one container of CRI-O, by its annotations.
pub(super) fn from_annotations(root: &Root, folder: &Path, id: &str) -> Option<Facts> {
    let path = folder.join(id).join("userdata/config.json");
    let configuration: Configuration = root.json(&path)?;
    let mut annotations = configuration.annotations;
    let mut take = |key: &str| annotations.remove(key).filter(|value| !value.is_empty());
    let pod = take("io.kubernetes.pod.name")?;
    let is_sandbox = take("io.kubernetes.cri-o.ContainerType").as_deref() == Some("sandbox");
    let name = take("io.kubernetes.container.name");
    Some(Facts {
        engine: Some(Engine::CriO),
        name: name.filter(|_| !is_sandbox),
        image: take("io.kubernetes.cri-o.ImageName").or_else(|| take("io.kubernetes.cri-o.Image")),
        pod: Some(pod),
        namespace: take("io.kubernetes.pod.namespace"),
        pod_uid: take("io.kubernetes.pod.uid"),
        is_sandbox,
    })
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_the_storage() {
        let list = br#"[{"id":"aa","names":["web"],"image":"00","layer":"11",
            "metadata":"{\"image-name\":\"docker.io/library/nginx:1\",\"name\":\"web\"}"},
            {"id":"bb","names":["k8s_app_pod"],
            "metadata":"{\"pod-name\":\"p\",\"pod-id\":\"cc\",\"name\":\"app\"}"},
            {"id":"dd","metadata":"{"}]"#;
        let listed = listed(list);
        let shown: Vec<_> = listed
            .iter()
            .map(|(id, facts)| (id.as_str(), facts.engine, facts.name.as_deref()))
            .collect();
        let (podman, crio) = (Some(Engine::Podman), Some(Engine::CriO));
        assert_eq!(
            shown,
            [
                ("aa", podman, Some("web")),
                ("bb", crio, Some("app")),
                ("dd", podman, None)
            ]
        );
        assert_eq!(
            listed[0].1.image.as_deref(),
            Some("docker.io/library/nginx:1")
        );
    }

    proptest! {
        #[test]
        fn any_list_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            listed(&bytes);
        }

        #[test]
        fn any_metadata_is_survived(text in ".{0,100}") {
            let list = serde_json::json!([{"id": "a", "metadata": text}]).to_string();
            prop_assert_eq!(listed(list.as_bytes()).len(), 1);
        }
    }
}
