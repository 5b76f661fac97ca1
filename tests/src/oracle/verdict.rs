//! Two chains of one sample -> whether they are equal, and if not, which kind of difference it is.
//!
//! Chains agree if every address is the same, leaf first. Where one walker gave up earlier, what both
//! have must be the same, and the kind says which of them stopped and why; a difference between two
//! addresses is never explained away.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use profiler_common::{
    INNERMOST_FRAMES, MAX_FRAMES, MAX_USER_FRAMES,
    sample::{EXACT_ADDRESS, LEFT_OUT},
};
use profiler_model::StackEnd;

use super::Proof;
use super::judge::{JudgeEnd, Judgement};

/// What the comparison of one sample says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Both reach the outermost frame, by the same addresses.
    Equal,
    /// Both end with the same frame; to the other walker it is the outermost one, to ours it is not.
    OtherEnd,
    /// The stack is deeper than the kernel side walks; the same addresses up to there.
    Deeper,
    /// Ours is complete; the other walker needed memory that the copy does not have (a stack of more
    /// than 64 KiB, or one of which a signal handler has left).
    CopyShort,
    /// The same addresses, but the other walker has no way on where ours has one (frame pointers in
    /// code made at run time, rows in a file's `.debug_frame`).
    JudgeGaveUp,
    /// The same addresses as far as either went: both found no way on.
    BothGaveUp,
    /// The same addresses; ours ended because a file's table was not loaded, or a mapping not known
    /// yet.
    NotLoaded,
    /// The same addresses; ours ended early and the other walker goes on.
    OursShort,
    /// The same addresses; the other walker is at the outermost frame, and ours goes on.
    OursLong,
    /// Another address.
    Different,
}

impl Verdict {
    /// Whether the sample says something about our rows: the other walker could walk all of it that
    /// ours is meant to.
    pub fn is_judged(self) -> bool {
        use Verdict::{Deeper, Different, Equal, OtherEnd, OursLong, OursShort};
        matches!(
            self,
            Equal | OtherEnd | Deeper | OursShort | OursLong | Different
        )
    }

    /// Whether the two agree.
    pub fn agrees(self) -> bool {
        matches!(self, Verdict::Equal | Verdict::OtherEnd | Verdict::Deeper)
    }
}

/// Compares; also gives the index of the frame from which on the two differ.
pub fn compare(proof: &Proof, judgement: &Judgement) -> (Verdict, usize) {
    if proof.chain.get(INNERMOST_FRAMES) == Some(&LEFT_OUT) {
        return compare_both_ends(proof, judgement);
    }
    let ours = proof.chain.iter().map(|address| address & !EXACT_ADDRESS);
    let theirs = judgement.chain.iter().copied();
    let common = ours.zip(theirs).take_while(|(ours, theirs)| ours == theirs);
    let common = common.count();
    let (len, judged) = (proof.chain.len(), judgement.chain.len());
    let complete = judgement.end == JudgeEnd::Complete;
    let verdict = if common < len && common < judged {
        Verdict::Different
    } else if len == judged {
        match (proof.end, complete) {
            (StackEnd::Complete, true) => Verdict::Equal,
            (StackEnd::Truncated, _) if len >= MAX_FRAMES => Verdict::Deeper,
            (StackEnd::NoTable | StackEnd::NoMapping, _) => Verdict::NotLoaded,
            (_, true) => Verdict::OtherEnd,
            (StackEnd::Complete, false) => gave_up(judgement),
            (_, false) => Verdict::BothGaveUp,
        }
    } else if len > judged {
        if complete {
            Verdict::OursLong
        } else {
            gave_up(judgement)
        }
    } else {
        match proof.end {
            StackEnd::Truncated if len >= MAX_FRAMES => Verdict::Deeper,
            StackEnd::NoTable | StackEnd::NoMapping => Verdict::NotLoaded,
            _ => Verdict::OursShort,
        }
    };
    (verdict, common)
}

/// Compares a stack whose middle is left out.
fn compare_both_ends(proof: &Proof, judgement: &Judgement) -> (Verdict, usize) {
    let plain = |addresses: &[u64]| -> Vec<u64> {
        let addresses = addresses.iter();
        addresses.map(|address| address & !EXACT_ADDRESS).collect()
    };
    let theirs = &judgement.chain;
    let inner = plain(&proof.chain[..INNERMOST_FRAMES]);
    let outer = plain(&proof.chain[INNERMOST_FRAMES + 1..]);
    let common = inner
        .iter()
        .zip(theirs)
        .take_while(|(ours, theirs)| ours == theirs);
    let common = common.count();
    let verdict = if common < inner.len().min(theirs.len()) {
        Verdict::Different
    } else if judgement.end != JudgeEnd::Complete {
        gave_up(judgement)
    } else if theirs.len() <= MAX_USER_FRAMES {
        Verdict::OursLong
    } else if proof.end != StackEnd::LeftOut {
        Verdict::OursShort
    } else if theirs.ends_with(&outer) {
        Verdict::Deeper
    } else {
        Verdict::Different
    };
    (verdict, common)
}

fn gave_up(judgement: &Judgement) -> Verdict {
    match judgement.end {
        JudgeEnd::Memory(_) => Verdict::CopyShort,
        _ => Verdict::JudgeGaveUp,
    }
}

/// Counts of one program.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many samples of each kind.
    pub counts: BTreeMap<Verdict, u64>,
    /// Frames of the chains that agree.
    pub frames: u64,
    /// Depth of the deepest of them.
    pub deepest: usize,
    /// Differences by where they begin, and an example of each.
    pub places: BTreeMap<(Verdict, String), (u64, String)>,
}

impl Tally {
    /// Adds a comparison; `place` names an address.
    pub fn add(&mut self, proof: &Proof, judgement: &Judgement, place: impl Fn(u64) -> String) {
        let (verdict, common) = compare(proof, judgement);
        *self.counts.entry(verdict).or_default() += 1;
        if matches!(verdict, Verdict::Equal | Verdict::Deeper) {
            self.frames += common as u64;
            self.deepest = self.deepest.max(common);
            return;
        }
        // The frame whose rule led to the difference.
        let at = common
            .checked_sub(1)
            .and_then(|last| judgement.chain.get(last));
        let at = at.map_or_else(|| "the leaf itself".to_owned(), |address| place(*address));
        let key = (verdict, format!("{at}; {:?}", proof.end));
        let entry = self.places.entry(key).or_insert_with(|| {
            let mut example = format!("{:?}; common {common}; ours", judgement.end);
            for address in proof.chain.iter().skip(common).take(3) {
                let _ = write!(example, " {}", place(address & !EXACT_ADDRESS));
            }
            example.push_str("; both");
            for address in judgement.chain.iter().take(common).rev().take(4) {
                let _ = write!(example, " {}", place(*address));
            }
            example.push_str("; theirs");
            for address in judgement.chain.iter().skip(common).take(3) {
                let _ = write!(example, " {}", place(*address));
            }
            (0, example)
        });
        entry.0 += 1;
    }

    /// How many samples there are.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Samples that the other walker could judge.
    pub fn judged(&self) -> u64 {
        self.sum(Verdict::is_judged)
    }

    /// Of these, those on which the two agree.
    pub fn agreed(&self) -> u64 {
        self.sum(Verdict::agrees)
    }

    /// Share of the judged samples on which the two agree.
    pub fn share(&self) -> f64 {
        self.agreed() as f64 / self.judged().max(1) as f64
    }

    fn sum(&self, wanted: impl Fn(Verdict) -> bool) -> u64 {
        let counts = self.counts.iter();
        counts.filter(|(v, _)| wanted(**v)).map(|(_, n)| n).sum()
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: &Tally) {
        for (verdict, count) in &other.counts {
            *self.counts.entry(*verdict).or_default() += count;
        }
        self.frames += other.frames;
        self.deepest = self.deepest.max(other.deepest);
        for (key, (count, example)) in &other.places {
            let entry = self.places.entry(key.clone());
            entry.or_insert_with(|| (0, example.clone())).0 += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::OUTERMOST_FRAMES;

    fn verdict(ours: &[u64], end: StackEnd, theirs: &[u64], why: JudgeEnd) -> (Verdict, usize) {
        let proof = Proof {
            pid: 1,
            chain: ours.to_vec(),
            end,
            pc: 0,
            registers: [0; 16],
            stack: Vec::new(),
        };
        let judgement = Judgement {
            chain: theirs.to_vec(),
            exact: vec![false; theirs.len()],
            end: why,
        };
        compare(&proof, &judgement)
    }

    #[test]
    fn only_the_same_addresses_agree() {
        use JudgeEnd::{Complete, Error, Memory};
        let full: Vec<u64> = (1..=MAX_FRAMES as u64).collect();
        let deeper: Vec<u64> = (1..200).collect();
        let no = || Error("no rows".into());
        let cases = [
            (
                vec![1, 2, 3],
                StackEnd::Complete,
                vec![1, 2, 3],
                Complete,
                Verdict::Equal,
            ),
            (
                vec![1, 2 | EXACT_ADDRESS],
                StackEnd::Complete,
                vec![1, 2],
                Complete,
                Verdict::Equal,
            ),
            (
                vec![1, 2, 4],
                StackEnd::Complete,
                vec![1, 2, 3],
                Complete,
                Verdict::Different,
            ),
            (
                vec![1, 9, 3],
                StackEnd::Complete,
                vec![1, 2],
                no(),
                Verdict::Different,
            ),
            (
                vec![1, 2],
                StackEnd::NoRule,
                vec![1, 2, 3],
                Complete,
                Verdict::OursShort,
            ),
            (
                vec![1, 2],
                StackEnd::Complete,
                vec![1, 2, 3],
                Complete,
                Verdict::OursShort,
            ),
            (
                vec![1, 2, 3],
                StackEnd::Complete,
                vec![1, 2],
                Complete,
                Verdict::OursLong,
            ),
            (
                vec![1, 2, 3],
                StackEnd::Complete,
                vec![1, 2],
                Memory(8),
                Verdict::CopyShort,
            ),
            (
                vec![1, 2, 3],
                StackEnd::Jit,
                vec![1, 2],
                no(),
                Verdict::JudgeGaveUp,
            ),
            (
                vec![1, 2],
                StackEnd::Complete,
                vec![1, 2],
                no(),
                Verdict::JudgeGaveUp,
            ),
            (
                vec![1, 2],
                StackEnd::NoRule,
                vec![1, 2],
                no(),
                Verdict::BothGaveUp,
            ),
            (
                vec![1, 2],
                StackEnd::NoRule,
                vec![1, 2],
                Complete,
                Verdict::OtherEnd,
            ),
            (
                vec![1, 2],
                StackEnd::NoTable,
                vec![1, 2, 3],
                Complete,
                Verdict::NotLoaded,
            ),
            (full, StackEnd::Truncated, deeper, Complete, Verdict::Deeper),
        ];
        for (ours, end, theirs, why, expected) in cases {
            let (found, _) = verdict(&ours, end, &theirs, why);
            assert_eq!(found, expected, "{ours:x?} {end:?} {theirs:x?}");
        }
        assert_eq!(verdict(&[1, 2], StackEnd::NoRule, &[1, 3], Complete).1, 1);
    }

    #[test]
    fn both_ends_of_a_deep_stack_are_compared() {
        let theirs: Vec<u64> = (1..=1000).collect();
        let outer = &theirs[1000 - OUTERMOST_FRAMES..];
        let ours = [&theirs[..INNERMOST_FRAMES], &[LEFT_OUT], outer].concat();
        let of = |ours: &[u64], end, theirs: &[u64], why| verdict(ours, end, theirs, why).0;
        let left_out = StackEnd::LeftOut;
        let complete = || JudgeEnd::Complete;
        assert_eq!(of(&ours, left_out, &theirs, complete()), Verdict::Deeper);
        for wrong in [0, 383, 385, 511] {
            let mut ours = ours.clone();
            ours[wrong] += 1;
            assert_eq!(of(&ours, left_out, &theirs, complete()), Verdict::Different);
        }
        let short = of(&ours, StackEnd::NoRule, &theirs, complete());
        assert_eq!(short, Verdict::OursShort);
        let long = of(&ours, left_out, &theirs[..511], complete());
        assert_eq!(long, Verdict::OursLong);
        let judged_less = of(&ours, left_out, &theirs[..300], JudgeEnd::Memory(8));
        assert_eq!(judged_less, Verdict::CopyShort);
    }
}
