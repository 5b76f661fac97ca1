//! Reading numbers out of a section.
//!
//! Bytes -> integers of fixed and of variable length (LEB128), little endian. Nothing is read beyond
//! the end: then the answer is `None`, and where the cursor stands is of no use any more. Source: the
//! DWARF standard, section 7.6. What the numbers mean does not belong here.

/// A place in a section.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At `at` of `bytes`, which may be beyond their end: then there is nothing to read.
    pub fn new(bytes: &'a [u8], at: usize) -> Cursor<'a> {
        Cursor { bytes, at }
    }

    /// Where it stands.
    #[inline]
    pub fn place(&self) -> usize {
        self.at
    }

    /// Whether everything was read.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(taken)
    }

    /// The next byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// The next 2 bytes, little-endian.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 4 bytes, little-endian.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 8 bytes, little-endian.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned number of variable length; none if it has more than 64 bits.
    #[inline]
    pub fn uleb(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift > 63 || shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
        }
    }

    /// A signed number of variable length; none if it has more than 64 bits.
    #[inline]
    pub fn sleb(&mut self) -> Option<i64> {
        let mut value = 0i64;
        let mut shift = 0;
        loop {
            let byte = self.u8()?;
            if shift > 63 || shift == 63 && !matches!(byte, 0 | 0x7f) {
                return None;
            }
            value |= i64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                if shift < 64 && byte & 0x40 != 0 {
                    value |= -1 << shift;
                }
                return Some(value);
            }
        }
    }

    /// The bytes up to the next zero byte, which is passed too.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().position(|&byte| byte == 0)?;
        self.at += len + 1;
        Some(&rest[..len])
    }

    /// A block of bytes with its length before it.
    pub fn block(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.uleb()?).ok()?;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_numbers_of_the_standards_examples() {
        let unsigned: [(&[u8], u64); 5] = [
            (&[2], 2),
            (&[127], 127),
            (&[0x80, 1], 128),
            (&[0x81, 1], 129),
            (&[57 + 0x80, 100], 12857),
        ];
        for (bytes, number) in unsigned {
            assert_eq!(Cursor::new(bytes, 0).uleb(), Some(number));
        }
        let signed: [(&[u8], i64); 6] = [
            (&[2], 2),
            (&[0x7e], -2),
            (&[127 + 0x80, 0], 127),
            (&[1 + 0x80, 0x7f], -127),
            (&[0x80, 1], 128),
            (&[0x80, 0x7f], -128),
        ];
        for (bytes, number) in signed {
            assert_eq!(Cursor::new(bytes, 0).sleb(), Some(number));
        }
    }

    #[test]
    fn too_many_bits_and_missing_bytes_are_no_number() {
        let full = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(Cursor::new(&full, 0).uleb(), Some(u64::MAX));
        let mut wide = full;
        wide[9] = 2;
        assert_eq!(Cursor::new(&wide, 0).uleb(), None);
        assert_eq!(Cursor::new(&full[..9], 0).uleb(), None);
        assert_eq!(Cursor::new(&[0x80; 12], 0).sleb(), None);
        assert_eq!(Cursor::new(&[1], 9).u8(), None);
        assert_eq!(Cursor::new(&[1, 2], 0).take(usize::MAX), None);
        assert_eq!(Cursor::new(b"ab", 0).text(), None);
        assert_eq!(Cursor::new(&[3, 1, 2], 0).block(), None);
    }

    proptest! {
        #[test]
        fn agrees_with_another_reader(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            use gimli::{EndianSlice, LittleEndian, Reader};
            let other = || EndianSlice::new(&bytes, LittleEndian);
            prop_assert_eq!(Cursor::new(&bytes, 0).uleb(), other().read_uleb128().ok());
            prop_assert_eq!(Cursor::new(&bytes, 0).sleb(), other().read_sleb128().ok());
        }
    }
}
