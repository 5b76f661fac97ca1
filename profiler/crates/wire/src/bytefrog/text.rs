//! Java's modified UTF-8, as `DataOutputStream.writeUTF` writes it: a length of 16 bits, then bytes.
//!
//! Input: text; output: its bytes, and back. It is UTF-8 but for U+0000, which takes two bytes, and
//! for what lies outside the basic plane: two surrogates of three bytes each. Texts that are too long
//! are cut between characters.
//!
//! Source: the documentation of `java.io.DataInput`. What does not belong here: fields around texts.

use std::borrow::Cow;

/// Most bytes of one text with a length of 16 bits.
pub const MAX_TEXT_BYTES: usize = u16::MAX as usize;

/// The least first byte of a character that takes four bytes in UTF-8, and two surrogates here.
const FOUR_BYTES: u8 = 0xf0;

/// Appends `text` with its length before it, cut to what fits.
#[inline]
pub fn put(text: &str, out: &mut Vec<u8>) {
    let bytes = encode(text);
    let bytes = &bytes[..fitting(&bytes)];
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// All of a text, without its length. Most texts are what they are in UTF-8.
pub fn encode(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    // All bytes in any case: without a way out of the loop it takes many at a time.
    let other = |other, &byte: &u8| other | (byte == 0) | (byte >= FOUR_BYTES);
    if !bytes.iter().fold(false, other) {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 2);
    for character in text.chars() {
        match character {
            '\0' => out.extend_from_slice(&[0xc0, 0x80]),
            '\u{10000}'.. => {
                for &mut unit in character.encode_utf16(&mut [0; 2]) {
                    let continued = |bits: u16| 0x80 | (bits & 0x3f) as u8;
                    out.extend_from_slice(&[
                        0xe0 | (unit >> 12) as u8,
                        continued(unit >> 6),
                        continued(unit),
                    ]);
                }
            }
            _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(out)
}

/// How many bytes of an encoded text fit: whole characters only.
fn fitting(bytes: &[u8]) -> usize {
    if bytes.len() <= MAX_TEXT_BYTES {
        return bytes.len();
    }
    let mut end = MAX_TEXT_BYTES;
    while end > 0 && bytes[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    // Between two surrogates there is no end either: the second is never the first of a text.
    match bytes[end..] {
        [0xed, 0xb0..=0xff, ..] => end - 3,
        _ => end,
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
/// a plain zero and characters in more bytes than they need are read, as Java does; anything that
/// Java's reader refuses is an error.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Cow<'_, str>, BadText> {
    let four = |four, &byte: &u8| four | (byte >= FOUR_BYTES);
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.iter().fold(false, four) => Ok(Cow::Borrowed(text)),
        _ => read_units(bytes).map(Cow::Owned),
    }
}

fn read_units(bytes: &[u8]) -> Result<String, BadText> {
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
        let mut out = vec![7];
        put(text, &mut out);
        assert_eq!(out.remove(0), 7, "what is there stays");
        out
    }

    #[test]
    fn is_as_java_writes_it() {
        assert_eq!(encoded(""), [0, 0]);
        assert_eq!(encoded("a\0é€"), b"\0\x08a\xc0\x80\xc3\xa9\xe2\x82\xac");
        // U+1F600: two surrogates, never four bytes.
        assert_eq!(encoded("\u{1f600}"), b"\0\x06\xed\xa0\xbd\xed\xb8\x80");
        // The bytes that OpenJDK 17 writes for the ends of all ranges.
        let text = "a\0\u{7f}\u{80}é\u{7ff}\u{800}€\u{ffff}\u{1f600}\u{10000}\u{10ffff}";
        let java = b"a\xc0\x80\x7f\xc2\x80\xc3\xa9\xdf\xbf\xe0\xa0\x80\xe2\x82\xac\xef\xbf\xbf\
            \xed\xa0\xbd\xed\xb8\x80\xed\xa0\x80\xed\xb0\x80\xed\xaf\xbf\xed\xbf\xbf";
        assert_eq!(encoded(text)[2..], java[..]);
        assert_eq!(read(java).as_deref(), Ok(text));
    }

    #[test]
    fn is_cut_between_characters() {
        let exact = "a".repeat(MAX_TEXT_BYTES);
        assert_eq!(encoded(&exact).len(), 2 + MAX_TEXT_BYTES);
        for last in ["b", "é", "€", "\u{1f600}", "\0", "\u{d7ff}", "\u{ed80}"] {
            let width = encoded(last).len() - 2;
            for room in 0..=7 {
                let text = "a".repeat(MAX_TEXT_BYTES - room) + &last.repeat(9);
                let bytes = encoded(&text);
                let kept = MAX_TEXT_BYTES - room % width;
                assert_eq!(bytes.len(), 2 + kept, "{last:?} {room}");
                assert_eq!(bytes[..2], (kept as u16).to_be_bytes());
                let read = read(&bytes[2..]).unwrap();
                assert!(text.starts_with(&*read), "{last:?} {room}");
            }
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
        let alone = read(b"\xed\xa0\xbdx\xed\xb0\x80\xed\xaf\xbf\xed\xbf\xbf");
        assert_eq!(alone.as_deref(), Ok("\u{fffd}x\u{fffd}\u{10ffff}"));
    }

    #[test]
    fn what_java_reads_and_does_not_write_is_read() {
        assert_eq!(read(b"a\0b").as_deref(), Ok("a\0b"));
        assert_eq!(
            read(b"\xc1\x81\xe0\x81\x81\xe0\x80\x80").as_deref(),
            Ok("AA\0")
        );
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
            (b"\xff", 0),
        ] {
            assert_eq!(read(bytes), Err(BadText { at }), "{bytes:x?}");
        }
    }
}
