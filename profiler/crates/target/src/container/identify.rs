//! The path of a cgroup -> which container, pod or unit it belongs to.
//!
//! A path as in /proc/PID/cgroup -> [`Identity`]. Sources: the cgroup drivers of the engines (`cgroupfs`
//! names directories by ids, `systemd` makes scopes `PREFIX-ID.scope`), Kubernetes' kubepods, LXC's
//! `lxc.payload`, systemd's units. A container's name among others than ids is as the path has it.
//!
//! What does not belong here: containers whose path says nothing, which only the state files of their
//! runtime tell (`engines`).

use super::{Engine, Identity};

/// What one part of a path says.
enum Part<'p> {
    /// A container begins here.
    Container {
        engine: Engine,
        id: Option<&'p str>,
        name: Option<String>,
    },
    /// A pod of Kubernetes begins here.
    Pod(String),
    /// A unit of systemd.
    Unit,
    /// A process that looks after a container: neither that container's nor a unit of its own.
    Monitor,
    /// Nothing.
    Nothing,
}

/// The innermost container or unit that a cgroup's path belongs to; none for slices, the root, and what
/// no engine has made. A unit in a container is a part of the container.
pub fn identify(path: &str) -> Option<Identity> {
    let mut found: Option<Identity> = None;
    let mut parents = ["", ""];
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        let cgroup = &path[..end];
        end += 1;
        if part.is_empty() {
            continue;
        }
        match understand(parents, part) {
            Part::Container { engine, id, name } => {
                let pod = found.as_ref().filter(|around| is_pod(around));
                let pod_uid = pod.and_then(|around| around.pod_uid.clone());
                found = Some(Identity {
                    cgroup: cgroup.to_owned(),
                    engine,
                    id: id.map(str::to_owned),
                    name,
                    pod_uid: pod_uid.or_else(|| pod_of(part.split(':').next()?)),
                    unit: None,
                });
            }
            Part::Pod(uid) => {
                found = Some(Identity {
                    cgroup: cgroup.to_owned(),
                    engine: Engine::Oci,
                    id: None,
                    name: None,
                    pod_uid: Some(uid),
                    unit: None,
                });
            }
            Part::Unit => {
                if found.as_ref().is_none_or(|around| around.unit.is_some()) {
                    found = Some(Identity {
                        cgroup: cgroup.to_owned(),
                        engine: Engine::Systemd,
                        id: None,
                        name: None,
                        pod_uid: None,
                        unit: Some(part.to_owned()),
                    });
                }
            }
            // What looks after a container that is in another one belongs to the outer one.
            Part::Monitor => {
                return found.filter(|around| around.unit.is_none() && !is_pod(around));
            }
            Part::Nothing => {}
        }
        parents = [parents[1], part];
    }
    found
}

/// Whether it is a pod, not a container in one.
fn is_pod(identity: &Identity) -> bool {
    identity.id.is_none() && identity.pod_uid.is_some()
}

/// What a part of a path means below its two parents, of which the last is the nearest.
fn understand<'p>(parents: [&str; 2], part: &'p str) -> Part<'p> {
    let parent = parents[1];
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return named(Engine::Lxc, name.to_owned());
    }
    if part.starts_with("lxc.monitor") || part == "lxc.pivot" {
        return Part::Monitor;
    }
    match parent {
        "lxc" | "lxc.payload" => return named(Engine::Lxc, part.to_owned()),
        "libpod_parent" if part == "conmon" => return Part::Monitor,
        _ => {}
    }
    if let Some(unit) = part.strip_suffix(".scope")
        && !unit.is_empty()
    {
        return scope(unit);
    }
    if let Some(instance) = part.strip_prefix("systemd-nspawn@")
        && let Some(name) = instance.strip_suffix(".service")
    {
        return named(Engine::Nspawn, unescaped(name));
    }
    // The systemd driver's notation, taken by the cgroupfs driver as a name: SLICE:PREFIX:ID.
    if let Some((slice, rest)) = part.split_once(':')
        && slice.ends_with(".slice")
        && let Some((prefix, id)) = rest.split_once(':')
        && is_id(id)
    {
        return container(by_prefix(prefix).unwrap_or(Engine::Oci), id);
    }
    if let Some(uid) = pod_of(part) {
        return Part::Pod(uid);
    }
    if let Some(uid) = part.strip_prefix("pod")
        && (parent == "kubepods"
            || (parents[0] == "kubepods" && ["burstable", "besteffort"].contains(&parent)))
        && is_uid(uid)
    {
        return Part::Pod(uid.replace('_', "-"));
    }
    if is_unit(part) {
        return Part::Unit;
    }
    if parent == "libpod_parent" && is_id(part) {
        // A pod of Podman, in which its containers are.
        return Part::Nothing;
    }
    by_id(parents, part)
}

/// A container that the cgroupfs driver has made.
fn by_id<'p>(parents: [&str; 2], part: &'p str) -> Part<'p> {
    let parent = parents[1];
    if is_id(part) {
        return match parent {
            "docker" | "moby" => container(Engine::Docker, part),
            "default" | "k8s.io" => container(Engine::Containerd, part),
            _ => container(Engine::Oci, part),
        };
    }
    if let Some((prefix, id)) = part.rsplit_once('-')
        && is_id(id)
    {
        return match prefix {
            "libpod-payload" => container(Engine::Podman, id),
            prefix if prefix.ends_with("conmon") => Part::Monitor,
            prefix => match by_prefix(prefix) {
                Some(engine) => container(engine, id),
                None => Part::Nothing,
            },
        };
    }
    // containerd's own client lets people choose ids.
    match parents {
        ["", "default" | "k8s.io"] => container(Engine::Containerd, part),
        _ => Part::Nothing,
    }
}

/// A scope, without its ending.
fn scope(unit: &str) -> Part<'_> {
    if let Some(name) = unit.strip_prefix("machine-") {
        // libvirt's machines have the driver and a number before the name.
        return match name.starts_with("qemu\\x2d") || name.starts_with("lxc\\x2d") {
            true => Part::Unit,
            false => named(Engine::Nspawn, unescaped(name)),
        };
    }
    if let Some((prefix, id)) = unit.rsplit_once('-')
        && is_id(id)
    {
        return match by_prefix(prefix) {
            Some(engine) => container(engine, id),
            None if prefix.ends_with("conmon") => Part::Monitor,
            None => Part::Unit,
        };
    }
    // The runtimes themselves take any id.
    match unit.split_once('-') {
        Some(("runc" | "crun" | "youki", id)) if !id.is_empty() => container(Engine::Oci, id),
        _ => Part::Unit,
    }
}

/// What engine puts this before its ids.
fn by_prefix(prefix: &str) -> Option<Engine> {
    Some(match prefix {
        "docker" => Engine::Docker,
        "libpod" => Engine::Podman,
        "cri-containerd" | "nerdctl" | "containerd" => Engine::Containerd,
        "crio" => Engine::CriO,
        "runc" | "crun" | "youki" => Engine::Oci,
        _ => return None,
    })
}

/// The pod whose slice this is: `kubepods-burstable-podUID.slice`, perhaps with something before it.
fn pod_of(part: &str) -> Option<String> {
    let (class, uid) = part.strip_suffix(".slice")?.rsplit_once("-pod")?;
    let class = class.trim_end_matches("-burstable");
    let class = class.trim_end_matches("-besteffort");
    let is_class = class == "kubepods" || class.ends_with("-kubepods");
    (is_class && is_uid(uid)).then(|| uid.replace('_', "-"))
}

fn container(engine: Engine, id: &str) -> Part<'_> {
    Part::Container {
        engine,
        id: Some(id),
        name: None,
    }
}

fn named<'p>(engine: Engine, name: String) -> Part<'p> {
    match name.is_empty() {
        true => Part::Nothing,
        false => Part::Container {
            engine,
            id: None,
            name: Some(name),
        },
    }
}

/// Whether it is an id as engines make them.
fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 64 && text.bytes().all(is_digit)
}

/// Whether it can be the unique id of a pod: a UUID, or the hash of a static pod's file.
fn is_uid(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-' || byte == b'_';
    (16..=64).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Whether it is the name of a unit that can have processes.
fn is_unit(part: &str) -> bool {
    const ENDINGS: [&str; 4] = [".service", ".socket", ".mount", ".swap"];
    let mut endings = ENDINGS.iter();
    endings.any(|ending| {
        part.strip_suffix(ending)
            .is_some_and(|name| !name.is_empty())
    })
}

/// A name out of a unit's, in which systemd has escaped characters: `\x2d`.
fn unescaped(text: &str) -> String {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind.strip_prefix(b"x").and_then(|code| code.get(..2));
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if first == b'\\' => {
                name.push(byte);
                rest = &behind[3..];
            }
            _ => {
                name.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&name).into_owned()
}

#[cfg(test)]
mod tests;
