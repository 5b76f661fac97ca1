//! Threads that are announced though nothing happens to them, and processes that outlive a resolver.

use std::sync::mpsc::channel;

use super::*;

fn whole_tree() -> ResolveOptions {
    ResolveOptions {
        threads: true,
        ..options()
    }
}

fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Timestamp(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A thread of this process that waits to be let go.
struct Waiting {
    tid: Tid,
    name: String,
    go: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Waiting {
    fn start(name: &str) -> Waiting {
        let (tell, told) = channel();
        let (go, gone) = channel::<()>();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send(Tid(tid as u32)).unwrap();
            gone.recv().ok();
        });
        Waiting {
            tid: told.recv().unwrap(),
            name: name.to_owned(),
            go,
            thread: thread.unwrap(),
        }
    }

    fn end(self) -> Tid {
        drop(self.go);
        self.thread.join().unwrap();
        // The kernel lets a joiner go on a moment before the thread is off its lists.
        let path = format!("/proc/self/task/{}", self.tid.0);
        while Path::new(&path).exists() {
            std::thread::yield_now();
        }
        self.tid
    }
}

/// Name and process of a thread, as definitions say.
fn thread_of(reader: &Reader, tid: Tid) -> Option<(String, Pid)> {
    let mut threads = reader.tables.threads();
    let (_, thread) = threads.find(|(_, thread)| thread.tid == tid)?;
    let process = reader.tables.process(thread.process).unwrap();
    Some((reader.tables.string(thread.name).to_owned(), process.pid))
}

fn exits(reader: &Reader) -> Vec<Tid> {
    let exits = reader.events.iter().filter_map(|event| match event {
        Event::Process(event) if event.change == ProcessChange::Exited => {
            Some(reader.tables.thread(event.thread).unwrap().tid)
        }
        _ => None,
    });
    exits.collect()
}

fn read(batches: impl IntoIterator<Item = Batch>) -> Reader {
    let mut reader = Reader::default();
    reader.read(batches.into_iter().collect());
    reader
}

#[test]
fn all_threads_are_announced_in_every_epoch_if_that_is_asked_for() {
    let waiting = Waiting::start("waiting");
    let expected = Some((waiting.name.clone(), Pid(std::process::id())));
    let mut resolver = Resolver::new(whole_tree()).unwrap();
    let mut out = Vec::new();
    resolver.snapshot(now());
    resolver.poll_symbols(&mut out);
    assert_eq!(thread_of(&read(out.drain(..)), waiting.tid), expected);
    resolver.begin_epoch();
    let mut events = vec![fork(now().0, std::process::id(), pid(80))];
    resolver.resolve(&mut events, &mut out);
    let second = out.drain(..).filter(|batch| batch.epoch == 1);
    assert_eq!(thread_of(&read(second), waiting.tid), expected);
    let mut record = Resolver::new(options()).unwrap();
    record.snapshot(now());
    record.poll_symbols(&mut out);
    assert_eq!(thread_of(&read(out), waiting.tid), None);
    waiting.end();
}

#[test]
fn a_thread_that_ended_unseen_is_missed() {
    let (stays, goes) = (Waiting::start("stays"), Waiting::start("goes"));
    let mut resolver = Resolver::new(whole_tree()).unwrap();
    let mut out = Vec::new();
    resolver.snapshot(now());
    let gone = goes.end();
    resolver.snapshot(now());
    resolver.poll_symbols(&mut out);
    let reader = read(out);
    let exits = exits(&reader);
    assert!(exits.contains(&gone) && !exits.contains(&stays.tid));
    stays.end();
}

#[test]
fn a_fork_that_is_told_late_is_of_whom_the_snapshot_has() {
    let waiting = Waiting::start("late-fork");
    let pid = std::process::id();
    let mut resolver = Resolver::new(whole_tree()).unwrap();
    let mut out = Vec::new();
    resolver.snapshot(now());
    let stat = proc_fs::process_stat(Pid(pid), &proc_fs::Clocks::read()).unwrap();
    // As of a parent that had to wait for a processor when it had begun to make it.
    let told = stat.started.0 + 200_000_000;
    // What the second snapshot tells comes after it.
    while now().0 <= told + 1 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut events = vec![fork(told, 1, pid), exec(told + 1, pid, "late")];
    resolver.resolve(&mut events, &mut out);
    resolver.snapshot(now());
    resolver.poll_symbols(&mut out);
    let reader = read(out);
    let lives = reader.tables.processes();
    let lives: Vec<_> = lives
        .filter(|(_, process)| process.pid == Pid(pid))
        .collect();
    assert_eq!(lives.len(), 1, "{lives:?}");
    waiting.end();
}

#[test]
fn the_thread_that_calls_exec_becomes_the_main_thread() {
    let id = pid(81);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "first");
    let tids = [Tid(id + 1), Tid(id + 2)];
    events.extend(tids.map(|tid| {
        let (pid, parent_pid, parent_tid) = (Pid(id), Pid(id), Tid(id));
        at(
            20,
            RawBody::Fork {
                pid,
                tid,
                parent_pid,
                parent_tid,
            },
        )
    }));
    // The other thread and the main thread say that they end; the second one gets the process's id.
    for tid in [tids[0], Tid(id)] {
        events.push(at(30, RawBody::Exit { pid: Pid(id), tid }));
    }
    events.push(exec(31, id, "second"));
    events.push(exit(40, id));
    let reader = run(&mut resolver, events);
    assert_eq!(exits(&reader), [tids[0], Tid(id), tids[1], Tid(id)]);
}

#[test]
fn a_process_that_nobody_waits_for_yet_has_ended() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let zombie = Pid(child.id());
    let stat = format!("/proc/{zombie}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let mut resolver = Resolver::new(whole_tree()).unwrap();
    let mut out = Vec::new();
    resolver.snapshot(now());
    resolver.poll_symbols(&mut out);
    let reader = read(out);
    let pids: Vec<Pid> = reader.tables.processes().map(|(_, p)| p.pid).collect();
    assert!(pids.contains(&Pid(std::process::id())) && !pids.contains(&zombie));
    child.wait().unwrap();
}

#[test]
fn what_is_known_of_processes_outlives_a_resolver() {
    let mut stays = std::process::Command::new("sleep");
    let mut goes = std::process::Command::new("sleep");
    let mut stays = stays.arg("100").spawn().unwrap();
    let mut goes = goes.arg("100").spawn().unwrap();
    let mut resolver = Resolver::new(whole_tree()).unwrap();
    let mut out = Vec::new();
    // As exact as the kernel's events are, and /proc is not. Read, since the clock may have gone on by
    // more than starts may differ until a busy machine comes to look at it.
    let clocks = proc_fs::Clocks::read();
    let forked = |child: &std::process::Child| {
        let stat = proc_fs::process_stat(Pid(child.id()), &clocks).unwrap();
        Timestamp(stat.started.0 + 3_000_001)
    };
    let at_fork = forked(&stays);
    let mut events: Vec<RawEvent> = [&stays, &goes]
        .map(|child| fork(forked(child).0, std::process::id(), child.id()))
        .into();
    resolver.resolve(&mut events, &mut out);
    let known = resolver.into_known_processes();
    goes.kill().unwrap();
    goes.wait().unwrap();
    let mut resolver = Resolver::new(whole_tree()).unwrap();
    resolver.resume(known);
    resolver.snapshot(now());
    let pid = Pid(stays.id());
    assert!(resolver.ask_process(pid, at_fork, &[]));
    resolver.poll_symbols(&mut out);
    let epochs: Vec<u32> = out.iter().map(|batch| batch.epoch).collect();
    assert_eq!((epochs[0], *epochs.last().unwrap()), (0, 1), "{epochs:?}");
    let reader = read(out);
    let lives = reader.tables.processes();
    let lives: Vec<_> = lives.filter(|(_, process)| process.pid == pid).collect();
    assert_eq!(lives.len(), 1);
    assert_eq!(lives[0].1.started, at_fork);
    let exits = exits(&reader);
    assert!(exits.contains(&Tid(goes.id())) && !exits.contains(&Tid(stays.id())));
    let mapped = reader.tables.mappings.iter();
    assert!(
        mapped
            .filter(|(_, mapping)| mapping.process == lives[0].0)
            .count()
            > 1
    );
    stays.kill().unwrap();
    stays.wait().unwrap();
}

/// Buffers fill while all processes are read: who drains them is called for each.
#[test]
fn reading_all_processes_leaves_time_for_others() {
    let mut resolver = Resolver::new(options()).unwrap();
    let mut calls = 0;
    resolver.snapshot_between(now(), &mut || calls += 1);
    let known = resolver.processes.table.processes().count();
    assert!(calls > 1 && calls >= known - 1, "{calls} of {known}");
}
