//! The System V convention, and what others share of it.
//!
//! Types -> [`Passed`]: parts of values in six integer and eight vector registers, then on the
//! stack. Source: the System V ABI for x86-64, version 1.0, chapter 3.2.3, and the Itanium C++ ABI,
//! chapter 3.1.

use profiler_common::call::*;

use super::super::location::{Address, Location, Word};
use super::super::types::{Kind, Struct, Type};
use super::{Class, Part, Passed, Placed, STACK, Wish, in_words, memory, scalars};

/// Integer registers of System V, in order.
const SYSTEM_V: [u8; 6] = [
    REGISTER_RDI,
    REGISTER_RSI,
    REGISTER_RDX,
    REGISTER_RCX,
    REGISTER_R8,
    REGISTER_R9,
];
/// Vector registers for arguments.
const VECTORS: usize = 8;

/// System V and those that are like it: parts in six and eight registers, then the stack.
pub(super) fn c_like<'t>(
    parameters: impl Iterator<Item = &'t Type>,
    result: Option<&'t Type>,
    wish_of: fn(&Type) -> Wish,
    wish_of_result: fn(&Type) -> Wish,
) -> Placed {
    let returned = match result.map(|ty| (ty, wish_of_result(ty))) {
        None => None,
        Some((_, Wish::Nothing)) => Some(Passed::Nothing),
        Some((_, Wish::Parts(parts) | Wish::Each(parts))) => Some(returned_in_registers(&parts)),
        // The caller gives the address, the function gives it back.
        Some((_, Wish::Stack | Wish::Address)) => Some(memory(Address::of(REGISTER_RAX, 0))),
        Some((_, Wish::Extended)) => Some(Passed::Float),
        Some((_, Wish::Unknown)) => Some(Passed::Unknown),
    };
    let hidden = matches!(returned, Some(Passed::At(Location::Memory(_))));
    let lost = returned == Some(Passed::Unknown);
    let mut registers = Registers {
        integers: usize::from(hidden),
        vectors: 0,
        stack: STACK,
        // Whether there is a hidden argument before the others is not known.
        lost,
    };
    Placed {
        parameters: parameters
            .map(|ty| registers.pass(ty, wish_of(ty)))
            .collect(),
        results: returned.into_iter().collect(),
    }
}

struct Registers {
    integers: usize,
    vectors: usize,
    stack: u64,
    lost: bool,
}

impl Registers {
    fn pass(&mut self, ty: &Type, wish: Wish) -> Passed {
        if self.lost {
            return Passed::Unknown;
        }
        match wish {
            Wish::Nothing => Passed::Nothing,
            Wish::Parts(parts) => self.pass_parts(ty, &parts),
            Wish::Each(parts) => self.pass_each(&parts),
            Wish::Stack | Wish::Extended => self.pass_on_stack(ty.size, ty.align),
            Wish::Address => {
                let pointer = [Part {
                    float: false,
                    offset: 0,
                    size: 8,
                }];
                let pointer = match self.pass_parts(&Type::new("", 8, Kind::Word), &pointer) {
                    Passed::At(Location::Words(words)) => words.first().map(|word| word.word),
                    Passed::At(Location::Memory(address)) => address.followed(),
                    _ => None,
                };
                pointer.map_or(Passed::Unknown, memory)
            }
            Wish::Unknown => {
                // Where it ends and the next begins is not known either.
                self.lost = true;
                Passed::Unknown
            }
        }
    }

    fn pass_parts(&mut self, ty: &Type, parts: &[Part]) -> Passed {
        let integers = parts.iter().filter(|part| !part.float).count();
        let vectors = parts.len() - integers;
        if self.integers + integers > SYSTEM_V.len() || self.vectors + vectors > VECTORS {
            return self.pass_on_stack(ty.size, ty.align);
        }
        let free = &SYSTEM_V[self.integers..];
        let in_order = parts.iter().filter(|part| !part.float).zip(free);
        let words = in_order.map(|(part, &register)| part.word(register));
        let words: Vec<Word> = words.collect();
        self.integers += integers;
        self.vectors += vectors;
        in_words(words)
    }

    fn pass_each(&mut self, parts: &[Part]) -> Passed {
        let mut words = Vec::new();
        for &part in parts {
            let ty = Type::new("", part.size, Kind::Word);
            match self.pass_parts(&ty, &[Part { offset: 0, ..part }]) {
                Passed::At(Location::Words(found)) => words.extend(found.iter().map(|word| Word {
                    offset: part.offset,
                    ..*word
                })),
                Passed::At(Location::Memory(address)) => {
                    words.extend(address.followed().map(|word| Word {
                        word,
                        offset: part.offset,
                        size: part.size.min(8),
                    }));
                }
                _ => {}
            }
        }
        in_words(words)
    }

    fn pass_on_stack(&mut self, size: u64, align: u64) -> Passed {
        let align = align.clamp(8, 1 << 12).next_power_of_two();
        let from_frame = (self.stack - STACK).next_multiple_of(align);
        let at = STACK + from_frame;
        match i32::try_from(at) {
            Ok(offset) if size < 1 << 20 => {
                self.stack = at + size.next_multiple_of(8);
                memory(Address::of(REGISTER_RSP, offset))
            }
            _ => {
                self.lost = true;
                Passed::Unknown
            }
        }
    }
}

fn returned_in_registers(parts: &[Part]) -> Passed {
    let integers = parts.iter().filter(|part| !part.float);
    let words = integers.zip([REGISTER_RAX, REGISTER_RDX]);
    in_words(words.map(|(part, register)| part.word(register)).collect())
}

/// System V: the classes of the eight bytes that a value of up to 16 bytes has.
pub(super) fn system_v(ty: &Type) -> Wish {
    match &ty.kind {
        Kind::Struct(Struct {
            by_address: true, ..
        }) => return Wish::Address,
        Kind::Unknown => return Wish::Unknown,
        Kind::Extended => return Wish::Stack,
        // One register, however wide.
        Kind::Vector => {
            return Wish::Parts(vec![Part {
                float: true,
                offset: 0,
                size: ty.size,
            }]);
        }
        Kind::Struct(Struct { partial: true, .. }) if ty.size <= 16 => return Wish::Unknown,
        _ if ty.size > 16 => return Wish::Stack,
        _ => {}
    }
    let mut all = Vec::new();
    if scalars(ty, 0, 0, &mut all).is_none() {
        return Wish::Unknown;
    }
    let mut classes = [None; 2];
    for scalar in &all {
        let aligned = scalar.size > 0 && scalar.offset.is_multiple_of(scalar.size.min(8));
        let Some(end) = scalar.offset.checked_add(scalar.size) else {
            return Wish::Unknown;
        };
        if scalar.class == Class::Extended || (!scalar.bits && !aligned) || end > 16 {
            return Wish::Stack;
        }
        let words = scalar.offset / 8..end.div_ceil(8);
        for class in &mut classes[words.start as usize..words.end as usize] {
            let float = scalar.class == Class::Float;
            *class = Some(class.unwrap_or(true) && float);
        }
    }
    let part = |(index, class): (usize, &Option<bool>)| {
        let offset = index as u64 * 8;
        let size = ty.size.saturating_sub(offset).min(8);
        class.map(|float| Part {
            float,
            offset,
            size,
        })
    };
    let parts: Vec<Part> = classes.iter().enumerate().filter_map(part).collect();
    if parts.is_empty() {
        return Wish::Nothing;
    }
    Wish::Parts(parts)
}

pub(super) fn system_v_result(ty: &Type) -> Wish {
    match ty.kind {
        Kind::Extended => Wish::Extended,
        Kind::Complex if ty.size > 16 => Wish::Extended,
        _ => system_v(ty),
    }
}
