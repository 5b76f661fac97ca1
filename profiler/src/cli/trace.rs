//! Flags of function tracing, shared by the commands that can trace -> a [`TraceRequest`].

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::error::Failure;
use crate::pipeline::TraceRequest;
use profiler_model::text::parse_duration;
use profiler_trace::pattern::{PatternError, Selection};
use profiler_trace::place;

/// How exits of functions are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReturnsArg {
    /// By return probes where that is proven safe, else by probes on return instructions
    Auto,
    /// By return probes; functions on which they are not shown to be safe are not traced
    Uretprobe,
    /// By probes on return instructions: safe everywhere, dearer
    RetInsn,
    /// Not at all: entries only
    None,
}

/// Where entries of functions are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProbeAtArg {
    /// At the first instruction
    Entry,
    /// Where a probe costs least and sees the same
    Cheapest,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Function tracing")]
pub(super) struct TraceArgs {
    /// Trace functions: '[OBJECT:]FUNCTION', a glob or /regex/; usdt:PROVIDER:NAME; repeatable
    #[arg(long, value_name = "PATTERN")]
    trace: Vec<String>,
    /// But not these
    #[arg(long, value_name = "PATTERN", requires = "trace")]
    no_trace: Vec<String>,
    /// Only functions of source files like this glob (needs debug information)
    #[arg(long, value_name = "GLOB", requires = "trace")]
    trace_source: Vec<String>,
    /// Keep arguments and results
    #[arg(long, requires = "trace")]
    args: bool,
    /// Longest string kept of an argument, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=profiler_common::call::MAX_STRING as i64))]
    arg_len: u16,
    /// How exits are seen
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto")]
    returns: ReturnsArg,
    /// With --returns uretprobe: return probes on every function, also where they can crash the
    /// program or change what it computes
    #[arg(long = "unsafe", requires = "trace")]
    insist: bool,
    /// Where entries are seen
    #[arg(long, value_name = "WHERE", value_enum, default_value = "cheapest")]
    probe_at: ProbeAtArg,
    /// Share of the target's time that tracing may take; beyond it the dearest functions are watched
    /// less. 'off' for no limit
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = budget)]
    budget: Budget,
    /// Leave out calls shorter than this
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    min_duration: Duration,
    /// Leave out calls nested deeper than this among the traced ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_depth: Option<u32>,
    /// Leave out calls of a function beyond so many per second and processor
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_rate: Option<u32>,
    /// Trace children from their first instruction on; others that run the same files are slowed too
    #[arg(long, requires = "trace")]
    follow_exact: bool,
    /// Trace many thousands of functions without asking
    #[arg(long, requires = "trace")]
    yes: bool,
}

/// A share of time; none: no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Budget(pub(super) Option<f64>);

pub(super) fn budget(text: &str) -> Result<Budget, String> {
    if text == "off" {
        return Ok(Budget(None));
    }
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Budget(Some(percent / 100.0))),
        _ => Err("give a share from 0.1% to 100%, or 'off'".to_owned()),
    }
}

fn parse<T: FromStr<Err = PatternError>>(texts: &[String]) -> Result<Vec<T>, Failure> {
    let parsed = texts.iter().map(|text| text.parse());
    parsed
        .collect::<Result<_, _>>()
        .map_err(|error: PatternError| Failure::usage(error.to_string()))
}

impl TraceArgs {
    /// Whether anything is to be traced.
    pub(super) fn is_wanted(&self) -> bool {
        !self.trace.is_empty()
    }

    /// What is to be traced; none if nothing is.
    pub(super) fn request(&self) -> Result<Option<TraceRequest>, Failure> {
        if !self.is_wanted() {
            return Ok(None);
        }
        let selection = Selection {
            include: parse(&self.trace)?,
            exclude: parse(&self.no_trace)?,
            sources: parse(&self.trace_source)?,
        };
        if self.insist && self.returns != ReturnsArg::Uretprobe {
            return Err(Failure::usage(
                "--unsafe is about return probes: give it with --returns uretprobe",
            ));
        }
        if self.insist {
            log::warn!(
                "--unsafe puts return probes on whatever was asked for: programs that throw exceptions, \
                 unwind panics, run Go, switch stacks or read return addresses can crash, or compute \
                 other results"
            );
        }
        Ok(Some(TraceRequest {
            selection,
            filter: None,
            at: match self.probe_at {
                ProbeAtArg::Entry => place::ProbeAt::Entry,
                ProbeAtArg::Cheapest => place::ProbeAt::Cheapest,
            },
            returns: match self.returns {
                ReturnsArg::Auto => place::Returns::Auto,
                ReturnsArg::Uretprobe if self.insist => place::Returns::Insist,
                ReturnsArg::Uretprobe => place::Returns::Uretprobe,
                ReturnsArg::RetInsn => place::Returns::Instructions,
                ReturnsArg::None => place::Returns::None,
            },
            arguments: self.args.then_some(usize::from(self.arg_len)),
            budget: self.budget.0,
            min_duration: self.min_duration,
            max_depth: self.max_depth.unwrap_or(0),
            max_rate: self.max_rate.unwrap_or(0),
            follow_exact: self.follow_exact,
            yes: self.yes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        assert_eq!(budget("5%"), Ok(Budget(Some(0.05))));
        assert_eq!(budget("0.5"), Ok(Budget(Some(0.005))));
        assert_eq!(budget("off"), Ok(Budget(None)));
        for bad in ["0%", "101%", "-1", "much", "", "%", "nan"] {
            assert!(budget(bad).is_err(), "{bad}");
        }
    }
}
