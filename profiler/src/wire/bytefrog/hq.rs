//! What an HQ sends to an agent.

use super::{DecodeError, Fields, MAX_CONFIGURATION_BYTES, text};

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

    /// The first message of `bytes` and its length; nothing if it has not come whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(HqMessage, usize)>, DecodeError> {
        let mut fields = Fields(bytes);
        let message = HqMessage::take(&mut fields)?;
        Ok(message.map(|message| (message, bytes.len() - fields.0.len())))
    }

    fn take(fields: &mut Fields<'_>) -> Result<Option<HqMessage>, DecodeError> {
        let Some(id) = fields.u8() else {
            return Ok(None);
        };
        Ok(Some(match id {
            CONFIGURATION => {
                let Some(len) = fields.u32() else {
                    return Ok(None);
                };
                if len as usize > MAX_CONFIGURATION_BYTES {
                    return Err(DecodeError::TooLong(len));
                }
                match fields.bytes(len as usize) {
                    Some(bytes) => HqMessage::Configuration(bytes.to_vec()),
                    None => return Ok(None),
                }
            }
            START => HqMessage::Start,
            STOP => HqMessage::Stop,
            PAUSE => HqMessage::Pause,
            UNPAUSE => HqMessage::Unpause,
            SUSPEND => HqMessage::Suspend,
            UNSUSPEND => HqMessage::Unsuspend,
            DATA_HELLO_REPLY => HqMessage::DataHelloReply,
            ERROR => match fields.text() {
                Some(text) => HqMessage::Error(text?),
                None => return Ok(None),
            },
            id => return Err(DecodeError::UnknownId(id)),
        }))
    }
}
