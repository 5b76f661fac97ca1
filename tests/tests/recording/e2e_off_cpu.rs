//! `record --off-cpu` and `--wall` as a person runs them: waits in the capture with length, reason and
//! stacks, and exact totals beside them.
//!
//! Commands are `sleep`, whose only long wait is known, and a program without frame pointers, whose
//! callers are. Needs root and the kernel's types.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process;

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{
    Event, LostReason, OFF_CPU, Sink, StackEnd, Tables, Timestamp, Wait, WaitState,
};
use profiler_tests::Outcome;
use profiler_tests::process::{Running, ran_ns};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::at_least;
use profiler_tests::workload::{Unbuilt, made, source_path};
use rustix::process::Signal;

const COMMAND: &str = "sleep";
/// The program without frame pointers, and how often it sleeps.
const NAPS: &str = "naps";
const COUNT: usize = 200;
/// Share of stacks that must be whole.
const WHOLE: f64 = 0.95;
/// Most frames between `main` and where a process begins, and of a system call: the C library's.
const MOST_LIBRARY_FRAMES: usize = 4;

/// A sample of the command.
struct Found {
    source: String,
    at: Timestamp,
    wait: Option<Wait>,
    weight: u64,
    kernel: Vec<String>,
    user: Vec<String>,
    user_end: StackEnd,
}

/// What a capture says of the command.
struct Command {
    name: &'static str,
    samples: Vec<Found>,
    slept_ns: u64,
    preempted_ns: u64,
}

impl Sink for Command {
    fn event(&mut self, event: &Event, tables: &Tables) -> std::io::Result<()> {
        let is_command = |thread| {
            let process = tables
                .thread(thread)
                .and_then(|thread| tables.process(thread.process));
            process.is_some_and(|process| tables.string(process.name) == self.name)
        };
        match event {
            Event::Sample(sample) if is_command(sample.thread) => {
                let source = tables.sources.get(sample.source);
                let names = |stack| -> Vec<String> {
                    let frames = tables.frames_of(stack);
                    frames.map(|frame| tables.frame_name(frame)).collect()
                };
                self.samples.push(Found {
                    source: source
                        .map_or("", |source| tables.string(source.name))
                        .to_owned(),
                    at: sample.at,
                    wait: sample.wait,
                    weight: sample.weight,
                    kernel: names(sample.kernel),
                    user: names(sample.user),
                    user_end: sample.user_end,
                });
            }
            Event::Waits(waits) if is_command(waits.thread) => {
                self.slept_ns += waits.ns[WaitState::Sleeping as usize];
                self.preempted_ns += waits.ns[WaitState::Preempted as usize];
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> std::io::Result<()> {
        Ok(())
    }
}

fn read(capture: &Path, name: &'static str) -> Result<Command, Box<dyn std::error::Error>> {
    let mut reader = Reader::open(capture)?;
    let tables = reader.load_tables()?;
    let mut command = Command {
        name,
        samples: Vec::new(),
        slept_ns: 0,
        preempted_ns: 0,
    };
    replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut command])?;
    Ok(command)
}

/// Half a second of sleep is one wait of that length, where the kernel puts threads to sleep.
fn check_sleep(command: &Command) -> Outcome {
    let long: Vec<(&Found, Wait)> = command
        .samples
        .iter()
        .filter_map(|sample| Some((sample, sample.wait?)))
        // The clock of the sleep runs before the thread leaves its processor.
        .filter(|(_, wait)| wait.ns >= 400_000_000)
        .collect();
    let [(sample, wait)] = long[..] else {
        return Err(format!("{} waits of half a second", long.len()).into());
    };
    if sample.source != OFF_CPU || sample.weight != wait.ns || wait.count != 1 {
        return Err(format!(
            "{}: {wait:?} with a weight of {}",
            sample.source, sample.weight
        )
        .into());
    }
    if wait.state != WaitState::Sleeping || wait.waker.is_some() || wait.ns > 2_000_000_000 {
        return Err(format!("{wait:?}").into());
    }
    let leaf = sample.kernel.first().map_or("", String::as_str);
    if leaf != "__schedule" || !sample.kernel.iter().any(|name| name.contains("nanosleep")) {
        return Err(format!("{:?}", sample.kernel).into());
    }
    if command.slept_ns < wait.ns {
        return Err(format!("totals say {} ns of {}", command.slept_ns, wait.ns).into());
    }
    Ok(())
}

#[test]
fn a_sleep_is_one_wait_and_nothing_else_is_sampled() -> Outcome {
    let Some(setting) = Setting::new("off-cpu")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["--off-cpu", "--", COMMAND, "0.5"])?;
    recording.nothing_lost()?;
    let command = read(&setting.path("out.cap"), COMMAND)?;
    if command.samples.iter().any(|sample| sample.wait.is_none()) {
        return Err("--off-cpu alone has made samples of running threads".into());
    }
    check_sleep(&command)
}

#[test]
fn all_of_the_time_is_waits_and_samples() -> Outcome {
    let Some(setting) = Setting::new("wall")? else {
        return Ok(());
    };
    let (_, recording) = setting.record(&["--wall", "-F", "999", "--", COMMAND, "0.5"])?;
    if recording.sources.len() < 2 && !recording.sources.iter().any(|name| name == OFF_CPU) {
        return Err(format!("{:?}", recording.sources).into());
    }
    check_sleep(&read(&setting.path("out.cap"), COMMAND)?)
}

fn naps(setting: &Setting) -> Result<String, Box<dyn std::error::Error>> {
    let input = source_path("naps.c");
    let built: PathBuf = made(NAPS, std::slice::from_ref(&input), |fresh| {
        let mut command = process::Command::new("cc");
        command.args(["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]);
        command.args(["-Wall", "-Wextra", "-Werror", "-o"]);
        command.arg(fresh).arg(&input);
        ("cc", command)
    })
    .map_err(|why: Unbuilt| why.to_string())?;
    let copy = setting.path(NAPS);
    std::fs::copy(built, &copy)?;
    Ok(copy.to_string_lossy().into_owned())
}

/// Whether a user stack is this chain below frames that are named for their system call, above those
/// of the C library where the process begins, and nothing more.
fn is_whole(sample: &Found, call: &str, chain: &[&str]) -> bool {
    let of_call = |name: &&String| !call.is_empty() && name.contains(call);
    let own = &sample.user[sample.user.iter().take_while(of_call).count()..];
    let calls = sample.user.len() - own.len();
    (call.is_empty() || (1..=MOST_LIBRARY_FRAMES).contains(&calls))
        && own.len() > chain.len()
        && own.len() <= chain.len() + MOST_LIBRARY_FRAMES
        && own.iter().zip(chain).all(|(name, known)| name == known)
        && sample.user_end == StackEnd::Complete
}

fn check_whole(what: &str, samples: &[&Found], call: &str, chain: &[&str]) -> Outcome {
    let good = |sample: &&&Found| is_whole(sample, call, chain);
    let wrong = samples.iter().find(|sample| !good(sample));
    let wrong = wrong.map(|sample| (&sample.user, sample.user_end));
    let whole = samples.iter().filter(good).count();
    at_least(what, whole, samples.len(), WHOLE).map_err(|why| format!("{why}: {wrong:?}"))?;
    Ok(())
}

/// Sleeps of the program: about as many as it says, with all their callers.
fn check_naps(command: &Command) -> Outcome {
    let is_sleep = |sample: &&Found| {
        let wait = sample.wait.filter(|wait| wait.ns >= 1_000_000);
        wait.is_some_and(|wait| wait.state == WaitState::Sleeping)
    };
    let sleeps: Vec<&Found> = command.samples.iter().filter(is_sleep).collect();
    // One that is preempted before it has left its processor has a short wait, or none.
    if sleeps.len() < COUNT * 9 / 10 {
        return Err(format!("{} waits of {COUNT} sleeps", sleeps.len()).into());
    }
    check_whole("sleeps", &sleeps, "nanosleep", &["nap", "b", "a", "main"])
}

#[test]
fn waits_have_all_their_callers_without_frame_pointers() -> Outcome {
    let Some(setting) = Setting::new("off-cpu-callers")? else {
        return Ok(());
    };
    let program = naps(&setting)?;
    let count = COUNT.to_string();
    setting.record(&["--off-cpu", "--", &program, &count, "2000", "0"])?;
    check_naps(&read(&setting.path("out.cap"), NAPS)?)
}

#[test]
fn both_sources_have_all_callers_without_frame_pointers() -> Outcome {
    let Some(setting) = Setting::new("wall-callers")? else {
        return Ok(());
    };
    let program = naps(&setting)?;
    let count = COUNT.to_string();
    let words = [
        "--wall", "-F", "999", "--", &program, &count, "2000", "3000",
    ];
    setting.record(&words)?;
    let command = read(&setting.path("out.cap"), NAPS)?;
    check_naps(&command)?;
    let at_work = |sample: &&Found| sample.user.first().is_some_and(|leaf| leaf == "work");
    let (waits, runs): (Vec<&Found>, Vec<&Found>) = command
        .samples
        .iter()
        .filter(at_work)
        .partition(|sample| sample.wait.is_some());
    if runs.len() < COUNT {
        return Err(format!("{} samples of 0.6 seconds of work", runs.len()).into());
    }
    check_whole("work", &runs, "", &["work", "a", "main"])?;
    if !waits.is_empty() {
        check_whole("preempted work", &waits, "", &["work", "a", "main"])?;
    }
    Ok(())
}

/// Starts five threads that are blocked for good.
fn start_blocked(setting: &Setting) -> Result<Running, Box<dyn std::error::Error>> {
    let program = setting.workload("blocked.c")?;
    let mut blocked = setting.start("blocked", &mut process::Command::new(&program))?;
    blocked.wait_until("its threads", LIMIT, |running| {
        let said = running.stdout_so_far();
        said.is_ok_and(|said| said.contains("blocked"))
    })?;
    Ok(blocked)
}

/// Five threads that are blocked before the recording begins, and all the time: each is a wait that goes on,
/// with the function that it hangs in, and its whole time is in the totals.
#[test]
fn what_waits_all_the_time_is_seen() -> Outcome {
    const THREADS: usize = 5;
    const HANGS: [&str; 4] = ["hang_cond", "hang_read", "hang_poll", "hang_pause"];
    let Some(setting) = Setting::new("off-cpu-blocked")? else {
        return Ok(());
    };
    let blocked = start_blocked(&setting)?;
    let pid = blocked.pid().to_string();
    let (_, recording) = setting.record(&["--wall", "-F", "999", "-p", &pid, "-d", "1"])?;
    // Nothing ran: of ticks that the machine has skipped none was the program's.
    recording.nothing_lost()?;
    let command = read(&setting.path("out.cap"), "blocked")?;
    blocked.signal(Signal::KILL)?;
    let waits: Vec<&Found> = command
        .samples
        .iter()
        .filter(|s| s.wait.is_some())
        .collect();
    if waits.len() != THREADS || command.samples.len() != THREADS {
        return Err(format!("{} waits, {} samples", waits.len(), command.samples.len()).into());
    }
    for hang in HANGS {
        let found = waits.iter().any(|wait| {
            wait.user.iter().any(|name| name == hang) && wait.user_end == StackEnd::Complete
        });
        if !found {
            let all: Vec<_> = waits
                .iter()
                .map(|wait| (&wait.user, wait.user_end))
                .collect();
            return Err(format!("nothing hangs in {hang}: {all:?}").into());
        }
    }
    // The kernel leaves the scheduler's own frames out of a stack that it did not walk at the switch.
    let whole = |found: &&Found| {
        let wait = found.wait;
        let wait = wait.is_some_and(|wait| wait.goes_on() && wait.ns >= 1_000_000_000);
        wait && found.kernel.iter().any(|name| name.contains("syscall"))
    };
    at_least(
        "waits that go on",
        waits.iter().filter(|wait| whole(wait)).count(),
        THREADS,
        1.0,
    )?;
    wait_from_the_beginning(&setting, &command)
}

/// Waits that go on where what `--delay` leaves out ends count from there.
#[test]
fn what_waited_before_the_delay_was_over_counts_from_then() -> Outcome {
    let Some(setting) = Setting::new("off-cpu-delay")? else {
        return Ok(());
    };
    let blocked = start_blocked(&setting)?;
    let pid = blocked.pid().to_string();
    let delayed = ["--off-cpu", "-p", &pid, "--delay", "1.5", "-d", "1"];
    let (_, recording) = setting.record(&delayed)?;
    recording.nothing_lost()?;
    let command = read(&setting.path("out.cap"), "blocked")?;
    blocked.signal(Signal::KILL)?;
    assert_eq!(command.samples.len(), 5);
    wait_from_the_beginning(&setting, &command)?;
    for found in &command.samples {
        let ns = found.wait.map_or(0, |wait| wait.ns);
        assert!(
            (900_000_000..1_500_000_000).contains(&ns),
            "{ns} ns of one second"
        );
    }
    Ok(())
}

/// Not a part of the recording is missing of what waits all the time, nor more than was recorded there.
fn wait_from_the_beginning(setting: &Setting, command: &Command) -> Outcome {
    let tables = Reader::open(&setting.path("out.cap"))?.load_tables()?;
    let began = tables.session.started;
    let waits = command.samples.iter().filter(|found| found.wait.is_some());
    let mut longest = 0;
    for wait in waits {
        let from = wait.at.0 - wait.wait.map_or(0, |wait| wait.ns);
        assert_eq!(from, began.0, "{:?}", wait.user);
        longest += wait.weight;
    }
    if command.slept_ns != longest {
        return Err(format!("totals of {} ns, waits of {longest}", command.slept_ns).into());
    }
    Ok(())
}

/// One that waits for a processor before the recording begins, and next to all the time, behind another that is
/// always ready.
#[test]
fn who_is_starved_waits_for_a_processor_from_the_beginning() -> Outcome {
    let Some(setting) = Setting::new("off-cpu-starved")? else {
        return Ok(());
    };
    let on_first = |name: &str| -> Result<Running, Box<dyn std::error::Error>> {
        let program = setting.path(name);
        std::fs::copy(setting.workload("chain.c")?, &program)?;
        let mut command = process::Command::new("taskset");
        command.args(["-c", "0"]).arg(&program).arg("600000");
        let mut running = setting.start(name, &mut command)?;
        let comm = format!("/proc/{}/comm", running.pid());
        running.wait_until("to be executed", LIMIT, |_| {
            std::fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == name)
        })?;
        Ok(running)
    };
    let busy = on_first("busy")?;
    let starved = on_first("starved")?;
    let pid = starved.pid().to_string();
    let idle = process::Command::new("chrt")
        .args(["--idle", "--pid", "0", &pid])
        .status()?;
    assert!(idle.success());
    let before = ran_ns(starved.pid())?;
    let (_, recording) = setting.record(&["--off-cpu", "-p", &pid, "-d", "1"])?;
    let used = ran_ns(starved.pid())? - before;
    recording.nothing_lost()?;
    let command = read(&setting.path("out.cap"), "starved")?;
    starved.signal(Signal::KILL)?;
    busy.signal(Signal::KILL)?;
    // What it had of the processor before and behind the recording is too much here.
    let waited = command.preempted_ns;
    assert!(
        waited + used >= 1_000_000_000,
        "{waited} ns of waits for a processor, {used} ns on one"
    );
    let longest = command.samples.iter().map(|sample| sample.weight).max();
    assert!(longest.is_some_and(|ns| ns > 10_000_000), "{longest:?}");
    Ok(())
}

/// Five threads that are blocked, live: each frame has the whole time of all of them, by function, and says how many wait.
#[test]
fn a_live_table_shows_what_hangs() -> Outcome {
    /// Threads, and the different functions that they hang in.
    const THREADS: f64 = 5.0;
    const PLACES: usize = 4;
    let Some(setting) = Setting::new("off-cpu-top")? else {
        return Ok(());
    };
    let blocked = start_blocked(&setting)?;
    let pid = blocked.pid().to_string();
    let arguments = [
        "top", "--wall", "--window", "2", "-b", "-n", "4", "-p", &pid,
    ];
    let ended = setting.run(&arguments)?.success()?;
    blocked.signal(Signal::KILL)?;
    let parts: Vec<&str> = ended.stdout.trim().split("\n\n").collect();
    let frames = parts.as_chunks::<2>().0;
    if frames.len() != 4 {
        return Err(format!("{} frames: {}", frames.len(), ended.stdout).into());
    }
    // Names may be missing in the first.
    for [head, table] in &frames[1..] {
        let wrong = |what: &str| format!("{what}: {head}\n{table}");
        let seconds = |text: &str| -> Vec<f64> {
            let words: Vec<&str> = text.split_whitespace().collect();
            let pairs = words
                .windows(2)
                .filter(|pair| matches!(pair[1], "s" | "s,"));
            pairs.filter_map(|pair| pair[0].parse().ok()).collect()
        };
        let [waited, span] = seconds(head)[..] else {
            return Err(wrong("the first line").into());
        };
        // Three digits are shown.
        if (waited - THREADS * span).abs() > 0.1 || !head.ends_with(", 5 threads wait now") {
            return Err(wrong("not all of the time").into());
        }
        let rows: Vec<Vec<f64>> = table
            .lines()
            .skip(1)
            .map(|line| {
                let waiting = line.split_whitespace().nth(5);
                let waiting = waiting.and_then(|word| word.parse().ok());
                seconds(line).into_iter().chain(waiting).collect()
            })
            .collect();
        let sum = |index: usize| rows.iter().filter_map(|row| row.get(index)).sum::<f64>();
        let agrees = (sum(0) - waited).abs() < 0.1 && sum(1) == THREADS;
        if rows.len() != PLACES || !agrees {
            return Err(wrong("rows that are not the first line").into());
        }
    }
    Ok(())
}

/// Waits shorter than the time between two frames, which end and begin anew all the time: each frame has all of them.
#[test]
fn a_live_table_shows_waits_that_end() -> Outcome {
    /// Those that sleep, and the one that waits for them.
    const THREADS: f64 = 22.0;
    let Some(setting) = Setting::new("off-cpu-top-ends")? else {
        return Ok(());
    };
    let program = setting.workload("sleepers.c")?;
    let program = program.to_string_lossy();
    let arguments = [
        "top", "--wall", "--window", "1", "-b", "-n", "5", "--", &program, "21", "15", "700",
    ];
    let ended = setting.run(&arguments)?.success()?;
    let heads = ended
        .stdout
        .lines()
        .filter(|line| line.contains(" off-CPU in "));
    let heads: Vec<&str> = heads.collect();
    // The first may be of a time before they began.
    let mut all_wait = 0;
    for head in heads.iter().skip(1) {
        let words: Vec<&str> = head.split_whitespace().collect();
        let pairs = words
            .windows(2)
            .filter(|pair| matches!(pair[1], "s" | "s,"));
        let seconds: Vec<f64> = pairs.filter_map(|pair| pair[0].parse().ok()).collect();
        let [waited, span] = seconds[..] else {
            return Err(format!("the first line: {head}").into());
        };
        // What runs meanwhile does not wait.
        let part = waited / (THREADS * span);
        assert!((0.97..1.03).contains(&part), "{part}: {}", ended.stdout);
        all_wait += usize::from(head.ends_with(", 22 threads wait now"));
    }
    // A frame may come just when they wake up.
    assert!(heads.len() == 5 && all_wait >= 2, "{}", ended.stdout);
    Ok(())
}

/// What a thread has waited.
#[derive(Default)]
struct OfThread {
    /// The long waits that were recorded: their lengths in nanoseconds, and those of what they stand for.
    long: Vec<(u64, u64)>,
    /// As the kernel side has counted, in nanoseconds.
    counted: u64,
}

/// Of each thread, and how many waits had no end that was seen.
#[derive(Default)]
struct ByThread(HashMap<u32, OfThread>, u64);

/// Shorter waits are recorded by chance when there are many, as there are beside a load: whatever that is, not longer ones.
const LONG_NS: u64 = 1 << 27;

impl Sink for ByThread {
    fn event(&mut self, event: &Event, tables: &Tables) -> std::io::Result<()> {
        let tid = |thread| tables.thread(thread).map_or(0, |thread| thread.tid.0);
        match event {
            Event::Sample(sample) => {
                let ns = sample.wait.map_or(0, |wait| wait.ns);
                if ns >= LONG_NS {
                    let of_thread = self.0.entry(tid(sample.thread)).or_default();
                    of_thread.long.push((ns, sample.weight));
                }
            }
            Event::Waits(waits) => {
                let of_thread = self.0.entry(tid(waits.thread)).or_default();
                of_thread.counted += waits.ns.iter().sum::<u64>();
            }
            Event::Lost(lost) if lost.reason == LostReason::WaitUnseen => self.1 += lost.count,
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> std::io::Result<()> {
        Ok(())
    }
}

/// Threads that begin together have more new stacks at once than are walked: each one's long waits are recorded all the
/// same, and stand for no others.
#[test]
fn each_of_many_threads_has_its_own_time() -> Outcome {
    let Some(setting) = Setting::new("off-cpu-sleepers")? else {
        return Ok(());
    };
    let program = setting.workload("sleepers.c")?;
    let program = program.to_string_lossy();
    const NAPS: usize = 3;
    // The thread that sleeps leaves its processor a little later.
    const NAP_NS: u64 = 290_000_000;
    let (ended, _) = setting.record(&["--off-cpu", "--", &program, "300", "3", "300"])?;
    let mut reader = Reader::open(&setting.path("out.cap"))?;
    let tables = reader.load_tables()?;
    let mut threads = ByThread::default();
    replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut threads])?;
    let (mut all, mut others) = (0_u64, Vec::new());
    for (tid, OfThread { long, counted }) in &threads.0 {
        let naps = long.iter().filter(|(ns, _)| *ns >= NAP_NS).count();
        let stands_for_itself = |&(ns, stands_for): &(u64, u64)| ns == stands_for;
        let sum: u64 = long.iter().map(|(ns, _)| ns).sum();
        assert!(
            long.iter().all(stands_for_itself) && sum <= *counted,
            "{tid}: {counted} ns, of which {long:?}"
        );
        match naps >= NAPS {
            true => all += 1,
            false => others.push(format!("{tid}: {long:?} of {counted} ns")),
        }
    }
    // What is said to be lost is missing, and nothing else.
    let lost = threads.1;
    assert!(
        all + lost >= 300 && lost < 10,
        "{all}, others: {others:#?}: {}",
        ended.stderr
    );
    Ok(())
}

/// A part of a capture, and of each thread what was waited in it: the recorded waits, and what the kernel side has counted.
struct Waited {
    began_ns: u64,
    threads: BTreeMap<u32, (Vec<Span>, u64)>,
}

/// A wait that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    from_ns: u64,
    to_ns: u64,
    open: bool,
    /// Innermost first.
    user: Vec<String>,
}

impl Waited {
    fn read(path: &Path) -> Result<Waited, Box<dyn std::error::Error>> {
        let mut reader = Reader::open(path)?;
        let tables = reader.load_tables()?;
        let mut waited = Waited {
            began_ns: tables.session.started.0,
            threads: BTreeMap::new(),
        };
        replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut waited])?;
        Ok(waited)
    }

    /// The one wait that a thread has in it, which goes on, and is all that is counted of it.
    fn the_wait(&self, tid: u32) -> Result<&Span, String> {
        match self.threads.get(&tid) {
            Some((waits, counted)) => match &waits[..] {
                [wait] if wait.open && wait.to_ns - wait.from_ns == *counted => Ok(wait),
                _ => Err(format!("{tid}: {counted} ns counted, {waits:?}")),
            },
            None => Err(format!("{tid} is not there")),
        }
    }
}

impl Sink for Waited {
    fn event(&mut self, event: &Event, tables: &Tables) -> std::io::Result<()> {
        let tid = |thread| tables.thread(thread).map_or(0, |thread| thread.tid.0);
        match event {
            Event::Sample(sample) => {
                let Some(wait) = sample.wait else {
                    return Ok(());
                };
                let user = tables.frames_of(sample.user);
                let span = Span {
                    from_ns: sample.at.0 - wait.ns,
                    to_ns: sample.at.0,
                    open: wait.open,
                    user: user.map(|frame| tables.frame_name(frame)).collect(),
                };
                let of_thread = self.threads.entry(tid(sample.thread)).or_default();
                of_thread.0.push(span);
            }
            Event::Waits(waits) => {
                let of_thread = self.threads.entry(tid(waits.thread)).or_default();
                of_thread.1 += waits.ns.iter().sum::<u64>();
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> std::io::Result<()> {
        Ok(())
    }
}

/// What hangs all the time is in whatever is written out of a ring, up to then and with its stack.
#[test]
fn what_hangs_is_in_what_is_written_out() -> Outcome {
    let Some(setting) = Setting::new("off-cpu-dumps")? else {
        return Ok(());
    };
    let blocked = start_blocked(&setting)?;
    let pid = blocked.pid().to_string();
    let mut command = setting.profiler();
    let words = [
        "record",
        "--off-cpu",
        "-p",
        &pid,
        "--ring",
        "10s",
        "-o",
        "out.cap",
    ];
    command.args(words);
    let mut recording = setting.start("record", &mut command)?;
    let mut files = Vec::new();
    recording.wait_until("the recording", LIMIT, |_| {
        setting.path("out.cap.ring/part-000001.cap").exists()
    })?;
    for dump in ["out-dump1.cap", "out-dump2.cap"] {
        recording.signal(Signal::USR2)?;
        files.push(setting.path(dump));
        let path = setting.path(dump);
        recording.wait_until("what is written out", LIMIT, |_| path.exists())?;
    }
    recording.signal(Signal::INT)?;
    recording.end(LIMIT)?.expect_status(0)?;
    files.push(setting.path("out.cap"));
    blocked.signal(Signal::KILL)?;
    let files = files.iter().map(|file| Waited::read(file));
    let files = files.collect::<Result<Vec<Waited>, _>>()?;
    let last = &files[2];
    assert_eq!(last.threads.len(), 5);
    for &tid in last.threads.keys() {
        let [first, second, last] = [0, 1, 2].map(|file| files[file].the_wait(tid));
        let (first, second, last) = (first?, second?, last?);
        // The same wait: from its beginning, and as far as it was seen.
        let from = [first.from_ns, second.from_ns, last.from_ns];
        assert_eq!(from, [last.from_ns; 3]);
        assert!(first.to_ns < second.to_ns && second.to_ns < last.to_ns);
        assert!(last.user.len() > 2, "{last:?}");
        // Names may come later than the first one.
        assert_eq!(first.user.len(), last.user.len());
        assert_eq!(second.user.len(), last.user.len());
    }
    // Joined they have what the last one has, which has all: the waits, and what else is counted.
    let words = ["merge", "out-dump1.cap", "out-dump2.cap", "out.cap"];
    let words = [&words[..], &["-o", "all.cap"]].concat();
    let ended = setting.run(&words)?.success()?;
    let said = " that several files of one recording have";
    assert!(
        ended.stderr.contains("counted once: ") && ended.stderr.contains(said),
        "{}",
        ended.stderr
    );
    let all = Waited::read(&setting.path("all.cap"))?;
    let spans = |waited: &Waited| {
        let each = waited.threads.keys().map(|&tid| {
            let wait = waited.the_wait(tid)?;
            Ok((tid, wait.from_ns, wait.to_ns))
        });
        each.collect::<Result<Vec<_>, String>>()
    };
    assert_eq!(spans(&all)?, spans(last)?);
    let events = |name: &str| -> Result<_, Box<dyn std::error::Error>> {
        Ok(Reader::open(&setting.path(name))?.summary()?.events)
    };
    let (all, mut last) = (events("all.cap")?, events("out.cap")?);
    // Parts of a wait are one there.
    last.retain(|&kind, _| kind != "sample");
    let all: Vec<_> = all
        .into_iter()
        .filter(|(kind, _)| *kind != "sample")
        .collect();
    assert_eq!(all, last.into_iter().collect::<Vec<_>>());
    Ok(())
}

/// What hangs all the time is in each file of a rotation with the time of that file, and in all of them together as
/// one wait.
#[test]
fn what_hangs_is_in_each_file_of_a_rotation() -> Outcome {
    let Some(setting) = Setting::new("off-cpu-rotation")? else {
        return Ok(());
    };
    let blocked = start_blocked(&setting)?;
    let pid = blocked.pid().to_string();
    // Where nothing happens the first file ends with the second time of day, after ten seconds.
    let words = [
        "record",
        "--off-cpu",
        "-p",
        &pid,
        "--rotate",
        "10s",
        "-d",
        "16",
    ];
    let words = [&words[..], &["-o", "out.cap"]].concat();
    let ended = setting.run(&words)?.success()?;
    let said = "wrote 2 files, out-0001.cap to out-0002.cap (";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    blocked.signal(Signal::KILL)?;
    let merge = ["merge", "out-0001.cap", "out-0002.cap", "-o", "all.cap"];
    setting.run(&merge)?.success()?;
    let read = |name: &str| Waited::read(&setting.path(name));
    let (first, second, all) = (
        read("out-0001.cap")?,
        read("out-0002.cap")?,
        read("all.cap")?,
    );
    assert_eq!(all.threads.len(), 5);
    for &tid in all.threads.keys() {
        let (one, two, all) = (
            first.the_wait(tid)?,
            second.the_wait(tid)?,
            all.the_wait(tid)?,
        );
        assert_eq!([two.from_ns, two.from_ns], [one.to_ns, second.began_ns]);
        assert_eq!((all.from_ns, all.to_ns), (one.from_ns, two.to_ns));
        assert!(all.to_ns - all.from_ns >= 11_000_000_000, "{all:?}");
        // Names that are waited for do not make it longer.
        let first_ns = one.to_ns - one.from_ns;
        assert!(first_ns < 11_500_000_000, "{first_ns} ns");
        assert!(all.user.len() > 2, "{all:?}");
        assert_eq!([&one.user, &two.user], [&all.user; 2]);
    }
    Ok(())
}

/// Threads that wait before a recording begins, and more than stacks are copied of: of the others it is known where they
/// wait, nothing is said of frame pointers, and the recorder, `info` and `report` count the same stacks.
#[test]
fn of_very_many_that_wait_already_it_is_said_that_callers_are_not_known() -> Outcome {
    const THREADS: usize = 1500;
    const COPIES: usize = 1024;
    let Some(setting) = Setting::new("off-cpu-many-blocked")? else {
        return Ok(());
    };
    let program = setting.workload("sleepers.c")?;
    let mut command = process::Command::new(&program);
    command.args([&THREADS.to_string(), "1", "600000"]);
    let mut sleepers = setting.start("sleepers", &mut command)?;
    sleepers.wait_until("its threads sleep", LIMIT, |running| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid()));
        let sleeps = |task: std::fs::DirEntry| {
            let call = std::fs::read_to_string(task.path().join("syscall"));
            // clock_nanosleep, as the sleeping ones call it; the first waits for one of them.
            call.is_ok_and(|call| call.starts_with("230 "))
        };
        tasks.is_ok_and(|tasks| {
            tasks.flatten().map(sleeps).filter(|sleeps| *sleeps).count() == THREADS
        })
    })?;
    let pid = sleepers.pid().to_string();
    let (said, recording) = setting.record(&["--off-cpu", "-p", &pid, "-d", "1"])?;
    sleepers.signal(Signal::KILL)?;
    let count = |end| {
        let samples = recording.samples.iter();
        samples.filter(|sample| sample.user_end == end).count()
    };
    let (whole, leaves) = (count(StackEnd::Complete), count(StackEnd::LeafOnly));
    assert_eq!(recording.samples.len(), THREADS + 1);
    assert_eq!(
        (whole, leaves),
        (COPIES, THREADS + 1 - COPIES),
        "{}",
        said.stderr
    );
    assert!(
        said.stderr.contains("callers not recorded"),
        "{}",
        said.stderr
    );
    assert!(
        said.stderr.contains("wait since before the recording"),
        "{}",
        said.stderr
    );
    assert!(!said.stderr.contains("frame pointers"), "{}", said.stderr);

    let json = |words: &[&str]| -> Result<serde_json::Value, Box<dyn std::error::Error>> {
        Ok(setting.run(words)?.success()?.json()?)
    };
    let info = json(&["info", "out.cap", "--format", "json"])?;
    let ends = json(&["report", "out.cap", "--by", "end", "--format", "json"])?;
    for (there, complete) in [
        (
            &info["user_stacks"]["there"],
            &info["user_stacks"]["complete"],
        ),
        (&ends["ends"]["samples"], &ends["ends"]["complete"]),
    ] {
        assert_eq!(there.as_u64(), Some(recording.samples.len() as u64));
        assert_eq!(complete.as_u64(), Some(whole as u64));
    }
    Ok(())
}
