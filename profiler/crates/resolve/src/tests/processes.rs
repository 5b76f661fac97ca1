//! Processes: fork, exec, reuse of ids, binaries that are gone.

use super::*;

#[test]
fn a_reused_pid_is_another_process() {
    let dir = TempDir::new("reuse");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(10);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "first");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    events.push(sample(13, id, "first", &[code], &[]));
    events.push(exit(14, id));
    // Still on its way when the process had ended.
    events.push(sample(15, id, "first", &[code], &[]));
    let later = 100_000_000;
    events.extend(start(later, id, "second"));
    events.push(sample(later + 2, id, "second", &[code], &[]));
    let reader = run(&mut resolver, events);
    assert_eq!(reader.user_stacks().concat()[..2], ["inner", "inner"]);
    assert_eq!(reader.reasons()[2], Some(UnknownReason::NoMapping));
    let started: Vec<_> = reader
        .samples()
        .map(|sample| reader.process_of(sample).started.0)
        .collect();
    assert_eq!(started, [10, 10, later]);
}

#[test]
fn a_pid_whose_fork_was_lost_is_not_taken_for_the_one_that_ended() {
    let id = pid(11);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "first");
    events.push(exit(14, id));
    let later = 10_000_000_000;
    events.push(sample(later, id, "second", &[], &[]));
    let reader = run(&mut resolver, events);
    let sample = reader.samples().next().unwrap();
    let process = reader.process_of(sample);
    assert_eq!(process.started, Timestamp(later));
    assert_eq!(reader.tables.string(process.name), "second");
}

#[test]
fn fork_inherits_and_exec_clears() {
    let dir = TempDir::new("inherit");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let (parent, child) = (pid(12), pid(13));
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, parent, "parent");
    events.push(map_file(12, parent, BASE, 0x10000, &program, 0));
    events.push(sample(13, parent, "parent", &[code], &[]));
    events.push(fork(14, parent, child));
    events.push(sample(15, child, "parent", &[code], &[]));
    // What the child maps does not show in the parent.
    events.push(map_file(16, child, BASE + 0x10_0000, 0x10000, &program, 0));
    events.push(sample(17, child, "parent", &[code + 0x10_0000], &[]));
    events.push(sample(17, parent, "parent", &[code + 0x10_0000], &[]));
    events.push(exec(18, child, "other"));
    events.push(sample(19, child, "other", &[code], &[]));
    events.push(sample(20, parent, "parent", &[code], &[]));
    let reader = run(&mut resolver, events);
    let none = Some(UnknownReason::NoMapping);
    assert_eq!(reader.reasons(), [None, None, None, none, none, None]);
    // Equal mappings, equal stacks: the child's first one, and the parent's last, were known.
    assert_eq!(resolver.counters().stacks_known, 2);
    let samples: Vec<_> = reader.samples().collect();
    assert_eq!(samples[0].user, samples[1].user);
    let process = reader.process_of(samples[1]);
    let parent = reader.tables.process(process.parent.unwrap()).unwrap();
    assert_eq!(parent.pid, Pid(pid(12)));
    assert_eq!(
        reader.tables.string(reader.process_of(samples[4]).name),
        "other"
    );
}

/// The main thread has ended before another one calls exec and takes its id.
/// A shell that was started a moment ago starts a program: it has changed since it was announced.
#[test]
fn a_child_of_a_process_that_has_changed_has_a_parent() {
    let (shell, child) = (pid(14), pid(15));
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, shell, "shell");
    events.push(sample(11, shell, "shell", &[], &[]));
    events.push(exec(12, shell, "other"));
    events.push(map_file(13, shell, BASE, 0x10000, Path::new("/bin/sh"), 0));
    events.push(fork(14, shell, child));
    events.push(exec(15, child, "program"));
    events.push(sample(16, child, "program", &[], &[]));
    let reader = run(&mut resolver, events);
    let samples: Vec<_> = reader.samples().collect();
    let process = reader.process_of(samples[1]);
    let parent = reader.tables.process(process.parent.unwrap()).unwrap();
    assert_eq!(parent.pid, Pid(shell));
    assert_eq!(reader.tables.string(parent.name), "other");
}

/// Newer kernels give a thread of theirs its name as they make it, without an event of its own.
#[test]
fn a_thread_of_the_kernel_is_not_called_after_its_parent() {
    let clocks = crate::proc_fs::Clocks::read();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let made = pids.map(Pid).find_map(|pid| {
        let stat = crate::proc_fs::process_stat(pid, &clocks)?;
        (stat.parent == crate::proc_fs::KTHREADD).then_some((pid, stat))
    });
    let Some((made, stat)) = made else {
        // A container sees none.
        return;
    };
    let mut resolver = Resolver::new(options()).unwrap();
    let at = stat.started.0;
    let reader = run(
        &mut resolver,
        vec![fork(at, crate::proc_fs::KTHREADD.0, made.0)],
    );
    let mut names = reader.tables.processes().map(|(_, process)| process);
    let process = names.find(|process| process.pid == made).unwrap();
    assert_eq!(reader.tables.string(process.name), stat.comm.text());
}

#[test]
fn a_process_that_another_thread_renewed_lives_and_ends() {
    let id = pid(30);
    let (main, other) = (Tid(id), Tid(id + 1));
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "before");
    let new_thread = RawBody::Fork {
        pid: Pid(id),
        tid: other,
        parent_pid: Pid(id),
        parent_tid: main,
    };
    events.push(at(12, new_thread));
    events.push(exit(13, id));
    events.push(exec(14, id, "after"));
    events.push(sample(15, id, "after", &[], &[]));
    events.push(exit(16, id));
    let reader = run(&mut resolver, events);
    let exits = reader.events.iter().filter(|event| {
        let Event::Process(event) = event else {
            return false;
        };
        event.change == ProcessChange::Exited && event.at == Timestamp(16)
    });
    assert_eq!(exits.count(), 1);
    let process = resolver.processes.table.get(Pid(id)).unwrap();
    assert_eq!(process.exited, Some(Timestamp(16)));
    resolver.processes.table.expire(Timestamp(10_000_000_000));
    assert!(resolver.processes.table.get(Pid(id)).is_none());
}

#[test]
fn losses_right_after_a_rescan_make_another_one_later() {
    let mut resolver = Resolver::new(options()).unwrap();
    let lost = |time| {
        let reason = LostReason::SideBand;
        let (cpu, from, to) = (None, Timestamp(time), Timestamp(time));
        let count = 1;
        at(
            time,
            RawBody::Lost(Lost {
                cpu,
                from,
                to,
                count,
                reason,
            }),
        )
    };
    let mut out = Vec::new();
    resolver.resolve(&mut vec![lost(10), lost(20)], &mut out);
    assert_eq!(resolver.counters().rescans, 1);
    std::thread::sleep(Duration::from_millis(1100));
    resolver.poll_symbols(&mut out);
    resolver.poll_symbols(&mut out);
    assert_eq!(resolver.counters().rescans, 2);
}

#[test]
fn a_cached_stack_equals_a_resolved_one() {
    let dir = TempDir::new("cached");
    let program = build(&dir, "program", &[]);
    let (inner, outer) = (offset_of(&program, "inner"), offset_of(&program, "outer"));
    let id = pid(14);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    let stack = [BASE + inner + 4, BASE + outer + 20, 0x10, 0];
    for time in 0..50 {
        events.push(sample(13 + time, id, "program", &stack, &[]));
        if time % 10 == 5 {
            resolver.stacks.clear();
            let mut out = Vec::new();
            for event in &events {
                resolver.notice(event);
            }
            resolver.resolve(&mut events, &mut out);
            // What was cached is resolved again, in the same epoch, to the same id.
            resolver.stacks.clear();
        }
    }
    let mut events_of_one = vec![sample(100, id, "program", &stack, &[])];
    let mut out = Vec::new();
    resolver.resolve(&mut events_of_one, &mut out);
    let Event::Sample(uncached) = &out[0].events[0] else {
        panic!("{:?}", out[0].events);
    };
    let mut again = vec![sample(101, id, "program", &stack, &[])];
    let mut out = Vec::new();
    let known = resolver.counters().stacks_known;
    resolver.resolve(&mut again, &mut out);
    let Event::Sample(cached) = &out[0].events[0] else {
        panic!("{:?}", out[0].events);
    };
    assert_eq!(resolver.counters().stacks_known, known + 1);
    assert_eq!(cached.user, uncached.user);
    assert!(out[0].definitions.iter().all(|definition| {
        !matches!(definition, Definition::Stack(..) | Definition::Frame(..))
    }));
}

#[test]
fn a_deleted_binary_has_names() {
    let dir = TempDir::new("deleted");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(15);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    events.push(sample(13, id, "program", &[code], &[]));
    for event in &events {
        resolver.notice(event);
    }
    std::fs::remove_file(&program).unwrap();
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    assert_eq!(reader.user_stacks(), [["inner"]]);
}

#[test]
fn a_replaced_binary_is_not_believed() {
    let dir = TempDir::new("replaced");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(16);
    let build_id = |path: &Path| {
        let file = std::fs::File::open(path).unwrap();
        elf::Elf::read(&file).unwrap().build_id.unwrap()
    };
    let old = build_id(&program);
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    // Another file under the same name, with another inode and build id.
    let other = build(&dir, "other", &["-O2"]);
    assert_ne!(build_id(&other), old);
    std::fs::rename(&other, &program).unwrap();
    events.push(sample(14, id, "program", &[code], &[]));
    let mut resolver = Resolver::new(options()).unwrap();
    let reader = run(&mut resolver, events);
    assert_eq!(reader.reasons(), [Some(UnknownReason::NoFile)]);
    let leaf = reader.samples().next().unwrap().user;
    let frame = reader.tables.frames_of(leaf).next().unwrap();
    let module = reader.tables.frames.get(frame).unwrap().module.unwrap();
    // That of the file that is there now would be another's.
    assert_eq!(reader.tables.modules.get(module).unwrap().build_id, None);
    assert_eq!(resolver.counters().files_not_opened, 1);
}

#[test]
fn an_exec_counts_as_soon_as_it_is_known() {
    let id = pid(17);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "before");
    events.push(exec(20, id, "after"));
    events.push(sample(20, id, "after", &[], &[]));
    let reader = run(&mut resolver, events);
    let sample = reader.samples().next().unwrap();
    let thread = reader.tables.thread(sample.thread).unwrap();
    assert_eq!(reader.tables.string(thread.name), "after");
    assert_eq!(sample.user_end, StackEnd::NoStack);
}

#[test]
fn a_snapshot_knows_this_process_and_a_second_one_no_new_ones() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let mut resolver = Resolver::new(options()).unwrap();
    resolver.snapshot(Timestamp(now));
    let processes = resolver.counters().processes;
    // Lost side-band events: /proc is read again, and nobody is taken for somebody new.
    let lost = Lost {
        cpu: None,
        from: Timestamp(now),
        to: Timestamp(now + 1),
        count: 1,
        reason: LostReason::SideBand,
    };
    let id = std::process::id();
    let mut events = vec![
        at(now + 1, RawBody::Lost(lost)),
        sample(now + 2, id, "me", &[], &[]),
    ];
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    let counters = resolver.counters();
    assert_eq!(counters.rescans, 1);
    // Others start and end while this test runs, but not half of them.
    assert!(
        counters.processes < processes + processes / 2,
        "{counters:?}"
    );
    let mut reader = Reader::default();
    reader.read(out);
    let sample = reader.samples().next().unwrap();
    let own = reader.process_of(sample);
    assert_eq!(own.pid, Pid(id));
    assert!(own.parent.is_some());
    let threads = reader.tables.threads();
    assert_eq!(
        threads.filter(|(_, thread)| thread.tid == Tid(id)).count(),
        1
    );
}

#[test]
fn a_parent_is_found_though_its_child_was_read_first() {
    let mut resolver = Resolver::new(options()).unwrap();
    let pids = [std::process::id(), std::os::unix::process::parent_id()].map(Pid);
    for pid in pids {
        let mapped = &mut resolver.mapped;
        let now = Timestamp(u64::MAX);
        assert!(resolver.processes.adopt(pid, now, None, mapped));
    }
    let parent = |resolver: &Resolver| resolver.processes.table.get(pids[0]).unwrap().parent;
    assert_eq!(parent(&resolver), None);
    resolver.processes.find_parents(&pids);
    assert_eq!(parent(&resolver).map(|(pid, _)| pid), Some(pids[1]));
}

#[test]
fn what_waits_for_its_turn_stays_open() {
    let dir = TempDir::new("waiting");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(19);
    // Much later than what the resolver has seen so far: it tidies up before this comes.
    let time = 3_600_000_000_000;
    let mut events = start(time, id, "program");
    events.push(map_file(time + 2, id, BASE, 0x10000, &program, 0));
    events.push(sample(time + 3, id, "program", &[code], &[]));
    events.push(exit(time + 4, id));
    let mut resolver = Resolver::new(options()).unwrap();
    for event in &events {
        resolver.notice(event);
    }
    std::fs::remove_file(&program).unwrap();
    resolver.tidy(Timestamp(time - 1));
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let mut reader = Reader::default();
    reader.read(out);
    assert_eq!(reader.user_stacks(), [["inner"]]);
    // Not for ever.
    resolver.tidy(Timestamp(time + 10_000_000_000));
    resolver.tidy(Timestamp(time + 20_000_000_000));
    assert!(resolver.processes.live_root(Pid(id)).is_none());
}

#[test]
fn a_program_of_the_machine_is_known_for_a_while_after_its_process() {
    let program = Path::new("/usr/bin/env");
    let (id, second) = (pid(23), 1_000_000_000);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(1, id, "env");
    events.push(map_file(2, id, BASE, 0x1000, program, 0));
    events.push(exit(3, id));
    for event in &events {
        resolver.notice(event);
    }
    resolver.resolve(&mut events, &mut Vec::new());
    for (seconds, known) in [(10, true), (50, true), (100, false)] {
        resolver.tidy(Timestamp(seconds * second));
        let modules = &resolver.mapped.modules;
        assert_eq!(modules.knows("/usr/bin/env"), known, "{seconds} s");
    }
}

#[test]
fn ten_thousand_short_lives_leave_nothing_behind() {
    let dir = TempDir::new("storm");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let mut resolver = Resolver::new(options()).unwrap();
    let mut out = Vec::new();
    let mut most = 0;
    for index in 0..10_000 {
        let time = 10 + u64::from(index) * 5_000_000;
        let id = pid(1000 + index);
        let mut events = start(time, id, "short");
        events.push(map_file(time + 2, id, BASE, 0x10000, &program, 0));
        events.push(sample(time + 3, id, "short", &[code], &[]));
        events.push(exit(time + 4, id));
        for event in &events {
            resolver.notice(event);
        }
        resolver.resolve(&mut events, &mut out);
        out.clear();
        most = most.max(resolver.processes.table.len());
    }
    // 5 ms each, kept for two seconds, tidied every five.
    assert!(most < 1500, "{most} processes at once");
    let (roots, execs) = resolver.processes.noticed();
    assert!(roots < 1500 && execs < 1500, "{roots} {execs}");
    let counters = resolver.counters();
    assert_eq!(counters.samples, 10_000);
    assert_eq!(counters.frames_no_file, 0);
    // The program, and what this process maps, which forked them.
    assert!(resolver.mapped.modules.len() < 20);
}

#[test]
fn kernel_functions_have_names_and_lie_in_the_kernel() {
    let (Some(start), Some(schedule)) = (kernel_address("_stext"), kernel_address("schedule"))
    else {
        crate::skip::skip("kernel_functions_have_names", "kernel addresses are hidden");
        return;
    };
    let id = super::pid(18);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = super::start(10, id, "program");
    // As a caller: the return address may lie behind the function's last instruction.
    events.push(sample(
        12,
        id,
        "program",
        &[],
        &[schedule, schedule + 1, 0x10],
    ));
    let reader = run(&mut resolver, events);
    let sample = reader.samples().next().unwrap();
    let frames: Vec<_> = reader.tables.frames_of(sample.kernel).collect();
    let names: Vec<_> = frames
        .iter()
        .map(|&frame| reader.tables.frame_name(frame))
        .collect();
    assert_eq!(names, ["schedule", "schedule", "[unknown]+0xf"]);
    let frame = reader.tables.frames.get(frames[0]).unwrap();
    assert_eq!(
        (frame.kind, frame.address),
        (FrameKind::Kernel, schedule - start)
    );
    let module = reader.tables.modules.get(frame.module.unwrap()).unwrap();
    assert_eq!(module.kind, ModuleKind::Kernel);
    assert!(module.build_id.is_some());
}
