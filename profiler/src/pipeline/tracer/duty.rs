//! Probes on duty: attached for a part of the time, spread over it.
//!
//! What time it is -> which of them are to be attached or detached, and the gaps that end by that, or go on.
//!
//! What does not belong here: which probes go on duty (`budget`), moving them (`links`).

use super::load::{self, DUTY_ON_NS, DUTY_PERIOD_NS, Level};
use super::probes::Probes;
use profiler_model::raw::RawEvent;
use profiler_model::{GapReason, Timestamp};

impl Probes {
    /// Turns those whose time is over, or has come; they are to be moved.
    pub(super) fn turn_duty(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) -> Vec<u32> {
        let mut turned = Vec::new();
        for (number, state) in self.iter_mut() {
            if state.level != Level::Duty {
                continue;
            }
            if at.since(state.since) < state.wait_ns {
                continue;
            }
            // One gap follows on another: while it is attached, its returns are missing. That of being away ends when
            // it is there.
            match state.on_duty {
                true => out.extend(state.gap(number, at)),
                false => state.away_since = Some(state.untold_since()),
            }
            state.was_without_returns = state.gap_reason() == Some(GapReason::NoReturns);
            if state.on_duty {
                state.last_duty = state.hits();
            }
            state.budgeted = state.counted;
            state.on_duty = !state.on_duty;
            state.since = at;
            state.wait_ns = match state.on_duty {
                true => DUTY_ON_NS,
                false => DUTY_PERIOD_NS - DUTY_ON_NS,
            };
            out.extend(state.gap_begins(number, at));
            turned.push(number);
        }
        turned
    }

    /// Tells of the gaps that go on what was not told yet: somebody will not see their end.
    pub(super) fn tell_gaps(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        for (number, state) in self.iter_mut() {
            if let Some(gap) = state.gap(number, at) {
                out.push(gap);
                state.gap_told = at;
            }
        }
    }

    /// They begin their periods anew, spread over them as at first: after a suspension all of them would
    /// have to be turned at once.
    pub(super) fn begin_duty(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        let on_duty = self.iter_mut();
        let on_duty = on_duty.filter(|(_, state)| state.level == Level::Duty);
        for (index, (number, state)) in (0..).zip(on_duty) {
            if state.on_duty {
                out.extend(state.gap(number, at));
                state.since = at;
                state.budgeted = state.counted;
            } else {
                // Its gap goes on.
                state.wait_ns = at.since(state.since) + load::first_wait_ns(index);
            }
        }
    }
}
