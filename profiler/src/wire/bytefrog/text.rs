//! Java's modified UTF-8, as `DataOutputStream.writeUTF` writes it: a length of 16 bits, then bytes.
//!
//! U+0000 takes two bytes, what lies outside the basic plane two surrogates of three bytes each.
//! Longer texts are cut between characters.

/// Most bytes of one text.
pub const MAX_TEXT_BYTES: usize = u16::MAX as usize;

/// Appends `text` with its length before it, cut to what fits.
pub fn put(text: &str, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    for character in text.chars() {
        let before = out.len();
        put_character(character, out);
        if out.len() - at - 2 > MAX_TEXT_BYTES {
            out.truncate(before);
            break;
        }
    }
    let len = (out.len() - at - 2) as u16;
    out[at..at + 2].copy_from_slice(&len.to_be_bytes());
}

fn put_character(character: char, out: &mut Vec<u8>) {
    match character {
        '\0' => out.extend_from_slice(&[0xc0, 0x80]),
        '\u{1}'..='\u{7f}' => out.push(character as u8),
        _ => {
            let mut units = [0; 2];
            for &unit in character.encode_utf16(&mut units).iter() {
                put_unit(unit, out);
            }
        }
    }
}

/// Appends a UTF-16 unit above U+007F.
fn put_unit(unit: u16, out: &mut Vec<u8>) {
    let continued = |bits: u16| 0x80 | (bits & 0x3f) as u8;
    if unit < 0x800 {
        out.extend_from_slice(&[0xc0 | (unit >> 6) as u8, continued(unit)]);
    } else {
        out.extend_from_slice(&[
            0xe0 | (unit >> 12) as u8,
            continued(unit >> 6),
            continued(unit),
        ]);
    }
}

/// Bytes that are no modified UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of a text is no modified UTF-8")]
pub struct BadText {
    /// Offset of the first byte that is wrong.
    pub at: usize,
}

/// Reads a text without its length. A surrogate that stands alone, which Java allows, becomes U+FFFD;
/// anything that Java's reader would refuse is an error.
pub fn read(bytes: &[u8]) -> Result<String, BadText> {
    if bytes.is_ascii() {
        // A plain zero is read as it is, as Java does.
        return Ok(bytes.iter().map(|&byte| char::from(byte)).collect());
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let (unit, len) = read_unit(&bytes[at..]).ok_or(BadText { at })?;
        units.push(unit);
        at += len;
    }
    Ok(String::from_utf16_lossy(&units))
}

fn read_unit(bytes: &[u8]) -> Option<(u16, usize)> {
    let continued = |at: usize| {
        let byte = *bytes.get(at)?;
        (byte & 0xc0 == 0x80).then_some(u16::from(byte & 0x3f))
    };
    let first = *bytes.first()?;
    match first {
        0..=0x7f => Some((u16::from(first), 1)),
        0xc0..=0xdf => Some((u16::from(first & 0x1f) << 6 | continued(1)?, 2)),
        0xe0..=0xef => {
            let high = u16::from(first & 0x0f) << 12;
            Some((high | continued(1)? << 6 | continued(2)?, 3))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put(text, &mut out);
        out
    }

    #[test]
    fn is_as_java_writes_it() {
        assert_eq!(encoded(""), [0, 0]);
        assert_eq!(encoded("a\0é€"), b"\0\x08a\xc0\x80\xc3\xa9\xe2\x82\xac");
        // U+1F600: two surrogates, never four bytes.
        assert_eq!(encoded("\u{1f600}"), b"\0\x06\xed\xa0\xbd\xed\xb8\x80");
    }

    #[test]
    fn is_cut_between_characters() {
        let exact = "a".repeat(MAX_TEXT_BYTES);
        assert_eq!(encoded(&exact).len(), 2 + MAX_TEXT_BYTES);
        for (last, kept) in [("é", 65534), ("\u{1f600}", 65534), ("b", 65535)] {
            let text = format!("{}{last}{last}", "a".repeat(MAX_TEXT_BYTES - 1));
            let bytes = encoded(&text);
            assert_eq!(bytes.len(), 2 + kept, "{last}");
            assert_eq!(bytes[..2], (kept as u16).to_be_bytes());
        }
    }

    #[test]
    fn is_read_back() {
        for text in [
            "",
            "plain",
            "a\0é€\u{1f600}b",
            "\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}",
        ] {
            assert_eq!(read(&encoded(text)[2..]).as_deref(), Ok(text));
        }
        assert_eq!(read(b"\xed\xa0\xbdx").as_deref(), Ok("\u{fffd}x"));
    }

    #[test]
    fn what_java_refuses_is_an_error() {
        for (bytes, at) in [
            (&b"ab\xf0\x9f\x98\x80"[..], 2),
            (b"\x80", 0),
            (b"a\xc3", 1),
            (b"\xe2\x82", 0),
            (b"\xe2\x82a", 0),
            (b"\xc3\xc3", 0),
        ] {
            assert_eq!(read(bytes), Err(BadText { at }), "{bytes:x?}");
        }
    }
}
