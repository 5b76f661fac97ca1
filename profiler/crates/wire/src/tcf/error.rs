//! Error reports: codes and their JSON.
//!
//! Source: "TCF Services: Error Report Format" and the error codes of the Target Communication
//! Framework. Times are milliseconds since 1970.

use serde::Serialize;

/// What went wrong, in the protocol's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Code {
    Other = 1,
    JsonSyntax = 2,
    Protocol = 3,
    BufferOverflow = 4,
    ChannelClosed = 5,
    CommandCancelled = 6,
    UnknownPeer = 7,
    Base64 = 8,
    Eof = 9,
    AlreadyStopped = 10,
    AlreadyExited = 11,
    AlreadyRunning = 12,
    AlreadyAttached = 13,
    IsRunning = 14,
    InvalidDataSize = 15,
    InvalidContext = 16,
    InvalidAddress = 17,
    InvalidExpression = 18,
    InvalidFormat = 19,
    InvalidNumber = 20,
    InvalidDwarf = 21,
    SymbolNotFound = 22,
    Unsupported = 23,
    InvalidDataType = 24,
    InvalidCommand = 25,
    InvalidTransport = 26,
    CacheMiss = 27,
    NotActive = 28,
    InvalidContObject = 29,
}

/// An error report: a field of an answer, or what ends a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorReport {
    /// What went wrong.
    #[serde(rename = "Code")]
    code: i32,
    /// When.
    #[serde(rename = "Time", skip_serializing_if = "Option::is_none")]
    time_ms: Option<u64>,
    /// The same for people.
    #[serde(rename = "Format")]
    format: String,
    /// Which service.
    #[serde(rename = "Service", skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// The code in another numbering.
    #[serde(rename = "AltCode", skip_serializing_if = "Option::is_none")]
    alt_code: Option<i32>,
    /// Whose that is.
    #[serde(rename = "AltOrg", skip_serializing_if = "Option::is_none")]
    alt_org: Option<&'static str>,
}

impl ErrorReport {
    /// A report without a time.
    pub fn new(code: Code, text: impl Into<String>) -> ErrorReport {
        ErrorReport {
            code: code as i32,
            time_ms: None,
            format: text.into(),
            service: None,
            alt_code: None,
            alt_org: None,
        }
    }

    /// An error of a system call.
    pub fn system(errno: i32, text: impl Into<String>) -> ErrorReport {
        ErrorReport {
            alt_code: Some(errno),
            alt_org: Some("Linux"),
            ..ErrorReport::new(Code::Other, text)
        }
    }

    /// When it happened, in milliseconds since 1970.
    pub fn at(mut self, time_ms: u64) -> ErrorReport {
        self.time_ms = Some(time_ms);
        self
    }

    /// The number of its code.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// What it says to people.
    pub fn text(&self) -> &str {
        &self.format
    }

    /// Its JSON.
    pub fn encode(&self) -> Vec<u8> {
        // Numbers and texts: that can't fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}
