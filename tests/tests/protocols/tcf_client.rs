//! The client that the tests of the TCF agent use, tested itself: at an agent of its own, made of the
//! protocol's description alone.

use std::path::Path;
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::skip::skip;

#[test]
fn the_client_is_as_strict_as_real_ones() -> Outcome {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tcf");
    let mut python = Command::new("/usr/bin/python3");
    // -B: no folder of compiled files beside the sources.
    python.args(["-B", "-m", "unittest", "discover", "-s"]);
    let run = match python.arg(&folder).current_dir(&folder).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip(
                "tcf_client::the_client_is_as_strict_as_real_ones",
                "no python3",
            );
            return Ok(());
        }
        run => run?,
    };
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    assert!(!said.contains("Ran 0 tests"), "{said}");
    Ok(())
}
