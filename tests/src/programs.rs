//! Programs of Debian, run with and without the profiler, to see that it makes no difference.
//!
//! Input: a [`Program`] of the [`table`]. Output: what came of a run ([`Ran`]): exit status, outputs, results,
//! all through the program's filter, which takes out what differs from run to run by itself.
//!
//! Each run has an empty folder of its own, always at the same path, and a fixed environment. What belongs
//! to a run and is not traced (its preparation, the clients of a server, the reading of results) is a shell
//! script. Servers listen on loopback or on a socket in that folder, and their clients end them.
//!
//! What does not belong here: which ways of tracing are tried, and what is expected of them (the tests).

pub mod builds;
pub mod chosen;

pub mod table;

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use regex::Regex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::process::{self, Ended, Running};
use crate::setting::Setting;

/// How long one run may take. A traced one is slower, some hundred times if each call of a small function
/// is watched.
pub const LIMIT: Duration = Duration::from_secs(1200);

/// When a program is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Whenever tests run.
    Always,
    /// With `cargo xtask test --long`.
    Long,
}

/// A program, and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in messages.
    pub name: &'static str,
    /// When it is tried.
    pub when: When,
    /// Debian packages that it takes.
    pub packages: &'static [&'static str],
    /// Programs of our own that it takes (`builds::ALL`), put beside the run's folder.
    pub builds: &'static [&'static str],
    /// Script that makes what it works on.
    pub prepare: &'static str,
    /// What is run, and traced.
    pub command: &'static [&'static str],
    /// Script that runs beside it: of a server, its clients and its end. Its output counts.
    pub client: &'static str,
    /// Script that shows what it has made.
    pub results: &'static str,
    /// What differs from run to run, as regular expressions, and what is put in its place.
    pub filter: &'static [(&'static str, &'static str)],
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Exit status; of a program that a signal ended, 128 and its number.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error, without what the profiler says.
    pub stderr: String,
    /// Output of the client.
    pub client: String,
    /// What it has made.
    pub results: String,
}

/// What the profiler says of a traced run.
#[derive(Debug)]
pub struct Said {
    /// All that it wrote.
    pub all: String,
    /// How many calls it recorded.
    pub calls: u64,
}

impl Program {
    /// The first package that it takes and that is not installed.
    pub fn missing(&self) -> Option<&'static str> {
        let installed = |package: &str| {
            Command::new("dpkg-query")
                .args(["--show", "--showformat=${db:Status-Status}", package])
                .output()
                .is_ok_and(|query| query.stdout == b"installed")
        };
        self.packages.iter().copied().find(|p| !installed(p))
    }

    /// Runs it without the profiler.
    pub fn run(&self, setting: &Setting) -> Result<Ran, Box<dyn Error>> {
        let mut command = Command::new(self.command[0]);
        command.args(&self.command[1..]);
        let (ran, _) = self.run_as(setting, command)?;
        Ok(ran)
    }

    /// Runs it under `profiler record` with these options.
    pub fn record(
        &self,
        setting: &Setting,
        options: &[String],
    ) -> Result<(Ran, Said), Box<dyn Error>> {
        let mut command = Command::new(setting.profiler_path());
        command
            .args(["record", "--color", "never", "--force", "-o"])
            .arg(setting.path("out.cap"))
            .args(options)
            .arg("--")
            .args(self.command);
        let (mut ran, ended) = self.run_as(setting, command)?;
        let ours = ["profiler/src", "profiler/crates"];
        let ours = ours.iter().any(|place| ended.stderr.contains(place));
        if ours && ended.stderr.contains("panicked at") {
            return Err(format!("the profiler panicked: {}", ended.stderr).into());
        }
        let calls = calls_recorded(&ended.stderr);
        ran.stderr = self.filtered(&without_profiler(&ended.stderr))?;
        let said = Said {
            all: ended.stderr,
            calls,
        };
        Ok((ran, said))
    }

    fn run_as(
        &self,
        setting: &Setting,
        mut command: Command,
    ) -> Result<(Ran, Ended), Box<dyn Error>> {
        let folder = self.fresh_folder(setting)?;
        self.script("prepare", self.prepare, setting, &folder)?
            .success()?;
        in_surroundings(&mut command, &folder);
        // Whatever is left of it after a failure can be ended.
        command.process_group(0).stdin(Stdio::null());
        let running = Running::start(&mut command, setting.folder(), "program")?;
        let group = Pid::from_raw(running.pid().cast_signed());
        let rest = || -> Result<(Ended, Ended), Box<dyn Error>> {
            let client = self.script("client", self.client, setting, &folder)?;
            Ok((running.end(LIMIT)?, client))
        };
        let (ended, client) = match rest() {
            Ok(both) => both,
            Err(error) => {
                if let Some(group) = group {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                return Err(error);
            }
        };
        let results = self.script("results", self.results, setting, &folder)?;
        let ran = Ran {
            status: status_of(ended.status),
            stdout: self.filtered(&ended.stdout)?,
            stderr: self.filtered(&without_profiler(&ended.stderr))?,
            client: self.filtered(&all_of(&client))?,
            results: self.filtered(&all_of(&results))?,
        };
        Ok((ran, ended))
    }

    /// Runs one of its scripts to the end.
    fn script(
        &self,
        name: &str,
        script: &str,
        setting: &Setting,
        folder: &Path,
    ) -> io::Result<Ended> {
        let mut shell = Command::new("/bin/bash");
        shell.args(["-eu", "-c", script]);
        in_surroundings(&mut shell, folder);
        process::run(&mut shell, setting.folder(), name, LIMIT)
    }

    fn fresh_folder(&self, setting: &Setting) -> Result<PathBuf, Box<dyn Error>> {
        for build in self.builds {
            let built = builds::built(build)?;
            let copy = setting.path(build);
            if !copy.exists() {
                fs::copy(built, copy)?;
            }
        }
        let folder = setting.path("work");
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    fn filtered(&self, text: &str) -> Result<String, regex::Error> {
        let mut text = text.to_owned();
        for (what, instead) in self.filter {
            text = Regex::new(what)?.replace_all(&text, *instead).into_owned();
        }
        Ok(text)
    }
}

impl Ran {
    /// What is different in another run, for people; none if they are equal.
    pub fn difference(&self, other: &Ran) -> Option<String> {
        if self.status != other.status {
            return Some(format!(
                "exit status {} instead of {}; it said: {}",
                other.status,
                self.status,
                end_of(&other.stderr)
            ));
        }
        let parts = [
            ("standard output", &self.stdout, &other.stdout),
            ("standard error", &self.stderr, &other.stderr),
            ("output of the client", &self.client, &other.client),
            ("results", &self.results, &other.results),
        ];
        parts.iter().find_map(|(what, mine, its)| {
            let at = (mine.lines().zip(its.lines())).position(|(mine, its)| mine != its);
            let at = match at {
                Some(at) => at,
                None if mine == its => return None,
                None => mine.lines().count().min(its.lines().count()),
            };
            let line = |text: &str| match text.lines().nth(at) {
                Some(line) => format!("'{}'", line.chars().take(300).collect::<String>()),
                None => "nothing".to_owned(),
            };
            Some(format!(
                "{what}, line {}: {} instead of {}",
                at + 1,
                line(its),
                line(mine)
            ))
        })
    }
}

/// A fixed environment and a folder.
fn in_surroundings(command: &mut Command, folder: &Path) {
    command
        .current_dir(folder)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", folder)
        .env("USER", "root")
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC")
        .env("TERM", "dumb");
}

fn status_of(status: ExitStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    status.code().or(by_signal).unwrap_or(-1)
}

fn all_of(ended: &Ended) -> String {
    format!(
        "{}{}status {}\n",
        ended.stdout,
        ended.stderr,
        status_of(ended.status)
    )
}

/// The last lines of a text.
fn end_of(text: &str) -> &str {
    let from = text.len().saturating_sub(600);
    &text[text.ceil_char_boundary(from)..]
}

/// Standard error without the lines of the profiler, which writes there too.
fn without_profiler(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.filter(|line| !is_of_profiler(line)).collect()
}

fn is_of_profiler(line: &str) -> bool {
    const BEGIN: [&str; 5] = ["profiler: ", "note: ", "lost: ", "user stacks: ", "wrote "];
    let counts = |line: &str| {
        let line = without_at_least(line);
        let number = line.split(' ').next().unwrap_or_default();
        let digits = number.chars().all(|c| c.is_ascii_digit() || c == ',');
        let rest = &line[number.len()..];
        digits
            && [" sample of ", " samples of ", " call; ", " calls; "]
                .iter()
                .any(|begin| rest.starts_with(begin))
    };
    BEGIN.iter().any(|begin| line.starts_with(begin)) || counts(line)
}

/// `2,348 calls; 4,204 functions had probes` -> 2348, and so with `at least` before it.
fn calls_recorded(text: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.ends_with("had probes") || line.contains(" had probes, "));
    let line = line.map(without_at_least);
    let number = line.and_then(|line| line.split_once(" call"));
    number
        .and_then(|(number, _)| number.replace(',', "").parse().ok())
        .unwrap_or(0)
}

/// A line that counts, without the words before a number that is a bound.
fn without_at_least(line: &str) -> &str {
    line.strip_prefix("at least ").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_profiler_says_is_told_from_what_the_program_says() {
        let text = "ls: no such file\nprofiler: x is not traced\n2,348 calls; 4,204 functions had probes\n\
                    1 sample of 1 process in 0.1 s\n12 samples\n";
        assert_eq!(without_profiler(text), "ls: no such file\n12 samples\n");
        assert_eq!(calls_recorded(text), 2348);
        assert_eq!(calls_recorded("nothing"), 0);
        let least = "at least 4,023 calls; 526 functions had probes\n";
        assert_eq!(
            (without_profiler(least), calls_recorded(least)),
            (String::new(), 4023)
        );
    }

    #[test]
    fn differences_name_their_place() {
        let ran = Ran {
            status: 0,
            stdout: "a\nb\n".into(),
            stderr: String::new(),
            client: String::new(),
            results: String::new(),
        };
        assert_eq!(ran.difference(&ran), None);
        let mut other = ran.clone();
        other.stdout = "a\nc\n".into();
        let said = ran.difference(&other).unwrap();
        assert_eq!(said, "standard output, line 2: 'c' instead of 'b'");
        other.stdout = "a\n".into();
        let said = ran.difference(&other).unwrap();
        assert_eq!(said, "standard output, line 2: nothing instead of 'b'");
        other.status = 139;
        assert!(ran.difference(&other).unwrap().contains("139 instead of 0"));
    }
}
