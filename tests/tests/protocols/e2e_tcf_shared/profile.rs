//! What a client found when it profiled a context: the JSON of `client.py profile`.

use std::collections::{BTreeMap, BTreeSet};

use profiler_capture::TimeRange;
use profiler_model::Timestamp;
use serde_json::Value;

use super::Failure;

/// How often a function was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Function {
    /// As the innermost.
    pub(crate) leaf: u64,
    /// Anywhere in a stack, once per sample.
    pub(crate) inclusive: u64,
    /// File and line of the innermost code at its addresses.
    pub(crate) lines: BTreeSet<(String, u64)>,
}

/// A profile of one context, as a client read it.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// Samples of all reads.
    pub(crate) samples: u64,
    /// Samples that found no room.
    pub(crate) dropped: u64,
    /// Samples of the machine that were lost.
    pub(crate) lost: u64,
    /// Samples without any frame.
    pub(crate) no_stack: u64,
    /// What the agent says the frequency was.
    pub(crate) frequency_hz: u64,
    /// CPU time of the context meanwhile: at least and at most.
    pub(crate) cpu_ns: Option<(u64, u64)>,
    /// When it was profiled.
    pub(crate) window: Option<TimeRange>,
    /// By name, and by address where there is none.
    pub(crate) functions: BTreeMap<String, Function>,
    /// Files of functions.
    pub(crate) modules: BTreeMap<String, String>,
    /// Stacks by name, leaf first, with counts.
    pub(crate) chains: Vec<(u64, Vec<String>)>,
    /// All addresses that came.
    pub(crate) addresses: Vec<u64>,
    /// Samples of each read.
    pub(crate) reads: Vec<u64>,
}

impl Profile {
    /// Of the client's words.
    pub(crate) fn of(said: &Value) -> Result<Profile, Failure> {
        let number = |value: &Value| value.as_u64().ok_or("no number");
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("no text");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let pair = |value: &Value| value[0].as_u64().zip(value[1].as_u64());
        let mut profile = Profile {
            samples: number(&said["samples"])?,
            dropped: number(&said["dropped"])?,
            lost: number(&said["lost"])?,
            no_stack: number(&said["no_stack"])?,
            frequency_hz: said["frequency"][0].as_u64().unwrap_or(0),
            cpu_ns: pair(&said["cpu_ns"]),
            window: pair(&said["window_ns"]).map(|(from, to)| TimeRange {
                from: Timestamp(from),
                to: Timestamp(to),
            }),
            ..Profile::default()
        };
        for one in list(&said["functions"]) {
            let name = text(&one["name"])?;
            profile.modules.insert(name.clone(), text(&one["module"])?);
            let function = profile.functions.entry(name).or_default();
            function.leaf += number(&one["leaf"])?;
            function.inclusive += number(&one["inclusive"])?;
            for (file, lines) in one["lines"].as_object().ok_or("no lines")? {
                for line in list(lines) {
                    function.lines.insert((file.clone(), number(&line)?));
                }
            }
        }
        for one in list(&said["chains"]) {
            let names: Result<Vec<String>, _> = list(&one["frames"]).iter().map(text).collect();
            profile.chains.push((number(&one["count"])?, names?));
        }
        for address in said["addresses"].as_object().into_iter().flatten() {
            let digits = address.0.trim_start_matches("0x");
            profile.addresses.push(u64::from_str_radix(digits, 16)?);
        }
        for read in list(&said["reads"]) {
            profile.reads.push(number(&read["samples"])?);
        }
        Ok(profile)
    }

    /// Samples in whose stacks the function is.
    pub(crate) fn inclusive(&self, name: &str) -> u64 {
        self.functions.get(name).map_or(0, |one| one.inclusive)
    }

    /// Samples whose innermost frame is of the function.
    pub(crate) fn leaf(&self, name: &str) -> u64 {
        self.functions.get(name).map_or(0, |one| one.leaf)
    }

    /// Samples with all these functions in their stack, in this order, the innermost first.
    pub(crate) fn with_chain(&self, names: &[&str]) -> u64 {
        let holds = |chain: &[String]| {
            let mut frames = chain.iter();
            names.iter().all(|name| frames.any(|frame| frame == name))
        };
        self.chains
            .iter()
            .filter(|(_, chain)| holds(chain))
            .map(|(count, _)| count)
            .sum()
    }

    /// Checks that there are as many samples as the CPU time calls for: one per tick, less what the agent
    /// says was lost, within four standard deviations and what a kernel tick leaves open.
    pub(crate) fn check_amount(&self, what: &str, frequency_hz: u64) -> Result<(), Failure> {
        let (least_ns, most_ns) = self.cpu_ns.ok_or("no CPU time")?;
        let expected = |cpu_ns| cpu_ns as f64 / 1e9 * frequency_hz as f64;
        let (least, most) = (expected(least_ns), expected(most_ns));
        let slack = 4.0 * most.sqrt() + 0.03 * frequency_hz as f64 + 2.0;
        let samples = (self.samples + self.no_stack) as f64;
        let lost = (self.lost + self.dropped) as f64;
        let said = format!(
            "{what}: {samples} samples at {frequency_hz} Hz, {lost} lost; expected {least:.0} to {most:.0} +- {slack:.0}"
        );
        eprintln!("{said}");
        match samples <= most + slack && samples >= least - slack - lost {
            true => Ok(()),
            false => Err(said.into()),
        }
    }
}
