//! Functions that leave by a jump: they end where they jump, without a result, which is not there yet.

use profiler_model::Value;
use profiler_tests::Outcome;
use profiler_tests::tracing::{Build, Edge, How, Run, Session, prepared};

/// What the calls of a function returned, one by one; each must have returned.
fn results<'a>(run: &'a Run, function: &'a str) -> Vec<Option<&'a Value>> {
    let exit = |edge: &'a Edge| match edge {
        Edge::Exit { result, how, .. } => {
            assert_eq!(*how, How::Return, "{function}");
            Some(result.as_ref())
        }
        _ => None,
    };
    let calls = run.trace.of(function);
    calls.filter_map(|call| exit(&call.edge)).collect()
}

#[test]
fn a_tail_call_has_no_result_of_its_own() -> Outcome {
    let test = "e2e_trace_tail::a_tail_call_has_no_result_of_its_own";
    let Some((setting, program)) = prepared(test, "trace_tail.c", Build::Optimised)? else {
        return Ok(());
    };
    const COUNT: i64 = 50;
    let functions = ["square", "forward", "choose"];
    let mut session = Session::of(&setting, &program)
        .arguments(&["50"])
        .record(&["--budget", "off", "--no-samples", "--args"])
        .record(&["--returns", "ret-insn"])
        .probed(&functions);
    for function in functions {
        session = session.record(&["--trace", function]);
    }
    let run = session.run()?;
    run.unharmed()?;
    run.trace.complete()?;
    run.trace.counted(&run.truth, &functions)?;

    let signed = |value: i64| Some(Value::Signed(value));
    let own = |values: Vec<Option<&Value>>| -> Vec<Option<Value>> {
        values.into_iter().map(Option::<&Value>::cloned).collect()
    };
    // A result that could not be had is said to be missing.
    let is_missing = |value: &Option<Value>| matches!(value, None | Some(Value::Unavailable));
    let forward = own(results(&run, "forward"));
    assert_eq!(forward.len(), COUNT as usize);
    assert!(forward.iter().all(is_missing), "{forward:?}");
    let choose = own(results(&run, "choose"));
    assert_eq!(choose.len(), COUNT as usize);
    for (n, value) in choose.iter().enumerate() {
        if n % 2 == 1 {
            assert_eq!(*value, signed(-1));
        } else {
            assert!(is_missing(value), "{value:?}");
        }
    }
    let mut expected = Vec::new();
    for n in 0..COUNT {
        expected.extend([signed(n * n), signed((n + 1) * (n + 1))]);
        if n % 2 == 0 {
            expected.push(signed(n * n));
        }
    }
    assert_eq!(own(results(&run, "square")), expected);
    // It ends where it jumps, so what it jumps to is not in it.
    assert!(run.trace.of("square").all(|call| call.depth == 0));
    Ok(())
}
