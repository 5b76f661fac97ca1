//! Whatever clients send, there is an answer or the channel ends.

use proptest::prelude::*;

use super::*;

/// The report of what is no argument.
const JSON_SYNTAX: i32 = 2;

const ALL: [(&str, &[&str]); 6] = [
    (
        "RunControl",
        &[
            "getContext",
            "getChildren",
            "getState",
            "suspend",
            "resume",
            "terminate",
            "detach",
        ],
    ),
    (
        "Processes",
        &[
            "getContext",
            "getChildren",
            "attach",
            "detach",
            "terminate",
            "signal",
            "getSignalList",
            "getSignalMask",
            "setSignalMask",
            "getEnvironment",
            "start",
        ],
    ),
    (
        "SysMonitor",
        &[
            "getContext",
            "getChildren",
            "getCommandLine",
            "getEnvironment",
        ],
    ),
    ("MemoryMap", &["get", "set"]),
    (
        "Symbols",
        &[
            "findByAddr",
            "getContext",
            "getChildren",
            "list",
            "find",
            "findByName",
            "findInScope",
        ],
    ),
    ("LineNumbers", &["mapToSource", "mapToMemory"]),
];

fn argument() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "null",
        "",
        "true",
        "0",
        "1",
        "15",
        "4194614",
        "4195000",
        "18446744073709551615",
        "-1",
        "18446744073709551616",
        "1e400",
        "{}",
        "[]",
        "{\"a\":[1]}",
        "\"\"",
        "\"P100\"",
        "\"P100.101\"",
        "\"P200\"",
        "\"P7\"",
        "\"@SP100.400136\"",
        "\"@SP100.101.1\"",
        "\"compute\"",
        "\"\\u0000\\ud800\"",
        "\"P100",
        "nul",
    ]);
    prop_oneof![
        6 => known.prop_map(|text| text.as_bytes().to_vec()),
        2 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        2 => ".{0,120}".prop_map(|text| serde_json::to_vec(&text).unwrap()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn are_answered(
        recorded: bool,
        control: bool,
        environment: bool,
        uid in prop::option::of(prop::sample::select(vec![0, 1000, 1001])),
        calls in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::collection::vec(argument(), 0..6), any::<bool>()),
            1..60,
        ),
    ) {
        let commands: Vec<(&str, &str)> = ALL
            .iter()
            .flat_map(|(service, commands)| commands.iter().map(|&command| (*service, command)))
            .collect();
        let mut bench = Bench::new(recorded.then_some(Replay::AtOnce));
        bench.state.options.control = control;
        bench.state.options.environment = environment;
        bench.peer.uid = uid;
        for (index, arguments, last_try) in calls {
            let (service, command) = commands[index.index(commands.len())];
            let fields: Vec<Cow<'_, [u8]>> = arguments.iter().map(Into::into).collect();
            let request = Request {
                channel: bench.channel,
                peer: bench.peer,
                command,
                arguments: Arguments::new(&fields),
                last_try,
                now: Instant::now(),
            };
            match call(service, request, &mut bench.state) {
                Ok(Outcome::Done(reply)) => {
                    for (index, field) in reply.fields.iter().enumerate() {
                        let empty = index == 0 && field.is_empty();
                        let json = serde_json::from_slice::<Value>(field);
                        prop_assert!(empty || json.is_ok(), "{} {:?}", command, reply);
                    }
                }
                Ok(Outcome::Later) => prop_assert!(!last_try && !recorded),
                Ok(Outcome::Unknown) => prop_assert_eq!(command, "findInScope"),
                Err(Malformed { report, ends }) => {
                    prop_assert_eq!(report.code() == JSON_SYNTAX, ends);
                }
            }
            for event in events(&mut bench.state, Instant::now()) {
                for argument in event.arguments {
                    prop_assert!(serde_json::from_slice::<Value>(&argument).is_ok());
                }
            }
        }
    }
}
