//! A run of Bytefrog as a file: what a strict receiver, the text of it, and a reader made from the document make of it.
//!
//! The canonical session and arbitrary ones -> messages -> counts of calls, which must be those of the events. What does not
//! belong here: what an event becomes (`bytefrog_translate`), connections (`protocols`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::export_shared::*;
use crate::golden;
use profiler_model::*;
use profiler_report::view::bytefrog::{Printer, Speaker};
use profiler_tests::bytefrog::{Checker, Run};
use profiler_tests::{arbitrary, canonical, skip};
use profiler_wire::bytefrog::{AgentMessage, Channel, Mode};
use proptest::prelude::*;

/// All messages of a file, which is nothing else.
fn messages(mut file: &[u8]) -> Vec<AgentMessage<'static>> {
    let mut all = Vec::new();
    while let Some((message, len)) = AgentMessage::decode(file).unwrap() {
        all.push(message.into_owned());
        file = &file[len..];
    }
    assert_eq!(file, b"");
    all
}

/// What a receiver makes of a whole run: first and last on control is what an agent says there.
fn run(file: &[u8]) -> Run {
    let mut checker = Checker::new();
    let all = messages(file);
    assert_eq!(all[0], AgentMessage::Hello { version: 1 });
    let modes: Vec<Mode> = all
        .iter()
        .filter_map(|it| match it {
            AgentMessage::Heartbeat { mode, .. } => Some(*mode),
            _ => None,
        })
        .collect();
    let (first, last) = (modes[0], modes[modes.len() - 1]);
    assert_eq!((first, last), (Mode::Initializing, Mode::ShuttingDown));
    assert!(
        modes[1..modes.len() - 1]
            .iter()
            .all(|it| *it == Mode::Tracing)
    );
    let greeted = all
        .iter()
        .position(|it| matches!(it, AgentMessage::DataHello { run: 0 }));
    for (at, message) in all.iter().enumerate() {
        if message.channel() == Channel::Data {
            assert!(Some(at) > greeted);
            checker.data(message.clone());
        }
    }
    checker.finish()
}

fn text(speaker: Speaker, mut file: &[u8]) -> String {
    let (mut printer, mut text) = (Printer::new(speaker), String::new());
    while let Some(len) = printer.message(file, &mut text).unwrap() {
        file = &file[len..];
    }
    assert_eq!(file, b"");
    text
}

fn entries((tables, events): &Recording) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for event in events {
        if let Event::Call(call) = event {
            let begins = match &call.edge {
                CallEdge::Enter(_) | CallEdge::Hit(_) => true,
                CallEdge::Exit(exit) => exit.whole.is_some(),
            };
            let function = tables.functions.get(call.function).unwrap();
            *calls
                .entry(tables.string(function.name).to_owned())
                .or_default() += u64::from(begins);
        }
    }
    calls.retain(|_, count| *count > 0);
    calls
}

/// Entries by the names that signatures begin with.
fn by_name(run: &Run) -> BTreeMap<String, u64> {
    let mut names = BTreeMap::new();
    for (signature, count) in &run.entries {
        let (name, _) = signature.rsplit_once(" [").unwrap();
        *names.entry(name.to_owned()).or_default() += count;
    }
    names
}

#[test]
fn the_canonical_run_is_golden() {
    let session = canonical::session();
    let file = try_export("bytefrog", &[], &session).unwrap();
    golden::check("export/canonical.bytefrog", &file);
    assert_eq!(Speaker::of(&file), Some(Speaker::Agent));
    golden::check(
        "export/canonical.bytefrog.txt",
        &text(Speaker::Agent, &file),
    );
    assert_eq!(by_name(&run(&file)), entries(&session));
    let inferred = try_export("bytefrog", &[("calls", "inferred")], &session).unwrap();
    golden::check(
        "export/inferred.bytefrog.txt",
        &text(Speaker::Agent, &inferred),
    );
    let grammar = try_export("bytefrog", &[("names", "grammar")], &session).unwrap();
    assert!(
        run(&grammar)
            .entries
            .contains_key("web/handle_request;9;(Lhttp/Request_const_ref;)V")
            || run(&grammar).entries.keys().all(|it| it.contains(";9;("))
    );
}

#[test]
fn the_streams_of_both_connections_are_those_of_the_run() {
    let session = canonical::session_with_everything();
    let all = messages(&try_export("bytefrog", &[], &session).unwrap());
    for (stream, is_of) in [
        ("control", [Channel::Control, Channel::Greeting]),
        ("data", [Channel::Data, Channel::Greeting]),
    ] {
        let part = try_export("bytefrog", &[("stream", stream)], &session).unwrap();
        let wanted = all.iter().filter(|it| match it {
            AgentMessage::DataHello { .. } => stream == "data",
            AgentMessage::Hello { .. } => stream == "control",
            it => is_of.contains(&it.channel()),
        });
        let wanted: Vec<_> = wanted.cloned().collect();
        assert!(wanted.len() > 3);
        assert_eq!(messages(&part), wanted, "{stream}");
        assert_eq!(Speaker::of(&part), Some(Speaker::Agent));
    }
}

#[test]
fn calls_are_inferred_where_none_were_traced_and_it_says_so() {
    let session = session_of(
        &[
            (vec!["main", "a"], 3),
            (vec!["main", "b"], 2),
            (vec!["main", "a"], 1),
        ],
        "p",
    );
    let file = try_export("bytefrog", &[], &session).unwrap();
    let run = run(&file);
    let expected = [("a", 2), ("b", 1), ("main", 1)].map(|(name, count)| (name.to_owned(), count));
    // The frame that is the kernel's is no call: `session_of` makes each third one so, and none is that deep.
    assert_eq!(by_name(&run), expected.into());
    assert!(
        run.markers[0]
            .2
            .ends_with("; calls are inferred from samples"),
        "{:?}",
        run.markers
    );
    let traced = try_export("bytefrog", &[("calls", "observed")], &session).unwrap();
    assert_eq!(
        messages(&traced)
            .iter()
            .filter(|it| matches!(it, AgentMessage::MethodEntry { .. }))
            .count(),
        0
    );
    let error = try_export("bytefrog", &[("source", "cycles")], &session).unwrap_err();
    assert!(
        error.to_string().contains("'cycles'; there are: cpu-clock"),
        "{error}"
    );
}

#[test]
fn any_name_is_a_name() {
    for name in hostile() {
        let session = session_of(&[(vec![&name, "main"], 5)], &name);
        let file = try_export("bytefrog", &[], &session).unwrap();
        let run = run(&file);
        let entries: u64 = run.entries.values().sum();
        assert_eq!(entries, 2, "{name:?}");
        let text = text(Speaker::Agent, &file);
        let steers =
            |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!text.contains(steers), "{name:?}");
        assert_eq!(text.lines().count(), messages(&file).len(), "{name:?}");
    }
}

#[test]
fn a_recording_of_nothing_is_a_run() {
    let (tables, _) = canonical::session();
    let run = run(&try_export("bytefrog", &[], &(tables, Vec::new())).unwrap());
    assert!(run.entries.is_empty() && run.markers.len() == 2, "{run:?}");
}

/// The reader in Python was made from the document alone.
#[test]
fn a_reader_made_from_the_document_counts_the_same_calls() {
    let session = canonical::session_with_everything();
    let file = try_export("bytefrog", &[], &session).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/bytefrog");
    let code = "import sys, json, collections\n\
                sys.path.insert(0, sys.argv[1])\n\
                import wire\n\
                raw, names, seen, calls = sys.stdin.buffer.read(), {}, [], collections.Counter()\n\
                import io\n\
                source = io.BytesIO(raw)\n\
                while source.tell() < len(raw):\n\
                \tm = wire.read(source.read, wire.AGENT)\n\
                \tif m[0] == wire.METHOD: names[m[1]] = m[2]\n\
                \tif m[0] == wire.ENTRY: calls[names[m[3]]] += 1\n\
                \tif m[0] in wire.SEQUENCED: seen.append(m[2])\n\
                assert seen == list(range(len(seen))), seen\n\
                print(json.dumps(calls))";
    let mut child = match Command::new("python3")
        .args(["-B", "-c", code])
        .arg(folder)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(_) => return skip::skip("export_bytefrog", "there is no python3"),
    };
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &file).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let counted: BTreeMap<String, u64> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counted, run(&file).entries);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn any_recording_is_a_run(batches in arbitrary::recordings(), inferred in any::<bool>()) {
        let session = arbitrary::expected(&batches);
        let calls = if inferred { "inferred" } else { "observed" };
        let file = try_export("bytefrog", &[("calls", calls)], &session).unwrap();
        run(&file);
        text(Speaker::Agent, &file);
    }
}
