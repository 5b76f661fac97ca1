//! Which process of a recording is the profiler that recorded it.
//!
//! Input: a process and the tables; output: yes or no. A recording says with which command line it was
//! made and when; the process that had this command line then is meant.

use profiler_model::{Process, Tables};

/// Whether this process is the profiler that recorded.
pub(crate) fn is_recorder(process: &Process, tables: &Tables) -> bool {
    let session = &tables.session;
    // Of a process the arguments may be known as one text only.
    let command = tables.command_line(process);
    process.started <= session.started
        && !session.command.is_empty()
        && command.is_some_and(|command| command == session.command.join(" ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{Pid, Timestamp};

    #[test]
    fn the_command_line_and_the_time_must_agree() {
        let mut tables = Tables::default();
        tables.session.command = vec!["profiler".into(), "record".into(), "-a".into()];
        tables.session.started = Timestamp(100);
        let process = |tables: &mut Tables, command: &str, started| Process {
            pid: Pid(7),
            started: Timestamp(started),
            parent: None,
            name: tables.intern_string("profiler").0,
            executable: None,
            command: Some(tables.intern_string(command).0),
            cgroup: None,
            namespace_pids: Vec::new(),
            uid: None,
            container: None,
        };
        for (command, started, expected) in [
            ("profiler record -a", 90, true),
            ("profiler record -a", 101, false),
            ("profiler record -ab", 90, false),
            ("profiler", 90, false),
        ] {
            let process = process(&mut tables, command, started);
            assert_eq!(is_recorder(&process, &tables), expected, "{command}");
        }
    }
}
