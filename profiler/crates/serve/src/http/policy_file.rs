//! A policy as it is written down: JSON -> [`Policy`], or where it is wrong.
//!
//! ```text
//! { "rules": [ { "users": ["ann"], "owners": ["www-data"], "processes": ["web*"], "containers": ["shop/*"], "allow": true } ],
//!   "private": ["/opt/secret/*"], "timestampResolution": 0.1 }
//! ```
//! Users are names or numbers; who they are is asked of the caller. The resolution is in milliseconds. A word that is not
//! known is an error, since what somebody believes to have forbidden must not be allowed. What does not belong here: files.

use serde::Deserialize;

use profiler_model::text::Glob;
use profiler_report::derive::Realm;

use super::policy::{Policy, Rule};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    #[serde(default)]
    rules: Vec<WrittenRule>,
    #[serde(default)]
    private: Vec<String>,
    #[serde(default)]
    timestamp_resolution: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    users: Option<Vec<User>>,
    owners: Option<Vec<User>>,
    #[serde(default)]
    processes: Vec<String>,
    #[serde(default)]
    containers: Vec<String>,
    allow: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum User {
    Number(u32),
    Name(String),
}

impl Policy {
    /// Reads one. `find` knows users by their names.
    pub fn read(json: &str, find: impl Fn(&str) -> Option<u32>) -> Result<Policy, String> {
        let written: serde_json::Value =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        if !written.is_object() {
            return Err("it is no object".to_owned());
        }
        let written: Written =
            serde_json::from_value(written).map_err(|error| error.to_string())?;
        let resolution_ms = written.timestamp_resolution;
        if !(0.0..=1000.0).contains(&resolution_ms) {
            return Err(format!(
                "timestampResolution is {resolution_ms}: it is milliseconds, from 0 to 1000"
            ));
        }
        let users = |users: Option<Vec<User>>| {
            let users = users.map(|users| {
                let users = users.into_iter().map(|user| match user {
                    User::Number(uid) => Ok(uid),
                    User::Name(name) => {
                        find(&name).ok_or_else(|| format!("there is no user '{name}' here"))
                    }
                });
                users.collect::<Result<Vec<u32>, String>>()
            });
            users.transpose()
        };
        let globs = |globs: &[String]| globs.iter().map(|glob| Glob::plain(glob)).collect();
        let rules = written.rules.into_iter().map(|rule| {
            Ok(Rule {
                users: users(rule.users)?,
                owners: users(rule.owners)?,
                processes: globs(&rule.processes),
                containers: globs(&rule.containers),
                allow: rule.allow,
            })
        });
        Ok(Policy {
            rules: rules.collect::<Result<_, String>>()?,
            realm: Realm::without(written.private.iter().map(String::as_str)),
            resolution_ns: (resolution_ms * 1e6) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Policy, String> {
        Policy::read(json, |name| (name == "ann").then_some(1000))
    }

    #[test]
    fn a_policy_is_read() {
        let policy = read(
            r#"{ "rules": [ { "users": ["ann", 7], "processes": ["web*"], "allow": true },
                            { "owners": [33], "containers": ["shop/*"], "allow": false } ],
                 "private": ["/opt/secret/*"], "timestampResolution": 0.1 }"#,
        );
        let policy = policy.unwrap();
        assert_eq!(policy.rules[0].users, Some(vec![1000, 7]));
        assert_eq!(policy.rules[0].owners, None);
        assert!(policy.rules[0].allow && policy.rules[0].processes[0].matches("web-1"));
        assert_eq!(policy.rules[1].owners, Some(vec![33]));
        assert!(!policy.rules[1].allow && policy.rules[1].containers[0].matches("shop/a"));
        assert_eq!(policy.realm, Realm::without(["/opt/secret/*"]));
        assert_eq!(policy.resolution_ns, 100_000);
        assert_eq!(read("{}"), Ok(Policy::default()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (json, says) in [
            ("", "EOF"),
            ("[]", "no object"),
            (r#"{"rule":[]}"#, "rule"),
            (r#"{"rules":[{"allow":true,"user":["ann"]}]}"#, "user"),
            (r#"{"rules":[{"users":["ann"]}]}"#, "allow"),
            (
                r#"{"rules":[{"users":["bob"],"allow":true}]}"#,
                "no user 'bob'",
            ),
            (r#"{"rules":[{"users":[-1],"allow":true}]}"#, "User"),
            (r#"{"timestampResolution":-1}"#, "timestampResolution"),
            (r#"{"timestampResolution":1e9}"#, "timestampResolution"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
