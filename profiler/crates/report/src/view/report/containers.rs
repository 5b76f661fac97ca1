//! Samples by what their processes ran in.
//!
//! Input: the selected samples; output: one [`ContainerRow`] per container, and one for all that ran in
//! none, the heaviest first. Without any container there are no rows.

use std::collections::BTreeMap;

use super::build::{Base, OwnerSums};
use super::data::ContainerRow;
use profiler_model::sorting::InOrder;
use profiler_model::*;

#[derive(Default)]
struct Sums {
    processes: Vec<ProcessId>,
    sums: OwnerSums,
}

pub(super) fn rows(base: &Base<'_>) -> Vec<ContainerRow> {
    let mut sums: BTreeMap<Option<ContainerId>, Sums> = BTreeMap::new();
    for selected in &base.selected {
        let process = selected.process.and_then(|id| base.tables.process(id));
        let sum = sums.entry(process.and_then(|p| p.container)).or_default();
        sum.processes.extend(selected.process);
        sum.sums.add(selected);
    }
    if !sums.keys().any(Option::is_some) {
        return Vec::new();
    }
    let mut rows: Vec<ContainerRow> = sums
        .into_iter()
        .map(|(id, sum)| row(base, id, sum))
        .collect();
    rows.order_by(|a, b| {
        (b.weight, &a.container, &a.cgroup, &a.id).cmp(&(a.weight, &b.container, &b.cgroup, &b.id))
    });
    rows
}

fn row(base: &Base<'_>, id: Option<ContainerId>, mut sum: Sums) -> ContainerRow {
    sum.processes.sort_unstable();
    sum.processes.dedup();
    let container = id.and_then(|id| base.tables.container(id));
    let text = |pick: fn(&Container) -> Option<StringId>| {
        let id = container.and_then(pick)?;
        Some(base.tables.string(id).to_owned())
    };
    let sums = sum.sums;
    ContainerRow {
        container: container.map(|container| base.tables.container_label(container)),
        cgroup: text(|container| Some(container.cgroup)),
        engine: text(|container| container.engine),
        id: text(|container| container.id),
        name: text(|container| container.name),
        image: text(|container| container.image),
        pod: text(|container| container.pod),
        namespace: text(|container| container.namespace),
        unit: text(|container| container.unit),
        processes: sum.processes.len() as u64,
        samples: sums.samples,
        weight: sums.weight,
        wait_weight: sums.wait_weight,
        percent: base.percent(sums.weight),
    }
}
