//! Takes fixed-size fields off the front of bytes, in native byte order.

/// Bytes not read yet.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
}
