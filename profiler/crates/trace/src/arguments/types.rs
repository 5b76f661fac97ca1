//! What a type of a program is, as far as passing and showing its values needs, and the values.
//!
//! [`Type`] and the bytes of a value ([`Image`], of which some may be unknown) -> [`Value`]. Sizes,
//! alignments and offsets are bytes, in the layout of x86-64.
//!
//! What does not belong here: where a value lies when a function is entered (`convention`), and how
//! a type is read from debug information (`describe`).

use std::sync::Arc;

use profiler_model::Value;
use serde::{Deserialize, Serialize};

/// Most fields or elements of one value that are shown.
const MAX_SHOWN: usize = 32;
/// How deep values in values are shown.
const MAX_SHOWN_DEPTH: u32 = 3;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Type {
    /// As a reader would write it.
    pub(super) name: Box<str>,
    /// Its length.
    pub(super) size: u64,
    /// Its alignment.
    pub(super) align: u64,
    /// What it is.
    pub(super) kind: Kind,
}

/// What a type is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A signed integer of up to 16 bytes.
    Signed,
    /// An unsigned integer of up to 16 bytes.
    Unsigned,
    /// A word of which nothing is known.
    Word,
    /// IEEE 754.
    Float,
    /// The 80-bit format of the x87, in 16 bytes.
    Extended,
    /// Two numbers of half the size each.
    Complex,
    /// A vector of the vector extensions.
    Vector,
    /// A truth value.
    Bool,
    /// A character.
    Char,
    /// An enumeration; its numbers and names.
    Enumeration {
        /// Whether its numbers are signed.
        signed: bool,
        /// Numbers and names.
        names: Arc<[(i64, Box<str>)]>,
    },
    /// An address.
    Pointer(Pointee),
    /// A structure, class, tuple or union.
    Struct(Struct),
    /// Elements of one type.
    Array {
        /// Their type.
        element: Box<Type>,
        /// How many.
        count: u64,
    },
    /// One of several structures (Rust); `tag` is the number that tells which.
    Variants {
        /// Offset and size of the tag.
        tag: Option<(u64, u64)>,
        /// What each variant holds.
        variants: Vec<Struct>,
    },
    /// Not described, or not known here: neither its passing nor its values.
    Unknown,
}

/// What a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pointee {
    /// Characters up to a zero.
    CString,
    /// A string object.
    Text(TextLayout),
    /// Anything else.
    Other,
}

/// Where a string object has its address and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextLayout {
    /// Offset of the address of the first character.
    pub(super) pointer: u32,
    /// Offset of the length, a word.
    pub(super) len: u32,
}

/// A structure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Struct {
    /// Its fields, bases included, in the order of the source.
    pub(super) fields: Vec<Field>,
    /// It is a string object.
    pub(super) text: Option<TextLayout>,
    /// Values are passed by their address, because copying one is more than copying its bytes.
    pub(super) by_address: bool,
    /// Not all of its fields are known.
    pub(super) partial: bool,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Field {
    /// Its name.
    pub(super) name: Box<str>,
    /// Its offset; of a bit field, that of the structure's bits.
    pub(super) offset: u64,
    /// Its type.
    pub(super) ty: Type,
    /// Of a bit field: offset in the structure and length, in bits.
    pub(super) bits: Option<(u64, u64)>,
}

/// The bytes of a value, of which some may not be known.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl Image {
    /// Puts `bytes` at `offset`.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
            self.known.resize(end, false);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        self.known[offset..end].fill(true);
    }

    /// The bytes from `offset` on, if all `len` are known.
    fn get(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let known = self.known.get(start..end)?;
        known
            .iter()
            .all(|&known| known)
            .then(|| &self.bytes[start..end])
    }

    fn unsigned(&self, offset: u64, len: u64) -> Option<u64> {
        if len > 8 {
            return None;
        }
        let mut word = [0; 8];
        let bytes = self.get(offset, len)?;
        word[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

impl Type {
    /// A type that is only a word.
    pub(super) fn new(name: &str, size: u64, kind: Kind) -> Type {
        Type {
            name: name.into(),
            size,
            align: size.clamp(1, 16),
            kind,
        }
    }

    /// The value of this type whose bytes are `image`.
    pub(super) fn value(&self, image: &Image) -> Value {
        self.value_at(image, 0, 0).unwrap_or(Value::Unavailable)
    }

    fn value_at(&self, image: &Image, at: u64, depth: u32) -> Option<Value> {
        let number = || image.unsigned(at, self.size);
        Some(match &self.kind {
            Kind::Signed | Kind::Unsigned if self.size == 16 => wide(
                image.unsigned(at, 8)?,
                image.unsigned(at.checked_add(8)?, 8)?,
                self.kind == Kind::Signed,
            ),
            Kind::Signed => Value::Signed(sign_extend(number()?, self.size * 8)),
            Kind::Unsigned => Value::Unsigned(number()?),
            Kind::Word => match number()? {
                word if word >> 32 == 0 => Value::Unsigned(word),
                word => Value::Pointer(word),
            },
            Kind::Float => match self.size {
                4 => Value::Float(f32::from_bits(number()? as u32).into()),
                8 => Value::Float(f64::from_bits(number()?)),
                _ => return None,
            },
            Kind::Extended => Value::Float(extended(
                image.unsigned(at, 8)?,
                image.unsigned(at.checked_add(8)?, 2)? as u16,
            )),
            Kind::Complex => {
                let half = self.size / 2;
                let part = Type::new("", half, Kind::Float);
                let named = |name: &str, at| Some((name.into(), part.value_at(image, at, depth)?));
                Value::Struct(
                    [
                        named("real", at)?,
                        named("imaginary", at.checked_add(half)?)?,
                    ]
                    .into(),
                )
            }
            Kind::Bool => Value::Bool(number()? != 0),
            Kind::Char => self.character(number()?),
            Kind::Enumeration { signed, names } => {
                let number = match (signed, number()?) {
                    (true, number) => sign_extend(number, self.size * 8),
                    (false, number) => number as i64,
                };
                match names.iter().find(|(named, _)| *named == number) {
                    Some((_, name)) => Value::Named(name.clone(), number),
                    None if *signed => Value::Signed(number),
                    None => Value::Unsigned(number as u64),
                }
            }
            Kind::Pointer(_) => Value::Pointer(number()?),
            Kind::Struct(_) | Kind::Array { .. } if depth >= MAX_SHOWN_DEPTH => return None,
            Kind::Struct(structure) => match structure.text {
                Some(text) => Value::Struct(
                    [
                        (
                            "pointer".into(),
                            text.part(image, at, text.pointer, Value::Pointer),
                        ),
                        (
                            "length".into(),
                            text.part(image, at, text.len, Value::Unsigned),
                        ),
                    ]
                    .into(),
                ),
                None => structure.value_at(image, at, depth),
            },
            Kind::Array { element, count } => element.values_at(image, at, *count, depth),
            Kind::Vector | Kind::Variants { .. } | Kind::Unknown => return None,
        })
    }

    /// C's plain characters may be negative, and text in any encoding: only ASCII is shown as such.
    fn character(&self, code: u64) -> Value {
        let limit = if self.size == 1 { 0x80 } else { 0x11_0000 };
        match u32::try_from(code).ok().and_then(char::from_u32) {
            Some(character) if code < limit => Value::Char(character),
            _ => Value::Signed(sign_extend(code, self.size * 8)),
        }
    }

    /// An array of `count` of these. Characters are text, up to the zero that ends them.
    fn values_at(&self, image: &Image, at: u64, count: u64, depth: u32) -> Value {
        if self.kind == Kind::Char && self.size == 1 {
            let mut text = Vec::new();
            for offset in 0..count {
                match at.checked_add(offset).and_then(|at| image.unsigned(at, 1)) {
                    Some(0) => return Value::Text(String::from_utf8_lossy(&text).into(), false),
                    Some(byte) => text.push(byte as u8),
                    None => return Value::Text(String::from_utf8_lossy(&text).into(), true),
                }
            }
            return Value::Text(String::from_utf8_lossy(&text).into(), false);
        }
        let shown = 0..count.min(MAX_SHOWN as u64);
        let element = |index: u64| {
            let at = self
                .size
                .checked_mul(index)
                .and_then(|offset| at.checked_add(offset));
            let value = at.and_then(|at| self.value_at(image, at, depth + 1));
            (
                index.to_string().into(),
                value.unwrap_or(Value::Unavailable),
            )
        };
        Value::Struct(shown.map(element).collect())
    }
}

impl Struct {
    fn value_at(&self, image: &Image, at: u64, depth: u32) -> Value {
        let field = |field: &Field| {
            let value = match field.bits {
                Some((offset, len)) => field.bit_value(image, at, offset, len),
                None => at
                    .checked_add(field.offset)
                    .and_then(|at| field.ty.value_at(image, at, depth + 1)),
            };
            (field.name.clone(), value.unwrap_or(Value::Unavailable))
        };
        Value::Struct(self.fields.iter().take(MAX_SHOWN).map(field).collect())
    }
}

impl Field {
    fn bit_value(&self, image: &Image, at: u64, offset: u64, len: u64) -> Option<Value> {
        let shift = offset % 8;
        if len == 0 || len > 64 || shift + len > 64 || self.ty.size > 8 {
            return None;
        }
        let start = at.checked_add(offset / 8)?;
        let word = image.unsigned(start, (shift + len).div_ceil(8))? >> shift;
        let bits = word & (u64::MAX >> (64 - len));
        let signed = match &self.ty.kind {
            Kind::Signed => true,
            Kind::Enumeration { signed, .. } => *signed,
            _ => false,
        };
        let extended = if signed {
            sign_extend(bits, len) as u64
        } else {
            bits
        };
        let mut whole = Image::default();
        whole.put(0, &extended.to_le_bytes());
        self.ty.value_at(&whole, 0, MAX_SHOWN_DEPTH)
    }
}

impl TextLayout {
    fn part(self, image: &Image, at: u64, offset: u32, make: fn(u64) -> Value) -> Value {
        let word = at
            .checked_add(offset.into())
            .and_then(|at| image.unsigned(at, 8));
        word.map_or(Value::Unavailable, make)
    }
}

/// `word`, of which only the lower `bits` count.
pub(super) fn sign_extend(word: u64, bits: u64) -> i64 {
    if bits == 0 || bits >= 64 {
        return word as i64;
    }
    let unused = 64 - bits;
    ((word << unused) as i64) >> unused
}

/// A number of 16 bytes: as one of 8 bytes where it fits, else its halves.
fn wide(low: u64, high: u64, signed: bool) -> Value {
    match (signed, high) {
        (true, high) if high == ((low as i64) >> 63) as u64 => Value::Signed(low as i64),
        (false, 0) => Value::Unsigned(low),
        (true, high) => Value::Struct(
            [
                ("high".into(), Value::Signed(high as i64)),
                ("low".into(), Value::Unsigned(low)),
            ]
            .into(),
        ),
        (false, high) => Value::Struct(
            [
                ("high".into(), Value::Unsigned(high)),
                ("low".into(), Value::Unsigned(low)),
            ]
            .into(),
        ),
    }
}

/// The nearest double of an 80-bit number: its mantissa, then sign and exponent.
fn extended(mantissa: u64, head: u16) -> f64 {
    let sign = if head >> 15 == 0 { 1.0 } else { -1.0 };
    match i32::from(head & 0x7fff) {
        0x7fff if mantissa << 1 == 0 => sign * f64::INFINITY,
        0x7fff => f64::NAN,
        // In two steps, so that numbers at the edge of a double's range are not lost on the way.
        exponent => {
            let exponent = exponent - 16383 - 63;
            let half = exponent / 2;
            sign * mantissa as f64 * 2f64.powi(half) * 2f64.powi(exponent - half)
        }
    }
}
