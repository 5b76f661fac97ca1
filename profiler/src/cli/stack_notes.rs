//! What is said at the end of a recording about its user stacks: how many are whole, why others are
//! not, and what to do.
//!
//! Counts of a recording -> lines for people: one about the stacks, at most one note, and with `-v` all
//! notes and counts. What does not belong here: which stacks they are (`report --by end`).

use super::name_notes;
use crate::pipeline::{COPIES_PER_SECOND, DEEP_FRAMES_PER_SECOND, Finished};
use profiler_common::{INNERMOST_FRAMES, MAX_FRAMES, MAX_USER_FRAMES, OUTERMOST_FRAMES};
use profiler_model::{StackEnd, StackEnds};
use profiler_report::view::quantity::{self, count, plural};
use profiler_resolve::{
    InterpreterSummary, NamelessSamples, Place, ResolveCounters, UnwindSummary,
};

/// Most reasons that are named for stacks that are not whole.
const REASONS: usize = 3;
/// With fewer whole stacks, it is said what to do.
const GOOD_PERCENT: f64 = 95.0;
/// What concerns fewer stacks is not worth a note.
const WORTH_PERCENT: f64 = 1.0;

/// What there is to be said something about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    stacks: &'a StackEnds,
    unwound: Option<UnwindSummary>,
    counters: ResolveCounters,
    interpreters: &'a [InterpreterSummary],
    nameless: &'a [(Place, NamelessSamples)],
    samples: u64,
    has_lost: bool,
    had_priority: bool,
}

impl<'a> Facts<'a> {
    pub(super) fn of(finished: &'a Finished) -> Facts<'a> {
        Facts {
            stacks: &finished.stacks,
            unwound: finished.unwound,
            counters: finished.counters,
            interpreters: &finished.interpreters,
            nameless: &finished.nameless,
            samples: finished.samples,
            has_lost: finished.lost.is_some(),
            had_priority: finished.had_priority,
        }
    }

    /// All lines. `verbose`: nothing is left out.
    pub(super) fn lines(&self, verbose: bool) -> Vec<String> {
        let mut lines: Vec<String> = self.about_ends().into_iter().collect();
        let notes = self.notes();
        if verbose {
            lines.extend(notes.iter().map(|note| format!("note: {note}")));
            lines.extend(self.counts());
        } else if let Some((first, others)) = notes.split_first() {
            lines.push(match others.len() {
                0 => format!("note: {first}"),
                more => format!(
                    "note: {first} ({} with -v)",
                    plural(more as u64, "more note")
                ),
            });
        }
        lines
    }

    /// How many user stacks are whole.
    fn about_ends(&self) -> Option<String> {
        let total = self.stacks.total();
        let share = |part| quantity::percent(quantity::percent_of(part, total));
        let reasons: Vec<String> = (self.stacks.cut().iter().take(REASONS))
            .map(|(end, samples)| format!("; {} {}", share(*samples), end.phrase()))
            .collect();
        let percent = quantity::percent_of(self.stacks.whole(), total);
        let gone = match self.stacks.gone() {
            0 => String::new(),
            gone => format!(
                " (of {}; {} more had no memory left: process ending or in exec)",
                count(total),
                count(gone)
            ),
        };
        let reasons = reasons.concat();
        (total > 0).then(|| format!("user stacks: {percent:.1}% complete{reasons}{gone}"))
    }

    /// What is wrong and can be helped, or is not seen otherwise; the most important first.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let total = self.stacks.total();
        let whole = quantity::percent_of(self.stacks.whole(), total);
        let few = total > 0 && whole < GOOD_PERCENT;
        let first = self.stacks.cut().first().map(|(end, _)| *end);
        if let Some(end) = first.filter(|_| few) {
            notes.extend(self.remedy(end));
        }
        for interpreter in self.interpreters {
            notes.extend(unsupported(interpreter));
        }
        notes.extend(name_notes::notes(self.nameless, self.samples, false));
        let unwound = self.unwound.unwrap_or_default();
        let is_worth = |part| quantity::percent_of(part, total) >= WORTH_PERCENT;
        let no_table = self.stacks.of(StackEnd::NoTable);
        if unwound.copies_refused > 0 && is_worth(unwound.copies_refused.min(no_table)) {
            add(&mut notes, copies_refused(unwound.copies_refused));
        }
        if !self.had_priority && (self.has_lost || is_worth(no_table)) {
            add(&mut notes, NO_PRIORITY.to_owned());
        }
        if unwound.refused > 0 && is_worth(no_table + self.stacks.of(StackEnd::NoMapping)) {
            add(&mut notes, NO_ROOM.to_owned());
        }
        let truncated = self.stacks.of(StackEnd::Truncated);
        if unwound.deep_refused > 0 && is_worth(unwound.deep_refused.min(truncated)) {
            add(&mut notes, deep_refused(unwound.deep_refused));
        }
        let stacks = self.counters.stacks_new;
        for interpreter in self.interpreters {
            let (misplaced, language) = (interpreter.misplaced, interpreter.language);
            if quantity::percent_of(misplaced, stacks) >= WORTH_PERCENT {
                notes.push(format!(
                    "in {} the frames of {language} could not be put between those of C: they are together",
                    plural(misplaced, "stack")
                ));
            }
        }
        notes
    }

    /// What can be done about stacks that end for a reason.
    fn remedy(&self, end: StackEnd) -> Option<String> {
        let unwound = self.unwound.unwrap_or_default();
        let remedy = match end {
            // Nothing else is walked by them while there are tables.
            StackEnd::FramePointer if self.unwound.is_some() => {
                "stacks of 32-bit programs are not walked by tables: callers are known as far as they keep frame pointers (-fno-omit-frame-pointer)"
            }
            StackEnd::FramePointer => {
                "frame pointers alone were followed, and most programs are built without; leave out --call-graph fp"
            }
            StackEnd::NoTable if unwound.refused > 0 => NO_ROOM,
            StackEnd::NoTable if unwound.copies_refused > 0 => {
                return Some(copies_refused(unwound.copies_refused));
            }
            StackEnd::NoTable
                if self.counters.stacks_outdated > self.stacks.of(StackEnd::NoTable) / 2 =>
            {
                return Some(outdated(self.counters.stacks_outdated));
            }
            StackEnd::NoTable => {
                "unwind tables were still being built, which takes long for large programs that are met for the first time: record longer"
            }
            StackEnd::Truncated if unwound.deep_refused > 0 => {
                return Some(deep_refused(unwound.deep_refused));
            }
            StackEnd::Truncated => return Some(too_deep()),
            StackEnd::LeftOut => return Some(left_out()),
            StackEnd::Jit => return Some(name_notes::stacks_remedy(self.nameless)),
            StackEnd::NoRule => {
                "some programs say nothing about their frames: build them with -fasynchronous-unwind-tables or -fno-omit-frame-pointer; which: profiler report --by end"
            }
            StackEnd::LeafOnly => {
                "of threads that wait since before the recording, and of waits beyond what is walked, callers are not known: record longer, or name processes (-p, --comm), of which up to 1,024 such stacks are copied"
            }
            _ => return None,
        };
        Some(remedy.to_owned())
    }

    /// Everything that was counted.
    fn counts(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(unwound) = &self.unwound {
            let mib = |bytes| quantity::bytes(bytes);
            let tables = &unwound.tables;
            lines.push(format!(
                "unwinding: {} walked in the kernel, {} frames; {} words of stacks unreadable, {} tables replaced during a walk",
                plural(unwound.walks, "stack"),
                count(unwound.frames),
                count(unwound.unreadable),
                count(unwound.changed),
            ));
            lines.push(format!(
                "unwinding: {} copied, {} not ({} a second and processor are, if the buffer has room); {} walked on here, {} of them not to the end, {} of these longer than a copy",
                plural(unwound.copies, "stack"),
                count(unwound.copies_refused),
                count(COPIES_PER_SECOND.into()),
                count(self.counters.stacks_continued),
                count(self.counters.stacks_without_table),
                count(self.counters.stacks_copied_short),
            ));
            if self.counters.stacks_outdated > 0 {
                let outdated = outdated(self.counters.stacks_outdated);
                lines.push(format!("unwinding: {outdated}"));
            }
            if unwound.deep_refused > 0 {
                lines.push(format!("unwinding: {}", deep_refused(unwound.deep_refused)));
            }
            lines.push(format!(
                "tables in the kernel: {} loaded, {} evicted, {} times no room, {}",
                count(unwound.loaded),
                count(unwound.evicted),
                count(unwound.refused),
                mib(unwound.kernel_bytes),
            ));
            lines.push(format!(
                "tables here: {} built or read in {:.2} s, {} dropped, {}; {} without any, {} of them given up",
                count(tables.built),
                tables.building_ns as f64 / 1e9,
                count(tables.dropped),
                mib(tables.bytes),
                plural(tables.without, "file"),
                count(tables.given_up),
            ));
        }
        for interpreter in self.interpreters {
            if interpreter.misplaced > 0 || interpreter.unknown_mappings > 0 {
                lines.push(format!(
                    "{}: {} with frames that could not be placed, {} of interpreters that are not known",
                    interpreter.language.to_lowercase(),
                    plural(interpreter.misplaced, "stack"),
                    plural(interpreter.unknown_mappings, "mapping"),
                ));
            }
        }
        lines
    }
}

/// What is due to the class of its threads.
const NO_PRIORITY: &str =
    "the recording waited for its turn behind what it recorded: with CAP_SYS_NICE it goes before";

/// What is there of a stack that is too deep.
fn too_deep() -> String {
    format!(
        "of stacks that are too deep no more than the innermost {INNERMOST_FRAMES} frames are kept: who called these is not known, so trees of calls begin in the middle of them"
    )
}

/// What became of stacks that were walked by what a process had mapped before.
fn outdated(stacks: u64) -> String {
    format!(
        "{} {} cut in a library that had just taken the place of another one (dlclose, dlopen): by whose table it was walked is not known",
        plural(stacks, "stack"),
        if stacks == 1 { "is" } else { "are" },
    )
}

/// What is there of a stack whose middle is left out.
fn left_out() -> String {
    format!(
        "of stacks of more than {MAX_USER_FRAMES} frames the innermost {INNERMOST_FRAMES} and the outermost {OUTERMOST_FRAMES} are kept, with [frames left out] between them"
    )
}

fn deep_refused(stacks: u64) -> String {
    format!(
        "{} {} cut at {MAX_FRAMES} frames (limit of {} further ones a second and processor), so that trees of calls begin in the middle of them: sample less often",
        plural(stacks, "stack"),
        if stacks == 1 { "was" } else { "were" },
        count(DEEP_FRAMES_PER_SECOND.into()),
    )
}

const NO_ROOM: &str = "there was no room for all unwind tables: allow more with --unwind-memory";

/// Adds a note, unless a remedy is the same.
fn add(notes: &mut Vec<String>, note: String) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}

fn copies_refused(stacks: u64) -> String {
    format!(
        "{} could not be copied while tables were loaded ({} a second and processor are, if the buffer has room): sample less often, or record longer",
        plural(stacks, "stack"),
        count(COPIES_PER_SECOND.into()),
    )
}

/// A note for each version of an interpreter whose frames are not known.
fn unsupported(interpreter: &InterpreterSummary) -> impl Iterator<Item = String> + '_ {
    let name = interpreter.name;
    interpreter.unsupported.iter().map(move |version| {
        let (series, why) = (&version.series, &version.why);
        match version.processes {
            1 => format!(
                "1 process runs {name} {series}, whose frames are not known ({why}): it is shown as native code"
            ),
            more => format!(
                "{} processes run {name} {series}, whose frames are not known ({why}): they are shown as native code",
                count(more)
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_resolve::UnsupportedVersion;

    fn lines(
        ends: &[(StackEnd, u64)],
        change: impl FnOnce(&mut Facts<'_>),
        verbose: bool,
    ) -> Vec<String> {
        let stacks: StackEnds = ends.iter().copied().collect();
        let mut facts = Facts {
            stacks: &stacks,
            unwound: Some(UnwindSummary::default()),
            counters: ResolveCounters {
                stacks_new: 1000,
                ..ResolveCounters::default()
            },
            interpreters: &[],
            nameless: &[],
            samples: 1000,
            has_lost: false,
            had_priority: true,
        };
        change(&mut facts);
        facts.lines(verbose)
    }

    /// With so many stacks that did not fit together.
    fn python(misplaced: u64) -> InterpreterSummary {
        InterpreterSummary {
            name: "CPython",
            language: "Python",
            misplaced,
            unknown_mappings: 0,
            unsupported: Vec::new(),
        }
    }

    fn unwound(facts: &mut Facts<'_>, change: impl FnOnce(&mut UnwindSummary)) {
        change(facts.unwound.get_or_insert_default());
    }

    #[test]
    fn nothing_wrong_needs_no_note() {
        let said = lines(
            &[(StackEnd::Complete, 990), (StackEnd::Jit, 10)],
            |_| {},
            false,
        );
        assert_eq!(
            said,
            ["user stacks: 99.0% complete; 1.0% run-time code without frame pointers"]
        );
        assert!(lines(&[], |_| {}, false).is_empty());
    }

    #[test]
    fn the_most_frequent_reason_has_a_remedy() {
        for (end, remedy) in [
            (StackEnd::Jit, "frame pointers"),
            (StackEnd::NoRule, "--by end"),
            (StackEnd::NoTable, "record longer"),
            (StackEnd::FramePointer, "32-bit programs"),
            (StackEnd::LeafOnly, "before the recording"),
            (StackEnd::Truncated, "innermost 384 frames"),
            (StackEnd::LeftOut, "innermost 384 and the outermost 127"),
        ] {
            let said = lines(&[(StackEnd::Complete, 50), (end, 50)], |_| {}, false);
            assert_eq!(said.len(), 2);
            assert!(
                said[1].starts_with("note: ") && said[1].contains(remedy),
                "{said:?}"
            );
        }
    }

    #[test]
    fn what_was_walked_by_an_outdated_list_is_no_table_that_was_late() {
        let ends = [(StackEnd::Complete, 50), (StackEnd::NoTable, 50)];
        let note = |outdated| {
            let said = lines(
                &ends,
                |facts| facts.counters.stacks_outdated = outdated,
                false,
            );
            said[1].clone()
        };
        assert!(note(50).contains("50 stacks are cut in a library that had just"));
        assert!(note(3).contains("record longer"));
    }

    #[test]
    fn an_option_is_not_said_to_be_wrong_that_nobody_gave() {
        let ends = [(StackEnd::Complete, 50), (StackEnd::FramePointer, 50)];
        let by_tables = lines(&ends, |_| {}, false);
        assert!(
            by_tables[1].contains("-fno-omit-frame-pointer"),
            "{by_tables:?}"
        );
        let alone = lines(&ends, |facts| facts.unwound = None, false);
        assert!(alone[1].contains("leave out --call-graph fp"), "{alone:?}");
    }

    #[test]
    fn of_several_notes_one_is_said_and_all_with_v() {
        let ends = [(StackEnd::Complete, 500), (StackEnd::NoTable, 500)];
        let mut python = python(10);
        python.unsupported.push(UnsupportedVersion {
            series: "3.9".to_owned(),
            why: "only 3.11, 3.12 and 3.13 are supported".to_owned(),
            processes: 3,
        });
        let change = |facts: &mut Facts<'_>| {
            facts.interpreters = Box::leak(Box::new([python.clone()]));
            unwound(facts, |of| (of.refused, of.copies_refused) = (2, 1204));
        };
        let short = lines(&ends, change, false);
        assert_eq!(short.len(), 2, "{short:?}");
        assert_eq!(short[1], format!("note: {NO_ROOM} (3 more notes with -v)"));
        let long = lines(&ends, change, true).join("\n");
        for part in [
            "note: there was no room",
            "note: 3 processes run CPython 3.9, whose frames are not known",
            "note: 1,204 stacks could not be copied while tables were loaded (1,024 a second",
            "note: in 10 stacks the frames of Python",
            "unwinding: 0 stacks copied, 1,204 not",
            "tables in the kernel: 0 loaded, 0 evicted, 2 times no room",
            "python: 10 stacks",
        ] {
            assert!(long.contains(part), "{part}: {long}");
        }
        assert_eq!(long.matches("no room for all").count(), 1);
    }

    #[test]
    fn stacks_beyond_the_limit_on_deep_ones_are_told() {
        let ends = [(StackEnd::Complete, 500), (StackEnd::Truncated, 500)];
        let change = |facts: &mut Facts<'_>| unwound(facts, |of| of.deep_refused = 1500);
        let cut = "1,500 stacks were cut at 127 frames (limit of 100,000 further ones a second";
        let short = lines(&ends, change, false);
        assert_eq!(short.len(), 2, "{short:?}");
        assert!(short[1].starts_with(&format!("note: {cut}")), "{short:?}");
        let long = lines(&ends, change, true);
        let counted = |line: &&String| line.starts_with(&format!("unwinding: {cut}"));
        assert_eq!(long.iter().filter(counted).count(), 1, "{long:?}");
    }

    #[test]
    fn what_hardly_matters_is_only_counted() {
        let ends = [(StackEnd::Complete, 999), (StackEnd::NoTable, 1)];
        let change = |facts: &mut Facts<'_>| {
            facts.interpreters = Box::leak(Box::new([python(9)]));
            unwound(facts, |of| (of.refused, of.copies_refused) = (1, 1));
        };
        assert_eq!(lines(&ends, change, false).len(), 1);
        assert!(lines(&ends, change, true).len() > 4);
    }
}
