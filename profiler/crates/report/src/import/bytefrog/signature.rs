//! Names of methods: signatures as agents send them -> what to call the function, and where it is.
//!
//! Three kinds are known: `demo/Demo.main;9;([Ljava/lang/String;)V` of Java programs, shown as
//! `demo.Demo.main(String[])`; `std::vec::Vec<T>::push [libfoo.so] src/lib.rs:10` of our own agent;
//! anything else is a name as it is.

/// What a signature says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) name: String,
    /// The signature, where the name does not say all of it.
    pub(super) linkage_name: Option<String>,
    /// Object file.
    pub(super) module: Option<String>,
    /// Source file.
    pub(super) file: Option<String>,
    /// Line of it; 0: not known.
    pub(super) line: u32,
}

impl Signature {
    pub(super) fn parse(text: &str) -> Signature {
        java(text)
            .or_else(|| readable(text))
            .unwrap_or_else(|| Signature::plain(text.to_owned()))
    }

    /// A name and nothing else.
    pub(super) fn plain(name: String) -> Signature {
        Signature {
            name,
            linkage_name: None,
            module: None,
            file: None,
            line: 0,
        }
    }

    /// Bytes of memory that the texts take.
    pub(super) fn bytes(&self) -> usize {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.name.len() + len(&self.linkage_name) + len(&self.module) + len(&self.file)
    }
}

fn java(text: &str) -> Option<Signature> {
    let (path, rest) = text.split_once(';')?;
    let (access, descriptor) = rest.split_once(';')?;
    let digits = !access.is_empty() && access.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || path.contains([' ', '(']) || !path.contains('.') {
        return None;
    }
    let (parameters, _result) = descriptor.strip_prefix('(')?.split_once(')')?;
    let name = format!("{}({})", path.replace('/', "."), types(parameters)?);
    Some(Signature {
        name,
        linkage_name: Some(text.to_owned()),
        module: None,
        file: None,
        line: 0,
    })
}

/// Types of a descriptor as Java source has them: `[Ljava/lang/String;I` -> `String[], int`.
fn types(mut descriptor: &str) -> Option<String> {
    let mut out = String::new();
    while !descriptor.is_empty() {
        let inner = descriptor.trim_start_matches('[');
        let dimensions = descriptor.len() - inner.len();
        let first = inner.chars().next()?;
        let (name, rest) = match first {
            'L' => {
                let (class, rest) = inner[1..].split_once(';')?;
                (class.rsplit('/').next()?, rest)
            }
            _ => {
                let name = match first {
                    'Z' => "boolean",
                    'B' => "byte",
                    'C' => "char",
                    'D' => "double",
                    'F' => "float",
                    'I' => "int",
                    'J' => "long",
                    'S' => "short",
                    'V' => "void",
                    _ => return None,
                };
                (name, &inner[1..])
            }
        };
        if !out.is_empty() {
            out.push_str(", ");
        }
        out.push_str(name);
        out.extend(std::iter::repeat_n("[]", dimensions.min(255)));
        descriptor = rest;
    }
    Some(out)
}

/// `NAME [OBJECT]`, `NAME [OBJECT] FILE` and `NAME [OBJECT] FILE:LINE`.
fn readable(text: &str) -> Option<Signature> {
    // A name may have brackets too (`operator new[]`), an object file does not have blanks there.
    let (name, rest) = text.rsplit_once(" [")?;
    let (module, rest) = rest.split_once(']')?;
    let (file, line) = match rest {
        "" => (None, 0),
        rest => {
            let place = rest.strip_prefix(' ')?;
            let numbered = place.rsplit_once(':');
            let numbered = numbered.and_then(|(file, line)| Some((file, line.parse().ok()?)));
            let (file, line) = numbered.unwrap_or((place, 0));
            (Some(file.to_owned()), line)
        }
    };
    if name.is_empty() || module.is_empty() {
        return None;
    }
    Some(Signature {
        name: name.to_owned(),
        linkage_name: None,
        module: Some(module.to_owned()),
        file: file.filter(|file| !file.is_empty()),
        line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, name: &str, module: Option<&str>, file: Option<&str>) {
        let parsed = Signature::parse(text);
        assert_eq!(parsed.name, name, "{text}");
        assert_eq!(parsed.module.as_deref(), module, "{text}");
        assert_eq!(parsed.file.as_deref(), file, "{text}");
    }

    #[test]
    fn methods_of_java() {
        for (text, name) in [
            (
                "demo/Demo.main;9;([Ljava/lang/String;)V",
                "demo.Demo.main(String[])",
            ),
            ("a/B.<init>;1;()V", "a.B.<init>()"),
            (
                "a/B$C.f;4;(IJ[[DLx/Y;Z)Ljava/util/List;",
                "a.B$C.f(int, long, double[][], Y, boolean)",
            ),
        ] {
            check(text, name, None, None);
            let parsed = Signature::parse(text);
            assert_eq!(parsed.linkage_name.as_deref(), Some(text));
        }
    }

    #[test]
    fn functions_of_our_own_agent() {
        for (text, line) in [
            ("f [m] a.c:10", 10),
            ("f [m] a.c", 0),
            ("f [m]", 0),
            ("f [m] a:b", 0),
            ("f [m] a.c:99999999999", 0),
        ] {
            assert_eq!(Signature::parse(text).line, line, "{text}");
        }
        check(
            "std::vec::Vec<T>::push [libfoo.so] src/lib.rs:10",
            "std::vec::Vec<T>::push",
            Some("libfoo.so"),
            Some("src/lib.rs"),
        );
        check(
            "operator new[](unsigned long) [libstdc++.so.6]",
            "operator new[](unsigned long)",
            Some("libstdc++.so.6"),
            None,
        );
        check("f [a.out] x y.c", "f", Some("a.out"), Some("x y.c"));
    }

    #[test]
    fn anything_else_is_a_name() {
        for text in [
            "",
            "main",
            "a;b;c",
            "a.b;9;",
            "a.b;9;(Q)V",
            "a.b;9;(L)V",
            "a.b;9;([)V",
            "a.b;;()V",
            "f (x;1;y).z",
            "lambda [x",
            " [m]",
            "f [m]x",
            "é.ü;9;(é)V",
        ] {
            check(text, text, None, None);
        }
    }
}
