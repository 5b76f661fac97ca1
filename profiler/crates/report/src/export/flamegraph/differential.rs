//! A flame graph of what has changed between two recordings.
//!
//! Input: the folded stacks of both, in one unit; output: an
//! SVG whose widths are those of the second recording and whose colours tell how much each stack's
//! share grew (red) or shrank (blue). Stacks that are gone have no width.

use std::collections::BTreeMap;
use std::io;

use inferno::flamegraph;

use super::super::collect::{Folded, by_frames};
use super::super::settings::Settings;
use super::look::{empty, short, with_legend};
use super::{Look, image};
use profiler_model::sorting::InOrder;

const LEGEND: [(&str, [u8; 3]); 3] = [
    ("grown", [255, 90, 90]),
    ("same", [250, 250, 250]),
    ("shrunk", [90, 90, 255]),
];

/// Totals are scaled to this, so that shares are compared: numbers are parts per million.
const WHOLE: u128 = 1_000_000;

/// Draws the second recording, coloured by its difference from the first.
pub(super) fn differential(
    settings: &Settings,
    recordings: [&Folded; 2],
    title: &str,
) -> io::Result<Vec<u8>> {
    let look = Look::of(settings);
    let title = look.title.as_deref().unwrap_or(title);
    let mut shares: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    let mut totals = [0; 2];
    for (side, folded) in recordings.into_iter().enumerate() {
        let stacks = &folded.stacks;
        totals[side] = stacks.iter().map(|(_, n)| u128::from(*n)).sum::<u128>();
        for (stack, number) in stacks {
            let share = u128::from(*number) * WHOLE / totals[side].max(1);
            let sum = &mut shares.entry(stack).or_default()[side];
            *sum = sum.saturating_add(share as u64);
        }
    }
    if totals[1] == 0 {
        return Ok(empty(title, "no samples in the second recording"));
    }
    let mut lines: Vec<_> = shares.into_iter().collect();
    lines.order_by(|(a, _), (b, _)| by_frames(a, b));
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(stack, [before, after])| format!("{stack} {before} {after}"))
        .collect();
    let mut image = image(&look);
    image.title = short(title);
    image.subtitle = Some("widths: second recording; colours: change of share".to_owned());
    image.count_name = "ppm".to_owned();
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut image, lines.iter().rev().map(String::as_str), &mut svg)?;
    Ok(with_legend(svg, &LEGEND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::by_name;

    fn draw(before: &[(&str, u64)], after: &[(&str, u64)]) -> String {
        let [before, after] = [before, after].map(|stacks| Folded {
            stacks: stacks
                .iter()
                .map(|&(stack, number)| (stack.to_owned(), number))
                .collect(),
            ..Folded::default()
        });
        let settings = Settings::new(by_name("svg").unwrap());
        String::from_utf8(differential(&settings, [&before, &after], "t").unwrap()).unwrap()
    }

    #[test]
    fn shares_are_compared_not_totals() {
        let svg = draw(&[("a;b", 10), ("a;c", 10)], &[("a;b", 300), ("a;c", 100)]);
        // b: half before, three quarters now; c: half before, one quarter now.
        assert!(svg.contains("b (750,000 ppm, 75.00%; +25.00%)"), "{svg}");
        assert!(svg.contains("c (250,000 ppm, 25.00%; -25.00%)"), "{svg}");
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert!(draw(&[("a", 1)], &[]).contains("no samples"));
    }
}
