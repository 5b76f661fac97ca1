//! Containers of runtimes, by the state that they keep: the only ones who know of containers that no
//! engine has made, in cgroups of any name.
//!
//! runc's `ID/state.json`, crun's `ID/status` -> a cgroup's path and the id.
//!
//! What does not belong here: what engines say of the same ids.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::{self, Root};
use crate::cgroup::contains;

/// A folder where a runtime keeps its state.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// What is in it concerns cgroups below this one only.
    within: String,
}

/// Where runtimes keep their state.
pub(super) fn folders(root: &Root, containerd_states: &[PathBuf]) -> Vec<Folder> {
    let paths = ["/run/runc", "/run/crun", "/run/youki"].iter();
    let mut paths = root.existing(paths.map(PathBuf::from));
    // containerd's shims give each namespace a folder.
    for state in containerd_states {
        let shims = state.join("runc");
        let namespaces = files::names(&shims);
        paths.extend(namespaces.iter().map(|namespace| shims.join(namespace)));
    }
    let of_root = paths.into_iter().map(|path| Folder {
        path,
        within: String::new(),
    });
    let mut found: Vec<Folder> = of_root.collect();
    for user in files::names(&root.join("/run/user")) {
        let session = Path::new("/run/user").join(&user);
        let paths = root.existing([session.join("runc"), session.join("crun")]);
        found.extend(paths.into_iter().map(|path| Folder {
            path,
            within: format!("/user.slice/user-{user}.slice"),
        }));
    }
    found
}

/// Reads the cgroups of all containers in a folder into `found`.
pub(super) fn read(folder: &Folder, found: &mut HashMap<String, String>) {
    for id in files::names(&folder.path) {
        let container = folder.path.join(&id);
        let state = files::json::<RuncState>(&container.join("state.json"));
        let paths = state.map(|state| state.paths());
        let paths = paths.or_else(|| {
            let status = files::json::<CrunStatus>(&container.join("status"))?;
            Some(vec![status.path()?])
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
