//! Whatever is mapped and sampled: an address means one frame.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const KINDS: [ModuleKind; 6] = [
    ModuleKind::File,
    ModuleKind::Kernel,
    ModuleKind::KernelModule,
    ModuleKind::Vdso,
    ModuleKind::Jit,
    ModuleKind::Unknown,
];
const FRAMES: [FrameKind; 3] = [FrameKind::Native, FrameKind::Kernel, FrameKind::Jit];

/// Addresses that meet: few pages, at each of the places that mean something.
fn address() -> impl Strategy<Value = u64> {
    let bases = prop::sample::select(vec![
        0,
        0x1000,
        0x7fff_ffff_f000,
        0x0dff_ffff_ffff_ffc0,
        0x0e00_0000_0000_0000,
        0x0f00_0000_0000_0000,
        0xffff_ffff_8100_0000,
        0xffff_ffff_c000_0000,
        0xffff_ffff_ff60_0000,
        u64::MAX - 0x40,
    ]);
    (bases, 0..0x40_u64).prop_map(|(base, more)| base + more)
}

#[derive(Clone, Debug)]
enum Step {
    Map(usize, (u64, u64), u64, u64),
    Frame(usize, Option<usize>, u64),
    Execute(u64),
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..12_usize, address(), 0..0x60_u64, address(), 0..50_u64).prop_map(
            |(module, start, length, offset, at)| {
                Step::Map(module, (start, start.saturating_add(length)), offset, at)
            }
        ),
        12 => (0..3_usize, prop::option::of(0..12_usize), address())
            .prop_map(|(kind, module, address)| Step::Frame(kind, module, address)),
        1 => (0..50_u64).prop_map(Step::Execute),
        1 => Just(Step::Turn),
    ]
}

/// A frame as it is called in each epoch, by which it is known again.
type Named = (usize, Option<usize>, u64);

proptest! {
    #[test]
    fn an_address_means_one_frame(steps in prop::collection::vec(step(), 1..120)) {
        let mut scene = Scene::live();
        scene.process(100, 10, "a");
        let key = scene.find("P100");
        let mut frames: HashMap<u64, Named> = HashMap::new();
        for step in steps {
            let process = scene.process(100, 10, "a");
            match step {
                Step::Map(module, range, offset, at) => {
                    let module = scene.module(KINDS[module % 6], &format!("/m{module}"));
                    scene.map(process, module, range, offset, at);
                }
                Step::Frame(kind, module, address) => {
                    let named = (kind, module, address);
                    let module = module
                        .map(|module| scene.module(KINDS[module % 6], &format!("/m{module}")));
                    let frame = scene.frame(FRAMES[kind], module, address);
                    let name = format!("{named:?}");
                    let function = scene.function(module, &name, Some((address, 1)), None);
                    scene.lines(frame, &[(function, 0)]);
                    let at = scene.address(key, frame);
                    let before = frames.insert(at, named);
                    prop_assert!(before.is_none_or(|before| before == named), "{at:#x}");
                    prop_assert_eq!(scene.address(key, frame), at);
                }
                Step::Execute(at) => {
                    let main = scene.thread(process, 100, 10, "a");
                    scene.execute(at, main, "a");
                }
                Step::Turn => scene.turn(),
            }
        }
        for (at, named) in frames {
            let Lookup::Found(found) = scene.symbol_at(key, at) else {
                panic!("{at:#x} of {named:?} means nothing");
            };
            prop_assert_eq!(found.name, format!("{named:?}"));
            let start = found.start.unwrap_or(at);
            prop_assert!(start <= at && found.size.is_none_or(|size| at - start < size));
        }
    }
}
