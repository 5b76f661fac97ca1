//! Call tracing of programs in other languages, record by record: what C++ and Rust throw, where Go's
//! stacks are, counters of markers.
//!
//! Each program says itself what it has done. What the profiler makes of such records is tested end
//! to end (`e2e_trace_harm`). Needs root and the languages' compilers; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::Duration;

use profiler_common::call::{
    EDGE_ENTER, EDGE_EXIT, EDGE_HIT, EDGE_THROW, PROBE_CXX, PROBE_GO, ProbeControl,
};
use profiler_model::Pid;
use profiler_model::raw::{RawBody, RawCall, RawEdge, RawEvent};
use profiler_object::Object;
use profiler_probe::{CallLink, CallOptions, CallSite, CallTarget, Probe, ProbeOptions};
use profiler_target::Filter;
use profiler_tests::process::{Ended, Running};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, met, prepared};
use profiler_trace::cost::CostTable;
use profiler_trace::place::{PlaceOptions, Placer, ProbeAt, Returns};
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{Exits, FunctionKind, Plan};

/// A program that waits to be let on, and what traces it.
struct Traced {
    setting: Setting,
    program: Running,
    input: ChildStdin,
    probe: Box<Probe>,
}

/// Starts the program built of a source; none, and said so, if there can't be one.
fn start(test: &str, source: &str, rounds: &str, fetches: bool) -> Option<Traced> {
    let (setting, path) = prepared(test, source, Build::Optimised).unwrap()?;
    let mut command = Command::new(path);
    let mut program = setting
        .start("program", command.args([rounds, "--wait"]))
        .unwrap();
    let input = program.stdin().unwrap();
    program
        .wait_until("its start", LIMIT, |program| met(program, "start", 1))
        .unwrap();
    let options = ProbeOptions {
        hierarchy: None,
        sources: Vec::new(),
        calls: Some(CallOptions {
            max_probes: 4,
            buffer_bytes: 16 << 20,
            fetches,
            callers: false,
            per_process: true,
            min_duration_ns: 0,
            max_depth: 0,
            max_rate: 0,
        }),
        filter: Filter::default(),
        buffer_bytes: 1 << 20,
        kernel_stacks: false,
        user_stacks: false,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
    };
    Some(Traced {
        setting,
        program,
        input,
        probe: Probe::attach(options).unwrap(),
    })
}

impl Traced {
    fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// A file that the program maps, by the end of its path's first part.
    fn mapped(&self, name: &str) -> PathBuf {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let paths = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        let named = |path: &&str| {
            let file = Path::new(path).file_name().unwrap_or_default();
            file.to_string_lossy().starts_with(name)
        };
        let mut paths = paths.filter(named);
        PathBuf::from(paths.next().expect("the program maps it"))
    }

    fn attach(&mut self, file: &Path, probe: u32, flags: u8, sites: &[CallSite]) -> CallLink {
        let control = ProbeControl {
            generation: 1,
            flags,
            ..ProbeControl::default()
        };
        self.probe.set_probe(probe, control, &[]).unwrap();
        let target = CallTarget::Process(Pid(self.pid()));
        let file = File::open(file).unwrap();
        let (link, refused) = self
            .probe
            .attach_calls(target, file.as_fd(), sites)
            .unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        link
    }

    /// Lets the program run to its end: what it says, and the calls by time.
    fn run(mut self) -> (serde_json::Value, Vec<RawCall>) {
        self.input.write_all(b"go\n").unwrap();
        let mut events: Vec<RawEvent> = Vec::new();
        while !self.program.has_ended().unwrap() {
            self.probe.drain(&mut events);
            std::thread::sleep(Duration::from_millis(2));
        }
        let stats = self.probe.drain(&mut events);
        assert_eq!((stats.bad, stats.unknown), (0, 0));
        let ended: Ended = self.program.end(LIMIT).unwrap().success().unwrap();
        let said: serde_json::Value =
            serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(said["good"], true);
        let mut counts = Vec::new();
        self.probe.call_counts(&mut counts);
        assert!(counts.iter().all(|(_, count)| count.lost == 0));
        events.sort_by_key(|event| event.at);
        let calls = events.into_iter().filter_map(|event| match event.body {
            RawBody::Call(call) => Some(call),
            _ => None,
        });
        let calls = calls.collect();
        drop(self.setting);
        (said, calls)
    }
}

fn object(path: &Path) -> Object {
    let file = File::open(path).unwrap();
    Object::read(&file, None, &path.display().to_string()).unwrap()
}

fn plan(object: &Object, function: &str) -> Plan {
    let costs = CostTable::assumed();
    let options = PlaceOptions {
        at: ProbeAt::Cheapest,
        returns: Returns::Instructions,
        costs: &costs,
    };
    let process = ProcessSafety::unknown();
    let function = object
        .functions()
        .iter()
        .chain(object.markers())
        .find(|known| &*known.name == function || known.aliases.iter().any(|a| &**a == function));
    Placer::new(object, options, &process)
        .plan(function.expect("the object has it"))
        .unwrap()
}

fn site(offset: u64, probe: u32, edge: u32) -> CallSite {
    CallSite {
        offset,
        probe,
        site: 0,
        edge,
        generation: 1,
        return_probe: false,
        semaphore: None,
    }
}

/// The payloads of a record's items.
fn payloads(call: &RawCall) -> Vec<&[u8]> {
    let mut rest = call.items();
    let mut out = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(u16::from_ne_bytes([rest[2], rest[3]]));
        out.push(&rest[8..8 + len]);
        rest = &rest[8 + len.next_multiple_of(8)..];
    }
    out
}

/// Thrower and name of each throw.
fn throws(calls: &[RawCall]) -> Vec<(u64, &[u8])> {
    let throw = |call| {
        let [thrower, name] = payloads(call)[..] else {
            panic!("{call:?}");
        };
        (u64::from_ne_bytes(thrower.try_into().unwrap()), name)
    };
    assert!(calls.iter().all(|call| call.edge == RawEdge::Throw));
    calls.iter().map(throw).collect()
}

/// Where the code of a file is in a process: start, end and file offset of each part.
fn code_of(pid: u32, path: &Path) -> Vec<(u64, u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let part = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let same = fields.get(5).is_some_and(|file| Path::new(file) == path);
        (same && fields[1].contains('x')).then(|| (hex(start), hex(end), hex(fields[2])))
    };
    maps.lines().filter_map(part).collect()
}

#[test]
fn a_cxx_throw_says_its_type_and_its_thrower() {
    let test = "calls_languages::a_cxx_throw_says_its_type_and_its_thrower";
    let Some(mut traced) = start(test, "trace_throw.cpp", "60", true) else {
        return;
    };
    let library = traced.mapped("libstdc++");
    let throw = plan(&object(&library), "__cxa_throw").entry.offset;
    let _link = traced.attach(&library, 0, PROBE_CXX, &[site(throw, 0, EDGE_THROW)]);
    let path = traced.mapped("trace_throw");
    let code = code_of(traced.pid(), &path);
    let file = fs::read(&path).unwrap();
    let (said, calls) = traced.run();

    let names = [
        ("std::runtime_error", "St13runtime_error"),
        ("app::parse_error", "N3app11parse_errorE"),
        ("int", "i"),
    ];
    let throws = throws(&calls);
    for (name, mangled) in names {
        let seen = throws
            .iter()
            .filter(|(_, name)| *name == mangled.as_bytes());
        assert_eq!(Some(seen.count() as u64), said["throws"][name].as_u64());
    }
    let all: u64 = names
        .iter()
        .filter_map(|(n, _)| said["throws"][n].as_u64())
        .sum();
    assert_eq!(throws.len() as u64, all);
    // The function that throws, or the part of it that the compiler moved away.
    let symbols = symbols(&file);
    let mut by_function: BTreeMap<&str, u64> = BTreeMap::new();
    for (thrower, _) in throws {
        let (start, _, offset) = code
            .iter()
            .find(|(start, end, _)| (*start..*end).contains(&thrower))
            .expect("in the program");
        // The call is before the address to which it would return.
        let place = thrower - start + offset - 1;
        let (_, name) = symbols
            .iter()
            .find(|(range, _)| range.contains(&place))
            .expect("in a function");
        *by_function
            .entry(name.split('.').next().unwrap())
            .or_default() += 1;
    }
    let expected = [
        "again_throw",
        "cleanup_throw",
        "far_throw",
        "here",
        "inside_throw",
        "near_throw",
    ];
    assert!(by_function.keys().eq(expected.iter()), "{by_function:?}");
    assert!(
        by_function.values().all(|count| *count == 60),
        "{by_function:?}"
    );
}

/// File ranges of functions.
fn symbols(file: &[u8]) -> Vec<(std::ops::Range<u64>, String)> {
    use object::{Object, ObjectSegment, ObjectSymbol};
    let object = object::File::parse(file).unwrap();
    let offset = |address: u64| {
        object.segments().find_map(|segment| {
            let range = segment.address()..segment.address() + segment.size();
            range
                .contains(&address)
                .then(|| address - segment.address() + segment.file_range().0)
        })
    };
    object
        .symbols()
        .filter(|symbol| symbol.size() > 0)
        .filter_map(|symbol| {
            let start = offset(symbol.address())?;
            Some((start..start + symbol.size(), symbol.name().ok()?.to_owned()))
        })
        .collect()
}

#[test]
fn a_rust_panic_has_the_class_of_rust() {
    let test = "calls_languages::a_rust_panic_has_the_class_of_rust";
    let Some(mut traced) = start(test, "trace_panic.rs", "40", true) else {
        return;
    };
    let library = traced.mapped("libgcc_s");
    let raise = plan(&object(&library), "_Unwind_RaiseException")
        .entry
        .offset;
    let _link = traced.attach(&library, 0, 0, &[site(raise, 0, EDGE_THROW)]);
    let (said, calls) = traced.run();
    let throws = throws(&calls);
    // Every second round panics; what was caught in one of the three ways is raised once more.
    let resumed = 20;
    assert_eq!(Some(throws.len() as u64 - resumed), said["panics"].as_u64());
    for (thrower, class) in throws {
        assert_ne!(thrower, 0);
        assert_eq!(class, b"MOZ\0RUST");
    }
}

/// Goroutines of 2 KiB that grow to more than 50 KiB while their calls are pending.
#[test]
fn places_on_go_stacks_stay_when_the_stacks_move() {
    let test = "calls_languages::places_on_go_stacks_stay_when_the_stacks_move";
    let Some(mut traced) = start(test, "trace_go/main.go", "20", false) else {
        return;
    };
    let path = traced.mapped("trace_go");
    let plan = plan(&object(&path), "main.deep");
    let Exits::Instructions(exits) = &plan.exits else {
        panic!("{plan:?}");
    };
    let mut sites = vec![site(plan.entry.offset, 0, EDGE_ENTER)];
    sites.extend(exits.iter().map(|exit| site(exit.offset, 0, EDGE_EXIT)));
    let _link = traced.attach(&path, 0, PROBE_GO, &sites);
    let (said, calls) = traced.run();
    let of = |edge| calls.iter().filter(|call| call.edge == edge).count() as u64;
    assert_eq!(
        Some(of(RawEdge::Enter)),
        said["calls"]["main.deep"].as_u64()
    );
    assert_eq!(
        Some(of(RawEdge::Exit)),
        said["returns"]["main.deep"].as_u64()
    );

    let mut open: HashMap<u32, Vec<u64>> = HashMap::new();
    let (mut chains, mut deepest) = (0, 0);
    for call in &calls {
        assert_ne!(call.stack, 0, "{call:?}");
        let stack = open.entry(call.stack).or_default();
        if call.edge == RawEdge::Enter {
            // Deeper calls are further from the upper end, by more than their frame's array.
            if let Some(outer) = stack.last() {
                assert!(call.sp > outer + 1024, "{call:?}");
            }
            stack.push(call.sp);
            deepest = deepest.max(call.sp);
        } else {
            assert_eq!(stack.pop(), Some(call.sp), "{call:?}");
            chains += u64::from(stack.is_empty());
        }
        assert!(stack.len() <= 50);
    }
    assert!(open.values().all(Vec::is_empty));
    assert_eq!(chains, 8 * 20, "one for each goroutine that was started");
    assert!((50 << 10..64 << 10).contains(&deepest), "{deepest}");
}

#[test]
fn a_markers_counter_is_raised_while_it_is_attached() {
    let test = "calls_languages::a_markers_counter_is_raised_while_it_is_attached";
    let Some(mut traced) = start(test, "trace_usdt.c", "500", false) else {
        return;
    };
    let path = traced.mapped("trace_usdt");
    let plan = plan(&object(&path), "trace_usdt:guarded");
    let FunctionKind::Marker {
        semaphore: Some(semaphore),
        ..
    } = plan.function.kind
    else {
        panic!("{plan:?}");
    };
    let memory = File::open(format!("/proc/{}/mem", traced.pid())).unwrap();
    let address = written_at(traced.pid(), &path, semaphore);
    let value = || {
        let mut bytes = [0; 2];
        memory.read_exact_at(&mut bytes, address).unwrap();
        u16::from_ne_bytes(bytes)
    };
    assert_eq!(value(), 0);
    let marker = CallSite {
        semaphore: Some(semaphore),
        ..site(plan.entry.offset, 2, EDGE_HIT)
    };
    let link = traced.attach(&path, 2, 0, &[marker]);
    assert_eq!(value(), 1);
    traced.probe.detach_calls(link);
    assert_eq!(value(), 0);
    let _link = traced.attach(&path, 2, 0, &[marker]);
    let (said, calls) = traced.run();
    assert_eq!(
        (&said["semaphore"], &said["markers"]["guarded"]),
        (&1.into(), &500.into())
    );
    assert_eq!(calls.len(), 500);
    assert!(
        calls
            .iter()
            .all(|call| call.edge == RawEdge::Hit && call.probe == 2)
    );
}

/// Where the byte at `offset` of a file is in a process's memory that it can write to.
fn written_at(pid: u32, path: &Path, offset: u64) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines()
        .find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end, from) = (hex(start), hex(end), hex(fields[2]));
            let same = fields.get(5).is_some_and(|file| Path::new(file) == path);
            let inside = (from..from + (end - start)).contains(&offset);
            (same && inside && fields[1].contains('w')).then(|| start + offset - from)
        })
        .expect("the counter is in memory that can be written to")
}
