//! The profiler without its default features: what is left works, and what is not there is said.
//!
//! Builds it, in a folder of its own below the target folder; so it runs with `--long` only.

use std::path::PathBuf;
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::process;
use profiler_tests::recording::Recording;
use profiler_tests::setting::Setting;

const BUILD: std::time::Duration = std::time::Duration::from_secs(1200);

#[test]
fn without_default_features() -> Outcome {
    let Some(setting) = Setting::new("e2e_features::without_default_features")? else {
        return Ok(());
    };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = root.join("target/bare");
    let mut build = Command::new("cargo");
    build
        .current_dir(&root)
        .args(["build", "--package=profiler"]);
    build
        .args(["--no-default-features", "--target-dir"])
        .arg(&target);
    process::run(&mut build, setting.folder(), "cargo", BUILD)?.success()?;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(target.join("debug/profiler"));
        command.current_dir(setting.folder()).args(arguments);
        process::run(&mut command, setting.folder(), "bare", BUILD)
    };

    let program = setting.workload("chain.c")?;
    let program = program.to_string_lossy();
    run(&["record", "-o", "x.cap", "--", &program, "500"])?.success()?;
    assert!(!Recording::read(&setting.path("x.cap"))?.samples.is_empty());
    run(&["report", "x.cap"])?.success()?;

    for arguments in [
        &["serve", "--tcf"][..],
        &["stream", "bytefrog", "x"],
        &["hq"],
    ] {
        let ended = run(arguments)?;
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        let said = format!("unrecognized subcommand '{}'", arguments[0]);
        assert!(ended.stderr.contains(&said), "{}", ended.stderr);
    }
    Ok(())
}
