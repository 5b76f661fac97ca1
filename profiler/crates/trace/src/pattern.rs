//! What people ask to trace, as they write it.
//!
//! ```text
//! [OBJECT:]FUNCTION          libc:malloc   handle_*   app:ns::parse   /usr/lib/libx.so:/^x_(get|put)/
//! [OBJECT:]usdt:PROVIDER:NAME   usdt:libstdcxx:throw   postgres:usdt:*:query__*
//! ```
//!
//! OBJECT is `main` (the executable), a file name (`libc.so.6`), that name up to `.so` and without a
//! version (`libc`, of `libc.so.6` and `libc-2.36.so`), the name that an object has for the dynamic
//! linker, or a path; globs in all of them. Without OBJECT, all objects are meant.
//!
//! FUNCTION is a glob over the whole name, or `/REGEX/` over any part of it. A function matches by
//! any of its names: readable, without parameters, without template arguments too, and as in the
//! symbol table. What a compiler specialised (`f.constprop.0`, `f.isra.0`, `f.lto_priv.0`) matches as `f`
//! too; a split-off part (`f.part.0`) does not: its calls are not calls of `f`.
//!
//! Functions of one name are told apart as reports tell them: `work (0x1240)` by the address, `work (net/a.c)` by the end of
//! the source file's path; `(inlined)` behind a name says nothing.
//!
//! A single colon separates; `::` and what is between brackets belong to a name. `\` before a character takes its meaning away.
//!
//! What does not belong here: reading objects (`object`), where probes sit.

mod coverage;
mod selection;

use std::fmt;
use std::str::FromStr;

use regex::Regex;

use super::Function;
pub use coverage::{Complaint, Coverage, Seen};
use profiler_model::text::Glob;
use profiler_object::Object;
use profiler_object::demangle::{demangle, is_mangled, short};
pub use selection::{Choice, Selection, SourcePattern};

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// There is nothing to look for.
    #[error("'{0}' names no function; write OBJECT:FUNCTION, with * for all functions")]
    NoFunction(Box<str>),
    /// There is a colon but no object before it.
    #[error("'{0}' names no object before the colon; write libc:malloc, or malloc for all objects")]
    NoObject(Box<str>),
    /// A path without a function.
    #[error("'{0}' is a path and names no function; write '{0}:*' for all of its functions")]
    OnlyPath(Box<str>),
    /// A marker that is not fully named.
    #[error("'{0}' names no marker; write usdt:PROVIDER:NAME, with * for all")]
    Marker(Box<str>),
    /// The glob is wrong.
    #[error("'{text}' is no glob: {what}")]
    Glob {
        /// The pattern.
        text: Box<str>,
        /// What is wrong.
        what: Box<str>,
    },
    /// The regular expression is wrong.
    #[error("'{text}' is no regular expression: {what}")]
    Regex {
        /// The pattern.
        text: Box<str>,
        /// What is wrong.
        what: Box<str>,
    },
}

/// What to trace.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    object: Option<ObjectPattern>,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Function {
        whole: Matcher,
        /// The name before what tells it apart from others of that name, if it ends so.
        apart: Option<(Matcher, Which)>,
    },
    Marker {
        provider: Glob,
        name: Glob,
    },
}

#[derive(Clone, Debug)]
enum Matcher {
    Glob { glob: Glob, needle: String },
    Regex(Regex),
}

/// Which of several functions of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    /// The one at this ELF virtual address.
    Address(u64),
    /// The one that was written in the file whose path ends so.
    Source(Box<str>),
}

/// Which objects are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectPattern(Glob);

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        let (object, function) = split_object(text)?;
        let glob = |part: &str| {
            Glob::new(part).map_err(|what| PatternError::Glob {
                text: text.into(),
                what: what.into(),
            })
        };
        let marker = match object {
            Some("usdt") => Some((None, function)),
            _ => function.strip_prefix("usdt:").map(|rest| (object, rest)),
        };
        if let Some((object, marker)) = marker {
            let (provider, name) = separator(marker)
                .map(|at| (&marker[..at], &marker[at + 1..]))
                .filter(|(provider, name)| !provider.is_empty() && !name.is_empty())
                .ok_or_else(|| PatternError::Marker(text.into()))?;
            return Ok(Pattern {
                text: text.into(),
                object: object.map(glob).transpose()?.map(ObjectPattern),
                what: What::Marker {
                    provider: glob(provider)?,
                    name: glob(name)?,
                },
            });
        }
        if function.is_empty() {
            return Err(PatternError::NoFunction(text.into()));
        }
        let by_glob = |text: &str| {
            let glob = glob(text)?;
            let needle = glob.needle();
            Ok(Matcher::Glob { glob, needle })
        };
        let (whole, apart) = match regex_of(function) {
            Some(expression) => {
                let regex = Regex::new(expression).map_err(|error| {
                    // The last line says what is wrong, those before show where.
                    let what = error.to_string();
                    let what = what.lines().last().unwrap_or_default();
                    PatternError::Regex {
                        text: text.into(),
                        what: what.trim_start_matches("error: ").into(),
                    }
                })?;
                (Matcher::Regex(regex), None)
            }
            None => {
                let function = function.strip_suffix(" (inlined)").unwrap_or(function);
                let apart = told_apart(function);
                let apart = apart.map(|(name, which)| Ok((by_glob(name)?, which)));
                (by_glob(function)?, apart.transpose()?)
            }
        };
        Ok(Pattern {
            text: text.into(),
            object: object.map(glob).transpose()?.map(ObjectPattern),
            what: What::Function { whole, apart },
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Pattern {
    /// Whether an object is meant. `is_main`: it is the executable.
    pub fn covers(&self, object: &Object, is_main: bool) -> bool {
        let Some(pattern) = &self.object else {
            return true;
        };
        let mut paths = object.paths();
        paths.any(|path| pattern.matches(path, is_main))
            || object
                .soname()
                .is_some_and(|soname| pattern.matches(soname, false))
    }

    /// Whether an object may be meant, by its path alone: most need not be read then.
    pub fn may_cover(&self, path: &str, is_main: bool) -> bool {
        let pattern = self.object.as_ref();
        pattern.is_none_or(|pattern| pattern.matches(path, is_main))
    }

    /// The path of the object, if that is named by a whole one.
    fn path(&self) -> Option<Box<str>> {
        let glob = &self.object.as_ref()?.0;
        let path = glob.exact().filter(|path| path.starts_with('/'))?;
        Some(path.into())
    }

    /// Whether an object may be meant by what the dynamic linker calls it: that is no path.
    fn may_be_soname(&self) -> bool {
        self.object.is_some() && self.path().is_none()
    }

    /// Whether it asks for markers.
    pub fn is_marker(&self) -> bool {
        matches!(self.what, What::Marker { .. })
    }

    /// Whether a function or marker of an object is meant; which object that is does not matter.
    pub fn means(&self, function: &Function, object: &Object) -> bool {
        self.matches(function)
            || self.which_of(function).is_some_and(|which| match which {
                Which::Address(address) => *address == function.address,
                Which::Source(end) => object
                    .source_of(function)
                    .is_some_and(|path| ends_with(path, end)),
            })
    }

    /// Which function of its name is meant, if it has the name that the pattern has before that.
    fn which_of(&self, function: &Function) -> Option<&Which> {
        let What::Function {
            apart: Some((name, which)),
            ..
        } = &self.what
        else {
            return None;
        };
        let is_function = matches!(function.kind, super::FunctionKind::Function);
        (is_function && name.matches_function(function)).then_some(which)
    }

    /// Whether a function or marker has a name that matches.
    fn matches(&self, function: &Function) -> bool {
        match (&self.what, &function.kind) {
            (What::Marker { provider, name }, super::FunctionKind::Marker { .. }) => {
                let whole = function.name.split_once(':');
                whole.is_some_and(|(p, n)| provider.matches(p) && name.matches(n))
            }
            (What::Function { whole, .. }, super::FunctionKind::Function) => {
                whole.matches_function(function)
            }
            _ => false,
        }
    }

    /// Whether a bare name matches, of what has no code.
    fn matches_name(&self, name: &str) -> bool {
        match &self.what {
            What::Function { whole, .. } => whole.matches(name) || whole.matches(before_call(name)),
            What::Marker { .. } => false,
        }
    }

    /// Whether it names one thing rather than many.
    fn literal(&self) -> Option<String> {
        match &self.what {
            What::Function { whole, apart } => match apart.as_ref().map_or(whole, |(name, _)| name)
            {
                Matcher::Glob { glob, .. } => Some(glob.literal()),
                Matcher::Regex(_) => None,
            },
            What::Marker { provider, name } => {
                Some(format!("{}:{}", provider.literal(), name.literal()))
            }
        }
    }

    /// Whether it matches all there is.
    fn is_everything(&self) -> bool {
        match &self.what {
            What::Function { whole, .. } => match whole {
                Matcher::Glob { glob, .. } => glob.is_everything(),
                Matcher::Regex(_) => false,
            },
            What::Marker { provider, name } => provider.is_everything() && name.is_everything(),
        }
    }

    /// The text of the object's part.
    fn object_text(&self) -> Option<String> {
        self.object.as_ref().map(|pattern| pattern.0.to_string())
    }

    /// The name of the function, if it is one plain word.
    fn word(&self) -> Option<&str> {
        const SHORTEST: usize = 3;
        let What::Function {
            whole: Matcher::Glob { .. },
            ..
        } = &self.what
        else {
            return None;
        };
        let text = self.function_text();
        let is_word = text.len() >= SHORTEST
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_word.then_some(text)
    }

    /// The text without the object's part.
    fn function_text(&self) -> &str {
        match split_object(&self.text) {
            Ok((Some("usdt"), _)) | Err(_) => &self.text,
            Ok((_, function)) => function,
        }
    }
}

impl Matcher {
    fn matches(&self, name: &str) -> bool {
        match self {
            Matcher::Glob { glob, .. } => glob.matches(name),
            Matcher::Regex(regex) => regex.is_match(name),
        }
    }

    fn matches_function(&self, function: &Function) -> bool {
        if let Matcher::Glob { glob, needle } = self {
            if glob.is_everything() {
                return true;
            }
            // Shorter forms have no words that the whole name does not have.
            let names = std::iter::once(&function.name)
                .chain(&function.linkage_name)
                .chain(function.aliases.iter());
            let mut hopeful = names.filter(|name| is_mangled(name) || name.contains(needle));
            if hopeful.next().is_none() {
                return false;
            }
        }
        let raw = function.linkage_name.as_ref().unwrap_or(&function.name);
        let fits_whole = match self {
            Matcher::Glob { needle, .. } => function.name.contains(needle),
            Matcher::Regex(_) => true,
        };
        self.matches(&function.name)
            || (fits_whole && self.matches_raw(raw))
            || self.matches(raw)
            || function.aliases.iter().any(|alias| {
                self.matches(alias)
                    || self.matches_raw(alias)
                    || demangle(alias).is_some_and(|(name, _)| self.matches(&name))
            })
    }

    /// Whether a shorter form of a name of a symbol table matches.
    fn matches_raw(&self, raw: &str) -> bool {
        let whole = specialised(raw);
        if short(whole).iter().any(|form| self.matches(form)) {
            return true;
        }
        whole != raw
            && (self.matches(whole) || demangle(whole).is_some_and(|(name, _)| self.matches(&name)))
    }
}

impl ObjectPattern {
    fn matches(&self, path: &str, is_main: bool) -> bool {
        if is_main && self.0.matches("main") {
            return true;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        self.0.matches(path) || self.0.matches(name) || self.0.matches(stem(name))
    }
}

/// `libc` of `libc.so.6` and of `libc-2.36.so`, `libLLVM` of `libLLVM-14.so.1`; other names as they are.
fn stem(name: &str) -> &str {
    let Some(at) = name.find(".so").filter(|&at| {
        let rest = &name[at + 3..];
        at > 0 && (rest.is_empty() || rest.starts_with('.'))
    }) else {
        return name;
    };
    let stem = &name[..at];
    match stem.rsplit_once('-') {
        Some((library, version))
            if version.starts_with(|char: char| char.is_ascii_digit())
                && version
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'.') =>
        {
            library
        }
        _ => stem,
    }
}

/// `f` of `f.constprop.0.isra.1`: the name of the whole function that this is a version of.
fn specialised(raw: &str) -> &str {
    const VERSIONS: [&str; 5] = ["constprop", "isra", "lto_priv", "llvm", "localalias"];
    let mut whole = raw;
    loop {
        let numbered = whole.rsplit_once('.').filter(|(_, number)| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        let before = numbered.map_or(whole, |(before, _)| before);
        match before.rsplit_once('.') {
            Some((name, version)) if VERSIONS.contains(&version) && !name.is_empty() => {
                whole = name;
            }
            _ => return whole,
        }
    }
}

/// A name, and which of those that have it: `work (0x1240)`, `work (net/a.c)`.
fn told_apart(function: &str) -> Option<(&str, Which)> {
    let (name, label) = function.strip_suffix(')')?.rsplit_once(" (")?;
    let which = match label.strip_prefix("0x") {
        Some(digits) => Which::Address(u64::from_str_radix(digits, 16).ok()?),
        // What is in brackets of a name's own has none of a file's dots, or other brackets.
        None if label.contains('.') && !label.contains(['(', ')', '<', '>', '*', '&']) => {
            Which::Source(label.into())
        }
        None => return None,
    };
    (!name.is_empty()).then_some((name, which))
}

/// Whether a path has this end, in whole parts.
fn ends_with(path: &str, end: &str) -> bool {
    let before = path.strip_suffix(end);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/') || end.starts_with('/'))
}

/// A readable name without its parameters.
fn before_call(name: &str) -> &str {
    let end = name.find('(').filter(|&at| at > 0);
    end.map_or(name, |end| &name[..end])
}

/// The expression between the slashes.
fn regex_of(function: &str) -> Option<&str> {
    let inner = function.strip_prefix('/')?.strip_suffix('/')?;
    (!inner.is_empty()).then_some(inner)
}

/// The object's part and the function's.
fn split_object(text: &str) -> Result<(Option<&str>, &str), PatternError> {
    if text.starts_with('/') {
        // A path, or a regular expression that may have colons in it.
        if text.ends_with('/') && text.len() > 1 {
            return Ok(match text.find(":/") {
                Some(at) if at + 2 < text.len() - 1 && !text[..at].ends_with([':', '?']) => {
                    (Some(&text[..at]), &text[at + 1..])
                }
                _ => (None, text),
            });
        }
        let at = separator(text).ok_or_else(|| PatternError::OnlyPath(text.into()))?;
        return match &text[at + 1..] {
            "" => Err(PatternError::NoFunction(text.into())),
            function => Ok((Some(&text[..at]), function)),
        };
    }
    match separator(text) {
        Some(0) => Err(PatternError::NoObject(text.into())),
        Some(at) if at + 1 == text.len() => Err(PatternError::NoFunction(text.into())),
        Some(at) => Ok((Some(&text[..at]), &text[at + 1..])),
        None if text.is_empty() => Err(PatternError::NoFunction(text.into())),
        None => Ok((None, text)),
    }
}

/// Where the first colon is that separates: not one of a pair, not behind a backslash, not between brackets
/// (`f[abi:v2]`). Of three, the first separates.
fn separator(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'[' => {
                let close = bytes[at..].iter().position(|&byte| byte == b']');
                at += close.unwrap_or(0) + 1;
            }
            b':' => {
                let run = bytes[at..].iter().take_while(|&&byte| byte == b':').count();
                if run % 2 == 1 {
                    return Some(at);
                }
                at += run;
            }
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
#[path = "pattern/tests.rs"]
mod tests;
