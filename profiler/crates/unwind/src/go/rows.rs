//! From Go's functions to what holds for their callers.
//!
//! A table of functions, and the code -> entries in the order of addresses. Of compiled functions the
//! table has the distance to the return address, and the first instructions say how the frame pointer is
//! saved: pushed (Go 1.21 and newer), or stored once there is room. Other functions are read instruction
//! by instruction (`assembly`). Addresses are ELF virtual addresses, distances bytes.

use std::fs::File;

use profiler_common::unwind::{CFA_REGISTER, CFA_SIGNAL, FP_AT_CFA, FP_SAME, REGISTER_SP, Rule};

use super::assembly::{self, Kind};
use super::pclntab::{Function, Held, Layout, Pclntab};
use super::switch;
use crate::Entry;
use profiler_object::elf::{Elf, read_up_to};

/// Most entries of a program.
const MAX_ROWS: usize = 16 << 20;
/// Largest frame that is believed.
const MAX_FRAME_BYTES: i32 = 256 << 20;
/// Longest function in assembly that is read.
pub(super) const MAX_CODE_BYTES: u64 = 256 << 10;
/// Most bytes of code that are read instruction by instruction in a program, and most that are read at all.
const MAX_DECODED_BYTES: u64 = 64 << 20;
const MAX_READ_BYTES: u64 = 1 << 30;
/// What is read of the code at once.
const PIECE_BYTES: u64 = 1 << 20;
/// `push rbp`.
const PUSH_FP: u8 = 0x55;

/// What holds from which address on.
pub(super) fn rows(table: &Pclntab, file: &File, elf: &Elf) -> Vec<(u64, Entry)> {
    rows_within(table, file, elf, (MAX_ROWS, MAX_DECODED_BYTES))
}

/// The same with other limits: on rows and on values that are looked at, and on bytes of code that are read
/// instruction by instruction. Each may be exceeded by one function.
pub(super) fn rows_within(
    table: &Pclntab,
    file: &File,
    elf: &Elf,
    (most, code_left): (usize, u64),
) -> Vec<(u64, Entry)> {
    let mut code = Code::new(file, elf);
    let mut rows = Rows {
        rows: Vec::new(),
        switch: switch::rule(table, &mut code),
        values_left: most,
        code_left,
    };
    let mut end = 0;
    for function in table.functions() {
        if rows.rows.len() >= most || rows.values_left == 0 || rows.code_left == 0 {
            log::warn!("too many rows of Go functions: the rest is left out");
            break;
        }
        if function.start >= end {
            rows.function(table, &function, &mut code);
            end = function.end;
        }
    }
    rows.push(end, Entry::None);
    rows.rows
}

/// CFA = stack pointer + `taken` + the return address.
pub(super) fn by_stack_pointer(taken: i32, (fp, fp_offset): (u8, i16)) -> Entry {
    Entry::Rule(Rule {
        cfa: CFA_REGISTER,
        register: REGISTER_SP,
        fp,
        cfa_offset: taken + 8,
        fp_offset,
        ra_offset: -1,
        ..Rule::default()
    })
}

struct Rows {
    rows: Vec<(u64, Entry)>,
    switch: Option<Rule>,
    /// Values of tables that may still be looked at: functions share them.
    values_left: usize,
    /// Bytes of code that may still be read instruction by instruction.
    code_left: u64,
}

impl Rows {
    /// Of two for one address the later one counts.
    fn push(&mut self, address: u64, entry: Entry) {
        if let Some(last) = self.rows.last_mut() {
            if last.0 >= address {
                last.1 = entry;
                return;
            }
            if last.1 == entry {
                return;
            }
        }
        self.rows.push((address, entry));
    }

    fn function(&mut self, table: &Pclntab, function: &Function, code: &mut Code<'_>) {
        // Before Go 1.17 tables don't say what is assembly.
        let kind = match function.is_assembly() || table.layout() == Layout::Go116 {
            true => kind_of(table, function),
            false if function.is_outermost() => Kind::Outermost,
            false => Kind::Plain,
        };
        match kind {
            Kind::Outermost => return self.push(function.start, Entry::End),
            Kind::Signal => {
                // It is returned to, but nobody called it: the address before it is not its own.
                let rule = Rule {
                    cfa: CFA_SIGNAL,
                    ..Rule::default()
                };
                return self.push(function.start.saturating_sub(1), Entry::Rule(rule));
            }
            _ => {}
        }
        let mut values = table.stack(function);
        let stack: Vec<Held> = values.by_ref().collect();
        self.values_left = self.values_left.saturating_sub(stack.len());
        let believed = |held: &Held| (0..=MAX_FRAME_BYTES).contains(&held.value);
        if stack.is_empty() || values.is_cut() || !stack.iter().all(believed) {
            return self.push(function.start, Entry::None);
        }
        let len = (function.end - function.start).min(MAX_CODE_BYTES);
        let bytes = code.at(function.start, len);
        let known = kind == Kind::Plain && !function.is_assembly();
        if !(known && self.compiled(function, &stack, bytes)) {
            if bytes.is_empty() {
                return self.push(function.start, Entry::None);
            }
            self.code_left = self.code_left.saturating_sub(bytes.len() as u64);
            let switch = self.switch;
            assembly::read(
                function,
                &stack,
                bytes,
                kind,
                switch,
                &mut |address, entry| {
                    self.push(address, entry);
                },
            );
        }
    }

    /// A function as the compiler makes them; false if it is not like that.
    fn compiled(&mut self, function: &Function, stack: &[Held], bytes: &[u8]) -> bool {
        let same = |taken| by_stack_pointer(taken, (FP_SAME, 0));
        let saved = |taken| by_stack_pointer(taken, (FP_AT_CFA, -2));
        let Some(first) = stack.iter().position(|held| held.value > 0) else {
            self.push(function.start, same(0));
            return true;
        };
        let Held { at, value } = &stack[first];
        let place = (at.start - function.start) as usize;
        let is_pushed = *value == 8
            && place > 0
            && bytes.get(place - 1) == Some(&PUSH_FP)
            && stack[..first].iter().all(|held| held.value == 0);
        let stored = bytes
            .get(place..)
            .and_then(|bytes| stores_fp(bytes, value - 8));
        if !is_pushed && stored.is_none() {
            return false;
        }
        for (index, held) in stack.iter().enumerate() {
            match held.value {
                0 => self.push(held.at.start, same(0)),
                taken if index == first && !is_pushed => {
                    self.push(held.at.start, same(taken));
                    self.push(held.at.start + stored.unwrap_or(0), saved(taken));
                }
                taken => self.push(held.at.start, saved(taken)),
            }
        }
        true
    }
}

/// Length of an instruction that stores the frame pointer at a distance from the stack pointer, if there
/// is one.
fn stores_fp(bytes: &[u8], distance: i32) -> Option<u64> {
    match *bytes {
        [0x48, 0x89, 0x6c, 0x24, near, ..] => (i32::from(near as i8) == distance).then_some(5),
        [0x48, 0x89, 0xac, 0x24, a, b, c, d, ..] => {
            (i32::from_le_bytes([a, b, c, d]) == distance).then_some(8)
        }
        _ => None,
    }
}

fn kind_of(table: &Pclntab, function: &Function) -> Kind {
    match table.known_name(function).unwrap_or_default() {
        // They begin the handler of a signal, which the frame that returns from it has called.
        "runtime.sigtramp"
        | "runtime.cgoSigtramp"
        | "runtime.sigprofNonGoWrapper"
        | "sigprofNonGoWrapper" => Kind::Plain,
        "runtime.sigreturn" | "runtime.sigreturn__sigaction" => Kind::Signal,
        "runtime.systemstack" | "runtime.asmcgocall" | "runtime.morestack" => Kind::Switch,
        "runtime.mcall" | "runtime.gogo" | "gogo" => Kind::Left,
        "runtime.cgocallback" => Kind::Both,
        "runtime.goexit" | "runtime.mstart" | "runtime.rt0_go" | "_rt0_amd64"
        | "_rt0_amd64_linux" => Kind::Outermost,
        _ if function.is_outermost() => Kind::Outermost,
        _ => Kind::Plain,
    }
}

/// The code, read piece by piece in the order of addresses.
pub(super) struct Code<'a> {
    file: &'a File,
    elf: &'a Elf,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes that may still be read.
    left: u64,
}

impl<'a> Code<'a> {
    pub(super) fn new(file: &'a File, elf: &'a Elf) -> Code<'a> {
        Code {
            file,
            elf,
            start: 0,
            bytes: Vec::new(),
            left: MAX_READ_BYTES,
        }
    }

    /// The bytes from an address on, as many as there are.
    pub(super) fn at(&mut self, address: u64, len: u64) -> &[u8] {
        let have = self.bytes.len() as u64;
        let is_there = |place: u64| place <= have && len <= have - place;
        if !address.checked_sub(self.start).is_some_and(is_there) {
            self.start = address;
            self.bytes.clear();
            let Some(offset) = self.elf.offset_of(address) else {
                return &[];
            };
            let len = len.max(PIECE_BYTES).min(self.left);
            self.left -= len;
            self.bytes.resize(len as usize, 0);
            let got = read_up_to(self.file, &mut self.bytes, offset).unwrap_or(0);
            self.bytes.truncate(got);
        }
        let place = (address - self.start) as usize;
        let end = place.saturating_add(len as usize).min(self.bytes.len());
        self.bytes.get(place..end).unwrap_or_default()
    }
}
