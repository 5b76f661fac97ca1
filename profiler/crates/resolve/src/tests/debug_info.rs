//! Debug information in all its places. Each is made by the usual tools.

use super::*;
use std::process::Command;

/// Runs a tool; false (said aloud) if it is not there.
fn tool(dir: &TempDir, line: &str) -> bool {
    let mut words = line.split(' ');
    let name = words.next().unwrap();
    let run = Command::new(name).args(words).current_dir(&dir.0).output();
    match run {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}: {text}");
            true
        }
        Err(error) => {
            crate::skip::skip(
                "debug information made by tools",
                &format!("{name}: {error}"),
            );
            false
        }
    }
}

/// What is known of one sample of a program, at `offset`, and its frame there.
fn sampled(program: &Path, offset: u64, debug_dirs: &[&Path]) -> (Reader, FrameId) {
    let mut options = options();
    options.debug_dirs = debug_dirs.iter().map(PathBuf::from).collect();
    let mut resolver = Resolver::new(options).unwrap();
    let id = pid(60);
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, program, 0));
    events.push(sample(13, id, "program", &[BASE + offset], &[]));
    let reader = run(&mut resolver, events);
    let leaf = reader.samples().next().unwrap().user;
    let frame = reader.tables.frames_of(leaf).next().unwrap();
    (reader, frame)
}

/// Name and line of the function `inner` of a program, at `offset`.
fn found(program: &Path, offset: u64, debug_dirs: &[&Path]) -> (String, u32) {
    let (reader, frame) = sampled(program, offset, debug_dirs);
    let line = reader
        .tables
        .lines(frame)
        .last()
        .map_or(0, |line| line.line);
    (reader.tables.frame_name(frame), line)
}

fn build_id_of(path: &Path) -> BuildId {
    let elf = elf::Elf::read(&std::fs::File::open(path).unwrap()).unwrap();
    elf.build_id.unwrap()
}

fn expected() -> (String, u32) {
    ("inner".to_owned(), 1)
}

#[test]
fn a_debug_file_by_build_id() {
    let dir = TempDir::new("build-id");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    tool(&dir, "objcopy --only-keep-debug program program.debug");
    tool(&dir, "strip program");
    let (name, _) = found(&program, inner, &[]);
    assert!(name.starts_with("program+0x"), "{name}");
    let place = dir.path("debug");
    let place = place.join(debug_files::build_id_path(&build_id_of(&program)).unwrap());
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::rename(dir.path("program.debug"), &place).unwrap();
    assert_eq!(found(&program, inner, &[&dir.path("debug")]), expected());
    // One of another program is not believed.
    let other = build(&dir, "other", &["-O2"]);
    std::fs::copy(other, &place).unwrap();
    let (name, _) = found(&program, inner, &[&dir.path("debug")]);
    assert!(name.starts_with("program+0x"), "{name}");
}

#[test]
fn what_a_file_has_for_names() {
    let dir = TempDir::new("name-sources");
    let program = build(&dir, "program", &[]);
    let path = program.to_str().unwrap();
    let build_id = build_id_of(&program);
    let has = |symbols, debug_info| {
        Some(NameSources {
            symbols,
            debug_info,
        })
    };
    assert_eq!(name_sources(path, Some(&build_id)), has(true, true));
    tool(&dir, "strip --strip-debug program");
    assert_eq!(name_sources(path, Some(&build_id)), has(true, false));
    tool(&dir, "strip program");
    assert_eq!(name_sources(path, Some(&build_id)), has(false, false));
    // It is another file, or none.
    assert_eq!(name_sources(path, None), None);
    assert_eq!(name_sources("/dev/null", None), None);
    assert_eq!(name_sources("/nowhere", None), None);
}

#[test]
fn a_debug_file_by_link() {
    for (index, id) in ["sha1", "none"].iter().enumerate() {
        let dir = TempDir::new(&format!("link{index}"));
        let program = build(&dir, "program", &[&format!("-Wl,--build-id={id}")]);
        let inner = offset_of(&program, "inner");
        tool(&dir, "objcopy --only-keep-debug program program.dbg");
        tool(&dir, "strip program");
        tool(&dir, "objcopy --add-gnu-debuglink=program.dbg program");
        assert_eq!(found(&program, inner, &[]), expected(), "{id}");
        std::fs::create_dir(dir.path(".debug")).unwrap();
        std::fs::rename(dir.path("program.dbg"), dir.path(".debug/program.dbg")).unwrap();
        assert_eq!(found(&program, inner, &[]), expected(), "{id}");
        // A wrong checksum, or build id.
        let other = build(&dir, "other", &["-O1", &format!("-Wl,--build-id={id}")]);
        std::fs::copy(other, dir.path(".debug/program.dbg")).unwrap();
        let (name, _) = found(&program, inner, &[]);
        assert!(name.starts_with("program+0x"), "{id}: {name}");
    }
}

/// Moves the symbols of `program` into its `.gnu_debugdata`; false (said aloud) if a tool is missing.
pub(super) fn pack_symbols(dir: &TempDir, program: &str, xz: &str) -> bool {
    tool(dir, &format!("objcopy --only-keep-debug {program} mini"));
    tool(dir, "objcopy --strip-debug mini");
    if !tool(dir, xz) {
        return false;
    }
    tool(dir, &format!("strip {program}"));
    tool(
        dir,
        &format!("objcopy --add-section .gnu_debugdata=mini.xz {program}"),
    )
}

#[test]
fn symbols_packed_into_the_program() {
    let dir = TempDir::new("debugdata-program");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    if pack_symbols(&dir, "program", "xz mini") {
        assert_eq!(found(&program, inner, &[]), ("inner".to_owned(), 0));
    }
}

#[test]
fn packed_symbols_give_the_names_that_a_table_gives() {
    let dir = TempDir::new("debugdata-names");
    let code = "\
#include <cstdlib>
struct A { __attribute__((noinline)) int work(unsigned x) { return x + rand(); } };
namespace b { template <class T> __attribute__((noinline)) int work(T x) { return x + rand(); } }
static __attribute__((noinline)) int _internal(int x) { return x + rand(); }
extern \"C\" __attribute__((alias(\"_ZL9_internali\"), visibility(\"default\"))) int given(int);
int main(int argc, char **) { return A().work(argc) + b::work((short)argc) + _internal(argc) + given(argc); }
";
    std::fs::write(dir.path("names.cpp"), code).unwrap();
    tool(
        &dir,
        "g++ -O1 -rdynamic -Wl,--build-id=sha1 -o whole names.cpp",
    );
    let symbols = [
        "_ZN1A4workEj",
        "_ZN1b4workIsEEiT_",
        "_ZL9_internali",
        "main",
        "_start",
    ];
    let whole = dir.path("whole");
    let places = symbols.map(|symbol| offset_of(&whole, symbol));
    let names = places.map(|place| found(&whole, place, &[]).0);
    assert_eq!(names[0], "A::work(unsigned int)");
    // More than one block, and another sum over it, as `xz -T` and other packers make them.
    let ways = ["xz mini", "xz -C crc32 --block-size=1024 mini"];
    for xz in ways {
        std::fs::copy(&whole, dir.path("packed")).unwrap();
        if !pack_symbols(&dir, "packed", xz) {
            return;
        }
        let packed = places.map(|place| found(&dir.path("packed"), place, &[]).0);
        assert_eq!(packed, names, "{xz}");
        std::fs::remove_file(dir.path("mini.xz")).unwrap();
    }
}

/// Of several names the one that people use is that of reports, and of lists.
#[test]
fn code_with_several_names_is_called_as_people_call_it() {
    let dir = TempDir::new("several-names");
    // As libraries have them: a name of their own, which debug information has, and others for it.
    let code = "\
volatile int n;
__attribute__((noinline)) int __lib_work(int x) { return x * n; }
int _lib_work(int) __attribute__((alias(\"__lib_work\")));
int work64x(int) __attribute__((weak, alias(\"__lib_work\")));
int work(int) __attribute__((weak, alias(\"__lib_work\")));
static __attribute__((noinline)) int plain(int x) { return x * n; }
int main(int argc, char **argv) { return __lib_work(argc) + plain(argc); }
";
    std::fs::write(dir.path("program.c"), code).unwrap();
    let names = || {
        let program = dir.path("program");
        let file = std::fs::File::open(&program).unwrap();
        let object = profiler_object::Object::read(&file, None, "program").unwrap();
        ["__lib_work", "plain"].map(|symbol| {
            let start = offset_of(&dir.path("whole"), symbol);
            let functions = object.functions().iter();
            let listed = functions.filter(|function| function.offset == start);
            let listed: Vec<_> = listed.map(|function| function.name.to_string()).collect();
            (found(&program, start + 1, &[]).0, listed)
        })
    };
    let expected = ["work", "plain"].map(|name| (name.to_owned(), vec![name.to_owned()]));
    for flags in ["", "-g ", "-g -static "] {
        tool(
            &dir,
            &format!("gcc -O1 {flags}-Wl,--build-id=sha1 -o program program.c"),
        );
        std::fs::copy(dir.path("program"), dir.path("whole")).unwrap();
        assert_eq!(names(), expected, "{flags}");
    }
    tool(
        &dir,
        "gcc -O1 -rdynamic -Wl,--build-id=sha1 -o program program.c",
    );
    std::fs::copy(dir.path("program"), dir.path("whole")).unwrap();
    tool(&dir, "strip program");
    assert_eq!(names()[0], expected[0], "stripped");
}

/// Hand-written assembly says neither that a symbol is a function nor how long it is.
#[test]
fn symbols_without_a_type_name_code() {
    let dir = TempDir::new("untyped");
    let code = "\
.text
.globl first
first: nop
within: nop
 ret
.p2align 4
.globl second
second: nop
 ret
.p2align 4
.globl described
described: .cfi_startproc
 nop
label: nop
 ret
 .cfi_endproc
nameless: .cfi_startproc
 nop
 ret
 .cfi_endproc
.section .note.GNU-stack,\"\",@progbits
";
    std::fs::write(dir.path("untyped.s"), code).unwrap();
    tool(
        &dir,
        "gcc -shared -nostdlib -Wl,--build-id=sha1 -o whole.so untyped.s",
    );
    let whole = dir.path("whole.so");
    let start = offset_of(&whole, "first");
    tool(&dir, "strip whole.so -o bare.so");
    let names = |file: &str, places: &[u64]| {
        let name = |at: &u64| found(&dir.path(file), start + at, &[]).0;
        places.iter().map(name).collect::<Vec<_>>()
    };
    let nameless = format!("bare.so+{:#x}", start + 0x23);
    assert_eq!(
        names("bare.so", &[0, 1, 2, 0x10, 0x11, 0x20, 0x21]),
        [
            "first",
            "first",
            "first",
            "second",
            "second",
            "described",
            "described"
        ]
    );
    assert!(names("bare.so", &[0x24])[0].starts_with(&nameless));
    assert_eq!(
        names("whole.so", &[0, 1, 0x11, 0x21, 0x24]),
        ["first", "within", "second", "described", "nameless"]
    );
    let file = std::fs::File::open(&whole).unwrap();
    let object = profiler_object::Object::read(&file, None, "whole.so").unwrap();
    let listed = object.functions().iter();
    let listed: Vec<_> = listed
        .map(|it| (&*it.name, it.offset - start, it.size))
        .collect();
    assert_eq!(
        listed,
        [
            ("first", 0, 1),
            ("within", 1, 15),
            ("second", 0x10, 0x10),
            ("described", 0x20, 3),
            ("nameless", 0x23, 2)
        ]
    );
}

/// Debug information of lines alone says of two lambdas neither where they are nor in what: both are `operator()`.
#[test]
fn inlined_lambdas_are_told_apart_by_lines() {
    let dir = TempDir::new("namesakes");
    let code = "\
#define INLINED __attribute__((always_inline))
template <class F> static inline INLINED int run(F f, int n) {
  int x = 1; for (int i = 0; i < n; i++) x = f(x, i); return x;
}
static inline INLINED int step(int x, int i) { return (x * 31 + i) ^ (x >> 7); }
extern \"C\" int one(int n) {
  return run([=](int x, int i) INLINED { asm volatile(\"\"); return step(x, i); }, n);
}
extern \"C\" int two(int n) {
  return run([=](int x, int i) INLINED {
    asm volatile(\"\");
    return step(x, i) + 1;
  }, n);
}
";
    std::fs::write(dir.path("lambdas.cpp"), code).unwrap();
    let flags = "-O2 -gmlt -shared -fPIC -Wl,--build-id=sha1";
    if !tool(&dir, &format!("clang++ {flags} -o lambdas.so lambdas.cpp")) {
        return;
    }
    let program = dir.path("lambdas.so");
    for (name, line) in [("one", 7), ("two", 12)] {
        let start = offset_of(&program, name);
        let mut lambdas = Vec::new();
        for at in (0..0x40).step_by(4) {
            let (reader, frame) = sampled(&program, start + at, &[]);
            let (tables, lines) = (&reader.tables, reader.tables.lines(frame));
            let functions = lines.iter().map(|line| line.function);
            let functions: Vec<_> = functions
                .filter_map(|id| tables.functions.get(id))
                .collect();
            if functions.last().map(|it| tables.string(it.name)) == Some(name) {
                let mut inlined = functions.iter();
                lambdas.extend(
                    inlined
                        .find(|it| tables.string(it.name) == "operator()")
                        .map(|it| it.line),
                );
                // What has its name to itself is known by that.
                let step = functions.iter().find(|it| tables.string(it.name) == "step");
                assert!(step.is_none_or(|step| step.line == 0));
            }
        }
        lambdas.dedup();
        assert_eq!(lambdas, [line], "{name}");
    }
}

/// GHC has symbols for what modules export alone, says of a function's first piece that it is all of it, and of pieces
/// that they end where they call something. `language` is what the unit says that it was written in.
fn ghc_program(dir: &TempDir, language: u8) -> PathBuf {
    let range = |(low, high): (u32, u32)| format!(".quad .Lfirst+{low}, .Lfirst+{high}\n");
    let piece = |place, within: &str| format!(".byte 3\n{}{within}.byte 0\n", range(place));
    let function = |name: &str, symbol: &str, place, pieces: &str| {
        let place = range(place);
        format!(".byte 2\n.string \"{name}\", \"{symbol}\"\n{place}{pieces}.byte 0\n")
    };
    let pieces = piece((4, 8), "") + &piece((0x10, 0x14), &piece((0x18, 0x20), ""));
    let unit = [
        function("main", "s1_info", (0, 4), &pieces),
        function("main", "s2_info", (0x20, 0x24), &piece((0x24, 0x28), "")),
        function(
            "c1",
            "Ma_zdwwork_info",
            (0x30, 0x34),
            &piece((0x34, 0x38), ""),
        ),
    ]
    .concat();
    let code = format!(
        "\
.text
.globl before
before: nop
.p2align 4
.Lfirst: .fill 0x30, 1, 0x90
.globl Ma_zdwwork_info
Ma_zdwwork_info: .fill 0x10, 1, 0x90
.section .debug_info,\"\",@progbits
.long .Lend - .Lstart
.Lstart: .short 3
.long .debug_abbrev
.byte 8, 1
.string \"Ma.hs\"
.byte {language}
.quad .Lfirst, .Lfirst+0x40
{unit}.byte 0
.Lend:
.section .debug_abbrev,\"\",@progbits
.uleb128 1, 0x11, 1, 3, 8, 0x13, 0xb, 0x11, 1, 0x12, 1, 0, 0
.uleb128 2, 0x2e, 1, 3, 8, 0x2007, 8, 0x11, 1, 0x12, 1, 0, 0
.uleb128 3, 0xb, 1, 0x11, 1, 0x12, 1, 0, 0
.uleb128 0
.section .note.GNU-stack,\"\",@progbits
"
    );
    std::fs::write(dir.path("ghc.s"), code).unwrap();
    let name = format!("ghc{language}.so");
    let shared = "gcc -shared -nostdlib -Wl,--build-id=sha1";
    tool(dir, &format!("{shared} -o {name} ghc.s"));
    dir.path(&name)
}

#[test]
fn functions_of_ghc_without_symbols_are_those_that_it_describes() {
    let dir = TempDir::new("ghc");
    let program = ghc_program(&dir, 0x18);
    let start = offset_of(&program, "before") + 0x10;
    let function = |at: u64| {
        let (reader, frame) = sampled(&program, start + at, &[]);
        let line = reader.tables.lines(frame).last()?;
        let function = reader.tables.functions.get(line.function)?;
        let symbol = function.linkage_name.map(|id| reader.tables.string(id));
        let (name, symbol) = (reader.tables.string(function.name), symbol?);
        Some((name.to_owned(), symbol.to_owned(), function.start? - start))
    };
    let of = |name: &str, symbol: &str, at| Some((name.to_owned(), symbol.to_owned(), at));
    // Between its pieces, too.
    for at in [0, 3, 5, 0x9, 0x12, 0x15, 0x1f] {
        assert_eq!(function(at), of("Ma.main", "s1_info", 0), "{at:#x}");
    }
    for at in [0x20, 0x26] {
        assert_eq!(function(at), of("Ma.main", "s2_info", 0x20), "{at:#x}");
    }
    // What has a symbol is called by that.
    let name = |program: &Path, at| found(program, start + at, &[]).0;
    assert_eq!(name(&program, 0x36), "Ma_zdwwork_info");
    // Pieces of another language's functions are none.
    let program = ghc_program(&dir, 0xc);
    assert_eq!(name(&program, 5), "before");
}

/// Functions without symbols are not those that lie before or behind them.
#[test]
fn neighbours_without_names_are_functions_of_their_own() {
    let dir = TempDir::new("neighbours");
    // Of two bytes each, without and with a size; behind each one of two bytes without a symbol, and one of one byte.
    let function = |name: &str, code: &str, symbol: &str| {
        format!("{symbol}\n{name}: .cfi_startproc\n{code}\n.cfi_endproc\n")
    };
    let is_function = |name: &str| format!(".globl {name}\n.type {name},@function");
    let two = "nop\nret";
    let code = [
        function("without", two, &is_function("without")),
        function(".Ltwo", two, ""),
        function(".Lone", "ret", ""),
        function("with", two, &is_function("with")),
        ".size with, 2\n".to_owned(),
        function(".Lthree", two, ""),
        function("last", two, &is_function("last")),
        ".size last, 2\n.section .note.GNU-stack,\"\",@progbits\n".to_owned(),
    ];
    std::fs::write(dir.path("neighbours.s"), code.concat()).unwrap();
    tool(
        &dir,
        "gcc -nostartfiles -nostdlib -static -Wl,-e,without -Wl,--build-id=sha1 -o program neighbours.s",
    );
    let program = dir.path("program");
    let first = offset_of(&program, "without");
    let headers = elf::Elf::read(&std::fs::File::open(&program).unwrap()).unwrap();
    // What has no name is called by the address that `objdump` shows.
    let address = |offset| headers.address_of(offset).unwrap();
    assert_ne!(address(first), first);
    let expected = |at: u64, name: &str| match name {
        "" => format!("program+{:#x}", address(at)),
        name => name.to_owned(),
    };
    let names = [
        "without", "without", "", "", "", "with", "with", "", "", "last", "last",
    ];
    let starts = [0, 0, 2, 2, 4, 5, 5, 7, 7, 9, 9];
    let check = |how: &str| {
        for (place, (name, start)) in (0..).zip(names.into_iter().zip(starts)) {
            let (found, _) = found(&program, first + place, &[]);
            let expected = expected(first + start, name);
            assert!(
                found.starts_with(&expected),
                "{how}: +{place}: {found}, not {expected}"
            );
        }
    };
    check("a table");
    if pack_symbols(&dir, "program", "xz mini") {
        check("packed");
    }
}

#[test]
fn compressed_sections() {
    for kind in ["zlib", "zstd"] {
        let dir = TempDir::new(kind);
        let program = build(&dir, "program", &[]);
        let inner = offset_of(&program, "inner");
        tool(
            &dir,
            &format!("objcopy --compress-debug-sections={kind} program"),
        );
        assert_eq!(found(&program, inner, &[]), expected(), "{kind}");
    }
}

#[test]
fn common_parts_that_dwz_moved() {
    let dir = TempDir::new("dwz");
    let code = "\
struct big { int a, b, c, d, e, f, g, h; struct big *next; long values[12]; };
static inline int add(struct big *x) { return x->a + x->b + x->c + (int) x->values[3]; }
__attribute__((noinline)) int NAME(struct big *x) {
  return add(x) + x->d;
}
int main(int argc, char **argv) { struct big x = { argc }; return NAME(&x); }
";
    std::fs::write(dir.path("dwz.c"), code).unwrap();
    for name in ["one", "two"] {
        let line = format!("gcc -g -O1 -Wl,--build-id=sha1 -DNAME={name} -o {name} dwz.c");
        tool(&dir, &line);
    }
    if !tool(&dir, "dwz -m common -M common one two") {
        return;
    }
    let program = dir.path("one");
    let file = std::fs::File::open(&program).unwrap();
    let sections = elf::Elf::read(&file).unwrap().sections(&file).unwrap();
    let names: Vec<_> = sections
        .iter()
        .map(|section| section.name.as_str())
        .collect();
    assert!(names.contains(&".gnu_debugaltlink"), "{names:?}");
    let offset = offset_of(&program, "one");
    let (name, line) = found(&program, offset, &[]);
    assert_eq!(name, "one");
    assert!((2..=4).contains(&line), "{line}");
    // What was inlined has its name there, which the symbolizer does not look for: no function is without one.
    for offset in offset..offset + 12 {
        let (reader, frame) = sampled(&program, offset, &[]);
        for line in reader.tables.lines(frame) {
            let function = reader.tables.functions.get(line.function);
            let name = function.map(|function| reader.tables.string(function.name));
            assert_ne!(name, Some(""), "{offset:#x}");
        }
    }
    // Without that file there are still names.
    std::fs::remove_file(dir.path("common")).unwrap();
    assert_eq!(found(&program, offset, &[]), ("one".to_owned(), 0));
}

#[test]
fn split_debug_information() {
    // Debian's GNU dwp knows DWARF 4 only.
    for (version, packer) in [("4", "dwp -e"), ("5", "llvm-dwp -e")] {
        let dir = TempDir::new(&format!("split{version}"));
        // With the macros of a header, so that there is something to compress.
        let version_flag = format!("-gdwarf-{version}");
        let flags = ["-gsplit-dwarf", &version_flag, "-g3", "-include"];
        let program = build(&dir, "program", &[&flags[..], &["pthread.h"]].concat());
        let inner = offset_of(&program, "inner");
        // Symbols are in the program, whatever becomes of the rest.
        assert_eq!(found(&program, inner, &[]).0, "inner");
        if tool(&dir, &format!("{packer} program -o program.dwp")) {
            assert_eq!(found(&program, inner, &[]), expected(), "DWARF {version}");
            for format in ["zlib", "zstd"] {
                let compress = format!("objcopy --compress-debug-sections={format} program.dwp");
                assert!(tool(&dir, &compress));
                assert_eq!(found(&program, inner, &[]), expected(), "{format}");
            }
            std::fs::write(dir.path("program.dwp"), "damaged").unwrap();
            assert_eq!(found(&program, inner, &[]).0, "inner");
        }
    }
}

#[test]
fn inlined_functions_and_linkage_names() {
    let dir = TempDir::new("inlined");
    let code = "\
namespace deep {
__attribute__((always_inline)) inline int leaf(volatile int *x) {
  return *x * 3;
}
__attribute__((noinline)) int root(volatile int *x) {
  return leaf(x) + 1;
}
}
int main() { volatile int x = 1; return deep::root(&x); }
";
    std::fs::write(dir.path("program.cc"), code).unwrap();
    tool(&dir, "g++ -g -O2 -Wl,--build-id=sha1 -o program program.cc");
    let program = dir.path("program");
    let start_of = offset_of(&program, "_ZN4deep4rootEPVi");
    let id = pid(61);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    let places: Vec<u64> = (0..16).map(|offset| BASE + start_of + offset).collect();
    for (time, place) in (13..).zip(&places) {
        events.push(sample(time, id, "program", &[*place], &[]));
    }
    let reader = run(&mut resolver, events);
    let tables = &reader.tables;
    let mut inlined = 0;
    for sample in reader.samples() {
        let frame = tables.frames_of(sample.user).next().unwrap();
        let functions: Vec<_> = tables
            .lines(frame)
            .iter()
            .map(|line| tables.functions.get(line.function).unwrap())
            .collect();
        let names: Vec<_> = functions
            .iter()
            .map(|function| tables.string(function.name))
            .collect();
        match &functions[..] {
            [leaf, root] => {
                inlined += 1;
                assert_eq!(
                    names,
                    ["deep::leaf(int volatile*)", "deep::root(int volatile*)"]
                );
                assert_eq!((leaf.start, root.start), (None, Some(start_of)));
                assert_eq!((leaf.line, root.line), (2, 5));
                let linkage = root.linkage_name.map(|name| tables.string(name));
                assert_eq!(linkage, Some("_ZN4deep4rootEPVi"));
                assert_eq!(tables.lines(frame)[0].line, 3);
                assert_eq!(tables.lines(frame)[1].line, 6);
            }
            _ => assert!(names.len() <= 1, "{names:?}"),
        }
    }
    assert!(inlined > 0);
}

#[test]
fn inlined_lambdas_are_where_they_are_written() {
    let dir = TempDir::new("lambdas");
    let code = "\
__attribute__((noinline)) int root(volatile int *x) {
  auto once = [x](int by) {
    return *x * by;
  };
  auto twice = [x](int by) {
    return *x * *x * by;
  };
  return once(3) + twice(5);
}
int main() { volatile int x = 1; return root(&x); }
";
    std::fs::write(dir.path("program.cc"), code).unwrap();
    for compiler in ["g++", "clang++"] {
        let line = format!("{compiler} -g -O2 -Wl,--build-id=sha1 -o program program.cc");
        if !tool(&dir, &line) {
            continue;
        }
        let program = dir.path("program");
        let start = offset_of(&program, "_Z4rootPVi");
        let mut lines = std::collections::BTreeSet::new();
        for offset in 0..16 {
            let (reader, frame) = sampled(&program, start + offset, &[]);
            if let [lambda, _] = reader.tables.lines(frame) {
                let function = reader.tables.functions.get(lambda.function).unwrap();
                lines.insert((function.line, lambda.line));
            }
        }
        assert!(
            lines.contains(&(2, 3)) && lines.contains(&(5, 6)),
            "{compiler}: {lines:?}"
        );
    }
}

#[test]
fn functions_are_defined_where_their_names_stand() {
    let dir = TempDir::new("defined");
    // The first instruction of `inner` is of line 5.
    let code = "\
volatile int sink;
__attribute__((noinline, noclone))
int inner(int n)
{
  return n * sink;
}
int main(int argc, char **argv) { return inner(argc); }
";
    std::fs::write(dir.path("program.c"), code).unwrap();
    for compiler in [
        "gcc -g -O2",
        "gcc -g -O0",
        "gcc -g -O2 -gdwarf-4",
        "gcc -g -O2 -ffunction-sections",
        "gcc -g -O2 -flto",
        "gcc -g -O2 -gz=zlib",
        "clang -g -O2",
        "gcc -O2",
    ] {
        if !tool(&dir, &format!("{compiler} -o program program.c")) {
            continue;
        }
        let program = dir.path("program");
        let inner = offset_of(&program, "inner");
        let (reader, frame) = sampled(&program, inner, &[]);
        let line = reader.tables.lines(frame).last().unwrap();
        let function = reader.tables.functions.get(line.function).unwrap();
        let expected = if compiler.contains("-g") { 3 } else { 0 };
        assert_eq!(function.line, expected, "{compiler}");
    }
}

#[test]
fn parts_of_a_function_start_where_their_symbols_do() {
    let dir = TempDir::new("parts");
    let code = "\
extern void abort(void);
volatile int never;
__attribute__((noinline)) int busy(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum += i * never;
    if (__builtin_expect(never, 0)) { never = sum; abort(); }
  }
  return sum;
}
int main(void) { return busy(1000); }
";
    std::fs::write(dir.path("program.c"), code).unwrap();
    tool(&dir, "gcc -g -O2 -Wl,--build-id=sha1 -o program program.c");
    tool(
        &dir,
        "objcopy --strip-all --keep-section=.debug_* program bare",
    );
    let program = dir.path("program");
    let (hot, cold) = (
        offset_of(&program, "busy"),
        offset_of(&program, "busy.cold"),
    );
    let found = |file: &str| {
        let id = pid(62);
        let mut resolver = Resolver::new(options()).unwrap();
        let mut events = start(10, id, "program");
        events.push(map_file(12, id, BASE, 0x10000, &dir.path(file), 0));
        for (time, place) in (13..).zip([hot + 9, cold + 2]) {
            events.push(sample(time, id, "program", &[BASE + place], &[]));
        }
        let reader = run(&mut resolver, events);
        let tables = &reader.tables;
        let place = |sample: &Sample| {
            let frame = tables.frames_of(sample.user).next()?;
            let function = tables
                .functions
                .get(tables.lines(frame).first()?.function)?;
            let name = tables.string(function.name).to_owned();
            Some((name, function.start, function.size.is_some()))
        };
        reader.samples().map(place).collect::<Vec<_>>()
    };
    let busy = |start: Option<u64>| Some(("busy".to_owned(), start, start.is_some()));
    assert_eq!(found("program"), [busy(Some(hot)), busy(Some(cold))]);
    assert_eq!(found("bare"), [busy(None), busy(None)]);
}

#[test]
fn names_of_c_functions_are_not_taken_for_mangled_types() {
    let dir = TempDir::new("letters");
    // What the letters would stand for in mangled C++ names: `signed char`, `double`, `int`. `d` becomes a version
    // for its constant, `i` is inlined.
    let code = "volatile int n;
static inline __attribute__((always_inline)) int i(int x) { return x * n + n / 3; }
static __attribute__((noinline)) int d(int x, int y) { return i(x) + n * y; }
__attribute__((noinline)) int a(void) { return n; }
int main(int c, char **v) { return a() + d(c, 7) + d(n, 7); }
";
    std::fs::write(dir.path("program.c"), code).unwrap();
    for flags in ["", "-g "] {
        tool(
            &dir,
            &format!("gcc -O2 {flags}-Wl,--build-id=sha1 -o program program.c"),
        );
        let program = dir.path("program");
        let (name, _) = found(&program, offset_of(&program, "a"), &[]);
        assert_eq!(name, "a", "{flags}");
        let start = offset_of(&program, "d.constprop.0");
        let (reader, _) = sampled(&program, start, &[]);
        let functions = reader.tables.functions.iter().map(|(_, it)| it.name);
        let names: Vec<_> = functions.map(|name| reader.tables.string(name)).collect();
        let expected: &[&str] = match flags {
            "" => &["d.constprop.0"],
            _ => &["i", "d"],
        };
        assert_eq!(names, expected, "{flags}");
    }
}

#[test]
fn an_operator_is_of_its_lambda() {
    let dir = TempDir::new("lambda");
    let code = "
template <class F> __attribute__((noinline)) int run(F f, int x) { return f(x); }
int main(int c, char **) {
  volatile int n = c;
  auto work = [&](int x) __attribute__((noinline)) { return x * n; };
  return run(work, c);
}
";
    std::fs::write(dir.path("program.cc"), code).unwrap();
    for compiler in ["g++ -O2", "g++ -O2 -g", "clang++ -O2 -gmlt"] {
        if !tool(
            &dir,
            &format!("{compiler} -Wl,--build-id=sha1 -o program program.cc"),
        ) {
            continue;
        }
        let program = dir.path("program");
        let nm = Command::new("nm").arg(&program).output().unwrap();
        let nm = String::from_utf8(nm.stdout).unwrap();
        let names = nm.lines().filter_map(|line| line.rsplit(' ').next());
        let symbol = names.into_iter().find(|name| name.starts_with("_ZZ4main"));
        let symbol = symbol.unwrap_or_else(|| panic!("{compiler}: no lambda in {nm}"));
        let (name, _) = found(&program, offset_of(&program, symbol), &[]);
        assert!(name.starts_with("main::"), "{compiler}: {name}");
        assert!(
            name.contains("::operator()(int) const"),
            "{compiler}: {name}"
        );
    }
}

#[test]
fn the_vdso_has_names() {
    let mut resolver = Resolver::new(options()).unwrap();
    let own = proc_fs::mappings(Pid(std::process::id()));
    let mapping = own
        .iter()
        .find(|mapping| &*mapping.path == b"[vdso]")
        .unwrap();
    resolver.snapshot(Timestamp(1 << 60));
    let places = (0..mapping.len)
        .step_by(64)
        .map(|offset| mapping.start + offset);
    let id = std::process::id();
    let events = places
        .map(|place| sample((1 << 60) + 1, id, "me", &[place], &[]))
        .collect();
    let reader = run(&mut resolver, events);
    let names = reader.user_stacks().concat();
    assert!(
        names.iter().any(|name| name.contains("clock_gettime")),
        "{names:?}"
    );
}

#[test]
fn the_page_of_system_calls_has_names() {
    let own = proc_fs::mappings(Pid(std::process::id()));
    if !own.iter().any(|mapping| &*mapping.path == b"[vsyscall]") {
        crate::skip::skip("names in [vsyscall]", "programs have none here");
        return;
    }
    let (page, id) = (0xffff_ffff_ff60_0000, pid(60));
    let mut resolver = Resolver::new(options()).unwrap();
    // Nobody tells that it is mapped; the vDSO is mapped when a program begins.
    let none = FileIdentity::default();
    let mut events = start(10, id, "program");
    events.push(map(12, id, (0x7fff_0000_0000, 0x2000), "[vdso]", 0, none));
    for (place, caller) in [(0, 0x1000), (0x405, 0x2000), (0xfff, 0x3000)] {
        events.push(sample(13, id, "program", &[page + place, caller], &[]));
    }
    let reader = run(&mut resolver, events);
    let names = reader.user_stacks();
    let innermost: Vec<&str> = names.iter().map(|stack| &*stack[0]).collect();
    assert_eq!(innermost, ["gettimeofday", "time", "getcpu"]);
}

#[test]
fn run_time_code_has_the_names_of_its_perf_map() {
    let id = std::process::id();
    let path = format!("/tmp/perf-{id}.map");
    std::fs::write(&path, "5000 100 first\n").unwrap();
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.snapshot(Timestamp(1 << 60));
    let none = FileIdentity::default();
    let time = (1 << 60) + 1;
    let mut events = vec![
        map(time, id, (0x5000, 0x10000), "//anon", 0, none),
        sample(time + 1, id, "me", &[0x5010], &[]),
        // Not named yet.
        sample(time + 1, id, "me", &[0x6010], &[]),
        sample(time + 1, id, "me", &[0x7010], &[]),
    ];
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let started = Instant::now();
    while resolver.counters().frames_named == 0 && started.elapsed().as_secs() < 20 {
        resolver.poll_symbols(&mut out);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut map = std::fs::File::options().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut map, b"6000 100 second\n").unwrap();
    resolver.finish(Duration::from_secs(30), &mut |_| {}, &mut out);
    std::fs::remove_file(&path).unwrap();
    let mut reader = Reader::default();
    reader.read(out);
    let unnamed = format!("[jit {id}]+0x7010");
    assert_eq!(reader.user_stacks().concat(), ["first", "second", &unnamed]);
    assert_eq!(reader.reasons()[2], Some(UnknownReason::NoSymbol));
    assert!(started.elapsed().as_secs() < 10);
}

#[test]
fn run_time_code_that_is_announced_anew_has_its_name_of_the_time() {
    let mut process = Command::new("sleep").arg("60").spawn().unwrap();
    let id = process.id();
    let path = format!("/tmp/perf-{id}.map");
    std::fs::write(&path, "5000 100 first\n5100 100 same\n").unwrap();
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.snapshot(Timestamp(1 << 60));
    let none = FileIdentity::default();
    let mut time = (1 << 60) + 1;
    let mut out = Vec::new();
    let mapped = |time| map(time, id, (0x5000, 0x10000), "//anon", 0, none);
    let mut events = vec![mapped(time)];
    let mut map = std::fs::File::options().append(true).open(&path).unwrap();
    for (text, name) in [
        ("", "first"),
        ("5000 80 second\n", "second"),
        ("5000 80 second\n", "second"),
        ("5020 20 third\n", "third"),
    ] {
        std::io::Write::write_all(&mut map, text.as_bytes()).unwrap();
        let started = Instant::now();
        let is_told = |out: &Vec<Batch>| {
            let told = out.iter().flat_map(|batch| &batch.definitions);
            told.into_iter()
                .any(|it| matches!(it, Definition::String(_, text) if **text == *name))
        };
        // Samples come all the time, and what is said anew is seen a moment later.
        loop {
            time += 1;
            events.push(sample(time, id, "me", &[0x5030], &[]));
            events.push(sample(time, id, "me", &[0x5110], &[]));
            resolver.resolve(&mut events, &mut out);
            resolver.poll_symbols(&mut out);
            if is_told(&out) {
                break;
            }
            assert!(started.elapsed().as_secs() < 20, "{name}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Protection that changes, and /proc that is read again, give nothing of before.
        time += 1;
        events.push(mapped(time));
        events.push(sample(time + 1, id, "me", &[0x5030], &[]));
        events.push(sample(time + 1, id, "me", &[0x5110], &[]));
    }
    resolver.finish(Duration::from_secs(30), &mut |_| {}, &mut out);
    process.kill().unwrap();
    process.wait().unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut reader = Reader::default();
    reader.read(out);
    let names = reader.user_stacks().concat();
    let mut changes: Vec<&str> = names.iter().map(String::as_str).collect();
    changes.retain(|name| *name != "same");
    assert_eq!(names.len(), 2 * changes.len(), "{names:?}");
    changes.dedup();
    assert_eq!(changes, ["first", "second", "third"]);
    let same = reader.tables.functions.iter();
    let same = same.filter(|(_, function)| reader.tables.string(function.name) == "same");
    assert_eq!(same.count(), 1, "one function is one");
}

#[test]
fn names_for_a_capture_from_elsewhere() {
    let dir = TempDir::new("offline");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    std::fs::create_dir(dir.path("here")).unwrap();
    std::fs::copy(&program, dir.path("here/renamed")).unwrap();
    tool(&dir, "strip program");
    let mut resolver = Resolver::new(options()).unwrap();
    let id = pid(62);
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    events.push(sample(13, id, "program", &[BASE + inner], &[]));
    let reader = run(&mut resolver, events);
    // Bounds are in the file, names are not.
    let leaf = reader.samples().next().unwrap().user;
    let frame = reader.tables.frames_of(leaf).next().unwrap();
    let name = format!("program+{inner:#x} (function)");
    assert_eq!(reader.tables.frame_name(frame), name);
    assert!(!reader.tables.has_names(frame));
    let nowhere = symbolize_offline(&reader.tables, &OfflineOptions::default());
    assert_eq!(nowhere, []);
    let options = OfflineOptions {
        search: vec![dir.path("here")],
        inlines: true,
        ..OfflineOptions::default()
    };
    let names = symbolize_offline(&reader.tables, &options);
    assert_eq!(names.len(), 1);
    assert_eq!((&*names[0].1[0].name, names[0].1[0].line), ("inner", 1));
    assert_eq!(names[0].1[0].start, Some(inner));
    // A file that has nothing but debug information will do as well.
    tool(&dir, "objcopy --only-keep-debug here/renamed");
    let names = symbolize_offline(&reader.tables, &options);
    assert_eq!(
        (&*names[0].1[0].name, names[0].1[0].start),
        ("inner", Some(inner))
    );
    // Another build of it will not.
    build(&dir, "here/renamed", &["-O2"]);
    assert_eq!(symbolize_offline(&reader.tables, &options), []);
}

#[test]
fn a_large_file_takes_the_second_thread_and_a_full_queue_no_one_waits_for() {
    let dir = TempDir::new("large");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    let settings = Settings {
        large_bytes: 1,
        ..apart::settings()
    };
    let (file, stat) = files::open_trusted(&program).unwrap();
    let file = Arc::new(TargetFile::new(
        file,
        &stat,
        program.to_str().unwrap(),
        None,
        true,
    ));
    let module = mapping::tests::module("program");
    let mut symbolizer = Symbolizer::start(settings).unwrap();
    let request = |address| symbolize::Request {
        module: module.clone(),
        file: Some(file.clone()),
        addresses: vec![(address, false)],
    };
    let mut refused = 0;
    let mut asked = 0;
    for _ in 0..100_000 {
        match symbolizer.ask(request(inner)) {
            Ok(()) => asked += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
    let (mut lines, mut again) = (0, 0);
    while lines + again < asked {
        for reply in answers(&symbolizer, Duration::from_secs(30)) {
            match reply.answer {
                Answer::Lines(functions) => {
                    assert_eq!((&*functions[0].0.name, functions[0].1), ("inner", 1));
                    lines += 1;
                }
                Answer::NotYet => again += 1,
                Answer::Unknown(reason) => panic!("{reason:?}"),
            }
        }
    }
    assert!(lines > 0);
}

/// Answers of a symbolizer, which are waited for so long.
fn answers(symbolizer: &symbolize::Symbolizer, timeout: Duration) -> Vec<symbolize::Reply> {
    match symbolizer.wait(timeout) {
        Some(symbolize::Told::Names(replies)) => replies,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_takes_too_long_is_given_up() {
    let dir = TempDir::new("slow");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    let (file, stat) = files::open_trusted(&program).unwrap();
    let file = TargetFile::new(file, &stat, program.to_str().unwrap(), None, true);
    let file = Arc::new(file);
    let answer = |patience| {
        let settings = Settings {
            patience,
            ..apart::settings()
        };
        let mut symbolizer = Symbolizer::start(settings).unwrap();
        let request = symbolize::Request {
            module: mapping::tests::module("module"),
            file: Some(file.clone()),
            addresses: vec![(inner, false)],
        };
        symbolizer.ask(request).unwrap();
        let mut replies = answers(&symbolizer, Duration::from_secs(60));
        assert_eq!(replies.len(), 1);
        replies.remove(0).answer
    };
    let gave_up = Answer::Unknown(UnknownReason::GaveUp);
    assert_eq!(answer(Duration::ZERO), gave_up);
    assert!(matches!(answer(Duration::from_secs(60)), Answer::Lines(_)));
}
