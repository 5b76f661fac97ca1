//! Containers, pods, units and images as text.
//!
//! Input: rows of [`Report`](super::data::Report); output: tables, in which containers of one name are
//! one row unless each was asked for.

use std::collections::HashMap;
use std::io;

use super::data::ContainerRow;
use super::text::{SIDE_LIMIT, Writer};
use crate::view::quantity::count;
use crate::view::table::{Align, Cell, Table};
use crate::view::term::Style;
use profiler_model::Container;
use profiler_model::sorting::InOrder;

/// What runs in no container.
const NO_CONTAINER: &str = "[no container]";

impl Writer<'_> {
    /// Whether containers say something: units alone don't if all samples are of the same one.
    pub(super) fn shows_containers(&self) -> bool {
        match &self.report.containers[..] {
            [] => false,
            [one] => !one.is_plain(),
            _ => true,
        }
    }

    /// Containers of one name in one row: those that were made anew are one thing to a reader.
    pub(super) fn containers_by_name(&mut self) -> io::Result<()> {
        if !self.shows_containers() {
            return Ok(());
        }
        let rows = &self.report.containers;
        let plain = rows.iter().filter(|row| row.is_plain()).count();
        let title = match rows.len() - plain {
            0 => "Units",
            _ if rows.iter().any(|row| row.is_plain() && row.unit.is_some()) => {
                "Containers and units"
            }
            _ => "Containers",
        };
        let groups = grouped(rows, |row| row.container.clone());
        let shown = groups.len().min(SIDE_LIMIT);
        self.title(title, shown, groups.len())?;
        let [share, weight, samples] = self.owner_columns();
        let mut table = Table::new(&[
            share,
            weight,
            samples,
            ("container", Align::Left),
            ("image or engine", Align::Minor),
        ]);
        for group in &groups[..shown] {
            let [share, weight, samples] = self.cells(group);
            let row = group.first;
            let name = row.container.as_deref().unwrap_or(NO_CONTAINER);
            let name = match group.members {
                1 => name.to_owned(),
                n => format!("{name}  ({} containers)", count(n)),
            };
            let what = match (&row.image, &row.engine) {
                (Some(image), _) => short_image(image),
                (None, engine) => engine.as_deref().unwrap_or_default(),
            };
            let what = Cell::styled(what, Style::Dim);
            table.row([share, weight, samples, Cell::new(name), what]);
        }
        self.print(&table)
    }

    /// Each container.
    pub(super) fn containers(&mut self) -> io::Result<()> {
        let rows = &self.report.containers;
        if rows.is_empty() {
            return self.no_containers();
        }
        let shown = rows.len().min(self.limit());
        self.title("Containers and units", shown, rows.len())?;
        let [share, weight, samples] = self.owner_columns();
        let mut table = Table::new(&[
            share,
            weight,
            samples,
            ("container", Align::Left),
            ("engine", Align::Left),
            ("id", Align::Left),
            ("image", Align::Minor),
        ]);
        for row in &rows[..shown] {
            let [share, weight, samples] =
                self.owner_cells(row.percent, row.weight, row.wait_weight, row.samples);
            let id = row.id.as_deref().map(Container::short_id);
            table.row([
                share,
                weight,
                samples,
                Cell::new(row.container.as_deref().unwrap_or(NO_CONTAINER)),
                Cell::new(row.engine.as_deref().unwrap_or_default()),
                Cell::new(id.unwrap_or_default()),
                Cell::styled(row.image.as_deref().map_or("", short_image), Style::Dim),
            ]);
        }
        self.print(&table)
    }

    pub(super) fn pods(&mut self) -> io::Result<()> {
        self.by("Pods", "pod", |row| {
            let pod = row.pod.as_deref()?;
            Some(match row.namespace.as_deref() {
                Some(namespace) => format!("{namespace}/{pod}"),
                None => pod.to_owned(),
            })
        })
    }

    pub(super) fn units(&mut self) -> io::Result<()> {
        self.by("Units", "unit", |row| row.unit.clone())
    }

    pub(super) fn images(&mut self) -> io::Result<()> {
        self.by("Images", "image", |row| row.image.clone())
    }

    fn by(
        &mut self,
        title: &str,
        column: &'static str,
        key: impl Fn(&ContainerRow) -> Option<String>,
    ) -> io::Result<()> {
        if self.report.containers.is_empty() {
            return self.no_containers();
        }
        let groups = grouped(&self.report.containers, &key);
        let shown = groups.len().min(self.limit());
        self.title(title, shown, groups.len())?;
        let [share, weight, samples] = self.owner_columns();
        let mut table = Table::new(&[
            share,
            weight,
            samples,
            ("processes", Align::Right),
            (column, Align::Left),
        ]);
        for group in &groups[..shown] {
            let [share, weight, samples] = self.cells(group);
            let name = key(group.first).unwrap_or_else(|| format!("[no {column}]"));
            let processes = Cell::new(count(group.processes));
            table.row([share, weight, samples, processes, Cell::new(name)]);
        }
        self.print(&table)
    }

    fn no_containers(&mut self) -> io::Result<()> {
        let text = "None of the samples is of a container or unit.";
        writeln!(self.out, "\n{text}")
    }

    fn cells(&self, group: &Group<'_>) -> [Cell; 3] {
        self.owner_cells(
            group.percent,
            group.weight,
            group.wait_weight,
            group.samples,
        )
    }
}

/// The last part of an image's name: where it was pulled from says less than its tag.
fn short_image(image: &str) -> &str {
    image.rsplit_once('/').map_or(image, |(_, name)| name)
}

/// Rows taken together.
struct Group<'a> {
    first: &'a ContainerRow,
    members: u64,
    processes: u64,
    samples: u64,
    weight: u64,
    wait_weight: u64,
    percent: f64,
}

fn grouped(rows: &[ContainerRow], key: impl Fn(&ContainerRow) -> Option<String>) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut known: HashMap<Option<String>, usize> = HashMap::new();
    for row in rows {
        let index = *known.entry(key(row)).or_insert(groups.len());
        if index == groups.len() {
            groups.push(Group {
                first: row,
                members: 0,
                processes: 0,
                samples: 0,
                weight: 0,
                wait_weight: 0,
                percent: 0.0,
            });
        }
        let group = &mut groups[index];
        group.members += 1;
        group.processes += row.processes;
        group.samples += row.samples;
        group.weight = group.weight.saturating_add(row.weight);
        group.wait_weight = group.wait_weight.saturating_add(row.wait_weight);
        group.percent += row.percent;
    }
    groups.order_by_key(|group| std::cmp::Reverse(group.weight));
    groups
}
