//! Recorded stacks: all that a walk of one asked for, and what it is to find.
//!
//! A walk ([`Snapshot::record`]) or text ([`Snapshot::parse`]) -> [`Snapshot`], and from that the same
//! walk again ([`Snapshot::replay`]), on any machine, without the process, its files or a kernel.
//! Addresses are those of the process that was recorded, hexadecimal in the text. What is expected comes
//! from another unwinder, whoever records says which in the note. The text holds what the walk looked up
//! and pieces of the stack around what it read, so it is a few kilobytes; a walk that goes another way
//! finds nothing there, which is a difference too.
//!
//! ```text
//! unwind 1
//! note python3.11, expected by elfutils 0.188
//! start PC exact|return all|some|one
//! register NUMBER VALUE
//! memory ADDRESS BYTES
//! code ADDRESS absent|jit|none|unmapped
//! code ADDRESS table FILE-ADDRESS BUILD-ID ENTRY FILE
//! frame ADDRESS exact|return
//! end NUMBER
//! ```
//! Of registers all are known, the stack and the frame pointer, or the stack pointer alone. An entry is `none`, `end`, or the numbers of a rule in the order of its members, joined by commas; what is said of rbx, if anything, comes last.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use profiler_common::sample::EXACT_ADDRESS;
use profiler_common::unwind::{BX_UNKNOWN, Rule};

use super::walk::{Code, Memory, Place, Start, Walked, walk};
use super::{Builder, Entry, Table};

/// Most bytes of a text.
const MAX_TEXT_BYTES: usize = 4 << 20;
/// Memory is kept in pieces of this length.
const PIECE_BYTES: u64 = 64;

/// What was found at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// See [`Place::NoTable`].
    NoTable,
    /// See [`Place::Absent`].
    Absent,
    /// See [`Place::Jit`].
    Jit,
    /// See [`Place::Unmapped`].
    Unmapped,
    /// An entry of a file's table.
    Entry(FileEntry),
}

/// An entry of a file's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// The file's own address.
    pub address: u64,
    /// What holds there.
    pub entry: Entry,
    /// The file's build id, hexadecimal; empty: none.
    pub build_id: String,
    /// The file's path.
    pub path: String,
}

/// A recorded stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is of, and who said what is expected.
    pub note: String,
    /// Where the walk begins.
    pub start: Start,
    /// Pieces of memory by address.
    pub memory: BTreeMap<u64, Vec<u8>>,
    /// What was looked up, by address.
    pub code: BTreeMap<u64, Found>,
    /// What a walk is to find.
    pub expected: Walked,
}

/// A text is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of a recorded stack can't be read")]
pub struct SnapshotError {
    /// Counted from 1.
    pub line: usize,
}

impl Snapshot {
    /// Walks a stack and keeps what the walk asks for. `file` says the build id and the path of the
    /// file that is mapped at an address.
    pub fn record(
        note: &str,
        start: Start,
        code: &impl Code,
        memory: &impl Memory,
        file: impl Fn(u64) -> (String, String),
        expected: Walked,
    ) -> Snapshot {
        let asked = Asked {
            code,
            memory,
            file,
            places: RefCell::default(),
            pieces: RefCell::default(),
        };
        walk(&start, &[], &asked, &asked);
        let (code, pieces) = (asked.places.into_inner(), asked.pieces.into_inner());
        let mut kept: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for piece in pieces {
            let words = (piece..piece + PIECE_BYTES).step_by(8);
            for (at, word) in words.filter_map(|at| Some((at, memory.read_u64(at)?))) {
                match kept.last_entry() {
                    Some(mut last) if last.key() + last.get().len() as u64 == at => {
                        last.get_mut().extend(word.to_le_bytes());
                    }
                    _ => drop(kept.insert(at, word.to_le_bytes().to_vec())),
                }
            }
        }
        Snapshot {
            note: note.replace('\n', " "),
            start,
            memory: kept,
            code,
            expected,
        }
    }

    /// Walks again.
    pub fn replay(&self) -> Walked {
        let tables = self.code.iter().filter_map(|(&address, found)| {
            let Found::Entry(file) = found else {
                return None;
            };
            let mut builder = Builder::default();
            builder.push(address, file.entry);
            builder.push(address + 1, Entry::None);
            Some((address, builder.finish().ok()?))
        });
        let replay = Replay {
            snapshot: self,
            tables: tables.collect(),
        };
        walk(&self.start, &[], &replay, &replay)
    }

    /// As text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let kind = |exact| if exact { "exact" } else { "return" };
        writeln!(text, "unwind 1\nnote {}", self.note)?;
        let known = match (self.start.all_known, self.start.fp_known) {
            (true, _) => "all",
            (false, true) => "some",
            (false, false) => "one",
        };
        let start = kind(!self.start.is_return);
        writeln!(text, "start {:x} {start} {known}", self.start.pc)?;
        for (number, value) in self.start.registers.iter().enumerate() {
            writeln!(text, "register {number} {value:x}")?;
        }
        for (address, bytes) in &self.memory {
            for (at, line) in (*address..).step_by(32).zip(bytes.chunks(32)) {
                write!(text, "memory {at:x} ")?;
                for byte in line {
                    write!(text, "{byte:02x}")?;
                }
                writeln!(text)?;
            }
        }
        for (address, found) in &self.code {
            write!(text, "code {address:x} ")?;
            match found {
                Found::NoTable => writeln!(text, "none")?,
                Found::Absent => writeln!(text, "absent")?,
                Found::Jit => writeln!(text, "jit")?,
                Found::Unmapped => writeln!(text, "unmapped")?,
                Found::Entry(file) => {
                    let id = Some(&*file.build_id).filter(|id| !id.is_empty());
                    let (id, entry) = (id.unwrap_or("-"), entry_text(file.entry));
                    let path = file.path.replace('\n', "?");
                    writeln!(text, "table {:x} {id} {entry} {path}", file.address)?;
                }
            }
        }
        for address in &self.expected.addresses {
            let exact = kind(address & EXACT_ADDRESS != 0);
            writeln!(text, "frame {:x} {exact}", address & !EXACT_ADDRESS)?;
        }
        writeln!(text, "end {}", self.expected.end)
    }

    /// From text.
    pub fn parse(text: &str) -> Result<Snapshot, SnapshotError> {
        let mut snapshot = Snapshot::default();
        if text.len() > MAX_TEXT_BYTES {
            return Err(SnapshotError { line: 0 });
        }
        for (number, line) in text.lines().enumerate() {
            let read = match number {
                0 => (line == "unwind 1").then_some(()),
                _ => snapshot.line(line),
            };
            read.ok_or(SnapshotError { line: number + 1 })?;
        }
        Ok(snapshot)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (name, rest) = line.split_once(' ')?;
        let mut words = rest.split(' ');
        let mut hexadecimal = || u64::from_str_radix(words.next()?, 16).ok();
        match name {
            "note" => self.note = rest.to_owned(),
            "start" => {
                self.start.pc = hexadecimal()?;
                self.start.is_return = !is_exact(words.next()?)?;
                (self.start.all_known, self.start.fp_known) = match words.next()? {
                    "all" => (true, true),
                    "some" => (false, true),
                    "one" => (false, false),
                    _ => return None,
                };
            }
            "register" => {
                let (number, value) = rest.split_once(' ')?;
                let register = self
                    .start
                    .registers
                    .get_mut(number.parse::<usize>().ok()?)?;
                *register = u64::from_str_radix(value, 16).ok()?;
            }
            "memory" => {
                let address = hexadecimal()?;
                let bytes = bytes(words.next()?)?;
                address.checked_add(bytes.len() as u64)?;
                match self.memory.last_entry() {
                    Some(mut last) if last.key() + last.get().len() as u64 == address => {
                        last.get_mut().extend(bytes);
                    }
                    _ => drop(self.memory.insert(address, bytes)),
                }
            }
            "code" => {
                let address = hexadecimal().filter(|&address| address < u64::MAX)?;
                let found = match words.next()? {
                    "none" => Found::NoTable,
                    "absent" => Found::Absent,
                    "jit" => Found::Jit,
                    "unmapped" => Found::Unmapped,
                    "table" => Found::Entry(FileEntry {
                        address: u64::from_str_radix(words.next()?, 16).ok()?,
                        build_id: words.next()?.replace('-', ""),
                        entry: entry_of(words.next()?)?,
                        path: words.collect::<Vec<_>>().join(" "),
                    }),
                    _ => return None,
                };
                self.code.insert(address, found);
            }
            "frame" => {
                let address = hexadecimal()?;
                let exact = is_exact(words.next()?)?;
                let mark = if exact { EXACT_ADDRESS } else { 0 };
                self.expected.addresses.push(address | mark);
            }
            "end" => self.expected.end = rest.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

fn is_exact(word: &str) -> Option<bool> {
    match word {
        "exact" => Some(true),
        "return" => Some(false),
        _ => None,
    }
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.len()
        .is_multiple_of(2)
        .then(|| pairs.map(byte).collect())?
}

fn entry_text(entry: Entry) -> String {
    match entry {
        Entry::None => "none".to_owned(),
        Entry::End => "end".to_owned(),
        Entry::Rule(rule) => {
            let bx = match rule.bx {
                BX_UNKNOWN => String::new(),
                bx => format!(",{bx}"),
            };
            format!(
                "{},{},{},{},{},{},{}{bx}",
                rule.cfa,
                rule.register,
                rule.fp,
                rule.cfa_offset,
                rule.cfa_addend,
                rule.fp_offset,
                rule.ra_offset
            )
        }
    }
}

fn entry_of(text: &str) -> Option<Entry> {
    match text {
        "none" => return Some(Entry::None),
        "end" => return Some(Entry::End),
        _ => {}
    }
    let numbers: Vec<i32> = text
        .split(',')
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let [
        cfa,
        register,
        fp,
        cfa_offset,
        cfa_addend,
        fp_offset,
        ra_offset,
        ref bx @ ..,
    ] = numbers[..]
    else {
        return None;
    };
    Some(Entry::Rule(Rule {
        cfa: cfa.try_into().ok()?,
        register: register.try_into().ok()?,
        fp: fp.try_into().ok()?,
        bx: match bx {
            [] => BX_UNKNOWN,
            [bx] => u8::try_from(*bx).ok().filter(|&bx| bx != BX_UNKNOWN)?,
            _ => return None,
        },
        cfa_offset,
        cfa_addend,
        fp_offset: fp_offset.try_into().ok()?,
        ra_offset: ra_offset.try_into().ok()?,
    }))
}

/// Passes questions on, and keeps them.
struct Asked<'a, C, M, F> {
    code: &'a C,
    memory: &'a M,
    file: F,
    places: RefCell<BTreeMap<u64, Found>>,
    pieces: RefCell<BTreeSet<u64>>,
}

impl<C: Code, M, F: Fn(u64) -> (String, String)> Code for Asked<'_, C, M, F> {
    fn at(&self, address: u64) -> Place<'_> {
        let place = self.code.at(address);
        let found = match place {
            Place::NoTable => Found::NoTable,
            Place::Absent => Found::Absent,
            Place::Jit => Found::Jit,
            Place::Unmapped => Found::Unmapped,
            Place::Table(table, own) => {
                let (build_id, path) = (self.file)(address);
                Found::Entry(FileEntry {
                    address: own,
                    entry: table.entry_at(own),
                    build_id,
                    path,
                })
            }
        };
        self.places.borrow_mut().insert(address, found);
        place
    }
}

impl<C, M: Memory, F> Memory for Asked<'_, C, M, F> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let mut pieces = self.pieces.borrow_mut();
        pieces.insert(address & !(PIECE_BYTES - 1));
        pieces.insert(address.saturating_add(7) & !(PIECE_BYTES - 1));
        self.memory.read_u64(address)
    }

    fn thread_pointer(&self) -> Option<u64> {
        self.memory.thread_pointer()
    }
}

struct Replay<'a> {
    snapshot: &'a Snapshot,
    tables: BTreeMap<u64, Table>,
}

impl Code for Replay<'_> {
    fn at(&self, address: u64) -> Place<'_> {
        match self.snapshot.code.get(&address) {
            Some(Found::Entry(_)) => match self.tables.get(&address) {
                Some(table) => Place::Table(table, address),
                None => Place::Unmapped,
            },
            Some(Found::NoTable) => Place::NoTable,
            Some(Found::Absent) => Place::Absent,
            Some(Found::Jit) => Place::Jit,
            Some(Found::Unmapped) | None => Place::Unmapped,
        }
    }
}

impl Memory for Replay<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let (start, bytes) = self.snapshot.memory.range(..=address).next_back()?;
        let at = usize::try_from(address - start).ok()?;
        Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::StackCopy;

    struct Everywhere(Table);

    impl Code for Everywhere {
        fn at(&self, address: u64) -> Place<'_> {
            match address {
                0x4000..0x5000 => Place::Table(&self.0, address - 0x3000),
                0x9000..0xa000 => Place::Jit,
                _ => Place::Unmapped,
            }
        }
    }

    fn table() -> Table {
        let mut builder = Builder::default();
        let rule = |cfa_offset| {
            Entry::Rule(Rule {
                register: 7,
                cfa_offset,
                ra_offset: -1,
                ..Rule::default()
            })
        };
        builder.push(0x1000, rule(16));
        builder.push(0x1100, rule(8));
        builder.push(0x1200, Entry::End);
        builder.finish().unwrap()
    }

    #[test]
    fn a_recorded_walk_is_the_same_again_also_from_text() {
        let stack: Vec<u8> = [7, 0x4180, 0x9010, 5, 0x20020 + 32, 0x9020, 0, 0x4220]
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        let memory = StackCopy {
            address: 0x20000,
            bytes: &stack,
            absent: 0,
        };
        let mut start = Start {
            pc: 0x4000,
            all_known: true,
            fp_known: true,
            ..Start::default()
        };
        start.registers[7] = 0x20000;
        start.registers[6] = 0x20020;
        let code = Everywhere(table());
        let walked = walk(&start, &[], &code, &memory);
        let file = |_| ("0af1".to_owned(), "/a file".to_owned());
        let snapshot = Snapshot::record("a test", start, &code, &memory, file, walked.clone());
        assert_eq!(walked.addresses, [0x4000, 0x4180, 0x9010, 0x9020]);
        assert_eq!(snapshot.replay(), walked);
        let text = snapshot.to_text();
        let again = Snapshot::parse(&text).unwrap();
        assert_eq!(again, snapshot, "{text}");
        assert_eq!(again.replay(), walked);
    }

    #[test]
    fn damage_names_its_line() {
        let line = |text: &str| Snapshot::parse(text).map_err(|error| error.line);
        assert_eq!(line("unwind 2"), Err(1));
        for bad in [
            "register 16 0",
            "memory 10 abc",
            "memory ffffffffffffffff 00",
            "code 10 elsewhere",
            "code 10 table 0 - 1,2,3 /a",
            "frame 10 perhaps",
            "end -1",
            "?",
        ] {
            assert_eq!(line(&format!("unwind 1\nnote x\n{bad}")), Err(3), "{bad}");
        }
    }
}
