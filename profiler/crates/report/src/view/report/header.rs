//! The head of a report: what was recorded, and everything that is known to be missing.
//!
//! Input: session, sources, losses and the call tree; output: [`Header`].

use std::collections::BTreeSet;

use super::Recording;
use super::build::Base;
use super::data::*;
use crate::derive::{Place, Visit};
use profiler_model::*;

pub(super) fn build(recording: &Recording<'_>, base: &Base<'_>) -> Header {
    let (tables, collected) = (recording.tables, recording.collected);
    let session = &tables.session;
    let (from_ns, to_ns) = collected.span_ns();
    let processes: BTreeSet<ProcessId> = base.selected.iter().filter_map(|s| s.process).collect();
    let losses = &collected.losses;
    Header {
        version: session.version.clone(),
        command: session.command.clone(),
        host: session.host.clone(),
        kernel: session.kernel.clone(),
        arch: session.arch.clone(),
        cpus: session.cpus,
        target: session.target.clone(),
        started_realtime_ns: collected.started_realtime_ns(),
        from_ns,
        to_ns,
        is_part: !collected.range().is_all(),
        complete: !tables.is_cut_off,
        recorded_samples: collected.all_samples,
        sources: sources(base),
        profile: base.sources.name(tables).map(str::to_owned),
        samples: base.tree.root().count,
        weight: base.weight(),
        wait_weight: base.tree.root().wait,
        unit: base.unit(),
        process_count: processes.len() as u64,
        lost: (losses.iter())
            .map(|(reason, count)| LostRow {
                reason,
                kind: reason.kind(),
                count,
            })
            .collect(),
        lost_samples: losses.samples(),
        stacks: stacks(base),
        unnamed: unnamed(base),
        kinds: kinds(base),
        marks: (collected.marks.iter())
            .map(|mark| MarkRow {
                at_ns: mark.at.since(collected.origin()),
                text: tables.string(mark.text).to_owned(),
            })
            .collect(),
        mark_count: collected.mark_count,
    }
}

fn sources(base: &Base<'_>) -> Vec<SourceRow> {
    let row = |(id, source): (SourceId, &Source)| {
        let (samples, weight) = base.source_sums.get(&id).copied().unwrap_or_default();
        SourceRow {
            name: base.tables.string(source.name).to_owned(),
            unit: source.unit,
            frequency_hz: source.frequency_hz,
            period: source.period,
            samples,
            weight,
            shown: base.sources.has(id, base.tables),
        }
    };
    base.tables.sources.iter().map(row).collect()
}

fn stacks(base: &Base<'_>) -> StackRow {
    let mut ends = StackEnds::default();
    let mut none = 0;
    for selected in &base.selected {
        let mut said = StackEnds::default();
        selected.aggregate.ends.add_to(&mut said);
        if selected.key.kernel.is_none() && selected.key.user.is_none() {
            // That only a leaf was recorded is not true of them. What else is said of them is not said twice.
            let others = said.iter().filter(|(end, _)| *end != StackEnd::LeafOnly);
            said = others.collect();
            none += selected.aggregate.count.saturating_sub(said.total());
        }
        ends.add_all(&said);
    }
    StackRow {
        truncated: ends.of(StackEnd::Truncated),
        left_out: ends.of(StackEnd::LeftOut),
        unreadable: ends.of(StackEnd::BadMemory) + ends.of(StackEnd::Unknown),
        frame_pointer: ends.of(StackEnd::FramePointer),
        no_rule: ends.of(StackEnd::NoRule),
        jit: ends.of(StackEnd::Jit),
        no_table: ends.of(StackEnd::NoTable),
        no_mapping: ends.of(StackEnd::NoMapping),
        leaf_only: ends.of(StackEnd::LeafOnly),
        not_said: ends.of(StackEnd::NotSaid),
        none,
    }
}

fn unnamed(base: &Base<'_>) -> UnnamedRow {
    let mut row = UnnamedRow::default();
    let mut on_path = 0u32;
    base.tree.walk(|step| {
        let (Visit::Enter(index) | Visit::Leave(index)) = step;
        let node = &base.tree.nodes()[index];
        let place = base.tree.place(node.place);
        let entered = matches!(step, Visit::Enter(_));
        if entered && place.is_code() && place.place != Place::NoStack {
            row.all_frames += node.count;
        }
        if !place.is_code() || place.place == Place::NoStack || base.is_named(place) {
            return;
        }
        if !entered {
            on_path -= 1;
            return;
        }
        row.frames += node.count;
        row.leaf_samples += node.self_count;
        if on_path == 0 {
            row.samples += node.count;
        }
        on_path += 1;
    });
    row
}

/// Samples by the kinds of code in their stacks.
fn kinds(base: &Base<'_>) -> Vec<KindRow> {
    // In the order of the rows.
    let rank = |kind| match kind {
        FrameKind::Native => 0,
        FrameKind::Kernel => 2,
        FrameKind::Jit => 3,
        FrameKind::Interpreted => 4,
    };
    let places: Vec<Option<usize>> = (base.tree.places())
        .map(|(_, info)| match info.place {
            Place::NoStack => None,
            _ if !info.is_code() => None,
            _ if info.inlined && info.kind == FrameKind::Native => Some(1),
            _ => Some(rank(info.kind)),
        })
        .collect();
    let sums = base.tree.sums(5, |place| places[place.index()]);
    let names = [
        FrameKind::Native.name(),
        "inlined",
        FrameKind::Kernel.name(),
        FrameKind::Jit.name(),
        FrameKind::Interpreted.name(),
    ];
    (names.into_iter().zip(&sums))
        .filter(|(_, sums)| sums.count > 0)
        .map(|(kind, sums)| KindRow {
            kind,
            samples: sums.count,
            weight: sums.weight,
            percent: base.percent(sums.weight),
            self_percent: base.percent(sums.self_weight.saturating_add(sums.own_wait)),
        })
        .collect()
}
