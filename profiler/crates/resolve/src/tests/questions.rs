//! Questions: what is mapped, and what is at an address that no sample has met.

use super::*;

/// Sends what was asked, waits for names, reads all into `reader`.
fn collect(resolver: &mut Resolver, reader: &mut Reader) {
    let mut out = Vec::new();
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    reader.read(out);
}

/// What the frame at an address of a module of this name means.
fn name_of(reader: &Reader, module: Option<&str>, address: u64) -> Option<String> {
    let tables = &reader.tables;
    let (id, _) = tables.frames.iter().find(|(_, frame)| {
        let path = frame.module.and_then(|id| tables.modules.get(id));
        let path = path.map(|module| tables.string(module.path));
        path == module && frame.address == address
    })?;
    Some(tables.frame_name(id))
}

#[test]
fn places_that_were_never_sampled_have_names_and_ended_processes_too() {
    let dir = TempDir::new("asks");
    let program = build(&dir, "program", &[]);
    let path = program.to_str().unwrap();
    let (inner, outer) = (offset_of(&program, "inner"), offset_of(&program, "outer"));
    let (alive, ended) = (pid(70), pid(71));
    let mut resolver = Resolver::new(ResolveOptions {
        grace: Duration::from_secs(10),
        ..options()
    })
    .unwrap();
    let mut events = Vec::new();
    for id in [alive, ended] {
        events.extend(start(10, id, "program"));
        events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    }
    events.push(exit(13, ended));
    events.sort_by_key(|event| event.at);
    let mut reader = run(&mut resolver, events);
    assert_eq!(reader.tables.mappings.len(), 0);
    std::fs::remove_file(&program).unwrap();
    assert!(resolver.ask_process(Pid(alive), Timestamp(10), &[BASE + inner + 4]));
    collect(&mut resolver, &mut reader);
    let inner_name = name_of(&reader, Some(path), inner + 4);
    assert_eq!(inner_name.as_deref(), Some("inner"));
    assert_eq!(name_of(&reader, Some(path), outer + 20), None);
    // What has ended is known for the grace that was asked for, however busy the machine.
    let mut later = vec![fork(9_000_000_000, alive, pid(72))];
    resolver.resolve(&mut later, &mut Vec::new());
    assert!(resolver.ask_process(
        Pid(ended),
        Timestamp(10),
        &[BASE + outer + 20, 0x10, u64::MAX]
    ));
    collect(&mut resolver, &mut reader);
    let outer_name = name_of(&reader, Some(path), outer + 20);
    assert_eq!(outer_name.as_deref(), Some("outer"));
    for nowhere in [0x10, u64::MAX] {
        let name = name_of(&reader, None, nowhere).unwrap();
        assert_eq!(name, format!("[unknown]+{nowhere:#x}"));
    }
    let mapped: Vec<u32> = reader
        .tables
        .mappings
        .iter()
        .map(|(_, mapping)| reader.tables.process(mapping.process).unwrap().pid.0)
        .collect();
    assert_eq!(mapped, [alive, ended]);
    // Asked again, there is nothing new to say.
    assert!(resolver.ask_process(Pid(alive), Timestamp(10), &[BASE + inner + 4]));
    let mut again = Vec::new();
    resolver.poll_symbols(&mut again);
    assert_eq!(again, []);
    let mut much_later = vec![fork(30_000_000_000, alive, pid(73))];
    resolver.resolve(&mut much_later, &mut Vec::new());
    assert!(!resolver.ask_process(Pid(ended), Timestamp(10), &[]));
}

#[test]
fn another_life_of_an_id_is_not_asked() {
    let mut resolver = Resolver::new(options()).unwrap();
    run(&mut resolver, start(10, pid(74), "program"));
    assert!(!resolver.ask_process(Pid(pid(74)), Timestamp(11), &[1]));
    assert!(!resolver.ask_process(Pid(pid(75)), Timestamp(10), &[1]));
    let mut out = Vec::new();
    resolver.poll_symbols(&mut out);
    assert_eq!(out, []);
}

#[test]
fn a_question_in_a_new_epoch_is_answered_in_full() {
    let dir = TempDir::new("asks-epoch");
    let program = build(&dir, "program", &[]);
    let inner = offset_of(&program, "inner");
    let id = pid(76);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    let mut first = run(&mut resolver, events);
    resolver.ask_process(Pid(id), Timestamp(10), &[BASE + inner]);
    collect(&mut resolver, &mut first);
    resolver.begin_epoch();
    let mut events = vec![fork(20, id, pid(77))];
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.ask_process(Pid(id), Timestamp(10), &[BASE + inner]);
    resolver.poll_symbols(&mut out);
    let mut second = Reader::default();
    out.retain(|batch| batch.epoch == 1);
    second.read(out);
    let name = name_of(&second, program.to_str(), inner);
    assert_eq!(name.as_deref(), Some("inner"));
    assert_eq!(second.tables.mappings.len(), 1);
}

#[test]
fn kernel_places_have_names() {
    let (Some(start), Some(schedule)) = (kernel_address("_stext"), kernel_address("schedule"))
    else {
        crate::skip::skip("kernel_places_have_names", "kernel addresses are hidden");
        return;
    };
    let mut resolver = Resolver::new(options()).unwrap();
    let mut reader = Reader::default();
    resolver.ask_kernel(&[schedule - start + 3, u64::MAX]);
    collect(&mut resolver, &mut reader);
    let name = name_of(&reader, Some("[kernel]"), schedule - start + 3);
    assert_eq!(name.as_deref(), Some("schedule"));
    let outside = reader.tables.frames.iter();
    let outside: Vec<_> = outside
        .filter(|(_, frame)| frame.address == u64::MAX)
        .map(|(id, _)| reader.tables.symbol(id))
        .collect();
    let unknown = Symbol::Unknown(UnknownReason::NoSymbol);
    assert_eq!(outside, [Some(&unknown)]);
}
