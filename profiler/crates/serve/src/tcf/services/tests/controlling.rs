//! What clients may do to processes.

use super::*;

const ID: &str = r#""P100""#;
const THREAD: &str = r#""P100.101""#;
/// Each command that does something to a process.
const COMMANDS: [(&str, &str, &[&str]); 5] = [
    ("RunControl", "suspend", &[ID]),
    ("RunControl", "terminate", &[ID]),
    ("Processes", "terminate", &[ID]),
    ("Processes", "signal", &[ID, "10"]),
    ("Processes", "signal", &[ID, "19"]),
];

#[test]
fn only_where_it_is_allowed() {
    for (service, command, arguments) in COMMANDS {
        let mut bench = Bench::live();
        bench.state.options.control = false;
        let fields = bench.fields(service, command, arguments);
        assert_eq!(fields.len(), 1);
        assert!(fields[0].contains("\"Code\":23"), "{fields:?}");
        assert!(fields[0].contains("--allow-control"), "{fields:?}");
        assert!(bench.controls().is_empty());

        let mut recorded = Bench::new(Some(Replay::AtOnce));
        let error = recorded.error(service, command, arguments);
        assert_eq!(error, (23, String::new()), "{service}.{command}");
        let state = recorded.result("RunControl", "getState", &[THREAD]);
        assert_eq!(state[0], "false");
    }
}

#[test]
fn only_by_owners() {
    for (service, command, arguments) in COMMANDS {
        for (uid, allowed) in [
            (Some(0), true),
            (Some(1000), true),
            (Some(1001), false),
            (None, false),
        ] {
            let mut bench = Bench::live();
            bench.peer.uid = uid;
            let fields = bench.fields(service, command, arguments);
            assert_eq!(
                fields[0].is_empty(),
                allowed,
                "{service}.{command} {uid:?}: {fields:?}"
            );
            assert_eq!(!bench.controls().is_empty(), allowed);
            if !allowed {
                let error: Value = serde_json::from_str(&fields[0]).unwrap();
                assert_eq!((&error["Code"], &error["AltCode"]), (&1.into(), &1.into()));
                assert_eq!(error["AltOrg"], "Linux");
            }
        }
    }
    let mut bench = Bench::live();
    bench.peer.uid = Some(1000);
    assert_eq!(bench.error("RunControl", "terminate", &[r#""P200""#]).0, 1);
}

#[test]
fn not_what_has_ended() {
    for (service, command, arguments) in COMMANDS {
        let mut bench = Bench::live();
        bench.machine.0.lock().unwrap().ended.push(100);
        bench.events();
        let error = bench.error(service, command, arguments);
        assert_eq!(
            error,
            (1, String::new()),
            "{service}.{command}: not told yet"
        );
        let state = bench.result("RunControl", "getState", &[THREAD]);
        assert_eq!(state[0], "false");
        for thread in [1, 0] {
            bench.happened(thread, ProcessChange::Exited);
        }
        bench.events();
        let error = bench.error(service, command, arguments);
        assert_eq!(error, (11, String::new()), "{service}.{command}");
    }
}

#[test]
fn not_the_agent() {
    let mut bench = Bench::live();
    let own = Process {
        pid: Pid(std::process::id()),
        started: Timestamp(1),
        parent: None,
        name: StringId::from_index(0),
        executable: None,
        command: None,
        namespace_pids: Vec::new(),
        uid: None,
        cgroup: None,
        container: None,
    };
    let thread = Thread {
        process: ProcessId::from_index(2),
        tid: Tid(own.pid.0),
        started: Timestamp(1),
        name: StringId::from_index(0),
    };
    let id = format!("\"P{}\"", own.pid);
    let definitions = vec![
        Definition::Process(ProcessId::from_index(2), own),
        Definition::Thread(ThreadId::from_index(3), thread),
    ];
    bench.state.world.define(0, definitions);
    assert_eq!(bench.error("RunControl", "suspend", &[&id]).0, 23);
    assert!(bench.controls().is_empty());
}

#[test]
fn stopped_and_continued() {
    let mut bench = Bench::live();
    bench.events();
    assert_eq!(bench.fields("RunControl", "suspend", &[THREAD]), [""]);
    assert_eq!(bench.controls(), [(100, Control::Stop)]);
    for thread in [r#""P100.100""#, THREAD] {
        let state = bench.result("RunControl", "getState", &[thread]);
        assert_eq!(state[..3], ["true", "0", r#""Suspended""#]);
        assert!(
            state[3].starts_with(r#"{"PCError":{"Code":23,"#),
            "{state:?}"
        );
    }
    let other = bench.result("RunControl", "getState", &[r#""P200.200""#]);
    assert_eq!(other[0], "false");
    let events = bench.events();
    assert_eq!(events.len(), 2);
    for (event, id) in events.iter().zip(["P100.100", "P100.101"]) {
        assert_eq!(event.0, "RunControl.contextSuspended");
        assert!(
            event
                .1
                .starts_with(&format!(r#""{id}" 0 "Suspended" {{"PCError""#)),
            "{event:?}"
        );
    }
    assert_eq!(bench.error("RunControl", "suspend", &[ID]).0, 10);
    assert_eq!(bench.error("RunControl", "resume", &[ID, "1", "1"]).0, 23);
    assert_eq!(bench.error("RunControl", "resume", &[ID, "0", "2"]).0, 23);
    assert!(bench.controls().is_empty());

    assert_eq!(
        bench.fields("RunControl", "resume", &[ID, "0", "1", "{}"]),
        [""]
    );
    assert_eq!(bench.controls(), [(100, Control::Continue)]);
    let state = bench.result("RunControl", "getState", &[THREAD]);
    assert_eq!(state, ["false", "0", "null", "{}"]);
    let resumed = |id: &str| ("RunControl.contextResumed".to_owned(), format!("\"{id}\""));
    assert_eq!(bench.events(), [resumed("P100.100"), resumed("P100.101")]);
    assert_eq!(bench.error("RunControl", "resume", &[ID, "0", "1"]).0, 12);
    assert!(bench.controls().is_empty());
}

#[test]
fn what_others_continue_is_noticed() {
    let mut bench = Bench::live();
    bench.events();
    bench.fields("RunControl", "suspend", &[ID]);
    bench.events();
    assert!(bench.events().is_empty());
    bench.machine.0.lock().unwrap().stopped.clear();
    let events = bench.events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].0, "RunControl.contextResumed");
    assert_eq!(
        bench.result("RunControl", "getState", &[THREAD])[0],
        "false"
    );
}

#[test]
fn what_takes_a_while_to_stop_is_not_taken_for_continued() {
    let mut bench = Bench::live();
    bench.events();
    bench.fields("RunControl", "suspend", &[ID]);
    bench.machine.0.lock().unwrap().stopped.clear();
    let events = bench.events();
    assert!(
        events
            .iter()
            .all(|event| event.0 == "RunControl.contextSuspended")
    );
    assert_eq!(bench.result("RunControl", "getState", &[THREAD])[0], "true");
}

#[test]
fn what_a_channel_has_stopped_goes_on_when_it_closes() {
    let mut bench = Bench::live();
    bench.events();
    bench.fields("RunControl", "suspend", &[ID]);
    bench.channel = ChannelId(2);
    bench.fields("RunControl", "suspend", &[r#""P200""#]);
    bench.controls();
    bench.events();
    closed(ChannelId(1), &mut bench.state);
    assert_eq!(bench.controls(), [(100, Control::Continue)]);
    assert_eq!(
        bench.result("RunControl", "getState", &[THREAD])[0],
        "false"
    );
    assert_eq!(
        bench.result("RunControl", "getState", &[r#""P200.200""#])[0],
        "true"
    );
    closed(ChannelId(1), &mut bench.state);
    assert!(bench.controls().is_empty());
    assert_eq!(bench.events().len(), 2);
}

#[test]
fn signals() {
    let mut bench = Bench::live();
    let list = bench.one("Processes", "getSignalList", &[ID]);
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 31);
    for (index, signal) in (1..).zip(list) {
        assert_eq!(
            (&signal["Index"], &signal["Code"]),
            (&index.into(), &index.into())
        );
    }
    for (number, name) in [
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
        (18, "SIGCONT"),
        (19, "SIGSTOP"),
        (27, "SIGPROF"),
    ] {
        assert_eq!(list[number - 1]["Name"], name);
    }
    assert_eq!(
        bench.result("Processes", "getSignalMask", &[ID]),
        ["4294967294", "0", "0"]
    );
    assert_eq!(
        bench.error("Processes", "setSignalMask", &[ID, "0", "0"]).0,
        23
    );
    for signal in ["0", "-1", "65", "4294967305", "9223372036854775807"] {
        assert_eq!(
            bench.error("Processes", "signal", &[ID, signal]).0,
            20,
            "{signal}"
        );
    }
    assert_eq!(bench.error("Processes", "signal", &[THREAD, "10"]).0, 23);
    assert!(bench.controls().is_empty());
    assert_eq!(bench.fields("Processes", "signal", &[ID, "10"]), [""]);
    assert_eq!(bench.controls(), [(100, Control::Signal(10))]);
    assert_eq!(bench.fields("Processes", "signal", &[ID, "19"]), [""]);
    assert_eq!(bench.result("RunControl", "getState", &[THREAD])[0], "true");
    assert_eq!(bench.fields("Processes", "signal", &[ID, "18"]), [""]);
    assert_eq!(
        bench.result("RunControl", "getState", &[THREAD])[0],
        "false"
    );
}

#[test]
fn what_is_stopped_can_be_ended() {
    for (service, command, arguments) in [
        ("RunControl", "terminate", &[ID][..]),
        ("Processes", "terminate", &[ID]),
    ] {
        let mut bench = Bench::live();
        bench.fields("RunControl", "suspend", &[ID]);
        bench.controls();
        assert_eq!(bench.fields(service, command, arguments), [""]);
        let expected = [(100, Control::Terminate), (100, Control::Continue)];
        assert_eq!(bench.controls(), expected);
    }
    let mut bench = Bench::live();
    assert_eq!(bench.error("Processes", "terminate", &[THREAD]).0, 16);
    assert_eq!(bench.fields("RunControl", "terminate", &[THREAD]), [""]);
    assert_eq!(bench.controls(), [(100, Control::Terminate)]);
}

#[test]
fn attaching_is_not_needed() {
    let mut bench = Bench::live();
    assert_eq!(
        bench.error("Processes", "attach", &[ID]),
        (13, String::new())
    );
    assert_eq!(
        bench.error("Processes", "attach", &[THREAD]),
        (16, String::new())
    );
    assert_eq!(
        bench.error("Processes", "detach", &[ID]),
        (23, String::new())
    );
    assert_eq!(
        bench.error("RunControl", "detach", &[ID]),
        (23, String::new())
    );
    let start = ["\"/\"", "\"/bin/true\"", "[\"true\"]", "[]", "false"];
    assert_eq!(
        bench.error("Processes", "start", &start),
        (23, "null".to_owned())
    );
}
