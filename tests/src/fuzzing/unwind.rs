//! Fuzzing of what makes tables of unwind information, and of walks by such tables.
//!
//! Input: a byte that says what the rest is (a section, two of them, a whole file, a recorded stack as
//! text), and that; output: none, a broken promise is a panic. What is a table for is also a stack: a
//! walk over the same bytes must end. Addresses are ELF virtual addresses.

use std::fs::File;
use std::io::Write;

use profiler_common::MAX_USER_FRAMES;
use profiler_common::unwind::{FIRST_RULE, row_place, row_rule};
use profiler_unwind::snapshot::Snapshot;
use profiler_unwind::walk::{Code, Place, StackCopy, Start, walk};
use profiler_unwind::{BuildReport, Table, build_file};

/// Where the code of [`with_sections`] begins, and how long it is.
pub const CODE: u64 = 0x1_0000;
/// See [`CODE`].
pub const CODE_BYTES: u64 = 1 << 20;
/// Where its sections are.
pub const SECTION: u64 = 0x80_0000;
/// Where its `.text` and `.got` are.
pub const TEXT: u64 = 0x1_1000;
/// See [`TEXT`].
pub const GOT: u64 = 0x90_0000;

/// Builds a table of what the bytes say, and walks by it.
pub fn unwind(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let half = rest.len() / 2;
    let file = match kind % 5 {
        0 => with_sections(&[(".eh_frame", rest)]),
        1 => with_sections(&[(".debug_frame", rest)]),
        2 => with_sections(&[
            (".eh_frame", &rest[..half]),
            (".debug_frame", &rest[half..]),
        ]),
        3 => rest.to_vec(),
        _ => return recorded(rest),
    };
    let Some(file) = in_memory(&file) else {
        return;
    };
    if let Ok((table, report)) = build_file(&file, None) {
        check(&table, &report);
        wander(&table, rest);
    }
}

/// An ELF file that has these sections, and code.
pub fn with_sections(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let all = [(".text", TEXT, &[0x90; 16][..]), (".got", GOT, &[0; 16])];
    let sections = sections
        .iter()
        .map(|(name, bytes)| (*name, SECTION, *bytes));
    let all: Vec<(&str, u64, &[u8])> = all.into_iter().chain(sections).collect();
    let mut names = vec![0];
    let mut contents = Vec::new();
    // An empty header comes first.
    let mut headers = vec![0; 64];
    let data_at = 64 + 56;
    for (name, address, bytes) in all {
        let offset = data_at + contents.len() as u64;
        headers.extend(header(
            &mut names,
            name,
            address,
            offset,
            bytes.len() as u64,
        ));
        contents.extend(bytes);
    }
    let name_len = names.len() as u64 + 10;
    let offset = data_at + contents.len() as u64;
    headers.extend(header(&mut names, ".shstrtab", 0, offset, name_len));
    contents.extend(names);
    let count = (headers.len() / 64) as u16;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    for number in [0, 64, data_at + contents.len() as u64] {
        file.extend(number.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for number in [64, 56, 1, 64, count, count - 1] {
        file.extend(number.to_le_bytes());
    }
    // A segment that is loaded and executable.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for number in [0, CODE, CODE, CODE_BYTES, CODE_BYTES, 0x1000] {
        file.extend(number.to_le_bytes());
    }
    file.extend(contents);
    file.extend(headers);
    file
}

fn header(names: &mut Vec<u8>, name: &str, address: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut header = (names.len() as u32).to_le_bytes().to_vec();
    names.extend(name.bytes().chain([0]));
    header.extend(1u32.to_le_bytes());
    for number in [2, address, offset, len, 0, 1, 0] {
        header.extend(number.to_le_bytes());
    }
    header
}

/// What every table promises, and how much may be made of so many bytes.
pub fn check(table: &Table, report: &BuildReport) {
    // An instruction, a byte at least, makes one row at most.
    assert!(report.rows_read <= report.section_bytes);
    let pages = table.pages.len() as u64;
    let most = report.rows_read + 2 * report.functions + pages;
    assert!(report.functions == 0 || report.rows <= most, "{report:?}");
    assert_eq!(report.rows, table.rows.len() as u64);
    assert_eq!(report.rules, table.rules.len() as u64);
    assert!(table.base.is_multiple_of(4096));
    let mut next = 0;
    for page in &table.pages {
        assert!(page.len == 0 || page.first == next);
        next += page.len;
        let rows = &table.rows[page.first as usize..][..page.len as usize];
        assert!(rows.is_sorted_by(|&a, &b| row_place(a) < row_place(b)));
        assert!(rows.first().is_none_or(|&row| row_place(row) == 0));
        for &row in rows {
            assert!(row_rule(row) < FIRST_RULE + table.rules.len() as u32);
        }
    }
    assert_eq!(next as usize, table.rows.len());
}

struct Everywhere<'a>(&'a Table);

impl Code for Everywhere<'_> {
    fn at(&self, address: u64) -> Place<'_> {
        Place::Table(self.0, address)
    }
}

/// Walks from each page of a table.
fn wander(table: &Table, stack: &[u8]) {
    let memory = StackCopy {
        address: 0x1000,
        bytes: stack,
        absent: 0,
    };
    for page in 0..table.pages.len().min(64) as u64 {
        let start = Start {
            pc: table.base + page * 4096 + 17,
            all_known: true,
            fp_known: true,
            registers: [0x1000; 16],
            is_return: page % 2 == 1,
        };
        let walked = walk(&start, &[], &Everywhere(table), &memory);
        assert!((1..=MAX_USER_FRAMES + 1).contains(&walked.addresses.len()));
    }
}

/// Reads a recorded stack, and walks it.
fn recorded(text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text)
        && let Ok(snapshot) = Snapshot::parse(text)
    {
        assert!(snapshot.replay().addresses.len() <= MAX_USER_FRAMES + 1);
        let again = Snapshot::parse(&snapshot.to_text());
        assert_eq!(again.map(|again| again.to_text()), Ok(snapshot.to_text()));
    }
}

/// Inputs that are right: entries of the C library, with its PLT, and a recorded stack.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let recorded = include_bytes!("../../golden/unwind/signal.txt");
    let mut seeds = vec![[&[4], &recorded[..]].concat()];
    for (kind, section) in [(0, eh_frame()), (1, debug_frame())] {
        seeds.push([&[kind], &section[..]].concat());
    }
    seeds.push([&[2], &eh_frame()[..], &debug_frame()[..]].concat());
    seeds.push([&[3], &with_sections(&[(".eh_frame", &eh_frame())])[..]].concat());
    seeds
}

/// A CIE, and functions with most instructions.
fn eh_frame() -> Vec<u8> {
    let mut section = Vec::new();
    let cie = [
        &[0, 0, 0, 0, 1][..],
        b"zR\0",
        &[1, 0x78, 16, 1, 0x0b, 0x0c, 7, 8, 0x90, 1],
    ];
    entry(&mut section, &cie.concat());
    for (index, program) in PROGRAMS.iter().enumerate() {
        let back = section.len() as u32 + 4;
        let start = CODE as u32 + index as u32 * 0x200;
        let mut fde = back.to_le_bytes().to_vec();
        fde.extend(start.to_le_bytes());
        fde.extend(0x180u32.to_le_bytes());
        fde.push(0);
        fde.extend(*program);
        entry(&mut section, &fde);
    }
    section.extend([0; 4]);
    section
}

fn debug_frame() -> Vec<u8> {
    let mut section = Vec::new();
    let cie = [
        &[0xff, 0xff, 0xff, 0xff, 4, 0, 8, 0][..],
        &[1, 0x78, 16, 0x0c, 7, 8, 0x90, 1],
    ];
    entry(&mut section, &cie.concat());
    for (index, program) in PROGRAMS.iter().enumerate() {
        let mut fde = 0u32.to_le_bytes().to_vec();
        fde.extend((CODE + 0x100 + index as u64 * 0x200).to_le_bytes());
        fde.extend(0x180u64.to_le_bytes());
        fde.extend(*program);
        entry(&mut section, &fde);
    }
    section
}

fn entry(section: &mut Vec<u8>, body: &[u8]) {
    let len = body.len().next_multiple_of(4);
    section.extend((len as u32).to_le_bytes());
    section.extend(body);
    section.resize(section.len() + len - body.len(), 0);
}

const PROGRAMS: &[&[u8]] = &[
    // push, frame pointer, remember, leave, restore
    &[
        0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x0a, 0x48, 0x0c, 7, 8, 0xc6, 0x41, 0x0b,
    ],
    // a PLT
    &[
        0x0e, 16, 0x46, 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
    ],
    // a realigned stack
    &[
        0x45, 0x0c, 10, 0, 0x49, 0x10, 6, 2, 0x76, 0, 0x44, 0x0f, 3, 0x76, 0x78, 6, 2, 9, 6, 6,
    ],
    // a signal's frame
    &[
        0x0f, 4, 0x77, 0xa0, 1, 6, 0x10, 16, 3, 0x77, 0xa8, 1, 0x10, 7, 3, 0x77, 0xa0, 1, 0x10, 6,
        3, 0x77, 0xf8, 0,
    ],
    // the rest
    &[
        3, 4, 0, 5, 6, 2, 7, 3, 8, 6, 9, 6, 3, 0x11, 6, 0x7e, 0x12, 7, 0x7f, 0x13, 0x7e, 0x14, 7,
        1, 0x15, 7, 0x7f, 0x16, 6, 2, 0x23, 8, 0x2d, 0x2e, 16, 0x2f, 6, 1, 4, 2, 0, 0, 0, 7, 16,
    ],
];

/// A file that is nowhere on disk.
pub fn in_memory(bytes: &[u8]) -> Option<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("unwind", flags).ok()?);
    file.write_all(bytes).ok()?;
    Some(file)
}
