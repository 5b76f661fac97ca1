//! What the kernel side is to fetch for a value, and how the value is made of it.
//!
//! Types and where they are passed -> a list of [`Fetch`] and, for each value, a [`Recipe`] that
//! says how many items are its own and what they are.
//!
//! What does not belong here: reading items (`decode`).

use profiler_common::call::*;
use serde::{Deserialize, Serialize};

use super::Missing;
use super::convention::Passed;
use super::location::{Address, Location, Word};
use super::types::{Kind, Pointee, Struct, TextLayout, Type};
use profiler_model::Value;

/// Most bytes of one value in memory.
const MAX_MEMORY: u64 = MAX_STRING as u64;

/// How a value is made of items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recipe {
    /// Its type.
    pub(super) ty: Type,
    /// What is fetched.
    pub(super) form: Form,
}

/// What is fetched for a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Form {
    /// Nothing: it can't be had.
    Missing,
    /// Nothing: it is known.
    Known(Known),
    /// Bytes of the value, item by item: where each belongs, and its length.
    Bytes(Vec<(usize, usize)>),
    /// One item that is text.
    CString,
    /// An item with a length, and one with so much text.
    Counted,
}

/// A value that needs no items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Known {
    /// A number.
    Number(i64),
    /// A value without bytes.
    Empty,
}

impl Known {
    /// The value.
    pub(super) fn value(self) -> Value {
        match self {
            Known::Number(number) => Value::Signed(number),
            Known::Empty => Value::Struct(Box::default()),
        }
    }
}

impl Form {
    /// How many items it takes.
    pub(super) fn items(&self) -> usize {
        match self {
            Form::Missing | Form::Known(_) => 0,
            Form::Bytes(parts) => parts.len(),
            Form::CString => 1,
            Form::Counted => 2,
        }
    }
}

/// What to fetch for a value of type `ty` that is passed so; what there is no room for among
/// `room` fetches is missing.
pub(super) fn plan(ty: &Type, passed: &Passed, room: usize) -> Result<(Form, Vec<Fetch>), Missing> {
    let (form, fetches) = match passed {
        Passed::Nothing => (Form::Known(Known::Empty), Vec::new()),
        Passed::Float => return Err(Missing::FloatingPoint),
        Passed::Unknown => return Err(Missing::Place),
        Passed::At(location) => at(ty, location).ok_or(Missing::Place)?,
    };
    if fetches.len() > room {
        return Err(Missing::Room);
    }
    Ok((form, fetches))
}

fn at(ty: &Type, location: &Location) -> Option<(Form, Vec<Fetch>)> {
    let text = match (&ty.kind, location) {
        (Kind::Pointer(Pointee::CString), _) => {
            let text = pointed_to(location)?;
            return Some((
                Form::CString,
                vec![text.fetch(FETCH_STRING, MAX_STRING as u16)],
            ));
        }
        (Kind::Pointer(Pointee::Text(text)), _) => text_in(pointed_to(location)?, *text),
        (
            Kind::Struct(Struct {
                text: Some(text), ..
            }),
            Location::Memory(address),
        ) => text_in(*address, *text),
        (
            Kind::Struct(Struct {
                text: Some(text), ..
            }),
            Location::Words(words),
        ) => text_in_words(words, *text),
        _ => None,
    };
    if let Some(fetches) = text {
        return Some((Form::Counted, fetches.into()));
    }
    match (&ty.kind, location) {
        // Nothing would be made of the bytes.
        (Kind::Unknown | Kind::Variants { .. } | Kind::Vector, _) => None,
        (_, Location::Words(words)) => {
            let part = |word: &Word| (word.offset as usize, word.size as usize);
            let fetch = |word: &Word| word.word.fetch(FETCH_WORD, 0);
            let words = words.iter().filter(|word| word.offset <= MAX_MEMORY);
            let (parts, fetches) = words.map(|word| (part(word), fetch(word))).unzip();
            Some((Form::Bytes(parts), fetches))
        }
        (_, Location::Memory(address)) => {
            let size = ty.size.min(MAX_MEMORY);
            let fetch = address.fetch(FETCH_MEMORY, size as u16);
            Some((Form::Bytes(vec![(0, size as usize)]), vec![fetch]))
        }
    }
}

/// What a pointer points to, that lies there itself.
fn pointed_to(location: &Location) -> Option<Address> {
    match location {
        Location::Words(words) => match words[..] {
            [word] if word.offset == 0 => Some(word.word),
            _ => None,
        },
        Location::Memory(address) => address.followed(),
    }
}

/// The fetches of the text of a string object that lies at an address.
fn text_in(at: Address, text: TextLayout) -> Option<[Fetch; 2]> {
    let len = at.plus(text.len)?.followed()?;
    let start = at.plus(text.pointer)?.followed()?;
    Some([
        len.fetch(FETCH_WORD, 0),
        start.fetch(FETCH_COUNTED, MAX_STRING as u16),
    ])
}

/// The fetches of the text of a string object that is passed in two registers.
fn text_in_words(words: &[Word], text: TextLayout) -> Option<[Fetch; 2]> {
    let at = |offset: u32| {
        let word = words.iter().find(|word| word.offset == u64::from(offset))?;
        Some(word.word)
    };
    Some([
        at(text.len)?.fetch(FETCH_WORD, 0),
        at(text.pointer)?.fetch(FETCH_COUNTED, MAX_STRING as u16),
    ])
}
