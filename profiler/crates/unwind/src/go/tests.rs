//! Tables of functions that are made here, whole and damaged.

use std::fs::File;
use std::io::Write;

use proptest::prelude::*;

use super::merge;
use super::pclntab::{Layout, MAX_VALUES, Pclntab};
use super::rows::{rows, rows_within};
use crate::{Builder, Entry, Table};
use profiler_object::elf::{Elf, Segment};

const TEXT: u64 = 0x40_1000;

/// A table with three functions: a leaf, one with a frame, one in assembly that loads its stack pointer.
fn table(layout: Layout) -> Vec<u8> {
    table_at(layout, TEXT)
}

fn table_at(layout: Layout, text: u64) -> Vec<u8> {
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
    words.extend((skipped > 0).then_some(text));
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
    let base = if wide { text } else { 0 };
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
    code_at(TEXT, &code)
}

fn code_at(text: u64, code: &[u8]) -> (File, Elf) {
    let made = rustix::fs::memfd_create("code", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(made.unwrap());
    file.write_all(code).unwrap();
    let segment = Segment {
        offset: 0,
        address: text,
        len: code.len() as u64,
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
        let mut left = 100;
        let mut place = |address| table.place(&outer, address, &mut left);
        assert_eq!(place(TEXT + 32), (file.clone(), 3));
        assert_eq!(place(TEXT + 36), (file, 5));
        assert_eq!(left, 100 - 5);
        let stack: Vec<(u64, i32)> = table
            .stack(&outer)
            .map(|held| (held.at.start, held.value))
            .collect();
        assert_eq!(stack, [(TEXT + 32, 0), (TEXT + 33, 8)]);
    }
}

/// A table of `count` functions of `len` bytes each, which share values: one for each byte.
fn endless(count: u32, len: u32, flags: u8, name: &[u8]) -> Vec<u8> {
    let header = 8 + 8 * 8;
    let mut values = vec![0];
    for change in [2, 32, 31].iter().cycle().take(len as usize) {
        values.extend([*change, 1]);
    }
    let functab = 8 * count + 4;
    let mut bytes = Layout::Go120.magic().to_vec();
    let values_at = header + name.len();
    let words = [count as usize, 1, TEXT as usize, header]
        .into_iter()
        .chain([values_at; 3])
        .chain([values_at + values.len()]);
    bytes.extend(words.flat_map(|word| (word as u64).to_le_bytes()));
    bytes.extend(name);
    bytes.extend(&values);
    for index in 0..count {
        bytes.extend((index * len).to_le_bytes());
        bytes.extend(functab.to_le_bytes());
    }
    bytes.extend((count * len).to_le_bytes());
    let words = [0, 0, 0, 0, 1, 1, 1, 0, 0, 1];
    bytes.extend(words.iter().flat_map(|word: &u32| word.to_le_bytes()));
    bytes.extend([0, flags, 0, 0]);
    bytes
}

#[test]
fn a_function_s_values_are_bounded() {
    let len = 4 * MAX_VALUES as u32;
    let table = Pclntab::new(endless(1, len, 0, b"f\0"), TEXT).unwrap();
    let function = table.find(TEXT).unwrap();
    let mut values = table.stack(&function);
    assert_eq!(values.by_ref().count(), MAX_VALUES);
    assert!(values.is_cut());
    let mut left = MAX_VALUES;
    let at = TEXT + u64::from(len) - 1;
    assert_eq!(table.place(&function, at, &mut left), (None, 0));
    assert_eq!(left, 0);
    // Of such a function nothing is said, rather than something wrong.
    let (file, elf) = code();
    assert_eq!(rows(&table, &file, &elf), [(TEXT, Entry::None)]);
}

#[test]
fn values_and_code_of_all_functions_are_bounded() {
    let (count, len) = (100, 1 << 12);
    let (file, elf) = code_at(TEXT, &vec![0x90; count as usize * len as usize]);
    let whole = TEXT + u64::from(count * len);
    for (flags, limits, end) in [
        (0, (usize::MAX, u64::MAX), whole),
        (4, (usize::MAX, u64::MAX), whole),
        (0, (10_000, u64::MAX), TEXT + 3 * u64::from(len)),
        (4, (10_000, u64::MAX), TEXT + 3 * u64::from(len)),
        (4, (usize::MAX, 5000), TEXT + 2 * u64::from(len)),
    ] {
        let table = Pclntab::new(endless(count, len, flags, b"f\0"), TEXT).unwrap();
        let rows = rows_within(&table, &file, &elf, limits);
        assert_eq!(rows.last(), Some(&(end, Entry::None)), "{flags} {limits:?}");
    }
}

#[test]
fn functions_of_the_runtime_are_one_of_each() {
    // A long name is not read to its end for each of many functions.
    let name = [&[b'x'; 100][..], b"\0"].concat();
    let table = Pclntab::new(endless(1000, 8, 4, &name), TEXT).unwrap();
    assert!(table.functions().all(|of| table.known_name(&of).is_none()));
    let name = b"runtime.systemstack.abi0\0";
    let table = Pclntab::new(endless(1000, 8, 4, name), TEXT).unwrap();
    let known = |of| table.known_name(&of) == Some("runtime.systemstack");
    assert!(table.functions().all(known));
}

#[test]
fn code_may_name_any_distance_and_address() {
    let far = [
        // mov [rsp - 2^31], rbp; lea rbp, [rsp - 2^31]; mov rbp, [rsp - 2^31]; push rbp; ret
        &b"\x48\x89\xac\x24\0\0\0\x80\x48\x8d\xac\x24\0\0\0\x80\x48\x8b\xac\x24\0\0\0\x80\x55\xc3"[..],
        // lea rbp, [rsp + 2^31 - 1]; push rbp; mov rbp, [rsp - 2^31]; lea rsp, [rsp - 2^31]; ret
        b"\x48\x8d\xac\x24\xff\xff\xff\x7f\x55\x48\x8b\xac\x24\0\0\0\x80\x48\x8d\xa4\x24\0\0\0\x80\xc3",
        // push rbp; mov rbp, [rsp - 2^31]; mov [rsp + 2^31 - 1], rbp; lea rbp, [rsp - 2^31]; and a cut one
        b"\x55\x48\x8b\xac\x24\0\0\0\x80\x48\x89\xac\x24\xff\xff\xff\x7f\x48\x8d\xac\x24\0\0\0\x80\x48\x8d",
    ];
    for (text, far) in [0, TEXT, u64::MAX - 96]
        .into_iter()
        .flat_map(|text| far.map(|far| (text, far)))
    {
        let mut code = vec![0x90; 64];
        code.extend(far);
        code.resize(96, 0x06);
        let (file, elf) = code_at(text, &code);
        let table = Pclntab::new(table_at(Layout::Go116, text), 0).unwrap();
        let rows = rows(&table, &file, &elf);
        assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let others = [(text, Entry::End)];
        assert!(merge(&rows, &at(&others)).is_ok() || text > TEXT);
        assert!(merge(&others, &at(&rows)).is_ok() || text > TEXT);
    }
}

/// The table of some entries.
fn at(entries: &[(u64, Entry)]) -> Table {
    let mut builder = Builder::default();
    for (address, entry) in entries {
        builder.push(*address, *entry);
    }
    builder.finish().unwrap()
}

proptest! {
    #[test]
    fn any_code_is_read(
        text in prop::sample::select(vec![0, TEXT, u64::MAX - 96]),
        parts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 1..4),
                Just(b"\x48\x89\xac\x24\0\0\0\x80".to_vec()),
                Just(b"\x48\x8d\xac\x24\0\0\0\x80".to_vec()),
                Just(b"\x48\x8b\xac\x24\0\0\0\x80".to_vec()),
                Just(b"\x48\x8d\xa4\x24\xff\xff\xff\x7f".to_vec()),
                Just(b"\x48\x8b\x24\x24".to_vec()),
                Just(b"\x55".to_vec()),
                Just(b"\xc3".to_vec()),
            ],
            0..30,
        ),
    ) {
        let mut code = parts.concat();
        code.resize(96, 0x90);
        let (file, elf) = code_at(text, &code);
        let table = Pclntab::new(table_at(Layout::Go116, text), 0).unwrap();
        let rows = rows(&table, &file, &elf);
        prop_assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

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
            let mut left = 1000;
            table.place(&function, TEXT + address, &mut left);
            table.inlined(&function, TEXT + address, &mut left);
            table.inline_tree(&function);
            prop_assert!(table.stack(&function).all(|held| held.at.end <= function.end));
        }
    }
}
