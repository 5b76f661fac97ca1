//! From aggregated samples to the report's data.
//!
//! Input: a folded recording and options; output: [`Report`]. All sums over functions, modules and
//! edges come from one call tree, so they agree with each other.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::data::*;
use super::options::{By, ReportOptions, Sort};
use super::select::{self, Selected, SourceSums};
use super::{Recording, ReportError, calls, containers, ends, header, tree, waits};
use crate::derive::*;
use crate::view::quantity;
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// What stands where there is no frame.
pub(super) const NO_STACK: &str = "[no stack]";

/// Callers and callees are shown for this many matching functions.
const MAX_FOCUS: usize = 5;
/// Names of a process or thread that are told apart: there are programs that say by it what they work at.
const MAX_NAMES: usize = 16;

/// What the parts of a report are made of.
pub(super) struct Base<'a> {
    pub(super) tables: &'a Tables,
    pub(super) sources: Sources,
    pub(super) source_sums: SourceSums,
    pub(super) selected: Vec<Selected<'a>>,
    /// Threads among whose waits the kernel's counts are looked at.
    pub(super) counted_threads: Vec<ThreadId>,
    pub(super) functions: Functions,
    pub(super) tree: CallTree,
}

impl<'a> Base<'a> {
    pub(super) fn new(
        recording: &Recording<'a>,
        options: &ReportOptions,
    ) -> Result<Base<'a>, ReportError> {
        let chosen = options.filter.target.find(recording.tables)?;
        Base::of(recording, options, chosen)
    }

    /// With what the target of the filter means.
    pub(super) fn of(
        recording: &Recording<'a>,
        options: &ReportOptions,
        chosen: Chosen,
    ) -> Result<Base<'a>, ReportError> {
        let tables = recording.tables;
        let source_sums = select::source_sums(recording.collected);
        let sources = select::choose_sources(tables, &source_sums, options.source.as_deref())?;
        let filter = &options.filter;
        let functions = Functions::of(tables);
        let (selected, counted_threads) = select::select(
            tables,
            &functions,
            recording.collected,
            sources,
            filter,
            chosen,
        );
        let tree = build_tree(tables, &functions, Granularity::Function, &selected);
        Ok(Base {
            tables,
            sources,
            source_sums,
            selected,
            counted_threads,
            functions,
            tree,
        })
    }

    /// Weight of all selected samples.
    pub(super) fn weight(&self) -> u64 {
        self.tree.root().weight
    }

    pub(super) fn percent(&self, weight: u64) -> f64 {
        share_of(weight, self.weight())
    }

    pub(super) fn share(&self, sums: &Sums) -> Share {
        Share {
            self_samples: sums.self_count,
            self_weight: sums.self_weight,
            self_percent: self.percent(sums.self_weight),
            total_samples: sums.count,
            total_weight: sums.weight,
            total_percent: self.percent(sums.weight),
            self_wait_weight: 0,
            total_wait_weight: sums.wait,
        }
    }

    /// What samples at a place come to, with the waits that began there as its own.
    pub(super) fn share_with_waits(&self, sums: &Sums) -> Share {
        let weight = sums.self_weight.saturating_add(sums.own_wait);
        Share {
            self_weight: weight,
            self_percent: self.percent(weight),
            self_wait_weight: sums.own_wait,
            ..self.share(sums)
        }
    }

    /// Whether a place is a function with a name of its own.
    pub(super) fn is_named(&self, place: &PlaceInfo) -> bool {
        matches!(place.place, Place::Function { function, .. } if self.tables.is_named(function))
    }

    pub(super) fn place_name(&self, place: &PlaceInfo) -> String {
        match place.place {
            Place::All => "all".to_owned(),
            Place::Process(name) => self.tables.string(name).to_owned(),
            Place::Function { function, .. } => {
                self.functions.name(self.tables, function).into_owned()
            }
            Place::Address(frame) => self.tables.frame_location(frame),
            Place::NoStack => NO_STACK.to_owned(),
            Place::Wait(state) => wait_frame(state).to_owned(),
        }
    }

    pub(super) fn code_module(&self, module: Option<ModuleId>) -> CodeModule {
        match module.and_then(|id| self.tables.modules.get(id)) {
            Some(module) => CodeModule {
                module: self.tables.string(module.path).to_owned(),
                build_id: module.build_id.as_ref().map(ToString::to_string),
            },
            None => CodeModule::default(),
        }
    }

    pub(super) fn unit(&self) -> Unit {
        self.sources.unit(self.tables).unwrap_or(Unit::Events)
    }
}

/// A share in percent, to a ten-thousandth: no noise of binary fractions in JSON.
pub(super) fn share_of(part: u64, whole: u64) -> f64 {
    (quantity::percent_of(part, whole) * 1e4).round() / 1e4
}

pub(super) fn build(
    recording: &Recording<'_>,
    options: &ReportOptions,
) -> Result<Report, ReportError> {
    let base = Base::new(recording, options)?;
    let functions = function_rows(&base, &base.tree, options.sort);
    let lines = (options.by == Some(By::Line)).then(|| {
        let tree = build_tree(
            base.tables,
            &base.functions,
            Granularity::Line,
            &base.selected,
        );
        function_rows(&base, &tree, options.sort)
    });
    let callers_of = match &options.callers_of {
        Some(text) => Some(focus(&base, text)?),
        None => None,
    };
    Ok(Report {
        schema: SCHEMA,
        header: header::build(recording, &base),
        functions,
        lines,
        tree: tree::rows(&base, options.min_percent),
        containers: containers::rows(&base),
        processes: processes(&base),
        threads: threads(&base),
        modules: modules(&base, options.sort),
        unsymbolized: unsymbolized(&base),
        waits: waits::build(recording, &base),
        ends: (options.by == Some(By::End)).then(|| ends::build(recording, &base)),
        calls: calls::build(recording, options)?,
        callers_of,
    })
}

/// The call tree; split by process name where there is more than one.
fn build_tree(
    tables: &Tables,
    functions: &Functions,
    granularity: Granularity,
    selected: &[Selected<'_>],
) -> CallTree {
    let name = |s: &Selected<'_>| Some(tables.process(s.process?)?.name);
    let first = selected.first().and_then(name);
    let split = selected.iter().any(|s| name(s) != first);
    let paths = selected.iter().map(|s| Path {
        process: if split { name(s) } else { None },
        kernel: s.key.kernel,
        user: s.key.user,
        count: s.aggregate.count,
        weight: s.aggregate.weight,
        wait: s.key.wait,
    });
    CallTree::build(tables, functions, granularity, paths)
}

/// Sums of all code places, by place.
pub(super) fn place_sums(tree: &CallTree) -> Vec<Sums> {
    tree.sums(tree.place_count(), |place| {
        tree.place(place).is_code().then_some(place.index())
    })
}

pub(super) fn function_rows(base: &Base<'_>, tree: &CallTree, sort: Sort) -> Vec<FunctionRow> {
    let sums = place_sums(tree);
    let code = tree.places().filter(|(_, info)| info.is_code());
    let mut rows: Vec<FunctionRow> = code
        .map(|(id, info)| FunctionRow {
            share: base.share_with_waits(&sums[id.index()]),
            ..function_row(base, info, &sums[id.index()])
        })
        .collect();
    rows.order_by(|a, b| {
        by_share(sort, &a.share, &b.share)
            .then_with(|| (&a.name, &a.module, a.line).cmp(&(&b.name, &b.module, b.line)))
    });
    rows
}

fn function_row(base: &Base<'_>, info: &PlaceInfo, sums: &Sums) -> FunctionRow {
    let (function, line) = match info.place {
        Place::Function { function, line, .. } => (base.tables.functions.get(function), line),
        _ => (None, None),
    };
    let file = match line {
        Some((file, _)) => file,
        None => function.and_then(|function| function.file),
    };
    // The line is one of the function's own file.
    let declared = function.filter(|function| function.file == file);
    let declared = declared.map(|function| function.line);
    let module = info.module(base.tables);
    let bias = module.and_then(|id| base.tables.modules.get(id));
    let bias = bias.map_or(0, |module| module.address_bias);
    FunctionRow {
        name: base.place_name(info),
        short: function.map(|function| base.tables.string(function.name).to_owned()),
        module: base.code_module(module),
        kind: info.kind,
        named: base.is_named(info),
        inlined: info.inlined,
        file: file.map(|file| base.tables.string(file).to_owned()),
        start: function.and_then(|function| Some(function.start?.wrapping_add(bias))),
        declared_line: declared.filter(|line| *line != 0),
        line: line.map(|(_, line)| line),
        share: base.share(sums),
    }
}

fn by_share(sort: Sort, a: &Share, b: &Share) -> std::cmp::Ordering {
    let key = |share: &Share| match sort {
        Sort::SelfWeight => (share.self_weight, share.total_weight),
        Sort::Total => (share.total_weight, share.self_weight),
    };
    key(b).cmp(&key(a))
}

/// Numbers equal module identities, so that sums can be kept in a list.
fn module_groups(base: &Base<'_>) -> (Vec<CodeModule>, Vec<Option<usize>>) {
    let mut modules = Vec::new();
    let mut known = FxHashMap::default();
    let group = |info: &PlaceInfo| {
        if !info.is_code() || info.place == Place::NoStack {
            return None;
        }
        let module = info.module(base.tables);
        Some(*known.entry(module).or_insert_with(|| {
            modules.push(base.code_module(module));
            modules.len() - 1
        }))
    };
    let groups = base
        .tree
        .places()
        .map(|(_, info)| info)
        .map(group)
        .collect();
    (modules, groups)
}

fn modules(base: &Base<'_>, sort: Sort) -> Vec<ModuleRow> {
    let (modules, groups) = module_groups(base);
    let sums = base.tree.sums(modules.len(), |place| groups[place.index()]);
    let mut rows: Vec<ModuleRow> = modules
        .into_iter()
        .zip(&sums)
        .map(|(module, sums)| ModuleRow {
            module,
            share: base.share_with_waits(sums),
        })
        .collect();
    rows.order_by(|a, b| by_share(sort, &a.share, &b.share).then_with(|| a.module.cmp(&b.module)));
    rows
}

/// Modules whose code has addresses without a name, the most frequent first.
fn unsymbolized(base: &Base<'_>) -> Vec<UnsymbolizedRow> {
    let (modules, mut groups) = module_groups(base);
    let mut reasons: Vec<BTreeMap<Option<UnknownReason>, u64>> =
        vec![BTreeMap::new(); modules.len()];
    for (place, info) in base.tree.places() {
        let group = &mut groups[place.index()];
        match (info.place, *group) {
            (Place::Address(frame), Some(group)) => {
                let reason = unknown_reason(base.tables.symbol(frame));
                *reasons[group].entry(reason).or_default() += 1;
            }
            (Place::Function { .. }, Some(group)) if !base.is_named(info) => {
                let reason = Some(UnknownReason::NoSymbol);
                *reasons[group].entry(reason).or_default() += 1;
            }
            _ => *group = None,
        }
    }
    let sums = base.tree.sums(modules.len(), |place| groups[place.index()]);
    let mut rows: Vec<UnsymbolizedRow> = modules
        .into_iter()
        .zip(&sums)
        .zip(reasons)
        .filter_map(|((module, sums), reasons)| {
            let addresses = reasons.values().sum();
            let (reason, _) = reasons.into_iter().max_by_key(|(_, count)| *count)?;
            Some(UnsymbolizedRow {
                module,
                reason,
                addresses,
                samples: sums.count,
                percent: base.percent(sums.weight),
            })
        })
        .collect();
    rows.order_by(|a, b| (b.samples, &a.module).cmp(&(a.samples, &b.module)));
    rows
}

/// Why it has no name; none: nobody looked.
fn unknown_reason(symbol: Option<&Symbol>) -> Option<UnknownReason> {
    match symbol {
        Some(Symbol::Unknown(reason)) => Some(*reason),
        Some(Symbol::Lines(_)) | None => None,
    }
}

/// A row for each process, and for each name if it had several: each is a program that it ran.
fn processes(base: &Base<'_>) -> Vec<OwnerRow> {
    let mut sums: BTreeMap<(ProcessId, NamesThen), OwnerSums> = BTreeMap::new();
    for selected in &base.selected {
        if let Some(id) = selected.process {
            let then = NamesThen {
                thread: None,
                ..selected.key.names
            };
            sums.entry((id, then)).or_default().add(selected);
        }
    }
    let rows = owner_rows(base, sums, |id| {
        let process = base.tables.process(id)?;
        Some((process, None))
    });
    let rows = rows.into_iter().flatten();
    sorted(rows.filter(|row| row.samples > 0).collect())
}

/// A row for each thread.
fn threads(base: &Base<'_>) -> Vec<OwnerRow> {
    let mut sums: BTreeMap<(ThreadId, NamesThen), OwnerSums> = BTreeMap::new();
    for selected in &base.selected {
        if let Some(id) = selected.thread() {
            let key = (id, selected.key.names);
            sums.entry(key).or_default().add(selected);
        }
    }
    let rows = owner_rows(base, sums, |id| {
        let thread = base.tables.thread(id)?;
        Some((base.tables.process(thread.process)?, Some(thread)))
    });
    let whole = rows.into_iter().filter_map(|rows| joined(base, rows));
    sorted(whole.collect())
}

/// The row of a thread, from those of its names, of which the last is the first.
fn joined(base: &Base<'_>, mut rows: Vec<OwnerRow>) -> Option<OwnerRow> {
    let mut whole = rows.first()?.clone();
    rows.retain(|row| row.samples > 0);
    if rows.len() < 2 {
        return rows.pop();
    }
    rows.order_by(|a, b| (b.weight, &a.thread).cmp(&(a.weight, &b.thread)));
    let sum = |of: fn(&OwnerRow) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    whole.samples = sum(|row| row.samples);
    whole.weight = sum(|row| row.weight);
    whole.wait_weight = sum(|row| row.wait_weight);
    whole.percent = base.percent(whole.weight);
    let names = rows.into_iter().map(|row| NameRow {
        process: row.process,
        thread: row.thread,
        samples: row.samples,
        weight: row.weight,
        wait_weight: row.wait_weight,
        percent: row.percent,
    });
    whole.names = names.collect();
    Some(whole)
}

fn sorted(mut rows: Vec<OwnerRow>) -> Vec<OwnerRow> {
    rows.order_by(|a, b| (b.weight, a.pid, a.tid).cmp(&(a.weight, b.pid, b.tid)));
    rows
}

/// What samples of one owner sum up to.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnerSums {
    pub(super) samples: u64,
    pub(super) weight: u64,
    /// Of that, waits.
    pub(super) wait_weight: u64,
}

impl OwnerSums {
    fn join(&mut self, other: &OwnerSums) {
        self.samples += other.samples;
        self.weight = self.weight.saturating_add(other.weight);
        self.wait_weight = self.wait_weight.saturating_add(other.wait_weight);
    }

    pub(super) fn add(&mut self, selected: &Selected<'_>) {
        let weight = selected.aggregate.weight;
        self.samples += selected.aggregate.count;
        self.weight = self.weight.saturating_add(weight);
        if selected.key.wait.is_some() {
            self.wait_weight = self.wait_weight.saturating_add(weight);
        }
    }
}

/// For each owner a row for each of its names, the last name's first. Beyond [`MAX_NAMES`], those with the least weight
/// are with that one.
fn owner_rows<'a, I: Copy + Eq>(
    base: &Base<'a>,
    sums: BTreeMap<(I, NamesThen), OwnerSums>,
    find: impl Fn(I) -> Option<(&'a Process, Option<&'a Thread>)>,
) -> Vec<Vec<OwnerRow>> {
    let text = |id: StringId| base.tables.string(id).to_owned();
    let sums: Vec<_> = sums.into_iter().collect();
    let owners = sums.chunk_by(|((a, _), _), ((b, _), _)| a == b);
    let rows = owners.filter_map(|parts| {
        let ((id, _), _) = *parts.first()?;
        let (process, thread) = find(id)?;
        let row = |then: NamesThen, sums: OwnerSums| OwnerRow {
            pid: process.pid.0,
            namespace_pid: inner_pid(process).map(|pid| pid.0),
            process: text(then.process.unwrap_or(process.name)),
            container: container_label_of(base.tables, process),
            tid: thread.map(|thread| thread.tid.0),
            thread: thread.map(|thread| text(then.thread.unwrap_or(thread.name))),
            samples: sums.samples,
            weight: sums.weight,
            wait_weight: sums.wait_weight,
            percent: base.percent(sums.weight),
            names: Vec::new(),
        };
        let is_last = |then: &NamesThen| {
            then.process.is_none_or(|name| name == process.name)
                && thread.is_none_or(|thread| then.thread.is_none_or(|name| name == thread.name))
        };
        let (last, mut others): (Vec<_>, Vec<_>) = (parts.iter())
            .map(|&((_, then), sums)| (then, sums))
            .partition(|(then, _)| is_last(then));
        others.order_by_key(|(_, sums)| std::cmp::Reverse(sums.weight));
        let many = others.split_off(others.len().min(MAX_NAMES - 1));
        let mut with_last = OwnerSums::default();
        for (_, sums) in last.iter().chain(&many) {
            with_last.join(sums);
        }
        let first = row(NamesThen::default(), with_last);
        let others = others.into_iter().map(|(then, sums)| row(then, sums));
        Some(std::iter::once(first).chain(others).collect())
    });
    rows.collect()
}

/// The functions that a pattern means: those of exactly this name, else those that match.
pub(super) fn matching(base: &Base<'_>, pattern: &Pattern) -> Vec<(PlaceId, FunctionRow)> {
    let sums = place_sums(&base.tree);
    let mut rows = Vec::new();
    for (id, info) in base.tree.places().filter(|(_, info)| info.is_code()) {
        let row = function_row(base, info, &sums[id.index()]);
        if row.names().any(|name| pattern.matches(name)) {
            rows.push((id, row));
        }
    }
    let is_exact = |row: &FunctionRow| row.names().any(|name| pattern.is_exactly(name));
    if rows.iter().any(|(_, row)| is_exact(row)) {
        rows.retain(|(_, row)| is_exact(row));
    }
    rows
}

fn focus(base: &Base<'_>, text: &str) -> Result<Vec<Focus>, ReportError> {
    let mut rows = matching(base, &Pattern::new(text));
    if rows.is_empty() {
        return Err(ReportError::NoFunction(text.to_owned()));
    }
    rows.order_by(|(a_id, a), (b_id, b)| {
        by_share(Sort::Total, &a.share, &b.share).then_with(|| a_id.cmp(b_id))
    });
    let shown = rows.into_iter().take(MAX_FOCUS);
    Ok(shown
        .map(|(id, function)| focus_on(base, id, function))
        .collect())
}

fn focus_on(base: &Base<'_>, id: PlaceId, function: FunctionRow) -> Focus {
    let total = function.share.total_weight;
    let (callers, callees) = base.tree.edges(id);
    let row = |edge: &Edge| {
        let info = base.tree.place(edge.place);
        EdgeRow {
            name: match info.is_code() || matches!(info.place, Place::Wait(_)) {
                true => base.place_name(info),
                false => "[outermost]".to_owned(),
            },
            module: match info.is_code() {
                true => base.code_module(info.module(base.tables)),
                false => CodeModule::default(),
            },
            samples: edge.count,
            weight: edge.weight,
            percent: base.percent(edge.weight),
            percent_of_function: share_of(edge.weight, total),
        }
    };
    let mut caller_rows: Vec<EdgeRow> = Vec::new();
    for caller in callers.iter().map(row) {
        // Outermost in several processes is one row.
        match caller_rows
            .iter_mut()
            .find(|known| known.is_outermost() && caller.is_outermost())
        {
            Some(known) => {
                known.samples += caller.samples;
                known.weight = known.weight.saturating_add(caller.weight);
                known.percent = base.percent(known.weight);
                known.percent_of_function = share_of(known.weight, total);
            }
            None => caller_rows.push(caller),
        }
    }
    caller_rows.order_by_key(|row| std::cmp::Reverse(row.weight));
    Focus {
        function,
        callers: caller_rows,
        callees: callees.iter().map(row).collect(),
    }
}

impl EdgeRow {
    fn is_outermost(&self) -> bool {
        self.name == "[outermost]" && self.module == CodeModule::default()
    }
}
