//! Reasons that another process gives, in words that this program has itself.
//!
//! A text -> the same one, kept for good: reasons are sentences of this program's own, so there are few, and
//! more than that are not believed. What does not belong here: the reasons.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer};

/// A sentence of this program's own. (What it is an alias of would be borrowed from what is read.)
pub(crate) type Reason = &'static str;

/// There are fewer.
const MOST: usize = 128;
/// None is longer.
const LONGEST: usize = 200;
const OTHER: &str = "for a reason that is not known";

static KNOWN: Mutex<Vec<Reason>> = Mutex::new(Vec::new());

/// A reason, by its words.
pub(crate) fn one<'de, D: Deserializer<'de>>(from: D) -> Result<Reason, D::Error> {
    Ok(known(&String::deserialize(from)?))
}

/// The same, if there is one.
pub(crate) fn maybe<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reason>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.as_deref().map(known))
}

fn known(text: &str) -> Reason {
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|&&known| known == text) {
        return known;
    }
    if all.len() == MOST || text.len() > LONGEST {
        return OTHER;
    }
    all.push(Box::leak(text.into()));
    all[all.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_kept_once_and_not_without_end() {
        let first = known("it jumps");
        assert!(std::ptr::eq(first, known("it jumps")));
        for number in 0..2 * MOST {
            known(&number.to_string());
        }
        assert_eq!(known("one more"), OTHER);
        assert!(std::ptr::eq(first, known("it jumps")));
        assert_eq!(KNOWN.lock().unwrap().len(), MOST);
    }
}
