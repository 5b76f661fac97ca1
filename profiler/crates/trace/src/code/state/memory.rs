//! Operands, addresses and the memory that is remembered.
//!
//! What does not belong here: what instructions do with them.

use iced_x86::{Instruction, OpKind, Register};

use super::value::{Table, Value};
use super::{Place, RSP, Slot, State, defined};

/// Most stack slots and other memory that is remembered.
const MAX_SLOTS: usize = 96;

/// An address as a sum.
#[derive(Clone, Copy, Debug)]
struct Sum {
    /// Its only part that is neither a number nor an index.
    base: Option<Value>,
    constant: u64,
    index: Option<(u64, u64, bool)>,
    /// It has parts that can't be told apart.
    other: bool,
}

impl State {
    fn sum(&self, instruction: &Instruction) -> Sum {
        let mut sum = Sum {
            base: None,
            constant: instruction.memory_displacement64(),
            index: None,
            other: false,
        };
        if instruction.is_ip_rel_memory_operand() {
            sum.constant = instruction.ip_rel_memory_address();
            return sum;
        }
        // The others have no effect on addresses.
        if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
            sum.other = true;
        }
        let scale = u64::from(instruction.memory_index_scale());
        for (register, scale) in [
            (instruction.memory_base(), 1),
            (instruction.memory_index(), scale),
        ] {
            if register == Register::None {
                continue;
            }
            match self.register(register) {
                Some(Value::Constant(number)) => {
                    sum.constant = sum.constant.wrapping_add(number.wrapping_mul(scale));
                }
                Some(Value::Index {
                    max,
                    scale: inner,
                    exact,
                    ..
                }) if sum.index.is_none() && (scale != 1 || inner != 1) => {
                    sum.index = Some((max, inner.saturating_mul(scale), exact));
                }
                Some(Value::Index { max, exact, .. }) if sum.index.is_none() => {
                    sum.index = Some((max, 1, exact));
                }
                Some(value) if scale == 1 && sum.base.is_none() => sum.base = Some(value),
                Some(_) if sum.index.is_none() => {
                    // An index that nothing bounds: the table's own content has to.
                    sum.index = Some((u64::MAX, scale, false));
                }
                _ => sum.other = true,
            }
        }
        sum
    }

    pub(super) fn place(&self, instruction: &Instruction) -> Option<Place> {
        let sum = self.sum(instruction);
        if sum.other || sum.index.is_some() {
            return None;
        }
        match sum.base {
            None => Some(Place::At(sum.constant)),
            Some(Value::Stack { base, offset }) => {
                Some(Place::Stack(base, offset.wrapping_add(sum.constant as i64)))
            }
            Some(Value::Plain(id) | Value::Computed(id)) => {
                Some(Place::Behind(id, sum.constant as i64))
            }
            Some(_) => None,
        }
    }

    /// What is read from memory.
    pub(super) fn load(
        &self,
        instruction: &Instruction,
        size: usize,
        data: &dyn Fn(u64, usize) -> Option<u64>,
    ) -> Value {
        let fresh = defined(instruction.ip(), 16);
        if let Some(place) = self.place(instruction) {
            let slot = self
                .slots
                .iter()
                .find(|slot| slot.place == place && usize::from(slot.size) >= size);
            return match slot.map(|slot| slot.value) {
                Some(Value::Stack { .. }) if size < 8 => Value::Computed(fresh),
                Some(value) => value,
                None => Value::Plain(fresh),
            };
        }
        let sum = self.sum(instruction);
        // A member whose offset is a variable: entries of tables lie farther apart.
        if let (Some(_), Some((u64::MAX, 1, _)), false) = (sum.base, sum.index, sum.other) {
            return Value::Plain(fresh);
        }
        let (None, Some((max, stride, exact)), false) = (sum.base, sum.index, sum.other) else {
            return Value::Computed(fresh);
        };
        let address = sum.constant;
        match size {
            4 | 8 => Value::Entry(Table {
                address,
                width: size as u8,
                stride,
                max,
                exact,
            }),
            // A table of indices into another table.
            1 | 2 => {
                if !exact || max > 0xffff {
                    return Value::Computed(fresh);
                }
                let entries = (0..=max).map(|at| data(address.wrapping_add(at * stride), size));
                match entries
                    .collect::<Option<Vec<_>>>()
                    .and_then(|all| all.into_iter().max())
                {
                    Some(max) => Value::Index {
                        id: fresh,
                        max,
                        scale: 1,
                        exact,
                    },
                    None => Value::Computed(fresh),
                }
            }
            _ => Value::Computed(fresh),
        }
    }

    pub(super) fn store(&mut self, place: Option<Place>, size: usize, value: Option<Value>) {
        match place {
            Some(Place::Stack(base, at)) => {
                let end = at.wrapping_add(size as i64);
                self.slots.retain(|slot| match slot.place {
                    Place::Stack(other, start) => {
                        other != base
                            || start >= end
                            || start.wrapping_add(i64::from(slot.size)) <= at
                    }
                    _ => true,
                });
            }
            // Compilers keep no address of a slot that holds a saved register, so that only other
            // memory can be meant.
            _ => self
                .slots
                .retain(|slot| matches!(slot.place, Place::Stack(..))),
        }
        self.remember(place, size, value);
    }

    pub(super) fn remember(&mut self, place: Option<Place>, size: usize, value: Option<Value>) {
        if let (Some(place), Some(value), Ok(size @ 1..=8)) = (place, value, u8::try_from(size))
            && self.slots.len() < MAX_SLOTS
        {
            self.slots.push(Slot { place, size, value });
        }
    }

    /// The value of an operand that is read.
    pub(super) fn operand(
        &mut self,
        instruction: &Instruction,
        at: u32,
        data: &dyn Fn(u64, usize) -> Option<u64>,
    ) -> Value {
        match instruction.op_kind(at) {
            OpKind::Register => {
                let register = instruction.op_register(at);
                let value = self.register(register);
                match (value, register.size()) {
                    // Half a stack address is none.
                    (Some(Value::Stack { .. }), ..8) | (None, _) => {
                        Value::Computed(defined(instruction.ip(), 17))
                    }
                    (Some(value), _) => value,
                }
            }
            OpKind::Memory => {
                let size = instruction.memory_size().size();
                self.load(instruction, size, data)
            }
            _ => match instruction.try_immediate(at) {
                Ok(number) => Value::Constant(number),
                Err(_) => Value::Computed(defined(instruction.ip(), 17)),
            },
        }
    }

    /// Moves the stack pointer down by `bytes`.
    pub(super) fn lower(&mut self, bytes: i64) {
        if let Value::Stack { base, offset } = self.registers[RSP] {
            self.registers[RSP] = Value::Stack {
                base,
                offset: offset.wrapping_sub(bytes),
            };
        }
    }

    pub(super) fn top(&self) -> Option<Place> {
        match self.registers[RSP] {
            Value::Stack { base, offset } => Some(Place::Stack(base, offset)),
            _ => None,
        }
    }

    pub(super) fn pop(&mut self, address: u64) -> Value {
        let top = self.top();
        let value = self
            .slots
            .iter()
            .find(|slot| Some(slot.place) == top && slot.size == 8);
        let value = value.map_or(Value::Plain(defined(address, 16)), |slot| slot.value);
        self.lower(-8);
        value
    }

    /// `lea`.
    pub(super) fn address(&self, instruction: &Instruction) -> Value {
        let sum = self.sum(instruction);
        let unknown = Value::Computed(defined(instruction.ip(), 0));
        match (sum.base, sum.index, sum.other) {
            (_, _, true) => unknown,
            (None, None, _) => Value::Constant(sum.constant),
            (Some(Value::Stack { base, offset }), None, _) => Value::Stack {
                base,
                offset: offset.wrapping_add(sum.constant as i64),
            },
            (Some(value), None, _) if sum.constant == 0 => value,
            (None, Some((max, scale, exact)), _) if sum.constant == 0 => Value::Index {
                id: defined(instruction.ip(), 0),
                max,
                scale,
                exact,
            },
            (Some(Value::Entry(table)), None, _) if table.width == 4 => {
                Value::Target(table, sum.constant)
            }
            _ => unknown,
        }
    }
}
