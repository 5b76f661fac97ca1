//! Captures that are to be joined -> what each of them leaves out, because another one of the same recording has it.
//!
//! What a ring had when it was written out, its end, and files of a rotation are each all that a recording told between
//! two times: between its first and its last event one has what any other has there. Times are those of the clock that the captures were
//! put on.
//!
//! What does not belong here: waits that go on where one ends ([`super::rejoin`]).

use std::cmp::Reverse;
use std::path::PathBuf;

use profiler_model::{Session, Timestamp};

use super::error::CaptureError;
use super::reader::{Reader, TimeRange, shifted};

/// What tells whose events a capture has.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    path: PathBuf,
    session: Session,
    /// Of the file: a copy of it has the same.
    file: (u32, u64),
    /// From its first to its last event.
    span: Option<TimeRange>,
    is_damaged: bool,
}

/// What captures have in common.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// For each of them the first one of the same recording.
    pub(super) groups: Vec<usize>,
    /// For each of them the times that others have for it.
    pub(super) elsewhere: Vec<Vec<TimeRange>>,
    /// Pairs that may be of one recording.
    pub(super) doubtful: Vec<(PathBuf, PathBuf)>,
    /// What the joined session is to say.
    pub(super) recordings: Vec<u64>,
}

impl Origin {
    /// Of a capture whose definitions were read, with this session.
    pub(super) fn of(reader: &Reader, session: &Session) -> Origin {
        let runs = reader.found().map_or(&[][..], |found| &found.runs);
        let runs = || runs.iter().filter(|run| run.events);
        let time = |ns| shifted(Timestamp(ns), reader.shift_ns);
        let from = runs().map(|run| run.first_ns).min().map(time);
        let to = runs().map(|run| run.last_ns).max().map(time);
        Origin {
            path: reader.path().to_owned(),
            session: session.clone(),
            file: (reader.file_id, reader.created_ns),
            span: (from.zip(to)).map(|(from, to)| TimeRange { from, to }),
            is_damaged: !reader.damage().is_empty(),
        }
    }

    /// The recording that it has all of between its first and last event.
    fn recording(&self) -> Option<u64> {
        match self.session.recordings[..] {
            [recording] if recording != 0 => Some(recording),
            _ => None,
        }
    }

    pub(super) fn is_of_one_with(&self, other: &Origin) -> bool {
        let recording = self.recording();
        self.file == other.file || recording.is_some() && recording == other.recording()
    }

    /// Whether events of one recording are in both, and of others too in one of them.
    fn is_mixed_with(&self, other: &Origin) -> bool {
        let (ours, theirs) = (&self.session.recordings, &other.session.recordings);
        ours.iter().any(|&id| id != 0 && theirs.contains(&id))
    }

    /// Whether they may be of one recording: nothing says that, and nothing tells them apart.
    fn is_like(&self, other: &Origin) -> bool {
        let is_known = |origin: &Origin| !origin.session.recordings.is_empty();
        let like = |origin: &Origin| Session {
            started: Timestamp(0),
            ..origin.session.clone()
        };
        let session = like(self);
        !is_known(self) && session != Session::default() && session == like(other)
    }

    fn overlaps(&self, other: &Origin) -> bool {
        let spans = self.span.zip(other.span);
        spans.is_some_and(|(ours, theirs)| ours.overlaps(theirs.from.0, theirs.to.0))
    }
}

/// The first one of the same recording, for each.
pub(super) fn groups(origins: &[Origin]) -> Vec<usize> {
    let first = |(index, origin): (usize, &Origin)| {
        let mut before = origins[..index].iter();
        let same = before.position(|other| other.is_of_one_with(origin));
        same.unwrap_or(index)
    };
    origins.iter().enumerate().map(first).collect()
}

/// Finds what captures have in common. What is damaged is used for what
/// no other one has. What can't be told apart is refused.
pub(super) fn shared(origins: &[Origin]) -> Result<Shared, CaptureError> {
    let mut shared = Shared {
        groups: groups(origins),
        elsewhere: vec![Vec::new(); origins.len()],
        doubtful: Vec::new(),
        recordings: recordings(origins),
    };
    let mut order: Vec<usize> = (0..origins.len()).collect();
    // Of two that have the same the one has it that began first: then no wait of the other one began before that.
    order.sort_by_key(|&index| {
        let origin = &origins[index];
        let span = origin.span.map(|span| (span.from, Reverse(span.to)));
        (origin.is_damaged, span)
    });
    for (rank, &later) in order.iter().enumerate() {
        for &before in &order[..rank] {
            let (one, other) = (&origins[before], &origins[later]);
            if one.is_of_one_with(other) {
                shared.elsewhere[later].extend(one.span);
                continue;
            }
            if !one.overlaps(other) {
                continue;
            }
            if one.is_mixed_with(other) {
                return Err(CaptureError::Options(format!(
                    "{} and {} both have events of one recording, at the same time and among others: merge the \
                     captures that they were made of",
                    one.path.display(),
                    other.path.display()
                )));
            }
            if one.is_like(other) {
                let pair = (one.path.clone(), other.path.clone());
                shared.doubtful.push(pair);
            }
        }
    }
    Ok(shared)
}

/// The recordings of all; 0 among them if something is not known, or is missing in one of them or between two.
fn recordings(origins: &[Origin]) -> Vec<u64> {
    let is_whole = |origin: &Origin| !origin.is_damaged && !origin.session.recordings.is_empty();
    let ids = origins.iter().flat_map(|origin| &origin.session.recordings);
    let mut ids: Vec<u64> = ids.copied().collect();
    if !ids.is_empty() && (!origins.iter().all(is_whole) || has_gap(origins)) {
        ids.push(0);
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Whether there is a time between some of them that none has. A file of a rotation says that it began where the one before ended.
fn has_gap(origins: &[Origin]) -> bool {
    let span = |origin: &Origin| {
        let span = origin.span?;
        Some((span.from.min(origin.session.started), span.to))
    };
    let mut spans: Vec<_> = origins.iter().filter_map(span).collect();
    spans.sort_unstable();
    let mut until = spans.first().map_or(Timestamp(0), |&(from, _)| from);
    spans.into_iter().any(|(from, to)| {
        let is_gap = from > until;
        until = until.max(to);
        is_gap
    })
}
