//! Golden reports of traced calls, and their sums against a brute-force count.
//!
//! `UPDATE_GOLDEN=1` writes the files in `golden/calls` anew; read the difference before keeping it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};

use crate::calls_shared::{Builder, MS, START, US, shop};
use crate::golden;
use profiler_model::*;
use profiler_report::derive::calls::{Part, ROOT, UNKNOWN_CALLERS};
use profiler_report::derive::{CallLimits, CallTable, Target};
use profiler_report::view::report::{
    self, By, CallSort, CallView, Collector, Filter, Format, Recording, ReportError, ReportOptions,
};
use profiler_report::view::top::{Action, TopOptions, TopTable};
use proptest::prelude::*;

type Session = (Tables, Vec<Event>);

fn report((tables, events): &Session, options: &ReportOptions) -> Result<String, ReportError> {
    let mut collected = Collector::for_report(options);
    for event in events {
        collected.add(event, tables);
    }
    let recording = Recording {
        tables,
        collected: &collected,
    };
    let mut out = Vec::new();
    report::run(&recording, options, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn calls(view: CallView) -> ReportOptions {
    ReportOptions {
        calls: view,
        ..ReportOptions::default()
    }
}

fn only() -> CallView {
    CallView {
        only: true,
        ..CallView::default()
    }
}

#[test]
fn text_at_three_widths() {
    let session = shop();
    for width in [None, Some(80), Some(110), Some(160)] {
        let options = ReportOptions {
            width,
            ..calls(only())
        };
        let text = report(&session, &options).unwrap();
        let name = width.map_or("calls.txt".to_owned(), |width| format!("calls-{width}.txt"));
        golden::check(&format!("calls/{name}"), &text);
        for line in text.lines() {
            let fits = width.is_none_or(|width| line.chars().count() <= width);
            assert!(fits, "wider than {width:?}: {line}");
        }
    }
}

#[test]
fn color_changes_nothing_but_colors() {
    let options = ReportOptions {
        width: Some(120),
        color: true,
        ..calls(only())
    };
    let colored = report(&shop(), &options).unwrap();
    assert!(colored.contains("\u{1b}["));
    let plain = ReportOptions {
        color: false,
        ..options
    };
    let mut stripped = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        stripped += before;
        rest = after.split_once('m').unwrap().1;
    }
    stripped += rest;
    assert_eq!(stripped, report(&shop(), &plain).unwrap());
}

#[test]
fn parts() {
    let session = shop();
    for (name, view) in [
        (
            "histogram.txt",
            CallView {
                histogram: Some("shop::parse".into()),
                ..CallView::default()
            },
        ),
        (
            "slowest.txt",
            CallView {
                slowest: Some(4),
                ..CallView::default()
            },
        ),
        (
            "tree.txt",
            CallView {
                tree: true,
                ..CallView::default()
            },
        ),
        (
            "exceptions.txt",
            CallView {
                exceptions: true,
                ..CallView::default()
            },
        ),
        (
            "by-p99.txt",
            CallView {
                sort: CallSort::P99,
                ..only()
            },
        ),
    ] {
        let options = ReportOptions {
            width: Some(100),
            ..calls(view)
        };
        golden::check(
            &format!("calls/{name}"),
            &report(&session, &options).unwrap(),
        );
    }
}

#[test]
fn slowest_calls_show_their_arguments() {
    for (width, name) in [
        (None, "slowest-shop.txt"),
        (Some(80), "slowest-shop-80.txt"),
    ] {
        let options = ReportOptions {
            width,
            filter: Filter {
                functions: vec!["shop::*".into(), "db_query".into()],
                ..Filter::default()
            },
            range: "45ms..51ms".parse().unwrap(),
            ..calls(CallView {
                slowest: Some(7),
                ..CallView::default()
            })
        };
        golden::check(
            &format!("calls/{name}"),
            &report(&shop(), &options).unwrap(),
        );
    }
}

#[test]
fn json() {
    let options = ReportOptions {
        format: Format::Json,
        calls: only(),
        ..ReportOptions::default()
    };
    let text = report(&shop(), &options).unwrap();
    golden::check("calls/calls.json", &text);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for row in value["calls"]["functions"].as_array().unwrap() {
        let in_buckets: u64 = (row["histogram"].as_array().into_iter().flatten())
            .map(|bucket| bucket["calls"].as_u64().unwrap())
            .sum();
        let number = |name: &str| row[name].as_u64().unwrap();
        let untimed = ["open", "inferred", "terminated", "hits"].map(number);
        let untimed: u64 = untimed.iter().sum();
        assert_eq!(in_buckets + untimed, number("calls_seen"), "{row}");
    }
}

fn of_thread(tid: u32) -> Target {
    Target {
        tids: vec![Tid(tid)],
        ..Target::default()
    }
}

#[test]
fn filters_choose_calls() {
    let session = shop();
    let with = |filter: Filter| {
        let options = ReportOptions {
            filter,
            format: Format::Json,
            ..calls(only())
        };
        let text = report(&session, &options).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["calls"].clone()
    };
    let all = with(Filter::default());
    let worker = with(Filter {
        target: of_thread(301),
        ..Filter::default()
    });
    let main = with(Filter {
        target: of_thread(300),
        ..Filter::default()
    });
    assert_eq!(worker["summary"]["counts_left_out"], true);
    let seen = |calls: &serde_json::Value| calls["summary"]["seen"].as_u64().unwrap();
    assert_eq!(seen(&all), seen(&worker) + seen(&main));
    let parse = with(Filter {
        functions: vec!["parse".into()],
        ..Filter::default()
    });
    let names: Vec<_> = (parse["functions"].as_array().unwrap().iter())
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["shop::parse(char const*)"]);
    let slowest = parse["slowest"].as_array().unwrap();
    assert!(slowest.iter().all(|row| row["name"] == names[0]));
    assert!(!slowest.is_empty());
}

#[test]
fn spans_add_up() {
    let session = shop();
    let ended = |range: &str| {
        let options = ReportOptions {
            range: range.parse().unwrap(),
            format: Format::Json,
            ..calls(only())
        };
        let text = report(&session, &options).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut sums: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        let rows = value["calls"]["functions"].as_array().cloned();
        for row in rows.unwrap_or_default() {
            let number = |name: &str| row[name].as_u64().unwrap();
            let sum = [
                number("calls_seen") - number("open"),
                number("total_ns"),
                number("self_ns"),
            ];
            if sum[0] > 0 {
                sums.insert(row["name"].as_str().unwrap().to_owned(), sum);
            }
        }
        sums
    };
    let whole = ended("0s..");
    for cut in ["1ms", "7ms", "40ms", "90ms"] {
        let mut sums = ended(&format!("..{cut}"));
        for (name, more) in ended(&format!("{cut}..")) {
            let sum = sums.entry(name).or_default();
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum += more;
            }
        }
        assert_eq!(sums, whole, "{cut}");
    }
}

#[test]
fn calls_stand_behind_samples_and_not_in_their_tables() {
    let (tables, mut events) = profiler_tests::canonical::session();
    events.retain(|event| matches!(event, Event::Sample(_)));
    let thread = tables.threads().next().unwrap().0;
    let mut b = Builder {
        tables,
        events,
        ..Builder::default()
    };
    let function = b.function("work", 0x100);
    b.call(thread, function, 0, START, 5 * US, &mut |_| ());
    let session = (b.tables, b.events);
    let text = report(&session, &ReportOptions::default()).unwrap();
    let (tree, traced) = (text.find("Call tree"), text.find("Traced functions"));
    assert!(tree.is_some() && tree < traced, "{text}");
    let table = ReportOptions {
        by: Some(By::Function),
        ..ReportOptions::default()
    };
    let text = report(&session, &table).unwrap();
    assert!(!text.contains("Traced functions"));
}

#[test]
fn what_is_not_there_is_said() {
    let (tables, events) = shop();
    let options = calls(CallView {
        histogram: Some("absent".into()),
        ..CallView::default()
    });
    let error = report(&(tables.clone(), events), &options).unwrap_err();
    assert!(matches!(error, ReportError::NoTracedFunction(_)), "{error}");
    let text = report(&(tables, Vec::new()), &calls(only())).unwrap();
    assert!(
        text.contains("The recording has no traced calls."),
        "{text}"
    );
}

/// Calls recorded whole, at their ends, give the same report as with entries.
#[test]
fn whole_calls_are_placed_below_their_callers() {
    let (tables, events) = shop();
    let mut entered: HashMap<(ThreadId, Timestamp, FunctionId), Box<[Value]>> = HashMap::new();
    let mut whole = Vec::new();
    let mut both = Vec::new();
    for event in events {
        let Event::Call(mut call) = event else {
            continue;
        };
        if matches!(&call.edge, CallEdge::Hit(_)) {
            continue;
        }
        both.push(Event::Call(call.clone()));
        match &mut call.edge {
            CallEdge::Enter(values) => {
                let values = values.clone().unwrap_or_default();
                entered.insert((call.thread, call.at, call.function), values);
            }
            CallEdge::Exit(exit) => {
                exit.whole = entered.remove(&(call.thread, exit.began, call.function));
                assert!(exit.whole.is_some());
                whole.push(Event::Call(call));
            }
            CallEdge::Hit(_) => {}
        }
    }
    // Those that never ended are not among the whole calls.
    both.retain(|event| match event {
        Event::Call(call) if matches!(call.edge, CallEdge::Enter(_)) => {
            !entered.contains_key(&(call.thread, call.at, call.function))
        }
        _ => true,
    });
    let fold = |events: &[Event]| {
        let mut table = CallTable::default();
        for event in events {
            table.add(event, &tables, Part::Counted);
        }
        let table = table.settled().into_owned();
        let functions: BTreeMap<_, _> = (table.functions())
            .map(|(id, calls)| (id, (calls.total_ns, calls.self_ns, calls.ended)))
            .collect();
        let mut paths = BTreeMap::new();
        let nodes = table.contexts();
        for node in &nodes[2..] {
            let mut path = Vec::new();
            let mut next = Some(node);
            while let Some(node) = next {
                path.push(node.function);
                next = node.parent.map(|parent| &nodes[parent]);
            }
            if node.calls > 0 {
                paths.insert(path, (node.calls, node.total_ns, node.self_ns));
            }
        }
        (functions, paths)
    };
    let (with_entries, as_whole) = (fold(&both), fold(&whole));
    assert_eq!(with_entries.0, as_whole.0);
    assert_eq!(with_entries.1, as_whole.1);
}

#[test]
fn a_tree_without_bounds_is_folded() {
    let mut b = Builder::default();
    let thread = b.thread("deep", 10);
    let f = b.function("f", 0x100);
    let g = b.function("g", 0x200);
    let depth = 300;
    for level in 0..depth {
        let function = if level % 2 == 0 { f } else { g };
        b.enter(thread, function, level, START + u64::from(level));
    }
    for level in (0..depth).rev() {
        let function = if level % 2 == 0 { f } else { g };
        let began = START + u64::from(level);
        b.exit(
            thread,
            function,
            level,
            began,
            START + 1_000_000 - u64::from(level),
            1,
        );
    }
    let limits = CallLimits {
        depth: 16,
        ..CallLimits::default()
    };
    let mut table = CallTable::new(limits);
    for event in &b.events {
        table.add(event, &b.tables, Part::Counted);
    }
    assert_eq!(table.contexts().len(), 2 + 16);
    assert_eq!(table.folded(), u64::from(depth) - 16);
    // Only the outermost call of each counts.
    let total = |id| {
        table
            .functions()
            .find(|(f, _)| *f == id)
            .unwrap()
            .1
            .total_ns
    };
    assert_eq!((total(f), total(g)), (1_000_000, 999_998));
}

#[test]
fn lost_exits_and_callers_before_the_recording_do_no_harm() {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let (f, g) = (b.function("f", 0x100), b.function("g", 0x200));
    // Entered before the recording began.
    b.exit(thread, g, 1, START, START + 10, 10);
    b.exit(thread, f, 0, START - 100, START + 20, 110);
    // The exit of the first is lost.
    b.enter(thread, f, 0, START + 30);
    b.enter(thread, f, 0, START + 40);
    b.enter(thread, g, 1, START + 50);
    b.exit(thread, g, 1, START + 50, START + 60, 10);
    b.exit(thread, f, 0, START + 40, START + 70, 20);
    let mut table = CallTable::default();
    for event in &b.events {
        table.add(event, &b.tables, Part::Counted);
    }
    let calls: BTreeMap<_, _> = table.functions().collect();
    assert_eq!((calls[&f].ended, calls[&f].open()), (2, 1));
    assert_eq!((calls[&f].total_ns, calls[&g].total_ns), (150, 20));
    let nodes = table.contexts();
    let parents: Vec<_> = nodes[2..]
        .iter()
        .map(|node| (node.function.unwrap(), node.parent.unwrap(), node.calls))
        .collect();
    assert_eq!(parents, [(g, UNKNOWN_CALLERS, 1), (f, ROOT, 2), (g, 3, 1)]);
}

/// Two goroutines in one call each, handed to and fro between two threads.
#[test]
fn calls_of_goroutines_are_those_of_the_goroutine() {
    let mut b = Builder::default();
    let threads = [b.thread("one", 10), b.thread("two", 11)];
    let (f, g) = (b.function("f", 0x100), b.function("g", 0x200));
    let inner = b.function("inner", 0x300);
    let on = |b: &mut Builder, stack: u32| match b.events.last_mut() {
        Some(Event::Call(call)) => call.stack = stack,
        other => panic!("{other:?}"),
    };
    for (stack, function, at) in [(7, f, 0), (8, g, 1)] {
        b.enter(threads[0], function, 0, START + at);
        on(&mut b, stack);
    }
    for (stack, thread, at) in [(7, 1, 10), (8, 0, 20)] {
        b.enter(threads[thread], inner, 1, START + at);
        on(&mut b, stack);
        b.exit(threads[1 - thread], inner, 1, START + at, START + at + 5, 5);
        on(&mut b, stack);
    }
    for (stack, function, thread, at) in [(7, f, 1, 0), (8, g, 0, 1)] {
        b.exit(
            threads[thread],
            function,
            0,
            START + at,
            START + 40 + at,
            35,
        );
        on(&mut b, stack);
    }
    let mut table = CallTable::default();
    for event in &b.events {
        table.add(event, &b.tables, Part::Counted);
    }
    let mut calls: Vec<_> = (table.functions())
        .map(|(id, calls)| (id, calls.ended, calls.open(), calls.total_ns))
        .collect();
    calls.sort_unstable();
    assert_eq!(calls, [(f, 1, 0, 40), (g, 1, 0, 40), (inner, 2, 0, 10)]);
    let nodes = table.contexts();
    let mut callers: Vec<_> = nodes[2..]
        .iter()
        .map(|node| {
            (
                node.function,
                nodes[node.parent.unwrap()].function,
                node.calls,
            )
        })
        .collect();
    callers.sort_unstable();
    let expected = [
        (Some(f), None, 1),
        (Some(g), None, 1),
        (Some(inner), Some(f), 1),
        (Some(inner), Some(g), 1),
    ];
    assert_eq!(callers, expected);
}

/// One call of a made-up program: its function, its own time before and after each call in it.
#[derive(Clone, Debug)]
struct Made {
    function: usize,
    pause_ns: u64,
    how: u8,
    inner: Vec<Made>,
}

fn made() -> impl Strategy<Value = Made> {
    let own = (
        0..5_usize,
        prop_oneof![0..200_u64, 0..50_000_u64, 0..90_000_000_u64],
        0..12_u8,
    );
    let leaf = own.clone().prop_map(|(function, pause_ns, how)| Made {
        function,
        pause_ns,
        how,
        inner: Vec::new(),
    });
    leaf.prop_recursive(6, 60, 4, move |inner| {
        (own.clone(), prop::collection::vec(inner, 0..4)).prop_map(
            |((function, pause_ns, how), inner)| Made {
                function,
                pause_ns,
                how,
                inner,
            },
        )
    })
}

#[derive(Default, Debug, PartialEq)]
struct Sums {
    calls: u64,
    total_ns: u64,
    self_ns: u64,
    durations: Vec<u64>,
    thrown: u64,
}

/// Plays a call, and counts it the slow way.
#[allow(clippy::too_many_arguments)]
fn play(
    b: &mut Builder,
    thread: ThreadId,
    functions: &[FunctionId],
    made: &Made,
    path: &mut Vec<usize>,
    now: &mut u64,
    sums: &mut HashMap<usize, Sums>,
    paths: &mut HashMap<Vec<usize>, (u64, u64)>,
) {
    let began = *now;
    let depth = path.len() as u32;
    b.enter(thread, functions[made.function], depth, began);
    let outermost = !path.contains(&made.function);
    path.push(made.function);
    let mut inner_ns = 0;
    *now += made.pause_ns;
    for inner in &made.inner {
        let before = *now;
        play(b, thread, functions, inner, path, now, sums, paths);
        inner_ns += *now - before;
        *now += made.pause_ns;
    }
    let total_ns = *now - began;
    let how = match made.how {
        0 => ExitKind::Exception(None),
        1 => ExitKind::Inferred,
        2 => ExitKind::Terminated,
        _ => ExitKind::Return,
    };
    b.exit_how(
        thread,
        functions[made.function],
        depth,
        began,
        *now,
        total_ns - inner_ns,
        how,
    );
    let sum = sums.entry(made.function).or_default();
    sum.calls += 1;
    sum.total_ns += if outermost { total_ns } else { 0 };
    sum.self_ns += total_ns - inner_ns;
    sum.thrown += u64::from(made.how == 0);
    if !matches!(made.how, 1 | 2) {
        sum.durations.push(total_ns);
    }
    let at = paths.entry(path.clone()).or_default();
    at.0 += 1;
    at.1 += total_ns;
    path.pop();
}

proptest! {
    #[test]
    fn sums_are_those_of_a_brute_force_count(
        programs in prop::collection::vec(prop::collection::vec(made(), 1..6), 1..4),
    ) {
        let mut b = Builder::default();
        let names = ["a", "b", "c", "d", "e"];
        let functions: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(index, name)| b.function(name, 0x100 * (index as u64 + 1)))
            .collect();
        let mut sums = HashMap::new();
        let mut paths = HashMap::new();
        for (index, calls) in programs.iter().enumerate() {
            let thread = b.thread("t", 10 + index as u32);
            let mut now = START;
            for call in calls {
                play(&mut b, thread, &functions, call, &mut Vec::new(), &mut now, &mut sums, &mut paths);
                now += 1;
            }
        }
        // Threads run at the same time; each one's own order is kept.
        b.events.sort_by_key(Event::at);
        let mut table = CallTable::default();
        for event in &b.events {
            table.add(event, &b.tables, Part::Counted);
        }
        let found: HashMap<_, _> = table.functions().collect();
        prop_assert_eq!(found.len(), sums.len());
        for (index, sum) in &mut sums {
            let calls = found[&functions[*index]];
            let seen = (calls.ended, calls.total_ns, calls.self_ns, calls.thrown());
            prop_assert_eq!(seen, (sum.calls, sum.total_ns, sum.self_ns, sum.thrown));
            sum.durations.sort_unstable();
            let durations = &sum.durations;
            prop_assert_eq!(calls.latency.count(), durations.len() as u64);
            prop_assert_eq!(calls.latency.max_ns(), durations.last().copied().unwrap_or(0));
            prop_assert_eq!(calls.latency.sum_ns(), durations.iter().sum::<u64>());
            for part in [0.5, 0.95, 0.99] {
                let rank = ((part * durations.len() as f64).ceil() as usize).max(1);
                let exact = durations.get(rank - 1).copied().unwrap_or(0);
                let off = exact.abs_diff(calls.latency.quantile_ns(part)) as f64;
                prop_assert!(off <= exact as f64 * 0.01);
            }
        }
        let nodes = table.contexts();
        let mut found = HashMap::new();
        for node in nodes.iter().filter(|node| node.calls > 0) {
            let mut path = Vec::new();
            let mut next = Some(node);
            while let Some(node) = next {
                path.extend(node.function.and_then(|f| functions.iter().position(|g| *g == f)));
                next = node.parent.map(|parent| &nodes[parent]);
            }
            path.reverse();
            found.insert(path, (node.calls, node.total_ns));
        }
        prop_assert_eq!(found, paths);
    }
}

fn calls_as_json(session: &Session) -> serde_json::Value {
    let options = ReportOptions {
        format: Format::Json,
        ..calls(only())
    };
    serde_json::from_str(&report(session, &options).unwrap()).unwrap()
}

/// A gap of `f`, in time from the start of the recording.
fn gap(b: &mut Builder, f: FunctionId, (from, to): (u64, u64), reason: GapReason) {
    b.events.push(Event::Gap(Gap {
        from: Timestamp(START + from),
        to: Timestamp(START + to),
        function: Some(f),
        process: None,
        reason,
    }));
}

/// `f` on duty: so many calls in each time that it is watched, of 100 ms, between gaps of 1.9 s.
fn on_duty(times: &[u64]) -> Session {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let f = b.function("f", 0x100);
    b.events.push(Event::Clock(Clock {
        monotonic: Timestamp(START),
        realtime_ns: 0,
    }));
    gap(&mut b, f, (0, 1900 * MS), GapReason::DutyCycle);
    for (time, &calls) in (1..).zip(times) {
        let from = time * 2000 * MS;
        for call in 0..calls {
            let at = from - 100 * MS + call * 100 * MS / calls;
            b.hit(thread, f, 0, START + at);
        }
        gap(&mut b, f, (from, from + 1900 * MS), GapReason::DutyCycle);
    }
    (b.tables, b.events)
}

#[test]
fn gaps_of_a_duty_cycle_are_estimated_and_marked() {
    let session = on_duty(&[100, 101, 99]);
    let value = calls_as_json(&session);
    let row = &value["calls"]["functions"][0];
    // One each ms, and 600 ns of each.
    assert_eq!(
        (&row["calls"], &row["calls_estimated"]),
        (&300.into(), &7909.into())
    );
    let percent = row["gaps"][0]["percent"].as_f64().unwrap();
    assert!((percent - 96.2).abs() < 0.1, "{percent}");
    let summary = &value["calls"]["summary"];
    let at_least = [row, summary].map(|part| part["calls_at_least"].as_bool());
    assert_eq!(at_least, [Some(true); 2]);
    let text = report(&session, &calls(only())).unwrap();
    for said in [
        "at least 300 calls of 1 function",
        "~7,909",
        "~  watched only part of the time, to stay within the budget (not for 7.60 s, 96.2%)",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn calls_that_are_not_steady_are_not_estimated() {
    for times in [&[1000, 0, 0, 0][..], &[100, 100], &[0, 0, 0, 0]] {
        let session = on_duty(times);
        let value = calls_as_json(&session);
        let Some(row) = value["calls"]["functions"].get(0) else {
            assert_eq!(times, [0; 4]);
            continue;
        };
        assert!(row["calls_estimated"].is_null(), "{times:?}: {row}");
        assert_eq!(row["not_estimable"], true);
        let text = report(&session, &calls(only())).unwrap();
        let calls = text.contains("≥1,000") || text.contains("≥200");
        assert!(
            calls && text.contains("e  at least so many calls"),
            "{text}"
        );
    }
}

/// Of a call that is not watched to its end nobody knows how long it took; of those in it that is known.
#[test]
fn no_more_time_is_in_a_function_itself_than_in_all() {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let f = b.function("f", 0x100);
    b.enter(thread, f, 0, START);
    b.call(thread, f, 1, START + MS, 3 * MS, &mut |_| ());
    b.call(thread, f, 1, START + 5 * MS, 4 * MS, &mut |_| ());
    let how = ExitKind::Unwatched;
    b.exit_how(thread, f, 0, START, START + 10 * MS, 0, how);
    // Not over at the end.
    b.enter(thread, f, 0, START + 20 * MS);
    b.call(thread, f, 1, START + 21 * MS, MS, &mut |_| ());
    // The time of those in it is in its own.
    let inner = START + 31 * MS;
    b.enter(thread, f, 1, START + 30 * MS);
    b.call(thread, f, 2, inner, 2 * MS, &mut |_| ());
    b.exit(thread, f, 1, START + 30 * MS, START + 40 * MS, 8 * MS);
    let value = calls_as_json(&(b.tables, b.events));
    let row = &value["calls"]["functions"][0];
    let [total, own] = ["total_ns", "self_ns"].map(|key| row[key].as_u64().unwrap());
    assert_eq!((total, own), (18 * MS, 18 * MS));
}

/// A function of which no call was seen, and of which some may have come in a gap.
#[test]
fn no_call_in_spite_of_gaps_is_at_least_none() {
    let mut b = Builder::default();
    let f = b.function("f", 0x100);
    gap(&mut b, f, (10 * MS, 50 * MS), GapReason::NotYetAttached);
    let session = (b.tables, b.events);
    let summary = &calls_as_json(&session)["calls"]["summary"];
    assert_eq!(summary["calls"], 0);
    assert_eq!(summary["calls_at_least"], true, "{summary}");
    let text = report(&session, &calls(only())).unwrap();
    assert!(text.contains("at least 0 calls of 0 functions"), "{text}");
}

#[test]
fn calls_without_returns_are_said_and_in_no_share() {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let f = b.function("f", 0x100);
    for call in 0..10_u64 {
        let at = START + call * 100 * US;
        b.call(thread, f, 0, at, 10 * US, &mut |_| ());
    }
    // Attached twice, entries alone; never anything in between.
    for call in 0..30_u64 {
        b.hit(thread, f, 0, START + 50 * MS + call * 10 * US);
    }
    for (from, to, reason) in [
        (10, 50, GapReason::DutyCycle),
        (50, 51, GapReason::NoReturns),
        (51, 100, GapReason::Detached),
    ] {
        gap(&mut b, f, (from * MS, to * MS), reason);
    }
    let session = (b.tables, b.events);
    let value = calls_as_json(&session);
    let row = &value["calls"]["functions"][0];
    assert_eq!((&row["calls"], &row["hits"]), (&40.into(), &30.into()));
    // What was called when it was not watched any more is not known.
    assert!(row["calls_estimated"].is_null(), "{row}");
    assert!(row["tracing_percent"].is_null(), "{row}");
    let text = report(&session, &calls(only())).unwrap();
    let said = "n  without returns, to stay within the budget, for up to 1.00 ms (1.0%): 30 calls";
    assert!(text.contains(said), "{text}");
}

fn top((tables, events): &Session, options: TopOptions) -> TopTable {
    let mut top = TopTable::new(options, Timestamp(START));
    for event in events {
        top.event(event, tables);
    }
    top
}

#[test]
fn live_table() {
    let session = shop();
    let now = Timestamp(START + 100 * MS);
    for width in [80, 120] {
        let mut top = top(&session, TopOptions::default());
        let frame = top.render(now, width, 24, &session.0);
        golden::check(&format!("calls/top-{width}.txt"), &frame);
        assert!(
            frame.lines().all(|line| line.chars().count() <= width),
            "{frame}"
        );
    }
    // As many rows as fit.
    let mut small = top(&session, TopOptions::default());
    assert_eq!(small.render(now, 80, 7, &session.0).lines().count(), 6);
    assert_eq!(small.render(now, 80, 0, &session.0).lines().count(), 3 + 6);
}

#[test]
fn live_table_of_samples() {
    let session = profiler_tests::canonical::session();
    let mut samples = session.clone();
    samples.1.retain(|event| !matches!(event, Event::Call(_)));
    let mut top = top(&samples, TopOptions::default());
    let frame = top.render(Timestamp(START + 100 * MS), 80, 12, &samples.0);
    assert!(
        frame.starts_with("100 samples (4 samples lost) in the last 100 ms"),
        "{frame}"
    );
    let row: Vec<_> = frame.lines().nth(3).unwrap().split_whitespace().collect();
    let expected = ["30.0%", "30.0%", "30", "std::find<char>", "web"];
    assert_eq!(row, expected, "{frame}");
}

#[test]
fn the_window_slides() {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let (early, late) = (b.function("early", 0x100), b.function("late", 0x200));
    let options = TopOptions {
        window_ns: 100 * MS,
        ..TopOptions::default()
    };
    for (function, times) in [(early, 0..100), (late, 150..300)] {
        for ms in times {
            b.call(thread, function, 0, START + ms * MS, 100 * US, &mut |_| ());
        }
    }
    let mut top = TopTable::new(options, Timestamp(START));
    let (mut seen, mut last) = (Vec::new(), String::new());
    for event in &b.events {
        top.event(event, &b.tables);
        if let Event::Call(call) = event
            && matches!(call.edge, CallEdge::Exit(_))
        {
            last = top.render(call.at, 100, 0, &b.tables);
            seen.push((last.contains("early"), last.contains("late")));
        }
    }
    assert_eq!(seen[99], (true, false));
    assert_eq!(seen[249], (false, true));
    // 1,000 calls a second of 100 us: a tenth of the time.
    let row: Vec<_> = last.lines().nth(3).unwrap().split_whitespace().collect();
    let rate: f64 = row[0].replace(',', "").parse().unwrap();
    assert!((990.0..=1_010.0).contains(&rate), "{last}");
    // Nothing happens any more.
    let empty = top.render(Timestamp(START + 10_000 * MS), 100, 0, &b.tables);
    assert!(empty.starts_with("0 calls/s of 0 functions"), "{empty}");
}

#[test]
fn keys_sort_pause_and_quit() {
    let session = shop();
    let mut top = top(&session, TopOptions::default());
    let now = Timestamp(START + 100 * MS);
    let first = |top: &mut TopTable| {
        let frame = top.render(now, 120, 0, &session.0);
        let row = frame.lines().nth(3).unwrap();
        row.split_whitespace().rev().nth(1).unwrap().to_owned()
    };
    assert_eq!(first(&mut top), "wait_for_work");
    let mut orders = Vec::new();
    for _ in 0..6 {
        assert_eq!(top.key(b's'), Action::Redraw);
        orders.push(first(&mut top));
    }
    assert_eq!(orders[4], "const&)");
    assert_eq!(orders[5], "wait_for_work");
    assert_eq!(top.key(b'p'), Action::Redraw);
    let later = Timestamp(START + 60_000 * MS);
    assert!(top.render(later, 120, 0, &session.0).contains("PAUSED"));
    assert!(
        top.render(later, 120, 0, &session.0)
            .contains("wait_for_work")
    );
    top.key(b'p');
    assert!(
        !top.render(later, 120, 0, &session.0)
            .contains("wait_for_work")
    );
    assert_eq!(top.key(b'x'), Action::None);
    assert_eq!(top.key(b'q'), Action::Quit);
}

fn compare(this: &Session, other: &Session, options: &ReportOptions) -> String {
    let collect = |(tables, events): &Session| {
        let mut collected = Collector::for_report(options);
        for event in events {
            collected.add(event, tables);
        }
        collected
    };
    let (here, there) = (collect(this), collect(other));
    let recording = |tables, collected| Recording { tables, collected };
    let mut out = Vec::new();
    report::run_diff(
        &recording(&this.0, &here),
        &recording(&other.0, &there),
        options,
        &mut out,
    )
    .unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn durations_compare() {
    let slower = |factor: u64, more: Option<&str>| {
        let mut b = Builder::default();
        let thread = b.thread("t", 10);
        let f = b.function("f", 0x100);
        for call in 0..100_u64 {
            let ns = if call == 99 { 90 * US } else { 10 * US };
            b.call(thread, f, 0, START + call * MS, ns * factor, &mut |_| ());
        }
        let same = b.function("same", 0x200);
        b.call(thread, same, 0, START + 200 * MS, 7 * US, &mut |_| ());
        if let Some(name) = more {
            let new = b.function(name, 0x300);
            b.call(thread, new, 0, START + 300 * MS, 7 * US, &mut |_| ());
        }
        (b.tables, b.events)
    };
    let (this, other) = (slower(3, Some("added")), slower(1, None));
    let text = compare(&this, &other, &calls(only()));
    golden::check("calls/diff.txt", &text);
    let json = ReportOptions {
        format: Format::Json,
        ..calls(only())
    };
    let value: serde_json::Value = serde_json::from_str(&compare(&this, &other, &json)).unwrap();
    let row = &value["calls"][0];
    assert_eq!(
        (&row["name"], &row["mean_ratio"]),
        (&"f".into(), &3.0.into())
    );
    assert_eq!(value["calls"][2]["status"], "new");
    assert!(!text.contains("has no samples"), "{text}");
}

#[test]
fn gaps_at_the_same_time_are_one_time_and_tracing_is_no_more_than_all() {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let [f, g] = [("f", 0x100), ("g", 0x200)].map(|(name, at)| b.function(name, at));
    // Shorter than their probes.
    for call in 0..10_u64 {
        let at = START + call * 100 * US;
        b.call(thread, f, 0, at, US / 10, &mut |_| ());
        b.call(thread, g, 0, at + 50 * US, 10 * US, &mut |_| ());
    }
    for (function, from, to) in [(f, 10, 30), (g, 10, 40), (f, 50, 60)] {
        b.events.push(Event::Gap(Gap {
            from: Timestamp(START + from * MS),
            to: Timestamp(START + to * MS),
            function: Some(function),
            process: None,
            reason: GapReason::NotYetAttached,
        }));
    }
    b.events.sort_by_key(Event::at);
    let session = (b.tables, b.events);
    let value = calls_as_json(&session);
    let gaps = &value["calls"]["summary"]["gaps"][0];
    assert_eq!(
        (&gaps["count"], &gaps["ns"]),
        (&3.into(), &(40 * MS).into())
    );
    let text = report(&session, &calls(only())).unwrap();
    assert!(text.contains("3 gaps in 40.0 ms of the time"), "{text}");
    let functions = value["calls"]["functions"].as_array().unwrap();
    let share = |name: &str| {
        let row = functions.iter().find(|row| row["name"] == name).unwrap();
        row["tracing_percent"].as_f64().unwrap()
    };
    assert_eq!(share("f"), 100.0);
    assert!(share("g") < 50.0, "{}", share("g"));
}
