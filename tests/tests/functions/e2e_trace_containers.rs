//! Tracing functions in containers: all calls there, none of others that run the same file, which have
//! no probes in their code either.
//!
//! A container here is what makes one: a cgroup, a mount namespace, a root that is an overlay of a folder
//! (the image), a program in it that is linked statically. Oracle: the program obeys orders to call a
//! function so many times.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

use profiler_model::GapReason;
use profiler_target::cgroup::Hierarchies;
use profiler_tests::Outcome;
use profiler_tests::process::{Ended, Running};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::tracing::{Edge, Trace};
use profiler_tests::workload;

/// What the program says if there can't be such containers.
const UNABLE: i32 = 77;

/// Images and cgroups, which go with it.
struct Site {
    setting: Setting,
    /// The folder of all cgroups of this test.
    cgroups: PathBuf,
}

struct Container {
    running: Running,
    input: ChildStdin,
    cgroup: PathBuf,
    pid: u32,
    /// Address of the function.
    step: u64,
    /// Answers so far.
    answers: usize,
}

/// The program as two builds of it: in the second the function lies elsewhere.
fn program(other: bool) -> io::Result<PathBuf> {
    let inputs = ["trace_container.c", "trace.h"].map(workload::source_path);
    let name = if other {
        "trace_container-other"
    } else {
        "trace_container-static"
    };
    let built = workload::made(name, &inputs, |output| {
        let mut command = Command::new("cc");
        command.args([
            "-O2",
            "-g",
            "-static",
            "-no-pie",
            "-fno-toplevel-reorder",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]);
        command.args(other.then_some("-DOTHER"));
        command.arg("-o").arg(output).arg(&inputs[0]);
        ("cc", command)
    });
    built.map_err(io::Error::other)
}

impl Site {
    /// None, and said so, where there can be no containers.
    fn new(test: &str) -> Result<Option<Site>, Box<dyn Error>> {
        let Some(setting) = Setting::new(test)? else {
            return Ok(None);
        };
        let hierarchies = Hierarchies::read()?;
        let Some(hierarchy) = hierarchies.primary() else {
            skip(test, "no cgroups are mounted");
            return Ok(None);
        };
        let folder = format!("profiler-containers-{}", std::process::id());
        let cgroups = hierarchy.mount.join(folder);
        if let Err(error) = fs::create_dir(&cgroups) {
            skip(test, &format!("no cgroup can be made: {error}"));
            return Ok(None);
        }
        let site = Site { setting, cgroups };
        for (image, other) in [("image", false), ("other", true)] {
            let image = site.setting.path(image);
            fs::create_dir(&image)?;
            fs::copy(program(other)?, image.join("app"))?;
            // Containers know it by this path, the kernel by the other one.
            std::os::unix::fs::symlink("app", image.join("linked"))?;
        }
        let probe = site.start("probe", "image", "serve")?;
        match probe {
            Some(probe) => drop(probe.end()?),
            None => {
                skip(test, "no overlay can be mounted");
                return Ok(None);
            }
        }
        Ok(Some(site))
    }

    /// A container of an image that runs the program with an argument; none if that can't be.
    fn start(&self, name: &str, image: &str, argument: &str) -> io::Result<Option<Container>> {
        let cgroup = self.cgroups.join(name);
        fs::create_dir_all(&cgroup)?;
        let space = self.setting.path(&format!("{name}-space"));
        fs::create_dir_all(&space)?;
        let mut command = Command::new(program(false)?);
        command.arg(cgroup.join("cgroup.procs"));
        command.args([self.setting.path(image), space]);
        command.args(["/app", argument]);
        let mut running = self.setting.start(name, &mut command)?;
        let input = running.stdin().ok_or_else(|| io::Error::other("no pipe"))?;
        let mut container = Container {
            pid: running.pid(),
            running,
            input,
            cgroup,
            step: 0,
            answers: 0,
        };
        if argument.starts_with('-') {
            return Ok(Some(container));
        }
        let deadline = Instant::now() + LIMIT;
        while container.running.stdout_so_far()?.is_empty() {
            if container.running.has_ended()? {
                let ended = container.running.end(LIMIT)?;
                return match ended.status.code() {
                    Some(UNABLE) => Ok(None),
                    _ => Err(io::Error::other(format!("{ended:?}"))),
                };
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{name} did not start")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        container.greet()?;
        Ok(Some(container))
    }

    fn serve(&self, name: &str, image: &str) -> Result<Container, Box<dyn Error>> {
        Ok(self.start(name, image, "serve")?.ok_or("no container")?)
    }

    /// Traces `container_step` in cgroups of this test (none: in the one above them all), until the
    /// probes are where they should be.
    fn record(&self, names: &[&str], more: &[&str]) -> Result<Running, Box<dyn Error>> {
        let _ = fs::remove_file(self.setting.path("out.cap"));
        let mut command = self.setting.profiler();
        command.args(["record", "-o", "out.cap", "--budget", "off", "--no-samples"]);
        command.args(more);
        if names.is_empty() {
            command.arg("--cgroup").arg(&self.cgroups);
        }
        for name in names {
            command.arg("--cgroup").arg(self.cgroups.join(name));
        }
        Ok(Running::start(
            &mut command,
            self.setting.folder(),
            "record",
        )?)
    }

    fn end(&self, recorder: Running) -> Result<(Ended, Trace), Box<dyn Error>> {
        recorder.signal(rustix::process::Signal::INT)?;
        let ended = recorder.end(LIMIT)?.success()?;
        let trace = Trace::read(&self.setting.path("out.cap"))?;
        trace.complete()?;
        Ok((ended, trace))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let folders = fs::read_dir(&self.cgroups).into_iter().flatten().flatten();
        for folder in folders {
            let _ = fs::remove_dir(folder.path());
        }
        let _ = fs::remove_dir(&self.cgroups);
    }
}

impl Container {
    fn greet(&mut self) -> io::Result<()> {
        let said: serde_json::Value = self.line(0)?;
        let step = said["step"].as_u64();
        self.step = step.ok_or_else(|| io::Error::other(format!("no address: {said}")))?;
        self.answers = 1;
        Ok(())
    }

    fn line(&mut self, index: usize) -> io::Result<serde_json::Value> {
        self.running.wait_until("an answer", LIMIT, |running| {
            running
                .stdout_so_far()
                .is_ok_and(|said| said.matches('\n').count() > index)
        })?;
        let said = self.running.stdout_so_far()?;
        let line = said.lines().nth(index).unwrap_or_default();
        serde_json::from_str(line).map_err(io::Error::other)
    }

    /// Has it obey; which process did.
    fn order(&mut self, order: &str) -> Result<u32, Box<dyn Error>> {
        writeln!(self.input, "{order}")?;
        let said = self.line(self.answers)?;
        self.answers += 1;
        Ok(said["done"].as_u64().ok_or("no process")? as u32)
    }

    /// The first bytes of the function as the process has them.
    fn code(&self) -> io::Result<[u8; 8]> {
        let mut bytes = [0; 8];
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        memory.read_exact_at(&mut bytes, self.step)?;
        Ok(bytes)
    }

    /// Waits until there is a probe in the function.
    fn await_probe(&self, before: [u8; 8]) -> io::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.code()? == before {
            if Instant::now() > deadline {
                return Err(io::Error::other("no probe"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Its exits are attached with it, or a moment before; then hits begin to count.
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    }

    fn end(self) -> io::Result<Ended> {
        drop(self.input);
        let ended = self.running.end(LIMIT)?;
        // What is empty may still be busy for a moment.
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.cgroup).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(ended)
    }
}

/// How many calls a process has begun.
fn begun(trace: &Trace, pid: u32) -> usize {
    let of = trace.of("container_step").filter(|call| call.pid == pid);
    of.filter(|call| matches!(call.edge, Edge::Enter(_) | Edge::Hit(_)))
        .count()
}

fn all_begun(trace: &Trace) -> usize {
    let of = trace.of("container_step");
    of.filter(|call| matches!(call.edge, Edge::Enter(_) | Edge::Hit(_)))
        .count()
}

/// Of two containers of one image, one is traced: by the path, by a link that leads there, by a name.
#[test]
fn only_the_container_that_was_named() -> Outcome {
    let test = "e2e_trace_containers::only_the_container_that_was_named";
    let Some(site) = Site::new(test)? else {
        return Ok(());
    };
    for pattern in [
        "/app:container_step",
        "/linked:container_*",
        "container_step",
    ] {
        let (mut one, mut two) = (site.serve("one", "image")?, site.serve("two", "image")?);
        let before = two.code()?;
        let recorder = site.record(&["one"], &["--trace", pattern])?;
        one.await_probe(before)?;
        assert_eq!(two.code()?, before, "{pattern}: a stranger has a probe");
        one.order("call 1000")?;
        two.order("call 1000")?;
        // Children have what they need a moment later.
        let child = one.order("fork 200")?;
        two.order("fork 200")?;
        two.order("run 200")?;
        let later = site.serve("later", "image")?;
        assert_eq!(
            later.code()?,
            before,
            "{pattern}: a later stranger has a probe"
        );
        assert_eq!(two.code()?, before, "{pattern}: a stranger has a probe");
        let (_, trace) = site.end(recorder)?;
        assert_eq!(begun(&trace, one.pid), 1000, "{pattern}");
        let of_child = begun(&trace, child);
        assert_eq!(
            all_begun(&trace),
            1000 + of_child,
            "{pattern}: calls of strangers"
        );
        assert_eq!(
            trace.counts["container_step"].entries,
            1000 + of_child as u64
        );
        let is_gap = |gap: &&_| is_late(gap, child);
        assert!(
            of_child == 200 || trace.gaps.iter().any(|gap| is_gap(&gap)),
            "{:?}",
            trace.gaps
        );
        assert_eq!(one.code()?, before, "{pattern}: a probe was left behind");
        for container in [one, two, later] {
            container.end()?;
        }
    }
    Ok(())
}

fn is_late(gap: &profiler_tests::tracing::Gap, pid: u32) -> bool {
    gap.reason == GapReason::NotYetAttached && gap.pid == Some(pid)
}

/// Both have a program at the same path, but not the same program.
#[test]
fn the_same_path_with_other_contents() -> Outcome {
    let test = "e2e_trace_containers::the_same_path_with_other_contents";
    let Some(site) = Site::new(test)? else {
        return Ok(());
    };
    let (mut one, mut two) = (site.serve("one", "image")?, site.serve("two", "other")?);
    let (of_one, of_two) = (one.code()?, two.code()?);
    assert_ne!(one.step, two.step, "the builds are alike");
    let recorder = site.record(&["one", "two"], &["--trace", "/app:container_step"])?;
    one.await_probe(of_one)?;
    two.await_probe(of_two)?;
    one.order("call 300")?;
    two.order("call 500")?;
    let (_, trace) = site.end(recorder)?;
    assert_eq!((begun(&trace, one.pid), begun(&trace, two.pid)), (300, 500));
    assert_eq!((one.code()?, two.code()?), (of_one, of_two));
    one.end()?;
    two.end()?;
    Ok(())
}

/// What runs later in a container that is there: without more from when it is attached, the rest is a
/// gap. A container that comes later likewise.
#[test]
fn processes_and_containers_that_come_later() -> Outcome {
    let test = "e2e_trace_containers::processes_and_containers_that_come_later";
    let Some(site) = Site::new(test)? else {
        return Ok(());
    };
    let mut one = site.serve("one", "image")?;
    let before = one.code()?;
    let recorder = site.record(&[], &["--trace", "/app:container_step"])?;
    one.await_probe(before)?;
    let started = one.order("run 400")?;
    let mut later = site.serve("later", "image")?;
    later.await_probe(before)?;
    later.order("call 250")?;
    one.order("call 50")?;
    let (_, trace) = site.end(recorder)?;
    assert_eq!(
        (begun(&trace, one.pid), begun(&trace, later.pid)),
        (50, 250)
    );
    let of_started = begun(&trace, started);
    assert_eq!(all_begun(&trace), 300 + of_started);
    for (pid, whole) in [(started, of_started == 400), (later.pid, false)] {
        let said = trace.gaps.iter().any(|gap| is_late(gap, pid));
        assert!(whole || said, "{pid}: {:?}", trace.gaps);
    }
    one.end()?;
    later.end()?;
    Ok(())
}

/// Nothing is missed from the first instruction on, and who else pays is said.
#[test]
fn from_the_first_instruction() -> Outcome {
    let test = "e2e_trace_containers::from_the_first_instruction";
    let Some(site) = Site::new(test)? else {
        return Ok(());
    };
    // Of another program, so that nobody in it maps what is traced.
    let (mut one, mut two) = (site.serve("one", "image")?, site.serve("two", "image")?);
    let before = two.code()?;
    let more = ["--trace", "/app:container_step", "--follow-exact"];
    let recorder = site.record(&["one"], &more)?;
    two.await_probe(before)?;
    let mut expected = Vec::new();
    for calls in [400, 1, 77] {
        expected.push((one.order(&format!("run {calls}"))?, calls));
        expected.push((one.order(&format!("fork {calls}"))?, calls));
        two.order(&format!("run {calls}"))?;
    }
    two.order("call 5000")?;
    let (ended, trace) = site.end(recorder)?;
    for (pid, calls) in &expected {
        assert_eq!(begun(&trace, *pid), *calls, "{:?}", trace.gaps);
    }
    let all: usize = expected.iter().map(|(_, calls)| calls).sum();
    assert_eq!(all_begun(&trace), all);
    assert_eq!(trace.counts["container_step"].entries, all as u64);
    assert!(
        ended.stderr.contains(": 1 other process"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("at the end"), "{}", ended.stderr);
    assert_eq!(two.code()?, before);
    one.end()?;
    two.end()?;
    Ok(())
}

/// The same of a container that starts while this is recorded, whose image nobody has run before: it
/// waits for its program as container runtimes do between creating and starting one.
#[test]
fn a_container_from_its_first_instruction() -> Outcome {
    let test = "e2e_trace_containers::a_container_from_its_first_instruction";
    let Some(site) = Site::new(test)? else {
        return Ok(());
    };
    let more = ["--trace", "/app:container_step", "--follow-exact"];
    let recorder = site.record(&[], &more)?;
    let capture = site.setting.path("out.cap");
    let deadline = Instant::now() + LIMIT;
    while !Path::new(&capture).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(700));
    let mut pids = Vec::new();
    for (name, image) in [("one", "image"), ("two", "other"), ("three", "image")] {
        let mut container = site.start(name, image, "-300")?.ok_or("no container")?;
        // Longer than it takes to read the program in a build that is not optimised.
        std::thread::sleep(Duration::from_millis(1500));
        container.input.write_all(b"\n")?;
        pids.push(container.pid);
        container.end()?;
    }
    let (_, trace) = site.end(recorder)?;
    let seen: Vec<usize> = pids.iter().map(|&pid| begun(&trace, pid)).collect();
    assert_eq!(seen, [300, 300, 300], "{:?}", trace.gaps);
    assert_eq!(trace.counts["container_step"].entries, 900);
    Ok(())
}

/// The name of a folder of cgroups says nothing of what is beside it.
#[test]
fn paths_are_compared_by_their_parts() -> Outcome {
    let test = "e2e_trace_containers::paths_are_compared_by_their_parts";
    let Some(site) = Site::new(test)? else {
        return Ok(());
    };
    let (mut one, mut ten) = (site.serve("c1", "image")?, site.serve("c10", "image")?);
    let before = ten.code()?;
    let recorder = site.record(&["c1"], &["--trace", "container_step"])?;
    one.await_probe(before)?;
    assert_eq!(ten.code()?, before);
    one.order("call 10")?;
    ten.order("call 10")?;
    let (_, trace) = site.end(recorder)?;
    assert_eq!(all_begun(&trace), 10);
    one.end()?;
    ten.end()?;
    Ok(())
}
