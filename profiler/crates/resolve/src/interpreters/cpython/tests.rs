//! Code objects that are made here, in the memory of this process.

use std::sync::Arc;

use profiler_common::python::{FINGERPRINT_SHIFT, PythonFrame, fingerprint_of};

use super::names::{self, Codes, Named};
use super::processes::{self, Loaded, Pythons};
use super::runtime::Runtime;
use super::version::{Offsets, Version, offsets};
use crate::helper::Memory;
use crate::mapping::tests::module;
use profiler_model::{Pid, Timestamp};

const HEAD: usize = 256;

fn of_3_11() -> Offsets {
    offsets(Version(0x030b_02f0), &[]).unwrap()
}

fn interpreter(state: u64) -> Loaded {
    let file = Runtime {
        version: Version(0x030b_02f0),
        offsets: Ok(of_3_11()),
        state,
        code_type: None,
        code: Vec::new(),
    };
    Loaded::new(0, &file, of_3_11(), module("[python 3.11]"))
}

/// Many code objects of the same texts and lines.
struct Objects {
    memory: Vec<u8>,
    /// Where the code objects begin.
    first: usize,
    fingerprint: u64,
}

impl Objects {
    /// Those with a name, a path and a location table of these lengths.
    fn new(count: usize, name: usize, path: usize, table: usize) -> Objects {
        let place = |len: usize| (128 + 4 * len).next_multiple_of(8);
        let (path_at, table_at) = (place(name), place(name) + place(path));
        let first = table_at + place(table);
        // What is read ahead is there.
        let mut memory = vec![0; first + count * HEAD + 4096];
        let base = memory.as_ptr() as u64;
        let mut word = |at: usize, word: u64| {
            memory[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        };
        // Four bytes for each character, and the head of those that are not ASCII.
        for (at, len) in [(0, name), (path_at, path)] {
            word(at + 16, len as u64);
            word(at + 32, 4 << 2 | 1 << 5);
        }
        word(table_at + 16, table as u64);
        let at = |place: usize| base + place as u64;
        for index in 0..count {
            let code = first + index * HEAD;
            for (offset, value) in [
                (0, 1),
                (16, 100),
                (112, at(path_at)),
                (128, at(0)),
                (136, at(table_at)),
                (72, 7),
            ] {
                word(code + offset, value);
            }
        }
        for (at, len) in [(0, name), (path_at, path)] {
            let text = &mut memory[at + 72..at + 72 + 4 * len];
            text.chunks_exact_mut(4)
                .for_each(|unit| unit.copy_from_slice(&('\u{1f600}' as u32).to_ne_bytes()));
        }
        // No line, then the first one, and so on: nothing takes more memory.
        let lines = memory[table_at + 32..].iter_mut().take(table);
        for (byte, entry) in lines.zip([0x80 | 15 << 3, 0x80, 0].iter().cycle()) {
            *byte = *entry;
        }
        Objects {
            first,
            fingerprint: fingerprint_of(at(path_at), at(0), at(table_at)),
            memory,
        }
    }

    fn frame(&self, index: usize) -> PythonFrame {
        let code = self.memory.as_ptr() as u64 + (self.first + index * HEAD) as u64;
        PythonFrame {
            code,
            instruction: code + of_3_11().code.instructions as u64,
            flags: self.fingerprint << FINGERPRINT_SHIFT,
        }
    }
}

fn own() -> Pid {
    Pid(std::process::id())
}

#[test]
fn texts_and_lines_of_one_object_are_bounded() {
    let memory = Memory::open(own()).unwrap();
    let of = interpreter(0);
    for (name, path, table, bytes) in [
        (10, 10, 30, 1000),
        (1 << 20, 1 << 20, 256 << 10, 1500 << 10),
        (1 << 20, 1 << 20, 4 << 20, 50 << 10),
    ] {
        let objects = Objects::new(1, name, path, table);
        let mut codes = Codes::default();
        codes.look(&memory, &of, &objects.frame(0));
        assert!(codes.bytes() < bytes, "{name} {table}: {}", codes.bytes());
        let Named::At(function, _) = codes.name(&of, &objects.frame(0)) else {
            panic!("{name} {table}: it has no name");
        };
        assert!(function.name.chars().count() <= 1025);
    }
}

#[test]
fn what_is_kept_of_one_process_is_bounded() {
    let memory = Memory::open(own()).unwrap();
    let of = interpreter(0);
    let objects = Objects::new(40, 2000, 5000, 256 << 10);
    let mut codes = Codes::default();
    let mut most = 0;
    for index in 0..40 {
        let frame = objects.frame(index);
        codes.look(&memory, &of, &frame);
        most = most.max(codes.bytes());
        assert!(matches!(codes.name(&of, &frame), Named::At(..)));
    }
    assert!(
        (names::MAX_BYTES / 2..=names::MAX_BYTES).contains(&most),
        "{most}"
    );
    // The first ones have made room.
    assert!(matches!(
        codes.name(&of, &objects.frame(0)),
        Named::Unknown(_)
    ));
}

#[test]
fn what_is_kept_of_all_processes_is_bounded() {
    let objects = Objects::new(20, 2000, 5000, 256 << 10);
    let mut pythons = Pythons::default();
    for life in 0..4 {
        let at = Timestamp(life * 100);
        pythons.started(own(), at, Arc::new(interpreter(life)));
        let frames = (0..20).map(|index| objects.frame(index));
        pythons.read_names(own(), at, frames);
        let last = pythons.name(own(), at, &objects.frame(19));
        assert!(matches!(last, Named::At(..)));
        assert!(pythons.name_bytes() <= processes::MAX_BYTES);
    }
    assert!(pythons.name_bytes() >= processes::MAX_BYTES / 4);
    assert!(pythons.take_forgotten() && !pythons.take_forgotten());
}
