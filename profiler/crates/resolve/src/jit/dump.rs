//! Dumps of run-time code (`jit-PID.dump`): names, lines and bytes.
//!
//! A runtime appends a record for each piece of code, and maps the file so that profilers find it. Heads of
//! records are read as they come; lines and bytes stay in the file until they are asked for. Of a damaged
//! file what is before the damage counts. Only dumps of this machine's byte order and processor are read.
//! Timestamps are not needed: what is newer counts.
//! Source: the kernel's tools/perf/Documentation/jitdump-specification.txt.

use std::collections::BTreeMap;
use std::fs::File;

use rustc_hash::FxHashMap;

use super::names::is_script;
use super::{JitPlace, JitProcess, function};
use crate::files::OpenError;
use crate::symbolize::{CodeBytes, MAX_CODE_BYTES};
use profiler_object::elf::{read_up_to, u32_at, word};

/// `JiTD`, read as a number of this machine.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const EM_X86_64: u32 = 62;
/// Bytes of the file's header, and of a record's.
const HEADER_BYTES: usize = 40;
const RECORD_BYTES: usize = 16;
const LOAD: u32 = 0;
const MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
/// Bytes of a record before the name of the code.
const LOAD_BYTES: usize = RECORD_BYTES + 40;
const MOVE_BYTES: usize = RECORD_BYTES + 48;

/// Most bytes of one dump that are looked at.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Most records taken at a time.
const MAX_RECORDS: usize = 100_000;
/// Longest name.
const MAX_NAME_BYTES: usize = 4096;
/// What is read at once.
const PIECE_BYTES: usize = 256 << 10;
/// Most bytes of the lines of one piece of code.
const MAX_LINES_BYTES: u32 = 1 << 20;
/// Most bytes of symbols kept of one dump.
const MAX_KEPT_BYTES: usize = 32 << 20;
/// What a symbol costs beyond its name.
const SYMBOL_BYTES: usize = 112;
/// V8 gives lines for addresses in an ELF file that is made of the code, behind its header.
const SCRIPT_SHIFT: u64 = 64;

/// What has been read of a dump.
#[derive(Debug, Default)]
pub(super) struct Dump {
    file: Option<File>,
    /// Where the next record begins; 0: the header was not read yet.
    next: u64,
    /// Nothing more can be read.
    damaged: bool,
    symbols: BTreeMap<u64, Symbol>,
    /// Where the lines of code are that is to come, by its address.
    lines: FxHashMap<u64, (u64, u32)>,
    bytes: usize,
    /// Where other code was than is now.
    pub(super) renewed: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Symbol {
    end: u64,
    name: Box<str>,
    index: u64,
    /// Where its bytes are in the file.
    code: u64,
    /// Where its lines are in the file, how many bytes, and the address that they are for.
    lines: Option<(u64, u32, u64)>,
}

impl Dump {
    /// Reads what is new.
    pub(super) fn refresh(&mut self, process: &JitProcess, path: &str) -> Result<(), OpenError> {
        if self.damaged {
            return Ok(());
        }
        if self.file.is_none() {
            self.file = Some(process.open(path)?);
        }
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let read = self.read(&file, process.namespace_pid.0);
        self.file = Some(file);
        read
    }

    fn read(&mut self, file: &File, pid: u32) -> Result<(), OpenError> {
        let len = file.metadata()?.len().min(MAX_FILE_BYTES);
        if self.next == 0 {
            let mut header = [0; HEADER_BYTES];
            if read_up_to(file, &mut header, 0)? < HEADER_BYTES {
                return Ok(());
            }
            let field = |at| u32_at(&header, at).unwrap_or(0);
            let fits = (field(0), field(4), field(12)) == (MAGIC, VERSION, EM_X86_64);
            if !fits || field(20) != pid || (field(8) as usize) < HEADER_BYTES {
                log::debug!("jit-{pid}.dump is not this process's, or of another kind of machine");
                self.damaged = true;
                return Ok(());
            }
            self.next = u64::from(field(8));
        }
        let mut piece = Piece::default();
        for _ in 0..MAX_RECORDS {
            if self.bytes >= MAX_KEPT_BYTES {
                break;
            }
            let head = piece.at(file, self.next, RECORD_BYTES)?;
            if head.len() < RECORD_BYTES {
                break;
            }
            let field = |at| u32_at(head, at).unwrap_or(0);
            let (kind, size) = (field(0), u64::from(field(4)));
            if size < RECORD_BYTES as u64 {
                log::debug!("jit-{pid}.dump is damaged at {}", self.next);
                self.damaged = true;
                break;
            }
            if self.next + size > len {
                // Being written.
                break;
            }
            let wanted = match kind {
                LOAD => LOAD_BYTES + MAX_NAME_BYTES,
                MOVE => MOVE_BYTES,
                DEBUG_INFO => RECORD_BYTES + 8,
                _ => 0,
            };
            let record = piece.at(file, self.next, wanted.min(size as usize))?;
            self.take(kind, size, record);
            self.next += size;
        }
        Ok(())
    }

    fn take(&mut self, kind: u32, size: u64, record: &[u8]) {
        let taken = match kind {
            LOAD => self.load(size, record),
            MOVE => self.moved(record),
            DEBUG_INFO => word(record, RECORD_BYTES, true).ok().map(|address| {
                if self.lines.len() >= MAX_RECORDS {
                    self.lines.clear();
                }
                let len = (size - RECORD_BYTES as u64).min(MAX_LINES_BYTES.into()) as u32;
                let place = self.next + RECORD_BYTES as u64;
                self.lines.insert(address, (place, len));
            }),
            _ => Some(()),
        };
        if taken.is_none() {
            log::debug!("a record of run-time code at {} is damaged", self.next);
        }
    }

    fn load(&mut self, size: u64, record: &[u8]) -> Option<()> {
        let field = |index: usize| word(record, RECORD_BYTES + 16 + 8 * index, true).ok();
        let (start, len, index) = (field(0)?, field(1)?, field(2)?);
        let name = record.get(LOAD_BYTES..)?;
        let name = &name[..name.iter().position(|&byte| byte == 0)?];
        let code = (LOAD_BYTES + name.len() + 1) as u64;
        let lines = self.lines.remove(&start);
        if code.checked_add(len)? > size {
            return None;
        }
        let symbol = Symbol {
            end: start.checked_add(len)?,
            name: String::from_utf8_lossy(name).into(),
            index,
            code: self.next + code,
            lines: lines.map(|(place, len)| (place, len, start)),
        };
        self.insert(start, symbol);
        Some(())
    }

    fn moved(&mut self, record: &[u8]) -> Option<()> {
        let field = |index: usize| word(record, RECORD_BYTES + 16 + 8 * index, true).ok();
        let (old, new, len, index) = (field(0)?, field(1)?, field(2)?, field(3)?);
        let end = new.checked_add(len)?;
        if self.symbols.get(&old)?.index != index {
            return None;
        }
        let symbol = self.remove(old)?;
        self.insert(new, Symbol { end, ..symbol });
        Some(())
    }

    fn insert(&mut self, start: u64, symbol: Symbol) {
        if symbol.end <= start || symbol.name.is_empty() {
            return;
        }
        // Code is thrown away and its memory used again: what is newer holds.
        while let Some((&old, known)) = self.symbols.range(..symbol.end).next_back() {
            if known.end <= start {
                break;
            }
            self.remove(old);
        }
        self.bytes += symbol.name.len() + SYMBOL_BYTES;
        self.symbols.insert(start, symbol);
    }

    fn remove(&mut self, start: u64) -> Option<Symbol> {
        let symbol = self.symbols.remove(&start)?;
        self.bytes = self.bytes.saturating_sub(symbol.name.len() + SYMBOL_BYTES);
        self.renewed.push((start, symbol.end));
        Some(symbol)
    }

    fn covering(&self, address: u64) -> Option<(u64, &Symbol)> {
        let (&start, symbol) = self.symbols.range(..=address).next_back()?;
        (address < symbol.end).then_some((start, symbol))
    }

    /// Whether an address is in code that is known.
    pub(super) fn knows(&self, address: u64) -> bool {
        self.covering(address).is_some()
    }

    /// What is at an address, with `code` its bytes.
    pub(super) fn find(&self, address: u64, code: bool) -> Option<JitPlace> {
        let (start, symbol) = self.covering(address)?;
        let size = symbol.end - start;
        let mut function = function(&symbol.name, start, size);
        let mut line = 0;
        // A line of another file than that of the function is one of code that was inlined.
        if let Some((file, found)) = self.line(symbol, address - start)
            && let Some(file) = file_name(&file)
            && function.file.as_deref().is_none_or(|own| own == file)
        {
            line = found;
            function.file = Some(file.into());
        }
        let code = code.then(|| self.code(start, symbol)).flatten();
        Some(JitPlace {
            function,
            line,
            code,
        })
    }

    fn code(&self, start: u64, symbol: &Symbol) -> Option<CodeBytes> {
        let len = (symbol.end - start).min(MAX_CODE_BYTES) as usize;
        let mut bytes = vec![0; len];
        let got = read_up_to(self.file.as_ref()?, &mut bytes, symbol.code).ok()?;
        (got == len).then(|| (start, bytes.into()))
    }

    /// File and line of an instruction this far from the beginning of the code.
    fn line(&self, symbol: &Symbol, offset: u64) -> Option<(Vec<u8>, u32)> {
        let (place, len, start) = symbol.lines?;
        let mut bytes = vec![0; len as usize];
        let got = read_up_to(self.file.as_ref()?, &mut bytes, place).ok()?;
        let shift = if is_script(&symbol.name).is_some() {
            SCRIPT_SHIFT
        } else {
            0
        };
        line_at(
            &bytes[..got],
            start.checked_add(offset)?.checked_add(shift)?,
        )
    }

    /// Roughly how much memory this takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.lines.len() * 32
    }
}

/// The last line that begins at or before an address. Behind the address of the code and the number of
/// entries: address, line, discriminator, file; of a file that is the same as before a mark only.
fn line_at(bytes: &[u8], address: u64) -> Option<(Vec<u8>, u32)> {
    let count = word(bytes, 8, true).ok()?;
    let mut rest = bytes.get(16..)?;
    let mut file: &[u8] = &[];
    let mut best: Option<(u64, &[u8], u32)> = None;
    for _ in 0..count {
        let (Ok(at), Ok(line)) = (word(rest, 0, true), u32_at(rest, 8)) else {
            break;
        };
        let Some(text) = rest.get(16..) else { break };
        let Some(end) = text.iter().position(|&byte| byte == 0) else {
            break;
        };
        if &text[..end] != b"\xff" {
            file = &text[..end.min(MAX_NAME_BYTES)];
        }
        rest = &text[end + 1..];
        if at <= address && best.is_none_or(|(known, ..)| known <= at) {
            best = Some((at, file, line));
        }
    }
    let (_, file, line) = best.filter(|(_, file, _)| !file.is_empty())?;
    Some((file.to_vec(), line))
}

/// What a line says its file is, if it is a text: V8 writes what is left of one that it has thrown away.
fn file_name(told: &[u8]) -> Option<&str> {
    let told = std::str::from_utf8(told).ok()?;
    (!told.chars().any(char::is_control)).then_some(told)
}

/// A piece of a file, read ahead.
#[derive(Default)]
struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

impl Piece {
    /// The bytes from an offset on, as many as there are.
    fn at(&mut self, file: &File, offset: u64, len: usize) -> std::io::Result<&[u8]> {
        let have = |piece: &Piece| {
            let place = offset.checked_sub(piece.start)?;
            let place = usize::try_from(place).ok()?;
            (place.checked_add(len)? <= piece.bytes.len()).then_some(place)
        };
        let place = match have(self) {
            Some(place) => place,
            None => {
                self.bytes.resize(PIECE_BYTES, 0);
                let got = read_up_to(file, &mut self.bytes, offset)?;
                self.bytes.truncate(got);
                self.start = offset;
                0
            }
        };
        let end = (place + len).min(self.bytes.len());
        Ok(&self.bytes[place..end])
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use proptest::prelude::*;

    use super::*;

    const PID: u32 = 77;

    fn header() -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [MAGIC, VERSION, HEADER_BYTES as u32, EM_X86_64, 0, PID] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend([0; 16]);
        bytes
    }

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend((RECORD_BYTES as u32 + body.len() as u32).to_ne_bytes());
        bytes.extend(5_u64.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn load(start: u64, index: u64, name: &str, code: &[u8]) -> Vec<u8> {
        let mut body = words(&[0, start, start, code.len() as u64, index]);
        body.extend(name.as_bytes());
        body.push(0);
        body.extend(code);
        record(LOAD, &body)
    }

    fn moved(old: u64, new: u64, len: u64, index: u64) -> Vec<u8> {
        record(MOVE, &words(&[0, 0, old, new, len, index]))
    }

    fn lines(start: u64, entries: &[(u64, u32, &str)]) -> Vec<u8> {
        let mut body = words(&[start, entries.len() as u64]);
        for (address, line, file) in entries {
            body.extend(address.to_ne_bytes());
            body.extend(line.to_ne_bytes());
            body.extend([0; 4]);
            match *file {
                "same" => body.push(0xff),
                file => body.extend(file.as_bytes()),
            }
            body.push(0);
        }
        record(DEBUG_INFO, &body)
    }

    fn file_of(bytes: &[u8]) -> File {
        let made = rustix::fs::memfd_create("dump", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(made.unwrap());
        file.write_all(bytes).unwrap();
        file
    }

    fn read(bytes: &[u8]) -> Dump {
        let file = file_of(bytes);
        let mut dump = Dump::default();
        dump.read(&file, PID).unwrap();
        dump.file = Some(file);
        dump
    }

    fn name(dump: &Dump, address: u64) -> Option<String> {
        Some(dump.find(address, false)?.function.name.into())
    }

    #[test]
    fn code_is_found_where_it_was_loaded_or_moved_last() {
        let mut bytes = header();
        let entries = [
            (0x1000, 3, "/a.x"),
            (0x1008, 4, "same"),
            (0x100c, 9, "/b.x"),
        ];
        bytes.extend(lines(0x1000, &entries));
        bytes.extend(load(0x1000, 1, "first", &[7; 16]));
        bytes.extend(record(4, &[0; 40]));
        bytes.extend(load(0x2000, 2, "second", &[8; 32]));
        bytes.extend(moved(0x2000, 0x3000, 32, 2));
        bytes.extend(moved(0x1000, 0x5000, 16, 9));
        bytes.extend(load(0x3010, 3, "third", &[9; 4]));
        let dump = read(&bytes);
        let at = |address| {
            let place = dump.find(address, true).unwrap();
            let file = place.function.file.map(String::from);
            (
                String::from(place.function.name),
                file,
                place.line,
                place.code,
            )
        };
        let code = Some((0x1000, [7; 16].into()));
        assert_eq!(
            at(0x1007),
            ("first".into(), Some("/a.x".into()), 3, code.clone())
        );
        assert_eq!(
            at(0x100b),
            ("first".into(), Some("/a.x".into()), 4, code.clone())
        );
        assert_eq!(at(0x100f), ("first".into(), Some("/b.x".into()), 9, code));
        assert_eq!(name(&dump, 0x2000), None);
        // The newest code has taken the place of what was moved there.
        assert_eq!(name(&dump, 0x3000), None);
        assert_eq!(
            at(0x3013),
            ("third".into(), None, 0, Some((0x3010, [9; 4].into())))
        );
        assert_eq!(name(&dump, 0x5000), None);
        // Where code went from, and what was replaced.
        assert_eq!(dump.renewed, [(0x2000, 0x2020), (0x3000, 0x3020)]);
    }

    #[test]
    fn lines_of_scripts_are_shifted() {
        let mut bytes = header();
        bytes.extend(lines(0x1000, &[(0x1040, 3, "/a.js"), (0x1048, 4, "same")]));
        bytes.extend(load(0x1000, 1, "JS:*leaf /a.js:2:1", &[7; 16]));
        let dump = read(&bytes);
        let place = dump.find(0x1007, false).unwrap();
        assert_eq!((&*place.function.name, place.line), ("leaf", 3));
        assert_eq!(dump.find(0x1008, false).unwrap().line, 4);
        assert_eq!(
            place.function.linkage_name.as_deref(),
            Some("JS:*leaf /a.js:2:1")
        );
    }

    #[test]
    fn a_file_that_is_no_text_is_that_of_the_name() {
        let of = |name: &str, file: &str| {
            let mut bytes = header();
            bytes.extend(lines(0x1000, &[(0x1000, 3, file)]));
            bytes.extend(load(0x1000, 1, name, &[7; 16]));
            let place = read(&bytes).find(0x1007, false).unwrap();
            (place.function.file.map(String::from), place.line)
        };
        let script = "JS:*inner /tmp/t.js:1:15";
        let own = Some("/tmp/t.js".to_owned());
        for dangling in ["\u{1}\u{19}[", "t\u{7f}", "Xyz"] {
            assert_eq!(of(script, dangling), (own.clone(), 0), "{dangling:?}");
        }
        assert_eq!(of(script, "/tmp/t.js"), (own, 3));
        // What has no file of its own, as the JVM's agents write it.
        assert_eq!(of("A::work", "A.java"), (Some("A.java".to_owned()), 3));
        assert_eq!(of("A::work", "A\u{1}"), (None, 0));
        assert_eq!(file_name(b"/tmp/\xff\xfe"), None);
    }

    #[test]
    fn a_record_that_is_being_written_waits() {
        let mut bytes = header();
        bytes.extend(load(0x1000, 1, "first", &[7; 16]));
        let whole = load(0x2000, 2, "second", &[8; 32]);
        let mut file = file_of(&bytes);
        let mut dump = Dump::default();
        for part in whole.chunks(20) {
            dump.read(&file, PID).unwrap();
            assert_eq!(name(&dump, 0x2000), None);
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(part).unwrap();
        }
        dump.read(&file, PID).unwrap();
        assert_eq!(name(&dump, 0x1000).as_deref(), Some("first"));
        assert_eq!(name(&dump, 0x2000).as_deref(), Some("second"));
    }

    #[test]
    fn dumps_of_others_are_refused() {
        let good = load(0x1000, 1, "first", &[7; 16]);
        let with = |at: usize, byte: u8| {
            let mut bytes = header();
            bytes[at] = byte;
            bytes.extend(&good);
            read(&bytes)
        };
        assert!(with(39, 0).knows(0x1000));
        let mut swapped = header();
        swapped[..4].reverse();
        swapped.extend(&good);
        assert!(!read(&swapped).knows(0x1000));
        for (at, byte) in [(0, 0), (4, 2), (12, 183), (20, 1)] {
            assert!(!with(at, byte).knows(0x1000), "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_damage_is_survived(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
            address in 0x0f00_u64..0x3100,
        ) {
            let mut bytes = header();
            bytes.extend(lines(0x1000, &[(0x1000, 3, "/a.x"), (0x1008, 4, "same")]));
            bytes.extend(load(0x1000, 1, "first", &[7; 16]));
            bytes.extend(load(0x2000, 2, "second", &[8; 32]));
            bytes.extend(moved(0x2000, 0x3000, 32, 2));
            for (index, byte) in changes {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            let dump = read(&bytes);
            let kept: Vec<_> = dump.symbols.iter().map(|(start, symbol)| (*start, symbol.end)).collect();
            prop_assert!(kept.iter().all(|(start, end)| start < end));
            prop_assert!(kept.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            let sizes = dump.symbols.values().map(|symbol| symbol.name.len() + SYMBOL_BYTES);
            prop_assert_eq!(dump.bytes, sizes.sum::<usize>());
            if let Some(found) = dump.find(address, true) {
                prop_assert!(found.function.start <= Some(address));
            }
        }
    }
}
