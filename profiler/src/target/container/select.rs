//! What a user names -> the containers meant by it.

use super::Container;
use crate::target::cgroup::Hierarchy;

use super::Engines;

/// What a user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A container by name, id or the beginning of an id.
    Container(String),
    /// A Kubernetes pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A unit of systemd; without an ending, a service.
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
    #[error("there is no {what}{}", listed(candidates))]
    Unknown {
        /// What was asked for.
        what: String,
        /// What there is.
        candidates: Vec<String>,
    },
    /// More than one is.
    #[error("{what} may be several; name one of them whole:{}", listed(candidates))]
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

fn listed(candidates: &[String]) -> String {
    candidates.join(", ")
}

impl Selector {
    /// Whether a container is meant, whole names and ids only, or a beginning of an id of at least 12 digits.
    pub fn matches(&self, _container: &Container) -> bool {
        false
    }

    /// What the selectors mean at present. With `wait`, it is no error that there is none.
    pub fn select(
        _selectors: &[Selector],
        _hierarchy: &Hierarchy,
        _engines: &mut Engines,
        _wait: bool,
    ) -> Result<Selected, SelectorError> {
        Ok(Selected::default())
    }

    /// All containers (and units, if wanted) that run in a hierarchy.
    pub fn list(_hierarchy: &Hierarchy, _engines: &mut Engines, _units: bool) -> Vec<Container> {
        Vec::new()
    }
}
