//! What it costs that names are found in a process apart: the same questions, to the process and to a thread in its
//! place. Figures: docs/performance.md.
//!
//! Each run has a file loaded, asks one address, which is what a first report waits for, and then so many more in
//! questions of the size that a recording asks. Times are milliseconds: what passes, and CPU time of both sides.

use rustix::time::{ClockId, clock_gettime};

use super::apart::material;
use super::*;
use crate::helper::{Client, Limits};

const RUNS: usize = 7;
/// Addresses in one question, and of one run.
const QUESTION: usize = 256;
const ADDRESSES: usize = 20_000;
/// A file to ask about; this program, else.
const FILE: &str = "PROFILER_COST_FILE";

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    first: f64,
    all: f64,
    cpu: f64,
}

fn own_cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Of all threads of a process.
fn cpu_ms(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let times = tasks.flatten().map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split(' ')
            .next()
            .and_then(|ns| ns.parse::<f64>().ok())
            .unwrap_or(0.0)
    });
    times.sum::<f64>() / 1e6
}

fn ask(path: &Path, addresses: &[u64], apart: bool) -> Cost {
    let mut client = match apart {
        true => Client::with_process(Limits::default()),
        false => Client::new(Limits::default()),
    };
    // The process is there before anything is asked: what its start costs is in the ADR.
    client.start().unwrap();
    let pid = client.pid();
    let cpu = || own_cpu_ms() + pid.map_or(0.0, cpu_ms);
    let (began, before) = (Instant::now(), cpu());
    let until = began + Duration::from_secs(600);
    let (number, _) = client.load(material(path, true), until).unwrap().unwrap();
    let mut first = 0.0;
    let mut named = 0;
    let (one, others) = addresses.split_at(1);
    for some in std::iter::once(one).chain(others.chunks(QUESTION)) {
        let asked: Vec<_> = some.iter().map(|&address| (address, false)).collect();
        let found = client.find(number, &asked, 0, until).unwrap();
        named += found
            .iter()
            .filter(|(answer, _)| matches!(answer, Answer::Lines(_)))
            .count();
        if first == 0.0 {
            first = began.elapsed().as_secs_f64() * 1e3;
        }
    }
    assert!(
        named > addresses.len() / 2,
        "{named} of {} have names",
        addresses.len()
    );
    Cost {
        first,
        all: began.elapsed().as_secs_f64() * 1e3,
        cpu: cpu() - before,
    }
}

#[test]
#[ignore = "measures"]
fn names_apart_and_here() {
    let path =
        std::env::var_os(FILE).map_or_else(|| std::env::current_exe().unwrap(), PathBuf::from);
    let file = std::fs::File::open(&path).unwrap();
    let elf = elf::Elf::read(&file).unwrap();
    let sections = elf.sections(&file).unwrap();
    let text = sections
        .iter()
        .find(|section| section.name == ".text")
        .unwrap();
    let (start, (_, len)) = (text.address, text.place());
    // Far from each other, each another time, as samples of a busy program are.
    let address = |index: u64| start + (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % len);
    let addresses: Vec<u64> = (1..=ADDRESSES as u64).map(address).collect();
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for apart in [false, true] {
            costs[usize::from(apart)].push(ask(&path, &addresses, apart));
        }
    }
    let median = |costs: &[Cost], of: fn(&Cost) -> f64| {
        let mut all: Vec<f64> = costs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!(
        "{}: {ADDRESSES} addresses, median of {RUNS} (ms)",
        path.display()
    );
    for (of, what) in [
        ((|cost| cost.first) as fn(&Cost) -> f64, "first name"),
        (|cost| cost.all, "all names"),
        (|cost| cost.cpu, "CPU time"),
    ] {
        let [here, apart] = costs.each_ref().map(|costs| median(costs, of));
        println!(
            "{what:>12}: here {here:9.2}  apart {apart:9.2}  ({:+.1} %)",
            (apart / here - 1.0) * 100.0
        );
    }
}
