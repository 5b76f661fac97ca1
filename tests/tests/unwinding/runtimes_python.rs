//! Frames of CPython: chains that the program itself knows, by name, file and line.
//!
//! Oracle: `workloads/python_chains.py` says the chain of each of its leaves, as the interpreter has
//! it. Other sources of the same are not compared with: they would share the interpreter's layouts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{Event, FrameKind, Sink, StackEnd, Tables};
use profiler_tests::Outcome;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::statistics::at_least;
use profiler_tests::undisturbed::UNDISTURBED;
use rustix::process::Signal;

/// Most frames of Python in a sample.
const MAX_FRAMES: usize = 127;
/// Each leaf of the workload.
const LEAVES: [&str; 13] = [
    "leaf_async",
    "leaf_comprehension",
    "leaf_deep",
    "leaf_generator",
    "leaf_init",
    "leaf_key",
    "leaf_lambda",
    "leaf_made",
    "leaf_method",
    "leaf_partial",
    "leaf_qsort",
    "leaf_recursion",
    "leaf_thread",
];

/// A frame of Python, or of machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    interpreted: bool,
    named: bool,
    name: String,
    file: String,
    line: u32,
}

/// A user stack, leaf first.
#[derive(Debug)]
struct Stack {
    frames: Vec<Frame>,
    end: StackEnd,
}

impl Stack {
    fn interpreted(&self) -> Vec<&Frame> {
        self.frames
            .iter()
            .filter(|frame| frame.interpreted)
            .collect()
    }
}

#[derive(Default)]
struct Stacks(Vec<Stack>);

impl Sink for Stacks {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        let Event::Sample(sample) = event else {
            return Ok(());
        };
        let frames = tables.frames_of(sample.user).map(|id| {
            let line = tables.lines(id).last().copied();
            let function = line.and_then(|line| tables.functions.get(line.function));
            Frame {
                interpreted: tables
                    .frames
                    .get(id)
                    .is_some_and(|frame| frame.kind == FrameKind::Interpreted),
                named: function.is_some(),
                name: tables.frame_name(id),
                file: function
                    .and_then(|function| function.file)
                    .map_or(String::new(), |file| tables.string(file).to_owned()),
                line: line.map_or(0, |line| line.line),
            }
        });
        self.0.push(Stack {
            frames: frames.collect(),
            end: sample.user_end,
        });
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

fn stacks(capture: &Path) -> io::Result<Vec<Stack>> {
    let mut stacks = Stacks::default();
    let mut reader = Reader::open(capture).map_err(io::Error::other)?;
    let tables = reader.load_tables().map_err(io::Error::other)?;
    replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut stacks])
        .map_err(io::Error::other)?;
    Ok(stacks.0)
}

fn workload(name: &str) -> String {
    format!("{}/workloads/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An interpreter of a version: the system's, or one that `pyenv` has built.
fn python(version: &str) -> Option<PathBuf> {
    let name = format!("python{version}");
    let mut found: Vec<PathBuf> = ["/usr/bin", "/usr/local/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(&name))
        .collect();
    let built = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".pyenv")));
    for entry in built
        .and_then(|root| root.join("versions").read_dir().ok())
        .into_iter()
        .flatten()
    {
        if let Ok(entry) = entry
            && entry
                .file_name()
                .to_string_lossy()
                .starts_with(&format!("{version}."))
        {
            found.push(entry.path().join("bin").join(&name));
        }
    }
    found.into_iter().find(|path| path.exists())
}

/// Records the workload with these words before it, and compares each sample whose innermost frame of
/// Python is a leaf.
fn chains_are_known(setting: &Setting, python: &Path, before: &[&str]) -> Outcome {
    let python = python.to_string_lossy();
    let script = workload("python_chains.py");
    let mut arguments = vec!["-F", "999", "--"];
    arguments.extend(before);
    arguments.extend([&*python, &script, "4"]);
    let (ended, _) = setting.record(&arguments)?;
    let truth = ended.json()?;

    let (mut right, mut all) = (0, 0);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let stacks = stacks(&setting.path("out.cap"))?;
    for stack in &stacks {
        let frames = stack.interpreted();
        let Some(leaf) = frames.first() else { continue };
        let name = leaf.name.rsplit('.').next().unwrap_or_default();
        let Some(leaf) = LEAVES.iter().find(|leaf| **leaf == name) else {
            continue;
        };
        all += 1;
        *seen.entry(leaf).or_default() += 1;
        if is_chain(&truth[*leaf], &frames) {
            right += 1;
        } else if wrong.len() < 3 {
            wrong.push(frames);
        }
    }
    for leaf in LEAVES {
        at_least(
            &format!("samples of {leaf}"),
            seen.get(leaf).copied().unwrap_or(0),
            5,
            1.0,
        )?;
    }
    at_least(&format!("right chains, not: {wrong:#?}"), right, all, 0.99)?;
    eprintln!("{right} of {all} chains are right");

    // Where machine code was walked to its end, what calls back is between its caller and the callee.
    for stack in stacks
        .iter()
        .filter(|stack| stack.end == StackEnd::Complete)
    {
        let places: Vec<usize> = ["leaf_qsort", "qsort"]
            .iter()
            .filter_map(|name| {
                stack
                    .frames
                    .iter()
                    .position(|frame| frame.interpreted && frame.name == *name)
            })
            .collect();
        if let [callee, caller] = places[..] {
            let between = &stack.frames[callee + 1..caller];
            if !between.iter().any(|frame| frame.name.contains("sort")) {
                return Err(format!("no qsort between its callers: {:#?}", stack.frames).into());
            }
        }
    }
    Ok(())
}

/// Whether frames are what the interpreter says, up to the most that a sample has. The line of the
/// leaf is that of its loop or the one before.
fn is_chain(truth: &serde_json::Value, frames: &[&Frame]) -> bool {
    let Some(truth) = truth.as_array() else {
        return false;
    };
    if frames.len() != truth.len().min(MAX_FRAMES) {
        return false;
    }
    frames
        .iter()
        .zip(truth)
        .enumerate()
        .all(|(depth, (frame, truth))| {
            let line = truth[2].as_u64().unwrap_or(0);
            let own = u64::from(frame.line);
            frame.name == truth[0]
                && frame.file == truth[1]
                && (own == line || depth == 0 && own + 1 == line)
        })
}

#[test]
fn python_3_8_tells_its_chains() -> Outcome {
    version("3.8", "python_3_8_tells_its_chains")
}

#[test]
fn python_3_9_tells_its_chains() -> Outcome {
    version("3.9", "python_3_9_tells_its_chains")
}

#[test]
fn python_3_10_tells_its_chains() -> Outcome {
    version("3.10", "python_3_10_tells_its_chains")
}

#[test]
fn python_3_11_tells_its_chains() -> Outcome {
    version("3.11", "python_3_11_tells_its_chains")
}

#[test]
fn python_3_12_tells_its_chains() -> Outcome {
    version("3.12", "python_3_12_tells_its_chains")
}

#[test]
fn python_3_13_tells_its_chains() -> Outcome {
    version("3.13", "python_3_13_tells_its_chains")
}

fn version(version: &str, test: &str) -> Outcome {
    let Some(python) = python(version) else {
        skip(test, &format!("no python{version} on this machine"));
        return Ok(());
    };
    match Setting::new(&format!("runtimes_python::{test}"))? {
        Some(setting) => chains_are_known(&setting, &python, &[]),
        None => Ok(()),
    }
}

/// In a pid namespace of its own, and in a child that was forked and runs no new program.
#[test]
fn forked_children_and_nested_namespaces_are_no_different() -> Outcome {
    let test = "runtimes_python::forked_children_and_nested_namespaces_are_no_different";
    let (Some(setting), Some(python)) = (Setting::new(test)?, python("3.11")) else {
        return Ok(());
    };
    let before = ["unshare", "--pid", "--fork", "env", "FORKED=1"];
    chains_are_known(&setting, &python, &before)
}

/// A process has one tracer at most: names come although it has one, so nobody stops it for them.
#[test]
fn names_come_without_tracing_the_process() -> Outcome {
    let test = "runtimes_python::names_come_without_tracing_the_process";
    let (Some(setting), Some(python)) = (Setting::new(test)?, python("3.11")) else {
        return Ok(());
    };
    let tracer = workload("python_traced.py");
    chains_are_known(&setting, &python, &[&python.to_string_lossy(), &tracer])
}

/// Waits of the functions of `python_waits.py`: their names from the innermost one out, and how long.
#[derive(Default)]
struct Waited(Vec<(Vec<String>, u64)>);

impl Sink for Waited {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        if let Event::Sample(sample) = event
            && sample.wait.is_some()
        {
            let frames = tables.frames_of(sample.user).filter(|&id| {
                let frame = tables.frames.get(id);
                frame.is_some_and(|frame| frame.kind == FrameKind::Interpreted)
            });
            let names = frames.map(|id| tables.frame_name(id));
            self.0.push((names.collect(), sample.weight));
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

/// Functions that wait from the same frames of machine code are told apart, more often than stacks can
/// be walked: so by what tells the stacks that are known.
#[test]
fn waits_of_two_functions_are_not_confused() -> Outcome {
    let test = "runtimes_python::waits_of_two_functions_are_not_confused";
    let (Some(setting), Some(python)) = (Setting::new(test)?, python("3.11")) else {
        return Ok(());
    };
    let (python, script) = (python.to_string_lossy(), workload("python_waits.py"));
    // What takes it off its processor between its looks at the clock is no wait of its own.
    let command = [
        &["--off-cpu", "--"],
        &UNDISTURBED[..],
        &[&python, &script, "4"],
    ]
    .concat();
    let (ended, recording) = setting.record(&command)?;
    recording.nothing_lost()?;
    let truth = ended.json()?;
    let mut waited = Waited::default();
    let mut reader = Reader::open(&setting.path("out.cap"))?;
    let tables = reader.load_tables()?;
    replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut waited])?;
    for (name, callee) in [
        ("brief", None),
        ("lengthy", None),
        ("near", Some("pause")),
        ("far", Some("pause")),
    ] {
        let chain: Vec<&str> = callee
            .into_iter()
            .chain([name, "turn", "main", "<module>"])
            .collect();
        let own = waited.0.iter().filter(|(names, _)| *names == chain);
        let (count, ns) = own.fold((0, 0), |(count, sum), (_, ns)| (count + 1, sum + ns));
        let known = truth[name].as_u64().unwrap_or(0);
        // Some stand for others, by chance; were two of them confused, they would be off by a factor.
        if count < 500 || ns.abs_diff(known) > known / 5 {
            return Err(format!("{name}: {ns} ns of {known} in {count} waits").into());
        }
        eprintln!("{name}: {ns} ns of {known} in {count} waits");
    }
    Ok(())
}

/// Programs that only say that they are CPython: they are recorded like all others, and nothing that
/// they made up has a name.
/// A copy of the system's interpreter that says that it is 3.14.2.
fn as_version_3_14(
    setting: &Setting,
    python: &Path,
) -> Result<PathBuf, Box<dyn std::error::Error>> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let mut bytes = std::fs::read(python)?;
    let file = object::File::parse(&*bytes)?;
    let version = file.dynamic_symbols();
    let mut version = version.filter(|symbol| symbol.name() == Ok("Py_Version"));
    let address = version.next().ok_or("it has no Py_Version")?.address();
    let place = file.sections().find_map(|section| {
        let (offset, _) = section.file_range()?;
        let within = address.checked_sub(section.address())?;
        (within < section.size()).then_some((offset + within) as usize)
    });
    let place = place.ok_or("Py_Version is in no section")?;
    bytes[place..place + 4].copy_from_slice(&0x030e_02f0u32.to_ne_bytes());
    let copy = setting.path("python3.14");
    std::fs::write(&copy, bytes)?;
    std::fs::set_permissions(&copy, std::fs::metadata(python)?.permissions())?;
    Ok(copy)
}

/// Frames of a version that is not known are native ones: the summary says so, and of how many processes.
#[test]
fn versions_that_are_not_known_are_said() -> Outcome {
    let test = "versions_that_are_not_known_are_said";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let python = Path::new("/usr/bin/python3.11");
    if !python.exists() {
        skip(test, "no /usr/bin/python3.11");
        return Ok(());
    }
    let python = as_version_3_14(&setting, python)?;
    let python = python.to_string_lossy();
    let burn =
        "import os, time\nos.fork()\nt = time.time()\nwhile time.time() < t + 2: sum(range(999))";
    let capture = setting.path("out.cap");
    let (ended, _) = setting.record(&["-F", "499", "--", &python, "-c", burn])?;
    let all = stacks(&capture)?;
    let interpreted = all.iter().filter(|stack| !stack.interpreted().is_empty());
    assert_eq!(interpreted.count(), 0);
    assert!(all.len() > 100, "{} stacks", all.len());
    let note = "2 processes run CPython 3.14, whose frames are not known";
    assert!(ended.stderr.contains(note), "{}", ended.stderr);
    let notes = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("note:"));
    // One is about this machine's counters.
    let notes = notes.filter(|line| !line.contains("hardware"));
    assert_eq!(notes.count(), 1, "{}", ended.stderr);
    Ok(())
}

#[test]
fn hostile_interpreters_do_no_harm() -> Outcome {
    let test = "runtimes_python::hostile_interpreters_do_no_harm";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let hostile = setting.workload("python_hostile.c")?;
    for (kind, most) in [
        ("frames", MAX_FRAMES),
        ("threads", 0),
        ("nowhere", 0),
        ("broken", 2),
    ] {
        let (_, recording) =
            setting.record(&["-F", "999", "--", &hostile.to_string_lossy(), kind])?;
        recording.nothing_lost()?;
        let stacks = stacks(&setting.path("out.cap"))?;
        let works = |stack: &&Stack| stack.frames.iter().any(|frame| frame.name == "main");
        let working: Vec<&Stack> = stacks.iter().filter(works).collect();
        if working.len() < 20 {
            return Err(format!("{kind}: only {} samples", working.len()).into());
        }
        // Before it is known that it is an interpreter, there are none.
        let as_long = |stack: &&&Stack| stack.interpreted().len() == most;
        let right = working.iter().filter(as_long).count();
        at_least(&format!("{kind}: frames"), right, working.len(), 0.9)?;
        let mut frames = working.iter().flat_map(|stack| &stack.frames);
        if let Some(named) = frames.find(|frame| frame.interpreted && frame.named) {
            return Err(format!("{kind}: {named:?}").into());
        }
    }
    Ok(())
}

/// What a process has used of processors, in ticks.
fn used_ticks(pid: u32) -> Result<u64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// Code objects in a mapping of a file whose server never answers: whoever reads them waits in the kernel, and keeps the map
/// of the process's memory locked, with which the process could map nothing, nor anybody fork as soon as somebody attaches
/// a probe. So nobody reads them: the recording and the program go on, without their names.
#[test]
fn memory_that_never_comes_holds_nothing_up() -> Outcome {
    let test = "runtimes_python::memory_that_never_comes_holds_nothing_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let hostile = setting.workload("python_hostile.c")?;
    let mut silent = setting.start("silent", Command::new(hostile).arg("silent"))?;
    while !silent.stdout_so_far()?.contains("ready") {
        if silent.has_ended()? {
            skip(test, "needs FUSE (/dev/fuse)");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = silent.pid().to_string();
    let recorder = setting.start_recording(&["-F", "999", "-p", &pid])?;
    let (before, from) = (used_ticks(silent.pid())?, Instant::now());
    while used_ticks(silent.pid())? < before + 100 {
        assert!(from.elapsed() < LIMIT, "the program stands still");
        std::thread::sleep(Duration::from_millis(20));
    }
    recorder.signal(Signal::INT)?;
    let from = Instant::now();
    recorder.end(LIMIT)?.success()?;
    assert!(from.elapsed() < Duration::from_secs(20), "it was held up");
    assert!(
        !silent.stdout_so_far()?.contains("asked"),
        "who asked for it?"
    );
    silent.signal(Signal::KILL)?;
    let recording = setting.recording()?;
    let samples = recording.samples.iter();
    let named = samples.filter(|sample| sample.user.iter().any(|frame| frame.name == "main"));
    assert!(named.count() > 0, "nothing else was named");
    let mut frames = recording.samples.iter().flat_map(|sample| &sample.user);
    assert!(frames.any(|frame| frame.name.starts_with("[python 3.11]+")));
    Ok(())
}
