//! Where frames are: in files, made at run time, in the kernel, nowhere.

use super::*;
use crate::tcf::world::places::{KERNEL_BASE, is_reserved};

/// A process with one file at 0x40_1000, from offset 0x1000.
fn program(scene: &mut Scene) -> (ProcessId, ModuleId, ContextKey) {
    let process = scene.process(100, 10, "a");
    let file = scene.module(ModuleKind::File, "/bin/a");
    scene.map(process, file, (0x40_1000, 0x40_9000), 0x1000, 10);
    let key = scene.find("P100");
    (process, file, key)
}

#[test]
fn each_kind_of_code_has_its_address() {
    let mut scene = Scene::live();
    let (process, file, key) = program(&mut scene);
    let vdso = scene.module(ModuleKind::Vdso, "[vdso]");
    scene.map(process, vdso, (0x7fff_0000, 0x7fff_2000), 0, 10);
    let jit = scene.module(ModuleKind::Jit, "[jit 100]");
    scene.map(process, jit, (0x9000, 0xa000), 0x9000, 10);
    let vsyscall = scene.module(ModuleKind::Unknown, "[vsyscall]");
    let page = 0xffff_ffff_ff60_0000;
    scene.map(process, vsyscall, (page, page + 0x1000), page, 10);
    let kernel = scene.module(ModuleKind::Kernel, "[kernel]");
    let bpf = scene.module(ModuleKind::Jit, "[bpf]");

    let frame = scene.native(file, 0x1234);
    assert_eq!(scene.address(key, frame), 0x40_1234);
    let frame = scene.native(vdso, 0x10);
    assert_eq!(scene.address(key, frame), 0x7fff_0010);
    let frame = scene.frame(FrameKind::Jit, Some(jit), 0x9010);
    assert_eq!(scene.address(key, frame), 0x9010);
    let frame = scene.native(vsyscall, page + 8);
    assert_eq!(scene.address(key, frame), page + 8);
    let frame = scene.frame(FrameKind::Native, None, 0xdead);
    assert_eq!(scene.address(key, frame), 0xdead);
    let frame = scene.frame(FrameKind::Kernel, Some(kernel), 0x20);
    assert_eq!(scene.address(key, frame), KERNEL_BASE + 0x20);
    let frame = scene.frame(FrameKind::Jit, Some(bpf), 0xffff_ffff_c000_0010);
    assert_eq!(scene.address(key, frame), 0xffff_ffff_c000_0010);
}

#[test]
fn code_that_is_nowhere_has_a_reserved_address_that_stays() {
    let mut scene = Scene::live();
    let (process, file, key) = program(&mut scene);
    let other = scene.module(ModuleKind::File, "/lib/gone.so");
    let jit = scene.module(ModuleKind::Jit, "[jit 999]");
    let module = scene.module(ModuleKind::KernelModule, "[ext4]");
    let frames = [
        scene.native(other, 0x1234),
        scene.native(file, 0x10),
        scene.native(file, 0x9000),
        scene.frame(FrameKind::Jit, Some(jit), 0x40_1234),
        scene.frame(FrameKind::Kernel, Some(module), 0x10),
        scene.frame(FrameKind::Native, None, 0x0f00_0000_0000_0010),
        scene.frame(FrameKind::Native, None, KERNEL_BASE),
        scene.frame(FrameKind::Native, None, u64::MAX),
        scene.frame(FrameKind::Native, None, 0x40_1234),
        scene.frame(FrameKind::Kernel, None, KERNEL_BASE),
        scene.frame(FrameKind::Kernel, None, 0x10),
    ];
    let mut seen = std::collections::HashSet::new();
    for (index, frame) in frames.into_iter().enumerate() {
        scene.name(frame, &format!("f{index}"));
        let address = scene.address(key, frame);
        assert!(is_reserved(address), "{frame:?}: {address:#x}");
        assert!(seen.insert(address));
        assert_eq!(scene.address(key, frame), address);
        assert_eq!(scene.name_at(key, address), format!("f{index}"));
    }
    // The kernel's are the same in each process, those of processes are not valid elsewhere.
    scene.process(200, 10, "b");
    let elsewhere = scene.find("P200");
    let kernel = scene.address(key, frames[4]);
    assert_eq!(scene.address(elsewhere, frames[4]), kernel);
    assert_eq!(scene.name_at(elsewhere, kernel), "f4");
    let own = scene.address(key, frames[0]);
    assert_eq!(scene.name_at(elsewhere, own), "Missing");
    let _ = process;
}

#[test]
fn a_new_program_at_the_same_addresses_does_not_take_the_old_ones_names() {
    let mut scene = Scene::live();
    let (process, file, key) = program(&mut scene);
    let main = scene.thread(process, 100, 10, "a");
    let old = scene.native(file, 0x1234);
    scene.name(old, "old");
    assert_eq!(scene.address(key, old), 0x40_1234);
    let program = scene.module(ModuleKind::File, "/bin/b");
    scene.map(process, program, (0x40_1000, 0x40_9000), 0x1000, 30);
    scene.execute(20, main, "b");
    let new = scene.native(program, 0x1234);
    let beside = scene.native(program, 0x2345);
    scene.name(new, "new");
    let address = scene.address(key, new);
    assert!(is_reserved(address));
    assert_eq!(scene.name_at(key, address), "new");
    assert_eq!(scene.name_at(key, 0x40_1234), "old");
    assert_eq!(scene.address(key, beside), 0x40_2345);
    let mapped = scene.world.mappings(key);
    assert_eq!(mapped.len(), 1);
    assert_eq!(
        mapped[0],
        Mapped {
            start: 0x40_1000,
            end: 0x40_9000,
            offset: 0x1000,
            path: "/bin/b".to_owned()
        }
    );
}

#[test]
fn frames_of_several_processes_can_be_in_one() {
    let mut scene = Scene::live();
    let (_, file, key) = program(&mut scene);
    let other = scene.process(200, 10, "b");
    scene.map(other, file, (0x50_1000, 0x50_9000), 0x1000, 10);
    let lib = scene.module(ModuleKind::File, "/lib/b.so");
    scene.map(other, lib, (0x40_1000, 0x40_9000), 0x1000, 10);
    let (shared, foreign) = (scene.native(file, 0x1234), scene.native(lib, 0x1234));
    scene.name(foreign, "foreign");
    let there = scene.find("P200");
    assert_eq!(scene.address(key, shared), 0x40_1234);
    assert_eq!(scene.address(there, shared), 0x50_1234);
    assert_eq!(scene.address(there, foreign), 0x40_1234);
    let address = scene.address(key, foreign);
    assert!(is_reserved(address));
    assert_eq!(scene.name_at(key, address), "foreign");
}

#[test]
fn addresses_mean_the_same_when_ids_begin_anew() {
    let mut scene = Scene::live();
    let (_, file, key) = program(&mut scene);
    let gone = scene.module(ModuleKind::File, "/lib/gone.so");
    let ext4 = scene.module(ModuleKind::KernelModule, "[ext4]");
    let (here, nowhere) = (scene.native(file, 0x1234), scene.native(gone, 0x1234));
    let in_kernel = scene.frame(FrameKind::Kernel, Some(ext4), 0x10);
    scene.name(here, "here");
    scene.name(nowhere, "nowhere");
    scene.name(in_kernel, "in_kernel");
    let places = [here, nowhere, in_kernel].map(|frame| scene.address(key, frame));
    for turn in 1..=5 {
        scene.turn();
        assert_eq!(scene.world.turns(), turn);
        // Something else gets the ids.
        let process = scene.process(300, 10, "c");
        let lib = scene.module(ModuleKind::File, "/lib/c.so");
        scene.map(process, lib, (0x1000, 0x2000), 0, 10);
        let frame = scene.native(lib, 0x234);
        scene.name(frame, "other");
        scene.flush();
        let names = places.map(|address| scene.name_at(key, address));
        assert_eq!(names, ["here", "nowhere", "in_kernel"], "turn {turn}");
    }
    let Lookup::Found(found) = scene.symbol_at(key, places[0]) else {
        panic!("it has a name");
    };
    assert_eq!((found.start, found.size), (Some(0x40_1200), Some(0x100)));
    assert_eq!(found.source, Some(("a.c".to_owned(), 7)));
    // The same frame has the same address.
    let gone = scene.module(ModuleKind::File, "/lib/gone.so");
    let nowhere = scene.native(gone, 0x1234);
    assert_eq!(scene.address(key, nowhere), places[1]);
    let another = scene.native(gone, 0x1235);
    assert_ne!(scene.address(key, another), places[1]);
}

#[test]
fn an_epoch_alone_does_not_turn_the_tables() {
    let mut scene = Scene::live();
    let (_, file, key) = program(&mut scene);
    let frame = scene.native(file, 0x1234);
    let before = scene.known(frame);
    assert_eq!(scene.world.address_of(key, before), 0x40_1234);
    assert!(!scene.world.wants_new_epoch());
    scene.next_epoch();
    let file = scene.module(ModuleKind::File, "/bin/a");
    let frame = scene.native(file, 0x1234);
    assert_eq!(scene.known(frame), before);
    assert_eq!(scene.world.turns(), 0);
}
