//! `profiler info`: what is inside a capture, and what is not.
//!
//! Input: a [`Summary`] (all of the capture is read once). Output: text for people, or one JSON
//! object. Times are seconds since the start of the recording, or wall time in seconds since 1970
//! where the capture has a tie to it.
//!
//! What does not belong here: what is hot (report).

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::losses;
use super::quantity::{self, percent, percent_of, plural};
use crate::derive::{Losses, OFF_CPU};
use profiler_capture::{CaptureError, Reader, Summary};
use profiler_model::text::printable;
use profiler_model::{Container, LostReason, StackEnd, StackEnds, Timestamp, WaitState};

/// What the JSON is. Its keys keep their meaning as long as this does not change.
const SCHEMA: &str = "profiler-info/2";

/// Containers that text lists; a machine has hundreds of units.
const MAX_CONTAINERS: usize = 30;

/// Writes what is inside a capture.
pub fn write_info(reader: &mut Reader, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let path = reader.path().display().to_string();
    let summary = reader.summary().map_err(|error| match error {
        CaptureError::Sink(error) => error,
        other => io::Error::other(other),
    })?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &as_json(&path, &summary))?;
        return writeln!(out);
    }
    write_text(&path, &summary, out)
}

fn write_text(path: &str, summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let session = &summary.session;
    writeln!(out, "file        {}", printable(path))?;
    writeln!(
        out,
        "size        {} bytes in {} blocks, {} epochs; {} bytes of definitions and {} of events \
         before packing",
        summary.bytes,
        summary.blocks.0 + summary.blocks.1 + summary.blocks.2,
        summary.epochs,
        summary.raw_bytes.0,
        summary.raw_bytes.1
    )?;
    let ended = match (summary.ended, summary.is_whole()) {
        (true, true) => "yes",
        (true, false) => "no: the run was cut off before its end",
        (false, _) => "no: the recording was killed, is still running, or the file is cut off",
    };
    writeln!(out, "complete    {ended}")?;
    write!(out, "recorded    {}", printable(&session.target))?;
    // The machine of an agent that was received is not known.
    if !session.host.is_empty() {
        write!(
            out,
            " on {} (Linux {}, {}, {} CPUs)",
            printable(&session.host),
            printable(&session.kernel),
            printable(&session.arch),
            session.cpus,
        )?;
    }
    writeln!(out, " by version {}", printable(&session.version))?;
    if !session.command.is_empty() {
        writeln!(out, "command     {}", printable(&session.command.join(" ")))?;
    }
    if let Some((first, last)) = summary.span {
        let from = summary.session.began(first, summary.first_recorded);
        write!(out, "time        {:.3} s", last.since(from) as f64 / 1e9)?;
        match wall_ns(summary, from) {
            Some(ns) => writeln!(out, " from {:.3} s since 1970", ns as f64 / 1e9)?,
            None => writeln!(out)?,
        }
    }
    for source in &summary.sources {
        write!(
            out,
            "source      {}: {} samples, {} {}",
            printable(&source.name),
            source.samples,
            source.weight,
            source.unit.name()
        )?;
        match (source.frequency_hz, source.period) {
            (Some(hz), _) => writeln!(out, " (asked for {hz} Hz)")?,
            (None, Some(period)) => writeln!(out, " (one sample every {period})")?,
            (None, None) => writeln!(out)?,
        }
    }
    write_waits(summary, out)?;
    write!(out, "events     ")?;
    for (i, (kind, count)) in summary.events.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(out, "{comma} {count} {kind}")?;
    }
    writeln!(out)?;
    let (processes, threads) = (summary.processes, summary.threads);
    writeln!(
        out,
        "processes   {}, of which {} have samples; threads {}, of which {}",
        processes.0, processes.1, threads.0, threads.1
    )?;
    write_containers(summary, out)?;
    let [modules, functions, frames, stacks] = summary.tables;
    writeln!(
        out,
        "code        {modules} modules, {functions} functions, {frames} frames, {stacks} stacks"
    )?;
    write_kinds(summary, out)?;
    write_lacks(summary, out)
}

/// What threads waited for, if that was recorded.
fn write_waits(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let states = (0..).map_while(WaitState::from_code).zip(&summary.waits);
    for (state, waits) in states.filter(|(_, waits)| waits.recorded > 0) {
        writeln!(
            out,
            "waits       {}: {} of {:.3} s, of which {:.3} s runnable; {} recorded",
            state.name(),
            waits.count,
            seconds(waits.ns),
            seconds(waits.runnable_ns),
            waits.recorded,
        )?;
    }
    let (count, ns) = summary.counted_waits;
    match (count, ns) {
        (0, 0) => Ok(()),
        _ => writeln!(
            out,
            "waits       counted by the kernel: {count} of {:.3} s",
            seconds(ns)
        ),
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Kinds of code in the stacks, if there is more than native code and the kernel.
fn write_kinds(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    if !summary
        .kinds
        .keys()
        .any(|kind| matches!(*kind, "jit" | "interpreted"))
    {
        return Ok(());
    }
    let kinds: Vec<String> = (summary.kinds.iter())
        .map(|(kind, samples)| format!("{kind} in {}", share(*samples, summary)))
        .collect();
    write!(out, "kinds       {} of samples", kinds.join(", "))?;
    match summary.interpreted_modules {
        0 => writeln!(out),
        modules => writeln!(out, "; {modules} interpreted modules"),
    }
}

/// Part of all samples.
fn share(samples: u64, summary: &Summary) -> String {
    percent(percent_of(samples, summary.samples()))
}

/// What processes ran in. Losses can't be told apart by it: the kernel counts them per processor.
fn write_containers(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    for container in summary.containers.iter().take(MAX_CONTAINERS) {
        let mut what: Vec<&str> = container.engine.as_deref().into_iter().collect();
        what.extend(container.image.as_deref());
        let id = container.id.as_deref().map(Container::short_id);
        what.extend(id.filter(|&id| id != container.label));
        write!(out, "container   {}", printable(&container.label))?;
        if !what.is_empty() {
            write!(out, " ({})", printable(&what.join(", ")))?;
        }
        let processes = match container.processes.0 {
            1 => "1 process".to_owned(),
            n => format!("{n} processes"),
        };
        writeln!(out, ": {} samples, {processes}", container.samples)?;
    }
    match summary.containers.len().saturating_sub(MAX_CONTAINERS) {
        0 => Ok(()),
        more => writeln!(out, "container   {more} more; --format json lists all"),
    }
}

/// How many user stacks are whole, and who tells of the others.
fn write_stacks(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let stacks = &summary.user_ends;
    let (there, gone, not_said) = (stacks.total(), stacks.gone(), stacks.not_said());
    if there + gone + not_said == 0 {
        return Ok(());
    }
    if there + gone == 0 {
        return writeln!(
            out,
            "stacks      {not_said} user stacks; whether they are complete is {}",
            StackEnd::NotSaid.phrase()
        );
    }
    let share = match stacks.whole() {
        0 => "none".to_owned(),
        whole => percent(percent_of(whole, there)),
    };
    write!(out, "stacks      {share} of {there} user stacks complete")?;
    if gone > 0 {
        let what = StackEnd::Gone.phrase();
        write!(out, "; besides {gone} with their {what}")?;
    }
    if not_said > 0 {
        let what = StackEnd::NotSaid.phrase();
        write!(out, "; of {not_said} more it is {what}")?;
    }
    match stacks.whole() == there {
        true => writeln!(out),
        false => writeln!(out, "; profiler report --by end tells where the others end"),
    }
}

/// What is missing, said even if it is nothing.
fn write_lacks(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let lost: Losses = summary.lost.iter().map(|(why, n)| (*why, *n)).collect();
    let ticked = summary.sources.iter().filter(|it| *it.name != *OFF_CPU);
    let samples = ticked.map(|source| source.samples).sum();
    let text = losses::text(&lost, samples);
    let nothing = match summary.gaps.is_empty() {
        true => "nothing",
        // Calls that were never seen can't be counted.
        false => "no samples",
    };
    writeln!(out, "lost        {}", text.as_deref().unwrap_or(nothing))?;
    let begun = lost.of(LostReason::Unmatched);
    if begun > 0 {
        writeln!(
            out,
            "begun       {begun} {}",
            LostReason::Unmatched.phrase()
        )?;
    }
    let unwatched = summary.calls.unwatched;
    if unwatched > 0 {
        let budget = summary.gaps.keys().any(|reason| reason.is_for_budget());
        let why = losses::without_end(lost.of(LostReason::CallRingFull) > 0, budget);
        writeln!(out, "unwatched   {} {why}", plural(unwatched, "call"))?;
    }
    for (reason, &(gaps, ns)) in &summary.gaps {
        let what = reason.hides();
        let (gaps, reason) = (quantity::gaps(gaps, ns), reason.phrase());
        writeln!(out, "gaps        {what} are missing in {gaps}: {reason}")?;
    }
    // Of a ring, or a file of many, it is more than what is missing here.
    if summary.dropped > lost.unwritten() {
        writeln!(
            out,
            "dropped     {} could not be written since the recording began",
            plural(summary.dropped, "event")
        )?;
    }
    write!(out, "truncated   {} stacks", summary.truncated())?;
    for (name, ends) in [
        ("kernel", &summary.kernel_ends),
        ("user", &summary.user_ends),
    ] {
        for (end, count) in ends.iter().filter(|(end, _)| end.is_cut()) {
            let share = share(count, summary);
            write!(out, "; {count} ({share}) {name}: {}", end.phrase())?;
        }
    }
    writeln!(out)?;
    write_stacks(summary, out)?;
    writeln!(
        out,
        "unnamed     {} of {} frames, in {} of {} samples",
        summary.unsymbolized_frames,
        summary.tables[2],
        summary.unsymbolized_samples,
        summary.samples()
    )?;
    if summary.unknown > 0 {
        writeln!(
            out,
            "unknown     {} items of a newer version were passed over",
            summary.unknown
        )?;
    }
    if summary.unusable > 0 {
        writeln!(out, "unusable    {} events", summary.unusable)?;
    }
    for damage in &summary.damage {
        writeln!(out, "damage      {damage}")?;
    }
    Ok(())
}

fn as_json(path: &str, summary: &Summary) -> Value {
    let session = &summary.session;
    let sources: Vec<Value> = summary
        .sources
        .iter()
        .map(|source| {
            json!({
                "name": source.name,
                "unit": source.unit,
                "frequency_hz": source.frequency_hz,
                "period": source.period,
                "samples": source.samples,
                "weight": source.weight,
            })
        })
        .collect();
    let containers = summary.containers.iter();
    let containers: Vec<Value> = containers
        .map(|container| {
            json!({
                "container": container.label,
                "cgroup": container.cgroup,
                "engine": container.engine,
                "id": container.id,
                "name": container.name,
                "image": container.image,
                "pod": container.pod,
                "namespace": container.namespace,
                "unit": container.unit,
                "processes": {"all": container.processes.0, "sampled": container.processes.1},
                "samples": container.samples,
            })
        })
        .collect();
    let lost = summary.lost.iter();
    let lost: Map<String, Value> = lost
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect();
    let gaps = summary.gaps.iter();
    let gaps: Map<String, Value> = gaps
        .map(|(reason, (count, ns))| {
            let numbers = json!({"count": count, "ns": ns});
            (reason.name().to_owned(), numbers)
        })
        .collect();
    let ends = |ends: &StackEnds| -> Map<String, Value> {
        let named = ends.iter();
        named
            .map(|(end, count)| (end.name().to_owned(), json!(count)))
            .collect()
    };
    let states = (0..).map_while(WaitState::from_code).zip(&summary.waits);
    let waits: Map<String, Value> = states
        .map(|(state, waits)| {
            let numbers = json!({
                "recorded": waits.recorded,
                "count": waits.count,
                "ns": waits.ns,
                "runnable_ns": waits.runnable_ns,
            });
            (state.name().to_owned(), numbers)
        })
        .collect();
    let damage = summary.damage.iter();
    let damage: Vec<Value> = damage
        .map(|damage| json!({"offset": damage.offset, "what": damage.what}))
        .collect();
    json!({
        "schema": SCHEMA,
        "file": path,
        "bytes": summary.bytes,
        "raw_bytes": {"definitions": summary.raw_bytes.0, "events": summary.raw_bytes.1},
        "blocks": {
            "definitions": summary.blocks.0,
            "events": summary.blocks.1,
            "other": summary.blocks.2,
        },
        "epochs": summary.epochs,
        "complete": summary.is_whole(),
        "session": {
            "version": session.version,
            "host": session.host,
            "kernel": session.kernel,
            "arch": session.arch,
            "cpus": session.cpus,
            "target": session.target,
            "command": session.command,
            "started_ns": session.started.0,
        },
        "first_ns": summary.span.map(|(first, _)| first.0),
        "first_sample_ns": summary.first_sample.map(|at| at.0),
        "last_ns": summary.span.map(|(_, last)| last.0),
        "first_realtime_ns": summary.span.and_then(|(first, _)| wall_ns(summary, first)),
        "sources": sources,
        "events": summary.events,
        "waits": waits,
        "counted_waits": {"count": summary.counted_waits.0, "ns": summary.counted_waits.1},
        "kinds": summary.kinds,
        "interpreted_modules": summary.interpreted_modules,
        "processes": {"all": summary.processes.0, "sampled": summary.processes.1},
        "threads": {"all": summary.threads.0, "sampled": summary.threads.1},
        "containers": containers,
        "modules": summary.tables[0],
        "functions": summary.tables[1],
        "frames": summary.tables[2],
        "stacks": summary.tables[3],
        "lost": lost,
        "gaps": gaps,
        "calls": {
            "functions": summary.calls.functions,
            "entered": summary.calls.entered,
            "passed": summary.calls.passed,
            "returned": summary.calls.returned,
            "thrown": summary.calls.thrown,
            "terminated": summary.calls.terminated,
            "inferred": summary.calls.inferred,
            "unwatched": summary.calls.unwatched,
        },
        "dropped_events": summary.dropped,
        "truncated_stacks": summary.truncated(),
        "user_stacks": {
            "there": summary.user_ends.total(),
            "complete": summary.user_ends.whole(),
            "gone": summary.user_ends.gone(),
            "not_said": summary.user_ends.not_said(),
        },
        "stack_ends": {"kernel": ends(&summary.kernel_ends), "user": ends(&summary.user_ends)},
        "unsymbolized": {
            "frames": summary.unsymbolized_frames,
            "samples": summary.unsymbolized_samples,
        },
        "unusable_events": summary.unusable,
        "unknown_items": summary.unknown,
        "damage": damage,
    })
}

/// Wall time, nanoseconds since 1970.
fn wall_ns(summary: &Summary, at: Timestamp) -> Option<u64> {
    let clock = summary.clock?;
    let zero = i128::from(clock.realtime_ns) - i128::from(clock.monotonic.0);
    u64::try_from(zero + i128::from(at.0)).ok()
}
