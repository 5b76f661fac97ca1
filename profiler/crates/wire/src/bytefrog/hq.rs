//! What an HQ sends to an agent: messages -> bytes and back.
//!
//! What does not belong here: what is in a configuration ([`Configuration`](super::Configuration)).

use super::{DecodeError, Fields, MAX_CONFIGURATION_BYTES, Stop, text};

/// A message from HQ to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HqMessage {
    /// How the agent is to work: a serialized Java object. May come again until the start.
    Configuration(Vec<u8>),
    /// The program may run.
    Start,
    /// The run is to end.
    Stop,
    /// The program is to stand still.
    Pause,
    /// It may go on.
    Unpause,
    /// The program runs on without being traced.
    Suspend,
    /// It is traced again.
    Unsuspend,
    /// A data connection is accepted.
    DataHelloReply,
    /// A fatal error.
    Error(String),
}

const CONFIGURATION: u8 = 1;
const START: u8 = 2;
const STOP: u8 = 3;
const PAUSE: u8 = 4;
const UNPAUSE: u8 = 5;
const SUSPEND: u8 = 6;
const UNSUSPEND: u8 = 7;
const DATA_HELLO_REPLY: u8 = 31;
const ERROR: u8 = 99;

impl HqMessage {
    /// Appends the message. A configuration is written as it is, whatever its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            HqMessage::Configuration(bytes) => {
                out.push(CONFIGURATION);
                out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            HqMessage::Start => out.push(START),
            HqMessage::Stop => out.push(STOP),
            HqMessage::Pause => out.push(PAUSE),
            HqMessage::Unpause => out.push(UNPAUSE),
            HqMessage::Suspend => out.push(SUSPEND),
            HqMessage::Unsuspend => out.push(UNSUSPEND),
            HqMessage::DataHelloReply => out.push(DATA_HELLO_REPLY),
            HqMessage::Error(error) => {
                out.push(ERROR);
                text::put(error, out);
            }
        }
    }

    /// The first message of `bytes` and its length; nothing if it has not come whole. A configuration
    /// that is too long is refused before it has come.
    pub fn decode(bytes: &[u8]) -> Result<Option<(HqMessage, usize)>, DecodeError> {
        let mut fields = Fields(bytes);
        match HqMessage::take(&mut fields) {
            Ok(message) => Ok(Some((message, bytes.len() - fields.0.len()))),
            Err(Stop::Incomplete) => Ok(None),
            Err(Stop::Bad(error)) => Err(error),
        }
    }

    fn take(fields: &mut Fields<'_>) -> Result<HqMessage, Stop> {
        Ok(match fields.u8()? {
            CONFIGURATION => {
                let len = fields.u32()?;
                if len as usize > MAX_CONFIGURATION_BYTES {
                    return Err(DecodeError::TooLong(len).into());
                }
                HqMessage::Configuration(fields.bytes(len as usize)?.to_vec())
            }
            START => HqMessage::Start,
            STOP => HqMessage::Stop,
            PAUSE => HqMessage::Pause,
            UNPAUSE => HqMessage::Unpause,
            SUSPEND => HqMessage::Suspend,
            UNSUSPEND => HqMessage::Unsuspend,
            DATA_HELLO_REPLY => HqMessage::DataHelloReply,
            ERROR => HqMessage::Error(fields.text()?.into_owned()),
            id => return Err(DecodeError::UnknownId(id).into()),
        })
    }
}
