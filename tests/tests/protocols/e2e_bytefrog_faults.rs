//! `profiler stream bytefrog` and `profiler hq` when things go on being wrong: pauses, a receiver that
//! stands still or dies, connections that break, a person in a hurry. Of targets nothing may be lost.

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use profiler_model::GapReason;
use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{Held, held_by, is_helper, wait_until_gone};
use profiler_tests::process::{Running, send_signal, status};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, Edge, How, prepared};
use profiler_wire::bytefrog::{Configuration, HqMessage};
use rustix::process::Signal;

use crate::e2e_bytefrog_shared::*;

const TRACE: &[&str] = &["--trace", "stream_threads:app::*", "--budget", "off"];

/// A scratch folder with `stream_threads` in it, and the file that it counts its rounds in.
struct Counting {
    setting: Setting,
    program: String,
    rounds: PathBuf,
}

impl Counting {
    fn new(test: &str) -> Result<Option<Counting>, Box<dyn Error>> {
        let prepared = prepared(test, "stream_threads.cpp", Build::Optimised)?;
        Ok(prepared.map(|(setting, program)| Counting {
            rounds: setting.path("rounds"),
            program: program.to_string_lossy().into_owned(),
            setting,
        }))
    }

    /// Streams a run of `rounds` in two threads, with `step_us` between two.
    fn stream(
        &self,
        address: &str,
        more: &[&str],
        rounds: &str,
        step_us: &str,
    ) -> Result<Running, Box<dyn Error>> {
        let _ = fs::remove_file(&self.rounds);
        let file = self.rounds.to_string_lossy();
        let command = ["--", &self.program, "2", rounds, step_us, &file];
        stream(&self.setting, address, &[TRACE, more, &command].concat())
    }

    /// Waits until so many rounds are done.
    fn wait_for(&self, rounds: u64, running: &mut Running) -> std::io::Result<()> {
        running.wait_until("rounds", LIMIT, |_| finished(&self.rounds) >= rounds)
    }

    /// Fails unless nothing happens for a while.
    fn stands_still(&self) {
        let before = finished(&self.rounds);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(finished(&self.rounds), before);
    }
}

/// The only child of a process but those that help it, which run the same program, and those that have ended.
fn child_of(pid: u32) -> Result<u32, Box<dyn Error>> {
    let mut all = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended since the list was read.
        match fs::read_to_string(task?.path().join("children")) {
            Ok(children) => all += &children,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    let children = all.split_whitespace().filter_map(|pid| pid.parse().ok());
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let own = program(pid);
    let other = |child| program(child).is_some_and(|path| Some(&path) != own.as_ref());
    let mut children = children.filter(|&child| !is_helper(child) && other(child));
    match (children.next(), children.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(format!("children of {pid}: {all}").into()),
    }
}

/// Ends of calls that were recorded, of however many functions, and throws.
fn events_of(received: &Received) -> u64 {
    let came = received.trace.calls.iter().filter(|call| {
        // The receiver's own ends of what was open at a data break are no events of the program.
        !matches!(&call.edge, Edge::Exit { how, .. } if *how == How::Inferred)
    });
    (came.count() + received.trace.throws.len()) as u64
}

/// What the program says must have been.
fn events_said(truth: &serde_json::Value) -> u64 {
    let calls = truth["calls"].as_object().into_iter().flatten();
    let calls: u64 = calls.filter_map(|(_, count)| count.as_u64()).sum();
    2 * calls + truth["throws"].as_u64().unwrap_or(0)
}

/// A pause stands still and loses nothing; a suspension is a gap between strict stacks.
#[test]
fn pauses_and_suspensions_by_the_prompt() -> Outcome {
    let test = "e2e_bytefrog_faults::pauses_and_suspensions_by_the_prompt";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    for suspends in [false, true] {
        let mut receiver = Receiver::start(&counting.setting, &["--senders", "2"])?;
        // It lasts so long that orders of the last suspension, which depend on what else runs, come before its end.
        let mut running = counting.stream(&receiver.address, &[], "600", "4000")?;
        for rounds in [20, 200] {
            counting.wait_for(rounds, &mut running)?;
            let (begin, mode, end) = match suspends {
                true => ("suspend", "suspended", "unsuspend"),
                false => ("pause", "paused", "unpause"),
            };
            receiver.order(begin)?;
            receiver.wait_for_mode(mode)?;
            match suspends {
                true => {
                    let before = finished(&counting.rounds);
                    counting.wait_for(before + 20, &mut running)?;
                }
                false => counting.stands_still(),
            }
            receiver.order(end)?;
            receiver.wait_for_mode("tracing")?;
        }
        let truth = running.end(LIMIT)?.success()?.json()?;
        let received = receiver.end(&counting.setting)?;
        let gaps = received.trace.gaps.iter();
        let gaps = gaps
            .filter(|gap| gap.reason == GapReason::Suspended)
            .count();
        if suspends {
            assert_eq!(truth["good"], true);
            assert_eq!(gaps, 2, "{:?}", received.trace.gaps);
            let resumed = received
                .marks
                .iter()
                .filter(|mark| mark.contains("resumed"));
            assert_eq!(resumed.count(), 2, "{:?}", received.marks);
            let entries = received.trace.entries("app::work");
            assert!((60..=1160).contains(&entries), "{entries}");
        } else {
            received.is_what_happened(&truth)?;
            assert_eq!(received.pairs(), pairs_of(&truth));
            assert_eq!(gaps, 0);
        }
        received.trace.nested()?;
    }
    Ok(())
}

/// A run that is stopped while its command stands still ends all the same.
#[test]
fn a_stop_in_a_pause() -> Outcome {
    let test = "e2e_bytefrog_faults::a_stop_in_a_pause";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    for detaches in [false, true] {
        let mut receiver = Receiver::start(&counting.setting, &[])?;
        let flags = ["--stop-detaches"];
        let flags = &flags[..usize::from(detaches)];
        let mut running = counting.stream(&receiver.address, flags, "150", "5000")?;
        counting.wait_for(20, &mut running)?;
        receiver.order("pause")?;
        receiver.wait_for_mode("paused")?;
        receiver.order("stop")?;
        let ended = running.end(LIMIT)?.success()?;
        receiver.end(&counting.setting)?;
        match detaches {
            true => assert_eq!(ended.json()?["calls"]["app::work"], 300),
            false => assert_eq!(ended.stdout, ""),
        }
    }
    Ok(())
}

/// A receiver that stands still while a busy program is traced: the program does not, memory is
/// bounded, and what is missing is known to the last event.
#[test]
fn a_receiver_that_stands_still() -> Outcome {
    let test = "e2e_bytefrog_faults::a_receiver_that_stands_still";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    let receiver = Receiver::start(&counting.setting, &[])?;
    let mut running = counting.stream(&receiver.address, &["--buffer", "1M"], "10000", "0")?;
    counting.wait_for(50, &mut running)?;
    receiver.running.signal(Signal::STOP)?;
    let all = 2 * 10_000;
    counting.wait_for(all, &mut running)?;
    // The end of the program is seen, and there is no room for what is left of it.
    std::thread::sleep(Duration::from_millis(500));
    let peak = status(running.pid(), "VmHWM")?;
    assert!(!running.has_ended()?);
    receiver.running.signal(Signal::CONT)?;
    let ended = running.end(LIMIT)?.success()?;
    let truth = ended.json()?;
    let received = receiver.end(&counting.setting)?;
    let number = |line: &str| -> u64 {
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    let dropped: u64 = received
        .marks
        .iter()
        .filter(|mark| mark.contains("the output was too slow"))
        .map(|mark| number(mark))
        .sum();
    // Of those that the kernel had no room for the tracer says how many they are.
    let lost: u64 = ended
        .stderr
        .lines()
        .filter_map(|line| line.split_once(" lost before they could be sent"))
        .map(|(before, _)| number(before))
        .sum();
    assert!(dropped > 0, "{:?}", received.marks);
    assert!(peak < 300_000, "{peak} kB");
    received.trace.nested()?;
    // An exit whose entry was left out says nothing, and is not sent: at most those of the calls that
    // are open on the two threads at a break, seven deep. Beginnings, renames and ends of threads are
    // events as well.
    let breaks = ended.stderr.lines().find_map(|line| {
        let (_, count) = line.split_once(" left out in ")?;
        Some(number(count.split(',').next()?))
    });
    let breaks = breaks.ok_or("no data break")?;
    let known = events_of(&received) + dropped + lost;
    let said = events_said(&truth);
    assert!(
        (said.saturating_sub(breaks * 2 * 7)..=said + 16).contains(&known),
        "{known} of {said}: {}",
        ended.stderr
    );
    Ok(())
}

/// A receiver that is killed: the command goes on without a probe and ends with its own words.
#[test]
fn a_receiver_that_is_killed() -> Outcome {
    let test = "e2e_bytefrog_faults::a_receiver_that_is_killed";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    for pauses in [false, true] {
        let mut receiver = Receiver::start(&counting.setting, &[])?;
        let mut running = counting.stream(&receiver.address, &[], "200", "5000")?;
        counting.wait_for(20, &mut running)?;
        if pauses {
            receiver.order("pause")?;
            receiver.wait_for_mode("paused")?;
            counting.stands_still();
        }
        let held = held_by(running.pid())?;
        receiver.running.signal(Signal::KILL)?;
        receiver.running.end(LIMIT)?;
        goes_on(running, &held)?;
    }
    Ok(())
}

/// Fails unless the command goes on to its own end, without probes, and one line says why.
fn goes_on(mut running: Running, held: &Held) -> Outcome {
    assert!(!held.programs.is_empty());
    running.wait_until("a word", LIMIT, |running| {
        running
            .stderr_so_far()
            .is_ok_and(|said| said.ends_with('\n'))
    })?;
    // While it goes on.
    let left = Instant::now();
    while !held_by(running.pid())?.programs.is_empty() {
        assert!(left.elapsed() < LIMIT, "probes are left");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = running.end(LIMIT)?.expect_status(1)?;
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if line.contains("HQ") && line.contains("goes on")),
        "{}",
        ended.stderr
    );
    let truth = ended.json()?;
    assert_eq!(truth["good"], true);
    assert_eq!(truth["calls"]["app::work"], 400);
    wait_until_gone(held, LIMIT)?;
    Ok(())
}

/// An HQ that starts a run and reads nothing of it.
struct Deaf {
    control: TcpStream,
    data: TcpStream,
}

impl Deaf {
    fn accept(listener: &TcpListener) -> Result<Deaf, Box<dyn Error>> {
        let (mut control, _) = listener.accept()?;
        control.read_exact(&mut [0; 2])?;
        let mut bytes = Vec::new();
        HqMessage::Configuration(Configuration::default().encode()).encode(&mut bytes);
        HqMessage::Start.encode(&mut bytes);
        control.write_all(&bytes)?;
        let (mut data, _) = listener.accept()?;
        data.read_exact(&mut [0; 2])?;
        bytes.clear();
        HqMessage::DataHelloReply.encode(&mut bytes);
        data.write_all(&bytes)?;
        Ok(Deaf { control, data })
    }

    fn order(&mut self, message: HqMessage) -> Outcome {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        Ok(self.control.write_all(&bytes)?)
    }
}

/// Connections that are reset or half closed, while the command runs and while it stands still.
#[test]
fn connections_that_break() -> Outcome {
    let test = "e2e_bytefrog_faults::connections_that_break";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    for (how, pauses) in [
        ("reset", false),
        ("half", true),
        ("data", false),
        ("reset", true),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let mut running = counting.stream(&address, &[], "160", "5000")?;
        let mut hq = Deaf::accept(&listener)?;
        counting.wait_for(20, &mut running)?;
        let command = child_of(running.pid())?;
        if pauses {
            // A pause has a process of its own to end it.
            hq.order(HqMessage::Pause)?;
        } else {
            // Else it might have ended before anything breaks.
            send_signal(command, Signal::STOP)?;
        }
        running.wait_until("a pause", LIMIT, |_| is_stopped(command))?;
        counting.stands_still();
        let held = held_by(running.pid())?;
        // What was not read makes a reset of a close.
        let kept = match how {
            "reset" => {
                drop(hq);
                None
            }
            "half" => {
                hq.control.shutdown(Shutdown::Write)?;
                Some(hq)
            }
            _ => {
                hq.data.shutdown(Shutdown::Both)?;
                Some(hq)
            }
        };
        if !pauses {
            running.wait_until("a word of it", LIMIT, |running| {
                running
                    .stderr_so_far()
                    .is_ok_and(|said| said.contains("HQ"))
            })?;
            send_signal(command, Signal::CONT)?;
        }
        broken_off(running, &held, &format!("{how}, paused: {pauses}"))?;
        drop(kept);
    }
    Ok(())
}

fn broken_off(running: Running, held: &Held, what: &str) -> Outcome {
    let ended = running.end(LIMIT)?.expect_status(1)?;
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if line.contains("HQ") && line.contains("goes on")),
        "{what}: {}",
        ended.stderr
    );
    assert_eq!(ended.json()?["calls"]["app::work"], 320, "{what}");
    wait_until_gone(held, LIMIT)?;
    Ok(())
}

/// The profiler is killed while its target stands still: the target goes on.
#[test]
fn killed_in_a_pause() -> Outcome {
    let test = "e2e_bytefrog_faults::killed_in_a_pause";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    let file = counting.rounds.to_string_lossy();
    let mut command = std::process::Command::new(&counting.program);
    command.args(["2", "1500", "5000", &file]);
    let mut target = counting.setting.start("target", &mut command)?;
    let mut receiver = Receiver::start(&counting.setting, &[])?;
    let pid = target.pid().to_string();
    let arguments = [TRACE, &["--allow-control", "-p", &pid]].concat();
    let running = stream(&counting.setting, &receiver.address, &arguments)?;
    counting.wait_for(20, &mut target)?;
    receiver.wait_for_mode("tracing")?;
    receiver.order("pause")?;
    receiver.wait_for_mode("paused")?;
    counting.stands_still();
    let held = held_by(running.pid())?;
    running.signal(Signal::KILL)?;
    running.end(LIMIT)?;
    let ended = target.end(LIMIT)?.success()?;
    assert_eq!(ended.json()?["good"], true);
    wait_until_gone(&held, LIMIT)?;
    // What came is kept, and the run has failed.
    let said = receiver.running.end(LIMIT)?.expect_status(1)?.stderr;
    assert!(said.contains("run 0 failed"), "{said}");
    let kept = Received::read(Path::new(&counting.setting.path("hq.cap")))?;
    assert!(kept.trace.entries("app::work") > 0);
    Ok(())
}

/// Ctrl-C while a receiver takes nothing waits; a second one does not.
#[test]
fn two_interrupts() -> Outcome {
    let test = "e2e_bytefrog_faults::two_interrupts";
    let Some(counting) = Counting::new(test)? else {
        return Ok(());
    };
    let receiver = Receiver::start(&counting.setting, &[])?;
    let mut running = counting.stream(&receiver.address, &[], "4000", "5000")?;
    counting.wait_for(20, &mut running)?;
    receiver.running.signal(Signal::STOP)?;
    let held = held_by(running.pid())?;
    running.signal(Signal::INT)?;
    let pid = running.pid();
    running.wait_until("no probes", LIMIT, |_| {
        held_by(pid).is_ok_and(|held| held.programs.is_empty() || held.links.is_empty())
    })?;
    std::thread::sleep(Duration::from_millis(200));
    assert!(!running.has_ended()?);
    running.signal(Signal::INT)?;
    let ended = running.end(Duration::from_secs(10))?.expect_status(130)?;
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    wait_until_gone(&held, LIMIT)?;
    receiver.running.signal(Signal::CONT)?;
    // Whether all had been sent by then is a matter of what the sockets hold.
    let receiver = receiver.running.end(LIMIT)?;
    assert!(
        matches!(receiver.status.code(), Some(0 | 1)),
        "{receiver:?}"
    );
    Ok(())
}

/// A command that ignores SIGTERM is killed five seconds after a stop.
#[test]
fn a_stop_that_is_ignored() -> Outcome {
    let Some(setting) = Setting::new("e2e_bytefrog_faults::a_stop_that_is_ignored")? else {
        return Ok(());
    };
    let mut receiver = Receiver::start(&setting, &[])?;
    let script =
        "trap '' TERM; echo runs; i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done";
    let trace = ["--trace", "libc.so.6:malloc", "--", "sh", "-c", script];
    let mut running = stream(&setting, &receiver.address, &trace)?;
    running.wait_until("the command", LIMIT, |running| {
        running
            .stdout_so_far()
            .is_ok_and(|said| said.contains("runs"))
    })?;
    let command = child_of(running.pid())?;
    receiver.order("stop")?;
    let stopped = Instant::now();
    let ended = running.end(LIMIT)?.success()?;
    assert!(stopped.elapsed() >= Duration::from_secs(5));
    assert!(ended.stderr.contains("killed"), "{}", ended.stderr);
    assert!(!Path::new(&format!("/proc/{command}")).exists());
    receiver.end(&setting)?;
    Ok(())
}
