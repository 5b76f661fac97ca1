//! What other tools wrote becomes a recording that says the same.
//!
//! Our own exports (which others' readers check) and text as perf has it -> a recording; damaged ones -> an error, and no panic.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;

use crate::export_shared::*;
use profiler_model::*;
use profiler_report::import::profiles::{ImportError, Imported, Kind, import};
use profiler_tests::canonical;
use proptest::prelude::*;

pub(crate) fn read(file: &[u8], kind: Option<Kind>) -> Result<(Recording, Imported), ImportError> {
    let (mut tables, mut events, mut epoch) = (Tables::default(), Vec::new(), Epoch::default());
    let bias = |_: &str, _: &BuildId, _| 0;
    let imported = import(&mut &file[..], kind, "file", &bias, &mut |batch: Batch| {
        for definition in batch.definitions {
            epoch.define(&mut tables, definition).unwrap();
        }
        let mapped = batch
            .events
            .into_iter()
            .map(|event| epoch.event(event).unwrap());
        events.extend(mapped);
        Ok(())
    })?;
    assert!(events.is_sorted_by_key(Event::at));
    Ok(((tables, events), imported))
}

/// Without what has no name, which is shown by its place.
fn named(mut weights: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    weights.retain(|name, _| !name.contains("+0x"));
    weights
}

#[test]
fn folded_stacks_come_back() {
    for session in [canonical::session(), canonical::session_with_everything()] {
        let options = [("count", "weight")];
        let file = export("folded", &options, &session);
        let (recording, imported) = read(file.as_bytes(), None).unwrap();
        assert_eq!(imported.samples as usize, file.lines().count());
        assert_eq!(export("folded", &options, &recording), file);
    }
}

#[test]
fn text_of_perf_script_comes_back() {
    let session = canonical::session_with_everything();
    let file = export("perf-script", &[], &session);
    let (recording, imported) = read(file.as_bytes(), None).unwrap();
    let samples = |events: &[Event]| {
        events
            .iter()
            .filter(|it| matches!(it, Event::Sample(_)))
            .count()
    };
    assert_eq!(imported.samples as usize, samples(&session.1));
    for waits in [false, true] {
        let wanted = |sample: &Sample| sample.wait.is_some() == waits;
        assert_eq!(
            named(weights(&recording, wanted)),
            named(weights(&session, wanted))
        );
    }
    let threads: Vec<(u32, u32)> = recording
        .0
        .threads()
        .map(|(_, it)| (it.tid.0, it.process.get()))
        .collect();
    let expected: Vec<u32> = session.0.threads().map(|(_, it)| it.tid.0).collect();
    assert!(threads.iter().all(|(tid, _)| expected.contains(tid)));
}

#[test]
fn text_of_perf_itself_is_read() {
    let text = "# ========\n# captured on : today\n\nmy prog  100/101  [002]  12.345678:    1001001 cpu-clock:u: \n\
                \t    55d1 leaf(int)+0x11 (/usr/bin/my prog)\n\t    4400 in (inlined)\n\t    4400 caller+0x10 (/usr/bin/my prog)\n\
                \t    7f00 [unknown] (/usr/lib/x.so (deleted))\n\nswapper     0 [000]  12.345999:          1 sched:sched_switch: prev_comm=a b\n\
                \tffffffff81000010 do_idle+0x0 ([kernel.kallsyms])\n\n";
    let ((tables, events), imported) = read(text.as_bytes(), None).unwrap();
    assert_eq!(imported.samples, 2);
    let Event::Sample(sample) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(
        (sample.at.0, sample.cpu.0, sample.weight),
        (12_345_678_000, 2, 1_001_001)
    );
    let frames = profiler_report::derive::stack_frames(&tables, sample.kernel, sample.user);
    let names: Vec<String> = frames.map(|it| it.name.into_owned()).collect();
    assert_eq!(names, ["leaf(int)", "in", "caller", "x.so+0x7f00"]);
    let Event::Sample(sample) = &events[1] else {
        panic!("{events:?}");
    };
    assert!(sample.kernel.is_some() && sample.user.is_none());
    assert_eq!(
        tables.sources.get(sample.source).unwrap().unit,
        Unit::Events
    );
}

/// Frames of each sample, leaf first, behind the name of its process.
fn text_stacks(text: &str) -> Vec<String> {
    let ((tables, events), imported) = read(text.as_bytes(), None).unwrap();
    let samples = events.iter().filter_map(|event| match event {
        Event::Sample(sample) => Some(sample),
        _ => None,
    });
    let stacks: Vec<String> = samples
        .map(|sample| {
            let frames = profiler_report::derive::stack_frames(&tables, sample.kernel, sample.user);
            let names: Vec<String> = frames.map(|it| it.name.into_owned()).collect();
            let source = tables.sources.get(sample.source).unwrap().name;
            let source = tables.string(source);
            format!("{source} {} {}", sample.weight, names.join("<"))
        })
        .collect();
    assert_eq!(imported.samples as usize, stacks.len());
    stacks
}

#[test]
fn text_of_perf_without_call_chains_is_a_sample_a_line() {
    let text = "             two  2357   966.702781:     250000 cpu-clock:ppp:      5630b2984183 three+0x15 (/tmp/two)\n\
                \x20           beef  2357   966.703033:     250000 cpu-clock:ppp:  ffffffff821f5b65 idle+0x5 ([kernel.kallsyms])\n\
                \x20           perf  2060 [000]   966.8:               sched:sched_stat_runtime: comm=perf pid=2060 runtime=177663 [ns]\n\
                \x20             ls  2895 [001]   966.9: raw_syscalls:sys_enter: NR 12 (0, 7ffdd128f2ec, 0, 37f, 0, 0)\n";
    let expected = [
        "cpu-clock:ppp 250000 three",
        "cpu-clock:ppp 250000 idle",
        "sched:sched_stat_runtime 1 ",
        "raw_syscalls:sys_enter 1 ",
    ];
    assert_eq!(text_stacks(text), expected);
    let ((_, events), _) = read(text.as_bytes(), None).unwrap();
    let Event::Sample(sample) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(sample.user_end, StackEnd::LeafOnly);
}

#[test]
fn what_perf_shows_besides_samples_is_passed_over() {
    let text = "two 7 [000] 1.0: PERF_RECORD_MMAP2 7/7: [0x1(0x2) @ 0 fe:00 1 2]: r-xp /tmp/two\n\
                two 7 [000] 1.1: PERF_RECORD_COMM exec: two:7/7\n\
                two 7 [000] 1.2:          9 cycles: \n\tf1 leaf+0x1 (/tmp/two)\n  two.c:12\n\tf0 main+0x1 (/tmp/two)\n  two.c:3\n\n\
                two 7 [000] 1.3: PERF_RECORD_LOST lost 12\n\
                two 7 [000] 1.4: PERF_RECORD_SWITCH OUT\n\
                two 7 1.5: \n\tf1 leaf\n\n";
    assert_eq!(text_stacks(text), ["cycles 9 leaf<main", "samples 1 leaf"]);
    let ((_, events), _) = read(text.as_bytes(), None).unwrap();
    let lost = events.iter().find_map(|event| match event {
        Event::Lost(lost) => Some(lost.count),
        _ => None,
    });
    assert_eq!(lost, Some(12));
}

#[test]
fn a_thread_of_perfs_text_has_the_name_of_the_time() {
    let sample =
        |comm: &str, at: u32| format!("{comm} 7/7 {at}.5: 1 cycles: \n\tf1 f+0x1 (/x)\n\n");
    let text = [sample("sh", 1), sample("two", 2), sample("two", 3)].concat();
    let ((tables, events), _) = read(text.as_bytes(), None).unwrap();
    let names: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::Sample(sample) => {
                let then = tables.names_at(sample.thread, sample.at);
                let last = tables.thread(sample.thread).unwrap().name;
                Some(tables.string(then.thread.unwrap_or(last)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(names, ["sh", "two", "two"]);
    let (_, process) = tables.processes().next().unwrap();
    assert_eq!(tables.string(process.name), "two");
}

/// Which source has the first sample is chance: what a report shows comes first in a file that has all.
#[test]
fn sources_are_in_the_order_of_interest() {
    let sample = |event: &str, at: u32| format!("a 7/7 {at}.5: 9 {event}: \n\tf1 f+0x1 (/x)\n\n");
    let text = [
        sample("page-faults", 1),
        sample("cpu-clock", 2),
        sample("cpu-clock", 3),
    ];
    let (recording, _) = read(text.concat().as_bytes(), None).unwrap();
    let file = export("callgrind", &[], &recording);
    let events = file.lines().find(|line| line.starts_with("events:"));
    assert_eq!(
        events,
        Some("events: cpu-clock_samples cpu-clock_ns page-faults_samples page-faults")
    );
}

#[test]
fn pprof_comes_back() {
    let session = canonical::session_with_everything();
    let file = try_export("pprof", &[], &session).unwrap();
    let (recording, _) = read(&file, None).unwrap();
    let source = |name: &str| {
        let mut sources = recording.0.sources.iter();
        sources
            .find(|(_, it)| recording.0.string(it.name) == name)
            .unwrap()
            .0
    };
    for (kind, waits) in [("cpu", false), ("wait", true)] {
        let mut of = weights(&recording, |sample| sample.source == source(kind));
        // What pprof needs where there is nothing.
        of.remove("[no stack]");
        assert_eq!(
            of,
            weights(&session, |sample| sample.wait.is_some() == waits),
            "{kind}"
        );
    }
    let build_ids = |tables: &Tables| {
        let mut ids: Vec<String> = tables
            .modules
            .iter()
            .filter_map(|(_, it)| Some(it.build_id.as_ref()?.to_string()))
            .collect();
        ids.sort();
        ids.dedup();
        ids
    };
    assert!(build_ids(&session.0).ends_with(&build_ids(&recording.0)[1..]));
    let error = read(&file[..file.len() / 2], None).unwrap_err().to_string();
    assert!(error.contains("no profile of pprof"), "{error}");
}

#[test]
fn profiles_of_firefox_come_back() {
    let session = canonical::session_with_everything();
    let file = try_export("firefox", &[("count", "weight")], &session).unwrap();
    let (recording, imported) = read(&file, None).unwrap();
    assert!(imported.left_out == 0 && imported.samples > 0);
    let aside = [
        "[sleeping]",
        "[disk]",
        "[preempted]",
        "[stopped]",
        "[no stack]",
    ];
    let mut of = weights(&recording, |_| true);
    of.retain(|name, _| !aside.contains(&name.as_str()));
    // All sources but one are left out of the file.
    let of_clock = weights(&session, |sample| {
        sample.wait.is_some() || is_of_clock(sample, &session)
    });
    assert_eq!(of, of_clock);
    let (tables, events) = &recording;
    let in_kernel =
        |event: &&Event| matches!(event, Event::Sample(sample) if sample.kernel.is_some());
    let kernel = events.iter().filter(in_kernel).count();
    assert!(kernel > 0);
    let inlined = tables
        .frames
        .iter()
        .any(|(id, _)| tables.lines(id).len() > 1);
    assert!(inlined, "inlined functions stay where they are inlined");
    // Gzipped it is the same.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &file).unwrap();
    let (again, _) = read(&packed.finish().unwrap(), None).unwrap();
    assert_eq!(weights(&again, |_| true), weights(&recording, |_| true));
}

fn is_of_clock(sample: &Sample, (tables, _): &Recording) -> bool {
    let source = tables.sources.get(sample.source).unwrap();
    tables.string(source.name) == "cpu-clock"
}

#[test]
fn profiles_of_firefox_with_tables_of_each_thread_are_read() {
    let file = r#"{"meta": {"preprocessedProfileVersion": 50, "startTime": 1000.5, "categories": [{"name": "Other"}, {"name": "Kernel"}]},
        "threads": [{"name": "worker", "processName": "app", "pid": "77.1", "tid": 78,
        "stringArray": ["main", "read", "main.c"],
        "funcTable": {"length": 2, "name": [0, 1], "fileName": [2, null]},
        "frameTable": {"length": 2, "func": [0, 1], "category": [0, 1], "line": [12, null]},
        "stackTable": {"length": 2, "frame": [0, 1], "prefix": [null, 0], "category": [0, 1]},
        "samples": {"length": 3, "stack": [1, 0, null], "timeDeltas": [0, 1.5, 1], "weight": null, "weightType": "samples"}}]}"#;
    let ((tables, events), imported) = read(file.as_bytes(), None).unwrap();
    assert_eq!(imported.samples, 3);
    let of = weights(&(tables.clone(), events.clone()), |_| true);
    assert_eq!((of["main"], of["read"], of["[all]"]), (2, 1, 3));
    let samples: Vec<&Sample> = events
        .iter()
        .filter_map(|event| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        })
        .collect();
    assert!(samples[0].kernel.is_some() && samples[1].kernel.is_none());
    assert_eq!(samples[1].at.since(samples[0].at), 1_500_000);
    let thread = tables.thread(samples[0].thread).unwrap();
    assert_eq!(
        (thread.tid, tables.process(thread.process).unwrap().pid),
        (Tid(78), Pid(77))
    );
    let frame = tables.frames_of(samples[1].user).next().unwrap();
    assert_eq!(tables.lines(frame)[0].line, 12);
}

#[test]
fn traces_of_go_come_back() {
    let session = canonical::session_with_waits();
    for format in ["go-trace", "go-trace-wire"] {
        let file = try_export(
            format,
            &[("version", "25"), ("generation", "100")],
            &session,
        )
        .unwrap();
        let ((tables, events), _) = read(&file, None).unwrap();
        let counted = |recording: &Recording, waits: bool| {
            let mut counted = recording.1.clone();
            for event in &mut counted {
                if let Event::Sample(sample) = event {
                    sample.weight = 1;
                }
            }
            named(weights(&(recording.0.clone(), counted), |it| {
                it.wait.is_some() == waits
            }))
        };
        let ours = counted(&(tables.clone(), events.clone()), false);
        assert_eq!(ours, counted(&session, false), "{format}");
        let waits: Vec<&Sample> = events
            .iter()
            .filter_map(|event| match event {
                Event::Sample(sample) if sample.wait.is_some() => Some(sample),
                _ => None,
            })
            .collect();
        // What was preempted is no wait for Go; a wait that was not over has no end.
        let ours = counted(&(tables.clone(), events.clone()), true);
        let theirs = counted(&session, true);
        assert!(ours.len() > 1 && waits.iter().all(|it| it.weight > 0));
        for (function, count) in &ours {
            assert!(*count <= theirs[function], "{format}: {function}");
        }
        let source = tables.sources.get(waits[0].source).unwrap();
        assert_eq!(tables.string(source.name), "off-cpu");
    }
}

#[test]
fn hostile_names_come_back() {
    for name in hostile() {
        let session = session_of(&[(vec![&name, "main"], 5)], &name);
        for (format, options) in [
            ("folded", &[("count", "weight")][..]),
            ("perf-script", &[]),
            ("pprof", &[]),
            ("firefox", &[("count", "weight")]),
        ] {
            let file = try_export(format, options, &session).unwrap();
            let (recording, _) =
                read(&file, None).unwrap_or_else(|error| panic!("{format} {name:?}: {error}"));
            assert_eq!(
                weights(&recording, |_| true)["main"],
                5000,
                "{format}: {name:?}"
            );
        }
    }
}

#[test]
fn what_is_no_recording_is_said_to_be_none() {
    for (file, kind, said) in [
        (&b""[..], None, "it is empty"),
        (b"", Some(Kind::Pprof), "it is empty"),
        (
            b"hello\n",
            None,
            "say which: --from folded|perf-script|perf-data|pprof|go-trace|firefox",
        ),
        (b"# nothing\n", Some(Kind::Folded), "holds no samples"),
        (b"a;b 1\na;b\n", Some(Kind::Folded), "line 2: no number"),
        (b"a 1 1.5: x:\n\tzz\n", None, "line 2: it is no frame"),
        (
            b"a 1 1.5: x:\n\n\nb\n",
            None,
            "line 4: it does not begin a sample",
        ),
        (b"PERFILE2", None, "it ends within its header"),
        (
            b"PERFILE2\x68\0\0\0\0\0\0\0x",
            None,
            "what its header points to is not there",
        ),
        (
            b"go 1.22 trace\0\0\0\xff",
            None,
            "there is no event of number 255",
        ),
        (b"go 1.22 trace\0\0\0", None, "holds no samples"),
        (b"{\"meta\": 1}", None, "it has no threads"),
        (b"{", None, "it is no profile of the Firefox Profiler"),
        (b"\x0a\x00", Some(Kind::Pprof), "there is no text 0"),
        (b"\x12\x00", Some(Kind::Pprof), "no types of samples"),
    ] {
        let error = read(file, kind).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn anything_is_read_without_panic(
        format in 0..5_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let kinds = [Kind::Folded, Kind::PerfScript, Kind::Pprof, Kind::GoTrace, Kind::Firefox];
        let kind = kinds[format];
        let session = session_of(&[(vec!["main", "a;b"], 2), (vec!["main"], 1)], "p");
        let mut file = try_export(kind.name(), &[], &session).unwrap();
        if kind == Kind::Pprof {
            let mut plain = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&file[..]), &mut plain).unwrap();
            file = plain;
        }
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        let _ = read(&file, Some(kind));
        let _ = read(&file[..cut.index(file.len())], Some(kind));
        let _ = read(&file, None);
    }
}
