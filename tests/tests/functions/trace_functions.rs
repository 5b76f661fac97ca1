//! What the tracer knows of object files, against what other tools say of them.
//!
//! Judges: nm and readelf (symbols, markers), objdump (stubs), c++filt (names), ldd (libraries), DWARF
//! by construction. Objects: system libraries, and fixtures that are compiled here.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_object::Object;
use profiler_resolve::objects::Finder;
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use profiler_trace::pattern::{Coverage, Seen, Selection};
use profiler_trace::{Function, FunctionKind, Language};

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const LIBSTDCXX: &str = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6";

/// A function of each kind that symbol tables know.
const FIXTURE: &str = r#"
#include <stdio.h>
#include <stdlib.h>

static inline __attribute__((always_inline)) int everywhere(int x) { return x * 3 + 1; }
extern inline __attribute__((gnu_inline, always_inline)) int nowhere_else(int x) { return x ^ 5; }

__attribute__((cold, noinline)) void complain(int x) { fprintf(stderr, "bad %d\n", x); abort(); }

__attribute__((noinline)) int with_cold(int x) {
    if (__builtin_expect(x < 0, 0)) { complain(x); puts("never"); exit(3); }
    return everywhere(x) + 2;
}
__attribute__((noinline)) static int local_one(int x, int unused) { return nowhere_else(x) + puts("one"); }
int handle_get(int x) { return with_cold(x) + local_one(x, 1) + local_one(x + 1, 1); }
int handle_put(int x) { return handle_get(x) + everywhere(x); }
extern int alias_of_put(int) __attribute__((alias("handle_put")));
__asm__(".text\n.globl no_size\n.type no_size,@function\nno_size:\n nop\n nop\n ret\n");
static int chosen_impl(int x) { return x; }
static int (*choose(void))(int) { return chosen_impl; }
int chosen(int) __attribute__((ifunc("choose")));
int main(int argc, char **argv) { (void)argv; return handle_put(argc) > chosen(1000); }
"#;

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("profiler-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Compiles a fixture; none if there is no compiler.
    fn compile(
        &self,
        test: &str,
        source: (&str, &str),
        name: &str,
        flags: &[&str],
    ) -> Option<String> {
        let (file, text) = source;
        let (input, out) = (self.path(file), self.path(name));
        std::fs::write(&input, text).unwrap();
        let compiler = match file.rsplit('.').next() {
            Some("cpp") => "g++",
            Some("rs") => "rustc",
            _ => "gcc",
        };
        let run = Command::new(compiler)
            .args(flags)
            .args(["-o", &out, &input])
            .output();
        let Ok(run) = run else {
            skip(test, &format!("{compiler} can't be run"));
            return None;
        };
        assert!(
            run.status.success(),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
        Some(out)
    }

    fn fixture(&self, test: &str, flags: &[&str]) -> Option<String> {
        self.compile(test, ("fixture.c", FIXTURE), "fixture", flags)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .env("LC_ALL", "C")
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {arguments:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn object(path: &str) -> Object {
    Object::read(&File::open(path).unwrap(), None, path).unwrap()
}

fn select(object: &Object, include: &[&str], sources: &[&str]) -> (Vec<String>, Vec<String>) {
    let selection = Selection {
        include: include.iter().map(|text| text.parse().unwrap()).collect(),
        exclude: Vec::new(),
        sources: sources.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let choice = selection.select(object, true);
    let mut coverage = Coverage::new(&selection);
    coverage.add(Seen::of(&selection, object, true, &choice));
    let names = choice.functions.iter();
    let names = names.map(|&index| object.functions()[index].name.to_string());
    let complaints = coverage.complaints();
    (
        names.collect(),
        complaints.iter().map(ToString::to_string).collect(),
    )
}

/// Name, address, size (0: not said) of the functions that nm shows.
fn functions_of_nm(path: &str, dynamic: bool) -> BTreeSet<(String, u64, u64)> {
    let mut arguments = vec!["--format=sysv", "--defined-only"];
    if dynamic {
        arguments.push("--dynamic");
    }
    arguments.push(path);
    let mut functions = BTreeSet::new();
    for line in output("nm", &arguments).lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, address, _, "FUNC", size, ..] = fields[..] else {
            continue;
        };
        let name = name.split('@').next().unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        functions.insert((name.to_owned(), number(address), number(size)));
    }
    functions
}

fn raw_names(function: &Function) -> impl Iterator<Item = &str> {
    let first = function.linkage_name.as_ref().unwrap_or(&function.name);
    let names = std::iter::once(first).chain(&function.aliases);
    names.map(|name| &**name)
}

/// Names, addresses and sizes are exactly those of nm, cold parts apart.
fn same_as_nm(object: &Object, judged: &BTreeSet<(String, u64, u64)>) {
    let path = object.path();
    let is_cold = |name: &str| name.ends_with(".cold");
    let ours: BTreeSet<(String, u64)> = (object.functions().iter())
        .flat_map(|f| raw_names(f).map(|name| (name.to_owned(), f.address)))
        .collect();
    let theirs = judged.iter().filter(|f| !is_cold(&f.0));
    let theirs: BTreeSet<(String, u64)> = theirs.map(|f| (f.0.clone(), f.1)).collect();
    assert_eq!(ours, theirs, "{path}");
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, address, size) in judged {
        let known = sizes.entry(*address).or_default();
        *known = (*known).max(*size);
    }
    for function in object.functions() {
        let size = sizes[&function.address];
        assert!(size == 0 || size == function.size, "{path}: {function:?}");
        assert!(function.size > 0, "{path}: {function:?}");
        assert_eq!(object.address_of(function.offset), Some(function.address));
        assert!(
            object.code(function.address, function.size).is_some(),
            "{path}: {function:?}"
        );
    }
    assert!(
        object
            .functions()
            .is_sorted_by(|a, b| a.address < b.address)
    );
}

#[test]
fn functions_of_system_libraries_are_those_of_nm() {
    for path in [LIBC, LIBSTDCXX] {
        let judged = functions_of_nm(path, true);
        assert!(judged.len() > 1000, "{path}: {}", judged.len());
        same_as_nm(&object(path), &judged);
    }
}

#[test]
fn functions_of_a_debug_file_are_added() {
    let target = Finder::default().object_at(Path::new(LIBC), None).unwrap();
    let Some(debug) = target.debug.as_deref() else {
        skip(
            "functions_of_a_debug_file_are_added",
            "no debug file of libc; install libc6-dbg",
        );
        return;
    };
    let whole = Object::read(&target.file, Some(debug), LIBC).unwrap();
    assert!(!whole.is_stripped() && object(LIBC).is_stripped());
    assert!(whole.functions().len() > object(LIBC).functions().len());
    let malloc = whole
        .functions()
        .iter()
        .find(|f| &*f.name == "malloc")
        .unwrap();
    assert!(
        malloc
            .aliases
            .iter()
            .any(|alias| &**alias == "__libc_malloc")
    );
    assert!(whole.source_of(malloc).unwrap().ends_with("malloc.c"));
    assert!(
        whole
            .chosen_at_load()
            .iter()
            .any(|name| &**name == "memcpy")
    );
    let (found, _) = select(&whole, &["__malloc*"], &["malloc.c"]);
    assert!(found.iter().any(|name| name == "malloc"), "{found:?}");
}

#[test]
fn functions_of_a_fixture_are_those_of_nm() {
    let test = "functions_of_a_fixture_are_those_of_nm";
    let folder = Folder::new("nm");
    for flags in [&["-O2"][..], &["-O2", "-no-pie"], &["-O0", "-g"]] {
        let Some(path) = folder.fixture(test, flags) else {
            return;
        };
        let object = object(&path);
        same_as_nm(&object, &functions_of_nm(&path, false));
        assert_eq!(object.chosen_at_load(), [Box::from("chosen")]);
        let named = |name: &str| {
            object
                .functions()
                .iter()
                .find(|f| &*f.name == name)
                .unwrap()
        };
        // To the next symbol, what aligns that included.
        let behind = named("no_size").address + named("no_size").size;
        let next = object
            .functions()
            .iter()
            .find(|f| f.address > named("no_size").address);
        assert_eq!(behind, next.unwrap().address);
        assert_eq!(&*named("handle_put").aliases[0], "alias_of_put");
        assert!(object.imports().any(|name| name == "puts"));
        assert_eq!(
            object.function_at(named("main").address + 1),
            Some(named("main"))
        );
        if flags[0] == "-O2" {
            let nm = functions_of_nm(&path, false);
            let cold: Vec<(u64, u64)> = nm
                .iter()
                .filter(|f| f.0 == "with_cold.cold")
                .map(|f| (f.1, f.2))
                .collect();
            assert_eq!(cold.len(), 1);
            assert_eq!(object.cold_parts(named("with_cold")), cold);
            assert_eq!(object.cold_parts(named("main")), []);
        }
    }
}

#[test]
fn mini_debug_info_and_debug_files_give_names_back() {
    let test = "mini_debug_info_and_debug_files_give_names_back";
    let folder = Folder::new("mini");
    let Some(path) = folder.fixture(test, &["-O2", "-g"]) else {
        return;
    };
    let judged = functions_of_nm(&path, false);
    let (debug, mini) = (folder.path("debug"), folder.path("mini"));
    let stripped = folder.path("stripped");
    output("objcopy", &["--only-keep-debug", &path, &debug]);
    output("strip", &["-o", &stripped, &path]);
    assert!(object(&stripped).is_stripped());
    let (_, complaints) = select(&object(&stripped), &["handle_get"], &[]);
    assert!(complaints[0].contains("is stripped"), "{complaints:?}");

    let files = (File::open(&stripped).unwrap(), File::open(&debug).unwrap());
    let with_debug = Object::read(&files.0, Some(&files.1), &stripped).unwrap();
    same_as_nm(&with_debug, &judged);
    let main = with_debug
        .functions()
        .iter()
        .find(|f| &*f.name == "main")
        .unwrap();
    assert!(with_debug.source_of(main).unwrap().ends_with("/fixture.c"));

    output(
        "objcopy",
        &["-S", "--remove-section=.comment", &debug, &mini],
    );
    output("objcopy", &["--strip-debug", &debug, &mini]);
    output("xz", &["-k", &mini]);
    let section = format!(".gnu_debugdata={mini}.xz");
    let packed = folder.path("packed");
    output("objcopy", &["--add-section", &section, &stripped, &packed]);
    same_as_nm(&object(&packed), &judged);
}

#[test]
fn debug_information_alone_names_functions() {
    let test = "debug_information_alone_names_functions";
    let folder = Folder::new("dwarf");
    for flags in [
        &["-O2", "-g"][..],
        &["-O2", "-g", "-gdwarf-4"],
        &["-O2", "-g", "-gz"],
    ] {
        let Some(path) = folder.fixture(test, flags) else {
            return;
        };
        let whole = object(&path);
        let (found, complaints) = select(&whole, &[], &["fixture.c"]);
        for name in ["main", "handle_get", "handle_put", "with_cold", "complain"] {
            assert!(found.iter().any(|found| found == name), "{name}: {found:?}");
        }
        assert!(!found.iter().any(|name| name == "_start"), "{found:?}");
        assert!(complaints.is_empty(), "{complaints:?}");
        let (found, complaints) = select(&whole, &["*"], &["other.c"]);
        assert!(found.is_empty());
        assert!(
            complaints[0].contains("no function was written in 'other.c'"),
            "{complaints:?}"
        );

        let inlined: Vec<&str> = whole.inlined_only().iter().map(|name| &**name).collect();
        assert!(
            inlined.contains(&"everywhere") && inlined.contains(&"nowhere_else"),
            "{inlined:?}"
        );
        assert!(!inlined.contains(&"handle_get"), "{inlined:?}");
        let (_, complaints) = select(&whole, &["everywhere"], &[]);
        assert!(
            complaints[0].contains("each use was inlined"),
            "{complaints:?}"
        );
        let get = whole
            .functions()
            .iter()
            .find(|f| &*f.name == "handle_get")
            .unwrap();
        assert_eq!(whole.inlined_at(get), 1, "into handle_put");

        let nameless = folder.path("nameless");
        let keep = ["--keep-section=.debug*", "--strip-all", &path, &nameless];
        output("objcopy", &keep);
        let without_symbols = object(&nameless);
        assert!(without_symbols.is_stripped());
        for name in ["main", "handle_get", "complain"] {
            let named = |object: &Object| {
                let found = object
                    .functions()
                    .iter()
                    .find(|f| &*f.name == name)
                    .cloned();
                found.map(|f| (f.address, f.offset, f.size))
            };
            assert_eq!(named(&without_symbols), named(&whole), "{name}");
            assert!(named(&whole).is_some());
        }
    }
}

#[test]
fn what_is_not_found_is_explained() {
    let libc = object(LIBC);
    let explained = |pattern: &str| {
        let (_, complaints) = select(&libc, &[pattern], &[]);
        complaints.join("\n")
    };
    let said = explained("libc:mallok");
    assert!(
        said.contains("no function 'mallok' in libc.so.6; did you mean 'malloc'"),
        "{said}"
    );
    assert!(explained("libx:malloc").contains("there is no object 'libx'; there are libc.so.6"));
    assert!(explained("strlen").contains("when the object is loaded"));
    assert!(explained("usdt:a:b").contains("no marker 'usdt:a:b'"));
    assert_eq!(explained("libc:malloc"), "");
}

/// Provider, name, location, semaphore, arguments of each marker that readelf shows.
/// What the loader chooses from several can't be traced: a pattern takes the others that it names and says how many are
/// left out, and who names one by its name is told what helps.
#[test]
fn what_is_chosen_at_load_is_left_out_of_what_a_pattern_takes() {
    let test = "what_is_chosen_at_load_is_left_out_of_what_a_pattern_takes";
    let folder = Folder::new("chosen");
    let Some(path) = folder.fixture(test, &["-O2"]) else {
        return;
    };
    let whole = object(&path);
    let (found, said) = select(&whole, &["*chosen*"], &[]);
    assert_eq!(found, ["chosen_impl"]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("1 name is left out"), "{said:?}");
    assert!(
        said[0].ends_with("when the object is loaded: chosen"),
        "{said:?}"
    );
    let (found, said) = select(&whole, &["chosen"], &[]);
    assert!(found.is_empty());
    assert!(
        said[0].contains("trace those by their own names"),
        "{said:?}"
    );
    let Some(path) = folder.fixture(test, &["-O2", "-s", "-rdynamic"]) else {
        return;
    };
    let (found, said) = select(&object(&path), &["*chosen*"], &[]);
    assert!(found.is_empty());
    assert!(
        said[0].contains("with the debug symbols of fixture"),
        "{said:?}"
    );
}

/// Files are passed over by their symbols alone, where what is wanted has one plain name.
#[test]
fn a_file_without_a_name_is_known_without_reading_it() {
    let words = |include: &[&str]| {
        let selection = Selection {
            include: include.iter().map(|text| text.parse().unwrap()).collect(),
            ..Selection::default()
        };
        selection.words()
    };
    let all: Vec<Box<str>> = vec!["malloc".into(), "handle_put".into()];
    assert_eq!(words(&["libc:malloc", "handle_put"]), Some(all));
    // Words of demangled names are not all in symbols, and of many names there is no one word.
    for others in [
        "*malloc*",
        "std::sort",
        "string",
        "/mal+oc/",
        "usdt:a:b",
        "f",
        "f(int)",
    ] {
        assert_eq!(words(&["malloc", others]), None, "{others}");
    }
    assert_eq!(words(&[]), None);

    let test = "a_file_without_a_name_is_known_without_reading_it";
    let folder = Folder::new("words");
    for flags in [&["-O2"][..], &["-O2", "-s", "-rdynamic"]] {
        let Some(path) = folder.fixture(test, flags) else {
            return;
        };
        let file = File::open(&path).unwrap();
        for function in object(&path).functions() {
            let may = profiler_object::may_name(&file, None, &[&*function.name]);
            assert!(may, "{}", function.name);
        }
        // What it only uses, and what is nowhere.
        for name in ["fprintf", "no_such_function"] {
            assert!(!profiler_object::may_name(&file, None, &[name]), "{name}");
        }
    }
}

fn markers_of_readelf(path: &str) -> BTreeSet<(String, u64, u64, String)> {
    let text = output("readelf", &["-n", "-W", path]);
    let mut markers = BTreeSet::new();
    let mut fields: BTreeMap<&str, String> = BTreeMap::new();
    for line in text.lines() {
        let line = line.find("Provider:").map_or(line, |at| &line[at..]);
        for part in line.split(", ").map(str::trim) {
            if let Some((key, value)) = part.split_once(": ").or(part.split_once(':')) {
                fields.insert(key, value.trim().to_owned());
            }
        }
        if let Some(arguments) = line.trim().strip_prefix("Arguments:") {
            let number = |key: &str| {
                let text = fields[key].trim_start_matches("0x");
                u64::from_str_radix(text, 16).unwrap()
            };
            markers.insert((
                format!("{}:{}", fields["Provider"], fields["Name"]),
                number("Location"),
                number("Semaphore"),
                arguments.trim().to_owned(),
            ));
        }
    }
    markers
}

#[test]
fn markers_are_those_of_readelf() {
    let candidates = [
        LIBSTDCXX,
        "/usr/bin/python3.11",
        "/usr/lib/postgresql/15/bin/postgres",
        "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    ];
    let mut seen = 0;
    for path in candidates.iter().filter(|path| Path::new(path).exists()) {
        let object = object(path);
        let ours: BTreeSet<(String, u64, u64, String)> = (object.markers().iter())
            .map(|marker| {
                let FunctionKind::Marker {
                    arguments,
                    semaphore,
                } = &marker.kind
                else {
                    panic!("{marker:?}");
                };
                // Readelf shows addresses.
                let semaphore = semaphore.map_or(0, |offset| object.address_of(offset).unwrap());
                assert_eq!(object.address_of(marker.offset), Some(marker.address));
                // A marker is a no-operation.
                let code = object.code(marker.address, 1).unwrap()[0];
                assert!(
                    matches!(code, 0x90 | 0x0f | 0x66),
                    "{path}: {marker:?}: {code:x}"
                );
                (
                    marker.name.to_string(),
                    marker.address,
                    semaphore,
                    arguments.to_string(),
                )
            })
            .collect();
        assert_eq!(ours, markers_of_readelf(path), "{path}");
        seen += ours.len();
    }
    assert!(seen >= 4, "libstdc++ has markers");
    let (_, complaints) = select(&object(LIBSTDCXX), &["usdt:libstdcxx:thow"], &[]);
    assert!(
        complaints[0].contains("did you mean 'libstdcxx:throw'"),
        "{complaints:?}"
    );
}

#[test]
fn readable_names_are_those_of_binutils() {
    let object = object(LIBSTDCXX);
    let mangled: Vec<&Function> = (object.functions().iter())
        .filter(|function| function.linkage_name.is_some())
        .collect();
    let input: Vec<String> = mangled
        .iter()
        .map(|f| f.linkage_name.as_ref().unwrap().to_string())
        .collect();
    let folder = Folder::new("filt");
    let file = folder.path("names");
    std::fs::write(&file, input.join("\n") + "\n").unwrap();
    let text = output("sh", &["-c", &format!("c++filt < {file}")]);
    // Spaces and words for standard types are matters of taste.
    let plain = |name: &str| {
        let name = name.replace(
            "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
            "std::string",
        );
        name.replace(' ', "")
    };
    let judged = text.lines();
    let same = mangled
        .iter()
        .zip(judged)
        .filter(|(f, line)| plain(&f.name) == plain(line))
        .count();
    let share = same as f64 / mangled.len() as f64;
    println!("{same} of {} as c++filt has them", mangled.len());
    assert!(
        mangled.len() > 3000 && share > 0.95,
        "{same} of {}",
        mangled.len()
    );
    assert!(mangled.iter().all(|f| f.language == Language::Cxx));
    let (found, _) = select(
        &object,
        &["std::ostream::flush", "std::basic_ostream::flush"],
        &[],
    );
    assert!(
        found.iter().any(|name| name.contains("::flush()")),
        "{found:?}"
    );
}

#[test]
fn stubs_lead_where_objdump_says() {
    let folder = Folder::new("plt");
    for flags in [
        &["-O1"][..],
        &["-O1", "-fcf-protection=full", "-Wl,-z,ibtplt"],
        &["-O1", "-Wl,-z,now"],
        &["-O1", "-no-pie", "-Wl,-z,lazy"],
    ] {
        let Some(path) = folder.fixture("stubs_lead_where_objdump_says", flags) else {
            return;
        };
        let object = object(&path);
        let mut judged = 0;
        for line in output(
            "objdump",
            &[
                "-d", "-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got", &path,
            ],
        )
        .lines()
        {
            let Some((address, name)) = line.split_once(" <") else {
                continue;
            };
            let Some(name) = name.strip_suffix("@plt>:") else {
                continue;
            };
            if name.starts_with('*') {
                continue;
            }
            let address = u64::from_str_radix(address, 16).unwrap();
            // With two tables, objdump names the entries of both; calls lead to the second.
            if let Some(found) = object.plt(address) {
                assert_eq!(found, name, "{flags:?}");
                judged += 1;
            }
        }
        assert!(judged >= 3, "{flags:?}: {judged}");
    }
}

#[test]
fn libraries_of_a_command_are_those_of_ldd() {
    for program in [
        "/usr/bin/perf",
        "/usr/bin/gdb",
        "/usr/bin/python3.11",
        "/bin/ls",
        "/usr/lib/postgresql/15/bin/postgres",
    ] {
        if !Path::new(program).exists() {
            continue;
        }
        let canonical = |path: &str| std::fs::canonicalize(path).unwrap();
        let theirs: BTreeSet<PathBuf> = output("ldd", &[program])
            .lines()
            .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
            .map(canonical)
            .collect();
        let objects = Finder::default()
            .objects_of_command(Path::new(program))
            .unwrap();
        assert!(objects[0].is_main);
        assert_eq!(Path::new(&*objects[0].path), canonical(program));
        let ours: BTreeSet<PathBuf> = objects[1..].iter().map(|o| canonical(&o.path)).collect();
        assert_eq!(ours, theirs, "{program}");
    }
}

#[test]
fn libraries_are_found_by_run_paths_and_the_environment() {
    let test = "libraries_are_found_by_run_paths_and_the_environment";
    let folder = Folder::new("runpath");
    let deep = folder.path("deep");
    std::fs::create_dir_all(&deep).unwrap();
    let inner = ("inner.c", "int inner(void) { return 1; }");
    let outer = (
        "outer.c",
        "int inner(void); int outer(void) { return inner(); }",
    );
    let main = (
        "main.c",
        "int outer(void); int main(void) { return outer(); }",
    );
    let search = format!("-L{deep}");
    let shared = ["-shared", "-fPIC"];
    if folder
        .compile(test, inner, "deep/libinner.so", &shared)
        .is_none()
    {
        return;
    }
    for tags in ["-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"] {
        let path = "-Wl,-rpath,$ORIGIN/deep";
        let own = "-Wl,-rpath,$ORIGIN";
        // A library that names its own folder, as the newer kind does not count for what it needs.
        let flags = [
            shared[0],
            shared[1],
            &search,
            tags,
            own,
            "-Wl,--no-as-needed",
        ];
        let input = folder.path("outer.c");
        std::fs::write(&input, outer.1).unwrap();
        let out = folder.path("deep/libouter.so");
        output(
            "gcc",
            &[&flags[..], &["-o", &out, &input, "-linner"]].concat(),
        );
        let input = folder.path("main.c");
        std::fs::write(&input, main.1).unwrap();
        let out = folder.path("main");
        output(
            "gcc",
            &[
                "-o",
                &out,
                &input,
                &search,
                "-louter",
                tags,
                path,
                "-Wl,--allow-shlib-undefined",
            ],
        );
        let objects = Finder::default()
            .objects_of_command(Path::new(&out))
            .unwrap();
        let names: Vec<&str> = objects
            .iter()
            .map(|o| o.path.rsplit('/').next().unwrap())
            .collect();
        assert!(
            names.contains(&"libouter.so") && names.contains(&"libinner.so"),
            "{names:?}"
        );
        assert!(
            Command::new(&out).status().unwrap().code() == Some(1),
            "and so ld.so finds them"
        );
    }
}

#[test]
fn rust_and_go_are_recognised() {
    let test = "rust_and_go_are_recognised";
    let own = std::env::current_exe().unwrap();
    let own = object(own.to_str().unwrap());
    let name = concat!(module_path!(), "::rust_and_go_are_recognised");
    let (found, _) = select(&own, &[name], &[]);
    assert!(!found.is_empty());
    let rust = own
        .functions()
        .iter()
        .filter(|f| f.language == Language::Rust)
        .count();
    assert!(rust > 1000 && !own.is_go(), "{rust}");

    let folder = Folder::new("go");
    let source = folder.path("main.go");
    std::fs::write(&source, "package main\n\ntype T struct{ n int }\n\n//go:noinline\nfunc (t *T) Add(n int) int { return t.n + n }\n\nfunc main() { println((&T{1}).Add(2)) }\n").unwrap();
    let out = folder.path("go");
    let run = profiler_tests::workload::go()
        .args(["build", "-o", &out, &source])
        .env("GOFLAGS", "-mod=mod")
        .output();
    match run {
        Ok(run) if run.status.success() => {}
        _ => {
            skip(test, "no Go; name one by PROFILER_GO=/path/to/go");
            return;
        }
    }
    let object = object(&out);
    assert!(object.is_go());
    let (found, _) = select(&object, &["main.(\\*T).Add", "main:main.main"], &[]);
    assert_eq!(found, ["main.(*T).Add", "main.main"]);
    assert!(
        object
            .functions()
            .iter()
            .all(|f| f.language == Language::Go)
    );
    same_as_nm(&object, &functions_of_nm(&out, false));
}

#[test]
fn damaged_objects_are_no_panic() {
    let test = "damaged_objects_are_no_panic";
    let folder = Folder::new("hostile");
    let Some(path) = folder.fixture(test, &["-O2", "-g"]) else {
        return;
    };
    let whole = std::fs::read(&path).unwrap();
    let damaged = folder.path("damaged");
    let started = Instant::now();
    let read_all = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        let Ok(object) = Object::read(&File::open(&damaged).unwrap(), None, &damaged) else {
            return 0;
        };
        for function in object.functions().iter().take(50) {
            let _ = object.code(function.address, function.size.min(1 << 16));
            let _ = object.source_of(function);
            let _ = (object.cold_parts(function), object.plt(function.address));
        }
        let _ = (
            object.inlined_only(),
            object.imports().count(),
            object.soname(),
        );
        let _ = object.bytes(u64::MAX, u64::MAX);
        object.functions().len()
    };
    let intact = read_all(&whole);
    assert!(intact > 10);
    for part in 1..64 {
        read_all(&whole[..whole.len() * part / 64]);
    }
    // Headers, bit by bit; the rest, byte by byte at places that differ from run to run by nothing.
    for at in 0..64 {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            read_all(&bytes);
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..1500 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = (state as usize) % bytes.len();
            bytes[at] = (state >> 32) as u8;
        }
        read_all(&bytes);
    }
    // Section headers say where everything is.
    let table = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    for at in (table..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] = 0xff;
        read_all(&bytes);
    }
    assert!(
        started.elapsed() < Duration::from_secs(300),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn large_libraries_are_read_within_a_second() {
    let test = "large_libraries_are_read_within_a_second";
    let folder = std::fs::read_dir("/usr/lib/x86_64-linux-gnu").unwrap();
    let largest = folder
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().contains("/libLLVM"))
        .max_by_key(|path| path.metadata().map_or(0, |metadata| metadata.len()));
    let Some(path) = largest else {
        skip(test, "no libLLVM here");
        return;
    };
    let Some(setting) = Setting::unprivileged(test).unwrap() else {
        return;
    };
    // Others may keep the machine busy: time on processors counts, of all threads.
    let script = "\"$0\" list functions --object \"$1\" 'no_such_function_*' > list; times";
    let run = Command::new("sh")
        .args(["-c", script])
        .arg(setting.profiler_path())
        .arg(&path)
        .current_dir(setting.folder())
        .output()
        .unwrap();
    let times = String::from_utf8(run.stdout).unwrap();
    let children = times.lines().nth(1).unwrap();
    let seconds: f64 = children
        .split_whitespace()
        .map(|time| time.split_once('m').unwrap().1.trim_end_matches('s'))
        .map(|seconds| seconds.parse::<f64>().unwrap())
        .sum();
    println!("{}: {seconds} s", path.display());
    // What is not optimised takes about three times as long.
    let limit = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
    assert!(seconds > 0.0 && seconds < limit, "{seconds} s");
}

#[test]
fn lists_are_written() {
    let Some(setting) = Setting::unprivileged("lists_are_written").unwrap() else {
        return;
    };
    let run = |arguments: &[&str]| setting.run(arguments).unwrap();
    let listed = run(&[
        "list",
        "functions",
        "--json",
        "--object",
        LIBC,
        "libc:malloc",
        "libc:mallok",
    ]);
    assert_eq!(listed.status.code(), Some(0));
    let value = listed.json().unwrap();
    assert_eq!(value["functions"][0]["name"], "malloc");
    assert!(
        value["missing"][0]
            .as_str()
            .unwrap()
            .contains("did you mean")
    );
    let own = run(&["list", "functions", "libc:opendir", "--", "ls"]);
    assert_eq!(own.status.code(), Some(0));
    let none = run(&["list", "functions", "--object", LIBC, "libc:nothing_at_all"]);
    assert_eq!(none.status.code(), Some(1));
    let wrong = run(&["list", "functions", "malloc"]);
    assert_eq!(wrong.status.code(), Some(2));
    let markers = run(&["list", "usdt", "--json", "--object", LIBSTDCXX])
        .json()
        .unwrap();
    assert_eq!(markers["count"], markers_of_readelf(LIBSTDCXX).len());
    let processes = run(&["list", "processes", "--json"]).json().unwrap();
    let pids = processes["processes"].as_array().unwrap();
    assert!(
        pids.iter()
            .any(|process| process["pid"] == std::process::id())
    );
}
