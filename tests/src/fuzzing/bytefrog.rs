//! Fuzzing of Bytefrog's protocol: what each side sends -> messages, configurations, filters.
//!
//! Input: a fuzzer's bytes; output: how much was understood, a broken promise is a panic. Integers are
//! big-endian.

use profiler_wire::bytefrog::{
    AgentMessage, Configuration, Filter, HqMessage, MAX_CONFIGURATION_BYTES,
};

/// Longest message whose every beginning is decoded, too.
const MAX_CUT_BYTES: usize = 64;
/// Texts behind this length can be cut when they are encoded again.
const MAX_EXACT_BYTES: usize = 20_000;
/// With more patterns a configuration can be too large to be read again.
const MAX_PATTERNS: usize = 10_000;

/// Decodes messages of an agent up to one that is wrong or not whole: how many.
pub fn bytefrog_agent(mut data: &[u8]) -> usize {
    let mut messages = 0;
    while let Ok(Some((message, len))) = AgentMessage::decode(data) {
        let (bytes, rest) = data.split_at(len);
        data = rest;
        messages += 1;
        for cut in 0..len.min(MAX_CUT_BYTES) {
            assert_eq!(AgentMessage::decode(&bytes[..cut]), Ok(None), "{message:?}");
        }
        let mut again = Vec::new();
        message.encode(&mut again);
        // A text that is the same in UTF-8, without zeros, is written in one way only.
        let plain = std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0);
        if texts(&message).is_empty() || plain {
            assert_eq!(again, bytes, "{message:?}");
        }
        if len < MAX_EXACT_BYTES {
            let decoded = AgentMessage::decode(&again);
            assert_eq!(decoded, Ok(Some((message.clone(), again.len()))));
        }
        assert_eq!(message.clone().into_owned(), message);
    }
    messages
}

fn texts<'a>(message: &'a AgentMessage<'_>) -> Vec<&'a str> {
    match message {
        AgentMessage::ClassTransformed(text)
        | AgentMessage::ClassIgnored(text)
        | AgentMessage::ClassTransformFailed(text)
        | AgentMessage::MapThreadName { name: text, .. }
        | AgentMessage::MapMethodSignature {
            signature: text, ..
        }
        | AgentMessage::MapException { name: text, .. }
        | AgentMessage::Error(text) => vec![text],
        AgentMessage::Marker { key, value, .. } => vec![key, value],
        _ => Vec::new(),
    }
}

/// Reads what an HQ sends: how many messages and configurations. If the first byte is odd, the rest is
/// the content of a configuration; if it is even, a row of messages.
pub fn bytefrog_hq(data: &[u8]) -> usize {
    let Some((mode, mut rest)) = data.split_first() else {
        return 0;
    };
    if mode % 2 == 1 {
        return configuration(rest);
    }
    let mut understood = 0;
    while let Ok(Some((message, len))) = HqMessage::decode(rest) {
        let (bytes, behind) = rest.split_at(len);
        rest = behind;
        understood += 1;
        for cut in 0..len.min(MAX_CUT_BYTES) {
            assert_eq!(HqMessage::decode(&bytes[..cut]), Ok(None), "{message:?}");
        }
        let mut again = Vec::new();
        message.encode(&mut again);
        match &message {
            HqMessage::Error(_) if len < MAX_EXACT_BYTES => {
                assert_eq!(HqMessage::decode(&again), Ok(Some((message, again.len()))));
            }
            HqMessage::Error(_) => {}
            HqMessage::Configuration(content) => {
                assert_eq!(again, bytes);
                understood += configuration(content);
            }
            _ => assert_eq!(again, bytes),
        }
    }
    understood
}

/// Whether it is one.
fn configuration(content: &[u8]) -> usize {
    let Ok(configuration) = Configuration::decode(content) else {
        return 0;
    };
    let patterns = configuration.inclusions.len() + configuration.exclusions.len();
    let again = configuration.encode();
    if patterns <= MAX_PATTERNS && again.len() <= MAX_CONFIGURATION_BYTES {
        assert_eq!(Configuration::decode(&again).as_ref(), Ok(&configuration));
    }
    let (filter, warnings) = Filter::new(&configuration);
    assert!(warnings.len() <= patterns);
    for warning in warnings {
        assert!(!warning.contains(char::is_control), "{warning:?}");
        assert!(warning.len() < 4096, "{warning:?}");
    }
    for path in ["", "libshop.so/cart/Cart/add", "é/\u{1f600}\0\n"] {
        let admitted = filter.admits(path);
        assert!(admitted || !filter.is_trivial(), "{path:?}");
    }
    1
}

/// What both fuzzers begin with.
pub(super) mod seeds {
    use profiler_wire::bytefrog::{AgentMessage, Configuration, HqMessage, Mode};

    /// Each message of an agent alone, and all in a row.
    pub(in super::super) fn agent() -> Vec<Vec<u8>> {
        let (at_ms, sequence, method, thread) = (1_000, 7, 3, 2);
        let (exception, line) = (1, 250);
        let messages = [
            AgentMessage::Hello { version: 1 },
            AgentMessage::DataHello { run: 1 },
            AgentMessage::Heartbeat {
                mode: Mode::Tracing,
                filled: 3,
            },
            AgentMessage::DataBreak { sequence },
            AgentMessage::ClassTransformed("libshop.so/cart/Cart".into()),
            AgentMessage::ClassIgnored("libc.so.6".into()),
            AgentMessage::ClassTransformFailed("libé.so\0".into()),
            AgentMessage::MapThreadName {
                thread,
                at_ms,
                name: "worker".into(),
            },
            AgentMessage::MapMethodSignature {
                method,
                signature: "libshop_so/cart/Cart.add;9;()V".into(),
            },
            AgentMessage::MapException {
                exception,
                name: "std::runtime_error \u{1f600}".into(),
            },
            AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            },
            AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            },
            AgentMessage::Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            },
            AgentMessage::ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            },
            AgentMessage::Marker {
                at_ms,
                sequence,
                key: "lost".into(),
                value: "12".into(),
            },
            AgentMessage::Error("no".into()),
        ];
        let mut seeds = vec![Vec::new()];
        for message in messages {
            let mut alone = Vec::new();
            message.encode(&mut alone);
            seeds[0].extend_from_slice(&alone);
            seeds.push(alone);
        }
        seeds
    }

    /// Messages of an HQ in a row, and configurations.
    pub(in super::super) fn hq() -> Vec<Vec<u8>> {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let filtering = Configuration {
            run: 200,
            inclusions: texts(&["libshop.so/[a-c&&[^b]]+?", "\\Qa.b\\E|(?i)x{2,3}"]),
            exclusions: texts(&["lib.*", "(?=no)", "\\w\\<T\\>é\u{1f600}"]),
            ..Configuration::default()
        };
        let mut row = vec![0];
        for message in [
            HqMessage::Configuration(Configuration::default().encode()),
            HqMessage::Suspend,
            HqMessage::Start,
            HqMessage::Unsuspend,
            HqMessage::Pause,
            HqMessage::Unpause,
            HqMessage::DataHelloReply,
            HqMessage::Configuration(filtering.encode()),
            HqMessage::Stop,
            HqMessage::Error("é\0\u{1f600}".to_owned()),
        ] {
            message.encode(&mut row);
        }
        let mut seeds = vec![row];
        let configurations = [Configuration::default(), filtering];
        seeds.extend(configurations.map(|it| [&[1], it.encode().as_slice()].concat()));
        seeds.extend(lists().map(|list| [&[1], in_object(list).as_slice()].concat()));
        seeds
    }

    /// Lists of other classes than the original's.
    fn lists() -> [&'static [u8]; 5] {
        [
            b"\x70",
            // An array in a field.
            b"\x73\x72\0\x01A12345678\x02\0\x01[\0\x01at\0\x02[L\x78\x70\
              \x75\x72\0\x03[LS12345678\x02\0\0\x78\x70\0\0\0\x03t\0\x01at\0\x01b\x70",
            // A list in a field, which its superclass has, too.
            b"\x73\x72\0\x01U12345678\x02\0\x01L\0\x04list\x71\0\x7e\0\x01\x78\
              \x72\0\x01C12345678\x02\0\x01L\0\x01c\x71\0\x7e\0\x01\x78\x70\
              \x73\x72\0\x01L12345678\x03\0\0\x78\x70\x77\x02\0\x01t\0\x01a\x78\
              \x71\0\x7e\0\x06",
            // A long text, a reference to it, a long block, a number, a constant of an enum.
            b"\x73\x72\0\x01L12345678\x03\0\x02J\0\x01jL\0\x01e\x71\0\x7e\0\x01\x78\x70\
              \0\0\0\0\0\0\0\x05\x7e\x72\0\x01E12345678\x12\0\0\x78\x70t\0\x01A\
              \x7a\0\0\0\x01!\x7c\0\0\0\0\0\0\0\x01a\x71\0\x7e\0\x08\x78",
            // A class, a proxy, an array of numbers in fields.
            b"\x73\x72\0\x01L12345678\x02\0\x03L\0\x01c\x71\0\x7e\0\x01L\0\x01p\x71\0\x7e\0\x01\
              [\0\x01nt\0\x02[I\x78\x70\x76\x72\0\x01K12345678\0\0\0\x78\x70\
              \x73\x7d\0\0\0\x01\0\x01I\x78\x70\
              \x75\x72\0\x02[I12345678\x02\0\0\x78\x70\0\0\0\x01\0\0\0\x07",
        ]
    }

    /// A configuration with inclusions only.
    fn in_object(list: &[u8]) -> Vec<u8> {
        let class = b"\xac\xed\0\x05\x73\x72\0\x1dx.RuntimeAgentConfigurationV112345678\x02\0\x01\
            L\0\x0ainclusionst\0\x10Ljava/util/List;\x78\x70";
        [class, list].concat()
    }
}
