//! Who is there: forks, exits, execs, names, ids that are used again.

use super::*;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

#[test]
fn processes_come_with_their_main_threads_in_order_of_numbers() {
    let mut scene = Scene::live();
    let init = scene.process(1, 0, "init");
    let shell = scene.child(Some(init), 100, 10, "sh");
    scene.child(Some(shell), 20, 20, "ls");
    scene.process(0, 0, "swapper");
    scene.thread(shell, 101, 12, "worker");
    scene.thread(shell, 99, 13, "old");
    scene.thread(shell, 100, 10, "sh");
    assert_eq!(scene.processes(), ["P1", "P20", "P100"]);
    assert_eq!(scene.threads("P100"), ["P100.99", "P100.100", "P100.101"]);
    assert_eq!(scene.threads("P20"), ["P20.20"]);
    assert!(scene.world.find("P0").is_none());
    let ls = scene.find("P20");
    let context = scene.world.context(ls).unwrap();
    assert_eq!(context.parent, scene.world.find("P100"));
    assert_eq!((context.process, context.thread), (ls, None));
    assert_eq!(context.life.pid, Pid(20));
    let (added, changed, removed) = scene.changes();
    assert_eq!(added.len(), 8);
    assert!(changed.is_empty() && removed.is_empty());
    let place = |id: &str| added.iter().position(|other| other == id).unwrap();
    assert!(place("P100") < place("P100.100") && place("P100") < place("P100.99"));
    assert_eq!(scene.changes(), Default::default());
}

#[test]
fn a_process_ends_with_its_last_thread_and_is_known_for_a_while() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let main = scene.thread(process, 100, 10, "a");
    let other = scene.thread(process, 101, 11, "b");
    scene.changes();
    scene.tick(0);
    scene.exit(20, main);
    assert_eq!(scene.threads("P100"), ["P100.101"]);
    assert_eq!(scene.processes(), ["P100"]);
    scene.exit(30, other);
    assert!(scene.processes().is_empty());
    let (_, _, removed) = scene.changes();
    assert_eq!(removed.last().unwrap(), "P100");
    assert_eq!(removed.len(), 3);
    let key = scene.find("P100");
    assert!(scene.world.context(key).unwrap().ended);
    assert_eq!(scene.world.contexts_of(main).unwrap().0, key);
    scene.tick(1);
    scene.tick(60);
    assert_eq!(scene.find("P100"), key);
    scene.tick(61);
    assert!(scene.world.find("P100").is_none() && scene.world.find("P100.101").is_none());
    assert!(scene.world.contexts_of(main).is_none());
}

/// Announces a container, with a name or without, whose process has this one's id.
fn container(scene: &mut Scene, cgroup: &str, name: Option<&str>) -> ContainerId {
    let container = Container {
        cgroup: scene.string(cgroup),
        engine: None,
        id: None,
        name: name.map(|name| scene.string(name)),
        image: None,
        pod: None,
        namespace: None,
        unit: None,
    };
    let (id, _) = scene.tables.intern_container(container.clone());
    scene.definitions.push(Definition::Container(id, container));
    id
}

fn put_into(scene: &mut Scene, process: ProcessId, container: Option<ContainerId>) {
    let mut process = scene.tables.process(process).unwrap().clone();
    process.container = container;
    let (id, _) = scene.tables.intern_process(process.clone());
    // In place of what was not sent yet.
    let is_same = |definition: &Definition| matches!(definition, Definition::Process(other, _) if *other == id);
    scene.definitions.retain(|definition| !is_same(definition));
    scene.definitions.push(Definition::Process(id, process));
}

#[test]
fn containers_that_are_described_late_change_their_processes() {
    let mut scene = Scene::live();
    let web = container(&mut scene, "/docker/a", None);
    let other = container(&mut scene, "/docker/b", None);
    for (pid, place) in [(100, Some(web)), (200, Some(other)), (300, None)] {
        let process = scene.process(pid, 10, "a");
        put_into(&mut scene, process, place);
    }
    let (added, changed, _) = scene.changes();
    assert_eq!((added.len(), changed.len()), (6, 0));
    let label = |scene: &Scene, id: &str| {
        let container = scene.world.container(scene.world.find(id).unwrap());
        container.map(|container| scene.world.tables().container_label(container))
    };
    assert_eq!(label(&scene, "P100").unwrap(), "a");
    container(&mut scene, "/docker/a", Some("web"));
    assert_eq!(scene.changes().1, ["P100"]);
    assert_eq!(label(&scene, "P100").unwrap(), "web");
    assert_eq!(label(&scene, "P300"), None);
    // The same again, in this epoch, in the next one, and in new tables: nothing new.
    for turn in [false, true] {
        container(&mut scene, "/docker/a", Some("web"));
        assert_eq!(scene.changes(), Default::default());
        match turn {
            false => scene.next_epoch(),
            true => scene.turn(),
        }
        let web = container(&mut scene, "/docker/a", Some("web"));
        let process = scene.process(100, 10, "a");
        put_into(&mut scene, process, Some(web));
        assert_eq!(scene.changes().1, texts(&[]));
        assert_eq!(label(&scene, "P100").unwrap(), "web");
    }
    // What is not told in new tables is known still.
    assert_eq!(label(&scene, "P200").unwrap(), "b");
    container(&mut scene, "/docker/b", Some("db"));
    assert_eq!(scene.changes().1, ["P200"]);
    assert_eq!(label(&scene, "P200").unwrap(), "db");
}

#[test]
fn a_process_that_moves_into_a_container_has_changed() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    scene.changes();
    let web = container(&mut scene, "/docker/a", Some("web"));
    put_into(&mut scene, process, Some(web));
    assert_eq!(scene.changes().1, ["P100"]);
}

#[test]
fn what_is_held_is_kept_until_it_is_let_go_as_often() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let main = scene.thread(process, 100, 10, "a");
    let other = scene.thread(process, 101, 10, "a");
    let key = scene.find("P100");
    scene.world.hold(key, true);
    scene.world.hold(key, true);
    scene.exit(20, other);
    scene.tick(0);
    scene.tick(100);
    assert!(scene.world.find("P100.101").is_some());
    scene.exit(30, main);
    scene.tick(101);
    scene.tick(1000);
    assert_eq!(scene.find("P100"), key);
    scene.world.hold(key, false);
    assert_eq!(scene.find("P100"), key);
    scene.world.hold(key, false);
    assert!(scene.world.find("P100").is_none());
    assert!(scene.world.context(key).is_none());
    // Nothing is left, nothing underflows.
    assert!(scene.world.find("P100.101").is_none());
    scene.world.hold(key, false);
    scene.tick(2000);
}

#[test]
fn threads_that_a_hold_kept_go_when_it_ends() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let other = scene.thread(process, 101, 10, "a");
    let late = scene.thread(process, 102, 10, "a");
    let key = scene.find("P100");
    scene.world.hold(key, true);
    scene.exit(20, other);
    scene.tick(0);
    scene.tick(100);
    scene.exit(30, late);
    scene.world.hold(key, false);
    assert!(scene.world.find("P100.101").is_none());
    assert!(scene.world.find("P100.102").is_some(), "it ended just now");
    assert_eq!(scene.threads("P100"), ["P100.100"]);
}

#[test]
fn an_exec_leaves_the_main_thread_and_changes_names() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "sh");
    let main = scene.thread(process, 100, 10, "sh");
    scene.thread(process, 101, 11, "worker");
    let file = scene.module(ModuleKind::File, "/bin/sh");
    scene.map(process, file, (0x1000, 0x2000), 0, 10);
    scene.changes();
    scene.execute(20, main, "ls");
    assert_eq!(scene.threads("P100"), ["P100.100"]);
    let (added, changed, removed) = scene.changes();
    assert_eq!((added, changed), (vec![], texts(&["P100", "P100.100"])));
    assert_eq!(removed, ["P100.101"]);
    let key = scene.find("P100");
    assert_eq!(scene.world.context(key).unwrap().name, "ls");
    assert!(scene.world.mappings(key).is_empty());
}

/// All definitions of a batch are told before its events.
#[test]
fn an_exec_leaves_the_threads_of_the_new_program() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "sh");
    let main = scene.thread(process, 100, 10, "sh");
    scene.thread(process, 101, 11, "old");
    let new = scene.thread(process, 102, 21, "new");
    // Its start was read in ticks.
    let coarse = scene.thread(process, 103, 19, "coarse");
    scene.changes();
    scene.execute(20, main, "program");
    assert_eq!(scene.threads("P100"), ["P100.100", "P100.102"]);
    scene.event(21, new, ProcessChange::Started).unwrap();
    scene.event(22, coarse, ProcessChange::Started).unwrap();
    assert_eq!(scene.threads("P100"), ["P100.100", "P100.102", "P100.103"]);
    let (_, _, removed) = scene.changes();
    assert_eq!(removed, ["P100.101"]);
}

#[test]
fn an_exec_by_another_thread_brings_the_main_thread_back() {
    // Of a capture: the thread that called exec was never sampled, so the process seemed to end.
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "sh");
    let main = scene.thread(process, 100, 10, "sh");
    scene.changes();
    scene.exit(19, main);
    assert!(scene.processes().is_empty());
    scene.execute(20, main, "ls");
    assert_eq!(scene.processes(), ["P100"]);
    assert_eq!(scene.threads("P100"), ["P100.100"]);
    let (added, changed, removed) = scene.changes();
    assert_eq!(changed, ["P100", "P100.100"]);
    assert!(added.is_empty() && removed.is_empty());
    scene.tick(0);
    scene.tick(100);
    assert!(
        !scene
            .world
            .context(scene.world.find("P100").unwrap())
            .unwrap()
            .ended
    );
    scene.exit(30, main);
    assert!(scene.processes().is_empty());
    scene.tick(101);
    scene.tick(161);
    assert!(scene.world.find("P100").is_none());
}

#[test]
fn names_change_by_events_and_by_definitions() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let main = scene.thread(process, 100, 10, "a");
    let other = scene.thread(process, 101, 10, "a");
    scene.changes();
    let name = scene.string("b");
    scene.event(20, main, ProcessChange::Renamed(name)).unwrap();
    assert_eq!(scene.changes().1, ["P100", "P100.100"]);
    scene
        .event(21, other, ProcessChange::Renamed(name))
        .unwrap();
    assert_eq!(scene.changes().1, ["P100.101"]);
    scene
        .event(22, other, ProcessChange::Renamed(name))
        .unwrap();
    assert_eq!(scene.changes(), Default::default());
    scene.process(100, 10, "c");
    assert_eq!(scene.changes().1, ["P100", "P100.100"]);
}

#[test]
fn who_comes_and_goes_between_two_looks_is_in_no_change() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let main = scene.thread(process, 100, 10, "a");
    let name = scene.string("b");
    scene.event(15, main, ProcessChange::Renamed(name)).unwrap();
    scene.exit(20, main);
    assert_eq!(scene.changes(), Default::default());
}

#[test]
fn an_id_that_is_used_again_means_the_living_one() {
    let mut scene = Scene::live();
    let first = scene.process(100, 10, "a");
    let thread = scene.thread(first, 100, 10, "a");
    let old = scene.find("P100");
    scene.exit(20, thread);
    scene.changes();
    let second = scene.process(100, 1_000_000_000, "b");
    scene.thread(second, 100, 1_000_000_000, "b");
    let new = scene.find("P100");
    assert_ne!(old, new);
    assert_eq!(scene.id(old), "P100");
    assert_eq!(scene.processes(), ["P100"]);
    assert_eq!(scene.changes().0, ["P100", "P100.100"]);
    // News of the first one do not bring it back.
    scene.execute(1_100_000_000, thread, "late");
    assert_eq!(scene.find("P100"), new);
    assert!(scene.world.context(old).unwrap().ended);
    // A third one, although nobody saw the end of the second.
    scene.process(100, 2_000_000_000, "c");
    let third = scene.find("P100");
    assert_ne!(third, new);
    assert!(scene.world.context(new).unwrap().ended);
    assert_eq!(scene.changes().2, ["P100.100", "P100"]);
    scene.tick(0);
    scene.tick(60);
    assert_eq!(scene.find("P100"), third);
    assert!(scene.world.context(old).is_none() && scene.world.context(new).is_none());
}

#[test]
fn nothing_ends_where_all_of_a_capture_is_there() {
    let mut scene = Scene::new(Some(Replay::AtOnce));
    let first = scene.process(100, 10, "a");
    let main = scene.thread(first, 100, 10, "a");
    let second = scene.process(100, 90, "b");
    scene.thread(second, 101, 95, "w");
    scene.thread(second, 101, 99, "v");
    scene.exit(50, main);
    assert_eq!(scene.processes(), ["P100", "P100@2"]);
    assert_eq!(scene.threads("P100"), ["P100.100"]);
    assert_eq!(
        scene.threads("P100@2"),
        ["P100@2.100", "P100@2.101", "P100@2.101@2"]
    );
    assert!(scene.changes().2.is_empty());
    scene.tick(0);
    scene.tick(1000);
    assert_eq!(scene.processes().len(), 2);
}

#[test]
fn a_replay_that_takes_its_time_shows_what_has_happened_by_then() {
    let mut scene = Scene::new(Some(Replay::Timed));
    scene.session(100);
    let old = scene.process(7, 10, "old");
    let main = scene.thread(old, 7, 10, "old");
    let first = scene.process(100, 200, "a");
    let late = scene.thread(first, 101, 400, "late");
    let second = scene.process(100, 500, "b");
    let second_main = scene.thread(second, 100, 500, "b");
    let first_main = scene.thread(first, 100, 200, "a");
    let file = scene.module(ModuleKind::File, "/bin/a");
    scene.map(first, file, (0x1000, 0x2000), 0, 210);
    assert_eq!(scene.processes(), ["P7"]);
    assert_eq!(scene.changes().0, ["P7", "P7.7"]);
    scene.sample(205, main).unwrap();
    assert_eq!(scene.processes(), ["P7", "P100"]);
    let key = scene.find("P100");
    assert!(scene.world.mappings(key).is_empty());
    scene.sample(300, first_main).unwrap();
    assert_eq!(scene.world.mappings(key).len(), 1);
    assert_eq!(scene.threads("P100"), ["P100.100"]);
    // An event of a thread says that it is there.
    scene.sample(390, late).unwrap();
    assert_eq!(scene.threads("P100"), ["P100.100", "P100.101"]);
    scene.exit(450, first_main);
    scene.exit(460, late);
    assert_eq!(scene.processes(), ["P7"]);
    scene.sample(501, second_main).unwrap();
    assert_ne!(scene.find("P100"), key);
    assert_eq!(
        scene.world.contexts_of(second_main).unwrap().0,
        scene.find("P100")
    );
}

#[test]
fn a_new_session_knows_who_has_ended_meanwhile() {
    let mut scene = Scene::live();
    scene.session(1);
    let stays = scene.process(100, 1_000_000_000, "stays");
    scene.thread(stays, 101, 1_000_000_000, "w");
    scene.thread(stays, 102, 1_000_000_000, "x");
    scene.process(200, 10, "goes");
    let key = scene.find("P100");
    scene.changes();
    scene.next_epoch();
    scene.session(2);
    // This time it is known from /proc.
    let stays = scene.process(100, 1_009_000_000, "stays");
    let worker = scene.thread(stays, 101, 1_003_000_000, "w");
    scene.process(300, 20, "comes");
    scene.flush();
    scene.tick(0);
    assert_eq!(scene.find("P100"), key);
    assert_eq!(scene.processes(), ["P100", "P200", "P300"]);
    scene.tick(2);
    assert_eq!(scene.processes(), ["P100", "P300"]);
    assert_eq!(scene.threads("P100"), ["P100.100", "P100.101"]);
    assert_eq!(scene.changes().2, ["P100.102", "P200.200", "P200"]);
    assert_eq!(scene.world.contexts_of(worker).unwrap().0, key);
}

#[test]
fn a_new_session_may_begin_with_the_epoch_that_was_there() {
    let mut scene = Scene::live();
    scene.session(1);
    let before = scene.process(100, 10, "a");
    scene.thread(before, 100, 10, "a");
    scene.flush();
    scene.tables = Tables::default();
    scene.session(2);
    scene.flush();
    // What only the session before has defined means nothing.
    assert_eq!(scene.sample(5, ThreadId::from_index(0)), None);
    let other = scene.process(300, 10, "c");
    let main = scene.thread(other, 300, 10, "c");
    let Some(Event::Sample(sample)) = scene.sample(7, main) else {
        panic!("it is defined");
    };
    let (process, _) = scene.world.contexts_of(sample.thread).unwrap();
    assert_eq!(scene.id(process), "P300");
}

#[test]
fn epochs_that_announce_anew_change_nothing() {
    let mut scene = Scene::live();
    scene.session(1);
    let init = scene.process(1, 0, "init");
    scene.child(Some(init), 100, 10, "a");
    let key = scene.find("P100");
    scene.changes();
    for _ in 0..3 {
        scene.turn();
        scene.session(1);
        let again = scene.process(100, 10, "a");
        let main = scene.thread(again, 100, 10, "a");
        scene.flush();
        assert_eq!(scene.changes(), Default::default());
        assert_eq!(scene.world.contexts_of(main).unwrap().0, key);
        assert_eq!(
            scene.world.context(key).unwrap().parent,
            scene.world.find("P1")
        );
        // What is said of those that were not announced again is in the present tables, too.
        let init = scene.find("P1");
        let said = scene.world.process(init).unwrap();
        let tables = scene.world.tables();
        assert_eq!(tables.string(said.executable.unwrap()), "/bin/1");
        assert_eq!(tables.string(said.name), "init");
    }
    scene.tick(0);
    scene.tick(100);
    assert_eq!(scene.processes(), ["P1", "P100"]);
}

#[test]
fn parents_are_no_ring() {
    let mut scene = Scene::live();
    let a = scene.process(100, 10, "a");
    let b = scene.child(Some(a), 200, 20, "b");
    scene.child(Some(b), 100, 10, "a");
    scene.child(Some(b), 200, 20, "b");
    let (a, b) = (scene.find("P100"), scene.find("P200"));
    assert_eq!(scene.world.context(a).unwrap().parent, None);
    assert_eq!(scene.world.context(b).unwrap().parent, Some(a));
}

#[test]
fn what_is_not_defined_is_left_out_and_counted() {
    let mut scene = Scene::live();
    scene.flush();
    let far = ThreadId::from_index(99);
    assert_eq!(scene.event(1, far, ProcessChange::Exited), None);
    assert_eq!(scene.sample(1, far), None);
    assert_eq!(scene.world.undefined(), 2);
    scene.definitions.push(Definition::Mapping(
        MappingId::from_index(0),
        Mapping {
            process: ProcessId::from_index(5),
            module: ModuleId::from_index(5),
            start: 0,
            end: 1,
            offset: 0,
            at: Timestamp(0),
        },
    ));
    scene.flush();
    assert_eq!(scene.world.undefined(), 3);
}
