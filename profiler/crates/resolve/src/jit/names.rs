//! Names that runtimes give to the code they make, as people write them.
//!
//! A name of a perf map or a dump -> a readable one, and the source file if the name has it. V8 writes a
//! kind, a mark of how well the code is compiled, the name, file, line and column in one; the JVM writes the
//! result's type before a method; .NET the result's type and the assembly before, and behind it how well it
//! is compiled; PHP how it was compiled before, and behind it the line of a trace. What is not understood stays as it is. The raw name is kept as the linkage name.

use std::borrow::Cow;

/// Kinds of V8's code that come from a script, with a mark behind the colon.
const SCRIPT_KINDS: [&str; 5] = ["JS:", "LazyCompile:", "Function:", "Eval:", "Script:"];
/// V8's marks: interpreted, baseline, mid-tier, optimized (two ways to write it).
const MARKS: [char; 5] = ['~', '^', '+', '*', '\''];

/// A name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readable<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) file: Option<&'a str>,
    /// The line that it is declared at there; 0: not known.
    pub(super) line: u32,
}

/// Takes a name apart.
pub(super) fn readable(raw: &str) -> Readable<'_> {
    if let Some(script) = is_script(raw) {
        return of_script(script);
    }
    let known = of_method(raw).or_else(|| of_assembly(raw));
    Readable {
        name: Cow::Borrowed(known.or_else(|| of_php(raw)).unwrap_or(raw)),
        file: None,
        line: 0,
    }
}

/// The rest of the name of code that V8 made of a script.
pub(super) fn is_script(raw: &str) -> Option<&str> {
    let rest = SCRIPT_KINDS
        .iter()
        .find_map(|kind| raw.strip_prefix(kind))?;
    Some(rest.strip_prefix(MARKS).unwrap_or(rest))
}

/// `name file:line:column`; file and name may be missing, and both may have spaces.
fn of_script(script: &str) -> Readable<'_> {
    let mut parts = script.rsplitn(3, ':');
    let numbers = [parts.next(), parts.next()];
    let is_number = |part: &Option<&str>| {
        part.is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let Some(rest) = parts.next().filter(|_| numbers.iter().all(is_number)) else {
        let name = if script.trim().is_empty() {
            "(anonymous)"
        } else {
            script.trim()
        };
        return Readable {
            name: Cow::Borrowed(name),
            file: None,
            line: 0,
        };
    };
    let line = numbers[1].and_then(|line| line.parse().ok()).unwrap_or(0);
    // A path begins with the first space that a slash or a scheme follows.
    let place = rest.match_indices(' ').map(|(at, _)| at).find(|at| {
        let file = &rest[at + 1..];
        let scheme = file.split([' ', '/']).next().unwrap_or_default();
        file.starts_with('/') || (scheme.len() > 1 && scheme.ends_with(':')) || scheme.contains(':')
    });
    let place = place.or_else(|| rest.find(' '));
    let (name, file) = match place {
        Some(at) => (rest[..at].trim(), rest[at + 1..].trim()),
        None => ("", rest.trim()),
    };
    let name = match name {
        // Else all of them would be one.
        "" | "(anonymous)" => Cow::Owned(format!("(anonymous) {}", script.trim())),
        name => Cow::Borrowed(name),
    };
    Readable {
        name,
        file: (!file.is_empty()).then_some(file),
        line,
    }
}

/// `type package.Class.method(types)` without the type of the result.
fn of_method(raw: &str) -> Option<&str> {
    let head = &raw[..raw.find('(')?];
    let (result, method) = head.split_once(' ')?;
    let is_type = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_alphanumeric() || "_$./[]".contains(c))
    };
    let (class, name) = method.rsplit_once('.')?;
    let is_name = name
        .chars()
        .all(|c| c.is_alphanumeric() || "_$<>-".contains(c));
    let whole = raw.ends_with(')') && !name.is_empty() && is_name;
    (is_type(result) && is_type(class) && whole).then(|| &raw[result.len() + 1..])
}

/// `type [assembly] Namespace.Class::method(types)[tier]` without type, assembly and tier, so that what is
/// compiled several times is one function.
fn of_assembly(raw: &str) -> Option<&str> {
    let (head, _) = raw.split_once("::")?;
    let (before, class) = head.rsplit_once("] ")?;
    let (result, assembly) = before.rsplit_once(" [")?;
    let method = &raw[head.len() - class.len()..];
    let end = method.rfind(')')? + 1;
    let tier = &method[end..];
    let is_tier = tier.is_empty() || (tier.starts_with('[') && tier.ends_with(']'));
    let whole = ![result, assembly, class].contains(&"") && is_tier;
    whole.then(|| &method[..end])
}

/// `Class::method` of `JIT$Class::method` and of `TRACE-2$Class::method$3`, so that all traces that begin in a function
/// are that function. What PHP makes for itself has two signs, or none.
fn of_php(raw: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match raw.strip_prefix("TRACE-") {
        Some(trace) => {
            let (number, place) = trace.split_once('$')?;
            let (name, line) = place.rsplit_once('$')?;
            (is_number(number) && is_number(line)).then_some(name)?
        }
        None => raw.strip_prefix("JIT$")?,
    };
    (!name.is_empty() && !name.starts_with('$')).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_as_people_write_them() {
        let cases = [
            ("JS:*leaf /tmp/a.js:1:14", "leaf", Some("/tmp/a.js")),
            (
                "LazyCompile:~get a b /srv/my app.js:7:2",
                "get a b",
                Some("/srv/my app.js"),
            ),
            (
                "JS:^next node:internal/process/x:5:6",
                "next",
                Some("node:internal/process/x"),
            ),
            (
                "JS:~run file:///srv/m.mjs:10:1",
                "run",
                Some("file:///srv/m.mjs"),
            ),
            (
                "JS:* /tmp/a.js:5:3",
                "(anonymous) /tmp/a.js:5:3",
                Some("/tmp/a.js"),
            ),
            (
                "Script:~ /tmp/a.js:1:1",
                "(anonymous) /tmp/a.js:1:1",
                Some("/tmp/a.js"),
            ),
            ("JS:+leaf", "leaf", None),
            ("JS:~", "(anonymous)", None),
            ("Builtin:ArrayPush", "Builtin:ArrayPush", None),
            ("int Chain.leaf(int)", "Chain.leaf(int)", None),
            (
                "java.lang.String[] a.b.C$D.<init>(int, java.lang.Object)",
                "a.b.C$D.<init>(int, java.lang.Object)",
                None,
            ),
            ("Interpreter", "Interpreter", None),
            ("StubRoutines (1)", "StubRoutines (1)", None),
            (
                "instance void [app] Program::Main(string[])[OptimizedTier1]",
                "Program::Main(string[])",
                None,
            ),
            (
                "int32 [Chain] Chain::Leaf(int32)",
                "Chain::Leaf(int32)",
                None,
            ),
            (
                "!!0[] [lib] A.B`2[System.__Canon,int32]::Of(!0[],class C.D<!1>)[PreJIT]",
                "A.B`2[System.__Canon,int32]::Of(!0[],class C.D<!1>)",
                None,
            ),
            (
                "stub<1> AllocateTemporaryEntryPoints<PRECODE_FIXUP>",
                "stub<1> AllocateTemporaryEntryPoints<PRECODE_FIXUP>",
                None,
            ),
            ("JIT$Ma::work", "Ma::work", None),
            ("TRACE-2$Ma::work$3", "Ma::work", None),
            ("TRACE-12$/srv/main.php$5", "/srv/main.php", None),
            ("JIT$$hybrid_hot_code", "JIT$$hybrid_hot_code", None),
            ("TRACE-2$exit_1", "TRACE-2$exit_1", None),
            ("int A::f(int) const", "int A::f(int) const", None),
            ("a [b] c::d", "a [b] c::d", None),
        ];
        for (raw, name, file) in cases {
            let found = readable(raw);
            assert_eq!((&*found.name, found.file), (name, file), "{raw}");
        }
    }

    #[test]
    fn a_script_says_at_which_line_a_function_is() {
        let line = |raw| readable(raw).line;
        assert_eq!(line("JS:*leaf /tmp/a.js:31:14"), 31);
        assert_eq!(line("JS:~ /tmp/a.js:5:3"), 5);
        assert_eq!(line("JS:+leaf"), 0);
        assert_eq!(line("JS:*leaf /tmp/a.js:99999999999:14"), 0);
        assert_eq!(line("int Chain.leaf(int)"), 0);
    }

    proptest! {
        #[test]
        fn any_name_is_taken(raw in "(JS:|Script:|LazyCompile:)?[~*^+]?[a-z ():/.0-9é]{0,30}") {
            let found = readable(&raw);
            prop_assert!(raw.is_empty() || raw.trim().is_empty() || !found.name.is_empty());
        }
    }
}
