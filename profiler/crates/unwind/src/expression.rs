//! What an expression of unwind information comes to, where that can be a rule.
//!
//! DWARF expression -> [`Value`], found by running it on values that are known only in part: a register
//! plus a number, the word there, the low bits of the pc. That covers what compilers, linkers and
//! hand-written assembly of common libraries emit (PLT entries, realigned stacks, frames whose CFA was
//! saved); everything else comes to nothing. Source: the DWARF standard, sections 2.5 and 6.4.2. Units:
//! bytes. Rules do not belong here.

use profiler_object::cursor::Cursor;

/// Most operations of an expression.
const MAX_OPERATIONS: usize = 64;
/// Most values on the stack.
const MAX_DEPTH: usize = 8;
/// DWARF's number of the pc (x86-64: "return address").
const REGISTER_PC: u8 = 16;

/// A value that depends on where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// This number.
    Number(i64),
    /// The frame's CFA plus a number.
    Cfa(i64),
    /// A register plus a number.
    Register { register: u8, offset: i64 },
    /// The word at a register plus a number, plus a number.
    Memory {
        register: u8,
        offset: i64,
        addend: i64,
    },
    /// The pc's low 4 bits.
    Low,
    /// `scale` if the pc's low 4 bits are at least `least`, else 0; plus a register, plus a number.
    Step { least: i64, scale: i64 },
    /// [`Value::Register`] plus [`Value::Step`] of 8.
    Plt {
        register: u8,
        offset: i64,
        least: i64,
    },
}

/// What the expression comes to. `cfa`: its stack begins with the CFA, as that of a register's rule does.
pub(super) fn evaluate(expression: &[u8], cfa: bool) -> Option<Value> {
    let mut stack = Stack::default();
    if cfa {
        stack.push(Value::Cfa(0))?;
    }
    let mut cursor = Cursor::new(expression, 0);
    for _ in 0..MAX_OPERATIONS {
        if cursor.is_at_end() {
            return stack.pop();
        }
        operate(&mut cursor, &mut stack)?;
    }
    None
}

fn operate(cursor: &mut Cursor<'_>, stack: &mut Stack) -> Option<()> {
    let operation = cursor.u8()?;
    let value = match operation {
        // DW_OP_lit*
        0x30..=0x4f => Value::Number(i64::from(operation - 0x30)),
        // DW_OP_const1u and so on
        0x08 => Value::Number(i64::from(cursor.u8()?)),
        0x09 => Value::Number(i64::from(cursor.u8()? as i8)),
        0x0a => Value::Number(i64::from(cursor.u16()?)),
        0x0b => Value::Number(i64::from(cursor.u16()? as i16)),
        0x0c => Value::Number(i64::from(cursor.u32()?)),
        0x0d => Value::Number(i64::from(cursor.u32()? as i32)),
        0x0e | 0x0f => Value::Number(cursor.u64()? as i64),
        0x10 => Value::Number(cursor.uleb()? as i64),
        0x11 => Value::Number(cursor.sleb()?),
        // DW_OP_breg*, DW_OP_bregx
        0x70..=0x8f => register(operation - 0x70, cursor.sleb()?),
        0x92 => {
            let number = u8::try_from(cursor.uleb()?).ok()?;
            register(number, cursor.sleb()?)
        }
        // DW_OP_deref
        0x06 => match stack.pop()? {
            Value::Register { register, offset } => Value::Memory {
                register,
                offset,
                addend: 0,
            },
            _ => return None,
        },
        // DW_OP_dup
        0x12 => {
            let top = stack.pop()?;
            stack.push(top)?;
            top
        }
        // DW_OP_plus, DW_OP_plus_uconst, DW_OP_minus
        0x22 => {
            let right = stack.pop()?;
            add(stack.pop()?, right)?
        }
        0x23 => {
            let number = Value::Number(cursor.uleb()? as i64);
            add(stack.pop()?, number)?
        }
        0x1c => match (stack.pop()?, stack.pop()?) {
            (Value::Number(number), left) => add(left, Value::Number(number.checked_neg()?))?,
            _ => return None,
        },
        // DW_OP_and
        0x1a => match (stack.pop()?, stack.pop()?) {
            (Value::Number(15), value) | (value, Value::Number(15)) if value == PC => Value::Low,
            _ => return None,
        },
        // DW_OP_ge
        0x2a => match (stack.pop()?, stack.pop()?) {
            (Value::Number(least), Value::Low) => Value::Step { least, scale: 1 },
            _ => return None,
        },
        // DW_OP_shl
        0x24 => match (stack.pop()?, stack.pop()?) {
            (Value::Number(bits @ 0..=32), Value::Step { least, scale: 1 }) => Value::Step {
                least,
                scale: 1 << bits,
            },
            _ => return None,
        },
        // DW_OP_nop
        0x96 => return Some(()),
        _ => return None,
    };
    stack.push(value)
}

const PC: Value = Value::Register {
    register: REGISTER_PC,
    offset: 0,
};

fn register(register: u8, offset: i64) -> Value {
    Value::Register { register, offset }
}

fn add(left: Value, right: Value) -> Option<Value> {
    let sum = match (left, right) {
        (value, Value::Number(number)) | (Value::Number(number), value) => match value {
            Value::Number(other) => Value::Number(other.checked_add(number)?),
            Value::Cfa(offset) => Value::Cfa(offset.checked_add(number)?),
            Value::Register { register, offset } => Value::Register {
                register,
                offset: offset.checked_add(number)?,
            },
            Value::Memory {
                register,
                offset,
                addend,
            } => Value::Memory {
                register,
                offset,
                addend: addend.checked_add(number)?,
            },
            Value::Plt {
                register,
                offset,
                least,
            } => Value::Plt {
                register,
                offset: offset.checked_add(number)?,
                least,
            },
            Value::Low | Value::Step { .. } => return None,
        },
        (Value::Register { register, offset }, Value::Step { least, scale: 8 })
        | (Value::Step { least, scale: 8 }, Value::Register { register, offset }) => Value::Plt {
            register,
            offset,
            least,
        },
        _ => return None,
    };
    Some(sum)
}

#[derive(Default)]
struct Stack {
    values: [Option<Value>; MAX_DEPTH],
    len: usize,
}

impl Stack {
    fn push(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.len)? = Some(value);
        self.len += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<Value> {
        self.len = self.len.checked_sub(1)?;
        self.values[self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_shapes_come_to_values() {
        // breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let expected = Value::Plt {
            register: 7,
            offset: 8,
            least: 11,
        };
        assert_eq!(evaluate(&plt, false), Some(expected));
        // breg6 -8; deref
        let saved = Value::Memory {
            register: 6,
            offset: -8,
            addend: 0,
        };
        assert_eq!(evaluate(&[0x76, 0x78, 6], false), Some(saved));
        // bregx 7 64; deref; lit8; plus; const1s -3; plus; lit1; minus; nop
        let bytes = [
            0x92, 7, 0xc0, 0, 6, 0x38, 0x22, 0x09, 0xfd, 0x22, 0x31, 0x1c, 0x96,
        ];
        let saved = Value::Memory {
            register: 7,
            offset: 64,
            addend: 4,
        };
        assert_eq!(evaluate(&bytes, false), Some(saved));
        // plus_uconst 16, on the CFA
        assert_eq!(evaluate(&[0x23, 16], true), Some(Value::Cfa(16)));
        assert_eq!(evaluate(&[0x23, 16], false), None);
    }

    #[test]
    fn what_depends_on_more_is_nothing() {
        let unknown: [&[u8]; 7] = [
            &[],
            // breg7 0; deref; deref
            &[0x77, 0, 6, 6],
            // breg7 0; breg9 0; plus
            &[0x77, 0, 0x79, 0, 0x22],
            // breg7, cut off
            &[0x77],
            // more values than the stack holds
            &[0x31; 9],
            // an operation that there is not
            &[0xff],
            // lit1; shl, of too few
            &[0x31, 0x24],
        ];
        for expression in unknown {
            assert_eq!(evaluate(expression, false), None, "{expression:?}");
        }
        assert_eq!(evaluate(&[0x96; 1000], true), None);
    }
}
