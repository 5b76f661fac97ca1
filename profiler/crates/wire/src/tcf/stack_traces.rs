//! The format `StackTraces` of profile data: stacks with counts -> words and back.
//!
//! Words of the target's address size, `count`, `length`, then as many addresses, leaf first, again and
//! again. A client reads counts and lengths as signed numbers of 32 bits, and takes what follows a
//! length of 0 for addresses: neither a greater count nor an empty stack is ever written.
//!
//! Source: the reference implementation's generic profiler and its client. What does not belong here:
//! base64 and the properties around the data.

/// Greatest count of a stack; more of the same are written as several.
pub const MAX_COUNT: u64 = i32::MAX as u64;

/// How words are written. A client that is told neither takes 4 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordLayout {
    /// Words have 8 bytes, else 4.
    pub wide: bool,
    /// The most significant byte comes first.
    pub big_endian: bool,
}

impl WordLayout {
    /// 8 bytes, little-endian: what a 64-bit agent sends.
    pub const WIDE: WordLayout = WordLayout {
        wide: true,
        big_endian: false,
    };

    /// Bytes of a word: `AddrSize`.
    pub fn bytes(self) -> usize {
        match self.wide {
            true => 8,
            false => 4,
        }
    }

    fn put(self, word: u64, out: &mut Vec<u8>) {
        match (self.wide, self.big_endian) {
            (true, false) => out.extend_from_slice(&word.to_le_bytes()),
            (true, true) => out.extend_from_slice(&word.to_be_bytes()),
            (false, false) => out.extend_from_slice(&(word as u32).to_le_bytes()),
            (false, true) => out.extend_from_slice(&(word as u32).to_be_bytes()),
        }
    }

    fn get(self, bytes: &[u8]) -> u64 {
        let fold = |word: u64, byte: &u8| word << 8 | u64::from(*byte);
        match self.big_endian {
            true => bytes.iter().fold(0, fold),
            false => bytes.iter().rev().fold(0, fold),
        }
    }
}

/// A stack, and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTrace {
    /// How often.
    pub count: u64,
    /// Its addresses, leaf first.
    pub addresses: Vec<u64>,
}

/// Data that is no row of stacks, or stacks that can't be written so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackTracesError {
    /// The data ends within a stack.
    #[error("profile data ends at byte {0}, within a stack")]
    Unfinished(usize),
    /// A stack without addresses.
    #[error("the stack at byte {0} of profile data is empty")]
    Empty(usize),
    /// An address needs wider words.
    #[error("address {0:#x} does not fit into 4 bytes")]
    Wide(u64),
}

/// Appends a stack, in several pieces if its count is too great for one. Nothing is written for an
/// empty stack or a count of 0.
pub fn encode(
    layout: WordLayout,
    count: u64,
    addresses: &[u64],
    out: &mut Vec<u8>,
) -> Result<(), StackTracesError> {
    let is_wide = |address: &&u64| **address > u64::from(u32::MAX);
    if !layout.wide
        && let Some(&address) = addresses.iter().find(is_wide)
    {
        return Err(StackTracesError::Wide(address));
    }
    if addresses.is_empty() {
        return Ok(());
    }
    let mut left = count;
    while left > 0 {
        let count = left.min(MAX_COUNT);
        left -= count;
        layout.put(count, out);
        layout.put(addresses.len() as u64, out);
        for &address in addresses {
            layout.put(address, out);
        }
    }
    Ok(())
}

/// Reads all stacks of data, in their order.
pub fn decode(layout: WordLayout, data: &[u8]) -> Result<Vec<StackTrace>, StackTracesError> {
    let unfinished = StackTracesError::Unfinished(data.len());
    if !data.len().is_multiple_of(layout.bytes()) {
        return Err(unfinished);
    }
    let mut stacks = Vec::new();
    let mut words = data
        .chunks_exact(layout.bytes())
        .map(|word| layout.get(word));
    loop {
        let at = data.len() - words.len() * layout.bytes();
        let Some(count) = words.next() else {
            return Ok(stacks);
        };
        let len = words.next().ok_or(unfinished)?;
        match usize::try_from(len) {
            Ok(0) => return Err(StackTracesError::Empty(at)),
            Ok(len) if len <= words.len() => stacks.push(StackTrace {
                count,
                addresses: words.by_ref().take(len).collect(),
            }),
            _ => return Err(unfinished),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NARROW: WordLayout = WordLayout {
        wide: false,
        big_endian: false,
    };

    #[test]
    fn the_words_are_those_that_clients_expect() {
        let mut out = Vec::new();
        encode(NARROW, 3, &[0x1234, 0x5678], &mut out).unwrap();
        assert_eq!(
            out,
            [3, 0, 0, 0, 2, 0, 0, 0, 0x34, 0x12, 0, 0, 0x78, 0x56, 0, 0]
        );
        out.clear();
        encode(WordLayout::WIDE, 1, &[0x7fff_0000_1234], &mut out).unwrap();
        assert_eq!(
            out,
            [
                1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0, 0, 0xff, 0x7f, 0, 0
            ]
        );
    }

    #[test]
    fn counts_are_split_and_stacks_are_never_empty() {
        let mut out = Vec::new();
        encode(WordLayout::WIDE, MAX_COUNT * 2 + 5, &[7], &mut out).unwrap();
        encode(WordLayout::WIDE, 9, &[], &mut out).unwrap();
        encode(WordLayout::WIDE, 0, &[7], &mut out).unwrap();
        let stacks = decode(WordLayout::WIDE, &out).unwrap();
        let counts: Vec<u64> = stacks.iter().map(|stack| stack.count).collect();
        assert_eq!(counts, [MAX_COUNT, MAX_COUNT, 5]);
    }

    #[test]
    fn what_can_not_be_said_is_an_error() {
        let mut out = Vec::new();
        let address = 1 << 32;
        assert_eq!(
            encode(NARROW, 1, &[1, address], &mut out),
            Err(StackTracesError::Wide(address))
        );
        assert!(out.is_empty());
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let of = |data: &[u8]| decode(WordLayout::WIDE, data);
        assert_eq!(of(&[]), Ok(Vec::new()));
        assert_eq!(of(&words(&[1])), Err(StackTracesError::Unfinished(8)));
        assert_eq!(
            of(&words(&[1, 2, 3])),
            Err(StackTracesError::Unfinished(24))
        );
        assert_eq!(
            of(&words(&[1, 1, 3, 1, 0, 5])),
            Err(StackTracesError::Empty(24))
        );
        assert_eq!(
            of(&words(&[1, u64::MAX, 3])),
            Err(StackTracesError::Unfinished(24))
        );
        assert_eq!(of(&[0; 7]), Err(StackTracesError::Unfinished(7)));
    }

    fn layouts() -> impl Strategy<Value = WordLayout> {
        (any::<bool>(), any::<bool>())
            .prop_map(|(wide, big_endian)| WordLayout { wide, big_endian })
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            layout in layouts(),
            stacks in prop::collection::vec(
                (1..=MAX_COUNT, prop::collection::vec(any::<u64>(), 1..20)), 0..20),
        ) {
            let mut data = Vec::new();
            let mut expected = Vec::new();
            for (count, mut addresses) in stacks {
                if !layout.wide {
                    addresses.iter_mut().for_each(|address| *address >>= 32);
                }
                encode(layout, count, &addresses, &mut data).unwrap();
                expected.push(StackTrace { count, addresses });
            }
            prop_assert_eq!(decode(layout, &data), Ok(expected));
        }

        #[test]
        fn hostile_data_is_an_error_at_worst(
            layout in layouts(),
            data in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..200),
        ) {
            if let Ok(stacks) = decode(layout, &data) {
                let mut again = Vec::new();
                let small = stacks.iter().all(|stack| (1..=MAX_COUNT).contains(&stack.count));
                for stack in stacks {
                    encode(layout, stack.count, &stack.addresses, &mut again).unwrap();
                }
                prop_assert!(!small || again == data);
            }
        }
    }
}
