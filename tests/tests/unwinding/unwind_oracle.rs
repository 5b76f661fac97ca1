//! Stacks, judged by a walker that shares no code with ours, and by workloads that know their chains.
//!
//! What is compared, and what the differences are: docs/unwinding-proof.md.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use profiler_model::StackEnd;
use profiler_tests::Outcome;
use profiler_tests::oracle::files::{Files, Space};
use profiler_tests::oracle::judge::{self, Questions};
use profiler_tests::oracle::known::{self, Build, Built, Chains, builds, usual_builds};
use profiler_tests::oracle::live::{Found, Live};
use profiler_tests::oracle::programs::{COMMON, MORE, Start};
use profiler_tests::oracle::stopped::Stopped;
use profiler_tests::oracle::verdict::Tally;
use profiler_tests::setting::Setting;
use profiler_tests::skip::{long, privileged, skip};
use profiler_tests::workload::Unbuilt;
use profiler_unwind::Entry;
use profiler_unwind::snapshot::{Found as Place, Snapshot};

/// Seconds and rate of a workload: some hundred samples on a busy machine.
const SECONDS: f64 = 0.5;
const HZ: u64 = 3999;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("profiler-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// A workload that runs, and what it said.
struct Workload {
    child: Child,
    chains: Chains,
}

impl Workload {
    fn start(program: &Path, seconds: f64, folder: &Path) -> Workload {
        let said = folder.join("chains");
        let mut child = Command::new(program)
            .arg(seconds.to_string())
            .stdout(fs::File::create(&said).unwrap())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        for _ in 0..2000 {
            let text = fs::read_to_string(&said).unwrap();
            if text.contains("ready") {
                let chains = Chains::parse(&text).unwrap();
                return Workload { child, chains };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("{} does not begin", program.display());
    }
}

impl Workload {
    /// Lets it begin.
    fn go(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the judge can be asked; says so if not.
fn has_judge(test: &str) -> bool {
    match judge::built() {
        Ok(_) => true,
        Err(Unbuilt::NoCompiler(what)) => {
            skip(test, &format!("no compiler or library {what}"));
            false
        }
        Err(unbuilt) => panic!("{unbuilt}"),
    }
}

fn made(test: &str, build: &Build) -> Option<Built> {
    match build.make() {
        Ok(built) => Some(built),
        Err(Unbuilt::NoCompiler(compiler)) => {
            skip(
                &format!("{test}/{compiler}"),
                &format!("{compiler} is not installed"),
            );
            None
        }
        Err(unbuilt) => panic!("{unbuilt}"),
    }
}

/// The ways to build that are worth a test without a kernel: each takes about a second.
fn first_of_each_source() -> Vec<Build> {
    let mut builds = builds();
    let mut seen = Vec::new();
    builds.retain(|build| {
        let is_new = !seen.contains(&build.source);
        seen.push(build.source);
        is_new
    });
    builds
}

#[test]
fn a_stopped_process_is_walked_as_its_source_and_the_judge_say() {
    let test = "a_stopped_process_is_walked_as_its_source_and_the_judge_say";
    if !has_judge(test) {
        return;
    }
    for build in first_of_each_source() {
        let Some(built) = made(test, &build) else {
            continue;
        };
        let folder = Folder::new("stopped");
        let mut files = Files::new(&folder.0).unwrap();
        files.names_in(&built.program, &built.named);
        let mut workload = Workload::start(&built.program, 60.0, &folder.0);
        let pid = workload.child.id();
        let mapped = files.mapped_by(pid).unwrap();
        workload.go();
        let space = Space {
            files: &files,
            mapped: &mapped,
        };
        let mut questions = Questions::new(folder.0.join("questions")).unwrap();
        questions.mappings(pid, &mapped).unwrap();
        let mut stopped = Stopped::seize(pid).unwrap();
        let mut proofs = Vec::new();
        for _ in 0..400 {
            let Some(mut proof) = stopped.take(Duration::from_micros(2300)).unwrap() else {
                break;
            };
            proof.walk(&space);
            questions.sample(&proof).unwrap();
            workload.chains.add(&proof, &space);
            proofs.push(proof);
        }
        drop(stopped);
        let judgements = questions.ask().unwrap();
        let mut tally = Tally::default();
        for (proof, judgement) in proofs.iter().zip(&judgements) {
            tally.add(proof, judgement, |address| space.place(address));
        }
        let chains = &workload.chains;
        let what = format!("{}: {:#?}, {chains:#?}", build.name(), tally);
        assert!(tally.judged() > 200, "{what}");
        assert_eq!(tally.agreed(), tally.judged(), "{what}");
        assert!(chains.right > 200 && chains.wrong() == 0, "{what}");
    }
}

/// Samples a workload to its end.
fn sample(what: &str, built: &Built, seconds: f64, hz: u64) -> Found {
    let folder = Folder::new("known");
    let mut files = Files::new(&folder.0).unwrap();
    files.names_in(&built.program, &built.named);
    let mut workload = Workload::start(&built.program, seconds, &folder.0);
    let chains = std::mem::take(&mut workload.chains);
    let pid = workload.child.id();
    let mut live = Live::attach(&[pid], hz, files, Some(chains), &folder.0).unwrap();
    workload.go();
    let ended = || workload.child.try_wait().unwrap().is_some();
    live.sample(Duration::from_secs(60), ended).unwrap();
    live.judge(what).unwrap()
}

#[test]
fn stacks_of_every_compiler_and_level_are_the_known_ones() {
    let test = "stacks_of_every_compiler_and_level_are_the_known_ones";
    if !privileged(test) || !has_judge(test) {
        return;
    }
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut all = Sum::default();
    for build in (usual_builds().iter()).filter(|build| build.name().contains(&only)) {
        let Some(built) = made(test, build) else {
            continue;
        };
        let found = sample(&build.name(), &built, SECONDS, HZ);
        let chains = found.chains.as_ref().unwrap();
        all.add(&found);
        eprintln!(
            "{}: {} right, {} wrong, {} cut, {} outside, {} of {} chains; {:?}",
            build.name(),
            chains.right,
            chains.wrong(),
            chains.cut,
            chains.outside,
            chains.whole(),
            chains.expected.len(),
            found.tally.counts,
        );
        report(&found);
        let what = format!("{}: {:#?}", build.name(), chains);
        // Through a library without rows, most end there.
        assert!(chains.right + chains.cut >= 50, "{what}");
        assert_eq!(chains.wrong(), 0, "{what}");
        if build.library_has_rows {
            // While an exception lands there is no chain.
            let percent = if build.name().starts_with("throws") {
                3
            } else {
                1
            };
            assert!(chains.cut * 100 <= percent * chains.right + 200, "{what}");
            assert!(chains.whole() * 4 >= chains.expected.len() * 3, "{what}");
            agree(&build.name(), &found);
        }
    }
    eprintln!("{all:?}");
}

/// What was found of several builds.
#[derive(Debug, Default)]
struct Sum {
    builds: u64,
    stacks: u64,
    right: u64,
    wrong: u64,
    cut: u64,
    outside: u64,
    judged: u64,
    agreed: u64,
}

impl Sum {
    fn add(&mut self, found: &Found) {
        let (tally, chains) = (&found.tally, found.chains.as_ref().unwrap());
        self.builds += 1;
        self.right += chains.right;
        self.wrong += chains.wrong();
        self.cut += chains.cut;
        self.outside += chains.outside;
        self.stacks += chains.right + chains.wrong() + chains.cut + chains.outside;
        self.judged += tally.judged();
        self.agreed += tally.agreed();
    }
}

/// Says what differs.
fn report(found: &Found) {
    for ((verdict, place), (count, example)) in &found.tally.places {
        eprintln!("  {count:>4} {verdict:?} {place}: {example}");
    }
    for (ours, again) in found.walks_differ.iter().take(3) {
        eprintln!(
            "  kernel {:x?} {:?}, user space {:x?} {:?}",
            ours.chain, ours.end, again.chain, again.end
        );
    }
}

/// What is asked of every comparison.
fn agree(what: &str, found: &Found) {
    let tally = &found.tally;
    assert!(tally.share() >= 0.99, "{what}: {tally:#?}");
    // The same rows, walked twice.
    let differ = found.walks_differ.len() as u64;
    assert!(
        differ * 100 <= tally.total(),
        "{what}: {differ} of {}",
        tally.total()
    );
    // Most walks that are judged are the kernel side's own. How soon it is told is the oracle's business, which looks a
    // hundred times a second, and programs may be shorter.
    let untold = found.untold;
    assert!(
        untold * 2 <= tally.total(),
        "{what}: {untold} before the kernel side was told, {} judged",
        tally.total()
    );
}

/// A recording of workloads, from the kernel to names.
#[test]
fn recordings_of_known_chains_have_them_by_name() -> Outcome {
    let test = "recordings_of_known_chains_have_them_by_name";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for build in first_of_each_source() {
        let Some(built) = made(test, &build) else {
            continue;
        };
        let program = built.program.to_string_lossy().into_owned();
        let chains = Command::new(&program)
            .arg("0")
            .stdin(Stdio::null())
            .output()?;
        let mut chains = Chains::parse(&String::from_utf8_lossy(&chains.stdout))?;
        let arguments = ["-e", "cpu-clock", "-F", "1999", "--", &program, "1.5"];
        let ends = recorded(&setting, &arguments, &mut chains)?;
        let what = format!("{}: {ends:?}, {chains:#?}", build.name());
        assert_eq!(chains.wrong(), 0, "{what}");
        // At its beginning a program's tables are still being built, the longer the more there is to do.
        let early = ends.get(&StackEnd::NoTable).copied().unwrap_or(0);
        assert!(early * 4 <= chains.right, "{what}");
        // Lazy binding and what a kernel has no rule for: see docs/unwinding-proof.md.
        let cut = chains.cut.saturating_sub(early);
        assert!(cut * 100 <= chains.right, "{what}");
        assert!(chains.whole() * 4 >= chains.expected.len() * 3, "{what}");
    }
    Ok(())
}

/// Each of some hundreds of changes, and thousands of samples.
fn recordings() -> u32 {
    if long() { 10 } else { 1 }
}

/// Two libraries, one after the other at the same addresses, with different frames.
#[test]
fn libraries_that_come_and_go() -> Outcome {
    let Some(setting) = Setting::new("libraries_that_come_and_go")? else {
        return Ok(());
    };
    let paths = known::reopens()?.map(|path| path.to_string_lossy().into_owned());
    let [program, first, second] = &paths;
    let mut chains = Chains::parse("chain: known_spin known_leaf known_plugin known_reopens main")?;
    let command = [program, "3", first, second];
    let arguments = [&["-e", "cpu-clock", "-F", "1999", "--"], &command[..]].concat();
    for _ in 0..recordings() {
        recorded(&setting, &arguments, &mut chains)?;
    }
    // Until user space has seen that another library is there, the kernel side goes by the rows of the
    // one before: such stacks are cut. How long that takes is a matter of how busy the machine is.
    assert_eq!(chains.wrong(), 0, "{chains:#?}");
    assert!(chains.cut <= chains.right * 3, "{chains:#?}");
    Ok(())
}

/// Two programs that exec each other all the time, with different functions at the same addresses.
#[test]
fn programs_that_follow_each_other() -> Outcome {
    let Some(setting) = Setting::new("programs_that_follow_each_other")? else {
        return Ok(());
    };
    let [first, second] = known::execs()?.map(|path| path.to_string_lossy().into_owned());
    let chains = Command::new(&first)
        .args(["0", &second])
        .stdin(Stdio::null())
        .output()?;
    let mut chains = Chains::parse(&String::from_utf8_lossy(&chains.stdout))?;
    let command = ["-e", "cpu-clock", "-F", "1999", "--", &first, "3", &second];
    for _ in 0..recordings() {
        recorded(&setting, &command, &mut chains)?;
    }
    assert_eq!(chains.wrong(), 0, "{chains:#?}");
    assert!(chains.cut <= chains.right * 3, "{chains:#?}");
    Ok(())
}

/// A known function's name without what languages and compilers add: its path, its arguments, a part.
fn plain(name: &str) -> &str {
    let bare = name.split(['(', '.']).next().unwrap_or(name);
    let last = bare.rsplit("::").next().unwrap_or(bare);
    if last.starts_with("known_") {
        last
    } else {
        name
    }
}

/// Records a workload, and judges the stacks by their names. Gives why those that have ended early have.
fn recorded(
    setting: &Setting,
    arguments: &[&str],
    chains: &mut Chains,
) -> Result<BTreeMap<StackEnd, u64>, Box<dyn std::error::Error>> {
    let (_, recording) = setting.record(arguments)?;
    let mut ends = BTreeMap::new();
    for sample in recording
        .samples
        .iter()
        .filter(|sample| !sample.user.is_empty())
    {
        let names: Vec<&str> = sample.chain().into_iter().map(plain).collect();
        let before = chains.cut;
        chains.add_names(&names, sample.user_end == StackEnd::Complete);
        if chains.cut > before {
            *ends.entry(sample.user_end).or_default() += 1;
        }
    }
    eprintln!(
        "recorded: {} right, {} wrong, {} cut, {} outside; cut: {ends:?}",
        chains.right,
        chains.wrong(),
        chains.cut,
        chains.outside
    );
    assert!(chains.right >= 100, "{chains:#?}");
    Ok(ends)
}

/// Samples a real program under its load.
fn sample_program(test: &str, name: &str, start: Start) -> Option<Found> {
    let folder = Folder::new("program");
    let Some(program) = start(&folder.0).unwrap() else {
        skip(
            &format!("{test}/{name}"),
            &format!("{name} is not installed"),
        );
        return None;
    };
    // Past exec, and past the loading of what it is linked with.
    let settle = || std::thread::sleep(Duration::from_millis(300));
    program.go(&folder.0).unwrap();
    settle();
    // Building tables takes longer than some loads last: once for the files, then anew.
    let mut files = Files::new(&folder.0).unwrap();
    files.learn(&program.pids, &program.files).unwrap();
    drop(program);
    let folder = Folder::new("program-again");
    let mut program = start(&folder.0).unwrap().unwrap();
    settle();
    let mut live = Live::attach(&program.pids, 999, files, None, &folder.0).unwrap();
    program.go(&folder.0).unwrap();
    live.sample(Duration::from_secs(12), || program.is_over())
        .unwrap();
    drop(program);
    Some(live.judge(name).unwrap())
}

fn compare_programs(test: &str, programs: &[(&str, Start)]) {
    if !privileged(test) || !has_judge(test) {
        return;
    }
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, start) in programs.iter().filter(|(name, _)| name.contains(&only)) {
        let Some(found) = sample_program(test, name, *start) else {
            continue;
        };
        let tally = &found.tally;
        eprintln!(
            "{name}: {} samples, {} judged, {:.2} % agree, deepest {}, {:?}; {} gone, {} without a \
             stack, {} with probes of others, {} before the kernel side was told of what is mapped, {} walked otherwise in \
             user space",
            tally.total(),
            tally.judged(),
            tally.share() * 100.0,
            tally.deepest,
            tally.counts,
            found.gone,
            found.without,
            found.probed,
            found.untold,
            found.walks_differ.len(),
        );
        report(&found);
        assert!(tally.judged() >= 20, "{name}: {tally:#?}");
        agree(name, &found);
    }
}

#[test]
fn real_programs_are_walked_as_the_judge_walks_them() {
    compare_programs("real_programs_are_walked_as_the_judge_walks_them", COMMON);
}

#[test]
fn servers_and_runtimes_are_walked_as_the_judge_walks_them() {
    let test = "servers_and_runtimes_are_walked_as_the_judge_walks_them";
    compare_programs(test, MORE);
}

/// That a recorded stack replays as expected says something about each row in it.
#[test]
fn a_wrong_row_is_found_by_every_recorded_stack() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/unwind");
    let mut rows = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let snapshot = Snapshot::parse(&text).unwrap();
        assert_eq!(snapshot.replay(), snapshot.expected, "{}", path.display());
        for (address, found) in &snapshot.code {
            let mut wrong = snapshot.clone();
            let Some(Place::Entry(file)) = wrong.code.get_mut(address) else {
                continue;
            };
            let Entry::Rule(rule) = &mut file.entry else {
                continue;
            };
            rule.cfa_offset += 8;
            let what = format!("{}, {address:x}: {found:?}", path.display());
            assert_ne!(wrong.replay(), snapshot.expected, "{what}");
            rows += 1;
        }
    }
    assert!(rows > 100, "{rows}");
}
