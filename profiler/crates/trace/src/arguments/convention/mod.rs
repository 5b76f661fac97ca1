//! Where a calling convention puts arguments and results.
//!
//! Types -> [`Passed`]; each convention is in a file of its own: System V for C and C++, Rust's, and
//! Go's.
//!
//! What does not belong here: locations that debug information names (`location`), what is fetched
//! from the places (`fetch`).

mod go;
mod rust;
mod system_v;

use super::function::{Called, Function};
use super::location::{Address, Location, Word};
use super::types::{Kind, Type};

pub(super) use go::together;

use go::{go, only_in_registers};
use rust::{rust, rust_result};
use system_v::{c_like, system_v, system_v_result};

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
