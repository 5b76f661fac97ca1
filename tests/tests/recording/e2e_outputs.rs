//! What recordings become: files in other formats, reports, and the words of info and doctor.

use std::fs;
use std::process::Command;
use std::time::Duration;

use profiler_tests::Outcome;
use profiler_tests::process::burnt;
use profiler_tests::recording::Recording;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::share;
use profiler_tests::xml;
use rustix::process::Signal;

/// Several outputs of one recording: a well-formed picture, folded stacks that add up, a capture.
#[test]
fn several_outputs_at_once() -> Outcome {
    let Some(setting) = Setting::new("e2e_outputs::several_outputs_at_once")? else {
        return Ok(());
    };
    let program = setting.workload("chain.c")?;
    let ended = setting
        .run(&[
            "record",
            "-F",
            "999",
            "-o",
            "x.cap",
            "-o",
            "x.svg",
            "-o",
            "x.folded",
            "--",
            &program.to_string_lossy(),
            "1000",
        ])?
        .success()?;
    let truth = ended.json()?;

    let svg = fs::read_to_string(setting.path("x.svg"))?;
    assert!(xml::elements(&svg)? > 10);
    for name in ["leaf_a", "leaf_b", "leaf_c", "outer"] {
        assert!(svg.contains(name), "{name} is not in the picture");
    }

    let folded = fs::read_to_string(setting.path("x.folded"))?;
    let mut counts = [0_u64; 3];
    let mut all = 0;
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').ok_or("a folded line without count")?;
        let count: u64 = count.parse()?;
        all += count;
        for (index, leaf) in ["leaf_a", "leaf_b", "leaf_c"].iter().enumerate() {
            if stack.contains(&format!("main;outer;middle;inner;{leaf}")) {
                counts[index] += count;
            }
        }
    }
    let recording = Recording::read(&setting.path("x.cap"))?;
    let samples = recording.samples.len();
    let total = truth["total"].as_u64().ok_or("no truth")? as f64;
    for (index, leaf) in ["leaf_a", "leaf_b", "leaf_c"].iter().enumerate() {
        // Counts may be samples or weights: shares are the same.
        let hits = (counts[index] as f64 / all as f64 * samples as f64).round() as usize;
        share(
            leaf,
            hits,
            samples,
            truth[*leaf].as_f64().ok_or("no truth")? / total,
        )?;
    }

    // What is exported later is what was written at once.
    setting
        .run(&[
            "export",
            "x.cap",
            "--format",
            "folded",
            "-o",
            "later.folded",
        ])?
        .success()?;
    assert_eq!(fs::read_to_string(setting.path("later.folded"))?, folded);
    Ok(())
}

/// The report is the same, byte for byte, when the binaries are gone.
#[test]
fn report_without_the_binaries() -> Outcome {
    let Some(setting) = Setting::new("e2e_outputs::report_without_the_binaries")? else {
        return Ok(());
    };
    let program = setting.workload("chain.c")?;
    let (_, recording) =
        setting.record(&["-F", "999", "--", &program.to_string_lossy(), "1000"])?;
    assert!(!recording.samples.is_empty());
    let before = setting.run(&["report", "out.cap"])?.success()?.stdout;
    for name in ["leaf_a", "leaf_b", "leaf_c"] {
        assert!(before.contains(name), "{before}");
    }
    fs::remove_file(&program)?;
    let after = setting.run(&["report", "out.cap"])?.success()?.stdout;
    assert_eq!(before, after);

    let json = setting
        .run(&["report", "out.cap", "--format", "json"])?
        .success()?
        .json()?;
    assert!(json.is_object());
    let info = setting
        .run(&["info", "out.cap", "--format", "json"])?
        .success()?
        .json()?;
    let text = info.to_string();
    assert!(
        text.contains(&recording.samples.len().to_string()),
        "{text}"
    );
    Ok(())
}

#[test]
fn doctor_finds_nothing_wrong_for_root() -> Outcome {
    let Some(setting) = Setting::new("e2e_outputs::doctor_finds_nothing_wrong_for_root")? else {
        return Ok(());
    };
    let ended = setting.run(&["doctor"])?.success()?;
    assert!(ended.stdout.contains("CAP_BPF"), "{}", ended.stdout);
    Ok(())
}

/// The rest of the line of a text that begins so, without spaces around.
fn line<'t>(text: &'t str, label: &str) -> Result<&'t str, String> {
    let found = text.lines().find_map(|line| line.strip_prefix(label));
    found
        .map(str::trim)
        .ok_or_else(|| format!("no line begins with '{label}': {text}"))
}

/// What is missing, and how long was recorded, is the same in all that is said of a capture: by kinds, which are not added up.
#[test]
fn one_account_of_what_was_lost() -> Outcome {
    let Some(setting) = Setting::new("e2e_outputs::one_account_of_what_was_lost")? else {
        return Ok(());
    };
    // Whoever is stopped reads nothing, and a buffer of a page is full soon.
    let program = setting.workload("chain.c")?;
    let program = setting.start("chain", Command::new(program).arg("60000"))?;
    let pid = program.pid().to_string();
    let recorder =
        setting.start_recording(&["-F", "4999", "--buffer", "4K", "--off-cpu", "-p", &pid])?;
    recorder.signal(Signal::STOP)?;
    burnt(program.pid(), Duration::from_millis(200))?;
    recorder.signal(Signal::CONT)?;
    burnt(program.pid(), Duration::from_millis(50))?;
    recorder.signal(Signal::INT)?;
    let recorded = recorder.end(LIMIT)?.success()?;
    program.signal(Signal::KILL)?;
    let report = setting.run(&["report", "out.cap"])?.success()?;
    let info = setting.run(&["info", "out.cap"])?.success()?;
    let json = setting
        .run(&["report", "--format", "json", "out.cap"])?
        .success()?
        .json()?;

    let said = line(&recorded.stderr, "lost:")?;
    assert_eq!(line(&report.stdout, "Lost")?, said);
    assert_eq!(line(&info.stdout, "lost")?, said);
    let rows = json["header"]["lost"].as_array().ok_or("no rows")?;
    let of = |kind: &str| -> u64 {
        let rows = rows.iter().filter(|row| row["kind"] == kind);
        rows.filter_map(|row| row["count"].as_u64()).sum()
    };
    let samples = of("samples");
    assert!(samples > 0, "{said}");
    assert_eq!(json["header"]["lost_samples"], samples);
    let (count, _) = said.split_once(" sample").ok_or("no samples")?;
    assert_eq!(count.replace(',', ""), samples.to_string());

    let (lasted, _) = recorded
        .stderr
        .split_once(" s (cpu-clock")
        .ok_or("no time")?;
    let (_, lasted) = lasted.rsplit_once(" in ").ok_or("no time")?;
    let (told, _) = line(&info.stdout, "time")?
        .split_once(' ')
        .ok_or("no time")?;
    let ns = |name: &str| json["header"][name].as_f64().ok_or("no time");
    let reported = (ns("to_ns")? - ns("from_ns")?) / 1e9;
    // One is when the last event came, the other when the kernel had nothing more to give: told to a tenth of a second.
    let (lasted, told): (f64, f64) = (lasted.parse()?, told.parse()?);
    assert!((told - reported).abs() < 0.002, "{told} {reported}");
    assert!(lasted >= reported - 0.05, "{lasted} {reported}");
    Ok(())
}
