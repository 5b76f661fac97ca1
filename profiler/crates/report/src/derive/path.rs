//! Functions as paths of classes: object file, namespaces and types, then the function.
//!
//! Path of an object file and a demangled name -> `libfoo.so/std/vec/Vec<T>` and `push`. That is what
//! filters made for classes and methods are matched on, and what names in their grammar are made of.
//! C++, Rust, Go and C are told apart by the form of the name; what has no known form is one function
//! with all of its text as name. Names come from targets: nothing is trusted, all is bounded.
//!
//! What does not belong here: demangling, how a format writes the parts.

/// Longest name that is taken apart, in bytes.
const MAX_NAME_BYTES: usize = 1 << 14;

/// How deep types that stand for a part of a path are taken apart themselves.
const MAX_DEPTH: u32 = 8;

/// Where a function is, in the terms of languages with classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassPath {
    object: String,
    class: String,
    function: String,
    parameters: Option<String>,
}

impl ClassPath {
    /// Takes a name apart.
    pub fn new(object_path: &str, demangled: &str) -> ClassPath {
        let mut parts = Parts::default();
        if demangled.len() > MAX_NAME_BYTES || !split(demangled, &mut parts, 0) {
            return ClassPath::whole(object_path, demangled);
        }
        ClassPath::of(object_path, parts)
    }

    /// A function, or another thing, whose name is not to be taken apart.
    pub fn whole(object_path: &str, name: &str) -> ClassPath {
        let parts = Parts {
            function: name.to_owned(),
            ..Parts::default()
        };
        ClassPath::of(object_path, parts)
    }

    fn of(object_path: &str, parts: Parts) -> ClassPath {
        let object = object_name(object_path).to_owned();
        let mut class = object.clone();
        for part in &parts.classes {
            class.push('/');
            class.push_str(part);
        }
        ClassPath {
            object,
            class,
            function: parts.function,
            parameters: parts.parameters,
        }
    }

    /// Name of the object file.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Object file, namespaces, types: `libfoo.so/std/vec/Vec<T>`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// The function itself: `push`.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// Types of its parameters as the name has them, without parentheses; none if it has none.
    pub fn parameters(&self) -> Option<&str> {
        self.parameters.as_deref()
    }

    /// All of it: `libfoo.so/std/vec/Vec<T>/push`.
    pub fn full(&self) -> String {
        format!("{}/{}", self.class, self.function)
    }
}

/// The last part of a path.
fn object_name(path: &str) -> &str {
    let name = path.rsplit('/').find(|part| !part.is_empty());
    name.unwrap_or("[unknown]")
}

#[derive(Debug, Default)]
struct Parts {
    classes: Vec<String>,
    function: String,
    parameters: Option<String>,
}

/// Takes a name apart; false if there is no name of a function in it.
fn split(name: &str, parts: &mut Parts, depth: u32) -> bool {
    let name = plain(name);
    if !name.contains("::")
        && let Some(go) = split_go(name)
    {
        *parts = go;
        return true;
    }
    if let Some(inner) = declared(name, depth) {
        return split(inner, parts, MAX_DEPTH);
    }
    let mut scan = Scan::new(name);
    scan.run();
    let mut segments = scan.segments;
    let Some(function) = segments.pop().filter(|function| !function.is_empty()) else {
        return false;
    };
    if segments.is_empty() && is_group(&function) {
        // Types without a name.
        return false;
    }
    parts.function = function;
    parts.parameters = scan.parameters;
    for (index, segment) in segments.into_iter().enumerate() {
        match segment.strip_prefix('<').and_then(|s| s.strip_suffix('>')) {
            Some(kind) if index == 0 && depth < MAX_DEPTH => qualified(kind, parts, depth),
            _ if segment.is_empty() => {}
            _ => parts.classes.push(segment),
        }
    }
    true
}

/// The function of `void (*ns::f(int))(double)`, which returns another one; none where the type stands before it:
/// `void (*)(double) ns::f(int)`.
fn declared(name: &str, depth: u32) -> Option<&str> {
    if depth >= MAX_DEPTH {
        return None;
    }
    let at = top_level(name, "(")?;
    let before = &name[..at];
    if !before.is_empty() && !before.ends_with(' ') || before.ends_with("decltype ") {
        return None;
    }
    let (parentheses, _) = name[at..].split_at(group(&name[at..]));
    let inner = parentheses.strip_prefix('(')?.strip_suffix(')')?;
    let mark = top_level(inner, "*").or_else(|| top_level(inner, "&"))?;
    let inner = inner[mark..].trim_start_matches(['*', '&', ' ']);
    match is_group(inner) {
        true => declared(inner, depth + 1),
        false => (!inner.is_empty()).then_some(inner),
    }
}

/// Whether a text begins with parentheses that are no name.
fn is_group(text: &str) -> bool {
    text.starts_with('(') && !text.starts_with("(anonymous namespace)")
}

/// The type of `<T>::f` and `<T as Trait>::f`.
fn qualified(kind: &str, parts: &mut Parts, depth: u32) {
    let (own, implemented) = match top_level(kind, " as ") {
        Some(at) => (&kind[..at], &kind[at..]),
        None => (kind, ""),
    };
    let mut own = own;
    while let Some(rest) = ["&", "mut ", "dyn ", "*const ", "*mut "]
        .iter()
        .find_map(|before| own.strip_prefix(before))
    {
        own = rest;
    }
    let mut inner = Parts::default();
    let is_path =
        own.starts_with(|first: char| first == '<' || first == '_' || first.is_alphabetic());
    if is_path && split(own, &mut inner, depth + 1) {
        parts.classes.append(&mut inner.classes);
        parts.classes.push(inner.function + implemented);
    } else {
        parts.classes.push(kind.to_owned());
    }
}

/// A name without what compilers and demanglers put around it.
fn plain(name: &str) -> &str {
    let mut name = name.trim();
    while name.ends_with(']')
        && let Some(at) = name.rfind(" [clone ")
    {
        name = &name[..at];
    }
    for before in [
        "non-virtual thunk to ",
        "virtual thunk to ",
        "covariant return thunk to ",
        "transaction clone for ",
    ] {
        name = name.strip_prefix(before).unwrap_or(name);
    }
    // `{virtual override thunk({offset(-16)}, ns::A::f())}`
    let thunk = name.strip_prefix("{virtual override thunk(");
    if let Some(mut of) = thunk.and_then(|thunk| thunk.strip_suffix(")}")) {
        while of.starts_with('{') {
            let rest = &of[group(of)..];
            of = rest.strip_prefix(", ").unwrap_or(rest);
        }
        name = of;
    }
    name
}

/// Where `wanted` stands outside of all brackets.
fn top_level(text: &str, wanted: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = b' ';
    for (at, byte) in text.bytes().enumerate() {
        if depth == 0 && text.as_bytes()[at..].starts_with(wanted.as_bytes()) {
            return Some(at);
        }
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' if before == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = byte;
    }
    None
}

/// `net/http.(*Server).Serve`: a path, then what is declared in its package.
fn split_go(name: &str) -> Option<Parts> {
    // Type arguments may name packages of their own.
    let head = &name[..name.find('[').unwrap_or(name.len())];
    let package = head.rfind('/').map_or(0, |at| at + 1);
    let dot = package + head[package..].find('.')?;
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"_/.-~%".contains(&byte);
    let (path, declared) = (&name[..dot], &name[dot + 1..]);
    if path.is_empty() || declared.is_empty() || !path.bytes().all(is_path) {
        return None;
    }
    if package == 0 && is_suffix(declared) {
        return None;
    }
    let mut classes: Vec<String> = path
        .split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    let (receiver, function) = match declared.strip_prefix('(') {
        Some(rest) => {
            let end = rest.find(')')?;
            let receiver = rest[..end].trim_start_matches('*');
            (Some(receiver), rest[end + 1..].strip_prefix('.')?)
        }
        None => match top_level(declared, ".") {
            // Methods of values, and functions inside others: `T.M`, `main.func1`.
            Some(at) => (Some(&declared[..at]), &declared[at + 1..]),
            None => (None, declared),
        },
    };
    if function.is_empty() || receiver.is_some_and(str::is_empty) {
        return None;
    }
    classes.extend(receiver.map(str::to_owned));
    Some(Parts {
        classes,
        function: function.to_owned(),
        parameters: None,
    })
}

/// Whether the text behind a dot is what compilers of other languages add to names.
fn is_suffix(text: &str) -> bool {
    const SUFFIXES: [&str; 9] = [
        "part",
        "cold",
        "isra",
        "constprop",
        "lto_priv",
        "llvm",
        "localalias",
        "clone",
        "plt",
    ];
    let first = text.split('.').next().unwrap_or(text);
    first.bytes().all(|byte| byte.is_ascii_digit())
        || SUFFIXES.contains(&first.trim_end_matches(|c: char| c.is_ascii_digit()))
}

/// Goes through a name with `::` between its parts.
struct Scan<'a> {
    name: &'a str,
    at: usize,
    segment: String,
    segments: Vec<String>,
    parameters: Option<String>,
    /// Whether there is a list of parameters somewhere: only then can there be a return type.
    has_parameters: bool,
}

impl<'a> Scan<'a> {
    fn new(name: &'a str) -> Scan<'a> {
        Scan {
            name,
            at: 0,
            segment: String::new(),
            segments: Vec::new(),
            parameters: None,
            has_parameters: name.contains('('),
        }
    }

    fn rest(&self) -> &'a str {
        &self.name[self.at..]
    }

    fn run(&mut self) {
        while let Some(next) = self.rest().chars().next() {
            if self.segment.is_empty() && self.operator() {
                continue;
            }
            match next {
                ':' if self.rest().starts_with("::") => {
                    self.at += 2;
                    self.end_segment();
                }
                '(' if self.rest().starts_with("(anonymous namespace)") => self.take_group(),
                '(' if self.segment.ends_with("decltype") => self.take_group(),
                // Of a return type: `void (*)(int) f()`, `decltype (x) f()`.
                '(' if self.segments.is_empty()
                    && (self.segment.is_empty() || self.segment.starts_with('(')) =>
                {
                    self.take_group();
                }
                '(' => self.parameters(),
                '<' | '[' | '{' => self.take_group(),
                // A return type came before.
                ' ' if self.has_parameters && !self.segment.starts_with("operator") => {
                    self.at += 1;
                    self.segment.clear();
                    self.segments.clear();
                }
                _ => {
                    self.segment.push(next);
                    self.at += next.len_utf8();
                }
            }
        }
        self.end_segment();
    }

    fn end_segment(&mut self) {
        let segment = std::mem::take(&mut self.segment);
        // `drop::<u8>` is one part.
        match self.segments.last_mut() {
            Some(last) if segment.starts_with('<') && segment.ends_with('>') => {
                last.push_str(&segment);
            }
            _ => self.segments.push(segment),
        }
    }

    /// Takes everything up to the bracket that closes the one that is next.
    fn take_group(&mut self) {
        let len = group(self.rest());
        self.segment.push_str(&self.rest()[..len]);
        self.at += len;
    }

    /// Skips a list of parameters and what follows it, up to the next part.
    fn parameters(&mut self) {
        let rest = self.rest();
        let len = group(rest);
        let inner = rest[1..len].strip_suffix(')').unwrap_or(&rest[1..len]);
        let end = len + top_level(&rest[len..], "::").unwrap_or(rest.len() - len);
        self.parameters = (end == rest.len()).then(|| inner.to_owned());
        self.at += end;
    }

    /// Takes the name of an operator, whose characters mean nothing else.
    fn operator(&mut self) -> bool {
        const SYMBOLS: [&str; 12] = [
            "()", "[]", "->*", "->", "<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "<",
        ];
        let Some(rest) = self.rest().strip_prefix("operator") else {
            return false;
        };
        let len = match rest.chars().next() {
            Some(next) if next == '_' || next.is_alphanumeric() => return false,
            None => return false,
            // A conversion, `new`, `delete`, a literal: up to the parameters.
            Some(' ' | '"') => conversion(rest),
            Some(_) => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) => symbol.len(),
                None => rest.find(['(', '<', ':']).unwrap_or(rest.len()),
            },
        };
        let len = "operator".len() + len;
        self.segment.push_str(&self.rest()[..len]);
        self.at += len;
        // A space keeps the arguments of a template apart from the operator.
        if self.rest().starts_with(" <") {
            self.at += 1;
        }
        true
    }
}

/// Length of what an operator converts to, which may be a function: `void (*)(int)` of `void (*)(int)()`.
fn conversion(rest: &str) -> usize {
    let mut len = top_level(rest, "(").unwrap_or(rest.len());
    while rest[..len].ends_with(' ') {
        len += group(&rest[len..]);
        // What it is called with, and perhaps what that returns.
        len += group(&rest[len..]);
    }
    len
}

/// Length of a bracketed group at the start of a text; all of it if it is not closed.
fn group(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut before = b' ';
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' if before == b'-' => {}
            b'>' | b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        before = byte;
    }
    text.len()
}

#[cfg(test)]
mod tests;
