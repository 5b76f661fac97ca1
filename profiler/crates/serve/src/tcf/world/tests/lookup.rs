//! What addresses mean, and what is asked.

use super::*;
use crate::front::Place;
use crate::tcf::world::places::KERNEL_BASE;

fn program(scene: &mut Scene) -> (ModuleId, ContextKey) {
    let process = scene.process(100, 10, "a");
    let file = scene.module(ModuleKind::File, "/bin/a");
    scene.map(process, file, (0x40_1000, 0x40_9000), 0x1000, 10);
    (file, scene.find("P100"))
}

fn found(name: &str, range: (u64, u64), source: Option<(&str, u32)>) -> Lookup {
    Lookup::Found(Found {
        name: name.to_owned(),
        start: (range.0 > 0).then_some(range.0),
        size: (range.1 > 1).then_some(range.1),
        source: source.map(|(file, line)| (file.to_owned(), line)),
        own: None,
    })
}

/// With the function's own file and line.
fn own(found: Lookup, file: &str, line: u32) -> Lookup {
    match found {
        Lookup::Found(mut found) => {
            found.own = Some((file.to_owned(), line));
            Lookup::Found(found)
        }
        other => other,
    }
}

#[test]
fn the_outermost_function_has_the_name_and_the_innermost_the_line() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let frame = scene.native(file, 0x1234);
    let inlined = scene.function(Some(file), "min", None, Some("min.h"));
    let outer = scene.function(Some(file), "main", Some((0x1200, 0x80)), Some("main.c"));
    scene.lines(frame, &[(inlined, 3), (outer, 40)]);
    scene.known(frame);
    // Whether or not it was given out.
    let expected = found("main", (0x40_1200, 0x80), Some(("min.h", 3)));
    let expected = own(expected, "main.c", 40);
    assert_eq!(scene.symbol_at(key, 0x40_1234), expected);
    assert_eq!(scene.address(key, frame), 0x40_1234);
    assert_eq!(scene.symbol_at(key, 0x40_1234), expected);
    // By the id of a thread, too.
    let thread = scene.find("P100.100");
    assert_eq!(scene.symbol_at(thread, 0x40_1234), expected);
}

#[test]
fn what_is_not_known_of_a_function_is_left_out() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let cases = [
        (0x1300, None, Some("a.c"), 0, found("f", (0, 1), None)),
        (
            0x1310,
            Some((0x1300, 0)),
            None,
            5,
            found("f", (0x40_1300, 0), None),
        ),
        // Nonsense.
        (0x1320, Some((0x5000, 4)), None, 5, found("f", (0, 1), None)),
        (0x1330, Some((0x1300, 4)), None, 5, found("f", (0, 1), None)),
        (
            0x1340,
            Some((0, u64::MAX)),
            None,
            5,
            found("f", (0, 1), None),
        ),
    ];
    for (address, range, source, line, expected) in cases {
        let frame = scene.native(file, address);
        let function = match range {
            Some((start, 0)) => {
                let name = scene.string("f");
                let function = Function {
                    name,
                    linkage_name: None,
                    module: Some(file),
                    file: None,
                    line: 0,
                    start: Some(start),
                    size: None,
                };
                let (id, _) = scene.tables.functions.intern(function.clone());
                scene.definitions.push(Definition::Function(id, function));
                id
            }
            _ => scene.function(Some(file), "f", range, source),
        };
        scene.lines(frame, &[(function, line)]);
        let at = scene.address(key, frame);
        assert_eq!(scene.symbol_at(key, at), expected, "{address:#x}");
    }
}

#[test]
fn a_name_that_comes_late_is_waited_for() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let frame = scene.native(file, 0x1234);
    let address = scene.address(key, frame);
    assert_eq!(scene.symbol_at(key, address), Lookup::Waiting);
    assert!(scene.world.questions().is_empty(), "it comes by itself");
    // It comes in the next generation, with the frame.
    let before = scene.world.generation();
    scene.turn();
    let file = scene.module(ModuleKind::File, "/bin/a");
    let frame = scene.native(file, 0x1234);
    scene.name(frame, "late");
    assert_eq!(scene.name_at(key, address), "late");
    assert!(scene.world.generation() > before);
    let unnamed = scene.native(file, 0x2234);
    scene.symbol(unnamed, Symbol::Unknown(UnknownReason::NoSymbol));
    let address = scene.address(key, unnamed);
    assert_eq!(scene.symbol_at(key, address), Lookup::Missing);
}

#[test]
fn a_name_that_never_comes_is_waited_for_once() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let jit = scene.module(ModuleKind::Jit, "[jit 100]");
    let frame = scene.frame(FrameKind::Jit, Some(jit), 0x9010);
    let address = scene.address(key, frame);
    for second in 0..3 {
        scene.tick(second);
        assert_eq!(scene.symbol_at(key, address), Lookup::Waiting, "{second}");
    }
    for second in [4, 8, 30] {
        scene.tick(second);
        assert_eq!(scene.symbol_at(key, address), Lookup::Missing, "{second}");
    }
    // Nor is the next one likely to have a name; one of a file is.
    let other = scene.frame(FrameKind::Jit, Some(jit), 0x9020);
    let other = scene.address(key, other);
    let native = scene.native(file, 0x1234);
    let native = scene.address(key, native);
    scene.tick(31);
    assert_eq!(scene.symbol_at(key, other), Lookup::Waiting);
    assert_eq!(scene.symbol_at(key, native), Lookup::Waiting);
    scene.tick(32);
    let before = scene.world.generation();
    scene.tick(33);
    assert!(
        scene.world.generation() > before,
        "what waits is tried again"
    );
    assert_eq!(scene.symbol_at(key, other), Lookup::Missing);
    assert_eq!(scene.symbol_at(key, native), Lookup::Waiting);
    scene.name(frame, "late");
    assert_eq!(scene.name_at(key, address), "late");
}

#[test]
fn an_exact_answer_is_waited_for_where_there_is_a_rough_one() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let (first, second) = (scene.native(file, 0x1234), scene.native(file, 0x1238));
    scene.name(first, "f");
    let address = scene.address(key, second);
    scene.tick(0);
    assert_eq!(scene.symbol_at(key, address), Lookup::Waiting);
    scene.tick(1);
    assert_eq!(scene.symbol_at(key, address), Lookup::Waiting);
    scene.tick(2);
    let rough = found("f", (0x40_1200, 0x100), None);
    assert_eq!(scene.symbol_at(key, address), own(rough, "a.c", 7));
    scene.name(second, "f");
    let exact = found("f", (0x40_1200, 0x100), Some(("a.c", 7)));
    let exact = own(exact, "a.c", 7);
    assert_eq!(scene.symbol_at(key, address), exact);
}

#[test]
fn a_replay_waits_for_nothing_and_asks_nobody() {
    for replay in [Replay::Timed, Replay::AtOnce] {
        let mut scene = Scene::new(Some(replay));
        scene.session(100);
        let (file, key) = program(&mut scene);
        let frame = scene.native(file, 0x1234);
        let named = scene.native(file, 0x3234);
        scene.name(named, "f");
        let address = scene.address(key, frame);
        assert_eq!(scene.symbol_at(key, address), Lookup::Missing);
        assert_eq!(scene.symbol_at(key, 0x40_5000), Lookup::Missing);
        assert_eq!(scene.symbol_at(key, 0x77), Lookup::Missing);
        let around = own(found("f", (0x40_3200, 0x100), None), "a.c", 7);
        assert_eq!(scene.symbol_at(key, 0x40_3201), around);
        assert!(scene.world.questions().is_empty());
    }
}

#[test]
fn what_nobody_knows_is_asked_for_once() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let life = scene.world.context(key).unwrap().life;
    for address in [0x40_1234, 0x77, 0x40_1234, 0x40_5000] {
        assert_eq!(scene.symbol_at(key, address), Lookup::Waiting);
    }
    let questions = scene.world.questions();
    let [question] = &questions[..] else {
        panic!("{questions:?}");
    };
    let asked = vec![0x40_1234, 0x77, 0x40_5000];
    assert_eq!(question.place, Place::Process(life, asked));
    assert_eq!(scene.symbol_at(key, 0x77), Lookup::Waiting);
    assert!(scene.world.questions().is_empty());
    // One is answered with a frame whose name follows, one with a name, one not at all.
    let first = scene.native(file, 0x1234);
    let second = scene.native(file, 0x5000);
    scene.name(second, "second");
    scene.flush();
    let before = scene.world.generation();
    scene.world.acknowledged(question.id);
    scene.world.acknowledged(question.id + 1);
    assert_eq!(scene.world.generation(), before + 1);
    assert_eq!(scene.symbol_at(key, 0x40_1234), Lookup::Waiting);
    assert_eq!(scene.name_at(key, 0x40_5000), "second");
    assert_eq!(scene.symbol_at(key, 0x77), Lookup::Missing);
    scene.name(first, "first");
    assert_eq!(scene.name_at(key, 0x40_1234), "first");
    assert!(scene.world.questions().is_empty());
    // After a while it is worth asking again.
    scene.tick(0);
    scene.tick(10);
    assert_eq!(scene.symbol_at(key, 0x77), Lookup::Waiting);
    assert_eq!(scene.world.questions().len(), 1);
}

#[test]
fn where_an_answer_says_nothing_the_function_around_does() {
    let mut scene = Scene::live();
    let (file, key) = program(&mut scene);
    let frame = scene.native(file, 0x1234);
    scene.name(frame, "f");
    assert_eq!(scene.symbol_at(key, 0x40_1240), Lookup::Waiting);
    let question = scene.world.questions()[0].id;
    scene.world.acknowledged(question);
    let around = found("f", (0x40_1200, 0x100), None);
    assert_eq!(scene.symbol_at(key, 0x40_1240), own(around, "a.c", 7));
}

#[test]
fn the_kernel_is_the_same_in_each_process() {
    let mut scene = Scene::live();
    scene.process(2, 0, "kthreadd");
    scene.process(100, 10, "a");
    let kernel = scene.module(ModuleKind::Kernel, "[kernel]");
    let frame = scene.frame(FrameKind::Kernel, Some(kernel), 0x1234);
    let function = scene.function(Some(kernel), "schedule", Some((0x1200, 0x80)), None);
    scene.lines(frame, &[(function, 0)]);
    let expected = found("schedule", (KERNEL_BASE + 0x1200, 0x80), None);
    for id in ["P2", "P100"] {
        let key = scene.find(id);
        assert_eq!(scene.symbol_at(key, KERNEL_BASE + 0x1234), expected);
        assert_eq!(scene.address(key, frame), KERNEL_BASE + 0x1234);
        assert_eq!(scene.symbol_at(key, KERNEL_BASE + 0x1234), expected);
    }
    let key = scene.find("P2");
    assert_eq!(scene.symbol_at(key, KERNEL_BASE + 0x9999), Lookup::Waiting);
    let other = scene.find("P100");
    assert_eq!(
        scene.symbol_at(other, KERNEL_BASE + 0x9999),
        Lookup::Waiting
    );
    let questions = scene.world.questions();
    assert_eq!(questions.len(), 1);
    assert_eq!(questions[0].place, Place::Kernel(vec![0x9999]));
    // Of kernel modules nobody knows where they are.
    assert_eq!(scene.symbol_at(key, u64::MAX), Lookup::Missing);
    assert!(scene.world.questions().is_empty());
}

#[test]
fn two_kernels_of_one_capture_do_not_share_addresses() {
    let mut scene = Scene::new(Some(Replay::AtOnce));
    scene.process(100, 10, "a");
    let first = scene.module(ModuleKind::Kernel, "[kernel]");
    let second = scene.module(ModuleKind::Kernel, "[other kernel]");
    let key = scene.find("P100");
    for (module, name) in [(first, "one"), (second, "two")] {
        let frame = scene.frame(FrameKind::Kernel, Some(module), 0x1234);
        scene.name(frame, name);
        let address = scene.address(key, frame);
        assert_eq!(scene.name_at(key, address), name);
    }
}
