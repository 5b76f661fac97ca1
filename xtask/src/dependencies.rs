//! What is built into the profiler that others wrote: under which licences, how often, and from where.
//!
//! The lock file by `cargo metadata`, for the machine that is built for -> what is not allowed, in lines. It is what
//! cargo-deny would be asked for, which takes longer to build than all that it would look at; see docs/building.md.
//!
//! What does not belong here: known weaknesses (advisories), whose list has to be fetched from the network each time.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::process::{Failure, Outcome, cargo, failed, output, workspace};

/// The machine that is built for: what others need is never built.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Licences that may be built in, as SPDX has them.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Packages that may have another one, and why.
const ALSO: &[(&str, &str, &str)] = &[(
    "inferno",
    "CDDL-1.0",
    "copyleft of its own files only, which are used as they are",
)];

/// Packages that may be there in several versions, and why.
const SEVERAL: &[(&str, &str)] = &[
    (
        "getrandom",
        "ring, ahash (of inferno) and rand (of tests) want three; none but ring's is called",
    ),
    (
        "syn",
        "the derives of prost and num_enum want the older one; of both nothing is in the program",
    ),
];

/// Where packages of others come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Clone, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None: it is ours.
    source: Option<String>,
}

/// Looks at all packages.
pub(crate) fn check() -> Outcome {
    let mut command = cargo();
    command.current_dir(workspace()).args([
        "metadata",
        "--locked",
        "--format-version=1",
        "--filter-platform",
        PLATFORM,
    ]);
    let text = output(&mut command)?;
    let metadata: Metadata =
        serde_json::from_str(&text).map_err(|error| failed("read cargo's metadata", error))?;
    let wrong = complaints(&metadata.packages);
    for line in &wrong {
        println!("  {line}");
    }
    match wrong.len() {
        0 => Ok(()),
        number => Err(Failure(format!(
            "{number} dependencies are not as they should be"
        ))),
    }
}

/// What is wrong, a line each. An exception that nothing needs any more is wrong as well.
fn complaints(packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut also: Vec<&str> = Vec::new();
    for package in packages {
        let Package {
            name,
            version,
            license,
            source,
        } = package;
        versions.entry(name).or_default().push(version);
        let Some(source) = source else { continue };
        if source != REGISTRY {
            wrong.push(format!("{name} {version} is from {source}"));
        }
        let license = license.as_deref().unwrap_or("none");
        if allows(license, &|one| LICENCES.contains(&one)) {
            continue;
        }
        let of_its_own = ALSO.iter().filter(|(of, ..)| of == name);
        let of_its_own: Vec<&str> = of_its_own.map(|(_, licence, _)| *licence).collect();
        match allows(license, &|one| {
            LICENCES.contains(&one) || of_its_own.contains(&one)
        }) {
            true => also.push(name),
            false => wrong.push(format!("{name} {version} has the licence {license}")),
        }
    }
    for (name, versions) in versions {
        let is_known = SEVERAL.iter().any(|(known, _)| *known == name);
        match (versions.len(), is_known) {
            (1, true) => wrong.push(format!("{name} is there once: take it out of SEVERAL")),
            (2.., false) => wrong.push(format!("{name} is there as {}", versions.join(" and "))),
            _ => {}
        }
    }
    let stale = ALSO.iter().filter(|(name, ..)| !also.contains(name));
    wrong.extend(
        stale.map(|(name, ..)| format!("{name} needs no licence of its own: take it out of ALSO")),
    );
    wrong
}

/// Whether an expression of SPDX can be met; `/` is how OR was written once.
fn allows(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = any(&mut words, is_allowed);
    // What can't be read to its end is not allowed.
    allowed && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut allowed = all(words, is_allowed);
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words, is_allowed);
    }
    allowed
}

fn all(words: &mut Words<'_>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut allowed = one(words, is_allowed);
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words, is_allowed);
    }
    allowed
}

fn one(words: &mut Words<'_>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    match words.next() {
        Some("(") => {
            let allowed = any(words, is_allowed);
            words.next_if_eq(&")").is_some() && allowed
        }
        Some(licence) => {
            // An exception permits more, never less.
            if words.next_if_eq(&"WITH").is_some() {
                words.next();
            }
            is_allowed(licence)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_licences() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 / MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("GPL-3.0 OR MIT AND ISC", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT GPL-3.0", false),
        ] {
            let allowed = allows(expression, &|one| LICENCES.contains(&one));
            assert_eq!(allowed, expected, "{expression}");
        }
    }

    fn package(name: &str, version: &str, license: &str, source: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: (!license.is_empty()).then(|| license.to_owned()),
            source: source.map(str::to_owned),
        }
    }

    #[test]
    fn what_is_not_allowed_is_told() {
        // All exceptions are needed here.
        let mut packages = vec![package("inferno", "0.12.0", "CDDL-1.0", Some(REGISTRY))];
        for (name, _) in SEVERAL {
            packages.extend(
                ["1.0.0", "2.0.0"].map(|version| package(name, version, "MIT", Some(REGISTRY))),
            );
        }
        assert_eq!(complaints(&packages), [""; 0]);
        packages.extend([
            package("ours", "0.1.0", "Proprietary", None),
            package("copied", "1.2.3", "GPL-3.0", Some(REGISTRY)),
            package("unsaid", "1.2.3", "", Some(REGISTRY)),
            package("other", "1.0.0", "CDDL-1.0", Some(REGISTRY)),
            package(
                "forked",
                "0.1.0",
                "MIT",
                Some("git+https://example.org/forked"),
            ),
            package("twice", "1.0.0", "MIT", Some(REGISTRY)),
            package("twice", "2.0.0", "MIT", Some(REGISTRY)),
        ]);
        let expected = [
            "copied 1.2.3 has the licence GPL-3.0",
            "unsaid 1.2.3 has the licence none",
            "other 1.0.0 has the licence CDDL-1.0",
            "forked 0.1.0 is from git+https://example.org/forked",
            "twice is there as 1.0.0 and 2.0.0",
        ];
        assert_eq!(complaints(&packages), expected);
    }

    #[test]
    fn exceptions_go_when_nothing_needs_them() {
        let once: Vec<Package> = SEVERAL
            .iter()
            .map(|(name, _)| package(name, "1.0.0", "MIT", Some(REGISTRY)))
            .collect();
        let told = complaints(&once);
        assert_eq!(told.len(), SEVERAL.len() + ALSO.len(), "{told:?}");
        assert!(told.iter().all(|line| line.contains("take it out of")));
    }
}
