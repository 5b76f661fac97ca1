//! What perf records becomes a recording that says the same.
//!
//! Files made by hand, and those of perf itself -> samples with their threads, places and ends of stacks. What does not belong here:
//! other tools' files (`import`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::export_shared::*;
use crate::import::read;
use profiler_model::*;
use profiler_tests::perf_file::{BASE, FOUND, KERNEL, PerfFile, USER, perf_data};
use profiler_tests::scratch::Scratch;
use profiler_tests::skip;

/// What [`perf_data`] says.
#[test]
fn perf_data_are_read() {
    let ((tables, events), imported) = read(&perf_data(), None).unwrap();
    assert_eq!(
        (imported.samples, tables.session.host.as_str()),
        (3, "machine")
    );
    let samples = samples(&events);
    let of = |sample: &Sample| {
        let thread = tables.thread(sample.thread).unwrap();
        let process = tables.process(thread.process).unwrap();
        let source = tables.sources.get(sample.source).unwrap();
        (
            sample.at.0,
            process.pid.0,
            tables.string(source.name),
            sample.weight,
        )
    };
    let told: Vec<_> = samples.iter().map(|sample| of(sample)).collect();
    // In the order of time, each of its event.
    let expected = [
        (1900, 11, "cycles", 250),
        (2000, 10, "cpu-clock", 250),
        (2600, 11, "cpu-clock", 250),
    ];
    assert_eq!(told, expected);
    let places = |stack: Option<StackId>| -> Vec<(String, u64)> {
        let frames = tables
            .frames_of(stack)
            .map(|id| tables.frames.get(id).unwrap());
        frames
            .map(|frame| {
                let module = tables.modules.get(frame.module.unwrap()).unwrap();
                (tables.string(module.path).to_owned(), frame.address)
            })
            .collect()
    };
    let at = |path: &str, address| (path.to_owned(), address);
    // A child has the mappings of its parent until it runs another program; callers are where they go on.
    assert_eq!(
        places(samples[0].user),
        [at("/bin/parent", 0x2010), at("/bin/parent", 0x2030)]
    );
    assert_eq!(places(samples[1].kernel), [at("[kernel]", 0x123)]);
    assert_eq!(places(samples[2].user), [at("/bin/child", 4)]);
    let module = tables.frames_of(samples[2].user).next().unwrap();
    let module = tables.frames.get(module).unwrap().module.unwrap();
    let build_id = tables.modules.get(module).unwrap().build_id.clone();
    assert_eq!(build_id, Some(BuildId([0xab; 20].into())));
    let lost = events.iter().find_map(|event| match event {
        Event::Lost(lost) => Some((lost.to.0, lost.count)),
        _ => None,
    });
    assert_eq!(lost, Some((2700, 5)));
}

/// perf's own text of a recording says what its recording says here.
#[test]
fn perf_data_of_perf_itself_are_its_text() {
    let test = "import_perf_data::perf_data_of_perf_itself_are_its_text";
    let work = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; (j=0; while [ $j -lt 20000 ]; do j=$((j+1)); done)";
    let Some(file) = perf("text", &["-g"], work) else {
        return skip::skip(test, "perf does not record here");
    };
    let ((tables, events), _) = read(&std::fs::read(&file.0).unwrap(), None).unwrap();
    let (text, _) = read(&script(&file.0), None).unwrap();
    // Times, threads and weights; frames, but for the names, which perf looks for.
    let told = |(tables, events): &Recording| -> Vec<(u64, u32, u64, usize)> {
        let samples = events.iter().filter_map(|event| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        });
        samples
            .map(|sample| {
                let tid = tables.thread(sample.thread).unwrap().tid.0;
                let frames = tables
                    .frames_of(sample.kernel)
                    .chain(tables.frames_of(sample.user));
                // It prints microseconds.
                (sample.at.0 / 1000, tid, sample.weight, frames.count())
            })
            .collect()
    };
    let (ours, theirs) = (told(&(tables, events)), told(&text));
    assert!(ours.len() > 20);
    assert_eq!(ours, theirs);
}

fn samples(events: &[Event]) -> Vec<&Sample> {
    let mut samples = Vec::new();
    for event in events {
        if let Event::Sample(sample) = event {
            samples.push(sample);
        }
    }
    samples
}

/// The objects of a sample's user frames, leaf first.
fn objects(sample: &Sample, tables: &Tables) -> Vec<String> {
    let frames = tables.frames_of(sample.user);
    let path = |id| {
        let module = tables.frames.get(id).unwrap().module;
        let path = module.map(|module| tables.modules.get(module).unwrap().path);
        path.map_or_else(
            || "nothing".to_owned(),
            |path| tables.string(path).to_owned(),
        )
    };
    frames.map(path).collect()
}

/// Whose a sample is: process, thread, and what these were called then.
fn whose(sample: &Sample, tables: &Tables) -> (u32, u32, String, String) {
    let thread = tables.thread(sample.thread).unwrap();
    let process = tables.process(thread.process).unwrap();
    let then = tables.names_at(sample.thread, sample.at);
    let name = |then: Option<StringId>, last| tables.string(then.unwrap_or(last)).to_owned();
    (
        process.pid.0,
        thread.tid.0,
        name(then.process, process.name),
        name(then.thread, thread.name),
    )
}

/// A parent with 2,000 mappings has 1,500 children, one after another: together more mappings than are kept.
/// perf writes how long the records are, and what is behind them, when it ends.
#[test]
fn a_recording_that_was_killed_is_read_to_its_end() {
    let whole = perf_data();
    let (data_at, len) = (104 + 16 + 2 * 144, 48);
    let all = read(&whole, None).unwrap();
    assert!(!all.1.ends_early);
    let size = u64::from_le_bytes(whole[len..len + 8].try_into().unwrap()) as usize;
    let mut killed = whole[..data_at + size].to_vec();
    killed[len..len + 8].fill(0);
    let ((tables, events), imported) = read(&killed, None).unwrap();
    assert!(imported.ends_early);
    assert_eq!(samples(&events).len(), samples(&all.0.1).len());
    assert_eq!(tables.session.host, "", "it stands behind the records");
    // Within the last record, and within one of a sample.
    for (end, left) in [(data_at + size - 4, 3), (data_at + size - 250, 2)] {
        for lying in [false, true] {
            let mut cut = whole[..end].to_vec();
            if lying {
                cut[len..len + 8].fill(0);
            }
            let ((_, events), imported) = read(&cut, None).unwrap();
            assert!(imported.ends_early, "{end} {lying}");
            assert_eq!(samples(&events).len(), left, "{end} {lying}");
        }
    }
}

#[test]
fn what_has_ended_makes_room() {
    for (ends_are_told, numbers) in [(true, 1500), (false, 1)] {
        let mut file = PerfFile::default();
        file.comm((10, 10), "parent", true, 1);
        for mapping in 0..2000 {
            let start = 0x40_0000 + mapping * 0x1000;
            file.mmap(10, [start, 0x1000, 0], "/bin/parent", 2);
        }
        for child in 0..1500_u32 {
            let (id, at) = (20 + child % numbers, 10 + u64::from(child) * 10);
            file.fork((id, id), (10, 10), 0, at);
            file.mmap(id, [0x10_0000, 0x1000, 0], "/bin/child", at + 1);
            file.sample(7, (id, id), at + 2, &[USER, 0x10_0010, 0x40_0021]);
            if ends_are_told {
                file.exit((id, id), at + 3);
            }
        }
        let ((tables, events), imported) = read(&file.finish(), None).unwrap();
        assert_eq!(imported.samples, 1500);
        for sample in samples(&events) {
            assert_eq!(objects(sample, &tables), ["/bin/child", "/bin/parent"]);
        }
        // A number that is used again is another process.
        let processes: Vec<_> = tables.processes().collect();
        assert_eq!(processes.len(), 1500);
    }
}

#[test]
fn a_process_ends_with_its_last_thread() {
    let mut file = PerfFile::default();
    file.comm((10, 10), "program", true, 1);
    file.mmap(10, [0x40_0000, 0x1000, 0], "/bin/program", 2);
    file.fork((10, 11), (10, 10), 0, 3);
    file.comm((10, 11), "worker", false, 4);
    file.exit((10, 10), 10);
    file.sample(7, (10, 11), 11, &[USER, 0x40_0010]);
    // It runs another program, and has the number of the process then.
    file.comm((10, 10), "other", true, 20);
    file.mmap(10, [0x50_0000, 0x1000, 0], "/bin/other", 21);
    file.sample(7, (10, 10), 22, &[USER, 0x50_0010, 0x40_0011]);
    file.exit((10, 10), 30);
    file.sample(7, (10, 10), 31, &[USER, 0x50_0010]);
    let ((tables, events), _) = read(&file.finish(), None).unwrap();
    let told: Vec<_> = samples(&events)
        .iter()
        .map(|sample| (objects(sample, &tables), whose(sample, &tables)))
        .collect();
    let of = |objects: &[&str], tid, process: &str, thread: &str| {
        let objects: Vec<String> = objects.iter().map(|it| (*it).to_owned()).collect();
        (objects, (10, tid, process.to_owned(), thread.to_owned()))
    };
    let expected = [
        of(&["/bin/program"], 11, "other", "worker"),
        of(&["/bin/other", "nothing"], 10, "other", "other"),
        of(&["/bin/other"], 10, "other", "other"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn processes_that_ran_already_have_what_is_told_of_them_alone() {
    let mut file = PerfFile::default();
    file.comm((1, 1), "init", false, 0);
    file.mmap(1, [0x40_0000, 0x1000, 0], "/bin/init", 0);
    file.fork((50, 50), (1, 1), FOUND, 0);
    file.comm((50, 50), "program", false, 0);
    file.mmap(50, [0x50_0000, 0x1000, 0], "/bin/program", 0);
    file.fork((50, 51), (50, 50), FOUND, 0);
    file.comm((50, 51), "worker", false, 0);
    file.sample(7, (50, 51), 9, &[USER, 0x50_0010, 0x40_0011]);
    file.sample(7, (1, 1), 10, &[USER, 0x40_0010]);
    let ((tables, events), _) = read(&file.finish(), None).unwrap();
    let all = samples(&events);
    assert_eq!(objects(all[0], &tables), ["/bin/program", "nothing"]);
    assert_eq!(objects(all[1], &tables), ["/bin/init"]);
    let names = ("program".to_owned(), "worker".to_owned());
    assert_eq!(whose(all[0], &tables), (50, 51, names.0, names.1));
}

#[test]
fn names_are_those_of_the_time() {
    let mut file = PerfFile::default();
    file.comm((10, 10), "sh", true, 1);
    file.fork((11, 11), (10, 10), 0, 2);
    for (name, at) in [("sh", 5), ("env", 10), ("cc", 20), ("cc1", 30)] {
        file.comm((11, 11), name, true, at);
        file.sample(7, (11, 11), at + 1, &[USER, 0x1000]);
    }
    let ((tables, events), _) = read(&file.finish(), None).unwrap();
    let names: Vec<_> = samples(&events)
        .iter()
        .map(|sample| {
            let (_, _, process, thread) = whose(sample, &tables);
            assert_eq!(process, thread);
            process
        })
        .collect();
    assert_eq!(names, ["sh", "env", "cc", "cc1"]);
    assert_eq!(tables.processes().count(), 1);
}

#[test]
fn how_stacks_end_is_as_far_as_perf_knows() {
    let mut file = PerfFile::default();
    let deep = |context: u64, from: u64, frames: u64| -> Vec<u64> {
        let places = (0..frames).map(|frame| from + frame * 16);
        std::iter::once(context).chain(places).collect()
    };
    let both = |kernel, user| [deep(KERNEL, BASE, kernel), deep(USER, 0x1000, user)].concat();
    let chains = [
        both(2, 3),
        both(100, 27),
        both(127, 0),
        both(100, 26),
        vec![],
    ];
    for (chain, at) in chains.iter().zip(1..) {
        file.sample(7, (10, 10), at, chain);
    }
    let ((_, events), _) = read(&file.finish(), None).unwrap();
    let ends: Vec<_> = samples(&events)
        .iter()
        .map(|sample| (sample.kernel_end, sample.user_end))
        .collect();
    use StackEnd::*;
    let expected = [
        (Complete, FramePointer),
        (Complete, Truncated),
        (Truncated, NoStack),
        (Complete, FramePointer),
        (NoStack, LeafOnly),
    ];
    assert_eq!(ends, expected);
}

/// A file of perf itself, gone with this.
struct Recorded(PathBuf);

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// None if perf does not record here.
fn perf(name: &str, arguments: &[&str], work: &str) -> Option<Recorded> {
    let file = format!("import-{name}-{}.perf.data", std::process::id());
    let file = Recorded(std::env::temp_dir().join(file));
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "999"]);
    let output = record.args(arguments).arg("-o").arg(&file.0);
    let output = output.args(["--", "sh", "-c", work]).output();
    output
        .is_ok_and(|output| output.status.success())
        .then_some(file)
}

/// What perf says of its file.
fn script(file: &Path) -> Vec<u8> {
    let mut script = Command::new("perf");
    script
        .arg("script")
        .arg("-i")
        .arg(file)
        .output()
        .unwrap()
        .stdout
}

/// The whole machine beside a loop of short processes: each sample is of the thread that perf says, called as perf calls it, and as
/// many of its frames lie in a file.
#[test]
fn short_processes_of_perf_itself_are_its_text() {
    let test = "import_perf_data::short_processes_of_perf_itself_are_its_text";
    // Under names of its own: other programs of these names may run beside, and perf keeps what a process had mapped before an exec.
    let own = Scratch::new("import-loop").unwrap();
    for name in ["sh", "env", "true"] {
        let copied = own.file(&format!("{name}-loop"));
        std::fs::copy(Path::new("/usr/bin").join(name), copied).unwrap();
    }
    let work = format!(
        "PATH={}:$PATH; exec sh-loop -c 'i=0; while [ $i -lt 250 ]; do i=$((i+1)); (j=0; while [ $j -lt 300 ]; do j=$((j+1)); done); \
         env-loop true-loop; done'",
        own.folder().display()
    );
    let Some(file) = perf("short", &["-a", "-g"], &work) else {
        return skip::skip(test, "perf does not record here");
    };
    let (ours, _) = read(&std::fs::read(&file.0).unwrap(), None).unwrap();
    let (theirs, _) = read(&script(&file.0), None).unwrap();
    let told = |(tables, events): &Recording| {
        let mut told: Vec<_> = samples(events)
            .iter()
            .map(|sample| {
                let tid = tables.thread(sample.thread).unwrap().tid.0;
                let mut files = objects(sample, tables);
                files.retain(|path| path.starts_with('/') && !path.starts_with("/memfd:"));
                let files = files
                    .iter()
                    .map(|path| path.trim_end_matches(" (deleted)").to_owned());
                let has_stack = sample.kernel.is_some() || sample.user.is_some();
                let thread = (sample.at.0 / 1000, sample.cpu.0, tid);
                (thread, has_stack.then(|| files.collect::<Vec<_>>()))
            })
            .collect();
        told.sort_unstable();
        told
    };
    let (of_ours, of_theirs) = (told(&ours), told(&theirs));
    assert_eq!(of_ours.len(), of_theirs.len());
    let pairs = of_ours.iter().zip(&of_theirs);
    // Of the loop's processes. It prints nothing of a stack with an address like -1 in it.
    let mut of_loop = std::collections::BTreeSet::new();
    for sample in samples(&ours.1) {
        let (_, tid, _, name) = whose(sample, &ours.0);
        if name.ends_with("-loop") {
            of_loop.insert(tid);
        }
    }
    let same = |ours: &Told, theirs: &Told| theirs.1.is_none() || ours.1 == theirs.1;
    let different: Vec<_> = pairs
        .filter(|(ours, theirs)| {
            ours.0 != theirs.0 || of_loop.contains(&ours.0.2) && !same(ours, theirs)
        })
        .take(10)
        .collect();
    assert!(different.is_empty(), "{different:?}");
    let ((tables, events), names) = (&ours, names_of(&script(&file.0)));
    let ours: Vec<_> = samples(events)
        .iter()
        .map(|sample| (sample.at.0 / 1000, whose(sample, tables)))
        .map(|(at, (_, tid, _, name))| (at, tid, name))
        .collect();
    // What has no number any more has no name for perf.
    let different = ours
        .iter()
        .filter(|it| it.1 != u32::MAX && !names.contains(it));
    let different: Vec<_> = different.take(10).collect();
    assert!(different.is_empty(), "{different:?}");
    assert!(of_loop.len() > 100, "{} threads", of_loop.len());
    let called = |wanted: &str| ours.iter().filter(|(_, _, name)| name == wanted).count();
    assert!(called("sh-loop") > 10 && called("env-loop") + called("true-loop") > 10);
}

/// Time, processor and thread of a sample, and the files that its user frames lie in; none: it has no stack.
type Told = ((u64, u32, u32), Option<Vec<String>>);

/// Times, threads and their names of text.
fn names_of(text: &[u8]) -> std::collections::HashSet<(u64, u32, String)> {
    let text = String::from_utf8_lossy(text);
    let heads = text.lines().filter(|line| line.contains("cpu-clock:"));
    heads
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let cpu = words.iter().position(|word| word.starts_with('[')).unwrap();
            let (seconds, micros) = words[cpu + 1]
                .trim_end_matches(':')
                .split_once('.')
                .unwrap();
            let at = seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap();
            (
                at,
                words[cpu - 1].parse::<i64>().unwrap() as u32,
                words[..cpu - 1].join(" "),
            )
        })
        .collect()
}
