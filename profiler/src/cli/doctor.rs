//! `doctor`: what is there, what is missing and what to do about it.

use std::io::{self, Write};

use crate::error::{FAILED, Failure};
use profiler_probe::features::{State, survey};
use profiler_probe::privileges::{add_line, recording_set, setcap_line};
use profiler_report::view::term::{Paint, Style};

use super::Common;

/// Prints the survey; the status says whether recording is possible.
pub(super) fn doctor(common: &Common, out: &mut dyn Write) -> Result<u8, Failure> {
    let paint = Paint::new(common.color.resolve(io::stdout()));
    let mut missing = 0;
    for feature in survey() {
        let (mark, style, text) = match &feature.state {
            State::Present(found) => ("ok", Style::Cool, found),
            State::Absent(remedy) if feature.required => {
                missing += 1;
                ("MISSING", Style::Hot, remedy)
            }
            State::Absent(remedy) => ("absent", Style::Dim, remedy),
        };
        paint.write(out, style, &format!("{mark:<8}"))?;
        writeln!(out, "{}: {}", feature.name, feature.purpose)?;
        writeln!(out, "        {text}")?;
    }
    match missing {
        0 => writeln!(out, "\nThis machine can be recorded.")?,
        1 => writeln!(out, "\nRecording needs the one that is MISSING.")?,
        count => writeln!(out, "\nRecording needs the {count} that are MISSING.")?,
    }
    writeln!(
        out,
        "All that a recording of the machine needs, without being root: {}\nIn a container: \
         --pid=host --cap-drop=ALL {}",
        setcap_line(recording_set()),
        add_line(recording_set())
    )?;
    Ok(if missing == 0 { 0 } else { FAILED })
}
