//! With tracefs mounted and without: what needs it, and what is said.
//!
//! The profiler runs as nobody with the documented set of capabilities, in a mount namespace in which
//! tracefs is mounted or is not, and the kernel's description of its types is there or is not. The oracle is
//! a command whose children are known, the words of `doctor` and one line of an error.

use std::fs;

use profiler_probe::privileges::{CapabilitySet, recording_set};
use profiler_tests::Outcome;
use profiler_tests::process::{Ended, run};
use profiler_tests::recording::Recording;
use profiler_tests::setting::LIMIT;
use profiler_tests::tracefs::Tracefs;

use super::unprivileged::{NOBODY, Unprivileged};

struct Bench(Unprivileged);

impl Bench {
    fn new(test: &str) -> Result<Option<Bench>, Box<dyn std::error::Error>> {
        Ok(Unprivileged::new(test)?.map(Bench))
    }

    /// The profiler as nobody with exactly this set, tracefs being so; with `types` that the kernel
    /// describes, or without.
    fn run(
        &self,
        tracefs: Tracefs,
        types: bool,
        set: CapabilitySet,
        arguments: &[&str],
    ) -> std::io::Result<Ended> {
        let mut command = tracefs.command();
        if !types {
            let hide = "mount --bind /dev/null /sys/kernel/btf/vmlinux || exit 97; exec \"$@\"";
            command.args(["sh", "-c", hide, "sh"]);
        }
        command.arg("setpriv");
        let mut command = self.0.profiler(command, NOBODY, set);
        run(
            command.args(arguments),
            self.0.setting.folder(),
            "as",
            LIMIT,
        )
    }

    /// Records a shell that starts three busy children: the processes that have samples.
    fn follows(
        &self,
        tracefs: Tracefs,
        types: bool,
        set: CapabilitySet,
    ) -> Result<Ended, Box<dyn std::error::Error>> {
        const SCRIPT: &str = "for n in 1 2 3; do sh -c \
            'i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done'; done";
        let capture = self.0.folder.join("out.cap");
        let _ = fs::remove_file(&capture);
        let record = [
            "record", "-F", "999", "-o", "out.cap", "--", "sh", "-c", SCRIPT,
        ];
        let ended = self.run(tracefs, types, set, &record)?;
        if ended.status.success() {
            let recording = Recording::read(&capture)?;
            let mut pids: Vec<_> = recording.samples.iter().map(|sample| sample.pid).collect();
            pids.sort_unstable();
            pids.dedup();
            assert!(pids.len() >= 3, "{tracefs:?}: {pids:?}");
        }
        Ok(ended)
    }
}

fn one_line(ended: &Ended, names: &[&str]) {
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if names.iter().all(|name| line.contains(name))),
        "{}",
        ended.stderr
    );
}

/// The lines of `doctor` about a feature: whether it is there, and what is said.
fn of_doctor(bench: &Bench, tracefs: Tracefs, types: bool, feature: &str) -> (String, String) {
    let doctor = bench.run(tracefs, types, recording_set(), &["doctor"]);
    let text = doctor.map(|ended| ended.stdout).unwrap_or_default();
    let mut lines = text.lines();
    let head = lines.find(|line| line.contains(&format!(" {feature}: ")));
    let mark = head.and_then(|line| line.split(' ').next());
    let said = lines.next().unwrap_or_default().trim().to_owned();
    (mark.unwrap_or_default().to_owned(), said)
}

#[test]
fn children_are_followed_in_both_states() -> Outcome {
    let Some(bench) = Bench::new("e2e_tracefs::children_are_followed_in_both_states")? else {
        return Ok(());
    };
    let least = CapabilitySet::BPF | CapabilitySet::PERFMON;
    for tracefs in [Tracefs::Mounted, Tracefs::Absent] {
        for set in [recording_set(), least] {
            bench.follows(tracefs, true, set)?.success()?;
        }
        let (mark, said) = of_doctor(&bench, tracefs, true, "following children");
        assert_eq!(mark, "ok", "{tracefs:?}: {said}");
        assert!(said.contains("raw tracepoints"), "{tracefs:?}: {said}");
    }
    Ok(())
}

#[test]
fn tracepoints_as_sources_need_tracefs() -> Outcome {
    let Some(bench) = Bench::new("e2e_tracefs::tracepoints_as_sources_need_tracefs")? else {
        return Ok(());
    };
    let set = recording_set();
    let record = [
        "record",
        "-a",
        "-e",
        "sched:sched_switch",
        "-d",
        "0.5",
        "-o",
        "out.cap",
    ];
    bench.run(Tracefs::Mounted, true, set, &record)?.success()?;
    let recording = Recording::read(&bench.0.folder.join("out.cap"))?;
    assert!(!recording.samples.is_empty());
    fs::remove_file(bench.0.folder.join("out.cap"))?;

    let less = set - CapabilitySet::DAC_READ_SEARCH;
    let ended = bench.run(Tracefs::Mounted, true, less, &record)?;
    one_line(&ended.expect_status(1)?, &["CAP_DAC_READ_SEARCH"]);
    let ended = bench.run(Tracefs::Absent, true, set, &record)?;
    let remedies = [
        "CAP_SYS_ADMIN",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    ];
    one_line(&ended.expect_status(1)?, &remedies);
    // It mounts one for itself.
    let more = set | CapabilitySet::SYS_ADMIN;
    bench.run(Tracefs::Absent, true, more, &record)?.success()?;

    let (mark, said) = of_doctor(&bench, Tracefs::Mounted, true, "tracefs");
    assert_eq!(mark, "ok", "{said}");
    let (mark, said) = of_doctor(&bench, Tracefs::Absent, true, "tracefs");
    assert_eq!(mark, "absent");
    assert!(said.contains("mount -t tracefs"), "{said}");
    Ok(())
}

#[test]
fn without_types_children_need_tracefs() -> Outcome {
    let Some(bench) = Bench::new("e2e_tracefs::without_types_children_need_tracefs")? else {
        return Ok(());
    };
    let set = recording_set();
    bench.follows(Tracefs::Mounted, false, set)?.success()?;
    let (mark, said) = of_doctor(&bench, Tracefs::Mounted, false, "following children");
    assert_eq!((mark.as_str(), said.as_str()), ("ok", "by tracefs"));

    let ended = bench.follows(Tracefs::Absent, false, set)?;
    let remedies = ["mount -t tracefs", "CONFIG_DEBUG_INFO_BTF"];
    one_line(&ended.expect_status(1)?, &remedies);
    let (mark, said) = of_doctor(&bench, Tracefs::Absent, false, "following children");
    assert_eq!(mark, "absent");
    for remedy in remedies {
        assert!(said.contains(remedy), "{said}");
    }
    Ok(())
}
