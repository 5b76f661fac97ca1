//! Go's convention since 1.17, in registers.
//!
//! Types -> [`Passed`]. Source: Go's internal ABI specification, `abi-internal`.

use profiler_common::call::*;

use super::super::function::Parameter;
use super::super::location::{Address, Location, Word};
use super::super::types::{Field, Kind, Struct, Type};
use super::{Class, MAX_DEPTH, Passed, STACK, in_words, memory, scalars};

/// Integer registers of Go, in order, for arguments and for results.
const GO: [u8; 9] = [
    REGISTER_RAX,
    REGISTER_RBX,
    REGISTER_RCX,
    REGISTER_RDI,
    REGISTER_RSI,
    REGISTER_R8,
    REGISTER_R9,
    REGISTER_R10,
    REGISTER_R11,
];
/// Vector registers.
const VECTORS: usize = 15;

/// Go: every number in a register of its own; a value that does not fit in the registers that are
/// left goes to the stack whole.
pub(super) fn go<'t>(types: impl Iterator<Item = &'t Type>) -> Vec<Passed> {
    let (mut integers, mut vectors, mut stack, mut lost) = (0, 0, STACK, false);
    let mut place = |ty: &Type| {
        let mut all = Vec::new();
        if lost || scalars(ty, 0, 0, &mut all).is_none() {
            lost = true;
            return Passed::Unknown;
        }
        let wanted = all
            .iter()
            .filter(|scalar| scalar.class == Class::Integer)
            .count();
        let floats = all.len() - wanted;
        if ty.size == 0 {
            return Passed::Nothing;
        }
        if has_array(ty, 0) || integers + wanted > GO.len() || vectors + floats > VECTORS {
            let align = ty.align.clamp(1, 8).next_power_of_two();
            let from_frame = (stack - STACK)
                .checked_next_multiple_of(align)
                .unwrap_or(u64::MAX);
            let at = STACK.saturating_add(from_frame);
            stack = at.saturating_add(ty.size);
            let offset = i32::try_from(at).ok();
            return offset.map_or(Passed::Unknown, |at| memory(Address::of(REGISTER_RSP, at)));
        }
        let numbers = all.iter().filter(|scalar| scalar.class == Class::Integer);
        let words = numbers
            .zip(&GO[integers..])
            .map(|(scalar, &register)| Word {
                word: Address::of(register, 0),
                offset: scalar.offset,
                size: scalar.size.min(8),
            });
        let words = words.collect();
        integers += wanted;
        vectors += floats;
        in_words(words)
    };
    types.map(&mut place).collect()
}

pub(super) fn only_in_registers(passed: Passed) -> Passed {
    match passed {
        Passed::At(Location::Memory(_)) => Passed::Unknown,
        other => other,
    }
}

/// Arrays of more than one element are never in registers.
fn has_array(ty: &Type, depth: u32) -> bool {
    match &ty.kind {
        Kind::Array { element, count } => *count > 1 || has_array(element, depth + 1),
        Kind::Struct(parts) if depth < MAX_DEPTH => parts
            .fields
            .iter()
            .any(|field| has_array(&field.ty, depth + 1)),
        _ => false,
    }
}

/// Several results as the fields of one, if all are in registers.
pub(in super::super) fn together(
    results: &[Parameter],
    places: &[Passed],
) -> Option<(Type, Passed)> {
    let mut all = Struct::default();
    let (mut words, mut size) = (Vec::new(), 0_u64);
    for (result, passed) in results.iter().zip(places) {
        match passed {
            Passed::At(Location::Words(found)) => words.extend(found.iter().map(|word| Word {
                offset: word.offset.saturating_add(size),
                ..*word
            })),
            // Shown as what is not there.
            Passed::Float | Passed::Nothing => {}
            _ => return None,
        }
        all.fields.push(Field {
            name: result.name.clone(),
            offset: size,
            ty: result.ty.clone(),
            bits: None,
        });
        size = size.checked_add(result.ty.size.checked_next_multiple_of(8)?)?;
    }
    let ty = Type {
        size,
        align: 8,
        ..Type::new("results", size, Kind::Struct(all))
    };
    Some((ty, in_words(words)))
}
