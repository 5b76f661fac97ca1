//! The call tree of a report: from the outermost frame on, small branches summed up.
//!
//! Input: the merged stacks; output: rows in depth-first order. Layout does not belong here.

use super::build::Base;
use super::data::{CodeModule, TreeRow};
use crate::derive::{Node, Place, Sums};

/// Rows of all nodes whose share reaches `min_percent`.
pub(super) fn rows(base: &Base<'_>, min_percent: f64) -> Vec<TreeRow> {
    let nodes = base.tree.nodes();
    let mut rows = Vec::new();
    // Node, its parent's row, depth.
    let mut pending = vec![(0, None, 0)];
    while let Some((index, parent, depth)) = pending.pop() {
        let node = &nodes[index];
        let id = rows.len();
        let mut row = row(base, node, parent, depth, id);
        // Children come heaviest first.
        let shown = (node.children)
            .partition_point(|&child| base.percent(nodes[child].weight) >= min_percent);
        let (shown, omitted) = node.children.split_at(shown);
        row.omitted = omitted.len() as u64;
        row.omitted_weight = omitted.iter().fold(0, |sum: u64, &child| {
            sum.saturating_add(nodes[child].weight)
        });
        row.omitted_percent = base.percent(row.omitted_weight);
        rows.push(row);
        let children = shown.iter().rev();
        pending.extend(children.map(|&child| (child, Some(id), depth + 1)));
    }
    rows
}

fn row(base: &Base<'_>, node: &Node, parent: Option<usize>, depth: usize, id: usize) -> TreeRow {
    let info = base.tree.place(node.place);
    let sums = Sums {
        self_count: node.self_count,
        self_weight: node.self_weight,
        count: node.count,
        weight: node.weight,
        own_wait: node.own_wait,
        wait: node.wait,
    };
    TreeRow {
        id,
        parent,
        depth,
        kind: match info.place {
            Place::All => "all",
            Place::Process(_) => "process",
            Place::Function { .. } => "function",
            Place::Address(_) => "address",
            Place::NoStack => "no_stack",
            Place::Wait(_) => "wait",
        },
        name: base.place_name(info),
        module: match info.is_code() {
            true => base.code_module(info.module(base.tables)),
            false => CodeModule::default(),
        },
        inlined: info.inlined,
        share: base.share(&sums),
        omitted: 0,
        omitted_weight: 0,
        omitted_percent: 0.0,
    }
}
