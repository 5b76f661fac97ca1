//! What one instruction does to the place of the return address, and below the stack pointer.
//!
//! The state before an instruction -> [`StackUse`]. The return address lies in the 8 bytes from the
//! stack pointer at the entry on ([`ENTRY`]); addresses there are followed as they are copied, and a
//! use that can't be followed any further counts as one that may do anything. A pointer to another
//! part of the stack is taken to stay within what it was made for. Offsets are bytes.
//!
//! What does not belong here: what follows for probes (`trace::return_address`).

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use rustc_hash::FxHashMap;

use super::super::Touch;
use super::value::{ENTRY, Value};
use super::{RBP, RSP, State, number};

/// Bytes of a return address.
const SLOT: i64 = 8;
/// Registers in which a callee takes arguments: rdi, rsi, rdx, rcx, r8, r9.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// For each base that is not the entry's stack pointer, how far above that it may lie at most
/// (negative: below it); nothing if that isn't known.
#[derive(Debug, Default)]
pub(in crate::code) struct Bounds(FxHashMap<u64, Option<i64>>);

/// What an instruction does to the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::code) struct StackUse {
    /// To the place of the return address.
    pub(in crate::code) touch: Option<Touch>,
    /// It uses memory below the stack pointer (the red zone), or might.
    pub(in crate::code) below: bool,
}

impl Bounds {
    /// The highest that `offset` from `base` can lie above the entry's stack pointer; and whether it
    /// lies just there.
    fn highest(&self, base: u64, offset: i64) -> Option<(i64, bool)> {
        match base {
            ENTRY => Some((offset, true)),
            base => {
                let bound = self.0.get(&base).copied().flatten()?;
                Some((bound.saturating_add(offset), false))
            }
        }
    }

    /// Learns of a base that `instruction` has made of the value that its first operand had before.
    pub(in crate::code) fn learn(
        &mut self,
        instruction: &Instruction,
        before: &State,
        after: &State,
    ) {
        if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
            return;
        }
        let target = instruction.op0_register();
        let made = match after.register(target) {
            Some(Value::Stack { base, offset: 0 }) if base == instruction.ip() => base,
            _ => return,
        };
        let lowers = matches!(instruction.mnemonic(), Mnemonic::And | Mnemonic::Sub);
        let bound = match before.register(target) {
            Some(Value::Stack { base, offset }) if lowers => self.highest(base, offset),
            _ => None,
        };
        let bound = bound.map(|(highest, _)| highest);
        let known = self.0.entry(made).or_insert(bound);
        *known = match (*known, bound) {
            (Some(one), Some(other)) => Some(one.max(other)),
            _ => None,
        };
    }
}

fn is_slot(value: Option<Value>) -> bool {
    matches!(value, Some(Value::Stack { base: ENTRY, offset }) if (0..SLOT).contains(&offset))
}

fn reads(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::NoMemAccess | OpAccess::Write | OpAccess::CondWrite
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

impl State {
    /// What `instruction` does in this state, but for what becomes of the stack pointer.
    pub(in crate::code) fn stack_use(
        &self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        bounds: &Bounds,
    ) -> StackUse {
        let mut found = StackUse::default();
        if !matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64) {
            self.use_memory(instruction, info, bounds, &mut found);
            let pops = self.pops(instruction, bounds);
            found.touch = found.touch.or(pops);
            if self.registers.iter().any(|&value| is_slot(Some(value))) {
                let uses = self.use_address(instruction, info);
                found.touch = found.touch.or(uses);
            }
        }
        found
    }

    /// Whether the stack pointer lies above the return address, or may.
    pub(in crate::code) fn is_above_return_address(&self, bounds: &Bounds) -> bool {
        match self.registers[RSP] {
            Value::Stack { base, offset } => bounds
                .highest(base, offset)
                .is_none_or(|(highest, _)| highest > 0),
            _ => false,
        }
    }

    /// Whether a callee is given the address of the return address.
    pub(in crate::code) fn hands_out_slot(&self) -> bool {
        ARGUMENTS
            .iter()
            .any(|&argument| is_slot(Some(self.registers[argument])))
    }

    /// Whether an address of the return address is no longer known where this state meets another.
    pub(in crate::code) fn loses_slot(&self, other: &State) -> bool {
        let differs = |at: usize| {
            let (one, other) = (self.registers[at], other.registers[at]);
            at != RSP && (is_slot(Some(one)) || is_slot(Some(other))) && one != other
        };
        let kept = |state: &State, value: &super::Slot| state.slots.contains(value);
        let forgets = |one: &State, other: &State| {
            let mut slots = one.slots.iter();
            slots.any(|slot| is_slot(Some(slot.value)) && !kept(other, slot))
        };
        (0..16).any(differs) || forgets(self, other) || forgets(other, self)
    }

    fn use_memory(
        &self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        bounds: &Bounds,
        found: &mut StackUse,
    ) {
        let Some(operand) =
            (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Memory)
        else {
            return;
        };
        if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
            return;
        }
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let scale = i64::from(instruction.memory_index_scale());
        let on_stack = |register| match self.register(register) {
            Some(Value::Stack { base, offset }) => Some((base, offset)),
            _ => None,
        };
        if !self.on_stack() && (base == Register::RSP || index == Register::RSP) {
            found.below = true;
            found.touch = Some(Touch::Computed);
        }
        // Which of the two leads to the stack, and what is added to it.
        let (stack, other, scale) = match (on_stack(base), on_stack(index)) {
            (Some(stack), _) => (stack, index, scale),
            (None, Some(stack)) if scale == 1 => (stack, base, 1),
            _ => return,
        };
        let (stack_base, mut offset) = stack;
        offset = offset.wrapping_add(instruction.memory_displacement64() as i64);
        let mut indexed = false;
        match self.register(other) {
            Some(Value::Constant(number)) => {
                offset = offset.wrapping_add((number as i64).wrapping_mul(scale));
            }
            _ => indexed = other != Register::None,
        }
        found.below |= self.is_below(stack_base, offset, bounds);
        let is_address = instruction.mnemonic() == Mnemonic::Lea;
        if is_address && !indexed {
            // Known from now on.
            return;
        }
        let Some((highest, exact)) = bounds.highest(stack_base, offset) else {
            found.touch = Some(Touch::Computed);
            return;
        };
        // What is saved by the processor's own layout has no size here.
        let size = match instruction.memory_size().size() {
            0 => i64::from(u16::MAX),
            size => size as i64,
        };
        found.touch = match (indexed, exact) {
            (true, true) => (0..SLOT).contains(&highest).then_some(Touch::Computed),
            (true, false) => (highest > 0).then_some(Touch::Computed),
            (false, false) => (highest.saturating_add(size) > 0).then_some(Touch::Computed),
            (false, true) if highest >= SLOT || highest.saturating_add(size) <= 0 => None,
            (false, true) => {
                let access = info.info(instruction).op_access(operand);
                Some(match writes(access) {
                    true => Touch::Written,
                    false => Touch::Read,
                })
            }
        };
    }

    /// Whether an address on the stack lies below the stack pointer, or may.
    fn is_below(&self, base: u64, offset: i64, bounds: &Bounds) -> bool {
        match self.registers[RSP] {
            Value::Stack {
                base: now,
                offset: at,
            } if now == base => offset < at,
            // The stack pointer was moved down from there since.
            Value::Stack {
                base: now,
                offset: at,
            } if base == ENTRY => bounds
                .highest(now, at)
                .is_none_or(|(highest, _)| offset < highest),
            _ => true,
        }
    }

    /// What is taken off the stack.
    fn pops(&self, instruction: &Instruction, bounds: &Bounds) -> Option<Touch> {
        let top = match instruction.mnemonic() {
            Mnemonic::Pop | Mnemonic::Popfq | Mnemonic::Popf => self.registers[RSP],
            Mnemonic::Leave => self.registers[RBP],
            _ => return None,
        };
        let Value::Stack { base, offset } = top else {
            return None;
        };
        match bounds.highest(base, offset) {
            Some((highest, true)) => {
                (highest < SLOT && highest + SLOT > 0).then_some(Touch::Popped)
            }
            Some((highest, false)) => (highest + SLOT > 0).then_some(Touch::Computed),
            None => Some(Touch::Computed),
        }
    }

    /// What is done with an address of the return address that a register holds.
    fn use_address(
        &self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
    ) -> Option<Touch> {
        let operand = |at: u32| {
            let is = at < instruction.op_count() && instruction.op_kind(at) == OpKind::Register;
            is.then(|| instruction.op_register(at))
        };
        let holds = |register: Option<Register>| {
            register.is_some_and(|register| is_slot(self.register(register)))
        };
        let (first, second) = (operand(0), operand(1));
        let is_whole = |register: Option<Register>| register.is_some_and(|r| r.size() == 8);
        match instruction.mnemonic() {
            Mnemonic::Mov if !holds(second) => None,
            Mnemonic::Mov if !is_whole(second) => Some(Touch::Computed),
            Mnemonic::Mov if first.is_some() => None,
            Mnemonic::Mov => match self.place(instruction) {
                Some(super::Place::Stack(..)) => None,
                _ => Some(Touch::HandedOut),
            },
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And => {
                let moves_stack = first == Some(Register::RSP);
                let known = instruction.try_immediate(1).is_ok() && is_whole(first);
                let first = holds(first) && !known && !moves_stack;
                (first || holds(second)).then_some(Touch::Computed)
            }
            Mnemonic::Lea
            | Mnemonic::Push
            | Mnemonic::Pop
            | Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Call
            | Mnemonic::Jmp
            | Mnemonic::Ret
            | Mnemonic::Leave => None,
            _ => {
                let explicit =
                    |register| (0..instruction.op_count()).any(|at| operand(at) == Some(register));
                let info = info.info(instruction);
                let mut used = info.used_registers().iter();
                let read = used.any(|used| {
                    let register = used.register();
                    let addresses = matches!(number(register), Some(RSP))
                        || register == instruction.memory_base()
                            && instruction.memory_index() == Register::None;
                    reads(used.access())
                        && is_slot(self.register(register))
                        && (explicit(register) || !addresses)
                });
                read.then_some(Touch::Computed)
            }
        }
    }
}
