//! Names of languages whose compilers put module and name into a symbol without encoding types as C++ does.
//!
//! `__ma_MOD_work` (Fortran) -> `ma::work`, `camlMa__work_81` (OCaml) -> `Ma.work`, `MA_$$_WORK$LONGINT$$LONGWORD` (Free
//! Pascal) -> `MA.WORK(LONGINT)`: these forms are no other language's. `ma__work` (Ada), `work__ma_1` (Nim) and
//! `Ma_zdwwork_info` (Haskell) could be names of C, so that these are only read where the object says what made it
//! ([`Dialect`]). Sources: gfortran's and OCaml's symbol tables, GNAT's `exp_dbug.ads`, Free Pascal's `symdef.pas`, Nim's
//! `ccgutils`, the commentary of GHC on symbol names.
//!
//! What does not belong here: names with encoded types (`super`, `dlang`).

use super::MAX_NAME_BYTES;

/// What else than C an object with names like those of C was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Nothing that is known.
    #[default]
    None,
    /// Ada, by GNAT.
    Ada,
    /// Nim.
    Nim,
    /// Haskell, by GHC.
    Haskell,
}

/// What GHC says behind a name: the code of a function, of a constructor; other ways into a function.
const HASKELL_ENDINGS: [(&str, &str); 6] = [
    ("_con_info", " (constructor)"),
    ("_static_info", " (constructor)"),
    ("_info", ""),
    ("_slow", " (slow)"),
    ("_fast", " (fast)"),
    ("_entry", " (entry)"),
];

impl Dialect {
    /// What a symbol says that only such objects have, defined or not.
    pub(crate) fn told_by(symbol: &[u8]) -> Option<Dialect> {
        match symbol {
            b"NimMain" => Some(Dialect::Nim),
            _ if symbol.starts_with(b"stg_ap_") => Some(Dialect::Haskell),
            _ if symbol.starts_with(b"__gnat_") || symbol.starts_with(b"_ada_") => {
                Some(Dialect::Ada)
            }
            _ => None,
        }
    }

    /// Whether a name may be read in another way in some dialect.
    pub fn may_concern(name: &str) -> bool {
        let is_haskell = |(end, _): &(&str, _)| name.ends_with(end);
        name.starts_with("_ada_")
            || name.find("__").is_some_and(|at| at > 0)
            || HASKELL_ENDINGS.iter().any(is_haskell)
    }

    /// The name as its users write it.
    pub fn readable(self, name: &str) -> Option<String> {
        if name.len() > MAX_NAME_BYTES || !Dialect::may_concern(name) {
            return None;
        }
        match self {
            Dialect::None => None,
            Dialect::Ada => with_version(name, of_ada),
            Dialect::Nim => with_version(name, of_nim),
            Dialect::Haskell => with_version(name, of_haskell),
        }
    }
}

/// The readable form of a name that says itself what it was written in.
pub(super) fn readable(name: &str) -> Option<String> {
    if name.starts_with("__") {
        return with_version(name, of_fortran);
    }
    if let Some(rest) = name.strip_prefix("caml") {
        return of_ocaml(rest);
    }
    name.contains("_$$_").then(|| of_pascal(name))?
}

/// Without the parameters that a readable name has.
pub(super) fn without_parameters(readable: &str) -> &str {
    let end = readable.ends_with(')').then(|| readable.find('('));
    readable[..end.flatten().unwrap_or(readable.len())].trim_end()
}

/// What a compiler adds to a version or part of a function stays behind its name.
fn with_version(name: &str, read: impl FnOnce(&str) -> Option<String>) -> Option<String> {
    let (name, version) = name.split_at(name.find('.').unwrap_or(name.len()));
    Some(read(name)? + version)
}

/// `__module_MOD_procedure`.
fn of_fortran(name: &str) -> Option<String> {
    let (module, procedure) = name.strip_prefix("__")?.split_once("_MOD_")?;
    let valid = |part: &str| {
        let mut bytes = part.bytes();
        bytes.next().is_some_and(|byte| byte.is_ascii_lowercase())
            && bytes.all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (valid(module) && valid(procedure)).then(|| format!("{module}::{procedure}"))
}

/// Behind `caml`: modules between `__` (`.` since OCaml 5.1), name, a number of the compiler's.
fn of_ocaml(rest: &str) -> Option<String> {
    if !rest.starts_with(|char: char| char.is_ascii_uppercase()) {
        return None;
    }
    let dotted = rest.contains('.');
    let parts: Vec<&str> = match dotted {
        true => rest.split('.').flat_map(|part| part.split("__")).collect(),
        false => rest.split("__").collect(),
    };
    let (last, modules) = parts.split_last()?;
    if modules.is_empty() {
        return None;
    }
    let mut text = String::with_capacity(rest.len());
    for module in modules {
        text.push_str(&unescaped(module)?);
        text.push('.');
    }
    // Functions without a name are told apart by the number alone.
    let numbered = last.rsplit_once('_').filter(|(name, number)| {
        !name.is_empty()
            && *name != "fun"
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    text.push_str(&unescaped(numbered.map_or(*last, |(name, _)| name))?);
    Some(text)
}

/// `$2b` for what is no letter.
fn unescaped(name: &str) -> Option<String> {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once('$') {
        let (digits, after) = behind.split_at_checked(2)?;
        text.push_str(before);
        let byte = u8::from_str_radix(digits, 16).ok()?;
        text.push(byte.is_ascii_graphic().then(|| char::from(byte))?);
        rest = after;
    }
    text.push_str(rest);
    (!text.is_empty()).then_some(text)
}

/// `UNIT_$$_NAME$PARAMETERS$$RESULT`; `UNIT$_$CLASS_$__$$_NAME..` of a method, `UNIT$_$NAME$..$$.._$$_NAME..` of what is
/// in another function, `P$PROGRAM` for the unit that is the program.
fn of_pascal(name: &str) -> Option<String> {
    let (scope, own) = name.rsplit_once("_$$_")?;
    let mut text = String::with_capacity(name.len());
    let scope = scope.strip_prefix("P$").unwrap_or(scope);
    for part in scope.split("$_$") {
        // Of a function that this one is in, without its own parameters.
        let part = part.split('$').next()?;
        let part = part.trim_end_matches('_');
        if !part.is_empty() {
            text.push_str(part);
            text.push('.');
        }
    }
    let (own, _) = own.split_once("$$").unwrap_or((own, ""));
    let mut words = own.split('$');
    let called = words.next().filter(|called| !called.is_empty())?;
    text.push_str(called);
    let parameters: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    if !parameters.is_empty() {
        text.push('(');
        text.push_str(&parameters.join(", "));
        text.push(')');
    }
    Some(text)
}

/// `package__child__subprogram`, behind it `__2` for the second of a name, and other marks of the compiler's.
fn of_ada(name: &str) -> Option<String> {
    const OPERATORS: [(&str, &str); 19] = [
        ("Oabs", "abs"),
        ("Oand", "and"),
        ("Omod", "mod"),
        ("Onot", "not"),
        ("Oor", "or"),
        ("Orem", "rem"),
        ("Oxor", "xor"),
        ("Oeq", "="),
        ("One", "/="),
        ("Olt", "<"),
        ("Ole", "<="),
        ("Ogt", ">"),
        ("Oge", ">="),
        ("Oadd", "+"),
        ("Osubtract", "-"),
        ("Oconcat", "&"),
        ("Omultiply", "*"),
        ("Odivide", "/"),
        ("Oexpon", "**"),
    ];
    let name = name.strip_prefix("_ada_").unwrap_or(name);
    let mut text = String::with_capacity(name.len());
    let parts: Vec<&str> = name.split("__").collect();
    for (index, part) in parts.iter().enumerate() {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if index > 0 && is_number {
            // Of several subprograms with one name.
            continue;
        }
        match *part {
            "_elabb" => {
                text.push_str("'Elab_Body");
                continue;
            }
            "_elabs" => {
                text.push_str("'Elab_Spec");
                continue;
            }
            _ => {}
        }
        if index > 0 {
            text.push('.');
        }
        if let Some((_, sign)) = OPERATORS.iter().find(|(code, _)| code == part) {
            text.push('"');
            text.push_str(sign);
            text.push('"');
            continue;
        }
        // A subprogram in a body, the body of a task.
        let part = part.trim_end_matches(['X', 'b', 'n']).len();
        let part = match &parts[index][part..] {
            marks if marks.starts_with('X') => &parts[index][..part],
            _ => parts[index],
        };
        let part = part.strip_suffix("TKB").unwrap_or(part);
        let mut bytes = part.bytes();
        let valid = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase())
            && bytes.all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if !valid {
            return None;
        }
        text.push_str(part);
    }
    Some(text)
}

/// `name__module_number`; folders of the module are before a `Z`, operators are spelled.
fn of_nim(name: &str) -> Option<String> {
    const SIGNS: [(&str, char); 19] = [
        ("backslash", '\\'),
        ("dollar", '$'),
        ("percent", '%'),
        ("amp", '&'),
        ("roof", '^'),
        ("emark", '!'),
        ("qmark", '?'),
        ("star", '*'),
        ("plus", '+'),
        ("minus", '-'),
        ("slash", '/'),
        ("eq", '='),
        ("lt", '<'),
        ("gt", '>'),
        ("tilde", '~'),
        ("colon", ':'),
        ("dot", '.'),
        ("at", '@'),
        ("bar", '|'),
    ];
    let (own, place) = name.rsplit_once("__")?;
    let (module, number) = place.rsplit_once('_')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = |text: &str| {
        !text.is_empty()
            && text.is_ascii()
            && text
                .bytes()
                .all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    };
    if !is_number || !is_word(own) || !is_word(module) {
        return None;
    }
    let module = module.rsplit('Z').find(|part| !part.is_empty())?;
    let signs = own.strip_suffix('_').and_then(|spelled| {
        let (mut rest, mut signs) = (spelled, String::new());
        while !rest.is_empty() {
            let (word, sign) = SIGNS.iter().find(|(word, _)| rest.starts_with(word))?;
            signs.push(*sign);
            rest = &rest[word.len()..];
        }
        Some(format!("`{signs}`"))
    });
    Some(format!("{module}.{}", signs.as_deref().unwrap_or(own)))
}

/// `package_Module_name_info`, the package only of what is in another; `_` in between is in none of them. The name
/// of what is local has a number of the compiler's behind it.
fn of_haskell(name: &str) -> Option<String> {
    let mut endings = HASKELL_ENDINGS.iter();
    let (rest, kind) = endings.find_map(|(end, kind)| Some((name.strip_suffix(end)?, kind)))?;
    let parts: Vec<&str> = rest.split('_').collect();
    let module_of = |part: &str| {
        let module = z_decoded(part)?;
        let begins = module.starts_with(|char: char| char.is_uppercase() || char == ':');
        let is_part = |char: char| char.is_alphanumeric() || "._':".contains(char);
        (begins && module.chars().all(is_part)).then_some(module)
    };
    let (module, own) = match &parts[..] {
        [package, own @ ..] if let Some(module) = module_of(package) => (module, own),
        [_, module, own @ ..] => (module_of(module)?, own),
        _ => return None,
    };
    let (name, number) = own.split_first()?;
    let mut own = z_decoded(name)?;
    for part in number {
        own.push('_');
        own.push_str(part);
    }
    Some(format!("{module}.{own}{kind}"))
}

/// Letters that stand for signs made signs: `zd` `$`, `Z2T` `(,)`, `z3b1U` the character of that number.
fn z_decoded(part: &str) -> Option<String> {
    const LOWER: &str = "a&b|c^d$e=g>h#i.l<m-n!p+q'r\\s/t*u_v%zz";
    const UPPER: &str = "L(R)M[N]C:ZZ";
    let sign = |table: &str, code: char| {
        let mut signs = table.chars();
        while let (Some(letter), sign) = (signs.next(), signs.next()) {
            if letter == code {
                return sign;
            }
        }
        None
    };
    let mut text = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(at) = rest.find(['z', 'Z']) {
        text.push_str(&rest[..at]);
        let is_upper = rest[at..].starts_with('Z');
        rest = &rest[at + 1..];
        let code = rest.chars().next()?;
        if !code.is_ascii_digit() {
            text.push(sign(if is_upper { UPPER } else { LOWER }, code)?);
            rest = &rest[code.len_utf8()..];
            continue;
        }
        let end = rest.find(|char: char| !char.is_ascii_hexdigit())?;
        let (number, behind) = rest.split_at(end);
        rest = behind.get(1..)?;
        match (is_upper, behind.chars().next()?) {
            (false, 'U') => text.push(char::from_u32(u32::from_str_radix(number, 16).ok()?)?),
            (true, kind @ ('T' | 'H')) => {
                let commas =
                    ",".repeat(number.parse::<usize>().ok().filter(|n| *n < 100)?.max(1) - 1);
                let hash = if kind == 'H' { "#" } else { "" };
                text.extend(["(", hash, &commas, hash, ")"]);
            }
            _ => return None,
        }
    }
    text.push_str(rest);
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_say_their_language() {
        for (raw, written) in [
            // gfortran 12.2.
            ("__ma_MOD_work", Some("ma::work")),
            ("__ma_MOD_work.part.0", Some("ma::work.part.0")),
            ("__libc_start_main", None),
            ("__MOD_", None),
            // ocamlopt 4.13.1.
            ("camlMa__work_81", Some("Ma.work")),
            ("camlMa__$2b$21_91", Some("Ma.+!")),
            ("camlStdlib__List__map_503", Some("Stdlib.List.map")),
            ("camlMain__fun_153", Some("Main.fun_153")),
            ("camlMa__entry", Some("Ma.entry")),
            ("camlMa.work_81", Some("Ma.work")),
            ("camlMa", None),
            ("caml_write_fd", None),
            ("camlMa__$2", None),
            // fpc 3.2.2.
            (
                "MA_$$_WORK$LONGINT$LONGWORD$$LONGWORD",
                Some("MA.WORK(LONGINT, LONGWORD)"),
            ),
            (
                "MA$_$TTHING_$__$$_GO$LONGINT",
                Some("MA.TTHING.GO(LONGINT)"),
            ),
            (
                "MA$_$WORK$ANSISTRING$$LONGWORD_$$_NESTED",
                Some("MA.WORK.NESTED"),
            ),
            ("P$PROG_$$_LOCAL$LONGINT", Some("PROG.LOCAL(LONGINT)")),
            ("SYSTEM_$$_HALT", Some("SYSTEM.HALT")),
            ("FPC_ADDREF", None),
            ("_$$_", None),
        ] {
            assert_eq!(readable(raw).as_deref(), written, "{raw}");
        }
        assert_eq!(without_parameters("MA.WORK(LONGINT, LONGWORD)"), "MA.WORK");
        assert_eq!(without_parameters("Ma.work"), "Ma.work");
    }

    #[test]
    fn names_that_could_be_those_of_c() {
        for (raw, written) in [
            // gnat 12.2.
            ("ma__work", Some("ma.work")),
            ("ma__work__2", Some("ma.work")),
            ("ma__Oadd", Some("ma.\"+\"")),
            ("ma__inner__deep", Some("ma.inner.deep")),
            ("_ada_main", Some("main")),
            ("ma___elabb", Some("ma'Elab_Body")),
            ("ma__helperXnb", Some("ma.helper")),
            ("ma__serverTKB", Some("ma.server")),
            ("ma__work.part.0", Some("ma.work.part.0")),
            ("ada__text_io__put_line__2", Some("ada.text_io.put_line")),
            ("__gnat_malloc", None),
            ("Ma__Work", None),
            ("main", None),
        ] {
            assert_eq!(Dialect::Ada.readable(raw).as_deref(), written, "{raw}");
            assert_eq!(Dialect::None.readable(raw), None, "{raw}");
        }
        for (raw, written) in [
            // nim 1.6.10.
            ("work__ma_1", Some("ma.work")),
            ("plusemark___ma_17", Some("ma.`+!`")),
            (
                "addCstringN__systemZformatfloat_5",
                Some("formatfloat.addCstringN"),
            ),
            ("Marker_tyRef__dJLgQyYmAVYQWHiOSBBTyA", None),
            ("NimMain", None),
            ("__do_global_dtors_aux", None),
        ] {
            assert_eq!(Dialect::Nim.readable(raw).as_deref(), written, "{raw}");
        }
        for (raw, written) in [
            // ghc 9.0.2.
            ("Ma_work_info", Some("Ma.work")),
            ("Ma_zdwwork_info", Some("Ma.$wwork")),
            ("ZCMain_main_info", Some(":Main.main")),
            ("base_GHCziBase_zpzp_info", Some("GHC.Base.++")),
            (
                "ghczmprim_GHCziTuple_Z2T_con_info",
                Some("GHC.Tuple.(,) (constructor)"),
            ),
            ("base_GHCziArr_zdwz3b1U_info", Some("GHC.Arr.$w\u{3b1}")),
            (
                "HUnitzm1zi6_TestziHUnit_sat_s1Zz_info",
                Some("Test.HUnit.sat_s1Zz"),
            ),
            ("Main_zdwzdsgo16_slow", Some("Main.$w$sgo16 (slow)")),
            ("stg_ap_pp_info", None),
            ("__stg_EAGER_BLACKHOLE_info", None),
            ("Ma_info", None),
            ("Ma_z_info", None),
            ("Ma_Z9999999999999999999999T_info", None),
            ("Ma_z1\u{e4}U_info", None),
            ("Ma_work", None),
        ] {
            assert_eq!(Dialect::Haskell.readable(raw).as_deref(), written, "{raw}");
        }
        assert_eq!(Dialect::told_by(b"stg_ap_pp_info"), Some(Dialect::Haskell));
        assert_eq!(Dialect::told_by(b"NimMain"), Some(Dialect::Nim));
        assert_eq!(Dialect::told_by(b"__gnat_malloc"), Some(Dialect::Ada));
        assert_eq!(Dialect::told_by(b"main"), None);
    }
}
