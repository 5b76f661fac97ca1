//! Processes and threads as text.
//!
//! Input: rows of [`Report`](super::data::Report); output: tables, in which those of one name are one
//! row unless each was asked for.

use std::collections::HashMap;
use std::io;

use super::data::{NameRow, OwnerRow};
use super::text::{SIDE_LIMIT, Writer};
use crate::view::quantity::count;
use crate::view::table::{Align, Cell, Table};
use profiler_model::sorting::InOrder;

impl Writer<'_> {
    /// Processes of one name in one row: 300 short compilers are one thing to a reader.
    pub(super) fn processes_by_name(&mut self) -> io::Result<()> {
        let shown = self.shows_containers();
        let groups = grouped(&self.report.processes, |row| {
            (row.process.clone(), row.container.clone().filter(|_| shown))
        });
        let label = |group: &Group<'_>| {
            let row = group.first;
            let place = place(row, shown);
            match (group.members, row.namespace_pid) {
                (1, Some(inside)) if !place.is_empty() => {
                    format!("{}  (pid {}, {inside}{place})", row.process, row.pid)
                }
                (1, _) => format!("{}  (pid {}{place})", row.process, row.pid),
                (n, _) => format!("{}  ({} processes{place})", row.process, count(n)),
            }
        };
        self.owners("Processes", &groups, SIDE_LIMIT, "process", label)
    }

    pub(super) fn threads_by_name(&mut self) -> io::Result<()> {
        let rows = by_name(&self.report.threads);
        // One thread per process says nothing new.
        if rows.len() == self.report.processes.len() {
            return Ok(());
        }
        let shown = self.shows_containers();
        let groups = grouped(&rows, |row| {
            let container = row.container.clone().filter(|_| shown);
            (row.process.clone(), row.thread.clone(), container)
        });
        let label = |group: &Group<'_>| {
            let row = group.first;
            let place = place(row, shown);
            let thread = row.thread.as_deref().unwrap_or_default();
            match group.members {
                1 => format!(
                    "{thread}  (tid {} of {}{place})",
                    row.tid.unwrap_or(0),
                    row.process
                ),
                n => format!("{thread}  ({} threads of {}{place})", count(n), row.process),
            }
        };
        self.owners("Threads", &groups, SIDE_LIMIT, "thread", label)
    }

    pub(super) fn processes(&mut self) -> io::Result<()> {
        // An id that was given out again is another program's, as a rule.
        let groups = grouped(&self.report.processes, |row| (row.pid, row.process.clone()));
        // Those in namespaces have a pid of their own there.
        let inside = (self.report.processes.iter()).any(|row| row.namespace_pid.is_some());
        let column = match inside {
            true => "    pid  inside  process",
            false => "    pid  process",
        };
        let label = |group: &Group<'_>| {
            let row = group.first;
            let pid = match (inside, row.namespace_pid) {
                (false, _) => String::new(),
                (true, None) => format!("{:6}  ", ""),
                (true, Some(pid)) => format!("{pid:>6}  "),
            };
            let place = match &row.container {
                Some(container) => format!("  (in {container})"),
                None => String::new(),
            };
            format!("{:>7}  {pid}{}{place}", row.pid, row.process)
        };
        self.owners("Processes", &groups, self.limit(), column, label)
    }

    pub(super) fn threads(&mut self) -> io::Result<()> {
        let groups = grouped(&self.report.threads, |row| {
            (row.pid, row.tid, row.process.clone())
        });
        let label = |group: &Group<'_>| {
            let row = group.first;
            let (tid, thread) = (row.tid.unwrap_or(0), row.thread.as_deref().unwrap_or(""));
            let place = place(row, true);
            format!(
                "{:>7}  {tid:>7}  {thread}  ({}{place})",
                row.pid, row.process
            )
        };
        self.owners(
            "Threads",
            &groups,
            self.limit(),
            "    pid      tid  thread",
            label,
        )
    }

    fn owners(
        &mut self,
        title: &str,
        groups: &[Group<'_>],
        limit: usize,
        column: &'static str,
        label: impl Fn(&Group<'_>) -> String,
    ) -> io::Result<()> {
        let shown = groups.len().min(limit);
        self.title(title, shown, groups.len())?;
        let [share, weight, samples] = self.owner_columns();
        let mut table = Table::new(&[share, weight, samples, (column, Align::Left)]);
        for group in &groups[..shown] {
            let [share, weight, samples] = self.owner_cells(
                group.percent,
                group.weight,
                group.wait_weight,
                group.samples,
            );
            table.row([share, weight, samples, Cell::new(label(group))]);
        }
        self.print(&table)
    }
}

/// Rows of threads, each name for itself.
fn by_name(rows: &[OwnerRow]) -> Vec<OwnerRow> {
    let parts = |row: &OwnerRow| {
        let part = |name: &NameRow| OwnerRow {
            process: name.process.clone(),
            thread: name.thread.clone(),
            samples: name.samples,
            weight: name.weight,
            wait_weight: name.wait_weight,
            percent: name.percent,
            names: Vec::new(),
            ..row.clone()
        };
        match row.names.is_empty() {
            true => vec![row.clone()],
            false => row.names.iter().map(part).collect(),
        }
    };
    rows.iter().flat_map(parts).collect()
}

/// ` in CONTAINER`, if that is to be shown.
fn place(row: &OwnerRow, shown: bool) -> String {
    match &row.container {
        Some(container) if shown => format!(" in {container}"),
        _ => String::new(),
    }
}

/// Rows of processes or threads taken together.
struct Group<'a> {
    first: &'a OwnerRow,
    members: u64,
    samples: u64,
    weight: u64,
    wait_weight: u64,
    percent: f64,
}

fn grouped<K: std::hash::Hash + Eq>(
    rows: &[OwnerRow],
    key: impl Fn(&OwnerRow) -> K,
) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut known: HashMap<K, usize> = HashMap::new();
    for row in rows {
        let index = *known.entry(key(row)).or_insert(groups.len());
        if index == groups.len() {
            groups.push(Group {
                first: row,
                members: 0,
                samples: 0,
                weight: 0,
                wait_weight: 0,
                percent: 0.0,
            });
        }
        let group = &mut groups[index];
        group.members += 1;
        group.samples += row.samples;
        group.weight = group.weight.saturating_add(row.weight);
        group.wait_weight = group.wait_weight.saturating_add(row.wait_weight);
        group.percent += row.percent;
    }
    groups.order_by_key(|group| std::cmp::Reverse(group.weight));
    groups
}
