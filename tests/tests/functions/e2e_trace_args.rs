//! Arguments, results and markers have the values that the program says; only when asked for.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use profiler_model::Value;
use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_tests::tracing::{Build, Call, Edge, Run, Session, prepared};

const FUNCTIONS: [&str; 4] = ["add", "greet", "peek", "place"];

fn traced(
    setting: &Setting,
    program: &std::path::Path,
    more: &[&str],
) -> Result<Run, Box<dyn std::error::Error>> {
    let mut session = Session::of(setting, program)
        .arguments(&["30"])
        .record(&["--budget", "off", "--no-samples"])
        .record(more)
        .probed(&FUNCTIONS);
    for function in FUNCTIONS {
        session = session.record(&["--trace", function]);
    }
    let run = session.run()?;
    run.unharmed()?;
    run.trace.complete()?;
    run.trace.counted(&run.truth, &FUNCTIONS)?;
    Ok(run)
}

/// The values at the entries of a function, call by call.
fn entered<'a>(run: &'a Run, function: &'a str) -> Vec<&'a [Value]> {
    let values = |call: &'a Call| match &call.edge {
        Edge::Enter(values) => Some(values.as_deref().unwrap_or_default()),
        _ => None,
    };
    run.trace.of(function).filter_map(values).collect()
}

/// What a function returned, call by call.
fn returned<'a>(run: &'a Run, function: &'a str) -> Vec<Option<&'a Value>> {
    let values = |call: &'a Call| match &call.edge {
        Edge::Exit { result, .. } => Some(result.as_ref()),
        _ => None,
    };
    run.trace.of(function).filter_map(values).collect()
}

fn text(value: &str, cut: bool) -> Value {
    Value::Text(value.into(), cut)
}

#[test]
fn with_debug_information() -> Outcome {
    for build in [Build::Optimised, Build::Plain] {
        let test = "e2e_trace_args::with_debug_information";
        let Some((setting, program)) = prepared(test, "trace_args.c", build)? else {
            return Ok(());
        };
        for returns in ["auto", "ret-insn"] {
            // What others may change is read by a process without privileges.
            let mode = fs::Permissions::from_mode(if returns == "auto" { 0o755 } else { 0o777 });
            fs::set_permissions(&program, mode)?;
            let run = traced(&setting, &program, &["--args", "--returns", returns])?;
            for (i, values) in entered(&run, "add").into_iter().enumerate() {
                assert_eq!(
                    values,
                    [Value::Signed(i as i64), Value::Signed(-(i as i64))]
                );
            }
            assert!(
                returned(&run, "add")
                    .iter()
                    .all(|value| *value == Some(&Value::Signed(0)))
            );
            for (i, values) in entered(&run, "greet").into_iter().enumerate() {
                assert_eq!(values, [text(&format!("hello {i}"), false)]);
            }
            for (i, value) in returned(&run, "greet").into_iter().enumerate() {
                let length = format!("hello {i}").len() as u64;
                assert_eq!(value, Some(&Value::Unsigned(length)));
            }
            for (i, values) in entered(&run, "peek").into_iter().enumerate() {
                assert_eq!(values, [Value::Unreadable(16 + i as u64)]);
            }
            for (i, values) in entered(&run, "place").into_iter().enumerate() {
                let i = i as i64;
                let point: Box<[(Box<str>, Value)]> = [
                    ("x".into(), Value::Signed(i)),
                    ("y".into(), Value::Signed(2 * i)),
                ]
                .into();
                assert_eq!(values[0], Value::Struct(point.clone()));
                assert!(
                    matches!(&values[1], Value::Pointer(address) if *address > 4096)
                        || values[1] == Value::Struct(point),
                    "{values:?}"
                );
            }
        }
    }
    Ok(())
}

/// Long strings are cut, and said to be.
#[test]
fn strings_are_bounded() -> Outcome {
    let test = "e2e_trace_args::strings_are_bounded";
    let Some((setting, program)) = prepared(test, "trace_args.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = traced(&setting, &program, &["--args", "--arg-len", "5"])?;
    for values in entered(&run, "greet") {
        assert_eq!(values, [text("hello", true)]);
    }
    Ok(())
}

/// Without debug information: the registers that hold integer arguments.
#[test]
fn without_debug_information() -> Outcome {
    let test = "e2e_trace_args::without_debug_information";
    let Some((setting, program)) = prepared(test, "trace_args.c", Build::NoDebug)? else {
        return Ok(());
    };
    let run = traced(&setting, &program, &["--args"])?;
    let word = |value: &Value| match value {
        Value::Signed(word) => Some(*word),
        Value::Unsigned(word) | Value::Pointer(word) => Some(word.cast_signed()),
        _ => None,
    };
    for (i, values) in entered(&run, "add").into_iter().enumerate() {
        assert_eq!(values.len(), 6, "{values:?}");
        // An int fills the lower half of its register.
        assert_eq!(word(&values[0]).map(|word| word as i32), Some(i as i32));
        assert_eq!(word(&values[1]), Some(-(i as i64)));
    }
    Ok(())
}

/// Values may be secrets: without `--args` there are none.
#[test]
fn only_when_asked_for() -> Outcome {
    let test = "e2e_trace_args::only_when_asked_for";
    let Some((setting, program)) = prepared(test, "trace_args.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = traced(&setting, &program, &[])?;
    for function in FUNCTIONS {
        assert!(
            entered(&run, function)
                .iter()
                .all(|values| values.is_empty())
        );
        assert!(returned(&run, function).iter().all(Option::is_none));
    }
    let capture = std::fs::read(setting.path("out.cap"))?;
    assert!(!capture.windows(7).any(|bytes| bytes == b"hello 2"));
    Ok(())
}

/// Markers, with their arguments, also one that is only passed while somebody watches it.
#[test]
fn markers() -> Outcome {
    let test = "e2e_trace_args::markers";
    let Some((setting, program)) = prepared(test, "trace_usdt.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["300"])
        .record(&[
            "--trace",
            "usdt:trace_usdt:*",
            "--args",
            "--budget",
            "off",
            "--no-samples",
        ])
        .probed(&["main"])
        .run()?;
    run.unharmed()?;
    run.trace.complete()?;
    let truth = &run.truth.all["markers"];
    assert_eq!(truth["guarded"], 300, "the counter was not raised");
    assert_eq!(run.truth.all["semaphore"], 1);
    let words = ["one", "two", "three"];
    for name in ["begin", "end", "guarded"] {
        let function = format!("trace_usdt:{name}");
        let hits: Vec<&[Value]> = run
            .trace
            .of(&function)
            .filter_map(|call| match &call.edge {
                Edge::Hit(values) => Some(values.as_deref().unwrap_or_default()),
                _ => None,
            })
            .collect();
        assert_eq!(hits.len(), 300, "{function}");
        assert_eq!(run.trace.counts[&function].entries, 300);
        for (i, values) in hits.into_iter().enumerate() {
            let i = i as i64;
            match name {
                "begin" => {
                    assert_eq!(values[0], Value::Signed(i));
                    // Its type is no more than 8 bytes: an address, or the text there.
                    let word = words[i as usize % 3];
                    assert!(
                        matches!(values[1], Value::Pointer(_) | Value::Unsigned(_))
                            || values[1] == text(word, false),
                        "{values:?}"
                    );
                }
                "end" => assert_eq!(values, [Value::Signed(i * i)]),
                _ => assert_eq!(values, [Value::Signed(i)]),
            }
        }
    }
    // Nobody watches any more.
    let ended = setting.start("alone", std::process::Command::new(&program).arg("10"))?;
    let ended = ended.end(profiler_tests::setting::LIMIT)?.success()?;
    assert!(ended.stdout.contains("\"guarded\": 0"), "{}", ended.stdout);
    Ok(())
}
