//! Fuzzing of arguments and results: debug information of a target -> what to fetch -> values.
//!
//! Input: a fuzzer's bytes, as a row of sections; output: none, a broken promise is a panic. Integers
//! are little-endian.

use std::borrow::Cow;

use profiler_common::call::{FETCH_COUNTED, FETCH_WORD, MAX_FETCHES, MAX_STRING};
use profiler_trace::arguments::Signatures;

/// Sections, by the number that an input has for each.
pub(super) const SECTIONS: [&str; 12] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_str",
    ".debug_line_str",
    ".debug_addr",
    ".debug_aranges",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_loc",
    ".debug_loclists",
    ".debug_str_offsets",
    ".debug_types",
];

/// Functions that are asked for.
const MAX_ADDRESSES: usize = 16;
/// Bytes that are kept of a text.
const TEXT_BYTES: usize = 64;

/// Reads signatures: a number of addresses and these, 4 bytes each; then sections, each a number, a
/// length of 3 bytes, and its contents; then, as a section of another number, the items of a record.
/// Gives the number of values that can be had.
pub fn signature(data: &[u8]) -> usize {
    let Some((count, mut rest)) = data.split_first() else {
        return 0;
    };
    let mut addresses = Vec::new();
    for _ in 0..usize::from(*count).min(MAX_ADDRESSES) {
        let Some((address, behind)) = rest.split_first_chunk() else {
            break;
        };
        addresses.push(u64::from(u32::from_le_bytes(*address)));
        rest = behind;
    }
    let mut sections = [None; SECTIONS.len()];
    let mut items: &[u8] = &[];
    while let [number, a, b, c, more @ ..] = rest {
        let len = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        let (contents, behind) = more.split_at(len.min(more.len()));
        rest = behind;
        match sections.get_mut(usize::from(*number)) {
            Some(section) => *section = Some(contents),
            None => items = contents,
        }
    }
    let section = |name: &str| {
        let at = SECTIONS.iter().position(|known| *known == name)?;
        sections[at].map(Cow::Borrowed)
    };
    let Some(mut signatures) = Signatures::open(section) else {
        return 0;
    };
    let mut values = 0;
    for address in addresses {
        for name in ["", "_ZN3lib5ShapeC2Ei"] {
            let Some(mut signature) = signatures.signature(address, name) else {
                continue;
            };
            signature.limit_text(TEXT_BYTES);
            check(&signature, items);
            let all = signature.parameters.iter().chain(&signature.result);
            values += all.filter(|value| value.missing.is_none()).count();
        }
    }
    values
}

/// The kernel side can run what it is asked to, and whatever it answers is shown within bounds.
fn check(signature: &profiler_trace::arguments::Signature, items: &[u8]) {
    assert!(signature.fetches.len() <= MAX_FETCHES);
    assert!(
        signature.fetches.is_sorted_by_key(|fetch| fetch.at_exit),
        "those of entries come first"
    );
    for fetch in &signature.fetches {
        assert!((FETCH_WORD..=FETCH_COUNTED).contains(&fetch.kind));
        assert!(usize::from(fetch.size) <= MAX_STRING && fetch.derefs <= 2);
    }
    for at_exit in [false, true] {
        let values = signature.decode(items, at_exit, TEXT_BYTES);
        let expected = match at_exit {
            true => usize::from(signature.result.is_some()),
            false => signature.parameters.len(),
        };
        assert_eq!(values.len(), expected, "a value for each");
        for value in values {
            assert!(value.to_string().len() < 4096, "{value:?}");
        }
    }
}
