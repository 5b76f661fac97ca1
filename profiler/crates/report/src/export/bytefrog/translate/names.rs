//! Functions as an HQ shows them.
//!
//! A function of [`Tables`] -> a signature, at most as long as a message takes. Collectors treat it as
//! opaque; Code Pulse takes it apart as Java's `class/path.method;access;descriptor`. What does not
//! belong here: how names are taken apart (`derive::ClassPath`).

use std::fmt::Write;

use crate::derive::ClassPath;
use profiler_model::*;
use profiler_wire::bytefrog::text::MAX_TEXT_BYTES;

/// Longest class, method and list of parameters of a signature in Java's grammar: together less than
/// a message takes.
const MAX_CLASS_BYTES: usize = 32 << 10;
const MAX_METHOD_BYTES: usize = 16 << 10;
const MAX_DESCRIPTOR_BYTES: usize = 8 << 10;

/// How methods are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameStyle {
    /// For people: `std::vec::Vec<T>::push [libfoo.so] src/lib.rs:10`.
    #[default]
    Readable,
    /// For tools that expect Java: `libfoo_so/std/vec/Vec_T_.push;9;()V`.
    Grammar,
}

impl NameStyle {
    /// The signature of a function; `line` is that of its beginning, 0 if not known.
    pub(super) fn function(
        self,
        path: &ClassPath,
        function: &Function,
        line: u32,
        tables: &Tables,
    ) -> String {
        match self {
            NameStyle::Grammar => grammar(path),
            NameStyle::Readable => {
                let mut text = readable(tables.string(function.name), path);
                if let Some(file) = function.file {
                    text.push(' ');
                    text.push_str(tables.string(file));
                    if line > 0 {
                        let _ = write!(text, ":{line}");
                    }
                }
                cut(text, MAX_TEXT_BYTES)
            }
        }
    }

    /// The signature of a place without a name.
    pub(super) fn place(self, path: &ClassPath) -> String {
        match self {
            NameStyle::Grammar => grammar(path),
            NameStyle::Readable => cut(readable(path.function(), path), MAX_TEXT_BYTES),
        }
    }
}

/// Where a function is, and its name.
pub(super) fn class_path(function: &Function, tables: &Tables) -> ClassPath {
    let module = function.module.and_then(|id| tables.modules.get(id));
    let object = module.map_or("", |module| tables.string(module.path));
    ClassPath::new(object, tables.string(function.name))
}

/// The same of a place without a name: `libfoo.so+0x1234`.
pub(super) fn place_path(frame: FrameId, tables: &Tables) -> ClassPath {
    let module = tables
        .frames
        .get(frame)
        .and_then(|frame| frame.module)
        .and_then(|id| tables.modules.get(id));
    let object = module.map_or("", |module| tables.string(module.path));
    ClassPath::whole(object, &tables.frame_location(frame))
}

/// What makes a function this function, beyond its signature.
pub(super) fn identity(signature: &str, function: &Function, tables: &Tables) -> String {
    let text = |id: Option<StringId>| id.map_or("", |id| tables.string(id));
    let mut key = format!("{signature}\0{}\0", text(function.linkage_name));
    let _ = write!(key, "{:x?}\0", function.start);
    push_module(&mut key, function.module, tables);
    cut(key, 2 * MAX_TEXT_BYTES)
}

/// What makes a place this place, beyond its signature.
pub(super) fn place_identity(signature: &str, frame: FrameId, tables: &Tables) -> String {
    let mut key = format!("{signature}\0\0");
    let module = tables.frames.get(frame).and_then(|frame| frame.module);
    push_module(&mut key, module, tables);
    cut(key, 2 * MAX_TEXT_BYTES)
}

fn push_module(key: &mut String, module: Option<ModuleId>, tables: &Tables) {
    if let Some(module) = module.and_then(|id| tables.modules.get(id)) {
        key.push_str(tables.string(module.path));
        if let Some(build_id) = &module.build_id {
            let _ = write!(key, "\0{build_id}");
        }
    }
}

fn readable(name: &str, path: &ClassPath) -> String {
    // What is no file has brackets of its own.
    let object = path.object().trim_matches(['[', ']']);
    format!("{name} [{object}]")
}

/// `ident("/"ident)* "." ident ";9;" descriptor`, whatever the path is.
fn grammar(path: &ClassPath) -> String {
    let mut text = String::new();
    for part in path.class().split('/').filter(|part| !part.is_empty()) {
        if text.len() >= MAX_CLASS_BYTES {
            break;
        }
        if !text.is_empty() {
            text.push('/');
        }
        let end = MAX_CLASS_BYTES.max(text.len() + 1);
        identifier(part, end, &mut text);
    }
    if text.is_empty() {
        text.push('_');
    }
    text.push('.');
    let end = text.len() + MAX_METHOD_BYTES;
    identifier(path.function(), end, &mut text);
    text.push_str(";9;(");
    let end = text.len() + MAX_DESCRIPTOR_BYTES;
    for parameter in parameters(path.parameters().unwrap_or_default()) {
        if text.len() >= end {
            break;
        }
        text.push('L');
        identifier(parameter, end.max(text.len() + 1), &mut text);
        text.push(';');
    }
    text.push_str(")V");
    text
}

/// The parts of a list that commas outside of brackets separate.
fn parameters(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let parts = list.split(move |character| {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

/// Appends characters of Java's identifiers, at least one, about up to a length of the whole.
fn identifier(text: &str, end: usize, out: &mut String) {
    let start = out.len();
    let operator = text.starts_with("operator");
    for character in text.chars() {
        if out.len() >= end {
            break;
        }
        match character {
            '0'..='9' if out.len() == start => {
                out.push('_');
                out.push(character);
            }
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '$' => out.push(character),
            ' ' | ':' | ',' | '(' | ')' | '[' | ']' | '{' | '}' | '.' | '-' | '#' if !operator => {
                out.push('_');
            }
            '<' | '>' if !operator => out.push('_'),
            // What tells names apart that are otherwise equal: operators, kinds of parameters.
            '&' => out.push_str("_ref"),
            '*' => out.push_str("_ptr"),
            _ => {
                let _ = write!(out, "_{:x}", u32::from(character));
            }
        }
    }
    if out.len() == start {
        out.push('_');
    }
}

/// A text cut between characters.
fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Code Pulse's grammar of a signature.
    fn is_signature(text: &str) -> bool {
        let pattern = regex::Regex::new(
            r"^[A-Za-z_$][\w$]*(/[A-Za-z_$][\w$]*)*\.[A-Za-z_$][\w$]*;[0-9]+;\((L[A-Za-z_$][\w$]*;)*\)V$",
        )
        .unwrap();
        pattern.is_match(text) && text.is_ascii() && text.len() <= MAX_TEXT_BYTES
    }

    #[test]
    fn signatures_for_tools() {
        for (object, name, expected) in [
            (
                "/usr/lib/libfoo.so",
                "std::vec::Vec<T>::push",
                "libfoo_so/std/vec/Vec_T_.push;9;()V",
            ),
            ("/usr/bin/7z", "main", "_7z.main;9;()V"),
            (
                "app",
                "ns::f(int, char const*, std::map<a, b>&)",
                "app/ns.f;9;(Lint;Lchar_const_ptr;Lstd__map_a__b__ref;)V",
            ),
            ("app", "A::operator<(A)", "app/A.operator_3c;9;(LA;)V"),
            ("app", "A::operator>(A)", "app/A.operator_3e;9;(LA;)V"),
            ("", "", "_unknown_._;9;()V"),
        ] {
            let text = grammar(&ClassPath::new(object, name));
            assert_eq!(text, expected, "{name}");
            assert!(is_signature(&text), "{text}");
        }
    }

    #[test]
    fn long_names_keep_the_grammar() {
        for name in [
            "a::".repeat(1 << 16) + "f",
            "x".repeat(1 << 18),
            format!("{}::f", "ü".repeat(8000)),
            format!("f({})", "int, ".repeat(3000)),
            format!("f({})", "x".repeat(16_000)),
        ] {
            let text = grammar(&ClassPath::new("app", &name));
            assert!(is_signature(&text), "{}", &text[..80]);
        }
    }

    proptest! {
        #[test]
        fn any_name_keeps_the_grammar(object in any::<String>(), name in any::<String>()) {
            let text = grammar(&ClassPath::new(&object, &name));
            prop_assert!(is_signature(&text), "{}", text);
        }

        #[test]
        fn names_like_those_of_compilers_keep_the_grammar(
            name in "(a|::|<|>|\\(|\\)|operator| |,|&|\\*|\\.|/|\\[|\\]|\\{|\\}|1| as |::<){0,40}",
        ) {
            let text = grammar(&ClassPath::new("/a/b.so", &name));
            prop_assert!(is_signature(&text), "{}", text);
        }
    }
}
