//! Recordings as Bytefrog's data messages: what a strict receiver makes of them.

use std::collections::BTreeMap;

use profiler_model::*;
use profiler_report::export::bytefrog::{Counts, NameStyle, TranslateOptions, Translator};
use profiler_tests::bytefrog::{Checker, Run};
use profiler_tests::{arbitrary, canonical};
use proptest::prelude::*;

/// Calls that a recording has, by function: entries, passes, and calls that are told as a whole.
fn calls(tables: &Tables, events: &[Event]) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for event in events {
        if let Event::Call(call) = event {
            let begins = match &call.edge {
                CallEdge::Enter(_) | CallEdge::Hit(_) => true,
                CallEdge::Exit(exit) => exit.whole.is_some(),
            };
            let name = readable(tables, call.function);
            *calls.entry(name).or_default() += u64::from(begins);
        }
    }
    calls.retain(|_, &mut count| count > 0);
    calls
}

fn readable(tables: &Tables, function: FunctionId) -> String {
    let Some(of) = tables.functions.get(function) else {
        panic!("a call of a function that is not defined");
    };
    let module = of.module.and_then(|id| tables.modules.get(id));
    let path = module.map_or("", |module| tables.string(module.path));
    let object = path.rsplit('/').find(|part| !part.is_empty());
    let object = object.unwrap_or("[unknown]").trim_matches(['[', ']']);
    let mut text = format!("{} [{object}]", tables.string(of.name));
    if let Some(file) = of.file {
        text = format!("{text} {}", tables.string(file));
    }
    match tables.traced(function) {
        Some(traced) if traced.line > 0 && of.file.is_some() => format!("{text}:{}", traced.line),
        _ => text,
    }
}

fn translate(
    (tables, events): &(Tables, Vec<Event>),
    options: TranslateOptions,
    began: Timestamp,
) -> (Run, Counts) {
    let mut translator = Translator::new(options, began);
    let mut checker = Checker::new();
    let mut out = Vec::new();
    let mut end = began;
    for event in events {
        translator.event(event, tables, &mut out);
        translator.poll(event.at(), tables, &mut out);
        checker.feed(&out);
        out.clear();
        end = event.at();
    }
    translator.finish(end, tables, &mut out);
    checker.feed(&out);
    (checker.finish(), translator.counts())
}

const START: Timestamp = Timestamp(5_000_000_000);

#[test]
fn the_canonical_session() {
    let session = canonical::session();
    let (run, counts) = translate(&session, TranslateOptions::default(), START);
    let handle = "handle_request(http::Request const&) [web] src/web.cc:30";
    let parse = "parse_header [web] src/parse.cc:40";
    let walk = "walk; \"tree\" <T> [web] src/tree.cc:60";
    let marker = "web:request [web]";
    let expected: BTreeMap<String, u64> = [(handle, 9), (parse, 16), (walk, 4), (marker, 8)]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    assert_eq!(run.entries, expected);
    assert_eq!(run.entries, calls(&session.0, &session.1));
    let chains: BTreeMap<String, u64> = [
        (handle.to_owned(), 9),
        (format!("{handle};{parse}"), 16),
        (format!("{handle};{marker}"), 8),
        (walk.to_owned(), 2),
        (format!("{walk};{walk}"), 1),
        (format!("{walk};{walk};{walk}"), 1),
    ]
    .into();
    assert_eq!(run.chains, chains);
    assert_eq!(run.open, [(0, vec![handle.to_owned()])].into());
    let thrown = "std::runtime_error".to_owned();
    assert_eq!(run.bubbles, [((walk.to_owned(), thrown.clone()), 2)].into());
    assert_eq!(run.throws, [((walk.to_owned(), thrown, 5), 1)].into());
    let names = [
        (0, vec!["web".to_owned()]),
        (1, vec!["worker 1".to_owned()]),
    ];
    assert_eq!(run.threads, names.into());
    let markers: Vec<(u32, &str, &str)> = run
        .markers
        .iter()
        .map(|(at, key, value)| (*at, &**key, &**value))
        .collect();
    let query =
        "execute_query [db server] db/query.c:110: not watched until probes were attached (5.0 ms)";
    let duty = "all functions in web [100]: over budget, watched a part of the time (5.0 ms)";
    let expected = [
        (
            0,
            "recording started",
            "system-wide on canonical, profiler 0.1.0, 2023-11-14T22:13:20.000Z",
        ),
        (0, "mark", "load started"),
        (40, "not traced", query),
        // At most once a second.
        (
            101,
            "lost events",
            "ticks skipped by the kernel (an estimate): 4",
        ),
        (101, "not traced", duty),
        (
            101,
            "recording ended",
            "entries: 37, exits: 36, calls lost for want of room: 1, exits inferred: 1",
        ),
    ];
    assert_eq!(markers, expected);
    assert_eq!((counts.exits_left_out, counts.exits_inferred), (0, 0));
    assert_eq!(counts.exits_recorded_inferred, 1);
    assert_eq!((counts.entries, counts.exits, counts.bubbles), (37, 34, 2));
    assert_eq!(
        (counts.methods, counts.exception_types, counts.threads),
        (4, 1, 2)
    );
}

#[test]
fn what_is_not_wanted_is_left_out() {
    let session = canonical::session();
    let options = TranslateOptions {
        filter: Some(Box::new(|path| !path.starts_with("web/handle_request"))),
        ..TranslateOptions::default()
    };
    let (run, counts) = translate(&session, options, START);
    let parse = "parse_header [web] src/parse.cc:40";
    assert_eq!(run.chains.get(parse), Some(&16));
    assert_eq!(run.total(), 37 - 9);
    assert_eq!(counts.calls_unwanted, 17);
}

/// Counts by name alone.
fn without_lines(counts: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in counts {
        let plain = match name.rsplit_once(':') {
            Some((plain, line)) if line.parse::<u32>().is_ok() => plain.to_owned(),
            _ => name,
        };
        *sums.entry(plain).or_default() += count;
    }
    sums
}

/// An arbitrary recording whose ids are translated as an agent does it, with tables that begin anew.
fn arbitrary_run(
    batches: &[Batch],
    names: NameStyle,
    samples: bool,
    anew: bool,
    breaks: usize,
) -> (Run, Counts) {
    let options = TranslateOptions {
        names,
        samples,
        filter: None,
    };
    let mut translator = Translator::new(options, Timestamp(1 << 40));
    let mut checker = Checker::new();
    let mut tables = Tables::default();
    let mut epoch = (u32::MAX, Epoch::default());
    let (mut out, mut count, mut now) = (Vec::new(), 0_usize, Timestamp(0));
    for batch in batches {
        if epoch.0 != batch.epoch {
            epoch = (batch.epoch, Epoch::default());
            if anew {
                translator.flush(&tables, &mut out);
                translator.new_tables();
                tables = Tables::default();
            }
        }
        for definition in &batch.definitions {
            let defined = epoch.1.define(&mut tables, definition.clone());
            assert_eq!(defined, Ok(()));
        }
        for event in &batch.events {
            count += 1;
            if breaks > 0 && count.is_multiple_of(breaks) {
                checker.feed(&out);
                out.clear();
                checker.data_break(translator.break_data());
                if count.is_multiple_of(2) {
                    translator.marker(now, "resumed", "", &mut out);
                }
            }
            let Ok(event) = epoch.1.event(event.clone()) else {
                panic!("{event:?} uses what is not defined");
            };
            now = now.max(event.at());
            translator.event(&event, &tables, &mut out);
        }
        translator.poll(now, &tables, &mut out);
    }
    translator.finish(now, &tables, &mut out);
    checker.feed(&out);
    (checker.finish(), translator.counts())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn arbitrary_recordings_keep_all_entries(
        batches in arbitrary::recordings(),
        anew in any::<bool>(),
        breaks in 0usize..20,
    ) {
        let (run, counts) = arbitrary_run(&batches, NameStyle::Readable, false, anew, breaks);
        let (tables, events) = arbitrary::expected(&batches);
        let total: u64 = calls(&tables, &events).values().sum();
        prop_assert_eq!(run.total(), total);
        prop_assert_eq!(counts.entries, total);
        let ends = |event: &&Event| {
            matches!(event, Event::Call(Call { edge: CallEdge::Exit(_) | CallEdge::Hit(_), .. }))
        };
        let ends = events.iter().filter(ends).count() as u64;
        let told = counts.exits + counts.bubbles - counts.exits_inferred + counts.exits_left_out;
        prop_assert_eq!(told, ends);
        if breaks == 0 && !anew {
            // A line may become known after the method was mapped.
            let expected = without_lines(calls(&tables, &events));
            prop_assert_eq!(without_lines(run.entries), expected);
        }
    }

    #[test]
    fn arbitrary_samples_nest(
        batches in arbitrary::recordings(),
        anew in any::<bool>(),
        breaks in 0usize..20,
    ) {
        let (_, counts) = arbitrary_run(&batches, NameStyle::Grammar, true, anew, breaks);
        let (_, events) = arbitrary::expected(&batches);
        let runs = |event: &&Event| matches!(event, Event::Sample(Sample { wait: None, .. }));
        let samples = events.iter().filter(runs).count();
        prop_assert_eq!(counts.samples + counts.samples_without_stack, samples as u64);
        prop_assert_eq!(counts.events_forgotten, 0);
    }
}

/// The functions of a stack, outermost first, as messages name them.
fn path(tables: &Tables, stack: StackId) -> Vec<String> {
    let mut path = Vec::new();
    for frame in tables.frames_of(Some(stack)) {
        match tables.lines(frame) {
            [] => {
                let place = tables.frame_location(frame);
                let object = place.rsplit_once('+').map_or("", |parts| parts.0);
                let object = object.trim_matches(['[', ']']);
                path.push(format!("{place} [{object}]"));
            }
            lines => path.extend(lines.iter().map(|line| readable(tables, line.function))),
        }
    }
    path.reverse();
    path
}

#[test]
fn calls_inferred_from_the_canonical_samples() {
    let (tables, events) = canonical::session();
    let mut last: BTreeMap<ThreadId, Vec<String>> = BTreeMap::new();
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for event in &events {
        if let Event::Sample(sample) = event {
            let path = path(&tables, sample.user.unwrap());
            let before = last.insert(sample.thread, path.clone()).unwrap_or_default();
            let common = before.iter().zip(&path).take_while(|(a, b)| a == b).count();
            for depth in common..path.len() {
                *expected.entry(path[..=depth].join(";")).or_default() += 1;
            }
        }
    }
    let options = || TranslateOptions {
        samples: true,
        ..TranslateOptions::default()
    };
    let (run, counts) = translate(&(tables.clone(), events.clone()), options(), START);
    assert_eq!(run.chains, expected);
    assert_eq!(counts.samples, 100);
    // The thread of the database ended.
    assert_eq!(run.open.keys().collect::<Vec<_>>(), [&0, &1]);
    let names: Vec<&str> = run.threads[&2].iter().map(|name| &**name).collect();
    assert_eq!(names, ["db [200]", "db-writer [200]"]);
    assert_eq!(run.threads[&1], ["worker 1", "worker 1 [100/101]"]);

    let unwanted = "main [web] src/main.c";
    let options = TranslateOptions {
        filter: Some(Box::new(|path| path != "web/main")),
        ..options()
    };
    let (run, _) = translate(&(tables, events), options, START);
    let folded = expected.into_iter().filter_map(|(chain, count)| {
        let parts: Vec<&str> = chain.split(';').collect();
        let kept = chain.replace(&format!(";{unwanted}"), "");
        (parts.last() != Some(&unwanted)).then_some((kept, count))
    });
    assert_eq!(run.chains, folded.collect());
}

/// A process with threads and functions, made by hand.
struct Made {
    tables: Tables,
    process: ProcessId,
}

impl Made {
    fn new() -> Made {
        let mut tables = Tables::default();
        let name = tables.intern_string("made").0;
        let process = Process {
            pid: Pid(1),
            started: Timestamp(0),
            parent: None,
            name,
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        let process = tables.intern_process(process).0;
        Made { tables, process }
    }

    fn thread(&mut self, tid: u32) -> ThreadId {
        let name = self.tables.intern_string("thread").0;
        let thread = Thread {
            process: self.process,
            tid: Tid(tid),
            started: Timestamp(0),
            name,
        };
        self.tables.intern_thread(thread).0
    }

    fn function(&mut self, name: &str) -> FunctionId {
        let name = self.tables.intern_string(name).0;
        let function = Function {
            name,
            linkage_name: None,
            module: None,
            file: None,
            line: 0,
            start: None,
            size: None,
        };
        self.tables.functions.intern(function).0
    }

    fn string(&mut self, text: &str) -> StringId {
        self.tables.intern_string(text).0
    }

    fn module(&mut self, path: &str) -> ModuleId {
        let path = self.string(path);
        let module = Module {
            kind: ModuleKind::File,
            path,
            build_id: None,
            address_bias: 0,
        };
        self.tables.modules.intern(module).0
    }

    fn frame(&mut self, address: u64) -> FrameId {
        let frame = Frame {
            kind: FrameKind::Native,
            module: None,
            address,
        };
        self.tables.frames.intern(frame).0
    }
}

fn call(at: u64, thread: ThreadId, function: FunctionId, edge: CallEdge) -> Event {
    Event::Call(Call {
        at: Timestamp(at),
        thread,
        cpu: Cpu(0),
        function,
        stack: 0,
        depth: 0,
        edge,
        later: None,
    })
}

fn enter(at: u64, thread: ThreadId, function: FunctionId) -> Event {
    call(at, thread, function, CallEdge::Enter(None))
}

fn exit(at: u64, thread: ThreadId, function: FunctionId, began: u64) -> Event {
    let exit = Exit {
        began: Timestamp(began),
        self_ns: 0,
        how: ExitKind::Return,
        line: 7,
        result: None,
        whole: None,
    };
    call(at, thread, function, CallEdge::Exit(Box::new(exit)))
}

fn ended(at: u64, thread: ThreadId) -> Event {
    Event::Process(ProcessEvent {
        at: Timestamp(at),
        thread,
        change: ProcessChange::Exited,
    })
}

#[test]
fn numbers_of_threads_are_used_again_when_there_are_no_others() {
    let mut made = Made::new();
    let function = made.function("f");
    let threads: Vec<ThreadId> = (0..65_540).map(|tid| made.thread(tid)).collect();
    let mut events: Vec<Event> = threads[..65_537]
        .iter()
        .map(|&thread| enter(1, thread, function))
        .collect();
    // All numbers are used; one of a thread that ended in a call is given again.
    events.push(ended(2, threads[9]));
    events.push(enter(3, threads[65_538], function));
    events.push(enter(4, threads[65_539], function));
    // Late, and open when its number is needed.
    events.push(ended(5, threads[10]));
    events.push(enter(5, threads[10], function));
    events.push(enter(6, threads[65_539], function));
    let (run, counts) = translate(
        &(made.tables, events),
        TranslateOptions::default(),
        Timestamp(0),
    );
    assert_eq!(run.threads.len(), 65_536);
    assert_eq!((run.threads[&9].len(), run.threads[&10].len()), (2, 2));
    assert_eq!((counts.threads, counts.threads_reused), (65_536, 2));
    assert_eq!(counts.events_without_thread, 2);
    assert_eq!(counts.exits_inferred, 3);
    assert_eq!(run.marked("threads left out").count(), 1);
    assert_eq!(run.total(), 65_539);
}

#[test]
fn calls_that_move_between_threads_end_where_they_began() {
    let mut made = Made::new();
    let [outer, inner] = ["outer", "inner"].map(|name| made.function(name));
    let [first, second] = [1, 2].map(|tid| made.thread(tid));
    let events = vec![
        enter(1, first, outer),
        enter(2, first, inner),
        enter(3, second, outer),
        exit(4, second, inner, 2),
        exit(5, first, outer, 3),
        exit(6, second, outer, 1),
        // Neither of these is open anywhere.
        exit(7, first, inner, 3),
        exit(8, first, outer, 1),
    ];
    let (run, counts) = translate(
        &(made.tables, events),
        TranslateOptions::default(),
        Timestamp(0),
    );
    assert!(run.open.is_empty());
    assert_eq!((counts.entries, counts.exits), (3, 3));
    assert_eq!((counts.exits_moved, counts.exits_left_out), (3, 2));
    assert_eq!(counts.exits_inferred, 0);
    assert_eq!(run.exits["outer [unknown]"], [(7, 2)].into());
}

#[test]
fn what_is_deeper_than_the_limit_is_left_out() {
    const DEPTH: u64 = 70_000;
    let mut made = Made::new();
    let function = made.function("f");
    let thread = made.thread(1);
    let entries = (0..DEPTH).map(|at| enter(at, thread, function));
    let exits = (0..DEPTH)
        .rev()
        .map(|began| exit(2 * DEPTH - began, thread, function, began));
    let events = entries.chain(exits).collect();
    let mut translator = Translator::new(TranslateOptions::default(), Timestamp(0));
    let events: Vec<Event> = events;
    let (mut out, mut most, mut open) = (Vec::new(), 0_i64, 0_i64);
    for event in &events {
        translator.event(event, &made.tables, &mut out);
        let counts = translator.counts();
        open = counts.entries as i64 - counts.exits as i64;
        most = most.max(open);
    }
    assert_eq!((most, open), (65_536, 0));
    let counts = translator.counts();
    assert_eq!(counts.entries_left_out, DEPTH - 65_536);
    assert_eq!((counts.exits_left_out, counts.exits_inferred), (0, 0));
}

#[test]
fn samples_wait_for_names() {
    let mut made = Made::new();
    let function = made.function("late");
    let thread = made.thread(1);
    let (known, unknown) = (made.frame(0x10), made.frame(0x20));
    let mut stack = |frame| {
        let stack = Stack {
            parent: None,
            frame,
        };
        Some(made.tables.stacks.intern(stack).0)
    };
    let stacks = [stack(known), stack(unknown)];
    let source = SourceId::from_index(0);
    let sample = |at, user| {
        Event::Sample(Sample::new(Timestamp(at), thread, Cpu(0), source, 1).with_stacks(None, user))
    };
    const S: u64 = 1_000_000_000;
    let options = TranslateOptions {
        samples: true,
        ..TranslateOptions::default()
    };
    let mut translator = Translator::new(options, Timestamp(0));
    let mut checker = Checker::new();
    let mut out = Vec::new();
    let tables = &mut made.tables;
    translator.event(&sample(1, stacks[0]), tables, &mut out);
    translator.event(&sample(2, stacks[1]), tables, &mut out);
    translator.event(&ended(3, thread), tables, &mut out);
    translator.poll(Timestamp(S / 2), tables, &mut out);
    assert_eq!(translator.counts().entries, 0);
    let line = Line { function, line: 1 };
    tables.set_symbol(known, Symbol::Lines([line].into()));
    translator.poll(Timestamp(S / 2 + 1), tables, &mut out);
    assert_eq!(translator.counts().entries, 1);
    translator.poll(Timestamp(S + 1), tables, &mut out);
    assert_eq!(translator.counts().entries, 1);
    translator.poll(Timestamp(S + 2), tables, &mut out);
    assert_eq!(translator.counts().entries, 2);
    translator.finish(Timestamp(S + 3), tables, &mut out);
    checker.feed(&out);
    let run = checker.finish();
    let names = ["[unknown]+0x20 [unknown]", "late [unknown]"];
    assert!(run.chains.keys().eq(names), "{:?}", run.chains);
    assert!(run.open.is_empty());
}

/// A throw waits for the name of who threw, and all behind it do; it has the line then, although the
/// symbol knows more of the function than the probe.
#[test]
fn throws_wait_for_who_threw() {
    const S: u64 = 1_000_000_000;
    let mut made = Made::new();
    let thread = made.thread(1);
    let kind = made.string("E");
    let module = made.module("app");
    let function = |made: &mut Made, file| {
        let name = made.string("f");
        let function = Function {
            name,
            linkage_name: None,
            module: Some(module),
            file,
            line: 0,
            start: Some(0x40),
            size: None,
        };
        made.tables.functions.intern(function).0
    };
    let traced = function(&mut made, None);
    let file = made.string("/src/f.c");
    let symbol = function(&mut made, Some(file));
    let frames = [made.frame(0x10), made.frame(0x20)];
    let throw = |at, frame| {
        Event::Throw(Throw {
            at: Timestamp(at),
            thread,
            cpu: Cpu(0),
            kind,
            thrower: Some(frame),
        })
    };
    let mut translator = Translator::new(TranslateOptions::default(), Timestamp(0));
    let mut checker = Checker::new();
    let mut out = Vec::new();
    let tables = &mut made.tables;
    translator.event(&enter(1, thread, traced), tables, &mut out);
    translator.event(&throw(2, frames[0]), tables, &mut out);
    translator.event(&throw(3, frames[1]), tables, &mut out);
    translator.event(&exit(4, thread, traced, 1), tables, &mut out);
    translator.poll(Timestamp(S / 2), tables, &mut out);
    assert_eq!(translator.counts().exceptions, 0);
    let line = Line {
        function: symbol,
        line: 44,
    };
    tables.set_symbol(frames[0], Symbol::Lines([line].into()));
    translator.poll(Timestamp(S / 2 + 1), tables, &mut out);
    assert_eq!(translator.counts().exceptions, 1);
    // No answer comes for the other: it is not waited for longer than a second.
    translator.poll(Timestamp(S + 2), tables, &mut out);
    assert_eq!(translator.counts().exits, 0);
    translator.poll(Timestamp(S + 3), tables, &mut out);
    assert_eq!(translator.counts().exits, 1);
    // What waits at a data break is sent before it.
    translator.event(&enter(S + 4, thread, traced), tables, &mut out);
    translator.event(&throw(S + 5, frames[1]), tables, &mut out);
    translator.flush(tables, &mut out);
    assert_eq!(translator.counts().exceptions, 3);
    translator.finish(Timestamp(S + 6), tables, &mut out);
    checker.feed(&out);
    let run = checker.finish();
    let lines: Vec<_> = run.throws.iter().collect();
    let key = |line| ("f [app]".to_owned(), "E".to_owned(), line);
    assert_eq!(lines, [(&key(44), &1), (&key(u16::MAX), &2)]);
}

#[test]
fn processes_change_and_containers_start() {
    let mut made = Made::new();
    let function = made.function("f");
    let id = "0123456789abcdef".repeat(4);
    let cgroup = made.tables.intern_string(&format!("/docker/{id}")).0;
    let program = made.tables.intern_string("/bin/other").0;
    let renamed = made.tables.intern_string("renamed").0;
    let mut process = made.tables.process(made.process).cloned();
    if let Some(process) = &mut process {
        process.cgroup = Some(cgroup);
        made.tables.intern_process(process.clone());
    }
    let thread = made.thread(1);
    let change = |at, change| {
        Event::Process(ProcessEvent {
            at: Timestamp(at),
            thread,
            change,
        })
    };
    let mut whole = exit(9, thread, function, 8);
    if let Event::Call(call) = &mut whole
        && let CallEdge::Exit(exit) = &mut call.edge
    {
        exit.whole = Some([].into());
        exit.how = ExitKind::Exception(None);
    }
    let events = vec![
        change(1, ProcessChange::Started),
        enter(2, thread, function),
        change(3, ProcessChange::Renamed(renamed)),
        enter(4, thread, function),
        // Ends what is open; the exits that tell the same come later.
        change(5, ProcessChange::Executed(program)),
        exit(6, thread, function, 4),
        exit(6, thread, function, 2),
        change(7, ProcessChange::Executed(program)),
        whole,
    ];
    let (run, counts) = translate(&(made.tables, events), TranslateOptions::default(), START);
    let container = format!("{id}: made [1]");
    let started: Vec<&str> = run.marked("container started").collect();
    assert_eq!(started, [&*container]);
    let executed: Vec<&str> = run.marked("program executed").collect();
    assert_eq!(executed, ["made [1] runs /bin/other"; 2]);
    assert_eq!(run.threads[&0], ["thread", "renamed"]);
    assert_eq!((counts.entries, counts.exits, counts.bubbles), (3, 2, 1));
    assert_eq!((counts.exits_inferred, counts.exits_left_out), (2, 2));
    let unknown = ("f [unknown]".to_owned(), "unknown exception".to_owned());
    assert_eq!(run.bubbles, [(unknown, 1)].into());
}

#[test]
fn containers_are_in_names_and_markers() {
    let session = canonical::session_in_containers();
    let options = TranslateOptions {
        samples: true,
        ..TranslateOptions::default()
    };
    let (run, _) = translate(&session, options, START);
    let odd = canonical::ODD_NAME;
    let names: Vec<&str> = run.threads[&0].iter().map(|name| &**name).collect();
    assert_eq!(names, ["web", &format!("web [100 in {odd}]")]);
    let names: Vec<&str> = run.threads[&2].iter().map(|name| &**name).collect();
    let place = "in shop/db-0/postgres";
    assert_eq!(
        names,
        [
            format!("db [200 {place}]"),
            format!("db-writer [200 {place}]")
        ]
    );
    // A unit is no container; kernel threads have neither.
    let all: Vec<&str> = run.threads.values().flatten().map(|name| &**name).collect();
    assert!(
        all.contains(&"sshd [300]") && all.contains(&"kworker/0:1 [2]"),
        "{all:?}"
    );
    let started: Vec<&str> = run.marked("container started").collect();
    assert_eq!(
        started,
        [
            format!(
                "{odd} (docker, id 0123456789abcdef, image registry.example/shop/web:1.25): web [100]"
            ),
            "shop/db-0/postgres (containerd, id 77aa, image docker.io/library/postgres:16): db [200]"
                .to_owned(),
            format!(
                "{odd} (docker, id fedcba9876543210, image registry.example/shop/web:1.26): web [400]"
            ),
        ]
    );
    assert_eq!(run.marked("container described").count(), 0);
}

#[test]
fn a_container_that_is_described_late_gives_its_threads_new_names() {
    let mut made = Made::new();
    let function = made.function("f");
    let other = made.tables.process(made.process).unwrap().clone();
    let other = Process {
        pid: Pid(2),
        ..other
    };
    let cgroup = made.tables.intern_string("/docker/abc").0;
    let mut container = Container {
        cgroup,
        engine: None,
        id: Some(made.tables.intern_string("abcdef0123456789").0),
        name: None,
        image: None,
        pod: None,
        namespace: None,
        unit: None,
    };
    let id = made.tables.intern_container(container.clone()).0;
    let placed = Process {
        container: Some(id),
        ..made.tables.process(made.process).unwrap().clone()
    };
    made.tables.intern_process(placed);
    let thread = made.thread(1);
    made.process = made.tables.intern_process(other).0;
    let elsewhere = made.thread(2);

    let mut translator = Translator::new(TranslateOptions::default(), Timestamp(0));
    let mut out = Vec::new();
    let tables = &mut made.tables;
    translator.event(&enter(1, thread, function), tables, &mut out);
    translator.event(&enter(2, elsewhere, function), tables, &mut out);
    translator.poll(Timestamp(3), tables, &mut out);
    container.name = Some(tables.intern_string("web").0);
    assert_eq!(tables.intern_container(container), (id, true));
    for at in [4, 5] {
        translator.poll(Timestamp(at), tables, &mut out);
    }
    translator.finish(Timestamp(6), tables, &mut out);
    let mut checker = Checker::new();
    checker.feed(&out);
    let run = checker.finish();
    let started: Vec<&str> = run.marked("container started").collect();
    assert_eq!(started, ["abcdef012345 (id abcdef0123456789): made [1]"]);
    let described: Vec<&str> = run.marked("container described").collect();
    assert_eq!(described, ["web (id abcdef0123456789)"]);
    assert_eq!(
        run.threads[&0],
        ["thread", "thread [1 in abcdef012345]", "thread [1 in web]"]
    );
    assert_eq!(run.threads[&1], ["thread [2]"]);
}

/// What a message of a known method on a known thread costs, encoding included.
#[test]
#[ignore = "a measurement: cargo test --release ... -- --ignored --nocapture"]
fn what_a_message_costs() {
    const CALLS: u64 = 200_000;
    let mut made = Made::new();
    let functions: Vec<FunctionId> = (0..1000)
        .map(|number| made.function(&format!("ns::function_{number}(int)")))
        .collect();
    let threads: Vec<ThreadId> = (0..8).map(|tid| made.thread(tid)).collect();
    let mut random = arbitrary::Random(1);
    let mut stacks: Vec<Vec<(FunctionId, u64)>> = vec![Vec::new(); threads.len()];
    let mut events = Vec::new();
    for at in 0..CALLS {
        let on = random.below(threads.len());
        let deeper = stacks[on].len() < 30 && random.below(2) == 0;
        let ends = if deeper { None } else { stacks[on].pop() };
        events.push(match ends {
            Some((function, began)) => exit(at * 100, threads[on], function, began),
            None => {
                let function = functions[random.below(functions.len())];
                stacks[on].push((function, at * 100));
                enter(at * 100, threads[on], function)
            }
        });
    }
    let mut translator = Translator::new(TranslateOptions::default(), Timestamp(0));
    let mut out = Vec::with_capacity(1 << 20);
    let (known, timed) = events.split_at(CALLS as usize / 10);
    for event in known {
        translator.event(event, &made.tables, &mut out);
    }
    let before = translator.counts().messages;
    let start = std::time::Instant::now();
    for event in timed {
        translator.event(event, &made.tables, &mut out);
        if out.len() > 60_000 {
            out.clear();
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    let messages = translator.counts().messages - before;
    assert!(messages >= timed.len() as u64);
    println!("{messages} messages, {:.1} ns each", ns / messages as f64);
}

/// What a checker says of messages, if it refuses them.
fn refusal(act: impl FnOnce(&mut Checker) + std::panic::UnwindSafe) -> String {
    let refused = std::panic::catch_unwind(|| {
        let mut checker = Checker::new();
        act(&mut checker);
        checker.finish();
    });
    match refused {
        Ok(()) => String::new(),
        Err(message) => match message.downcast::<String>() {
            Ok(message) => *message,
            Err(_) => "no text".to_owned(),
        },
    }
}

#[test]
fn the_checker_refuses_what_a_collector_does() {
    use AgentMessage::*;
    use profiler_wire::bytefrog::AgentMessage;
    let name = || MapThreadName {
        thread: 0,
        at_ms: 0,
        name: "main [1]".into(),
    };
    let method = || MapMethodSignature {
        method: 1,
        signature: "f".into(),
    };
    let entry = |sequence| MethodEntry {
        at_ms: 0,
        sequence,
        method: 1,
        thread: 0,
    };
    let exit = |sequence, method| MethodExit {
        at_ms: 0,
        sequence,
        method,
        line: 1,
        thread: 0,
    };
    let marker = |sequence| Marker {
        at_ms: 0,
        sequence,
        key: "key".into(),
        value: "value".into(),
    };
    let all = |messages: Vec<AgentMessage<'static>>| {
        refusal(|checker| {
            messages
                .into_iter()
                .for_each(|message| checker.data(message))
        })
    };
    // In any order, named late.
    assert_eq!(all(vec![exit(1, 1), entry(0), method(), name()]), "");
    for (messages, expected) in [
        (vec![name(), method(), entry(1)], "0 never came, but 1 did"),
        (vec![entry(0), entry(0)], "sequence id 0 came twice"),
        (vec![entry(2), entry(2)], "sequence id 2 came twice"),
        (vec![entry(0), exit(1, 2)], "left on thread 0 at 1"),
        (vec![name(), entry(0)], "method 1 has no name"),
        (vec![method(), entry(0)], "thread 0 has no name"),
        (vec![method(), method()], "method 1 is named twice"),
    ] {
        let message = all(messages);
        assert!(message.contains(expected), "{message}, not {expected}");
    }
    let broken = |checker: &mut Checker| {
        [name(), method(), entry(0)]
            .into_iter()
            .for_each(|message| checker.data(message));
        checker.data_break(2);
    };
    let message = refusal(|checker| {
        broken(checker);
        [marker(1), entry(2), exit(3, 1)]
            .into_iter()
            .for_each(|message| checker.data(message));
    });
    assert_eq!(message, "");
    let message = refusal(|checker| {
        broken(checker);
        [marker(1), marker(2), exit(3, 1)]
            .into_iter()
            .for_each(|message| checker.data(message));
    });
    assert!(message.contains("left on thread 0 at 3"), "{message}");
    let message = refusal(|checker| {
        broken(checker);
        checker.data(exit(1, 1));
    });
    assert!(
        message.contains("no marker before the data break"),
        "{message}"
    );
    for sequence in [0, 1, 2] {
        let message = refusal(|checker| {
            checker.data(marker(0));
            checker.data(marker(1));
            checker.data_break(sequence);
        });
        assert!(message.contains("kills a collector"), "{message}");
    }
}
