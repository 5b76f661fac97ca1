//! `profiler list containers`: what runs in cgroups.
//!
//! Input: containers, pods and units with what is known of them; output: a table or one JSON object.
//! Names are a target's own: nothing in them reaches a terminal as a command.
//!
//! What does not belong here: finding them (`target`).

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{ListOptions, write_json};
use crate::view::quantity;
use crate::view::table::{Align, Cell, Table};
use crate::view::term::Style;

/// As much of an id as is shown.
const ID_DIGITS: usize = 12;

/// A container, pod or unit that can be a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedContainer {
    /// Its name, or a unit's; none if nobody tells it.
    pub name: Option<String>,
    /// Its id, whole.
    pub id: Option<String>,
    /// What runs it.
    pub engine: &'static str,
    /// Its image.
    pub image: Option<String>,
    /// The Kubernetes pod that it is, or is in.
    pub pod: Option<String>,
    /// That pod's namespace.
    pub namespace: Option<String>,
    /// Whether it is a unit of systemd and no container.
    pub is_unit: bool,
    /// How many processes it has.
    pub processes: usize,
    /// Path of its cgroup.
    pub cgroup: String,
}

/// Writes containers.
pub fn write_containers(
    containers: &[ListedContainer],
    options: ListOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    if options.json {
        let list: Vec<Value> = containers.iter().map(container_json).collect();
        return write_json(json!({"containers": list, "count": containers.len()}), out);
    }
    if !containers.is_empty() {
        let mut table = Table::new(&[
            ("name", Align::Left),
            ("id", Align::Left),
            ("engine", Align::Left),
            ("image", Align::Minor),
            ("pod", Align::Left),
            ("processes", Align::Right),
            ("cgroup", Align::Minor),
        ]);
        for container in containers {
            let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let id = container
                .id
                .as_deref()
                .map(|id| id.chars().take(ID_DIGITS).collect());
            let pod = match (&container.namespace, &container.pod) {
                (Some(namespace), Some(pod)) => Some(format!("{namespace}/{pod}")),
                (_, pod) => pod.clone(),
            };
            table.row([
                Cell::new(or_dash(&container.name)),
                Cell::new(or_dash(&id)),
                Cell::new(container.engine),
                Cell::styled(or_dash(&container.image), Style::Dim),
                Cell::new(or_dash(&pod)),
                Cell::new(container.processes.to_string()),
                Cell::styled(&*container.cgroup, Style::Dim),
            ]);
        }
        table.write(out, options.width, options.paint)?;
        writeln!(out)?;
    }
    let units = containers
        .iter()
        .filter(|container| container.is_unit)
        .count() as u64;
    let count = quantity::plural(containers.len() as u64 - units, "container");
    match units {
        0 => writeln!(out, "{count}"),
        units => writeln!(out, "{count}, {}", quantity::plural(units, "unit")),
    }
}

fn container_json(container: &ListedContainer) -> Value {
    let unit = container.name.as_ref().filter(|_| container.is_unit);
    json!({
        "name": container.name.as_ref().filter(|_| !container.is_unit),
        "id": container.id,
        "engine": container.engine,
        "image": container.image,
        "pod": container.pod,
        "namespace": container.namespace,
        "unit": unit,
        "processes": container.processes,
        "cgroup": container.cgroup,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::term::Paint;

    fn text(json: bool) -> String {
        let containers = [
            ListedContainer {
                name: Some("web\u{1b}[2J".to_owned()),
                id: Some("ab".repeat(32)),
                engine: "docker",
                image: Some("nginx:1".to_owned()),
                processes: 3,
                cgroup: "/docker/ab".to_owned(),
                ..ListedContainer::default()
            },
            ListedContainer {
                engine: "oci",
                pod: Some("web-0".to_owned()),
                namespace: Some("prod".to_owned()),
                cgroup: "/kubepods/pod1".to_owned(),
                ..ListedContainer::default()
            },
            ListedContainer {
                name: Some("a.service".to_owned()),
                engine: "systemd",
                is_unit: true,
                cgroup: "/a.service".to_owned(),
                ..ListedContainer::default()
            },
        ];
        let options = ListOptions {
            json,
            width: None,
            paint: Paint::never(),
        };
        let mut out = Vec::new();
        write_containers(&containers, options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_of_containers() {
        let table = text(false);
        let lines: Vec<&str> = table.lines().collect();
        assert!(!table.contains('\u{1b}'));
        let words = |line: &str| {
            line.split_whitespace()
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let first = ["abababababab", "docker", "nginx:1", "-", "3", "/docker/ab"];
        assert_eq!(words(lines[1]), first);
        assert_eq!(
            words(lines[2]),
            ["-", "oci", "-", "prod/web-0", "0", "/kubepods/pod1"]
        );
        assert_eq!(lines.last(), Some(&"2 containers, 1 unit"));
    }

    #[test]
    fn json_has_whole_ids() {
        let value: Value = serde_json::from_str(&text(true)).unwrap();
        assert_eq!(value["count"], 3);
        let containers = &value["containers"];
        assert_eq!(containers[0]["id"], "ab".repeat(32));
        assert_eq!(containers[1]["namespace"], "prod");
        assert_eq!(containers[2]["unit"], "a.service");
        assert_eq!(containers[2]["name"], Value::Null);
    }
}
