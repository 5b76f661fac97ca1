//! Which containers, pods and units somebody means by a name.
//!
//! Names -> a set of containers of [`Tables`], or an error that says what there is. What does not belong here: how running containers are found (`target::container`).

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use profiler_model::*;

/// Where pods are that are named without a namespace: where those who record look for them, too.
const NAMESPACE: &str = "default";
/// An error lists so many of what there is.
const MAX_LISTED: usize = 20;

/// The label of the container that a process runs in, if it does.
pub fn container_label_of(tables: &Tables, process: &Process) -> Option<String> {
    let container = tables.container(process.container?)?;
    Some(tables.container_label(container))
}

/// The pid that a process has in its innermost namespace, if that is not the initial one.
pub fn inner_pid(process: &Process) -> Option<Pid> {
    process.namespace_pids.last().copied()
}

/// What somebody names. All entries are alternatives; without any, everything is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerNames {
    /// Containers: names, labels, ids or beginnings of them, paths of cgroups.
    pub containers: Vec<String>,
    /// Pods: `NAMESPACE/NAME`, or the name of one in `default`.
    pub pods: Vec<String>,
    /// Units of systemd; without an ending, services.
    pub units: Vec<String>,
}

/// The containers that were meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerSet(Option<FxHashSet<ContainerId>>);

/// A name means nothing, or too much.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// Nothing is called so.
    #[error("the recording has no {kind} `{name}`; {}", there_are(present))]
    Unknown {
        /// `container`, `pod`, `unit` or `cgroup`.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        present: Vec<String>,
    },
    /// Different ones are.
    #[error(
        "the {kind} `{name}` can be several; name one of them: {}",
        listed(candidates)
    )]
    Ambiguous {
        /// `container`, `pod` or `unit`.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// Which.
        candidates: Vec<String>,
    },
}

impl ContainerError {
    /// No process is in that cgroup.
    pub(super) fn unknown_cgroup(path: &str, tables: &Tables) -> ContainerError {
        let cgroups = tables.processes().filter_map(|(_, process)| process.cgroup);
        let present: BTreeSet<&str> = cgroups.map(|id| tables.string(id)).collect();
        ContainerError::Unknown {
            kind: "cgroup",
            name: path.to_owned(),
            present: present.into_iter().map(str::to_owned).collect(),
        }
    }
}

fn there_are(present: &[String]) -> String {
    match present.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has: {}", listed(present)),
    }
}

fn listed(names: &[String]) -> String {
    let text = names[..names.len().min(MAX_LISTED)].join(", ");
    // Names come from files of targets; an error is shown on a terminal.
    let mut text = profiler_model::text::printable(&text).into_owned();
    if names.len() > MAX_LISTED {
        text += &format!(", and {} more", names.len() - MAX_LISTED);
    }
    text
}

impl ContainerNames {
    /// Whether everything is meant.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.pods.is_empty() && self.units.is_empty()
    }

    /// The containers of `tables` that are meant, and those inside of them.
    pub(super) fn find(&self, tables: &Tables) -> Result<ContainerSet, ContainerError> {
        if self.is_empty() {
            return Ok(ContainerSet::default());
        }
        let search = Search { tables };
        let mut found = FxHashSet::default();
        for name in &self.containers {
            found.extend(search.container(name)?);
        }
        for name in &self.pods {
            found.extend(search.pod(name)?);
        }
        for name in &self.units {
            found.extend(search.unit(name)?);
        }
        search.add_inner(&mut found);
        Ok(ContainerSet(Some(found)))
    }
}

impl ContainerSet {
    /// Whether everything is meant.
    pub(super) fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a process runs in one of them.
    pub(super) fn admits(&self, process: &Process) -> bool {
        match &self.0 {
            None => true,
            Some(set) => process.container.is_some_and(|id| set.contains(&id)),
        }
    }
}

struct Search<'a> {
    tables: &'a Tables,
}

impl<'a> Search<'a> {
    fn text(&self, id: Option<StringId>) -> Option<&'a str> {
        id.map(|id| self.tables.string(id))
    }

    fn matching(&self, is_meant: impl Fn(&Container) -> bool) -> Vec<ContainerId> {
        let all = self.tables.containers();
        let meant = all.filter(|(_, container)| is_meant(container));
        meant.map(|(id, _)| id).collect()
    }

    fn names(&self, ids: &[ContainerId], name: impl Fn(&Container) -> String) -> Vec<String> {
        let containers = ids.iter().filter_map(|&id| self.tables.container(id));
        let names: BTreeSet<String> = containers.map(name).collect();
        names.into_iter().collect()
    }

    fn container(&self, name: &str) -> Result<Vec<ContainerId>, ContainerError> {
        let kind = "container";
        let name = match name.strip_prefix('/') {
            // Docker writes names so.
            Some(rest) if !rest.contains('/') => rest,
            _ => name,
        };
        let mut found = self.matching(|container| {
            self.text(container.name) == Some(name)
                || self.text(container.id) == Some(name)
                || self.tables.string(container.cgroup) == name
                || self.tables.container_label(container) == name
        });
        if found.is_empty() && !name.is_empty() {
            found = self.matching(|container| {
                let id = self.text(container.id);
                id.is_some_and(|id| id.starts_with(name))
            });
            // A container that was made anew has another id, and one name.
            let ids = self.names(&found, |container| {
                self.text(container.id).unwrap_or_default().to_owned()
            });
            if ids.len() > 1 {
                return Err(self.ambiguous(kind, name, &found));
            }
        }
        match self.names(&found, |c| self.tables.container_label(c)).len() {
            0 => {
                let all = self.matching(|container| !container.is_plain_unit());
                Err(ContainerError::Unknown {
                    kind,
                    name: name.to_owned(),
                    present: self.names(&all, |container| self.long_label(container)),
                })
            }
            1 => Ok(found),
            _ => Err(self.ambiguous(kind, name, &found)),
        }
    }

    fn ambiguous(&self, kind: &'static str, name: &str, found: &[ContainerId]) -> ContainerError {
        ContainerError::Ambiguous {
            kind,
            name: name.to_owned(),
            candidates: self.names(found, |container| self.long_label(container)),
        }
    }

    /// A label, and the beginning of the id.
    fn long_label(&self, container: &Container) -> String {
        let label = self.tables.container_label(container);
        match self.text(container.id).map(Container::short_id) {
            Some(id) if id != label => format!("{label} ({id})"),
            _ => label,
        }
    }

    fn pod_label(&self, container: &Container) -> String {
        let parts = [self.text(container.namespace), self.text(container.pod)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }

    fn pod(&self, name: &str) -> Result<Vec<ContainerId>, ContainerError> {
        let (namespace, pod) = name.rsplit_once('/').unwrap_or((NAMESPACE, name));
        let found = self.matching(|container| {
            self.text(container.pod) == Some(pod)
                && self.text(container.namespace) == Some(namespace)
        });
        if found.is_empty() {
            let all = self.matching(|container| container.pod.is_some());
            return Err(ContainerError::Unknown {
                kind: "pod",
                name: format!("{namespace}/{pod}"),
                present: self.names(&all, |container| self.pod_label(container)),
            });
        }
        Ok(found)
    }

    /// A unit, and what runs inside of it: containers of a user's engine are in that user's units.
    fn unit(&self, name: &str) -> Result<Vec<ContainerId>, ContainerError> {
        let service = format!("{name}.service");
        let is_meant = |text: &str| text == name || text == service;
        let found = self.matching(|container| {
            self.text(container.unit).is_some_and(is_meant)
                || self
                    .tables
                    .string(container.cgroup)
                    .split('/')
                    .any(is_meant)
        });
        if !name.is_empty() && !found.is_empty() {
            return Ok(found);
        }
        let all = self.matching(|container| container.unit.is_some());
        Err(ContainerError::Unknown {
            kind: "unit",
            name: name.to_owned(),
            present: self.names(&all, |container| {
                self.text(container.unit).unwrap_or_default().to_owned()
            }),
        })
    }

    /// What is below the cgroups of those that were found.
    fn add_inner(&self, found: &mut FxHashSet<ContainerId>) {
        let containers = found.iter().filter_map(|&id| self.tables.container(id));
        let paths: FxHashSet<&str> = containers
            .map(|container| self.tables.string(container.cgroup))
            .filter(|path| path.len() > 1)
            .collect();
        found.extend(self.matching(|container| {
            let path = self.tables.string(container.cgroup);
            let ends = path.match_indices('/').map(|(at, _)| at);
            ends.skip(1).any(|end| paths.contains(&path[..end]))
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cgroup, id, name, pod, namespace, unit; empty is none.
    type Short<'a> = [&'a str; 6];

    fn tables(containers: &[Short<'_>]) -> Tables {
        let mut tables = Tables::default();
        for &[cgroup, id, name, pod, namespace, unit] in containers {
            let mut some = |text: &str| match text {
                "" => None,
                text => Some(tables.intern_string(text).0),
            };
            let (id, name, pod) = (some(id), some(name), some(pod));
            let (namespace, unit) = (some(namespace), some(unit));
            let cgroup = tables.intern_string(cgroup).0;
            tables.intern_container(Container {
                cgroup,
                engine: None,
                id,
                name,
                image: None,
                pod,
                namespace,
                unit,
            });
        }
        tables
    }

    const ALL: [Short<'_>; 8] = [
        [
            "/docker/0123456789abcdef",
            "0123456789abcdef",
            "web",
            "",
            "",
            "",
        ],
        ["/docker/0123ffff", "0123ffff", "web", "", "", ""],
        [
            "/docker/fedcba9876543210",
            "fedcba9876543210",
            "",
            "",
            "",
            "",
        ],
        ["/kube/a1", "a1", "app", "api-1", "prod", ""],
        ["/kube/a2", "a2", "app", "api-1", "test", ""],
        ["/system.slice/ssh.service", "", "", "", "", "ssh.service"],
        ["/user/user@1.service/libpod-b1", "b1", "inner", "", "", ""],
        [
            "/docker/fedcba9876543210/docker/c1",
            "c1",
            "in docker",
            "",
            "",
            "",
        ],
    ];

    fn found(names: &ContainerNames) -> Result<Vec<String>, String> {
        let tables = tables(&ALL);
        let set = names.find(&tables).map_err(|error| error.to_string())?;
        let admitted = tables.containers().filter(|(id, _)| {
            let process = Process {
                pid: Pid(1),
                started: Timestamp(0),
                parent: None,
                name: StringId::from_index(0),
                executable: None,
                command: None,
                namespace_pids: Vec::new(),
                uid: None,
                cgroup: None,
                container: Some(*id),
            };
            set.admits(&process)
        });
        Ok(admitted
            .map(|(_, container)| tables.container_label(container))
            .collect())
    }

    fn containers(name: &str) -> Result<Vec<String>, String> {
        found(&ContainerNames {
            containers: vec![name.to_owned()],
            ..ContainerNames::default()
        })
    }

    fn pods(name: &str) -> Result<Vec<String>, String> {
        found(&ContainerNames {
            pods: vec![name.to_owned()],
            ..ContainerNames::default()
        })
    }

    fn units(name: &str) -> Result<Vec<String>, String> {
        found(&ContainerNames {
            units: vec![name.to_owned()],
            ..ContainerNames::default()
        })
    }

    fn texts<const N: usize>(labels: [&str; N]) -> Result<Vec<String>, String> {
        Ok(labels.map(str::to_owned).to_vec())
    }

    #[test]
    fn containers_by_name_id_and_path() {
        // One that was made anew is still `web`.
        assert_eq!(containers("web"), texts(["web", "web"]));
        assert_eq!(containers("/web"), texts(["web", "web"]));
        assert_eq!(containers("01234"), texts(["web"]));
        assert_eq!(containers("/docker/0123ffff"), texts(["web"]));
        assert_eq!(containers("prod/api-1/app"), texts(["prod/api-1/app"]));
        // What runs inside of it is part of it.
        assert_eq!(containers("fed"), texts(["fedcba987654", "in docker"]));
        assert_eq!(containers("in docker"), texts(["in docker"]));
    }

    #[test]
    fn what_is_not_there_or_not_clear_is_an_error() {
        let error = containers("db").unwrap_err();
        assert_eq!(
            error,
            "the recording has no container `db`; it has: fedcba987654, in docker (c1), inner (b1), \
             prod/api-1/app (a1), test/api-1/app (a2), web (0123456789ab), web (0123ffff)"
        );
        for (name, candidates) in [
            ("0123", "web (0123456789ab), web (0123ffff)"),
            ("app", "prod/api-1/app (a1), test/api-1/app (a2)"),
        ] {
            let error = containers(name).unwrap_err();
            assert!(error.ends_with(candidates), "{error}");
        }
        assert!(containers("").is_err());
        let none = ContainerNames {
            units: vec!["x".to_owned()],
            ..ContainerNames::default()
        };
        let error = none.find(&Tables::default()).unwrap_err().to_string();
        assert_eq!(error, "the recording has no unit `x`; it has none");
    }

    #[test]
    fn pods_and_units() {
        assert_eq!(pods("prod/api-1"), texts(["prod/api-1/app"]));
        let error = pods("api-1").unwrap_err();
        assert!(error.ends_with("prod/api-1, test/api-1"), "{error}");
        assert!(pods("dev/api-1").is_err());
        assert_eq!(units("ssh"), texts(["ssh.service"]));
        assert_eq!(units("ssh.service"), texts(["ssh.service"]));
        assert_eq!(units("user@1"), texts(["inner"]));
        assert!(units("").is_err());
    }

    #[test]
    fn names_of_all_kinds_add_up_and_no_name_means_all() {
        let both = ContainerNames {
            containers: vec!["inner".into()],
            units: vec!["ssh".into()],
            ..ContainerNames::default()
        };
        assert_eq!(found(&both), texts(["ssh.service", "inner"]));
        assert_eq!(found(&ContainerNames::default()).unwrap().len(), ALL.len());
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<String> = (0..50).map(|n| format!("c{n}")).collect();
        let text = listed(&many);
        assert!(text.ends_with("c19, and 30 more"), "{text}");
        let text = listed(&["\u{1b}[31mred".to_owned(), "b".to_owned()]);
        assert_eq!(text, "\\u{1b}[31mred, b");
        assert_eq!(Container::short_id("äöüäöüäöüäöüäöü"), "äöüäöüäöüäöü");
    }
}
