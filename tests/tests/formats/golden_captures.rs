//! Captures that earlier versions of the profiler wrote: what they say stays the same.
//!
//! `golden/captures/version-N.cap` is the canonical session with everything, in version N of the format; each
//! gives the same reports and exports, byte for byte, whoever reads it. The program itself reads them, as a
//! person would have it. A new version of the format gets a capture of its own: `UPDATE_GOLDEN=1` writes the one of
//! today's version if there is none, and all texts anew; read the difference before keeping it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use crate::golden;
use profiler_tests::announced;
use profiler_tests::canonical;
use profiler_tests::setting::profiler;

/// The version of the format that is written today.
const TODAY: u16 = 1;

/// What is asked of a capture, and in which file the answer lies; those that speak of the file's size are
/// different for each version.
const QUESTIONS: &[(&str, &[&str])] = &[
    ("report.txt", &["report"]),
    ("report.json", &["report", "--format", "json"]),
    ("calls.txt", &["report", "--calls"]),
    ("waits.txt", &["report", "--by", "wait"]),
    ("containers.txt", &["report", "--by", "container"]),
    ("annotate.txt", &["report", "--annotate", "parse_header"]),
    ("{version}-info.txt", &["info"]),
    ("{version}-info.json", &["info", "--format", "json"]),
];

fn folder() -> PathBuf {
    golden::folder().join("captures")
}

/// What the program says, in the folder of the captures, so that paths are the same everywhere.
fn ask(arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(profiler().unwrap());
    let output = command
        .current_dir(folder())
        .env_remove("COLUMNS")
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    output.stdout
}

/// Asks everything of a capture. Where it is one that is kept, of a version of the format, also what speaks of its
/// size.
fn check_all(capture: &str, version: Option<u16>) {
    for (name, question) in QUESTIONS {
        let name = match version {
            Some(version) => name.replace("{version}", &version.to_string()),
            None if name.contains("{version}") => continue,
            None => (*name).to_owned(),
        };
        let mut arguments = question.to_vec();
        arguments.push(capture);
        // An answer that names the capture, with the same name for all of them.
        let answer = String::from_utf8(ask(&arguments)).unwrap();
        let answer = answer.replace(capture, "CAPTURE");
        golden::check(&format!("captures/{name}"), &answer);
    }
    for format in profiler_report::export::formats() {
        let answer = unpacked(ask(&["export", capture, "--format", format.name]));
        golden::check(&format!("captures/export-{}", format.name), &answer);
    }
}

/// What is packed, without that: a packer may change.
fn unpacked(answer: Vec<u8>) -> Vec<u8> {
    let mut plain = Vec::new();
    match flate2::read::GzDecoder::new(&answer[..]).read_to_end(&mut plain) {
        Ok(_) => plain,
        Err(_) => answer,
    }
}

#[test]
fn all_versions_say_the_same() {
    let today = folder().join(format!("version-{TODAY}.cap"));
    if golden::update() && !today.exists() {
        announced::write(&today, canonical::session_with_everything()).unwrap();
    }
    for version in 1..=TODAY {
        let capture = format!("version-{version}.cap");
        let len = std::fs::metadata(folder().join(&capture)).unwrap().len();
        assert!(len < 200_000, "{capture} has {len} bytes");
        check_all(&capture, Some(version));
    }
}

/// What is written today says what the captures of old say.
#[test]
fn what_is_written_today_says_the_same() {
    let folder = std::env::temp_dir().join(format!("captures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("today.cap");
    let _ = std::fs::remove_file(&path);
    announced::write(&path, canonical::session_with_everything()).unwrap();
    check_all(path.to_str().unwrap(), None);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// All that a capture can hold is in the one that is kept: else what is not would change unseen.
#[test]
fn everything_is_in_it() {
    use profiler_model::Event;
    let (tables, events) = canonical::session_with_everything();
    let mut kinds = [false; 10];
    for event in &events {
        kinds[match event {
            Event::Sample(_) => 0,
            Event::Process(_) => 1,
            Event::Mark(_) => 2,
            Event::Clock(_) => 3,
            Event::Lost(_) => 4,
            Event::Call(_) => 5,
            Event::Throw(_) => 6,
            Event::CallCount(_) => 7,
            Event::Gap(_) => 8,
            Event::Waits(_) => 9,
        }] = true;
    }
    assert_eq!(kinds, [true; 10]);
    assert!(tables.containers().next().is_some());
    assert!(tables.code().next().is_some());
    assert!(tables.all_traced().next().is_some());
}
