//! Limits, broken on purpose.

use super::*;
use crate::tcf::world::places::{CROWD_NAME, MAX_PLACES};

#[test]
fn addresses_of_a_process_are_bounded() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let gone = scene.module(ModuleKind::File, "/lib/gone.so");
    let file = scene.module(ModuleKind::File, "/bin/a");
    scene.map(process, file, (0x40_0000, 0x80_0000), 0, 10);
    for address in 0..MAX_PLACES as u64 {
        scene.native(gone, address);
    }
    let last = scene.native(gone, MAX_PLACES as u64);
    let beyond = scene.native(gone, MAX_PLACES as u64 + 1);
    let natural = scene.native(file, 0x1234);
    scene.name(natural, "f");
    let key = scene.find("P100");
    let frames: Vec<FrameId> = {
        let tables = &scene.world.present.tables;
        tables.frames.iter().map(|(id, _)| id).collect()
    };
    let mut seen = std::collections::HashSet::new();
    for &frame in &frames[..MAX_PLACES] {
        assert!(seen.insert(scene.world.address_of(key, frame)));
    }
    assert_eq!(scene.world.places, MAX_PLACES);
    let crowd = scene.address(key, last);
    assert!(!seen.contains(&crowd));
    assert_eq!(scene.address(key, beyond), crowd);
    assert_eq!(scene.name_at(key, crowd), CROWD_NAME);
    assert_eq!(scene.address(key, natural), 0x40_1234);
    assert_eq!(scene.name_at(key, 0x40_1234), "f");
    assert_eq!(scene.world.places, MAX_PLACES);
    // What is no longer sampled makes room.
    scene.turn();
    scene.turn();
    assert_eq!(scene.world.places, 0);
    let gone = scene.module(ModuleKind::File, "/lib/gone.so");
    let frame = scene.native(gone, 1 << 30);
    let address = scene.address(key, frame);
    assert!(address != crowd && !seen.contains(&address));
}

#[test]
fn what_is_forgotten_leaves_nothing_behind() {
    let mut scene = Scene::live();
    let process = scene.process(100, 10, "a");
    let main = scene.thread(process, 100, 10, "a");
    let file = scene.module(ModuleKind::File, "/bin/a");
    scene.map(process, file, (0x40_0000, 0x80_0000), 0, 10);
    let frame = scene.native(file, 0x1234);
    let key = scene.find("P100");
    scene.address(key, frame);
    assert_eq!((scene.world.places, scene.world.mapped), (1, 1));
    scene.exit(20, main);
    scene.tick(0);
    scene.tick(60);
    assert_eq!((scene.world.places, scene.world.mapped), (0, 0));
    assert!(scene.world.spaces.is_empty() && scene.world.memories.is_empty());
    let frame = scene.known(frame);
    assert_eq!(scene.world.address_of(key, frame), 0);
    assert!(scene.world.spaces.is_empty());
}

#[test]
fn only_so_many_ended_processes_are_known() {
    let mut scene = Scene::live();
    let mut last = None;
    for pid in 1..=12_000 {
        let process = scene.process(pid, 10, "a");
        let main = scene.thread(process, pid, 10, "a");
        scene.exit(20, main);
        last = Some(format!("P{pid}"));
    }
    assert!(scene.world.find("P1").is_none());
    assert!(scene.world.find("P2000").is_none());
    assert!(scene.world.find("P2001").is_some());
    assert!(scene.world.find(&last.unwrap()).is_some());
}

#[test]
fn questions_are_bounded() {
    let mut scene = Scene::live();
    scene.process(100, 10, "a");
    let key = scene.find("P100");
    let waiting = (0..100_000)
        .filter(|&address| scene.world.symbol(key, address) == Lookup::Waiting)
        .count();
    assert_eq!(waiting, 65_536);
    let questions = scene.world.questions();
    assert_eq!(questions.len(), 16);
    // Nobody answers.
    scene.tick(0);
    scene.tick(10);
    assert_eq!(scene.symbol_at(key, 5), Lookup::Waiting);
    for question in questions {
        scene.world.acknowledged(question.id);
    }
    assert_eq!(scene.symbol_at(key, 5), Lookup::Waiting);
}

#[test]
fn definitions_are_bounded() {
    let mut scene = Scene::live();
    scene.process(100, 10, "a");
    scene.flush();
    scene.world.present.bytes = usize::MAX / 2;
    assert!(scene.world.wants_new_epoch());
    scene.process(200, 10, "b");
    assert_eq!(scene.processes(), ["P100"]);
    assert!(scene.world.refused() > 0);
    scene.next_epoch();
    scene.process(200, 10, "b");
    assert_eq!(scene.processes(), ["P100", "P200"]);
    assert!(!scene.world.wants_new_epoch());
}

#[test]
fn ten_thousand_processes() {
    let mut scene = Scene::live();
    for pid in 1..=10_000 {
        let process = scene.process(pid, u64::from(pid), "worker");
        scene.thread(process, 20_000 + pid, 10, "thread");
    }
    let measure = |what: &str, since: Instant| println!("{what}: {:?}", since.elapsed());
    let since = Instant::now();
    scene.flush();
    measure("10,000 processes of two threads are defined", since);
    let since = Instant::now();
    let changes = scene.world.changes();
    measure("they are told", since);
    assert_eq!(changes.added.len(), 30_000);
    let since = Instant::now();
    let processes = scene.world.processes();
    let threads: usize = processes
        .iter()
        .map(|&key| scene.world.threads(key).len())
        .sum();
    measure("all children are listed", since);
    assert_eq!((processes.len(), threads), (10_000, 20_000));
    let since = Instant::now();
    for pid in 1..=10_000 {
        assert!(scene.world.find(&format!("P{pid}")).is_some());
    }
    measure("all are found", since);
    let since = Instant::now();
    scene.turn();
    measure("ids begin anew", since);
}
