//! Engines that run with folders and sockets of their own choice.
//!
//! /proc -> the options of `dockerd` and `containerd` processes of root, and what their configuration
//! says. What anybody else's processes claim is not believed.
//!
//! What does not belong here: what is in the folders and behind the sockets.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::{self, Root};

/// Most processes that are looked at.
const MAX_PROCESSES: usize = 1 << 16;
/// Most engines that are kept.
const MAX_DAEMONS: usize = 64;

/// What the engines that run were told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Daemons {
    /// Docker's folders of data.
    pub(super) docker_data: Vec<PathBuf>,
    /// Docker's sockets.
    pub(super) docker_sockets: Vec<PathBuf>,
    /// containerd's folders of state.
    pub(super) containerd_states: Vec<PathBuf>,
    /// containerd's sockets.
    pub(super) containerd_sockets: Vec<PathBuf>,
}

impl Daemons {
    pub(super) fn find(root: &Root) -> Daemons {
        let mut daemons = Daemons::default();
        let mut left = MAX_DAEMONS;
        let processes = files::names(&root.join("/proc"));
        let is_pid = |name: &&String| name.bytes().all(|byte| byte.is_ascii_digit());
        for pid in processes.iter().filter(is_pid).take(MAX_PROCESSES) {
            let folder = root.join("/proc").join(pid);
            let name = files::read(&folder.join("comm")).unwrap_or_default();
            let is_docker = name == b"dockerd\n";
            if left == 0 || !(is_docker || name == b"containerd\n") {
                continue;
            }
            if !fs::metadata(&folder).is_ok_and(|status| status.uid() == 0) {
                continue;
            }
            left -= 1;
            let command = files::read(&folder.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&command);
            let words: Vec<&str> = words.split('\0').collect();
            // One in a container has folders of its own.
            let seen = Seen {
                root: folder.join("root"),
                working: folder.join("cwd"),
            };
            match is_docker {
                true => daemons.add_docker(&words, &seen),
                false => daemons.add_containerd(&words, &seen),
            }
        }
        daemons
    }

    fn add_docker(&mut self, words: &[&str], seen: &Seen) {
        let options = |names: &[&str]| options(words, names);
        for folder in options(&["--data-root", "--graph", "-g"]) {
            self.docker_data.extend(seen.path(folder));
        }
        for address in options(&["--host", "-H"]) {
            let socket = address.strip_prefix("unix://");
            self.docker_sockets
                .extend(socket.and_then(|path| seen.path(path)));
        }
        let configuration = options(&["--config-file"]).first().copied();
        let configuration = configuration.unwrap_or("/etc/docker/daemon.json");
        if let Some(path) = seen.path(configuration) {
            let folder = data_root(&path);
            self.docker_data
                .extend(folder.and_then(|folder| seen.path(&folder)));
        }
        self.docker_data.extend(seen.path("/var/lib/docker"));
        self.docker_sockets.extend(seen.path("/run/docker.sock"));
    }

    fn add_containerd(&mut self, words: &[&str], seen: &Seen) {
        let options = |names: &[&str]| options(words, names);
        let mut states: Vec<String> = owned(options(&["--state"]));
        let mut sockets: Vec<String> = owned(options(&["--address", "-a"]));
        let configuration = options(&["--config", "-c"]).first().copied();
        let configuration = configuration.unwrap_or("/etc/containerd/config.toml");
        if let Some(text) = seen.path(configuration).and_then(|path| files::read(&path)) {
            let (state, socket) = configured(&String::from_utf8_lossy(&text));
            states.extend(state);
            sockets.extend(socket);
        }
        states.push("/run/containerd".to_owned());
        sockets.push("/run/containerd/containerd.sock".to_owned());
        let paths = |texts: Vec<String>| texts.into_iter().filter_map(|text| seen.path(&text));
        self.containerd_states.extend(paths(states));
        self.containerd_sockets.extend(paths(sockets));
    }
}

/// The `data-root` of a `daemon.json`.
pub(super) fn data_root(path: &Path) -> Option<String> {
    let configuration: serde_json::Value = files::json(path)?;
    let folder = configuration.get("data-root")?.as_str()?;
    Some(folder.to_owned())
}

/// What a process's paths are to us.
struct Seen {
    root: PathBuf,
    working: PathBuf,
}

impl Seen {
    fn path(&self, path: &str) -> Option<PathBuf> {
        match path.strip_prefix('/') {
            Some(within) => Some(self.root.join(within)),
            None => (!path.is_empty()).then(|| self.working.join(path)),
        }
    }
}

/// The values of options: `--name value`, `--name=value`.
fn options<'w>(words: &[&'w str], names: &[&str]) -> Vec<&'w str> {
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate().skip(1) {
        for name in names {
            match word.strip_prefix(name) {
                Some("") => found.extend(words.get(index + 1)),
                Some(rest) => found.extend(rest.strip_prefix('=')),
                None => {}
            }
        }
    }
    found
}

fn owned(words: Vec<&str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}

/// `state` and the address of gRPC in containerd's configuration. Of TOML only what is needed is read:
/// tables' heads and plain strings.
fn configured(text: &str) -> (Option<String>, Option<String>) {
    let (mut state, mut address) = (None, None);
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix('[') {
            table = head.trim_end_matches(']').trim();
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let value = value.trim();
        let quote = value
            .chars()
            .next()
            .filter(|first| matches!(first, '"' | '\''));
        let Some(value) = quote.and_then(|quote| value.get(1..)?.split(quote).next()) else {
            continue;
        };
        match (table, key.trim()) {
            ("", "state") => state = Some(value.to_owned()),
            ("grpc", "address") => address = Some(value.to_owned()),
            _ => {}
        }
    }
    (state, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_in_both_forms() {
        let words = [
            "dockerd",
            "--data-root",
            "/a",
            "-H=unix:///b",
            "--data-root=/c",
            "-g",
        ];
        assert_eq!(options(&words, &["--data-root", "-g"]), ["/a", "/c"]);
        assert_eq!(options(&words, &["-H"]), ["unix:///b"]);
        assert!(options(&words, &["--data"]).is_empty());
    }

    #[test]
    fn configuration_of_containerd() {
        let text = "version = 2\nstate = \"/s\" # here\n[debug]\n  address = \"/no\"\n\
                    [grpc]\n  address = '/a.sock'\n  uid = 0\n";
        let expected = (Some("/s".to_owned()), Some("/a.sock".to_owned()));
        assert_eq!(configured(text), expected);
        assert_eq!(
            configured("[grpc\naddress=\"\nstate=\n\"="),
            (None, Some(String::new()))
        );
    }
}
