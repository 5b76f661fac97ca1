//! What the fields of a frame mean: commands, their answers, events.
//!
//! Names of services are text, so that what is none is a service that nobody knows. What does not
//! belong here: which services there are, and which token is whose.

use std::borrow::Cow;

use super::Frame;

/// A message. Tokens and arguments are bytes as the peer has written them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Asks a service to do something.
    Command {
        /// Names the command in its answers.
        token: Cow<'a, [u8]>,
        /// Which service.
        service: Cow<'a, str>,
        /// What it is to do.
        command: Cow<'a, str>,
        /// With what, each in JSON.
        arguments: Vec<Cow<'a, [u8]>>,
    },
    /// The last answer to a command.
    Result {
        /// That of the command.
        token: Cow<'a, [u8]>,
        /// What came of it, each in JSON.
        arguments: Vec<Cow<'a, [u8]>>,
    },
    /// An answer before the last.
    Progress {
        /// That of the command.
        token: Cow<'a, [u8]>,
        /// What came of it so far, each in JSON.
        arguments: Vec<Cow<'a, [u8]>>,
    },
    /// The last answer to a command that nobody knows.
    Unknown {
        /// That of the command.
        token: Cow<'a, [u8]>,
    },
    /// Something happened.
    Event {
        /// To which service.
        service: Cow<'a, str>,
        /// What.
        event: Cow<'a, str>,
        /// More of it, each in JSON.
        arguments: Vec<Cow<'a, [u8]>>,
    },
    /// How busy the peer is. Accepted only: there are clients that end when they get one.
    FlowControl {
        /// From -100, idle, to 100.
        level: i8,
    },
}

/// A frame that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Its first field is no letter of a kind.
    #[error("'{0}' is no kind of a message")]
    Kind(String),
    /// It has not all the fields of its kind, or they are not what they should be.
    #[error("a message of kind {0} without its fields")]
    Fields(char),
}

impl<'a> Message<'a> {
    /// Reads a frame.
    pub fn decode(frame: &'a Frame) -> Result<Message<'a>, MessageError> {
        let mut fields = frame.fields();
        let kind = match fields.next() {
            Some(&[kind]) => char::from(kind),
            other => {
                let text = String::from_utf8_lossy(other.unwrap_or_default());
                let shown = text.chars().take(20).flat_map(char::escape_debug);
                return Err(MessageError::Kind(shown.collect()));
            }
        };
        let mut next = || fields.next().ok_or(MessageError::Fields(kind));
        Ok(match kind {
            'C' => Message::Command {
                token: next()?.into(),
                service: String::from_utf8_lossy(next()?),
                command: String::from_utf8_lossy(next()?),
                arguments: fields.map(Cow::Borrowed).collect(),
            },
            'R' => Message::Result {
                token: next()?.into(),
                arguments: fields.map(Cow::Borrowed).collect(),
            },
            'P' => Message::Progress {
                token: next()?.into(),
                arguments: fields.map(Cow::Borrowed).collect(),
            },
            'N' => Message::Unknown {
                token: next()?.into(),
            },
            'E' => Message::Event {
                service: String::from_utf8_lossy(next()?),
                event: String::from_utf8_lossy(next()?),
                arguments: fields.map(Cow::Borrowed).collect(),
            },
            'F' => {
                let level = String::from_utf8_lossy(next()?).parse();
                let level: i8 = level.map_err(|_| MessageError::Fields(kind))?;
                Message::FlowControl { level }
            }
            _ => return Err(MessageError::Kind(kind.escape_debug().collect())),
        })
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut frame = Frame::default();
        let none = Vec::new();
        let arguments = match self {
            Message::Command {
                token,
                service,
                command,
                arguments,
            } => {
                for field in [b"C", &**token, service.as_bytes(), command.as_bytes()] {
                    frame.push(field);
                }
                arguments
            }
            Message::Result { token, arguments } => {
                frame.push(b"R");
                frame.push(token);
                arguments
            }
            Message::Progress { token, arguments } => {
                frame.push(b"P");
                frame.push(token);
                arguments
            }
            Message::Unknown { token } => {
                frame.push(b"N");
                frame.push(token);
                &none
            }
            Message::Event {
                service,
                event,
                arguments,
            } => {
                for field in [b"E", service.as_bytes(), event.as_bytes()] {
                    frame.push(field);
                }
                arguments
            }
            Message::FlowControl { level } => {
                frame.push(b"F");
                frame.push(level.to_string().as_bytes());
                &none
            }
        };
        for argument in arguments {
            frame.push(argument);
        }
        frame.encode(out);
    }
}
