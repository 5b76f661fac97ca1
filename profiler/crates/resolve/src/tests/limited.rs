//! Processes that are not recorded: known, and not told of.

use super::*;

/// Notices events as a session does that knows which execs are inside, and resolves them.
fn run_placed(resolver: &mut Resolver, mut events: Vec<RawEvent>, inside: &[Timestamp]) -> Reader {
    for event in &events {
        resolver.notice(event);
        if let RawBody::Comm {
            pid, exec: true, ..
        } = event.body
        {
            resolver.notice_place(pid, event.at, inside.contains(&event.at));
        }
    }
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    reader
}

/// Process events by pid and name.
fn told(reader: &Reader) -> Vec<(u32, String)> {
    let changes = reader.events.iter().filter_map(|event| match event {
        Event::Process(change) => Some(change),
        _ => None,
    });
    let pid_of = |thread| reader.tables.thread(thread).unwrap().tid.0;
    changes
        .map(|change| {
            let what = match change.change {
                ProcessChange::Started => "started".to_owned(),
                ProcessChange::Executed(name) | ProcessChange::Renamed(name) => {
                    reader.tables.string(name).to_owned()
                }
                ProcessChange::Exited => "exited".to_owned(),
            };
            (pid_of(change.thread), what)
        })
        .collect()
}

fn limited() -> Box<Resolver> {
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.limit();
    resolver.snapshot_of(&[], Timestamp(1));
    resolver
}

#[test]
fn what_moves_in_is_told_from_its_exec_on() {
    let (runtime, init, child) = (pid(40), pid(41), pid(42));
    let mut resolver = limited();
    let events = vec![
        fork(10, 1, runtime),
        exec(11, runtime, "runtime"),
        fork(12, runtime, init),
        exec(13, init, "init"),
        fork(14, init, child),
        exit(15, child),
        exit(16, init),
        exit(17, runtime),
    ];
    let reader = run_placed(&mut resolver, events, &[Timestamp(13)]);
    let expected = [
        (init, "init"),
        (child, "started"),
        (child, "exited"),
        (init, "exited"),
    ];
    assert_eq!(
        told(&reader),
        expected.map(|(pid, what)| (pid, what.to_owned()))
    );
    assert_eq!(resolver.counters().processes, 2);
    let mut known = reader.tables.processes();
    assert!(known.all(|(_, process)| process.pid != Pid(runtime)));
}

#[test]
fn a_sample_of_one_that_moved_in_without_exec_has_its_names() {
    let dir = TempDir::new("limited");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(43);
    let mut resolver = limited();
    let events = vec![
        fork(10, 1, id),
        exec(11, id, "runtime"),
        map_file(12, id, BASE, 0x10000, &program, 0),
        sample(13, id, "runtime", &[code], &[]),
        exit(14, id),
    ];
    let reader = run_placed(&mut resolver, events, &[]);
    assert_eq!(reader.user_stacks().concat()[0], "inner");
    assert_eq!(told(&reader), [(id, "exited".to_owned())]);
}

#[test]
fn what_leaves_is_told_of_no_longer() {
    let id = pid(44);
    let mut resolver = limited();
    let events = vec![
        fork(10, 1, id),
        exec(11, id, "inside"),
        exec(12, id, "outside"),
        exit(13, id),
    ];
    let reader = run_placed(&mut resolver, events, &[Timestamp(11)]);
    assert_eq!(told(&reader), [(id, "inside".to_owned())]);
}
