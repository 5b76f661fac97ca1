//! Names of each language, and names that are none.

use super::ClassPath;

fn check(name: &str, class: &str, function: &str) {
    let path = ClassPath::new("/usr/lib/libfoo.so", name);
    let class = match class {
        "" => "libfoo.so".to_owned(),
        _ => format!("libfoo.so/{class}"),
    };
    assert_eq!(
        (path.class(), path.function()),
        (&*class, function),
        "{name}"
    );
    assert_eq!(path.full(), format!("{class}/{function}"));
}

#[test]
fn objects() {
    for (path, object) in [
        ("/usr/lib/libfoo.so.1", "libfoo.so.1"),
        ("app", "app"),
        ("[kernel]", "[kernel]"),
        ("/opt/db/bin/db server", "db server"),
        ("", "[unknown]"),
        ("///", "[unknown]"),
    ] {
        let path = ClassPath::new(path, "main");
        assert_eq!(path.full(), format!("{object}/main"));
        assert_eq!(path.object(), object);
    }
}

#[test]
fn c() {
    for name in [
        "main",
        "_start",
        "foo.part.0",
        "foo.cold",
        "foo.constprop.0.isra.0",
        "foo.123",
    ] {
        check(name, "", name);
    }
}

#[test]
fn cxx() {
    for (name, class, function) in [
        ("f()", "", "f"),
        ("ns::add(int, int)", "ns", "add"),
        (
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
            "std/vector<int, std::allocator<int> >",
            "push_back",
        ),
        ("void std::sort<int*>(int*, int*)", "std", "sort<int*>"),
        ("std::map<a::b, c>& ns::f<x::y>(int) const", "ns", "f<x::y>"),
        (
            "(anonymous namespace)::A::f() const",
            "(anonymous namespace)/A",
            "f",
        ),
        ("A::operator()(int) const", "A", "operator()"),
        ("A::operator<(A const&)", "A", "operator<"),
        ("A::operator->()", "A", "operator->"),
        (
            "bool operator==<int>(A<int>, A<int>)",
            "",
            "operator==<int>",
        ),
        (
            "std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char)",
            "std",
            "operator<<<std::char_traits<char> >",
        ),
        (
            "A::operator std::string() const",
            "A",
            "operator std::string",
        ),
        ("operator new(unsigned long)", "", "operator new"),
        ("operator new[](unsigned long)", "", "operator new[]"),
        ("operators::f()", "operators", "f"),
        (
            "main::{lambda(int)#1}::operator()(int) const",
            "main/{lambda(int)#1}",
            "operator()",
        ),
        (
            "A::f(int) const::{lambda()#1}::operator()() const",
            "A/f/{lambda()#1}",
            "operator()",
        ),
        ("non-virtual thunk to A::f()", "A", "f"),
        ("A::f(int) [clone .part.0]", "A", "f"),
        ("f[abi:cxx11](int)", "", "f[abi:cxx11]"),
        ("A::~A()", "A", "~A"),
        ("decltype(auto) ns::f<int>(int&&)", "ns", "f<int>"),
        ("decltype ((*x).y) ns::f<int>(int)", "ns", "f<int>"),
        // Functions that return functions, arrays, members: as this demangler writes them, and as others do.
        ("void (*)(double) ns::f<int>(int)", "ns", "f<int>"),
        ("int (&) [3] ns::A::f<int>(int)", "ns/A", "f<int>"),
        ("void (ns::A::*)(int) const ns::f<int>(int)", "ns", "f<int>"),
        ("void (*(*)(double))() ns::f<int>(int)", "ns", "f<int>"),
        ("void (*ns::A::f<int>(int) const)(double)", "ns/A", "f<int>"),
        ("int (&ns::A::f<int>(int)) [3]", "ns/A", "f<int>"),
        ("void (ns::A::*ns::f<int>(int))(int) const", "ns", "f<int>"),
        ("void (*(*ns::f<int>(int))(double))()", "ns", "f<int>"),
        ("void (*f(int))(double)", "", "f"),
        (
            "void (anonymous namespace)::f<int>(int)",
            "(anonymous namespace)",
            "f<int>",
        ),
        (
            "ns::A::operator void (*)(int)()",
            "ns/A",
            "operator void (*)(int)",
        ),
        ("ns::A::operator delete(void*)", "ns/A", "operator delete"),
        (
            "{virtual override thunk({offset(-16)}, ns::A::f())}",
            "ns/A",
            "f",
        ),
        (
            "{virtual override thunk({offset(0)}, {virtual offset(4, 8)}, ns::A::f(int) const)}",
            "ns/A",
            "f",
        ),
        (
            "{virtual override thunk({offset(-16)}, ns::A::~A())} [clone .cold]",
            "ns/A",
            "~A",
        ),
        ("covariant return thunk to ns::A::f()", "ns/A", "f"),
        ("transaction clone for ns::A::f()", "ns/A", "f"),
        (
            "std::function<void (int)>::operator()(int) const",
            "std/function<void (int)>",
            "operator()",
        ),
    ] {
        check(name, class, function);
    }
    let parameters = |name| ClassPath::new("a", name).parameters().map(str::to_owned);
    assert_eq!(
        parameters("ns::add(int, char (*)(int))").as_deref(),
        Some("int, char (*)(int)")
    );
    assert_eq!(parameters("f()").as_deref(), Some(""));
    assert_eq!(parameters("main"), None);
    assert_eq!(parameters("f(int)::g"), None);
}

#[test]
fn rust() {
    for (name, class, function) in [
        ("std::vec::Vec<T>::push", "std/vec/Vec<T>", "push"),
        ("alloc::vec::Vec<T,A>::push", "alloc/vec/Vec<T,A>", "push"),
        ("<alloc::vec::Vec<u8>>::push", "alloc/vec/Vec<u8>", "push"),
        (
            "<alloc::vec::Vec<u8> as core::fmt::Debug>::fmt",
            "alloc/vec/Vec<u8> as core::fmt::Debug",
            "fmt",
        ),
        ("<&mut a::B as c::D>::e", "a/B as c::D", "e"),
        ("<[T] as a::B>::c", "[T] as a::B", "c"),
        (
            "<<a::B as c::D>::E as f::G>::h",
            "a/B as c::D/E as f::G",
            "h",
        ),
        ("app::main::{{closure}}", "app/main", "{{closure}}"),
        ("app::main::{closure#0}::f", "app/main/{closure#0}", "f"),
        ("core::mem::drop::<u8>", "core/mem", "drop<u8>"),
        (
            "core::ops::function::FnOnce::call_once{{vtable.shim}}",
            "core/ops/function/FnOnce",
            "call_once{{vtable.shim}}",
        ),
        ("a::b::<fn() -> u8>::c", "a/b<fn() -> u8>", "c"),
    ] {
        check(name, class, function);
    }
}

#[test]
fn go() {
    for (name, class, function) in [
        ("main.main", "main", "main"),
        ("main.(*T).M", "main/T", "M"),
        ("main.T.M", "main/T", "M"),
        ("main.main.func1", "main/main", "func1"),
        ("github.com/a/b.F", "github.com/a/b", "F"),
        ("net/http.(*Server).Serve", "net/http/Server", "Serve"),
        (
            "net/http.(*Server).Serve.func2",
            "net/http/Server",
            "Serve.func2",
        ),
        ("gopkg.in/yaml%2ev2.F", "gopkg.in/yaml%2ev2", "F"),
        (
            "main.Map[go.shape.int,a/b.T].Get",
            "main/Map[go.shape.int,a/b.T]",
            "Get",
        ),
        ("main.F[a/b.T]", "main", "F[a/b.T]"),
    ] {
        check(name, class, function);
    }
}

#[test]
fn anything_else_is_one_function() {
    for name in [
        "",
        "walk; \"tree\" <T>",
        "LazyCompile:~render app.js:3",
        "0x1234",
        "(",
        "void (*)(double)",
        "void (*",
        "f (int)",
        "::",
        "a::",
        ".",
        "main.",
    ] {
        check(name, "", name);
    }
    let long = "a::".repeat(1 << 20);
    check(&long, "", &long);
}
