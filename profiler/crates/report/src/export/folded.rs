//! Folded stacks: `process;root;...;leaf number`, one line per distinct stack.
//!
//! Input: events; output: UTF-8 lines in order of their frames. The number is the count of samples,
//! or their weight in the unit of their source. Names are made safe by [`super::name`]; marks are
//! `_[k]` kernel, `_[j]` made at run time, `_[p]` interpreted, `_[i]` inlined, as flame graph tools know them. Source:
//! the format of stackcollapse-perf; docs/formats/folded.md.

use std::io::{self, BufWriter, Write};

use super::collect::{CONTAINERS, Collector, Count, FoldOptions, Folded, SOURCE, THREADS, count};
use super::settings::{Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "folded",
    extensions: &[".folded", ".collapsed"],
    description: "folded stacks, for flame graph tools and text tools",
    shows: Shows::Samples,
    sources: ShownSources::One,
    options: &[&COUNT, &SOURCE, &THREADS, &CONTAINERS],
    sink: |settings, output| Box::new(FoldedSink::new(settings, output)),
    difference: None,
    declared: false,
};

const COUNT: Setting<Count> = count(
    "what the number of a line is: samples, or what they stand for in the unit of their source \
     (default: samples; weight where there are waits)",
);

struct FoldedSink {
    collector: Collector,
    output: BufWriter<Output>,
}

impl FoldedSink {
    fn new(settings: &Settings, output: Output) -> FoldedSink {
        FoldedSink {
            collector: Collector::new(FoldOptions::of(settings, &COUNT)),
            output: BufWriter::new(output),
        }
    }
}

impl Sink for FoldedSink {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.collector.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let count = self.collector.count(tables, Count::Samples)?;
        let folded = self.collector.fold(tables, count)?;
        write_lines(&folded, &mut self.output)?;
        self.output.flush()
    }
}

fn write_lines(folded: &Folded, output: &mut impl Write) -> io::Result<()> {
    for (stack, number) in &folded.stacks {
        writeln!(output, "{stack} {number}")?;
    }
    Ok(())
}
