//! Lines that functions are left from: recorded, they are as many as the program itself counts.

use std::collections::BTreeMap;

use profiler_tests::Outcome;
use profiler_tests::tracing::{Build, Edge, Run, Session, prepared};

const FUNCTIONS: &[&str] = &["app::shape::kind", "app::shape::pick", "even", "odd"];

/// How often functions were left from each line, as recorded; without qualifiers and parameters.
fn recorded(run: &Run) -> BTreeMap<(String, u32), u64> {
    let mut lines = BTreeMap::new();
    for call in &run.trace.calls {
        if let Edge::Exit { line, .. } = call.edge {
            let name = call.function.split('(').next().unwrap_or_default();
            let name = name.rsplit("::").next().unwrap_or_default().to_owned();
            *lines.entry((name, line)).or_default() += 1;
        }
    }
    lines
}

/// The same, as the program says.
fn counted(run: &Run) -> BTreeMap<(String, u32), u64> {
    let mut lines = BTreeMap::new();
    for (function, counts) in run.truth.all["lines"].as_object().into_iter().flatten() {
        for (line, count) in counts.as_object().into_iter().flatten() {
            let line = line.parse().unwrap_or(0);
            lines.insert((function.clone(), line), count.as_u64().unwrap_or(0));
        }
    }
    lines
}

fn traced(
    test: &str,
    build: Build,
    more: &[&str],
) -> Result<Option<Run>, Box<dyn std::error::Error>> {
    let Some((setting, program)) = prepared(test, "trace_lines.cpp", build)? else {
        return Ok(None);
    };
    let patterns = FUNCTIONS.iter().flat_map(|name| ["--trace", name]);
    let run = Session::of(&setting, &program)
        .arguments(&["3000"])
        .record(&patterns.collect::<Vec<_>>())
        .record(&["--budget", "off", "--no-samples"])
        .record(more)
        .probed(&["_ZNK3app5shape4kindEl", "_ZN3app5shape4pickEl"])
        .run()?;
    run.unharmed()?;
    run.trace.complete()?;
    Ok(Some(run))
}

#[test]
fn lines_are_as_many_as_the_program_counts() -> Outcome {
    let test = "e2e_trace_lines::lines_are_as_many_as_the_program_counts";
    let more = ["--returns", "ret-insn"];
    if let Some(run) = traced(test, Build::Optimised, &more)? {
        assert_eq!(recorded(&run), counted(&run));
        assert_eq!(counted(&run).len(), 7);
    }
    Ok(())
}

/// Calls that are told when they are over have their line as well.
#[test]
fn calls_of_a_least_duration_have_lines() -> Outcome {
    let test = "e2e_trace_lines::calls_of_a_least_duration_have_lines";
    let more = ["--returns", "ret-insn", "--min-duration", "0.0001ms"];
    if let Some(run) = traced(test, Build::Optimised, &more)? {
        assert_eq!(recorded(&run), counted(&run));
    }
    Ok(())
}

#[test]
fn without_debug_information_no_line_is_made_up() -> Outcome {
    let test = "e2e_trace_lines::without_debug_information_no_line_is_made_up";
    if let Some(run) = traced(test, Build::NoDebug, &["--returns", "ret-insn"])? {
        assert!(recorded(&run).keys().all(|(_, line)| *line == 0));
        let (seen, said) = (recorded(&run), counted(&run));
        assert_eq!(seen.values().sum::<u64>(), said.values().sum::<u64>());
    }
    Ok(())
}
