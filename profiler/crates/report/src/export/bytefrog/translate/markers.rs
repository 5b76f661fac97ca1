//! What happens beside calls, in words: losses, gaps, programs, containers, the recording itself.
//!
//! Events -> keys and values of markers. Losses and gaps are gathered and told at most once a second,
//! so that many of them don't crowd out calls. Times in words are milliseconds, dates are RFC 3339 in
//! UTC.

use std::collections::BTreeMap;
use std::fmt::Write;

use profiler_model::text::TextSet;

use super::stream::Stream;
use profiler_model::*;

/// Time between two reports of what is missing.
const REPORT_NS: u64 = 1_000_000_000;

/// Most gaps that one report names.
const MAX_GAPS: usize = 32;

/// Most containers that are remembered; of later ones nothing is said.
const MAX_CONTAINERS: usize = 1 << 16;

/// Most of them that are looked at again until they have a name.
const MAX_NAMELESS: usize = 1 << 10;

/// Digits of a container's id.
const CONTAINER_ID_LEN: usize = 64;

/// Keys of markers.
pub(super) mod key {
    pub(in super::super) const STARTED: &str = "recording started";
    pub(in super::super) const ENDED: &str = "recording ended";
    pub(in super::super) const CLOCK: &str = "wall clock";
    pub(in super::super) const RESUMED: &str = "recording resumed";
    pub(in super::super) const LOST: &str = "lost events";
    pub(in super::super) const GAP: &str = "not traced";
    pub(in super::super) const EXECUTED: &str = "program executed";
    pub(in super::super) const CONTAINER: &str = "container started";
    pub(in super::super) const DESCRIBED: &str = "container described";
    pub(in super::super) const MARK: &str = "mark";
    pub(in super::super) const THREADS: &str = "threads left out";
}

/// What a gap is in, in words, and why.
type GapKey = (String, GapReason);

/// What is missing and not told yet.
#[derive(Debug, Default)]
pub(super) struct Missing {
    lost: BTreeMap<LostReason, u64>,
    gaps: BTreeMap<GapKey, (u64, u64)>,
    /// Of further functions and processes.
    more_gaps: BTreeMap<GapReason, (u64, u64)>,
    /// When the oldest of it came.
    since: Option<Timestamp>,
    told: Option<Timestamp>,
}

impl Missing {
    pub(super) fn lost(&mut self, lost: &Lost) {
        let sum = self.lost.entry(lost.reason).or_default();
        *sum = sum.saturating_add(lost.count);
        self.since.get_or_insert(lost.to);
    }

    /// `function` is how HQ knows the one that it is of.
    pub(super) fn gap(&mut self, gap: &Gap, function: Option<&str>, tables: &Tables) {
        let key = (gap_subject(function, gap.process, tables), gap.reason);
        self.since.get_or_insert(gap.to);
        let sum = match self.gaps.len() >= MAX_GAPS && !self.gaps.contains_key(&key) {
            true => self.more_gaps.entry(gap.reason).or_default(),
            false => self.gaps.entry(key).or_default(),
        };
        let (count, sum_ns) = sum;
        *count += 1;
        *sum_ns = sum_ns.saturating_add(gap.to.since(gap.from));
    }

    /// Whether something is to be told at this time.
    #[inline]
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.since.is_some()
            && self
                .told
                .is_none_or(|told| now.since(told) >= REPORT_NS || now < told)
    }

    /// Tells it all.
    pub(super) fn tell(&mut self, now: Timestamp, stream: &mut Stream, out: &mut Vec<u8>) {
        if self.since.take().is_none() {
            return;
        }
        self.told = Some(now);
        if !self.lost.is_empty() {
            let parts: Vec<String> = std::mem::take(&mut self.lost)
                .into_iter()
                .map(|(reason, count)| format!("{}: {count}", reason.phrase()))
                .collect();
            stream.marker(now, key::LOST, &parts.join(", "), out);
        }
        let more = std::mem::take(&mut self.more_gaps).into_iter();
        let more = more.map(|(reason, sum)| (("further functions".to_owned(), reason), sum));
        let gaps = std::mem::take(&mut self.gaps).into_iter();
        for ((mut text, reason), (count, sum_ns)) in gaps.chain(more) {
            let ms = sum_ns as f64 / 1e6;
            // All digits, so that sums are the same wherever it is read.
            let _ = write!(text, ": {} ({ms:?} ms", reason.phrase());
            if count > 1 {
                let _ = write!(text, " in {count} gaps");
            }
            text.push(')');
            stream.marker(now, key::GAP, &text, out);
        }
    }
}

fn gap_subject(function: Option<&str>, process: Option<ProcessId>, tables: &Tables) -> String {
    let function = function.unwrap_or("all functions");
    match process.map(|id| process_name(id, tables)) {
        Some(process) => format!("{function} in {process}"),
        None => function.to_owned(),
    }
}

/// `web [100]`.
pub(super) fn process_name(id: ProcessId, tables: &Tables) -> String {
    tables.process(id).map_or_else(String::new, |process| {
        format!("{} [{}]", tables.string(process.name), process.pid)
    })
}

/// What is recorded, where, by what, since when.
pub(super) fn started(session: &Session, at: Option<String>, inferred: bool) -> String {
    let mut text = format!(
        "{} on {}, profiler {}",
        session.target, session.host, session.version
    );
    if let Some(at) = at {
        let _ = write!(text, ", {at}");
    }
    if inferred {
        text.push_str("; calls are inferred from samples");
    }
    text
}

/// The date of a time, from the same instant on both clocks: `2023-11-14T22:13:20.000Z`.
pub(super) fn date(at: Timestamp, clock: &Clock) -> String {
    let after = at.since(clock.monotonic);
    let before = clock.monotonic.since(at);
    let ns = clock
        .realtime_ns
        .saturating_add(after)
        .saturating_sub(before);
    let (seconds, ms) = (ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a day since 1970-01-01. Years are counted from March, so that the day that
/// leap years have more is their last.
fn civil(day: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let day = day + 719_468;
    let (era, day) = (day / DAYS_OF_400_YEARS, day % DAYS_OF_400_YEARS);
    let leap_days = day / 1460 - day / 36_524 + day / 146_096;
    let year = (day - leap_days) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = match month {
        0..10 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    (era * 400 + year + next, month, day_of_month)
}

/// Containers that have been seen.
#[derive(Debug, Default)]
pub(super) struct Containers {
    /// By path and id.
    seen: TextSet<Box<str>>,
    /// Those of which no name was known; by path.
    nameless: Vec<Box<str>>,
}

impl Containers {
    /// The container of a process, if it is a new one, in words. Units are none.
    pub(super) fn see(&mut self, process: &Process, tables: &Tables) -> Option<String> {
        let Some(container) = process.container.and_then(|id| tables.container(id)) else {
            // A recording that knows paths only.
            let id = container_id(tables.string(process.cgroup?))?;
            return self.is_new(id).then(|| id.to_owned());
        };
        let path = tables.string(container.cgroup);
        let id = container.id.map_or("", |id| tables.string(id));
        if container.is_plain_unit() || !self.is_new(&format!("{path}\0{id}")) {
            return None;
        }
        if !has_name(container) && self.nameless.len() < MAX_NAMELESS {
            self.nameless.push(path.into());
        }
        Some(container_text(container, tables))
    }

    fn is_new(&mut self, key: &str) -> bool {
        let known = self.seen.len() >= MAX_CONTAINERS || self.seen.contains(key);
        if !known {
            self.seen.insert(key.into());
        }
        !known
    }

    /// Those that have a name now and had none when they were seen, in words.
    pub(super) fn described(&mut self, tables: &Tables) -> Vec<String> {
        let mut described = Vec::new();
        self.nameless.retain(|path| {
            let id = tables
                .find_string(path)
                .and_then(|path| tables.find_container(path));
            match id.and_then(|id| tables.container(id)) {
                Some(container) if has_name(container) => {
                    described.push(container_text(container, tables));
                    false
                }
                _ => true,
            }
        });
        described
    }
}

fn has_name(container: &Container) -> bool {
    container.name.is_some() || container.pod.is_some()
}

/// `web (docker, id 01ab.., image nginx:1)`.
fn container_text(container: &Container, tables: &Tables) -> String {
    let mut text = tables.container_label(container);
    let mut parts = Vec::new();
    for (what, id) in [
        ("", container.engine),
        ("id ", container.id),
        ("image ", container.image),
    ] {
        parts.extend(id.map(|id| format!("{what}{}", tables.string(id))));
    }
    if !parts.is_empty() {
        let _ = write!(text, " ({})", parts.join(", "));
    }
    text
}

/// The last id of a container in the path of a cgroup: `/system.slice/docker-<64 digits>.scope`.
fn container_id(path: &str) -> Option<&str> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    path.rsplit('/').find_map(|part| {
        part.split(|character: char| !character.is_ascii_alphanumeric())
            .find(|word| word.len() == CONTAINER_ID_LEN && word.as_bytes().iter().all(is_digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let clock = Clock {
            monotonic: Timestamp(5_000_000_000),
            realtime_ns: 1_700_000_000_000_000_000,
        };
        for (at, expected) in [
            (5_000_000_000, "2023-11-14T22:13:20.000Z"),
            (6_001_999_999, "2023-11-14T22:13:21.001Z"),
            (4_999_000_000, "2023-11-14T22:13:19.999Z"),
        ] {
            assert_eq!(date(Timestamp(at), &clock), expected);
        }
        for (day, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (789, (1972, 2, 29)),
            (790, (1972, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_322, (2000, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(day), expected, "{day}");
        }
        let far = Clock {
            monotonic: Timestamp(0),
            realtime_ns: u64::MAX,
        };
        assert_eq!(date(Timestamp(u64::MAX), &far), "2554-07-21T23:34:33.709Z");
    }

    #[test]
    fn containers_are_in_the_paths_of_cgroups() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/kubepods/besteffort/pod12/{id}"),
            format!("/user.slice/libpod-{id}.scope/container"),
        ] {
            assert_eq!(container_id(&path), Some(&*id), "{path}");
        }
        for path in [
            "",
            "/",
            "/init.scope",
            &format!("/{id}0"),
            &id.to_uppercase(),
        ] {
            assert_eq!(container_id(path), None, "{path}");
        }
    }
}
