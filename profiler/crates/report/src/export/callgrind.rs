//! callgrind: costs of functions and lines and who called them, for KCachegrind and callgrind_annotate.
//!
//! Input: events; output: text of callgrind's format, version 1, a part for each process. Costs are samples, and their
//! weights in the unit of their source; of traced calls nanoseconds. Memory is bounded by the number of distinct stacks.
//! The mapping, and what is lost: docs/formats/callgrind.md.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use rustc_hash::{FxHashMap, FxHashSet};

use super::collect::SOURCE_OF_ALL;
use super::name;
use super::places::Places;
use super::settings::Settings;
use super::summed::{Summed, count};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Merge, first_same};
use profiler_model::text::TextMap;
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "callgrind",
    extensions: &[".callgrind"],
    description: "costs of functions and lines, for KCachegrind and callgrind_annotate",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::All,
    options: &[&SOURCE_OF_ALL],
    sink: |settings, output| Box::new(Callgrind::new(settings, output)),
    difference: None,
    declared: false,
};

struct Callgrind {
    summed: Summed,
    output: BufWriter<Output>,
}

/// A cost of each kind of event.
type Costs = Vec<u64>;

/// Whom a function calls, and from which line.
type Edge = (u32, u32);

/// How often, and what that cost.
type Called = (u64, Costs);

/// What the functions of all processes cost.
#[derive(Default)]
struct Sums {
    /// Of a function in a line of it, without what it calls.
    own: BTreeMap<(u32, u32), Costs>,
    /// Of what a function calls, by the function called and the line of the call; how often it was called.
    called: BTreeMap<(u32, Edge), Called>,
}

fn add(sums: &mut Costs, costs: &[u64]) {
    sums.resize(costs.len(), 0);
    for (sum, cost) in sums.iter_mut().zip(costs) {
        *sum = sum.saturating_add(*cost);
    }
}

impl Sums {
    /// Adds what a stack cost, root first, each function with its line. A function that is in it several times calls
    /// only from where it is first, and not at all if it is the leaf: so what a function and its calls cost is what the
    /// stacks cost that it is in.
    fn stack(&mut self, stack: &[(u32, u32)], count: u64, costs: &[u64], which: Counted) {
        let Some(&(leaf, line)) = stack.last() else {
            return;
        };
        add(self.own.entry((leaf, line)).or_default(), costs);
        let mut seen = FxHashSet::default();
        seen.insert(leaf);
        for (index, pair) in stack.windows(2).enumerate() {
            let &[(caller, line), (callee, _)] = pair else {
                continue;
            };
            let last = index + 2 == stack.len();
            let counted = last || which == Counted::Stacks;
            let costly = seen.insert(caller);
            let counts_anyway = last && which == Counted::Calls;
            if !(costly || counts_anyway) {
                continue;
            }
            let sums = self.called.entry((caller, (callee, line))).or_default();
            sums.1.resize(costs.len(), 0);
            if counted {
                sums.0 = sums.0.saturating_add(count);
            }
            if costly {
                add(&mut sums.1, costs);
            }
        }
    }
}

/// What the number of calls on a line is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Stacks in which one calls the other.
    Stacks,
    /// Calls: of what is last in a chain.
    Calls,
}

impl Callgrind {
    fn new(settings: &Settings, output: Output) -> Callgrind {
        Callgrind {
            summed: Summed::new(settings, Merge::Process),
            output: BufWriter::new(output),
        }
    }

    fn write(
        &mut self,
        sums: Sums,
        places: &Places,
        zero: &Costs,
        tables: &Tables,
    ) -> io::Result<()> {
        let out = &mut self.output;
        let mut names = Names::default();
        let mut called: BTreeMap<u32, Vec<(Edge, Called)>> = BTreeMap::new();
        for ((caller, edge), costs) in sums.called {
            called.entry(caller).or_default().push((edge, costs));
        }
        let mut own: BTreeMap<u32, Vec<(u32, Costs)>> = BTreeMap::new();
        for ((function, line), costs) in sums.own {
            own.entry(function).or_default().push((line, costs));
        }
        let mut all: Vec<u32> = own.keys().chain(called.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        for function in all {
            writeln!(out)?;
            names.function(out, ["ob", "fl", "fn"], function, places, tables)?;
            for (line, costs) in own.remove(&function).unwrap_or_default() {
                write_costs(out, line, &costs)?;
            }
            for ((callee, line), (count, costs)) in called.remove(&function).unwrap_or_default() {
                names.function(out, ["cob", "cfi", "cfn"], callee, places, tables)?;
                writeln!(out, "calls={count} 0")?;
                write_costs(out, line, &costs)?;
            }
        }
        write!(out, "\ntotals:")?;
        for cost in zero {
            write!(out, " {cost}")?;
        }
        writeln!(out)
    }
}

fn write_costs(out: &mut impl Write, line: u32, costs: &[u64]) -> io::Result<()> {
    write!(out, "{line}")?;
    for cost in costs {
        write!(out, " {cost}")?;
    }
    writeln!(out)
}

/// Names that were written once are numbers from then on; object files, source files and functions each count by
/// themselves.
#[derive(Default)]
struct Names {
    known: TextMap<(usize, String), usize>,
    counts: [usize; 3],
}

impl Names {
    fn function(
        &mut self,
        out: &mut impl Write,
        keys: [&str; 3],
        function: u32,
        places: &Places,
        tables: &Tables,
    ) -> io::Result<()> {
        let functions = &places.functions;
        let Some(function) = functions.all().get(function as usize) else {
            return Ok(());
        };
        let texts = [
            function.module(tables).unwrap_or("???"),
            function.file(tables).unwrap_or("???"),
            &functions.name(*function, tables),
        ];
        for (kind, (key, text)) in keys.into_iter().zip(texts).enumerate() {
            let text = name::text(text).into_owned();
            match self.known.get(&(kind, text.clone())) {
                Some(number) => writeln!(out, "{key}=({number})")?,
                None => {
                    self.counts[kind] += 1;
                    let number = self.counts[kind];
                    writeln!(out, "{key}=({number}) {text}")?;
                    self.known.insert((kind, text), number);
                }
            }
        }
        Ok(())
    }
}

/// A name without spaces.
fn word(text: &str) -> String {
    name::text(text).replace([' ', ':'], "_")
}

impl Sink for Callgrind {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.summed.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = self.summed.sources(tables)?;
        let (mut events, mut at) = (Vec::new(), FxHashMap::default());
        for &id in &sources {
            let source = tables.sources.get(id);
            let name = word(source.map_or("unknown", |source| tables.string(source.name)));
            at.insert(id, events.len());
            let unit = match source.map(|source| source.unit) {
                Some(Unit::Nanoseconds) => "_ns",
                _ => "",
            };
            events.push(format!("{name}_samples"));
            events.push(format!("{name}{unit}"));
        }
        let of_calls = events.len();
        if !self.summed.calls.is_empty() {
            events.push("traced_ns".to_owned());
        }
        let (mut places, mut sums) = (Places::new(tables), Sums::default());
        let (mut total, mut unnamed) = (vec![0_u64; events.len()], 0);
        let (mut stack, mut lines) = (Vec::new(), Vec::new());
        for (key, sample) in self.summed.samples.sorted() {
            let source = first_same(key.source, &sources, tables);
            let Some(&at) = source.and_then(|source| at.get(&source)) else {
                continue;
            };
            let count = count(&key, sample);
            let named = places.stack(&key, tables, &mut stack);
            unnamed += if named { 0 } else { sample.count };
            lines.clear();
            let process = key.owner.process(tables);
            lines.push((places.functions.process(process), 0));
            let known = stack
                .iter()
                .filter_map(|&place| places.all().get(place as usize));
            lines.extend(known.map(|place| (place.function, place.line)));
            let mut costs = vec![0; events.len()];
            (costs[at], costs[at + 1]) = (count, sample.weight);
            add(&mut total, &costs);
            sums.stack(&lines, count, &costs, Counted::Stacks);
        }
        self.summed.calls.chains(|process, chain| {
            lines.clear();
            lines.push((places.functions.process(process), 0));
            for &function in chain.functions.iter().rev() {
                lines.push((places.functions.traced(function, tables), 0));
            }
            let mut costs = vec![0; events.len()];
            if let Some(ns) = costs.get_mut(of_calls) {
                *ns = chain.self_ns;
            }
            add(&mut total, &costs);
            sums.stack(&lines, chain.calls, &costs, Counted::Calls);
            io::Result::Ok(())
        })?;
        let session = &tables.session;
        let out = &mut self.output;
        writeln!(out, "# callgrind format\nversion: 1")?;
        writeln!(out, "creator: profiler {}", name::text(&session.version))?;
        writeln!(out, "cmd: {}", name::text(&session.target))?;
        writeln!(out, "part: 1")?;
        for note in self.summed.notes(tables, unnamed) {
            writeln!(out, "desc: {}", name::text(&note))?;
        }
        writeln!(out, "positions: line\nevents: {}", events.join(" "))?;
        self.write(sums, &places, &total, tables)?;
        self.output.flush()
    }
}
