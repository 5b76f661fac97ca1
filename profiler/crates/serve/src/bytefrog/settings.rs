//! A configuration of HQ -> what the agent keeps to, within bounds.
//!
//! What does not belong here: patterns (`wire::bytefrog`), reading configurations.

use std::time::Duration;

use profiler_wire::bytefrog::Configuration;

/// Most data connections of a run.
pub(super) const MAX_SENDERS: usize = 64;

const MIN_BUFFER_BYTES: usize = 512;
const MAX_BUFFER_BYTES: usize = 64 << 10;
const MIN_BUDGET_BYTES: usize = 2 * MIN_BUFFER_BYTES;
const MAX_BUDGET_BYTES: usize = 64 << 20;
const MIN_HEARTBEAT: Duration = Duration::from_millis(10);
const MAX_HEARTBEAT: Duration = Duration::from_secs(3600);

/// What the agent keeps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The run that data connections name.
    pub(super) run: u8,
    /// Data connections.
    pub(super) senders: usize,
    /// Time between two heartbeats.
    pub(super) heartbeat: Duration,
    /// Room of one send buffer.
    pub(super) buffer_bytes: usize,
    /// Send buffers.
    pub(super) buffers: usize,
}

impl Settings {
    /// What a configuration comes to, and what in it is out of bounds.
    pub(super) fn new(wanted: &Configuration) -> (Settings, Vec<String>) {
        let mut warnings = Vec::new();
        let default = Configuration::default();
        let mut bounded = |name: &str, wanted: i32, default: i32, min: usize, max: usize| {
            let taken = match usize::try_from(wanted) {
                Ok(wanted) if wanted > 0 => wanted.clamp(min, max),
                _ => usize::try_from(default).unwrap_or(min),
            };
            if usize::try_from(wanted) != Ok(taken) {
                warnings.push(format!("{name} {wanted} is out of bounds; {taken} is used"));
            }
            taken
        };
        let budget_bytes = bounded(
            "bufferMemoryBudget",
            wanted.buffer_memory_budget,
            default.buffer_memory_budget,
            MIN_BUDGET_BYTES,
            MAX_BUDGET_BYTES,
        );
        let heartbeat_ms = bounded(
            "heartbeatInterval",
            wanted.heartbeat_interval_ms,
            default.heartbeat_interval_ms,
            MIN_HEARTBEAT.as_millis() as usize,
            MAX_HEARTBEAT.as_millis() as usize,
        );
        let senders = bounded(
            "numDataSenders",
            wanted.data_senders,
            default.data_senders,
            1,
            MAX_SENDERS,
        );
        // Two for each connection: one on its way, one that is being filled.
        let buffer_bytes = (budget_bytes / (2 * senders)).clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES);
        let settings = Settings {
            run: wanted.run,
            senders,
            heartbeat: Duration::from_millis(heartbeat_ms as u64),
            buffer_bytes,
            buffers: (budget_bytes / buffer_bytes).max(2),
        };
        (settings, warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Budget, senders and heartbeat -> buffers, their room, senders, heartbeat, warnings.
    #[track_caller]
    fn check(wanted: (i32, i32, i32), expected: (usize, usize, usize, u64), warned: usize) {
        let (settings, warnings) = Settings::new(&Configuration {
            buffer_memory_budget: wanted.0,
            data_senders: wanted.1,
            heartbeat_interval_ms: wanted.2,
            ..Configuration::default()
        });
        let Settings {
            buffers,
            buffer_bytes,
            senders,
            heartbeat,
            ..
        } = settings;
        let heartbeat_ms = heartbeat.as_millis() as u64;
        assert_eq!((buffers, buffer_bytes, senders, heartbeat_ms), expected);
        assert_eq!(warnings.len(), warned, "{warnings:?}");
    }

    #[test]
    fn sensible_configurations_are_kept() {
        check((25_600, 1, 1000), (2, 12_800, 1, 1000), 0);
        check((25_600, 4, 1000), (8, 3200, 4, 1000), 0);
        check((25_600, 16, 250), (32, 800, 16, 250), 0);
        check((8 << 20, 4, 1000), (128, 65_536, 4, 1000), 0);
    }

    #[test]
    fn others_are_bounded() {
        check((0, 1, 1000), (2, 12_800, 1, 1000), 1);
        check((-5, 1, 1000), (2, 12_800, 1, 1000), 1);
        check((1, 16, 1000), (2, 512, 16, 1000), 1);
        check((i32::MAX, 1, 1000), (1024, 65_536, 1, 1000), 1);
        check((25_600, 0, 1000), (2, 12_800, 1, 1000), 1);
        check((25_600, -1, 0), (2, 12_800, 1, 1000), 2);
        check((25_600, i32::MAX, i32::MAX), (50, 512, 64, 3_600_000), 2);
        check((25_600, 1, 1), (2, 12_800, 1, 10), 1);
    }
}
