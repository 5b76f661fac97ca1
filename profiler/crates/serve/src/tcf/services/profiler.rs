//! Profiler: sampling of processes and threads, read in the format `StackTraces`.
//!
//! A configuration belongs to a channel and an id, and to one life of that id: see [`Profiles`]. It fails for
//! less than no frames alone, since clients end their channel then; what else can't be meant is ignored. A context that has ended
//! can be read once more. What was counted besides samples is there if it is not 0, or beside data.
//! Source: the service's specification, the reference implementation, its client. What does not belong
//! here: which samples there are (`profile`).
//!
//! [`Profiles`]: crate::tcf::profile::Profiles

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Request, State, answer, exited};
use crate::tcf::options::Limits;
use crate::tcf::profile::{
    DEFAULT_FREQUENCY_HZ, DEFAULT_MAX_SAMPLES, MAX_FRAME_COUNT, Read, ReadOut,
};
use crate::tcf::reply::{Answer, Outcome, Reply};
use profiler_wire::tcf::{Code, ErrorReport, WordLayout};

/// Name of the format of stacks with counts.
const FORMAT: &str = "StackTraces";

/// What is read: a buffer's properties.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Properties {
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_stack: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency: Option<u64>,
}

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    match request.command {
        "getCapabilities" => {
            let id = request.id()?;
            match get_capabilities(&id, state) {
                Ok(reply) => reply.done(),
                Err(report) => Reply::report(report).json(&json!({})).done(),
            }
        }
        "configure" => {
            let id = request.id()?;
            let parameters = request.arguments.object()?;
            let frames = parameters.get("FrameCnt");
            if let Some(frames) = frames.filter(|it| it.as_f64().is_some_and(|it| it < 0.0)) {
                let text = format!("FrameCnt is {frames}: a stack has no less than 0 frames");
                return Reply::error(Code::InvalidNumber, text).done();
            }
            let State {
                profiles, world, ..
            } = state;
            profiles.configure(request.channel, &id, parameters, world);
            Reply::ok().done()
        }
        "read" => {
            let id = request.id()?;
            let State {
                profiles, world, ..
            } = state;
            let read = profiles.read(request.channel, &id, world);
            if let Read::Samples(ReadOut { is_last: true, .. }) = &read {
                state.farewells.was_read(&id, request.now);
            }
            answer(reply(read, &id, state), 1)
        }
        _ => Ok(Outcome::Unknown),
    }
}

fn get_capabilities(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    state.living(id)?;
    let parameters = parameters(&state.options.limits);
    Ok(Reply::ok().json(&json!({ FORMAT: parameters })))
}

/// What a configuration may say, with what holds if it does not.
fn parameters(limits: &Limits) -> Value {
    json!({
        "FrameCnt": {
            "Type": "Integer", "Default": 1, "Max": MAX_FRAME_COUNT,
            "Description": "frames of a stack, from the leaf on; 0 is off; \
                at most 512 of the program and 127 of the kernel are recorded",
        },
        "MaxSamples": {
            "Type": "Integer", "Default": DEFAULT_MAX_SAMPLES,
            "Description": "samples that wait to be read; more are dropped and counted",
        },
        "Frequency": {
            "Type": "Integer", "Default": DEFAULT_FREQUENCY_HZ, "Max": limits.frequency_hz,
            "Description": "samples per second and processor",
        },
        "KernelStacks": {
            "Type": "Boolean", "Default": false,
            "Description": "frames of the kernel before those of the program",
        },
        "OffCpu": {
            "Type": "Boolean", "Default": false, "Values": [false],
            "Description": "time in which threads wait; not supported: samples are of what runs",
        },
        "Scope": {
            "Type": "String", "Default": "Context",
            "Values": ["Context", "Children", "Container"],
            "Description": "of a process: itself, its descendants too, or all of its container or cgroup",
        },
    })
}

fn reply(read: Read, id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let none: [Properties; 0] = [];
    match read {
        Read::Samples(out) => Ok(Reply::ok().json(&[properties(&out)])),
        // Who has the id now, if anybody, was never configured.
        Read::Spent => match state.living(id) {
            // Clients have not been told of the end.
            Ok((_, context)) if context.ended => {
                Ok(Reply::ok().json(&[properties(&ReadOut::default())]))
            }
            Ok(_) => Ok(Reply::ok().json(&none)),
            Err(_) => Err(exited(id)),
        },
        Read::Nothing => state.living(id).map(|_| Reply::ok().json(&none)),
    }
}

fn properties(out: &ReadOut) -> Properties {
    let has_data = !out.data.is_empty();
    let beside = |number: u64| (has_data || number > 0).then_some(number);
    Properties {
        format: FORMAT,
        addr_size: has_data.then_some(WordLayout::WIDE.bytes()),
        data: has_data.then(|| STANDARD.encode(&out.data)),
        samples: has_data.then_some(out.samples),
        dropped: beside(out.dropped),
        lost: beside(out.lost),
        no_stack: Some(out.no_stack).filter(|&count| count > 0),
        truncated: Some(out.truncated).filter(|&count| count > 0),
        frequency: Some(out.frequency_hz).filter(|&hz| has_data && hz > 0),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::Instant;

    use super::*;
    use crate::admission::Admission;
    use crate::machine::NoMachine;
    use crate::tcf::agent::ChannelId;
    use crate::tcf::arguments::Arguments;
    use crate::tcf::options::{Peer, TcfOptions};
    use profiler_wire::tcf::encode_stack_trace;

    fn state() -> State {
        let options = TcfOptions {
            user: "root".to_owned(),
            admission: Admission::new([]),
            control: false,
            environment: false,
            tls: None,
            replay: None,
            limits: Limits::default(),
        };
        State::new(options, Box::new(NoMachine))
    }

    fn ask(state: &mut State, command: &str, arguments: &[&str]) -> Answer {
        let fields: Vec<Cow<'_, [u8]>> = arguments
            .iter()
            .map(|argument| Cow::Borrowed(argument.as_bytes()))
            .collect();
        let request = Request {
            channel: ChannelId(1),
            peer: Peer {
                address: ([127, 0, 0, 1], 1).into(),
                uid: Some(0),
            },
            command,
            arguments: Arguments::new(&fields),
            last_try: false,
            now: Instant::now(),
        };
        call(request, state)
    }

    fn fields(answer: Answer) -> Vec<String> {
        let Ok(Outcome::Done(reply)) = answer else {
            panic!("{answer:?} is no answer");
        };
        let text = |field: Vec<u8>| String::from_utf8(field).expect("JSON is text");
        reply.fields.into_iter().map(text).collect()
    }

    fn code(field: &str) -> i64 {
        let report: Value = serde_json::from_str(field).expect("a report is JSON");
        report["Code"].as_i64().expect("a report has a code")
    }

    #[test]
    fn an_id_that_nobody_knows_is_configured_all_the_same() {
        let mut state = state();
        for parameters in [r#"{"FrameCnt":8}"#, "{}", "null", r#"{"FrameCnt":"many"}"#] {
            let answer = ask(&mut state, "configure", &[r#""P1""#, parameters]);
            assert_eq!(fields(answer), [""], "{parameters}");
        }
        let read = fields(ask(&mut state, "read", &[r#""P1""#]));
        assert_eq!(
            (code(&read[0]), read[1].as_str(), read.len()),
            (16, "null", 2)
        );
        let capabilities = fields(ask(&mut state, "getCapabilities", &[r#""P1""#]));
        assert_eq!(code(&capabilities[0]), 16);
        assert_eq!(capabilities[1..], ["{}"]);
    }

    #[test]
    fn what_is_no_argument_ends_the_channel() {
        let mut state = state();
        for (command, arguments) in [
            ("configure", &["7", "{}"][..]),
            ("configure", &[r#""P1""#, "[]"]),
            ("configure", &[r#""P1""#, r#"{"FrameCnt":"#]),
            ("read", &["{}"]),
            ("getCapabilities", &["nothing"]),
        ] {
            assert!(
                ask(&mut state, command, arguments).is_err(),
                "{arguments:?}"
            );
        }
        assert_eq!(ask(&mut state, "dispose", &[]), Ok(Outcome::Unknown));
    }

    #[test]
    fn what_was_read_looks_as_specified() {
        let text = |out: &ReadOut| serde_json::to_string(&[properties(out)]).expect("it is JSON");
        let none = ReadOut {
            frequency_hz: 99,
            ..ReadOut::default()
        };
        assert_eq!(text(&none), r#"[{"Format":"StackTraces"}]"#);
        let dropped = ReadOut {
            dropped: 5,
            no_stack: 2,
            ..none.clone()
        };
        assert_eq!(
            text(&dropped),
            r#"[{"Format":"StackTraces","Dropped":5,"NoStack":2}]"#
        );
        let mut data = Vec::new();
        encode_stack_trace(WordLayout::WIDE, 3, &[0x40_1136], &mut data).expect("it is wide");
        let cut = ReadOut {
            data: data.clone(),
            samples: 3,
            truncated: 2,
            ..none.clone()
        };
        let cut = text(&cut);
        assert!(
            cut.ends_with(r#""Lost":0,"Truncated":2,"Frequency":99}]"#),
            "{cut}"
        );
        let some = ReadOut {
            data,
            samples: 3,
            ..none
        };
        assert_eq!(
            text(&some),
            concat!(
                r#"[{"Format":"StackTraces","AddrSize":8,"#,
                r#""Data":"AwAAAAAAAAABAAAAAAAAADYRQAAAAAAA","#,
                r#""Samples":3,"Dropped":0,"Lost":0,"Frequency":99}]"#
            )
        );
    }

    #[test]
    fn all_parameters_are_described() {
        let parameters = parameters(&Limits::default());
        let names: Vec<&String> = parameters.as_object().expect("an object").keys().collect();
        let expected = [
            "FrameCnt",
            "Frequency",
            "KernelStacks",
            "MaxSamples",
            "OffCpu",
            "Scope",
        ];
        assert_eq!(names, expected);
    }
}
