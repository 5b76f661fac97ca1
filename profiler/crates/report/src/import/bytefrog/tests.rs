//! Messages of agents, and what becomes of them.

use super::*;

const ORIGIN: u64 = 1_000_000_000;

fn importer() -> Importer {
    let session = Session {
        started: Timestamp(ORIGIN),
        ..Session::default()
    };
    Importer::new(session, "demo", 0, Some(5_000))
}

fn enter(at_ms: u32, method: u32, thread: u16) -> AgentMessage<'static> {
    AgentMessage::MethodEntry {
        at_ms,
        sequence: 0,
        method,
        thread,
    }
}

fn exit(at_ms: u32, method: u32, thread: u16) -> AgentMessage<'static> {
    AgentMessage::MethodExit {
        at_ms,
        sequence: 0,
        method,
        line: UNKNOWN_LINE,
        thread,
    }
}

fn name(method: u32, signature: &str) -> AgentMessage<'_> {
    AgentMessage::MapMethodSignature {
        method,
        signature: signature.into(),
    }
}

/// Batches as readers see them: `+f@0` entered at depth 0, `-f@0 total/self how` left, in ms.
fn told(batches: impl IntoIterator<Item = Batch>) -> Vec<String> {
    let mut tables = Tables::default();
    let mut epoch = (0, Epoch::default());
    let mut lines = Vec::new();
    let mut last = Timestamp(0);
    for batch in batches {
        if batch.epoch != epoch.0 {
            epoch = (batch.epoch, Epoch::default());
        }
        for definition in batch.definitions {
            epoch.1.define(&mut tables, definition).unwrap();
        }
        for event in batch.events {
            let event = epoch.1.event(event).unwrap();
            assert!(event.at() >= last, "{event:?}");
            last = event.at();
            let ms = |ns: u64| ns / 1_000_000;
            let at = ms(event.at().since(Timestamp(ORIGIN)));
            let function = |id| {
                let function: &Function = tables.functions.get(id).unwrap();
                tables.string(function.name)
            };
            lines.push(match event {
                Event::Call(call) => {
                    let thread = tables.thread(call.thread).unwrap();
                    let place = format!("{}@{}", function(call.function), call.depth);
                    match call.edge {
                        CallEdge::Enter(None) => format!("{at} {} +{place}", thread.tid),
                        CallEdge::Exit(exit) => {
                            let total = ms(call.at.since(exit.began));
                            let how = match exit.how {
                                ExitKind::Exception(Some(kind)) => tables.string(kind).to_owned(),
                                how => format!("{how:?}"),
                            };
                            let own = ms(exit.self_ns);
                            format!("{at} {} -{place} {total}/{own} {how}", thread.tid)
                        }
                        other => panic!("{other:?}"),
                    }
                }
                Event::Throw(throw) => {
                    let frame = throw.thrower.unwrap();
                    let line = match tables.lines(frame) {
                        [line] => line.line,
                        other => panic!("{other:?}"),
                    };
                    let by = tables.frame_name(frame);
                    format!("{at} throw {} by {by}:{line}", tables.string(throw.kind))
                }
                Event::Mark(mark) => format!("{at} mark {}", tables.string(mark.text)),
                Event::Process(event) => match event.change {
                    ProcessChange::Renamed(name) => format!("{at} name {}", tables.string(name)),
                    other => panic!("{other:?}"),
                },
                Event::Gap(gap) => {
                    format!(
                        "{at} gap of {} {:?}",
                        ms(gap.to.since(gap.from)),
                        gap.reason
                    )
                }
                Event::Lost(lost) => format!("{at} lost {} {:?}", lost.count, lost.reason),
                Event::Clock(clock) => {
                    assert_eq!((clock.monotonic.0, clock.realtime_ns), (ORIGIN, 5_000));
                    "clock".to_owned()
                }
                other => panic!("{other:?}"),
            });
        }
    }
    lines
}

fn imported(messages: &[AgentMessage<'_>]) -> Vec<String> {
    let mut importer = importer();
    for message in messages {
        importer.message(message);
    }
    told(importer.finish())
}

#[test]
fn calls_have_their_depth_and_times() {
    let lines = imported(&[
        name(1, "demo/Demo.main;9;()V"),
        name(2, "g [a.out]"),
        enter(1, 1, 0),
        enter(2, 2, 0),
        enter(2, 2, 7),
        exit(5, 2, 0),
        AgentMessage::Exception {
            at_ms: 6,
            sequence: 0,
            method: 1,
            exception: 1,
            line: 3,
            thread: 0,
        },
        AgentMessage::ExceptionBubble {
            at_ms: 8,
            sequence: 0,
            method: 1,
            exception: 1,
            thread: 0,
        },
        AgentMessage::MapException {
            exception: 1,
            name: "E".into(),
        },
        AgentMessage::Marker {
            at_ms: 9,
            sequence: 0,
            key: "k".into(),
            value: "v".into(),
        },
    ]);
    assert_eq!(
        lines,
        [
            "clock",
            "1 1 +demo.Demo.main()@0",
            "2 1 +g@1",
            "2 8 +g@0",
            "5 1 -g@1 3/3 Return",
            "6 throw E by demo.Demo.main():3",
            "8 1 -demo.Demo.main()@0 7/4 E",
            "9 mark k: v",
            "9 8 -g@0 7/7 Inferred",
        ]
    );
}

fn throw(at_ms: u32, method: u32, line: u16) -> AgentMessage<'static> {
    AgentMessage::Exception {
        at_ms,
        sequence: 0,
        method,
        exception: 1,
        line,
        thread: 0,
    }
}

/// Bytes of message 22 -> who threw, whenever its name comes.
#[test]
fn who_threw_is_what_the_message_says() {
    let bytes = [
        22, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0x01, 0x02, 0, 0,
    ];
    let (message, len) = AgentMessage::decode(&bytes).unwrap().unwrap();
    assert_eq!(len, bytes.len());
    let mut importer = importer();
    importer.message(&AgentMessage::MapException {
        exception: 1,
        name: "E".into(),
    });
    importer.message(&message);
    importer.message(&throw(7, 9, UNKNOWN_LINE));
    importer.message(&name(9, "late"));
    let first = importer.take(false).unwrap();
    importer.begin_epoch();
    importer.message(&throw(8, 9, 258));
    importer.message(&name(9, "other"));
    importer.message(&throw(9, 9, 258));
    let second = importer.take(false).unwrap();
    importer.message(&throw(10, 10, 1));
    let lines = told([first, second].into_iter().chain(importer.finish()));
    assert_eq!(
        lines[1..],
        [
            "6 throw E by late:258",
            "7 throw E by late:0",
            "8 throw E by late:258",
            "9 throw E by other:258",
            "10 throw E by method 10:1",
        ]
    );
}

#[test]
fn what_an_agent_has_lost_is_lost() {
    let mut importer = importer();
    importer.message(&AgentMessage::Marker {
        at_ms: 5,
        sequence: 1,
        key: "lost events".into(),
        value: "exits without an entry: 25, records of calls without room in the kernel's buffer: 7, process events lost, /proc read again: 3"
            .into(),
    });
    // What only looks like it is a mark and no more.
    importer.message(&AgentMessage::Marker {
        at_ms: 6,
        sequence: 2,
        key: "lost events".into(),
        value: "exits without an entry: many".into(),
    });
    let batches = importer.take(false).into_iter().chain(importer.finish());
    let mut lost: Vec<(LostReason, u64)> = Vec::new();
    for event in batches.flat_map(|batch| batch.events) {
        if let Event::Lost(it) = event {
            lost.push((it.reason, it.count));
        }
    }
    lost.sort_unstable();
    let expected = [
        (LostReason::SideBand, 3),
        (LostReason::CallRingFull, 7),
        (LostReason::Unmatched, 25),
    ];
    assert_eq!(lost, expected);
}

fn marker<'a>(at_ms: u32, key: &'a str, value: &'a str) -> AgentMessage<'a> {
    AgentMessage::Marker {
        at_ms,
        sequence: 0,
        key: key.into(),
        value: value.into(),
    }
}

#[test]
fn what_an_agent_did_not_watch_is_a_gap() {
    let mut importer = importer();
    for message in [
        name(1, "work [app] src/a.c:7"),
        enter(100, 1, 0),
        exit(900, 1, 0),
        marker(
            1000,
            "not traced",
            "all functions in app [7]: not watched until probes were attached (40.0 ms in 2 gaps)",
        ),
        marker(
            1000,
            "not traced",
            "work [app] src/a.c:7: over budget, watched a part of the time (600.0 ms)",
        ),
        // Of which no call was seen, so that it is no other's.
        marker(
            1000,
            "not traced",
            "idle [app] src/a.c:9: over budget, not watched any more (200.0 ms)",
        ),
        // What no data break has told; what can't be, and what is said otherwise.
        marker(
            1000,
            "not traced",
            "all functions: tracing was suspended (500.0 ms)",
        ),
        marker(
            1000,
            "not traced",
            "all functions: over budget, not watched any more (1e99 ms)",
        ),
        marker(1000, "not traced", "because"),
        marker(
            1100,
            "lost events",
            "events dropped because the output was too slow: 12",
        ),
        marker(
            1100,
            "lost events",
            "records of calls without room in the kernel's buffer: 3",
        ),
        marker(
            1200,
            "recording ended",
            "entries: 1, exits: 1, calls lost for want of room: 4, entries too deep: 5",
        ),
    ] {
        importer.message(&message);
    }
    let mut tables = Tables::default();
    let mut epoch = Epoch::default();
    let (mut gaps, mut lost) = (Vec::new(), Vec::new());
    for batch in importer.take(true).into_iter().chain(importer.finish()) {
        for definition in batch.definitions {
            epoch.define(&mut tables, definition).unwrap();
        }
        for event in batch.events {
            match epoch.event(event).unwrap() {
                Event::Gap(gap) => {
                    let function = gap.function.and_then(|id| tables.functions.get(id));
                    let function = function.map_or("all", |it| tables.string(it.name));
                    let ms = gap.to.since(gap.from) / 1_000_000;
                    assert_eq!(gap.to, Timestamp(ORIGIN + 1_000_000_000));
                    assert!(gap.process.is_some());
                    gaps.push((function.to_owned(), gap.reason, ms));
                }
                Event::Lost(it) => lost.push((it.reason, it.count)),
                _ => {}
            }
        }
    }
    use GapReason::{Detached, DutyCycle, NotYetAttached, Suspended};
    let expected = [
        ("all", NotYetAttached, 20),
        ("all", NotYetAttached, 20),
        ("work", DutyCycle, 600),
        ("idle", Detached, 200),
        ("all", Suspended, 500),
        ("all", Detached, 1000),
    ]
    .map(|(function, reason, ms)| (function.to_owned(), reason, ms));
    assert_eq!(gaps, expected);
    let expected = [
        (LostReason::SlowOutput, 12),
        (LostReason::CallRingFull, 3),
        (LostReason::CallRingFull, 1),
        (LostReason::TooMany, 5),
    ];
    assert_eq!(lost, expected);
    let traced = tables.functions.iter();
    let names: Vec<&str> = traced.map(|(_, it)| tables.string(it.name)).collect();
    assert_eq!(names, ["work", "idle"]);
    let counts = importer.counts();
    let (count, times) = &counts.gaps[&NotYetAttached];
    // Both at the same time.
    assert_eq!((*count, times.ns()), (2, 20_000_000));
    assert_eq!(counts.lost_there[&LostReason::CallRingFull], 4);
}

#[test]
fn exits_that_do_not_match() {
    let lines = imported(&[
        name(1, "f"),
        name(2, "g"),
        enter(0, 1, 0),
        enter(1, 2, 0),
        exit(3, 1, 0),
        exit(4, 2, 0),
    ]);
    assert_eq!(
        lines[3..],
        [
            "3 1 -g@1 2/2 Inferred",
            "3 1 -f@0 3/1 Return",
            "4 lost 1 Unmatched",
        ]
    );
}

#[test]
fn a_break_closes_what_is_open_and_is_a_gap() {
    let mut importer = importer();
    importer.message(&name(1, "f"));
    importer.message(&enter(1, 1, 0));
    importer.break_data(GapReason::Suspended);
    importer.message(&enter(9, 1, 0));
    importer.lost(3);
    importer.break_data(GapReason::Suspended);
    let lines = told(importer.finish());
    assert_eq!(
        lines[1..],
        [
            "1 1 +f@0",
            "1 1 -f@0 0/0 Inferred",
            "9 gap of 8 Suspended",
            "9 1 +f@0",
            "9 1 -f@0 0/0 Inferred",
            "9 lost 3 BadRecord",
            "9 gap of 0 MissingData",
        ]
    );
}

/// A live agent tells of a suspension by a break and then in words, one that replays a recording in words alone.
#[test]
fn a_suspension_is_told_once() {
    let mut importer = importer();
    importer.message(&name(1, "f"));
    importer.message(&enter(1, 1, 0));
    importer.message(&exit(2, 1, 0));
    importer.break_data(GapReason::Suspended);
    importer.message(&marker(500, "recording resumed", "after 498 ms without"));
    let live = "all functions: tracing was suspended (498.0 ms)";
    importer.message(&marker(500, "not traced", live));
    let replayed = "all functions: tracing was suspended (300.0 ms in 2 gaps)";
    importer.message(&marker(900, "not traced", replayed));
    let lines = told(importer.finish());
    let gaps: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("gap of"))
        .collect();
    assert_eq!(
        gaps,
        [
            "500 gap of 498 Suspended",
            "900 gap of 150 Suspended",
            "900 gap of 150 Suspended"
        ]
    );
}

#[test]
fn what_is_cut_off_ends_with_a_gap() {
    let mut importer = importer();
    importer.message(&name(1, "f"));
    importer.message(&enter(1, 1, 0));
    importer.cut_off(Timestamp(ORIGIN + 5_000_000));
    let lines = told(importer.finish());
    assert_eq!(
        lines[1..],
        ["1 1 +f@0", "1 1 -f@0 0/0 Inferred", "5 gap of 4 CutOff"]
    );
}

#[test]
fn a_late_name_is_waited_for_once() {
    let mut importer = importer();
    importer.message(&enter(0, 5, 0));
    assert!(importer.take(false).is_none());
    importer.message(&name(5, "late"));
    let first = importer.take(false).unwrap();
    importer.message(&exit(1, 5, 0));
    importer.message(&enter(2, 6, 0));
    // Nobody waits any longer: it is called by its number, also when it ends.
    let second = importer.take(true).unwrap();
    importer.message(&name(6, "too late"));
    importer.message(&enter(3, 6, 0));
    importer.message(&exit(4, 6, 0));
    importer.message(&exit(5, 6, 0));
    assert_eq!(importer.counts().unnamed, 1);
    let lines = told([first, second].into_iter().chain(importer.finish()));
    assert_eq!(
        lines[1..],
        [
            "0 1 +late@0",
            "1 1 -late@0 1/1 Return",
            "2 1 +method 6@0",
            "3 1 +too late@1",
            "4 1 -too late@1 1/1 Return",
            "5 1 -method 6@0 3/2 Return",
        ]
    );
}

#[test]
fn epochs_announce_anew_what_they_use() {
    let mut importer = importer();
    importer.message(&name(1, "f [m] a.c:3"));
    importer.message(&AgentMessage::MapThreadName {
        thread: 0,
        at_ms: 0,
        name: "main".into(),
    });
    importer.message(&enter(1, 1, 0));
    let first = importer.take(false).unwrap();
    importer.begin_epoch();
    importer.message(&exit(2, 1, 0));
    importer.message(&AgentMessage::MapThreadName {
        thread: 0,
        at_ms: 0,
        name: "worker".into(),
    });
    let second = importer.finish().unwrap();
    assert_eq!((first.epoch, second.epoch), (0, 1));
    assert!(matches!(second.definitions[0], Definition::Session(_)));
    let lines = told([first, second]);
    assert_eq!(
        lines[1..],
        ["1 1 +f@0", "2 1 -f@0 1/1 Return", "2 name worker"]
    );
}

#[test]
fn time_neither_goes_back_nor_wraps() {
    let lines = imported(&[
        name(1, "f"),
        enter(u32::MAX - 1, 1, 0),
        enter(10, 1, 0),
        enter(9, 1, 0),
        enter(u32::MAX / 2, 1, 0),
    ]);
    // The first is taken for a time before the start.
    assert_eq!(lines[1], "0 1 +f@0");
    assert_eq!(lines[2..4], ["10 1 +f@1", "10 1 +f@2"]);
    assert!(lines[4].starts_with("2147483647 "), "{}", lines[4]);
}

#[test]
fn names_are_bounded() {
    let mut importer = importer();
    for method in 1..=(1 << 20) + 10 {
        importer.message(&name(method, "f"));
    }
    assert_eq!(importer.counts().names_left_out, 10);
    importer.message(&enter(0, u32::MAX, 0));
    importer.message(&exit(0, u32::MAX, 0));
    let lines = told(importer.finish());
    assert_eq!(lines[1], "0 1 +(methods beyond the limit)@0");
    let mut importer = self::importer();
    let long = "x".repeat(65_535);
    for method in 1..=4_000 {
        importer.message(&name(method, &long));
    }
    let kept = 4_000 - importer.counts().names_left_out;
    assert_eq!(kept, (128 << 20) / 65_535);
}

#[test]
fn an_empty_run_is_a_session() {
    assert_eq!(imported(&[]), ["clock"]);
}

#[test]
fn the_line_of_a_function_is_kept() {
    let mut importer = importer();
    importer.message(&name(1, "f [m] src/lib.rs:10"));
    importer.message(&enter(0, 1, 0));
    let mut tables = Tables::default();
    let mut epoch = Epoch::default();
    for definition in importer.finish().unwrap().definitions {
        epoch.define(&mut tables, definition).unwrap();
    }
    let traced: Vec<_> = tables.all_traced().collect();
    let [(function, traced)] = traced[..] else {
        panic!("{traced:?}");
    };
    assert_eq!((traced.line, traced.returns), (10, ReturnMode::Agent));
    let file = tables.functions.get(function).unwrap().file.unwrap();
    assert_eq!(tables.string(file), "src/lib.rs");
}

#[test]
fn names_of_threads_are_bounded() {
    let mut importer = importer();
    importer.message(&AgentMessage::MapThreadName {
        thread: u16::MAX,
        at_ms: 0,
        name: "\u{20ac}".repeat(20_000).into(),
    });
    let batch = importer.finish().unwrap();
    let longest = batch
        .definitions
        .iter()
        .filter_map(|definition| match definition {
            Definition::String(_, text) => Some(text.len()),
            _ => None,
        });
    assert_eq!(longest.max(), Some(MAX_THREAD_NAME / 3 * 3));
}
