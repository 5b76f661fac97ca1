//! What the tests of containers share: containers that burn CPU time in functions of known names, and
//! what a recording of one of them must and must not hold.
//!
//! Oracles. Exact: no sample is of another container; every named function in the workload is one that its
//! own table of symbols has, none is the neighbour's; the callers of the burning function. Within four
//! standard deviations (Poisson, at most 6 %): the weights of a life's samples add up to the CPU time
//! that the workload says it used since its main began. Exact again: the capture holds as many samples as
//! the recorder says it took, and nothing was lost but ticks that the kernel skipped.

use std::collections::BTreeMap;

use profiler_model::StackEnd;
use profiler_tests::Outcome;
use profiler_tests::containers::{self, Docker, PROGRAM, Root};
use profiler_tests::process::Running;
use profiler_tests::recording::{Recording, Sample, weight};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::{amount, at_least};
use profiler_tests::undisturbed::leave_undisturbed;
use profiler_tests::workload;

/// Samples a second: enough that a life of 50 ms has 250.
pub(crate) const RATE: &str = "4999";

/// Name of the workload's process.
pub(crate) const PROCESS: &str = "work";

/// A setting with an engine whose images `red` and `blue` differ in the names of functions alone.
pub(crate) fn with_docker(
    test: &str,
) -> Result<Option<(Setting, Docker)>, Box<dyn std::error::Error>> {
    let Some(setting) = Setting::new(test)? else {
        return Ok(None);
    };
    let Some(docker) = Docker::start(&setting, test)? else {
        return Ok(None);
    };
    for name in ["red", "blue"] {
        docker.image(name, &Root::new(&setting.path(name), name)?)?;
    }
    Ok(Some((setting, docker)))
}

/// Ends a recording as Ctrl-C does; gives what was recorded: as many samples as were said to be.
pub(crate) fn finish(
    setting: &Setting,
    recorder: Running,
) -> Result<Recording, Box<dyn std::error::Error>> {
    recorder.signal(rustix::process::Signal::INT)?;
    let ended = recorder.end(LIMIT)?.success()?;
    let recording = setting.recording()?;
    assert_eq!(recording.damaged, 0, "parts that can't be read");
    let said = ended.stderr.lines().find_map(|line| {
        line.split_once(" samples of ")?
            .0
            .replace(',', "")
            .parse()
            .ok()
    });
    assert_eq!(Some(recording.samples.len()), said, "{}", ended.stderr);
    Ok(recording)
}

/// Samples of the workload itself. The runtime's process becomes it by its exec, so that the name of the
/// process alone does not tell them from the runtime's.
pub(crate) fn of_work(recording: &Recording) -> Vec<&Sample> {
    let is_work = |sample: &Sample| {
        let mut modules = sample
            .user
            .iter()
            .filter_map(|frame| frame.module.as_deref());
        modules.any(|module| module == PROGRAM)
    };
    let all = recording.of_process(PROCESS);
    all.into_iter().filter(|sample| is_work(sample)).collect()
}

/// Checks that all samples are of the container whose workload is `name`, and named as its functions
/// are; `neighbours` are the names of other workloads that ran at the same time.
pub(crate) fn only(recording: &Recording, name: &str, neighbours: &[&str]) -> Outcome {
    let functions = containers::functions(&workload::contained(name)?)?;
    for sample in &recording.samples {
        for frame in &sample.user {
            let stranger = neighbours
                .iter()
                .any(|other| frame.name.starts_with(&format!("{other}_")));
            assert!(!stranger, "a sample of a neighbour of {name}: {sample:?}");
            let is_work = frame.module.as_deref() == Some(PROGRAM);
            assert!(
                !is_work || !frame.named || functions.contains(&frame.name),
                "{} is no function of {name}: {sample:?}",
                frame.name
            );
        }
    }
    let leaf = format!("{name}_leaf");
    let chain = [
        &*leaf,
        &format!("{name}_inner"),
        &format!("{name}_outer"),
        "main",
    ]
    .map(str::to_owned);
    let hits: Vec<_> = recording
        .samples
        .iter()
        .filter(|sample| sample.leaf() == leaf)
        .collect();
    let chain = chain.each_ref().map(|name| name.as_str());
    let is_exact = |sample: &&&Sample| sample.chain().starts_with(&chain);
    // At this rate more samples may be taken before the program's table is there than stacks are copied,
    // of which what is there must be right.
    let is_cut = |sample: &&&Sample| {
        sample.user_end == StackEnd::NoTable && chain.starts_with(&sample.chain())
    };
    let exact = hits.iter().filter(is_exact).count();
    let cut = hits.iter().filter(is_cut).count();
    let mut others = BTreeMap::<_, usize>::new();
    for sample in hits.iter().filter(|sample| !is_exact(sample)) {
        *others.entry((sample.user_end, sample.chain())).or_default() += 1;
    }
    at_least(&format!("chains of {leaf}"), exact + cut, hits.len(), 0.999)
        .and_then(|()| at_least(&format!("whole chains of {leaf}"), exact, hits.len(), 0.95))
        .map_err(|why| format!("{why}; others: {others:?}"))?;
    Ok(())
}

/// Checks that at least 99 % of all user frames have names.
pub(crate) fn named(samples: &[&Sample]) -> Result<(), String> {
    let frames = samples.iter().flat_map(|sample| &sample.user);
    let (mut all, mut unnamed) = (0, BTreeMap::<_, usize>::new());
    for frame in frames {
        all += 1;
        if !frame.named {
            *unnamed.entry(&frame.module).or_default() += 1;
        }
    }
    let named = all - unnamed.values().sum::<usize>();
    at_least("frames with names", named, all, 0.99)
        .map_err(|why| format!("{why}; without: {unnamed:?}"))
}

/// Checks that samples stand for the CPU time that workloads say they used.
pub(crate) fn all_of(
    what: &str,
    recording: &Recording,
    samples: &[&Sample],
    cpu_ns: u64,
) -> Result<(), String> {
    amount(
        what,
        weight(samples),
        cpu_ns,
        recording.missing_ns(),
        samples.len(),
        0.06,
    )
}

/// All containers that the profiler lists.
pub(crate) fn listed(
    setting: &Setting,
) -> Result<Vec<serde_json::Value>, Box<dyn std::error::Error>> {
    let ended = setting.run(&["list", "containers", "--json"])?;
    let list = ended.success()?.json()?;
    Ok(list["containers"].as_array().ok_or("no list")?.clone())
}

/// Starts a workload that waits, for as much CPU time as there is.
pub(crate) fn begin(docker: &Docker, name: &str) -> Outcome {
    leave_undisturbed(docker.pid(name)?)?;
    docker.command(&["kill", "--signal", "USR1", name])?;
    Ok(())
}
