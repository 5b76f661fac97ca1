//! What a user names -> the containers meant by it.
//!
//! [`Selector`]s and what runs -> [`Selected`]: containers, names that cgroups of the same will have, and
//! whether new ones have to be asked for.
//!
//! What does not belong here: what paths mean (`identify`), what engines know (`engines`), how a user
//! writes a selector (`cli`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::engines::is_hashed;
use super::{Container, Engine, Engines, Identity};
use crate::cgroup::Hierarchy;
use profiler_model::sorting::InOrder;

/// How many digits of an id are enough for a container that is not there yet.
const PREFIX_DIGITS: usize = 12;
/// Most candidates that an error lists.
const MAX_CANDIDATES: usize = 10;

/// What a user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A container by name, id or the beginning of an id; one in a pod also as NAMESPACE/POD/NAME.
    Container(String),
    /// A Kubernetes pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A unit of systemd; without an ending, a service. All units of this name are meant, the system's
    /// and users'.
    Unit(String),
}

/// What selectors mean at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// Containers that run.
    pub containers: Vec<Container>,
    /// Names that cgroups will have, which can be told before (a unit's, a container's that is restarted).
    pub names: Vec<String>,
    /// Whether new cgroups can only be decided by asking an engine.
    pub undecided: bool,
}

/// Why a selector can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SelectorError {
    /// Nothing is called so.
    #[error(
        "there is no {kind} {name}{}; --wait waits for it",
        listed(name, candidates)
    )]
    Unknown {
        /// A container, a pod or a unit.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        candidates: Vec<String>,
    },
    /// More than one is.
    #[error(
        "{what} may be several, name one of them whole{}",
        listed("", candidates)
    )]
    Ambiguous {
        /// What was asked for.
        what: String,
        /// Which.
        candidates: Vec<String>,
    },
    /// It can't be a name.
    #[error("{0}")]
    Malformed(String),
}

/// Candidates behind what is said before them: first those that begin like what was asked for.
fn listed(name: &str, candidates: &[String]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let shared = |candidate: &str| {
        let pairs = candidate.bytes().zip(name.bytes());
        pairs.take_while(|(one, other)| one == other).count()
    };
    let mut distinct: Vec<&str> = candidates.iter().map(String::as_str).collect();
    distinct.order_by_key(|candidate| (Reverse(shared(candidate)), *candidate));
    distinct.dedup();
    let shown = &distinct[..distinct.len().min(MAX_CANDIDATES)];
    let shown = shown.join(", ");
    let shown = profiler_model::text::printable(&shown);
    match distinct.len().saturating_sub(MAX_CANDIDATES) {
        0 => format!(" (there are: {shown})"),
        more => format!(" (there are: {shown} and {more} more)"),
    }
}

impl Selector {
    /// Whether a container is meant, whole names and ids only, or a beginning of an id of at least 12 digits.
    pub fn matches(&self, container: &Container) -> bool {
        match self {
            Selector::Container(text) => {
                let id = container.identity.id.as_deref();
                is_named(container, text)
                    || id == Some(text)
                    || (is_prefix(text)
                        && text.len() >= PREFIX_DIGITS
                        && id.is_some_and(|id| is_hashed(id) && id.starts_with(text.as_str())))
            }
            Selector::Pod { namespace, name } => {
                container.pod.as_ref() == Some(name)
                    && container.namespace.as_ref() == Some(namespace)
            }
            Selector::Unit(unit) => container.identity.unit == Some(whole_unit(unit)),
        }
    }

    /// What the selectors mean at present. With `wait`, it is no error that there is none.
    pub fn select(
        selectors: &[Selector],
        hierarchy: &Hierarchy,
        engines: &mut Engines,
        wait: bool,
    ) -> Result<Selected, SelectorError> {
        for selector in selectors {
            selector.check()?;
        }
        let all = Selector::list(hierarchy, engines, true);
        let mut selected = Selected::default();
        for selector in selectors {
            let meant = match selector {
                Selector::Container(text) => meant_container(text, &all)?,
                Selector::Pod { .. } => {
                    outermost(all.iter().filter(|one| selector.matches(one)).collect())
                }
                Selector::Unit(unit) => meant_unit(unit, selector, &all, hierarchy),
            };
            if meant.is_empty() && !wait {
                return Err(selector.unknown(&all));
            }
            selected.undecided |= selector.comes_again_under_another_id(&meant);
            selected.names.extend(selector.names(&meant));
            for container in meant {
                if !selected.containers.contains(&container) {
                    selected.containers.push(container);
                }
            }
        }
        selected.names.sort();
        selected.names.dedup();
        Ok(selected)
    }

    /// All containers and pods (and units, if wanted) that have a cgroup in a hierarchy, by their paths.
    pub fn list(hierarchy: &Hierarchy, engines: &mut Engines, units: bool) -> Vec<Container> {
        let mut found: BTreeMap<String, Identity> = BTreeMap::new();
        hierarchy.walk(&mut |path| {
            if let Some(identity) = engines.identify(path) {
                found.entry(identity.cgroup.clone()).or_insert(identity);
            }
        });
        let found = found.into_values();
        let wanted = found.filter(|identity| units || identity.unit.is_none());
        let identities: Vec<Identity> = wanted.collect();
        let mut described = engines.describe_all(&identities);
        name_pods(&mut described);
        described
    }

    fn check(&self) -> Result<(), SelectorError> {
        let texts: Vec<&str> = match self {
            Selector::Container(text) | Selector::Unit(text) => vec![text],
            Selector::Pod { namespace, name } => vec![namespace, name],
        };
        let is_name = |text: &&str| {
            !text.is_empty() && text.len() <= 1024 && !text.contains(char::is_control)
        };
        match texts.iter().all(is_name) {
            true => Ok(()),
            false => Err(SelectorError::Malformed(format!(
                "{:?} can't be a name: see profiler list containers",
                texts.join("/")
            ))),
        }
    }

    fn unknown(&self, all: &[Container]) -> SelectorError {
        let (kind, name, candidates) = match self {
            Selector::Container(text) => (
                "container",
                text.clone(),
                all.iter()
                    .filter(|one| is_container(one))
                    .map(called)
                    .collect(),
            ),
            Selector::Pod { namespace, name } => (
                "pod",
                format!("{namespace}/{name}"),
                all.iter().filter_map(pod_of).collect(),
            ),
            Selector::Unit(unit) => (
                "unit",
                whole_unit(unit),
                all.iter()
                    .filter_map(|one| one.identity.unit.clone())
                    .collect(),
            ),
        };
        SelectorError::Unknown {
            kind,
            name,
            candidates,
        }
    }

    /// Whether what comes later can't be told by its cgroup's name.
    fn comes_again_under_another_id(&self, meant: &[Container]) -> bool {
        match self {
            Selector::Unit(_) => false,
            Selector::Pod { .. } => true,
            Selector::Container(text) => {
                // Whoever says the id means this one and no other.
                let by_id = |one: &Container| !is_named(one, text);
                let by_path = |one: &Container| {
                    let identity = &one.identity;
                    identity.name.is_some() || identity.id == one.name
                };
                meant.is_empty() || !meant.iter().all(|one| by_id(one) || by_path(one))
            }
        }
    }

    /// Names that the cgroups will have when they are made again, or at last.
    fn names(&self, meant: &[Container]) -> Vec<String> {
        let mut names: Vec<String> = meant
            .iter()
            .filter_map(|one| last(&one.identity.cgroup))
            .collect();
        match self {
            Selector::Unit(unit) => names.push(whole_unit(unit)),
            Selector::Container(text) if meant.is_empty() => {
                names.push(format!("lxc.payload.{text}"));
                names.push(format!("machine-{}.scope", text.replace('-', "\\x2d")));
            }
            Selector::Container(_) | Selector::Pod { .. } => {}
        }
        names.retain(|name| name.len() < profiler_common::cgroup::NAME_BYTES);
        names
    }
}

/// The one container that is meant; none if there is none.
fn meant_container(text: &str, all: &[Container]) -> Result<Vec<Container>, SelectorError> {
    let containers = || all.iter().filter(|one| is_container(one));
    let by_name: Vec<&Container> = containers().filter(|one| is_named(one, text)).collect();
    let by_id = || containers().filter(|one| one.identity.id.as_deref() == Some(text));
    let by_prefix = || {
        containers().filter(|one| {
            let id = one.identity.id.as_deref();
            is_prefix(text) && id.is_some_and(|id| is_hashed(id) && id.starts_with(text))
        })
    };
    let mut found = by_id().collect::<Vec<_>>();
    if found.is_empty() {
        found = by_name;
    }
    if found.is_empty() {
        found = by_prefix().collect();
    }
    match found.as_slice() {
        [] | [_] => Ok(found.into_iter().cloned().collect()),
        several => Err(SelectorError::Ambiguous {
            what: format!("container {text}"),
            candidates: several.iter().map(|one| told_apart(one)).collect(),
        }),
    }
}

/// All units of a name; slices too, which are nobody's innermost unit.
fn meant_unit(
    unit: &str,
    selector: &Selector,
    all: &[Container],
    hierarchy: &Hierarchy,
) -> Vec<Container> {
    let unit = whole_unit(unit);
    if !unit.ends_with(".slice") {
        return all
            .iter()
            .filter(|one| selector.matches(one))
            .cloned()
            .collect();
    }
    let mut found = Vec::new();
    hierarchy.walk(&mut |path| {
        if last(path).as_ref() == Some(&unit) {
            found.push(Container::new(Identity {
                cgroup: path.to_owned(),
                engine: Engine::Systemd,
                id: None,
                name: None,
                pod_uid: None,
                unit: Some(unit.clone()),
            }));
        }
    });
    found
}

/// Names pods of which nobody but their containers tells.
fn name_pods(all: &mut [Container]) {
    let named: HashMap<String, (Option<String>, Option<String>)> = all
        .iter()
        .filter(|one| one.pod.is_some())
        .filter_map(|one| {
            let uid = one.identity.pod_uid.clone()?;
            Some((uid, (one.pod.clone(), one.namespace.clone())))
        })
        .collect();
    for one in all.iter_mut().filter(|one| one.pod.is_none()) {
        let uid = one.identity.pod_uid.as_ref();
        if let Some((pod, namespace)) = uid.and_then(|uid| named.get(uid)) {
            one.pod.clone_from(pod);
            one.namespace.clone_from(namespace);
        }
    }
}

/// Those that are not in another one of them: a pod, not its containers too.
fn outermost(found: Vec<&Container>) -> Vec<Container> {
    let is_inner = |one: &&&Container| {
        found.iter().any(|other| {
            let (whole, part) = (&other.identity.cgroup, &one.identity.cgroup);
            whole != part && crate::cgroup::contains(whole, part)
        })
    };
    let outer = found.iter().filter(|one| !is_inner(one));
    outer.map(|one| (*one).clone()).collect()
}

/// Whether it is a container, not a pod's or a unit's cgroup.
fn is_container(container: &Container) -> bool {
    container.identity.id.is_some() || container.identity.name.is_some()
}

fn is_named(container: &Container, text: &str) -> bool {
    container.name.as_deref() == Some(text)
        || (text.contains('/') && qualified(container).as_deref() == Some(text))
}

/// Whether it may be the beginning of an id.
fn is_prefix(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// NAMESPACE/POD/NAME.
fn qualified(container: &Container) -> Option<String> {
    let name = container.name.as_deref()?;
    Some(format!("{}/{name}", pod_of(container)?))
}

/// NAMESPACE/POD.
fn pod_of(container: &Container) -> Option<String> {
    let namespace = container.namespace.as_deref()?;
    Some(format!("{namespace}/{}", container.pod.as_deref()?))
}

/// What to call a container in a list of names.
fn called(container: &Container) -> String {
    qualified(container)
        .or_else(|| container.name.clone())
        .or_else(|| Some(short(container.identity.id.as_deref()?).to_owned()))
        .unwrap_or_else(|| container.identity.cgroup.clone())
}

/// What to call a container when its name is not enough.
fn told_apart(container: &Container) -> String {
    match (qualified(container), container.identity.id.as_deref()) {
        (Some(qualified), _) => qualified,
        (None, Some(id)) => match &container.name {
            Some(name) => format!("{} ({name}, {})", short(id), container.engine),
            None => short(id).to_owned(),
        },
        (None, None) => format!("{} ({})", called(container), container.engine),
    }
}

/// As much of an id as people say.
fn short(id: &str) -> &str {
    match is_hashed(id) {
        true => &id[..PREFIX_DIGITS],
        false => id,
    }
}

/// The last part of a path.
fn last(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// A unit's name, with its ending.
fn whole_unit(unit: &str) -> String {
    const ENDINGS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
    match ENDINGS.iter().any(|ending| unit.ends_with(ending)) {
        true => unit.to_owned(),
        false => format!("{unit}.service"),
    }
}

#[cfg(test)]
mod tests;
