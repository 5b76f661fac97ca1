//! `list containers`: what can be attached to by name.
//!
//! The cgroups of this machine and what engines say -> a table.

use clap::Args;
use profiler_model::sorting::InOrder;
use regex::RegexBuilder;

use super::LookArgs;
use crate::cli::Common;
use crate::error::{FAILED, Failure};
use profiler_report::view::list::{ListedContainer, write_containers};
use profiler_report::view::pager::Output;
use profiler_target::cgroup::{CgroupError, Hierarchies, Hierarchy};
use profiler_target::container::{Container, Engines, Selector};

/// Most processes of a container that are counted.
const MAX_PROCESSES: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = "\
Containers are found by their cgroups, so that none is missed that runs without an engine; names and \
images come from files and sockets of Docker, Podman, containerd, CRI-O and the kubelet. Without the \
right to read those (root has it), containers are listed without names.

Examples:
  profiler list containers
  profiler list containers 'web-*'
  profiler list containers 'prod/*'        pods and containers of a namespace
  profiler list containers --units nginx   units of systemd too
  profiler list containers --json")]
pub(super) struct ContainersArgs {
    /// Only these: a glob over the name, the id, NAMESPACE/POD or the unit, or the beginning of an id
    #[arg(value_name = "GLOB")]
    glob: Option<String>,
    /// Units of systemd that are no containers too
    #[arg(long)]
    units: bool,
    #[command(flatten)]
    look: LookArgs,
}

pub(super) fn containers(args: &ContainersArgs, common: &Common) -> Result<u8, Failure> {
    let hierarchies = Hierarchies::read().map_err(failed)?;
    let hierarchy = hierarchies
        .primary()
        .ok_or_else(|| failed(CgroupError::NotMounted))?;
    let wanted = Wanted::parse(args.glob.as_deref())?;
    let mut engines = Engines::of_this_machine();
    let mut found: Vec<ListedContainer> = Selector::list(hierarchy, &mut engines, args.units)
        .into_iter()
        .filter(|container| wanted.covers(container))
        .map(|container| listed(container, hierarchy))
        .collect();
    found.order_by(|one, other| {
        let key = |of: &ListedContainer| (of.is_unit, of.name.is_none(), of.name.clone());
        key(one)
            .cmp(&key(other))
            .then_with(|| one.cgroup.cmp(&other.cgroup))
    });
    let mut out = Output::open(!args.look.json && !args.look.no_pager);
    write_containers(&found, args.look.options(common), &mut out)?;
    out.close()?;
    Ok(if found.is_empty() { FAILED } else { 0 })
}

fn failed(error: CgroupError) -> Failure {
    Failure::failed(error.to_string())
}

fn listed(container: Container, hierarchy: &Hierarchy) -> ListedContainer {
    let identity = container.identity;
    let processes = hierarchy.processes(&identity.cgroup, MAX_PROCESSES).len();
    ListedContainer {
        is_unit: identity.unit.is_some(),
        name: container.name.or(identity.unit),
        id: identity.id,
        engine: container.engine.name(),
        image: container.image,
        pod: container.pod,
        namespace: container.namespace,
        processes,
        cgroup: identity.cgroup,
    }
}

/// What is asked for.
struct Wanted<'a>(Option<(&'a str, regex::Regex)>);

impl<'a> Wanted<'a> {
    fn parse(glob: Option<&'a str>) -> Result<Wanted<'a>, Failure> {
        let Some(glob) = glob else {
            return Ok(Wanted(None));
        };
        let pattern: String = glob
            .chars()
            .map(|char| match char {
                '*' => ".*".to_owned(),
                '?' => ".".to_owned(),
                char => regex::escape(char.encode_utf8(&mut [0; 4])),
            })
            .collect();
        let regex = RegexBuilder::new(&format!("^(?:{pattern})$"))
            .dot_matches_new_line(true)
            .size_limit(1 << 20)
            .build()
            .map_err(|_| Failure::usage("the glob is too long"))?;
        Ok(Wanted(Some((glob, regex))))
    }

    fn covers(&self, container: &Container) -> bool {
        let Some((glob, regex)) = &self.0 else {
            return true;
        };
        let identity = &container.identity;
        let unit = identity.unit.as_deref();
        let pod = (container.namespace.as_ref().zip(container.pod.as_ref()))
            .map(|(namespace, pod)| format!("{namespace}/{pod}"));
        let names = [
            container.name.as_deref(),
            identity.id.as_deref(),
            unit,
            unit.and_then(|unit| unit.strip_suffix(".service")),
            pod.as_deref(),
        ];
        let begins = |id: &str| !glob.is_empty() && id.starts_with(glob);
        names.iter().flatten().any(|name| regex.is_match(name))
            || identity.id.as_deref().is_some_and(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_target::container::identify;

    #[test]
    fn globs_over_names_ids_pods_and_units() {
        let id = "ab".repeat(32);
        let mut container = Container::new(identify(&format!("/docker/{id}")).unwrap());
        container.name = Some("web-1.x".to_owned());
        container.namespace = Some("prod".to_owned());
        container.pod = Some("web".to_owned());
        let covers = |glob: &str| Wanted::parse(Some(glob)).unwrap().covers(&container);
        for glob in [
            "web-1.x", "web-*", "*", "web-?.x", "abab", "prod/*", "*abab",
        ] {
            assert!(covers(glob), "{glob}");
        }
        for glob in ["web", "web-1?x?", "web-.*", "", "ba", "prod"] {
            assert!(!covers(glob), "{glob}");
        }
        let unit = Container::new(identify("/system.slice/nginx.service").unwrap());
        let covers = |glob: &str| Wanted::parse(Some(glob)).unwrap().covers(&unit);
        assert!(covers("nginx") && covers("nginx.service") && covers("ng*"));
        assert!(Wanted::parse(None).unwrap().covers(&unit));
    }
}
