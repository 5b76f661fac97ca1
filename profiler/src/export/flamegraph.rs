//! A flame graph as an SVG that browsers can zoom and search.
//!
//! Input: events; output: one XML document, drawn by `inferno` from the stacks of
//! [`super::collect`]. Widths are weights (CPU time is shown in milli- or microseconds) or counts of
//! samples; image sizes are pixels. The colour tells what kind of code a frame runs; the line below
//! the title tells what the recording lacks. Mapping: docs/formats/flamegraph.md.

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options};

use super::collect::{Collector, Folded};
use super::options::{Count, ExportOptions, OptionHelp, help};
use super::{Format, Output, name};
use crate::model::*;

pub(super) const FORMAT: Format = Format {
    name: "svg",
    extensions: &[".svg"],
    description: "flame graph for a web browser, with zoom and search",
    options: &[
        OptionHelp {
            name: "count",
            value: "samples|weight",
            help: "what widths are: samples, or what they stand for, such as CPU time (default: \
                   weight)",
        },
        help::SOURCE,
        help::THREADS,
        OptionHelp {
            name: "title",
            value: "TEXT",
            help: "title (default: the target and the machine)",
        },
        OptionHelp {
            name: "width",
            value: "PIXELS (200 or more)",
            help: "width of the image (default: that of the window)",
        },
        OptionHelp {
            name: "min-width",
            value: "PERCENT (0 to 100)",
            help: "leave out narrower frames (default: 0.02)",
        },
        OptionHelp {
            name: "icicle",
            value: "yes|no",
            help: "root at the top (default: no)",
        },
        OptionHelp {
            name: "reverse",
            value: "yes|no",
            help: "merge stacks from the leaf, to show who calls a hot function (default: no)",
        },
    ],
    sink: |options, output| {
        Box::new(FlameGraph {
            collector: Collector::new(&options),
            options,
            output,
        })
    },
};

/// A frame of less is not even a fifth of a pixel of the default image.
const MIN_WIDTH_PERCENT: f64 = 0.02;

/// Longer lines would run into what stands beside them.
const MAX_TITLE_CHARS: usize = 70;

struct FlameGraph {
    collector: Collector,
    options: ExportOptions,
    output: Output,
}

impl Sink for FlameGraph {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.collector.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let count = self.options.count.unwrap_or(Count::Weight);
        let folded = self.collector.fold(tables, &self.options, count)?;
        let image = draw(&folded, tables, &self.options, count)?;
        self.output.write_all(&image)?;
        self.output.flush()
    }
}

fn draw(
    folded: &Folded,
    tables: &Tables,
    options: &ExportOptions,
    count: Count,
) -> io::Result<Vec<u8>> {
    let title = match &options.title {
        Some(title) => title.clone(),
        None => format!("{} on {}", tables.session.target, tables.session.host),
    };
    let total: u128 = folded.stacks.iter().map(|(_, n)| u128::from(*n)).sum();
    if total == 0 {
        return Ok(empty(&title, &subtitle(folded, tables)));
    }
    // The drawing adds up in 64 bits; only a damaged capture needs the shift.
    let shift = (u128::BITS - total.leading_zeros())
        .saturating_sub(62)
        .min(63);
    let scale = Scale::of(folded, tables, count, total);
    let mut palette = PaletteMap::default();
    let lines = lines(folded, options.reverse, shift, &mut palette);

    let mut image = Options::default();
    image.title = short(&title);
    image.subtitle = Some(subtitle(folded, tables));
    image.count_name = scale.unit.to_owned();
    image.factor = scale.factor * f64::from(shift).exp2();
    image.image_width = options.width_px.map(|width| width as usize);
    image.min_width = options.min_width_percent.unwrap_or(MIN_WIDTH_PERCENT);
    image.palette_map = Some(&mut palette);
    image.bgcolors = Some(BackgroundColor::Grey);
    image.direction = if options.icicle {
        Direction::Inverted
    } else {
        Direction::Straight
    };
    // Takes the lines as they come, last one first. The other modes insist on plain text order,
    // which tears apart frames whose names hold characters below `;`.
    image.flame_chart = true;

    let mut svg = Vec::new();
    flamegraph::from_lines(&mut image, lines.iter().rev().map(String::as_str), &mut svg)?;
    Ok(with_legend(svg))
}

/// Lines for inferno, in order of their frames; fills in the colours.
fn lines(folded: &Folded, reverse: bool, shift: u32, palette: &mut PaletteMap) -> Vec<String> {
    let mut stacks: Vec<(String, u64)> = folded.stacks.clone();
    // The frame below all others has no name; without an entry its colour would be random.
    palette.insert("", colour("", true));
    for (stack, _) in &stacks {
        for (depth, frame) in stack.split(';').enumerate() {
            if depth == 0 && palette.get(frame).is_some() {
                continue;
            }
            palette.insert(frame, colour(frame, depth == 0));
        }
    }
    if reverse {
        for (stack, _) in &mut stacks {
            let frames: Vec<&str> = stack.rsplit(';').collect();
            *stack = frames.join(";");
        }
        stacks.sort_unstable_by(|(a, _), (b, _)| a.split(';').cmp(b.split(';')));
    }
    stacks
        .into_iter()
        .map(|(stack, number)| format!("{stack} {}", number >> shift))
        .collect()
}

/// How numbers are shown.
struct Scale {
    unit: &'static str,
    factor: f64,
}

impl Scale {
    fn of(folded: &Folded, tables: &Tables, count: Count, total: u128) -> Scale {
        let source = folded.source.and_then(|id| tables.sources.get(id));
        let (unit, factor) = match (count, source.map(|source| source.unit)) {
            (Count::Samples, _) => ("samples", 1.0),
            (_, Some(Unit::Nanoseconds)) if total >= 10_000_000_000 => ("ms", 1e-6),
            (_, Some(Unit::Nanoseconds)) => ("µs", 1e-3),
            (_, Some(Unit::Cycles)) => ("cycles", 1.0),
            (_, Some(Unit::Events) | None) => ("events", 1.0),
        };
        Scale { unit, factor }
    }
}

/// What was recorded, and what is missing, in one line.
fn subtitle(folded: &Folded, tables: &Tables) -> String {
    let mut parts = Vec::new();
    let source = folded.source.and_then(|id| tables.sources.get(id));
    let samples = match source {
        Some(source) => {
            let name = name::text(tables.string(source.name));
            match source.frequency_hz {
                Some(hz) => format!("{} samples of {name} at {hz} Hz", folded.samples),
                None => format!("{} samples of {name}", folded.samples),
            }
        }
        None => "no samples".to_owned(),
    };
    let seconds = folded
        .last
        .map_or(0, |last| last.since(tables.session.started)) as f64
        / 1e9;
    parts.push(format!("{samples} in {seconds:.1} s"));
    for (number, what) in [
        (folded.others, "of other sources left out"),
        (folded.lost, "lost"),
        (folded.ends.truncated, "truncated"),
        (folded.ends.unreadable, "with unreadable stacks"),
        (folded.unnamed, "with unnamed frames"),
    ] {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    parts.join(" · ")
}

fn short(title: &str) -> String {
    let title = name::text(title);
    if title.chars().count() <= MAX_TITLE_CHARS {
        return title.into_owned();
    }
    let head: String = title.chars().take(MAX_TITLE_CHARS - 1).collect();
    format!("{head}…")
}

/// Kinds of code as the legend lists them; the process is not code, and grey.
const KINDS: [(&str, [u8; 3]); 5] = [
    ("user", [240, 120, 95]),
    ("inlined", [250, 200, 100]),
    ("kernel", [125, 160, 235]),
    ("JIT", [120, 200, 120]),
    ("no name", [200, 180, 205]),
];
const PROCESS: [u8; 3] = [190, 195, 200];

fn colour(frame: &str, process: bool) -> Color {
    let base = if process {
        PROCESS
    } else if frame.ends_with("_[k]") {
        KINDS[2].1
    } else if frame.ends_with("_[j]") {
        KINDS[3].1
    } else if is_location(frame) {
        KINDS[4].1
    } else if frame.ends_with("_[i]") {
        KINDS[1].1
    } else {
        KINDS[0].1
    };
    // Neighbours of one kind differ a little, and a name keeps its colour from graph to graph.
    let hash = frame.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let shade = |channel: u8, bits: u32| channel - 12 + ((hash >> bits) % 25) as u8;
    Color {
        r: shade(base[0], 4),
        g: shade(base[1], 12),
        b: shade(base[2], 20),
    }
}

/// Whether a frame is `module+0xoffset`.
fn is_location(frame: &str) -> bool {
    frame.rsplit_once("+0x").is_some_and(|(_, offset)| {
        !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Adds the legend to the drawing, left of the title.
fn with_legend(mut svg: Vec<u8>) -> Vec<u8> {
    const END: &[u8] = b"</svg>";
    if let Some(at) = svg.windows(END.len()).rposition(|part| part == END) {
        svg.truncate(at);
        let mut x = 90;
        for (label, [r, g, b]) in KINDS {
            let text = x + 13;
            svg.extend_from_slice(
                format!(
                    "<rect x=\"{x}\" y=\"15\" width=\"10\" height=\"10\" fill=\"rgb({r},{g},{b})\"/>\
                     <text x=\"{text}\" y=\"24\">{label}</text>"
                )
                .as_bytes(),
            );
            x += 22 + 8 * label.len();
        }
        svg.extend_from_slice(END);
    }
    svg
}

/// The image of a recording without samples.
fn empty(title: &str, subtitle: &str) -> Vec<u8> {
    let escape = |text: &str| {
        name::text(text)
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    };
    format!(
        "<?xml version=\"1.0\" standalone=\"no\"?>\
         <svg version=\"1.1\" width=\"1200\" height=\"80\" xmlns=\"http://www.w3.org/2000/svg\">\
         <text x=\"50%\" y=\"24\" text-anchor=\"middle\">{}</text>\
         <text x=\"50%\" y=\"48\" text-anchor=\"middle\">{}</text></svg>\n",
        escape(title),
        escape(subtitle)
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_told_from_names() {
        assert!(is_location("libc.so.6+0x1f"));
        assert!(is_location("[unknown]+0x7ffdeadbeef"));
        assert!(!is_location("operator+0xzz"));
        assert!(!is_location("main"));
        assert!(!is_location("a+0x"));
    }

    #[test]
    fn kinds_have_their_colours() {
        let near = |frame: &str, kind: usize| {
            let colour = colour(frame, false);
            let base = KINDS[kind].1;
            let off = |a: u8, b: u8| a.abs_diff(b) <= 12;
            off(colour.r, base[0]) && off(colour.g, base[1]) && off(colour.b, base[2])
        };
        assert!(near("main", 0) && near("f_[i]", 1) && near("read_[k]", 2));
        assert!(near("render_[j]", 3) && near("libc.so+0x12", 4));
    }
}
