//! Go execution traces: the recording as if a Go program had made it.
//!
//! Input: events; output: the text of Go's `internal/trace/raw`, or the wire form that
//! `go tool trace` opens. Times are nanoseconds of CLOCK_MONOTONIC. A thread is an M and a G, and
//! has a P to itself from its first event to its end, and is off it while it waits, if the recording
//! has waits; processes are tasks; traced calls are regions;
//! markers, renames, gaps and facts about the recording are logs. Written in generations, so that memory stays bounded.
//! Mapping and what it loses: docs/formats/go-trace.md.
//!
//! What does not belong here: the layout of events (see [`wire::go_trace`](profiler_wire::go_trace)).

mod regions;
mod schedule;
mod stream;
mod trace;
mod waits;

use std::io;

use super::about::About;
use super::collect::{SOURCE, choose, is_first};
use super::notes::{gap_text, lost_text, throw_text};
use super::settings::{Declared, OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::is_same;
use profiler_model::*;
use profiler_wire::go_trace::{Encoding, Version};
use regions::{CallCounts, Regions};
use schedule::Schedule;
use trace::Trace;

const VERSION: Setting<Version> = Setting {
    help: OptionHelp {
        name: "version",
        value: "22|23|25|26",
        help: "the Go release whose format is written: 1.22 and so on (default: 22, which all later \
               ones read)",
    },
    read: |value| Version::from_minor(value.strip_prefix("1.").unwrap_or(value).parse().ok()?),
};
const GENERATION: Setting<u64> = Setting {
    help: OptionHelp {
        name: "generation",
        value: "NUMBER (1 or more)",
        help: "events in one part of the trace; readers hold a part in memory (default: 200000)",
    },
    read: |value| value.parse().ok().filter(|number| *number > 0),
};

const OPTIONS: &[&dyn Declared] = &[&VERSION, &GENERATION, &SOURCE];

pub(super) const TEXT: Format = Format {
    name: "go-trace",
    extensions: &[".gotrace", ".go.txt"],
    description: "Go execution trace as text, for internal/trace/raw",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: OPTIONS,
    sink: |settings, output| Box::new(GoTrace::new(settings, output, Encoding::Text)),
    difference: None,
    declared: false,
};

pub(super) const WIRE: Format = Format {
    name: "go-trace-wire",
    extensions: &[".trace", ".go.trace"],
    description: "Go execution trace for `go tool trace` and gotraceui",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: OPTIONS,
    sink: |settings, output| Box::new(GoTrace::new(settings, output, Encoding::Wire)),
    difference: None,
    declared: false,
};

/// Readers hold one generation in memory, and show nothing of it before they have it all.
const GENERATION_EVENTS: u64 = 200_000;

/// Times beyond this are damage; readers take them as signed.
const LATEST: u64 = 1 << 62;

struct GoTrace {
    /// The event source whose samples are wanted; none: that of the first sample.
    wanted: Option<String>,
    /// Events in one generation.
    most: u64,
    trace: Trace,
    schedule: Option<Schedule>,
    /// Time of the latest event; events never go back before it.
    now: u64,
    source: Option<SourceId>,
    /// Events in this generation.
    events: u64,
    counts: Counts,
    about: About,
    regions: Regions,
    /// Threads that ended now: the ends of their calls come at the same time.
    exits: Vec<(ThreadId, u64)>,
}

/// What the summary at the end says.
#[derive(Default)]
struct Counts {
    samples: u64,
    others: u64,
    /// Samples of threads that are not defined.
    late: u64,
    /// Samples and waits with a frame that has no name.
    unnamed: u64,
    /// Waits that are shown.
    waits: u64,
    /// Waits too short to be shown.
    short: u64,
    /// Waits that others stand for.
    not_recorded: u64,
}

impl GoTrace {
    fn new(settings: &Settings, output: Output, encoding: Encoding) -> GoTrace {
        let version = settings.get(&VERSION).unwrap_or_default();
        GoTrace {
            wanted: settings.get(&SOURCE),
            most: settings.get(&GENERATION).unwrap_or(GENERATION_EVENTS),
            trace: Trace::new(output, version, encoding),
            schedule: None,
            now: 0,
            source: None,
            events: 0,
            counts: Counts::default(),
            about: About::default(),
            regions: Regions::default(),
            exits: Vec::new(),
        }
    }

    /// The schedule, begun at the first event if it is not yet.
    fn begun(&mut self, tables: &Tables) -> io::Result<(&mut Trace, &mut Schedule)> {
        let (trace, schedule, _) = self.all(tables)?;
        Ok((trace, schedule))
    }

    fn all(&mut self, tables: &Tables) -> io::Result<(&mut Trace, &mut Schedule, &mut Regions)> {
        if self.schedule.is_none() {
            let started = tables.session.started.0;
            let start = match (started, self.now) {
                (0, now) => now.max(1),
                (started, 0) => started.min(LATEST),
                (started, now) => started.min(now),
            };
            self.now = self.now.max(start);
            self.trace.begin(start)?;
            let mut schedule = Schedule::begin(&mut self.trace, tables)?;
            for (key, value) in facts(&tables.session) {
                schedule.log(&mut self.trace, start, 0, key, &value)?;
            }
            self.schedule = Some(schedule);
        }
        let schedule = self.schedule.as_mut();
        let schedule = schedule.ok_or_else(|| io::Error::other("the trace has not begun"))?;
        Ok((&mut self.trace, schedule, &mut self.regions))
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) -> io::Result<()> {
        if let Some(wait) = &sample.wait {
            return self.wait(sample, wait, tables);
        }
        let first = self.source.is_none();
        if first && is_first(self.wanted.as_deref(), sample, tables) {
            self.source = Some(sample.source);
        }
        let is_it = |source| is_same(source, sample.source, tables);
        if !self.source.is_some_and(is_it) {
            self.counts.others += 1;
            return Ok(());
        }
        let now = self.now;
        let (trace, schedule) = self.begun(tables)?;
        let thread = StackOwner::Thread(sample.thread);
        // Before the log, which would have it begin behind the sample.
        let context = schedule.running(trace, thread, now, tables)?;
        if first {
            schedule.log(trace, now, 0, "source", &source_text(sample.source, tables))?;
        }
        let Some(context) = context.or_else(|| schedule.ran_on(thread, tables)) else {
            self.counts.late += 1;
            return Ok(());
        };
        trace.sample(now, context, sample.kernel, sample.user, tables)?;
        let unnamed = trace.is_unnamed(sample.kernel, sample.user);
        self.counts.samples += 1;
        self.counts.unnamed += u64::from(unnamed);
        Ok(())
    }

    fn wait(&mut self, sample: &Sample, wait: &Wait, tables: &Tables) -> io::Result<()> {
        let (trace, schedule) = self.begun(tables)?;
        let shown = schedule.waited(trace, sample, wait, tables)?;
        let unnamed = shown && trace.is_unnamed(sample.kernel, sample.user);
        let counts = &mut self.counts;
        counts.unnamed += u64::from(unnamed);
        counts.waits += u64::from(shown);
        counts.short += u64::from(!shown);
        counts.not_recorded += u64::from(wait.count.saturating_sub(1));
        Ok(())
    }

    fn process(&mut self, event: &ProcessEvent, tables: &Tables) -> io::Result<()> {
        let now = self.now;
        if event.change == ProcessChange::Exited {
            self.exits.push((event.thread, event.at.0));
            return Ok(());
        }
        let thread = StackOwner::Thread(event.thread);
        let (trace, schedule) = self.begun(tables)?;
        if matches!(event.change, ProcessChange::Executed(_)) {
            schedule.revive(thread);
        }
        schedule.running(trace, thread, now, tables)?;
        let (key, name) = match event.change {
            ProcessChange::Executed(name) => ("executed", name),
            ProcessChange::Renamed(name) => ("renamed", name),
            ProcessChange::Started | ProcessChange::Exited => return Ok(()),
        };
        let tid = tables.thread(event.thread).map_or(0, |thread| thread.tid.0);
        let text = format!("thread {tid} is now {}", tables.string(name));
        let task = schedule.task_of(thread, tables);
        schedule.log(trace, now, task, key, &text)
    }

    /// Ends the threads that ended before `now`.
    fn exit_until(&mut self, now: u64, tables: &Tables) -> io::Result<()> {
        let due = self.exits.partition_point(|(_, at)| *at < now);
        let exits: Vec<_> = self.exits.drain(..due).collect();
        for (thread, at) in exits {
            let at = at.clamp(1, LATEST);
            let (trace, schedule, regions) = self.all(tables)?;
            let mut over = schedule.goroutines_of(thread, tables);
            over.push(StackOwner::Thread(thread));
            for owner in over {
                regions.settle(trace, schedule, owner, tables)?;
                schedule.exit(trace, owner, at, tables)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        let now = self.now;
        match event {
            Event::Sample(sample) => self.sample(sample, tables),
            Event::Process(event) => self.process(event, tables),
            Event::Mark(mark) => {
                let (trace, schedule) = self.begun(tables)?;
                schedule.log(trace, now, 0, "mark", tables.string(mark.text))
            }
            Event::Clock(clock) => {
                let (trace, _) = self.begun(tables)?;
                trace.set_clock(clock);
                Ok(())
            }
            Event::Call(call) => {
                let (trace, schedule, regions) = self.all(tables)?;
                regions.call(trace, schedule, call, now, tables)
            }
            Event::Throw(throw) => {
                let (trace, schedule, regions) = self.all(tables)?;
                let text = throw_text(throw, tables);
                regions.log(
                    trace,
                    schedule,
                    StackOwner::Thread(throw.thread),
                    now,
                    "throw".into(),
                    text,
                    tables,
                )
            }
            Event::CallCount(count) => {
                let counts = &mut self.regions.counts;
                counts.counted = counts.counted.saturating_add(count.entries);
                counts.left_out = counts.left_out.saturating_add(count.left_out);
                Ok(())
            }
            Event::Waits(_) => Ok(()),
            Event::Gap(gap) => {
                let (trace, schedule) = self.begun(tables)?;
                schedule.log(trace, now, 0, "gap", &gap_text(gap, tables))
            }
            Event::Lost(lost) => {
                let (trace, schedule) = self.begun(tables)?;
                schedule.log(trace, now, 0, "lost", &lost_text(lost))
            }
        }
    }
}

impl Sink for GoTrace {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        self.now = self.now.max(event.at().0.clamp(1, LATEST));
        self.exit_until(event.at().0, tables)?;
        self.take(event, tables)?;
        self.events += 1;
        if (self.events >= self.most || self.trace.is_full())
            && let Some(schedule) = &mut self.schedule
        {
            self.events = 0;
            let regions = &mut self.regions;
            regions.settle_all(&mut self.trace, schedule, tables)?;
            self.now = schedule.next_generation(&mut self.trace, self.now)?;
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        if self.wanted.is_some() {
            choose(&[], self.wanted.as_deref(), tables)?;
        }
        self.exit_until(u64::MAX, tables)?;
        let cut = self.trace.cut_stacks();
        let Counts {
            samples,
            others,
            late,
            unnamed,
            waits,
            short,
            not_recorded,
        } = self.counts;
        let losses = self.about.losses();
        let lost = losses.samples();
        let summary = format!(
            "{samples} samples; {lost} lost, {others} of other sources left out, {late} of unknown threads left out, \
             {cut} stacks cut to what a trace can hold"
        );
        let now = self.now;
        let lost = (losses.of(LostReason::CallRingFull))
            .saturating_add(losses.of(LostReason::UnwrittenCalls));
        let at_least = match self.about.hides_calls() {
            true => "at least ",
            false => "",
        };
        let notes = self.about.notes_in_time(tables, unnamed);
        let (trace, schedule, regions) = self.all(tables)?;
        regions.settle_all(trace, schedule, tables)?;
        schedule.log(trace, now, 0, "summary", &summary)?;
        for note in notes {
            schedule.log(trace, now, 0, "note", &note)?;
        }
        if not_recorded > 0 {
            log::warn!(
                "{not_recorded} waits were not recorded one by one, because there were too many: where they were, \
                 threads seem to run on"
            );
        }
        if waits + short > 0 {
            let summary = format!(
                "{waits} waits; {short} too short to be shown, {not_recorded} not recorded one by \
                 one: there threads seem to run on"
            );
            schedule.log(trace, now, 0, "waits", &summary)?;
        }
        let open = schedule.open_regions();
        let CallCounts {
            calls,
            unmatched,
            shortened,
            counted,
            left_out,
        } = regions.counts;
        if calls > 0 || counted > 0 || open > 0 {
            let summary = format!(
                "{at_least}{calls} calls ended, {open} open at the end; {counted} counted by the kernel; \
                 {lost} records lost, {left_out} calls left out by limits, {unmatched} ends \
                 without a begin, {shortened} regions begin later than their calls"
            );
            schedule.log(trace, now, 0, "calls", &summary)?;
        }
        schedule.finish(trace, now)?;
        self.trace.finish()
    }
}

fn facts(session: &Session) -> Vec<(&'static str, String)> {
    vec![
        ("profiler", session.version.clone()),
        ("host", session.host.clone()),
        ("kernel", format!("{} {}", session.kernel, session.arch)),
        ("target", session.target.clone()),
        ("command", session.command.join(" ")),
    ]
}

fn source_text(id: SourceId, tables: &Tables) -> String {
    let source = tables.sources.get(id);
    let name = source.map_or("unknown", |source| tables.string(source.name));
    match source.and_then(|source| source.frequency_hz) {
        Some(hz) => format!("{name}, {hz} per second"),
        None => name.to_owned(),
    }
}
