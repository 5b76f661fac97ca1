//! Engines whose files are in a folder, and sockets that answer like theirs.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::book::PLACES_FOR_STRANGERS;
use super::*;

pub(in crate::container) const A: &str =
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(in crate::container) const B: &str =
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const UID: &str = "6f4f6ae2-0be9-4d4b-a13c-6f3ef02f3a4f";

/// A machine's root that is removed with its value.
pub(in crate::container) struct Machine(pub(in crate::container) PathBuf);

impl Machine {
    pub(in crate::container) fn new(name: &str) -> Machine {
        let name = format!("profiler-engines-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Machine(path)
    }

    pub(in crate::container) fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A file of a user's, in folders of the user's below a home or a session.
    pub(in crate::container) fn users_file(&self, user: u32, path: &str, text: &str) {
        self.file(path, text);
        let parts: Vec<&Path> = Path::new(path).ancestors().collect();
        for part in parts.iter().rev().skip(2) {
            std::os::unix::fs::chown(self.0.join(part), Some(user), Some(user)).unwrap();
        }
    }

    fn describe(&self, cgroup: &str) -> Container {
        let mut engines = Engines::at(&self.0);
        let identity = engines.identify(cgroup).unwrap();
        engines.describe(&identity)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A folder where nothing is ever answered, until the value is dropped.
pub(in crate::container) struct Silence {
    folder: PathBuf,
    _server: fs::File,
}

impl Silence {
    /// None where there can be none, which is said.
    pub(in crate::container) fn at(folder: &Path, test: &str) -> Option<Silence> {
        use std::os::fd::AsRawFd;
        let mut options = fs::OpenOptions::new();
        let Ok(server) = options.read(true).write(true).open("/dev/fuse") else {
            crate::skip::skip(test, "needs /dev/fuse");
            return None;
        };
        fs::create_dir_all(folder).unwrap();
        let fd = server.as_raw_fd();
        let data = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let data = std::ffi::CString::new(data).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        match rustix::mount::mount("silence", folder, "fuse", flags, data.as_c_str()) {
            Ok(()) => Some(Silence {
                folder: folder.to_owned(),
                _server: server,
            }),
            Err(_) => {
                crate::skip::skip(test, "needs the right to mount FUSE");
                None
            }
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.folder, rustix::mount::UnmountFlags::DETACH);
    }
}

pub(in crate::container) fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        crate::skip::skip(test, "needs root");
    }
    is_root
}

fn shown(container: &Container) -> [&str; 5] {
    [
        container.engine.name(),
        container.name.as_deref().unwrap_or("-"),
        container.image.as_deref().unwrap_or("-"),
        container.pod.as_deref().unwrap_or("-"),
        container.namespace.as_deref().unwrap_or("-"),
    ]
}

pub(in crate::container) fn docker_file(id: &str, name: &str) -> String {
    format!(r#"{{"ID":"{id}","Name":"/{name}","Config":{{"Image":"nginx:1"}}}}"#)
}

#[test]
fn files_of_docker() {
    let machine = Machine::new("docker");
    let path = |root: &str, id: &str| format!("{root}/containers/{id}/config.v2.json");
    machine.file(&path("var/lib/docker", A), &docker_file(A, "web"));
    machine.file("etc/docker/daemon.json", r#"{"data-root":"/srv/docker"}"#);
    machine.file(
        &path("srv/docker", B),
        &docker_file(B, "k8s_app_web-0_prod_6f_0"),
    );
    // A user's claim to have a container of root's.
    machine.file(
        &path("home/eve/.local/share/docker", A),
        &docker_file(A, "mine"),
    );
    let found = machine.describe(&format!("/docker/{A}/below"));
    assert_eq!(shown(&found), ["docker", "web", "nginx:1", "-", "-"]);
    assert_eq!(found.identity.cgroup, format!("/docker/{A}"));
    // Below a parent that says nothing of the engine.
    let found = machine.describe(&format!("/mine/{A}"));
    assert_eq!(shown(&found), ["docker", "web", "nginx:1", "-", "-"]);
    let found = machine.describe(&format!("/kubepods/pod{UID}/{B}"));
    assert_eq!(shown(&found), ["docker", "app", "nginx:1", "web-0", "prod"]);
}

/// A folder of a user's, who has a Docker and a Podman there that claim to have two containers.
fn claims(name: &str) -> Machine {
    let machine = Machine::new(name);
    machine.file("etc/passwd", "eve:x:1000:1000::/home/eve:/bin/sh\n");
    machine.file(
        &format!("home/eve/.local/share/docker/containers/{A}/config.v2.json"),
        &docker_file(A, "hers"),
    );
    machine.file(
        "home/eve/.local/share/containers/storage/overlay-containers/containers.json",
        &format!(r#"[{{"id":"{B}","names":["hers"],"metadata":"{{\"image-name\":\"pg:1\"}}"}}]"#),
    );
    machine
}

#[test]
fn what_a_user_says_counts_for_the_users_own() {
    let machine = claims("users");
    let hers = "/user.slice/user-1000.slice/user@1000.service/user.slice";
    let found = machine.describe(&format!("{hers}/docker-{A}.scope"));
    assert_eq!(shown(&found), ["docker", "hers", "nginx:1", "-", "-"]);
    let found = machine.describe(&format!("{hers}/libpod-{B}.scope"));
    assert_eq!(shown(&found), ["podman", "hers", "pg:1", "-", "-"]);
    for (others, engine) in [
        (format!("/docker/{A}"), "docker"),
        (format!("/mine/{A}"), "oci"),
        (format!("/user.slice/user-1001.slice/{A}"), "oci"),
        (format!("/machine.slice/libpod-{B}.scope"), "podman"),
    ] {
        let found = machine.describe(&others);
        assert_eq!(shown(&found), [engine, "-", "-", "-", "-"], "{others}");
    }
}

#[test]
fn what_a_socket_of_a_session_says_counts_for_the_users_own() {
    let machine = Machine::new("session");
    let list = format!(
        r#"[{{"Id":"{A}","Names":["/hers"],"Image":"nginx:1"}},
        {{"Id":"{B}","Names":["/hers"],"Image":"pg:1"}}]"#
    );
    let inspection = format!(r#"{{"Id":"{A}","Name":"/hers","Config":{{"Image":"nginx:1"}}}}"#);
    let socket = machine.0.join("run/user/1000/docker.sock");
    let server = serve(&socket, vec![inspection, list]);
    let mut engines = Engines::at(&machine.0);
    let identity = |path: String| identify(&path).unwrap();
    let hers = identity(format!("/user.slice/user-1000.slice/docker-{A}.scope"));
    let others = identity(format!("/docker/{B}"));
    // Root's is not asked about.
    assert_eq!(engines.describe(&others), Container::new(others.clone()));
    let found = engines.describe_all(&[hers, others.clone()]);
    assert_eq!(shown(&found[0]), ["docker", "hers", "nginx:1", "-", "-"]);
    assert_eq!(found[1], Container::new(others));
    // Ends the server.
    let _ = engines.describe_all(&[
        identity(format!("/user.slice/user-1000.slice/{A}")),
        identity(format!("/user.slice/user-1000.slice/{B}")),
    ]);
    let asked = server.join().unwrap();
    assert_eq!(asked[0], format!("GET /containers/{A}/json HTTP/1.1"));
    assert_eq!(asked[1], "GET /containers/json?all=1 HTTP/1.1");
}

#[test]
fn files_of_containerd() {
    let machine = Machine::new("containerd");
    let task = |namespace: &str, id: &str| {
        format!("run/containerd/io.containerd.runtime.v2.task/{namespace}/{id}/config.json")
    };
    let annotations = format!(
        r#"{{"annotations":{{"io.kubernetes.cri.container-type":"container",
        "io.kubernetes.cri.container-name":"app","io.kubernetes.cri.image-name":"nginx:1",
        "io.kubernetes.cri.sandbox-name":"web-0","io.kubernetes.cri.sandbox-namespace":"prod",
        "io.kubernetes.cri.sandbox-uid":"{UID}"}}}}"#
    );
    machine.file(&task("k8s.io", A), &annotations);
    machine.file(
        &task("default", B),
        r#"{"annotations":{"nerdctl/name":"web"}}"#,
    );
    let uid = UID.replace('-', "_");
    let slice = format!("/kubepods.slice/kubepods-pod{uid}.slice");
    let found = machine.describe(&format!("{slice}/cri-containerd-{A}.scope"));
    assert_eq!(
        shown(&found),
        ["containerd", "app", "nginx:1", "web-0", "prod"]
    );
    let found = machine.describe(&format!("/k8s.io/{A}"));
    assert_eq!(found.identity.pod_uid.as_deref(), Some(UID));
    let found = machine.describe(&format!("/system.slice/nerdctl-{B}.scope"));
    assert_eq!(shown(&found), ["containerd", "web", "-", "-", "-"]);
}

#[test]
fn names_of_logs_name_pods() {
    let machine = Machine::new("pods");
    machine.file(&format!("var/log/pods/prod_web-0_{UID}/app/0.log"), "");
    machine.file(&format!("var/log/containers/web-0_prod_app-{A}.log"), "");
    let pod = machine.describe(&format!("/kubepods/burstable/pod{UID}"));
    assert_eq!(shown(&pod), ["oci", "-", "-", "web-0", "prod"]);
    let found = machine.describe(&format!("/kubepods/burstable/pod{UID}/{A}"));
    assert_eq!(shown(&found), ["oci", "app", "-", "web-0", "prod"]);
    // Of the other one only the pod is told.
    let found = machine.describe(&format!("/kubepods/burstable/pod{UID}/{B}"));
    assert_eq!(shown(&found), ["oci", "-", "-", "web-0", "prod"]);
}

#[test]
fn files_of_podman_and_cri_o() {
    let machine = Machine::new("podman");
    let storage = "var/lib/containers/storage/overlay-containers";
    machine.file(
        &format!("{storage}/containers.json"),
        &format!(r#"[{{"id":"{A}","names":["web"],"metadata":"{{\"image-name\":\"nginx:1\"}}"}}]"#),
    );
    machine.file(
        &format!("{storage}/{B}/userdata/config.json"),
        r#"{"annotations":{"io.kubernetes.pod.name":"web-0",
        "io.kubernetes.pod.namespace":"prod","io.kubernetes.container.name":"app",
        "io.kubernetes.cri-o.ImageName":"nginx:1"}}"#,
    );
    let found = machine.describe(&format!("/machine.slice/libpod-{A}.scope/container"));
    assert_eq!(shown(&found), ["podman", "web", "nginx:1", "-", "-"]);
    let found = machine.describe(&format!("/kubepods/pod{UID}/crio-{B}"));
    assert_eq!(shown(&found), ["cri-o", "app", "nginx:1", "web-0", "prod"]);
}

#[test]
fn states_of_runtimes() {
    let machine = Machine::new("runtimes");
    let state = |path: &str| format!(r#"{{"cgroup_paths":{{"":"/sys/fs/cgroup{path}"}}}}"#);
    machine.file("run/runc/rc1/state.json", &state("/user.slice/s.scope/rc1"));
    machine.file("run/crun/cr1/status", r#"{"cgroup-path":"/cr1"}"#);
    // A user's runtime has a say in what is the user's.
    machine.file(
        "run/user/1000/runc/evil/state.json",
        &state("/system.slice/a.service"),
    );
    let mine = "/user.slice/user-1000.slice/mine";
    machine.file("run/user/1000/runc/mine/state.json", &state(mine));
    machine.file("run/user/1000/runc/all/state.json", &state("/user.slice"));
    let mut engines = Engines::at(&machine.0);
    let mut id = |path: &str| engines.identify(path).and_then(|found| found.id);
    assert_eq!(id("/user.slice/s.scope/rc1/below").as_deref(), Some("rc1"));
    assert_eq!(id("/user.slice/s.scope/rc10"), None);
    assert_eq!(id("/cr1").as_deref(), Some("cr1"));
    assert_eq!(id("/system.slice/a.service/x"), None);
    assert_eq!(id(mine).as_deref(), Some("mine"));
    assert_eq!(id("/user.slice/user-1000.slice/other"), None);
    assert_eq!(id(&format!("/cr1/docker/{A}")).as_deref(), Some(A));
    assert_eq!(engines.identify("/other"), None);
    let identity = engines.identify("/cr1").unwrap();
    assert_eq!(engines.describe(&identity).name.as_deref(), Some("cr1"));
}

/// Answers as many connections with these bytes, and tells what was asked.
fn serve(socket: &Path, answers: Vec<String>) -> std::thread::JoinHandle<Vec<String>> {
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let answer = |answer: String| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let size = answer.len();
            write!(stream, "{head}{size:x}\r\n{answer}\r\n0\r\n\r\n").unwrap();
            let request = String::from_utf8_lossy(&request[..length]);
            request.lines().next().unwrap_or_default().to_owned()
        };
        answers.into_iter().map(answer).collect()
    })
}

#[test]
fn sockets_are_asked_for_what_no_file_says() {
    let machine = Machine::new("socket");
    let inspection = format!(r#"{{"Id":"{A}","Name":"/web","Config":{{"Image":"nginx:1"}}}}"#);
    let list = format!(
        r#"[{{"Id":"{A}","Names":["/web"],"Image":"nginx:1"}},
        {{"Id":"{B}","Names":["/db"],"Image":"pg:1"}}]"#
    );
    let socket = machine.0.join("run/docker.sock");
    let server = serve(&socket, vec![inspection, list, "garbage".to_owned()]);
    let mut engines = Engines::at(&machine.0);
    let one = identify(&format!("/docker/{A}")).unwrap();
    let two = identify(&format!("/docker/{B}")).unwrap();
    let found = engines.describe(&one);
    assert_eq!(shown(&found), ["docker", "web", "nginx:1", "-", "-"]);
    let found = engines.describe_all(&[one.clone(), two]);
    assert_eq!(shown(&found[1]), ["docker", "db", "pg:1", "-", "-"]);
    assert_eq!(engines.describe(&one), Container::new(one));
    let asked = server.join().unwrap();
    assert_eq!(asked[0], format!("GET /containers/{A}/json HTTP/1.1"));
    assert_eq!(asked[1], "GET /containers/json?all=1 HTTP/1.1");
}

#[test]
fn no_engine_at_all() {
    let machine = Machine::new("none");
    let found = machine.describe(&format!("/docker/{A}"));
    assert_eq!(shown(&found), ["docker", "-", "-", "-", "-"]);
}

#[test]
fn engines_that_are_started_later() {
    let machine = Machine::new("later");
    let identity = identify(&format!("/docker/{A}")).unwrap();
    let mut engines = Engines::at(&machine.0);
    assert_eq!(engines.describe(&identity).name, None);
    machine.file("etc/docker/daemon.json", r#"{"data-root":"/srv/docker"}"#);
    machine.file(
        &format!("srv/docker/containers/{A}/config.v2.json"),
        &docker_file(A, "web"),
    );
    std::thread::sleep(PLACES_FOR_STRANGERS);
    assert_eq!(engines.describe(&identity).name.as_deref(), Some("web"));
}
