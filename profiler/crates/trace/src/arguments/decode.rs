//! Items of a call's record -> values.
//!
//! The items are those of a [`Signature`]'s fetches, in their order (see `call` in
//! `profiler-common`), with lengths in bytes. They come from the kernel side, what is in them from
//! the target: any bytes give values.
//!
//! What does not belong here: how values are shown (`model::Value`).

use profiler_common::call::{ITEM_BAD_MEMORY, ITEM_CUT, ITEM_OK, split_item};

use super::Signature;
use super::fetch::{Form, Recipe};
use super::types::Image;
use profiler_model::Value;

impl Signature {
    /// The values of the parameters, or, `at_exit`, the result (or nothing), of the items of a
    /// record. Of text at most `arg_len` bytes are kept. Values whose items are missing or make no
    /// sense are [`Value::Unavailable`].
    pub fn decode(&self, items: &[u8], at_exit: bool, arg_len: usize) -> Vec<Value> {
        let mut items = Items(items);
        let recipes = if at_exit {
            &self.at_exit
        } else {
            &self.at_entry
        };
        let decode =
            |recipe: &Recipe| value(recipe, &mut items, arg_len).unwrap_or(Value::Unavailable);
        recipes.iter().map(decode).collect()
    }
}

/// The items of a record that are left.
struct Items<'i>(&'i [u8]);

struct Item<'i> {
    status: u16,
    payload: &'i [u8],
}

impl<'i> Items<'i> {
    fn next(&mut self) -> Option<Item<'i>> {
        let (status, payload, rest) = split_item(self.0)?;
        self.0 = rest;
        Some(Item { status, payload })
    }
}

impl Item<'_> {
    fn word(&self) -> Option<u64> {
        self.payload.first_chunk().copied().map(u64::from_ne_bytes)
    }

    /// The address that could not be read.
    fn bad(&self) -> Option<Value> {
        let bad = self.status == ITEM_BAD_MEMORY;
        bad.then(|| self.word().map_or(Value::Unavailable, Value::Unreadable))
    }

    fn text(&self, whole: Option<u64>, arg_len: usize) -> Value {
        let kept = self.payload.len().min(arg_len);
        let cut = kept < self.payload.len()
            || self.status == ITEM_CUT
            || whole.is_some_and(|whole| whole > kept as u64);
        let mut kept = &self.payload[..kept];
        if cut {
            kept = whole_characters(kept);
        }
        Value::Text(String::from_utf8_lossy(kept).into(), cut)
    }
}

/// Without the first bytes of a character whose last ones were cut off.
fn whole_characters(text: &[u8]) -> &[u8] {
    let Err(error) = std::str::from_utf8(text) else {
        return text;
    };
    let last = text.len().saturating_sub(4);
    match text[last..].iter().rposition(|&byte| byte >= 0xc0) {
        Some(start)
            if std::str::from_utf8(&text[last + start..])
                .is_err_and(|e| e.error_len().is_none()) =>
        {
            &text[..last + start]
        }
        _ if error.error_len().is_none() => &text[..error.valid_up_to()],
        _ => text,
    }
}

fn value(recipe: &Recipe, items: &mut Items<'_>, arg_len: usize) -> Option<Value> {
    match &recipe.form {
        Form::Missing => None,
        Form::Known(known) => Some(known.value()),
        Form::Bytes(parts) => {
            let mut image = Image::default();
            let mut bad = None;
            for &(offset, len) in parts {
                let item = items.next()?;
                bad = bad.or_else(|| item.bad());
                if matches!(item.status, ITEM_OK | ITEM_CUT) {
                    image.put(offset, &item.payload[..item.payload.len().min(len)]);
                }
            }
            Some(bad.unwrap_or_else(|| recipe.ty.value(&image)))
        }
        Form::CString => {
            let item = items.next()?;
            Some(item.bad().unwrap_or_else(|| item.text(None, arg_len)))
        }
        Form::Counted => {
            let len = items.next()?;
            let text = items.next()?;
            if let Some(bad) = len.bad() {
                return Some(bad);
            }
            match len.word()? {
                // An empty string may point anywhere.
                0 => Some(Value::Text("".into(), false)),
                len => Some(text.bad().unwrap_or_else(|| text.text(Some(len), arg_len))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::types::{Kind, Pointee, TextLayout, Type};
    use crate::arguments::{Form, Missing};

    fn signature(values: &[(Kind, Form)]) -> Signature {
        let mut signature = Signature::default();
        for (kind, form) in values {
            let fetches = vec![Default::default(); form.items()];
            signature.add(
                "x",
                Type::new("", 8, kind.clone()),
                Ok((form.clone(), fetches)),
                false,
            );
        }
        signature
    }

    fn item(status: u16, payload: &[u8]) -> Vec<u8> {
        let mut item = status.to_ne_bytes().to_vec();
        item.extend((payload.len() as u16).to_ne_bytes());
        item.extend([0; 4]);
        item.extend(payload);
        item.resize(item.len().next_multiple_of(8), 0);
        item
    }

    fn word(word: u64) -> Vec<u8> {
        item(ITEM_OK, &word.to_ne_bytes())
    }

    fn text(text: &str, cut: bool) -> Value {
        Value::Text(text.into(), cut)
    }

    const STRING: Kind = Kind::Pointer(Pointee::CString);
    const OBJECT: Kind = Kind::Pointer(Pointee::Text(TextLayout { pointer: 0, len: 8 }));

    fn one(kind: Kind, form: Form, items: &[u8], arg_len: usize) -> Value {
        let values = signature(&[(kind, form)]).decode(items, false, arg_len);
        assert_eq!(values.len(), 1);
        values.into_iter().next().unwrap()
    }

    #[test]
    fn text_of_any_length_and_bytes() {
        let string = |items: &[u8], len| one(STRING, Form::CString, items, len);
        assert_eq!(string(&item(ITEM_OK, b"text"), 64), text("text", false));
        assert_eq!(string(&item(ITEM_OK, b"text"), 3), text("tex", true));
        assert_eq!(string(&item(ITEM_CUT, b"text"), 64), text("text", true));
        assert_eq!(string(&item(ITEM_OK, b""), 0), text("", false));
        assert_eq!(
            string(&item(ITEM_OK, b"a\xffb\n"), 64),
            text("a\u{fffd}b\n", false)
        );
        // Cut within a character: not half of it, whatever else is wrong.
        assert_eq!(
            string(&item(ITEM_OK, "größe".as_bytes()), 3),
            text("gr", true)
        );
        assert_eq!(
            string(&item(ITEM_CUT, &"😀"[..].as_bytes()[..3]), 9),
            text("", true)
        );
        assert_eq!(
            string(&item(ITEM_CUT, b"\xffa\xc3"), 9),
            text("\u{fffd}a", true)
        );
        assert_eq!(
            string(&item(ITEM_CUT, b"a\xff"), 9),
            text("a\u{fffd}", true)
        );
        assert_eq!(
            string(&item(ITEM_BAD_MEMORY, &[0; 8]), 9),
            Value::Unreadable(0)
        );
        assert_eq!(
            string(&item(ITEM_BAD_MEMORY, &[0; 3]), 9),
            Value::Unavailable
        );
    }

    #[test]
    fn text_with_a_length() {
        let object =
            |len: Vec<u8>, bytes: Vec<u8>| one(OBJECT, Form::Counted, &[len, bytes].concat(), 64);
        assert_eq!(object(word(2), item(ITEM_OK, b"ab")), text("ab", false));
        assert_eq!(object(word(3), item(ITEM_OK, b"a\0b")), text("a\0b", false));
        assert_eq!(object(word(999), item(ITEM_CUT, b"ab")), text("ab", true));
        assert_eq!(object(word(999), item(ITEM_OK, b"ab")), text("ab", true));
        let bad = |address: u64| item(ITEM_BAD_MEMORY, &address.to_ne_bytes());
        assert_eq!(object(word(0), bad(1)), text("", false));
        assert_eq!(object(word(5), bad(1)), Value::Unreadable(1));
        assert_eq!(object(bad(8), bad(1)), Value::Unreadable(8));
    }

    #[test]
    fn a_value_takes_its_own_items_only() {
        let bytes = Form::Bytes(vec![(0, 8)]);
        let signature = signature(&[
            (OBJECT, Form::Counted),
            (Kind::Signed, Form::Missing),
            (Kind::Signed, bytes.clone()),
            (STRING, Form::CString),
        ]);
        let bad = item(ITEM_BAD_MEMORY, &[1; 8]);
        let items = [bad.clone(), bad, word(7), item(ITEM_OK, b"end")].concat();
        let all = [
            Value::Unreadable(u64::from_ne_bytes([1; 8])),
            Value::Unavailable,
            Value::Signed(7),
            text("end", false),
        ];
        assert_eq!(signature.decode(&items, false, 64), all);
        // Whatever is missing at the end, what is before it is right.
        for cut in 0..items.len() {
            let values = signature.decode(&items[..cut], false, 64);
            assert_eq!(values.len(), all.len());
            for (value, whole) in values.iter().zip(&all) {
                assert!(
                    value == whole || *value == Value::Unavailable,
                    "{cut}: {value:?}"
                );
            }
        }
        assert_eq!(signature.decode(&items, true, 64), []);
    }

    #[test]
    fn what_there_is_no_room_for_is_said() {
        let mut signature = Signature::default();
        let ty = Type::new("int", 4, Kind::Signed);
        signature.add("x", ty, Err(Missing::Room), false);
        assert_eq!(signature.parameters[0].missing, Some(Missing::Room));
        assert_eq!(signature.decode(&[], false, 64), [Value::Unavailable]);
    }
}
