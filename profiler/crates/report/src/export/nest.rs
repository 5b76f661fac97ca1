//! Traced calls of each thread and goroutine as spans that nest, for formats that want begins and ends in balance.
//!
//! Events -> entries and ends in order of time. Whatever does not nest is cut to what is around it: calls of several
//! stacks of a thread (coroutines), and those whose ends were inferred. What was open at the end ends there. Times are CLOCK_MONOTONIC. Memory: 32 bytes per call.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use profiler_model::*;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    began: Timestamp,
    ended: Timestamp,
    depth: u32,
    function: FunctionId,
}

/// One end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) at: Timestamp,
    pub(super) function: FunctionId,
    pub(super) enters: bool,
}

/// The calls of all threads and goroutines.
#[derive(Default)]
pub(super) struct Nest {
    ended: BTreeMap<StackOwner, Vec<Span>>,
    open: FxHashMap<(StackOwner, u32, FunctionId), Timestamp>,
    last: Timestamp,
}

impl Nest {
    pub(super) fn event(&mut self, event: &Event, tables: &Tables) {
        self.last = self.last.max(event.at());
        let Event::Call(call) = event else {
            return;
        };
        let owner = StackOwner::of(call, tables);
        let key = (owner, call.depth, call.function);
        let began = match &call.edge {
            CallEdge::Enter(_) => {
                self.open.insert(key, call.at);
                return;
            }
            CallEdge::Hit(_) => call.at,
            CallEdge::Exit(exit) => {
                if self.open.get(&key) == Some(&exit.began) {
                    self.open.remove(&key);
                }
                exit.began
            }
        };
        self.ended.entry(owner).or_default().push(Span {
            began: began.min(call.at),
            ended: call.at,
            depth: call.depth,
            function: call.function,
        });
    }

    /// Calls that did not end.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// The calls of each thread and goroutine.
    pub(super) fn finish(mut self) -> impl Iterator<Item = (StackOwner, Vec<Edge>)> {
        for ((owner, depth, function), began) in std::mem::take(&mut self.open) {
            self.ended.entry(owner).or_default().push(Span {
                began,
                ended: self.last,
                depth,
                function,
            });
        }
        self.ended
            .into_iter()
            .map(|(owner, spans)| (owner, nested(spans)))
    }
}

fn nested(mut spans: Vec<Span>) -> Vec<Edge> {
    // What encloses comes first.
    spans.sort_unstable_by_key(|span| {
        (
            span.began,
            span.depth,
            std::cmp::Reverse(span.ended),
            span.function,
        )
    });
    let mut edges = Vec::with_capacity(2 * spans.len());
    let mut around: Vec<(Timestamp, FunctionId)> = Vec::new();
    let leave = |(at, function)| Edge {
        at,
        function,
        enters: false,
    };
    for span in spans {
        while let Some(outer) =
            around.pop_if(|(ended, _)| *ended <= span.began && *ended < span.ended)
        {
            edges.push(leave(outer));
        }
        let limit = around.last().map_or(span.ended, |(ended, _)| *ended);
        let began = span.began.min(limit);
        edges.push(Edge {
            at: began,
            function: span.function,
            enters: true,
        });
        around.push((span.ended.min(limit), span.function));
    }
    edges.extend(around.into_iter().rev().map(leave));
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(spans: &[(u64, u64, u32)]) -> Vec<(u64, usize, bool)> {
        let span = |(index, &(began, ended, depth)): (usize, &(u64, u64, u32))| Span {
            began: Timestamp(began),
            ended: Timestamp(ended),
            depth,
            function: FunctionId::from_index(index),
        };
        let edges = nested(spans.iter().enumerate().map(span).collect());
        let plain = |edge: Edge| (edge.at.0, edge.function.index(), edge.enters);
        edges.into_iter().map(plain).collect()
    }

    #[test]
    fn calls_nest() {
        // The inner one ends first, and is told first.
        let told = edges(&[(2, 3, 1), (1, 5, 0)]);
        assert_eq!(
            told,
            [(1, 1, true), (2, 0, true), (3, 0, false), (5, 1, false)]
        );
        let after = edges(&[(1, 2, 0), (2, 3, 0)]);
        assert_eq!(
            after,
            [(1, 0, true), (2, 0, false), (2, 1, true), (3, 1, false)]
        );
    }

    #[test]
    fn what_does_not_nest_is_cut() {
        let told = edges(&[(1, 5, 0), (3, 9, 0)]);
        assert_eq!(
            told,
            [(1, 0, true), (3, 1, true), (5, 1, false), (5, 0, false)]
        );
    }

    #[test]
    fn points_are_within_what_is_there() {
        let told = edges(&[(1, 5, 0), (5, 5, 1)]);
        assert_eq!(
            told,
            [(1, 0, true), (5, 1, true), (5, 1, false), (5, 0, false)]
        );
    }
}
