//! `profiler stream bytefrog` and `profiler hq`, each at a script that was made from the protocol's document alone
//! (`tests/conformance/bytefrog`; docs/formats/bytefrog.md has which case holds which sentence).

use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_tests::workload;

fn all_cases(test: &str, part: &str) -> Outcome {
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let script = workload::source_path("../conformance/bytefrog/run.py");
    let mut command = Command::new("python3");
    // Nothing is left in the source tree.
    command.arg("-B").arg(script);
    command.arg(setting.profiler().get_program()).arg(part);
    let ended = command.current_dir(setting.folder()).output()?;
    let said = String::from_utf8_lossy(&ended.stdout);
    println!("{said}");
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{said}{}", String::from_utf8_lossy(&ended.stderr)).into()),
    }
}

#[test]
fn our_agent_at_a_scripted_hq() -> Outcome {
    all_cases(
        "bytefrog_conformance::our_agent_at_a_scripted_hq",
        "at_agent::",
    )
}

#[test]
fn a_scripted_agent_at_our_hq() -> Outcome {
    all_cases(
        "bytefrog_conformance::a_scripted_agent_at_our_hq",
        "at_hq::",
    )
}
