//! What is known of registers and stack slots at one place of a function.
//!
//! Instruction by instruction, a [`State`] follows three things: where the stack pointer is in
//! relation to the entry, what a switch's index is bounded by, and what address a jump goes to.
//! Everything else is a value of unknown content that can be recognised when it is met again.
//! Offsets are bytes.
//!
//! What does not belong here: control flow.

mod memory;
mod stack_use;
mod value;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

pub(super) use stack_use::Bounds;
use value::ENTRY;
pub(super) use value::{Table, Value};

/// Where a remembered piece of memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Stack(u64, i64),
    Behind(u64, i64),
    At(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    place: Place,
    size: u8,
    value: Value,
}

/// Registers and memory at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    registers: [Value; 16],
    slots: Vec<Slot>,
    /// The last comparison with a number: the value's id, the number.
    compared: Option<(u64, u64)>,
    /// Nothing leads here but an exception, as far as is known.
    pub(super) landing: bool,
}

const RSP: usize = 4;
const RBP: usize = 5;
/// Registers that a call may change: rax, rcx, rdx, rsi, rdi, r8 to r11.
const SCRATCH: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

fn defined(address: u64, register: usize) -> u64 {
    address.wrapping_mul(64).wrapping_add(32 + register as u64)
}

fn joined(address: u64, register: usize) -> u64 {
    address.wrapping_mul(64).wrapping_add(register as u64)
}

fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

impl State {
    /// At the first instruction of a function.
    pub(super) fn entry() -> State {
        let mut registers = [Value::Computed(0); 16];
        for (at, register) in registers.iter_mut().enumerate() {
            *register = Value::Plain(at as u64);
        }
        registers[RSP] = Value::Stack {
            base: ENTRY,
            offset: 0,
        };
        State {
            registers,
            slots: Vec::new(),
            compared: None,
            landing: false,
        }
    }

    /// Where nothing is known.
    pub(super) fn unknown(address: u64) -> State {
        let mut state = State::entry();
        for (at, register) in state.registers.iter_mut().enumerate() {
            *register = Value::Computed(joined(address, at));
        }
        state
    }

    /// Bytes from the stack pointer at the entry down to the stack pointer now.
    pub(super) fn height(&self) -> Option<i64> {
        match self.registers[RSP] {
            Value::Stack {
                base: ENTRY,
                offset,
            } => Some(-offset),
            _ => None,
        }
    }

    /// Whether the stack pointer points to this thread's stack, as far as is known.
    pub(super) fn on_stack(&self) -> bool {
        matches!(self.registers[RSP], Value::Stack { .. })
    }

    /// Keeps what holds here and in `other` too, which comes to `address`. Says whether anything
    /// changed.
    pub(super) fn meet(&mut self, other: &State, address: u64) -> bool {
        let mut changed = false;
        for at in 0..16 {
            if self.registers[at] == other.registers[at] {
                continue;
            }
            let met = self.registers[at].meet(other.registers[at], joined(address, at));
            changed |= met != self.registers[at];
            self.registers[at] = met;
        }
        let before = self.slots.len();
        // What is remembered on both ways most often was there before they parted, in the same order.
        let mut next = 0;
        self.slots.retain(|slot| {
            let here = |there: &Slot| there.place == slot.place;
            let at = match other.slots.get(next).is_some_and(here) {
                true => Some(next),
                false => other.slots.iter().position(here),
            };
            let Some(at) = at else {
                return false;
            };
            next = at + 1;
            // A slot whose content differs is of no more use than one that is not remembered.
            other.slots[at] == *slot
        });
        changed |= self.slots.len() != before;
        if self.compared.is_some() && self.compared != other.compared {
            self.compared = None;
            changed = true;
        }
        changed
    }

    /// What a call leaves of it.
    pub(super) fn after_call(&mut self, address: u64) {
        for at in SCRATCH {
            self.registers[at] = Value::Plain(defined(address, at));
        }
        let stack = self.registers[RSP];
        self.slots.retain(|slot| match (slot.place, stack) {
            (Place::Stack(base, at), Value::Stack { base: now, offset }) => {
                base != now || at >= offset
            }
            (Place::Stack(..), _) => true,
            _ => false,
        });
        self.compared = None;
    }

    /// What the last comparison says of the value when the conditional jump at `mnemonic` is taken,
    /// or isn't.
    pub(super) fn bounded(&mut self, mnemonic: Mnemonic, taken: bool) {
        let Some((id, limit)) = self.compared else {
            return;
        };
        let max = match (mnemonic, taken) {
            (Mnemonic::Ja, false) | (Mnemonic::Jbe, true) => limit,
            (Mnemonic::Jae, false) | (Mnemonic::Jb, true) => match limit.checked_sub(1) {
                Some(max) => max,
                None => return,
            },
            _ => return,
        };
        let bound = |value: &mut Value| {
            if value.id() == Some(id) {
                *value = Value::Index {
                    id,
                    max,
                    scale: 1,
                    exact: true,
                };
            }
        };
        self.registers.iter_mut().for_each(bound);
        self.slots
            .iter_mut()
            .map(|slot| &mut slot.value)
            .for_each(bound);
    }

    /// Where an indirect jump goes, if its value is known.
    pub(super) fn jump_value(
        &mut self,
        instruction: &Instruction,
        data: &dyn Fn(u64, usize) -> Option<u64>,
    ) -> Value {
        self.operand(instruction, 0, data)
    }

    pub(super) fn register(&self, register: Register) -> Option<Value> {
        Some(self.registers[number(register)?])
    }

    fn set(&mut self, register: Register, value: Value) {
        if let Some(at) = number(register) {
            self.registers[at] = value;
        }
    }

    /// The state behind `instruction`, which neither jumps nor calls.
    pub(super) fn step(
        &mut self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        data: &dyn Fn(u64, usize) -> Option<u64>,
    ) {
        let address = instruction.ip();
        let first = instruction.op_kind(0);
        let to_register = instruction.op_count() > 0 && first == OpKind::Register;
        let target = if to_register {
            instruction.op0_register()
        } else {
            Register::None
        };
        let wide = target.size() == 8;
        if instruction.rflags_modified() != 0 {
            self.compared = None;
        }
        match instruction.mnemonic() {
            Mnemonic::Push | Mnemonic::Pushfq => {
                let value =
                    (instruction.op_count() > 0).then(|| self.operand(instruction, 0, data));
                self.lower(i64::from(-instruction.stack_pointer_increment()));
                let top = self.top();
                self.store(top, 8, value);
            }
            Mnemonic::Pop if wide => {
                let value = self.pop(address);
                self.set(target, value);
            }
            Mnemonic::Popfq => {
                self.pop(address);
            }
            Mnemonic::Leave => {
                self.registers[RSP] = self.registers[RBP];
                self.registers[RBP] = self.pop(address);
            }
            Mnemonic::Mov | Mnemonic::Movsxd | Mnemonic::Movzx | Mnemonic::Movsx
                if to_register && number(target).is_some() && target.size() >= 4 =>
            {
                let value = self.operand(instruction, 1, data);
                self.set(target, value);
            }
            // Widen eax: what is followed is never negative.
            Mnemonic::Cdqe => {}
            Mnemonic::Mov if first == OpKind::Memory => {
                let value = self.operand(instruction, 1, data);
                let place = self.place(instruction);
                self.store(place, instruction.memory_size().size(), Some(value));
            }
            Mnemonic::Lea if wide => {
                let value = self.address(instruction);
                self.set(target, value);
            }
            Mnemonic::Add | Mnemonic::Sub if wide => {
                let value = self.added(instruction, data);
                self.set(target, value);
            }
            Mnemonic::And if to_register && target.size() >= 4 => {
                let value = match (self.register(target), instruction.try_immediate(1)) {
                    // The stack pointer aligned: a new base.
                    (Some(Value::Stack { .. }), Ok(mask)) if mask as i64 <= 0 => Value::Stack {
                        base: address,
                        offset: 0,
                    },
                    (_, Ok(max)) if max < 1 << 16 => Value::Index {
                        id: defined(address, 0),
                        max,
                        scale: 1,
                        exact: true,
                    },
                    _ => Value::Computed(defined(address, 0)),
                };
                self.set(target, value);
            }
            Mnemonic::Shl if wide => {
                let value = match (self.register(target), instruction.try_immediate(1)) {
                    (
                        Some(Value::Index {
                            id,
                            max,
                            scale,
                            exact,
                        }),
                        Ok(by @ 0..=3),
                    ) => Value::Index {
                        id,
                        max,
                        scale: scale << by,
                        exact,
                    },
                    (Some(_), Ok(by @ 1..=3)) => Value::Index {
                        id: defined(address, 0),
                        max: u64::MAX,
                        scale: 1 << by,
                        exact: false,
                    },
                    _ => Value::Computed(defined(address, 0)),
                };
                self.set(target, value);
            }
            Mnemonic::Xor
                if to_register
                    && instruction.op1_kind() == OpKind::Register
                    && instruction.op1_register() == target =>
            {
                self.set(target, Value::Constant(0));
            }
            Mnemonic::Xchg if wide && instruction.op1_kind() == OpKind::Register => {
                let (one, other) = (target, instruction.op1_register());
                if let (Some(first), Some(second)) = (self.register(one), self.register(other)) {
                    self.set(one, second);
                    self.set(other, first);
                }
            }
            // The C library scrambles the pointers to functions that it keeps.
            Mnemonic::Xor | Mnemonic::Ror
                if wide
                    && (instruction.mnemonic() == Mnemonic::Ror
                        || instruction.segment_prefix() == Register::FS)
                    && matches!(self.register(target), Some(Value::Plain(_))) =>
            {
                self.set(target, Value::Plain(defined(address, 0)));
            }
            Mnemonic::Cmp => self.compare(instruction, data),
            _ => self.other(instruction, info, data),
        }
    }

    /// `add` and `sub` of 8 bytes.
    fn added(
        &mut self,
        instruction: &Instruction,
        data: &dyn Fn(u64, usize) -> Option<u64>,
    ) -> Value {
        let target = instruction.op0_register();
        let one = self.register(target);
        let other = self.operand(instruction, 1, data);
        let minus = instruction.mnemonic() == Mnemonic::Sub;
        if minus && let (Some(id), Value::Constant(number)) = (one.and_then(Value::id), other) {
            self.compared = Some((id, number));
        }
        match (one, other, minus) {
            (Some(Value::Stack { base, offset }), Value::Constant(number), _) => {
                let number = if minus {
                    (number as i64).wrapping_neg()
                } else {
                    number as i64
                };
                Value::Stack {
                    base,
                    offset: offset.wrapping_add(number),
                }
            }
            // A part of the stack whose size is known only to the program.
            (Some(Value::Stack { .. }), _, _) if target == Register::RSP => Value::Stack {
                base: instruction.ip(),
                offset: 0,
            },
            (Some(Value::Entry(table)), Value::Constant(base), false)
            | (Some(Value::Constant(base)), Value::Entry(table), false)
                if table.width == 4 =>
            {
                Value::Target(table, base)
            }
            (Some(Value::Constant(one)), Value::Constant(other), false) => {
                Value::Constant(one.wrapping_add(other))
            }
            _ => Value::Computed(defined(instruction.ip(), 0)),
        }
    }

    fn compare(&mut self, instruction: &Instruction, data: &dyn Fn(u64, usize) -> Option<u64>) {
        self.compared = None;
        let Ok(limit) = instruction.try_immediate(1) else {
            return;
        };
        let value = self.operand(instruction, 0, data);
        if instruction.op0_kind() == OpKind::Memory {
            // It will be loaded again.
            let place = self.place(instruction);
            if !self.slots.iter().any(|slot| Some(slot.place) == place) {
                let value = matches!(value, Value::Plain(_)).then_some(value);
                self.remember(place, instruction.memory_size().size(), value);
            }
        }
        self.compared = value.id().map(|id| (id, limit));
    }

    /// Any other instruction: what it writes is new.
    fn other(
        &mut self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        data: &dyn Fn(u64, usize) -> Option<u64>,
    ) {
        // A subtraction of 4 bytes compares, too.
        if instruction.mnemonic() == Mnemonic::Sub
            && instruction.op0_kind() == OpKind::Register
            && let Ok(limit) = instruction.try_immediate(1)
        {
            self.compared = self
                .operand(instruction, 0, data)
                .id()
                .map(|id| (id, limit));
        }
        let address = instruction.ip();
        let info = info.info(instruction);
        let writes = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        if info
            .used_memory()
            .iter()
            .any(|memory| writes(memory.access()))
        {
            let size = instruction.memory_size().size().max(8);
            let explicit =
                (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
            let place = if explicit {
                self.place(instruction)
            } else {
                None
            };
            self.store(place, size, None);
        }
        for used in info.used_registers() {
            let Some(at) = number(used.register()).filter(|_| writes(used.access())) else {
                continue;
            };
            self.registers[at] = if at == RSP {
                Value::Computed(defined(address, RSP))
            } else {
                Value::Computed(defined(address, at))
            };
        }
    }
}
