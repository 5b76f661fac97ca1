//! The head of a text report: what was recorded, and what is missing, each in one honest line.
//!
//! Input: [`Header`]; output: lines with a label of fixed width.

use profiler_model::Unit;
use std::io::{self, Write};

use super::data::{Header, SourceRow};
use crate::derive::{CUT_OFF, OFF_CPU, WALL};
use crate::view::losses;
use crate::view::quantity::{count, date_utc, duration, percent, percent_of, plural, short_count};
use crate::view::table::cut;
use crate::view::term::{Paint, Style};
use profiler_model::text::printable;

const LABEL: usize = 10;
/// More markers than this are only counted.
const MARKS: usize = 5;

pub(super) struct Head<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) paint: Paint,
    pub(super) width: Option<usize>,
    /// Of calls something is missing, which is said with them.
    pub(super) misses_calls: bool,
}

impl Head<'_> {
    pub(super) fn write(&mut self, header: &Header) -> io::Result<()> {
        self.recorded(header)?;
        if !header.complete {
            self.line("Complete", &format!("no: {CUT_OFF}"))?;
        }
        self.line("Target", &header.target)?;
        if !header.command.is_empty() {
            self.line("Command", &header.command.join(" "))?;
        }
        if header.is_part {
            let (from, to) = (duration(header.from_ns), duration(header.to_ns));
            self.line("Part", &format!("{from} to {to} of the recording"))?;
        }
        self.sources(header)?;
        self.lost(header)?;
        if header.samples > 0 {
            self.stacks(header)?;
            self.names(header)?;
            self.kinds(header)?;
        }
        self.marks(header)
    }

    /// A labelled line; long ones are folded at words to the width.
    pub(super) fn line(&mut self, label: &str, text: &str) -> io::Result<()> {
        self.styled(label, text, Style::Plain)
    }

    fn styled(&mut self, label: &str, text: &str, style: Style) -> io::Result<()> {
        let text = printable(text);
        let room = self
            .width
            .map_or(usize::MAX, |w| w.saturating_sub(LABEL).max(20));
        let mut label = label;
        for line in fold(&text, room) {
            self.paint
                .write(self.out, Style::Dim, &format!("{label:LABEL$}"))?;
            self.paint.write(self.out, style, &cut(&line, room))?;
            writeln!(self.out)?;
            label = "";
        }
        Ok(())
    }

    fn recorded(&mut self, header: &Header) -> io::Result<()> {
        let mut text = String::new();
        if let Some(at) = header.started_realtime_ns {
            text += &format!("{} UTC, ", date_utc(at));
        }
        text += &duration(header.to_ns.saturating_sub(header.from_ns));
        if !header.host.is_empty() {
            text += &format!(
                ", on {} (Linux {}, {}, {})",
                header.host,
                header.kernel,
                header.arch,
                plural(header.cpus.into(), "CPU")
            );
        }
        self.line("Recorded", &text)
    }

    fn sources(&mut self, header: &Header) -> io::Result<()> {
        if header.sources.is_empty() {
            return self.line("Samples", "none");
        }
        let (shown, others): (Vec<_>, Vec<_>) = header.sources.iter().partition(|s| s.shown);
        let is_wall = header.profile.as_deref() == Some(WALL);
        // Several where one was recorded at several rates.
        let several = shown.len() > 1;
        let main = shown.first().copied();
        let mut label = "Samples";
        for source in shown.into_iter().chain(others) {
            let mut text = source.name.clone();
            if let Some(hz) = source.frequency_hz {
                text += &format!(" at {} Hz", count(hz));
            } else if let Some(period) = source.period {
                text += &match (period, source.unit) {
                    (1, Unit::Events) => ", each event".to_owned(),
                    _ => format!(" every {}", weight(period, source)),
                };
            }
            text += &match source.name.as_str() {
                OFF_CPU => format!(": {} recorded", plural(source.samples, "wait")),
                _ => format!(": {}", plural(source.samples, "sample")),
            };
            text += &format!(", {}", weight_in_words(source.weight, source));
            if !source.shown {
                text += &format!(" (not shown; --source {})", source.name);
            } else if !is_wall && !several && source.samples != header.samples {
                text += &format!(
                    "; selected {}, {}",
                    plural(header.samples, "sample"),
                    weight_in_words(header.weight, source)
                );
            }
            self.line(label, &text)?;
            label = "";
        }
        if is_wall {
            let running = header.weight.saturating_sub(header.wait_weight);
            let text = format!(
                "shown together: {} on-CPU, {} off-CPU",
                duration(running),
                duration(header.wait_weight)
            );
            self.line("", &text)?;
        } else if let Some(source) = main.filter(|_| several) {
            let samples = plural(header.samples, "sample");
            let weight = weight_in_words(header.weight, source);
            self.line("", &format!("shown together: {samples}, {weight}"))?;
        }
        Ok(())
    }

    fn lost(&mut self, header: &Header) -> io::Result<()> {
        let sources = header.sources.iter();
        // Waits are not seen by ticks.
        let ticked = sources.filter(|source| source.name != OFF_CPU);
        let samples = ticked.map(|source| source.samples).sum();
        let lost = header.lost.iter().map(|row| (row.reason, row.count));
        match losses::text(&lost.collect(), samples) {
            Some(text) => self.styled("Lost", &text, Style::Warm),
            // Calls that were never seen can't be counted.
            None if self.misses_calls => self.line("Lost", "no samples"),
            None => self.line("Lost", "nothing"),
        }
    }

    fn stacks(&mut self, header: &Header) -> io::Result<()> {
        let stacks = &header.stacks;
        let mut parts = Vec::new();
        for (samples, what) in [
            (stacks.truncated, "cut at the limit of frames"),
            (stacks.left_out, "lack their middle (too deep)"),
            (
                stacks.frame_pointer,
                "end with the frame pointers (frames may be missing)",
            ),
            (stacks.unreadable, "end in unreadable memory"),
            (stacks.no_rule, "end in code without unwind rules"),
            (
                stacks.no_table,
                "end in code whose unwind table was not loaded in time",
            ),
            (stacks.jit, "end in run-time code"),
            (stacks.no_mapping, "end in no known mapping"),
            (stacks.leaf_only, "were recorded without callers"),
            (
                stacks.not_said,
                "not known to be complete (what was imported does not say it)",
            ),
            (stacks.none, "have no frames"),
        ] {
            if samples > 0 {
                let share = percent(percent_of(samples, header.samples));
                parts.push(format!("{share} {what}"));
            }
        }
        let text = match parts.is_empty() {
            true => "all complete".to_owned(),
            false => parts.join(", "),
        };
        self.line("Stacks", &text)
    }

    fn names(&mut self, header: &Header) -> io::Result<()> {
        let unnamed = &header.unnamed;
        let text = match unnamed.samples {
            0 => "all frames have one".to_owned(),
            samples => format!(
                "{} of frames have none; they are in {} of samples",
                percent(percent_of(unnamed.frames, unnamed.all_frames)),
                percent(percent_of(samples, header.samples)),
            ),
        };
        self.line("Names", &text)
    }

    /// What runs beside plain native code and the kernel.
    fn kinds(&mut self, header: &Header) -> io::Result<()> {
        let is_plain = |kind| matches!(kind, "native" | "inlined" | "kernel");
        if header.kinds.iter().all(|row| is_plain(row.kind)) {
            return Ok(());
        }
        let parts: Vec<String> = (header.kinds.iter())
            .map(|row| {
                let kind = match row.kind {
                    "jit" => "JIT",
                    kind => kind,
                };
                format!("{kind} {}", percent(row.percent))
            })
            .collect();
        self.line("Code", &format!("in the stacks: {}", parts.join(", ")))
    }

    fn marks(&mut self, header: &Header) -> io::Result<()> {
        let mut label = "Marks";
        for mark in header.marks.iter().take(MARKS) {
            self.line(label, &format!("{}  {}", duration(mark.at_ns), mark.text))?;
            label = "";
        }
        match header.mark_count.saturating_sub(MARKS as u64) {
            0 => Ok(()),
            more => self.line("", &format!("… {} more", count(more))),
        }
    }
}

fn weight(value: u64, source: &SourceRow) -> String {
    match source.unit {
        Unit::Nanoseconds => duration(value),
        unit => format!("{} {}", short_count(value), unit.name()),
    }
}

fn weight_in_words(value: u64, source: &SourceRow) -> String {
    match source.unit {
        Unit::Nanoseconds if source.name == OFF_CPU => format!("{} off-CPU", duration(value)),
        Unit::Nanoseconds => format!("{} of CPU time", duration(value)),
        unit => format!("{} {}", short_count(value), unit.name()),
    }
}

/// `text` in lines of at most `room` characters, broken at blanks.
pub(super) fn fold(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            lines.push(String::new());
            used = 0;
        }
        let Some(line) = lines.last_mut() else {
            break;
        };
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn long_lines_fold_at_words() {
        assert_eq!(fold("one two three", 8), ["one two", "three"]);
        assert_eq!(fold("unbreakable", 4), ["unbreakable"]);
        assert_eq!(fold("", 4), [""]);
    }
}
