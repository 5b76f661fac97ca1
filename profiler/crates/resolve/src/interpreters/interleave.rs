//! Frames of an interpreter among those of machine code.
//!
//! Where the interpreter's own function runs, in a stack of machine code, and the runs of frames that
//! it was entered for -> one order of both, leaf first. The function itself is left out where its
//! frames are known: it says nothing that they do not, and there is one of it for any number of them.
//!
//! What does not belong here: which functions are the interpreter's, and names.

use std::ops::Range;

/// Part of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A frame of machine code, by its index.
    Native(usize),
    /// Frames of the interpreter.
    Interpreted(Range<usize>),
}

/// What is known of both stacks, each leaf first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stacks<'a> {
    /// Frames of machine code.
    pub(super) natives: usize,
    /// Those of them that are in the interpreter's function.
    pub(super) loops: &'a [usize],
    /// Whether the innermost is in the interpreter's file: it may be a piece of that function which has no name.
    pub(super) leaf_in_file: bool,
    /// Whether all of machine code is there, to the outermost frame.
    pub(super) natives_complete: bool,
    /// Runs of frames of the interpreter; one may be empty.
    pub(super) runs: &'a [Range<usize>],
    /// Whether all of these are there.
    pub(super) runs_complete: bool,
}

/// Puts both into one order; whether they fit together.
pub(super) fn interleave(stacks: &Stacks<'_>) -> (Vec<Part>, bool) {
    let Stacks {
        natives,
        loops,
        runs,
        ..
    } = *stacks;
    let fit = fit(stacks);
    let fits = fit != Fit::Unknown;
    let mut parts = Vec::with_capacity(natives + runs.len());
    let mut left = runs.iter().filter(|run| fits || !run.is_empty());
    if fit == Fit::InAPiece {
        parts.extend(left.next().cloned().map(Part::Interpreted));
    }
    let skipped = usize::from(fit == Fit::JustEntered);
    let mut pairs = loops.iter().skip(skipped).peekable();
    let mut placed = false;
    for native in 0..natives {
        if pairs.next_if_eq(&&native).is_none() {
            parts.push(Part::Native(native));
            continue;
        }
        if !fits {
            // All of them at the innermost place.
            if !std::mem::replace(&mut placed, true) {
                parts.extend(left.by_ref().cloned().map(Part::Interpreted));
            }
            continue;
        }
        match left.next() {
            Some(run) => parts.push(Part::Interpreted(run.clone())),
            None => parts.push(Part::Native(native)),
        }
    }
    // Their machine code was not reached.
    parts.extend(left.cloned().map(Part::Interpreted));
    parts.retain(|part| !matches!(part, Part::Interpreted(run) if run.is_empty()));
    (parts, fits)
}

/// Which runs are those of which loops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// From the innermost on.
    Each,
    /// The innermost loop has none: it is just being entered or left.
    JustEntered,
    /// The innermost run has none: the leaf is what a compiler has moved out of the loop, which no symbol of a stripped file tells of.
    InAPiece,
    /// It can't be told.
    Unknown,
}

fn fit(stacks: &Stacks<'_>) -> Fit {
    let (loops, runs) = (stacks.loops.len(), stacks.runs.len());
    let at_leaf = stacks.loops.first() == Some(&0);
    let each = |is| if is { Fit::Each } else { Fit::Unknown };
    match (stacks.natives_complete, stacks.runs_complete) {
        (_, true) if loops == runs => Fit::Each,
        (_, true) if loops == runs + 1 && at_leaf => Fit::JustEntered,
        (true, true) if loops + 1 == runs && !at_leaf && stacks.leaf_in_file => Fit::InAPiece,
        (true, true) => Fit::Unknown,
        // The outermost of one of both are not there.
        (false, true) => each(loops < runs),
        (true, false) => each(loops >= runs),
        (false, false) => Fit::Each,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each letter a frame of machine code, `E` the interpreter's loop, `p` a piece of it; runs by their lengths.
    fn order(natives: &str, complete: bool, lengths: &[usize], cut: bool) -> (String, bool) {
        let loops: Vec<usize> = natives.match_indices('E').map(|(index, _)| index).collect();
        let mut start = 0;
        let runs: Vec<Range<usize>> = lengths
            .iter()
            .map(|len| {
                start += len;
                start - len..start
            })
            .collect();
        let (parts, fits) = interleave(&Stacks {
            natives: natives.len(),
            loops: &loops,
            leaf_in_file: natives.starts_with('p'),
            natives_complete: complete,
            runs: &runs,
            runs_complete: !cut,
        });
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Native(index) => text.push_str(&natives[index..=index]),
                Part::Interpreted(run) => run.for_each(|frame| text += &frame.to_string()),
            }
        }
        (text, fits)
    }

    #[test]
    fn each_loop_is_replaced_by_its_run() {
        assert_eq!(
            order("aEbEc", true, &[2, 1], false),
            ("a01b2c".into(), true)
        );
        assert_eq!(order("Eabc", true, &[3], false), ("012abc".into(), true));
    }

    #[test]
    fn a_loop_that_is_just_entered_is_shown() {
        assert_eq!(order("EbEc", true, &[2], false), ("Eb01c".into(), true));
        assert_eq!(order("EbEc", true, &[0, 2], false), ("b01c".into(), true));
    }

    #[test]
    fn a_leaf_that_was_moved_out_of_the_loop_is_its_run_s() {
        let fitting = order("pbEcEd", true, &[1, 2, 1], false);
        assert_eq!(fitting, ("0pb12c3d".into(), true));
        // Called by one, or two of them.
        for (natives, lengths, said) in [
            ("abEc", &[1, 1][..], "ab01c"),
            ("pbEc", &[1, 1, 1], "pb012c"),
        ] {
            assert_eq!(order(natives, true, lengths, false), (said.into(), false));
        }
    }

    #[test]
    fn what_does_not_fit_is_put_together_innermost() {
        assert_eq!(
            order("aEbEc", true, &[1, 1, 1], false),
            ("a012bc".into(), false)
        );
        assert_eq!(order("aEbEcE", true, &[2], false), ("a01bc".into(), false));
        assert_eq!(order("abc", true, &[2], false), ("abc01".into(), false));
    }

    #[test]
    fn callers_beyond_a_cut_are_behind_it() {
        assert_eq!(order("aEb", false, &[1, 2], false), ("a0b12".into(), true));
        assert_eq!(order("", false, &[1, 2], false), ("012".into(), true));
        assert_eq!(order("aEbEc", true, &[1], true), ("a0bEc".into(), true));
    }

    proptest! {
        #[test]
        fn no_frame_is_lost_or_doubled(
            natives in "[aEp]{0,20}",
            lengths in prop::collection::vec(0_usize..4, 0..8),
            complete in any::<bool>(),
            cut in any::<bool>(),
        ) {
            let (text, fits) = order(&natives, complete, &lengths, cut);
            let total: usize = lengths.iter().sum();
            let digits: String = (0..total).map(|frame| frame.to_string()).collect();
            let frames: String = text.chars().filter(char::is_ascii_digit).collect();
            prop_assert_eq!(frames, digits);
            let plain = |text: &str| text.matches(['a', 'p']).count();
            prop_assert_eq!(plain(&text), plain(&natives));
            if fits && text.contains('E') {
                prop_assert!(lengths.len() < natives.matches('E').count());
            }
        }
    }
}
