//! Several patterns together: what is asked for, less what is excluded, in the files that are meant.
//!
//! An [`Object`] -> [`Choice`]: indices of its functions and markers, and how many of them each
//! pattern brought.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Pattern, PatternError};
use crate::Function;
use profiler_model::text::Glob;
use profiler_object::Object;

/// What to trace, of all objects.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Functions and markers that match any of these.
    pub include: Vec<Pattern>,
    /// But not those that match any of these.
    pub exclude: Vec<Pattern>,
    /// And only functions that were written in a file that matches any of these. Alone, they ask for
    /// all functions of these files.
    pub sources: Vec<SourcePattern>,
}

/// A glob over source files: a path (`/src/net/*.c`), the end of one (`net/*.c`), or a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePattern {
    glob: Glob,
    below: Glob,
}

/// What was chosen of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Indices into its functions.
    pub functions: Vec<usize>,
    /// Indices into its markers.
    pub markers: Vec<usize>,
    /// Names of functions that match but have no code of their own: each use was inlined. Known only
    /// where debug information is read.
    pub inlined: Vec<Box<str>>,
    /// Names that match of which one of several implementations is chosen when the object is loaded.
    pub chosen_at_load: Vec<Box<str>>,
    /// How many each pattern of [`Selection::include`] matched, before exclusions and sources.
    pub matched: Vec<usize>,
    /// How many each pattern of [`Selection::sources`] matched.
    pub in_sources: Vec<usize>,
    /// Debug information of the object is read, so that it can tell source files.
    pub has_sources: bool,
}

impl Choice {
    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.markers.is_empty()
    }
}

impl FromStr for SourcePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<SourcePattern, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Glob {
                text: text.into(),
                what: "it is empty".into(),
            });
        }
        let glob = |glob: &str| {
            Glob::new(glob).map_err(|what| PatternError::Glob {
                text: text.into(),
                what: what.into(),
            })
        };
        Ok(SourcePattern {
            glob: glob(text)?,
            below: glob(&format!("*/{text}"))?,
        })
    }
}

impl std::fmt::Display for SourcePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.glob.fmt(f)
    }
}

impl SourcePattern {
    /// Whether a path of debug information is meant.
    pub fn matches(&self, path: &str) -> bool {
        self.glob.matches(path) || self.below.matches(path)
    }
}

impl Selection {
    /// Whether an object may hold what is asked for, by its path alone. Where no object of a target
    /// may, names for the dynamic linker decide, for which all have to be read ([`Selection::may_name_sonames`]).
    pub fn may_cover(&self, path: &str, is_main: bool) -> bool {
        let mut patterns = self.include.iter();
        self.include.is_empty() || patterns.any(|pattern| pattern.may_cover(path, is_main))
    }

    /// Whether something is asked for in an object that is named as the dynamic linker may call it, which is inside the object.
    pub fn may_name_sonames(&self) -> bool {
        self.include.iter().any(Pattern::may_be_soname)
    }

    /// Words of which the name of each wanted function has one, as symbols spell it; none if that can't be said. What
    /// the C++ ABI has short forms for need not be spelt out.
    pub fn words(&self) -> Option<Vec<Box<str>>> {
        const SHORT: [&str; 9] = [
            "operator",
            "allocator",
            "basic_string",
            "string",
            "istream",
            "ostream",
            "iostream",
            "basic_istream",
            "basic_ostream",
        ];
        let word = |pattern: &Pattern| {
            let word = pattern.word()?;
            (!SHORT.contains(&word)).then(|| word.into())
        };
        match self.include.is_empty() || !self.sources.is_empty() {
            true => None,
            false => self.include.iter().map(word).collect(),
        }
    }

    /// Paths by which objects are named, without those with wildcards. A target may see the same file
    /// at another path.
    pub fn paths(&self) -> Vec<Box<str>> {
        let patterns = self.include.iter().chain(&self.exclude);
        let mut paths: Vec<Box<str>> = patterns.filter_map(Pattern::path).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// Whether debug information of an object is worth the time that reading it takes: it is the
    /// executable or named by a pattern, or source files are asked for.
    pub fn reads_debug_info(&self, object: &Object, is_main: bool) -> bool {
        let mut include = self.include.iter();
        let mut named =
            || include.any(|pattern| pattern.object.is_some() && pattern.covers(object, is_main));
        object.has_debug_info() && (is_main || !self.sources.is_empty() || named())
    }

    /// What is asked for of an object. `is_main`: it is the executable.
    pub fn select(&self, object: &Object, is_main: bool) -> Choice {
        let covering = |patterns: &'_ [Pattern]| -> Vec<bool> {
            let covers = patterns.iter().map(|p| p.covers(object, is_main));
            covers.collect()
        };
        let (included, excluded) = (covering(&self.include), covering(&self.exclude));
        let mut choice = Choice {
            matched: vec![0; self.include.len()],
            in_sources: vec![0; self.sources.len()],
            ..Choice::default()
        };
        let all = self.include.is_empty() && !self.sources.is_empty();
        if !all && !included.contains(&true) {
            return choice;
        }
        let mut wanted = |function: &Function| {
            let mut wanted = all;
            let patterns = self.include.iter().zip(&included);
            for ((pattern, covers), matched) in patterns.zip(&mut choice.matched) {
                if *covers && pattern.means(function, object) {
                    *matched += 1;
                    wanted = true;
                }
            }
            let mut exclusions = self.exclude.iter().zip(&excluded);
            wanted
                && !exclusions.any(|(pattern, covers)| *covers && pattern.means(function, object))
        };
        let functions = object.functions().iter().enumerate();
        let functions: Vec<usize> = functions
            .filter_map(|(index, function)| wanted(function).then_some(index))
            .collect();
        let markers = object.markers().iter().enumerate();
        // A marker has no source file that debug information tells.
        choice.markers = markers
            .filter_map(|(index, marker)| {
                (!self.include.is_empty() && wanted(marker)).then_some(index)
            })
            .collect();
        choice.functions = functions;
        let meant = |name: &str| {
            let mut patterns = self.include.iter().zip(&included);
            let mut exclusions = self.exclude.iter().zip(&excluded);
            patterns.any(|(pattern, covers)| *covers && pattern.matches_name(name))
                && !exclusions.any(|(pattern, covers)| *covers && pattern.matches_name(name))
        };
        let chosen_at_load = object.chosen_at_load().iter();
        choice.chosen_at_load = chosen_at_load.filter(|name| meant(name)).cloned().collect();
        choice.has_sources = self.reads_debug_info(object, is_main);
        if self.sources.is_empty() && choice.has_sources {
            let inlined = object.inlined_only().iter();
            choice.inlined = inlined.filter(|name| meant(name)).cloned().collect();
        }
        if !self.sources.is_empty() {
            let in_sources = &mut choice.in_sources;
            choice.functions.retain(|&index| {
                let source = object.source_of(&object.functions()[index]);
                let mut kept = false;
                for (pattern, matched) in self.sources.iter().zip(in_sources.iter_mut()) {
                    if source.is_some_and(|path| pattern.matches(path)) {
                        *matched += 1;
                        kept = true;
                    }
                }
                kept
            });
        }
        choice
    }
}
