//! A flame graph of what has changed between two recordings.
//!
//! Input: the folded stacks of both, as the format `folded` writes them, in one unit; output: an
//! SVG whose widths are those of the second recording and whose colours tell how much each stack's
//! share grew (red) or shrank (blue). Stacks that are gone have no width.

use std::collections::BTreeMap;
use std::io;

use inferno::flamegraph;

use super::super::ExportOptions;
use super::super::collect::by_frames;
use super::look::{empty, short, with_legend};

const LEGEND: [(&str, [u8; 3]); 3] = [
    ("grown", [255, 90, 90]),
    ("same", [250, 250, 250]),
    ("shrunk", [90, 90, 255]),
];

/// Totals are scaled to this, so that shares are compared: numbers are parts per million.
const WHOLE: u128 = 1_000_000;

/// Draws `after`, coloured by its difference from `before`.
pub fn differential(
    before: &str,
    after: &str,
    title: &str,
    options: &ExportOptions,
) -> io::Result<Vec<u8>> {
    let mut shares: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    let mut totals = [0; 2];
    for (side, folded) in [before, after].into_iter().enumerate() {
        let stacks = parse(folded)?;
        totals[side] = stacks.iter().map(|(_, n)| u128::from(*n)).sum::<u128>();
        for (stack, number) in stacks {
            let share = u128::from(number) * WHOLE / totals[side].max(1);
            let sum = &mut shares.entry(stack).or_default()[side];
            *sum = sum.saturating_add(share as u64);
        }
    }
    if totals[1] == 0 {
        return Ok(empty(title, "no samples in the second recording"));
    }
    let mut lines: Vec<_> = shares.into_iter().collect();
    lines.sort_unstable_by(|(a, _), (b, _)| by_frames(a, b));
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(stack, [before, after])| format!("{stack} {before} {after}"))
        .collect();
    let mut image = super::image(options);
    image.title = short(title);
    image.subtitle = Some("widths: second recording; colours: change of share".to_owned());
    image.count_name = "ppm".to_owned();
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut image, lines.iter().rev().map(String::as_str), &mut svg)?;
    Ok(with_legend(svg, &LEGEND))
}

fn parse(folded: &str) -> io::Result<Vec<(&str, u64)>> {
    let lines = folded.lines().filter(|line| !line.is_empty());
    lines
        .enumerate()
        .map(|(index, line)| {
            line.rsplit_once(' ')
                .and_then(|(stack, number)| Some((stack, number.parse().ok()?)))
                .ok_or_else(|| {
                    let error = format!("line {} of the folded stacks has no number", index + 1);
                    io::Error::new(io::ErrorKind::InvalidData, error)
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_compared_not_totals() {
        let options = ExportOptions::default();
        let svg = differential("a;b 10\na;c 10\n", "a;b 300\na;c 100\n", "t", &options).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        // b: half before, three quarters now; c: half before, one quarter now.
        assert!(svg.contains("b (750,000 ppm, 75.00%; +25.00%)"), "{svg}");
        assert!(svg.contains("c (250,000 ppm, 25.00%; -25.00%)"), "{svg}");
    }

    #[test]
    fn damage_is_an_error() {
        let error = differential("a 1\nb\n", "a 1", "t", &ExportOptions::default()).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        let none = differential("a 1", "", "t", &ExportOptions::default()).unwrap();
        assert!(String::from_utf8(none).unwrap().contains("no samples"));
    }
}
