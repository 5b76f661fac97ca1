//! Known shares and known chains: what the profiler says against what the workload measured.
//!
//! Oracle of shares: each leaf's samples are binomial with the share of CPU time that the workload
//! itself measured, within four standard deviations. Oracle of chains: exact, for every sample that
//! has the leaf. Oracle of amounts: weights add up to the CPU time used, within 3 %. Oracle of what is missing: perf's count of
//! the clock's timer.

use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::recording::{Sample, weight};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip;
use profiler_tests::statistics::{amount, at_least, share};
use profiler_tests::timer::judged;
use profiler_tests::undisturbed::UNDISTURBED;
use rustix::process::Signal;

const LEAVES: [&str; 3] = ["leaf_a", "leaf_b", "leaf_c"];

/// Runs a chain workload for two seconds of CPU time; `chain` are its functions, leaf's caller first.
fn check_chain(
    test: &str,
    source: &str,
    name: fn(&str) -> String,
    chain: &[&str],
    at: u64,
) -> Outcome {
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let workload = setting.workload(source)?;
    let rate = at.to_string();
    // Whoever is taken off its processor often has more samples than CPU time.
    let workload_path = workload.to_string_lossy();
    let command = [&UNDISTURBED[..], &[&workload_path, "2000"]].concat();
    let (ended, recording) = setting.record(&[&["-F", &rate, "--"], &command[..]].concat())?;
    let truth = ended.json()?;
    let total = truth["total"].as_u64().ok_or("no total")?;

    let program = workload.file_name().ok_or("no name")?.to_string_lossy();
    let samples = recording.of_process(&program);
    amount(
        "whole process",
        weight(&samples),
        total,
        recording.missing_ns(),
        samples.len(),
        0.03,
    )?;
    for leaf in LEAVES {
        let function = name(leaf);
        let hits: Vec<&&Sample> = samples
            .iter()
            .filter(|sample| sample.calls(&function))
            .collect();
        let cpu_ns = truth[leaf].as_u64().ok_or("no truth")?;
        share(
            leaf,
            hits.len(),
            samples.len(),
            cpu_ns as f64 / total as f64,
        )?;
        let mut expected = vec![function.as_str()];
        expected.extend(chain);
        // The first instructions of a function run before its frame exists; they are entered once
        // per slice of milliseconds, so one sample in a thousand would already be too many.
        let exact = hits
            .iter()
            .filter(|sample| sample.chain().starts_with(&expected))
            .count();
        at_least(&format!("chain of {leaf}"), exact, hits.len(), 0.999).map_err(|why| {
            let other = hits.iter().find(|s| !s.chain().starts_with(&expected));
            format!("{why}; one of the others: {other:?}\n{}", ended.stderr)
        })?;
        let inlined = hits
            .iter()
            .filter(|s| s.user[0].inlined.iter().any(|f| f.ends_with("spin")));
        at_least(
            &format!("inlined into {leaf}"),
            inlined.count(),
            hits.len(),
            0.99,
        )?;
    }
    recording.nothing_lost()?;
    Ok(())
}

#[test]
fn chain_in_c() -> Outcome {
    check_chain(
        "e2e_shares::chain_in_c",
        "chain.c",
        str::to_owned,
        &["inner", "middle", "outer", "main"],
        999,
    )
}

#[test]
fn chain_in_c_at_a_high_rate() -> Outcome {
    let chain = ["inner", "middle", "outer", "main"];
    check_chain(
        "e2e_shares::chain_in_c_at_a_high_rate",
        "chain.c",
        str::to_owned,
        &chain,
        4999,
    )
}

#[test]
fn chain_in_cpp() -> Outcome {
    check_chain(
        "e2e_shares::chain_in_cpp",
        "chain.cpp",
        |leaf| format!("work::{leaf}(unsigned long)"),
        &[
            "work::inner(int, unsigned long)",
            "unsigned long work::middle<unsigned long>(int, unsigned long)",
            "work::Outer::run(int, unsigned long)",
            "main",
        ],
        999,
    )
}

#[test]
fn chain_in_rust() -> Outcome {
    check_chain(
        "e2e_shares::chain_in_rust",
        "chain.rs",
        |leaf| format!("chain::{leaf}"),
        &[
            "chain::inner",
            "chain::middle",
            "chain::outer",
            "chain::main",
        ],
        999,
    )
}

/// Four named threads in functions of their own: each thread only in its own function, each with its
/// share of the time.
#[test]
fn threads_with_names() -> Outcome {
    let Some(setting) = Setting::new("e2e_shares::threads_with_names")? else {
        return Ok(());
    };
    let workload = setting.workload("threads.c")?;
    let mut threads = setting.start("threads", Command::new(workload).arg("2000"))?;
    threads.wait_until("naming threads", LIMIT, |run| {
        run.stdout_so_far().is_ok_and(|text| text.contains("tids"))
    })?;
    let pid = threads.pid();
    let recorder = setting.start_recording(&["-F", "999", "-p", &pid.to_string()])?;
    drop(
        threads
            .stdin()
            .map(|mut input| std::io::Write::write_all(&mut input, b"go\n")),
    );
    let threads = threads.end(LIMIT)?.success()?;
    recorder.end(LIMIT)?.success()?;

    let recording = setting.recording()?;
    let samples = recording.of_pid(pid);
    assert_eq!(
        samples.len(),
        recording.samples.len(),
        "samples of other processes"
    );
    let mut lines = threads
        .stdout
        .lines()
        .map(serde_json::from_str::<serde_json::Value>);
    let tids = lines.next().ok_or("no tids")??;
    let cpu = lines.next().ok_or("no times")??;
    let busy = cpu["cpu_ns"].as_array().ok_or("no times")?;
    let total: u64 = busy.iter().filter_map(|time| time.as_u64()).sum();
    amount(
        "whole process",
        weight(&samples),
        total,
        recording.missing_ns(),
        samples.len(),
        // Four sigma of 5,000 samples, and the time before the threads started.
        0.06,
    )?;
    for (index, time) in busy.iter().enumerate() {
        let tid = tids["tids"][index].as_u64().ok_or("no tid")?;
        let own: Vec<_> = samples.iter().filter(|s| u64::from(s.tid) == tid).collect();
        let name = format!("worker-{index}");
        let function = format!("thread_{index}");
        let in_function = own.iter().filter(|sample| sample.calls(&function)).count();
        at_least(&function, in_function, own.len(), 0.98)?;
        assert_eq!(
            own.iter().filter(|sample| sample.thread == name).count(),
            own.len(),
            "{name}"
        );
        let truth = time.as_u64().ok_or("no time")? as f64 / total as f64;
        let everywhere = samples
            .iter()
            .filter(|sample| sample.calls(&function))
            .count();
        share(&function, everywhere, samples.len(), truth)?;
    }
    Ok(())
}

/// A thread that hops between processors: a sample's processor and function must agree, and order by
/// time must hold across the processors' buffers.
#[test]
fn migrating_thread() -> Outcome {
    let test = "e2e_shares::migrating_thread";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if std::thread::available_parallelism()?.get() < 2 {
        skip::skip(test, "needs two processors");
        return Ok(());
    }
    let workload = setting.workload("migrate.c")?;
    // A rate that no other recording has: ticks of one rate keep step, and what follows those of the one is never hit by those of
    // the other.
    let workload = workload.to_string_lossy();
    let command = [&UNDISTURBED[..], &[&workload, "2000"]].concat();
    let (ended, recording) = setting.record(&[&["-F", "4871", "--"], &command[..]].concat())?;
    let truth = ended.json()?;
    let samples = recording.of_process("migrate");
    assert!(samples.is_sorted_by_key(|sample| sample.at_ns));
    for cpu in 0..2 {
        let function = format!("on_cpu_{cpu}");
        let hits: Vec<_> = samples
            .iter()
            .filter(|sample| sample.calls(&function))
            .collect();
        let wrong = hits.iter().filter(|sample| sample.cpu != cpu).count();
        assert_eq!(wrong, 0, "{function} on another processor");
        let cpu_ns = truth[&function].as_u64().ok_or("no truth")?;
        let weight = hits.iter().map(|sample| sample.weight).sum();
        amount(
            &function,
            weight,
            cpu_ns,
            recording.missing_ns(),
            hits.len(),
            0.05,
        )?;
    }
    Ok(())
}

/// Ticks that the kernel skips leave no trace but the time between two that it does not: what is said of them is an estimate.
#[test]
fn as_much_is_said_to_be_missing_as_perf_counts() -> Outcome {
    let test = "e2e_shares::as_much_is_said_to_be_missing_as_perf_counts";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if !skip::has(test, "perf") {
        return Ok(());
    }
    let migrate = setting.workload("migrate.c")?.display().to_string();
    let naps = setting.workload("naps.c")?;
    // Of what is missing it is said what is sure, nine in ten, and no more but for one in a hundred; before the first tick
    // and behind the last one perf may count some more.
    let check = |command: &[&str]| -> Result<u64, Box<dyn std::error::Error>> {
        let judged = judged(&setting, "4871", command)?;
        let (ticks, samples) = (judged.ticks, judged.samples().len() as u64);
        let said = judged.recording.lost.values().sum();
        let told = format!(
            "{}: {samples} samples, {said} said to be missing, perf counts {ticks}",
            judged.name
        );
        eprintln!("{told}");
        let missing = ticks.saturating_sub(samples);
        let some = ticks / 100 + 5;
        match (missing * 7 / 10..=missing + some).contains(&said) {
            true => Ok(said),
            false => Err(told.into()),
        }
    };
    // Few are skipped, but each processor is idle for half of the time, and the clocks of some do not tick then.
    let nap = || setting.start("naps", Command::new(&naps).args(["100000", "340", "8"]));
    let napping = [nap()?, nap()?];
    check(&[&migrate, "1500"])?;
    drop(napping);
    // A program of another recording runs at each system call, and whatever ticks then is skipped.
    let other = [
        "-a",
        "-e",
        "raw_syscalls:sys_enter",
        "--period",
        "1000000000",
    ];
    let other = setting.start_recording(&other)?;
    let calls = [
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=1",
        "count=2000000",
    ];
    let said = check(&calls)?;
    other.signal(Signal::INT)?;
    other.end(LIMIT)?;
    assert!(said > 0, "no tick was skipped");
    Ok(())
}

/// Every page fault of a run that makes a known number of them.
#[test]
fn page_faults_one_by_one() -> Outcome {
    let Some(setting) = Setting::new("e2e_shares::page_faults_one_by_one")? else {
        return Ok(());
    };
    let workload = setting.workload("faults.c")?;
    let program = workload.to_string_lossy().into_owned();
    let arguments = ["-e", "page-faults", "--period", "1", "--", &program, "5000"];
    let (ended, recording) = setting.record(&arguments)?;
    let truth = ended.json()?;
    let samples = recording.of_process("faults");
    let hits: Vec<_> = samples
        .into_iter()
        .filter(|sample| sample.calls("touch_pages"))
        .collect();
    let lost: u64 = recording.lost.values().sum();
    assert_eq!(
        weight(&hits) + lost,
        truth["faults"].as_u64().ok_or("no truth")?
    );
    assert_eq!(lost, 0, "lost: {:?}", recording.lost);
    Ok(())
}
