//! How long it takes to find out what 1,000 containers are: by listing them, and until the first sample.
//!
//! Each round runs every command once, first without the containers, then with them: `list containers`, a
//! recording of everything, and one of a container by its name. A process keeps a processor busy, so that a
//! sample is due every millisecond; the container's own process is that one.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched, run as run_tool};
use super::super::slope::median;
use super::super::table::{Table, ms};
use super::super::tool::Tool;
use super::many_containers::ManyContainers;
use super::{Processes, hierarchies};

const CONTAINERS: usize = 1000;

#[derive(Serialize)]
struct Run {
    command: &'static str,
    containers: usize,
    /// To the end of a list, or to the first sample.
    took_ns: u64,
    tool: Usage,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let count = if bench.quick { 50 } else { CONTAINERS };
    let job = bench.workload("job.c", "job", &[])?;
    let mut runs = Vec::new();
    for containers in [1, count] {
        eprintln!("start: making {containers} containers");
        let many = ManyContainers::new(containers, &bench.folder)?;
        let mut busy = Processes::default();
        let child = Command::new(&job)
            .arg("1000000000000000")
            .stdout(Stdio::null())
            .spawn()?;
        let pid = child.id();
        busy.0.push(child);
        // In the last one, beside its own process.
        let last = containers - 1;
        for (mount, _) in hierarchies()? {
            let path = mount.join("docker").join(&many.ids()[last]);
            let moved = fs::write(path.join("cgroup.procs"), pid.to_string());
            if !mount.ends_with("cpuset") {
                moved?;
            }
        }
        for round in 0..rounds {
            eprintln!("start: round {} of {rounds}", round + 1);
            runs.push(list(bench, &many)?);
            runs.push(record(bench, &many, "record -a", &["-a"])?);
            let name = ManyContainers::name(last);
            runs.push(record(
                bench,
                &many,
                "record --container",
                &["--container", &name],
            )?);
        }
        // Before the cgroups that it is in.
        drop(busy);
        drop(many);
    }
    bench.keep("containers-start.json", &runs)?;
    print(&runs, count, rounds);
    Ok(())
}

/// Lists; every container must be in the list, by its name.
fn list(bench: &Bench, many: &ManyContainers) -> io::Result<Run> {
    let log = bench.folder.join("log");
    let mut command = many.command(&bench.profiler);
    let tool = run_tool(command.args(["list", "containers"]), &log)?;
    let said = fs::read_to_string(&log)?;
    let containers = many.ids().len();
    let named = (0..containers)
        .filter(|&index| {
            let name = ManyContainers::name(index);
            said.split_whitespace().any(|word| word == name)
        })
        .count();
    if named != containers {
        return Err(io::Error::other(format!(
            "{named} of {containers} containers were listed by their names"
        )));
    }
    Ok(Run {
        command: "list containers",
        containers,
        took_ns: tool.wall_ns,
        tool,
    })
}

fn record(
    bench: &Bench,
    many: &ManyContainers,
    name: &'static str,
    target: &[&str],
) -> io::Result<Run> {
    let output = Tool::Profiler.recording(&bench.folder);
    match fs::remove_file(&output) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut command = many.command(&bench.profiler);
    command
        .args(["record", "--quiet", "-e", "cpu-clock", "-F", "999"])
        .args(target)
        .arg("-o")
        .arg(&output);
    let from_ns = now_ns();
    let watched = Watched::start(&mut command, &bench.folder.join("log"))?;
    thread::sleep(Duration::from_millis(2500));
    watched.interrupt()?;
    let (status, tool) = watched.end()?;
    if !status.success() {
        return Err(io::Error::other(format!(
            "{name}: {status}: {}",
            log(bench)?
        )));
    }
    let first = Tool::Profiler.first_sample_ns(&bench.profiler, &bench.folder)?;
    Ok(Run {
        command: name,
        containers: many.ids().len(),
        took_ns: first.saturating_sub(from_ns),
        tool,
    })
}

fn log(bench: &Bench) -> io::Result<String> {
    fs::read_to_string(bench.folder.join("log"))
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn print(runs: &[Run], count: usize, rounds: usize) {
    let many = format!("with {count}, ms");
    let mut table = Table::new(&[
        "command",
        "with 1 container, ms (median)",
        &many,
        "worst",
        "difference, ms",
        "own CPU, ms",
    ]);
    for name in ["list containers", "record -a", "record --container"] {
        let of = |containers: usize| {
            let runs = runs.iter();
            runs.filter(move |run| run.command == name && run.containers == containers)
        };
        let took = |containers| {
            median(
                &mut of(containers)
                    .map(|run| run.took_ns as f64)
                    .collect::<Vec<_>>(),
            )
        };
        let worst = of(count).map(|run| run.took_ns).max().unwrap_or(0);
        let cpu = median(
            &mut of(count)
                .map(|run| run.tool.cpu_ns as f64)
                .collect::<Vec<_>>(),
        );
        table.row(vec![
            name.to_owned(),
            ms(took(1)),
            ms(took(count)),
            ms(worst as f64),
            ms(took(count) - took(1)),
            ms(cpu),
        ]);
    }
    table.print(&format!(
        "Containers at the start: to the end of the list, or to the first sample; {rounds} rounds"
    ));
}
