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

fn read(file: &[u8], kind: Option<Kind>) -> Result<(Recording, Imported), ImportError> {
    let (mut tables, mut events, mut epoch) = (Tables::default(), Vec::new(), Epoch::default());
    let imported = import(&mut &file[..], kind, "file", &mut |batch: Batch| {
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
fn hostile_names_come_back() {
    for name in hostile() {
        let session = session_of(&[(vec![&name, "main"], 5)], &name);
        for (format, options) in [
            ("folded", &[("count", "weight")][..]),
            ("perf-script", &[]),
            ("pprof", &[]),
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
        (&b""[..], None, "say which: --from folded|perf-script|pprof"),
        (b"hello\n", None, "say which"),
        (b"# nothing\n", Some(Kind::Folded), "holds no samples"),
        (b"a;b 1\na;b\n", Some(Kind::Folded), "line 2: no number"),
        (b"a 1 1.5: x:\n\tzz\n", None, "line 2: it is no frame"),
        (
            b"a 1 1.5: x:\n\n\nb\n",
            None,
            "line 4: it does not begin a sample",
        ),
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
        format in 0..3_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let kind = Kind::ALL[format];
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
