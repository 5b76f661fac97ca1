//! Processes and threads as text.
//!
//! Input: rows of [`Report`](super::data::Report); output: tables, in which those of one name are one
//! row unless each was asked for.

use std::collections::HashMap;
use std::io;

use super::data::OwnerRow;
use super::text::{SIDE_LIMIT, Writer};
use crate::view::quantity::{count, percent};
use crate::view::table::{Align, Cell, Table};
use crate::view::term::Style;

impl Writer<'_> {
    /// Processes of one name in one row: 300 short compilers are one thing to a reader.
    pub(super) fn processes_by_name(&mut self) -> io::Result<()> {
        let groups = grouped(&self.report.processes, |row| row.process.clone());
        let label = |group: &Group<'_>| match group.members {
            1 => format!("{}  (pid {})", group.first.process, group.first.pid),
            n => format!("{}  ({} processes)", group.first.process, count(n)),
        };
        self.owners("Processes", &groups, SIDE_LIMIT, "process", label)
    }

    pub(super) fn threads_by_name(&mut self) -> io::Result<()> {
        // One thread per process says nothing new.
        if self.report.threads.len() == self.report.processes.len() {
            return Ok(());
        }
        let groups = grouped(&self.report.threads, |row| {
            (row.process.clone(), row.thread.clone())
        });
        let label = |group: &Group<'_>| {
            let row = group.first;
            let thread = row.thread.as_deref().unwrap_or_default();
            match group.members {
                1 => format!(
                    "{thread}  (tid {} of {})",
                    row.tid.unwrap_or(0),
                    row.process
                ),
                n => format!("{thread}  ({} threads of {})", count(n), row.process),
            }
        };
        self.owners("Threads", &groups, SIDE_LIMIT, "thread", label)
    }

    pub(super) fn processes(&mut self) -> io::Result<()> {
        let groups = grouped(&self.report.processes, |row| row.pid);
        let label = |group: &Group<'_>| format!("{:>7}  {}", group.first.pid, group.first.process);
        self.owners(
            "Processes",
            &groups,
            self.limit(),
            "    pid  process",
            label,
        )
    }

    pub(super) fn threads(&mut self) -> io::Result<()> {
        let groups = grouped(&self.report.threads, |row| (row.pid, row.tid));
        let label = |group: &Group<'_>| {
            let row = group.first;
            let (tid, thread) = (row.tid.unwrap_or(0), row.thread.as_deref().unwrap_or(""));
            format!("{:>7}  {tid:>7}  {thread}  ({})", row.pid, row.process)
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
        let mut table = Table::new(&[
            ("share", Align::Right),
            (self.weight_title(), Align::Right),
            ("samples", Align::Right),
            (column, Align::Left),
        ]);
        for group in &groups[..shown] {
            let share = Style::of_share(group.percent);
            table.row([
                Cell::styled(percent(group.percent), share),
                Cell::new(self.weight(group.weight)),
                Cell::new(count(group.samples)),
                Cell::new(label(group)),
            ]);
        }
        self.print(&table)
    }
}

/// Rows of processes or threads taken together.
struct Group<'a> {
    first: &'a OwnerRow,
    members: u64,
    samples: u64,
    weight: u64,
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
                percent: 0.0,
            });
        }
        let group = &mut groups[index];
        group.members += 1;
        group.samples += row.samples;
        group.weight = group.weight.saturating_add(row.weight);
        group.percent += row.percent;
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.weight));
    groups
}
