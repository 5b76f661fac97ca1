//! Engines that run with folders and sockets of their own choice.
//!
//! /proc -> the options of root's `dockerd` and `containerd`, and what their configuration says. An engine is known by
//! its program, a file that only root can have put where it is; what anybody else's processes claim is not believed,
//! nor a folder or socket that is not root's alone. What one says that runs in a container counts in that container.
//!
//! What does not belong here: what is in the folders and behind the sockets.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::files::{self, Root};
use super::places::Place;
use crate::container::identify;

/// Most processes that are looked at.
const MAX_PROCESSES: usize = 1 << 16;
/// Most engines that are kept.
const MAX_DAEMONS: usize = 64;
/// Whose engines are believed.
const ROOT: u32 = 0;

/// What the engines that run were told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Daemons {
    /// Docker's folders of data.
    pub(super) docker_data: Vec<Place>,
    /// Docker's sockets.
    pub(super) docker_sockets: Vec<Place>,
    /// containerd's folders of state.
    pub(super) containerd_states: Vec<Place>,
    /// containerd's sockets.
    pub(super) containerd_sockets: Vec<Place>,
}

impl Daemons {
    pub(super) fn find(root: &Root) -> Daemons {
        let mut daemons = Daemons::default();
        let mut left = MAX_DAEMONS;
        let processes = root.names(&root.join("/proc"));
        let is_pid = |name: &&String| name.bytes().all(|byte| byte.is_ascii_digit());
        for pid in processes.iter().filter(is_pid).take(MAX_PROCESSES) {
            let folder = root.join("/proc").join(pid);
            // Its name alone says nothing, but is had without asking much.
            let name = root.read(&folder.join("comm")).unwrap_or_default();
            let name = match name.as_slice() {
                b"dockerd\n" => "dockerd",
                b"containerd\n" => "containerd",
                _ => continue,
            };
            if left == 0 || !is_engine(root, &folder, name) {
                continue;
            }
            left -= 1;
            let command = root.read(&folder.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&command);
            let words: Vec<&str> = words.split('\0').collect();
            // One in a container has folders of its own.
            let seen = Seen {
                root: folder.join("root"),
                working: fs::read_link(folder.join("cwd")).unwrap_or_default(),
                within: around(root, &folder),
            };
            match name {
                "dockerd" => daemons.add_docker(root, &words, &seen),
                _ => daemons.add_containerd(root, &words, &seen),
            }
        }
        daemons
    }

    fn add_docker(&mut self, root: &Root, words: &[&str], seen: &Seen) {
        let options = |names: &[&str]| options(words, names);
        for folder in options(&["--data-root", "--graph", "-g"]) {
            self.docker_data.extend(seen.folder(folder));
        }
        for address in options(&["--host", "-H"]) {
            let socket = address.strip_prefix("unix://");
            self.docker_sockets
                .extend(socket.and_then(|path| seen.socket(path)));
        }
        let configuration = options(&["--config-file"]).first().copied();
        let configuration = configuration.unwrap_or("/etc/docker/daemon.json");
        if let Some(path) = seen.file(configuration) {
            let folder = data_root(root, &path);
            self.docker_data
                .extend(folder.and_then(|folder| seen.folder(&folder)));
        }
        self.docker_data.extend(seen.folder("/var/lib/docker"));
        self.docker_sockets.extend(seen.socket("/run/docker.sock"));
    }

    fn add_containerd(&mut self, root: &Root, words: &[&str], seen: &Seen) {
        let options = |names: &[&str]| options(words, names);
        let mut states: Vec<String> = owned(options(&["--state"]));
        let mut sockets: Vec<String> = owned(options(&["--address", "-a"]));
        let configuration = options(&["--config", "-c"]).first().copied();
        let configuration = configuration.unwrap_or("/etc/containerd/config.toml");
        if let Some(text) = seen.file(configuration).and_then(|path| root.read(&path)) {
            let (state, socket) = configured(&String::from_utf8_lossy(&text));
            states.extend(state);
            sockets.extend(socket);
        }
        states.push("/run/containerd".to_owned());
        sockets.push("/run/containerd/containerd.sock".to_owned());
        let states = states.iter().filter_map(|path| seen.folder(path));
        self.containerd_states.extend(states);
        let sockets = sockets.iter().filter_map(|path| seen.socket(path));
        self.containerd_sockets.extend(sockets);
    }
}

/// The `data-root` of a `daemon.json`.
pub(super) fn data_root(root: &Root, path: &Path) -> Option<String> {
    let configuration: serde_json::Value = root.json(path)?;
    let folder = configuration.get("data-root")?.as_str()?;
    Some(folder.to_owned())
}

/// Whether the process is root's through and through, and runs this program, which only root can have put there.
fn is_engine(root: &Root, process: &Path, name: &str) -> bool {
    let status = root.read(&process.join("status")).unwrap_or_default();
    if !is_all_of(&String::from_utf8_lossy(&status), ROOT) {
        return false;
    }
    // Root of a namespace of users is no more than who made that.
    let namespace = |process: &Path| fs::read_link(process.join("ns/user")).ok();
    let ours = namespace(Path::new("/proc/self"));
    if ours.is_none() || namespace(process) != ours {
        return false;
    }
    let Ok(program) = fs::read_link(process.join("exe")) else {
        return false;
    };
    program.file_name().is_some_and(|file| file == name)
        && is_roots_program(&process.join("root"), &program, &process.join("exe"))
}

/// Whether a program is at this path, and only root can have put it there. `runs`: what is run.
fn is_roots_program(root: &Path, program: &Path, runs: &Path) -> bool {
    let Some((_, status)) = files::owned_path(root, program, ROOT) else {
        return false;
    };
    let is_plain = status.is_file() && status.mode() & 0o6000 == 0;
    // Only now is it root's file that is asked for.
    let is_it = |runs: fs::Metadata| (runs.dev(), runs.ino()) == (status.dev(), status.ino());
    is_plain && files::is_owners_alone(&status, ROOT) && fs::metadata(runs).is_ok_and(is_it)
}

/// Whether all users of a process are this one: the real, the effective, the saved, and that of file systems.
fn is_all_of(status: &str, user: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let user = user.to_string();
    users.len() == 4 && users.iter().all(|of| *of == user)
}

/// The cgroup of the container that a process is in; all of them, if it is in none.
fn around(root: &Root, process: &Path) -> String {
    let text = root.read(&process.join("cgroup")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let containers = paths.filter_map(identify);
    let mut containers = containers.filter(|found| found.unit.is_none());
    containers
        .next()
        .map_or(String::new(), |found| found.cgroup)
}

/// What a process's paths are to us.
struct Seen {
    root: PathBuf,
    working: PathBuf,
    /// Where its word counts.
    within: String,
}

impl Seen {
    /// A path that only root can have made what it is.
    fn path(&self, path: &str) -> Option<(PathBuf, fs::Metadata)> {
        let path = (!path.is_empty()).then(|| self.working.join(path))?;
        files::owned_path(&self.root, &path, ROOT)
    }

    fn folder(&self, path: &str) -> Option<Place> {
        let (path, status) = self.path(path)?;
        let is_roots = status.is_dir() && files::is_owners_alone(&status, ROOT);
        is_roots.then(|| self.place(path))
    }

    /// Who may write to a socket may ask, and not answer.
    fn socket(&self, path: &str) -> Option<Place> {
        let (path, status) = self.path(path)?;
        let is_socket = status.file_type().is_socket();
        is_socket.then(|| self.place(path))
    }

    fn file(&self, path: &str) -> Option<PathBuf> {
        let (path, status) = self.path(path)?;
        let is_roots = status.is_file() && files::is_owners_alone(&status, ROOT);
        is_roots.then_some(path)
    }

    fn place(&self, path: PathBuf) -> Place {
        Place {
            path,
            within: self.within.clone(),
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
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A folder in which nobody but root may make anything, that is removed with its value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Option<Folder> {
            if !rustix::process::geteuid().is_root() {
                crate::skip::skip(name, "needs root");
                return None;
            }
            let path = PathBuf::from(format!("/run/profiler-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Some(Folder(path))
        }

        fn folder(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A process that is ended with its value.
    struct Running(Child);

    impl Running {
        /// Starts it, and waits until it is called so and has its arguments.
        fn start(command: &mut Command, name: &str) -> Running {
            let child = command.stdin(Stdio::piped()).stdout(Stdio::null());
            let child = Running(child.stderr(Stdio::null()).spawn().unwrap());
            let began = Instant::now();
            let read = |file| fs::read_to_string(format!("/proc/{}/{file}", child.0.id()));
            let begins = || read("cmdline").is_ok_and(|line| !line.is_empty());
            while !read("comm").is_ok_and(|is| is.trim_end() == name) || !begins() {
                assert!(began.elapsed() < Duration::from_secs(10), "{name}");
                std::thread::sleep(Duration::from_millis(1));
            }
            child
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn told(daemons: &Daemons, path: &Path) -> bool {
        let places = daemons.docker_data.iter().chain(&daemons.docker_sockets);
        places
            .into_iter()
            .any(|place| place.path.ends_with(path.strip_prefix("/").unwrap()))
    }

    #[test]
    fn roots_own_engine_is_believed_whoever_else_says_to_be_one() {
        let Some(folder) = Folder::new("engine") else {
            return;
        };
        let engine = folder.0.join("dockerd");
        fs::copy("/bin/sh", &engine).unwrap();
        let folders = ["data", "open", "users", "tmp/data", "tmp/users"];
        let folders = folders.map(|name| folder.folder(name));
        let [data, open, users, in_tmp, users_in_tmp] = &folders;
        let mode = |folder: &Path, mode| {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(open, 0o777);
        mode(in_tmp.parent().unwrap(), 0o1777);
        std::os::unix::fs::chown(users_in_tmp, Some(1), None).unwrap();
        std::os::unix::fs::chown(users, Some(1), None).unwrap();
        let below = open.join("below");
        fs::create_dir(&below).unwrap();
        let linked = folder.0.join("linked");
        symlink("data", &linked).unwrap();
        let start = |program: &Path| {
            let mut command = Command::new(program);
            command.args(["-c", "read x; :", "x"]);
            for folder in folders.iter().chain([&below]) {
                command.arg("--data-root").arg(folder);
            }
            command
        };
        let running = Running::start(&mut start(&engine), "dockerd");
        let daemons = Daemons::find(&Root::new(Path::new("/")));
        assert!(told(&daemons, data) && told(&daemons, in_tmp));
        for other in [open, users, &below, users_in_tmp] {
            assert!(!told(&daemons, other), "{}", other.display());
        }
        drop(running);
        // Links are what they lead to.
        let mut command = Command::new(&engine);
        command.args(["-c", "read x; :", "x"]);
        let running = Running::start(command.arg("--data-root").arg(&linked), "dockerd");
        let daemons = Daemons::find(&Root::new(Path::new("/")));
        assert!(told(&daemons, data) && !told(&daemons, &linked));
        drop(running);
        // Others: a program in a folder of everybody's, of another name, and of another user.
        let everybodys = open.join("dockerd");
        fs::copy("/bin/sh", &everybodys).unwrap();
        let called = folder.folder("called").join("dockerd");
        symlink("/bin/sh", &called).unwrap();
        let mut users = start(&engine);
        users.uid(65534);
        for mut command in [start(&everybodys), start(&called), users] {
            let _running = Running::start(&mut command, "dockerd");
            let daemons = Daemons::find(&Root::new(Path::new("/")));
            assert!(!told(&daemons, data), "{command:?}");
        }
    }

    #[test]
    fn a_program_that_becomes_root_under_an_engines_name_is_none() {
        let Some(folder) = Folder::new("becomes") else {
            return;
        };
        let data = folder.folder("data");
        let called = folder.0.join("dockerd");
        symlink("/usr/bin/su", &called).unwrap();
        let mut command = Command::new(&called);
        command
            .args(["--", "root", "--data-root"])
            .arg(&data)
            .uid(65534);
        // It waits for a password.
        let running = Running::start(&mut command, "dockerd");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(
            fs::metadata(format!("/proc/{}", running.0.id()))
                .unwrap()
                .uid(),
            0
        );
        assert!(!told(&Daemons::find(&Root::new(Path::new("/"))), &data));
    }

    #[test]
    fn users_of_a_process() {
        assert!(is_all_of(
            "Name:\ta\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n",
            0
        ));
        for other in [
            "",
            "Uid:\t0\t0\t0\n",
            "Uid:\t1000\t0\t0\t0\n",
            "Uid:\t0\t0\t1\t0\n",
        ] {
            assert!(!is_all_of(other, 0), "{other}");
        }
    }

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
