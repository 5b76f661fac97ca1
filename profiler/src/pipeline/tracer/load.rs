//! What tracing may cost: measured loads -> which probes do less.
//!
//! The cost of a probe is its hits (the kernel's own counts) times what a hit was measured to cost on
//! this machine, the trap included. If all of them together take more than the budget's share of the
//! time that the target runs, the dearest probe steps down first: it gives up its exits, then it is
//! attached for a part of the time only, then not at all. Pure arithmetic; nanoseconds and shares.
//!
//! What does not belong here: counting (`counts`), when to look (`budget`).

use std::collections::BinaryHeap;

/// How much of a function is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Entries and, if it was planned so, exits.
    Full,
    /// Entries only.
    Entries,
    /// Entries only, a part of the time.
    Duty,
    /// Nothing.
    Off,
}

/// How long a probe on duty is attached, and how often. Attaching and detaching take some ten
/// milliseconds of ours, none of the target's.
pub(super) const DUTY_ON_NS: u64 = 100_000_000;
/// See [`DUTY_ON_NS`].
pub(super) const DUTY_PERIOD_NS: u64 = 2_000_000_000;

/// How long the `index`th probe that goes on duty waits until it is attached for the first time: so
/// that several, which step down together most often, are spread over the period. Multiples of the
/// golden ratio lie far from each other, however many there are.
pub(super) fn first_wait_ns(index: u64) -> u64 {
    // The fraction of the ratio in units of 2^-32.
    const RATIO: u64 = 2_654_435_769;
    let part = index.wrapping_mul(RATIO) & u64::from(u32::MAX);
    // Not at once: it has just been too dear.
    DUTY_PERIOD_NS / 2 + ((part * (DUTY_PERIOD_NS >> 16)) >> 16)
}

/// What each further process that is attached to adds to a hit: the kernel asks all that wait at a
/// place whether it concerns them, whichever process came by. Measured on Linux 6.18 (0.7 us with one,
/// 3.9 with 100, 12 with 400).
const CROWD_NS: u32 = 33;

/// What one probe did in the time that is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Which probe.
    pub(super) probe: u32,
    /// What is watched of it now.
    pub(super) level: Level,
    /// Whether its exits are watched at [`Level::Full`].
    pub(super) has_exits: bool,
    /// Entries and exits counted.
    pub(super) entries: u64,
    /// See `entries`.
    pub(super) exits: u64,
    /// Jumps to the beginning of a function: each hits the probe of the jump and that of the entry.
    pub(super) self_jumps: u64,
    /// What one costs.
    pub(super) entry_ns: u32,
    /// See `entry_ns`.
    pub(super) exit_ns: u32,
    /// See `entry_ns`.
    pub(super) self_jump_ns: u32,
}

impl Load {
    /// Takes into account that so many processes are attached to by links of their own.
    pub(super) fn crowd(&mut self, processes: u32) {
        let waiting = processes.saturating_sub(1).saturating_mul(CROWD_NS);
        self.entry_ns = self.entry_ns.saturating_add(waiting);
        self.exit_ns = self.exit_ns.saturating_add(waiting);
        // The jump and the entry.
        self.self_jump_ns = self.self_jump_ns.saturating_add(waiting.saturating_mul(2));
    }

    /// What it cost the target.
    pub(super) fn cost_ns(&self) -> u64 {
        self.entries_ns()
            .saturating_add(self.exits.saturating_mul(u64::from(self.exit_ns)))
    }

    fn entries_ns(&self) -> u64 {
        let entries = self.entries.saturating_mul(u64::from(self.entry_ns));
        entries.saturating_add(self.self_jumps.saturating_mul(u64::from(self.self_jump_ns)))
    }

    /// What it would have cost at a lower level.
    fn cost_at(&self, level: Level) -> u64 {
        let entries = self.entries_ns();
        match level {
            Level::Full => self.cost_ns(),
            Level::Entries => entries,
            Level::Duty => entries / (DUTY_PERIOD_NS / DUTY_ON_NS),
            Level::Off => 0,
        }
    }

    fn below(&self, level: Level) -> Option<Level> {
        match level {
            Level::Full if self.has_exits => Some(Level::Entries),
            Level::Full | Level::Entries => Some(Level::Duty),
            Level::Duty => Some(Level::Off),
            Level::Off => None,
        }
    }
}

/// What all of them cost the target.
pub(super) fn cost_ns(loads: &[Load]) -> u64 {
    loads.iter().map(Load::cost_ns).fold(0, u64::saturating_add)
}

/// The steps down that bring the cost to `allowed_ns`: always that of the probe which is the dearest
/// then, so that none is given up while another costs more. All loads and what is allowed are of the
/// same time; the load of a probe on duty is its average over a whole period.
pub(super) fn decide(loads: &[Load], allowed_ns: u64) -> Vec<(u32, Level)> {
    let mut total = cost_ns(loads);
    let mut levels: Vec<Level> = loads.iter().map(|load| load.level).collect();
    let costs = loads.iter().map(Load::cost_ns);
    let mut dearest: BinaryHeap<(u64, usize)> = costs.zip(0..).collect();
    while total > allowed_ns
        && let Some((cost, index)) = dearest.pop()
    {
        let Some(below) = loads[index].below(levels[index]) else {
            continue;
        };
        let cheaper = loads[index].cost_at(below).min(cost);
        total = total.saturating_sub(cost - cheaper);
        levels[index] = below;
        dearest.push((cheaper, index));
    }
    let steps = loads.iter().zip(levels);
    steps
        .filter(|(load, level)| load.level != *level)
        .map(|(load, level)| (load.probe, level))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(probe: u32, entries: u64) -> Load {
        Load {
            probe,
            level: Level::Full,
            has_exits: true,
            entries,
            exits: entries,
            self_jumps: 0,
            entry_ns: 500,
            exit_ns: 300,
            self_jump_ns: 1000,
        }
    }

    #[test]
    fn within_the_budget_nothing_changes() {
        assert_eq!(decide(&[load(1, 1000), load(2, 10)], 808_000), []);
    }

    #[test]
    fn the_dearest_gives_up_its_exits_first() {
        // 800,000 + 80,000 ns; without the exits of the first 580,000.
        let loads = [load(1, 100), load(2, 1000)];
        assert_eq!(decide(&loads, 600_000), [(2, Level::Entries)]);
    }

    #[test]
    fn then_it_is_attached_for_a_part_of_the_time_then_not_at_all() {
        // On duty the second costs 25,000 ns.
        let loads = [load(1, 100), load(2, 1000)];
        assert_eq!(decide(&loads, 105_000), [(2, Level::Duty)]);
        assert_eq!(decide(&loads, 27_500), [(1, Level::Duty), (2, Level::Duty)]);
        assert_eq!(decide(&loads, 2_500), [(1, Level::Duty), (2, Level::Off)]);
        assert_eq!(decide(&loads, 0), [(1, Level::Off), (2, Level::Off)]);
    }

    #[test]
    fn nothing_is_given_up_while_another_costs_more() {
        let loads = [load(1, 900), load(2, 1000)];
        assert_eq!(
            decide(&loads, 100_000),
            [(1, Level::Duty), (2, Level::Duty)]
        );
    }

    #[test]
    fn probes_on_duty_are_spread_over_the_period() {
        for count in [4, 20, 100] {
            let mut waits: Vec<u64> = (0..count).map(first_wait_ns).collect();
            waits.sort_unstable();
            waits.push(DUTY_PERIOD_NS + waits[0]);
            let gaps = waits.windows(2).map(|pair| pair[1] - pair[0]);
            let fair = DUTY_PERIOD_NS / count;
            assert!(gaps.clone().all(|gap| gap > fair / 3 && gap < fair * 3));
        }
    }

    #[test]
    fn what_has_no_exits_skips_that_step() {
        let bare = Load {
            has_exits: false,
            exits: 0,
            ..load(7, 1000)
        };
        assert_eq!(decide(&[bare], 400_000), [(7, Level::Duty)]);
    }

    #[test]
    fn a_hit_costs_more_where_many_processes_are_attached_to() {
        let mut crowded = load(1, 1000);
        crowded.crowd(1);
        assert_eq!(crowded.cost_ns(), 800_000);
        crowded.crowd(101);
        assert_eq!(crowded.cost_ns(), 800_000 + 2 * 1000 * 3300);
    }

    #[test]
    fn what_is_off_already_stays_so() {
        let off = Load {
            level: Level::Off,
            ..load(7, 0)
        };
        assert_eq!(decide(&[off, load(1, 1)], 0), [(1, Level::Off)]);
    }
}
