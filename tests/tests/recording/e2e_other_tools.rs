//! Other tools see what they would see without us, and nothing of ours stays behind.
//!
//! Beside each kind of recording, tools count a program that forks, and executes, exactly so many times: perf
//! (counting, and recording each hit), bpftrace, strace, gdb, and a second profiler. The oracle is what the
//! program does by construction, which each tool also counts when it is alone. What a recording holds in
//! the kernel is known by its ids, which are never given out again.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{held_by, wait_until_gone};
use profiler_tests::process::{Ended, Running, run};
use profiler_tests::recording::Recording;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip;
use profiler_tests::tracefs::Tracefs;
use rustix::process::Signal;

/// How often the program forks; each child executes another program.
const FORKS: u64 = 40;
/// What it is called: only its own hits are counted where a tool sees the whole machine, on which other tests have theirs.
fn forker_name() -> String {
    format!("forker{}", std::process::id())
}

/// What another tool counts.
const EVENTS: [&str; 3] = [
    "task:task_newtask",
    "sched:sched_process_fork",
    "sched:sched_process_exec",
];
/// Its own exec is one more.
const COUNTS: [u64; 3] = [FORKS, FORKS, FORKS + 1];

/// The machine, the program that forks, and one that is busy and calls `outer`.
struct Bench {
    setting: Setting,
    forker: PathBuf,
    busy: Running,
}

impl Bench {
    /// None where one of these tools is not installed.
    fn new(test: &str, tools: &[&str]) -> Result<Option<Bench>, Box<dyn std::error::Error>> {
        if !tools.iter().all(|tool| skip::has(test, tool)) {
            return Ok(None);
        }
        let Some(setting) = Setting::new(test)? else {
            return Ok(None);
        };
        let forker = setting.path(&forker_name());
        fs::copy(fs::canonicalize("/bin/sh")?, &forker)?;
        let mut chain = Command::new(setting.workload("chain.c")?);
        let busy = setting.start("busy", chain.args(["600000", "--seldom"]))?;
        Ok(Some(Bench {
            setting,
            forker,
            busy,
        }))
    }

    /// Kinds of recordings: what each is called, and its arguments.
    fn kinds(&self) -> Vec<(&'static str, Vec<String>)> {
        let pid = self.busy.pid().to_string();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let of_process = |text: &str| {
            let mut words = words(text);
            words.extend(["-p".to_owned(), pid.clone()]);
            words
        };
        vec![
            ("the machine", words("-a -F 999")),
            ("a process", of_process("-F 999")),
            ("each new task", words("-a -e task:task_newtask")),
            (
                "some execs",
                words("-a -e sched:sched_process_exec --period 7"),
            ),
            ("new tasks of a process", of_process("-e task:task_newtask")),
            ("waits", words("-a --off-cpu")),
            ("calls", of_process("--no-samples --trace outer")),
        ]
    }

    /// Runs a tool with the program that forks, where tracefs is mounted.
    fn beside(&self, tool: &[&str]) -> std::io::Result<Ended> {
        let mut command = Tracefs::Mounted.command();
        command.args(tool).args(self.forking());
        command.current_dir(self.setting.folder());
        run(&mut command, self.setting.folder(), "tool", LIMIT)
    }

    fn forking(&self) -> [String; 3] {
        let script = format!("n=0; while [ $n -lt {FORKS} ]; do /bin/true; n=$((n + 1)); done");
        let forker = self.forker.to_string_lossy().into_owned();
        [forker, "-c".to_owned(), script]
    }

    /// Each event as `perf stat` counts it: of the program, or on the whole machine.
    fn perf_stat(&self, all: bool) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
        let events = EVENTS.join(",");
        let mut tool = vec!["perf", "stat", "-x", ",", "-e", &events];
        if all {
            tool.push("-a");
        }
        tool.push("--");
        let ended = self.beside(&tool)?.success()?;
        let count = |line: &str| line.split(',').next()?.parse().ok();
        Ok(ended.stderr.lines().filter_map(count).collect())
    }

    /// How many hits `perf record` wrote of the first event.
    fn perf_record(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let data = self.setting.path("perf.data");
        let data = data.to_string_lossy();
        let record = [
            "perf", "record", "-q", "-c", "1", "-e", EVENTS[0], "-o", &data, "--",
        ];
        self.beside(&record)?.success()?;
        let script = ["perf", "script", "-i", &data, "-F", "comm,event"];
        let mut command = Tracefs::Mounted.command();
        command.args(script);
        let ended = run(&mut command, self.setting.folder(), "script", LIMIT)?.success()?;
        Ok(ended
            .stdout
            .lines()
            .filter(|line| line.contains(&forker_name()))
            .count() as u64)
    }

    /// How many system calls `execve` strace saw.
    fn strace(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let log = self.setting.path("strace.log");
        let path = log.to_string_lossy();
        self.beside(&["strace", "-f", "-e", "trace=execve", "-o", &path])?
            .success()?;
        let text = fs::read_to_string(&log)?;
        Ok(text.lines().filter(|line| line.contains("execve(")).count() as u64)
    }

    /// What bpftrace counts of the program's new tasks.
    fn bpftrace(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let program = format!(
            "tracepoint:task:task_newtask /comm == \"{}\"/ {{ @tasks = count(); }}",
            forker_name()
        );
        let forking = self.forking();
        // It splits its argument at spaces, and knows no quotes.
        let script = self.setting.path("forking.sh");
        fs::write(&script, &forking[2])?;
        let child = format!("{} {}", forking[0], script.display());
        let mut command = Tracefs::Mounted.command();
        command.args(["bpftrace", "-e", &program, "-c", &child]);
        let ended = run(&mut command, self.setting.folder(), "bpftrace", LIMIT)?.success()?;
        let line = ended
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("@tasks: "));
        Ok(line.unwrap_or("0").trim().parse()?)
    }

    /// How often a breakpoint of gdb was hit in a program that calls `outer`; it ends by itself.
    fn gdb(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let chain = self.setting.workload("chain.c")?;
        let mut command = Command::new("gdb");
        command
            .args(["-batch", "-nx", "-ex", "set debuginfod enabled off"])
            .args(["-ex", "break main", "-ex", "run", "-ex", "info breakpoints"])
            .args(["-ex", "continue", "--args"])
            .arg(chain)
            .arg("20");
        let ended = run(&mut command, self.setting.folder(), "gdb", LIMIT)?.success()?;
        assert!(ended.stdout.contains("exited normally"), "{}", ended.stdout);
        let hits = ended.stdout.lines().find_map(|line| {
            let words = line.trim().strip_prefix("breakpoint already hit ")?;
            words.split(' ').next()?.parse().ok()
        });
        hits.ok_or_else(|| format!("no hits: {}", ended.stdout).into())
    }

    /// Hits of an event that a second profiler records of the program: each is a sample.
    fn second(&self, event: &str) -> Result<u64, Box<dyn std::error::Error>> {
        let capture = self.setting.path("second.cap");
        let mut command = self.setting.profiler();
        command
            .args(["record", "--force", "-e", event, "-o"])
            .arg(&capture)
            .arg("--")
            .args(self.forking());
        run(&mut command, self.setting.folder(), "second", LIMIT)?.success()?;
        let recording = Recording::read(&capture)?;
        recording.nothing_lost()?;
        Ok(recording.samples.len() as u64)
    }

    /// Checks something alone, and beside each kind of recording, which must end well. Where it fails
    /// alone, another tool on this machine takes hits from everybody.
    fn alone_and_beside(&self, check: impl Fn() -> Outcome) -> Outcome {
        check().map_err(|error| format!("alone: {error}"))?;
        for (kind, arguments) in self.kinds() {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let recorder = self.setting.start_recording(&arguments)?;
            check().map_err(|error| format!("beside a recording of {kind}: {error}"))?;
            recorder.signal(Signal::INT)?;
            recorder.end(LIMIT)?.success()?;
        }
        Ok(())
    }
}

/// Whether a tool counts what there is.
fn same<F: PartialEq<E> + std::fmt::Debug, E: std::fmt::Debug>(
    tool: &str,
    found: &F,
    expected: &E,
) -> Outcome {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{tool} counts {found:?} instead of {expected:?}").into()),
    }
}

#[test]
fn perf_counts_and_records_what_it_does_alone() -> Outcome {
    let test = "e2e_other_tools::perf_counts_and_records_what_it_does_alone";
    let Some(bench) = Bench::new(test, &["perf"])? else {
        return Ok(());
    };
    bench.alone_and_beside(|| {
        same("perf stat", &bench.perf_stat(false)?, &COUNTS.to_vec())?;
        let everywhere = bench.perf_stat(true)?;
        let mut pairs = everywhere.iter().zip(COUNTS);
        if everywhere.len() != COUNTS.len() || pairs.any(|(found, least)| *found < least) {
            return Err(format!("perf stat -a counts {everywhere:?}").into());
        }
        same("perf record", &bench.perf_record()?, &FORKS)
    })
}

#[test]
fn debuggers_and_tracers_see_what_they_do_alone() -> Outcome {
    let test = "e2e_other_tools::debuggers_and_tracers_see_what_they_do_alone";
    let Some(bench) = Bench::new(test, &["bpftrace", "strace", "gdb"])? else {
        return Ok(());
    };
    bench.alone_and_beside(|| {
        same("strace", &bench.strace()?, &(FORKS + 1))?;
        same("gdb", &bench.gdb()?, &1)?;
        same("bpftrace", &bench.bpftrace()?, &FORKS)
    })
}

#[test]
fn two_profilers_record_what_one_does() -> Outcome {
    let test = "e2e_other_tools::two_profilers_record_what_one_does";
    let Some(bench) = Bench::new(test, &[])? else {
        return Ok(());
    };
    bench.alone_and_beside(|| same("the second", &bench.second(EVENTS[0])?, &FORKS))?;
    // The first one has its own all the same: those of two runs, one of them recorded by both.
    let recorder = bench.setting.start_recording(&["-a", "-e", EVENTS[0]])?;
    bench.second(EVENTS[0])?;
    let mut command = Command::new(&bench.forker);
    command.args(&bench.forking()[1..]);
    run(&mut command, bench.setting.folder(), "forker", LIMIT)?.success()?;
    recorder.signal(Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    let recording = bench.setting.recording()?;
    recording.nothing_lost()?;
    assert_eq!(recording.of_process(&forker_name()).len() as u64, 2 * FORKS);
    Ok(())
}

/// Mounts of what a profiler might mount.
fn mounts() -> std::io::Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let ours = |line: &&str| {
        [" tracefs ", " debugfs ", " bpf "]
            .iter()
            .any(|kind| line.contains(kind))
    };
    Ok(text.lines().filter(ours).map(str::to_owned).collect())
}

#[test]
fn nothing_is_left_behind() -> Outcome {
    let Some(bench) = Bench::new("e2e_other_tools::nothing_is_left_behind", &[])? else {
        return Ok(());
    };
    let before = mounts()?;
    for (kind, arguments) in bench.kinds() {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for signal in [Signal::INT, Signal::KILL] {
            let recorder = bench.setting.start_recording(&arguments)?;
            let held = held_by(recorder.pid())?;
            assert!(
                !held.programs.is_empty() && !held.maps.is_empty(),
                "{kind}: {held:?}"
            );
            recorder.signal(signal)?;
            recorder.end(LIMIT)?;
            wait_until_gone(&held, Duration::from_secs(10))
                .map_err(|error| format!("{kind}, {signal:?}: {error}"))?;
            assert_eq!(mounts()?, before, "{kind}, {signal:?}");
        }
    }
    Ok(())
}
