//! Leaf functions that keep values below the stack pointer compute right, wherever probes sit.

use profiler_tests::Outcome;
use profiler_tests::tracing::{Build, Session, prepared};

/// Markers of all sorts, entries and exits on instructions that the kernel may turn into calls.
#[test]
fn what_lives_below_the_stack_pointer_stays() -> Outcome {
    let test = "e2e_trace_red_zone::what_lives_below_the_stack_pointer_stays";
    let Some((setting, program)) = prepared(test, "trace_redzone.c", Build::Optimised)? else {
        return Ok(());
    };
    let rounds = 2000;
    for returns in ["auto", "ret-insn", "uretprobe", "none"] {
        let run = Session::of(&setting, &program)
            .arguments(&["2000"])
            .record(&["--trace", "usdt:trace_redzone:*", "--trace", "leaf_*"])
            .record(&["--trace", "frame_*", "--returns", returns])
            .record(&["--budget", "off", "--no-samples"])
            .probed(&["leaf_entry", "frame_long"])
            .run()
            .map_err(|error| format!("--returns {returns}: {error}"))?;
        run.unharmed()
            .map_err(|error| format!("--returns {returns}: {error}"))?;
        run.trace.complete()?;
        // One byte can be probed everywhere, five where a frame protects what is kept.
        for marker in ["short", "pair", "pair5", "pair10", "frame"] {
            let entries = run.trace.entries(&format!("trace_redzone:{marker}"));
            assert_eq!(entries, rounds, "--returns {returns}: {marker}");
        }
        for function in ["leaf_entry", "leaf_exit", "leaf_long", "frame_long"] {
            assert_eq!(
                run.trace.entries(function),
                rounds,
                "--returns {returns}: {function}"
            );
        }
        // With what the kernel makes of five bytes measured, the rest is probed or refused, and right.
        let long = run.trace.entries("trace_redzone:long");
        assert!(long == 0 || long == rounds, "--returns {returns}: {long}");
    }
    Ok(())
}
