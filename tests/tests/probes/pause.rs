//! Pausing: programs that count in shared memory stand still exactly while they are paused, and run on
//! afterwards whatever becomes of the one who paused them.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use profiler_model::Pid;
use profiler_target::pause::{Pause, PauseError, PauseTargets};
use profiler_tests::{
    process::{own_test, send_signal},
    skip::skip,
    workload,
};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(100);

/// A program that counts. Killed when dropped.
struct Counting {
    child: Child,
    file: PathBuf,
}

impl Counting {
    fn start(name: &str, arguments: &[&str]) -> Counting {
        let file = workload::folder().join(format!("pause-{name}-{}", std::process::id()));
        let program = workload::built("pause.c").unwrap();
        File::create(&file).unwrap();
        let mut child = Command::new(program)
            .arg(&file)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "running\n");
        let counting = Counting { child, file };
        counting.wait_until_running();
        counting
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn targets(&self) -> PauseTargets {
        PauseTargets::Processes(vec![Pid(self.pid())])
    }

    fn counters(&self) -> Vec<u64> {
        let file = File::open(&self.file).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    /// Whether each counter moves.
    fn runs(&self) -> bool {
        let before = self.counters();
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            sleep(Duration::from_millis(5));
            if self
                .counters()
                .iter()
                .zip(&before)
                .all(|(now, then)| now > then)
            {
                return true;
            }
        }
        false
    }

    fn wait_until_running(&self) {
        assert!(self.runs(), "{:?}", self.counters());
    }

    /// Whether no counter moves for a moment.
    fn stands_still(&self) -> bool {
        let before = self.counters();
        sleep(MOMENT);
        self.counters() == before
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let state = stat.rsplit_once(") ").unwrap().1;
    state.chars().next().unwrap()
}

/// Processes whose parent is `pid`, with their names.
fn children(pid: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(child) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let (name, rest) = stat.rsplit_once(") ").unwrap();
        if rest.split(' ').nth(1).unwrap().parse() == Ok(pid) {
            found.push((child, name.split_once('(').unwrap().1.to_owned()));
        }
    }
    found
}

#[test]
fn threads_and_processes_stand_still_and_lose_nothing() {
    let mut counting = Counting::start("count", &["3", "3", "3000000000"]);
    for _ in 0..20 {
        let pause = Pause::begin(counting.targets()).unwrap();
        assert!(counting.stands_still());
        pause.end().unwrap();
        counting.wait_until_running();
    }
    // A drop ends it as well.
    drop(Pause::begin(counting.targets()).unwrap());
    counting.wait_until_running();
    assert!(counting.child.try_wait().unwrap().is_none());
}

#[test]
fn what_was_paused_ends_with_all_that_it_had_to_count() {
    let mut counting = Counting::start("limit", &["2", "2", "400000000"]);
    while counting.child.try_wait().unwrap().is_none() {
        let pause = Pause::begin(counting.targets()).unwrap();
        sleep(Duration::from_millis(5));
        pause.end().unwrap();
        sleep(Duration::from_millis(20));
    }
    assert!(counting.child.wait().unwrap().success());
    assert_eq!(counting.counters(), [400_000_000; 4]);
}

#[test]
fn a_storm_of_forks_is_caught_whole() {
    let counting = Counting::start("storm", &["4", "0"]);
    for _ in 0..30 {
        let pause = Pause::begin(counting.targets()).unwrap();
        let before = counting.counters();
        sleep(Duration::from_millis(20));
        assert_eq!(counting.counters(), before);
        pause.end().unwrap();
        counting.wait_until_running();
    }
}

#[test]
fn what_others_had_stopped_stays_stopped() {
    let (stopped, running) = (
        Counting::start("stopped", &["1", "2"]),
        Counting::start("running", &["1", "2"]),
    );
    send_signal(stopped.pid(), Signal::STOP).unwrap();
    while !stopped.stands_still() {}
    let targets = PauseTargets::Processes(vec![Pid(stopped.pid()), Pid(running.pid())]);
    let pause = Pause::begin(targets).unwrap();
    assert!(running.stands_still() && stopped.stands_still());
    pause.end().unwrap();
    running.wait_until_running();
    assert!(stopped.stands_still());
    assert_eq!(state(stopped.pid()), 'T');
    send_signal(stopped.pid(), Signal::CONT).unwrap();
    stopped.wait_until_running();
}

#[test]
fn what_ends_meanwhile_is_no_error() {
    let mut counting = Counting::start("ends", &["1", "1"]);
    let pause = Pause::begin(counting.targets()).unwrap();
    counting.child.kill().unwrap();
    counting.child.wait().unwrap();
    pause.end().unwrap();
    // Nor is what has ended before.
    Pause::begin(counting.targets()).unwrap().end().unwrap();
}

#[test]
fn we_don_t_stop_ourselves() {
    let own = PauseTargets::Processes(vec![Pid(std::process::id())]);
    assert!(matches!(Pause::begin(own), Err(PauseError::Own(_))));
}

#[test]
fn no_permission_is_said_and_nothing_is_left_stopped() {
    if !rustix::process::geteuid().is_root() {
        skip(
            "no_permission_is_said_and_nothing_is_left_stopped",
            "needs root",
        );
        return;
    }
    let counting = Counting::start("forbidden", &["1", "1"]);
    let run = holder(counting.pid())
        .env("PAUSE_AS_NOBODY", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success());
    let expected = format!("not allowed to stop process {}", counting.pid());
    assert!(said.contains(&expected), "{said}");
    counting.wait_until_running();
}

/// This program again, as one that pauses a process and then does nothing.
fn holder(pid: u32) -> Command {
    let mut command = own_test(module_path!(), "holds_a_pause").unwrap();
    command
        .env("PAUSE_PID", pid.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
#[allow(unsafe_code)]
fn holds_a_pause() {
    let Ok(pid) = std::env::var("PAUSE_PID") else {
        return;
    };
    if std::env::var_os("PAUSE_AS_NOBODY").is_some() {
        // SAFETY: a system call with a number; no other thread depends on who we are.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
    }
    let targets = PauseTargets::Processes(vec![Pid(pid.parse().unwrap())]);
    let pause = match Pause::begin(targets) {
        Ok(pause) => pause,
        Err(error) => panic!("{error}"),
    };
    println!("\npaused");
    sleep(Duration::from_secs(60));
    pause.end().unwrap();
}

#[test]
fn targets_run_on_when_the_one_who_paused_them_is_killed() {
    let counting = Counting::start("killed", &["2", "2"]);
    let mut holder = holder(counting.pid()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "paused"));
    assert!(counting.stands_still());
    let guards = children(holder.id());
    let [(guard, name)] = &guards[..] else {
        panic!("{guards:?}");
    };
    assert_eq!(name, "profiler-guard");
    let stat = fs::read_to_string(format!("/proc/{guard}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, guard.to_string(), "a session of its own");
    // Its socket, and a pidfd of each of the two processes.
    let links = fs::read_dir(format!("/proc/{guard}/fd")).unwrap().flatten();
    let links = links.map(|link| fs::read_link(link.path()).unwrap());
    let mut links: Vec<String> = links.map(|link| link.display().to_string()).collect();
    links.sort();
    assert_eq!(links.len(), 3, "{links:?}");
    assert!(links[0].starts_with("anon_inode:[pidfd]") && links[2].starts_with("socket:"));

    holder.kill().unwrap();
    holder.wait().unwrap();
    counting.wait_until_running();
    let deadline = Instant::now() + Duration::from_secs(5);
    while Path::new(&format!("/proc/{guard}/fd/0")).exists() {
        assert!(Instant::now() < deadline, "the guard did not end");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_guard_is_left_behind() {
    let counting = Counting::start("left", &["1", "1"]);
    let guards = || {
        let of_ours = children(std::process::id()).into_iter();
        of_ours
            .filter(|(_, name)| name == "profiler-guard")
            .map(|(pid, _)| pid)
    };
    let pause = Pause::begin(counting.targets()).unwrap();
    let during: Vec<u32> = guards().collect();
    assert!(!during.is_empty());
    pause.end().unwrap();
    let ours: Vec<u32> = Vec::from_iter(guards());
    // Other tests have theirs at the same time, but not all of these.
    assert!(during.iter().any(|guard| !ours.contains(guard)));
}

/// A cgroup of version 2 of our own; none where they can't be made.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make(name: &str) -> Option<Cgroup> {
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let path = Path::new(root).join(format!("profiler-{name}-{}", std::process::id()));
            if !Path::new(root).join("cgroup.controllers").exists() {
                continue;
            }
            if fs::create_dir(&path).is_ok() {
                return Some(Cgroup(path));
            }
        }
        None
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_cgroup_is_frozen_and_thawed() {
    let Some(cgroup) = Cgroup::make("freeze") else {
        skip("a_cgroup_is_frozen_and_thawed", "no cgroup v2 can be made");
        return;
    };
    let counting = Counting::start("freeze", &["2", "2"]);
    cgroup.add(counting.pid());
    // The other process of the program is not in it, so that what it counts is told apart.
    let still = |wanted: bool| {
        let before = counting.counters();
        sleep(MOMENT);
        let now = counting.counters();
        (now[..2] == before[..2]) == wanted && now[2..] != before[2..]
    };
    let targets = PauseTargets::Cgroup(cgroup.0.clone());
    let pause = Pause::begin(targets.clone()).unwrap();
    assert!(still(true));
    pause.end().unwrap();
    assert!(still(false));
    // What was frozen before stays so.
    fs::write(cgroup.0.join("cgroup.freeze"), "1").unwrap();
    Pause::begin(targets.clone()).unwrap().end().unwrap();
    assert!(still(true));
    fs::write(cgroup.0.join("cgroup.freeze"), "0").unwrap();
}

#[test]
fn our_own_cgroup_is_refused_and_what_is_none_is_said() {
    let nowhere = PauseTargets::Cgroup("/tmp".into());
    assert!(matches!(
        Pause::begin(nowhere),
        Err(PauseError::NoFreezer(_))
    ));
    let Some(cgroup) = Cgroup::make("own") else {
        skip(
            "our_own_cgroup_is_refused_and_what_is_none_is_said",
            "no cgroup v2 can be made",
        );
        return;
    };
    let below = Cgroup(cgroup.0.join("below"));
    fs::create_dir(&below.0).unwrap();
    let mut holder = own_test(module_path!(), "refuses_its_own_cgroup")
        .unwrap()
        .env("PAUSE_CGROUP", &cgroup.0)
        .env("PAUSE_BELOW", &below.0)
        .spawn()
        .unwrap();
    assert!(holder.wait().unwrap().success());
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn refuses_its_own_cgroup() {
    let (Some(cgroup), Some(below)) = (
        std::env::var_os("PAUSE_CGROUP"),
        std::env::var_os("PAUSE_BELOW"),
    ) else {
        return;
    };
    fs::write(Path::new(&below).join("cgroup.procs"), "0").unwrap();
    let targets = PauseTargets::Cgroup(cgroup.into());
    assert!(matches!(Pause::begin(targets), Err(PauseError::Own(_))));
}
