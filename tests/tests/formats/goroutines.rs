//! Traced calls of goroutines that share a thread, in every format that nests calls.
//!
//! Made-up calls of two goroutines and of the thread itself, each in the middle of the others' -> rows, functions, depths, which
//! must be those of the stacks that the calls are on. What does not belong here: recording them (`functions`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;

use crate::calls_shared::{Builder, MS, START};
use crate::export_shared::{Recording, export_into, settings, try_export};
use crate::go_trace;
use profiler_model::*;
use profiler_report::derive::Filter;
use profiler_report::export::Selection;
use profiler_tests::nests::{self, Nests};

/// Two goroutines and their thread: `outer` with two of `inner` in it, three times each, step by step in turn; a
/// goroutine of another process that has the same number; one call that does not end.
fn interleaved() -> Recording {
    let mut b = Builder::default();
    let thread = b.thread("web", 10);
    let (outer, inner) = (b.function("outer", 0x100), b.function("inner", 0x200));
    b.process = None;
    let other = b.thread("api", 20);
    let on = |b: &mut Builder, stack: u32| match b.events.last_mut() {
        Some(Event::Call(call)) => call.stack = stack,
        other => panic!("{other:?}"),
    };
    // (function, depth, enters, the step that it began at)
    let steps = [
        (outer, 0, true, 0),
        (inner, 1, true, 1),
        (inner, 1, false, 1),
        (inner, 1, true, 3),
        (inner, 1, false, 3),
        (outer, 0, false, 0),
    ];
    let who = [(thread, 7), (thread, 9), (thread, 0), (other, 7)];
    for round in 0..3 {
        let at = |step: u64, who: u64| START + (round * 60 + step * 10 + who) * MS;
        for (step, (function, depth, enters, began)) in (0..).zip(steps) {
            for (index, (thread, stack)) in (0..).zip(who) {
                match enters {
                    true => b.enter(thread, function, depth, at(step, index)),
                    false => {
                        let began = at(began, index);
                        b.exit(thread, function, depth, began, at(step, index), MS);
                    }
                };
                on(&mut b, stack);
            }
        }
    }
    b.enter(thread, outer, 0, START + 200 * MS);
    on(&mut b, 9);
    (b.tables, b.events)
}

fn expected(rows: &[(&str, u64, u64)]) -> Nests {
    let mut nests = BTreeMap::new();
    for (row, outer, inner) in rows {
        for (function, depth, calls) in [("outer", 0, *outer), ("inner", 1, *inner)] {
            if calls > 0 {
                nests.insert(((*row).to_owned(), function.to_owned(), depth), calls);
            }
        }
    }
    nests
}

#[test]
fn each_has_its_own_nest_in_every_format() {
    let mut session = interleaved();
    // One of each process has the number 7: names are not what tells them apart.
    let rows = expected(&[("goroutine 7", 6, 12), ("goroutine 9", 4, 6), ("web", 3, 6)]);
    let mut without_open = rows.clone();
    without_open.insert(("goroutine 9".to_owned(), "outer".to_owned(), 0), 3);
    for format in nests::FORMATS {
        // What is open at the end stays so there.
        let stays_open = ["trace-actor", "bytefrog"].contains(&format);
        let open = stays_open.then(|| session.1.pop().unwrap());
        let file = try_export(format, &[], &session).unwrap();
        let nests = nests::read(format, &file).unwrap_or_else(|why| panic!("{format}: {why}"));
        assert_eq!(
            nests,
            if stays_open {
                without_open.clone()
            } else {
                rows.clone()
            },
            "{format}"
        );
        session.1.extend(open);
    }
}

/// Go's own readers take a trace in which goroutines have Ms of their own, however often it is cut.
#[test]
fn go_reads_their_regions() {
    let session = interleaved();
    for generation in ["100000", "20", "1"] {
        let options = [("generation", generation)];
        let Some(found) = go_trace::check("goroutines", &options, &session) else {
            return;
        };
        let calls = |name: &str| found["regions"][name]["count"].as_u64();
        assert_eq!(
            (calls("outer"), calls("inner")),
            (Some(13), Some(24)),
            "{found}"
        );
        assert_eq!(
            (&found["open_regions"], &found["deepest_region"]),
            (&0.into(), &2.into())
        );
    }
}

/// Functions that are left out enclose nothing, on each stack.
#[test]
fn depths_of_a_selection_are_those_of_the_stack() {
    let session = interleaved();
    let filter = Filter {
        functions: vec!["inner".to_owned()],
        ..Filter::default()
    };
    let selection = Selection {
        filter,
        ..Selection::default()
    };
    for format in nests::FORMATS {
        let file = export_into(&settings(format, &[]), &selection, &session).unwrap();
        let nests = nests::read(format, &file).unwrap_or_else(|why| panic!("{format}: {why}"));
        let of = |row: &str| (row.to_owned(), "inner".to_owned(), 0);
        let rows = [
            (of("goroutine 7"), 12),
            (of("goroutine 9"), 6),
            (of("web"), 6),
        ];
        assert_eq!(nests, rows.into(), "{format}");
    }
}
