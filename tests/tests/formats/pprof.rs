//! pprof profiles: read back by their own schema, and by `go tool pprof`.
//!
//! Sums must be those of the folded stacks and of the events. What does not belong here: messages (`wire`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use crate::export_shared::*;
use crate::go_trace::go;
use crate::golden;
use profiler_model::*;
use profiler_report::derive::stack_frames;
use profiler_tests::canonical;
use profiler_wire::Message;
use profiler_wire::pprof::{Label, Profile, Sample};
use proptest::prelude::*;

struct Readable(Profile);

impl Readable {
    fn of(options: &[(&str, &str)], session: &Recording) -> Readable {
        let packed = try_export("pprof", options, session).unwrap();
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_end(&mut plain)
            .unwrap();
        let profile = Profile::decode(&plain[..]).unwrap();
        assert_eq!(profile.string_table[0], "");
        let distinct: BTreeSet<_> = profile.string_table.iter().collect();
        assert_eq!(distinct.len(), profile.string_table.len());
        let ids = |ids: &mut dyn Iterator<Item = u64>| {
            for (index, id) in ids.enumerate() {
                assert_eq!(id, index as u64 + 1);
            }
        };
        ids(&mut profile.location.iter().map(|it| it.id));
        ids(&mut profile.mapping.iter().map(|it| it.id));
        for function in &profile.function {
            assert!(function.id as usize <= profile.function.len());
        }
        for sample in &profile.sample {
            assert_eq!(sample.value.len(), profile.sample_type.len());
        }
        Readable(profile)
    }

    fn text(&self, index: i64) -> &str {
        &self.0.string_table[index as usize]
    }

    fn function(&self, id: u64) -> &str {
        let mut functions = self.0.function.iter();
        self.text(functions.find(|it| it.id == id).unwrap().name)
    }

    /// Names, leaf first.
    fn names(&self, sample: &Sample) -> Vec<&str> {
        let places = sample.location_id.iter();
        let places = places.map(|id| &self.0.location[*id as usize - 1]);
        let lines = places.flat_map(|place| &place.line);
        lines.map(|line| self.function(line.function_id)).collect()
    }

    fn label(&self, label: &Label) -> String {
        match label.str {
            0 => format!("{}={}", self.text(label.key), label.num),
            text => format!("{}={}", self.text(label.key), self.text(text)),
        }
    }

    fn sums(&self) -> Vec<i64> {
        let mut sums = vec![0; self.0.sample_type.len()];
        for sample in &self.0.sample {
            for (sum, value) in sums.iter_mut().zip(&sample.value) {
                *sum += value;
            }
        }
        sums
    }

    /// All of it for people.
    fn render(&self) -> String {
        let profile = &self.0;
        let mut out = String::new();
        let types = profile.sample_type.iter();
        let types: Vec<_> = types
            .map(|it| format!("{}/{}", self.text(it.kind), self.text(it.unit)))
            .collect();
        let period = profile.period_type.as_ref().map(|it| self.text(it.kind));
        writeln!(
            out,
            "types {}; default {}; period {} {:?}; from {} for {}",
            types.join(" "),
            self.text(profile.default_sample_type),
            profile.period,
            period,
            profile.time_nanos,
            profile.duration_nanos
        )
        .unwrap();
        for comment in &profile.comment {
            writeln!(out, "# {}", self.text(*comment)).unwrap();
        }
        for it in &profile.mapping {
            let (file, build_id) = (self.text(it.filename), self.text(it.build_id));
            let has = [
                it.has_functions,
                it.has_filenames,
                it.has_line_numbers,
                it.has_inline_frames,
            ];
            writeln!(
                out,
                "mapping {} ..{:#x} {file} {build_id} {has:?}",
                it.id, it.memory_limit
            )
            .unwrap();
        }
        for it in &profile.location {
            write!(
                out,
                "location {} in {} at {:#x}:",
                it.id, it.mapping_id, it.address
            )
            .unwrap();
            for line in &it.line {
                let name = self.function(line.function_id);
                write!(out, " {name}:{}", line.line).unwrap();
            }
            out.push('\n');
        }
        for it in &profile.function {
            let (name, file) = (self.text(it.name), self.text(it.filename));
            writeln!(out, "function {name} {file}:{}", it.start_line).unwrap();
        }
        for sample in &profile.sample {
            let labels: Vec<_> = sample.label.iter().map(|it| self.label(it)).collect();
            writeln!(
                out,
                "{:?} {:?} {}",
                sample.value,
                sample.location_id,
                labels.join(" ")
            )
            .unwrap();
        }
        out
    }
}

#[test]
fn is_golden() {
    let read = Readable::of(&[], &canonical::session_with_everything());
    golden::check("export/everything.pprof.txt", &read.render());
}

/// Samples per function that is in their stacks, however often.
fn functions_of_events((tables, events): &Recording) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for event in events {
        if let Event::Sample(sample) = event
            && sample.wait.is_none()
        {
            let frames = stack_frames(tables, sample.kernel, sample.user);
            let names: BTreeSet<_> = frames.map(|frame| frame.name.into_owned()).collect();
            for name in names {
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    counts
}

#[test]
fn sums_are_those_of_the_events() {
    let session = canonical::session_with_everything();
    let read = Readable::of(&[], &session);
    let mut expected = [0; 6];
    for event in &session.1 {
        match event {
            Event::Sample(sample) => {
                let at = if sample.wait.is_some() { 2 } else { 0 };
                expected[at] += sample.wait.map_or(1, |wait| i64::from(wait.count));
                expected[at + 1] += sample.weight as i64;
            }
            Event::Call(call) => match &call.edge {
                CallEdge::Exit(exit) => {
                    expected[4] += 1;
                    expected[5] += exit.self_ns as i64;
                }
                CallEdge::Hit(_) => expected[4] += 1,
                CallEdge::Enter(_) => {}
            },
            _ => {}
        }
    }
    assert_eq!(read.sums(), expected);
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for sample in &read.0.sample {
        let names: BTreeSet<_> = read.names(sample).into_iter().collect();
        for name in names.into_iter().filter(|_| sample.value[0] > 0) {
            *counts.entry(name.to_owned()).or_default() += sample.value[0];
        }
    }
    assert_eq!(counts, functions_of_events(&session));
}

#[test]
fn one_source_is_chosen() {
    let session = canonical::session_with_waits();
    let read = Readable::of(&[("source", "off-cpu")], &session);
    let kinds: Vec<_> = read
        .0
        .sample_type
        .iter()
        .map(|it| read.text(it.kind))
        .collect();
    assert_eq!(kinds, ["waits", "wait", "calls", "call-time"]);
    let error = try_export("pprof", &[("source", "cycles")], &session).unwrap_err();
    assert!(error.to_string().contains("'cycles'; there are: cpu-clock"));
}

#[test]
fn nothing_is_a_profile_too() {
    let (tables, _) = canonical::session();
    let read = Readable::of(&[], &(tables, Vec::new()));
    assert!(read.0.sample.is_empty() && read.0.sample_type.is_empty());
}

#[test]
fn names_are_as_they_are() {
    let long = "x".repeat(70_000);
    for name in HOSTILE.iter().copied().chain([long.as_str()]) {
        let session = session_of(&[(vec![name, "main"], 5)], name);
        let read = Readable::of(&[], &session);
        let sample = &read.0.sample[0];
        assert_eq!(
            (read.names(sample), sample.value[0]),
            (vec!["main", name], 5)
        );
        assert_eq!(
            read.label(&sample.label[0]),
            match name {
                // An empty text is number 0, which can't be told from a number.
                "" => "process=0".to_owned(),
                name => format!("process={name}"),
            }
        );
    }
}

/// What `go tool pprof` counts: below each function, and in it itself.
fn top(file: &Path, kind: &str) -> Option<BTreeMap<String, (i64, i64)>> {
    if let Err(error) = go().arg("version").output() {
        profiler_tests::skip::skip("pprof", &format!("there is no Go: {error}"));
        return None;
    }
    let mut command = go();
    command.args([
        "tool",
        "pprof",
        "-top",
        "-symbolize=none",
        "-nodecount=100000",
    ]);
    command.args(["-nodefraction=0", "-unit=ns"]);
    let output = command
        .arg(format!("-sample_index={kind}"))
        .arg(file)
        .output()
        .unwrap();
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{errors}");
    let rows = text
        .lines()
        .skip_while(|line| !line.contains("flat%"))
        .skip(1);
    let number = |text: &str| text.trim_end_matches("ns").parse::<i64>().unwrap();
    let row = |line: &str| {
        let mut words = line.trim_start();
        let mut word = || {
            let (word, rest) = words.split_once(' ').unwrap();
            words = rest.trim_start();
            word
        };
        let columns: Vec<_> = (0..5).map(|_| word()).collect();
        let name = words.trim_end_matches(" (inline)").to_owned();
        (name, (number(columns[0]), number(columns[3])))
    };
    Some(rows.map(row).collect())
}

#[test]
fn go_counts_the_same() {
    let session = canonical::session_with_everything();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("everything.pb.gz");
    std::fs::write(&file, try_export("pprof", &[], &session).unwrap()).unwrap();
    let Some(samples) = top(&file, "samples") else {
        return;
    };
    let counts = samples.iter().filter(|(_, (_, below))| *below > 0);
    let counts: BTreeMap<_, _> = counts
        .map(|(name, (_, below))| (name.clone(), *below))
        .collect();
    assert_eq!(counts, functions_of_events(&session));
    let read = Readable::of(&[], &session);
    let sums = read.sums();
    for (kind, sum) in ["samples", "cpu", "waits", "wait", "calls", "call-time"]
        .into_iter()
        .zip(sums)
    {
        let flat: i64 = top(&file, kind)
            .unwrap()
            .values()
            .map(|(flat, _)| flat)
            .sum();
        assert_eq!(flat, sum, "{kind}");
    }
    let calls = top(&file, "calls").unwrap();
    assert_eq!((calls["parse_header"].0, calls["web:request"].0), (16, 8));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn weights_are_those_of_the_folded_stacks(
        stacks in prop::collection::vec((prop::collection::vec(".{0,6}", 0..5), 1..4_u64), 0..8),
    ) {
        let stacks: Vec<(Vec<&str>, u64)> = stacks
            .iter()
            .map(|(names, count)| (names.iter().map(String::as_str).collect(), *count))
            .collect();
        let session = session_of(&stacks, "p");
        let read = Readable::of(&[], &session);
        for (place, count) in ["samples", "weight"].into_iter().enumerate() {
            let folded = export("folded", &[("count", count)], &session);
            let numbers = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
            let sum: i64 = numbers.map(|number| number.parse::<i64>().unwrap()).sum();
            prop_assert_eq!(read.sums().get(place).copied().unwrap_or(0), sum);
        }
    }
}
