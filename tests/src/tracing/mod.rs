//! Tracing a program that knows its own calls, and comparing what was recorded with what it says.
//!
//! A [`Session`] starts a program, which waits; starts `profiler record --trace ..` on it; waits until
//! the probes are there; lets the program run. It gives a [`Run`]: what the program says of itself
//! ([`Truth`]), and what was recorded ([`Trace`]). Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: the programs (`tests/workloads/trace_*`), and what a test expects.

mod code;
mod oracle;
mod program;
mod report;
mod trace;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::{ChildStdin, Command};

pub use code::Code;
pub use program::{Build, prepared, program};
pub use report::CallReport;
pub use trace::{Call, Counts, Edge, Gap, How, Throw, Trace};

use crate::process::{Ended, Running};
use crate::setting::{LIMIT, Setting};

/// A program to trace, and how.
pub struct Session<'a> {
    setting: &'a Setting,
    program: &'a Path,
    arguments: Vec<String>,
    record: Vec<String>,
    probed: Vec<String>,
}

/// What came of it.
#[derive(Debug)]
pub struct Run {
    /// What the program says of itself.
    pub truth: Truth,
    /// How the program ended.
    pub program: Ended,
    /// Process id of the program.
    pub pid: u32,
    /// How the profiler ended.
    pub profiler: Ended,
    /// What was recorded.
    pub trace: Trace,
}

/// What a program says of its own calls.
#[derive(Debug)]
pub struct Truth {
    /// How often each function was called.
    pub calls: BTreeMap<String, u64>,
    /// How often each returned.
    pub returns: BTreeMap<String, u64>,
    /// All that it says.
    pub all: serde_json::Value,
}

/// A program and a profiler that watches it.
pub struct Live {
    /// The program; it waits for a line on `input`.
    pub program: Running,
    /// Standard input of the program.
    pub input: ChildStdin,
    /// The profiler.
    pub recorder: Running,
}

impl<'a> Session<'a> {
    /// Of `program`, which takes `--wait`.
    pub fn of(setting: &'a Setting, program: &'a Path) -> Session<'a> {
        Session {
            setting,
            program,
            arguments: Vec::new(),
            record: Vec::new(),
            probed: Vec::new(),
        }
    }

    /// Arguments of the program.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|a| (*a).into()));
        self
    }

    /// Arguments of `profiler record`.
    pub fn record(mut self, arguments: &[&str]) -> Self {
        self.record.extend(arguments.iter().map(|a| (*a).into()));
        self
    }

    /// Functions of the program (names of the symbol table) that must have probes before it runs on.
    pub fn probed(mut self, functions: &[&str]) -> Self {
        self.probed.extend(functions.iter().map(|f| (*f).into()));
        self
    }

    /// Starts the program and the profiler, and waits until the probes are there.
    pub fn start(&self) -> Result<Live, Box<dyn Error>> {
        let mut command = Command::new(self.program);
        command.args(&self.arguments).arg("--wait");
        let mut program = self.setting.start("program", &mut command)?;
        let input = program.stdin().ok_or("no pipe to the program")?;
        program.wait_until("its start", LIMIT, |program| met(program, "start", 1))?;
        let capture = self.setting.fresh("out.cap");
        let mut record = self.setting.profiler();
        record
            .args(["record", "-o", "out.cap"])
            .args(&self.record)
            .args(["-p", &program.pid().to_string()]);
        let mut recorder = Running::start(&mut record, self.setting.folder(), "record")?;
        let pid = program.pid();
        for function in &self.probed {
            recorder.wait_until(&format!("a probe on {function}"), LIMIT, |_| {
                Code::of(pid, self.program, function).is_ok_and(|code| code.is_probed())
            })?;
        }
        // Those that nobody waits for by name, and each exit, may come later: it gets its name when all are there.
        // One that refuses says so at its end.
        let begins = recorder.wait_until("recording", LIMIT, |_| capture.exists());
        begins.or_else(|error| match recorder.has_ended()? {
            true => Ok(()),
            false => Err(error),
        })?;
        Ok(Live {
            program,
            input,
            recorder,
        })
    }

    /// Runs all to the end. The profiler must succeed; the program's end is in the result.
    pub fn run(&self) -> Result<Run, Box<dyn Error>> {
        self.start()?.finish(self.setting)
    }
}

impl Live {
    /// Lets the program run on.
    pub fn resume(&mut self) -> io::Result<()> {
        self.input.write_all(b"go\n")
    }

    /// Lets the program run to its end, and the profiler, which ends with it.
    pub fn finish(mut self, setting: &Setting) -> Result<Run, Box<dyn Error>> {
        self.resume()?;
        let pid = self.program.pid();
        let program = self.program.end(LIMIT)?;
        let profiler = self.recorder.end(LIMIT)?.success()?;
        Ok(Run {
            truth: Truth::of(&program)?,
            program,
            pid,
            profiler,
            trace: Trace::read(&setting.path("out.cap"))?,
        })
    }
}

impl Run {
    /// Fails unless the program ended well, and found all its own results right.
    pub fn unharmed(&self) -> Result<(), String> {
        if self.program.status.success() && self.truth.all["good"] == true {
            Ok(())
        } else {
            Err(format!(
                "the program was harmed: {:?}, {}{}",
                self.program.status, self.program.stdout, self.program.stderr
            ))
        }
    }
}

impl Truth {
    /// Reads the last line that a program wrote. Without one it died.
    pub fn of(program: &Ended) -> Result<Truth, String> {
        let said = || format!("{:?} {} {}", program.status, program.stdout, program.stderr);
        let line = program.stdout.lines().last().ok_or_else(said)?;
        let all: serde_json::Value = serde_json::from_str(line).map_err(|_| said())?;
        if all.get("at").is_some() {
            return Err(format!("the program did not come to its end: {}", said()));
        }
        let counts = |key: &str| {
            let object = all[key].as_object().into_iter().flatten();
            object
                .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
                .collect()
        };
        Ok(Truth {
            calls: counts("calls"),
            returns: counts("returns"),
            all,
        })
    }
}

/// Whether a program has said `times` times that it waits at `place`.
pub fn met(program: &Running, place: &str, times: usize) -> bool {
    let wanted = format!("{{\"at\": \"{place}\"");
    program
        .stdout_so_far()
        .is_ok_and(|said| said.lines().filter(|l| l.starts_with(&wanted)).count() >= times)
}
