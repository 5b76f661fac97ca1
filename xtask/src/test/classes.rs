//! `tests/classes.txt` -> what may run beside a test.
//!
//! Input: lines `CLASS [~SECONDS] MODULE`, where a module is an executable's name and a path in it, or a
//! whole test's name; the longest that fits a test counts. Output: [`Entry`] for each test. A test that no
//! line fits runs alone. A line that fits no test is an error: it was renamed, and would run alone.
//!
//! What does not belong here: when tests run (`schedule`).

use std::io;
use std::time::Duration;

use super::list::Test;

/// What may run beside a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Others; it takes so many eighths of a processor.
    Beside(u32),
    /// The same, but it takes a processor, and nothing of what it does can disturb others but by that: it is kept for the
    /// time when these want it quiet.
    Calculates,
    /// What calculates, and nothing else; it takes half a processor.
    Quiet,
    /// Others, but none of the same line of the table, which this is; it takes half a processor.
    InTurn(usize),
    /// Nothing.
    Alone,
    /// Nothing, and only with `--long`.
    Long,
}

impl Class {
    /// Whether nothing may run beside it.
    pub(super) fn is_alone(self) -> bool {
        matches!(self, Class::Alone | Class::Long)
    }

    /// Whether it waits for all others but those that run alone.
    pub(super) fn is_last(self) -> bool {
        matches!(self, Class::Calculates | Class::Quiet)
    }
}

/// What is known of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) class: Class,
    /// How long it takes, about, where that is worth saying.
    pub(super) about: Option<Duration>,
}

impl Default for Entry {
    fn default() -> Entry {
        Entry {
            class: Class::Alone,
            about: None,
        }
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Classes(Vec<(String, Entry)>);

impl Classes {
    /// Reads it.
    pub(super) fn parse(text: &str) -> io::Result<Classes> {
        let mut entries: Vec<(String, Entry)> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |what: &str| {
                io::Error::other(format!(
                    "tests/classes.txt, line {number}: {what}: '{line}'"
                ))
            };
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (class, about, path) = match words[..] {
                [] => continue,
                [class, path] => (class, None, path),
                [class, about, path] => {
                    let seconds = about.strip_prefix('~').and_then(|text| text.parse().ok());
                    let seconds = seconds.ok_or_else(|| wrong("not ~SECONDS"))?;
                    (class, Some(Duration::from_secs(seconds)), path)
                }
                _ => return Err(wrong("not CLASS [~SECONDS] MODULE")),
            };
            let class = match class {
                "waits" => Class::Beside(1),
                "works" => Class::Beside(2),
                "records" => Class::Beside(6),
                "calculates" => Class::Calculates,
                "quiet" => Class::Quiet,
                "in-turn" => Class::InTurn(number),
                "alone" => Class::Alone,
                "long" => Class::Long,
                _ => return Err(wrong("no such class")),
            };
            if entries.iter().any(|(known, _)| known == path) {
                return Err(wrong("said before"));
            }
            entries.push((path.to_owned(), Entry { class, about }));
        }
        Ok(Classes(entries))
    }

    /// What is known of each of these tests, which are all that there are.
    pub(super) fn of_all(&self, tests: &[Test]) -> io::Result<Vec<Entry>> {
        for (path, _) in &self.0 {
            if !tests.iter().any(|test| fits(path, &test.name)) {
                return Err(io::Error::other(format!(
                    "tests/classes.txt: there is no module or test '{path}'"
                )));
            }
        }
        Ok(tests.iter().map(|test| self.of(&test.name)).collect())
    }

    fn of(&self, name: &str) -> Entry {
        let fitting = self.0.iter().filter(|(path, _)| fits(path, name));
        fitting
            .max_by_key(|(path, _)| path.len())
            .map_or_else(Entry::default, |(_, entry)| *entry)
    }
}

/// Whether a test is `path`, or in that module.
fn fits(path: &str, name: &str) -> bool {
    name.strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test {
            executable: 0,
            name: name.to_owned(),
            ignored: false,
        }
    }

    fn error(text: &str) -> String {
        Classes::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_longest_name_counts_and_nothing_said_means_alone() {
        let text = "# comment\n\nwaits x # why\nalone ~90 x::slow::most\nrecords x::slow\nlong x::soak\n\
                    in-turn x::turn\n";
        let classes = Classes::parse(text).unwrap();
        let names = [
            "x::a",
            "x::slow::b",
            "x::slow::most",
            "x::slower",
            "xy::a",
            "x::soak::c",
            "x::turn::d",
        ];
        let tests = names.map(test);
        let found = classes.of_all(&tests).unwrap();
        let expected = [
            Class::Beside(1),
            Class::Beside(6),
            Class::Alone,
            Class::Beside(1),
            Class::Alone,
            Class::Long,
            Class::InTurn(7),
        ];
        assert_eq!(
            found.iter().map(|entry| entry.class).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(found[2].about, Some(Duration::from_secs(90)));
        assert_eq!(found[4], Entry::default());
    }

    #[test]
    fn names_that_are_not_there_are_errors() {
        let classes = Classes::parse("waits x::gone").unwrap();
        let said = classes.of_all(&[test("x::a")]).unwrap_err().to_string();
        assert_eq!(
            said,
            "tests/classes.txt: there is no module or test 'x::gone'"
        );
    }

    #[test]
    fn lines_that_are_wrong_are_named() {
        assert!(error("waits x\nfast y").contains("line 2: no such class: 'fast y'"));
        assert!(error("waits 3 y").contains("line 1: not ~SECONDS"));
        assert!(error("waits").contains("line 1: not CLASS"));
        assert!(error("waits y\nalone y").contains("line 2: said before"));
    }
}
