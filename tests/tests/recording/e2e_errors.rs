//! What goes wrong is said in one line, with the right status: 2 for bad usage, 1 for failure.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;

use profiler_model::{Event, LostReason, Sample, Tables};
use profiler_tests::Outcome;
use profiler_tests::process::{Ended, run};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, prepared};

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
    for (file, names) in [
        ("missing.cap", "missing.cap"),
        ("empty.cap", "it is empty"),
        ("foreign.cap", "--from"),
        ("folder.cap", "is a folder"),
    ] {
        let import = setting.run(&["import", file, "-o", "out.cap"])?;
        one_line("import", import, 1, names)?;
        assert!(!setting.path("out.cap").exists(), "a capture of {file}");
    }
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
    // Only this process: of others, which other tests run, there may be something to say.
    let me = std::process::id().to_string();
    for output in ["no/such/folder.cap", "/proc/no.cap"] {
        one_line(
            output,
            setting.run(&["record", "-p", &me, "-d", "1", "-o", output])?,
            1,
            output,
        )?;
    }
    for force in [&[][..], &["--force"]] {
        let mut arguments = vec!["record", "-p", &me, "-d", "1", "-o", "link.cap"];
        arguments.extend(force);
        one_line("a link", setting.run(&arguments)?, 1, "link.cap")?;
        assert_eq!(fs::read_to_string(setting.path("behind"))?, "precious");
    }
    // The same command works twice: what was there goes aside, one generation of it.
    fs::write(setting.path("mine.svg"), "precious")?;
    let both = [
        "record", "-a", "-d", "0.5", "-o", "mine.cap", "-o", "mine.svg",
    ];
    let user = |command: &mut std::process::Command| {
        command.env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    };
    let mut last = Vec::new();
    for (name, old) in [("mine.cap", "mine.cap.old"), ("mine.svg", "mine.svg.old")] {
        assert!(!setting.path(old).exists(), "{name}");
    }
    for run in 0..2 {
        let mut command = setting.profiler();
        user(command.args(both));
        profiler_tests::process::run(&mut command, setting.folder(), "twice", LIMIT)?.success()?;
        for (name, old) in [("mine.cap", "mine.cap.old"), ("mine.svg", "mine.svg.old")] {
            let found = fs::metadata(setting.path(name))?;
            assert_eq!(
                found.permissions().mode() & 0o777,
                0o600,
                "{name} is for its owner only"
            );
            assert_eq!(found.uid(), 65_534, "{name} is of the user behind sudo");
            match run {
                0 => assert_eq!(fs::read_to_string(setting.path(old))?, "precious"),
                _ => assert!(last.contains(&fs::read(setting.path(old))?), "{old}"),
            }
        }
        last = vec![
            fs::read(setting.path("mine.cap"))?,
            fs::read(setting.path("mine.svg"))?,
        ];
    }
    setting
        .run(&["record", "-a", "-d", "0.5", "-o", "mine.cap", "--force"])?
        .success()?;
    assert!(last.contains(&fs::read(setting.path("mine.svg"))?));
    assert!(!last.contains(&fs::read(setting.path("mine.cap.old"))?));
    Ok(())
}

/// Files that may not become longer are like a full disk: said, and gone on with.
#[test]
fn files_that_may_not_become_longer() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::files_that_may_not_become_longer")? else {
        return Ok(());
    };
    let chain = setting.workload("chain.c")?;
    let shell = |script: &str| {
        let profiler = setting.profiler_path().display();
        let script = script.replace("PROFILER", &profiler.to_string());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).current_dir(setting.folder());
        run(&mut command, setting.folder(), "limited", LIMIT)
    };
    // In units of 512 bytes: 20 KiB.
    let record = format!(
        "ulimit -f 40; exec PROFILER record -F 4999 -o x.cap -- {} 3000",
        chain.display()
    );
    let ended = shell(&record)?.expect_status(1)?;
    assert_eq!(
        ended.stderr.matches("failed to write").count(),
        1,
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("could not be written"),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("nothing lost"), "{}", ended.stderr);
    let recording = profiler_tests::recording::Recording::read(&setting.path("x.cap"))?;
    assert!(
        recording.samples.len() > 100,
        "{} samples",
        recording.samples.len()
    );

    let ended = shell("ulimit -f 8; exec PROFILER export x.cap -o x.svg")?.expect_status(1)?;
    assert!(ended.stderr.contains("File too large"), "{}", ended.stderr);
    let left = fs::read_dir(setting.folder())?
        .flatten()
        .map(|entry| entry.file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().contains("x.svg"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// In a namespace of ids the kernel's are others: it is said why nothing has a name, and what helps.
#[test]
fn ids_of_a_namespace() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::ids_of_a_namespace")? else {
        return Ok(());
    };
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(setting.profiler_path())
        .args(["record", "-a", "-d", "0.5", "-o", "x.cap"])
        .current_dir(setting.folder());
    let ended = run(&mut command, setting.folder(), "record", LIMIT)?.success()?;
    assert!(ended.stderr.contains("--pid=host"), "{}", ended.stderr);
    let ended = setting
        .run(&["record", "-a", "-d", "0.5", "-o", "y.cap"])?
        .success()?;
    assert!(!ended.stderr.contains("--pid=host"), "{}", ended.stderr);
    Ok(())
}

/// A full disk is said and survived: the recording goes on when there is room, and tells what is missing.
#[test]
fn full_disk() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::full_disk")? else {
        return Ok(());
    };
    let disk = setting.path("disk");
    fs::create_dir(&disk)?;
    let chain = setting.workload("chain.c")?;
    // The disk is filled when events have been written, until three seconds after it was said that it is.
    let script = format!(
        "mount -t tmpfs -o size=4m none {disk} || exit 9
         {profiler} record -F 999 -o {disk}/x.cap -- sh -c '{chain} 1800 --now-and-then; touch ended' 2>said &
         recorder=$!
         until [ $(stat -c %s {disk}/x.cap 2>none || echo 0) -gt 8192 ]; do sleep 0.1; done
         cat /dev/zero >{disk}/filler 2>filling
         until grep -q 'failed to write' said || ! kill -0 $recorder; do sleep 0.1; done
         sleep 3
         rm {disk}/filler
         wait $recorder
         status=$?
         cat said >&2
         cp {disk}/x.cap kept.cap
         exit $status",
        disk = disk.display(),
        chain = chain.display(),
        profiler = setting.profiler_path().display()
    );
    let ended = among_own_mounts(&setting, &script)?.expect_status(1)?;
    assert_eq!(
        ended.stderr.matches("failed to write").count(),
        1,
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("could not be written"),
        "{}",
        ended.stderr
    );
    // The command ran to its end, recorded.
    assert!(setting.path("ended").exists());
    let recording = profiler_tests::recording::Recording::read(&setting.path("kept.cap"))?;
    let (first, last) = match &recording.samples[..] {
        [first, .., last] => (first.at_ns, last.at_ns),
        _ => return Err("no samples".into()),
    };
    // Before the disk was full and after it was, which was at the least a second later.
    assert!(last - first > 1_000_000_000, "{} ns", last - first);
    let missing = recording.lost.get(&LostReason::UnwrittenSamples);
    assert!(
        missing.is_some_and(|&count| count > 0),
        "{:?}",
        recording.lost
    );
    // Who recorded and who reads tell the same.
    let lost = line_of(&ended.stderr, "lost: ")?;
    let info = loses(&setting, "kept.cap", &lost)?;
    let written = line_of(&ended.stderr, "")?;
    let samples = written
        .split(' ')
        .next()
        .map(|count| count.replace(',', ""));
    assert_eq!(
        samples,
        Some(info["events"]["sample"].to_string()),
        "{written}"
    );
    Ok(())
}

/// A disk on which there is no room for what a machine has at the start: samples are there with their definitions as far as it
/// goes, and who recorded and who reads tell the same of the rest.
#[test]
fn small_disk() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::small_disk")? else {
        return Ok(());
    };
    let disk = setting.path("disk");
    fs::create_dir(&disk)?;
    let chain = setting.workload("chain.c")?;
    // There may be room for the file's own first bytes alone.
    for (size, fits) in [("4k", false), ("192k", true)] {
        let script = format!(
            "mount -t tmpfs -o size={size} none {disk} || exit 9
             {chain} 2200 &
             {profiler} record -a --wall -F 4999 -d 2 -o {disk}/x.cap
             status=$?
             cp {disk}/x.cap kept-{size}.cap
             wait
             exit $status",
            disk = disk.display(),
            chain = chain.display(),
            profiler = setting.profiler_path().display()
        );
        let ended = among_own_mounts(&setting, &script)?.expect_status(1)?;
        let file = format!("kept-{size}.cap");
        let recording = profiler_tests::recording::Recording::read(&setting.path(&file))?;
        let said = ended.stderr.contains("nothing fitted on the disk");
        assert_eq!(recording.samples.is_empty(), said, "{}", ended.stderr);
        assert!(!(fits && said), "{}", ended.stderr);
        let lost = line_of(&ended.stderr, "lost: ")?;
        if !fits {
            continue;
        }
        let info = loses(&setting, &file, &lost)?;
        let stacks = line_of(&ended.stderr, "user stacks: ")?;
        // If no process has ended only shares are said.
        let Some((_, of)) = stacks.split_once("(of ") else {
            continue;
        };
        let digits = of.replace(',', "");
        let end = digits.find(|c: char| !c.is_ascii_digit());
        let said: u64 = digits[..end.unwrap_or(digits.len())].parse()?;
        let read = info["user_stacks"]["there"].as_u64().unwrap_or_default();
        assert_eq!(said, read, "{}", ended.stderr);
    }
    Ok(())
}

/// What is made from a capture has no room: one line names it.
#[test]
fn exports_on_a_full_disk() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::exports_on_a_full_disk")? else {
        return Ok(());
    };
    let chain = setting.workload("chain.c")?;
    setting.record(&["-F", "499", "--", &chain.to_string_lossy(), "200"])?;
    let full = "profiler: failed to write /dev/full: No space left on device (os error 28)\n";
    // As they are written: line by line, packed, as a whole.
    for format in [
        "folded",
        "pprof",
        "firefox",
        "perfetto",
        "speedscope",
        "svg",
    ] {
        let arguments = ["export", "out.cap", "--format", format, "-o", "/dev/full"];
        let ended = setting.run(&arguments)?.expect_status(1)?;
        assert_eq!(ended.stderr, full, "{format}");
    }
    fs::write(setting.path("empty.gotrace"), "Trace Go1.22\n")?;
    let arguments = ["convert", "empty.gotrace", "-o", "/dev/full"];
    let ended = setting.run(&arguments)?.expect_status(1)?;
    assert_eq!(ended.stderr, full, "convert");
    let script = format!(
        "{} export out.cap -f folded >/dev/full",
        setting.profiler_path().display()
    );
    let mut shell = std::process::Command::new("sh");
    let shell = shell.args(["-c", &script]);
    let ended = setting
        .start("shell", shell)?
        .end(LIMIT)?
        .expect_status(1)?;
    assert_eq!(ended.stderr, full.replace("/dev/full", "standard output"));
    Ok(())
}

/// What others can change is copied before it is read: into the next folder where one is full, into memory where all are.
#[test]
fn full_folders_for_copies_cost_no_names() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::full_folders_for_copies_cost_no_names")? else {
        return Ok(());
    };
    let chain = setting.workload("chain.c")?;
    // Below mounts of its own it is copied by who opens files there, which uses folders only.
    for (full, start) in [("/var/tmp", "unshare --mount"), ("/var/tmp /tmp", "")] {
        let script = format!(
            "cp {chain} theirs && chown 65534 theirs || exit 9
             for folder in {full}; do
                 mount -t tmpfs -o size=64k none $folder || exit 9
                 head -c 64k /dev/zero >$folder/filler
             done
             {start} ./theirs 60000 &
             {profiler} record -F 499 -p $! -d 1 --wait-names 60 --force -o x.cap
             status=$?
             kill $!
             # A file that runs can't be written anew.
             wait
             exit $status",
            chain = chain.display(),
            profiler = setting.profiler_path().display()
        );
        among_own_mounts(&setting, &script)?.success()?;
        let recording = profiler_tests::recording::Recording::read(&setting.path("x.cap"))?;
        let samples = recording.of_process("theirs");
        // It looks first how fast it is.
        let named = samples.iter().filter(|sample| sample.calls("main"));
        // However little it ran: all have names or none.
        let (named, all) = (named.count(), samples.len());
        assert!(
            named > 10 && named * 10 >= all * 9,
            "{full}: {named} of {all}"
        );
    }
    Ok(())
}

/// What the kernel tells of itself is opened without waiting for whoever put something else there.
#[test]
fn nobody_waits_for_pipes_in_place_of_the_kernels_files() -> Outcome {
    let test = "e2e_errors::nobody_waits_for_pipes_in_place_of_the_kernels_files";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for file in ["/sys/kernel/btf/vmlinux", "/sys/kernel/notes"] {
        let script = format!(
            "rm -f pipe; mkfifo pipe && mount --bind pipe {file} || exit 9
             exec timeout -s KILL 20 {profiler} record -F 999 --force -o x.cap -- sleep 0.2",
            profiler = setting.profiler_path().display()
        );
        among_own_mounts(&setting, &script)?.success()?;
        profiler_tests::recording::Recording::read(&setting.path("x.cap"))?;
    }
    Ok(())
}

/// Who waits all the time is told of at the end, when the disk has long been full: there is room for that. What the kernel counted is of all
/// the time, and it is said how much of it was recorded.
#[test]
fn waits_on_a_full_disk() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::waits_on_a_full_disk")? else {
        return Ok(());
    };
    let disk = setting.path("disk");
    fs::create_dir(&disk)?;
    let chain = setting.workload("chain.c")?;
    let naps = setting.workload("naps.c")?;
    // Of these only: how many more threads there are is the machine's business, and what is kept of them has to fit.
    let script = format!(
        "mount -t tmpfs -o size=64k none {disk} || exit 9
         {chain} 60000 & chain=$!
         {naps} 100000 300 100 & naps=$!
         sleep 60 & sleep=$!
         {profiler} record -p $chain -p $naps -p $sleep --wall -F 4999 -d 2 -o {disk}/x.cap
         status=$?
         kill $chain $naps $sleep
         cp {disk}/x.cap kept.cap
         wait
         exit $status",
        disk = disk.display(),
        chain = chain.display(),
        naps = naps.display(),
        profiler = setting.profiler_path().display()
    );
    let ended = among_own_mounts(&setting, &script)?.expect_status(1)?;
    let (mut recorded_ns, mut counted_ns) = (0, 0);
    let mut reader = profiler_capture::Reader::open(&setting.path("kept.cap"))?;
    let tables = reader.load_tables()?;
    let mut sum = |event: &Event, _: &Tables| {
        match event {
            Event::Sample(Sample {
                wait: Some(wait), ..
            }) => recorded_ns += wait.ns,
            Event::Waits(waits) => counted_ns += waits.ns.iter().sum::<u64>(),
            _ => {}
        }
        Ok(())
    };
    reader.replay(&tables, profiler_capture::TimeRange::ALL, &mut sum)?;
    let lost = line_of(&ended.stderr, "lost: ")?;
    loses(&setting, "kept.cap", &lost)?;
    let told = setting
        .run(&["report", "--format", "json", "kept.cap"])?
        .success()?;
    let report: serde_json::Value = serde_json::from_str(&told.stdout)?;
    let waits = &report["waits"];
    let sleeps: u64 = (waits["threads"].as_array().into_iter().flatten())
        .filter(|row| row["process"] == "sleep")
        .filter_map(|row| row["exact"]["ns"].as_u64())
        .sum();
    assert!(sleeps > 1_900_000_000, "{}", waits["threads"]);
    let said = waits["exact"]["recorded_percent"].as_f64();
    let is = 100.0 * recorded_ns as f64 / counted_ns as f64;
    assert!(
        said.is_some_and(|said| (said - is).abs() < 0.5),
        "{said:?}, {is}"
    );
    Ok(())
}

/// Calls whose end found no room on the disk are not said to go on, and how many there were is known all the same.
#[test]
fn calls_on_a_full_disk() -> Outcome {
    let test = "e2e_errors::calls_on_a_full_disk";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    // Three seconds' calls are three MB, of which one fits. With calls of 0.3 s, and room for a fifth of them, all came at a time
    // on a quiet machine, and nothing fitted.
    let turns = 50_000;
    let disk = setting.path("disk");
    fs::create_dir(&disk)?;
    let script = format!(
        "mount -t tmpfs -o size=1m none {disk} || exit 9
         {profiler} record --no-samples --budget off --trace 'thread_*' -o {disk}/x.cap -- {program} {turns}
         status=$?
         cp {disk}/x.cap kept.cap
         exit $status",
        disk = disk.display(),
        program = program.display(),
        profiler = setting.profiler_path().display()
    );
    let ended = among_own_mounts(&setting, &script)?.expect_status(1)?;
    let said = line_of(&ended.stderr, "lost: ")?;
    let are_records = said.contains("records of calls that could not be written");
    assert!(are_records, "{}", ended.stderr);
    let told = setting
        .run(&["report", "--format", "json", "kept.cap"])?
        .success()?;
    let report: serde_json::Value = serde_json::from_str(&told.stdout)?;
    let functions = report["calls"]["functions"].as_array();
    assert_eq!(functions.map(Vec::len), Some(2), "{}", report["calls"]);
    for row in functions.into_iter().flatten() {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let all = match row["name"].as_str() {
            Some("thread_outer") => 4 * turns,
            _ => 2 * 4 * turns,
        };
        assert_eq!(number("calls_counted"), all, "{row}");
        assert!(number("calls_seen") < all, "{row}");
        assert_eq!(number("open"), 0, "{row}");
    }
    // What was open when there was no room: two calls of each thread, each time that the room was too small for what came and
    // took something smaller later.
    let summary = &report["calls"]["summary"];
    let number = |key: &str| summary[key].as_u64().unwrap_or(0);
    let (without_end, seen) = (number("unrecorded"), number("seen"));
    assert!(
        (1..seen / 100).contains(&without_end),
        "{without_end} of {seen}: {summary}"
    );
    Ok(())
}

/// Runs a script in a mount namespace of its own, so that nothing stays mounted.
fn among_own_mounts(setting: &Setting, script: &str) -> std::io::Result<Ended> {
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .current_dir(setting.folder());
    run(&mut command, setting.folder(), "record", LIMIT)
}

/// Checks that readers of a capture tell the same losses as who recorded it; gives what `info` tells.
fn loses(
    setting: &Setting,
    capture: &str,
    lost: &str,
) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    for (command, begins) in [("report", "Lost "), ("info", "lost ")] {
        let told = setting.run(&[command, capture])?.success()?;
        assert_eq!(line_of(&told.stdout, begins)?, lost, "{command}");
    }
    let info = setting
        .run(&["info", "--format", "json", capture])?
        .success()?;
    Ok(serde_json::from_str(&info.stdout)?)
}

/// The rest of the first line that begins so.
fn line_of(text: &str, begins: &str) -> Result<String, String> {
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with("profiler: ") && !line.starts_with("note: "));
    let found = lines.find_map(|line| line.strip_prefix(begins));
    let found = found.map(|line| line.trim_start().to_owned());
    found.ok_or_else(|| format!("nothing begins with {begins:?}: {text}"))
}

/// Without privileges: one line that says what is missing, and `doctor` says it in full.
#[test]
fn without_privileges() -> Outcome {
    let Some(setting) = Setting::new("e2e_errors::without_privileges")? else {
        return Ok(());
    };
    let copy = setting.profiler_for_all()?;
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

/// A sample of an event, as perf has it.
fn sample(event: &str, second: u32, function: &str) -> String {
    format!("a 7/7 {second}.5: 9 {event}: \n\tf1 {function}+0x1 (/lib{function}.so)\n\n")
}

#[test]
fn what_is_read_is_not_written_over() -> Outcome {
    let Some(setting) = Setting::unprivileged("e2e_errors::what_is_read_is_not_written_over")?
    else {
        return Ok(());
    };
    let refused = |command: &str, file: &str, output: &str, more: &[&str]| -> Outcome {
        let before = fs::read(setting.path(file))?;
        for force in [&["-o", output][..], &["--force", "-o", output]] {
            let mut arguments = vec![command, file];
            arguments.extend(more);
            arguments.extend(force);
            one_line(command, setting.run(&arguments)?, 1, "is an input too")?;
        }
        assert_eq!(fs::read(setting.path(file))?, before, "{command}");
        assert!(!setting.path(&format!("{output}.old")).exists());
        Ok(())
    };
    fs::write(setting.path("x.txt"), sample("cpu-clock", 1, "f"))?;
    refused("import", "x.txt", "x.txt", &[])?;
    setting
        .run(&["import", "x.txt", "-o", "x.cap"])?
        .success()?;
    fs::hard_link(setting.path("x.cap"), setting.path("other.svg"))?;
    refused("export", "x.cap", "x.cap", &["--format", "folded"])?;
    refused("export", "x.cap", "other.svg", &[])?;
    setting
        .run(&["export", "x.cap", "-o", "x.gotrace"])?
        .success()?;
    refused("convert", "x.gotrace", "x.gotrace", &[])?;
    let devices = setting.run(&["convert", "/dev/null", "-o", "/dev/null"])?;
    assert!(!devices.stderr.contains("input too"), "{}", devices.stderr);
    Ok(())
}

#[test]
fn exports_show_what_a_report_shows() -> Outcome {
    let Some(setting) = Setting::unprivileged("e2e_errors::exports_show_what_a_report_shows")?
    else {
        return Ok(());
    };
    let text = [
        sample("page-faults", 1, "f"),
        sample("cpu-clock", 2, "g"),
        sample("cpu-clock", 3, "g"),
    ];
    fs::write(setting.path("x.txt"), text.concat())?;
    setting
        .run(&["import", "x.txt", "-o", "x.cap"])?
        .success()?;
    let folded = |more: &[&str]| {
        let mut arguments = vec!["export", "x.cap", "--format", "folded"];
        arguments.extend(more);
        setting
            .run(&arguments)
            .map_err(|error| error.to_string())?
            .success()
    };
    let ended = folded(&[])?;
    assert_eq!(ended.stdout, "a;g 2\n", "the source of most samples");
    assert!(
        ended
            .stderr
            .contains("1 sample of other event sources (page-faults) left out"),
        "{}",
        ended.stderr
    );
    let ended = folded(&["--source", "page-faults"])?;
    assert_eq!(
        (ended.stdout.as_str(), ended.stderr.as_str()),
        ("a;f 1\n", "")
    );
    let ended = folded(&["--function", "nosuch"])?;
    assert_eq!(ended.stdout, "");
    assert!(
        ended
            .stderr
            .contains("nothing recorded matches the filters"),
        "{}",
        ended.stderr
    );
    Ok(())
}
