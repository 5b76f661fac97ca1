//! What the kernel counts of BPF programs: how often they ran, and for how many nanoseconds.

use std::fs;

const SETTING: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The kernel's statistics of programs, as long as this lives.
pub struct Statistics(String);

impl Statistics {
    pub fn enable() -> Statistics {
        let before = fs::read_to_string(SETTING).unwrap();
        fs::write(SETTING, "1").unwrap();
        Statistics(before)
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = fs::write(SETTING, &self.0);
    }
}

/// Nanoseconds and runs of the programs of this process.
pub fn run_times() -> (u64, u64) {
    let (mut ns, mut runs) = (0, 0);
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap() {
        let Ok(text) = fs::read_to_string(entry.unwrap().path()) else {
            continue;
        };
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or(0, |value| value.trim().parse::<u64>().unwrap())
        };
        ns += field("run_time_ns:");
        runs += field("run_cnt:");
    }
    (ns, runs)
}
