//! Items of a call's record -> values.
//!
//! The items are those of a [`Signature`]'s fetches, in their order (see `call` in
//! `profiler-common`), with lengths in bytes. They come from the kernel side, what is in them from
//! the target: any bytes give values.
//!
//! What does not belong here: how values are shown (`model::Value`).

use profiler_common::call::{ITEM_BAD_MEMORY, ITEM_CUT, ITEM_OK, ItemHead};

use super::Signature;
use super::fetch::{Form, Recipe};
use super::types::Image;
use crate::model::Value;

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
        let (head, rest) = self.0.split_first_chunk::<{ size_of::<ItemHead>() }>()?;
        let status = u16::from_ne_bytes([head[0], head[1]]);
        let len = usize::from(u16::from_ne_bytes([head[2], head[3]]));
        let payload = rest.get(..len)?;
        self.0 = rest.get(len.next_multiple_of(8)..).unwrap_or(&[]);
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
