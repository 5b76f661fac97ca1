//! Why user stacks end too early, as text.
//!
//! Input: [`EndReport`](super::data::EndReport); output: a line, and a table of reasons and modules.

use std::io;

use super::short_name;
use super::text::Writer;
use crate::view::quantity::{count, percent, plural};
use crate::view::table::{Align, Cell, Table};
use crate::view::term::Style;
use profiler_model::StackEnd;

impl Writer<'_> {
    pub(super) fn ends(&mut self) -> io::Result<()> {
        let Some(ends) = &self.report.ends else {
            return Ok(());
        };
        let shown = ends.early.len().min(self.limit());
        self.title("Where user stacks end too early", shown, ends.early.len())?;
        if ends.not_said > 0 {
            writeln!(
                self.out,
                "{} with a user stack of which it is {}",
                plural(ends.not_said, "sample"),
                StackEnd::NotSaid.phrase()
            )?;
        }
        if ends.samples == 0 {
            return match ends.not_said {
                0 => writeln!(self.out, "No sample has a user stack."),
                _ => Ok(()),
            };
        }
        let complete = match ends.complete {
            0 => "none of them complete".to_owned(),
            all if all == ends.samples => "all of them complete".to_owned(),
            _ => format!("{} of them complete", percent(ends.complete_percent)),
        };
        writeln!(
            self.out,
            "{} with a user stack, {complete}",
            plural(ends.samples, "sample")
        )?;
        if shown == 0 {
            return Ok(());
        }
        let mut table = Table::new(&[
            ("share", Align::Right),
            (self.weight_title(), Align::Right),
            ("samples", Align::Right),
            ("why", Align::Left),
            ("module", Align::Left),
            ("outermost frame, mostly", Align::Minor),
        ]);
        for row in &ends.early[..shown] {
            table.row([
                Cell::styled(percent(row.percent), Style::of_share(row.percent)),
                Cell::new(self.weight(row.weight)),
                Cell::new(count(row.samples)),
                Cell::new(row.end.phrase()),
                Cell::new(match row.module.module.as_str() {
                    "" => "[unknown]",
                    path => short_name(path),
                }),
                Cell::styled(row.outermost.clone(), Style::Dim),
            ]);
        }
        self.print(&table)
    }
}
