//! Names of D made readable.
//!
//! `_D2ma__T4workTkZQiFNaNbNiNfkmZm` -> `ma.work!(uint).work(uint, ulong)`: module, what it is in, name, arguments of
//! templates, parameters; without the type of the result and the attributes. Names come from untrusted files: parts of
//! a name may refer to others before them, so that depth and steps are bounded, and what is written is. Source: the
//! chapter "Application Binary Interface" of the D language's specification.
//!
//! What does not belong here: other languages (`super`).

use super::MAX_NAME_BYTES;

/// Deepest nesting of types and templates.
const MAX_DEPTH: u32 = 64;
/// Most parts that are read, those that are referred to counted each time.
const MAX_STEPS: u32 = 4096;

/// How much of a name is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// With parameters and arguments of templates.
    Whole,
    /// With neither, and each name once where a template and its only member share theirs: `ma.work`.
    Short,
}

/// The readable form of a name, if it is one of D.
pub(super) fn readable(name: &str, form: Form) -> Option<String> {
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    let rest = name.strip_prefix("_D")?;
    if !rest.starts_with(|char: char| char.is_ascii_digit() || char == 'Q' || char == '_') {
        return None;
    }
    let mut reader = Reader {
        name: name.as_bytes(),
        at: 2,
        out: String::new(),
        form,
        depth: 0,
        steps: 0,
    };
    reader.mangled_rest()?;
    let whole = reader.at == reader.name.len() && !reader.out.is_empty();
    whole.then_some(reader.out)
}

struct Reader<'a> {
    name: &'a [u8],
    at: usize,
    out: String,
    form: Form,
    depth: u32,
    steps: u32,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.name.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<u8> {
        self.name.get(self.at.checked_add(ahead)?).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.name[self.at..].starts_with(text.as_bytes());
        if found {
            self.at += text.len();
        }
        found
    }

    fn put(&mut self, text: &str) -> Option<()> {
        if self.out.len() + text.len() > MAX_NAME_BYTES {
            return None;
        }
        self.out.push_str(text);
        Some(())
    }

    /// Goes one deeper, for as long as `read` takes.
    fn within<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.steps += 1;
        if self.depth >= MAX_DEPTH || self.steps > MAX_STEPS {
            return None;
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }

    /// What follows is read, and nothing of it is written.
    fn silently(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let len = self.out.len();
        read(self)?;
        self.out.truncate(len);
        Some(())
    }

    fn number(&mut self) -> Option<usize> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        std::str::from_utf8(&self.name[start..self.at])
            .ok()?
            .parse()
            .ok()
    }

    /// Where a reference leads to: as many bytes back from its own beginning as its digits say.
    fn reference(&mut self) -> Option<usize> {
        let from = self.at;
        self.eat("Q");
        let mut distance = 0_usize;
        loop {
            let byte = self.take()?;
            let (digit, last) = match byte {
                b'A'..=b'Z' => (byte - b'A', false),
                b'a'..=b'z' => (byte - b'a', true),
                _ => return None,
            };
            distance = distance.checked_mul(26)?.checked_add(digit.into())?;
            if last {
                return from.checked_sub(distance).filter(|_| distance > 0);
            }
        }
    }

    /// Reads at another place, and comes back.
    fn elsewhere(&mut self, at: usize, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let back = std::mem::replace(&mut self.at, at);
        self.within(read)?;
        self.at = back;
        Some(())
    }

    /// Behind `_D`: a name, then its type or `Z`.
    fn mangled_rest(&mut self) -> Option<()> {
        self.within(|reader| {
            reader.qualified()?;
            match reader.eat("Z") {
                true => Some(()),
                false => reader.silently(Self::kind),
            }
        })
    }

    /// Whether a part of a name begins here.
    fn begins_symbol(&mut self) -> bool {
        match self.peek() {
            Some(b'0'..=b'9') => true,
            Some(b'_') => {
                self.peek_at(1) == Some(b'_') && matches!(self.peek_at(2), Some(b'T' | b'U'))
            }
            Some(b'Q') => {
                let at = self.at;
                let to = self.reference();
                self.at = at;
                to.is_some_and(|to| self.name[to].is_ascii_digit())
            }
            _ => false,
        }
    }

    fn begins_function(&self) -> bool {
        matches!(self.peek(), Some(b'F' | b'U' | b'W' | b'V' | b'R' | b'Y'))
    }

    /// `a.b.c`; behind each part its parameters, if it is a function.
    fn qualified(&mut self) -> Option<()> {
        let start = self.out.len();
        let mut previous = String::new();
        loop {
            while self.eat("0") {}
            let before = self.out.len();
            if before > start {
                self.put(".")?;
            }
            let named = self.out.len();
            self.within(Self::identifier)?;
            let own = self.out[named..].to_owned();
            if own.is_empty() || self.form == Form::Short && own == previous {
                // A name that only tells scopes apart, or that of a template once more.
                self.out.truncate(before);
            } else {
                previous = own;
            }
            if self.peek() == Some(b'M') || self.begins_function() {
                let (at, len) = (self.at, self.out.len());
                let read = self.within(|reader| {
                    if reader.eat("M") {
                        reader.modifiers();
                    }
                    reader.function_without_result()
                });
                // Else it is the type of a variable.
                if read.is_none() || self.at == self.name.len() {
                    self.at = at;
                    self.out.truncate(len);
                }
            }
            if !self.begins_symbol() {
                return Some(());
            }
        }
    }

    fn modifiers(&mut self) {
        while self.eat("x") || self.eat("y") || self.eat("O") || self.eat("Ng") {}
    }

    fn identifier(&mut self) -> Option<()> {
        if self.peek() == Some(b'Q') {
            let to = self.reference()?;
            return self.elsewhere(to, |reader| {
                let len = reader.number()?;
                reader.plain(len)
            });
        }
        if self.eat("__T") || self.eat("__U") {
            return self.template();
        }
        let len = self.number()?;
        let end = self.at.checked_add(len)?;
        if end > self.name.len() {
            return None;
        }
        // As compilers wrote them before names referred to each other.
        if len >= 5 && (self.eat("__T") || self.eat("__U")) {
            self.template()?;
            return (self.at == end).then_some(());
        }
        self.plain(len)
    }

    fn plain(&mut self, len: usize) -> Option<()> {
        let end = self.at.checked_add(len)?;
        let name = std::str::from_utf8(self.name.get(self.at..end)?).ok()?;
        self.at = end;
        let is_scope = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        match name {
            "__ctor" => self.put("this"),
            "__dtor" => self.put("~this"),
            "__postblit" => self.put("this(this)"),
            _ if name.strip_prefix("__S").is_some_and(is_scope) => Some(()),
            _ => self.put(name),
        }
    }

    /// Behind `__T`: a name, and arguments up to `Z`.
    fn template(&mut self) -> Option<()> {
        self.within(Self::identifier)?;
        let len = self.out.len();
        self.put("!(")?;
        let mut first = true;
        loop {
            if self.eat("Z") {
                break;
            }
            if !std::mem::take(&mut first) {
                self.put(", ")?;
            }
            self.eat("H");
            match self.take()? {
                b'S' => self.within(Self::symbol_argument)?,
                b'T' => self.within(Self::kind)?,
                b'V' => self.within(Self::value_argument)?,
                b'X' => {
                    let len = self.number()?;
                    self.plain(len)?;
                }
                _ => return None,
            }
        }
        self.put(")")?;
        if self.form == Form::Short {
            self.out.truncate(len);
        }
        Some(())
    }

    fn symbol_argument(&mut self) -> Option<()> {
        if self.eat("_D") {
            return self.mangled_rest();
        }
        let at = self.at;
        if let Some(len) = self.number()
            && self.eat("_D")
        {
            let end = self.at.checked_add(len)?.checked_sub(2)?;
            self.mangled_rest()?;
            return (self.at == end).then_some(());
        }
        self.at = at;
        self.qualified()
    }

    fn value_argument(&mut self) -> Option<()> {
        let mut kind = self.peek()?;
        if kind == b'Q' {
            let at = self.at;
            let to = self.reference()?;
            (kind, self.at) = (self.name[to], at);
        }
        let len = self.out.len();
        self.within(Self::kind)?;
        let of = self.out.split_off(len);
        self.value(kind, &of)
    }

    fn value(&mut self, kind: u8, of: &str) -> Option<()> {
        self.within(|reader| match reader.peek()? {
            b'n' => {
                reader.at += 1;
                reader.put("null")
            }
            b'N' => {
                reader.at += 1;
                reader.put("-")?;
                reader.integer(kind)
            }
            b'i' => {
                reader.at += 1;
                reader.integer(kind)
            }
            b'0'..=b'9' => reader.integer(kind),
            b'e' => {
                reader.at += 1;
                reader.real()
            }
            b'c' => {
                reader.at += 1;
                reader.real()?;
                reader.put("+")?;
                reader.eat("c").then_some(())?;
                reader.real()?;
                reader.put("i")
            }
            b'a' | b'w' | b'd' => reader.text(),
            b'A' => {
                reader.at += 1;
                reader.put("[")?;
                let is_map = kind == b'H';
                reader.values(if is_map { 2 } else { 1 })?;
                reader.put("]")
            }
            b'S' => {
                reader.at += 1;
                reader.put(of)?;
                reader.put("(")?;
                reader.values(1)?;
                reader.put(")")
            }
            b'f' => {
                reader.at += 1;
                reader.eat("_D").then_some(())?;
                reader.mangled_rest()
            }
            _ => None,
        })
    }

    fn values(&mut self, each: usize) -> Option<()> {
        let count = self.number()?;
        for index in 0..count {
            if index > 0 {
                self.put(", ")?;
            }
            for part in 0..each {
                if part > 0 {
                    self.put(":")?;
                }
                self.value(0, "")?;
            }
        }
        Some(())
    }

    fn integer(&mut self, kind: u8) -> Option<()> {
        let value = self.number()?;
        let text = match kind {
            b'a' | b'u' | b'w' => u32::try_from(value)
                .ok()
                .and_then(char::from_u32)
                .map(|char| format!("'{}'", char.escape_default()))?,
            b'b' => (value != 0).to_string(),
            b'h' | b't' | b'k' => format!("{value}u"),
            b'l' => format!("{value}L"),
            b'm' => format!("{value}uL"),
            _ => value.to_string(),
        };
        self.put(&text)
    }

    /// Hexadecimal digits, an exponent of two: `8FAP3`.
    fn real(&mut self) -> Option<()> {
        for word in ["NAN", "INF", "NINF"] {
            if self.eat(word) {
                return self.put(word);
            }
        }
        if self.eat("N") {
            self.put("-")?;
        }
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
            self.at += 1;
        }
        let digits = String::from_utf8_lossy(&self.name[start..self.at]).into_owned();
        let (first, rest) = digits.split_at_checked(1)?;
        self.put(&format!("0x{first}.{rest}p"))?;
        self.eat("P").then_some(())?;
        if self.eat("N") {
            self.put("-")?;
        }
        let exponent = self.number()?;
        self.put(&exponent.to_string())
    }

    /// `a`, its length, `_`, two digits for each byte.
    fn text(&mut self) -> Option<()> {
        let kind = self.take()?;
        let len = self.number()?;
        self.eat("_").then_some(())?;
        self.put("\"")?;
        for _ in 0..len {
            let digits = std::str::from_utf8(self.name.get(self.at..self.at + 2)?).ok()?;
            let byte = u8::from_str_radix(digits, 16).ok()?;
            self.at += 2;
            let char = char::from(byte);
            match byte {
                b' '..=b'~' => self.put(char.encode_utf8(&mut [0; 4]))?,
                _ => self.put(&format!("\\x{byte:02x}"))?,
            }
        }
        self.put("\"")?;
        match kind {
            b'a' => Some(()),
            _ => self.put(char::from(kind).encode_utf8(&mut [0; 4])),
        }
    }

    /// Calling convention, attributes, parameters.
    fn function_without_result(&mut self) -> Option<()> {
        matches!(self.take()?, b'F' | b'U' | b'W' | b'V' | b'R' | b'Y').then_some(())?;
        self.attributes();
        let len = self.out.len();
        self.put("(")?;
        self.parameters()?;
        self.put(")")?;
        if self.form == Form::Short {
            self.out.truncate(len);
        }
        Some(())
    }

    fn attributes(&mut self) {
        while self.peek() == Some(b'N')
            && matches!(
                self.peek_at(1),
                Some(b'a'..=b'f' | b'i' | b'j' | b'l' | b'm')
            )
        {
            self.at += 2;
        }
    }

    fn parameters(&mut self) -> Option<()> {
        let mut first = true;
        loop {
            match self.peek()? {
                b'X' => {
                    self.at += 1;
                    return self.put("...");
                }
                b'Y' => {
                    self.at += 1;
                    return self.put(if first { "..." } else { ", ..." });
                }
                b'Z' => {
                    self.at += 1;
                    return Some(());
                }
                _ => {}
            }
            if !std::mem::take(&mut first) {
                self.put(", ")?;
            }
            if self.eat("M") {
                self.put("scope ")?;
            }
            if self.eat("Nk") {
                self.put("return ")?;
            }
            match self.peek()? {
                b'I' => {
                    self.at += 1;
                    self.put("in ")?;
                    if self.eat("K") {
                        self.put("ref ")?;
                    }
                }
                b'J' => {
                    self.at += 1;
                    self.put("out ")?;
                }
                b'K' => {
                    self.at += 1;
                    self.put("ref ")?;
                }
                b'L' => {
                    self.at += 1;
                    self.put("lazy ")?;
                }
                _ => {}
            }
            self.within(Self::kind)?;
        }
    }

    /// A type.
    fn kind(&mut self) -> Option<()> {
        self.within(|reader| match reader.peek()? {
            b'Q' => {
                let to = reader.reference()?;
                reader.elsewhere(to, Self::kind)
            }
            b'O' => reader.enclosed("shared("),
            b'x' => reader.enclosed("const("),
            b'y' => reader.enclosed("immutable("),
            b'N' => {
                reader.at += 1;
                match reader.peek()? {
                    b'g' => reader.enclosed("inout("),
                    b'h' => reader.enclosed("__vector("),
                    b'n' => {
                        reader.at += 1;
                        reader.put("noreturn")
                    }
                    _ => None,
                }
            }
            b'A' => {
                reader.at += 1;
                reader.kind()?;
                reader.put("[]")
            }
            b'G' => {
                reader.at += 1;
                let len = reader.number()?;
                reader.kind()?;
                reader.put(&format!("[{len}]"))
            }
            b'H' => {
                reader.at += 1;
                let len = reader.out.len();
                reader.kind()?;
                let key = reader.out.split_off(len);
                reader.kind()?;
                reader.put(&format!("[{key}]"))
            }
            b'P' => {
                reader.at += 1;
                if reader.begins_function() {
                    reader.function()?;
                    return reader.put(" function");
                }
                reader.kind()?;
                reader.put("*")
            }
            b'I' | b'C' | b'S' | b'E' | b'T' => {
                reader.at += 1;
                reader.qualified()
            }
            b'D' => {
                reader.at += 1;
                reader.modifiers();
                if reader.peek() == Some(b'Q') {
                    let to = reader.reference()?;
                    reader.elsewhere(to, Self::function)?;
                } else {
                    reader.function()?;
                }
                reader.put(" delegate")
            }
            b'B' => {
                reader.at += 1;
                reader.put("Tuple!(")?;
                let count = reader.number()?;
                for index in 0..count {
                    if index > 0 {
                        reader.put(", ")?;
                    }
                    reader.kind()?;
                }
                reader.put(")")
            }
            _ if reader.begins_function() => {
                reader.function()?;
                reader.put(" function")
            }
            _ => reader.basic(),
        })
    }

    fn enclosed(&mut self, open: &str) -> Option<()> {
        self.at += 1;
        self.put(open)?;
        self.kind()?;
        self.put(")")
    }

    /// `result(parameters)`.
    fn function(&mut self) -> Option<()> {
        let len = self.out.len();
        matches!(self.take()?, b'F' | b'U' | b'W' | b'V' | b'R' | b'Y').then_some(())?;
        self.attributes();
        self.put("(")?;
        self.parameters()?;
        self.put(")")?;
        let parameters = self.out.split_off(len);
        self.kind()?;
        self.put(&parameters)
    }

    fn basic(&mut self) -> Option<()> {
        let name = match self.take()? {
            b'n' => "typeof(null)",
            b'v' => "void",
            b'g' => "byte",
            b'h' => "ubyte",
            b's' => "short",
            b't' => "ushort",
            b'i' => "int",
            b'k' => "uint",
            b'l' => "long",
            b'm' => "ulong",
            b'f' => "float",
            b'd' => "double",
            b'e' => "real",
            b'o' => "ifloat",
            b'p' => "idouble",
            b'j' => "ireal",
            b'q' => "cfloat",
            b'r' => "cdouble",
            b'c' => "creal",
            b'b' => "bool",
            b'a' => "char",
            b'u' => "wchar",
            b'w' => "dchar",
            b'z' => match self.take()? {
                b'i' => "cent",
                b'k' => "ucent",
                _ => return None,
            },
            _ => return None,
        };
        self.put(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Names of ldc2 1.30 and its library, as GNU's c++filt 2.40 reads them (all 648 of a small program were equal).
    #[test]
    fn names_are_as_others_read_them() {
        for (raw, written) in [
            (
                "_D2ma__T4workTkZQiFNaNbNiNfkmZm",
                "ma.work!(uint).work(uint, ulong)",
            ),
            (
                "_D2ma1C2stFDFiZvKiJlLiZv",
                "ma.C.st(void(int) delegate, ref int, out long, lazy int)",
            ),
            ("_D2ma1C4overMFAyaZm", "ma.C.over(immutable(char)[])"),
            ("_D2ma1C6__dtorMFZv", "ma.C.~this()"),
            ("_D4mainQfFZ5innerMFNaNbNiNfiZm", "main.main().inner(int)"),
            (
                "_D3std10functional__T6safeOpVAyaa1_3cZ__T8unsafeOpTmTiZQoFNaNbNiNfmiZb",
                r#"std.functional.safeOp!("<").unsafeOp!(ulong, int).unsafeOp(ulong, int)"#,
            ),
            (
                "_D3std10functional__T6safeOpVAyaa1_3cZ__TQuTmTiZQBbFNaNbNiNfKmKiZb",
                r#"std.functional.safeOp!("<").safeOp!(ulong, int).safeOp(ref ulong, ref int)"#,
            ),
            (
                "_D4mainQfFZ9__lambda9MFNaNbNiNfiZv",
                "main.main().__lambda9(int)",
            ),
            (
                "_D3std5range10primitives__T8popFrontTaZQmFNaNbNiNeMKANgaZv",
                "std.range.primitives.popFront!(char).popFront(scope ref inout(char)[])",
            ),
            (
                "_D3std5stdio__T13trustedFwriteTaZQsFNbNiNePOS4core4stdcQBx8_IO_FILExAaZm",
                "std.stdio.trustedFwrite!(char).trustedFwrite(shared(core.stdc.stdio._IO_FILE)*, const(char[]))",
            ),
            (
                "_D3std8typecons__T5TupleTkTmZQl6toHashMxFNaNbNiNfZm",
                "std.typecons.Tuple!(uint, ulong).Tuple.toHash()",
            ),
            (
                "_D4core9exception__T11staticErrorTCQBhQBf11SwitchErrorTAyaTmTnZQBrFNaNbNiKQtKmQrZQBv",
                "core.exception.staticError!(core.exception.SwitchError, immutable(char)[], ulong, typeof(null)).staticError(ref immutable(char)[], ref ulong, typeof(null))",
            ),
            (
                "_D3std10functional__T6safeOpVAyaa1_3cZ__TQuTyiTmZQBcFNaNbNiNfKyiKmZb",
                r#"std.functional.safeOp!("<").safeOp!(immutable(int), ulong).safeOp(ref immutable(int), ref ulong)"#,
            ),
            (
                "_D3std5array__T14arrayAllocImplVbi0TAaTmZQBaFNaNbmZQp",
                "std.array.arrayAllocImpl!(false, char[], ulong).arrayAllocImpl(ulong)",
            ),
            (
                "_D4core9exception__T11staticErrorTCQBhQBf11SwitchErrorTAyaTmTnZQBrFKQnKmQlZ3getFNbNiZQBz",
                "core.exception.staticError!(core.exception.SwitchError, immutable(char)[], ulong, typeof(null)).staticError(ref immutable(char)[], ref ulong, typeof(null)).get()",
            ),
            ("_D2mb1C4overMFAyaZm", "mb.C.over(immutable(char)[])"),
        ] {
            assert_eq!(
                readable(raw, Form::Whole).as_deref(),
                Some(written),
                "{raw}"
            );
        }
        assert_eq!(readable("_Dmain", Form::Whole).as_deref(), Some("D main"));
        for no in [
            "_D",
            "_D2",
            "_Data",
            "_D2ma",
            "_D9ma",
            "_DQb",
            "",
            "main",
            "_D2ma4workFQzZv",
        ] {
            assert_eq!(readable(no, Form::Whole), None, "{no}");
        }
    }

    #[test]
    fn short_names_have_neither_parameters_nor_arguments() {
        let short = |raw| readable(raw, Form::Short);
        let of_template = short("_D2ma__T4workTkZQiFNaNbNiNfkmZm");
        assert_eq!(of_template.as_deref(), Some("ma.work"));
        assert_eq!(short("_D2ma1C4overMFkZm").as_deref(), Some("ma.C.over"));
    }

    #[test]
    fn names_that_refer_to_themselves_end() {
        // Each part refers to the one before twice.
        let mut name = String::from("_D1a1fF");
        for _ in 0..40 {
            name.push_str("HQbQc");
        }
        let _ = readable(&(name + "Zv"), Form::Whole);
        let _ = readable(&format!("_D1a{}", "__T".repeat(1000)), Form::Whole);
        let _ = readable(&format!("_D1a1fF{}Zv", "A".repeat(4000)), Form::Whole);
    }

    proptest! {
        #[test]
        fn any_name_is_taken(rest in "(1a|2bc|__T|Q[A-Z]?[a-z]|F|M|Z|[a-zA-Z0-9_]){0,40}") {
            for form in [Form::Whole, Form::Short] {
                let read = readable(&format!("_D1a{rest}"), form);
                prop_assert!(read.is_none_or(|name| name.len() <= MAX_NAME_BYTES));
            }
        }
    }
}
