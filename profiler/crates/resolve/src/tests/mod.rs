//! Tests of the resolver as a whole: made-up events in, batches out.
//!
//! The memory of made-up processes is mapped from real files that are built or written here.

pub(super) mod apart;
mod containers;
mod cost;
mod debug_info;
mod epochs;
mod hostile;
mod lifetimes;
mod limited;
mod overlay_layers;
mod processes;
mod questions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;

use super::files::TargetFile;
use super::symbolize::{Answer, Symbolizer};
use super::*;
use profiler_model::raw::{Comm, FileIdentity, RawBody, RawMmap, RawSample, RawStack};
use profiler_model::*;
use profiler_object::elf;

/// A directory that is removed at the end.
pub(super) struct TempDir(pub(super) PathBuf);

impl TempDir {
    pub(super) fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("resolve-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn options() -> ResolveOptions {
    ResolveOptions {
        sources: vec![SourceOptions {
            name: "cpu-clock".to_owned(),
            unit: Unit::Nanoseconds,
            frequency_hz: Some(99),
            period: None,
        }],
        ..ResolveOptions::default()
    }
}

/// Pids that no real process has (beyond the kernel's largest).
const NOBODY: u32 = 5_000_000;

pub(super) fn at(at: u64, body: RawBody) -> RawEvent {
    RawEvent {
        at: Timestamp(at),
        cpu: Cpu(0),
        body,
    }
}

pub(super) fn comm(name: &str) -> Comm {
    Comm::from_bytes(name.as_bytes())
}

pub(super) fn fork(time: u64, parent: u32, pid: u32) -> RawEvent {
    at(
        time,
        RawBody::Fork {
            pid: Pid(pid),
            tid: Tid(pid),
            parent_pid: Pid(parent),
            parent_tid: Tid(parent),
        },
    )
}

pub(super) fn exec(time: u64, pid: u32, name: &str) -> RawEvent {
    at(
        time,
        RawBody::Comm {
            pid: Pid(pid),
            tid: Tid(pid),
            exec: true,
            comm: comm(name),
        },
    )
}

pub(super) fn exit(time: u64, pid: u32) -> RawEvent {
    at(
        time,
        RawBody::Exit {
            pid: Pid(pid),
            tid: Tid(pid),
        },
    )
}

pub(super) fn sample(time: u64, pid: u32, name: &str, user: &[u64], kernel: &[u64]) -> RawEvent {
    let stack = |addresses: &[u64]| RawStack {
        bytes: addresses
            .iter()
            .flat_map(|address| address.to_ne_bytes())
            .collect::<Bytes>(),
        end: StackEnd::Complete,
    };
    at(
        time,
        RawBody::Sample(Box::new(RawSample {
            comm: comm(name),
            cgroup: 1,
            weight: 10,
            kernel: stack(kernel),
            user: stack(user),
            ..RawSample::new(Pid(pid), Tid(pid))
        })),
    )
}

/// Maps `len` bytes of a file from `offset` on, known by its inode.
pub(super) fn map_file(
    time: u64,
    pid: u32,
    start: u64,
    len: u64,
    path: &Path,
    offset: u64,
) -> RawEvent {
    let stat = rustix::fs::stat(path).ok();
    let device = stat.map_or(0, |stat| stat.st_dev);
    let identity = FileIdentity {
        major: rustix::fs::major(device),
        minor: rustix::fs::minor(device),
        inode: stat.map_or(77, |stat| stat.st_ino),
        generation: 0,
    };
    map(
        time,
        pid,
        (start, len),
        path.to_str().unwrap(),
        offset,
        identity,
    )
}

pub(super) fn map(
    time: u64,
    pid: u32,
    (start, len): (u64, u64),
    path: &str,
    file_offset: u64,
    file: FileIdentity,
) -> RawEvent {
    at(
        time,
        RawBody::Mmap(Box::new(RawMmap {
            pid: Pid(pid),
            tid: Tid(pid),
            start,
            len,
            file_offset,
            path: path.as_bytes().into(),
            file,
        })),
    )
}

/// What a consumer of the batches knows.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) tables: Tables,
    epochs: BTreeMap<u32, (profiler_model::Epoch, BTreeMap<FrameId, u32>)>,
    pub(super) events: Vec<Event>,
}

impl Reader {
    pub(super) fn read(&mut self, batches: Vec<Batch>) {
        for batch in batches {
            let (epoch, answers) = self.epochs.entry(batch.epoch).or_default();
            for definition in batch.definitions {
                if let Definition::Symbol(frame, _) = &definition {
                    let count = answers.entry(*frame).or_default();
                    *count += 1;
                    assert_eq!(*count, 1, "{frame:?} was answered twice");
                }
                epoch.define(&mut self.tables, definition).unwrap();
            }
            for event in batch.events {
                self.events.push(epoch.event(event).unwrap());
            }
        }
        assert!(self.events.is_sorted_by_key(Event::at));
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.events.iter().filter_map(|event| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        })
    }

    /// Names of the frames of each sample's user stack, leaf first.
    pub(super) fn user_stacks(&self) -> Vec<Vec<String>> {
        let names = |sample: &Sample| {
            let frames = self.tables.frames_of(sample.user);
            frames.map(|frame| self.tables.frame_name(frame)).collect()
        };
        self.samples().map(names).collect()
    }

    pub(super) fn process_of(&self, sample: &Sample) -> &Process {
        let thread = self.tables.thread(sample.thread).unwrap();
        self.tables.process(thread.process).unwrap()
    }

    /// Why the leaf of each sample's user stack has no name.
    pub(super) fn reasons(&self) -> Vec<Option<UnknownReason>> {
        let reason = |sample: &Sample| {
            let leaf = self.tables.frames_of(sample.user).next()?;
            match self.tables.symbol(leaf)? {
                Symbol::Unknown(reason) => Some(*reason),
                Symbol::Lines(_) => None,
            }
        };
        self.samples().map(reason).collect()
    }
}

/// Notices and resolves events, waits for names, reads all back.
pub(super) fn run(resolver: &mut Resolver, mut events: Vec<RawEvent>) -> Reader {
    for event in &events {
        resolver.notice(event);
    }
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    reader
}

/// Builds a C program; its functions `outer` and `inner` have source lines.
pub(super) fn build(dir: &TempDir, name: &str, flags: &[&str]) -> PathBuf {
    let source = dir.path(&format!("{name}.c"));
    let code = "\
int inner(volatile int *x) { for (int i = 0; i < 9; i++) *x += i; return *x; }
int outer(volatile int *x) { return inner(x) + 1; }
int main(void) { int x = 0; return outer(&x); }
";
    std::fs::write(&source, code).unwrap();
    let out = dir.path(name);
    let status = std::process::Command::new("gcc")
        .args(["-g", "-O0", "-Wl,--build-id=sha1", "-o"])
        .arg(&out)
        .arg(&source)
        .args(flags)
        .current_dir(&dir.0)
        .status();
    assert!(
        status.unwrap().success(),
        "gcc is needed for this test: apt-get install gcc"
    );
    out
}

/// Frame addresses (file offsets) of functions of an ELF file, by `nm` and the segments.
pub(super) fn offset_of(path: &Path, function: &str) -> u64 {
    let elf = elf::Elf::read(&std::fs::File::open(path).unwrap()).unwrap();
    elf.offset_of(address_of(path, function)).unwrap()
}

/// Where a function of a file is, as its symbols have it.
pub(super) fn address_of(path: &Path, function: &str) -> u64 {
    let output = std::process::Command::new("nm").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {function}")));
    let address = line.unwrap().split(' ').next().unwrap();
    u64::from_str_radix(address, 16).unwrap()
}

pub(super) const BASE: u64 = 0x7f00_0000_0000;

pub(super) fn pid(index: u32) -> u32 {
    NOBODY + index
}

/// A program that was started from here.
pub(super) fn start(time: u64, pid: u32, name: &str) -> Vec<RawEvent> {
    vec![
        fork(time, std::process::id(), pid),
        exec(time + 1, pid, name),
    ]
}

#[test]
fn own_code_has_names() {
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.snapshot(Timestamp(u64::MAX / 2));
    let pid = std::process::id();
    let code = own_code_has_names as *const () as u64;
    let stack = [code + 4, code + 9];
    let reader = run(
        &mut resolver,
        vec![sample(u64::MAX / 2 + 1, pid, "me", &stack, &[])],
    );
    let stacks = reader.user_stacks();
    assert!(stacks[0][0].ends_with("own_code_has_names"), "{stacks:?}");
    assert_eq!(stacks[0][0], stacks[0][1]);
    let process = reader.process_of(reader.samples().next().unwrap());
    assert_eq!(process.pid, Pid(pid));
    assert!(process.command.is_some() && process.executable.is_some());
    assert_eq!(reader.tables.code().count(), 1);
}

#[test]
fn the_first_sample_at_the_time_of_the_mmap_has_names_and_lines() {
    let dir = TempDir::new("first");
    let program = build(&dir, "program", &[]);
    let (inner, outer) = (offset_of(&program, "inner"), offset_of(&program, "outer"));
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, pid(1), "program");
    events.push(map_file(12, pid(1), BASE, 0x10000, &program, 0));
    events.push(sample(
        12,
        pid(1),
        "program",
        &[BASE + inner + 4, BASE + outer + 20],
        &[],
    ));
    events.push(exit(13, pid(1)));
    let reader = run(&mut resolver, events);
    assert_eq!(reader.reasons(), [None], "{:?}", resolver.counters());
    assert_eq!(reader.user_stacks(), [["inner", "outer"]]);
    let sample = reader.samples().next().unwrap();
    let process = reader.process_of(sample);
    assert_eq!(process.started, Timestamp(10));
    assert_eq!(reader.tables.string(process.name), "program");
    let executable = process.executable.map(|path| reader.tables.string(path));
    assert_eq!(executable, program.to_str());
    let leaf = reader.tables.frames_of(sample.user).next().unwrap();
    let line = reader.tables.lines(leaf)[0];
    let function = reader.tables.functions.get(line.function).unwrap();
    assert_eq!(line.line, 1);
    assert_eq!(function.start, Some(inner));
    assert!(
        reader
            .tables
            .string(function.file.unwrap())
            .ends_with("program.c")
    );
    let frame = reader.tables.frames.get(leaf).unwrap();
    let module = reader.tables.modules.get(frame.module.unwrap()).unwrap();
    assert_eq!(module.build_id.as_ref().unwrap().0.len(), 20);
    assert_eq!(frame.address, inner + 4);
    let (_, address, bytes) = reader.tables.code().next().unwrap();
    assert_eq!(address, inner);
    assert_eq!(bytes.len() as u64, function.size.unwrap());
    let kinds: Vec<_> = reader
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Process(event) => Some(event.change),
            _ => None,
        })
        .collect();
    assert!(matches!(
        kinds[..],
        [
            ProcessChange::Started,
            ProcessChange::Executed(_),
            ProcessChange::Exited
        ]
    ));
}

#[test]
fn what_can_not_be_named_says_why() {
    let dir = TempDir::new("reasons");
    std::fs::write(dir.path("text"), "no ELF file").unwrap();
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, pid(1), "program");
    events.push(map_file(12, pid(1), BASE, 0x1000, &dir.path("text"), 0));
    events.push(map_file(
        12,
        pid(1),
        BASE + 0x1000,
        0x1000,
        &dir.path("gone"),
        0,
    ));
    for offset in [0x100, 0x1100, 0x2100] {
        events.push(sample(13, pid(1), "program", &[BASE + offset], &[]));
    }
    let reader = run(&mut resolver, events);
    let expected = [
        Some(UnknownReason::BadFile),
        Some(UnknownReason::NoFile),
        Some(UnknownReason::NoMapping),
    ];
    assert_eq!(reader.reasons(), expected);
    let names = reader.user_stacks().concat();
    assert_eq!(
        names,
        ["text+0x100", "gone+0x100", "[unknown]+0x7f0000002100"]
    );
    let counters = resolver.counters();
    assert_eq!((counters.frames_bad_file, counters.frames_no_file), (1, 1));
    assert_eq!(
        (counters.frames_no_mapping, counters.files_not_opened),
        (1, 1)
    );
}

/// The address of a function of the kernel, unless addresses are hidden.
fn kernel_address(name: &str) -> Option<u64> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let line = symbols
        .lines()
        .find(|line| line.ends_with(&format!(" T {name}")))?;
    u64::from_str_radix(line.split(' ').next()?, 16)
        .ok()
        .filter(|&address| address != 0)
}
