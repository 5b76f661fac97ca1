//! What recordings become: files in other formats, reports, and the words of info and doctor.

use std::fs;

use profiler_tests::Outcome;
use profiler_tests::recording::Recording;
use profiler_tests::setting::Setting;
use profiler_tests::statistics::share;
use profiler_tests::xml;

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
