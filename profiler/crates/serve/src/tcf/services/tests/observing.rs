//! What clients are told.

use serde_json::json;

use super::*;

#[test]
fn the_tree_of_contexts() {
    for replay in [None, Some(Replay::AtOnce)] {
        let mut bench = Bench::new(replay);
        bench.state.options.control = false;
        for service in ["RunControl", "SysMonitor"] {
            for root in ["null", "\"\"", ""] {
                let processes = bench.result(service, "getChildren", &[root]);
                assert_eq!(processes, [r#"["P100","P200"]"#]);
            }
            let threads = bench.result(service, "getChildren", &[r#""P100""#]);
            assert_eq!(threads, [r#"["P100.100","P100.101"]"#]);
            let none = bench.result(service, "getChildren", &[r#""P100.101""#]);
            assert_eq!(none, ["[]"]);
        }
        assert_eq!(
            bench.result("RunControl", "getContext", &[r#""P100""#]),
            [concat!(
                r#"{"ID":"P100","ProcessID":"P100","Name":"app","IsContainer":true,"#,
                r#""WordSize":8,"SymbolsGroup":"P100","RCGroup":"P100","#,
                r#""AdditionalInfo":" (100, user 1000, app.service)"}"#
            )]
        );
        assert_eq!(
            bench.result("RunControl", "getContext", &[r#""P100.101""#]),
            [concat!(
                r#"{"ID":"P100.101","ParentID":"P100","ProcessID":"P100","Name":"worker","#,
                r#""HasState":true,"WordSize":8,"SymbolsGroup":"P100","RCGroup":"P100"}"#
            )]
        );
        let child = bench.one("RunControl", "getContext", &[r#""P200""#]);
        assert_eq!(child["CreatorID"], "P100");
        assert_eq!(
            bench.result("RunControl", "getState", &[r#""P100.100""#]),
            ["false", "0", "null", "{}"]
        );
        let stateless = bench.error("RunControl", "getState", &[r#""P100""#]);
        assert_eq!(stateless, (16, "false 0 null null".to_owned()));
        let all = bench.result("Processes", "getChildren", &["null", "false"]);
        assert_eq!(all, [r#"["P100","P200"]"#]);
        let attached = bench.result("Processes", "getChildren", &["null", "true"]);
        assert_eq!(attached, all);
        let children = bench.result("Processes", "getChildren", &[r#""P100""#, "false"]);
        assert_eq!(children, ["[]"]);
        assert_eq!(
            bench.result("Processes", "getContext", &[r#""P100""#]),
            [r#"{"ID":"P100","Name":"app","CanTerminate":false,"Attached":true}"#]
        );
        let thread = bench.result("Processes", "getContext", &[r#""P100.100""#]);
        assert_eq!(thread, ["null"]);
    }
}

/// Puts process 100 of the definitions into a container: engine, id, name, image, pod, namespace, unit.
fn put_into(bench: &mut Bench, cgroup: &str, texts: [&str; 7], inside: &[u32]) {
    let mut definitions = Vec::new();
    let mut some = |text: &str| {
        // Behind those of the definitions.
        let id = StringId::from_index(100 + definitions.len());
        definitions.push(Definition::String(id, text.into()));
        (!text.is_empty()).then_some(id)
    };
    let mut container = Container {
        cgroup: some(cgroup).unwrap(),
        engine: None,
        id: None,
        name: None,
        image: None,
        pod: None,
        namespace: None,
        unit: None,
    };
    for (slot, text) in container.texts_mut().into_iter().zip(texts) {
        *slot = some(text);
    }
    let process = Process {
        pid: Pid(100),
        started: Timestamp(7_000_000_000),
        parent: None,
        name: some("app").unwrap(),
        executable: some("/usr/bin/app"),
        command: some("app a b"),
        namespace_pids: inside.iter().copied().map(Pid).collect(),
        uid: Some(0),
        cgroup: Some(container.cgroup),
        container: Some(ContainerId::from_index(0)),
    };
    definitions.push(Definition::Container(ContainerId::from_index(0), container));
    definitions.push(Definition::Process(ProcessId::from_index(0), process));
    bench.state.world.define(0, definitions);
}

#[test]
fn containers_are_told() {
    let mut bench = Bench::new(Some(Replay::AtOnce));
    let path = "/docker/0123456789abcdef";
    let id = "0123456789abcdef";
    let docker = ["docker", id, "we\"b", "nginx:1", "", "", ""];
    put_into(&mut bench, path, docker, &[1]);
    let context = bench.one("RunControl", "getContext", &[r#""P100""#]);
    assert_eq!(context["AdditionalInfo"], " (100, user 0, 1 in we\"b)");
    let monitored = bench.one("SysMonitor", "getContext", &[r#""P100""#]);
    assert_eq!(
        monitored,
        json!({
            "ID": "P100", "PID": 100, "File": "/usr/bin/app", "StartTime": 7000, "UID": 0,
            "Cgroup": path, "NSPID": 1, "Container": "we\"b", "Engine": "docker",
            "ContainerID": id, "Image": "nginx:1",
        })
    );
    let thread = bench.one("SysMonitor", "getContext", &[r#""P100.101""#]);
    assert_eq!(thread["Container"], "we\"b");
    assert_eq!(thread.get("NSPID"), None);

    let pod = ["containerd", "77aa", "app", "", "api-1", "prod", ""];
    put_into(&mut bench, "/kube/77aa", pod, &[]);
    let context = bench.one("RunControl", "getContext", &[r#""P100""#]);
    assert_eq!(context["AdditionalInfo"], " (100, user 0, prod/api-1/app)");
    let monitored = bench.one("SysMonitor", "getContext", &[r#""P100""#]);
    assert_eq!(
        (&monitored["Pod"], &monitored["Namespace"]),
        (&json!("api-1"), &json!("prod"))
    );
    let unit = ["systemd", "", "", "", "", "", "ssh.service"];
    put_into(&mut bench, "/system.slice/ssh.service", unit, &[]);
    let context = bench.one("RunControl", "getContext", &[r#""P100""#]);
    assert_eq!(context["AdditionalInfo"], " (100, user 0, ssh.service)");
    let monitored = bench.one("SysMonitor", "getContext", &[r#""P100""#]);
    assert_eq!(monitored["Unit"], "ssh.service");
}

#[test]
fn control_is_offered_where_it_is_allowed() {
    let mut bench = Bench::live();
    for id in [r#""P100""#, r#""P100.100""#] {
        let context = bench.one("RunControl", "getContext", &[id]);
        assert_eq!(context["CanSuspend"], true);
        assert_eq!(context["CanResume"], 1);
        assert_eq!(context["CanTerminate"], true);
        assert_eq!(context["CanCount"], Value::Null);
    }
    let process = bench.one("Processes", "getContext", &[r#""P100""#]);
    assert_eq!(process["CanTerminate"], true);
    let mut recorded = Bench::new(Some(Replay::AtOnce));
    let context = recorded.one("RunControl", "getContext", &[r#""P100""#]);
    assert_eq!(context["CanSuspend"], Value::Null);
}

#[test]
fn unknown_ids() {
    let mut bench = Bench::live();
    for (service, command, more, rest) in [
        ("RunControl", "getContext", &[][..], "null"),
        ("RunControl", "getChildren", &[], "null"),
        ("RunControl", "getState", &[], "false 0 null null"),
        ("RunControl", "suspend", &[], ""),
        ("RunControl", "resume", &["0", "1"], ""),
        ("RunControl", "terminate", &[], ""),
        ("RunControl", "detach", &[], ""),
        ("Processes", "getContext", &[], "null"),
        ("Processes", "getChildren", &["false"], "null"),
        ("Processes", "attach", &[], ""),
        ("Processes", "detach", &[], ""),
        ("Processes", "terminate", &[], ""),
        ("Processes", "signal", &["15"], ""),
        ("Processes", "getSignalMask", &[], "null null null"),
        ("Processes", "setSignalMask", &["0", "0"], ""),
        ("SysMonitor", "getContext", &[], "null"),
        ("SysMonitor", "getChildren", &[], "null"),
        ("SysMonitor", "getCommandLine", &[], "null"),
        ("SysMonitor", "getEnvironment", &[], "null"),
        ("MemoryMap", "get", &[], "null"),
        ("MemoryMap", "set", &["[]"], ""),
        ("Symbols", "findByAddr", &["1"], "null"),
        ("Symbols", "getContext", &[], "null"),
        ("Symbols", "getChildren", &[], "null"),
        ("Symbols", "list", &[], "null"),
        ("Symbols", "find", &["0", "\"x\""], "null"),
        ("Symbols", "findByName", &["\"x\""], "null"),
        ("LineNumbers", "mapToSource", &["1", "2"], "null"),
        ("LineNumbers", "mapToMemory", &["\"a.c\"", "1", "0"], "null"),
    ] {
        for id in [r#""P7""#, r#""P100.7""#, r#""x""#, r#""@SP7.1""#] {
            let arguments = [&[id], more].concat();
            let error = bench.error(service, command, &arguments);
            assert_eq!(error, (16, rest.to_owned()), "{service}.{command} {id}");
        }
        assert!(matches!(
            bench.call(service, command, &["7"]),
            Err(Malformed { .. })
        ));
    }
    assert!(bench.controls().is_empty());
}

#[test]
fn unknown_commands() {
    let mut bench = Bench::live();
    for service in SERVICES.iter().chain(&["ProcessesV1", "", "StackTrace"]) {
        let unknown = bench.call(service, "noSuchCommand", &[]);
        assert_eq!(unknown, Ok(Outcome::Unknown), "{service}");
    }
    for command in [
        "getLocationInfo",
        "findFrameInfo",
        "getSymFileInfo",
        "getArrayType",
    ] {
        assert_eq!(
            bench.call("Symbols", command, &["null"]),
            Ok(Outcome::Unknown)
        );
    }
}

#[test]
fn what_a_process_does_now() {
    let mut bench = Bench::live();
    let page = rustix::param::page_size() as u64;
    assert_eq!(
        bench.one("SysMonitor", "getContext", &[r#""P100""#]),
        json!({
            "ID": "P100", "PID": 100, "PPID": 1, "File": "/usr/bin/app2", "StartTime": 7000,
            "UID": 1000, "EUID": 0, "UGID": 100, "EGID": 101, "UserName": "ada", "State": "S",
            "PGRP": 100, "Session": 99, "UTime": 1234, "STime": 5, "Priority": 20, "Nice": -5,
            "Threads": 2, "VSize": 1_u64 << 30, "PSize": page, "RSS": 8192 * 3 / page,
            "Processor": 1, "CWD": "/home/ada", "Root": "/", "Cgroup": "/system.slice/app.service",
        })
    );
    let thread = bench.one("SysMonitor", "getContext", &[r#""P100.101""#]);
    assert_eq!(thread["ParentID"], "P100");
    assert_eq!(
        (&thread["PID"], &thread["File"]),
        (&json!(101), &json!("worker"))
    );
    for id in [r#""P100""#, r#""P100.101""#] {
        let command = bench.result("SysMonitor", "getCommandLine", &[id]);
        assert_eq!(command, [r#"["app","a b",""]"#]);
    }
}

/// Each command about a context, and how many fields it is answered with beside the error.
const ABOUT_CONTEXTS: [(&str, &str, &[&str]); 18] = [
    ("RunControl", "getContext", &[]),
    ("RunControl", "getChildren", &[]),
    ("RunControl", "getState", &[]),
    ("RunControl", "detach", &[]),
    ("Processes", "getContext", &[]),
    ("Processes", "getChildren", &["false"]),
    ("Processes", "attach", &[]),
    ("Processes", "detach", &[]),
    ("Processes", "getSignalMask", &[]),
    ("Processes", "setSignalMask", &["0", "0"]),
    ("SysMonitor", "getContext", &[]),
    ("SysMonitor", "getChildren", &[]),
    ("SysMonitor", "getCommandLine", &[]),
    ("SysMonitor", "getEnvironment", &[]),
    ("MemoryMap", "get", &[]),
    ("Symbols", "list", &[]),
    ("Profiler", "getCapabilities", &[]),
    ("Profiler", "read", &[]),
];

/// The first process has ended, with all its threads.
fn ended(bench: &mut Bench) {
    bench.machine.0.lock().unwrap().ended.push(100);
    for thread in [1, 0] {
        bench.happened(thread, ProcessChange::Exited);
    }
}

/// Who is told that something is gone that has not been removed takes the agent for broken.
#[test]
fn nobody_says_that_a_context_is_gone_before_the_event() {
    let codes = |bench: &mut Bench, id: &str| -> Vec<u64> {
        let code = |&(service, command, more): &(_, _, &[&str])| {
            let fields = bench.fields(service, command, &[&[id], more].concat());
            let error: Value = serde_json::from_str(&fields[0]).unwrap_or_default();
            error["Code"].as_u64().unwrap_or_default()
        };
        ABOUT_CONTEXTS.iter().map(code).collect()
    };
    for id in [r#""P100""#, r#""P100.101""#] {
        let mut bench = Bench::live();
        bench.events();
        bench.result("Profiler", "configure", &[id, r#"{"FrameCnt":8}"#]);
        let before = codes(&mut bench, id);
        ended(&mut bench);
        let State {
            world, profiles, ..
        } = &mut bench.state;
        profiles.tick(bench.now, world);
        // Its last samples are read by one of these.
        for _ in 0..2 {
            assert_eq!(codes(&mut bench, id), before, "{id}");
        }
        let empty = [r#"[{"Format":"StackTraces"}]"#];
        assert_eq!(bench.result("Profiler", "read", &[id]), empty);
        let listed = bench.one("RunControl", "getChildren", &["null"]);
        assert_eq!(listed, json!(["P100", "P200"]));
        for service in ["RunControl", "SysMonitor"] {
            let threads = bench.one(service, "getChildren", &[r#""P100""#]);
            assert_eq!(threads, json!(["P100.100", "P100.101"]), "{service}");
        }
        // It is held for its names.
        assert!(bench.events_at(bench.now).is_empty());
        let told = bench.events_at(bench.now + Duration::from_secs(60));
        assert_eq!(told[0].0, "RunControl.contextRemoved");
        for (code, (service, command, _)) in codes(&mut bench, id).iter().zip(ABOUT_CONTEXTS) {
            let expected = match (service, command) {
                // Of what is gone there are none; what it had is known for a while.
                ("RunControl", "getChildren") | ("MemoryMap", _) | ("Symbols", _) => 0,
                _ => 11,
            };
            assert_eq!(*code, expected, "{service}.{command} {id}");
        }
        let listed = bench.one("RunControl", "getChildren", &["null"]);
        assert_eq!(listed, json!(["P200"]));
    }
}

/// A view of memory that looks again and again has no use of what has ended.
#[test]
fn reads_of_memory_hold_nobody_back() {
    let mut bench = Bench::live();
    bench.events();
    bench.result("Profiler", "configure", &[r#""P100""#, r#"{"FrameCnt":8}"#]);
    ended(&mut bench);
    let State {
        world, profiles, ..
    } = &mut bench.state;
    profiles.tick(bench.now, world);
    bench.result("Profiler", "read", &[r#""P100""#]);
    let began = bench.now;
    let removed = (0..12).find(|&seconds| {
        bench.now = began + Duration::from_secs(seconds);
        bench.result("MemoryMap", "get", &[r#""P100""#]);
        let events = bench.events_at(bench.now);
        events.iter().any(|it| it.0 == "RunControl.contextRemoved")
    });
    assert!((1..6).contains(&removed.unwrap_or(99)), "{removed:?}");
}

#[test]
fn what_came_and_went_is_told_if_somebody_has_seen_it() {
    for is_seen in [true, false] {
        let mut bench = Bench::live();
        if is_seen {
            bench.result("RunControl", "getChildren", &["null"]);
        }
        for thread in [1, 0] {
            bench.happened(thread, ProcessChange::Exited);
        }
        let events = bench.events();
        let removed = events.iter().find(|it| it.0 == "RunControl.contextRemoved");
        // Its threads are not in the list that was seen.
        let expected = is_seen.then_some(r#"["P100"]"#);
        assert_eq!(removed.map(|it| &*it.1), expected);
        let error = bench.error("RunControl", "getContext", &[r#""P100""#]);
        assert_eq!(error.0, 11);
    }
}

#[test]
fn what_a_recording_says_of_a_process() {
    let mut bench = Bench::new(Some(Replay::AtOnce));
    assert_eq!(
        bench.one("SysMonitor", "getContext", &[r#""P100""#]),
        json!({
            "ID": "P100", "PID": 100, "File": "/usr/bin/app", "StartTime": 7000, "UID": 1000,
            "Cgroup": "/system.slice/app.service",
        })
    );
    assert_eq!(
        bench.one("SysMonitor", "getContext", &[r#""P200""#]),
        json!({
            "ID": "P200", "PID": 200, "PPID": 100, "File": "daemon", "StartTime": 8000, "UID": 0,
        })
    );
    let command = bench.result("SysMonitor", "getCommandLine", &[r#""P100""#]);
    assert_eq!(command, [r#"["app","a b",""]"#]);
    let none = bench.result("SysMonitor", "getCommandLine", &[r#""P200""#]);
    assert_eq!(none, ["[]"]);
    let environment = bench.error("SysMonitor", "getEnvironment", &[r#""P100""#]);
    assert_eq!(environment.0, 23);
    let said = bench.fields("SysMonitor", "getEnvironment", &[r#""P100""#]);
    assert!(
        said[0].contains("environments are not recorded"),
        "{}",
        said[0]
    );
}

#[test]
fn environments_are_shown_where_that_is_allowed() {
    let mut bench = Bench::live();
    let environment = bench.result("SysMonitor", "getEnvironment", &[r#""P100""#]);
    assert_eq!(environment, [r#"["HOME=/home/ada"]"#]);
    let own = bench.one("Processes", "getEnvironment", &[]);
    assert_eq!(own.as_array().unwrap().len(), std::env::vars_os().count());
    bench.state.options.environment = false;
    for (service, arguments) in [("SysMonitor", &[r#""P100""#][..]), ("Processes", &[])] {
        let fields = bench.fields(service, "getEnvironment", arguments);
        assert!(fields[0].contains("--allow-env"), "{fields:?}");
        assert_eq!(fields[1], "null");
    }
}

#[test]
fn memory() {
    let mut bench = Bench::live();
    for id in [r#""P100""#, r#""P100.101""#] {
        assert_eq!(
            bench.result("MemoryMap", "get", &[id]),
            [concat!(
                r#"[{"Addr":4194304,"Size":65536,"Flags":5,"FileName":"/usr/bin/app","Offs":4096},"#,
                r#"{"Addr":5242880,"Size":4096,"Flags":3}]"#
            )]
        );
    }
    assert_eq!(bench.error("MemoryMap", "set", &[r#""P100""#, "[]"]).0, 23);
    let mapped =
        r#"[{"Addr":4194304,"Size":65536,"Flags":5,"FileName":"/usr/bin/app","Offs":4096}]"#;
    bench.machine.0.lock().unwrap().ended.push(100);
    assert_eq!(bench.result("MemoryMap", "get", &[r#""P100""#]), [mapped]);
    let mut recorded = Bench::new(Some(Replay::AtOnce));
    assert_eq!(
        recorded.result("MemoryMap", "get", &[r#""P100""#]),
        [mapped]
    );
}

#[test]
fn contexts_come_change_and_go() {
    let mut bench = Bench::live();
    let added = bench.events();
    assert_eq!(added.len(), 1, "{added:?}");
    assert_eq!(added[0].0, "RunControl.contextAdded");
    let contexts: Vec<Value> = serde_json::from_str(&added[0].1).unwrap();
    let ids: Vec<&str> = contexts
        .iter()
        .map(|context| context["ID"].as_str().unwrap())
        .collect();
    for (thread, process) in [
        ("P100.100", "P100"),
        ("P100.101", "P100"),
        ("P200.200", "P200"),
    ] {
        let at = |id| ids.iter().position(|&other| other == id).unwrap();
        assert!(at(process) < at(thread), "{ids:?}");
    }
    assert_eq!(ids.len(), 5);
    assert!(bench.events().is_empty());

    bench.happened(1, ProcessChange::Exited);
    let removed = bench.events();
    assert_eq!(
        removed,
        [(
            "RunControl.contextRemoved".to_owned(),
            r#"["P100.101"]"#.to_owned()
        )]
    );
    let threads = bench.result("RunControl", "getChildren", &[r#""P100""#]);
    assert_eq!(threads, [r#"["P100.100"]"#]);
    bench.happened(0, ProcessChange::Exited);
    let removed = bench.events();
    assert_eq!(
        removed,
        [(
            "RunControl.contextRemoved".to_owned(),
            r#"["P100.100","P100"]"#.to_owned()
        )]
    );
    assert_eq!(
        bench.result("RunControl", "getChildren", &["null"]),
        [r#"["P200"]"#]
    );
    assert_eq!(
        bench.error("RunControl", "getContext", &[r#""P100""#]),
        (11, "null".to_owned())
    );
    assert_eq!(
        bench.error("RunControl", "getState", &[r#""P100.100""#]).0,
        11
    );
    // What addresses of it meant is known for a while.
    let symbol = bench.one("Symbols", "findByAddr", &[r#""P100""#, "4194614"]);
    assert!(symbol.is_string());
    assert_eq!(bench.result("MemoryMap", "get", &[r#""P100""#]).len(), 1);
}

#[test]
fn a_new_program_has_other_memory() {
    let mut bench = Bench::live();
    bench.events();
    bench.happened(2, ProcessChange::Executed(StringId::from_index(0)));
    let events = bench.events();
    let names: Vec<&str> = events.iter().map(|event| &*event.0).collect();
    assert_eq!(names, ["RunControl.contextChanged", "MemoryMap.changed"]);
    assert_eq!(events[1].1, r#""P200""#);
    let contexts: Vec<Value> = serde_json::from_str(&events[0].1).unwrap();
    let is_new = |context: &Value| context["ID"] == "P200" && context["Name"] == "app";
    assert!(contexts.iter().any(is_new), "{contexts:?}");
}

#[test]
fn a_whole_recording_has_no_ends() {
    let mut bench = Bench::new(Some(Replay::AtOnce));
    for thread in [1, 0] {
        bench.happened(thread, ProcessChange::Exited);
    }
    let all = bench.result("RunControl", "getChildren", &["null"]);
    assert_eq!(all, [r#"["P100","P200"]"#]);
    let threads = bench.result("RunControl", "getChildren", &[r#""P100""#]);
    assert_eq!(threads, [r#"["P100.100","P100.101"]"#]);
    let context = bench.one("RunControl", "getContext", &[r#""P100.101""#]);
    assert_eq!(context["Name"], "worker");
}

#[test]
fn many_contexts_come_in_events_of_bounded_length() {
    let mut bench = Bench::live();
    bench.events();
    let count = 10_000;
    let mut definitions = Vec::new();
    for number in 0..count {
        let (process, pid) = (ProcessId::from_index(2 + number), 10_000 + number as u32);
        let name = StringId::from_index(0);
        let started = Timestamp(1);
        let new = Process {
            pid: Pid(pid),
            started,
            parent: None,
            name,
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        let thread = Thread {
            process,
            tid: Tid(pid),
            started,
            name,
        };
        definitions.push(Definition::Process(process, new));
        definitions.push(Definition::Thread(ThreadId::from_index(3 + number), thread));
    }
    bench.state.world.define(0, definitions);
    let mut contexts = 0;
    let events = bench.events();
    assert!(events.len() > 1);
    for (name, argument) in events {
        assert_eq!(name, "RunControl.contextAdded");
        assert!(argument.len() <= 600 << 10);
        contexts += serde_json::from_str::<Vec<Value>>(&argument).unwrap().len();
    }
    assert_eq!(contexts, 2 * count);
    let all = bench.one("RunControl", "getChildren", &["null"]);
    assert_eq!(all.as_array().unwrap().len(), 2 + count);
}
