//! What goes wrong is said in one line, with the right status: 2 for bad usage, 1 for failure.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;

use profiler_tests::Outcome;
use profiler_tests::process::{Ended, run};
use profiler_tests::setting::{LIMIT, Setting};

/// Checks a failure: the status, exactly one line, and that it names `names`.
fn one_line(what: &str, ended: Ended, status: i32, names: &str) -> Outcome {
    let ended = ended
        .expect_status(status)
        .map_err(|error| format!("{what}: {error}"))?;
    let lines: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    assert_eq!(
        lines.len(),
        1,
        "{what} should be one line: {}",
        ended.stderr
    );
    assert!(
        lines[0].contains(names),
        "{what} should name {names}: {}",
        lines[0]
    );
    assert_eq!(ended.stdout, "", "{what}");
    Ok(())
}

#[test]
fn bad_usage() -> Outcome {
    let Some(setting) = Setting::unprivileged("e2e_errors::bad_usage")? else {
        return Ok(());
    };
    for arguments in [
        &["nonsense"][..],
        &["record", "--nonsense"],
        &["record", "-F", "many"],
        &["record", "-F", "0"],
        &["record", "-p", "-7"],
        &["record", "-p", "7minus"],
        &["record", "-d", "-1"],
        &["record", "-e", "nosuchevent"],
        &["record", "-a", "-p", "1"],
        &["record", "-a", "--container", "web"],
        &["record", "--wait", "-p", "1"],
        &["record", "--pod", "a/b/c"],
        &["record", "--container", "web", "--", "true"],
        &["report", "x.cap", "--format", "nonsense"],
        &["export", "x.cap", "--format", "nonsense", "-o", "out"],
    ] {
        let ended = setting
            .run(arguments)?
            .expect_status(2)
            .map_err(|e| format!("{arguments:?}: {e}"))?;
        assert!(
            ended.stderr.starts_with("error: ") || ended.stderr.starts_with("profiler: "),
            "{arguments:?}: {}",
            ended.stderr
        );
    }
    Ok(())
}

#[test]
fn files_that_can_not_be_read() -> Outcome {
    let Some(setting) = Setting::unprivileged("e2e_errors::files_that_can_not_be_read")? else {
        return Ok(());
    };
    fs::write(setting.path("empty.cap"), "")?;
    fs::write(
        setting.path("foreign.cap"),
        "#!/bin/sh\necho this is no capture, but long enough for a head\n",
    )?;
    fs::create_dir(setting.path("folder.cap"))?;
    for file in ["missing.cap", "empty.cap", "foreign.cap", "folder.cap"] {
        one_line("report", setting.run(&["report", file])?, 1, file)?;
        one_line("info", setting.run(&["info", file])?, 1, file)?;
        let export = setting.run(&["export", file, "--format", "folded", "-o", "out.folded"])?;
        one_line("export", export, 1, file)?;
        assert!(
            !setting.path("out.folded").exists(),
            "an output was made of {file}"
        );
    }
    Ok(())
}

#[test]
fn targets_that_do_not_exist() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::targets_that_do_not_exist")? else {
        return Ok(());
    };
    for (arguments, names) in [
        (&["-p", "4194303"][..], "4194303"),
        (&["-t", "4194303"], "4194303"),
        (&["--uid", "nosuchuser"], "nosuchuser"),
        (&["--cgroup", "/no/such/cgroup"], "/no/such/cgroup"),
        (&["--container", "no-such-one"], "container no-such-one"),
        (&["--pod", "no/such-pod"], "pod no/such-pod"),
        (&["--unit", "no-such-unit"], "unit no-such-unit.service"),
    ] {
        let mut all = vec!["record", "-o", "x.cap", "-d", "1"];
        all.extend(arguments);
        one_line(&format!("{arguments:?}"), setting.run(&all)?, 1, names)?;
        assert!(!setting.path("x.cap").exists(), "{arguments:?} left a file");
    }
    // As a shell would: 127 for a command that is not there, 126 for one that can't be run.
    fs::write(setting.path("text"), "no program")?;
    for (program, status) in [("/no/such/command", 127), ("./text", 126)] {
        let ended = setting.run(&["record", "-o", "x.cap", "--", program])?;
        one_line(program, ended, status, program)?;
        assert!(!setting.path("x.cap").exists(), "{program} left a file");
    }
    Ok(())
}

#[test]
fn outputs_that_can_not_be_written() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::outputs_that_can_not_be_written")? else {
        return Ok(());
    };
    fs::write(setting.path("mine.cap"), "precious")?;
    fs::write(setting.path("behind"), "precious")?;
    symlink("behind", setting.path("link.cap"))?;
    for output in ["mine.cap", "no/such/folder.cap", "/proc/no.cap"] {
        one_line(
            output,
            setting.run(&["record", "-a", "-d", "1", "-o", output])?,
            1,
            output,
        )?;
    }
    for force in [&[][..], &["--force"]] {
        let mut arguments = vec!["record", "-a", "-d", "1", "-o", "link.cap"];
        arguments.extend(force);
        let ended = setting.run(&arguments)?;
        // With --force the link may be replaced, but nothing is written through it.
        assert!(ended.status.success() != force.is_empty() || !ended.status.success());
        assert_eq!(fs::read_to_string(setting.path("behind"))?, "precious");
    }
    assert_eq!(fs::read_to_string(setting.path("mine.cap"))?, "precious");
    setting
        .run(&["record", "-a", "-d", "1", "-o", "mine.cap", "--force"])?
        .success()?;
    let mode = fs::metadata(setting.path("mine.cap"))?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a capture is for its owner only");
    Ok(())
}

/// A full disk is said, and what was written before it stays readable.
#[test]
fn full_disk() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::full_disk")? else {
        return Ok(());
    };
    let disk = setting.path("disk");
    fs::create_dir(&disk)?;
    let chain = setting.workload("chain.c")?;
    // In a mount namespace of its own, so that nothing stays mounted. The disk is filled two seconds
    // after the recording has begun.
    let script = format!(
        "mount -t tmpfs -o size=4m none {disk} || exit 9
         {profiler} record --quiet -F 999 -o {disk}/x.cap -- sh -c '{chain} 8000; touch ended' &
         recorder=$!
         sleep 3
         cat /dev/zero >{disk}/filler 2>filling
         wait $recorder
         status=$?
         cp {disk}/x.cap kept.cap
         exit $status",
        disk = disk.display(),
        chain = chain.display(),
        profiler = setting.profiler_path().display()
    );
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .current_dir(setting.folder());
    let ended = run(&mut command, setting.folder(), "record", LIMIT)?.expect_status(1)?;
    assert_eq!(ended.stderr.matches("x.cap").count(), 1, "{}", ended.stderr);
    // The command was not left alone.
    assert!(setting.path("ended").exists());
    let recording = profiler_tests::recording::Recording::read(&setting.path("kept.cap"))?;
    assert!(!recording.samples.is_empty());
    Ok(())
}

/// Without privileges: one line that says what is missing, and `doctor` says it in full.
#[test]
fn without_privileges() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::without_privileges")? else {
        return Ok(());
    };
    // The binary is copied to where anyone may run it.
    let copy = setting.path("profiler");
    fs::copy(setting.profiler_path(), &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let as_nobody = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&copy);
        command
            .args(arguments)
            .current_dir("/tmp")
            .uid(65_534)
            .gid(65_534);
        run(&mut command, setting.folder(), "nobody", LIMIT)
    };
    let output = format!("/tmp/profiler-nobody-{}.cap", std::process::id());
    let ended = as_nobody(&["record", "-a", "-d", "1", "-o", &output])?;
    assert!(!std::path::Path::new(&output).exists());
    one_line("record as nobody", ended, 1, "CAP_")?;
    let ended = as_nobody(&["doctor"])?.expect_status(1)?;
    assert!(ended.stdout.contains("CAP_BPF"), "{}", ended.stdout);
    Ok(())
}

/// A recording that never begins leaves no files, and those that it was to replace as they were.
#[test]
fn what_fails_to_begin_leaves_files_alone() -> Outcome {
    let name = "e2e_errors::what_fails_to_begin_leaves_files_alone";
    let Some(setting) = Setting::new(name)? else {
        return Ok(());
    };
    let no_program = ["--", "/no/such/program"];
    for (failing, status) in [
        (["-F", "999999999"], 1),
        (["-p", "4194304"], 1),
        (no_program, 127),
    ] {
        for outputs in [
            &["-o", "x.cap"][..],
            &["-o", "x.svg"],
            &["-o", "x.cap", "--ring", "10m"],
        ] {
            let begin = [&["record"][..], outputs, &failing].concat();
            setting.run(&begin)?.expect_status(status)?;
            for left in ["x.cap", "x.svg", "x.cap.ring"] {
                assert!(!setting.path(left).exists(), "{begin:?} leaves {left}");
            }
            for old in ["x.cap", "x.svg"] {
                fs::write(setting.path(old), "old")?;
            }
            let begin = [&["record", "--force"][..], outputs, &failing].concat();
            setting.run(&begin)?.expect_status(status)?;
            for old in ["x.cap", "x.svg"] {
                assert_eq!(fs::read(setting.path(old))?, b"old", "{begin:?}");
                fs::remove_file(setting.path(old))?;
            }
            let left = fs::read_dir(setting.folder())?
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().starts_with("x."))
                .count();
            assert_eq!(left, 0, "{begin:?}");
        }
    }
    Ok(())
}

/// /dev/stdout is written to, never replaced.
#[test]
fn links_to_open_files_are_written_through() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::links_to_open_files_are_written_through")? else {
        return Ok(());
    };
    setting.record(&["-d", "0.3", "-F", "999"])?;
    let export = [
        "export",
        "out.cap",
        "--format",
        "folded",
        "-o",
        "/dev/stdout",
    ];
    let plain = setting.run(&export)?.success()?.stdout;
    assert!(!plain.is_empty());
    assert!(fs::symlink_metadata("/dev/stdout")?.is_symlink());
    Ok(())
}
