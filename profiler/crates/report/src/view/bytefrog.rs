//! Messages of Bytefrog for people: a line for each.
//!
//! Bytes of a connection, of either side, or of all messages of a run -> lines of text: the connection, the kind of
//! message, its fields by name. Times are seconds since tracing began; methods, threads and exceptions have the names
//! that were told before. What does not belong here: byte layouts (`wire::bytefrog`), reading files.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use profiler_wire::bytefrog::{
    AgentMessage, Channel, Configuration, DecodeError, HqMessage, Mode, UNKNOWN_LINE,
};

/// Most bytes of names that are remembered; a name that is told later is shown where it is told.
const MAX_NAMES: usize = 64 << 20;

/// Whose messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// An agent's, to its HQ.
    Agent,
    /// An HQ's, to an agent.
    Hq,
}

impl Speaker {
    /// Whose messages begin like this. A connection of an agent begins with a greeting, what an HQ says with a
    /// configuration, or the answer to a greeting; but for a hello, whose version is 1, nothing begins with 0.
    pub fn of(head: &[u8]) -> Option<Speaker> {
        match head {
            [0, 1, ..] | [30, ..] => Some(Speaker::Agent),
            // The length of a configuration, which is at most 4 MiB.
            [1, 0, 0..=0x40, ..] | [31, ..] => Some(Speaker::Hq),
            _ => None,
        }
    }
}

/// Prints messages one by one.
#[derive(Debug)]
pub struct Printer {
    speaker: Speaker,
    methods: FxHashMap<u32, Box<str>>,
    exceptions: FxHashMap<u32, Box<str>>,
    threads: FxHashMap<u16, Box<str>>,
    bytes: usize,
}

impl Printer {
    /// For messages of one side.
    pub fn new(speaker: Speaker) -> Printer {
        Printer {
            speaker,
            methods: FxHashMap::default(),
            exceptions: FxHashMap::default(),
            threads: FxHashMap::default(),
            bytes: 0,
        }
    }

    /// Appends the line of the first message of `bytes`, and says how long that message is; none if it has not come whole.
    pub fn message(
        &mut self,
        bytes: &[u8],
        out: &mut String,
    ) -> Result<Option<usize>, DecodeError> {
        let len = match self.speaker {
            Speaker::Agent => match AgentMessage::decode(bytes)? {
                Some((message, len)) => {
                    self.agent(&message, out);
                    len
                }
                None => return Ok(None),
            },
            Speaker::Hq => match HqMessage::decode(bytes)? {
                Some((message, len)) => {
                    hq(&message, out);
                    len
                }
                None => return Ok(None),
            },
        };
        out.push('\n');
        Ok(Some(len))
    }

    fn agent(&mut self, message: &AgentMessage<'_>, out: &mut String) {
        out.push_str(match message {
            AgentMessage::DataHello { .. } => "data ",
            _ => match message.channel() {
                Channel::Greeting | Channel::Control => "control ",
                Channel::Data => "data ",
                Channel::Any => "any ",
            },
        });
        // What is written to a text never fails.
        let _ = match *message {
            AgentMessage::Hello { version } => write!(out, "hello version={version}"),
            AgentMessage::DataHello { run } => write!(out, "hello run={run}"),
            AgentMessage::Heartbeat { mode, filled } => {
                write!(out, "heartbeat mode={} buffers={filled}", mode_name(mode))
            }
            AgentMessage::DataBreak { sequence } => write!(out, "break seq={sequence}"),
            AgentMessage::ClassTransformed(ref name) => write!(out, "class-traced name={name:?}"),
            AgentMessage::ClassIgnored(ref name) => write!(out, "class-ignored name={name:?}"),
            AgentMessage::ClassTransformFailed(ref name) => {
                write!(out, "class-failed name={name:?}")
            }
            AgentMessage::MapThreadName {
                thread,
                at_ms,
                ref name,
            } => {
                remember(&mut self.threads, &mut self.bytes, thread, name);
                time(out, "map-thread", at_ms, None);
                write!(out, " thread={thread} name={name:?}")
            }
            AgentMessage::MapMethodSignature {
                method,
                ref signature,
            } => {
                remember(&mut self.methods, &mut self.bytes, method, signature);
                write!(out, "map-method method={method} name={signature:?}")
            }
            AgentMessage::MapException {
                exception,
                ref name,
            } => {
                remember(&mut self.exceptions, &mut self.bytes, exception, name);
                write!(out, "map-exception exception={exception} name={name:?}")
            }
            AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            } => {
                time(out, "entry", at_ms, Some(sequence));
                self.place(out, thread, method);
                Ok(())
            }
            AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            } => {
                time(out, "exit", at_ms, Some(sequence));
                self.place(out, thread, method);
                line_number(out, line);
                Ok(())
            }
            AgentMessage::Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            } => {
                time(out, "exception", at_ms, Some(sequence));
                self.place(out, thread, method);
                line_number(out, line);
                named(out, "exception", exception, &self.exceptions);
                Ok(())
            }
            AgentMessage::ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            } => {
                time(out, "bubble", at_ms, Some(sequence));
                self.place(out, thread, method);
                named(out, "exception", exception, &self.exceptions);
                Ok(())
            }
            AgentMessage::Marker {
                at_ms,
                sequence,
                ref key,
                ref value,
            } => {
                time(out, "marker", at_ms, Some(sequence));
                write!(out, " key={key:?} value={value:?}")
            }
            AgentMessage::Error(ref error) => write!(out, "error text={error:?}"),
        };
    }

    fn place(&self, out: &mut String, thread: u16, method: u32) {
        named(out, "thread", thread, &self.threads);
        named(out, "method", method, &self.methods);
    }
}

fn time(out: &mut String, what: &str, at_ms: u32, sequence: Option<u32>) {
    let _ = write!(out, "{what} at={}.{:03}", at_ms / 1000, at_ms % 1000);
    if let Some(sequence) = sequence {
        let _ = write!(out, " seq={sequence}");
    }
}

/// A number and its name, if that is known.
fn named<N: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    out: &mut String,
    what: &str,
    number: N,
    names: &FxHashMap<N, Box<str>>,
) {
    let _ = match names.get(&number) {
        Some(name) => write!(out, " {what}={number}:{name:?}"),
        None => write!(out, " {what}={number}"),
    };
}

fn line_number(out: &mut String, line: u16) {
    if line != UNKNOWN_LINE {
        let _ = write!(out, " line={line}");
    }
}

fn remember<N: Eq + std::hash::Hash>(
    names: &mut FxHashMap<N, Box<str>>,
    bytes: &mut usize,
    number: N,
    name: &str,
) {
    if *bytes + name.len() <= MAX_NAMES {
        *bytes += name.len() + 48;
        names.insert(number, name.into());
    } else {
        // A wrong name is worse than none.
        names.remove(&number);
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Initializing => "initializing",
        Mode::Tracing => "tracing",
        Mode::Paused => "paused",
        Mode::Suspended => "suspended",
        Mode::ShuttingDown => "shutting-down",
    }
}

fn hq(message: &HqMessage, out: &mut String) {
    let _ = match message {
        HqMessage::Configuration(bytes) => match Configuration::decode(bytes) {
            Ok(it) => write!(out, "configuration {it:?}"),
            Err(error) => write!(
                out,
                "configuration bytes={} unreadable={:?}",
                bytes.len(),
                error.to_string()
            ),
        },
        HqMessage::Start => write!(out, "start"),
        HqMessage::Stop => write!(out, "stop"),
        HqMessage::Pause => write!(out, "pause"),
        HqMessage::Unpause => write!(out, "unpause"),
        HqMessage::Suspend => write!(out, "suspend"),
        HqMessage::Unsuspend => write!(out, "unsuspend"),
        HqMessage::DataHelloReply => write!(out, "hello-reply"),
        HqMessage::Error(error) => write!(out, "error text={error:?}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(speaker: Speaker, mut bytes: &[u8]) -> String {
        let (mut printer, mut out) = (Printer::new(speaker), String::new());
        while let Some(len) = printer.message(bytes, &mut out).unwrap() {
            bytes = &bytes[len..];
        }
        assert_eq!(bytes, b"");
        out
    }

    #[test]
    fn names_that_were_told_are_shown_and_can_steer_nothing() {
        let mut bytes = Vec::new();
        AgentMessage::DataHello { run: 7 }.encode(&mut bytes);
        AgentMessage::MapMethodSignature {
            method: 5,
            signature: "a\u{1b}[31m \"b\"\n".into(),
        }
        .encode(&mut bytes);
        for (at_ms, sequence, method) in [(1002, 0, 5), (1003, 1, 6)] {
            AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread: 3,
            }
            .encode(&mut bytes);
        }
        assert_eq!(
            printed(Speaker::Agent, &bytes),
            "data hello run=7\n\
             data map-method method=5 name=\"a\\u{1b}[31m \\\"b\\\"\\n\"\n\
             data entry at=1.002 seq=0 thread=3 method=5:\"a\\u{1b}[31m \\\"b\\\"\\n\"\n\
             data entry at=1.003 seq=1 thread=3 method=6\n"
        );
    }

    #[test]
    fn what_an_hq_says_is_read_too() {
        let mut bytes = Vec::new();
        HqMessage::Configuration(vec![1, 2]).encode(&mut bytes);
        HqMessage::Start.encode(&mut bytes);
        HqMessage::Error("no".into()).encode(&mut bytes);
        assert_eq!(Speaker::of(&bytes), Some(Speaker::Hq));
        let text = printed(Speaker::Hq, &bytes);
        assert!(
            text.starts_with("configuration bytes=2 unreadable="),
            "{text}"
        );
        assert!(text.ends_with("\nstart\nerror text=\"no\"\n"), "{text}");
    }

    #[test]
    fn the_first_bytes_tell_whose_they_are() {
        for (head, whose) in [
            (&b"\0\x01\x08I\0\0"[..], Some(Speaker::Agent)),
            (b"\x1e\0", Some(Speaker::Agent)),
            (b"\x01\0\0\x01\0", Some(Speaker::Hq)),
            (b"\x1f", Some(Speaker::Hq)),
            (b"go 1.22 trace\0\0\0", None),
            (b"Trace Go1.22\n", None),
            (b"", None),
            (b"\0\x02", None),
        ] {
            assert_eq!(Speaker::of(head), whose, "{head:?}");
        }
    }
}
