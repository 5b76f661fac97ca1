//! Cgroups that are made while it is recorded: all of the awaited one from its first sample, nothing of
//! others. In every hierarchy that can be written here.
//!
//! Oracle: as of `e2e_targets`; and no process is known to the capture but those in the cgroup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_capture::Reader;
use profiler_target::cgroup::Hierarchies;
use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::recording::weight;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::statistics::amount;
use profiler_tests::undisturbed::leave_undisturbed;

/// Where hierarchies of version 2 and of one controller of version 1 are mounted.
fn roots() -> std::io::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mut roots = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, place, kind, options, ..] = fields[..] else {
            continue;
        };
        let is_pids = kind == "cgroup" && options.split(',').any(|option| option == "pids");
        if kind == "cgroup2" || is_pids {
            roots.push(PathBuf::from(place));
        }
    }
    Ok(roots)
}

/// A cgroup that is removed when it is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make(path: &Path) -> std::io::Result<Cgroup> {
        fs::create_dir(path)?;
        Ok(Cgroup(path.to_owned()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(2);
        // What was in it may still be ending.
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// As long as a test may take.
const ENDLESS_MS: u32 = 600_000;

/// Runs a chain of so many milliseconds in a cgroup; one without end works now and then, for others have to as well.
fn start_in(setting: &Setting, cgroup: &Cgroup, ms: u32) -> std::io::Result<Running> {
    let program = setting.workload("chain.c")?;
    let mode = if ms < ENDLESS_MS {
        ""
    } else {
        "--now-and-then"
    };
    let script = format!(
        "echo $$ > {}/cgroup.procs; exec {} {ms} {mode}",
        cgroup.0.display(),
        program.display()
    );
    let running = setting.start("chain", Command::new("sh").args(["-c", &script]))?;
    if ms < ENDLESS_MS {
        leave_undisturbed(running.pid())?;
    }
    Ok(running)
}

/// The ids of all processes that the recording knows.
fn known(setting: &Setting) -> Result<BTreeSet<u32>, Box<dyn std::error::Error>> {
    let tables = Reader::open(&setting.path("out.cap"))?.load_tables()?;
    let processes = tables.processes();
    Ok(processes.map(|(_, process)| process.pid.0).collect())
}

#[test]
fn awaited_and_made_again() -> Outcome {
    let test = "e2e_targets_cgroups::awaited_and_made_again";
    let mut tried = 0;
    for root in roots()? {
        let name = format!("profiler-test-{}", std::process::id());
        let (awaited, other) = (root.join(&name), root.join(format!("{name}-other")));
        let Ok(stranger) = Cgroup::make(&other) else {
            continue;
        };
        tried += 1;
        let Some(setting) = Setting::new(test)? else {
            return Ok(());
        };
        let path = awaited.to_string_lossy().into_owned();
        let arguments = ["-F", "4999", "--cgroup", &path, "--wait"];
        let recorder = setting.start_recording(&arguments)?;
        let bystander = start_in(&setting, &stranger, ENDLESS_MS)?;
        // A cgroup of the same name elsewhere is another one.
        let namesake = Cgroup::make(&other.join(&name))?;
        let namesaked = start_in(&setting, &namesake, ENDLESS_MS)?;
        let (mut total, mut pids) = (0, BTreeSet::new());
        for _ in 0..2 {
            let cgroup = Cgroup::make(&awaited)?;
            let chain = start_in(&setting, &cgroup, 1000)?;
            pids.insert(chain.pid());
            let chain = chain.end(LIMIT)?.success()?;
            total += chain.json()?["total"].as_u64().ok_or("no truth")?;
        }
        recorder.signal(rustix::process::Signal::INT)?;
        let ended = recorder.end(LIMIT)?.success()?;
        drop((bystander, namesaked));
        drop((namesake, stranger));
        assert!(
            ended.stderr.contains("had ended before"),
            "{}",
            ended.stderr
        );
        let recording = setting.recording()?;
        let samples: Vec<_> = recording.samples.iter().collect();
        let foreign = samples.iter().find(|sample| !pids.contains(&sample.pid));
        assert!(foreign.is_none(), "{path}: another's sample: {foreign:?}");
        let skipped = recording.missing_ns();
        amount(&path, weight(&samples), total, skipped, samples.len(), 0.05)?;
        assert_eq!(known(&setting)?, pids, "{path}: processes of others");
    }
    if tried == 0 {
        skip(test, "no cgroups that can be written");
    }
    Ok(())
}

#[test]
fn what_never_comes_is_said() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets_cgroups::what_never_comes_is_said")? else {
        return Ok(());
    };
    if roots()?.is_empty() {
        skip(
            "e2e_targets_cgroups::what_never_comes_is_said",
            "no cgroups",
        );
        return Ok(());
    }
    // Time stands still until it comes.
    let arguments = ["--cgroup", "/profiler-no-such", "--wait", "-d", "0.2"];
    let mut recorder = setting.start_recording(&arguments)?;
    std::thread::sleep(Duration::from_secs(1));
    assert!(!recorder.has_ended()?);
    recorder.signal(rustix::process::Signal::INT)?;
    let ended = recorder.end(LIMIT)?.success()?;
    for line in [
        "waiting for cgroup /profiler-no-such",
        "nothing came: cgroup /profiler-no-such was not started",
    ] {
        assert!(ended.stderr.contains(line), "{}", ended.stderr);
    }
    assert!(setting.recording()?.samples.is_empty());
    Ok(())
}

#[test]
fn a_unit_by_its_name() -> Outcome {
    let test = "e2e_targets_cgroups::a_unit_by_its_name";
    let hierarchies = Hierarchies::read()?;
    let Some(hierarchy) = hierarchies.primary() else {
        skip(test, "no cgroups are mounted");
        return Ok(());
    };
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let unit = format!("profiler-test-unit-{}", std::process::id());
    let service = format!("{unit}.service");
    let stranger = hierarchy.directory(&format!("/{unit}-other.service"));
    let Ok(stranger) = Cgroup::make(&stranger) else {
        skip(test, "no cgroup can be made");
        return Ok(());
    };
    let recorder = setting.start_recording(&["-F", "4999", "--unit", &unit, "--wait"])?;
    let bystander = start_in(&setting, &stranger, ENDLESS_MS)?;
    let cgroup = Cgroup::make(&hierarchy.directory(&format!("/{service}")))?;
    let chain = start_in(&setting, &cgroup, 1000)?;
    let pid = chain.pid();
    let chain = chain.end(LIMIT)?.success()?;
    let total = chain.json()?["total"].as_u64().ok_or("no truth")?;
    recorder.signal(rustix::process::Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    drop(bystander);
    drop((cgroup, stranger));
    let recording = setting.recording()?;
    let samples: Vec<_> = recording.samples.iter().collect();
    let foreign = samples.iter().find(|sample| sample.pid != pid);
    assert!(foreign.is_none(), "another's sample: {foreign:?}");
    let skipped = recording.missing_ns();
    amount(&unit, weight(&samples), total, skipped, samples.len(), 0.05)?;
    let tables = Reader::open(&setting.path("out.cap"))?.load_tables()?;
    let units: Vec<_> = tables
        .processes()
        .map(|(id, process)| {
            let unit = tables.container_of(id).and_then(|container| container.unit);
            (process.pid.0, unit.map(|unit| tables.string(unit)))
        })
        .collect();
    assert_eq!(units, [(pid, Some(service.as_str()))]);
    Ok(())
}
