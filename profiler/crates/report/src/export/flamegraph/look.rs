//! How a flame graph looks: colours, legend, the lines at its top.
//!
//! Input: names of frames, facts about the recording; output: colours and pieces of SVG.

use inferno::flamegraph::color::Color;

use super::super::collect::Folded;
use super::super::name;
use crate::derive::{Losses, wait_frame};
use profiler_model::*;

/// Longer titles would run into what stands beside them.
const MAX_TITLE_CHARS: usize = 70;

/// Characters of a subtitle that an image has room for.
const MAX_SUBTITLE_CHARS: usize = 165;

/// What was recorded, and what is missing, in one line.
pub(super) fn subtitle(folded: &Folded, tables: &Tables) -> String {
    let mut parts = Vec::new();
    let source = folded.sources.main.and_then(|id| tables.sources.get(id));
    let waits = || {
        let seconds = folded.waits_ns as f64 / 1e9;
        format!("{} ({seconds:.1} s)", plural(folded.waits, "wait"))
    };
    let samples = match source {
        Some(_) if folded.sources.is_waits(tables) => waits(),
        Some(source) => {
            let name = name::text(tables.string(source.name));
            let samples = plural(folded.samples, "sample");
            // Captures that were merged may have had it at several rates.
            let all = tables.sources.iter();
            let same = all.filter(|(_, it)| (it.name, it.unit) == (source.name, source.unit));
            let rates: Vec<String> = same
                .filter_map(|(_, it)| Some(it.frequency_hz?.to_string()))
                .collect();
            let mut text = match rates.is_empty() {
                true => format!("{samples} of {name}"),
                false => format!("{samples} of {name} at {} Hz", rates.join(" and ")),
            };
            if folded.sources.is_wall() {
                text += &format!(" and {}", waits());
            }
            text
        }
        None => "no samples".to_owned(),
    };
    let about = &folded.about;
    let seconds = about.last().since(tables.session.started) as f64 / 1e9;
    parts.push(format!("{samples} in {seconds:.1} s"));
    if folded.others > 0 {
        parts.push(format!("{} of other sources left out", folded.others));
    }
    if tables.is_cut_off {
        parts.push("not finished, the end may be missing".to_owned());
    }
    parts.extend(lost(about.losses()));
    if about.gaps() > 0 {
        parts.push(format!("calls missing in {}", plural(about.gaps(), "gap")));
    }
    if about.unwatched() > 0 {
        let calls = plural(about.unwatched(), "call");
        parts.push(format!("{calls} not watched to their end"));
    }
    let mut stacks = Vec::new();
    let ended = |ends: &[StackEnd]| -> u64 { ends.iter().map(|end| folded.ends.of(*end)).sum() };
    for (ends, what) in [
        (&[StackEnd::Truncated, StackEnd::LeftOut][..], "truncated"),
        (
            &[StackEnd::BadMemory, StackEnd::Unknown],
            "with unreadable stacks",
        ),
        (
            &[
                StackEnd::NoRule,
                StackEnd::NoTable,
                StackEnd::NoMapping,
                StackEnd::Jit,
                StackEnd::LeafOnly,
            ],
            "not walked to the end",
        ),
    ] {
        stacks.push((ended(ends), what));
    }
    let unnamed = (folded.unnamed, "with unnamed frames");
    let with = |stacks: &[(u64, &str)]| {
        let some = stacks.iter().chain([&unnamed]);
        let some = some.filter(|(number, _)| *number > 0);
        let some = some.map(|(number, what)| format!("{number} {what}"));
        let all: Vec<String> = parts.iter().cloned().chain(some).collect();
        all.join(" · ")
    };
    let line = with(&stacks);
    if line.chars().count() <= MAX_SUBTITLE_CHARS {
        return line;
    }
    let cut = stacks.iter().map(|(number, _)| number).sum();
    with(&[(cut, "with stacks cut short")])
}

/// What is missing, by kind; none if nothing is.
fn lost(losses: &Losses) -> Option<String> {
    let kinds = [
        (LostKind::Samples, "sample"),
        (LostKind::Waits, "wait"),
        (LostKind::Calls, "call"),
        (LostKind::Events, "other event"),
    ];
    let counts = kinds.map(|(kind, what)| (losses.of_kind(kind), what));
    let counts = counts.iter().filter(|(number, _)| *number > 0);
    let counts: Vec<String> = counts.map(|(number, what)| plural(*number, what)).collect();
    (!counts.is_empty()).then(|| format!("lost: {}", counts.join(", ")))
}

fn plural(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// A title that has room.
pub(super) fn short(title: &str) -> String {
    let title = name::text(title);
    if title.chars().count() <= MAX_TITLE_CHARS {
        return title.into_owned();
    }
    let head: String = title.chars().take(MAX_TITLE_CHARS - 1).collect();
    format!("{head}…")
}

/// Kinds of code as the legend lists them; the process is not code, and grey.
const KINDS: [(&str, [u8; 3]); 7] = [
    ("user", [240, 120, 95]),
    ("inlined", [250, 200, 100]),
    ("kernel", [125, 160, 235]),
    ("JIT", [120, 200, 120]),
    ("no name", [200, 180, 205]),
    ("interpreted", [95, 200, 195]),
    ("off-CPU", [150, 130, 220]),
];
const PROCESS: [u8; 3] = [190, 195, 200];

/// The colour of a frame, by what kind of code its mark and its name say it is.
pub(super) fn colour(frame: &str, process: bool) -> Color {
    let base = match kind(frame) {
        _ if process => PROCESS,
        kind => KINDS[kind].1,
    };
    // Neighbours of one kind differ a little, and a name keeps its colour from graph to graph.
    let hash = frame.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let shade = |channel: u8, bits: u32| (channel - 12).saturating_add(((hash >> bits) % 25) as u8);
    Color {
        r: shade(base[0], 4),
        g: shade(base[1], 12),
        b: shade(base[2], 20),
    }
}

/// The kind of code, as an index of [`KINDS`].
fn kind(frame: &str) -> usize {
    if is_wait(frame) {
        6
    } else if frame.ends_with("_[k]") {
        2
    } else if frame.ends_with("_[j]") {
        3
    } else if frame.ends_with("_[p]") {
        5
    } else if is_location(frame) {
        4
    } else if frame.ends_with("_[i]") {
        1
    } else {
        0
    }
}

/// Whether a frame is what a thread waited for.
fn is_wait(frame: &str) -> bool {
    let states = (0..).map_while(WaitState::from_code);
    frame.starts_with('[') && states.map(wait_frame).any(|name| name == frame)
}

/// What the legend must tell: the kinds that always can be met, and of the others those that are.
pub(super) fn used_kinds(stacks: &[(String, u64)], owners: usize) -> Vec<(&'static str, [u8; 3])> {
    let mut used = [true, true, true, true, true, false, false];
    for (stack, _) in stacks {
        for frame in stack.split(';').skip(owners) {
            used[kind(frame)] = true;
        }
    }
    let kinds = KINDS.into_iter().zip(used);
    kinds
        .filter_map(|(kind, used)| used.then_some(kind))
        .collect()
}

/// Whether a frame is `module+0xaddress`.
fn is_location(frame: &str) -> bool {
    frame.rsplit_once("+0x").is_some_and(|(_, offset)| {
        !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Adds a legend to the drawing, below its title and what stands under that.
pub(super) fn with_legend(mut svg: Vec<u8>, legend: &[(&str, [u8; 3])]) -> Vec<u8> {
    const END: &[u8] = b"</svg>";
    if let Some(at) = svg.windows(END.len()).rposition(|part| part == END) {
        svg.truncate(at);
        let mut x = 10;
        for (label, [r, g, b]) in legend {
            let text = x + 13;
            svg.extend_from_slice(
                format!(
                    "<rect x=\"{x}\" y=\"56\" width=\"10\" height=\"10\" fill=\"rgb({r},{g},{b})\"/>\
                     <text x=\"{text}\" y=\"65\">{label}</text>"
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
pub(super) fn empty(title: &str, subtitle: &str) -> Vec<u8> {
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
    use crate::derive::Sources;

    #[test]
    fn a_subtitle_says_all_rates_of_a_source() {
        let mut tables = Tables::default();
        let name = tables.intern_string("cpu-clock").0;
        let mut ids = [99, 199].map(|hz| {
            let source = Source {
                name,
                unit: Unit::Nanoseconds,
                frequency_hz: Some(hz),
                period: None,
            };
            tables.sources.intern(source).0
        });
        ids.reverse();
        let folded = Folded {
            samples: 184,
            sources: Sources {
                main: Some(ids[0]),
                waits: None,
            },
            ..Folded::default()
        };
        let said = "184 samples of cpu-clock at 99 and 199 Hz in 0.0 s";
        assert_eq!(subtitle(&folded, &tables), said);
    }

    #[test]
    fn a_subtitle_says_what_is_missing_and_has_room() {
        let losses = [
            (LostReason::UnwrittenSamples, 3_000),
            (LostReason::Skipped, 1),
            (LostReason::UnwrittenWaits, 1),
            (LostReason::Unwritten, 240),
        ];
        let mut folded = Folded {
            samples: 1,
            ..Folded::default()
        };
        let (from, to) = (Timestamp(0), Timestamp(2_000_000_000));
        for (reason, count) in losses {
            folded.about.event(&Event::Lost(Lost {
                cpu: None,
                from,
                to,
                count,
                reason,
            }));
        }
        let mut tables = Tables::default();
        let lost = "no samples in 2.0 s · lost: 3001 samples, 1 wait, 240 other events";
        assert_eq!(subtitle(&folded, &tables), lost);
        let without = folded.about.clone();
        for _ in 0..12 {
            folded.about.event(&Event::Gap(Gap {
                from,
                to,
                function: None,
                process: None,
                reason: GapReason::DutyCycle,
            }));
        }
        let said = format!("{lost} · calls missing in 12 gaps");
        assert_eq!(subtitle(&folded, &tables), said);
        folded.about = without;
        tables.is_cut_off = true;
        let said = lost.replacen("· lost", "· not finished, the end may be missing · lost", 1);
        assert_eq!(subtitle(&folded, &tables), said);
        tables.is_cut_off = false;
        let ends = [
            (StackEnd::Truncated, 1_000_000),
            (StackEnd::BadMemory, 1_000_000),
            (StackEnd::NoTable, 5_000_000),
        ];
        folded.ends = ends.into_iter().collect();
        folded.unnamed = 1_000_000;
        let said = subtitle(&folded, &tables);
        let cut = format!("{lost} · 7000000 with stacks cut short · 1000000 with unnamed frames");
        assert_eq!(said, cut);
    }

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
        assert!(near("main_[p]", 5) && near("[sleeping]", 6) && near("[disk]", 6));
    }

    #[test]
    fn every_name_has_a_colour_near_its_kind() {
        // The brightest kind has no room for the brightest shades.
        for number in 0..1000 {
            let colour = colour(&format!("f{number}_[i]"), false);
            assert!(
                colour.r.abs_diff(KINDS[1].1[0]) <= 12,
                "{number}: {colour:?}"
            );
        }
    }
}
