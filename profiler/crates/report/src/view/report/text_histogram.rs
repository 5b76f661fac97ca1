//! How the durations of one function are distributed, as bars.
//!
//! Input: a row with its buckets; output: one line per power of two, or per quarter of one where
//! the durations are close together. Edges are exact, since buckets do not cross them.

use std::io::{self, Write};

use super::calls_data::{BucketRow, CallRow};
use crate::view::quantity::{count, duration, percent, percent_of};
use crate::view::term::{Paint, Style};

/// Longest bar, in characters.
const BAR: usize = 40;
/// Durations within so many powers of two are shown in quarters.
const FEW_OCTAVES: u32 = 4;

pub(super) fn write(
    row: &CallRow,
    out: &mut dyn Write,
    width: Option<usize>,
    paint: Paint,
) -> io::Result<()> {
    let text = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
    let line = format!(
        "min {}, p50 {}, p95 {}, p99 {}, max {}",
        text(row.min_ns),
        text(row.p50_ns),
        text(row.p95_ns),
        text(row.p99_ns),
        text(row.max_ns)
    );
    let bars = bars(&row.histogram);
    if bars.is_empty() {
        return writeln!(out, "No call of it ended in the recording.");
    }
    writeln!(out, "{line}")?;
    let all: u64 = bars.iter().map(|bar| bar.calls).sum();
    let most = bars.iter().map(|bar| bar.calls).max().unwrap_or(0);
    let digits = count(most).len().max("calls".len());
    let head = format!(
        "{:>8}    {:>8}  {:>digits$}  {:>6}",
        "from", "to", "calls", "share"
    );
    paint.write(out, Style::Dim, &head)?;
    writeln!(out)?;
    let used = head.chars().count() + 2;
    let room = width.map_or(BAR, |w| w.saturating_sub(used).clamp(4, BAR));
    for bar in bars {
        let (from, to) = (duration(bar.from_ns), duration(bar.to_ns));
        let share = percent(percent_of(bar.calls, all));
        let calls = count(bar.calls);
        let drawn = drawn(bar.calls, most, room);
        let line = format!("{from:>8} .. {to:>8}  {calls:>digits$}  {share:>6}  ");
        match drawn.is_empty() {
            true => writeln!(out, "{}", line.trim_end())?,
            false => {
                write!(out, "{line}")?;
                paint.write(out, Style::Cool, &drawn)?;
                writeln!(out)?;
            }
        }
    }
    Ok(())
}

/// Buckets joined to powers of two or quarters of them, with the empty ones in between.
fn bars(buckets: &[BucketRow]) -> Vec<BucketRow> {
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else {
        return Vec::new();
    };
    let octave = |ns: u64| ns.max(1).ilog2();
    let few = octave(last.from_ns) - octave(first.from_ns) < FEW_OCTAVES;
    let mut bars: Vec<BucketRow> = Vec::new();
    for bucket in buckets {
        let (from_ns, to_ns) = edges(bucket.from_ns, few);
        // Rows without calls are a part of the picture.
        while let Some(before) = bars.last().filter(|bar| bar.to_ns < from_ns) {
            let (from_ns, to_ns) = edges(before.to_ns, few);
            bars.push(BucketRow {
                from_ns,
                to_ns,
                calls: 0,
            });
        }
        match bars.last_mut().filter(|bar| bar.from_ns == from_ns) {
            Some(bar) => bar.calls += bucket.calls,
            None => bars.push(BucketRow {
                from_ns,
                to_ns,
                calls: bucket.calls,
            }),
        }
    }
    bars
}

/// The power of two that a duration is in, or the quarter of it.
fn edges(ns: u64, quarters: bool) -> (u64, u64) {
    if ns < 4 {
        return (ns, ns + 1);
    }
    let octave = ns.ilog2();
    let shift = if quarters { octave - 2 } else { octave };
    let from = ns >> shift << shift;
    (from, from.saturating_add(1 << shift))
}

/// A bar in eighths of characters; what is there is never invisible.
fn drawn(calls: u64, most: u64, room: usize) -> String {
    if calls == 0 {
        return String::new();
    }
    let eighths = (calls as f64 * (room * 8) as f64 / most.max(1) as f64).round() as usize;
    let eighths = eighths.clamp(1, room * 8);
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1))
    {
        bar.push(*part);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::derive::Latency;

    fn buckets(durations: &[u64]) -> Vec<BucketRow> {
        let mut latency = Latency::default();
        for &ns in durations {
            latency.record(ns);
        }
        let row = |bucket: crate::derive::Bucket| BucketRow {
            from_ns: bucket.from_ns,
            to_ns: bucket.to_ns,
            calls: bucket.count,
        };
        latency.buckets().map(row).collect()
    }

    #[test]
    fn edges_are_powers_of_two_or_quarters() {
        let wide: Vec<_> = (bars(&buckets(&[100, 1_000, 1_023, 1_024, 65_536])).iter())
            .map(|bar| (bar.from_ns, bar.calls))
            .collect();
        let empty = [128, 256, 2_048, 4_096, 8_192, 16_384, 32_768].map(|from| (from, 0));
        let mut expected = vec![(64, 1), (512, 2), (1_024, 1), (65_536, 1)];
        expected.extend(empty);
        expected.sort_unstable();
        assert_eq!(wide, expected);
        let close = bars(&buckets(&[1_024, 1_280, 1_281]));
        assert_eq!((close[0].from_ns, close[0].to_ns), (1_024, 1_280));
        assert_eq!(close[1].calls, 2);
    }

    #[test]
    fn the_ends_of_the_scale_are_drawn() {
        for durations in [&[0, 1, 2, 3, 4][..], &[0, u64::MAX], &[u64::MAX], &[]] {
            let bars = bars(&buckets(durations));
            let calls: u64 = bars.iter().map(|bar| bar.calls).sum();
            assert_eq!(calls, durations.len() as u64);
            assert!(bars.len() <= 70);
        }
        assert_eq!(drawn(1, 1_000_000, 40), "▏");
        assert_eq!(drawn(8, 8, 2), "██");
        assert_eq!(drawn(0, 8, 2), "");
    }
}
