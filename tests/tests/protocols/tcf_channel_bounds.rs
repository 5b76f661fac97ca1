//! A TCF channel whatever comes: the same output however bytes are cut, no panic, bounded memory, one
//! answer for each command, and limits that end what they should and nothing else.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;

use profiler_serve::front::Replay;
use profiler_serve::tcf::{ChannelId, Limits, TcfOptions};
use profiler_tests::tcf_channel::{
    CLIENT_HELLO, COMMANDS, HELLO, Served, answers, command, options, peer, without_times,
};

/// An agent that shows an empty capture.
fn served(limits: Limits) -> Served {
    let mut served = Served::with(TcfOptions {
        replay: Some(Replay::AtOnce),
        ..options(limits)
    });
    served.agent.ready(served.now);
    served
}

fn get_children(token: usize) -> Vec<u8> {
    command(&token.to_string(), "RunControl", "getChildren", &["null"])
}

/// A message as a client may send it: right, nearly right, or no message at all.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let arguments = prop::sample::select(vec![
        "null",
        "\"P100\"",
        "\"P100.101\"",
        "0",
        "-1",
        "18446744073709551615",
        "{\"FrameCnt\":1}",
        "{}",
        "[]",
        "[[[",
        "true",
        "1e400",
        "\"\\ud800\"",
        "",
    ]);
    let known = (0..COMMANDS.len(), prop::option::weighted(0.3, arguments));
    let right = known.prop_map(|(at, other)| {
        let (service, name, arguments) = COMMANDS[at];
        let mut arguments = arguments.to_vec();
        if let (Some(other), Some(first)) = (other, arguments.first_mut()) {
            *first = other;
        }
        command("t\u{e9}", service, name, &arguments)
    });
    let part = prop::sample::select(vec![
        &b"C\0"[..],
        b"E\0Locator\0Hello\0[]\0\x03\x01",
        b"F\x0050\0\x03\x01",
        b"R\x001\0",
        b"1\0",
        b"\0",
        b"\x03",
        b"\x03\0",
        b"\x03\x01",
        b"\x03\x02",
        b"\x03\x03",
        b"\x03\x03\x05",
        b"\xff",
        b"{\"a\":",
        b"Diagnostics\0echo\0",
    ]);
    let parts = prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat());
    prop_oneof![8 => right, 1 => parts]
}

proptest! {
    #[test]
    fn the_output_is_the_same_however_bytes_are_cut(
        messages in prop::collection::vec(messages(), 0..40),
        cuts in prop::collection::vec(1_usize..50, 1..20),
    ) {
        let bytes = messages.concat();
        let mut served = served(Limits::default());
        let whole = served.client();
        let expected = served.say(whole, &bytes);
        let other = served.client();
        let (mut rest, mut out) = (&bytes[..], Vec::new());
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            out.extend(served.say(other, piece));
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        // An answer that has to be looked for comes later.
        served.later(Duration::from_secs(10));
        let expected = [expected, served.read(whole)].concat();
        out.extend(served.read(other));
        prop_assert_eq!(without_times(&out), without_times(&expected));
        prop_assert_eq!(served.is_over(whole), served.is_over(other));
    }

    #[test]
    fn hostile_bytes_cost_a_channel_at_most(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        with_hello: bool,
    ) {
        let limits = Limits { message_bytes: 1000, output_bytes: 4000, ..Limits::default() };
        let mut served = served(limits);
        let (good, bad) = (served.client(), served.open());
        if with_hello {
            served.agent.receive(bad, CLIENT_HELLO, served.now);
        }
        for mut piece in &pieces[..] {
            let mut tamed: Vec<u8>;
            // Half of them look a little like messages.
            if piece.len() % 2 == 0 {
                tamed = b"C\x001\0Diagnostics\0echo\0".to_vec();
                tamed.extend(piece.iter().filter(|byte| **byte != 3));
                tamed.extend(b"\0\x03\x01");
                piece = &tamed;
            }
            served.agent.receive(bad, piece, served.now);
            if let Some(output) = served.agent.output(bad) {
                prop_assert!(output.bytes().len() < 4000 + 1000);
            }
            served.later(Duration::from_millis(100));
        }
        prop_assert_eq!(served.say(good, &command("1", "Locator", "sync", &[])), b"R\x001\0\0\x03\x01");
    }

    #[test]
    fn each_command_gets_one_answer(
        which in prop::collection::vec(0..COMMANDS.len(), 1..200),
        len in 1_usize..2000,
    ) {
        let mut served = served(Limits::default());
        let id = served.client();
        let mut bytes = Vec::new();
        for (token, &at) in which.iter().enumerate() {
            let (service, name, arguments) = COMMANDS[at];
            bytes.extend(command(&token.to_string(), service, name, arguments));
        }
        let mut out = served.say_in_pieces(id, &bytes, len);
        served.later(Duration::from_secs(10));
        out.extend(served.read(id));
        prop_assert!(!served.is_over(id), "{}", String::from_utf8_lossy(&out));
        let mut tokens: Vec<usize> =
            answers(&out).into_iter().map(|(_, token)| token.parse().unwrap()).collect();
        tokens.sort_unstable();
        prop_assert_eq!(tokens, (0..which.len()).collect::<Vec<_>>());
    }
}

/// The tokens of answers.
fn tokens(bytes: &[u8]) -> Vec<String> {
    answers(bytes).into_iter().map(|(_, token)| token).collect()
}

fn waiting(limits: Limits) -> (Served, ChannelId) {
    let mut served = Served::new(limits);
    let id = served.client();
    (served, id)
}

#[test]
fn commands_wait_for_what_they_ask_about_in_order() {
    let (mut served, id) = waiting(Limits::default());
    let mut asked: Vec<u8> = (0..10).flat_map(get_children).collect();
    asked.extend(command("sync", "Locator", "sync", &[]));
    asked.extend(command("none", "Nobody", "getChildren", &["null"]));
    assert_eq!(tokens(&served.say(id, &asked)), ["sync", "none"]);
    served.later(Duration::from_secs(1));
    assert_eq!(served.read(id), b"");
    served.agent.ready(served.now);
    let expected: Vec<String> = (0..10).map(|token| token.to_string()).collect();
    assert_eq!(tokens(&served.read(id)), expected);
    served.later(Duration::from_secs(10));
    assert_eq!(served.read(id), b"");
    // What is known is answered at once, until it is old.
    assert_eq!(
        served.say(id, &get_children(11)),
        b"R\x0011\0\0[]\0\x03\x01"
    );
    served.agent.detached();
    assert_eq!(served.say(id, &get_children(12)), b"");
}

#[test]
fn patience_ends() {
    let (mut served, id) = waiting(Limits::default());
    // While a session is being attached it is longer by half a minute.
    assert_eq!(served.say(id, &get_children(1)), b"");
    served.later(Duration::from_millis(32_900));
    assert_eq!(served.say(id, &get_children(2)), b"");
    served.later(Duration::from_millis(200));
    assert_eq!(tokens(&served.read(id)), ["1"]);
    served.later(Duration::from_millis(32_900));
    assert_eq!(tokens(&served.read(id)), ["2"]);
}

#[test]
fn no_more_commands_wait_than_allowed() {
    let limits = Limits {
        pending: 3,
        ..Limits::default()
    };
    let (mut served, id) = waiting(limits);
    let asked: Vec<u8> = (0..5).flat_map(get_children).collect();
    let refused = served.say(id, &asked);
    // They are answered by what is known: nothing yet.
    assert_eq!(refused, b"R\x003\0\0[]\0\x03\x01R\x004\0\0[]\0\x03\x01");
    served.agent.ready(served.now);
    assert_eq!(tokens(&served.read(id)), ["0", "1", "2"]);

    // The same by their size: one that is large by itself may wait.
    let limits = Limits {
        message_bytes: 10_000,
        ..Limits::default()
    };
    let (mut served, id) = waiting(limits);
    let large = format!("\"{}\"", "x".repeat(6_000));
    for token in ["1", "2"] {
        let out = served.say(id, &command(token, "RunControl", "getChildren", &[&large]));
        assert_eq!(out.is_empty(), token == "1");
    }
}

#[test]
fn what_a_closed_channel_has_asked_for_is_forgotten() {
    let (mut served, id) = waiting(Limits::default());
    let other = served.client();
    served.say(id, &get_children(1));
    served.say(other, &get_children(2));
    served.agent.close(id);
    served.agent.ready(served.now);
    assert_eq!(served.read(id), b"");
    assert_eq!(tokens(&served.read(other)), ["2"]);
}

#[test]
fn a_session_that_can_not_be_is_said_to_those_who_need_it() {
    let (mut served, id) = waiting(Limits::default());
    served.say(id, &get_children(1));
    served.agent.trouble("no CAP_BPF".to_owned(), served.now);
    for token in [1, 2] {
        let answer = match token {
            1 => served.read(id),
            _ => served.say(id, &get_children(token)),
        };
        let answer = String::from_utf8(without_times(&answer)).unwrap();
        assert_eq!(
            answer,
            format!("R\0{token}\0{{\"Code\":1,,\"Format\":\"no CAP_BPF\"}}\0[]\0\x03\x01")
        );
    }
    // Clients take this flag for one without looking at the error.
    let state = served.say(id, &command("6", "RunControl", "getState", &["\"P1\""]));
    assert!(state.ends_with(b"}\0false\x000\0null\0null\0\x03\x01"));
    // Others do not need it.
    let sync = command("3", "Locator", "sync", &[]);
    assert_eq!(served.say(id, &sync), b"R\x003\0\0\x03\x01");
    let unknown = command("4", "RunControl", "fly", &[]);
    assert_eq!(served.say(id, &unknown), b"N\x004\0\x03\x01");
    served.agent.ready(served.now);
    assert_eq!(served.say(id, &get_children(5)), b"R\x005\0\0[]\0\x03\x01");
}

#[test]
fn who_does_not_read_is_not_listened_to_either() {
    let limits = Limits {
        output_bytes: 4_000,
        ..Limits::default()
    };
    let mut served = served(limits);
    let id = served.client();
    let text = format!("\"{}\"", "x".repeat(98));
    let echo = command("1", "Diagnostics", "echo", &[&text]);
    let flood = echo.repeat(100);
    let mut taken = 0;
    for _ in 0..10 {
        taken += served.agent.receive(id, &flood[taken..], served.now);
    }
    assert!(taken < 15 * echo.len(), "{taken}");
    // Nothing of it is lost once it reads.
    let first = served.read(id);
    let rest = served.say(id, &flood[taken..]);
    assert_eq!(answers(&first).len() + answers(&rest).len(), 100);
}

#[test]
fn what_nobody_reads_is_not_kept() {
    let limits = Limits {
        output_bytes: 1_000,
        ..Limits::default()
    };
    let (mut served, laggard) = waiting(limits);
    let other = served.client();
    served.say(other, &get_children(1));
    let asked: Vec<u8> = (0..200).flat_map(get_children).collect();
    assert_eq!(served.say(laggard, &asked), b"");
    served.agent.ready(served.now);
    // Where the machine did something else for the time of a turn, those who are left have the next.
    for _ in 0..100 {
        if served.agent.output(laggard).unwrap().is_last() {
            break;
        }
        served.later(Duration::ZERO);
    }
    let output = served.agent.output(laggard).unwrap();
    assert!(output.is_last() && output.is_broken());
    assert_eq!(output.bytes(), b"");
    assert_eq!(served.agent.summary().laggards, 1);
    assert_eq!(tokens(&served.read(other)), ["1"]);
    // One message may be larger than what may wait.
    let long = format!("\"{}\"", "x".repeat(5_000));
    let echo = command("2", "Diagnostics", "echo", &[&long]);
    assert!(served.say(other, &echo).len() > 5_000);
    assert!(!served.is_over(other));
}

#[test]
fn a_client_whose_commands_cost_much_leaves_time_to_others() {
    let mut served = served(Limits {
        output_bytes: 1 << 30,
        ..Limits::default()
    });
    let id = served.client();
    let text = format!("\"{}\"", "x".repeat(2 << 20));
    let count = 40;
    let echo = |token: usize| command(&token.to_string(), "Diagnostics", "echo", &[&text]);
    let commands: Vec<u8> = (0..count).flat_map(echo).collect();
    let taken = served.agent.receive(id, &commands, served.now);
    assert!(0 < taken && taken < commands.len());
    let mut out = served.read(id);
    out.extend(served.say(id, &commands[taken..]));
    assert_eq!(tokens(&out).len(), count);
}

#[test]
fn who_makes_us_keep_most_gives_way() {
    let mut served = served(Limits {
        channel_bytes: 10_000,
        ..Limits::default()
    });
    let [small, middle, large] = [1_000, 6_000, 8_000].map(|len| {
        let id = served.client();
        // The rest of the message does not come.
        assert_eq!(served.say(id, &b"x".repeat(len)), b"");
        id
    });
    served.later(Duration::from_secs(1));
    assert!(served.is_over(large));
    assert!(!served.is_over(middle) && !served.is_over(small));
    let summary = served.agent.summary();
    assert_eq!((summary.heavy, summary.laggards), (1, 0));
}

#[test]
fn who_says_no_hello_is_sent_away() {
    let limits = Limits {
        channels: 3,
        ..Limits::default()
    };
    let limit = limits.greeting;
    let mut served = served(limits);
    let greeted = served.client();
    let silent = [served.open(), served.open()];
    served.later(Duration::ZERO);
    served.later(limit - Duration::from_millis(1));
    assert!(!silent.map(|id| served.is_over(id)).contains(&true));
    served.later(Duration::from_millis(1));
    for id in silent {
        let said = served.read(id);
        let said = String::from_utf8_lossy(&said[HELLO.len()..]).into_owned();
        assert_eq!(
            said,
            "\x03\x02{\"Code\":3,\"Format\":\"no Hello came within 10 s\"}\0\x03\x01"
        );
        assert!(served.is_over(id));
        served.agent.close(id);
    }
    assert!(!served.is_over(greeted));
    assert!(served.agent.open(peer()).is_ok());
}

/// However many say nothing, who comes is served: the one that has been silent longest gives way. Who has said Hello does not.
#[test]
fn silent_channels_give_way() {
    let mut served = served(Limits {
        channels: 2,
        ..Limits::default()
    });
    let first = served.open();
    let second = served.open();
    let good = served.client();
    assert!(served.is_over(first) && !served.is_over(second));
    let other = served.client();
    assert!(served.is_over(second));
    assert!(served.agent.open(peer()).is_err());
    assert!(!served.is_over(good) && !served.is_over(other));
}
