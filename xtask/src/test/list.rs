//! Executables -> the tests in them, and those that are wanted of these.
//!
//! What does not belong here: when a test runs (`schedule`), beside what (`classes`).

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, Stdio};

use super::build::Executable;

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Which executable it is in.
    pub(super) executable: usize,
    /// The executable's name and its path there: `probes::calls::counts_are_exact`.
    pub(super) name: String,
    /// Whether it says that it is only run when asked for.
    pub(super) ignored: bool,
}

impl Test {
    /// Its path within the executable.
    pub(super) fn path(&self) -> &str {
        self.name.split_once("::").map_or("", |(_, path)| path)
    }
}

/// The tests of all executables.
pub(super) fn list(executables: &[Executable]) -> io::Result<Vec<Test>> {
    let mut tests = Vec::new();
    for (index, executable) in executables.iter().enumerate() {
        let ignored: BTreeSet<String> = names(executable, &["--ignored"])?.into_iter().collect();
        for path in names(executable, &[])? {
            tests.push(Test {
                executable: index,
                name: format!("{}::{path}", executable.name),
                ignored: ignored.contains(&path),
            });
        }
    }
    Ok(tests)
}

fn names(executable: &Executable, more: &[&str]) -> io::Result<Vec<String>> {
    let output = Command::new(&executable.path)
        .args(["--list", "--format", "terse"])
        .args(more)
        .current_dir(&executable.folder)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "{} does not list its tests: {}",
            executable.path.display(),
            output.status
        )));
    }
    Ok(listed(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines `path: test`.
fn listed(text: &str) -> Vec<String> {
    let paths = text.lines().filter_map(|line| line.strip_suffix(": test"));
    paths.map(str::to_owned).collect()
}

/// Which tests are wanted, in libtest's words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Any of these is in the name; all tests if there are none.
    filters: Vec<String>,
    /// None of these is.
    skips: Vec<String>,
    exact: bool,
    ignored: Ignored,
    /// What tests say is shown though they pass.
    pub(super) shown: bool,
}

/// What becomes of tests that run only when asked for.
#[derive(Debug, Default, PartialEq, Eq)]
enum Ignored {
    #[default]
    Not,
    Too,
    Only,
}

impl Wanted {
    /// Reads what comes after `--`.
    pub(super) fn parse(words: &[String]) -> io::Result<Wanted> {
        let mut wanted = Wanted::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--exact" => wanted.exact = true,
                "--ignored" => wanted.ignored = Ignored::Only,
                "--include-ignored" => wanted.ignored = Ignored::Too,
                "--nocapture" | "--no-capture" | "--show-output" => wanted.shown = true,
                "--skip" => {
                    let name = words.next();
                    let name = name.ok_or_else(|| io::Error::other("--skip takes a name"))?;
                    wanted.skips.push(name.clone());
                }
                flag if flag.starts_with('-') => {
                    return Err(io::Error::other(format!(
                        "'{flag}' is not known here: name tests, or give --exact, --skip NAME, --ignored, \
                         --include-ignored or --nocapture"
                    )));
                }
                filter => wanted.filters.push(filter.to_owned()),
            }
        }
        Ok(wanted)
    }

    /// Whether a test is, by its name.
    pub(super) fn by_name(&self, test: &Test) -> bool {
        let is = |word: &String| {
            if self.exact {
                test.name == *word || test.path() == word
            } else {
                test.name.contains(word.as_str())
            }
        };
        (self.filters.is_empty() || self.filters.iter().any(is)) && !self.skips.iter().any(is)
    }

    /// Whether a test whose name is wanted is run, and not only counted.
    pub(super) fn runs(&self, test: &Test) -> bool {
        match self.ignored {
            Ignored::Not => !test.ignored,
            Ignored::Too => true,
            Ignored::Only => test.ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, ignored: bool) -> Test {
        Test {
            executable: 0,
            name: name.to_owned(),
            ignored,
        }
    }

    fn wanted(words: &[&str]) -> Wanted {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Wanted::parse(&words).unwrap()
    }

    #[test]
    fn lists_are_read() {
        let text = "a::b: test\nc: test\nd: bench\n\n2 tests, 1 benchmark\n";
        assert_eq!(listed(text), ["a::b", "c"]);
        assert_eq!(listed(""), [""; 0]);
    }

    #[test]
    fn filters_are_of_names() {
        let (one, two) = (test("x::a::one", false), test("y::b::two", true));
        let names = |words: &[&str]| {
            let wanted = wanted(words);
            [&one, &two].map(|test| wanted.by_name(test))
        };
        assert_eq!(names(&[]), [true, true]);
        assert_eq!(names(&["a::o"]), [true, false]);
        assert_eq!(names(&["one", "two"]), [true, true]);
        assert_eq!(names(&["--skip", "y::"]), [true, false]);
        assert_eq!(names(&["--exact", "a::one"]), [true, false]);
        assert_eq!(names(&["--exact", "y::b::two"]), [false, true]);
        assert_eq!(names(&["--exact", "one"]), [false, false]);
        assert!(wanted(&[]).runs(&one) && !wanted(&[]).runs(&two));
        assert!(!wanted(&["--ignored"]).runs(&one) && wanted(&["--ignored"]).runs(&two));
        let both = wanted(&["--include-ignored"]);
        assert!(both.runs(&one) && both.runs(&two));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        for words in [&["--frobnicate"][..], &["a", "--skip"]] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert!(Wanted::parse(&words).is_err(), "{words:?}");
        }
    }
}
