//! What the profiler calls the processes that it runs for itself: the first of their arguments, by which they are found in
//! a recording.
//!
//! What does not belong here: what they do (`resolve::helper`, `probe::calls::keeper`, `target::container::engines`).

/// Finds names, opens files and reads memory.
pub const NAMES: &str = "profiler-names";
/// Holds probes.
pub const LINKS: &str = "profiler-links";
/// Asks for the containers of users.
pub const USERS: &str = "profiler-users";

/// All of them.
pub const ALL: [&str; 3] = [NAMES, LINKS, USERS];
