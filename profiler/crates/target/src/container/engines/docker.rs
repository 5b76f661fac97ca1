//! What Docker knows of its containers, and Podman through the same API.
//!
//! `containers/ID/config.v2.json` in its folder of data; the REST API behind a Unix socket:
//! `/containers/json`, `/containers/ID/json` (Docker Engine API, 1.24 and later).
//!
//! What does not belong here: HTTP (`http`), which sockets there are.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::Root;
use super::places::Place;
use super::{Facts, daemons};
use crate::container::Engine;

/// Where a user's Docker keeps its data.
pub(super) const IN_HOME: &str = ".local/share/docker";

/// Where root's Docker keeps its data, with what the engines that run were told.
pub(super) fn folders(root: &Root, told: &[Place]) -> Vec<Place> {
    let mut paths = vec![PathBuf::from("/var/lib/docker")];
    let configured = daemons::data_root(root, &root.join("/etc/docker/daemon.json"));
    paths.extend(configured.map(PathBuf::from));
    paths.push(PathBuf::from("/var/snap/docker/common/var-lib-docker"));
    paths.push(PathBuf::from("/root").join(IN_HOME));
    let mut found = Place::all_over(root.existing(paths));
    found.extend(told.iter().filter(|place| place.path.exists()).cloned());
    found
}

/// Of one container, by its file.
pub(super) fn from_file(root: &Root, folder: &Path, id: &str) -> Option<Facts> {
    let path = folder.join("containers").join(id).join("config.v2.json");
    let described: Described = root.json(&path)?;
    (described.id == id).then(|| described.facts(Engine::Docker))
}

/// Of one container, by the answer to `/containers/ID/json`.
pub(super) fn from_inspection(answer: &[u8], engine: Engine) -> Option<(String, Facts)> {
    let described: Described = serde_json::from_slice(answer).ok()?;
    Some((described.id.clone(), described.facts(engine)))
}

/// Of all, by the answer to `/containers/json`.
pub(super) fn from_list(answer: &[u8], engine: Engine) -> Option<Vec<(String, Facts)>> {
    let listed: Vec<Listed> = serde_json::from_slice(answer).ok()?;
    let facts = listed.into_iter().map(|listed| {
        let name = listed.names.into_iter().flatten().next();
        let facts = Facts {
            engine: Some(engine),
            name: name.and_then(|name| plain_name(&name)),
            image: listed.image.filter(|image| !image.is_empty()),
            pod: listed.pod.filter(|pod| !pod.is_empty()),
            ..Facts::default()
        };
        (listed.id, facts)
    });
    Some(facts.collect())
}

/// The file, and an inspection: in as much as is read of them they are the same.
#[derive(Deserialize)]
struct Described {
    #[serde(alias = "ID", alias = "Id")]
    id: String,
    #[serde(alias = "Name")]
    name: Option<String>,
    #[serde(alias = "Config")]
    config: Option<Config>,
    #[serde(alias = "ImageName")]
    image_name: Option<String>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(alias = "Image")]
    image: Option<String>,
}

impl Described {
    fn facts(self, engine: Engine) -> Facts {
        let image = self.config.and_then(|config| config.image);
        Facts {
            engine: Some(engine),
            name: self.name.and_then(|name| plain_name(&name)),
            image: image.or(self.image_name).filter(|image| !image.is_empty()),
            ..Facts::default()
        }
    }
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names")]
    names: Option<Vec<String>>,
    #[serde(rename = "Image")]
    image: Option<String>,
    #[serde(rename = "PodName")]
    pod: Option<String>,
}

/// Docker's names begin with a slash; links among containers have more of them.
fn plain_name(name: &str) -> Option<String> {
    let name = name.trim_start_matches('/');
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_file_and_the_api_say() {
        let file = br#"{"ID":"aa","Name":"/web","Image":"sha256:00","Driver":"overlay2",
            "Config":{"Image":"nginx:1","Labels":{"a":"b"}},"State":{"Pid":1}}"#;
        let (id, facts) = from_inspection(file, Engine::Docker).unwrap();
        assert_eq!(id, "aa");
        assert_eq!(facts.name.as_deref(), Some("web"));
        assert_eq!(facts.image.as_deref(), Some("nginx:1"));

        let list = br#"[{"Id":"aa","Names":["/web","/other/alias"],"Image":"nginx:1"},
            {"Id":"bb","Names":null,"Image":"","PodName":"p"}]"#;
        let listed = from_list(list, Engine::Podman).unwrap();
        assert_eq!(listed[0].1.name.as_deref(), Some("web"));
        assert_eq!(listed[0].1.engine, Some(Engine::Podman));
        assert_eq!(listed[1].1.name, None);
        assert_eq!(listed[1].1.image, None);
        assert_eq!(listed[1].1.pod.as_deref(), Some("p"));
    }

    proptest! {
        #[test]
        fn any_answer_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            from_list(&bytes, Engine::Docker);
            from_inspection(&bytes, Engine::Docker);
        }
    }
}
