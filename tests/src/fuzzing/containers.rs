//! Fuzzing of what says which container a process is in: mounts of cgroups, paths, files of engines.
//!
//! Input: a fuzzer's bytes, the first of which says as what they are read; output: none.

use std::path::{Path, PathBuf};

use profiler_target::cgroup::Hierarchies;
use profiler_target::container::{Engines, identify};

/// An id as engines give them.
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Files that engines keep, of a container with [`ID`].
const FILES: [&str; 6] = [
    "var/lib/docker/containers/ID/config.v2.json",
    "var/lib/containers/storage/overlay-containers/containers.json",
    "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json",
    "run/runc/ID/state.json",
    "etc/docker/daemon.json",
    "run/containers/storage/overlay-containers/ID/userdata/config.json",
];

/// Reads bytes as a mountinfo, a path of a cgroup, or a file of an engine.
pub fn containers(data: &[u8]) {
    let [kind, bytes @ ..] = data else {
        return;
    };
    match kind {
        0 => mounts(bytes),
        1 => path(&String::from_utf8_lossy(bytes)),
        kind => file(FILES[usize::from(*kind) % FILES.len()], bytes),
    }
}

fn mounts(bytes: &[u8]) {
    let mut texts = bytes.splitn(3, |&byte| byte == 0);
    let mut next = || texts.next().unwrap_or_default();
    let (mountinfo, own, controllers) = (next(), next(), next());
    let [own, controllers] = [own, controllers].map(String::from_utf8_lossy);
    let hierarchies = Hierarchies::of_texts(mountinfo, &own, &controllers, |_, _| true);
    if let Some(hierarchy) = hierarchies.primary()
        && let Some(path) = hierarchy.path_in(&own)
    {
        // Nothing, behind what is above ours, is our root.
        assert!(path == "/" || own.contains(path));
        assert!(
            hierarchy
                .directory(path)
                .starts_with(hierarchy.directory("/"))
        );
    }
}

fn path(path: &str) {
    if let Some(found) = identify(path) {
        assert!(path.starts_with(&found.cgroup));
        assert!(found.id.is_none_or(|id| path.contains(&id)));
    }
}

fn file(name: &str, bytes: &[u8]) {
    let root = root();
    let file = root.join(name.replace("ID", ID));
    let made = file.parent().map(std::fs::create_dir_all);
    if !matches!(made, Some(Ok(()))) || std::fs::write(&file, bytes).is_err() {
        return;
    }
    ask(&root);
    let _ = std::fs::remove_dir_all(&root);
}

/// All that is asked of engines.
fn ask(root: &Path) {
    let mut engines = Engines::at(root);
    for path in [
        format!("/system.slice/docker-{ID}.scope"),
        format!("/machine.slice/libpod-{ID}.scope"),
        format!("/kubepods/besteffort/pod01234567-89ab-cdef-0123-456789abcdef/{ID}"),
        format!("/somewhere/{ID}"),
    ] {
        if let Some(identity) = engines.identify(&path) {
            let container = engines.describe(&identity);
            assert_eq!(container.identity.cgroup, identity.cgroup);
        }
    }
}

fn root() -> PathBuf {
    std::env::temp_dir().join(format!("fuzz-containers-{}", std::process::id()))
}
