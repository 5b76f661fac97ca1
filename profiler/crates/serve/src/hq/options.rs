//! How an HQ receives.

use std::time::Duration;

use super::budget;
use super::merge::MergeLimits;
use crate::admission::Admission;
use profiler_wire::bytefrog::{BYTEFROG_CLASS, Configuration};

/// How an HQ receives.
#[derive(Clone, Debug)]
pub struct HqOptions {
    /// What agents are sent; the number of the run is filled in.
    pub configuration: Configuration,
    /// The Java class by whose name agents know it: [`BYTEFROG_CLASS`] or that of Code Pulse.
    pub configuration_class: &'static str,
    /// Who may connect.
    pub admission: Admission,
    /// Runs begin suspended.
    pub suspended: bool,
    /// Runs are started as soon as their agents are ready; else by order.
    pub start: bool,
    /// Runs are told to stop after so long.
    pub stop_after: Option<Duration>,
    /// A fault ends its run, as under the original collector.
    pub strict: bool,
    /// Runs that are accepted in all; none: any number.
    pub runs: Option<u64>,
    /// How far connections of a run may be apart.
    pub merge: MergeLimits,
    /// Bytes that all runs may keep together; the one that keeps most goes.
    pub memory: usize,
    /// What is missing is given up after so long.
    pub stall: Duration,
    /// A connection has to say what it is within this time.
    pub greeting: Duration,
}

impl Default for HqOptions {
    fn default() -> HqOptions {
        HqOptions {
            configuration: Configuration::default(),
            configuration_class: BYTEFROG_CLASS,
            admission: Admission::new([]),
            suspended: false,
            start: true,
            stop_after: None,
            strict: false,
            runs: None,
            merge: MergeLimits::default(),
            memory: budget::usual(),
            stall: Duration::from_secs(10),
            greeting: Duration::from_secs(10),
        }
    }
}

impl HqOptions {
    /// Time between two heartbeats.
    pub(super) fn heartbeat(&self) -> Duration {
        let ms = self.configuration.heartbeat_interval_ms.max(0);
        Duration::from_millis(u64::from(ms.cast_unsigned()))
    }
}
