//! Times of an agent -> times here.
//!
//! Input: milliseconds since tracing began, 32 bits wide, in the order of sequence ids; output:
//! nanoseconds of CLOCK_MONOTONIC that never go back.

use profiler_model::Timestamp;

/// The agent's milliseconds as nanoseconds here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    origin_ns: u64,
    /// Milliseconds of the last event, which are 32 bits wide and may have wrapped.
    last_ms: u32,
    offset_ms: i64,
    /// The latest time so far.
    pub(super) at: Timestamp,
}

impl Time {
    /// Counts from `origin`.
    pub(super) fn begin(origin: Timestamp) -> Time {
        Time {
            origin_ns: origin.0,
            at: origin,
            ..Time::default()
        }
    }

    /// The time of the next event.
    pub(super) fn event(&mut self, at_ms: u32) -> Timestamp {
        let step = at_ms.wrapping_sub(self.last_ms).cast_signed();
        self.last_ms = at_ms;
        self.offset_ms = self.offset_ms.saturating_add(i64::from(step));
        let offset_ns = self
            .offset_ms
            .max(0)
            .cast_unsigned()
            .saturating_mul(1_000_000);
        self.at = self
            .at
            .max(Timestamp(self.origin_ns.saturating_add(offset_ns)));
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_wrap_around() {
        let mut time = Time::begin(Timestamp(0));
        let half = 1 << 31;
        let at: Vec<u64> = [half - 1, u32::MAX - 5, 4]
            .map(|ms| time.event(ms).0 / 1_000_000)
            .into();
        assert_eq!(at, [(1 << 31) - 1, (1 << 32) - 6, (1 << 32) + 4]);
    }
}
