//! Errors as packets say them: `{from, error, message}`.
//!
//! What does not belong here: which request is answered with which error.

use serde::Serialize;

/// What an error is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorName {
    /// No actor has that name.
    NoSuchActor,
    /// The actor knows no such request.
    UnrecognizedPacketType,
    /// The request lacks a property.
    MissingParameter,
    /// A property of the request is not of its type.
    BadParameterType,
    /// The actor is in a state that has no such request.
    WrongState,
    /// A trace type that the actor does not know.
    NoSuchTraceType,
    /// No trace of that name is being collected.
    NoSuchTrace,
    /// What is asked about has ended.
    NoSuchProcess,
    /// The request goes beyond a limit of the server.
    LimitExceeded,
    /// The client has not shown the server's token.
    NotAuthenticated,
    /// The server can't do it now.
    Unavailable,
}

/// An error as the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorReply {
    /// Its name.
    #[serde(rename = "error")]
    pub name: ErrorName,
    /// What people are told.
    pub message: String,
}

impl ErrorReply {
    /// An error, and what people are told.
    pub fn new(name: ErrorName, message: impl Into<String>) -> ErrorReply {
        ErrorReply {
            name,
            message: message.into(),
        }
    }

    /// A property that a request must have.
    pub fn missing(property: &str) -> ErrorReply {
        let message = format!("the property '{property}' is missing");
        ErrorReply::new(ErrorName::MissingParameter, message)
    }

    /// A property whose value is something else.
    pub fn bad_type(property: &str, expected: &str) -> ErrorReply {
        let message = format!("the property '{property}' is not {expected}");
        ErrorReply::new(ErrorName::BadParameterType, message)
    }

    /// A request that an actor does not know.
    pub fn unrecognized(actor: &str, kind: &str) -> ErrorReply {
        let message = format!("the actor '{actor}' does not recognize the packet type '{kind}'");
        ErrorReply::new(ErrorName::UnrecognizedPacketType, message)
    }
}
