//! The least set of capabilities: with it everything works, without one of it what the documentation says
//! is lost is lost and nothing else, and what a session has no use for any more is given up.
//!
//! The profiler runs as a user who is not root, with ambient capabilities (`setpriv`). Workloads of yet
//! another user are the oracle: one whose program anybody may read, one whose program only its owner may,
//! one that deletes its program, one whose library is deleted, and one whose program is in a mount
//! namespace of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use profiler_probe::privileges::{CapabilitySet, USES, recording_set};
use profiler_tests::Outcome;
use profiler_tests::containers::{Docker, NOW_AND_THEN, Root};
use profiler_tests::kernel_objects::keepers_of;
use profiler_tests::process::{Ended, Running, run};
use profiler_tests::recording::{Recording, Sample};
use profiler_tests::setting::LIMIT;
use profiler_tests::skip::skip;
use rustix::process::Signal;

use super::unprivileged::{NOBODY, Unprivileged};
use profiler_tests::statistics::at_least;
use profiler_tests::undisturbed::{leave_undisturbed, lend_most};

/// Who runs what is profiled.
const SOMEBODY: u32 = 1000;

const READABLE: &str = "w_readable";
const PRIVATE: &str = "w_private";
const DELETED: &str = "w_deleted";
const LIBRARY: &str = "w_library";
const ELSEWHERE: &str = "w_elsewhere";
const WORKLOADS: [&str; 5] = [READABLE, PRIVATE, DELETED, LIBRARY, ELSEWHERE];

/// What is recorded into.
const CAPTURE: &str = "out.cap";

struct Bench {
    unprivileged: Unprivileged,
    _paranoid: Paranoid,
}

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The kernel's own default for who may see what, while a test runs: with less than 2 it shows its
/// addresses to everybody. Holds what was there before.
struct Paranoid(String);

impl Paranoid {
    fn begin() -> std::io::Result<Paranoid> {
        let before = fs::read_to_string(PARANOID)?.trim().to_owned();
        if before.parse().is_ok_and(|level: i32| level < 2) {
            fs::write(PARANOID, "2")?;
        }
        Ok(Paranoid(before))
    }
}

impl Drop for Paranoid {
    fn drop(&mut self) {
        // It could be written before.
        let _ = fs::write(PARANOID, &self.0);
    }
}

impl Bench {
    fn new(test: &str) -> Result<Option<Bench>, Box<dyn std::error::Error>> {
        let Some(unprivileged) = Unprivileged::new(test)? else {
            return Ok(None);
        };
        Ok(Some(Bench {
            unprivileged,
            _paranoid: Paranoid::begin()?,
        }))
    }

    /// The profiler as this user with exactly these capabilities, and no way to others.
    fn profiler(&self, user: u32, capabilities: CapabilitySet) -> Command {
        let setpriv = Command::new("setpriv");
        self.unprivileged.profiler(setpriv, user, capabilities)
    }

    fn run(
        &self,
        user: u32,
        capabilities: CapabilitySet,
        arguments: &[&str],
    ) -> std::io::Result<Ended> {
        let mut command = self.profiler(user, capabilities);
        run(
            command.args(arguments),
            self.unprivileged.setting.folder(),
            "as",
            LIMIT,
        )
    }

    /// Records as this user with these capabilities, which must work.
    fn record(
        &self,
        user: u32,
        capabilities: CapabilitySet,
        arguments: &[&str],
    ) -> Result<(Ended, Recording), Box<dyn std::error::Error>> {
        let capture = self.unprivileged.folder.join(CAPTURE);
        let _ = fs::remove_file(&capture);
        let all = [&["record", "-o", CAPTURE], arguments].concat();
        let ended = self.run(user, capabilities, &all)?.success()?;
        Ok((ended, Recording::read(&capture)?))
    }

    /// The same of workloads that run in the time that is recorded, and stand still before and after it: five that are busy
    /// hold up whatever else the machine does.
    fn record_workloads(
        &self,
        workloads: &Workloads,
        user: u32,
        capabilities: CapabilitySet,
        arguments: &[&str],
    ) -> Result<(Ended, Recording), Box<dyn std::error::Error>> {
        let command = self.profiler(user, capabilities);
        self.record_workloads_by(workloads, command, arguments)
    }

    fn record_workloads_by(
        &self,
        workloads: &Workloads,
        mut profiler: Command,
        arguments: &[&str],
    ) -> Result<(Ended, Recording), Box<dyn std::error::Error>> {
        let capture = self.unprivileged.folder.join(CAPTURE);
        let _ = fs::remove_file(&capture);
        profiler.args(["record", "-o", CAPTURE]).args(arguments);
        let folder = self.unprivileged.setting.folder();
        let mut recorder = Running::start(profiler.stdin(Stdio::null()), folder, "as")?;
        // It gets its name when all is attached and time counts.
        recorder.wait_until("recording", LIMIT, |_| capture.exists())?;
        workloads.signal(Signal::CONT)?;
        std::thread::sleep(RECORDED);
        workloads.signal(Signal::STOP)?;
        let ended = recorder.end(LIMIT)?.success()?;
        Ok((ended, Recording::read(&capture)?))
    }

    /// A copy of the chain under this name.
    fn chain(&self, name: &str) -> std::io::Result<PathBuf> {
        self.copy("chain.c", name, name)
    }

    /// A copy of what is built of `source`, in the folder of a workload.
    fn copy(&self, source: &str, workload: &str, name: &str) -> std::io::Result<PathBuf> {
        let folder = self.unprivileged.setting.path(&format!("of-{workload}"));
        fs::create_dir_all(&folder)?;
        let copy = folder.join(name);
        fs::copy(self.unprivileged.setting.workload(source)?, &copy)?;
        chown(&folder, Some(SOMEBODY), Some(SOMEBODY))?;
        chown(&copy, Some(SOMEBODY), Some(SOMEBODY))?;
        Ok(copy)
    }

    fn start(&self, name: &str, command: &mut Command) -> std::io::Result<Running> {
        let mut running = self.unprivileged.setting.start(name, command)?;
        let comm = format!("/proc/{}/comm", running.pid());
        running.wait_until("running the workload", LIMIT, |_| {
            fs::read_to_string(&comm).is_ok_and(|text| text.trim() == name)
        })?;
        Ok(running)
    }

    fn start_plain(&self, name: &str, arguments: &[&str]) -> std::io::Result<Running> {
        let program = self.chain(name)?;
        if name == PRIVATE {
            fs::set_permissions(&program, fs::Permissions::from_mode(0o700))?;
        }
        let mut command = Command::new(program);
        command.arg("600000").args(arguments);
        self.start(name, command.uid(SOMEBODY).gid(SOMEBODY))
    }

    /// One that burns in a library, whose file is gone.
    fn start_with_deleted_library(&self) -> std::io::Result<Running> {
        let program = self.copy("dlopen_late.c", LIBRARY, LIBRARY)?;
        let library = self.copy("plugin.c", LIBRARY, "plugin.so")?;
        let mut command = Command::new(program);
        // Milliseconds before it is loaded, and in it.
        command.arg("1").arg(&library).arg("600000");
        command.uid(SOMEBODY).gid(SOMEBODY);
        let mut running = self.start(LIBRARY, &mut command)?;
        let maps = format!("/proc/{}/maps", running.pid());
        running.wait_until("loading the library", LIMIT, |_| {
            fs::read_to_string(&maps).is_ok_and(|text| text.contains("plugin.so"))
        })?;
        fs::remove_file(library)?;
        Ok(running)
    }

    /// All workloads, each busy where it may run; they stand still.
    fn workloads(&self) -> std::io::Result<Workloads> {
        let mut running = vec![
            self.start_plain(READABLE, &[])?,
            self.start_plain(PRIVATE, &[])?,
            self.start_plain(DELETED, &["--unlink"])?,
            self.start_with_deleted_library()?,
        ];
        let script = format!(
            "mount -t tmpfs tmpfs /mnt && cp {from} /mnt/{ELSEWHERE} && chmod 755 /mnt/{ELSEWHERE} && \
             exec setpriv --reuid {SOMEBODY} --regid {SOMEBODY} --clear-groups /mnt/{ELSEWHERE} 600000",
            from = self.unprivileged.setting.workload("chain.c")?.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        running.push(self.start(ELSEWHERE, &mut command)?);
        std::thread::sleep(Duration::from_millis(300));
        let workloads = Workloads(running);
        workloads.signal(Signal::STOP)?;
        Ok(workloads)
    }
}

/// Those of [`WORKLOADS`], in its order.
struct Workloads(Vec<Running>);

impl Workloads {
    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        self.0.iter().try_for_each(|one| one.signal(signal))
    }
}

/// The workloads whose functions have names, of those that were sampled, which all must be. Names are
/// there for nearly all samples of a workload, or for none.
fn named(recording: &Recording) -> Result<Vec<&'static str>, String> {
    let mut found = Vec::new();
    for name in WORKLOADS {
        let samples = recording.of_process(name);
        if samples.len() < 20 {
            return Err(format!("{name} has {} samples", samples.len()));
        }
        // On a busy machine the first stacks may end before all callers are found: tables come first.
        let functions: &[&str] = if name == LIBRARY {
            &["plugin_work"]
        } else {
            &["leaf_a", "leaf_b", "leaf_c", "inner", "middle", "outer"]
        };
        let is_named = |sample: &&&Sample| functions.iter().any(|name| sample.calls(name));
        let named = samples.iter().filter(is_named).count();
        eprintln!("{name}: {named} of {} samples have names", samples.len());
        if named > 0 {
            // Who has opened a library calls it again and again, and is seen in between now and then.
            let is_elsewhere = |sample: &&&Sample| {
                let leaf = sample.user.first();
                let module = leaf.and_then(|frame| frame.module.as_deref());
                name == LIBRARY && module.is_some_and(|path| !path.contains("plugin.so"))
            };
            let elsewhere = samples.iter().filter(is_elsewhere).count();
            at_least(name, named, samples.len() - elsewhere, 0.95)?;
            found.push(name);
        }
    }
    Ok(found)
}

fn kernel_is_named(recording: &Recording) -> bool {
    let mut frames = recording.samples.iter().flat_map(|s| &s.kernel);
    frames.any(|frame| frame.named)
}

const SYSTEM_WIDE: [&str; 7] = ["-a", "-F", "999", "-d", LASTS, "--wait-names", "60"];
/// The time of that: each of five has dozens of samples then, where half a processor is theirs.
const RECORDED: Duration = Duration::from_millis(600);
const LASTS: &str = "0.6";

/// Memory of others is read by a process that is started while it can still get the right to.
#[test]
fn python_has_names_with_the_documented_set() -> Outcome {
    let test = "e2e_permissions::python_has_names_with_the_documented_set";
    let python = Path::new("/usr/bin/python3");
    let Some(bench) = Bench::new(test)? else {
        return Ok(());
    };
    if !python.exists() {
        skip(test, "needs Debian's python3");
        return Ok(());
    }
    let turn = "def turn():\n while True: pass\nturn()";
    let mut command = Command::new(python);
    let running = bench
        .unprivileged
        .setting
        .start("python", command.args(["-c", turn]))?;
    let pid = running.pid().to_string();
    let (ended, recording) = bench.record(
        NOBODY,
        recording_set(),
        &["-F", "999", "-d", "1", "-p", &pid],
    )?;
    let samples = recording.of_pid(running.pid());
    let named = samples.iter().filter(|sample| sample.calls("turn")).count();
    at_least("samples in a function of Python", named, samples.len(), 0.9)
        .map_err(|why| format!("{why}: {}", ended.stderr))?;
    running.signal(Signal::KILL)?;
    Ok(())
}

/// Everything that the set is documented for, as a user who is not root and as root with no more.
#[test]
fn the_documented_set_is_enough() -> Outcome {
    let Some(bench) = Bench::new("e2e_permissions::the_documented_set_is_enough")? else {
        return Ok(());
    };
    let set = recording_set();
    let workloads = bench.workloads()?;
    for user in [NOBODY, 0] {
        let (ended, recording) = bench.record_workloads(&workloads, user, set, &SYSTEM_WIDE)?;
        assert_eq!(named(&recording)?, WORKLOADS, "user {user}");
        assert!(kernel_is_named(&recording), "user {user}");
        assert!(!ended.stderr.contains("privileges"), "{}", ended.stderr);
        let doctor = bench.run(user, set, &["doctor"])?.success()?;
        assert!(!doctor.stdout.contains("MISSING"), "{}", doctor.stdout);
    }
    let [_, private, _, _, elsewhere] = &workloads.0[..] else {
        return Err("five workloads".into());
    };
    let pids: Vec<String> = workloads
        .0
        .iter()
        .map(|one| one.pid().to_string())
        .collect();
    let pids = pids.join(",");
    let arguments = ["-F", "999", "-d", LASTS, "-p", &pids];
    let (_, recording) = bench.record_workloads(&workloads, NOBODY, set, &arguments)?;
    assert_eq!(named(&recording)?, WORKLOADS);
    assert!(
        recording
            .samples
            .iter()
            .all(|s| WORKLOADS.contains(&s.process.as_str()))
    );

    let trace = |what: &str, traced: &Running| -> Outcome {
        traced.signal(Signal::CONT)?;
        let pid = traced.pid().to_string();
        let arguments = ["-d", "1", "--no-samples", "-p", &pid, "--trace", "outer"];
        let (ended, _) = bench.record(NOBODY, set, &arguments)?;
        let calls = ended.stderr.contains(" calls; 1 function had probes");
        assert!(
            calls && !ended.stderr.contains("\n0 calls"),
            "{what}: {}",
            ended.stderr
        );
        Ok(())
    };
    trace(PRIVATE, private)?;
    trace(ELSEWHERE, elsewhere)?;

    let chain = bench.unprivileged.setting.workload("chain.c")?;
    let command = ["-F", "499", "--", &chain.to_string_lossy(), "300"];
    let (_, recording) = bench.record(NOBODY, set, &command)?;
    let samples = recording.of_process("chain");
    let called = samples.iter().filter(|s| s.calls("outer")).count();
    at_least("samples of the command", called, samples.len(), 0.9)?;
    Ok(())
}

/// Each capability of the set is needed: without it what the table says is lost, and only that.
#[test]
fn each_capability_is_needed() -> Outcome {
    let Some(bench) = Bench::new("e2e_permissions::each_capability_is_needed")? else {
        return Ok(());
    };
    let workloads = bench.workloads()?;
    let without = |capability| recording_set() - capability;
    for (capability, name) in [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ] {
        let record = ["record", "-a", "-d", "1", "-o", "none.cap"];
        let ended = bench
            .run(NOBODY, without(capability), &record)?
            .expect_status(1)?;
        one_line(&ended, name);
        assert!(!bench.unprivileged.folder.join("none.cap").exists());
        let ended = bench
            .run(NOBODY, without(capability), &["doctor"])?
            .expect_status(1)?;
        let setcap = format!("setcap {}+ep ", name.to_lowercase());
        assert!(ended.stdout.contains(&setcap), "{}", ended.stdout);
    }
    for (capability, lost) in [
        (
            CapabilitySet::SYS_PTRACE,
            &[DELETED, LIBRARY, ELSEWHERE][..],
        ),
        (CapabilitySet::DAC_READ_SEARCH, &[PRIVATE, LIBRARY]),
        (CapabilitySet::CHECKPOINT_RESTORE, &[LIBRARY]),
        (CapabilitySet::SYSLOG, &[]),
    ] {
        let set = without(capability);
        let (ended, recording) = bench.record_workloads(&workloads, NOBODY, set, &SYSTEM_WIDE)?;
        let expected: Vec<_> = WORKLOADS
            .into_iter()
            .filter(|w| !lost.contains(w))
            .collect();
        // A deleted program is what its process still says that it runs; a library is nowhere else.
        assert_eq!(named(&recording)?, expected, "without {capability:?}");
        let kernel = capability != CapabilitySet::SYSLOG;
        assert_eq!(
            kernel_is_named(&recording),
            kernel,
            "without {capability:?}"
        );
        assert_eq!(
            ended.stderr.contains("CAP_SYSLOG"),
            !kernel,
            "{}",
            ended.stderr
        );
    }
    for alone in [
        CapabilitySet::BPF | CapabilitySet::PERFMON,
        CapabilitySet::SYS_ADMIN,
    ] {
        let (_, recording) = bench.record_workloads(&workloads, NOBODY, alone, &SYSTEM_WIDE)?;
        assert_eq!(named(&recording)?, [READABLE], "{alone:?} alone");
    }
    let pid = workloads.0[0].pid().to_string();
    let trace = [
        "record", "-d", "1", "-o", "none.cap", "-p", &pid, "--trace", "outer",
    ];
    let ended = bench
        .run(NOBODY, without(CapabilitySet::SYS_PTRACE), &trace)?
        .expect_status(1)?;
    one_line(&ended, "CAP_SYS_PTRACE");
    // What a user starts needs no more than the two that nothing works without.
    let least = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let chain = bench.unprivileged.setting.workload("chain.c")?;
    let command = ["-F", "499", "--", &chain.to_string_lossy(), "300"];
    let (_, recording) = bench.record(NOBODY, least, &command)?;
    let samples = recording.of_process("chain");
    let called = samples.iter().filter(|s| s.calls("outer")).count();
    at_least("samples of the command", called, samples.len(), 0.9)?;
    Ok(())
}

/// Containers by name, by cgroup, in the list and as labels, and what is left of that without the right to
/// read engines' files.
#[test]
fn containers_with_the_documented_set() -> Outcome {
    let test = "e2e_permissions::containers_with_the_documented_set";
    let Some(bench) = Bench::new(test)? else {
        return Ok(());
    };
    let Some(docker) = Docker::start(&bench.unprivileged.setting, test)? else {
        return Ok(());
    };
    for name in ["red", "blue"] {
        let root = Root::new(&bench.unprivileged.setting.path(name), name)?;
        docker.image(name, &root)?;
    }
    docker.run("profiler-blue", &[], "blue", &NOW_AND_THEN)?;
    let id = docker.run("profiler-red", &[], "red", &NOW_AND_THEN)?;
    let pid = docker.pid("profiler-red")?;
    // Of the whole machine a second is recorded: beside other tests they had 2 % of it, and the engine's group, which they
    // share, no more than one session.
    let mut lent = Vec::new();
    for name in ["profiler-red", "profiler-blue"] {
        let pid = docker.pid(name)?;
        leave_undisturbed(pid)?;
        lent.push(lend_most(pid)?);
    }
    let cgroup = format!("docker/{id}");
    let by_name = ["--container", "profiler-red"];
    let by_cgroup = ["--cgroup", &cgroup];
    let rate = ["-F", "999", "-d", "1"];
    let set = recording_set();
    for user in [NOBODY, 0] {
        let listed = bench.run(user, set, &["list", "containers", "--json"])?;
        assert!(listed.success()?.stdout.contains("\"profiler-red\""));
        for target in [by_name, by_cgroup] {
            let (_, recording) = bench.record(user, set, &[&rate[..], &target].concat())?;
            assert!(recording.samples.len() >= 20, "{target:?}");
            let called = recording.samples.iter().filter(|s| s.calls("red_outer"));
            at_least("red", called.count(), recording.samples.len(), 0.95)?;
            for sample in &recording.samples {
                assert_eq!(sample.pid, pid, "{target:?}");
                let container = sample.container.as_ref().ok_or("no container")?;
                assert_eq!(container.name.as_deref(), Some("profiler-red"));
                assert_eq!(container.image.as_deref(), Some("red"));
            }
        }
        let (_, recording) = bench.record(user, set, &[&rate[..], &["-a"]].concat())?;
        for name in ["profiler-red", "profiler-blue"] {
            let of = |wanted: &dyn Fn(Option<&str>) -> bool| {
                let containers = recording.samples.iter().flat_map(|s| &s.container);
                containers.filter(|c| wanted(c.name.as_deref())).count()
            };
            let (named, unnamed) = (of(&|n| n == Some(name)), of(&|n| n.is_none()));
            let all = recording.samples.len();
            assert!(
                named >= 20,
                "{name}: {named} of {all}, {unnamed} of containers without names"
            );
        }
    }
    // Without, there are ids and no names; who is root reads them as root.
    let less = set - CapabilitySet::DAC_READ_SEARCH;
    let (_, recording) = bench.record(NOBODY, less, &[&rate[..], &by_cgroup].concat())?;
    assert!(recording.samples.len() >= 20);
    for sample in &recording.samples {
        let container = sample.container.as_ref().ok_or("no container")?;
        assert_eq!(container.id.as_deref(), Some(&*id));
        assert_eq!(container.name, None);
    }
    let all = [&["record", "-o", "none.cap"][..], &rate, &by_name].concat();
    let ended = bench.run(NOBODY, less, &all)?.expect_status(1)?;
    one_line(&ended, "CAP_DAC_READ_SEARCH");
    Ok(())
}

fn one_line(ended: &Ended, names: &str) {
    // Tests beside this one have users whose files are never read to their end.
    let of_others = |line: &&str| line.contains("keeps files about containers");
    let lines = ended.stderr.lines().filter(|line| !of_others(line));
    let lines: Vec<_> = lines.collect();
    assert!(
        matches!(lines[..], [line] if line.contains(names)),
        "{}",
        ended.stderr
    );
}

/// The table that people read is the one that is tested.
#[test]
fn the_documentation_has_the_same_set() -> Outcome {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/permissions.md");
    let text = fs::read_to_string(path)?;
    let names: Vec<_> = recording_set()
        .iter_names()
        .map(|(name, _)| format!("cap_{}", name.to_lowercase()))
        .collect();
    let line = format!("setcap {}+ep ", names.join(","));
    assert!(text.contains(&line), "docs/permissions.md has no '{line}'");
    for used in USES {
        let row = text
            .lines()
            .any(|line| line.starts_with(&format!("| {} |", used.name())));
        assert!(row, "docs/permissions.md has no row for {}", used.name());
    }
    Ok(())
}

/// With the set as file capabilities, which is what `doctor` advises.
#[test]
fn file_capabilities_are_enough() -> Outcome {
    let test = "e2e_permissions::file_capabilities_are_enough";
    if Command::new("setcap").arg("-h").output().is_err() {
        skip(test, "setcap of libcap2-bin is not installed");
        return Ok(());
    }
    let Some(bench) = Bench::new(test)? else {
        return Ok(());
    };
    let doctor = bench
        .run(NOBODY, CapabilitySet::empty(), &["doctor"])?
        .expect_status(1)?;
    let advice = doctor
        .stdout
        .split(": setcap ")
        .last()
        .and_then(|rest| rest.lines().next())
        .ok_or("no advice")?;
    let words: Vec<_> = advice.split(' ').collect();
    let granted = Command::new("setcap").args(&words).output()?;
    if !granted.status.success() {
        let why = String::from_utf8_lossy(&granted.stderr).into_owned();
        skip(test, &format!("setcap fails: {}", why.trim()));
        return Ok(());
    }
    let workloads = bench.workloads()?;
    let mut profiler = Command::new(&bench.unprivileged.profiler);
    let folder = &bench.unprivileged.folder;
    profiler.current_dir(folder).uid(NOBODY).gid(NOBODY);
    let (_, recording) = bench.record_workloads_by(&workloads, profiler, &SYSTEM_WIDE)?;
    assert_eq!(named(&recording)?, WORKLOADS);
    assert!(kernel_is_named(&recording));
    Ok(())
}

/// The sets of all threads of a process: permitted, and whether all else is as it should be once it has
/// been reduced.
fn threads(pid: u32) -> Result<Vec<(u64, bool)>, Box<dyn std::error::Error>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(entry?.path().join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        };
        let permitted = field("CapPrm:").ok_or("no CapPrm")?;
        let reduced = field("CapEff:") == Some(permitted)
            && field("CapInh:") == Some(0)
            && field("CapAmb:") == Some(0)
            && field("NoNewPrivs:") == Some(1);
        threads.push((permitted, reduced));
    }
    Ok(threads)
}

/// Root gives up what a session has no use for any more: in all threads, and the command that it runs is
/// not affected.
#[test]
fn what_is_not_needed_any_more_is_given_up() -> Outcome {
    let Some(bench) = Bench::new("e2e_permissions::what_is_not_needed_any_more_is_given_up")?
    else {
        return Ok(());
    };
    let chain = bench.chain("w_command")?;
    let chain = chain.to_string_lossy();
    let held = threads(std::process::id())?[0].0;
    let names = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE
        | CapabilitySet::SYSLOG
        | CapabilitySet::PERFMON
        | CapabilitySet::IPC_LOCK
        | CapabilitySet::SYS_NICE;
    for (arguments, more) in [
        (
            &["record", "-a", "-F", "4999", "-o", "a.cap"][..],
            CapabilitySet::empty(),
        ),
        (
            &[
                "record", "-o", "b.cap", "--trace", "outer", "--", &chain, "600000",
            ],
            CapabilitySet::KILL | CapabilitySet::BPF,
        ),
        (
            &["record", "-a", "--rotate", "10s", "-o", "c.cap"],
            CapabilitySet::DAC_OVERRIDE,
        ),
        (
            &["serve", "--tcf", "127.0.0.1:0"],
            CapabilitySet::KILL | CapabilitySet::BPF,
        ),
    ] {
        let mut command = Command::new(&bench.unprivileged.profiler);
        command
            .args(arguments)
            .current_dir(&bench.unprivileged.folder);
        let mut running = bench.unprivileged.setting.start("given-up", &mut command)?;
        // CAP_BPF stays where maps or processors need it: see the table.
        let (least, most) = (names | more, names | more | CapabilitySet::BPF);
        let (mut seen, pid) = (Vec::new(), running.pid());
        let done = running.wait_until("giving up privileges", LIMIT, |_| {
            seen = threads(pid).unwrap_or_default();
            !seen.is_empty() && seen.iter().all(|(_, reduced)| *reduced)
        });
        done.map_err(|error| format!("{arguments:?}: {error}: {seen:x?}"))?;
        for (permitted, _) in &seen {
            let kept = CapabilitySet::from_bits_retain(*permitted);
            assert!(
                kept.contains(least & CapabilitySet::from_bits_retain(held)) && most.contains(kept),
                "{arguments:?} keeps {kept:?}"
            );
        }
        if arguments.contains(&"--trace") {
            let keepers = keepers_of(pid);
            for &keeper in &keepers {
                let all = threads(keeper)?;
                let nothing = all.iter().all(|(kept, reduced)| *kept == 0 && *reduced);
                assert!(nothing, "who holds the links keeps {all:x?}");
            }
            let mut commands = children(pid)?;
            // What was just forked to help has the profiler's own command line for a moment.
            commands.retain(|child| {
                let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                line.starts_with(chain.as_bytes())
            });
            let [command] = commands[..] else {
                return Err(format!("the command is one of {commands:?}").into());
            };
            assert_eq!(
                threads(command)?[0].0,
                held,
                "the command's are the caller's"
            );
        }
        // What it does from then on works.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        running.signal(rustix::process::Signal::TERM)?;
        let ended = running.end(LIMIT)?;
        let said = &ended.stderr;
        assert!(
            !said.contains("ermitted") && !said.contains("denied"),
            "{arguments:?}: {said}"
        );
        if arguments[0] == "record" && more != CapabilitySet::DAC_OVERRIDE {
            let capture = arguments[arguments.iter().position(|a| *a == "-o").ok_or("-o")? + 1];
            let recording = Recording::read(&bench.unprivileged.setting.path(capture))?;
            assert!(!recording.samples.is_empty());
            // The command seldom is in the kernel.
            let in_kernel = recording.samples.iter().any(|s| !s.kernel.is_empty());
            assert!(in_kernel || arguments.contains(&"--trace"));
            assert!(!in_kernel || kernel_is_named(&recording));
        }
    }
    Ok(())
}

fn children(pid: u32) -> std::io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(entry?.path().join("children"))?;
        found.extend(
            text.split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
    }
    Ok(found)
}

/// Files are made where root could make them, also after capabilities were given up.
#[test]
fn outputs_are_made_where_root_may() -> Outcome {
    let Some(bench) = Bench::new("e2e_permissions::outputs_are_made_where_root_may")? else {
        return Ok(());
    };
    let theirs = bench.unprivileged.setting.path("theirs");
    fs::create_dir(&theirs)?;
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700))?;
    chown(&theirs, Some(SOMEBODY), Some(SOMEBODY))?;
    let path = |name: &str| theirs.join(name).to_string_lossy().into_owned();
    for old in ["a.cap", "b.svg"] {
        fs::write(theirs.join(old), "old")?;
    }
    let (capture, graph) = (path("a.cap"), path("b.svg"));
    let both = [
        "record", "-a", "-d", "0.5", "--force", "-o", &capture, "-o", &graph,
    ];
    bench.unprivileged.setting.run(&both)?.success()?;
    assert!(!Recording::read(&theirs.join("a.cap"))?.samples.is_empty());
    assert!(fs::read_to_string(theirs.join("b.svg"))?.contains("<svg"));
    bench
        .unprivileged
        .setting
        .run(&["record", "-a", "-d", "0.5", "--force", "-o", &capture])?
        .success()?;
    let (ring, turned) = (path("c.cap"), path("d.cap"));
    bench
        .unprivileged
        .setting
        .run(&["record", "-a", "-d", "1", "--ring", "10m", "-o", &ring])?
        .success()?;
    assert!(!Recording::read(&theirs.join("c.cap"))?.samples.is_empty());
    let rotated = [
        "record", "-a", "-d", "11.5", "--rotate", "10s", "-o", &turned,
    ];
    bench.unprivileged.setting.run(&rotated)?.success()?;
    let files = fs::read_dir(&theirs)?.flatten();
    let rotated = files.filter(|f| f.file_name().to_string_lossy().starts_with("d"));
    assert!(rotated.count() >= 2);
    Ok(())
}

/// A command that runs as somebody else has nothing of what the profiler may.
#[test]
fn commands_of_others_get_no_capabilities() -> Outcome {
    let Some(bench) = Bench::new("e2e_permissions::commands_of_others_get_no_capabilities")? else {
        return Ok(());
    };
    let both = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let script = "id -u; grep -E 'Cap(Prm|Eff|Inh|Amb)' /proc/self/status";
    let command = ["--as", "daemon", "--", "/bin/sh", "-c", script];
    let (ended, _) = bench.record(NOBODY, recording_set() | both, &command)?;
    let said: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(said[0], "1", "{}", ended.stdout);
    assert_eq!(said.len(), 5, "{}", ended.stdout);
    for line in &said[1..] {
        let set = line.split(':').nth(1).map(str::trim);
        assert_eq!(set, Some("0000000000000000"), "{line}");
    }
    for missing in [CapabilitySet::SETUID, CapabilitySet::SETGID] {
        let all = [&["record", "-o", "none.cap"][..], &command].concat();
        let set = (recording_set() | both) - missing;
        let ended = bench.run(NOBODY, set, &all)?.expect_status(1)?;
        one_line(&ended, "CAP_SETGID and CAP_SETUID");
    }
    Ok(())
}
