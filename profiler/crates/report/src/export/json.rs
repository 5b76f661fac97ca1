//! JSON written piece by piece: objects of columns, times as decimal fractions.
//!
//! Numbers and texts -> JSON. Nothing is kept. What does not belong here: what a format's fields mean.

use std::fmt::{self, Display};
use std::io::{self, Write};

use serde::Serialize;

/// Writes a text or another value.
pub(super) fn value(out: &mut impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

/// Writes `,"name":[...]` of what is JSON as it is shown.
pub(super) fn column(
    out: &mut impl Write,
    name: &str,
    items: impl IntoIterator<Item = impl Display>,
) -> io::Result<()> {
    write!(out, ",\"{name}\":[")?;
    for (index, item) in items.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}{item}")?;
    }
    out.write_all(b"]")
}

/// Writes `,"name":[...]` of texts.
pub(super) fn texts(
    out: &mut impl Write,
    name: &str,
    items: impl IntoIterator<Item = impl AsRef<str>>,
) -> io::Result<()> {
    write!(out, ",\"{name}\":[")?;
    for (index, item) in items.into_iter().enumerate() {
        out.write_all(if index == 0 { b"" } else { b"," })?;
        value(out, item.as_ref())?;
    }
    out.write_all(b"]")
}

/// A number, or `null`.
pub(super) struct OrNull<T>(pub(super) Option<T>);

impl<T: Display> Display for OrNull<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(formatter),
            None => formatter.write_str("null"),
        }
    }
}

/// Nanoseconds, shown in a unit of so many of them (a power of ten) without losing any.
pub(super) struct Fraction {
    pub(super) ns: u64,
    pub(super) digits: usize,
}

/// Nanoseconds as milliseconds.
pub(super) fn ms(ns: u64) -> Fraction {
    Fraction { ns, digits: 6 }
}

/// Nanoseconds as microseconds.
pub(super) fn us(ns: u64) -> Fraction {
    Fraction { ns, digits: 3 }
}

impl Display for Fraction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u64.pow(self.digits as u32);
        let (whole, rest) = (self.ns / unit, self.ns % unit);
        match rest {
            0 => write!(formatter, "{whole}"),
            rest => write!(formatter, "{whole}.{rest:0width$}", width = self.digits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_kept() {
        let shown = [ms(0), ms(1), ms(1_500_000), us(1_001), us(u64::MAX)];
        let shown = shown.map(|fraction| fraction.to_string());
        assert_eq!(
            shown,
            [
                "0",
                "0.000001",
                "1.500000",
                "1.001",
                "18446744073709551.615"
            ]
        );
    }

    #[test]
    fn columns_are_json() {
        let mut out = b"{\"length\":2".to_vec();
        column(&mut out, "a", [OrNull(Some(1)), OrNull(None)]).unwrap();
        texts(&mut out, "b", ["\"", "\u{0}"]).unwrap();
        out.push(b'}');
        let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let expected = serde_json::json!({"length": 2, "a": [1, null], "b": ["\"", "\u{0}"]});
        assert_eq!(read, expected);
    }
}
