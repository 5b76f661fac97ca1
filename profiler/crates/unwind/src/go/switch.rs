//! Where Go's runtime keeps what a goroutine goes on with when its thread works on its own stack.
//!
//! The runtime's code -> a rule, [`CFA_GO_SWITCH`]. The function that goes over to the thread's own stack
//! and comes back (`runtime.systemstack`) is read: from where it has the goroutine (thread-local memory),
//! and at which offsets it follows and restores. So no version has to be known, and a stripped program
//! serves as well. The kernel side reads the goroutine at 8 bytes below the thread pointer: only if the
//! code does just that, and everything else is as it should be, there is a rule.
//! Source: the runtime's asm_amd64.s.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use profiler_common::unwind::{CFA_GO_SWITCH, Rule};

use super::pclntab::Pclntab;
use super::rows::Code;

/// Where the goroutine is, from the thread pointer.
const GOROUTINE: i64 = -8;
/// Functions that save what a goroutine goes on with.
const SAVING: [&str; 2] = ["runtime.systemstack", "gosave_systemstack_switch"];
/// Most functions of these names: there is one of each.
const MAX_SAVING: usize = 8;
/// Longest of these functions.
const MAX_CODE_BYTES: u64 = 4096;
/// Largest offset that is believed.
const MAX_OFFSET: i64 = 1 << 15;

/// The rule for frames of functions that have left a goroutine's stack.
pub(super) fn rule(table: &Pclntab, code: &mut Code<'_>) -> Option<Rule> {
    let mut found = Found::default();
    let assembly = table.functions().filter(|function| function.is_assembly());
    let saving = assembly.filter(|function| {
        let name = table.known_name(function);
        name.is_some_and(|name| SAVING.contains(&name))
    });
    for function in saving.take(MAX_SAVING) {
        let len = (function.end - function.start).min(MAX_CODE_BYTES);
        found.read(code.at(function.start, len));
    }
    found.rule()
}

/// What a register holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Unknown,
    /// A number.
    Number(i64),
    /// The goroutine.
    Goroutine,
    /// The thread, at this offset of a goroutine.
    Thread(i64),
    /// What is at this offset of the thread at that offset of a goroutine.
    OfThread { thread: i64, at: i64 },
}

#[derive(Debug, Default)]
struct Found {
    /// Offsets of the thread in a goroutine, of the current goroutine in that, and of the stack pointer in
    /// it.
    back: Option<(i64, i64, i64)>,
    /// Offset of the frame pointer in a goroutine.
    fp: Option<i64>,
    /// Offsets at which a goroutine's stack pointer and where it goes on are saved.
    saved: Vec<i64>,
    /// The goroutine is somewhere else.
    elsewhere: bool,
}

impl Found {
    fn read(&mut self, bytes: &[u8]) {
        let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
        let mut registers = [Value::Unknown; 16];
        // Go's calling convention has the goroutine there.
        registers[Register::R14.number()] = Value::Goroutine;
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.mnemonic() == Mnemonic::Mov {
                self.step(&instruction, &mut registers);
            } else if instruction.op_count() > 0
                && instruction.op0_kind() == OpKind::Register
                && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
                && instruction.op0_register().full_register().is_gpr64()
            {
                registers[instruction.op0_register().full_register().number()] = Value::Unknown;
            }
        }
    }

    fn step(&mut self, instruction: &Instruction, registers: &mut [Value; 16]) {
        let value_of = |register: Register| match register.is_gpr64() {
            true => registers[register.number()],
            false => Value::Unknown,
        };
        let displacement = instruction.memory_displacement64() as i64;
        let plain = instruction.memory_index() == Register::None;
        let base = value_of(instruction.memory_base());
        let is_local = instruction.segment_prefix() == Register::FS;
        let place = match base {
            Value::Number(number) => number.wrapping_add(displacement),
            _ if instruction.memory_base() == Register::None => displacement as i32 as i64,
            _ => i64::MIN,
        };
        match (instruction.op0_kind(), instruction.op1_kind()) {
            (OpKind::Register, OpKind::Memory) => {
                let value = match base {
                    _ if !plain => Value::Unknown,
                    _ if is_local => {
                        self.elsewhere |= place != GOROUTINE;
                        Value::Goroutine
                    }
                    Value::Goroutine => Value::Thread(displacement),
                    Value::Thread(thread) => Value::OfThread {
                        thread,
                        at: displacement,
                    },
                    _ => Value::Unknown,
                };
                let register = instruction.op0_register();
                if let (Register::RSP, Value::OfThread { thread, at }) = (register, base) {
                    // The last one is the way back.
                    self.back = Some((thread, at, displacement));
                }
                if register.is_gpr64() {
                    registers[register.number()] = value;
                }
            }
            (OpKind::Memory, OpKind::Register) if is_local => {
                self.elsewhere |= place != GOROUTINE;
            }
            (OpKind::Memory, OpKind::Register) if base == Value::Goroutine && plain => {
                match instruction.op1_register() {
                    Register::RBP => self.fp = Some(displacement),
                    _ => self.saved.push(displacement),
                }
            }
            (OpKind::Register, kind) if instruction.op0_register().full_register().is_gpr64() => {
                let value = match kind {
                    OpKind::Register => value_of(instruction.op1_register()),
                    OpKind::Immediate32to64 => Value::Number(instruction.immediate32to64()),
                    _ => Value::Unknown,
                };
                registers[instruction.op0_register().full_register().number()] = value;
            }
            _ => {}
        }
    }

    fn rule(&self) -> Option<Rule> {
        let (thread, current, sp) = self.back?;
        let fp = self.fp?.checked_sub(sp)?;
        // Where it goes on is behind the stack pointer.
        let saved = [sp, sp.wrapping_add(8)];
        let saved = saved.iter().all(|place| self.saved.contains(place));
        let sane = |offset: i64| (8..MAX_OFFSET).contains(&offset) && offset % 8 == 0;
        if self.elsewhere || !saved || ![thread, current, sp, fp].into_iter().all(sane) {
            return None;
        }
        Some(Rule {
            cfa: CFA_GO_SWITCH,
            cfa_offset: i32::try_from(thread).ok()?,
            cfa_addend: i32::try_from(current).ok()?,
            fp_offset: i16::try_from(sp / 8).ok()?,
            ra_offset: i16::try_from(fp / 8).ok()?,
            ..Rule::default()
        })
    }
}
