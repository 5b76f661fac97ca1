//! Where a parameter lies at the first instruction of its function, where that is said.
//!
//! Location lists and expressions -> [`Location`]. Compilers that optimise say it exactly, also of
//! functions whose parameters they have rearranged; without optimisation it is the place that the
//! first instructions copy a parameter to, which is of no use at an entry and passed over. Source:
//! the DWARF 5 standard, chapter 2.6; numbers of registers: the System V ABI, figure 3.36.
//!
//! What does not belong here: what the calling convention says (`convention`).

use gimli::constants;
use gimli::read::{AttributeValue, Expression, Operation};
use profiler_common::call::*;

use super::reader::{Node, Reader};
use super::units::{Slice, address_of};

/// Most steps of an expression that are looked at.
const MAX_STEPS: usize = 16;
/// Most entries of a list that are looked at.
const MAX_ENTRIES: usize = 64;

/// Where a value lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In words: registers, as a rule.
    Words(Vec<Word>),
    /// In memory.
    Memory(Address),
}

/// A part of a value that is in a register, or in a word on the stack like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The word, as [`FETCH_WORD`] fetches it.
    pub(super) word: Address,
    /// Offset of the part in the value, in bytes.
    pub(super) offset: u64,
    /// Its length in bytes, at most 8.
    pub(super) size: u64,
}

/// An address: a register, and what is added and followed (see [`Fetch`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// A `REGISTER_*` constant.
    pub(super) register: u8,
    /// Times to follow.
    pub(super) derefs: u8,
    /// What is added before each step and at the end.
    pub(super) offsets: [i32; 3],
}

impl Address {
    /// What a register points to, so many bytes on.
    pub(super) fn of(register: u8, offset: i32) -> Address {
        Address {
            register,
            derefs: 0,
            offsets: [offset, 0, 0],
        }
    }

    /// So many bytes on.
    pub(super) fn plus(mut self, offset: u32) -> Option<Address> {
        let last = &mut self.offsets[usize::from(self.derefs)];
        *last = last.checked_add(i32::try_from(offset).ok()?)?;
        Some(self)
    }

    /// What the word at this address points to; none if that is too many steps.
    pub(super) fn followed(mut self) -> Option<Address> {
        if usize::from(self.derefs) + 1 >= self.offsets.len() {
            return None;
        }
        self.derefs += 1;
        Some(self)
    }

    /// A fetch from there.
    pub(super) fn fetch(self, kind: u8, size: u16) -> Fetch {
        Fetch {
            kind,
            register: self.register,
            derefs: self.derefs,
            size,
            offsets: self.offsets,
            ..Fetch::default()
        }
    }
}

/// Where `parameter` lies at the first instruction of `function`.
pub(super) fn at_entry<'d>(
    reader: &Reader<'_, 'd>,
    function: &Node<'d>,
    parameter: &Node<'d>,
) -> Option<Location> {
    let value = parameter.entry.attr_value(constants::DW_AT_location)?;
    if let AttributeValue::Exprloc(expression) = value {
        return place(function, parameter, expression, false);
    }
    let dwarf = reader.dwarf();
    let start = address_of(
        dwarf,
        &function.unit,
        &function.entry,
        constants::DW_AT_low_pc,
    )?;
    let mut list = dwarf.attr_locations(&parameter.unit, value).ok()??;
    for _ in 0..MAX_ENTRIES {
        let entry = list.next().ok()??;
        if (entry.range.begin..entry.range.end).contains(&start) {
            return place(function, parameter, entry.data, true);
        }
    }
    None
}

/// The place that an expression names, if it is meaningful at an entry. `exact`: it is said of the
/// first instruction, not of the whole function.
fn place<'d>(
    function: &Node<'d>,
    parameter: &Node<'d>,
    expression: Expression<Slice<'d>>,
    exact: bool,
) -> Option<Location> {
    let mut steps = expression.operations(parameter.unit.encoding());
    let mut words = Vec::new();
    let (mut memory, mut pending, mut offset) = (None, None, 0_u64);
    for _ in 0..MAX_STEPS {
        let Some(step) = steps.next().ok()? else {
            break;
        };
        match step {
            _ if memory.is_some() => return None,
            Operation::Register { register } if pending.is_none() => {
                pending = Some(argument_register(register.0)?);
            }
            Operation::RegisterOffset {
                register, offset, ..
            } => {
                let base = match register.0 {
                    // The stack pointer moves within the function.
                    7 if exact => REGISTER_RSP,
                    other => argument_register(other)?,
                };
                memory = Some(Address::of(base, i32::try_from(offset).ok()?));
            }
            Operation::FrameOffset { offset } if offset >= 0 && is_cfa(function) => {
                // From above the return address on: what the caller has put there.
                let offset = offset.checked_add(8)?;
                memory = Some(Address::of(REGISTER_RSP, i32::try_from(offset).ok()?));
            }
            Operation::Piece {
                size_in_bits,
                bit_offset: None | Some(0),
            } => {
                let size = size_in_bits / 8;
                if let Some(register) = pending.take() {
                    words.push(Word {
                        word: Address::of(register, 0),
                        offset,
                        size: size.min(8),
                    });
                }
                offset = offset.checked_add(size)?;
            }
            _ => return None,
        }
    }
    if let Some(register) = pending {
        words.push(Word {
            word: Address::of(register, 0),
            offset,
            size: 8,
        });
    }
    match memory {
        Some(address) if words.is_empty() => Some(Location::Memory(address)),
        None if !words.is_empty() => Some(Location::Words(words)),
        _ => None,
    }
}

/// Whether offsets in a frame count from the caller's stack pointer.
fn is_cfa(function: &Node<'_>) -> bool {
    let Some(AttributeValue::Exprloc(base)) =
        function.entry.attr_value(constants::DW_AT_frame_base)
    else {
        return false;
    };
    let mut steps = base.operations(function.unit.encoding());
    matches!(steps.next(), Ok(Some(Operation::CallFrameCFA)))
}

/// Registers that arguments come in, by their numbers in debug information.
fn argument_register(number: u16) -> Option<u8> {
    Some(match number {
        0 => REGISTER_RAX,
        1 => REGISTER_RDX,
        2 => REGISTER_RCX,
        3 => REGISTER_RBX,
        4 => REGISTER_RSI,
        5 => REGISTER_RDI,
        8 => REGISTER_R8,
        9 => REGISTER_R9,
        10 => REGISTER_R10,
        11 => REGISTER_R11,
        _ => return None,
    })
}
