//! How long each processor had nothing to run: `/proc/stat` -> nanoseconds.
//!
//! That is idle time, waiting for disks, and time that a hypervisor gave to others, since the machine
//! was started. Source: proc_stat(5). The unit of the file, `USER_HZ`, is most often 10 ms.
//!
//! What does not belong here: what follows for samples (`losses`).

use std::fs;

/// By processor; none where it is not known, as for those that are offline.
pub(super) fn read() -> Vec<Option<u64>> {
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    match fs::read_to_string("/proc/stat") {
        Ok(text) => parse(&text, tick_ns),
        Err(error) => {
            log::debug!("failed to read /proc/stat: {error}");
            Vec::new()
        }
    }
}

fn parse(text: &str, tick_ns: u64) -> Vec<Option<u64>> {
    let mut idle = Vec::new();
    for line in text.lines() {
        let Some((cpu, numbers)) = line
            .strip_prefix("cpu")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        // The first line is of all.
        let Ok(cpu) = cpu.parse::<u16>() else {
            continue;
        };
        // user, nice, system, idle, iowait, irq, softirq, steal
        let numbers = numbers.split_whitespace().map(|number| number.parse().ok());
        let numbers: Option<Vec<u64>> = numbers.collect();
        let Some([_, _, _, nothing, waiting, _, _, stolen, ..]) = numbers.as_deref() else {
            continue;
        };
        let ticks = nothing.saturating_add(*waiting).saturating_add(*stolen);
        if idle.len() <= usize::from(cpu) {
            idle.resize(usize::from(cpu) + 1, None);
        }
        idle[usize::from(cpu)] = Some(ticks.saturating_mul(tick_ns));
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_times_are_those_of_each_processor() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu2 1 2 3 4 5 6 7 0\n\
                    cpu3 1 x\ncpux 1 2 3 4 5 6 7 8\nintr 5 6\n";
        assert_eq!(parse(text, 10), [Some(530), None, Some(90)]);
        assert!(read().iter().any(Option::is_some));
    }
}
