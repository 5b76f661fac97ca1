//! What a report says of waits: by state, by function, by thread, and who ended them.
//!
//! Input: the selected samples that are waits, and the kernel's totals; output: [`WaitReport`]. Layout does
//! not belong here.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Recording;
use super::build::{Base, NO_STACK, share_of};
use super::data::CodeModule;
use super::select::Selected;
use super::waits_data::*;
use crate::derive::{EndedBy, Key, Latency, Owner, WaitTotals, WakerSums, waiting_frame};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Wakers listed per function and thread.
const MAX_WAKERS: usize = 5;

/// Sums of some waits.
#[derive(Clone, Copy, Default)]
struct Sum {
    waits: u64,
    ns: u64,
    longest_ns: u64,
    runnable_ns: u64,
    recorded: u64,
    states: [u64; 4],
}

impl Sum {
    fn add(&mut self, selected: &Selected<'_>, state: WaitState) {
        let (aggregate, waits) = (selected.aggregate, &selected.aggregate.waits());
        self.waits = self.waits.saturating_add(waits.count);
        self.ns = self.ns.saturating_add(aggregate.weight);
        self.longest_ns = self.longest_ns.max(waits.longest_ns);
        self.runnable_ns = self.runnable_ns.saturating_add(waits.runnable_ns);
        self.recorded = self.recorded.saturating_add(aggregate.count);
        let state = &mut self.states[state as usize];
        *state = state.saturating_add(aggregate.weight);
    }

    fn share(&self, all: &Sum) -> WaitShare {
        WaitShare {
            waits: self.waits,
            ns: self.ns,
            percent: share_of(self.ns, all.ns),
            mean_ns: self.ns.checked_div(self.waits).unwrap_or(0),
            longest_ns: self.longest_ns,
            runnable_ns: self.runnable_ns,
            recorded: self.recorded,
        }
    }
}

/// By the names of process and thread, and whether nobody has ended them yet.
type Wakers = BTreeMap<(Option<(StringId, StringId)>, bool), WakerSums>;

/// What is below a function: its name in its module.
type FunctionKey = (String, CodeModule, FrameKind);

pub(super) fn build(recording: &Recording<'_>, base: &Base<'_>) -> Option<WaitReport> {
    let waits = || {
        let selected = base.selected.iter();
        selected.filter_map(|selected| Some((selected, selected.key.wait?)))
    };
    waits().next()?;
    let mut functions = WaitFunctions::default();
    let mut all = Sum::default();
    let mut by_state = [Sum::default(); 4];
    let mut by_function: BTreeMap<usize, Sum> = BTreeMap::new();
    let mut by_thread: BTreeMap<ThreadId, Sum> = BTreeMap::new();
    let mut keys = FxHashSet::default();
    for (selected, state) in waits() {
        all.add(selected, state);
        by_state[state as usize].add(selected, state);
        let function = functions.of(base, &selected.key);
        by_function
            .entry(function)
            .or_default()
            .add(selected, state);
        if let Some(thread) = selected.thread() {
            by_thread.entry(thread).or_default().add(selected, state);
        }
        keys.insert(selected.key);
    }

    let table = &recording.collected.waits;
    let mut wakers_of_all = Wakers::new();
    let mut wakers_of_function: BTreeMap<usize, Wakers> = BTreeMap::new();
    let mut wakers_of_thread: BTreeMap<ThreadId, Wakers> = BTreeMap::new();
    for (key, waker, sums) in table.wakers().filter(|(key, _, _)| keys.contains(*key)) {
        if key.wait == Some(WaitState::Preempted) {
            // It was never asleep: nobody woke it.
            continue;
        }
        let name = waker.thread().and_then(|id| names(base.tables, id));
        let name = (name, waker == EndedBy::Nobody);
        let function = functions.of(base, key);
        let add = |wakers: &mut Wakers| wakers.entry(name).or_default().add(sums);
        add(&mut wakers_of_all);
        add(wakers_of_function.entry(function).or_default());
        if let Owner::Thread(thread) = key.owner {
            add(wakers_of_thread.entry(thread).or_default());
        }
    }

    let wakers = |wakers: Option<&Wakers>, sum: &Sum, limit: usize| {
        wakers.map_or_else(Vec::new, |wakers| waker_rows(base, wakers, sum, limit))
    };
    let mut run_queue = Latency::default();
    for latency in by_thread.keys().filter_map(|&id| table.run_queue_of(id)) {
        run_queue.merge(latency);
    }
    let exact_of = |id| {
        table
            .totals_of(id)
            .filter(|_| base.counted_threads.binary_search(&id).is_ok())
    };
    let mut totals = WaitTotals::default();
    let mut recorded_ns: u64 = 0;
    for &id in &base.counted_threads {
        let found = table.totals_of(id).unwrap_or_default();
        totals.add(&found.count, &found.ns, found.runnable_ns);
        recorded_ns = recorded_ns.saturating_add(table.recorded_of(id));
    }
    // Of some threads no wait was recorded at all.
    for &id in &base.counted_threads {
        by_thread.entry(id).or_default();
    }
    let mut threads: Vec<WaitThreadRow> = (by_thread.iter())
        .filter_map(|(&id, sum)| {
            let thread = base.tables.thread(id)?;
            let process = base.tables.process(thread.process)?;
            Some(WaitThreadRow {
                pid: process.pid.0,
                process: base.tables.string(process.name).to_owned(),
                tid: thread.tid.0,
                thread: base.tables.string(thread.name).to_owned(),
                exact: exact_of(id).map(|totals| exact_row(&totals, table.recorded_of(id))),
                share: sum.share(&all),
                run_queue: run_queue_row(table.run_queue_of(id)),
                wakers: wakers(wakers_of_thread.get(&id), sum, MAX_WAKERS),
            })
        })
        .collect();
    threads.order_by_key(|row| {
        let ns = row.exact.map_or(row.share.ns, |exact| exact.ns);
        (Reverse(ns), row.pid, row.tid)
    });

    let mut function_rows: Vec<WaitFunctionRow> = (by_function.iter())
        .map(|(&function, sum)| {
            let (name, module, kind) = functions.names[function].clone();
            WaitFunctionRow {
                name,
                module,
                kind,
                share: sum.share(&all),
                states: state_times(sum),
                wakers: wakers(wakers_of_function.get(&function), sum, MAX_WAKERS),
            }
        })
        .collect();
    function_rows
        .order_by(|a, b| (b.share.ns, &a.name, &a.module).cmp(&(a.share.ns, &b.name, &b.module)));

    let states = [
        WaitState::Sleeping,
        WaitState::Disk,
        WaitState::Preempted,
        WaitState::Stopped,
    ];
    Some(WaitReport {
        all: all.share(&all),
        exact: (totals.all_count() > 0 || totals.all_ns() > 0)
            .then(|| exact_row(&totals, recorded_ns)),
        run_queue: run_queue_row(Some(&run_queue)),
        states: (states.into_iter())
            .map(|state| (state, &by_state[state as usize]))
            .filter(|(_, sum)| sum.recorded > 0)
            .map(|(state, sum)| WaitStateRow {
                state,
                share: sum.share(&all),
            })
            .collect(),
        functions: function_rows,
        threads,
        wakers: wakers(Some(&wakers_of_all), &all, usize::MAX),
    })
}

/// Functions that waits began in, by number; each pair of stacks is looked at once.
#[derive(Default)]
struct WaitFunctions {
    names: Vec<FunctionKey>,
    known: FxHashMap<FunctionKey, usize>,
    stacks: FxHashMap<(Option<StackId>, Option<StackId>), usize>,
}

impl WaitFunctions {
    fn of(&mut self, base: &Base<'_>, key: &Key) -> usize {
        let stacks = (key.kernel, key.user);
        if let Some(&known) = self.stacks.get(&stacks) {
            return known;
        }
        let name = match waiting_frame(base.tables, key.kernel, key.user) {
            Some(frame) => {
                let function = frame.function.and_then(|id| base.tables.functions.get(id));
                let module = function.and_then(|function| function.module);
                let module = base.code_module(module.or(frame.module));
                let name = match frame.function {
                    Some(id) => base.functions.name(base.tables, id),
                    None => frame.name,
                };
                (name.into_owned(), module, frame.kind)
            }
            None => (
                NO_STACK.to_owned(),
                CodeModule::default(),
                FrameKind::Native,
            ),
        };
        let names = &mut self.names;
        let number = *self.known.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() - 1
        });
        self.stacks.insert(stacks, number);
        number
    }
}

/// Names of a thread's process and of the thread.
fn names(tables: &Tables, id: ThreadId) -> Option<(StringId, StringId)> {
    let thread = tables.thread(id)?;
    Some((tables.process(thread.process)?.name, thread.name))
}

fn waker_rows(base: &Base<'_>, wakers: &Wakers, sum: &Sum, limit: usize) -> Vec<WakerRow> {
    let text = |id| base.tables.string(id).to_owned();
    let mut rows: Vec<WakerRow> = (wakers.iter())
        .map(|(&(name, goes_on), sums)| WakerRow {
            process: name.map(|(process, _)| text(process)),
            thread: name.map(|(_, thread)| text(thread)),
            goes_on,
            waits: sums.count,
            ns: sums.ns,
            percent: share_of(sums.ns, sum.ns),
        })
        .collect();
    rows.order_by(|a, b| {
        (b.ns, b.waits, &a.process, &a.thread).cmp(&(a.ns, a.waits, &b.process, &b.thread))
    });
    rows.truncate(limit);
    rows
}

fn state_times(sum: &Sum) -> Vec<StateTime> {
    let mut times: Vec<StateTime> = (0..)
        .map_while(WaitState::from_code)
        .map(|state| StateTime {
            state,
            ns: sum.states[state as usize],
        })
        .filter(|time| time.ns > 0)
        .collect();
    times.order_by_key(|time| Reverse(time.ns));
    times
}

fn exact_row(totals: &WaitTotals, recorded_ns: u64) -> ExactRow {
    let ns = totals.all_ns();
    ExactRow {
        waits: totals.all_count(),
        ns,
        preempted_ns: totals.ns[WaitState::Preempted as usize],
        sleeping_ns: totals.ns[WaitState::Sleeping as usize],
        disk_ns: totals.ns[WaitState::Disk as usize],
        stopped_ns: totals.ns[WaitState::Stopped as usize],
        runnable_ns: totals.runnable_ns,
        recorded_percent: share_of(recorded_ns.min(ns), ns),
    }
}

fn run_queue_row(latency: Option<&Latency>) -> RunQueueRow {
    latency.map_or_else(RunQueueRow::default, |latency| RunQueueRow {
        waits: latency.count(),
        ns: latency.sum_ns(),
        mean_ns: latency.mean_ns(),
        p50_ns: latency.quantile_ns(0.5),
        p99_ns: latency.quantile_ns(0.99),
        max_ns: latency.max_ns(),
    })
}
