//! A second interpreter, made up: from records as its program would write them to a report.
//!
//! Nothing but this file knows its name, its number and what its frames are.

use std::path::Path;

use profiler_capture::{CreateOptions, Reader as CaptureReader, TimeRange, Writer};
use profiler_common::interpreter::end_of;
use profiler_common::sample::{
    END_COMPLETE, SECTION_INTERPRETED, SECTION_USER_STACK, SampleHead, SectionHead,
};
use profiler_common::{COMM_LEN, KIND_SAMPLE, RECORD_VERSION};
use profiler_model::decode::Decoder;
use profiler_model::{FrameKind, ModuleKind, Timestamp};
use profiler_report::view::report::{self, Collector, Recording, ReportOptions};

use super::*;
use crate::Resolver;
use crate::mapping::CodeModule;
use crate::symbolize::{Answer, FunctionInfo};
use crate::tests::*;

/// Its number.
const TOY: u8 = 200;
/// Its programs are called so.
const PROGRAM: &str = "toy";
/// Where the toy has its state, from the beginning of its file.
const STATE: u64 = 0x4000;
/// Set in a frame's word: the loop was entered for it.
const ENTRY: u64 = 1 << 63;

/// A process that runs the toy.
#[derive(Clone, Debug)]
struct Player {
    pid: Pid,
    module: Arc<CodeModule>,
    code: Range<u64>,
}

/// Each process runs one program at most, and keeps it. A frame is a word: the number of a function.
#[derive(Debug, Default)]
struct Toy {
    processes: Vec<Player>,
    /// Frames whose names were read.
    read: Vec<u64>,
    changes: Vec<(Pid, Option<(u64, Layout)>)>,
}

fn words(frames: &Bytes) -> impl Iterator<Item = u64> {
    let words = frames.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_ne_bytes(*word))
}

impl Interpreter for Toy {
    fn id(&self) -> u8 {
        TOY
    }

    fn words(&self) -> (&'static str, &'static str) {
        ("Toy", "play")
    }

    fn notice(&mut self, mmap: &RawMmap, path: &str, _: &TargetFile, of: &mut Modules) -> bool {
        if path.ends_with(PROGRAM) {
            let module = of.named(ModuleKind::Interpreted, "[toy 1]");
            self.processes.push(Player {
                pid: mmap.pid,
                module,
                code: mmap.start..mmap.start + mmap.len,
            });
            let runs = (mmap.start + STATE, Layout::default());
            self.changes.push((mmap.pid, Some(runs)));
        }
        path.ends_with("toy0")
    }

    fn forked(&mut self, pid: Pid, parent: Pid, _: Timestamp) {
        let of_parent = self.processes.iter().find(|of| of.pid == parent);
        if let Some(child) = of_parent.cloned() {
            self.processes.push(Player { pid, ..child });
        }
    }

    fn ended(&mut self, pid: Pid, _: Timestamp) {
        if self.processes.iter().any(|of| of.pid == pid) {
            self.changes.push((pid, None));
        }
    }

    fn names(&mut self, _: Pid, _: Timestamp, frames: &Bytes) -> bool {
        self.read.extend(words(frames));
        false
    }

    fn frames(
        &mut self,
        pid: Pid,
        _: Timestamp,
        section: &Bytes,
        epoch: &mut Epoch,
    ) -> Option<Interpreted> {
        let mut processes = self.processes.iter();
        let Player { module, code, .. } = processes.find(|of| of.pid == pid)?;
        let (mut frames, mut runs, mut start) = (Vec::new(), Vec::new(), 0);
        for word in words(section).filter(|word| self.read.contains(word)) {
            let number = word & !ENTRY;
            let kind = FrameKind::Interpreted;
            let (frame, new) = epoch.tables.frame(kind, Some(module), number);
            if new {
                let function = FunctionInfo {
                    name: format!("toy_{number}").into(),
                    linkage_name: None,
                    file: Some("play.toy".into()),
                    line: 1,
                    start: None,
                    size: None,
                };
                let answer = Answer::Lines([(Arc::new(function), 7)].into());
                epoch.define(frame, Some(module), &answer);
            }
            frames.push(frame);
            if word & ENTRY != 0 {
                runs.push(start..frames.len());
                start = frames.len();
            }
        }
        Some(Interpreted {
            complete: start == frames.len(),
            frames,
            runs,
            loops: Arc::from([code.clone()]),
        })
    }

    fn take_changes(&mut self) -> Vec<(Pid, Option<(u64, Layout)>)> {
        std::mem::take(&mut self.changes)
    }

    fn unsupported(&self) -> Vec<UnsupportedVersion> {
        Vec::new()
    }

    fn tidy(&mut self, _: Timestamp, _: &dyn Fn(Pid) -> bool) {}
}

/// A record of a sample, as the kernel side writes it: a stack of machine code, and frames.
fn record(at: u64, pid: u32, native: &[u64], (interpreter, frames): (u8, &[u64])) -> Bytes {
    let mut bytes = vec![0; 8];
    for word in [at, 0, 10] {
        bytes.extend(word.to_ne_bytes());
    }
    for word in [pid, pid, 0, 0] {
        bytes.extend(u32::to_ne_bytes(word));
    }
    bytes.extend([b't'; COMM_LEN]);
    assert_eq!(bytes.len(), size_of::<SampleHead>());
    let sections = [
        (SECTION_USER_STACK, END_COMPLETE, native),
        (
            SECTION_INTERPRETED,
            end_of(END_COMPLETE, interpreter),
            frames,
        ),
    ];
    for (kind, end, words) in sections {
        let begun = bytes.len();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(end.to_ne_bytes());
        bytes.extend((words.len() as u32 * 8).to_ne_bytes());
        assert_eq!(bytes.len() - begun, size_of::<SectionHead>());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..6].copy_from_slice(&KIND_SAMPLE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&RECORD_VERSION.to_ne_bytes());
    bytes.into()
}

/// Events of records, drained, resolved and written into a capture.
fn capture(resolver: &mut Resolver, mut events: Vec<RawEvent>, path: &Path) {
    for event in &events {
        resolver.notice(event);
        resolver.notice_interpreted(event);
    }
    let mut batches = Vec::new();
    resolver.resolve(&mut events, &mut batches);
    let patience = std::time::Duration::from_secs(60);
    resolver.finish(patience, &mut |_| {}, &mut batches);
    let mut writer = Writer::create(path, CreateOptions::default()).unwrap();
    for batch in &batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
}

/// The call tree of a capture, as people see it.
fn call_tree(path: &Path) -> String {
    let mut reader = CaptureReader::open(path).unwrap();
    let tables = reader.load_tables().unwrap();
    let options = ReportOptions {
        tree: true,
        ..ReportOptions::default()
    };
    let mut collected = Collector::for_report(&options);
    let mut add = |event: &profiler_model::Event, tables: &profiler_model::Tables| {
        collected.add(event, tables);
        Ok(())
    };
    reader.replay(&tables, TimeRange::ALL, &mut add).unwrap();
    let recording = Recording {
        tables: &tables,
        collected: &collected,
    };
    let mut text = Vec::new();
    report::run(&recording, &options, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn another_interpreter_is_known_to_its_own_file_alone() {
    const LIBRARY: u64 = BASE + 0x100_0000;
    let dir = TempDir::new("toy");
    let program = build(&dir, PROGRAM, &[]);
    let library = build(&dir, "library", &[]);
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.mapped.interpreters.add(Box::<Toy>::default());
    let id = pid(60);
    let mut events = start(10, id, "toy");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    events.push(map_file(13, id, LIBRARY, 0x10000, &library, 0));
    let inner = LIBRARY + offset_of(&library, "inner");
    let outer = BASE + offset_of(&program, "outer");
    let native = [inner, outer + 4, LIBRARY + offset_of(&library, "main") + 4];
    let frames = [3, 2, ENTRY | 1];
    let mut decoder = Decoder::default();
    decoder.record(record(20, id, &native, (TOY, &frames)), &mut events);
    // Nobody knows this one: the stack is shown as it is.
    decoder.record(record(21, id, &native, (TOY + 1, &frames)), &mut events);
    assert_eq!((decoder.unknown, decoder.bad), (0, 0));
    let path = dir.path("toy.cap");
    capture(&mut resolver, events, &path);

    let runs = Some((BASE + STATE, Layout::default()));
    let change = |runs| InterpreterChange {
        pid: Pid(id),
        interpreter: TOY,
        runs,
    };
    assert_eq!(resolver.take_interpreter_changes(), [change(runs)]);
    let summaries = resolver.interpreters();
    assert!(
        summaries.iter().all(|of| of.misplaced == 0),
        "{summaries:?}"
    );
    let tree = call_tree(&path);
    let order = |names: &[&str]| {
        let mut rest = &*tree;
        names.iter().all(|name| match rest.split_once(name) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    };
    // Where its loop runs, in the program, are its frames.
    assert!(
        order(&["main", "toy_1", "toy_2", "toy_3", "inner"]),
        "{tree}"
    );
    assert!(order(&["main", "outer", "inner"]), "{tree}");

    resolver.notice(&exit(30, id));
    assert_eq!(resolver.take_interpreter_changes(), [change(None)]);
}

#[test]
fn one_whose_frames_cannot_be_had_is_counted() {
    let dir = TempDir::new("toy0");
    let program = build(&dir, "toy0", &[]);
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.mapped.interpreters.add(Box::<Toy>::default());
    let mut events = start(10, pid(61), "toy0");
    events.push(map_file(12, pid(61), BASE, 0x10000, &program, 0));
    run(&mut resolver, events);
    let unknown = resolver.interpreters();
    let unknown: Vec<_> = unknown
        .iter()
        .map(|of| (of.name, of.unknown_mappings))
        .collect();
    assert_eq!(unknown, [("CPython", 0), ("Toy", 1)]);
    assert_eq!(resolver.take_interpreter_changes(), []);
}
