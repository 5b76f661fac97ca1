//! What a reader must know of a recording besides its samples: when it was, and what it lacks.
//!
//! Events -> times (CLOCK_MONOTONIC, and the wall time that it maps to), and notes in words for the place that a
//! format has for them. What does not belong here: whose samples are wanted (the formats).

use std::collections::BTreeMap;

use crate::derive::{CUT_OFF, Losses, early_end, quantity};
use profiler_model::*;

/// Facts about a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    clock: Option<Clock>,
    first: Option<Timestamp>,
    first_recorded: Option<Timestamp>,
    last: Timestamp,
    losses: Losses,
    /// How many gaps there are of a reason, and how long they are together.
    gaps: BTreeMap<GapReason, (u64, Spans)>,
    /// Calls that were not watched to their end.
    unwatched: u64,
    /// Calls that a limit left out.
    left_out: u64,
    /// Waits that others stand for.
    waits_summed: u64,
    ends: StackEnds,
}

impl About {
    pub(super) fn event(&mut self, event: &Event) {
        let at = event.at();
        self.first = Some(self.first.unwrap_or(at).min(at));
        self.last = self.last.max(at);
        if event.is_recorded() {
            self.first_recorded.get_or_insert(at);
        }
        match event {
            Event::Clock(clock) => self.clock = self.clock.or(Some(*clock)),
            Event::Lost(lost) => self.losses.add(lost),
            // One without a length says where the next one begins.
            Event::Gap(gap) if gap.from < gap.to => {
                let (count, spans) = self.gaps.entry(gap.reason).or_default();
                *count += 1;
                spans.add(gap.from, gap.to);
            }
            Event::Call(call) => {
                let is_unwatched = |exit: &Exit| exit.how == ExitKind::Unwatched;
                if matches!(&call.edge, CallEdge::Exit(exit) if is_unwatched(exit)) {
                    self.unwatched += 1;
                }
            }
            Event::CallCount(count) => {
                self.left_out = self.left_out.saturating_add(count.left_out);
            }
            Event::Sample(sample) => {
                let wait = sample.wait.as_ref();
                let others = wait.map_or(0, |wait| wait.count.saturating_sub(1));
                self.waits_summed = self.waits_summed.saturating_add(others.into());
                early_end(sample)
                    .into_iter()
                    .for_each(|end| self.ends.count(end));
            }
            _ => {}
        }
    }

    /// What is lost.
    pub(super) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Times in which calls were not recorded.
    pub(super) fn gaps(&self) -> u64 {
        self.gaps.values().map(|(count, _)| count).sum()
    }

    /// Whether there may have been calls that nobody counted.
    pub(super) fn hides_calls(&self) -> bool {
        self.gaps.keys().any(|reason| reason.hides_calls())
    }

    /// Calls that were not watched to their end.
    pub(super) fn unwatched(&self) -> u64 {
        self.unwatched
    }

    /// When the first event was of what the recording tells: of what was there it tells from before that as well.
    pub(super) fn first(&self, tables: &Tables) -> Timestamp {
        let first = self.first.unwrap_or_default();
        first.max(tables.session.began(first, self.first_recorded))
    }

    /// When the last one was.
    pub(super) fn last(&self) -> Timestamp {
        self.last
    }

    /// From the first event to the last.
    pub(super) fn duration_ns(&self, tables: &Tables) -> u64 {
        self.last.since(self.first(tables))
    }

    /// Nanoseconds since 1970, if the recording tells.
    pub(super) fn wall_ns(&self, at: Timestamp) -> Option<u64> {
        let clock = self.clock?;
        let ns = match at >= clock.monotonic {
            true => clock.realtime_ns.checked_add(at.since(clock.monotonic)),
            false => clock.realtime_ns.checked_sub(clock.monotonic.since(at)),
        };
        ns.filter(|&ns| i64::try_from(ns).is_ok())
    }

    /// Where it was made, and what is missing, in lines.
    pub(super) fn notes(&self, tables: &Tables, unnamed: u64) -> Vec<String> {
        let session = &tables.session;
        let mut notes = vec![format!(
            "recorded by profiler {} on {}, Linux {} {}: {}",
            session.version, session.host, session.kernel, session.arch, session.target
        )];
        if tables.is_cut_off {
            notes.push(format!("not complete: {CUT_OFF}"));
        }
        let lost = self.losses.iter();
        notes.extend(lost.map(|(why, n)| format!("lost: {n} {}", why.phrase())));
        notes.extend(self.gaps.iter().map(|(reason, (count, spans))| {
            let what = reason.hides();
            let (length, reason) = (quantity::duration(spans.ns()), reason.phrase());
            format!("gaps of {what}: {count} of {length} together, {reason}")
        }));
        if self.hides_calls() {
            notes.push("calls: at least those that are told, as gaps may hide more".to_owned());
        }
        let calls = [
            (self.unwatched, "not watched to their end"),
            (self.left_out, "left out by a limit"),
        ];
        let calls = calls.iter().filter(|(n, _)| *n > 0);
        notes.extend(calls.map(|(n, what)| format!("calls {what}: {n}")));
        let ends = self.ends.iter();
        notes.extend(ends.map(|(end, n)| match end {
            StackEnd::NotSaid => format!("stacks not known to be complete: {n}"),
            end => format!("stacks cut: {n}, {}", end.phrase()),
        }));
        if unnamed > 0 {
            notes.push(format!("samples with frames without a name: {unnamed}"));
        }
        notes
    }

    /// The same, of what shows each event where it was.
    pub(super) fn notes_in_time(&self, tables: &Tables, unnamed: u64) -> Vec<String> {
        let mut notes = self.notes(tables, unnamed);
        if self.waits_summed > 0 {
            let waits = self.waits_summed;
            notes.push(format!(
                "waits not recorded one by one, where threads seem to run on: {waits}"
            ));
        }
        notes
    }
}
