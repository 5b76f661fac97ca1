//! `doctor`: what is there, what is missing and what to do about it.

use std::io::{self, Write};

use crate::error::{FAILED, Failure};
use profiler_probe::features::{Feature, State, survey};
use profiler_probe::privileges::{CapabilitySet, add_line, recording_set, reduce, setcap_line};
use profiler_report::view::term::{Paint, Style};

use super::Common;

/// Prints the survey; the status says whether recording is possible.
pub(super) fn doctor(common: &Common, out: &mut dyn Write) -> Result<u8, Failure> {
    let paint = Paint::new(common.color.resolve(io::stdout()));
    let mut missing = 0;
    let mut features = survey();
    features.push(names_apart());
    for feature in features {
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

/// The walls around the process that reads targets' files, as a recording has them: it has given up its
/// privileges by then, as is done here.
fn names_apart() -> Feature {
    let _ = reduce(CapabilitySet::empty());
    let state = match profiler_resolve::walls() {
        Err(error) => State::Absent(format!("{error}: nothing but the kernel has names")),
        Ok(walls) => {
            let all = [
                (walls.unprivileged, "no privileges"),
                (walls.memory, "a limit of memory"),
                (walls.calls, "few system calls (seccomp)"),
                (walls.own_root, "no file system (user namespaces)"),
            ];
            let of = |there: bool| {
                let some = all.iter().filter(|(is, _)| *is == there);
                some.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
            };
            match of(false).is_empty() {
                true => State::Present(of(true)),
                false => State::Absent(format!(
                    "this machine does not give: {}; there is: {}",
                    of(false),
                    of(true)
                )),
            }
        }
    };
    Feature {
        name: "names apart",
        purpose: "files of targets are read by a process that can do no harm",
        required: false,
        state,
    }
}
