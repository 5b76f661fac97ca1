//! The paths that engines make, by each of their drivers.

use proptest::prelude::*;

use super::*;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf0123456789abcdef0123456789abcdef";
const UID: &str = "6f4f6ae2-0be9-4d4b-a13c-6f3ef02f3a4f";
const UID_: &str = "6f4f6ae2_0be9_4d4b_a13c_6f3ef02f3a4f";

/// `{A}`, `{B}`, `{UID}` and `{UID_}` stand for ids.
fn filled(pattern: &str) -> String {
    [("{A}", A), ("{B}", B), ("{UID}", UID), ("{UID_}", UID_)]
        .iter()
        .fold(pattern.to_owned(), |text, (from, to)| {
            text.replace(from, to)
        })
}

/// A container's path, up to `|`, and what is below it.
fn container(pattern: &str, engine: Engine, id: &str, pod: Option<&str>) {
    let pattern = filled(pattern);
    let (cgroup, below) = pattern.split_once('|').unwrap_or((&pattern, ""));
    let expected = Identity {
        cgroup: cgroup.to_owned(),
        engine,
        id: Some(id.to_owned()),
        name: None,
        pod_uid: pod.map(str::to_owned),
        unit: None,
    };
    for path in [
        format!("{cgroup}{below}"),
        cgroup.to_owned(),
        format!("{cgroup}/init/x.service"),
    ] {
        assert_eq!(identify(&path).as_ref(), Some(&expected), "{path}");
    }
}

#[test]
fn docker() {
    use Engine::Docker;
    container("/docker/{A}", Docker, A, None);
    container("/docker/{A}|/system.slice/nginx.service", Docker, A, None);
    container("/system.slice/docker-{A}.scope", Docker, A, None);
    container(
        "/system.slice/docker-{A}.scope|/init.scope",
        Docker,
        A,
        None,
    );
    container("/system.slice/docker.service/docker/{A}", Docker, A, None);
    container(
        "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{A}.scope",
        Docker,
        A,
        None,
    );
    // In docker-in-docker the inner one counts.
    container("/docker/{B}/docker/{A}|/deeper", Docker, A, None);
    container("/system.slice/docker-{B}.scope/docker/{A}", Docker, A, None);
    container(
        "/lxc.payload.outer/system.slice/docker-{A}.scope",
        Docker,
        A,
        None,
    );
    container("/system.slice:docker:{A}", Docker, A, None);
    // Below a parent of the user's choice only the id tells that it is one.
    container("/mine/{A}", Engine::Oci, A, None);
}

#[test]
fn podman() {
    use Engine::Podman;
    container("/machine.slice/libpod-{A}.scope", Podman, A, None);
    container(
        "/machine.slice/libpod-{A}.scope|/container",
        Podman,
        A,
        None,
    );
    container(
        "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope|/container",
        Podman,
        A,
        None,
    );
    container("/libpod_parent/libpod-{A}", Podman, A, None);
    container("/libpod_parent/{B}/libpod-{A}", Podman, A, None);
    container(
        "/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope",
        Podman,
        A,
        None,
    );
    container(
        "/system.slice/web.service/libpod-payload-{A}",
        Podman,
        A,
        None,
    );
    nothing("/machine.slice/libpod-conmon-{A}.scope");
    nothing("/libpod_parent/{B}");
    nothing("/libpod_parent/conmon");
    nothing("/libpod_parent/libpod-conmon-{A}");
    nothing("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-conmon-{A}.scope");
}

#[test]
fn containerd() {
    use Engine::Containerd;
    container("/default/{A}", Containerd, A, None);
    container("/default/web-1", Containerd, "web-1", None);
    container("/k8s.io/{A}", Containerd, A, None);
    container("/system.slice/nerdctl-{A}.scope", Containerd, A, None);
    container("/docker/{B}/k8s.io/{A}", Containerd, A, None);
    container("/moby/{A}", Engine::Docker, A, None);
    nothing("/mine/default/web-1");
}

#[test]
fn cri_o() {
    use Engine::CriO;
    container("/system.slice/crio-{A}.scope", CriO, A, None);
    container(
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{A}.scope|/container",
        CriO,
        A,
        Some(UID),
    );
    container("/kubepods/burstable/pod{UID}/crio-{A}", CriO, A, Some(UID));
    nothing("/system.slice/crio-conmon-{A}.scope");
    nothing("/kubepods.slice/kubepods-pod{UID_}.slice/crio-conmon-{A}.scope");
}

#[test]
fn kubernetes() {
    use Engine::{Containerd, Docker, Oci};
    let pod = Some(UID);
    let slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice";
    container(
        &format!("{slice}/cri-containerd-{{A}}.scope"),
        Containerd,
        A,
        pod,
    );
    container(&format!("{slice}/docker-{{A}}.scope"), Docker, A, pod);
    let guaranteed = "/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope";
    container(guaranteed, Containerd, A, pod);
    container("/kubepods/besteffort/pod{UID}/{A}", Oci, A, pod);
    container("/kubepods/pod{UID}/{A}|/x", Oci, A, pod);
    let colons = "/system.slice/containerd.service/\
                  kubepods-burstable-pod{UID_}.slice:cri-containerd:{A}";
    container(colons, Containerd, A, pod);
    // A node that is itself a container.
    let nested = "/docker/{B}/kubelet.slice/kubelet-kubepods.slice/\
                  kubelet-kubepods-besteffort.slice/\
                  kubelet-kubepods-besteffort-pod{UID_}.slice/cri-containerd-{A}.scope";
    container(nested, Containerd, A, pod);
    // A container in a container of a pod is none of the pod's.
    container("/kubepods/pod{UID}/{B}/docker/{A}", Docker, A, None);

    for (path, uid) in [
        (slice.to_owned(), UID),
        ("/kubepods.slice/kubepods-pod{UID_}.slice".to_owned(), UID),
        ("/kubepods/burstable/pod{UID}".to_owned(), UID),
        ("/kubepods/pod{UID}".to_owned(), UID),
        (
            "/kubepods/burstable/pod0123456789abcdef0123456789abcdef".to_owned(),
            "0123456789abcdef0123456789abcdef",
        ),
    ] {
        let path = filled(&path);
        let found = identify(&format!("{path}/unknown")).unwrap();
        let shown = (
            found.cgroup,
            found.id,
            found.pod_uid.as_deref(),
            found.engine,
        );
        assert_eq!(shown, (path, None, Some(uid), Oci));
    }
    nothing("/kubepods.slice/kubepods-burstable.slice");
    nothing("/kubepods/burstable");
    nothing("/kubepods/burstable/podium");
    nothing("/mine/pod{UID}");
}

fn named(pattern: &str, engine: Engine, name: &str) {
    let (cgroup, below) = pattern.split_once('|').unwrap_or((pattern, ""));
    let found = identify(&format!("{cgroup}{below}")).unwrap();
    let shown = (found.cgroup.as_str(), found.engine, found.name.as_deref());
    assert_eq!(shown, (cgroup, engine, Some(name)));
    assert_eq!((found.id, found.pod_uid, found.unit), (None, None, None));
}

#[test]
fn lxc() {
    named("/lxc.payload.web", Engine::Lxc, "web");
    named(
        "/lxc.payload.web|/system.slice/nginx.service",
        Engine::Lxc,
        "web",
    );
    named("/lxc.payload.web-1|/init.scope", Engine::Lxc, "web-1");
    named("/lxc.payload/web", Engine::Lxc, "web");
    named("/lxc/101|/ns", Engine::Lxc, "101");
    named(
        "/user.slice/user-1000.slice/session-2.scope/lxc.payload.mine|/x",
        Engine::Lxc,
        "mine",
    );
    nothing("/lxc.monitor.web");
    nothing("/lxc.monitor/web");
    nothing("/lxc.pivot");
    nothing("/lxc");
    nothing("/lxc.payload.");
}

#[test]
fn nspawn() {
    named("/machine.slice/machine-web.scope", Engine::Nspawn, "web");
    named(
        "/machine.slice/machine-my\\x2dweb.scope|/payload",
        Engine::Nspawn,
        "my-web",
    );
    named(
        "/machine.slice/systemd-nspawn@my\\x2dweb.service|/payload/system.slice/x.service",
        Engine::Nspawn,
        "my-web",
    );
    named(
        "/machine.slice/machine-a\\x2.scope",
        Engine::Nspawn,
        "a\\x2",
    );
    unit("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope|/libvirt");
}

fn unit(pattern: &str) {
    let (cgroup, below) = pattern.split_once('|').unwrap_or((pattern, ""));
    let found = identify(&format!("{cgroup}{below}")).unwrap();
    let name = cgroup.rsplit('/').next();
    let shown = (found.cgroup.as_str(), found.engine, found.unit.as_deref());
    assert_eq!(shown, (cgroup, Engine::Systemd, name));
    assert_eq!((found.id, found.pod_uid, found.name), (None, None, None));
}

#[test]
fn units() {
    unit("/init.scope");
    unit("/system.slice/nginx.service");
    unit("/system.slice/nginx.service|/worker");
    unit("/system.slice/docker.service");
    unit("/system.slice/docker-notanid.scope");
    unit("/system.slice/system-getty.slice/getty@tty1.service");
    unit("/system.slice/systemd-udevd.service|/udev");
    unit("/user.slice/user-1000.slice/session-2.scope");
    unit("/user.slice/user-1000.slice/user@1000.service|/app.slice");
    unit("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.service|/sub");
    unit("/user.slice/user-1000.slice/user@1000.service/init.scope");
    unit("/system.slice/dev-sda1.swap");
    unit("/system.slice/a.socket");
}

#[test]
fn runtimes_alone() {
    container(
        "/system.slice/runc-my-web.scope",
        Engine::Oci,
        "my-web",
        None,
    );
    container(
        "/user.slice/crun-x.scope|/container",
        Engine::Oci,
        "x",
        None,
    );
    // Only the state files of the runtime know of these.
    nothing("/web");
    nothing("/user.slice/web");
}

fn nothing(pattern: &str) {
    let path = filled(pattern);
    assert_eq!(identify(&path), None, "{path}");
}

#[test]
fn neither() {
    for path in [
        "",
        "/",
        "//",
        "/system.slice",
        "/user.slice/user-1000.slice",
        "/process_api/e915b9d8644af235d217a821e4eeb20c",
        "/docker",
        "/docker/short",
        "/.service",
        "/.scope",
        "/machine-.scope",
        // An id in capitals is none.
        "/docker/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ] {
        nothing(path);
    }
}

proptest! {
    #[test]
    fn any_path_is_survived(path in ".{0,200}") {
        if let Some(found) = identify(&path) {
            prop_assert!(path.starts_with(&found.cgroup));
        }
    }

    #[test]
    fn what_is_found_is_found_again(
        parts in proptest::collection::vec(
            prop_oneof![
                Just(A.to_owned()),
                Just("docker".to_owned()),
                Just("kubepods".to_owned()),
                Just(format!("pod{UID}")),
                Just(format!("libpod-{B}.scope")),
                Just(format!("crio-conmon-{B}.scope")),
                Just("a.service".to_owned()),
                Just("lxc".to_owned()),
                Just("x".to_owned()),
                "[a-z.:\\\\-]{0,12}",
            ],
            0..8,
        )
    ) {
        let path = format!("/{}", parts.join("/"));
        if let Some(found) = identify(&path) {
            prop_assert_eq!(identify(&found.cgroup), Some(found));
        }
    }
}
