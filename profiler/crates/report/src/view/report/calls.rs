//! From folded calls to the report's data.
//!
//! Input: the fold over calls; output: [`Calls`], rows in the order that was asked for.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::build::share_of;
use super::calls_data::*;
use super::data::CodeModule;
use super::options::{CallSort, ReportOptions};
use super::{Recording, ReportError};
use crate::derive::calls::{CallTable, Context, FunctionCalls, ROOT, SlowCall, ThreadCalls};
use crate::derive::{Functions, Pattern, container_label_of, parameter};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// What was traced; none if there is nothing about calls in the recording.
pub(super) fn build(
    recording: &Recording<'_>,
    options: &ReportOptions,
) -> Result<Option<Calls>, ReportError> {
    let collected = recording.collected;
    if collected.calls.is_empty() {
        return Ok(None);
    }
    let settled = collected.calls.settled();
    let builder = Builder {
        recording,
        options,
        calls: &settled,
        unrecorded: settled.without_written_end(),
        names: Functions::of(recording.tables),
    };
    let functions = builder.functions()?;
    let losses = &collected.losses;
    // Counts are read from a file, and may be anything.
    let sum = |of: fn(&CallRow) -> u64| functions.iter().map(of).fold(0, u64::saturating_add);
    let gaps: Vec<GapRow> = (GapReason::ALL.iter())
        .map(|&reason| (settled.gaps(reason), reason))
        .filter(|(gaps, _)| gaps.count > 0)
        .map(|(gaps, reason)| GapRow {
            reason,
            count: Some(gaps.count),
            ns: gaps.ns,
            percent: None,
        })
        .collect();
    let summary = CallSummary {
        functions: functions.len() as u64,
        calls: sum(|row| row.calls),
        // Also of functions of which no call is in the recording: they have no row.
        calls_at_least: gaps.iter().any(|gap| gap.reason.hides_calls()),
        seen: sum(|row| row.calls_seen),
        lost_records: losses
            .of(LostReason::CallRingFull)
            .max(sum(|row| row.lost_records)),
        unwritten_records: losses.of(LostReason::UnwrittenCalls),
        unmatched: losses.of(LostReason::Unmatched),
        unwatched: sum(|row| row.unwatched),
        unrecorded: sum(|row| row.unrecorded),
        left_out: sum(|row| row.left_out).saturating_add(losses.of(LostReason::TooMany)),
        counts_left_out: !collected.counts_hold(),
        gaps,
        folded: settled.folded(),
        exceptions_folded: settled.throws_folded(),
        arguments_dropped: settled.arguments_dropped(),
    };
    Ok(Some(Calls {
        summary,
        functions,
        tree: builder.tree(),
        slowest: settled
            .slowest()
            .into_iter()
            .map(|call| builder.slow_row(call))
            .collect(),
        exceptions: builder.exceptions(),
        processes: builder.processes(),
        threads: builder.threads(),
    }))
}

struct Builder<'a> {
    recording: &'a Recording<'a>,
    options: &'a ReportOptions,
    calls: &'a CallTable,
    unrecorded: FxHashMap<FunctionId, u64>,
    names: Functions,
}

impl Builder<'_> {
    fn tables(&self) -> &Tables {
        self.recording.tables
    }

    fn text(&self, id: StringId) -> String {
        self.tables().string(id).to_owned()
    }

    /// Name and place of a function.
    fn function(&self, id: FunctionId) -> (String, CodeModule) {
        let Some(function) = self.tables().functions.get(id) else {
            return ("[undefined]".to_owned(), CodeModule::default());
        };
        let module = function.module.and_then(|id| self.tables().modules.get(id));
        let module = module.map_or_else(CodeModule::default, |module| CodeModule {
            module: self.text(module.path),
            build_id: module.build_id.as_ref().map(ToString::to_string),
        });
        (self.names.name(self.tables(), id).into_owned(), module)
    }

    /// Start and end of what is looked at.
    fn span(&self) -> (Timestamp, Timestamp) {
        let collected = self.recording.collected;
        let (from, to) = collected.span_ns();
        let at = |ns: u64| Timestamp(collected.origin().0.saturating_add(ns));
        (at(from), at(to))
    }

    fn functions(&self) -> Result<Vec<CallRow>, ReportError> {
        let tracing = self.tracing();
        let histogram = self.options.calls.histogram.as_deref().map(Pattern::new);
        let mut rows: Vec<CallRow> = (self.calls.functions())
            .filter(|(_, calls)| calls.calls() > 0)
            .map(|(id, calls)| self.row(id, calls, &tracing))
            .collect();
        rows.order_by(|a, b| {
            let (a_key, b_key) = (self.key(a), self.key(b));
            (b_key.cmp(&a_key)).then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
        });
        if let Some(pattern) = &histogram {
            let any = |row: &CallRow, is: &dyn Fn(&str) -> bool| is(&row.name) || is(&row.short);
            let is_exactly = |row: &CallRow| any(row, &|name| pattern.is_exactly(name));
            let exact = rows.iter().any(is_exactly);
            rows.retain(|row| match exact {
                true => is_exactly(row),
                false => any(row, &|name| pattern.matches(name)),
            });
            if rows.is_empty() {
                let wanted = self.options.calls.histogram.clone();
                return Err(ReportError::NoTracedFunction(wanted.unwrap_or_default()));
            }
        }
        Ok(rows)
    }

    fn key(&self, row: &CallRow) -> (Option<u64>, u64, u64) {
        let first = match self.options.calls.sort {
            CallSort::Calls => Some(row.calls),
            CallSort::Total => Some(row.total_ns),
            CallSort::SelfTime => Some(row.self_ns),
            CallSort::Mean => row.mean_ns,
            CallSort::P99 => row.p99_ns,
            CallSort::Max => row.max_ns,
        };
        (first, row.total_ns, row.calls)
    }

    fn row(
        &self,
        id: FunctionId,
        calls: &FunctionCalls,
        tracing: &BTreeMap<FunctionId, u64>,
    ) -> CallRow {
        let (name, module) = self.function(id);
        let traced = self.tables().traced(id);
        let latency = &calls.latency;
        let known = |ns: u64| (latency.count() > 0).then_some(ns);
        let kernel = calls.counted();
        let counted = kernel.unwrap_or_default();
        // Calls that are open at the end of the recording are not those of an earlier span.
        let open = match self.recording.collected.range().to_ns {
            None => calls.open(),
            Some(_) => 0,
        };
        let seen = calls.ended + calls.hits + open;
        let unrecorded = self.unrecorded.get(&id).copied().unwrap_or(0).min(open);
        let cost_ns = traced.map(|traced| traced.cost_ns).filter(|cost| *cost > 0);
        let hidden = self.calls.hidden(id, cost_ns);
        let gaps = self.gaps(id);
        // Of calls that are as short as their probes a part of the cost lies before the entry is seen, and behind the exit.
        let tracing_ns = cost_ns.and_then(|_| tracing.get(&id).copied());
        let tracing_ns = tracing_ns.map(|ns| match calls.total_ns {
            0 => ns,
            total_ns => ns.min(total_ns),
        });
        let function = self.tables().functions.get(id);
        CallRow {
            short: function.map_or_else(|| name.clone(), |function| self.text(function.name)),
            name,
            module,
            kind: traced.map_or(TracedKind::Function, |traced| traced.kind),
            returns: traced.map(|traced| traced.returns),
            calls: counted.entries.max(seen),
            calls_at_least: gaps.iter().any(|gap| gap.reason.hides_calls()),
            calls_seen: seen,
            calls_counted: kernel.map(|counted| counted.entries),
            calls_estimated: hidden
                .filter(|&hidden| hidden > 0)
                .map(|hidden| counted.entries.max(seen).saturating_add(hidden)),
            not_estimable: hidden.is_none(),
            lost_records: counted.lost,
            left_out: counted.left_out,
            total_ns: calls.total_ns,
            self_ns: calls.self_ns,
            mean_ns: known(latency.mean_ns()),
            min_ns: known(latency.min_ns()),
            p50_ns: known(latency.quantile_ns(0.5)),
            p95_ns: known(latency.quantile_ns(0.95)),
            p99_ns: known(latency.quantile_ns(0.99)),
            max_ns: known(latency.max_ns()),
            exceptions: calls.thrown(),
            exception_types: self.exception_types(calls),
            terminated: calls.terminated,
            inferred: calls.inferred,
            unwatched: calls.unwatched,
            unrecorded,
            open: open - unrecorded,
            hits: calls.hits,
            gaps,
            cost_ns,
            tracing_ns,
            tracing_percent: tracing_ns
                // The probes of calls that are in no time are no part of it.
                .filter(|_| calls.total_ns > 0 && calls.hits == 0 && calls.unwatched == 0)
                .filter(|_| unrecorded == 0)
                .map(|ns| share_of(ns, calls.total_ns)),
            histogram: match self.options.calls.is_only() {
                true => (latency.buckets())
                    .map(|bucket| BucketRow {
                        from_ns: bucket.from_ns,
                        to_ns: bucket.to_ns,
                        calls: bucket.count,
                    })
                    .collect(),
                false => Vec::new(),
            },
        }
    }

    fn exception_types(&self, calls: &FunctionCalls) -> Vec<ExceptionType> {
        let mut types: Vec<ExceptionType> = (calls.exceptions.iter())
            .map(|(kind, &calls)| ExceptionType {
                kind: kind.map(|kind| self.text(kind)),
                calls,
            })
            .collect();
        types.order_by(|a, b| (b.calls, &a.kind).cmp(&(a.calls, &b.kind)));
        if calls.other_exceptions > 0 {
            types.push(ExceptionType {
                kind: Some("[other types]".to_owned()),
                calls: calls.other_exceptions,
            });
        }
        types
    }

    fn gaps(&self, id: FunctionId) -> Vec<GapRow> {
        let (from, to) = self.span();
        let gaps = GapReason::ALL.iter();
        gaps.map(|&reason| (self.calls.gap_ns(id, reason), reason))
            .filter(|(ns, _)| *ns > 0)
            .map(|(ns, reason)| GapRow {
                reason,
                count: None,
                ns,
                percent: Some(share_of(ns, to.since(from)).min(100.0)),
            })
            .collect()
    }

    /// What the probes cost that were hit within the time of each function, as predicted.
    fn tracing(&self) -> BTreeMap<FunctionId, u64> {
        let nodes = self.calls.contexts();
        let mut costs = vec![0_u64; nodes.len()];
        let mut sums: BTreeMap<FunctionId, u64> = BTreeMap::new();
        // Callers come before what they call.
        for (index, node) in nodes.iter().enumerate().rev() {
            if let Some(function) = node.function {
                let traced = self.tables().traced(function);
                let own = traced.map_or(0, |traced| u64::from(traced.cost_ns));
                costs[index] = costs[index].saturating_add(node.calls.saturating_mul(own));
                if !node.is_recursive() {
                    let sum = sums.entry(function).or_default();
                    *sum = sum.saturating_add(costs[index]);
                }
            }
            if let Some(parent) = node.parent {
                costs[parent] = costs[parent].saturating_add(costs[index]);
            }
        }
        sums
    }

    fn tree(&self) -> Vec<CallTreeRow> {
        let nodes = self.calls.contexts();
        let mut children = vec![Vec::new(); nodes.len()];
        let mut calls_below: Vec<u64> = nodes.iter().map(|node| node.calls + node.folded).collect();
        for (index, node) in nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                calls_below[parent] += calls_below[index];
                // Nodes of calls that are not looked at have nothing to show.
                if calls_below[index] > 0 {
                    children[parent].push(index);
                }
            }
        }
        let name = |node: &Context| match node.function {
            Some(id) => self.function(id),
            None => (
                "[callers not in the recording]".into(),
                CodeModule::default(),
            ),
        };
        for list in &mut children {
            list.sort_by_cached_key(|&index| {
                let node: &Context = &nodes[index];
                (Reverse((time(nodes, index), node.calls)), name(node))
            });
        }
        let whole: u64 = children[ROOT]
            .iter()
            .map(|&index| time(nodes, index))
            .fold(0, u64::saturating_add);
        let is_small = |index: usize| {
            let percent = self.options.min_percent;
            let of_calls = share_of(calls_below[index], calls_below[ROOT]);
            share_of(time(nodes, index), whole) < percent && of_calls < percent
        };
        let mut rows: Vec<CallTreeRow> = Vec::new();
        let roots = children[ROOT].iter().rev();
        let mut pending: Vec<(usize, Option<usize>, usize)> =
            roots.map(|&index| (index, None, 0)).collect();
        while let Some((index, parent, depth)) = pending.pop() {
            let node = &nodes[index];
            let (omitted, shown): (Vec<usize>, Vec<usize>) =
                children[index].iter().partition(|&&child| is_small(child));
            let (name, module) = name(node);
            let id = rows.len();
            rows.push(CallTreeRow {
                id,
                parent,
                depth,
                kind: match node.function {
                    Some(_) => "function",
                    None => "unknown_callers",
                },
                name,
                module,
                calls: node.calls,
                total_ns: node.total_ns,
                self_ns: node.self_ns,
                folded: node.folded,
                omitted: omitted.len() as u64,
                omitted_ns: omitted
                    .iter()
                    .map(|&child| time(nodes, child))
                    .fold(0, u64::saturating_add),
            });
            let shown = shown.iter().rev();
            pending.extend(shown.map(|&child| (child, Some(id), depth + 1)));
        }
        rows
    }

    fn slow_row(&self, call: &SlowCall) -> SlowRow {
        let (name, module) = self.function(call.function);
        let (thread, process) = self.owner(call.thread);
        let result_type = self.tables().traced(call.function).and_then(|t| t.result);
        SlowRow {
            name,
            module,
            at_ns: call.began.since(self.recording.collected.origin()),
            total_ns: call.total_ns,
            self_ns: call.self_ns,
            pid: process.map_or(0, |process| process.pid.0),
            process: process.map_or_else(String::new, |process| self.text(process.name)),
            container: process.and_then(|process| container_label_of(self.tables(), process)),
            tid: thread.map_or(0, |thread| thread.tid.0),
            thread: thread.map_or_else(String::new, |thread| self.text(thread.name)),
            end: call.how.name(),
            line: Some(call.line).filter(|&line| line != 0),
            exception: match call.how {
                ExitKind::Exception(Some(kind)) => Some(self.text(kind)),
                _ => None,
            },
            arguments: call.arguments.as_deref().map(|values| {
                let values = values.iter().enumerate();
                values
                    .map(|(index, value)| {
                        let known = parameter(index, call.function, self.tables());
                        ValueRow {
                            name: known.map(|(name, _)| name.to_owned()),
                            kind: known.and_then(|(_, kind)| Some(kind?.to_owned())),
                            value: value.to_string(),
                        }
                    })
                    .collect()
            }),
            result: call.result.as_ref().map(|value| ValueRow {
                name: None,
                kind: result_type.map(|kind| self.text(kind)),
                value: value.to_string(),
            }),
        }
    }

    fn owner(&self, id: ThreadId) -> (Option<&Thread>, Option<&Process>) {
        let thread = self.tables().thread(id);
        (
            thread,
            thread.and_then(|thread| self.tables().process(thread.process)),
        )
    }

    fn exceptions(&self) -> Vec<ExceptionRow> {
        let mut rows: Vec<ExceptionRow> = (self.calls.throws())
            .filter(|(_, sum)| sum.thrown + sum.calls_left > 0)
            .map(|((kind, thrower), sum)| ExceptionRow {
                kind: kind.map(|kind| self.text(kind)),
                thrower: thrower.map(|frame| self.tables().frame_name(frame)),
                thrown: sum.thrown,
                calls_left: sum.calls_left,
            })
            .collect();
        rows.order_by(|a, b| {
            let sums = |row: &ExceptionRow| Reverse((row.thrown, row.calls_left));
            (sums(a), &a.kind, &a.thrower).cmp(&(sums(b), &b.kind, &b.thrower))
        });
        rows
    }

    fn threads(&self) -> Vec<CallOwnerRow> {
        let rows = self.calls.threads();
        sorted_owners(rows.map(|(id, calls)| self.owner_row(id, &calls)).collect())
    }

    fn processes(&self) -> Vec<CallOwnerRow> {
        let mut sums: BTreeMap<ProcessId, CallOwnerRow> = BTreeMap::new();
        let mut threads: Vec<_> = self.calls.threads().collect();
        threads.order_by_key(|(id, _)| *id);
        for (id, calls) in threads {
            let Some(thread) = self.tables().thread(id) else {
                continue;
            };
            match sums.get_mut(&thread.process) {
                Some(row) => {
                    row.calls += calls.calls;
                    row.total_ns = row.total_ns.saturating_add(calls.total_ns);
                    row.exceptions += calls.thrown;
                }
                None => {
                    let row = CallOwnerRow {
                        tid: None,
                        thread: None,
                        ..self.owner_row(id, &calls)
                    };
                    sums.insert(thread.process, row);
                }
            }
        }
        sorted_owners(sums.into_values().collect())
    }

    fn owner_row(&self, id: ThreadId, calls: &ThreadCalls) -> CallOwnerRow {
        let (thread, process) = self.owner(id);
        CallOwnerRow {
            pid: process.map_or(0, |process| process.pid.0),
            process: process.map_or_else(String::new, |process| self.text(process.name)),
            container: process.and_then(|process| container_label_of(self.tables(), process)),
            tid: thread.map(|thread| thread.tid.0),
            thread: thread.map(|thread| self.text(thread.name)),
            calls: calls.calls,
            total_ns: calls.total_ns,
            exceptions: calls.thrown,
        }
    }
}

/// A node's time; that of calls with unknown callers is all of theirs.
fn time(nodes: &[Context], index: usize) -> u64 {
    match nodes[index].function {
        Some(_) => nodes[index].total_ns,
        None => {
            let below = nodes.iter().filter(|node| node.parent == Some(index));
            below.map(|node| node.total_ns).fold(0, u64::saturating_add)
        }
    }
}

fn sorted_owners(mut rows: Vec<CallOwnerRow>) -> Vec<CallOwnerRow> {
    rows.retain(|row| row.calls > 0);
    rows.order_by(|a, b| {
        let sums = |row: &CallOwnerRow| Reverse((row.total_ns, row.calls));
        (sums(a), a.pid, a.tid).cmp(&(sums(b), b.pid, b.tid))
    });
    rows
}
