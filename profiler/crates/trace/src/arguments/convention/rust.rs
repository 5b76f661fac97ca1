//! Rust's convention, of which nothing is promised: what rustc 1.95 was seen to do.
//!
//! Types -> how they want to be passed ([`Wish`]).

use super::super::types::{Kind, Struct, Type};
use super::{Class, MAX_DEPTH, Part, Wish, scalars};

/// How rustc sees a value.
enum Layout {
    Empty,
    Scalar(Part),
    Pair(Part, Part),
    Memory,
    Unknown,
}

/// Rust: numbers and pairs of numbers in registers, also those in layers of structures; anything
/// else of up to 8 bytes in one register, and the address of anything larger.
pub(super) fn rust(ty: &Type) -> Wish {
    match layout(ty, 0) {
        Layout::Empty => Wish::Nothing,
        Layout::Scalar(part) if part.size == 16 => Wish::Parts(halves(16)),
        Layout::Scalar(part) => Wish::Parts(vec![part]),
        Layout::Pair(first, second) => Wish::Each(vec![first, second]),
        Layout::Memory if ty.size <= 8 => Wish::Parts(halves(ty.size)),
        Layout::Memory => Wish::Address,
        Layout::Unknown if ty.size > 16 => Wish::Address,
        Layout::Unknown => Wish::Unknown,
    }
}

pub(super) fn rust_result(ty: &Type) -> Wish {
    match rust(ty) {
        // Three registers and more are never used.
        Wish::Parts(_) | Wish::Each(_) if ty.size > 16 => Wish::Address,
        other => other,
    }
}

fn halves(size: u64) -> Vec<Part> {
    let starts = (0..size.min(16)).step_by(8);
    let half = |offset| Part {
        float: false,
        offset,
        size: (size - offset).min(8),
    };
    starts.map(half).collect()
}

fn layout(ty: &Type, depth: u32) -> Layout {
    if depth > MAX_DEPTH {
        return Layout::Unknown;
    }
    let scalar = |float| {
        Layout::Scalar(Part {
            float,
            offset: 0,
            size: ty.size,
        })
    };
    match &ty.kind {
        _ if ty.size == 0 => Layout::Empty,
        Kind::Float => scalar(true),
        Kind::Vector | Kind::Extended | Kind::Complex => Layout::Unknown,
        Kind::Unknown => Layout::Unknown,
        Kind::Array { .. } => Layout::Memory,
        Kind::Struct(parts) if parts.partial => Layout::Unknown,
        Kind::Struct(parts) => fields_layout(ty, parts, depth),
        Kind::Variants { tag, variants } => variants_layout(ty, *tag, variants, depth),
        _ => scalar(false),
    }
}

fn fields_layout(ty: &Type, parts: &Struct, depth: u32) -> Layout {
    let mut fields: Vec<_> = parts
        .fields
        .iter()
        .filter(|field| field.ty.size > 0)
        .collect();
    fields.sort_by_key(|field| field.offset);
    match fields[..] {
        [] => Layout::Memory,
        [only] if only.offset == 0 && only.ty.size == ty.size => layout(&only.ty, depth + 1),
        [first, second] => {
            let (Layout::Scalar(a), Layout::Scalar(b)) =
                (layout(&first.ty, depth + 1), layout(&second.ty, depth + 1))
            else {
                return Layout::Memory;
            };
            pair(ty, (first.offset, a), (second.offset, b))
        }
        _ => Layout::Memory,
    }
}

/// Two numbers, if they are where a pair has them.
fn pair(ty: &Type, first: (u64, Part), second: (u64, Part)) -> Layout {
    if first.1.size > 16 || second.1.size > 16 {
        return Layout::Memory;
    }
    let align = |part: Part| part.size.next_power_of_two().clamp(1, 16);
    let expected = first.1.size.next_multiple_of(align(second.1));
    let len = (expected + second.1.size).next_multiple_of(align(first.1).max(align(second.1)));
    if first.0 != 0 || second.0 != expected || ty.size != len {
        return Layout::Memory;
    }
    let at = |offset, part: Part| Part { offset, ..part };
    Layout::Pair(at(first.0, first.1), at(second.0, second.1))
}

/// A tag and at most one number, the same in all variants that have one, is a pair as well; where
/// some value of the number itself is the tag, it is that number.
fn variants_layout(ty: &Type, tag: Option<(u64, u64)>, variants: &[Struct], depth: u32) -> Layout {
    if ty.size > 16 {
        return Layout::Memory;
    }
    if variants.iter().any(|variant| variant.partial) {
        return Layout::Unknown;
    }
    let number = |(offset, size)| {
        (
            offset,
            Part {
                float: false,
                offset: 0,
                size,
            },
        )
    };
    let mut payload: Option<(u64, Part)> = None;
    for field in variants.iter().flat_map(|variant| &variant.fields) {
        let mut inner = Vec::new();
        if scalars(&field.ty, field.offset, depth, &mut inner).is_none() {
            return Layout::Unknown;
        }
        inner.retain(|scalar| scalar.size > 0);
        match (inner[..].first(), inner.len()) {
            (None, _) => {}
            (Some(only), 1) => {
                let part = Part {
                    float: only.class == Class::Float,
                    offset: 0,
                    size: only.size,
                };
                match payload {
                    None => payload = Some((only.offset, part)),
                    Some((offset, known)) => {
                        if (offset, known.float, known.size) != (only.offset, part.float, part.size)
                        {
                            return Layout::Memory;
                        }
                    }
                }
            }
            // Which of several numbers makes it a pair is more than can be told from here.
            (Some(_), _) => return Layout::Unknown,
        }
    }
    match (tag.map(number), payload) {
        (Some((0, tag)), None) if tag.size == ty.size => Layout::Scalar(tag),
        (Some((at, tag)), Some((offset, number))) if at == offset && tag.size == ty.size => {
            Layout::Scalar(Part {
                float: number.float,
                ..tag
            })
        }
        (Some((at, tag)), Some((offset, number))) if at < offset => {
            pair(ty, (at, tag), (offset, number))
        }
        (None, Some((0, number))) if number.size == ty.size => Layout::Scalar(number),
        _ => Layout::Unknown,
    }
}
