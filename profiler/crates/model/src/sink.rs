//! The one way in which events reach an output.

use super::event::Event;
use super::tables::Tables;

/// A consumer of a recording: each export format, each view.
///
/// Events come ordered by time, after all definitions that they use are in `tables`. Ids in events
/// are those of `tables`. Names that were found late are in `tables` too when a capture is replayed.
pub trait Sink {
    /// Takes one event.
    fn event(&mut self, event: &Event, tables: &Tables) -> std::io::Result<()>;

    /// Ends the output; nothing comes after.
    fn finish(&mut self, tables: &Tables) -> std::io::Result<()>;
}
