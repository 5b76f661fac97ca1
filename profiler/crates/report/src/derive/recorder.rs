//! Which processes of a recording are the profiler that recorded it.
//!
//! Input: a process and the tables; output: yes or no. A recording says with which command line it was
//! made and when; the process that had this command line then is meant, and those that it ran for itself.

use profiler_model::{Process, Tables, helpers};

/// A helper may start another one, and no more.
const GENERATIONS: usize = 2;

/// Whether this process is the profiler that recorded, or one of its helpers.
pub(crate) fn is_recorder(process: &Process, tables: &Tables) -> bool {
    let is_helper = |process: &Process| {
        let called = tables.arguments(process);
        called.is_some_and(|called| {
            called
                .first()
                .is_some_and(|name| helpers::ALL.contains(name))
        })
    };
    let mut process = process;
    for _ in 0..GENERATIONS {
        if !is_helper(process) {
            break;
        }
        match process.parent.and_then(|id| tables.process(id)) {
            Some(parent) => process = parent,
            None => return false,
        }
    }
    is_command(process, tables)
}

/// Whether it is what the recording was made with.
fn is_command(process: &Process, tables: &Tables) -> bool {
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

    fn process(tables: &mut Tables, command: &str, started: u64) -> Process {
        Process {
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
        }
    }

    fn recorded() -> Tables {
        let mut tables = Tables::default();
        tables.session.command = vec!["profiler".into(), "record".into(), "-a".into()];
        tables.session.started = Timestamp(100);
        tables
    }

    #[test]
    fn the_command_line_and_the_time_must_agree() {
        let mut tables = recorded();
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

    #[test]
    fn helpers_are_called_so_and_were_started_by_it() {
        let mut tables = recorded();
        let mut add = |command, started, parent| {
            let process = Process {
                parent,
                ..process(&mut tables, command, started)
            };
            tables.intern_process(process).0
        };
        let recorder = add("profiler\0record\0-a\0", 90, None);
        let shell = add("bash\0", 80, None);
        let users = add("profiler-users\0/\0", 110, Some(recorder));
        let expected = [
            (recorder, true),
            (users, true),
            (add("profiler-users\0/\0", 111, Some(users)), true),
            (add("profiler-names\0", 112, Some(recorder)), true),
            (shell, false),
            // The command that is recorded, somebody else's helper, and one of whom nothing is known.
            (add("sh\0", 113, Some(recorder)), false),
            (add("profiler-names\0", 114, Some(shell)), false),
            (add("profiler-names\0", 115, None), false),
        ];
        for (id, expected) in expected {
            let process = tables.process(id).unwrap();
            assert_eq!(is_recorder(process, &tables), expected, "{process:?}");
        }
    }
}
