//! Tables of functions that are made here, whole and damaged.

use std::fs::File;
use std::io::Write;

use proptest::prelude::*;

use super::pclntab::{Layout, Pclntab};
use super::rows::rows;
use crate::trace::elf::{Elf, Segment};
use crate::unwind::Entry;

const TEXT: u64 = 0x40_1000;

/// A table with three functions: a leaf, one with a frame, one in assembly that loads its stack pointer.
fn table(layout: Layout) -> Vec<u8> {
    let skipped = layout.header_words() - 7;
    let header = 8 + 8 * layout.header_words();
    let names = b"main.leaf\0main.outer\0runtime.systemstack\0";
    let units = [0_u32];
    let files = b"/a.go\0";
    // Nothing is at offset 0. Stack of the second and the third; file 0; lines 3, then 5.
    let values: &[u8] = &[0, 2, 1, 16, 31, 0, 2, 64, 0, 2, 64, 0, 8, 4, 4, 60, 0];
    let wide = layout == Layout::Go116;
    let entry = if wide { 16 } else { 8 };
    let functab = 3 * entry + entry / 2;
    let function = if wide { 8 } else { 4 } + if layout == Layout::Go120 { 40 } else { 36 };
    let mut bytes = layout.magic().to_vec();
    let place = |lens: &[usize]| (header + lens.iter().sum::<usize>()) as u64;
    let mut words = vec![3, 1];
    words.extend((skipped > 0).then_some(TEXT));
    let lens = [names.len(), 4, files.len(), values.len()];
    words.extend((0..5).map(|count| place(&lens[..count])));
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(names);
    bytes.extend(units.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(files);
    bytes.extend(values);
    let number = |bytes: &mut Vec<u8>, number: u64| match wide {
        true => bytes.extend(number.to_le_bytes()),
        false => bytes.extend((number as u32).to_le_bytes()),
    };
    let base = if wide { TEXT } else { 0 };
    for index in 0..3_u64 {
        number(&mut bytes, base + 32 * index);
        number(&mut bytes, (functab + function * index as usize) as u64);
    }
    number(&mut bytes, base + 96);
    for (index, (name, stack, flags)) in [(0, 6, 0), (10, 1, 0), (21, 6, 4)].into_iter().enumerate()
    {
        number(&mut bytes, base + 32 * index as u64);
        let line = 12;
        let mut fields: Vec<u32> = vec![name, 0, 0, stack, 9, line, 0, 0];
        if layout == Layout::Go120 {
            fields.push(1);
        }
        bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        bytes.extend([0, flags, 0, 0]);
    }
    bytes
}

/// The code of these functions, and where it is.
fn code() -> (File, Elf) {
    let mut code = vec![0x90; 96];
    // push rbp behind one nop
    code[33] = 0x55;
    let made = rustix::fs::memfd_create("code", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(made.unwrap());
    file.write_all(&code).unwrap();
    let segment = Segment {
        offset: 0,
        address: TEXT,
        len: 96,
        executable: true,
    };
    let mut elf = Elf::default();
    elf.wide = true;
    elf.segments = [segment].into();
    (file, elf)
}

const LAYOUTS: [Layout; 3] = [Layout::Go116, Layout::Go118, Layout::Go120];

#[test]
fn functions_are_found_in_each_layout() {
    for layout in LAYOUTS {
        let table = Pclntab::new(table(layout), TEXT).unwrap();
        assert_eq!(table.layout(), layout);
        let names: Vec<String> = table
            .functions()
            .map(|function| table.name(&function).unwrap())
            .collect();
        assert_eq!(names, ["main.leaf", "main.outer", "runtime.systemstack"]);
        assert_eq!(table.find(TEXT - 1), None);
        assert_eq!(table.find(TEXT + 96), None);
        let outer = table.find(TEXT + 63).unwrap();
        assert_eq!((outer.start, outer.end), (TEXT + 32, TEXT + 64));
        let file = Some("/a.go".to_owned());
        assert_eq!(table.place(&outer, TEXT + 32), (file.clone(), 3));
        assert_eq!(table.place(&outer, TEXT + 36), (file, 5));
        let stack: Vec<(u64, i32)> = table
            .stack(&outer)
            .map(|held| (held.at.start, held.value))
            .collect();
        assert_eq!(stack, [(TEXT + 32, 0), (TEXT + 33, 8)]);
    }
}

proptest! {
    #[test]
    fn any_damage_is_survived(
        layout in prop::sample::select(LAYOUTS.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        address in 0_u64..128,
    ) {
        let mut bytes = table(layout);
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let Some(table) = Pclntab::new(bytes, TEXT) else {
            return Ok(());
        };
        let (file, elf) = code();
        let rows = rows(&table, &file, &elf);
        prop_assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0));
        prop_assert!(rows.last().is_none_or(|(_, entry)| *entry == Entry::None));
        if let Some(function) = table.find(TEXT + address) {
            table.name(&function);
            table.place(&function, TEXT + address);
            table.inlined(&function, TEXT + address);
            table.inline_tree(&function);
            prop_assert!(table.stack(&function).all(|held| held.at.end <= function.end));
        }
    }
}
