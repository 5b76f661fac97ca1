//! What fuzzers begin with: inputs that the decoders accept, made anew each time.
//!
//! Input: a target's name; output: byte strings in that target's form (see the functions of
//! [`super`]). They are few and small: a fuzzer is faster with small inputs, and finds its own way
//! from there.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use profiler_capture::{CreateOptions, Existing, Writer};
use profiler_model::raw::{CgroupVerdict, Comm, RawBody, RawCgroup, RawEvent, RawSample, RawStack};
use profiler_model::{Batch, Cpu, Pid, StackEnd, Tid, Timestamp};

use profiler_common::call::{
    CALL_HAS_CALLER, EDGE_ENTER, EDGE_EXIT, EDGE_HIT, EDGE_JUMP, EDGE_LAND, EDGE_THROW, EDGE_WHOLE,
    ITEM_OK,
};

use super::bytefrog::seeds as bytefrog;
use super::decode::{encoded, encoded_cgroup};
use super::http::seeds as http;
use super::links;
use super::rdp::seeds as rdp;
use super::signature::SECTIONS;
use super::tcf::seeds as tcf;
use super::{answers, unframed, unwind};
use crate::announced::announced;
use crate::arbitrary::{Random, recording};
use crate::canonical;

/// Code with a line table, an inlined function and a call.
const SOURCE: &str =
    "static inline __attribute__((always_inline)) int twice(int x) { return 2 * x; }
int leaf(int x) { return twice(x) + 1; }
int root(int x) { return leaf(x) * twice(leaf(x + 3)); }
";

/// A switch with a table of jumps, a part that is seldom run, and parameters of several types.
const SWITCH: &str = "struct pair { int a; unsigned char b; };
enum colour { RED, GREEN = 7 };
typedef const char *text;
typedef int row[3];
__attribute__((cold, noinline)) void complain(text why, long long n) {
    (void)why; (void)n; __builtin_trap();
}
int choose(enum colour colour, struct pair pair, text name, double x, _Bool yes) {
    if (__builtin_expect(!name, 0)) complain(name, colour);
    switch ((int)colour) {
    case 0: return pair.a * 3; case 1: return name[0]; case 2: return pair.b; case 3: return yes;
    case 4: return 17; case 5: return (int)x; case 6: return name[1] ^ 5; case 7: return -1;
    default: return 0;
    }
}
struct wide { long words[5]; union { int i; float f; } either; row *rows; struct wide *next; };
struct wide widen(struct wide *from, int (*how)(int, ...), unsigned long long n, short s, char c) {
    struct wide wide = *from;
    wide.words[n % 5] = how(s, c);
    return wide;
}
";

/// Classes, references, a string by its shape, templates.
const SHAPES: &str = "namespace std { inline namespace __cxx11 {
template <class C> struct basic_string {
    struct hider { C *p; } data; unsigned long length; union { C local[16]; unsigned long more; };
};
using string = basic_string<char>;
} }
namespace lib {
enum class Kind : unsigned char { Round, Square };
struct Point { float x, y; };
struct Shape {
    Kind kind; const std::string *name;
    explicit Shape(int n); virtual double area(const Point &at, std::string by) const;
    bool is(Kind k) { return kind == k; }
};
Shape::Shape(int n) : kind(n ? Kind::Round : Kind::Square), name(nullptr) {}
double Shape::area(const Point &at, std::string by) const { return at.x * double(by.length); }
template <class T, int N> T sum(const T (&all)[N]) { T s = 0; for (T t : all) s += t; return s; }
template long sum<long, 4>(const long (&)[4]);
bool any(Shape &&shape, Kind k) { return shape.is(k); }
}
";

/// Writes the seeds of a target into a folder.
pub fn write_seeds(target: &str, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (index, seed) in seeds(target)?.into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{index}")), seed)?;
    }
    Ok(())
}

/// Inputs of a target that are right.
pub fn seeds(target: &str) -> io::Result<Vec<Vec<u8>>> {
    match target {
        "capture" => captures(),
        "records" => Ok(records()),
        "side_band" => Ok(side_bands()),
        "elf" => elf_files(),
        "links" => linked_files(),
        "containers" => Ok(containers()),
        "calls" => Ok(calls()),
        "object" => objects(),
        "signature" => signatures(),
        "bytefrog_agent" => Ok(bytefrog::agent()),
        "bytefrog_hq" => Ok(bytefrog::hq()),
        "import" => Ok(super::import::seeds()),
        "http" => Ok(http::requests()),
        "rdp" => Ok(rdp::requests()),
        "tcf" => Ok(tcf::commands()),
        "tcf_frames" => Ok(tcf::frames()),
        "answers" => Ok(answers::seeds()),
        "unwind" => Ok(unwind::seeds()),
        _ => Err(io::Error::other(format!("no fuzz target '{target}'"))),
    }
}

fn captures() -> io::Result<Vec<Vec<u8>>> {
    let mut recordings: Vec<_> = (0..6).map(|seed| recording(seed, 2, 8)).collect();
    recordings.push(canonical_batches());
    let mut seeds = Vec::new();
    for batches in recordings {
        let file = capture_file(&batches)?;
        seeds.push(unframed(&file));
        seeds.push([&[1], file.as_slice()].concat());
    }
    Ok(seeds)
}

/// The capture file of a recording.
pub fn capture_file(batches: &[Batch]) -> io::Result<Vec<u8>> {
    let path = std::env::temp_dir().join(format!(
        "fuzz-seed-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let options = CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).map_err(io::Error::other)?;
    for batch in batches {
        writer.write(batch).map_err(io::Error::other)?;
    }
    writer.finish().map_err(io::Error::other)?;
    let bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    Ok(bytes)
}

/// The canonical session in containers, in one epoch.
pub(super) fn canonical_batches() -> Vec<Batch> {
    vec![announced(canonical::session_in_containers())]
}

fn records() -> Vec<Vec<u8>> {
    let mut random = Random(1);
    let mut seeds = Vec::new();
    let mut row = vec![0];
    for frames in [0, 1, 7, 127] {
        let mut stack = |end| RawStack {
            bytes: (0..frames)
                .flat_map(|_| random.any().to_ne_bytes())
                .collect::<Vec<u8>>()
                .into(),
            end,
        };
        let sample = RawSample {
            undecided: frames == 7,
            comm: Comm::from_bytes(b"worker"),
            cgroup: 77,
            weight: 10_101_010,
            source: 2,
            kernel: stack(StackEnd::Complete),
            user: if frames == 1 {
                RawStack {
                    bytes: Bytes::new(),
                    end: StackEnd::NoStack,
                }
            } else {
                stack(StackEnd::Truncated)
            },
            ..RawSample::new(Pid(10), Tid(11))
        };
        let event = RawEvent {
            at: Timestamp(1_000),
            cpu: Cpu(3),
            body: RawBody::Sample(Box::new(sample.clone())),
        };
        let record = encoded(&event, &sample);
        row.extend((record.len() as u16).to_le_bytes());
        row.extend(&record);
        seeds.push([&[1], record.as_slice()].concat());
    }
    seeds.push(row);
    for (path, removed, verdict) in [
        ("/web/1f2e", false, CgroupVerdict::Wanted),
        ("/12345678", false, CgroupVerdict::Undecided),
        ("/web/1f2e", true, CgroupVerdict::Inherited),
    ] {
        let cgroup = RawCgroup {
            id: 77,
            path: path.into(),
            removed,
            verdict,
        };
        let event = RawEvent {
            at: Timestamp(1_000),
            cpu: Cpu(3),
            body: RawBody::Cgroup(Box::new(cgroup.clone())),
        };
        seeds.push([&[1], encoded_cgroup(&event, &cgroup).as_slice()].concat());
    }
    seeds
}

fn side_bands() -> Vec<Vec<u8>> {
    let ids = [20u32, 10, 20, 11];
    let ids = ids.map(u32::to_ne_bytes).concat();
    let fork = [ids.as_slice(), &5u64.to_ne_bytes()].concat();
    let comm = [&ids[..8], b"worker\0\0"].concat();
    let lost = [7u64, 3].map(u64::to_ne_bytes).concat();
    let mut mmap = ids[..8].to_vec();
    mmap.extend([0x5000u64, 0x2000, 0x1000].map(u64::to_ne_bytes).concat());
    let mut by_id = mmap.clone();
    by_id.extend([20, 0, 0, 0]);
    by_id.extend([0xab; 20]);
    mmap.extend([8u32, 1].map(u32::to_ne_bytes).concat());
    mmap.extend([99u64, 1].map(u64::to_ne_bytes).concat());
    for body in [&mut mmap, &mut by_id] {
        body.extend([5u32, 2].map(u32::to_ne_bytes).concat());
        body.extend(b"/usr/bin/worker\0");
    }
    let kinds: [(u32, u16, Vec<u8>); 8] = [
        (7, 0, fork.clone()),
        (3, 1 << 13, comm.clone()),
        (3, 0, comm),
        (10, 0, mmap),
        (10, 1 << 14, by_id),
        (2, 0, lost.clone()),
        (4, 0, fork),
        (11, 0, lost),
    ];
    let each: Vec<Vec<u8>> = (1u64..)
        .zip(kinds)
        .map(|(at, (kind, misc, body))| {
            let mut record = kind.to_ne_bytes().to_vec();
            record.extend(misc.to_ne_bytes());
            record.extend((body.len() as u16 + 16).to_ne_bytes());
            record.extend(body);
            record.extend(at.to_ne_bytes());
            record
        })
        .collect();
    let all = [&[4], each.concat().as_slice()].concat();
    let single = each
        .into_iter()
        .map(|record| [&[4], record.as_slice()].concat());
    single.chain([all]).collect()
}

/// Shared objects from the C compiler: with debug information, plain and packed, and without.
fn elf_files() -> io::Result<Vec<Vec<u8>>> {
    let flags: &[&[&str]] = &[
        &["-g"],
        &["-g", "-gz=zlib", "-gdwarf-4"],
        &["-g", "-fdebug-types-section", "-m32"],
        &["-s"],
    ];
    let files = built("c", SOURCE, flags)?;
    // An address in the code of `leaf`, where the linker puts it.
    let seed = |file: &Vec<u8>| [&0x1000u16.to_le_bytes(), file.as_slice()].concat();
    Ok(files.iter().map(seed).collect())
}

/// Object files with links, and the debug files that these lead to; see `fuzzing::links`.
fn linked_files() -> io::Result<Vec<Vec<u8>>> {
    let whole = built("c", SOURCE, &[&["-g"], &["-g", "-gz=zlib"]])?;
    let mut seeds = Vec::new();
    for file in whole {
        let mut stripped = linked(&file)?;
        stripped.resize(stripped.len().next_multiple_of(16), 0);
        let length = u16::try_from(stripped.len() / 16).map_err(io::Error::other)?;
        seeds.push([&length.to_le_bytes()[..], &stripped, &file].concat());
    }
    Ok(seeds)
}

/// A file without what another one of the name in the links has.
fn linked(file: &[u8]) -> io::Result<Vec<u8>> {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let folder = std::env::temp_dir().join(format!("fuzz-linked-{process}-{thread:?}"));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(links::LINKED), file)?;
    let mut command = Command::new("objcopy");
    command.args([
        "--strip-all",
        "--add-gnu-debuglink=d.debug",
        links::LINKED,
        "main",
    ]);
    let status = command.current_dir(&folder).status()?;
    let stripped = std::fs::read(folder.join("main"));
    std::fs::remove_dir_all(&folder)?;
    match status.success() {
        true => stripped,
        false => Err(io::Error::other("objcopy has failed")),
    }
}

/// Mounts, paths and files as in tests of what reads them; see `fuzzing::containers`.
fn containers() -> Vec<Vec<u8>> {
    let of = |kind: u8, text: &str| [&[kind][..], text.as_bytes()].concat();
    let id = "0123456789abcdef".repeat(4);
    vec![
        of(
            0,
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n\
             36 25 0:31 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\0\
             0::/user.slice\n4:memory:/docker/x\n\0#subsys_name\thierarchy\nmemory\t4\t1\t1\n",
        ),
        of(1, &format!("/system.slice/docker-{id}.scope")),
        of(
            1,
            &format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
        ),
        of(1, "/lxc.payload.web/system.slice/nginx.service"),
        of(
            6,
            &format!("{{\"ID\":\"{id}\",\"Name\":\"/web\",\"Config\":{{\"Image\":\"nginx\"}}}}"),
        ),
        of(
            7,
            &format!("[{{\"id\":\"{id}\",\"names\":[\"web\"],\"metadata\":\"{{}}\"}}]"),
        ),
        of(
            8,
            "{\"annotations\":{\"io.kubernetes.cri.container-name\":\"web\"}}",
        ),
        of(
            9,
            &format!("{{\"id\":\"{id}\",\"cgroup_paths\":{{\"\":\"/sys/fs/cgroup/somewhere\"}}}}"),
        ),
        of(10, "{\"data-root\":\"/srv/docker\"}"),
    ]
}

/// Shared objects of a text, one for each row of flags that the compiler takes.
fn built(language: &str, text: &str, flags: &[&[&str]]) -> io::Result<Vec<Vec<u8>>> {
    // Tests make seeds side by side.
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let stem = std::env::temp_dir().join(format!("fuzz-seed-{process}-{thread:?}"));
    let (source, object) = (stem.with_extension(language), stem.with_extension("so"));
    std::fs::write(&source, text)?;
    let mut files = Vec::new();
    for flags in flags {
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-nostdlib", "-fno-ident"])
            .args(["-Wl,--build-id=sha1", "-Wl,-z,noseparate-code"])
            .arg("-Wl,-Bsymbolic")
            .args(*flags)
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .stderr(std::process::Stdio::null())
            .status()?;
        if !built.success() {
            // Not every compiler has every option; the first is one that all have.
            continue;
        }
        files.push(std::fs::read(&object)?);
        std::fs::remove_file(&object)?;
    }
    std::fs::remove_file(&source)?;
    if files.is_empty() {
        return Err(io::Error::other("cc can't build a shared object"));
    }
    Ok(files)
}

/// Nested calls, an exception, a longjmp, goroutines, whole calls; and records as they are.
fn calls() -> Vec<Vec<u8>> {
    const ENTER: u8 = EDGE_ENTER as u8;
    const EXIT: u8 = EDGE_EXIT as u8;
    const HIT: u8 = EDGE_HIT as u8;
    const THROW: u8 = EDGE_THROW as u8;
    const LAND: u8 = EDGE_LAND as u8;
    const JUMP: u8 = EDGE_JUMP as u8;
    const WHOLE: u8 = EDGE_WHOLE as u8;
    const CALLER: u8 = (CALL_HAS_CALLER as u8) << 4;
    // A thread's own stack, and a goroutine.
    const OWN: u8 = 0x40;
    const GO: u8 = 0x44;
    // Edge and flags, probe, who, place, time, caller, items, what of them.
    let steps: [&[[u8; 8]]; 7] = [
        &[
            [ENTER, 0, OWN, 100, 9, 0, 0, 0],
            [ENTER, 1, OWN, 90, 9, 0, 0, 0],
            [HIT, 4, OWN, 85, 9, 0, 0, 0],
            [EXIT, 1, OWN, 90, 9, 0, 0, 0],
            [EXIT, 0, OWN, 100, 9, 0, 0, 0],
        ],
        &[
            [ENTER, 0, OWN, 100, 9, 0, 0, 0],
            [ENTER, 2, OWN, 90, 9, 0, 0, 0],
            [THROW | CALLER, 5, OWN, 80, 9, 7, 0, 0],
            [LAND, 8, OWN, 85, 9, 0, 0, 0],
            [THROW | CALLER, 6, OWN, 80, 9, 7, 0, 0],
            [LAND, 7, OWN, 98, 9, 0, 0, 0],
            [EXIT, 0, OWN, 100, 9, 0, 0, 0],
        ],
        &[
            [ENTER, 0, OWN, 100, 9, 0, 0, 0],
            [ENTER | CALLER, 1, OWN, 90, 9, 8, 0, 0],
            [ENTER | CALLER, 3, OWN, 90, 9, 0, 0, 0],
            [JUMP, 9, OWN, 80, 9, 0, 0, 0],
            [EXIT, 0, OWN, 100, 9, 0, 0, 0],
        ],
        &[
            [ENTER, 0, GO, 20, 9, 0, 0, 0],
            [ENTER, 0, GO + 1, 30, 9, 0, 0, 0],
            [EXIT, 0, GO + 1, 20, 9, 0, 0, 0],
            [ENTER, 0, OWN, 200, 9, 0, 0, 0],
            [ENTER, 2, OWN, 150, 9, 0, 0, 0],
            [EXIT, 0, OWN, 200, 9, 0, 0, 0],
        ],
        &[
            [WHOLE, 0, OWN, 90, 9, 0, 0, 5],
            [WHOLE | CALLER, 1, OWN, 90, 9, 8, 0, 1],
            [WHOLE, 2, OWN, 100, 9, 0, 0, 4],
        ],
        // The end of a thread, an exec, a loss.
        &[
            [ENTER, 0, OWN, 100, 9, 0, 0, 0],
            [ENTER, 0, OWN + 1, 100, 9, 0, 0, 0],
            [0, 0, 1, 0, 9, 0, 0, 0],
            [0, 0, 0x20, 0, 9, 0, 0, 1],
            [0, 0, 0x20, 0, 9, 0, 0, 0],
        ],
        &[
            [ENTER, 2, OWN, 100, 9, 0, 16, 2],
            [7, 7, 7, 7, 7, 7, 7, 7],
            [1, 2, 3, 4, 5, 6, 7, 8],
            [EXIT, 2, OWN, 100, 9, 0, 8, 1],
            [1, 0, 0, 0, 0, 0, 0, 0],
        ],
    ];
    let mut seeds: Vec<_> = steps
        .iter()
        .map(|steps| [&[0], steps.concat().as_slice()].concat())
        .collect();
    let mut record = Vec::new();
    record.extend([1_000_u64, 0x7fff_0000_1000].map(u64::to_ne_bytes).concat());
    let what = 3 | EDGE_WHOLE << 24 | CALL_HAS_CALLER << 28;
    record.extend([10, 11, what, 0].map(u32::to_ne_bytes).concat());
    for word in [900_u64, 0x40_1000, 5] {
        record.extend(u64::from(ITEM_OK as u32 | 8 << 16).to_ne_bytes());
        record.extend(word.to_ne_bytes());
    }
    seeds.push([&[1, record.len() as u8], record.as_slice()].concat());
    seeds
}

/// Functions of all kinds, with debug information and without, and in C++.
fn objects() -> io::Result<Vec<Vec<u8>>> {
    let kinds = concat!(
        include_str!("../../workloads/trace_kinds.h"),
        "\n__asm__(\".pushsection .note.stapsdt,\\\"\\\",\\\"note\\\"\\n\"\n",
        "\".balign 4\\n.4byte 8,2f-1f,3\\n.asciz \\\"stapsdt\\\"\\n\"\n",
        "\"1: .8byte kind_nop5,0,0\\n.asciz \\\"shop\\\"\\n.asciz \\\"sold\\\"\\n\"\n",
        "\".asciz \\\"-4@%edi 8@16(%rsp)\\\"\\n2: .balign 4\\n.popsection\\n\");\n",
    );
    let mut seeds = built("c", kinds, &[&[], &["-s"]])?;
    seeds.extend(built(
        "c",
        SWITCH,
        &[&["-g"], &["-O2", "-fcf-protection", "-s"]],
    )?);
    // Its compiler may be missing.
    seeds.extend(built("cc", SHAPES, &[&["-g", "-gz=zlib"], &["-O2"]]).unwrap_or_default());
    Ok(seeds)
}

/// The debug information of small libraries in C and C++, in several versions and forms.
fn signatures() -> io::Result<Vec<Vec<u8>>> {
    let flags: &[&[&str]] = &[
        &["-g", "-gdwarf-5"],
        &["-O0", "-g", "-gdwarf-4"],
        &["-g", "-fdebug-types-section"],
    ];
    let mut files = built("c", SWITCH, flags)?;
    files.extend(built("cc", SHAPES, flags).unwrap_or_default());
    files.iter().map(|file| sections(file)).collect()
}

/// The debug information of a file, in the form of [`super::signature`].
fn sections(file: &[u8]) -> io::Result<Vec<u8>> {
    let file = object::File::parse(file).map_err(io::Error::other)?;
    let functions = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() > 0);
    let addresses: Vec<_> = functions.map(|symbol| symbol.address() as u32).collect();
    let mut seed = vec![addresses.len() as u8];
    seed.extend(addresses.into_iter().flat_map(u32::to_le_bytes));
    let items = [
        &[ITEM_OK as u8, 0, 8, 0, 0, 0, 0, 0],
        b"contents".as_slice(),
    ]
    .concat();
    let items = (SECTIONS.len(), Cow::Owned(items.repeat(8)));
    let found = SECTIONS.iter().enumerate().filter_map(|(number, name)| {
        let section = file.section_by_name(name)?;
        Some((number, Cow::Borrowed(section.data().ok()?)))
    });
    for (number, contents) in found.chain([items]) {
        seed.push(number as u8);
        seed.extend(&(contents.len() as u32).to_le_bytes()[..3]);
        seed.extend(&*contents);
    }
    Ok(seed)
}
