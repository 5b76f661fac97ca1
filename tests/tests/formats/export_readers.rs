//! Formats that are read back here: what holds for each of them, whatever it looks like.
//!
//! A recording -> the file of a format -> stacks with what they weigh. Sums must be those of the events and of the folded
//! stacks, names what they were, calls those that were traced. A format is a reader and a line in [`READERS`]. What does
//! not belong here: what only one format has (its own module), readers that others wrote (`export_conformance`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;

use crate::export_shared::*;
use crate::golden;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use profiler_model::*;
use profiler_report::export::{Selection, TimeRange};
use profiler_report::view::report::{self, Collector, Format, ReportOptions};
use profiler_tests::canonical;
use profiler_wire::Message;
use profiler_wire::otlp::ProfilesData;
use profiler_wire::perfetto::{Data, Packet, Trace, kind};
use profiler_wire::tcf::{StackTrace, WordLayout, decode_stack_traces};
use proptest::prelude::*;
use serde_json::Value as Json;

/// Stacks, root first, each with what it weighs; the names of functions that were called, each time.
#[derive(Debug, Default)]
struct Read {
    stacks: Vec<(Vec<String>, u64)>,
    calls: Vec<String>,
}

/// How a format is read, and what it does to names.
struct Reader {
    format: &'static str,
    /// Options by which a sample weighs what it stands for.
    options: &'static [(&'static str, &'static str)],
    read: fn(&[u8]) -> Read,
    /// Whether samples weigh something: else they count.
    weighs: bool,
    /// Whether a name may hold anything.
    any_name: bool,
    /// Whether it has traced calls, each.
    calls: bool,
}

const READERS: &[Reader] = &[
    Reader {
        format: "firefox",
        options: &[("count", "weight")],
        read: firefox,
        weighs: true,
        any_name: true,
        calls: true,
    },
    Reader {
        format: "chrome-trace",
        options: &[],
        read: chrome_trace,
        weighs: false,
        any_name: true,
        calls: true,
    },
    Reader {
        format: "cpuprofile",
        options: &[],
        read: cpuprofile,
        weighs: true,
        any_name: true,
        calls: false,
    },
    Reader {
        format: "perfetto",
        options: &[],
        read: perfetto,
        weighs: true,
        any_name: true,
        calls: true,
    },
    Reader {
        format: "otlp",
        options: &[],
        read: otlp,
        weighs: true,
        any_name: true,
        calls: false,
    },
    Reader {
        format: "tcf",
        options: &[("count", "weight"), ("contexts", "thread")],
        read: tcf,
        weighs: true,
        any_name: true,
        calls: false,
    },
];

impl Reader {
    fn of(&self, options: &[(&str, &str)], session: &Recording) -> Read {
        let options = [self.options, options].concat();
        (self.read)(&try_export(self.format, &options, session).unwrap())
    }
}

fn number(value: &Json) -> usize {
    value.as_u64().unwrap() as usize
}

/// Milliseconds as nanoseconds.
fn ns(value: &Json, unit: f64) -> u64 {
    (value.as_f64().unwrap() * unit).round() as u64
}

fn firefox(file: &[u8]) -> Read {
    let file: Json = serde_json::from_slice(file).unwrap();
    assert_eq!(file["meta"]["preprocessedProfileVersion"], 60);
    let shared = &file["shared"];
    for (name, table) in shared.as_object().unwrap() {
        let Some(columns) = table.as_object() else {
            assert_eq!(name, "stringArray");
            continue;
        };
        for (column, values) in columns.iter().filter(|(column, _)| *column != "length") {
            let len = values.as_array().unwrap().len();
            assert_eq!(len, number(&table["length"]), "{name}.{column}");
        }
    }
    let text = |index: &Json| {
        let text = &shared["stringArray"][number(index)];
        text.as_str().unwrap().to_owned()
    };
    let stack_of = |index: &Json| {
        let (mut names, mut at) = (Vec::new(), index.clone());
        while let Some(stack) = at.as_u64() {
            let (stack, table) = (stack as usize, &shared["stackTable"]);
            let func = &shared["frameTable"]["func"][number(&table["frame"][stack])];
            names.push(text(&shared["funcTable"]["name"][number(func)]));
            let caller = table["prefix"][stack].clone();
            assert!(caller.as_u64().is_none_or(|caller| caller < stack as u64));
            at = caller;
        }
        names.reverse();
        names
    };
    let mut read = Read::default();
    let mut rows = Vec::new();
    for thread in file["threads"].as_array().unwrap() {
        rows.push((thread["pid"].to_string(), thread["tid"].to_string()));
        let samples = &thread["samples"];
        let is_time = samples["weightType"] == "tracing-ms";
        for index in 0..number(&samples["length"]) {
            let weight = &samples["weight"][index];
            let weight = if is_time {
                ns(weight, 1e6)
            } else {
                weight.as_u64().unwrap()
            };
            read.stacks
                .push((stack_of(&samples["stack"][index]), weight));
            assert!(samples["time"][index].is_number());
        }
        let markers = &thread["markers"];
        for index in 0..number(&markers["length"]) {
            let data = &markers["data"][index];
            let known = file["meta"]["markerSchema"].as_array().unwrap();
            assert!(known.iter().any(|schema| schema["name"] == data["type"]));
            if data["type"] == "Call" {
                read.calls.push(text(&markers["name"][index]));
            }
            if let Some(cause) = data["cause"].as_object() {
                assert!(!stack_of(&cause["stack"]).is_empty());
            }
        }
    }
    rows.sort();
    let all = rows.len();
    rows.dedup();
    assert_eq!(rows.len(), all, "rows are told apart by pid and tid");
    read
}

/// Nodes of V8's profiles: their callers, and their names.
type Nodes = BTreeMap<u64, (Option<u64>, String)>;

/// Names of the functions at a node, root first.
fn node_names(nodes: &Nodes, node: u64) -> Vec<String> {
    let callers = std::iter::successors(Some(node), |node| nodes[node].0);
    let mut names: Vec<String> = callers.map(|node| nodes[&node].1.clone()).collect();
    names.reverse();
    assert_eq!(names[0], "(root)");
    names.remove(0);
    names
}

fn chrome_trace(file: &[u8]) -> Read {
    let file: Json = serde_json::from_slice(file).unwrap();
    let mut read = Read::default();
    let mut profiles: BTreeMap<String, Nodes> = BTreeMap::new();
    let mut open = BTreeMap::new();
    for event in file["traceEvents"].as_array().unwrap() {
        let name = event["name"].as_str().unwrap().to_owned();
        assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["ts"].is_number());
        match event["ph"].as_str().unwrap() {
            "X" => read.calls.push(name),
            "i" if event["cat"] == "call" => read.calls.push(name),
            "b" => assert!(open.insert(event["id"].to_string(), name).is_none()),
            "e" => assert_eq!(open.remove(&event["id"].to_string()), Some(name)),
            "P" if name == "ProfileChunk" => {
                let data = &event["args"]["data"];
                let key = format!("{} {}", event["id"], event["pid"]);
                let nodes = profiles.entry(key).or_default();
                for node in data["cpuProfile"]["nodes"].as_array().unwrap() {
                    let name = node["callFrame"]["functionName"].as_str().unwrap();
                    let node_of = (node["parent"].as_u64(), name.to_owned());
                    let id = node["id"].as_u64().unwrap();
                    assert!(nodes.insert(id, node_of).is_none());
                }
                let samples = data["cpuProfile"]["samples"].as_array().unwrap();
                let deltas = data["timeDeltas"].as_array().unwrap();
                assert_eq!(samples.len(), deltas.len());
                for sample in samples {
                    let names = node_names(nodes, sample.as_u64().unwrap());
                    read.stacks.push((names, 1));
                }
            }
            "P" | "M" | "i" => {}
            other => panic!("{other}"),
        }
    }
    assert!(open.is_empty());
    read
}

fn cpuprofile(file: &[u8]) -> Read {
    let file: Json = serde_json::from_slice(file).unwrap();
    let mut nodes = BTreeMap::new();
    let mut hits = BTreeMap::new();
    let mut callers = BTreeMap::new();
    for node in file["nodes"].as_array().unwrap() {
        let id = node["id"].as_u64().unwrap();
        let name = node["callFrame"]["functionName"].as_str().unwrap();
        nodes.insert(id, (None, name.to_owned()));
        hits.insert(id, node["hitCount"].as_u64().unwrap());
        for child in node["children"].as_array().into_iter().flatten() {
            callers.insert(child.as_u64().unwrap(), id);
        }
    }
    for (child, caller) in callers {
        nodes.get_mut(&child).unwrap().0 = Some(caller);
    }
    let samples = file["samples"].as_array().unwrap();
    let deltas = file["timeDeltas"].as_array().unwrap();
    assert_eq!(samples.len(), deltas.len().min(samples.len()));
    let mut read = Read::default();
    let mut at = 0;
    let end = ns(&file["endTime"], 1e3) - ns(&file["startTime"], 1e3);
    for (index, sample) in samples.iter().enumerate() {
        at += ns(&deltas[index], 1e3);
        let next = deltas.get(index + 1).filter(|_| index + 1 < samples.len());
        let weight = next.map_or_else(|| end - at, |delta| ns(delta, 1e3));
        let id = sample.as_u64().unwrap();
        *hits.get_mut(&id).unwrap() -= 1;
        let mut names = node_names(&nodes, id);
        // The thread.
        names.remove(0);
        read.stacks.push((names, weight));
    }
    assert!(hits.values().all(|left| *left == 0));
    read
}

/// Contexts and symbols of an agent: addresses of all stacks have symbols, and there are no others.
fn tcf(file: &[u8]) -> Read {
    let lines = std::str::from_utf8(file).unwrap().lines();
    let lines: Vec<Json> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut symbols = BTreeMap::new();
    for symbol in lines.iter().filter(|it| it["Address"].is_u64()) {
        let inlined = symbol["Inlined"].as_array().into_iter().flatten();
        let names = std::iter::once(&symbol["Name"]).chain(inlined.rev());
        let names: Vec<String> = names.map(|it| it.as_str().unwrap().to_owned()).collect();
        let address = symbol["Address"].as_u64().unwrap();
        assert!(symbols.insert(address, (names, false)).is_none());
    }
    let (mut read, mut ids) = (Read::default(), Vec::new());
    for context in lines.iter().filter(|it| it["ID"].is_string()) {
        ids.push(context["ID"].as_str().unwrap().to_owned());
        let profile = &context["Profile"][0];
        assert_eq!(
            (&profile["Format"], &profile["AddrSize"]),
            (&"StackTraces".into(), &8.into())
        );
        let data = BASE64_STANDARD
            .decode(profile["Data"].as_str().unwrap())
            .unwrap();
        let stacks = decode_stack_traces(WordLayout::WIDE, &data).unwrap();
        let mut seen = BTreeMap::new();
        let mut sum = 0;
        for StackTrace { count, addresses } in stacks {
            assert!(
                seen.insert(addresses.clone(), count)
                    .is_none_or(|before| before == i32::MAX as u64)
            );
            sum += count;
            let mut stack = Vec::new();
            for address in addresses.iter().rev() {
                let (names, met) = symbols.get_mut(address).unwrap();
                *met = true;
                stack.extend(names.clone());
            }
            read.stacks.push((stack, count));
        }
        assert_eq!(sum, profile["Samples"].as_u64().unwrap());
        if let Some(nothing) = profile["NoStack"].as_u64() {
            read.stacks.push((Vec::new(), nothing));
        }
    }
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all);
    assert!(symbols.values().all(|(_, met)| *met));
    assert_eq!(lines.len(), 1 + all + symbols.len());
    read
}

fn perfetto(file: &[u8]) -> Read {
    let mut read = Read::default();
    /// What a sequence has given numbers.
    #[derive(Default)]
    struct Known {
        functions: BTreeMap<u64, String>,
        frames: BTreeMap<u64, u64>,
        stacks: BTreeMap<u64, Vec<u64>>,
        names: BTreeMap<u64, String>,
    }
    let mut sequences: BTreeMap<u32, Known> = BTreeMap::new();
    let (mut open, mut tracks) = (BTreeMap::new(), Vec::new());
    for packet in packets(file) {
        let known = sequences
            .entry(packet.trusted_packet_sequence_id)
            .or_default();
        if let Some(new) = packet.interned_data {
            for it in new.function_names {
                let name = String::from_utf8(it.str).unwrap();
                assert!(known.functions.insert(it.iid, name).is_none());
            }
            for it in new.frames {
                assert!(known.frames.insert(it.iid, it.function_name_id).is_none());
            }
            for it in new.callstacks {
                assert!(known.stacks.insert(it.iid, it.frame_ids).is_none());
            }
            for it in new.event_names {
                assert!(known.names.insert(it.iid, it.name).is_none());
            }
        }
        match packet.data {
            Some(Data::StackSample(sample)) => {
                let frames = known.stacks[&sample.callstack_iid].iter();
                let names = frames.map(|frame| known.functions[&known.frames[frame]].clone());
                let weight = sample.primary_weight.unwrap();
                read.stacks.push((names.collect(), weight));
            }
            Some(Data::TrackDescriptor(track)) => tracks.push(track.uuid),
            Some(Data::TrackEvent(event)) => {
                assert!(tracks.contains(&event.track_uuid));
                let is_call = event.categories.iter().any(|category| category == "call");
                if is_call {
                    read.calls
                        .push(known.names[&event.name_iid.unwrap()].clone());
                }
                let open: &mut i32 = open.entry(event.track_uuid).or_default();
                match event.r#type {
                    kind::BEGIN => *open += 1,
                    kind::END => *open -= 1,
                    _ => {}
                }
                assert!(*open >= 0);
            }
            _ => {}
        }
    }
    assert!(open.values().all(|open| *open == 0));
    let all = tracks.len();
    tracks.sort_unstable();
    tracks.dedup();
    assert_eq!(tracks.len(), all);
    read
}

fn packets(file: &[u8]) -> Vec<Packet> {
    Trace::decode(file).unwrap().packet
}

fn otlp(file: &[u8]) -> Read {
    let data = ProfilesData::decode(file).unwrap();
    let tables = data.dictionary.unwrap();
    assert_eq!(tables.string_table[0], "");
    assert_eq!(tables.stack_table[0], Default::default());
    assert_eq!(tables.function_table[0], Default::default());
    let mut read = Read::default();
    let profiles = data
        .resource_profiles
        .iter()
        .flat_map(|it| &it.scope_profiles);
    for scope in profiles.clone().filter_map(|it| it.scope.as_ref()) {
        // The specification: a key stands once.
        let mut keys: Vec<&str> = scope.attributes.iter().map(|it| it.key.as_str()).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
    }
    for profile in profiles.flat_map(|it| &it.profiles) {
        assert!(profile.period > 0 && profile.profile_id.len() == 16);
        let kind = profile.sample_type.unwrap();
        let kind = &tables.string_table[kind.type_strindex as usize];
        if ["samples", "waits", "calls", "call_time"].contains(&kind.as_str()) {
            continue;
        }
        for sample in &profile.samples {
            let places = &tables.stack_table[sample.stack_index as usize].location_indices;
            let mut names = Vec::new();
            for place in places {
                for line in &tables.location_table[*place as usize].lines {
                    let function = tables.function_table[line.function_index as usize];
                    names.push(tables.string_table[function.name_strindex as usize].clone());
                }
            }
            names.reverse();
            read.stacks.push((names, sample.values[0] as u64));
        }
    }
    read
}

/// [`weights`], each sample counted as one.
fn counts((tables, events): &Recording) -> BTreeMap<String, u64> {
    let mut events = events.clone();
    for event in &mut events {
        if let Event::Sample(sample) = event {
            sample.weight = 1;
        }
    }
    weights(&(tables.clone(), events), |_| true)
}

#[test]
fn sums_are_those_of_the_events() {
    let session = canonical::session_with_everything();
    for reader in READERS {
        let sums = weights_of(reader.of(&[], &session).stacks);
        let expected = match reader.weighs {
            true => weights(&session, |_| true),
            false => counts(&session),
        };
        assert_eq!(sums, expected, "{}", reader.format);
        let waits = reader.of(&[("source", "off-cpu")], &session);
        if reader.weighs {
            let expected = weights(&session, |sample| sample.wait.is_some());
            assert_eq!(weights_of(waits.stacks), expected, "{}", reader.format);
        }
        let error = try_export(reader.format, &[("source", "x")], &session).unwrap_err();
        assert!(
            error.to_string().contains("there are: cpu-clock"),
            "{error}"
        );
    }
}

/// What all of a span weighs in its report.
fn reported(range: TimeRange, (tables, events): &Recording) -> u64 {
    let options = ReportOptions {
        range,
        format: Format::Json,
        ..ReportOptions::default()
    };
    let mut collected = Collector::for_report(&options);
    for event in events {
        collected.add(event, tables);
    }
    let (mut out, collected) = (Vec::new(), &collected);
    report::run(&report::Recording { tables, collected }, &options, &mut out).unwrap();
    let report: Json = serde_json::from_slice(&out).unwrap();
    report["header"]["weight"].as_u64().unwrap()
}

#[test]
fn a_span_has_of_each_wait_what_the_report_of_it_has() {
    let session = canonical::session_with_everything();
    let whole = weights(&session, |_| true);
    let mut sum = 0;
    // Waits begin and end on both sides of each border.
    for span in ["..20ms", "20ms..45ms", "45ms..46ms", "46ms.."] {
        let selection = Selection {
            range: span.parse().unwrap(),
            ..Selection::default()
        };
        let expected = reported(selection.range, &session);
        sum += expected;
        for reader in READERS.iter().filter(|reader| reader.weighs) {
            let settings = settings(reader.format, reader.options);
            let file = export_into(&settings, &selection, &session).unwrap();
            let sums = weights_of((reader.read)(&file).stacks);
            assert_eq!(sums["[all]"], expected, "{} of {span}", reader.format);
        }
        for format in ["folded", "speedscope"] {
            let file = export_into(&settings(format, &[]), &selection, &session).unwrap();
            let sum: u64 = match format {
                "folded" => String::from_utf8(file)
                    .unwrap()
                    .lines()
                    .map(last_number)
                    .sum(),
                _ => speedscope_sum(&file),
            };
            assert_eq!(sum, expected, "{format} of {span}");
        }
    }
    assert_eq!(sum, whole["[all]"]);
}

fn last_number(line: &str) -> u64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn speedscope_sum(file: &[u8]) -> u64 {
    let file: Json = serde_json::from_slice(file).unwrap();
    let profiles = file["profiles"].as_array().unwrap().iter();
    let weights = profiles.filter_map(|profile| profile["weights"].as_array());
    weights
        .flatten()
        .map(|weight| weight.as_u64().unwrap())
        .sum()
}

/// The same samples, every other one by the same source at another rate, as if two captures were merged.
fn at_two_rates((tables, events): &Recording) -> Recording {
    let (mut tables, mut events) = (tables.clone(), events.clone());
    let mut others = BTreeMap::new();
    for (id, source) in tables
        .sources
        .iter()
        .map(|(id, it)| (id, it.clone()))
        .collect::<Vec<_>>()
    {
        let other = Source {
            frequency_hz: Some(4999),
            ..source
        };
        others.insert(id, tables.sources.intern(other).0);
    }
    let samples = events.iter_mut().filter_map(|event| match event {
        Event::Sample(sample) => Some(sample),
        _ => None,
    });
    for sample in samples.step_by(2) {
        sample.source = others[&sample.source];
    }
    (tables, events)
}

#[test]
fn one_source_at_two_rates_is_one() {
    let session = canonical::session_with_everything();
    let merged = at_two_rates(&session);
    for reader in READERS {
        let (one, two) = (reader.of(&[], &session), reader.of(&[], &merged));
        assert_eq!(
            weights_of(two.stacks),
            weights_of(one.stacks),
            "{}",
            reader.format
        );
        let named = [("source", "cpu-clock")];
        let (one, two) = (reader.of(&named, &session), reader.of(&named, &merged));
        assert_eq!(
            weights_of(two.stacks),
            weights_of(one.stacks),
            "{}",
            reader.format
        );
    }
    for (format, options) in [
        ("folded", &[][..]),
        ("folded", &[("source", "off-cpu")]),
        ("js-self-profiling", &[]),
        ("trace-actor", &[]),
    ] {
        let [one, two] = [&session, &merged].map(|session| {
            let file = try_export(format, options, session).unwrap();
            String::from_utf8(file).unwrap()
        });
        assert_eq!(one, two, "{format}");
    }
    // One column of each kind.
    let file = try_export("callgrind", &[], &merged).unwrap();
    let file = String::from_utf8(file).unwrap();
    let events = file.lines().find(|line| line.starts_with("events:"));
    assert_eq!(events.unwrap().matches("cpu-clock_ns").count(), 1);
}

#[test]
fn calls_are_those_that_were_traced() {
    let session = canonical::session_with_everything();
    let mut expected: Vec<String> = Vec::new();
    let tables = &session.0;
    let name = |id| {
        tables
            .string(tables.functions.get(id).unwrap().name)
            .to_owned()
    };
    let mut open = 0;
    for event in &session.1 {
        if let Event::Call(call) = event {
            match &call.edge {
                CallEdge::Enter(_) => open += 1,
                CallEdge::Exit(_) => {
                    open -= 1;
                    expected.push(name(call.function));
                }
                CallEdge::Hit(_) => expected.push(name(call.function)),
            }
        }
    }
    assert_eq!(open, 1);
    expected.sort();
    for reader in READERS.iter().filter(|reader| reader.calls) {
        let mut calls = reader.of(&[], &session).calls;
        calls.sort();
        // One of `walk` is open at the end.
        let open = calls.iter().zip(&expected).position(|(a, b)| a != b);
        calls.remove(open.unwrap_or(expected.len()));
        assert_eq!(calls, expected, "{}", reader.format);
    }
}

#[test]
fn names_are_as_they_are() {
    for reader in READERS {
        for name in hostile() {
            let session = session_of(&[(vec![&name, "main"], 5)], &name);
            let read = reader.of(&[], &session);
            let sums = weights_of(read.stacks);
            let weight = if reader.weighs { 5000 } else { 5 };
            assert_eq!(sums["main"], weight, "{}: {name:?}", reader.format);
            if reader.any_name {
                assert_eq!(sums[&name], weight, "{}: {name:?}", reader.format);
            }
        }
    }
}

#[test]
fn nothing_is_a_file_too() {
    let (tables, _) = canonical::session();
    let session = (tables, Vec::new());
    for reader in READERS {
        assert_eq!(reader.of(&[], &session).stacks, [], "{}", reader.format);
    }
}

#[test]
fn huge_weights_do_not_overflow() {
    let (tables, mut events) = canonical::session_with_everything();
    for event in &mut events {
        if let Event::Sample(sample) = event {
            sample.weight = u64::MAX;
            sample.at = Timestamp(u64::MAX - 1);
        }
    }
    let session = (tables, events);
    for format in profiler_report::export::formats() {
        // What must not happen is a panic.
        assert!(
            try_export(format.name, &[], &session).is_ok(),
            "{}",
            format.name
        );
    }
}

#[test]
fn goldens_are_kept() {
    let session = canonical::session();
    for (format, file) in [
        ("firefox", "canonical.firefox.json"),
        ("chrome-trace", "canonical.trace.json"),
        ("cpuprofile", "canonical.cpuprofile"),
        ("callgrind", "canonical.callgrind"),
        ("tcf", "canonical.tcf.jsonl"),
    ] {
        let text = export(format, &[], &session);
        golden::check(&format!("export/{file}"), &text);
    }
    let everything = canonical::session_with_everything();
    let trace = try_export("perfetto", &[], &everything).unwrap();
    let shown: String = packets(&trace)
        .iter()
        .map(|it| format!("{it:?}\n"))
        .collect();
    golden::check("export/everything.perfetto.txt", &shown);
    let profiles = try_export("otlp", &[], &everything).unwrap();
    let profiles = ProfilesData::decode(&profiles[..]).unwrap();
    golden::check("export/everything.otlp.txt", &format!("{profiles:#?}\n"));
}

#[test]
fn samples_of_perf_are_there_if_asked_for() {
    let session = canonical::session_with_everything();
    let trace = try_export("perfetto", &[("samples", "perf")], &session).unwrap();
    let samples = packets(&trace);
    let samples = samples
        .iter()
        .filter(|it| matches!(it.data, Some(Data::PerfSample(_))));
    let expected = session.1.iter().filter(|it| matches!(it, Event::Sample(_)));
    assert_eq!(samples.count(), expected.count());
}

/// What a function costs itself, and with what it calls.
type Costs = (Vec<u64>, Vec<u64>);

/// The functions of callgrind's text.
fn callgrind(text: &str) -> BTreeMap<String, Costs> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut costs: BTreeMap<String, Costs> = BTreeMap::new();
    let (mut current, mut calls) = (String::new(), false);
    let add = |sums: &mut Vec<u64>, numbers: &[u64]| {
        sums.resize(numbers.len(), 0);
        sums.iter_mut()
            .zip(numbers)
            .for_each(|(sum, number)| *sum += number);
    };
    for line in text
        .lines()
        .skip_while(|line| !line.starts_with("events:"))
        .skip(1)
    {
        if let Some((key, value)) = line.split_once('=') {
            if key == "calls" {
                calls = true;
                continue;
            }
            let (number, text) = value.split_once(' ').unwrap_or((value, ""));
            let kind = match key.trim_start_matches('c') {
                "fi" | "fl" => "file",
                "ob" => "object",
                _ => "function",
            };
            let id = format!("{kind} {number}");
            if !text.is_empty() {
                assert!(names.insert(id.clone(), text.to_owned()).is_none());
            }
            if key == "fn" {
                current = names[&id].clone();
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let numbers: Vec<u64> = line
                .split(' ')
                .skip(1)
                .map(|it| it.parse().unwrap())
                .collect();
            let (own, all) = costs.entry(current.clone()).or_default();
            if !calls {
                add(own, &numbers);
            }
            add(all, &numbers);
            calls = false;
        } else {
            assert!(line.is_empty() || line.starts_with("totals:"), "{line}");
        }
    }
    costs
}

#[test]
fn callgrind_costs_are_those_of_the_events() {
    let session = canonical::session_with_everything();
    let costs = callgrind(&export("callgrind", &[], &session));
    let mut expected = weights(&session, |_| true);
    let all = expected.remove("[all]").unwrap();
    let of = |costs: &[u64]| costs[1] + costs[3];
    for (name, weight) in expected {
        assert_eq!(of(&costs[&name].1), weight, "{name}");
    }
    assert_eq!(
        costs
            .values()
            .map(|(own, _)| own.get(1..4).map_or(0, |it| it[0] + it[2]))
            .sum::<u64>(),
        all
    );
    let text = export("callgrind", &[], &session);
    // 16 calls of `parse_header`, each of 250 us.
    let lines: Vec<&str> = text.lines().collect();
    let traced = lines
        .windows(2)
        .filter(|it| it[0] == "calls=16 0" && it[1].ends_with(" 4000000"));
    assert_eq!(traced.count(), 1);
    for name in hostile() {
        let session = session_of(&[(vec![&name, "main"], 5)], &name);
        let costs = callgrind(&export("callgrind", &[], &session));
        assert_eq!(costs["main"].0, [5, 5000], "{name:?}");
        assert_eq!(costs.len(), 3, "these, and the process");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn weights_are_those_of_the_folded_stacks(stacks in odd_stacks()) {
        let session = session_of_odd(&stacks, "p");
        let folded = |count| folded_sum(&[("count", count)], &session);
        let (samples, weight) = (folded("samples"), folded("weight"));
        for reader in READERS {
            let read = reader.of(&[], &session);
            let sum: u64 = read.stacks.iter().map(|(_, weight)| weight).sum();
            prop_assert_eq!(sum, if reader.weighs { weight } else { samples }, "{}", reader.format);
        }
        let costs = callgrind(&export("callgrind", &[], &session));
        let own = costs.values().filter_map(|(own, _)| own.get(1));
        prop_assert_eq!(own.sum::<u64>(), weight);
    }
}
