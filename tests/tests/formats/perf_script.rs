//! Text as of perf script, read back by its grammar: sums are those of the events.
#![allow(clippy::unwrap_used)] // A test fails by it.

use crate::export_shared::*;
use crate::golden;
use profiler_model::Sample;
use profiler_tests::canonical;
use proptest::prelude::*;

/// A paragraph: comm, pid, tid, event, weight, and functions, root first.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    comm: String,
    ids: (u32, u32),
    event: String,
    weight: u64,
    stack: Vec<String>,
}

/// As scripts do it: a line that does not begin with a blank begins a sample, an empty one ends it.
fn read(text: &str) -> Vec<Read> {
    let mut all: Vec<Read> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("# ")) {
        if let Some(frame) = line.strip_prefix('\t') {
            let (address, rest) = frame.trim_start().split_once(' ').unwrap();
            u64::from_str_radix(address, 16).unwrap();
            let (function, object) = rest.rsplit_once(" (").unwrap();
            assert!(object.ends_with(')') && !object.contains(' '), "{line}");
            let name = match function.rsplit_once("+0x") {
                Some((name, offset)) if u64::from_str_radix(offset, 16).is_ok() => name,
                _ => function,
            };
            all.last_mut().unwrap().stack.insert(0, name.to_owned());
        } else if !line.is_empty() {
            let head = line.trim_end().strip_suffix(':').unwrap();
            let (head, event) = head.rsplit_once(' ').unwrap();
            let (head, weight) = head.rsplit_once(' ').unwrap();
            let (head, time) = head.rsplit_once(' ').unwrap();
            assert!(time.ends_with(':') && time.contains('.'), "{line}");
            let (head, cpu) = head.rsplit_once(' ').unwrap();
            assert!(cpu.starts_with('[') && cpu.ends_with(']'), "{line}");
            let (comm, ids) = head.rsplit_once(' ').unwrap();
            let (pid, tid) = ids.split_once('/').unwrap();
            all.push(Read {
                comm: comm.to_owned(),
                ids: (pid.parse().unwrap(), tid.parse().unwrap()),
                event: event.to_owned(),
                weight: weight.parse().unwrap(),
                stack: Vec::new(),
            });
        }
    }
    all
}

#[test]
fn is_golden() {
    let text = export("perf-script", &[], &canonical::session());
    golden::check("export/canonical.perf-script", &text);
}

#[test]
fn sums_are_those_of_the_events() {
    let session = canonical::session_with_everything();
    let text = export("perf-script", &[], &session);
    let samples = read(&text);
    // Without a name, or with nothing but bounds, is what stands for no function here.
    let mut expected = weights(&session, |_: &Sample| true);
    let mut sums = weights_of(samples.into_iter().map(|it| (it.stack, it.weight)));
    sums.remove("[unknown]");
    expected.retain(|name, _| !name.contains("+0x"));
    assert_eq!(sums, expected);
    assert!(text.contains("# lost: 4"), "{text}");
}

#[test]
fn nothing_is_a_file_too() {
    let (tables, _) = canonical::session();
    let text = export("perf-script", &[], &(tables, Vec::new()));
    assert_eq!(read(&text), []);
}

#[test]
fn hostile_names_stay_on_their_lines() {
    for name in hostile() {
        let session = session_of(&[(vec![&name, "main"], 5)], &name);
        let samples = read(&export("perf-script", &[], &session));
        assert_eq!(samples.len(), 5, "{name:?}");
        for sample in samples {
            assert_eq!(sample.ids, (1, 1));
            assert_eq!(sample.stack.len(), 2, "{name:?}");
            assert_eq!(sample.stack[1], "main");
            assert_eq!(sample.weight, 1000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn weights_are_those_of_the_folded_stacks(stacks in odd_stacks()) {
        let session = session_of_odd(&stacks, "p");
        let samples = read(&export("perf-script", &[], &session));
        let sum: u64 = samples.iter().map(|sample| sample.weight).sum();
        prop_assert_eq!(sum, folded_sum(&[("count", "weight")], &session));
        prop_assert_eq!(samples.len() as u64, folded_sum(&[("count", "samples")], &session));
    }
}
