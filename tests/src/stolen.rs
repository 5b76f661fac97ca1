//! /proc/stat -> time that the machine's host took from its processors, in ns, since the test began.
//!
//! A guest's kernel leaves this time out of the CPU time of threads, while clocks go on. Zero on real hardware, and
//! where the host does not tell. Source: proc_stat(5), "steal", in ticks of 1/100 s. Each test runs in a process of its
//! own, so what was taken since it began is an upper bound for any part of it.

use std::fs;
use std::sync::OnceLock;

/// What had been taken when the test began.
static AT_START: OnceLock<u64> = OnceLock::new();

/// Notes that a test begins; only the first call counts.
pub fn note_start() {
    AT_START.get_or_init(all_ns);
}

/// What was taken of all processors since [`note_start`], in ns; 0 without it.
pub fn since_start_ns() -> u64 {
    match AT_START.get() {
        Some(before) => all_ns().saturating_sub(*before),
        None => 0,
    }
}

fn all_ns() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    of_all_processors_ns(&text)
}

fn of_all_processors_ns(text: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with("cpu "));
    let ticks = line.and_then(|line| line.split_ascii_whitespace().nth(8));
    ticks
        .and_then(|ticks| ticks.parse::<u64>().ok())
        .unwrap_or(0)
        * 10_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_number_of_all_processors_counts() {
        let text = "cpu  264562 90472 50476 32664 701 0 377 344 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(of_all_processors_ns(text), 3_440_000_000);
        assert_eq!(of_all_processors_ns("cpu0 1 2 3"), 0);
        assert_eq!(of_all_processors_ns(""), 0);
    }
}
