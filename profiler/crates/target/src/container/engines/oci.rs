//! Containers of runtimes, by the state that they keep: the only ones who know of containers that no
//! engine has made, in cgroups of any name.
//!
//! runc's `ID/state.json`, crun's `ID/status` -> a cgroup's path and the id.
//!
//! What does not belong here: what engines say of the same ids.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::{Found, Root};
use super::places::Place;
use crate::cgroup::contains;

/// Where root's runtimes keep their state.
pub(super) fn folders(root: &Root, containerd_states: &[Place]) -> Vec<Place> {
    let paths = ["/run/runc", "/run/crun", "/run/youki"].iter();
    let mut found = Place::all_over(root.existing(paths.map(PathBuf::from)));
    // containerd's shims give each namespace a folder.
    for state in containerd_states {
        let shims = state.below("runc");
        let namespaces = root.names(&shims.path);
        found.extend(namespaces.iter().map(|namespace| shims.below(namespace)));
    }
    found.extend(in_session(root, 0));
    found
}

/// Where a user's runtimes keep their state while the user is logged in.
pub(super) fn in_session(root: &Root, user: u32) -> Vec<Place> {
    let session = Path::new("/run/user").join(user.to_string());
    Place::all_over(root.existing([session.join("runc"), session.join("crun")]))
}

/// Reads the cgroups of all containers in a folder into `found`.
pub(super) fn read(
    root: &Root,
    folder: &Place,
    known: &mut Found<Vec<String>>,
    found: &mut HashMap<String, String>,
) {
    for id in root.names(&folder.path) {
        let container = folder.path.join(&id);
        let paths = known.get(root, &container.join("state.json"), |bytes| {
            let state = serde_json::from_slice::<RuncState>(bytes);
            state.map(RuncState::paths).unwrap_or_default()
        });
        let paths = paths.or_else(|| {
            known.get(root, &container.join("status"), |bytes| {
                let status = serde_json::from_slice::<CrunStatus>(bytes);
                let path = status.ok().and_then(CrunStatus::path);
                path.into_iter().collect()
            })
        });
        for path in paths.unwrap_or_default() {
            if contains(&folder.within, &path) {
                found.entry(path).or_insert_with(|| id.clone());
            }
        }
    }
}

#[derive(Deserialize)]
struct RuncState {
    #[serde(default)]
    cgroup_paths: BTreeMap<String, String>,
}

impl RuncState {
    /// Paths in the hierarchies, of directories in their mounts.
    fn paths(self) -> Vec<String> {
        let mut paths: Vec<String> = Vec::new();
        for (controller, directory) in self.cgroup_paths {
            let Some(within) = directory.strip_prefix("/sys/fs/cgroup") else {
                continue;
            };
            let path = match controller.as_str() {
                "" => within.strip_prefix("/unified").unwrap_or(within),
                _ => within
                    .get(1..)
                    .and_then(|rest| Some(&rest[rest.find('/')?..]))
                    .unwrap_or(""),
            };
            // That of the root would be everybody's.
            if path.len() > 1 && path.starts_with('/') && !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
        paths
    }
}

#[derive(Deserialize)]
struct CrunStatus {
    #[serde(rename = "cgroup-path")]
    cgroup_path: Option<String>,
}

impl CrunStatus {
    fn path(self) -> Option<String> {
        let path = self.cgroup_path?;
        let path = format!("/{}", path.trim_matches('/'));
        (path.len() > 1).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runc(text: &str) -> Vec<String> {
        let state: RuncState = serde_json::from_str(text).unwrap();
        state.paths()
    }

    #[test]
    fn cgroups_in_states() {
        let one = r#"{"id":"a","cgroup_paths":{"":"/sys/fs/cgroup/unified/mine/a",
            "pids":"/sys/fs/cgroup/pids/mine/a","name=systemd":"/sys/fs/cgroup/systemd/mine/a",
            "cpu":"/sys/fs/cgroup/cpu,cpuacct/other","freezer":"/sys/fs/cgroup/freezer"}}"#;
        assert_eq!(runc(one), ["/mine/a", "/other"]);
        let two = r#"{"cgroup_paths":{"":"/sys/fs/cgroup/user.slice/a"}}"#;
        assert_eq!(runc(two), ["/user.slice/a"]);
        assert!(runc("{}").is_empty());
        let status: CrunStatus = serde_json::from_str(r#"{"cgroup-path":"mine/a"}"#).unwrap();
        assert_eq!(status.path().as_deref(), Some("/mine/a"));
        let status: CrunStatus = serde_json::from_str(r#"{"cgroup-path":"/"}"#).unwrap();
        assert_eq!(status.path(), None);
    }

    proptest! {
        #[test]
        fn any_paths_are_survived(controller in ".{0,6}", directory in "(/sys/fs/cgroup)?.{0,30}") {
            let state = RuncState { cgroup_paths: [(controller, directory)].into() };
            for path in state.paths() {
                prop_assert!(path.starts_with('/') && path.len() > 1);
            }
        }
    }
}
