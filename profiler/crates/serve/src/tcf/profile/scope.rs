//! Whose samples a context gets besides its own: descendants, or what shares its container or cgroup.
//!
//! What does not belong here: when that is looked at (`mod`).

use super::configuration::Bound;
use super::settings::Scope;
use super::surroundings::Surroundings;
use crate::tcf::world::ContextKey;

/// Most ancestors that are looked at.
const MAX_DEPTH: usize = 4096;

/// Whether samples of a process are for a context of this scope.
pub(super) fn includes(
    scope: Scope,
    bound: &Bound,
    process: ContextKey,
    world: &impl Surroundings,
) -> bool {
    if bound.is_thread || scope == Scope::Context {
        return process == bound.process;
    }
    if process == bound.process {
        return true;
    }
    match scope {
        Scope::Context => false,
        // A child of a member is one, though what was between them is forgotten.
        Scope::Children => {
            let parent = |key: &ContextKey| world.context(*key)?.parent;
            std::iter::successors(Some(process), parent)
                .take(MAX_DEPTH)
                .any(|key| key == bound.process || bound.members.contains(&key))
        }
        Scope::Container => {
            // A container has cgroups of its own making below where it begins.
            let own = world.container(bound.process);
            let whole = own.or_else(|| world.cgroup(bound.process));
            let part = world.cgroup(process).or_else(|| world.container(process));
            matches!((whole, part), (Some(whole), Some(part)) if contains(whole, part))
        }
    }
}

/// Whether a cgroup is another one or below it. The root is nobody's container: all there is lies
/// below it.
fn contains(whole: &str, part: &str) -> bool {
    let whole = whole.trim_end_matches('/');
    !whole.is_empty()
        && part
            .strip_prefix(whole)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_contain_what_is_below_them() {
        assert!(contains("/docker/abc", "/docker/abc"));
        assert!(contains("/docker/abc", "/docker/abc/init.scope"));
        assert!(!contains("/docker/abc", "/docker/abcd"));
        assert!(!contains("/docker/abc", "/docker"));
        assert!(!contains("/", "/docker/abc"));
        assert!(!contains("", "/docker/abc"));
        assert!(contains("/docker/", "/docker/abc"));
    }
}
