//! How an HQ wants an agent to work: the content of its configuration message.
//!
//! Input: a [`Configuration`]; output: the bytes of the Java object that the original HQ sends, and
//! back. Numbers are as they were sent: nothing here says which make sense.
//!
//! Source: docs/formats/bytefrog.md. What does not belong here: what an agent does about it.

mod list;
mod stream;

use super::{MAX_CONFIGURATION_BYTES, text};
use stream::{Handled, Stream, Value};

/// The class of configurations that Bytefrog's agents know.
pub const BYTEFROG_CLASS: &str = "com.secdec.bytefrog.common.config.RuntimeAgentConfigurationV1";
/// The class of configurations that Code Pulse's agents know.
pub const CODE_PULSE_CLASS: &str =
    "com.codedx.codepulse.agent.common.config.RuntimeAgentConfigurationV1";

/// The class without its package, which differs.
const SIMPLE_CLASS: &[u8] = b"RuntimeAgentConfigurationV1";
/// The version of the class; the same in all packages.
const CLASS_UID: u64 = 0xbf53_efb7_761d_26c2;
/// That of `java.util.ArrayList`.
const ARRAY_LIST_UID: u64 = 0x7881_d21d_99c7_619d;

const BUFFER_MEMORY_BUDGET: &str = "bufferMemoryBudget";
const HEARTBEAT_INTERVAL: &str = "heartbeatInterval";
const NUM_DATA_SENDERS: &str = "numDataSenders";
const QUEUE_RETRY_COUNT: &str = "queueRetryCount";
const RUN_ID: &str = "runId";
const EXCLUSIONS: &str = "exclusions";
const INCLUSIONS: &str = "inclusions";

/// A configuration, version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Bytes of all send buffers of the agent together.
    pub buffer_memory_budget: i32,
    /// Milliseconds between two heartbeats.
    pub heartbeat_interval_ms: i32,
    /// Number of data connections.
    pub data_senders: i32,
    /// How often a full queue is tried again; of no use here.
    pub queue_retry_count: i32,
    /// The run that data connections name.
    pub run: u8,
    /// Java regular expressions of what is not to be traced.
    pub exclusions: Vec<String>,
    /// Java regular expressions of what is to be traced in any case.
    pub inclusions: Vec<String>,
}

impl Default for Configuration {
    /// What Bytefrog's own HQ sends unless it is told otherwise.
    fn default() -> Configuration {
        Configuration {
            buffer_memory_budget: 25_600,
            heartbeat_interval_ms: 1000,
            data_senders: 1,
            queue_retry_count: 5,
            run: 0,
            exclusions: Vec::new(),
            inclusions: Vec::new(),
        }
    }
}

/// A configuration that can't be understood. An agent can still work with the defaults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// There is less than its lengths say.
    #[error("the configuration ends within a value")]
    Cut,
    /// Not what `ObjectOutputStream` writes.
    #[error("byte {at} of the configuration does not fit in a Java object stream")]
    Syntax {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
    /// An object of another class, or none.
    #[error("the configuration is no RuntimeAgentConfigurationV1 but '{0}'")]
    Class(String),
    /// A field that holds something else than it should.
    #[error("field '{0}' of the configuration is not of its type")]
    Field(&'static str),
    /// More than any HQ has a use for.
    #[error("the configuration has more values, or deeper ones, than are accepted")]
    TooLarge,
}

impl Configuration {
    /// The bytes that Bytefrog's HQ sends.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(BYTEFROG_CLASS)
    }

    /// The same for agents that know the class by another name.
    pub fn encode_as(&self, class: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(&[0xac, 0xed, 0, 5, stream::OBJECT]);
        put_class(class, CLASS_UID, 2, 7, &mut out);
        for number in [
            BUFFER_MEMORY_BUDGET,
            HEARTBEAT_INTERVAL,
            NUM_DATA_SENDERS,
            QUEUE_RETRY_COUNT,
        ] {
            out.push(b'I');
            text::put(number, &mut out);
        }
        out.push(b'B');
        text::put(RUN_ID, &mut out);
        out.push(b'L');
        text::put(EXCLUSIONS, &mut out);
        out.push(stream::STRING);
        text::put("Ljava/util/List;", &mut out);
        out.push(b'L');
        text::put(INCLUSIONS, &mut out);
        // The type of the field before: the second thing of the stream.
        out.extend_from_slice(&[stream::REFERENCE, 0, 0x7e, 0, 1]);
        out.extend_from_slice(&[stream::END_BLOCK_DATA, stream::NULL]);
        for number in [
            self.buffer_memory_budget,
            self.heartbeat_interval_ms,
            self.data_senders,
            self.queue_retry_count,
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(self.run);
        out.push(stream::OBJECT);
        put_class("java.util.ArrayList", ARRAY_LIST_UID, 3, 1, &mut out);
        out.push(b'I');
        text::put("size", &mut out);
        out.extend_from_slice(&[stream::END_BLOCK_DATA, stream::NULL]);
        put_list(&self.exclusions, &mut out);
        // The class of the list before: the fourth thing of the stream.
        out.extend_from_slice(&[stream::OBJECT, stream::REFERENCE, 0, 0x7e, 0, 3]);
        put_list(&self.inclusions, &mut out);
        out
    }

    /// Reads a configuration. Fields go by their names, in any order; those that are not there have
    /// their defaults, and others are of no interest.
    pub fn decode(bytes: &[u8]) -> Result<Configuration, ConfigurationError> {
        if bytes.len() > MAX_CONFIGURATION_BYTES {
            return Err(ConfigurationError::TooLarge);
        }
        let mut stream = Stream::new(bytes)?;
        let root = match stream.value()? {
            Value::Handle(handle) => stream.get(handle),
            _ => &Handled::Opaque,
        };
        let Handled::Object(root) = root else {
            return Err(ConfigurationError::Class("not an object".to_owned()));
        };
        let class = stream.class_name(root.class);
        if class.rsplit(|&byte| byte == b'.').next() != Some(SIMPLE_CLASS) {
            return Err(ConfigurationError::Class(shown(class)));
        }
        let mut configuration = Configuration::default();
        for &(name, value) in &root.fields {
            let known = |known: &&str| known.as_bytes() == name;
            let numbers = [
                (
                    BUFFER_MEMORY_BUDGET,
                    &mut configuration.buffer_memory_budget,
                ),
                (HEARTBEAT_INTERVAL, &mut configuration.heartbeat_interval_ms),
                (NUM_DATA_SENDERS, &mut configuration.data_senders),
                (QUEUE_RETRY_COUNT, &mut configuration.queue_retry_count),
            ];
            if let Some((name, number)) = numbers.into_iter().find(|(name, _)| known(name)) {
                *number = integer(value).ok_or(ConfigurationError::Field(name))?;
            } else if known(&RUN_ID) {
                let run = integer::<i16>(value).filter(|run| (-128..=255).contains(run));
                configuration.run = run.ok_or(ConfigurationError::Field(RUN_ID))? as u8;
            } else if known(&EXCLUSIONS) {
                configuration.exclusions = list::texts(&stream, EXCLUSIONS, value)?;
            } else if known(&INCLUSIONS) {
                configuration.inclusions = list::texts(&stream, INCLUSIONS, value)?;
            }
        }
        Ok(configuration)
    }
}

fn put_class(name: &str, uid: u64, flags: u8, fields: u16, out: &mut Vec<u8>) {
    out.push(stream::CLASS_DESC);
    text::put(name, out);
    out.extend_from_slice(&uid.to_be_bytes());
    out.push(flags);
    out.extend_from_slice(&fields.to_be_bytes());
}

/// The data of an `ArrayList`: its size as a field, and again in a block as its capacity was.
fn put_list(texts: &[String], out: &mut Vec<u8>) {
    let size = (texts.len() as u32).to_be_bytes();
    out.extend_from_slice(&size);
    out.extend_from_slice(&[stream::BLOCK_DATA, size.len() as u8]);
    out.extend_from_slice(&size);
    for text in texts {
        let bytes = text::encode(text);
        if let Ok(len) = u16::try_from(bytes.len()) {
            out.push(stream::STRING);
            out.extend_from_slice(&len.to_be_bytes());
        } else {
            out.push(stream::LONG_STRING);
            out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        }
        out.extend_from_slice(&bytes);
    }
    out.push(stream::END_BLOCK_DATA);
}

fn integer<T: TryFrom<i64>>(value: Value) -> Option<T> {
    match value {
        Value::Integer(number) => T::try_from(number).ok(),
        _ => None,
    }
}

/// A name from a stream, fit for a log.
fn shown(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.chars()
        .take(100)
        .flat_map(char::escape_debug)
        .collect()
}
