//! What is said of a file in another process is what is found in it here; and what no file says.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::pipeline::tracer::TraceRequest;
use profiler_resolve::objects::Finder;

fn asked(patterns: &[&str], arguments: Option<usize>, filter: Option<PathFilter>) -> Asked {
    Asked {
        request: TraceRequest {
            selection: Selection {
                include: patterns.iter().map(|text| text.parse().unwrap()).collect(),
                ..Selection::default()
            },
            filter,
            at: ProbeAt::Cheapest,
            returns: Returns::Auto,
            arguments,
            budget: None,
            min_duration: Duration::ZERO,
            max_depth: 0,
            max_rate: 0,
            follow_exact: false,
            yes: false,
        },
        costs: CostTable::assumed(),
        shared: false,
    }
}

/// A file as its owner's, or as one that only root can change.
fn target(path: &Path, owner: Option<u32>) -> TargetObject {
    let mut target = Finder::new(Vec::new()).object_at(path, None).unwrap();
    target.is_main = true;
    target.owner = owner;
    target
}

/// All that is planned of a file, as text; and what could not be read.
fn planned(reader: &mut Reader, asked: &Asked, target: &TargetObject) -> Result<String, String> {
    let before = ProcessSafety::of([], false);
    let mut contents = reader.read(asked, target, true, &before, &|| false)?;
    let all_out = contents.sift(target, asked.request.filter.as_ref());
    let safety = contents.judged.safety.clone();
    let planned = reader.plan(asked, target, &contents, &safety, &|| false)?;
    let functions = planned.plans.iter();
    let functions = functions.map(|(plan, _)| plan.function.clone()).collect();
    let unsafe_now = ProcessSafety::unknown();
    let exits = reader.exits(asked, target, functions, &unsafe_now)?;
    let Contents {
        judged,
        choice,
        seen,
        ..
    } = contents;
    Ok(format!(
        "{all_out} {judged:?} {choice:?} {seen:?} {planned:#?} {exits:?}"
    ))
}

/// Arguments of all kinds, values in values, a table of jumps, what is only inlined.
const PROGRAM: &str = r#"
#include <complex.h>
#include <stdint.h>
enum color { red, green = 7 };
struct inner { char letters[3][5]; enum color color; unsigned bits : 3, more : 9; };
struct middle { struct inner all[2]; union { float f; int i; } either; struct middle *next; };
struct outer { struct middle first; struct inner second; const char *text; };
__attribute__((noinline)) int by_value(struct outer value, enum color color) { return value.second.color + color; }
__attribute__((noinline)) struct inner gives(struct middle *from, const char *text, int64_t n) {
    struct inner one = from->all[n & 1];
    one.letters[0][0] = text[0];
    return one;
}
__attribute__((noinline)) double complex floats(float a, double b, long double c, _Bool d) { return a + b * I + c + d; }
static inline __attribute__((always_inline)) int inlined(int a) { return a * 3; }
__attribute__((noinline)) int jumps(int a) {
    switch (a) {
    case 0: return 5; case 1: return inlined(a); case 2: return 9; case 3: return a << 2;
    case 4: return 55; case 5: return a * a; case 6: return 91; case 7: return a ^ 99;
    }
    return jumps(a - 7) + 1;
}
int main(int argc, char **argv) {
    struct outer o = {0};
    return by_value(o, red) + gives(&o.first, argv[0], argc).color + (int)creal(floats(1, 2, 3, 1)) + jumps(argc);
}
"#;

fn built(folder: &Path, options: &[&str]) -> Option<std::path::PathBuf> {
    let (source, program) = (folder.join("p.c"), folder.join("p"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(options).arg("-o").args([&program, &source]);
    match compiler.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return None,
    }
    Some(program)
}

#[test]
fn what_is_said_of_a_file_is_what_is_in_it() {
    let folder = std::env::temp_dir().join(format!("profiler-apart-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let filter = || {
        let admits = |path: &str| path.contains("mem") || path.contains("jumps");
        Some(PathFilter(Arc::new(admits)))
    };
    let mut files = vec![libc.to_owned()];
    files.extend(built(&folder, &["-g", "-O2"]));
    let mut reader = Reader::new();
    for path in &files {
        if !path.exists() {
            continue;
        }
        for (patterns, arguments, filter) in [
            (
                &["m*", "*y_*", "str*", "usdt:*:*", "no_such"][..],
                Some(16),
                None,
            ),
            (&["*"], Some(64), filter()),
            (&["inlined"], None, None),
        ] {
            let asked = asked(patterns, arguments, filter);
            let here = planned(&mut reader, &asked, &target(path, None)).unwrap();
            let apart = planned(&mut reader, &asked, &target(path, Some(1))).unwrap();
            if here != apart {
                let line = here.lines().zip(apart.lines()).find(|(a, b)| a != b);
                panic!("{}: {line:?}", path.display());
            }
        }
    }
    let all = asked(&["main:*"], Some(16), None);
    if let [_, program] = &files[..] {
        let apart = planned(&mut reader, &all, &target(program, Some(1))).unwrap();
        for what in ["letters", "green", "by_value", "line: 10"] {
            assert!(apart.contains(what), "no {what}: {apart}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn damage_is_refused_or_read_alike() {
    let folder = std::env::temp_dir().join(format!("profiler-contents-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("damaged");
    let whole = std::fs::read("/bin/true").unwrap();
    let asked = asked(&["*"], Some(16), None);
    let mut reader = Reader::new();
    // Every part of the headers, and of what they lead to here and there.
    let places = (0..64).chain((64..whole.len()).step_by(997));
    for at in places {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        let mut file = File::create(&path).unwrap();
        file.write_all(&bytes).unwrap();
        let Ok(mut found) = Finder::new(Vec::new()).object_at(&path, None) else {
            continue;
        };
        found.owner = None;
        let here = planned(&mut reader, &asked, &found);
        found.owner = Some(1);
        assert_eq!(here, planned(&mut reader, &asked, &found), "byte {at}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn who_may_change_a_file_is_its_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = std::env::temp_dir().join(format!("profiler-owner-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("program");
    std::fs::copy("/bin/true", &path).unwrap();
    let owner = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Finder::new(Vec::new())
            .object_at(&path, None)
            .unwrap()
            .owner
    };
    let me = std::fs::metadata(&path).unwrap().uid();
    assert_eq!(owner(0o755), None);
    assert_eq!(owner(0o777), Some(me));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn nonsense_is_no_answer() {
    let mut answering = answering();
    let exe = || vec![File::open("/proc/self/exe").unwrap().into()];
    assert!(answering(b"", exe()).is_none());
    assert!(answering(b"[1, 2]", exe()).is_none());
    let wanted = Wanted::of(
        &asked(&["*"], None, None),
        &target(Path::new("/bin/true"), None),
    );
    let question = Question::Choose(ProcessSafety::unknown());
    let question = serde_json::to_vec(&(wanted, question)).unwrap();
    assert!(answering(&question, Vec::new()).is_none());
    assert!(answering(&question, exe()).is_some());
}
