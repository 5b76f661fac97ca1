//! The words that say whose events are meant, of this machine and of a capture alike.
//!
//! Flags -> [`Filter`] and [`CgroupTargets`] of what runs, or the [`Target`] of a recording. What does not belong here:
//! what only recordings have (`target`), what only reports have (`analyse`).

use std::path::{Path, PathBuf};

use clap::Args;

use crate::error::Failure;
use profiler_model::raw::Comm;
use profiler_model::text::printable;
use profiler_model::{Pid, Tid};
use profiler_report::derive::{self as recorded, ContainerNames, Target};
use profiler_report::export::{Selection, TimeRange};
use profiler_target::Filter;
use profiler_target::container::Selector;
use profiler_target::proc_fs;
use profiler_target::user::User;

use super::values;

/// The namespace of pods that are named without one, as kubectl has it.
const NAMESPACE: &str = "default";

/// Processes of one name that are shown, and how much of their command lines.
const MAX_SHOWN: usize = 5;
const MAX_COMMAND_BYTES: u64 = 60;

/// Where cgroups are mounted; a capture has their paths below that.
const MOUNT: &str = "/sys/fs/cgroup";

/// Words of different kinds must all hold, of one kind any may; -p and -t are one kind, and cgroups, containers, pods
/// and units are one.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Target")]
pub(super) struct TargetWords {
    /// Processes; recording follows the children that they start. The name of a program or process will do
    /// where one alone has it
    #[arg(short, long, value_name = "PID|NAME", value_delimiter = ',', value_parser = process)]
    pid: Vec<ProcessWord>,
    /// Single threads
    #[arg(short, long, value_name = "TID", value_delimiter = ',', value_parser = values::id)]
    pub(super) tid: Vec<u32>,
    /// Threads of this name (the first 15 bytes count); of a capture also all threads of processes
    /// of this name, and names with * and ?
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Processes of this user, by name or number (names are those of this machine)
    #[arg(long, value_name = "USER")]
    uid: Vec<String>,
    /// A container by name, id or the beginning of an id
    #[arg(long, value_name = "NAME|ID", value_parser = container)]
    container: Vec<String>,
    /// A Kubernetes pod (without NS: in 'default')
    #[arg(long, value_name = "NS/NAME", value_parser = pod)]
    pod: Vec<Pod>,
    /// A unit of systemd; without an ending, a service
    #[arg(long, value_name = "NAME", value_parser = unit)]
    unit: Vec<String>,
    /// A cgroup (v1 or v2) and all below: its directory, a path below /sys/fs/cgroup, or as in
    /// /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<PathBuf>,
}

/// What is meant of a recording: whose, and in what code.
#[derive(Clone, Debug, Args)]
pub(super) struct SelectionWords {
    #[command(flatten)]
    target: TargetWords,
    /// Samples with this module in the stack, calls of its functions (part of a path, or a glob)
    #[arg(long, value_name = "MODULE")]
    module: Vec<String>,
    /// Samples with this function in the stack, calls of it (part of a name, or a glob)
    #[arg(long, value_name = "FUNCTION")]
    function: Vec<String>,
    /// Without samples and calls of the profiler that recorded
    #[arg(long)]
    no_self: bool,
    /// Samples of this event source, where several were recorded
    #[arg(short, long, value_name = "EVENT")]
    source: Option<String>,
}

impl SelectionWords {
    /// With the span that is meant, if not all of it.
    pub(super) fn in_recording(self, time: Option<TimeRange>) -> Result<Selection, Failure> {
        Ok(Selection {
            filter: recorded::Filter {
                target: self.target.in_recording()?,
                modules: self.module,
                functions: self.function,
                no_self: self.no_self,
            },
            source: self.source,
            range: time.unwrap_or_default(),
        })
    }
}

/// A process as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProcessWord {
    Id(u32),
    Name(String),
}

/// A pod as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod {
    namespace: String,
    name: String,
}

impl TargetWords {
    /// The conditions on processes and threads that run.
    pub(super) fn filter(&self) -> Result<Filter, Failure> {
        let (mut pids, names) = self.processes();
        for name in names {
            pids.push(only_process(name)?);
        }
        Ok(Filter {
            pids,
            tids: self.tids(),
            comms: self
                .comm
                .iter()
                .map(|name| Comm::from_bytes(name.as_bytes()))
                .collect(),
            uids: self.uids()?,
            cgroups: None,
        })
    }

    /// What is meant of a recording.
    pub(super) fn in_recording(&self) -> Result<Target, Failure> {
        let (pids, names) = self.processes();
        let numbers = pids.len() + self.tid.len();
        if !names.is_empty() && numbers > 0 {
            return Err(Failure::usage(
                "of a recording -p takes either numbers or names: give names as --comm NAME",
            ));
        }
        let names = names.into_iter().map(str::to_owned);
        Ok(Target {
            pids,
            tids: self.tids(),
            comms: self.comm.iter().cloned().chain(names).collect(),
            uids: self.uids()?,
            cgroups: self.cgroup.iter().map(|path| recorded(path)).collect(),
            containers: ContainerNames {
                containers: self.container.clone(),
                pods: self.pod.iter().map(Pod::text).collect(),
                units: self.unit.clone(),
            },
        })
    }

    /// Cgroups that are named themselves.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.cgroup.clone()
    }

    /// Containers, pods and units.
    pub(super) fn selectors(&self) -> Vec<Selector> {
        let containers = self.container.iter();
        let containers =
            containers.map(|name| Selector::Container(name.trim_start_matches('/').to_owned()));
        let pods = self.pod.iter().cloned();
        let pods = pods.map(|Pod { namespace, name }| Selector::Pod { namespace, name });
        let units = self.unit.iter().cloned().map(Selector::Unit);
        containers.chain(pods).chain(units).collect()
    }

    /// Processes, threads, names and users, in words; `places` are those of [`TargetWords::paths`] and
    /// [`TargetWords::selectors`].
    pub(super) fn describe(&self, places: impl Iterator<Item = String>) -> String {
        // All words are looked at here: a new one does not compile until it is.
        let TargetWords {
            pid,
            tid,
            comm,
            uid,
            container: _,
            pod: _,
            unit: _,
            cgroup: _,
        } = self;
        let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut parts = Vec::new();
        if !pid.is_empty() {
            let words: Vec<String> = pid.iter().map(ProcessWord::text).collect();
            parts.push(format!("pid {}", words.join(",")));
        }
        if !tid.is_empty() {
            parts.push(format!("tid {}", list(tid)));
        }
        parts.extend(comm.iter().map(|name| format!("comm {name}")));
        parts.extend(uid.iter().map(|user| format!("user {user}")));
        parts.extend(places);
        if parts.is_empty() {
            "system-wide".to_owned()
        } else {
            parts.join(", ")
        }
    }

    /// Processes by number, and names of others.
    fn processes(&self) -> (Vec<Pid>, Vec<&str>) {
        let (mut pids, mut names) = (Vec::new(), Vec::new());
        for word in &self.pid {
            match word {
                ProcessWord::Id(pid) => pids.push(Pid(*pid)),
                ProcessWord::Name(name) => names.push(&**name),
            }
        }
        (pids, names)
    }

    fn tids(&self) -> Vec<Tid> {
        self.tid.iter().copied().map(Tid).collect()
    }

    fn uids(&self) -> Result<Vec<u32>, Failure> {
        self.uid.iter().map(|user| uid(user)).collect()
    }
}

impl ProcessWord {
    fn text(&self) -> String {
        match self {
            ProcessWord::Id(pid) => pid.to_string(),
            ProcessWord::Name(name) => name.clone(),
        }
    }
}

/// A number, or what can be a name.
fn process(text: &str) -> Result<ProcessWord, String> {
    if text.starts_with(|first: char| first.is_ascii_digit()) || text.starts_with(['-', '+']) {
        return values::id(text).map(ProcessWord::Id);
    }
    match text {
        "" => Err("give the number or the name of a process".to_owned()),
        _ => Ok(ProcessWord::Name(text.to_owned())),
    }
}

/// The process that alone has a name: that of its program's file, or its own.
fn only_process(name: &str) -> Result<Pid, Failure> {
    let own = std::process::id();
    let mut found: Vec<Pid> = (proc_fs::processes().into_iter())
        .filter(|pid| pid.0 != own && is_called(*pid, name))
        .collect();
    found.sort_unstable();
    match found[..] {
        [pid] => Ok(pid),
        [] => Err(Failure::failed(format!(
            "there is no process called '{name}'; `profiler list processes` shows those there are"
        ))),
        _ => {
            let shown = found.iter().take(MAX_SHOWN).map(|pid| {
                let command = proc_fs::read(&format!("/proc/{pid}/cmdline"), MAX_COMMAND_BYTES);
                let command = command.unwrap_or_default();
                let command = String::from_utf8_lossy(&command).replace('\0', " ");
                format!("{pid} ({})", printable(command.trim()))
            });
            let mut shown: Vec<String> = shown.collect();
            if let Some(more @ 1..) = found.len().checked_sub(MAX_SHOWN) {
                shown.push(format!("{more} more"));
            }
            Err(Failure::usage(format!(
                "{} processes are called '{name}': give the number of one, or --comm {name} for all: {}",
                found.len(),
                shown.join(", ")
            )))
        }
    }
}

fn is_called(pid: Pid, name: &str) -> bool {
    let stat = proc_fs::process_stat(pid);
    let Some(stat) = stat.as_deref().and_then(proc_fs::Stat::parse) else {
        return false;
    };
    let program = || {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        Some(path.file_name()?.to_string_lossy() == name)
    };
    !stat.is_over() && (stat.name == name.as_bytes() || program() == Some(true))
}

impl Pod {
    fn text(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A cgroup's path as captures have it.
fn recorded(path: &Path) -> String {
    let path = path.strip_prefix(MOUNT).unwrap_or(path);
    format!("/{}", path.to_string_lossy().trim_matches('/'))
}

fn container(text: &str) -> Result<String, String> {
    match text.trim_start_matches('/') {
        "" => Err("give a name or an id".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// As kubectl's users write it.
fn pod(text: &str) -> Result<Pod, String> {
    let (namespace, name) = text.split_once('/').unwrap_or((NAMESPACE, text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(format!(
            "give NAMESPACE/NAME, or NAME for one in '{NAMESPACE}'"
        ));
    }
    Ok(Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

fn unit(text: &str) -> Result<String, String> {
    match text {
        "" => Err("give the name of a unit".to_owned()),
        text if text.contains('/') => Err("give a unit's name, not a path".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// A user by name or by number; a number needs no account here.
fn uid(user: &str) -> Result<u32, Failure> {
    match user.parse() {
        Ok(uid) => Ok(uid),
        Err(_) => find_user(user).map(|user| user.uid),
    }
}

/// Users that may connect to what listens here: those who are named, and who is behind sudo.
pub(super) fn admitted_users(named: &[String]) -> Result<Vec<u32>, Failure> {
    let mut users = Vec::new();
    for name in named {
        let unknown = |_| Failure::usage(format!("there is no user '{name}' here"));
        users.push(uid(name).map_err(unknown)?);
    }
    // Started by sudo, it was started by the user behind it.
    users.extend(User::behind_sudo().ok().flatten().map(|user| user.uid));
    Ok(users)
}

pub(super) fn find_user(name: &str) -> Result<User, Failure> {
    User::find(name).ok_or_else(|| Failure::failed(format!("there is no user '{name}'")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        target: TargetWords,
    }

    fn parse(words: &str) -> TargetWords {
        let words = ["report"].into_iter().chain(words.split(' '));
        Line::try_parse_from(words).unwrap().target
    }

    #[test]
    fn a_recording_is_asked_for_what_is_meant_of_the_machine() {
        let words = parse(
            "-p 1,2 -t 3 --comm db --uid 7 --container web --container /docker/0 --pod cart --pod shop/api \
             --unit nginx --cgroup /a/b/ --cgroup /sys/fs/cgroup/c --cgroup d",
        );
        let (live, recorded) = (words.filter().unwrap(), words.in_recording().unwrap());
        assert_eq!(
            (&live.pids, &live.tids, &live.uids),
            (&recorded.pids, &recorded.tids, &recorded.uids)
        );
        assert_eq!(recorded.comms, ["db"]);
        assert_eq!(recorded.cgroups, ["/a/b", "/c", "/d"]);
        assert_eq!(recorded.containers.containers, ["web", "/docker/0"]);
        assert_eq!(recorded.containers.pods, ["default/cart", "shop/api"]);
        assert_eq!(recorded.containers.units, ["nginx"]);
        assert!(words.selectors().contains(&Selector::Pod {
            namespace: "default".to_owned(),
            name: "cart".to_owned(),
        }));
        let named = parse("-p web").in_recording().unwrap();
        assert_eq!(
            (named.pids.len(), &named.comms[..]),
            (0, &["web".to_owned()][..])
        );
        assert!(parse("-p web,7").in_recording().is_err());
        assert!(process("7a").is_err() && process("-7").is_err() && process("").is_err());
        let none = parse("--uid 0").in_recording().unwrap();
        assert!(!none.is_all());
        assert!(TargetWords::default().in_recording().unwrap().is_all());
    }
}
