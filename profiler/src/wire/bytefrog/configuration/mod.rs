//! How an HQ wants an agent to work: the content of its configuration message.

/// A configuration, version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Bytes of all send buffers of the agent together.
    pub buffer_memory_budget: i32,
    /// Milliseconds between two heartbeats.
    pub heartbeat_interval_ms: i32,
    /// Number of data connections.
    pub data_senders: i32,
    /// How often a full queue is tried again; of no use here.
    pub queue_retry_count: i32,
    /// The run that data connections name.
    pub run: u8,
    /// Java regular expressions of what is not to be traced.
    pub exclusions: Vec<String>,
    /// Java regular expressions of what is to be traced in any case.
    pub inclusions: Vec<String>,
}

impl Default for Configuration {
    /// What Bytefrog's own HQ sends unless it is told otherwise.
    fn default() -> Configuration {
        Configuration {
            buffer_memory_budget: 25_600,
            heartbeat_interval_ms: 1000,
            data_senders: 1,
            queue_retry_count: 5,
            run: 0,
            exclusions: Vec::new(),
            inclusions: Vec::new(),
        }
    }
}
