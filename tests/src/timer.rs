//! How often the clock behind samples ticked while a program had a processor: perf's word for how many samples there should be.
//!
//! A command -> a recording of it, and how often perf saw the kernel run the clock's timer meanwhile (`hrtimer_expire_entry`).
//! CPU time says less: the kernel charges what a switch takes to whoever comes next (docs/performance.md, "What is noise").
//! The timers of all recordings count: tests that use this run alone. Needs root and perf.

use std::error::Error;
use std::fs;

use crate::process::{Ended, run};
use crate::recording::{Recording, Sample};
use crate::setting::{LIMIT, Setting};
use crate::tracefs::Tracefs;

/// What was recorded, and what perf counted.
pub struct Judged {
    /// What the program's threads are called.
    pub name: String,
    /// The recording.
    pub recording: Recording,
    /// How often the timer ran while a thread of the program's name had a processor.
    pub ticks: u64,
    /// How the program ended, and what it wrote.
    pub ended: Ended,
}

impl Judged {
    /// Samples of the program.
    pub fn samples(&self) -> Vec<&Sample> {
        self.recording.of_process(&self.name)
    }
}

/// Records a command at so many ticks a second. Its threads keep the name of its file.
pub fn judged(setting: &Setting, hz: &str, command: &[&str]) -> Result<Judged, Box<dyn Error>> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let mut symbols = symbols.lines().filter_map(|line| line.split_once(' '));
    let timer = symbols.find(|(_, symbol)| symbol.ends_with(" perf_swevent_hrtimer"));
    let (address, _) = timer.ok_or("no address of the clock's timer")?;
    let name = command[0].rsplit('/').next().unwrap_or_default();
    let filter = format!("function == 0x{address} && comm == \"{name}\"");
    let mut perf = Tracefs::Mounted.command();
    perf.args(["perf", "stat", "-a", "-x", ","])
        .args([
            "-e",
            "timer:hrtimer_expire_entry",
            "--filter",
            &filter,
            "--",
        ])
        .arg(setting.profiler_path())
        .args(["record", "-F", hz, "--force", "-o", "judged.cap", "--"])
        .args(command)
        .current_dir(setting.folder());
    let ended = run(&mut perf, setting.folder(), "perf", LIMIT)?.success()?;
    let count = |line: &str| line.split(',').next()?.parse().ok();
    let ticks = ended.stderr.lines().rev().find_map(count);
    Ok(Judged {
        name: name.to_owned(),
        recording: Recording::read(&setting.path("judged.cap"))?,
        ticks: ticks.ok_or("perf counted nothing")?,
        ended,
    })
}
