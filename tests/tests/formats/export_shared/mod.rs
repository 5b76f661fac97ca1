//! What the tests of exports share: exporting into memory, made-up sessions.
// Each test uses a part, and fails by unwrapping.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Arc, Mutex};

use profiler_model::*;
use profiler_report::derive::{Filter, Target, stack_frames};
use profiler_report::export::{self, Folded, Folding, Only, Selection, Settings};
use proptest::prelude::*;

/// What [`canonical::session`](profiler_tests::canonical::session) gives.
pub type Recording = (Tables, Vec<Event>);

/// An output whose bytes stay readable after the exporter has taken it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Exports a session.
pub fn try_export(
    format: &str,
    options: &[(&str, &str)],
    session: &Recording,
) -> std::io::Result<Vec<u8>> {
    let settings = settings(format, options);
    export_into(&settings, &Selection::default(), session)
}

/// A format, and what is set for it.
pub fn settings(format: &str, options: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::new(export::by_name(format).unwrap());
    for (name, value) in options {
        settings.set(name, value).unwrap();
    }
    settings
}

/// Exports what a target did.
pub fn try_export_of(
    format: &str,
    target: &Target,
    session: &Recording,
) -> std::io::Result<Vec<u8>> {
    let filter = Filter {
        target: target.clone(),
        ..Filter::default()
    };
    let selection = Selection {
        filter,
        ..Selection::default()
    };
    export_into(&settings(format, &[]), &selection, session)
}

pub fn export_into(
    settings: &Settings,
    selection: &Selection,
    (tables, events): &Recording,
) -> std::io::Result<Vec<u8>> {
    let output = Shared::default();
    let mut sink = export::open(settings, Box::new(output.clone()));
    let mut sink = Only::new(sink.as_mut(), selection);
    for event in events {
        sink.event(event, tables)?;
    }
    sink.finish(tables)?;
    let bytes = output.0.lock().unwrap().clone();
    Ok(bytes)
}

/// The stacks of a session, as a comparison has them.
pub fn fold(settings: &Settings, (tables, events): &Recording) -> Folded {
    let mut folding = Folding::new(settings);
    for event in events {
        folding.event(event, tables).unwrap();
    }
    folding.finish(tables).unwrap();
    folding.folded()
}

/// Exports to text.
pub fn export(format: &str, options: &[(&str, &str)], session: &Recording) -> String {
    String::from_utf8(try_export(format, options, session).unwrap()).unwrap()
}

/// Names that would break formats if they were written as they are.
pub const HOSTILE: &[&str] = &[
    "]]></script><script>alert(1)</script>",
    "a;b\nc",
    "\u{0}\u{1}\u{b}\u{1b}[31m\u{ffff}\u{fffe}\u{7f}\u{85}",
    "--> <!-- \" ' & &amp; <![CDATA[",
    "foo 12",
    "# 5",
    "",
    " ",
    "_[k]",
    "x\u{2028}y\u{202e}z",
    "..",
];

/// A session of one thread with these stacks (root first) and how often each was sampled.
pub fn session_of(stacks: &[(Vec<&str>, u64)], process: &str) -> Recording {
    let mut tables = Tables::default();
    let name = tables.intern_string(process).0;
    let executable = tables.intern_string("/bin/x").0;
    let (process, _) = tables.intern_process(Process {
        pid: Pid(1),
        started: Timestamp(0),
        parent: None,
        name,
        executable: Some(executable),
        command: None,
        namespace_pids: Vec::new(),
        uid: None,
        cgroup: None,
        container: None,
    });
    let (thread, _) = tables.intern_thread(Thread {
        process,
        tid: Tid(1),
        started: Timestamp(0),
        name,
    });
    let clock = tables.intern_string("cpu-clock").0;
    let (source, _) = tables.sources.intern(Source {
        name: clock,
        unit: Unit::Nanoseconds,
        frequency_hz: None,
        period: Some(1000),
    });
    let mut events = Vec::new();
    for (names, count) in stacks {
        let mut parent = None;
        for (depth, name) in names.iter().enumerate() {
            let text = tables.intern_string(name).0;
            let (function, _) = tables.functions.intern(Function {
                name: text,
                linkage_name: None,
                module: None,
                file: None,
                line: 0,
                start: None,
                size: None,
            });
            let kinds = [FrameKind::Native, FrameKind::Jit, FrameKind::Kernel];
            let (frame, _) = tables.frames.intern(Frame {
                kind: kinds[depth % 3],
                module: None,
                address: function.index() as u64,
            });
            tables.set_symbol(frame, Symbol::Lines([Line { function, line: 0 }].into()));
            parent = Some(tables.stacks.intern(Stack { parent, frame }).0);
        }
        for _ in 0..*count {
            events.push(Event::Sample(
                Sample::new(Timestamp(events.len() as u64), thread, Cpu(0), source, 1000)
                    .with_stacks(None, parent),
            ));
        }
    }
    (tables, events)
}

/// What each function weighs with all that it called, by its name, and all together under the name `[all]`: running
/// and waiting, from the events themselves.
pub fn weights(
    (tables, events): &Recording,
    wanted: impl Fn(&Sample) -> bool,
) -> BTreeMap<String, u64> {
    let mut weights = BTreeMap::new();
    for event in events {
        if let Event::Sample(sample) = event
            && wanted(sample)
        {
            let frames = stack_frames(tables, sample.kernel, sample.user);
            let mut names: BTreeSet<_> = frames.map(|frame| frame.name.into_owned()).collect();
            names.insert("[all]".to_owned());
            for name in names {
                *weights.entry(name).or_default() += sample.weight;
            }
        }
    }
    weights
}

/// Weights of stacks of names, as [`weights`] has them of events. What stands for no function is left out.
pub fn weights_of<S: AsRef<str>>(
    stacks: impl IntoIterator<Item = (Vec<S>, u64)>,
) -> BTreeMap<String, u64> {
    let aside = [
        "[sleeping]",
        "[disk]",
        "[preempted]",
        "[stopped]",
        "[no stack]",
    ];
    let mut weights = BTreeMap::new();
    for (stack, weight) in stacks {
        let names = stack.iter().map(AsRef::as_ref);
        let mut names: BTreeSet<_> = names.filter(|name| !aside.contains(name)).collect();
        names.insert("[all]");
        for name in names {
            *weights.entry(name.to_owned()).or_default() += weight;
        }
    }
    weights
}

/// The sum of the numbers of folded stacks.
pub fn folded_sum(options: &[(&str, &str)], session: &Recording) -> u64 {
    let folded = export("folded", options, session);
    let numbers = folded.lines().filter_map(|line| line.rsplit_once(' '));
    numbers
        .map(|(_, number)| number.parse::<u64>().unwrap())
        .sum()
}

/// Stacks with odd names, each with how often it was sampled, for properties.
pub fn odd_stacks() -> impl Strategy<Value = Vec<(Vec<String>, u64)>> {
    let names = prop::collection::vec(".{0,6}|[a-c;# 0-9.\"\\\\]{0,4}", 0..5);
    prop::collection::vec((names, 1..4_u64), 0..8)
}

/// [`session_of`] such stacks.
pub fn session_of_odd(stacks: &[(Vec<String>, u64)], process: &str) -> Recording {
    let stacks = stacks.iter();
    let stacks: Vec<(Vec<&str>, u64)> = stacks
        .map(|(names, count)| (names.iter().map(String::as_str).collect(), *count))
        .collect();
    session_of(&stacks, process)
}

/// [`HOSTILE`], and a very long one.
pub fn hostile() -> Vec<String> {
    let mut names: Vec<_> = HOSTILE.iter().map(|name| (*name).to_owned()).collect();
    names.push("\u{202e}\u{1f600}".repeat(10_000));
    names
}
