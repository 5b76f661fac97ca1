//! Values of traced programs <-> bytes of an item.
//!
//! A value is a tag and what the tag says. Both directions are bounded: texts of [`MAX_TEXT`]
//! bytes, lists of [`MAX_VALUES`] parts, structures in structures at most [`MAX_NESTING`] deep, and
//! [`MAX_ITEM`] bytes for all values of one event. A writer cuts what is larger; a reader refuses
//! it, and takes tags of later versions, which have a length, as values that can't be had.

use profiler_model::Value;

use super::item::{Bad, Fields, put, put_signed};

/// Longest text of a value.
const MAX_TEXT: usize = 4 << 10;
/// Longest name of a part or of an enumeration's value.
const MAX_NAME: usize = 256;
/// Most values of an event, and most parts of a structure.
const MAX_VALUES: usize = 64;
/// Structures inside of a value.
const MAX_NESTING: u32 = 2;
/// Bytes for the values of one event; what does not fit any more is written as unavailable.
const MAX_ITEM: usize = 64 << 10;

mod tag {
    pub(super) const UNAVAILABLE: u64 = 0;
    pub(super) const SIGNED: u64 = 1;
    pub(super) const UNSIGNED: u64 = 2;
    pub(super) const FLOAT: u64 = 3;
    pub(super) const FALSE: u64 = 4;
    pub(super) const TRUE: u64 = 5;
    pub(super) const CHAR: u64 = 6;
    pub(super) const NAMED: u64 = 7;
    pub(super) const POINTER: u64 = 8;
    pub(super) const TEXT: u64 = 9;
    pub(super) const BEGINNING: u64 = 10;
    pub(super) const STRUCT: u64 = 11;
    pub(super) const UNREADABLE: u64 = 12;
}

/// Appends values: their number, then each.
pub(super) fn put_values(out: &mut Vec<u8>, values: &[Value]) {
    let limit = out.len() + MAX_ITEM;
    let values = &values[..values.len().min(MAX_VALUES)];
    put(out, values.len() as u64);
    for value in values {
        put_limited(out, value, 0, limit);
    }
}

/// Appends one value.
pub(super) fn put_value(out: &mut Vec<u8>, value: &Value) {
    let limit = out.len() + MAX_ITEM;
    put_limited(out, value, 0, limit);
}

fn put_limited(out: &mut Vec<u8>, value: &Value, nesting: u32, limit: usize) {
    let room = limit.saturating_sub(out.len());
    // The longest of those without text and parts.
    if room < 16 {
        return put(out, tag::UNAVAILABLE);
    }
    match value {
        Value::Unavailable => put(out, tag::UNAVAILABLE),
        Value::Signed(number) => {
            put(out, tag::SIGNED);
            put_signed(out, *number);
        }
        Value::Unsigned(number) => {
            put(out, tag::UNSIGNED);
            put(out, *number);
        }
        Value::Float(number) => {
            put(out, tag::FLOAT);
            out.extend_from_slice(&number.to_bits().to_le_bytes());
        }
        Value::Bool(false) => put(out, tag::FALSE),
        Value::Bool(true) => put(out, tag::TRUE),
        Value::Char(char) => {
            put(out, tag::CHAR);
            put(out, u64::from(u32::from(*char)));
        }
        Value::Named(name, number) => {
            put(out, tag::NAMED);
            put_text(out, &name[..name.floor_char_boundary(MAX_NAME)]);
            put_signed(out, *number);
        }
        Value::Pointer(address) => {
            put(out, tag::POINTER);
            put(out, *address);
        }
        Value::Unreadable(address) => {
            put(out, tag::UNREADABLE);
            put(out, *address);
        }
        Value::Text(text, cut) => {
            let kept = &text[..text.floor_char_boundary(MAX_TEXT.min(room))];
            let whole = !cut && kept.len() == text.len();
            put(out, if whole { tag::TEXT } else { tag::BEGINNING });
            put_text(out, kept);
        }
        Value::Struct(_) if nesting >= MAX_NESTING => put(out, tag::UNAVAILABLE),
        Value::Struct(parts) => {
            put(out, tag::STRUCT);
            let parts = &parts[..parts.len().min(MAX_VALUES)];
            put(out, parts.len() as u64);
            for (name, value) in parts {
                put_text(out, &name[..name.floor_char_boundary(MAX_NAME)]);
                put_limited(out, value, nesting + 1, limit);
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads what [`put_values`] wrote.
pub(super) fn values(fields: &mut Fields<'_>) -> Result<Box<[Value]>, Bad> {
    (0..count(fields)?).map(|_| value(fields)).collect()
}

/// Reads one value.
pub(super) fn value(fields: &mut Fields<'_>) -> Result<Value, Bad> {
    read(fields, 0)
}

fn count(fields: &mut Fields<'_>) -> Result<u64, Bad> {
    match fields.get()? {
        count if count <= MAX_VALUES as u64 => Ok(count),
        _ => Err(Bad("there are too many values")),
    }
}

fn text(fields: &mut Fields<'_>, most: usize) -> Result<Box<str>, Bad> {
    match fields.text()? {
        text if text.len() <= most => Ok(text.into()),
        _ => Err(Bad("the text of a value is too long")),
    }
}

fn read(fields: &mut Fields<'_>, nesting: u32) -> Result<Value, Bad> {
    Ok(match fields.get()? {
        tag::UNAVAILABLE => Value::Unavailable,
        tag::SIGNED => Value::Signed(fields.signed()?),
        tag::UNSIGNED => Value::Unsigned(fields.get()?),
        tag::FLOAT => {
            let bytes = fields.take(8)?.first_chunk();
            let bytes = bytes.ok_or(Bad("a field is cut off"))?;
            Value::Float(f64::from_bits(u64::from_le_bytes(*bytes)))
        }
        tag::FALSE => Value::Bool(false),
        tag::TRUE => Value::Bool(true),
        tag::CHAR => {
            let char = char::from_u32(fields.get32()?);
            Value::Char(char.ok_or(Bad("a character is out of range"))?)
        }
        tag::NAMED => Value::Named(text(fields, MAX_NAME)?, fields.signed()?),
        tag::POINTER => Value::Pointer(fields.get()?),
        tag::TEXT => Value::Text(text(fields, MAX_TEXT)?, false),
        tag::BEGINNING => Value::Text(text(fields, MAX_TEXT)?, true),
        tag::STRUCT if nesting >= MAX_NESTING => {
            return Err(Bad("a value is nested too deep"));
        }
        tag::STRUCT => {
            let count = count(fields)?;
            let part = |_| Ok::<_, Bad>((text(fields, MAX_NAME)?, read(fields, nesting + 1)?));
            Value::Struct((0..count).map(part).collect::<Result<_, _>>()?)
        }
        tag::UNREADABLE => Value::Unreadable(fields.get()?),
        _ => {
            fields.bytes()?;
            Value::Unavailable
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(given: &[Value]) -> Box<[Value]> {
        let mut bytes = Vec::new();
        put_values(&mut bytes, given);
        assert!(bytes.len() <= MAX_ITEM + MAX_VALUES * MAX_NAME * 2);
        let mut fields = Fields(&bytes);
        let read = values(&mut fields).unwrap();
        assert!(fields.0.is_empty());
        read
    }

    #[test]
    fn every_kind_comes_back() {
        let inner = Value::Struct([("x".into(), Value::Signed(i64::MIN))].into());
        let all = [
            Value::Signed(-1),
            Value::Unsigned(u64::MAX),
            Value::Float(-0.5),
            Value::Bool(true),
            Value::Bool(false),
            Value::Char('ü'),
            Value::Named("RED".into(), -3),
            Value::Pointer(0xffff_ffff_ffff_f000),
            Value::Text("hello".into(), false),
            Value::Text("beginning".into(), true),
            Value::Struct([("inner".into(), inner), ("n".into(), Value::Unavailable)].into()),
            Value::Unreadable(8),
            Value::Unavailable,
        ];
        assert_eq!(*again(&all), all);
    }

    #[test]
    fn what_is_too_large_is_cut_and_says_so() {
        let long: Box<str> = "ü".repeat(MAX_TEXT).into();
        let read = again(&[Value::Text(long.clone(), false)]);
        assert_eq!(read[0], Value::Text("ü".repeat(MAX_TEXT / 2).into(), true));
        // Many such texts: the item stays bounded, what has no room is not there.
        let parts: Vec<_> = (0..100)
            .map(|_| (long.clone(), Value::Text(long.clone(), false)))
            .collect();
        let read = again(&vec![Value::Struct(parts.into()); 100]);
        assert_eq!(read.len(), MAX_VALUES);
        assert_eq!(read[MAX_VALUES - 1], Value::Unavailable);
        // Nesting ends.
        let mut deep = Value::Bool(true);
        for _ in 0..5 {
            deep = Value::Struct([("in".into(), deep)].into());
        }
        let Value::Struct(parts) = &again(&[deep])[0] else {
            panic!("no structure");
        };
        let inner = Value::Struct([("in".into(), Value::Unavailable)].into());
        assert_eq!(parts[0].1, inner);
    }

    #[test]
    fn tags_of_later_versions_are_passed_over() {
        let bytes = [2, 99, 3, 1, 2, 3, 5];
        let read = values(&mut Fields(&bytes)).unwrap();
        assert_eq!(*read, [Value::Unavailable, Value::Bool(true)]);
    }

    #[test]
    fn hostile_values_are_refused() {
        for bytes in [
            &[1, 1][..],
            &[255, 255, 3],
            &[1, 6, 0x80, 0xb0, 3],
            &[1, 9, 5, b'x'],
            &[1, 3, 1, 2, 3],
            &[1, 11, 1, 0, 11, 1, 0, 11, 1, 0, 4],
            &[1, 11, 200, 1],
            &[1, 99, 200, 1],
        ] {
            assert!(values(&mut Fields(bytes)).is_err(), "{bytes:?}");
        }
    }
}
