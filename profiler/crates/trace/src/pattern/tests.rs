//! Patterns as people write them, and what they match.

use super::*;
use crate::{FunctionKind, Language};
use proptest::prelude::*;

fn function(raw: &str, aliases: &[&str]) -> Function {
    let (name, linkage_name) = match demangle(raw) {
        Some((name, _)) => (name.into(), Some(raw.into())),
        None => (raw.into(), None),
    };
    Function {
        name,
        linkage_name,
        aliases: aliases.iter().map(|&alias| alias.into()).collect(),
        offset: 0,
        address: 0,
        size: 1,
        source: None,
        line: 0,
        kind: FunctionKind::Function,
        language: Language::C,
    }
}

fn pattern(text: &str) -> Pattern {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn objects_and_functions_are_told_apart() {
    for (text, object, function) in [
        ("malloc", None, "malloc"),
        ("libc:malloc", Some("libc"), "malloc"),
        ("ns::fn", None, "ns::fn"),
        ("app:ns::fn", Some("app"), "ns::fn"),
        ("app:::global", Some("app"), "::global"),
        ("::global", None, "::global"),
        ("/usr/bin/app:main", Some("/usr/bin/app"), "main"),
        ("/^a(?:b|c)::d/", None, "/^a(?:b|c)::d/"),
        ("libc:/^mal/", Some("libc"), "/^mal/"),
        ("/lib/libc.so.6:/^mal/", Some("/lib/libc.so.6"), "/^mal/"),
        ("a\\:b:c", Some("a\\:b"), "c"),
        ("type\\:.eq.main.T", None, "type\\:.eq.main.T"),
        ("main:*", Some("main"), "*"),
        ("app:operator/", Some("app"), "operator/"),
    ] {
        let found = pattern(text);
        assert_eq!(found.object_text().as_deref(), object, "{text}");
        assert_eq!(found.function_text(), function, "{text}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (text, message) in [
        ("", "names no function"),
        ("libc:", "names no function"),
        (":malloc", "names no object"),
        ("/usr/bin/app", "'/usr/bin/app:*'"),
        ("usdt:throw", "write usdt:PROVIDER:NAME"),
        ("usdt::", "write usdt:PROVIDER:NAME"),
        ("libc:[z-a]", "ends before it begins"),
        ("/a(/", "no regular expression: unclosed group"),
    ] {
        let error = text.parse::<Pattern>().unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn functions_match_by_any_name() {
    let push = "_ZNSt6vectorIiSaIiEE9push_backERKi";
    for (text, raw, expected) in [
        ("std::vector::push_back", push, true),
        (
            "std::vector<int, std::allocator<int> >::push_back",
            push,
            true,
        ),
        ("*push_back(int const&)", push, true),
        ("*::push_back", push, true),
        (push, push, true),
        ("push_back", push, false),
        ("/vector.*::push_back$/", push, true),
        ("/^push/", push, false),
        ("ns::add", "_ZN2ns3addEii", true),
        ("ns::add", "_ZN2ns3addEii.constprop.0", true),
        ("ns::add", "_ZN2ns3addEii.part.0", false),
        ("f", "f.isra.0", true),
        ("f", "f.constprop.3.isra.0", true),
        ("f", "f.part.0", false),
        ("f.isra.0", "f.isra.0", true),
        ("handle_*", "handle_get", true),
        ("main.(*T).Method", "main.(*T).Method", true),
        (
            "core::panicking::panic_fmt",
            "_ZN4core9panicking9panic_fmt17h5f1a6fd39197ad62E",
            true,
        ),
        ("*", "anything", true),
        ("other", "f", false),
    ] {
        let found = pattern(text).matches(&function(raw, &[]));
        assert_eq!(found, expected, "{text} {raw}");
    }
    let malloc = function("malloc", &["__libc_malloc", "_ZN2ns5allocEm"]);
    for text in [
        "__libc_malloc",
        "malloc",
        "ns::alloc",
        "ns::alloc(unsigned long)",
    ] {
        assert!(pattern(text).matches(&malloc), "{text}");
    }
    assert!(!pattern("ns::allocate").matches(&malloc));
}

#[test]
fn functions_of_one_name_are_told_apart_as_reports_do() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // No function of it is asked about its source: that takes debug information of the address.
    let object = Object::read(&file, None, "self").unwrap();
    let at = |raw: &str, address| Function {
        address,
        ..function(raw, &[])
    };
    let anonymous = "_ZN12_GLOBAL__N_14workEv";
    for (text, raw, address, expected) in [
        ("work (0x1240)", "work", 0x1240, true),
        ("work (0x1240)", "work", 0x1241, false),
        ("wo* (0x1240)", "work", 0x1240, true),
        ("other (0x1240)", "work", 0x1240, false),
        ("work (0x1240) (inlined)", "work", 0x1240, true),
        ("work (inlined)", "work", 0x1240, true),
        (
            "(anonymous namespace)::work() (0x10)",
            anonymous,
            0x10,
            true,
        ),
        ("(anonymous namespace)::work()", anonymous, 0x10, true),
        (
            "app:(anonymous namespace)::work() (0x10)",
            anonymous,
            0x10,
            true,
        ),
        ("operator() (0x10)", "operator()", 0x10, true),
        (
            "o::tagged[abi:v2](unsigned long)",
            "_ZN1o6taggedB2v2Em",
            0x10,
            true,
        ),
        // Names that end so by themselves.
        ("Ma.work (slow)", "Ma.work (slow)", 0x10, true),
        ("work (0x1240)", "work (0x1240)", 0x10, true),
        ("work (nowhere.c)", "work", 0x10, false),
    ] {
        let found = pattern(text).means(&at(raw, address), &object);
        assert_eq!(found, expected, "{text}: {raw} at {address:#x}");
    }
    let tagged = pattern("o::tagged[abi:v2](unsigned long)");
    assert_eq!(tagged.object_text(), None);
    let source = |label: &str| Some(Which::Source(label.into()));
    for (text, which) in [
        ("work (d2/w.h)", source("d2/w.h")),
        ("work(int) (a.cc)", source("a.cc")),
        ("f(void (*)(a.b))", None),
        ("f (slow)", None),
        ("f (0xz)", None),
        (" (a.c)", None),
    ] {
        assert_eq!(told_apart(text).map(|(_, which)| which), which, "{text}");
    }
    for (path, end, expected) in [
        ("/src/d2/w.h", "d2/w.h", true),
        ("/src/d2/w.h", "w.h", true),
        ("/src/d2/w.h", "2/w.h", false),
        ("w.h", "w.h", true),
        ("/src/w.h", "/src/w.h", true),
    ] {
        assert_eq!(ends_with(path, end), expected, "{path} {end}");
    }
}

#[test]
fn markers_match_by_provider_and_name() {
    let marker = Function {
        kind: FunctionKind::Marker {
            arguments: "".into(),
            semaphore: None,
        },
        ..function("libstdcxx:throw", &[])
    };
    for (text, expected) in [
        ("usdt:libstdcxx:throw", true),
        ("usdt:*:*", true),
        ("libstdc++:usdt:*:thr?w", true),
        ("usdt:libstdcxx:catch", false),
        ("libstdcxx:throw", false),
        ("*", false),
    ] {
        assert_eq!(pattern(text).matches(&marker), expected, "{text}");
    }
    assert!(!pattern("usdt:*:*").matches(&function("a:b", &[])));
}

#[test]
fn objects_match_by_name_stem_or_path() {
    for (text, path, is_main, expected) in [
        ("libc:f", "/lib/x86_64-linux-gnu/libc.so.6", false, true),
        ("libc:f", "/lib/libc-2.36.so", false, true),
        ("libc:f", "/lib/libcrypt.so.1", false, false),
        ("lib*:f", "/lib/libcrypt.so.1", false, true),
        ("libc.so.6:f", "/lib/libc.so.6", false, true),
        ("/lib/*:f", "/lib/libc.so.6", false, true),
        ("/lib/*:f", "/usr/lib/libc.so.6", false, false),
        ("main:f", "/usr/bin/app", true, true),
        ("main:f", "/usr/bin/app", false, false),
        ("app:f", "/usr/bin/app", true, true),
        ("libLLVM:f", "/usr/lib/libLLVM-14.so.1", false, true),
        ("libstdc++:f", "/usr/lib/libstdc++.so.6.0.30", false, true),
        ("python3.11:f", "/usr/bin/python3.11", true, true),
        ("f", "/usr/bin/anything", false, true),
    ] {
        assert_eq!(
            pattern(text).may_cover(path, is_main),
            expected,
            "{text} {path}"
        );
    }
}

#[test]
fn what_a_path_names_is_in_no_file_that_is_elsewhere() {
    for (text, expected) in [
        ("/lib/libc.so.6:f", false),
        // All of the machine would be read to see that nobody maps it.
        ("/usr/bin/app:*", false),
        ("f", false),
        ("libc:f", true),
        ("/lib/*:f", true),
    ] {
        let selection = Selection {
            include: vec![pattern("/usr/bin/true:f"), pattern(text)],
            ..Selection::default()
        };
        assert_eq!(selection.may_name_sonames(), expected, "{text}");
    }
}

#[test]
fn sources_match_by_path_end_or_name() {
    for (text, path, expected) in [
        ("net.c", "/src/app/net.c", true),
        ("app/*.c", "/src/app/net.c", true),
        ("/src/*", "/src/app/net.c", true),
        ("et.c", "/src/app/net.c", false),
        ("net.c", "net.c", true),
        ("*.rs", "/src/app/net.c", false),
    ] {
        let found: SourcePattern = text.parse().unwrap();
        assert_eq!(found.matches(path), expected, "{text}");
    }
    assert!("".parse::<SourcePattern>().is_err());
}

#[test]
fn objects_that_are_named_by_whole_paths() {
    let selection = Selection {
        include: ["/a/b:x", "/a/*:x", "libc:x", r"/a\*b:y", "/^x/", "/a/b:z"]
            .map(pattern)
            .to_vec(),
        exclude: vec![pattern("/c.so:x")],
        sources: Vec::new(),
    };
    let paths: Vec<Box<str>> = ["/a*b", "/a/b", "/c.so"].map(Box::from).to_vec();
    assert_eq!(selection.paths(), paths);
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,40}", name in "\\PC{0,40}") {
        if let Ok(pattern) = text.parse::<Pattern>() {
            let _ = pattern.matches(&function(&name, &[&text]));
            let _ = pattern.may_cover(&name, true);
            prop_assert_eq!(pattern.to_string(), text);
        }
    }

    #[test]
    fn any_name_can_be_asked_for(name in "[a-zA-Z_~][a-zA-Z0-9_.<>(), ~*&:\\[\\]]{0,30}") {
        let escaped: String = name.chars().flat_map(|char| ['\\', char]).collect();
        let wanted = pattern(&escaped);
        prop_assert!(wanted.matches(&function(&name, &[])));
        prop_assert!(wanted.object_text().is_none());
    }

    #[test]
    fn an_object_and_a_name_stay_what_they_are(
        object in "[a-z][a-z0-9.+_-]{0,10}",
        name in "[a-z_][a-z0-9_]{0,10}(::[a-z_][a-z0-9_]{0,10}){0,3}",
    ) {
        prop_assume!(object != "usdt");
        let found = pattern(&format!("{object}:{name}"));
        prop_assert_eq!(found.object_text().unwrap(), object);
        prop_assert_eq!(found.function_text(), name);
    }
}
