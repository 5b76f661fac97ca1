//! Captures -> one capture: several joined ([`merge`]), or one copied with names added
//! ([`rewrite`]).
//!
//! Definitions of all inputs are unified, then announced anew as the events need them; events are
//! merged by time. Inputs of one boot of one machine share a clock. Others are moved onto the
//! clock that began first, by their ties of monotonic to wall time. What several inputs have of one recording is taken of one of
//! them ([`super::shared`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::convert::Infallible;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use profiler_model::*;

use super::announce::Announcer;
use super::error::{CaptureError, Damage};
use super::reader::Reader;
use super::rejoin::Rejoin;
use super::replay::Events;
use super::shared::{Origin, Shared, groups, shared};
use super::writer::{CreateOptions, Totals, Writer};

/// Two captures of one host are of one boot if wall and monotonic time differ by the same, but
/// for what setting the clock may change.
const SAME_BOOT_NS: u64 = 60_000_000_000;
/// Definitions and events handed to the writer at once.
const BATCH: usize = 4096;

/// What [`merge`] and [`rewrite`] have done.
#[derive(Debug, Default)]
pub struct Merged {
    /// What was written.
    pub totals: Totals,
    /// What of the inputs could not be used.
    pub damage: Vec<(PathBuf, Damage)>,
    /// Events that were left out because another input has them.
    pub shared: u64,
    /// Inputs of which it is not known whether they are of one recording: what both have of it is there twice.
    pub doubtful: Vec<(PathBuf, PathBuf)>,
}

/// A capture that is to be made of others: all files are open, nothing is read.
pub struct Derived {
    readers: Vec<Reader>,
    writer: Writer,
}

impl Derived {
    /// Opens the inputs and makes the output.
    pub fn begin(
        inputs: &[PathBuf],
        output: &Path,
        options: CreateOptions,
    ) -> Result<Derived, CaptureError> {
        let mut readers = Vec::new();
        for input in inputs {
            refuse_same(input, output)?;
            readers.push(Reader::open(input)?);
        }
        let writer = Writer::create(output, options)?;
        Ok(Derived { readers, writer })
    }

    /// Joins the inputs. The session is that of the first one, with the hosts and targets of all and the earliest
    /// start.
    pub fn merge(self) -> Result<Merged, CaptureError> {
        self.change(|_| ())
    }

    /// The same after `change` has added to the tables: names for frames, above all ([`Tables::set_symbol`]).
    pub fn change(mut self, change: impl FnOnce(&mut Tables)) -> Result<Merged, CaptureError> {
        if self.readers.len() > 1 {
            align(&mut self.readers)?;
        }
        let mut tables = Tables::default();
        let (mut sessions, mut origins) = (Vec::new(), Vec::new());
        for reader in &mut self.readers {
            tables.session = Session::default();
            reader.load_into(&mut tables)?;
            let session = std::mem::take(&mut tables.session);
            origins.push(Origin::of(reader, &session));
            sessions.push(session);
        }
        let shared = shared(&origins)?;
        tables.session = join_sessions(sessions);
        tables.session.recordings.clone_from(&shared.recordings);
        change(&mut tables);
        copy(self.readers, &tables, shared, self.writer)
    }
}

/// Joins captures; see [`Derived::merge`].
pub fn merge(
    inputs: &[PathBuf],
    output: &Path,
    options: CreateOptions,
) -> Result<Merged, CaptureError> {
    Derived::begin(inputs, output, options)?.merge()
}

/// Copies a capture; see [`Derived::change`].
pub fn rewrite(
    input: &Path,
    output: &Path,
    options: CreateOptions,
    change: impl FnOnce(&mut Tables),
) -> Result<Merged, CaptureError> {
    Derived::begin(&[input.to_owned()], output, options)?.change(change)
}

/// Refuses to write over an input, by whichever name: it would be lost, at the latest when what was kept of it is replaced.
/// Devices and pipes have nothing to lose.
pub fn refuse_same(input: &Path, output: &Path) -> Result<(), CaptureError> {
    if let (Ok(a), Ok(b)) = (input.metadata(), output.metadata())
        && a.is_file()
        && (a.dev(), a.ino()) == (b.dev(), b.ino())
    {
        return Err(CaptureError::Options(format!(
            "{} is an input too; write to another file",
            output.display()
        )));
    }
    Ok(())
}

/// The first session, with what differs in the others. Of one that was lost nothing is known.
fn join_sessions(mut sessions: Vec<Session>) -> Session {
    sessions.retain(|session| *session != Session::default());
    let mut sessions = sessions.into_iter();
    let mut joined = sessions.next().unwrap_or_default();
    let (mut hosts, mut targets) = (vec![joined.host.clone()], vec![joined.target.clone()]);
    let mut commands = vec![joined.command.clone()];
    for session in sessions {
        for (list, name) in [(&mut hosts, session.host), (&mut targets, session.target)] {
            if !list.contains(&name) {
                list.push(name);
            }
        }
        if !session.command.is_empty() && !commands.contains(&session.command) {
            commands.push(session.command);
        }
        joined.started = joined.started.min(session.started);
    }
    joined.host = hosts.join(" + ");
    joined.target = targets.join(" + ");
    commands.retain(|command| !command.is_empty());
    joined.command = commands.join(&"+".to_owned());
    joined
}

/// Puts all readers on one clock.
fn align(readers: &mut [Reader]) -> Result<(), CaptureError> {
    let (mut offsets, mut origins) = (Vec::new(), Vec::new());
    for reader in readers.iter_mut() {
        let session = reader.load_tables()?.session;
        let clock = reader.first_clock()?;
        let offset = clock.map(|clock| clock.realtime_ns.saturating_sub(clock.monotonic.0));
        origins.push(Origin::of(reader, &session));
        offsets.push((session.host, offset));
    }
    // One recording has one clock, whatever became of the time of day while it went on.
    for (index, &first) in groups(&origins).iter().enumerate() {
        let known = offsets[first].1.or(offsets[index].1);
        (offsets[first].1, offsets[index].1) = (known, known);
    }
    // The clock that began first: moving others onto it can't lead before its zero.
    let known = offsets.iter().enumerate();
    let known = known.filter_map(|(i, (_, offset))| Some((offset.as_ref().copied()?, i)));
    let Some((base, first)) = known.min() else {
        return Ok(());
    };
    for (reader, (host, offset)) in readers.iter_mut().zip(&offsets) {
        if let Some(offset) = offset {
            let shift = offset - base;
            let same = *host == offsets[first].0 && shift < SAME_BOOT_NS;
            reader.set_shift(if same { 0 } else { shift });
        }
    }
    Ok(())
}

fn copy(
    readers: Vec<Reader>,
    tables: &Tables,
    shared: Shared,
    mut writer: Writer,
) -> Result<Merged, CaptureError> {
    let mut announcer = Announcer::new(tables);
    let mut inputs = Vec::new();
    // The next event of each input, and whose it is; the earlier input first within an instant.
    let mut heads: Vec<Option<Event>> = Vec::new();
    let mut queue = BinaryHeap::new();
    for (index, reader) in readers.into_iter().enumerate() {
        let mut input = Events::as_told(reader)?;
        let head = input.next(tables)?;
        queue.extend(head.as_ref().map(|event| Reverse((event.at(), index))));
        heads.push(head);
        inputs.push(input);
    }
    let mut rejoin = Rejoin::of_several();
    let mut left_out = 0;
    let announce = |announcer: &mut Announcer<'_>, event: &Event| -> Result<(), Infallible> {
        announcer.event(event);
        Ok(())
    };
    while let Some(Reverse((_, index))) = queue.pop() {
        let next = inputs[index].next(tables)?;
        queue.extend(next.as_ref().map(|event| Reverse((event.at(), index))));
        if let Some(event) = std::mem::replace(&mut heads[index], next) {
            let mut elsewhere = shared.elsewhere[index].iter();
            if elsewhere.any(|range| range.contains(event.at())) {
                left_out += 1;
                continue;
            }
            let _ = rejoin.event(shared.groups[index], &event, &mut |event| {
                announce(&mut announcer, event)
            });
        }
        if announcer.waiting() >= BATCH {
            writer.write(&announcer.take())?;
            if writer.wants_new_epoch() {
                announcer.next_epoch();
            }
        }
    }
    let _ = rejoin.finish(&mut |event| announce(&mut announcer, event));
    writer.write(&announcer.take())?;
    if tables.is_cut_off {
        writer.set_of_unfinished();
    }
    let totals = writer.finish()?;
    let damage = inputs.iter().flat_map(|input| {
        let path = input.reader().path();
        let damage = input.reader().damage().iter();
        damage.map(|damage| (path.to_owned(), damage.clone()))
    });
    Ok(Merged {
        totals,
        damage: damage.collect(),
        shared: left_out,
        doubtful: shared.doubtful,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_of_sessions_is_joined() {
        let of = |target: &str, command: &[&str], started| Session {
            target: target.to_owned(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            started: Timestamp(started),
            ..Session::default()
        };
        let sessions = vec![
            // What was lost says nothing.
            Session::default(),
            of("pid 1", &["record", "-p", "1"], 500),
            of("pid 2", &["record", "-p", "2"], 200),
            of("pid 1", &["record", "-p", "1"], 700),
        ];
        let command = ["record", "-p", "1", "+", "record", "-p", "2"];
        assert_eq!(join_sessions(sessions), of("pid 1 + pid 2", &command, 200));
    }
}
