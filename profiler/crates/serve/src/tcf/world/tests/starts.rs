//! Where functions begin: looked up again that is the same function, with its own line.

use super::*;
use crate::front::Place;
use crate::tcf::world::places::is_reserved;

fn program(scene: &mut Scene) -> (ModuleId, ContextKey) {
    let process = scene.process(100, 10, "a");
    let file = scene.module(ModuleKind::File, "/bin/a");
    scene.map(process, file, (0x40_1000, 0x40_9000), 0x1000, 10);
    (file, scene.find("P100"))
}

fn found(scene: &mut Scene, process: ContextKey, address: u64) -> Found {
    match scene.symbol_at(process, address) {
        Lookup::Found(found) => found,
        other => panic!("{address:#x}: {other:?}"),
    }
}

fn line(file: &str, line: u32) -> Lookup<(String, u32)> {
    Lookup::Found((file.to_owned(), line))
}

#[test]
fn where_a_function_begins_is_that_function() {
    for replay in [None, Some(Replay::AtOnce)] {
        let mut scene = Scene::new(replay);
        let (file, key) = program(&mut scene);
        let main = scene.function(Some(file), "main", Some((0x1200, 0x80)), Some("main.c"));
        let inlined = scene.function(Some(file), "min", None, Some("min.h"));
        for (address, at) in [(0x1240, 12), (0x1234, 9), (0x1250, 11)] {
            let frame = scene.native(file, address);
            scene.lines(frame, &[(inlined, 3), (main, at)]);
            scene.address(key, frame);
        }
        let sampled = found(&mut scene, key, 0x40_1234);
        assert_eq!(sampled.start, Some(0x40_1200));
        let start = found(&mut scene, key, 0x40_1200);
        assert_eq!((&*start.name, start.start), ("main", sampled.start));
        assert_eq!(start.size, Some(0x80));
        assert_eq!(scene.world.source(key, 0x40_1234), line("min.h", 3));
        if replay.is_some() {
            assert_eq!(scene.world.source(key, 0x40_1200), line("main.c", 9));
            assert!(scene.world.questions().is_empty());
            continue;
        }
        // The name is known; the line is asked for.
        assert!(scene.world.questions().is_empty());
        assert_eq!(scene.world.source(key, 0x40_1200), Lookup::Waiting);
        let questions = scene.world.questions();
        let life = scene.world.context(key).unwrap().life;
        assert_eq!(questions[0].place, Place::Process(life, vec![0x40_1200]));
        let first = scene.native(file, 0x1200);
        scene.flush();
        scene.world.acknowledged(questions[0].id);
        assert_eq!(scene.world.source(key, 0x40_1200), Lookup::Waiting);
        scene.lines(first, &[(inlined, 3), (main, 5)]);
        scene.flush();
        assert_eq!(scene.world.source(key, 0x40_1200), line("main.c", 5));
        let start = found(&mut scene, key, 0x40_1200);
        assert_eq!((&*start.name, start.start), ("main", sampled.start));
    }
}

#[test]
fn a_function_whose_length_is_not_known_has_a_line_where_it_begins() {
    let mut scene = Scene::new(Some(Replay::AtOnce));
    let (file, key) = program(&mut scene);
    let name = scene.string("f");
    let function = Function {
        name,
        linkage_name: None,
        module: Some(file),
        file: Some(scene.string("a.c")),
        line: 0,
        start: Some(0x1200),
        size: None,
    };
    let (id, _) = scene.tables.functions.intern(function.clone());
    scene.definitions.push(Definition::Function(id, function));
    let frame = scene.native(file, 0x1234);
    scene.lines(frame, &[(id, 7)]);
    let address = scene.address(key, frame);
    let there = found(&mut scene, key, address);
    assert_eq!((there.start, there.size), (Some(0x40_1200), None));
    let start = found(&mut scene, key, 0x40_1200);
    assert_eq!((&*start.name, start.size), ("f", None));
    assert_eq!(scene.world.source(key, 0x40_1200), line("a.c", 7));
}

#[test]
fn places_of_one_function_without_addresses_share_its_begin() {
    let mut scene = Scene::live();
    let (_, key) = program(&mut scene);
    let gone = scene.module(ModuleKind::File, "/lib/gone.so");
    let ext4 = scene.module(ModuleKind::KernelModule, "[ext4]");
    let jit = scene.module(ModuleKind::Jit, "[jit 999]");
    let mut frames = vec![];
    for address in [0x1240, 0x1234, 0x1350, 0x1220] {
        frames.push(scene.native(gone, address));
        frames.push(scene.frame(FrameKind::Kernel, Some(ext4), address));
    }
    let taken = 0x7f00_0000_1000;
    let code = [taken + 0x10, taken + 0x20, taken + 0x110];
    for address in code {
        let elsewhere = scene.frame(FrameKind::Native, None, address);
        scene.address(key, elsewhere);
        frames.push(scene.frame(FrameKind::Jit, Some(jit), address));
    }
    let mut starts = std::collections::BTreeMap::new();
    for frame in frames {
        let name = format!("{:?} {:#x}", frame.module, frame.address & !0xff);
        scene.name(frame, &name);
        let address = scene.address(key, frame);
        assert!(is_reserved(address), "{address:#x} {frame:?}");
        let function = found(&mut scene, key, address);
        let start = function.start.unwrap();
        assert!(start <= address && address - start < function.size.unwrap());
        assert_eq!(
            *starts.entry(name.clone()).or_insert(start),
            start,
            "{name}"
        );
        assert_eq!(found(&mut scene, key, start).name, name);
        assert_eq!(found(&mut scene, key, start).start, Some(start));
        assert_eq!(scene.world.source(key, start), line("a.c", 7));
    }
    let mut different: Vec<u64> = starts.values().copied().collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!((starts.len(), different.len()), (6, 6));
}

#[test]
fn two_functions_do_not_begin_at_one_address() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let main = scene.process(100, 10, "a");
    let main = scene.thread(main, 100, 10, "a");
    let old = scene.native(file, 0x1234);
    scene.name(old, "old");
    let address = scene.address(key, old);
    assert_eq!(found(&mut scene, key, address).start, Some(0x40_1200));
    // Another name of the same code.
    let alias = scene.native(file, 0x1238);
    scene.name(alias, "alias");
    let address = scene.address(key, alias);
    let found_there = found(&mut scene, key, address);
    assert_eq!((&*found_there.name, found_there.start), ("alias", None));
    // Another program at the same place.
    let process = scene.process(100, 10, "a");
    let program = scene.module(ModuleKind::File, "/bin/b");
    scene.map(process, program, (0x40_1000, 0x40_9000), 0x1000, 30);
    scene.execute(20, main, "b");
    let new = scene.native(program, 0x1240);
    scene.name(new, "new");
    let address = scene.address(key, new);
    assert_eq!(address, 0x40_1240);
    let found_there = found(&mut scene, key, address);
    assert_eq!((&*found_there.name, found_there.start), ("new", None));
    assert_eq!(found(&mut scene, key, 0x40_1200).name, "old");
}

#[test]
fn where_a_function_begins_is_known_when_ids_begin_anew() {
    let mut scene = Scene::new(Some(Replay::Timed));
    scene.session(100);
    let (file, key) = program(&mut scene);
    let frame = scene.native(file, 0x1234);
    scene.name(frame, "f");
    let address = scene.address(key, frame);
    assert_eq!(found(&mut scene, key, address).start, Some(0x40_1200));
    for _ in 0..5 {
        scene.turn();
        assert_eq!(found(&mut scene, key, address).start, Some(0x40_1200));
        assert_eq!(found(&mut scene, key, 0x40_1200).name, "f");
        assert_eq!(scene.world.source(key, 0x40_1200), line("a.c", 7));
    }
}
