//! What the table says of waits: no time twice, none that is out of the window, and the first line as the rows.

use super::*;

const START: u64 = 1_000 * S;

/// One function, and a stack of it.
fn tables() -> (Tables, StackId) {
    let mut tables = Tables::default();
    let name = tables.intern_string("hang").0;
    let function = Function {
        name,
        linkage_name: None,
        module: None,
        file: None,
        line: 0,
        start: None,
        size: None,
    };
    let function = tables.functions.intern(function).0;
    let frame = Frame {
        kind: FrameKind::Native,
        module: None,
        address: 0x10,
    };
    let frame = tables.frames.intern(frame).0;
    let lines = [Line { function, line: 1 }];
    tables.set_symbol(frame, Symbol::Lines(lines.into()));
    let stack = Stack {
        parent: None,
        frame,
    };
    let stack = tables.stacks.intern(stack).0;
    (tables, stack)
}

/// A thread that waits since `from`; `woken`: and does not any more.
fn wait((from, at): (u64, u64), thread: usize, user: Option<StackId>, woken: bool) -> Event {
    let wait = Wait {
        ns: at - from,
        runnable_ns: woken.into(),
        state: WaitState::Sleeping,
        waker: None,
        count: 1,
        open: !woken,
    };
    let thread = ThreadId::from_index(thread);
    let source = SourceId::from_index(0);
    Event::Sample(Sample {
        wait: Some(wait),
        ..Sample::new(Timestamp(at), thread, Cpu(0), source, wait.ns).with_stacks(None, user)
    })
}

fn table() -> TopTable {
    TopTable::new(TopOptions::default(), Timestamp(START))
}

fn frame(top: &mut TopTable, at: u64, tables: &Tables) -> (String, Vec<Vec<String>>) {
    if top.frame.is_none() {
        top.begin_frame(Timestamp(at));
    }
    top.end_frame(tables);
    let text = top.draw(120, 0, tables);
    let rows = text.lines().skip(3).map(|line| {
        let words = line.split("  ").map(str::trim).map(str::to_owned);
        words.filter(|word| !word.is_empty()).collect()
    });
    let head = text.lines().next().unwrap_or_default();
    (head.to_owned(), rows.collect())
}

#[test]
fn what_hangs_counts_as_long_as_it_hangs_in_the_window() {
    let (tables, stack) = tables();
    let mut top = table();
    for second in 1..=10 {
        let at = START + second * S;
        top.begin_frame(Timestamp(at));
        for thread in 0..5 {
            top.event(&wait((START, at), thread, Some(stack), false), &tables);
        }
        let (head, rows) = frame(&mut top, at, &tables);
        let span = second.min(5);
        let waited = duration(5 * span * S);
        let says = format!(
            "0 samples and {waited} off-CPU in 5 waits in the last {}, 5 threads wait now",
            duration(span * S)
        );
        assert_eq!(head, says);
        assert_eq!(rows, [["-", "-", "-", &waited, "5", "hang"]]);
    }
    // That it is paused is seen on any terminal.
    top.key(b'p');
    let paused = top.render(Timestamp(START + 10 * S), 40, 0, &tables);
    assert!(
        paused.starts_with("PAUSED  0 samples and 25.0 s"),
        "{paused}"
    );
    top.key(b'p');
    // One ends; the others are told again.
    top.begin_frame(Timestamp(START + 11 * S));
    let end = START + 10 * S + S / 2;
    top.event(&wait((START, end), 0, Some(stack), true), &tables);
    for thread in 1..5 {
        top.event(
            &wait((START, START + 11 * S), thread, Some(stack), false),
            &tables,
        );
    }
    let (head, rows) = frame(&mut top, START + 11 * S, &tables);
    assert!(head.contains(" 24.5 s off-CPU in 5 waits"), "{head}");
    assert!(head.ends_with(", 4 threads wait now"), "{head}");
    assert_eq!(rows[0][3..5], ["24.5 s", "4"]);
}

#[test]
fn each_frame_has_all_of_short_and_long_waits() {
    let (tables, stack) = tables();
    const MS: u64 = S / 1_000;
    for (length, threads) in [(3_000 * MS, 21), (700 * MS, 21), (90 * MS, 3)] {
        let options = TopOptions {
            window_ns: S,
            ..TopOptions::default()
        };
        let mut top = TopTable::new(options, Timestamp(START));
        // In step, one after the other without a gap; a frame looks when some are over that were not at its time.
        let mut ended = START;
        for second in 1..=10 {
            let at = START + second * S;
            top.begin_frame(Timestamp(at));
            while ended + length <= at + 30 * MS {
                for thread in 0..threads {
                    let times = (ended, ended + length);
                    top.event(&wait(times, thread, Some(stack), true), &tables);
                }
                ended += length;
            }
            if ended <= at {
                for thread in 0..threads {
                    top.event(&wait((ended, at), thread, Some(stack), false), &tables);
                }
            }
            // That was not in the frame.
            top.event(&wait((at, at + 40 * MS), threads, None, true), &tables);
            let (head, rows) = frame(&mut top, at, &tables);
            // The one that is apart began behind the frame before.
            let apart = if second == 1 { 0 } else { 40 };
            let waited = duration(threads as u64 * S + apart * MS);
            let begins = format!("0 samples and {waited} off-CPU in ");
            assert!(head.starts_with(&begins), "{length} {second}: {head}");
            let now = format!(" waits in the last 1.00 s, {threads} threads wait now");
            let is_between = (at - START).is_multiple_of(length);
            assert!(
                is_between || head.ends_with(&now),
                "{length} {second}: {head}"
            );
            let sum: u64 = rows
                .iter()
                .filter_map(|row| row[4].parse::<u64>().ok())
                .sum();
            assert!(is_between || sum == threads as u64, "{rows:?}");
        }
    }
}

#[test]
fn a_wait_that_has_ended_counts_what_lies_in_the_window() {
    let (tables, stack) = tables();
    let mut top = table();
    // It began with the table, and 10 s before that.
    let end = START + 20 * S;
    top.event(&wait((START, end), 0, Some(stack), true), &tables);
    top.event(&wait((START - 10 * S, end), 1, None, true), &tables);
    let (head, rows) = frame(&mut top, end, &tables);
    assert_eq!(
        head,
        "0 samples and 10.0 s off-CPU in 2 waits in the last 5.00 s"
    );
    let row = |name: &str| {
        rows.iter()
            .find(|row| row.last().is_some_and(|word| word == name))
    };
    for name in ["hang", "[no stack]"] {
        assert_eq!(
            row(name).map(|row| row[3].as_str()),
            Some("5.00 s"),
            "{rows:?}"
        );
    }
    let (head, rows) = frame(&mut top, end + 3 * S, &tables);
    assert!(
        head.contains(" 4.00 s off-CPU in 2 waits in the last 5.00 s"),
        "{head}"
    );
    assert_eq!(rows.len(), 2);
    let (head, rows) = frame(&mut top, end + 5 * S, &tables);
    assert!(head.starts_with("0 samples in the last 5.00 s"), "{head}");
    assert!(rows.is_empty(), "{rows:?}");
}

#[test]
fn a_name_that_comes_later_counts_for_what_was_before() {
    let (mut tables, stack) = tables();
    let place = tables.stacks.get(stack).map(|stack| stack.frame).unwrap();
    let named = tables.lines(place).to_vec();
    tables.set_symbol(place, Symbol::Lines([].into()));
    let mut top = table();
    top.event(&wait((START, START + S), 0, Some(stack), true), &tables);
    let (_, rows) = frame(&mut top, START + S, &tables);
    assert_eq!(rows[0].last().unwrap(), "[unknown]+0x10");
    tables.set_symbol(place, Symbol::Lines(named.into()));
    top.event(
        &wait((START + S, START + 2 * S), 0, Some(stack), true),
        &tables,
    );
    let (_, rows) = frame(&mut top, START + 2 * S, &tables);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0][3..], ["2.00 s", "-", "hang"]);
}

#[test]
fn waits_that_are_told_leave_traced_calls_as_they_are() {
    let (tables, stack) = tables();
    let mut top = table();
    assert!(top.shows_waits());
    let call = Call {
        at: Timestamp(START + S),
        thread: ThreadId::from_index(0),
        cpu: Cpu(0),
        function: FunctionId::from_index(0),
        stack: 0,
        depth: 0,
        edge: CallEdge::Hit(None),
        later: None,
    };
    top.event(&Event::Call(call), &tables);
    assert!(!top.shows_waits());
    top.event(&wait((START, START + S), 0, Some(stack), false), &tables);
    let (head, rows) = frame(&mut top, START + S, &tables);
    assert_eq!(head, "1 calls/s of 1 function in the last 1.00 s");
    assert_eq!(rows.len(), 1);
}
