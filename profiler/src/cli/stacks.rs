//! Flags that say how user stacks are walked, shared by the commands that sample.
//!
//! Flags -> memory for unwind tables, or none. What does not belong here: what tables are
//! (`unwind`), who uses the memory (`pipeline`).

use clap::{Args, ValueEnum};

use super::values;

/// Least memory for tables: what the kernel side takes at once, and some tables.
const MIN_BYTES: u64 = 16 << 20;

/// How callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CallGraph {
    /// By tables made of each file's .eh_frame, in the kernel; frame pointers where there are none
    #[value(alias = "dwarf")]
    Tables,
    /// By frame pointers alone: programs built without them have broken stacks
    Fp,
}

/// How user stacks are walked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Stacks")]
pub(super) struct StackArgs {
    /// How the callers of user functions are found
    #[arg(long, value_name = "HOW", value_enum, default_value = "tables")]
    call_graph: CallGraph,
    /// Most memory for unwind tables, in the kernel and here together
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    unwind_memory: u64,
}

impl StackArgs {
    /// Memory for tables; none: stacks are walked without.
    pub(super) fn unwind_bytes(&self) -> Option<u64> {
        match self.call_graph {
            CallGraph::Tables => Some(self.unwind_memory),
            CallGraph::Fp => None,
        }
    }
}

fn memory(text: &str) -> Result<u64, String> {
    match values::size(text)? {
        bytes if bytes < MIN_BYTES => Err(format!(
            "'{text}' is too little: tables take {}M at the least; --call-graph fp goes without",
            MIN_BYTES >> 20
        )),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        stacks: StackArgs,
    }

    fn parse(words: &str) -> Result<Option<u64>, clap::Error> {
        let words = ["record"].into_iter().chain(words.split_whitespace());
        Line::try_parse_from(words).map(|line| line.stacks.unwind_bytes())
    }

    #[test]
    fn tables_are_used_unless_told_within_a_limit() {
        assert_eq!(parse("").unwrap(), Some(256 << 20));
        assert_eq!(parse("--unwind-memory 1G").unwrap(), Some(1 << 30));
        assert_eq!(parse("--call-graph dwarf").unwrap(), Some(256 << 20));
        assert_eq!(parse("--call-graph fp").unwrap(), None);
        assert!(parse("--unwind-memory 1M").is_err());
        assert!(parse("--call-graph lbr").is_err());
    }
}
