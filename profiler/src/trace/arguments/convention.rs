//! Where a calling convention puts arguments and results.
//!
//! Types -> [`Passed`]. Source: the System V ABI for x86-64, version 1.0, chapter 3.2.3, and the
//! Itanium C++ ABI, chapter 3.1, for C and C++; what rustc does (it promises nothing) for Rust; Go's
//! internal ABI specification (`abi-internal`) for Go.
//!
//! What does not belong here: locations that debug information names (`location`), what is fetched
//! from the places (`fetch`).

use profiler_common::call::*;

use super::function::{Called, Function, Parameter};
use super::location::{Address, Location, Word};
use super::types::{Field, Kind, Struct, Type};

/// Integer registers of System V, in order.
const SYSTEM_V: [u8; 6] = [
    REGISTER_RDI,
    REGISTER_RSI,
    REGISTER_RDX,
    REGISTER_RCX,
    REGISTER_R8,
    REGISTER_R9,
];
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
/// Vector registers of System V, and of Go.
const VECTORS: usize = 8;
const GO_VECTORS: usize = 15;
/// Where arguments on the stack begin, from the stack pointer: behind the return address.
const STACK: u64 = 8;
/// Most scalars of one value that are told apart.
const MAX_SCALARS: usize = 64;
/// How deep they may lie.
const MAX_DEPTH: u32 = 16;

/// How a value is passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// Not at all: it has no bytes.
    Nothing,
    /// In registers or memory.
    At(Location),
    /// In a vector register, or one of the x87.
    Float,
    /// In a place that is not known.
    Unknown,
}

/// Where all parameters and the results of a function are.
pub(super) struct Placed {
    /// Of each parameter.
    pub(super) parameters: Vec<Passed>,
    /// Of each result.
    pub(super) results: Vec<Passed>,
}

/// Where the parameters and results of `function` are.
pub(super) fn place(function: &Function) -> Placed {
    let parameters = || function.parameters.iter().map(|parameter| &parameter.ty);
    let results = || function.results.iter().map(|result| &result.ty);
    let mut placed = match function.called {
        Called::SystemV => c_like(parameters(), results().next(), system_v, system_v_result),
        Called::Rust => c_like(parameters(), results().next(), rust, rust_result),
        Called::Go => Placed {
            parameters: go(parameters()),
            // On the stack, they are behind the parameters; so many results are rare.
            results: go(results()).into_iter().map(only_in_registers).collect(),
        },
        Called::Freely => Placed {
            parameters: parameters().map(|_| Passed::Unknown).collect(),
            results: results().map(|_| Passed::Unknown).collect(),
        },
    };
    // Go's own locations are of the stack slots that registers are saved to.
    if function.called != Called::Go {
        for (passed, parameter) in placed.parameters.iter_mut().zip(&function.parameters) {
            if let Some(location) = &parameter.location
                && parameter.ty.size > 0
                && (covers(location, parameter.ty.size) || *passed == Passed::Unknown)
            {
                *passed = Passed::At(location.clone());
            }
        }
    }
    placed
}

/// Whether all bytes of a value are there. What nobody reads, compilers leave out.
fn covers(location: &Location, size: u64) -> bool {
    match location {
        Location::Memory(_) => true,
        Location::Words(words) => words.iter().map(|word| word.size).sum::<u64>() >= size,
    }
}

/// How one value wants to be passed.
enum Wish {
    /// It has no bytes.
    Nothing,
    /// In these parts, all in registers or all on the stack.
    Parts(Vec<Part>),
    /// In these parts, each wherever there is room.
    Each(Vec<Part>),
    /// A copy of it, on the stack.
    Stack,
    /// By the address of a copy.
    Address,
    /// In a register of the x87.
    Extended,
    /// Not known.
    Unknown,
}

/// A part of a value that goes into one register.
#[derive(Clone, Copy)]
struct Part {
    float: bool,
    offset: u64,
    size: u64,
}

/// System V and those that are like it: parts in six and eight registers, then the stack.
fn c_like<'t>(
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

impl Part {
    fn word(self, register: u8) -> Word {
        Word {
            word: Address::of(register, 0),
            offset: self.offset,
            size: self.size.min(8),
        }
    }
}

fn memory(address: Address) -> Passed {
    Passed::At(Location::Memory(address))
}

fn in_words(words: Vec<Word>) -> Passed {
    if words.is_empty() {
        return Passed::Float;
    }
    Passed::At(Location::Words(words))
}

fn returned_in_registers(parts: &[Part]) -> Passed {
    let integers = parts.iter().filter(|part| !part.float);
    let words = integers.zip([REGISTER_RAX, REGISTER_RDX]);
    in_words(words.map(|(part, register)| part.word(register)).collect())
}

/// A number, pointer or the like in a value.
#[derive(Clone, Copy)]
struct Scalar {
    offset: u64,
    size: u64,
    class: Class,
    /// A bit field, which may lie anywhere.
    bits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Extended,
}

/// The scalars of a value, however deep; none if they are not known or too many.
fn scalars(ty: &Type, at: u64, depth: u32, found: &mut Vec<Scalar>) -> Option<()> {
    if depth > MAX_DEPTH || found.len() > MAX_SCALARS {
        return None;
    }
    let mut add = |offset, size, class| {
        found.push(Scalar {
            offset,
            size,
            class,
            bits: false,
        })
    };
    match &ty.kind {
        Kind::Float | Kind::Vector => add(at, ty.size, Class::Float),
        Kind::Complex => {
            add(at, ty.size / 2, Class::Float);
            add(at.checked_add(ty.size / 2)?, ty.size / 2, Class::Float);
        }
        Kind::Extended => add(at, ty.size, Class::Extended),
        Kind::Struct(parts) => {
            if parts.partial {
                return None;
            }
            for field in &parts.fields {
                match field.bits {
                    Some((bit, len)) => {
                        let (first, last) = (bit / 8, bit.checked_add(len)?.div_ceil(8));
                        found.push(Scalar {
                            offset: at.checked_add(first)?,
                            size: last.saturating_sub(first),
                            class: Class::Integer,
                            bits: true,
                        });
                    }
                    None => scalars(&field.ty, at.checked_add(field.offset)?, depth + 1, found)?,
                }
            }
        }
        Kind::Array { element, count } => {
            if *count > MAX_SCALARS as u64 {
                return None;
            }
            for index in 0..*count {
                let at = at.checked_add(element.size.checked_mul(index)?)?;
                scalars(element, at, depth + 1, found)?;
            }
        }
        Kind::Variants { .. } | Kind::Unknown => return None,
        Kind::Signed
        | Kind::Unsigned
        | Kind::Word
        | Kind::Bool
        | Kind::Char
        | Kind::Enumeration { .. }
        | Kind::Pointer(_) => add(at, ty.size, Class::Integer),
    }
    Some(())
}

/// System V: the classes of the eight bytes that a value of up to 16 bytes has.
fn system_v(ty: &Type) -> Wish {
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

fn system_v_result(ty: &Type) -> Wish {
    match ty.kind {
        Kind::Extended => Wish::Extended,
        Kind::Complex if ty.size > 16 => Wish::Extended,
        _ => system_v(ty),
    }
}

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
fn rust(ty: &Type) -> Wish {
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

fn rust_result(ty: &Type) -> Wish {
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

/// Go: every number in a register of its own; a value that does not fit in the registers that are
/// left goes to the stack whole.
fn go<'t>(types: impl Iterator<Item = &'t Type>) -> Vec<Passed> {
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
        if has_array(ty, 0) || integers + wanted > GO.len() || vectors + floats > GO_VECTORS {
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

fn only_in_registers(passed: Passed) -> Passed {
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
pub(super) fn together(results: &[Parameter], places: &[Passed]) -> Option<(Type, Passed)> {
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
