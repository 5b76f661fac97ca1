//! A flame graph as an SVG that browsers can zoom and search.
//!
//! Input: events; output: one XML document, drawn by `inferno` from the stacks of
//! [`super::collect`]. Widths are weights (CPU time is shown in milli- or microseconds) or counts
//! of samples; image sizes are pixels. The colour tells what kind of code a frame runs; the line
//! below the title tells what the recording lacks. Mapping: docs/formats/flamegraph.md.

mod differential;
mod look;

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};

use super::collect::{
    CONTAINERS, Collector, Count, FoldOptions, Folded, SOURCE, THREADS, by_frames, count,
};
use super::settings::{OptionHelp, Setting, Settings, yes};
use super::{Format, Output, ShownSources, Shows};
use differential::differential;
use look::{colour, empty, short, subtitle, used_kinds, with_legend};
use profiler_model::sorting::InOrder;
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "svg",
    extensions: &[".svg"],
    description: "flame graph for a web browser, with zoom and search",
    shows: Shows::Samples,
    sources: ShownSources::One,
    options: &[
        &COUNT,
        &SOURCE,
        &THREADS,
        &CONTAINERS,
        &TITLE,
        &WIDTH,
        &MIN_WIDTH,
        &ROOT,
        &REVERSE,
    ],
    sink: |settings, output| Box::new(FlameGraph::new(settings, output)),
    difference: Some(differential),
    declared: false,
};

const COUNT: Setting<Count> =
    count("what widths are: samples, or what they stand for, such as CPU time (default: weight)");
const TITLE: Setting<String> = Setting {
    help: OptionHelp {
        name: "title",
        value: "TEXT",
        help: "title (default: the target and the machine)",
    },
    read: |value| Some(value.to_owned()),
};
const WIDTH: Setting<u32> = Setting {
    help: OptionHelp {
        name: "width",
        value: "PIXELS (200 or more)",
        help: "width of the image (default: that of the window)",
    },
    read: |value| value.parse().ok().filter(|width| *width >= MIN_IMAGE_PX),
};
const MIN_WIDTH: Setting<f64> = Setting {
    help: OptionHelp {
        name: "min-width",
        value: "PERCENT (0 to 100)",
        help: "leave out narrower frames (default: 0.02)",
    },
    read: |value| {
        let percent = value.parse().ok();
        percent.filter(|percent| (0.0..=100.0).contains(percent))
    },
};
const ROOT: Setting<Direction> = Setting {
    help: OptionHelp {
        name: "root",
        value: "top|bottom",
        help: "where callers are (default: top, which shows them without scrolling)",
    },
    read: |value| match value {
        "top" => Some(Direction::Inverted),
        "bottom" => Some(Direction::Straight),
        _ => None,
    },
};
const REVERSE: Setting<bool> = Setting {
    help: OptionHelp {
        name: "reverse",
        value: "yes|no",
        help: "merge stacks from the leaf, to show who calls a hot function (default: no)",
    },
    read: yes,
};

/// Narrower images have no room for their own margins.
const MIN_IMAGE_PX: u32 = 200;

/// What was set.
struct Look {
    title: Option<String>,
    /// None: as wide as the window.
    width_px: Option<u32>,
    min_width_percent: f64,
    direction: Direction,
    /// Stacks turned round: leaf first, so that equal leaves merge and show their callers.
    reverse: bool,
    /// Containers are frames, above the process.
    containers: bool,
}

impl Look {
    fn of(settings: &Settings) -> Look {
        Look {
            title: settings.get(&TITLE),
            width_px: settings.get(&WIDTH),
            min_width_percent: settings.get(&MIN_WIDTH).unwrap_or(MIN_WIDTH_PERCENT),
            direction: settings.get(&ROOT).unwrap_or(Direction::Inverted),
            reverse: settings.get(&REVERSE).unwrap_or(false),
            containers: settings.get(&CONTAINERS).unwrap_or(false),
        }
    }
}

/// A quarter of a pixel in an image of 1,200.
const MIN_WIDTH_PERCENT: f64 = 0.02;

struct FlameGraph {
    collector: Collector,
    look: Look,
    output: Output,
}

impl FlameGraph {
    fn new(settings: &Settings, output: Output) -> FlameGraph {
        FlameGraph {
            collector: Collector::new(FoldOptions::of(settings, &COUNT)),
            look: Look::of(settings),
            output,
        }
    }
}

impl Sink for FlameGraph {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.collector.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let mut count = self.collector.count(tables, Count::Weight)?;
        let mut folded = self.collector.fold(tables, count)?;
        if folded.stacks.iter().all(|(_, number)| *number == 0) {
            // Samples without weights still have a place.
            count = Count::Samples;
            folded = self.collector.fold(tables, count)?;
        }
        let image = draw(&folded, tables, &self.look, count)?;
        self.output.write_all(&image)?;
        self.output.flush()
    }
}

fn draw(folded: &Folded, tables: &Tables, look: &Look, count: Count) -> io::Result<Vec<u8>> {
    let title = match &look.title {
        Some(title) => title.clone(),
        None => match (&*tables.session.target, &*tables.session.host) {
            ("", "") => "flame graph".to_owned(),
            (target, "") => target.to_owned(),
            (target, host) => format!("{target} on {host}"),
        },
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
    let lines = lines(folded, look, shift, &mut palette);

    let mut image = image(look);
    image.title = short(&title);
    image.subtitle = Some(subtitle(folded, tables));
    image.count_name = scale.unit.to_owned();
    image.factor = scale.factor * f64::from(shift).exp2();
    image.palette_map = Some(&mut palette);

    let mut svg = Vec::new();
    flamegraph::from_lines(&mut image, lines.iter().rev().map(String::as_str), &mut svg)?;
    let seen: Vec<_> = used_kinds(&folded.stacks, 1 + usize::from(look.containers));
    Ok(with_legend(svg, &seen))
}

/// What holds for all images. Lines must be given in the order of [`lines`], last one first.
fn image<'a>(look: &Look) -> Options<'a> {
    let mut image = Options::default();
    image.image_width = look.width_px.map(|width| width as usize);
    image.min_width = look.min_width_percent;
    image.bgcolors = Some(BackgroundColor::Grey);
    // The head of a name says more than its tail of argument types.
    image.text_truncate_direction = TextTruncateDirection::Right;
    image.direction = look.direction;
    // Takes the lines as they come, last one first. The other modes insist on plain text order,
    // which tears apart frames whose names hold characters below `;`.
    image.flame_chart = true;
    image
}

/// Lines for inferno, in order of their frames; fills in the colours.
fn lines(folded: &Folded, look: &Look, shift: u32, palette: &mut PaletteMap) -> Vec<String> {
    // Frames that are no code: the container, the process.
    let owners = 1 + usize::from(look.containers);
    let mut stacks: Vec<(String, u64)> = folded.stacks.clone();
    // The frame below all others has no name; without an entry its colour would be random.
    palette.insert("", colour("", true));
    for (stack, _) in &stacks {
        for (depth, frame) in stack.split(';').enumerate() {
            if depth < owners && palette.get(frame).is_some() {
                continue;
            }
            palette.insert(frame, colour(frame, depth < owners));
        }
    }
    if look.reverse {
        for (stack, _) in &mut stacks {
            let frames: Vec<&str> = stack.rsplit(';').collect();
            *stack = frames.join(";");
        }
        stacks.order_by(|(a, _), (b, _)| by_frames(a, b));
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
        let (unit, factor) = match (count, folded.sources.unit(tables)) {
            (Count::Samples, _) => ("samples", 1.0),
            (_, Some(Unit::Nanoseconds)) if total >= 10_000_000_000 => ("ms", 1e-6),
            (_, Some(Unit::Nanoseconds)) => ("µs", 1e-3),
            (_, Some(Unit::Cycles)) => ("cycles", 1.0),
            (_, Some(Unit::Events) | None) => ("events", 1.0),
        };
        Scale { unit, factor }
    }
}
