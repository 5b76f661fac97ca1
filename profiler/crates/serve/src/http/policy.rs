//! Who may profile whom: a client, a process -> yes or no; what is withheld of everybody.
//!
//! Without a rule that fits, root may profile all processes, and everybody else those that run as them alone: a program
//! that has taken another user's rights is that user's. What does not belong here: who may connect (`admission`), how a
//! policy is written down (the command line).

use profiler_model::text::Glob;
use profiler_report::derive::Realm;

/// The user who may do everything.
const ROOT: u32 = 0;

/// The rules of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The first one that fits decides.
    pub rules: Vec<Rule>,
    /// What sessions see of stacks.
    pub realm: Realm,
    /// Timestamps are multiples of this, if it is more than 1.
    pub resolution_ns: u64,
}

/// A rule. What is none or empty fits everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Those who ask.
    pub users: Option<Vec<u32>>,
    /// Those whose process it is.
    pub owners: Option<Vec<u32>>,
    /// What the process is called.
    pub processes: Vec<Glob>,
    /// What its container is called.
    pub containers: Vec<Glob>,
    /// What is to be.
    pub allow: bool,
}

/// A process that somebody wants to profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The user it runs as, if that is one; none: that is not known, or it runs as several.
    pub owner: Option<u32>,
    /// Its name.
    pub name: &'a str,
    /// Its container's.
    pub container: Option<&'a str>,
}

/// Why a process may not be profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// A rule says so.
    #[error("a rule of the policy forbids it")]
    ByRule,
    /// It runs as somebody else.
    #[error("it is another user's")]
    NotTheirs,
}

impl Policy {
    /// Whether `user` may profile a process, or why not. `all` without a rule: everybody may, as of a capture which was
    /// handed to them.
    pub fn allows(&self, user: u32, subject: &Subject<'_>, all: bool) -> Result<(), Forbidden> {
        let rule = self.rules.iter().find(|rule| rule.fits(user, subject));
        match rule {
            Some(rule) if rule.allow => Ok(()),
            Some(_) => Err(Forbidden::ByRule),
            None if all || user == ROOT || subject.owner == Some(user) => Ok(()),
            None => Err(Forbidden::NotTheirs),
        }
    }

    /// Whether there may be a process that `user` may profile.
    pub fn allows_anything(&self, user: u32) -> bool {
        let is_meant = |rule: &&Rule| {
            rule.users
                .as_ref()
                .is_none_or(|users| users.contains(&user))
        };
        for rule in self.rules.iter().filter(is_meant) {
            if rule.allow {
                return true;
            }
            if rule.owners.is_none() && rule.processes.is_empty() && rule.containers.is_empty() {
                return false;
            }
        }
        true
    }

    /// A time as clients may know it.
    pub fn coarse(&self, ns: u64) -> u64 {
        ns - ns % self.resolution_ns.max(1)
    }
}

impl Rule {
    fn fits(&self, user: u32, subject: &Subject<'_>) -> bool {
        let Rule {
            users,
            owners,
            processes,
            containers,
            allow: _,
        } = self;
        let is_one_of = |globs: &[Glob], name: Option<&str>| {
            globs.is_empty() || name.is_some_and(|name| globs.iter().any(|it| it.matches(name)))
        };
        users.as_ref().is_none_or(|users| users.contains(&user))
            && owners
                .as_ref()
                .is_none_or(|owners| subject.owner.is_some_and(|it| owners.contains(&it)))
            && is_one_of(processes, Some(subject.name))
            && is_one_of(containers, subject.container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject<'a>(owner: Option<u32>, name: &'a str, container: Option<&'a str>) -> Subject<'a> {
        Subject {
            owner,
            name,
            container,
        }
    }

    #[test]
    fn without_rules_root_and_the_owner_may() {
        let policy = Policy::default();
        for (user, owner, allowed) in [
            (0, Some(1000), true),
            (0, None, true),
            (1000, Some(1000), true),
            (1000, Some(1001), false),
            (1000, Some(0), false),
            (1000, None, false),
        ] {
            let subject = subject(owner, "x", None);
            let expected = if allowed {
                Ok(())
            } else {
                Err(Forbidden::NotTheirs)
            };
            assert_eq!(
                policy.allows(user, &subject, false),
                expected,
                "{user} {owner:?}"
            );
            assert_eq!(policy.allows(user, &subject, true), Ok(()));
        }
        assert!(policy.allows_anything(1000));
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let globs = |globs: &[&str]| globs.iter().map(|it| Glob::plain(it)).collect();
        let policy = Policy {
            rules: vec![
                Rule {
                    processes: globs(&["ssh*"]),
                    ..Rule::default()
                },
                Rule {
                    users: Some(vec![7]),
                    owners: Some(vec![33]),
                    containers: globs(&["shop/*"]),
                    allow: true,
                    ..Rule::default()
                },
                Rule {
                    users: Some(vec![8]),
                    ..Rule::default()
                },
            ],
            ..Policy::default()
        };
        for (user, owner, name, container, allowed) in [
            (0, 0, "sshd", None, Err(Forbidden::ByRule)),
            (0, 0, "web", None, Ok(())),
            (7, 33, "web", Some("shop/web"), Ok(())),
            (7, 33, "ssh-agent", Some("shop/web"), Err(Forbidden::ByRule)),
            (7, 33, "web", Some("bank/web"), Err(Forbidden::NotTheirs)),
            (7, 33, "web", None, Err(Forbidden::NotTheirs)),
            (7, 34, "web", Some("shop/web"), Err(Forbidden::NotTheirs)),
            (7, 7, "web", None, Ok(())),
            (8, 8, "web", None, Err(Forbidden::ByRule)),
        ] {
            let subject = subject(Some(owner), name, container);
            assert_eq!(
                policy.allows(user, &subject, false),
                allowed,
                "{user} {subject:?}"
            );
        }
        assert!(policy.allows_anything(7) && policy.allows_anything(9));
        assert!(!policy.allows_anything(8));
    }

    #[test]
    fn times_are_no_finer_than_they_may_be() {
        let policy = Policy {
            resolution_ns: 100_000,
            ..Policy::default()
        };
        assert_eq!(
            (policy.coarse(123_456), policy.coarse(99_999)),
            (100_000, 0)
        );
        assert_eq!(Policy::default().coarse(123_456), 123_456);
    }
}
