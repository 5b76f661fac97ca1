//! What of a selection was found, over all objects of a target, and why the rest was not.
//!
//! Each object and what was chosen of it -> [`Complaint`]s: one sentence for each pattern that found
//! nothing, with what is similar.

use std::fmt;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::{Choice, Pattern, Selection, before_call};
use profiler_object::Object;

/// Most similar names that are told.
const MAX_SIMILAR: usize = 3;
/// Most other things that are told in one sentence.
const MAX_TOLD: usize = 8;
/// Longest name that is compared.
const MAX_COMPARED_CHARS: usize = 96;

/// Follows a selection over the objects of a target.
#[derive(Debug)]
pub struct Coverage<'a> {
    selection: &'a Selection,
    objects: Vec<Box<str>>,
    patterns: Vec<Found>,
    in_sources: Vec<usize>,
    debug_info: bool,
}

/// What the patterns of a selection found in one object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    object: Box<str>,
    has_debug_info: bool,
    in_sources: Vec<usize>,
    /// By pattern; none: it does not mean the object.
    patterns: Vec<Option<Found>>,
}

/// What one pattern found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Found {
    matched: usize,
    /// File names of the objects that it means.
    covered: Vec<Box<str>>,
    /// Of these, the stripped ones.
    stripped: Vec<Box<str>>,
    similar: Vec<(usize, Box<str>)>,
    chosen_at_load: Vec<Box<str>>,
    inlined: Vec<Box<str>>,
}

/// Why a pattern found nothing, or not all that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// No object of this name is mapped.
    UnknownObject {
        /// The pattern.
        pattern: Box<str>,
        /// The object that it names.
        object: Box<str>,
        /// File names of the objects that there are.
        mapped: Vec<Box<str>>,
    },
    /// The objects have no function or marker of this name.
    NoFunction {
        /// What was looked for.
        name: Box<str>,
        /// Whether it is a marker.
        marker: bool,
        /// In which objects; empty: in all.
        objects: Vec<Box<str>>,
        /// Which of them are stripped.
        stripped: Vec<Box<str>>,
        /// Names that are similar.
        similar: Vec<Box<str>>,
    },
    /// The functions have no code: each use was inlined.
    Inlined {
        /// Their names.
        names: Vec<Box<str>>,
        /// The pattern.
        pattern: Box<str>,
    },
    /// The functions are chosen from several when the object is loaded.
    ChosenAtLoad {
        /// Their names.
        names: Vec<Box<str>>,
        /// The pattern.
        pattern: Box<str>,
        /// Whether it names one of them, and no others.
        exact: bool,
        /// How many functions it found besides.
        matched: usize,
        /// Which of the objects are stripped.
        stripped: Vec<Box<str>>,
    },
    /// No function was written in these files.
    NoSource {
        /// The pattern.
        pattern: Box<str>,
        /// Whether any object has debug information.
        debug_info: bool,
    },
}

impl<'a> Coverage<'a> {
    /// Nothing was looked at yet.
    pub fn new(selection: &'a Selection) -> Coverage<'a> {
        Coverage {
            selection,
            objects: Vec::new(),
            patterns: vec![Found::default(); selection.include.len()],
            in_sources: vec![0; selection.sources.len()],
            debug_info: false,
        }
    }

    /// Takes note of an object that need not be read.
    pub fn skip(&mut self, path: &str) {
        self.objects.push(file_name(path).into());
    }

    /// Takes note of what was seen in an object.
    pub fn add(&mut self, seen: Seen) {
        self.objects.push(seen.object);
        self.debug_info |= seen.has_debug_info;
        for (sum, matched) in self.in_sources.iter_mut().zip(seen.in_sources) {
            *sum = sum.saturating_add(matched);
        }
        for (found, more) in self.patterns.iter_mut().zip(seen.patterns) {
            if let Some(more) = more {
                found.add(more);
            }
        }
    }

    /// Why patterns found nothing.
    pub fn complaints(&self) -> Vec<Complaint> {
        let patterns = self.selection.include.iter().zip(&self.patterns);
        let mut complaints: Vec<Complaint> = patterns
            .flat_map(|(pattern, found)| self.of_pattern(pattern, found))
            .collect();
        // What no pattern matched can't be in a source file either.
        let any = self.patterns.is_empty() || self.patterns.iter().any(|found| found.matched > 0);
        let sources = self.selection.sources.iter().zip(&self.in_sources);
        let missing = sources.filter(|&(_, &matched)| any && matched == 0);
        complaints.extend(missing.map(|(pattern, _)| Complaint::NoSource {
            pattern: pattern.to_string().into(),
            debug_info: self.debug_info,
        }));
        complaints
    }

    fn of_pattern(&self, pattern: &Pattern, found: &Found) -> Vec<Complaint> {
        let text: Box<str> = pattern.to_string().into();
        let mut complaints = Vec::new();
        if !found.chosen_at_load.is_empty() {
            complaints.push(Complaint::ChosenAtLoad {
                names: found.chosen_at_load.clone(),
                pattern: text.clone(),
                exact: found
                    .chosen_at_load
                    .iter()
                    .any(|name| **name == *pattern.function_text()),
                matched: found.matched,
                stripped: found.stripped.clone(),
            });
        }
        if found.matched > 0 || !complaints.is_empty() {
            return complaints;
        }
        if let (Some(object), true) = (pattern.object_text(), found.covered.is_empty()) {
            return vec![Complaint::UnknownObject {
                pattern: text,
                object: object.into(),
                mapped: self.objects.clone(),
            }];
        }
        if !found.inlined.is_empty() {
            return vec![Complaint::Inlined {
                names: found.inlined.clone(),
                pattern: text,
            }];
        }
        let named = pattern.object.is_some() || self.objects.len() == 1;
        vec![Complaint::NoFunction {
            name: pattern.function_text().into(),
            marker: pattern.is_marker(),
            objects: match named {
                true => found.covered.clone(),
                false => Vec::new(),
            },
            stripped: found.stripped.clone(),
            similar: found.similar.iter().map(|(_, name)| name.clone()).collect(),
        }]
    }
}

impl Seen {
    /// What a selection that chose this of an object found in it.
    pub fn of(selection: &Selection, object: &Object, is_main: bool, choice: &Choice) -> Seen {
        let patterns = selection.include.iter().zip(&choice.matched);
        let patterns = patterns.map(|(pattern, &matched)| {
            let covers = pattern.covers(object, is_main);
            covers.then(|| Found::of(pattern, object, choice, matched))
        });
        Seen {
            object: file_name(object.path()).into(),
            has_debug_info: object.has_debug_info(),
            in_sources: choice.in_sources.clone(),
            patterns: patterns.collect(),
        }
    }
}

impl Found {
    fn of(pattern: &Pattern, object: &Object, choice: &Choice, matched: usize) -> Found {
        let name = file_name(object.path());
        let mut found = Found {
            matched,
            covered: vec![name.into()],
            ..Found::default()
        };
        if object.is_stripped() && !pattern.is_marker() {
            found.stripped.push(name.into());
        }
        if !pattern.is_everything() {
            let chosen = choice.chosen_at_load.iter();
            let chosen = chosen.filter(|name| pattern.matches_name(name));
            found.chosen_at_load.extend(chosen.cloned());
        }
        if matched > 0 {
            return found;
        }
        if !pattern.is_everything() {
            let inlined = choice.inlined.iter();
            let inlined = inlined.filter(|name| pattern.matches_name(name));
            found.inlined.extend(inlined.take(MAX_TOLD).cloned());
        }
        found.find_similar(pattern, object);
        found
    }

    /// Another object was looked at.
    fn add(&mut self, more: Found) {
        self.matched = self.matched.saturating_add(more.matched);
        self.covered.extend(more.covered);
        self.stripped.extend(more.stripped);
        // Several objects may be of one kind.
        let known: FxHashSet<&str> = self.chosen_at_load.iter().map(|name| &**name).collect();
        let mut new = more.chosen_at_load;
        new.retain(|name| !known.contains(&**name));
        self.chosen_at_load.extend(new);
        self.inlined.extend(more.inlined);
        for (distance, name) in more.similar {
            self.keep_similar(distance, &name);
        }
    }

    fn find_similar(&mut self, pattern: &Pattern, object: &Object) {
        let Some(wanted) = pattern.literal().filter(|text| text.chars().count() > 2) else {
            return;
        };
        let wanted: Vec<char> = wanted.to_lowercase().chars().collect();
        if wanted.len() > MAX_COMPARED_CHARS {
            return;
        }
        let functions = match pattern.is_marker() {
            true => object.markers(),
            false => object.functions(),
        };
        for function in functions {
            let readable = match pattern.is_marker() {
                true => &function.name,
                false => before_call(&function.name),
            };
            let names =
                std::iter::once(readable).chain(function.aliases.iter().map(|name| &**name));
            for name in names {
                self.compare(&wanted, name);
            }
        }
    }

    fn compare(&mut self, wanted: &[char], name: &str) {
        // A third may differ; the best that are known set a closer limit.
        let limit = match self.similar.get(MAX_SIMILAR - 1) {
            Some(&(distance, _)) => distance.saturating_sub(1),
            None => wanted.len() / 3,
        };
        if name.len().abs_diff(wanted.len()) > limit + 16 {
            return;
        }
        let mut chars = Vec::with_capacity(name.len());
        chars.extend(name.chars().flat_map(char::to_lowercase));
        if let Some(distance) = distance(wanted, &chars, limit) {
            self.keep_similar(distance, name);
        }
    }

    fn keep_similar(&mut self, distance: usize, name: &str) {
        if self.similar.iter().any(|(_, known)| **known == *name) {
            return;
        }
        let at = self
            .similar
            .partition_point(|&(known, _)| known <= distance);
        self.similar.insert(at, (distance, name.into()));
        self.similar.truncate(MAX_SIMILAR);
    }
}

/// How many characters have to be changed, added, left out or swapped; none if more than `limit`.
fn distance(a: &[char], b: &[char], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &left) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, &right) in b.iter().enumerate() {
            let changed = last[j] + usize::from(left != right);
            let mut least = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && left == b[j - 1] && a[i - 1] == right {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        if row.iter().all(|&cell| cell > limit) {
            return None;
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|&distance| distance <= limit)
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Complaint::UnknownObject {
                pattern,
                object,
                mapped,
            } => {
                write!(f, "'{pattern}': there is no object '{object}'")?;
                if !mapped.is_empty() {
                    write!(f, "; there are {}", list(mapped))?;
                }
                Ok(())
            }
            Complaint::NoFunction {
                name,
                marker,
                objects,
                stripped,
                similar,
            } => {
                let kind = if *marker { "marker" } else { "function" };
                write!(f, "no {kind} '{name}'")?;
                match objects.is_empty() {
                    true => write!(f, " in any object")?,
                    false => write!(f, " in {}", list(objects))?,
                }
                if !similar.is_empty() {
                    let quoted: Vec<String> = similar.iter().map(|s| format!("'{s}'")).collect();
                    write!(f, "; did you mean {}?", quoted.join(" or "))?;
                }
                if !stripped.is_empty() && !objects.is_empty() {
                    let verb = if stripped.len() == 1 { "is" } else { "are" };
                    write!(
                        f,
                        "; {} {verb} stripped: only exported functions are known, install the \
                         debug symbols",
                        list(stripped)
                    )?;
                }
                Ok(())
            }
            Complaint::Inlined { names, pattern } => write!(
                f,
                "'{pattern}': {} {} no code, each use was inlined; build with -fno-inline or mark it \
                 noinline",
                list(names),
                if names.len() == 1 { "has" } else { "have" }
            ),
            // What a pattern finds is traced, and more was not asked for by name.
            Complaint::ChosenAtLoad {
                names,
                pattern,
                exact: false,
                matched: 1..,
                ..
            } => write!(
                f,
                "'{pattern}': {} left out, of which one of several implementations is chosen when the object is \
                 loaded: {}",
                match names.len() {
                    1 => "1 name is".to_owned(),
                    count => format!("{count} names are"),
                },
                list(names)
            ),
            Complaint::ChosenAtLoad {
                names,
                pattern,
                exact,
                matched,
                stripped,
            } => {
                write!(
                    f,
                    "'{pattern}': of {} one of several implementations is chosen when the object is loaded",
                    list(names)
                )?;
                if *exact && *matched > 0 {
                    write!(f, ", and what is traced is another function of that name")?;
                }
                match stripped.is_empty() {
                    true => write!(
                        f,
                        "; trace those by their own names, like '*{}*'",
                        names
                            .first()
                            .map_or("", |name| name.trim_start_matches('_'))
                    ),
                    false => write!(
                        f,
                        "; those have names of their own with the debug symbols of {}",
                        list(stripped)
                    ),
                }
            }
            Complaint::NoSource {
                pattern,
                debug_info: true,
            } => write!(
                f,
                "no function was written in '{pattern}', as far as debug information says"
            ),
            Complaint::NoSource {
                pattern,
                debug_info: false,
            } => write!(
                f,
                "'{pattern}': nothing has debug information, which tells the source files; install \
                 the debug symbols, or build with -g"
            ),
        }
    }
}

fn list(names: &[Box<str>]) -> String {
    let shown = names.len().min(MAX_TOLD);
    let mut text = names[..shown].join(", ");
    if names.len() > shown {
        text.push_str(&format!(" and {} more", names.len() - shown));
    }
    text
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let of = |a: &str, b: &str| {
            let chars = |text: &str| text.chars().collect::<Vec<char>>();
            distance(&chars(a), &chars(b), 3)
        };
        assert_eq!(of("mallok", "malloc"), Some(1));
        assert_eq!(of("mlaloc", "malloc"), Some(1));
        assert_eq!(of("malloc", "malloc"), Some(0));
        assert_eq!(of("", "abc"), Some(3));
        assert_eq!(of("malloc", "free"), None);
        assert_eq!(of("abcdef", "ghijkl"), None);
    }
}
