//! What holds for any trace: counts as the program says, strict nesting, times that add up.
//!
//! Input: a [`Trace`], and what a program says of its own calls. Output: nothing, or what is wrong.

use std::collections::BTreeMap;

use profiler_model::{LostReason, ReturnMode};

use super::Truth;
use super::trace::{Call, Edge, How, Trace};

/// Events shown before and behind a call.
const AROUND: usize = 3;
/// Most events shown of its beginning, and of its end.
const SHOWN: usize = 8;

impl Trace {
    /// How often calls of `function` began (or were hit).
    pub fn entries(&self, function: &str) -> u64 {
        self.of(function)
            .filter(|call| matches!(call.edge, Edge::Enter(_) | Edge::Hit(_)))
            .count() as u64
    }

    /// How often calls of `function` ended, by how.
    pub fn exits(&self, function: &str) -> BTreeMap<How, u64> {
        let mut exits = BTreeMap::new();
        for call in self.of(function) {
            if let Edge::Exit { how, .. } = &call.edge {
                *exits.entry(how.clone()).or_default() += 1;
            }
        }
        exits
    }

    /// Ends of calls of one function.
    pub fn of<'a>(&'a self, function: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls
            .iter()
            .filter(move |call| call.function == function)
    }

    /// Fails if anything was lost or unreadable. Ticks that the kernel skipped are samples, not calls.
    pub fn complete(&self) -> Result<(), String> {
        let lost = self
            .lost
            .iter()
            .find(|(reason, _)| **reason != LostReason::Skipped);
        if let Some((reason, count)) = lost {
            return Err(format!("{count} lost: {reason:?}"));
        }
        if self.damaged > 0 {
            return Err(format!("{} unreadable", self.damaged));
        }
        match self.counts.iter().find(|(_, counts)| counts.lost > 0) {
            Some((function, counts)) => Err(format!("{function}: {} lost", counts.lost)),
            None => Ok(()),
        }
    }

    /// Checks that the calls of `functions` are exactly those that the program says: as many entries,
    /// in the events and in the kernel's count; every entry with an exit, if exits are watched; and as
    /// many returns.
    pub fn counted(&self, truth: &Truth, functions: &[&str]) -> Result<(), String> {
        let mut wrong = Vec::new();
        for &function in functions {
            let Some(&calls) = truth.calls.get(function) else {
                wrong.push(format!("the program says nothing of {function}"));
                continue;
            };
            let entries = self.entries(function);
            let counts = self.counts.get(function).copied().unwrap_or_default();
            if entries != calls || counts.entries != calls {
                wrong.push(format!(
                    "{function}: {calls} calls, {entries} recorded, {} counted by the kernel",
                    counts.entries
                ));
            }
            let Some((mode, _)) = self.modes.get(function) else {
                wrong.push(format!("{function} is not said to be traced"));
                continue;
            };
            if *mode == ReturnMode::None {
                continue;
            }
            let exits = self.exits(function);
            let returns = exits.get(&How::Return).copied().unwrap_or(0);
            let all: u64 = exits.values().sum();
            let wanted = truth.returns.get(function).copied().unwrap_or(calls);
            if all != calls || returns != wanted {
                wrong.push(format!(
                    "{function} ({mode:?}): {calls} calls, {wanted} of them returned; recorded: \
                     {exits:?}, {} counted by the kernel{}",
                    counts.exits,
                    self.unexpected(function)
                ));
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            wrong.push(format!("lost: {:?}; gaps: {:?}", self.lost, self.gaps));
            Err(wrong.join("\n"))
        }
    }

    /// The first exit of `function` that is no return, with what happened on its thread around its call.
    fn unexpected(&self, function: &str) -> String {
        let is_it = |call: &&Call| match &call.edge {
            Edge::Exit { how, .. } => *how != How::Return && call.function == function,
            Edge::Enter(_) | Edge::Hit(_) => false,
        };
        let Some(call) = self.calls.iter().find(is_it) else {
            return String::new();
        };
        let Edge::Exit { began_ns, .. } = call.edge else {
            return String::new();
        };
        let on_thread = self.calls.iter().filter(|other| other.tid == call.tid);
        let calls: Vec<&Call> = on_thread.collect();
        let first = calls.partition_point(|other| other.at_ns < began_ns);
        let behind = calls.partition_point(|other| other.at_ns <= call.at_ns);
        let shown = &calls[first.saturating_sub(AROUND)..calls.len().min(behind + AROUND)];
        // A call may have many others in it.
        let left_out = shown.len().saturating_sub(2 * SHOWN);
        let shown = shown.iter().enumerate();
        let shown = shown.filter(|(index, _)| !(SHOWN..SHOWN + left_out).contains(index));
        let lines = shown.map(|(_, call)| format!("\n    {call:?}"));
        lines.collect()
    }

    /// Checks strict nesting, thread by thread: an exit is of the innermost open call, at its depth,
    /// and says when that began; its time for itself is exactly what its calls leave of it. Gives how
    /// many calls were left open.
    pub fn nested(&self) -> Result<usize, String> {
        struct Open<'a> {
            call: &'a Call,
            inner_ns: u64,
        }
        let mut stacks: BTreeMap<u32, Vec<Open<'_>>> = BTreeMap::new();
        let mut last_ns = 0;
        for call in &self.calls {
            let stack = stacks.entry(call.tid).or_default();
            let wrong = |what: &str| {
                let open: Vec<_> = stack.iter().map(|open| &open.call.function).collect();
                Err(format!("{what}: {call:?} within {open:?}"))
            };
            if call.at_ns < last_ns {
                return wrong("not in order of time");
            }
            last_ns = call.at_ns;
            let open = stack.len() as u32;
            match &call.edge {
                Edge::Enter(_) if call.depth == open => stack.push(Open { call, inner_ns: 0 }),
                Edge::Hit(_) if call.depth == open => {}
                Edge::Enter(_) | Edge::Hit(_) => return wrong("a wrong depth"),
                // Recorded as a whole: calls in it come before it, so there is no nesting to check.
                Edge::Exit { whole: Some(_), .. } => {}
                Edge::Exit {
                    began_ns, self_ns, ..
                } => {
                    let Some(top) = stack.last() else {
                        return wrong("an exit of nothing");
                    };
                    if top.call.function != call.function || top.call.depth != call.depth {
                        return wrong("an exit of another call");
                    }
                    if top.call.at_ns != *began_ns {
                        return wrong("an exit that says another beginning");
                    }
                    let took_ns = call.at_ns - began_ns;
                    if top.inner_ns + self_ns != took_ns {
                        return wrong(&format!(
                            "{took_ns} ns, of which {} in calls and {self_ns} by itself",
                            top.inner_ns
                        ));
                    }
                    stack.pop();
                    if let Some(outer) = stack.last_mut() {
                        outer.inner_ns += took_ns;
                    }
                }
            }
        }
        Ok(stacks.values().map(Vec::len).sum())
    }

    /// Checks what holds even where stacks move between threads: every exit has exactly one entry of
    /// the same function at the time that it says. Gives how many calls were left open.
    pub fn paired(&self) -> Result<usize, String> {
        let mut open: BTreeMap<(&str, u64, u32), u32> = BTreeMap::new();
        for call in &self.calls {
            match &call.edge {
                Edge::Enter(_) => {
                    *open
                        .entry((&call.function, call.at_ns, call.depth))
                        .or_default() += 1;
                }
                Edge::Exit { began_ns, .. } => {
                    let key = (call.function.as_str(), *began_ns, call.depth);
                    match open.get_mut(&key) {
                        Some(count) if *count > 0 => *count -= 1,
                        _ => return Err(format!("an exit without its entry: {call:?}")),
                    }
                }
                Edge::Hit(_) => {}
            }
        }
        Ok(open.values().map(|count| *count as usize).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracing::Counts;

    fn enter(at_ns: u64, function: &str, depth: u32) -> Call {
        Call {
            at_ns,
            pid: 1,
            tid: 1,
            function: function.to_owned(),
            depth,
            edge: Edge::Enter(None),
        }
    }

    fn exit(at_ns: u64, function: &str, depth: u32, began_ns: u64, self_ns: u64) -> Call {
        Call {
            edge: Edge::Exit {
                began_ns,
                self_ns,
                how: How::Return,
                line: 0,
                result: None,
                whole: None,
            },
            ..enter(at_ns, function, depth)
        }
    }

    fn trace(calls: &[Call]) -> Trace {
        Trace {
            calls: calls.to_vec(),
            ..Trace::default()
        }
    }

    #[test]
    fn nesting_is_strict() {
        let good = [
            enter(10, "a", 0),
            enter(12, "b", 1),
            exit(15, "b", 1, 12, 3),
            exit(20, "a", 0, 10, 7),
            enter(21, "a", 0),
        ];
        assert_eq!(trace(&good).nested(), Ok(1));
        assert_eq!(trace(&good).paired(), Ok(1));
        for (index, bad) in [
            enter(12, "b", 0),
            exit(12, "b", 0, 10, 2),
            exit(12, "a", 0, 11, 1),
            exit(12, "a", 0, 10, 1),
            enter(9, "b", 1),
        ]
        .into_iter()
        .enumerate()
        {
            let calls = [enter(10, "a", 0), bad];
            assert!(trace(&calls).nested().is_err(), "{index}");
        }
        assert!(trace(&[exit(12, "a", 0, 10, 2)]).paired().is_err());
    }

    #[test]
    fn counts_must_agree() {
        let mut recorded = trace(&[enter(10, "a", 0), exit(20, "a", 0, 10, 10)]);
        recorded
            .modes
            .insert("a".to_owned(), (ReturnMode::Instructions, 0));
        let counts = Counts {
            entries: 1,
            exits: 1,
            ..Counts::default()
        };
        recorded.counts.insert("a".to_owned(), counts);
        let truth = |calls: u64, returns: u64| Truth {
            calls: [("a".to_owned(), calls)].into(),
            returns: [("a".to_owned(), returns)].into(),
            all: serde_json::Value::Null,
        };
        assert_eq!(recorded.counted(&truth(1, 1), &["a"]), Ok(()));
        assert!(recorded.counted(&truth(2, 2), &["a"]).is_err());
        assert!(recorded.counted(&truth(1, 0), &["a"]).is_err());
        assert!(recorded.counted(&truth(1, 1), &["b"]).is_err());
        let mut missed = trace(&[
            enter(5, "b", 0),
            enter(10, "a", 1),
            exit(20, "a", 1, 10, 10),
        ]);
        missed.modes.clone_from(&recorded.modes);
        missed.counts.clone_from(&recorded.counts);
        if let Edge::Exit { how, .. } = &mut missed.calls[2].edge {
            *how = How::Inferred;
        }
        let said = missed.counted(&truth(1, 1), &["a"]).unwrap_err();
        for part in [
            "{Inferred: 1}, 1 counted by the kernel",
            "function: \"b\"",
            "lost: {}; gaps: []",
        ] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        assert_eq!(recorded.complete(), Ok(()));
        recorded.lost.insert(LostReason::CallRingFull, 1);
        assert!(recorded.complete().is_err());
    }
}
