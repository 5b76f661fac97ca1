//! Sets of functions chosen at random, and the smallest set that still does harm.
//!
//! Input: a seed, or a set that fails. Output: names as patterns for `--trace`. A seed gives the same set
//! wherever the same files are installed.
//!
//! What does not belong here: what a failure is (the tests).

use std::error::Error;
use std::process::Command;

use super::{LIMIT, Program, in_surroundings};
use crate::arbitrary::Random;
use crate::process;
use crate::setting::Setting;

/// A function that can be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// What names it alone: `libc.so.6:malloc`.
    pub pattern: String,
    /// A return probe is said to be harmless.
    pub return_probe: bool,
}

/// Functions that match `patterns` and that `profiler list functions` says can be traced in this program.
pub fn functions(
    setting: &Setting,
    program: &Program,
    patterns: &[&str],
) -> Result<Vec<Function>, Box<dyn Error>> {
    let folder = program.fresh_folder(setting)?;
    let mut command = Command::new(setting.profiler_path());
    command
        .args(["list", "functions", "--json"])
        .args(patterns)
        .arg("--")
        .args(program.command);
    in_surroundings(&mut command, &folder);
    let list = process::run(&mut command, setting.folder(), "list", LIMIT)?;
    let list = list.success()?.json()?;
    let all = list["functions"].as_array().ok_or("no functions listed")?;
    let mut found: Vec<Function> = all.iter().filter_map(function).collect();
    found.sort_by(|a, b| a.pattern.cmp(&b.pattern));
    found.dedup_by(|a, b| a.pattern == b.pattern);
    Ok(found)
}

fn function(listed: &serde_json::Value) -> Option<Function> {
    listed["probe"].as_object()?;
    let name = listed["linkage_name"]
        .as_str()
        .or(listed["name"].as_str())?;
    let escaped = escaped(name);
    Some(Function {
        pattern: format!("{}:{escaped}", listed["object"].as_str()?),
        return_probe: listed["exits"]["kind"] == "return probe",
    })
}

/// A name as a glob that matches it alone.
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for character in name.chars() {
        if "*?[]{}\\:/".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// A set of them: of any size up to `most`, as many small ones as large ones.
pub fn set(random: &mut Random, functions: &[Function], most: usize) -> Vec<String> {
    let most = most.min(functions.len());
    let magnitude = random.below(most.ilog2() as usize + 1);
    let size = ((1 << magnitude) + random.below(1 << magnitude)).min(most);
    let mut left: Vec<usize> = (0..functions.len()).collect();
    let mut chosen: Vec<usize> = (0..size)
        .map(|_| left.swap_remove(random.below(left.len())))
        .collect();
    chosen.sort_unstable();
    chosen
        .into_iter()
        .map(|index| functions[index].pattern.clone())
        .collect()
}

/// The smallest part of a set that fails, found by halves: mostly one. If neither half fails alone, what is
/// left after leaving out all that can be.
pub fn smallest(set: &[String], fails: &mut impl FnMut(&[String]) -> bool) -> Vec<String> {
    let mut set = set.to_vec();
    let mut pieces = 2;
    while set.len() > 1 {
        let length = set.len().div_ceil(pieces);
        let parts: Vec<Vec<String>> = set.chunks(length).map(<[String]>::to_vec).collect();
        if let Some(part) = parts.iter().find(|part| fails(part)) {
            (set, pieces) = (part.clone(), 2);
            continue;
        }
        let rest = |without: usize| -> Vec<String> {
            let parts = parts.iter().enumerate();
            let others = parts.filter(|(index, _)| *index != without);
            others.flat_map(|(_, part)| part.clone()).collect()
        };
        // Of two parts the rest of one is the other.
        let smaller = (0..parts.len())
            .filter(|_| parts.len() > 2)
            .map(rest)
            .find(|rest| fails(rest));
        match smaller {
            Some(rest) => (set, pieces) = (rest, (pieces - 1).max(2)),
            None if pieces >= set.len() => break,
            None => pieces = (pieces * 2).min(set.len()),
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: impl IntoIterator<Item = u32>) -> Vec<String> {
        names.into_iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn one_function_that_does_harm_is_found() {
        for harmful in [0, 1, 36, 99] {
            let mut tries = 0;
            let found = smallest(&named(0..100), &mut |set| {
                tries += 1;
                set.contains(&harmful.to_string())
            });
            assert_eq!(found, named([harmful]));
            assert!(tries <= 14, "{tries} tries");
        }
    }

    #[test]
    fn two_that_do_harm_together_are_found() {
        let both = named([3, 90]);
        let found = smallest(&named(0..100), &mut |set| {
            both.iter().all(|name| set.contains(name))
        });
        assert_eq!(found, both);
    }

    #[test]
    fn a_seed_gives_one_set() {
        let functions: Vec<Function> = (0..1000)
            .map(|number| Function {
                pattern: format!("x:{number}"),
                return_probe: true,
            })
            .collect();
        let sizes: Vec<usize> = (0..200)
            .map(|seed| {
                let chosen = set(&mut Random(seed), &functions, 256);
                assert_eq!(chosen, set(&mut Random(seed), &functions, 256));
                let mut unique = chosen.clone();
                unique.dedup();
                assert_eq!(chosen, unique);
                chosen.len()
            })
            .collect();
        assert!(sizes.iter().all(|size| (1..=256).contains(size)));
        assert!(sizes.contains(&1) && sizes.iter().any(|size| *size > 128));
    }

    #[test]
    fn names_match_themselves_alone() {
        assert_eq!(escaped("main.(*T).f[...]"), r"main.(\*T).f\[...\]");
        assert_eq!(escaped("a::b"), r"a\:\:b");
    }
}
