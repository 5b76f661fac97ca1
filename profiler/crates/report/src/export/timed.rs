//! Samples of a thread in the order in which they came, packed: a few bytes each, put aside in pieces.
//!
//! Time, key and what it stands for -> bytes, and back. Times are nanoseconds of CLOCK_MONOTONIC, weights are in the unit
//! of the source. What does not belong here: what the keys stand for ([`Keys`](super::runs::Keys)).

use super::aside::{Aside, Piece};
use profiler_model::Timestamp;
use profiler_wire::prost::encoding::{decode_varint, encode_varint};

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    pub(super) key: u32,
    /// How many it stands for: more than 1 only of waits.
    pub(super) count: u32,
    pub(super) weight: u64,
}

/// Bytes of a thread that are put aside at once: few, as there may be very many threads.
const PIECE: usize = 8 << 10;

/// Samples, packed. What is as it was in the sample before takes a byte.
#[derive(Debug, Default)]
pub(super) struct Timed {
    pieces: Vec<Piece>,
    /// What is behind them.
    bytes: Vec<u8>,
    last: Option<Moment>,
    goes_back: bool,
}

const NOTHING: Moment = Moment {
    at: Timestamp(0),
    key: 0,
    count: 1,
    weight: 0,
};

impl Timed {
    pub(super) fn push(&mut self, moment: Moment, aside: &mut Aside) {
        let last = self.last.unwrap_or(NOTHING);
        self.goes_back |= moment.at < last.at;
        let step = moment.at.0.wrapping_sub(last.at.0).cast_signed();
        // Signs in the lowest bit: a step back is rare, but possible.
        let zigzag = (step << 1) ^ (step >> 63);
        encode_varint(zigzag.cast_unsigned(), &mut self.bytes);
        let same = (moment.count, moment.weight) == (last.count, last.weight);
        encode_varint(
            u64::from(moment.key) << 1 | u64::from(!same),
            &mut self.bytes,
        );
        if !same {
            encode_varint(moment.count.into(), &mut self.bytes);
            encode_varint(moment.weight, &mut self.bytes);
        }
        self.last = Some(moment);
        if self.bytes.len() >= PIECE {
            self.pieces.push(aside.put(&self.bytes));
            self.bytes.clear();
        }
    }

    /// Whether they came in order of time.
    pub(super) fn are_in_order(&self) -> bool {
        !self.goes_back
    }

    /// All of them; those behind what can't be got again are not among them ([`Aside::check`]).
    pub(super) fn iter(&self, aside: &Aside) -> impl Iterator<Item = Moment> {
        let mut pieces = self.pieces.iter();
        let (mut bytes, mut at, mut last) = (Vec::new(), 0, NOTHING);
        let mut behind = Some(&self.bytes);
        std::iter::from_fn(move || {
            if at == bytes.len() {
                match pieces.next() {
                    Some(piece) => aside.get(piece, &mut bytes),
                    None => behind.take()?.clone_into(&mut bytes),
                }
                at = 0;
            }
            let mut rest = &bytes[at..];
            // They are ours: the only way to fail is the end.
            let zigzag = decode_varint(&mut rest).ok()?;
            let step = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
            let key = decode_varint(&mut rest).ok()?;
            let (count, weight) = match key & 1 {
                0 => (last.count, last.weight),
                _ => {
                    let count = decode_varint(&mut rest).ok()?;
                    (count as u32, decode_varint(&mut rest).ok()?)
                }
            };
            at = bytes.len() - rest.len();
            last = Moment {
                at: Timestamp(last.at.0.wrapping_add(step.cast_unsigned())),
                key: (key >> 1) as u32,
                count,
                weight,
            };
            Some(last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out(moments in prop::collection::vec(
            (any::<u64>(), any::<u32>(), any::<u32>(), prop_oneof![Just(7), any::<u64>()]), 0..20)) {
            let moments: Vec<Moment> = moments
                .into_iter()
                .map(|(at, key, count, weight)| Moment { at: Timestamp(at), key, count, weight })
                .collect();
            let (mut timed, mut aside) = (Timed::default(), Aside::default());
            moments.iter().for_each(|&moment| timed.push(moment, &mut aside));
            prop_assert_eq!(timed.are_in_order(), moments.is_sorted_by_key(|moment| moment.at));
            prop_assert_eq!(timed.iter(&aside).collect::<Vec<_>>(), moments);
        }
    }

    #[test]
    fn a_usual_sample_takes_few_bytes() {
        let (mut timed, mut aside) = (Timed::default(), Aside::default());
        for tick in 0..1000 {
            timed.push(usual(tick), &mut aside);
        }
        assert!(timed.bytes.len() < 5_000, "{}", timed.bytes.len());
    }

    fn usual(tick: u64) -> Moment {
        Moment {
            at: Timestamp(1_000_000_000_000 + tick * 1_001_001),
            key: tick as u32 % 60,
            count: 1,
            weight: 1_001_001 + tick / 1000,
        }
    }

    #[test]
    fn many_are_put_aside() {
        for most in [0, 3 * PIECE, usize::MAX] {
            let (mut timed, mut aside) = (Timed::default(), Aside::with_most_in_memory(most));
            for tick in 0..50_000 {
                timed.push(usual(tick), &mut aside);
            }
            assert!(timed.pieces.len() > 10 && timed.bytes.len() < PIECE);
            let in_file = timed
                .pieces
                .iter()
                .filter(|piece| matches!(piece, Piece::File { .. }));
            assert_eq!(in_file.count() > 0, most < usize::MAX);
            assert!(timed.iter(&aside).eq((0..50_000).map(usual)));
            aside.check().unwrap();
        }
    }

    #[test]
    fn what_can_not_be_got_again_is_told() {
        let (mut timed, mut aside) = (Timed::default(), Aside::with_most_in_memory(0));
        for tick in 0..50_000 {
            timed.push(usual(tick), &mut aside);
        }
        aside.lose_file();
        assert!(timed.iter(&aside).count() < 50_000);
        aside.check().unwrap_err();
    }
}
