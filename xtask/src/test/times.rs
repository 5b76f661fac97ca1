//! How long tests took: kept in `target/test-times` for the next run's order, and said with `--times`.
//!
//! The file has lines `MILLISECONDS CPU-MILLISECONDS NAME`; what is not such a line is left out, since nothing but
//! the order depends on it. CPU time is there for who looks for what a run costs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How many `--times` lists.
pub(super) const SLOWEST: usize = 30;

/// Times of tests by name.
#[derive(Debug, Default)]
pub(super) struct Times(BTreeMap<String, Spent>);

/// Wall and CPU time of a test.
#[derive(Clone, Copy, Debug)]
struct Spent {
    wall: Duration,
    cpu: Duration,
}

impl Times {
    /// What earlier runs kept.
    pub(super) fn read(path: &Path) -> Times {
        Times::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Times {
        let times = text.lines().filter_map(|line| {
            let mut words = line.splitn(3, ' ');
            let mut time = || Some(Duration::from_millis(words.next()?.parse().ok()?));
            let (wall, cpu) = (time()?, time()?);
            Some((words.next()?.to_owned(), Spent { wall, cpu }))
        });
        Times(times.collect())
    }

    /// Wall time.
    pub(super) fn of(&self, name: &str) -> Option<Duration> {
        self.0.get(name).map(|spent| spent.wall)
    }

    pub(super) fn set(&mut self, name: &str, wall: Duration, cpu: Duration) {
        self.0.insert(name.to_owned(), Spent { wall, cpu });
    }

    /// Keeps them for later runs.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let lines = self.0.iter().map(|(name, Spent { wall, cpu })| {
            format!("{} {} {name}\n", wall.as_millis(), cpu.as_millis())
        });
        fs::write(path, lines.collect::<String>())
    }
}

/// The slowest tests of a run, of (name, wall time, CPU time) of each, as lines.
pub(super) fn slowest(tests: &[(&str, Duration, Duration)]) -> Vec<String> {
    let mut tests = tests.to_vec();
    tests.sort_by_key(|&(name, wall, _)| (std::cmp::Reverse(wall), name));
    tests.truncate(SLOWEST);
    let line = |(name, wall, cpu): (&str, Duration, Duration)| {
        format!(
            "{:7.1} {:7.1}  {name}",
            wall.as_secs_f64(),
            cpu.as_secs_f64()
        )
    };
    tests.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept() {
        let path = std::env::temp_dir().join(format!("xtask-times-{}", std::process::id()));
        let mut times = Times::read(&path);
        times.set("x::a", Duration::from_millis(1234), Duration::ZERO);
        times.set("x::b", Duration::from_secs(2), Duration::from_secs(1));
        times.write(&path).unwrap();
        let read = Times::read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read.of("x::a"), Some(Duration::from_millis(1234)));
        assert_eq!(read.of("x::b"), Some(Duration::from_secs(2)));
        assert_eq!(read.of("x::c"), None);
        assert_eq!(
            Times::parse("x y\n\n5 z\n5 1 z").of("z"),
            Some(Duration::from_millis(5))
        );
    }

    #[test]
    fn the_slowest_come_first() {
        let second = Duration::from_secs(1);
        let names: Vec<String> = (0..40).map(|n| format!("t{n:02}")).collect();
        let tests: Vec<_> = (0..)
            .zip(&names)
            .map(|(n, name)| (&**name, second * n, second))
            .collect();
        let lines = slowest(&tests);
        assert_eq!(lines.len(), SLOWEST);
        assert_eq!(lines[0], "   39.0     1.0  t39");
        assert_eq!(lines[29], "   10.0     1.0  t10");
    }
}
