//! Golden exchanges of a TCF channel: what a client sends -> what it gets, byte for byte.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use profiler_model::{Batch, Demand};
use profiler_serve::front::Order;
use profiler_serve::tcf::Limits;
use profiler_tests::tcf_channel::{self, CLIENT_HELLO, HELLO, Served, command};

fn served() -> Served {
    Served::new(Limits::default())
}

/// The text of a reply's bytes.
fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn each_side_says_hello_first() {
    let mut served = served();
    let id = served.open();
    assert_eq!(served.read(id), HELLO);
    // A command before the client's Hello is not known yet, whatever it is.
    let sync = command("1", "Locator", "sync", &[]);
    assert_eq!(served.say(id, &sync), b"N\x001\0\x03\x01");
    assert_eq!(served.say(id, CLIENT_HELLO), b"");
    assert_eq!(served.say(id, &sync), b"R\x001\0\0\x03\x01");
    assert!(!served.is_over(id));
}

#[test]
fn what_nobody_knows_is_answered_so() {
    let mut served = served();
    let id = served.client();
    served.agent.batch(Batch::default(), served.now);
    served.agent.ready(served.now);
    for (service, name) in [
        ("Breakpoints", "getIDs"),
        ("Locator", "publishPeer"),
        ("Locator", ""),
        ("Diagnostics", "runTest"),
        ("Diagnostics", "getSymbol"),
        ("RunControl", "no such command"),
        ("", ""),
    ] {
        let answer = served.say(id, &command("t", service, name, &["\"x\""]));
        assert_eq!(text(&answer), "N\0t\0\x03\x01", "{service} {name}");
    }
    assert!(!served.is_over(id));
}

#[test]
fn tokens_are_given_back_as_they_came() {
    let mut served = served();
    let id = served.client();
    for (token, back) in [
        (&b"0"[..], &b"0"[..]),
        (b"", b""),
        (b"\xff\xfe\x01", b"\xff\xfe\x01"),
        (b"\x03\x00", b"\x03\x00"),
        (b"a\x03\x03\x03\0\x03\x01", b"\x03\x03\x04a\0\x03\x01"),
    ] {
        let sent = [b"C\0", token, b"\0Locator\0sync\0\x03\x01"].concat();
        let expected = [b"R\0", back, b"\0\0\x03\x01"].concat();
        assert_eq!(served.say(id, &sent), expected, "{token:?}");
    }
}

#[test]
fn the_locator_says_what_it_is() {
    let mut served = served();
    served.agent.listens("127.0.0.1:1534".parse().unwrap());
    let id = served.client();
    let answer = text(&served.say(id, &command("7", "Locator", "getAgentID", &[])));
    let agent = answer
        .strip_prefix("R\x007\0\0\"")
        .and_then(|rest| rest.strip_suffix("\"\0\x03\x01"))
        .unwrap();
    assert_eq!(agent.len(), 32);
    assert!(agent.bytes().all(|byte| byte.is_ascii_hexdigit()));

    let answer = text(&served.say(id, &command("8", "Locator", "getPeers", &[])));
    let peers = answer
        .strip_prefix("R\x008\0\0")
        .and_then(|rest| rest.strip_suffix("\0\x03\x01"))
        .unwrap();
    let peers: serde_json::Value = serde_json::from_str(peers).unwrap();
    assert_eq!(peers.as_array().unwrap().len(), 1);
    for (name, value) in [
        ("ID", "TCP:127.0.0.1:1534"),
        ("AgentID", agent),
        ("TransportName", "TCP"),
        ("Host", "127.0.0.1"),
        ("Port", "1534"),
    ] {
        assert_eq!(peers[0][name], value);
    }
    assert!(peers[0]["OSName"].as_str().unwrap().starts_with("Linux "));
    assert!(peers[0]["UserName"].is_string() && peers[0]["Name"].is_string());

    for peer in ["\"TCP:10.0.0.1:1534\"", "{\"ID\":\"x\"}"] {
        let answer = text(&served.say(id, &command("9", "Locator", "redirect", &[peer])));
        assert!(
            answer.starts_with("R\x009\0{\"Code\":7,\"Time\":"),
            "{answer}"
        );
        assert!(answer.ends_with("}\0\x03\x01"), "{answer}");
    }
}

#[test]
fn echo_gives_back_what_came() {
    let mut served = served();
    let id = served.client();
    for (sent, back) in [
        (&b"\"abc\""[..], &b"\"abc\""[..]),
        // Control characters are no JSON.
        (b"\"\x03\0\x01\n\"", b"\"\\u0003\\u0001\\u000a\""),
        // Not UTF-8.
        (b"\"\xc3\x28\xff\"", b"\"\xc3\x28\xff\""),
        (b"\"\\u0000\\u0003\\\\\"", b"\"\\u0000\\u0003\\\\\""),
        // Zeros need a length.
        (b"\x03\x03\x83\0\"\0\"", b"\"\\u0000\""),
    ] {
        let sent = [b"C\0t\0Diagnostics\0echo\0", sent, b"\0\x03\x01"].concat();
        let expected = [b"R\0t\0", back, b"\0\x03\x01"].concat();
        assert_eq!(served.say(id, &sent), expected);
    }
    for (name, arguments, back) in [
        ("echoINT", &["4", "-2147483648"][..], "-2147483648"),
        (
            "echoINT",
            &["8", "18446744073709551615"],
            "18446744073709551615",
        ),
        // More digits than a number of 64 bits has.
        (
            "echoINT",
            &["16", "-1180591620717411303424"],
            "-1180591620717411303424",
        ),
        ("echoFP", &["1.5"], "1.5"),
        (
            "echoFP",
            &["0.1000000000000000000001"],
            "0.1000000000000000000001",
        ),
        ("echoFP", &["1e400"], "1e400"),
        ("getTestList", &[], "\0[]"),
        (
            "echoERR",
            &["{\"Code\":16,\"Format\":\"no {0}\"}"],
            "{\"Code\":16,\"Format\":\"no {0}\"}\0\"no {0}\"",
        ),
        ("echoERR", &["null"], "\0null"),
        ("echoERR", &[""], "\0null"),
        (
            "echoERR",
            &["{\"AltCode\":2,\"AltOrg\":\"Linux\",\"Code\":1}"],
            "{\"AltCode\":2,\"AltOrg\":\"Linux\",\"Code\":1}\0\"Linux Error 2\"",
        ),
        (
            "echoERR",
            &["{\"Code\":7}"],
            "{\"Code\":7}\0\"TCF Error 7\"",
        ),
        (
            "echoERR",
            &[
                "{\"Code\":1,\"Format\":\"{1} 'abcde{}' {0,number,percent}\",\"Params\":[0.5,\"a\u{1134}c\"],\"Time\":5}",
            ],
            "{\"Code\":1,\"Format\":\"{1} 'abcde{}' {0,number,percent}\",\"Params\":[0.5,\"a\u{1134}c\"],\"Time\":5}\0\
             \"a\u{1134}c abcde{} 50%\"",
        ),
        // What a client in Java writes of a control character that it has no escape for.
        (
            "echoERR",
            &[
                "{\"Code\":1,\"Format\":\"{0}\",\"Params\":[\"a\u{1}\u{1f}c\"],\"\u{2}\":\"\\u0004\"}",
            ],
            "{\"\\u0002\":\"\\u0004\",\"Code\":1,\"Format\":\"{0}\",\"Params\":[\"a\\u0001\\u001fc\"]}\0\
             \"a\\u0001\\u001fc\"",
        ),
    ] {
        let answer = text(&served.say(id, &command("t", "Diagnostics", name, arguments)));
        assert_eq!(answer, format!("R\0t\0{back}\0\x03\x01"), "{name}");
    }
}

/// A client in Java escapes \b, \t, \n, \f and \r, and writes other control characters as they are, a 3 with the
/// channel's own escape.
#[test]
fn control_characters_end_no_channel() {
    let mut served = served();
    let id = served.client();
    served.agent.ready(served.now);
    let configure = b"C\x001\0Profiler\0configure\0\"P\x01\"\0{\"FrameCnt\":8,\"a\x03\0b\x1f\":\"\\n\x0b\"}\0\x03\x01";
    assert_eq!(served.say(id, configure), b"R\x001\0\0\x03\x01");
    let read = b"C\x002\0Profiler\0read\0\"P\x01\"\0\x03\x01";
    let answer = text(&served.say(id, read));
    assert!(answer.starts_with("R\x002\0{\"Code\":16,"), "{answer:?}");
    assert!(answer.contains("Invalid context P\\u0001"), "{answer:?}");
    let find = b"C\x003\0Symbols\0findByName\0\"P\xff\"\x000\0\"\x01\"\0\x03\x01";
    let answer = text(&served.say(id, find));
    assert!(answer.starts_with("R\x003\0{\"Code\":16,"), "{answer:?}");
    assert!(!served.is_over(id));
}

#[test]
fn each_command_takes_so_many_arguments() {
    let takes_others = ["find", "findByName", "resume"];
    for &(service, name, arguments) in tcf_channel::COMMANDS {
        let mut served = served();
        let id = served.client();
        served.agent.ready(served.now);
        let sent = command("1", service, name, arguments);
        let answer = served.say(id, &sent);
        let is_known = !answer.starts_with(b"N");
        assert!(!served.is_over(id), "{service} {name}: {}", text(&answer));
        let mut wrong = vec![[arguments, &["null"]].concat()];
        if let Some((_, fewer)) = arguments.split_last() {
            wrong.push(fewer.to_vec());
        }
        for arguments in wrong {
            if takes_others.contains(&name) {
                continue;
            }
            let id = served.client();
            let answer = text(&served.say(id, &command("1", service, name, &arguments)));
            match is_known {
                true => assert!(
                    answer.starts_with("\x03\x02{\"Code\":2,\"Format\":\"number of arguments: "),
                    "{service} {name}: {answer:?}"
                ),
                false => assert_eq!(answer, "N\x001\0\x03\x01"),
            }
        }
    }
}

#[test]
fn what_is_no_message_ends_the_channel_with_a_report() {
    for (sent, code) in [
        // No escape; a message that ends within a field; a stream that ends within one.
        (&b"C\x001\0\x03\x07"[..], 3),
        (b"C\x001\x03\x01", 3),
        (b"C\0\x03\x02\0\x03\x01", 3),
        // A length that no message may have; no kind; not all fields; answers to nothing.
        (b"C\0\x03\x03\xff\xff\xff\xff\x0f", 3),
        (b"X\x001\0\x03\x01", 3),
        (b"\x03\x01", 3),
        (b"C\x001\0Locator\0\x03\x01", 3),
        (b"F\0x\0\x03\x01", 3),
        (b"R\x001\0\0\x03\x01", 3),
        (b"P\x001\0\x03\x01", 3),
        (b"N\x001\0\x03\x01", 3),
        // No JSON, or not what it should be.
        (b"C\x001\0Diagnostics\0echoINT\x004\0{\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echoINT\0\"4\"\x004\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echoERR\0[]\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echoFP\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echo\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echo\0abc\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echo\0\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echo\0null\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echo\0[1]\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echo\0\"a\0\x03\x01", 2),
        (b"C\x001\0Diagnostics\0echoFP\0\"1\"\0\x03\x01", 2),
    ] {
        let mut served = served();
        let id = served.client();
        let behind = command("2", "Locator", "sync", &[]);
        let answer = text(&served.say(id, &[sent, &behind].concat()));
        let start = format!("\x03\x02{{\"Code\":{code},\"Format\":\"");
        assert!(answer.starts_with(&start), "{sent:?}: {answer:?}");
        assert!(answer.ends_with("\"}\0\x03\x01"), "{sent:?}: {answer:?}");
        assert!(served.is_over(id), "{sent:?}");
        // Nothing behind it counts, and nothing comes any more.
        assert_eq!(served.say(id, &behind), b"");
        served.later(Duration::from_secs(1));
        assert_eq!(served.read(id), b"");
        served.agent.close(id);
        assert!(served.agent.output(id).is_none());
    }
}

/// What is no JSON is called that, whatever it should have been.
#[test]
fn no_json_is_called_so() {
    for (service, name, argument) in [
        ("Profiler", "read", "{bad"),
        ("RunControl", "getContext", "{bad"),
        ("Diagnostics", "echoERR", "[}"),
        ("Diagnostics", "echoFP", "-"),
    ] {
        let mut served = served();
        let id = served.client();
        served.agent.ready(served.now);
        let said = text(&served.say(id, &command("1", service, name, &[argument])));
        assert!(
            said.starts_with("\x03\x02{\"Code\":2,\"Format\":\"argument 1 is no JSON: "),
            "{said}"
        );
    }
}

/// JSON that is right, and can't be used: the command fails, and the channel goes on.
#[test]
fn arguments_that_are_of_no_use_end_no_channel() {
    let mut served = served();
    let id = served.client();
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    for (service, name, arguments, expected) in [
        (
            "Profiler",
            "configure",
            ["\"P1\"", &deep],
            "\"argument 2 is nested too deep\"",
        ),
        (
            "Profiler",
            "configure",
            ["\"P1\"", "{\"FrameCnt\":-1}"],
            "\"FrameCnt is -1: a stack has no less than 0 frames\"",
        ),
        (
            "Processes",
            "signal",
            ["\"P1\"", "1.5"],
            "\"argument 2 is no integer of 64 bits: 1.5\"",
        ),
        (
            "Processes",
            "signal",
            ["\"P1\"", "1e300"],
            "\"argument 2 is no integer of 64 bits: 1e+300\"",
        ),
    ] {
        served.agent.ready(std::time::Instant::now());
        let said = text(&served.say(id, &command("1", service, name, &arguments)));
        assert!(said.starts_with("R\x001\0{\"Code\":"), "{said}");
        assert!(said.contains(&format!("\"Format\":{expected}")), "{said}");
        assert!(!served.is_over(id));
    }
    for whole in ["7", "7.0", "-7"] {
        let echo = command("2", "Diagnostics", "echoINT", &["0", whole]);
        let said = text(&served.say(id, &echo));
        assert_eq!(said, format!("R\x002\0{whole}\0\x03\x01"));
    }
    // What is no JSON is another matter, however deep it is.
    let open = "[".repeat(5000);
    let said = text(&served.say(
        id,
        &command("3", "Profiler", "configure", &["\"P1\"", &open]),
    ));
    assert!(said.starts_with("\x03\x02{\"Code\":2,"), "{said}");
    assert!(served.is_over(id));
}

#[test]
fn a_hello_names_services() {
    for (arguments, is_one) in [
        (&["[]"][..], true),
        (&["[\"Locator\",\"x\\u0001\"]"], true),
        (&[], false),
        (&["[]", "[]"], false),
        (&["{}"], false),
        (&["[1]"], false),
        (&["[\"Locator\""], false),
        (&["\"Locator\""], false),
    ] {
        let mut served = served();
        let id = served.open();
        served.read(id);
        let mut hello = b"E\0Locator\0Hello\0".to_vec();
        for argument in arguments {
            hello.extend_from_slice(argument.as_bytes());
            hello.push(0);
        }
        hello.extend_from_slice(b"\x03\x01");
        let said = text(&served.say(id, &hello));
        match is_one {
            true => assert_eq!(said, "", "{arguments:?}"),
            false => assert!(
                said.starts_with("\x03\x02{\"Code\":2,"),
                "{arguments:?} {said}"
            ),
        }
        assert_eq!(served.is_over(id), !is_one, "{arguments:?}");
    }
}

#[test]
fn the_end_of_a_stream_is_answered() {
    for end in [
        &b"\x03\x02\0\x03\x01"[..],
        b"\x03\x02{\"Code\":9}\0\x03\x01",
        b"\x03\x02",
    ] {
        let mut served = served();
        let id = served.client();
        let sync = command("1", "Locator", "sync", &[]);
        let answer = served.say(id, &[&sync, end].concat());
        assert_eq!(answer, b"R\x001\0\0\x03\x01\x03\x02\0\x03\x01");
        assert!(served.is_over(id));
    }
    let mut served = served();
    let (first, second) = (served.client(), served.client());
    served.agent.finish();
    for id in [first, second] {
        assert_eq!(served.read(id), b"\x03\x02\0\x03\x01");
        assert!(served.is_over(id));
    }
}

#[test]
fn flow_control_and_events_of_clients_are_nothing_to_us() {
    let mut served = served();
    let id = served.client();
    for bytes in [
        &b"F\x00100\0\x03\x01"[..],
        b"F\0-100\0\x03\x01",
        CLIENT_HELLO,
        b"E\0Locator\0peerAdded\0{\0\x03\x01",
        b"E\0\0\0\x03\x01",
    ] {
        assert_eq!(served.say(id, bytes), b"");
    }
    assert!(!served.is_over(id));
}

#[test]
fn commands_in_a_row_are_each_answered_in_order() {
    let (mut commands, mut answers) = (Vec::new(), Vec::new());
    for token in 0..100 {
        let (text, unknown) = (format!("\"{token}\x03\0\""), token % 3 == 0);
        let service = if unknown { "Nobody" } else { "Diagnostics" };
        commands.extend(command(&token.to_string(), service, "echo", &[&text]));
        answers.extend(match unknown {
            true => format!("N\0{token}\0\x03\x01").into_bytes(),
            false => format!("R\0{token}\0\"{token}\\u0003\"\0\x03\x01").into_bytes(),
        });
    }
    for len in [commands.len(), 1, 7, 1000] {
        let mut served = served();
        let id = served.client();
        assert_eq!(served.say_in_pieces(id, &commands, len), answers);
    }
}

#[test]
fn a_session_is_wanted_while_somebody_has_said_hello() {
    let mut served = served();
    let attached = |attached| {
        Order::Demand(Demand {
            attached,
            ..Demand::default()
        })
    };
    let silent = served.open();
    assert_eq!(served.agent.orders(), []);
    let first = served.client();
    assert_eq!(served.agent.orders(), [attached(true)]);
    let second = served.client();
    served.agent.close(first);
    assert_eq!(served.agent.orders(), []);
    // The end of a stream counts, even before the connection has gone.
    served.say(second, b"\x03\x02\0\x03\x01");
    assert_eq!(served.agent.orders(), [attached(false)]);
    served.agent.close(second);
    served.agent.close(silent);
    served.later(Duration::from_secs(1));
    assert_eq!(served.agent.orders(), []);
}

/// What a client counts begins with the answer to its configuration.
#[test]
fn a_configuration_is_answered_when_it_is_sampled_so() {
    let mut served = served();
    served.agent.is_told();
    let id = served.client();
    let [Order::Demand(demand)] = &served.agent.orders()[..] else {
        panic!("nothing is demanded");
    };
    served.agent.ready(served.now);
    let configure = |token| command(token, "Profiler", "configure", &["\"P1\"", "{}"]);
    let answer = |token| format!("R\0{token}\0\0\x03\x01");
    assert_eq!(served.say(id, &configure("1")), b"");
    assert_eq!(served.agent.orders(), []);
    assert_eq!(served.read(id), b"");
    served.agent.adjusted(&Demand::default(), served.now);
    assert_eq!(served.read(id), b"", "of another demand");
    served.agent.adjusted(demand, served.now);
    assert_eq!(text(&served.read(id)), answer("1"));
    // Nothing new is wanted: it is so already, as soon as that is known.
    served.say(id, &configure("2"));
    assert_eq!(served.agent.orders(), []);
    assert_eq!(text(&served.read(id)), answer("2"));
}

/// Nobody waits for ever, and who goes gets what was asked for.
#[test]
fn a_configuration_that_takes_too_long_is_answered_nevertheless() {
    let mut served = served();
    served.agent.is_told();
    let (patient, gone) = (served.client(), served.client());
    assert_eq!(served.agent.orders().len(), 1);
    served.agent.ready(served.now);
    let configure = command("1", "Profiler", "configure", &["\"P1\"", "{}"]);
    for id in [patient, gone] {
        assert_eq!(served.say(id, &configure), b"");
    }
    served.agent.end_of_input(gone);
    assert!(text(&served.read(gone)).starts_with("R\x001\0\0\x03\x01"));
    served.later(Duration::from_secs(2));
    assert_eq!(served.read(patient), b"");
    served.later(Duration::from_secs(2));
    assert_eq!(text(&served.read(patient)), "R\x001\0\0\x03\x01");
}

#[test]
fn clients_that_come_and_go_make_few_demands() {
    let mut served = served();
    let mut demands = Vec::new();
    for _ in 0..50 {
        let id = served.client();
        demands.extend(served.agent.orders());
        served.agent.close(id);
        demands.extend(served.agent.orders());
    }
    assert!(demands.len() <= 4, "{}", demands.len());
    let id = served.client();
    served.later(Duration::from_millis(100));
    demands.extend(served.agent.orders());
    // The last one is what holds.
    assert!(matches!(demands.last(), Some(Order::Demand(last)) if last.attached));
    served.agent.close(id);
    assert_eq!(served.agent.orders(), [Order::Demand(Demand::default())]);
}

#[test]
fn there_are_no_more_channels_than_allowed() {
    let mut served = Served::new(Limits {
        channels: 2,
        ..Limits::default()
    });
    let first = served.client();
    served.client();
    let peer = tcf_channel::peer();
    let refused = served.agent.open(peer).unwrap_err();
    assert_eq!(
        text(&refused.0),
        "\x03\x02{\"Code\":1,\"Format\":\"there are 2 channels already\"}\0\x03\x01"
    );
    served.agent.close(first);
    served.client();
}
