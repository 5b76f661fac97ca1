//! Where engines have their files and sockets: root's, and a user's.
//!
//! A root, and whose -> folders and sockets that exist, and the cgroups that what is said there is about.
//!
//! What does not belong here: what is in them (`book`), who is asked about what (`users`).

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::daemons::Daemons;
use super::files::Root;
use super::{containerd, docker, oci, podman};
use crate::user::User;

/// A folder or a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// What is said there is about this cgroup and those below it only.
    pub(super) within: String,
}

impl Place {
    /// Of the machine's own engines, who speak about all of it.
    pub(super) fn all_over(paths: Vec<PathBuf>) -> Vec<Place> {
        let place = |path| Place {
            path,
            within: String::new(),
        };
        paths.into_iter().map(place).collect()
    }

    /// Something in a folder.
    pub(super) fn below(&self, name: &str) -> Place {
        Place {
            path: self.path.join(name),
            within: self.within.clone(),
        }
    }
}

/// Whose engines are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Root's. `is_machine`: of the machine that this process runs on.
    Roots {
        /// What is known of this process is about it, too.
        is_machine: bool,
    },
    /// A user's.
    User(u32),
}

/// Where engines have their files and sockets.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) docker: Vec<Place>,
    pub(super) docker_sockets: Vec<Place>,
    pub(super) storages: Vec<PathBuf>,
    pub(super) podman_sockets: Vec<Place>,
    pub(super) tasks: Vec<Place>,
    pub(super) containerd_sockets: Vec<Place>,
    pub(super) crio_sockets: Vec<Place>,
    /// Whoever else may speak Kubernetes' language.
    pub(super) cri_sockets: Vec<Place>,
    pub(super) runtimes: Vec<Place>,
}

impl Places {
    pub(super) fn find(root: &Root, whose: Whose) -> Places {
        match whose {
            Whose::Roots { is_machine } => Places::of_root(root, is_machine),
            Whose::User(user) => Places::of_user(root, user),
        }
    }

    fn of_root(root: &Root, is_machine: bool) -> Places {
        let told = Daemons::find(root);
        let states = containerd::states(root, &told.containerd_states);
        let existing =
            |paths: &[&str]| Place::all_over(root.existing(paths.iter().map(PathBuf::from)));
        // Only what speaks for this machine speaks for its files.
        let host = |variable: &str| {
            let value = std::env::var(variable).ok().filter(|_| is_machine);
            let path = value.and_then(|value| Some(value.strip_prefix("unix://")?.into()));
            Place::all_over(path.into_iter().collect())
        };
        let mut docker_sockets = existing(&["/run/docker.sock"]);
        docker_sockets.extend(host("DOCKER_HOST"));
        docker_sockets.extend(told.docker_sockets);
        docker_sockets.extend(existing(&["/run/user/0/docker.sock"]));
        let mut podman_sockets = existing(&["/run/podman/podman.sock"]);
        podman_sockets.extend(host("CONTAINER_HOST"));
        podman_sockets.extend(existing(&["/run/user/0/podman/podman.sock"]));
        let mut containerd_sockets = existing(&[
            "/run/containerd/containerd.sock",
            "/run/k3s/containerd/containerd.sock",
            "/run/docker/containerd/containerd.sock",
            "/var/snap/microk8s/common/run/containerd.sock",
        ]);
        containerd_sockets.extend(told.containerd_sockets);
        let mut cri_sockets = containerd_sockets.clone();
        cri_sockets.extend(existing(&["/run/cri-dockerd.sock"]));
        let storages = vec![
            PathBuf::from("/var/lib/containers/storage"),
            PathBuf::from("/run/containers/storage"),
            Path::new("/root").join(podman::IN_HOME),
            PathBuf::from("/run/user/0/containers"),
        ];
        let mut places = Places {
            docker: docker::folders(root, &told.docker_data),
            docker_sockets,
            storages: podman::folders(root, storages),
            podman_sockets,
            tasks: containerd::tasks(root, &states),
            containerd_sockets,
            crio_sockets: existing(&["/run/crio/crio.sock"]),
            cri_sockets,
            runtimes: oci::folders(root, &states),
        };
        for paths in [
            &mut places.docker,
            &mut places.docker_sockets,
            &mut places.podman_sockets,
            &mut places.tasks,
            &mut places.containerd_sockets,
            &mut places.cri_sockets,
        ] {
            distinct(paths);
        }
        places
    }

    fn of_user(root: &Root, user: u32) -> Places {
        let home = home(root, user);
        let in_home = |path: &str| home.iter().map(|home| home.join(path)).collect::<Vec<_>>();
        let session = Path::new("/run/user").join(user.to_string());
        let socket = |path: &str| Place::all_over(root.existing([session.join(path)]));
        let mut storages = in_home(podman::IN_HOME);
        storages.push(session.join("containers"));
        Places {
            docker: Place::all_over(root.existing(in_home(docker::IN_HOME))),
            docker_sockets: socket("docker.sock"),
            storages: podman::folders(root, storages),
            podman_sockets: socket("podman/podman.sock"),
            runtimes: oci::in_session(root, user),
            ..Places::default()
        }
    }
}

/// The folder of a user's own, as the machine has it.
fn home(root: &Root, user: u32) -> Option<PathBuf> {
    let listed = root.read(&root.join("/etc/passwd")).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let mut users = listed.lines().filter_map(User::parse);
    if let Some(listed) = users.find(|one| one.uid == user) {
        return Some(listed.home);
    }
    // One of a directory service: whose folder it is says the folder, unless something is mounted there, which may
    // say what it likes.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let homes = root.join("/home");
    let folder = rustix::fs::openat(CWD, &homes, flags, Mode::empty()).ok()?;
    let is_users = |name: &String| {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let found = rustix::fs::openat2(&folder, name.as_str(), flags, Mode::empty(), resolve);
        let status = found.and_then(rustix::fs::fstat);
        status.is_ok_and(|status| status.st_uid == user)
    };
    let name = root.names(&homes).into_iter().find(is_users)?;
    Some(Path::new("/home").join(name))
}

/// Leaves of several paths to one thing the first.
fn distinct(places: &mut Vec<Place>) {
    let mut seen = Vec::new();
    places.retain(|place| {
        use std::os::unix::fs::MetadataExt;
        let Ok(status) = std::fs::metadata(&place.path) else {
            return false;
        };
        let is_new = !seen.contains(&(status.dev(), status.ino()));
        seen.push((status.dev(), status.ino()));
        is_new
    });
}
